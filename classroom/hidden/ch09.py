"""Hidden tests of chapter 09: torch's own layers as references, padding cut out, and a writer that keeps its state."""

import torch
import torch.nn.functional as F
from torch import nn

from classroom.hidden import Hidden, on_paper
from course_lib.exercises import Wrong, expect_number

# --- 9.1 ------------------------------------------------------------------------


def draw_layer_norm(draw):
    B, T, D = draw.sizes(3)
    x = 2 + 3 * draw.normal(B, T, D)
    x[draw.randrange(B), draw.randrange(T)] = draw.choice((-2.0, 0.0, 3.0))  # a constant vector
    return x, draw.normal(D), draw.normal(D), draw.uniform(0.05, 0.5)


def right_layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, weight.shape, weight, bias, eps)


# --- 9.2 ------------------------------------------------------------------------


def right_residuals_by_hand():
    x = torch.tensor([6.0, 0, 0], dtype=torch.float64)
    norm = nn.LayerNorm(3, eps=0.0).double()
    forms = norm(x + 2 * x), x + 2 * norm(x), x + 0.5 * (2 * x), norm(x) + 2 * norm(x)
    return [form[0].item() for form in forms]


# --- 9.3 and 9.4 ----------------------------------------------------------------

NAMES = {  # of torch's layer, and what the exercise calls them
    "self_attn.in_proj_weight": "in_proj_weight", "self_attn.in_proj_bias": "in_proj_bias",
    "self_attn.out_proj.weight": "out_weight", "self_attn.out_proj.bias": "out_bias",
    "linear1.weight": "weight1", "linear1.bias": "bias1", "linear2.weight": "weight2", "linear2.bias": "bias2",
    "norm1.weight": "gain1", "norm1.bias": "offset1", "norm2.weight": "gain2", "norm2.bias": "offset2",
}  # fmt: skip


def _layer(D, H, width, norm_first, parameters=None):
    """torch's layer in float64, with these parameters."""
    layer = nn.TransformerEncoderLayer(D, H, width, 0.0, batch_first=True, norm_first=norm_first).double()
    if parameters is not None:
        layer.load_state_dict({name: parameters[ours] for name, ours in NAMES.items()})
    return layer.requires_grad_()


def _draw_parameters(draw, D, H, width):
    state = _layer(D, H, width, False).state_dict()
    return {
        ours: draw.normal(*state[name].shape) * 0.6 + (0.7 if "gain" in ours else 0) for name, ours in NAMES.items()
    }


def draw_encoder_block(draw):
    """Masks of any pattern: a row without padding, one with a single real token, others at random."""
    B, T, H, K, width = draw.sizes(5)
    mask = draw.share(B, T) < 0.6
    mask[:, draw.randrange(T)] = True
    mask[0], mask[1] = True, torch.arange(T) == draw.randrange(T)
    x = draw.normal(B, T, H * K) * torch.where(mask, 1.0, 4.0).unsqueeze(-1)  # padding that is easily noticed
    return x, mask, _draw_parameters(draw, H * K, H, width), H


def probe_encoder_block(answer, x, mask, p, num_heads):
    """The shape, and the vectors of the real tokens: what stands at padding does not matter."""
    got = answer(x, mask, p, num_heads)
    return list(got.shape), got[mask]


def right_encoder_block(x, mask, p, num_heads):
    layer = _layer(x.shape[-1], num_heads, len(p["bias1"]), False, p)
    rows = [layer(row[None, real]).squeeze(0) for row, real in zip(x, mask, strict=True)]  # padding cut out
    return list(x.shape), torch.cat(rows)


def draw_pre_ln_block(draw):
    B, T, H, K, width = draw.sizes(5)
    return 3 + 2 * draw.normal(B, T, H * K), _draw_parameters(draw, H * K, H, width), H


def probe_pre_ln_block(answer, x, p, num_heads):
    """The parts as functions."""
    import torch.nn.functional as F

    B, T, D = x.shape

    def attend(x):
        q, k, v = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
        q, k, v = (part.reshape(B, T, num_heads, -1).transpose(1, 2) for part in (q, k, v))
        heads = (q @ k.mT / (D // num_heads) ** 0.5).softmax(-1) @ v
        return F.linear(heads.transpose(1, 2).reshape(B, T, D), p["out_weight"], p["out_bias"])

    def feed_forward(x):
        return F.linear(F.linear(x, p["weight1"], p["bias1"]).relu(), p["weight2"], p["bias2"])

    def norm1(x):
        return F.layer_norm(x, (D,), p["gain1"], p["offset1"])

    def norm2(x):
        return F.layer_norm(x, (D,), p["gain2"], p["offset2"])

    return answer(x, attend, feed_forward, norm1, norm2)


def right_pre_ln_block(x, p, num_heads):
    return _layer(x.shape[-1], num_heads, len(p["bias1"]), True, p)(x)


# --- 9.5 ------------------------------------------------------------------------


def draw_cross_attention(draw):
    B, T, S, D = draw.sizes(4)
    mask = draw.share(B, S) < 0.6
    mask[:, draw.randrange(S)] = True
    mask[0], mask[1] = True, torch.arange(S) == draw.randrange(S)
    return draw.normal(B, T, D), draw.normal(B, S, D), mask, *(draw.normal(D, D) for _ in range(3))


def right_cross_attention(x, memory, memory_mask, W_q, W_k, W_v):
    """torch's layer with one head, sentence by sentence, padding cut out."""
    D = x.shape[-1]
    layer = nn.MultiheadAttention(D, 1, bias=False, batch_first=True).double()
    layer.in_proj_weight.data, layer.out_proj.weight.data = torch.cat([W_q, W_k, W_v]), torch.eye(D).double()
    rows = [(row[None], words[None, real]) for row, words, real in zip(x, memory, memory_mask, strict=True)]
    return torch.cat([layer(asks, told, told)[0] for asks, told in rows])


# --- 9.6 ------------------------------------------------------------------------


def draw_continue_greedily(draw):
    """Prompts of which one is stopped at once, one after some words, and one by the limit."""
    while True:
        V = draw.randint(6, 11)
        table, stop, max_new = draw.normal(97, V), draw.randrange(V), draw.randint(3, 7)
        prompts = [draw.choices([w for w in range(V) if w != stop], k=draw.randint(1, 5)) for _ in range(6)]
        lengths = {len(words) for words in right_continue_greedily(table, prompts, stop, max_new)}
        if {0, max_new} <= lengths and len(lengths) > 2:
            return table, prompts, stop, max_new


def probe_continue_greedily(answer, table, prompts, stop, max_new):
    """A causal model whose logits depend on all tokens so far, in their order."""
    import torch

    calls = []

    def model(ids):
        calls.append(ids)
        if len(calls) > 100 or ids.shape[0] != 1 or not 0 < ids.shape[1] <= 50:
            raise ValueError(f"the model was called with ids of shape {tuple(ids.shape)}, for the {len(calls)}th time")
        state, rows = 0, []
        for token in ids[0].tolist():
            state = (31 * state + 7 * token + 5) % len(table)
            rows.append(table[state])
        return torch.stack(rows)[None]

    return [answer(model, list(prompt), stop, max_new) for prompt in prompts]


def right_continue_greedily(table, prompts, stop, max_new):
    """Word by word with a state that is carried along."""
    best, found = table.argmax(1).tolist(), []
    for prompt in prompts:
        state, words = 0, []
        for token in prompt:
            state = (31 * state + 7 * token + 5) % len(table)
        while len(words) < max_new and best[state] != stop:
            words.append(best[state])
            state = (31 * state + 7 * words[-1] + 5) % len(table)
        found.append(words)
    return found


def judge_continue_greedily(got, wanted):
    if not isinstance(got, list) or len(got) != len(wanted):
        raise Wrong("wanted the new tokens of each prompt")
    for words, right in zip(got, wanted, strict=True):
        words = words.tolist() if isinstance(words, torch.Tensor) else words
        if not isinstance(words, list):
            raise Wrong(f"wanted a list of the new tokens, got a {type(words).__name__}")
        if [expect_number(word, "a token") for word in words] != right:
            raise Wrong(f"the words are {words}, wanted {right}")


TESTS = [
    Hidden(
        "ex09-1-layer-norm-check", "layer_norm", draw_layer_norm, right_layer_norm,
        without=(
            "LayerNorm", "layer_norm", "native_layer_norm", "GroupNorm", "group_norm", "native_group_norm", "RMSNorm",
            "rms_norm", "InstanceNorm1d", "instance_norm", "BatchNorm1d", "batch_norm", "native_batch_norm",
        ),
    ),
    on_paper("ex09-2-residuals-by-hand-check", "first_entries", right_residuals_by_hand),
    Hidden(
        "ex09-3-encoder-block-check", "encoder_block", draw_encoder_block, right_encoder_block, probe_encoder_block,
        without=(
            "EncoderLayer", "TransformerEncoder", "TransformerEncoderLayer", "MultiheadAttention", "MultiHeadAttention",
            "multi_head_attention_forward", "_native_multi_head_attention", "_transformer_encoder_layer_fwd", "Linear",
            "LayerNorm",
        ),
    ),
    Hidden(
        "ex09-4-pre-ln-block-check", "pre_ln_block", draw_pre_ln_block, right_pre_ln_block, probe_pre_ln_block,
    ),
    Hidden("ex09-5-cross-attention-check", "cross_attention", draw_cross_attention, right_cross_attention),
    Hidden(
        "ex09-6-continue-greedily-check", "continue_greedily", draw_continue_greedily, right_continue_greedily,
        probe_continue_greedily, judge=judge_continue_greedily,
    ),
]  # fmt: skip
