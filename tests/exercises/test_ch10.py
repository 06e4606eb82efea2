"""The checks of chapter 10: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import functools
from fractions import Fraction

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from course_lib.cost import formulas, measure
from course_lib.exercises import ch10
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("attention_operations", "cross_operations", "positions_seen")
VALUES = {"crossovers": "lengths_of_equality", "parameters_by_hand": "by_hand"}  # check: the student's name for it


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def operations(projections=4.0, quadratic=2.0, heads=lambda H: 1, scale=1):
    def count(B, T, D, H, K):
        W = H * K
        return round(scale * (projections * 2 * B * T * D * W + quadratic * heads(H) * 2 * B * T * T * W))

    return count


def cross(keys=True, heads=True, factor=True):
    def count(B, T, S, D, H, F):
        read = S if keys else T
        width = D // H if heads else D
        return 4 * B * (T + read) * D * D + 4 * B * H * T * S * width + (4 if factor else 2) * B * T * D * F

    return count


def products(B, T, D, H, K):
    x, weight, heads = torch.ones(B, T, D), torch.ones(D, H * K), torch.ones(B, H, T, K)
    for _ in range(3):
        x @ weight
    return (heads @ heads.mT @ heads).transpose(1, 2).flatten(2) @ weight.T


def by_torchs_counter(B, T, D, H, K):
    with FlopCounterMode(display=False) as counter:
        products(B, T, D, H, K)
    return counter.get_total_flops()


def by_our_counter(B, T, D, H, K):
    return measure.count_operations(lambda x: x * products(B, T, D, H, K), torch.ones(1))


def by_formula(B, T, D, H, K):
    """All heads have W numbers: of the library's layer of width W the quadratic part is right."""
    W = H * K
    return formulas.multi_head_cost(B, T, W, H).operations + 8 * B * T * (D - W) * W


def by_the_ready_formula(B, T, D, H, K):
    return formulas.multi_head_cost(B, T, D, H).operations  # raises: D is no multiple of H


@functools.lru_cache
def remembered(B, T, D, H, K):
    return by_formula(B, T, D, H, K)


def cross_by_formula(B, T, S, D, H, F):
    attention = 4 * B * (T + S) * D * D + 4 * B * T * S * D
    return attention + formulas.feed_forward_cost(B, T, D, F).operations


def seen(reduce, select=lambda out: out[:, -1], number=None):
    def positions(model, x):
        x = x.detach().requires_grad_()
        chosen = select(model(x))
        direction = torch.randn(chosen.shape, generator=torch.Generator().manual_seed(0), dtype=chosen.dtype)
        loss = (chosen * direction).sum() if number is None else number(chosen)
        return reduce(torch.autograd.grad(loss, x)[0])

    return positions


def right(gradient):
    return (gradient != 0).any(-1).any(0)


ALWAYS = "let that require one"  # of a marked x, whatever else is said


def by_backward(model, x):
    last = model(x)[:, -1]
    (last * torch.randn(last.shape, dtype=last.dtype)).sum().backward()
    return right(x.grad)


def with_a_mark_on_x(model, x):
    x.requires_grad_()
    last = model(x)[:, -1]
    return right(torch.autograd.grad((last * torch.randn(last.shape, dtype=last.dtype)).sum(), x)[0])


def with_a_gradient_on_x(model, x):
    found = by_backward(model, x.requires_grad_())
    x.requires_grad_(False)
    return found


def by_a_small_step(model, x):
    moved = []
    for t in range(x.shape[1]):
        step = torch.zeros_like(x)
        step[:, t] = 1e-3
        moved.append((model(x + step)[:, -1] != model(x)[:, -1]).any())
    return torch.stack(moved)


PLANTED = {
    "attention_operations": [
        ("you counted them as 1", operations(scale=0.5)),
        ("only the projections are there", operations(quadratic=0)),
        ("the four projections are missing", operations(projections=0)),
        ("one projection is missing", operations(projections=3)),
        ("or its factor 2, is missing", operations(quadratic=1)),
        ("you have half of that", operations(projections=2)),
        ("they serve all heads", lambda B, T, D, H, K: operations(projections=4 / H)(B, T, D, H, K)),
        (
            "you count their projections for one head",
            lambda B, T, D, H, K: operations(projections=3 / H + 1)(B, T, D, H, K),
        ),
        (
            "projections, scores and weighted mean for one head",
            lambda B, T, D, H, K: operations(projections=3 / H + 1, quadratic=2 / H)(B, T, D, H, K),
        ),
        ("you count everything H times", lambda B, T, D, H, K: H * operations()(B, T, D, H, K)),
        (
            "adding a bias is no matrix product",
            lambda B, T, D, H, K: operations()(B, T, D, H, K) + B * T * (3 * H * K + D),
        ),
        (
            "adding a bias is no matrix product",
            lambda B, T, D, H, K: operations()(B, T, D, H, K) + 2 * B * T * (3 * H * K + D),
        ),
        ("that is the number of parameters", lambda B, T, D, H, K: 4 * D * H * K + 3 * H * K + D),
        ("that is the number of weights", lambda B, T, D, H, K: 4 * D * H * K),
        ("work on B T vectors", lambda B, T, D, H, K: operations(projections=4 / B)(B, T, D, H, K)),
        ("scores of its own", lambda B, T, D, H, K: operations(quadratic=2 / B)(B, T, D, H, K)),
        ("you count the quadratic part H times", operations(heads=lambda H: H)),
        ("you count the quadratic part of one", operations(heads=lambda H: 1 / H)),
        ("you count the projections H times", lambda B, T, D, H, K: operations(projections=4 * H)(B, T, D, H, K)),
        (
            "count their projections H times",
            lambda B, T, D, H, K: operations(projections=3 * H + 1)(B, T, D, H, K),
        ),
        (
            "their projections and the quadratic part H times",
            lambda B, T, D, H, K: operations(projections=3 * H + 1, quadratic=2 * H)(B, T, D, H, K),
        ),
        ("you count 1 B H T^2 more", lambda B, T, D, H, K: operations()(B, T, D, H, K) + B * H * T * T),
        ("you count 3 B H T^2 more", lambda B, T, D, H, K: operations()(B, T, D, H, K) + 3 * B * H * T * T),
        ("you count 5 B H T^2 more", lambda B, T, D, H, K: operations()(B, T, D, H, K) + 5 * B * H * T * T),
        ("the batch is missing", lambda B, T, D, H, K: operations()(1, T, D, H, K)),
        ("that is section 1's layer", lambda B, T, D, H, K: 8 * B * T * D * D + 4 * B * T * T * D),
        ("all four projections are D by H K", lambda B, T, D, H, K: 8 * B * T * D * D + 4 * B * T * T * H * K),
        (
            "leads from H K numbers to D",
            lambda B, T, D, H, K: 6 * B * T * D * H * K + 2 * B * T * D * D + 4 * B * T * T * H * K,
        ),
        (
            "have H K numbers a word",
            lambda B, T, D, H, K: 2 * B * T * D * H * K + 6 * B * T * D * D + 4 * B * T * T * H * K,
        ),
        ("of width K, not D / H", lambda B, T, D, H, K: 8 * B * T * D * H * K + 4 * B * T * T * D),
        ("each head has K numbers, not D", lambda B, T, D, H, K: 8 * B * T * D * H * K + 4 * B * T * T * D * H),
        ("you count everything for one of them", lambda B, T, D, H, K: operations()(B, T, D, 1, K)),
        ("sequences of a batch do not meet", lambda B, T, D, H, K: operations(quadratic=2 * B)(B, T, D, H, K)),
        ("is a float; wanted an int", lambda B, T, D, H, K: 1.0 * operations()(B, T, D, H, K)),
        ("nothing was added up", lambda B, T, D, H, K: 0),
        ("is not the count of this layer's six products", lambda B, T, D, H, K: B),
        ("the count is a str", lambda B, T, D, H, K: "many"),
        ("the library's `multi_head_cost`", by_formula),
        ("the library's `multi_head_cost`", remembered),
        ("the library's `count_operations`", by_our_counter),
        ("torch's `FlopCounterMode`", by_torchs_counter),
        ("before anything is counted: your code calls the library's `multi_head_cost`", by_the_ready_formula),
        ("it is a Tensor; wanted an int", lambda B, T, D, H, K: torch.tensor(operations()(B, T, D, H, K))),
        ("it is a Fraction; wanted an int", lambda B, T, D, H, K: Fraction(operations()(B, T, D, H, K))),
    ],
    "cross_operations": [
        ("1 of the 3 bugs left; look here: keys and values", cross(keys=False)),
        ("1 of the 3 bugs left; look here: a head has width D / H", cross(heads=False)),
        ("1 of the 3 bugs left; look here: in the feed-forward network", cross(factor=False)),
        ("2 of the 3 bugs left; look here: a head has", cross(heads=False, factor=False)),
        ("2 of the 3 bugs left; look here: keys and values", cross(keys=False, factor=False)),
        ("3 of the 3 bugs left; look here: keys and values", cross(False, False, False)),
        ("one of keys and values is still", lambda *n: cross()(*n) + 2 * n[0] * (n[1] - n[2]) * n[3] ** 2),
        ("three projections read the S vectors", lambda *n: cross()(*n) + 2 * n[0] * (n[2] - n[1]) * n[3] ** 2),
        ("all projections read the S vectors", lambda *n: cross()(*n) + 4 * n[0] * (n[2] - n[1]) * n[3] ** 2),
        ("you have half of their operations", lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) - 2 * B * T * S * D),
        ("not four", lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 4 * B * T * D * F),
        (
            "scores and weighted mean of one",
            lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 4 * B * T * S * (D // H - D),
        ),
        ("not on the S keys", lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 4 * B * (S - T) * D * F),
        ("you count S by S", lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 4 * B * S * (S - T) * D),
        (
            "one of scores and weighted mean still has width D",
            lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 2 * B * T * S * D * (H - 1),
        ),
        ("you count T by T", lambda B, T, S, D, H, F: cross()(B, T, S, D, H, F) + 4 * B * T * (T - S) * D),
        ("the batch is missing", lambda B, *n: cross()(1, *n)),
        (
            "2 things are still wrong; look here: three projections read the S vectors",
            lambda *n: cross(factor=False)(*n) + 2 * n[0] * (n[2] - n[1]) * n[3] ** 2,
        ),
        (
            "3 things are still wrong; look here: all projections read the S vectors",
            lambda *n: cross(True, False, False)(*n) + 4 * n[0] * (n[2] - n[1]) * n[3] ** 2,
        ),
        (
            "2 things are still wrong; look here: one of scores and weighted mean still has width D",
            lambda B, T, S, D, H, F: cross(factor=False)(B, T, S, D, H, F) + 2 * B * T * S * D * (H - 1),
        ),
        (
            "2 things are still wrong; look here: the feed-forward network works on the T outputs, not on the S keys",
            lambda B, T, S, D, H, F: cross(keys=False)(B, T, S, D, H, F) + 4 * B * (S - T) * D * F,
        ),
        ("torch counts", lambda B, T, S, D, H, F: 0),
        ("torch counts", lambda B, T, S, D, H, F: B),
        ("the library's `feed_forward_cost`", cross_by_formula),
        (
            "the library's `multi_head_cost`",
            lambda B, T, S, D, H, F: formulas.multi_head_cost(B, T, D, H, S).operations + 4 * B * T * D * F,
        ),
    ],
    "positions_seen": [
        ("what the first output depends on", seen(right, select=lambda out: out[:, 0])),
        ("you differentiate all outputs at once", seen(right, select=lambda out: out)),
        ("the order is turned round", seen(lambda g: right(g).flip(0))),
        ("add up to 0, like a LayerNorm's", seen(right, number=torch.sum)),
        ("a gradient of 1e-30 is a gradient", seen(lambda g: (g.abs() > 1e-6).any(-1).any(0))),
        ("a gradient of 1e-30 is a gradient", seen(lambda g: (g.abs() > 1e-12).any(-1).any(0))),
        ("a negative gradient is a dependence too", seen(lambda g: (g > 0).any(-1).any(0))),
        ("a negative gradient is a dependence too", seen(lambda g: (g > 1e-6).any(-1).any(0))),
        ("in any row of the batch counts", seen(lambda g: (g != 0).any(-1)[0])),
        ("in any row of the batch counts: you looked at one row, or asked", seen(lambda g: (g != 0).any(-1).all(0))),
        ("you looked at one entry, or asked", seen(right, number=lambda out: out[:, 0].sum())),
        ("you looked at one entry, or asked", seen(lambda g: (g != 0).all(-1).any(0))),
        ("its length is always 1", seen(right, number=lambda out: (out**2).sum())),
        ("its length is always 1", seen(right, number=torch.norm)),
        ("its length is always 1", seen(right, number=lambda out: out.norm(dim=-1).sum())),
        ("its length is always 1", seen(right, number=lambda out: out.abs().sum())),
        ("slopes of opposite signs cancel", seen(lambda g: g.sum((0, 2)) != 0)),
        ("slopes of opposite signs cancel", seen(lambda g: g.sum(-1).abs().sum(0) > 0)),
        (
            "slopes of opposite signs cancel",
            seen(lambda g: (g.sum(0) != 0).any(-1), number=lambda out: (out @ torch.randn(4, dtype=out.dtype)).sum()),
        ),
        ("mean of the gradients over the batch is 0", seen(lambda g: (g.mean(0) != 0).any(-1))),
        ("wanted bool", seen(lambda g: g.abs().sum((0, 2)))),
        ("has shape (3, 7)", seen(lambda g: (g != 0).any(-1))),
        ("add up to 0, like a LayerNorm's", lambda model, x: torch.zeros(x.shape[1], dtype=torch.bool)),
        ("has shape (3, 7, 2)", lambda model, x: x),
        ("fills the .grad of the model's parameters", lambda model, x: by_backward(model, x.requires_grad_())),
        (ALWAYS, with_a_mark_on_x),
        ("your caller's x now has a .grad", with_a_gradient_on_x),
        ("a small step (a finite difference) moves the output", by_a_small_step),
    ],
    "crossovers": [
        ("leaves attention's projections out", (1536, 1024, 2048)),
        ("(a) that comes from four gates", (1024, 1024, 2048)),
        ("(a) a projection is missing", (768, 1024, 2048)),
        ("(a) the factor 2 is on one side only", (2048, 1024, 2048)),
        ("is two of the four", (512, 512, 2048)),
        ("(b) the quadratic part has two products", (512, 2048, 2048)),
        ("(b) the output projection is missing", (512, 768, 2048)),
        ("(c) that is for F = 4 D", (512, 1024, 3072)),
        ("(c) the rest has two parts", (512, 1024, 1024)),
        ("(c) the feed-forward network has two matrices", (512, 1024, 1536)),
        ("(c) a projection is missing", (512, 1024, 1792)),
        ("(c) the quadratic part has two products", (512, 1024, 4096)),
        ("(b) that is T / D", (512, 2, 2048)),
        ("(a) at T = 300 attention has fewer FLOPs than the GRU", (300, 1024, 2048)),
        ("(a) so it would be with 8 T^2 D", (256, 1024, 2048)),
        ("(a) from T = 513 on attention has more FLOPs than the GRU", (513, 1024, 2048)),
        ("(b) at T = 1025.5 the quadratic part has more FLOPs", (512, 1025.5, 2048)),
        ("(c) from T = 2049 on the quadratic part has more FLOPs", (512, 1024, 2049)),
        ("(a) at T = 0", (0, 0, 0)),
        ("expected 3 numbers", (512, 1024)),
    ],
    "parameters_by_hand": [
        ("the biases are missing", (3_147_776, 0, 0, 0)),
        ("biases of queries, keys and values", (3_150_848, 0, 0, 0)),
        ("biases of the feed-forward network", (3_149_824, 0, 0, 0)),
        ("these are the large matrices", (3_145_728, 0, 0, 0)),
        ("the biases of one of the two attentions", (3_152_384, 4_201_984, 0, 0)),
        ("there are two norms", (3_151_360, 0, 0, 0)),
        ("the norms' (each a gain and a shift), or the projections' biases", (3_150_336, 0, 0, 0)),
        ("eight of them need", (3_152_384 + 7 * 1_050_624, 0, 0, 0)),
        ("an attention has four projections", (3_152_384 - 512 * 513, 0, 0, 0)),
        ("the feed-forward network has two matrices", (3_152_384 - 2048 * 512 - 512, 0, 0, 0)),
        ("that is an encoder layer", (3_152_384, 3_152_384, 0, 0)),
        ("a third sublayer needs a third norm", (3_152_384, 4_203_008, 0, 0)),
        ("the cross-attention's own projections are missing", (3_152_384, 3_153_408, 0, 0)),
        ("there are six", (3_152_384, 4_204_032, 7_356_416, 0)),
        ("larger than the encoder's", (3_152_384, 4_204_032, 12 * 3_152_384, 0)),
        ("none at the end of a stack", (3_152_384, 4_204_032, 44_138_496 + 1024, 0)),
        ("none is added here", (3_152_384, 4_204_032, 44_138_496, 63_082_496 + 1024)),
        ("not in the paper's model", (3_152_384, 4_204_032, 44_140_544, 0)),
        ("the table of embeddings is missing", (3_152_384, 4_204_032, 44_138_496, 44_138_496)),
        ("share one table", (3_152_384, 4_204_032, 44_138_496, 44_138_496 + 3 * 18_944_000)),
        ("has no bias", (3_152_384, 4_204_032, 44_138_496, 63_082_496 + 37_000)),
        ("all digits are wanted", (3_150_000, 0, 0, 0)),
        ("all digits are wanted", (0, 0, 0, 0)),
        ("encoder layer: 3.15238 is in millions", (3.152384, 4.204032, 44.138496, 63.082496)),
        ("whole model: 63 is in millions", (3_152_384, 4_204_032, 44_138_496, 63)),
        ("expected 4 numbers", 63e6),
    ],
}
MISTAKES = [(name, part, wrong) for name, found in PLANTED.items() for part, wrong in found]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_passes(name):
    assert verdict(getattr(ch10, name), solution("10", name)) == f"passed: {name}"


@pytest.mark.parametrize(("name", "value"), VALUES.items())
def test_the_reference_value_passes(name, value):
    assert verdict(getattr(ch10, name), solution("10", value)) == f"passed: {name}"


@pytest.mark.parametrize(("name", "part", "wrong"), MISTAKES, ids=[f"{n}-{p[:25]}" for n, p, _ in MISTAKES])
def test_a_usual_mistake_gets_its_own_message(name, part, wrong):
    found = verdict(getattr(ch10, name), wrong)
    assert found.startswith("not yet: ")
    assert part in found
    others = [other for other, _ in PLANTED[name] if other not in part and part not in other and other != ALWAYS]
    assert not [other for other in others if other in found]


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_nothing_is_not_an_attempt(name):
    assert verdict(getattr(ch10, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_three_hints(name, capsys):
    for number in (1, 2, 3):
        getattr(ch10, name).hint(number)
    assert len(set(capsys.readouterr().out.splitlines())) == 3


def test_a_finer_way_passes_too():
    """Fails if asking for each sequence alone, or for each entry of the output, is rejected."""

    def one_by_one(model, x):
        return torch.stack([seen(right)(model, x[b : b + 1]) for b in range(len(x))]).any(0)

    assert verdict(ch10.positions_seen, one_by_one) == "passed: positions_seen"

    def entry_by_entry(model, x):
        slopes = torch.func.jacrev(lambda x: model(x)[:, -1])(x)  # (B, E, B, T, D)
        return (slopes != 0).any(dim=(0, 1, 2, 4))

    assert verdict(ch10.positions_seen, entry_by_entry) == "passed: positions_seen"


@pytest.mark.parametrize("seed", range(20))
def test_asking_for_a_positive_gradient_never_passes(seed):
    """Fails if the verdict hangs on the student's random direction: (grad > 0) once passed in half of the runs."""
    torch.manual_seed(seed)
    wrong = seen(lambda g: (g > 0).any(-1).any(0), number=lambda last: (last * torch.randn_like(last)).sum())
    assert "a negative gradient is a dependence too" in verdict(ch10.positions_seen, wrong)
    right_one = seen(right, number=lambda last: (last * torch.randn_like(last)).sum())
    assert verdict(ch10.positions_seen, right_one) == "passed: positions_seen"


@pytest.mark.parametrize("seed", range(20))
def test_a_threshold_and_a_mean_over_the_batch_never_pass(seed):
    """Fails if the verdict hangs on the student's random direction: (grad.abs() > 1e-12) would pass for large ones."""
    torch.manual_seed(seed)

    def randomly(reduce):
        return seen(reduce, number=lambda last: (last * torch.randn_like(last) * 100).sum())

    found = verdict(ch10.positions_seen, randomly(lambda g: (g.abs() > 1e-12).any(-1).any(0)))
    assert "a gradient of 1e-30 is a gradient" in found
    found = verdict(ch10.positions_seen, randomly(lambda g: (g.mean(0) != 0).any(-1)))
    assert "the mean of the gradients over the batch is 0" in found
    assert verdict(ch10.positions_seen, randomly(right)) == "passed: positions_seen"


def test_one_direction_for_all_rows_passes_too():
    """Fails if an answer that gives every row the same random direction is rejected."""
    answer = seen(right, number=lambda last: (last @ torch.randn(last.shape[-1], dtype=last.dtype)).sum())
    assert verdict(ch10.positions_seen, answer) == "passed: positions_seen"


def test_asking_every_entry_for_a_positive_slope_never_passes():
    """Fails if the Jacobian's positive entries alone are enough."""

    def positive(model, x):
        slopes = torch.func.jacrev(lambda x: model(x)[:, -1])(x)  # (B, E, B, T, D)
        return (slopes > 0).any(dim=(0, 1, 2, 4))

    assert "a negative gradient is a dependence too" in verdict(ch10.positions_seen, positive)


def test_words_are_compared(capsys):
    """Fails when the model answer of 10.6 is shown before there are words, or never, or a hint is missing."""
    for number in (1, 2, 3):
        ch10.when_an_rnn.hint(number)
    ch10.when_an_rnn.compare(...)
    assert ch10.when_an_rnn.good_answer not in capsys.readouterr().out
    ch10.when_an_rnn.compare("An RNN, since what it carries on and the time for one more step do not grow. " * 2)
    assert ch10.when_an_rnn.good_answer in capsys.readouterr().out
