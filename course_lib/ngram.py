"""Language models that look a fixed number of tokens back: n-grams, and a small neural network.

Both give p(next token | the last few tokens), the Markov assumption. Everything is in nats.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.functional import Dropout
from course_lib.utils.validate import check_ids, check_length, check_positive, check_sizes, look_up


def unigram_entropy(ids):
    r"""Entropy of the token frequencies of a text (T,): nats a token for the best model without context.

    $$ H_1 = -\sum_x p(x) \ln p(x), \quad p(x) = \frac{count(x)}{T} $$

    >>> round(unigram_entropy(torch.tensor([0, 1, 0, 2])).item(), 4)  # 1.5 bits
    1.0397

    Source: Shannon 1948, "A Mathematical Theory of Communication", section 6.
    """
    check_text_ids(ids, 1)
    return entropy(ids.unique(return_counts=True)[1])


def bigram_entropy(ids):
    r"""Entropy of a token given the one before it: nats a token for the best model with one token of context.

    $$ H_2 = -\sum_{x, y} p(x, y) \ln p(y \mid x) = H(x, y) - H(x) $$

    On a short text this is far too optimistic: most pairs occur once, and then their own frequencies "predict" them.

    Source: Shannon 1951, "Prediction and Entropy of Printed English", equation 1.
    """
    check_text_ids(ids, 2)
    pairs = ids[:-1] * (ids.max() + 1) + ids[1:]  # one number a pair
    return entropy(pairs.unique(return_counts=True)[1]) - entropy(ids[:-1].unique(return_counts=True)[1])


def entropy(counts):
    """Entropy in nats of the frequencies that belong to counts."""
    p = counts.double() / counts.sum()
    return -(p * p.log()).sum()


class NgramModel:
    r"""Counts of what followed each context of n - 1 tokens, smoothed; n is the `order`, 1 has no context.

    $$ p_n(x \mid c) = \frac{count(c\,x) + a\, q(x)}{count(c) + a} $$

    The counts alone give probability 0 to whatever was not seen, so `a` more counts are added, spread like q, where
    k is the argument `add` (0 is maximum likelihood: infinite loss at the first surprise):

    - add-k (`interpolate=False`): k counts for every token, a = k V and q = 1 / V.
    - interpolation: q is the model of order n - 1 with a context shorter by its oldest token, and so on down to 1 / V.
      k counts for every *different* token that followed c: where many different ones came, a new one is likely.

    At the start of a text a lower order is used. Only the n-grams that occurred are kept, not a table of V^n numbers.

    >>> ids = torch.tensor([0, 1, 0, 2, 0, 1])
    >>> NgramModel(order=2, vocab_size=3, add=1.0).fit(ids).probs([0]).tolist()  # 1 came twice, 2 once
    [0.16666666666666666, 0.5, 0.3333333333333333]

    Source: Jurafsky and Martin, "Speech and Language Processing", 3rd edition, chapter 3; the interpolation is Witten
    and Bell 1991, "The Zero-Frequency Problem", method C, at k = 1. Differs: k is free.
    """

    max_len = None  # it writes texts of any length

    def __init__(self, order, vocab_size, add=1.0, interpolate=False):
        check_sizes(order=order, vocab_size=vocab_size)
        check_positive(zero=True, add=add)
        self.order, self.vocab_size, self.add, self.interpolate = order, vocab_size, add, interpolate
        self.levels = []

    def fit(self, ids):
        """Count the n-grams of a text (T,), of every order up to the model's; gives the model back."""
        check_text_ids(ids, self.order, self.vocab_size)
        self.levels = []
        row, contexts = torch.zeros_like(ids), 1  # row[i]: which context begins at token i; first the empty one
        for m in range(1, self.order + 1):
            # A number for context and token together. Naming contexts by row keeps it small at any order.
            key = row[: len(ids) - m + 1] * self.vocab_size + ids[m - 1 :]  # (T - m + 1,)
            keys, row, counts = key.unique(return_inverse=True, return_counts=True)
            parent = keys // self.vocab_size
            totals = torch.bincount(parent, weights=counts.double(), minlength=contexts)
            followers = torch.bincount(parent, minlength=contexts).double()
            self.levels.append(Level(keys, counts, totals, followers))
            contexts = len(keys)
        return self

    @property
    def num_ngrams(self):
        """How many different n-grams were seen, for each order from 1 to the model's."""
        return [len(level.keys) for level in self.levels]

    def counts(self, ids):
        """How often each n-gram of a text (T,) occurred in the text that was fitted: (T - order + 1,) int64."""
        self.check_fitted()
        check_text_ids(ids, self.order, self.vocab_size)
        return self.look_up(columns(ids, self.order))[0]

    def probs(self, context):
        """Distribution (V,) of the token after a context, of whose tokens the last `order - 1` matter."""
        self.check_fitted()
        context = torch.as_tensor(context)
        if len(context):
            check_text_ids(context, 0, self.vocab_size)
        context = context[max(len(context) - self.order + 1, 0) :].long()
        tokens = torch.arange(self.vocab_size)
        p = torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)
        for m in range(1, len(context) + 2):
            seen = [token.expand_as(tokens) for token in context[len(context) - m + 1 :]]
            p = self.smooth([*seen, tokens], p)
        return p

    def start(self, batch_size):
        """The state before the first token, for `course_lib.generate`: the last `order - 1` tokens of each text."""
        return {"context": torch.zeros(batch_size, 0, dtype=torch.int64)}

    def step(self, tokens, state):
        """Read tokens (B, T): log-probabilities (B, V) of the one after them, and the state."""
        context = torch.cat([state["context"], tokens], 1)
        logits = torch.stack([self.probs(row) for row in context]).log()  # (B, V)
        return logits, {"context": context[:, max(context.shape[1] - self.order + 1, 0) :]}

    def nll(self, ids):
        """Negative log-likelihood of every token of a text (T,), given those before it: (T,) float64 nats.

        Infinite where the model gave probability 0.

        >>> model = NgramModel(2, 3, add=0.0).fit(torch.tensor([0, 1, 0, 1]))
        >>> model.nll(torch.tensor([0, 1, 2])).tolist()  # 1/2, then certain, then never seen
        [0.6931471805599453, 0.0, inf]
        """
        self.check_fitted()
        check_text_ids(ids, 1, self.vocab_size)
        p = torch.full((len(ids),), 1 / self.vocab_size, dtype=torch.float64)
        for m in range(1, min(self.order, len(ids)) + 1):
            p[m - 1 :] = self.smooth(columns(ids, m), p[m - 1 :])
        return 0 - p.log()  # not -p.log(), which is -0.0 for a certain token

    def smooth(self, columns, lower):
        """The equation of the class; `lower` are the probabilities of the next lower order."""
        count, total, followers = self.look_up(columns)
        if self.interpolate:
            a, q = self.add * followers, lower
        else:
            a, q = self.add * self.vocab_size, torch.full_like(lower, 1 / self.vocab_size)
        return torch.where(total + a > 0, (count + a * q) / (total + a), q)

    def look_up(self, columns):
        """Count of each n-gram, total of its context, different followers of its context; (N,) each."""
        row = torch.zeros_like(columns[0])
        known = torch.ones_like(row, dtype=torch.bool)
        for column, level in zip(columns, self.levels, strict=False):  # one token further at each level
            context, context_known = row, known
            key = row * self.vocab_size + column
            row = torch.searchsorted(level.keys, key).clamp(max=len(level.keys) - 1)
            known = context_known & (level.keys[row] == key)
        return (
            level.counts[row] * known,
            level.totals[context] * context_known,
            level.followers[context] * context_known,
        )

    def check_fitted(self):
        """Raise if there are no counts."""
        if not self.levels:
            raise ValueError("the model has no counts yet; call fit(ids) first")


class Level(NamedTuple):
    """The n-grams of one order: sorted keys and their counts; for each context its total and its followers."""

    keys: torch.Tensor
    counts: torch.Tensor
    totals: torch.Tensor
    followers: torch.Tensor


def columns(ids, m):
    """The n-grams of a text as m columns of tokens, (T - m + 1,) each."""
    return [ids[j : len(ids) - m + 1 + j] for j in range(m)]


class WindowLM(nn.Module):
    r"""A neural language model that sees the last `window` tokens.

    $$ h_t = \mathrm{ReLU}\Big(b + \sum_{j=0}^{W-1} A_{W-1-j}\, e(x_{t-j})\Big), \quad
       p(x_{t+1} \mid x_{t-W+1}, \dots, x_t) = \mathrm{softmax}(U h_t + d) $$

    e(x) is the embedding (`d_model` entries) of token x, A a convolution over W = `window` tokens, as many as an n-gram
    model of order W + 1 sees. What is learned about one context serves similar ones.

    >>> model = WindowLM(vocab_size=11, window=3, d_model=4, hidden=5)
    >>> model(torch.zeros(2, 7, dtype=torch.int64)).shape
    torch.Size([2, 7, 11])

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", equation 1. Differs: ReLU for tanh, and no
    direct connections from the embeddings to the output.
    """

    max_len = None  # it writes texts of any length

    def __init__(self, vocab_size, window, d_model, hidden, dropout=0.0):
        super().__init__()
        check_sizes(vocab_size=vocab_size, window=window, d_model=d_model, hidden=hidden)
        self.vocab_size, self.window = vocab_size, window
        self.embedding = nn.Embedding(vocab_size, d_model)
        self.conv = nn.Conv1d(d_model, hidden, window)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(hidden, vocab_size)

    def forward(self, ids):
        """(B, T) ids -> (B, T, V) logits; those at position t are for the token at t + 1."""
        return self.output(self.features(ids))

    def features(self, ids):
        """The hidden layer (B, T, F): what the model knows of each window."""
        x = look_up("ids", ids, self.embedding).transpose(1, 2)  # (B, D, T)
        x = F.pad(x, (self.window - 1, 0))  # (B, D, W - 1 + T): zeros before the first token
        return self.dropout(F.relu(self.conv(x)).transpose(1, 2))  # (B, T, F)

    def start(self, batch_size):
        """The state before the first token, for `course_lib.generate`: the last `window` tokens of each text."""
        return {"context": torch.zeros(batch_size, 0, dtype=torch.int64, device=self.embedding.weight.device)}

    def step(self, tokens, state):
        """Read tokens (B, T): logits (B, V) of the one after them, and the state."""
        context = torch.cat([state["context"], tokens], 1)[:, -self.window :]
        return self(context)[:, -1], {"context": context}


def check_text_ids(ids, least, vocab_size=None):
    """(T,) ids, at least so many, from 0 to below vocab_size; None: from 0 on."""
    check_ids("ids", ids, ("T",))
    check_length("ids", ids, least)
    if len(ids):
        check_ids("ids", ids, ("T",), int(ids.max()) + 1 if vocab_size is None else vocab_size)
