"""Checks of chapter 13's exercises: weight tying, temperature, top-p, a cache, memory and a training run on paper.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are written with loops, in float64. Notebook: 13.
"""

import math
from types import SimpleNamespace

import torch
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from course_lib.exercises import (
    Written,
    Wrong,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    near,
)


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
        "sort descending; before = cumulative sum - own probability; keep where before < p; put zeros elsewhere, "
        "back in the old order; divide by the sum",
        "s, order = probs.sort(-1, descending=True); s[s.cumsum(-1) - s >= p] = 0; "
        "then torch.zeros_like(probs).scatter(-1, order, s) and normalise",
    )
)
def top_p(student):
    """Exercise 13.3: nucleus sampling's distribution (Holtzman et al. 2020, section 3.1)."""
    p, rows = (
        0.75,
        [
            [0.06, 0.25, 0.11, 0.02, 0.30, 0.17, 0.09],
            [0.03, 0.02, 0.80, 0.04, 0.01, 0.07, 0.03],  # here one token alone passes p
            [0.12, 0.125, 0.14, 0.15, 0.16, 0.175, 0.13],
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
        return
    _explain_top_p(got, probs, p)


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
        "a fixed share of the vocabulary is kept, which is top-k; p is a share of the probability": (
            _normalised(by_count)
        ),
        "this is the nucleus for 1 - p": _nucleus(probs, 1 - p),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)
    nan = got.isnan().any(1).nonzero()[:, 0].tolist()
    if nan and nan != [1]:
        raise Wrong(f"there is nan in {len(nan)} of the 3 rows (row {nan[0]} first): 0 / 0, or 0 times infinity?")
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
        "(a) Think of a calculation that returns to its starting point; then of 3 to the power 1 / 0.3. (b) Compare "
        "what pure sampling would have drawn. (c) 0.995 to the power of the number of steps. (d) For the last case: "
        "what loss does a true token get that was cut?",
        "(a) The same context gives the same choice, every time round; at 0.3 a second choice with a third of the "
        "probability is drawn once in about 40 steps. (b) The tenth that is cut is thin there, and wide elsewhere. "
        "(c) Below one in a hundred. (d) Few right answers: cold; many: warm, without the tail; measuring: no dial.",
    ),
    good_answer=(
        "(a) Greedy decoding is a calculation: once the context that decides comes again, so does all that follows it, "
        "for ever. (A turn of the loop need not become likelier; the printed numbers show it.) At 0.3 a "
        "ratio of 3 becomes 3^(1/0.3), about 39, so leaving is possible but rare. (b) Where the model is sure, one or "
        "two tokens hold more than 0.9 and would have been drawn anyway; where it is not, the tenth that is cut is "
        "spread over many unlikely tokens. (c) 0.995^1000, about 0.0067. (d) Code: greedy or a low temperature; names: "
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


def _by_steps(x, table, position=0, first=0, last=1, empty=False, scale=True, at=0):
    """What a cache gives step by step, (B, T, D), with mistakes to choose from."""
    B, T, D = x.shape
    keys, values, rows = torch.zeros(B, LONGEST, D).double(), torch.zeros(B, LONGEST, D).double(), []
    for t in range(T):
        q, k, v = _project(x[:, t] + table[(t + position) % LONGEST])
        keys[:, (t + at) % LONGEST], values[:, (t + at) % LONGEST] = k, v
        seen = slice(first, LONGEST if empty else t + last)
        scores = (keys[:, seen] @ q[:, :, None])[..., 0] / (math.sqrt(D) if scale else 1.0)
        rows.append((scores.softmax(-1)[..., None] * values[:, seen]).sum(1))
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
    if cache.keys[:, T:].any() or cache.values[:, T:].any():
        raise Wrong("the outputs are right, but rows of the cache beyond its length were written")
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
        "positions are one too small (and the first token takes the table's last row, silently)": {"position": -1},
        "positions are one too large: the first token stands at 0": {"position": 1},
        "unwritten rows of the cache are attended to: their key is 0, but softmax gives a score of 0 its share": {
            "empty": True
        },
        "the first key is left out: the slice starts at 1": {"first": 1},
        "the scores are not divided by sqrt(D)": {"scale": False},
        "keys and values are written one row too late, so the newest seen is a row of zeros": {"at": 1},
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


def _explain_parameters(got, sizes):
    """Say which part is missing or counted twice."""
    mistakes = {
        "the table is counted twice: embedding and output layer are one tensor": {"table": 2},
        "the table of tokens is missing": {"table": 0},
        "the table of positions is missing: L vectors of D numbers": {"positions": False},
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
    much = "many" if got > _parameters(*sizes) else "few"
    raise Wrong(
        f"V = {V}, L = {L}, D = {D}, N = {N}: {got:,.0f} parameters are too {much}. Count part by part: two tables, "
        "the layers (matrices, biases, norms), the last norm"
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

RUN = ("tokens", "operations", "days", "gigabytes")


@check(
    hints=(
        "Tokens from Hoffmann's rule, operations from 6ND, seconds from what eight processors do. Then the cache.",
        "operations = 6 N tokens; seconds = operations / (8 * 0.4 * 4e14); cache = 2 layers B S D * 2 bytes",
        "1.55e10 tokens, 7.2e19 operations; a day has 86,400 seconds; 2 * 36 * 32 * 1024 * 1280 numbers",
    )
)
def training_run(answer):
    """Exercise 13.7: tokens, operations, days, and the gigabytes of a cache."""
    tokens, operations, days, gigabytes = expect_numbers(answer, RUN)
    N = 774e6
    D = 20 * N
    _rounded_too_far("tokens:", tokens, D)
    if near(tokens / N, 1.0):
        raise Wrong("tokens: Hoffmann's rule is 20 tokens for each parameter")
    if not near(tokens / D, 1.0):
        raise Wrong(f"tokens: {tokens:.4g}; wanted 20 for each of 774 million parameters")
    _rounded_too_far("operations:", operations, 6 * N * D)
    for factor, message in {
        2: "operations: 2ND is the forward pass alone; the backward pass takes twice as many again",
        4: "operations: 4ND is the backward pass alone; the forward pass takes 2ND",
        6 / 20: "operations: that is 6 N^2; N times the number of tokens is wanted",
    }.items():
        if near(operations / (factor * N * D), 1.0):
            raise Wrong(message)
    if not near(operations / (6 * N * D), 1.0):
        raise Wrong(f"operations: {operations:.4g}; wanted 6 for each parameter and token")
    right = 6 * N * D / (8 * 0.4 * 4e14) / 86400
    _rounded_too_far("days:", days, right)
    for factor, message in {
        8: "days: that is for one processor; there are eight",
        0.4: "days: no program runs at the peak; this one reaches 40 % of it",
        0.4**2: "days: divide by the share that is reached; multiplying makes a slow program fast",
        24: "days: these are hours",
        86400: "days: these are seconds",
    }.items():
        if near(days / (factor * right), 1.0):
            raise Wrong(message)
    if not near(days / right, 1.0):
        raise Wrong(f"days: {days:.4g}; operations over (processors x share x peak), and 86,400 seconds a day")
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
