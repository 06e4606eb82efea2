"""The checks of chapter 07: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import attention as library
from course_lib.exercises import ch07
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("dot_product_attention", "split", "merge", "multi_head", "stack_maps")
VALUES = {"numbers_by_hand": "numbers", "shapes": "arrows"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def attend(
    score=lambda q, k, v: q @ k.mT / math.sqrt(q.shape[-1]),
    weigh=lambda scores, visible: scores.masked_fill(~visible, -math.inf).softmax(-1).masked_fill(~visible, 0.0),
    triangle=lambda ones, T, S: ones.tril(S - T),
    join=lambda mask, causal: mask & causal,
    invert=False,
    out=lambda weights, v: weights @ v,
):
    def attention(q, k, v, mask=None, causal=False):
        scores = score(q, k, v)
        T, S = scores.shape[-2:]
        ones = torch.ones(T, S, dtype=torch.bool)
        visible = triangle(ones, T, S) if causal else ones
        if mask is not None:
            mask = ~mask if invert else mask
            visible = join(mask, visible) if causal else mask
        return out(weigh(scores, visible.expand(scores.shape)), v)

    return attention


def filled(value):
    return lambda scores, visible: scores.masked_fill(~visible, value).softmax(-1)


def renormalised(scores, visible):
    shown = scores.softmax(-1) * visible
    return shown / shown.sum(-1, keepdim=True).clamp_min(1e-12)


def only_whole_masks(q, k, v, mask=None, causal=False):
    if mask is not None and mask.ndim == 2 and q.ndim == 4:
        mask = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    return attend()(q, k, v, mask, causal)


def causal_with_whole_masks(q, k, v, mask=None, causal=False):
    return attend()(q, k, v, mask, causal and (mask is None or mask.ndim == 3))


def any_row_empties_all(q, k, v, mask=None, causal=False):
    found = attend()(q, k, v, mask, causal)
    return found * 0 if mask is not None and not mask.any(-1).all() else found


def maps(
    in_weights=True, in_layer=True, residual=True, first=True, move=True, invert=False, shown=lambda w: w, end=list
):
    def run(layers, x, mask):
        mask, found = ~mask if invert else mask, []
        for layer in layers:
            new = layer(x, mask=mask if in_layer else None)
            new = (x + new if residual else new) if move else x
            found.append(shown(layer.attention_weights(x if first else new, mask=mask if in_weights else None)))
            x = new
        return end(found)

    return run


def mask_in_second_place(layers, x, mask):
    found = []
    for layer in layers:
        found.append(layer.attention_weights(x, mask=mask))
        x = x + layer(x, mask)
    return found


def heads(x, H):
    return x.unflatten(-1, (H, -1)).transpose(1, 2)


def assembled(
    sources=lambda query, key, value: (query, key, value),
    order=(0, 1, 2),
    cut=lambda y, H: y.unflatten(-1, (H, -1)).transpose(1, 2),
    scale=lambda q, H: q.shape[-1],
    use_mask=lambda mask: mask,
    join=lambda heads: heads.transpose(1, 2).flatten(2),
    output=lambda joined, W, b: joined @ W.T + b,
    heads_of=lambda H: H,
    project=lambda y, W, b: y @ W.T + b,
):
    def multi_head(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
        H, W, b = heads_of(H), W_in.chunk(3), b_in.chunk(3)
        parts = zip(sources(query, key, value), order, strict=True)
        q, k, v = (cut(project(y, W[i], b[i]), H) for y, i in parts)
        mask, scores = use_mask(mask), q @ k.mT / math.sqrt(scale(q, H))
        weights = (scores if mask is None else scores.masked_fill(~mask, -math.inf)).softmax(-1)
        return output(join(weights @ v), W_out, b_out)

    return multi_head


def fixed_heads(*given, mask=None):
    return assembled()(*given[:-1], 4, mask)


def first_row_of_mask(*given, mask=None):
    return assembled()(*given, None if mask is None else mask.flatten(0, -2)[:1])


def split_of_a_batch(x, H):
    B, T, D = x.shape
    return x.view(B, T, H, D // H).transpose(1, 2)


def every_third_row(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
    W, b = (torch.cat([packed[i::3] for i in range(3)]) for packed in (W_in, b_in))
    return assembled()(query, key, value, W, b, W_out, b_out, H, mask)


def three_matrices_a_head(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
    """One head after the other, and in each its q, k and v, as UvA's tutorial packs them."""
    W, b = W_in.unflatten(0, (H, 3, -1)), b_in.unflatten(0, (H, 3, -1))
    W, b = (packed.transpose(0, 1).flatten(0, 2) for packed in (W, b))
    return assembled()(query, key, value, W, b, W_out, b_out, H, mask)


def weights_exchanged_alone(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
    q, k, v = W_in.chunk(3)
    return assembled()(query, key, value, torch.cat([q, v, k]), b_in, W_out, b_out, H, mask)


def biases_of(queries=0, keys=0, values=0):
    """Only some of the three input biases are added."""

    def multi_head(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
        given = torch.tensor([queries, keys, values]).to(b_in).repeat_interleave(len(b_out))
        return assembled()(query, key, value, W_in, given * b_in, W_out, b_out, H, mask)

    return multi_head


def nan_cleared_at_the_end(q, k, v, mask=None, causal=False):
    scores = (q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~visible_to(q, k, mask, causal), -math.inf)
    return (scores.softmax(-1) @ v).nan_to_num(0.0)


def visible_to(q, k, mask, causal):
    """The mask that an answer hands to torch."""
    seen = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool)
    seen = seen.tril(k.shape[-2] - q.shape[-2]) if causal else seen
    return seen if mask is None else seen & mask


def by_torch(q, k, v, mask=None, causal=False):
    return F.scaled_dot_product_attention(q, k, v, visible_to(q, k, mask, causal)).nan_to_num()


def by_the_halves(q, k, v, mask=None, causal=False):
    return library.attention_weights(library.attention_scores(q, k), visible_to(q, k, mask, causal)) @ v


def imported_inside(q, k, v, mask=None, causal=False):
    from course_lib.attention import attention as my_own

    return my_own(q, k, v, mask, causal)


def packed(attend, cut=heads, join=lambda o: o.transpose(1, 2).flatten(2)):
    """Multi-head attention with somebody else's attention, or heads, in the middle."""

    def multi_head(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
        parts = zip((query, key, value), W_in.chunk(3), b_in.chunk(3), strict=True)
        q, k, v = (cut(y @ W.T + b, H) for y, W, b in parts)
        return join(attend(q, k, v, mask)) @ W_out.T + b_out

    return multi_head


def by_torchs_layer(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
    layer = nn.MultiheadAttention(query.shape[-1], H, batch_first=True, dtype=query.dtype)
    layer.load_state_dict(
        {"in_proj_weight": W_in, "in_proj_bias": b_in, "out_proj.weight": W_out, "out_proj.bias": b_out}
    )
    hidden = None
    if mask is not None:
        hidden = ~mask.expand(len(query), H, query.shape[1], key.shape[1]).flatten(0, 1)
    return layer(query, key, value, attn_mask=hidden)[0]


def by_the_librarys_layer(query, key, value, W_in, b_in, W_out, b_out, H, mask=None):
    layer = library.MultiHeadAttention(query.shape[-1], H).double()
    layer.load_state_dict(
        {"in_proj_weight": W_in, "in_proj_bias": b_in, "out_proj.weight": W_out, "out_proj.bias": b_out}
    )
    return layer(query, key, value, mask=mask)


def head_by_head(q, k, v, mask):
    """A loop over heads."""
    B, H, T, _ = q.shape
    mask = torch.ones(1, dtype=torch.bool) if mask is None else mask
    mask = mask.expand(B, H, T, k.shape[-2])
    return torch.stack([attend()(q[:, h], k[:, h], v[:, h], mask[:, h]) for h in range(H)], 1)


def overflowing(scores, visible):
    grown = scores.exp() * visible
    return grown / grown.sum(-1, keepdim=True).clamp_min(1e-30)


G = math.exp(math.sqrt(3))
WEIGHT, LENGTH, VARIANCE, SLOPE = G / (2 * G + 2), math.sqrt(3) * math.log(27) / 10, 36.0, -0.14
ARROWS = {
    "queries": (8, 6, 17, 16),
    "keys": (8, 6, 21, 16),
    "weights": (8, 6, 17, 21),
    "output": (8, 17, 96),
    "count": 17136,
}
PLANTED = {
    "dot_product_attention": [
        ("add up to 1 over the queries", attend(weigh=lambda s, visible: s.softmax(-2))),
        ("not divided by sqrt(K)", attend(lambda q, k, v: q @ k.mT)),
        ("divided by K;", attend(lambda q, k, v: q @ k.mT / q.shape[-1])),
        ("root of the values' width", attend(lambda q, k, v: q @ k.mT / math.sqrt(v.shape[-1]))),
        ("root of S", attend(lambda q, k, v: q @ k.mT / math.sqrt(k.shape[-2]))),
        ("multiplied by sqrt(K)", attend(lambda q, k, v: q @ k.mT * math.sqrt(q.shape[-1]))),
        ("there is no softmax", attend(weigh=lambda s, visible: s)),
        ("divide the exponentials", attend(weigh=lambda s, visible: s.exp())),
        ("exp overflows", attend(weigh=overflowing)),
        ("the gradient of the values is nan", nan_cleared_at_the_end),
        ("these are weights", attend(out=lambda weights, v: weights)),
        ("returns a tuple", attend(out=lambda weights, v: (weights @ v, weights))),
        ("the mask changes nothing", lambda q, k, v, mask=None, causal=False: attend()(q, k, v, None, causal)),
        ("the wrong way round", attend(invert=True)),
        ("set to zero after the softmax", attend(weigh=lambda s, visible: s.softmax(-1) * visible)),
        ("e^0 = 1", attend(weigh=lambda s, visible: (s * visible).softmax(-1))),
        ("added as a number", attend(weigh=lambda s, visible: (s + visible).softmax(-1))),
        ("must expand", only_whole_masks),
        ("hide the scores before the softmax, so that", attend(weigh=renormalised)),
        ("are below -20,000", attend(weigh=lambda s, visible: filled(-1e4)(s, visible) * visible)),
        ("causal=True changes nothing", lambda q, k, v, mask=None, causal=False: attend()(q, k, v, mask)),
        ("the other one", attend(triangle=lambda ones, T, S: ones.triu(S - T))),
        ("its own position", attend(triangle=lambda ones, T, S: ones.tril(S - T - 1))),
        ("one key too many", attend(triangle=lambda ones, T, S: ones.tril(S - T + 1))),
        ("stands top left", attend(triangle=lambda ones, T, S: ones.tril())),
        ("the causality is lost", attend(join=lambda mask, causal: mask)),
        ("but not one of shape (S,)", causal_with_whole_masks),
        ("the mask is lost", attend(join=lambda mask, causal: causal)),
        ("joined them with or", attend(join=lambda mask, causal: mask | causal)),
        ("gives nan", attend(weigh=filled(-math.inf))),
        ("mean of all hidden values", attend(weigh=filled(-1e9))),
        ("changes the other rows", any_row_empties_all),
        (
            "the library's `attention`",
            lambda q, k, v, mask=None, causal=False: library.attention(q, k, v, mask, causal),
        ),
        ("the library's `attention`", imported_inside),
        ("the library's `attention_scores`", by_the_halves),
        ("torch's `scaled_dot_product_attention`", by_torch),
    ],
    "split": [
        ("only renames", lambda x, H: x.view(x.shape[0], H, x.shape[1], -1)),
        ("now put the heads", lambda x, H: x.unflatten(-1, (H, -1))),
        ("every third entry", lambda x, H: x.unflatten(-1, (-1, H)).permute(0, 3, 1, 2)),
        ("reverse order", lambda x, H: heads(x, H).flip(1)),
        ("(T, D): there your code raises ValueError", split_of_a_batch),
        ("got (4, 5, 3)", heads),
        ("got (1, 3, 4, 5)", lambda x, H: heads(x if x.ndim > 2 else x[None], H)),
        (
            "(2, 3, T, D): wanted",
            lambda x, H: x.unflatten(-1, (H, -1)).transpose(*(-3, -2) if x.ndim == 2 else (1, 2)),
        ),
        (
            "the numbers are not",
            lambda x, H: x.unflatten(-1, (H, -1)).transpose(-3, -2).flip([0] if x.ndim > 3 else []),
        ),
        ("the library's `split_heads`", lambda x, H: library.split_heads(x, H)),
    ],
    "merge": [
        ("reshape without transpose", lambda x: x.reshape(x.shape[0], x.shape[2], -1)),
        ("interleaved", lambda x: x.permute(0, 2, 3, 1).flatten(2)),
        ("reverse order", lambda x: x.flip(1).transpose(1, 2).flatten(2)),
        ("has shape", lambda x: x.transpose(1, 2)),
        ("(H, T, K): there your code raises", lambda x: x.permute(0, 2, 1, 3).flatten(2)),
        (
            "(2, 6, H, T, K): wanted",
            lambda x: (x.transpose(-3, -2) if x.ndim == 3 else x.transpose(1, 2)).flatten(-2),
        ),
        ("the library's `merge_heads`", library.merge_heads),
    ],
    "stack_maps": [
        ("as it was", maps(in_layer=False)),
        ("computed without it", maps(in_weights=False)),
        ("neither", maps(in_weights=False, in_layer=False)),
        ("to be added", maps(residual=False)),
        ("from what the layer reads", maps(first=False)),
        ("must go on through", maps(move=False)),
        ("pass it by name", mask_in_second_place),
        ("inverted", maps(invert=True)),
        ("keep the heads apart", maps(shown=lambda w: w.mean(1))),
        ("got one tensor for all", maps(end=torch.stack)),
        ("one map for each of the 3", maps(end=lambda found: found[-1:])),
    ],
    "numbers_by_hand": [
        ("what keys 3 and 4 get together", (2 * WEIGHT, LENGTH, VARIANCE, SLOPE)),
        ("divide it by sqrt(3)", (math.exp(3) / (2 * math.exp(3) + 2), LENGTH, VARIANCE, SLOPE)),
        ("root of 4", (math.exp(1.5) / (2 * math.exp(1.5) + 2), LENGTH, VARIANCE, SLOPE)),
        ("root of the number of keys", (WEIGHT, math.log(27) / 5, VARIANCE, SLOPE)),
        ("key 4 has the same score", (G / (G + 3), LENGTH, VARIANCE, SLOPE)),
        ("key 4 is missing", (G / (G + 2), LENGTH, VARIANCE, SLOPE)),
        ("e^0 is 1", (0.5, LENGTH, VARIANCE, SLOPE)),
        ("left out the division", (WEIGHT, math.log(27) / 10, VARIANCE, SLOPE)),
        ("three other keys", (WEIGHT, math.sqrt(3) * math.log(9) / 10, VARIANCE, SLOPE)),
        ("the score that is needed; which", (WEIGHT, math.log(27), VARIANCE, SLOPE)),
        ("you counted two other keys", (WEIGHT, math.sqrt(3) * math.log(18) / 10, VARIANCE, SLOPE)),
        ("not two, and scores", (WEIGHT, math.log(18) / 10, VARIANCE, SLOPE)),
        ("needed against two other keys", (WEIGHT, math.log(18), VARIANCE, SLOPE)),
        ("entries of variance 1", (WEIGHT, LENGTH, 16, SLOPE)),
        ("is the standard deviation", (WEIGHT, LENGTH, 6, SLOPE)),
        ("standard deviations of 16 products", (WEIGHT, LENGTH, 24, SLOPE)),
        ("added the two variances", (WEIGHT, LENGTH, 148, SLOPE)),
        ("think of the sign", (WEIGHT, LENGTH, VARIANCE, 0.14)),
        ("its own score", (WEIGHT, LENGTH, VARIANCE, 0.21)),
        ("weight: 0.42 is close, but not right to three digits", (0.42, 0.571, 36, -0.14)),
        ("weight: 0.424 is close", (0.424, 0.571, 36, -0.14)),
        ("weight: 0.426 is close", (0.426, 0.571, 36, -0.14)),
        ("length: 0.57 is close", (0.425, 0.57, 36, -0.14)),
        ("uniform weights", (0.25, LENGTH, VARIANCE, SLOPE)),
        ("two things", (WEIGHT, math.log(9) / 10, VARIANCE, SLOPE)),
        ("w_2 (w_1 - 1)", (WEIGHT, LENGTH, VARIANCE, -0.06)),
        ("no entry 'length'", {"weight": WEIGHT, "variance": VARIANCE, "slope": SLOPE}),
        ("w_2 w_3", (WEIGHT, LENGTH, VARIANCE, -0.02)),
        ("i and j differ here", (WEIGHT, LENGTH, VARIANCE, -0.112)),
    ],
    "shapes": [
        ("another order", ARROWS | {"queries": (8, 17, 6, 16)}),
        ("other language", ARROWS | {"keys": (8, 6, 17, 16)}),
        ("not D", ARROWS | {"queries": (8, 6, 17, 96)}),
        ("where is H", ARROWS | {"weights": (8, 17, 21)}),
        ("self-attention", ARROWS | {"weights": (8, 6, 17, 17)}),
        ("English asks", ARROWS | {"output": (8, 21, 96)}),
        ("one sentence", ARROWS | {"count": 17136 // 8}),
        ("one head", ARROWS | {"count": 17136 // 6}),
        ("the layer's parameters", ARROWS | {"count": 4 * 96 * 96}),
        ("before the heads are concatenated", ARROWS | {"output": (8, 6, 17, 16)}),
        ("no entry 'weights'", {name: shape for name, shape in ARROWS.items() if name != "weights"}),
    ],
}
PLANTED["multi_head"] = [
    ("merge the heads", assembled(join=lambda heads: heads, output=lambda heads, W, b: heads)),
    ("output projection is missing", assembled(output=lambda joined, W, b: joined)),
    ("the biases are missing", assembled(project=lambda y, W, b: y @ W.T, output=lambda joined, W, b: joined @ W.T)),
    ("in_proj_bias is missing", assembled(project=lambda y, W, b: y @ W.T)),
    ("out_proj_bias is missing", assembled(output=lambda joined, W, b: joined @ W.T)),
    ("the queries lack their bias", biases_of(values=1)),
    ("the values lack their bias", biases_of(queries=1, keys=1)),
    ("out_proj_weight is used as it is", assembled(output=lambda joined, W, b: joined @ W + b)),
    ("three input matrices are used", assembled(project=lambda y, W, b: y @ W + b)),
    ("no weight", assembled(project=lambda y, W, b: y @ W + b, output=lambda joined, W, b: joined @ W + b)),
    ("W[0::3]", every_third_row),
    ("in blocks of 3 K rows, one a head", three_matrices_a_head),
    ("but not their biases", weights_exchanged_alone),
    ("made from query", assembled(lambda query, key, value: (query, query, query))),
    ("made from key", assembled(lambda query, key, value: (query, key, key))),
    ("exchanged their parts", assembled(lambda query, key, value: (query, value, key))),
    ("root of D", assembled(scale=lambda q, H: q.shape[-1] * H)),
    ("not divided", assembled(scale=lambda q, H: 1)),
    ("one head of width D", assembled(heads_of=lambda H: 1)),
    ("queries and keys", assembled(order=(1, 0, 2))),
    ("keys and values have", assembled(order=(0, 2, 1))),
    ("queries and values", assembled(order=(2, 1, 0))),
    ("merged without a transpose", assembled(join=lambda o: o.reshape(o.shape[0], o.shape[2], -1))),
    ("interleaved in the merge", assembled(join=lambda o: o.permute(0, 2, 3, 1).flatten(2))),
    (
        "cut by view and merged by reshape",
        assembled(
            cut=lambda y, H: y.reshape(y.shape[0], H, y.shape[1], -1),
            join=lambda o: o.reshape(o.shape[0], o.shape[2], -1),
        ),
    ),
    ("hold positions, not", assembled(cut=lambda y, H: y.reshape(y.shape[0], H, y.shape[1], -1))),
    ("every H-th entry", assembled(cut=lambda y, H: y.unflatten(-1, (-1, H)).permute(0, 3, 1, 2))),
    ("the mask changes nothing", assembled(use_mask=lambda mask: None)),
    ("the wrong way round", assembled(use_mask=lambda mask: None if mask is None else ~mask)),
    ("wrong with one of shape", first_row_of_mask),
    ("wrong for H = 1", fixed_heads),
    ("returns a tuple", assembled(output=lambda joined, W, b: (joined @ W.T + b, joined))),
    ("the library's `attention`", packed(library.attention)),
    ("torch's `scaled_dot_product_attention`", packed(F.scaled_dot_product_attention)),
    ("the library's `split_heads`", packed(attend(), cut=library.split_heads)),
    ("the library's `merge_heads`", packed(attend(), join=library.merge_heads)),
    ("the library's `MultiHeadAttention`", by_the_librarys_layer),
    ("torch's `multi_head_attention_forward`", by_torchs_layer),
    ("a loop over heads", packed(head_by_head)),
]
IDENTITY = {  # "returns its input"
    "dot_product_attention": lambda q, k, v, mask=None, causal=False: q,
    "split": lambda x, H: x,
    "merge": lambda x: x,
    "multi_head": lambda query, *others, mask=None: query,
    "stack_maps": lambda layers, x, mask: x,
    "numbers_by_hand": 1.0,
    "shapes": (8, 6, 17, 16),
}
ZEROS = {
    "dot_product_attention": lambda q, k, v, mask=None, causal=False: q @ torch.zeros(q.shape[-1], v.shape[-1]).to(q),
    "split": lambda x, H: torch.zeros_like(heads(x, H)),
    "merge": lambda x: torch.zeros_like(x.transpose(1, 2).flatten(2)),
    "multi_head": lambda query, *others, mask=None: torch.zeros_like(query),
    "stack_maps": maps(shown=torch.zeros_like),
    "numbers_by_hand": (0, 0, 0, 0),
    "shapes": dict.fromkeys(ARROWS, (0, 0)),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_reference_passes(name):
    """Fails if a check rejects the chapter's own solution."""
    assert verdict(getattr(ch07, name), solution("07", VALUES.get(name, name))) == f"passed: {name}"


@pytest.mark.parametrize(("name", "part", "answer"), [(n, *case) for n, cases in PLANTED.items() for case in cases])
def test_planted_mistake_gets_its_message(name, part, answer):
    """Fails if a mistake passes, or is diagnosed as another one."""
    found = verdict(getattr(ch07, name), answer)
    assert found.startswith("not yet: ")
    assert part in found


@pytest.mark.parametrize("name", PLANTED)
def test_messages_differ(name):
    """Fails if two different mistakes are told the same."""
    found = [verdict(getattr(ch07, name), answer) for _, answer in PLANTED[name]]
    assert len(set(found)) == len({part for part, _ in PLANTED[name]})


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    """Fails if an answer that computes nothing passes, or could not be examined."""
    found = verdict(getattr(ch07, name), answers[name])
    assert found.startswith("not yet: ")
    assert "could not be examined" not in found


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_not_attempted(name):
    """Fails if an untouched exercise is called wrong."""

    def untouched(*arguments, **options):
        raise NotImplementedError

    answer = untouched if name in FUNCTIONS else ...
    assert verdict(getattr(ch07, name), answer) == f"not attempted yet: {name}"


def test_other_right_answers_pass():
    """Fails if a check insists on one way: another softmax, an einsum, a tuple of maps, lists of sizes."""

    def with_einsum(q, k, v, mask=None, causal=False):
        scores = torch.einsum("...tk,...sk->...ts", q, k) * k.shape[-1] ** -0.5
        T, S = scores.shape[-2:]
        if causal:
            place = torch.arange(T).unsqueeze(1) + S - T
            scores = scores.masked_fill(torch.arange(S) > place, -math.inf)
        if mask is not None:
            scores = torch.where(mask, scores, -math.inf)
        return scores.softmax(-1).nan_to_num() @ v

    assert verdict(ch07.dot_product_attention, with_einsum) == "passed: dot_product_attention"
    assert verdict(ch07.stack_maps, maps(end=tuple)) == "passed: stack_maps"
    as_lists = {name: list(value) if isinstance(value, tuple) else value for name, value in ARROWS.items()}
    assert verdict(ch07.shapes, as_lists) == "passed: shapes"
    assert verdict(ch07.numbers_by_hand, torch.tensor([0.425, 0.571, 36.0, -0.14])) == "passed: numbers_by_hand"
    by_name = {"weight": WEIGHT, "length": LENGTH, "variance": VARIANCE, "slope": SLOPE}
    assert verdict(ch07.numbers_by_hand, by_name) == "passed: numbers_by_hand"
    assert verdict(ch07.multi_head, assembled()) == "passed: multi_head"
    assert verdict(ch07.multi_head, packed(attend())) == "passed: multi_head"


def test_a_name_alone_is_not_forbidden():
    """Fails if a right answer is refused for the name of a function of its own."""

    def attention(q, k, v, mask=None, causal=False):
        return attend()(q, k, v, mask, causal)

    assert verdict(ch07.dot_product_attention, attention) == "passed: dot_product_attention"

    def split_heads(x, H):
        return x.unflatten(-1, (H, -1)).transpose(-3, -2)

    assert verdict(ch07.split, lambda x, H: split_heads(x, H)) == "passed: split"


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch07.saturation_and_heads.hint(number)
    ch07.saturation_and_heads.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch07.saturation_and_heads.compare("word " * 20)
    assert "gradient" in capsys.readouterr().out
