"""Checks of chapter 06's exercises: the shifted loss, greedy decoding, attention, beam search, a whole translator.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Models are stand-ins made of
random tables, so that every right answer can be computed a second way. Notebook: 06.
"""

import itertools
import math

import torch
import torch.nn.functional as F

from course_lib.attention import AdditiveAttention
from course_lib.exercises import (
    Written,
    Wrong,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    guarded,
    near,
)  # fmt: skip
from course_lib.exercises.ready_made import called

# --- exercise 6.1: the loss of a translator -------------------------------------------------

_BOTH_BUGS = (
    "both bugs are still there: at step t the decoder reads the very token it is to predict, and the padding is counted"
)
_CAN_COPY = (
    "at step t the decoder reads the token that it is to predict at step t: it can copy. Its inputs must lag one step "
    "behind"
)


class _Translator:
    """Stands in for a model: logits from a table of (source, previous token), what it was given is kept."""

    def __init__(self, V, seed):
        generator = torch.Generator().manual_seed(seed)
        self.table = torch.randn(V, V, generator=generator, dtype=torch.float64).requires_grad_()
        self.given = []

    def __call__(self, source, mask, inputs):
        self.given.append((source, mask, inputs))
        if not isinstance(inputs, torch.Tensor) or inputs.ndim != 2:
            raise ValueError(f"the decoder's inputs must be a tensor (B, T), got {type(inputs).__name__}")
        return self.logits(source, inputs)

    def logits(self, source, inputs):
        return self.table[inputs] + self.table[source].mean(1)[:, None]  # (B, T, V)


def _nats(model, source, inputs, wanted):
    """Nats at every place of `wanted`: (B, T)."""
    logits = model.logits(source, inputs).detach()
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(wanted.shape)


def _translation_case(pad):
    """A model, three source rows with their mask, three target rows <sos> .. <eos> <pad>; <sos> is 2, <eos> is 3."""
    target = [[2, 5, 6, 4, 7, 3], [2, 6, 3, pad, pad, pad], [2, 4, 4, 3, pad, pad]]
    source = torch.tensor([[4, 6, 5, 7], [6, 7, pad, pad], [5, 4, 4, pad]])
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    return _Translator(8, seed=6), source, mask, torch.tensor(target)


def _loss(student, pad):
    """The student's loss as a float, beside what the right one and the usual wrong ones would be."""
    model, source, mask, target = _translation_case(pad)
    got = student(model, source, mask, target, pad)
    if not model.given:
        raise Wrong("the model was never called: call model(source, mask, inputs) to get the logits")
    given = model.given[0]
    if not isinstance(given[1], torch.Tensor) or not torch.equal(given[1], mask):
        raise Wrong("the model did not get the source's mask as its second argument, so it reads padding")
    inputs, wanted = target[:, :-1], target[:, 1:]
    nats, real = _nats(model, source, inputs, wanted), wanted != pad
    values = {
        "right": nats[real].mean(),
        "unshifted": _nats(model, source, target, target)[target != pad].mean(),
        "unshifted, padded": _nats(model, source, target, target).mean(),
        "padded": nats.mean(),
        "backwards": _nats(model, source, wanted, inputs)[inputs != pad].mean(),
        "sum": nats[real].sum(),
        "per sentence": nats[real].sum() / len(target),
        "mean of means": ((nats * real).sum(1) / real.sum(1)).mean(),
        "mask of the inputs": nats[inputs != pad].mean(),
        "without eos": nats[real & (wanted != 3)].mean(),
        "divided by all": nats[real].sum() / real.numel(),
        "counts <sos>": nats[real].sum() / (target != pad).sum(),
        "reshaped": _reshaped(model, source, inputs, wanted, real),
    }
    number = got.detach() if isinstance(got, torch.Tensor) else got
    return got, expect_number(number, "the loss"), values, model.table


def _reshaped(model, source, inputs, wanted, real):
    """The loss of logits (B, T, V) that were reshaped to (B, V, T) where the axes should have been exchanged."""
    logits = model.logits(source, inputs).detach()
    B, T, V = logits.shape
    return F.cross_entropy(logits.reshape(B, V, T), wanted, reduction="none")[real].mean()


@check(
    hints=(
        "Print the two tensors side by side: what the decoder reads at step t, and what it is scored on at step t.",
        "inputs = target without its last column, wanted = target without its first. logits = model(source, mask, "
        "inputs). Cross-entropy at every place of wanted, averaged over the places that do not hold the padding.",
        "F.cross_entropy can leave out one id itself: look up its argument ignore_index, and flatten (B, T, V) to "
        "(B T, V) first.",
    )
)
def shifted_loss(student):
    """Exercise 6.1: the loss that is not shifted and counts padding, repaired."""
    result, got, values, table = _loss(student, pad=1)
    if not close(got, values["right"]):
        for name, message in (
            ("unshifted, padded", _BOTH_BUGS),
            ("unshifted", _CAN_COPY),
            ("padded", "the shift is right, but predictions of padding are still counted, 5 of 15 places here; the "
             "padding's id is the argument pad"),
            ("backwards", "the shift goes the wrong way: the decoder reads token t + 1 and has to say token t"),
            ("sum", "this is the sum over the tokens; it grows with the batch. The mean over real tokens is wanted"),
            ("per sentence", "you divided by the number of sentences; divide by the number of real target tokens"),
            ("mean of means", "you averaged within each sentence first: a token of a short sentence then counts more"),
            ("mask of the inputs", "you left out the places whose input is padding; what counts is whether the wanted "
             "token is real (after <eos> the input is real, the wanted token is not)"),
            ("without eos", "the <eos> is not scored: the model would never learn to stop"),
            ("divided by all", "padding adds nothing to your sum but is still in the number that you divide by"),
            ("counts <sos>", "the sum is right, but you divide by a number that also counts the <sos> of each row, "
             "which nobody has to predict: count the real tokens among those that are wanted"),
            ("reshaped", "the logits' axes are mixed up: reshape does not exchange the axes T and V. Flatten (B, T, V) "
             "to (B T, V), or transpose"),
        ):  # fmt: skip
            if close(got, values[name]):
                raise Wrong(message)
        raise Wrong(f"the mean over the 10 real target tokens is not {got:.4f}; log-softmax first, then the wanted "
                    "token's entry, with its sign turned")  # fmt: skip
    _, got, values, _ = _loss(student, pad=0)
    if not close(got, values["right"]):
        raise Wrong("called with pad = 0 the loss is wrong: use the id that was passed, not 1")
    if not isinstance(result, torch.Tensor):
        raise Wrong("the loss is right, but it is a plain number: return the tensor, so that backward() can be called")
    if not result.requires_grad:
        raise Wrong("the number is right, but the loss is cut off from the model (detach, item or no_grad): no "
                    "gradient can reach its weights")  # fmt: skip
    wanted = _loss_gradient()
    (slope,) = torch.autograd.grad(result, table, allow_unused=True)
    if slope is None or not close(slope, wanted):
        raise Wrong("the loss is right, its gradient is not: is a part of it detached?")


def _loss_gradient():
    """The gradient of the right loss with respect to the stand-in's table."""
    model, source, _, target = _translation_case(1)
    loss = F.cross_entropy(model.logits(source, target[:, :-1]).flatten(0, 1), target[:, 1:].flatten(), ignore_index=1)
    return torch.autograd.grad(loss, model.table)[0]


# --- exercise 6.2: greedy decoding ----------------------------------------------------------

_SOS, _EOS = 2, 3


class _Automaton:
    """Stands in for a decoder: the state is one number a row, logits come from a table of (state, token)."""

    states = 13

    def __init__(self, table):
        self.table, self.calls = table, 0

    def step(self, tokens, state):
        self.calls += 1
        if self.calls > 60:
            raise TimeoutError  # the message about a loop that never ends
        logits = self.table[state % self.states, tokens]
        return logits, (5 * state + 3 * tokens + 1) % self.states


def _automaton():
    """A table for which rows 0 .. 4 stop after 3, 0, 5, 1 and never."""
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(_Automaton.states, 7, 7, generator=generator)
    table[..., :3] -= 9  # never <unk>, <pad>, <sos>
    table[..., _EOS] -= 9
    state = torch.arange(5)
    for row, stop in enumerate((3, 0, 5, 1)):
        tokens, now = torch.tensor([_SOS]), state[row : row + 1]
        for t in range(stop + 1):
            if t == stop:
                table[now % _Automaton.states, tokens, _EOS] += 30
            logits, now = _Automaton(table).step(tokens, now)
            tokens = logits.argmax(-1)
    return table, state


def _greedy(table, state, max_length, carry=True, feed=True, flip=1):
    """Every row's tokens for max_length steps, <eos> not obeyed: (B, max_length)."""
    machine, tokens, out = _Automaton(table), torch.full((len(state),), _SOS), []
    for _ in range(max_length):
        logits, following = machine.step(tokens, state)
        chosen = (flip * logits).argmax(-1)
        out.append(chosen)
        state, tokens = following if carry else state, chosen if feed else tokens
    return torch.stack(out, 1)


def _until_eos(rows):
    """Lists of ids, each cut before its first <eos>."""
    return [row[: row.index(_EOS)] if _EOS in row else row for row in rows.tolist()]


def _rows_of_ids(got, B):
    """The student's result as lists of whole numbers, or a message."""
    if isinstance(got, torch.Tensor):
        raise Wrong(f"wanted a list of {B} lists, which may differ in length, got a tensor of shape {tuple(got.shape)}")
    if not isinstance(got, (list, tuple)) or len(got) != B:
        size = f" of {len(got)}" if isinstance(got, (list, tuple)) else ""
        raise Wrong(f"wanted a list of {B} lists, one a row, got a {type(got).__name__}{size}")
    rows = []
    for row in got:
        if isinstance(row, torch.Tensor):
            raise Wrong("a row is a tensor; wanted lists of ids, plain numbers: a tensor's method tolist makes them")
        if not isinstance(row, (list, tuple)):
            raise Wrong(f"each row must be a list of ids, got a {type(row).__name__}")
        rows.append([int(expect_number(token, "a token")) for token in row])
    return rows


@check(
    hints=(
        "One loop over the steps for the whole batch at once; a boolean tensor remembers which rows are done.",
        "tokens = B times sos; repeat at most max_length times: logits, state = step(tokens, state); tokens = argmax "
        "over V; append them to the rows that are not done; mark rows that got eos; leave the loop when all are done.",
        "done |= tokens == eos, before appending row by row: if not done[b]: rows[b].append(tokens[b].item()).",
    )
)
def greedy_decode(student):
    """Exercise 6.2: the most likely token at each step, for a batch of rows that stop at different times."""
    table, start = _automaton()
    machine, limit = _Automaton(table), 8
    rows = _rows_of_ids(student(machine.step, start, _SOS, _EOS, limit), len(start))
    whole = _greedy(table, start, limit)
    right = _until_eos(whole)
    if rows != right:
        if rows == whole.tolist():
            raise Wrong(f"row 0 is {rows[0]}: it goes on after <eos> (id {_EOS}). A row ends there")
        if rows == [[*row, _EOS] if len(row) < limit else row for row in right]:
            raise Wrong("the rows are right but still hold their <eos>: it says where to stop and is no word")
        if rows == [[token for token in row if token != _EOS] for row in whole.tolist()]:
            raise Wrong(f"row 0 is {rows[0]}: it leaves out <eos> (id {_EOS}) but goes on after it. A row ends there")
        if rows == [[_SOS, *row] for row in right]:
            raise Wrong("the rows begin with <sos>, which the decoder was given and did not say")
        if all(row == want[: len(row)] for row, want in zip(rows, right, strict=True)):
            longest, wanted = max(map(len, rows)), max(map(len, right))
            if longest == limit - 1:
                raise Wrong(f"called with max_length = {limit}, your longest row has {longest} tokens: one step short")
            tokens = "1 token" if longest == 1 else f"{longest} tokens"
            raise Wrong(f"your longest row has {tokens}, it should have {wanted}: the loop ended when one row was "
                        "done. Go on until all are")  # fmt: skip
        if rows == _until_eos(_greedy(table, start, limit, carry=False)):
            raise Wrong("every step starts from the first state: hand the state that step returns to the next call")
        if rows == _until_eos(_greedy(table, start, limit, feed=False)):
            raise Wrong("the decoder is fed <sos> at every step: feed it the token that it has said last")
        if rows == _until_eos(_greedy(table, start, limit, flip=-1)):
            raise Wrong("you take the least likely token at each step")
        if any(_EOS in row or _SOS in row for row in rows):
            raise Wrong(f"<sos> ({_SOS}) or <eos> ({_EOS}) is among your words: {rows}")
        if any(len(row) > limit for row in rows):
            raise Wrong(f"a row has {max(map(len, rows))} tokens though max_length is {limit}")
        again = _rows_of_ids(student(_Automaton(table).step, start, _SOS, _EOS, limit), len(start))
        if rows != again:
            raise Wrong("two calls give two results: greedy decoding draws nothing, it takes the largest logit")
        bad = next(b for b, (row, want) in enumerate(zip(rows, right, strict=True)) if row != want)
        raise Wrong(f"row {bad} came out as {rows[bad]}, which are not the most likely tokens, one after the other")
    machine = _Automaton(table)
    student(machine.step, start[:4], _SOS, _EOS, 20)
    if machine.calls > 6:
        raise Wrong(f"after 6 steps all rows are done, and you called step {machine.calls} times: leave the loop then, "
                    "and step all rows in one call")  # fmt: skip

    def renamed(tokens, state):
        logits, state = _Automaton(table).step((tokens - 1) % 7, state)
        return logits.roll(1, -1), state

    rows = _rows_of_ids(student(renamed, start, _SOS + 1, _EOS + 1, limit), len(start))
    if rows != [[(token + 1) % 7 for token in row] for row in right]:
        raise Wrong(f"right for sos = {_SOS} and eos = {_EOS}, wrong for sos = {_SOS + 1} and eos = {_EOS + 1}: is an "
                    "id written in your code, in place of the argument?")  # fmt: skip


# --- exercise 6.3: additive attention ---------------------------------------------------------


_LEAK = (
    "among the real keys the weights are right, but padding still gets up to {:.1g}, and 0 is asked for: if you put "
    "a number in place of its score, it is not low enough; whatever number it is, some model's scores come near it"
)


@check(
    hints=(
        "Score every key first, forbid the padding by its score, and let one softmax at the end do the rest.",
        "q = query times W_q transposed, (B, 1, A); k = keys times W_k transposed, (B, S, A); scores = tanh(q + k) "
        "times v, (B, S); scores of padding become minus infinity; softmax over S.",
        "scores = torch.tanh((query @ W_q.T).unsqueeze(1) + keys @ W_k.T) @ v; then masked_fill with ~mask; then "
        "softmax over the last axis.",
    )
)
def additive_weights(student):
    """Exercise 6.3: weights over the source from a query, keys, two matrices, a vector and a mask."""
    generator = torch.Generator().manual_seed(4)
    B, S, D, E, A = 3, 5, 4, 6, 2

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    query, keys, W_q, W_k, v = draw(B, D), draw(B, S, E), draw(A, D), draw(A, E), 2 * draw(A)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    got = student(query, keys, W_q, W_k, v, mask)
    if isinstance(got, torch.Tensor) and got.shape == (B, E):
        raise Wrong(f"the result has shape {(B, E)}: that is the context, the weighted sum. The weights are asked for")
    if isinstance(got, torch.Tensor) and got.shape == (B, S, A):
        raise Wrong(f"the result has shape {(B, S, A)}: there is one weight for each key; v turns A numbers into one")
    expect_tensor(got, shape=(B, S))

    q, k = (query @ W_q.T)[:, None], keys @ W_k.T
    scores = torch.tanh(q + k) @ v
    hidden = scores.masked_fill(~mask, -math.inf)
    want = hidden.softmax(1)
    if not close(got, want):
        if got.isnan().any(1).all():
            raise Wrong("some weights are nan (not a number)")
        plain = scores.softmax(1)
        for wrong, message in (
            (plain, "the mask is not used: padding takes part of the weight"),
            (plain * mask, "you masked after the softmax, so the weights of a short row no longer sum to 1: mask the "
             "scores before it"),
            (scores.masked_fill(~mask, 0).softmax(1), "you set the padding's scores to 0, which is a score like any "
             "other: e^0 = 1. Minus infinity gives weight 0"),
            ((torch.tanh(q + k * mask[..., None]) @ v).softmax(1), "you zeroed the keys of the padding; a key of zeros "
             "still gets a score, and the softmax gives it weight. What has to go is its score"),
            (scores.masked_fill(mask, -math.inf).softmax(1).nan_to_num(), "your weights lie on the padding: True = may "
             "be attended to"),
            (hidden.softmax(0).nan_to_num(), "the weights sum to 1 over the batch: softmax over the keys instead"),
            (scores.softmax(0), "the weights sum to 1 over the batch, and the mask is not used: softmax over the keys"),
            (hidden, "these are the scores: the softmax is missing"),
            (scores, "these are the scores, without mask and softmax"),
            (((q + k) @ v).masked_fill(~mask, -math.inf).softmax(1), "the tanh is missing: without it the query adds "
             "the same number to every score, and the softmax forgets it"),
            (torch.tanh((q + k) @ v).masked_fill(~mask, -math.inf).softmax(1), "tanh comes before v, not after it: "
             "applied to the scores it keeps them between -1 and 1"),
            ((torch.tanh(k) @ v).masked_fill(~mask, -math.inf).softmax(1), "the query has no influence: add its "
             "projection to the keys' before the tanh"),
            ((scores / math.sqrt(A)).masked_fill(~mask, -math.inf).softmax(1), "you divided the scores by a square "
             "root; that belongs to scaled dot products (chapter 07)"),
            (mask / mask.sum(1, keepdim=True), "every real key has the same weight: the scores are not used"),
            (torch.zeros_like(want), "every weight is zero, though weights sum to 1"),
        ):  # fmt: skip
            if close(got.nan_to_num(), wrong.nan_to_num()):
                raise Wrong(message)
        if not close(got.sum(1), torch.ones(B)):
            raise Wrong(f"the weights of row 0 sum to {got[0].sum():.3f}; over the keys they must sum to 1")
        outside = got.masked_fill(mask, 0.0).abs()
        if outside.max() > 0 and close((got * mask) / (got * mask).sum(1, keepdim=True), want):
            raise Wrong(_LEAK.format(outside.max()))
        raise Wrong("the weights sum to 1, but they are not those of tanh(q W_q^T + k W_k^T) v^T: check each product")
    if (got[~mask] != 0).any():
        raise Wrong(_LEAK.format(got[~mask].abs().max()))
    large = student(query, keys, W_q, W_k, 1000 * v, mask)
    if not isinstance(large, torch.Tensor) or large.isnan().any():
        raise Wrong("with large scores your weights are nan: exp overflows, or a whole row of weights rounds to 0. Use "
                    "torch.softmax on scores that are masked already")  # fmt: skip
    if (large[~mask] != 0).any():
        raise Wrong("with scores that are 1000 times as large padding gets weight: the number that you put in place of "
                    "its score is then not the lowest")  # fmt: skip
    if called(student, [((query, keys, W_q, W_k, v, mask), {})], [AdditiveAttention]):
        raise Wrong("right, but by the library's AdditiveAttention: compute the weights from the matrices yourself")


# --- exercise 6.4: by hand --------------------------------------------------------------------


@check(
    hints=(
        "Multiply along the path, <eos> included. For the tie, write both scores with an unknown alpha.",
        "Greedy: follow the largest number at each step. Best: compare all paths that can beat it. Score: log P "
        "divided by ((5 + |Y|) / 6)^alpha. Tie: 1.2 / (7/6)^alpha = 1.6 / (11/6)^alpha; bring the powers to one side.",
        "Greedy is 'a <eos>', the best 'b a <eos>'. (11/7)^alpha = 1.6 / 1.2; take the logarithm of both sides.",
    )
)
def search_by_hand(answer):
    """Exercise 6.4: greedy's probability, the best one, a penalised score, and the alpha at which two tie."""
    names = ("greedy", "best", "score", "alpha")
    greedy, best, score, alpha = got = expect_numbers(answer, names)
    want = (0.55 * 0.4, 0.45 * 0.9 * 0.8, -1.6 * 6 / 11, math.log(4 / 3) / math.log(11 / 7))
    if all(math.isclose(a, b, rel_tol=2e-2) for a, b in zip(got, want, strict=True)) and not all(map(near, got, want)):
        raise Wrong("right to two digits: give three digits of each number")
    if near(greedy, 0.55):
        raise Wrong("greedy: 0.55 is the first word alone; the sentence is over only with its <eos>: multiply it in")
    if near(greedy, want[1]):
        raise Wrong("greedy: this is the best sentence; greedy search never gets to it, since 0.45 < 0.55")
    if near(greedy, 0.95):
        raise Wrong("greedy: you added 0.55 and 0.4; probabilities along a path are multiplied")
    if not near(greedy, want[0]):
        raise Wrong(f"greedy: {greedy:.3g} is not the probability of the path with the largest number at every step")
    if near(best, 0.45 * 0.9):
        raise Wrong("best: 0.405 is 'b a' without its end; multiply in the <eos>")
    if near(best, want[0]):
        raise Wrong("best: this is greedy's sentence; another path is more likely as a whole")
    if not near(best, want[1]):
        raise Wrong(f"best: no finished sentence with probability {best:.3g} is the most likely one. List the paths")
    if near(score, 1.6 * 6 / 11):
        raise Wrong("score: the sign is lost; log-probabilities are negative, and so are the scores")
    if near(score, -1.6 * 11 / 6):
        raise Wrong("score: you multiplied by the penalty; log P is divided by it, which helps long sentences")
    if near(score, -1.6 / 6):
        raise Wrong(
            "score: this is the mean log-probability of a token, a different rule; here lp = ((5 + |Y|) / 6)^alpha"
        )
    if near(score, -1.6 / 11):
        raise Wrong("score: you divided by (5 + |Y|)^alpha; the 6 below is missing")
    if near(score, -1.2 * 6 / 7):
        raise Wrong("score: this is the score of X; the longer one, Y, is asked for")
    for length, remark in ((5, "count the <eos> too"), (7, "its <eos> is one of the 6")):
        if near(score, -1.6 * 6 / (5 + length)):
            raise Wrong(f"score: this takes |Y| = {length}; Y has 6 tokens in all: {remark}")
    if not near(score, want[2]):
        raise Wrong(f"score: log P(Y) / lp(Y) with |Y| = 6 and alpha = 1 is not {score:.3g}")
    if near(alpha, 1 / want[3]):
        raise Wrong("alpha: your fraction of logarithms is upside down")
    if near(alpha, math.log(4 / 3) / math.log(3)):
        raise Wrong("alpha: you used the ratio 6 / 2 of the lengths; lp has 5 + |Y| in it")
    if near(alpha, math.log(4 / 3) / math.log(10 / 6)):
        raise Wrong("alpha: you took lengths of 1 and 5; the <eos> counts, so X has 2 tokens and Y has 6")
    if near(alpha, (4 / 3) / (11 / 7)):
        raise Wrong("alpha: an exponent is unknown, so take logarithms before you divide")
    if near(alpha, -want[3]):
        raise Wrong("alpha: the sign is wrong; below 0 the longer Y, which is behind already, would lose even more")
    if not near(alpha, want[3]):
        raise Wrong(f"alpha: with {alpha:.3g} the scores of X and Y are {-1.2 / (7 / 6) ** min(alpha, 99):.4g} and "
                    f"{-1.6 / (11 / 6) ** min(alpha, 99):.4g}, no tie")  # fmt: skip


# --- exercise 6.5: beam search ------------------------------------------------------------------

_END, _WORDS, _STEPS = 0, 4, 4  # <eos>, size of the vocabulary, greatest length in the check


class _Model:
    """A language of at most `_STEPS` tokens with random probabilities, and a list of what was asked."""

    def __init__(self, seed):
        prefixes = [p for length in range(_STEPS) for p in itertools.product(range(_WORDS), repeat=length)]
        logits = 1.5 * torch.randn(len(prefixes), _WORDS, generator=torch.Generator().manual_seed(seed))
        logits[0, _END] -= 1.5  # the empty sentence shall be rare
        self.asked, self.table = [], dict(zip(prefixes, logits.log_softmax(1).tolist(), strict=True))

    def __call__(self, prefix):
        prefix = tuple(int(token) for token in prefix)
        self.asked.append(prefix)
        return torch.tensor(self.table.get(prefix, [-math.log(_WORDS)] * _WORDS))

    def log_prob(self, tokens):
        return sum(self.table[tokens[:t]][token] for t, token in enumerate(tokens))


def _penalised(log_prob, length, alpha):
    """Wu et al. 2016, equation 14, without its coverage term."""
    return log_prob / ((5 + length) / 6) ** alpha


def _beam(model, size, alpha, rule="", steps=_STEPS, opened=None):
    """A reference that can also make one of the usual mistakes, named by `rule`.

    The list `opened` gets the number of hypotheses that are extended at each step.
    """
    unfinished, finished = [((), 0.0)], []
    for _ in range(steps):
        if opened is not None:
            opened.append(len(unfinished))
        grown = []
        for prefix, total in unfinished:
            log_probs = model.table[prefix]
            if rule == "sum of probabilities":
                log_probs = [math.exp(value) for value in log_probs]
            longer = [((*prefix, token), total + value) for token, value in enumerate(log_probs)]
            grown += [max(longer, key=lambda pair: pair[1])] if rule == "best of each" and prefix else longer
        places = size if rule in ("places", "outside") else size - len(finished)
        if rule == "outside":
            finished += [pair for pair in grown if pair[0][-1] == _END]
            grown = [pair for pair in grown if pair[0][-1] != _END]
        grown = sorted(grown, key=lambda pair: -pair[1])[:places]
        finished += [pair for pair in grown if pair[0][-1] == _END]
        unfinished = [pair for pair in grown if pair[0][-1] != _END]
        if not unfinished or (rule == "first finished" and finished):
            break
    by = {
        "sum of probabilities": lambda pair: pair[1] / ((5 + len(pair[0])) / 6) ** alpha,
        **{name: lambda pair, of=of: of(model.log_prob(pair[0]), len(pair[0]), alpha) for name, of in _SCORES.items()},
    }.get(rule, lambda pair: _penalised(pair[1], len(pair[0]), alpha))
    return max(finished + unfinished if rule == "open" else finished or unfinished, key=by)[0]


def _hypothesis(student, model, size, alpha):
    """Call the student's search; its tokens as a tuple, and its score."""
    model.asked = []
    got = student(model, _END, size, _STEPS, alpha)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"wanted a pair (tokens, score), got a {type(got).__name__}")
    tokens, score = got
    tokens = tokens.tolist() if isinstance(tokens, torch.Tensor) else tokens
    if not isinstance(tokens, (tuple, list)):
        raise Wrong(f"the tokens must be a tuple or a list of ids, got a {type(tokens).__name__}")
    return tuple(int(expect_number(token, "a token")) for token in tokens), expect_number(score, "the score")


_MODELS = range(115, 139)  # seeds of random languages, on which each mistake shows at least once
_RULES = {
    "sum of probabilities": "you add up probabilities; the probability of a sentence is their product, so add their "
    "logarithms",
    "best of each": "you keep the best extension of each hypothesis; rank the extensions of all hypotheses together, "
    "so that both survivors may descend from one",
    "first finished": "you return as soon as a hypothesis is finished; a better one may still be open. Go on until "
    "none is open",
    "places": "a finished hypothesis keeps its place: after one has finished, only size - 1 others are kept",
    "outside": "you set aside every extension by <eos>; it must win a place among the best extensions, like any other, "
    "and then it keeps that place",
    "open": "a hypothesis that is still open at the end competes with the finished ones; it counts only if none is "
    "finished",
    "no penalty": "the finished hypotheses are compared by log P alone, which favours short ones: divide by the length "
    "penalty first",
    "without <eos>": "your length leaves out the <eos>, which is one of the tokens of |Y|",
    "mean": "you divide by |Y|^alpha; here lp = ((5 + |Y|) / 6)^alpha",
    "multiplied": "you multiply by the length penalty; divide, since log P is negative and long sentences are to gain",
}  # fmt: skip
_SCORES = {
    "no penalty": lambda log_prob, length, alpha: log_prob,
    "without <eos>": lambda log_prob, length, alpha: _penalised(log_prob, length - 1, alpha),
    "mean": lambda log_prob, length, alpha: log_prob / length**alpha,
    "multiplied": lambda log_prob, length, alpha: log_prob * ((5 + length) / 6) ** alpha,
}


def _sentences(model):
    """All finished sentences of a model, of at most `_STEPS` tokens."""
    return {(*prefix, _END) for prefix in model.table if _END not in prefix}


def _expect_a_beam(model, size):
    """Only open hypotheses may be extended, at most `size` of each length, none beyond max_length."""
    if not model.asked:
        raise Wrong("step was never called: it gives the log-probabilities of the next token")
    for prefix in model.asked:
        if _END in prefix:
            raise Wrong(f"you extended {prefix}, which holds <eos> (id {_END}): a finished hypothesis is set aside")
    if max(map(len, model.asked)) >= _STEPS:
        raise Wrong(f"max_length is {_STEPS}, and step was asked for token number {max(map(len, model.asked)) + 1}")
    for length in range(_STEPS):
        asked = len({prefix for prefix in model.asked if len(prefix) == length})
        if asked > size:
            raise Wrong(f"with size = {size} you extended {asked} hypotheses of {length} tokens: keep {size} in all, "
                        f"not {size} for each hypothesis")  # fmt: skip


def _expect_places_kept(numbers, model, size, alpha):
    """At each step no more hypotheses may be extended than the finished ones leave places for."""
    opened = []
    _beam(model, size, alpha, opened=opened)
    for number, places in zip(numbers, [*opened, *[0] * _STEPS], strict=False):
        if number > places:
            raise Wrong("a hypothesis that finishes takes one of the places at once, in the step in which it does: "
                        f"with size = {size} and {size - places} finished you still extended {number}")  # fmt: skip


@check(
    hints=(
        "Keep two lists, open and finished, of (tokens, log P). Each step makes all extensions, then cuts once.",
        "open = [((), 0.0)]. At most max_length times: candidates = every open hypothesis with every token, log P "
        "added up; sort them together, keep the first size - len(finished); those ending in eos are finished. "
        "Stop when none is open. Return the finished one with the largest log P / ((5 + length) / 6)^alpha.",
        "candidates = [(tokens + (i,), log_p + value) for tokens, log_p in open for i, value in "
        "enumerate(step(tokens).tolist())]; candidates.sort(key=lambda c: c[1], reverse=True); kept = "
        "candidates[:size - len(finished)].",
    )
)
def beam_search(student):
    """Exercise 6.5: beam search, against enumeration, against greedy search, and against a second implementation."""
    models, whole = [_Model(seed) for seed in _MODELS], _WORDS**_STEPS
    cases = [
        (models[0], whole, 0.0),
        *((m, 1, 1.0) for m in models[:6]),
        *((m, size, 1.0) for m in models for size in (2, 3)),
    ]
    found, extended = [], []
    for model, size, alpha in cases:
        tokens, score = _hypothesis(student, model, size, alpha)
        if _END in tokens[:-1]:
            raise Wrong(f"your hypothesis {tokens} goes on after <eos> (id {_END}): set finished hypotheses aside")
        _expect_a_beam(model, size)
        found.append((tokens, score))
        extended.append([len({prefix for prefix in model.asked if len(prefix) == n}) for n in range(_STEPS)])
    want = [_beam(*case) for case in cases]
    if all(tokens == right[:-1] for (tokens, _), right in zip(found, want, strict=True) if right[-1] == _END):
        raise Wrong(f"your tokens lack their <eos> (id {_END}): return it too, it is one of the |Y| tokens")
    shorter = [_beam(*case, steps=_STEPS - 1) for case in cases]
    if shorter != want and all(tokens == short for (tokens, _), short in zip(found, shorter, strict=True)):
        raise Wrong(f"your search takes one step too few: with max_length = {_STEPS} no hypothesis of yours gets to "
                    f"{_STEPS} tokens, <eos> included")  # fmt: skip
    for rule, message in _RULES.items():
        by_rule = [_beam(*case, rule) for case in cases]
        if by_rule != want and all(tokens == wrong for (tokens, _), wrong in zip(found, by_rule, strict=True)):
            raise Wrong(message)
    for (tokens, _), right, (model, size, _) in zip(found, want, cases, strict=True):
        if tokens == right:
            continue
        if size == whole:
            best = max(_sentences(model), key=model.log_prob)
            raise Wrong(f"a beam wide enough for every hypothesis must find the most likely sentence, {best} with "
                        f"log P = {model.log_prob(best):.3f}; you found {tokens}")  # fmt: skip
        raise Wrong(f"with size = {size} you return {tokens}, another beam search {right}: at each step keep the best "
                    "of all extensions, by the sum of log-probabilities; a finished one keeps its place")  # fmt: skip
    for numbers, case in zip(extended, cases, strict=True):
        _expect_places_kept(numbers, *case)
    for (tokens, score), (model, _, alpha) in zip(found, cases, strict=True):
        log_prob, length = model.log_prob(tokens), len(tokens)
        if close(score, _penalised(log_prob, length, alpha), 1e-4):
            continue
        if tokens[-1] != _END and close(score, log_prob, 1e-4) and _right_where_finished(found, cases):
            raise Wrong("where no hypothesis is finished you return the open one with its log P: its score is divided "
                        "by the length penalty too")  # fmt: skip
        if length > 1 and close(score, log_prob, 1e-4):
            raise Wrong("the tokens are right, but the score that you return is their log P; return log P / lp, by "
                        "which finished hypotheses are compared")  # fmt: skip
        for rule, of in _SCORES.items():
            if length > 1 and close(score, of(log_prob, length, alpha), 1e-4):
                raise Wrong(f"the tokens are right, the score is not: {_RULES[rule]}")
        raise Wrong(
            f"the tokens are right, but for log P = {log_prob:.3f} and |Y| = {length} the score is not {score:.3f}"
        )
    _other_settings(student, models)


def _right_where_finished(found, cases):
    """Whether the scores of finished hypotheses are right."""
    return all(
        close(score, _penalised(model.log_prob(tokens), len(tokens), alpha), 1e-4)
        for (tokens, score), (model, _, alpha) in zip(found, cases, strict=True)
        if tokens[-1] == _END
    )


def _other_settings(student, models):
    """The same languages with their words renamed, so that <eos> has another id, and another length and alpha."""
    last, size, steps, alpha = _WORDS - 1, 2, _STEPS - 1, 0.6
    for model in models:

        def renamed(prefix, model=model):
            return model([last - token for token in prefix]).flip(0)

        tokens, score = student(renamed, last - _END, size, steps, alpha)
        want = _beam(model, size, alpha, steps=steps)
        wanted_score = _penalised(model.log_prob(want), len(want), alpha)
        if [last - int(token) for token in tokens] != list(want) or not close(score, wanted_score, 1e-4):
            raise Wrong(f"right for eos = {_END}, max_length = {_STEPS} and alpha = 1, wrong for eos = {last - _END}, "
                        f"max_length = {steps} and alpha = {alpha}: is a number written in your code, in place of the "
                        "argument?")  # fmt: skip


# --- exercise 6.6: in words -------------------------------------------------------------------

what_length_tells = Written(
    hints=(
        "(a) First compare the two tables at one width, then go along the lines of each. (b) Think of a beam that "
        "drops what a narrower one would have kept. (c) Feed the reference, so that its own mistakes play no part.",
        "(a) In the one case a single state must hold the whole sentence; in the other, what must each state hold? (b) "
        "Three quantities: the log-probability of what is found, BLEU, the length. (c) With the reference fed, measure "
        "the perplexity per word by source length: in which case does it rise, in which does it stay?",
        "(a) What happens to the shortest sentences if the vector is too narrow even for them? (b) Only a beam that "
        "keeps every beginning promises anything. (c) The two causes are too little information about the source, and "
        "mistakes that are fed back; the first shows even when the reference is fed.",
    ),
    good_answer=(
        "(a) Your own numbers: one vector needs a wider encoder than attention, because its last state must hold the "
        "whole sentence, an attended state only a word and its surroundings; and that a vector which is much too "
        "narrow, or little trained, fails at every length, so that a fall shows only where it suffices for the short "
        "sentences. (b) Nothing must rise; the log-probability often does, yet a beam may drop the better beginning; "
        "BLEU may rise or fall: the most probable sentence is not the one nearest to the reference. (c) The bottleneck "
        "and exposure bias; with the reference fed, the perplexity by source length rises under the first and stays "
        "level under the second; and that there may be other causes, such as few long sentences in training."
    ),
)


# --- exercise 6.7: a whole translator ---------------------------------------------------------

_SIZES = {"source_size": 9, "target_size": 7, "embedding_dim": 5, "hidden_size": 4, "attention_size": 3}


def _translator_shapes(Vs, V, inputs, D, A):
    """Names and shapes of the parameters that the exercise asks for."""
    shapes = {"source_embedding.weight": (Vs, inputs), "target_embedding.weight": (V, inputs)}
    shapes |= {"encoder.weight_ih_l0": (3 * D, inputs), "encoder.weight_hh_l0": (3 * D, D)}
    shapes |= {"encoder.bias_ih_l0": (3 * D,), "encoder.bias_hh_l0": (3 * D,)}
    shapes |= {"W_q.weight": (A, D), "W_k.weight": (A, D), "v.weight": (1, A)}
    shapes |= {"decoder.weight_ih": (3 * D, inputs + D), "decoder.weight_hh": (3 * D, D)}
    shapes |= {"decoder.bias_ih": (3 * D,), "decoder.bias_hh": (3 * D,)}
    return shapes | {"output.weight": (V, D), "output.bias": (V,)}


def _gru(x, h, weights, name, end=""):
    """One step of torch's GRU."""
    parts = (weights[f"{name}.{part}{end}"] for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"))
    return torch.gru_cell(x, h, *parts)


def _read(weights, source, mask, rule=""):
    """States (B, S, D) and h_0 (B, D); `rule` names a usual mistake."""
    h = weights["v.weight"].new_zeros(len(source), weights["output.weight"].shape[1])
    states = []
    for tokens in source.unbind(1):
        h = _gru(weights["source_embedding.weight"][tokens], h, weights, "encoder", "_l0")
        states.append(h)
    states = torch.stack(states, 1)
    ends = mask.sum(1) - 1
    return states, {
        "last column": states[:, -1],
        "mean": (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True),
        "first": states[:, 0],
        "one late": states[torch.arange(len(source)), (ends + 1).clamp(max=source.shape[1] - 1)],
        "zeros": torch.zeros_like(states[:, 0]),
    }.get(rule, states[torch.arange(len(source)), ends])


def _step(weights, tokens, h, states, mask, rule=""):
    """Logits (B, V) and the next state; `rule` names a usual mistake."""
    scores = torch.tanh((h @ weights["W_q.weight"].T)[:, None] + states @ weights["W_k.weight"].T)
    scores = scores @ weights["v.weight"][0]
    w = scores.masked_fill(~mask, -math.inf).softmax(1)
    w = {"no mask": scores.softmax(1), "mask after": scores.softmax(1) * mask}.get(rule, w)
    w = mask / mask.sum(1, keepdim=True) if rule == "equal weights" else w
    c = (w[..., None].to(states) * states).sum(1)
    c = states[torch.arange(len(h)), mask.sum(1) - 1] if rule == "last state" else c
    x = weights["target_embedding.weight"][tokens]
    after = _gru(torch.cat([c, x] if rule == "c first" else [x, c], 1), h, weights, "decoder")
    shown = h if rule == "old state" else after
    return shown @ weights["output.weight"].T + weights["output.bias"], after


def _logits(weights, source, mask, inputs, rule=""):
    """Logits (B, T, V) under teacher forcing; `rule` names a usual mistake."""
    states, h = _read(weights, source, mask, rule)
    first, rows, tokens = h, [], inputs[:, 0]
    for t, given in enumerate(inputs.unbind(1)):
        tokens = rows[-1].argmax(1) if rule == "own predictions" and t else given
        logits, after = _step(weights, tokens, h, states, mask, rule)
        rows.append(logits)
        h = first if rule == "state not carried" else after
    return torch.stack(rows, 1)


def _translation_weights(sizes, seed=12):
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(*shape, generator=generator, dtype=torch.float64)
        for name, shape in _translator_shapes(*sizes).items()
    }


_H_0 = {
    "last column": "read: h_0 is the state after the last column, which is padding in short rows; take each row's "
    "state after its own last token, which the mask tells",
    "mean": "read: h_0 is the mean of a row's states; its state after its own last token is asked for",
    "first": "read: h_0 is the state after the first token; the encoder has to read to the end of the row",
    "one late": "read: h_0 is one step too late: a row with n real tokens ends at index n - 1",
    "zeros": "read: h_0 is zero: the decoder is to start from the encoder's state",
}
_ONE_STEP = {
    "no mask": "step: the mask is not used, so padding takes part of the weight",
    "mask after": "step: you masked after the softmax, so the weights of a padded row no longer sum to 1",
    "equal weights": "step: every real word gets the same weight: are the scores used?",
    "last state": "step: the context is the state after the last word, the same at every step; a weighted mean of all "
    "states is asked for",
    "c first": "step: the GRU cell reads [c_t, e(y)]; the exercise asks for [e(y), c_t]",
    "old state": "step: the logits come from the state before the step; they are those of the new one",
}


@check(
    hints=(
        "Write one method after the other; the check looks at the constructor, then read, step, forward, learn.",
        "read: all states from the GRU; h_0 = states[row, number of real tokens - 1]. step: weights from h, states and "
        "mask; context = weighted sum; h = GRU cell of [embedding, context]; logits from h. forward: read, then one "
        "step for each column of inputs. learn: your loss of exercise 6.1 on self, then zero_grad, backward, step.",
        "states[torch.arange(B), mask.sum(1) - 1]; weights (B, S) become (B, S, 1) to multiply states (B, S, D); "
        "torch.stack(rows, dim=1) in forward; in learn, self(source, mask, ...) gives the logits; return loss.item().",
    )
)
def own_translator(student):
    """Exercise 6.7: a translator with attention for padded sources, on 3 rows of up to 5 words."""
    model = student(*_SIZES.values())
    if not isinstance(model, torch.nn.Module):
        raise Wrong(f"OwnTranslator(...) gave a {type(model).__name__}; wanted a torch.nn.Module")
    _expect_layers(model)
    weights = _translation_weights(_SIZES.values())
    model.double().load_state_dict(weights)
    source = torch.tensor([[4, 5, 8, 1, 1], [6, 7, 5, 4, 8], [8, 6, 1, 1, 1]])
    mask = source != 1
    target = torch.tensor([[2, 5, 6, 4, 3], [2, 6, 3, 1, 1], [2, 4, 4, 3, 1]])
    states, h = _expect_reading(model, weights, source, mask)
    _expect_step(model, weights, target[:, 1], h, states, mask)
    inputs = target[:, :-1]
    forward = guarded(model)
    got = expect_tensor(forward(source, mask, inputs), shape=(3, 4, 7), name="what forward returns")
    right = _logits(weights, source, mask, inputs)
    if not close(got, right):
        for rule, message in (
            ("state not carried", "forward: every step starts from h_0: hand the state that step returns to the next"),
            (
                "own predictions",
                "forward: the decoder is fed its own predictions; under teacher forcing it reads inputs",
            ),
        ):
            if close(got, _logits(weights, source, mask, inputs, rule)):
                raise Wrong(message)
        if close(got[:, 0], right[:, 0]):
            raise Wrong(
                "forward: the first step is right, the later ones are not; what do they get from the one before?"
            )
        raise Wrong(
            "forward: read and step are right, but these are not the logits of one step after the other, from h_0"
        )
    more = torch.cat([source, source.new_full((3, 2), 4)], 1), torch.cat([mask, mask.new_zeros(3, 2)], 1)
    if not close(forward(*more, inputs), right):
        raise Wrong(
            "two more columns of padding in the source change the logits; whatever ids stand there must not matter"
        )
    _expect_slopes(model, weights, source, mask, inputs)
    _expect_learning(model, weights, source, mask, target)


def _expect_layers(model):
    """The layers that the exercise names, with their shapes, and no others."""
    wanted = _translator_shapes(*_SIZES.values())
    found = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    sizes = ", ".join(f"{name} = {size}" for name, size in _SIZES.items())
    for name, shape in wanted.items():
        layer = name.partition(".")[0]
        if name not in found:
            known = any(other.startswith(f"{layer}.") for other in found)
            raise Wrong(f"there is no parameter {name}: " + (
                f"is self.{layer} the kind of layer that the exercise asks for?" if known else
                f"the constructor makes self.{layer}"))  # fmt: skip
        if found[name] != shape:
            raise Wrong(f"with {sizes} your {name} has shape {found[name]}; wanted {shape}")
    if more := sorted(found.keys() - wanted.keys()):
        no_bias = " (W_q, W_k and v have no bias)" if more[0] in ("W_q.bias", "W_k.bias", "v.bias") else ""
        raise Wrong(f"{more[0]} is a parameter too many{no_bias}: the eight layers are enough")
    if not getattr(model.encoder, "batch_first", True):
        raise Wrong("the encoder wants time first: make it with batch_first=True")


def _expect_reading(model, weights, source, mask):
    """What read returns; gives back the right states and h_0."""
    got = guarded(model.read)(source, mask)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"read must return two tensors, the states and h_0; got a {type(got).__name__}")
    states, h = _read(weights, source, mask)
    mine = expect_tensor(got[0], shape=tuple(states.shape), name="read: states")
    first = expect_tensor(got[1], shape=tuple(h.shape), name="read: h_0")
    if not close(mine[mask], states[mask]):
        raise Wrong("read: the states of real words are not those of a GRU over their embeddings")
    if not close(first, h):
        for rule, message in _H_0.items():
            if close(first, _read(weights, source, mask, rule)[1]):
                raise Wrong(message)
        raise Wrong("read: the states are right, h_0 is not each row's state after its own last token")
    return states, h


def _expect_step(model, weights, tokens, h, states, mask):
    """One step, from a given state."""
    got = guarded(model.step)(tokens, h, states, mask)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"step must return two tensors, the logits and the new state; got a {type(got).__name__}")
    right, after = _step(weights, tokens, h, states, mask)
    logits = expect_tensor(got[0], shape=tuple(right.shape), name="step: logits")
    state = expect_tensor(got[1], shape=tuple(after.shape), name="step: the new state")
    if not close(logits, right) or not close(state, after):
        for rule, message in _ONE_STEP.items():
            wrong, wrong_state = _step(weights, tokens, h, states, mask, rule)
            if close(logits, wrong) and close(state, wrong_state):
                raise Wrong(message)
        if close(logits, right):
            raise Wrong("step: the logits are right, the state that is returned is not the new one")
        full = mask.all(1)
        if close(logits[full], right[full]):
            raise Wrong("step: the row without padding is right, padded rows are not: padding must get the weight 0")
        if close(state, after):
            raise Wrong("step: the new state is right, the logits are not output(h)")
        raise Wrong("step: neither logits nor state are right. Print the weights and the context of one row, and "
                    "compare with section 6's lines")  # fmt: skip


def _expect_slopes(model, weights, source, mask, inputs):
    """The gradients of the sum of squared logits must be those of the whole computation."""
    mine = {name: value.clone().requires_grad_() for name, value in weights.items()}
    _logits(mine, source, mask, inputs).square().sum().backward()
    model.zero_grad()
    logits = model(source, mask, inputs)
    if not logits.requires_grad:
        raise Wrong("the logits are cut off from the weights (no_grad, detach or .data): nothing can be learned")
    logits.square().sum().backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not close(parameter.grad, mine[name].grad):
            raise Wrong(f"the logits are right, but {name} gets a wrong gradient; is something detached on the way?")


def _expect_learning(model, weights, source, mask, target, rate=0.1):
    """Two updates by plain gradient descent, with gradients left over from before, and another id for padding."""
    pad = 0
    target = target.masked_fill(target == 1, pad)
    optimizer = torch.optim.SGD(model.parameters(), rate)

    def after_update(now, left_over=None):
        now = {name: value.clone().requires_grad_() for name, value in now.items()}
        logits = _logits(now, source, mask, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
        everything = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        copied = _logits(now, source, mask, target[:, 1:])
        copied = F.cross_entropy(copied.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
        whole = _logits(now, source, mask, target).flatten(0, 1)  # nothing is cut
        unshifted = F.cross_entropy(whole, target.flatten(), ignore_index=pad)
        wrong = {
            "the loss counts padding; the padding's id is the argument pad": everything,
            "the decoder reads the token that it is to predict; its inputs lag one step behind": copied,
            _CAN_COPY: unshifted,
            _BOTH_BUGS: F.cross_entropy(whole, target.flatten()),
        }
        slopes = dict(zip(now, torch.autograd.grad(loss, list(now.values())), strict=True))
        left = left_over or dict.fromkeys(slopes, 0.0)
        new = {name: now[name].detach() - rate * (slopes[name] + left[name]) for name in now}
        return loss.item(), {message: value.item() for message, value in wrong.items()}, new

    left_over = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    loss, wrong, new = after_update(weights)
    got = guarded(lambda: model.learn(optimizer, source, mask, target, pad))()
    if got is None:
        raise Wrong("learn returns nothing; the loss before the update is asked for")
    if isinstance(got, torch.Tensor) and got.requires_grad:
        raise Wrong("learn returns a tensor that still holds the computation behind the loss, so the memory of every "
                    "update is kept as long as its loss is; return a float")  # fmt: skip
    number = expect_number(got, "what learn returns")
    moved = {name: value.detach() for name, value in model.state_dict().items()}
    if not close(number, loss):
        for message, value in wrong.items():
            if close(number, value):
                raise Wrong(f"learn: {message}")
        if close(number, after_update(moved)[0]):
            raise Wrong("learn: this is the loss after the update; return the one before it")
        raise Wrong(f"learn: the mean cross-entropy over the real target tokens is not {number:.4f}")
    if all(close(moved[name], weights[name]) for name in weights):
        raise Wrong("learn: the weights have not moved: backward, then optimizer.step()")
    if not all(close(moved[name], new[name]) for name in new):
        old = after_update(weights, left_over)[2]
        if all(close(moved[name], old[name]) for name in old):
            raise Wrong("learn: gradients of an earlier backward are added to the new ones: call optimizer.zero_grad()")
        raise Wrong("learn: the loss is right, but the weights are not those after one step of the optimizer, without "
                    "clipping")  # fmt: skip
    again, _, newer = after_update(new)
    number = expect_number(guarded(lambda: model.learn(optimizer, source, mask, target, pad))(), "what learn returns")
    moved = model.state_dict()
    if not close(number, again) or not all(close(moved[name], newer[name]) for name in newer):
        raise Wrong("learn: the first update is right, the second is not: are gradients of the first left over?")
