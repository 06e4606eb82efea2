"""Checks of chapter 09's exercises: LayerNorm, ways to add, an encoder block, cross-attention, the loop, the whole.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes, computes what
they would give, and names the one it recognises. Notebook: 09.
"""

import contextlib
import math
from itertools import product

import torch
import torch.nn.functional as F
from torch import nn
from torch.overrides import TorchFunctionMode

from course_lib import attention, transformer, transformer_models
from course_lib.exercises import (
    Written,
    Wrong,
    _StudentError,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    guarded,
    near,
    precision,
    ready_made,
)
from course_lib.generate import greedy
from course_lib.positional import sinusoidal_table
from course_lib.pretrained import load_translator, weights_by_layer
from course_lib.text import EOS, SOS


def _random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _recognise(got, wrong):
    """Raise the message of the first wrong answer that `got` agrees with."""
    for message, value in wrong.items():
        if value.shape == got.shape and close(got, value, precision(got, 1e-6)):
            raise Wrong(message)


def _expect_gradient(student, right, x, *rest, real=...):
    """Raise where the numbers are right, but the gradient that comes back to x is not theirs: something is detached."""
    with torch.enable_grad():
        leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
        want = right(twin, *rest)[real]
        mixed = _random(*want.shape, seed=7)
        kinds = []

        def noted(*given):
            result = student.__wrapped__(*given)
            kinds.append(type(result))
            return result

        try:
            got = guarded(noted)(leaf, *rest)[real]
        except _StudentError:  # NumPy takes no tensor that wants a gradient
            return
        if kinds[0] is not torch.Tensor:  # an array, or another kind that begins a graph of its own
            return
        if not got.requires_grad:
            raise Wrong("the numbers are right, but no gradient comes back to x, so nothing before it could learn: is "
                        "x detached, or are gradients switched off?")  # fmt: skip
        gradient, wanted = (
            torch.autograd.grad((mixed * result).sum(), start, allow_unused=True, materialize_grads=True)[0]
            for result, start in ((got, leaf), (want, twin))
        )
    if not close(gradient, wanted, 1e-4):
        raise Wrong("the numbers are right, but the gradient that comes back to x is not: a part of your computation "
                    "is detached, or runs with gradients switched off")  # fmt: skip


# --- exercise 9.1: LayerNorm ------------------------------------------------------------------


def _normalise(x, weight, bias, eps, dim=-1, correction=0, outside=False):
    """LayerNorm, or a mistaken form of it."""
    centred = x - x.mean(dim, keepdim=True)
    variance = x.var(dim, keepdim=True, correction=correction)
    return weight * centred / (variance.sqrt() + eps if outside else (variance + eps).sqrt()) + bias


def _is_eps_used(student, got, x, weight, bias):
    """Raise where the result is a LayerNorm in which eps plays no part: left out, or a constant in its place."""
    for correction, also in ((0, ""), (1, "; and the variance is divided by D - 1, where LayerNorm divides by D")):
        nearly = close(got, _normalise(x, weight, bias, 0.0, correction=correction), 2e-4)
        if nearly and close(student(x, weight, bias, 3.0), got, 1e-9):
            if student(torch.ones_like(x), weight, bias, 3.0).isfinite().all():
                raise Wrong("eps plays no part: with eps = 3 in place of 0.3 your result stays the same. Is a "
                            f"constant, such as 1e-5, written where eps should stand?{also}")  # fmt: skip
            raise Wrong(f"eps is missing: for a vector of equal entries your result is 0 / 0, not a number{also}")


class _Norms(TorchFunctionMode):
    """Notes which of torch's own norms are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name.endswith("_norm") and name.removeprefix("native_").split("_")[0] in _READY:
            self.called.append(name)
        return function(*args, **(kwargs or {}))


_READY = ("layer", "batch", "group", "instance", "rms")


class _Attentions(TorchFunctionMode):
    """Notes which of torch's own attentions are called."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in _READY_ATTENTIONS:
            self.called.append(name)
        return function(*args, **(kwargs or {}))


_READY_ATTENTIONS = ("scaled_dot_product_attention", "multi_head_attention_forward")


@check(
    hints=(
        "Each vector x[b, t] is normalised by itself: which axis do mean and variance run over, and how many numbers "
        "are divided by?",
        "centred = x minus its mean over the last axis (keepdim); variance = mean of centred squared; divide by the "
        "root of (variance + eps); times weight, plus bias.",
        "x.var(-1, keepdim=True, unbiased=False) is the mean of the squares; eps is added before the root is taken.",
    )
)
def layer_norm(student):
    """Exercise 9.1: the norm of each vector, with a learned gain and offset."""
    x, weight, bias = 2 + 3 * _random(2, 3, 5), 1 + 0.5 * _random(5, seed=1), _random(5, seed=2)
    eps = 0.3  # large, so that its place can be seen
    with _Norms() as norms:
        got = expect_tensor(student(x, weight, bias, eps), x.shape)
    if norms.called:
        raise Wrong(f"your code calls torch's own {norms.called[0]}; here you write it yourself, from the mean and the "
                    "variance of each vector")  # fmt: skip
    if close(got, F.layer_norm(x, (5,), weight, bias, eps), precision(got)):
        x, weight, bias = x[..., :4], weight[:4], bias[:4]
        if not close(student(x, weight, bias, 0.1), F.layer_norm(x, (4,), weight, bias, 0.1)):
            raise Wrong("right for D = 5 and eps = 0.3, wrong for D = 4 and eps = 0.1: is one of them written in your "
                        "code?")  # fmt: skip
        far = 5000 + 3 * _random(2, 3, 4).float(), weight.float(), bias.float()
        if not close(student(*far, 0.1), F.layer_norm(far[0], (4,), *far[1:], 0.1), 1e-2):
            raise Wrong("right for small entries, wrong where they lie near 5000: is the variance a difference of two "
                        "large numbers, the mean of the squares and the square of the mean? In float32 little is left "
                        "of it. Subtract the mean first, then square")  # fmt: skip
        _expect_gradient(student, lambda x, *rest: F.layer_norm(x, (4,), *rest), x, weight, bias, 0.1)
        return
    _is_eps_used(student, got, x, weight, bias)
    one, zero = torch.ones(5, dtype=x.dtype), torch.zeros(5, dtype=x.dtype)
    variance = x.var(-1, keepdim=True, correction=0)
    _recognise(got, {
        "eps and the variance are both off: the root stands before eps is added, and the variance is divided by D - 1. "
        "nn.LayerNorm takes the mean of the squares, adds eps, then the root": _normalise(
            x, weight, bias, eps, correction=1, outside=True),
        "the variance is divided by D - 1 (torch's default for var and std); LayerNorm divides by D: "
        "unbiased=False": _normalise(x, weight, bias, eps, correction=1),
        "eps is added to the standard deviation; it belongs inside the root, beside the variance": _normalise(
            x, weight, bias, eps, outside=True),
        "the root of eps is added to the standard deviation; add eps to the variance, then take one root of the sum":
            _normalise(x, weight, bias, math.sqrt(eps), outside=True),
        "the root of eps is added after the root of the variance, and the variance is divided by D - 1. Divide by D, "
        "add eps to the variance, then take one root": _normalise(
            x, weight, bias, math.sqrt(eps), correction=1, outside=True),
        "you normalise over the positions, axis 1: each vector must be normalised by itself, over its own D entries":
            _normalise(x, weight, bias, eps, dim=1),
        "you normalise over the batch, axis 0, as BatchNorm does: what a sentence gets would depend on its neighbours":
            _normalise(x, weight, bias, eps, dim=0),
        "you took one mean and one variance of the whole tensor; each vector x[b, t] has its own": _normalise(
            x, weight, bias, eps, dim=(0, 1, 2)),
        "you normalise over positions and features together; each vector x[b, t] has its own mean and variance":
            _normalise(x, weight, bias, eps, dim=(1, 2)),
        "the normalised vectors are right, but weight and bias are not applied": _normalise(x, one, zero, eps),
        "the gain is applied, the bias is missing": _normalise(x, weight, zero, eps),
        "the bias is added, the gain (weight) is missing": _normalise(x, one, bias, eps),
        "the mean is not subtracted: that is nearly RMSNorm, another norm": weight * x / (variance + eps).sqrt() + bias,
        "that is RMSNorm and a bias: x is divided by the root of the mean of its squares, and its mean is subtracted "
        "nowhere. Subtract it first": weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt() + bias,
        "the squares are added up; the variance is their mean, the sum divided by D":
            weight * (x - x.mean(-1, keepdim=True)) / (5 * variance + eps).sqrt() + bias,
        "the gain multiplies the bias too: the bias is added last": weight * _normalise(x, one, bias, eps),
        "you divide by the variance; divide by its root":
            weight * (x - x.mean(-1, keepdim=True)) / (variance + eps) + bias,
        "that is x itself: nothing has been normalised": x,
    })  # fmt: skip
    raise Wrong("for x of shape (2, 3, 5) the result is not the LayerNorm. With weight 1 and bias 0 every vector must "
                "have mean 0 and, for a small eps, variance 1; check yours")  # fmt: skip


# --- exercise 9.2: by hand --------------------------------------------------------------------


@check(
    hints=(
        "First norm(x) for x = (6, 0, 0): mean 2, deviations 4, -2, -2; the variance is the mean of their squares.",
        "post: norm(x + 2x). pre: x + 2 norm(x). rezero: x + 0.5 (2x). replaced: norm(x) + 2 norm(x). First entries.",
        "norm(x) = (4, -2, -2) / sqrt(8), and norm(3x) = norm(x).",
    )
)
def residuals_by_hand(answer):
    """Exercise 9.2: the first entry of x after one sublayer, in four forms."""
    names, unit = ("post", "pre", "rezero", "replaced"), math.sqrt(2)
    got = expect_numbers(answer, names)
    want = (unit, 6 + 2 * unit, 12.0, 3 * unit)
    if all(map(near, got, want)):
        return
    if all(math.isclose(a, b, rel_tol=2e-2) for a, b in zip(got, want, strict=True)):
        raise Wrong("right to two digits: give three digits of each number")
    unbiased = 4 / math.sqrt(12)
    if near(got[0], unbiased) or near(got[1], 6 + 2 * unbiased):
        raise Wrong("you divided the squares by D - 1 = 2; LayerNorm divides by D = 3: the variance is 24 / 3")
    if all(map(near, sorted(got), sorted(want))):
        raise Wrong("these are the right four numbers in another order; asked for are post, pre, rezero, replaced")
    post, pre, rezero, replaced = got
    if near(post, 3 * unit):
        raise Wrong("post: norm(x) + f(norm(x)) is the form in the last question; Post-LN adds first, then normalises")
    if near(post, 2 * unit) or near(post, 4.0):
        raise Wrong("post: is the residual x added, and then all of it normalised? norm(x + f(x)) = norm(3x)")
    if not near(post, want[0]):
        raise Wrong(f"post: the first entry of norm(x + f(x)) is not {post:.3g}; first the sum, x + 2x, then its norm")
    if near(pre, 3 * unit):
        raise Wrong("pre: the residual must be x as it is, not norm(x): x + f(norm(x))")
    if near(pre, 2 * unit):
        raise Wrong("pre: this is f(norm(x)) alone; x is added to it")
    if not near(pre, want[1]):
        raise Wrong(f"pre: x + f(norm(x)) does not begin with {pre:.3g}; only what f reads is normalised")
    if near(rezero, 6.0):
        raise Wrong("rezero: this is x, what it gives with alpha = 0, at the start; here alpha = 0.5")
    if near(rezero, 18.0):
        raise Wrong("rezero: this is x + f(x); alpha = 0.5 multiplies f(x)")
    if near(rezero, 9.0):
        raise Wrong("rezero: alpha multiplies f(x) = 2x, not x: 6 + 0.5 * 12")
    if not near(rezero, want[2]):
        raise Wrong(f"rezero: x + alpha f(x) does not begin with {rezero:.3g}; there is no norm in it")
    if near(replaced, want[1]):
        raise Wrong("replaced: this is the proper Pre-LN; here x was overwritten by norm(x) before it was added")
    if near(replaced, 2 * unit):
        raise Wrong("replaced: this is f(norm(x)) alone; norm(x) is added to it")
    raise Wrong(f"replaced: norm(x) + f(norm(x)) does not begin with {replaced:.3g}")


# --- exercise 9.3: an encoder block -----------------------------------------------------------

_D, _H, _F = 6, 2, 10
_SHAPES = {
    "in_proj_weight": (3 * _D, _D), "in_proj_bias": (3 * _D,), "out_weight": (_D, _D), "out_bias": (_D,),
    "weight1": (_F, _D), "bias1": (_F,), "weight2": (_D, _F), "bias2": (_D,),
    "gain1": (_D,), "offset1": (_D,), "gain2": (_D,), "offset2": (_D,),
}  # fmt: skip


def _attend(x, mask, p, width=None, axis=-1, merge=True, order="qkv", split=True, project=True, H=_H, causal=False):
    """Self-attention with the parameters of a block, or a mistaken form of it."""
    B, T, D = x.shape
    parts = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
    parts = dict(zip(order, parts, strict=True))
    q, k, v = (parts[name] for name in "qkv")
    if split == "interleaved":
        q, k, v = (part.view(B, T, D // H, H).permute(0, 3, 1, 2) for part in (q, k, v))
    elif split == "by head":
        q, k, v = torch.cat([q, k, v], -1).view(B, T, H, 3, D // H).permute(3, 0, 2, 1, 4)
    elif split:
        q, k, v = (part.view(B, T, H, D // H).transpose(1, 2) for part in (q, k, v))
    else:
        q, k, v = (part.reshape(B, H, T, D // H) for part in (q, k, v))
    scores = q @ k.transpose(-2, -1) / (D // H if width is None else width) ** 0.5
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None, None], -math.inf)
    if causal:
        scores = scores.masked_fill(torch.ones(T, T).triu(1) > 0, -math.inf)
    heads = scores.softmax(axis) @ v
    if merge == "interleaved":
        heads = heads.permute(0, 2, 3, 1)
    elif merge:
        heads = heads.transpose(1, 2)
    heads = heads.reshape(B, T, D)
    return F.linear(heads, p["out_weight"], p["out_bias"]) if project else heads


def _feed_forward(x, p, activation=F.relu):
    return F.linear(activation(F.linear(x, p["weight1"], p["bias1"])), p["weight2"], p["bias2"])


def _block(x, mask, p, attend=_attend, feed=_feed_forward, add="post", norms=(1, 2), eps=1e-5, **options):
    """An encoder block, or a mistaken form of it."""
    norm1, norm2 = (lambda x, i=i: F.layer_norm(x, (_D,), p[f"gain{i}"], p[f"offset{i}"], eps) for i in norms)
    if add == "pre":
        x = x + attend(norm1(x), mask, p, **options)
        return x + feed(norm2(x), p)
    if add == "norm first":
        x = x + norm1(attend(x, mask, p, **options))
        return x + norm2(feed(x, p))
    keep, start = 0 if add in ("none", "second only") else x, x
    x = norm1(keep + attend(x, mask, p, **options))
    if add == "first only":
        return norm2(feed(x, p))
    return norm2({"none": 0, "the start": start}.get(add, x) + feed(start if add == "thinks of the start" else x, p))


def _without_biases(p, *names):
    """The parameters of a block, some biases 0."""
    return {name: 0 * tensor if name in names else tensor for name, tensor in p.items()}


def _other_block(student, x, p):
    """Another number of heads, and padding that does not stand at the end."""
    mask = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]).bool()
    full = torch.ones_like(mask)
    got = student(x, full, p, 3)
    if not close(got, _block(x, full, p, H=3), precision(got)):
        raise Wrong("right for 2 heads, wrong for 3: is the number of heads written in your code?")
    if not close(student(x, mask, p, 2)[mask], _block(x, mask, p)[mask], precision(got)):
        raise Wrong("right for padding at the end of the rows, wrong for padding in front or between: use `real` "
                    "as it is, not the number of its True")  # fmt: skip
    _expect_gradient(student, _block_of_heads, x, mask, p, 2, real=mask)


def _block_of_heads(x, mask, p, H):
    return _block(x, mask, p, H=H)


def _no_norms(x, mask, p):
    x = x + _attend(x, mask, p)
    return x + _feed_forward(x, p)


@check(
    hints=(
        "Two halves of the same form: something is computed from x, added to x, and the sum is normalised.",
        "q, k, v = the three parts of x W_in^T + b; each to (B, H, T, K); weights = softmax over the keys of "
        "q k^T / sqrt(K), scores of padding at minus infinity first; merge the heads; out projection; "
        "x = norm1(x + that); x = norm2(x + W2 relu(W1 x)).",
        "q.view(B, T, H, K).transpose(1, 2) splits, .transpose(1, 2).reshape(B, T, D) merges; real[:, None, None] "
        "lines the keys up with the last axis of the scores (B, H, T, T).",
    )
)
def encoder_block(student):
    """Exercise 9.3: a Post-LN encoder block from tensors, with padding."""
    x = _random(3, 4, _D)
    p = {name: _random(*shape, seed=i + 1) / 2 for i, (name, shape) in enumerate(_SHAPES.items())}
    for name in ("gain1", "gain2"):
        p[name] = 1 + p[name]
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0], [1, 1, 1, 0]]).bool()
    with _Attentions() as attentions:
        got = expect_tensor(student(x, mask, p, _H), x.shape)
    if attentions.called:
        raise Wrong(f"your code calls torch's own {attentions.called[0]}; here you write the attention "
                    "yourself: scores, softmax, and the weighted sum of the values")  # fmt: skip
    want = _block(x, mask, p)
    if close(got[mask], want[mask], precision(got)):
        _other_block(student, x, p)
        return
    many = _block(x, mask, p, axis=-2)
    if close(got[0], many[0], precision(got, 1e-6)):
        raise Wrong(
            "the softmax runs over the queries; for each query the weights of the keys must add up to 1: dim=-1"
        )
    inverted = _block(x, ~mask, p)  # row 0, all real, then has nothing to attend to
    if close(got[1:][mask[1:]], inverted[1:][mask[1:]], precision(got, 1e-6)):
        raise Wrong("`real` is used the wrong way round: True = may attend; your real tokens look at padding alone")
    if got[mask].isnan().any():
        raise Wrong("the result holds nan: a whole row of scores is minus infinity. Hide the padding keys, the last "
                    "axis of (B, H, T, T), and no query")  # fmt: skip
    seeing_all = _block(x, None, p)
    if close(got[mask], seeing_all[mask], precision(got, 1e-6)):
        if close(got, seeing_all, precision(got, 1e-6)):
            raise Wrong("real tokens attend to padding: `real` is not used. Padded keys, on the last axis of "
                        "(B, H, T, T), must get scores of minus infinity")  # fmt: skip
        raise Wrong("real tokens attend to padding: `real` changes only what padding itself gets. It hides padded "
                    "queries; hide the padded keys, the last axis of (B, H, T, T)")  # fmt: skip
    wrong = {
        "this is Pre-LN: you normalise what a sublayer reads. Wanted is Post-LN: normalise the sum":
            _block(x, mask, p, add="pre"),
        "only what a sublayer gives is normalised; Post-LN normalises the sum: norm(x + attention)":
            _block(x, mask, p, add="norm first"),
        "the residuals are missing: add what each sublayer read to what it gives, then normalise":
            _block(x, mask, p, add="none"),
        "the first residual is missing: what attention gives is added to x":
            _block(x, mask, p, add="second only"),
        "the second residual is missing: the feed-forward's output is added to what it read":
            _block(x, mask, p, add="first only"),
        "nothing is normalised: two LayerNorms are missing": _no_norms(x, mask, p),
        "the scores are divided by sqrt(D); the dot products have K = D / H terms: sqrt(K)":
            _block(x, mask, p, width=_D),
        "the scores are not scaled: divide by sqrt(K)": _block(x, mask, p, width=1),
        "the heads are merged in the wrong order: (B, H, T, K) must become (B, T, H, K) before the reshape":
            _block(x, mask, p, merge=False),
        "the heads are split in the wrong order: view as (B, T, H, K) first, then exchange axes 1 and 2":
            _block(x, mask, p, split=False),
        "the heads are neither split nor merged as they should be: a reshape straight to (B, H, T, K) mixes the words, "
        "and one straight back does not undo what attention did with the mixture. View as (B, T, H, K), then exchange "
        "axes 1 and 2; before the merge exchange them again": _block(x, mask, p, split=False, merge=False),
        "the output projection is missing: after the merge come out_weight and out_bias":
            _block(x, mask, p, project=False),
        "the feed-forward has another activation than relu": _block(x, mask, p, feed=lambda x, p:
            _feed_forward(x, p, F.gelu)),
        "the feed-forward has no relu: two linear layers without it are one": _block(x, mask, p, feed=lambda x, p:
            _feed_forward(x, p, lambda hidden: hidden)),
        "the feed-forward is missing": _block(x, mask, p, feed=lambda x, p: 0 * x),
        "the order of the projections is off: the rows of in_proj_weight are those of q, then k, then v":
            _block(x, mask, p, order="kqv"),
        "the two norms have changed places: gain1 and offset1 belong to the first": _block(x, mask, p, norms=(2, 1)),
        "the first norm is used twice; the second sum has its own, gain2 and offset2": _block(x, mask, p, norms=(1, 1)),
        "the second residual is the block's input; what the feed-forward read, norm1's result, is added to what it "
        "gives": _block(x, mask, p, add="the start"),
        "the feed-forward network reads the block's input; it must read norm1's result, as the second sum does":
            _block(x, mask, p, add="thinks of the start"),
        "the rows of in_proj_weight are read head by head, q, k and v of each; they are all of q, then all of k, then "
        "all of v, and within each the heads one after the other": _block(x, mask, p, split="by head"),
        "a causal mask in an encoder: the text is there as a whole, every token may look at all the real ones":
            _block(x, mask, p, causal=True),
        "none of the four biases is added: each of the linear maps has one": _block(x, mask, _without_biases(
            p, "in_proj_bias", "out_bias", "bias1", "bias2")),
        "the biases of the attention, in_proj_bias and out_bias, are not added": _block(x, mask, _without_biases(
            p, "in_proj_bias", "out_bias")),
        "the biases of the feed-forward network, bias1 and bias2, are not added": _block(x, mask, _without_biases(
            p, "bias1", "bias2")),
        **{f"{name} is not added": _block(x, mask, _without_biases(p, name))
           for name in ("in_proj_bias", "out_bias", "bias1", "bias2")},
    }  # fmt: skip
    _recognise(got[mask], {message: value[mask] for message, value in wrong.items()})
    K = _D // _H
    for options in (
        {"split": "interleaved", "merge": "interleaved"}, {"split": "interleaved"}, {"H": K}, {"H": K, "width": K},
    ):  # fmt: skip
        if close(got[mask], _block(x, mask, p, **options)[mask], precision(got, 1e-6)):
            raise Wrong("the heads are split the wrong way: H and K are exchanged. A head's K entries stand side by "
                        "side, so H comes before K in the view")  # fmt: skip
    for eps in (0.0, *(10.0**-n for n in range(1, 13) if n != 5)):
        if close(got[mask], _block(x, mask, p, eps=eps)[mask], precision(got)):
            raise Wrong("all is right but for eps: another number than 1e-5 stands under the root of your norms")
    if close(got[0], want[0], precision(got, 1e-6)):
        raise Wrong("row 0, without padding, is right; the rows with padding are not: its keys must get weight 0, by "
                    "scores of minus infinity before the softmax")  # fmt: skip
    raise Wrong("the outputs at the real tokens are not those of a Post-LN block. Compare your parts, one by one: "
                "attention, norm1(x + ...), feed-forward, norm2(x + ...)")  # fmt: skip


# --- exercise 9.4: cross-attention -------------------------------------------------------------


def _cross(queries, keys, values, mask, divisor=None, axis=-1, hide=-math.inf):
    scores = queries @ keys.transpose(1, 2) / (divisor or queries.shape[-1] ** 0.5)
    if mask is not None:
        scores = scores.masked_fill(~mask[:, None], hide)
    return scores.softmax(axis) @ values


def _padding_weight(got, q, k, v):
    """The largest weight of the last key, if all weights are a softmax in which its score alone is another; or None."""
    weights = torch.linalg.lstsq(v.T, got.T).solution.T  # (T, S): got = weights @ v, and v has full rank
    real = (q @ k[:-1].T / q.shape[-1] ** 0.5).softmax(-1)
    rest, last = weights[:, :-1].sum(-1, keepdim=True), weights[:, -1]
    if close(weights @ v, got, 1e-6) and close(rest[:, 0] + last, torch.ones_like(last)) and last.max() > 1e-7:
        if last.min() > -1e-7 and close(weights[:, :-1], real * rest):
            return last.max().item()
    return None


def _exchanged(student, mask, W_q, W_k, W_v):
    """Whether the memory asks and x answers, where both are of the same length."""
    x, memory = _random(2, 4, 5, seed=5), _random(2, 4, 5, seed=6)
    try:
        got = student(x, memory, mask, W_q, W_k, W_v)
    except _StudentError:
        return False
    return close(got, _cross(memory @ W_q.T, x @ W_k.T, x @ W_v.T, mask))


def _from_x(student, mask, W_q, W_k, W_v):
    """Say so if keys or values alone come from x: code that runs only where T = S."""
    x, memory = _random(2, 4, 5, seed=5), _random(2, 4, 5, seed=6)
    try:
        got = student(x, memory, mask, W_q, W_k, W_v)
    except _StudentError:
        return
    q = x @ W_q.T
    for part, keys, values in (("values", memory, x), ("keys", x, memory)):
        if close(got, _cross(q, keys @ W_k.T, values @ W_v.T, mask), precision(got, 1e-6)):
            raise Wrong(f"your code runs only where T = S, since its {part} come from x: {part} must come from the "
                        "memory") from None  # fmt: skip


@check(
    hints=(
        "Who asks, and who is asked? The result has one vector for each position of the one that asks.",
        "q = x W_q^T, k = memory W_k^T, v = memory W_v^T; scores (B, T, S) = q k^T / sqrt(D), minus infinity where the "
        "memory is padding; softmax over S; times v.",
        "real[:, None] has the shape (B, 1, S) and lines up with the scores' last axis.",
    )
)
def cross_attention(student):
    """Exercise 9.4: the decoder asks, the memory answers."""
    x, memory = _random(2, 3, 5), _random(2, 4, 5, seed=1)
    W_q, W_k, W_v = (_random(5, 5, seed=i) for i in (2, 3, 4))
    mask = torch.tensor([[1, 1, 1, 1], [1, 1, 1, 0]]).bool()
    try:
        got = expect_tensor(student(x, memory, mask, W_q, W_k, W_v))
    except _StudentError:
        if _exchanged(student, mask, W_q, W_k, W_v):
            raise Wrong("your code runs only where T = S, since the roles of x and memory are exchanged in it. The "
                        "decoder asks: queries come from x, keys and values from the memory") from None  # fmt: skip
        _from_x(student, mask, W_q, W_k, W_v)
        raise
    if got.shape == memory.shape:
        raise Wrong("the result has one vector for each position of the memory, (B, S, D): the roles are exchanged. "
                    "The decoder asks: queries come from x")  # fmt: skip
    expect_tensor(got, x.shape)
    q, k, v = x @ W_q.T, memory @ W_k.T, memory @ W_v.T
    if close(got, _cross(q, k, v, mask), precision(got)):
        small, W = (x[..., :3], memory[..., :3]), [weight[:3, :3] for weight in (W_q, W_k, W_v)]
        parts = [vectors @ weight.T for vectors, weight in zip((small[0], small[1], small[1]), W, strict=True)]
        if not close(student(*small, mask, *W), _cross(*parts, mask), precision(got)):
            raise Wrong("right for D = 5, wrong for D = 3: is the width written in your code?")
        equal = torch.cat([x, -x[:, :1]], dim=1)  # T = S
        if not close(student(equal, memory, mask, W_q, W_k, W_v), _cross(equal @ W_q.T, k, v, mask), precision(got)):
            raise Wrong("right for T = 3 and S = 4, wrong for T = S = 4: is there a causal mask, or another way, where "
                        "both are equal? The target may see all of the source, whatever the lengths")  # fmt: skip
        alone = torch.tensor([[1, 0, 0, 0], [0, 0, 1, 0]]).bool()
        for factor, size in ((300, "hundreds"), (1500, "thousands")):
            if not close(student(factor * x, memory, alone, W_q, W_k, W_v), _cross(factor * q, k, v, alone), 1e-3):
                raise Wrong(f"right for small scores, wrong for large ones, of some {size}. Is the score of padding a "
                            "number that a real score can fall below?")  # fmt: skip
        return
    if close(got[0], _cross(q, k, v, None, axis=1)[0], precision(got, 1e-6)):  # sentence 0 has no padding
        raise Wrong("the softmax runs over the target positions; for each query the weights over the memory must add "
                    "up to 1")  # fmt: skip
    own, W = (x @ W_k.T, x @ W_v.T), {"W_q": W_q, "W_k": W_k, "W_v": W_v}
    there = mask[..., None]  # (B, S, 1)
    future = torch.ones(3, 4, dtype=torch.bool).tril()
    causal = (q @ k.transpose(1, 2) / 5**0.5).masked_fill(~(future & mask[:, None]), -math.inf).softmax(-1) @ v
    _recognise(got, {
        "this is self-attention: keys and values must come from the memory": _cross(q, *own, None),
        "`real` is not used: the decoder looks at the source's padding": _cross(q, k, v, None),
        "a causal mask in cross-attention: the source is known as a whole, every target position may see all of it":
            causal,
        "the scores are not divided by sqrt(D)": _cross(q, k, v, mask, divisor=1),
        "the scores are divided by sqrt(S), S the number of source tokens; the dot products have D terms: sqrt(D)":
            _cross(q, k, v, mask, divisor=2),
        "the scores are divided by sqrt(T), T the number of target tokens; the dot products have D terms: sqrt(D)":
            _cross(q, k, v, mask, divisor=3**0.5),
        "the scores are divided by D; divide by its root": _cross(q, k, v, mask, divisor=5),
        "padding takes part in the softmax, and only then are its weights (or its values) set to 0: the weights of "
        "the real tokens add up to less than 1. Hide its scores before the softmax": _cross(q, k, v * there, None),
        "the memory is set to 0 at padding, which does not hide it: its keys are 0, its scores too, and exp(0) is a "
        "weight. Hide its scores": _cross(q, k * there, v * there, None),
        "padding has the score 0 and still gets weight, exp(0); its score must be minus infinity":
            _cross(q, k, v, mask, hide=0.0),
        "W_k and W_v are exchanged": _cross(q, v, k, mask),
        "W_q and W_k are exchanged": _cross(x @ W_k.T, memory @ W_q.T, v, mask),
        "the projections are applied as x @ W; row vectors need x @ W.T, as nn.Linear does it":
            _cross(x @ W_q, memory @ W_k, memory @ W_v, mask),
        "the values are the memory itself: project them with W_v": _cross(q, k, memory, mask),
        **{f"q, k and v are made with W_q, W_k and W_v, each with its own; yours with {a}, {b} and {c}":
           _cross(x @ W[a].T, memory @ W[b].T, memory @ W[c].T, mask) for a, b, c in product(W, repeat=3)},
        "x is added to the answer: that residual belongs to the block; here what cross-attention itself gives is "
        "asked for": x + _cross(q, k, v, mask),
    })  # fmt: skip
    inverted = _cross(q, k, v, ~mask)
    if close(got[1], inverted[1], precision(got, 1e-6)):
        raise Wrong("`real` is used the wrong way round: True = may attend")
    if got.isnan().any():
        raise Wrong("the result holds nan: a row of scores is minus infinity throughout")
    if (weight := _padding_weight(got[1].double(), q[1], k[1], v[1])) is not None:
        raise Wrong(f"padding still gets weight, up to {weight:.1g}: its scores are finite numbers that real scores "
                    "come near to or fall below. Minus infinity leaves it no weight")  # fmt: skip
    raise Wrong("queries from x, keys and values from the memory, each with its own matrix, scores scaled, padding "
                "hidden, softmax over the memory, its weights times the values: compare yours")  # fmt: skip


# --- exercise 9.5: generating with a causal model ---------------------------------------------------

_STOP = 3


class _CausalModel:
    """Stands in for a language model: logits at t depend on all tokens up to t, through a table."""

    def __init__(self, V=9, seed=39):
        self.V, self.calls, self.given = V, 0, []
        self.table = torch.randn(97, V, generator=torch.Generator().manual_seed(seed))
        self.table[:, _STOP] -= 0.4

    def __call__(self, ids):
        self.calls += 1
        if self.calls > 100:
            raise TimeoutError
        if not isinstance(ids, torch.Tensor) or ids.ndim != 2:
            raise ValueError(f"the model wants ids (B, T), got {type(ids).__name__} {getattr(ids, 'shape', '')}")
        if ids.shape[1] == 0:
            raise ValueError("the model was given no token")
        if ids.shape[1] > 60:
            raise ValueError(f"the model was given {ids.shape[1]} tokens: append one word in each round")
        self.given.append(ids.clone())
        state, rows = torch.zeros(len(ids), dtype=torch.int64), []
        for tokens in ids.unbind(1):
            state = (31 * state + 7 * tokens + 5) % 97
            rows.append(self.table[state])
        return torch.stack(rows, 1)  # (B, T, V)


def _write(model, prompt, stop, limit, last=True, whole=True, best=True, obey=True):
    """Greedy continuation of a prompt, or a mistaken form of it."""
    ids, words = list(prompt), []
    for _ in range(limit):
        logits = model(torch.tensor([ids if whole else ids[-1:]]))[0, -1 if last else 0]
        word = (logits if best else -logits).argmax().item()
        ids.append(word)
        words.append(word)
        if word == stop and obey:
            break
    return words


@check(
    hints=(
        "In each round the model reads everything that is there, and only its last row of logits says something new.",
        "ids = prompt; at most max_new_tokens times: logits = model(ids as (1, T)); word = argmax of the last "
        "position's row; leave if it is eos_id; append it to ids. Return what was appended.",
        "model(torch.tensor([ids]))[0, -1].argmax().item() is the next word.",
    )
)
def continue_greedily(student):
    """Exercise 9.5: the loop that generates."""
    for prompt, limit in (([4, 6], 20), ([7], 4), ([8, 5, 4, 2], 20), ([5, _STOP, 7], 20)):
        whole = _write(_CausalModel(), prompt, _STOP, limit)
        right = whole[:-1] if whole[-1] == _STOP else whole
        model = _CausalModel()
        got = student(model, list(prompt), _STOP, limit)
        got = got.tolist() if isinstance(got, torch.Tensor) else got
        if not isinstance(got, (list, tuple)):
            raise Wrong(f"wanted a list of the new tokens, got a {type(got).__name__}")
        got = [token.item() if isinstance(token, torch.Tensor) else token for token in got]
        if not all(isinstance(token, int) for token in got):
            raise Wrong("the result must be a flat list of ids")
        if got == right and model.calls > len(whole):
            called = f"the words are right, but the model was called {model.calls} times for {len(whole)} words"
            if len({tuple(ids.flatten().tolist()) for ids in model.given}) < model.calls:
                raise Wrong(f"{called}: it reads the same text twice, so keep what the first reading said")
            if whole[-1] == _STOP:
                raise Wrong(f"{called}, the stop token ({_STOP}) among them: leave the loop when it comes")
            raise Wrong(f"{called}: at the limit the text is complete, so leave the loop before you ask for another")
        if got == right:
            continue
        if got == [] and _STOP in prompt:
            raise Wrong(f"the prompt holds the stop token ({_STOP}), and nothing is written: only a stop token that "
                        "the model writes ends the text")  # fmt: skip
        if got == [*prompt, *right]:
            raise Wrong("the prompt is among your words: return only what the model has added")
        if got == whole and whole[-1] == _STOP:
            raise Wrong(f"the words are right, but the stop token ({_STOP}) is among them: it ends the text")
        if got == _write(_CausalModel(), prompt, _STOP, limit, obey=False):
            raise Wrong(f"it goes on after the stop token ({_STOP})")
        if got and got == right[:-1]:
            raise Wrong("the last word is missing: does the loop end a round too early, or count the prompt? "
                        "max_new_tokens is for new tokens alone")  # fmt: skip
        for options, message in (
            ({"last": False}, "you read the logits of the first position; the next word is predicted at the last one"),
            ({"whole": False}, "the model reads only the newest token and has forgotten the rest: it keeps no state, "
             "give it the whole text every time"),
            ({"best": False}, "you take the least likely token"),
        ):  # fmt: skip
            wrong = _write(_CausalModel(), prompt, _STOP, limit, **options)
            if got == (wrong[:-1] if wrong[-1] == _STOP else wrong):
                raise Wrong(message)
        if len(got) > limit:
            raise Wrong(f"{len(got)} new tokens though at most {limit} were allowed")
        first = _CausalModel()(torch.tensor([prompt]))[0, -1].argmax().item()
        if got and len(set(got)) == 1 and got[0] == first and len(got) > 1:
            if model.given[-1].shape[1] > len(prompt):
                raise Wrong("the same word every time: the text grows, but you read the same row of logits in each "
                            "round. The last one, [:, -1], is wanted")  # fmt: skip
            raise Wrong("the same word every time: append each word to the text before the next round")
        n = next(
            (i for i, (word, best) in enumerate(zip(got, right, strict=False)) if word != best),
            min(len(got), len(right)),
        )
        best = f"id {right[n]}" if n < len(right) else f"the stop token ({_STOP})"
        yours = f"id {got[n]}" if n < len(got) else "nothing more"
        raise Wrong(f"for the prompt {prompt} the first place that differs is new word {n + 1}: the best after all "
                    f"{len(prompt) + n} words before it is {best}, yours is {yours}. Does the model read the whole "
                    "text in each round, and do you take the best word, not draw one?")  # fmt: skip
    words = _write(_CausalModel(), [4, 6], _STOP, 20, obey=False)
    stop = next(word for t, word in enumerate(words) if t >= 2 and word != _STOP and word not in words[:t])
    got = student(_CausalModel(), [4, 6], stop, 20)
    if list(map(int, got)) != words[: words.index(stop)]:
        raise Wrong(f"right for eos_id = {_STOP}, wrong for eos_id = {stop}: is the id written in your code?")


# --- exercise 9.6: in words -------------------------------------------------------------------

which_style = Written(
    hints=(
        "(a) For each task ask two things: is everything that may be looked at there from the start, and does one "
        "answer come out or a sequence? (b) What has position t seen in her model? (c) What does a longer "
        "review add to the rows of the others?",
        "(a) A text that is complete: the encoder. One that is still being written: the decoder. One sequence in, "
        "another out: both stacks, or a decoder with a prefix. (b) Think of CLS at the front, and of a word that a "
        "later word corrects. (c) The second of the four tests in section 10.",
        "(a) Pool where one vector for the whole text is asked for; where a label for each token is asked for, do not. "
        "(b) The first position of a causal model sees itself alone. (c) Add columns of padding. Two parts of the "
        "model look across all T positions.",
    ),
    good_answer=(
        "(a) duplicates: encoder, pooled to one vector, compared by cosine; code: decoder, logits of the last "
        "position; summary: encoder-decoder, or decoder with the report as prefix, stopping at <eos>; names: encoder "
        "without pooling, one label for each token. (b) Position t knows nothing of what follows, so no word's "
        "vector can be corrected by a later 'not'; CLS at the front would be the mistake, since its output is the same "
        "for every text. (c) Padding: with more columns of it the verdict must stay the same; it changes if attention "
        "sees the padding, or if the pooling does: both must know which tokens are real."
    ),
)


# --- exercise 9.7: the whole ------------------------------------------------------------------

_PAD, _SOS = 1, 2


def _layer_shapes(D, F_, decoder):
    """Names and shapes of a layer's tensors."""
    shapes = {}
    for name in ("", "cross_") if decoder else ("",):
        shapes |= {f"{name}in_proj_weight": (3 * D, D), f"{name}in_proj_bias": (3 * D,)}
        shapes |= {f"{name}out_weight": (D, D), f"{name}out_bias": (D,)}
    shapes |= {"weight1": (F_, D), "bias1": (F_,), "weight2": (D, F_), "bias2": (D,)}
    for i in (1, 2, 3) if decoder else (1, 2):
        shapes |= {f"gain{i}": (D,), f"offset{i}": (D,)}
    return shapes


def _whole_weights(source_size, target_size, D, F_, N, seed):
    """Random weights of a whole model, in the form in which the exercise hands them over."""
    generator = torch.Generator().manual_seed(seed)

    def draw(name, shape):
        spread = 0.4 / shape[-1] ** 0.5 if name.endswith("table") else 0.6
        return torch.randn(shape, generator=generator, dtype=torch.float64) * spread + name.startswith("gain")

    tables = {"source_table": (source_size, D), "target_table": (target_size, D)}
    stacks = {
        kind: [
            {name: draw(name, shape) for name, shape in _layer_shapes(D, F_, kind == "decoder").items()}
            for _ in range(N)
        ]
        for kind in ("encoder", "decoder")
    }
    return {name: 3 * draw(name, shape) for name, shape in tables.items()} | stacks


def _tensors(weights):
    """All tensors of a model, in a fixed order."""
    layers = [*weights["encoder"], *weights["decoder"]]
    return [weights["source_table"], weights["target_table"], *(tensor for p in layers for tensor in p.values())]


def _copied(weights, leaves=False):
    """The same weights in memory of their own; `leaves`: to be trained."""
    if isinstance(weights, torch.Tensor):
        return weights.clone().requires_grad_(leaves)
    if isinstance(weights, dict):
        return {name: _copied(part, leaves) for name, part in weights.items()}
    return [_copied(part, leaves) for part in weights]


def _embedded(table, ids, rule):
    """Tokens that know their place, or a mistaken form of them."""
    D = table.shape[1]
    places = sinusoidal_table(ids.shape[1] + 1, D).to(table)
    places = places[1:] if rule == "one on" else places[:-1]
    x = table[ids] * (1 if rule == "no root" else D**0.5)
    return x + (0 if rule == "no place" else places)


def _look(x, told, p, H, mask, name="", rule=""):
    """Multi-head attention of x to what is told, with the tensors of one layer."""
    (W_q, W_k, W_v), (b_q, b_k, b_v) = p[f"{name}in_proj_weight"].chunk(3), p[f"{name}in_proj_bias"].chunk(3)
    q, k, v = F.linear(x, W_q, b_q), F.linear(told, W_k, b_k), F.linear(told, W_v, b_v)
    q, k, v = (part.unflatten(2, (H, -1)).transpose(1, 2) for part in (q, k, v))
    width = {"no scale": 1, "wide scale": x.shape[2]}.get(rule, q.shape[-1])
    scores = (q @ k.mT / width**0.5).masked_fill(~mask, -math.inf)
    return F.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), p[f"{name}out_weight"], p[f"{name}out_bias"])


def _normed(x, p, i):
    return F.layer_norm(x, x.shape[-1:], p[f"gain{i}"], p[f"offset{i}"])


def _repeated(layers, rule):
    """The layers of a stack, or those that a mistake makes of them."""
    return {"one layer": layers[:1], "same layer": layers[:1] * len(layers), "backwards": layers[::-1]}.get(
        rule, layers
    )


def _seen(real, rule):
    """The mask of the source's padding, or a mistaken one: (B, 1, 1, S)."""
    return {"no mask": torch.ones_like(real), "inverted": ~real}.get(rule, real)[:, None, None]


def _encoded(weights, H, source, real, rule=""):
    """The memory, or that of a mistaken encoder."""
    x = _embedded(weights["source_table"], source, rule)
    mask = _seen(real, rule)
    for p in _repeated(weights["encoder"], rule):
        x = _normed(x + _look(x, x, p, H, mask, rule=rule), p, 1)
        x = _normed(x + _feed_forward(x, p), p, 2)
    return x


def _decoded(weights, H, target_in, memory, real, rule=""):
    """The logits, or those of a mistaken decoder."""
    y, T = _embedded(weights["target_table"], target_in, rule), target_in.shape[1]
    past = torch.ones(T, T, dtype=torch.bool).tril({"ahead": T, "one ahead": 1}.get(rule, 0))
    past = past.mT if rule == "transposed" else past
    there = _seen(real, rule)
    for p in _repeated(weights["decoder"], rule):
        third, second = {"norms": (2, 3), "second norm twice": (2, 2)}.get(rule, (3, 2))
        early = rule in ("cross first", "cross first, norms in order")
        first, second = (2, 1) if rule == "cross first, norms in order" else (1, second)
        if early:
            y = _normed(y + _look(y, memory, p, H, there, "cross_"), p, second)
        y = _normed(y + _look(y, y, p, H, past, rule=rule), p, first)
        if rule == "same attention":
            y = _normed(y + _look(y, memory, p, H, there), p, second)
        elif not early and rule != "no cross":
            asks, told = (memory, y) if rule == "exchanged" else (y, memory)
            found = _look(asks, told, p, H, there, "cross_", rule)
            y = _normed(found if rule == "no residual" else y + found, p, second)
        y = _normed(y + _feed_forward(y, p), p, third)
    factor = {"scaled": y.shape[-1] ** 0.5, "divided": y.shape[-1] ** -0.5}.get(rule, 1)
    return F.linear(y * factor, weights["target_table"])


_EMBEDDING = {
    "no root": "the rows of the table are not multiplied by sqrt(D)",
    "no place": "the positions are missing: without them the order of the words is lost",
    "one on": "the positions begin at 1; the first token stands at position 0",
    "one layer": "only the first layer is used; go through all of them, each reads what the one before gives",
    "same layer": "the first layer is used again and again: each layer has weights of its own",
    "backwards": "the layers are used in the wrong order: the first of the list reads the embeddings",
    "no scale": "the scores of attention are not divided by sqrt(K)",
    "wide scale": "the scores of attention are divided by sqrt(D); a head's dot products have K = D / H terms: sqrt(K)",
}
_DECODER = _EMBEDDING | {
    "ahead": "a position sees the words after it: the self-attention of the decoder needs the causal mask",
    "one ahead": "a position sees one word too far, the very word it must predict: the causal mask ends at the "
    "diagonal, so that row t shows columns 0 to t",
    "transposed": "the causal mask is transposed, as triu would make it: a position sees itself and the words after "
    "it, not those before. Row t, of the word that asks, shows columns 0 to t",
    "no mask": "the cross-attention looks at padding of the source: `real` is not used there",
    "no cross": "the cross-attention is missing: the memory plays no part",
    "cross first": "the cross-attention stands before the self-attention: first what is written, then the source",
    "cross first, norms in order": "the sublayers are in the wrong order: the self-attention comes first, with norm 1, "
    "then the cross-attention, with norm 2",
    "same attention": "the cross-attention uses the weights of the self-attention; its own begin with cross_",
    "no residual": "what cross-attention finds replaces y; it must be added to y, as in every sublayer",
    "norms": "the second and the third norm have changed places: 1 self-attention, 2 cross-attention, 3 feed-forward",
    "second norm twice": "the norm after the feed-forward network uses gain2 and offset2 again, as in the encoder; the "
    "third sublayer of the decoder has its own, gain3 and offset3",
    "scaled": "the logits are multiplied by sqrt(D): the factor belongs to the embedding alone",
    "divided": "the logits are divided by sqrt(D): only the scores of attention are divided, by sqrt(K)",
}


def _compare(part, got, right, rules, compute):
    """Raise what is wrong with encode or decode."""
    if close(got, right):  # five digits: a table of positions may be in float32
        return
    for rule, message in rules.items():
        if close(got, compute(rule)):
            raise Wrong(f"{part}: {message}")
    inverted = compute("inverted")
    with_padding = ~inverted.isnan()  # a sentence without it then has nothing to look at: nan, or torch's 0
    if close(got[with_padding], inverted[with_padding]):
        raise Wrong(f"{part}: `real` is used the wrong way round: True = may be looked at")
    if got.isnan().any():
        raise Wrong(f"{part}: the result holds nan: a row of scores is minus infinity throughout")
    raise Wrong(f"{part}: shapes are right, numbers are not. Give it one layer (a list of one dict), and compare the "
                "vectors after each sublayer with those of the library's layer")  # fmt: skip


@check(
    hints=(
        "Write one method after the other; the check looks at encode, decode, learn, translate, in this order.",
        "encode: embed, then your block of 9.3 with each dict of weights['encoder']. decode: embed, then for each dict "
        "of weights['decoder'] three sublayers: causal self-attention, attention to the memory (real hides its "
        "padding), feed-forward; logits with the target table. learn: logits, mean loss without padding, zero_grad, "
        "backward, step. translate: encode once; your loop of 9.5 on a function of ids that decodes.",
        "A method attend(x, memory, p, name, mask) serves both attentions: the first D rows of the packed matrix "
        "make q from x, the other 2 D make k and v from memory. The logits are y times the target table, transposed; "
        "translate hands continue_greedily lambda ids: self.decode(ids, memory, real), and [sos] as prompt.",
    )
)
def own_transformer(student):
    """Exercise 9.7: encoder, decoder, training and decoding, against the library's; then the trained weights."""
    source = torch.tensor([[4, 9, 5, 6, 3], [7, 4, 3, _PAD, _PAD], [8, 6, 10, 3, _PAD]])
    target_in = torch.tensor([[_SOS, 5, 8, 4], [_SOS, 6, 7, _PAD], [_SOS, 8, 3, 5]])
    real, H = source != _PAD, 2
    weights = _whole_weights(11, 9, 6, 10, 2, seed=91)
    model = student(_copied(weights), H)
    memory = _expect_memory(model, weights, H, source, real)
    wide = F.pad(source, (0, 2), value=4), F.pad(real, (0, 2), value=False)
    more = "two more columns of padding in the source change {}; `real` says what is padding, not the ids"
    read = guarded(model.encode)(*wide)
    if not close(read[wide[1]], memory[real]):
        raise Wrong(more.format("the memory"))
    other = _whole_weights(11, 9, 6, 10, 3, seed=92)
    got = guarded(student(_copied(other), 3).encode)(source, real)[real]
    if not close(got, _encoded(other, 3, source, real)[real]):
        raise Wrong("right for 2 heads and 2 layers, wrong for 3 and 3: is one of the numbers written in your code?")
    with _next("encode is right; next: decode"):
        _expect_logits(model, weights, H, target_in, memory, real)
        got = guarded(model.decode)(target_in, read, wide[1])
    if not close(got, _decoded(weights, H, target_in, memory, real)):
        raise Wrong(more.format("the logits"))
    with _next("encode and decode are right; next: learn"):
        _expect_update(student, weights, H, source, real)
    with _next("encode, decode and learn are right; next: translate"):
        _expect_words(student, _whole_weights(11, 9, 6, 10, 2, seed=820), H, [10, 9, 7], eos=7)
    _expect_translation(student)
    layer = _layer_used(student, weights, H, source, real, target_in)
    if layer:
        raise Wrong(f"all numbers are right, but a layer of {layer[0]} is used, {layer[1]}, which is not allowed here: "
                    "write it from the tensors that are handed over, with functions of torch")  # fmt: skip


@contextlib.contextmanager
def _next(message):
    """Say how far the answer has come, where a method is still to be written."""
    try:
        yield
    except _StudentError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise Wrong(message) from None
        raise


_LAYERS = (
    nn.Linear, nn.Embedding, nn.LayerNorm, nn.GroupNorm, nn.RMSNorm, nn.MultiheadAttention, nn.TransformerEncoderLayer,
    nn.TransformerDecoderLayer, nn.TransformerEncoder, nn.TransformerDecoder,
)  # fmt: skip
_LIBRARY = (
    attention.MultiHeadAttention,
    *(
        part
        for module in (transformer, transformer_models)
        for part in vars(module).values()
        if isinstance(part, type) and issubclass(part, nn.Module) and part.__module__ == module.__name__
    ),
)


def _layer_used(student, weights, H, source, real, target_in):
    """Whose layer an answer calls, and which: ("nn", "LayerNorm"); None if it calls none."""

    def read_and_write():
        model = student(_copied(weights), H)
        guarded(model.decode)(target_in, guarded(model.encode)(source, real), real)

    for whose, layers in (("the library", _LIBRARY), ("nn", _LAYERS)):
        name = ready_made.called(read_and_write, [((), {})], library=layers)
        if name:
            return whose, name
    return None


def _expect_memory(model, weights, H, source, real):
    """The memory of encode, at real tokens; gives back the right one."""
    right = _encoded(weights, H, source, real)
    got = expect_tensor(guarded(model.encode)(source, real), right.shape, name="encode: the memory")
    _compare("encode", got[real], right[real], _EMBEDDING | {"no mask": "real tokens look at padding: `real` is not "
             "used"}, lambda rule: _encoded(weights, H, source, real, rule)[real])  # fmt: skip
    return right


def _expect_logits(model, weights, H, target_in, memory, real):
    right = _decoded(weights, H, target_in, memory, real)
    try:
        got = guarded(model.decode)(target_in, memory, real)
    except _StudentError:
        if _asks_itself(model, weights, H):
            raise Wrong("decode: your code runs only where T = S, since the roles of y and the memory are exchanged in "
                        "the cross-attention. The decoder asks: queries come from y, keys and values from the "
                        "memory") from None  # fmt: skip
        raise
    got = expect_tensor(got, right.shape, name="decode: the logits")
    _compare("decode", got, right, _DECODER, lambda rule: _decoded(weights, H, target_in, memory, real, rule))


def _asks_itself(model, weights, H):
    """Whether the memory asks and the decoder's vectors answer, where both are of the same length."""
    target_in, real = torch.tensor([[_SOS, 5, 8, 4], [_SOS, 6, 7, 3]]), torch.ones(2, 4, dtype=torch.bool)
    memory = _random(2, 4, weights["target_table"].shape[1], seed=6)
    try:
        got = guarded(model.decode)(target_in, memory, real)
    except _StudentError:
        return False
    return close(got, _decoded(weights, H, target_in, memory, real, "exchanged"))


class _Descent:
    """Plain gradient descent: the first optimizer of torch loads its compiler, for seconds that a check has not."""

    def __init__(self, tensors, rate):
        self.param_groups = [{"params": list(tensors), "lr": rate}]

    def zero_grad(self, set_to_none=True):
        for tensor in self.param_groups[0]["params"]:
            tensor.grad = None if set_to_none or tensor.grad is None else torch.zeros_like(tensor)

    def step(self):
        for tensor in self.param_groups[0]["params"]:
            if tensor.grad is not None:
                tensor.data -= self.param_groups[0]["lr"] * tensor.grad


def _expect_update(student, weights, H, source, real):
    """Two updates by plain gradient descent; the loss before each, and the weights after both."""
    target = torch.tensor([[_SOS, 5, 8, 4, 3], [_SOS, 6, 3, _PAD, _PAD], [_SOS, 7, 8, 3, _PAD]])
    target_in, target_out = target[:, :-1], target[:, 1:]

    def updates(learn, tensors):
        optimizer = _Descent(tensors, rate=0.05)
        return [learn(optimizer, source, real, target_in, target_out, _PAD) for _ in range(2)]

    def ours(rule=""):
        """Losses and tensors of a right update, or of a mistaken one."""
        own = _copied(weights, leaves=True)

        def learn(optimizer, source, real, target_in, target_out, pad):
            logits = _decoded(own, H, target_in, _encoded(own, H, source, real), real)
            wanted = target_in if rule == "shift" else target_out
            options = {"ignore_index": -100 if rule == "padding" else pad}
            options["reduction"] = "sum" if rule == "sum" else "mean"
            loss = F.cross_entropy(logits.flatten(0, 1), wanted.flatten(), **options)
            if rule == "all places":
                loss = loss * (wanted != pad).float().mean()
            if rule != "kept":
                optimizer.zero_grad()
            loss.backward()
            if rule != "still":
                optimizer.step()
            return loss.item()

        return updates(learn, _tensors(own)), _tensors(own)

    mine = _copied(weights, leaves=True)
    build = guarded(lambda: student.__wrapped__(mine, H))  # the very tensors: `student` itself would get copies of them
    losses = updates(guarded(build().learn), _tensors(mine))
    got = [expect_number(loss, "learn: the loss") for loss in losses]
    right, tensors = ours()
    if not close(got[0], right[0]):
        for rule, message in (
            ("padding", "learn: padding counts in the loss; leave out the places where target_out is pad"),
            (
                "all places",
                "learn: padding adds nothing to the loss, but is counted in its mean: divide by the number "
                "of real target words, not by B times T",
            ),
            ("sum", "learn: the loss is a sum; the mean over the real target words is asked for"),
            ("shift", "learn: the loss compares with target_in, what the decoder reads; it must predict target_out"),
        ):
            if close(got[0], ours(rule)[0][0]):
                raise Wrong(message)
        if close(got[0], right[1]):
            raise Wrong("learn: that is the loss after the update; the loss *before* it, the one whose gradient is "
                        "used, is asked for")  # fmt: skip
        raise Wrong("learn: encode and decode are right, the loss is not the mean cross-entropy of the real words of "
                    "target_out")  # fmt: skip
    right_now = close(got[1], right[1]) and all(map(close, _tensors(mine), tensors))
    layer = None if right_now else _layer_used(student, weights, H, source, real, target_in)
    if not right_now:
        _is_cut_off(mine, layer)
    if close(got[1], got[0], 1e-9):
        if not all(map(torch.equal, _tensors(mine), _tensors(weights))):
            raise Wrong("learn: the step has moved the tensors that were handed over, and the loss stays what it was: "
                        "has your model copied them in __init__? Use the tensors themselves")  # fmt: skip
        raise Wrong("learn: after an update the loss is the same to nine digits, and no tensor that was handed over "
                    "has moved: is there a backward, and a step? Or does your model hold copies of them"
                    + (f", as a layer of {layer[0]} does ({layer[1]})?" if layer else "?"))  # fmt: skip
    if right_now:
        if any(isinstance(loss, torch.Tensor) and loss.requires_grad for loss in losses):
            raise Wrong("learn: the loss that you return still holds the graph of its whole pass, and keeps it in "
                        "memory as long as somebody keeps the loss. Return a float")  # fmt: skip
        return
    kept_losses, kept = ours("kept")
    if close(got[1], kept_losses[1]) and all(close(a, b) for a, b in zip(_tensors(mine), kept, strict=True)):
        raise Wrong("learn: the gradients of the update before are still there: call zero_grad")
    raise Wrong("learn: the loss is right, the weights after two updates are not. " + (
        f"A layer of {layer[0]} is used, {layer[1]}: its parameters are its own, so it cuts your tensors off" if layer
        else "Is the gradient that of this loss alone, and does it reach every tensor?"))  # fmt: skip


def _is_cut_off(weights, layer):
    """Raise where no gradient came to some of the tensors: a layer stands in their place, or a parameter wraps them."""
    still = [name for name, tensor in _named(weights) if tensor.grad is None]
    if not 0 < len(still) < len(_tensors(weights)):  # none at all: no backward, or set to None at the end
        return
    if layer:
        raise Wrong(f"learn: a layer of {layer[0]} is used, {layer[1]}, and no gradient comes to {still[0]}: the "
                    "parameters of a layer are its own, so it cuts your tensors off. Use the tensors themselves, with "
                    "functions in place of layers")  # fmt: skip
    raise Wrong(f"learn: no gradient comes to {still[0]}: is it copied, detached, wrapped in an nn.Parameter, or "
                "is what you make of it computed under no_grad? Use the tensor itself, with gradients on")  # fmt: skip


def _named(weights):
    """All tensors of a model, each with the name that a message gives it."""
    yield from ((name, weights[name]) for name in ("source_table", "target_table"))
    for side in ("encoder", "decoder"):
        for i, p in enumerate(weights[side]):
            yield from ((f"{side}[{i}]['{name}']", tensor) for name, tensor in p.items())


def _expect_words(student, weights, H, source, eos):
    """Greedy translation of a source that ends with eos: one that ends by itself, and one that the limit ends."""

    def words(limit, source=source):
        row, full = torch.tensor([source]), torch.ones(1, len(source), dtype=torch.bool)
        memory, ids = _encoded(weights, H, row, full), [_SOS]
        while len(ids) <= limit and ids[-1] != eos:
            ids.append(_decoded(weights, H, torch.tensor([ids]), memory, full)[0, -1].argmax().item())
        return ids[1:]

    for limit in (9, 2):
        right = words(limit)
        ended = right[-1] == eos
        right = right[:-1] if ended else right
        got = guarded(student(_copied(weights), H).translate)(list(source), _SOS, eos, limit)
        got = got.tolist() if isinstance(got, torch.Tensor) else got
        if not isinstance(got, (list, tuple)):
            raise Wrong(f"translate: wanted a list of ids, got a {type(got).__name__}")
        got = [int(word) for word in got]
        if got == right:
            continue
        if got == [_SOS, *right] or got == [_SOS, *right, eos]:
            raise Wrong("translate: sos stands in front of your words; return only what the model has added")
        if ended and got == [*right, eos]:
            raise Wrong("translate: eos is among your words: it ends the sentence and is left out")
        if ended and got[: len(right) + 1] == [*right, eos]:
            raise Wrong("translate: it goes on after eos")
        if got == right[:-1]:
            raise Wrong("translate: the last word is missing: sos does not count among max_new_tokens")
        if got == [word for word in words(limit, [*source, eos]) if word != eos]:
            raise Wrong("translate: your code appends eos to source, which ends with it already: these are the words "
                        "for a source with eos twice")  # fmt: skip
        raise Wrong(f"translate: encode and decode are right, but the words are {got}, wanted {right}: start with sos, "
                    "and in each round add the best word after the last one")  # fmt: skip


def _expect_translation(student):
    """The weights that come with the course, in the student's model: the words of the library's."""
    model, german, english = load_translator()
    ids = german.encode("zwei kinder spielen im park .")
    right = greedy(model, torch.tensor([ids]), max_new_tokens=20)[0].tokens
    heads = model.transformer.encoder.layers[0].self_attn.num_heads
    with torch.no_grad():
        got = guarded(student(weights_by_layer(model), heads).translate)(ids, SOS, EOS, 20)
    if english.decode(list(got)) != english.decode(right):
        raise Wrong("all parts are right on the small model, but with the trained weights the words are "
                    f"{english.decode(list(got))!r}: does your code work in float32, and with 4 heads?")  # fmt: skip
