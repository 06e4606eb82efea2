"""Hidden tests of chapter 04: every gradient by autograd along another way, pairs by counting."""

import math

import torch
from torch import nn
from torch.nn import functional as F

from classroom.hidden import Hidden, on_paper
from classroom.own_code import BY_AUTOGRAD


def right_three_steps():
    w_ih, w_hh, w_ho, h = (torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in (1.0, 0.5, 2.0, 0.0))
    states, loss = [], 0.0
    for x, y in zip((2, 0, 1), (1, 2, 0), strict=True):
        h = w_ih * x + w_hh * h
        states.append(h)
        loss = loss + (w_ho * h - y) ** 2 / 2 / 3
    return [slope.item() for slope in torch.autograd.grad(loss, [states[0], w_ih, w_hh, w_ho])]


def draw_expanded_gradient(draw):
    B, T, D, Q = draw.sizes(4)
    T = draw.choice([1, T, T, T])
    return draw.normal(B, T, Q), draw.normal(D, D), draw.normal(Q, D)


def probe_expanded_gradient(answer, do, W_hh, W_ho):
    return [answer(do, W_hh, W_ho, t) for t in range(1, do.shape[1] + 1)]


def right_expanded_gradient(do, W_hh, W_ho):
    """The gradient of h_t is that of a zero which is added to it."""
    added = torch.zeros(len(do), do.shape[1], len(W_hh), dtype=do.dtype, requires_grad=True)
    h, loss = added[:, 0] * 0, 0.0
    for t in range(do.shape[1]):
        h = F.linear(h, W_hh) + added[:, t]
        loss = loss + (do[:, t] * F.linear(h, W_ho)).sum()
    return list(torch.autograd.grad(loss, added)[0].unbind(dim=1))


def draw_leaky_backward(draw):
    B, T, inputs, D, Q = draw.sizes(5)
    alpha = draw.choice([0.0, 1.0, 0.25, draw.random(), draw.random()])
    x, h, c, W_ih, W_hh, b = draw.normal(B, T, inputs), [draw.normal(B, D)], [], *half_normal(draw, D, inputs)
    for t in range(T):
        c.append(torch.tanh(x[:, t] @ W_ih.T + h[-1] @ W_hh.T + b))
        h.append((1 - alpha) * h[-1] + alpha * c[-1])
    return draw.normal(B, T, Q), x, torch.stack(h, 1), torch.stack(c, 1), W_hh, draw.normal(Q, D), alpha


def half_normal(draw, D, inputs):
    """Return weights that keep tanh away from its ends."""
    return draw.normal(D, inputs) / 2, draw.normal(D, D) / 2, draw.normal(D) / 2


def probe_leaky_backward(answer, *given):
    import torch

    with torch.inference_mode():  # without autograd, says the exercise
        return answer(*given), given


def right_leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    """Autograd; W_ih and b are unknown, so changes of them, which are 0, are added to what stood inside tanh.

    What was given must come back as it was.
    """
    W_ih, b = torch.zeros(len(W_hh), x.shape[2], dtype=x.dtype), torch.zeros(len(W_hh), dtype=x.dtype)
    weights = [weight.requires_grad_() for weight in (W_ih, W_hh, W_ho, b)]
    rest = torch.atanh(c) - h[:, :-1] @ W_hh.T.detach()  # x W_ih^T + b
    state, loss = h[:, 0], 0.0
    for t in range(x.shape[1]):
        inside = rest[:, t] + x[:, t] @ W_ih.T + state @ W_hh.T + b
        state = torch.lerp(state, inside.tanh(), alpha)
        loss = loss + (do[:, t] * (state @ W_ho.T)).sum()
    return torch.autograd.grad(loss, weights), (do, x, h, c, W_hh, W_ho, alpha)


def right_kept_pairs():
    def share(lag):
        kept = [t // 4 == (t - lag) // 4 for t in range(lag, 12)]
        return kept.count(True) / len(kept)

    return [share(lag) for lag in (1, 3, 4)]


def draw_window_backward(draw):
    B, T, inputs, D = draw.sizes(4, high=9)
    kind, gates = draw.choice([("RNN", 1), ("GRU", 3)])
    shapes = (gates * D, inputs), (gates * D, D), (gates * D,), (gates * D,)
    weights, before = ([draw.normal(*shape) / 2 for shape in shapes] for _ in range(2))
    y = draw.choice([draw.normal(B, T, D), draw.ids(D, B, T)])  # regression, or a class at every step
    return kind, weights, before, draw.normal(B, T, inputs), y, draw.choice([1, 2, max(2, T - 1), T, T + 1])


def probe_window_backward(answer, kind, weights, before, x, y, window):
    import torch

    def loss_fn(output, targets):
        if targets.ndim == 3:
            return (output - targets).square().sum()
        return torch.nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten(), reduction="sum")

    layer = getattr(torch.nn, kind)(x.shape[2], weights[1].shape[1], batch_first=True).double()
    for parameter, weight, gradient in zip(layer.parameters(), weights, before, strict=True):
        parameter.data, parameter.grad = weight, gradient
    loss = answer(layer, loss_fn, x, y, window)
    holds_graph = isinstance(loss, torch.Tensor) and loss.requires_grad
    return loss, holds_graph, [parameter.grad for parameter in layer.parameters()]


def right_window_backward(kind, weights, before, x, y, window):
    """All states first, then each window on its own from the state before it, as a constant."""
    layer = getattr(nn, kind)(x.shape[2], weights[1].shape[1], batch_first=True).double()
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(weights), layer.parameters())
    states, loss = layer(x)[0].detach(), 0.0
    for start in range(0, x.shape[1], window):
        state = states[:, start - 1][None].contiguous() if start else None
        output, part = layer(x[:, start : start + window], state)[0], y[:, start : start + window]
        if y.ndim == 3:
            loss = loss + F.mse_loss(output, part, reduction="sum")
        else:
            loss = loss - output.log_softmax(-1).gather(-1, part[..., None]).sum()
    slopes = torch.autograd.grad(loss, list(layer.parameters()))
    return loss.item(), False, [old + new for old, new in zip(before, slopes, strict=True)]


def draw_training_step(draw):
    B, T, inputs, D, V = draw.sizes(5)
    weights = [*half_normal(draw, D, inputs)[:2], draw.normal(V, D), draw.normal(D) / 2]
    alpha, rate = draw.choice([0.0, 1.0, 0.25, draw.random(), draw.random()]), draw.uniform(0.1, 2.0)
    return weights, draw.normal(B, D), draw.normal(B, T, inputs), draw.ids(V, B, T), alpha, rate


def probe_training_step(answer, weights, h_0, x, y, alpha, rate):
    import torch

    with torch.inference_mode():  # without autograd, says the exercise
        return [answer(weights, h_0, x, y, alpha, rate, limit) for limit in (0.01, 0.1, 100.0)], weights


def right_training_step(weights, h_0, x, y, alpha, rate):
    """Autograd, then one long vector that is shortened and cut up. What was given stays as it was."""
    leaves = [weight.clone().requires_grad_() for weight in weights]
    W_ih, W_hh, W_ho, b = leaves
    state, log_likelihoods = h_0, []
    for t in range(x.shape[1]):
        state = torch.lerp(state, torch.tanh(F.linear(x[:, t], W_ih, b) + F.linear(state, W_hh)), alpha)
        log_likelihoods.append(F.linear(state, W_ho).log_softmax(-1).gather(-1, y[:, t, None]))
    loss = -torch.stack(log_likelihoods).mean()
    slopes = torch.autograd.grad(loss, leaves)
    whole = torch.cat([slope.flatten() for slope in slopes])
    norm = math.sqrt(math.fsum(entry**2 for entry in whole.tolist()))
    results = []
    for limit in (0.01, 0.1, 100.0):
        parts = (whole * min(1.0, limit / norm if norm else 1.0)).split([weight.numel() for weight in weights])
        new = [weight - rate * part.view_as(weight) for weight, part in zip(weights, parts, strict=True)]
        results.append((new, state.detach(), loss.item()))
    return results, weights


TESTS = [
    on_paper("ex04-1-three-steps-check", "on_paper", right_three_steps),
    Hidden(
        "ex04-2-expanded-gradient-check",
        "expanded_gradient",
        draw_expanded_gradient,
        right_expanded_gradient,
        probe_expanded_gradient,
    ),
    Hidden(
        "ex04-3-leaky-backward-check",
        "leaky_backward",
        draw_leaky_backward,
        right_leaky_backward,
        probe_leaky_backward,
        without=BY_AUTOGRAD,
        cases=8,
    ),
    on_paper("ex04-4-kept-pairs-check", "shares", right_kept_pairs),
    Hidden(
        "ex04-5-window-backward-check",
        "window_backward",
        draw_window_backward,
        right_window_backward,
        probe_window_backward,
        without=("truncated_backward",),
        cases=8,
    ),
    Hidden(
        "ex04-6-training-step-check",
        "training_step",
        draw_training_step,
        right_training_step,
        probe_training_step,
        without=(*BY_AUTOGRAD, "clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_norm", "clip_norm"),
        cases=8,
    ),
]
