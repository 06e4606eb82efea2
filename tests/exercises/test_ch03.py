"""The checks of chapter 03: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from course_lib.exercises import ch03
from course_lib.recurrent_models import LanguageModel
from course_lib.rnn import RNN, rnn_step
from tests.helpers.solutions import solution, verdict

NAMES = ("rnn_forward", "quotation_weights", "stack_sizes", "summaries", "continue_text", "two_directions")


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def elman(step, output=lambda h, z: h, finish=lambda states, h, h_0: (torch.stack(states, 1), h)):
    """An answer to exercise 3.1 that differs in its step, in what it puts out, or at its end."""

    def forward(x, h, weight_ih, weight_hh, bias):
        h_0, states = h, []
        for t in range(x.shape[1]):
            h, z = step(x[:, t], h, h_0, weight_ih, weight_hh, bias)
            states.append(output(h, z))
        return finish(states, h, h_0)

    return forward


def right(x, h, h_0, weight_ih, weight_hh, bias):
    z = x @ weight_ih.T + h @ weight_hh.T + bias
    return torch.tanh(z), z


def changed(edit):
    """A step whose result is edited: edit(x, h, h_0, weight_ih, weight_hh, bias) -> new h."""
    return lambda *parts: (edit(*parts), right(*parts)[1])


def detached(x, h, weight_ih, weight_hh, bias):
    output, h_n = elman(right)(x, h, weight_ih, weight_hh, bias)
    return output.detach(), h_n.detach()


def backwards(x, *rest):
    output, h_n = elman(right)(x.flip(1), *rest)
    return output.flip(1), h_n


def ends(finish):
    return elman(right, finish=finish)


def bit(k=6.0, weight_ih=(1.0, 1.0), weight_hh=(0.5, -0.5), bias=(-0.5, -1.5), w_o=(0.5, -0.5), c=-0.5):
    """The reference's two units, with parts replaced."""
    return (
        k * torch.tensor([[weight_ih[0]], [weight_ih[1]]]),
        k * torch.tensor([weight_hh, weight_hh]),
        k * torch.tensor(bias),
        torch.tensor(w_o),
        c,
    )


def one_unit(from_input, own, bias):
    """Weights of a network whose second unit does nothing, without c."""
    weight_hh = torch.tensor([[own, 0.0], [0.0, 0.0]])
    return torch.tensor([[from_input], [0.0]]), weight_hh, torch.tensor([bias, 0.0]), torch.tensor([1.0, 0.0])


ZERO_BIT = (torch.zeros(2, 1), torch.zeros(2, 2), torch.zeros(2), torch.zeros(2))


def pick(forward, backward, swap=False):
    """An answer to exercise 3.6 from the steps (B,) at which the halves are read."""

    def read(output, lengths):
        B, T, D = output.shape[0], output.shape[1], output.shape[2] // 2
        f = output[torch.arange(B), forward(lengths, T), :D]
        b = output[torch.arange(B), backward(lengths, T), D:]
        return torch.cat([b, f] if swap else [f, b], 1)

    return read


def halves_of(forward, backward, lengths):
    """An answer to exercise 3.6 from the two halves, wherever they were cut."""
    return torch.cat([forward[torch.arange(len(forward)), lengths - 1], backward[:, 0]], 1)


def own(lengths, T):
    return lengths - 1


def start(lengths, T):
    return torch.zeros_like(lengths)


def last(lengths, T):
    return torch.full_like(lengths, T - 1)


def writer(first=lambda prompt: prompt, carry=True, reread=False, extra=0, result=lambda prompt, new: new):
    def write(run, prompt, steps):
        logits, state = run(torch.tensor([first(prompt)]), None)
        new = [logits[0, -1].argmax().item()]
        while len(new) < steps + extra:
            logits, state = run(torch.tensor([[*prompt, *new] if reread else new[-1:]]), state if carry else None)
            new.append(logits[0, -1].argmax().item())
        return result(prompt, new)

    return write


def flat_ids(run, prompt, steps):
    return run(torch.tensor(prompt), None)


def sticky(run, prompt, steps):
    """Reads the prompt, then keeps the state of the prompt for ever."""
    logits, state = run(torch.tensor([prompt]), None)
    new = [logits[0, -1].argmax().item()]
    while len(new) < steps:
        logits, _ = run(torch.tensor([new[-1:]]), state)
        new.append(logits[0, -1].argmax().item())
    return new


def two_ways(own_end=True, turn_back=True, zero=True, order="fb", summary=None, weights=lambda f, b: (f, b)):
    """An answer to exercise 3.7 of which the parts can be done wrongly; summary(output, end, lengths) -> (B, 2D)."""

    def layer(x, lengths, forward_weights, backward_weights):
        one, two = weights(forward_weights, backward_weights)
        outputs, ends = [], []
        for row, n in zip(x, lengths.tolist(), strict=True):
            h = torch.zeros(1, len(one[2]), dtype=x.dtype)
            stop = n if own_end else len(row)
            there = elman(right)(row[None, :n], h, *one)[0][0]
            back = elman(right)(row[None, :stop].flip(1), h, *two)[0][0]
            end = back[-1]
            back = (back.flip(0) if turn_back else back)[:n]
            both = torch.cat([there, back] if order == "fb" else [back, there], 1)
            fill = torch.zeros if zero else torch.ones
            outputs.append(torch.cat([both, fill(len(row) - n, both.shape[1], dtype=x.dtype)]))
            ends.append(torch.cat([there[-1], end]))
        output, end = torch.stack(outputs), torch.stack(ends)
        return output, end if summary is None else summary(output, end, lengths)

    return layer


def zero_padding(x, lengths):
    return x * (torch.arange(x.shape[1]) < lengths[:, None])[..., None]


def half_cut(x, lengths, forward_weights, backward_weights):
    """Right values, but the backward weights get no gradient."""
    return two_ways()(x, lengths, forward_weights, tuple(w.detach() for w in backward_weights))


def torchs_layer(x, h, weight_ih, weight_hh, bias):
    """Right values and gradients, from torch's layer, whose parameters are replaced for the call."""
    layer = torch.nn.RNN(x.shape[2], h.shape[1], batch_first=True).double()
    weights = {"weight_ih_l0": weight_ih, "weight_hh_l0": weight_hh, "bias_ih_l0": bias, "bias_hh_l0": 0 * bias}
    output, h_n = torch.func.functional_call(layer, weights, (x, h[None]))
    return output, h_n[0]


def librarys_loop(x, h, weight_ih, weight_hh, bias):
    """Right values and gradients, from the step of the library."""
    return elman(lambda x, h, h_0, w, u, b: (rnn_step(x @ w.T + b, h, u), None))(x, h, weight_ih, weight_hh, bias)


def packed_by_torch(x, lengths, forward_weights, backward_weights):
    """Right values and gradients, from torch's bidirectional layer over packed rows."""
    layer = torch.nn.RNN(x.shape[2], len(forward_weights[2]), batch_first=True, bidirectional=True).double()
    weights = {}
    for end, (w, u, b) in (("", forward_weights), ("_reverse", backward_weights)):
        weights |= {f"weight_ih_l0{end}": w, f"weight_hh_l0{end}": u, f"bias_ih_l0{end}": b, f"bias_hh_l0{end}": 0 * b}
    packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    output, h_n = torch.func.functional_call(layer, weights, (packed,))
    output, _ = pad_packed_sequence(output, batch_first=True, total_length=x.shape[1])
    return output, torch.cat([h_n[0], h_n[1]], 1)


PLANTED = {
    "rnn_forward": [
        ("what goes back into the loop", elman(lambda *p: (right(*p)[1],) * 2, output=lambda h, z: torch.tanh(z))),
        ("the tanh is missing", elman(lambda *p: (right(*p)[1],) * 2)),
        ("output holds the sums before tanh", elman(right, output=lambda h, z: z)),
        ("never carried", elman(lambda x, h, h_0, *w: right(x, h_0, h_0, *w))),
        ("taken to be zero", lambda x, h, *w: elman(right)(x, torch.zeros_like(h), *w)),
        ("not through its transpose", lambda x, h, w_ih, w_hh, b: elman(right)(x, h, w_ih, w_hh.T, b)),
        ("the bias is missing", lambda x, h, w_ih, w_hh, b: elman(right)(x, h, w_ih, w_hh, 0 * b)),
        ("added twice", lambda x, h, w_ih, w_hh, b: elman(right)(x, h, w_ih, w_hh, 2 * b)),
        (
            "tanh is taken of each part",
            elman(changed(lambda x, h, h_0, w, u, b: torch.tanh(x @ w.T + b) + torch.tanh(h @ u.T))),
        ),
        ("from the end to the beginning", backwards),
        ("in the wrong places", ends(lambda states, h, h_0: (torch.stack(states).view(3, 5, 2), h))),
        ("time stands first", ends(lambda states, h, h_0: (torch.stack(states), h))),
        ("h_0 is in it", ends(lambda states, h, h_0: (torch.stack([h_0, *states], 1), h))),
        ("state from before the first step", ends(lambda states, h, h_0: (torch.stack(states, 1), h_0))),
        ("state after the first step", ends(lambda states, h, h_0: (torch.stack(states, 1), states[0]))),
        ("not the state after the last step", ends(lambda states, h, h_0: (torch.stack(states, 1), 2 * h))),
        ("no gradient reaches", detached),
        ("the gradients of output are not", elman(lambda x, h, *rest: right(x, h.detach(), *rest))),
        (
            "the gradients of h_n are not",
            ends(lambda states, h, h_0: (torch.stack(states, 1), h.detach() + 0 * states[0])),
        ),
        ("with T = 2, output", lambda x, *rest: elman(right)(x if x.shape[1] == 5 else F.pad(x, (0, 0, 0, 3)), *rest)),
        ("h_n has shape", ends(lambda states, h, h_0: (torch.stack(states, 1), h[None]))),
        ("expected a tuple", ends(lambda states, h, h_0: torch.stack(states, 1))),
        ("output is a list", ends(lambda states, h, h_0: (states, h))),
        ("the first step is right, the second", elman(changed(lambda x, h, h_0, *w: right(x, h + h - h_0, 0, *w)[0]))),
        ("the first step is not", elman(changed(lambda *parts: -right(*parts)[0]))),
        ("your code calls `RNN`", torchs_layer),
        ("your code calls `rnn_step`", librarys_loop),
    ],
    "quotation_weights": [
        ("is 0 at every step", (*ZERO_BIT, 0)),
        ("upside down", bit(w_o=(-0.5, 0.5), c=0.5)),
        ("at the marks only", bit(weight_hh=(0.0, 0.0), w_o=(0.5, 0.0), c=0.0)),
        ("nothing ever closes it", (*one_unit(6.0, 3.0, -1.5), 0.0)),
        ("before the first mark", (*ZERO_BIT, 1.0)),
        ("does not open", (*ZERO_BIT, -1.0)),
        ("does not last", (*one_unit(3.0, 0.5, 0.0), -0.45)),
        ("it must be clearly negative there", bit(c=0.0)),
        ("the weights into the units are too small", bit(k=1.0)),
        ("second mark does not close", (*one_unit(3.0, 0.9, 0.0), -0.45)),
        ("right for the first 7", bit(k=1.5, weight_hh=(0.6, -0.3), bias=(-0.3, -1.3))),
        ("rows and columns swapped", (bit()[0], bit()[1].T, *bit()[2:])),
        ("the bit fades", bit(k=2.1)),
        ("W_ih has shape (1, 2)", (torch.ones(1, 2), *bit()[1:])),
        ("W_hh is a list", (bit()[0], [[1.0, 2.0], [3.0, 4.0]], *bit()[2:])),
        ("got 4", bit()[:4]),
        ("got Tensor", torch.ones(5)),
        ("c is a str", (*bit()[:4], "-0.5")),
    ],
    "stack_sizes": [
        ("they read both directions", (430, 10, 6, 10)),
        ("one bias for each unit", (500, 10, 6, 10)),
        ("the biases are missing", (470, 10, 6, 10)),
        ("one direction only", (265, 10, 6, 10)),
        ("layer 0 only", (190, 10, 6, 10)),
        ("there are three", (360, 10, 6, 10)),
        ("only layer 0 does", (570, 10, 6, 10)),
        ("add them up", (531, 10, 6, 10)),
        ("does not have 5 columns", (530, 5, 6, 10)),
        ("does not have 12 columns", (530, 12, 6, 10)),
        ("how wide is the output", (530, 20, 6, 10)),
        ("is not 3", (530, 10, 3, 10)),
        ("is not 12: count", (530, 10, 12, 10)),
        ("is not 5: it has both", (530, 10, 6, 5)),
        ("expected four numbers", (530, 10, 6)),
        ("first dimension of h_n is a str", (530, 10, "6", 10)),
    ],
    "summaries": [
        ("both halves are read at the last step", pick(last, last)),
        ("has read that token only", pick(own, own)),
        ("both halves are read at step 0", pick(start, start)),
        ("the backward half comes first", pick(own, start, swap=True)),
        ("read at T - 1", pick(last, start)),
        ("one step too late", pick(lambda lengths, T: lengths % T, start)),
        ("has no step `lengths`", pick(lambda lengths, T: lengths, start)),
        ("the two ends are swapped", pick(start, own)),
        ("the two halves are swapped", lambda o, n: pick(own, start)(torch.cat(o.chunk(2, 2)[::-1], 2), n)),
        ("(B, B, 2D)", lambda output, lengths: output[:, lengths - 1]),
        ("has shape (4, 3)", lambda output, lengths: pick(own, start)(output, lengths)[:, :3]),
        ("is a list", lambda output, lengths: pick(own, start)(output, lengths).tolist()),
        ("each row's own last token", pick(lambda lengths, T: lengths // 2, start)),
        ("in the others that column is padding", pick(own, last)),
        ("the forward half is right; the backward half is not", pick(own, lambda lengths, T: lengths // 2)),
        ("take the sizes from output's shape", lambda output, n: halves_of(output[..., :5], output[..., 5:], n)),
        (
            "raised IndexError",
            lambda output, n: torch.stack([halves_of(*output.chunk(2, 2), n)[b] for b in range(4)]),
        ),
    ],
    "continue_text": [
        ("no state is handed back", writer(first=lambda prompt: prompt[-1:], carry=False)),
        ("from a zero state", writer(carry=False)),
        ("of the prompt only the last", writer(first=lambda prompt: prompt[-1:])),
        ("never read", writer(first=lambda prompt: prompt[:-1])),
        ("read twice", writer(first=lambda prompt: [*prompt, prompt[-1]])),
        ("on top of a state", writer(reread=True)),
        ("all of the text again", writer(reread=True, carry=False)),
        ("part of what you return", writer(result=lambda prompt, new: prompt + new)),
        ("7 tokens came back", writer(extra=1)),
        ("holds tensors", writer(result=lambda prompt, new: [torch.tensor(token) for token in new])),
        ("a list of ints", writer(result=lambda prompt, new: [float(token) for token in new])),
        ("is a Tensor", writer(result=lambda prompt, new: torch.tensor(new))),
        ("ids of shape (4,)", flat_ids),
        ("the first 3 new tokens are right", sticky),
        ("the first new token is wrong", writer(first=lambda prompt: prompt[::-1])),
    ],
    "two_directions": [
        ("starts in the padding: it must", two_ways(own_end=False)),
        ("in the order in which they were computed", two_ways(turn_back=False)),
        ("the whole padded row is reversed", two_ways(own_end=False, turn_back=False)),
        ("the padded inputs are set to 0", lambda x, n, *sets: two_ways(own_end=False)(zero_padding(x, n), n, *sets)),
        ("both directions use forward_weights", two_ways(weights=lambda f, b: (f, f))),
        ("both directions use backward_weights", two_ways(weights=lambda f, b: (b, b))),
        ("are exchanged", two_ways(weights=lambda f, b: (b, f))),
        ("the backward states come first", two_ways(order="bf")),
        ("output is not 0 at the padding", two_ways(zero=False)),
        ("every output is zero", two_ways(weights=lambda f, b: [[0 * w for w in part] for part in (f, b)])),
        (
            "the row's last",
            two_ways(summary=lambda o, e, n: o[torch.arange(len(o)), n - 1]),
        ),
        ("the row's first", two_ways(summary=lambda o, e, n: o[:, 0])),
        ("read at the last column", two_ways(summary=lambda o, e, n: o[:, -1])),
        (
            "each direction's state after one token",
            two_ways(summary=lambda o, e, n: torch.cat([o[:, 0, :2], o[torch.arange(len(o)), n - 1, 2:]], 1)),
        ),
        ("in the summary the backward half", two_ways(summary=lambda o, e, n: torch.cat([e[:, 2:], e[:, :2]], 1))),
        ("forward half is read at T - 1", two_ways(summary=lambda o, e, n: torch.cat([o[:, -1, :2], e[:, 2:]], 1))),
        ("is not the two states", two_ways(summary=lambda o, e, n: 2 * e)),
        ("no gradient reaches", lambda *args: tuple(part.detach() for part in two_ways()(*args))),
        ("the gradients are not", half_cut),
        ("is not your loop", two_ways(weights=lambda f, b: ((f[0], -f[1], f[2]), b))),
        (
            "the forward half is right; the backward half at step t",
            two_ways(weights=lambda f, b: (f, (b[0], -b[1], b[2]))),
        ),
        ("output has shape", lambda *args: (two_ways()(*args)[0][:, 1:], two_ways()(*args)[1])),
        ("summary has shape", lambda *args: (two_ways()(*args)[0], two_ways()(*args)[1][None])),
        ("expected a tuple", lambda *args: two_ways()(*args)[0]),
        ("your code calls `RNN`", packed_by_torch),
    ],
}
IDENTITY = {  # "returns its input"
    "rnn_forward": lambda x, h, weight_ih, weight_hh, bias: (x, h),
    "quotation_weights": (torch.ones(2, 1), torch.ones(2, 2), torch.ones(2), torch.ones(2), 1.0),
    "stack_sizes": (12, 5, 3, 2),
    "summaries": lambda output, lengths: output,
    "continue_text": lambda run, prompt, steps: prompt,
    "two_directions": lambda x, lengths, f, b: (x, x[:, 0]),
}
ZEROS = {
    "rnn_forward": lambda x, h, *weights: (torch.zeros(3, 5, 2, dtype=x.dtype), torch.zeros_like(h)),
    "quotation_weights": (*ZERO_BIT, 0.0),
    "stack_sizes": (0, 0, 0, 0),
    "summaries": lambda output, lengths: torch.zeros_like(output[:, 0]),
    "continue_text": lambda run, prompt, steps: [0] * steps,
    "two_directions": lambda x, lengths, f, b: (torch.zeros(4, 6, 4, dtype=x.dtype), torch.zeros(4, 4, dtype=x.dtype)),
}


@pytest.mark.parametrize("name", NAMES)
def test_reference_passes(name):
    assert verdict(getattr(ch03, name), solution("03", name)) == f"passed: {name}"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch03, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch03, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch03, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch03, name), ...) == f"not attempted yet: {name}"


# Fails when a check insists on one way of writing a right answer down.
def test_other_right_answers_pass():
    assert verdict(ch03.stack_sizes, torch.tensor([530, 10, 6, 10])) == "passed: stack_sizes"
    assert verdict(ch03.quotation_weights, bit(k=40.0)) == "passed: quotation_weights"
    swapped = (*(part.flip(0) for part in bit()[:1]), torch.tensor([[-3.0, 3.0], [-3.0, 3.0]]),
               bit()[2].flip(0), torch.tensor([-0.5, 0.5]), torch.tensor(-0.5))  # fmt: skip
    assert verdict(ch03.quotation_weights, swapped) == "passed: quotation_weights"


# The numbers that stack_sizes wants are those of a real layer; fails if either changes.
def test_stack_sizes_are_those_of_torch():
    layer = torch.nn.RNN(12, 5, num_layers=3, bidirectional=True, batch_first=True)
    output, h_n = layer(torch.zeros(2, 4, 12))
    parameters = sum(p.numel() for p in layer.parameters())
    wanted = (parameters, layer.weight_ih_l2_reverse.shape[1], h_n.shape[0], output.shape[2])
    assert solution("03", "stack_sizes") == wanted


# The reference summaries are h_n of a real layer on padded rows; fails if a half is read elsewhere.
def test_summaries_are_the_last_states_of_a_real_layer():
    layer = RNN(3, 4, bidirectional=True, dtype=torch.float64)
    lengths = torch.tensor([5, 2, 6])
    output, h_n = layer(torch.randn(3, 6, 3, dtype=torch.float64), lengths=lengths)
    assert torch.equal(solution("03", "summaries")(output, lengths), torch.cat([h_n[0], h_n[1]], 1))


# The reference writer gives what reading everything again gives, on a real model; fails if a token is lost.
def test_continue_text_agrees_with_reading_everything_again():
    torch.manual_seed(0)
    model = LanguageModel(9, RNN(4, 6)).double()
    ids = [3, 1, 8]
    for _ in range(10):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    assert solution("03", "continue_text")(model.run, [3, 1, 8], 10) == ids[3:]


# The reference layer is the course's own, with its lengths; fails if padding matters or a half is turned round.
def test_two_directions_are_those_of_a_real_layer():
    layer = RNN(3, 4, bidirectional=True, dtype=torch.float64)
    lengths = torch.tensor([5, 2, 6])
    x = torch.randn(3, 6, 3, dtype=torch.float64)
    sets = [(w, u, b + c) for w, u, b, c in layer.all_weights]
    output, summary = solution("03", "two_directions")(x, lengths, *sets)
    wanted, h_n = layer(x, lengths=lengths)
    assert torch.allclose(output, wanted)
    assert torch.allclose(summary, torch.cat([h_n[0], h_n[1]], 1))


# Fails if the open exercise shows its answer before one is written, or loses a hint.
def test_the_open_exercise_compares_only_what_was_written(capsys):
    ch03.how_wide.compare(...)
    ch03.how_wide.compare("too short")
    assert "A good answer" not in capsys.readouterr().out
    ch03.how_wide.compare("word " * 20)
    assert "A good answer contains" in capsys.readouterr().out
    assert len(ch03.how_wide.hints) == 3


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch03, name), wrong) for _, wrong in PLANTED[name])
    for line in ("states.append", "torch.arange(len(output))", "torch.tensor([new[-1:]])", "-1.5"):
        assert line not in messages
