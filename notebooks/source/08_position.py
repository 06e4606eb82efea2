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

# %% tags=["setup"]
import math

import torch
from torch import nn
from torch.nn import functional as F

from course_lib import diagrams, ledger, plots, text, toy
from course_lib.attention import MultiHeadAttention, attention, attention_scores
from course_lib.checks import ch08
from course_lib.claims import claim
from course_lib.display import markdown, show, show_source, table
from course_lib.experiments import ch08 as lengths
from course_lib.positions import (
    ALiBi,
    Learned,
    NoPositions,
    RelativeBias,
    RoPE,
    Sinusoidal,
    alibi_slopes,
    distances,
    rope_angles,
    sinusoidal_table,
)
from course_lib.train import classification_loss, evaluate, set_seed, train_epoch
from course_lib.transformer import EncoderLayer, TransformerClassifier, TransformerEncoder

set_seed(0)

# %%
train, test = toy.reviews(2000, seed=1), toy.reviews(300, seed=2)
vocab = text.build_vocab([review.split() for review, _ in train])


def ids_of(reviews):
    """Ids and labels."""
    return [text.numericalize(review.split(), vocab) for review, _ in reviews], [
        label for _, label in reviews
    ]


def classifier(position, epochs):
    """A small Transformer, trained on the reviews, and its accuracy on new ones."""
    set_seed(0)
    encoder = TransformerEncoder([EncoderLayer(32, 4, 64, dropout=0.0, residual="pre-ln")])
    model = TransformerClassifier(len(vocab), encoder, position=position)
    optimizer = torch.optim.Adam(model.parameters(), 5e-3)
    for _ in range(epochs):
        train_epoch(model, text.batches(*ids_of(train), 32), classification_loss, optimizer)
    found = evaluate(model, text.batches(*ids_of(test), 100, shuffle=False), classification_loss)
    return model.eval(), found["accuracy"]


blind, blind_accuracy = classifier(None, epochs=1)
twins = min((toy.review_pairs(20, seed=2)), key=lambda pair: len(pair[0]))
for review in twins:
    print(review)
with torch.no_grad():
    logits = blind(torch.tensor([text.numericalize(review.split(), vocab) for review in twins]))
claim(
    "Both get the same logits",
    torch.allclose(logits[0], logits[1], atol=1e-5),
    difference=(logits[0] - logits[1]).abs().max(),
)
claim(
    "On 300 new reviews, half of them twins of the other half, it is right as often as a coin",
    abs(blind_accuracy - 0.5) < 0.02,
    accuracy=blind_accuracy,
)

# %% [markdown]
# No training can mend this, nor more layers: what this model computes does not depend on the order of the words. It is the bag of words of chapter 02, with attention inside. Now the same model with the same data;
# one argument is different: its attention is told where each word stands.

# %%
sighted, sighted_accuracy = classifier(RoPE(head_dim=8), epochs=6)
claim(
    "With positions the same Transformer is right on more than 8 of 10 reviews",
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
# A function with this property is called **permutation-equivariant**. (Some texts say "position-invariant". Invariant is what one fixed query gets, or a mean over all outputs; the list of outputs is not: it moves along.)

# %%
diagrams.show("permutation_equivariance")

# %% [markdown]
# In letters: a permutation of $T$ places is a matrix $P$ $(T, T)$ with one 1 in each row and column; $PX$ has the rows of $X$ $(T, D)$ in another order. The claim is
#
# $$ f(PX) = P f(X) \quad \text{for every } P. $$
#
# **Predict, then run:** for which of these three does it hold: multi-head attention, a whole encoder of two layers (with feed-forward networks, residuals and LayerNorm), the mean over its outputs?

# %%
set_seed(1)
T, D, H = 6, 32, 4
x, order = torch.randn(2, T, D), torch.tensor([3, 0, 5, 1, 4, 2])
attend = MultiHeadAttention(D, H)
encoder = TransformerEncoder([EncoderLayer(D, H, 64, dropout=0.0) for _ in range(2)])
with torch.no_grad():
    gaps = [
        (f(x[:, order]) - f(x)[:, order]).abs().max().item() for f in (attend, encoder)
    ]  # f(PX) - P f(X)
    pooled = (encoder(x[:, order]).mean(1) - encoder(x).mean(1)).abs().max().item()
claim(
    "Attention and the encoder permute their output as their input was permuted, up to rounding",
    max(gaps) < 1e-5,
    largest_differences=gaps,
)
claim(
    "The mean over the outputs does not change: it is permutation-invariant",
    pooled < 1e-5,
    largest_difference=pooled,
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
# A padding mask belongs to the keys and is permuted with them. Heads side by side, the feed-forward network, residuals and LayerNorm act on each row alone, so they keep the property; so does a chain of such layers. The third line is the one to doubt; here it is on tensors:

# %%
generator = torch.Generator().manual_seed(2)
scores = torch.randn(T, T, generator=generator, dtype=torch.float64)
P = torch.eye(T, dtype=torch.float64)[order]  # row t has its 1 at order[t]
claim(
    "P puts rows in the new order, and P^T puts them back",
    torch.equal(P @ scores, scores[order]) and torch.equal(P.T @ (P @ scores), scores),
)
claim(
    "softmax(P A P^T) = P softmax(A) P^T, to the last digits of float64",
    torch.allclose(
        (P @ scores @ P.T).softmax(-1), P @ scores.softmax(-1) @ P.T, rtol=0, atol=1e-14
    ),
)

# %% [markdown]
# ### Exercise 8.1 · A test for blindness to order
#
# Difficulty ●●○○○ · 15 minutes · needs section 1
#
# Write the proof's claim as a test on tensors: does this layer permute its output as its input is permuted? The check gives your function ten layers, some of which only seem equivariant.


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
with torch.no_grad():
    gap = (attend(x[:, order], causal=True) - attend(x, causal=True)[:, order]).abs().max().item()
claim(
    "With a causal mask attention is not permutation-equivariant",
    gap > 0.01,
    largest_difference=gap,
)

# %% [markdown]
# Does it *know* positions, then? A query at position $i$ sees $i + 1$ keys. Suppose the first token is a mark, `<sos>`, with value 1, and all others have value 0. A head that looks at everything equally ($q = 0$) gives
#
# $$ \sum_{j \le i} \frac{1}{i + 1} v_j = \frac{1}{i + 1}: $$
#
# the position can be read off. Without a mark at the start, and with equal tokens, it cannot. **Which of the two rows below counts?**

# %%
nothing = torch.zeros(1, 8, 4)  # queries and keys 0: equal weights for all that is visible
marked = torch.zeros(1, 8, 1)
marked[:, 0] = 1.0
counted = attention(nothing, nothing, marked, causal=True).flatten()
unmarked = attention(nothing, nothing, torch.ones(1, 8, 1), causal=True).flatten()
table(
    ["position", *map(str, range(8))],
    [["first token marked", *counted.tolist()], ["all tokens alike", *unmarked.tolist()]],
)
claim(
    "With a marked start, one causal head computes 1 / (i + 1)",
    torch.allclose(counted, 1 / torch.arange(1.0, 9.0)),
)
claim("With equal tokens all positions look the same", torch.allclose(unmarked, torch.ones(8)))

# %% [markdown]
# Haviv et al. (2022) trained causal language models without any positions: they come close to those with positions, and a probe reads the position off their inner layers. An encoder, which sees both sides and is trained to fill in masked words, fails without them. We shall meet "none" again in section 9. A count is a coarse
# clock, though: far out, $1/(i+1)$ hardly moves. All schemes below give more.

# %% [markdown]
# ## 3 · Three places to enter
#
# What can be changed so that the proof breaks? The input rows (line 1), the scores (line 2). And a rotation of queries and keys is a cunning way of changing the scores. That makes three points.

# %%
diagrams.show("where_positions_enter")

# %% [markdown]
# In the library a scheme is an object with three methods, one for each point. Here is the scheme that does nothing; each of the others overrides exactly one method. The layer calls all three and never asks which scheme it has:

# %%
show_source(NoPositions, MultiHeadAttention._project)

# %% [markdown]
# `T` queries are the last of `S` positions: with a cache of earlier keys, `S` is larger than `T`, and query 0 stands at position `S - T`. Everything in this chapter keeps to that.

# %%
schemes = {
    "sinusoidal": (Sinusoidal(64, max_len=512), "add", "of the table"),
    "learned": (Learned(max_len=512, d_model=64), "add", "of the table"),
    "relative bias": (RelativeBias(num_heads=8, max_distance=32), "bias", "none"),
    "RoPE": (RoPE(head_dim=8), "rotate", "none"),
    "ALiBi": (ALiBi(num_heads=8), "bias", "none"),
}
table(
    ["scheme", "enters at", "learned numbers", "longest length"],
    [
        [name, point, sum(p.numel() for p in scheme.parameters()), limit]
        for name, (scheme, point, limit) in schemes.items()
    ],
)
with torch.no_grad():
    broken = {}
    for name, (scheme, _, _) in schemes.items():
        if name == "relative bias":
            nn.init.normal_(scheme.weight)  # it starts at zero: no position
        layer, inputs = MultiHeadAttention(64, 8), torch.randn(1, T, 64)
        here = layer(scheme.add(inputs), position=scheme)[:, order]
        there = layer(scheme.add(inputs[:, order]), position=scheme)
        broken[name] = (here - there).abs().max().item()
claim(
    "Each of the five breaks the equivariance of attention",
    all(gap > 1e-3 for gap in broken.values()),
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
# From here on $P$ is this table, $(L, D)$ for $L$ positions, no longer a permutation; $X + P$ goes into the first layer. The plus adds, number by number; some texts say "concatenates", which would make the vectors wider.
# A query at position $i$ carries $P_i$, the key at position $j$ carries $P_j$: each its own.

# %%
show_source(rope_angles, sinusoidal_table, Sinusoidal)

# %%
P = sinusoidal_table(100, 32)
chosen = (0, 4, 8, 9, 14)
ax = plots.axes(height=3.0)
plots.lines(
    ax,
    {f"{'cosine' if d % 2 else 'sine'}, dimension {d}": (range(100), P[:, d]) for d in chosen},
    "position (tokens)",
    "entry of the table",
)
ax.set_ylim(-1.15, 1.15)
ax.legend(ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
show(
    ax,
    alt="Five waves over 100 positions. Dimension 0 oscillates fastest, dimension 14 slowest; dimensions 8 and 9 have the same wavelength, a quarter of it apart.",
    caption="How do the columns of the table differ? In speed; the two of a pair (8 and 9) are the same wave, a quarter of a wavelength apart.",
)

# %%
ax = plots.axes(height=3.2)
image = ax.imshow(P.T, aspect="auto", cmap="PuOr", vmin=-1, vmax=1, interpolation="nearest")
ax.figure.colorbar(image, label="entry of the table")
ax.set(xlabel="position (tokens)", ylabel="dimension")
ax.grid(visible=False)
show(
    ax,
    alt="Heat map, positions to the right, dimensions downwards. The first dimensions flicker, the last ones hardly change over 100 positions.",
    caption="Is each position's column of colours another one? Yes: the upper dimensions tell neighbours apart, the lower ones distant regions.",
)
apart = torch.cdist(P, P).fill_diagonal_(math.inf)
claim(
    "No two of the 100 positions have similar vectors: neighbours are the closest, and they are far from equal",
    apart.min() > 0.5 and bool((apart.argmin(1) - torch.arange(100)).abs().max() == 1),
    smallest_distance=apart.min(),
)
wavelengths = 2 * math.pi / rope_angles(2, 512)[1]  # the angle at position 1 is the speed
claim(
    "At width 512 the wavelengths run from 2 pi tokens to nearly 2 pi times 10,000",
    math.isclose(wavelengths[0], 2 * math.pi, rel_tol=1e-6)
    and 6e4 < wavelengths[-1] < 2e4 * math.pi,
    first=wavelengths[0],
    last=wavelengths[-1],
)

# %% [markdown]
# (Some texts let $j$ run to $\lfloor (D-1)/2 \rfloor$, which for odd $D$ adds a sine without its cosine, and the usual two lines of code then fail for want of a column. Our table wants an even $D$. Other codes put all sines before all cosines: the same columns in another order.)

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
k, exact = 3, sinusoidal_table(100, 8, dtype=torch.float64)
shift = torch.linalg.lstsq(
    exact[:50], exact[k : 50 + k]
).solution  # (D, D): P[i] @ shift = P[i + k]
claim(
    "One matrix, found on positions 0 to 49, shifts the positions 50 to 96 by 3 as well",
    torch.allclose(exact[50:-k] @ shift, exact[50 + k :], atol=1e-8),
    largest_error=(exact[50:-k] @ shift - exact[50 + k :]).abs().max(),
)
blocks = torch.block_diag(*[torch.ones(2, 2)] * 4).bool()
claim(
    "It holds 2 x 2 blocks on the diagonal and zeros elsewhere", shift[~blocks].abs().max() < 1e-6
)
ax = plots.axes(width=4.6, height=3.6)
plots.heatmap(
    ax, shift, range(8), range(8), "weight", "diverging", xlabel="dimension of P[i + 3]", ylabel="dimension of P[i]"
)  # fmt: skip
show(
    ax,
    alt="An 8 by 8 matrix: four 2 by 2 blocks along the diagonal, zeros elsewhere. The later the block, the more it resembles the identity.",
    caption="What does a shift by 3 do to the table? It turns each pair by its own angle: a rotation in every block, nearly none for the slow clocks.",
)

# %% [markdown]
# A consequence: the product of two rows depends on their distance alone, since $\sin a \sin b + \cos a \cos b = \cos(a - b)$ in each pair:
#
# $$ P_i \cdot P_{i'} = \sum_j \cos\big((i - i')\,\omega_j\big). $$

# %%
products = sinusoidal_table(200, 128) @ sinusoidal_table(200, 128).T
steps = torch.arange(-60, 61)
ax = plots.axes(height=2.8)
plots.lines(
    ax,
    {f"from position {i}": (steps, products[i, i + steps]) for i in (70, 100, 130)},
    "distance (tokens)",
    "dot product",
)
for line, style, width in zip(ax.lines, ("-", "--", ":"), (7, 4, 1.6), strict=True):
    line.set(linestyle=style, linewidth=width)  # three widths, so that all three can be seen
ax.legend()
show(
    ax,
    alt="Three curves of the dot product over the distance from -60 to 60, from three positions; they coincide: a peak of 64 at distance 0 that falls to both sides with ripples.",
    caption="Does the product depend on where we start? No: three curves lie on each other. It falls with distance, at first, and it cannot tell before from after: the curve is symmetric.",
)
claim(
    "Rows at equal distance have equal products, wherever they stand",
    all(torch.allclose(products.diagonal(d), products[0, d], atol=1e-3) for d in (1, 7, 60)),
)
claim(
    "At distance 0 it is D / 2, and no other distance up to 60 comes above 0.99 of that",
    math.isclose(products[9, 9], 64, rel_tol=1e-4) and products[100, 101:161].max() < 0.99 * 64,
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
# ### Common mistake · embeddings that drown
#
# The table's rows have length $\sqrt{D/2}$. If embeddings start with entries of variance $1/D$ (good for an output layer that shares the table), their rows have length 1. Vaswani et al. (2017, section 3.4) multiply them by $\sqrt{D}$ before adding. Somebody forgets it.
# **Predict:** what is more alike then, the same word at two places, or two words at the same place?

# %%
D = 256
words = torch.randn(2, D, generator=torch.Generator().manual_seed(0)) / math.sqrt(D)
places = sinusoidal_table(100, D)[[10, 60]]


def alike(scale):
    """Cosine of (one word, two places) and of (two words, one place)."""
    x = scale * words[:, None] + places  # (word, place, D)
    return [F.cosine_similarity(x[0, 0], other, dim=0).item() for other in (x[0, 1], x[1, 0])]


forgotten, scaled = alike(1.0), alike(math.sqrt(D))
table(
    ["embeddings", "same word, two places", "two words, same place"],
    [["variance 1/D, as drawn", *forgotten], ["times sqrt(D)", *scaled]],
)
claim("Unscaled, two different words at one place are nearly the same vector", forgotten[1] > 0.95)
claim(
    "Scaled, a word is more like itself elsewhere than like another word here",
    scaled[0] > scaled[1] + 0.2,
)

# %% [markdown]
# `TokenEmbedding` in `course_lib.transformer` draws with variance $1/s^2$ and multiplies by $s = \sqrt{D}$. A model that begins with drowned words may still learn its way out; nothing fails loudly.

# %% [markdown]
# ## 5 · Learned: a row for each position
#
# Why choose the vectors at all? Draw a table $(L, D)$ at random and learn it, as the word embeddings: $x_i \leftarrow x_i + p_i$. Sukhbaatar et al. (2015) did so for a memory of sentences, Gehring et al. (2017) for convolutions, BERT and GPT-2 do for Transformers; Vaswani et al. found nearly the same BLEU with either.

# %%
show_source(Learned)

# %% [markdown]
# The price: a row learns only when a training sequence reaches it. **Predict** the gradient of a table with 8 rows after a batch of sequences of length 5.

# %%
learned = Learned(max_len=8, d_model=4)
learned.add(torch.zeros(3, 5, 4)).square().sum().backward()
reached = learned.weight.grad.norm(dim=1) > 0
table(["row", *map(str, range(8))], [["gets a gradient", *("yes" if r else "no" for r in reached)]])
claim(
    "Rows beyond the longest training sequence stay as they were drawn",
    reached.tolist() == [True] * 5 + [False] * 3,
)

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
# $b$ is $(H, 2M + 1)$. Signs differ between texts: here a key *behind* the query has a negative distance.

# %%
show_source(distances, RelativeBias)

# %%
relative = RelativeBias(num_heads=2, max_distance=4)
with torch.no_grad():
    relative.weight[0] = torch.tensor([-2.0, -1.5, 0.0, 2.0, 0.0, -1.0, -1.5, -2.0, -2.0])
    relative.weight[1] = torch.linspace(-2, 2, 9)
axs = plots.grid(1, 2, height=3.0)[0]
for head, (ax, bias) in enumerate(zip(axs, relative.bias(8, 8).detach(), strict=True)):
    plots.heatmap(
        ax, bias, range(8), range(8), "bias", "diverging", xlabel="key j", ylabel="query i"
    )
    ax.set_title(f"head {head}")
show(
    axs[0],
    alt="Two 8 by 8 matrices of biases, constant along diagonals. Head 0 is highest one place left of the diagonal; head 1 rises from left to right up to a distance of 4 and is constant beyond.",
    caption="What can such a table say? Head 0 (set by hand) favours the word before; head 1 what comes later. Along a diagonal nothing changes, and beyond the distance M = 4 neither.",
)
bias = relative.bias(8, 8)
claim(
    "The bias depends on j - i alone",
    all(
        bool((bias.diagonal(d, 1, 2) == bias[:, max(-d, 0), max(d, 0)][:, None]).all())
        for d in range(-7, 8)
    ),
)
claim(
    "For 3 queries with 5 earlier keys it is the last 3 rows",
    torch.equal(relative.bias(3, 8), bias[:, -3:]),
)

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
turn = RoPE(head_dim=2)  # one pair, one radian a token
query, key = torch.tensor([[1.0, 0.2]]), torch.tensor([[-0.8, 0.5]])
axs = plots.grid(1, 2, height=3.4)[0]
for ax, (i, j) in zip(axs, ((1, 0), (4, 3)), strict=True):
    for vector, place, name, color in ((query, i, "query", "attention"), (key, j, "key", "weight")):
        x0, y0 = vector[0].tolist()
        x1, y1 = turn.rotate(vector, offset=place)[0].tolist()
        ax.annotate("", (x0, y0), (0, 0), arrowprops={"arrowstyle": "-|>", "color": plots.COLORS[color], "alpha": 0.35, "lw": 1.6, "ls": "--"})  # fmt: skip
        ax.annotate("", (x1, y1), (0, 0), arrowprops={"arrowstyle": "-|>", "color": plots.COLORS[color], "lw": 2.2})  # fmt: skip
        ax.text(1.18 * x1, 1.18 * y1, f"{name} at {place}", ha="center", va="center", color=plots.COLORS[color])  # fmt: skip
    ax.set(
        xlim=(-1.6, 1.6),
        ylim=(-1.5, 1.5),
        aspect="equal",
        xlabel="first of the pair",
        ylabel="second of the pair",
    )
    score = (turn.rotate(query, i) * turn.rotate(key, j)).sum().item()
    ax.set_title(f"query at {i}, key at {j}: product {score:.3f}")
show(
    axs[0],
    alt="Two planes with two arrows each. Left, the query at position 1 and the key at position 0; right, the same at 4 and 3: both arrows are turned by three more radians, the angle between them is the same.",
    caption="What does moving both by three places change? Both arrows turn together (dashed: unturned). The angle between them, and the product, stay.",
)

# %% [markdown]
# The paper's block diagonal matrix is never built. A pair is one complex number $x_{2j} + \mathrm{i}\,x_{2j+1}$, and a turn by $\theta$ is a product with $e^{\mathrm{i}\theta}$:

# %%
show_source(RoPE.rotate)

# %%
set_seed(3)
rope = RoPE(head_dim=8)
query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
turned_queries = rope.rotate(query.expand(1, 1, 40, 8))[0, 0]  # the same query at 40 positions
turned_keys = rope.rotate(key.expand(1, 1, 40, 8))[0, 0]
scores = turned_queries @ turned_keys.T
claim(
    "The score depends on i - j alone",
    all(
        torch.allclose(scores.diagonal(d), scores.diagonal(d)[0], atol=1e-4) for d in range(-39, 40)
    ),
)
claim(
    "It tells before from after",
    abs(scores[0, 1] - scores[1, 0]).item() > 0.01,
    before=scores[1, 0],
    after=scores[0, 1],
)
claim("No vector changes its length", torch.allclose(turned_queries.norm(dim=1), query.norm()))
claim(
    "Nothing is stored: the scheme has no parameters, no buffers, and no longest length",
    not list(rope.parameters())
    and not list(rope.buffers())
    and rope.rotate(query, 10**6).isfinite().all().item(),
)

# %% [markdown]
# It acts on queries and keys in every layer, never on the values: what is passed on is content. (Many codes pair entry $j$ with $j + K/2$ instead of $2j$ with $2j + 1$. That is the same function after a permutation of the rows of $W_Q$ and $W_K$; loading weights across the two forms without that permutation gives nonsense, silently.)
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
show_source(alibi_slopes, ALiBi)

# %%
axs = plots.grid(1, 2, height=3.0, width_ratios=(1.2, 1))[0]
back = torch.arange(0, 65)
plots.lines(
    axs[0],
    {
        f"$m$ = 1/{round(1 / m)}": (back, (-m * back).exp())
        for m in alibi_slopes(8)[[0, 2, 4, 7]].tolist()
    },
    "distance (tokens)",
    "factor on the weight",
)
axs[0].legend(loc="center right", bbox_to_anchor=(1.0, 0.55), labelspacing=0.2)
plots.heatmap(axs[1], ALiBi(8).bias(8, 8)[1], range(8), range(8), "bias", "diverging", xlabel="key j", ylabel="query i")  # fmt: skip
axs[1].set_title("head 2 of 8")
show(
    axs[0],
    alt="Left: four curves that fall from 1 with distance, the steepest is near 0 after 8 tokens, the flattest still above 0.7 after 64. Right: an 8 by 8 matrix, 0 on the diagonal, more and more negative away from it.",
    caption="How far does a head look? Steep heads a few tokens, flat ones hundreds. The bias (right, the second head) falls alike to both sides of the diagonal, in every row.",
)
claim(
    "For 8 heads the slopes are 1/2, 1/4, ... 1/256",
    torch.allclose(alibi_slopes(8), torch.tensor([2.0**-h for h in range(1, 9)])),
)
bias = ALiBi(8).bias(6, 6)
claim("The bias depends on |i - j| alone", torch.equal(bias, bias.transpose(1, 2)) and torch.equal(bias[:, 1:, 1:], bias[:, :-1, :-1]))  # fmt: skip

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

# %%
x, y = lengths.latest_value(1, 12, torch.Generator().manual_seed(0))
table(
    ["place", *map(str, range(12))],
    [
        ["reads", *lengths.words(x[0])],
        ["has to say", *("" if value < 0 else value for value in y[0].tolist())],
    ],
)

# %% [markdown]
# The model is a causal Transformer of two layers and width 32, trained on sequences of 20 tokens, new ones at each step. Because it is causal and questions stand everywhere, one test sequence of 80 tokens scores all lengths up to 80. Schemes with a table get 80 rows; of the learned ones, rows 20 to 79 are never trained.
#
# **Predict:** sinusoidal, RoPE, ALiBi on *latest value*. All three will be nearly perfect at 20 tokens. Sort them by accuracy at 40, and at 80.

# %%
live = {"sinusoidal": lengths.train_and_test("latest value", "sinusoidal", seed=0, steps=250)}

# %%
live["RoPE"] = lengths.train_and_test("latest value", "RoPE", seed=0, steps=250)

# %%
live["ALiBi"] = lengths.train_and_test("latest value", "ALiBi", seed=0, steps=250)
chance = 1 / lengths.VALUES
at = {k: {name: row[f"accuracy at {k}x"] for name, row in live.items()} for k in (1, 2, 4)}
claim(
    "At the training length all three are right on more than 9 of 10 questions",
    min(at[1].values()) > 0.9,
    **at[1],
)
claim(
    "At twice the length the sinusoidal model is far behind the other two",
    at[2]["sinusoidal"] < min(at[2]["RoPE"], at[2]["ALiBi"]) - 0.15,
    **at[2],
)
claim(
    "At four times the length ALiBi still answers more than 8 of 10, RoPE is near chance (1 in 4)",
    at[4]["ALiBi"] > 0.8 and at[4]["RoPE"] < chance + 0.2,
    **at[4],
)

# %% [markdown]
# The ledger has the same for six schemes and both tasks, with 400 steps and three seeds each (`python -m course_lib.experiments position-extrapolation`). **Predict** for *fixed distance*: which scheme can go on, which cannot even begin?

# %%
recorded = {
    "none": "muted",
    "sinusoidal": "output",
    "learned": "gradient",
    "relative bias": "weight",
    "RoPE": "hidden",
    "ALiBi": "attention",
}
tasks = {"latest value": chance, "fixed distance": 1 / lengths.TOKENS}
axs = plots.grid(1, 2, height=3.7, sharey=True)[0]
for ax, (task, level) in zip(axs, tasks.items(), strict=True):
    for name, color in recorded.items():
        variant = f"{task}, {name}"
        places = ledger.values("position-extrapolation", variant, "places")[0]
        runs = ledger.values("position-extrapolation", variant, "accuracy")
        plots.band(ax, places, runs, name, color, marker="o", markersize=3)
    ax.axvline(20, color=plots.COLORS["ink"], linewidth=1, linestyle="--")
    ax.axhline(level, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
    ax.set(title=task, xlabel="length of the sequence (tokens)", ylim=(0, 1.04))
axs[0].set_ylabel("accuracy at its last five places")
axs[0].figure.legend(*axs[0].get_legend_handles_labels(), loc="outside upper center", ncols=6, columnspacing=1.0, handlelength=1.4)  # fmt: skip
show(
    axs[0],
    alt="Accuracy by length for six schemes on two tasks, a band over three seeds, with the training length 20 marked by a dashed line and chance by a dotted one.",
    caption="Which scheme goes on beyond the training length (dashed line; dotted: chance)? No scheme on both tasks without loss. Three seeds: line, mean; band, least to greatest.",
)
columns = ["accuracy at 1x", "accuracy at 1.5x", "accuracy at 2x", "accuracy at 4x"]
for task in tasks:
    variants = [f"{task}, {name}" for name in recorded]
    markdown(ledger.table("position-extrapolation", columns, variants))

# %% [markdown]
# ### What the curves show, and what they do not
#
# - **Sinusoidal and learned** break first: past the dashed line every token carries a vector that no layer has met. That the sines *could* be continued by a linear map does not mean that a trained model does it. (On *fixed distance* the learned table is not done even at 20 tokens, in these 400 steps: each of its rows must be learned by itself.)
# - **RoPE** lasts a little longer. Its scores know only differences; but at 80 tokens there are differences up to 79, and slow clocks reach angles never seen below 20. This is why models are stretched by *slowing the clocks* (position interpolation, Chen et al. 2023): old angles for new positions.
# - **Relative bias** keeps the place "three back" for any length. What it loses is probably something else: beyond $M$ (8 here) all keys share one number, their count grows, and softmax spreads its weight over them.
# - **ALiBi** goes on where *latest counts more*. On *fixed distance* it has not learned the task at 20 tokens either, so its flat curve shows no success at extrapolation. Whatever the slope, the penalty's window peaks at distance 0. **Predict:** can a sum of its four windows single out "three back"?

# %%
back = torch.arange(20, dtype=torch.float64)
windows = (-alibi_slopes(4).double()[:, None] * back).softmax(-1)  # (H, 20): weights by distance
windows = torch.cat([windows, (back == 0).double()[None]])  # and the token itself, by the residual
mix = torch.linalg.lstsq(windows.T, (back == 3).double()[:, None]).solution  # (H + 1, 1)
share = (windows.T @ mix)[:, 0]  # of the token at each distance, in the best mixture
table(["distance", *map(str, range(1, 7))], [["best mixture", *share[1:7].tolist()]])
claim(
    "In the best sum of ALiBi's four windows the token three back has no more than a quarter of the wanted share, and its neighbours nearly as much",
    share[3] < 0.25 and share[[2, 4]].min() > 0.8 * share[3],
    three_back=share[3],
    largest_coefficient=mix.abs().max(),
)

# %% [markdown]
# So the model has to do it by other means: scores that also depend on the tokens, two layers, feed-forward networks. In 400 steps they do not get far. A steeper slope or more training might give more; this we did not measure.
#
# - **None** is far from zero: a causal model learns something of order from its mask (section 2). On *latest value* that is nearly enough at 20 tokens, so this task asks for less position than it seems, and at 80 tokens a model without positions does better than one with sinusoidal, learned or rotary ones. On *fixed distance*, where nothing but the position helps, it fails from the start.


# %%
def recorded_mean(task, name, k):
    """Mean over seeds of the accuracy at k times the training length."""
    return ledger.summary("position-extrapolation", f"{task}, {name}", f"accuracy at {k}x")[0]


latest, fixed = (
    {name: {k: recorded_mean(task, name, k) for k in (1, 1.5, 2, 4)} for name in recorded}
    for task in ("latest value", "fixed distance")
)
claim(
    "At four times the length ALiBi leads on 'latest value', the relative bias on 'fixed distance'; neither leads on both",
    max(latest, key=lambda name: latest[name][4]) == "ALiBi"
    and max(fixed, key=lambda name: fixed[name][4]) == "relative bias",
)
claim(
    "Sinusoidal and learned positions lose more than RoPE already at 1.5 times the length, on both tasks",
    all(
        task[name][1.5] < task["RoPE"][1.5] - 0.1
        for task in (latest, fixed)
        for name in ("sinusoidal", "learned")
    ),
)
claim(
    "RoPE, perfect at 20 tokens, is near chance at 80 on both tasks",
    min(latest["RoPE"][1], fixed["RoPE"][1]) > 0.99
    and latest["RoPE"][4] < chance + 0.2
    and fixed["RoPE"][4] < 0.125 + 0.2,
)
claim(
    "On 'fixed distance' ALiBi and none have not learned the task at 20 tokens, though both are above chance (1 in 8)",
    0.2 < fixed["none"][1] < fixed["ALiBi"][1] < 0.6,
)
claim(
    "On 'latest value' none is right on more than 19 of 20 at 20 tokens, and at 80 it beats sinusoidal, learned and rotary positions",
    latest["none"][1] > 0.95
    and all(
        latest["none"][4] > latest[name][4] + 0.1 for name in ("sinusoidal", "learned", "RoPE")
    ),
)
ranking = ["sinusoidal", "RoPE", "relative bias", "ALiBi"]
claim(
    "On 'latest value' at twice the length the order from worst to best is sinusoidal, RoPE, relative bias, ALiBi",
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
# A model that writes text computes one new token at a time and keeps the keys of all earlier ones (chapter 13). Then $T = 1$, $S$ grows, and every scheme must be told where the new token stands: that is `offset` for `add` and `rotate`, and $S - T$ for `bias`.
#
# **Common mistake · each new token believes it is the first.** A sequence of 6 tokens is fed at once, and then in two parts with a cache, without the offset:

# %%
set_seed(4)
q, k = torch.randn(2, 1, 3, 6, 8)  # queries and keys of 6 tokens: (B, H, T, K) each
at_once = attention_scores(rope.rotate(q), rope.rotate(k))[:, :, 4:]  # the last two queries
cache = rope.rotate(k[:, :, :4])
careless_keys = torch.cat([cache, rope.rotate(k[:, :, 4:])], 2)  # the mistake
careless = attention_scores(rope.rotate(q[:, :, 4:]), careless_keys)
repaired_keys = torch.cat([cache, rope.rotate(k[:, :, 4:], offset=4)], 2)
repaired = attention_scores(rope.rotate(q[:, :, 4:], offset=4), repaired_keys)
claim(
    "Without the offset the scores are wrong, though no shape is",
    careless.shape == at_once.shape and not torch.allclose(careless, at_once, atol=0.1),
    largest_error=(careless - at_once).abs().max(),
)
claim("With it, two parts give what the whole gives", torch.allclose(repaired, at_once, atol=1e-5))

# %% [markdown]
# Nothing fails loudly: the model writes on, a little worse with each token. The test to write is always the same: *in parts equals at once*.
#
# **Common mistake · a table that does not move.** A table kept as `self.P = torch.zeros(...)` is a plain attribute, so `model.to(device)` leaves it behind, and `model.double()` too. torch's device `meta` (shapes without numbers) shows it on any machine:


# %%
class PlainTable(nn.Module):
    """The table as a plain attribute."""

    def __init__(self):
        super().__init__()
        self.P = sinusoidal_table(10, 8)


plain, ours = PlainTable().to("meta"), Sinusoidal(8, max_len=10).to("meta")
table(
    ["module moved to meta", "its table is on", "saved with the model"],
    [
        ["plain attribute", str(plain.P.device), "no"],
        ["non-persistent buffer", str(ours.table.device), "yes" if ours.state_dict() else "no"],
    ],
)
claim(
    "The plain attribute stayed behind; the buffer moved",
    plain.P.device.type == "cpu" and ours.table.is_meta,
)
claim("A non-persistent buffer is not saved: it can be computed again", not ours.state_dict())

# %% [markdown]
# Many tutorials have this table, and copy it to the device in every forward pass instead.
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
