"""The checks of chapter 14: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import itertools
import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.exercises import ch14
from course_lib.linear_attention import linear_attention_step
from course_lib.llama import Llama, LlamaConfig, SwiGLU
from course_lib.quantization import quantize_rows
from tests.helpers.huggingface import reference
from tests.helpers.solutions import solution, verdict

ANSWERS = {  # check: the answer's name
    "rms_norm": "rms_norm",
    "swiglu": "swiglu",
    "grouped_attention": "grouped_attention",
    "llama_block": "llama_block",
    "low_rank": "LowRank",
    "quantize": "quantize",
    "llama_numbers": "llama_numbers",
    "linear_step": "linear_step",
}


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def rms(dim=-1, centre=False, eps=None, spread=None, weight=lambda w, y: w * y, times=False, wide=True):
    """RMSNorm, with mistakes to choose from; `spread` gives what is divided by."""

    def norm(x, w, given):
        x = x.double() if wide else x
        e = given if eps is None else eps
        x = x - x.mean(-1, keepdim=True) if centre else x
        root = (x.square().mean(dim, keepdim=True) + e).sqrt() if spread is None else spread(x, e)
        return weight(w, x * root if times else x / root)

    return norm


def rms_by_size(x, w, eps):
    """Right for vectors of 5 entries."""
    return w * x / (x.square().sum(-1, keepdim=True) / 5 + eps).sqrt()


def nan_at_zero(x, w, eps):
    root = x.double().square().mean(-1, keepdim=True)
    return w * x / (root + eps * (root > 0)).sqrt()


def glu(act=F.silu, both=False, first="gate", second="up", combine=torch.mul, last=True):
    """SwiGLU, with mistakes to choose from."""

    def network(x, gate, up, down):
        weights = {"gate": gate, "up": up}
        one, two = x @ weights[first].T, x @ weights[second].T
        hidden = combine(act(one), act(two) if both else two)
        return hidden @ down.T if last else hidden

    return network


def groups(key=None, value=None, scale=None, shift=None, causal=None, fill=-math.inf, axis=-1, mean=False, flip=False,
           late=False):  # fmt: skip
    """Grouped-query attention, with mistakes to choose from."""

    def attention(q, k, v, hide):
        (H, T, K), (G, S) = q.shape[1:], k.shape[1:3]
        right = torch.arange(H) // (H // G)
        k = k[:, right if key is None else key(H, G)]
        v = v[:, right if value is None else value(H, G)]
        if mean:
            q = q.unflatten(1, (G, H // G)).mean(2).repeat_interleave(H // G, 1)
        scores = q @ k.mT / math.sqrt(K if scale is None else scale(H, K))
        may = torch.ones(T, S, dtype=torch.bool).tril(S - T if shift is None else shift(T, S))
        may = ~may if flip else may
        if late:
            weights = scores.softmax(-1)
            return (weights * may if hide else weights) @ v
        if hide if causal is None else causal:
            scores = scores.masked_fill(~may, fill)
        return scores.softmax(axis) @ v

    return attention


def tiled(H, G):
    return torch.arange(H) % G


def first_head(H, G):
    return torch.zeros(H, dtype=torch.long)


def no_softmax(q, k, v, causal):
    k, v = (y.repeat_interleave(q.shape[1] // k.shape[1], 1) for y in (k, v))
    return q @ k.mT / math.sqrt(q.shape[3]) @ v


def one_head_wrong(q, k, v, causal):
    found = groups()(q, k, v, causal).clone()
    found[:, 4] = 0.0
    return found


def same_cache_only(q, k, v, causal):
    """Right where the cache is short: it leaves out keys beyond the fifth."""
    return groups()(q, k[:, :, -5:], v[:, :, -5:], causal)


def masked_without_cache(q, k, v, causal):
    return groups()(q, k, v, causal and q.shape[2] == k.shape[2])


def block(turn="qk", attention=None, network=None, norms=(1, 1), residuals=(1, 1), order="pre", join=None, swap=(),
          normed_stream=(0, 0), cut=None, eps=None):  # fmt: skip
    """A Llama's block, with mistakes to choose from; `swap` says which weight stands for which."""
    attention, network = attention or groups(), network or glu()

    def whole(x, weights, rotate, H, G, e):
        w = weights | {name: weights[other] for name, other in dict(swap).items()}
        small = eps if isinstance(eps, dict) else dict.fromkeys(("norm_1", "norm_2"), e if eps is None else eps)

        def norm(y, name, on=True):
            return rms()(y, w[name], small.get(name, e)) if on else y

        def attend(y):
            K = len(w["q"]) // H
            split = {
                n: (y @ w[n].T).unflatten(-1, (-1, K)).transpose(1, 2) if cut is None else cut(y @ w[n].T, K)
                for n in "qkv"
            }
            q, k, v = (rotate(split[n]) if n in turn else split[n] for n in "qkv")
            heads = attention(q, k, v, True)
            return (heads.transpose(1, 2).flatten(2) if join is None else join(heads)) @ w["o"].T

        def think(y):
            return network(y, w["gate"], w["up"], w["down"])

        if order == "post":
            x = norm(x + attend(x), "norm_1")
            return norm(x + think(x), "norm_2")
        if order == "inside":
            x = x + norm(attend(x), "norm_1")
            return x + norm(think(x), "norm_2")
        if order in ("first post", "first inside"):
            x = norm(x + attend(x), "norm_1") if order == "first post" else x + norm(attend(x), "norm_1")
            return x + think(norm(x, "norm_2"))
        if order in ("second post", "second inside"):
            x = x + attend(norm(x, "norm_1"))
            return norm(x + think(x), "norm_2") if order == "second post" else x + norm(think(x), "norm_2")
        if order == "parallel":
            return x + attend(norm(x, "norm_1")) + think(norm(x, "norm_2"))
        y = norm(x, "norm_1", norms[0])
        x = (y if normed_stream[0] else residuals[0] * x) + attend(y)
        y = norm(x, "norm_2", norms[1])
        return (y if normed_stream[1] else residuals[1] * x) + think(y)

    return whole


def unweighted(*names):
    """A block whose norms lack their weight."""

    def whole(x, weights, *more):
        return block()(x, weights | {name: torch.ones_like(weights[name]) for name in names}, *more)

    return whole


def without(name):
    """A block in which a sublayer gives nothing."""

    def whole(x, weights, *more):
        return block()(x, weights | {name: 0 * weights[name]}, *more)

    return whole


def onto_the_input(x, weights, *more):
    return x + block(residuals=(1, 0))(x, weights, *more)


def wrong_later(x, weights, *more):
    found = block()(x, weights, *more)
    return found * torch.linspace(1, 2, x.shape[1])[:, None]


def lora(scale=lambda alpha, r: alpha / r, B=torch.zeros, A=torch.randn, freeze="all", merged=None, forward=None,
         parameter=nn.Parameter, swapped=False, more=False):  # fmt: skip
    """A class with mistakes to choose from."""

    class Layer(nn.Module):
        def __init__(self, linear, rank, alpha):
            super().__init__()
            self.linear, self.scale = linear, scale(alpha, rank)
            if freeze in ("all", "weight"):
                linear.weight.requires_grad_(False)
            if freeze in ("all", "bias") and linear.bias is not None:
                linear.bias.requires_grad_(False)
            shapes = (rank, linear.in_features), (linear.out_features, rank)
            self.A, self.B = (
                parameter(make(*(shape[::-1] if swapped else shape)))
                for make, shape in zip((A, B), shapes, strict=True)
            )
            if more:
                self.gain = nn.Parameter(torch.ones(1))

        def forward(self, x):
            if forward is not None:
                return forward(self, x)
            return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)

        def merged(self):
            if merged is not None:
                return merged(self)
            return self.linear.weight + self.scale * self.B @ self.A

    return Layer


def merged_in_place(self):
    self.linear.weight.data += self.scale * self.B @ self.A
    return self.linear.weight.detach().clone()


def alike(*shape):
    return torch.ones(*shape)


def frozen(value):
    return nn.Parameter(value, requires_grad=False)


def no_bias(self, x):
    return x @ self.linear.weight.T + self.scale * (x @ self.A.T @ self.B.T)


def two_biases(self, x):
    bias = 0 if self.linear.bias is None else self.linear.bias
    return self.linear(x) + bias + self.scale * (x @ self.A.T @ self.B.T)


def cut(self, x):
    return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T).detach()


def only_B(self, x):
    return self.linear(x) + self.scale * (x @ self.A.detach().T @ self.B.T)


def frozen_by_no_grad(self, x):
    with torch.no_grad():
        plain = self.linear(x)
    return plain + self.scale * (x @ self.A.T @ self.B.T)


def from_detached(self, x):
    return self.linear(x) + self.scale * (x.detach() @ self.A.T @ self.B.T)


def no_gradient_for_x(self, x):
    return frozen_by_no_grad(self, x.detach())


def nearly(self, x):
    return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T).tanh()


def rows(largest=lambda w: w.abs().amax(1), steps=127, top=None, rounded=torch.round, zero=1.0, kind=torch.int8,
         finish=None):  # fmt: skip
    """Rows in 8 bits, with mistakes to choose from."""

    def quantized(weight):
        size = largest(weight)
        scales = torch.where(size > 0, size / steps, zero)
        ints = rounded(weight / (scales if top is None else size / top)[:, None]).nan_to_num()
        ints = ints.to(torch.int16).to(kind)
        return (ints, scales) if finish is None else finish(ints, scales)

    return quantized


def divided_by_zero(weight):
    scales = weight.abs().amax(1) / 127
    return (weight / scales[:, None]).nan_to_num().round().to(torch.int8), scales / (scales > 0)


def nan_as_number(weight):
    ints, scales = rows()(weight)
    return torch.where(scales[:, None] == 1.0, -128, ints).to(torch.int8), scales


def columns(weight):
    ints, scales = rows()(weight.T)
    return ints.T, scales


def whole_matrix(weight):
    scale = weight.abs().max() / 127
    return (weight / scale).round().to(torch.int8), scale


def one_for_all(weight):
    scale = weight.abs().max() / 127
    return (weight / scale).round().to(torch.int8), scale.expand(len(weight))


def odd_entry(weight):
    ints, scales = rows()(weight)
    ints[0, 0] += 2
    return ints, scales


def only_small(weight):
    ints, scales = rows()(weight)
    return (ints, scales) if len(weight) == 4 else (ints // 2, scales)


def step(phi_q=None, phi_k=None, normal="z", own=True, own_z=True, keep=True, keep_z=True, decay=1.0, scale=False,
         swap=False, give="new", times=False, phi_z=None, phi_below=None, extra=0.0):  # fmt: skip
    """A step of linear attention, with mistakes to choose from."""
    phi_q, phi_k = phi_q or (lambda x: F.elu(x) + 1), phi_k or (lambda x: F.elu(x) + 1)
    count = [0]

    def one(q, k, v, state):
        S, z = state
        count[0] = 1 if not S.any() else count[0] + 1
        q, k = (k, q) if swap else (q, k)
        raw_q, raw_k = q, k
        q = phi_q(q / math.sqrt(q.shape[-1]) if scale else q)
        k = phi_k(k)
        S_new = (decay * S if keep else 0) + k[..., None] * v[..., None, :]
        z_new = (decay * z if keep_z else 0) + (k if phi_z is None else phi_z(raw_k))
        top = torch.einsum("bhk,bhke->bhe", q, S_new if own else S)
        asked = q if phi_below is None else phi_below(raw_q)
        below = (asked * (z_new if own_z else z)).sum(-1, keepdim=True) + extra
        below = {"z": below, "none": 1.0, "count": count[0], "sum": z_new.sum(-1, keepdim=True)}[normal]
        return top * below if times else top / below, (S_new, z_new) if give == "new" else (S, z)

    return one


def in_place(q, k, v, state):
    y, (S, z) = step()(q, k, v, state)
    state[0].copy_(S)
    state[1].copy_(z)
    return y, state


def wrong_state(q, k, v, state):
    """The outputs of the first run are right; S holds twice as much, and is halved when it is read."""
    y, (S, z) = step()(q, k, v, (state[0] / 2, state[1]))
    return y, (2 * S, z)


def wrong_sizes(q, k, v, state):
    y, new = step()(q, k, v, state)
    return (y if y.shape[-1] == 5 else 2 * y), new


def tired(q, k, v, state):
    y, (S, z) = step()(q, k, v, state)
    return y * (z[..., :1] < 5), (S, z)


TABLE, SQUARE, NARROW, WIDE = 128256 * 4096, 4096**2, 4096 * 1024, 4096 * 14336
BLOCKS = 32 * (2 * SQUARE + 2 * NARROW + 3 * WIDE)
ALL = BLOCKS + 2 * TABLE + 65 * 4096
CACHE = 2 * 32 * 8192 * 1024 * 2 / 1e9
TRAINED = 32 * 16 * (8192 + 5120)
NUMBERS = [ALL / 1e9, CACHE, 4 * CACHE, 2 * ALL / 1e9, (BLOCKS + 4 * TABLE) / 1e9, 100 * TRAINED / ALL]


def paper(**changes):
    """The right numbers, some replaced: `paper(a=0.5)`."""
    return tuple(changes.get(letter, value) for letter, value in zip("abcdef", NUMBERS, strict=True))


def by_torch(x, weight, eps):
    return F.rms_norm(x.float(), x.shape[-1:], weight.float(), eps)


def by_library(x, gate, up, down):
    layer = SwiGLU(x.shape[-1], len(gate)).to(x.dtype)
    weights = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
    return torch.func.functional_call(layer, weights, (x,))


def torchs_attention(q, k, v, causal):
    T, S = q.shape[2], k.shape[2]
    mask = torch.ones(T, S, dtype=torch.bool).tril(S - T) if causal else None
    return F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=True)


def in_all(x, w, eps):
    return w * x.double() / (x.double().square().mean() + eps).sqrt()


PLANTED = {
    "rms_norm": [
        ("that is LayerNorm", rms(centre=True)),
        ("after subtracting the mean", rms(spread=lambda x, e: (x.var(-1, correction=0, keepdim=True) + e).sqrt())),
        ("with n - 1", rms(spread=lambda x, e: (x.var(-1, keepdim=True) + e).sqrt())),
        ("added up, not averaged", rms(spread=lambda x, e: (x.square().sum(-1, keepdim=True) + e).sqrt())),
        ("over the positions", rms(dim=1)),
        ("over the batch", rms(dim=0)),
        ("whole tensor", in_all),
        ("each text", rms(dim=(-1, -2))),
        ("after the root", rms(spread=lambda x, e: x.square().mean(-1, keepdim=True).sqrt() + e)),
        ("eps is missing", rms(eps=1e-5)),
        ("the root is missing", rms(spread=lambda x, e: x.square().mean(-1, keepdim=True) + e)),
        ("multiplied by the root", rms(times=True)),
        ("the weight is missing", rms(weight=lambda w, y: y)),
        ("the weight is added", rms(weight=lambda w, y: w + y)),
        ("1 + weight", rms(weight=lambda w, y: (1 + w) * y)),
        ("divided by the weight", rms(weight=lambda w, y: y / w)),
        ("before the norm", lambda x, w, eps: rms()(w * x, 1.0, eps)),
        ("absolute values", rms(spread=lambda x, e: x.abs().mean(-1, keepdim=True) + e)),
        ("is not weight * x", rms(spread=lambda x, e: x.abs().amax(-1, keepdim=True) + e)),
        ("a row of zeros gives nan", nan_at_zero),
        ("wrong for x (4, 7)", rms_by_size),
        ("before you square", rms(wide=False)),
        ("the ready-made rms_norm", by_torch),
        ("has shape (2, 3, 1)", lambda x, w, eps: (x.square().mean(-1, keepdim=True) + eps).sqrt()),
    ],
    "swiglu": [
        ("exchanged their parts", glu(first="up", second="gate")),
        ("sigmoid in place", glu(torch.sigmoid)),
        ("silu is missing", glu(lambda z: z)),
        ("relu in place", glu(F.relu)),
        ("gelu in place", glu(F.gelu)),
        ("approximation with tanh", glu(lambda z: F.gelu(z, approximate="tanh"))),
        ("tanh in place", glu(torch.tanh)),
        ("are added", glu(combine=torch.add)),
        ("to the product of the two", glu(lambda z: z, combine=lambda one, two: F.silu(one * two))),
        ("both products go through silu", glu(both=True)),
        ("without a gate", glu(combine=lambda one, two: one)),
        ("up alone", glu(combine=lambda one, two: two)),
        ("multiplies itself", glu(second="gate")),
        ("after down", lambda x, g, u, d: (F.silu(x @ g.T) @ d.T) * (x @ u.T @ d.T)),
        ("applied to x", lambda x, g, u, d: ((F.silu(x) @ g.T) * (x @ u.T)) @ d.T),
        ("at the very end", lambda x, g, u, d: F.silu(glu(lambda z: z)(x, g, u, d))),
        ("residual connection", lambda x, g, u, d: x + glu()(x, g, u, d)),
        ("is not the product", glu(combine=torch.sub)),
        ("has the width F", glu(last=False)),
        ("the ready-made SwiGLU", by_library),
        ("wrong for x (4, 6)", lambda x, g, u, d: glu()(x, g, u, d) * (2 if x.ndim == 2 else 1)),
        ("raised RuntimeError", lambda x, g, u, d: (F.silu(x @ g) * (x @ u)) @ d),
    ],
    "grouped_attention": [
        ("as `repeat` gives it", groups(key=tiled, value=tiled)),
        ("the keys are right, the values", groups(value=tiled)),
        ("the values are right, the keys", groups(key=tiled)),
        ("first key head", groups(key=first_head, value=first_head)),
        ("not divided by the root of K", groups(scale=lambda H, K: 1)),
        ("divided by K; its root", groups(scale=lambda H, K: K * K)),
        ("root of H K", groups(scale=lambda H, K: H * K)),
        ("root of K G / H", groups(scale=lambda H, K: K / 3)),
        ("none of the 6 heads is right", groups(scale=lambda H, K: 4 * K)),
        ("of a group are averaged", groups(mean=True)),
        ("over the queries", groups(axis=-2)),
        ("softmax is missing", no_softmax),
        ("causal = False, yet later", groups(causal=True)),
        ("that begins at the first key", groups(causal=True, shift=lambda T, S: 0)),
        ("5 of 6 heads are right", one_head_wrong),
        ("aligned at the start", groups(shift=lambda T, S: 0)),
        ("causal = True changes nothing", groups(causal=False)),
        ("acts only where S = T", masked_without_cache),
        ("nan", groups(shift=lambda T, S: S - T, fill=math.nan)),
        ("all their keys are hidden", groups(shift=lambda T, S: -1)),
        ("wrong way round", groups(flip=True, shift=lambda T, S: S - T)),
        ("does not see its own position", groups(shift=lambda T, S: S - T - 1)),
        ("one position after its own", groups(shift=lambda T, S: S - T + 1)),
        ("are set to 0", groups(fill=0.0)),
        ("are set to 1", groups(fill=1.0)),
        ("cut off after the softmax", groups(late=True)),
        ("wrong with causal = True", groups(fill=2.0)),
        ("T = 2, S = 6", same_cache_only),
        ("the ready-made scaled_dot_product_attention", torchs_attention),
        ("has shape (4, 2, 3, 7)", lambda q, k, v, c: groups()(q[:, ::3], k, v, c)),
    ],
    "llama_block": [
        ("weight of both norms is missing", unweighted("norm_1", "norm_2")),
        ("first norm's weight", unweighted("norm_1")),
        ("second norm's weight", unweighted("norm_2")),
        ("norm_1 is used twice", block(swap={"norm_2": "norm_1"}.items())),
        ("norm_2 is used twice", block(swap={"norm_1": "norm_2"}.items())),
        ("two norms have exchanged", block(swap={"norm_1": "norm_2", "norm_2": "norm_1"}.items())),
        ("gate and up have exchanged", block(network=glu(first="up", second="gate"))),
        ("keys and values have exchanged", block(swap={"k": "v", "v": "k"}.items())),
        ("values are made with k", block(swap={"v": "k"}.items())),
        ("keys are made with v", block(swap={"k": "v"}.items())),
        ("second residual connection is missing", block(residuals=(1, 0))),
        ("first residual connection is missing", block(residuals=(0, 1))),
        ("both residual connections", block(residuals=(0, 0))),
        ("goes around the norm", block(normed_stream=(1, 1))),
        ("the attention's result is added to the normed vector", block(normed_stream=(1, 0))),
        ("the feed-forward network's result is added to the normed", block(normed_stream=(0, 1))),
        ("cut into heads without a transpose", block(cut=lambda z, K: z.reshape(len(z), -1, z.shape[1], K))),
        ("every H-th entry", block(cut=lambda z, K: z.unflatten(-1, (K, -1)).permute(0, 3, 1, 2))),
        ("this is Post-LN", block(order="post")),
        ("they belong before them", block(order="inside")),
        ("read the same x", block(order="parallel")),
        ("the first norm is missing", block(norms=(0, 1))),
        ("the second norm is missing", block(norms=(1, 0))),
        ("both norms are missing", block(norms=(0, 0))),
        ("nothing is turned", block(turn="")),
        ("the values are turned too", block(turn="qkv")),
        ("the keys are not turned", block(turn="q")),
        ("the queries are not turned", block(turn="k")),
        ("is not causal", block(attention=groups(causal=False))),
        ("h % G", block(attention=groups(key=tiled, value=tiled))),
        ("not divided by the root of K", block(attention=groups(scale=lambda H, K: 1))),
        ("divided by the root of H K", block(attention=groups(scale=lambda H, K: H * K))),
        ("divided by the root of D", block(attention=groups(scale=lambda H, K: 10))),
        ("merged without a transpose", block(join=lambda heads: heads.reshape(len(heads), heads.shape[2], -1))),
        ("has sigmoid in place", block(network=glu(torch.sigmoid))),
        ("lacks silu", block(network=glu(lambda z: z))),
        ("feed-forward network is missing", without("down")),
        ("the attention is missing", without("o")),
        ("first position is right", wrong_later),
        ("first position is wrong already", block(network=glu(F.relu))),
        ("the norms have a fixed small number in place of the eps", block(eps=1e-5)),
        ("the first norm has a fixed small number", block(eps={"norm_1": 1e-6})),
        ("the second norm has a fixed small number", block(eps={"norm_2": 1e-6})),
        ("the first norm stands after the sum", block(order="first post")),
        ("the second norm stands after the sum", block(order="second post")),
        ("the first norm stands after the attention", block(order="first inside")),
        ("the second norm stands after the feed-forward network", block(order="second inside")),
        ("added to what the block was given", onto_the_input),
        ("wrong for H = G = 3", block(eps=0.1)),
        ("has shape (3, 5, 24)", lambda x, w, *more: x @ w["q"].T),
    ],
    "low_rank": [
        ("B is not zero at the start", lora(B=torch.randn)),
        ("A is zero and B is not", lora(B=torch.randn, A=torch.zeros)),
        ("both zero", lora(A=torch.zeros)),
        ("keeps rank 1", lora(A=alike)),
        ("all have one sign", lora(A=torch.rand)),
        ("W is still trained", lora(freeze="bias")),
        ("the bias is still trained", lora(freeze="weight")),
        ("self.A has shape (5, 3)", lora(swapped=True)),
        ("self.A is no nn.Parameter", lora(parameter=lambda value: value)),
        ("self.A is frozen", lora(parameter=frozen)),
        ("trained are A, B, gain", lora(more=True)),
        ("output: alpha / r is missing", lora(scale=lambda alpha, r: 1)),
        ("not divided by r", lora(scale=lambda alpha, r: alpha)),
        ("not multiplied by alpha", lora(scale=lambda alpha, r: 1 / r)),
        ("multiplied by alpha * r", lora(scale=lambda alpha, r: alpha * r)),
        ("multiplied by r / alpha", lora(scale=lambda alpha, r: r / alpha)),
        ("divided by the root of r", lora(scale=lambda alpha, r: alpha / math.sqrt(r))),
        ("comes 8 times; wanted is alpha / r, here 4", lora(scale=lambda alpha, r: 2 * alpha / r)),
        ("output: the correction is subtracted", lora(scale=lambda alpha, r: -alpha / r)),
        ("output: the correction is missing", lora(forward=lambda self, x: self.linear(x))),
        ("the bias is missing", lora(forward=no_bias)),
        ("x W^T + b is missing", lora(forward=lambda self, x: self.scale * (x @ self.A.T @ self.B.T))),
        ("the bias is added twice", lora(forward=two_biases)),
        ("is not that of the linear layer", lora(forward=lambda self, x: 2 * self.linear(x))),
        ("cut off from A and B", lora(forward=cut)),
        ("A gets no gradient", lora(forward=only_B)),
        ("the frozen layer passes no gradient on", lora(forward=frozen_by_no_grad)),
        ("the correction passes no gradient on", lora(forward=from_detached)),
        ("its gradient for x is not that", lora(forward=no_gradient_for_x)),
        ("wrong with other A and B", lora(forward=nearly)),
        ("merged weight: alpha / r is missing", lora(merged=lambda self: self.linear.weight + self.B @ self.A)),
        ("merged weight: the correction is missing", lora(merged=lambda self: self.linear.weight)),
        ("merged weight: W is missing", lora(merged=lambda self: self.scale * self.B @ self.A)),
        ("merged returns (5, 7)", lora(merged=lambda self: (self.linear.weight + self.scale * self.B @ self.A).T)),
        ("merged changes the layer", lora(merged=merged_in_place)),
        ("there is no self.A", lambda linear, rank, alpha: linear),
        ("wanted a torch.nn.Module", lambda linear, rank, alpha: linear.weight),
    ],
    "quantize": [
        ("over 128", rows(steps=128)),
        ("over 255", rows(steps=255)),
        ("over 256", rows(steps=256)),
        ("itself", rows(steps=1)),
        ("not the largest absolute value", rows(largest=lambda w: w.amax(1))),
        ("range over 255", rows(largest=lambda w: (w.amax(1) - w.amin(1)) * 127 / 255)),
        ("upside down", rows(finish=lambda ints, scales: (ints, 1 / scales))),
        ("mean absolute value", rows(largest=lambda w: w.abs().mean(1))),
        ("the same scale for every row", one_for_all),
        ("expected largest / 127", rows(steps=100)),
        ("of size 1e-8", rows(largest=lambda w: w.abs().amax(1).clamp(min=127e-5) * (w.abs().amax(1) > 0))),
        ("is something added to it", lambda w: rows(largest=lambda w: w.abs().amax(1) + 1e-8)(w)),
        ("cut off, not rounded", rows(rounded=torch.trunc)),
        ("rounded down", rows(rounded=torch.floor)),
        ("rounded up", rows(rounded=torch.ceil)),
        ("without dividing", lambda w: (w.round().to(torch.int8), rows()(w)[1])),
        ("run to 128", rows(top=128)),
        ("multiplied by the scale", lambda w: ((w * rows()(w)[1][:, None]).round().to(torch.int8), rows()(w)[1])),
        ("uint8", rows(kind=torch.uint8)),
        ("torch.float64; wanted int8", rows(kind=torch.float64)),
        ("torch.int32; wanted int8", rows(kind=torch.int32)),
        ("one scale for the whole matrix", whole_matrix),
        ("of the 6 columns", columns),
        ("has shape (4, 1)", rows(finish=lambda ints, scales: (ints, scales[:, None]))),
        ("scale of a row of zeros is nan", divided_by_zero),
        ("scale of a row of zeros is 0", rows(zero=0.0)),
        ("must give ints that are all 0", nan_as_number),
        ("an entry is", odd_entry),
        ("wrong for (3, 5)", only_small),
        ("the ready-made quantize_rows", quantize_rows),
        ("expected a tuple", lambda w: rows()(w)[0]),
    ],
    "llama_numbers": [
        ("wanted in billions", paper(a=ALL)),
        ("millions", paper(a=ALL / 1e6)),
        ("half a billion is missing", paper(a=(ALL - TABLE) / 1e9)),
        ("(a) the tables are missing", paper(a=BLOCKS / 1e9)),
        ("all 32 heads", paper(a=(ALL + 64 * (SQUARE - NARROW)) / 1e9)),
        ("three matrices", paper(a=(ALL - 32 * WIDE) / 1e9)),
        ("keys and values are missing", paper(a=(ALL - 64 * NARROW) / 1e9)),
        ("that is one block; there are 32", paper(a=(BLOCKS / 32 + 2 * TABLE) / 1e9)),
        ("(a) 7.9 is close", paper(a=7.9)),
        ("(a) 3 is not right", paper(a=3)),
        ("(b) half of it", paper(b=CACHE / 2)),
        ("(b) twice", paper(b=CACHE * 2)),
        ("(b) these are GiB", paper(b=1.0)),
        ("(b) every one of the 32", paper(b=CACHE / 32)),
        ("(b) that is one key head", paper(b=CACHE / 8)),
        ("(b) the wrong heads", paper(b=4 * CACHE)),
        ("(b) these are gigabits", paper(b=8 * CACHE)),
        ("(b) is wanted in gigabytes", paper(b=CACHE * 1e9)),
        ("(b) 7 is not right", paper(b=7)),
        ("(c) half of it", paper(c=CACHE * 2)),
        ("(c) twice", paper(c=CACHE * 8)),
        ("(c) these are GiB", paper(c=4.0)),
        ("(c) the wrong heads", paper(c=CACHE)),
        ("(d) that is one byte", paper(d=ALL / 1e9)),
        ("(d) that is 32 bits", paper(d=4 * ALL / 1e9)),
        ("(d) these are gigabits", paper(d=16 * ALL / 1e9)),
        ("(d) these are GiB", paper(d=2 * ALL / 2**30)),
        ("(d) the tables", paper(d=2 * BLOCKS / 1e9)),
        ("(e) either the tables", paper(e=ALL / 1e9)),
        ("(e) the tables are missing", paper(e=BLOCKS / 1e9)),
        ("(e) one of the two", paper(e=(BLOCKS + 3 * TABLE) / 1e9)),
        ("(e) the tables are in 32", paper(e=(BLOCKS + 8 * TABLE) / 1e9)),
        ("(e) the wrong way round", paper(e=(2 * BLOCKS + 2 * TABLE) / 1e9)),
        ("(e) is as (d)", paper(e=2 * ALL / 1e9)),
        ("(e) these are GiB", paper(e=(BLOCKS + 4 * TABLE) / 2**30)),
        ("(f) that is the fraction", paper(f=TRAINED / ALL)),
        ("number of trained parameters", paper(f=TRAINED)),
        ("(f) these are millions", paper(f=TRAINED / 1e6)),
        ("(f) that is one block", paper(f=100 * TRAINED / ALL / 32)),
        ("(f) twice too much", paper(f=200 * TRAINED / ALL)),
        ("(f) half of it", paper(f=50 * TRAINED / ALL)),
        ("either the queries alone", paper(f=100 * 512 * 8192 / ALL)),
        ("either the values alone", paper(f=100 * 512 * 5120 / ALL)),
        ("the value matrix is", paper(f=100 * 512 * 16384 / ALL)),
        ("the query matrix is", paper(f=100 * 512 * 10240 / ALL)),
        ("the two matrices themselves", paper(f=100 * 32 * (SQUARE + NARROW) / ALL)),
        ("share of the two matrices", paper(f=100 * TRAINED / (32 * (SQUARE + NARROW)))),
        ("(f) 0.5 is not right", paper(f=0.5)),
        ("(f) 0.08 is rounded too far", paper(f=0.08)),
        ("(f) is inf", paper(f=math.inf)),
        ("(e) is nan", paper(e=math.nan)),
        ("(f) is -0.08", paper(f=-0.08)),
        ("expected 6 numbers", (1, 2, 3)),
    ],
    "linear_step": [
        ("the feature map is missing: elu", step(phi_q=lambda x: x, phi_k=lambda x: x)),
        ("missing on the queries", step(phi_q=lambda x: x)),
        ("missing on the keys", step(phi_k=lambda x: x)),
        ("without + 1", step(phi_q=F.elu, phi_k=F.elu)),
        ("exp(x) in place", step(phi_q=torch.exp, phi_k=torch.exp)),
        ("relu(x) in place", step(phi_q=F.relu, phi_k=F.relu)),
        ("relu(x) + 1 in place", step(phi_q=lambda x: F.relu(x) + 1, phi_k=lambda x: F.relu(x) + 1)),
        ("a softmax in place", step(phi_q=lambda x: x.softmax(-1), phi_k=lambda x: x.softmax(-1))),
        ("the normaliser is missing", step(normal="none")),
        ("the number of tokens", step(normal="count")),
        ("z adds up k itself", step(phi_z=lambda x: x)),
        ("takes q itself", step(phi_below=lambda x: x)),
        ("0.001 is added to the normaliser", step(extra=1e-3)),
        ("-0.5 is added to the normaliser", step(extra=-0.5)),
        ("the sum of z", step(normal="sum")),
        ("the own token is missing", step(own=False, own_z=False)),
        ("z is read before", step(own_z=False)),
        ("S is read before", step(own=False)),
        ("knows this token alone", step(keep_z=False)),
        ("sees itself alone", step(keep=False, keep_z=False)),
        ("divided by the root of K", step(scale=True)),
        ("multiplied by the normaliser", step(times=True)),
        ("key and query", step(swap=True)),
        ("multiplied by 0.9", step(decay=0.9)),
        ("is the one that was given", step(give="old")),
        ("in place", in_place),
        ("the returned S is not the sum", wrong_state),
        ("wrong from another one", wrong_sizes),
        ("the ready-made linear_attention_step", linear_attention_step),
        ("is the first whose output differs", tired),
        ("y has shape (2, 3, 1, 5)", lambda *given: (step()(*given)[0][:, :, None], step()(*given)[1])),
        ("S has shape (2, 3, 5, 4)", lambda q, k, v, s: (v, (s[0].mT, s[1]))),
        ("expected a tuple", lambda *given: step()(*given)[0]),
        ("the state is a tuple", lambda *given: (step()(*given)[0], step()(*given)[1][0])),
    ],
}  # fmt: skip
IDENTITY = {  # what gives back its input
    "rms_norm": lambda x, *_: x,
    "swiglu": lambda x, *_: x,
    "grouped_attention": lambda q, *_: q,
    "llama_block": lambda x, *_: x,
    "low_rank": lambda linear, *_: linear,
    "quantize": lambda weight: (weight, weight),
    "llama_numbers": (128256, 4096, 32, 8, 14336, 16),
    "linear_step": lambda q, k, v, state: (v, state),
}
ZEROS = {
    "rms_norm": lambda x, *_: torch.zeros_like(x),
    "swiglu": lambda x, *_: torch.zeros_like(x),
    "grouped_attention": lambda q, *_: torch.zeros_like(q),
    "llama_block": lambda x, *_: torch.zeros_like(x),
    "low_rank": lambda linear, *_: torch.zeros(2, 3),
    "quantize": lambda weight: (torch.zeros_like(weight).to(torch.int8), torch.zeros(len(weight))),
    "llama_numbers": (0, 0, 0, 0, 0, 0),
    "linear_step": lambda q, k, v, state: (torch.zeros_like(v), state),
}


@pytest.mark.parametrize("name", ANSWERS)
def test_reference_passes(name):
    """Fails when the solution in the notebook is wrong, or its check rejects it."""
    assert verdict(getattr(ch14, name), solution("14", ANSWERS[name])) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: the planted skeletons, torch's own, loops."""

    def stored_small(weight):
        ints, scales = rows(zero=1e-9)(weight)
        return ints, scales.float()

    right = {
        "rms_norm": (rms(), lambda x, w, eps: rms()(x, w, eps).type_as(x)),
        "swiglu": (glu(),),
        "grouped_attention": (groups(),),
        "llama_block": (block(),),
        "low_rank": (lora(), lora(forward=lambda self, x: F.linear(x, self.merged(), self.linear.bias))),
        "quantize": (rows(), rows(zero=3.0), stored_small),
        "llama_numbers": (paper(), tuple(float(f"{value:.3g}") for value in NUMBERS)),
        "linear_step": (step(),),
    }
    for name, answers in right.items():
        for answer in answers:
            assert verdict(getattr(ch14, name), answer) == f"passed: {name}"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    """Fails when a usual mistake passes, or is called something else."""
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch14, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    """Fails when two different mistakes get one diagnosis."""
    messages = [verdict(getattr(ch14, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("table", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", ANSWERS)
def test_the_laziest_answers_fail(name, table):
    """Fails when an answer that does nothing passes, or the check stumbles over it."""
    message = verdict(getattr(ch14, name), table[name])
    assert message.startswith("not yet: ")
    assert "could not be examined" not in message


@pytest.mark.parametrize("name", ANSWERS)
def test_untouched_is_not_attempted(name):
    """Fails when an exercise that nobody has touched is called wrong."""
    assert verdict(getattr(ch14, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", ANSWERS)
def test_messages_do_not_show_the_solution(name):
    """Fails when a diagnosis holds a line of the reference."""
    messages = " ".join(verdict(getattr(ch14, name), wrong) for _, wrong in PLANTED[name])
    for line in ("keepdim", "repeat_interleave", "tril(", "unflatten", "requires_grad_", "nn.Parameter(", "amax",
                 ".round()", "[..., None", "F.elu", "F.silu", "self.scale", "8.03", "1.07", "9.08"):  # fmt: skip
        assert line not in messages


def test_no_number_on_paper_is_two_diagnoses():
    """Fails when two different mistakes in one of the six numbers agree to three digits, so that a message may lie."""
    wrong = {}
    for part, answer in PLANTED["llama_numbers"]:
        for place, (mine, right) in enumerate(zip(answer, NUMBERS, strict=False)):
            if len(answer) == 6 and mine != right and math.isfinite(mine) and mine > 0:
                wrong.setdefault(place, []).append((mine, part))
    for found in wrong.values():
        values = sorted(found)
        for (one, part), (two, other) in itertools.pairwise(values):
            assert two / one > 1.004, (part, other)


def test_the_block_is_transformers_block():
    """Fails when the exercise's block is not a Llama's: transformers' layer with the same weights, in float64."""
    B, T, D, H, G, K, hidden = 3, 5, 18, 6, 2, 4, 14
    transformers = reference()
    config = transformers.LlamaConfig(
        hidden_size=D, num_attention_heads=H, num_key_value_heads=G, head_dim=K, intermediate_size=hidden,
        rms_norm_eps=0.03, num_hidden_layers=1, vocab_size=7, max_position_embeddings=11,
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaModel(config).double()
    theirs = model.layers[0]
    for norm in (theirs.input_layernorm, theirs.post_attention_layernorm):
        nn.init.normal_(norm.weight)
    x = torch.randn(B, T, D, dtype=torch.float64)
    positions = torch.arange(T)[None]
    cos, sin = model.rotary_emb(x, positions)
    mask = torch.zeros(T, T, dtype=x.dtype).masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)

    def rotate(y):
        one, two = y.chunk(2, -1)
        return y * cos + torch.cat([-two, one], -1) * sin

    weights = {name: getattr(theirs.self_attn, f"{name}_proj").weight for name in "qkvo"}
    weights |= {name: getattr(theirs.mlp, f"{name}_proj").weight for name in ("gate", "up", "down")}
    weights |= {"norm_1": theirs.input_layernorm.weight, "norm_2": theirs.post_attention_layernorm.weight}
    wanted = theirs(x, attention_mask=mask, position_ids=positions, position_embeddings=(cos, sin))
    wanted = wanted[0] if isinstance(wanted, tuple) else wanted
    for answer in (solution("14", "llama_block"), block()):
        torch.testing.assert_close(answer(x, weights, rotate, H, G, 0.03), wanted, rtol=1e-6, atol=1e-6)


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch14.what_a_state_holds.hint(number)
    ch14.what_a_state_holds.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch14.what_a_state_holds.compare("word " * 20)
    assert "crosstalk" in capsys.readouterr().out


def test_the_ablation_has_hints_and_a_good_answer(capsys):
    """Fails if the exercise has no hint, tells what is wanted too early, or its numbers of parameters are wrong."""
    for number in (1, 2, 3):
        ch14.an_ablation.hint(number)
    ch14.an_ablation.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch14.an_ablation.compare("word " * 20)
    assert "8,192 more parameters" in capsys.readouterr().out
    sizes = {"vocab_size": 9, "max_len": 256, "d_model": 64, "num_layers": 2, "num_heads": 4}
    one, more, repaired = (
        sum(p.numel() for p in Llama(LlamaConfig(**sizes, num_kv_heads=G, dim_feedforward=F_)).parameters())
        for G, F_ in ((2, 168), (4, 168), (4, 147))
    )
    assert (more - one, repaired - one) == (8192, 2 * 64)
