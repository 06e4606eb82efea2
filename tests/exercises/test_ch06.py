"""The checks of chapter 06: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import AdditiveAttention
from course_lib.exercises import ch06
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("shifted_loss", "greedy_decode", "beam_search", "additive_weights")
VALUES = {"search_by_hand": "found", "own_translator": "OwnTranslator"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def nats(logits, wanted):
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)


def loss(mean, inputs=lambda target: target[:, :-1], wanted=lambda target: target[:, 1:]):
    def of_batch(model, source, mask, target, pad):
        return mean(nats(model(source, mask, inputs(target)), wanted(target)), wanted(target) != pad, target, pad)

    return of_batch


def whole(target):
    return target


def real_mean(values, real, target, pad):
    return values[real].mean()


def greedy(stop=True, keep=False, carry=True, feed=True, start=False, any_done=False, steps=0, choose=torch.argmax):
    def decode(step, state, sos, eos, max_length):
        tokens, rows = torch.full((len(state),), sos), [[sos] if start else [] for _ in state]
        done = torch.zeros(len(state), dtype=torch.bool)
        for _ in range(max_length + steps):
            logits, following = step(tokens, state)
            state = following if carry else state
            chosen = choose(logits, dim=-1)
            tokens = chosen if feed else tokens
            for b, token in enumerate(chosen.tolist()):
                if not stop or (not done[b] and (token != eos or keep)):
                    rows[b].append(token)
            done |= chosen == eos
            if done.any() if any_done else done.all() and stop:
                break
        return rows

    return decode


def never_leaves(step, state, sos, eos, max_length):
    rows = greedy(stop=False)(step, state, sos, eos, max_length)
    return [row[: row.index(eos)] if eos in row else row for row in rows]


def only_eos_dropped(step, state, sos, eos, max_length):
    rows = greedy(stop=False)(step, state, sos, eos, max_length)
    return [[token for token in row if token != eos] for row in rows]


def random_choice(logits, dim):
    return (logits + torch.rand_like(logits) * 5).argmax(dim)


def loops_for_ever(step, state, sos, eos, max_length):
    tokens = torch.full((len(state),), sos)
    while True:
        logits, state = step(tokens, state)
        tokens = logits.argmax(-1)


def lp(length, alpha):
    return ((5 + length) / 6) ** alpha


def beam(
    score=lambda tokens, log_p, alpha: log_p / lp(len(tokens), alpha),
    returned=None,
    value=float,
    best=max,
    of_each=None,
    cut=True,
    obey=True,
    first=False,
    both=False,
    refill=False,
    shown=lambda tokens: tokens,
    longer=0,
    outside=False,
    late=False,
):
    def search(step, eos, size, max_length, alpha):
        unfinished, finished = [((), 0.0)], []
        for _ in range(max_length + longer):
            candidates = []
            for tokens, log_p in unfinished:
                grown = [((*tokens, i), log_p + value(q)) for i, q in enumerate(step(tokens).tolist())]
                grown.sort(key=lambda c: -c[1])
                candidates += grown[: of_each(size, tokens)] if of_each else grown
            candidates.sort(key=lambda c: -c[1])
            if outside:
                finished += [c for c in candidates if c[0][-1] == eos]
                unfinished = [c for c in candidates if c[0][-1] != eos][:size]
                continue
            kept = candidates[: size if refill else size - len(finished)] if cut else candidates
            unfinished = [c for c in kept if c[0][-1] != eos or not obey]
            if late:  # the one that finishes gives up its place only at the next step
                unfinished = [c for c in candidates if c[0][-1] != eos][: size - len(finished)]
            finished += [c for c in kept if c[0][-1] == eos]
            if not unfinished or (first and finished):
                break
        if not obey:
            finished = unfinished
        tokens, log_p = best(finished + unfinished if both else finished or unfinished, key=lambda c: score(*c, alpha))
        return shown(tokens), (returned or score)(tokens, log_p, alpha)

    return search


def additive(weights, scored=None):
    def of(query, keys, W_q, W_k, v, mask):
        q, k = (query @ W_q.T)[:, None], keys @ W_k.T
        scores = (scored or (lambda q, k, v: torch.tanh(q + k) @ v))(q, k, v)
        return weights(scores, mask)

    return of


def hidden(scores, mask):
    return scores.masked_fill(~mask, -math.inf)


def right_weights(scores, mask):
    return hidden(scores, mask).softmax(1)


def zeroed_keys(query, keys, W_q, W_k, v, mask):
    return additive(lambda scores, mask: scores.softmax(1))(query, keys * mask[..., None], W_q, W_k, v, mask)


def ready_made(query, keys, W_q, W_k, v, mask):
    library = AdditiveAttention(W_q.shape[1], W_k.shape[1], len(v)).double()
    library.load_state_dict({"query.weight": W_q, "key.weight": W_k, "score.weight": v[None]})
    return library(query[:, None], library.project(keys), keys, mask[:, None])[1][:, 0]


def own_softmax(scores, mask):
    e = scores.exp() * mask
    return e / e.sum(1, keepdim=True)


def reshaped(model, source, mask, target, pad):
    logits, wanted = model(source, mask, target[:, :-1]), target[:, 1:]
    B, T, V = logits.shape
    return F.cross_entropy(logits.reshape(B, V, T), wanted, ignore_index=pad)


def last_token(states, mask):
    return states[torch.arange(len(mask)), mask.sum(1) - 1]


def mine(
    name="v",
    bias=False,
    h_0=last_token,
    weights=lambda scores, mask: scores.masked_fill(~mask, -math.inf).softmax(1),
    context=lambda w, states, mask: (w[..., None] * states).sum(1),
    cat=lambda x, c: [x, c],
    shown=lambda h, after: after,
    carry=lambda first, h: h,
    fed=lambda t, given, logits: given,
    update=lambda optimizer, loss: (optimizer.zero_grad(), loss.backward(), optimizer.step()),
    inputs=lambda target: target[:, :-1],
    wanted=lambda target: target[:, 1:],
    options=lambda pad: {"ignore_index": pad},
    returned=lambda model, loss, again: loss.item(),
    both=True,
    give=lambda logits: logits,
    batch_first=True,
    ids=lambda source, mask: source,
    query=lambda h: h,
):
    """An `OwnTranslator` with one part exchanged."""

    class Model(nn.Module):
        def __init__(self, source_size, target_size, embedding_dim, hidden_size, attention_size):
            super().__init__()
            self.source_embedding = nn.Embedding(source_size, embedding_dim)
            self.encoder = nn.GRU(embedding_dim, hidden_size, batch_first=batch_first)
            self.target_embedding = nn.Embedding(target_size, embedding_dim)
            self.W_q = nn.Linear(hidden_size, attention_size, bias=bias)
            self.W_k = nn.Linear(hidden_size, attention_size, bias=False)
            setattr(self, name, nn.Linear(attention_size, 1, bias=False))
            self.decoder = nn.GRUCell(embedding_dim + hidden_size, hidden_size)
            self.output = nn.Linear(hidden_size, target_size)

        def read(self, source, mask):
            states, _ = self.encoder(self.source_embedding(ids(source, mask)))
            return (states, h_0(states, mask)) if both else states

        def step(self, tokens, h, states, mask):
            scores = self.v(torch.tanh(self.W_q(query(h))[:, None] + self.W_k(states)))[..., 0]
            c = context(weights(scores, mask), states, mask)
            after = self.decoder(torch.cat(cat(self.target_embedding(tokens), c), 1), h)
            return self.output(shown(h, after)), after

        def forward(self, source, mask, inputs):
            states, h = self.read(source, mask)
            first, rows = h, [None]
            for t, given in enumerate(inputs.unbind(1)):
                logits, h = self.step(fed(t, given, rows[-1]), carry(first, h), states, mask)
                rows.append(logits)
            return give(torch.stack(rows[1:], 1))

        def learn(self, optimizer, source, mask, target, pad):
            def loss():
                logits = self(source, mask, inputs(target)).flatten(0, 1)
                return F.cross_entropy(logits, wanted(target).flatten(), **options(pad))

            now = loss()
            update(optimizer, now)
            return returned(self, now, loss)

    return Model


class Plus(mine()):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.more = nn.Linear(2, 3)


class WiderLater(mine()):
    """Its logits depend on the number of columns of the source."""

    def forward(self, source, mask, inputs):
        return super().forward(source, mask, inputs) + (source.shape[1] - 5)


class LateSteps(mine()):
    """Right at the first step only."""

    def forward(self, source, mask, inputs):
        logits = super().forward(source, mask, inputs)
        return logits + torch.arange(logits.shape[1])[:, None]


class AllSteps(mine()):
    def forward(self, source, mask, inputs):
        return 2 * super().forward(source, mask, inputs)


class StateAlone(mine()):
    """Its step gives back the state that it got."""

    def step(self, tokens, h, states, mask):
        return super().step(tokens, h, states, mask)[0], h


class OtherLogits(mine()):
    def step(self, tokens, h, states, mask):
        logits, h = super().step(tokens, h, states, mask)
        return 2 * logits, h


class LogitsAlone(mine()):
    def step(self, tokens, h, states, mask):
        return super().step(tokens, h, states, mask)[0]


class SecondUpdate(mine()):
    """Forgets to clear the gradients after the first update."""

    calls = 0

    def learn(self, optimizer, source, mask, target, pad):
        self.calls += 1
        loss = F.cross_entropy(
            self(source, mask, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad
        )
        if self.calls == 1:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()


def no_bag(scores, mask):
    return scores.softmax(1)


def clipped(optimizer, loss):
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], 1e-2)
    optimizer.step()


def not_cleared(optimizer, loss):
    loss.backward()
    optimizer.step()


GREEDY, BEST, SCORE, ALPHA = 0.22, 0.324, -1.6 * 6 / 11, math.log(4 / 3) / math.log(11 / 7)
PLANTED = {
    "shifted_loss": [
        ("both bugs", loss(lambda v, real, t, pad: v.mean(), whole, whole)),
        ("it can copy", loss(real_mean, whole, whole)),
        ("5 of 15 places here; the padding's id is the argument pad", loss(lambda v, real, t, pad: v.mean())),
        ("shift goes the wrong way", loss(real_mean, lambda t: t[:, 1:], lambda t: t[:, :-1])),
        ("grows with the batch", loss(lambda v, real, t, pad: v[real].sum())),
        ("number of sentences", loss(lambda v, real, t, pad: v[real].sum() / len(t))),
        ("within each sentence", loss(lambda v, real, t, pad: ((v * real).sum(1) / real.sum(1)).mean())),
        ("whose input is padding", loss(lambda v, real, t, pad: v[t[:, :-1] != pad].mean())),
        ("never learn to stop", loss(lambda v, real, t, pad: v[real & (t[:, 1:] != 3)].mean())),
        ("number that you divide by", loss(lambda v, real, t, pad: v[real].sum() / real.numel())),
        ("use the id that was passed", loss(lambda v, real, t, pad: v[t[:, 1:] != 1].mean())),
        ("return the tensor", loss(lambda v, real, t, pad: v[real].mean().item())),
        ("cut off from the model", loss(lambda v, real, t, pad: v[real].mean().detach())),
        ("its gradient is not", loss(lambda v, real, t, pad: v[real].mean() / 2 + v[real].mean().detach() / 2)),
        ("counts the <sos>", loss(lambda v, real, t, pad: v[real].sum() / (t != pad).sum())),
        ("axes are mixed up", reshaped),
        ("did not get the source's mask", lambda model, s, mask, t, pad: loss(real_mean)(model, s, None, t, pad)),
        ("never called", lambda model, source, mask, target, pad: torch.tensor(1.0)),
        ("is not", loss(lambda v, real, t, pad: v[real].mean() + 1)),
        ("is a list", lambda *a: [loss(real_mean)(*a)]),
    ],
    "greedy_decode": [
        ("goes on after <eos>", greedy(stop=False)),
        ("leaves out <eos> (id 3) but goes on after it", only_eos_dropped),
        ("still hold their <eos>", greedy(keep=True)),
        ("begin with <sos>", greedy(start=True)),
        ("one step short", greedy(steps=-1)),
        ("when one row", greedy(any_done=True)),
        ("hand the state", greedy(carry=False)),
        ("fed <sos> at every step", greedy(feed=False)),
        ("least likely", greedy(choose=torch.argmin)),
        ("in place of the argument", lambda step, state, sos, eos, *a: greedy()(step, state, 2, 3, *a)),
        ("though max_length is", greedy(steps=2)),
        ("leave the loop then", never_leaves),
        ("two calls", greedy(choose=random_choice)),
        ("one after the other", lambda *a: [row[::-1] for row in greedy()(*a)]),
        ("a loop that never ends", loops_for_ever),
        ("got a tensor", lambda step, state, *rest: state),
        ("got a dict", lambda *a: dict(enumerate(greedy()(*a)))),
        ("a row is a tensor", lambda *a: [torch.tensor(row) for row in greedy()(*a)]),
        ("each row must be a list", lambda *a: [str(row) for row in greedy()(*a)]),
        ("raised AttributeError", lambda step, state, *rest: state.tolist().decode()),
    ],
    "search_by_hand": [
        ("with its <eos>", (0.55, BEST, SCORE, ALPHA)),
        ("never gets to it", (BEST, BEST, SCORE, ALPHA)),
        ("you added", (0.95, BEST, SCORE, ALPHA)),
        ("largest number at every step", (0.1, BEST, SCORE, ALPHA)),
        ("without its end", (GREEDY, 0.405, SCORE, ALPHA)),
        ("greedy's sentence", (GREEDY, GREEDY, SCORE, ALPHA)),
        ("List the paths", (GREEDY, 0.5, SCORE, ALPHA)),
        ("sign is lost", (GREEDY, BEST, -SCORE, ALPHA)),
        ("you multiplied", (GREEDY, BEST, -1.6 * 11 / 6, ALPHA)),
        ("mean log-probability", (GREEDY, BEST, -1.6 / 6, ALPHA)),
        ("the 6 below", (GREEDY, BEST, -1.6 / 11, ALPHA)),
        ("count the <eos> too", (GREEDY, BEST, -1.6 * 6 / 10, ALPHA)),
        ("one of the 6", (GREEDY, BEST, -1.6 * 6 / 12, ALPHA)),
        ("score of X", (GREEDY, BEST, -1.2 * 6 / 7, ALPHA)),
        ("is not -2", (GREEDY, BEST, -2, ALPHA)),
        ("upside down", (GREEDY, BEST, SCORE, 1 / ALPHA)),
        ("ratio 6 / 2", (GREEDY, BEST, SCORE, math.log(4 / 3) / math.log(3))),
        ("lengths of 1 and 5", (GREEDY, BEST, SCORE, math.log(4 / 3) / math.log(10 / 6))),
        ("take logarithms", (GREEDY, BEST, SCORE, 4 / 3 / (11 / 7))),
        ("sign is wrong", (GREEDY, BEST, SCORE, -ALPHA)),
        ("no tie", (GREEDY, BEST, SCORE, 1.0)),
        ("right to two digits", (0.22, 0.32, -0.87, 0.64)),
        ("got 2", (GREEDY, BEST)),
        ("got float", GREEDY),
        ("greedy must be a number, got str", ("0.22", BEST, SCORE, ALPHA)),
    ],
    "beam_search": [
        ("one step too few", beam(longer=-1)),
        ("return the open one", beam(returned=lambda t, p, a: p / lp(len(t), a) if t[-1] == 0 else p)),
        ("which holds <eos>", beam(obey=False, shown=lambda tokens: (1, 0))),
        ("goes on after <eos>", lambda step, *a: ((1, 0, 2, 0), step(()).sum())),
        ("not 1 for each hypothesis", lambda step, eos, size, *a: beam()(step, eos, size + 1, *a)),
        ("not 2 for each hypothesis", beam(of_each=lambda size, tokens: size, cut=False)),
        ("of all hypotheses together", beam(of_each=lambda size, tokens: 1 if tokens else 99)),
        ("add their logarithms", beam(value=math.exp)),
        ("compared by log P alone", beam(score=lambda t, p, a: p, returned=lambda t, p, a: p / lp(len(t), a))),
        ("as soon as a hypothesis is finished", beam(first=True)),
        ("keeps its place", beam(refill=True)),
        ("at once, in the step", beam(late=True)),
        ("still open at the end", beam(both=True)),
        ("leaves out the <eos>", beam(score=lambda t, p, a: p / lp(len(t) - 1, a))),
        ("you divide by |Y|^alpha", beam(score=lambda t, p, a: p / len(t) ** a)),
        ("you multiply", beam(score=lambda t, p, a: p * lp(len(t), a))),
        ("return log P / lp", beam(returned=lambda t, p, a: p)),
        ("the score is not: you divide by", beam(returned=lambda t, p, a: p / len(t) ** a)),
        ("must win a place", beam(outside=True)),
        ("|Y| = ", beam(returned=lambda t, p, a: math.exp(p))),
        ("lack their <eos>", beam(shown=lambda tokens: tokens[:-1] if tokens[-1] == 0 else tokens)),
        ("wide enough", beam(best=min)),
        ("eos = 0, max_length = 4 and alpha = 1", lambda step, eos, *a: beam()(step, 0, *a)),
        ("the score is not 0.000", beam(returned=lambda t, p, a: p / lp(len(t), a) if a else 0.0)),
        ("another beam search", lambda step, eos, size, *a: beam()(step, eos, min(size, 2) if size < 9 else size, *a)),
        ("asked for token number 5", beam(longer=1)),
        ("never called", lambda step, *a: ((0,), 0.0)),
        ("wanted a pair", lambda *a: beam()(*a)[0][0]),
        ("must be a tuple or a list", beam(shown=str)),
        ("the score is a str", beam(returned=lambda t, p, a: str(p))),
    ],
    "additive_weights": [
        ("mask is not used: padding", additive(lambda scores, mask: scores.softmax(1))),
        ("masked after the softmax", additive(lambda scores, mask: scores.softmax(1) * mask)),
        ("e^0 = 1", additive(lambda scores, mask: scores.masked_fill(~mask, 0).softmax(1))),
        ("you zeroed the keys", zeroed_keys),
        ("lie on the padding", additive(lambda scores, mask: right_weights(scores, ~mask))),
        ("over the batch: softmax", additive(lambda scores, mask: hidden(scores, mask).softmax(0))),
        ("over the batch, and the mask", additive(lambda scores, mask: scores.softmax(0))),
        ("the softmax is missing", additive(hidden)),
        ("without mask and softmax", additive(lambda scores, mask: scores)),
        ("the tanh is missing", additive(right_weights, lambda q, k, v: (q + k) @ v)),
        ("tanh comes before v", additive(right_weights, lambda q, k, v: torch.tanh((q + k) @ v))),
        ("query has no influence", additive(right_weights, lambda q, k, v: torch.tanh(k) @ v)),
        ("square root", additive(right_weights, lambda q, k, v: torch.tanh(q + k) @ v / 2**0.5)),
        ("the scores are not used", additive(lambda scores, mask: mask / mask.double().sum(1, keepdim=True))),
        ("exp overflows", additive(own_softmax)),
        ("must sum to 1", additive(lambda scores, mask: right_weights(scores, mask) * 2)),
        ("check each product", additive(right_weights, lambda q, k, v: torch.tanh(q - k) @ v)),
        ("not low enough", additive(lambda scores, mask: scores.masked_fill(~mask, -20.0).softmax(1))),
        ("1000 times as large", additive(lambda scores, mask: scores.masked_fill(~mask, -1000.0).softmax(1))),
        ("some weights are nan", additive(lambda scores, mask: scores * math.nan)),
        ("by the library's AdditiveAttention", ready_made),
        ("that is the context", lambda query, keys, *rest: keys.mean(1)),
        ("there is one weight for each key", lambda q, keys, W_q, W_k, v, mask: keys @ W_k.T * v),
        ("is a list", additive(lambda scores, mask: right_weights(scores, mask).tolist())),
    ],
    "own_translator": [
        ("wanted a torch.nn.Module", lambda *sizes: sizes),
        ("the constructor makes self.v", mine(name="score")),
        ("W_q, W_k and v have no bias", mine(bias=True)),
        ("the eight layers are enough", Plus),
        ("batch_first=True", mine(batch_first=False)),
        ("got a Tensor", mine(both=False)),
        ("after the last column", mine(h_0=lambda states, mask: states[:, -1])),
        ("mean of a row's states", mine(h_0=lambda s, mask: (s * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))),
        ("after the first token", mine(h_0=lambda states, mask: states[:, 0])),
        ("one step too late", mine(h_0=lambda s, mask: s[torch.arange(3), mask.sum(1).clamp(max=4)])),
        ("h_0 is zero", mine(h_0=lambda states, mask: torch.zeros_like(states[:, 0]))),
        ("h_0 is not each row's", mine(h_0=lambda states, mask: last_token(states, mask).tanh())),
        ("over their embeddings", mine(ids=lambda source, mask: source.flip(1))),
        ("the mask is not used", mine(weights=no_bag)),
        ("masked after the softmax", mine(weights=lambda scores, mask: scores.softmax(1) * mask)),
        ("the same weight", mine(weights=lambda scores, mask: mask / mask.sum(1, keepdim=True).to(scores))),
        ("the state after the last word", mine(context=lambda w, states, mask: last_token(states, mask))),
        ("reads [c_t, e(y)]", mine(cat=lambda x, c: [c, x])),
        ("those of the new one", mine(shown=lambda h, after: h)),
        ("padding must get the weight 0", mine(weights=lambda s, mask: s.masked_fill(~mask, 0.0).softmax(1))),
        ("neither logits nor state", mine(query=torch.tanh)),
        ("is not the new one", StateAlone),
        ("logits are not output(h)", OtherLogits),
        ("step must return two", LogitsAlone),
        ("every step starts from h_0", mine(carry=lambda first, h: first)),
        ("fed its own predictions", mine(fed=lambda t, given, logits: logits.argmax(1) if t else given)),
        ("the later ones are not", LateSteps),
        ("one step after the other", AllSteps),
        ("two more columns", WiderLater),
        ("cut off from the weights", mine(give=torch.Tensor.detach)),
        ("wrong gradient", mine(carry=lambda first, h: h.detach())),
        ("learn returns nothing", mine(returned=lambda *a: None)),
        ("the loss counts padding", mine(options=lambda pad: {})),
        ("still holds the computation", mine(returned=lambda model, loss, again: loss)),
        ("it can copy", mine(inputs=whole, wanted=whole)),
        ("both bugs", mine(inputs=whole, wanted=whole, options=lambda pad: {})),
        ("is to predict; its", mine(inputs=lambda target: target[:, 1:])),
        ("after the update", mine(returned=lambda model, loss, again: again().item())),
        ("is not 0.0", mine(returned=lambda *a: 0.0)),
        ("have not moved", mine(update=lambda *a: None)),
        ("optimizer.zero_grad()", mine(update=not_cleared)),
        ("without clipping", mine(update=clipped)),
        ("the second is not", SecondUpdate),
        ("raised AttributeError", type("NoLearn", (nn.Module,), {"__init__": lambda self, *s: self.missing})),
    ],
}  # fmt: skip
IDENTITY = {  # "returns its input"
    "shifted_loss": lambda model, source, mask, target, pad: target,
    "greedy_decode": lambda step, state, sos, eos, max_length: state,
    "search_by_hand": (1.2, 1.6, 2, 6),
    "beam_search": lambda step, eos, size, max_length, alpha: (eos, size),
    "additive_weights": lambda query, keys, W_q, W_k, v, mask: query,
    "own_translator": lambda *sizes: nn.Identity(),
}
ZEROS = {
    "shifted_loss": lambda model, source, mask, target, pad: torch.tensor(0.0),
    "greedy_decode": lambda step, state, sos, eos, max_length: [[0] * max_length for _ in state],
    "search_by_hand": (0, 0, 0, 0),
    "beam_search": lambda step, eos, size, max_length, alpha: ((0,), 0.0),
    "additive_weights": lambda query, keys, W_q, W_k, v, mask: torch.zeros(keys.shape[:2], dtype=keys.dtype),
    "own_translator": mine(give=torch.zeros_like),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_reference_passes(name):
    assert verdict(getattr(ch06, name), solution("06", VALUES.get(name, name))) == f"passed: {name}"


@pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array])
def test_three_digits_of_any_kind_are_enough(kind):
    """Fails when a check insists on Python's own float or on more digits than it asks for."""
    rounded = [float(f"{value:.3g}") for value in solution("06", "found")]
    assert verdict(ch06.search_by_hand, kind(rounded)) == "passed: search_by_hand"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: logits cut instead of inputs, tuples, a tensor of ids."""

    def cut_the_logits(model, source, mask, target, pad):
        return real_mean(nats(model(source, mask, target)[:, :-1], target[:, 1:]), target[:, 1:] != pad, target, pad)

    decode, search = solution("06", "greedy_decode"), solution("06", "beam_search")

    def rows_of_tuples(*arguments):
        return tuple(map(tuple, decode(*arguments)))

    def tensors(*arguments):
        tokens, score = search(*arguments)
        return torch.tensor(tokens), torch.tensor(score)

    assert verdict(ch06.shifted_loss, cut_the_logits) == "passed: shifted_loss"
    assert verdict(ch06.greedy_decode, rows_of_tuples) == "passed: greedy_decode"
    assert verdict(ch06.beam_search, tensors) == "passed: beam_search"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch06, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch06, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch06, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch06, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch06, name), wrong) for _, wrong in PLANTED[name])
    for line in ("ignore_index", "target[:, :-1]", "argmax", "masked_fill", "unsqueeze", "0.324", "0.637", "sorted("):
        assert line not in messages


def test_words_are_compared_with_a_good_answer(capsys):
    """Fails if the good answer is shown before one is written, or is not shown after."""
    ch06.what_length_tells.compare(...)
    assert ch06.what_length_tells.good_answer not in capsys.readouterr().out
    ch06.what_length_tells.compare("One vector falls with length because the last state must hold it all " * 2)
    assert capsys.readouterr().out == f"A good answer contains: {ch06.what_length_tells.good_answer}\n"
    assert all(hint not in ch06.what_length_tells.good_answer for hint in ch06.what_length_tells.hints)
