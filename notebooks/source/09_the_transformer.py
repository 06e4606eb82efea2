# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 270
#     needs: "chapters 06 (translation), 07 (attention) and 08 (position)"
# ---

# %% [markdown]
# # 09 · The Transformer
#
# Two translators without any loop are trained on the same 4,000 sentence pairs. They have the same layers, the same number of
# parameters and start from the same numbers; one differs in a single word, `causal=False`: its decoder may look ahead. In the second epoch its training loss is less than a third of the other's.
# **Which of the two will translate better?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("full_transformer")

# %% tags=["setup", "fold"]
# @title Imports
import math
import warnings

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import datasets, generate, ngram, text, translation
from course_lib.attention import attention_backend, record_attention
from course_lib.exercises import ch09
from course_lib.experiments import toy_reviews, toy_translation
from course_lib.experiments import toy_transformer as toys
from course_lib.functional import causal_mask, padding_mask
from course_lib.notebook import claim, diagrams, ledger, markdown, predict, show_source, table
from course_lib.notebook.figures import ch09 as figures
from course_lib.positional import Sinusoidal
from course_lib.rnn import RNN
from course_lib.train import set_seed
from course_lib.transformer import (
    RESIDUALS,
    DecoderLayer,
    EncoderLayer,
    Transformer,
    TransformerDecoder,
    TransformerEncoder,
    post_ln,
    pre_ln,
    rezero,
)
from course_lib.transformer_models import TokenEmbedding, TransformerClassifier, TransformerLM, Translator
from course_lib.utils import number_of_parameters

set_seed(0)

# %% [markdown]
# The picture shows the whole model; every box in it will be built in this chapter. For now, here is the one that may look ahead, with its one word, and the training of both.

# %%
class Peeking(Translator):
    """A Translator whose decoder may look ahead."""

    def decode(self, target_in, memory, source_real=None, kv_caches=None):
        """As in Translator, but for one word: causal=False."""
        past = kv_caches[0].length if kv_caches else 0  # words that were read before
        x, mask = self.target_embedding(target_in, past), padding_mask(source_real)
        x = self.transformer.decoder(
            x, memory, None, mask, causal=False, kv_caches=kv_caches
        )
        return self.target_embedding.logits(x)

# %%
task = toy_translation.toy_task(pairs=4000, test=500, seed=0)
options = {"epochs": 4, "batch_size": 32, "learning_rate": 2e-3}
set_seed(0)
translator = toys.toy_translator(task)
history = toy_translation.train_translator(translator, task, **options)

# %%
set_seed(0)
peeking = toys.toy_translator(task, kind=Peeking)
peeking_history = toy_translation.train_translator(peeking, task, **options)

# %%
guess_1 = predict("how many of 100 new sentences the look-ahead one gets right", ...)

# %% tags=["fold", "reveal"]
# @title Both on new sentences
honest_loss, peeking_loss = history[1]["train_loss"], peeking_history[1]["train_loss"]
scores = toy_translation.translation_scores(translator, task)
peeking_scores = toy_translation.translation_scores(peeking, task, first=100)
guess_1.compare("fewer than 2")
claim(
    "In the second epoch the loss of the one that may look ahead is less than a third of the other's.",
    peeking_loss < honest_loss / 3,
    look_ahead=f"{peeking_loss:.3f} nats per word",
    causal=f"{honest_loss:.3f} nats per word",
)
claim(
    "After four epochs it translates fewer than 2 of 100 new sentences without a mistake; the other more than 90.",
    peeking_scores["exact"] < 0.02 and scores["exact"] > 0.9,
    look_ahead=f"{peeking_scores['exact']:.1%}",
    causal=f"{scores['exact']:.1%}",
)

# %% [markdown]
# The low loss was no knowledge: the word to be predicted stood in the input, one place further on, and the model learned to look there. When it generates,
# that place is empty. A triangle of booleans is what makes a Transformer's training honest, and this chapter puts it, and every other part, in its place.

# %% [markdown]
# ## You will be able to
#
# 1. say what a direct function computes that a loop cannot, and which tasks need the one that sees everything (section 1, exercise 9.7);
# 2. write LayerNorm (exercise 9.1), compute by hand what three residual forms do (9.2), and build an encoder block from tensors (9.3);
# 3. find the bug that turns "Pre-LN" code into something else (9.4);
# 4. say what queries, keys and values are in each of the three attentions, and write cross-attention (9.5);
# 5. train with a mask, generate with a loop, and show that both compute the same (9.6);
# 6. choose the style of Transformer, and the way to pool, for a task, and test a model for the four properties that it must have (9.7).
#
# Letters: `B` sequences in a batch, `S` source tokens, `T` target tokens (or tokens, if there is one sequence), `D` the model's width, `H` heads of width
# `K` = `D`/`H`, `F` the width inside the feed-forward network, `N` layers, `V` words. A mask is boolean, `True` = may attend, and broadcasts to (B, H, T, S).

# %% [markdown]
# ## 1 · A direct function in place of a loop
#
# A recurrent layer is a **loop**: $h_t = f(x_t, h_{t-1})$. The state $h_{t-1}$ must hold whatever of $x_1 \ldots x_{t-1}$ will be needed. The
# alternative is a **direct function** of the inputs themselves:
#
# $$ y_t = f(x_1, \ldots, x_t) \quad\text{(causal)} \qquad\text{or}\qquad y_t = f(x_1, \ldots, x_T) \quad\text{(full)}. $$

# %%
diagrams.show("direct_function")

# %% [markdown]
# $f$ takes sequences of any length: that is what attention does (chapter 07). One copy of $f$ for each $t$, side by side, is a **Transformer layer**. We compute it both ways: $T$ separate calls on
# prefixes, each for one output; and one call with a causal mask.

# %%
set_seed(1)
layer = EncoderLayer(d_model=8, num_heads=2, dim_feedforward=16, dropout=0.0)
x = torch.randn(3, 12, 8)  # (B, T, D)
with torch.no_grad():
    at_once = layer(x, causal=True)
    prefix_by_prefix = [layer(x[:, : t + 1])[:, -1:] for t in range(12)]
    prefixes = torch.cat(prefix_by_prefix, dim=1)  # (B, T, D)
    twice_as_long = layer(torch.cat([x, x], dim=1), causal=True)
diagrams.show("transformer_as_parallel_units")

# %% tags=["fold"]
# @title Check: both ways agree, at any length
claim(
    "T copies of the direct function, one for each prefix, give what one causal call gives.",
    torch.allclose(prefixes, at_once, atol=1e-6),
    largest_difference=(prefixes - at_once).abs().max(),
)
claim(
    "The copies share their weights: the same layer takes a sequence twice as long, and begins with the same outputs.",
    torch.allclose(twice_as_long[:, :12], at_once, atol=1e-6),
    parameters=number_of_parameters(layer),
)

# %% [markdown]
# Who depends on whom? We measure it: $\lVert \partial y_t / \partial x_s \rVert$, how strongly output $t$ reacts to input $s$, for a recurrent layer, a causal and a full Transformer layer, none of them trained.
# Before you look, sketch the three pictures: where are they exactly zero, and where do they fade?

# %%
set_seed(2)
recurrent = RNN(8, 8)
functions = {
    "loop (RNN)": lambda x: recurrent(x)[0],
    "direct, causal": lambda x: layer(x, causal=True),
    "direct, full": layer,
}


def reaction(function, T=12):
    """Mean over six sequences of the norm of dy_t / dx_s: (T, T)."""
    norms = []
    for _ in range(6):
        jacobian = torch.autograd.functional.jacobian(function, torch.randn(1, T, 8))
        norms.append(jacobian[0, :, :, 0].norm(dim=(1, 3)))  # (T, D, T, D) to (T, T)
    return torch.stack(norms).mean(0)


set_seed(3)
reactions = {name: reaction(function) for name, function in functions.items()}

# %%
guess_2 = predict(
    "the loop's reaction to 8 steps back, in % of that to 1 step back", ...
)

# %% tags=["reveal"]
figures.reactions(reactions)

# %% tags=["fold", "reveal"]
# @title The same in numbers
def fraction_left(matrix):
    """Mean reaction to an input 8 steps back, as a fraction of that to 1 step back; of the last 4 outputs."""
    far, near = (sum(matrix[t, t - k].item() for t in range(8, 12)) for k in (8, 1))
    return far / near


loop, causal, full = reactions.values()
guess_2.compare("less than 10 %")
claim(
    "Loop and causal function react to nothing later; the full function reacts to every input.",
    loop.triu(1).max() == 0 and causal.triu(1).max() == 0 and full.min() > 0,
)
claim(
    "Of its reaction to 1 step back the loop has less than a tenth left at 8 steps, the causal function more than half.",
    fraction_left(loop) < 0.1 and fraction_left(causal) > 0.5,
    loop=f"{fraction_left(loop):.2g}",
    causal=f"{fraction_left(causal):.2g}",
)

# %% [markdown]
# So a Transformer layer has
#
# - **no state handed on:** nothing passes from unit to unit, so all outputs can be computed at the same time, and no gradient has to travel back through the steps. Every input is one step away. Chapter 10 measures what that buys and what it costs;
# - **a choice of function:** causal to predict what comes next; full to *understand*, where "it" may be explained by the last word of the sentence (chapter 07). A full layer does what a bidirectional recurrent layer does (chapter 03).
#
# **A word on names.** In a recurrent layer the output is the state, $y_t = h_t$. In a stack we write $h^{[n]}_t$ for the output of layer $n$ at position $t$, and the last one, $h^{[N]}_t$, is what a readout turns
# into scores. Many texts go on calling $h$ a *latent state*. No loop keeps it; it is a summary of what position $t$ can see.

# %% [markdown]
# ## 2 · What happens at each position
#
# Attention mixes positions. Everything else in a Transformer works on each position for itself, with the same weights everywhere.
#
# **Embedding.** A token's row of a table $E$ (V, D), times $\sqrt D$, plus its position $p_t$ (chapter 08):
#
# $$ x_t = \sqrt D\, E[\text{id}_t] + p_t . $$
#
# It is a sum, and nothing is concatenated. The factor is there because the same table, tied, is the output layer, where small entries keep the first logits small. What would the model see without it? We compare the sizes of the two parts.

# %%
show_source(TokenEmbedding.forward)
set_seed(0)
embedding = TokenEmbedding(1000, 64)
table_std = embedding.embedding.weight.std()
scaled_std = embedding(torch.arange(1000)[None]).std()
position_std = Sinusoidal(64).add(torch.zeros(1, 30, 64)).std()

# %% tags=["fold"]
# @title How large the word is, and how large its position
table(
    ["what", "standard deviation of its entries"],
    [
        ["the table's rows", table_std.item()],
        ["times $\\sqrt D$", scaled_std.item()],
        ["sinusoidal positions", position_std.item()],
    ],
)
claim(
    "Unscaled, the word would be less than a quarter as large as its position; scaled, it is the larger part.",
    table_std < position_std / 4 and scaled_std > position_std,
)

# %% [markdown]
# **Feed-forward.** Two linear layers with a ReLU between them, usually $F = 4D$:
#
# $$ \mathrm{ff}(x_t) = W_2\, \mathrm{relu}(W_1 x_t + b_1) + b_2, \qquad W_1\ (F, D),\quad W_2\ (D, F). $$
#
# The same network at every $t$: in the language of images, a convolution whose kernel has size 1. (`gate` belongs to a variant, and is `None` here.)

# %%
show_source(EncoderLayer.feed_forward)
narrow, wide = nn.Conv1d(8, 16, kernel_size=1), nn.Conv1d(16, 8, kernel_size=1)
with torch.no_grad():
    for convolution, linear in ((narrow, layer.linear1), (wide, layer.linear2)):
        convolution.weight.copy_(linear.weight[..., None])  # (out, in, 1)
        convolution.bias.copy_(linear.bias)
    by_convolution = wide(F.relu(narrow(x.transpose(1, 2)))).transpose(1, 2)
    by_linear = layer.feed_forward(x)
    same_words = x.clone()
    same_words[:, 7] = same_words[:, 2]  # two equal vectors in each sequence
    of_equal, whole_layer = layer.feed_forward(same_words), layer(same_words)

# %% tags=["fold"]
# @title Check: a convolution of width 1; equal vectors
claim(
    "With the same weights, two 1-D convolutions with kernel 1 give what the feed-forward network gives.",
    torch.allclose(by_convolution, by_linear, atol=1e-6),
)
claim(
    "Equal vectors at two places get equal outputs, from the feed-forward network and, without positions, from the whole layer.",
    torch.allclose(of_equal[:, 7], of_equal[:, 2])
    and torch.allclose(whole_layer[:, 7], whole_layer[:, 2], atol=1e-6),
)

# %% [markdown]
# **Add & Norm.** Each sublayer (attention, feed-forward) is *added* to what it read, the **residual connection**, and the sum is normalised. LayerNorm makes mean 0 and variance 1 out of
# each single vector $x$ of $D$ entries, then applies a learned gain $\gamma$ and offset $\beta$, both (D,):
#
# $$ \mu = \frac1D \sum_d x_d, \qquad \sigma^2 = \frac1D \sum_d (x_d - \mu)^2, \qquad \mathrm{LayerNorm}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta . $$
#
# The batch plays no part, nor do the other positions: what a word gets cannot depend on its neighbours or on padding. Two details are often written wrongly: the sum of squares is divided by $D$, not by $D - 1$, and $\epsilon$ stands inside the root.
#
# **Common mistake.** It is easy to write `(x - mean) / (std + eps)` with torch's `std`, which divides by $D - 1$. How far off is it?

# %%
def copied_norm(vectors):
    """The common mistake: torch's std divides by D - 1, and eps stands outside."""
    centred = vectors - vectors.mean(-1, keepdim=True)
    return centred / (vectors.std(-1, keepdim=True) + 1e-6)


set_seed(0)
differences = {}
for width in (8, 64, 512):
    sample = torch.randn(1000, width)
    right_norm = F.layer_norm(sample, (width,), eps=1e-6)
    differences[width] = (copied_norm(sample) - right_norm).abs().max().item()

# %% tags=["fold"]
# @title How far off it is
claim(
    "At width 8 an entry is off by more than 0.05, at width 512 by less than 0.01: it looks like rounding, and is not.",
    differences[8] > 0.05 and 1e-4 < differences[512] < 0.01,
    **{f"width {width}": difference for width, difference in differences.items()},
)

# %% [markdown]
# A model *trained* so does not mind: the gain absorbs the factor. It breaks when weights are loaded from elsewhere (section 5). The correct version is yours to write:
#
# ### Exercise 9.1 · LayerNorm from tensors
#
# Difficulty ●●○○○ · 10 minutes · needs section 2


# %% nbgrader={"grade": false, "grade_id": "ex09-1-layer-norm", "locked": false, "schema_version": 3, "solution": true, "task": false}
def layer_norm(x, weight, bias, eps):
    """Normalise each vector, then apply gain and offset, without torch's norms (F.layer_norm, nn.GroupNorm ...).

    Args:
        x: (B, T, D).
        weight: (D,), the gain.
        bias: (D,), the offset.
        eps: float above 0.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return weight * centred / torch.sqrt(variance + eps) + bias
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-1-layer-norm-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch09.layer_norm(layer_norm)

# %% [markdown]
# ### Three ways to add
#
# Where the norm stands is a choice, and `course_lib` treats it as one: a function of the vectors `x`, the `sublayer` and its `norm` (what else it is given, such as a mask, it hands on to the sublayer). An encoder layer gets one of the three by name.

# %%
show_source(post_ln, pre_ln, rezero)

# %% [markdown]
# | `residual=` | $x$ becomes | from |
# |---|---|---|
# | `post-ln` | $\mathrm{norm}(x + f(x))$ | Vaswani et al. 2017, section 3.1: the text of the paper |
# | `pre-ln` | $x + f(\mathrm{norm}(x))$ | the authors' later code, GPT-2; Xiong et al. 2020 |
# | `rezero` | $x + \alpha f(x)$, $\alpha = 0$ at the start | Bachlechner et al. 2021 |
#
# Pre-LN and ReZero keep a straight road through all layers on which $x$ passes unchanged. What does each make of its input before any training? Which returns exactly what it was given?

# %%
set_seed(0)
x64 = torch.randn(4, 20, 64)
sizes, similar = {}, {}  # standard deviation of the output, cosine with the input
for residual in RESIDUALS:
    layers = [EncoderLayer(64, 4, 256, 0.0, residual=residual) for _ in range(12)]
    with torch.no_grad():
        out = TransformerEncoder(layers)(x64)
    sizes[residual] = out.std().item()
    similar[residual] = F.cosine_similarity(out, x64, dim=-1).mean().item()

# %% tags=["fold"]
# @title Twelve untrained layers of each kind
table(
    ["12 untrained layers", "standard deviation of the output", "cosine with the input"],
    [[f"`{name}`", f"{sizes[name]:.2f}", f"{similar[name]:.2f}"] for name in RESIDUALS],
)
claim(
    "ReZero returns its input; Pre-LN keeps it recognisable and grows; Post-LN keeps the size and loses the most of the input.",
    similar["rezero"] > 0.9999
    and similar["rezero"] > similar["pre-ln"] > similar["post-ln"]
    and sizes["pre-ln"] > 1.1
    and abs(sizes["post-ln"] - 1) < 0.01,
)

# %% [markdown]
# Since its sum is never normalised, a Pre-LN stack ends with one more LayerNorm. Which of the three trains best, how deep, and with what warm-up, is measured in *chapter 11*.
#
# ### Exercise 9.2 · By hand: three ways to add, and a fourth
#
# Difficulty ●●○○○ · 10 minutes · needs section 2
#
# Take $x = (6, 0, 0)$, a sublayer $f(u) = 2u$, and LayerNorm with $\gamma = 1$, $\beta = 0$, $\epsilon = 0$. Give the *first entry* of the result of Post-LN; of Pre-LN; of ReZero with
# $\alpha = 0.5$; and of a fourth form, in which $x$ is *replaced* by its norm and then used for both parts: $n = \mathrm{norm}(x)$, result $n + f(n)$. Three digits each.

# %% nbgrader={"grade": false, "grade_id": "ex09-2-residuals-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
first_entries = ...  # (post, pre, rezero, replaced)
### BEGIN SOLUTION
# mean 2, variance (16 + 4 + 4) / 3 = 8: norm(x) = (4, -2, -2) / sqrt(8), and norm(3x) is the same
first_entries = (1.414, 8.828, 12.0, 4.243)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex09-2-residuals-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch09.residuals_by_hand(first_entries)

# %% [markdown]
# ## 3 · The encoder block
#
# Attention looks around, the feed-forward network works on what was found; each is added to what it read.

# %%
diagrams.show("encoder_block")
show_source(EncoderLayer.forward, EncoderLayer.attend)

# %% [markdown]
# `self_attn` is the multi-head self-attention of chapter 07; given `x` alone, it takes queries, keys and values from it. `self.residual` is one of the three functions above. The shape (B, T, D) goes in and comes out, so
# the layers of a stack fit on each other. The mask is chapter 07's: boolean, True = may attend, broadcast to (B, H, T, T); `padding_mask(real)` makes it from the real tokens, (B, T).
#
# ### Exercise 9.3 · An encoder block from parts
#
# Difficulty ●●●●○ · 40 minutes · needs sections 2 and 3
#
# The whole Post-LN block from tensors, without `nn` layers, the library's, or `F.multi_head_attention_forward`; `F.linear`, `F.layer_norm` and `softmax` are allowed. What your block returns *at* padding does not matter; that real tokens do not look there does.


# %% nbgrader={"grade": false, "grade_id": "ex09-3-encoder-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def encoder_block(x, real, p, num_heads):
    """A Post-LN encoder block without dropout.

    Args:
        x: (B, T, D).
        real: (B, T) bool, True = a real token, that may be attended to.
        p: dict of tensors: in_proj_weight (3 D, D) and in_proj_bias (3 D,), the rows for q, k, v in this order, within
            each the heads one after the other; out_weight (D, D) and out_bias (D,) after the heads are merged;
            weight1 (F, D), bias1 (F,), weight2 (D, F), bias2 (D,) of the feed-forward network with ReLU;
            gain1, offset1, gain2, offset2 (D,) of the two LayerNorms, eps = 1e-5.
        num_heads: H.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    B, T, D = x.shape
    q, k, v = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, dim=-1)
    q, k, v = (part.view(B, T, num_heads, -1).transpose(1, 2) for part in (q, k, v))  # (B, H, T, K)
    scores = q @ k.transpose(-2, -1) / math.sqrt(D // num_heads)  # (B, H, T, T)
    weights = scores.masked_fill(~real[:, None, None], -math.inf).softmax(dim=-1)
    heads = (weights @ v).transpose(1, 2).reshape(B, T, D)
    x = x + F.linear(heads, p["out_weight"], p["out_bias"])
    x = F.layer_norm(x, (D,), p["gain1"], p["offset1"])
    hidden = F.linear(x, p["weight1"], p["bias1"]).relu()
    x = x + F.linear(hidden, p["weight2"], p["bias2"])
    return F.layer_norm(x, (D,), p["gain2"], p["offset2"])
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-3-encoder-block-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch09.encoder_block(encoder_block)

# %% [markdown]
# ### Exercise 9.4 · Find the bug: is it still Pre-LN?
#
# Difficulty ●●○○○ · 15 minutes · needs sections 2 and 3
#
# A "Pre-LN" block as it is often written. It trains, its shapes are right, and its comments say what they should. What does the residual carry? We put in sublayers that return zeros, so that only the residual is left.


# %%
def buggy_block(x, attend, feed_forward, norm1, norm2):
    """Normalise first, then add."""
    x = norm1(x)
    x = x + attend(x)  # residual connection
    return x + feed_forward(norm2(x))  # residual connection


silent = torch.zeros_like  # a sublayer that returns zeros
norm64 = nn.LayerNorm(64)
with torch.no_grad():
    through_bug = buggy_block(5 * x64, silent, silent, norm64, norm64)
    through_pre_ln = pre_ln(pre_ln(5 * x64, silent, norm64), silent, norm64)

# %% tags=["fold"]
# @title What the residual carries
claim(
    "With silent sublayers a Pre-LN block returns its input; this one returns its input normalised.",
    torch.equal(through_pre_ln, 5 * x64)
    and torch.allclose(through_bug, F.layer_norm(x64, (64,)), atol=1e-4),
)

# %% [markdown]
# So in each of $N$ layers the sum is normalised on its way: what distinguishes Post-LN. The straight road is gone, and with it the reason for Pre-LN. Write the block as it was meant.


# %% nbgrader={"grade": false, "grade_id": "ex09-4-pre-ln-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pre_ln_block(x, attend, feed_forward, norm1, norm2):
    """A Pre-LN block.

    Args:
        x: (B, T, D).
        attend: function (B, T, D) to (B, T, D).
        feed_forward: function (B, T, D) to (B, T, D).
        norm1: the attention's LayerNorm, a function (B, T, D) to (B, T, D).
        norm2: the feed-forward network's LayerNorm.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    x = x + attend(norm1(x))
    return x + feed_forward(norm2(x))
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-4-pre-ln-block-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch09.pre_ln_block(pre_ln_block)

# %% [markdown]
# ## 4 · The decoder block, and three attentions
#
# A decoder generates. It may look at what it has generated, but not ahead; and it looks at what the encoder has read.

# %%
diagrams.show("decoder_block")
show_source(DecoderLayer.forward)

# %% [markdown]
# What are queries, keys and values? Whoever *asks* makes the queries; whoever *is asked* makes keys and values. That settles their lengths, and the shape of the weights:
#
# | attention | queries from | keys and values from | weights | mask |
# |---|---|---|---|---|
# | encoder's self-attention | source x (B, S, D) | source x (B, S, D) | (B, H, S, S) | padding of the source |
# | decoder's masked self-attention | target y (B, T, D) | target y (B, T, D) | (B, H, T, T) | causal (and padding) |
# | cross-attention | target (B, T, D): output of the sublayer before | memory m (B, S, D): output of the encoder | (B, H, T, S) | padding of the source |

# %%
diagrams.show("encoder_decoder_block")

# %% [markdown]
# In cross-attention there is no causal mask: the source is known as a whole before the first word is generated. Here are the weights of all three, in the translator of the first screen, on two sentences; the source has 9 places with `<eos>`, the target 10 with `<sos>`.

# %%
sources, targets = ([side[i] for i in (5, 7)] for side in task.test)
two = next(translation.translation_batches(sources, targets, 2, shuffle=False))
with torch.no_grad(), record_attention(translator) as two_maps:  # by layer
    translator(two.source, two.source_real, two.target_in)
for name, weights in two_maps.items():
    print(f"{name:45}", tuple(weights.shape))

# %% tags=["fold"]
# @title Check: rows, the causal mask, the padding
_, own_weights, cross_weights = two_maps.values()
source_padding = ~padding_mask(two.source_real).expand_as(cross_weights)
claim(
    "Every row adds up to 1; none looks ahead in the target; no target word looks at padding of the source.",
    all(torch.allclose(w.sum(-1), torch.ones(()), atol=1e-5) for w in two_maps.values())
    and own_weights.triu(1).max() == 0
    and source_padding.any().item()
    and cross_weights[source_padding].sum() == 0,
    padded_positions=(~two.source_real).sum(),
)

# %% [markdown]
# ### Exercise 9.5 · Cross-attention
#
# Difficulty ●●●○○ · 20 minutes · needs section 4
#
# One head. Which of $q$, $k$, $v$ comes from where? The shapes will tell you if they are exchanged, but only where $T \ne S$.


# %% nbgrader={"grade": false, "grade_id": "ex09-5-cross-attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cross_attention(x, memory, real, W_q, W_k, W_v):
    """One head of cross-attention.

    Args:
        x: (B, T, D), the decoder's vectors.
        memory: (B, S, D), the encoder's output.
        real: (B, S) bool, True = a real source token; every row has one.
        W_q: (D, D), used as nn.Linear uses its weight: x @ W.T.
        W_k: (D, D).
        W_v: (D, D).

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    q, k, v = x @ W_q.T, memory @ W_k.T, memory @ W_v.T
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])  # (B, T, S)
    return scores.masked_fill(~real[:, None], -math.inf).softmax(dim=-1) @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-5-cross-attention-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch09.cross_attention(cross_attention)

# %% [markdown]
# ## 5 · The whole: N layers on each side
#
# Blocks have one shape, so they stack; the paper of 2017 took $N = 6$. Each layer has its own weights. Does layer 2 of the decoder attend to layer 2 of the encoder? We take three layers on each side, and note what each decoder layer gets.

# %%
set_seed(0)
deep = toys.toy_translator(task, width=16, heads=2, layers=3)
given = []  # what each decoder layer gets as memory
for decoder_layer in deep.transformer.decoder.layers:
    decoder_layer.register_forward_hook(lambda _, inputs, out: given.append(inputs[1]))
with torch.no_grad():
    deep(two.source, two.source_real, two.target_in)
    memory = deep.encode(two.source, two.source_real)  # output of the whole encoder

# %%
guess_3 = predict("the encoder layer (1, 2 or 3) that decoder layer 2 attends to", ...)

# %% tags=["reveal"]
diagrams.show("stacked")

# %% tags=["fold", "reveal"]
# @title What each decoder layer got
guess_3.compare(3)
claim(
    "All three decoder layers get the same memory: the output of the encoder's last layer.",
    len(given) == 3 and all(torch.equal(one, memory) for one in given),
)

# %% [markdown]
# With that, every box of the picture at the top of the chapter has been built. In code the whole is this:

# %%
show_source(Transformer.forward, TransformerDecoder.forward)

# %% [markdown]
# A source position that no source position may attend to is padding, so the source's mask makes that of the memory, too. (`kv_caches` is for generation: section 6.)
#
# ### The same as `nn.Transformer`
#
# The parts have torch's names, so its weights can be loaded: Post-LN and Pre-LN (`norm_first=True`), with padding of both sides, the causal mask and the memory's mask. Two traps: torch's boolean masks mean the opposite, `True` = *blocked*; and
# `nn.Transformer` ends both stacks with one more LayerNorm, also in Post-LN, where the paper has none.


# %%
def twins(norm_first, D=12, H=3, F_=20):
    """torch's Transformer, and ours with its weights, in float64."""
    options = {"dropout": 0.0, "residual": "pre-ln" if norm_first else "post-ln"}
    with warnings.catch_warnings():  # about a fast path that is not taken
        warnings.simplefilter("ignore")
        sizes = {"dim_feedforward": F_, "dropout": 0.0, "batch_first": True}
        theirs = nn.Transformer(D, H, 2, 4, **sizes, norm_first=norm_first)
    ours = Transformer(
        TransformerEncoder(
            [EncoderLayer(D, H, F_, **options) for _ in range(2)], nn.LayerNorm(D)
        ),
        TransformerDecoder(
            [DecoderLayer(D, H, F_, **options) for _ in range(4)], nn.LayerNorm(D)
        ),
    )
    ours.load_state_dict(theirs.state_dict())  # the same names, the same shapes
    return theirs.double(), ours.double()


# %%
set_seed(0)
pair_of_inputs = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
real_in_source, real_in_target = text.length_mask([5, 3]), text.length_mask([4, 7])
# True = may attend
ours_masks = padding_mask(real_in_source), padding_mask(real_in_target)
torch_masks = {  # True = blocked
    "tgt_mask": ~causal_mask(7),
    "src_key_padding_mask": ~real_in_source,
    "tgt_key_padding_mask": ~real_in_target,
    "memory_key_padding_mask": ~real_in_source,
}

# %%
largest = {}
for form, norm_first in (("Post-LN", False), ("Pre-LN", True)):
    torchs, ours = twins(norm_first)
    wanted = torchs(*pair_of_inputs, **torch_masks)[real_in_target]
    for backend in ("sdpa", "math"):
        with attention_backend(backend):
            output = ours(*pair_of_inputs, *ours_masks)[real_in_target]
        largest[f"{form}, {backend}"] = (wanted - output).abs().max().item()

# %% tags=["fold"]
# @title Check: ours against nn.Transformer
claim(
    "Post-LN and Pre-LN: with nn.Transformer's weights and all masks, ours gives the same at every real position.",
    max(largest.values()) < 1e-12,
    largest_difference=max(largest.values()),
)

# %% [markdown]
# At padded *target* positions the two differ (ours gives 0), and nobody reads them.

# %% [markdown]
# ## 6 · Teacher forcing with a mask, generation with a loop
#
# In training the answer is known. The true words go in, shifted by one, and the causal mask keeps position $t$ from seeing the word that it must predict. All $T$ predictions are made in **one run**. In use there is no answer, and each word costs a run.

# %%
diagrams.show("teacher_forcing")
diagrams.show("autoregressive_decoding")

# %% [markdown]
# Both must compute the same, or training would prepare for something else. Three properties of the decoder make it so: no later position is seen, nothing else depends on the length, and positions count from the start. We feed the trained translator the true words, at once and word by word.

# %%
batch = next(translation.translation_batches(*task.test, 200, shuffle=False))


def both_ways(model):
    """Log-probabilities (B, T, V): of one masked run, and of a run for each word."""
    with torch.no_grad():
        one_run = model(batch.source, batch.source_real, batch.target_in)
        state, steps = model.start(batch.source, batch.source_real), []
        for tokens in batch.target_in.split(1, dim=1):  # (B, 1)
            logits, state = model.step(tokens, state)
            steps.append(logits)
    return one_run.log_softmax(-1), torch.stack(steps, dim=1).log_softmax(-1)


def largest_gap(model):
    """Largest difference of the two ways at real words, in nats."""
    one_run, by_steps = both_ways(model)
    return (by_steps - one_run)[batch.target_real].abs().max().item()


honest_gap, peeking_gap = largest_gap(translator), largest_gap(peeking)

# %% tags=["fold"]
# @title Both ways, by both translators
claim(
    "Causal: one run under teacher forcing gives the log-probabilities of step-by-step decoding.",
    honest_gap < 1e-3,
    largest_difference_in_nats=honest_gap,
)
claim(
    "Without the causal mask they differ by more than 1 nat: it was trained for another task than it has to do.",
    peeking_gap > 1,
    largest_difference=f"{peeking_gap:.1f} nats",
)

# %%
show_source(Translator.step, Translator.decode)

# %% [markdown]
# `step` reads one word. The earlier positions would come out the same each time, so their keys and values are kept: `kv_caches`, chapter 13's *cache*, and `offset` says how many there are. Here are both translators of the first screen on new sentences:

# %% tags=["nbval-ignore-output"]
both = {"causal    ": translator, "look-ahead": peeking}
for i in (3, 8):
    print("source    ", " ".join(task.test_pairs[i].source))
    print("truth     ", " ".join(task.test_pairs[i].target))
    for name, model in both.items():
        best = translation.translate(model, [task.test[0][i]], max_new_tokens=20)[0]
        print(name, " ".join(text.denumericalize(best.tokens, task.target_vocab)))
    print()

# %% [markdown]
# ### Does cross-attention know which word it translates?
#
# Chapter 06 scored the attention of a GRU against the true alignment. The same for the Transformer: the row of target word $t$ is that of the position whose input is word $t-1$, because there the model predicts word $t$.

# %%
test_maps = toys.cross_maps(translator, task)[-1]  # 500 of (H, T, S)
shown = next(
    i
    for i, pair in enumerate(task.test_pairs)
    if len(pair.source) == 9 and "not" in pair.source
)
figures.alignment(task.test_pairs[shown], test_maps[shown].mean(0))

# %%
alignment = toys.cross_alignment(translator, task)
beam_of_4 = {"search": generate.beam_search, "beam_size": 4}
hundred = task.test[0][:100]
greedy = translation.translate(translator, hundred, max_new_tokens=30)
beam = translation.translate(translator, hundred, max_new_tokens=30, **beam_of_4)
pairs_of_results = zip(greedy, beam, strict=True)
changed_by_beam = sum(a.tokens != b.tokens for a, b in pairs_of_results)

# %% tags=["fold"]
# @title How often it is on the true word
claim(
    "The largest weight is on the true source word for more than 6 of 10 target words.",
    alignment["alignment"] > 0.6,
    mean_of_heads=alignment["alignment"],
    single_heads=alignment["alignment_head"],
)
claim(
    "A beam of 4 changes fewer than 2 of 100 translations: the model is sure.",
    changed_by_beam < 2,
    changed=changed_by_beam,
)

# %% [markdown]
# That was the mean of four heads, and one of three attentions. Here are all of them, for the sentence of the figure and for its twin with a boy. (A picture stands here where scripts do not run.)
#
# **Question.** In `cross`, the row of a word shows where the decoder looks to predict the *next* one. After *miro* comes an article, *la* or *lo*, and which of the two it must be depends on a noun that is not written yet. Which heads look at *the*, and which look ahead to the noun? Switch heads off to see the others, and switch to the boy.

# %%
figures.translation_explorer(
    translator,
    task,
    "a strange dog does not call the girl today",
    "a strange dog does not call the boy today",
)

# %% [markdown]
# Write sentences of your own, from the words in `task.source_vocab.itos`, and run the cell again: the model translates them first.

# %% [markdown]
# The ledger, three seeds: chapter 06's GRU with attention, and two Transformers, the second without any encoder (section 8). The GRU had 16 epochs of batches of 64, the Transformers 6 epochs of batches of 32; all saw the same sentences of their seed, and 1,000 others are the test.

# %% tags=["fold"]
# @title The ledger: four translators, three seeds each
compared = {
    "GRU, one vector": ("toy-translation", "no attention"),
    "GRU with attention": ("toy-translation", "attention"),
    "Transformer, encoder-decoder": ("transformer-toy", "encoder-decoder"),
    "Transformer, decoder-only": ("transformer-toy", "decoder-only"),
}


def toy_row(experiment, variant):
    """Mean and range of each metric that was recorded, and the number of seeds."""
    cells = []
    for metric in ("parameters", "exact", "bleu", "alignment"):
        if metric not in ledger.load(experiment)["runs"][0]["results"][variant]:
            cells.append("-")
            continue
        mean, low, high, _ = ledger.summary(experiment, variant, metric)
        mean_in_words = f"{mean:,.0f}" if metric == "parameters" else f"{mean:.3g}"
        cells.append(mean_in_words + (f" ({low:.3g} to {high:.3g})" if low < high else ""))
    return [*cells, len(ledger.values(experiment, variant, "exact"))]


table(
    ["model", "parameters", "exact translations (fraction)", "BLEU", "alignment (fraction)", "seeds"],
    [[name, *toy_row(*where)] for name, where in compared.items()],
)
looking_back = [name for name in compared if name != "GRU, one vector"]
exact = {name: ledger.values(*compared[name], "exact") for name in looking_back}
claim(
    "All models that can look back translate more than 95 of 100 sentences without a mistake, in every seed.",
    min(min(values) for values in exact.values()) > 0.95,
)
aligned = {name: ledger.summary(*compared[name], "alignment")[0] for name in looking_back[:2]}
claim(
    "The Transformer's cross-attention is on the true word more often than the GRU's attention.",
    aligned["Transformer, encoder-decoder"] > aligned["GRU with attention"] + 0.05,
    GRU=aligned["GRU with attention"],
    Transformer=aligned["Transformer, encoder-decoder"],
)

# %% [markdown]
# Look at the map again where it misses the square: *uno* needs the gender of the noun, *vokas* the tense that stands in *does*. So the largest weight need not be on the word that is translated, as in chapter 06. What such a map does not prove, chapter 07 has shown.
#
# ### Exercise 9.6 · The loop that generates
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# `model(ids)` takes (1, T) ids and returns (1, T, V) logits; row $t$ is for the token after position $t$. Continue a text greedily until the stop token comes or the limit is reached.


# %% nbgrader={"grade": false, "grade_id": "ex09-6-continue-greedily", "locked": false, "schema_version": 3, "solution": true, "task": false}
def continue_greedily(model, prompt, eos_id, max_new_tokens):
    """Continue a text with the most probable token, again and again.

    Args:
        model: ids (1, T) int64 to logits (1, T, V); keeps nothing between calls.
        prompt: list of T ids.
        eos_id: the id that ends the text.
        max_new_tokens: most tokens to add.

    Returns:
        list of the new ids, without the prompt and without `eos_id`.
    """
    ### BEGIN SOLUTION
    ids = list(prompt)
    for _ in range(max_new_tokens):
        word = model(torch.tensor([ids]))[0, -1].argmax().item()
        if word == eos_id:
            break
        ids.append(word)
    return ids[len(prompt) :]
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-6-continue-greedily-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch09.continue_greedily(continue_greedily)

# %% [markdown]
# ## 7 · What must always hold
#
# Shapes that fit prove little. Four properties find most mistakes in a Transformer, and take a few lines each. Run them on every model that you build.

# %%
changed = batch.target_in.clone()
changed[:, 4] = torch.where(changed[:, 4] == 5, 6, 5)  # another word at position 4
pad = (0, 6)
with torch.no_grad():
    before = translator(batch.source, batch.source_real, batch.target_in)
    after = translator(batch.source, batch.source_real, changed)
    padded = translator(
        F.pad(batch.source, pad, value=text.PAD),
        F.pad(batch.source_real, pad, value=False),
        F.pad(batch.target_in, pad, value=text.PAD),
    )[:, : before.shape[1]]

# %% tags=["fold"]
# @title The tests: causality and padding
claim(
    "Causality: another word at position 4 changes nothing before it, and something from there on.",
    torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    and (before[:, 4:] - after[:, 4:]).abs().max() > 0.1,
)
claim(
    "Padding: six more columns on both sides change nothing at the real words.",
    torch.allclose(padded, before, atol=1e-3),
    largest_difference=(padded - before).abs().max(),
)

# %% [markdown]
# The third property needs the encoder alone, with and without positions; the fourth a backward pass.

# %%
encode, order = translator.transformer.encoder, torch.tensor([3, 0, 4, 1, 2])
set_seed(4)
five = torch.randn(2, 5, 64)
placed = Sinusoidal(64).add
with torch.no_grad():
    without_position = encode(five[:, order]), encode(five)[:, order]
    with_position = encode(placed(five[:, order])), encode(placed(five))[:, order]

translator.zero_grad()
translation.translation_loss(translator, batch)["loss"].backward()
reached = [p.grad is not None and p.grad.any() for p in translator.parameters()]
translator.zero_grad()

# %% tags=["fold"]
# @title The tests: equivariance and gradient
claim(
    "Equivariance: without positions, permuted inputs give the same outputs, permuted; with positions they do not.",
    torch.allclose(*without_position, atol=1e-4) and not torch.allclose(*with_position, atol=0.1),
)
claim("Gradient: it reaches every parameter.", all(reached), tensors=len(reached))

# %% [markdown]
# ## 8 · Three styles and their uses
#
# The two stacks can be used together or alone.
#
# | style | attention | trained to | used for | here, and later |
# |---|---|---|---|---|
# | encoder | full | judge; or fill in hidden words | sentiment, word in context, sentence embedding and search | reviews; BERT, chapter 12 |
# | decoder | causal | predict the next word | generation; any task that can be put as a prefix | docstrings; GPT, chapter 13 |
# | encoder-decoder | full on the source, causal on the target, cross | predict the next target word | a sequence in, another out: translation, summary, question with context | sections 4 to 6 |

# %% [markdown]
# ### Encoder style: one vector for a text
#
# The encoder gives T vectors; a verdict needs one. Three ways to **pool**: the *mean* over the real tokens; the *maximum* of each entry over the real tokens; or an extra learned vector, **CLS**, that stands before the first token, has no word of its own, and whose output is the answer: it can attend
# to whatever it needs. (One can also take the last token; in a causal model it is the only one that has seen everything.)
#
# The reviews are those of chapter 05: every review's mirror has the same words and the opposite label, so a bag of words is right on exactly half.

# %%
show_source(TransformerClassifier.pooled)
reviews = toy_reviews.review_task()
classifiers, accuracies = {}, {}
for pool in ("mean", "max"):  # CLS takes longer: in the ledger
    set_seed(0)
    classifiers[pool] = toy_reviews.review_classifier(reviews, pool)
    curve = toy_reviews.train_classifier(classifiers[pool], reviews, epochs=8)
    accuracies[pool] = curve[-1]["accuracy"]

# %% tags=["fold"]
# @title How many reviews they get right
claim(
    "After 8 epochs both classifiers are right on more than 3 of 4 test reviews; a bag of words on 2 of 4.",
    min(accuracies.values()) > 0.75,
    **accuracies,
)

# %% [markdown]
# Recorded, ten epochs, three seeds, with CLS:

# %%
figures.pooling("transformer-toy", ["mean", "max", "cls"])

# %% tags=["fold"]
# @title The ledger: all ways to pool, and one without a mask
pooled_accuracy = {pool: ledger.values("transformer-toy", pool, "accuracy") for pool in ("mean", "max", "cls")}
claim(
    "After 10 epochs all three ways to pool are right on more than 4 of 5, in every seed.",
    min(min(values) for values in pooled_accuracy.values()) > 0.8,
)
markdown(
    ledger.table(
        "transformer-toy",
        ["accuracy", "accuracy_padded_to_150"],
        ["mean", "max", "cls", "mean, no mask"],
    ).replace("accuracy_padded_to_150", "accuracy, padded to 150 tokens")
)

# %% [markdown]
# **Common mistake · the mask is not passed.** Many notebooks call `encoder(ids)` on padded batches. No error: real tokens attend to padding, and the pooling counts it. We take our trained mean classifier and call it without `real`. The same reviews, padded to 60, 100 and 150 tokens: what will happen to the logits, and to the accuracy?

# %%
forgetful = toy_reviews.Unmasked(classifiers["mean"])
changes, flips = {"with": [], "without": []}, []
with torch.no_grad():
    alone = classifiers["mean"](*text.pad_batch(reviews.test[0]))
    for width in (60, 100, 150):
        padded_ids, is_real = text.pad_batch(reviews.test[0], width)
        masked = classifiers["mean"](padded_ids, is_real)
        unmasked = forgetful(padded_ids)
        changes["with"].append((masked - alone).abs().max().item())
        changes["without"].append((unmasked - alone).abs().max().item())
        flips.append((unmasked.argmax(1) != alone.argmax(1)).double().mean().item())

# %%
guess_4 = predict("points of accuracy lost without the mask, at 150 tokens", ...)

# %% tags=["fold", "reveal"]
# @title Logits and accuracy, with and without the mask
accuracy_at_150 = toy_reviews.review_accuracy(forgetful, reviews, length=150)
guess_4.compare("fewer than 10 points")
claim(
    "With its mask no logit depends on the padding; without it some change by more than 0.5, and verdicts flip.",
    max(changes["with"]) < 1e-4 and min(changes["without"]) > 0.5 and max(flips) > 0,
    largest_change_without_the_mask=changes["without"],
    fraction_of_verdicts_flipped=flips,
)
claim(
    "And yet the accuracy falls by less than 10 points: the score does not give the bug away.",
    accuracy_at_150 > accuracies["mean"] - 0.1,
    without_mask_at_150_tokens=accuracy_at_150,
    with_mask=accuracies["mean"],
)

# %% [markdown]
# The last row of the table above was *trained* without its mask. It learned to live with the padding that it saw, and its score is not far from the first; only a comparison of two widths shows what is wrong. That is how such a bug survives. The test is one line: *pad further, and nothing may change* (section 7).
#
# **Common mistake · the maximum over padding.** Even with a right attention mask, the pooling has to know what is real. Our encoder returns zeros at padding, which look harmless. For a *mean* they are (if one divides by the number of real tokens). **And for a maximum?**

# %%
short = min(reviews.test[0], key=len)
short_ids, short_real = text.pad_batch([short], 60)
by_max = classifiers["max"]
with torch.no_grad():
    vectors_60 = by_max.encoder(by_max.embedding(short_ids), padding_mask(short_real))
    careless = vectors_60.amax(dim=1)  # (1, D): over the padding too
    correct = vectors_60.masked_fill(~short_real[..., None], -math.inf).amax(dim=1)

# %% tags=["fold"]
# @title What the padding does to the maximum
with torch.no_grad():
    logits_60 = by_max(short_ids, short_real)
padding_won = careless != correct
claim(
    "Every entry whose largest real value is negative becomes 0: the padding wins. With minus infinity there it cannot.",
    padding_won.any().item()
    and (careless[padding_won] == 0).all().item()
    and torch.allclose(by_max.output(correct), logits_60, atol=1e-6),
    fraction_of_entries_changed=padding_won.double().mean(),
)

# %% [markdown]
# ### Encoder style: search by meaning
#
# The pooled vector is an embedding of the text. Texts with similar vectors can be looked up: **semantic search**. As a test, each review looks for its nearest neighbour among the other 399, by cosine. A rival counts words. How often does each find a review with the same verdict?


# %%
def vectors(model, texts):
    """What the classifier's last layer sees of each text: (n, D)."""
    ids, real = text.pad_batch(texts)
    with torch.no_grad():
        encoded = model.encoder(model.embedding(ids), padding_mask(real))
        return model.pooled(encoded, real)  # here the maximum over the real tokens


def nearest(points):
    """The index of each point's nearest other point by cosine."""
    unit = F.normalize(points - points.mean(dim=0), dim=1)
    return (unit @ unit.T).fill_diagonal_(-math.inf).argmax(dim=1)

# %%
rows, verdicts = reviews.test[0], torch.tensor(reviews.test[1])
size = len(reviews.vocab)
counts = [torch.bincount(torch.tensor(row), minlength=size) for row in rows]
neighbours = {
    "Transformer": nearest(vectors(classifiers["max"], rows)),
    "word counts": nearest(torch.stack(counts).double()),
}

# %%
guess_5 = predict("the fraction of reviews whose neighbour by word counts agrees", ...)

# %% tags=["fold", "reveal"]
# @title How often the nearest review has the same verdict
agree = {name: (verdicts[index] == verdicts).double().mean().item() for name, index in neighbours.items()}
guess_5.compare("below 0.2")
claim(
    "The neighbour by the Transformer's vectors has the same verdict in more than 7 of 10 cases; by word counts in fewer than 2.",
    agree["Transformer"] > 0.7 and agree["word counts"] < 0.2,
    **agree,
)

# %% tags=["nbval-ignore-output"]
agrees = (verdicts[neighbours["Transformer"]] == verdicts).tolist()
query = next(i for i in range(400) if agrees[i] and 8 <= len(reviews.test[0][i]) <= 16)
print("query:      ", reviews.texts[query])
for name, index in neighbours.items():
    print(f"{name}:", reviews.texts[index[query]])

# %% [markdown]
# (An example in which it succeeds.) By word counts the nearest review is the mirror: the same words, the opposite meaning. A caution: these vectors know what the model was trained for, the verdict; whether a review is about the music they may well have dropped. Encoders for general search are trained on pairs of texts that belong together.
#
# The third use of an encoder is to **fill in a hidden word** from both sides ("the plot was not [MASK], it was great"). It needs no labels, and is how BERT is trained: chapter 12.

# %% [markdown]
# ### Decoder style: predict the next token
#
# Without an encoder there is nothing to cross-attend to. What is left, masked self-attention and feed-forward, is an *encoder* layer with `causal=True`, and the whole a language model: the causal direct function of section 1 with a readout on top.

# %%
show_source(TransformerLM.forward)
characters = datasets.docstrings(limit=150_000)
letters = sorted(set(characters))
stream = torch.tensor([letters.index(c) for c in characters])
train_part, valid_part = stream[:135_000], stream[135_000:]
set_seed(0)
blocks = [EncoderLayer(64, 4, 256, 0.0, residual="pre-ln") for _ in range(2)]
stack = TransformerEncoder(blocks, nn.LayerNorm(64))
lm = TransformerLM(len(letters), stack, position=Sinusoidal(64))

# %% [markdown]
# Training is the loop of chapter 01, on windows of 65 characters: all 64 predictions of a window in one run.

# %%
optimizer = torch.optim.Adam(lm.parameters(), 3e-3)
generator = torch.Generator().manual_seed(0)
lm.train()
for _ in tqdm(range(250), leave=False):
    starts = torch.randint(len(train_part) - 65, (16,), generator=generator)
    windows = torch.stack([train_part[s : s + 65] for s in starts.tolist()])  # (B, 65)
    logits = lm(windows[:, :-1])
    loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
lm.eval()

# %%
held_out = valid_part[: 65 * 200].view(200, 65)  # new docstrings
with torch.no_grad():
    logits = lm(held_out[:, :-1])
    nats = F.cross_entropy(logits.flatten(0, 1), held_out[:, 1:].flatten()).item()

# %% tags=["fold"]
# @title On new docstrings, beside two entropies
unigram, bigram = ngram.unigram_entropy(valid_part), ngram.bigram_entropy(valid_part)
claim(
    "After 250 updates it predicts characters of new docstrings better than their frequencies do, by more than 0.4 nats.",
    nats < unigram - 0.4,
    Transformer=f"{nats:.2f} nats",
    unigram_entropy=f"{unigram:.2f} nats",
    bigram_entropy=f"{bigram:.2f} nats",
)

# %% tags=["nbval-ignore-output"]
prompt = "Return the "
begin = [letters.index(c) for c in prompt]
dice = torch.Generator().manual_seed(1)
drawn = generate.generate(lm, [begin], 150, dice, temperature=0.7)[0]
print(prompt + "".join(letters[i] for i in drawn))

# %% [markdown]
# A few seconds of training: it has learned which letters follow which, and little more, as its loss beside the entropy of bigrams says. Chapter 13 trains longer. The prompt shows what *generative* models are good for: what is written so far decides what comes next. So a task can be put into the prompt.
#
# ### Decoder only, with a prefix
#
# Translation is "source, mark, target" read as one text. A causal language model that has read the source and the mark continues with the translation, and no encoder is needed: the prefix *is* the memory.

# %%
prefix_model = toys.PrefixTranslator(task)
one_text = prefix_model.rows([task.test[0][3]], [task.test[1][3]])[0]
names = [*task.source_vocab.itos, *task.target_vocab.itos]
print("one text:", " ".join(names[i] for i in one_text))

# %% [markdown]
# | | encoder-decoder | decoder-only with a prefix |
# |---|---|---|
# | sequences | two: source (S), target (T) | one (S + T) |
# | source sees source | all of it | what came before (causal) |
# | target sees source | by cross-attention, (T, S) | by self-attention, part of (S + T, S + T) |
# | target sees target | what came before | what came before |
# | stacks | two, and cross-attention | one |
# | loss | target words | target words (the source may count too) |

# %%
show_source(toys.prefix_loss)
set_seed(0)
prefix_translator = toys.PrefixTranslator(task)
toys.train_prefix(prefix_translator, task, epochs=4)
prefix_result = toys.prefix_scores(prefix_translator, task, first=200)
encoder_layer, decoder_layer = EncoderLayer(64, 4, 256), DecoderLayer(64, 4, 256)

# %% tags=["fold"]
# @title What it translates, and what it needs
claim(
    "After 4 epochs the decoder-only model translates more than 8 of 10 new sentences without a mistake.",
    prefix_result["exact"] > 0.8,
    exact=f"{prefix_result['exact']:.1%}",
    BLEU=f"{prefix_result['bleu']:.1f}",
)
alone_size, both_sizes = number_of_parameters(encoder_layer), sum(map(number_of_parameters, (encoder_layer, decoder_layer)))
claim(
    "For each layer it has less than half the parameters of an encoder-decoder pair of layers.",
    alone_size < 0.5 * both_sizes,
    decoder_only_layer=alone_size,
    encoder_and_decoder_layer=both_sizes,
)

# %% [markdown]
# (It has two layers where the encoder-decoder has one on each side. A causal source reads its beginning without knowing its end; *prefix* language models lift the mask within the prefix, as an encoder does.)

# %% [markdown]
# ## 9 · Real sentences
#
# **IMDB.** A tutorial's Transformer has 1 layer, $D$ = 32, 2 heads, $F$ = 128; it reads the first 200 words of a review out of a vocabulary of 50,000 and takes the maximum over all positions; no mask is passed anywhere.
#
# - *as it was* repeats it, with its own ten epochs;
# - *mask added* hides the padding from attention and maximum. Reviews of similar length can now share a batch, padded to the longest of them;
# - *all fixes* keeps the size and the ten epochs. Punctuation is cut from the words, the *last* 200 tokens are read, the mean is pooled, the table starts small, the learning rate warms up and decays. In training 3 of 10 words are hidden behind `<unk>` and 4 of 10 entries of the embeddings are dropped, but no attention weights; the row after it drops 1 of 10 of those too;
# - *best* reads the last 512 tokens for six epochs and drops more, in the second form with embeddings of word pairs beside those of words.
#
# Beside them stands chapter 02's bag of words with pairs. A tenth of the training reviews was for validation; the test reviews chose nothing. The tutorial reported a test accuracy of 0.822.
# What is the mask alone worth?

# %%
guess_6 = predict("how many points of test accuracy the mask alone adds on IMDB", ...)

# %% tags=["fold"]
# @title Where the ledger has these models
imdb = {
    "as it was": ("imdb-tutorial", "as it was"),
    "mask added": ("imdb-mask", "mask added"),
    "all fixes": ("imdb-transformer", "mended"),
    "all fixes, attention dropout": ("imdb-attention-dropout", "mended, attention dropout"),
    "best, words": ("imdb-best", "words"),
    "best, words and pairs": ("imdb-best", "words and pairs"),
    "bag of words and pairs": ("imdb-bow", "unigrams + bigrams, scaled"),
}
accuracy = {name: ledger.values(*where, "accuracy") for name, where in imdb.items()}
average = {name: sum(values) / len(values) for name, values in accuracy.items()}

# %% tags=["reveal"]
figures.imdb(accuracy)

# %% tags=["fold", "reveal"]
# @title What the mask and the fixes are worth
gain_of_mask = average["mask added"] - average["as it was"]
guess_6.compare(round(100 * gain_of_mask, 1))
claim(
    "As it was, it repeats the 0.822 that the tutorial reported, to within 1.5 points; the mask alone does not raise it.",
    abs(average["as it was"] - 0.822) < 0.015 and average["mask added"] < average["as it was"] + 0.005,
    as_it_was=average["as it was"],
    mask_added=average["mask added"],
)
best_accuracy = max(average["best, words"], average["best, words and pairs"])
claim(
    "With all fixes the same size reaches 0.86, more than 2 points above it as it was, the best Transformer from scratch "
    "0.90; the bag of words with pairs is more than 1 point better still.",
    average["all fixes"] >= 0.86
    and average["all fixes"] > average["as it was"] + 0.02
    and best_accuracy >= 0.90
    and average["bag of words and pairs"] > best_accuracy + 0.01,
    all_fixes=average["all fixes"],
    best=best_accuracy,
    bag_of_words=average["bag of words and pairs"],
)

# %% [markdown]
# Was the mask a mistake, then, if it gains nothing? The tutorial's model met the same padding in training and in the test, and learned to live with it, like the unmasked one of section 8. The mask buys
# verdicts that do not depend on the padding, and batches without needless columns. And 25,000 reviews are few: what a model has learned beforehand counts for more than its kind, which is why chapter 12 trains on text without labels first.
#
# And what do they cost? CPU seconds of whole runs were taken while the machine did other work, too; the steps were timed in turn, which is the fairer comparison. Rows with one seed are single runs.

# %% tags=["fold"]
# @title Accuracy and time of each model
of_a_step = {"as it was": 1.0}
for name, key in {
    "mask added": "mask_added",
    "all fixes": "mended",
    "all fixes, attention dropout": "mended_attention_dropout",
}.items():
    of_a_step[name] = ledger.summary("imdb-transformer", "training step", f"{key}_share")[0]
seconds = {name: ledger.summary(*imdb[name], "train_seconds")[0] for name in imdb if name != "bag of words and pairs"}


def imdb_row(name):
    """A row of the table; the bag of words has one weight for each feature, and no steps."""
    mean, low, high, seeds = ledger.summary(*imdb[name], "accuracy")
    size = ledger.summary(*imdb[name], "parameters" if name in seconds else "features")[0]
    spread = f" ({low:.3f} to {high:.3f})" if low < high else ""
    taken = f"{seconds[name]:,.0f}" if name in seconds else "-"
    step = f"{of_a_step[name]:.2f}" if name in of_a_step else "-"
    return [name, f"{size:,.0f}", f"{mean:.3f}{spread}", taken, step, seeds]


heads = ["model", "parameters", "test accuracy", "training (CPU s)", "time of a step (as it was = 1)", "seeds"]
table(heads, [imdb_row(name) for name in imdb])
claim(
    "With all fixes, training takes less than 60 % of the time, whether ten epochs are compared or single steps in turn.",
    max(of_a_step["all fixes"], seconds["all fixes"] / seconds["as it was"]) < 0.6,
    ten_epochs=f"{seconds['all fixes'] / seconds['as it was']:.0%}",
    a_step=f"{of_a_step['all fixes']:.0%}",
)
claim(
    "Dropping attention weights too would make its steps half as long again, and change the accuracy by less than 1 point.",
    of_a_step["all fixes, attention dropout"] > 1.5 * of_a_step["all fixes"]
    and abs(average["all fixes"] - average["all fixes, attention dropout"]) < 0.01,
    times_as_long=of_a_step["all fixes, attention dropout"] / of_a_step["all fixes"],
    change=f"{100 * (average['all fixes, attention dropout'] - average['all fixes']):.1f} points",
)

# %% [markdown]
# **Multi30k.** German to English with the protocol of chapter 06: lower-cased, pieces by byte-pair encoding, ten epochs, the epoch with the lowest validation loss, scores on the test captions of 2016. Sizes and learning rates were chosen by the validation captions, for each kind of model by itself, so the models differ in size; the table says how many seeds each of them was run with, and with one seed a lead of a point is an example, no finding. BLEU is sacrebleu's, with greedy decoding and with a beam of 4 with $\alpha = 0.6$; perplexity and accuracy are teacher-forced, per piece. Recorded by `python -m course_lib.experiments multi30k-transformer`.

# %% tags=["fold"]
# @title The ledger: four translators on Multi30k
multi30k = {
    "LSTM, one vector": ("multi30k-lstm", "LSTM"),
    "GRU, one vector": ("multi30k-gru", "GRU"),
    "GRU with attention": ("multi30k-attention", "attention"),
    "Transformer": ("multi30k-transformer", "Transformer"),
}
columns = {
    "parameters": "parameters",
    "perplexity": "perplexity",
    "piece_accuracy": "accuracy per piece",
    "bleu": "BLEU, greedy",
    "bleu_beam": "BLEU, beam of 4",
}


def with_range(experiment, variant, metric):
    """Mean over seeds, and the range where there are several."""
    mean, low, high, _ = ledger.summary(experiment, variant, metric)
    if metric == "parameters":
        return f"{mean:,.0f}"
    return f"{mean:.3g}" + (f" ({low:.3g} to {high:.3g})" if low < high else "")


table(
    ["model", *columns.values(), "seeds"],
    [
        [name, *(with_range(*where, metric) for metric in columns), ledger.summary(*where, "bleu")[3]]
        for name, where in multi30k.items()
    ],
)
signature = ledger.values("multi30k-transformer", "Transformer", "signature")[0]
markdown(f"sacrebleu: `{signature.partition('|version')[0]}`")

# %%
figures.bleu_by_length(multi30k)

# %% tags=["fold"]
# @title The Transformer beside the others
bleu, bleu_beam, perplexity, parameters = (
    {name: ledger.summary(*where, metric)[0] for name, where in multi30k.items()}
    for metric in ("bleu", "bleu_beam", "perplexity", "parameters")
)
claim(
    "The Transformer has the highest BLEU of the four, greedy and with a beam, which raises it, and the lowest perplexity.",
    bleu["Transformer"] == max(bleu.values())
    and bleu_beam["Transformer"] == max(bleu_beam.values())
    and bleu_beam["Transformer"] > bleu["Transformer"]
    and perplexity["Transformer"] == min(perplexity.values()),
    ahead_of_the_GRU_with_attention=f"{bleu['Transformer'] - bleu['GRU with attention']:.1f} BLEU",
    with_a_beam=f"{bleu_beam['Transformer'] - bleu_beam['GRU with attention']:.1f} BLEU",
    gain_by_the_beam=f"{bleu_beam['Transformer'] - bleu['Transformer']:.1f} BLEU",
)
claim(
    "It has about a quarter more parameters than the GRU with attention, and as many as the LSTM, which is 10 BLEU below.",
    1.15 < parameters["Transformer"] / parameters["GRU with attention"] < 1.35
    and 0.9 < parameters["Transformer"] / parameters["LSTM, one vector"] < 1.1
    and bleu["Transformer"] > bleu["LSTM, one vector"] + 10,
    Transformer=f"{parameters['Transformer'] / 1e6:.1f} million",
    GRU_with_attention=f"{parameters['GRU with attention'] / 1e6:.1f} million",
)

# %% [markdown]
# ### Exercise 9.7 · Explain: which style for which task?
#
# Difficulty ●●●○○ · 25 minutes · needs sections 7 and 8
#
# (a) Choose a style, and say what you would pool or where you would stop, for: finding duplicate questions in a forum; completing code while somebody types; a summary of a report of four pages; marking every name in a text. (b) A colleague trains the classifier of section 8 with `causal=True` and mean pooling, and finds
# nearly the same accuracy. What can her model not do that the full one can, and which of the three ways to pool would now be a mistake? (c) You may run *one* of the four tests of section 7 on a colleague's translator whose training loss is suspiciously low. Which, and what do you expect to see?
#
# You may use the cell below: change it and run it again.

# %% tags=["nbval-ignore-output"]
set_seed(0)
explored = toy_reviews.review_classifier(reviews, pool="max", layers=1)  # heads, width
explored_curve = toy_reviews.train_classifier(explored, reviews, epochs=4)
print([round(entry["accuracy"], 3) for entry in explored_curve])

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex09-7-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) Duplicates: encoder, pooled to one vector (mean or CLS), compared by cosine; both texts are complete, so full attention is right. Code while typing: decoder, since only what stands before the cursor is there; the logits at the last position are wanted. (With text after the cursor, an
# encoder that fills in, or a decoder whose prefix also holds what follows.) Summary: encoder-decoder, or decoder-only with the report as prefix; stop at `<eos>`. Names: encoder, no pooling: one verdict for each token, from both sides.
#
# (b) Position $t$ knows nothing of what follows, so a word's vector cannot be corrected by a later "not"; only the mean, or the last position, collects the verdicts of all prefixes. CLS at the front would be a mistake: the first position sees itself alone, so its output is the same for every text. (At the end, or the last real token, it would work.)
#
# (c) Causality: change a later target word and look at the logits before it. If they change, the mask is missing or dropped on the way, and the model copies the answer: low loss, useless translations, as in the first screen.
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. A Transformer layer is a direct function, computed at all positions at once with shared weights: attention mixes positions, the feed-forward network works on each for itself, each is added to what it read and normalised.
# 2. Whoever asks makes the queries, whoever is asked keys and values. Encoder: full self-attention. Decoder: causal self-attention, and cross-attention to the encoder's *last* output, in every layer.
# 3. Post-LN, Pre-LN and ReZero differ in two lines. In Pre-LN the residual carries $x$, never its norm.
# 4. Teacher forcing with a causal mask computes in one run what step-by-step decoding computes in $T$; without the mask the loss is a lie.
# 5. Encoder to understand, decoder to write, both for sequence to sequence, a prefix for nearly anything; and padding must be hidden from attention *and* from pooling.
#
# ## Where next
#
# *Chapter 10* counts and measures what all this costs against recurrent and convolutional layers. *Chapter 11* asks why deep Transformers are hard to train, and compares the three residual forms. *Chapters 12 and 13* build BERT and GPT from these blocks.
#
# ## References
#
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: figure 1 (the whole), sections 3.1 (stacks), 3.2.3 (the three uses of attention), 3.3 (feed-forward, equation 2), 3.4 (embeddings).
# - J. L. Ba, J. R. Kiros, G. E. Hinton, *Layer normalization*, 2016, arXiv:1607.06450: equations 3 and 4.
# - K. He, X. Zhang, S. Ren, J. Sun, *Deep residual learning for image recognition*, CVPR 2016, arXiv:1512.03385: equation 1.
# - R. Xiong et al., *On layer normalization in the Transformer architecture*, ICML 2020, arXiv:2002.04745: table 1 (Post-LN and Pre-LN).
# - T. Bachlechner et al., *ReZero is all you need*, UAI 2021, arXiv:2003.04887: equation 2 and section 5.
# - J. Devlin et al., *BERT*, NAACL 2019, arXiv:1810.04805: section 3 (the CLS token, filling in).
# - P. J. Liu et al., *Generating Wikipedia by summarizing long sequences*, ICLR 2018, arXiv:1801.10198: section 4.2.3 (decoder only).
# - C. Raffel et al., *Exploring the limits of transfer learning with a unified text-to-text Transformer*, JMLR 2020, arXiv:1910.10683: section 3.2 and figure 4 (encoder-decoder, language model, prefix language model).
# - O. Press, L. Wolf, *Using the output embedding to improve language models*, EACL 2017, arXiv:1608.05859 (tied weights).
# - Videos: Ł. Kaiser, *Attention is all you need; attentional neural network models*, https://www.youtube.com/watch?v=rBCqOTEfxvg (from 28:24); *Practicum: attention and the Transformer*, https://www.youtube.com/watch?v=f01J0Dri-6k; *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30.
# - A. Rush et al., *The Annotated Transformer*, 2018, https://nlp.seas.harvard.edu/annotated-transformer/, and J. Alammar, *The Illustrated Transformer*, https://jalammar.github.io/illustrated-transformer/.
