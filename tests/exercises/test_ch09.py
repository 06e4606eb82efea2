"""The checks of chapter 09: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.exercises import ch09
from course_lib.positional import sinusoidal_table
from course_lib.transformer import post_ln
from tests.helpers.solutions import solution, verdict

VALUES = {
    "residuals_by_hand": "first_entries",
    "own_transformer": "OwnTransformer",
}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def norm(dim=-1, unbiased=False, place="inside", gain=True, offset=True, centre=True):
    def layer_norm(x, weight, bias, eps):
        centred = x - x.mean(dim, keepdim=True) if centre else x
        variance = x.var(dim, keepdim=True, unbiased=unbiased)
        root = {"inside": lambda: (variance + eps).sqrt(), "outside": lambda: variance.sqrt() + eps,
                "two roots": lambda: variance.sqrt() + eps**0.5, "constant": lambda: (variance + 1e-5).sqrt(),
                "none": lambda: variance.sqrt(), "no root": lambda: variance + eps}[place]()  # fmt: skip
        return (weight if gain else 1) * centred / root + (bias if offset else 0)

    return layer_norm


def by_squares(x, weight, bias, eps):
    """The variance as the mean of the squares minus the square of the mean: cancels where entries are large."""
    mean = x.mean(-1, keepdim=True)
    return weight * (x - mean) / (x.square().mean(-1, keepdim=True) - mean.square() + eps).sqrt() + bias


def detached_centre(x, weight, bias, eps):
    """Right numbers; the mean is taken for a constant."""
    centred = x - x.mean(-1, keepdim=True).detach()
    return weight * centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt() + bias


def torch_norm(x, weight, bias, eps):
    """By torch's BatchNorm of the transposed batch: the right numbers, and not allowed."""
    return F.batch_norm(x.flatten(0, 1).T, None, None, training=True, eps=eps).T.view(x.shape) * weight + bias


def block(
    see="mask",
    form="post",
    width="K",
    activation=torch.relu,
    merge=True,
    order=(0, 1, 2),
    dim=-1,
    second=True,
    norms=(1, 2),
    split=True,
    project=True,
    exchange=False,
    by_head=False,
    unbiased=(),
    eps=1e-5,
):
    def encoder_block(x, mask, p, num_heads):
        B, T, D = x.shape
        start, p = x, p | {name: 0 * p[name] for name in unbiased}

        def attend(x):
            parts = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
            K = D // num_heads
            axes = (K, num_heads) if exchange else (num_heads, K)
            turn = (0, 3, 1, 2) if exchange == "permuted" else (0, 2, 1, 3)
            q, k, v = (
                parts[i].view(B, T, *axes).permute(turn) if split else parts[i].reshape(B, num_heads, T, -1)
                for i in order
            )
            if by_head:
                q, k, v = torch.cat(parts, -1).view(B, T, num_heads, 3, K).permute(3, 0, 2, 1, 4)
            scores = q @ k.mT / {"K": D // num_heads, "H": num_heads, "D": D, "1": 1}[width] ** 0.5
            keys = {"mask": mask, "all": mask | True, "padding": ~mask}.get(see, mask)
            if see == "causal":
                scores = scores + torch.full((T, T), -math.inf).triu(1)
            hidden = ~keys[:, None, :, None] if see == "queries" else ~keys[:, None, None]
            heads = scores.masked_fill(hidden, -math.inf).softmax(dim) @ v
            heads = heads.permute(0, 2, 3, 1) if merge == "interleaved" else heads.transpose(1, 2) if merge else heads
            heads = heads.reshape(B, T, D)
            return F.linear(heads, p["out_weight"], p["out_bias"]) if project else heads

        def feed(x):
            hidden = F.linear(x, p["weight1"], p["bias1"])
            return F.linear(activation(hidden), p["weight2"], p["bias2"])

        a, b = norms

        def norm1(x):
            return F.layer_norm(x, (D,), p[f"gain{a}"], p[f"offset{a}"], eps)

        def norm2(x):
            return F.layer_norm(x, (D,), p[f"gain{b}"], p[f"offset{b}"], eps)

        if form == "pre":
            x = x + attend(norm1(x))
            return x + feed(norm2(x))
        if form == "norm first":
            x = x + norm1(attend(x))
            return x + norm2(feed(x))
        if form == "bare":
            x = x + attend(x)
            return x + feed(x)
        x = norm1(attend(x) + (0 if form in ("none", "last") else x))
        if not second:
            return norm2(x)
        if form == "thinks of the start":
            return norm2(feed(start) + x)
        return norm2(feed(x) + (0 if form in ("none", "first") else start if form == "start" else x))

    return encoder_block


def torch_block(x, mask, p, num_heads):
    """torch's own layer."""
    layer = nn.TransformerEncoderLayer(x.shape[-1], num_heads, len(p["bias1"]), 0.0, batch_first=True).double()
    names = ["self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight"]
    names += ["self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
    names += ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]
    layer.load_state_dict(dict(zip(names, p.values(), strict=True)))
    return layer(x, src_key_padding_mask=~mask)


def ready_attention(x, mask, p, num_heads):
    """Right, but for torch's attention."""
    q, k, v = (
        part.unflatten(2, (num_heads, -1)).transpose(1, 2)
        for part in F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
    )
    found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None]).transpose(1, 2).flatten(2)
    x = F.layer_norm(x + F.linear(found, p["out_weight"], p["out_bias"]), x.shape[2:], p["gain1"], p["offset1"])
    y = F.linear(F.linear(x, p["weight1"], p["bias1"]).relu(), p["weight2"], p["bias2"])
    return F.layer_norm(x + y, x.shape[2:], p["gain2"], p["offset2"])


def queries_hidden(x, mask, p, num_heads):
    """Padding hidden as a query: whole rows of minus infinity."""
    scores = torch.zeros(*mask.shape, mask.shape[1], dtype=x.dtype).masked_fill(~mask[..., None], -math.inf)
    return scores.softmax(-1).mean(1, keepdim=True).transpose(1, 2) * x


def cross(
    q="x", k="memory", v="memory", see="mask", dim=-1, scale=True, turn=True, swap=(0, 1, 2), project_v=True,
    width=None, hide=-math.inf, zero=(),
):  # fmt: skip
    def cross_attention(x, memory, memory_mask, *weights):
        W = [weights[i].T if turn else weights[i] for i in swap]
        there = memory_mask[..., None]
        of = {"x": x, "memory": memory * there if "memory" in zero else memory}
        queries, keys = of[q] @ W[0], of[k] @ W[1]
        values = of[v] @ W[2] if project_v else of[v]
        keys, values = (part * there if name in zero else part for name, part in (("k", keys), ("v", values)))
        width_ = {"S": memory.shape[1], "T": x.shape[1], "D squared": x.shape[2] ** 2}.get(width, width)
        scores = queries @ keys.mT / ((width_ or x.shape[-1]) ** 0.5 if scale else 1)
        visible = torch.ones(scores.shape[1:], dtype=torch.bool)
        if see == "causal":
            visible = visible.tril()
        if see != "all":
            visible = visible & (memory_mask ^ (see == "padding"))[:, None]
        weights = scores.masked_fill(~visible, hide).softmax(dim).nan_to_num()
        return (weights * memory_mask[:, None] if "weights" in zero else weights) @ values

    return cross_attention


def exchanged(x, memory, real, W_q, W_k, W_v):
    """The memory asks; its mask then fits only where T = S."""
    return cross()(memory, x, real, W_q, W_k, W_v)


def write(last=-1, whole=True, append=True, stop_at=True, keep_stop=False, prompt_too=False, rounds=0, sign=1):
    def continue_greedily(model, prompt, stop, max_new):
        ids, words = list(prompt), []
        for _ in range(max_new + rounds):
            word = (sign * model(torch.tensor([ids if whole else ids[-1:]]))[0, last]).argmax().item()
            if word == stop and stop_at:
                words += [stop] if keep_stop else []
                break
            words.append(word)
            if append:
                ids.append(word)
        return [*prompt, *words] if prompt_too else words

    return continue_greedily


def reads_twice(model, prompt, stop, limit):
    """The text is read once to look for the stop token, and again to take the word."""
    ids = list(prompt)
    while len(ids) < len(prompt) + limit and model(torch.tensor([ids]))[0, -1].argmax().item() != stop:
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt) :]


def never_stops(model, prompt, stop, max_new):
    """Writes to the limit, and cuts at the stop token afterwards."""
    words = write(stop_at=False)(model, prompt, stop, max_new)
    return words[: words.index(stop)] if stop in words else words


def one_ahead(model, prompt, stop, max_new):
    """Asks for one word more than the limit allows."""
    ids = list(prompt)
    word = model(torch.tensor([ids]))[0, -1].argmax().item()
    while word != stop and len(ids) < len(prompt) + max_new:
        ids.append(word)
        word = model(torch.tensor([ids]))[0, -1].argmax().item()
    return ids[len(prompt) :]


def one_row(model, prompt, stop, max_new):
    """Appends each word, and reads the row after the prompt in each round."""
    return write(last=len(prompt) - 1)(model, prompt, stop, max_new)


def looks_everywhere(model, prompt, stop, max_new):
    """Stops when a stop token stands anywhere, the prompt included."""
    ids = list(prompt)
    for _ in range(max_new):
        if stop in ids:
            break
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    words = ids[len(prompt) :]
    return words[:-1] if words and words[-1] == stop else words


def cuts_all(model, prompt, stop, max_new):
    """Stops in time, but cuts prompt and words at the first stop token of both."""
    ids = [*prompt, *write()(model, prompt, stop, max_new)]
    return ids[: ids.index(stop)][len(prompt) :] if stop in ids else ids[len(prompt) :]


def doubled(model, prompt, stop, max_new):
    """Appends the best word after every position, not after the last alone."""
    ids = torch.tensor([prompt])
    for _ in range(max_new):
        words = model(ids)[0].argmax(-1)
        if words[-1] == stop:
            break
        ids = torch.cat([ids, words[None]], 1)
    return ids[0, len(prompt) :].tolist()


def cropped(model, prompt, stop, max_new):
    """The model reads the last eight tokens alone."""
    return write()(lambda ids: model(ids[:, -8:]), prompt, stop, max_new)


def drawn(model, prompt, stop, max_new):
    """Each word is drawn, not the best taken."""
    generator = torch.Generator().manual_seed(0)

    def chosen(ids):
        word = model(ids)[0, -1].softmax(-1).multinomial(1, generator=generator)
        return F.one_hot(word, 9)[None]  # one word has all the weight

    return write()(chosen, prompt, stop, max_new)


def copied(part, detach):
    """The same weights in memory of their own, with or without a way back for the gradient."""
    if isinstance(part, torch.Tensor):
        return part.detach().clone().requires_grad_() if detach else part.clone()
    if isinstance(part, dict):
        return {name: copied(each, detach) for name, each in part.items()}
    return [copied(each, detach) for each in part]


def own(
    places=0, root=True, layers=lambda layers: layers, causal=True, see_source=True, cross="cross_", keep=1,
    norms=(2, 3), first=False, scale=1.0, ids_tell=False, heads=None, depth=None, pad_counts=False, reduction="mean",
    shift=False, zero=True, move=True, keep_eos=False, keep_sos=False, stop=True, short=0, half=False, train=True,
    score="K", in_order=False, divide=False, clone=False, detach=False,
    again=False, exchange=False, all_places=False, ahead=0, loss_after=False, graph=False,
    turned=False,
):  # fmt: skip
    """A whole model, or one with a mistake in it."""

    class OwnTransformer:
        def __init__(self, weights, num_heads):
            self.w, self.H = copied(weights, detach) if clone else weights, heads or num_heads

        def embed(self, table, ids):
            T, D = ids.shape[1], table.shape[1]
            x = table[ids] * (D**0.5 if root else 1)
            return x if places is None else x + sinusoidal_table(T + places, D)[places:].to(x)

        def look(self, p, x, told, mask, name=""):
            D = x.shape[2]
            W, b = p[f"{name}in_proj_weight"], p[f"{name}in_proj_bias"]
            parts = x @ W[:D].T + b[:D], told @ W[D : 2 * D].T + b[D : 2 * D], told @ W[2 * D :].T + b[2 * D :]
            q, k, v = (part.unflatten(2, (self.H, -1)).transpose(1, 2) for part in parts)
            width = {"K": q.shape[-1], "D": D, "1": 1}[score]
            found = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=width**-0.5)
            found = found.transpose(1, 2).flatten(2)
            return found @ p[f"{name}out_weight"].T + p[f"{name}out_bias"]

        def norm(self, x, p, i):
            return F.layer_norm(x, x.shape[2:], p[f"gain{i}"], p[f"offset{i}"])

        def think(self, x, p):
            return (x @ p["weight1"].T + p["bias1"]).relu() @ p["weight2"].T + p["bias2"]

        def encode(self, source, real):
            mask = (source != 1) if ids_tell else torch.ones_like(real) if see_source is False else real
            mask = ~real if see_source == "padding" else mask
            mask = mask[:, None, None]
            x = self.embed(self.w["source_table"], source)
            if half:
                x = x.half().double()
            for p in layers(self.w["encoder"])[:depth]:
                x = self.norm(x + self.look(p, x, x, mask), p, 1)
                x = self.norm(x + self.think(x, p), p, 2)
            return x

        def decode(self, target_in, memory, real):
            T = target_in.shape[1]
            past = torch.ones(T, T).tril(ahead) > 0 if causal else torch.ones(T, T) > 0
            past = past.T if turned else past
            there = torch.ones_like(real) if see_source == "encoder" else real
            there = ~real if see_source == "padding across" else there
            there = there[:, None, None]
            y = self.embed(self.w["target_table"], target_in)
            for p in layers(self.w["decoder"])[:depth]:
                for part in ("cross", "self") if first or in_order else ("self", "cross"):
                    if part == "self":
                        y = self.norm(y + self.look(p, y, y, past), p, 2 if in_order else 1)
                    elif in_order:
                        y = self.norm(y + self.look(p, y, memory, there, cross), p, 1)
                    elif cross is not None:
                        asks, told = (memory, y) if exchange else (y, memory)
                        y = self.norm(keep * y + self.look(p, asks, told, there, cross), p, norms[0])
                y = self.norm(y + self.think(y, p), p, norms[1])
            if divide:
                y = y / y.shape[2] ** 0.5
            return scale * (y.shape[2] ** 0.5 if scale != 1 else 1) * (y @ self.w["target_table"].T)

        def learn(self, optimizer, source, real, target_in, target_out, pad):
            logits = self.decode(target_in, self.encode(source, real), real)
            wanted = target_in if shift else target_out
            options = {"ignore_index": -100 if pad_counts else pad, "reduction": reduction}
            loss = F.cross_entropy(logits.transpose(1, 2), wanted, **options)
            if all_places:
                loss = (F.cross_entropy(logits.transpose(1, 2), wanted, reduction="none") * (wanted != pad)).mean()
            if zero:
                optimizer.zero_grad()
            loss.backward()
            if move:
                optimizer.step()
            if not train:
                with torch.no_grad():
                    self.w["encoder"][0]["bias1"] += 0.1
            if loss_after:
                logits = self.decode(target_in, self.encode(source, real), real)
                loss = F.cross_entropy(logits.transpose(1, 2), wanted, **options)
            return loss if graph else loss.item()

        def translate(self, source, sos, eos, max_new_tokens):
            row, ids = torch.tensor([[*source, eos] if again else source]), [sos]
            real = torch.ones_like(row, dtype=torch.bool)
            memory = self.encode(row, real)
            while len(ids) <= max_new_tokens - short:
                ids.append(self.decode(torch.tensor([ids]), memory, real)[0, -1].argmax().item())
                if ids[-1] == eos and stop:
                    break
            if ids[-1] == eos and not keep_eos:
                ids.pop()
            return ids if keep_sos else ids[1:]

    return OwnTransformer


class BareNorms(own()):
    """The right numbers; the norms are torch's layer without parameters."""

    def norm(self, x, p, i):
        return nn.LayerNorm(x.shape[2], elementwise_affine=False)(x) * p[f"gain{i}"] + p[f"offset{i}"]


class WrappedNorms(own()):
    """The norms are torch's layer, with the tensors wrapped in parameters."""

    def norm(self, x, p, i):
        layer = nn.LayerNorm(x.shape[2])
        layer.weight, layer.bias = nn.Parameter(p[f"gain{i}"]), nn.Parameter(p[f"offset{i}"])
        return layer(x)


class WrappedTable(own()):
    """The embedding of one side is torch's layer; its table still makes the logits."""

    def embed(self, table, ids):
        if table is self.w["target_table"]:
            table = nn.Embedding.from_pretrained(table)(torch.arange(len(table)))
        return super().embed(table, ids)


class WrappedTables(own()):
    def embed(self, table, ids):
        return super().embed(nn.Embedding.from_pretrained(table)(torch.arange(len(table))), ids)


class WrappedGains(own()):
    """No layer; one tensor of each norm is wrapped in a parameter."""

    def norm(self, x, p, i):
        return F.layer_norm(x, x.shape[2:], nn.Parameter(p[f"gain{i}"]), p[f"offset{i}"])


class FrozenEncoder(own()):
    """In training the source is read under no_grad."""

    def learn(self, *given):
        self.encode = torch.no_grad()(self.encode)
        return super().learn(*given)


class AllWrapped(own()):
    """A layer is used, and everything is copied before."""

    def __init__(self, weights, num_heads):
        super().__init__(copied(weights, detach=True), num_heads)

    def norm(self, x, p, i):
        return WrappedNorms.norm(self, x, p, i)


class LibraryAttention(own()):
    """The library's attention computes with the tensors themselves."""

    def look(self, p, x, told, mask, name=""):
        given = {"in_proj_weight": "in_proj_weight", "in_proj_bias": "in_proj_bias",
                 "out_proj.weight": "out_weight", "out_proj.bias": "out_bias"}  # fmt: skip
        given = {theirs: p[name + ours] for theirs, ours in given.items()}
        layer = MultiHeadAttention(x.shape[2], self.H, dtype=x.dtype)
        return torch.func.functional_call(layer, given, (x, told), {"mask": mask})


class LongLogits(own()):
    """The last two of more than six source tokens count as real, whatever `real` says."""

    def decode(self, target_in, memory, real):
        if memory.shape[1] > 6:
            real = F.pad(real[:, :-2], (0, 2), value=True)
        return super().decode(target_in, memory, real)


def unwritten(method):
    """A model that is right, but for a method that is still to be written."""

    def to_do(self, *given):
        raise NotImplementedError

    return type("OwnTransformer", (own(),), {method: to_do})


PLANTED = {
    "layer_norm": [
        ("eps and the variance are both off", norm(unbiased=True, place="outside")),
        ("divided by D - 1", norm(unbiased=True)),
        ("inside the root", norm(place="outside")),
        ("eps is missing: for a vector of equal entries", norm(place="none")),
        ("0 / 0, not a number; and the variance is divided by D - 1", norm(place="none", unbiased=True)),
        ("eps plays no part: with eps = 3", norm(place="constant")),
        ("should stand?; and the variance is divided by D - 1", norm(place="constant", unbiased=True)),
        ("the root of eps is added to the standard deviation", norm(place="two roots")),
        ("the root of eps is added after the root of the variance", norm(place="two roots", unbiased=True)),
        ("over the positions, axis 1", norm(dim=1)),
        ("as BatchNorm does", norm(dim=0)),
        ("of the whole tensor", norm(dim=(0, 1, 2))),
        ("positions and features together", norm(dim=(1, 2))),
        ("weight and bias are not applied", norm(gain=False, offset=False)),
        ("the bias is missing", norm(offset=False)),
        ("gain (weight) is missing", norm(gain=False)),
        ("mean is not subtracted", norm(centre=False)),
        ("RMSNorm and a bias", lambda x, w, b, eps: w * x / (x.square().mean(-1, keepdim=True) + eps).sqrt() + b),
        ("divide by its root", norm(place="no root")),
        ("the squares are added up", lambda x, w, b, eps: (
            lambda c: w * c / ((c**2).sum(-1, keepdim=True) + eps).sqrt() + b)(x - x.mean(-1, keepdim=True))),
        ("the gain multiplies the bias too", lambda x, w, b, eps: w * (norm(gain=False)(x, w, b, eps))),
        ("wanted (2, 3, 5)", lambda x, weight, bias, eps: x.mean(-1)),
        ("torch's own layer_norm", lambda x, weight, bias, eps: F.layer_norm(x, weight.shape, weight, bias, eps)),
        ("torch's own native_layer_norm", lambda x, weight, bias, eps: torch.native_layer_norm(
            x, weight.shape, weight, bias, eps)[0]),
        ("torch's own group_norm", lambda x, weight, bias, eps: nn.GroupNorm(1, 5, eps).double()(x.flatten(0, 1))
            .view_as(x) * weight + bias),
        ("torch's own batch_norm", torch_norm),
        ("wrong for D = 4 and eps = 0.1", lambda x, weight, bias, eps: norm()(x, weight, bias, 0.3)),
        ("wrong where they lie near 5000", by_squares),
        ("no gradient comes back to x", lambda x, *rest: norm()(x.detach(), *rest)),
        ("the gradient that comes back to x is not", detached_centre),
    ],
    "residuals_by_hand": [
        ("you divided the squares by D - 1", (1.155, 8.309, 12, 3.464)),
        ("post: norm(x) + f(norm(x))", (4.243, 8.828, 12, 4.243)),
        ("in another order", (4.243, 8.828, 12, 1.414)),
        ("post: is the residual x added", (2.828, 8.828, 12, 4.243)),
        ("post: the first entry", (6, 8.828, 12, 4.243)),
        ("pre: the residual must be x", (1.414, 4.243, 12, 4.243)),
        ("pre: this is f(norm(x)) alone", (1.414, 2.828, 12, 4.243)),
        ("rezero: this is x", (1.414, 8.828, 6, 4.243)),
        ("rezero: this is x + f(x)", (1.414, 8.828, 18, 4.243)),
        ("rezero: alpha multiplies f(x)", (1.414, 8.828, 9, 4.243)),
        ("replaced: this is f(norm(x)) alone", (1.414, 8.828, 12, 2.828)),
        ("replaced: this is the proper Pre-LN", (1.414, 8.828, 12, 8.828)),
        ("three digits", (1.4, 8.8, 12, 4.2)),
        ("expected 4 numbers", (1.414, 8.828, 12)),
    ],
    "encoder_block": [
        ("torch's own scaled_dot_product_attention", ready_attention),
        ("torch's own multi_head_attention_forward", torch_block),
        ("`real` is not used", block(see="all")),
        ("hides padded queries", block(see="queries")),
        ("the wrong way round", block(see="padding")),
        ("all is right but for eps", block(eps=1e-12)),
        ("this is Pre-LN", block(form="pre")),
        ("only what a sublayer gives is normalised", block(form="norm first")),
        ("split in the wrong order", block(split=False)),
        ("neither split nor merged", block(split=False, merge=False)),
        ("output projection is missing", block(project=False)),
        ("another activation", block(activation=F.gelu)),
        ("the residuals are missing", block(form="none")),
        ("the first residual is missing", block(form="last")),
        ("the second residual is missing", block(form="first")),
        ("H and K are exchanged", block(exchange=True)),
        ("nothing is normalised", block(form="bare")),
        ("divided by sqrt(D)", block(width="D")),
        ("not scaled", block(width="1")),
        ("merged in the wrong order", block(merge=False)),
        ("no relu", block(activation=lambda hidden: hidden)),
        ("feed-forward is missing", block(second=False)),
        ("order of the projections", block(order=(1, 0, 2))),
        ("softmax runs over the queries", block(dim=-2)),
        ("the two norms have changed places", block(norms=(2, 1))),
        ("the first norm is used twice", block(norms=(1, 1))),
        ("the second residual is the block's input", block(form="start")),
        ("a causal mask in an encoder", block(see="causal")),
        ("none of the four biases", block(unbiased=("in_proj_bias", "out_bias", "bias1", "bias2"))),
        ("the biases of the attention", block(unbiased=("in_proj_bias", "out_bias"))),
        ("the biases of the feed-forward network", block(unbiased=("bias1", "bias2"))),
        ("yet: in_proj_bias is not added", block(unbiased=("in_proj_bias",))),
        ("yet: out_bias is not added", block(unbiased=("out_bias",))),
        ("yet: bias1 is not added", block(unbiased=("bias1",))),
        ("yet: bias2 is not added", block(unbiased=("bias2",))),
        ("reads the block's input", block(form="thinks of the start")),
        ("head by head", block(by_head=True)),
        ("no gradient comes back to x", lambda x, *rest: block()(x.detach(), *rest)),
        ("the result holds nan", queries_hidden),
        ("right for 2 heads", lambda x, mask, p, H: block()(x, mask, p, 2)),
        ("in front or between", lambda x, mask, p, H: block()(
            x, torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True), p, H)),
        ("row 0, without padding, is right", lambda x, mask, p, H: block(see="all")(x * mask[..., None], mask, p, H)),
    ],
    "cross_attention": [
        ("runs only where T = S", exchanged),
        ("the roles are exchanged", cross(q="memory", k="x", v="x", see="all")),
        ("its values come from x", cross(v="x")),
        ("its keys come from x", cross(k="x")),
        ("this is self-attention", cross(k="x", v="x", see="all")),
        ("`real` is not used", cross(see="all")),
        ("the wrong way round", cross(see="padding")),
        ("a causal mask", cross(see="causal")),
        ("wrong for T = S = 4", lambda x, memory, *rest: cross(
            see="causal" if x.shape == memory.shape else "mask")(x, memory, *rest)),
        ("runs over the target positions", cross(dim=1)),
        ("not divided by sqrt(D)", cross(scale=False)),
        ("W_k and W_v are exchanged", cross(swap=(0, 2, 1))),
        ("W_q and W_k are exchanged", cross(swap=(1, 0, 2))),
        ("yours with W_q, W_k and W_k", cross(swap=(0, 1, 1))),
        ("yours with W_q, W_v and W_v", cross(swap=(0, 2, 2))),
        ("yours with W_k, W_k and W_v", cross(swap=(1, 1, 2))),
        ("yours with W_k, W_v and W_q", cross(swap=(1, 2, 0))),
        ("x @ W.T", cross(turn=False)),
        ("the memory itself", cross(project_v=False)),
        ("right for D = 5, wrong for D = 3", cross(width=5)),
        ("divided by sqrt(S)", cross(width="S")),
        ("divided by sqrt(T)", cross(width="T")),
        ("divided by D; divide by its root", cross(width="D squared")),
        ("only then are its weights (or its values) set to 0", cross(see="all", zero=("weights",))),
        ("the memory is set to 0 at padding", cross(see="all", zero=("memory",))),
        ("padding has the score 0", cross(see="all", zero=("k",))),
        ("its scores are finite numbers", cross(hide=-10.0)),
        ("right for small scores, wrong for large ones, of some hundreds", cross(hide=-100.0)),
        ("right for small scores, wrong for large ones, of some thousands", cross(hide=-1000.0)),
        ("x is added to the answer", lambda x, *rest: x + cross()(x, *rest)),
    ],
    "own_transformer": [
        ("encode: the rows of the table", own(root=False)),
        ("encode: the positions are missing", own(places=None)),
        ("encode: the positions begin at 1", own(places=1)),
        ("encode: only the first layer", own(depth=1)),
        ("encode: the first layer is used again", own(layers=lambda layers: [layers[0]] * len(layers))),
        ("encode: the layers are used in the wrong order", own(layers=lambda layers: layers[::-1])),
        ("encode: real tokens look at padding", own(see_source=False)),
        ("encode: `real` is used the wrong way round", own(see_source="padding")),
        ("encode: shapes are right, numbers are not", own(heads=1)),
        ("decode: a position sees the words after it", own(causal=False)),
        ("decode: a position sees one word too far", own(ahead=1)),
        ("decode: the causal mask is transposed", own(turned=True)),
        ("decode: the cross-attention looks at padding", own(see_source="encoder")),
        ("decode: `real` is used the wrong way round", own(see_source="padding across")),
        ("decode: the cross-attention is missing", own(cross=None)),
        ("decode: the cross-attention stands before", own(first=True)),
        ("decode: the cross-attention uses the weights", own(cross="")),
        ("decode: what cross-attention finds replaces y", own(keep=0)),
        ("decode: the second and the third norm", own(norms=(3, 2))),
        ("decode: the norm after the feed-forward network uses gain2", own(norms=(2, 2))),
        ("decode: your code runs only where T = S", own(exchange=True)),
        ("decode: the logits are multiplied by sqrt(D)", own(scale=1.0 + 1e-12)),
        ("decode: the logits are divided by sqrt(D)", own(divide=True)),
        ("decode: the sublayers are in the wrong order", own(in_order=True)),
        ("encode: the scores of attention are not divided", own(score="1")),
        ("encode: the scores of attention are divided by sqrt(D)", own(score="D")),
        ("padding in the source change the memory", own(ids_tell=True)),
        ("padding in the source change the logits", LongLogits),
        ("encode is right; next: decode", unwritten("decode")),
        ("encode and decode are right; next: learn", unwritten("learn")),
        ("encode, decode and learn are right; next: translate", unwritten("translate")),
        ("a layer of nn is used, LayerNorm, which is not allowed", BareNorms),
        ("a layer of the library is used, MultiHeadAttention, which is not allowed", LibraryAttention),
        ("LayerNorm, and no gradient comes to encoder[0]['gain1']: the parameters of a layer", WrappedNorms),
        ("Embedding, and no gradient comes to source_table: the parameters of a layer", WrappedTables),
        ("A layer of nn is used, Embedding: its parameters are its own, so it cuts your tensors off", WrappedTable),
        ("no gradient comes to encoder[0]['gain1']: is it copied, detached, wrapped in an nn.Parameter", WrappedGains),
        ("no gradient comes to source_table: is it copied, detached, wrapped in an nn.Parameter, or is what you make "
         "of it computed under no_grad", FrozenEncoder),
        ("as a layer of nn does (LayerNorm)", AllWrapped),
        ("right for 2 heads and 2 layers", own(depth=2)),
        ("learn: padding counts in the loss", own(pad_counts=True)),
        ("learn: padding adds nothing to the loss, but is counted", own(all_places=True)),
        ("learn: the loss is a sum", own(reduction="sum")),
        ("learn: that is the loss after the update", own(loss_after=True)),
        ("learn: the loss compares with target_in", own(shift=True)),
        ("is there a backward, and a step", own(move=False)),
        ("has your model copied them", own(clone=True)),
        ("call zero_grad", own(zero=False)),
        ("still holds the graph", own(graph=True)),
        ("the weights after two updates are not", own(train=False)),
        ("translate: sos stands in front", own(keep_sos=True)),
        ("translate: eos is among your words", own(keep_eos=True)),
        ("translate: it goes on after eos", own(stop=False)),
        ("translate: the last word is missing", own(short=1)),
        ("translate: your code appends eos to source", own(again=True)),
    ],
    "continue_greedily": [
        ("the prompt is among your words", write(prompt_too=True)),
        ("the stop token (3) is among them", write(keep_stop=True)),
        ("goes on after the stop token", write(stop_at=False)),
        ("a round too early", write(rounds=-1)),
        ("the first position", write(last=0)),
        ("only the newest token", write(whole=False)),
        ("least likely", write(sign=-1)),
        ("append each word to the text", write(append=False)),
        ("you read the same row of logits in each round", one_row),
        ("at the limit the text is complete", one_ahead),
        ("append one word in each round", doubled),
        ("right for eos_id = 3, wrong for", lambda model, prompt, stop, limit: write()(model, prompt, 3, limit)),
        ("list of the new tokens", lambda model, prompt, stop, max_new: "words"),
        ("leave the loop when it comes", never_stops),
        ("reads the same text twice", reads_twice),
        ("the prompt holds the stop token", looks_everywhere),
        ("the first place that differs is new word", cropped),
        ("and do you take the best word, not draw one", drawn),
    ],
}  # fmt: skip

IDENTITY = {
    "layer_norm": lambda x, *rest: x,
    "residuals_by_hand": (6, 6, 6, 6),
    "encoder_block": lambda x, *rest: x,
    "cross_attention": lambda x, *rest: x,
    "continue_greedily": lambda model, prompt, *rest: prompt,
    "own_transformer": lambda *given: nn.Identity(),
}
ZEROS = {
    "layer_norm": lambda x, *rest: 0 * x,
    "residuals_by_hand": (0, 0, 0, 0),
    "encoder_block": lambda x, *rest: 0 * x,
    "cross_attention": lambda x, *rest: 0 * x,
    "continue_greedily": lambda *rest: [0],
    "own_transformer": own(keep=0, root=False),
}


# --- the tests -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTED)
def test_reference_passes(name):
    assert verdict(getattr(ch09, name), solution("09", VALUES.get(name, name))) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: no torch's attention in 9.4, no tensors of ids."""

    def by_products(x, weight, bias, eps):
        centred = x - (x @ torch.ones(x.shape[-1], 1).to(x)) / x.shape[-1]
        variance = centred.norm(dim=-1, keepdim=True) ** 2 / x.shape[-1]
        return torch.addcmul(bias, weight * centred, (variance + eps).rsqrt())

    def sdpa(x, memory, memory_mask, W_q, W_k, W_v):
        inputs = x @ W_q.T, memory @ W_k.T, memory @ W_v.T
        return F.scaled_dot_product_attention(*inputs, attn_mask=memory_mask[:, None])

    writer = solution("09", "continue_greedily")
    assert verdict(ch09.layer_norm, by_products) == "passed: layer_norm"
    assert verdict(ch09.cross_attention, sdpa) == "passed: cross_attention"
    assert verdict(ch09.continue_greedily, lambda *given: torch.tensor(writer(*given))) == "passed: continue_greedily"
    assert verdict(ch09.residuals_by_hand, torch.tensor([1.41, 8.83, 12, 4.24])) == "passed: residuals_by_hand"


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, planted in PLANTED.items() for number in range(len(planted))]
)
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch09, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("options", [
    {"exchange": "permuted", "merge": "interleaved"}, {"exchange": "permuted"}, {"exchange": True, "width": "H"},
], ids=["there and back", "there only", "K heads"])  # fmt: skip
def test_heads_of_the_wrong_axis_are_named(options):
    """Fails when (B, T, K, H) in place of (B, T, H, K) gets only the general message."""
    assert "H and K are exchanged" in verdict(ch09.encoder_block, block(**options))


def test_an_inverted_mask_is_named_without_nan_too():
    """Fails when the mistake is recognised by its nan alone."""

    def filled(x, mask, p, H):
        return torch.where(mask.all(1)[:, None, None], 0 * x, block(see="padding")(x, mask, p, H))

    assert "the wrong way round" in verdict(ch09.encoder_block, filled)


@pytest.mark.parametrize("eps", [0.0, 1e-8, 1e-6, 1e-3])
def test_another_eps_is_named(eps):
    """Fails when a block whose norms have another eps gets only the general message."""
    assert "all is right but for eps" in verdict(ch09.encoder_block, block(eps=eps))


@pytest.mark.parametrize(("part", "options"), [
    ("only then are its weights (or its values) set to 0", {"see": "all", "zero": ("v",)}),
    ("padding has the score 0", {"hide": 0.0}),
    ("its scores are finite numbers", {"hide": -3.0}),
], ids=["values", "score 0", "score -3"])  # fmt: skip
def test_padding_that_keeps_its_weight_is_named(part, options):
    """Fails when another way to the same mistake gets a message that is not true of it."""
    assert part in verdict(ch09.cross_attention, cross(**options))


def test_a_prompt_cut_at_its_stop_token_is_named():
    """Fails when another way to trip over a stop token in the prompt passes, or gets another message."""
    assert "the prompt holds the stop token" in verdict(ch09.continue_greedily, cuts_all)


@pytest.mark.parametrize("low", [-1e4, -1e9])
def test_a_very_low_score_hides_as_well(low):
    """Fails when the check insists on minus infinity."""
    assert verdict(ch09.cross_attention, cross(hide=low)) == "passed: cross_attention"


@pytest.mark.parametrize("constant", [0.0, 1e-12, 1e-6, 1e-5])
def test_the_message_about_eps_is_true(constant):
    """Fails when a constant in place of eps is said to be missing, or a missing one to be a constant."""

    def layer_norm(x, weight, bias, eps):
        return norm()(x, weight, bias, constant)

    part = "eps plays no part" if constant else "eps is missing"
    assert part in verdict(ch09.layer_norm, layer_norm)


@pytest.mark.parametrize(
    "model",
    [own(clone=True, detach=True), lambda weights, H: own()(copy.deepcopy(weights), H)],
    ids=["detached", "deepcopy"],
)
def test_detached_copies_are_suspected(model):
    """Fails when a model that trains copies passes, or is told only that a backward or a step is missing."""
    assert "hold copies" in verdict(ch09.own_transformer, model)


def test_an_untouched_method_before_the_first_that_is_right_is_not_attempted():
    """Fails when a model whose encode is still to be written is said to have something right."""
    assert verdict(ch09.own_transformer, unwritten("encode")) == "not attempted yet: own_transformer"


def test_layers_without_weights_and_losses_are_welcome():
    """Fails when the check refuses what holds no tensors of the model: ReLU, the loss, a module of one's own."""

    class LayerNorm(nn.Module):  # of the reader's own, under torch's name
        def forward(self, x):
            return x.clone()

    class Activated(own()):
        def think(self, x, p):
            x = LayerNorm()(post_ln(x, torch.zeros_like, nn.Identity()))
            nn.Transformer.generate_square_subsequent_mask(len(x))  # a mask, no layer
            return nn.ReLU()(x @ p["weight1"].T + p["bias1"]) @ p["weight2"].T + p["bias2"]

        def learn(self, optimizer, source, real, target_in, target_out, pad):
            logits = self.decode(target_in, self.encode(source, real), real)
            loss = nn.CrossEntropyLoss(ignore_index=pad)(logits.flatten(0, 1), target_out.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.item()

    assert verdict(ch09.own_transformer, Activated) == "passed: own_transformer"


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch09, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch09, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch09, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch09, name), wrong) for _, wrong in PLANTED[name])
    for line in ("masked_fill", ".transpose(", "torch.sqrt", ".chunk", "argmax", "8.83", "4.24", "1.41", "F.linear"):
        assert line not in messages


def test_hints_and_a_good_answer_for_the_words(capsys):
    """Fails if the written exercise gives its answer away before there is one."""
    ch09.which_style.compare(...)
    assert ch09.which_style.good_answer not in capsys.readouterr().out
    ch09.which_style.compare("Duplicates want an encoder because both texts are there from the start " * 2)
    assert capsys.readouterr().out == f"A good answer contains: {ch09.which_style.good_answer}\n"
    assert all(hint not in ch09.which_style.good_answer for hint in ch09.which_style.hints)
