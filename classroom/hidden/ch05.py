"""Hidden tests of chapter 05: cells, a classifier and counts against torch's, weights by brute force."""

import math

import torch
from torch import nn

from classroom.hidden import Hidden, on_paper


def draw_lstm_cell(draw):
    B, inputs, D = draw.sizes(3)
    shapes = (B, inputs), (B, D), (B, D), (4 * D, inputs), (4 * D, D), (4 * D,)
    return tuple(draw.normal(*shape) for shape in shapes)


def right_lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    cell = nn.LSTMCell(x.shape[1], h.shape[1]).double()
    cell.weight_ih.data, cell.weight_hh.data, cell.bias_ih.data = weight_ih, weight_hh, bias
    cell.bias_hh.data.zero_()
    return cell(x, (h, c))


def right_left():
    gates = {3: 0.8, 4: 0.6, 5: 0.7}
    cell = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
    late = cell
    for step in (3, 4, 5):
        late = gates[step] * late
    (slope,) = torch.autograd.grad(late, cell)
    written = math.prod(gates[step] for step in (4, 5))
    low, high = 0.0, 20.0  # the bias, by bisection
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if (1 + math.exp(-middle)) ** -100 < 0.5 else (low, middle)
    return slope.item(), written, low


def draw_gru_cell(draw):
    B, inputs, D = draw.sizes(3)
    shapes = (B, inputs), (B, D), (3 * D, inputs), (3 * D, D), (3 * D,), (3 * D,)
    return tuple(draw.normal(*shape) for shape in shapes)


def right_gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    cell = nn.GRUCell(x.shape[1], h.shape[1]).double()
    cell.weight_ih.data, cell.weight_hh.data, cell.bias_ih.data, cell.bias_hh.data = (
        weight_ih, weight_hh, bias_ih, bias_hh,
    )  # fmt: skip
    return cell(x, h)


def draw_gru_weights(draw):
    z = draw.share(*draw.sizes(2))
    z[draw.randrange(len(z)), 0] = 0.0  # a gate that is shut
    return (z,)


def right_gru_weights(z):
    """Write 1 into h_0 or into one candidate, 0 elsewhere, and run the recursion: what arrives is the weight."""
    rows = []
    for source in range(len(z) + 1):
        state = torch.full_like(z[0], float(source == 0))
        for step, gate in enumerate(z, 1):
            state = (1 - gate) * float(source == step) + gate * state
        rows.append(state)
    return torch.stack(rows)


def right_parameter_counts():
    def count(layer):
        return sum(parameter.numel() for parameter in layer.parameters())

    return (
        count(nn.LSTM(10, 20)), count(nn.GRU(10, 20)), count(nn.LSTM(10, 20, num_layers=2, bidirectional=True)),
        nn.LSTM(10, 20).bias_hh_l0.numel(), nn.GRU(10, 20).bias_hh_l0[:40].numel(),
    )  # fmt: skip


def draw_review_classifier(draw):
    B, T, V, inputs, D, C = draw.sizes(6, high=9)
    shapes = {"embedding.weight": (V, inputs), "gates.weight": (4 * D, inputs + D), "gates.bias": (4 * D,)}
    shapes |= {"output.weight": (C, D), "output.bias": (C,)}
    weights = {name: draw.normal(*shape) for name, shape in shapes.items()}
    return [V, inputs, D, C], weights, draw.ids(V, B, T), draw.ids(T + 1, B, low=1)


def probe_review_classifier(answer, sizes, weights, ids, lengths):
    import torch

    model = answer(*sizes).double()
    shapes = {name: list(value.shape) for name, value in model.state_dict().items()}
    model.load_state_dict(weights)
    logits = model(ids, lengths)
    gradients = torch.autograd.grad(logits.square().sum(), list(model.parameters()), allow_unused=True)
    names = [name for name, _ in model.named_parameters()]
    return shapes, logits, dict(zip(names, gradients, strict=True))


def right_review_classifier(sizes, weights, ids, lengths):
    """By torch's cell, one row after the other, without any padding."""
    _, inputs, D, _ = sizes
    weights = {name: value.clone().requires_grad_() for name, value in weights.items()}
    weight_ih, weight_hh = weights["gates.weight"].split([inputs, D], dim=1)
    zeros, rows = torch.zeros(1, D, dtype=torch.float64), []
    for row, length in zip(ids, lengths.tolist(), strict=True):
        h = c = zeros
        for token in row[:length]:
            x = weights["embedding.weight"][token][None]
            h, c = torch.lstm_cell(x, (h, c), weight_ih, weight_hh, weights["gates.bias"], torch.zeros(4 * D).double())
        rows.append(h[0])
    logits = torch.stack(rows) @ weights["output.weight"].T + weights["output.bias"]
    gradients = torch.autograd.grad(logits.square().sum(), list(weights.values()))
    shapes = {name: list(value.shape) for name, value in weights.items()}
    return shapes, logits, dict(zip(weights, gradients, strict=True))


LSTMS = (
    "LSTM", "LSTMCell", "lstm", "lstm_cell", "_thnn_fused_lstm_cell", "lstm_step", "lstm_gates",
)  # fmt: skip
GRUS = (
    "GRU", "GRUCell", "gru", "gru_cell", "_thnn_fused_gru_cell", "gru_step", "gru_gates",
    "gru_gates_reset_before", "ResetBeforeGRU",
)  # fmt: skip
TESTS = [
    Hidden("ex05-1-lstm-cell-check", "lstm_cell", draw_lstm_cell, right_lstm_cell, without=LSTMS),
    on_paper("ex05-2-along-the-cell-check", "left", right_left),
    Hidden("ex05-3-gru-cell-check", "gru_cell", draw_gru_cell, right_gru_cell, without=GRUS),
    on_paper("ex05-4-parameter-counts-check", "numbers", right_parameter_counts),
    Hidden(
        "ex05-5-gru-weights-check", "gru_weights", draw_gru_weights, right_gru_weights, without=("unrolled_weights",),
    ),
    Hidden(
        "ex05-7-review-classifier-check", "ReviewClassifier", draw_review_classifier, right_review_classifier,
        probe_review_classifier, without=(*LSTMS, "SequenceClassifier"),
    ),
]  # fmt: skip
