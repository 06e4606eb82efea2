"""Hidden tests of chapter 13: a tied table by autograd, top-p over all subsets, a cache against all tokens at once."""

import itertools
import math

import torch
from torch import nn

from classroom.hidden import Hidden, on_paper
from classroom.own_code import BY_AUTOGRAD, BY_BUILDING


def draw_tied_gradient(draw):
    """Mostly several tokens, the first of them twice."""
    V, D, T = draw.sizes(3, high=8)
    T = draw.choice((1, T, T, T))
    ids = draw.ids(V, T)
    ids[-1] = ids[0]
    return draw.normal(V, D), ids, draw.ids(V, T)


def right_tied_gradient(table, ids, targets):
    table = table.requires_grad_()
    loss = nn.functional.cross_entropy(table[ids] @ table.T, targets)
    return torch.autograd.grad(loss, table)[0]


def right_temperature():
    def probabilities(logits, temperature):
        return (torch.tensor(logits, dtype=torch.float64) / temperature).softmax(-1).tolist()

    low, high = 0.01, 100.0  # the temperature of (e), by bisection
    while high - low > 1e-9:
        middle = (low + high) / 2
        first, second, _ = probabilities([2, 1, 1], middle)
        low, high = (middle, high) if first > 3 * second else (low, middle)
    return (
        probabilities([2, 1, 1], 1)[0], probabilities([2, 1, 1], 0.5)[0], probabilities([2, 2, 1], 1e-3)[0],
        probabilities([2, 2, 1], 1e6)[0], low,
    )  # fmt: skip


def draw_top_p(draw):
    """A row where one token is enough, one where all others are 0; halves of halves, whose sums just reach p."""
    B, V = draw.sizes(2, low=3, high=8)
    logits = 1.5 * draw.normal(B, V)
    logits[0, draw.randrange(V)] += 6
    logits[1] = float("-inf")
    logits[1, draw.randrange(V)] = 0.0
    probs = logits.softmax(-1)
    sums = probs.sort(-1, descending=True).values.cumsum(-1)
    free = [p for p in torch.arange(0.02, 0.99, 0.005).tolist() if (sums - p).abs().min() > 1e-3]
    halves = torch.tensor([draw.sample([1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 16], 5)], dtype=torch.float64)
    shares = [1.0, free[-1], free[0], *draw.sample(free, 3)]
    return ([*((probs, p) for p in shares), (halves, 0.5), (halves, 0.75)],)


def probe_top_p(answer, questions):
    return [answer(probs, p) for probs, p in questions]


def right_top_p(questions):
    return [torch.stack([fewest(row, p) for row in probs]) for probs, p in questions]


def fewest(row, p):
    """Of all sets of tokens that reach p the smallest; of these the likeliest."""
    sets = (s for n in range(1, len(row) + 1) for s in itertools.combinations(range(len(row)), n))
    likely = row.tolist()
    reaching = [s for s in sets if sum(likely[v] for v in s) > p - 1e-9]
    kept = list(min(reaching, key=lambda s: (len(s), -sum(likely[v] for v in s))))
    return torch.zeros_like(row).index_copy(0, torch.tensor(kept), row[kept] / row[kept].sum())


def draw_cached_step(draw):
    """The cache may hold tokens already; what lies beyond its length is anything. It may become full."""
    B, D, L = draw.sizes(3, low=3)
    before = draw.choice((0, draw.randint(1, L - 2)))
    T = draw.randint(before + 2, L)
    x, table, weights = draw.normal(B, T, D), draw.normal(L, D), draw.normal(3, D, D)
    kept = draw.normal(2, B, L, D)
    for rows, weight in zip(kept, weights[1:], strict=True):
        rows[:, :before] = (x + table[:T])[:, :before] @ weight
    return x, table, weights, kept, before


def probe_cached_step(answer, x, table, weights, kept, before):
    from types import SimpleNamespace

    import torch

    cache, found = SimpleNamespace(keys=kept[0], values=kept[1], length=before), []
    for t in range(before, x.shape[1]):
        output = answer(x[:, t], cache, lambda z: tuple(z @ weight for weight in weights), table)
        found.append([output, cache.length])
    # rows beyond the last token may be cut off, but not written
    rows = zip((cache.keys, cache.values), kept, strict=True)
    return [found, *(torch.cat([new, old[:, new.shape[1] :]], 1) for new, old in rows)]


def right_cached_step(x, table, weights, kept, before):
    T = x.shape[1]
    q, k, v = ((x + table[:T]) @ weight for weight in weights)
    outputs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    keys, values = (torch.cat([new, old[:, T:]], 1) for new, old in zip((k, v), kept, strict=True))
    return [[[outputs[:, t], t + 1] for t in range(before, T)], keys, values]


def draw_training_memory(draw):
    V, L, D = draw.sizes(3, low=5, high=60)
    return V, L, D, draw.randint(1, 5)


def right_training_memory(V, L, D, N):
    layers = [nn.TransformerEncoderLayer(D, 1, 4 * D) for _ in range(N)]
    model = nn.ModuleList([nn.Embedding(V, D), nn.Embedding(L, D), *layers, nn.LayerNorm(D)])
    weights = list(model.parameters())
    held = [torch.empty_like(w) for w in weights for _ in ("gradient", "first moment", "second moment")] + weights
    return sum(w.numel() for w in weights), sum(tensor.nbytes for tensor in held)


def right_training_run():
    parameters, seconds_a_day = 774 * 10**6, 24 * 60 * 60
    tokens = parameters * 20
    forward, backward = 2 * parameters * tokens, 4 * parameters * tokens
    a_day = sum(int(4e14) * 4 // 10 * seconds_a_day for _ in range(8))
    cache = torch.empty(36, 2, 32, 20, 1024, 1280 // 20, dtype=torch.bfloat16, device="meta")
    return tokens, forward + backward, (forward + backward) / a_day, math.prod(cache.shape) * cache.itemsize / 1e9


TESTS = [
    Hidden("ex13-1-tied-gradient-check", "tied_gradient", draw_tied_gradient, right_tied_gradient,
           without=BY_AUTOGRAD),
    on_paper("ex13-2-temperature-check", "temperature_numbers", right_temperature),
    Hidden("ex13-3-top-p-check", "top_p", draw_top_p, right_top_p, probe_top_p,
           without=("top_k_top_p",)),
    Hidden("ex13-5-cached-step-check", "cached_step", draw_cached_step, right_cached_step, probe_cached_step),
    Hidden("ex13-6-training-memory-check", "training_memory", draw_training_memory, right_training_memory,
           without=(*BY_BUILDING, "GPT", "GPTConfig")),
    on_paper("ex13-7-training-run-check", "training_run", right_training_run),
]  # fmt: skip
