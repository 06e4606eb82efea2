r"""Backpropagation through time: the backward pass of a recurrent network by hand, and what can go wrong in it.

Read in this order: `forward_pass`, `squared_loss` and `backward_pass` (the whole of backpropagation through
time, also truncated), `finite_differences` (the check of every gradient), `step_jacobians` and
`jacobian_product` (why gradients vanish or explode), `spectral_radius`, `scale_to_radius` and
`random_orthogonal` (weights that make them do so), `gradient_map` and `gradient_norm_by_lag` (measured on any
recurrent layer), `detached`, `truncated_backward` and `truncation_bias` (truncation in practice, and what it
costs), `clip_norm` (the cure for explosions).

Data are rows, as in torch: a step is $h_t = x_t W_{hx}^T + h_{t-1} W_{hh}^T$. Books that write data as columns
have $h_t = W_{hx} x_t + W_{hh} h_{t-1}$. The matrices are the same; the transposes change places.
I is the width of the input, D of the state, Q of the output.

Notebook: 04.
"""

import math
from typing import NamedTuple

import torch

# --- the backward pass by hand ----------------------------------------------------


class Cache(NamedTuple):
    """What the forward pass keeps because the backward pass needs it.

    Args:
        x: (B, T, I) inputs; needed for the gradient of W_hx.
        h: (B, T + 1, D) states, h[:, 0] the initial one; needed for the gradients of W_hh and W_qh, and for tanh'.
        o: (B, T, Q) outputs; needed for the gradient of the loss.
    """

    x: torch.Tensor
    h: torch.Tensor
    o: torch.Tensor


class Gradients(NamedTuple):
    """What the backward pass returns.

    Args:
        W_hx: (D, I) gradient of the loss with respect to the input weights.
        W_hh: (D, D) gradient with respect to the recurrent weights.
        W_qh: (Q, D) gradient with respect to the output weights.
        h: (B, T + 1, D) gradient with respect to every state; h[:, 0] that of the initial one.
    """

    W_hx: torch.Tensor
    W_hh: torch.Tensor
    W_qh: torch.Tensor
    h: torch.Tensor


def forward_pass(x, W_hx, W_hh, W_qh, h_0=None, *, nonlinearity="linear", window=None):
    r"""Run a recurrent network over a batch of sequences and keep what the backward pass needs.

    $$ h_t = \phi(x_t W_{hx}^T + h_{t-1} W_{hh}^T), \qquad o_t = h_t W_{qh}^T $$

    There are no biases: append a 1 to every $x_t$, and its column of $W_{hx}$ is one.

    Args:
        x: (B, T, I) inputs.
        W_hx: (D, I) input weights.
        W_hh: (D, D) recurrent weights.
        W_qh: (Q, D) output weights.
        h_0: (B, D) initial state; None is zeros.
        nonlinearity: "linear" (phi is the identity) or "tanh".
        window: detach the state after every so many steps, so that autograd truncates there; None never does.
            The numbers do not change, only the gradients that autograd computes from them.

    Returns:
        Cache: (x, h, o).

    Raises:
        ValueError: if shapes do not fit, the nonlinearity is unknown, or window is below 1.

    Example:
        >>> x = torch.ones(2, 3, 1)
        >>> cache = forward_pass(x, torch.ones(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]]))
        >>> cache.h[0, :, 0].tolist(), cache.o.shape
        ([0.0, 1.0, 1.5, 1.75], torch.Size([2, 3, 1]))

    Source: Elman (1990), "Finding structure in time". Notebook: 04.
    """
    h_0 = x.new_zeros(len(x), len(W_hh)) if h_0 is None else h_0
    _check_network(x, W_hx, W_hh, W_qh, h_0, nonlinearity, window)
    h = [h_0]
    for t in range(x.shape[1]):
        before = h[t].detach() if window and t > 0 and t % window == 0 else h[t]
        a = x[:, t] @ W_hx.T + before @ W_hh.T  # (B, D)
        h.append(torch.tanh(a) if nonlinearity == "tanh" else a)
    h = torch.stack(h, dim=1)  # (B, T + 1, D)
    return Cache(x, h, h[:, 1:] @ W_qh.T)


def squared_loss(o, y):
    r"""Half the squared error, averaged over steps and sequences, and its gradient.

    $$ L = \frac{1}{B\,T} \sum_{b,t} \tfrac12 \lVert o_{bt} - y_{bt} \rVert^2, \qquad
       \frac{\partial L}{\partial o_{bt}} = \frac{o_{bt} - y_{bt}}{B\,T} $$

    Args:
        o: (B, T, Q) outputs.
        y: (B, T, Q) targets.

    Returns:
        loss: scalar.
        do: (B, T, Q) the gradient of the loss with respect to o.

    Raises:
        ValueError: if the shapes differ.

    Example:
        >>> loss, do = squared_loss(torch.tensor([[[3.0], [1.0]]]), torch.zeros(1, 2, 1))
        >>> loss.item(), do.flatten().tolist()
        (2.5, [1.5, 0.5])

    Notebook: 04.
    """
    if o.shape != y.shape:
        raise ValueError(f"outputs have shape {tuple(o.shape)}, targets {tuple(y.shape)}; they must be equal")
    steps = o.shape[0] * o.shape[1]
    return (o - y).square().sum() / (2 * steps), (o - y) / steps


def backward_pass(do, cache, W_hh, W_qh, *, nonlinearity="linear", window=None):
    r"""Backpropagation through time: all gradients from those of the outputs, in one walk from t = T to 1.

    $$ \frac{\partial L}{\partial h_t} = \frac{\partial L}{\partial a_{t+1}} W_{hh}
       + \frac{\partial L}{\partial o_t} W_{qh}, \qquad
       \frac{\partial L}{\partial a_t} = \frac{\partial L}{\partial h_t} \odot \phi'(a_t) $$

    with $a_t$ what stands inside $\phi$. Each weight is used at every step, so its gradient is a sum over the steps:

    $$ \frac{\partial L}{\partial W_{hx}} = \sum_t \frac{\partial L}{\partial a_t}^T x_t, \quad
       \frac{\partial L}{\partial W_{hh}} = \sum_t \frac{\partial L}{\partial a_t}^T h_{t-1}, \quad
       \frac{\partial L}{\partial W_{qh}} = \sum_t \frac{\partial L}{\partial o_t}^T h_t $$

    Args:
        do: (B, T, Q) gradient of the loss with respect to the outputs.
        cache: what `forward_pass` returned.
        W_hh: (D, D) recurrent weights.
        W_qh: (Q, D) output weights.
        nonlinearity: "linear" or "tanh", as in the forward pass.
        window: no gradient passes from step n * window + 1 to the state before it; None is the full gradient.

    Returns:
        Gradients: (W_hx, W_hh, W_qh, h).

    Raises:
        ValueError: if shapes do not fit, the nonlinearity is unknown, or window is below 1.

    Example:
        >>> W_hx, W_hh, W_qh = torch.ones(1, 1), torch.tensor([[0.5]]), torch.tensor([[2.0]])
        >>> cache = forward_pass(torch.ones(1, 3, 1), W_hx, W_hh, W_qh)
        >>> do = torch.tensor([[[0.0], [0.0], [1.0]]])  # only the last output counts
        >>> backward_pass(do, cache, W_hh, W_qh).h.flatten().tolist()
        [0.25, 0.5, 1.0, 2.0]
        >>> backward_pass(do, cache, W_hh, W_qh, window=2).h.flatten().tolist()
        [0.0, 0.0, 0.0, 2.0]

    Source: Werbos (1990), "Backpropagation through time: what it does and how to do it"; truncated as in
    Williams and Peng (1990), "An efficient gradient-based algorithm for on-line training of recurrent network
    trajectories". Differs: the windows do not overlap, as in today's training loops. Notebook: 04.
    """
    _check_network(cache.x, None, W_hh, W_qh, cache.h[:, 0], nonlinearity, window)
    if do.shape != cache.o.shape:
        raise ValueError(f"do has shape {tuple(do.shape)}, the outputs {tuple(cache.o.shape)}; they must be equal")
    dh = torch.zeros_like(cache.h)  # (B, T + 1, D)
    da = torch.zeros_like(cache.h)[:, 1:]  # (B, T, D): da[:, t - 1] belongs to step t
    for t in range(do.shape[1], 0, -1):
        dh[:, t] += do[:, t - 1] @ W_qh
        da[:, t - 1] = dh[:, t] * _slope(cache.h[:, t], nonlinearity)
        if not (window and t > 1 and (t - 1) % window == 0):
            dh[:, t - 1] = da[:, t - 1] @ W_hh
    return Gradients(_outer(da, cache.x), _outer(da, cache.h[:, :-1]), _outer(do, cache.h[:, 1:]), dh)


def finite_differences(function, at, eps=1e-3):
    r"""The gradient of a function, measured by moving every number of its argument a little.

    $$ \frac{\partial f}{\partial \theta_i} \approx \frac{8 (f_{+1} - f_{-1}) - (f_{+2} - f_{-2})}{12\,\epsilon},
       \qquad f_{k} = f(\theta + k\,\epsilon\, e_i) $$

    The error of the formula is of the order of eps**4, that of rounding 1e-16 / eps: in float64 and with
    eps = 1e-3 both are near 1e-12 or below for functions of size 1. It calls the function four times a number: for
    tests only.

    Args:
        function: a function of one tensor that returns a scalar.
        at: float64 tensor, where the gradient is wanted; it is left as it is.
        eps: the step.

    Returns:
        Tensor of the shape of `at`.

    Raises:
        ValueError: if `at` is not float64: rounding would hide the gradient.

    Example:
        >>> at = torch.tensor([1.0, 2.0], dtype=torch.float64)
        >>> finite_differences(lambda w: w.pow(3).sum(), at).round(decimals=9)
        tensor([ 3., 12.], dtype=torch.float64)

    Source: Abramowitz and Stegun (1964), "Handbook of mathematical functions", 25.3.6. Notebook: 04.
    """
    if at.dtype != torch.float64:
        raise ValueError(f"finite differences need float64, got {at.dtype}")

    def moved(i, step):
        theta = at.detach().clone()
        theta.view(-1)[i] += step
        with torch.no_grad():
            return float(function(theta))

    slopes = [
        8 * (moved(i, eps) - moved(i, -eps)) - (moved(i, 2 * eps) - moved(i, -2 * eps)) for i in range(at.numel())
    ]
    return torch.tensor(slopes, dtype=at.dtype).view(at.shape) / (12 * eps)


# --- why gradients vanish and explode ---------------------------------------------


def step_jacobians(h, W_hh, *, nonlinearity="linear"):
    r"""The derivative of each state with respect to the one before it.

    $$ J_t = \frac{\partial h_t}{\partial h_{t-1}} = \mathrm{diag}\big(\phi'(a_t)\big)\, W_{hh} $$

    Entry [i, j] says how number i of $h_t$ moves with number j of $h_{t-1}$. For tanh, $\phi'(a_t) = 1 - h_t^2$ is
    at most 1, so it can only shrink what $W_{hh}$ makes.

    Args:
        h: (B, T + 1, D) states of `forward_pass`.
        W_hh: (D, D) recurrent weights.
        nonlinearity: "linear" or "tanh".

    Returns:
        (B, T, D, D); [:, t - 1] is $J_t$.

    Raises:
        ValueError: if the shapes do not fit or the nonlinearity is unknown.

    Example:
        >>> step_jacobians(torch.tensor([[[0.0], [0.5]]]), torch.tensor([[2.0]]), nonlinearity="tanh").item()
        1.5

    Source: Pascanu, Mikolov and Bengio (2013), arXiv:1211.5063, eq. 5. Differs: their state is what stands inside
    tanh, so W_hh and tanh' change places. Notebook: 04.
    """
    _check_square(W_hh, h.shape[-1], "h", h)
    return _slope(h[:, 1:], nonlinearity).unsqueeze(-1) * W_hh


def jacobian_product(jacobians, s, t):
    r"""The derivative of a state with respect to an earlier one: the product of the Jacobians between them.

    $$ \frac{\partial h_t}{\partial h_s} = J_t \, J_{t-1} \cdots J_{s+1} $$

    A backward pass never forms it: it multiplies a row by one Jacobian after the other, D * D multiplications
    a step in place of D * D * D.

    Args:
        jacobians: (B, T, D, D) of `step_jacobians`.
        s: the earlier state, 0 to T.
        t: the later state, s to T.

    Returns:
        (B, D, D); the identity if s = t.

    Raises:
        ValueError: if not 0 <= s <= t <= T.

    Example:
        >>> jacobian_product(torch.full((1, 5, 1, 1), 0.5), 1, 4).item()
        0.125

    Source: Pascanu, Mikolov and Bengio (2013), arXiv:1211.5063, eq. 5. Notebook: 04.
    """
    B, T, D, _ = jacobians.shape
    if not 0 <= s <= t <= T:
        raise ValueError(f"wanted 0 <= s <= t <= {T}, got s = {s} and t = {t}")
    product = torch.eye(D, dtype=jacobians.dtype, device=jacobians.device).expand(B, D, D)
    for J in jacobians[:, s:t].unbind(dim=1):
        product = J @ product
    return product


def spectral_radius(W):
    r"""The largest absolute value among a matrix' eigenvalues.

    $$ \rho(W) = \max_i |\lambda_i(W)|, \qquad \lVert W^k \rVert^{1/k} \to \rho(W) $$

    Args:
        W: (D, D).

    Returns:
        float.

    Raises:
        ValueError: if W is not square.

    Example:
        >>> round(spectral_radius(torch.tensor([[0.0, -2.0], [2.0, 0.0]])), 5)
        2.0

    Notebook: 04.
    """
    _check_square(W)
    return torch.linalg.eigvals(W).abs().max().item()


def scale_to_radius(W, radius):
    """Multiply a matrix by the number that gives it this spectral radius.

    Args:
        W: (D, D) with a spectral radius above 0.
        radius: the wanted spectral radius.

    Returns:
        (D, D), a new tensor.

    Raises:
        ValueError: if W is not square or all its eigenvalues are 0.

    Example:
        >>> scale_to_radius(torch.diag(torch.tensor([4.0, 1.0])), 0.5).diagonal().tolist()
        [0.5, 0.125]

    Notebook: 04.
    """
    found = spectral_radius(W)
    if found == 0:
        raise ValueError("all eigenvalues of the matrix are 0: no factor gives it another spectral radius")
    return W * (radius / found)


def random_orthogonal(D, generator=None, *, gain=1.0, dtype=torch.float32):
    r"""A random rotation (or reflection), times a gain.

    It multiplies the length of every vector by the gain exactly, so the gradients of a linear network change
    by that factor a step, in every direction.

    Args:
        D: size.
        generator: source of the random numbers; torch's own if None.
        gain: all singular values, and the absolute values of all eigenvalues.
        dtype: torch dtype.

    Returns:
        (D, D).

    Raises:
        ValueError: if D is below 1.

    Example:
        >>> W = random_orthogonal(5, torch.Generator().manual_seed(0), gain=2.0)
        >>> torch.allclose(W @ W.T, 4 * torch.eye(5), atol=1e-5)
        True

    Source: Saxe, McClelland and Ganguli (2014), arXiv:1312.6120. Notebook: 04.
    """
    if D < 1:
        raise ValueError(f"D must be at least 1, got {D}")
    Q, R = torch.linalg.qr(torch.randn(D, D, generator=generator, dtype=dtype))
    return gain * Q * R.diagonal().sign()  # the signs make every rotation equally likely


# --- measured on any recurrent layer ----------------------------------------------


def gradient_map(layers, x, loss_fn):
    r"""The norm of a loss' gradient with respect to every state of a stack of layers.

    $$ \text{map}[n, t] = \frac1B \sum_b \Big\lVert \frac{\partial L}{\partial h^{(n)}_{b,t+1}} \Big\rVert,
       \qquad n = 0 \ldots N-1, \quad t = 0 \ldots T-1 $$

    The stack runs one step at a time, and each state goes both to the layer above and to the next step, so
    its gradient counts both ways. An LSTM's state is h and c together.

    Args:
        layers: list of N recurrent modules of one layer and one direction each (RNN, LSTM or GRU, torch's or the
            course's), batch first; each reads the states of the one before it.
        x: (B, T, I) inputs of the first.
        loss_fn: function of the last layer's states (B, T, D) that returns a scalar. Let it *sum* over the batch,
            else every norm is divided by B.

    Returns:
        (N, T) norms; row n is layer n.

    Raises:
        ValueError: if a layer has more than one layer or direction inside, or x is not (B, T, I) with the first
            layer's input size.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> layers = [torch.nn.RNN(2, 3, batch_first=True), torch.nn.LSTM(3, 4, batch_first=True)]
        >>> gradient_map(layers, torch.randn(5, 6, 2), lambda h: h[:, -1].sum()).shape
        torch.Size([2, 6])

    Notebook: 04.
    """
    for layer in layers:
        if layer.num_layers != 1 or layer.bidirectional:
            raise ValueError(
                f"each layer must be one layer in one direction, got num_layers={layer.num_layers}, "
                f"bidirectional={layer.bidirectional}; give a list of single ones"
            )
    _check_input(layers[0], x)
    states, kept, top = [None] * len(layers), [], []
    for t in range(x.shape[1]):
        below = x[:, t]
        for n, layer in enumerate(layers):
            _, states[n] = layer(below.unsqueeze(1), states[n])
            below = _parts(states[n])[0][-1]  # (B, D), the same tensor that goes to the next step
            kept.append(_parts(states[n]))
        top.append(below)
    parts = [part for state in kept for part in state]
    found = iter(torch.autograd.grad(loss_fn(torch.stack(top, dim=1)), parts, materialize_grads=True))
    norms = [torch.cat([next(found)[0] for _ in state], dim=-1).norm(dim=-1).mean() for state in kept]
    return torch.stack(norms).view(x.shape[1], len(layers)).T


def gradient_norm_by_lag(layer, x, loss_fn, *, wrt="state"):
    r"""How much a loss at the last step depends on what was there k steps before.

    $$ \text{norm}[k] = \frac1B \sum_b \Big\lVert \frac{\partial L_T}{\partial h_{b,T-k}} \Big\rVert $$

    Args:
        layer: RNN, LSTM or GRU, torch's or the course's, batch first. With wrt="state" one layer in one direction
            (an LSTM's state is h and c together); with wrt="input" any.
        x: (B, T, I) inputs.
        loss_fn: function of the last output (B, D) that returns a scalar; let it *sum* over the batch.
        wrt: "state", or "input" for the gradients with respect to $x_{T-k}$.

    Returns:
        (T,) norms by lag k = 0 .. T - 1.

    Raises:
        ValueError: if wrt is neither, or as `gradient_map`.

    Example:
        >>> layer = torch.nn.RNN(1, 1, batch_first=True, bias=False)
        >>> _ = torch.nn.init.constant_(layer.weight_hh_l0, 0.5)
        >>> gradient_norm_by_lag(layer, torch.zeros(1, 4, 1), torch.sum).tolist()
        [1.0, 0.5, 0.25, 0.125]

    Source: Bengio, Simard and Frasconi (1994), "Learning long-term dependencies with gradient descent is difficult".
    Notebook: 04.
    """
    if wrt == "state":
        return gradient_map([layer], x, lambda h: loss_fn(h[:, -1]))[0].flip(0)
    if wrt != "input":
        raise ValueError(f"wrt must be 'state' or 'input', got {wrt!r}")
    _check_input(layer, x)
    x = x.detach().requires_grad_()
    output, _ = layer(x)
    (dx,) = torch.autograd.grad(loss_fn(output[:, -1]), x)
    return dx.norm(dim=-1).mean(dim=0).flip(0)


# --- truncation -------------------------------------------------------------------


def detached(state):
    """A recurrent state without its history: the same numbers, and no gradient beyond them.

    Args:
        state: tensor, tuple of tensors (LSTM), or None.

    Returns:
        The same form.

    Example:
        >>> detached(torch.ones(2, requires_grad=True)).requires_grad
        False

    Notebook: 04.
    """
    if state is None:
        return None
    return tuple(part.detach() for part in state) if isinstance(state, tuple) else state.detach()


def truncated_backward(layer, loss_fn, x, y, window, state=None, *, carry=True):
    r"""Truncated backpropagation through time: forward and backward, window by window.

    $$ \sum_c \nabla_\theta \, \ell\big(f_\theta(x_{c},\ \mathrm{detach}(h_{cw})),\ y_{c}\big) $$

    The numbers of the state go on from window to window, its gradient does not. Only one window's activations are
    in memory at a time. The gradients are *added* to `.grad`, as `backward` always does.

    Args:
        layer: recurrent module, batch first: `layer(x, state) -> (output, state)`.
        loss_fn: `loss_fn(output (B, C, D), targets)` returns a scalar for C steps; let it sum over the steps, so that
            windows of different length add up to the whole.
        x: (B, T, I) inputs.
        y: (B, T, ...) targets.
        window: steps a window; T or more is the full gradient.
        state: initial state, detached at once; None is zeros.
        carry: False starts every window from zeros, which is not truncation but another model; for comparison.

    Returns:
        loss: scalar without gradient, the sum over the windows.
        state: the last state, detached.

    Raises:
        ValueError: if window is below 1, or x and y differ in B or T.

    Example:
        >>> layer, x, y = torch.nn.RNN(2, 3, batch_first=True), torch.randn(4, 7, 2), torch.zeros(4, 7, 3)
        >>> loss, state = truncated_backward(layer, lambda h, y: (h - y).square().sum(), x, y, window=3)
        >>> state.shape, layer.weight_hh_l0.grad.shape
        (torch.Size([1, 4, 3]), torch.Size([3, 3]))

    Source: Williams and Peng (1990), here with windows that do not overlap. Notebook: 04.
    """
    total = 0.0
    for loss, after in _windows(layer, loss_fn, x, y, window, state, carry):
        loss.backward()
        total, state = total + loss.detach(), after
    return total, state


def truncation_bias(layer, loss_fn, x, y, windows, state=None):
    r"""Compare truncated gradients with the full one: direction and length.

    $$ \cos = \frac{g_w \cdot g}{\lVert g_w \rVert \lVert g \rVert}, \qquad
       \text{ratio} = \frac{\lVert g_w \rVert}{\lVert g \rVert} $$

    where $g$ is the gradient of all the layer's parameters as one vector, and $g_w$ the truncated one. More data
    do not remove the difference: it is a bias, not noise.

    Args:
        layer: as in `truncated_backward`.
        loss_fn: as in `truncated_backward`.
        x: (B, T, I) inputs.
        y: (B, T, ...) targets.
        windows: the windows to compare.
        state: initial state; None is zeros.

    Returns:
        dict: {window: (cosine, ratio)}, floats; no `.grad` is changed.

    Raises:
        ValueError: as `truncated_backward`.

    Example:
        >>> layer, x, y = torch.nn.RNN(2, 3, batch_first=True), torch.randn(4, 7, 2), torch.zeros(4, 7, 3)
        >>> found = truncation_bias(layer, lambda h, y: (h - y).square().sum(), x, y, windows=[1, 7])
        >>> cosine, ratio = found[7]
        >>> round(cosine, 5), round(ratio, 5)
        (1.0, 1.0)

    Source: Tallec and Ollivier (2017), "Unbiasing truncated backpropagation through time", arXiv:1705.08209.
    Notebook: 04.
    """
    full = _truncated_gradient(layer, loss_fn, x, y, x.shape[1], state)
    found = {}
    for window in windows:
        cut = _truncated_gradient(layer, loss_fn, x, y, window, state)
        found[window] = ((cut @ full / (cut.norm() * full.norm())).item(), (cut.norm() / full.norm()).item())
    return found


# --- clipping ---------------------------------------------------------------------


def clip_norm(parameters, max_norm):
    r"""Shrink the whole gradient, if it is longer than allowed, without turning it.

    $$ g \leftarrow g \cdot \min\Big(1, \frac{\text{max\_norm}}{\lVert g \rVert}\Big), \qquad
       \lVert g \rVert = \sqrt{\sum_p \lVert g_p \rVert^2} $$

    Call it after `backward` and before `optimizer.step`. `torch.nn.utils.clip_grad_norm_` does the same, but
    divides by the norm plus 1e-6 and lets a gradient that is not finite pass.

    Args:
        parameters: iterable of tensors; their `.grad` are changed in place, those without are left out.
        max_norm: largest 2-norm of all gradients together, above 0; infinity only measures.

    Returns:
        float: the norm *before* clipping, which is the one to log.

    Raises:
        ValueError: if max_norm is not above 0.
        FloatingPointError: if the norm is not finite: no factor makes such a gradient useful.

    Example:
        >>> w = torch.zeros(2, requires_grad=True)
        >>> w.grad = torch.tensor([3.0, 4.0])
        >>> clip_norm([w], max_norm=1.0), w.grad
        (5.0, tensor([0.6000, 0.8000]))

    Source: Pascanu, Mikolov and Bengio (2013), arXiv:1211.5063, algorithm 1. Notebook: 04.
    """
    if not max_norm > 0:
        raise ValueError(f"max_norm must be above 0, got {max_norm}")
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    norm = math.sqrt(sum(gradient.square().sum().item() for gradient in gradients))
    if not math.isfinite(norm):
        raise FloatingPointError(f"the gradient's norm is {norm}: skip this step, and look for the cause")
    for gradient in gradients:
        gradient *= min(1.0, max_norm / norm) if norm > 0 else 1.0
    return norm


# --- shared -----------------------------------------------------------------------


def _slope(h, nonlinearity):
    """The derivative of the nonlinearity, from its value."""
    _check_nonlinearity(nonlinearity)
    return 1 - h.square() if nonlinearity == "tanh" else torch.ones_like(h)


def _outer(gradient, value):
    """The sum over sequences and steps of gradient^T value: (B, T, D) and (B, T, I) give (D, I)."""
    return gradient.flatten(0, 1).T @ value.flatten(0, 1)


def _parts(state):
    """A recurrent state as a tuple of tensors, h first."""
    return state if isinstance(state, tuple) else (state,)


def _windows(layer, loss_fn, x, y, window, state=None, carry=True):
    """Loss and detached last state of each window."""
    _check_window(window)
    if x.shape[:2] != y.shape[:2]:
        raise ValueError(f"x has shape {tuple(x.shape)} and y {tuple(y.shape)}; B and T must be equal")
    state = detached(state)
    for start in range(0, x.shape[1], window):
        steps = slice(start, start + window)
        output, after = layer(x[:, steps], state)
        after = detached(after)
        yield loss_fn(output, y[:, steps]), after
        state = after if carry else None


def _truncated_gradient(layer, loss_fn, x, y, window, state):
    """The gradient of all the layer's parameters as one vector, summed over the windows."""
    parameters, total = list(layer.parameters()), 0.0
    for loss, _ in _windows(layer, loss_fn, x, y, window, state):
        found = torch.autograd.grad(loss, parameters, materialize_grads=True, allow_unused=True)
        total = total + torch.cat([gradient.flatten() for gradient in found])
    return total


def _check_network(x, W_hx, W_hh, W_qh, h_0, nonlinearity, window):
    """Raise unless the shapes fit together."""
    _check_nonlinearity(nonlinearity)
    if window is not None:
        _check_window(window)
    _check_square(W_hh)
    D = len(W_hh)
    if x.ndim != 3:
        raise ValueError(f"x must be (B, T, I), got shape {tuple(x.shape)}")
    for name, W, wanted in (("W_hx", W_hx, (D, x.shape[2])), ("W_qh", W_qh, (*W_qh.shape[:1], D))):
        if W is not None and tuple(W.shape) != wanted:
            raise ValueError(
                f"{name} has shape {tuple(W.shape)}; with x of shape {tuple(x.shape)} and W_hh of shape "
                f"{tuple(W_hh.shape)} it must be {wanted}"
            )
    if h_0.shape != (len(x), D):
        raise ValueError(f"the state has shape {tuple(h_0.shape)}; wanted {(len(x), D)} for W_hh {tuple(W_hh.shape)}")


def _check_square(W, D=None, name="", other=None):
    """Raise unless W is (D, D)."""
    if W.ndim != 2 or W.shape[0] != W.shape[1]:
        raise ValueError(f"wanted a square matrix, got shape {tuple(W.shape)}")
    if D is not None and len(W) != D:
        raise ValueError(f"W_hh has shape {tuple(W.shape)} and {name} {tuple(other.shape)}; their D must be equal")


def _check_input(layer, x):
    """Raise unless x is (B, T, I) for this layer."""
    if x.ndim != 3 or x.shape[2] != layer.input_size:
        raise ValueError(f"x has shape {tuple(x.shape)}; wanted (B, T, {layer.input_size}), the layer's input size")


def _check_nonlinearity(nonlinearity):
    """Raise unless it is known."""
    if nonlinearity not in ("linear", "tanh"):
        raise ValueError(f"nonlinearity must be 'linear' or 'tanh', got {nonlinearity!r}")


def _check_window(window):
    """Raise unless there is at least one step in it."""
    if window < 1:
        raise ValueError(f"window must be at least 1 step, got {window}")
