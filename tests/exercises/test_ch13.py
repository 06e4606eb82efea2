"""The checks of chapter 13: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import pretrained
from course_lib.exercises import ch13
from course_lib.gpt import GPT, GPTConfig
from tests.helpers.solutions import solution, verdict

NAMES = ("tied_gradient", "temperature_numbers", "top_p", "cached_step", "training_memory", "training_run", "own_gpt")
CLASSES = {"own_gpt": "OwnGPT"}  # what the answer of an exercise is called where it is not the check's name


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def tied(output=1.0, embedding=1.0, scale=1.0, assign=False, at="ids", one_hot=True):
    """The gradient of a tied table, with mistakes to choose from."""

    def gradient(table, ids, targets):
        x = table[ids]
        error = (x @ table.T).softmax(-1)
        if one_hot:
            error[torch.arange(len(ids)), targets] -= 1
        error = error / len(ids)
        rows, found = ids if at == "ids" else targets, torch.zeros_like(table)
        if assign:
            found[rows] = error @ table
        else:
            found.index_add_(0, rows, error @ table)
        return scale * (output * error.T @ x + embedding * found)

    return gradient


def by_autograd(table, ids, targets):
    table = table.clone().requires_grad_()
    torch.nn.functional.cross_entropy(table[ids] @ table.T, targets).backward()
    return table.grad


def by_func(table, ids, targets):
    def loss(table):
        return torch.nn.functional.cross_entropy(table[ids] @ table.T, targets)

    return torch.func.grad(loss)(table)


def nucleus(keep, descending=True, back=True, normalise=True):
    """Top-p with a rule: `keep(sorted probabilities, cumulative sums, p)` says what stays."""

    def cut(probs, p):
        ordered, order = probs.sort(-1, descending=descending)
        ordered = ordered * keep(ordered, ordered.cumsum(-1), p)
        kept = torch.zeros_like(probs).scatter(-1, order, ordered) if back else ordered
        return kept / kept.sum(-1, keepdim=True) if normalise else kept

    return cut


def right(ordered, total, p):
    return total - ordered < p


def reached_and_one(ordered, total, p):
    return ~(total - ordered > p)


def below(ordered, total, p):
    return total <= p


def below_but_first(ordered, total, p):
    return (total <= p) | (torch.arange(ordered.shape[-1]) == 0)


def one_more(ordered, total, p):
    return torch.cat([torch.ones_like(total[:, :1]), (total - ordered)[:, :-1]], -1).lt(p) | (
        torch.arange(ordered.shape[-1]) == 0
    )


def share_of_tokens(ordered, total, p):
    return torch.arange(ordered.shape[-1]) < round(p * ordered.shape[-1])


def one_set(probs, p):
    kept = probs * (nucleus(right)(probs, p)[:1] > 0)
    return kept / kept.sum(-1, keepdim=True)


def by_threshold(probs, p):
    kept = probs * (probs >= 0.1)
    return kept / kept.sum(-1, keepdim=True)


def gathered(probs, p):
    """`gather` where `scatter` belongs: the sorted order is applied twice, not undone."""
    ordered, order = probs.sort(-1, descending=True)
    kept = (ordered * right(ordered, ordered.cumsum(-1), p)).gather(-1, order)
    return kept / kept.sum(-1, keepdim=True)


def from_smallest(probs, p):
    """All that are as likely as the least likely of the kept: right but for equals."""
    kept = nucleus(right, normalise=False)(probs, p)
    smallest = kept.masked_fill(kept == 0, 2.0).amin(-1, keepdim=True)
    kept = probs * (probs >= smallest)
    return kept / kept.sum(-1, keepdim=True)


def without_equals(probs, p):
    """As above, but equals of the smallest are all left out."""
    kept = nucleus(right, normalise=False)(probs, p)
    smallest = kept.masked_fill(kept == 0, 2.0).amin(-1, keepdim=True)
    alone = (probs == smallest).sum(-1, keepdim=True) == 1
    kept = probs * ((probs > smallest) | ((probs == smallest) & alone))
    return kept / kept.sum(-1, keepdim=True)


def as_the_widest(probs, p):
    ordered, order = probs.sort(-1, descending=True)
    count = int(right(ordered, ordered.cumsum(-1), p).sum(-1).max())
    kept = torch.zeros_like(probs).scatter(-1, order[:, :count], ordered[:, :count])
    return kept / kept.sum(-1, keepdim=True)


def last_of_equals(probs, p):
    """A right answer that keeps the last of equals: it sorts the row turned round."""
    return nucleus(right)(probs.flip(-1), p).flip(-1)


def above_the_rest(probs, p):
    """Each probability by itself."""
    kept = probs * (probs >= 1 - p)
    return kept / kept.sum(-1, keepdim=True)


def any_as_many(probs, p):
    """As many tokens as should be, but a row's last ones."""
    count = (nucleus(right)(probs, p) > 0).sum(-1, keepdim=True)
    kept = probs * (torch.arange(probs.shape[-1]) >= probs.shape[-1] - count)
    return kept / kept.sum(-1, keepdim=True)


def zero_over_zero(probs, p):
    return nucleus(right)(probs, p) * torch.tensor([[math.nan], [1.0], [math.nan]])[: len(probs)]


def by_library(probs, p):
    """Right, but not written by the student; the import inside changes nothing."""
    from course_lib.generate import top_k_top_p

    return top_k_top_p(probs.log(), top_p=p).softmax(-1)


def by_log_softmax(probs, p):
    """A right answer that works with logits throughout."""
    logits, order = probs.log().log_softmax(-1).sort(-1, descending=True)
    before = logits.exp().cumsum(-1) - logits.exp()
    logits = logits.masked_fill(before >= p, -torch.inf)
    return torch.full_like(probs, -torch.inf).scatter(-1, order, logits).softmax(-1)


def by_loop(probs, p):
    """A right answer in plain Python, in float32."""
    found = torch.zeros(probs.shape)
    for row, new in zip(probs.tolist(), found, strict=True):
        total = 0.0
        for v in sorted(range(len(row)), key=lambda v: -row[v]):
            new[v], total = row[v], total + row[v]
            if total >= p:
                break
    return found / found.sum(-1, keepdim=True)


def softmax_of_the_kept(probs, p):
    kept = nucleus(right, normalise=False)(probs, p)
    return kept.masked_fill(kept == 0, -math.inf).softmax(-1)


def flattened(probs, p):
    kept = (nucleus(right)(probs, p) > 0).double()
    return kept / kept.sum(-1, keepdim=True)


def step(position=0, first=0, last=1, scale=True, advance=1, write=0, all_rows=False, add=True, over=-1):
    """One token with a cache, with mistakes to choose from."""

    def cached(x, cache, project, table):
        t = cache.length
        q, k, v = project(x + table[(t + position) % len(table)] if add else x)
        cache.keys[:, t + write], cache.values[:, t + write] = k, v
        cache.length = t + advance
        end = cache.keys.shape[1] if all_rows else t + last
        keys, values = cache.keys[:, first:end], cache.values[:, first:end]
        scores = (keys @ q[:, :, None])[..., 0] / (math.sqrt(x.shape[-1]) if scale else 1)
        return (scores.softmax(over)[..., None] * values).sum(1)

    return cached


def where_written(x, cache, project, table):
    """Takes the rows whose key is not 0 for those that were written."""
    t = cache.length
    q, k, v = project(x + table[t])
    cache.keys[:, t], cache.values[:, t] = k, v
    cache.length = t + 1
    scores = (cache.keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])
    weights = scores.masked_fill((cache.keys == 0).all(-1), -math.inf).softmax(-1)
    return (weights[..., None] * cache.values).sum(1)


def first_position(x, cache, project, table):
    return step()(x, cache, project, table[:1].expand(len(table), -1))


def two_rows(x, cache, project, table):
    found = step()(x, cache, project, table)
    cache.keys[:, cache.length] = 1.0
    after = found.clone()
    cache.keys[:, cache.length :] = 1.0
    return after


def grown(x, cache, project, table):
    """The filled rows and the new one take the place of the whole cache."""
    t = cache.length
    q, k, v = project(x + table[t])
    cache.keys = torch.cat([cache.keys[:, :t], k[:, None]], 1)
    cache.values = torch.cat([cache.values[:, :t], v[:, None]], 1)
    cache.length = t + 1
    weights = ((cache.keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])).softmax(-1)
    return (weights[..., None] * cache.values).sum(1)


def elsewhere(x, cache, project, table):
    """The tokens are kept, and read again, beside the cache's rows."""
    cache.read = [*getattr(cache, "read", []), x + table[cache.length]]
    cache.length += 1
    q, k, v = project(torch.stack(cache.read, 1))
    weights = ((k @ q[:, -1, :, None])[..., 0] / math.sqrt(x.shape[-1])).softmax(-1)
    return (weights[..., None] * v).sum(1)


def memory(each=16, table=1, L=1, bias=9, norm=4, last=2):
    def held(V, length, D, N):
        parameters = table * V * D + L * length * D + N * (12 * D * D + (bias + norm) * D) + last * D
        return parameters, each * parameters

    return held


def by_building(V, L, D, N):
    """Counts the library's model, built without memory."""
    with torch.device("meta"):
        model = GPT(GPTConfig(V, L, D, N, 1))
    parameters = sum(p.numel() for p in model.parameters())
    return parameters, 16 * parameters


def own(
    mask="scores", columns=-1, place=0, root=False, score="K", order="qkv", by_head=False, merge=True, turned=False,
    norms="pre", gains=(1, 2), last=True, activation="tanh", blocks=lambda layers: layers, drop=0.0, heads=None,
    fill=-math.inf, piece="joined", at="past", corner="past", itself=True, shared=False, remember=False, empty=True,
    tilt="right", sums=True, keep_prompt=False, more=0, cached=True, gives="probabilities", newest=-1, twice=False,
    feed=True, one_cache=False, kind=list, hot=False,
):  # fmt: skip
    """A GPT on plain tensors, with mistakes to choose from."""

    class OwnGPT:
        def __init__(self, weights, num_heads):
            self.w, self.H, self.last_cache = weights, heads or num_heads, None

        def start(self):
            if not empty:
                return None
            if one_cache and self.last_cache is not None:
                return self.last_cache
            self.last_cache = {"length": 0, "kept": {}}
            return self.last_cache

        def logits(self, ids, cache=None):
            if remember:
                cache = self.last_cache or self.start()
            T, past = ids.shape[1], cache["length"] if cache else 0
            first = {"past": past, "0": 0, "one on": past + 1, "one back": max(past - 1, 0)}[at] + place
            x = self.w["table"][ids] * (self.w["table"].shape[1] ** 0.5 if root else 1)
            if at == "one on" and not cache:
                first = 0
            x = x + (0 if place is math.nan else self.w["positions"][first : first + T])
            for i, p in enumerate(blocks(self.w["blocks"])):
                kept = None if cache is None else (cache["kept"], 0 if shared else i)
                x = self.block(x, p, kept, past)
            x = self.norm(x, self.w) if last else x
            if cache is not None:
                cache["length"] += T
            return x @ self.w["table"].T

        def norm(self, x, p, i=""):
            return F.layer_norm(x, x.shape[-1:], p[f"gain{i}"], p[f"offset{i}"])

        def block(self, x, p, kept, past):
            a, b = gains
            if norms == "post":
                x = self.norm(x + self.look(x, p, kept, past), p, a)
                return self.norm(x + self.think(x, p), p, b)
            y = self.norm(x, p, a)
            found = self.look(y, p, kept, past)
            x = found if norms == "no sum" else (y if norms == "with norm" else x) + found
            y = self.norm(x, p, b)
            found = self.think(y, p)
            return found if norms == "no sum" else (y if norms == "with norm" else x) + found

        def look(self, x, p, kept, past):
            rows = x @ p["in_proj_weight"].T + p["in_proj_bias"]
            if by_head:
                q, k, v = rows.unflatten(2, (self.H, -1)).transpose(1, 2).chunk(3, -1)
            else:
                q, k, v = (part.unflatten(2, (self.H, -1)).transpose(1, 2) for part in rows.chunk(3, -1))
            if order == "kqv":
                q, k = k, q
            T = x.shape[1]
            if kept is not None:
                store, i = kept
                if i in store and piece == "joined":
                    k, v = (torch.cat(pair, 2) for pair in zip(store[i], (k, v), strict=True))
                store[i] = k, v
            S = k.shape[2]
            scores = q @ k.mT / {"K": q.shape[-1], "D": x.shape[2], "1": 1}[score] ** 0.5
            seen = torch.ones(T, S).tril(0 if corner == "top left" else S - T) > 0
            if corner == "one right" or (corner == "one right later" and past):
                seen = torch.ones(T, S).tril(S - T + 1) > 0
            if mask == "none" or (mask == "prompt" and past) or (mask == "no cache" and kept is not None):
                seen = torch.ones(T, S) > 0
            if not itself and past:
                seen = torch.ones(T, S).tril(S - T - 1) > 0
            if mask == "weights":
                weights = scores.softmax(-1) * seen
            else:
                weights = scores.masked_fill(~seen, fill).softmax(columns)
            if drop:
                weights = F.dropout(weights, drop)
            found = weights @ v
            found = found.transpose(1, 2).flatten(2) if merge else found.reshape(x.shape)
            return found @ (p["out_weight"] if turned else p["out_weight"].T) + p["out_bias"]

        def think(self, x, p):
            hidden = x @ p["weight1"].T + p["bias1"]
            kinds = {"tanh": lambda h: F.gelu(h, approximate="tanh"), "exact": F.gelu, "relu": F.relu, "silu": F.silu}
            return kinds[activation](hidden) @ p["weight2"].T + p["bias2"]

        def probabilities(self, logits, temperature, p):
            z = logits / temperature
            if tilt == "times":
                z = logits * temperature
            elif tilt == "none":
                z = logits
            probs = (logits.softmax(-1) / temperature).softmax(-1) if tilt == "after" else z.softmax(-1)
            if tilt == "uncut":
                return probs
            if tilt == "cut first":
                kept = nucleus(right)(logits.softmax(-1), p) > 0
                return z.masked_fill(~kept, -math.inf).softmax(-1)
            if tilt == "top-k":
                return nucleus(share_of_tokens)(probs, p)
            return nucleus(right, normalise=sums)(probs, p)

        def write(self, prompt, max_new_tokens, temperature, p, choose):
            cache, unread, new = self.start(), list(prompt), []
            if hot:
                temperature = 0.8 if hot is True else hot
            for _ in range(max_new_tokens + more):
                if not cached:
                    cache, unread = None, [*prompt, *new]
                if twice:
                    cache, unread = None, [*prompt, *new, ([*prompt, *new])[-1]]
                if not feed:
                    cache, unread = None, prompt
                z = self.logits(torch.tensor([unread]), cache)[:, newest]
                new.append(choose(z if gives == "logits" else self.probabilities(z, temperature, p)))
                unread = new[-1:]
            return kind([*prompt, *new] if keep_prompt else new)

    return OwnGPT


TEMPERATURE = [math.e / (math.e + 2), math.e**2 / (math.e**2 + 2), 0.5, 1 / 3, 1 / math.log(3)]
TOKENS = 20 * 774e6
OPERATIONS = 6 * 774e6 * TOKENS
DAYS = OPERATIONS / (8 * 0.4 * 4e14) / 86400
CACHE = 2 * 36 * 32 * 1024 * 1280 * 2 / 1e9


def numbers(right, **changes):
    """The right numbers, some replaced: `numbers(RIGHT, _1=0.5)`."""
    return tuple(changes.get(f"_{i}", value) for i, value in enumerate(right))


def temperature(**changes):
    return numbers(TEMPERATURE, **changes)


def run(**changes):
    return numbers([TOKENS, OPERATIONS, DAYS, CACHE], **changes)


PLANTED = {
    "tied_gradient": [
        ("of the output layer alone", tied(embedding=0)),
        ("of the embedding alone", tied(output=0)),
        ("only its last look-up counts", tied(assign=True)),
        ("averaged", tied(scale=0.5)),
        ("gradient of the sum", tied(scale=4.0)),
        ("divided by V", tied(scale=4 / 5)),
        ("the part of the output layer is not divided by T", tied(output=4.0)),
        ("the part of the embedding is not divided by T", tied(embedding=4.0)),
        ("sign is turned", tied(scale=-1.0)),
        ("one-hot of the targets is missing", tied(one_hot=False)),
        ("at the targets' rows", tied(at="targets")),
        (
            "row 4 of the gradient is wrong",
            lambda table, *_: tied()(table, *_) + torch.tensor([0, 0, 0, 0, 9.0])[:, None],
        ),
        ("has shape (3, 5)", lambda *inputs: tied()(*inputs).T),
        ("is a tuple", lambda *inputs: (tied()(*inputs), tied()(*inputs))),
        ("torch differentiates for you", by_autograd),
    ],
    "temperature_numbers": [
        ("(a)", temperature(_0=0.5)),
        ("(a) 57.61 is in percent", [100 * value for value in TEMPERATURE[:4]] + TEMPERATURE[4:]),
        ("(d) 33.3 is in percent", temperature(_3=33.3)),
        ("(b) is as (a)", temperature(_1=TEMPERATURE[0])),
        ("multiplied by the temperature", temperature(_1=math.sqrt(math.e) / (math.sqrt(math.e) + 2))),
        ("(b) 0.9", temperature(_1=0.9)),
        ("in the limit they share", temperature(_2=1.0)),
        ("only the largest logits keep", temperature(_2=0.4)),
        ("add up to 1 at every temperature", temperature(_3=0)),
        ("none is preferred", temperature(_3=0.2)),
        ("1 / temperature", temperature(_4=math.log(3))),
        ("in its exponent", temperature(_4=1 / 3)),
        ("(e) 0.5", temperature(_4=0.5)),
        ("expected 5 numbers", (0.1, 0.2)),
        ("got float", 0.5),
    ],
    "top_p": [
        ("nothing is left", nucleus(below)),
        ("only a row's first is saved", nucleus(below_but_first)),
        ("one token too many", nucleus(one_more)),
        ("do not add up to 1", nucleus(right, normalise=False)),
        ("least likely tokens", nucleus(right, descending=False)),
        ("sorted order", nucleus(right, back=False)),
        ("same tokens are kept in every row", one_set),
        ("which is top-k", nucleus(share_of_tokens)),
        ("for 1 - p", lambda probs, p: nucleus(right)(probs, 1 - p)),
        ("a softmax over the new probabilities", lambda *row: nucleus(right, normalise=False)(*row).softmax(-1)),
        ("after the division by the sum comes a softmax", lambda *row: nucleus(right)(*row).softmax(-1)),
        ("nearer to one another", softmax_of_the_kept),
        ("tokens are left; the smallest set", by_threshold),
        ("wrong tokens: put each back at its own token", gathered),
        ("not the likeliest", any_as_many),
        ("nan in 2 of the 3 rows (row 0 first)", zero_over_zero),
        ("reach p exactly, one token too many", nucleus(reached_and_one)),
        ("a threshold cannot tell equals apart", from_smallest),
        ("the first and one of the others should stay", without_equals),
        ("as many as the row with the largest nucleus", as_the_widest),
        ("compared with 1 - p by itself", above_the_rest),
        ("changed their ratios", flattened),
        ("has shape (7,)", lambda probs, p: nucleus(right)(probs, p)[0]),
        ("with p = 1", lambda probs, p: nucleus(right)(probs, min(p, 0.9))),
        ("ready-made top_k_top_p", by_library),
    ],
    "cached_step": [
        ("does not see itself: with", step(last=0)),
        ("both mistakes", step(last=0, position=-1)),
        ("an unfilled row is read", step(last=2)),
        ("one too small", step(position=-1)),
        ("one too large", step(position=1)),
        ("unwritten rows", step(all_rows=True)),
        ("whatever they hold", where_written),
        ("first key is left out", step(first=1)),
        ("sqrt(D)", step(scale=False)),
        ("runs over the texts of the batch", step(over=0)),
        ("one row too late", step(write=1)),
        ("position is not added", step(add=False)),
        ("position of the first", first_position),
        ("cache.length is [0, 0, 0, 0]", step(advance=0)),
        ("beyond its length were written", two_rows),
        ("cache.keys, after 4 tokens, has shape (2, 4, 3)", grown),
        ("rows of cache.keys do not hold", elsewhere),
        ("has shape (2, 1, 3)", lambda *inputs: step()(*inputs)[:, None]),
    ],
    "training_memory": [
        ("counted twice", memory(table=2)),
        ("token table is missing", memory(table=0)),
        ("position table is missing", memory(L=0)),
        ("biases are missing", memory(bias=0)),
        ("norms of the layers are missing", memory(norm=0)),
        ("last norm is missing", memory(last=0)),
        ("matrices alone", memory(bias=0, norm=0, last=0)),
        ("biases of queries, keys and values", memory(bias=6)),
        ("are too few", memory(norm=3)),
        ("are too many", memory(norm=6)),
        ("the weights alone", memory(each=4)),
        ("two of the four", memory(each=8)),
        ("one of the four", memory(each=12)),
        ("bits", memory(each=128)),
        ("20 bytes a parameter", memory(each=20)),
        ("expected a tuple", lambda V, L, D, N: memory()(V, L, D, N)[1]),
        ("parameters is a float; wanted two int", lambda *sizes: tuple(map(float, memory()(*sizes)))),
        ("a model was built", by_building),
    ],
    "training_run": [
        ("20 tokens for each parameter", run(_0=774e6)),
        ("tokens: 1e+10", run(_0=1e10)),
        ("forward pass alone", run(_1=OPERATIONS / 3)),
        ("backward pass alone", run(_1=OPERATIONS * 2 / 3)),
        ("6 P^2", run(_1=6 * 774e6**2)),
        ("FLOPs: 1e+20", run(_1=1e20)),
        ("one GPU", run(_2=8 * DAYS)),
        ("at the peak", run(_2=0.4 * DAYS)),
        ("makes a slow program fast", run(_2=OPERATIONS / 8 / 4e14 * 0.4 / 86400)),
        ("hours", run(_2=24 * DAYS)),
        ("seconds", run(_2=86400 * DAYS)),
        ("days: 3", run(_2=3)),
        ("both kept", run(_3=CACHE / 2)),
        ("twice too many", run(_3=2 * CACHE)),
        ("every one of the 36 layers", run(_3=CACHE / 36)),
        ("times the heads", run(_3=20 * CACHE)),
        ("one head's share", run(_3=CACHE / 20)),
        ("one text", run(_3=CACHE / 32)),
        ("these are GiB", run(_3=CACHE * 1e9 / 2**30)),
        ("gigabytes: 7", run(_3=7)),
        ("expected 4 numbers", (1, 2, 3)),
    ],
    "own_gpt": [
        ("causal mask is missing", own(mask="none")),
        ("each position sees one token after it", own(corner="one right")),
        ("a call with several sees the one after it", own(corner="one right later")),
        ("no longer add up to 1", own(mask="weights")),
        ("exp(0) is 1", own(fill=0.0)),
        ("runs over the queries", own(columns=-2)),
        ("positions are not added", own(place=math.nan)),
        ("positions begin at 1", own(place=1)),
        ("multiplied by sqrt(D)", own(root=True)),
        ("are not divided by sqrt(K)", own(score="1")),
        ("divided by sqrt(D)", own(score="D")),
        ("queries and keys are exchanged", own(order="kqv")),
        ("cut into heads first", own(by_head=True)),
        ("merged in the wrong order", own(merge=False)),
        ("out_weight is used transposed", own(turned=True)),
        ("Post-LN", own(norms="post")),
        ("added to the normalised vectors", own(norms="with norm")),
        ("replace the stream", own(norms="no sum")),
        ("have changed places", own(gains=(2, 1))),
        ("the last norm", own(last=False)),
        ("the activation is ReLU", own(activation="relu")),
        ("the GELU is the exact one", own(activation="exact")),
        ("shapes are right, numbers are not", own(activation="silu")),
        ("only the first block", own(blocks=lambda layers: layers[:1])),
        ("used again and again", own(blocks=lambda layers: layers[:1] * len(layers))),
        ("blocks are used in the wrong order", own(blocks=lambda layers: layers[::-1])),
        ("is dropout at work", own(drop=0.5)),
        ("remembers the first", own(remember=True)),
        ("holds nan", own(score="K", fill=math.nan)),
        ("right for 2 heads and 2 blocks", own(blocks=lambda layers: layers[:2])),
        ("start: it gives None", own(empty=False)),
        ("every piece of the text begins at position 0", own(at="0")),
        ("with a cache, positions are one too large", own(at="one on")),
        ("with a cache, positions are one too small", own(at="one back")),
        ("only the tokens of their own call", own(piece="alone")),
        ("columns 0 to t", own(corner="top left")),
        ("lets them see each other's future: they", own(mask="prompt")),
        ("see each other's future, the prompt too", own(mask="no cache")),
        ("does not see itself", own(itself=False)),
        ("all blocks share one cache", own(shared=True)),
        ("does start give a new, empty cache", own(one_cache=True)),
        ("nothing is cut", own(tilt="uncut")),
        ("the temperature is not used", own(tilt="none")),
        ("multiplied by the temperature", own(tilt="times")),
        ("divides probabilities", own(tilt="after")),
        ("the cut comes before the temperature", own(tilt="cut first")),
        ("do not add up to 1: divide", own(sums=False)),
        ("Compare with section 6", own(tilt="top-k")),
        ("the prompt stands in front", own(keep_prompt=True)),
        ("one token more than", own(more=1)),
        ("the last token is missing", own(more=-1)),
        ("all tokens are read again", own(cached=False)),
        ("choose gets logits", own(gives="logits")),
        ("prompt's first position are taken", own(newest=0)),
        ("logits of the first position are taken", own(newest=0, cached=False)),
        ("the last token is read twice", own(twice=True)),
        ("the prompt is read again and again", own(feed=False)),
        ("wanted a list of ids, got a str", own(kind=str)),
        ("is a temperature or a p written in your code", own(hot=True)),
        ("the temperature that was given is not used", own(hot=1.0)),
        ("are temperature and p those that were given", own(hot=0.5)),
    ],
}
FUNCTIONS = {
    "tied_gradient": (lambda table, ids, targets: table, lambda table, ids, targets: torch.zeros_like(table)),
    "top_p": (lambda probs, p: probs, lambda probs, p: torch.zeros_like(probs)),
    "cached_step": (lambda x, *_: x, lambda x, *_: torch.zeros_like(x)),
    "training_memory": (lambda V, L, D, N: (V, L), lambda V, L, D, N: (0, 0)),
    "temperature_numbers": ((2, 1, 1, 3, 3), (0, 0, 0, 0, 0)),
    "training_run": ((774e6, 8, 0.4, 32), (0, 0, 0, 0)),
    "own_gpt": (lambda weights, num_heads: weights, lambda weights, num_heads: 0),
}  # for each what gives back its input, and what gives zeros


@pytest.mark.parametrize("name", NAMES)
def test_reference_passes(name):
    """Fails when the solution in the notebook is wrong, or its check rejects it."""
    assert verdict(getattr(ch13, name), solution("13", CLASSES.get(name, name))) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: logits, loops, the planted skeletons."""
    assert verdict(ch13.tied_gradient, tied()) == "passed: tied_gradient"
    for answer in (by_log_softmax, by_loop, last_of_equals):
        assert verdict(ch13.top_p, answer) == "passed: top_p"
    assert verdict(ch13.top_p, nucleus(right)) == "passed: top_p"
    assert verdict(ch13.cached_step, step()) == "passed: cached_step"
    assert verdict(ch13.training_memory, memory()) == "passed: training_memory"
    assert verdict(ch13.temperature_numbers, tuple(TEMPERATURE)) == "passed: temperature_numbers"
    assert verdict(ch13.training_run, run()) == "passed: training_run"
    assert verdict(ch13.own_gpt, own()) == "passed: own_gpt"
    assert verdict(ch13.own_gpt, own(kind=tuple)) == "passed: own_gpt"
    assert verdict(ch13.own_gpt, own(kind=torch.tensor)) == "passed: own_gpt"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    """Fails when a usual mistake passes, or is called something else."""
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch13, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


def test_autograd_is_refused_in_every_form():
    """Fails when a gradient by `torch.func` passes where one by `backward` does not."""
    assert "torch differentiates for you" in verdict(ch13.tied_gradient, by_func)


def test_the_wanted_number_of_parameters_is_not_told():
    """Fails when a diagnosis prints the total."""
    assert "124,439,808" not in verdict(ch13.training_memory, memory(norm=3))


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    """Fails when two different mistakes get one diagnosis."""
    messages = [verdict(getattr(ch13, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("which", [0, 1], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", NAMES)
def test_the_laziest_answers_fail(name, which):
    """Fails when an answer that does nothing passes, or the check stumbles over it."""
    message = verdict(getattr(ch13, name), FUNCTIONS[name][which])
    assert message.startswith("not yet: ")
    assert "could not be examined" not in message


@pytest.mark.parametrize("name", NAMES)
def test_untouched_is_not_attempted(name):
    """Fails when an exercise that nobody has touched is called wrong."""
    assert verdict(getattr(ch13, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("logits", "not attempted yet: own_gpt"),
        ("start", "not yet: right so far: logits without a cache; next: start, and logits with a cache"),
        ("probabilities", "not yet: right so far: start, and logits with a cache; next: probabilities"),
        ("write", "not yet: right so far: probabilities; next: write"),
    ],
)
def test_a_gpt_half_written_hears_how_far_it_is_right(missing, message):
    """Fails when a right beginning is called not attempted."""

    def unwritten(*_):
        raise NotImplementedError

    class Half(own()):
        pass

    setattr(Half, missing, unwritten)
    assert verdict(ch13.own_gpt, Half) == message


@pytest.mark.parametrize("name", NAMES)
def test_messages_do_not_show_the_solution(name):
    """Fails when a diagnosis holds a line of the reference."""
    messages = " ".join(verdict(getattr(ch13, name), wrong) for _, wrong in PLANTED[name])
    for line in (
        "index_add",
        "cumsum",
        "scatter",
        "sort(",
        "cache.keys[",
        "12 * D",
        "12 D^2",
        "e / (e",
        "86400",
        "tril(",
        "cat([",
    ):
        assert line not in messages


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch13.how_to_draw.hint(number)
    ch13.how_to_draw.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch13.how_to_draw.compare("word " * 20)
    assert "calculation" in capsys.readouterr().out


def test_the_reference_is_the_library_s_gpt():
    """Fails if the exercise's GPT is another one than chapter 13's, so that the shipped weights would not fit it."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(11, 9, 12, 2, 3, dropout=0.0)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    weights, ids = pretrained.weights_by_layer(model), torch.randint(11, (2, 9))
    assert torch.allclose(ch13._own_logits(weights, 3, ids), model(ids), atol=1e-10)


def test_a_model_on_other_weights_is_not_taken_for_the_trained_one():
    """Fails if the trained weights play no part in the check: an answer that is right in float64 alone passes."""
    right_one = own()

    class Double(right_one):
        def logits(self, ids, cache=None):
            found = super().logits(ids, cache)
            return found if found.dtype == torch.float64 else found * 1.1

    class Rounds(right_one):
        def write(self, prompt, max_new_tokens, temperature, p, choose):
            new = super().write(prompt, max_new_tokens, temperature, p, choose)
            return new if self.w["table"].dtype == torch.float64 else new[::-1]

    assert "the logits are not those of the library" in verdict(ch13.own_gpt, Double)
    assert "with the trained weights the text is" in verdict(ch13.own_gpt, Rounds)
