"""The gates of LSTM and GRU: equations by hand, against torch's cells and against loops written here.

What the layers share with RNN (paths, lengths, states, dropout, input checks) is in test_rnn.py. Sizes are pairwise
different: B = 3, T = 7, I = 6, D = 5. Tolerance 1e-10 in float64; rounding is near 1e-14.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import lstm_gru
from course_lib.lstm_gru import GRU, LSTM, ResetBeforeGRU
from course_lib.rnn import RNN

B, T, I, D = 3, 7, 6, 5  # noqa: E741
LENGTHS = [4, 7, 1]
TINY = {"rtol": 1e-10, "atol": 1e-10}
with_and_without_bias = pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def make(kind, *sizes, **options):
    torch.manual_seed(2)
    return kind(*(sizes or (I, D)), dtype=torch.float64, **options)


def weights(gates, bias=True):
    """Random weights for so many gates, large enough that the gates move."""
    shapes = [(gates * D, I), (gates * D, D), *([(gates * D,)] * 2 if bias else [])]
    return [0.7 * draw(*shape, seed=n) for n, shape in enumerate(shapes)]


def with_gradients(function, inputs):
    """Results of a function and the gradients of their weighted sum wrt everything that went in."""
    inputs = [value.detach().clone().requires_grad_() for value in inputs]
    results = function(*inputs)
    results = [results] if isinstance(results, torch.Tensor) else list(results)
    total = sum((value * draw(*value.shape, seed=20 + n)).sum() for n, value in enumerate(results))
    return results + list(torch.autograd.grad(total, inputs))


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, **TINY)


def lstm_gates(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    """`lstm_gru.lstm_gates` with the arguments of torch's cells, as the next three."""
    return lstm_gru.lstm_gates(F.linear(x, weight_ih, None if bias_ih is None else bias_ih + bias_hh), h, weight_hh)


def lstm_step(x, h, c, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    from_input = F.linear(x, weight_ih, None if bias_ih is None else bias_ih + bias_hh)
    return lstm_gru.lstm_step(from_input, h, c, weight_hh)


def gru_gates(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None):
    return lstm_gru.gru_gates(F.linear(x, weight_ih, bias_ih), h, weight_hh, bias_hh)


def gru_step(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None, **gates):
    return lstm_gru.gru_step(F.linear(x, weight_ih, bias_ih), h, weight_hh, bias_hh, **gates)


def gru_step_reset_before(*given):
    return gru_step(*given, gates=lstm_gru.gru_gates_reset_before)


# --- by hand --------------------------------------------------------------------
# One unit, one input: x = 0.5, h = -0.4 and, for the LSTM, c = 0.8.

W_IH, W_HH = [0.3, -0.7, 1.1, 0.9], [0.6, 0.2, -0.5, -0.8]
B_IH, B_HH = [0.1, -0.2, 0.3, -0.4], [0.05, 0.15, -0.25, 0.35]
X, H, C = 0.5, -0.4, 0.8


def sigmoid(s):
    return 1 / (1 + math.exp(-s))


def column(numbers):
    return torch.tensor(numbers, dtype=torch.float64)[:, None]


def test_an_lstm_step_by_hand():
    """Fails if gates are taken in another order, a sigmoid and a tanh are swapped, or c skips its tanh."""
    i, f, g, o = (W_IH[n] * X + W_HH[n] * H + B_IH[n] + B_HH[n] for n in range(4))
    i, f, g, o = sigmoid(i), sigmoid(f), math.tanh(g), sigmoid(o)
    c = f * C + i * g
    given = (column(W_IH), column(W_HH), column(B_IH)[:, 0], column(B_HH)[:, 0])
    gates = lstm_gates(column([X]), column([H]), *given)
    assert [gate.item() for gate in gates] == pytest.approx([i, f, g, o], abs=1e-14)
    found = lstm_step(column([X]), column([H]), column([C]), *given)
    assert [part.item() for part in found] == pytest.approx([o * math.tanh(c), c], abs=1e-14)


def test_a_gru_step_by_hand_reset_after_and_before():
    """Fails if z blends the other way round, or r multiplies the wrong thing: with a bias the two forms differ."""
    r, z = (sigmoid(W_IH[n] * X + W_HH[n] * H + B_IH[n] + B_HH[n]) for n in (0, 1))
    after = math.tanh(W_IH[2] * X + B_IH[2] + r * (W_HH[2] * H + B_HH[2]))
    before = math.tanh(W_IH[2] * X + B_IH[2] + W_HH[2] * (r * H) + B_HH[2])
    given = (column(W_IH[:3]), column(W_HH[:3]), column(B_IH[:3])[:, 0], column(B_HH[:3])[:, 0])
    x, h = column([X]), column([H])
    assert [gate.item() for gate in gru_gates(x, h, *given)] == pytest.approx([r, z, after], abs=1e-14)
    assert gru_step(x, h, *given).item() == pytest.approx((1 - z) * after + z * H, abs=1e-14)
    assert gru_step_reset_before(x, h, *given).item() == pytest.approx((1 - z) * before + z * H, abs=1e-14)
    assert abs(after - before) > 0.05


# --- against torch's cells ------------------------------------------------------


@with_and_without_bias
def test_lstm_step_is_torchs_cell(bias):
    """Fails if value or gradient differ from torch.lstm_cell."""
    given = [draw(B, I), draw(B, D), draw(B, D, seed=9), *weights(4, bias)]
    cell = with_gradients(lambda x, h, c, *rest: torch.lstm_cell(x, (h, c), *rest), given)
    assert_same(with_gradients(lstm_step, given), cell)


@with_and_without_bias
def test_gru_step_is_torchs_cell(bias):
    """Fails if value or gradient differ from torch.gru_cell."""
    given = [draw(B, I), draw(B, D), *weights(3, bias)]
    assert_same(with_gradients(gru_step, given), with_gradients(torch.gru_cell, given))


def reset_before(x, h, w_ih, w_hh, b_ih=None, b_hh=None):
    """The paper's equations number by number: no matrix product, no slices of stacked gates."""
    b_ih = torch.zeros(3 * D, dtype=torch.float64) if b_ih is None else b_ih
    b_hh = torch.zeros(3 * D, dtype=torch.float64) if b_hh is None else b_hh
    rows = []
    for b in range(len(x)):
        drive = lambda n, state, b=b: (  # noqa: E731
            sum(w_ih[n, j] * x[b, j] for j in range(x.shape[1]))
            + sum(w_hh[n, j] * state[j] for j in range(D))
            + b_ih[n]
            + b_hh[n]
        )
        r = [1 / (1 + torch.exp(-drive(d, h[b]))) for d in range(D)]
        z = [1 / (1 + torch.exp(-drive(D + d, h[b]))) for d in range(D)]
        reset = [r[d] * h[b, d] for d in range(D)]
        n = [torch.tanh(drive(2 * D + d, reset)) for d in range(D)]
        rows.append(torch.stack([(1 - z[d]) * n[d] + z[d] * h[b, d] for d in range(D)]))
    return torch.stack(rows)


@with_and_without_bias
def test_reset_before_is_the_papers_equation(bias):
    """Fails if r acts after the product, on another gate's rows, or on the bias."""
    given = [draw(B, I), draw(B, D), *weights(3, bias)]
    assert_same(with_gradients(gru_step_reset_before, given), with_gradients(reset_before, given))


def test_the_two_forms_of_the_gru_differ_with_the_same_weights():
    """Fails if one were the other in disguise: chapter 05 says that weights do not travel between them."""
    given = [draw(B, I), draw(B, D), *weights(3, bias=False)]
    gap = (gru_step(*given) - gru_step_reset_before(*given)).abs().max().item()
    assert 0.03 < gap < 1
    layer, paper = make(GRU), make(ResetBeforeGRU)
    paper.load_state_dict(layer.state_dict())
    x = 2 * draw(B, T, I)
    assert (layer(x)[0] - paper(x)[0]).abs().max() > 0.03


# --- ResetBeforeGRU -------------------------------------------------------------


@pytest.mark.parametrize(("lengths", "bias"), [(None, False), (LENGTHS, True)], ids=["whole", "lengths"])
def test_the_papers_layer_is_a_plain_loop(lengths, bias):
    """Fails if the layer loops over another equation, in another order, or past a sequence's end."""
    layer = make(ResetBeforeGRU, bias=bias, bidirectional=True)
    names = ["weight_ih", "weight_hh", *(["bias_ih", "bias_hh"] if bias else [])]

    def by_hand(x, state, *_):
        rows, last = [], []
        for b, length in enumerate(lengths or [T] * B):
            output = [[None, None] for _ in range(length)]
            for way, suffix in enumerate(("_l0", "_l0_reverse")):
                own = [getattr(layer, name + suffix) for name in names]
                h = state[way, b : b + 1]
                for t in reversed(range(length)) if way else range(length):
                    h = output[t][way] = reset_before(x[b : b + 1, t], h, *own)
                last.append(h)
            rows.append(torch.cat([torch.cat([torch.cat(two, 1) for two in output]), x.new_zeros(T - length, 2 * D)]))
        return torch.stack(rows), torch.stack([torch.cat(last[way::2]) for way in (0, 1)])

    given = [draw(B, T, I), draw(2, B, D)]
    run = lambda *inputs: layer(*inputs, lengths)  # noqa: E731
    assert_same(with_gradients(run, given), with_gradients(by_hand, given))
    results = [[*run(*given)], [*by_hand(*given)]]
    gradients = [
        torch.autograd.grad(sum(value.square().sum() for value in result), list(layer.parameters()))
        for result in results
    ]
    assert_same(*gradients)


def test_the_papers_layer_step_by_step():
    """Fails if `step` takes torch's cell, which computes the other form."""
    layer = make(ResetBeforeGRU, num_layers=2)
    x, state = draw(B, T, I), draw(2, B, D)
    want, last = layer(x, state)
    for t in range(T):
        output, state = layer.step(x[:, t], state)
        assert_same(output, want[:, t])
    assert_same(state, last)


# --- gate_values ----------------------------------------------------------------


@with_and_without_bias
def test_an_lstms_gate_values_are_what_the_layer_does(bias):
    """Fails if gate_values shows other gates than those that made the output, or swaps two of them."""
    layer, x = make(LSTM, bias=bias), 2 * draw(B, T, I)
    inside, (output, (h_n, c_n)) = layer.gate_values(x), layer(x)
    assert list(inside) == list("ifgoch")
    assert_same(inside["h"], output)
    assert_same([inside["h"][:, -1], inside["c"][:, -1]], [h_n[0], c_n[0]])
    before = torch.cat([torch.zeros(B, 1, D), inside["h"][:, :-1]], 1)
    sums = x @ layer.weight_ih_l0.T + before @ layer.weight_hh_l0.T
    sums = sums + layer.bias_ih_l0 + layer.bias_hh_l0 if bias else sums
    for name, start in (("i", 0), ("f", D), ("g", 2 * D), ("o", 3 * D)):
        gate = sums[..., start : start + D]
        assert_same(inside[name], gate.tanh() if name == "g" else gate.sigmoid())


@with_and_without_bias
def test_a_grus_gate_values_are_what_the_layer_does(bias):
    """Fails if gate_values shows other gates than those that made the output, or swaps two of them."""
    layer, x = make(GRU, bias=bias), 2 * draw(B, T, I)
    inside, (output, h_n) = layer.gate_values(x), layer(x)
    assert list(inside) == list("rznh")
    assert_same(inside["h"], output)
    assert_same(inside["h"][:, -1], h_n[0])
    before = torch.cat([torch.zeros(B, 1, D), inside["h"][:, :-1]], 1)
    from_input, from_state = x @ layer.weight_ih_l0.T, before @ layer.weight_hh_l0.T
    if bias:
        from_input, from_state = from_input + layer.bias_ih_l0, from_state + layer.bias_hh_l0
    (x_r, x_z, x_n), (h_r, h_z, h_n) = from_input.split(D, -1), from_state.split(D, -1)
    assert_same(inside["r"], (x_r + h_r).sigmoid())
    assert_same(inside["z"], (x_z + h_z).sigmoid())
    assert_same(inside["n"], (x_n + inside["r"] * h_n).tanh())


def test_the_papers_gate_values_are_what_the_layer_does():
    """Fails if gate_values shows the gates of the other equation."""
    layer, x = make(ResetBeforeGRU), 2 * draw(B, T, I)
    inside, other = layer.gate_values(x), GRU.gates
    assert_same(inside["h"], layer(x)[0])
    before = torch.cat([torch.zeros(B, 1, D), inside["h"][:, :-1]], 1)
    assert_same(inside["h"], (1 - inside["z"]) * inside["n"] + inside["z"] * before)
    after = [other(F.linear(x[:, t], layer.weight_ih_l0, layer.bias_ih_l0), before[:, t], *layer.all_weights[0][1::2])
             for t in range(T)]  # fmt: skip
    assert_same(inside["r"], torch.stack([r for r, _, _ in after], 1))
    assert (inside["n"] - torch.stack([n for _, _, n in after], 1)).abs().max() > 0.01


# --- set_forget_bias ------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bidirectional": True}], ids=["one", "stacked"])
@pytest.mark.parametrize("kind", [LSTM, nn.LSTM])
def test_the_forget_bias_is_set_and_nothing_else(kind, options):
    """Fails if a layer or a direction is left out, the sum is doubled, or another gate is touched."""
    lstm = make(kind, **options)
    before = {name: value.clone() for name, value in lstm.state_dict().items()}
    assert lstm_gru.set_forget_bias(lstm, 1.5) is lstm
    for name, value in lstm.state_dict().items():
        want = before[name]
        if "bias" in name:
            want[D : 2 * D] = 1.5 if "bias_ih" in name else 0.0
        assert torch.equal(value, want)
    assert len([name for name in before if "bias_ih" in name]) == (4 if options else 1)
    assert all(parameter.requires_grad and parameter.is_leaf for parameter in lstm.parameters())


@pytest.mark.parametrize(("value", "gate"), [(0.0, 0.5), (1.0, 0.7310585786300049), (5.0, 0.9933071490757153)])
def test_the_forget_gate_of_an_empty_state_is_the_sigmoid_of_the_bias(value, gate):
    """Fails if the gate that the bias belongs to is not the one that keeps the cell."""
    lstm = lstm_gru.set_forget_bias(make(LSTM), value)
    inside = lstm.gate_values(torch.zeros(B, 1, I, dtype=torch.float64))
    assert_same(inside["f"], torch.full((B, 1, D), gate, dtype=torch.float64))
    _, (_, c) = lstm(torch.zeros(B, 1, I, dtype=torch.float64), (torch.zeros(1, B, D).double(), draw(1, B, D)))
    assert_same(c - inside["c"].transpose(0, 1), gate * draw(1, B, D))


def test_the_forget_bias_of_a_projected_lstm():
    """Fails if torch.nn.LSTM's fifth weight is taken for a bias."""
    lstm = lstm_gru.set_forget_bias(nn.LSTM(I, D, proj_size=2), 1.0)
    assert (lstm.bias_ih_l0 + lstm.bias_hh_l0)[D : 2 * D].tolist() == [1.0] * D


# --- unrolled_weights -----------------------------------------------------------


def test_unrolled_weights_by_hand():
    """Fails if a product starts one step early or late, or z and 1 - z change places."""
    z = torch.tensor([0.5, 0.25, 0.8], dtype=torch.float64).view(1, 3, 1)
    want = [
        [0.5, 0.5, 0, 0],
        [0.5 * 0.25, 0.5 * 0.25, 0.75, 0],
        [0.5 * 0.25 * 0.8, 0.5 * 0.25 * 0.8, 0.75 * 0.8, 0.2],
    ]
    found = lstm_gru.unrolled_weights(z)
    assert found.shape == (1, 3, 4, 1)
    assert_same(found.squeeze(), torch.tensor(want, dtype=torch.float64))


@pytest.mark.parametrize("h_0", [torch.zeros(B, D, dtype=torch.float64), draw(B, D)], ids=["zero", "state"])
def test_unrolled_weights_rebuild_the_states_of_a_gru(h_0):
    """Fails if h_0's share is lost, a candidate is counted at another step, or units share a weight."""
    layer, x = make(GRU), 2 * draw(B, T, I)
    h, gates = h_0, []
    for x_t in x.unbind(1):
        gates.append(gru_gates(x_t, h, *layer.all_weights[0]))
        _, z, n = gates[-1]
        h = (1 - z) * n + z * h
    z, n = (torch.stack([gate[k] for gate in gates], 1) for k in (1, 2))
    summands = torch.cat([h_0[:, None], n], 1)  # (B, T + 1, D)
    weights = lstm_gru.unrolled_weights(z)
    states = (weights * summands[:, None]).sum(2)
    assert_same(states, layer(x, h_0[None])[0])
    assert_same(weights.sum(2), torch.ones(B, T, D, dtype=torch.float64))
    assert (weights >= 0).all()
    assert (weights[:, torch.arange(T)[:, None] + 1 < torch.arange(T + 1)] == 0).all()  # nothing of what comes later
    if not h_0.any():
        inside = layer.gate_values(x)
        assert_same([inside["z"], inside["n"]], [z, n])


# --- gradients by finite differences --------------------------------------------


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lstm_step, [(2, 3), (2, 1), (2, 1), (4, 3), (4, 1), (4,), (4,)]),
        (gru_step, [(2, 3), (2, 1), (3, 3), (3, 1), (3,), (3,)]),
        (gru_step_reset_before, [(2, 3), (2, 1), (3, 3), (3, 1), (3,), (3,)]),
        (lambda z: lstm_gru.unrolled_weights(z.sigmoid()), [(2, 4, 3)]),
    ],
    ids=["lstm", "gru", "before", "unrolled"],
)
def test_gradients_of_the_equations_are_finite_differences(function, shapes):
    """Fails if an in-place operation or a cut graph falsifies a gradient."""
    given = [draw(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(function, given)


@pytest.mark.parametrize(
    ("kind", "backend"),
    [(kind, backend) for kind in (RNN, LSTM, GRU) for backend in ("fused", "loop")] + [(ResetBeforeGRU, "loop")],
)
def test_gradients_of_the_layers_are_finite_differences(kind, backend):
    """Fails if a gradient is not the slope of the output, wrt input, state and every parameter, with padding."""
    layer = make(kind, 2, 3, bidirectional=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(x, h, c, *values):
        state = (h, c) if kind is LSTM else h + 0 * c
        output, state = torch.func.functional_call(
            layer, dict(zip(names, values, strict=True)), (x, state), {"lengths": [3, 1], "backend": backend}
        )
        return (output, *(state if kind is LSTM else [state]))

    given = [draw(2, 3, 2), draw(2, 2, 3), draw(2, 2, 3, seed=3), *(value.detach() for value in layer.parameters())]
    assert torch.autograd.gradcheck(run, [value.clone().requires_grad_() for value in given])


# --- errors ---------------------------------------------------------------------

SEQUENCE = draw(B, T, I)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: make(ResetBeforeGRU)(SEQUENCE, backend="fused"),
            "backend must be one of 'loop', got 'fused'",
        ),
        (
            lambda: make(ResetBeforeGRU).step(SEQUENCE[:, 0], backend="fused"),
            "backend must be one of 'loop', got 'fused'",
        ),
        (lambda: make(ResetBeforeGRU)(SEQUENCE[0]), r"x must be a tensor \(B, T, 6\), got one of shape \(7, 6\)"),
        (
            lambda: make(LSTM, num_layers=2).gate_values(SEQUENCE),
            r"one layer in one direction, got LSTM\(6, 5, num_layers=2\)",
        ),
        (
            lambda: make(GRU, bidirectional=True).gate_values(SEQUENCE),
            r"one layer in one direction, got GRU\(6, 5, bidirectional=True\)",
        ),
        (lambda: make(LSTM).gate_values(SEQUENCE[0]), r"x must be a tensor \(B, T, 6\), got one of shape \(7, 6\)"),
        (
            lambda: make(GRU).gate_values(SEQUENCE[..., :2]),
            r"x must be a tensor \(B, T, 6\), got one of shape \(3, 7, 2\)",
        ),
        (lambda: make(GRU).gate_values(SEQUENCE[:, :0]), r"x has shape \(3, 0, 6\): an empty batch or no steps"),
        (lambda: make(LSTM).gate_values(SEQUENCE.float()), "x must be torch.float64, got torch.float32"),
        (lambda: lstm_gru.set_forget_bias(make(LSTM, bias=False), 1.0), "bias=False: it has no forget bias"),
        (lambda: lstm_gru.unrolled_weights(draw(B, T)), r"z must be a tensor \(B, T, D\), got one of shape \(3, 7\)"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()
