"""GPT-2's block and the parts that newer models put in their place, one at a time, on tiny Shakespeare (chapter 14).

The texts and the learner are those of `course_lib.experiments.shakespeare_gpt`. Every row has as many parameters as
GPT-2's block within 1 %, by the width F of its feed-forward network, but for one that says so.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import merge_heads, split_heads
from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import in_turn, our_learner, shakespeare
from course_lib.gpt import GPT, GPTConfig
from course_lib.llama import GroupedQueryAttention, Llama, LlamaConfig
from course_lib.positional import RoPE
from course_lib.transformer import init_weights
from course_lib.utils import number_of_parameters

ROWS = ("GPT-2", "RMSNorm", "SwiGLU", "RoPE", "grouped queries", "grouped queries, same F", "Llama")
RATES = {row: 2e-3 if row == "SwiGLU" else 4e-3 for row in ROWS}  # the best of `modern-parts-rates`


class GroupedQueries(GroupedQueryAttention):
    """The attention of a Llama as GPT-2 would have it: with biases, and without rotations."""

    def __init__(self, d_model, num_heads, num_kv_heads):
        super().__init__(d_model, num_heads, num_kv_heads, d_model // num_heads)
        for name, layer in list(self.named_children()):
            setattr(self, name, nn.Linear(layer.in_features, layer.out_features))

    def forward(self, x, causal=True, cache=None):
        """(B, T, D) to (B, T, D), called as `course_lib.gpt.Block` calls its attention; trained without a cache."""
        if not causal or cache is not None:
            raise ValueError("this attention is causal and keeps no cache")
        q = split_heads(self.q_proj(x), self.num_heads)  # (B, H, T, K)
        k = split_heads(self.k_proj(x), self.num_kv_heads)  # (B, H_kv, T, K)
        v = split_heads(self.v_proj(x), self.num_kv_heads)
        return self.o_proj(merge_heads(F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)))


def make_model(row, vocab_size, block, width, layers, heads, kv_heads, dim_feedforward):
    """An untrained model for a row; all start from N(0, 0.02^2), and smaller where they write into the stream."""
    if row == "Llama":
        return Llama(LlamaConfig(vocab_size, block, width, layers, heads, kv_heads, dim_feedforward, tied=True))
    options = {"RMSNorm": {"norm": "rmsnorm"}, "SwiGLU": {"activation": "swiglu"}}.get(row, {})
    config = GPTConfig(vocab_size, block, width, layers, heads, dim_feedforward, dropout=0.0, **options)
    model = GPT(config, RoPE(width // heads) if row == "RoPE" else None)
    if row.startswith("grouped queries"):
        for part in model.blocks:
            part.attn = init_weights(GroupedQueries(width, heads, kv_heads))
            with torch.no_grad():
                part.attn.o_proj.weight /= (2 * layers) ** 0.5
    return model


def fitted_width(row, wanted, **sizes):
    """The F with which a row's model has nearest to the wanted number of parameters, which is linear in F."""
    one, two = (number_of_parameters(make_model(row, **sizes, dim_feedforward=width)) for width in (1, 2))
    return max(1, round(1 + (wanted - one) / (two - one)))


def make_rows(rows, seed, **sizes):
    """The untrained models of some rows, by name, each from the same seed."""
    torch.manual_seed(seed)
    wanted = number_of_parameters(make_model("GPT-2", **sizes, dim_feedforward=4 * sizes["width"]))
    models = {}
    for row in rows:
        same = row in ("GPT-2", "RMSNorm", "grouped queries, same F")  # a norm without bias has 0.1 % fewer
        hidden = 4 * sizes["width"] if same else fitted_width(row, wanted, **sizes)
        torch.manual_seed(seed)
        models[row] = make_model(row, **sizes, dim_feedforward=hidden)
    return models


def sizes_of(row, model, heads, kv_heads, layers, width, context):
    """What a row's record says before training; the cache is that of one text of so many tokens, in float32."""
    kept = kv_heads if row == "Llama" or row.startswith("grouped") else heads
    last = model.blocks[0].mlp.down_proj if row == "Llama" else model.blocks[0].mlp[-1]
    return {
        "parameters": number_of_parameters(model),
        "dim_feedforward": last.in_features,
        "cache_bytes": 2 * layers * kept * (width // heads) * context * 4,
    }


@experiment("modern-parts", "GPT-2's block on tiny Shakespeare, with one part exchanged at a time, and with all.")
def modern_parts(
    seed,
    rows=ROWS,
    layers=4,
    heads=4,
    kv_heads=2,
    width=96,
    block=64,
    batch_size=12,
    steps=500,
    warmup=50,
    rates=RATES,
    chunk=50,
    context=1024,
):
    """All rows read the same windows, `chunk` steps each in turn.

    "valid_loss" is over the whole validation text; "seconds_per_step" are those of the processor, for a training step;
    "cache_bytes" what a text of `context` tokens would need. The peak learning rates are the best of
    `modern-parts-rates`, which does not read the validation text.
    """
    train, valid, chars = shakespeare()
    sizes = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "width": width}
    models = make_rows(rows, seed, vocab_size=len(chars), block=block, **sizes)
    learners = {row: our_learner(model, steps, rates[row], seed, warmup=warmup) for row, model in models.items()}
    history = in_turn(learners, train, valid, block, batch_size, steps, chunk)
    results = {}
    for row, learner in learners.items():
        results[row] = sizes_of(row, learner.model, heads, kv_heads, layers, width, context) | {
            "learning_rate": rates[row],
            "steps": steps,
            "train_loss": history[row][-1]["train_loss"],
            "valid_loss": learner.whole(valid, block),
            "seconds": sum(learner.seconds),
            "seconds_per_step": sum(learner.seconds) / steps,
        }
    return {"results": results, "history": history}


@experiment("modern-parts-rates", "The models of modern-parts at several peak learning rates, on other text.")
def modern_parts_rates(
    seed,
    rates=(1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2),
    rows=ROWS,
    layers=4,
    heads=4,
    kv_heads=2,
    width=96,
    block=64,
    batch_size=12,
    steps=150,
    warmup=15,
):
    """Fewer steps, and scored on random windows of the end of the training text, which is cut off for that."""
    train, valid, chars = shakespeare(choose=True)
    sizes = {"layers": layers, "heads": heads, "kv_heads": kv_heads, "width": width}
    results = {}
    for rate in rates:
        for row, model in make_rows(rows, seed, vocab_size=len(chars), block=block, **sizes).items():
            learner = our_learner(model, steps, rate, seed, warmup=warmup)
            train_loss = learner.advance(train, block, batch_size, steps)
            found = {"train_loss": train_loss, "valid_estimate": learner.estimate(valid, block, 64, 10)}
            results[f"{row} {rate:g}"] = {"learning_rate": rate, **found}
    return {"results": results}
