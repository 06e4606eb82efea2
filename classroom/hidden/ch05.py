"""Hidden tests of chapter 05: LSTM and GRU cells against torch's, counts against torch's, weights by brute force."""

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


def draw_last_states(draw):
    B, T, D = draw.sizes(3)
    return draw.normal(B, T, 2 * D), draw.ids(T + 1, B, low=1)


def right_last_states(output, lengths):
    D = output.shape[2] // 2
    rows = zip(output, lengths.tolist(), strict=True)
    return torch.stack([torch.cat([row[n - 1, :D], row[0, D:]]) for row, n in rows])


LSTMS = (
    "LSTM", "LSTMCell", "lstm", "lstm_cell", "_thnn_fused_lstm_cell", "lstm_step", "lstm_gates", "lstm_loop",
)  # fmt: skip
GRUS = (
    "GRU", "GRUCell", "gru", "gru_cell", "_thnn_fused_gru_cell", "gru_step", "gru_gates", "gru_loop",
    "gru_step_reset_before", "ResetBeforeGRU",
)  # fmt: skip
TESTS = [
    Hidden("ex05-1-lstm-cell-check", "lstm_cell", draw_lstm_cell, right_lstm_cell, without=LSTMS),
    on_paper("ex05-2-along-the-cell-check", "left", right_left),
    Hidden("ex05-3-gru-cell-check", "gru_cell", draw_gru_cell, right_gru_cell, without=GRUS),
    Hidden(
        "ex05-4-gru-weights-check", "gru_weights", draw_gru_weights, right_gru_weights, without=("unrolled_weights",),
    ),
    on_paper("ex05-5-parameter-counts-check", "numbers", right_parameter_counts),
    Hidden("ex05-7-last-states-check", "last_states", draw_last_states, right_last_states),
]  # fmt: skip
