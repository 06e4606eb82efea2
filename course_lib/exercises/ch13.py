"""Checks of chapter 13's exercises: weight tying, temperature, top-p, a cache, numbers on paper, and a whole GPT.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are written with loops, in float64. Notebook: 13.
"""

import math
from numbers import Integral
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.exercises import (
    Written,
    Wrong,
    _StudentError,
    as_torch,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    near,
)
from course_lib.exercises.ready_made import called
from course_lib.generate import draw, generate, top_k_top_p
from course_lib.pretrained import load_shakespeare, weights_by_layer


def _rounded_too_far(name, got, wanted):
    """Say so where a number is right but for its rounding: not to three digits, but to within 3 %."""
    if not near(got, wanted) and math.isclose(got, wanted, rel_tol=0.03):
        raise Wrong(f"{name} {got:.4g} is right but for the rounding: give three digits")


def _draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


# --- exercise 13.1: the gradient of a tied table --------------------------------------------


def _tied(table, ids, targets):
    """The two parts of the gradient, token by token: as output layer, and as embedding."""
    output, embedding = torch.zeros_like(table), torch.zeros_like(table)
    for i, target in zip(ids.tolist(), targets.tolist(), strict=True):
        x = table[i]
        error = (table @ x).softmax(0)
        error[target] -= 1
        for v in range(len(table)):
            output[v] += error[v] * x / len(ids)
            embedding[i] += error[v] * table[v] / len(ids)
    return output, embedding


class _Autograd(TorchDispatchMode):
    """Notices whether torch differentiates: backwards, or forwards."""

    used = False

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True would load torch's compiler, which would take the 2 s

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.used |= torch._C._current_graph_task_id() != -1 or forward_ad._current_level >= 0
        return operation(*args, **(kwargs or {}))


@check(
    hints=(
        "Pretend that there are two tables, one that is looked up and one that makes logits. Then add their gradients.",
        "error = (softmax of the logits - one-hot of the targets) / T; as output layer: error^T x; "
        "as embedding: add row t of error @ table to row ids[t], for each t",
        "for the second part start with zeros and use index_add_(0, ids, ...): a token that occurs twice adds twice",
    )
)
def tied_gradient(student):
    """Exercise 13.1: the gradient of a table that is embedding and output layer."""
    table, ids, targets = _draw(5, 3), torch.tensor([2, 0, 2, 4]), torch.tensor([0, 2, 4, 1])
    got = expect_tensor(student(table, ids, targets), (5, 3), name="the gradient").double()
    output, embedding = _tied(table, ids, targets)
    if close(got, output + embedding):
        other = _draw(7, 2), torch.tensor([6, 6, 1]), torch.tensor([3, 5, 0])
        if not close(
            expect_tensor(student(*other), (7, 2), name="the gradient for V = 7").double(), sum(_tied(*other))
        ):
            raise Wrong("right for V = 5 and D = 3, wrong for V = 7 and D = 2: a size is written into it")
        with _Autograd() as autograd:
            student(_draw(5, 3), ids, targets)
        if autograd.used:
            raise Wrong("the numbers are right, but torch differentiates for you (autograd): write both parts out")
        return
    last = dict(zip(ids.tolist(), range(len(ids)), strict=True))  # the last place of each token
    once = torch.zeros_like(table)
    for i, t in last.items():
        once[i] = _tied(table, ids[t : t + 1], targets[t : t + 1])[1][i] / len(ids)
    errors = (table[ids] @ table.T).softmax(-1)
    mistakes = {
        "this is the part of the output layer alone; the table is also looked up, and there it gets a gradient too": (
            output
        ),
        "this is the part of the embedding alone; the table also makes the logits, and there it gets a gradient too": (
            embedding
        ),
        "token 2 is looked up twice, but only its last look-up counts: assigning to repeated rows does not add up": (
            output + once
        ),
        "the two parts are averaged; a parameter used twice gets the sum of both gradients": (output + embedding) / 2,
        "this is the gradient of the sum over the T tokens; the loss is their mean": (output + embedding) * len(ids),
        "the part of the output layer is not divided by T; the loss is the mean over the T tokens": (
            output * len(ids) + embedding
        ),
        "the part of the embedding is not divided by T; the loss is the mean over the T tokens": (
            output + embedding * len(ids)
        ),
        "the sum is divided by V, the size of the vocabulary; the loss is the mean over the T tokens": (
            (output + embedding) * len(ids) / len(table)
        ),
        "the sign is turned: the error is softmax minus one-hot": -output - embedding,
        "the one-hot of the targets is missing: the error at a logit is its probability minus 1 for the target": (
            errors.T @ table[ids] + torch.zeros_like(table).index_add(0, ids, errors @ table)
        )
        / len(ids),
        "the part of the embedding is added at the targets' rows; looked up were the rows of ids": (
            output + _moved(table, ids, targets)
        ),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    if not got.any():
        raise Wrong("the gradient is 0 everywhere; only a model that is sure and right has that")
    v = int((got - output - embedding).abs().amax(1).argmax())
    raise Wrong(
        f"row {v} of the gradient is wrong. Move table[{v}] a little: the loss must change by step times gradient"
    )


def _moved(table, ids, targets):
    """The embedding's part, put on the rows of the targets."""
    moved = torch.zeros_like(table)
    for t, target in enumerate(targets.tolist()):
        moved[target] += _tied(table, ids[t : t + 1], targets[t : t + 1])[1][ids[t]] / len(ids)
    return moved


# --- exercise 13.2: temperature on paper ----------------------------------------------------

TEMPERATURE = ("(a)", "(b)", "(c)", "(d)", "(e)")


@check(
    hints=(
        "Divide the logits by the temperature, then write the softmax out. For the limits divide by the largest term.",
        "(a) e^2 / (e^2 + 2e); (b) the same with the logits 4, 2, 2; (c), (d) which terms are left? (e) e^(1/tau) = 3",
        "(a) e / (e + 2), (b) e^2 / (e^2 + 2), (c) the two largest share all, (d) all are equal, (e) 1 / ln 3",
    )
)
def temperature_numbers(answer):
    """Exercise 13.2: five numbers about the temperature."""
    a, b, c, d, e = expect_numbers(answer, TEMPERATURE)
    for name, got, wanted in zip(
        TEMPERATURE,
        (a, b, c, d, e),
        (math.e / (math.e + 2), math.e**2 / (math.e**2 + 2), 1 / 2, 1 / 3, 1 / math.log(3)),
        strict=True,
    ):
        _rounded_too_far(name, got, wanted)
        if name != "(e)" and near(got, 100 * wanted):
            raise Wrong(f"{name} {got:.4g} is in percent; a probability lies between 0 and 1")
    if not near(a, math.e / (math.e + 2)):
        raise Wrong(f"(a) {a:.4g}: at temperature 1 it is the softmax of 2, 1, 1 itself; what is its first entry?")
    if near(b, a):
        raise Wrong(
            "(b) is as (a): probabilities divided by the temperature and normalised again are the old ones; "
            "divide the logits"
        )
    if near(b, math.sqrt(math.e) / (math.sqrt(math.e) + 2)):
        raise Wrong("(b) the logits were multiplied by the temperature; divide them: a low temperature sharpens")
    if not near(b, math.e**2 / (math.e**2 + 2)):
        raise Wrong(f"(b) {b:.4g}: with temperature 1/2 the logits are 4, 2, 2")
    if near(c, 1.0):
        raise Wrong("(c) two tokens have the largest logit; in the limit they share the probability")
    if not near(c, 0.5):
        raise Wrong(f"(c) {c:.4g}: as the temperature falls, only the largest logits keep any probability")
    if near(d, 0.0):
        raise Wrong("(d) the probabilities add up to 1 at every temperature; when all logits go to 0, what are they?")
    if not near(d, 1 / 3):
        raise Wrong(f"(d) {d:.4g}: at a high temperature the logits all go to 0, and none is preferred")
    if near(e, math.log(3)):
        raise Wrong("(e) that is 1 / temperature: e^(1/tau) = 3, so 1/tau = ln 3")
    if near(e, 1 / 3) or near(e, 3.0):
        raise Wrong("(e) the temperature changes the ratio in its exponent: e^((2 - 1)/tau) = 3")
    if not near(e, 1 / math.log(3)):
        raise Wrong(f"(e) {e:.4g}: the ratio of the first two probabilities is e^((2 - 1)/tau); it should be 3")


# --- exercise 13.3: top-p -------------------------------------------------------------------


def _nucleus(probs, p, add=1, renormalise=True):
    """Row by row: the most likely tokens, one by one, until their sum reaches p (and `add` - 1 more)."""
    out = torch.zeros_like(probs)
    for row, kept in zip(probs, out, strict=True):
        order = row.argsort(descending=True).tolist()
        count = next((n for n in range(1, len(order) + 1) if row[order[:n]].sum() >= p - 1e-12), len(order))
        for v in order[: max(0, count - 1 + add)]:
            kept[v] = row[v]
    return out / out.sum(-1, keepdim=True) if renormalise else out


def _normalised(kept):
    return kept / kept.sum(-1, keepdim=True)


# p = 0.5 is reached exactly: by one token, or by two of four. An answer that works with logits may be off by a
# rounding error in one of the rows, not in all: among equals, and where exp(0) is 1, softmax is exact.
EXACT = ([0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.25, 0.25, 0.25, 0.25])


def _one_too_many(student, row):
    kept = int((student(torch.tensor([row], dtype=torch.float64), 0.5) > 0).sum())
    return kept > sum(value > 0 for value in _nucleus(torch.tensor([row]), 0.5)[0].tolist())


@check(
    hints=(
        "Go through a row from the most likely token down. When do you stop, and does the last one still count?",
        "for each row: go down from the likeliest and add up; a token stays if those before it do not reach p yet; the "
        "others become 0, each in its own place; make the row sum to 1 again",
        "sort in descending order, and keep the order; what comes before a token is the cumulative sum without the "
        "token itself; `scatter` with that order puts the kept ones back",
    )
)
def top_p(student):
    """Exercise 13.3: nucleus sampling's distribution (Holtzman et al. 2020, section 3.1)."""
    p, rows = (
        0.75,
        [
            [0.06, 0.25, 0.11, 0.02, 0.30, 0.17, 0.09],
            [0.03, 0.02, 0.80, 0.04, 0.01, 0.07, 0.03],  # here one token alone passes p
            [0.132, 0.142, 0.144, 0.146, 0.148, 0.15, 0.138],
        ],
    )
    probs = torch.tensor(rows, dtype=torch.float64)
    got = expect_tensor(student(probs, p), (3, 7), name="the new distribution").double()
    if close(got, _nucleus(probs, p)):
        whole = expect_tensor(student(probs, 1.0), (3, 7), name="the distribution for p = 1").double()
        if not close(whole, probs):
            raise Wrong("right for p = 0.75; with p = 1 nothing should be cut")
        if all(_one_too_many(student, row) for row in EXACT):
            raise Wrong(
                "where the likeliest tokens reach p exactly, one token too many is kept: 0.5 reaches p = 0.5, so of "
                "0.5, 0.25, 0.25 only the first should stay"
            )
        _expect_one_of_two(student)
        if name := called(student, [((probs, p), {})], [top_k_top_p]):
            raise Wrong(f"the numbers are right, but the ready-made {name} makes the cut: write your own lines")
        return
    _explain_top_p(got, probs, p)


def _expect_one_of_two(student):
    """Of two equals of which one is enough only one may stay, whichever it is."""
    got = student(torch.tensor([[0.5, 0.25, 0.25]], dtype=torch.float64), 0.6)
    got = expect_tensor(got, (1, 3), name="the distribution for 0.5, 0.25, 0.25").double()[0]
    if (got > 0).all():
        raise Wrong(
            "among equals too many are kept: with p = 0.6, of 0.5, 0.25, 0.25 the first and one of the others reach p, "
            "but all three stay; a threshold cannot tell equals apart"
        )
    if not any(close(got, torch.tensor(right).double() / 3) for right in ([2, 1, 0], [2, 0, 1])):
        raise Wrong("with p = 0.6, of 0.5, 0.25, 0.25 the first and one of the others should stay, with 2/3 and 1/3")


def _explain_top_p(got, probs, p):
    """Say which usual mistake gives this distribution."""
    descending, order = probs.sort(-1, descending=True)
    kept = _nucleus(probs, p)
    short, first = _nucleus(probs, p, add=0, renormalise=False), torch.zeros_like(probs)
    first.scatter_(-1, order[:, :1], descending[:, :1])
    saved = _normalised(torch.where(short.sum(-1, keepdim=True) > 0, short, first))
    rising, up = probs.sort(-1)
    least = torch.zeros_like(probs).scatter(-1, up, rising * (rising.cumsum(-1) - rising < p))
    count = round(p * probs.shape[1])
    by_count = torch.zeros_like(probs).scatter(-1, order[:, :count], descending[:, :count])
    most = int((kept > 0).sum(-1).max())
    widest = torch.zeros_like(probs).scatter(-1, order[:, :most], descending[:, :most])
    mistakes = {
        "nothing is cut: this is the distribution that came in": probs,
        "the kept probabilities do not add up to 1: divide each row by its sum": (
            _nucleus(probs, p, renormalise=False)
        ),
        "the token that crosses p is left out (only a row's first is saved): the set must reach p, not stay below": (
            saved
        ),
        "one token too many is kept: stop as soon as the sum has reached p": _nucleus(probs, p, add=2),
        "the least likely tokens are kept: sort in descending order": _normalised(least),
        "the kept probabilities stand in sorted order: put each back at its own token": (
            _normalised(descending * (descending.cumsum(-1) - descending < p))
        ),
        "the same tokens are kept in every row: each row has its own set": _normalised(probs * (kept[:1] > 0)),
        f"every row keeps {most} tokens, as many as the row with the largest nucleus; each row has its own number": (
            _normalised(widest)
        ),
        "a fixed share of the vocabulary is kept, which is top-k; p is a share of the probability": (
            _normalised(by_count)
        ),
        "this is the nucleus for 1 - p": _nucleus(probs, 1 - p),
        "a softmax over the new probabilities gives each token that was cut a share again, since exp(0) is 1; "
        "divide each row by its sum instead": _nucleus(probs, p, renormalise=False).softmax(-1),
        "after the division by the sum comes a softmax: it gives each token that was cut a share again, since exp(0) "
        "is 1": kept.softmax(-1),
        "the right tokens are kept, but a softmax over their probabilities brings these nearer to one another; divide "
        "by the sum": _nucleus(probs, p, renormalise=False).masked_fill(kept == 0, -math.inf).softmax(-1),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    if close(
        got.nan_to_num(), _normalised(probs * (probs >= 1 - p)).nan_to_num()
    ):  # in row 2 none is left: 0, or 0 / 0
        raise Wrong(
            "each probability is compared with 1 - p by itself, and a row in which no token is so likely keeps none; "
            "what must reach p is the sum of the likeliest"
        )
    nan = got.isnan().any(1).nonzero()[:, 0].tolist()
    if nan and nan != [1]:
        raise Wrong(f"there is nan in {len(nan)} of the 3 rows (row {nan[0]} first): is nothing kept there, so "
                    "that 0 is divided by 0?")  # fmt: skip
    if close(got.sort(-1).values, kept.sort(-1).values):
        raise Wrong("the right probabilities stand at the wrong tokens: put each back at its own token")
    if nan or not got[1].any():
        raise Wrong(
            "in the row whose first token alone passes p nothing is left: the token that crosses p belongs to the set"
        )
    if (got < 0).any() or not close(got.sum(-1), torch.ones(3)):
        raise Wrong(f"the rows add up to {[round(total, 3) for total in got.sum(-1).tolist()]}; wanted 1 each")
    wrong = [(set(g.nonzero()[:, 0].tolist()), set(k.nonzero()[:, 0].tolist())) for g, k in zip(got, kept, strict=True)]
    for row, (mine, wanted) in enumerate(wrong):
        if len(mine) == len(wanted) and mine != wanted:
            raise Wrong(f"row {row}: as many tokens are left as should be, but not the likeliest: {sorted(mine)}")
        if mine != wanted:
            raise Wrong(f"row {row}: {len(mine)} tokens are left; the smallest set that reaches p has {len(wanted)}")
    raise Wrong("the right tokens are kept, but their probabilities changed their ratios")


# --- exercise 13.4: in words ----------------------------------------------------------------

how_to_draw = Written(
    hints=(
        "(a) Greedy decoding computes; it never draws. What happens when the last characters have stood there before? "
        "(b) How many tokens reach 0.9 where the model is sure? (c) Every step must go well. (d) How many right "
        "continuations are there in each case?",
        "(a) Think of a calculation that returns to its starting point; then of 3 and of 1.5 to the power 1 / 0.3, and "
        "of how many steps a loop has. (b) Compare "
        "what pure sampling would have drawn. (c) 0.995 to the power of the number of steps. (d) For the last case: "
        "what loss does a true token get that was cut?",
        "(a) The same context gives the same choice, every time round; at 0.3 a second choice with a third of the "
        "probability is drawn once in about 40 steps, one with two thirds once in about 5, and one is enough. "
        "(b) The tenth that is cut is thin there, and wide elsewhere. "
        "(c) Below one in a hundred. (d) Few right answers: cold; many: warm, without the tail; measuring: no dial.",
    ),
    good_answer=(
        "(a) Greedy decoding is a calculation: once the context that decides comes again, so does all that follows it, "
        "for ever. (A turn of the loop need not become likelier: see the loop in Going deeper.) At 0.3 a "
        "ratio of 3 becomes 3^(1/0.3), about 39, but one of 1.5 only about 4: a loop passes its steps again and again, "
        "and one other choice, at a step where two are nearly as likely, is enough to leave it. "
        "(b) Where the model is sure, one or two tokens hold more than 0.9 and would have been drawn anyway; where it "
        "is not, the tenth that is cut is spread over many unlikely tokens. (c) 0.995^1000, about 0.0067. "
        "(d) Code: greedy or a low temperature; names: "
        "warmer, with top-p; estimating the model: none, because a cut distribution gives some true tokens probability "
        "0, an infinite loss."
    ),
)


# --- exercise 13.5: find the bugs of a cache ------------------------------------------------

LONGEST = 6  # rows of the cache and of the table of positions


def _project(x):
    """Queries, keys and values of one head: fixed matrices."""
    D = x.shape[-1]
    return tuple(x @ _draw(D, D, seed=n) for n in (1, 2, 3))


def _by_steps(x, table, position=0, first=0, last=1, empty=False, scale=True, at=0, over=-1):
    """What a cache gives step by step, (B, T, D), with mistakes to choose from."""
    B, T, D = x.shape
    keys, values, rows = torch.zeros(B, LONGEST, D).double(), torch.zeros(B, LONGEST, D).double(), []
    for t in range(T):
        q, k, v = _project(x[:, t] + table[(t + position) % LONGEST])
        keys[:, (t + at) % LONGEST], values[:, (t + at) % LONGEST] = k, v
        seen = slice(first, LONGEST if empty else t + last)
        scores = (keys[:, seen] @ q[:, :, None])[..., 0] / (math.sqrt(D) if scale else 1.0)
        rows.append((scores.softmax(over)[..., None] * values[:, seen]).sum(1))
    return torch.stack(rows, 1)


@check(
    hints=(
        "Feed one token. At which position does it stand, and which keys should it see? Then feed a second.",
        "t = cache.length; position table[t]; write key and value at t; attend to t + 1 rows; length becomes t + 1",
        "keys = cache.keys[:, : t + 1]: the new token sees itself as well",
    )
)
def cached_step(student):
    """Exercise 13.5: token by token with a cache equals all at once."""
    B, T, D = 2, 4, 3
    x, table = _draw(B, T, D), _draw(LONGEST, D, seed=9)
    cache = SimpleNamespace(
        keys=torch.zeros(B, LONGEST, D).double(), values=torch.zeros(B, LONGEST, D).double(), length=0
    )
    rows, lengths = [], []
    for t in range(T):
        rows.append(expect_tensor(student(x[:, t], cache, _project, table), (B, D), name=f"the output of token {t}"))
        lengths.append(cache.length)
    got = torch.stack(rows, 1).double()
    if lengths != [1, 2, 3, 4]:
        raise Wrong(f"after each of 4 tokens cache.length is {lengths}; it must count them: 1, 2, 3, 4")
    if not close(got, _by_steps(x, table)):
        _explain_step(got, x, table)
    for name, row in (("keys", 1), ("values", 2)):
        kept = expect_tensor(getattr(cache, name), (B, LONGEST, D), name=f"cache.{name}, after {T} tokens,")
        if kept[:, T:].any():
            raise Wrong("the outputs are right, but rows of the cache beyond its length were written")
        if not close(kept[:, :T].double(), _project(x + table[:T])[row]):
            raise Wrong(f"the outputs are right, but the first {T} rows of cache.{name} do not hold the tokens' {name}")
    x = _draw(B, LONGEST, D, seed=5)
    cache = SimpleNamespace(keys=_draw(B, LONGEST, D, seed=6), values=_draw(B, LONGEST, D, seed=7), length=0)
    got = torch.stack([student(x[:, t], cache, _project, table) for t in range(LONGEST)], 1).double()
    if not close(got, _by_steps(x, table)):
        raise Wrong("right in a new cache; wrong in one that still holds old numbers, or that is filled to the end: "
                    "rows beyond its length must not be read, whatever they hold")  # fmt: skip


def _explain_step(got, x, table):
    """Say which usual mistake gives these outputs."""
    plain = torch.zeros_like(table)
    mistakes = {
        "the new token does not see itself: with t tokens before it, it attends to t + 1 keys": {"last": 0},
        "the new token does not see itself, and its position is one too small: both mistakes are still there": {
            "last": 0,
            "position": -1,
        },
        "an unfilled row is read: with t tokens before it, the new token attends to rows 0 to t; row t + 1 is "
        "still empty": {"last": 2},
        "positions are one too small (and the first token takes the table's last row, silently)": {"position": -1},
        "positions are one too large: the first token stands at 0": {"position": 1},
        "unwritten rows of the cache are attended to: their key is 0, but softmax gives a score of 0 its share": {
            "empty": True
        },
        "the first key is left out: the slice starts at 1": {"first": 1},
        "the scores are not divided by sqrt(D)": {"scale": False},
        "keys and values are written one row too late, so the newest seen is a row of zeros": {"at": 1},
        "the softmax runs over the texts of the batch; each text's weights, over its keys, must add up to 1": {
            "over": 0
        },
        "the position is not added": {"table": plain},
        "every token gets the position of the first": {"table": table[:1].expand(LONGEST, -1)},
    }  # fmt: skip
    for message, change in mistakes.items():
        wrong = _by_steps(x, **({"table": table} | change))
        same = torch.isclose(got, wrong, atol=1e-5).all(-1).all(0)  # (T,): a first row may be nan or empty
        if same[1:].all():
            raise Wrong(message)
    right = torch.isclose(got, _by_steps(x, table), atol=1e-5).all(-1).all(0).tolist()
    first = right.index(False)
    raise Wrong(f"token {first} is the first whose output differs from attention over all tokens at once")


# --- exercise 13.6: the memory of a model with Adam -----------------------------------------


def _parameters(V, L, D, N, table=1, positions=True, biases=True, norms=True, last=True):
    """Parameters of a GPT with tied table, part by part, with parts to leave out."""
    layer = 12 * D * D + (9 * D if biases else 0) + (4 * D if norms else 0)
    return table * V * D + (L * D if positions else 0) + N * layer + (2 * D if last else 0)


@check(
    hints=(
        "One layer first: four D x D matrices, two of D x 4D, a bias for each, and two norms with two vectors each.",
        "parameters = V D + L D + N (12 D^2 + 13 D) + 2 D; for each: weight, gradient, two moments",
        "4 numbers of 4 bytes make 16 bytes a parameter",
    )
)
def training_memory(student):
    """Exercise 13.6: parameters of a GPT, and the bytes that training with Adam holds for them."""
    for sizes in ((50257, 1024, 768, 12), (11, 7, 6, 3), (50257, 1024, 1280, 36)):
        answer = student(*sizes)
        if not isinstance(answer, (tuple, list)) or len(answer) != 2:
            raise Wrong(f"expected a tuple (parameters, bytes), got {type(answer).__name__}")
        parameters, held = (
            expect_number(value, name) for value, name in zip(answer, ("parameters", "bytes"), strict=True)
        )
        if parameters != _parameters(*sizes):
            _explain_parameters(parameters, sizes)
        if held != 16 * parameters:
            _explain_bytes(held / parameters)
        for value, name in zip(answer, ("parameters", "bytes"), strict=True):
            if not isinstance(value, Integral):
                raise Wrong(f"the numbers are right, but {name} is a {type(value).__name__}; wanted two int")
    if called(student, [((11, 7, 6, 3), {})], [nn.Linear, nn.Embedding, nn.LayerNorm]):
        raise Wrong("the numbers are right, but a model was built to count them: derive them from the sizes alone")


def _explain_parameters(got, sizes):
    """Say which part is missing or counted twice."""
    mistakes = {
        "the token table is counted twice: embedding and output layer are one tensor": {"table": 2},
        "the token table is missing": {"table": 0},
        "the position table is missing: L vectors of D numbers": {"positions": False},
        "the biases are missing: 4 D in the attention, 4 D + D in the feed-forward network of a layer": {
            "biases": False
        },
        "4 D numbers a layer are missing: the norms of the layers are missing (two, 2 D numbers each), or the biases "
        "of the attention's four matrices, which are as many": {"norms": False},
        "the last norm is missing: 2 D numbers after the last layer": {"last": False},
        "these are the matrices alone: biases and norms have parameters too": {
            "biases": False,
            "norms": False,
            "last": False,
        },
    }  # fmt: skip
    for message, change in mistakes.items():
        if got == _parameters(*sizes, **change):
            raise Wrong(message)
    V, L, D, N = sizes
    if got == _parameters(*sizes) - 3 * D * N:
        raise Wrong("3 D numbers a layer are missing: the biases of queries, keys and values, D each")
    much = "many" if got > _parameters(*sizes) else "few"
    raise Wrong(
        f"V = {V}, L = {L}, D = {D}, N = {N}: {got:,.0f} parameters are too {much}. Count part by part: the token "
        "table, the position table, the layers (matrices, biases, norms), the last norm"
    )


def _explain_bytes(each):
    """Say what so many bytes a parameter leave out."""
    mistakes = {
        4: "4 bytes a parameter hold the weights alone; training needs gradients and Adam's two moments too",
        8: "8 bytes a parameter: two of the four are missing (weight, gradient, first moment, second moment)",
        12: "12 bytes a parameter: one of the four is missing (weight, gradient, first moment, second moment)",
        128: "these are bits; a byte has 8 of them",
    }
    message = mistakes.get(
        round(each, 6), f"{each:.4g} bytes a parameter; in float32 a number takes 4 bytes. How many are kept?"
    )
    raise Wrong(message)


# --- exercise 13.7: a training run on paper -------------------------------------------------

RUN = ("tokens", "FLOPs", "days", "gigabytes")


@check(
    hints=(
        "Tokens from Hoffmann's rule, FLOPs from 6 P M, seconds from what eight GPUs do. Then the cache.",
        "FLOPs = 6 parameters * tokens; seconds = FLOPs / (8 * 0.4 * 4e14); cache = 2 layers B S D * 2 bytes",
        "1.55e10 tokens, 7.2e19 FLOPs; a day has 86,400 seconds; 2 * 36 * 32 * 1024 * 1280 numbers",
    )
)
def training_run(answer):
    """Exercise 13.7: tokens, FLOPs, days, and the gigabytes of a cache."""
    tokens, operations, days, gigabytes = expect_numbers(answer, RUN)
    N = 774e6
    D = 20 * N
    _rounded_too_far("tokens:", tokens, D)
    if near(tokens / N, 1.0):
        raise Wrong("tokens: Hoffmann's rule is 20 tokens for each parameter")
    if not near(tokens / D, 1.0):
        raise Wrong(f"tokens: {tokens:.4g}; wanted 20 for each of 774 million parameters")
    _rounded_too_far("FLOPs:", operations, 6 * N * D)
    for factor, message in {
        2: "FLOPs: 2 P M is the forward pass alone; the backward pass takes twice as many again",
        4: "FLOPs: 4 P M is the backward pass alone; the forward pass takes 2 P M",
        6 / 20: "FLOPs: that is 6 P^2; P times the number of tokens is wanted",
    }.items():
        if near(operations / (factor * N * D), 1.0):
            raise Wrong(message)
    if not near(operations / (6 * N * D), 1.0):
        raise Wrong(f"FLOPs: {operations:.4g}; wanted 6 for each parameter and token")
    right = 6 * N * D / (8 * 0.4 * 4e14) / 86400
    _rounded_too_far("days:", days, right)
    for factor, message in {
        8: "days: that is for one GPU; there are eight",
        0.4: "days: no program runs at the peak; this one reaches 40 % of it",
        0.4**2: "days: divide by the share that is reached; multiplying makes a slow program fast",
        24: "days: these are hours",
        86400: "days: these are seconds",
    }.items():
        if near(days / (factor * right), 1.0):
            raise Wrong(message)
    if not near(days / right, 1.0):
        raise Wrong(f"days: {days:.4g}; FLOPs over (GPUs x share x peak), and 86,400 seconds a day")
    cache = 2 * 36 * 32 * 1024 * 1280 * 2 / 1e9
    _rounded_too_far("gigabytes:", gigabytes, cache)
    for factor, message in {
        0.5: "gigabytes: half of it; keys and values are both kept, with 2 bytes a number",
        2: "gigabytes: twice too many; in bfloat16 a number has 2 bytes",
        1 / 36: "gigabytes: every one of the 36 layers has its own keys and values",
        20: "gigabytes: times the heads; all heads together make the width D",
        1 / 20: "gigabytes: that is one head's share; all 20 heads together make the width D",
        1 / 32: "gigabytes: that is one text; 32 are written at once",
        1e9 / 2**30: "gigabytes: these are GiB, of 2^30 bytes each; wanted are gigabytes of 10^9 bytes",
    }.items():
        if near(gigabytes / (factor * cache), 1.0):
            raise Wrong(message)
    if not near(gigabytes / cache, 1.0):
        raise Wrong(f"gigabytes: {gigabytes:.4g}; 2 (keys, values) x layers x texts x tokens x width x bytes, over 1e9")


# --- exercise 13.8: a whole GPT that writes -------------------------------------------------

_TABLES = {"table": ("V", "D"), "positions": ("L", "D"), "gain": ("D",), "offset": ("D",)}
_BLOCK = {
    "gain1": ("D",), "offset1": ("D",), "in_proj_weight": ("3D", "D"), "in_proj_bias": ("3D",),
    "out_weight": ("D", "D"), "out_bias": ("D",), "gain2": ("D",), "offset2": ("D",),
    "weight1": ("F", "D"), "bias1": ("F",), "weight2": ("D", "F"), "bias2": ("D",),
}  # fmt: skip


def _gpt_weights(V, L, D, F_, N, seed):
    """Random weights of a GPT, in the form in which the exercise hands them over."""
    generator = torch.Generator().manual_seed(seed)
    sizes = {"V": V, "L": L, "D": D, "F": F_, "3D": 3 * D}

    def tensors(shapes):
        return {
            name: torch.randn([sizes[axis] for axis in axes], generator=generator, dtype=torch.float64) * 0.6
            + name.startswith("gain")
            for name, axes in shapes.items()
        }

    return tensors(_TABLES) | {"blocks": [tensors(_BLOCK) for _ in range(N)]}


def _heads(x, p, H, rule):
    """Queries, keys and values (B, H, T, K), or what a mistake takes for them."""
    rows = F.linear(x, p["in_proj_weight"], p["in_proj_bias"])
    if rule == "by head":
        return rows.unflatten(2, (H, -1)).transpose(1, 2).chunk(3, -1)
    q, k, v = (part.unflatten(2, (H, -1)).transpose(1, 2) for part in rows.chunk(3, -1))
    return (k, q, v) if rule == "k, q, v" else (q, k, v)


def _attend(x, p, H, kept, rule):
    """Causal attention of the newest tokens to all in `kept` (keys and values, or None): outputs, and what is kept."""
    q, k, v = _heads(x, p, H, rule)
    T, past = x.shape[1], 0
    if kept is not None and rule != "alone":
        past = kept[0].shape[2]
        k, v = torch.cat([kept[0], k], 2), torch.cat([kept[1], v], 2)
    scores = q @ k.mT / {"no scale": 1, "wide scale": x.shape[2] ** 0.5}.get(rule, q.shape[-1] ** 0.5)
    may = torch.ones(T, past + T, dtype=torch.bool).tril(0 if rule == "top left" else past)
    if rule in ("ahead", "ahead in parts") or (rule == "ahead later" and past):
        may = torch.ones_like(may)
    if rule == "next" or (rule == "next later" and past):
        may = torch.ones_like(may).tril(past + 1)
    if rule == "not itself" and past:
        may = may.tril(past - 1)
    if rule == "zeros":
        weights = scores.softmax(-1) * may
    else:
        scores = scores.masked_fill(~may, 0.0 if rule == "score 0" else -math.inf)
        weights = scores.softmax(-2 if rule == "columns" else -1)
    found = weights @ v
    found = found.flatten(2).view_as(x) if rule == "merged" else found.transpose(1, 2).flatten(2)
    matrix = p["out_weight"].T if rule == "transposed" else p["out_weight"]
    return F.linear(found, matrix, p["out_bias"]), (k, v)


def _norm(x, weights, i=""):
    return F.layer_norm(x, x.shape[-1:], weights[f"gain{i}"], weights[f"offset{i}"])


def _think(x, p, rule):
    hidden = F.linear(x, p["weight1"], p["bias1"])
    exact = "none" if rule == "exact" else "tanh"
    hidden = hidden.relu() if rule == "relu" else F.gelu(hidden, approximate=exact)
    return F.linear(hidden, p["weight2"], p["bias2"])


def _join(x, p, first, second, attend, rule):
    """One block around the stream x, its norms where they belong or where a mistake puts them."""
    if rule == "post":
        x = _norm(x + attend(x), p, first)
        return _norm(x + _think(x, p, rule), p, second)
    for i, part in ((first, attend), (second, lambda y: _think(y, p, rule))):
        y = _norm(x, p, i)
        x = part(y) + (0 if rule == "no sum" else y if rule == "sum with norm" else x)
    return x


def _own_logits(weights, H, ids, rule="", pieces=None):
    """The logits of a text read in pieces of these lengths (None: at once), or those of a mistaken GPT."""
    blocks, past, rows = weights["blocks"], 0, []
    blocks = {"one block": blocks[:1], "same block": blocks[:1] * len(blocks), "backwards": blocks[::-1]}.get(
        rule, blocks
    )
    kept = [None] * len(blocks)
    for piece in ids.split(pieces or ids.shape[1], 1):
        T, D = piece.shape[1], weights["table"].shape[1]
        at = {"from 0": 0, "one on": past + 1, "one back": max(past - 1, 0)}.get(rule, past)
        x = weights["table"][piece] * (D**0.5 if rule == "root" else 1)
        x = x + (0 if rule == "no place" else weights["positions"][at : at + T])
        for i, p in enumerate(blocks):
            first, second = (2, 1) if rule == "exchanged" else (1, 2)

            def attend(y, i=i, p=p):
                j = -1 if rule == "one cache" else i
                found, new = _attend(y, p, H, kept[j], rule)
                kept[j] = new
                return found

            x = _join(x, p, first, second, attend, rule)
        x = x if rule == "no last" else _norm(x, weights)
        rows.append(x @ weights["table"].T)
        past += T
    return torch.cat(rows, 1)


_AT_ONCE = {
    "ahead": "a position sees the tokens after it: the causal mask is missing",
    "next": "each position sees one token after it, the very one it should predict: the mask is one column too wide, "
    "position t may see only 0 to t",
    "zeros": "the weights of later tokens are set to 0 after the softmax, and the rest no longer add up to 1: mask the "
    "scores, with minus infinity, before it",
    "score 0": "the scores of later tokens are set to 0, and exp(0) is 1: mask with minus infinity",
    "columns": "the softmax runs over the queries; each query's weights, over the keys, must add up to 1",
    "no place": "the positions are not added: without them the order of the tokens is lost",
    "one on": "the positions begin at 1; the first token stands at position 0",
    "root": "the rows of the table are multiplied by sqrt(D): that was the Transformer of 2017; a GPT takes them as "
    "they are",
    "no scale": "the scores of attention are not divided by sqrt(K)",
    "wide scale": "the scores of attention are divided by sqrt(D); a head's dot products have K = D / H terms: sqrt(K)",
    "k, q, v": "queries and keys are exchanged: the first D rows of in_proj_weight make the queries, then keys, values",
    "by head": "the rows of in_proj_weight are cut into heads first: they are all queries, then all keys, then all "
    "values; cut each of the three into heads",
    "merged": "the heads are merged in the wrong order: from (B, H, T, K) back to (B, T, H, K), then to (B, T, D)",
    "transposed": "out_weight is used transposed (it is square, so nothing fails): it is stored as (out, in), as "
    "F.linear wants it",
    "post": "the norms stand after the sums (Post-LN); a GPT normalises what goes into a sublayer, and adds to the "
    "stream as it is",
    "sum with norm": "the sublayer's output is added to the normalised vectors; it is added to the stream itself",
    "no sum": "the sublayers' outputs replace the stream; they are added to it",
    "exchanged": "the two norms of a block have changed places: 1 before attention, 2 before the feed-forward network",
    "no last": "the last norm, gain and offset, is missing: it stands between the blocks and the table",
    "relu": "the activation is ReLU; the weights were trained with GELU in its tanh form",
    "exact": "the GELU is the exact one; the weights were trained with the tanh form (a small difference)",
    "one block": "only the first block is used; go through all of them",
    "same block": "the first block is used again and again: each has weights of its own",
    "backwards": "the blocks are used in the wrong order: the first of the list reads the embeddings",
}
_IN_PIECES = {
    "from 0": "with a cache, every piece of the text begins at position 0: add as many as the cache knows already",
    "one on": "with a cache, positions are one too large",
    "one back": "with a cache, positions are one too small",
    "alone": "with a cache, new tokens see only the tokens of their own call: join their keys and values to the kept "
    "ones",
    "top left": "with a cache, row t of the mask allows columns 0 to t; but token t of a call stands after all that "
    "the cache knows, and may see these too",
    "ahead later": "with a cache, a call with several tokens lets them see each other's future: they need the causal "
    "mask, too",
    "ahead in parts": "with a cache, every call with several tokens lets them see each other's future, the prompt too: "
    "there the causal mask is missing",
    "next later": "with a cache, a token of a call with several sees the one after it: the mask is one column too wide",
    "not itself": "with a cache, a new token does not see itself: its own key and value belong to those it attends to",
    "one cache": "all blocks share one cache; each block has keys and values of its own",
}


def _handed(method):
    """A student's method whose exceptions are told from the check's own; it may change what it is given: its cache."""

    def call(*arguments):
        try:
            return method(*arguments)
        except (TimeoutError, KeyboardInterrupt, Wrong):
            raise
        except BaseException as error:  # also SystemExit: an answer must not end the notebook
            raise _StudentError from error

    return call


@check(
    hints=(
        "One method after the other; the check looks at logits without a cache, then with one, at probabilities, and "
        "at write. Begin with section 3's classes, and put tensors in the place of their layers.",
        "logits: past = how many tokens the cache knows; x = rows of the table + rows past to past + T of positions; "
        "each block: x = x + attention(norm 1 of x), x = x + feed-forward(norm 2 of x); last norm; times the table, "
        "transposed. attention: join the kept keys and values with the new ones, keep both, mask, softmax. write: "
        "read the prompt with an empty cache, then loop: last position's logits, probabilities, choose, read that one.",
        "start: a list with an empty dict for each block. The mask for T new tokens after `past` old ones is "
        "torch.ones(T, past + T, dtype=torch.bool).tril(past). probabilities: divide the logits by the temperature, "
        "softmax, then your top_p of 13.3. write: unread is first the whole prompt (1, T), then (1, 1).",
    )
)
def own_gpt(student):
    """Exercise 13.8: logits, cache, distribution and text of a GPT on plain tensors; then the trained weights."""
    weights, H = _gpt_weights(V=11, L=40, D=6, F_=10, N=2, seed=3), 2
    ids = torch.tensor([[4, 9, 0, 4, 7, 10, 2], [1, 1, 8, 3, 5, 6, 0]])
    with torch.no_grad():
        model = student(weights, H)
        for method in ("start", "logits", "probabilities", "write"):
            if not callable(getattr(model, method, None)):
                raise Wrong(f"what OwnGPT(weights, num_heads) gives has no method {method}")
        _one_after_the_other(
            {
                "logits without a cache": lambda: _expect_at_once(student, weights, H, ids),
                "start, and logits with a cache": lambda: _expect_in_pieces(student, weights, H, ids),
                "probabilities": lambda: _expect_distribution(student(weights, H)),
                "write": lambda: _expect_text(student, weights, H),
            }
        )
        _expect_shakespeare(student)


def _one_after_the_other(parts):
    """Examine the parts in turn; where a later one is not written yet, say up to where the answer is right."""
    done = ""
    for part, examine in parts.items():
        try:
            examine()
        except _StudentError as error:
            if done and isinstance(error.__cause__, NotImplementedError):
                raise Wrong(f"right so far: {done}; next: {part}") from None
            raise
        done = part


def _expect_logits(model, shape, *arguments):
    """What a model's logits give for these ids, and perhaps a cache."""
    return expect_tensor(as_torch(_handed(model.logits)(*arguments)), shape, name="logits: the result")


def _expect_at_once(student, weights, H, ids):
    """The logits without a cache, and again with other sizes."""
    model = student(weights, H)
    right = _own_logits(weights, H, ids)
    got = _expect_logits(model, right.shape, ids)
    if got.isnan().any():
        raise Wrong("logits: the result holds nan: a row of scores is minus infinity throughout")
    if not close(got, _expect_logits(student(weights, H), right.shape, ids)):
        raise Wrong("logits: chance changes the numbers: is dropout at work? It belongs to training alone")
    if not close(got, _expect_logits(model, right.shape, ids)):
        raise Wrong("logits: a second call with the same ids gives other numbers: your model remembers the first. "
                    "Without a cache, ids begin a text")  # fmt: skip
    if not close(got, right):
        for rule, message in _AT_ONCE.items():
            if close(got, _own_logits(weights, H, ids, rule)):
                raise Wrong(f"logits: {message}")
        raise Wrong("logits: shapes are right, numbers are not. Is eps 1e-5 in all norms, does position t see only 0 "
                    "to t, and does each head take K neighbouring numbers, cut as (H, K)? Give it no block at all (an "
                    "empty list), then one, and compare the vectors after each step with those of section 3's "
                    "classes")  # fmt: skip
    other, more = _gpt_weights(V=9, L=8, D=12, F_=7, N=3, seed=4), ids[:1].clamp(max=8)
    if not close(_expect_logits(student(other, 3), (1, 7, 9), more), _own_logits(other, 3, more)):
        raise Wrong("logits: right for 2 heads and 2 blocks, wrong for 3 and 3: is one of the numbers written in your "
                    "code?")  # fmt: skip


def _expect_in_pieces(student, weights, H, ids):
    """The same logits where the text comes one by one, as a prompt and then one by one, and in pieces of several."""
    right, model = _own_logits(weights, H, ids), student(weights, H)
    if _handed(model.start)() is None:
        raise Wrong("start: it gives None, which means no cache; give something empty that logits can fill")
    for pieces in ([1] * 7, [4, 1, 1, 1], [2, 3, 2]):
        cache = _handed(model.start)()
        got = torch.cat([_expect_logits(model, (*piece.shape, 11), piece, cache) for piece in ids.split(pieces, 1)], 1)
        if close(got, right):
            continue
        for rule, message in _IN_PIECES.items():
            if close(got, _own_logits(weights, H, ids, rule, pieces)):
                raise Wrong(f"logits: {message}")
        first = torch.isclose(got.double(), right, atol=1e-5).all(-1).all(0).tolist().index(False)
        if first == 0 and pieces != [1] * 7:
            raise Wrong("start: right for the first text with a cache, wrong for the second from its first token on: "
                        "does start give a new, empty cache at every call?")  # fmt: skip
        raise Wrong(f"logits: right without a cache; with one, and the text in pieces of {pieces}, token {first} is "
                    "the first whose logits differ from those of the whole text at once")  # fmt: skip


def _tilted(logits, temperature, p, rule=""):
    """The distribution to draw from, or a mistaken one."""
    z = {"times": logits * temperature, "warm": logits}.get(rule, logits / temperature)
    if rule == "after":
        return _nucleus((logits.softmax(-1) / temperature).softmax(-1), p)
    if rule == "cut first":
        kept = _nucleus(logits.softmax(-1), p) > 0
        return (logits / temperature).masked_fill(~kept, -math.inf).softmax(-1)
    if rule == "uncut":
        return z.softmax(-1)
    return _nucleus(z.softmax(-1), p, renormalise=rule != "sums")


_DISTRIBUTION = {
    "uncut": "nothing is cut: p is not used",
    "warm": "the temperature is not used",
    "times": "the logits are multiplied by the temperature; divide them: a low temperature sharpens",
    "after": "the temperature divides probabilities, which go through a second softmax: divide the logits",
    "cut first": "the cut comes before the temperature: tilt first, then keep the fewest tokens that reach p",
    "sums": "the kept probabilities do not add up to 1: divide each row by its sum",
}


def _expect_distribution(model):
    """Temperature, then the nucleus, in each row on its own."""
    logits = torch.tensor([[2.0, 0.3, -1.0, 1.2, 0.1], [0.0, 0.4, 3.0, -0.3, 1.1], [0.5, 0.1, 0.7, 0.2, 0.65]]).double()
    for temperature, p in ((0.6, 0.7), (1.5, 0.85)):
        right = _tilted(logits, temperature, p)
        got = as_torch(_handed(model.probabilities)(logits.clone(), temperature, p))
        got = expect_tensor(got, (3, 5), name="probabilities: the result").double()
        if close(got, right):
            continue
        for rule, message in _DISTRIBUTION.items():
            if close(got, _tilted(logits, temperature, p, rule)):
                raise Wrong(f"probabilities: {message}")
        raise Wrong("probabilities: the distribution is wrong. Compare with section 6: divide by the temperature, "
                    "softmax, and then what exercise 13.3 asks for")  # fmt: skip


class _Work(TorchDispatchMode):
    """Adds up how many numbers torch computes: the work of a call, whatever its style."""

    numbers = 0

    @classmethod
    def _should_skip_dynamo(cls):
        return False  # True would load torch's compiler, which would take the 2 s

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        result = operation(*args, **(kwargs or {}))
        self.numbers += result.numel() if isinstance(result, torch.Tensor) else 0
        return result


class _Chooser:
    """Takes the token in which a share of the probability falls, and keeps what it was asked."""

    def __init__(self, shares):
        self.shares, self.asked = iter(shares), []

    def __call__(self, probs):
        probs = expect_tensor(as_torch(probs), name="write: what is given to choose")
        if probs.ndim != 2 or len(probs) != 1:
            raise Wrong(f"write: choose gets a tensor of shape {tuple(probs.shape)}; wanted (1, V)")
        self.asked.append(probs.double())
        return int((probs.double().cumsum(-1)[0] < next(self.shares, 0.5)).sum().clamp(max=probs.shape[1] - 1))


def _written(weights, H, prompt, shares, temperature, p, rule=""):
    """The new ids, each from the whole text at once, and the distributions; or those of a mistaken loop."""
    ids, choose = list(prompt), _Chooser(shares)
    for t in range(len(shares)):
        told = [*ids, ids[-1]] if rule == "twice" else prompt if rule == "prompt" else ids
        first = rule == "first" or (rule == "first of prompt" and t == 0)
        logits = _own_logits(weights, H, torch.tensor([told]))[:, 0 if first else -1]
        ids.append(choose(logits if rule == "logits" else _tilted(logits, temperature, p, rule)))
    return ids[len(prompt) :], choose.asked


def _expect_text(student, weights, H):
    """Twice the same text from one model, from distributions that are right, with little work."""
    prompt = torch.randint(11, (20,), generator=torch.Generator().manual_seed(5)).tolist()
    shares = torch.rand(16, generator=torch.Generator().manual_seed(6)).tolist()
    model = student(weights, H)
    for temperature, p in ((0.8, 0.9), (1.3, 0.75)):
        right, wanted = _written(weights, H, prompt, shares, temperature, p)
        choose = _Chooser(shares)
        with _Work() as work:
            got = _handed(model.write)(list(prompt), len(shares), temperature, p, choose)
        got = _as_ids(got)
        if got == right and all(map(close, choose.asked, wanted)):
            continue
        _explain_text(got, choose.asked, weights, H, prompt, shares, temperature, p)
        if temperature != 0.8:
            raise Wrong("write: the first text is right, the second of the same model is not: does it begin with the "
                        "cache of the first? Or is a temperature or a p written in your code?")  # fmt: skip
        n = next((i for i, (a, b) in enumerate(zip(choose.asked, wanted, strict=False)) if not close(a, b)), 0)
        raise Wrong(f"write: logits and probabilities are right, but for new token {n} (counted from 0) choose gets "
                    "another distribution: are temperature and p those that were given, and has each token been "
                    "read once, in its place, before it?")  # fmt: skip
    with _Work() as whole:
        _handed(model.logits)(torch.tensor([prompt]))
    if work.numbers > 0.6 * len(shares) * whole.numbers:
        raise Wrong("write: the text is right, but for every new token all tokens are read again: give logits the "
                    "cache, and only what it has not read yet")  # fmt: skip


def _as_ids(got):
    """New ids as a list of int."""
    got = as_torch(got)
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    if not isinstance(got, (list, tuple)):
        raise Wrong(f"write: wanted a list of ids, got a {type(got).__name__}")
    try:
        return [int(token) for token in got]
    except (TypeError, ValueError):
        raise Wrong("write: wanted a list of ids, one number each") from None


def _explain_text(got, asked, weights, H, prompt, shares, temperature, p):
    """Say which usual mistake gives this text."""
    right, wanted = _written(weights, H, prompt, shares, temperature, p)
    if got == prompt + right:
        raise Wrong("write: the prompt stands in front of your ids; return only what the model has added")
    if len(got) == len(right) + 1 and got[:-1] == right:
        raise Wrong("write: there is one token more than max_new_tokens")
    if got == right[:-1]:
        raise Wrong("write: the last token is missing: max_new_tokens counts the new tokens alone")
    if got == [prompt[-1], *right[:-1]]:
        raise Wrong("write: the prompt's last token stands in front of your ids, and the last new one is missing")
    for rule, message in {
        "logits": "choose gets logits; it wants what your probabilities gives",
        "first": "the logits of the first position are taken; the newest token stands at the last",
        "first of prompt": "the logits of the prompt's first position are taken; its newest token stands at the last",
        "prompt": "the prompt is read again and again; each new token must be read, too",
        "twice": "the last token is read twice, once more than it stands in the text",
        "warm": "the temperature that was given is not used",
        "uncut": "the p that was given is not used",
    }.items():
        _, wrong = _written(weights, H, prompt, shares, temperature, p, rule)
        if len(asked) >= 2 and all(map(close, asked[:2], wrong[:2])) and not all(map(close, asked[:2], wanted[:2])):
            raise Wrong(f"write: {message}")


def _expect_shakespeare(student):
    """The weights that come with the course, in the student's model: the library's logits, and its text."""
    model, characters = load_shakespeare()
    weights, H = weights_by_layer(model), model.config.num_heads
    prompt = [characters.index(character) for character in "GREMIO:\n"]
    mine, ids = student(weights, H), torch.tensor([prompt])
    if not close(_expect_logits(mine, (1, len(prompt), len(characters)), ids), model(ids), 1e-3):
        raise Wrong("all parts are right on the small model, but with the trained weights the logits are not those of "
                    f"the library: does your code work in float32, and with {H} heads?")  # fmt: skip
    (right,) = generate(model, [prompt], 30, torch.Generator().manual_seed(1), temperature=0.8, top_p=0.9)
    draws = torch.Generator().manual_seed(1)
    new = _as_ids(_handed(mine.write)(prompt, 30, 0.8, 0.9, lambda probs: draw(probs.double(), draws).item()))
    if new != right:
        raise Wrong("all parts are right on the small model, but with the trained weights the text is "
                    f"{''.join(characters[i] for i in new)!r}")  # fmt: skip
