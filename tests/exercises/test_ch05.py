"""The checks of chapter 05: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import lstm_gru
from course_lib.exercises import Written, ch05
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("lstm_cell", "gru_cell", "gru_weights")
VALUES = {  # check: the name of the student's answer
    "along_the_cell": "left",
    "parameter_counts": "numbers",
    "review_classifier": "ReviewClassifier",
}


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def lstm(
    order="ifgo",
    squash=torch.sigmoid,
    propose=torch.tanh,
    cell=lambda i, f, g, c, h: f * c + i * g,
    show=lambda o, c, old: o * c.tanh(),
    read=lambda x, h, c, weight_ih, weight_hh, bias: x @ weight_ih.T + h @ weight_hh.T + bias,
    give=lambda h, c: (h, c),
):
    """An LSTM cell with one part exchanged."""

    def step(x, h, c, weight_ih, weight_hh, bias):
        parts = dict(zip(order, read(x, h, c, weight_ih, weight_hh, bias).chunk(4, dim=1), strict=True))
        i, f, o, g = squash(parts["i"]), squash(parts["f"]), squash(parts["o"]), propose(parts["g"])
        new = cell(i, f, g, c, h)
        return give(show(o, new, c), new)

    return step


def returns_old_h(x, h, c, weight_ih, weight_hh, bias):
    return h, lstm()(x, h, c, weight_ih, weight_hh, bias)[1]


def swapped_states(x, h, c, weight_ih, weight_hh, bias):
    return lstm()(x, c, h, weight_ih, weight_hh, bias)


def torchs_cell(x, h, c, weight_ih, weight_hh, bias):
    """Torch's own module, with the weights put into it."""
    cell = nn.LSTMCell(x.shape[1], h.shape[1]).double()
    weights = {"weight_ih": weight_ih, "weight_hh": weight_hh, "bias_ih": bias, "bias_hh": torch.zeros_like(bias)}
    return torch.func.functional_call(cell, weights, (x, (h, c)))


def librarys_cell(x, h, c, weight_ih, weight_hh, bias):
    return lstm_gru.lstm_step(x @ weight_ih.T + bias, h, c, weight_hh)


def side_by_side(h, weight_hh, blocks):
    """The product of h with each block, not transposed."""
    return torch.cat([h @ block for block in weight_hh.chunk(blocks)], 1)


def gru(
    order="rzn",
    squash=torch.sigmoid,
    candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + r * h_n),
    mix=lambda n, z, h: (1 - z) * n + z * h,
    use=(1, 1, 1, 1),
):
    """A GRU cell with one part exchanged; `use` scales x, h and both biases."""

    def step(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
        from_x = dict(zip(order, (use[0] * x @ weight_ih.T + use[2] * bias_ih).chunk(3, dim=1), strict=True))
        from_h = dict(zip(order, (use[1] * h @ weight_hh.T + use[3] * bias_hh).chunk(3, dim=1), strict=True))
        r, z = squash(from_x["r"] + from_h["r"]), squash(from_x["z"] + from_h["z"])
        n = candidate(from_x["n"], from_h["n"], r, h, weight_hh.chunk(3)[2], bias_hh.chunk(3)[2])
        return mix(n, z, h)

    return step


def _gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    x_r, x_z, x_n = (x @ weight_ih.T + bias_ih).chunk(3, dim=1)
    h_r, h_z, h_n = (h @ weight_hh.T + bias_hh).chunk(3, dim=1)
    return (x_r + h_r).sigmoid(), (x_z + h_z).sigmoid(), x_n, h_n


def z_for_r(x, h, *weights):
    _, z, x_n, h_n = _gates(x, h, *weights)
    return (1 - z) * torch.tanh(x_n + z * h_n) + z * h


def r_for_z(x, h, *weights):
    r, _, x_n, h_n = _gates(x, h, *weights)
    return (1 - r) * torch.tanh(x_n + r * h_n) + r * h


def without_b_in(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    D = h.shape[1]
    r, z, x_n, h_n = _gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    return (1 - z) * torch.tanh(x_n - bias_ih[2 * D :] + r * h_n) + z * h


def b_in_inside(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    D = h.shape[1]
    r, z, x_n, h_n = _gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    b_in = bias_ih[2 * D :]
    return (1 - z) * torch.tanh(x_n - b_in + r * (h_n + b_in)) + z * h


def gates_read_x_only(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    D = h.shape[1]
    r, z = (x @ weight_ih.T + bias_ih)[:, : 2 * D].sigmoid().chunk(2, dim=1)
    _, _, x_n, h_n = _gates(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
    return (1 - z) * torch.tanh(x_n + r * h_n) + z * h


def transposes_nothing(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    turned = torch.cat([block.T for block in weight_hh.chunk(3)])
    return gru()(x, h, weight_ih, turned, bias_ih, bias_hh)


def keeps_the_reset_state(**exchanged):
    """z * (r * h) in place of z * h."""

    def step(x, h, *weights):
        r, z, _, _ = _gates(x, h, *weights)
        return gru(**exchanged)(x, h, *weights) - z * h + z * (r * h)

    return step


def librarys_gru(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    return lstm_gru.gru_step(x @ weight_ih.T + bias_ih, h, weight_hh, bias_hh)


def weights(first=lambda z: z.prod(0), enter=lambda z: 1 - z, decay=lambda z, i: z[i + 1 :].prod(0)):
    """Unrolled weights, with one factor exchanged."""

    def of(z):
        rows = [first(z)] + [enter(z)[i] * decay(z, i) for i in range(len(z))]
        return torch.stack(rows)

    return of


def by_division(z):
    total = z.cumprod(0)
    return torch.cat([total[-1:], (1 - z) * total[-1] / total])


def all_states(z):
    right = solution("05", "gru_weights")
    return torch.stack([torch.cat([right(z[: t + 1]), z.new_zeros(len(z) - t - 1, z.shape[1])]) for t in range(len(z))])


def classifier(
    order="ifgo",
    cat=lambda x, h, c: torch.cat([x, h], 1),
    propose=torch.tanh,
    show=torch.tanh,
    carry=lambda h, c: (h, c),
    keep=lambda h, c: c,
    read=lambda hs, cs, n: hs[torch.arange(len(n)), n - 1],
    give=lambda logits: logits,
    start=0.0,
    gates=lambda inputs, D: nn.Linear(inputs + D, 4 * D),
):
    """A `ReviewClassifier` with one part exchanged."""

    class Model(nn.Module):
        def __init__(self, vocab_size, embedding_dim, hidden_size, num_classes):
            super().__init__()
            self.embedding = nn.Embedding(vocab_size, embedding_dim)
            self.gates = gates(embedding_dim, hidden_size)
            self.output = nn.Linear(hidden_size, num_classes)

        def forward(self, ids, lengths):
            x, hs, cs = self.embedding(ids), [], []
            h = c = x.new_full((len(ids), self.output.in_features), start)
            for t in range(x.shape[1]):
                h, c = carry(h, c)
                parts = dict(zip(order, self.gates(cat(x[:, t], h, c)).chunk(4, 1), strict=True))
                c = parts["f"].sigmoid() * keep(h, c) + parts["i"].sigmoid() * propose(parts["g"])
                h = parts["o"].sigmoid() * show(c)
                hs.append(h)
                cs.append(c)
            return give(self.output(read(torch.stack(hs, 1), torch.stack(cs, 1), lengths)))

    return Model


class ReadsOn(classifier()):
    """Reads all columns backwards in time as well: padding counts."""

    def forward(self, ids, lengths):
        return super().forward(ids, lengths) + 0 * ids.sum() + (ids.shape[1] - 6)


class Remembers(classifier()):
    """Goes on from the last call."""

    calls = 0

    def forward(self, ids, lengths):
        self.calls += 1
        return super().forward(ids, lengths) + (self.calls - 1)


class StartsAtRandom(classifier()):
    """Its first state is drawn anew in every call."""

    def forward(self, ids, lengths):
        return super().forward(ids, lengths) + torch.randn(len(ids), 1)


class DropsAlways(classifier()):
    """Dropout as a function, which is on in tests too."""

    def forward(self, ids, lengths):
        return F.dropout(super().forward(ids, lengths), 0.5)


class CountsIds(classifier()):
    """Takes all ids but 0 for words, whatever `lengths` says."""

    def forward(self, ids, lengths):
        return super().forward(ids, (ids != 0).sum(1))


class CountsOtherIds(classifier()):
    """The same, and by chance it is right for the padding of the first batch."""

    def forward(self, ids, lengths):
        return super().forward(ids, (ids != 1).sum(1))


class SortsRows(classifier()):
    """Sorts the rows by length, and does not put them back."""

    def forward(self, ids, lengths):
        order = lengths.argsort(descending=True)
        return super().forward(ids[order], lengths[order])


class PadsWithZero(classifier()):
    """Row 0 of its embedding is for padding, and gets no gradient."""

    def __init__(self, vocab_size, embedding_dim, hidden_size, num_classes):
        super().__init__(vocab_size, embedding_dim, hidden_size, num_classes)
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)


class SkipsId0(classifier()):
    """Takes the first words of each row, up to the first 0 or to its length."""

    def forward(self, ids, lengths):
        words = (ids != 0).long().cumprod(1).sum(1).clamp(min=1)
        return super().forward(ids, torch.minimum(words, lengths))


class LeavesItToTorch(classifier()):
    """Torch's cell, with the weights of `gates`."""

    def forward(self, ids, lengths):
        x, states = self.embedding(ids), []
        weight_ih, weight_hh = self.gates.weight.split([x.shape[2], self.output.in_features], 1)
        h = c = x.new_zeros(len(ids), self.output.in_features)
        for t in range(x.shape[1]):
            none = torch.zeros_like(self.gates.bias)
            h, c = torch.lstm_cell(x[:, t], (h, c), weight_ih, weight_hh, self.gates.bias, none)
            states.append(h)
        return self.output(last(torch.stack(states, 1), lengths))


class LikesCompany(classifier()):
    """Its answer depends on the size of the batch."""

    def forward(self, ids, lengths):
        return super().forward(ids, lengths) + (len(ids) < 4)


class WithoutBias(classifier()):
    def forward(self, ids, lengths):
        return super().forward(ids, lengths) - self.output.bias


class OneMore(classifier()):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.extra = nn.Parameter(torch.zeros(1))


class OtherNames(classifier()):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.embed = self.embedding
        del self.embedding


def last(hs, lengths):
    return hs[torch.arange(len(lengths)), lengths - 1]


def real(hs, lengths):
    return (torch.arange(hs.shape[1]) < lengths[:, None])[..., None]


GATE = 0.5 ** (1 / 100)
BIAS = math.log(GATE / (1 - GATE))
COUNTS = (2560, 1920, 15040, 80, 40)
PLANTED = {
    "lstm_cell": [
        ("order i f o g", lstm(order="ifog")),
        ("order f i g o", lstm(order="figo")),
        ("order i o f g", lstm(order="iofg")),
        ("input gate is not used", lstm(cell=lambda i, f, g, c, h: f * c + g)),
        ("forget gate is not used", lstm(cell=lambda i, f, g, c, h: c + i * g)),
        ("does not erase", lstm(cell=lambda i, f, g, c, h: (1 - f) * c + i * g)),
        ("acts on the old cell only", lstm(cell=lambda i, f, g, c, h: f * (c + i * g))),
        ("tie the gates, 1 - f", lstm(cell=lambda i, f, g, c, h: f * c + (1 - f) * g)),
        ("tie the gates, 1 - i", lstm(cell=lambda i, f, g, c, h: (1 - i) * c + i * g)),
        ("old cell is lost", lstm(cell=lambda i, f, g, c, h: i * g)),
        ("before it is stored", lstm(cell=lambda i, f, g, c, h: (f * c + i * g).tanh(), show=lambda o, c, old: o * c)),
        ("candidate goes through a sigmoid", lstm(propose=torch.sigmoid)),
        ("gates go through tanh", lstm(squash=torch.tanh)),
        ("candidate has no tanh", lstm(propose=lambda a: a)),
        ("gates have no sigmoid", lstm(squash=lambda a: a)),
        ("neither sigmoid nor tanh", lstm(squash=lambda a: a, propose=lambda a: a)),
        ("g gets tanh only", lstm(propose=lambda a: a.sigmoid().tanh())),
        ("old hidden state h has no influence", lstm(read=lambda x, h, c, w, u, b: x @ w.T + b)),
        ("input x has no influence", lstm(read=lambda x, h, c, w, u, b: h @ u.T + b)),
        ("bias is not added", lstm(read=lambda x, h, c, w, u, b: x @ w.T + h @ u.T)),
        ("weight_hh are not transposed", lstm(read=lambda x, h, c, w, u, b: x @ w.T + side_by_side(h, u, 4) + b)),
        ("where they should read h", lstm(read=lambda x, h, c, w, u, b: x @ w.T + c @ u.T + b)),
        ("swapped at the start", swapped_states),
        ("set to zeros inside", lambda x, h, c, *weights: lstm()(x, 0 * h, 0 * c, *weights)),
        ("where the old cell belongs", lstm(cell=lambda i, f, g, c, h: f * h + i * g)),
        ("neither forgotten from", lstm(cell=lambda i, f, g, c, h: c)),
        ("your pair is (c, h)", lstm(give=lambda h, c: (c, h))),
        ("h stands in c's place", lstm(give=lambda h, c: (h, h))),
        ("you return it as h too", lstm(give=lambda h, c: (c, c))),
        ("without the tanh", lstm(show=lambda o, c, old: o * c)),
        ("output gate is not used", lstm(show=lambda o, c, old: c.tanh())),
        ("shows the old cell", lstm(show=lambda o, c, old: o * old.tanh())),
        ("a gate multiplies", lstm(show=lambda o, c, old: o + c.tanh())),
        ("the gate comes after", lstm(show=lambda o, c, old: (o * c).tanh())),
        ("shown through tanh", lstm(show=lambda o, c, old: o * c.sigmoid())),
        ("return the old h", returns_old_h),
        ("is not o * tanh(c)", lstm(show=lambda o, c, old: o * c.tanh() + 1)),
        ("look at how you combine them", lstm(cell=lambda i, f, g, c, h: f * c - i * g)),
        ("one tensor came back", lstm(give=lambda h, c: h)),
        ("3 things came back", lstm(give=lambda h, c: (h, c, c))),
        ("h is a list", lstm(give=lambda h, c: (h.tolist(), c))),
        ("c has shape (5, 2)", lstm(give=lambda h, c: (h, c.T))),
        ("the new h is cut off", lstm(give=lambda h, c: (h.detach(), c.detach()))),
        ("the new c is cut off", lstm(give=lambda h, c: (h, c.detach()))),
        ("c gets a wrong gradient", lstm(cell=lambda i, f, g, c, h: f * c.detach() + i * g)),
        ("calls torch's `lstm_cell`", torchs_cell),
        ("calls the library's `lstm_step`", librarys_cell),
    ],
    "along_the_cell": [
        ("one factor too many", (0.168, 0.42, BIAS)),
        ("f_5 is missing", (0.48, 0.42, BIAS)),
        ("(a) f_3 is missing", (0.42, 0.42, BIAS)),
        ("added the gates", (2.1, 0.42, BIAS)),
        ("multiplied 1 - f", (0.024, 0.42, BIAS)),
        ("by c_0", (0.1512, 0.42, BIAS)),
        ("Which steps lie between", (0.7, 0.42, BIAS)),
        ("(a) two digits came back", (0.34, 0.42, BIAS)),
        ("acts on c_2", (0.336, 0.336, BIAS)),
        ("f_4 is missing", (0.336, 0.7, BIAS)),
        ("follow it from there", (0.336, 0.6, BIAS)),
        ("this is the gate itself", (0.336, 0.42, GATE)),
        ("the sign is wrong", (0.336, 0.42, -BIAS)),
        ("rounded to two digits", (0.336, 0.42, math.log(99))),
        ("rounded to two digits", (0.336, 0.42, 4.6)),
        ("Keep five digits", (0.336, 0.42, 4.955)),
        ("not 99", (0.336, 0.42, 4.958)),
        ("three of b", (0.336, 0.42, 4.96)),
        ("5 is near", (0.336, 0.42, 5.0)),
        ("losses do not add up", (0.336, 0.42, math.log(0.995 / 0.005))),
        ("nothing is left", (0.336, 0.42, 0.5)),
        ("not one half", (0.336, 0.42, 1.0)),
        ("expected 3 numbers (a, b, c), got 2", (0.336, 0.42)),
        ("got float", 0.336),
        ("must be a number, got str", ("0.336", 0.42, BIAS)),
    ],
    "gru_cell": [
        ("order z r n", gru(order="zrn")),
        ("order r n z", gru(order="rnz")),
        ("z is reversed", gru(mix=lambda n, z, h: (1 - z) * h + z * n)),
        ("reset *before*", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + (r * h) @ w.T + b))),
        (
            "two things: z is reversed",
            gru(
                candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + (r * h) @ w.T + b),
                mix=lambda n, z, h: (1 - z) * h + z * n,
            ),
        ),
        ("without the matrix", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + r * h))),
        ("reset gate is not used", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + h_n))),
        ("b_hn is outside", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + r * (h @ w.T) + b))),
        ("b_in is inside", b_in_inside),
        ("b_in is left out", without_b_in),
        ("b_in and b_hn are exchanged", lambda x, h, w, u, b_ih, b_hh: gru()(x, h, w, u, b_hh, b_ih)),
        ("W_hn is not transposed", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + r * (h @ w + b)))),
        ("none of the three blocks", transposes_nothing),
        ("that is kept as well", keeps_the_reset_state()),
        (
            "and is missing in the candidate",
            keeps_the_reset_state(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + h_n)),
        ),
        ("the gates r and z read x only", gates_read_x_only),
        ("no influence on gates and candidate", gru(use=(1, 0, 1, 1))),
        ("the input's part as well", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(r * (x_n + h_n)))),
        ("in place of the state's", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(r * x_n + h_n))),
        ("multiply by 1 - r", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.tanh(x_n + (1 - r) * h_n))),
        ("through a sigmoid: tanh", gru(candidate=lambda x_n, h_n, r, h, w, b: torch.sigmoid(x_n + r * h_n))),
        ("gates go through tanh", gru(squash=torch.tanh)),
        ("candidate has no tanh", gru(candidate=lambda x_n, h_n, r, h, w, b: x_n + r * h_n)),
        ("gates have no sigmoid", gru(squash=lambda a: a)),
        ("neither sigmoid nor tanh", gru(squash=lambda a: a, candidate=lambda x_n, h_n, r, h, w, b: x_n + r * h_n)),
        ("return the candidate", gru(mix=lambda n, z, h: n)),
        ("missing its factor 1 - z", gru(mix=lambda n, z, h: n + z * h)),
        ("missing its factor z", gru(mix=lambda n, z, h: (1 - z) * n + h)),
        ("one weight is z, the other", gru(mix=lambda n, z, h: z * (n + h))),
        ("input x has no influence", gru(use=(0, 1, 1, 1))),
        ("biases are not added", gru(use=(1, 1, 0, 0))),
        ("bias_ih is not added", gru(use=(1, 1, 0, 1))),
        ("bias_hh is not added", gru(use=(1, 1, 1, 0))),
        ("where the reset gate r belongs", z_for_r),
        ("the update gate's part", r_for_z),
        ("return the old state", lambda x, h, *weights: h),
        ("compare their ranges", gru(mix=lambda n, z, h: (1 - z) * n - z * h)),
        ("a GRU has one state", lambda *given: (gru()(*given), gru()(*given))),
        ("is a list", lambda *given: gru()(*given).tolist()),
        ("has shape (5, 2)", lambda *given: gru()(*given).T),
        ("calls torch's `gru_cell`", torch.gru_cell),
        ("calls the library's `gru_step`", librarys_gru),
    ],
    "gru_weights": [
        ("which has a weight too", lambda z: weights()(z)[1:]),
        ("the weights in every state", all_states),
        ("h_0 stands last", lambda z: weights()(z).roll(-1, 0)),
        ("rows run backwards", lambda z: weights()(z).flip(0)),
        ("enters *after* step s's gate", weights(decay=lambda z, i: z[i:].prod(0))),
        ("gates *before* step s", weights(decay=lambda z, i: z[:i].prod(0))),
        ("factor 1 - z_s is missing", weights(enter=lambda z: torch.ones_like(z))),
        ("z is reversed", lambda z: weights()(1 - z)),
        ("products are missing", weights(decay=lambda z, i: 1)),
        ("h_0 has weight 0", weights(first=lambda z: 0 * z[0])),
        ("h_0 has weight 1", weights(first=lambda z: torch.ones_like(z[0]))),
        ("decay by 1 - z", weights(decay=lambda z, i: (1 - z)[i + 1 :].prod(0))),
        ("sum to 2.", lambda z: 2 * weights()(z)),
        ("over the units", lambda z: weights()(z).softmax(1)),
        ("they are z_2 z_1", lambda z: weights()(z).softmax(0)),
        ("a quotient of products", by_division),
        ("is a list", lambda z: weights()(z).tolist()),
        ("has shape (3, 5)", lambda z: weights()(z).T),
        ("calls the library's `unrolled_weights`", lambda z: lstm_gru.unrolled_weights(z[None])[0, -1]),
    ],
    "parameter_counts": [
        ("you counted one", (2480, 1860, 14720, 0, 0)),
        ("biases are missing", (2400, 1800, 14400, 0, 0)),
        ("this is one gate", (640, 640, 5000, 20, 20)),
        ("an LSTM has four", (1920, *COUNTS[1:])),
        ("numbers of one gate", (2561, *COUNTS[1:])),
        ("r, z and n, three", (2560, 2560, *COUNTS[2:])),
        ("has a candidate", (2560, 1280, *COUNTS[2:])),
        ("three times the numbers", (2560, 1921, *COUNTS[2:])),
        ("is not 20 wide", (2560, 1920, 11840, 80, 40)),
        ("has two directions", (2560, 1920, 5920, 80, 40)),
        ("another width than 10", (2560, 1920, 10240, 80, 40)),
        ("second direction is missing", (2560, 1920, 7520, 80, 40)),
        ("then 2 of the second", (2560, 1920, 15041, 80, 40)),
        ("stands inside the reset gate", (2560, 1920, 15040, 80, 60)),
        ("not both", (2560, 1920, 15040, 160, 40)),
        ("(d) LSTM: 20", (2560, 1920, 15040, 20, 40)),
        ("(d) GRU: 0", (2560, 1920, 15040, 80, 0)),
        ("d for the GRU), got 3", (2560, 1920, 15040)),
        ("got int", 2560),
    ],
    "review_classifier": [
        ("wanted a torch.nn.Module", lambda *sizes: torch.zeros(4, 2)),
        ("there is no parameter embedding.weight", OtherNames),
        ("gates.weight has shape (20, 3)", classifier(gates=lambda inputs, D: nn.Linear(inputs, 4 * D))),
        (
            "gates has no bias",
            classifier(gates=lambda inputs, D: nn.Linear(inputs + D, 4 * D, bias=False)),
        ),
        ("a parameter too many", OneMore),
        ("the last column", classifier(read=lambda hs, cs, n: hs[:, -1])),
        ("too early", classifier(read=lambda hs, cs, n: hs[torch.arange(len(n)), n - 2])),
        ("too late", classifier(read=lambda hs, cs, n: hs[torch.arange(len(n)), n.clamp(max=hs.shape[1] - 1)])),
        ("the first step's state", classifier(read=lambda hs, cs, n: hs[:, 0])),
        ("the memory c", classifier(read=lambda hs, cs, n: last(cs, n))),
        ("padding included", classifier(read=lambda hs, cs, n: hs.mean(1))),
        ("of the real words", classifier(read=lambda hs, cs, n: (hs * real(hs, n)).sum(1) / n[:, None])),
        ("the maximum", classifier(read=lambda hs, cs, n: hs.masked_fill(~real(hs, n), -torch.inf).amax(1))),
        ("over all steps, padding", classifier(read=lambda hs, cs, n: hs.amax(1))),
        ("the shortest one", classifier(read=lambda hs, cs, n: hs[:, n.min() - 1])),
        ("h is not carried", classifier(carry=lambda h, c: (torch.zeros_like(h), c))),
        ("c is not carried", classifier(carry=lambda h, c: (h, torch.zeros_like(c)))),
        ("x comes first", classifier(cat=lambda x, h, c: torch.cat([h, x], 1))),
        ("goes through a sigmoid: tanh", classifier(propose=torch.sigmoid)),
        ("without the tanh", classifier(show=lambda c: c)),
        ("starts at 1", classifier(start=1.0)),
        ("order f i g o", classifier(order="figo")),
        ("order i f o g", classifier(order="ifog")),
        ("these are probabilities", classifier(give=lambda logits: logits.softmax(1))),
        ("these are log-probabilities", classifier(give=lambda logits: logits.log_softmax(1))),
        ("bias is not added", WithoutBias),
        ("compare with section 3's lines", classifier(give=lambda logits: logits + 1)),
        ("pass through a ReLU: return them as they are", classifier(give=torch.relu)),
        ("pass through a leaky ReLU", classifier(give=F.leaky_relu)),
        ("lose their signs", classifier(give=torch.abs)),
        ("pass through a sigmoid", classifier(give=torch.sigmoid)),
        ("pass through a tanh", classifier(give=torch.tanh)),
        ("two calls with the same ids", Remembers),
        ("tells padding by its id", CountsIds),
        ("in another order than in", SortsRows),
        ("the memory c in place of h", classifier(read=lambda hs, cs, n: cs[:, -1])),
        ("the output gate is missing", classifier(read=lambda hs, cs, n: last(cs, n).tanh())),
        ("c stands for h", classifier(cat=lambda x, h, c: torch.cat([x, c], 1))),
        ("h stands for c", classifier(keep=lambda h, c: h)),
        (
            "the forget gate should multiply c",
            classifier(cat=lambda x, h, c: torch.cat([x, c], 1), keep=lambda h, c: h),
        ),
        (
            "is the pair (h, c) taken as (c, h)?",
            classifier(carry=lambda h, c: (c, h), read=lambda hs, cs, n: last(cs, n)),
        ),
        ("calls torch's `lstm_cell`", LeavesItToTorch),
        ("would never be learned", PadsWithZero),
        ("with ids 0 or 1 among the words", SkipsId0),
        ("two more columns", ReadsOn),
        ("a row alone", LikesCompany),
        ("cut off from the weights", classifier(give=lambda logits: logits.detach())),
        ("something detached in the loop", classifier(carry=lambda h, c: (h.detach(), c.detach()))),
        ("is a list", classifier(give=lambda logits: logits.tolist())),
        ("has shape (2, 4)", classifier(give=lambda logits: logits.T)),
    ],
}
SAME_MESSAGE = [  # other classifiers that share a message with one above
    ("two calls with the same ids", StartsAtRandom),
    ("two calls with the same ids", DropsAlways),
    ("two more columns", CountsOtherIds),
]
IDENTITY = {  # "returns its input"
    "lstm_cell": lambda x, h, c, *weights: (h, c),
    "along_the_cell": (0.9, 0.5, 0.8),
    "gru_cell": lambda x, h, *weights: h,
    "gru_weights": lambda z: z,
    "parameter_counts": (10, 20, 2, 10, 20),
    "review_classifier": lambda *sizes: nn.Identity(),
}
ZEROS = {
    "lstm_cell": lambda x, h, c, *weights: (torch.zeros_like(h), torch.zeros_like(c)),
    "along_the_cell": (0, 0, 0),
    "gru_cell": lambda x, h, *weights: torch.zeros_like(h),
    "gru_weights": lambda z: torch.zeros(len(z) + 1, z.shape[1], dtype=z.dtype),
    "parameter_counts": (0, 0, 0, 0, 0),
    "review_classifier": classifier(give=torch.zeros_like),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_reference_passes(name):
    assert verdict(getattr(ch05, name), solution("05", VALUES.get(name, name))) == f"passed: {name}"


def test_three_digits_are_enough():
    rounded = tuple(float(f"{value:.3g}") for value in solution("05", "left"))
    assert verdict(ch05.along_the_cell, rounded) == "passed: along_the_cell"


# Fails when a check insists on Python's own int and float.
@pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array, lambda v: [np.float32(x) for x in v]])
def test_numbers_of_any_kind_are_welcome(kind):
    assert verdict(ch05.along_the_cell, kind(solution("05", "left"))) == "passed: along_the_cell"
    assert verdict(ch05.parameter_counts, kind(COUNTS)) == "passed: parameter_counts"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch05, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize(("part", "wrong"), SAME_MESSAGE)
def test_other_ways_to_the_same_mistake(part, wrong):
    assert part in verdict(ch05.review_classifier, wrong)


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch05, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch05, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch05, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch05, name), wrong) for _, wrong in PLANTED[name])
    for line in ("chunk(4", "torch.cat", "torch.arange(", "math.log", "x_n + r * h_n", "torch.stack"):
        assert line not in messages


def test_the_checks_formulas_are_torchs():
    """Fails if the checks' own cells were wrong: then they would reject right answers."""
    x, h, c, *w = ch05._draw((2, 3), (2, 5), (2, 5), (20, 3), (20, 5), (20,), seed=0)
    want_h, want_c = torch.lstm_cell(x, (h, c), w[0], w[1], w[2], torch.zeros_like(w[2]))
    got = ch05._lstm(x, h, c, *w)
    torch.testing.assert_close((got["h"], got["c"]), (want_h, want_c))
    x, h, *w = ch05._draw((2, 3), (2, 5), (15, 3), (15, 5), (15,), (15,), seed=0)
    *_, z, n = ch05._gru(x, h, *w)
    torch.testing.assert_close((1 - z) * n + z * h, torch.gru_cell(x, h, *w))


def test_the_open_exercise_compares_only_what_was_written(capsys):
    """Fails if its good answer can be read before an answer is given, or if a hint gives it away."""
    ch05.how_open.compare(...)
    ch05.how_open.compare("the gate must be open")
    early = capsys.readouterr().out
    assert early.startswith("There is no answer yet.")
    assert "has 5 words" in early
    assert ch05.how_open.good_answer not in early
    ch05.how_open.compare("The product of the forget gates over the lag decides, because it scales " * 2)
    assert capsys.readouterr().out == f"A good answer contains: {ch05.how_open.good_answer}\n"
    assert all(hint not in ch05.how_open.good_answer for hint in ch05.how_open.hints)


def test_a_written_exercise_has_three_hints():
    with pytest.raises(ValueError, match="got 2 hints; wanted 3"):
        Written(hints=("a", "b"), good_answer="c")
    with pytest.raises(ValueError, match="hint 4 does not exist"):
        ch05.how_open.hint(4)
