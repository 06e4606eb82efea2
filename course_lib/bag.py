r"""A text as a bag of words: the baselines that every sequence model has to beat.

Read `bag_of_words` first: a text becomes one vector of length V, and its order is gone.
`BagOfWords` is logistic regression on that vector, `fit_bag_of_words` finds its optimum,
`add_bigrams` lets it see two words at a time, and `AveragedEmbeddings` replaces the counts by the
mean of learned vectors. None of them can tell "not terrible, it's great" from
"not great, it's terrible", bigrams excepted.

Notebook: 02.
"""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn


def bag_of_words(ids, mask, vocab_size, binary=True):
    r"""Each text as one vector over the vocabulary: which words occur, or how often.

    $$ x_{b,v} = \sum_t mask_{b,t} \, [ids_{b,t} = v] $$

    It is the sum of the tokens' one-hot vectors, so any order of the tokens gives the same vector.

    Args:
        ids: (B, T) int64 token ids.
        mask: (B, T) bool, True = may attend (a real token).
        vocab_size: V.
        binary: True caps the counts at 1.

    Returns:
        (B, V) float32.

    Raises:
        ValueError: if ids and mask differ in shape, the mask is not boolean, or an id is below 0 or
            not below V.

    Example:
        >>> ids, mask = torch.tensor([[3, 3, 1]]), torch.tensor([[True, True, False]])
        >>> bag_of_words(ids, mask, vocab_size=5, binary=False)
        tensor([[0., 0., 0., 2., 0.]])

    Notebook: 02.
    """
    _check(ids, mask, vocab_size)
    counts = torch.zeros(len(ids), vocab_size, device=ids.device).scatter_add_(1, ids, mask.float())
    return counts.clamp(max=1) if binary else counts


def first_occurrences(ids, mask):
    """Where a real token stands for the first time in its row: what a binary bag counts.

    Args:
        ids: (B, T) int64 token ids.
        mask: (B, T) bool, True = may attend (a real token).

    Returns:
        (B, T) bool.

    Raises:
        ValueError: if ids and mask differ in shape or the mask is not boolean.

    Example:
        >>> first_occurrences(torch.tensor([[7, 4, 7]]), torch.tensor([[True, True, True]]))
        tensor([[ True,  True, False]])

    Notebook: 02.
    """
    _check(ids, mask)
    ordered, where = ids.masked_fill(~mask, -1).sort(dim=1, stable=True)  # stable: equal ids keep their order
    new = torch.ones_like(mask)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return torch.zeros_like(mask).scatter(1, where, new) & mask


def add_bigrams(tokens):
    """The tokens and, after them, every pair of neighbours as one token.

    A bag of these sees two words of order: "not great" is a feature of its own. Vocabulary and
    models need no change, since a pair is a token like any other.

    Args:
        tokens: list of str.

    Returns:
        list of str, 2 T - 1 long.

    Raises:
        ValueError: if `tokens` is a string.

    Example:
        >>> add_bigrams(["not", "so", "great"])
        ['not', 'so', 'great', 'not so', 'so great']

    Notebook: 02.
    """
    if isinstance(tokens, str):
        raise ValueError(f"add_bigrams wants a list of tokens, got the string {tokens[:40]!r}: tokenize it first")
    return [*tokens, *map(" ".join, itertools.pairwise(tokens))]


class BagOfWords(nn.Module):
    r"""Logistic regression on a bag of words: every word has one weight, for or against.

    $$ logit_b = bias + \sum_v x_{b,v} \, weight_v $$

    The vector x of `bag_of_words` is never formed: the weights of the words that occur are looked
    up and added, which is the same sum without its zeros.

    Args:
        vocab_size: V.
        binary: True lets a word count once a text, False each time.

    Raises:
        ValueError: if vocab_size is below 1.

    Example:
        >>> model = BagOfWords(vocab_size=6)
        >>> model.weight.data[4] = 2.0
        >>> ids, mask = torch.tensor([[4, 4, 5]]), torch.ones(1, 3, dtype=torch.bool)
        >>> model(ids, mask)
        tensor([2.], grad_fn=<AddBackward0>)

    Notebook: 02.
    """

    def __init__(self, vocab_size, binary=True):
        super().__init__()
        _check_size("vocab_size", vocab_size)
        self.binary = binary
        self.weight = nn.Parameter(torch.zeros(vocab_size))  # the loss is convex: zero is as good a start as any
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids, mask):
        """The logit of class 1; above 0 means that class 1 is the more likely one.

        Args:
            ids: (B, T) int64 token ids.
            mask: (B, T) bool, True = may attend (a real token).

        Returns:
            (B,) logits.

        Raises:
            ValueError: as in `bag_of_words`.
        """
        _check(ids, mask, len(self.weight))
        counted = first_occurrences(ids, mask) if self.binary else mask
        return _weighted_sum(self.weight[:, None], ids, counted)[:, 0] + self.bias

    def score(self, ids, starts):
        """The same logits for the flat rows of `flatten_rows`, which must have been cut with the model's `binary`.

        Args:
            ids: (M,) int64 token ids of all texts.
            starts: (N,) int64, where each text starts in `ids`.

        Returns:
            (N,) logits.

        Raises:
            ValueError: if an id is below 0 or not below V.
        """
        _check_ids(ids, len(self.weight))
        return F.embedding_bag(ids, self.weight[:, None], starts, mode="sum")[:, 0] + self.bias


def flatten_rows(rows, binary=True):
    """Texts of unequal length one after the other, and where each starts: batching without padding.

    Args:
        rows: N lists or arrays of token ids.
        binary: True keeps each id once a row.

    Returns:
        ids: (M,) int64, all rows in one.
        starts: (N,) int64, position of each row's first id; torch's EmbeddingBag calls them offsets.

    Raises:
        ValueError: if there are no rows.

    Example:
        >>> flatten_rows([[7, 7, 4], [], [9]])
        (tensor([4, 7, 9]), tensor([0, 2, 2]))

    Notebook: 02.
    """
    if len(rows) == 0:
        raise ValueError("flatten_rows wants at least one row, got none")
    rows = [np.unique(row) if binary else np.asarray(row) for row in rows]
    sizes = torch.tensor([len(row) for row in rows])
    return torch.from_numpy(np.concatenate(rows).astype(np.int64)), sizes.cumsum(0) - sizes


def fit_bag_of_words(model, rows, labels, l2, scale=None, steps=100, tolerance=1e-3, log=None):
    r"""Move a `BagOfWords` to the optimum of its training loss plus an L2 penalty.

    $$ \frac{1}{N} \sum_n -\ln p(labels_n \mid rows_n) + \frac{l2}{2} \lVert weight / scale \rVert^2 $$

    With l2 > 0 and both labels present this is strictly convex and its optimum finite: there is exactly
    one, and neither learning rate nor random order matters. (With l2 = 0 there may be many, or none that
    is finite.) Once each weight is measured in units of its own curvature ("the" is a thousand times as
    frequent as most words), L-BFGS on all texts at once comes close to it in some tens of steps and stops
    at a small gradient. The gradient is written out, X^T (p - labels) / N, which is faster than autograd
    through millions of look-ups. A word whose scale is 0 keeps the weight 0.

    Args:
        model: BagOfWords on the CPU; changed in place.
        rows: N lists or arrays of token ids.
        labels: N labels, 0 or 1.
        l2: strength of the penalty; the bias is free.
        scale: (V,) for each word how far its weight may go at the same price, for instance
            `log_count_ratio`; None is 1 for all.
        steps: most L-BFGS steps. Few are a penalty of their own: the weights of rare words have not moved far yet.
        tolerance: it stops before when no entry of the (preconditioned) gradient is larger than this.
        log: function called after each step with the step's number from 1; its dict is added to the history.

    Returns:
        list of dicts, one a step: "step", "train_loss" (nats a text), "objective" (with the penalty; it
            only falls) and what `log` gave.

    Raises:
        ValueError: if there are no rows, not as many labels, a label is not 0 or 1, l2 is negative, or
            an id is below 0 or not below V.

    Example:
        >>> model = BagOfWords(vocab_size=6)
        >>> history = fit_bag_of_words(model, [[4, 4], [5], [4, 5]], [1, 0, 1], l2=0.01)
        >>> bool(model.weight[4] > 0 > model.weight[5])
        True

    Notebook: 02.
    """
    labels = _check_labels(rows, labels).to(model.weight.dtype)
    if l2 < 0:
        raise ValueError(f"l2 must not be negative, got {l2}")
    ids, starts = flatten_rows(rows, model.binary)
    _check_ids(ids, len(model.weight))
    sizes = torch.diff(starts, append=torch.tensor([len(ids)]))
    weight, bias = model.weight.data, model.bias
    scale = torch.ones_like(weight) if scale is None else scale.to(weight.dtype)
    mean = torch.bincount(ids, minlength=len(weight)).to(weight.dtype) / len(rows)
    # About one over the root of the second derivative: a count of mean m has a mean square near m + m^2.
    unit = (scale**2 * (mean + mean**2) / 4 + l2).clamp(min=1e-12).rsqrt()
    free = nn.Parameter(torch.zeros_like(weight))  # weight = scale * unit * free
    # One step a call; max_eval is room for the line search, without which the steps go astray.
    optimizer = torch.optim.LBFGS(
        [free, bias], max_iter=1, max_eval=20, tolerance_grad=0, tolerance_change=0, line_search_fn="strong_wolfe"
    )
    seen = loss = total = None

    @torch.no_grad()
    def objective():
        nonlocal seen, loss, total
        here = torch.cat([free, bias.view(1)])
        if seen is not None and torch.equal(here, seen):  # a step starts where the last one ended: a third of the work
            return total
        seen, penalised = here, unit * free
        torch.mul(scale, penalised, out=weight)
        logits = model.score(ids, starts)
        loss = F.binary_cross_entropy_with_logits(logits, labels)
        error = (logits.sigmoid() - labels) / len(labels)
        bias.grad = error.sum()
        slope = torch.bincount(ids, error.repeat_interleave(sizes), len(weight)).to(weight.dtype)  # X^T error
        free.grad = unit * (scale * slope + l2 * penalised)
        total = loss + l2 / 2 * penalised.square().sum()
        return total

    history = []
    for step in range(1, steps + 1):
        optimizer.step(objective)
        objective()  # the line search may have looked elsewhere last
        entry = {"step": step, "train_loss": loss.item(), "objective": total.item()}
        history.append(entry | (log(step) if log else {}))
        if max(free.grad.abs().max(), bias.grad.abs()) <= tolerance:
            break
    return history


def log_count_ratio(rows, labels, vocab_size):
    r"""How much more often each word occurs in texts of class 1 than in texts of class 0, in nats.

    $$ r_v = \ln \frac{p_v / \lVert p \rVert_1}{q_v / \lVert q \rVert_1} $$

    p and q count the texts of class 1 and of class 0 that hold word v, plus one. As `scale` of
    `fit_bag_of_words` it lets telling words move far and holds chance words back: rare pairs of
    words overfit less.

    Args:
        rows: N lists or arrays of token ids.
        labels: N labels, 0 or 1.
        vocab_size: V.

    Returns:
        (V,) float32; 0 for a word that tells nothing.

    Raises:
        ValueError: if there are no rows, not as many labels, a label is not 0 or 1, or an id is below 0 or
            not below V.

    Example:
        >>> log_count_ratio([[0, 1], [1, 2], [1]], [1, 0, 0], vocab_size=4)
        tensor([ 0.8473, -0.2513, -0.5390,  0.1542])

    Source: Wang and Manning 2012, "Baselines and Bigrams: Simple, Good Sentiment and Topic
    Classification", sections 2.1 and 2.3, with binary counts. Differs: they scale the features of an
    SVM; penalising weight / scale is the same, here for logistic regression. Notebook: 02.
    """
    _check_labels(rows, labels)
    counts = torch.ones(2, vocab_size, dtype=torch.float64)
    for row, label in zip(rows, labels, strict=True):
        ids = torch.from_numpy(np.unique(row).astype(np.int64))
        _check_ids(ids, vocab_size)
        counts[int(label), ids] += 1
    share = counts / counts.sum(1, keepdim=True)
    return (share[1] / share[0]).log().float()


class AveragedEmbeddings(nn.Module):
    r"""A classifier of the mean of the tokens' vectors: the simplest network for text.

    $$ logits_b = W \Big( \frac{1}{M_b} \sum_t mask_{b,t} \, E[ids_{b,t}] \Big) + c $$

    M_b is the number of real tokens in row b: dividing by T instead would make the answer depend on
    the padding. Words of similar use can share what is learned, which a bag of words cannot;
    the order is lost as before.

    Args:
        vocab_size: V.
        width: D of the embeddings.
        classes: number of classes.
        dropout: share of the mean's entries set to zero in training, from 0 to below 1.

    Raises:
        ValueError: if a size is below 1 or dropout is outside [0, 1).

    Example:
        >>> model = AveragedEmbeddings(vocab_size=11, width=5, classes=2)
        >>> ids, mask = torch.tensor([[4, 9, 1], [8, 1, 1]]), torch.tensor([[True, True, False], [True, False, False]])
        >>> model(ids, mask).shape
        torch.Size([2, 2])

    Source: Iyyer et al. 2015, "Deep Unordered Composition Rivals Syntactic Methods for Text
    Classification", section 2 (their model without hidden layers). Notebook: 02.
    """

    def __init__(self, vocab_size, width, classes=2, dropout=0.0):
        super().__init__()
        for name, value in (("vocab_size", vocab_size), ("width", width), ("classes", classes)):
            _check_size(name, value)
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout must be from 0 to below 1, got {dropout}")
        self.dropout = dropout
        self.embedding = nn.Embedding(vocab_size, width)
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        self.output = nn.Linear(width, classes)

    def forward(self, ids, mask):
        """The logits of the classes; a row without real tokens has the mean zero.

        Args:
            ids: (B, T) int64 token ids.
            mask: (B, T) bool, True = may attend (a real token).

        Returns:
            (B, classes) logits.

        Raises:
            ValueError: as in `bag_of_words`.
        """
        _check(ids, mask, self.embedding.num_embeddings)
        total = _weighted_sum(self.embedding.weight, ids, mask)  # (B, D)
        mean = total / mask.sum(1, keepdim=True).clamp(min=1)
        if self.training and self.dropout > 0:  # torch.rand draws the same mask on every make of CPU
            mean = mean * (torch.rand(mean.shape, device=mean.device) >= self.dropout) / (1 - self.dropout)
        return self.output(mean)


def _weighted_sum(weight, ids, counted):
    """The sum of the rows of `weight` (V, D) that `ids` (B, T) names where `counted` (B, T) is True: (B, D)."""
    return F.embedding_bag(ids, weight, mode="sum", per_sample_weights=counted.to(weight.dtype))


def _check_labels(rows, labels):
    """A label 0 or 1 for each row; as a tensor."""
    if len(rows) == 0 or len(rows) != len(labels):
        raise ValueError(f"wanted a label for each of at least one row, got {len(rows)} rows and {len(labels)} labels")
    labels = torch.as_tensor(labels)
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {labels.unique().tolist()[:5]}")
    return labels


def _check(ids, mask, vocab_size=None):
    """Ids and mask fit together, and the ids fit the vocabulary."""
    if ids.ndim != 2 or ids.shape != mask.shape:
        raise ValueError(f"ids and mask must both be (B, T), got {tuple(ids.shape)} and {tuple(mask.shape)}")
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True = may attend, got {mask.dtype}")
    if vocab_size is not None:
        _check_ids(ids, vocab_size)


def _check_ids(ids, vocab_size):
    """Every id has a place in the vocabulary."""
    if ids.numel() > 0 and (ids.min() < 0 or ids.max() >= vocab_size):
        raise ValueError(f"ids must be from 0 to {vocab_size - 1}, got {ids.min().item()} to {ids.max().item()}")


def _check_size(name, value):
    """A size is at least 1."""
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")
