"""Hidden tests of chapter 03: torch's layers and their gradients, every string of ten marks, a toy model's tables."""

import torch
from torch import nn

from classroom.hidden import Hidden, agree, on_paper
from course_lib.exercises import Wrong, expect_number, expect_tensor


def draw_rnn_forward(draw):
    B, T, inputs, D = draw.sizes(4)
    T = draw.choice([1, T, T, T])
    return draw.normal(B, T, inputs), draw.normal(B, D), draw.normal(D, inputs), draw.normal(D, D), draw.normal(D)


def probe_rnn_forward(answer, x, h, *weights):
    import torch

    weights = [weight.requires_grad_() for weight in weights]
    output, h_n = answer(x, h, *weights)
    pull = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    return output, h_n, torch.autograd.grad((output * pull).sum(), weights)


def right_rnn_forward(x, h, weight_ih, weight_hh, bias):
    layer = nn.RNN(x.shape[2], h.shape[1], batch_first=True).double()
    for parameter, value in zip(layer.parameters(), (weight_ih, weight_hh, bias, 0 * bias), strict=True):
        parameter.data = value
    output, h_n = layer(x, h[None])
    pull = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    return output, h_n[0], torch.autograd.grad((output * pull).sum(), list(layer.parameters())[:3])


def right_quotation_weights():
    """Strings of marks, and when a quotation is open: every string of ten characters, and long ones."""
    short = (torch.arange(1024)[:, None] >> torch.arange(10)) % 2
    shares = torch.tensor([[0.0], [0.02], [0.1], [0.3], [0.5], [0.8], [1.0]])  # of marks
    long = (torch.rand(7, 1500, generator=torch.Generator().manual_seed(8)) < shares).long()
    long[:, :2] = torch.tensor([0, 1])  # one mark at least, and nothing after it in the first row
    return [[marks, marks.cumsum(1) % 2 == 1] for marks in (short, long)]


def judge_quotation_weights(got, wanted):
    """Run the two units: any weights that give the right answers are right."""
    if not isinstance(got, list) or len(got) != 5:
        raise Wrong("wanted five parts (W_ih, W_hh, b, w_o, c)")
    shapes = (2, 1), (2, 2), (2,), (2,)
    *weights, w_o = (expect_tensor(part, shape).double() for part, shape in zip(got[:4], shapes, strict=True))
    layer = nn.RNN(1, 2, batch_first=True).double()
    for parameter, value in zip(layer.parameters(), (*weights, torch.zeros(2).double()), strict=True):
        parameter.data = value
    for marks, is_open in wanted:
        y = layer(marks.double()[:, :, None])[0].detach() @ w_o + expect_number(got[4], "c")
        if not torch.equal(y > 0, is_open):
            step = int(((y > 0) != is_open).any(0).nonzero()[0])
            raise Wrong(f"of {len(marks)} strings with {marks.shape[1]} characters one goes wrong at step {step}")


def right_stack_sizes():
    layer = nn.RNN(input_size=12, hidden_size=5, num_layers=3, bidirectional=True)
    output, h_n = layer(torch.zeros(7, 2, 12))
    parameters = sum(parameter.numel() for parameter in layer.parameters())
    return parameters, layer.weight_ih_l2_reverse.shape[1], h_n.shape[0], output.shape[2]


def judge_stack_sizes(got, wanted):
    """Compare whole numbers, digit by digit."""
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    if not isinstance(got, list) or [expect_number(number) for number in got] != wanted:
        raise Wrong("these are not the sizes of torch's layer")


def draw_summaries(draw):
    B, T, D = draw.sizes(3)
    output, lengths = draw.normal(B, T, 2 * D), draw.ids(T + 1, B, low=1)
    output[torch.arange(T) >= lengths[:, None]] = 1e6  # whatever stands at the padding
    return output, lengths


def right_summaries(output, lengths):
    D = output.shape[2] // 2
    sums = []
    for row, n in zip(output, lengths.tolist(), strict=True):
        forward, backward = row[:n].split(D, dim=1)  # the real steps, and of them the last and the first
        sums.append(torch.cat([forward[-1], backward[0]]))
    return torch.stack(sums)


def draw_continue_text(draw):
    V, states = draw.randint(5, 9), 30
    prompt = draw.ids(V, draw.choice([1, 2, 3, 4, 5])).tolist()
    return draw.ids(states, states, V).tolist(), draw.normal(states, V), prompt, draw.choice([1, 4, 6, 9])


def probe_continue_text(answer, moves, scores, prompt, steps):
    import torch

    read = []

    def run(ids, state=None):
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or len(ids) != 1:
            raise ValueError("run wants a tensor (1, T)")
        place, logits = 0 if state is None else state[0], []
        for token in ids[0].tolist():
            read.append(token)
            place = moves[place][token]
            logits.append(scores[place])
        return torch.stack(logits)[None], (place,)

    return answer(run, list(prompt), steps), len(read)


def right_continue_text(moves, scores, prompt, steps):
    """Read everything again for every token; the reads that are allowed come second."""
    text = list(prompt)
    for _ in range(steps):
        place = 0
        for token in text:
            place = moves[place][token]
        text.append(max(range(scores.shape[1]), key=scores[place].tolist().__getitem__))
    return text[len(prompt) :], len(prompt) + steps


def judge_continue_text(got, wanted):
    """Compare the tokens, which must be ints; each may have been read once."""
    if not isinstance(got, list) or len(got) != 2:
        raise Wrong("wanted the tokens, and how many were read")
    agree(got[0], wanted[0])
    if any(type(token) is not int for token in got[0]):
        raise Wrong("the continuation must be a list of ints")
    if expect_number(got[1], "the number of tokens read") > wanted[1]:
        raise Wrong(f"{got[1]} tokens were read, some of them twice; there are {wanted[1]}")


def draw_two_directions(draw):
    B, T, inputs, D = draw.sizes(4)
    lengths = draw.ids(T + 1, B, low=1)
    x = draw.normal(B, T, inputs)
    x[torch.arange(T) >= lengths[:, None]] = 1e3  # whatever stands at the padding
    ahead, behind = ([draw.normal(D, inputs), draw.normal(D, D), draw.normal(D)] for _ in range(2))
    return x, lengths, ahead, behind


def probe_two_directions(answer, x, lengths, ahead, behind):
    import torch

    weights = [weight.requires_grad_() for weight in (*ahead, *behind)]
    output, summary = answer(x, lengths, tuple(weights[:3]), tuple(weights[3:]))
    pull = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    return output, summary, torch.autograd.grad((output * pull).sum() + summary.sum(), weights)


def right_two_directions(x, lengths, ahead, behind):
    D = len(ahead[2])
    layer = nn.RNN(x.shape[2], D, batch_first=True, bidirectional=True).double()
    zero = torch.zeros(D, dtype=torch.float64)
    for parameter, value in zip(layer.parameters(), (*ahead, zero, *behind, zero), strict=True):
        parameter.data = value
    packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, h_n = layer(packed)
    output, _ = nn.utils.rnn.pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
    summary = torch.cat([h_n[0], h_n[1]], 1)
    pull = torch.linspace(-1, 2, output.numel(), dtype=torch.float64).reshape(output.shape)
    parameters = list(layer.parameters())
    trained = [*parameters[:3], *parameters[4:7]]
    return output, summary, torch.autograd.grad((output * pull).sum() + summary.sum(), trained)


READY = (
    "RNN", "RNNCell", "RNNBase", "rnn_tanh", "rnn_tanh_cell", "rnn_relu", "rnn_relu_cell",
    "rnn_step", "rnn_loop", "scan", "Recurrent",
)  # fmt: skip
TESTS = [
    Hidden(
        "ex03-1-rnn-forward-check", "rnn_forward", draw_rnn_forward, right_rnn_forward, probe_rnn_forward, without=READY
    ),
    on_paper("ex03-2-quotation-weights-check", "quotation_weights", right_quotation_weights, judge_quotation_weights),
    Hidden(
        "ex03-3-continue-text-check",
        "continue_text",
        draw_continue_text,
        right_continue_text,
        probe_continue_text,
        judge_continue_text,
        cases=8,
    ),
    on_paper("ex03-5-stack-sizes-check", "stack_sizes", right_stack_sizes, judge_stack_sizes),
    Hidden("ex03-6-summaries-check", "summaries", draw_summaries, right_summaries),
    Hidden(
        "ex03-7-two-directions-check",
        "two_directions",
        draw_two_directions,
        right_two_directions,
        probe_two_directions,
        without=READY,
    ),
]
