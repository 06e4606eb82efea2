# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 330
#     needs: "chapters 07 (attention), 08 (position) and 13 (GPT)"
# ---

# %% [markdown]
# # 14 · From GPT-2 to the models of today
#
# Llama 2 7B is a GPT with 6.7 billion parameters, 2 bytes each. You put it on a graphics card with 24 gigabytes ($10^9$ bytes each), and let it chat. Every chat of 4,096 tokens keeps its keys and values: for each token, in each of 32 blocks, 4,096 numbers for the key and 4,096 for the value, again 2 bytes each. **How many such chats fit on the card beside the model?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("gpt_and_llama_block")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import math
import tempfile
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import fill

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib import datasets
from course_lib.attention import KVCache, MultiHeadAttention, attention
from course_lib.cost import measure
from course_lib.datasets import DataError
from course_lib.exercises import ch14
from course_lib.experiments import kv_cache, linear_recurrences, smollm
from course_lib.generate import generate
from course_lib.linear_attention import (
    linear_attention,
    linear_attention_chunked,
    linear_attention_step,
    linear_loop,
    linear_scan,
)
from course_lib.llama import (
    GroupedQueryAttention,
    Llama,
    LlamaBlock,
    LlamaConfig,
    RMSNorm,
    SwiGLU,
    rotate,
    rotations,
)
from course_lib.lora import (
    LoRALinear,
    LowRankUpdate,
    add_lora,
    merge_lora,
)
from course_lib.notebook import (
    claim,
    diagrams,
    ledger,
    markdown,
    predict,
    run_size,
    show_source,
    table,
)
from course_lib.notebook.figures import ch14 as figures
from course_lib.optim import cosine_schedule
from course_lib.positional import RoPE
from course_lib.quantization import (
    Int8Linear,
    dequantize,
    quantize_model,
    quantize_rows,
    size_in_bytes,
    to_int8,
)
from course_lib.text import random_windows
from course_lib.train import set_seed
from course_lib.utils import huggingface, llama_checkpoint, number_of_parameters

torch.set_printoptions(precision=2, sci_mode=False)
set_seed(0)

# %%
guess_1 = predict("the chats of 4,096 tokens that fit", ...)

# %% tags=["fold", "reveal"]
# @title Gigabytes: the model, a chat, what is left
def gigabytes(key_heads, bits):
    """Llama 2 7B, its blocks in so many bits a number and both tables in 16; keys and values of one chat, in 16 bits."""
    D, hidden, V, blocks, tokens = 4096, 11008, 32000, 32, 4096
    width = 128 * key_heads  # of the keys of one token in one block; its values are as many
    matrices = blocks * (2 * D * D + 2 * D * width + 3 * D * hidden)
    return (matrices * bits / 8 + 2 * V * D * 2) / 1e9, 2 * blocks * tokens * width * 2 / 1e9


def chats(key_heads, bits):
    """Whole chats in what a card of 24 gigabytes has left beside the model."""
    model, chat = gigabytes(key_heads, bits)
    return int((24 - model) / chat)


fit = {
    "as it is": chats(32, 16),
    "8 heads of keys and values, not 32": chats(8, 16),
    "blocks in 8 bits": chats(32, 8),
    "both": chats(8, 8),
}
guess_1.compare(f"{fit['as it is']} chats")
table(["", "chats of 4,096 tokens"], [[name, count] for name, count in fit.items()])
claim(
    "The weights take 13.5 gigabytes and each chat 2.1; with 8 heads of keys and values and the blocks in 8 bits the same card holds more than eight times as many chats.",
    [round(size, 1) for size in gigabytes(32, 16)] == [13.5, 2.1] and fit["both"] > 8 * fit["as it is"],
)
claim(
    "With 8 heads of keys and values the model itself is 1.6 gigabytes smaller.",
    round(gigabytes(32, 16)[0] - gigabytes(8, 16)[0], 1) == 1.6,
)

# %% [markdown]
# Four chats, counting only the bytes of weights and caches. If the model had been trained with 8 heads of keys and values in place of 32, and its blocks were stored in 8 bits, 33 would fit. (The tables stay in 16 bits.) That is how the years since GPT-2 went: chapter 13's network stayed, and its parts were exchanged one by one.
#
# You go the same way. **First sitting** (sections 1 to 5, exercises 14.1 to 14.3, about 2 hours 20 minutes): GPT-2's block, one part exchanged at a time, until it is a Llama. It trains, and a published one, SmolLM2, loads into it and writes. **Second sitting** (sections 6 to 12, exercises 14.4 to 14.8, about 3 hours 15 minutes): what else is done to such a model.
#
# ### You will be able to
#
# 1. write the parts in which a Llama differs from GPT-2 (exercises 14.1 and 14.2), and assemble its block (14.3);
# 2. read a published checkpoint's sizes and layout, and test whether a loaded model is right;
# 3. adapt a trained model by training 1 % of the numbers (14.4), and store one in 8 bits (14.5, 14.6);
# 4. say which loops can be trained in parallel, and what a state of fixed size forgets (14.7);
# 5. say where a chat model begins, and run an ablation of your own (14.8).
#
# **Letters.** As in chapter 13; also, `F` is the width of the feed-forward network (`F.` with a dot is torch's `functional`), and $G$ the number of heads of keys and values (`num_kv_heads` in code). Vectors are rows, in formulas as in code: a weight $W$ has the shape (outputs, inputs), and its layer computes $x W^\top$.

# %% [markdown]
# ## The block to start from
#
# The first sitting as a diff, with a minus for GPT-2 and a plus for Llama:
#
# ```diff
#   def forward(self, ids):
# -     x = self.embedding(ids) + self.positions(places)      # a vector for each place
# +     x, rotation = self.embedding(ids), rotations(places)  # section 3
#       for block in self.blocks:
# -         x = x + block.attn(block.norm1(x))                # H heads of keys and values
# +         x = x + block.attn(block.norm1(x), rotation)      # G of them: section 4
#           x = x + block.mlp(block.norm2(x))
#       return self.head(self.norm(x))
#
# - norm: LayerNorm     mlp: GELU between two layers     a block's layers have biases
# + norm: RMSNorm (1)   mlp: SwiGLU, with a gate (2)     none has any
# ```
#
# The two residual branches stay. So write GPT-2's block with its parts handed in from outside: to exchange one, you change one argument.

# %%
D = 24  # the width of this small block; 6 heads of width 4


class Block(nn.Module):
    def __init__(self, norm, attn, mlp):
        super().__init__()
        self.norm1, self.attn = norm(D), attn
        self.norm2, self.mlp = norm(D), mlp

    def forward(self, x, **how):
        x = x + self.attn(self.norm1(x), **how)
        return x + self.mlp(self.norm2(x))


def gpt_mlp():
    return nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))


# %% [markdown]
# After each exchange it is run. How many parameters does it have, is the shape right, and does it look ahead: does an earlier token come out differently when the last one changes?


# %%
def try_out(block, **how):
    x = torch.randn(2, 5, D)  # (B, T, D)
    other = torch.cat([x[:, :-1], x[:, -1:] + 1], dim=1)  # another last token
    y, y_other = block(x, **how), block(other, **how)
    looks_ahead = not torch.allclose(y[:, :-1], y_other[:, :-1], atol=1e-6)
    print(f"{number_of_parameters(block):,} parameters, output {tuple(y.shape)}")
    print("looks ahead:", looks_ahead)


gpt = Block(norm=nn.LayerNorm, attn=MultiHeadAttention(D, num_heads=6), mlp=gpt_mlp())
try_out(gpt, causal=True)

# %% [markdown]
# ## 1 · A norm that leaves the mean alone
#
# Deep networks benefit from a volume control. Each block adds to the residual stream, so the vectors grow. LayerNorm (chapter 09) does two things to a vector: it subtracts the mean, then it divides by the spread. Zhang and Sennrich (2019): dividing is enough.
#
# Take $x = (2, 4, 4, 8)$. Its squares are 4, 16, 16 and 64, their mean is 25, the root of it is 5. This is the **root mean square**, and $x / 5 = (0.4, 0.8, 0.8, 1.6)$. For a vector of `D` numbers, with a small $\epsilon$ against division by zero and one learned weight for each entry, which starts at 1:
#
# $$ \mathrm{RMSNorm}(x) = w \odot \frac{x}{\sqrt{\frac1D \sum_i x_i^2 + \epsilon}} . $$

# %%
x = torch.tensor([2.0, 4.0, 4.0, 8.0])
print("LayerNorm: ", F.layer_norm(x, (4,)))
print("RMSNorm:   ", F.rms_norm(x, (4,)))
print("ten times x", F.rms_norm(10 * x, (4,)))
print("x + 100:   ", F.rms_norm(x + 100, (4,)))

# %% [markdown]
# A vector ten times as long comes out the same: the volume is controlled. A shifted one does not, where LayerNorm would not have noticed the 100. A shift common to all entries seems to matter little, and a mean, a subtraction and a bias are saved, twice a block.

# %% tags=["fold"]
# @title Checked: LayerNorm, RMSNorm and the mean
many = torch.randn(3, 5, 7, dtype=torch.float64) + 2
claim(
    "On random vectors, LayerNorm without weight and bias equals RMSNorm after the mean is subtracted, and differs from RMSNorm of the vector itself.",
    torch.allclose(F.layer_norm(many, (7,), eps=1e-5), F.rms_norm(many - many.mean(-1, keepdim=True), (7,), eps=1e-5))
    and (F.layer_norm(many, (7,)) - F.rms_norm(many, (7,))).abs().max() > 0.1,
)

# %% [markdown]
# **Exchange 1** changes one argument:

# %%
attn = MultiHeadAttention(D, num_heads=6)
step_1 = Block(norm=nn.RMSNorm, attn=attn, mlp=gpt_mlp())  # was nn.LayerNorm
try_out(step_1, causal=True)

# %% [markdown]
# 48 numbers fewer, the biases of two norms. The second exchange is in the feed-forward network, where most of the parameters are.

# %% [markdown]
# ## 2 · A gate in the feed-forward network
#
# GPT's feed-forward network makes `F` = 4 `D` hidden numbers, and an activation acts on each separately: negative ones are nearly cut to zero. With a **gate** one number says *what* is passed on, another *how much* of it, as in the LSTM (chapter 05).
#
# Shazeer (2020) put it into the feed-forward network. Two linear layers read the same $x$. One, the gate, passes through $\mathrm{silu}(z) = z\,\sigma(z)$ (*swish*). Then they are multiplied, entry by entry:
#
# $$ \mathrm{SwiGLU}(x) = \left( \mathrm{silu}(x W_g^\top) \odot x W_u^\top \right) W_d^\top, \qquad W_g, W_u: (F, D), \quad W_d: (D, F) . $$
#
# Unlike the LSTM's, this gate is not held between 0 and 1:

# %%
figures.silu_and_gelu()

# %% [markdown]
# One hidden number, with five values of its gate and the same content, 3:

# %%
gate = torch.tensor([-4.0, -1.28, 0.0, 1.0, 4.0])
content = torch.tensor(3.0)
print("silu(gate)", F.silu(gate))
print("passed on ", F.silu(gate) * content)

# %% [markdown]
# Nearly closed at −4, wide open at 4. New is that numbers made by two separate linear functions of $x$ are *multiplied*. GPT does that only in attention: queries times keys, then weights times values.
#
# **A fair comparison counts parameters.** GPT-2's network has two matrices, $2 \cdot D \cdot 4D = 8D^2$ weights. SwiGLU has three. They are equally large if $3 D F = 8 D^2$, so $F = \frac83 D$. For `D` = 768 that is 2,048 in place of 3,072; Llama 2 7B has `D` = 4,096 and takes $F = 11{,}008$ (10,923, rounded up).

# %% [markdown]
# ### Exercise 14.1 · Implement: two small parts
#
# Difficulty ●●○○○ · 20 minutes · needs sections 1 and 2
#
# The norm and the feed-forward network of a Llama, as functions of tensors, without the ready-made ones of torch or of the library (`F.silu` is allowed). Weights are kept as in `nn.Linear`, (outputs, inputs), and used as `x @ W.T`. Half precision is the norm's trap: the square of 400 is more than the largest number of `float16`, so go to `float32` or wider before you square. The result may stay there, or return to `x`'s type.


# %% nbgrader={"grade": false, "grade_id": "ex14-1-rms-norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rms_norm(x, weight, eps):
    """Each vector divided by its root mean square, then multiplied by the weight entry by entry.

    Args:
        x: (..., D) float of any precision; the computation is done in float32 or wider.
        weight: (D,).
        eps: float, added to the mean of the squares, under the root.

    Returns:
        (..., D) float.
    """
    ### BEGIN SOLUTION
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    power = (x * x).mean(dim=-1, keepdim=True)  # (..., 1), the mean of the squares
    return weight * x / (power + eps).sqrt()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-1-rms-norm-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch14.rms_norm(rms_norm)


# %% nbgrader={"grade": false, "grade_id": "ex14-1-swiglu", "locked": false, "schema_version": 3, "solution": true, "task": false}
def swiglu(x, gate, up, down):
    """A feed-forward network whose hidden layer is the product of two, one of them through silu(z) = z * sigmoid(z).

    Args:
        x: (..., D).
        gate: (F, D), its product goes through silu.
        up: (F, D).
        down: (D, F).

    Returns:
        (..., D).
    """
    ### BEGIN SOLUTION
    gated = F.silu(x @ gate.T)  # (..., F)
    return (gated * (x @ up.T)) @ down.T
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-1-swiglu-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch14.swiglu(swiglu)

# %% [markdown]
# The library's versions:

# %%
show_source(RMSNorm.forward, SwiGLU.forward)

# %% tags=["fold"]
# @title Checked: torch's RMSNorm, and equal sizes
ours, torchs = RMSNorm(d_model=7, eps=1e-5).double(), nn.RMSNorm(7, eps=1e-5).double()
plain_network = nn.Sequential(nn.Linear(768, 4 * 768, bias=False), nn.GELU(), nn.Linear(4 * 768, 768, bias=False))
claim(
    "The library's RMSNorm and torch's give the same numbers; with F = 8 D / 3 a SwiGLU has exactly as many weights as GPT-2's network without biases.",
    torch.allclose(ours(many), torchs(many))
    and number_of_parameters(SwiGLU(d_model=768, dim_feedforward=8 * 768 // 3)) == number_of_parameters(plain_network),
    parameters=number_of_parameters(plain_network),
)

# %% [markdown]
# **Exchange 2**, with $F = \frac83 D$:

# %%
attn = MultiHeadAttention(D, num_heads=6)
mlp = SwiGLU(d_model=D, dim_feedforward=8 * D // 3)  # was gpt_mlp()
step_2 = Block(norm=RMSNorm, attn=attn, mlp=mlp)
try_out(step_2, causal=True)

# %% [markdown]
# As many weights; 120 biases are gone. The other two exchanges are in attention: where a token stands, and what is kept of it.

# %% [markdown]
# ## 3 · Positions that turn
#
# GPT-2 adds a learned vector for each of its 1,024 positions, and there is no vector for the 1,025th. RoPE (chapter 08, section 6) adds nothing: it turns each pair of entries of a query or key like the hand of a clock, by an angle that grows with the position. When a query turned by $i\,\omega$ meets a key turned by $j\,\omega$, their product depends on $i - j$ alone: on how far apart they are.
#
# A pair $(a, b)$ is a complex number, and to turn it by $\theta$ is to multiply it by $e^{\mathrm{i}\theta}$. At position $t$, pair $p$ of a head of width $K$ becomes
#
# $$ (a + b\,\mathrm{i})\; e^{\mathrm{i}\, t\, \omega_p}, \qquad \omega_p = 10{,}000^{-2p/K}, \qquad p = 0, \dots, K/2 - 1 . $$
#
# One query and one key of width 4, each put at six places:


# %%
K = 4
speeds = 10_000.0 ** (-torch.arange(0, K, 2) / K)  # (K/2,), radians a token
angles = torch.arange(6)[:, None] * speeds  # (T, K/2)
turns = torch.polar(torch.ones(6, 2), angles)  # length 1, these angles: complex


def turn_pairs(x):  # (..., T, K)
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)))  # (..., T, K/2)
    return torch.view_as_real(pairs * turns).flatten(-2)  # (..., T, K)


query, key = torch.randn(2, K, generator=torch.Generator().manual_seed(0))
q, k = turn_pairs(query.repeat(6, 1)), turn_pairs(key.repeat(6, 1))  # (T, K) each
scores = q @ k.T  # rows: position of the query; columns: of the key
print("speeds", speeds, "turns", tuple(turns.shape), turns.dtype)
print(scores)

# %% [markdown]
# Along each diagonal the number is the same: the same distance, the same score. A fast hand soon repeats; the slow ones tell its rounds apart. With the usual base of 10,000 and heads of width 128 the slowest needs 54,000 tokens for one turn; Llama 3 raised the base to 500,000. The library's two functions do the same; the factors are made once, for all blocks (`scaling` is for longer texts, as in Llama 3.1):

# %%
show_source(rotations, rotate)

# %% tags=["fold"]
# @title Checked: three times RoPE, equal diagonals
random_heads = torch.randn(2, 3, 6, 4)


def slowest_turn(base, head_dim=128):
    """Tokens that the slowest pair needs for one full turn."""
    return 2 * math.pi * base ** ((head_dim - 2) / head_dim)


claim(
    "These lines turn as chapter 08's RoPE and as the library's two functions do, and the scores are equal along every diagonal.",
    torch.allclose(turn_pairs(random_heads), RoPE(4).rotate(random_heads), atol=1e-6)
    and torch.allclose(turn_pairs(random_heads), rotate(random_heads, rotations(torch.arange(6.0), 4)), atol=1e-6)
    and all(scores.diagonal(d).max() - scores.diagonal(d).min() < 1e-4 for d in range(-5, 6)),
)
claim(
    "The slowest hand needs about 54,000 tokens for a turn with base 10,000 and more than 40 times as many with 500,000.",
    round(slowest_turn(1e4), -3) == 54_000 and slowest_turn(5e5) > 40 * slowest_turn(1e4),
    tokens=[slowest_turn(1e4), slowest_turn(5e5)],
)

# %% [markdown]
# Only queries and keys turn. **Exchange 3**: attention with chapter 08's `RoPE`. Its biases go as well, and the model's table of positions is no longer needed:

# %%
attn = MultiHeadAttention(D, num_heads=6, bias=False, position=RoPE(head_dim=4))
mlp = SwiGLU(d_model=D, dim_feedforward=8 * D // 3)
step_3 = Block(norm=RMSNorm, attn=attn, mlp=mlp)
try_out(step_3, causal=True)

# %% [markdown]
# Next: what is kept of a token, in the cache.

# %% [markdown]
# ## 4 · Heads that share
#
# On the first screen the chats ran out of room, not the model. Each of 32 query heads had keys and values of its own. Let them share. In **grouped-query attention** (Ainslie et al. 2023) there are still `H` heads of queries, but only $G$ heads of keys and values, each used by $H/G$ neighbours:

# %%
diagrams.show("grouped_queries")

# %% [markdown]
# With $G = H$ this is the attention that you know, and still that of Llama 2 7B (its 70B sister and Llama 3 share); with $G = 1$ it is *multi-query attention* (Shazeer 2019). Query head $h$, counted from 0, uses key head
#
# $$ g(h) = \left\lfloor h\,G / H \right\rfloor , \qquad \text{cache: } 2\,N B S\,G K \text{ numbers in place of } 2\,N B S\,H K , $$
#
# for `N` blocks, `B` texts, and `S` positions kept of each.

# %%
H, G, K = 6, 2, 4
print("query head -> key head", {h: h * G // H for h in range(H)})
q = torch.randn(3, H, 5, K)  # (B, H, T, K)
k, v = torch.randn(2, 3, G, 5, K)  # (B, G, S, K) each
shared = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
alone = F.scaled_dot_product_attention(q[:, 5:], k[:, 1:], v[:, 1:], is_causal=True)
print("output", tuple(shared.shape))
print("head 5 with key head 1:", torch.equal(shared[:, 5:], alone))

# %% [markdown]
# The output is as large as ever. What is *stored* has shrunk, and with it $W_k$ and $W_v$.

# %% [markdown]
# ### Exercise 14.2 · Implement: grouped-query attention
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# There are $H$ heads of queries but only $G$ heads of keys and values, and $G$ divides $H$. Neighbours share: query head $h$ uses key head $\lfloor h\,G/H \rfloor$. With a cache there are more keys than queries: the $T$ queries are the last $T$ of the $S$ positions. Write it from matrix products and a softmax, without torch's or the library's attention.


# %% nbgrader={"grade": false, "grade_id": "ex14-2-grouped-attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def grouped_attention(q, k, v, causal):
    """Scaled dot-product attention of H query heads that share G heads of keys and values.

    Args:
        q: (B, H, T, K) queries, those of the last T positions.
        k: (B, G, S, K) keys, G divides H, S >= T.
        v: (B, G, S, K) values.
        causal: bool; True = a query sees its own position and those before it, False = all S.

    Returns:
        (B, H, T, K).
    """
    ### BEGIN SOLUTION
    (H, T, K), (G, S) = q.shape[1:], k.shape[1:3]
    k = k.repeat_interleave(H // G, dim=1)  # (B, H, S, K)
    v = v.repeat_interleave(H // G, dim=1)
    scores = q @ k.mT / math.sqrt(K)  # (B, H, T, S)
    if causal:
        may = torch.ones(T, S, dtype=torch.bool).tril(S - T)
        scores = scores.masked_fill(~may, -math.inf)
    return scores.softmax(-1) @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-2-grouped-attention-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch14.grouped_attention(grouped_attention)

# %% [markdown]
# The library's layer, with rotations and a cache. The order matters: keys are turned, *then* kept.

# %%
show_source(GroupedQueryAttention.forward)

# %% [markdown]
# **Exchange 4**, the last. This layer is always causal, and the rotations now come from outside, made once for all blocks:

# %%
attn = GroupedQueryAttention(d_model=D, num_heads=6, num_kv_heads=2, head_dim=4)
mlp = SwiGLU(d_model=D, dim_feedforward=8 * D // 3)
step_4 = Block(norm=RMSNorm, attn=attn, mlp=mlp)
try_out(step_4, rotation=rotations(torch.arange(5.0), head_dim=4))

# %% [markdown]
# 768 weights fewer: $W_k$ and $W_v$ have a third of their rows. For each token this block keeps 16 numbers, where the one before kept 48. The cache of one chat with Llama 2 7B, as it is and with fewer key heads:

# %%
N, S, K = 32, 4096, 128  # blocks, tokens of a chat, width of a head
for G in (32, 8, 1):
    numbers = 2 * N * S * G * K  # keys and values
    print(f"G = {G:2}: {2 * numbers / 1e9:.2f} GB in 16 bits")

# %% tags=["fold"]
# @title Checked: the formula, in the caches' tensors
def cache_of(key_heads):
    """Bytes of one chat's keys and values in 16 bits, counted in tensors that have shapes and no memory."""
    sizes = replace(LlamaConfig.from_name("llama-2-7b"), num_kv_heads=key_heads)
    with torch.device("meta"):
        state = Llama(sizes).bfloat16().start(batch_size=1, room=4096)
    return kv_cache.cache_bytes(state["kv_caches"])


claim(
    "The library's caches hold exactly $2\\,N S\\,G K$ numbers of two bytes: a quarter for $G$ = 8, a 32nd for $G$ = 1.",
    all(cache_of(key_heads) == 2 * 32 * 4096 * key_heads * 128 * 2 for key_heads in tqdm((32, 8, 1), leave=False)),
)

# %% [markdown]
# ### What is each part worth?
#
# The ledger's models are small GPTs (width 96, 500 steps) on tiny Shakespeare, in which *one* part is exchanged at a time, and in the last row all.

# %%
guess_5 = predict("the fall of the loss with all four parts, in nats", ...)

# %% tags=["reveal"]
figures.modern_parts()

# %% tags=["fold", "reveal"]
# @title The ledger: one part at a time
PART_ROWS = ("GPT-2", "RMSNorm", "SwiGLU", "RoPE", "grouped queries", "grouped queries, same F", "Llama")
parts_loss = {row: ledger.values("modern-parts", row, "valid_loss") for row in PART_ROWS}
lower = {
    row: [old - new for old, new in zip(parts_loss["GPT-2"], found, strict=True)] for row, found in parts_loss.items()
}
guess_5.compare(f"{sum(lower['Llama']) / len(lower['Llama']):.2f} nats")
markdown(
    ledger.table(
        "modern-parts",
        {"valid_loss": "validation loss (nats)", "parameters": "parameters", "cache_bytes": "cache (bytes)"},
        list(PART_ROWS),
    )
)
claim(
    "In every recorded seed RoPE alone lowers the loss by more than a tenth of a nat, and so do all parts together; no other single part changes it by a tenth, and SwiGLU alone raises it. SwiGLU alone has the learning rate 0.002, all others 0.004.",
    min(lower["RoPE"] + lower["Llama"]) > 0.1
    and max(abs(change) for row in PART_ROWS if row not in ("RoPE", "Llama") for change in lower[row]) < 0.1
    and max(lower["SwiGLU"]) < 0
    and all(set(ledger.values("modern-parts", row, "learning_rate")) == {0.002 if row == "SwiGLU" else 0.004} for row in PART_ROWS),
    seeds=len(lower["RoPE"]),
    **{f"{row} lowers it by": lower[row] for row in ("RoPE", "Llama", "SwiGLU")},
)
cache_of_row = {row: ledger.values("modern-parts", row, "cache_bytes")[0] for row in PART_ROWS}
claim(
    "Two key heads for four query heads halve the cache. With as many parameters as before they lower the loss in every seed, by less than a twentieth of a nat; with the same F the seeds disagree.",
    2 * cache_of_row["grouped queries"] == cache_of_row["GPT-2"]
    and 0 < min(lower["grouped queries"]) <= max(lower["grouped queries"]) < 0.05
    and min(lower["grouped queries, same F"]) < 0 < max(lower["grouped queries, same F"]),
    **{"grouped queries lower it by": lower["grouped queries"]},
)

# %% [markdown]
# Here one part does nearly all: a model that is told distances need not find out what "the letter before" is, probably. (A learned table may catch up.) The norm helps in some seeds and hurts in others. The gate loses a few hundredths, in every seed; but its rate is half the others', and as rates lie a factor of 2 apart, a finer choice could gain as much. Shazeer's models, far larger and trained for half a million steps, gained a little from it. Shared keys cost nothing that three seeds could show.

# %% [markdown]
# ## 5 · The Llama on one page
#
# Now write the block yourself, before you see the library's.

# %% [markdown]
# ### Exercise 14.3 · Assemble: a block of a Llama
#
# Difficulty ●●●●○ · 30 minutes · needs exercises 14.1 and 14.2
#
# Put the four changes together: Pre-LN with RMSNorm, causal attention whose heads share keys and values, queries and keys turned by their positions, SwiGLU. There are no biases. Take your `rms_norm`, `grouped_attention` and `swiglu`; in place of one that you do not have, torch's `F.rms_norm` or `F.scaled_dot_product_attention` will do. Write it without the library's block and its layers. The weights come in a dict:
#
# - `norm_1` and `norm_2`, (D,), before the attention and before the feed-forward network;
# - `q` (H K, D), `k` and `v` (G K, D), `o` (D, H K), where K is the width of a head;
# - `gate` and `up` (F, D), `down` (D, F).


# %% nbgrader={"grade": false, "grade_id": "ex14-3-llama-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def llama_block(x, weights, turn, H, G, eps):
    """One block: attention and a feed-forward network, each on the normed stream and added to the stream.

    Args:
        x: (B, T, D), the residual stream.
        weights: dict of tensors, as listed above; a matrix W is used as x @ W.T.
        turn: function that turns queries or keys (B, heads, T, K) by their positions; any number of heads.
        H: heads of queries.
        G: heads of keys and values.
        eps: float, for both norms.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    def heads(y, name, number):
        return (y @ weights[name].T).unflatten(-1, (number, -1)).transpose(1, 2)

    y = F.rms_norm(x, x.shape[-1:], weights["norm_1"], eps)
    q, k, v = heads(y, "q", H), heads(y, "k", G), heads(y, "v", G)  # (B, H or G, T, K)
    y = F.scaled_dot_product_attention(
        turn(q), turn(k), v, is_causal=True, enable_gqa=True
    )
    x = x + y.transpose(1, 2).flatten(2) @ weights["o"].T
    y = F.rms_norm(x, x.shape[-1:], weights["norm_2"], eps)
    gated = F.silu(y @ weights["gate"].T) * (y @ weights["up"].T)
    return x + gated @ weights["down"].T
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-3-llama-block-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch14.llama_block(llama_block)

# %% [markdown]
# The library's block is section 4's `step_4`, with sizes from a config; of its attention you read the `forward` there:

# %%
show_source(GroupedQueryAttention.__init__, LlamaBlock)

# %% [markdown]
# Is your block the same? It gets the library's weights:

# %% tags=["nbval-ignore-output"]
small = LlamaConfig(
    vocab_size=11, max_len=64, d_model=24, num_layers=3,
    num_heads=6, num_kv_heads=2, dim_feedforward=64,
)
theirs = Llama(small).double().blocks[0]  # the library's
attn, mlp = theirs.attn, theirs.mlp
weights = {"norm_1": theirs.norm1.weight, "norm_2": theirs.norm2.weight}
weights |= {name: getattr(attn, f"{name}_proj").weight for name in "qkvo"}
for name in ("gate", "up", "down"):
    weights[name] = getattr(mlp, f"{name}_proj").weight
x = torch.randn(2, 5, 24).double()
five = rotations(torch.arange(5).double(), small.key_width)
try:
    turn = partial(rotate, rotation=five)
    yours = llama_block(x, weights, turn, H=6, G=2, eps=1e-5)
    same = torch.allclose(yours, theirs(x, five))
    print("Your block gives the library's numbers:", same)
except NotImplementedError:
    print("Not yet: this needs exercise 14.3.")

# %% [markdown]
# And now the whole model: a table of tokens, the rotations, `N` blocks, one more norm, and the output layer:


# %%
def new_block():
    attn = GroupedQueryAttention(d_model=D, num_heads=6, num_kv_heads=2, head_dim=4)
    return Block(norm=RMSNorm, attn=attn, mlp=SwiGLU(d_model=D, dim_feedforward=64))


class SmallLlama(nn.Module):
    def __init__(self, vocab_size, num_layers):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, D)
        self.blocks = nn.ModuleList(new_block() for _ in range(num_layers))
        self.norm, self.head = RMSNorm(D), nn.Linear(D, vocab_size, bias=False)

    def forward(self, ids):
        x = self.embedding(ids)  # (B, T, D)
        rotation = rotations(torch.arange(ids.shape[1]), head_dim=4)  # (T, K/2)
        for block in self.blocks:
            x = block(x, rotation=rotation)
        return self.head(self.norm(x))  # (B, T, V)


# %% tags=["fold"]
# @title Checked: the small Llama is the library's
by_hand, by_config = SmallLlama(vocab_size=11, num_layers=3), Llama(small)
by_hand.load_state_dict(by_config.state_dict())
text_of_five = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
with torch.no_grad():
    claim(
        "The small Llama takes the weights of the library's by their names, and gives its logits.",
        torch.allclose(by_hand(text_of_five), by_config(text_of_five), atol=1e-6),
    )

# %% [markdown]
# The library's `Llama` is the same, with sizes from a config and with caches. If the config says `tied`, the table is the output layer too.
#
# ### It trains as GPT did
#
# Chapter 13's loop will do, with other settings. A Llama of 96,000 parameters reads the docstrings of your own Python, one character at a time.

# %%
corpus = datasets.docstrings(300_000)
alphabet = sorted(set(corpus + corpus.upper()))
V, L = len(alphabet), 64
number = {character: i for i, character in enumerate(alphabet)}
ids = torch.tensor([number[character] for character in corpus])
cut = len(ids) * 9 // 10


def train(model, parameters, ids, rate, steps, batch=24):
    optimizer = torch.optim.AdamW(parameters, rate, weight_decay=0.0)
    schedule = partial(cosine_schedule, warmup=20, total=steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    windows = torch.Generator().manual_seed(1)
    for _ in tqdm(range(steps), leave=False):
        x, y = random_windows(ids[:cut], batch, L, windows)  # (B, L) both
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        scheduler.step()


# %%
@torch.no_grad()
def valid_loss(model, ids):
    x, y = random_windows(ids[cut:], 64, L, torch.Generator().manual_seed(0))
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten()).item()


def write(model, beginning, length=75):
    prompt, draws = [number[c] for c in beginning], torch.Generator().manual_seed(0)
    (new,) = generate(model, [prompt], length, draws, temperature=0.7)
    return beginning + "".join(alphabet[i] for i in new)


set_seed(0)
config = LlamaConfig(
    vocab_size=V, max_len=256, d_model=64, num_layers=2,
    num_heads=4, num_kv_heads=2, dim_feedforward=168, tied=True,
)
llama = Llama(config)
before = valid_loss(llama, ids)
train(llama, list(llama.parameters()), ids, rate=1e-2, steps=run_size.pick(600, 5000))
after = valid_loss(llama, ids)

# %% tags=["nbval-ignore-output"]
print(f"{number_of_parameters(llama):,} parameters, {before:.2f} -> {after:.2f} nats")
print(repr(write(llama, "Return the ")))

# %% tags=["fold"]
# @title Checked: the two losses, and the cache
double = copy.deepcopy(llama).double().eval()
forty = ids[None, cut : cut + 40]
with torch.no_grad():
    at_once = double(forty)
    caches = double.start(batch_size=1)["kv_caches"]
    parts = [double(forty[:, :7], caches)] + [double(forty[:, t : t + 1], caches) for t in range(7, 40)]
claim(
    "The first validation loss is $\\ln V$ to within a tenth of a nat, and training takes away more than 2 nats.",
    abs(before - math.log(V)) < 0.1 and after < before - 2,
    first=before,
    last=after,
)
claim(
    "Read in parts with a cache, 40 characters get the same logits in float64 as read at once.",
    (torch.cat(parts, 1) - at_once).abs().max() < 1e-11,
)

# %% [markdown]
# A short training, and syllables shaped like a docstring.
#
# ### A published one writes
#
# SmolLM2-135M-Instruct (Ben Allal et al. 2025) is a Llama of 134.5 million parameters. Its folder holds the sizes (`config.json`), the tensors (`model.safetensors`) and chapter 02's BPE (`tokenizer.json`). If it is not on this machine, a recorded run is shown. (`Llama.from_pretrained(smollm.SMOLLM)` and `huggingface.tokenizer(smollm.SMOLLM)` fetch it once from the Hugging Face hub, 269 MB.)

# %% tags=["nbval-ignore-output"]
try:
    source = smollm.find_smollm()  # the model's folder
    smol, tokenizer = Llama.from_pretrained(source), huggingface.tokenizer(source)
    prompt = tokenizer.encode("Gravity is").ids
    (new,) = generate(smol, [prompt], 40, top_k=1)  # always the likeliest token
    text = tokenizer.decode(new)
except DataError:
    print("Not in the cache: here is the recorded run.")
    text = smollm.recorded("continued")
print(fill("Gravity is" + text, 88))

# %% [markdown]
# Fluent English, from classes that you have read. (The recorded run had its matrices from a file of 4 bits: yours may write other words.)
#
# How does such a file become our model? The loader gives each tensor our name, and puts the rows of $W_q$ and $W_k$ into another order: in these files RoPE turns entry $j$ together with entry $j + K/2$, ours turns neighbours (*Going deeper* shows why that is harmless). Our names, and the file's:

# %%
for name in llama.state_dict():
    if "blocks.1." not in name:  # the second block's names are like the first's
        print(f"{name:30}{huggingface.rename_key(name, llama_checkpoint.NAMES)}")
show_source(llama_checkpoint.paired)

# %% [markdown]
# `halves` is (2, K/2) when reading: with $K$ = 4 a head's rows 0, 1, 2, 3 come out as 0, 2, 1, 3. When saving it is (K/2, 2).
#
# Now the reverse: we save *our* model as such a folder, and load it again (a tied output layer, the last line, is not stored):

# %%
with tempfile.TemporaryDirectory() as folder:
    llama.save_pretrained(folder)
    files = sorted(path.name for path in Path(folder).iterdir())
    _, tensors = huggingface.read(folder)
    loaded = Llama.from_pretrained(folder)
print(files, "tensors:", len(tensors))
forty = ids[None, cut : cut + 40]  # (1, 40) tokens that it was not trained on
with torch.no_grad():
    print("equal logits:", torch.allclose(loaded(forty), llama(forty), atol=1e-4))
stored = tensors["model.layers.0.self_attn.q_proj.weight"]
in_model = llama.blocks[0].attn.q_proj.weight
print("equal queries' weights:", torch.equal(stored, in_model))

# %% tags=["nbval-ignore-output"]
print(repr(write(loaded, "Return the ")))
print("the same text:", write(loaded, "Return the ") == write(llama, "Return the "))

# %% [markdown]
# The loaded model writes what ours did. As with GPT-2, **right shapes prove nothing; compare logits.** Our own code wrote and read this file, so a mistake made in both directions would not show. SmolLM2's logits were therefore compared with Hugging Face's. And the sizes alone must give the published numbers of parameters:

# %% tags=["fold"]
# @title Checked: published sizes, and SmolLM2's logits
published = {
    "smollm2-135m": 134_515_008,
    "tinyllama-1.1b": 1_100_048_384,
    "llama-3.2-1b": 1_235_814_400,
    "llama-2-7b": 6_738_415_616,
}
counted = {}
for name in tqdm(published, leave=False):
    with torch.device("meta"):  # shapes without numbers
        counted[name] = number_of_parameters(Llama(LlamaConfig.from_name(name)))
table(["model", "parameters"], [[name, count] for name, count in counted.items()])
claim("Our counter gives the parameters of four published models exactly.", counted == published)
beside = ledger.load("smollm-writes")["runs"][0]["results"]["logits"]
claim(
    "SmolLM2 as loaded in the recorded run has our config's 134,515,008 parameters; on one prompt its logits differ from Hugging Face's by at most 3e-5, and their standard deviation is about 8.",
    beside["parameters"] == counted["smollm2-135m"] == 134_515_008
    and beside["largest_difference"] <= 3e-5
    and round(beside["standard_deviation"]) == 8,
    largest_difference=beside["largest_difference"],
    standard_deviation=beside["standard_deviation"],
)

# %% [markdown]
# **Here the first sitting ends.** You have a Llama that writes. The second makes it cheaper to train (6) and to store (7), looks for a cache that does not grow (8, 9), and ends with a chat (10).
#
# ---

# %% [markdown]
# ## 6 · Teach it something new with 1 % of the numbers
#
# Training first: what does it cost to teach a model a new tone? Fine-tuning all of Llama 2 7B with Adam takes 16 bytes a parameter (chapter 13), 108 gigabytes before activations, and each new tone another 13.5 gigabytes on the disk. Yet the change is small: the model can already write. Hu et al. (2021) therefore leave the trained weight $W$ as it is and learn only a **correction** to it, which is forced to be simple: the product of two thin matrices.

# %%
diagrams.show("low_rank_update")

# %% [markdown]
# $$ y = x W^\top + \frac{\alpha}{r}\, x A^\top B^\top, \qquad A: (r, \text{in}), \quad B: (\text{out}, r) . $$
#
# Only $A$ and $B$ (here a matrix) are trained. The **rank** $r$ is how many numbers the input is squeezed into on its way: 1, 8, 64. The smallest case, with $r = 1$, a weight of 3 × 4:

# %%
A = torch.tensor([[1.0, 0.0, 2.0, 0.0]])  # (r, in): what it looks at
B = torch.tensor([[1.0], [0.0], [-1.0]])  # (out, r): where it writes
print("B A", B @ A, sep="\n")
x = torch.tensor([3.0, 1.0, 1.0, 0.0])
print("in two steps", x @ A.T, "->", x @ A.T @ B.T)
print("by the matrix       ", x @ (B @ A).T)

# %% [markdown]
# Seven numbers give a matrix of twelve. Larger matrices gain more: for 4,096 × 4,096 and $r = 8$ it is 65,536 numbers in place of 16.8 million, 0.4 %. The factor $\alpha / r$ is meant to keep the size of the correction about the same when you try another rank. $B$ begins with zeros, so at first the model is what it was. $A$ begins with random numbers around 0; *Going deeper* shows why one of the two is zero, and not both.

# %% [markdown]
# ### Exercise 14.4 · Implement: LoRA, start, train and merge
#
# Difficulty ●●●○○ · 30 minutes · needs section 6
#
# A linear layer that stays as it is, and a trained correction of rank $r$ beside it: $y = x W^\top + b + \frac{\alpha}{r}\,x A^\top B^\top$. Only $A$ (r, inputs) and $B$ (outputs, r) are trained. $A$ starts with random numbers around 0 and $B$ with zeros, so that at the start the layer computes what it always did. Write it without the library's LoRA layers.


# %% nbgrader={"grade": false, "grade_id": "ex14-4-low-rank", "locked": false, "schema_version": 3, "solution": true, "task": false}
class LowRank(nn.Module):
    """A frozen nn.Linear with a trained correction; its parameters self.A (r, inputs) and self.B (outputs, r)."""

    def __init__(self, linear, rank, alpha):
        """Keep the nn.Linear (with or without bias), freeze it, make A and B. rank: int r; alpha: float."""
        super().__init__()
        ### BEGIN SOLUTION
        self.linear = linear.requires_grad_(False)
        self.scale = alpha / rank
        self.A = nn.Parameter(torch.randn(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        ### END SOLUTION

    def forward(self, x):
        """x (..., inputs) to (..., outputs)."""
        ### BEGIN SOLUTION
        return self.linear(x) + self.scale * (x @ self.A.T @ self.B.T)
        ### END SOLUTION

    def merged(self):
        """The weight (outputs, inputs) of one plain linear layer that computes the same; changes nothing."""
        ### BEGIN SOLUTION
        return self.linear.weight + self.scale * self.B @ self.A
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-4-low-rank-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch14.low_rank(LowRank)

# %% [markdown]
# The library's layer. Its `merged` differs from yours: it writes into $W$ and hands the layer over.

# %%
show_source(LowRankUpdate.forward, LoRALinear)

# %% [markdown]
# Our small Llama has hardly seen capitals in a row. WE WANT IT TO WRITE LIKE THIS. The text is the same, in capitals. As in the paper, queries and values get a correction, here of rank 2; all else is frozen:

# %%
set_seed(0)
with_lora = copy.deepcopy(llama).requires_grad_(False)
for block in with_lora.blocks:
    block.attn.q_proj = LoRALinear(block.attn.q_proj, rank=2, alpha=4)
    block.attn.v_proj = LoRALinear(block.attn.v_proj, rank=2, alpha=4)
trained = sum(p.numel() for p in with_lora.parameters() if p.requires_grad)
share = trained / number_of_parameters(llama)
print(f"trained: {trained} numbers, {100 * share:.2f} % of the model's")

# %% [markdown]
# (`add_lora(model, rank, alpha)` does the same.) For comparison, a second copy trains *all* its weights for as many steps. Judge the losses, not the text: it stays poor.

# %%
capitals = torch.tensor([number[character] for character in corpus.upper()])
adapted = copy.deepcopy(with_lora)
updates = [p for p in adapted.parameters() if p.requires_grad]  # the As and Bs
train(adapted, updates, capitals, rate=5e-2, steps=150)
everything = copy.deepcopy(llama)
train(everything, list(everything.parameters()), capitals, rate=5e-3, steps=150)
in_capitals = {
    "as it was": valid_loss(llama, capitals),
    "with LoRA": valid_loss(adapted, capitals),
    "all weights trained": valid_loss(everything, capitals),
}

# %% tags=["nbval-ignore-output"]
for name, loss in in_capitals.items():
    print(f"{name:20}{loss:.2f} nats on text in capitals")
print(repr(write(llama, "RETURN THE ")))
print(repr(write(adapted, "RETURN THE ")))

# %% tags=["fold"]
# @title Checked: what 1 % of the numbers can do
gained = {name: in_capitals["as it was"] - loss for name, loss in in_capitals.items()}
part_of_it = gained["with LoRA"] / gained["all weights trained"]
claim(
    "The correction has less than 1 % of the model's numbers and takes more than 0.3 nats off the loss; that is between a third and three quarters of what training all weights takes off.",
    share < 0.01
    and in_capitals["as it was"] - in_capitals["with LoRA"] > 0.3
    and 0.33 < part_of_it < 0.75,
    share=f"{100 * share:.2f} %",
    part=part_of_it,
)
new_name = {"q_proj.weight": "q_proj.linear.weight", "v_proj.weight": "v_proj.linear.weight"}
untouched = []
for name, old in llama.named_parameters():
    for ending, new in new_name.items():
        name = name.replace(ending, new)
    untouched.append(torch.equal(old, adapted.get_parameter(name)))
claim("The weights that were there are untouched: without its correction the adapted model is the old one.", all(untouched))

# %% [markdown]
# One toy, one seed: a tiny correction achieves about half of the gain, with two learning rates that nobody tuned. (Hu et al., with up to 175 billion parameters, found results on a par with full fine-tuning.) For Llama 2 7B each such correction takes 8 to 17 megabytes (rank 8 to 16, queries and values, 16 bits).
#
# **Merging.** The correction is linear, so it can be added to the weight, $W + \frac{\alpha}{r} B A$. Then the model has its old shape and its old speed:

# %%
merged = copy.deepcopy(adapted)
with torch.no_grad():
    for block in merged.blocks:
        block.attn.q_proj = block.attn.q_proj.merged()
        block.attn.v_proj = block.attn.v_proj.merged()
    same = torch.allclose(merged(forty), adapted(forty), atol=1e-3)
print("parameters", f"{number_of_parameters(merged):,}", "equal logits:", same)

# %% tags=["fold"]
# @title Checked: the library's add_lora and merge_lora
set_seed(0)
by_library = add_lora(copy.deepcopy(llama), rank=2, alpha=4)
as_by_hand = [torch.equal(x, with_lora.get_parameter(name)) for name, x in by_library.named_parameters()]
merge_lora(by_library)
claim(
    "From the same seed `add_lora` makes the same model as the loop; merged before any training it is the old one.",
    all(as_by_hand) and all(torch.equal(x, by_library.get_parameter(name)) for name, x in llama.named_parameters()),
)

# %% [markdown]
# LoRA makes training cheap. What makes *running* a model cheap?

# %% [markdown]
# ## 7 · Eight bits
#
# On the first screen the weights fill more than half of the card. A trained weight such as 0.0273914 has six digits that count. How many does running the model need? **Quantisation** keeps whole numbers from −127 to 127, one byte each, and for each row of a matrix one **scale**, which says how much 1 is worth. The largest entry of the row becomes ±127, the others are rounded:
#
# $$ s_o = \max_i |w_{oi}| / 127, \qquad q_{oi} = \mathrm{round}(w_{oi} / s_o), \qquad |w_{oi} - s_o\, q_{oi}| \le s_o / 2 . $$
#
# The row (1.27, −0.5, 0.31) has the scale 0.01 and becomes (127, −50, 31): nothing is lost. The row (0.63, 25.4, −0.11) has the scale 0.2 and becomes (3, 127, −1), which stands for (0.6, 25.4, −0.2). One large weight makes its whole row coarse, so each row has its own scale.

# %% [markdown]
# ### Exercise 14.5 · Implement: eight bits
#
# Difficulty ●●○○○ · 20 minutes · needs section 7
#
# Each row of a weight becomes whole numbers from −127 to 127 and one scale: the largest absolute value of the row becomes ±127, and all others are rounded to the nearest. `ints * scales[:, None]` then is the weight again, and no entry is off by more than half its row's scale. Mind a row of zeros. Write it without the ready-made functions of torch and of the library.


# %% nbgrader={"grade": false, "grade_id": "ex14-5-quantize", "locked": false, "schema_version": 3, "solution": true, "task": false}
def quantize(weight):
    """Weights in 8 bits, with one scale a row.

    Args:
        weight: (O, I) float.

    Returns:
        (ints, scales): ints (O, I) int8; scales (O,) float, above 0. In a row of zeros all ints are 0, and any
        scale above 0 will do.
    """
    ### BEGIN SOLUTION
    largest = weight.abs().amax(dim=1)  # (O,)
    scales = torch.where(largest > 0, largest / 127, 1.0)
    ints = (weight / scales[:, None]).round().to(torch.int8)
    return ints, scales
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-5-quantize-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch14.quantize(quantize)

# %% [markdown]
# The library's `quantize_rows` checks the weight, then calls this:

# %%
show_source(to_int8)

# %% [markdown]
# A layer then computes $y_o = s_o \sum_i x_i\,q_{oi}$, the scale outside the sum. The library's `Int8Linear` does, and `quantize_model` puts it in the place of every `nn.Linear` of the blocks.
#
# Rounding 89,000 weights of our trained model to 255 values each (its table, also the output layer, stays in `float32`): **by what percentage does the validation loss change?**

# %%
eight = quantize_model(copy.deepcopy(llama))
rise = 100 * (valid_loss(eight, ids) / after - 1)
bytes_of = {"32": size_in_bytes(llama.blocks), "8": size_in_bytes(eight.blocks)}
guess_2 = predict("the change of the loss, in %", ...)

# %% tags=["fold", "reveal"]
# @title What eight bits cost, and save
guess_2.compare("less than a tenth of a percent" if abs(rise) < 0.1 else f"{rise:+.1f} %")
claim(
    "The loss changes by less than a tenth of a percent; the blocks take less than a third of the bytes.",
    abs(rise) < 0.1 and bytes_of["8"] < bytes_of["32"] / 3,
    change=f"{rise:.3f} %",
    bytes_before=bytes_of["32"],
    after=bytes_of["8"],
)
matrix = torch.randn(96, 64, dtype=torch.float64) * torch.logspace(-2, 2, 96, dtype=torch.float64).unsqueeze(1)
q_rows, row_scales = quantize_rows(matrix)
off = (matrix - dequantize(q_rows, row_scales)).abs() / row_scales.unsqueeze(1)
claim(
    "On a random matrix whose rows differ 10,000-fold in size, no weight is off by more than half of its row's scale, and some are off by more than 0.49 of it.",
    0.49 < off.max() <= 0.5 + 1e-9,
)

# %% [markdown]
# So small a change, up or down, means nothing with 4,096 characters. Each error is small, and errors of both signs add up slowly. Are fewer bits also faster? *Going deeper* measures it.

# %% [markdown]
# ### Exercise 14.6 · Derive: Llama 3 8B on paper
#
# Difficulty ●●○○○ · 25 minutes · needs sections 2, 4, 6 and 7
#
# Its sizes: vocabulary V = 128,256, width D = 4,096, N = 32 blocks, H = 32 query heads and 8 key heads of width K = 128, feed-forward width F = 14,336 (SwiGLU). No biases; the input table and the output layer are two matrices. To three digits, with a gigabyte of $10^9$ bytes:
#
# (a) How many billion parameters does it have? (b) How many gigabytes does the cache of one text of 8,192 tokens take, 2 bytes a number? (c) How many would it take if each query head had its own keys and values? (d) How many gigabytes do the weights take in 16 bits? (e) And with the matrices of the blocks in 8 bits, both tables in 16? (The norms, and the scales, do not show in three digits.) (f) LoRA of rank 16 on the query and value matrices of all blocks: what percentage of the parameters in (a) is trained?

# %% nbgrader={"grade": false, "grade_id": "ex14-6-llama-numbers", "locked": false, "schema_version": 3, "solution": true, "task": false}
llama_numbers = ...  # six numbers: (a) billions, (b), (c), (d), (e) gigabytes, (f) percent
### BEGIN SOLUTION
vocab, d, N, heads, kv_heads, width, hidden = 128256, 4096, 32, 32, 8, 128, 14336
matrices = N * (2 * d * d + 2 * d * kv_heads * width + 3 * d * hidden)
tables = 2 * vocab * d
all_numbers = matrices + tables  # the norms, 0.27 million, do not show in three digits
cache = 2 * N * 8192 * kv_heads * width * 2  # keys and values, 2 bytes a number
A_and_B = N * 16 * ((d + d) + (d + kv_heads * width))  # for queries, for values
llama_numbers = (
    all_numbers / 1e9,
    cache / 1e9,
    cache / 1e9 * heads / kv_heads,
    2 * all_numbers / 1e9,
    (matrices + 2 * tables) / 1e9,
    100 * A_and_B / all_numbers,
)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex14-6-llama-numbers-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch14.llama_numbers(llama_numbers)

# %% tags=["fold", "reveal"]
# @title Checked: the published number
with torch.device("meta"):
    count_8b = number_of_parameters(Llama(LlamaConfig.from_name("llama-3-8b")))
claim("From its sizes, Llama 3 8B has 8,030,261,248 parameters, the published number.", count_8b == 8_030_261_248)

# %% [markdown]
# One cost is left: the cache, which grows with every token. Is attention needed at all?

# %% [markdown]
# ## 8 · The loop that trains in parallel
#
# A loop has no such cache. The course began with one and gave it up for attention, partly because it could not be trained in parallel. Chapter 03's was $h_t = \tanh(h_{t-1} W_{hh}^\top + x_t W_{hx}^\top)$. Its state has a fixed size, so writing a long text takes no more memory than a short one. But step $t$ must wait for step $t - 1$. Can we have a loop *without* that queue?
#
# The obstacle is the $\tanh$. Leave it out, and in place of $W_{hh}$ give each entry of the state a factor of its own, as the LSTM's forget gate does:
#
# $$ h_t = a_t \odot h_{t-1} + b_t . $$
#
# Two steps in a row are then **one step of the same form**:
#
# $$ h_2 = a_2 (a_1 h_0 + b_1) + b_2 = (a_2 a_1)\, h_0 + (a_2 b_1 + b_2) . $$
#
# A full $W_{hh}$ could be scanned too, but joining two steps would multiply two `D` × `D` matrices.
#
# So we need not start at the left. Every step is joined with the one before it, all at once; then with the step two places back, then four:

# %%
diagrams.show("parallel_scan")

# %% [markdown]
# By hand, with $a = 0.5$ and $b = 1$ at four steps. The loop gives 1, 1.5, 1.75, 1.875. The **scan** needs two rounds. In front of the first step both are padded with zeros (that $a$ only multiplies $h_0 = 0$):

# %%
a, b = torch.full((4,), 0.5), torch.ones(4)
for distance in (1, 2):
    earlier_a = F.pad(a[:-distance], (distance, 0))
    earlier_b = F.pad(b[:-distance], (distance, 0))
    a, b = a * earlier_a, a * earlier_b + b  # join each step with an earlier one
    print(f"joined with the step {distance} before: b =", b)

# %% [markdown]
# A text of 1,024 tokens waits for 10 rounds in place of 1,024 steps. That is *more* arithmetic: $T \log_2 T$ in place of $T$ (with Blelloch's scan about $2T$).
#
# Where do $a$ and $b$ come from? A gate decides, as in chapter 05's GRU, but it may look at the token alone, not at the state. This is the **minGRU** (Feng et al. 2024):
#
# $$ h_t = (1 - z_t) \odot h_{t-1} + z_t \odot x_t W^\top, \qquad z_t = \sigma(x_t W_z^\top + b_z) . $$
#
# Linear in $h$, it can be scanned:

# %%
x = torch.randn(3, 50, 7)  # (B, T, D)
gate, content = nn.Linear(7, 7), nn.Linear(7, 7, bias=False)
z = gate(x).sigmoid()
a, b = 1 - z, z * content(x)  # both known for all tokens, before any state
same = torch.allclose(linear_loop(a, b), linear_scan(a, b), atol=1e-5)
print("states", tuple(linear_scan(a, b).shape), "loop equals scan:", same)

# %% [markdown]
# Mamba (Gu and Dao 2023) is of the same kind: what is kept depends on the token. Attention seemed to be the opposite of such a loop. Is it?

# %% [markdown]
# ## 9 · Attention without the softmax is such a loop
#
# Attention compares each query with all keys, so it must keep them all. Replace its measure of fit, $\exp(q \cdot k)$, by a product of features, $\phi(q) \cdot \phi(k)$ with $\phi(x) = \mathrm{elu}(x) + 1$, which is always positive (Katharopoulos et al. 2020):
#
# $$ y_t = \frac{\sum_{s \le t} (\phi(q_t) \cdot \phi(k_s))\, v_s}{\sum_{s \le t} \phi(q_t) \cdot \phi(k_s)}
#    = \frac{\phi(q_t) \sum_{s \le t} \phi(k_s)^\top v_s}{\phi(q_t) \cdot \sum_{s \le t} \phi(k_s)} . $$
#
# The second form has $\phi(q_t)$ taken out of the sums, which no $\phi$ of finite width does for the exponential. What is left in them needs no query, and can be carried from token to token, in a matrix (`K`, `K`) and a vector. They are section 8's loop twice, with $a_t = 1$ and $b_t = \phi(k_t)^\top v_t$ for the matrix, $b_t = \phi(k_t)$ for the vector: **linear attention is a recurrent network.** For training there is the first form, all positions at once:

# %%
show_source(linear_attention)

# %% [markdown]
# The second form is yours.

# %% [markdown]
# ### Exercise 14.7 · Implement and explain: linear attention, token by token
#
# Difficulty ●●●○○ · 40 minutes · needs section 9
#
# With $\phi(x) = \text{elu}(x) + 1$, entry by entry, linear attention computes for each head $y_t = \frac{\sum_{s \le t} (\phi(q_t) \cdot \phi(k_s))\, v_s}{\sum_{s \le t} \phi(q_t) \cdot \phi(k_s)}$, without a division by $\sqrt K$. Write the same as a loop's step: one token comes in, and all that is known of those before it is a state of fixed size, the sums $S = \sum_s \phi(k_s)^\top v_s$ and $z = \sum_s \phi(k_s)$. Write it without the library's linear attention.


# %% nbgrader={"grade": false, "grade_id": "ex14-7-linear-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def linear_step(q, k, v, state):
    """Linear attention of one new token to itself and all before it.

    Args:
        q: (B, H, K) query.
        k: (B, H, K) key.
        v: (B, H, E) value.
        state: tuple (S, z) of the tokens before: (B, H, K, E) and (B, H, K), zeros at the start; not to be changed.

    Returns:
        (y, state): y (B, H, E), and a new tuple (S, z) that includes this token.
    """
    ### BEGIN SOLUTION
    S, z = state
    q, k = F.elu(q) + 1, F.elu(k) + 1
    S = S + k[..., None] * v[..., None, :]  # (B, H, K, E)
    z = z + k
    top = (q[..., None, :] @ S).squeeze(-2)  # (B, H, E)
    return top / (q * z).sum(dim=-1, keepdim=True), (S, z)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex14-7-linear-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch14.linear_step(linear_step)

# %% [markdown]
# **Now explain.** How much does such a state remember? Below, pairs of a random key and a random value are stored, then each key is asked for its value; an answer counts if the right value is the nearest by its angle. *State* keeps the sum of $k^\top v$ and nothing else; *state, $\phi$* is your linear attention; *softmax* keeps all keys and values. Run it, change `width` and `pairs`, and then answer the questions below it.

# %% tags=["nbval-ignore-output"]
width, pairs = 16, 64  # your turn
keys, values = torch.randn(2, pairs, width, generator=torch.Generator().manual_seed(0))
features = F.elu(keys) + 1
answers = {
    "state": keys @ (keys.T @ values),
    "state, phi": features @ (features.T @ values)
    / (features @ features.sum(0))[:, None],
    "softmax": (keys @ keys.T / math.sqrt(width)).softmax(-1) @ values,
}
for name, answer in answers.items():
    nearest = (F.normalize(answer) @ F.normalize(values).T).argmax(dim=1)
    right = (nearest == torch.arange(pairs)).double().mean().item()
    print(f"{name:12}{100 * right:4.0f} % of {pairs} pairs found")

# %% [markdown]
# A few sentences will do:
#
# - (a) Write the answer to the query $k_i$ as the wanted value plus the rest. Why is the state without $\phi$ good as long as the pairs are far fewer than its width, and why does it fail when they are many more?
# - (b) Why is it worse still with $\phi$?
# - (c) What does softmax attention do about the rest, and what does it pay?
# - (d) Where in this course did a state of fixed size have to hold a whole text, and what helped there? What would you try here, if most of the work is to stay cheap?

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex14-7-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) The answer to the query $k_i$ is $\sum_s (k_i \cdot k_s)\, v_s = |k_i|^2 v_i + \sum_{s \ne i} (k_i \cdot k_s)\, v_s$: the wanted value and crosstalk. Random keys of width K are nearly orthogonal, $k_i \cdot k_s$ is of size $\sqrt K$ against $|k_i|^2 \approx K$, so n pairs make crosstalk of relative size $\sqrt{n / K}$: small while n is far below K, larger than the value when n is far above. More than K keys cannot even be chosen orthogonal, and a matrix of K E numbers cannot hold n E arbitrary ones if n > K.
#
# (b) $\phi$ makes all features positive, so every two keys have a positive product: the crosstalk does not cancel, and the answer is pulled towards the mean of all values. The normaliser makes it a mean; it does not make it sharper.
#
# (c) It keeps every key and compares again for each query; the exponential makes the best match far larger than the others, as if the features had very many dimensions. It pays with a cache that grows with the text, and with a comparison with all of it for each new token.
#
# (d) The encoder's last state in chapter 06 had to hold the whole sentence, and attention (chapter 07), which looks at all states again, helped. Here: a larger state; a state that makes room (a gate that forgets, or a delta rule that first takes away what a key brought before); or a few layers of softmax attention, perhaps only over the last tokens, among many of fixed state.
# ### END SOLUTION

# %% [markdown]
# Paste your answer in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch14.what_a_state_holds.compare(...)

# %% tags=["fold"]
# @title Checked: two forms, the same numbers
q, k, v = torch.randn(3, 2, 5, 9, 4, dtype=torch.float64)  # (B, H, T, K)
state = torch.zeros(2, 5, 4, 4).double(), torch.zeros(2, 5, 4).double()
steps = []
for t in range(9):
    y, state = linear_attention_step(q[:, :, t], k[:, :, t], v[:, :, t], state)
    steps.append(y)
claim(
    "Linear attention computed for all positions at once, and token by token from a state of fixed size, gives the same numbers.",
    torch.allclose(torch.stack(steps, 2), linear_attention(q, k, v)),
)

# %% tags=["fold"]
# @title Checked: exercise 14.7's pairs, 200 draws
def recall(seed, width=16, pairs=64):
    """Shares of random pairs that are found: state, state with phi, softmax."""
    keys, values = torch.randn(2, pairs, width, generator=torch.Generator().manual_seed(seed))
    phi = F.elu(keys) + 1
    ways = keys @ (keys.T @ values), phi @ (phi.T @ values) / (phi @ phi.sum(0))[:, None]
    ways += ((keys @ keys.T / math.sqrt(width)).softmax(-1) @ values,)
    found = [(F.normalize(way) @ F.normalize(values).T).argmax(1) == torch.arange(pairs) for way in ways]
    return torch.stack(found).double().mean(1)


recalled = torch.stack([recall(seed) for seed in range(200)]).mean(0)
claim(
    "Over 200 draws (width 16, 64 pairs) the state finds about a quarter of the values, the state with phi less than twice as many as a guess would, softmax more than four in five.",
    0.2 < recalled[0] < 0.33 and recalled[1] < 2 / 64 and recalled[2] > 0.8,
    shares=recalled.tolist(),
)

# %% [markdown]
# In 14.7 nothing was trained. What does a *trained* state remember? Two blocks learn to read `b7 k2 q7 ... k` and to say `2`: each token is one of 32 letters with one of ten digits, the last a letter alone. **Of 100 questions about 32 pairs, how many does linear attention answer right?**

# %%
guess_3 = predict("right answers to 100 questions about 32 pairs", ...)

# %% tags=["reveal"]
figures.linear_recall(linear_recurrences.commonest_digit)

# %% tags=["fold", "reveal"]
# @title The ledger: recall after training
STATES = ("linear attention", "gated recurrence", "GRU")
found = {row: ledger.values("linear-recall", row, "by_pairs") for row in ("softmax attention", *STATES)}
of_32 = {row: [run[-1] for run in runs] for row, runs in found.items()}
guess_3.compare(f"{100 * min(of_32['linear attention']):.0f} to {100 * max(of_32['linear attention']):.0f} (three seeds)")
claim(
    "In each of three seeds softmax attention answers more than 99 in 100 at every number of pairs; linear attention more than 97 with 4 pairs, fewer than 80 with 32, and each time fewer with more pairs.",
    min(min(run) for run in found["softmax attention"]) > 0.99
    and min(run[0] for run in found["linear attention"]) > 0.97
    and max(of_32["linear attention"]) < 0.8
    and all(run == sorted(run, reverse=True) for run in found["linear attention"]),
)
by_digit = [linear_recurrences.commonest_digit(count) for count in ledger.values("linear-recall", "GRU", "pairs")[0]]
means = {row: [sum(shares) / len(shares) for shares in zip(*found[row], strict=True)] for row in STATES}
apart = {row: [mean - line for mean, line in zip(means[row], by_digit, strict=True)] for row in STATES}
claim(
    "At every number of pairs the means of gated recurrence and GRU lie within two points of what naming the commonest digit scores; that of linear attention lies more than 40 points above it.",
    max(abs(gap) for row in STATES[1:] for gap in apart[row]) < 0.02 and min(apart["linear attention"]) > 0.4,
    **{f"{row}, above it by": gaps for row, gaps in apart.items()},
)

# %% [markdown]
# Linear attention, which stores products of key and value, learned to look up; that it fails by degrees as pairs are added suggests a limit. GRU and gated recurrence, with 22 and 2.7 times its parameters, score about what naming the commonest digit would: after 1,000 steps they show no lookup, so their curves do not measure what their states can hold. Some models mix both: Jamba (Lieber et al. 2024) has softmax attention in every eighth layer. *Going deeper* says how newer layers store more, and how attention looks things up.
#
# So much for the network. What makes it answer?

# %% [markdown]
# ## 10 · Where a chat model begins
#
# A language model continues a text, a chat model answers. It is the same network, trained further.
#
# **Instruction tuning** shows it requests with good answers, in a fixed form with special tokens for who speaks. This is SmolLM2's:

# %%
answer = "Seven.<|im_end|>"
print(smollm.in_chat_form("Name a prime number.") + answer)
print("^" * len(answer))

# %% [markdown]
# The loss is chapter 13's, counted only on the tokens above the `^`. The last, `<|im_end|>`, teaches the model to stop. SmolLM2 gets one question bare and in its form, and a second in its form:

# %% tags=["nbval-ignore-output"]
capital, german = smollm.QUESTIONS
prompts = {
    "bare 0": capital,
    "framed 0": smollm.in_chat_form(capital),
    "framed 1": smollm.in_chat_form(german),
}
try:
    source = smollm.find_smollm()
    smol, tokenizer = Llama.from_pretrained(source), huggingface.tokenizer(source)
    # always the likeliest token, 40 at most
    replies = {p: smollm.continued(smol, tokenizer, prompts[p]) for p in prompts}
except DataError:
    print("Not in the cache: here is the recorded run.")
    replies = {p: smollm.recorded(p) for p in prompts}
for p, question in zip(prompts, (capital, capital, german)):
    print(f"{p[:-2]:7} {question}")
    print(fill(replies[p], 80, initial_indent="     -> ", subsequent_indent=" " * 8))

# %% tags=["fold"]
# @title The ledger: with the form and without it
claim(
    "Recorded, one question each, always the likeliest token: after the bare question the model writes only the end of a turn; in the form of a chat it names Paris and ends its turn; for German it calls *Das* a verb, and *Hund*, the dog, does not come.",
    smollm.recorded("bare 0") == "<|im_end|>"
    and "Paris" in smollm.recorded("framed 0")
    and smollm.recorded("framed 0").endswith("<|im_end|>")
    and '"Das" (das) is a verb' in smollm.recorded("framed 1")
    and "Hund" not in smollm.recorded("framed 1"),
)

# %% [markdown]
# In the recorded run the bare question gets no answer, only the end of a turn, probably because that came after a user's question in training. In its form it is answered. German gets fluent nonsense: the model knew this capital, not this sentence. (One model, one question each; its matrices had 4 bits, so size need not be the reason.)
#
# **RLHF**, reinforcement learning from human feedback (Ouyang et al. 2022), builds on this: people can more easily say which of two answers is better than write a perfect one. A *reward model* is trained on such comparisons. Then the language model writes, is scored, and is changed so that high scores become likelier. A penalty holds it near the model that it was, or it would learn to please the reward model alone.
#
# **DPO** (Rafailov et al. 2023) learns from the comparisons directly, without a reward model; *Going deeper* has its loss.
#
# **Checkable answers** need no people: a sum is right, a program passes its tests. DeepSeek-R1-Zero (DeepSeek-AI 2025) learned to reason at length from such rewards; R1 also had written examples and preferences.

# %% [markdown]
# ## 11 · Errors you will meet
#
# None of these raises an exception.
#
# **1 · `repeat` in place of `repeat_interleave`.** With shared keys, neighbours share. `repeat` puts whole copies one after another, so query head 1 meets key head 1 and not 0. With $1 < G < H$ the shapes are right and the numbers are not:

# %%
key_heads = torch.tensor([0, 1])  # G = 2, shared by H = 6
q, (k, v) = torch.randn(1, 6, 5, 4), torch.randn(2, 1, 2, 5, 4)
wanted = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
ways = {"wrong": key_heads.repeat(3), "repaired": key_heads.repeat_interleave(3)}
for name, heads in ways.items():
    found = F.scaled_dot_product_attention(q, k[:, heads], v[:, heads])
    same = torch.allclose(found, wanted, atol=1e-6)
    print(f"{name:9}{heads.tolist()} equals grouped attention: {same}")

# %% [markdown]
# **2 · Each new token turned as if it were the first.** With a cache, the rotations must begin where the text stands, not at 0. Prefill is right, so short tests pass; then every generated token claims position 0.

# %%
attn = theirs.attn  # of section 5's small Llama, in float64
six = torch.randn(1, 6, 24).double()
angles = rotations(torch.arange(6).double(), small.key_width)
with torch.no_grad():
    wanted = attn(six, angles)[:, 5:]
    room = {"batch_size": 1, "num_heads": 2, "max_len": 6, "head_dim": 4}
    for name, place in (("wrong", 0), ("repaired", 5)):
        kept = KVCache(**room, dtype=torch.float64)
        attn(six[:, :5], angles[:5], kept)
        found = attn(six[:, 5:], angles[place : place + 1], kept)
        print(f"{name:9} equals the whole text:", torch.allclose(found, wanted))

# %% [markdown]
# **3 · Merging without $\alpha / r$.** The correction is $\frac{\alpha}{r} B A$. With $\alpha = r$ nobody notices; with $\alpha = 2r$, a common setting and ours, half of the correction is lost.

# %%
with torch.no_grad():
    tuned = adapted.blocks[0].attn.q_proj  # a LoRALinear with alpha = 2 r
    x, W = torch.randn(5, 64), tuned.linear.weight
    BA = tuned.update.B @ tuned.update.A
    for name, factor in (("wrong", 1.0), ("repaired", 4 / 2)):
        same = torch.allclose(x @ (W + factor * BA).T, tuned(x), atol=1e-4)
        print(f"{name:9} equals the adapted layer:", same)

# %% [markdown]
# ## 12 · Design and run an ablation
#
# Now it is your turn: a change, a guess, three seeds, and a sentence that says no more than they do.

# %% [markdown]
# ### Exercise 14.8 · Explore: an ablation of your own
#
# Difficulty ●●●○○ · 30 minutes · needs section 5
#
# An **ablation** changes one thing in a model, keeps all else equal, and measures what the change does. The cell below trains section 5's Llama (here with an output layer of its own) for 120 steps, as it is and with one change, from three seeds. Its change is an example: four heads of keys and values, not two.
#
# (a) Run it. What else differs between the two models of the example? Repair it.
#
# (b) Choose *one* other change: a size in the config, or a part replaced in the model, such as `model.norm = nn.Identity()`. Begin with one that you expect to be large: in 120 steps a small effect is lost in the spread between seeds. Before you run it, write down which loss you expect to be lower, by how much, and why.
#
# (c) Run it on the three seeds. Give the three differences. Are they larger than those between seeds?
#
# (d) Write one sentence that says what your runs show and no more, and name two things that they cannot show.
#
# Stuck? `ch14.an_ablation.hint(1)`, then `hint(2)` and `hint(3)`.

# %% tags=["nbval-ignore-output"]
def original():
    return Llama(replace(config, tied=False))


def changed():  # your turn: one change
    return Llama(replace(config, tied=False, num_kv_heads=4))


def one_run(build, seed):
    set_seed(seed)
    model = build()
    train(model, list(model.parameters()), ids, rate=4e-3, steps=120, batch=12)
    return valid_loss(model, ids)


for seed in range(3):
    was, now = one_run(original, seed), one_run(changed, seed)
    print(f"seed {seed}: {was:.3f} nats, changed {now - was:+.3f}")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex14-8-ablation", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) With four heads of keys and values the changed model has 8,192 more parameters (two blocks, two matrices, 32 × 64 more numbers each). With `dim_feedforward=147` it has nearly as many as the original: 3 × 64 × 21 = 4,032 fewer in each block, against 4,096 more.
#
# (b) One change, for example the last norm replaced by `nn.Identity()`. Expected: a higher loss, by a tenth of a nat or more, since the output layer then reads a stream that is short at the start, and its logits grow slowly. Equal: data and their order, steps, learning rate, batch, the seeds; the parameters except the norm's 64 weights.
#
# (c) Three differences, seed by seed, with their signs, beside the spread of the original over the seeds. If all three have one sign and are well above what a seed changes, the change had an effect here; if they straddle zero, these seeds do not say.
#
# (d) "In a Llama of about 100,000 parameters, after 120 steps on docstrings and at one learning rate, leaving out the last norm raised the validation loss in each of three seeds, by about 0.2 to 0.3 nats." They cannot show which model is better after a long training, or at its own best learning rate (neither was tuned), or at another size or on other text.
# ### END SOLUTION

# %% [markdown]
# Paste your answer in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch14.an_ablation.compare(...)

# %% [markdown]
# ## Summary
#
# 1. A Llama 3 8B is GPT-2 with four parts exchanged: RMSNorm, SwiGLU, RoPE, and shared keys and values, which shrink the cache by $H/G$. It has no biases, no dropout, and an output layer of its own.
# 2. Right shapes prove nothing about loaded weights: compare logits with those of another program.
# 3. LoRA trains a product of two thin matrices beside a frozen weight, 1 % of the numbers or less, and can be merged. Whole numbers of 8 bits with a scale for each row cost our small model almost nothing in loss, and take one byte in place of four, or of two.
# 4. The loop of chapter 03 returns: one that is linear in its state can be scanned in $\log_2 T$ rounds. Linear attention is one: the same numbers in parallel and step by step. What it pays is detail: of 64 random pairs a state of width 16 gave back about a quarter, and with $\phi$, as in linear attention, fewer than 1 in 32 (14.7).
# 5. A chat model is such a network, trained on answers and on preferences.
#
# ## Where next
#
# This is the end of the course. You began with a table of letter pairs, and now hold the networks of today and the loop they came from.
#
# - **Build:** take SmolLM2 (section 5), adapt it with `add_lora`, put it in 8 bits, and measure each step.
# - **Read:** the Llama 3 report (Dubey et al. 2024): section 3.2 describes the network that you built, section 4 goes on where our section 10 stops.
# - **Ask:** what does the last layer with softmax attention do that a state cannot?
#
# ## References
#
# - B. Zhang, R. Sennrich, *Root Mean Square Layer Normalization*, NeurIPS 2019, arXiv:1910.07467: equation 4. N. Shazeer, *GLU Variants Improve Transformer*, 2020, arXiv:2002.05202: equation 6, section 4.
# - J. Su et al., *RoFormer*, 2021, arXiv:2104.09864. J. Ainslie et al., *GQA*, EMNLP 2023, arXiv:2305.13245: section 2.2. N. Shazeer, *Fast Transformer Decoding*, 2019, arXiv:1911.02150.
# - H. Touvron et al., *LLaMA*, 2023, arXiv:2302.13971: section 2.2; *Llama 2*, 2023, arXiv:2307.09288. A. Dubey et al., *The Llama 3 Herd of Models*, 2024, arXiv:2407.21783: sections 3.2 to 3.4, 4. L. Ben Allal et al., *SmolLM2*, 2025, arXiv:2502.02737.
# - A. Henry et al., *Query-Key Normalization for Transformers*, 2020, arXiv:2010.04245. A. Jiang et al., *Mixtral of Experts*, 2024, arXiv:2401.04088. DeepSeek-AI, *DeepSeek-V2*, 2024, arXiv:2405.04434: section 2.1.
# - E. Hu et al., *LoRA*, 2021, arXiv:2106.09685: section 4. D. Kalajdzievski, *A Rank Stabilization Scaling Factor for Fine-Tuning with LoRA*, 2023, arXiv:2312.03732. T. Dettmers et al., *QLoRA*, NeurIPS 2023, arXiv:2305.14314; *LLM.int8()*, NeurIPS 2022, arXiv:2208.07339.
# - A. Katharopoulos et al., *Transformers are RNNs*, ICML 2020, arXiv:2006.16236: equations 7 to 12. A. Gu, T. Dao, *Mamba*, 2023, arXiv:2312.00752. L. Feng et al., *Were RNNs All We Needed?*, 2024, arXiv:2410.01201: section 3.1. G. Blelloch, *Prefix Sums and Their Applications*, 1990: section 1.4.
# - B. Peng et al., *RWKV*, EMNLP 2023, arXiv:2305.13048. S. Yang et al., *Gated Linear Attention Transformers*, ICML 2024, arXiv:2312.06635. T. Dao, A. Gu, *Transformers are SSMs* (Mamba-2), ICML 2024, arXiv:2405.21060. I. Schlag et al., *Linear Transformers Are Secretly Fast Weight Programmers*, ICML 2021, arXiv:2102.11174; S. Yang et al., *Parallelizing Linear Transformers with the Delta Rule*, NeurIPS 2024, arXiv:2406.06484. O. Lieber et al., *Jamba*, 2024, arXiv:2403.19887.
# - N. Elhage et al., *A Mathematical Framework for Transformer Circuits*, 2021, transformer-circuits.pub. C. Olsson et al., *In-context Learning and Induction Heads*, 2022, arXiv:2209.11895.
# - L. Ouyang et al., *Training Language Models to Follow Instructions with Human Feedback*, NeurIPS 2022, arXiv:2203.02155. R. Rafailov et al., *Direct Preference Optimization*, NeurIPS 2023, arXiv:2305.18290: equation 7. DeepSeek-AI, *DeepSeek-R1*, 2025, arXiv:2501.12948. Y. Leviathan et al., *Fast Inference from Transformers via Speculative Decoding*, ICML 2023, arXiv:2211.17192: section 2.3.

# %% [markdown]
# ## Going deeper
#
# Each part answers one question. The first seven belong to sections 5 to 10; the last three are about running and training large models.

# %% [markdown] tags=["deeper"]
# ### Why may the pairs of RoPE stand in another order?
#
# A score is a sum over entries, $q \cdot k = \sum_j q_j k_j$, and a sum does not care about the order. Let $P$ be a matrix that puts the entries of a head into another order: $(q P) \cdot (k P) = q \cdot k$. If queries and keys are both made in the new order (the rows of $W_q$ and $W_k$ exchanged), and RoPE turns the pairs where they stand now, each pair meets its own angle as before. For heads of width 4, neighbours (0, 1), (2, 3) become halves (0, 2), (1, 3) by the order 0, 2, 1, 3:

# %%
query, key = torch.randn(2, 1, 1, 6, 4).double()
factors = rotations(torch.arange(6).double(), 4)  # (T, K/2)


def rotate_halves(x):
    """Turn entry j with entry j + K/2, as files of Hugging Face have it."""
    first, second = x.chunk(2, dim=-1)
    y = torch.complex(first, second) * factors
    return torch.cat([y.real, y.imag], dim=-1)


order = [0, 2, 1, 3]
neighbours = rotate(query, factors) @ rotate(key, factors).mT
halves = rotate_halves(query[..., order]) @ rotate_halves(key[..., order]).mT
careless = rotate_halves(query) @ rotate_halves(key).mT
print("rows exchanged: equal scores", torch.allclose(neighbours, halves))
print("left as they are:           ", torch.allclose(neighbours, careless))

# %% [markdown]
# The values are not turned, so their matrix stays as it is. A loader that forgets the exchange raises no error. But the fastest pair turns by a whole radian a token, so scores between different positions are wrong.

# %% [markdown] tags=["deeper"]
# ### What else do newer models change?
#
# Often some of these:
#
# - **mixture of experts** (Jiang et al. 2024): many feed-forward networks, of which each token is sent to a few, so a model has far more parameters than it uses for a token;
# - **multi-head latent attention** (DeepSeek-AI 2024): the cache keeps one short vector for each token, from which the keys and values of all heads are made;
# - **sliding windows**: some blocks look only at the last few thousand tokens, and keep no more in their cache;
# - **QK-norm** (Henry et al. 2020): queries and keys are normed before their product;
# - **rescaled RoPE**: the slow hands are slowed further, for longer texts (`rope_scaling`, as in Llama 3.1); that every position has an angle does not mean that a trained model copes there (chapter 08, section 8);
# - **states that forget**: section 9's state only adds. RWKV (Peng et al. 2023), gated linear attention (Yang et al. 2024) and Mamba-2 (Dao and Gu 2024) let what is old fade; DeltaNet (Schlag et al. 2021) first takes out what this key had stored.

# %% [markdown] tags=["deeper"]
# ### Why is one of LoRA's matrices zero, and not both?
#
# The output is $x A^\top B^\top$, times $\alpha / r$. (Kalajdzievski 2023 argues for $\alpha / \sqrt r$.) By the product rule the gradient for $B$ contains $x A^\top$, and the gradient for $A$ contains $B$. If $B = 0$, then $A$ gets no gradient in the first step, but $B$ does, and from the second step on both learn. If both are 0, both gradients are 0, now and for ever:

# %%
linear = nn.Linear(5, 3)
for start in ("B zero", "both zero"):
    update = LowRankUpdate(linear.weight, rank=2, alpha=4)
    if start == "both zero":
        nn.init.zeros_(update.A)
    (linear(torch.ones(4, 5)) + update(torch.ones(4, 5))).square().sum().backward()
    parts = update.named_parameters()
    moves = {name: bool(p.grad.abs().max() > 0) for name, p in parts}
    print(f"{start:10} has a gradient:", moves)

# %% [markdown] tags=["deeper"]
# ### Are eight bits also faster?
#
# On paper, yes, if the bytes are multiplied as they are. For one new token of one text, nearly each weight is fetched from memory and used once, and fetching takes far longer than computing. With 6.74 billion parameters on a GPU that reads $3.35 \cdot 10^{12}$ bytes and does about $10^{15}$ operations a second:

# %%
parameters = counted["llama-2-7b"]
print(f"arithmetic      {1e3 * 2 * parameters / 1e15:.3f} ms a token")
for bits in (16, 8, 4):
    fetching = parameters * bits / 8 / 3.35e12  # seconds
    print(f"read in {bits:2} bits {1e3 * fetching:.2f} ms a token")

# %% [markdown]
# Half of the bytes, half of the time, as long as memory is what we wait for: one text, or a few. Measured on one core, with a surprise in the middle row (GPT-2's sizes for the time, chapter 13's Shakespeare model for the loss; *share of memory speed*: 100 % = as fast as this core can merely read the weights):

# %% tags=["fold"]
# @title The ledger: speed and loss in eight bits
FORMS = {"float32": "float32", "weights in 8 bits": "8 bits", "activations too": "8 bits, also activations"}
speeds = {name: ledger.values("eight-bits", f"writing, {form}", "tokens_per_second") for name, form in FORMS.items()}
faster = {name: [a / b for a, b in zip(values, speeds["float32"], strict=True)] for name, values in speeds.items()}
of_memory = {name: ledger.values("eight-bits", f"writing, {form}", "share") for name, form in FORMS.items()}
eight_loss = {name: ledger.values("eight-bits", f"Shakespeare, {form}", "valid_loss")[0] for name, form in FORMS.items()}


def span(values, form):
    """The least and the greatest of the repetitions."""
    return f"{min(values):{form}} to {max(values):{form}}"


table(
    ["GPT, one text", "speed, float32 = 1", "share of memory speed", "validation loss"],
    [[name, span(faster[name], ".2f"), span(of_memory[name], ".0%"), f"{eight_loss[name]:.4f}"] for name in FORMS],
)
claim(
    "In each of three repetitions 8 bits for weights and activations write more than 1.6 times as fast as float32; for weights alone, at most 1.2 times. The loss changes by less than a thousandth.",
    min(faster["activations too"]) > 1.6
    and max(faster["weights in 8 bits"]) < 1.2
    and max(abs(loss - eight_loss["float32"]) for loss in eight_loss.values()) < 1e-3,
)

# %% [markdown]
# With weights alone our program writes each matrix out in `float32` before it multiplies, and the gain is gone. In the last row the incoming vectors have 8 bits too (`activations`), each with its own scale (`to_int8`); whole numbers are multiplied as they are, then both scales. (Large models are harder: from about 6.7 billion parameters on, Dettmers et al. (2022) found entries of the activations so large that 8 bits with one scale a vector are too coarse for them; they multiply those in 16. QLoRA (Dettmers et al. 2023) joins sections 6 and 7: frozen weights in four bits, and a LoRA trained beside them.)

# %%
show_source(dequantize, Int8Linear.forward, Int8Linear.integer_sums)

# %% [markdown] tags=["deeper"]
# ### How does the time grow with the text?
#
# Of the loop, the scan, attention and linear attention: on one processor core, with linear attention in chunks of 64, all pairs within a chunk and the state between chunks:

# %%
show_source(linear_attention_chunked, linear_scan)

# %% tags=["nbval-ignore-output"]
rows = []
for T in tqdm((64, 128, 256, 512, 1024, 2048), leave=False):
    (a, b), (q, k, v) = torch.rand(2, 1, T, 64), torch.randn(3, 1, 4, T, 16)
    ways = {"loop": partial(linear_loop, a, b), "scan": partial(linear_scan, a, b)}
    ways["attention"] = partial(attention, q, k, v, causal=True)
    ways["linear attention"] = partial(linear_attention_chunked, q, k, v)
    found = measure.seconds(ways, rounds=3)
    rows.append({"T": T, **{name: 1e3 * seconds for name, seconds in found.items()}})
figures.times_by_length(rows)

# %% tags=["fold"]
# @title Checked: how the time grows
longest = {name: rows[-1][name] / rows[-3][name] for name in rows[0] if name != "T"}
claim(
    "From 512 to 2,048 tokens attention's time grows by a larger factor than the loop's and than linear attention's; at 2,048 the scan takes less time than the loop and than attention.",
    longest["attention"] > max(longest["loop"], longest["linear attention"])
    and rows[-1]["scan"] < min(rows[-1]["loop"], rows[-1]["attention"]),
    **{f"{name} grows": factor for name, factor in longest.items()},
)

# %% [markdown]
# For twice as long a text the loop and linear attention take about twice as long, attention more than that. The scan promises no such thing: one core does all its $T \log_2 T$ work in turn. At 2,048 tokens it beats the loop for a plain reason: the loop is 2,048 steps of Python, the scan 11 rounds of large operations.

# %% [markdown] tags=["deeper"]
# ### How does a Transformer copy?
#
# The mixtures of section 9 keep some attention, because it can look things up. How does it do that? One case is understood well. A text names *Mr Dursley* early on; when *Mr Durs* comes again, a good guess is *ley* (the example is that of Elhage et al. 2021). The rule needs no English: **look for where this token stood last time, and say what came after it then.** A head that does this is an **induction head** (Olsson et al. 2022).

# %%
diagrams.show("induction_head")

# %% [markdown]
# Why does it take two layers? The query knows the token *now*. The key that it wants is that of the token *after* the earlier copy. So this key must say "the one before me was ...", which its own embedding does not know. A first layer has to bring it there: a head that looks one place back. Then a second can compare. Built by hand, with one-hot vectors instead of learned ones, and in layer 1 a shift that stands in for a head that looks one place back:

# %%
text = "dursley met durs"
letters = sorted(set(text))
tokens = torch.tensor([letters.index(c) for c in text])  # (T,)
here = F.one_hot(tokens, len(letters)).float()  # (T, V): each place knows its token
previous = F.pad(here[:-1], (0, 0, 1, 0))  # layer 1: each is told the one before it
matches = here @ previous.T  # layer 2: who was preceded by the token that I have now?
past = torch.ones(len(text), len(text)).tril() > 0
attend_to = (10 * matches).masked_fill(~past, -math.inf).softmax(dim=-1)  # (T, T)
says = (attend_to @ here).argmax(dim=-1)  # copy the token that is found
print("read:", text[-4:], "-> says:", "".join(letters[i] for i in says[-4:]))

# %% [markdown]
# At the second *durs* it says `u` after `d`, `r` after `u`, and at the end `l`. Nothing was learned here; these lines show what two attention layers *could* do.
#
# Does training find such heads? The ledger's models have attention only, no feed-forward networks, and read random tokens that begin to repeat at a random place. Only by looking back can the second half be predicted. The dashed line, *counting only*, is the loss of somebody who knows how often each token came before, and not where.

# %%
figures.induction_heads()

# %% tags=["fold"]
# @title The ledger: one layer and two
def induction(row, metric):
    """One number for each seed."""
    return ledger.values("induction-heads", row, metric)


claim(
    "In every recorded seed two layers predict the repeated half with a loss below 1 nat; one layer, even one with more parameters, does worse than counting only.",
    max(induction("two layers", "second_loss")) < 1
    and min(induction("one layer", "second_loss") + induction("one layer, wide", "second_loss"))
    > max(induction("bag", "second_loss"))
    and induction("one layer, wide", "parameters")[0] > induction("two layers", "parameters")[0],
    two_layers=induction("two layers", "second_loss"),
    one_layer=induction("one layer", "second_loss"),
    one_layer_wide=induction("one layer, wide", "second_loss"),
    seeds=len(induction("two layers", "second_loss")),
)
claim(
    "In every seed a head of the second layer puts more than half of its attention on the token that came after, and one of the first layer more than a quarter on the token before; no head of the one-layer models reaches a tenth in either.",
    all(max(heads[1]) > 0.5 for heads in induction("two layers", "induction"))
    and all(max(heads[0]) > 0.25 for heads in induction("two layers", "previous"))
    and max(
        max(heads[0])
        for row in ("one layer", "one layer, wide")
        for metric in ("induction", "previous")
        for heads in induction(row, metric)
    )
    < 0.1,
)

# %% [markdown]
# The loss falls slowly for some 400 steps and then drops steeply, probably because each of the two heads is useful only when the other exists. This may also be where few-shot prompting (chapter 13) begins; for large models Olsson et al. collect signs of it, not a proof.

# %% [markdown] tags=["deeper"]
# ### How does DPO learn from preferences without a reward model?
#
# For a request $x$ with a better answer $y_w$ and a worse one $y_l$, with $\pi_\theta$ the model and $\pi_0$ a frozen copy of it from the start, its loss is
#
# $$ \mathcal{L} = -\ln \sigma\!\left( \beta \ln \frac{\pi_\theta(y_w \mid x)}{\pi_0(y_w \mid x)} - \beta \ln \frac{\pi_\theta(y_l \mid x)}{\pi_0(y_l \mid x)} \right) . $$
#
# An answer's log-probability is the sum over its tokens. The loss falls when the better answer has gained more than the worse one, compared with the frozen copy. At the start both ratios are 1 and the loss is $\ln 2$. No text is generated during training. With LoRA the copy needs no memory: it is the model without its correction. (Its forward pass must still be computed.)

# %% [markdown] tags=["deeper"]
# ### How can a small model make a large one write faster, and change nothing?
#
# A large model waits for its memory at every token (*Are eight bits also faster?*). So let a small *draft* model write a few tokens, and let the large one read them all at once, which takes hardly longer than one. In **speculative decoding** (Leviathan et al. 2023) the text still has *exactly* the large model's distribution. Let the draft have drawn $x$ with probability $q(x)$, where the large model has $p(x)$:
#
# 1. accept $x$ with probability $\min(1, p(x) / q(x))$;
# 2. otherwise draw from what is missing: $\max(0, p - q)$, made to sum to 1.
#
# How likely is each token to come out? Computed, not sampled:

# %%
p = torch.tensor([0.5, 0.3, 0.2, 0.0])  # the large model
q = torch.tensor([0.2, 0.2, 0.5, 0.1])  # the draft
accepted = q * (p / q).clamp(max=1)  # drawn and accepted: min(p, q)
missing = (p - q).clamp(min=0)
rejected = 1 - accepted.sum()
comes_out = accepted + rejected * missing / missing.sum()
print("accepted ", accepted, f"together {accepted.sum():.1f}")
print("comes out", comes_out)

# %% tags=["fold"]
# @title Checked: exact for any two distributions
p_many, q_many = torch.randn(2, 1000, 13, dtype=torch.float64).mul(3).softmax(-1)
kept_many = q_many * (p_many / q_many).clamp(max=1)
lacking = (p_many - q_many).clamp(min=0)
out_many = kept_many + (1 - kept_many.sum(-1, keepdim=True)) * lacking / lacking.sum(-1, keepdim=True)
claim(
    "For 1,000 random pairs of distributions, accepting and correcting gives the large model's distribution exactly, whatever the draft proposes; drawing anew from p after a rejection would not.",
    torch.allclose(out_many, p_many)
    and (kept_many + (1 - kept_many.sum(-1, keepdim=True)) * p_many - p_many).abs().max() > 0.01,
)

# %% [markdown]
# The reason is one line: $\min(p, q) + \max(0, p - q) = p$, and what is rejected is exactly as much as what is missing. A bad draft costs time, never quality.

# %% [markdown] tags=["deeper"]
# ### How many tokens does a draft save?
#
# Say each token of the draft is accepted with probability $c$, independently of the others, and it writes $n$ tokens before the large model reads them. The first rejected token is corrected, and if all are accepted, the large model gives one more for nothing. So between 1 and $n + 1$ tokens come from one reading, and their mean is
#
# $$ 1 + c + c^2 + \dots + c^n = \frac{1 - c^{n+1}}{1 - c} . $$

# %%
guess_4 = predict("tokens for each reading, with c = 0.8 and n = 5", ...)

# %%
c, n = 0.8, 5
mean_tokens = (1 - c ** (n + 1)) / (1 - c)
draws = torch.rand(100_000, n, generator=torch.Generator().manual_seed(0)) < c
drawn = 1 + draws.cumprod(dim=1).sum(dim=1).double().mean().item()  # accepted in a row

# %% tags=["fold", "reveal"]
# @title By the formula, and drawn 100,000 times
guess_4.compare(f"{mean_tokens:.2f} tokens")
claim("Drawn 100,000 times, the mean agrees with the formula to 0.02.", abs(drawn - mean_tokens) < 0.02, drawn=drawn)

# %% [markdown]
# About 3.7 tokens for one reading by the large model. The gain in time is less: the draft's own five readings must be paid, and its 80 % is an average over easy words and hard ones.

# %% [markdown] tags=["deeper"]
# ### What can eight GPUs do with a large model, and what a thousand?
#
# Llama 3 70B has 70 billion parameters ($P$, as in chapter 13's section 9) and read 15 trillion tokens ($M$). Take GPUs with 80 gigabytes that can do $10^{15}$ operations a second, used at 40 % of that. Check each number on paper:

# %%
P, M = 70e9, 15e12
operations = 6 * P * M
counts = []
for gpus in (8, 1000):
    seconds = operations / (gpus * 0.4 * 1e15)
    share_of_adam = 16 * P / gpus / 1e9  # GB each, if all is shared out
    one_copy = 2 * P / gpus / 1e9  # the weights alone in 16 bits
    counts.append([gpus, seconds / 86400, share_of_adam, one_copy])
print(f"{operations:.1e} operations")
table(["GPUs", "days", "training, GB each", "weights only, GB each"], counts)

# %% [markdown]
# Eight GPUs would need 62 years, and cannot hold what Adam needs; but they can hold the weights, so they serve the model, or train a LoRA for it. A thousand need half a year. Three ways to divide the work are combined:
#
# | | what is divided | what travels | needs |
# |---|---|---|---|
# | ZeRO (FSDP) | weights, gradients, moments; each GPU has its own texts | a block's weights, when they are used | a large batch |
# | tensor parallel | every matrix, by columns or rows | activations, twice a block | fast links |
# | pipeline parallel | the blocks, ten here, ten there | activations, between neighbours | several small batches at once |
#
# Tensor parallel inside a machine of eight, pipelines and ZeRO between machines: this is how the largest Llamas were trained (Dubey et al. 2024, section 3.3). For the longest texts the context was divided too.
