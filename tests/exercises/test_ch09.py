"""The checks of chapter 09: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.exercises import ch09
from tests.helpers.solutions import solution, verdict

VALUES = {"residuals_by_hand": "first_entries"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def norm(dim=-1, unbiased=False, place="inside", gain=True, offset=True, centre=True):
    def layer_norm(x, weight, bias, eps):
        centred = x - x.mean(dim, keepdim=True) if centre else x
        variance = x.var(dim, keepdim=True, unbiased=unbiased)
        root = {"inside": lambda: (variance + eps).sqrt(), "outside": lambda: variance.sqrt() + eps,
                "none": lambda: variance.sqrt(), "no root": lambda: variance + eps}[place]()  # fmt: skip
        return (weight if gain else 1) * centred / root + (bias if offset else 0)

    return layer_norm


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
):
    def encoder_block(x, mask, p, num_heads):
        B, T, D = x.shape

        def attend(x):
            parts = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
            q, k, v = (
                parts[i].view(B, T, num_heads, -1).transpose(1, 2) if split else parts[i].reshape(B, num_heads, T, -1)
                for i in order
            )
            scores = q @ k.mT / {"K": D // num_heads, "D": D, "1": 1}[width] ** 0.5
            keys = {"mask": mask, "all": mask | True, "padding": ~mask}[see]
            heads = scores.masked_fill(~keys[:, None, None], -math.inf).softmax(dim) @ v
            heads = heads.transpose(1, 2) if merge else heads
            heads = heads.reshape(B, T, D)
            return F.linear(heads, p["out_weight"], p["out_bias"]) if project else heads

        def feed(x):
            hidden = F.linear(x, p["weight1"], p["bias1"])
            return F.linear(activation(hidden), p["weight2"], p["bias2"])

        a, b = norms

        def norm1(x):
            return F.layer_norm(x, (D,), p[f"gain{a}"], p[f"offset{a}"])

        def norm2(x):
            return F.layer_norm(x, (D,), p[f"gain{b}"], p[f"offset{b}"])

        if form == "pre":
            x = x + attend(norm1(x))
            return x + feed(norm2(x))
        if form == "norm first":
            x = x + norm1(attend(x))
            return x + norm2(feed(x))
        if form == "bare":
            x = x + attend(x)
            return x + feed(x)
        x = norm1(attend(x) + (0 if form == "none" else x))
        if not second:
            return norm2(x)
        return norm2(feed(x) + (0 if form in ("none", "first") else x))

    return encoder_block


def queries_hidden(x, mask, p, num_heads):
    """Padding hidden as a query: whole rows of minus infinity."""
    scores = torch.zeros(*mask.shape, mask.shape[1], dtype=x.dtype).masked_fill(~mask[..., None], -math.inf)
    return scores.softmax(-1).mean(1, keepdim=True).transpose(1, 2) * x


def half_fixed(x, attend, feed_forward, norm1, norm2):
    x = x + attend(norm1(x))
    x = norm2(x)
    return x + feed_forward(x)


def both_replaced(x, attend, feed_forward, norm1, norm2):
    x = norm1(x)
    x = norm2(x + attend(x))
    return x + feed_forward(x)


def cross(
    q="x", k="memory", v="memory", see="mask", dim=-1, scale=True, turn=True, swap=(0, 1, 2), project_v=True, width=None
):
    def cross_attention(x, memory, memory_mask, *weights):
        W = [weights[i].T if turn else weights[i] for i in swap]
        of = {"x": x, "memory": memory}
        queries, keys = of[q] @ W[0], of[k] @ W[1]
        values = of[v] @ W[2] if project_v else of[v]
        scores = queries @ keys.mT / ((width or x.shape[-1]) ** 0.5 if scale else 1)
        visible = torch.ones(scores.shape[1:], dtype=torch.bool)
        if see == "causal":
            visible = visible.tril()
        if see != "all":
            visible = visible & (memory_mask ^ (see == "padding"))[:, None]
        return scores.masked_fill(~visible, -math.inf).softmax(dim).nan_to_num() @ values

    return cross_attention


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


def doubled(model, prompt, stop, max_new):
    """Appends the best word after every position, not after the last alone."""
    ids = torch.tensor([prompt])
    for _ in range(max_new):
        words = model(ids)[0].argmax(-1)
        if words[-1] == stop:
            break
        ids = torch.cat([ids, words[None]], 1)
    return ids[0, len(prompt) :].tolist()


PLANTED = {
    "layer_norm": [
        ("eps and the variance are both off", norm(unbiased=True, place="outside")),
        ("divided by D - 1", norm(unbiased=True)),
        ("inside the root", norm(place="outside")),
        ("eps is missing", norm(place="none")),
        ("over the positions, axis 1", norm(dim=1)),
        ("as BatchNorm does", norm(dim=0)),
        ("of the whole tensor", norm(dim=(0, 1, 2))),
        ("positions and features together", norm(dim=(1, 2))),
        ("weight and bias are not applied", norm(gain=False, offset=False)),
        ("the bias is missing", norm(offset=False)),
        ("gain (weight) is missing", norm(gain=False)),
        ("mean is not subtracted", norm(centre=False)),
        ("divide by its root", norm(place="no root")),
        ("the squares are added up", lambda x, w, b, eps: (
            lambda c: w * c / ((c**2).sum(-1, keepdim=True) + eps).sqrt() + b)(x - x.mean(-1, keepdim=True))),
        ("the gain multiplies the bias too", lambda x, w, b, eps: w * (norm(gain=False)(x, w, b, eps))),
        ("wanted (2, 3, 5)", lambda x, weight, bias, eps: x.mean(-1)),
        ("wrong for D = 4 and eps = 0.1", lambda x, weight, bias, eps: norm()(x, weight, bias, 0.3)),
    ],
    "residuals_by_hand": [
        ("you divided the squares by D - 1", (1.155, 8.309, 12, 3.464)),
        ("post: norm(x) + f(norm(x))", (4.243, 8.828, 12, 1.414)),
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
        ("`real` is not used", block(see="all")),
        ("the wrong way round", lambda x, mask, p, H: torch.where(
            mask.all(1)[:, None, None], 0 * x, block(see="padding")(x, mask, p, H))),
        ("this is Pre-LN", block(form="pre")),
        ("only what a sublayer gives is normalised", block(form="norm first")),
        ("split in the wrong order", block(split=False)),
        ("output projection is missing", block(project=False)),
        ("another activation", block(activation=F.gelu)),
        ("the residuals are missing", block(form="none")),
        ("the second residual is missing", block(form="first")),
        ("nothing is normalised", block(form="bare")),
        ("divided by sqrt(D)", block(width="D")),
        ("not scaled", block(width="1")),
        ("merged in the wrong order", block(merge=False)),
        ("no relu", block(activation=lambda hidden: hidden)),
        ("feed-forward is missing", block(second=False)),
        ("order of the projections", block(order=(1, 0, 2))),
        ("softmax runs over the queries", block(dim=-2)),
        ("the two norms have changed places", block(norms=(2, 1))),
        ("the result holds nan", queries_hidden),
        ("right for 2 heads", lambda x, mask, p, H: block()(x, mask, p, 2)),
        ("in front or between", lambda x, mask, p, H: block()(
            x, torch.arange(mask.shape[1]) < mask.sum(1, keepdim=True), p, H)),
        ("row 0, without padding, is right", lambda x, mask, p, H: block(see="all")(x * mask[..., None], mask, p, H)),
    ],
    "pre_ln_block": [
        ("the bug is still there", lambda x, a, f, n, m: (lambda y: y + f(m(y)))(n(x) + a(n(x)))),
        ("in the second the residual carries", half_fixed),
        ("both residuals carry", both_replaced),
        ("this is Post-LN", lambda x, a, f, n, m: (lambda y: m(y + f(y)))(n(x + a(x)))),
        ("no norm is left", lambda x, a, f, n, m: (lambda y: y + f(y))(x + a(x))),
        ("the feed-forward reads norm2(x)", lambda x, a, f, n, m: x + a(n(x)) + f(m(x))),
        ("what the attention added is lost", lambda x, a, f, n, m: x + f(m(x + a(n(x))))),
        ("the second residual is missing", lambda x, a, f, n, m: f(m(x + a(n(x))))),
        ("the first norm is missing", lambda x, a, f, n, m: (lambda y: y + f(m(y)))(x + a(x))),
        ("the second norm is missing", lambda x, a, f, n, m: (lambda y: y + f(y))(x + a(n(x)))),
        ("the other way round", lambda x, a, f, n, m: (lambda y: y + f(m(y)))(n(x) + a(x))),
        ("normalise what the sublayers give", lambda x, a, f, n, m: (lambda y: y + m(f(y)))(x + n(a(x)))),
        ("norm1 and norm2 have changed places", lambda x, a, f, n, m: (lambda y: y + f(n(y)))(x + a(m(x)))),
        ("norm1 is used twice", lambda x, a, f, n, m: (lambda y: y + f(n(y)))(x + a(n(x)))),
    ],
    "cross_attention": [
        ("the roles are exchanged", cross(q="memory", k="x", v="x", see="all")),
        ("this is self-attention", cross(k="x", v="x", see="all")),
        ("`real` is not used", cross(see="all")),
        ("the wrong way round", cross(see="padding")),
        ("a causal mask", cross(see="causal")),
        ("runs over the target positions", cross(dim=1)),
        ("not divided by sqrt(D)", cross(scale=False)),
        ("W_k and W_v are exchanged", cross(swap=(0, 2, 1))),
        ("W_q and W_k are exchanged", cross(swap=(1, 0, 2))),
        ("x @ W.T", cross(turn=False)),
        ("the memory itself", cross(project_v=False)),
        ("right for D = 5, wrong for D = 3", cross(width=5)),
    ],
    "continue_greedily": [
        ("the prompt is among your words", write(prompt_too=True)),
        ("the stop token (3) is among them", write(keep_stop=True)),
        ("goes on after the stop token", write(stop_at=False)),
        ("a round too early", write(rounds=-1)),
        ("the first position", write(last=0)),
        ("only the newest token", write(whole=False)),
        ("least likely", write(sign=-1)),
        ("the same word every time", write(append=False)),
        ("append one word in each round", doubled),
        ("right for eos_id = 3, wrong for", lambda model, prompt, stop, limit: write()(model, prompt, 3, limit)),
        ("list of the new tokens", lambda model, prompt, stop, max_new: "words"),
    ],
}  # fmt: skip

IDENTITY = {
    "layer_norm": lambda x, *rest: x,
    "residuals_by_hand": (6, 6, 6, 6),
    "encoder_block": lambda x, *rest: x,
    "pre_ln_block": lambda x, *rest: x,
    "cross_attention": lambda x, *rest: x,
    "continue_greedily": lambda model, prompt, *rest: prompt,
}
ZEROS = {
    "layer_norm": lambda x, *rest: 0 * x,
    "residuals_by_hand": (0, 0, 0, 0),
    "encoder_block": lambda x, *rest: 0 * x,
    "pre_ln_block": lambda x, *rest: 0 * x,
    "cross_attention": lambda x, *rest: 0 * x,
    "continue_greedily": lambda *rest: [0],
}


# --- the tests -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANTED)
def test_reference_passes(name):
    assert verdict(getattr(ch09, name), solution("09", VALUES.get(name, name))) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: torch's layers, a large negative score, tensors of ids."""

    def torch_norm(x, weight, bias, eps):
        return F.batch_norm(x.flatten(0, 1).T, None, None, training=True, eps=eps).T.view(x.shape) * weight + bias

    def torch_block(x, mask, p, num_heads):
        layer = nn.TransformerEncoderLayer(x.shape[-1], num_heads, len(p["bias1"]), 0.0, batch_first=True).double()
        names = ["self_attn.in_proj_weight", "self_attn.in_proj_bias", "self_attn.out_proj.weight"]
        names += ["self_attn.out_proj.bias", "linear1.weight", "linear1.bias", "linear2.weight", "linear2.bias"]
        names += ["norm1.weight", "norm1.bias", "norm2.weight", "norm2.bias"]
        layer.load_state_dict(dict(zip(names, p.values(), strict=True)))
        return layer(x, src_key_padding_mask=~mask)

    def sdpa(x, memory, memory_mask, W_q, W_k, W_v):
        inputs = x @ W_q.T, memory @ W_k.T, memory @ W_v.T
        return F.scaled_dot_product_attention(*inputs, attn_mask=memory_mask[:, None])

    writer = solution("09", "continue_greedily")
    assert verdict(ch09.layer_norm, torch_norm) == "passed: layer_norm"
    assert verdict(ch09.encoder_block, torch_block) == "passed: encoder_block"
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
