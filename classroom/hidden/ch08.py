"""Hidden tests of chapter 08: layers made for the occasion, tables and rotations by complex numbers and by matrices."""

import cmath
import itertools
import math

import torch

from classroom.hidden import Hidden
from course_lib.exercises import Wrong, close, expect_tensor


def to_four_digits(got, wanted):
    """Compare tensors that may come from sines of single precision."""
    expect_tensor(got, tuple(wanted.shape))
    if not close(got, wanted, 1e-4):
        worst = (got.double() - wanted).abs().nan_to_num(torch.inf).max().item()
        raise Wrong(f"the result differs from the right one, by {worst:.3g} at most")


# --- 8.1 ------------------------------------------------------------------------


ALIKE = {0, 4, 7, 8, 12, 14, 17}  # of the layers in the probe, those that treat all places alike


def draw_is_equivariant(draw):
    """An order that is no rotation, not symmetric and not its own inverse, and moves both ends and one more place.

    The layers come in another order each time: who counts calls learns nothing.
    """
    B, T, D = draw.sizes(3, low=4, high=8)
    place = draw.randrange(1, T - 1)
    while True:
        order = draw.sample(range(T), T)
        steps = {(after - before) % T for before, after in itertools.pairwise(order)}
        moves = all(order[p] != p and order[order[p]] != p for p in (0, place, T - 1))
        symmetric = [T - 1 - p for p in reversed(order)] == order  # a reversed input would not notice
        if moves and len(steps) > 2 and order[0] != T - 1 and not symmetric:
            layers = draw.sample(range(25), 25)
            return draw.normal(B, T, D), torch.tensor(order), draw.normal(D, D) / D**0.5, place, layers


def probe_is_equivariant(answer, x, order, W, place, layers):
    """What the answer says of layers that treat all places alike, and of layers that do not.

    A student's code can look into these functions, but then has to judge what it sees, and that is the exercise.
    """
    import torch

    T = x.shape[1]
    places = torch.arange(T, dtype=x.dtype)[:, None]
    one = (torch.arange(T) == place)[:, None]

    def attends(x, causal=False):
        scores = x @ W @ x.mT
        if causal:
            scores = scores.masked_fill(~torch.ones(T, T, dtype=torch.bool).tril(), -torch.inf)
        return scores.softmax(-1) @ x

    kinds = [
        lambda x: attends(x),
        lambda x: attends(x, causal=True),
        lambda x: attends(x) + 1e-3 * places,
        lambda x: x.cumsum(1),
        lambda x: attends(x) + 1e-11 * places,  # as rounding would
        lambda x: x.roll(1, 1),
        lambda x: x.roll(-1, 1) + x.roll(1, 1),
        lambda x: x + 0.0,
        lambda x: (x @ W).tanh(),
        lambda x: x.flip(1),
        lambda x: x.sort(1).values,
        lambda x: x.masked_fill(one, 0.0),
        lambda x: x - x.mean(1, keepdim=True),
        lambda x: x.masked_fill(places == T - 1, 0.0),
        lambda x: x.amax(1, keepdim=True).expand_as(x),
        lambda x: x.masked_fill(places == 0, 0.0),
        lambda x: x[:, place : place + 1].expand_as(x),
        lambda x: x.softmax(1),
        lambda x: x + 0.1 * one,
        lambda x: x + 1e-4 * places,
        lambda x: x + places * (torch.arange(len(x)) > 0)[:, None, None],
        lambda x: x + x[:, 0, 0].mean(),
        lambda x: x - x[:, 0, 0].mean(),
        lambda x: x + places * (torch.arange(len(x)) < len(x) - 1)[:, None, None],
        lambda x: 0.0 * x + 2e-5 * one * (torch.arange(x.numel()).view_as(x) == place * x.shape[2]),  # a single entry
    ]
    return [answer(kinds[number], x, order) for number in layers]


def right_is_equivariant(x, order, W, place, layers):
    return [number in ALIKE for number in layers]


# --- 8.2 ------------------------------------------------------------------------


def draw_position_table(draw):
    return draw.choice((1, *range(2, 26))), 2 * draw.randint(1, 9)


def right_position_table(length, width):
    """A pair is the point e^(i angle) on the circle, reached from position to position by one more turn."""
    table = torch.zeros(length, width, dtype=torch.float64)
    for j in range(0, width, 2):
        turn, point = cmath.exp(1j * math.exp(-math.log(10000) * j / width)), 1 + 0j
        for i in range(length):
            table[i, j], table[i, j + 1] = point.imag, point.real
            point *= turn
    return table


# --- 8.3 ------------------------------------------------------------------------


def draw_shift_matrix(draw):
    return draw.choice((1, *range(2, 30), *range(-9, 0))), 2 * draw.randint(1, 4)


def right_shift_matrix(k, width):
    """The matrix exponential of k times the generator of the turns."""
    generator = torch.zeros(width, width, dtype=torch.float64)
    for j in range(0, width, 2):
        speed = 10000 ** (-j / width)
        generator[j + 1, j], generator[j, j + 1] = speed, -speed
    return torch.linalg.matrix_exp(k * generator)


# --- 8.4 ------------------------------------------------------------------------


def draw_rotate(draw):
    B, H, T, pairs = draw.sizes(4, low=1)
    return draw.normal(B, H, T, 2 * pairs), draw.choice((0, *range(1, 20)))


def right_rotate(x, offset):
    """Complex numbers: a pair (a, b) is a + bi, and turning multiplies."""
    T, K = x.shape[-2:]
    speeds = torch.tensor([10000 ** (-2 * j / K) for j in range(K // 2)], dtype=torch.float64)
    angles = torch.outer(torch.arange(offset, offset + T, dtype=torch.float64), speeds)
    turned = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous()) * torch.polar(angles * 0 + 1, angles)
    return torch.view_as_real(turned).flatten(-2)


# --- 8.5 ------------------------------------------------------------------------


def draw_alibi_bias(draw):
    T, more = draw.randint(1, 6), draw.choice((0, 1, 2, 5))
    return draw.choice((1, 2, 4, 8, 16)), T, T + more


def right_alibi_bias(num_heads, T, S):
    """Head by head: each slope is the one before times the first; the queries are the last rows of a square."""
    square = torch.tensor([[float(abs(i - j)) for j in range(S)] for i in range(S)], dtype=torch.float64)
    first, slope, heads = 0.5 ** (8 / num_heads), 1.0, []
    for _ in range(num_heads):
        slope *= first
        heads.append(-slope * square[S - T :])
    return torch.stack(heads)


# --- 8.7 ------------------------------------------------------------------------


def draw_scores_with_cache(draw):
    B, H, pairs = draw.sizes(3)
    parts = [*draw.sample(range(1, 5), 3), 1]
    return draw.normal(B, H, sum(parts), 2 * pairs), draw.normal(B, H, sum(parts), 2 * pairs), parts


def probe_scores_with_cache(answer, q, k, parts):
    """Feed a sequence in parts, each time with the cache that came back: all scores, and the caches' shapes."""
    import torch

    def rotate(x, offset):
        T, K = x.shape[-2:]
        angles = torch.arange(offset, offset + T).double()[:, None] * 10000.0 ** (-torch.arange(0, K, 2).double() / K)
        a, b = x[..., 0::2], x[..., 1::2]
        return torch.stack((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1).flatten(-2)

    cache, found = k[:, :, :0], []
    for new_q, new_k in zip(q.split(parts, 2), k.split(parts, 2), strict=True):
        scores, cache = answer(new_q, new_k, cache, rotate)
        found.append((scores, list(cache.shape)))
    return found


def right_scores_with_cache(q, k, parts):
    """The whole sequence at once, every key turned by its distance to the query: in RoPE only that counts."""
    (B, H, T, K), after, found = q.shape, 0, []
    scores = torch.zeros(B, H, T, T, dtype=torch.float64)
    for t, s in itertools.product(range(T), range(T)):
        for j in range(0, K, 2):
            turn = cmath.exp(1j * (s - t) * 10000 ** (-j / K))
            a, b = k[:, :, s, j], k[:, :, s, j + 1]
            turned = a * turn.real - b * turn.imag, a * turn.imag + b * turn.real
            scores[:, :, t, s] += (q[:, :, t, j] * turned[0] + q[:, :, t, j + 1] * turned[1]) / K**0.5
    for new in parts:
        before, after = after, after + new
        found.append((scores[:, :, before:after, :after], [B, H, after, K]))
    return found


TESTS = [
    Hidden(
        "ex08-1-equivariant-check", "is_equivariant", draw_is_equivariant, right_is_equivariant, probe_is_equivariant,
    ),
    Hidden(
        "ex08-2-position-table-check", "position_table", draw_position_table, right_position_table,
        judge=to_four_digits, without=("sinusoidal_table", "Sinusoidal", "rope_angles"),
    ),
    Hidden(
        "ex08-3-shift-matrix-check", "shift_matrix", draw_shift_matrix, right_shift_matrix, judge=to_four_digits,
    ),
    Hidden("ex08-4-rotate-check", "rotate", draw_rotate, right_rotate, judge=to_four_digits, without=("RoPE",)),
    Hidden(
        "ex08-5-alibi-bias-check", "alibi_bias", draw_alibi_bias, right_alibi_bias, without=("ALiBi", "alibi_slopes"),
    ),
    Hidden(
        "ex08-7-scores-with-cache-check", "scores_with_cache", draw_scores_with_cache, right_scores_with_cache,
        probe_scores_with_cache,
    ),
]  # fmt: skip
