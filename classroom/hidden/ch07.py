"""Hidden tests of chapter 07: attention query by query, heads entry by entry, shapes from torch's own layer."""

import collections
import itertools
import math

import torch
from torch import nn

from classroom.hidden import Hidden, agree, on_paper, to_three_digits
from course_lib.exercises import Wrong, expect_number

# --- 7.1 ------------------------------------------------------------------------


def right_numbers_by_hand():
    """The softmax by torch, the length by bisection, the variance by counting all cases, the slope by autograd."""
    keys = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]], dtype=torch.float64)

    def weights(*query):
        return (keys @ torch.tensor(query, dtype=torch.float64) / math.sqrt(3)).softmax(0)

    low, high = 0.0, 5.0
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (low, middle) if weights(0, middle, 0)[1] > 0.9 else (middle, high)
    sums = collections.Counter({0.0: 1.0})  # of products of +-0.5 and +-3, whose variances are 0.25 and 9
    for _ in range(16):
        longer = collections.Counter()
        for (total, share), q, k in itertools.product(sums.items(), (-0.5, 0.5), (-3, 3)):
            longer[total + q * k] += share / 4
        sums = longer
    scores = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64).log().requires_grad_()
    (slope,) = torch.autograd.grad(scores.softmax(0)[0], scores)
    return weights(0, 0, 0.3)[2].item(), low, sum(s * total**2 for total, s in sums.items()), slope[1].item()


def judge_numbers_by_hand(got, wanted):
    """As a tuple, or by name."""
    if isinstance(got, dict):
        names = ("weight", "length", "variance", "slope")
        if not got.keys() >= set(names):
            raise Wrong(f"wanted {', '.join(names)}")
        got = [got[name] for name in names]
    to_three_digits(got, wanted)
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    for mine, theirs in zip(map(float, got), wanted, strict=True):  # the check wants the third digit, too
        off = 0 if mine == torch.tensor(theirs).bfloat16().item() else abs(mine - theirs)
        if off > 0.6 * 10.0 ** (math.floor(math.log10(abs(theirs))) - 2):
            raise Wrong(f"got {mine}, wanted {theirs:.3g}")


# --- 7.2 ------------------------------------------------------------------------


def draw_dot_product_attention(draw):
    """Calls with fewer, as many and more queries than keys; masks of every shape, empty rows, large scores."""
    calls = {}
    few, many, K, E = draw.sizes(4)
    few, many = sorted((few, many))
    for T, S in ((few, many), (many, few), (many, many)):
        lead = draw.choice(((), (2,), (2, 3), (3, 1, 2)))
        q, k, v = draw.normal(*lead, T, K), draw.normal(*lead, S, K), draw.normal(*lead, S, E)
        whole = draw.share(*lead, T, S) < 0.6
        whole[..., draw.randrange(T), :] = False
        shapes = [(S,), (T, S), (1, S), (T, 1), (*lead[:-1], *[1] * bool(lead), T, S)]
        masks = [None, *(draw.share(*shape) < 0.6 for shape in draw.sample(shapes, 2)), whole]
        for mask, causal in itertools.product(masks, (False, True)):
            of_mask = "no mask" if mask is None else f"a mask {tuple(mask.shape)}"
            calls[f"q {tuple(q.shape)}, S = {S}, {of_mask}, causal={causal}"] = (q, k, v, mask, causal)
        calls[f"q {tuple(q.shape)}, S = {S}, scores in the ten thousands"] = (200 * q, 200 * k, v, whole, False)
    return (calls,)


def probe_dot_product_attention(answer, calls):
    return {name: answer(q, k, v, mask=mask, causal=causal) for name, (q, k, v, mask, causal) in calls.items()}


def right_dot_product_attention(calls):
    return {name: _attended(*call) for name, call in calls.items()}


def _attended(q, k, v, mask, causal):
    """Query by query, over the keys that it may see."""
    T, S = q.shape[-2], k.shape[-2]
    seen = torch.ones(*q.shape[:-1], S, dtype=torch.bool)
    seen = seen if mask is None else mask.expand_as(seen)
    out = q.new_zeros(*q.shape[:-1], v.shape[-1])
    for *lead, t in itertools.product(*map(range, q.shape[:-1])):
        keys, values, query = k[*lead], v[*lead], q[*lead, t]
        visible = [s for s in range(S) if seen[*lead, t, s] and not (causal and s > S - T + t)]
        if visible:
            weights = torch.softmax(keys[visible].mv(query) / math.sqrt(len(query)), 0)
            out[*lead, t] = weights @ values[visible]
    return out


# --- 7.3 ------------------------------------------------------------------------


def draw_split(draw):
    B, C, T, H, K = draw.sizes(5, low=1)
    lead = draw.choice(((), (B,), (B, C)))
    return draw.normal(*lead, T, H * K), H


def right_split(x, H):
    *lead, T, D = x.shape
    heads = x.new_empty(*lead, H, T, D // H)
    for d in range(D):
        heads[..., d // (D // H), :, d % (D // H)] = x[..., d]
    return heads


def draw_merge(draw):
    return (draw.normal(*draw.sizes(draw.choice((3, 4, 5)), low=1)),)


def right_merge(x):
    return torch.cat(x.unbind(-3), dim=-1)


# --- 7.4 ------------------------------------------------------------------------


def right_shapes():
    """Ask torch's layer."""
    layer = nn.MultiheadAttention(96, 6, batch_first=True)
    english, german = torch.zeros(8, 17, 96), torch.zeros(8, 21, 96)
    output, weights = layer(english, german, german, average_attn_weights=False)
    queries, keys = (x.unflatten(-1, (layer.num_heads, layer.head_dim)).transpose(1, 2) for x in (english, german))
    found = {"queries": queries, "keys": keys, "weights": weights, "output": output}
    return {name: list(tensor.shape) for name, tensor in found.items()} | {"count": weights.numel()}


def judge_shapes(got, wanted):
    """Every entry, whatever else there may be."""
    if not isinstance(got, dict) or not wanted.keys() <= got.keys():
        raise Wrong(f"wanted a dict with the keys {', '.join(wanted)}")
    agree({name: got[name] for name in wanted if name != "count"}, {n: w for n, w in wanted.items() if n != "count"})
    if expect_number(got["count"], "count") != wanted["count"]:
        raise Wrong(f"count: {got['count']} is not the number of weights")


# --- 7.5 ------------------------------------------------------------------------


def draw_multi_head(draw):
    """Three sources or one, with masks of several shapes in which every query may see something."""
    calls = {}
    for alike in (True, False):
        B, T, S, H, K = draw.sizes(5)
        S, D = T if alike else S, H * K
        query = draw.normal(B, T, D)
        key, value = (query, query) if alike else (draw.normal(B, S, D), draw.normal(B, S, D))
        weights = draw.normal(3 * D, D) / D**0.5, draw.normal(3 * D), draw.normal(D, D) / D**0.5, draw.normal(D)
        shapes = ((T, S), (B, 1, 1, S), (B, 1, T, S), (B, H, T, S))
        for shape in (None, *draw.sample(shapes, 2)):
            mask = None
            if shape:
                mask = draw.share(*shape) < 0.6
                mask[..., draw.randrange(S)] = True
            name = f"query {tuple(query.shape)}, S = {S}, one source {alike}, H = {H}, mask {shape}"
            calls[name] = (query, key, value, *weights, H, mask)
    return (calls,)


def probe_multi_head(answer, calls):
    return {name: answer(*given, mask=mask) for name, (*given, mask) in calls.items()}


def right_multi_head(calls):
    """Ask torch's layer."""
    found = {}
    for name, (query, key, value, W_in, b_in, W_out, b_out, H, mask) in calls.items():
        (B, T, D), S = query.shape, key.shape[1]
        layer = nn.MultiheadAttention(D, H, batch_first=True, dtype=query.dtype)
        layer.in_proj_weight.data, layer.in_proj_bias.data = W_in, b_in
        layer.out_proj.weight.data, layer.out_proj.bias.data = W_out, b_out
        hidden = None if mask is None else ~mask.expand(B, H, T, S).reshape(B * H, T, S)
        found[name] = layer(query, key, value, attn_mask=hidden)[0].detach()
    return found


# --- 7.6 ------------------------------------------------------------------------


def draw_stack_maps(draw):
    B, T, H, K = draw.sizes(4)
    D = H * K
    layers = [tuple(draw.normal(D, D) / D**0.5 for _ in range(3)) for _ in range(draw.randint(2, 4))]
    mask = draw.share(B, T) < 0.6
    mask[:, draw.randrange(T)] = True
    mask[0], mask[1, draw.randrange(T)] = True, False  # a row without padding; one with
    mask[1, 0] |= not mask[1].any()
    return layers, draw.normal(B, T, D), mask[:, None, None], H


def probe_stack_maps(answer, weights, x, mask, H):
    """Layers of heads that share one set of values; without a mask everything may be seen."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self, W_q, W_k, W_v):
            super().__init__()
            self.W_q, self.W_k, self.W_v = W_q, W_k, W_v

        def attention_weights(self, x, mask=None):
            q, k = ((x @ W).unflatten(-1, (H, -1)).transpose(1, 2) for W in (self.W_q, self.W_k))
            scores = q @ k.mT
            return (scores if mask is None else scores.masked_fill(~mask, -torch.inf)).softmax(-1)

        def forward(self, x, mask=None):
            return self.attention_weights(x, mask).mean(1) @ x @ self.W_v

    return answer([Layer(*each) for each in weights], x, mask)


def right_stack_maps(weights, x, mask, H):
    """Sentence by sentence, padding cut out: real tokens do not know that it is there, except as rows that ask."""
    maps = []
    for W_q, W_k, W_v in weights:
        found = x.new_zeros(len(x), H, x.shape[1], x.shape[1])
        added = torch.empty_like(x)
        for b, real in enumerate(mask[:, 0, 0]):
            for h, (q, k) in enumerate(zip((x[b] @ W_q).chunk(H, -1), (x[b, real] @ W_k).chunk(H, -1), strict=True)):
                found[b, h][:, real] = torch.softmax(torch.einsum("tk,sk->ts", q, k), 1)
            added[b] = found[b].mean(0)[:, real] @ (x[b, real] @ W_v)
        maps.append(found)
        x = x + added
    return maps


TESTS = [
    on_paper("ex07-1-numbers-by-hand-check", "numbers", right_numbers_by_hand, judge=judge_numbers_by_hand),
    Hidden(
        "ex07-2-dot-product-attention-check", "dot_product_attention", draw_dot_product_attention,
        right_dot_product_attention, probe_dot_product_attention,
        without=(
            "attention", "attention_scores", "attention_weights", "MultiHeadAttention", "MultiheadAttention",
            "scaled_dot_product_attention", "multi_head_attention_forward", "_scaled_dot_product_attention_math",
            "attention_with_dropout",
        ),
    ),
    Hidden("ex07-3-split-check", "split", draw_split, right_split, without=("split_heads",)),
    Hidden("ex07-3-merge-check", "merge", draw_merge, right_merge, without=("merge_heads",)),
    on_paper("ex07-4-shapes-check", "arrows", right_shapes, judge=judge_shapes),
    Hidden(
        "ex07-5-multi-head-check", "multi_head", draw_multi_head, right_multi_head, probe_multi_head,
        without=(
            "attention", "attention_scores", "attention_weights", "MultiHeadAttention", "MultiheadAttention",
            "scaled_dot_product_attention", "split_heads", "multi_head_attention_forward",
            "_scaled_dot_product_attention_math", "attention_with_dropout", "merge_heads",
        ),
    ),
    Hidden("ex07-6-stack-maps-check", "stack_maps", draw_stack_maps, right_stack_maps, probe_stack_maps),
]  # fmt: skip
