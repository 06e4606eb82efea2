# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 180
#     needs: "chapter 07"
# ---

# %% [markdown]
# # 08 · Position
#
# Two film reviews with the same words. One praises, one pans. A small Transformer reads both.
# **Which of the two will it call better, and by how much?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("where_positions_enter")

# %% tags=["setup", "fold"]
# @title Imports
import math

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import text
from course_lib.attention import MultiHeadAttention, attention, attention_scores
from course_lib.datasets import synthetic
from course_lib.exercises import ch08
from course_lib.experiments import length_extrapolation as lengths
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch08 as figures
from course_lib.positional import (
    ALiBi,
    LearnedPositions,
    PositionScheme,
    RelativeBias,
    RoPE,
    Sinusoidal,
    alibi_slopes,
    relative_positions,
    rope_angles,
    sinusoidal_table,
)
from course_lib.train import classification_loss, evaluate, set_seed, train_epoch
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier
from course_lib.utils import number_of_parameters

set_seed(0)

# %%
train, test = synthetic.reviews(2000, seed=1), synthetic.reviews(300, seed=2)
vocab = text.build_vocab([review.split() for review, _ in train])
twins = min(synthetic.review_pairs(20, seed=2), key=lambda pair: len(pair[0]))
for review in twins:
    print(review)

# %% [markdown]
# The model: embeddings, one encoder layer, and a linear layer on the mean of its outputs. Trained on 2,000 reviews, asked about 300 others.

# %%
def ids_of(reviews):
    texts, labels = zip(*reviews, strict=True)
    return [text.numericalize(review.split(), vocab) for review in texts], list(labels)


def classifier(position, epochs):
    """The trained model, and its accuracy on new reviews."""
    set_seed(0)
    layer = EncoderLayer(32, 4, 64, dropout=0.0, residual="pre-ln")
    encoder = TransformerEncoder([layer])
    model = TransformerClassifier(len(vocab), encoder, position=position)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in tqdm(range(epochs), desc="epochs", leave=False):
        batches = text.batches(*ids_of(train), 32)
        train_epoch(model, batches, classification_loss, optimizer)
    unseen = text.batches(*ids_of(test), 100, shuffle=False)
    return model.eval(), evaluate(model, unseen, classification_loss)["accuracy"]


# %%
guess_1 = predict(
    "the difference of the two reviews' logits, from 0 (equal) to 10", ...
)

# %%
blind, blind_accuracy = classifier(position=None, epochs=1)
twin_ids = torch.tensor([text.numericalize(twin.split(), vocab) for twin in twins])
with torch.no_grad():
    logits = blind(twin_ids)

# %% tags=["fold", "reveal"]
# @title What it says of the two
largest_difference = (logits[0] - logits[1]).abs().max().item()
guess_1.compare(round(largest_difference, 3))
claim("Both get the same logits.", torch.allclose(logits[0], logits[1], atol=1e-5), difference=largest_difference)
claim(
    "On 300 new reviews, half of them twins of the other half, it is right as often as a coin.",
    abs(blind_accuracy - 0.5) < 0.02,
    accuracy=blind_accuracy,
)

# %% [markdown]
# No training can fix this, nor more layers: what this model computes does not depend on the order of the words. It is the bag of words of chapter 02, with attention inside. Now the same model with the same data;
# one argument is different: its attention is told where each word stands.

# %%
sighted, sighted_accuracy = classifier(position=RoPE(head_dim=8), epochs=6)

# %% tags=["fold"]
# @title The same Transformer with positions
claim(
    "With positions the same Transformer is right on more than 8 of 10 reviews.",
    sighted_accuracy > 0.8,
    accuracy=sighted_accuracy,
)

# %% [markdown]
# ## You will be able to
#
# 1. test whether a layer can see the order of its input, and prove that attention cannot (exercise 8.1);
# 2. build the sinusoidal table without a loop and derive the matrix of a shift (exercises 8.2, 8.3);
# 3. rotate queries and keys as RoPE does, and bias scores as ALiBi does (exercises 8.4, 8.5);
# 4. find the mistakes that positions invite when keys are cached (exercise 8.7);
# 5. read a curve of accuracy beyond the training length, and say what it does and does not show (exercise 8.6).
#
# Letters: `B` sequences, `T` queries, `S` keys, `D` width, `H` heads, `K` = `D / H`. Positions count from 0; $i$ is the position of a query (or of a token), $j$ that of a key. In a
# table, $j$ numbers the pairs of columns, as in the papers.

# %% [markdown]
# ## 1 · Attention sees a set
#
# Self-attention makes each output from a weighted sum over *all* inputs. A sum does not know in which order its terms came. So if the input is permuted, the output is permuted in the same way, and that is all.
# A function with this property is called **permutation-equivariant**. (What one fixed query gets, or a mean over all outputs, is *invariant*; the list of outputs is not: it moves along.)

# %%
diagrams.show("permutation_equivariance")

# %% [markdown]
# In letters: a permutation of $T$ places is a matrix $P$ $(T, T)$ with one 1 in each row and column; $PX$ has the rows of $X$ $(T, D)$ in another order. The claim is
#
# $$ f(PX) = P f(X) \quad \text{for every } P. $$
#
# For which of these three does it hold: multi-head attention, a whole encoder of two layers (with feed-forward networks, residuals and LayerNorm), the mean over its outputs?

# %%
set_seed(1)
x, order = torch.randn(2, 6, 32), torch.tensor([3, 0, 5, 1, 4, 2])  # (B, T, D)
attend = MultiHeadAttention(32, 4)
blocks = [EncoderLayer(32, 4, 64, dropout=0.0) for _ in range(2)]
encoder = TransformerEncoder(blocks)


def gap(f, x=x):
    """Largest entry of f(PX) - P f(X)."""
    with torch.no_grad():
        return (f(x[:, order]) - f(x)[:, order]).abs().max().item()


with torch.no_grad():
    pooled_gap = (encoder(x[:, order]).mean(1) - encoder(x).mean(1)).abs().max().item()

# %% tags=["fold"]
# @title For which it holds
claim(
    "Attention and the encoder permute their output as their input was permuted, up to rounding.",
    max(gap(attend), gap(encoder)) < 1e-5,
    attention=gap(attend),
    encoder=gap(encoder),
)
claim(
    "The mean over the outputs does not change: it is permutation-invariant.",
    pooled_gap < 1e-5,
    largest_difference=pooled_gap,
)

# %% [markdown]
# ### Why: four lines
#
# Row vectors; $Q = XW_Q$, $K = XW_K$, $V = XW_V$, one head, whose width is written $k$ here, since $K$ is the matrix of keys. $P^\top P = I$: $P^\top$ puts the rows back.
#
# 1. The projections work on each row alone, so queries, keys and values are permuted as the rows are: $(PX)W_Q = PQ$, and likewise $PK$ and $PV$. (A bias vector is the same in each row and changes nothing.)
# 2. The scores are $PQ\,(PK)^\top/\sqrt{k} = P\,(QK^\top/\sqrt{k})\,P^\top$: rows and columns of the score matrix move along.
# 3. Softmax takes the exponential of each entry, which moves along with its entry, and divides by the sum of its row, which has the same terms in another order: $\mathrm{softmax}(P A P^\top) = P\,\mathrm{softmax}(A)\,P^\top$.
# 4. So the output is $P\,\mathrm{softmax}(A)\,P^\top P V = P\,\mathrm{softmax}(A)\,V$. $\blacksquare$
#
# A padding mask belongs to the keys and is permuted with them. Concatenating heads, the feed-forward network, residuals and LayerNorm act on each row alone, so they keep the property; so does a chain of such layers. The third line is the one to doubt; here it is on tensors:

# %%
generator = torch.Generator().manual_seed(2)
A = torch.randn(6, 6, generator=generator, dtype=torch.float64)
P = torch.eye(6, dtype=torch.float64)[order]  # row t has its 1 at order[t]
left, right = (P @ A @ P.T).softmax(-1), P @ A.softmax(-1) @ P.T

# %% tags=["fold"]
# @title Check: P, and the third line
claim(
    "P puts rows in the new order, and $P^\\top$ puts them back.",
    torch.equal(P @ A, A[order]) and torch.equal(P.T @ (P @ A), A),
)
claim(
    "$\\mathrm{softmax}(P A P^\\top) = P\\,\\mathrm{softmax}(A)\\,P^\\top$, to the last digits of float64.",
    torch.allclose(left, right, rtol=0, atol=1e-14),
)

# %% [markdown]
# ### Exercise 8.1 · A test for blindness to order
#
# Difficulty ●●○○○ · 15 minutes · needs section 1
#
# Write the proof's claim as a test on tensors: does this layer permute its output as its input is permuted? The check gives your function twelve layers, some of which only seem equivariant.


# %% nbgrader={"grade": false, "grade_id": "ex08-1-equivariant", "locked": false, "schema_version": 3, "solution": true, "task": false}
def is_equivariant(layer, x, order):
    """Say whether a layer is permutation-equivariant, as far as one input and one permutation can tell.

    Args:
        layer: function from (B, T, D) to (B, T, D).
        x: (B, T, D).
        order: (T,) int64, a permutation of 0 .. T-1.

    Returns:
        bool, True if f(PX) and P f(X) agree up to 1e-6.
    """
    ### BEGIN SOLUTION
    return torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-6)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-1-equivariant-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch08.is_equivariant(is_equivariant)

# %% [markdown]
# ## 2 · A causal mask tells something, but not much
#
# The proof's second line moves rows *and* columns of the scores. A causal mask stays where it is: $P\,M\,P^\top \neq M$. So a causal model is not equivariant.

# %%
causal_gap = gap(lambda inputs: attend(inputs, causal=True))

# %% tags=["fold"]
# @title Checked: the same test with a causal mask
claim(
    "With a causal mask attention is not permutation-equivariant.",
    causal_gap > 0.01,
    largest_difference=causal_gap,
)

# %% [markdown]
# Can it tell positions, then? A query at position $i$ sees $i + 1$ keys. Suppose the first token is a mark, `<sos>`, with value 1, and all others have value 0. A head that looks at everything equally ($q = 0$) gives
#
# $$ \sum_{j \le i} \frac{1}{i + 1} v_j = \frac{1}{i + 1}: $$
#
# the position can be read off. Without a mark at the start, and with equal tokens, it cannot. **Which of the two rows below can count?**

# %%
nothing = torch.zeros(1, 8, 4)  # queries and keys 0: equal weights for what is visible
marked, alike = torch.zeros(1, 8, 1), torch.ones(1, 8, 1)  # values
marked[:, 0] = 1.0
counted = attention(nothing, nothing, marked, causal=True).flatten()
unmarked = attention(nothing, nothing, alike, causal=True).flatten()

# %% tags=["fold"]
# @title What each position gets
table(
    ["position", *map(str, range(8))],
    [["first token marked", *counted.tolist()], ["all tokens alike", *unmarked.tolist()]],
)
claim(
    "With a marked start, one causal head computes $1 / (i + 1)$; with equal tokens all positions look the same.",
    torch.allclose(counted, 1 / torch.arange(1.0, 9.0)) and torch.allclose(unmarked, torch.ones(8)),
)

# %% [markdown]
# Haviv et al. (2022) trained causal language models without any positions: they come close to those with positions, and a probe reads the position off their inner layers. An encoder, which sees both sides and is trained to fill in masked words, fails without them. We shall meet "none" again in section 9. A count is a coarse
# clock, though: far out, $1/(i+1)$ hardly moves. All schemes below give more.

# %% [markdown]
# ## 3 · Three places to enter
#
# What can be changed so that the proof breaks? The input rows (line 1), the scores (line 2). And a rotation of queries and keys is a cunning way of changing the scores. That makes three points: those of the picture at the top of the chapter.

# %% [markdown]
# In the library a scheme is an object with three methods, one for each point. Here is the scheme that does nothing; each of the others overrides exactly one method. An attention layer owns its scheme (`MultiHeadAttention(..., position=scheme)`), turns its queries and keys by it and adds its bias, and never asks which one it is. What is
# *added* belongs to the embeddings, once, before the first layer; a model that is given `position=` puts each scheme in its place:

# %%
show_source(PositionScheme, MultiHeadAttention.place)

# %% [markdown]
# `T` queries are the last of `S` positions: with a cache of earlier keys, `S` is larger than `T`, and query 0 stands at position `S - T`. Everything in this chapter keeps to that.

# %%
schemes = {
    "sinusoidal": (Sinusoidal(d_model=64, max_len=512), "add"),
    "learned": (LearnedPositions(d_model=64, max_len=512), "add"),
    "relative bias": (RelativeBias(num_heads=8, max_distance=32), "bias"),
    "RoPE": (RoPE(head_dim=8), "rotate"),
    "ALiBi": (ALiBi(num_heads=8), "bias"),
}

# %%
broken = {}  # of each scheme, the largest entry of f(PX) - P f(X)
set_seed(5)
for name, (scheme, point) in schemes.items():
    with torch.no_grad():
        if name == "relative bias":
            nn.init.normal_(scheme.weight)  # it starts at zero: no position
        own = None if point == "add" else scheme  # added ones are no part of it
        layer = MultiHeadAttention(64, 8, position=own)
        six = torch.randn(1, 6, 64)
        broken[name] = gap(lambda inputs: layer(scheme.add(inputs)), six)

# %% tags=["fold"]
# @title The five schemes: where they enter, what they learn
table(
    ["scheme", "enters at", "learned numbers", "longest length"],
    [
        [name, point, number_of_parameters(scheme), scheme.max_len or "none"]
        for name, (scheme, point) in schemes.items()
    ],
)
claim(
    "Each of the five breaks the equivariance of attention.",
    all(difference > 1e-3 for difference in broken.values()),
    **broken,
)

# %% [markdown]
# ## 4 · Sinusoidal: a row of clocks
#
# One number, the position itself, would grow without limit. Bits would do better: the last bit flips at each step, the next one every second step, and so on; a few bits name many positions. Vaswani et al. (2017) use smooth bits: hands of clocks, each slower than the one before. Clock $j$ turns by
# $\omega_j$ radians a token, and a clock's hand is a pair (sine, cosine):
#
# $$ P_{i,2j} = \sin(i\,\omega_j), \qquad P_{i,2j+1} = \cos(i\,\omega_j), \qquad \omega_j = 10000^{-2j/D}, \quad j = 0, \ldots, \tfrac{D}{2} - 1 . $$
#
# From here on $P$ is this table, $(L, D)$ for $L$ positions, no longer a permutation; $X + P$ goes into the first layer. The plus adds, number by number; the vectors do not get wider.
# A query at position $i$ carries $P_i$, the key at position $j$ carries $P_j$: each its own.

# %%
show_source(rope_angles, sinusoidal_table, Sinusoidal.add)

# %%
waves = sinusoidal_table(100, 32)
figures.waves(waves, columns=(0, 4, 8, 9, 14))

# %%
figures.table_as_colours(waves)

# %% tags=["fold"]
# @title Every position is different
apart = torch.cdist(waves, waves).fill_diagonal_(math.inf)
claim(
    "No two of the 100 positions have similar vectors: neighbours are the closest, and they are far from equal.",
    apart.min() > 0.5 and bool((apart.argmin(1) - torch.arange(100)).abs().max() == 1),
    smallest_distance=apart.min(),
)
wavelengths = 2 * math.pi / rope_angles(torch.tensor(1.0), 512)  # the angles at position 1
claim(
    "At width 512 the wavelengths run from $2\\pi$ tokens to nearly $2\\pi$ times 10,000.",
    math.isclose(wavelengths[0], 2 * math.pi, rel_tol=1e-6) and 6e4 < wavelengths[-1] < 2e4 * math.pi,
    first=f"{wavelengths[0]:.2f} tokens",
    last=f"{wavelengths[-1]:,.0f} tokens",
)

# %% [markdown]
# (With an odd $D$ the last sine would have no cosine, so our table wants an even $D$. Other implementations put all sines before all cosines: the same columns in another order.)

# %% [markdown]
# ### Exercise 8.2 · The table without loops
#
# Difficulty ●●○○○ · 15 minutes · needs section 4
#
# Write the table from `torch.arange`, `sin` and `cos`. No loop, and no call of the library's functions.


# %% nbgrader={"grade": false, "grade_id": "ex08-2-position-table", "locked": false, "schema_version": 3, "solution": true, "task": false}
def position_table(length, width):
    """Sines and cosines of each position.

    Args:
        length: T, number of positions, from 0.
        width: D, even.

    Returns:
        (T, D) with sin(i / 10000^(2j/D)) in column 2j and the cosine in column 2j + 1.
    """
    ### BEGIN SOLUTION
    speeds = 10000 ** (-torch.arange(0, width, 2) / width)  # (D/2,)
    angles = torch.arange(length)[:, None] * speeds  # (T, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-2-position-table-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch08.position_table(position_table)

# %% [markdown]
# ### Why sines: a shift is linear
#
# Attention scores are products of linear maps. If "the word three places back" is to be found by a linear map, then $P_{i-3}$ should be a linear function of $P_i$, the *same* one for every $i$. It is: all hands of the clocks turn by a fixed angle. We do not derive the matrix yet; we let least squares search for it, in the first 50 rows, and test it on the next 50.

# %%
exact = sinusoidal_table(100, 8, dtype=torch.float64)
found = torch.linalg.lstsq(exact[:50], exact[3:53])
shift = found.solution  # (D, D): P[i] @ shift = P[i + 3]
off_by = exact[50:-3] @ shift - exact[53:]  # at positions it has not seen
figures.shift(shift)

# %% tags=["fold"]
# @title The shift on positions that the search has not seen
on_diagonal = torch.block_diag(*[torch.ones(2, 2)] * 4).bool()
claim(
    "One matrix, found on positions 0 to 49, shifts the positions 50 to 96 by 3 as well.",
    torch.allclose(exact[50:-3] @ shift, exact[53:], atol=1e-8),
    largest_error=off_by.abs().max(),
)
claim("It holds 2 x 2 blocks on the diagonal and zeros elsewhere.", shift[~on_diagonal].abs().max() < 1e-6)

# %% [markdown]
# A consequence: the product of two rows depends on their distance alone, since $\sin a \sin b + \cos a \cos b = \cos(a - b)$ in each pair:
#
# $$ P_i \cdot P_{i'} = \sum_j \cos\big((i - i')\,\omega_j\big). $$

# %%
rows = sinusoidal_table(200, 128)
products = rows @ rows.T
figures.products(products, starts=(70, 100, 130))

# %% tags=["fold"]
# @title The same in numbers
claim(
    "Rows at equal distance have equal products, wherever they stand.",
    all(torch.allclose(products.diagonal(d), products[0, d], atol=1e-3) for d in (1, 7, 60)),
)
claim(
    "At distance 0 it is $D / 2$, and no other distance up to 60 comes above 0.99 of that.",
    math.isclose(products[9, 9], 64, rel_tol=1e-4) and products[100, 101:161].max() < 0.99 * 64,
    at_0=products[9, 9],
    next_largest=products[100, 101:161].max(),
)

# %% [markdown]
# The learned matrices $W_Q$ and $W_K$ stand between these vectors in attention, so a head can break the symmetry and look, say, three back. But to see this it must find the rotation by training; RoPE (section 7) builds it in.

# %% [markdown]
# ### Exercise 8.3 · Derive the shift
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# On paper: with $\sin(a+b) = \sin a \cos b + \cos a \sin b$ and the like for the cosine, find the 2 × 2 block that takes the row $(\sin a, \cos a)$ to $(\sin(a+b), \cos(a+b))$. Then put the blocks together. Beware: rows are multiplied from the left, so your block is the transpose of the one in most books.


# %% nbgrader={"grade": false, "grade_id": "ex08-3-shift-matrix", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shift_matrix(k, width):
    """The matrix M_k with P[i + k] = P[i] @ M_k for every position i of the sinusoidal table.

    Args:
        k: int, the shift.
        width: D, even.

    Returns:
        (D, D), blocks of 2 x 2 on the diagonal.
    """
    ### BEGIN SOLUTION
    blocks = []
    for j in range(width // 2):
        b = torch.tensor(k / 10000 ** (2 * j / width))
        blocks.append(torch.stack([b.cos(), -b.sin(), b.sin(), b.cos()]).view(2, 2))
    return torch.block_diag(*blocks)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-3-shift-matrix-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch08.shift_matrix(shift_matrix)

# %% [markdown]
# ### Common mistake · embeddings that are swamped
#
# The table's rows have length $\sqrt{D/2}$. If embeddings start with entries of variance $1/D$ (good for an output layer that shares the table), their rows have length 1. Vaswani et al. (2017, section 3.4) multiply them by $\sqrt{D}$ before adding. Suppose that the factor is forgotten.
# What is more alike then, the same word at two places, or two words at the same place?

# %%
words = torch.randn(2, 256, generator=torch.Generator().manual_seed(0)) / math.sqrt(256)
two_places = sinusoidal_table(100, 256)[[10, 60]]


def alike_by(scale):
    """Cosine of (one word, two places) and of (two words, one place)."""
    placed = scale * words[:, None] + two_places  # (word, place, D)
    pairs = (placed[0, 1], placed[1, 0])
    return [F.cosine_similarity(placed[0, 0], other, dim=0).item() for other in pairs]

# %%
guess_2 = predict("the cosine of two words at the same place, without the factor", ...)

# %% tags=["fold", "reveal"]
# @title How alike they are, without and with the factor
forgotten, scaled = alike_by(1.0), alike_by(math.sqrt(256))
guess_2.compare("above 0.95")
table(
    ["embeddings", "cosine: same word, two places", "cosine: two words, same place"],
    [["variance 1/D, as drawn", *forgotten], ["times $\\sqrt D$", *scaled]],
)
claim("Unscaled, two different words at one place are nearly the same vector.", forgotten[1] > 0.95)
claim("Scaled, a word is more like itself elsewhere than like another word here.", scaled[0] > scaled[1] + 0.2)

# %% [markdown]
# `TokenEmbedding` in `course_lib.transformer_models` draws with variance $1/s^2$ and multiplies by $s = \sqrt{D}$. A model whose words are swamped at the start may still learn its way out; nothing fails loudly.

# %% [markdown]
# ## 5 · Learned: a row for each position
#
# Why choose the vectors at all? Draw a table $(L, D)$ at random and learn it, as the word embeddings: $x_i \leftarrow x_i + p_i$. Sukhbaatar et al. (2015) did so for a memory of sentences, Gehring et al. (2017) for convolutions, BERT and GPT-2 do for Transformers; Vaswani et al. found nearly the same BLEU with either.

# %%
show_source(LearnedPositions)

# %% [markdown]
# The price: a row learns only when a training sequence reaches it. Which rows of a table with 8 rows get a gradient from a batch of sequences of length 5?

# %%
learned = LearnedPositions(d_model=4, max_len=8)
learned.add(torch.zeros(3, 5, 4)).square().sum().backward()
reached = learned.weight.grad.norm(dim=1) > 0  # one bool for each row

# %% tags=["fold"]
# @title The gradient of each row
table(["row", *map(str, range(8))], [["gets a gradient", *("yes" if r else "no" for r in reached)]])
claim("Rows beyond the longest training sequence stay as they were drawn.", reached.tolist() == [True] * 5 + [False] * 3)

# %% [markdown]
# And beyond the table's end there is nothing at all. The library says so, with both lengths:

# %% tags=["raises-exception"]
learned.add(torch.zeros(1, 9, 4))

# %% [markdown]
# ## 6 · Relative bias: one number for each distance
#
# In most sentences it matters that an adjective stands *just before* a noun, not that it is word 17. So put the distance into the scores directly (T5, Raffel et al. 2020), with one learned number for each head and each distance, clipped at $M$:
#
# $$ a_{ij} = \frac{q_i \cdot k_j}{\sqrt K} + b_{h,\,\mathrm{clip}(j - i)}, \qquad \mathrm{clip}(d) = \max(-M, \min(M, d)). $$
#
# $b$ is $(H, 2M + 1)$. Signs differ in the literature: here a key *before* the query has a negative distance.

# %%
show_source(relative_positions, RelativeBias)

# %%
relative = RelativeBias(num_heads=2, max_distance=4)
with torch.no_grad():
    one_back = [-2.0, -1.5, 0.0, 2.0, 0.0, -1.0, -1.5, -2.0, -2.0]  # for -4 to 4
    relative.weight[0] = torch.tensor(one_back)
    relative.weight[1] = torch.linspace(-2, 2, 9)
biases = relative.bias(8, 8).detach()  # (H, T, S)
figures.relative_biases(biases)

# %% tags=["fold"]
# @title Check: the distance alone; the last rows for a cache
claim(
    "The bias depends on $j - i$ alone.",
    all(
        bool((biases.diagonal(d, 1, 2) == biases[:, max(-d, 0), max(d, 0)][:, None]).all())
        for d in range(-7, 8)
    ),
)
claim("For 3 queries with 5 earlier keys it is the last 3 rows.", torch.equal(relative.bias(3, 8), biases[:, -3:]))

# %% [markdown]
# (T5 lets far distances share numbers in buckets that widen logarithmically, and gives all layers one table. Shaw et al. (2018), who came first, add a learned *vector* to the key instead of a number to the score.)

# %% [markdown]
# ## 7 · RoPE: turn queries and keys
#
# The sinusoidal table *adds* the hands of clocks; in the score $(x_i + p_i)W_Q W_K^\top(x_j + p_j)^\top$ content and position mix in four terms. Su et al. (2021) ask for a score in which position enters only as $i - j$, whatever the content. Their answer: cut a query into pairs of numbers, take each pair as a point in the plane, and **turn** it by the angle of its position, $\theta_{ij} = i\,\omega_j$ with $\omega_j = 10000^{-2j/K}$:
#
# $$ \begin{pmatrix} y_{2j} \\ y_{2j+1} \end{pmatrix} = \begin{pmatrix} \cos\theta_{ij} & -\sin\theta_{ij} \\ \sin\theta_{ij} & \cos\theta_{ij} \end{pmatrix} \begin{pmatrix} x_{2j} \\ x_{2j+1} \end{pmatrix}. $$
#
# All pairs together are one block diagonal matrix $R_i$ $(K, K)$. Turn the keys likewise, by $R_j$ for position $j$. Turning back undoes turning, $R_i^\top R_i = I$, and two turns add up, so with queries and keys as columns
#
# $$ (R_i\,q)^\top (R_j\,k) = q^\top R_i^\top R_j\,k = q^\top R_{j-i}\,k: $$
#
# only the *difference* of the positions is left.

# %%
one_pair = RoPE(head_dim=2)  # one pair, one radian a token
arrows = torch.tensor([[1.0, 0.2]]), torch.tensor([[-0.8, 0.5]])  # a query and a key
figures.turned(one_pair, *arrows, places=((1, 0), (4, 3)))

# %% [markdown]
# The paper's block diagonal matrix is never built. A pair is one complex number $x_{2j} + \mathrm{i}\,x_{2j+1}$, and a turn by $\theta$ is a product with $e^{\mathrm{i}\theta}$:

# %%
show_source(RoPE.rotate)

# %%
set_seed(3)
rope = RoPE(head_dim=8)
query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
turned_queries = rope.rotate(query.expand(1, 1, 40, 8))[0, 0]  # at 40 positions
turned_keys = rope.rotate(key.expand(1, 1, 40, 8))[0, 0]
scores = turned_queries @ turned_keys.T  # (40, 40)

# %% tags=["fold"]
# @title What the scores depend on
claim(
    "The score depends on $i - j$ alone, and it tells before from after; no vector changes its length.",
    all(torch.allclose(scores.diagonal(d), scores.diagonal(d)[0], atol=1e-4) for d in range(-39, 40))
    and abs(scores[0, 1] - scores[1, 0]).item() > 0.01
    and torch.allclose(turned_queries.norm(dim=1), query.norm()),
    key_one_before=scores[1, 0],
    key_one_after=scores[0, 1],
)
claim(
    "Nothing is stored: the scheme has no parameters and no buffers, and takes position 1,000,000 as well.",
    not list(rope.parameters()) and not list(rope.buffers()) and rope.rotate(query, 10**6).isfinite().all().item(),
)

# %% [markdown]
# With $K = 8$ there are four pairs, so four clocks. Move the query and the key, then both together: which hands turn, and what stays? **By how many tokens must the distance change until the first clock shows nearly the same angle again, and which clock tells the two distances apart?**

# %% tags=["fold"]
# @title Interactive: four clocks and one score
from course_lib.notebook import interactive

interactive.rope_angles()

# %% [markdown]
# It acts on queries and keys in every layer, never on the values: what is passed on is content. (Many implementations pair entry $j$ with $j + K/2$ instead of $2j$ with $2j + 1$. That is the same function after a permutation of the rows of $W_Q$ and $W_K$; loading weights across the two forms without that permutation gives nonsense, silently.)
#
# ### Exercise 8.4 · RoPE's rotation
#
# Difficulty ●●●○○ · 25 minutes · needs section 7
#
# With real numbers, without the library's `RoPE`: sines, cosines, and the two lines of the matrix. The offset is the position of the first vector.


# %% nbgrader={"grade": false, "grade_id": "ex08-4-rotate", "locked": false, "schema_version": 3, "solution": true, "task": false}
def rotate(x, offset):
    """Turn neighbouring pairs of each vector by the angle of its position.

    Args:
        x: (B, H, T, K) queries or keys, K even.
        offset: int, position of the first of the T vectors.

    Returns:
        (B, H, T, K).
    """
    ### BEGIN SOLUTION
    T, K = x.shape[-2:]
    speeds = 10000 ** (-torch.arange(0, K, 2) / K)  # (K/2,)
    angles = torch.arange(offset, offset + T)[:, None] * speeds  # (T, K/2)
    cos, sin = angles.cos(), angles.sin()
    even, odd = x[..., 0::2], x[..., 1::2]  # (B, H, T, K/2)
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-4-rotate-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch08.rotate(rotate)

# %% [markdown]
# ## 8 · ALiBi: near is better
#
# Press et al. (2022) learn nothing and turn nothing. Each head lowers its scores in proportion to the distance, and each has its own slope $m_h$ (with $H$ a power of two):
#
# $$ a_{ij} = \frac{q_i \cdot k_j}{\sqrt K} - m_h\,|i - j|, \qquad m_h = 2^{-8h/H}, \quad h = 1, \ldots, H. $$
#
# After the softmax a penalty of $m\,d$ is a factor $e^{-m d}$: a window that fades out. Steep heads read the last few words, flat ones the whole text. (Their models are causal; the symmetric $|i - j|$ is the form for encoders. It cannot tell left from right.)

# %%
show_source(alibi_slopes, ALiBi.bias)

# %%
some_slopes, one_bias = alibi_slopes(8)[[0, 2, 4, 7]], ALiBi(8).bias(8, 8)[1]
figures.alibi(some_slopes, one_bias)

# %% tags=["fold"]
# @title Check: the slopes, and what the bias depends on
claim(
    "For 8 heads the slopes are 1/2, 1/4, ... 1/256.",
    torch.allclose(alibi_slopes(8), torch.tensor([2.0**-h for h in range(1, 9)])),
)
of_six = ALiBi(8).bias(6, 6)
claim(
    "The bias depends on $|i - j|$ alone.",
    torch.equal(of_six, of_six.transpose(1, 2)) and torch.equal(of_six[:, 1:, 1:], of_six[:, :-1, :-1]),
)

# %% [markdown]
# ### Exercise 8.5 · ALiBi's bias
#
# Difficulty ●●○○○ · 15 minutes · needs section 8
#
# Write the bias for all heads at once, in the symmetric form, without `ALiBi` and `alibi_slopes`. Beware of the cache: the `T` queries are the *last* of the `S` positions.


# %% nbgrader={"grade": false, "grade_id": "ex08-5-alibi-bias", "locked": false, "schema_version": 3, "solution": true, "task": false}
def alibi_bias(num_heads, T, S):
    """What ALiBi adds to the scores.

    Args:
        num_heads: H, a power of two.
        T: number of queries, the last T of the S positions.
        S: number of keys.

    Returns:
        (H, T, S), minus slope times distance.
    """
    ### BEGIN SOLUTION
    slopes = 2.0 ** (-8 * torch.arange(1, num_heads + 1) / num_heads)  # (H,)
    distance = (torch.arange(S) - torch.arange(S - T, S)[:, None]).abs()  # (T, S)
    return -slopes[:, None, None] * distance
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-5-alibi-bias-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch08.alibi_bias(alibi_bias)

# %% [markdown]
# ## 9 · Longer than trained
#
# Which scheme is best? At the lengths they were trained on, most do well. The question that tells them apart is **length extrapolation**: train on short sequences, test on longer ones. Two tasks, one for each of two things that positions are used for:
#
# - **fixed distance:** random tokens; at each place, name the token three places back. Only the position counts.
# - **latest value:** assignments and questions; at each question, name the value that this name was given *last*. Content finds the name, position finds the latest.

# %% tags=["fold"]
# @title An example of "latest value"
reads, says = lengths.latest_value(1, 12, torch.Generator().manual_seed(0))
table(
    ["place", *map(str, range(12))],
    [
        ["reads", *lengths.words(reads[0])],
        ["has to say", *("" if value < 0 else value for value in says[0].tolist())],
    ],
)

# %% [markdown]
# The model is a causal Transformer of two layers and width 32, trained on sequences of 20 tokens, new ones at each step. Because it is causal and questions stand everywhere, one test sequence of 80 tokens scores all lengths up to 80. Schemes with a table get 80 rows; of the learned ones, rows 20 to 79 are never trained.
#
# Sinusoidal, RoPE, ALiBi on *latest value*: all three will be nearly perfect at 20 tokens. Sort them by accuracy at 40, and at 80.

# %%
show_source(lengths.train_on_short)

# %%
guess_3 = predict("the accuracy of RoPE at 80 tokens, in %", ...)

# %%
def trained(scheme):
    """A model with this scheme, trained on 20 tokens: its accuracy on up to 80."""
    return lengths.train_and_test("latest value", scheme, seed=0, steps=250)


live = {"sinusoidal": trained("sinusoidal")}

# %%
live["RoPE"] = trained("RoPE")

# %%
live["ALiBi"] = trained("ALiBi")

# %% tags=["fold", "reveal"]
# @title At 20, 40 and 80 tokens
chance = 1 / lengths.VALUES
at = {k: {name: row[f"accuracy at {k}x"] for name, row in live.items()} for k in (1, 2, 4)}
guess_3.compare("below 45 %")
claim(
    "At 20 tokens all three are right on more than 9 of 10 questions; at 40 the sinusoidal model is far behind the other two.",
    min(at[1].values()) > 0.9 and at[2]["sinusoidal"] < min(at[2]["RoPE"], at[2]["ALiBi"]) - 0.15,
    **{f"{name} at 40": value for name, value in at[2].items()},
)
claim(
    "At 80 tokens ALiBi still answers more than 8 of 10, RoPE is less than 20 points above chance (1 in 4).",
    at[4]["ALiBi"] > 0.8 and at[4]["RoPE"] < chance + 0.2,
    **{f"{name} at 80": value for name, value in at[4].items()},
)

# %% [markdown]
# The ledger has the same for six schemes and both tasks, with 400 steps and three seeds each (`python -m course_lib.experiments position-extrapolation`). Before you look at *fixed distance*: which scheme can go on, and which cannot even begin?

# %%
guess_4 = predict(
    "the best scheme's accuracy at 80 tokens on fixed distance, in %", ...
)

# %% tags=["reveal"]
compared = ["none", "sinusoidal", "learned", "relative bias", "RoPE", "ALiBi"]
tasks = {"latest value": 1 / lengths.VALUES, "fixed distance": 1 / lengths.TOKENS}
figures.extrapolation("position-extrapolation", compared, tasks)

# %% tags=["fold", "reveal"]
# @title The same as tables; who leads at 80 tokens
columns = {1: "accuracy at 20 tokens", 1.5: "at 30", 2: "at 40", 4: "at 80"}


def recorded(task, name, k):
    """Mean, lowest and highest accuracy over the seeds at k times the training length."""
    return ledger.summary("position-extrapolation", f"{task}, {name}", f"accuracy at {k}x")[:3]


latest, fixed = (
    {name: {k: recorded(task, name, k)[0] for k in columns} for name in compared} for task in tasks
)
guess_4.compare(round(100 * max(row[4] for row in fixed.values())))
for task in tasks:
    ranges = {name: [recorded(task, name, k) for k in columns] for name in compared}
    table(
        [f"{task} (three seeds)", *columns.values()],
        [[name, *(f"{mean:.2f} ({low:.2f} to {high:.2f})" for mean, low, high in row)] for name, row in ranges.items()],
    )
claim(
    "At 80 tokens ALiBi leads on 'latest value', the relative bias on 'fixed distance'; neither leads on both.",
    max(latest, key=lambda name: latest[name][4]) == "ALiBi"
    and max(fixed, key=lambda name: fixed[name][4]) == "relative bias",
)
claim(
    "RoPE, perfect at 20 tokens, is less than 20 points above chance at 80 on both tasks.",
    min(latest["RoPE"][1], fixed["RoPE"][1]) > 0.99
    and latest["RoPE"][4] < tasks["latest value"] + 0.2
    and fixed["RoPE"][4] < tasks["fixed distance"] + 0.2,
)

# %% [markdown]
# ### What the curves show, and what they do not
#
# - **Sinusoidal and learned** break first: past the dashed line every token carries a vector that no layer has met. That the sines *could* be continued by a linear map does not mean that a trained model does it. (On *fixed distance* the learned table is not done even at 20 tokens, in these 400 steps: each of its rows must be learned by itself.)
# - **RoPE** lasts a little longer. Its scores depend on differences alone; but at 80 tokens there are differences up to 79, and slow clocks reach angles never seen below 20. This is why models are stretched by *slowing the clocks* (position interpolation, Chen et al. 2023): old angles for new positions.

# %% tags=["fold"]
# @title At 1.5 times the length
claim(
    "Sinusoidal and learned positions lose more than RoPE already at 1.5 times the length, on both tasks.",
    all(
        rows_of[name][1.5] < rows_of["RoPE"][1.5] - 0.1
        for rows_of in (latest, fixed)
        for name in ("sinusoidal", "learned")
    ),
)

# %% [markdown]
# - **Relative bias** keeps the place "three back" for any length. What it loses is probably something else: beyond $M$ (8 here) all keys share one number, their count grows, and softmax spreads its weight over them.
# - **ALiBi** goes on where *latest counts more*. On *fixed distance* it has not learned the task at 20 tokens either, so its flat curve shows no success at extrapolation. Whatever the slope, the penalty's window peaks at distance 0. Can a sum of its four windows single out "three back"? Here is the best mixture, by least squares:

# %%
back = torch.arange(20, dtype=torch.float64)
windows = (-alibi_slopes(4).double()[:, None] * back).softmax(-1)  # (H, 20)
itself = (back == 0).double()[None]  # the token itself, by the residual
windows = torch.cat([windows, itself])
wanted = (back == 3).double()[:, None]
mix = torch.linalg.lstsq(windows.T, wanted).solution  # (H + 1, 1)
share = (windows.T @ mix)[:, 0]  # of the token at each distance, in the best mixture

# %%
guess_5 = predict("the share of the token three back, from 0 to 1 (wanted: 1)", ...)

# %% tags=["fold", "reveal"]
# @title What the best mixture gives each distance
guess_5.compare("below 0.25")
table(["distance", *map(str, range(1, 7))], [["best mixture", *share[1:7].tolist()]])
claim(
    "In the best sum of ALiBi's four windows the token three back has no more than a quarter of the wanted share, and its neighbours nearly as much.",
    share[3] < 0.25 and share[[2, 4]].min() > 0.8 * share[3],
    three_back=share[3],
    largest_coefficient=mix.abs().max(),
)
claim(
    "On 'fixed distance' ALiBi and none have not learned the task at 20 tokens, though both are above chance (1 in 8).",
    0.2 < fixed["none"][1] < fixed["ALiBi"][1] < 0.6,
    none=fixed["none"][1],
    ALiBi=fixed["ALiBi"][1],
)

# %% [markdown]
# So the model has to do it by other means: scores that also depend on the tokens, two layers, feed-forward networks. In 400 steps they do not get far. A steeper slope or more training might give more; this we did not measure.
#
# - **None** is far from zero: a causal model learns something of order from its mask (section 2). On *latest value* that is nearly enough at 20 tokens, so this task asks for less position than it seems, and at 80 tokens a model without positions does better than one with sinusoidal, learned or rotary ones. On *fixed distance*, where nothing but the position helps, it fails from the start.


# %% tags=["fold"]
# @title No positions at all; the order at twice the length
claim(
    "On 'latest value' none is right on more than 19 of 20 at 20 tokens, and at 80 it beats sinusoidal, learned and rotary positions.",
    latest["none"][1] > 0.95
    and all(latest["none"][4] > latest[name][4] + 0.1 for name in ("sinusoidal", "learned", "RoPE")),
)
ranking = ["sinusoidal", "RoPE", "relative bias", "ALiBi"]
claim(
    "On 'latest value' at twice the length the order from worst to best is sinusoidal, RoPE, relative bias, ALiBi.",
    sorted(ranking, key=lambda name: latest[name][2]) == ranking,
)

# %% [markdown]
# **How far does this carry?** These are tiny models on invented tasks, trained briefly on one length. Press et al. (2022, figure 1) measured the perplexity of language models of 247 million parameters on WikiText-103: sinusoidal fails at once, rotary later, T5's bias later still, ALiBi does not get worse, the order that *latest value* has at twice the length. But perplexity mostly rewards near words, as that task does.
#
# Kazemnejad et al. (2023), on reasoning and mathematical tasks, found that ALiBi, rotary and absolute positions all generalise poorly to longer inputs, T5's bias better, and "none", in a causal model, best. Today's large models mostly use RoPE and train on long texts or slow the clocks. Which scheme is best is a question about the task; "ALiBi extrapolates" is an answer to one of them.

# %% [markdown]
# ### Exercise 8.6 · Explore and explain the curves
#
# Difficulty ●●●○○ · 40 minutes · needs section 9
#
# Change the cell below: another task, scheme, number of `steps`, training `length`. Then answer in words:
#
# (a) One test sequence of 80 tokens gives the accuracy at every length up to 80. Which property of the model allows this? Would it hold for an encoder?
#
# (b) With ALiBi, what is the weight of a matching assignment 40 places back against one 5 places back, for slopes 1/4 and 1/256? Which head can do *latest value*, and why does length not hurt it?
#
# (c) A colleague trains RoPE on 20 tokens, tests at 40, and concludes that rotary positions are bad. Name two things to measure or change before you agree.

# %% tags=["nbval-ignore-output"]
explored = lengths.train_and_test("fixed distance", "relative bias", seed=0, steps=100)
table(list(explored)[:4], [list(explored.values())[:4]])

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex08-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) The model is causal: what stands after a place changes nothing at it. So the first 20 places of a test sequence of 80 are a test sequence of 20. An encoder reads both sides; its answers at early places change with the length, and it needs a test for each length.
#
# (b) The factor between them is $e^{-35 m}$: with $m = 1/4$ about 0.0002, so the near one wins as if alone; with $m = 1/256$ about 0.87, so both count nearly alike. A steep head does the task: for it, everything beyond some 20 tokens has no weight, so a longer sequence looks like a short one. The flat ones average over many old values, and there length hurts.
#
# (c) For instance: train on 40 (does RoPE fail there? then it is not extrapolation); slow the clocks (divide positions by 2) at test time, or a larger base in training; vary training lengths; more steps or seeds; other tasks; the accuracy by the *distance* of what is asked for instead of by length. Good arguments say which cause each measurement would rule out.
# ### END SOLUTION

# %% [markdown]
# ## 10 · Positions, caches and devices
#
# A model that generates text computes one new token at a time and keeps the keys of all earlier ones (chapter 13). Then $T = 1$, $S$ grows, and every scheme must be told where the new token stands: that is `offset` for `add` and `rotate`, and $S - T$ for `bias`.
#
# **Common mistake · each new token is placed at the start.** A sequence of 6 tokens is fed at once, and then in two parts with a cache, without the offset:

# %%
set_seed(4)
q, k = torch.randn(2, 1, 3, 6, 8)  # queries and keys of 6 tokens: (B, H, T, K) each
at_once = attention_scores(rope.rotate(q), rope.rotate(k))[:, :, 4:]  # the last two
cache, new_q, new_k = rope.rotate(k[:, :, :4]), q[:, :, 4:], k[:, :, 4:]

careless_keys = torch.cat([cache, rope.rotate(new_k)], 2)  # the mistake
careless = attention_scores(rope.rotate(new_q), careless_keys)

fixed_keys = torch.cat([cache, rope.rotate(new_k, offset=4)], 2)
in_parts = attention_scores(rope.rotate(new_q, offset=4), fixed_keys)

# %% tags=["fold"]
# @title In parts against at once
claim(
    "Without the offset the scores are wrong, though no shape is.",
    careless.shape == at_once.shape and not torch.allclose(careless, at_once, atol=0.1),
    largest_error=(careless - at_once).abs().max(),
)
claim("With it, two parts give what the whole gives.", torch.allclose(in_parts, at_once, atol=1e-5))

# %% [markdown]
# Nothing fails loudly: the model goes on generating, with wrong scores. The test to write is always the same: *in parts equals at once*.
#
# **Common mistake · a table that does not move.** A table kept as `self.P = torch.zeros(...)` is a plain attribute, so `model.to(device)` leaves it behind, and `model.double()` too. torch's device `meta` (shapes without numbers) shows it on any machine:


# %%
class PlainTable(nn.Module):
    """The table as a plain attribute."""

    def __init__(self):
        super().__init__()
        self.P = sinusoidal_table(10, 8)


plain, ours = PlainTable().to("meta"), Sinusoidal(8, max_len=10).to("meta")

# %% tags=["fold"]
# @title Where each table is after the move
table(
    ["module moved to meta", "its table is on", "saved with the model"],
    [
        ["plain attribute", str(plain.P.device), "no"],
        ["non-persistent buffer", str(ours.table.device), "yes" if ours.state_dict() else "no"],
    ],
)
claim(
    "The plain attribute stayed behind; the buffer moved. Being non-persistent, it is not saved: it can be computed again.",
    plain.P.device.type == "cpu" and ours.table.is_meta and not ours.state_dict(),
)

# %% [markdown]
# Some implementations keep the plain attribute, and copy it to the device in every forward pass.
#
# ### Exercise 8.7 · Find the bugs of a cache
#
# Difficulty ●●●○○ · 25 minutes · needs sections 7 and 10
#
# This function should give the scores of `T` new queries against all keys, and the cache for the next call. Fed with a whole sequence at once it is right. Fed in parts it is not: there are two mistakes. Find them, then write it right.
#
# ```python
# def scores_with_cache(q, k, cache, rotate):
#     q = rotate(q, 0)
#     keys = torch.cat([cache, k], 2)
#     keys = rotate(keys, 0)
#     scores = q @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])
#     return scores, keys
# ```


# %% nbgrader={"grade": false, "grade_id": "ex08-7-scores-with-cache", "locked": false, "schema_version": 3, "solution": true, "task": false}
def scores_with_cache(q, k, cache, rotate):
    """Scores of new queries against all keys so far, and the cache that holds these.

    Args:
        q: (B, H, T, K) new queries, not yet turned.
        k: (B, H, T, K) new keys, not yet turned.
        cache: (B, H, P, K) the keys of the P tokens before, as this function returned them; P may be 0.
        rotate: function of (x, offset), RoPE's rotation.

    Returns:
        scores: (B, H, T, P + T), divided by sqrt(K).
        cache: (B, H, P + T, K).
    """
    ### BEGIN SOLUTION
    past = cache.shape[2]
    keys = torch.cat([cache, rotate(k, past)], dim=2)
    scores = rotate(q, past) @ keys.transpose(-1, -2) / math.sqrt(q.shape[-1])
    return scores, keys
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-7-scores-with-cache-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch08.scores_with_cache(scores_with_cache)

# %% [markdown]
# ## Summary
#
# 1. Attention without positions is permutation-equivariant: permuted tokens give permuted outputs, and a pooled answer is that of a bag of words. A causal mask breaks this, coarsely.
# 2. Positions enter at one of three points: added to the embeddings (sinusoidal, learned), turning queries and keys (RoPE), added to the scores (relative bias, ALiBi).
# 3. The sinusoidal table is a row of clocks: a shift by $k$ is one rotation for all positions. RoPE builds that rotation into the score, so that only $i - j$ counts.
# 4. Tables end, and untrained rows mean nothing; distances have no end, but a model may still fail at distances that it never saw. Which scheme extrapolates depends on the task.
# 5. With a cache, a new token must be told its offset: *in parts equals at once* is the test.
#
# ## Where next
#
# *Chapter 09* puts attention, positions and feed-forward networks together: encoder, decoder and the whole Transformer, with every scheme of this chapter as an argument. *Chapter 13* returns to caches.
#
# ## References
#
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: section 3.5 (sinusoidal, and why a shift is linear), 3.4 (scaled embeddings), table 3 row E (learned instead).
# - J. Gehring et al., *Convolutional sequence to sequence learning*, ICML 2017, arXiv:1705.03122: section 3.1 (learned positions).
# - S. Sukhbaatar et al., *End-to-end memory networks*, NIPS 2015, arXiv:1503.08895: section 4.1 (learned "temporal encoding").
# - P. Shaw, J. Uszkoreit, A. Vaswani, *Self-attention with relative position representations*, NAACL 2018, arXiv:1803.02155: section 3.2 (clipped distances).
# - C. Raffel et al., *Exploring the limits of transfer learning with a unified text-to-text transformer* (T5), JMLR 2020, arXiv:1910.10683: section 2.1 (relative bias, buckets).
# - J. Su et al., *RoFormer: enhanced transformer with rotary position embedding*, 2021, arXiv:2104.09864: equations 12 to 16 (the rotation, and why only the distance is left).
# - O. Press, N. Smith, M. Lewis, *Train short, test long: attention with linear biases enables input length extrapolation*, ICLR 2022, arXiv:2108.12409: section 3 (slopes), figure 1 (extrapolation).
# - A. Haviv et al., *Transformer language models without positional encodings still learn positional information*, Findings of EMNLP 2022, arXiv:2203.16634.
# - A. Kazemnejad et al., *The impact of positional encoding on length generalization in transformers*, NeurIPS 2023, arXiv:2305.19466: the comparison, and theorems 1 and 2 (what a causal model without positions can compute).
# - S. Chen et al., *Extending context window of large language models via positional interpolation*, 2023, arXiv:2306.15595: section 2.3.
# - Videos: *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30, why order must be put back in; *Attention and the Transformer*, practicum, https://www.youtube.com/watch?v=f01J0Dri-6k, the same in code.
