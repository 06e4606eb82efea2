"""Checks of chapter 07's exercises: numbers, attention, heads, shapes, a whole layer, a lost mask, words.

Each check asks for the properties of a right answer first; if one fails, it looks for the usual mistakes and names
the one it recognises. Last it refuses what is right but calls what the exercise forbids. Right answers are written here
from tensors, apart from `course_lib.attention`. Notebook: 07.
"""

import math
import re

import torch

from course_lib.attention import (
    MultiHeadAttention,
    attention,
    attention_scores,
    attention_weights,
    merge_heads,
    split_heads,
)
from course_lib.exercises import (
    Written,
    Wrong,
    _StudentError,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    expect_type,
    near,
)
from course_lib.exercises.ready_made import called, steps
from course_lib.functional import padding_mask

# --- exercise 7.1: numbers by hand ----------------------------------------------------------


def _to_three_digits(got, right):
    """Say whether a number differs by little more than what rounding to three digits changes, or is a bfloat16."""
    return got == torch.tensor(right).bfloat16().item() or abs(got - right) <= 0.6 * 10.0 ** (
        math.floor(math.log10(abs(right))) - 2
    )


@check(
    hints=(
        "Write the four scores down first. For (c): one product has mean 0; what is the mean of its square? For (d): "
        "write w_1 as a quotient and differentiate by a_2.",
        "(a) scores 0, 0, s, s with s = 3 / sqrt(3). (b) e^s / (e^s + 3) = 0.9 for s = 10 / sqrt(3) times the length. "
        "(c) variances of independent factors with mean 0 multiply, those of independent summands add. (d) w_i "
        "(delta_ij - w_j).",
        "(a) e^1.732 / (2 e^1.732 + 2). (b) e^s = 27. (c) 16 times one product's variance. (d) i and j differ, so "
        "delta is 0.",
    )
)
def numbers_by_hand(answer):
    """Exercise 7.1: a weight, a query's length, a variance, and a slope of the softmax."""
    names = ("weight", "length", "variance", "slope")
    if isinstance(answer, dict):
        if missing := [name for name in names if name not in answer]:
            raise Wrong(f"the answer has no entry {missing[0]!r}")
        answer = [answer[name] for name in names]
    got = dict(zip(names, expect_numbers(answer, names), strict=True))
    s = math.sqrt(3)
    g = math.exp(s)
    right = {"weight": g / (2 * g + 2), "length": s * math.log(27) / 10, "variance": 36.0, "slope": -0.14}
    mistakes = {
        "weight": (
            (2 * g / (2 * g + 2), "this is what keys 3 and 4 get together; they share it"),
            (math.exp(3) / (2 * math.exp(3) + 2), "the score is 3; divide it by sqrt(3) first"),
            (math.e / (2 * math.e + 2), "you divided by 3; the root of the width divides"),
            (math.exp(1.5) / (2 * math.exp(1.5) + 2), "you divided by the root of 4, the number of keys; the root of "
             "the width, 3, divides"),
            (g / (g + 2), "key 4 is missing from the sum: it has the same score as key 3"),
            (g / (g + 3), "key 4 has the same score as key 3: two of the four terms are large"),
            (0.5, "keys 1 and 2 have a score of 0, and e^0 is 1: they get weight, too"),
            (g, "this is e^s; divide by the sum over all four keys"),
            (0.25, "these would be uniform weights, but the scores differ: 0, 0, s, s"),
        ),
        "length": (
            (math.log(27) / 10, "you left out the division of the scores by sqrt(3)"),
            (3 * math.log(27) / 10, "you divided the scores by 3; the root of the width divides"),
            (2 * math.log(27) / 10, "you divided the scores by the root of the number of keys; that of the width, 3, "
             "divides"),
            (s * math.log(9) / 10, "three other keys have a score of 0, not one: e^s / (e^s + 3) = 0.9"),
            (s * math.log(18) / 10, "you counted two other keys with a score of 0; there are three"),
            (math.log(18) / 10, "two things: there are three other keys, not two, and scores are divided by sqrt(3)"),
            (math.log(18), "this is the score that is needed against two other keys; there are three, and which length "
             "gives the score?"),
            (s * math.log(27), "this is the length that a query needs with keys of length 1; they have length 10"),
            (math.log(27), "this is the score that is needed; which length gives it?"),
            (math.log(9) / 10, "two things: three other keys have a score of 0, and scores are divided by sqrt(3)"),
        ),
        "variance": (
            (16.0, "this holds for entries of variance 1; here they have variances 0.25 and 9"),
            (6.0, "this is the standard deviation; the variance is its square"),
            (2.25, "this is the variance of one product q_i k_i (or that after the division by sqrt(K)); 16 are added"),
            (148.0, "you added the two variances; for a product of independent factors with mean 0 they multiply"),
            (24.0, "you added the standard deviations of 16 products, 1.5 each; it is their variances that add up"),
            (9.0, "you added standard deviations, or divided by a root: variances of independent summands add up"),
            (576.0, "variances add up over the K summands, so K stands there once, not squared"),
        ),
        "slope": (
            (0.14, "the size is right; think of the sign: what does w_1 do when a rival's score grows?"),
            (0.21, "this is the slope of w_1 in its own score: w_1 (1 - w_1)"),
            (0.16, "this is the slope of w_2 in its own score: w_2 (1 - w_2)"),
            (-0.07, "this is the slope of w_1 in the third score"),
            (0.0, "w_1 does depend on a_2: it stands in the denominator of the softmax"),
            (-0.2, "the factor w_1 is missing"),
            (-0.06, "this is w_2 (w_1 - 1), with i and j exchanged in one factor; wanted w_1 (delta_12 - w_2)"),
            (-0.02, "this is -w_2 w_3: the slope of the second weight in the third score"),
            (-0.112, "for i = j there is a factor 1 - w_i; i and j differ here"),
        ),
    }  # fmt: skip
    exact = {name: _to_three_digits(got[name], right[name]) for name in names}
    if all(math.isclose(got[n], right[n], rel_tol=2e-2) for n in names) and not all(exact.values()):
        off = next(name for name in names if not exact[name])
        raise Wrong(f"{off}: {got[off]:.4g} is close, but not right to three digits")
    for name in names:
        if exact[name]:
            continue
        for value, message in mistakes[name]:
            if near(got[name], value):
                raise Wrong(f"{name}: {message}")
        raise Wrong(f"{name}: {got[name]:.4g} is not it; write the steps down once more, .hint(2) lists them")


# --- exercise 7.2: scaled dot-product attention ---------------------------------------------

READY = (attention, attention_scores, attention_weights, MultiHeadAttention)
OF_TORCH = (
    "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "multi_head_attention_forward",
    "_native_multi_head_attention", "_transformer_encoder_layer_fwd",
)  # fmt: skip


def _forbid(student, calls, library, torchs=()):
    """Refuse a right answer that leaves its work to a ready-made function."""
    if name := called(student, calls, library, torchs):
        whose = "torch's" if name in torchs else "the library's"
        raise Wrong(f"the result is right, but your code calls {whose} `{name}`: write its lines yourself")


def _draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _scores(q, k):
    return q @ k.mT / math.sqrt(q.shape[-1])


def _weights(scores, visible):
    """The softmax over the visible keys, zeros where there is none."""
    grown = scores.exp() * visible  # the scores here are small enough for exp
    return grown / grown.sum(-1, keepdim=True).clamp_min(1e-30)


def _attended(student, q, k, v, name, **options):
    """The student's result, if it is a tensor of the right shape."""
    got = student(q, k, v, **options)
    if isinstance(got, tuple):
        raise Wrong("the function returns a tuple; return the output alone, (..., T, E)")
    T, S = q.shape[-2], k.shape[-2]
    if isinstance(got, torch.Tensor) and got.shape == (*q.shape[:-1], S):
        raise Wrong(f"the result has shape {tuple(got.shape)}, (..., T, S): these are weights; multiply them with v")
    return expect_tensor(got, (*q.shape[:-1], v.shape[-1]), name=f"the output for {name} (T = {T}, S = {S})")


def _plain(student):
    """Without a mask, several leading axes."""
    q, k, v = _draw(2, 3, 5, 4), _draw(2, 3, 7, 4, seed=1), _draw(2, 3, 7, 6, seed=2)
    got, raw = _attended(student, q, k, v, "q (2, 3, 5, 4)"), q @ k.mT
    if close(got, (raw / 2).softmax(-1) @ v):
        return
    for weights, message in (
        ((raw / 2).softmax(-2), "the weights of a key add up to 1 over the queries: take the softmax over the "
        "keys, the "
         "last axis of the scores"),
        (raw.softmax(-1), "the scores are not divided by sqrt(K)"),
        ((raw / 4).softmax(-1), "the scores are divided by K; the root of K keeps their variance at 1"),
        ((raw / math.sqrt(6)).softmax(-1), "the scores are divided by the root of the values' width; it is the "
        "width of "
         "queries and keys that counts"),
        ((raw / math.sqrt(7)).softmax(-1), "the scores are divided by the root of S, the number of keys"),
        ((raw * 2).softmax(-1), "the scores are multiplied by sqrt(K); divide"),
        (raw / 2, "there is no softmax: the scores themselves weigh the values"),
        ((raw / 2).exp(), "the weights do not add up to 1: divide the exponentials by their sum over the keys"),
    ):  # fmt: skip
        if close(got, weights @ v):
            raise Wrong(message)
    if close(got, torch.zeros_like(got)):
        raise Wrong("without any mask the output is zero everywhere")
    raise Wrong("without a mask the output is not softmax(q k^T / sqrt(K)) v; look at the axes of the transpose")


def _masked(student):
    """A mask of several shapes; no row is empty."""
    q, k, v = _draw(2, 3, 5, 4), _draw(2, 3, 7, 4, seed=1), _draw(2, 3, 7, 6, seed=2)
    mask = _draw(2, 3, 5, 7, seed=3) > 0
    mask[..., 0] = True
    mask[..., 6] = False  # so that the inverted mask has no empty row either
    raw, got = _scores(q, k), _attended(student, q, k, v, "a mask (2, 3, 5, 7)", mask=mask)
    soft = raw.softmax(-1)
    for weights, message in (
        (soft, "the mask changes nothing: where it is False no weight may remain"),
        (raw.masked_fill(mask, -math.inf).softmax(-1), "the mask is taken the wrong way round: here True = may attend"),
        (soft * mask, "the hidden weights are set to zero after the softmax, so the rest no longer adds up to 1: hide "
         "the scores before it"),
        ((raw * mask).softmax(-1), "hidden scores are set to 0, and e^0 = 1 is still a weight: fill with something "
         "very negative"),
        ((raw + mask).softmax(-1), "the mask is added as a number; it should decide which scores count at all"),
    ):  # fmt: skip
        if close(got, weights @ v):
            raise Wrong(message)
    if not close(got, _weights(raw, mask) @ v):
        raise Wrong("with a mask the output is wrong: softmax over the visible keys alone, each row adding up to 1")
    for shape, part in (("(S,)", mask[0, 0, 0]), ("(T, S)", mask[0, 0]), ("(2, 1, 1, S)", mask[:, :1, :1])):
        got = _attended(student, q, k, v, f"a mask {shape}", mask=part)
        if not close(got, _weights(raw, part.expand_as(raw)) @ v):
            raise Wrong(f"a mask of shape {shape} must expand to (..., T, S) by itself, and here it does not")


def _far_apart(student):
    """A hidden score far above the visible ones, and visible ones far below."""
    q, v = torch.tensor([[100.0, 0]]).double(), torch.tensor([[1.0], [2], [3]]).double()
    mask, mean = torch.tensor([True, True, False]), torch.tensor([[1.5]]).double()
    k = torch.tensor([[0.0, 1], [0, 1], [20, 0]]).double()
    if not close(_attended(student, q, k, v, "a hidden key with a large score", mask=mask), mean):
        raise Wrong("two visible scores are 0, a hidden one is above 1,000, and the visible keys lose their weight: "
                    "hide the scores before the softmax, so that what is hidden counts nowhere")  # fmt: skip
    k = torch.tensor([[-300.0, 0], [-300, 0], [0, 1]]).double()
    if not close(_attended(student, q, k, v, "visible keys with very low scores", mask=mask), mean):
        raise Wrong("two visible scores are below -20,000, and the number that stands for hidden ones is larger: fill "
                    "with -inf")  # fmt: skip


def _causal(student):
    """Causality with T = S, with a cache (T < S), and together with a mask."""
    k, v = _draw(2, 7, 5, seed=1), _draw(2, 7, 6, seed=2)
    ones = torch.ones(7, 7, dtype=torch.bool)
    q = _draw(2, 7, 5)
    got, raw = _attended(student, q, k, v, "causal=True", causal=True), _scores(q, k)
    for visible, message in (
        (ones, "causal=True changes nothing: query t may see keys 0 .. t only"),
        (ones.triu(), "the triangle is the other one: each query sees itself and what comes later"),
        (ones.tril(-1), "a query must see its own position, too: the diagonal belongs to the visible part"),
        (ones.tril(1), "each query sees one key too many, the next one"),
    ):
        if close(got.nan_to_num(), _weights(raw, visible.expand_as(raw)) @ v):
            raise Wrong(message)
    if not close(got, _weights(raw, ones.tril().expand_as(raw)) @ v):
        raise Wrong("with causal=True and T = S the output is wrong")
    q = q[:, -3:]
    got, raw = _attended(student, q, k, v, "causal=True with a cache", causal=True), _scores(q, k)
    if close(got, _weights(raw, ones[:3].tril().expand_as(raw)) @ v):
        raise Wrong("with T = 3 and S = 7 your triangle stands top left: the first query sees key 0 alone. The "
                    "queries are "
                    "the last positions: query t stands at S - T + t")  # fmt: skip
    cached = ones[:3].tril(4)
    if not close(got, _weights(raw, cached.expand_as(raw)) @ v):
        raise Wrong("causal=True with T = 3 and S = 7 is wrong: query t may see keys up to S - T + t")
    mask = torch.ones(2, 3, 7, dtype=torch.bool)
    mask[0, :, :2], mask[1, :, 1] = False, False
    got = _attended(student, q, k, v, "a mask and causal=True", mask=mask, causal=True)
    for visible, message in (
        (mask, "with a mask and causal=True the causality is lost: a key must be allowed by both"),
        (cached.expand_as(mask), "with a mask and causal=True the mask is lost: a key must be allowed by both"),
        (mask | cached, "a key may be seen if the mask AND the causality allow it; you have joined them with or"),
    ):
        if close(got, _weights(raw, visible) @ v):
            raise Wrong(message)
    if not close(got, _weights(raw, mask & cached) @ v):
        raise Wrong("with a mask and causal=True together the output is wrong")
    for shape, part in (("(S,)", mask[0, 0]), ("(T, S)", mask[1])):
        got = _attended(student, q, k, v, f"a mask {shape} and causal=True", mask=part, causal=True)
        if not close(got, _weights(raw, (part & cached).expand_as(raw)) @ v):
            raise Wrong(f"with causal=True a mask (2, T, S) is respected, but not one of shape {shape}")


def _large(student):
    """Scores whose exponentials overflow."""
    q, k, v = 40 * _draw(5, 4), 40 * _draw(7, 4, seed=1), _draw(7, 6, seed=2)
    got = _attended(student, q, k, v, "large scores")
    if not got.isfinite().all():
        raise Wrong("scores of some thousands give nan or inf: exp overflows. Take torch's softmax, or subtract each "
                    "row's maximum first, which changes nothing else")  # fmt: skip
    if not close(got, _scores(q, k).softmax(-1) @ v):
        raise Wrong("with scores of some thousands the output is wrong, with small ones it is right")


def _empty_rows(student):
    """Queries that may see nothing: by the mask, and by causality with T > S."""
    q, k, v = _draw(3, 4), _draw(5, 4, seed=1), _draw(5, 2, seed=2)
    mask = torch.tensor([[1, 1, 0, 0, 1], [0, 0, 0, 0, 0], [0, 0, 1, 0, 0]]).bool()
    got = _attended(student, q, k, v, "a fully masked row", mask=mask)
    if got[1].isnan().any():
        raise Wrong("a query that may see nothing gives nan (the softmax of nothing but -inf): zeros are wanted")
    if close(got[1], v.mean(0)):
        raise Wrong("a query that may see nothing gives the mean of all hidden values: a large negative number "
                    "makes all "
                    "scores equal. Zeros are wanted; set the hidden weights to 0 after the softmax")  # fmt: skip
    if not close(got[1], torch.zeros(2)):
        raise Wrong(f"a query that may see nothing gives {[round(x, 3) for x in got[1].tolist()]}; zeros are wanted")
    if not close(got[[0, 2]], (_weights(_scores(q, k), mask) @ v)[[0, 2]]):
        raise Wrong("one fully masked row changes the other rows of the output: treat rows separately")
    try:
        got = student(q, k, v.requires_grad_(), mask=mask)
    except _StudentError:  # computed in NumPy: there is no gradient
        got = v.detach()
    slope = torch.autograd.grad(got.sum(), v, allow_unused=True)[0] if got.requires_grad else None
    if slope is not None and not slope.isfinite().all():
        raise Wrong("a query that may see nothing gives zeros, but the gradient of the values is nan: clear its "
                    "weights, not its output")  # fmt: skip
    q, k, v = _draw(4, 3), _draw(2, 3, seed=1), _draw(2, 5, seed=2)
    got = _attended(student, q, k, v, "causal=True with T > S", causal=True)
    if not close(got, _weights(_scores(q, k), torch.ones(4, 2, dtype=torch.bool).tril(-2)) @ v):
        raise Wrong("with T = 4 queries and S = 2 keys the first two queries stand before all keys: they see nothing, "
                    "and give zeros")  # fmt: skip


@check(
    hints=(
        "Make one boolean tensor of the scores' shape that says what is visible, from mask and causality "
        "together; then "
        "one softmax.",
        "scores = q k^T / sqrt(K); visible = ones.tril(S - T) if causal, and mask if there is one; fill hidden "
        "scores with "
        "-inf, softmax over the last axis, set hidden weights to 0, multiply with v.",
        "scores.masked_fill(~visible, -math.inf).softmax(-1).masked_fill(~visible, 0.0): the last step turns the "
        "nan of "
        "an empty row into zeros. visible = ones.tril(S - T) & mask.",
    )
)
def dot_product_attention(student):
    """Exercise 7.2: plain, large scores, masked, scores far apart, causal, with a cache, both, and empty rows."""
    _plain(student)
    _large(student)
    _masked(student)
    _far_apart(student)
    _causal(student)
    _empty_rows(student)
    q, mask = _draw(2, 5, 4), torch.ones(5, 5, dtype=torch.bool)
    options = ({}, {"mask": mask}, {"causal": True}, {"mask": mask, "causal": True})
    _forbid(student, [((q, q, q), each) for each in options], READY, OF_TORCH)


# --- exercise 7.3: heads --------------------------------------------------------------------


def _numbered(*shape):
    return torch.arange(math.prod(shape), dtype=torch.float64).view(shape)


def _with_leading_axes(student, given, wanted, shape):
    """Ask for fewer or more leading axes, when the answer is right for one."""
    right = f"right for one leading axis, but not for x of shape {shape}"
    counted = "count the axes that you cut or swap from the end, as -1, -2, -3"
    try:
        got = student(*given)
    except _StudentError as error:
        if isinstance(error.__cause__, NotImplementedError):
            raise
        raise Wrong(f"{right}: there your code raises {type(error.__cause__).__name__}; {counted}") from None
    if not isinstance(got, torch.Tensor) or got.shape != wanted.shape:
        found = tuple(got.shape) if isinstance(got, torch.Tensor) else type(got).__name__
        raise Wrong(f"{right}: wanted {tuple(wanted.shape)}, got {found}; {counted}")
    if not close(got, wanted):
        raise Wrong(f"{right}: the shape is right there, the numbers are not; {counted}")


@check(
    hints=(
        "The number of a head is part of the last axis: cut that axis first, then move the new one.",
        "(..., T, D) -> (..., T, H, K) -> swap the axes of T and H, counted from the end.",
        "x.unflatten(-1, (H, -1)).transpose(-3, -2)",
    )
)
def split(student):
    """Exercise 7.3: (..., T, D) cut into (..., H, T, K)."""
    B, T, D, H = 2, 4, 15, 3
    x, K = _numbered(B, T, D), 5
    right = torch.stack([x[..., h * K : (h + 1) * K] for h in range(H)], dim=1)
    got = student(x, H)
    if isinstance(got, torch.Tensor) and got.shape == (B, T, H, K):
        raise Wrong("your result is (B, T, H, K): now put the heads before the positions")
    expect_tensor(got, (B, H, T, K))
    if close(got, right):
        for lead in ((), (2, 3)):
            more = _numbered(*lead, T, D)
            wanted = torch.stack([more[..., h * K : (h + 1) * K] for h in range(H)], dim=-3)
            _with_leading_axes(student, (more, H), wanted, "(T, D)" if not lead else "(2, 3, T, D)")
        _forbid(student, [((x, H), {})], [split_heads])
        return
    if close(got, x.view(B, H, T, K)):
        raise Wrong("view(B, H, T, K) only renames: head 0 holds the first positions, cut into pieces, instead of "
                    "the first "
                    "K entries of every position. Cut the last axis, then transpose")  # fmt: skip
    if close(got, x.view(B, T, K, H).permute(0, 3, 1, 2)):
        raise Wrong("head h got every third entry, h, h + 3, ...; wanted K neighbours: h K .. (h + 1) K - 1")
    if close(got, right.flip(1)):
        raise Wrong("the heads are in reverse order")
    raise Wrong(
        "the shape is right, but entry (b, h, t, i) must be x[b, t, h K + i]; print both for a small x of counted "
        "numbers"
    )


@check(
    hints=(
        "Undo what split did, in reverse order.",
        "(..., H, T, K) -> swap the axes of H and T, counted from the end -> join the last two axes.",
        "x.transpose(-3, -2).flatten(-2); after a transpose view() may refuse, reshape() or flatten(-2) copies.",
    )
)
def merge(student):
    """Exercise 7.3: (..., H, T, K) concatenated to (..., T, H K)."""
    B, H, T, K = 2, 3, 4, 5
    x = _numbered(B, H, T, K)
    got = expect_tensor(student(x), (B, T, H * K))
    if close(got, torch.cat([x[:, h] for h in range(H)], dim=-1)):
        for lead in ((), (2, 6)):
            more = _numbered(*lead, H, T, K)
            wanted = torch.cat([more[..., h, :, :] for h in range(H)], dim=-1)
            _with_leading_axes(student, (more,), wanted, "(H, T, K)" if not lead else "(2, 6, H, T, K)")
        _forbid(student, [((x,), {})], [merge_heads])
        return
    if close(got, x.reshape(B, T, H * K)):
        raise Wrong("reshape without transpose: the first row holds several positions of head 0. Bring the axes "
                    "to (B, T, H, K) "
                    "first, then join the last two")  # fmt: skip
    if close(got, x.permute(0, 2, 3, 1).reshape(B, T, H * K)):
        raise Wrong(
            "the heads are interleaved: entry 0 of all heads, then entry 1. Each head's K entries stay together"
        )
    if close(got, torch.cat([x[:, h] for h in reversed(range(H))], dim=-1)):
        raise Wrong("the heads are in reverse order")
    raise Wrong("the shape is right, but row t must hold head 0's K numbers at t, then head 1's, and so on")


# --- exercise 7.4: shapes -------------------------------------------------------------------


def _shapes(B, T, S, H, K):
    return {
        "queries": (B, H, T, K),
        "keys": (B, H, S, K),
        "weights": (B, H, T, S),
        "output": (B, T, H * K),
    }


_SHAPES = _shapes(B=8, T=17, S=21, H=6, K=16)
_COUNT = math.prod(_SHAPES["weights"])


@check(
    hints=(
        "Follow the figure of section 5, with T = 17 for what asks and S = 21 for what is asked.",
        "K = D / H. Queries (B, H, T, K), keys (B, H, S, K), weights (B, H, T, S), output (B, T, D).",
        "K is 96 / 6 = 16; the count is the product of the four sizes of the weights.",
    )
)
def shapes(answer):
    """Exercise 7.4: shapes in cross-attention."""
    expect_type(answer, dict, "the answer")
    missing = [name for name in (*_SHAPES, "count") if name not in answer]
    if missing:
        raise Wrong(f"the answer has no entry {missing[0]!r}")
    for name, right in _SHAPES.items():
        got = answer[name]
        got = got.tolist() if isinstance(got, torch.Tensor) and got.ndim == 1 else got
        if not isinstance(got, (tuple, list)):
            raise Wrong(f"{name} must be a tuple of sizes, got {type(got).__name__}")
        got = tuple(got)
        if got == right:
            continue
        if sorted(got) == sorted(right) and len(got) > 2:
            raise Wrong(f"{name}: the right numbers in another order, {got}; wanted " + _order(name))
        if name in ("queries", "keys") and got == tuple({17: 21, 21: 17}.get(n, n) for n in right):
            raise Wrong(f"{name}: {got} has the length of the other language; English asks (T), German is asked (S)")
        if name in ("queries", "keys") and 96 in got:
            raise Wrong(f"{name}: after splitting, each head has a width of K = D / H, not D")
        if name == "weights" and len(got) == 3:
            raise Wrong("weights: every head has its own; where is H?")
        if name == "weights" and got in ((8, 6, 17, 17), (8, 6, 21, 21)):
            raise Wrong("weights: this is self-attention; here queries and keys come from two sentences")
        if name == "output" and len(got) == 4:
            raise Wrong("output: this is before the heads are concatenated; where does D come back?")
        if name == "output" and 21 in got:
            raise Wrong("output: one vector for each query, and English asks")
        raise Wrong(f"{name}: {got} is not it; wanted " + _order(name))
    count = expect_number(answer["count"], "count")
    if count != _COUNT:
        if count == _COUNT / 8:
            raise Wrong("count: this is for one sentence; the batch holds 8")
        if count == _COUNT / 6:
            raise Wrong("count: this is for one head; there are 6")
        if count in (3 * 96 * 96, 4 * 96 * 96, 4 * 96 * 97):
            raise Wrong("count: these are the layer's parameters; asked for are the attention weights of a batch")
        raise Wrong(f"count: {count:g} is not the product of the sizes of the weights")


def _order(name):
    return {
        "queries": "(B, H, T, K)",
        "keys": "(B, H, S, K)",
        "weights": "(B, H, T, S)",
        "output": "(B, T, D)",
    }[name]


# --- exercise 7.5: multi-head attention -------------------------------------------------------


def _multi_head(query, key, value, W_in, b_in, W_out, b_out, H, mask=None, order=(0, 1, 2), cut=None, scale=None,
                join=None):  # fmt: skip
    """Multi-head attention head by head, or with one mistake."""
    K = query.shape[-1] // H
    weights, biases = W_in.chunk(3), b_in.chunk(3)
    parts = ((y, weights[i], biases[i]) for y, i in zip((query, key, value), order, strict=True))
    cut = cut or (lambda y: torch.stack(y.split(K, -1), 1))
    q, k, v = (cut(y @ W.T + b) for y, W, b in parts)
    scores = q @ k.mT / math.sqrt(scale or K)
    w = scores.softmax(-1) if mask is None else _weights(scores, mask.expand_as(scores))
    heads = w @ v  # (B, H, T, K)
    joined = torch.cat(heads.unbind(1), -1) if join is None else join(heads)
    return joined @ W_out.T + b_out


@check(
    hints=(
        "It is your three functions in a row, with a matrix product and a bias before the first and after the last.",
        "Cut in_proj_weight and in_proj_bias into three with chunk(3). Project query, key and value, split each, "
        "attend with the mask, merge, then project with out_proj_weight and out_proj_bias.",
        "q = split(query @ W_q.T + b_q, H); k and v likewise, from key and value. Heads are one more leading axis, so "
        "dot_product_attention takes q, k, v and the mask as they are. Merge, @ out_proj_weight.T, + out_proj_bias.",
    )
)
def multi_head(student):
    """Exercise 7.5: multi-head attention with packed weights; three sources, a mask, another number of heads."""
    B, T, S, H, K = 2, 3, 5, 4, 6
    D = H * K
    query, key, value = _draw(B, T, D), _draw(B, S, D, seed=1), _draw(B, S, D, seed=2)
    weights = _draw(3 * D, D, seed=3) / 4, _draw(3 * D, seed=4), _draw(D, D, seed=5), _draw(D, seed=6)
    given = (query, key, value, *weights, H)
    got = student(*given)
    if isinstance(got, tuple):
        raise Wrong("the function returns a tuple; return the output alone, (B, T, D)")
    if isinstance(got, torch.Tensor) and got.shape == (B, H, T, K):
        raise Wrong("the result is (B, H, T, K): merge the heads, and multiply with the output matrix")
    got = expect_tensor(got, (B, T, D))
    if not close(got, _multi_head(*given)):
        _diagnose_multi_head(got, given)
    masks = {
        "(B, 1, 1, S)": padding_mask(torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 1]]).bool()),
        "(T, S)": torch.tensor([[1, 0, 0, 1, 0], [1, 1, 0, 0, 0], [1, 1, 1, 0, 1]]).bool(),
    }
    for shape, mask in masks.items():
        got = expect_tensor(student(*given, mask=mask), (B, T, D))
        if close(got, _multi_head(*given, mask=mask)):
            continue
        if close(got, _multi_head(*given)):
            raise Wrong("the mask changes nothing: hand it to dot_product_attention")
        if close(got, _multi_head(*given, mask=~mask)):
            raise Wrong("the mask is taken the wrong way round: here True = may attend")
        raise Wrong(f"right without a mask, wrong with one of shape {shape}, which broadcasts to (B, H, T, S)")
    whole = (query, query, query, *weights, 1)
    got = expect_tensor(student(*whole), (B, T, D), name="the output with one head")
    if not close(got, _multi_head(*whole)):
        raise Wrong(f"right for H = {H}, wrong for H = 1 in self-attention: is a number written in your code?")
    _forbid(student, [(given, {}), (given, {"mask": masks["(T, S)"]})], [*READY, split_heads, merge_heads], OF_TORCH)
    taken = []
    for heads in (2, 12, 2, 12):  # first only to import, compile and remember what an answer may need
        taken.append(steps(student, *given[:-1], heads))
    if taken[3] > taken[2] + 30:
        raise Wrong("the result is right, but there is a loop over heads: keep them as one more axis, (B, H, T, K), "
                    "and one matrix product serves all of them")  # fmt: skip


def _diagnose_multi_head(got, given):
    query, key, value, W_in, b_in, W_out, b_out, H = given
    B, T, D = query.shape
    K, eye = D // H, torch.eye(D, dtype=query.dtype)
    turned = torch.cat([W.T for W in W_in.chunk(3)])
    woven = [torch.cat([packed[i::3] for i in range(3)]) for packed in (W_in, b_in)]
    by_head = [packed.unflatten(0, (H, 3, K)).transpose(0, 1).flatten(0, 2) for packed in (W_in, b_in)]
    q, k, v = W_in.chunk(3)
    order = "the first D rows make queries, the next keys, the last values"
    three, whole = (query, key, value), (W_in, b_in, W_out, b_out, H)
    given_instead = (
        ((*three, W_in, b_in, eye, 0 * b_out, H), "the output projection is missing: after the merge, multiply with "
         "out_proj_weight and add its bias"),
        ((*three, W_in, 0 * b_in, W_out, 0 * b_out, H), "the biases are missing, those of the input and of the output"),
        ((*three, W_in, 0 * b_in, W_out, b_out, H), "the bias in_proj_bias is missing"),
        ((*three, W_in, b_in, W_out, 0 * b_out, H), "the bias out_proj_bias is missing"),
        ((*three, W_in, torch.cat([0 * b_in[:D], b_in[D:]]), W_out, b_out, H), "the queries lack their bias, the "
         "first D numbers of in_proj_bias; the next D are the keys', the last the values'"),
        ((*three, W_in, torch.cat([b_in[: 2 * D], 0 * b_in[:D]]), W_out, b_out, H), "the values lack their bias, the "
         "last D numbers of in_proj_bias"),
        ((*three, W_in, b_in, W_out.T, b_out, H), "out_proj_weight is used as it is; a weight (outputs, inputs) is "
         "used as x @ W.T"),
        ((*three, turned, b_in, W_out, b_out, H), "the three input matrices are used as they are; a weight (outputs, "
         "inputs) is used as x @ W.T"),
        ((*three, turned, b_in, W_out.T, b_out, H), "no weight is transposed: a weight (outputs, inputs) is used as "
         "x @ W.T"),
        ((*three, *woven, W_out, b_out, H), f"every third row is taken for one matrix, W[0::3] and so on: {order}"),
        ((*three, *by_head, W_out, b_out, H), "in_proj_weight and its bias are cut in blocks of 3 K rows, one a head, "
         f"and each block into its queries, keys and values; here the three stand outside: {order}"),
        ((*three, torch.cat([q, v, k]), b_in, W_out, b_out, H), "keys and values have exchanged their matrices, but "
         f"not their biases: {order}"),
        ((query, query, query, *whole), "keys and values are made from query; they come from key and value"),
        ((query, key, key, *whole), "the values are made from key; they come from value"),
        ((query, value, key, *whole), "key and value have exchanged their parts"),
        ((*three, W_in, b_in, W_out, b_out, 1), "this is attention with one head of width D: split into H heads first"),
    )  # fmt: skip
    steps = (  # done otherwise
        ({"scale": D}, "the scores are divided by the root of D; a head's keys have the width K = D / H"),
        ({"scale": 1}, "the scores are not divided by the root of K"),
        ({"order": (1, 0, 2)}, f"queries and keys have exchanged their matrices: {order}"),
        ({"order": (0, 2, 1)}, f"keys and values have exchanged their matrices: {order}"),
        ({"order": (2, 1, 0)}, f"queries and values have exchanged their matrices: {order}"),
        ({"join": lambda heads: heads.reshape(B, T, D)}, "the heads are merged without a transpose, so positions are "
         "scrambled"),
        ({"join": lambda heads: heads.permute(0, 2, 3, 1).reshape(B, T, D)}, "the heads' entries are interleaved in "
         "the merge: each head's K entries stay together"),
        ({"cut": lambda y: y.reshape(B, H, y.shape[1], K)}, "the heads are cut by view without transpose: they hold "
         "positions, not entries"),
        ({"cut": lambda y: y.reshape(B, H, y.shape[1], K), "join": lambda heads: heads.reshape(B, T, D)}, "the heads "
         "are cut by view and merged by reshape, both without a transpose: head 0 holds the first positions, cut into "
         "pieces, instead of the first K entries of every position"),
        ({"cut": lambda y: y.unflatten(-1, (K, H)).permute(0, 3, 1, 2)}, "head h got every H-th entry; wanted K "
         "neighbours, h K .. (h + 1) K - 1"),
    )  # fmt: skip
    tried = [(other, {}, message) for other, message in given_instead] + [(given, *step) for step in steps]
    for arguments, options, message in tried:
        if close(got, _multi_head(*arguments, **options)):
            raise Wrong(message)
    raise Wrong("the output is not right; print each step for one head: its queries, keys, weights, values")


# --- exercise 7.6: the lost mask ------------------------------------------------------------


def _stack_case():
    """Three layers of a stack, an input, and a mask with padding."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = tuple(MultiHeadAttention(6, 2).double() for _ in range(3))
    mask = padding_mask(torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0], [1, 1, 1, 1, 0]]).bool())
    for layer in layers:
        layer.in_proj_weight.data *= 2  # maps that differ clearly
    return layers, 2 * _draw(3, 5, 6), mask


def _run(layers, x, mask, in_weights=True, in_layer=True, residual=True, first=True, move=True):
    """The maps of the stack, with or without a mistake."""
    maps = []
    for layer in layers:
        after = layer(x, mask=mask if in_layer else None)
        after = (x + after if residual else after) if move else x
        maps.append(layer.attention_weights(x if first else after, mask=mask if in_weights else None))
        x = after
    return maps


@check(
    hints=(
        "What does the second layer read in the model, and what does it read in this function?",
        "For each layer: collect attention_weights(x) with the mask, then x = x + layer(x) with the mask.",
        "One argument is missing in one call; the maps of the first layer cannot show it.",
    )
)
@torch.no_grad()
def stack_maps(student):
    """Exercise 7.6: the mask goes with the values, too."""
    layers, x, mask = _stack_case()
    try:
        got = student(layers, x, mask)
    except Exception as error:
        if re.search(rf"key must .*got (torch.bool|shape {re.escape(str(tuple(mask.shape)))})", str(error.__cause__)):
            raise Wrong("the mask stands in second place, where a layer takes its keys: pass it by name, "
                        "layer(x, mask=mask)") from None  # fmt: skip
        raise
    if isinstance(got, torch.Tensor) and got.ndim == 5:
        raise Wrong("wanted a list with one tensor for each layer, got one tensor for all")
    got = expect_type(list(got) if isinstance(got, tuple) else got, list, "the maps")
    if len(got) != 3:
        raise Wrong(f"wanted one map for each of the 3 layers, got {len(got)}")
    for n, found in enumerate(got):
        if isinstance(found, torch.Tensor) and found.shape == (3, 5, 5):
            raise Wrong(f"map {n} has shape (3, 5, 5): keep the heads apart, (B, H, T, T)")
        expect_tensor(found, (3, 2, 5, 5), name=f"map {n}")

    def same(maps):
        return all(close(a, b) for a, b in zip(got, maps, strict=True))

    if same(_run(layers, x, mask)):
        return
    for options, message in (
        ({"in_layer": False}, "this is the function as it was: the maps of layer 0 are right, those above are of a run "
         "in which padding was attended to. The mask must go to layer(x), too"),
        ({"in_weights": False}, "the mask now goes to layer(x), but the maps are computed without it: they show "
        "weight on "
         "padding"),
        ({"in_weights": False, "in_layer": False}, "the mask reaches neither the maps nor the layers"),
        ({"residual": False}, "each layer's output is to be added to what it read: x = x + layer(x, mask=mask)"),
        ({"first": False}, "each map is computed from what the layer has made; compute it from what the layer reads"),
        ({"move": False}, "all maps are of the first input: x must go on through the layers"),
    ):  # fmt: skip
        if same(_run(layers, x, mask, **options)):
            raise Wrong(message)
    if close(got[0], layers[0].attention_weights(x, mask=~mask)):
        raise Wrong("the mask is inverted on its way: True = may attend, for weights and for the layers alike")
    if close(got[0], layers[0].attention_weights(x, mask=mask)):
        raise Wrong("the map of layer 0 is right, a later one is not: what does layer 1 read?")
    raise Wrong("the map of layer 0 is not layers[0].attention_weights(x, mask=mask)")


# --- exercise 7.7: in words -------------------------------------------------------------------

saturation_and_heads = Written(
    hints=(
        "(a) Read the column of the largest weight beside the column of the slope. (b) When is a mean of values an "
        "answer, and when is it none? (c) What would the same head show for the twin?",
        "(a) Every gradient to a query passes the entries w_i (delta_ij - w_j); what are they for equal weights, and "
        "what for one weight near 1? (The factor c counts, too.) (b) Think of noisy values, of tickets, and of the "
        "first updates of a training. (c) The figure of section 7: a large weight on a word that could be hidden.",
        "(a) Where is the slope largest? At 10 all its entries hold a factor near 0: what can a wrong answer still "
        "teach? (b) Mixtures "
        "and the start of training want one kind, copying wants the other. (c) Always looking at that noun would look "
        "the same; hide a word, or show the twin, for many sentences.",
    ),
    good_answer=(
        "(a) Your own numbers: at 0.1 weights near uniform, a mean of tickets, which is no ticket, so that even the "
        "answer may be wrong, and a small slope; at 10 one "
        "weight near 1 and nearly no slope, so that a wrong answer sends hardly any gradient into the queries: sure, "
        "and unable to learn otherwise; at 1 the weights lean to one word, and the slope is largest. (b) Soft where a "
        "mixture means something and at the start of training, when the choice is made by chance; sharp where one "
        "item must come back unmixed. (c) Two of: the head may look there whatever the adjective; the vector at the "
        "noun may hold something else; the answer may go around the map, by the residual or other heads; the map or "
        "the head was chosen afterwards; other weights may give the same output. And an experiment that changes "
        "something: the twin, a hidden word, exchanged tickets, on many sentences, with the head chosen beforehand."
    ),
)
