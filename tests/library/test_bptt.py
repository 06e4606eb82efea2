"""Backpropagation through time by hand, against autograd and finite differences in float64.

Sizes are pairwise different: B = 3, T = 7, I = 2, D = 4, Q = 5. Tolerance 1e-10: a gradient here is a sum of at most
B T D = 84 products of size 1, so rounding is near 1e-14; finite differences with eps = 1e-3 err by 1e-12.
"""

import pytest
import torch
from torch import nn

from course_lib import bptt, lstm_gru
from course_lib.rnn import RNN

B, T, INPUTS, D, Q = 3, 7, 2, 4, 5
WINDOWS = (None, 1, 2, 3, 6, 7, 9)
TINY = {"rtol": 1e-10, "atol": 1e-10}
NONLINEARITIES = ("linear", "tanh")


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def network():
    """Inputs, targets, initial state and the three weight matrices."""
    x, y, h_0 = draw(B, T, INPUTS), draw(B, T, Q), draw(B, D)
    return x, y, h_0, 0.7 * draw(D, INPUTS), 0.5 * draw(D, D), 0.6 * draw(Q, D)


def hand_gradients(nonlinearity, window):
    x, y, h_0, *weights = network()
    cache = bptt.forward_pass(x, *weights, h_0, nonlinearity=nonlinearity)
    _, do = bptt.squared_loss(cache.o, y)
    return bptt.backward_pass(do, cache, *weights[1:], nonlinearity=nonlinearity, window=window)


def column_vector_loss(x, W_ih, W_hh, W_ho, h_0, nonlinearity, window):
    """The loss from the tutorial's column-vector equations, one sequence and one step at a time, with detach."""
    phi = torch.tanh if nonlinearity == "tanh" else (lambda a: a)
    loss, states = 0.0, []
    for b in range(B):
        h = h_0[b]
        for t in range(T):
            if window and t % window == 0 and t > 0:
                h = h.detach()
            h = phi(W_ih @ x[b, t] + W_hh @ h)
            states.append(h)
            loss = loss + (W_ho @ h - network()[1][b, t]).square().sum() / 2 / (B * T)
    return loss, states


# --- by hand = autograd = finite differences ----------------------------------------


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize("window", WINDOWS)
def test_by_hand_is_autograd(nonlinearity, window):
    """Fails if a transpose, a step index, tanh' or the place of the cut is wrong, in any of the five gradients."""
    x, _, h_0, *weights = network()
    leaves = [w.requires_grad_() for w in weights]
    h_0.requires_grad_()
    loss, states = column_vector_loss(x, *leaves, h_0, nonlinearity, window)
    wanted = torch.autograd.grad(loss, [*leaves, h_0, *states])
    found = hand_gradients(nonlinearity, window)
    for name, got, want in zip(("W_ih", "W_hh", "W_ho"), found, wanted, strict=False):
        torch.testing.assert_close(got, want, **TINY, msg=lambda m, name=name: f"{name}: {m}")
    torch.testing.assert_close(found.h[:, 0], wanted[3], **TINY)
    torch.testing.assert_close(found.h[:, 1:], torch.stack(wanted[4:]).view(B, T, D), **TINY)


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
def test_by_hand_is_finite_differences(nonlinearity):
    """Fails if the gradient is not that of the loss: no autograd on either side. Fails also if window=T cuts."""
    x, y, h_0, *weights = network()

    def loss(place, value):
        arguments = [*weights, h_0]
        arguments[place] = value
        return bptt.squared_loss(bptt.forward_pass(x, *arguments, nonlinearity=nonlinearity).o, y)[0]

    for window in (None, T):
        found = hand_gradients(nonlinearity, window)
        for place, got in enumerate((found.W_ih, found.W_hh, found.W_ho, found.h[:, 0])):
            at = [*weights, h_0][place]
            want = bptt.finite_differences(lambda value, place=place: loss(place, value), at)
            torch.testing.assert_close(got, want, **TINY)


@pytest.mark.parametrize(("nonlinearity", "window"), [("linear", None), ("tanh", 3)])
def test_forward_pass_cuts_itself(nonlinearity, window):
    """Fails if `window` cuts elsewhere in the forward pass than in the backward pass, or changes the numbers."""
    x, y, h_0, *weights = network()
    leaves = [w.requires_grad_() for w in weights]
    cache = bptt.forward_pass(x, *leaves, h_0, nonlinearity=nonlinearity, window=window)
    uncut = bptt.forward_pass(x, *leaves, h_0, nonlinearity=nonlinearity)
    torch.testing.assert_close(cache.o, uncut.o, rtol=1e-13, atol=1e-13)
    wanted = torch.autograd.grad(bptt.squared_loss(cache.o, y)[0], leaves)
    for got, want in zip(hand_gradients(nonlinearity, window), wanted, strict=False):
        torch.testing.assert_close(got, want, **TINY)


@pytest.mark.parametrize("bias", [False, True])
def test_forward_pass_is_torch_rnn(bias):
    """Fails if the recurrence is not nn.RNN's, or a column of ones is not a bias."""
    layer = nn.RNN(INPUTS, D, bias=bias, batch_first=True, dtype=torch.float64)
    x, W_ih = draw(B, T, INPUTS), layer.weight_ih_l0
    wanted, _ = layer(x)
    if bias:
        x = torch.cat([x, torch.ones(B, T, 1, dtype=torch.float64)], dim=2)
        W_ih = torch.cat([W_ih, (layer.bias_ih_l0 + layer.bias_hh_l0)[:, None]], dim=1)
    cache = bptt.forward_pass(x, W_ih, layer.weight_hh_l0, draw(Q, D), nonlinearity="tanh")
    torch.testing.assert_close(cache.h[:, 1:], wanted, **TINY)
    assert torch.equal(cache.h[:, 0], torch.zeros(B, D, dtype=torch.float64))


def test_worked_by_hand():
    """One number each: w_ih = 1, w_hh = 1/2, w_ho = 2, x = 1, 1, 1, targets 0: every number found on paper."""
    x, y = torch.ones(1, 3, 1), torch.zeros(1, 3, 1)
    W_ih, W_hh, W_ho = torch.ones(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]])
    cache = bptt.forward_pass(x, W_ih, W_hh, W_ho)
    assert cache.h.flatten().tolist() == [0, 1, 1.5, 1.75]
    loss, do = bptt.squared_loss(cache.o, y)
    assert loss.item() == pytest.approx((2**2 + 3**2 + 3.5**2) / 6)
    found = bptt.backward_pass(do, cache, W_hh, W_ho)
    dh3, dh2 = 2 * 3.5 / 3, 2 * 3 / 3 + 0.5 * 2 * 3.5 / 3
    dh1 = 2 * 2 / 3 + 0.5 * dh2
    assert found.h.flatten().tolist() == pytest.approx([0.5 * dh1, dh1, dh2, dh3])
    assert found.W_ih.item() == pytest.approx(dh1 + dh2 + dh3)
    assert found.W_hh.item() == pytest.approx(dh2 * 1 + dh3 * 1.5)
    assert found.W_ho.item() == pytest.approx((2 * 1 + 3 * 1.5 + 3.5 * 1.75) / 3)


def test_backward_pass_does_not_change_the_cache():
    """Fails if the walk writes into what the forward pass kept."""
    x, y, h_0, *weights = network()
    cache = bptt.forward_pass(x, *weights, h_0, nonlinearity="tanh")
    before = [part.clone() for part in cache]
    bptt.backward_pass(bptt.squared_loss(cache.o, y)[1], cache, *weights[1:], nonlinearity="tanh")
    assert all(torch.equal(a, b) for a, b in zip(before, cache, strict=True))


# --- Jacobians and radii --------------------------------------------------------------


@pytest.mark.parametrize("nonlinearity", NONLINEARITIES)
@pytest.mark.parametrize(("s", "t"), [(0, 7), (2, 5), (3, 4), (6, 6)])
def test_jacobian_product_is_autograds(nonlinearity, s, t):
    """Fails if the product runs in the wrong order, is transposed, or is one step off."""
    x, _, h_0, *weights = network()
    h = bptt.forward_pass(x, *weights, h_0, nonlinearity=nonlinearity).h
    product = bptt.jacobian_product(bptt.step_jacobians(h, weights[1], nonlinearity=nonlinearity), s, t)
    assert product.shape == (B, D, D)
    for b in range(B):

        def later(start, b=b):
            if s == t:
                return start
            steps = x[b : b + 1, s:t]
            return bptt.forward_pass(steps, *weights, start[None], nonlinearity=nonlinearity).h[0, -1]

        wanted = torch.autograd.functional.jacobian(later, h[b, s])
        torch.testing.assert_close(product[b], wanted, **TINY)


def test_radius_of_known_matrices():
    """Fails if singular values or the largest entry are taken for the eigenvalues."""
    angle = torch.tensor(0.3, dtype=torch.float64)
    turn = torch.stack([torch.stack([angle.cos(), -angle.sin()]), torch.stack([angle.sin(), angle.cos()])])
    assert bptt.spectral_radius(1.7 * turn) == pytest.approx(1.7)
    assert bptt.spectral_radius(torch.tensor([[0.5, 100.0], [0.0, -0.8]])) == pytest.approx(0.8)
    W = draw(D, D)
    scaled = bptt.scale_to_radius(W, 1.3)
    assert bptt.spectral_radius(scaled) == pytest.approx(1.3)
    torch.testing.assert_close(scaled / scaled[0, 0], W / W[0, 0], **TINY)


def test_random_orthogonal():
    """Fails if it is not orthogonal, ignores gain, generator or dtype, or is always the same kind of rotation."""
    W = bptt.random_orthogonal(6, torch.Generator().manual_seed(1), gain=1.5, dtype=torch.float64)
    torch.testing.assert_close(W @ W.T, 2.25 * torch.eye(6, dtype=torch.float64), **TINY)
    assert torch.equal(W, bptt.random_orthogonal(6, torch.Generator().manual_seed(1), gain=1.5, dtype=torch.float64))
    assert not torch.equal(W, bptt.random_orthogonal(6, torch.Generator().manual_seed(2), gain=1.5, dtype=W.dtype))
    generator = torch.Generator().manual_seed(0)
    corners = torch.stack([bptt.random_orthogonal(3, generator)[0, 0] for _ in range(200)])
    assert 60 < (corners > 0).sum() < 140  # without the signs QR makes the first column of one sign


# --- gradients of any recurrent layer -------------------------------------------------


def layer_of(kind, inputs=INPUTS, width=D, **options):
    torch.manual_seed(3)
    return kind(inputs, width, batch_first=True, dtype=torch.float64, **options)


def test_gradient_map_of_two_rnns_is_that_of_a_loop():
    """Fails if a state's gradient misses the way up or the way on: the loop keeps one tensor for both."""
    layers = [layer_of(nn.RNN), layer_of(nn.RNN, D, Q)]
    x, states, top = draw(B, T, INPUTS), [], []
    h = [torch.zeros(B, D, dtype=torch.float64), torch.zeros(B, Q, dtype=torch.float64)]
    for t in range(T):
        below = x[:, t]
        for n, layer in enumerate(layers):
            bias = layer.bias_ih_l0 + layer.bias_hh_l0
            h[n] = torch.tanh(below @ layer.weight_ih_l0.T + h[n] @ layer.weight_hh_l0.T + bias)
            states.append(h[n])
            below = h[n]
        top.append(below)
    gradients = torch.autograd.grad(torch.stack(top, 1).square().sum(), states)
    wanted = torch.stack([g.norm(dim=1).mean() for g in gradients]).view(T, 2).T
    found = bptt.gradient_map(layers, x, lambda h: h.square().sum())
    torch.testing.assert_close(found, wanted, **TINY)


def test_gradient_map_is_zero_where_nothing_depends():
    """Fails if steps after the loss do not come out as 0."""
    found = bptt.gradient_map([layer_of(nn.GRU)], draw(B, T, INPUTS), lambda h: h[:, 2].sum())
    assert found.shape == (1, T)
    assert (found[0, :3] > 0).all()
    assert torch.equal(found[0, 3:], torch.zeros(T - 3, dtype=torch.float64))


def test_norm_by_lag_is_that_of_the_jacobian_product():
    """Fails if lags are counted from the wrong end or off by one."""
    layer = layer_of(nn.RNN, bias=False)
    x, v = draw(B, T, INPUTS), draw(D)
    h = torch.cat([torch.zeros(B, 1, D, dtype=torch.float64), layer(x)[0]], dim=1).detach()
    jacobians = bptt.step_jacobians(h, layer.weight_hh_l0.detach(), nonlinearity="tanh")
    wanted = torch.stack([(v @ bptt.jacobian_product(jacobians, T - k, T)).norm(dim=-1).mean() for k in range(T)])
    torch.testing.assert_close(bptt.gradient_norm_by_lag(layer, x, lambda h: (h @ v).sum()), wanted, **TINY)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_norm_by_lag_of_the_input(kind):
    """Fails if the input's gradient is taken at another step; a stack of two layers is welcome there."""
    layer, x = layer_of(kind, num_layers=2), draw(B, T, INPUTS)
    found = bptt.gradient_norm_by_lag(layer, x, torch.sum, wrt="input")
    leaf = x.clone().requires_grad_()
    layer(leaf)[0][:, -1].sum().backward()
    torch.testing.assert_close(found, leaf.grad.norm(dim=2).mean(0).flip(0), **TINY)
    assert not x.requires_grad


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_norm_by_lag_of_the_state_by_finite_differences(kind):
    """Fails if an LSTM's c is left out, or the state of another step is moved: moves the state after step T - 3."""
    layer, x = layer_of(kind), draw(1, T, INPUTS)
    _, state = layer(x[:, : T - 3])
    parts = torch.cat(bptt.detached(state) if kind is nn.LSTM else [state.detach()], dim=-1)

    def loss(moved):
        state = tuple(part.contiguous() for part in moved.chunk(2, dim=-1)) if kind is nn.LSTM else moved
        return layer(x[:, T - 3 :], state)[0][:, -1].sum()

    wanted = bptt.finite_differences(loss, parts).norm()
    torch.testing.assert_close(bptt.gradient_norm_by_lag(layer, x, torch.sum)[3], wanted, **TINY)


@pytest.mark.parametrize(("ours", "theirs"), [(RNN, nn.RNN), (lstm_gru.LSTM, nn.LSTM), (lstm_gru.GRU, nn.GRU)])
def test_the_courses_layers_are_welcome(ours, theirs):
    """Fails if a layer of the course is read differently from torch's of the same weights."""
    reference = layer_of(theirs)
    layer = ours(INPUTS, D, dtype=torch.float64)
    layer.load_state_dict(reference.state_dict())
    x, y = draw(B, T, INPUTS), draw(B, T, D)
    for wrt in ("state", "input"):
        found = bptt.gradient_norm_by_lag(layer, x, torch.sum, wrt=wrt)
        torch.testing.assert_close(found, bptt.gradient_norm_by_lag(reference, x, torch.sum, wrt=wrt), **TINY)
    found, wanted = (bptt.truncated_backward(model, loss_of, x, y, 3)[0] for model in (layer, reference))
    torch.testing.assert_close(found, wanted, **TINY)
    for a, b in zip(layer.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad, **TINY)


# --- truncation -------------------------------------------------------------------------


def loss_of(output, y):
    return (output - y).square().sum()


@pytest.mark.parametrize("window", [1, 2, 3, 7, 20])
def test_truncated_backward_is_the_hand_version(window):
    """Fails if windows are cut elsewhere, the state is not carried, or the last short window is lost."""
    layer = layer_of(nn.RNN, bias=False)
    x, y, eye = draw(B, T, INPUTS), draw(B, T, D), torch.eye(D, dtype=torch.float64)
    loss, state = bptt.truncated_backward(layer, loss_of, x, y, window)
    weights = [layer.weight_ih_l0.detach(), layer.weight_hh_l0.detach(), eye]
    cache = bptt.forward_pass(x, *weights, nonlinearity="tanh")
    wanted = bptt.backward_pass(2 * (cache.o - y), cache, *weights[1:], nonlinearity="tanh", window=window)
    torch.testing.assert_close(layer.weight_ih_l0.grad, wanted.W_ih, **TINY)
    torch.testing.assert_close(layer.weight_hh_l0.grad, wanted.W_hh, **TINY)
    torch.testing.assert_close(loss, loss_of(cache.o, y), **TINY)
    torch.testing.assert_close(state[0], cache.h[:, -1], **TINY)
    assert not loss.requires_grad
    assert not state.requires_grad


@pytest.mark.parametrize("kind", [nn.GRU, nn.LSTM])
def test_truncated_backward_takes_and_gives_states(kind):
    """Fails if the pair of an LSTM is not detached, or the given state is not used."""
    layer, x, y = layer_of(kind), draw(B, T, INPUTS), draw(B, T, D)
    _, state = layer(draw(B, 2, INPUTS, seed=1))
    loss, last = bptt.truncated_backward(layer, loss_of, x, y, 3, state)
    output, wanted = layer(x, state)
    torch.testing.assert_close(loss, loss_of(output, y).detach(), **TINY)
    parts = (last, wanted) if isinstance(last, tuple) else ((last,), (wanted,))
    for got, want in zip(*parts, strict=True):
        torch.testing.assert_close(got, want.detach(), **TINY)
        assert not got.requires_grad


def test_windows_without_carrying():
    """Fails if carry=False keeps anything of the window before."""
    layer, x, y = layer_of(nn.LSTM), draw(B, 6, INPUTS), draw(B, 6, D)
    loss, _ = bptt.truncated_backward(layer, loss_of, x, y, 3, carry=False)
    wanted = sum(loss_of(layer(x[:, s])[0], y[:, s]) for s in (slice(3), slice(3, 6)))
    torch.testing.assert_close(loss, wanted.detach(), **TINY)


def test_targets_may_be_classes():
    """Fails if only floating targets are let in: a classifier's are numbers of classes (B, T)."""
    layer, x, y = layer_of(nn.RNN), draw(B, T, INPUTS), torch.arange(B * T).view(B, T) % D

    def loss(output, classes):
        return nn.functional.cross_entropy(output.flatten(0, 1), classes.flatten(), reduction="sum")

    found, _ = bptt.truncated_backward(layer, loss, x, y, 3)
    torch.testing.assert_close(found, loss(layer(x)[0], y).detach(), **TINY)
    assert bptt.truncation_bias(layer, loss, x, y, [T])[T] == pytest.approx((1, 1), abs=1e-12)


def test_truncation_bias_compares_with_the_full_gradient():
    """Fails if the cosine or the ratio is upside down, or taken of one matrix only, or `.grad` is touched."""
    layer, x, y = layer_of(nn.RNN), draw(B, T, INPUTS), draw(B, T, D)
    found = bptt.truncation_bias(layer, loss_of, x, y, [2, T])
    assert all(p.grad is None for p in layer.parameters())
    vectors = []
    for window in (2, T):
        layer.zero_grad()
        bptt.truncated_backward(layer, loss_of, x, y, window)
        vectors.append(torch.cat([p.grad.flatten() for p in layer.parameters()]))
    cut, full = vectors
    assert found[2] == pytest.approx(
        (torch.cosine_similarity(cut, full, dim=0).item(), (cut.norm() / full.norm()).item())
    )
    assert found[T] == pytest.approx((1, 1), abs=1e-12)
    assert found[2][0] < 0.9999


# --- clipping ---------------------------------------------------------------------------


def with_gradients(scale):
    parameters = [torch.zeros(3, 2, dtype=torch.float64), torch.zeros(4, dtype=torch.float64), torch.zeros(5)]
    parameters[0].grad, parameters[1].grad = scale * draw(3, 2), scale * draw(4)
    return parameters  # the last has none


@pytest.mark.parametrize("scale", [0.01, 1.0, 1e8])
def test_clip_norm_is_torchs(scale):
    """Fails if it clips each tensor alone, clips what is short, or returns the norm after clipping."""
    ours, theirs = with_gradients(scale), with_gradients(scale)
    norm = bptt.clip_norm(ours, 0.5)
    wanted = nn.utils.clip_grad_norm_([p for p in theirs if p.grad is not None], 0.5)
    assert norm == pytest.approx(wanted.item(), rel=1e-12)
    for a, b in zip(ours[:2], theirs[:2], strict=True):
        torch.testing.assert_close(a.grad, b.grad, rtol=4e-6, atol=0)  # torch adds 1e-6 to the norm, here above 0.03
    length = torch.cat([p.grad.flatten() for p in ours[:2]]).norm().item()
    assert length == pytest.approx(min(norm, 0.5), rel=1e-12)


def test_clip_norm_of_nothing_and_of_zero():
    """Fails if a zero gradient is divided by its norm."""
    w = torch.ones(2, requires_grad=True)
    assert bptt.clip_norm([w], 1.0) == 0
    w.grad = torch.zeros(2)
    assert bptt.clip_norm([w], float("inf")) == 0
    assert w.grad.tolist() == [0, 0]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_clip_norm_refuses_what_is_not_finite(bad):
    """Fails if a broken gradient passes as a clipped one."""
    w = torch.ones(2)
    w.grad = torch.tensor([1.0, bad])
    with pytest.raises(FloatingPointError, match=f"norm is {bad}: skip this step"):
        bptt.clip_norm([w], 1.0)


# --- what is refused --------------------------------------------------------------------

X, Y, H_0, W_HX, W_HH, W_QH = network()
CACHE = bptt.forward_pass(X, W_HX, W_HH, W_QH)
LAYER = nn.RNN(INPUTS, D, batch_first=True)
NOT_FINITE = torch.tensor([[1.0, float("nan")], [0.0, 1.0]]), torch.tensor([[1.0, float("inf")], [0.0, 1.0]])
REFUSED = {
    "W_ih": (lambda: bptt.forward_pass(X, W_HX.T, W_HH, W_QH), r"W_ih must be a tensor \(4, 2\), .* \(2, 4\)"),
    "W_ho": (lambda: bptt.forward_pass(X, W_HX, W_HH, W_QH.T), r"W_ho must be a tensor \(Q, 4\), .* \(4, 5\)"),
    "W_hh": (lambda: bptt.forward_pass(X, W_HX, W_HX, W_QH), r"W_hh must be a tensor \(4, 4\), .* \(4, 2\)"),
    "x": (lambda: bptt.forward_pass(X[0], W_HX, W_HH, W_QH), r"x must be a tensor \(B, T, I\), .* \(7, 2\)"),
    "h_0": (lambda: bptt.forward_pass(X, W_HX, W_HH, W_QH, H_0[:2]), r"h_0 must be a tensor \(3, 4\), .* \(2, 4\)"),
    "phi": (lambda: bptt.forward_pass(X, W_HX, W_HH, W_QH, nonlinearity="relu"), "'linear', 'tanh', got 'relu'"),
    "window": (lambda: bptt.forward_pass(X, W_HX, W_HH, W_QH, window=0), "window must be a whole .* least 1, got 0"),
    "loss": (lambda: bptt.squared_loss(Y, Y[:, :3]), r"y must be a tensor \(3, 7, 5\), .* \(3, 3, 5\)"),
    "do": (lambda: bptt.backward_pass(Y[:, 1:], CACHE, W_HH, W_QH), r"do must be a tensor \(3, 7, 5\), .* \(3, 6, 5\)"),
    "backward phi": (lambda: bptt.backward_pass(Y, CACHE, W_HH, W_QH, nonlinearity="relu"), "got 'relu'"),
    "backward window": (lambda: bptt.backward_pass(Y, CACHE, W_HH, W_QH, window=-1), "at least 1, got -1"),
    "backward W_ho": (lambda: bptt.backward_pass(Y, CACHE, W_HH, W_QH.T), r"W_ho must be a tensor \(Q, 4\)"),
    "float32": (
        lambda: bptt.finite_differences(torch.sum, torch.ones(2)),
        r"at must be torch\.float64, got torch.float32",
    ),
    "jacobian": (lambda: bptt.step_jacobians(CACHE.h, W_HH[:2, :2]), r"W_hh must be a tensor \(4, 4\), .* \(2, 2\)"),
    "jacobian phi": (lambda: bptt.step_jacobians(CACHE.h, W_HH, nonlinearity="relu"), "got 'relu'"),
    "order": (lambda: bptt.jacobian_product(bptt.step_jacobians(CACHE.h, W_HH), 5, 3), "0 <= s <= t <= 7, got s = 5"),
    "radius": (lambda: bptt.spectral_radius(W_HX), r"W must be a tensor \(4, 4\), got one of shape \(4, 2\)"),
    "radius of nan": (lambda: bptt.spectral_radius(NOT_FINITE[0]), "W must be finite, got NaN or infinity"),
    "radius of inf": (lambda: bptt.spectral_radius(NOT_FINITE[1]), "W must be finite, got NaN or infinity"),
    "scale nan": (lambda: bptt.scale_to_radius(NOT_FINITE[0], 1.0), "W must be finite, got NaN or infinity"),
    "scale inf": (lambda: bptt.scale_to_radius(NOT_FINITE[1], 1.0), "W must be finite, got NaN or infinity"),
    "scale to nan": (lambda: bptt.scale_to_radius(W_HH, float("nan")), "radius must be a finite number .* got nan"),
    "nilpotent": (lambda: bptt.scale_to_radius(torch.zeros(2, 2), 1.0), "the matrix has the spectral radius 0.0"),
    "radius inf": (
        lambda: bptt.scale_to_radius(torch.full((3, 3), 3e38), 0.9),
        "the matrix has the spectral radius inf",
    ),
    "empty": (lambda: bptt.spectral_radius(torch.zeros(0, 0)), "rows must be a whole number of at least 1, got 0"),
    "size": (lambda: bptt.random_orthogonal(0), "D must be a whole number of at least 1, got 0"),
    "deep": (lambda: bptt.gradient_map([nn.RNN(2, 3, 2)], X, torch.sum), "got num_layers=2, bidirectional=False"),
    "both": (
        lambda: bptt.gradient_norm_by_lag(nn.RNN(2, 3, bidirectional=True), X, torch.sum),
        "num_layers=1, bidirectional=True",
    ),
    "input": (
        lambda: bptt.gradient_map([nn.RNN(4, 3)], X, torch.sum),
        r"x must be a tensor \(B, T, 4\), .* \(3, 7, 2\)",
    ),
    "wrt": (lambda: bptt.gradient_norm_by_lag(LAYER, X, torch.sum, wrt="output"), "'state', 'input', got 'output'"),
    "wrt input": (
        lambda: bptt.gradient_norm_by_lag(LAYER, X[..., :1], torch.sum, wrt="input"),
        r"x must be a tensor \(B, T, 2\), .* \(3, 7, 1\)",
    ),
    "window 0": (lambda: bptt.truncated_backward(LAYER, loss_of, X, Y, 0), "window must be .* at least 1, got 0"),
    "x and y": (
        lambda: bptt.truncated_backward(LAYER, loss_of, X, Y[:, 1:], 2),
        r"y must be a tensor \(3, 7, 5\), .* \(3, 6, 5\)",
    ),
    "bias": (lambda: bptt.truncation_bias(LAYER, loss_of, X, Y[1:], [2]), r"y must be a tensor \(3, .* \(2, 7, 5\)"),
    "max_norm": (lambda: bptt.clip_norm([], 0.0), "max_norm must be a finite number above 0, got 0"),
    "max_norm nan": (lambda: bptt.clip_norm([], float("nan")), "max_norm must be a finite number above 0, got nan"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_fit_is_refused(name):
    """Fails if bad input passes, or the message does not name what came and what was wanted."""
    call, words = REFUSED[name]
    with pytest.raises(ValueError, match=words):
        call()
