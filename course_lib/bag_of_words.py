"""A text as a bag of words: the baselines that every sequence model has to beat.

The order of the words is gone: none can tell "not terrible, it's great" from "not great, it's terrible", unless
`add_bigrams` shows it two words at a time.
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.functional import Dropout
from course_lib.utils.validate import (
    check_finite,
    check_ids,
    check_length,
    check_positive,
    check_sizes,
    check_tensor,
    check_tokens,
)


def bag_of_words(ids, real, vocab_size, binary=True):
    """Each text (B, T) as one vector over the vocabulary (B, V): which words occur, or how often (`binary=False`).

    >>> bag_of_words(torch.tensor([[3, 3, 1]]), torch.tensor([[True, True, False]]), vocab_size=5, binary=False)
    tensor([[0., 0., 0., 2., 0.]])
    """
    real = real_tokens(ids, real, vocab_size)
    counts = torch.zeros(len(ids), vocab_size, device=ids.device).scatter_add_(1, ids, real.float())  # (B, V)
    return counts.clamp(max=1) if binary else counts


def first_occurrences(ids, real):
    """Where a real token stands for the first time in its row, what a binary bag counts: (B, T) bool."""
    ordered, positions = ids.masked_fill(~real, -1).sort(dim=1, stable=True)  # stable: equal ids keep their order
    new = torch.ones_like(real)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(real).scatter(1, positions, new) & real


def add_bigrams(tokens):
    """The tokens and, after them, every pair of neighbours as one token: a bag of these sees two words of order.

    >>> add_bigrams(["not", "so", "great"])
    ['not', 'so', 'great', 'not so', 'so great']
    """
    tokens = check_tokens("tokens", tokens)
    return [*tokens, *map(" ".join, itertools.pairwise(tokens))]


class BagOfWords(nn.Module):
    r"""Logistic regression on a bag of words: every word has one weight, for or against.

    $$ logit_b = bias + \sum_v x_{b,v} \, weight_v $$

    x is that of `bag_of_words`; it is never formed, the weights of the words that occur are looked up and added. With
    C > 2 classes (`num_classes`) there is a weight and a logit for each. `binary` lets a word count once a text.

    >>> model = BagOfWords(vocab_size=6)
    >>> model.weight.data[4] = 2.0
    >>> model(torch.tensor([[4, 4, 5]]))
    tensor([2.], grad_fn=<AddBackward0>)
    """

    def __init__(self, vocab_size, binary=True, num_classes=2):
        super().__init__()
        check_sizes(vocab_size=vocab_size)
        check_sizes(2, num_classes=num_classes)
        self.vocab_size, self.binary, self.num_classes = vocab_size, binary, num_classes
        shape = () if num_classes == 2 else (num_classes,)
        self.weight = nn.Parameter(torch.zeros(vocab_size, *shape))  # the loss is convex: zero is as good as any start
        self.bias = nn.Parameter(torch.zeros(shape))

    def forward(self, ids, real=None):
        """(B, T) ids -> (B,) logits of class 1, or (B, C) of more than two classes."""
        real = real_tokens(ids, real, self.vocab_size)
        counted = first_occurrences(ids, real) if self.binary else real
        return sum_of_rows(self.weight, ids, counted) + self.bias

    def score(self, ids, starts):
        """The same logits, (N,) or (N, C), for the output of `flatten_rows`, cut with the model's `binary`."""
        check_ids("ids", ids, ("M",), self.vocab_size)
        return sum_of_rows(self.weight, ids, starts=starts) + self.bias


class AveragedEmbeddings(nn.Module):
    r"""A classifier of the mean of the tokens' vectors: the simplest network for text.

    $$ logits_b = W \Big( \frac{1}{M_b} \sum_t real_{b,t} \, E[ids_{b,t}] \Big) + c $$

    M_b is the number of real tokens in row b: dividing by T instead would make the answer depend on the padding. The
    embeddings have `d_model` entries; the mean passes dropout.

    Source: Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods for Text Classification", section 2
    (their model without hidden layers).
    """

    def __init__(self, vocab_size, d_model, num_classes=2, dropout=0.0):
        super().__init__()
        check_sizes(vocab_size=vocab_size, d_model=d_model, num_classes=num_classes)
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.dropout = Dropout(dropout)
        self.output = nn.Linear(d_model, num_classes)

    def forward(self, ids, real=None):
        """(B, T) ids -> (B, C) logits; a row without real tokens has the mean zero."""
        real = real_tokens(ids, real, self.embedding.num_embeddings)
        total = sum_of_rows(self.embedding.weight, ids, real)  # (B, D)
        mean = total / real.sum(1, keepdim=True).clamp(min=1)
        return self.output(self.dropout(mean))


def real_tokens(ids, real, vocab_size):
    """`real` (B, T), or all True where it is None; checks ids and mask."""
    check_ids("ids", ids, ("B", "T"), vocab_size)
    if real is None:
        return torch.ones_like(ids, dtype=torch.bool)
    check_tensor("real", real, tuple(ids.shape), torch.bool)
    return real


def sum_of_rows(weight, ids, counted=None, starts=None):
    """For each text the sum of the rows of `weight` (V, ...) that its ids name: (B, ...).

    The ids are (B, T), `counted` where the mask (B, T) is True; or (M,), one text after the other from `starts` (B,).
    """
    ones = None if counted is None else counted.to(weight.dtype)
    total = F.embedding_bag(ids, weight.view(len(weight), -1), starts, mode="sum", per_sample_weights=ones)
    return total.view(-1, *weight.shape[1:])


# --- fitting --------------------------------------------------------------------


def flatten_rows(rows, binary=True):
    """N texts of unequal length one after the other (M,), and where each starts (N,): batching without padding.

    `binary` keeps each id once a row.

    >>> flatten_rows([[7, 7, 4], [], [9]])
    (tensor([4, 7, 9]), tensor([0, 2, 2]))
    """
    check_length("rows", rows)
    rows = [np.unique(row) if binary else np.asarray(row) for row in rows]
    sizes = torch.tensor([len(row) for row in rows])
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)), sizes.cumsum(0) - sizes


def fit_bag_of_words(model, rows, labels, l2, scale=None, steps=100, tolerance=1e-3, log=None):
    r"""Move a `BagOfWords` to the optimum of its training loss plus an L2 penalty, by L-BFGS on all texts at once.

    $$ \frac{1}{N} \sum_n -\ln p(labels_n \mid rows_n) + \frac{l2}{2} \lVert weight / scale \rVert^2 $$

    With l2 > 0 and all labels present there is one optimum, and neither learning rate nor random order matters.

    Args:
        model: BagOfWords on the CPU; changed in place.
        rows: N lists or arrays of token ids.
        labels: N labels from 0 to num_classes - 1.
        l2: strength of the penalty; the bias is free.
        scale: (V,) how far a word's weight may go at the same price, for instance `log_count_ratio`; 0: nowhere.
        steps: most L-BFGS steps. Few are a penalty of their own: the weights of rare words have not moved far yet.
        tolerance: it stops before when no entry of the (preconditioned) gradient is larger than this.
        log: function called after each step with the step's number from 1; its dict is added to the history.

    Returns a list of dicts, one a step: "step", "train_loss" (nats a text), "objective" (with the penalty) and log's.
    """
    check_positive(zero=True, l2=l2, tolerance=tolerance)
    check_sizes(steps=steps)
    labels = as_labels(rows, labels, model.num_classes)
    ids, starts = flatten_rows(rows, model.binary)
    check_ids("rows", ids, ("M",), model.vocab_size)
    weight, bias = model.weight.data, model.bias  # (V,) and (), or (V, C) and (C,)
    one_a_word = (-1, *[1] * (weight.ndim - 1))  # (V,) or (V, 1)
    scale = torch.ones(len(weight), dtype=weight.dtype) if scale is None else scale.to(weight.dtype)
    check_finite("scale", scale)
    mean = torch.bincount(ids, minlength=len(weight)).to(weight.dtype) / len(rows)
    # Each weight is measured in units of its own curvature ("the" is a thousand times as frequent as most words):
    # about one over the root of the second derivative, as a count of mean m has a mean square near m + m^2.
    unit = (scale**2 * (mean + mean**2) / 4 + l2).clamp(min=1e-12).rsqrt().view(one_a_word)
    scale = scale.view(one_a_word)
    free = nn.Parameter(torch.zeros_like(weight))  # weight = scale * unit * free
    # One step a call; max_eval is room for the line search, without which the steps go astray.
    optimizer = torch.optim.LBFGS(
        [free, bias], max_iter=1, max_eval=20, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    seen = loss = total = None

    @torch.no_grad()
    def objective():
        nonlocal seen, loss, total
        here = torch.cat([free.flatten(), bias.flatten()])
        if seen is not None and torch.equal(here, seen):  # a step starts where the last one ended: a third of the work
            return total
        seen, penalised = here, unit * free
        torch.mul(scale, penalised, out=weight)
        loss, error = loss_and_error(model.score(ids, starts), labels)
        bias.grad = error.sum(0)
        free.grad = unit * (scale * counts_times(error, ids, starts, weight) + l2 * penalised)
        total = loss + l2 / 2 * penalised.square().sum()
        return total

    history = []
    for step in range(1, steps + 1):
        optimizer.step(objective)
        objective()  # the line search may have looked elsewhere last
        entry = {"step": step, "train_loss": loss.item(), "objective": total.item()}
        history.append(entry | (log(step) if log else {}))
        if max(free.grad.abs().max(), bias.grad.abs().max()) <= tolerance:
            break
    return history


def loss_and_error(logits, labels):
    """Mean negative log-likelihood of (N,) labels, and its gradient by the logits (N,) or (N, C): (p - truth) / N."""
    if logits.ndim == 1:
        truth, p = labels.to(logits.dtype), logits.sigmoid()
        return F.binary_cross_entropy_with_logits(logits, truth), (p - truth) / len(labels)
    truth, p = F.one_hot(labels, logits.shape[1]), logits.softmax(1)
    return F.cross_entropy(logits, labels), (p - truth) / len(labels)


def counts_times(error, ids, starts, weight):
    """X^T error, like the weight: faster than autograd through millions of look-ups."""
    sizes = torch.diff(starts, append=torch.tensor([len(ids)]))
    spread = error.repeat_interleave(sizes, 0).view(len(ids), weight[0].numel())  # (M, 1) or (M, C)
    columns = [torch.bincount(ids, column, len(weight)) for column in spread.T]
    return torch.stack(columns, 1).view_as(weight).to(weight.dtype)


def log_count_ratio(rows, labels, vocab_size):
    r"""How much more often each word occurs in texts of class 1 than in texts of class 0, in nats: (V,) float32.

    $$ r_v = \ln \frac{p_v / \lVert p \rVert_1}{q_v / \lVert q \rVert_1} $$

    p and q count the texts of class 1 and of class 0 that hold word v, plus one. As `scale` of `fit_bag_of_words` it
    lets telling words move far and holds chance words back: rare pairs of words overfit less.

    Source: Wang and Manning 2012, "Baselines and Bigrams: Simple, Good Sentiment and Topic Classification", sections
    2.1 and 2.3, with binary counts. Differs: they scale the features of an SVM, which comes to the same.
    """
    labels = as_labels(rows, labels, 2)
    ids, starts = flatten_rows(rows)
    check_ids("rows", ids, ("M",), vocab_size)
    of_text = labels.repeat_interleave(torch.diff(starts, append=torch.tensor([len(ids)])))  # (M,)
    counts = 1 + torch.bincount(of_text * vocab_size + ids, minlength=2 * vocab_size).view(2, vocab_size).double()
    p = counts / counts.sum(1, keepdim=True)
    return (p[1] / p[0]).log().float()


def as_labels(rows, labels, num_classes):
    """One label from 0 to num_classes - 1 for each row: (N,) int64."""
    check_length("rows", rows, 0)
    check_length("labels", labels, 0)
    if len(rows) == 0 or len(rows) != len(labels):
        raise ValueError(f"wanted a label for each of at least one row, got {len(rows)} rows and {len(labels)} labels")
    found = torch.as_tensor(labels)
    labels = found.long()
    if (labels != found).any() or labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(f"labels must be whole numbers from 0 to {num_classes - 1}, got {found.unique().tolist()[:5]}")
    return labels
