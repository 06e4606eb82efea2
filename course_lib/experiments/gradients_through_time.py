r"""Recorded runs of chapter 04: what happens to gradients on their way back through time.

Read in this order: `bptt_lag` and `bptt_activations` (vanishing and exploding by lag), `bptt_map` (by time step and
depth), `bptt_truncation` (what a truncated gradient misses, and what a model then cannot learn), `bptt_readout` (what
the output layer learns nevertheless), `bptt_clipping` (training with and without clipping). All data are generated:
nothing is downloaded.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import bptt
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.lstm_gru import LSTM, set_forget_bias
from course_lib.rnn import RNN

# --- gradients by lag and by depth ------------------------------------------------


@experiment("bptt-lag", "Gradient norm by lag for linear and tanh recurrences of several radii, untrained.")
def bptt_lag(seed, steps=100, width=64, batch_size=16, radii=(0.9, 1.0, 1.1, 1.5), input_scale=0.1):
    """A loss at the last step that reads a random direction, and its gradient at every state before.

    "orthogonal": a random rotation times the radius; "gaussian": independent entries, scaled to the radius.
    The norms are relative to lag 0.
    """
    results = {}
    for nonlinearity in ("linear", "tanh"):
        for kind in ("orthogonal", "gaussian"):
            for radius in radii:
                generator = torch.Generator().manual_seed(seed)  # the same draws for each: only the radius differs
                x = input_scale * torch.randn(batch_size, steps, width, generator=generator, dtype=torch.float64)
                W_hh = recurrent_matrix(kind, width, radius, generator)
                norms, slope = norms_by_lag(x, W_hh, nonlinearity, generator)
                results[f"{nonlinearity}, {kind}, radius {radius}"] = {
                    "norms": norms,
                    "rate": (norms[-1] / norms[steps // 2]) ** (1 / (steps - 1 - steps // 2)),
                    "mean_slope": slope,
                }
    return {"results": results}


def recurrent_matrix(kind, width, radius, generator):
    """A random (width, width) matrix of this spectral radius in float64; kind is "orthogonal" or "gaussian"."""
    if kind == "orthogonal":
        return bptt.random_orthogonal(width, generator, gain=radius, dtype=torch.float64)
    return bptt.scale_to_radius(torch.randn(width, width, generator=generator, dtype=torch.float64), radius)


def norms_by_lag(x, W_hh, nonlinearity, generator):
    """Norms of d loss_T / d h_{T-k} relative to k = 0, and the mean of phi'; the inputs enter unchanged."""
    eye = torch.eye(len(W_hh), dtype=x.dtype)
    cache = bptt.forward_pass(x, eye, W_hh, eye, nonlinearity=nonlinearity)
    do = torch.zeros_like(cache.o)
    do[:, -1] = torch.randn(len(x), len(W_hh), generator=generator, dtype=x.dtype)
    norms = bptt.backward_pass(do, cache, W_hh, eye, nonlinearity=nonlinearity).h[:, 1:].norm(dim=-1)
    slope = 1 - cache.h[:, 1:].square().mean().item() if nonlinearity == "tanh" else 1.0
    return (norms / norms[:, -1:]).mean(dim=0).flip(0).tolist(), slope


ACTIVATIONS = {"tanh": torch.tanh, "sigmoid": torch.sigmoid, "ReLU": torch.relu}


@experiment(
    "bptt-activations", "Gradient norm by lag for tanh, sigmoid and ReLU recurrences of several radii, untrained."
)
def bptt_activations(seed, steps=60, width=64, batch_size=16, radii=(0.9, 1.5, 2.0, 4.0), input_scale=0.1):
    """A loss at the last step that reads a random direction, and its gradient at every state before, by autograd.

    Recurrent weights are a random rotation times the radius, in float64. "rate" is the factor a step between a quarter
    and three quarters of the way; "largest_state" is the largest entry of the last state.
    """
    results = {}
    for name, activation in ACTIVATIONS.items():
        for radius in radii:
            generator = torch.Generator().manual_seed(seed)  # the same draws for each: only radius and function differ
            x = input_scale * torch.randn(batch_size, steps, width, generator=generator, dtype=torch.float64)
            W_hh = recurrent_matrix("orthogonal", width, radius, generator)
            direction = torch.randn(batch_size, width, generator=generator, dtype=torch.float64)
            states = [torch.zeros(batch_size, width, dtype=torch.float64, requires_grad=True)]
            for x_t in x.unbind(dim=1):
                states.append(activation(x_t + states[-1] @ W_hh.T))
            found = torch.autograd.grad((states[-1] * direction).sum(), states[1:])
            norms = torch.stack(found, dim=1).norm(dim=-1)  # (B, T)
            norms = (norms / norms[:, -1:]).mean(dim=0).flip(0).tolist()
            early, late = steps // 4, 3 * steps // 4
            results[f"{name}, radius {radius}"] = {
                "norms": norms,
                "rate": (norms[late] / norms[early]) ** (1 / (late - early)),
                "largest_state": states[-1].abs().max().item(),
            }
    return {"results": results}


@experiment("bptt-map", "Gradient norm by time step and layer of a stack of layers, untrained, loss at the end.")
def bptt_map(seed, layers=4, steps=40, width=64, batch_size=16, inputs=16, open_bias=5.0):
    """One row of norms for each layer, for RNNs and LSTMs that start in two ways each.

    RNNs: torch's own start, and orthogonal recurrent weights. LSTMs: torch's own start, and a forget bias of
    `open_bias`; an LSTM's gradient is that with respect to h and c together.
    """
    results = {}
    for start in ("default", "orthogonal", "LSTM, default", "LSTM, open"):
        generator = torch.Generator().manual_seed(seed)
        stack = stacked(layers, inputs, width, start, generator, open_bias)
        x = torch.randn(batch_size, steps, inputs, generator=generator)
        direction = torch.randn(batch_size, width, generator=generator)
        found = bptt.gradient_map(stack, x, lambda h, d=direction: (h[:, -1] * d).sum())
        results[f"{start} start"] = {
            "norms": found.tolist(),
            "first_over_last": [(row[0] / row[-1]).item() for row in found],
        }
    return {"results": results}


def stacked(layers, inputs, width, start, generator, open_bias=5.0):
    """A list of one-layer RNNs, start "default" or "orthogonal", or LSTMs, start "LSTM, default" or "LSTM, open"."""
    torch.manual_seed(int(torch.randint(2**31, (), generator=generator)))
    kind = LSTM if start.startswith("LSTM") else RNN
    stack = [kind(inputs if n == 0 else width, width) for n in range(layers)]
    for layer in stack:
        if start == "orthogonal":
            layer.weight_hh_l0.data = bptt.random_orthogonal(width, generator)
        if start == "LSTM, open":
            set_forget_bias(layer, open_bias)
    return stack


# --- truncation -------------------------------------------------------------------


@experiment(
    "bptt-truncation", "Repeat a token after a lag: truncated gradients against full ones, and what is learned."
)
def bptt_truncation(
    seed,
    lag=8,
    windows=(2, 4, 8, 10, 12, 16, 32),
    tokens=14_000,
    vocab_size=5,
    width=64,
    batch_size=16,
    learning_rate=3e-3,
):
    """Every variant reads the same number of tokens; each is tested on one long stream with its state carried.

    The bias compares the gradient of 128 steps with the full one, for the untrained network and for the one
    that learned with the longest window.
    """
    results, models = {}, {}
    models["untrained"] = echo_model(seed, vocab_size, width)
    for window in windows:
        for carry in (True, False):
            model = echo_model(seed, vocab_size, width)
            generator = torch.Generator().manual_seed(seed)
            losses = train_echo(model, lag, window, tokens // window, batch_size, learning_rate, generator, carry=carry)
            results[f"{'carried' if carry else 'zeroed'}, window {window}"] = {
                "window": window,
                "accuracy": echo_accuracy(model, lag, torch.Generator().manual_seed(1000 + seed)),
                "train_loss": sum(losses[-50:]) / len(losses[-50:]),
            }
            if carry:
                models["trained"] = model
    for name in ("untrained", "trained"):
        found = echo_bias(models[name], lag, (*windows, 64), torch.Generator().manual_seed(2000 + seed))
        results[f"bias, {name}"] = {
            "windows": list(found),
            "cosine": [cosine for cosine, _ in found.values()],
            "norm_ratio": [ratio for _, ratio in found.values()],
        }
    return {"results": results}


class Echo(nn.Module):
    """One-hot tokens -> a tanh layer -> logits of the token of `lag` steps ago."""

    def __init__(self, vocab_size, width):
        super().__init__()
        self.layer, self.head = RNN(vocab_size, width), nn.Linear(width, vocab_size)

    def one_hot(self, ids):
        """(B, T) ids -> (B, T, V)."""
        return F.one_hot(ids, self.layer.input_size).float()

    def loss(self, output, targets):
        """Cross-entropy in nats, summed over steps and sequences."""
        return F.cross_entropy(self.head(output).flatten(0, 1), targets.flatten(), reduction="sum")


def echo_model(seed, vocab_size, width):
    """An untrained `Echo`, the same for the same seed."""
    torch.manual_seed(seed)
    return Echo(vocab_size, width)


def echo_stream(model, lag, batch_size, steps, generator):
    """Random tokens (B, steps) and, as targets, those of `lag` steps before."""
    ids = torch.randint(model.layer.input_size, (batch_size, lag + steps), generator=generator)
    return ids[:, lag:], ids[:, :-lag]


def train_echo(model, lag, window, steps, batch_size, learning_rate, generator, *, carry=True):
    """One optimizer step a window of one endless stream; the losses, in nats a token."""
    inputs, targets = echo_stream(model, lag, batch_size, steps * window, generator)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    state, losses = None, []
    for x, y in zip(inputs.split(window, dim=1), targets.split(window, dim=1), strict=True):
        output, state = model.layer(model.one_hot(x), bptt.detached(state) if carry else None)
        loss = model.loss(output, y) / y.numel()
        optimizer.zero_grad()
        loss.backward()
        bptt.clip_norm(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def echo_accuracy(model, lag, generator, batch_size=64, steps=200):
    """Fraction of right answers on a stream that is never cut; the first `lag`, which nobody can know, are left out."""
    inputs, targets = echo_stream(model, lag, batch_size, steps, generator)
    with torch.no_grad():
        output, _ = model.layer(model.one_hot(inputs))
        right = model.head(output).argmax(dim=-1) == targets
    return right[:, lag:].float().mean().item()


def echo_bias(model, lag, windows, generator, batch_size=16, steps=128):
    """`bptt.truncation_bias` on a fresh stretch of the stream."""
    inputs, targets = echo_stream(model, lag, batch_size, steps, generator)
    return bptt.truncation_bias(model.layer, model.loss, model.one_hot(inputs), targets, windows)


@experiment(
    "bptt-readout", "Repeat a token after a lag, windows no longer than the lag: read-out alone, and all weights."
)
def bptt_readout(
    seed, lag=6, window=6, radius=0.95, tokens=9600, vocab_size=5, width=64, batch_size=16, learning_rate=4e-3
):
    """The gradient of the output layer is not truncated: what does it learn from a recurrence that never learns?

    Each variant reads the same stream with its state carried and detached at every window. "rotation" starts the
    recurrence at a random rotation times `radius`; "frozen" leaves the layer as it starts and trains the output alone.
    """
    results = {}
    for start in ("default", "rotation"):
        for learns in ("frozen", "trained"):
            model = echo_model(seed, vocab_size, width)
            generator = torch.Generator().manual_seed(seed)
            if start == "rotation":
                model.layer.weight_hh_l0.data = bptt.random_orthogonal(width, generator, gain=radius)
            model.layer.requires_grad_(learns == "trained")
            train_echo(model, lag, window, tokens // window, batch_size, learning_rate, generator)
            results[f"{start}, {learns}"] = {
                "accuracy": echo_accuracy(model, lag, torch.Generator().manual_seed(1000 + seed))
            }
    return {"results": results}


# --- clipping ---------------------------------------------------------------------


@experiment("bptt-clipping", "Recall by a tanh network trained with and without clipping, at several learning rates.")
def bptt_clipping(
    seed,
    lag=20,
    steps=600,
    width=50,
    vocab_size=6,
    batch_size=32,
    learning_rates=(0.01, 0.03, 0.1, 0.3, 1.0),
    max_norm=1.0,
):
    """Plain SGD from orthogonal recurrent weights; clipping is the only difference between two variants of a rate.

    "worst_loss" is the largest after the first tenth of the steps; "norm_max" and "norm_median" are of the gradient
    before clipping. The history holds, for every hundredth of the run, the largest norm and the mean loss.
    """
    results, history = {}, {}
    for clipped in (False, True):
        for rate in learning_rates:
            name = f"{f'clipped at {max_norm:g}' if clipped else 'not clipped'}, rate {rate:g}"
            row, losses, norms = train_recall(
                seed, lag, steps, width, vocab_size, batch_size, rate, max_norm if clipped else math.inf
            )
            results[name] = {"rate": rate, **row}
            part = max(1, steps // 100)
            history[name] = [
                {"step": i + 1, "loss": sum(losses[i : i + part]) / part, "norm": max(norms[i : i + part])}
                for i in range(0, len(losses) - part + 1, part)
            ]
    return {"results": results, "history": history}


def train_recall(seed, lag, steps, width, vocab_size, batch_size, learning_rate, max_norm):
    """Train on `synthetic.recall_task`; a row for the ledger, the losses (nats) and the norms before clipping."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = Echo(vocab_size, width)
    model.layer.weight_hh_l0.data = bptt.random_orthogonal(width, generator)
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    losses, norms = [], []
    for _ in range(steps):
        x, y = synthetic.recall_task(batch_size, lag, vocab_size, generator)
        output, _ = model.layer(model.one_hot(x))
        loss = model.loss(output[:, -1:], y[:, None]) / batch_size
        optimizer.zero_grad()
        loss.backward()
        norms.append(bptt.clip_norm(model.parameters(), max_norm))
        losses.append(loss.item())
        optimizer.step()
    x, y = synthetic.recall_task(1000, lag, vocab_size, generator)
    with torch.no_grad():
        output, _ = model.layer(model.one_hot(x))
        accuracy = (model.head(output[:, -1]).argmax(dim=-1) == y).float().mean().item()
    row = {"accuracy": accuracy, "final_loss": sum(losses[-50:]) / len(losses[-50:])}
    row |= {"worst_loss": max(losses[steps // 10 :]), "norm_max": max(norms)}
    return row | {"norm_median": sorted(norms)[len(norms) // 2]}, losses, norms
