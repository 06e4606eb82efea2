"""Recurrent layers, both paths, against torch.nn: outputs, states and all gradients.

What RNN, LSTM and GRU share is tested here for all of them; test_gated.py has what the gates add.

Sizes are pairwise different: B = 3, T = 7, I = 6, D = 5, two directions give 10. Tolerance 1e-10 in float64: a number
here is a sum of at most B T D = 105 products near 1, so rounding is near 1e-14, and a wrong term is above 1e-4.
"""

import copy
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from course_lib import functional, lstm_gru, rnn
from course_lib.lstm_gru import GRU, LSTM
from course_lib.rnn import RNN
from course_lib.text import length_mask

B, T, I, D = 3, 7, 6, 5  # noqa: E741
LENGTHS = [4, 7, 1]  # not sorted; one is whole, one has a single step
TINY = {"rtol": 1e-10, "atol": 1e-10}
KINDS = {
    "tanh": (RNN, nn.RNN, {}),
    "relu": (RNN, nn.RNN, {"nonlinearity": "relu"}),
    "lstm": (LSTM, nn.LSTM, {}),
    "gru": (GRU, nn.GRU, {}),
}
SHAPES = [
    {"num_layers": num_layers, "bidirectional": bidirectional}
    for num_layers in (1, 2, 3)
    for bidirectional in (False, True)
]
every_kind = pytest.mark.parametrize("kind", KINDS)
every_backend = pytest.mark.parametrize("backend", ["fused", "loop"])
every_shape = pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: "-".join(map(str, shape.values())))


def draw(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=dtype)


def pair(kind, dtype=torch.float64, device=None, **options):
    """Our layer and torch's with the same random weights."""
    ours, theirs, fixed = KINDS[kind]
    torch.manual_seed(1)
    reference = theirs(I, D, batch_first=True, dtype=dtype, device=device, **fixed, **options)
    layer = ours(I, D, dtype=dtype, device=device, **fixed, **options)
    layer.load_state_dict(reference.state_dict())
    return layer, reference


def parts(state):
    return [state] if isinstance(state, torch.Tensor) else list(state)


def whole(state):
    return state[0] if len(state) == 1 else tuple(state)


def first_state(layer, seed=5, dtype=torch.float64):
    """A state that is not zero, for the LSTM a pair of different tensors."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    return whole([draw(rows, B, D, seed=seed + 50 * n, dtype=dtype) for n in range(1 + (layer.mode == "LSTM"))])


def everything(run, layer, x, state=None):
    """Output, state and the gradients of a weighted sum of both: wrt input, initial state and every parameter."""
    x = x.detach().clone().requires_grad_()
    before = [] if state is None else [part.clone().requires_grad_() for part in parts(state)]
    output, after = run(x, whole(before) if before else None)
    found = [output, *parts(after)]
    total = sum((value * draw(*value.shape, seed=70 + n).to(value)).sum() for n, value in enumerate(found))
    return found + list(torch.autograd.grad(total, [x, *before, *layer.parameters()]))


def assert_same(found, wanted):
    torch.testing.assert_close(found, wanted, **TINY)


def calling(layer, **call):
    return lambda x, state: layer(x, state, **call)


def packed(reference, lengths):
    """torch.nn on a packed batch: torch's own answer to unequal lengths."""

    def run(x, state):
        batch = pack_padded_sequence(x, torch.tensor(lengths), batch_first=True, enforce_sorted=False)
        output, after = reference(batch, state)
        return pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])[0], after

    return run


def one_at_a_time(layer, lengths):
    """Each sequence alone, without its padding."""

    def run(x, state):
        outputs, states = [], []
        for b, length in enumerate(lengths):
            own = None if state is None else whole([part[:, b : b + 1].contiguous() for part in parts(state)])
            output, after = layer(x[b : b + 1, :length], own)
            outputs.append(F.pad(output, (0, 0, 0, x.shape[1] - length)))
            states.append(parts(after))
        return torch.cat(outputs), whole([torch.cat(after, 1) for after in zip(*states, strict=True)])

    return run


# --- one step -------------------------------------------------------------------


def rnn_step(x, h, weight_ih, weight_hh, bias_ih=None, bias_hh=None, nonlinearity="tanh"):
    """`rnn.rnn_step` with the arguments of torch's cell."""
    from_input = F.linear(x, weight_ih, None if bias_ih is None else bias_ih + bias_hh)
    return rnn.rnn_step(from_input, h, weight_hh, nonlinearity)


def test_a_step_by_hand():
    """Fails if a product is transposed, a bias is missing or scaled, or the nonlinearity is another."""
    x, h = [[0.5, -1.0]], [[0.3, 0.2, -0.4]]
    w_ih, w_hh = [[0.1, 0.2], [0.3, -0.4], [0.5, 0.6]], [[0.7, 0.1, 0.0], [0.2, -0.3, 0.4], [-0.5, 0.6, 0.8]]
    b_ih, b_hh = [0.01, 0.02, 0.03], [-0.1, 0.2, 0.3]
    sums = [
        sum(a * b for a, b in zip(x[0], w_ih[d], strict=True))
        + sum(a * b for a, b in zip(h[0], w_hh[d], strict=True))
        + b_ih[d]
        + b_hh[d]
        for d in range(3)
    ]
    assert min(sums) < 0 < max(sums)  # both sides of relu
    given = [torch.tensor(value, dtype=torch.float64) for value in (x, h, w_ih, w_hh, b_ih, b_hh)]
    assert rnn_step(*given).tolist() == [pytest.approx([math.tanh(s) for s in sums], abs=1e-14)]
    assert rnn_step(*given, nonlinearity="relu").tolist() == [pytest.approx([max(s, 0) for s in sums], abs=1e-14)]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("nonlinearity", ["tanh", "relu"])
def test_a_step_is_torchs_cell(nonlinearity, bias):
    """Fails if value or gradient differ from torch's cell."""
    cell = {"tanh": torch.rnn_tanh_cell, "relu": torch.rnn_relu_cell}[nonlinearity]
    shapes = [(B, I), (B, D), (D, I), (D, D), *([(D,), (D,)] if bias else [])]
    given = [draw(*shape, seed=n).requires_grad_() for n, shape in enumerate(shapes)]
    results = [
        (h, *torch.autograd.grad((h * draw(B, D)).sum(), given))
        for h in (rnn_step(*given, nonlinearity=nonlinearity), cell(*given))
    ]
    assert_same(*results)


def test_scan_by_hand():
    """Fails if the mask does not hold the state, padding is not 0, or an output stands at another step's place."""
    numbers = torch.tensor([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]]).unsqueeze(2)  # (T, B, 1)
    mask = torch.tensor([[True, True], [True, False], [True, False]]).unsqueeze(2)
    step = lambda x, h: (2 * h + x,)  # noqa: E731
    start = (torch.tensor([[1.0], [3.0]]),)
    output, (state,) = rnn.scan(step, numbers, start, mask)
    assert output.squeeze(2).tolist() == [[3, 16], [8, 0], [20, 0]]
    assert state.flatten().tolist() == [20, 16]
    output, (state,) = rnn.scan(step, numbers, start, mask, reverse=True)
    assert output.squeeze(2).tolist() == [[29, 16], [14, 0], [6, 0]]
    assert state.flatten().tolist() == [29, 16]


# --- against torch.nn -----------------------------------------------------------


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@every_shape
@every_kind
def test_both_paths_are_torch_nn_forward_and_backward(kind, shape, bias, with_state):
    """Fails if a weight, a direction, a layer's place in the state or a gradient is wrong in either path."""
    layer, reference = pair(kind, bias=bias, **shape)
    x, state = draw(B, T, I), first_state(layer) if with_state else None
    want = everything(calling(reference), reference, x, state)
    fused = everything(calling(layer, backend="fused"), layer, x, state)
    states = len(parts(first_state(layer)))
    assert all(map(torch.equal, fused[: 1 + states], want[: 1 + states]))  # the same kernel: bit for bit
    assert_same(fused, want)
    assert_same(everything(calling(layer, backend="loop"), layer, x, state), want)


@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no_grad"])
@every_shape
@every_kind
def test_the_fast_path_is_torch_nn_bit_for_bit_in_float32(kind, shape, grad):
    """Fails if the default leaves torch's kernel, with or without gradients, lengths or a state."""
    layer, reference = pair(kind, torch.float32, **shape)
    x = draw(B, T, I, dtype=torch.float32)
    with torch.set_grad_enabled(grad):
        for state in (None, first_state(layer, dtype=torch.float32)):
            for found, want in [
                (layer(x, state), reference(x, state)),
                (layer(x, state, LENGTHS), packed(reference, LENGTHS)(x, state)),
            ]:
                assert torch.equal(found[0], want[0])
                assert all(map(torch.equal, parts(found[1]), parts(want[1])))


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@every_shape
@every_kind
def test_unequal_lengths_four_ways(kind, shape, with_state):
    """Fails if padding reaches a state, backward starts in the padding, or h_n is that of step T."""
    layer, reference = pair(kind, **shape)
    x, state = draw(B, T, I), first_state(layer) if with_state else None
    want = everything(packed(reference, LENGTHS), reference, x, state)
    assert_same(everything(one_at_a_time(reference, LENGTHS), reference, x, state), want)
    for backend in ("fused", "loop"):
        found = everything(calling(layer, lengths=LENGTHS, backend=backend), layer, x, state)
        assert_same(found, want)
        padding = ~length_mask(LENGTHS, T)
        output, gradient = found[0], found[1 + len(parts(first_state(layer)))]
        assert gradient.shape == x.shape
        for values in (output, gradient):  # exactly 0 at padding, and elsewhere only where relu is off
            assert (values[padding] == 0).all()
            assert (values[~padding] != 0).any(1).all() or kind == "relu"


@every_backend
@every_kind
def test_what_stands_in_the_padding_does_not_matter(kind, backend):
    """Fails if one number of the padding is read; lengths come as a list or as a tensor of any integer type."""
    layer, _ = pair(kind, num_layers=2, bidirectional=True)
    x = draw(B, T, I)
    other = torch.where(length_mask(LENGTHS, T)[..., None], x, 1000.0)
    for lengths in (LENGTHS, torch.tensor(LENGTHS), torch.tensor(LENGTHS, dtype=torch.int32)):
        found, want = layer(other, lengths=lengths, backend=backend), layer(x, lengths=LENGTHS, backend=backend)
        assert torch.equal(found[0], want[0])
        assert all(map(torch.equal, parts(found[1]), parts(want[1])))


@every_backend
@every_kind
def test_full_lengths_are_no_lengths(kind, backend):
    """Fails if giving the lengths changes a batch that has no padding."""
    layer, _ = pair(kind, num_layers=2, bidirectional=True)
    x, state = draw(B, T, I), first_state(layer)
    given = everything(calling(layer, lengths=[T] * B, backend=backend), layer, x, state)
    assert_same(given, everything(calling(layer, backend=backend), layer, x, state))


@every_kind
def test_a_batch_of_one_step(kind):
    """Fails if T = 1 or B = 1 is mistaken for a missing axis."""
    layer, reference = pair(kind, bidirectional=True)
    for x in (draw(B, 1, I), draw(1, T, I), draw(1, 1, I)):
        for backend in ("fused", "loop"):
            assert_same(
                everything(calling(layer, backend=backend), layer, x), everything(calling(reference), reference, x)
            )


@every_kind
def test_untrained_parameters_are_torch_nns(kind):
    """Fails if the initial weights have another distribution or order than torch's."""
    ours, theirs, fixed = KINDS[kind]
    torch.manual_seed(3)
    layer = ours(I, D, num_layers=2, bidirectional=True, **fixed)
    torch.manual_seed(3)
    reference = theirs(I, D, num_layers=2, bidirectional=True, **fixed)
    assert list(layer.state_dict()) == list(reference.state_dict())
    assert all(map(torch.equal, layer.parameters(), reference.parameters()))


# --- which path -----------------------------------------------------------------


class CalledError(Exception):
    pass


def stub(*args, **kwargs):
    raise CalledError


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("dropout", [0.0, 0.5])
@every_kind
def test_each_path_is_the_one_that_was_asked_for(kind, dropout, lengths, monkeypatch):
    """Fails if "fused" falls back to the loop, or the loop takes the kernel's result."""
    layer, _ = pair(kind, num_layers=2, dropout=dropout)
    with monkeypatch.context() as patch:
        patch.setattr(type(layer), "kernel", staticmethod(stub))
        layer(draw(B, T, I), lengths=lengths, backend="loop")
        with pytest.raises(CalledError):
            layer(draw(B, T, I), lengths=lengths)
    monkeypatch.setattr(type(layer), "loop", stub)
    layer(draw(B, T, I), lengths=lengths)
    with pytest.raises(CalledError):
        layer(draw(B, T, I), lengths=lengths, backend="loop")


STEPS = {
    "tanh": (rnn, "rnn_step"),
    "relu": (rnn, "rnn_step"),
    "lstm": (lstm_gru, "lstm_step"),
    "gru": (lstm_gru, "gru_step"),
}


@every_kind
def test_each_step_is_the_one_that_was_asked_for(kind, monkeypatch):
    """Fails if a step takes the equation in place of torch's cell, or the cell in place of the equation."""
    layer, _ = pair(kind)
    for owner, name, spared, hit in ((*STEPS[kind], "fused", "loop"), (type(layer), "cell", "loop", "fused")):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, staticmethod(stub))
            layer.step(draw(B, I), backend=spared)
            with pytest.raises(CalledError):
                layer.step(draw(B, I), backend=hit)


# --- the state ------------------------------------------------------------------


@pytest.mark.parametrize("with_state", [True, False], ids=["state", "zeros"])
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "plain"])
@pytest.mark.parametrize("num_layers", [1, 3])
@every_backend
@every_kind
def test_step_by_step_is_the_whole_pass(kind, backend, num_layers, bias, with_state):
    """Fails if a step loses a layer's state, or differs from the pass in value or gradient."""
    layer, reference = pair(kind, num_layers=num_layers, bias=bias)

    def steps(x, state):
        outputs = []
        for x_t in x.unbind(1):
            output, state = layer.step(x_t, state, backend)
            outputs.append(output)
        return torch.stack(outputs, 1), state

    x, state = draw(B, T, I), first_state(layer) if with_state else None
    assert_same(everything(steps, layer, x, state), everything(calling(reference), reference, x, state))


@pytest.mark.parametrize("num_layers", [1, 2])
@every_backend
@every_kind
def test_two_halves_with_the_state_carried_over_are_one_pass(kind, backend, num_layers):
    """Fails if the state that comes back is not the one to go on from, or cuts the gradient."""
    layer, reference = pair(kind, num_layers=num_layers)

    def halves(x, state):
        first, state = layer(x[:, :3], state, backend=backend)
        second, state = layer(x[:, 3:], state, backend=backend)
        return torch.cat([first, second], 1), state

    x, state = draw(B, T, I), first_state(layer)
    assert_same(everything(halves, layer, x, state), everything(calling(reference), reference, x, state))


@every_kind
def test_the_state_has_the_form_of_torchs(kind):
    """Fails if a tensor comes in a tuple, or the LSTM's pair as one tensor; what came may be given back as it is."""
    layer, reference = pair(kind, num_layers=2, bidirectional=True)
    x = draw(B, T, I)
    for backend in ("fused", "loop"):
        state = layer(x, backend=backend)[1]
        assert type(state) is type(reference(x)[1])
        assert [part.shape for part in parts(state)] == [(4, B, D)] * len(parts(state))
        layer(x, list(state) if isinstance(state, tuple) else state, backend=backend)


@every_backend
@every_kind
def test_inputs_are_left_as_they_were(kind, backend):
    """Fails if a path writes into the input, the state or the lengths."""
    layer, _ = pair(kind, num_layers=2)
    x, state, lengths = draw(B, T, I), first_state(layer), torch.tensor(LENGTHS)
    kept = [value.clone() for value in (x, *parts(state), lengths)]
    layer(x, state, lengths, backend=backend)
    layer.step(x[:, 0], state, backend=backend)
    assert all(map(torch.equal, kept, (x, *parts(state), lengths)))


# --- dropout --------------------------------------------------------------------


def test_dropout_sets_the_right_share_to_zero_and_keeps_the_mean():
    """Fails if the share is 1 - p, the rest is not enlarged, or an entry's gradient misses its own factor."""
    torch.manual_seed(0)
    n, p = 10_000, 0.3
    x = draw(n).requires_grad_()
    y = functional.dropout(x, p)
    share = (y == 0).double().mean().item()
    assert abs(share - p) < 5 * math.sqrt(p * (1 - p) / n)  # five standard errors
    factor = (y != 0).double() / (1 - p)
    torch.testing.assert_close(y, x * factor)
    torch.testing.assert_close(torch.autograd.grad(y.sum(), x)[0], factor)


def test_dropout_that_is_off_draws_nothing():
    """Fails if evaluation, or p = 0, uses up random numbers or makes a copy."""
    x, before = draw(4), torch.get_rng_state()
    assert functional.dropout(x, 0.5, training=False) is x
    assert functional.dropout(x, 0.0) is x
    assert torch.equal(torch.get_rng_state(), before)
    assert functional.dropout(x.bfloat16(), 0.5).dtype == torch.bfloat16


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@pytest.mark.parametrize("bidirectional", [False, True], ids=["one", "two"])
@every_kind
def test_dropout_acts_between_the_layers(kind, bidirectional, lengths):
    """Fails if it acts on the input or the output too, the paths draw other masks, or gradients miss the mask."""
    layer, _ = pair(kind, num_layers=2, dropout=0.4, bidirectional=bidirectional)
    directions = 2 if bidirectional else 1
    ours, _, fixed = KINDS[kind]
    below = ours(I, D, bidirectional=bidirectional, dtype=torch.float64, **fixed)
    above = ours(directions * D, D, bidirectional=bidirectional, dtype=torch.float64, **fixed)
    for own, name in ((below, "_l0"), (above, "_l1")):
        weights = {key.replace(name, "_l0"): value for key, value in layer.state_dict().items() if name in key}
        own.load_state_dict(weights)
    both = nn.ModuleList([below, above])

    def seeded(run):
        torch.manual_seed(11)
        return run()

    def by_hand(x, state):
        middle, first = below(x, whole([part[:directions] for part in parts(state)]), lengths)
        middle = middle * functional.dropout_mask(middle.shape, 0.4) / 0.6
        output, second = above(middle, whole([part[directions:] for part in parts(state)]), lengths)
        return output, whole([torch.cat(two) for two in zip(parts(first), parts(second), strict=True)])

    x, state = draw(B, T, I), first_state(layer)
    want = seeded(lambda: everything(by_hand, both, x, state))
    for backend in ("fused", "loop"):
        run = calling(layer, lengths=lengths, backend=backend)
        assert_same(seeded(lambda run=run: everything(run, layer, x, state)), want)
        assert not torch.equal(run(x, state)[0], run(x, state)[0])  # a mask of its own each time


@pytest.mark.parametrize("way", ["fused", "loop", "step"])
def test_dropout_in_a_layer_has_the_right_share(way):
    """Fails if the layer's p is not the share of what the upper layer misses: here it passes its input through."""
    torch.manual_seed(0)
    layer = RNN(I, 50, num_layers=2, nonlinearity="relu", dropout=0.2)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
        layer.bias_ih_l0.fill_(1.0)  # below: 1 everywhere
        layer.weight_ih_l1.copy_(torch.eye(50))
    x = torch.zeros(20, 10, I)
    if way == "step":
        output = torch.stack([layer.step(x[:, t])[0] for t in range(10)])
    else:
        output, _ = layer(x, backend=way)
    assert sorted(output.unique().tolist()) == [0, 1.25]
    assert abs((output == 0).float().mean().item() - 0.2) < 5 * math.sqrt(0.2 * 0.8 / 10_000)


@every_backend
@every_kind
def test_no_dropout_in_evaluation(kind, backend):
    """Fails if evaluation drops anything or draws a random number: it is torch.nn's evaluation."""
    layer, reference = pair(kind, num_layers=2, dropout=0.9)
    x, state = draw(B, T, I), first_state(layer)
    layer.eval(), reference.eval()
    before = torch.get_rng_state()
    assert_same(
        everything(calling(layer, backend=backend), layer, x, state),
        everything(calling(reference), reference, x, state),
    )
    layer.step(x[:, 0], state, backend)
    assert torch.equal(torch.get_rng_state(), before)


# --- being a module -------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"num_layers": 2, "bias": False, "dropout": 0.5, "bidirectional": True}])
@every_kind
def test_a_layer_prints_as_what_its_constructor_takes(kind, options):
    """Fails if repr shows an argument that the constructor refuses, or hides one that was given."""
    ours, _, fixed = KINDS[kind]
    shown = repr(ours(I, D, **fixed, **options))
    again = eval(shown, {ours.__name__: ours})
    assert repr(again) == shown
    assert all(getattr(again, name) == value for name, value in (fixed | options).items())


@every_kind
def test_dropout_in_a_single_layer_does_what_torch_does(kind):
    """Fails if it is refused, is silent, or drops something: there is no place between layers."""
    ours, _, fixed = KINDS[kind]
    with pytest.warns(UserWarning, match="expects num_layers greater than 1"):
        layer = ours(I, D, dropout=0.5, dtype=torch.float64, **fixed)
    x = draw(B, T, I)
    assert torch.equal(layer(x)[0], layer.eval()(x)[0])


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
@every_kind
def test_a_layer_can_be_compiled(kind, lengths):
    """Fails if torch.compile meets something that it cannot follow, with or without gradients of the input."""
    torch.compiler.reset()
    layer, _ = pair(kind, torch.float32, bidirectional=True)
    compiled = torch.compile(calling(layer, lengths=lengths), fullgraph=True, backend="aot_eager")
    x = draw(B, T, I, dtype=torch.float32)
    torch.testing.assert_close(
        everything(compiled, layer, x), everything(calling(layer, lengths=lengths), layer, x)
    )  # with a gradient of the input
    found, wanted = (run(x, None)[0].square().sum() for run in (compiled, calling(layer, lengths=lengths)))
    weights = list(layer.parameters())
    torch.testing.assert_close(torch.autograd.grad(found, weights), torch.autograd.grad(wanted, weights))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x, None), layer(x, None, lengths))


@every_kind
def test_a_copy_is_equal_and_its_own(kind):
    """Fails if a deep copy shares weights with the original, or loses some."""
    layer, reference = pair(kind, num_layers=2, bidirectional=True)
    twin, x = copy.deepcopy(layer), draw(B, T, I)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.zero_()
    for backend in ("fused", "loop"):
        assert_same(twin(x, backend=backend)[0], reference(x)[0])
        assert layer(x, backend=backend)[0].abs().max() < 0.5 * twin(x, backend=backend)[0].abs().max()


@every_kind
def test_weights_travel_to_torch_nn_and_through_a_file(kind, tmp_path):
    """Fails if names or shapes of the parameters differ from torch.nn's in either direction."""
    _, reference = pair(kind, num_layers=2, bidirectional=True)
    ours, _, fixed = KINDS[kind]
    layer = ours(I, D, 2, bidirectional=True, dtype=torch.float64, **fixed)
    torch.save(layer.state_dict(), tmp_path / "weights.pt")
    reference.load_state_dict(torch.load(tmp_path / "weights.pt", weights_only=True))
    x = draw(B, T, I)
    assert torch.equal(layer(x)[0], reference(x)[0])


@every_backend
@every_kind
def test_a_layer_changes_its_dtype(kind, backend):
    """Fails if a weight stays behind in float32."""
    layer, reference = pair(kind, torch.float32, num_layers=2, bidirectional=True)
    x = draw(B, T, I)
    assert_same(
        layer.to(torch.float64)(x, lengths=LENGTHS, backend=backend)[0], packed(reference.double(), LENGTHS)(x, None)[0]
    )


@every_backend
@every_kind
def test_bfloat16_autocast(kind, backend):
    """Fails if a path breaks under autocast, or is wrong by more than its rounding.

    The weights' products round to 8 bits, 2**-9 relative each; states are below 2 and a step does not enlarge an
    error by much, so seven steps and two layers stay below 14 * 2**-8 = 0.055.
    """
    layer, _ = pair(kind, torch.float32, num_layers=2, bidirectional=True)
    x = draw(B, T, I, dtype=torch.float32)
    for lengths in (None, LENGTHS):
        want, _ = layer(x, lengths=lengths)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found, state = layer(x, lengths=lengths, backend=backend)
            found, _ = layer(x, state, lengths, backend=backend)  # the state's dtype may be another than x's
            found, _ = layer(x.bfloat16(), None, lengths, backend=backend)
        assert not torch.equal(found.float(), want)  # something was rounded
        torch.testing.assert_close(found.float(), want, rtol=0, atol=0.055)
        gradients = torch.autograd.grad(found.float().square().sum(), list(layer.parameters()))
        wanted = torch.autograd.grad(want.square().sum(), list(layer.parameters()))
        for got, full in zip(gradients, wanted, strict=True):
            assert got.dtype == torch.float32
            assert (got - full).norm() < 0.1 * full.norm()


# --- errors ---------------------------------------------------------------------

X, X_T = draw(B, T, I), draw(B, I)
HIDDEN = draw(2, B, D)
DOUBLE = {name: pair(name, num_layers=2)[0] for name in ("tanh", "lstm", "gru")}
TWO_WAYS = pair("gru", bidirectional=True)[0]
META = torch.device("meta")


@pytest.mark.parametrize("backend", ["fused", "loop"])
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda **i: DOUBLE["gru"](X[0], **i), r"x must be a tensor \(B, T, 6\), got one of shape \(7, 6\)"),
        (lambda **i: DOUBLE["gru"](X[None], **i), r"x must be a tensor \(B, T, 6\), got one of shape \(1, 3, 7, 6\)"),
        (lambda **i: DOUBLE["gru"](X[..., :4], **i), r"x must be a tensor \(B, T, 6\), got one of shape \(3, 7, 4\)"),
        (lambda **i: DOUBLE["gru"](X.tolist(), **i), r"x must be a torch tensor \(B, T, 6\), got builtins.list"),
        (lambda **i: DOUBLE["gru"](X.numpy(), **i), r"x must be a torch tensor \(B, T, 6\), got numpy.ndarray"),
        (lambda **i: DOUBLE["lstm"](X[:0], **i), r"x has shape \(0, 7, 6\): an empty batch or no steps"),
        (lambda **i: DOUBLE["lstm"](X[:, :0], **i), r"x has shape \(3, 0, 6\): an empty batch or no steps"),
        (lambda **i: DOUBLE["tanh"](X.float(), **i), "x must be torch.float64, got torch.float32"),
        (lambda **i: DOUBLE["tanh"](X.to(META), **i), "x is on meta, wanted cpu"),
        (
            lambda **i: DOUBLE["gru"](X, HIDDEN[:1], **i),
            r"state must be a tensor \(2, 3, 5\), got one of shape \(1, 3, 5\)",
        ),
        (
            lambda **i: DOUBLE["gru"](X, HIDDEN[:, :2], **i),
            r"state must be a tensor \(2, 3, 5\), got one of shape \(2, 2, 5\)",
        ),
        (
            lambda **i: DOUBLE["gru"](X, HIDDEN[..., 1:], **i),
            r"state must be a tensor \(2, 3, 5\), got one of shape \(2, 3, 4\)",
        ),
        (
            lambda **i: DOUBLE["gru"](X, HIDDEN[0], **i),
            r"state must be a tensor \(2, 3, 5\), got one of shape \(3, 5\)",
        ),
        (lambda **i: TWO_WAYS(X, HIDDEN[:1], **i), r"state must be a tensor \(2, 3, 5\), got one of shape \(1, 3, 5\)"),
        (lambda **i: DOUBLE["gru"](X, HIDDEN.float(), **i), "state must be torch.float64, got torch.float32"),
        (lambda **i: DOUBLE["gru"](X, HIDDEN.to(META), **i), "state is on meta, wanted cpu"),
        (lambda **i: DOUBLE["lstm"](X, HIDDEN, **i), r"a pair \(h, c\) of tensors \(2, 3, 5\), got Tensor$"),
        (
            lambda **i: DOUBLE["lstm"](X, (HIDDEN,) * 3, **i),
            r"a pair \(h, c\) of tensors .*, got Tensor, Tensor, Tensor",
        ),
        (lambda **i: DOUBLE["lstm"](X, (), **i), r"a pair \(h, c\) of tensors \(2, 3, 5\), got $"),
        (lambda **i: DOUBLE["lstm"](X, (HIDDEN, None), **i), r"state must be a torch tensor .*, got builtins.NoneType"),
        (lambda **i: DOUBLE["lstm"](X, 0.0, **i), r"a pair \(h, c\) of tensors \(2, 3, 5\), got float"),
        (
            lambda **i: DOUBLE["lstm"](X, (HIDDEN, HIDDEN[1:]), **i),
            r"a tensor \(2, 3, 5\), got one of shape \(1, 3, 5\)",
        ),
        (
            lambda **i: DOUBLE["gru"](X, (HIDDEN, HIDDEN), **i),
            r"must be one tensor \(2, 3, 5\), got Tensor, Tensor",
        ),
        (lambda **i: DOUBLE["gru"](X, lengths=[4, 8, 1], **i), "lengths must be from 1 to T = 7, got 1 to 8"),
        (lambda **i: DOUBLE["gru"](X, lengths=[4, 0, 7], **i), "lengths must be from 1 to T = 7, got 0 to 7"),
        (lambda **i: DOUBLE["gru"](X, lengths=[4, 7], **i), r"lengths must be 3 whole numbers, got .* \(2,\)"),
        (lambda **i: DOUBLE["gru"](X, lengths=[[4], [7], [1]], **i), r"must be 3 whole numbers, got .* \(3, 1\)"),
        (lambda **i: DOUBLE["gru"](X, lengths=[4.0, 7.0, 1.0], **i), "must be 3 whole numbers, .* torch.float32"),
        (lambda **i: DOUBLE["gru"](X, lengths=[True] * 3, **i), "must be 3 whole numbers, .* torch.bool"),
        (lambda **i: DOUBLE["gru"].step(X, **i), r"x must be a tensor \(B, 6\), got one of shape \(3, 7, 6\)"),
        (lambda **i: DOUBLE["gru"].step(X_T[:, :4], **i), r"x must be a tensor \(B, 6\), got one of shape \(3, 4\)"),
        (lambda **i: DOUBLE["gru"].step(X_T[:0], **i), r"x has shape \(0, 6\): an empty batch"),
        (
            lambda **i: DOUBLE["gru"].step(X_T, HIDDEN[:1], **i),
            r"state must be a tensor \(2, 3, 5\), got one of shape \(1, 3, 5\)",
        ),
        (lambda **i: DOUBLE["gru"].step(X_T.float(), **i), "x must be torch.float64, got torch.float32"),
        (lambda **i: DOUBLE["lstm"].step(X_T, HIDDEN, **i), r"a pair \(h, c\) of tensors .*, got Tensor$"),
        (lambda **i: TWO_WAYS.step(X_T, **i), "bidirectional layer has no single step"),
    ],
)
def test_bad_input_is_named(call, message, backend):
    """Fails if bad input reaches a path, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call(backend=backend)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: DOUBLE["gru"](X, backend="fast"), "backend must be one of 'fused', 'loop', got 'fast'"),
        (lambda: DOUBLE["gru"].step(X_T, backend=None), "backend must be one of 'fused', 'loop', got None"),
        (lambda: RNN(I, D, nonlinearity="sigmoid"), "nonlinearity must be one of 'tanh', 'relu', got 'sigmoid'"),
        (lambda: functional.dropout(X, 1.0), "dropout must be from 0 to below 1, got 1.0"),
        (lambda: functional.dropout(X, -0.1, training=False), "dropout must be from 0 to below 1, got -0.1"),
    ],
)
def test_an_unknown_choice_is_named(call, message):
    """Fails if an unknown choice takes a default, or a share that makes no sense is taken."""
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("layer", [RNN, LSTM, GRU, lstm_gru.ResetBeforeGRU])
@pytest.mark.parametrize(
    ("sizes", "options", "message"),
    [
        ((0, D), {}, "input_size must be a whole number of at least 1, got 0"),
        ((I, -1), {}, "hidden_size must be a whole number of at least 1, got -1"),
        ((I, 5.0), {}, "hidden_size must be a whole number of at least 1, got 5.0"),
        ((I, D, 0), {}, "num_layers must be a whole number of at least 1, got 0"),
        ((I, D, 2), {"dropout": 1.0}, "dropout must be from 0 to below 1, got 1.0"),
        ((I, D, 2), {"dropout": -0.5}, "dropout must be from 0 to below 1, got -0.5"),
    ],
)
def test_bad_sizes_are_named(layer, sizes, options, message):
    """Fails if a layer is made of sizes or a dropout that cannot work."""
    with pytest.raises(ValueError, match=message):
        layer(*sizes, **options)


# --- on a GPU -------------------------------------------------------------------

needs_gpu = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


class TestOnTheGpu:
    # In float64, where TF32 (10 bits of a float32 product's factors) plays no part.
    pytestmark = needs_gpu

    @pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "lengths"])
    @every_shape
    @every_kind
    def test_both_paths_are_torch_nn(self, kind, shape, lengths):
        """Fails if cuDNN's weights or our loop differ from the CPU's torch.nn, forward or backward."""
        layer, reference = pair(kind, **shape)
        x, state = draw(B, T, I), first_state(layer)
        run = calling(reference) if lengths is None else packed(reference, lengths)
        want = everything(run, reference, x, state)
        layer = layer.cuda()
        on_gpu = whole([part.cuda() for part in parts(state)])
        for given in (lengths, None if lengths is None else torch.tensor(lengths, device="cuda")):
            for backend in ("fused", "loop"):
                found = everything(calling(layer, lengths=given, backend=backend), layer, x.cuda(), on_gpu)
                assert_same([value.cpu() for value in found], want)

    @every_backend
    @every_kind
    def test_step_by_step_is_the_whole_pass(self, kind, backend):
        """Fails if torch's cell on the GPU is given another order of gates or state."""
        layer = pair(kind, num_layers=2)[0].cuda()
        x = draw(B, T, I).cuda()
        want, last = layer(x)
        state, outputs = None, []
        for x_t in x.unbind(1):
            output, state = layer.step(x_t, state, backend)
            outputs.append(output)
        assert_same([torch.stack(outputs, 1), *parts(state)], [want, *parts(last)])

    @every_kind
    def test_the_paths_agree_in_float32_without_tf32(self, kind, monkeypatch):
        """Fails if the two paths differ by more than float32's rounding, once cuDNN keeps all bits."""
        monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
        layer = pair(kind, torch.float32, num_layers=2, bidirectional=True)[0].cuda()
        x = draw(B, T, I, dtype=torch.float32).cuda()
        torch.testing.assert_close(layer(x, backend="loop"), layer(x))

    def test_dropout_of_the_kernel_and_of_the_loop(self):
        """Fails if one path drops in evaluation, or not in training."""
        layer = pair("lstm", num_layers=2, dropout=0.5)[0].cuda()
        x = draw(B, T, I).cuda()
        for backend in ("fused", "loop"):
            layer.train()
            assert not torch.equal(layer(x, backend=backend)[0], layer(x, backend=backend)[0])
            layer.eval()
            assert torch.equal(layer(x, backend=backend)[0], layer(x, backend=backend)[0])

    def test_a_mixture_of_devices_is_named(self):
        """Fails if the error comes from deep inside torch."""
        layer = pair("gru")[0].cuda()
        with pytest.raises(ValueError, match="x is on cpu, wanted cuda:0"):
            layer(X)
        with pytest.raises(ValueError, match="state is on cpu, wanted cuda:0"):
            layer(X.cuda(), HIDDEN[:1])
