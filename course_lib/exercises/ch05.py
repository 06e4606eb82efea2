"""Checks of chapter 05's exercises: the LSTM cell, the GRU cell, its unrolled weights, an LSTM classifier.

Each check computes the right answer and, if the student's differs, the answers that the
usual mistakes give; it names the one that it finds. Notebook: 05.
"""

import itertools
import math

import torch

from course_lib import lstm_gru, rnn
from course_lib.exercises import (
    Written,
    Wrong,
    check,
    close,
    expect_numbers,
    expect_tensor,
    expect_type,
    guarded,
    near,
)  # fmt: skip
from course_lib.exercises.ready_made import called


def _own_lines(student, given, torchs=()):
    """Refuse a right answer whose work is done by the library's layers and cells, or by torch's."""
    if name := called(student, [(given, {})], [lstm_gru, rnn], torchs):
        whose = "torch's" if name in torchs else "the library's"
        raise Wrong(f"the result is right, but your code calls {whose} `{name}`: write its lines yourself")


def _draw(*shapes, seed):
    """Random float64 tensors of these shapes."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in shapes]


# --- 5.1 ------------------------------------------------------------------------

GATES = {"i": "input gate", "f": "forget gate", "g": "candidate", "o": "output gate"}


def _lstm(x, h, c, weight_ih, weight_hh, bias, order="ifgo", squash=torch.sigmoid, propose=torch.tanh):
    """One LSTM step with the rows cut in another order or with other squashing functions: gates and result."""
    parts = dict(zip(order, (x @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, dim=1), strict=True))
    i, f, o, g = *(squash(parts[name]) for name in "ifo"), propose(parts["g"])
    c = f * c + i * g
    return {"i": i, "f": f, "g": g, "o": o, "c": c, "h": o * c.tanh()}


def _lstm_cells(x, h, c, weight_ih, weight_hh, bias):
    """The usual mistakes about the new cell: {message: the cell that it gives}."""
    weights = (weight_ih, weight_hh, bias)
    right = _lstm(x, h, c, *weights)
    i, f, g = right["i"], right["f"], right["g"]
    nothing = torch.zeros_like
    wrong = {
        "the input gate is not used: your cell adds the whole candidate": f * c + g,
        "the forget gate is not used: your cell keeps everything": c + i * g,
        "you multiply the old cell by 1 - f: a forget gate of 1 keeps, it does not erase": (1 - f) * c + i * g,
        "your gate multiplies the sum: the forget gate acts on the old cell only": f * (c + i * g),
        "you tie the gates, 1 - f in place of i: a variant, but here the input gate has weights of its own": (
            f * c + (1 - f) * g
        ),
        "you tie the gates, 1 - i in place of f: a variant, but here the forget gate has weights of its own": (
            (1 - i) * c + i * g
        ),
        "your new cell is i * g: the old cell is lost": i * g,
        "tanh is taken of the new cell before it is stored: the cell itself has no tanh on its line": (
            (f * c + i * g).tanh()
        ),
        "the candidate goes through a sigmoid: with tanh it can also lower the cell": (
            _lstm(x, h, c, *weights, propose=torch.sigmoid)["c"]
        ),
        "the gates go through tanh: a gate is a number between 0 and 1, so it needs a sigmoid": (
            _lstm(x, h, c, *weights, squash=torch.tanh)["c"]
        ),
        "the candidate has no tanh": _lstm(x, h, c, *weights, propose=lambda a: a)["c"],
        "the gates have no sigmoid: i, f and o must lie between 0 and 1": (
            _lstm(x, h, c, *weights, squash=lambda a: a)["c"]
        ),
        "neither sigmoid nor tanh is applied: i, f and o go through a sigmoid, g through tanh": (
            _lstm(x, h, c, *weights, squash=lambda a: a, propose=lambda a: a)["c"]
        ),
        "all four parts went through the sigmoid, and then g through tanh as well: g gets tanh only": (
            _lstm(x, h, c, *weights, propose=lambda a: a.sigmoid().tanh())["c"]
        ),
        "the old hidden state h has no influence: the gates read x and h": _lstm(x, nothing(h), c, *weights)["c"],
        "the input x has no influence": _lstm(nothing(x), h, c, *weights)["c"],
        "the bias is not added": _lstm(x, h, c, weight_ih, weight_hh, nothing(bias))["c"],
        "the blocks of weight_hh are not transposed: a block W is used as h W^T": (
            _lstm(x, h, c, weight_ih, torch.cat([block.T for block in weight_hh.chunk(4)]), bias)["c"]
        ),
        "the gates read the old cell c where they should read h": _lstm(x, c, c, *weights)["c"],
        "h and c are swapped at the start: the old h is treated as the memory, the old c as the state": (
            _lstm(x, c, h, *weights)["c"]
        ),
        "the old h stands where the old cell belongs: f * h + i * g": f * h + i * g,
        "h and c are set to zeros inside the step: it must go on from the h and c that it is given": (
            _lstm(x, nothing(h), nothing(c), *weights)["c"]
        ),
    }
    for order in itertools.permutations("ifgo"):
        if order != tuple("ifgo"):
            moved = [GATES[name] for name, mine in zip("ifgo", order, strict=True) if name != mine]
            message = f"the rows are cut in the order {' '.join(order)}; they lie in torch's order i f g o"
            wrong.setdefault(f"{message} (look at: {', '.join(moved)})", _lstm(x, h, c, *weights, order=order)["c"])
    return wrong


@check(
    hints=(
        "One product serves all four: x @ weight_ih.T has 4 D columns. Then cut it into four parts.",
        "a = x W_ih^T + h W_hh^T + b; cut a into i, f, g, o along the columns; sigmoid for i, f, o and tanh for g; "
        "new cell = f * old cell + i * g; new h = o * tanh(new cell).",
        "i, f, g, o = a.chunk(4, dim=1), then three lines: squash, c = ..., h = ...; return h, c in this order.",
    )
)
def lstm_cell(student):
    """Exercise 5.1: one step of the LSTM, on a batch of 2 with 3 inputs and 5 units."""
    B, D = 2, 5
    given = _draw((B, 3), (B, D), (B, D), (4 * D, 3), (4 * D, D), (4 * D,), seed=1)
    right = _lstm(*given)
    got = student(*given)
    if isinstance(got, torch.Tensor):
        raise Wrong("one tensor came back: return the pair (h, c), because the next step needs both")
    expect_type(tuple(got) if isinstance(got, list) else got, tuple, "the result")
    if len(got) != 2:
        raise Wrong(f"{len(got)} things came back: return the pair (h, c)")
    h, c = (expect_tensor(part, shape=(B, D), name=name) for part, name in zip(got, "hc", strict=True))
    if close(h, right["c"]) and close(c, right["h"]):
        raise Wrong("your pair is (c, h): the order is h, c, as in torch")
    if not close(c, right["c"]):
        for message, cell in _lstm_cells(*given).items():
            if close(c, cell):
                raise Wrong(message)
        if close(c, given[2]):
            raise Wrong("the cell comes back as it was: neither forgotten from nor written to")
        if close(c, right["h"]):
            raise Wrong("h stands in c's place: the memory is what is carried on before tanh and output gate")
        raise Wrong(
            "your new cell differs from f * c + i * g with the right f, i and g. Print all three and look at their "
            "ranges, (0, 1), (0, 1) and (-1, 1): which one is off? If none is, look at how you combine them"
        )
    if not close(h, right["h"]):
        o, old, new = right["o"], given[2], right["c"]
        wrong = {
            "h is o * c without the tanh: where the cell is large, so is your h": o * new,
            "h is tanh(c): the output gate is not used": new.tanh(),
            "h shows the old cell: take tanh of the new one": o * old.tanh(),
            "the cell is right, and you return it as h too: c is the memory, h = o * tanh(c) is what is shown": new,
            "h is o + tanh(c): a gate multiplies": o + new.tanh(),
            "h is tanh(o * c): the gate comes after the tanh": (o * new).tanh(),
            "h is o * sigmoid(c): the cell is shown through tanh": o * new.sigmoid(),
            "you return the old h": given[1],
        }
        for message, state in wrong.items():
            if close(h, state):
                raise Wrong(message)
        raise Wrong("the cell is right, h is not o * tanh(c). Is o cut from the last D columns?")
    _expect_slopes(student, given)
    _own_lines(student, given, ("lstm_cell", "lstm"))


def _expect_slopes(student, given):
    """The gradients of the sum of squares of the new h and c must be those of the whole step."""
    names = ("x", "h", "c", "weight_ih", "weight_hh", "bias")
    mine, theirs = ([value.clone().requires_grad_() for value in given] for _ in range(2))
    right, got = _lstm(*mine), student(*theirs)
    for name, part in zip("hc", got, strict=True):
        if not part.requires_grad:
            raise Wrong(
                f"the numbers are right, but the new {name} is cut off from its inputs (no_grad, detach or .data): "
                "nothing could be learned through it"
            )
    sum(right[name].square().sum() for name in "hc").backward()
    sum(part.square().sum() for part in got).backward()
    for name, wanted, value in zip(names, mine, theirs, strict=True):
        if value.grad is None or not close(value.grad, wanted.grad):
            raise Wrong(f"the numbers are right, but {name} gets a wrong gradient; is something detached on the way?")


# --- 5.2 ------------------------------------------------------------------------


@check(
    hints=(
        "Write c_5 in terms of c_4, then c_4 in terms of c_3, and so on, and look at the factor before c_2.",
        "(a) c_5 = f_5 c_4 + ..., c_4 = f_4 c_3 + ..., c_3 = f_3 c_2 + ...: multiply the three factors. (b) i_3 g_3 "
        "is already in c_3. (c) Which f has f^100 = 1/2? Then b = ln(f / (1 - f)).",
        "(a) three gates, 0.8 among them. (b) two gates. (c) f = 2^(-1/100), a little above 0.993; keep its digits.",
    )
)
def along_the_cell(answer):
    """Exercise 5.2: what is left of an old cell, worked out by hand."""
    a, b, c = expect_numbers(answer, ("a", "b", "c"))
    bias = -math.log(2 ** (1 / 100) - 1)
    if near(a, 0.8 * 0.6 * 0.7) and near(b, 0.6 * 0.7) and abs(c - bias) < 0.005:
        return
    if near(a, 0.5 * 0.8 * 0.6 * 0.7):
        raise Wrong("(a) f_2 is one factor too many: it was applied on the way *into* c_2")
    if near(a, 0.8 * 0.6):
        raise Wrong("(a) f_5 is missing: c_5 = f_5 c_4 + ...")
    if near(a, 0.6 * 0.7):
        raise Wrong("(a) f_3 is missing: c_3 = f_3 c_2 + ...")
    if near(a, 0.8 + 0.6 + 0.7):
        raise Wrong("(a) the chain rule multiplies along a path; you added the gates")
    if near(a, 0.2 * 0.4 * 0.3):
        raise Wrong("(a) you multiplied 1 - f: a forget gate is the fraction that stays")
    if near(a, 0.9 * 0.5 * 0.8 * 0.6 * 0.7):
        raise Wrong("(a) this is the derivative by c_0: the path begins at c_2")
    if a == 0.34:
        raise Wrong("(a) two digits came back: three are asked for")
    if not near(a, 0.8 * 0.6 * 0.7):
        raise Wrong(f"(a) {a:.4g} is not the product of the gates between c_2 and c_5. Which steps lie between them?")
    if near(b, 0.8 * 0.6 * 0.7):
        raise Wrong("(b) f_3 acts on c_2, not on what step 3 writes itself: i_3 g_3 enters after it")
    if near(b, 0.7):
        raise Wrong("(b) f_4 is missing: from c_3 to c_5 are two steps")
    if not near(b, 0.6 * 0.7):
        raise Wrong(f"(b) {b:.4g} is not the factor of i_3 g_3 in c_5. It is in c_3; follow it from there")
    if near(c, 2 ** (-1 / 100)):
        raise Wrong("(c) this is the gate itself; the question asks for the bias b with sigmoid(b) equal to it")
    if near(c, -bias):
        raise Wrong("(c) the sign is wrong: a negative bias closes the forget gate, and the cell is erased")
    if near(c, math.log(0.995 / 0.005)):
        raise Wrong("(c) your gate is 1 - 0.5/100: losses do not add up, each step takes a fraction of what is left")
    if near(c, math.log(99)):
        raise Wrong(
            f"(c) with b = {c:.4g} the gate is 0.99, rounded to two digits, and 0.99^100 is {0.99**100:.2g}, not 0.5: "
            "keep five digits of the gate on the way"
        )
    if abs(c - bias) < 0.05:
        gate = 1 / (1 + math.exp(-c))
        raise Wrong(
            f"(c) {c:.4g} is near: its gate is {gate:.5f}, and gate^100 is {gate**100:.4g}, not 0.5. Keep five digits "
            "of the gate on the way, three of b, and count 100 factors, not 99"
        )
    if near(c, 0.0) or near(c, 0.5):
        raise Wrong(f"(c) with b = {c:g} the gate is {torch.tensor(c).sigmoid():.3f}; after 100 steps nothing is left")
    raise Wrong(f"(c) with b = {c:.4g}, sigmoid(b)^100 is {(1 / (1 + math.exp(-c))) ** 100:.3g}, not one half")


# --- 5.3 ------------------------------------------------------------------------


def _gru(x, h, weight_ih, weight_hh, bias_ih, bias_hh, order="rzn"):
    """The parts of one GRU step: what x and h give for r, z and n, and the gates."""
    from_x = dict(zip(order, (x @ weight_ih.T + bias_ih).chunk(3, dim=1), strict=True))
    from_h = dict(zip(order, (h @ weight_hh.T + bias_hh).chunk(3, dim=1), strict=True))
    r, z = (from_x["r"] + from_h["r"]).sigmoid(), (from_x["z"] + from_h["z"]).sigmoid()
    n = (from_x["n"] + r * from_h["n"]).tanh()
    return from_x, from_h, r, z, n


def _gru_mistakes(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    """The usual mistakes: {message: the state that it gives}."""
    weights = (weight_ih, weight_hh, bias_ih, bias_hh)
    from_x, from_h, r, z, n = _gru(x, h, *weights)
    weight_n, bias_n, input_bias_n = weight_hh.chunk(3)[2], bias_hh.chunk(3)[2], bias_ih.chunk(3)[2]
    nothing = torch.zeros_like

    def mix(n, z=z, h=h):
        return (1 - z) * n + z * h

    def other(x, h, *weights):
        *_, z, n = _gru(x, h, *weights)
        return z, n

    z_without_h, n_without_h = other(x, nothing(h), *weights)
    z_without_b, n_without_b = other(x, h, weight_ih, weight_hh, nothing(bias_ih), nothing(bias_hh))
    z_without_ih, n_without_ih = other(x, h, weight_ih, weight_hh, nothing(bias_ih), bias_hh)
    z_without_hh, n_without_hh = other(x, h, weight_ih, weight_hh, bias_ih, nothing(bias_hh))
    z_without_x, n_without_x = other(nothing(x), h, *weights)
    turned = torch.cat([block.T for block in weight_hh.chunk(3)])
    z_turned, n_turned = other(x, h, weight_ih, turned, bias_ih, bias_hh)
    wrong = {
        "z is reversed: here, as in torch, z = 1 keeps the old state and 1 - z lets the candidate in": mix(n, 1 - z),
        "this is reset *before* (Cho et al.): r * h goes into the product. Here the gate comes after it": mix(
            (from_x["n"] + (r * h) @ weight_n.T + bias_n).tanh()
        ),
        "the reset gate is not used": mix((from_x["n"] + from_h["n"]).tanh()),
        "b_hn is outside the reset gate: r multiplies the whole of h W_hn^T + b_hn": mix(
            (from_x["n"] + r * (from_h["n"] - bias_n) + bias_n).tanh()
        ),
        "b_in is inside the reset gate: r multiplies the state's part alone, h W_hn^T + b_hn": mix(
            (from_x["n"] - input_bias_n + r * (from_h["n"] + input_bias_n)).tanh()
        ),
        "b_in and b_hn are exchanged: b_in comes with x, and b_hn stands beside h W_hn^T, inside the reset gate": mix(
            (from_x["n"] - input_bias_n + bias_n + r * (from_h["n"] - bias_n + input_bias_n)).tanh()
        ),
        "W_hn is not transposed: the candidate has h W_hn^T": mix((from_x["n"] + r * (h @ weight_n + bias_n)).tanh()),
        "none of the three blocks of weight_hh is transposed: a block W is used as h W^T": mix(n_turned, z_turned),
        "the reset gate scales the old state that is kept as well: there stands z * h, and r acts in the candidate "
        "only": mix(n, h=r * h),
        "the reset gate scales the old state that is kept, and is missing in the candidate: it belongs there": mix(
            (from_x["n"] + from_h["n"]).tanh(), h=r * h
        ),
        "b_in is left out: the candidate adds x W_in^T + b_in": mix(
            (from_x["n"] - input_bias_n + r * from_h["n"]).tanh()
        ),
        "the candidate has r * h without the matrix: r multiplies h W_hn^T + b_hn": mix((from_x["n"] + r * h).tanh()),
        "the gates r and z read x only: both read the old state, too": mix(
            (from_x["n"] + from_x["r"].sigmoid() * from_h["n"]).tanh(), from_x["z"].sigmoid()
        ),
        "two things: z is reversed (z = 1 keeps the old state), and r comes before the product with W_hn (it comes "
        "after)": mix((from_x["n"] + (r * h) @ weight_n.T + bias_n).tanh(), 1 - z),
        "the reset gate multiplies the input's part as well": mix((r * (from_x["n"] + from_h["n"])).tanh()),
        "the reset gate multiplies the input's part in place of the state's": mix(
            (r * from_x["n"] + from_h["n"]).tanh()
        ),
        "you multiply by 1 - r: a reset gate of 1 lets the old state through": mix(
            (from_x["n"] + (1 - r) * from_h["n"]).tanh()
        ),
        "the candidate goes through a sigmoid: tanh": mix((from_x["n"] + r * from_h["n"]).sigmoid()),
        "the candidate has no tanh": mix(from_x["n"] + r * from_h["n"]),
        "the gates have no sigmoid: r and z must lie between 0 and 1": mix(
            (from_x["n"] + (from_x["r"] + from_h["r"]) * from_h["n"]).tanh(), from_x["z"] + from_h["z"]
        ),
        "neither sigmoid nor tanh is applied: r and z go through a sigmoid, n through tanh": mix(
            from_x["n"] + (from_x["r"] + from_h["r"]) * from_h["n"], from_x["z"] + from_h["z"]
        ),
        "the gates go through tanh: a gate is a number between 0 and 1, so it needs a sigmoid": mix(
            (from_x["n"] + (from_x["r"] + from_h["r"]).tanh() * from_h["n"]).tanh(),
            (from_x["z"] + from_h["z"]).tanh(),
        ),
        "you return the candidate n: mix it with the old state": n,
        "the weights do not add up to 1: the candidate is missing its factor 1 - z": n + z * h,
        "the weights do not add up to 1: the old state is missing its factor z": (1 - z) * n + h,
        "your result is z * h + z * n: one weight is z, the other 1 - z": z * (h + n),
        "the old state has no influence on gates and candidate": mix(n_without_h, z_without_h),
        "the input x has no influence": mix(n_without_x, z_without_x),
        "the biases are not added": mix(n_without_b, z_without_b),
        "bias_ih is not added": mix(n_without_ih, z_without_ih),
        "bias_hh is not added": mix(n_without_hh, z_without_hh),
        "the update gate z stands in the candidate, where the reset gate r belongs": mix(
            (from_x["n"] + z * from_h["n"]).tanh()
        ),
        "the reset gate r mixes old and new; that is the update gate's part, z": mix(n, r),
        "you return the old state": h,
    }
    for order in itertools.permutations("rzn"):
        if order != tuple("rzn"):
            *_, z, n = _gru(x, h, *weights, order=order)
            message = f"the rows are cut in the order {' '.join(order)}; they lie in torch's order r z n"
            wrong.setdefault(message, (1 - z) * n + z * h)
    return wrong


@check(
    hints=(
        "Keep the two products apart: x W_ih^T + b_ih and h W_hh^T + b_hh, each cut into three.",
        "r and z: sigmoid of the sum of their two parts. n: tanh of x's part plus r times h's part. New state: "
        "(1 - z) n + z h.",
        "x_r, x_z, x_n = (x @ weight_ih.T + bias_ih).chunk(3, dim=1), the same for h; n = tanh(x_n + r * h_n).",
    )
)
def gru_cell(student):
    """Exercise 5.3: one step of the GRU, reset after, on a batch of 2 with 3 inputs and 5 units."""
    B, D = 2, 5
    given = _draw((B, 3), (B, D), (3 * D, 3), (3 * D, D), (3 * D,), (3 * D,), seed=2)
    *_, z, n = _gru(*given)
    got = student(*given)
    if isinstance(got, tuple):
        raise Wrong(f"a tuple of {len(got)} came back: a GRU has one state, return it alone")
    expect_tensor(got, shape=(B, D))
    if close(got, (1 - z) * n + z * given[1]):
        _own_lines(student, given, ("gru_cell", "gru"))
        return
    for message, state in _gru_mistakes(*given).items():
        if close(got, state):
            raise Wrong(message)
    raise Wrong(
        "the new state is not that of the GRU. Print r, z and n and compare their ranges: (0, 1), (0, 1), (-1, 1); "
        "then set one of the two biases to 0, and see whether your result changes"
    )


# --- 5.4 ------------------------------------------------------------------------


@check(
    hints=(
        "One gate with I inputs and D units: a (D, I) matrix, a (D, D) matrix, and in torch two biases of D.",
        "One gate: D I + D D + 2 D. Times 4, times 3. The second layer of (c) reads both directions of the first, so "
        "its I is 40. For (d) ask which biases occur only as a sum.",
        "(a) 4 * 640. (c) 2 * 2560 + 2 * 4 * (20 * 40 + 20 * 20 + 2 * 20). (d) in the GRU b_hn is multiplied by r.",
    )
)
def parameter_counts(answer):
    """Exercise 5.4: numbers of parameters, worked out by hand."""
    names = ("a", "b", "c", "d for the LSTM", "d for the GRU")
    got = expect_numbers(answer, names)
    a, b, c, spare_lstm, spare_gru = got
    if (a, b) == (2480, 1860):
        raise Wrong("(a), (b) torch keeps two biases, b_ih and b_hh, for every gate; you counted one")
    if (a, b) == (2400, 1800):
        raise Wrong("(a), (b) the biases are missing: two vectors of D numbers for every gate")
    if (a, b) == (640, 640):
        raise Wrong("(a), (b) this is one gate: the LSTM has four such sets, the GRU three")
    if a == 1920:
        raise Wrong("(a) three sets: the candidate g has weights as well, so an LSTM has four")
    if a != 2560:
        raise Wrong(f"(a) {a:g} is not four times the numbers of one gate")
    if b == 2560:
        raise Wrong("(b) four sets: the GRU has r, z and n, three")
    if b == 1280:
        raise Wrong("(b) two sets: beside its two gates the GRU has a candidate")
    if b != 1920:
        raise Wrong(f"(b) {b:g} is not three times the numbers of one gate")
    if c == 2 * 2560 + 2 * 3360:
        raise Wrong("(c) the second layer's input is not 20 wide: it reads both directions of the first, side by side")
    if c == 2560 + 3360:
        raise Wrong("(c) each of the two layers has two directions, with weights of their own")
    if c == 4 * 2560:
        raise Wrong("(c) four times the first layer: but the second layer's input has another width than 10")
    if c == 2560 + 4960 or c == 2 * 2560 + 4960:
        raise Wrong("(c) a second direction is missing: both layers have two")
    if c != 15040:
        raise Wrong(
            f"(c) {c:g} is not it: 2 directions of the first layer, then 2 of the second with its own input width"
        )
    if (spare_lstm, spare_gru) == (80, 60):
        raise Wrong(
            "(d) GRU: for r and z one bias would do, but b_hn stands inside the reset gate's product: it differs"
        )
    if spare_lstm == 160:
        raise Wrong("(d) LSTM: of each pair of biases one can go, not both: then the gates could no longer be shifted")
    if spare_lstm != 80:
        raise Wrong(f"(d) LSTM: {spare_lstm:g}. b_ih and b_hh only occur as a sum, for each of 4 D gate entries")
    if spare_gru != 40:
        raise Wrong(f"(d) GRU: {spare_gru:g}. Go through r, z and n: where do the two biases occur only as a sum?")


# --- 5.5 ------------------------------------------------------------------------


def _unrolled(z):
    """(T, D) gates to the (T + 1, D) weights in h_T: what was written, times all later gates."""
    one = torch.ones_like(z[:1])
    kept = torch.cat([z.flip(0).cumprod(0).flip(0), one])
    return kept * torch.cat([one, 1 - z])


def _later(z, first):
    """Products of z over the steps from `first(i)` to the last, for i = 0 .. T - 1."""
    return torch.stack([z[first(i) :].prod(0) for i in range(len(z))])


@check(
    hints=(
        "Start small: T = 1, h_1 = (1 - z_1) n_1 + z_1 h_0. Which two weights are these? Then put it into h_2.",
        "Begin with the weights [1] of h_0 alone. At each step: multiply all the weights so far by z_t, then append "
        "1 - z_t. After T steps there are T + 1 rows.",
        "weights = torch.ones(1, D); for each gate: weights = torch.cat([weights * gate, (1 - gate)[None]]).",
    )
)
def gru_weights(student):
    """Exercise 5.5: the weights of h_0 and of all candidates in the last state."""
    T, D = 4, 3
    z = torch.rand(T, D, generator=torch.Generator().manual_seed(4), dtype=torch.float64) * 0.8 + 0.1
    right = _unrolled(z)
    got = student(z)
    if isinstance(got, list) and got and all(isinstance(row, torch.Tensor) for row in got):
        raise Wrong("a list of rows came back: join them into one tensor, with torch.stack or torch.cat")
    if isinstance(got, torch.Tensor) and got.shape == (T, D):
        raise Wrong(f"{T} rows came back, {T + 1} are wanted: {T} candidates and, first, h_0, which has a weight too")
    if isinstance(got, torch.Tensor) and got.shape == (T, T + 1, D):
        raise Wrong("the weights in every state came back: wanted are those in the last one, h_T, of shape (T + 1, D)")
    expect_tensor(got, shape=(T + 1, D))
    if not close(got, right):
        _explain_weights(got, z, right)
    z[1] = 0.0  # a gate that is shut exactly: everything before is gone
    got = expect_tensor(student(z), shape=(T + 1, D))
    if got.isnan().any() or got.isinf().any():
        raise Wrong(
            "a gate of exactly 0 gives nan: a quotient of products, or a logarithm, breaks there; multiply up instead"
        )
    if not close(got, _unrolled(z)):
        raise Wrong("with a gate of exactly 0 the weights are off: all that came before that step must have weight 0")
    if not close(student(z[:1]), _unrolled(z[:1])):
        raise Wrong("with a single step the weights must be z_1 and 1 - z_1")
    _own_lines(student, (z,))


def _explain_weights(got, z, right):
    """Name the mistake in the weights."""
    first, write, T = right[:1], 1 - z, len(z)
    own = _later(z, lambda i: i)  # the product begins one step too early
    past = torch.stack([z[:i].prod(0) for i in range(T)])  # over the gates before i
    wrong = {
        "h_0 stands last: row 0 belongs to h_0, row s to n_s": right.roll(-1, 0),
        "the rows run backwards: row 0 belongs to h_0, the last row to n_T": right.flip(0),
        "the product for n_s begins at z_s: n_s enters *after* step s's gate, so z_{s+1} comes first": torch.cat(
            [first, write * own]
        ),
        "the product runs over the gates *before* step s; what n_s loses it loses later, at s + 1 .. T": torch.cat(
            [first, write * past]
        ),
        "the factor 1 - z_s is missing: step s lets only that fraction of n_s in": torch.cat(
            [first, _later(z, lambda i: i + 1)]
        ),
        "z is reversed: z keeps the state, 1 - z lets the candidate in": _unrolled(1 - z),
        "the products are missing: these are the weights at entry, and every later step scales them": torch.cat(
            [first, write]
        ),
        "h_0 has weight 0: its weight is the product of all z, small but not nothing": torch.cat(
            [0 * first, right[1:]]
        ),
        "h_0 has weight 1: every step scales it by z": torch.cat([first / first, right[1:]]),
        "the candidates decay by 1 - z instead of z": torch.cat([first, write * _later(1 - z, lambda i: i + 1)]),
    }
    for message, weights in wrong.items():
        if close(got, weights):
            raise Wrong(message)
    if close(got.sum(1), torch.ones_like(got[:, 0])):
        raise Wrong("the weights sum to 1 over the units: each unit has its own T + 1 weights")
    if not close(got.sum(0), torch.ones_like(got[0])):
        raise Wrong(
            f"the weights of the first unit sum to {got[:, 0].sum():.3f}; together they must be 1. Does every "
            "candidate enter with 1 - z, and is everything before it multiplied by z?"
        )
    raise Wrong(
        "the weights sum to 1 but are not those of the GRU: test T = 2, where they are z_2 z_1, z_2 (1 - z_1) and "
        "1 - z_2"
    )


# --- 5.6 ------------------------------------------------------------------------

how_open = Written(
    hints=(
        "Order your rows by what is left after the lag, not by the bias. Where does the accuracy change?",
        "(a) Compare sigmoid(b)^lag where training works and where it fails; look for rows that succeed with one seed "
        "and not with another. (b) Guessing among five letters costs ln 5 = 1.61: look at the loss of rows that fail. "
        "(c) Compare the biases 3, 8 and 20 on the task 'latest', and compute sigmoid'(8).",
        "(a) What counts is what is left of the first token's write, and so of its gradient. (b) How often each answer "
        "occurs can be learned without any memory; what is the loss then? (c) In 'latest' the cell must drop a letter "
        "when a new mark comes. Which gate does that, and what gradient does it get?",
    ),
    good_answer=(
        "(a) the product sigmoid(b)^lag, not the bias alone; a border in your own numbers; and that it is no "
        "guarantee: a run with less than 0.01 left can work, and one with 0.2 left can fail. (b) A loss of ln 5 = 1.61 "
        "is what guessing costs in 'first': a gradient that has shrunk so far is lost among the others and shows no "
        "direction, although weights that solve the task exist. (c) In 'latest' old letters must leave the cell, and a "
        "gate that starts saturated hardly learns to close: sigmoid'(8) is 3e-4, sigmoid'(20) 2e-9, and 250 steps of "
        "size 0.01 cannot bring such a bias near 0; what 8 and 20 cost in accuracy, in your own numbers. A very good "
        "answer says on which seeds it rests, and that some runs solve a part in other ways."
    ),
)


# --- 5.7 ------------------------------------------------------------------------

_SIZES = {"vocab_size": 9, "embedding_dim": 3, "hidden_size": 5, "num_classes": 2}  # V, I, D, C


def _states(weights, ids, order="ifgo", cat=lambda x, h, c: [x, h], carry_h=True, carry_c=True, squash_g=torch.tanh,
            show=torch.tanh, start=0.0, keep=lambda h, c: c):  # fmt: skip
    """The states h and c of an LSTM after every step, (B, T, D) each, with one part exchanged."""
    x = weights["embedding.weight"][ids]
    h = c = x.new_full((len(ids), _SIZES["hidden_size"]), start)
    nothing, hs, cs = torch.zeros_like(h), [], []
    for x_t in x.unbind(1):
        both = torch.cat(cat(x_t, h if carry_h else nothing, c), 1)
        parts = dict(zip(order, (both @ weights["gates.weight"].T + weights["gates.bias"]).chunk(4, 1), strict=True))
        old = keep(h, c) if carry_c else nothing
        c = parts["f"].sigmoid() * old + parts["i"].sigmoid() * squash_g(parts["g"])
        h = parts["o"].sigmoid() * show(c)
        hs.append(h)
        cs.append(c)
    return torch.stack(hs, 1), torch.stack(cs, 1)


def _classifier_mistakes(weights, ids, lengths, real):
    """The usual mistakes: {message: the logits that they give}."""
    rows, (h, c) = torch.arange(len(ids)), _states(weights, ids)

    def read(vector):
        return vector @ weights["output.weight"].T + weights["output.bias"]

    def at_end(which=0, **exchanged):
        return read(_states(weights, ids, **exchanged)[which][rows, lengths - 1])

    kept = real[..., None]
    wrong = {
        "you read the last column: in the shorter rows this is the state after the padding": read(h[:, -1]),
        "you read the state one step too early: a row with n words ends at column n - 1": read(h[rows, lengths - 2]),
        "you read the state one step too late: a row with n words ends at column n - 1, counted from 0": read(
            h[rows, lengths.clamp(max=ids.shape[1] - 1)]
        ),
        "you read the first step's state; if your loop ends after one step, compare it with section 3's lines": read(
            h[:, 0]
        ),
        "you read the memory c: what the rest of the network sees is h": read(c[rows, lengths - 1]),
        "two things: you read the memory c in place of h, and at the last column, not at each row's own end": read(
            c[:, -1]
        ),
        "you read tanh(c): the output gate is missing": read(c[rows, lengths - 1].tanh()),
        "c stands for h: the gates read the memory c, and should read h": at_end(cat=lambda x, h, c: [x, c]),
        "h stands for c: the forget gate multiplies h, and should multiply the memory c": at_end(keep=lambda h, c: h),
        "h and c are exchanged from step to step: the gates should read h, the forget gate should multiply c": at_end(
            cat=lambda x, h, c: [x, c], keep=lambda h, c: h
        ),
        "h and c are exchanged from step to step, and at the end c is read: is the pair (h, c) taken as (c, h)?": (
            at_end(1, cat=lambda x, h, c: [x, c], keep=lambda h, c: h)
        ),
        "you average the states of all steps, padding included: the last state is asked for": read(h.mean(1)),
        "you average the states of the real words: the last state is asked for": read(
            (h * kept).sum(1) / lengths[:, None]
        ),
        "you take the maximum over the steps: the last state is asked for": read(
            h.masked_fill(~kept, -torch.inf).amax(1)
        ),
        "you take the maximum over all steps, padding included: the last state is asked for": read(h.amax(1)),
        "all rows are read at the end of the shortest one": read(h[:, lengths.min() - 1]),
        "h is not carried from step to step: the gates see no past": at_end(carry_h=False),
        "c is not carried from step to step: nothing is remembered": at_end(carry_c=False),
        "gates reads [h, x] in your code: x comes first": at_end(cat=lambda x, h, c: [h, x]),
        "the candidate goes through a sigmoid: tanh": at_end(squash_g=torch.sigmoid),
        "h is o * c without the tanh": at_end(show=lambda c: c),
        "the state starts at 1: before the first word nothing is known, so start at 0": at_end(start=1.0),
    }
    for order in itertools.permutations("ifgo"):
        if order != tuple("ifgo"):
            message = f"the columns are cut in the order {' '.join(order)}; the exercise asks for i f g o"
            wrong.setdefault(message, at_end(order=order))
    right = at_end()
    wrong |= {
        "these are probabilities: return logits, the loss applies the softmax": right.softmax(1),
        "these are log-probabilities: return logits, the loss applies the softmax": right.log_softmax(1),
        "the output layer's bias is not added": right - weights["output.bias"],
        "the logits pass through a ReLU: return them as they are, negative ones too": right.relu(),
        "the logits pass through a leaky ReLU: return them as they are": torch.where(right > 0, right, 0.01 * right),
        "the logits lose their signs: return them as they are, negative ones too": right.abs(),
        "the logits pass through a sigmoid: return them as they are": right.sigmoid(),
        "the logits pass through a tanh: return them as they are": right.tanh(),
    }
    return right, wrong


@check(
    hints=(
        "First the constructor: three layers, one line each. Then draw one row of 4 words in a batch of 6 columns: at "
        "which step is its state final, and what happens to the state after that?",
        "x = embedding(ids); h and c start at zeros (B, D); for each step t: cut gates([x_t, h]) into i, f, g, o, then "
        "the two lines of the LSTM, and keep h in a list. Stack the list, take each row at lengths - 1, apply output.",
        "states = torch.stack(states, 1) is (B, T, D); states[torch.arange(B), lengths - 1] is (B, D).",
    )
)
def review_classifier(student):
    """Exercise 5.7: an LSTM classifier of padded rows, on 4 rows of up to 6 tokens."""
    V, inputs, D, C = _SIZES.values()
    model = student(V, inputs, D, C)
    if not isinstance(model, torch.nn.Module):
        raise Wrong(f"ReviewClassifier(...) gave a {type(model).__name__}; wanted a torch.nn.Module")
    _expect_parameters(model, V, inputs, D, C)
    model.double()
    embedding, gates, gate_bias, output, output_bias = _draw(
        (V, inputs), (4 * D, inputs + D), (4 * D,), (C, D), (C,), seed=10
    )
    weights = {"embedding.weight": embedding, "gates.weight": gates, "gates.bias": gate_bias}
    weights |= {"output.weight": output, "output.bias": output_bias}
    model.load_state_dict(weights)
    ids = torch.randint(2, V, (4, 6), generator=torch.Generator().manual_seed(8))
    lengths = torch.tensor([3, 6, 2, 5])
    real = torch.arange(6) < lengths[:, None]
    ids = ids.masked_fill(~real, 1)
    right, wrong = _classifier_mistakes(weights, ids, lengths, real)
    assert (right > 0).any(), "a ReLU on the logits, or abs, would pass"
    assert (right < 0).any(), "a ReLU on the logits, or abs, would pass"
    forward = guarded(model)
    got = expect_tensor(forward(ids, lengths), shape=(4, C), name="what forward returns")
    if not close(forward(ids, lengths), got):
        raise Wrong(
            "two calls with the same ids give different logits: is h or c drawn at random or kept from the last call, "
            "or is dropout on? Each call must start at zeros, and without dropout"
        )
    if not close(got, right):
        if close(forward(ids.masked_fill(~real, 0), lengths), right):
            raise Wrong(
                "your code tells padding by its id, 0, but what stands after a row's end may be any id; `lengths` says "
                "how many tokens of each row are real"
            )
        for message, logits in wrong.items():
            if close(got, logits):
                raise Wrong(message)
        if any(close(got, right[list(order)]) for order in itertools.permutations(range(len(ids)))):
            raise Wrong(
                "the logits are right, but the rows are in another order than in `ids`: rows that you sorted by length "
                "must be put back"
            )
        full = lengths == ids.shape[1]
        if close(got[full], right[full]):
            raise Wrong(
                "rows without padding are right, rows with padding are not: read each row's state at its own end, "
                "which `lengths` tells"
            )
        raise Wrong(
            "the logits are not right. Take one row without padding, print x, i, f, g, o, c and h after each "
            "step, and compare with section 3's lines"
        )
    padded = torch.cat([ids, ids.new_full((4, 2), 4)], 1)
    if not close(forward(padded, lengths), right):
        raise Wrong(
            "two more columns after the rows change the logits: what stands after a row's end must not matter, "
            "whatever its ids; use `lengths`"
        )
    if not close(forward(ids[:1, :3], lengths[:1]), right[:1]):
        raise Wrong("a row alone gives other logits than the same row in a batch")
    every = torch.arange(ids.numel()).reshape(ids.shape) % V  # every id of the vocabulary is a word, 0 too
    every[real] = torch.arange(int(real.sum())) % V
    h = _states(weights, every)[0][torch.arange(len(ids)), lengths - 1]
    if not close(forward(every, lengths), h @ output.T + output_bias):
        raise Wrong(
            "with ids 0 or 1 among the words the logits are not right: `lengths` alone says what is padding, and any "
            "id may be a word"
        )
    _expect_gradients(model, weights, every, lengths)
    _own_lines(forward, (ids, lengths), ("lstm_cell", "lstm"))


def _expect_parameters(model, V, inputs, D, C):
    """The layers that the exercise names, with their shapes, and no others."""
    wanted = {"embedding.weight": (V, inputs), "gates.weight": (4 * D, inputs + D), "gates.bias": (4 * D,)}
    wanted |= {"output.weight": (C, D), "output.bias": (C,)}
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    for name, shape in wanted.items():
        if name not in found and name.endswith("bias") and name.replace("bias", "weight") in found:
            raise Wrong(f"{name.partition('.')[0]} has no bias: leave nn.Linear's bias on")
        if name not in found:
            kind = "nn.Embedding" if name.startswith("embedding") else "nn.Linear"
            raise Wrong(f"there is no parameter {name}: the constructor makes self.{name.partition('.')[0]}, an {kind}")
        if found[name] != shape:
            raise Wrong(
                f"with V = {V}, I = {inputs}, D = {D}, C = {C} your {name} has shape {found[name]}; wanted {shape}"
            )
    if more := sorted(found.keys() - wanted.keys()):
        raise Wrong(f"{more[0]} is a parameter too many: three layers are enough")


def _expect_gradients(model, weights, ids, lengths):
    """The gradients of the sum of squared logits must be those of the whole computation."""
    mine = {name: value.clone().requires_grad_() for name, value in weights.items()}
    h = _states(mine, ids)[0][torch.arange(len(ids)), lengths - 1]
    (h @ mine["output.weight"].T + mine["output.bias"]).square().sum().backward()
    model.zero_grad()
    logits = model(ids, lengths)
    if not logits.requires_grad:
        raise Wrong("the logits are cut off from the weights (no_grad, detach or .data): nothing can be learned")
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and name == "embedding.weight":
            skipped = [k for k, row in enumerate(parameter.grad) if not row.any() and mine[name].grad[k].any()]
            kept = [k for k in range(len(parameter.grad)) if k not in skipped]
            if skipped and kept and close(parameter.grad[kept], mine[name].grad[kept]):
                raise Wrong(
                    f"row {skipped[0]} of the embedding gets no gradient, so this word would never be learned: does "
                    "nn.Embedding have a padding_idx? Here any id may be a word; `lengths` says what is padding"
                )
        if parameter.grad is None or not close(parameter.grad, mine[name].grad):
            raise Wrong(f"the logits are right, but {name} gets a wrong gradient; is something detached in the loop?")
