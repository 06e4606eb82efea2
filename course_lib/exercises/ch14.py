"""Checks of chapter 14's exercises: the parts of a Llama and its block, LoRA, eight bits, a count on paper, a state.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names the
one it recognises. The references are formulas of tensors, in float64. Notebook: 14.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

from course_lib import linear_attention, llama, quantization
from course_lib.attention import attention
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
)
from course_lib.exercises.ready_made import called


def _draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def _recognise(got, mistakes):
    """Raise with the message of the mistake that gives the same numbers."""
    for message, wrong in mistakes.items():
        if close(got, wrong):
            raise Wrong(message)


def _own_code(student, given, library=(), torchs=()):
    """Refuse an answer that is right, but is computed by what the exercise asks to write."""
    if name := called(student, [(given, {})], library, torchs):
        raise Wrong(f"the numbers are right, but the ready-made {name} makes them: write your own lines")


# --- exercise 14.1: RMSNorm and SwiGLU --------------------------------------------------------


def _rms(x, weight, eps, dim=-1):
    return weight * x / (x.square().mean(dim, keepdim=True) + eps).sqrt()


@check(
    hints=(
        "Square, mean, root: read the name backwards. Over which axis, and what keeps the shape fit for a division?",
        "mean_square = mean of x * x over the last axis, the axis kept; result = weight * x / sqrt(mean_square + eps); "
        "before all that, x in float32 or wider",
        "x = x.float(), then x.square().mean(-1, keepdim=True)",
    )
)
def rms_norm(student):
    """Exercise 14.1: vectors divided by their root mean square."""
    x, weight, eps = _draw(2, 3, 5) + 0.7, _draw(5), 0.3
    got = expect_tensor(student(x, weight, eps), (2, 3, 5)).double()
    if not close(got, _rms(x, weight, eps)):
        _explain_rms(got, x, weight, eps)
    x, weight, eps = _draw(4, 7), _draw(7), 1e-6
    x[2], x[3] = 0.0, 1e-3 * x[3]
    got = expect_tensor(student(x, weight, eps), (4, 7)).double()
    if got.isnan().any():
        raise Wrong("a row of zeros gives nan: eps is there so that nothing is divided by 0")
    if not close(got, _rms(x, weight, eps)):
        raise Wrong("right for x (2, 3, 5) with eps 0.3, wrong for x (4, 7) with eps 1e-6: is a size, an axis or eps "
                    "itself written into the code?")  # fmt: skip
    x, weight = (100 * _draw(3, 6, seed=4)).clamp(-900, 900).half(), _draw(6, seed=4).half()
    x[0, 0], x[1, 1], x[2, 2] = 500.0, -400.0, 900.0
    got = expect_tensor(student(x, weight, 1e-5), (3, 6), name="the result for float16").double()
    if not close(got, _rms(x.double(), weight.double(), 1e-5), 4e-3):
        raise Wrong("right in float64, wrong for entries of some hundreds in float16, where the square of 400 is "
                    "infinite: go to float32 before you square")  # fmt: skip
    _own_code(student, (x, weight, 1e-5), [llama.RMSNorm], ("rms_norm",))


def _explain_rms(got, x, weight, eps):
    """Say which usual mistake gives these numbers."""
    centred, square = x - x.mean(-1, keepdim=True), x.square().mean(-1, keepdim=True)
    root = (square + eps).sqrt()
    _recognise(got, {
        "the mean is subtracted: that is LayerNorm. RMSNorm leaves the mean where it is": _rms(centred, weight, eps),
        "divided by the standard deviation, whose squares are taken after subtracting the mean; here the entries "
        "themselves are squared": weight * x / (x.var(-1, correction=0, keepdim=True) + eps).sqrt(),
        "divided by the standard deviation (x.var or x.std, with n - 1); here the mean of the entries' squares is "
        "wanted": weight * x / (x.var(-1, keepdim=True) + eps).sqrt(),
        "the squares are added up, not averaged: with the sum the result shrinks with the width": (
            weight * x / (5 * square + eps).sqrt()
        ),
        "the mean runs over the positions (axis 1); every position has its own, over the D entries": (
            _rms(x, weight, eps, 1)
        ),
        "the mean runs over the batch (axis 0); every vector has its own, over the D entries": _rms(x, weight, eps, 0),
        "one mean for the whole tensor: every vector has its own": _rms(x, weight, eps, (0, 1, 2)),
        "one mean for each text: every position has its own": _rms(x, weight, eps, (1, 2)),
        "eps is added after the root; it belongs under it": weight * x / (square.sqrt() + eps),
        "eps is missing, or a fixed small number in place of the one that is given": weight * x / square.sqrt(),
        "the root is missing: divided by the mean of the squares itself": weight * x / (square + eps),
        "multiplied by the root where it should be divided": weight * x * root,
        "the weight is missing": x / root,
        "the weight is added; it multiplies": weight + x / root,
        "multiplied by 1 + weight: some models store it so, here the weight itself is the factor": (
            (1 + weight) * x / root
        ),
        "divided by the weight": x / root / weight,
        "the weight is multiplied in before the norm, so that it counts in the squares": _rms(weight * x, 1.0, eps),
        "the mean of absolute values in place of the root of the mean square": (
            weight * x / (x.abs().mean(-1, keepdim=True) + eps)
        ),
    })  # fmt: skip
    raise Wrong("the result is not weight * x / sqrt(mean of the squares + eps), the mean over the last axis")


def _swiglu(x, gate, up, down, act=F.silu):
    return (act(x @ gate.T) * (x @ up.T)) @ down.T


@check(
    hints=(
        "Two products of x with (F, D) matrices. One goes through silu; what happens to the two then?",
        "hidden = silu(x @ gate.T) * (x @ up.T), (..., F); the last product, with down, leads back to D",
        "the product of the two is taken in F, before down: (gated * (x @ up.T)) @ down.T",
    )
)
def swiglu(student):
    """Exercise 14.1: the gated feed-forward network."""
    given = x, gate, up, down = _draw(2, 3, 5), _draw(7, 5), _draw(7, 5, seed=1), _draw(5, 7, seed=2)
    got = student(*given)
    if isinstance(got, torch.Tensor) and got.shape == (2, 3, 7):
        raise Wrong("the result has the width F; the last product, with down, leads back to D")
    got = expect_tensor(got, (2, 3, 5)).double()
    if not close(got, _swiglu(*given)):
        one, two = x @ gate.T, x @ up.T
        _recognise(got, {
            "gate and up have exchanged their parts: silu is for the product with gate": _swiglu(x, up, gate, down),
            "sigmoid in place of silu: silu(z) = z * sigmoid(z)": _swiglu(*given, torch.sigmoid),
            "silu is missing: two linear maps are multiplied": _swiglu(*given, lambda z: z),
            "relu in place of silu": _swiglu(*given, F.relu),
            "gelu in place of silu": _swiglu(*given, F.gelu),
            "gelu (its approximation with tanh) in place of silu": (
                _swiglu(*given, lambda z: F.gelu(z, approximate="tanh"))
            ),
            "tanh in place of silu": _swiglu(*given, torch.tanh),
            "the two products are added; the gate multiplies": (F.silu(one) + two) @ down.T,
            "silu is applied to the product of the two; it belongs to the gate's alone": F.silu(one * two) @ down.T,
            "both products go through silu; only the gate's does": (F.silu(one) * F.silu(two)) @ down.T,
            "the product with up is missing: this is a feed-forward network without a gate": F.silu(one) @ down.T,
            "the product with gate is missing, or gated by itself: up alone goes through": two @ down.T,
            "the gate multiplies itself: the second product is with up": (F.silu(one) * one) @ down.T,
            "the two are multiplied after down, in D; the gate works on the F hidden numbers": (
                (F.silu(one) @ down.T) * (two @ down.T)
            ),
            "silu is applied to x, before the product with gate": ((F.silu(x) @ gate.T) * two) @ down.T,
            "silu is applied at the very end": F.silu((one * two) @ down.T),
            "x is added: the residual connection belongs to the block, not to this function": x + _swiglu(*given),
        })  # fmt: skip
        raise Wrong("the result is not the product of silu(x @ gate.T) and x @ up.T, multiplied with down.T")
    given = _draw(4, 6), _draw(9, 6), _draw(9, 6, seed=1), _draw(6, 9, seed=2)
    if not close(expect_tensor(student(*given), (4, 6)).double(), _swiglu(*given)):
        raise Wrong("right for x (2, 3, 5), wrong for x (4, 6): is a size or a number of axes written into the code?")
    _own_code(student, given, [llama.SwiGLU])


# --- exercise 14.2: grouped-query attention ---------------------------------------------------


def _grouped(q, k, v, causal, which=None, shift=None, scale=None, axis=-1, mask=None):
    """Grouped-query attention head by head; `which` says which key head a query head uses."""
    (H, T, K), (G, S) = q.shape[1:], k.shape[1:3]
    which = which or [h * G // H for h in range(H)]
    shift = S - T if shift is None else shift
    ahead = torch.arange(S) > torch.arange(T)[:, None] + shift  # (T, S), True = hidden
    heads = []
    for h, g in enumerate(which):
        scores = q[:, h] @ k[:, g].mT / math.sqrt(scale or K)
        if causal:
            scores = scores.masked_fill(ahead if mask is None else mask(ahead), -math.inf)
        heads.append(scores.softmax(axis) @ v[:, g])
    return torch.stack(heads, 1)


@check(
    hints=(
        "With H = 6 and G = 2, write down which key head each query head uses. How do you repeat k and v so that "
        "they stand in this order?",
        "repeat each key head H / G times, its copies side by side; scores = q k^T / sqrt(K); hide the keys after "
        "each query's own position, which is S - T + t; softmax over the keys; times the values",
        "k.repeat_interleave(H // G, dim=1), v likewise; torch.ones(T, S, dtype=torch.bool).tril(S - T) says what "
        "may be seen",
    )
)
def grouped_attention(student):
    """Exercise 14.2: H heads of queries share G heads of keys and values."""
    B, H, G, T, S, K = 4, 6, 2, 3, 5, 7
    q, k, v = _draw(B, H, T, K), _draw(B, G, S, K), _draw(B, G, S, K, seed=1)
    got = expect_tensor(student(q, k, v, False), (B, H, T, K), name="the result without a mask").double()
    if not close(got, _grouped(q, k, v, False)):
        _explain_groups(got, q, k, v)
    got = expect_tensor(student(q, k, v, True), (B, H, T, K), name="the causal result").double()
    if not close(got, _grouped(q, k, v, True)):
        if close(got, _grouped(q, k, v, False)):
            _expect_some_mask(student, q, k[:, :, :T], v[:, :, :T])
        _explain_mask(got, q, k, v)
    for H, G, T, S in ((6, 3, 4, 4), (4, 1, 1, 5), (3, 3, 2, 6)):
        given = _draw(2, H, T, 8), _draw(2, G, S, 8), _draw(2, G, S, 8, seed=1)
        for causal in (True, False):
            got = expect_tensor(student(*given, causal), (2, H, T, 8)).double()
            if not close(got, _grouped(*given, causal)):
                raise Wrong(f"right for 6 query heads and 2 key heads, wrong for H = {H}, G = {G}, T = {T}, S = {S}, "
                            f"causal = {causal}: is a size written into the code?")  # fmt: skip
    ready = [attention, llama.GroupedQueryAttention]
    _own_code(student, (*given, True), ready, ("scaled_dot_product_attention", "multi_head_attention_forward"))


def _explain_groups(got, q, k, v):
    """The mistakes that show without a mask."""
    H, K, G = q.shape[1], q.shape[3], k.shape[1]
    tiled = [h % G for h in range(H)]
    mean = q.unflatten(1, (G, H // G)).mean(2)  # (B, G, T, K)
    keys_alone = (q @ k[:, [h * G // H for h in range(H)]].mT / math.sqrt(K)).softmax(-1) @ v[:, tiled]
    values_alone = (q @ k[:, tiled].mT / math.sqrt(K)).softmax(-1) @ v[:, [h * G // H for h in range(H)]]
    _recognise(got, {
        "query head h uses key head h % G, as `repeat` gives it: neighbours share, so the copies of a key head stand "
        "side by side": _grouped(q, k, v, False, tiled),
        "the keys are right, the values are those of head h % G: neighbours share both": keys_alone,
        "the values are right, the keys are those of head h % G: neighbours share both": values_alone,
        "all query heads use the first key head": _grouped(q, k, v, False, [0] * H),
        "the scores are not divided by the root of K": _grouped(q, k, v, False, scale=1),
        "the scores are divided by K; its root is wanted": _grouped(q, k, v, False, scale=K * K),
        "the scores are divided by the root of H K; the width of one head counts": (
            _grouped(q, k, v, False, scale=H * K)
        ),
        "the scores are divided by the root of K G / H; sharing keys does not change the width K of a query or key": (
            _grouped(q, k, v, False, scale=K * G / H)
        ),
        "the queries of a group are averaged; each query head asks for itself, only keys and values are shared": (
            _grouped(mean, k, v, False).repeat_interleave(H // G, 1)
        ),
        "the softmax runs over the queries; a query's weights add up to 1 over the keys": (
            _grouped(q, k, v, False, axis=-2)
        ),
        "the softmax is missing": (
            q @ k.repeat_interleave(H // G, 1).mT / math.sqrt(K) @ v.repeat_interleave(H // G, 1)
        ),
        "causal = False, yet later keys are hidden: use the argument": _grouped(q, k, v, True),
        "causal = False, yet keys are hidden, by a mask that begins at the first key": (
            _grouped(q, k, v, True, shift=0)
        ),
    })  # fmt: skip
    wanted = _grouped(q, k, v, False)
    right = [h for h in range(H) if close(got[:, h], wanted[:, h])]
    if not right:
        raise Wrong(f"without a mask none of the {H} heads is right. Look first at what all of them share: the "
                    "division by the root of K, the softmax over the keys, the product with the values. Then at which "
                    "key head a query head uses")  # fmt: skip
    raise Wrong(f"without a mask {len(right)} of {H} heads are right; query head h uses key head h * G // H")


def _expect_some_mask(student, q, k, v):
    """With more keys than queries nothing is hidden; is anything with as many?"""
    got = expect_tensor(student(q, k, v, True), tuple(q.shape), name="the causal result with S = T").double()
    if not close(got, _grouped(q, k, v, False)):
        raise Wrong("causal = True acts only where S = T; with more keys than queries (S > T, as with a cache) nothing "
                    "is hidden")  # fmt: skip


def _explain_mask(got, q, k, v):
    """The mistakes of the causal mask."""
    T, S = q.shape[2], k.shape[2]
    flipped = _grouped(q, k, v, True, mask=lambda ahead: ~ahead)
    if close(got.nan_to_num(), flipped.nan_to_num()):
        raise Wrong("the mask is the wrong way round: later keys are seen, earlier ones hidden")
    blind = sum(got[:, :, t].isnan().any().item() for t in range(T))
    if blind:
        raise Wrong(f"{blind} of {T} queries are nan: all their keys are hidden, or a score is 0 times infinity")
    _recognise(got, {
        "the causal mask is aligned at the start, so query t sees t + 1 keys. The queries are the last T positions: "
        "query t also sees the S - T keys before all of them": _grouped(q, k, v, True, shift=0),
        "causal = True changes nothing: later keys are still seen": _grouped(q, k, v, False),
        "a query does not see its own position": _grouped(q, k, v, True, shift=S - T - 1),
        "a query sees one position after its own": _grouped(q, k, v, True, shift=S - T + 1),
    })  # fmt: skip
    for number, name in ((0.0, "0"), (1.0, "1")):
        scores = q @ k.repeat_interleave(3, 1).mT / math.sqrt(q.shape[3])
        hidden = scores.masked_fill(~torch.ones(T, S).bool().tril(S - T), number)
        if close(got, hidden.softmax(-1) @ v.repeat_interleave(3, 1)):
            raise Wrong(f"hidden scores are set to {name}, which the softmax gives a share; minus infinity gets none")
    scores = q @ k.repeat_interleave(3, 1).mT / math.sqrt(q.shape[3])
    unnormed = (scores.softmax(-1) * torch.ones(T, S).tril(S - T)) @ v.repeat_interleave(3, 1)
    _recognise(got, {"weights are cut off after the softmax, so they no longer add up to 1": unnormed})
    raise Wrong("right without a mask, wrong with causal = True: query t stands at position S - T + t, and sees the "
                "keys up to there")  # fmt: skip


# --- exercise 14.3: a block of a Llama --------------------------------------------------------

H_BLOCK, G_BLOCK, K_BLOCK = 6, 2, 4
ORDERS = {order: (order, order) for order in ("pre", "post", "inside")}


def _turn(x):
    """A rotation by position: each entry of the first half with its partner in the second."""
    T, K = x.shape[-2:]
    angles = torch.arange(T, dtype=x.dtype)[:, None] * 0.7 ** torch.arange(1, K // 2 + 1, dtype=x.dtype)
    one, two = x.chunk(2, -1)
    return torch.cat([one * angles.cos() - two * angles.sin(), one * angles.sin() + two * angles.cos()], -1)


def _weights(D, F_, H, G, K, seed=0):
    shapes = {"norm_1": (D,), "q": (H * K, D), "k": (G * K, D), "v": (G * K, D), "o": (D, H * K), "norm_2": (D,),
              "gate": (F_, D), "up": (F_, D), "down": (D, F_)}  # fmt: skip
    return {name: _draw(*shape, seed=seed + 10 * i) / shape[-1] ** (0.5 if len(shape) > 1 else 0)
            for i, (name, shape) in enumerate(shapes.items())}  # fmt: skip


def _block(x, p, H, G, eps, turn="qk", order="pre", causal=True, join=None, which=None, scale=None, before=None,
           norms=(1, 1), residuals=(1, 1), normed=(0, 0), cut=None, act=F.silu):  # fmt: skip
    """A block, or one with a mistake; `eps` may be a pair, and `order` too: pre, post or inside, for each sublayer."""
    eps = eps if isinstance(eps, tuple) else (eps, eps)

    def norm(y, name, on=True):
        return _rms(y, p[name], eps[name == "norm_2"]) if on else y

    def attend(y):
        K = len(p["q"]) // H
        cut_up = cut or (lambda z, K: z.unflatten(-1, (-1, K)).transpose(1, 2))
        q, k, v = (cut_up(y @ p[name].T, K) for name in "qkv")
        q, k, v = (_turn(z) if name in turn else z for z, name in zip((q, k, v), "qkv", strict=True))
        heads = _grouped(q, k, v, causal, which, scale=scale)
        joined = heads.transpose(1, 2).flatten(2) if join is None else join(heads)
        return joined @ p["o"].T

    def think(y):
        return _swiglu(y, p["gate"], p["up"], p["down"], act)

    if order == "parallel":
        return x + attend(norm(x, "norm_1")) + think(norm(x, "norm_2"))
    for i, (layer, where) in enumerate(zip((attend, think), ORDERS.get(order, order), strict=True)):
        name = f"norm_{i + 1}"
        if where == "post":  # the norm after the sum
            x = norm(x + layer(x), name)
        elif where == "inside":  # the norm on the sublayer's result
            x = x + norm(layer(x), name)
        else:
            y = norm(x, name, norms[i])
            x = layer(y) + (y if normed[i] else residuals[i] * x)
    return x


@check(
    hints=(
        "Draw the block first: two sublayers. What does each read, and what is its result added to?",
        "y = norm of x; q, k, v from y, cut into heads; turn q and k; attention; merge, times o; x = x + that. Then "
        "y = norm of the new x; x = x + swiglu of y",
        "cut: (y @ weights['k'].T).unflatten(-1, (G, -1)).transpose(1, 2) is (B, G, T, K); merge: "
        ".transpose(1, 2).flatten(2)",
    )
)
def llama_block(student):
    """Exercise 14.3: a Llama's block from its parts."""
    B, T, D, F_, H, G, K = 3, 5, 10, 14, H_BLOCK, G_BLOCK, K_BLOCK
    x, p, eps = _draw(B, T, D) + 0.3, _weights(D, F_, H, G, K), 0.1
    got = expect_tensor(student(x, p, _turn, H, G, eps), (B, T, D)).double()
    if not close(got, _block(x, p, H, G, eps)):
        _explain_block(got, x, p, H, G, eps)
    H, G, K, D, T = 3, 3, 2, 6, 4
    x, p, eps = _draw(2, T, D), _weights(D, 9, H, G, K, seed=3), 1e-5
    got = expect_tensor(student(x, p, _turn, H, G, eps), (2, T, D)).double()
    if not close(got, _block(x, p, H, G, eps)):
        raise Wrong("right for H = 6, G = 2, wrong for H = G = 3 with other widths and another eps: is one of them "
                    "written into the code?")  # fmt: skip


def _explain_block(got, x, p, H, G, eps):
    """Say which usual mistake gives these numbers."""
    B, T, _ = x.shape
    ones = torch.ones_like(p["norm_1"])
    changed = {  # other weights in the same block
        "the weight of both norms is missing: the normed vector is multiplied by it": {"norm_1": ones, "norm_2": ones},
        "the first norm's weight is missing": {"norm_1": ones},
        "the second norm's weight is missing": {"norm_2": ones},
        "norm_1 is used twice; the feed-forward network has its own norm": {"norm_2": p["norm_1"]},
        "norm_2 is used twice; the attention has its own norm": {"norm_1": p["norm_2"]},
        "the two norms have exchanged their places": {"norm_1": p["norm_2"], "norm_2": p["norm_1"]},
        "gate and up have exchanged their parts: silu is for the product with gate": {
            "gate": p["up"],
            "up": p["gate"],
        },
        "keys and values have exchanged their matrices": {"k": p["v"], "v": p["k"]},
        "the values are made with k": {"v": p["k"]},
        "the keys are made with v": {"k": p["v"]},
    }
    for message, change in changed.items():
        if close(got, _block(x, p | change, H, G, eps)):
            raise Wrong(message)
    K = len(p["q"]) // H
    steps = {
        "the second residual connection is missing: the feed-forward network's result is added to the stream": {
            "residuals": (1, 0)
        },
        "the first residual connection is missing: the attention's result is added to the stream": {
            "residuals": (0, 1)
        },
        "both residual connections are missing": {"residuals": (0, 0)},
        "the normed vectors are added, not the stream: the residual connection goes around the norm": {
            "normed": (1, 1)
        },
        "the attention's result is added to the normed vector; it is added to the stream, as it was before the norm": {
            "normed": (1, 0)
        },
        "the feed-forward network's result is added to the normed vector; it is added to the stream, as it was before "
        "the norm": {"normed": (0, 1)},
        "this is Post-LN: the norms stand after the sums. A Llama norms what a sublayer reads": {"order": "post"},
        "the norms stand after the sublayers; they belong before them": {"order": "inside"},
        "the first norm stands after the sum of stream and attention; a Llama norms what the attention reads": {
            "order": ("post", "pre")
        },
        "the second norm stands after the sum of stream and feed-forward network; a Llama norms what that network "
        "reads": {"order": ("pre", "post")},
        "the first norm stands after the attention, on its result; it belongs before it": {"order": ("inside", "pre")},
        "the second norm stands after the feed-forward network, on its result; it belongs before it": {
            "order": ("pre", "inside")
        },
        "both sublayers read the same x; the feed-forward network reads the stream after the attention": {
            "order": "parallel"
        },
        "the first norm is missing": {"norms": (0, 1)},
        "the second norm is missing": {"norms": (1, 0)},
        "both norms are missing": {"norms": (0, 0)},
        "nothing is turned by its position: call turn": {"turn": ""},
        "the values are turned too; position belongs in queries and keys alone": {"turn": "qkv"},
        "the keys are not turned": {"turn": "q"},
        "the queries are not turned": {"turn": "k"},
        "the attention is not causal: a position sees those after it": {"causal": False},
        "query head h uses key head h % G: neighbours share, h * G // H": {"which": [h % G for h in range(H)]},
        "the scores are not divided by the root of K": {"scale": 1},
        "the scores are divided by the root of D; the width of a head counts": {"scale": x.shape[-1]},
        "the scores are divided by the root of H K; the width of one head counts": {"scale": H * K},
        "the heads are merged without a transpose, so positions are scrambled": {
            "join": lambda heads: heads.reshape(B, T, H * K)
        },
        "queries, keys and values are cut into heads without a transpose, so positions and heads are mixed: first "
        "(B, T, heads, K), then exchange two axes": {"cut": lambda z, K: z.reshape(B, -1, T, K)},
        "each head has taken every H-th entry of its queries (every G-th of keys and values); a head has K entries "
        "that stand side by side": {"cut": lambda z, K: z.unflatten(-1, (K, -1)).permute(0, 3, 1, 2)},
        "the feed-forward network has sigmoid in place of silu": {"act": torch.sigmoid},
        "the feed-forward network lacks silu": {"act": lambda z: z},
    }
    for message, change in steps.items():
        if close(got, _block(x, p, H, G, eps, **change)):
            raise Wrong(message)
    for fixed in (1e-5, 1e-6, 1e-8, 0.0):
        for which, pair in (("norms have", (fixed, fixed)), ("first norm has", (fixed, eps)),
                            ("second norm has", (eps, fixed))):  # fmt: skip
            if close(got, _block(x, p, H, G, pair)):
                raise Wrong(f"the {which} a fixed small number in place of the eps that is given, or none")
    if close(got, x + _block(x, p, H, G, eps, residuals=(1, 0))):
        raise Wrong("the feed-forward network's result is added to what the block was given; it is added to the stream "
                    "after the attention")  # fmt: skip
    if close(got, _block(x, p | {"down": 0 * p["down"]}, H, G, eps)):
        raise Wrong("the feed-forward network is missing: this is the stream after the attention")
    if close(got, _block(x, p | {"o": 0 * p["o"]}, H, G, eps)):
        raise Wrong("the attention is missing: only the feed-forward network's result is added")
    if close(got[:, 0], _block(x, p, H, G, eps)[:, 0]):
        raise Wrong("the first position is right, later ones are not: look at the rotation, the mask, and the heads")
    raise Wrong("the first position is wrong already, where neither rotation nor mask matters: print the result of "
                "each line for it, from the first norm on")  # fmt: skip


# --- exercise 14.4: LoRA ------------------------------------------------------------------------


@check(
    hints=(
        "Two things must be true at the start: the layer computes what the linear layer computed, and yet the first "
        "step of training can change it. What follows for A and B?",
        "freeze the linear layer; keep alpha / rank; A = Parameter of normal numbers (rank, inputs), B = Parameter of "
        "zeros (outputs, rank). forward: linear(x) + scale * (x A^T B^T). merged: W + scale * B A",
        "linear.requires_grad_(False); linear.in_features and linear.out_features; self.scale * (x @ self.A.T @ "
        "self.B.T); in merged the product B @ A, since W is (outputs, inputs)",
    )
)
def low_rank(student):
    """Exercise 14.4: a frozen linear layer with a trained correction of low rank."""
    for bias, inputs, outputs, rank, alpha in ((True, 5, 7, 3, 12), (False, 6, 4, 2, 1.0)):
        _examine_lora(student, bias, inputs, outputs, rank, alpha)
    state = torch.random.get_rng_state()
    A = student(nn.Linear(40, 3), 4, 8).A.detach()
    torch.random.set_rng_state(state)
    if (A >= 0).all() or (A <= 0).all():
        raise Wrong("the numbers of A are random, but all have one sign (is it torch.rand?), so all r look at much the "
                    "same, the sum of the inputs; wanted are numbers around 0")  # fmt: skip


def _examine_lora(student, bias, inputs, outputs, rank, alpha):
    state = torch.random.get_rng_state()
    linear = nn.Linear(inputs, outputs, bias)
    weight = _draw(outputs, inputs, seed=outputs).float()
    offset = _draw(outputs, seed=inputs).float() if bias else 0.0
    with torch.no_grad():
        linear.weight.copy_(weight)
        if bias:
            linear.bias.copy_(offset)
    layer = student(linear, rank, alpha)
    torch.random.set_rng_state(state)
    _expect_parameters(layer, inputs, outputs, rank)
    x = _draw(2, 3, inputs, seed=5).float()
    forward, merged = guarded(layer), guarded(layer.merged)
    plain = x @ weight.T + offset
    got = expect_tensor(forward(x), (2, 3, outputs), name="the output at the start")
    if not close(got, plain):
        if layer.B.detach().any():
            raise Wrong("B is not zero at the start, so the layer begins with random changes to what was learned")
        mistakes = {"the bias is missing": plain - offset, "the bias is added twice": plain + offset}
        for message, wrong in ({"x W^T + b is missing": 0 * plain} | (mistakes if bias else {})).items():
            if close(got, wrong):
                raise Wrong(f"with B = 0 the output must be that of the linear layer: {message}")
        raise Wrong("with B = 0 the output is not that of the linear layer, x W^T + b")
    _expect_start(layer)
    A, B = _draw(rank, inputs, seed=6).float(), _draw(outputs, rank, seed=7).float()
    with torch.no_grad():
        layer.A.copy_(A)
        layer.B.copy_(B)
    got, update = expect_tensor(forward(x), (2, 3, outputs), name="the output"), x @ A.T @ B.T
    if not close(got, plain + alpha / rank * update, 1e-4):
        _explain_update(got, plain, update, alpha, rank, "the output")
    _expect_lora_gradients(forward, layer, x)
    _expect_gradient_of_x(forward, x, weight, alpha / rank * B @ A)
    whole = expect_tensor(merged(), None, name="what merged returns")
    if whole.shape == (inputs, outputs):
        raise Wrong(f"merged returns {(inputs, outputs)}; a linear layer's weight is (outputs, inputs)")
    expect_tensor(whole, (outputs, inputs), name="what merged returns")
    if not close(whole.detach(), weight + alpha / rank * B @ A, 1e-4):
        _explain_update(whole.detach(), weight, B @ A, alpha, rank, "the merged weight")
    if not close(linear.weight.detach(), weight) or not close(forward(x), got, 1e-4):
        raise Wrong("merged changes the layer: W itself now holds the correction, which forward adds once more")


def _expect_parameters(layer, inputs, outputs, rank):
    """A and B are there, and they alone are trained."""
    if not isinstance(layer, nn.Module):
        raise Wrong(f"LowRank(...) gave a {type(layer).__name__}; wanted a torch.nn.Module")
    for name, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
        if getattr(layer, name, None) is None:
            raise Wrong(f"there is no self.{name}: the constructor makes self.A and self.B, two parameters")
        value = expect_tensor(getattr(layer, name), name=f"self.{name}")
        if tuple(value.shape) == shape[::-1]:
            raise Wrong(f"self.{name} has shape {tuple(value.shape)}; wanted {shape}: A leads from the inputs to the r "
                        "numbers, B from there to the outputs, each as (outputs, inputs)")  # fmt: skip
        expect_tensor(value, shape, name=f"self.{name}")
        if not isinstance(value, nn.Parameter):
            raise Wrong(f"self.{name} is no nn.Parameter, so no optimizer would find it")
        if not value.requires_grad:
            raise Wrong(f"self.{name} is frozen; it is what is to be trained")
    trained = {name: tuple(value.shape) for name, value in layer.named_parameters() if value.requires_grad}
    if (outputs, inputs) in trained.values():
        raise Wrong("W is still trained: freeze the linear layer, or nothing is saved")
    if (outputs,) in trained.values():
        raise Wrong("the bias is still trained: freeze the whole linear layer")
    if set(trained) != {"A", "B"}:
        raise Wrong(f"trained are {', '.join(sorted(trained))}; wanted A and B alone")


def _expect_start(layer):
    """B is zero, A is random."""
    A = layer.A.detach()
    if layer.B.detach().any():
        raise Wrong("A is zero and B is not: this starts as the old layer too, but the exercise and the paper have it "
                    "the other way round")  # fmt: skip
    if not A.any():
        raise Wrong("A and B are both zero: then neither ever gets a gradient, and nothing is learned")
    if len(A.flatten().unique()) < A.numel() // 2:
        raise Wrong("A is not random: if its rows are alike, they stay alike, and the correction keeps rank 1")


def _explain_update(got, plain, update, alpha, rank, name):
    """Say which usual mistake gives an output, or a merged weight, with the correction `update`."""
    mistakes = {
        "alpha / r is missing: B A is added as it is": plain + update,
        "multiplied by alpha, but not divided by r": plain + alpha * update,
        "divided by r, but not multiplied by alpha": plain + update / rank,
        "multiplied by alpha * r; wanted alpha / r": plain + alpha * rank * update,
        "multiplied by r / alpha; wanted alpha / r": plain + rank / alpha * update,
        "divided by the root of r; wanted alpha / r": plain + alpha / math.sqrt(rank) * update,
        "the correction is subtracted": plain - alpha / rank * update,
        "the correction is missing: A and B change nothing": plain,
        "W is missing: this is the correction alone": alpha / rank * update,
    }
    for message, wrong in mistakes.items():
        if close(got, wrong, 1e-4):
            raise Wrong(f"{name}: {message}")
    factor = ((got - plain) * update).sum().item() / update.square().sum().item()
    if close(got, plain + factor * update, 1e-4):
        raise Wrong(f"{name}: the correction comes {factor:.3g} times; wanted is alpha / r, here {alpha / rank:.3g}")
    raise Wrong(f"{name} is right while B is zero, and wrong with other A and B")


def _expect_lora_gradients(forward, layer, x):
    """A and B get gradients."""
    result = forward(x)
    if not result.requires_grad:
        raise Wrong("the output is cut off from A and B (detach, no_grad or .data), so they cannot be trained")
    grads = torch.autograd.grad(result.square().sum(), (layer.A, layer.B), allow_unused=True)
    for name, grad in zip("AB", grads, strict=True):
        if grad is None or not grad.any():
            raise Wrong(f"{name} gets no gradient: is it detached on its way to the output?")


def _expect_gradient_of_x(forward, x, weight, update):
    """What comes back to the layers before is what the merged layer would give."""
    x = x.clone().requires_grad_()
    result = forward(x)
    (got,) = torch.autograd.grad(result.sum(), x, allow_unused=True)
    got = torch.zeros_like(x) if got is None else got
    by_weight, by_update = (matrix.sum(0).expand_as(x) for matrix in (weight, update))
    if close(got, by_weight + by_update, 1e-4):
        return
    if close(got, by_update, 1e-4):
        raise Wrong("the frozen layer passes no gradient on to x (no_grad or detach around it), so layers before it "
                    "would learn from the correction alone. Frozen means that W does not change; the gradient goes "
                    "through")  # fmt: skip
    if close(got, by_weight, 1e-4):
        raise Wrong("the correction passes no gradient on to x (x is detached there), so layers before it would not "
                    "learn what the correction does with x")  # fmt: skip
    raise Wrong("the output is right, but its gradient for x is not that of one layer with the merged weight: is x "
                "detached on its way?")  # fmt: skip


# --- exercise 14.5: eight bits ----------------------------------------------------------------


@check(
    hints=(
        "One row first. Which scale takes its largest absolute value to 127? Then the same for all rows at once.",
        "largest = the largest absolute value of each row (O,); scales = largest / 127, but not 0 for a row of "
        "zeros; ints = weight / scale of its row, rounded, as int8",
        "weight.abs().amax(dim=1); scales[:, None] fits the rows; .round() before .to(torch.int8), which only cuts off",
    )
)
def quantize(student):
    """Exercise 14.5: rows as whole numbers from -127 to 127, each with its scale."""
    weight = _draw(4, 6)
    weight[0, 3], weight[1, 2], weight[2], weight[3] = 3.0, -5.0, 0.0, weight[3] / 1000
    largest = weight.abs().amax(1)  # (O,)
    answer = student(weight)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"expected a tuple (ints, scales), got {type(answer).__name__}")
    ints, scales = answer
    ints = expect_tensor(ints, (4, 6), name="ints")
    expect_tensor(scales, name="scales")
    if ints.dtype == torch.uint8:
        raise Wrong("ints are uint8, which has no negative numbers: -3 becomes 253. Wanted int8")
    if ints.dtype != torch.int8:
        raise Wrong(f"ints have dtype {ints.dtype}; wanted int8, a byte each")
    if scales.numel() == 1 and scales.ndim < 2:
        raise Wrong("one scale for the whole matrix: a single large weight would make all rows coarse. Wanted one a "
                    "row, (4,)")  # fmt: skip
    if scales.shape == (6,):
        raise Wrong("one scale for each of the 6 columns; wanted one for each of the 4 rows")
    scales = expect_tensor(scales, (4,), name="scales").double()
    if not scales[2].isfinite() or scales[2] <= 0:
        raise Wrong(f"the scale of a row of zeros is {scales[2].item():g}: 0 / 0 is nan, and which whole number a nan "
                    "becomes is chance. Take any scale above 0 there, such as 1")  # fmt: skip
    if ints[2].any():
        raise Wrong("a row of zeros must give ints that are all 0")  # fmt: skip
    there = torch.tensor([0, 1, 3])
    _expect_scales(scales[there], largest[there], weight)
    _expect_ints(ints[there], weight[there], scales[there])
    for other in (_draw(3, 5, seed=2), 100 * _draw(1, 7), _draw(7, 1)):
        ints, scales = student(other)
        ints = expect_tensor(ints, tuple(other.shape), torch.int8, "ints")
        scales = expect_tensor(scales, (len(other),), name="scales").double()
        right = other.abs().amax(1) / 127
        if not close(scales / right, torch.ones(len(other))) or (ints - other / right[:, None]).abs().max() > 0.5001:
            raise Wrong(f"right for a weight (4, 6), wrong for {tuple(other.shape)}: is a size written into the code?")
    ints = student(1e-8 * _draw(2, 6, seed=3))[0].abs().amax(1).min().item()
    if ints < 127:
        raise Wrong(f"in a row whose entries are of size 1e-8 the largest becomes {ints}, not 127: is there a floor "
                    "under the scale, or is something added to it? Only a row of zeros needs help")  # fmt: skip
    _own_code(student, (other,), [quantization], ("quantize_per_channel",))


def _expect_scales(scales, largest, weight):
    """The scales of the three rows that are not zero."""
    rows = weight[[0, 1, 3]]
    mistakes = {
        "the scale is the largest absolute value over 128; then +largest becomes 128, which int8 does not have (it "
        "wraps around to -128). Divide by 127": largest / 128,
        "the scale is the largest absolute value over 255: that leaves 127 steps for each sign only if zero is in the "
        "middle, so divide by 127": largest / 255,
        "the scale is the largest absolute value over 256; int8 has 127 steps on either side": largest / 256,
        "the scale is the largest absolute value itself; over 127 it is the size of one step": largest,
        "the scale is taken from the largest value, not the largest absolute value: -5 is larger than 3 here": (
            rows.amax(1) / 127
        ),
        "the scale is the row's range over 255: that belongs to numbers with a zero point. Here it is the largest "
        "absolute value over 127": (rows.amax(1) - rows.amin(1)) / 255,
        "the scale is upside down: 127 over the largest absolute value. ints * scale must give the weight": (
            127 / largest
        ),
        "the scale is taken from the mean absolute value; the largest must still fit": rows.abs().mean(1) / 127,
        "the same scale for every row, from the largest weight of all: each row has its own": (
            weight.abs().max() / 127
        ).expand(3),
    }
    for message, wrong in mistakes.items():
        if close(scales / wrong, torch.ones(3)):
            raise Wrong(message)
    if not close(scales / (largest / 127), torch.ones(3)):
        row = (scales / largest * 127 - 1).abs().argmax().item()
        raise Wrong(f"row {(0, 1, 3)[row]} has the scale {scales[row]:.4g}; its largest absolute value is "
                    f"{largest[row]:.4g}; expected largest / 127, here {largest[row] / 127:.4g}")  # fmt: skip


def _expect_ints(ints, rows, scales):
    """The whole numbers of these rows."""
    steps = rows / scales[:, None]
    if torch.equal(ints, steps.round().to(torch.int8)):
        return
    for message, wrong in {
        "the numbers are cut off, not rounded: 2.9 becomes 2, so an entry is off by up to a whole scale": steps.trunc(),
        "the numbers are rounded down: round to the nearest": steps.floor(),
        "the numbers are rounded up: round to the nearest": steps.ceil(),
        "the weights are rounded without dividing by the scale": rows.round(),
        "the scales are right, but the numbers run to 128 and wrap around: divide by the scale": (
            (rows / rows.abs().amax(1, keepdim=True) * 128).round().clamp(max=128)
        ),
        "the numbers are multiplied by the scale; divide by it": (rows * scales[:, None]).round(),
    }.items():
        wrapped = wrong.long().remainder(256)
        if torch.equal(ints.long().remainder(256), wrapped):
            raise Wrong(message)
    o, i = (ints - steps).abs().flatten().argmax().item() // 6, (ints - steps).abs().flatten().argmax().item() % 6
    raise Wrong(f"an entry is {ints[o, i]} where weight / scale is {steps[o, i]:.2f}: the nearest whole number is off "
                "by at most one half")  # fmt: skip


# --- exercise 14.6: on paper --------------------------------------------------------------------

LLAMA = ("parameters", "cache", "cache with 32 key heads", "16 bits", "8 bits", "LoRA")
TABLE, SQUARE, NARROW, WIDE = 128256 * 4096, 4096 * 4096, 4096 * 1024, 4096 * 14336


@check(
    hints=(
        "Begin with one block: four matrices of the attention, two of them narrower, and three of SwiGLU. A cache "
        "holds keys and values of every block, of the 8 key heads alone.",
        "block: 2 D^2 + 2 D (8 * 128) + 3 D F; 32 of these and 2 V D. Cache: 2 * N * tokens * 8 * 128 numbers. LoRA "
        "for a matrix (outputs, inputs): 16 (inputs + outputs)",
        "one block has 218 million; the tables have 525 million each. The cache has 537 million numbers. LoRA trains "
        "16 * (4096 + 4096) and 16 * (4096 + 1024) in each block",
    )
)
def llama_numbers(answer):
    """Exercise 14.6: parameters, cache, weights in 16 and 8 bits, LoRA's percentage, for Llama 3 8B."""
    got = dict(zip("abcdef", expect_numbers(answer, LLAMA), strict=True))
    blocks = 32 * (2 * SQUARE + 2 * NARROW + 3 * WIDE)
    right = blocks + 2 * TABLE
    cache = 2 * 32 * 8192 * 8 * 128 * 2 / 1e9
    lora = 32 * 16 * (4096 + 4096 + 4096 + 1024)
    _expect_value("(a)", got["a"], right / 1e9, {
        right: "(a) is wanted in billions",
        right / 1e6: "(a) these are millions; wanted are billions",
        (right - TABLE) / 1e9: "(a) half a billion is missing: one of the two tables, or one of the four matrices of "
        "the attention in each block (almost as many)",
        blocks / 1e9: "(a) the tables are missing: V D each, for input and output",
        (right + 32 * 2 * (SQUARE - NARROW)) / 1e9: "(a) all 32 heads have their own keys and values there; only 8 "
        "do, so these matrices are (1024, 4096)",
        (right - 32 * WIDE) / 1e9: "(a) SwiGLU has three matrices of D x F: gate, up and down",
        (right - 32 * 2 * NARROW) / 1e9: "(a) the matrices of keys and values are missing",
        (blocks / 32 + 2 * TABLE) / 1e9: "(a) that is one block; there are 32",
    }, "count block by block: attention, SwiGLU; then the two tables")  # fmt: skip
    gibi = 1e9 / 2**30
    for letter, name, wanted in (("b", "8 key heads", cache), ("c", "32 key heads", 4 * cache)):
        _expect_value(f"({letter})", got[letter], wanted, {
            wanted / 2: f"({letter}) half of it: keys and values are both kept, with 2 bytes a number",
            wanted * 2: f"({letter}) twice too much: a number has 2 bytes",
            wanted * gibi: f"({letter}) these are GiB, of 2^30 bytes; a gigabyte has 10^9",
            wanted / 32: f"({letter}) every one of the 32 blocks has its own cache",
            wanted / (8 if letter == "b" else 32): f"({letter}) that is one key head; there are {name}",
            wanted * (4 if letter == "b" else 1 / 4): f"({letter}) the wrong heads are counted: {name} are kept",
            wanted * 8: f"({letter}) these are gigabits; a byte has 8 bits",
            wanted * 1e9: f"({letter}) is wanted in gigabytes",
        }, "2 (keys, values) x blocks x tokens x key heads x K x 2 bytes, over 1e9")  # fmt: skip
    _expect_value("(d)", got["d"], 2 * right / 1e9, {
        right / 1e9: "(d) that is one byte a number; 16 bits are two",
        4 * right / 1e9: "(d) that is 32 bits a number",
        16 * right / 1e9: "(d) these are gigabits; a byte has 8 bits",
        2 * right / 2**30: "(d) these are GiB, of 2^30 bytes; a gigabyte has 10^9",
        2 * blocks / 1e9: "(d) the tables are missing",
    }, "the number of (a), 2 bytes each")  # fmt: skip
    _expect_value("(e)", got["e"], (blocks + 4 * TABLE) / 1e9, {
        right / 1e9: "(e) either the tables are in 8 bits too, or only one of them is counted; both stay in 16 bits",
        blocks / 1e9: "(e) the tables are missing; they stay in 16 bits",
        (blocks + 3 * TABLE) / 1e9: "(e) one of the two tables is in 8 bits; both stay in 16",
        (blocks + 8 * TABLE) / 1e9: "(e) the tables are in 32 bits; they stay in 16",
        (2 * blocks + 2 * TABLE) / 1e9: "(e) the wrong way round: the blocks go to 8 bits, the tables stay in 16",
        2 * right / 1e9: "(e) is as (d): the matrices of the blocks take one byte a number now",
        (blocks + 4 * TABLE) / 2**30: "(e) these are GiB, of 2^30 bytes; a gigabyte has 10^9",
    }, "one byte for each number of the blocks, two for each of the tables")  # fmt: skip
    _expect_value("(f)", got["f"], 100 * lora / right, {
        lora / right: "(f) that is the fraction; wanted is a percentage, 100 times as much",
        lora: "(f) that is the number of trained parameters; wanted is their percentage",
        lora / 1e6: "(f) these are millions of parameters; wanted is their percentage",
        100 * lora / right / 32: "(f) that is one block; all 32 are trained",
        200 * lora / right: "(f) twice too much, as if keys and output had corrections too, or the rank were 32",
        50 * lora / right: "(f) half of it: the rank is 16, and each matrix has an A and a B",
        100 * 32 * 16 * 8192 / right: "(f) either the queries alone are counted or A alone (both give 131,072 a "
        "block); each of the two matrices has A and B",
        100 * 32 * 16 * 5120 / right: "(f) either the values alone are counted or B alone (both give 81,920 a "
        "block); each of the two matrices has A and B",
        100 * 32 * 16 * 16384 / right: "(f) the value matrix is (1024, 4096): its B has 1,024 rows",
        100 * 32 * 16 * 10240 / right: "(f) both are counted as (1024, 4096); the query matrix is (4096, 4096)",
        100 * 32 * (SQUARE + NARROW) / right: "(f) those are the two matrices themselves; LoRA trains A and B",
        100 * lora / (32 * (SQUARE + NARROW)): "(f) that is the share of the two matrices; wanted is that of all "
        "parameters",
    }, "16 (inputs + outputs) for each of the two matrices of each block, over (a)")  # fmt: skip


def _expect_value(letter, got, wanted, mistakes, plan):
    """One of the numbers: right to three digits, or a message."""
    if near(got / wanted, 1.0):
        return
    if not math.isfinite(got) or got <= 0:
        raise Wrong(f"{letter} is {expect_number(got, letter):.4g}; wanted is a finite number above 0")
    for wrong, message in mistakes.items():
        if near(got / wrong, 1.0):
            raise Wrong(message)
    if any(math.isclose(got, round(wanted, places), rel_tol=1e-9) for places in range(3)):
        raise Wrong(f"{letter} {got:.4g} is rounded too far: three digits are wanted (0.0123 has three)")
    if math.isclose(got, wanted, rel_tol=0.03):
        raise Wrong(f"{letter} {got:.4g} is close, but not right to three digits: give three")
    raise Wrong(f"{letter} {got:.4g} is not right; {plan}")


# --- exercise 14.7: linear attention, step by step -------------------------------------------


def _phi(x):
    return torch.where(x > 0, x + 1, x.exp())


def _linear(q, k, v, phi_q=_phi, phi_k=_phi, own=True, below=None):
    """Linear attention over all tokens at once, (B, H, T, E), with mistakes to choose from; `below` divides."""
    weights = (phi_q(q) @ phi_k(k).mT).tril(0 if own else -1)  # (B, H, T, T)
    total = weights.sum(-1, keepdim=True) if below is None else below(weights)
    return weights @ v / total


@check(
    hints=(
        "What does token t need of those before it? Write the sum over s, and take out of it what does not depend on "
        "s: the query.",
        "q, k = phi(q), phi(k); S = S + outer product of k and v; z = z + k; y = (q S) / (q . z); return y and (S, z)",
        "k[..., None] * v[..., None, :] is (B, H, K, E); (q[..., None, :] @ S).squeeze(-2) is (B, H, E)",
    )
)
def linear_step(student):
    """Exercise 14.7: linear attention as a loop's step."""
    B, H, K, E, T = 2, 3, 4, 5, 6
    q, k, v = _draw(B, H, T, K), _draw(B, H, T, K, seed=1), _draw(B, H, T, E, seed=2)
    state = start = (torch.zeros(B, H, K, E).double(), torch.zeros(B, H, K).double())
    outputs, states = [], [start]
    for t in range(T):
        y, state = _one_step(student, q[:, :, t], k[:, :, t], v[:, :, t], state, (B, H, E))
        outputs.append(y)
        states.append(state)
    if close(states[1][0], start[0]) and close(states[1][1], start[1]):
        raise Wrong("the state that comes back is the one that was given: return the new sums, with this token")
    got = torch.stack(outputs, 2).double()
    if not close(got, _linear(q, k, v)):
        _explain_linear(got, q, k, v, states)
    sums = (_phi(k).mT @ v, _phi(k).sum(2))  # (B, H, K, E), (B, H, K)
    for mine, wanted, name in zip(states[-1], sums, ("S", "z"), strict=True):
        if not close(mine, wanted):
            raise Wrong(f"the outputs are right, but after {T} tokens the returned {name} is not the sum that the "
                        "exercise names")  # fmt: skip
    given = [_draw(1, 2, n, seed=3) for n in (3, 3, 7)]
    before = _draw(1, 2, 3, 7, seed=4), _draw(1, 2, 3, seed=4).abs()
    y, (S, z) = _one_step(student, *given, before, (1, 2, 7))
    S_new = before[0] + _phi(given[1])[..., None] * given[2][..., None, :]
    z_new = before[1] + _phi(given[1])
    right = torch.einsum("bhk,bhke->bhe", _phi(given[0]), S_new) / (_phi(given[0]) * z_new).sum(-1, keepdim=True)
    if not (close(y, right) and close(S, S_new) and close(z, z_new)):
        raise Wrong("right from a state of zeros, wrong from another one with other sizes")
    ready = [
        linear_attention.linear_attention_step,
        linear_attention.linear_attention,
        linear_attention.LinearAttention,
    ]
    _own_code(student, (*given, before), ready)


def _one_step(student, q, k, v, state, shape):
    """Call it and look at the form of what comes."""
    kept = [part.clone() for part in state]
    answer = student(q, k, v, state)
    if not isinstance(answer, (tuple, list)) or len(answer) != 2:
        raise Wrong(f"expected a tuple (y, state), got {type(answer).__name__}")
    y, new = answer
    if not isinstance(new, (tuple, list)) or len(new) != 2:
        raise Wrong(f"the state is a tuple (S, z); got {type(new).__name__}")
    y = expect_tensor(y, shape, name="y")
    new = tuple(
        expect_tensor(part, tuple(old.shape), name=name) for part, old, name in zip(new, kept, ("S", "z"), strict=True)
    )
    if any(not torch.equal(old, now) for old, now in zip(kept, state, strict=True)):
        raise Wrong("your function changes its argument in place: the state it is given; make a new one, so that "
                    "callers keep theirs")  # fmt: skip
    return y, new


def _explain_linear(got, q, k, v, states):
    """Say which usual mistake gives these outputs; the first token may be 0 / 0."""
    T, K = q.shape[2:]
    count = torch.arange(1, T + 1.0, dtype=torch.float64)[:, None]
    own = _phi(k)

    def same(x):
        return x

    mistakes = {
        "the feature map is missing: elu(x) + 1 on queries and keys": _linear(q, k, v, same, same),
        "the feature map is missing on the queries": _linear(q, k, v, same),
        "the feature map is missing on the keys": _linear(q, k, v, _phi, same),
        "elu(x) without + 1: features must be above 0, or the normaliser may be 0": _linear(q, k, v, F.elu, F.elu),
        "exp(x) in place of elu(x) + 1": _linear(q, k, v, torch.exp, torch.exp),
        "relu(x) in place of elu(x) + 1": _linear(q, k, v, F.relu, F.relu),
        "relu(x) + 1 in place of elu(x) + 1": _linear(q, k, v, lambda x: F.relu(x) + 1, lambda x: F.relu(x) + 1),
        "a softmax in place of elu(x) + 1": _linear(q, k, v, lambda x: x.softmax(-1), lambda x: x.softmax(-1)),
        "the normaliser is missing: divide by the product of phi(q) and z": _linear(q, k, v, below=lambda w: 1.0),
        "divided by the number of tokens; divide by the product of phi(q) and z": (
            _linear(q, k, v, below=lambda w: count)
        ),
        "divided by the sum of z; divide by the product of phi(q) and z": (
            _linear(q, k, v, below=lambda w: own.cumsum(2).sum(-1, keepdim=True))
        ),
        "the normaliser's z adds up k itself; like S it takes the features phi(k)": (
            _linear(q, k, v, below=lambda w: (_phi(q) @ k.mT).tril().sum(-1, keepdim=True))
        ),
        "the normaliser takes q itself; like the numerator it takes the features phi(q)": (
            _linear(q, k, v, below=lambda w: (q @ own.mT).tril().sum(-1, keepdim=True))
        ),
        "the own token is missing: the state is read before this token is added": _linear(q, k, v, own=False),
        "z is read before this token is added to it": (
            _linear(q, k, v, below=lambda w: w.tril(-1).sum(-1, keepdim=True))
        ),
        "S is read before this token is added to it": (
            _linear(q, k, v, own=False, below=lambda w: (_phi(q) @ own.mT).tril().sum(-1, keepdim=True))
        ),
        "the normaliser knows this token alone: z is a sum, too": (
            _linear(q, k, v, below=lambda w: w.diagonal(dim1=-2, dim2=-1)[..., None])
        ),
        "each token sees itself alone (y = v): the new S and z are not added to the old": v,
        "queries are divided by the root of K, which the formula does not have": _linear(q / math.sqrt(K), k, v),
        "multiplied by the normaliser; divide by it": (
            _linear(q, k, v, below=lambda w: 1 / w.sum(-1, keepdim=True))
        ),
        "key and query have exchanged their parts": _linear(k, q, v),
    }  # fmt: skip
    for message, wrong in mistakes.items():
        if close(got[:, :, 1:].nan_to_num(), wrong[:, :, 1:].nan_to_num()):
            raise Wrong(message)
    old, new = states[-2][0], states[-1][0]
    added = own[:, :, -1, :, None] * v[:, :, -1, None, :]
    factor = ((new - added) * old).sum() / old.square().sum()
    if not close(factor, 1.0) and close(new - added, factor * old):
        raise Wrong(f"the old S is multiplied by {factor:.3g}, so old tokens fade; here all count the same")
    weights = (_phi(q) @ own.mT).tril()
    top, below = weights @ v, weights.sum(-1, keepdim=True)
    extra = ((top - below * got) * got).sum() / got.square().sum()  # if got is top / (below + extra)
    if close((below + extra) * got, top):
        raise Wrong(f"{extra:.2g} is added to the normaliser, which shifts every output: phi(q) . z is above 0 and "
                    "needs no help")  # fmt: skip
    right = torch.isclose(got, _linear(q, k, v), atol=1e-5).all(-1).all(0).all(0).tolist()
    raise Wrong(f"token {right.index(False)} is the first whose output differs from that of all tokens at once")


what_a_state_holds = Written(
    hints=(
        "(a) Put the sum of k^T v into the product with k_i, and take out of the sum the one term that you want. (b) "
        "What sign has the product of two vectors whose entries are all positive? (c) What does the softmax keep "
        "that the state does not? (d) Think of a translator.",
        "(a) How large is k_i . k_i for random keys of width K, how large k_i . k_s, and how do n of these add up? "
        "(b) Try a few pairs only. (c) Count numbers kept, and comparisons for a new token. (d) Chapters 06 and 07; "
        "then: what could a state do before it writes to a place that is taken?",
        "(a) About K against the root of K, with random signs: n of them are of size root of n K. (b) They do not "
        "cancel. (c) All keys and values, and an exponential. (d) The encoder's last state; gates, a delta rule, a "
        "few layers of attention.",
    ),
    good_answer=(
        "(a) The answer is |k_i|^2 v_i plus crosstalk, the other values times k_i . k_s; for random keys its relative "
        "size is about the root of n / K, small for few pairs, larger than the value for many (and no more than K "
        "keys can be orthogonal). (b) With positive features all products are positive: the crosstalk does not "
        "cancel, and every answer is drawn to the mean of the values. (c) Softmax attention keeps all keys and values "
        "and lets the exponential make the best match stand out; it pays with a cache and with work for each token "
        "that grow with the text. (d) The encoder's last state of chapter 06, which attention relieved; here: a "
        "larger state, a state that forgets or takes away what is overwritten (gates, delta rule), or a few layers "
        "of softmax attention among many of fixed state."
    ),
)


# --- exercise 14.8: an ablation, in words ------------------------------------------------------

an_ablation = Written(
    hints=(
        "(a) Count the parameters of both models. (b) Take a change whose effect you can argue for. (c) Compare each "
        "seed with itself. (d) What was the same in all runs, so that they cannot say what happens when it differs?",
        "(a) number_of_parameters(original()), number_of_parameters(changed()); a wider or narrower feed-forward "
        "network makes them equal. (b) Exchange a part in every block: for block in model.blocks: block.norm2 = ... "
        "(c) The sign in each seed, and the size beside the spread of the original. (d) Steps, rate, size, text.",
        "(a) 8,192 more; dim_feedforward=147 takes almost as many away. (b) Without norm2 the feed-forward network "
        "reads vectors of any length. (c) Three signs alike, and differences above the spread, are an effect here. "
        "(d) 120 steps measure a fast start; neither side had its best learning rate.",
    ),
    good_answer=(
        "(a) The example also has 8,192 more parameters; with dim_feedforward=147 the two are equal to 64 a block. "
        "(b) One change and no other, an expectation with a direction, a size and a reason, written before the run, "
        "and a list of what is held equal (data and their order, steps, rate, batch, seeds, parameters) and what "
        "could not be. (c) All three differences with their signs, each seed against itself, beside the spread of "
        "the original; if they straddle zero, the seeds do not say. (d) A sentence that names the size, the steps, "
        "the text, the rate and the number of seeds. What such runs cannot show: the order after a long training, "
        "with the best rate for each side (neither was tuned), at another size or on other text. A surprise is a "
        "result too: it is reported, not explained away."
    ),
)
