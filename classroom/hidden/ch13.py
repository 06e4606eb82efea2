"""Hidden tests of chapter 13: a tied table by autograd, top-p over all subsets, a cache against all tokens at once.

The whole GPT is compared with torch's own layers, which read the whole text for every token.
"""

import functools
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
    equals = torch.tensor([draw.sample([1 / 2, 1 / 4, 1 / 4], 3)], dtype=torch.float64)
    return [*((probs, p) for p in shares), (halves, 0.5), (halves, 0.75)], equals


def probe_top_p(answer, questions, equals):
    """Of two equals either may stay: so only what is left is compared, not where."""
    left = sorted(answer(equals, 0.6).tolist()[0], reverse=True)
    return [*(answer(probs, p) for probs, p in questions), left]


def right_top_p(questions, equals):
    return [
        *(torch.stack([fewest(row, p) for row in probs]) for probs, p in questions),
        sorted(fewest(equals[0], 0.6).tolist(), reverse=True),
    ]


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

    cache, found = SimpleNamespace(keys=kept[0], values=kept[1], length=before), []
    for t in range(before, x.shape[1]):
        output = answer(x[:, t], cache, lambda z: tuple(z @ weight for weight in weights), table)
        found.append([output, cache.length])
    return [found, cache.keys, cache.values]


def right_cached_step(x, table, weights, kept, before):
    T = x.shape[1]
    q, k, v = ((x + table[:T]) @ weight for weight in weights)
    outputs = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    keys, values = (torch.cat([new, old[:, T:]], 1) for new, old in zip((k, v), kept, strict=True))
    return [[[outputs[:, t], t + 1] for t in range(before, T)], keys, values]


def draw_training_memory(draw):
    V, L, D = draw.sizes(3, low=5, high=60)
    return V, L, D, draw.randint(1, 5)


def probe_training_memory(answer, V, L, D, N):
    """Both numbers, and whether they are int."""
    from numbers import Integral

    parameters, held = answer(V, L, D, N)
    return parameters, held, isinstance(parameters, Integral) and isinstance(held, Integral)


def right_training_memory(V, L, D, N):
    layers = [nn.TransformerEncoderLayer(D, 1, 4 * D) for _ in range(N)]
    model = nn.ModuleList([nn.Embedding(V, D), nn.Embedding(L, D), *layers, nn.LayerNorm(D)])
    weights = list(model.parameters())
    held = [torch.empty_like(w) for w in weights for _ in ("gradient", "first moment", "second moment")] + weights
    return sum(w.numel() for w in weights), sum(tensor.nbytes for tensor in held), True


def right_training_run():
    parameters, seconds_a_day = 774 * 10**6, 24 * 60 * 60
    tokens = parameters * 20
    forward, backward = 2 * parameters * tokens, 4 * parameters * tokens
    a_day = sum(int(4e14) * 4 // 10 * seconds_a_day for _ in range(8))
    cache = torch.empty(36, 2, 32, 20, 1024, 1280 // 20, dtype=torch.bfloat16, device="meta")
    return tokens, forward + backward, (forward + backward) / a_day, math.prod(cache.shape) * cache.itemsize / 1e9


# --- 13.8 -----------------------------------------------------------------------

NAMES = {  # of torch's layer, and what the exercise calls them
    "self_attn.in_proj_weight": "in_proj_weight", "self_attn.in_proj_bias": "in_proj_bias",
    "self_attn.out_proj.weight": "out_weight", "self_attn.out_proj.bias": "out_bias",
    "linear1.weight": "weight1", "linear1.bias": "bias1", "linear2.weight": "weight2", "linear2.bias": "bias2",
    "norm1.weight": "gain1", "norm1.bias": "offset1", "norm2.weight": "gain2", "norm2.bias": "offset2",
}  # fmt: skip


def _block(D, H, width):
    """torch's layer in GPT's form, in float64."""
    gelu = functools.partial(nn.functional.gelu, approximate="tanh")
    options = {"dropout": 0.0, "activation": gelu, "batch_first": True, "norm_first": True}
    return nn.TransformerEncoderLayer(D, H, width, **options).double()


def draw_own_gpt(draw):
    """Other sizes, numbers of heads and blocks; pieces of other lengths; a prompt and the draws after it."""
    H, K, width, N = draw.sizes(4, low=1, high=6)
    D, V, T = H * K, draw.randint(5, 12), draw.randint(4, 8)
    prompt, new = draw.ids(V, draw.randint(1, 6)).tolist(), draw.randint(2, 6)
    L = max(T, len(prompt) + new) + draw.randint(0, 2)
    state = _block(D, H, width).state_dict()
    weights = {"table": draw.normal(V, D), "positions": draw.normal(L, D), "gain": 1 + 0.5 * draw.normal(D)}
    weights["offset"] = draw.normal(D)
    weights["blocks"] = [
        {ours: draw.normal(*state[theirs].shape) * 0.6 + ("gain" in ours) for theirs, ours in NAMES.items()}
        for _ in range(min(N, 3))
    ]
    pieces, rest = [], T
    while rest:
        pieces.append(draw.randint(1, min(rest, 3)))
        rest -= pieces[-1]
    return weights, H, draw.ids(V, 2, T), pieces, prompt, draw.share(new), draw.uniform(0.5, 1.5), draw.uniform(0.3, 1)


def probe_own_gpt(answer, weights, num_heads, ids, pieces, prompt, shares, temperature, p):
    """Logits at once and in pieces, a text and what its tokens were drawn from; twice, with one model."""
    import torch

    model, asked = answer(weights, num_heads), []
    with torch.no_grad():
        cache = model.start()
        parts = torch.cat([model.logits(piece, cache) for piece in ids.split(pieces, 1)], 1)

        def write():
            left = iter(shares.tolist())

            def choose(probs):
                asked.append(probs)
                return int((probs.cumsum(-1)[0] < next(left)).sum().clamp(max=probs.shape[1] - 1))

            return [int(token) for token in model.write(list(prompt), len(shares), temperature, p, choose)]

        return model.logits(ids), parts, write(), write(), torch.cat(asked)


def right_own_gpt(weights, num_heads, ids, pieces, prompt, shares, temperature, p):
    V, D = weights["table"].shape
    blocks = []
    for each in weights["blocks"]:
        blocks.append(_block(D, num_heads, len(each["bias1"])))
        blocks[-1].load_state_dict({theirs: each[ours] for theirs, ours in NAMES.items()})

    def logits(ids):
        T = ids.shape[1]
        x = nn.functional.embedding(ids, weights["table"]) + weights["positions"][:T]
        for block in blocks:
            x = block(x, src_mask=torch.ones(T, T).triu(1).bool())
        x = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
        return (x * weights["gain"] + weights["offset"]) @ weights["table"].T

    with torch.no_grad():
        text, asked = list(prompt), []
        for share in shares.tolist():
            probs = fewest((logits(torch.tensor([text]))[0, -1] / temperature).softmax(-1), p)
            asked.append(probs)
            text.append(int((probs.cumsum(0) < share).sum().clamp(max=V - 1)))
        new = text[len(prompt) :]
        return logits(ids), logits(ids), new, new, torch.stack(asked + asked)


TESTS = [
    Hidden("ex13-1-tied-gradient-check", "tied_gradient", draw_tied_gradient, right_tied_gradient,
           without=BY_AUTOGRAD),
    on_paper("ex13-2-temperature-check", "temperature_numbers", right_temperature),
    Hidden("ex13-3-top-p-check", "top_p", draw_top_p, right_top_p, probe_top_p,
           without=("top_k_top_p",)),
    Hidden("ex13-5-cached-step-check", "cached_step", draw_cached_step, right_cached_step, probe_cached_step),
    Hidden("ex13-6-training-memory-check", "training_memory", draw_training_memory, right_training_memory,
           probe_training_memory, without=(*BY_BUILDING, "GPT", "GPTConfig")),
    on_paper("ex13-7-training-run-check", "training_run", right_training_run),
    Hidden(
        "ex13-8-own-gpt-check", "OwnGPT", draw_own_gpt, right_own_gpt, probe_own_gpt,
        without=(
            "GPT", "Block", "PlainGPT", "CausalAttention", "TransformerEncoder", "TransformerEncoderLayer",
            "TransformerDecoderLayer", "MultiheadAttention", "MultiHeadAttention", "multi_head_attention_forward",
        ),
    ),
]  # fmt: skip
