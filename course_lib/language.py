r"""Language models that look a fixed number of tokens back: n-grams, and a small neural network.

Read in this order: `unigram_entropy` and `bigram_entropy` say how hard a text is to predict from no
context and from one token; `NgramModel` counts what followed each context and smooths the counts;
`WindowLM` replaces the table by weights shared between similar contexts; `sample` writes text with
either. All of them give p(next token | the last few tokens), the Markov assumption: what stands
further back has no influence at all.

Everything is in nats (natural logarithm). `course_lib.metrics` turns nats into perplexity and bits.

Notebook: 01.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn


def unigram_entropy(ids):
    r"""Entropy of the token frequencies: nats a token for the best model without context.

    $$ H_1 = -\sum_x p(x) \ln p(x), \quad p(x) = \frac{count(x)}{T} $$

    The frequencies are the text's own, so no model that ignores context can do better on it.

    Args:
        ids: (T,) int64 token numbers, at least one.

    Returns:
        Tensor () float64, nats; from 0 (one token repeated) to ln V (all equally frequent).

    Raises:
        ValueError: if `ids` is not one-dimensional int64 or is empty.

    Example:
        >>> round(unigram_entropy(torch.tensor([0, 1, 0, 2])).item(), 4)  # 1.5 bits
        1.0397

    Source: Shannon 1948, "A Mathematical Theory of Communication", section 6. Notebook: 01.
    """
    _check_ids(ids, least=1)
    return _entropy(ids.unique(return_counts=True)[1])


def bigram_entropy(ids):
    r"""Entropy of a token given the one before it: nats a token for the best model with one token of context.

    $$ H_2 = -\sum_{x, y} p(x, y) \ln p(y \mid x) $$

    x runs over the first tokens of the T - 1 pairs, y over the second. On a short text this is far
    too optimistic: most pairs occur once, and then their own frequencies "predict" them.

    Args:
        ids: (T,) int64 token numbers, at least two.

    Returns:
        Tensor () float64, nats a token.

    Raises:
        ValueError: if `ids` is not one-dimensional int64 or has fewer than two tokens.

    Example:
        >>> round(bigram_entropy(torch.tensor([0, 1, 0, 2, 0])).item(), 4)  # half of the time one bit, else none
        0.3466

    Source: Shannon 1951, "Prediction and Entropy of Printed English", equation 1. Notebook: 01.
    """
    _check_ids(ids, least=2)
    pairs = ids[:-1] * (ids.max() + 1) + ids[1:]  # one number a pair
    of_pairs = _entropy(pairs.unique(return_counts=True)[1])
    return of_pairs - _entropy(ids[:-1].unique(return_counts=True)[1])  # H(x, y) = H(x) + H(y | x)


class NgramModel:
    r"""Counts of what followed each context of n - 1 tokens, smoothed.

    $$ p_n(x \mid c) = \frac{count(c\,x) + a\, q(x)}{count(c) + a} $$

    count(c) is how often anything followed c. The counts alone give probability 0 to whatever was not
    seen, and most of what can be said was not. So `a` more counts are added, spread like q:

    - add-k (`interpolate=False`): k counts for every token, a = k V and q = 1 / V.
    - interpolation (`interpolate=True`): q is the model of order n - 1 with a context shorter by its
      oldest token, and so on down to 1 / V. k counts for every *different* token that followed c, so
      that a = k times their number: where many different ones came, a new one is likely.

    A context that never occurred gives q where a is 0 too. At the start of a text, where n - 1 tokens
    are not there yet, a lower order is used, so every token gets a probability.

    Counts are kept as sorted arrays, one an order, of the n-grams that occurred: millions of tokens
    take seconds, and a table of V^n numbers never exists.

    Args:
        order: n, tokens in an n-gram: 1 unigram (no context), 2 bigram, ...
        vocab_size: V.
        add: k, at least 0. 0 is maximum likelihood: infinite loss at the first surprise.
        interpolate: False for add-k, True for interpolation.

    Attributes:
        num_ngrams: list, how many different 1-grams, 2-grams, ..., n-grams were seen; what has to be stored.

    Raises:
        ValueError: if order or vocab_size is below 1, or add is negative.

    Example:
        >>> ids = torch.tensor([0, 1, 0, 2, 0, 1])
        >>> NgramModel(order=2, vocab_size=3, add=1.0).fit(ids).probs([0]).tolist()  # 1 came twice, 2 once
        [0.16666666666666666, 0.5, 0.3333333333333333]

    Source: Jurafsky and Martin, "Speech and Language Processing", 3rd edition, chapter 3; the
    interpolation is Witten and Bell 1991, "The Zero-Frequency Problem", method C, at k = 1.
    Differs: k is free. Chen and Goodman 1999 compare many more. Notebook: 01.
    """

    def __init__(self, order, vocab_size, add=1.0, interpolate=False):
        if order < 1 or vocab_size < 1:
            raise ValueError(f"order and vocab_size must be at least 1, got {order} and {vocab_size}")
        if add < 0:
            raise ValueError(f"add must be at least 0, got {add}")
        self.order, self.vocab_size, self.add, self.interpolate = order, vocab_size, add, interpolate
        self._levels = []

    def fit(self, ids):
        """Count the n-grams of a text, of every order up to the model's.

        Args:
            ids: (T,) int64 token numbers below V, at least `order` of them.

        Returns:
            The model itself. Counts of an earlier text are forgotten.

        Raises:
            ValueError: if `ids` is not one-dimensional int64, is shorter than the order, or holds a
                number outside 0 .. V - 1.
        """
        _check_ids(ids, self.order, self.vocab_size)
        self._levels = []
        row, contexts = torch.zeros_like(ids), 1  # row[i]: which context begins at token i; first the empty one
        for m in range(1, self.order + 1):
            # A number for context and token together. Naming contexts by row keeps it small at any order.
            key = row[: len(ids) - m + 1] * self.vocab_size + ids[m - 1 :]
            keys, row, counts = key.unique(return_inverse=True, return_counts=True)
            parent = keys // self.vocab_size
            totals = torch.bincount(parent, weights=counts.double(), minlength=contexts)
            followers = torch.bincount(parent, minlength=contexts).double()
            self._levels.append(_Level(keys, counts, totals, followers))
            contexts = len(keys)
        return self

    @property
    def num_ngrams(self):
        """How many different n-grams were seen, for each order from 1 to the model's."""
        return [len(level.keys) for level in self._levels]

    def counts(self, ids):
        """How often each n-gram of a text occurred in the text that the model was fitted to.

        Args:
            ids: (T,) int64, at least `order` of them.

        Returns:
            (T - order + 1,) int64; 0 for those never seen.

        Raises:
            ValueError: as `nll`.

        Example:
            >>> NgramModel(2, 3).fit(torch.tensor([0, 1, 0, 1])).counts(torch.tensor([0, 1, 2])).tolist()
            [2, 0]
        """
        self._check_fitted()
        _check_ids(ids, self.order, self.vocab_size)
        return self._look_up(_columns(ids, self.order))[0]

    def probs(self, context):
        """Distribution of the next token.

        Args:
            context: (S,) token numbers or a list of them; only the last `order - 1` matter, and there may be fewer.

        Returns:
            (V,) float64, sums to 1.

        Raises:
            ValueError: if the model was not fitted, or the context holds a number outside 0 .. V - 1.
        """
        self._check_fitted()
        context = torch.as_tensor(context, dtype=torch.int64)
        _check_ids(context, 0, self.vocab_size)
        context = context[max(len(context) - self.order + 1, 0) :]
        tokens = torch.arange(self.vocab_size)
        p = torch.full((self.vocab_size,), 1 / self.vocab_size, dtype=torch.float64)
        for m in range(1, len(context) + 2):
            columns = [token.expand_as(tokens) for token in context[len(context) - m + 1 :]]
            p = self._smooth([*columns, tokens], p)
        return p

    def nll(self, ids):
        r"""Negative log-likelihood of every token of a text, given those before it.

        $$ -\ln p(x_t \mid x_{t-n+1}, \dots, x_{t-1}) $$

        Args:
            ids: (T,) int64 token numbers below V, at least one.

        Returns:
            (T,) float64, nats; infinite where the model gave probability 0.

        Raises:
            ValueError: if the model was not fitted, or `ids` is not one-dimensional int64, is empty, or
                holds a number outside 0 .. V - 1.

        Example:
            >>> model = NgramModel(2, 3, add=0.0).fit(torch.tensor([0, 1, 0, 1]))
            >>> model.nll(torch.tensor([0, 1, 2])).tolist()  # 1/2, then certain, then never seen
            [0.6931471805599453, 0.0, inf]
        """
        self._check_fitted()
        _check_ids(ids, 1, self.vocab_size)
        p = torch.full((len(ids),), 1 / self.vocab_size, dtype=torch.float64)
        for m in range(1, min(self.order, len(ids)) + 1):
            p[m - 1 :] = self._smooth(_columns(ids, m), p[m - 1 :])
        return 0 - p.log()  # not -p.log(), which is -0.0 for a certain token

    def _smooth(self, columns, lower):
        """The equation of the class; `lower` are the probabilities of the next lower order."""
        count, total, followers = self._look_up(columns)
        if self.interpolate:
            a, q = self.add * followers, lower
        else:
            a, q = self.add * self.vocab_size, torch.full_like(lower, 1 / self.vocab_size)
        return torch.where(total + a > 0, (count + a * q) / (total + a), q)

    def _look_up(self, columns):
        """Count of each n-gram, total of its context, different followers of its context; (N,) each."""
        row = torch.zeros_like(columns[0])
        known = torch.ones_like(row, dtype=torch.bool)
        for column, level in zip(columns, self._levels, strict=False):  # one token further at each level
            context, context_known = row, known
            key = row * self.vocab_size + column
            row = torch.searchsorted(level.keys, key).clamp(max=len(level.keys) - 1)
            known = context_known & (level.keys[row] == key)
        return (
            level.counts[row] * known,
            level.totals[context] * context_known,
            level.followers[context] * context_known,
        )

    def _check_fitted(self):
        """Raise if there are no counts."""
        if not self._levels:
            raise ValueError("the model has no counts yet; call fit(ids) first")


class WindowLM(nn.Module):
    r"""A neural language model that sees the last `window` tokens.

    $$ h_t = \mathrm{ReLU}\Big(b + \sum_{j=0}^{W-1} A_{W-1-j}\, e(x_{t-j})\Big), \quad
       p(x_{t+1} \mid x_{t-W+1}, \dots, x_t) = \mathrm{softmax}(U h_t + d) $$

    e(x) is the embedding of token x, and A is a convolution over time. An n-gram model needs counts of
    every context; here similar tokens get similar embeddings, and what is learned about one context
    serves the others. The convolution computes all positions at once and never looks ahead: the zeros
    that it needs before the first token stand only at the left.

    Args:
        vocab_size: V.
        window: W, tokens that are seen, the current one included, at least 1. An n-gram model of order
            W + 1 sees as many.
        width: D, of the embeddings.
        hidden: F, units in the hidden layer.
        dropout: share of the hidden layer's entries set to zero in training, from 0 to below 1.

    Raises:
        ValueError: if a size is below 1 or dropout is outside [0, 1).

    Example:
        >>> model = WindowLM(vocab_size=11, window=3, width=4, hidden=5)
        >>> model(torch.zeros(2, 7, dtype=torch.int64)).shape
        torch.Size([2, 7, 11])

    Source: Bengio et al. 2003, "A Neural Probabilistic Language Model", equation 1. Differs: ReLU for
    tanh, and no direct connections from the embeddings to the output. Notebook: 01.
    """

    def __init__(self, vocab_size, window, width, hidden, dropout=0.0):
        super().__init__()
        if min(vocab_size, window, width, hidden) < 1:
            raise ValueError(f"sizes must be at least 1, got {vocab_size=}, {window=}, {width=}, {hidden=}")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be from 0 to below 1, got {dropout}")
        self.window, self.dropout = window, dropout
        self.embedding = nn.Embedding(vocab_size, width)
        self.conv = nn.Conv1d(width, hidden, window)
        self.output = nn.Linear(hidden, vocab_size)

    def features(self, ids):
        """The hidden layer: what the model knows of each window.

        Args:
            ids: (B, T) int64 token numbers.

        Returns:
            (B, T, F). Position t depends on tokens t - W + 1 .. t; zero vectors stand in for those
            before the first.

        Raises:
            ValueError: if `ids` does not have two axes.
        """
        if ids.ndim != 2:
            raise ValueError(f"ids must be (B, T), got shape {tuple(ids.shape)}")
        x = self.embedding(ids).transpose(1, 2)  # (B, D, T)
        x = F.pad(x, (self.window - 1, 0))  # (B, D, W - 1 + T)
        h = F.relu(self.conv(x)).transpose(1, 2)  # (B, T, F)
        if self.training and self.dropout > 0:  # torch.rand draws the same mask on every make of CPU
            h = h * (torch.rand(h.shape, device=h.device) >= self.dropout) / (1 - self.dropout)
        return h

    def forward(self, ids):
        """Scores of the token that follows each position.

        Args:
            ids: (B, T) int64 token numbers.

        Returns:
            (B, T, V) logits; those at position t are for the token at t + 1.
        """
        return self.output(self.features(ids))

    @torch.inference_mode()
    def probs(self, context):
        """Distribution of the next token, as `NgramModel.probs`; with dropout, call `eval()` before.

        Args:
            context: (S,) token numbers or a list of them, at least one; only the last `window` matter.

        Returns:
            (V,) probabilities.

        Raises:
            ValueError: if the context is empty.
        """
        ids = torch.as_tensor(context, dtype=torch.int64, device=self.embedding.weight.device)[-self.window :]
        if len(ids) == 0:
            raise ValueError("the context is empty; this model needs at least one token")
        return self(ids[None])[0, -1].softmax(-1)


def sample(next_probs, prompt, steps, generator, temperature=1.0):
    r"""Continue a text by drawing one token after another.

    $$ x = \min \{ i : \sum_{j \le i} p_j^{1/\tau} > u \sum_j p_j^{1/\tau} \}, \quad u \sim U[0, 1) $$

    with temperature tau. A uniform number is looked up in the cumulative distribution, so the same
    generator gives the same text wherever the probabilities are the same.

    Args:
        next_probs: `next_probs(ids (S,)) -> (V,)` probabilities of the next token, e.g. a model's `probs`.
        prompt: list or (S,) tensor of token numbers to start from.
        steps: how many tokens to draw, at least 0.
        generator: torch.Generator on the CPU.
        temperature: above 0; below 1 prefers what is likely, above 1 evens out, 1 leaves p as it is.

    Returns:
        list of int, the `steps` new tokens, without the prompt.

    Raises:
        ValueError: if steps is negative, the temperature is not above 0, or `next_probs` does not
            return one row of numbers from 0 on with a finite sum above 0.

    Example:
        >>> model = NgramModel(2, 3, add=0.0).fit(torch.tensor([0, 1, 2, 0, 1, 2, 0]))
        >>> sample(model.probs, [1], 5, torch.Generator().manual_seed(0))
        [2, 0, 1, 2, 0]

    Notebook: 01.
    """
    if steps < 0:
        raise ValueError(f"steps must be at least 0, got {steps}")
    if not temperature > 0:
        raise ValueError(f"temperature must be above 0, got {temperature}")
    ids = torch.as_tensor(prompt, dtype=torch.int64).tolist()
    for _ in range(steps):
        p = next_probs(torch.tensor(ids, dtype=torch.int64)).cpu().double()
        if p.ndim != 1 or not (p >= 0).all() or not 0 < p.sum() < torch.inf:
            raise ValueError(
                f"next_probs returned shape {tuple(p.shape)} with sum {p.sum().item():.3g}; "
                "wanted (V,) probabilities, not logits"
            )
        cdf = (p / p.max()).pow(1 / temperature).cumsum(0)  # the largest becomes 1, so that no power vanishes
        u = torch.rand((), generator=generator, dtype=torch.float64) * cdf[-1]
        ids.append(min(torch.searchsorted(cdf, u, right=True).item(), len(p) - 1))
    return ids[len(ids) - steps :]


class _Level(NamedTuple):
    """The n-grams of one order: sorted keys and their counts; for each context its total and its followers."""

    keys: torch.Tensor
    counts: torch.Tensor
    totals: torch.Tensor
    followers: torch.Tensor


def _columns(ids, m):
    """The n-grams of a text as m columns of tokens, (T - m + 1,) each."""
    return [ids[j : len(ids) - m + 1 + j] for j in range(m)]


def _entropy(counts):
    """Entropy in nats of the frequencies that belong to counts."""
    p = counts.double() / counts.sum()
    return -(p * p.log()).sum()


def _check_ids(ids, least, vocab_size=None):
    """Raise unless the ids are a vector of at least so many token numbers."""
    if ids.ndim != 1 or ids.dtype != torch.int64 or len(ids) < least:
        raise ValueError(f"ids must be int64 of shape (T,) with T >= {least}, got {ids.dtype} {tuple(ids.shape)}")
    if vocab_size is not None and len(ids) and not (0 <= ids.min() and ids.max() < vocab_size):
        raise ValueError(f"ids must be from 0 to {vocab_size - 1}, got {ids.min().item()} to {ids.max().item()}")
