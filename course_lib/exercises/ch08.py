"""Checks of chapter 08's exercises: equivariance, the sinusoidal table and its shift, RoPE, ALiBi, and a cache.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are written with loops, in float64. Notebook: 08.
"""

import functools
import inspect
import math
import types

import torch

from course_lib import positional
from course_lib.exercises import Written, Wrong, check, close, expect_tensor, expect_type
from course_lib.exercises.ready_made import called, steps


def _draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


# --- how an answer is written: for a solver in place of a derivation -----------------------


def _functions(student):
    """The Python functions of an answer: its own, those defined inside it, and the student's that it calls."""
    student = inspect.unwrap(student)
    while isinstance(student, functools.partial):
        student = inspect.unwrap(student.func)
    if isinstance(student, torch.nn.Module):
        student = student.forward
    elif not inspect.isroutine(student):
        student = getattr(student, "__call__", None)  # noqa: B004
    todo, found = [getattr(student, "__func__", student)], []
    while todo:
        function = todo.pop()
        if not isinstance(function, types.FunctionType) or function in found:
            continue
        found.append(function)
        known = function.__globals__
        called = [known[name] for name in _names(function.__code__) if name in known]
        todo += [
            inspect.unwrap(f) for f in called if callable(f) and getattr(f, "__module__", None) == function.__module__
        ]
    return found


def _codes(code):
    """A code object, and those of the functions and comprehensions inside it."""
    inside = [part for part in code.co_consts if isinstance(part, types.CodeType)]
    return [code, *(deeper for part in inside for deeper in _codes(part))]


def _names(code):
    """The names of globals and attributes in it."""
    return {name for part in _codes(code) for name in part.co_names}


# --- exercise 8.1: a test of equivariance ---------------------------------------------------


def _attends(x):
    """Self-attention without parameters."""
    return (x @ x.transpose(1, 2) / math.sqrt(x.shape[-1])).softmax(-1) @ x


def _rounds(x):
    """Equivariant, but for rounding: places are summed in an order that depends on where they stand."""
    noise = torch.arange(x.shape[1], dtype=x.dtype).view(1, -1, 1)
    return _attends(x) + 1e-12 * noise


def _deviates_once(x):
    """Zeros but for a single small entry: a mean over all entries does not show it, and no relative tolerance helps."""
    once = torch.zeros_like(x)
    once[0, 0, 0] = 2e-5
    return once


LAYERS = {  # name: (layer, does it agree with the permutation of the check)
    "self-attention": (_attends, True),
    "self-attention, up to rounding of 1e-12": (_rounds, True),
    "the same small network at every place": (lambda x: torch.tanh(3 * x), True),
    "a running sum": (lambda x: x.cumsum(1), False),
    "a layer that adds the place to each vector": (lambda x: x + torch.arange(x.shape[1]).view(1, -1, 1), False),
    "a layer that hands each vector on by one place": (lambda x: x.roll(1, 1), False),
    "a layer that sorts the vectors": (lambda x: x.sort(1).values, False),
    "a layer that repeats the first vector": (lambda x: x[:, :1].expand_as(x), False),
    "a layer that sets the last vector to 0": (
        lambda x: x * (torch.arange(x.shape[1]) < x.shape[1] - 1)[:, None],
        False,
    ),
    "a layer that adds a thousandth of the place": (
        lambda x: x + 1e-3 * torch.arange(x.shape[1]).view(1, -1, 1),
        False,
    ),
    "a layer that adds a ten-thousandth of the place": (
        lambda x: x + 1e-4 * torch.arange(x.shape[1]).view(1, -1, 1),
        False,
    ),
    "a layer that adds the place in all sequences but the first": (
        lambda x: x + torch.arange(x.shape[1]).view(1, -1, 1) * (torch.arange(len(x)) > 0).view(-1, 1, 1),
        False,
    ),
    "a layer that sets the first vector to 0": (lambda x: x * (torch.arange(x.shape[1]) > 0)[:, None], False),
    "a layer that adds one number, read off the first place, everywhere": (lambda x: x + x[:, 0, 0].mean(), False),
    "a layer that subtracts one number, read off the first place, everywhere": (
        lambda x: x - x[:, 0, 0].mean(),
        False,
    ),
    "a layer that adds 1 at places 0 to 2, which this permutation moves among themselves": (
        lambda x: x + (torch.arange(x.shape[1]) < 3).view(1, -1, 1),
        True,
    ),
    "a layer that gives 0 everywhere but in one entry, where it gives 0.00002": (_deviates_once, False),
    "the mean over the places, repeated": (lambda x: x.mean(1, keepdim=True).expand_as(x), True),
}


@check(
    hints=(
        "Two roads from x to a permuted output: permute first, or apply the layer first. When are they the same?",
        "left = layer(x with its places reordered); right = layer(x), its places reordered; compare with a tolerance",
        "return torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-6)",
    )
)
def is_equivariant(student):
    """Exercise 8.1: True exactly for the layers that permute their output as their input was permuted."""
    x, order = _draw(3, 5, 4), torch.tensor([2, 0, 1, 4, 3])
    found = {}
    for name, (layer, _) in LAYERS.items():
        answer = student(layer, x, order)
        if isinstance(answer, torch.Tensor) and answer.dtype == torch.bool and answer.numel() == 1:
            answer = answer.item()
        found[name] = expect_type(answer, bool, "the answer")
    wanted = {name: true for name, (_, true) in LAYERS.items()}
    if found == wanted:
        return

    def gap(layer):
        return layer(x[:, order]) - layer(x)[:, order]

    signed = "the difference has a sign: where all of it is negative, its maximum is small too; take absolute values"
    rules = (
        (
            "you compare layer(x permuted) with layer(x): that is invariance; the output must be permuted too",
            lambda layer: torch.allclose(layer(x[:, order]), layer(x)),
        ),
        (
            "the output is put back with the wrong order: index it with `order` itself",
            lambda layer: torch.allclose(layer(x[:, order]), layer(x)[:, order.argsort()]),
        ),
        (
            "torch.equal allows no rounding, and sums in another order round differently: compare with torch.allclose",
            lambda layer: torch.equal(layer(x[:, order]), layer(x)[:, order]),
        ),
        (
            "a sum or mean over the places cannot see which vector stands where: compare the outputs place by place",
            lambda layer: torch.allclose(layer(x[:, order]).sum(1), layer(x).sum(1)),
        ),
        (signed, lambda layer: gap(layer).max().item() < 1e-6),
        (signed, lambda layer: (-gap(layer)).max().item() < 1e-6),
        ("only the first sequence of the batch is compared", lambda layer: gap(layer)[0].abs().max().item() < 1e-6),
        (
            "only the last place is compared; the others must agree too",
            lambda layer: close(gap(layer)[:, -1], 0 * x[:, 0]),
        ),
        (
            "only the first place is compared; the others must agree too",
            lambda layer: close(gap(layer)[:, 0], 0 * x[:, 0]),
        ),
        (
            "the batch is permuted, and every sequence alone stays as it is; the places are axis 1",
            lambda layer: torch.allclose(layer(x[[2, 0, 1]]), layer(x)[[2, 0, 1]], atol=1e-6),
        ),
        (
            "a mean hides a small difference in few entries, and every entry must agree: take the largest absolute one",
            lambda layer: gap(layer).abs().mean().item() < 1e-6,
        ),
        (
            "a mean of squares hides small differences, and those of few entries: take the largest absolute one",
            lambda layer: gap(layer).square().mean().item() < 1e-6,
        ),
    )
    for message, rule in rules:
        if found == {name: rule(layer) for name, (layer, _) in LAYERS.items()}:
            raise Wrong(message)
    if all(found.values()):
        raise Wrong("every layer passes your test, a running sum too; are the places (axis 1) permuted, not the batch?")
    if not any(found.values()):
        raise Wrong("no layer passes your test, not even self-attention without positions, which is equivariant")
    if not all(student(layer, x, torch.arange(5)) for layer, _ in LAYERS.values()):
        raise Wrong(
            "with the order 0, 1, 2, 3, 4 nothing is permuted, and every layer agrees; your test says False for one. "
            "Does it use the `order` that it is given?"
        )
    name = next(name for name in wanted if found[name] != wanted[name])
    raise Wrong(f"your test says {found[name]} for {name}; it is {wanted[name]}")


# --- exercise 8.2: the table without loops --------------------------------------------------


def _table(length, width, base=10000.0):
    """The formula, entry by entry."""
    table = torch.empty(length, width, dtype=torch.float64)
    for i in range(length):
        for j in range(width // 2):
            angle = i / base ** (2 * j / width)
            table[i, 2 * j], table[i, 2 * j + 1] = math.sin(angle), math.cos(angle)
    return table


@check(
    hints=(
        "A column of positions times a row of speeds gives all angles at once; then interleave sine and cosine.",
        "angles = positions (L, 1) * 10000 ** (-(0, 2, 4, ...) / D) (D/2,); stack sine and cosine last, then flatten",
        "torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)",
    )
)
def position_table(student):
    """Exercise 8.2: the table of Vaswani et al. (2017), section 3.5."""
    T, D = 7, 6
    got, wanted = expect_tensor(student(T, D), (T, D), name="the table").double(), _table(T, D)
    if close(got, wanted, 1e-4):
        other = expect_tensor(student(4, 10), (4, 10), name="the table for other sizes").double()
        if not close(other, _table(4, 10), 1e-4):
            raise Wrong(
                "right for length 7 and width 6, wrong for length 4 and width 10: a size is written into the code"
            )
        ready = (positional.sinusoidal_table, positional.Sinusoidal, positional.rope_angles)
        if name := called(student, [((3, 12), {})], ready):
            raise Wrong(f"the table is right, but the library's {name} makes it: write your own lines")
        student(5, 8)  # what is imported or compiled is so now
        few = steps(student, 6, 8)
        if max(steps(student, 60, 8), steps(student, 6, 80)) > few + 40:
            raise Wrong(
                "the table is right, but there is a loop over positions or columns: "
                "a column of positions times a row of speeds needs none"
            )
        return
    sines, cosines = wanted[:, 0::2], wanted[:, 1::2]
    positions = torch.arange(T, dtype=torch.float64)[:, None]
    slow = positions / 10000 ** (torch.arange(D // 2) / D)
    column = positions / 10000 ** (torch.arange(D, dtype=torch.float64) / D)
    mistakes = {
        "all sines stand before all cosines; the paper interleaves them: sine in column 2n, cosine in 2n + 1": (
            torch.cat((sines, cosines), 1)
        ),
        "sine and cosine have changed places: position 0 must be 0, 1, 0, 1, ...": (
            torch.stack((cosines, sines), -1).flatten(1)
        ),
        "each column has its own speed; the two columns of a pair share one, 10000 ** (-2n / D) with n the pair": (
            torch.where(torch.arange(D) % 2 == 0, column.sin(), column.cos())
        ),
        "positions start at 1; they count from 0": _table(T + 1, D)[1:],
        "the exponent is n / D; it is 2n / D with n the number of the pair, so the clocks slow down twice as fast": (
            torch.stack((slow.sin(), slow.cos()), -1).flatten(1)
        ),
        "the clocks speed up from pair to pair: divide the position by 10000 ** (2n / D), do not multiply": (
            _table(T, D, base=1 / 10000)
        ),
        "these are angles; the table holds their sines and cosines": (
            (positions / 10000 ** (torch.arange(0, D, 2) / D)).repeat_interleave(2, 1)
        ),
    }  # fmt: skip
    for message, table in mistakes.items():
        if close(got, table, 1e-2):  # wide: float32 blurs the sines of large angles
            raise Wrong(message)
    if close(got[0], got[3], 1e-4):
        raise Wrong("rows 0 and 3 are equal: the table does not depend on the position")
    i, j = divmod((got - wanted).abs().argmax().item(), D)
    raise Wrong(f"row {i}, column {j} is {got[i, j]:.4f}; the formula gives {wanted[i, j]:.4f}")


# --- exercise 8.3: the matrix of a shift ----------------------------------------------------


def _shift(k, width):
    """The block diagonal matrix with P[i + k] = P[i] @ R."""
    matrix = torch.zeros(width, width, dtype=torch.float64)
    for j in range(0, width, 2):
        angle = k / 10000 ** (j / width)
        cos, sin = math.cos(angle), math.sin(angle)
        matrix[j : j + 2, j : j + 2] = torch.tensor([[cos, -sin], [sin, cos]], dtype=torch.float64)
    return matrix


@check(
    hints=(
        "Write sin(a + b) and cos(a + b) with the sines and cosines of a and of b; here a belongs to i and b to delta.",
        "for each pair n: b = delta / 10000 ** (2n / D); a 2 x 2 block on the diagonal makes sin(a+b), cos(a+b)",
        "the block is [[cos b, -sin b], [sin b, cos b]]: column 0 makes sin a cos b + cos a sin b",
    )
)  # fmt: skip
def shift_matrix(student):
    """Exercise 8.3: R with P[i + delta] = P[i] R for every i."""
    k, D = 3, 6
    got = expect_tensor(student(k, D), (D, D), name="R").double()
    table = _table(20, D)
    if close(table[:-k] @ got, table[k:], 1e-4):
        if not close(
            expect_tensor(student(11, 4), (4, 4), name="R for delta = 11, D = 4").double(), _shift(11, 4), 1e-4
        ):
            raise Wrong(
                "right for delta = 3 and D = 6, wrong for delta = 11 and D = 4: a size is written into the code"
            )
        for name in ("lstsq", "solve", "pinv", "inv"):
            if any(name in _names(function.__code__) for function in _functions(student)):
                raise Wrong(f"right, but `{name}` found it from rows of the table: derive the blocks from sin and cos")
        back = expect_tensor(student(-2, D), (D, D), name="R for delta = -2").double()
        if not close(table[2:] @ back, table[:-2], 1e-4):
            raise Wrong(
                "right for delta = 3, wrong for delta = -2: a shift may be negative, and its sines change their signs"
            )
        return
    if close(got, torch.eye(D), 1e-4):
        raise Wrong("that is the identity: the shift by 0; turn each pair by delta times its speed")
    if close(got, _shift(k, D).T, 1e-4):
        raise Wrong("R is transposed: it turns back, P[i] R = P[i - delta]. The row P[i] stands to the left of R")
    if close(got, _shift(1, D), 1e-4):
        raise Wrong("that is the shift by 1; the angles must be multiplied by delta")
    if close(got[:2, :2], _shift(k, D)[:2, :2], 1e-4) and close(got[2:4, 2:4], got[:2, :2], 1e-4):
        raise Wrong("all blocks are equal; each pair turns by its own angle, delta / 10000 ** (2n / D)")
    if close(got.diagonal(), _shift(k, D).diagonal(), 1e-4) and close(got, got.T, 1e-4) and got.trace() != got.sum():
        raise Wrong(
            "a sign is missing: both sines of a block have the same one; cos(a + b) = cos a cos b - sin a sin b"
        )
    if close(table[:1] @ got, table[k : k + 1], 1e-4):
        raise Wrong("right for i = 0 only: R may not depend on one row; is it built from P[delta] alone?")
    outside = got[torch.block_diag(*[torch.ones(2, 2)] * (D // 2)) == 0]
    if outside.abs().max() > 1e-4:
        raise Wrong("entries outside the 2 x 2 blocks on the diagonal are not 0: a pair needs nothing from other pairs")
    raise Wrong("P[i] @ R is not P[i + 3]: check one block with sin(a + b) = sin a cos b + cos a sin b")


# --- exercise 8.4: RoPE's rotation ----------------------------------------------------------


def _turned(x, offset=0, base=10000.0, sign=1, halves=False):
    """RoPE with a loop over positions and pairs."""
    T, K = x.shape[-2:]
    out = x.clone()
    for i in range(T):
        for j in range(K // 2):
            angle = sign * (offset + i) * base ** (-2 * j / K)
            a, b = (j, j + K // 2) if halves else (2 * j, 2 * j + 1)
            out[..., i, a] = x[..., i, a] * math.cos(angle) - x[..., i, b] * math.sin(angle)
            out[..., i, b] = x[..., i, a] * math.sin(angle) + x[..., i, b] * math.cos(angle)
    return out


@check(
    hints=(
        "Each pair (2n, 2n+1) of a vector is a point in a plane; turn it by its position times the pair's speed.",
        "angles (T, K/2) of positions from offset on; even, odd = x[..., 0::2], x[..., 1::2]; turn; interleave",
        "torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)",
    )
)
def rotate(student):
    """Exercise 8.4: RoPE's rotation, equation 15 of Su et al. (2021), from an offset on."""
    x = _draw(2, 3, 5, 8)
    got = expect_tensor(student(x, 0), x.shape, name="the result").double()
    if not close(got, _turned(x), 1e-4):
        _explain_rotation(got, x)
    later = expect_tensor(student(x[:, :, 2:], 2), (2, 3, 3, 8), name="the result from offset 2").double()
    if close(later, _turned(x[:, :, 2:]), 1e-4):
        raise Wrong("the offset is ignored: vectors that follow 2 cached ones stand at positions 2, 3, ...")
    if not close(later, _turned(x)[:, :, 2:], 1e-4):
        raise Wrong("right from offset 0, wrong from offset 2: positions are offset, offset + 1, ...")
    if name := called(student, [((x, 0), {})], [positional.RoPE]):
        raise Wrong(f"the vectors are turned rightly, but by the library's {name}: write your own lines")


def _explain_rotation(got, x):
    """Say which usual mistake gives this result."""
    even, odd = x[..., 0::2], x[..., 1::2]
    angles = torch.arange(5, dtype=torch.float64)[:, None] * 10000.0 ** (-torch.arange(0, 8, 2) / 8)
    turned = even * angles.cos() - odd * angles.sin(), even * angles.sin() + odd * angles.cos()
    mistakes = {
        "nothing is turned: the result is x": x,
        "it turns the other way: the sign of the sines is swapped": (
            _turned(x, sign=-1)
        ),
        "entry n is paired with entry n + K/2; here neighbours 2n and 2n + 1 make a pair (both forms exist)": (
            _turned(x, halves=True)
        ),
        "the turned pairs are put one half after the other: interleave them again, stack on a last axis and flatten": (
            torch.cat(turned, -1)
        ),
        "positions start at 1; they count from the offset, here 0": _turned(x, offset=1),
        "the axes are mixed up: turned by the number of the head in place of the position": (
            _turned(x.transpose(1, 2)).transpose(1, 2)
        ),
        "the second number of a pair is turned with the first already turned: keep the old one until both are done": (
            torch.stack((turned[0], turned[0] * angles.sin() + odd * angles.cos()), -1).flatten(-2)
        ),
        "all pairs turn by one radian a place; pair n turns by 10000 ** (-2n / K)": _turned(x, base=1.0),
        "the sinusoidal table is added; RoPE adds nothing, it turns the pairs": x + _table(5, 8),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong, 1e-4):
            raise Wrong(message)
    if not close(got.norm(dim=-1), x.norm(dim=-1), 1e-4):
        raise Wrong("lengths change, so it is no rotation: (a, b) becomes (a cos - b sin, a sin + b cos)")
    raise Wrong("lengths stay, but the angles are not position times 10000 ** (-2n / K)")


# --- exercise 8.5: ALiBi's bias -------------------------------------------------------------


def _alibi(H, T, S, sign=-1, first=None, shift=0, power=8):
    """The bias, entry by entry."""
    first = S - T if first is None else first
    bias = torch.empty(H, T, S, dtype=torch.float64)
    for h in range(H):
        for i in range(T):
            for j in range(S):
                bias[h, i, j] = sign * 2 ** (-power * (h + 1 - shift) / H) * abs(j - (first + i))
    return bias


@check(
    hints=(
        "A slope for each head, a distance for each query and key. The last query stands at the last key.",
        "slopes = 2 ** (-8 h / H) for h = 1 .. H; distance = |j - (S - T + i)|; -slopes[:, None, None] * distance",
        "(torch.arange(S) - torch.arange(S - T, S)[:, None]).abs() is the distance (T, S)",
    )
)
def alibi_bias(student):
    """Exercise 8.5: -m_h |i - j| for H a power of two, with queries that stand last."""
    H, T, S = 4, 3, 5
    got = expect_tensor(student(H, T, S), (H, T, S), name="the bias").double()
    if close(got, _alibi(H, T, S)):
        if not close(expect_tensor(student(2, 4, 4), (2, 4, 4), name="the bias").double(), _alibi(2, 4, 4)):
            raise Wrong("right for 4 heads, wrong for 2: the slopes are 2 ** (-8 h / H)")
        if name := called(student, [((4, 2, 3), {})], [positional.ALiBi, positional.alibi_slopes]):
            raise Wrong(f"the bias is right, but the library's {name} makes it: write your own lines")
        return
    mistakes = {
        "the sign is positive: distant keys would be favoured": _alibi(H, T, S, sign=1),
        "query i stands at position S - T + i, not i: queries are the last ones": _alibi(H, T, S, first=0),
        "the slopes start at 1: h runs from 1 to H, so the first is 2 ** (-8 / H)": _alibi(H, T, S, shift=1),
        "the slopes are 2 ** -h; with H heads they are 2 ** (-8 h / H)": _alibi(H, T, S, power=H),
        "all heads have one slope; each has its own, 2 ** (-8 h / H)": _alibi(H, T, S)[:1].expand(H, T, S),
        "the slopes stand in reverse order: the first head is the steepest": (
            _alibi(H, T, S) * 2.0 ** (8 * torch.arange(1 - H, H, 2, dtype=torch.float64) / H)[:, None, None]
        ),
    }  # fmt: skip
    for message, bias in mistakes.items():
        if close(got, bias):
            raise Wrong(message)
    ahead = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1)  # keys that come after their query
    if close(got[:, ~ahead], _alibi(H, T, S)[:, ~ahead]) and not got[:, ahead].isfinite().all():
        raise Wrong(
            "keys ahead of a query are masked; here they get a penalty by distance, and a mask is added elsewhere"
        )
    if close(got[:, ~ahead], _alibi(H, T, S)[:, ~ahead]) and not got[:, ahead].any():
        raise Wrong("keys ahead of a query get no penalty: the causal form; here |i - j| counts to both sides")
    if close(got.abs(), _alibi(H, T, S, sign=1)):
        raise Wrong("the distance keeps its sign, so one side is raised and the other lowered: take |i - j|")
    if not got.any():
        raise Wrong("the bias is 0 everywhere: no head can tell near from far")
    h, rest = divmod((got - _alibi(H, T, S)).abs().argmax().item(), T * S)
    i, j = divmod(rest, S)
    raise Wrong(f"head {h + 1}, query {i}, key {j}: {got[h, i, j]:.4f}; wanted {_alibi(H, T, S)[h, i, j]:.4f}")


# --- exercise 8.6: in words -----------------------------------------------------------------

beyond_training = Written(
    hints=(
        "(a) Which assignments can a model find that sees names but no order? (b) Divide the two factors of section 7. "
        "(c) Which other cause than RoPE would give the same number?",
        "(a) Suppose it weighs all assignments to the name alike: what does it answer, and when is that the latest "
        "value? (b) Both match, so only the penalties differ: exp(-40 m) / exp(-5 m). (c) Name a run in which the "
        "distances of the test are not new, and a run in which the angles are not.",
        "(a) A majority vote: right with one assignment, worse with each one more. (b) exp(-35 m): one slope makes it "
        "nearly 0, the other nearly 1. (c) Train on 80; divide the positions by 4 at test time; several seeds; another "
        "task; the accuracy by distance.",
    ),
    good_answer=(
        "(a) The model finds the assignments to the name by content and weighs them alike, so it answers with the "
        "value given most often: right while there is one assignment, less and less often as they grow in number. "
        "Your measured curve should fall from the first positions on, from about 0.9 at 5 to about 0.6 at 20. "
        "(b) exp(-35 m): 0.0002 for m = 1/4, 0.87 for m = 1/256. The steep head takes the near one alone, and what is "
        "far has no weight, so a longer sequence looks like a short one; the flat heads average old and new. (c) Two "
        "of: train on 80 and see whether it is extrapolation that fails; slow the clocks, or a larger base; mixed "
        "training lengths; more steps and seeds; another task; accuracy by the distance of what is asked for. Each "
        "with the cause that it would rule out."
    ),
)


# --- exercise 8.7: find the bugs of a cache -------------------------------------------------


@check(
    hints=(
        "With 4 keys in the cache, where does the new query stand? And how often is a cached key turned?",
        "offset = number of cached keys; turn q and the new k from there on; append the turned k; never turn it again",
        "past = cache.shape[2]; keys = cat([cache, rotate(k, past)], 2); scores = rotate(q, past) @ keys^T / sqrt(K)",
    )
)
def scores_with_cache(student):
    """Exercise 8.7: feeding a sequence in parts gives the scores of the whole."""
    q, k = _draw(2, 3, 6, 8), _draw(2, 3, 6, 8, seed=1)
    whole = _turned(q) @ _turned(k).transpose(-1, -2) / math.sqrt(8)
    cache, rows = k[:, :, :0], []
    for start, stop in ((0, 3), (3, 5), (5, 6)):
        answer = student(q[:, :, start:stop], k[:, :, start:stop], cache, _turned)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(f"wanted a tuple (scores, cache), got {type(answer).__name__}")
        new = stop - start
        rows.append(
            expect_tensor(answer[0], (2, 3, new, stop), name=f"the scores of {new} new and {start} old").double()
        )
        cache = expect_tensor(answer[1], (2, 3, stop, 8), name="the new cache").to(q.dtype)
    wanted = [whole[:, :, start:stop, :stop] for start, stop in ((0, 3), (3, 5), (5, 6))]
    if all(close(row, part, 1e-4) for row, part in zip(rows, wanted, strict=True)):
        return
    if close(rows[0], math.sqrt(8) * wanted[0], 1e-4):
        raise Wrong("the scores are not divided by sqrt(K)")
    if close(rows[0], _turned(q[:, :, :3]) @ k[:, :, :3].transpose(-1, -2) / math.sqrt(8), 1e-4):
        raise Wrong("the keys are not turned: both, queries and keys, take part in the rotation")
    if close(rows[0], q[:, :, :3] @ k[:, :, :3].transpose(-1, -2) / math.sqrt(8), 1e-4):
        raise Wrong("nothing is turned: call rotate(x, offset) on the queries and on the new keys")
    for count in (3, 2):  # all keys, or all but one: as if these were the earlier ones
        if close(rows[0], _turned(q[:, :, :3], count) @ _turned(k[:, :, :3]).transpose(-1, -2) / math.sqrt(8), 1e-4):
            raise Wrong(
                "the queries' offset is counted after the new keys were appended: it is the number of cached keys, "
                "which is 0 in the first part"
            )
    if not close(rows[0], wanted[0], 1e-4):
        raise Wrong("already the first part, with an empty cache, differs from the whole sequence's scores")
    _explain_cache(q, k, rows[1])


def _explain_cache(q, k, second):
    """Say which usual mistake the second part, two tokens after three, shows."""
    old, new, query = _turned(k[:, :, :3]), k[:, :, 3:5], q[:, :, 3:5]

    def scores(query, keys):
        return query @ keys.transpose(-1, -2) / math.sqrt(8)

    def with_(key):
        return torch.cat((old, key), 2)

    mistakes = {
        "the new query and key are turned as if they stood at position 0: their offset is the number of cached keys": (
            scores(_turned(query), with_(_turned(new)))
        ),
        "the new query is turned as if it stood at position 0; the keys are right": (
            scores(_turned(query), with_(_turned(new, 3)))
        ),
        "the new key is turned as if it stood at position 0; the query is right": (
            scores(_turned(query, 3), with_(_turned(new)))
        ),
        "cached keys are turned a second time: what is in the cache is turned already": (
            scores(_turned(query, 3), _turned(torch.cat((old, new), 2)))
        ),
        "both mistakes at once: the query's offset is missing, and cached keys are turned a second time": (
            scores(_turned(query), _turned(torch.cat((old, new), 2)))
        ),
        "the offset is one too many: with 3 cached keys the next position is 3, since they are 0, 1, 2": (
            scores(_turned(query, 4), with_(_turned(new, 4)))
        ),
        "the offset is one too few: with 3 cached keys, at 0, 1, 2, the next position is 3": (
            scores(_turned(query, 2), with_(_turned(new, 2)))
        ),
        "the new key is put before the cached ones; the cache is in the order of the positions": (
            scores(_turned(query, 3), torch.cat((_turned(new, 3), old), 2))
        ),
        "the new key enters the cache unturned": scores(_turned(query, 3), with_(new)),
    }
    for message, wrong in mistakes.items():
        if close(second, wrong, 1e-4):
            raise Wrong(message)
    raise Wrong(
        "the first part is right; the second, two tokens after three cached ones, differs from the whole sequence"
    )
