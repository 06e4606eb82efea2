"""The checks of chapter 08: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import functools
import math

import pytest
import torch

from course_lib import positional
from course_lib.exercises import ch08
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("is_equivariant", "position_table", "shift_matrix", "rotate", "alibi_bias", "scores_with_cache")


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def speeds(width, exponent=2.0):
    """Of the clocks, (width / 2,)."""
    return 10000.0 ** (-exponent * torch.arange(width // 2) / width)


def interleave(*halves):
    return torch.stack(halves, -1).flatten(-2)


def table(first=0, exponent=2.0, join=interleave, waves=(torch.sin, torch.cos)):
    def of_sizes(length, width):
        angles = torch.arange(first, first + length)[:, None] * speeds(width, exponent)
        return join(*[wave(angles) for wave in waves])

    return of_sizes


def own_speeds(length, width):
    angles = torch.arange(length)[:, None] * 10000.0 ** (-torch.arange(width) / width)
    return torch.where(torch.arange(width) % 2 == 0, angles.sin(), angles.cos())


def blocks(times=None, equal=False, transpose=False):
    def matrix(k, width):
        angles = (k if times is None else times) * speeds(width)
        found = []
        for b in [angles[0]] * (width // 2) if equal else angles:
            block = torch.stack([b.cos(), -b.sin(), b.sin(), b.cos()]).view(2, 2)
            found.append(block.T if transpose else block)
        return torch.block_diag(*found)

    return matrix


def unsigned(k, width):
    """Both sines of each block with one sign."""
    right = blocks()(k, width)
    return right.tril() + right.tril(-1).T


def from_one_row(k, width):
    """A matrix that takes row 0 to row k, and no other row to the right place."""
    rows = positional.sinusoidal_table(k + 1, width)
    return rows[:1].T @ rows[k:] / rows[0].square().sum()


def turn(x, offset, sign=1, first=0, base=10000.0, join=interleave, axis=-2, sequential=False):
    """RoPE's rotation with mistakes to choose from."""
    T, K = x.shape[axis], x.shape[-1]
    shape = [1] * x.ndim
    shape[axis], shape[-1] = T, K // 2
    angles = sign * (torch.arange(first + offset, first + offset + T)[:, None] * base ** (-torch.arange(0, K, 2) / K))
    cos, sin = angles.cos().view(shape), angles.sin().view(shape)
    even, odd = x[..., 0::2], x[..., 1::2]
    new = even * cos - odd * sin
    return join(new, (new if sequential else even) * sin + odd * cos)


def halves(x, offset):
    T, K = x.shape[-2:]
    angles = torch.arange(offset, offset + T)[:, None] * speeds(K)
    a, b = x.chunk(2, -1)
    return torch.cat((a * angles.cos() - b * angles.sin(), a * angles.sin() + b * angles.cos()), -1)


def stretched(x, offset):
    return turn(x, offset) * torch.tensor([1.0, 1.5]).repeat(x.shape[-1] // 2)


def alibi(sign=-1, first=None, start=1, power=None, flat=False, signed=False):
    def bias(H, T, S):
        slopes = 2.0 ** (-(8 if power is None else H) * torch.arange(start, H + start) / H)
        where = S - T if first is None else first
        distance = torch.arange(S) - torch.arange(where, where + T)[:, None]
        distance = distance if signed else distance.abs()
        return sign * (slopes[:1].expand(H) if flat else slopes)[:, None, None] * distance

    return bias


def one_sided(ahead):
    """ALiBi's bias with one value for all keys ahead of the query."""

    def bias(H, T, S):
        later = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)
        return alibi()(H, T, S).masked_fill(later, ahead)

    return bias


def cached(query="past", key="past", again=False, front=False, scale=True, add=0, plain=False):
    """Attention with a cache, with mistakes to choose from."""

    def scores_of(q, k, cache, rotate):
        past = cache.shape[2] + (add if cache.shape[2] else 0)
        where = {"past": past, "zero": 0}
        q = q if plain else rotate(q, where[query])
        if again:
            keys = rotate(torch.cat([cache, k], 2), 0)
        else:
            k = k if plain or key == "not" else rotate(k, where[key])
            keys = torch.cat([k, cache] if front else [cache, k], 2)
        return q @ keys.transpose(-1, -2) / (math.sqrt(q.shape[-1]) if scale else 1.0), keys

    return scores_of


def unturned_late(q, k, cache, rotate):
    """The first keys are turned, later ones are not."""
    past = cache.shape[2]
    keys = torch.cat([cache, k if past else rotate(k, 0)], 2)
    return rotate(q, past) @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1]), keys


def close(a, b, atol=1e-6):
    return torch.allclose(a, b, atol=atol)


def nearly(layer, x, order):
    return close(layer(x[:, order]), layer(x)[:, order], 0.01)


def difference(layer, x, order):
    return layer(x[:, order]) - layer(x)[:, order]


def reversed_only(layer, x, order):
    """The order is ignored."""
    return close(layer(x.flip(1)), layer(x).flip(1))


def looped(length, width):
    right = torch.zeros(length, width)
    for i in range(length):
        right[i] = table()(length, width)[i]
    return right


def comprehended(length, width):
    return torch.stack([row for row in table()(length, width)])


def by_the_library(length, width):
    return positional.sinusoidal_table(length, width)


hidden_name = positional.sinusoidal_table


def library_helper(x, offset):
    return positional.RoPE(x.shape[-1]).rotate(x, offset)


def found_by_least_squares(delta, width):
    rows = positional.sinusoidal_table(50 + delta, width, dtype=torch.float64)
    return torch.linalg.lstsq(rows[:-delta], rows[delta:]).solution


def counted_late(q, k, cache, rotate):
    """The queries' offset is read off the cache after the new keys are in it."""
    keys = torch.cat([cache, rotate(k, cache.shape[2])], 2)
    return rotate(q, keys.shape[2]) @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1]), keys


PLANTED = {
    "is_equivariant": [
        ("that is invariance", lambda layer, x, order: close(layer(x[:, order]), layer(x))),
        ("wrong order", lambda layer, x, order: close(layer(x[:, order]), layer(x)[:, order.argsort()])),
        ("allows no rounding", lambda layer, x, order: torch.equal(layer(x[:, order]), layer(x)[:, order])),
        ("cannot see which", lambda layer, x, order: close(layer(x[:, order]).sum(1), layer(x).sum(1))),
        ("the batch is permuted", lambda layer, x, order: close(layer(x[[2, 0, 1]]), layer(x)[[2, 0, 1]])),
        ("only the first place", lambda layer, x, order: close(layer(x[:, order])[:, 0], layer(x)[:, order[0]])),
        ("only the last place", lambda layer, x, order: close(layer(x[:, order])[:, -1], layer(x)[:, order[-1]])),
        ("only the first sequence", lambda layer, x, order: close(layer(x[:, order])[0], layer(x)[0, order])),
        ("take absolute values", lambda layer, x, order: difference(layer, x, order).max().item() < 1e-6),
        ("mean of squares", lambda layer, x, order: difference(layer, x, order).square().mean().item() < 1e-6),
        ("a mean hides", lambda layer, x, order: difference(layer, x, order).abs().mean().item() < 1e-6),
        ("Does it use the `order`", reversed_only),
        ("no layer passes", lambda layer, x, order: False),
        ("adds a thousandth", nearly),
        ("is a Tensor", lambda layer, x, order: layer(x[:, order]) - layer(x)[:, order]),
    ],
    "position_table": [
        ("before all cosines", table(join=lambda *waves: torch.cat(waves, -1))),
        ("changed places", table(waves=(torch.cos, torch.sin))),
        ("its own speed", own_speeds),
        ("start at 1", table(first=1)),
        ("exponent is n / D", table(exponent=1.0)),
        ("clocks speed up", table(exponent=-2.0)),
        ("these are angles", table(waves=(lambda angles: angles, lambda angles: angles))),
        ("does not depend", lambda length, width: torch.ones(length, width)),
        ("written into the code", lambda length, width: table()(length, width) * (length == 7)),
        ("there is a loop", looped),
        ("library's sinusoidal_table", by_the_library),
        ("shape", lambda length, width: table()(length, width).T),
    ],
    "shift_matrix": [
        ("transposed", blocks(transpose=True)),
        ("a sign is missing", unsigned),
        ("shift by 1", blocks(times=1)),
        ("all blocks are equal", blocks(equal=True)),
        ("identity", lambda k, width: torch.eye(width)),
        ("right for i = 0 only", from_one_row),
        ("written into the code", lambda k, width: blocks(times=3)(k, width)),
        ("outside the 2 x 2 blocks", lambda k, width: torch.ones(width, width)),
        ("check one block", blocks(times=2)),
        ("`lstsq` found it", found_by_least_squares),
        ("wrong for delta = -2", lambda delta, width: blocks()(abs(delta), width)),
    ],
    "rotate": [
        ("other way", lambda x, offset: turn(x, offset, sign=-1)),
        ("n + K/2", halves),
        ("one half after the other", lambda x, offset: turn(x, offset, join=lambda *both: torch.cat(both, -1))),
        ("start at 1", lambda x, offset: turn(x, offset, first=1)),
        ("number of the head", lambda x, offset: turn(x.transpose(1, 2), offset).transpose(1, 2)),
        ("already turned", lambda x, offset: turn(x, offset, sequential=True)),
        ("one radian a place", lambda x, offset: turn(x, offset, base=1.0)),
        ("is added", lambda x, offset: x + positional.sinusoidal_table(offset + x.shape[-2], x.shape[-1])[offset:]),
        ("offset is ignored", lambda x, offset: turn(x, 0)),
        ("wrong from offset 2", lambda x, offset: turn(x, 2 * offset)),
        ("no rotation", stretched),
        ("lengths stay, but", lambda x, offset: turn(x, offset, base=100.0)),
        ("nothing is turned", lambda x, offset: x),
        ("library's RoPE", lambda x, offset: library_helper(x, offset)),
    ],
    "alibi_bias": [
        ("sign is positive", alibi(sign=1)),
        ("position S - T + i", alibi(first=0)),
        ("start at 1", alibi(start=0)),
        ("slopes are 2 ** -h", alibi(power="H")),
        ("keeps its sign", alibi(signed=True)),
        ("one slope", alibi(flat=True)),
        ("the causal form", one_sided(0.0)),
        ("are masked", one_sided(-math.inf)),
        ("reverse order", lambda H, T, S: alibi()(H, T, S).flip(0)),
        ("0 everywhere", lambda H, T, S: torch.zeros(H, T, S)),
        ("shape", lambda H, T, S: alibi()(H, T, S)[0]),
        ("head 1, query 2, key 0: -2", lambda H, T, S: 2 * alibi()(H, T, S)),
        ("library's ALiBi", lambda H, T, S: positional.ALiBi(H).bias(T, S)),
    ],
    "scores_with_cache": [
        ("new query and key", cached(query="zero", key="zero")),
        ("the keys are right", cached(query="zero")),
        ("the query is right", cached(key="zero")),
        ("a second time: what", cached(again=True)),
        ("both mistakes", cached(again=True, query="zero")),
        ("one too many", cached(add=1)),
        ("one too few", cached(add=-1)),
        ("after the new keys were appended", counted_late),
        ("before the cached ones", cached(front=True)),
        ("unturned", unturned_late),
        ("keys are not turned", cached(key="not")),
        ("nothing is turned", cached(plain=True)),
        ("not divided", cached(scale=False)),
        ("already the first part", lambda *given: (cached(scale=False)(*given)[0] / 2, cached()(*given)[1])),
        ("wanted a tuple", lambda q, k, cache, rotate: rotate(q, 0)),
        ("the new cache has shape", lambda q, k, cache, rotate: (cached()(q, k, cache, rotate)[0], k[:, :, :1])),
    ],
}
IDENTITY = {
    "is_equivariant": lambda layer, x, order: layer,
    "position_table": lambda length, width: length,
    "shift_matrix": lambda k, width: k,
    "rotate": lambda x, offset: x,
    "alibi_bias": lambda H, T, S: H,
    "scores_with_cache": lambda q, k, cache, rotate: (q, cache),
}
ZEROS = {
    "is_equivariant": lambda layer, x, order: 0,
    "position_table": lambda length, width: torch.zeros(length, width),
    "shift_matrix": lambda k, width: torch.zeros(width, width),
    "rotate": lambda x, offset: torch.zeros_like(x),
    "alibi_bias": lambda H, T, S: torch.zeros(H, T, S),
    "scores_with_cache": lambda q, k, cache, rotate: (
        torch.zeros(*q.shape[:3], cache.shape[2] + k.shape[2]),
        torch.cat([cache, k], 2),
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_reference_passes(name):
    assert verdict(getattr(ch08, name), solution("08", name)) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: a boolean tensor, a name of the library, a loop."""

    def put_back(layer, x, order):
        return torch.tensor(close(layer(x[:, order])[:, order.argsort()], layer(x)))

    def own_name(length, width):
        sinusoidal_table = table()
        return sinusoidal_table(length, width)

    def with_loop(x, offset):
        return torch.stack([turn(row, offset) for row in x])

    def unturned_cache(q, k, cache, rotate):
        keys = torch.cat([cache, k], 2)
        return rotate(q, cache.shape[2]) @ rotate(keys, 0).transpose(-1, -2) / math.sqrt(q.shape[-1]), keys

    assert verdict(ch08.is_equivariant, put_back) == "passed: is_equivariant"
    assert verdict(ch08.position_table, own_name) == "passed: position_table"
    assert verdict(ch08.rotate, with_loop) == "passed: rotate"
    assert verdict(ch08.scores_with_cache, unturned_cache) == "passed: scores_with_cache"


def test_every_way_to_loop_and_to_call_is_seen():
    """Fails when a comprehension, a partial function, a module or a helper hides what the exercise forbids."""

    class Wrapped(torch.nn.Module):
        def forward(self, length, width):
            return by_the_library(length, width)

    for answer in (
        comprehended,
        functools.partial(looped),
        Wrapped(),
        lambda length, width: hidden_name(length, width),
    ):
        message = verdict(ch08.position_table, answer)
        assert "there is a loop" in message or "library's sinusoidal_table" in message
    assert "library's RoPE" in verdict(ch08.rotate, functools.partial(library_helper))


def test_words_are_compared(capsys):
    """Fails when the model answer of 8.6 is shown before there are words, or never."""
    ch08.beyond_training.compare(...)
    assert ch08.beyond_training.good_answer not in capsys.readouterr().out
    ch08.beyond_training.compare("A majority vote over the assignments, since nothing tells which came last. " * 3)
    assert ch08.beyond_training.good_answer in capsys.readouterr().out
    assert "exp(-35 m)" in ch08.beyond_training.good_answer


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch08, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch08, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch08, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch08, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch08, name), wrong) for _, wrong in PLANTED[name])
    for line in (
        "layer(x[:, order])",
        "torch.stack",
        ".flatten(",
        "block_diag",
        "even * cos",
        "arange",
        "rotate(k, past)",
    ):
        assert line not in messages
