r"""Backpropagation through time: the backward pass of a recurrent network by hand, and what can go wrong in it.

Data are rows, as in torch; books that write data as columns have $W_{ih} x_t + W_{hh} h_{t-1}$: the same matrices, and
in the gradients the transposes change places. I is the width of the input, D of the state, V of the output.
"""

import math
from typing import NamedTuple

import torch

from course_lib.utils.validate import (
    check_choice,
    check_finite,
    check_floats,
    check_positive,
    check_sizes,
    check_tensor,
)

# --- by hand ------------------------------------------------------------------------


class Cache(NamedTuple):
    """What the forward pass keeps for the backward pass."""

    x: torch.Tensor  # (B, T, I) inputs: for the gradient of W_ih
    h: torch.Tensor  # (B, T + 1, D) states, h[:, 0] the initial one: for those of W_hh and W_ho, and for tanh'
    o: torch.Tensor  # (B, T, V) outputs: for the gradient of the loss


class Gradients(NamedTuple):
    """The gradients of the loss with respect to the weights and to every state."""

    W_ih: torch.Tensor  # (D, I)
    W_hh: torch.Tensor  # (D, D)
    W_ho: torch.Tensor  # (V, D)
    h: torch.Tensor  # (B, T + 1, D)


def forward_pass(x, W_ih, W_hh, W_ho, h_0=None, *, nonlinearity="linear", window=None):
    r"""Run a recurrent network over a batch of sequences and keep what the backward pass needs.

    $$ h_t = \phi(x_t W_{ih}^T + h_{t-1} W_{hh}^T), \qquad o_t = h_t W_{ho}^T $$

    x is (B, T, I), W_ih (D, I), W_hh (D, D), W_ho (V, D), h_0 (B, D) or None for zeros. A bias is a column of W_ih for
    a 1 at the end of every x_t. With a `window` the state is detached after every so many steps: the outputs stay, the
    gradients that autograd finds are truncated.

    >>> forward_pass(torch.ones(1, 3, 1), torch.ones(1, 1), torch.tensor([[0.5]]), torch.ones(1, 1)).h.flatten()
    tensor([0.0000, 1.0000, 1.5000, 1.7500])
    """
    check_network(x, W_hh, W_ho, nonlinearity, window)
    check_tensor("W_ih", W_ih, (len(W_hh), x.shape[2]))
    h = [x.new_zeros(len(x), len(W_hh)) if h_0 is None else h_0]
    check_tensor("h_0", h[0], (len(x), len(W_hh)))
    for t in range(x.shape[1]):
        before = h[t].detach() if window and t > 0 and t % window == 0 else h[t]
        a = x[:, t] @ W_ih.T + before @ W_hh.T  # (B, D)
        h.append(torch.tanh(a) if nonlinearity == "tanh" else a)
    h = torch.stack(h, dim=1)  # (B, T + 1, D)
    return Cache(x, h, h[:, 1:] @ W_ho.T)


def squared_loss(o, y):
    """Half the squared error of (B, T, V) outputs, averaged over steps and sequences, and its gradient (B, T, V)."""
    check_floats(o=o)
    check_tensor("y", y, tuple(o.shape))
    steps = o.shape[0] * o.shape[1]
    return (o - y).square().sum() / (2 * steps), (o - y) / steps


def backward_pass(do, cache, W_hh, W_ho, *, nonlinearity="linear", window=None):
    r"""Backpropagation through time: all gradients from those of the outputs, in one walk from T to 1 (Werbos 1990).

    $$ \frac{\partial L}{\partial h_t} = \frac{\partial L}{\partial a_{t+1}} W_{hh}
       + \frac{\partial L}{\partial o_t} W_{ho}, \qquad
       \frac{\partial L}{\partial a_t} = \frac{\partial L}{\partial h_t} \odot \phi'(a_t) $$

    with $a_t$ what stands inside $\phi$. Each weight is used at every step, so its gradient is a sum over the steps.
    With a `window`, no gradient passes from step n * window + 1 to the state before it.

    >>> W_hh, W_ho, do = torch.tensor([[0.5]]), torch.tensor([[2.0]]), torch.tensor([[[0.0], [0.0], [1.0]]])
    >>> cache = forward_pass(torch.ones(1, 3, 1), torch.ones(1, 1), W_hh, W_ho)
    >>> backward_pass(do, cache, W_hh, W_ho).h.flatten()  # only the last output counts
    tensor([0.2500, 0.5000, 1.0000, 2.0000])
    """
    check_network(cache.x, W_hh, W_ho, nonlinearity, window)
    check_tensor("do", do, tuple(cache.o.shape))
    x, h, _ = cache
    slope = 1 - h.square() if nonlinearity == "tanh" else torch.ones_like(h)  # (B, T + 1, D): phi' from phi's value
    dh = torch.zeros_like(h)  # (B, T + 1, D)
    da = torch.zeros_like(h)  # (B, T + 1, D); step 0 has none
    for t in range(do.shape[1], 0, -1):
        dh[:, t] += do[:, t - 1] @ W_ho
        da[:, t] = dh[:, t] * slope[:, t]
        if not (window and t > 1 and (t - 1) % window == 0):
            dh[:, t - 1] = da[:, t] @ W_hh
    return Gradients(
        W_ih=torch.einsum("btd,bti->di", da[:, 1:], x),
        W_hh=torch.einsum("btd,bte->de", da[:, 1:], h[:, :-1]),
        W_ho=torch.einsum("btv,btd->vd", do, h[:, 1:]),
        h=dh,
    )


def finite_differences(function, at, eps=1e-3):
    """The gradient of a function, measured by moving every entry of its argument a little.

    The formula (Abramowitz and Stegun 1964, 25.3.6) errs by about eps**4, rounding by 1e-16 / eps: in float64 both are
    near 1e-12 for functions of size 1. It calls the function, tensor to scalar, four times for each entry.

    >>> at = torch.tensor([1.0, 2.0], dtype=torch.float64)
    >>> finite_differences(lambda w: w.pow(3).sum(), at).round(decimals=9)
    tensor([ 3., 12.], dtype=torch.float64)
    """
    check_floats(at=at)
    check_tensor("at", at, tuple(at.shape), dtype=torch.float64)
    check_positive(eps=eps)

    def moved(i, step):
        theta = at.detach().clone()
        theta.view(-1)[i] += step
        with torch.no_grad():
            return float(function(theta))

    slopes = [
        8 * (moved(i, eps) - moved(i, -eps)) - (moved(i, 2 * eps) - moved(i, -2 * eps)) for i in range(at.numel())
    ]
    return torch.tensor(slopes, dtype=at.dtype).view(at.shape) / (12 * eps)


# --- in practice: truncation and clipping -------------------------------------------


def detached(state):
    """A recurrent state (tensor, tuple of tensors or None) with the same values and no gradient beyond them."""
    if state is None:
        return None
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()


def truncated_backward(layer, loss_fn, x, y, window, state=None, *, carry=True):
    """Truncated backpropagation through time (Williams and Peng 1990): forward and backward, window by window.

    The values of the state go on from window to window, its gradient does not, and only one window's activations are
    in memory at a time. The gradients are *added* to `.grad`, as `backward` always does. Returns the sum of the losses
    and the last state, both without history.

    Args:
        layer: recurrent module, batch first: `layer(x, state) -> (output, state)`.
        loss_fn: function of a window's output (B, C, D) and targets, summed over the steps.
        x: (B, T, I) inputs.
        y: (B, T, ...) targets.
        window: steps a window; T or more is the full gradient.
        state: initial state; None is zeros.
        carry: False starts every window from zeros, which is not truncation but another model; for comparison.
    """
    check_sizes(window=window)
    check_floats(x=x)
    check_tensor("y", y, (*x.shape[:2], *y.shape[2:]))
    total, state = 0.0, detached(state)
    for x_window, y_window in zip(x.split(window, dim=1), y.split(window, dim=1), strict=True):
        output, last = layer(x_window, state)
        loss = loss_fn(output, y_window)
        loss.backward()
        total, last = total + loss.detach(), detached(last)
        state = last if carry else None
    return total, last


def clip_norm(parameters, max_norm):
    """Shorten the whole gradient to `max_norm`, if it is longer, without turning it (Pascanu et al. 2013, algorithm 1).

    Call it after `backward` and before `optimizer.step`. Returns the norm *before* clipping, which is the one to log;
    an infinite max_norm only measures. `torch.nn.utils.clip_grad_norm_` does the same, but divides by the norm plus
    1e-6 and lets a gradient that is not finite pass; here that is a FloatingPointError.
    """
    check_positive(max_norm=1.0 if max_norm == math.inf else max_norm)
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    if not math.isfinite(norm):
        raise FloatingPointError(f"the gradient's norm is {norm}: skip this step, and look for the cause")
    if norm > max_norm:
        for gradient in gradients:
            gradient *= max_norm / norm
    return norm


# --- why gradients vanish and explode -----------------------------------------------


def step_jacobians(h, W_hh, *, nonlinearity="linear"):
    r"""The derivative of each state with respect to the one before it: (B, T + 1, D) states give (B, T, D, D).

    $$ J_t = \frac{\partial h_t}{\partial h_{t-1}} = \mathrm{diag}\big(\phi'(a_t)\big)\, W_{hh} $$

    $J_t$ is [:, t - 1]. For tanh, $\phi'(a_t) = 1 - h_t^2$ is at most 1: it can only shrink what $W_{hh}$ makes.

    Source: Pascanu, Mikolov and Bengio (2013), arXiv:1211.5063, eq. 5. Differs: their state stands inside tanh.
    """
    check_floats(h=h, W_hh=W_hh)
    check_tensor("W_hh", W_hh, (h.shape[-1], h.shape[-1]))
    check_choice("nonlinearity", nonlinearity, ("linear", "tanh"))
    slope = 1 - h.square() if nonlinearity == "tanh" else torch.ones_like(h)  # (B, T + 1, D)
    return slope[:, 1:, :, None] * W_hh


def jacobian_product(jacobians, s, t):
    """The derivative of state t with respect to an earlier state s, (B, D, D): J_t ... J_{s+1}, of `step_jacobians`.

    A backward pass never forms it: it multiplies a row by one Jacobian after the other.

    >>> jacobian_product(torch.full((1, 5, 1, 1), 0.5), 1, 4).item()
    0.125
    """
    check_floats(jacobians=jacobians)
    check_tensor("jacobians", jacobians, ("B", "T", "D", jacobians.shape[-1]))
    check_sizes(least=0, s=s, t=t)
    B, T, D, _ = jacobians.shape
    if not 0 <= s <= t <= T:
        raise ValueError(f"wanted 0 <= s <= t <= {T}, got s = {s} and t = {t}")
    product = torch.eye(D, dtype=jacobians.dtype, device=jacobians.device).expand(B, D, D)
    for J in jacobians[:, s:t].unbind(dim=1):
        product = J @ product
    return product


def spectral_radius(W):
    """The largest absolute value among the eigenvalues of a (D, D) matrix, as a float.

    >>> round(spectral_radius(torch.tensor([[0.0, -2.0], [2.0, 0.0]])), 5)
    2.0
    """
    check_floats(W=W)
    check_sizes(rows=len(W))
    check_tensor("W", W, (len(W), len(W)))
    check_finite("W", W)
    return torch.linalg.eigvals(W).abs().max().item()


def scale_to_radius(W, radius):
    """A (D, D) matrix times the factor that gives it this spectral radius.

    >>> scale_to_radius(torch.diag(torch.tensor([4.0, 1.0])), 0.5).diagonal().tolist()
    [0.5, 0.125]
    """
    check_positive(zero=True, radius=radius)
    found = spectral_radius(W)
    if not 0 < found < math.inf:
        raise ValueError(f"the matrix has the spectral radius {found}: no factor gives it another")
    return W * (radius / found)


def random_orthogonal(D, generator=None, *, gain=1.0, dtype=torch.float32):
    """A random rotation (or reflection), (D, D), times a gain (Saxe et al. 2014, arXiv:1312.6120).

    It multiplies every vector's length by the gain, so a linear network's gradients change by that factor a step.
    """
    check_sizes(D=D)
    check_positive(gain=gain)
    Q, R = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=dtype))
    return gain * Q * R.diagonal().sign()  # the signs make every rotation equally likely


# --- measured on any recurrent layer ------------------------------------------------


def gradient_map(layers, x, loss_fn):
    """The norm of a loss' gradient with respect to every state of a stack of layers, (N, T), averaged over the batch.

    The stack runs one step at a time, and each state goes both to the layer above and to the next step, so its
    gradient counts both ways. An LSTM's state is h and c together.
    `layers` are N modules (RNN, LSTM, GRU, torch's or the course's) of one layer and direction each; x is (B, T, I).
    `loss_fn` takes the last layer's states (B, T, D); let it *sum* over the batch.
    """
    for layer in layers:
        if layer.num_layers != 1 or layer.bidirectional:
            raise ValueError(
                f"each layer must be one layer in one direction, got num_layers={layer.num_layers}, "
                f"bidirectional={layer.bidirectional}; give a list of single ones"
            )
    check_tensor("x", x, ("B", "T", layers[0].input_size))
    states, kept, top = [None] * len(layers), [], []
    for t in range(x.shape[1]):
        below = x[:, t]  # (B, I)
        for n, layer in enumerate(layers):
            _, states[n] = layer(below.unsqueeze(1), states[n])
            kept.append(states[n] if isinstance(states[n], tuple) else (states[n],))  # each part (1, B, D)
            below = kept[-1][0][0]  # (B, D), the same tensor that goes to the next step
        top.append(below)
    parts = [part for state in kept for part in state]
    found = iter(torch.autograd.grad(loss_fn(torch.stack(top, dim=1)), parts, materialize_grads=True))
    norms = [torch.cat([next(found)[0] for _ in state], dim=-1).norm(dim=-1).mean() for state in kept]
    return torch.stack(norms).view(x.shape[1], len(layers)).T


def gradient_norm_by_lag(layer, x, loss_fn, *, wrt="state"):
    """How much a loss at the last step depends on the state k steps before: (T,) mean norms for k = 0 .. T - 1.

    `loss_fn` takes the last output (B, D); let it *sum* over the batch. With wrt="input" the gradients are those with
    respect to x_{T-k}, and the layer may have several layers and directions.

    >>> layer = torch.nn.RNN(1, 1, batch_first=True, bias=False)
    >>> _ = torch.nn.init.constant_(layer.weight_hh_l0, 0.5)
    >>> gradient_norm_by_lag(layer, torch.zeros(1, 4, 1), torch.sum).tolist()
    [1.0, 0.5, 0.25, 0.125]
    """
    check_choice("wrt", wrt, ("state", "input"))
    if wrt == "state":
        return gradient_map([layer], x, lambda h: loss_fn(h[:, -1]))[0].flip(0)
    check_tensor("x", x, ("B", "T", layer.input_size))
    x = x.detach().requires_grad_()
    output, _ = layer(x)
    (dx,) = torch.autograd.grad(loss_fn(output[:, -1]), x)
    return dx.norm(dim=-1).mean(dim=0).flip(0)


def truncation_bias(layer, loss_fn, x, y, windows, state=None):
    """Compare truncated gradients with the full one: {window: (cosine, ratio of the norms)}.

    A gradient is that of all the layer's parameters as one vector. More data do not remove the difference: it is a
    bias, not noise (Tallec and Ollivier 2017, arXiv:1705.08209). Arguments as in `truncated_backward`; no `.grad` is
    changed.
    """
    check_floats(x=x)
    check_tensor("y", y, (*x.shape[:2], *y.shape[2:]))
    parameters = list(layer.parameters())

    def gradient(window):
        check_sizes(window=window)
        total, h = 0.0, state
        for x_window, y_window in zip(x.split(window, dim=1), y.split(window, dim=1), strict=True):
            output, h = layer(x_window, detached(h))
            loss = loss_fn(output, y_window)
            found = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
            total = total + torch.cat([part.flatten() for part in found])
        return total

    full, found = gradient(x.shape[1]), {}
    for window in windows:
        cut = gradient(window)
        found[window] = ((cut @ full / (cut.norm() * full.norm())).item(), (cut.norm() / full.norm()).item())
    return found


def check_network(x, W_hh, W_ho, nonlinearity, window):
    """What the passes by hand have in common: shapes, nonlinearity, window."""
    check_choice("nonlinearity", nonlinearity, ("linear", "tanh"))
    check_floats(x=x, W_hh=W_hh, W_ho=W_ho)
    check_sizes(window=1 if window is None else window)
    check_tensor("x", x, ("B", "T", "I"))
    check_tensor("W_hh", W_hh, (len(W_hh), len(W_hh)))
    check_tensor("W_ho", W_ho, ("Q", len(W_hh)))
