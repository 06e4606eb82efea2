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
# parameters and start from the same numbers; one differs in a single word, `causal=False`. After two epochs its training loss is many times lower.
# **Which of the two will translate better?**

# %% tags=["setup"]
import math
import warnings

import torch
from torch import nn
from torch.nn import functional as F

from course_lib import data, diagrams, language, ledger, plots, seq2seq, text
from course_lib.attention import causal_mask
from course_lib.checks import ch09
from course_lib.claims import claim
from course_lib.display import markdown, show, show_source, table
from course_lib.experiments import ch06_toy as translation
from course_lib.experiments import ch09_toy as toys
from course_lib.explorer import explore
from course_lib.positions import Sinusoidal
from course_lib.rnn import RNN
from course_lib.tasks import number_of_parameters
from course_lib.train import set_seed
from course_lib.transformer import (
    RESIDUALS,
    DecoderLayer,
    EncoderLayer,
    TokenEmbedding,
    Transformer,
    TransformerClassifier,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLM,
    Translator,
    post_ln,
    pre_ln,
    rezero,
)

set_seed(0)

# %%
task = translation.toy_task(pairs=4000, test=500, seed=0)
options = {"batch_size": 32, "learning_rate": 2e-3}


class Peeking(Translator):
    """A Translator whose decoder may look ahead."""

    def decode(self, target_in, memory, memory_mask=None, impl="sdpa"):
        """As in Translator, but for one word: causal=False."""
        x, position = self.target_embedding(target_in), self.target_embedding.position
        x = self.transformer.decoder(
            x, memory, memory_mask=memory_mask, causal=False, position=position
        )
        return F.linear(x, self.target_embedding.embedding.weight)


set_seed(0)
translator = toys.toy_translator(task)
history = translation.train_translator(translator, task, epochs=4, **options)
set_seed(0)
peeking = toys.toy_translator(task, kind=Peeking)
peeking_history = translation.train_translator(peeking, task, epochs=2, **options)
honest_loss, peeking_loss = history[1]["train_loss"], peeking_history[1]["train_loss"]
claim(
    "In the second epoch the loss of the one that may look ahead is less than a third of the other's",
    peeking_loss < honest_loss / 3,
    look_ahead=peeking_loss,
    causal=honest_loss,
)
scores = translation.translation_scores(translator, task)
peeking_scores = translation.translation_scores(peeking, task, first=100)
claim(
    "It translates fewer than 2 of 100 new sentences without a mistake; "
    "the other, after four epochs, more than 90",
    peeking_scores["exact"] < 0.02 and scores["exact"] > 0.9,
    look_ahead=peeking_scores["exact"],
    causal=scores["exact"],
)

# %% [markdown]
# The low loss was no knowledge: the word to be said stood in the input, one place further on, and the model learned to look there. When it writes,
# that place is empty. A triangle of booleans is what makes a Transformer's training honest, and this chapter puts it, and every other part, in its place.

# %% [markdown]
# ## You will be able to
#
# 1. say what a direct function computes that a loop cannot, and which tasks need the one that sees everything (section 1, exercise 9.7);
# 2. write LayerNorm (exercise 9.1), compute by hand what three residual forms do (9.2), and build an encoder block from tensors (9.3);
# 3. find the bug that turns "Pre-LN" code into something else (9.4);
# 4. say what queries, keys and values are in each of the three attentions, and write cross-attention (9.5);
# 5. train with a mask, write with a loop, and show that both compute the same (9.6);
# 6. choose the style of Transformer, and the way to pool, for a task, and test a model for the four properties that it must have (9.7).
#
# Letters: `B` sequences in a batch, `S` source tokens, `T` target tokens (or tokens, if there is one sequence), `D` the model's width, `H` heads of width
# `K` = `D`/`H`, `F` the width inside the feed-forward network, `N` layers, `V` words. Masks are boolean, `True` = may attend.

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
layer = EncoderLayer(d_model=8, nhead=2, dim_feedforward=16, dropout=0.0)
x = torch.randn(3, 12, 8)  # (B, T, D)
with torch.no_grad():
    prefix_by_prefix = torch.cat([layer(x[:, : t + 1])[:, -1:] for t in range(12)], dim=1)
    at_once = layer(x, causal=True)
    twice_as_long = layer(torch.cat([x, x], dim=1), causal=True)
claim(
    "T copies of the direct function, one for each prefix, give what one causal call gives",
    torch.allclose(prefix_by_prefix, at_once, atol=1e-6),
    largest_difference=(prefix_by_prefix - at_once).abs().max(),
)
claim(
    "The copies share their weights: the same layer takes a sequence twice as long, and begins with the same outputs",
    torch.allclose(twice_as_long[:, :12], at_once, atol=1e-6),
    parameters=number_of_parameters(layer),
)
diagrams.show("transformer_as_parallel_units")

# %% [markdown]
# Who depends on whom? We measure it: $\lVert \partial y_t / \partial x_s \rVert$, how strongly output $t$ reacts to input $s$, for a recurrent layer, a causal and a full Transformer layer, none of them trained.
# **Predict** the three pictures: where are they exactly zero, and where do they fade?

# %%
set_seed(2)
recurrent = RNN(8, 8)
functions = {
    "loop (RNN)": lambda x: recurrent(x)[0],
    "direct, causal": lambda x: layer(x, causal=True),
    "direct, full": layer,
}


def reaction(function, count=6, T=12):
    """Mean over sequences of the norm of dy_t / dx_s: (T, T)."""
    total = 0
    for _ in range(count):
        jacobian = torch.autograd.functional.jacobian(function, torch.randn(1, T, 8))
        total = total + jacobian[0, :, :, 0].norm(dim=(1, 3))  # (T, D, T, D) to (T, T)
    return total / count


set_seed(3)
reactions = {name: reaction(function) for name, function in functions.items()}
axes = plots.grid(1, 3, height=2.9)[0]
ticks = [str(t + 1) for t in range(12)]
for ax, (name, matrix) in zip(axes, reactions.items(), strict=True):
    decades = (4 + (matrix / matrix.max()).log10()).clamp(
        min=0
    )  # 4: the largest; 0: 1/10,000 or nothing
    label = "4 + log10(share of the largest)" if ax is axes[-1] else ""
    plots.heatmap(ax, decades, ticks, ticks, label, xlabel="input s", ylabel="output t")
    ax.set(title=name)
    ax.tick_params(labelsize=7)
show(
    axes[0],
    alt="Three maps of 12 outputs by 12 inputs. Loop: below the diagonal only, fading quickly with the distance. Direct, "
    "causal: on and below the diagonal only, strongest on it, about even elsewhere in a row. Direct, full: everywhere.",
    caption="What does an output react to? The loop: to the past, and to the distant past hardly at all. The causal direct function: "
    "to every input before it, near or far. The full one: to everything. (Shades are powers of ten.)",
)


def at_distance(matrix, k):
    """Mean reaction to an input k steps back, in the last 4 outputs."""
    return sum(matrix[t, t - k].item() for t in range(8, 12)) / 4


loop, causal, full = reactions.values()
claim(
    "Loop and causal function react to nothing later; the full function reacts to every input",
    loop.triu(1).max() == 0 and causal.triu(1).max() == 0 and full.min() > 0,
)
claim(
    "The loop's reaction to an input 8 steps back is less than a tenth of that to 1 step back; the causal function's more than half",
    at_distance(loop, 8) < 0.1 * at_distance(loop, 1)
    and at_distance(causal, 8) > 0.5 * at_distance(causal, 1),
    loop=at_distance(loop, 8) / at_distance(loop, 1),
    causal=at_distance(causal, 8) / at_distance(causal, 1),
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
# It is a sum (some texts say "concatenated": no). The factor is there because the same table, tied, is the output layer, where small entries keep the first logits small. **Predict:** what would the model see without it?

# %%
show_source(TokenEmbedding.forward)
set_seed(0)
embedding = TokenEmbedding(1000, 64)
table_std, scaled_std = embedding.embedding.weight.std(), embedding(torch.arange(1000)[None]).std()
position_std = Sinusoidal(64).add(torch.zeros(1, 30, 64)).std()
table(
    ["what", "standard deviation of its entries"],
    [
        ["the table's rows", table_std.item()],
        ["times sqrt(D)", scaled_std.item()],
        ["sinusoidal positions", position_std.item()],
    ],
)
claim(
    "Unscaled, the word would be less than a quarter as large as its position; scaled, it is the larger part",
    table_std < position_std / 4 and scaled_std > position_std,
)

# %% [markdown]
# **Feed-forward.** Two linear layers with a ReLU between them, usually $F = 4D$:
#
# $$ \mathrm{ff}(x_t) = W_2\, \mathrm{relu}(W_1 x_t + b_1) + b_2, \qquad W_1\ (F, D),\quad W_2\ (D, F). $$
#
# The same network at every $t$: in the language of images, a convolution whose kernel has size 1.

# %%
show_source(EncoderLayer.feed_forward)
narrow, wide = nn.Conv1d(8, 16, kernel_size=1), nn.Conv1d(16, 8, kernel_size=1)
same_words = x.clone()
same_words[:, 7] = same_words[:, 2]  # two equal vectors in each sequence
with torch.no_grad():
    for convolution, linear in ((narrow, layer.linear1), (wide, layer.linear2)):
        convolution.weight.copy_(linear.weight[..., None])  # (out, in, 1)
        convolution.bias.copy_(linear.bias)
    by_convolution = wide(F.relu(narrow(x.transpose(1, 2)))).transpose(1, 2)
    by_linear = layer.feed_forward(x)
    of_equal = layer.feed_forward(same_words)
    whole_layer = layer(same_words)
claim(
    "With the same weights, two 1-D convolutions with kernel 1 give what the feed-forward network gives",
    torch.allclose(by_convolution, by_linear, atol=1e-6),
)
claim(
    "Equal vectors at two places get equal outputs, from the feed-forward network and, without positions, from the whole layer",
    torch.allclose(of_equal[:, 7], of_equal[:, 2])
    and torch.allclose(whole_layer[:, 7], whole_layer[:, 2], atol=1e-6),
)

# %% [markdown]
# **Add & Norm.** Each sublayer (attention, feed-forward) is *added* to what it read, the **residual connection**, and the sum is normalised. LayerNorm makes mean 0 and variance 1 out of
# each single vector $x$ of $D$ entries, then applies a learned gain $\gamma$ and offset $\beta$, both (D,):
#
# $$ \mu = \frac1D \sum_d x_d, \qquad \sigma^2 = \frac1D \sum_d (x_d - \mu)^2, \qquad \mathrm{LayerNorm}(x) = \gamma \odot \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta . $$
#
# The batch plays no part, nor do the other positions: what a word gets cannot depend on its neighbours or on padding. Two details are often written wrongly: the variance is divided by $D$, not by $D - 1$, and $\epsilon$ stands inside the root.
#
# **Common mistake.** A much-copied annotated implementation computes `(x - mean) / (std + eps)` with torch's `std`. How far off is it?

# %%
set_seed(0)
differences = {}
for D in (8, 64, 512):
    vectors = torch.randn(1000, D)
    copied = (vectors - vectors.mean(-1, keepdim=True)) / (vectors.std(-1, keepdim=True) + 1e-6)
    differences[D] = (copied - F.layer_norm(vectors, (D,), eps=1e-6)).abs().max().item()
claim(
    "At width 8 an entry is off by more than 0.05, at width 512 by less than 0.01: it looks like rounding, and is none",
    differences[8] > 0.05 and 1e-4 < differences[512] < 0.01,
    **{f"width_{D}": difference for D, difference in differences.items()},
)

# %% [markdown]
# A model *trained* so does not mind: the gain absorbs the factor. It breaks when weights are loaded from elsewhere (section 5). The repair is yours:
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
# Where the norm stands is a choice, and `course_lib` treats it as one: a function of the vectors `x`, the `sublayer` and its `norm`. An encoder layer gets one of the three by name.

# %%
show_source(post_ln, pre_ln, rezero)
table(
    ["`residual=`", "x becomes", "from"],
    [
        ["post-ln", "norm(x + f(x))", "Vaswani et al. 2017, section 3.1: the text of the paper"],
        ["pre-ln", "x + f(norm(x))", "the authors' later code, GPT-2; Xiong et al. 2020"],
        ["rezero", "x + alpha f(x), alpha = 0 at the start", "Bachlechner et al. 2021"],
    ],
)

# %% [markdown]
# Pre-LN and ReZero keep a straight road through all layers on which $x$ passes unchanged. What does each make of its input before any training? **Predict:** which returns exactly what it was given?

# %%
set_seed(0)
x64 = torch.randn(4, 20, 64)
rows = []
for residual in RESIDUALS:
    stack = TransformerEncoder(
        [EncoderLayer(64, 4, 256, 0.0, residual=residual) for _ in range(12)]
    )
    with torch.no_grad():
        out = stack(x64)
    rows.append([residual, out.std().item(), F.cosine_similarity(out, x64, dim=-1).mean().item()])
table(
    ["12 untrained layers", "standard deviation of the output", "cosine with the input"],
    [[name, f"{size:.2f}", f"{similar:.2f}"] for name, size, similar in rows],
)
(_, post_size, post_similar), (_, pre_size, pre_similar), (_, zero_size, zero_similar) = rows
claim(
    "ReZero returns its input; Pre-LN keeps it recognisable and grows; Post-LN keeps the size and loses the most of the input",
    zero_similar > 0.9999
    and zero_similar > pre_similar > post_similar
    and pre_size > 1.1
    and abs(post_size - 1) < 0.01,
    pre_similar=pre_similar,
    post_similar=post_similar,
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
# Attention looks around, the feed-forward network thinks about what was found; each is added to what it read.

# %%
diagrams.show("encoder_block")
show_source(EncoderLayer.forward)

# %% [markdown]
# `attend` is the multi-head self-attention of chapter 07 with the layer's masks; with `key=None` it takes queries, keys and values from `x`. `self.residual` is one of the three functions above. The shape (B, T, D) goes in and comes out, so
# the layers of a stack fit on each other, and the padding mask (B, T) says which keys are real.
#
# ### Exercise 9.3 · An encoder block from parts
#
# Difficulty ●●●●○ · 40 minutes · needs sections 2 and 3
#
# The whole Post-LN block from tensors, without `nn` layers, the library's, or `F.multi_head_attention_forward`; `F.linear`, `F.layer_norm` and `softmax` are allowed. What your block returns *at* padding does not matter; that real tokens do not look there does.


# %% nbgrader={"grade": false, "grade_id": "ex09-3-encoder-block", "locked": false, "schema_version": 3, "solution": true, "task": false}
def encoder_block(x, mask, p, num_heads):
    """A Post-LN encoder block without dropout.

    Args:
        x: (B, T, D).
        mask: (B, T) bool, True = a real token, that may be attended to.
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
    weights = scores.masked_fill(~mask[:, None, None], -math.inf).softmax(dim=-1)
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
# A tutorial's "Pre-LN" block, in our words. It trains, its shapes are right, and its comments say what they should. What does the residual carry?


# %%
def buggy_block(x, attend, feed_forward, norm1, norm2):
    """Normalise first, then add."""
    x = norm1(x)
    x = x + attend(x)  # residual connection
    return x + feed_forward(norm2(x))  # residual connection


silent = torch.zeros_like  # a sublayer that says nothing
norm64 = nn.LayerNorm(64)
with torch.no_grad():
    through_bug = buggy_block(5 * x64, silent, silent, norm64, norm64)
    through_pre_ln = pre_ln(pre_ln(5 * x64, silent, norm64), silent, norm64)
claim(
    "With silent sublayers a Pre-LN block returns its input; this one returns its input normalised",
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
# A decoder writes. It may look at what it has written, but not ahead; and it looks at what the encoder has read.

# %%
diagrams.show("decoder_block")
show_source(DecoderLayer.forward)

# %% [markdown]
# What are queries, keys and values? Whoever *asks* makes the queries; whoever *is asked* makes keys and values. That settles their lengths, and the shape of the weights:

# %%
table(
    ["attention", "queries from", "keys and values from", "weights", "mask"],
    [
        ["encoder's self-attention", "source x (B, S, D)", "source x (B, S, D)", "(B, H, S, S)", "padding of the source"],
        [
            "decoder's masked self-attention",
            "target y (B, T, D)",
            "target y (B, T, D)",
            "(B, H, T, T)",
            "causal (and padding)",
        ],
        [
            "cross-attention",
            "target (B, T, D): output of the sublayer before",
            "memory m (B, S, D): output of the encoder",
            "(B, H, T, S)",
            "padding of the source",
        ],
    ],
)  # fmt: skip
diagrams.show("encoder_decoder_block")

# %% [markdown]
# In cross-attention there is no causal mask: the source is known as a whole before the first word is written. Here are all three, in the translator of the first screen, on two sentences of different lengths.

# %%
pick = [3, 8]
two = next(
    seq2seq.translation_batches(*[[side[i] for i in pick] for side in task.test], 2, shuffle=False)
)
with torch.no_grad():
    x = translator.source_embedding(two.source)  # (B, S, D)
    position = translator.source_embedding.position
    encoder_maps = translator.transformer.encoder.weights(x, two.source_mask, position=position)
    decoder_maps = translator.weights(two.source, two.source_mask, two.target_in)
    last_own, last_cross = decoder_maps[-1]
table(
    ["weights of the last layer", "shape", "letters"],
    [
        ["encoder", tuple(encoder_maps[-1].shape), "(B, H, S, S)"],
        ["decoder, self", tuple(last_own.shape), "(B, H, T, T)"],
        ["decoder, cross", tuple(last_cross.shape), "(B, H, T, S)"],
    ],
)
source_padding = ~two.source_mask[:, None, None].expand_as(last_cross)
claim(
    "Every row adds up to 1; none looks ahead in the target; no target word looks at padding of the source",
    all(
        torch.allclose(w.sum(-1), torch.ones(()), atol=1e-5)
        for w in (encoder_maps[-1], last_own, last_cross)
    )
    and last_own.triu(1).max() == 0
    and last_cross[source_padding].sum() == 0,
    padded_positions=(~two.source_mask).sum(),
)

# %% [markdown]
# ### Exercise 9.5 · Cross-attention
#
# Difficulty ●●●○○ · 20 minutes · needs section 4
#
# One head. Which of $q$, $k$, $v$ comes from where? The shapes will tell you if they are exchanged, but only where $T \ne S$.


# %% nbgrader={"grade": false, "grade_id": "ex09-5-cross-attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cross_attention(x, memory, memory_mask, W_q, W_k, W_v):
    """One head of cross-attention.

    Args:
        x: (B, T, D), the decoder's vectors.
        memory: (B, S, D), the encoder's output.
        memory_mask: (B, S) bool, True = may attend; every row has a True.
        W_q: (D, D), used as nn.Linear uses its weight: x @ W.T.
        W_k: (D, D).
        W_v: (D, D).

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    q, k, v = x @ W_q.T, memory @ W_k.T, memory @ W_v.T
    scores = q @ k.transpose(1, 2) / math.sqrt(q.shape[-1])  # (B, T, S)
    return scores.masked_fill(~memory_mask[:, None], -math.inf).softmax(dim=-1) @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex09-5-cross-attention-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch09.cross_attention(cross_attention)

# %% [markdown]
# ## 5 · The whole: N layers on each side
#
# Blocks have one shape, so they stack; the paper of 2017 took $N = 6$. Each layer has its own weights. **Question before you look:** does layer 2 of the decoder attend to layer 2 of the encoder?

# %%
diagrams.show("stacked")
set_seed(0)
deep = toys.toy_translator(task, width=16, heads=2, layers=3)
seen = []  # what each decoder layer gets as memory
for decoder_layer in deep.transformer.decoder.layers:
    decoder_layer.register_forward_hook(lambda layer, inputs, output: seen.append(inputs[1]))
with torch.no_grad():
    deep(two.source, two.source_mask, two.target_in)
    memory = deep.encode(two.source, two.source_mask)
claim(
    "All three decoder layers get the same memory: the output of the encoder's last layer",
    len(seen) == 3 and all(torch.equal(given, memory) for given in seen),
)
diagrams.show("full_transformer")
show_source(Transformer.forward, TransformerDecoder.forward)

# %% [markdown]
# ### The same as `nn.Transformer`
#
# The parts have torch's names, so its weights can be loaded: Post-LN and Pre-LN (`norm_first=True`), with padding of both sides, the causal mask and the memory's mask. Two traps: torch's boolean masks mean the opposite, `True` = *blocked*; and
# `nn.Transformer` ends both stacks with one more LayerNorm, also in Post-LN, where the paper has none.


# %%
def twins(norm_first, D=12, H=3, F_=20, layers=(2, 4)):
    """torch's Transformer, and ours with its weights, in float64."""
    residual = "pre-ln" if norm_first else "post-ln"
    with warnings.catch_warnings():  # about a fast path that is not taken
        warnings.simplefilter("ignore")
        theirs = nn.Transformer(
            D, H, *layers, F_, dropout=0.0, batch_first=True, norm_first=norm_first
        )
    encoder = [EncoderLayer(D, H, F_, 0.0, residual=residual) for _ in range(layers[0])]
    decoder = [DecoderLayer(D, H, F_, 0.0, residual=residual) for _ in range(layers[1])]
    ours = Transformer(
        TransformerEncoder(encoder, nn.LayerNorm(D)), TransformerDecoder(decoder, nn.LayerNorm(D))
    )
    ours.load_state_dict(theirs.state_dict())
    return theirs.double(), ours.double()


set_seed(0)
source, target = torch.randn(2, 5, 12).double(), torch.randn(2, 7, 12).double()
source_mask, target_mask = text.length_mask([5, 3]), text.length_mask([4, 7])
blocked = {
    "tgt_mask": ~causal_mask(7),
    "src_key_padding_mask": ~source_mask,
    "tgt_key_padding_mask": ~target_mask,
    "memory_key_padding_mask": ~source_mask,
}
for form, norm_first in (("Post-LN", False), ("Pre-LN", True)):
    theirs, ours = twins(norm_first)
    differences = {}
    for impl in ("sdpa", "math"):
        difference = theirs(source, target, **blocked) - ours(
            source, target, source_mask, target_mask, impl=impl
        )
        differences[impl] = difference[target_mask].abs().max().item()
    claim(
        f"{form}: with nn.Transformer's weights and all masks, ours gives the same at every real position",
        max(differences.values()) < 1e-12,
        **differences,
    )

# %% [markdown]
# At padded *target* positions the two differ (ours gives 0), and nobody reads them.
#
# ## 6 · Teacher forcing with a mask, writing with a loop
#
# In training the answer is known. The true words go in, shifted by one, and the causal mask keeps position $t$ from seeing the word that it must say. All $T$ predictions are made in **one run**. In use there is no answer, and each word costs a run.

# %%
diagrams.show("teacher_forcing")
diagrams.show("autoregressive_decoding")

# %% [markdown]
# Both must compute the same, or training would prepare for something else. Three properties of the decoder make it so: no later position is seen, nothing else depends on the length, and positions count from the start. We feed the trained translator the true words, at once and word by word.

# %%
batch = next(seq2seq.translation_batches(*task.test, 200, shuffle=False))


def both_ways(model):
    """Largest difference of log-probabilities at real words: one masked run against a run for each word."""
    with torch.no_grad():
        at_once = model(batch.source, batch.source_mask, batch.target_in).log_softmax(-1)
        state, steps = model.start(batch.source, batch.source_mask), []
        for tokens in batch.target_in.unbind(dim=1):  # (B,)
            logits, state = model.step(tokens, state)
            steps.append(logits.log_softmax(-1))
    return (torch.stack(steps, dim=1) - at_once)[batch.target_mask].abs().max().item()


honest, dishonest = both_ways(translator), both_ways(peeking)
claim(
    "Causal: one run under teacher forcing gives the log-probabilities of step-by-step decoding",
    honest < 1e-3,
    largest_difference=honest,
)
claim(
    "Without the causal mask they differ by more than 1 nat: it was trained for another task than it has to do",
    dishonest > 1,
    largest_difference=dishonest,
)
show_source(Translator.step)

# %% [markdown]
# `step` reads the whole prefix again for every word. The earlier positions come out the same each time; keeping their keys and values is chapter 13's *cache*. Here are both translators of the first screen on new sentences:

# %% tags=["nbval-ignore-output"]
for i in (3, 8):
    print("source    ", " ".join(task.test_pairs[i].source))
    print("truth     ", " ".join(task.test_pairs[i].target))
    for name, model in (("causal    ", translator), ("look-ahead", peeking)):
        found = seq2seq.translate(model, [task.test[0][i]], max_len=20)[0].tokens
        print(name, " ".join(text.denumericalize(found, task.target_vocab)))
    print()

# %% [markdown]
# ### Does cross-attention know which word it translates?
#
# Chapter 06 scored the attention of a GRU against the true alignment. The same for the Transformer: the row of target word $t$ is that of the position whose input is word $t-1$, because there the model decides.

# %%
maps = toys.cross_maps(translator, task)[-1]  # 500 of (H, T, S)
shown = next(
    i for i, pair in enumerate(task.test_pairs) if len(pair.source) == 9 and "not" in pair.source
)
pair = task.test_pairs[shown]
ax = plots.heatmap(
    plots.axes(height=3.9),
    maps[shown].mean(0),
    [*pair.source, "<eos>"],
    pair.target,
    "weight, mean of 4 heads",
    xlabel="source",
    ylabel="target word to be said",
)
for t, place in enumerate(pair.alignment):
    ax.plot(place + 0.5, t + 0.5, "s", ms=13, mfc="none", mec=plots.COLORS["gradient"], mew=1.6)
show(
    ax,
    alt="Cross-attention of one sentence, target words by source words; squares mark the true alignment, and most rows have their darkest cell there.",
    caption="Where does the decoder look for each word? Mostly at the word that it translates (squares), although nobody told it.",
)
alignment = toys.cross_alignment(translator, task)
claim(
    "The largest weight is on the true source word for more than 6 of 10 target words",
    alignment["alignment"] > 0.6,
    mean_of_heads=alignment["alignment"],
    heads=alignment["alignment_head"],
)
claim(
    "A beam of 4 changes fewer than 2 of 100 translations: the model is sure",
    abs(
        translation.translation_scores(
            translator, task, first=100, search=seq2seq.beam_search, beam=4
        )["exact"]
        - translation.translation_scores(translator, task, first=100)["exact"]
    )
    < 0.02,
)

# %% [markdown]
# That was the mean of four heads, and one of three attentions. Here are all maps of the same sentence. (A picture stands here where scripts do not run.) **Question:** in which of the three maps are cells masked, and why in no other?

# %%
source, source_mask = text.pad_batch([task.test[0][shown]])
target_in, _ = text.pad_batch([[text.SOS, *task.test[1][shown]]])
with torch.no_grad():
    x = translator.source_embedding(source)
    own_maps = translator.transformer.encoder.weights(x, source_mask, position=position)
    decoder_maps = translator.weights(source, source_mask, target_in)
read, written = [*pair.source, "<eos>"], ["<sos>", *pair.target]
explore(
    {"encoder": read, "decoder": written, "cross": written},
    {
        "encoder": [weights[0] for weights in own_maps],
        "decoder": [own[0] for own, _ in decoder_maps],
        "cross": [cross[0] for _, cross in decoder_maps],
    },
    keys={"cross": read},
    title="A trained translator",
    alt="Attention maps of the trained translator on one sentence: the encoder's self-attention, the decoder's masked "
    "self-attention, which is empty above the diagonal, and the cross-attention, four heads each.",
    caption="Only the decoder's own map is a triangle: the source is known as a whole, the target is not. In the cross-attention "
    "the row of a word shows where the decoder looks to say the *next* one.",
    part="cross",
)

# %% [markdown]
# The ledger, three seeds: chapter 06's GRU with attention, and two Transformers, the second without any encoder (section 8). The GRU had 16 epochs of batches of 64, the Transformers 6 epochs of batches of 32; all saw the same sentences of their seed, and 1,000 others are the test.

# %%
rows = []
for name, experiment, variant in (
    ("GRU, one vector", "toy-translation", "no attention"),
    ("GRU, attention", "toy-translation", "attention"),
    ("Transformer, encoder-decoder", "transformer-toy", "encoder-decoder"),
    ("Transformer, decoder-only", "transformer-toy", "decoder-only"),
):
    recorded = ledger.load(experiment)["runs"][0]["results"][variant]
    cells = []
    for metric in ("parameters", "exact", "bleu", "alignment"):
        if metric not in recorded:
            cells.append("-")
            continue
        mean, low, high, seeds = ledger.summary(experiment, variant, metric)
        text_of_mean = f"{mean:,.0f}" if metric == "parameters" else f"{mean:.3g}"
        cells.append(text_of_mean + (f" ({low:.3g} to {high:.3g})" if low < high else ""))
    rows.append([name, *cells, seeds])
table(["model", "parameters", "exact", "BLEU", "alignment", "seeds"], rows)
exact = {
    name: ledger.values(experiment, variant, "exact")
    for name, experiment, variant in (
        ("vector", "toy-translation", "no attention"),
        ("gru", "toy-translation", "attention"),
        ("both", "transformer-toy", "encoder-decoder"),
        ("prefix", "transformer-toy", "decoder-only"),
    )
}
claim(
    "All models that can look back translate more than 95 of 100 sentences without a mistake, in every seed",
    min(exact["gru"] + exact["both"] + exact["prefix"]) > 0.95,
)
looking = [
    ledger.summary(experiment, variant, "alignment")[0]
    for experiment, variant in (
        ("toy-translation", "attention"),
        ("transformer-toy", "encoder-decoder"),
    )
]
claim(
    "The Transformer's cross-attention is on the true word more often than the GRU's attention",
    looking[1] > looking[0] + 0.05,
    gru=looking[0],
    transformer=looking[1],
)

# %% [markdown]
# The Transformers need fewer passes than the GRU. And look at the map again where it misses: *uno* must know the gender of the noun, *vokas* the tense that stands in *does*. As in chapter 06, the largest weight is on what the model needs, which is not always the word that is translated.
#
# ### Exercise 9.6 · The loop that writes
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# `model(ids)` takes (1, T) ids and returns (1, T, V) logits; row $t$ is for the token after position $t$. Continue a text greedily until the stop token comes or the limit is reached.


# %% nbgrader={"grade": false, "grade_id": "ex09-6-continue-greedily", "locked": false, "schema_version": 3, "solution": true, "task": false}
def continue_greedily(model, prompt, stop, max_new):
    """Continue a text with the most probable token, again and again.

    Args:
        model: ids (1, T) int64 to logits (1, T, V); keeps nothing between calls.
        prompt: list of T ids.
        stop: the id that ends the text.
        max_new: most tokens to add.

    Returns:
        list of the new ids, without the prompt and without `stop`.
    """
    ### BEGIN SOLUTION
    ids = list(prompt)
    for _ in range(max_new):
        word = model(torch.tensor([ids]))[0, -1].argmax().item()
        if word == stop:
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
    before = translator(batch.source, batch.source_mask, batch.target_in)
    after = translator(batch.source, batch.source_mask, changed)
    padded = translator(
        F.pad(batch.source, pad, value=text.PAD),
        F.pad(batch.source_mask, pad, value=False),
        F.pad(batch.target_in, pad, value=text.PAD),
    )
claim(
    "Causality: another word at position 4 changes nothing before it, and something from there on",
    torch.allclose(before[:, :4], after[:, :4], atol=1e-5)
    and (before[:, 4:] - after[:, 4:]).abs().max() > 0.1,
)
claim(
    "Padding: six more columns on both sides change nothing at the real words",
    torch.allclose(padded[:, : before.shape[1]], before, atol=1e-3),
    largest_difference=(padded[:, : before.shape[1]] - before).abs().max(),
)

encoder, order = translator.transformer.encoder, torch.tensor([3, 0, 4, 1, 2])
five = torch.randn(2, 5, 64)
with_places = Sinusoidal(64).add
with torch.no_grad():
    without_position = encoder(five[:, order]), encoder(five)[:, order]
    with_position = encoder(with_places(five[:, order])), encoder(with_places(five))[:, order]
claim(
    "Equivariance: without positions, permuted inputs give the same outputs, permuted; with positions they do not",
    torch.allclose(*without_position, atol=1e-4) and not torch.allclose(*with_position, atol=0.1),
)
translator.zero_grad()
seq2seq.translation_loss(translator, batch)["loss"].backward()
reached = [p.grad is not None and p.grad.abs().max() > 0 for p in translator.parameters()]
translator.zero_grad()
claim("Gradient: it reaches every parameter", all(reached), tensors=len(reached))

# %% [markdown]
# ## 8 · Three styles and their uses
#
# The two stacks can be used together or alone.

# %%
table(
    ["style", "attention", "trained to", "used for", "here, and later"],
    [
        [
            "encoder",
            "full",
            "judge; or fill in hidden words",
            "sentiment, word in context, sentence embedding and search",
            "reviews; BERT, chapter 12",
        ],
        [
            "decoder",
            "causal",
            "say the next word",
            "generation; any task that can be put as a prefix",
            "docstrings; GPT, chapter 13",
        ],
        [
            "encoder-decoder",
            "full on the source, causal on the target, cross",
            "say the next target word",
            "a sequence in, another out: translation, summary, question with context",
            "sections 4 to 6",
        ],
    ],
)  # fmt: skip

# %% [markdown]
# ### Encoder style: one vector for a text
#
# The encoder gives T vectors; a verdict needs one. Three ways to **pool**: the *mean* over the real tokens; the *maximum* of each entry over the real tokens; or an extra learned vector, **CLS**, that stands before the first token, has no word of its own, and whose output is the answer: it can attend
# to whatever it needs. (Some texts take the last token instead; in a causal model it is the only one that has seen everything.)
#
# The reviews are those of chapter 05: every review's mirror has the same words and the opposite label, so a bag of words is right on exactly half.

# %%
show_source(TransformerClassifier._pooled)
reviews = toys.review_task()
classifiers, curves = {}, {}
for pool in ("mean", "max"):  # CLS takes longer: in the ledger
    set_seed(0)
    classifiers[pool] = toys.review_classifier(reviews, pool)
    curves[pool] = toys.train_classifier(classifiers[pool], reviews, epochs=8)
accuracies = {pool: curve[-1]["accuracy"] for pool, curve in curves.items()}
claim(
    "After 8 epochs both classifiers are right on more than 3 of 4 test reviews; a bag of words on 2 of 4",
    min(accuracies.values()) > 0.75,
    **accuracies,
)
recorded = {
    pool: ledger.values("transformer-toy", pool, "accuracy") for pool in ("mean", "max", "cls")
}
claim(
    "In the ledger, after 10 epochs, all three ways to pool are right on more than 4 of 5, in every seed",
    min(min(values) for values in recorded.values()) > 0.8,
)
markdown(
    ledger.table(
        "transformer-toy",
        ["accuracy", "accuracy_padded_to_150"],
        ["mean", "max", "cls", "mean, no mask"],
    )
)

# %%
ax = plots.axes(height=3.0)
for name, color in {"mean": "hidden", "max": "output", "cls": "attention"}.items():
    runs = [[100 * v for v in run] for run in ledger.curves("transformer-toy", name, "accuracy")]
    plots.band(ax, range(1, len(runs[0]) + 1), runs, name, color, marker="o", markersize=3)
ax.axhline(50, color=plots.COLORS["muted"], ls="--", label="bag of words")
ax.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(45, 101))
ax.legend(loc="center right")
show(
    ax,
    alt="Test accuracy on the toy reviews over ten epochs for mean, max and CLS pooling, three seeds each: all leave 50 percent after some epochs and end near or above 90; max rises first, mean and CLS later.",
    caption="Does it matter how one pools? Here little: after some epochs at the level of guessing, all three find that order decides, the maximum first. The bands are the range of three seeds.",
)

# %% [markdown]
# **Common mistake · nobody passed the mask.** The tutorial behind many notebooks calls `encoder(ids)` on padded batches. No error: real tokens attend to padding, and the pooling counts it. We take our trained mean classifier and forget its mask. The same reviews, padded to 60, 100 and 150 tokens: **what will happen to the logits, and to the accuracy?**

# %%
forgetful = toys.Unmasked(classifiers["mean"])
changes, flips = {"with": [], "without": []}, []
with torch.no_grad():
    alone = classifiers["mean"](*text.pad_batch(reviews.test[0]))
    for width in (60, 100, 150):
        ids, mask = text.pad_batch(reviews.test[0], width)
        changes["with"].append((classifiers["mean"](ids, mask) - alone).abs().max().item())
        changes["without"].append((forgetful(ids) - alone).abs().max().item())
        flips.append((forgetful(ids).argmax(1) != alone.argmax(1)).double().mean().item())
claim(
    "With its mask no logit depends on the padding; without it some change by more than 0.5, and verdicts flip",
    max(changes["with"]) < 1e-4 and min(changes["without"]) > 0.5 and max(flips) > 0,
    with_mask=changes["with"],
    without_mask=changes["without"],
    share_of_verdicts_flipped=flips,
)
claim(
    "And yet the accuracy falls by less than 10 points: the score does not give the bug away",
    toys.review_accuracy(forgetful, reviews, length=150) > accuracies["mean"] - 0.1,
    at_width_150=toys.review_accuracy(forgetful, reviews, length=150),
    with_mask=accuracies["mean"],
)

# %% [markdown]
# The last row of the table above was *trained* without its mask. It learned to live with the padding that it saw, and its score is not far from the first; only a comparison of two widths shows what is wrong. That is how such a bug survives. The test is one line: *pad further, and nothing may change* (section 7).
#
# **Common mistake · the maximum over padding.** Even with a right attention mask, the pooling has to know what is real. Our encoder returns zeros at padding, which look harmless. For a *mean* they are (if one divides by the number of real tokens). **And for a maximum?**

# %%
short = min(range(400), key=lambda i: len(reviews.test[0][i]))
ids, mask = text.pad_batch([reviews.test[0][short]], 60)
model = classifiers["max"]
with torch.no_grad():
    out = model.encoder(model.embedding(ids), mask, position=model.embedding.position)  # (1, 60, D)
    careless = out.amax(dim=1)
    right = out.masked_fill(~mask[..., None], -math.inf).amax(dim=1)
    by_model = model(ids, mask)
changed_entries = (careless != right).double().mean().item()
claim(
    "Every entry whose largest real value is negative becomes 0: the padding wins. With minus infinity there it cannot",
    changed_entries > 0
    and (careless[careless != right] == 0).all().item()
    and torch.allclose(model.output(right), by_model, atol=1e-6),
    share_of_entries_changed=changed_entries,
)

# %% [markdown]
# ### Encoder style: search by meaning
#
# The pooled vector is an embedding of the text. Texts with similar vectors can be looked up: **semantic search**. As a test, each review looks for its nearest neighbour among the other 399, by cosine. A rival counts words. **Predict** how often each finds a review with the same verdict.


# %%
def vectors(model, rows):
    """What the classifier's last layer sees of each text: (n, D)."""
    ids, mask = text.pad_batch(rows)
    with torch.no_grad():
        out = model.encoder(model.embedding(ids), mask, position=model.embedding.position)
    return out.masked_fill(~mask[..., None], -math.inf).amax(dim=1)


def nearest(points):
    """The index of each point's nearest other point by cosine."""
    unit = F.normalize(points - points.mean(dim=0), dim=1)
    return (unit @ unit.T).fill_diagonal_(-math.inf).argmax(dim=1)


counts = torch.stack(
    [torch.bincount(torch.tensor(row), minlength=len(reviews.vocab)) for row in reviews.test[0]]
).double()
verdicts = torch.tensor(reviews.test[1])
found = {
    "Transformer": nearest(vectors(classifiers["max"], reviews.test[0])),
    "word counts": nearest(counts),
}
agree = {
    name: (verdicts[index] == verdicts).double().mean().item() for name, index in found.items()
}
claim(
    "The neighbour by the Transformer's vectors has the same verdict in more than 7 of 10 cases; by word counts in fewer than 2",
    agree["Transformer"] > 0.7 and agree["word counts"] < 0.2,
    **agree,
)

# %% tags=["nbval-ignore-output"]
right = (verdicts[found["Transformer"]] == verdicts).tolist()
query = next(i for i in range(400) if right[i] and 8 <= len(reviews.test[0][i]) <= 16)
print("query:      ", reviews.texts[query])
for name, index in found.items():
    print(f"{name}:", reviews.texts[index[query]])

# %% [markdown]
# (An example in which it succeeds.) By word counts the nearest review is the mirror: the same words, the opposite meaning. A caution: these vectors know what the model was trained for, the verdict; whether a review is about the music they may well have dropped. Encoders for general search are trained on pairs of texts that belong together.
#
# The third use of an encoder is to **fill in a hidden word** from both sides ("the plot was not [MASK], it was great"). It needs no labels, and is how BERT is trained: chapter 12.

# %% [markdown]
# ### Decoder style: say the next token
#
# Without an encoder there is nothing to cross-attend to. What is left, masked self-attention and feed-forward, is an *encoder* layer with `causal=True`, and the whole a language model: the causal direct function of section 1 with a readout on top.

# %%
show_source(TransformerLM.forward)
characters = data.docstrings(limit=150_000)
letters = sorted(set(characters))
stream = torch.tensor([letters.index(c) for c in characters])
set_seed(0)
encoder = TransformerEncoder(
    [EncoderLayer(64, 4, 256, 0.0, residual="pre-ln") for _ in range(2)], nn.LayerNorm(64)
)
lm = TransformerLM(len(letters), encoder, position=Sinusoidal(64))
optimizer, generator = torch.optim.Adam(lm.parameters(), 3e-3), torch.Generator().manual_seed(0)
train_part, valid_part = stream[:135_000], stream[135_000:]
for _ in range(250):
    starts = torch.randint(len(train_part) - 65, (16,), generator=generator)
    windows = torch.stack([train_part[s : s + 65] for s in starts.tolist()])  # (B, T + 1)
    loss = F.cross_entropy(lm(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
lm.eval()
rows = valid_part[: 65 * 200].view(200, 65)
with torch.no_grad():
    nats = F.cross_entropy(lm(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten()).item()
claim(
    "After 250 updates it predicts characters of new docstrings better than their frequencies do, by more than 0.4 nats",
    nats < language.unigram_entropy(valid_part) - 0.4,
    nats=nats,
    unigram_entropy=language.unigram_entropy(valid_part),
    bigram_entropy=language.bigram_entropy(valid_part),
)

# %% tags=["nbval-ignore-output"]
prompt = "Return the "
start = [letters.index(c) for c in prompt]
drawn = language.sample(
    lm.next_probs(), start, 150, torch.Generator().manual_seed(1), temperature=0.7
)
print(prompt + "".join(letters[i] for i in drawn))

# %% [markdown]
# A few seconds of training: it knows which letters follow which, and little more, as its loss beside the entropy of bigrams says. Chapter 13 trains longer. The prompt shows what *generative* models are good for: what is written so far decides what comes next. So a task can be put into the prompt.
#
# ### Decoder only, with a prefix
#
# Translation is "source, mark, target" read as one text. A causal language model that has read the source and the mark continues with the translation, and no encoder is needed: the prefix *is* the memory.

# %%
prefix_model = toys.PrefixTranslator(task)
row = prefix_model.rows([task.test[0][3]], [task.test[1][3]])[0]
names = [*task.source_vocab.itos, *task.target_vocab.itos]
print("one text:", " ".join(names[i] for i in row))
table(
    ["", "encoder-decoder", "decoder-only with a prefix"],
    [
        ["sequences", "two: source (S), target (T)", "one (S + T)"],
        ["source sees source", "all of it", "what came before (causal)"],
        ["target sees source", "by cross-attention, (T, S)", "by self-attention, part of (S+T, S+T)"],
        ["target sees target", "what came before", "what came before"],
        ["stacks", "two, and cross-attention", "one"],
        ["loss", "target words", "target words (the source may count too)"],
    ],
)  # fmt: skip
set_seed(0)
prefix_model = toys.PrefixTranslator(task)
toys.train_prefix(prefix_model, task, epochs=4)
prefix = toys.prefix_scores(prefix_model, task, first=200)
per_layer = {
    "encoder + decoder layer": sum(
        number_of_parameters(kind(64, 4, 256)) for kind in (EncoderLayer, DecoderLayer)
    ),
    "decoder-only layer": number_of_parameters(EncoderLayer(64, 4, 256)),
}
claim(
    "After 4 epochs the decoder-only model translates more than 8 of 10 new sentences without a mistake",
    prefix["exact"] > 0.8,
    exact=prefix["exact"],
    bleu=prefix["bleu"],
)
claim(
    "For each layer it has less than half the parameters of an encoder-decoder pair of layers",
    per_layer["decoder-only layer"] < 0.5 * per_layer["encoder + decoder layer"],
    **{name.replace(" ", "_"): count for name, count in per_layer.items()},
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
# - *mended* keeps the size and the ten epochs. Punctuation is cut from the words, the *last* 200 tokens are read, the mean is pooled, the table starts small, the learning rate warms up and decays. In training 3 of 10 words are hidden behind `<unk>` and 4 of 10 entries of the embeddings are dropped, but no attention weights; the row after it drops 1 of 10 of those too;
# - *best* reads the last 512 tokens for six epochs and drops more, in the second form with embeddings of word pairs beside those of words.
#
# Beside them stands chapter 02's bag of words with pairs. A tenth of the training reviews was for validation; the test reviews chose nothing. The tutorial reported a test accuracy of 0.822.
# **Predict:** what is the mask alone worth?

# %%
imdb = {
    "as it was": ("imdb-tutorial", "as it was"),
    "mask added": ("imdb-mask", "mask added"),
    "mended": ("imdb-transformer", "mended"),
    "mended, attention dropout": ("imdb-attention-dropout", "mended, attention dropout"),
    "best, words": ("imdb-best", "words"),
    "best, words and pairs": ("imdb-best", "words and pairs"),
    "bag of words and pairs": ("imdb-bow", "unigrams + bigrams, scaled"),
}
shares = {
    "as it was": 1.0,
    **{
        name: ledger.summary("imdb-transformer", "training step", f"{key}_share")[0]
        for name, key in {
            "mask added": "mask_added",
            "mended": "mended",
            "mended, attention dropout": "mended_attention_dropout",
        }.items()
    },
}
rows = []
for name, where in imdb.items():
    mean, low, high, seeds = ledger.summary(*where, "accuracy")
    spread = f" ({low:.3f} to {high:.3f})" if low < high else ""
    size = "features" if where[0] == "imdb-bow" else "parameters"  # of the bag: one weight each
    parameters = ledger.summary(*where, size)[0]
    share = f"{shares[name]:.2f}" if name in shares else "-"
    taken = "-" if size == "features" else f"{ledger.summary(*where, 'train_seconds')[0]:,.0f}"
    rows.append([name, f"{parameters:,.0f}", f"{mean:.3f}{spread}", taken, share, seeds])
heads = ["model", "parameters", "test accuracy", "training, CPU s", "step (as it was = 1)", "seeds"]
table(heads, rows)

# %%
accuracy = {name: ledger.values(*where, "accuracy") for name, where in imdb.items()}
labels = {
    name: name.replace(", ", ",\n")
    .replace(" and ", "\nand ")
    .replace("mask ", "mask\n")
    .replace("attention ", "attention\n")
    for name in imdb
}
ax = plots.bars(
    plots.axes(height=3.3),
    {labels[name]: [100 * value for value in values] for name, values in accuracy.items()},
    "test accuracy (%)",
    {labels["as it was"]: "gradient", labels["bag of words and pairs"]: "muted"},
)
ax.set_ylim(0, 108)
ax.tick_params(axis="x", labelsize=8)
show(
    ax,
    alt="Test accuracy on IMDB of the tutorial's Transformer as it was, with a mask, mended, of the best Transformers from scratch, and of the bag of words with pairs.",
    caption="What do the repairs buy on real reviews? The mask alone, nothing. All repairs together, at the same size, far more than the tutorial's model has (red), "
    "and longer reviews with word pairs more again. The bag of words with pairs (grey) is still ahead.",
)
average = {name: sum(values) / len(values) for name, values in accuracy.items()}
seconds = {name: ledger.summary(*imdb[name], "train_seconds")[0] for name in shares}
claim(
    "As it was, it repeats the 0.822 that the tutorial reported, to within 1.5 points",
    abs(average["as it was"] - 0.822) < 0.015,
    as_it_was=average["as it was"],
)
claim(
    "The mask alone does not raise the accuracy",
    average["mask added"] < average["as it was"] + 0.005,
    gain=average["mask added"] - average["as it was"],
)
claim(
    "At the tutorial's size the mended model reaches 0.86, more than 2 points above it as it was",
    average["mended"] >= 0.86 and average["mended"] > average["as it was"] + 0.02,
    mended=average["mended"],
    gain=average["mended"] - average["as it was"],
)
claim(
    "Its training takes less than 60 % of the time, whether ten epochs are compared or single steps in turn",
    max(shares["mended"], seconds["mended"] / seconds["as it was"]) < 0.6,
    share_of_ten_epochs=seconds["mended"] / seconds["as it was"],
    share_of_a_step=shares["mended"],
)
claim(
    "Dropping attention weights too would make its steps half as long again, and change the accuracy by less than 1 point",
    shares["mended, attention dropout"] > 1.5 * shares["mended"]
    and abs(average["mended"] - average["mended, attention dropout"]) < 0.01,
    steps=shares["mended, attention dropout"] / shares["mended"],
    gain=average["mended, attention dropout"] - average["mended"],
)
best = max(average["best, words"], average["best, words and pairs"])
claim(
    "The best Transformer from scratch reaches 0.90, and the bag of words with pairs is more than 1 point better",
    best >= 0.90 and average["bag of words and pairs"] > best + 0.01,
    best=best,
    behind=average["bag of words and pairs"] - best,
)

# %% [markdown]
# Was the mask a mistake, then, if it gains nothing? The tutorial's model met the same padding in training and in the test, and learned to live with it, like the unmasked one of section 8. The mask buys
# verdicts that do not depend on the padding, and batches without needless columns. And 25,000 reviews are few: what a model *knows beforehand* counts for more than its kind, which is why chapter 12 trains on text without labels first. (CPU seconds
# of whole runs were taken while the machine did other work, too; the steps were timed in turn, which is the fairer comparison. Rows with one seed are single runs.)

# %% [markdown]
# **Multi30k.** German to English with the protocol of chapter 06: lower-cased, pieces by byte-pair encoding, ten epochs, the epoch with the lowest validation loss, scores on the test captions of 2016. Sizes and learning rates were chosen by the validation captions, for each kind of model by itself, so the models differ in size. `bleu` is sacrebleu's with greedy decoding, `bleu_beam` has a beam of 4 with $\alpha = 0.6$; `perplexity` is teacher-forced, per piece. Recorded by `python -m course_lib.experiments multi30k-transformer`.

# %%
recorded = {
    "LSTM, one vector": ("multi30k-lstm", "LSTM", "muted"),
    "GRU, one vector": ("multi30k-gru", "GRU", "hidden"),
    "GRU with attention": ("multi30k-attention", "attention", "output"),
    "Transformer": ("multi30k-transformer", "Transformer", "attention"),
}
columns = ["parameters", "perplexity", "piece_accuracy", "bleu", "bleu_beam"]


def with_range(experiment, variant, metric):
    """Mean over seeds, and the range where there are several."""
    mean, low, high, _ = ledger.summary(experiment, variant, metric)
    if metric == "parameters":
        return f"{mean:,.0f}"
    return f"{mean:.3g}" + (f" ({low:.3g} to {high:.3g})" if low < high else "")


table(
    ["model", *columns, "seeds"],
    [
        [
            name,
            *(with_range(*where, metric) for metric in columns),
            ledger.summary(*where, "bleu")[3],
        ]
        for name, (*where, _) in recorded.items()
    ],
)
signature = ledger.values("multi30k-transformer", "Transformer", "signature")[0]
print("sacrebleu:", signature.partition("|version")[0])

# %%
ax = plots.axes(height=3.2)
for name, (experiment, variant, color) in recorded.items():
    lengths = ledger.values(experiment, variant, "length_mean")[0]
    plots.band(
        ax, lengths, ledger.values(experiment, variant, "bleu_by_length"), name, color, marker="o"
    )
ax.set(xlabel="source length (words, mean of the group)", ylabel="BLEU on words (0 to 100)")
ax.set_ylim(0, None)
ax.legend(loc="lower left", ncols=2)
show(
    ax,
    alt="BLEU by source length for four models on Multi30k. The Transformer's line is highest, a little above that of the GRU with attention, and nearly meets it at the longest captions; the two models with one vector are about ten points lower.",
    caption="Does the Transformer gain over the GRU with attention on real captions? About two points, most of it on short and middle lengths, with more than twice the parameters. "
    "Both leave one vector behind, though the LSTM is as large as the Transformer.",
)
bleu, bleu_beam, perplexity, parameters = (
    {name: ledger.summary(*where, metric)[0] for name, (*where, _) in recorded.items()}
    for metric in ("bleu", "bleu_beam", "perplexity", "parameters")
)
claim(
    "The Transformer has the highest BLEU, greedy and with a beam, and the lowest perplexity of the four",
    bleu["Transformer"] == max(bleu.values())
    and bleu_beam["Transformer"] == max(bleu_beam.values())
    and perplexity["Transformer"] == min(perplexity.values()),
    greedy=bleu["Transformer"] - bleu["GRU with attention"],
    beam=bleu_beam["Transformer"] - bleu_beam["GRU with attention"],
)
claim(
    "But it has more than twice the parameters of the GRU with attention, and not many more than the LSTM, 10 BLEU behind it",
    parameters["Transformer"] > 2 * parameters["GRU with attention"]
    and parameters["Transformer"] < 1.1 * parameters["LSTM, one vector"]
    and bleu["Transformer"] > bleu["LSTM, one vector"] + 10,
    parameters=parameters["Transformer"],
    to_gru_with_attention=parameters["Transformer"] / parameters["GRU with attention"],
)
claim(
    "A beam of 4 raises its BLEU",
    bleu_beam["Transformer"] > bleu["Transformer"],
    gain=bleu_beam["Transformer"] - bleu["Transformer"],
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
explored = toys.review_classifier(reviews, pool="max", layers=1)  # layers, heads, width, pool
print([round(e["accuracy"], 3) for e in toys.train_classifier(explored, reviews, epochs=4)])

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
