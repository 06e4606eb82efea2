"""N-grams against hand-worked values and a reference with dicts; the network against a loop over windows."""

import math
from collections import Counter
from itertools import pairwise

import pytest
import torch

from course_lib import ngram

EXACT = {"rtol": 1e-10, "atol": 1e-10}
V = 7


def text(length, seed=0, vocab_size=V):
    """Random tokens, small numbers more often, so that contexts repeat and some never occur."""
    u = torch.rand(length, generator=torch.Generator().manual_seed(seed))
    return (u * u * vocab_size).long()


class Reference:
    """The n-gram equations with dicts and loops, one probability at a time."""

    def __init__(self, ids, order, vocab_size, k, interpolate):
        self.order, self.V, self.k, self.interpolate = order, vocab_size, k, interpolate
        self.counts = Counter()
        for n in range(1, order + 1):
            for i in range(len(ids) - n + 1):
                self.counts[tuple(ids[i : i + n])] += 1

    def p(self, token, context):
        context = tuple(context[max(len(context) - self.order + 1, 0) :])
        following = [self.counts[(*context, x)] for x in range(self.V)]
        if self.interpolate:
            a = self.k * sum(count > 0 for count in following)
            q = self.p(token, context[1:]) if context else 1 / self.V
        else:
            a, q = self.k * self.V, 1 / self.V
        return (following[token] + a * q) / (sum(following) + a) if sum(following) + a else q


# --- entropies --------------------------------------------------------------------


def test_unigram_entropy_by_hand():
    """Fails in bits, or if tokens that do not occur add nan: 1/2, 1/4, 1/8, 1/8 have 1.75 bits."""
    ids = torch.tensor([0, 0, 0, 0, 2, 2, 5, 6])
    torch.testing.assert_close(ngram.unigram_entropy(ids).item(), 1.75 * math.log(2), **EXACT)
    assert ngram.unigram_entropy(torch.tensor([3, 3, 3])).item() == 0


def test_bigram_entropy_equals_the_sum_over_pairs():
    """Fails for the entropy of pairs (not conditional), or if the last token counts as a context."""
    ids = text(60).tolist()
    pairs, first = Counter(pairwise(ids)), Counter(ids[:-1])
    wanted = -sum(n / 59 * math.log(n / first[x]) for (x, _), n in pairs.items())
    torch.testing.assert_close(ngram.bigram_entropy(torch.tensor(ids)).item(), wanted, **EXACT)


def test_entropies_are_the_losses_of_unsmoothed_models_on_their_own_text():
    """Fails if entropy and n-gram model disagree on what a token costs."""
    ids = text(60)
    unigram = ngram.NgramModel(1, V, add=0.0).fit(ids).nll(ids).mean()
    bigram = ngram.NgramModel(2, V, add=0.0).fit(ids).nll(ids)[1:].mean()
    torch.testing.assert_close(ngram.unigram_entropy(ids), unigram, **EXACT)
    torch.testing.assert_close(ngram.bigram_entropy(ids), bigram, **EXACT)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ngram.unigram_entropy(torch.tensor([0.5])), "ids must be torch.int64, got torch.float32"),
        (
            lambda: ngram.unigram_entropy(torch.zeros(0, dtype=torch.int64)),
            "ids must have a length of at least 1, got 0",
        ),
        (lambda: ngram.unigram_entropy(torch.tensor([0, -1, 5])), "ids must be from 0 to 5, got -1 to 5"),
        (lambda: ngram.bigram_entropy(torch.tensor([0, -1, 5])), "ids must be from 0 to 5, got -1 to 5"),
        (lambda: ngram.bigram_entropy(torch.tensor([1])), "ids must have a length of at least 2, got 1"),
    ],
)
def test_entropies_say_what_is_wrong(call, message):
    """Fails if an entropy of nothing is returned."""
    with pytest.raises(ValueError, match=message):
        call()


# --- n-grams ----------------------------------------------------------------------


def test_bigram_probabilities_by_hand():
    """ "I am Sam, Sam I am": after I (0) always am (1), after am Sam (2), after Sam I or Sam.

    Fails if k is not added V times to the divisor, or if the last token counts as a context.
    """
    ids = torch.tensor([0, 1, 2, 2, 0, 1])
    plain = ngram.NgramModel(2, 3, add=0.0).fit(ids)
    assert plain.probs([0]).tolist() == [0, 1, 0]
    assert plain.probs([1]).tolist() == [0, 0, 1]
    assert plain.probs([2]).tolist() == [0.5, 0, 0.5]
    smooth = ngram.NgramModel(2, 3, add=0.5).fit(ids)
    torch.testing.assert_close(smooth.probs([0]), torch.tensor([0.5, 2.5, 0.5], dtype=torch.float64) / 3.5, **EXACT)


def test_interpolated_probabilities_by_hand():
    """Fails if the lower order is mixed by another amount than k for each different follower.

    Unigrams of 0 1 2 2 0 1, k = 1: a = 3 over 1/3 each: (2 + 1) / (6 + 3) = 1/3.
    After 2 came 0 and 2, once each: a = 2; p(0) = p(2) = (1 + 2/3) / 4 = 5/12, p(1) = (2/3) / 4 = 1/6.
    After 0 came 1 twice: a = 1; p(1) = (2 + 1/3) / 3 = 7/9, the others 1/9.
    """
    model = ngram.NgramModel(2, 3, add=1.0, interpolate=True).fit(torch.tensor([0, 1, 2, 2, 0, 1]))
    torch.testing.assert_close(model.probs([2]), torch.tensor([5, 2, 5], dtype=torch.float64) / 12, **EXACT)
    torch.testing.assert_close(model.probs([0]), torch.tensor([1, 7, 1], dtype=torch.float64) / 9, **EXACT)


@pytest.mark.parametrize("interpolate", [False, True])
@pytest.mark.parametrize(("order", "k"), [(1, 0.3), (2, 0.0), (3, 0.2), (5, 1.5)])
def test_probabilities_equal_the_reference(order, k, interpolate):
    """Fails if a context is cut at the wrong end, or an unseen one is mistaken for another's row."""
    ids, other = text(40), text(30, seed=1)
    model = ngram.NgramModel(order, V, add=k, interpolate=interpolate).fit(ids)
    reference = Reference(ids.tolist(), order, V, k, interpolate)
    tokens = other.tolist()
    wanted = torch.tensor([reference.p(x, tokens[:t]) for t, x in enumerate(tokens)], dtype=torch.float64)
    torch.testing.assert_close(model.nll(other), -wanted.log(), **EXACT)
    for t in range(9):  # from no context to more than the model sees
        row = torch.tensor([reference.p(x, tokens[:t]) for x in range(V)], dtype=torch.float64)
        torch.testing.assert_close(model.probs(tokens[:t]), row, **EXACT)


@pytest.mark.parametrize("interpolate", [False, True])
def test_probabilities_sum_to_one_after_any_context(interpolate):
    """Fails if mass is lost, for instance after contexts that never occurred: all 7^2 of them."""
    model = ngram.NgramModel(3, V, add=0.4, interpolate=interpolate).fit(text(25))
    sums = torch.stack([model.probs([x, y]).sum() for x in range(V) for y in range(V)])
    torch.testing.assert_close(sums, torch.ones(V * V, dtype=torch.float64), rtol=0, atol=1e-12)


def test_a_large_vocabulary_and_a_high_order_do_not_overflow():
    """Fails if n-grams are numbered up to V^n, or by a hash that lets two share a count: 50000^6 > 2^63."""
    size = 50_000
    ids = torch.randint(size, (3000,), generator=torch.Generator().manual_seed(0)).repeat(2)
    wanted = Counter(tuple(ids[i : i + 6].tolist()) for i in range(len(ids) - 5))
    model = ngram.NgramModel(6, size).fit(ids)
    assert model.counts(ids).tolist() == [wanted[tuple(ids[i : i + 6].tolist())] for i in range(len(ids) - 5)]
    assert model.num_ngrams[-1] == len(wanted)


def test_num_ngrams_counts_distinct_ngrams_of_each_order():
    """Fails if an order is skipped or repetitions count."""
    ids = text(40).tolist()
    wanted = [len({tuple(ids[i : i + n]) for i in range(40 - n + 1)}) for n in (1, 2, 3)]
    assert ngram.NgramModel(3, V).fit(torch.tensor(ids)).num_ngrams == wanted


def test_fitting_again_forgets_the_first_text():
    """Fails if counts add up over calls."""
    model = ngram.NgramModel(2, V, add=0.1).fit(text(30))
    again = model.fit(text(50, seed=3)).nll(text(20, seed=4))
    assert torch.equal(again, ngram.NgramModel(2, V, add=0.1).fit(text(50, seed=3)).nll(text(20, seed=4)))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ngram.NgramModel(0, 3), "order must be a whole number of at least 1, got 0"),
        (lambda: ngram.NgramModel(2, 0), "vocab_size must be a whole number of at least 1, got 0"),
        (lambda: ngram.NgramModel(2, 3, add=-0.1), "add must be a finite number from 0 on, got -0.1"),
        (lambda: ngram.NgramModel(2, 3).fit(torch.tensor([1])), "ids must have a length of at least 2, got 1"),
        (lambda: ngram.NgramModel(2, 3).fit(torch.tensor([0, 3])), "ids must be from 0 to 2, got 0 to 3"),
        (lambda: ngram.NgramModel(2, 3).probs([0]), r"no counts yet; call fit\(ids\) first"),
        (lambda: ngram.NgramModel(2, 3).nll(torch.tensor([0])), r"no counts yet; call fit\(ids\) first"),
        (lambda: ngram.NgramModel(2, 3).counts(torch.tensor([0, 1])), r"no counts yet; call fit\(ids\) first"),
        (lambda: ngram.NgramModel(1, 3).fit(torch.tensor([0])).nll(torch.tensor([-1])), "from 0 to 2, got -1 to -1"),
        (
            lambda: ngram.NgramModel(1, 3).fit(torch.tensor([0])).nll(torch.tensor([[1]])),
            r"ids must be a tensor \(T,\), got one of shape \(1, 1\)",
        ),
        (lambda: ngram.NgramModel(2, 3).fit(torch.tensor([0, 1])).probs([5]), "ids must be from 0 to 2, got 5 to 5"),
        (
            lambda: ngram.NgramModel(2, 3).fit(torch.tensor([0, 1])).counts(torch.tensor([0])),
            "ids must have a length of at least 2, got 1",
        ),
    ],
)
def test_ngrams_say_what_is_wrong(call, message):
    """Fails if bad input is counted, or the message names something else."""
    with pytest.raises(ValueError, match=message):
        call()


# --- the window network -----------------------------------------------------------


def window_model(window=3):
    torch.manual_seed(0)
    return ngram.WindowLM(vocab_size=11, window=window, d_model=4, hidden=5).double()


def by_windows(model, ids):
    """Logits of one window after the other: its embeddings, oldest first, times each unit's weights."""
    rows = []
    for sentence in ids:
        for t in range(len(sentence)):
            seen = sentence[max(t - model.window + 1, 0) : t + 1]
            vectors = model.embedding.weight[seen]  # (up to W, D)
            zeros = vectors.new_zeros(model.window - len(seen), vectors.shape[1])
            h = torch.einsum("wd,fdw->f", torch.cat([zeros, vectors]), model.conv.weight) + model.conv.bias
            rows.append(model.output.weight @ h.clamp(min=0) + model.output.bias)
    return torch.stack(rows).view(*ids.shape, -1)


@pytest.mark.parametrize("window", [1, 3, 8])
def test_window_network_equals_a_loop_over_windows(window):
    """Forward and gradients; fails if the kernel is turned round, padded at the right, or axes are swapped."""
    model = window_model(window)
    ids = torch.randint(11, (2, 7))  # a window of 8 is never full
    probe = torch.randn(2, 7, 11, dtype=torch.float64)
    got, wanted = model(ids), by_windows(model, ids)
    torch.testing.assert_close(got, wanted, **EXACT)
    parameters = list(model.parameters())
    fast = torch.autograd.grad((got * probe).sum(), parameters)
    slow = torch.autograd.grad((wanted * probe).sum(), parameters)
    for f, s in zip(fast, slow, strict=True):
        torch.testing.assert_close(f, s, **EXACT)


def test_window_network_sees_its_window_and_nothing_else():
    """Fails if it sees the future, or one token too few or too many of the past."""
    model, T = window_model(window=3), 9
    ids = torch.randint(10, (1, T))
    base = model(ids)
    for s in range(T):
        other = ids.clone()
        other[0, s] = 10
        changed = ((model(other) - base).abs() > 0).any(-1)[0]
        assert changed.nonzero().flatten().tolist() == [t for t in range(T) if 0 <= t - s < 3]


def test_dropout_zeroes_a_share_and_scales_the_rest():
    """Fails if dropout acts outside training, keeps the mean wrong, or is a fixed mask. Bound: 5 standard errors."""
    model = ngram.WindowLM(11, window=2, d_model=3, hidden=40, dropout=0.3)
    ids = torch.randint(11, (4, 50), generator=torch.Generator().manual_seed(0))
    torch.manual_seed(1)
    first, second = model.features(ids), model.features(ids)
    whole = model.eval().features(ids)
    alive = whole > 0
    kept = first[alive] > 0
    assert abs(kept.double().mean() - 0.7) <= 5 * (0.3 * 0.7 / kept.numel()) ** 0.5
    torch.testing.assert_close(first[alive][kept], whole[alive][kept] / 0.7)
    assert not torch.equal(first, second)
    torch.testing.assert_close(whole, model.features(ids), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ngram.WindowLM(5, 0, 3, 4), "window must be a whole number of at least 1, got 0"),
        (lambda: ngram.WindowLM(5, 2, 3, 4, dropout=1.0), "dropout must be from 0 to below 1, got 1.0"),
        (lambda: window_model()(torch.tensor([1, 2])), r"ids must be a tensor \(B, T\), got one of shape \(2,\)"),
        (lambda: window_model()(torch.tensor([[1, 11]])), "ids must be from 0 to 10, got 1 to 11"),
    ],
)
def test_window_network_says_what_is_wrong(call, message):
    """Fails if bad input is accepted, or the message names something else."""
    with pytest.raises(ValueError, match=message):
        call()
