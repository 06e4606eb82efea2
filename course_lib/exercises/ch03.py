"""Checks of chapter 03's exercises: the recurrent loop, weights by hand, a writer, sizes, summaries, two directions.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Notebook: 03.
"""

import numbers

import torch
from torch import nn

from course_lib import rnn
from course_lib.exercises import (
    Written,
    Wrong,
    _StudentError,
    check,
    close,
    expect_number,
    expect_tensor,
    expect_type,
)
from course_lib.exercises.ready_made import called


def _pair(got, names):
    """The two values of a returned tuple, or a message."""
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple ({names}), got {type(got).__name__}")
    return got


def _draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def _own_loop(student, given):
    """Refuse a right answer whose steps are taken by torch's layers and cells, or by the library's."""
    ready = [rnn, nn.RNN, nn.RNNCell]
    torchs = ("rnn_tanh", "rnn_tanh_cell", "rnn_relu", "rnn_relu_cell")
    if name := called(student, [(given, {})], ready, torchs):
        raise Wrong(f"the result is right, but your code calls `{name}`: write the loop over the steps yourself")


def _loop(x, h, weight_ih, weight_hh, bias, step=None, output=lambda h, z: h):
    """States (B, T, D) of a loop, of which the parts can be replaced by usual mistakes."""
    states = []
    for t in range(x.shape[1]):
        z = x[:, t] @ weight_ih.T + h @ weight_hh.T + bias
        h = torch.tanh(z) if step is None else step(x[:, t], h, z)
        states.append(output(h, z))
    return torch.stack(states, dim=1)


@check(
    hints=(
        "The state that one step returns is the state that the next step needs.",
        "For t from 0 to T - 1: the new h is the tanh of (the inputs of step t through weight_ih) plus (h through "
        "weight_hh) plus the bias; remember it. At the end stack what you remember, over time, behind the batch.",
        "h = torch.tanh(x[:, t] @ weight_ih.T + h @ weight_hh.T + bias); states.append(h). After the loop: the "
        "states stacked with dim=1, and h.",
    )
)
def rnn_forward(student):
    """Exercise 3.1: an Elman layer over a batch, outputs and last state."""
    B, T, I, D = 3, 5, 4, 2  # noqa: E741
    generator = torch.Generator().manual_seed(7)
    x, h = _draw(generator, B, T, I), torch.tanh(_draw(generator, B, D))
    weight_ih, weight_hh, bias = _draw(generator, D, I), _draw(generator, D, D), _draw(generator, D)
    arguments = tuple(a.requires_grad_() for a in (x, h, weight_ih, weight_hh, bias))
    output, h_n = _pair(student(*arguments), "output, h_n")
    if isinstance(output, torch.Tensor) and output.shape == (B, T + 1, D):
        raise Wrong("output has T + 1 steps: h_0 is in it. output[:, t] is the state after reading x[:, t]")
    if isinstance(output, torch.Tensor) and output.shape == (T, B, D):
        raise Wrong("output has shape (T, B, D): time stands first. Stack the states so that the batch comes first")
    expect_tensor(output, (B, T, D), name="output")
    expect_tensor(h_n, (B, D), name="h_n")
    want = _loop(*arguments).detach()
    if not close(output.detach(), want):
        _diagnose_loop(output.detach(), *(a.detach() for a in arguments))
    if close(h_n.detach(), h.detach()):
        raise Wrong("output is right, but h_n is the state from before the first step: return the one after the last")
    if close(h_n.detach(), want[:, 0]):
        raise Wrong("output is right, but h_n is the state after the first step; the layer's memory is the last one")
    if not close(h_n.detach(), want[:, -1]):
        raise Wrong("output is right, but h_n is not the state after the last step")
    if not output.requires_grad or not h_n.requires_grad:
        raise Wrong("the values are right, but no gradient reaches weight_ih: do not detach, nor turn gradients off")
    right = _loop(*arguments)
    for name, got, wanted in (("output", output, right), ("h_n", h_n, right[:, -1])):
        gradients = torch.autograd.grad(got.square().sum(), arguments, retain_graph=True, allow_unused=True)
        expected = torch.autograd.grad(wanted.square().sum(), arguments, retain_graph=True)
        if any(g is None or not close(g, e) for g, e in zip(gradients, expected, strict=True)):
            raise Wrong(f"the values are right, the gradients of {name} are not: a state is detached on the way")
    shorter, _ = _pair(student(x[:, :2], *arguments[1:]), "output, h_n")
    expect_tensor(shorter, (B, 2, D), name="with T = 2, output")
    _own_loop(student, arguments)


def _diagnose_loop(got, x, h, weight_ih, weight_hh, bias):
    """Raise with the mistake that gives exactly these outputs."""
    args = x, h, weight_ih, weight_hh, bias
    from_zero = x, torch.zeros_like(h), weight_ih, weight_hh, bias
    start = h.clone()
    usual = [
        (
            _loop(*args, step=lambda x, h, z: z, output=lambda h, z: torch.tanh(z)),
            "the outputs are tanh(...), but what goes back into the loop is the sum before tanh: carry tanh's result",
        ),
        (_loop(*args, step=lambda x, h, z: z), "the states are not between -1 and 1: the tanh is missing"),
        (
            _loop(*args, output=lambda h, z: z),
            "the loop is right, but output holds the sums before tanh; a state's output is the state itself",
        ),
        (
            _loop(*args, step=lambda x, h, z: torch.tanh(x @ weight_ih.T + start @ weight_hh.T + bias)),
            "every step starts from the same h: the state is never carried to the next step",
        ),
        (_loop(*from_zero), "the first state is taken to be zero: begin with the h that was passed"),
        (
            _loop(x, h, weight_ih, weight_hh.T, bias),
            "the states go through weight_hh, not through its transpose: row "
            "d of weight_hh makes unit d, h @ weight_hh.T",
        ),
        (_loop(x, h, weight_ih, weight_hh, 0 * bias), "the bias is missing"),
        (_loop(x, h, weight_ih, weight_hh, 2 * bias), "the bias is added twice; here it is already the sum of both"),
        (
            _loop(*args, step=lambda x, h, z: torch.tanh(x @ weight_ih.T + bias) + torch.tanh(h @ weight_hh.T)),
            "tanh is taken of each part: add input, state and bias first, then take one tanh of the sum",
        ),
        (
            _loop(x.flip(1), *args[1:]).flip(1),
            "the sequence is read from the end to the beginning: step 0 comes first",
        ),
        (
            _loop(*args).transpose(0, 1).reshape(got.shape),
            "the right states in the wrong places: time stood first, and a reshape or view does not swap two axes, "
            "it only counts them anew. Stack the states behind the batch",
        ),
        (torch.zeros_like(got), "every output is zero"),
    ]
    for outputs, message in usual:
        if close(got, outputs):
            raise Wrong(message)
    first = _loop(*args)[:, 0]
    if close(got[:, 0], first):
        raise Wrong("the first step is right, the second is not: look at what the loop hands to the next step")
    raise Wrong("the first step is not tanh(x[:, 0] @ weight_ih.T + h @ weight_hh.T + bias)")


def _as_weights(answer):
    """The five parts of a two-unit network as float64 tensors and a float."""
    if not isinstance(answer, tuple | list):
        raise Wrong(f"expected a tuple (W_ih, W_hh, b, w_o, c), got {type(answer).__name__}")
    if len(answer) != 5:
        raise Wrong(f"expected five parts (W_ih, W_hh, b, w_o, c), got {len(answer)}")
    shapes = {"W_ih": (2, 1), "W_hh": (2, 2), "b": (2,), "w_o": (2,)}
    parts = [
        expect_tensor(value, shape, name=name) for value, (name, shape) in zip(answer, shapes.items(), strict=False)
    ]
    return [part.detach().double() for part in parts] + [expect_number(answer[4], "c")]


def _answers(weights, marks):
    """Output y (T,) of the network on one string of 0 and 1."""
    weight_ih, weight_hh, b, w_o, c = weights
    states = _loop(marks.double()[None, :, None], torch.zeros(1, 2, dtype=torch.float64), weight_ih, weight_hh, b)
    return states[0] @ w_o + c


@check(
    hints=(
        "Let one unit answer 'is s + x at least 1?' and the other 'is s + x at least 2?'. How do you get s back from "
        "their two answers, each of which is close to -1 or 1?",
        "Both units see x with the same weight k. Thresholds go into the bias: -k/2 puts it half-way between "
        "0 and 1, -3k/2 between 1 and 2. The bit is (h[0] - h[1]) / 2, also for h = 0; so that is how both "
        "units read the state.",
        "With k = 6: W_ih = [[6], [6]], b = [-3, -9], each row of W_hh reads k times the bit, [3, -3]; and y "
        "is the bit minus a half.",
    )
)
def quotation_weights(answer):
    """Exercise 3.2: two tanh units that know whether a quotation is open."""
    weights = _as_weights(answer)
    line = torch.tensor([0, 0, 1, 0, 0, 0, 1, 0, 0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0, 0])
    open_now = line.cumsum(0) % 2 == 1
    y = _answers(weights, line)
    got = y > 0
    if not torch.equal(got, open_now):
        _diagnose_bit(weights, y, got, line, open_now)
    marks = (torch.rand(2000, generator=torch.Generator().manual_seed(5)) < 0.3).long()
    marks[600:1200] = 0  # a long stretch without a mark
    right = (_answers(weights, marks) > 0) == (marks.cumsum(0) % 2 == 1)
    if not right.all():
        raise Wrong(
            f"right on a short line, but wrong for the first time at step {int((~right).nonzero()[0])} of a long one: "
            "the bit fades. Make all weights into the units steeper, so that tanh comes close to -1 and 1"
        )


def _diagnose_bit(weights, y, got, line, open_now):
    """Name the mistake behind the answers to the short line."""
    if (y == 0).all():
        raise Wrong("y is 0 at every step, so no quotation is ever open")
    if torch.equal(got, ~open_now):
        raise Wrong(
            "the answers are upside down: y must be positive while a quotation is open; turn the sign of w_o and c"
        )
    weight_ih, weight_hh, b, w_o, c = weights
    if torch.equal(_answers([weight_ih, weight_hh.T, b, w_o, c], line) > 0, open_now):
        raise Wrong("with W_hh.T the bit is right: are rows and columns swapped? Row i of W_hh is what unit i reads")
    if torch.equal(got, line == 1):
        raise Wrong("y is positive at the marks only: it looks at x, and forgets at the next letter")
    if torch.equal(got, line.cumsum(0) > 0):
        raise Wrong("the first mark opens the quotation and nothing ever closes it: x = 1 and s = 1 must give 0")
    if got[:2].any() and y[:2].abs().max() < 0.1:
        raise Wrong(
            "y is about 0 before the first mark. Since y > 0 means open, it must be clearly negative there: "
            "shift it with c"
        )
    if got[:2].any():
        raise Wrong("y is positive before the first mark: with h_0 = 0 and x = 0 no quotation is open")
    if torch.equal(_answers([10 * weight_ih, 10 * weight_hh, 10 * b, w_o, c], line) > 0, open_now):
        raise Wrong(
            "the thresholds are in the right places, but the weights into the units are too small: tanh does not come "
            "close enough to -1 and 1. Multiply W_ih, W_hh and b by the same larger number"
        )
    if not got[2]:
        raise Wrong("the first mark (step 2 of the line) does not open the quotation")
    if not got[3:6].all():
        raise Wrong(
            "the mark opens the quotation, but the bit does not last over "
            "the letters after it: s = 1, x = 0 must give 1"
        )
    if got[6]:
        raise Wrong("the second mark does not close the quotation: x = 1 and s = 1 must give 0")
    wrong = int((got != open_now).nonzero()[0])
    raise Wrong(
        f"right for the first {wrong} characters, then wrong: after {int(line[: wrong + 1].sum())} marks the "
        f"bit must be {int(open_now[wrong])}"
    )


class _Machine:
    """A toy model whose next token is known: a sum over all tokens read, times their places. It notes what it reads."""

    V = 11

    def __init__(self):
        self.read = []

    def run(self, ids, state=None):
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2 or ids.shape[0] != 1:
            got = tuple(ids.shape) if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise Wrong(f"run was given ids of shape {got}; it wants a tensor (1, T)")
        count, total = (0, 3) if state is None else state
        logits = torch.zeros(1, ids.shape[1], self.V)
        for t, token in enumerate(ids[0].tolist()):
            self.read.append(token)
            count, total = count + 1, (total + (count + 1) * (token + 1)) % self.V
            logits[0, t, total] = 1.0
        return logits, (count, total)


def _written(prompt, steps, read_prompt=None, reread=False, carry=True):
    """What usual writers write on the machine."""
    machine, ids = _Machine(), list(prompt)
    start = ids if read_prompt is None else read_prompt(ids)
    logits, state = machine.run(torch.tensor([start]))
    new = [int(logits[0, -1].argmax())]
    while len(new) < steps:
        ids_next = [*ids, *new] if reread else new[-1:]
        logits, state = machine.run(torch.tensor([ids_next]), state if carry else None)
        new.append(int(logits[0, -1].argmax()))
    return new


@check(
    hints=(
        "What does the state know after the loop's first turn? Who tells it "
        "about the prompt, and who about the new tokens?",
        "Read the whole prompt in one call, from no state. Its last logits give the first new token. Then, again and "
        "again: read that one token with the state of the call before, take the next from the logits.",
        "logits, state = run(torch.tensor([prompt]), None); then logits, state = "
        "run(torch.tensor([[newest]]), state) in a loop; the newest token is logits[0, -1].argmax().item().",
    )
)
def continue_text(student):
    """Exercise 3.3: a writer that reads the prompt and carries its state."""
    prompt, steps = [4, 9, 2, 7], 6
    machine = _Machine()
    got = student(machine.run, list(prompt), steps)
    got = expect_type(list(got) if isinstance(got, tuple) else got, list, "the continuation")
    if any(isinstance(token, torch.Tensor) for token in got):
        raise Wrong("the continuation holds tensors; wanted ints, see .item()")
    if not all(isinstance(token, numbers.Integral) and not isinstance(token, bool) for token in got):
        raise Wrong("the continuation must be a list of ints")
    want = _written(prompt, steps)
    if got == prompt + want:
        raise Wrong("the prompt is part of what you return: return the new tokens only")
    if got == prompt:
        raise Wrong("that is the prompt, unchanged")
    if got != want:
        _diagnose_writer(got, want, prompt, steps)
    if len(machine.read) > len(prompt) + steps:
        raise Wrong(
            f"the right tokens, but {len(machine.read)} were read for a prompt of {len(prompt)} and {steps} new "
            "ones: you read all of the text again for every token. The state has it already: hand it back"
        )
    other = student(_Machine().run, [6], 3)
    if list(other) != _written([6], 3):
        raise Wrong("right for a prompt of four tokens, wrong for a prompt of one")
    if list(student(_Machine().run, [8, 8, 1], 1)) != _written([8, 8, 1], 1):
        raise Wrong("asked for one new token, it is not the one that follows the prompt")


def _diagnose_writer(got, want, prompt, steps):
    """Name the mistake behind a wrong continuation."""
    usual = [
        (
            _written(prompt, steps, lambda p: p[-1:], carry=False),
            "no state is handed back and only the last token of the prompt is read: nothing has changed yet",
        ),
        (
            _written(prompt, steps, carry=False),
            "the prompt is read, but then every new token is read from a zero state: hand the state of each call "
            "to the next",
        ),
        (
            _written(prompt, steps, lambda p: p[-1:]),
            "the state is carried, but of the prompt only the last token is read",
        ),
        (_written(prompt, steps, lambda p: p[:-1]), "the last token of the prompt is never read"),
        (
            _written(prompt, steps, lambda p: [*p, p[-1]]),
            "the last token of the prompt is read twice: the logits of the call that reads the prompt already "
            "give the first new token",
        ),
        (
            _written(prompt, steps, reread=True),
            "the whole text is read again on top of a state that has read it already: give it the new token only",
        ),
    ]
    for tokens, message in usual:
        if got == tokens:
            raise Wrong(message)
    if len(got) != steps:
        raise Wrong(f"{len(got)} tokens came back; wanted {steps}")
    if got[0] != want[0]:
        raise Wrong("the first new token is wrong: it follows from the logits after the last token of the prompt")
    right = next(i for i, (a, b) in enumerate(zip(got, want, strict=True)) if a != b)
    raise Wrong(
        f"the first {right} new tokens are right, the next one is not: "
        "what was read between them, and with which state?"
    )


how_wide = Written(
    hints=(
        "Put your rows in order of width, and write down the ratio of each held-out perplexity to the one before.",
        "(a) If the largest states are no better: is the perplexity on the text that they learned from better? (b) "
        "Compare one epoch with several, and 100,000 characters with all. (c) Count: which weights have D rows, and "
        "which have D rows and D columns? (d) How often must a context occur before a count is right? Before a "
        "network is?",
        "(a) Two things can be lacking, room and training; the perplexity on the text that was learned from tells "
        "which. (b) A gap means that something was learned that holds for this text only. Does what narrows it lower "
        "the one perplexity or raise the other? (c) weight_hh is (D, D). (d) Look at the 4-gram's row beside yours.",
    ),
    good_answer=(
        "(a) that in one pass each doubling gains less than the one before, with your own numbers. At first room is "
        "lacking, later it is not: the largest states are no better on the text that they learned from either, so "
        "they are trained too little, not too large. (b) The gap opens with width and with several epochs on the "
        "small text. More text narrows it and lowers the held-out perplexity; fewer epochs, or dropout, narrow it by "
        "raising the perplexity on the learned text, and need not lower the other. (c) About four times the "
        "parameters once D is large, because weight_hh is D by D; less while embedding and output dominate. (d) "
        "Counts: one look at a context is enough for them, and after one pass over 100,000 characters the 4-gram is "
        "far ahead; a network needs several passes to draw level. With much text it shares what it learns between "
        "contexts. A very good answer says on which runs it rests, and that one learning rate served all widths."
    ),
)


@check(
    hints=(
        "Take one direction of one layer: how many columns must it read? Layer 1 and 2 do not read the input.",
        "Each direction of each layer has D x (columns) + D x D + 2 D parameters. Columns: I for layer 0, "
        "and the width of the output below for the others. h_n has a row for each direction of each layer.",
        "Layer 0 has 2 (5 x 12 + 25 + 10); the two others 2 (5 x 10 + 25 + 10) each. The output has both directions "
        "side by side.",
    )
)
def stack_sizes(answer):
    """Exercise 3.5: four sizes of a bidirectional stack, worked out by hand."""
    if hasattr(answer, "tolist"):
        answer = answer.tolist()
    names = ("parameters", "columns of weight_ih_l2_reverse", "first dimension of h_n", "last dimension of output")
    if not isinstance(answer, tuple | list) or len(answer) != 4:
        raise Wrong(f"expected four numbers ({', '.join(names)}), got {answer!r}")
    parameters, columns, rows, width = (expect_number(value, name) for value, name in zip(answer, names, strict=True))
    usual = {
        430.0: "you let layers 1 and 2 read D = 5 numbers; they read both directions of the layer below",
        500.0: "one bias for each unit: torch has two, b_ih and b_hh",
        470.0: "the biases are missing, two for each unit of each direction of each layer",
        265.0: "that is one direction only",
        190.0: "that is layer 0 only",
        360.0: "that is two layers; there are three",
        570.0: "you let every layer read the input of width 12; only layer 0 does",
    }
    if parameters in usual:
        raise Wrong(f"{parameters:.0f} parameters: {usual[parameters]}")
    if parameters != 530:
        raise Wrong(f"{parameters:.0f} parameters is not right: add them up for one direction of one layer first")
    if columns == 5:
        raise Wrong("weight_ih_l2_reverse does not have 5 columns: it reads both directions of layer 1")
    if columns == 12:
        raise Wrong("weight_ih_l2_reverse does not have 12 columns: layer 2 does not see the input, only layer 1")
    if columns != 10:
        raise Wrong(f"weight_ih_l2_reverse does not have {columns:.0f} columns: how wide is the output of layer 1?")
    if rows in (1, 2, 3):
        raise Wrong(
            f"the first dimension of h_n is not {rows:.0f}: it has the last state of every layer and every direction"
        )
    if rows != 6:
        raise Wrong(f"the first dimension of h_n is not {rows:.0f}: count one row for each direction of each layer")
    if width != 10:
        raise Wrong(
            f"the last dimension of output is not {width:.0f}: it has both directions of the top layer side by side"
        )


@check(
    hints=(
        "When has the forward half read everything? And the backward half, which starts at the end?",
        "Forward: row b at step lengths[b] - 1, the first D columns. Backward: step 0 of every row, the last "
        "D columns. Then side by side.",
        "output[torch.arange(B), lengths - 1, :D] picks one step of each row; the other half is output[:, 0, D:].",
    )
)
def summaries(student):
    """Exercise 3.6: forward and backward summaries of padded rows."""
    B, T, D = 4, 6, 5
    generator = torch.Generator().manual_seed(11)
    output = _draw(generator, B, T, 2 * D)
    lengths = torch.tensor([4, 6, 1, 3])
    late = "the forward half is read one step too late: the last real token stands at lengths - 1"
    try:
        got = student(output.clone(), lengths.clone())
    except _StudentError:  # step lengths does not exist in a row without padding
        if _reads_too_late(student):
            raise Wrong(f"{late}, and a row without padding has no step `lengths`: hence the IndexError") from None
        raise
    if isinstance(got, torch.Tensor) and got.shape == (B, B, 2 * D):
        raise Wrong(
            "the result has shape (B, B, 2D): output[:, lengths - 1] takes all those steps of every row. Index "
            "rows and steps together"
        )
    expect_tensor(got, (B, 2 * D))
    rows = torch.arange(B)
    end, first = output[rows, lengths - 1], output[:, 0]
    want = torch.cat([end[:, :D], first[:, D:]], 1)
    if close(got, want):
        _other_sizes(student, generator)
        return
    usual = [
        (
            output[:, -1],
            "both halves are read at the last step of the padded batch: forward that is padding in short rows, "
            "and backward it has read one token",
        ),
        (
            end,
            "the forward half is right. The backward half, at the last real token, has read that token only: it "
            "has read everything at the other end",
        ),
        (
            first,
            "both halves are read at step 0: that is right for the backward "
            "half, but the forward half has read one token",
        ),
        (
            torch.cat([first[:, D:], end[:, :D]], 1),
            "the right states, but the backward half comes first: forward, then backward",
        ),
        (
            torch.cat([output[:, -1, :D], first[:, D:]], 1),
            "the backward half is right; the forward half is read at T - 1, which is padding in the short rows",
        ),
        (
            torch.cat([end[:, :D], output[:, -1, D:]], 1),
            "the forward half is right; the backward half is read at the last column, where it has read one token of "
            "the longest rows; in the others that column is padding",
        ),
        (
            torch.cat([output[rows, lengths % T, :D], first[:, D:]], 1),
            late,
        ),
        (
            torch.cat([first[:, :D], end[:, D:]], 1),
            "the two ends are swapped: this is each direction's state after one token",
        ),
        (
            torch.cat([end[:, D:], first[:, :D]], 1),
            "the two halves are swapped: the first D columns are the forward states",
        ),
        (torch.zeros_like(got), "every summary is zero"),
    ]
    for states, message in usual:
        if close(got, states):
            raise Wrong(message)
    if not close(got[:, :D], want[:, :D]):
        raise Wrong("the forward half (the first D columns) is not the state at each row's own last token")
    raise Wrong("the forward half is right; the backward half is not the state that has read the whole row")


def _reads_too_late(student):
    """Whether an answer, where every row is padded, reads the forward half at step lengths."""
    D = 3
    output, lengths = _draw(torch.Generator().manual_seed(12), 2, 7, 2 * D), torch.tensor([5, 2])
    try:
        got = student(output.clone(), lengths.clone())
    except _StudentError:
        return False
    late = output[torch.arange(2), lengths, :D]
    return isinstance(got, torch.Tensor) and got.shape == (2, 2 * D) and close(got[:, :D], late)


def _other_sizes(student, generator):
    """Raise if an answer is right for one batch only, whose sizes it has written down."""
    D = 3
    output, lengths = _draw(generator, 2, 7, 2 * D), torch.tensor([5, 2])
    want = torch.cat([output[torch.arange(2), lengths - 1, :D], output[:, 0, D:]], 1)
    got = student(output.clone(), lengths.clone())
    if not isinstance(got, torch.Tensor) or got.shape != want.shape or not close(got, want):
        raise Wrong(
            "right for B = 4, T = 6, D = 5, but wrong for B = 2, T = 7, D = 3: take the sizes from output's shape"
        )


# --- 3.7 ------------------------------------------------------------------------


def _directions(x, lengths, ahead, behind, own_end=True, turn_back=True, zero=True):
    """Output (B, T, 2D) and summary (B, 2D) of a bidirectional layer, of which the parts can be done wrongly."""
    T, D = x.shape[1], len(ahead[2])
    outputs, ends = [], []
    for row, n in zip(x, lengths.tolist(), strict=True):
        start = row.new_zeros(1, D)
        there = _loop(row[None], start, *ahead)[0]
        stop = n if own_end else T
        back = _loop(row[None, :stop].flip(1), start, *behind)[0]  # in the order in which it was read
        end = back[-1]
        back = torch.nn.functional.pad(back.flip(0) if turn_back else back, (0, 0, 0, T - stop))
        both = torch.cat([there, back], 1)
        outputs.append(both * (torch.arange(T) < n)[:, None] if zero else both)
        ends.append(torch.cat([there[n - 1], end]))
    return torch.stack(outputs), torch.stack(ends)


@check(
    hints=(
        "Take one row without its padding. The forward half is your loop. What must be turned round so that the same "
        "loop gives the backward half, and what must be turned round again afterwards?",
        "For row b with n real steps: run over x[b, :n] forward; run over the same steps in reverse order with the "
        "other weights, and turn these states round, so that the state at step t has read the steps t to n - 1. Side "
        "by side, then zeros up to T. The summary: forward at step n - 1, backward at step 0.",
        "rnn_forward(x[b : b + 1, :n], zeros (1, D), ...) gives states and last state; "
        "rnn_forward(x[b : b + 1, :n].flip(1), zeros, ...) the backward ones, to be flipped back over time. F.pad or "
        "a tensor from x.new_zeros(B, T, 2 * D) makes the zeros at the padding.",
    )
)
def two_directions(student):
    """Exercise 3.7: a bidirectional layer over padded rows, from parts."""
    B, T, I, D = 4, 6, 3, 2  # noqa: E741
    generator = torch.Generator().manual_seed(23)
    x, lengths = _draw(generator, B, T, I), torch.tensor([4, 6, 1, 3])
    ahead, behind = (
        tuple(_draw(generator, *shape).requires_grad_() for shape in ((D, I), (D, D), (D,))) for _ in range(2)
    )
    output, summary = _pair(student(x.clone(), lengths.clone(), ahead, behind), "output, summary")
    expect_tensor(output, (B, T, 2 * D), name="output")
    expect_tensor(summary, (B, 2 * D), name="summary")
    want, ends = (part.detach() for part in _directions(x, lengths, ahead, behind))
    got, summed = output.detach(), summary.detach()
    real = (torch.arange(T) < lengths[:, None])[..., None]  # (B, T, 1)
    if not close(got * real, want):
        _diagnose_directions(got * real, want, x, lengths, ahead, behind)
    if not close(got, want):
        raise Wrong("every real step is right, but output is not 0 at the padding")
    if not close(summed, ends):
        _diagnose_summary(summed, want, ends, lengths)
    weights = [*ahead, *behind]
    if not output.requires_grad or not summary.requires_grad:
        raise Wrong("the values are right, but no gradient reaches the weights: do not detach, nor turn gradients off")
    pull = torch.linspace(-1, 2, want.numel(), dtype=torch.float64).reshape(want.shape)

    def slopes(output, summary):
        return torch.autograd.grad((output * pull).sum() + summary.sum(), weights, allow_unused=True)

    wanted = slopes(*_directions(x, lengths, ahead, behind))
    found = slopes(output, summary)
    if not all(a is not None and close(a, b) for a, b in zip(found, wanted, strict=True)):
        raise Wrong("the values are right, but the gradients are not: a part of the computation is cut off")
    _own_loop(student, (x.clone(), lengths.clone(), ahead, behind))


def _diagnose_directions(got, want, x, lengths, ahead, behind):
    """Raise with the mistake behind the states at the real steps."""
    D = want.shape[2] // 2
    real = (torch.arange(x.shape[1]) < lengths[:, None])[..., None]

    def wrongly(*arguments, **options):
        return _directions(*arguments, **options)[0].detach() * real

    usual = [
        (
            wrongly(x, lengths, ahead, behind, own_end=False),
            "the backward half starts in the padding: it must start at each row's own last real step",
        ),
        (
            wrongly(x, lengths, ahead, behind, turn_back=False),
            "the backward states stand in the order in which they were computed: turn them round, so that the one at "
            "step t has read the steps from t to the row's end",
        ),
        (
            wrongly(x, lengths, ahead, behind, own_end=False, turn_back=False),
            "the whole padded row is reversed, so the backward half starts in the padding; and its states are not "
            "turned round again",
        ),
        (
            wrongly(x * real, lengths, ahead, behind, own_end=False),
            "the padded inputs are set to 0, but the backward half still steps through them, and there the bias moves "
            "the state: it must start at each row's own last real step",
        ),
        (wrongly(x, lengths, ahead, ahead), "both directions use forward_weights: the backward one has its own"),
        (wrongly(x, lengths, behind, behind), "both directions use backward_weights: the forward one has its own"),
        (wrongly(x, lengths, behind, ahead), "the weights of the two directions are exchanged"),
        (torch.cat([want[..., D:], want[..., :D]], 2), "the backward states come first: forward, then backward"),
        (
            torch.cat([want[..., :D], wrongly(x.flip(1), lengths, behind, ahead)[..., :D]], 2),
            "the backward half reads the reversed padded row, so it begins with padding and never comes to the row's "
            "first steps; its states are not turned round either",
        ),
        (torch.zeros_like(got), "every output is zero"),
    ]
    for states, message in usual:
        if close(got, states):
            raise Wrong(message)
    if not close(got[..., :D], want[..., :D]):
        raise Wrong("the forward half (the first D columns) is not your loop over each row's real steps, from zeros")
    raise Wrong(
        "the forward half is right; the backward half at step t is not the state that has read the row's steps from "
        "the last real one down to t"
    )


def _diagnose_summary(got, want, ends, lengths):
    """Raise with the mistake behind the summary, when the output is right."""
    D = ends.shape[1] // 2
    own = want[torch.arange(len(want)), lengths - 1]
    usual = [
        (own, "output is right; of the summary the backward half has read one token only, the row's last"),
        (want[:, 0], "output is right; of the summary the forward half has read one token only, the row's first"),
        (want[:, -1], "output is right; the summary is read at the last column, which is padding in the short rows"),
        (
            torch.cat([want[:, 0, :D], own[:, D:]], 1),
            "output is right; the summary has each direction's state after one token",
        ),
        (torch.cat([ends[:, D:], ends[:, :D]], 1), "output is right; in the summary the backward half comes first"),
        (
            torch.cat([want[:, -1, :D], ends[:, D:]], 1),
            "output is right; the summary's forward half is read at T - 1, which is padding in the short rows",
        ),
    ]
    for states, message in usual:
        if close(got, states):
            raise Wrong(message)
    raise Wrong("output is right, but the summary is not the two states that have read all of each row")
