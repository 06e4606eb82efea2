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


# --- 9.3 ------------------------------------------------------------------------

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


# --- 9.4 ------------------------------------------------------------------------


def draw_cross_attention(draw):
    """Target and source of different lengths, or, now and then, of one."""
    B, T, S, D = draw.sizes(4)
    T = draw.choice((T, T, S))
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


# --- 9.5 ------------------------------------------------------------------------


def draw_continue_greedily(draw):
    """Prompts of which one is stopped at once, one after some words, one by the limit; one holds the stop token."""
    while True:
        V = draw.randint(6, 11)
        table, stop, max_new = draw.normal(97, V), draw.randrange(V), draw.randint(3, 7)
        prompts = [draw.choices([w for w in range(V) if w != stop], k=draw.randint(1, 5)) for _ in range(6)]
        prompts[0] = [stop, *prompts[0]]
        lengths = [len(words) for words in right_continue_greedily(table, prompts, stop, max_new)]
        if {0, max_new} <= set(lengths) and len(set(lengths)) > 2 and lengths[0]:
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


# --- 9.7 ------------------------------------------------------------------------

CROSS = {
    name.replace("self_attn", "multihead_attn"): f"cross_{ours}" for name, ours in NAMES.items() if "self_attn" in name
}
DECODER = NAMES | CROSS | {"norm3.weight": "gain3", "norm3.bias": "offset3"}


def _stack(kind, layers, H, names):
    """torch's layers in float64 with these parameters."""
    stack = []
    for p in layers:
        layer = kind(len(p["bias2"]), H, len(p["bias1"]), 0.0, batch_first=True).double()
        layer.load_state_dict({name: p[ours] for name, ours in names.items()})
        stack.append(layer)
    return stack


def draw_own_transformer(draw):
    """Other sizes, numbers of heads and layers; a source without padding, one of a single word; all end with eos."""
    H, K, width, N, V, V_source = draw.sizes(6, low=1, high=9)
    D, N = H * K * 2, min(N, 3)  # an even width: sine and cosine
    H, V, V_source = 2 * H, V + 5, V_source + 5

    def spread(shape):  # matrices that do not blow up a table of positions in float32
        return 0.5 if len(shape) == 1 else 1.5 / shape[-1] ** 0.5

    weights = {"source_table": draw.normal(V_source, D) / D**0.5, "target_table": draw.normal(V, D) / D**0.5}
    for name, kind, names in (
        ("encoder", nn.TransformerEncoderLayer, NAMES), ("decoder", nn.TransformerDecoderLayer, DECODER),
    ):  # fmt: skip
        state = kind(D, H, width, batch_first=True).state_dict()
        weights[name] = [
            {
                ours: spread(state[theirs].shape) * draw.normal(*state[theirs].shape) + ("gain" in ours)
                for theirs, ours in names.items()
            }
            for _ in range(N)
        ]
    S, T = draw.sizes(2, low=3, high=6)
    lengths, ends = [S, 2, draw.randint(2, S)], [draw.randint(2, T), T, draw.randint(1, T)]
    source, target = draw.ids(V_source, 3, S), draw.ids(V - 1, 3, T + 1)
    for row, end in enumerate(ends):
        target[row, end + 1 :] = V - 1  # the id of the padding
        source[row, lengths[row] - 1] = 1  # eos
    real = torch.arange(S) < torch.tensor(lengths)[:, None]
    return weights, H, source, real, target, V - 1, draw.randint(3, 6)


def probe_own_transformer(answer, weights, num_heads, source, real, target, pad, max_new):
    """Memory at real tokens, logits, the losses and tables of two updates, and a translation of each row."""
    import torch

    model = answer(weights, num_heads)
    with torch.no_grad():
        memory = model.encode(source, real)
        logits = model.decode(target[:, :-1], memory, real)
        rows = [row[told].tolist() for row, told in zip(source, real)]  # noqa: B905
        words = [[int(word) for word in model.translate(row, 0, 1, max_new)] for row in rows]
    tensors = [weights["source_table"], weights["target_table"]]
    tensors += [tensor for layer in [*weights["encoder"], *weights["decoder"]] for tensor in layer.values()]
    for tensor in tensors:
        tensor.requires_grad_()
    optimizer = torch.optim.SGD(tensors, 0.003)
    learned = answer(weights, num_heads)
    losses = [float(learned.learn(optimizer, source, real, target[:, :-1], target[:, 1:], pad)) for _ in range(2)]
    return memory[real], logits, words, losses, weights["target_table"].detach().clone()


def right_own_transformer(weights, num_heads, source, real, target, pad, max_new):
    """torch's layers, sentence by sentence, padding cut out."""
    encoder = _stack(nn.TransformerEncoderLayer, weights["encoder"], num_heads, NAMES)
    decoder = _stack(nn.TransformerDecoderLayer, weights["decoder"], num_heads, DECODER)
    tables = [nn.Parameter(weights[name].clone()) for name in ("source_table", "target_table")]
    D = tables[0].shape[1]

    def embed(table, ids):
        t, d = torch.arange(len(ids)).double()[:, None], torch.arange(0, D, 2).double()
        angle = t / 10000 ** (d / D)
        return (table[ids] * D**0.5 + torch.stack([angle.sin(), angle.cos()], -1).flatten(1))[None]

    def read(ids):
        x = embed(tables[0], ids)
        for layer in encoder:
            x = layer(x)
        return x

    def say(ids, memory):
        y = embed(tables[1], ids)
        for layer in decoder:
            y = layer(y, memory, tgt_mask=torch.ones(len(ids), len(ids)).triu(1).bool())
        return y[0] @ tables[1].T

    def whole():
        memories = [read(row[told]) for row, told in zip(source, real, strict=True)]
        logits = [say(row[:-1], memory) for row, memory in zip(target, memories, strict=True)]
        return memories, torch.stack(logits)

    with torch.no_grad():
        memories, logits = whole()
        words = []
        for memory in memories:
            ids = [0]
            for _ in range(max_new):
                ids.append(int(say(torch.tensor(ids), memory)[-1].argmax()))
                if ids[-1] == 1:
                    ids.pop()
                    break
            words.append(ids[1:])
    optimizer = torch.optim.SGD([*tables, *(p for layer in [*encoder, *decoder] for p in layer.parameters())], 0.003)
    losses = []
    for _ in range(2):
        wanted = target[:, 1:]
        log_p = whole()[1].log_softmax(-1)[wanted != pad]
        loss = -log_p[torch.arange(len(log_p)), wanted[wanted != pad]].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.cat([memory[0] for memory in memories]), logits, words, losses, tables[1].detach()


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
            "LayerNorm", "scaled_dot_product_attention", "_scaled_dot_product_attention_math", "EncoderBlock",
            "Attention",
        ),
    ),
    Hidden("ex09-4-cross-attention-check", "cross_attention", draw_cross_attention, right_cross_attention),
    Hidden(
        "ex09-5-continue-greedily-check", "continue_greedily", draw_continue_greedily, right_continue_greedily,
        probe_continue_greedily, judge=judge_continue_greedily,
    ),
    Hidden(
        "ex09-7-own-transformer-check", "OwnTransformer", draw_own_transformer, right_own_transformer,
        probe_own_transformer,
        without=(
            "EncoderLayer", "DecoderLayer", "TransformerEncoder", "TransformerDecoder", "TransformerEncoderLayer",
            "TransformerDecoderLayer", "MultiheadAttention", "MultiHeadAttention", "multi_head_attention_forward",
            "Translator", "PlainTransformer", "Attention", "EncoderBlock", "DecoderBlock", "Linear", "LayerNorm",
            "Embedding",
        ),
    ),
]  # fmt: skip
