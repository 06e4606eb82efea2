"""Hidden tests of chapter 14: row by row, head by head, all tokens at once; sizes from tensors without data."""

import math

import torch
from torch import nn

from classroom.hidden import Hidden, agree, on_paper
from course_lib.exercises import Wrong

# --- 14.1 -----------------------------------------------------------------------


def draw_rms_norm(draw):
    """Two axes or three, small numbers and large; then entries of some hundreds in half precision."""
    B, T, D = draw.sizes(3)
    x = draw.normal(*draw.choice(((B, D), (B, T, D)))) * draw.choice((0.01, 1.0, 30.0)) + draw.uniform(-1, 1)
    large = (150 * draw.normal(T, D)).clamp(-1000, 1000)
    large[:, 0] = 400.0
    return x, draw.normal(D), draw.choice((1e-6, 1e-2, 0.5)), large.half()


def probe_rms_norm(answer, x, weight, eps, large):
    import torch

    coarse = torch.as_tensor(answer(large, weight.half(), eps)).double()
    return [answer(x, weight, eps), (coarse * 50).round()]


def right_rms_norm(x, weight, eps, large):
    found = []
    for rows, factors in ((x, weight), (large.double(), weight.half().double())):
        flat = [row / math.hypot(*row.tolist(), math.sqrt(eps * len(row))) * len(row) ** 0.5
                for row in rows.flatten(0, -2)]  # fmt: skip
        found.append((torch.stack(flat) * factors).reshape(rows.shape))
    return [found[0], (found[1] * 50).round()]


def judge_rms_norm(got, wanted):
    """To five digits; the half precision to a step of 1/50 or so."""
    agree(got[:1], wanted[:1])
    coarse = torch.as_tensor(got[1]).double()
    if len(got) != 2 or coarse.shape != wanted[1].shape or not ((coarse - wanted[1]).abs() <= 1).all():
        raise Wrong("wrong for large entries in float16: the squares overflow")


def draw_swiglu(draw):
    B, T, D, F_ = draw.sizes(4)
    return draw.normal(*draw.choice(((B, D), (B, T, D)))), draw.normal(F_, D), draw.normal(F_, D), draw.normal(D, F_)


def right_swiglu(x, gate, up, down):
    """Torch's layers, and silu by its definition."""
    layers = []
    for weight in (gate, up, down):
        layer = nn.Linear(*weight.T.shape, bias=False, dtype=weight.dtype)
        layer.weight.data = weight
        layers.append(layer)
    one, two = layers[0](x), layers[1](x)
    return layers[2](one / (1 + (-one).exp()) * two).detach()


# --- 14.2 -----------------------------------------------------------------------


def draw_grouped_attention(draw):
    """As many keys as queries and more, a single query, one key head, as many as query heads, and in between."""
    calls = {}
    for each, group in ((1, 3), (3, 1), (2, 3), (3, 2), (2, 2)):
        B, T, K = draw.sizes(3)
        T, more = draw.choice((1, T)), draw.choice((0, 1, 4))
        shape = (B, each, T + more, K)
        for causal in (True, False):
            calls[f"H = {each * group}, G = {each}, T = {T}, S = {T + more}, causal {causal}"] = (
                draw.normal(B, each * group, T, K), draw.normal(*shape), draw.normal(*shape), causal,
            )  # fmt: skip
    return (calls,)


def probe_grouped_attention(answer, calls):
    return {name: answer(*given) for name, given in calls.items()}


def right_grouped_attention(calls):
    """Torch's, with keys and values expanded by index, and a mask of positions."""
    found = {}
    for name, (q, k, v, causal) in calls.items():
        (H, T), (G, S) = q.shape[1:3], k.shape[1:3]
        owner = [h // (H // G) for h in range(H)]
        asked, there = torch.arange(S - T, S)[:, None], torch.arange(S)
        mask = there <= asked if causal else torch.ones(T, S, dtype=torch.bool)
        found[name] = nn.functional.scaled_dot_product_attention(q, k[:, owner], v[:, owner], mask)
    return found


# --- 14.3 -----------------------------------------------------------------------


def draw_llama_block(draw):
    """Sizes of one block; angles for its positions."""
    B, T, D, F_, K = draw.sizes(5, high=8)
    G, group = draw.sample((1, 2, 3), 2)
    H, K = G * group, 2 * K
    shapes = {"norm_1": (D,), "q": (H * K, D), "k": (G * K, D), "v": (G * K, D), "o": (D, H * K), "norm_2": (D,),
              "gate": (F_, D), "up": (F_, D), "down": (D, F_)}  # fmt: skip
    weights = {name: draw.normal(*shape) / (shape[-1] ** 0.5 if len(shape) > 1 else 1)
               for name, shape in shapes.items()}  # fmt: skip
    return draw.normal(B, T, D), weights, draw.normal(T, K // 2), H, G, draw.choice((1e-5, 0.2))


def probe_llama_block(answer, x, weights, angles, H, G, eps):
    import torch

    def rotate(y):
        one, two = y[..., 0::2], y[..., 1::2]
        turned = (one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos())
        return torch.stack(turned, -1).flatten(-2)

    return answer(x, weights, rotate, H, G, eps)


def right_llama_block(x, weights, angles, H, G, eps):
    """One position after the other, head by head; a pair of entries is a complex number."""
    D = x.shape[-1]

    def norm(vector, weight):
        return vector * (D / (vector @ vector + D * eps)) ** 0.5 * weight

    def turned(matrix, vector, heads, t):
        pairs = torch.view_as_complex((matrix @ vector).reshape(heads, -1, 2)) * torch.exp(1j * angles[t])
        return torch.view_as_real(pairs).flatten(1)  # (heads, K)

    texts = []
    for text in x:
        rows, keys, values = [], [], []
        for t, vector in enumerate(text):
            y = norm(vector, weights["norm_1"])
            q = turned(weights["q"], y, H, t)
            keys.append(turned(weights["k"], y, G, t))
            values.append((weights["v"] @ y).reshape(G, -1))
            heads = []
            for h in range(H):
                g = h // (H // G)
                fits = [(q[h] @ key[g] / len(q[h]) ** 0.5).exp() for key in keys]
                heads.append(sum(fit * value[g] for fit, value in zip(fits, values, strict=True)) / sum(fits))
            vector = vector + weights["o"] @ torch.cat(heads)
            y = norm(vector, weights["norm_2"])
            gated = nn.functional.silu(weights["gate"] @ y) * (weights["up"] @ y)
            rows.append(vector + weights["down"] @ gated)
        texts.append(torch.stack(rows))
    return torch.stack(texts)


# --- 14.4 -----------------------------------------------------------------------


def draw_low_rank(draw):
    inputs, outputs, rank, n = draw.sizes(4, low=2, high=8)
    bias = draw.normal(outputs).float() if draw.random() < 0.5 else None
    return (draw.normal(outputs, inputs).float(), bias, draw.normal(rank, inputs).float(),
            draw.normal(outputs, rank).float(), draw.choice((0.5, 8, 16)), draw.normal(n, inputs).float())  # fmt: skip


def probe_low_rank(answer, weight, bias, A, B, alpha, x):
    import torch

    linear = torch.nn.Linear(*weight.T.shape, bias=bias is not None)
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias is not None:
            linear.bias.copy_(bias)
    layer = answer(linear, len(A), alpha)
    start = layer(x).detach()
    random = [bool(layer.A.detach().any()), bool(layer.B.detach().any())]
    trained = sorted(name for name, value in layer.named_parameters() if value.requires_grad)
    with torch.no_grad():
        layer.A.copy_(A)
        layer.B.copy_(B)
    x = x.requires_grad_()
    output = layer(x)
    gradients = torch.autograd.grad(output.sum(), (layer.A, layer.B, x))
    merged = torch.as_tensor(layer.merged()).detach()
    return [start, random, trained, output, *gradients, merged, linear.weight, layer(x)]


def right_low_rank(weight, bias, A, B, alpha, x):
    """The correction as a sum of r outer products; gradients of the sum of all outputs by hand."""
    rank = len(A)
    correction = sum(torch.outer(B[:, i], A[i]) for i in range(rank)) * (alpha / rank)
    offset = 0 if bias is None else bias
    start, output = x @ weight.T + offset, x @ (weight + correction).T + offset
    along = x.sum(0)
    of_A = alpha / rank * torch.outer(B.sum(0), along)
    of_B = alpha / rank * (A @ along).expand(len(B), rank)
    of_x = (weight + correction).sum(0).expand_as(x)  # it passes through the frozen weight, too
    return [start, [True, False], ["A", "B"], output, of_A, of_B, of_x, weight + correction, weight, output]


def judge_low_rank(got, wanted):
    """In float32: to four digits."""
    if not isinstance(got, list) or len(got) != len(wanted) or got[1:3] != wanted[1:3]:
        raise Wrong("A is random at the start, B is zero, and these two alone are trained")
    for place, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        if not isinstance(theirs, torch.Tensor):
            continue
        if not isinstance(mine, torch.Tensor) or mine.shape != theirs.shape:
            raise Wrong(f"entry {place} has not the shape {tuple(theirs.shape)}")
        if not torch.allclose(mine.double(), theirs.double(), rtol=1e-4, atol=1e-4):
            raise Wrong(f"entry {place} differs from the right one")


# --- 14.5 -----------------------------------------------------------------------


def draw_quantize(draw):
    """Rows of very different sizes, one of zeros, the largest entry of either sign."""
    rows, columns = draw.sizes(2, low=3, high=9)
    weight = draw.normal(rows, columns) * torch.logspace(draw.choice((-8, -3)), 2, rows, dtype=torch.float64)[:, None]
    weight[draw.randrange(rows)] = 0.0
    return (weight,)


def probe_quantize(answer, weight):
    import torch

    ints, scales = answer(weight)
    name = str(ints.dtype).rpartition(".")[2]
    ints, scales = (torch.as_tensor(part).double() for part in (ints, scales))
    filled = weight.abs().sum(1) > 0
    return [name, ints, list(scales.shape), bool((scales.isfinite() & (scales > 0)).all()), scales[filled]]


def right_quantize(weight):
    """Number by number; of all whole numbers the nearest."""
    ints, scales = [], []
    for row in weight.tolist():
        scale = max(max(row), -min(row)) / 127
        ints.append([min(range(-127, 128), key=lambda i: abs(i * scale - w)) if scale else 0 for w in row])
        scales += [scale] * (scale > 0)
    kinds = ["int8", torch.tensor(ints).double(), [len(weight)], True]
    return [*kinds, torch.tensor(scales, dtype=torch.float64)]


def judge_quantize(got, wanted):
    """Scales to five digits of their own size."""
    agree(got, wanted)
    if not torch.allclose(got[4].double() / wanted[4], torch.ones_like(wanted[4]), rtol=1e-5):
        raise Wrong("a scale is not right")


# --- 14.6 -----------------------------------------------------------------------


def right_llama_numbers():
    """Torch's layers without data: their numbers, and their bytes by their dtypes."""
    D, K, H, G, blocks = 4096, 128, 32, 8, 32
    with torch.device("meta"):
        half = torch.bfloat16
        shapes = [(D, H * K), (D, G * K), (D, G * K), (H * K, D), (D, 14336), (D, 14336), (14336, D)]
        matrices = [nn.Linear(*shape, bias=False, dtype=half) for shape in shapes]  # of one block
        norms = [nn.RMSNorm(D, dtype=half)] * (2 * blocks + 1)
        tables = [nn.Embedding(128256, D, dtype=half), nn.Linear(D, 128256, bias=False, dtype=half)]
        kept = {number: torch.empty(blocks, 2, number, 8192, K, dtype=half).nbytes for number in (G, H)}
        low = [nn.Linear(*shape, bias=False) for shape in ((D, 16), (16, H * K), (D, 16), (16, G * K))]
    inside = blocks * sum(layer.weight.numel() for layer in matrices)
    inside_bytes = blocks * sum(layer.weight.nbytes for layer in matrices)
    outside_bytes = sum(layer.weight.nbytes for layer in (*norms, *tables))
    parameters = inside + sum(layer.weight.numel() for layer in (*norms, *tables))
    trained = blocks * sum(layer.weight.numel() for layer in low)
    sizes = kept[G], kept[H], inside_bytes + outside_bytes, inside + outside_bytes
    return (parameters / 1e9, *(size / 1e9 for size in sizes), 100 * trained / parameters)


# --- 14.7 -----------------------------------------------------------------------


def draw_linear_step(draw):
    """Some tokens come before, and are in the state already."""
    B, H, K, E, T = draw.sizes(5)
    before = draw.choice((0, 1, 3))
    T += before
    return draw.normal(B, H, T, K), draw.normal(B, H, T, K), draw.normal(B, H, T, E), before


def probe_linear_step(answer, q, k, v, before):
    import torch

    seen = torch.nn.functional.elu(k[:, :, :before]) + 1
    state = (torch.einsum("bhtk,bhte->bhke", seen, v[:, :, :before]), seen.sum(2))
    kept, found = [part.clone() for part in state], []
    for t in range(before, q.shape[2]):
        y, new = answer(q[:, :, t], k[:, :, t], v[:, :, t], tuple(state))
        found.append(y)
        if t == before:
            same = all(torch.equal(old, now) for old, now in zip(kept, state, strict=True))
        state = [torch.as_tensor(part) for part in new]
    return [found, list(state), same]


def right_linear_step(q, k, v, before):
    """All tokens at once, by their weights."""
    q, k = (torch.where(x > 0, 1 + x, x.exp()) for x in (q, k))
    weights = torch.einsum("bhtk,bhsk->bhts", q, k)
    weights = weights * torch.ones_like(weights).tril()
    y = (weights / weights.sum(-1, keepdim=True)) @ v
    return [list(y[:, :, before:].unbind(2)), [k.mT @ v, k.sum(2)], True]


TESTS = [
    Hidden("ex14-1-rms-norm-check", "rms_norm", draw_rms_norm, right_rms_norm, probe_rms_norm, judge_rms_norm,
           without=("RMSNorm", "rms_norm", "_fused_rms_norm")),
    Hidden("ex14-1-swiglu-check", "swiglu", draw_swiglu, right_swiglu, without=("SwiGLU", "LlamaMLP")),
    Hidden(
        "ex14-2-grouped-attention-check", "grouped_attention", draw_grouped_attention, right_grouped_attention,
        probe_grouped_attention, without=(
            "attention", "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "MultiheadAttention",
            "MultiHeadAttention", "GroupedQueryAttention", "multi_head_attention_forward",
        ),
    ),
    Hidden("ex14-3-llama-block-check", "llama_block", draw_llama_block, right_llama_block, probe_llama_block,
           without=("LlamaBlock", "Llama", "GroupedQueryAttention", "LlamaDecoderLayer")),
    Hidden("ex14-4-low-rank-check", "LowRank", draw_low_rank, right_low_rank, probe_low_rank, judge_low_rank,
           without=("LoRALinear", "LowRankUpdate", "add_lora")),
    Hidden("ex14-5-quantize-check", "quantize", draw_quantize, right_quantize, probe_quantize, judge_quantize,
           without=("quantize_rows", "to_int8", "quantize_per_channel", "quantize_per_tensor")),
    on_paper("ex14-6-llama-numbers-check", "llama_numbers", right_llama_numbers),
    Hidden("ex14-7-linear-step-check", "linear_step", draw_linear_step, right_linear_step, probe_linear_step,
           without=("linear_attention_step", "linear_attention", "linear_attention_chunked", "LinearAttention")),
]  # fmt: skip
