# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 250
#     needs: "chapter 07"
# ---

# %% [markdown]
# # 08 · Position
#
# Two film reviews with the same words. One praises, one pans. A small model reads both with attention.
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
from course_lib.train import set_seed
from course_lib.utils import number_of_parameters

set_seed(0)

# %%
train = synthetic.reviews(2000, seed=1)
known = {review for review, _ in train}
test = [pair for pair in synthetic.reviews(302, seed=2) if pair[0] not in known]
vocab = text.build_vocab([review.split() for review, _ in train])
twins = min(synthetic.review_pairs(20, seed=2), key=lambda pair: len(pair[0]))
for review in twins:
    print(review)

# %% [markdown]
# The reader: an embedding, one layer of attention, the mean over the words, and a linear layer that says *bad* or *good*. The layer is chapter 07's, and `mask` hides the padding.


# %%
class Reader(nn.Module):
    """Reads a review with one layer of attention, and judges it."""

    def __init__(self, vocab_size, d_model=32):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, d_model)
        self.attend = MultiHeadAttention(d_model, num_heads=4)
        self.readout = nn.Linear(d_model, 2)

    def inputs(self, ids):
        return self.embed(ids)  # (B, T, D)

    def forward(self, ids, real):  # (B, T) each; real is False at padding
        x = self.inputs(ids)
        x = x + self.attend(x, mask=real[:, None, None])  # (B, T, D)
        mean = (x * real[..., None]).sum(1) / real.sum(1, keepdim=True)  # (B, D)
        return self.readout(mean)  # (B, 2): logits of bad and good


# %% [markdown]
# It is trained on 2,000 reviews. It is tested on 300 that it has not read: 150 pairs of twins, with the same words and opposite verdicts.


# %%
def ids_and_labels(reviews):
    ids = [text.numericalize(review.split(), vocab) for review, _ in reviews]
    return ids, [label for _, label in reviews]


def train_reader(model, epochs):
    """Train a reader; its accuracy on new reviews."""
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for _ in tqdm(range(epochs), desc="epochs", leave=False):
        for ids, real, labels in text.batches(*ids_and_labels(train), 32):
            loss = F.cross_entropy(model(ids, real), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    new_ids, new_labels = ids_and_labels(test)
    with torch.no_grad():
        verdicts = model(*text.pad_batch(new_ids)).argmax(1)
    return (verdicts == torch.tensor(new_labels)).float().mean().item()


# %%
guess_1 = predict("by how much the logit of good is larger for the first review", ...)

# %%
set_seed(0)
blind = Reader(len(vocab))
blind_accuracy = train_reader(blind, epochs=6)
twin_ids, twin_real = text.pad_batch(ids_and_labels([(twin, 0) for twin in twins])[0])
with torch.no_grad():
    logits = blind(twin_ids, twin_real)  # (2, 2)

# %% tags=["fold", "reveal"]
# @title What it says of the two
largest_difference = (logits[0] - logits[1]).abs().max().item()
guess_1.compare(round(largest_difference, 3))
claim("Both get the same logits.", torch.allclose(logits[0], logits[1], atol=1e-5), difference=largest_difference)
claim(
    "On 300 new reviews, half of them twins of the other half, it is right on half: on one of each pair.",
    abs(blind_accuracy - 0.5) < 0.02,
    accuracy=blind_accuracy,
)

# %% [markdown]
# More training cannot help, nor can more such layers without a causal mask: the verdict does not depend on the order of the words. It is the bag of words of chapter 02, with attention inside. Why? And what is the least that we must add?
#
# If you have only an hour, read sections 1 to 4 and section 6, look at the figure of section 8, and leave the exercises for later.
#
# ### You will be able to
#
# 1. test whether a layer can see the order of its input, and prove that attention cannot (exercise 8.1);
# 2. build the sinusoidal table without a loop, and derive the matrix that shifts it (exercises 8.2, 8.3);
# 3. rotate queries and keys as RoPE does, and bias scores as ALiBi does (exercises 8.4, 8.5);
# 4. read a curve of accuracy beyond the training length, and say what it shows (exercise 8.6);
# 5. find the mistakes that positions invite when keys are cached (exercise 8.7).
#
# **Letters.** `B` sequences, `T` queries, `S` keys, `D` width, `H` heads, `K` = `D / H`. Positions count from 0: $i$ is a query's position (or any token's), $j$ a key's, and $\delta$ a distance between positions. $P$ is a table of positions with `L` rows, $n$ the number of a pair of its columns.

# %% [markdown]
# ## 1 · Attention sees a set
#
# Take three words with two numbers each, and the plainest self-attention: the words are their own queries, keys and values. Once *dog bites man*, once *man bites dog*. Which output does each word get?

# %%
vectors = {"dog": [1.0, 0.0], "bites": [0.0, 1.0], "man": [1.0, 1.0]}
for sentence in ("dog bites man", "man bites dog"):
    words = sentence.split()
    three = torch.tensor([vectors[word] for word in words])  # (T, D) = (3, 2)
    weights = (three @ three.T).softmax(dim=-1)  # (T, T)
    outputs = weights @ three  # (T, D)
    for word, row, output in zip(words, weights, outputs):
        print(f"{word:6} weights", row, "output", output)
    print("mean  ", outputs.mean(0))

# %% [markdown]
# Each output is a weighted sum over *all* words, and a sum does not know in which order its terms came. In the second sentence the weights stand in another order, but each word gives the same weight to the same words. So *man* who bites gets exactly the vector that *man* gets when he is bitten. Permute the input,
# and the output is permuted in the same way:

# %%
diagrams.show("permutation_equivariance")

# %% [markdown]
# Write the permutation of $T$ positions as a matrix $\Pi$ $(T, T)$, with one 1 in each row and column: $\Pi X$ has the rows of $X$ $(T, D)$ in another order. A function $f$ is **permutation-equivariant** if
#
# $$ f(\Pi X) = \Pi f(X) \quad \text{for every } \Pi. $$
#
# The mean over the outputs does not even move: it is permutation-*invariant*. That is why our reader cannot tell the twins apart.
#
# ### Why: four lines
#
# One head with projections $W_Q$, $W_K$, $W_V$. Since $\Pi^\top \Pi = I$, $\Pi^\top$ puts the rows back.
#
# 1. The projections work on each row alone, so queries, keys and values are permuted as the rows are: $(\Pi X) W_Q = \Pi\,(X W_Q)$, and likewise with $W_K$ and $W_V$.
# 2. The scores $A = X W_Q\,(X W_K)^\top / \sqrt K$ become $\Pi A\,\Pi^\top$: rows *and* columns move along.
# 3. Softmax takes the exponential of each entry, which moves along with its entry, and divides by the sum of its row, which has the same terms in another order: $\mathrm{softmax}(\Pi A\,\Pi^\top) = \Pi\,\mathrm{softmax}(A)\,\Pi^\top$.
# 4. So the output is $\Pi\,\mathrm{softmax}(A)\,\Pi^\top \Pi\,X W_V = \Pi\,\mathrm{softmax}(A)\,X W_V$. $\blacksquare$
#
# Whatever works on each position alone (a bias, a small network, adding $x$ to the output, concatenating heads) keeps the property, and so does a chain of such layers. A padding mask belongs to the keys and moves with them. In code $\Pi X$ is indexing: `x[:, order]` for a batch.
#
# ### Exercise 8.1 · A test for blindness to order
#
# Difficulty ●●○○○ · 15 minutes · needs section 1
#
# Write the definition as a test on tensors, for any layer and for one given permutation. The check gives your function eighteen layers; some only seem to be equivariant.


# %% nbgrader={"grade": false, "grade_id": "ex08-1-equivariant", "locked": false, "schema_version": 3, "solution": true, "task": false}
def is_equivariant(layer, x, order):
    """Say whether a layer is permutation-equivariant, as far as one input and one permutation can tell.

    Args:
        layer: function from (B, T, D) to (B, T, D).
        x: (B, T, D), float64.
        order: (T,) int64, a permutation of 0 .. T-1.

    Returns:
        bool, True if permuting first and permuting last agree up to 1e-6, in every entry of every sequence.
    """
    ### BEGIN SOLUTION
    return torch.allclose(layer(x[:, order]), layer(x)[:, order], atol=1e-6)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-1-equivariant-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch08.is_equivariant(is_equivariant)

# %% [markdown]
# The same test, as a largest difference, on chapter 07's layer with four heads, on two such layers with a tanh between them, and on one that has a causal mask:

# %%
set_seed(1)
x, order = torch.randn(2, 6, 32), torch.tensor([3, 0, 5, 1, 4, 2])  # (B, T, D)
attend = MultiHeadAttention(32, 4)


def gap(f, x=x):
    """Largest entry of f(permuted x) - permuted f(x)."""
    with torch.no_grad():
        return (f(x[:, order]) - f(x)[:, order]).abs().max().item()


print(f"attention: {gap(attend):.3f}")
print(f"two layers: {gap(lambda x: attend(torch.tanh(attend(x)))):.3f}")
print(f"with a causal mask: {gap(lambda x: attend(x, causal=True)):.3f}")

# %% [markdown]
# A **causal mask** breaks the property, since the mask stays where it is when the words move. So a causal model can see something of the order even without positions. *Going deeper* shows that it can count, coarsely.
#
# A mask is one way to break the proof. Which other is there? The simplest changes the inputs, in line 1.

# %% [markdown]
# ## 2 · A row for each position
#
# A word has a row in a table of embeddings. Let a *position* have one too: a second table $P$ $(L, D)$, learned like the first. The word at position $i$ enters as the sum of the two,
#
# $$ x_i \leftarrow x_i + P_i . $$
#
# The plus adds number by number; the vectors do not get wider. In our reader a table is added, and one method changes:


# %%
class ReaderWithPlaces(Reader):
    def __init__(self, vocab_size, d_model=32, max_len=100):
        super().__init__(vocab_size, d_model)
        self.place = nn.Embedding(max_len, d_model)  # P, (L, D)

    def inputs(self, ids):
        places = torch.arange(ids.shape[1])  # (T,): 0, 1, 2, ...
        return self.embed(ids) + self.place(places)  # (B, T, D) + (T, D)


# %%
set_seed(0)
sighted = ReaderWithPlaces(len(vocab))
sighted_accuracy = train_reader(sighted, epochs=6)
with torch.no_grad():
    verdicts = sighted(twin_ids, twin_real).softmax(-1)[:, 1]  # probability of good
for review, verdict in zip(twins, verdicts):
    print(f"{verdict:.1f} {review}")

# %% tags=["fold"]
# @title The same reader with positions
claim(
    "In this run, with a row for each position, the reader is right on more than 8 of 10 new reviews.",
    sighted_accuracy > 0.8,
    accuracy=sighted_accuracy,
)

# %% [markdown]
# The same reviews, the same six epochs, and now the twins get opposite verdicts. BERT and GPT-2 learn their positions like this. The price: a row is trained only by sequences long enough to reach it. Which rows of a table with 8 rows get a gradient from a batch of sequences of length 5? `LearnedPositions` is the library's version of the lines above:

# %%
learned = LearnedPositions(d_model=4, max_len=8)
learned.add(torch.zeros(3, 5, 4)).square().sum().backward()
reached = learned.weight.grad.norm(dim=1) > 0  # (L,)
print("gradient:", reached.tolist())

# %% [markdown]
# Rows 5, 6 and 7 get no gradient: on such sequences nothing is learned there, however long you train. And after the table's last row there is nothing at all. The library says so, and names both ranges:

# %% tags=["raises-exception"]
learned.add(torch.zeros(1, 9, 4))

# %% [markdown]
# Is there a table that needs no training, and that can be made as long as you like?

# %% [markdown]
# ## 3 · Sinusoidal: a row of clocks
#
# How can a row of numbers name a position, with nothing learned? The position itself, as one number, would grow without limit. In binary every digit stays 0 or 1. Count to seven in them:

# %%
for i in range(8):
    print(i, "is", f"{i:03b}")

# %% [markdown]
# Read the columns from top to bottom. The last bit changes at every step, the middle one at every second step, the first at every fourth: each column is a slower clock than the one to its right, and the three together name eight positions.
#
# Bits jump. Vaswani et al. (2017) let the clocks run smoothly instead. Clock $n$ turns by $\omega_n$ radians a position, and its hand is a pair (sine, cosine):
#
# $$ P_{i,2n} = \sin(i\,\omega_n), \qquad P_{i,2n+1} = \cos(i\,\omega_n), \qquad \omega_n = 10000^{-2n/D}, \quad n = 0, \ldots, \tfrac{D}{2} - 1 . $$
#
# Four positions, three clocks:

# %%
L, D = 4, 6
P = torch.zeros(L, D)
for i in range(L):  # positions
    for n in range(D // 2):  # clocks
        angle = i * 10000 ** (-2 * n / D)
        P[i, 2 * n], P[i, 2 * n + 1] = math.sin(angle), math.cos(angle)
print(P)

# %% [markdown]
# Row 0 is (0, 1) three times: all clocks stand at twelve. The first clock turns by one radian a position; the last has hardly moved. As curves, a fast clock and a slow one of a wider table:

# %%
waves = sinusoidal_table(100, 32)  # (L, D): 16 clocks
figures.clocks(waves[:20], clocks=(0, 4))

# %% [markdown]
# Now all 16 clocks over 100 positions, and above them the bits of the same positions, the fastest at the top in both:

# %%
figures.bits_and_waves(waves)

# %% tags=["fold"]
# @title Every position is different
apart = torch.cdist(waves, waves).fill_diagonal_(math.inf)
claim(
    "No two of the 100 rows are equal: neighbours, the closest, are 1.17 apart (length of a row: 4).",
    bool((apart.argmin(1) - torch.arange(100)).abs().max() == 1)
    and abs(apart.min() - 1.17) < 0.005
    and torch.allclose(waves.norm(dim=1), torch.tensor(4.0)),
)
wavelengths = 2 * math.pi / rope_angles(torch.tensor(1.0), 512)  # the angles at position 1
claim(
    "At width 512 the wavelengths run from $2\\pi$ tokens to nearly $2\\pi$ times 10,000.",
    math.isclose(wavelengths[0], 2 * math.pi, rel_tol=1e-6) and 6e4 < wavelengths[-1] < 2e4 * math.pi,
    first=f"{wavelengths[0]:.2f} tokens",
    last=f"{wavelengths[-1]:,.0f} tokens",
)

# %% [markdown]
# ### Exercise 8.2 · The table without loops
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# Two loops are slow. Write the table from `torch.arange`, `sin` and `cos`, with no loop over positions or columns, and without the library's functions. The check compares four digits.


# %% nbgrader={"grade": false, "grade_id": "ex08-2-position-table", "locked": false, "schema_version": 3, "solution": true, "task": false}
def position_table(length, width):
    """Sines and cosines of each position.

    Args:
        length: L, number of positions, from 0.
        width: D, even.

    Returns:
        (L, D) with sin(i / 10000^(2n/D)) in column 2n and the cosine in column 2n + 1.
    """
    ### BEGIN SOLUTION
    speeds = 10000 ** (-torch.arange(0, width, 2) / width)  # (D/2,)
    angles = torch.arange(length)[:, None] * speeds  # (L, D/2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-2-position-table-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch08.position_table(position_table)

# %% [markdown]
# One module does all of it: it computes the table once, without loops, and adds its rows. `register_buffer` makes the table a *buffer*: it belongs to the model, but is not trained. It is not saved either (`persistent=False`), since it can be computed again:


# %%
class Sines(nn.Module):
    def __init__(self, d_model, max_len):
        super().__init__()
        i = torch.arange(max_len)[:, None]  # (L, 1): positions
        omega = 10000 ** (-torch.arange(0, d_model, 2) / d_model)  # (D/2,): speeds
        P = torch.zeros(max_len, d_model)  # (L, D)
        P[:, 0::2] = torch.sin(i * omega)  # even columns
        P[:, 1::2] = torch.cos(i * omega)  # odd columns
        self.register_buffer("P", P, persistent=False)

    def forward(self, x):  # (B, T, D)
        return x + self.P[: x.shape[1]]


same = torch.allclose(Sines(d_model=32, max_len=100).P, waves, atol=1e-4)
print("the table of the figure:", same)

# %% [markdown]
# The library has it as `Sinusoidal`. Vaswani et al. found nearly the same BLEU with a learned table. They took sines because the model "may" go on with them to texts longer than those of training; section 8 puts that to the test. And a model might learn from them to look a fixed number of words back, at any position. Why should that be easy with sines?

# %% [markdown]
# ## 4 · Why sines: a shift is one matrix
#
# Queries and keys are linear maps of the inputs. If a head is to find "the word three back", it helps if $P_{i-3}$ is a linear function of $P_i$, the *same* one for every $i$. With clocks it is: between two positions at a fixed distance, each hand turns by a fixed angle. Before you derive the matrix, see that it exists: least squares looks for one that shifts the first rows by three, and we test it on others.

# %%
exact = sinusoidal_table(100, 8, dtype=torch.float64)  # (L, D)
shift = torch.linalg.lstsq(exact[:50], exact[3:53]).solution  # (D, D)
off_by = exact[50:-3] @ shift - exact[53:]  # at positions it has not seen
print(f"largest error at positions 50 to 96: {off_by.abs().max():.6f}")
figures.shift(shift)

# %% tags=["fold"]
# @title What kind of matrix it is
on_diagonal = torch.block_diag(*[torch.ones(2, 2)] * 4).bool()
claim(
    "One matrix, found on positions 0 to 49, shifts the positions 50 to 96 by 3 as well.",
    torch.allclose(exact[50:-3] @ shift, exact[53:], atol=1e-8),
)
claim("It holds 2 x 2 blocks on the diagonal and zeros elsewhere.", shift[~on_diagonal].abs().max() < 1e-6)

# %% [markdown]
# ### Exercise 8.3 · Derive the shift
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# On paper: with $\sin(\alpha + \beta) = \sin\alpha \cos\beta + \cos\alpha \sin\beta$ and its like for the cosine, find the 2 × 2 block that takes the row $(\sin\alpha, \cos\alpha)$ to the row $(\sin(\alpha+\beta), \cos(\alpha+\beta))$. Then put the blocks together. The row stands to the left of the block, so the block is the transpose of the one that you would write to the left of a column. Derive it, do not let a solver find it.


# %% nbgrader={"grade": false, "grade_id": "ex08-3-shift-matrix", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shift_matrix(delta, width):
    """The matrix R with P[i + delta] = P[i] @ R for every position i of the sinusoidal table.

    Args:
        delta: int, the shift; it may be negative.
        width: D, even.

    Returns:
        (D, D), blocks of 2 x 2 on the diagonal.
    """
    ### BEGIN SOLUTION
    blocks = []
    for n in range(width // 2):
        beta = torch.tensor(delta / 10000 ** (2 * n / width))
        blocks.append(torch.stack([beta.cos(), -beta.sin(), beta.sin(), beta.cos()]).view(2, 2))
    return torch.block_diag(*blocks)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex08-3-shift-matrix-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch08.shift_matrix(shift_matrix)

# %% [markdown]
# <details><summary>The derivation</summary>
#
# Let $\alpha = i\,\omega_n$ and $\beta = \delta\,\omega_n$. At position $i + \delta$ clock $n$ stands at $\alpha + \beta$. The two addition theorems are the two columns of one product:
#
# $$ \big( \sin(\alpha + \beta), \; \cos(\alpha + \beta) \big) = \big( \sin\alpha, \; \cos\alpha \big) \begin{pmatrix} \cos\beta & -\sin\beta \\ \sin\beta & \cos\beta \end{pmatrix} . $$
#
# The block holds $\beta$ and not $\alpha$: it is the same at every position $i$. One such block for each clock, along the diagonal, is the whole matrix.
# </details>
#
# Every block is a rotation, by the angle $\delta\,\omega_n$ of its clock. And since $\sin a \sin b + \cos a \cos b = \cos(a - b)$, the dot product of two rows depends on their distance alone, $P_i \cdot P_{i+\delta} = \sum_n \cos(\delta\,\omega_n)$, wherever they stand:

# %%
rows = sinusoidal_table(200, 128)
products = rows @ rows.T  # (L, L)
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
# So a table of sines *holds* the distance. But between it and the scores stand word vectors and learned projections, and a head must find the rotation by training. Can the distance be put into the scores directly? **This is a good place for a break.**

# %% [markdown]
# ## 5 · Relative bias: one number for each distance
#
# In most sentences it matters that an adjective stands *just before* a noun, not that it is word 17. So add to each score one learned number for its distance $\delta = j - i$, which is negative for a key before the query. For five tokens, and numbers for the distances -2 to 2:

# %%
delta = torch.arange(5) - torch.arange(5)[:, None]  # (T, S): j - i
clipped = delta.clamp(-2, 2)  # beyond 2, all distances count as 2
b = torch.tensor([-1.0, 2.0, 0.0, -1.0, -2.0])  # one number for -2, -1, 0, 1, 2
bias = b[clipped + 2]  # (T, S)
print(delta, bias, bias.softmax(dim=-1), sep="\n")

# %% [markdown]
# The last matrix shows the weights if all words fit equally well: from the second row on, this head looks one word back, wherever the word stands. In general, for head $h$ and distances clipped at $M$ (T5, Raffel et al. 2020, in a simpler form):
#
# $$ a_{ij} = \frac{q_i \cdot k_j}{\sqrt K} + b_{h,\,\mathrm{clip}(j - i)}, \qquad \mathrm{clip}(\delta) = \max(-M, \min(M, \delta)). $$
#
# The table $b$ is $(H, 2M + 1)$. The library's two functions take the `T` queries to be the *last* of the `S` positions: a model that generates text keeps earlier keys and computes new queries only.

# %%
show_source(relative_positions, RelativeBias.bias)

# %% tags=["fold"]
# @title Two heads with M = 4, set by hand
relative = RelativeBias(num_heads=2, max_distance=4)
with torch.no_grad():
    one_back = [-2.0, -1.5, 0.0, 2.0, 0.0, -1.0, -1.5, -2.0, -2.0]  # for -4 to 4
    relative.weight[0] = torch.tensor(one_back)
    relative.weight[1] = torch.linspace(-2, 2, 9)
biases = relative.bias(8, 8).detach()  # (H, T, S)
figures.relative_biases(biases)
claim(
    "The bias depends on $j - i$ alone.",
    all(
        bool((biases.diagonal(d, 1, 2) == biases[:, max(-d, 0), max(d, 0)][:, None]).all())
        for d in range(-7, 8)
    ),
)
claim("For 3 queries with 5 earlier keys it is the last 3 rows.", torch.equal(relative.bias(3, 8), biases[:, -3:]))

# %% [markdown]
# The number is the same whatever the words. Could the *words'* product depend on the distance too, with nothing to learn?

# %% [markdown]
# ## 6 · RoPE: turn queries and keys
#
# Su et al. (2021) ask for a score in which positions enter only as the distance $j - i$, for any query and any key. Clocks do it again: if two hands turn by the same angle, the angle between them stays. This time no vector is added to the word. A pair of numbers of the query is a point in a plane, and it is **turned** by an angle that grows with its position; the key is turned likewise. Take one pair, and one radian a position:

# %%
def rotation(angle):
    c, s = math.cos(angle), math.sin(angle)
    return torch.tensor([[c, -s], [s, c]])


query, key = torch.tensor([1.0, 0.2]), torch.tensor([-0.8, 0.5])
for i, j in ((1, 0), (4, 3), (0, 1), (5, 2)):
    score = (rotation(i) @ query) @ (rotation(j) @ key)
    print(f"query at {i}, key at {j}: {score:.3f}")

# %%
figures.turned(RoPE(head_dim=2), query[None], key[None], places=((1, 0), (4, 3)))

# %% [markdown]
# Positions (1, 0) and (4, 3) give the same score; (0, 1) another: before and after differ. A query of width $K$ has $K / 2$ pairs, and pair $n$ turns by $\theta_{in} = i\,\omega_n$ with $\omega_n = 10000^{-2n/K}$:
#
# $$ \begin{pmatrix} y_{2n} \\ y_{2n+1} \end{pmatrix} = \begin{pmatrix} \cos\theta_{in} & -\sin\theta_{in} \\ \sin\theta_{in} & \cos\theta_{in} \end{pmatrix} \begin{pmatrix} x_{2n} \\ x_{2n+1} \end{pmatrix}. $$
#
# All pairs together are one block diagonal matrix $R_i$ $(K, K)$. It holds the same numbers as section 4's matrix; there it multiplied rows from the right. Turning back undoes turning, $R_i^\top R_i = I$, and two turns add up. So, with queries and keys as columns,
#
# $$ (R_i\,q)^\top (R_j\,k) = q^\top R_i^\top R_j\,k = q^\top R_{j-i}\,k: $$
#
# only the *difference* of the positions is left.
#
# ### Exercise 8.4 · RoPE's rotation
#
# Difficulty ●●●○○ · 25 minutes · needs section 6
#
# Rotate all pairs of all heads at once, without the library's `RoPE`: sines, cosines, and the two lines of the matrix. The offset is the position of the first vector. The check compares four digits.


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
# The library takes a pair as one complex number $x_{2n} + \mathrm{i}\,x_{2n+1}$. A turn by $\theta$ is then one product, with $e^{\mathrm{i}\theta}$. Its `rotate` also takes the positions, since a model with a cache does not begin at 0, and computes half-precision numbers in single precision:

# %%
show_source(RoPE.rotate)

# %% tags=["fold"]
# @title Check: what the scores depend on
set_seed(3)
rope = RoPE(head_dim=8)
one_query, one_key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
turned_queries = rope.rotate(one_query.expand(1, 1, 40, 8))[0, 0]  # at 40 positions
turned_keys = rope.rotate(one_key.expand(1, 1, 40, 8))[0, 0]
scores = turned_queries @ turned_keys.T  # (40, 40)
claim(
    "The score depends on $j - i$ alone, and differs between before and after; no vector changes its length.",
    all(torch.allclose(scores.diagonal(d), scores.diagonal(d)[0], atol=1e-4) for d in range(-39, 40))
    and abs(scores[0, 1] - scores[1, 0]).item() > 0.01
    and torch.allclose(turned_queries.norm(dim=1), one_query.norm()),
    key_one_before=scores[1, 0],
    key_one_after=scores[0, 1],
)
speeds = rope_angles(torch.tensor(1.0), 8).tolist()  # of the four pairs
by_matrices = [rotation(5 * speed) @ one_query[0, 0, 0, 2 * n : 2 * n + 2] for n, speed in enumerate(speeds)]
claim(
    "The complex product turns each pair as the 2 x 2 matrix does.",
    torch.allclose(turned_queries[5], torch.cat(by_matrices), atol=1e-5),
)

# %% [markdown]
# With $K = 8$ there are four pairs, so four clocks. Move the query and the key, then both together: which hands turn, and what stays? **By how many tokens must the distance change until the first clock shows nearly the same angle again, and which clock tells the two distances apart?**

# %% tags=["fold"]
# @title Interactive: four clocks and one score
from course_lib.notebook import interactive

interactive.rope_angles()

# %% [markdown]
# The first clock needs 6 tokens ($2\pi \approx 6.28$); distances 1 and 7 look nearly alike on it, but on the second clock, which turns by 0.1 radians a token, they are 0.6 radians apart. RoPE acts on queries and keys in every layer, never on values: what is passed on is content. It has no parameters and no table. It turns every query and key, though, in every layer. Is there anything simpler that still puts the distance into the score?

# %% [markdown]
# ## 7 · ALiBi: near is better
#
# Press et al. (2022) add a number to each score as well, but learn nothing: each head lowers its scores in proportion to the distance. What does the last of six words see, if all fit equally well, with a steep slope and with a flat one?

# %%
distance = torch.tensor([[abs(i - j) for j in range(6)] for i in range(6)])  # (T, S)
for slope in (1 / 2, 1 / 16):
    weights = (-slope * distance).softmax(dim=-1)  # (T, S)
    print(f"slope {slope:6.4f}:", weights[5])

# %% [markdown]
# In the softmax a penalty of $m\,|i - j|$ becomes a factor $e^{-m|i - j|}$: a window that fades out. The steep head reads mostly the last few words, the flat one all six nearly alike. With $H$ a power of two, head $h$ has its own slope $m_h$:
#
# $$ a_{ij} = \frac{q_i \cdot k_j}{\sqrt K} - m_h\,|i - j|, \qquad m_h = 2^{-8h/H}, \quad h = 1, \ldots, H. $$

# %%
some_slopes, one_bias = alibi_slopes(8)[[0, 2, 4, 7]], ALiBi(8).bias(8, 8)[1]
figures.alibi(some_slopes, one_bias)

# %% [markdown]
# Their models are causal. The symmetric $|i - j|$ is the form for encoders; it cannot tell left from right.
#
# ### Exercise 8.5 · ALiBi's bias
#
# Difficulty ●●○○○ · 15 minutes · needs section 7
#
# Write the bias for all heads at once, in the symmetric form, without `ALiBi` and `alibi_slopes`. Remember the cache: the `T` queries are the *last* of the `S` positions.


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
# ### One interface for all
#
# Five schemes, each at one of the three points of the picture at the top of the chapter. So the library has three methods, and a scheme overrides one of them:

# %%
show_source(PositionScheme)

# %% [markdown]
# `MultiHeadAttention(..., position=scheme)` calls `rotate` and `bias` and never asks which scheme it has. Here are all five:

# %%
schemes = {
    "sinusoidal": Sinusoidal(d_model=64, max_len=512),
    "learned": LearnedPositions(d_model=64, max_len=512),
    "relative bias": RelativeBias(num_heads=8, max_distance=32),
    "RoPE": RoPE(head_dim=8),
    "ALiBi": ALiBi(num_heads=8),
}

# %% tags=["fold"]
# @title The five schemes: where they enter, what they learn
points = {"sinusoidal": "add", "learned": "add", "relative bias": "bias", "RoPE": "rotate", "ALiBi": "bias"}
broken = {}  # of each scheme, the largest entry of f(permuted x) - permuted f(x)
set_seed(5)
for name, scheme in schemes.items():
    with torch.no_grad():
        if name == "relative bias":
            nn.init.normal_(scheme.weight)  # it starts at zero: no position
        own = None if points[name] == "add" else scheme  # added ones are no part of it
        layer = MultiHeadAttention(64, 8, position=own)
        broken[name] = gap(lambda inputs, scheme=scheme, layer=layer: layer(scheme.add(inputs)), torch.randn(1, 6, 64))
table(
    ["scheme", "enters at", "learned numbers", "longest sequence"],
    [
        [
            name,
            points[name],
            number_of_parameters(scheme),
            "any (this table ends at 512)" if name == "sinusoidal" else scheme.max_len or "any",
        ]
        for name, scheme in schemes.items()
    ],
)
claim("Each of the five breaks the equivariance of attention.", all(g > 1e-3 for g in broken.values()), **broken)

# %% [markdown]
# So one line puts RoPE into the reader from the start of the chapter, and nothing is added to its embeddings:

# %%
set_seed(0)
rotated = Reader(len(vocab))
rotated.attend = MultiHeadAttention(32, num_heads=4, position=RoPE(head_dim=8))
rotated_accuracy = train_reader(rotated, epochs=6)

# %% tags=["fold"]
# @title The reader with RoPE
claim(
    "In this run, with RoPE, the same reader is right on more than 8 of 10 new reviews.",
    rotated_accuracy > 0.8,
    accuracy=rotated_accuracy,
)

# %% [markdown]
# Both readers see the order, one with a table, one without. So which scheme should you take? Three need no row for each position, and a table of sines can be made as long as you like. Are they also *good* at any length?

# %% [markdown]
# ## 8 · Longer than trained
#
# What tells the schemes apart is **length extrapolation**: train on short sequences, test on longer ones. Our reviews are too short for that. So here are two tasks, one for each of two things that positions are used for:
#
# - **fixed distance:** random tokens; at each position, name the token three positions back. Only the position counts.
# - **latest value:** assignments and questions; at each question, name the value that this name was given *last*. Content finds the name, position finds the latest.

# %% tags=["fold"]
# @title An example of "latest value"
reads, says = lengths.latest_value(1, 12, torch.Generator().manual_seed(0))
table(
    ["position", *map(str, range(12))],
    [
        ["input", *lengths.words(reads[0])],
        ["answer", *("" if value < 0 else value for value in says[0].tolist())],
    ],
)

# %% [markdown]
# The model is this chapter's reader with a causal mask and an answer at each token. A scheme that enters in attention goes to `attend`, another is added first:

# %%
show_source(lengths.OneLayer)

# %% [markdown]
# It is trained for 250 steps, at a learning rate of up to 0.01, on sequences of 20 tokens, new ones at each step. Tables get 80 rows; of the learned one, rows 20 to 79 are never trained.
#
# It is tested on sequences of 80 tokens, with questions everywhere. Being causal, it scores all lengths at once: the accuracy at length $n$ is that of the questions at positions $n - 5$ to $n - 1$.
#
# We train three of the schemes now, on *latest value*: sinusoidal, RoPE and ALiBi. All do well at 20 tokens. And at 80?

# %%
guess_2 = predict("the accuracy of RoPE at 80 tokens, in % (chance: 25)", ...)

# %%
live = {}
for name in tqdm(("sinusoidal", "RoPE", "ALiBi"), leave=False):
    live[name] = lengths.one_layer("latest value", name, seed=0)

# %% tags=["fold", "reveal"]
# @title At 20, 40 and 80 tokens
chance = 1 / lengths.VALUES
at = {k: {name: row[f"accuracy at {k}x"] for name, row in live.items()} for k in (1, 2, 4)}
guess_2.compare(round(100 * at[4]["RoPE"]))
claim(
    "In this run all three are right on more than 3 of 4 questions at 20 tokens; at 40 the sinusoidal model is more than 15 points behind the other two.",
    min(at[1].values()) > 0.75 and at[2]["sinusoidal"] < min(at[2]["RoPE"], at[2]["ALiBi"]) - 0.15,
    **{f"{name} at 40": value for name, value in at[2].items()},
)
claim(
    "At 80 tokens ALiBi still answers more than 7 of 10, RoPE fewer than 4 of 10 (chance is 1 in 4).",
    at[4]["ALiBi"] > 0.7 and at[4]["RoPE"] < 0.4,
    **{f"{name} at 80": value for name, value in at[4].items()},
)

# %% [markdown]
# Is that so with other seeds, other schemes, and the other task? The ledger has six schemes, one of them none at all, on both tasks, with three seeds each (`python -m course_lib.experiments position-one-layer`). Which of them can go on, and which cannot even learn the task?

# %%
compared = ["none", "sinusoidal", "learned", "relative bias", "RoPE", "ALiBi"]
tasks = {"latest value": 1 / lengths.VALUES, "fixed distance": 1 / lengths.TOKENS}
figures.extrapolation("position-one-layer", compared, tasks)

# %% tags=["fold"]
# @title At 20 and at 80 tokens; who leads
def recorded(task, name, k, experiment="position-one-layer"):
    """Mean, lowest and highest accuracy over the seeds at k times the training length."""
    return ledger.summary(experiment, f"{task}, {name}", f"accuracy at {k}x")[:3]


latest, fixed = ({name: {k: recorded(task, name, k)[0] for k in (1, 2, 4)} for name in compared} for task in tasks)
table(
    ["three seeds", *(f"{task}, {20 * k} tokens" for task in tasks for k in (1, 4))],
    [
        [name, *("{:.2f} ({:.2f} to {:.2f})".format(*recorded(task, name, k)) for task in tasks for k in (1, 4))]
        for name in compared
    ],
)
claim(
    "At 80 tokens ALiBi has the highest mean on 'latest value', the relative bias on 'fixed distance'; neither leads on both.",
    max(latest, key=lambda name: latest[name][4]) == "ALiBi"
    and max(fixed, key=lambda name: fixed[name][4]) == "relative bias",
)
claim(
    "RoPE is right on more than 95 % at 20 tokens on both tasks, and in each seed within 7 points of chance at 80.",
    all(
        recorded(task, "RoPE", 1)[1] > 0.95 and recorded(task, "RoPE", 4)[2] < chance_of + 0.07
        for task, chance_of in tasks.items()
    ),
)

# %% [markdown]
# ### What the curves show, and what they do not
#
# - **Sinusoidal and learned** break first: past the dashed line every token carries a vector that the layer has never met. That the sines *could* be continued by a linear map does not mean that a trained model does it. On *fixed distance* the sinusoidal curve comes back in places, to almost a half at 35 tokens, and falls again; we have not looked for the cause.
# - **RoPE** lasts longer, then fails. Its scores depend on differences alone; but at 80 tokens there are differences up to 79, and the slower clocks reach angles that training never had. That is a likely cause, and why large models are stretched by *slowing the clocks* (position interpolation, Chen et al. 2023): old angles for new positions.
# - **Relative bias** keeps its number for "three back" at any length, and still loses a little. A guess that we did not test: beyond $M$ (8 here) all keys share one number, their count grows, and softmax spreads its weight over them.
# - **ALiBi** goes on where *latest counts more*. On *fixed distance* it has not learned the task even at 20 tokens, so its flat curve there is no success at extrapolation: its windows all peak at distance 0. Where the words cannot help, as here, a sum of the model's four windows can only just single out "three back", with huge weights of opposite signs (*Going deeper*); 250 steps of training did not find it.
# - **No positions**, "none" in the figure, is above chance on both tasks, though it sees hardly any order. Exercise 8.6 asks how.

# %% tags=["fold"]
# @title In each seed
claim(
    "In each seed sinusoidal and learned positions lose more than 30 points already at 1.5 times the length, on both tasks; RoPE loses less than 20.",
    all(recorded(task, name, 1)[1] - recorded(task, name, 1.5)[2] > 0.3 for task in tasks for name in ("sinusoidal", "learned"))
    and all(recorded(task, "RoPE", 1)[2] - recorded(task, "RoPE", 1.5)[1] < 0.2 for task in tasks),
)
claim(
    "On 'fixed distance' ALiBi is right on fewer than 4 of 10 at 20 tokens in each seed, the model without positions on fewer than 3 of 10 (chance is 1 in 8).",
    recorded("fixed distance", "ALiBi", 1)[2] < 0.4 and recorded("fixed distance", "none", 1)[2] < 0.3,
)

# %% [markdown]
# **How far does this carry?** These are tiny models on invented tasks, trained briefly on one length, with one learning rate for all. Press et al. (2022, figure 1) measured the perplexity of language models of 247 million parameters on WikiText-103: sinusoidal fails at once, rotary later, T5's bias later still, and ALiBi does not get worse. On *latest value* the means at 40 tokens have the same order, but the seeds of RoPE, the relative bias and ALiBi overlap, and at 30 tokens RoPE leads. But perplexity mostly rewards near words, and so does *latest value*.
#
# Kazemnejad et al. (2023), on reasoning and mathematical tasks, found that ALiBi, rotary and absolute positions all generalise poorly to longer inputs, T5's bias better, and "none", in a causal model, best. Today's large models mostly use RoPE, and train on long texts or slow the clocks. Which scheme is best is a question about the task; "ALiBi extrapolates" answers it for one of them.
#
# ### Exercise 8.6 · Explore and explain the curves
#
# Difficulty ●●●○○ · 40 minutes · needs section 8
#
# Change the first cell below: another task, scheme, number of `steps`, training `length`. Then answer in words:
#
# (a) On *latest value* the model without positions ("none") is right far more often than chance at 20 tokens. Suppose that it cannot know what is latest. What can it do with the values that a name was given, and why does this get worse with length? Predict its accuracy at 5 tokens, then look at `explored["accuracy"]`, or score your rule on sequences of `lengths.latest_value`.
#
# (b) With ALiBi, what is the weight of a matching assignment 40 positions back against one 5 positions back, for slopes 1/4 and 1/256? Which head can do *latest value*, and why does length not hurt it?
#
# (c) A colleague trains RoPE on 20 tokens, tests at 80, and concludes that rotary positions are bad. Name two things to measure or change before you agree.
#
# Stuck? `ch08.beyond_training.hint(1)`, then `hint(2)` and `hint(3)`.

# %% tags=["nbval-ignore-output"]
explored = lengths.one_layer("latest value", "none", seed=0, steps=100)
table(list(explored)[:4], [list(explored.values())[:4]])

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex08-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) It can find the assignments to the name that is asked for, by content, but has to weigh them alike: it answers with the value given most often. With one assignment so far that is right, so early places score high; the more assignments, the less the latest one weighs among them, and the accuracy falls. The rule itself, scored on 400 sequences, is right on 0.90, 0.64 and 0.48 of the questions around 5, 20 and 40 tokens, where the models have 0.92, 0.62 and 0.46: so the vote explains the curve.
#
# (b) The factor between them is $e^{-35 m}$: with $m = 1/4$ about 0.0002, so the near one wins as if alone; with $m = 1/256$ about 0.87, so both count nearly alike. A steep head does the task: for it, everything beyond some 20 tokens has no weight, so a longer sequence looks like a short one. The flat ones average over many old values, and there length hurts.
#
# (c) For instance: train on 80 (does RoPE fail there? then it is not extrapolation); slow the clocks (divide positions by 4) at test time, or take a larger base in training; vary training lengths; more steps or seeds; other tasks; the accuracy by the *distance* of what is asked for instead of by length. Good arguments say which cause each measurement would rule out.
# ### END SOLUTION

# %% [markdown]
# When you have written your answer, paste it in place of the three dots. Nobody marks it: from 20 words on you are told what a good answer contains, and you compare.

# %%
ch08.beyond_training.compare(...)

# %% [markdown]
# On *fixed distance* a simple rule scores like the model without positions: name the token that was seen most often so far. Of eight tokens that one is right more often than chance.

# %% tags=["fold"]
# @title The model without positions, beside that rule
tokens, answers = lengths.fixed_distance(2000, 80, torch.Generator().manual_seed(0))
voted = F.one_hot(tokens, lengths.TOKENS).cumsum(1).argmax(-1) == answers  # the token seen most often
vote = {end: voted[:, end - 5 : end].float().mean().item() for end in (20, 40, 80)}
claim(
    "Naming the token seen most often so far scores within 4 points of the model without positions on 'fixed distance', at 20, 40 and 80 tokens.",
    all(abs(vote[20 * k] - fixed["none"][k]) < 0.04 for k in (1, 2, 4)),
    **{f"vote at {end}": share for end, share in vote.items()},
)

# %% [markdown]
# ## 9 · Errors you will meet
#
# Three mistakes are common when a scheme is used. Only the second raises an error; with the others every shape fits, and the model runs.
#
# **Each new token stands at the start.** A model that generates text keeps the keys of earlier tokens in a *cache* (chapter 13) and computes one new token at a time. The scheme must be told where that token stands: `offset`. The test that finds such a mistake: *in parts equals at once*. Use it now.

# %% [markdown]
# ### Exercise 8.7 · Find the bugs of a cache
#
# Difficulty ●●●○○ · 25 minutes · needs section 6
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
        cache: (B, H, past, K) the keys of earlier tokens, as this function returned them; past may be 0.
        rotate: function of (x, offset), RoPE's rotation.

    Returns:
        scores: (B, H, T, past + T), divided by sqrt(K).
        cache: (B, H, past + T, K).
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
# **A table that does not move.** In [d2l's `PositionalEncoding`](https://d2l.ai/chapter_attention-mechanisms-and-transformers/self-attention-and-positional-encoding.html) the table is a plain attribute, `self.P = ...`. `model.to(device)` and `model.bfloat16()` leave it behind. d2l moves it to the device in each forward pass, but its type stays `float32`: so does the sum's, and the next layer fails. A buffer moves with its module, as in section 3's `Sines`:


# %%
class PlainTable(nn.Module):  # wrong
    def __init__(self, d_model, max_len):
        super().__init__()
        self.P = sinusoidal_table(max_len, d_model)

    def forward(self, x):
        return x + self.P[: x.shape[1]]


for places in (PlainTable(8, 10), Sines(8, 10)):  # wrong, repaired
    model = nn.Sequential(places, nn.Linear(8, 8)).bfloat16()
    try:
        print("buffer:", model(torch.zeros(1, 5, 8, dtype=torch.bfloat16)).dtype)
    except RuntimeError as error:
        print("plain attribute:", str(error)[:42], "...")

# %% [markdown]
# **Embeddings that are swamped.** The sinusoidal table's rows have length $\sqrt{D/2}$. Embeddings that share their table with the output layer often start with variance $1/D$, so that their rows have length 1. Vaswani et al. (2017, section 3.4) multiply them by $\sqrt D$ before adding. Without the factor, two different words at one position are nearly the same vector:

# %%
generator = torch.Generator().manual_seed(0)
two_words = torch.randn(2, 1, 256, generator=generator) / math.sqrt(256)
for scale in (1, math.sqrt(256)):  # wrong, repaired
    placed = scale * two_words + sinusoidal_table(61, 256)[[10, 60]]  # (word, place, D)
    same_word = F.cosine_similarity(placed[0, 0], placed[0, 1], dim=0)
    same_place = F.cosine_similarity(placed[0, 0], placed[1, 0], dim=0)
    print(f"scale {scale:2.0f}: same word {same_word:.2f}, same place {same_place:.2f}")

# %% [markdown]
# ## Summary
#
# 1. Attention without positions is permutation-equivariant: permuted tokens give permuted outputs, and the mean of the outputs does not change. A causal mask breaks this, coarsely.
# 2. Positions enter at one of three points: added to the embeddings (learned, sinusoidal), turning queries and keys (RoPE), added to the scores (relative bias, ALiBi).
# 3. The sinusoidal table is a row of clocks: a shift by $\delta$ is one rotation for all positions. RoPE builds that rotation into the score, so that only $j - i$ counts.
# 4. Tables end, and untrained rows mean nothing. Without a table a model can still fail at distances that it never saw. Which scheme extrapolates depends on the task.
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
# - P. Shaw, J. Uszkoreit, A. Vaswani, *Self-attention with relative position representations*, NAACL 2018, arXiv:1803.02155: section 3.2 (clipped distances; a learned vector is added to the key, where T5 adds a number to the score).
# - C. Raffel et al., *Exploring the limits of transfer learning with a unified text-to-text transformer* (T5), JMLR 2020, arXiv:1910.10683: section 2.1 (relative bias; far distances share numbers in buckets that widen logarithmically; the scores are not divided by $\sqrt K$, the query weights start smaller by that factor instead).
# - J. Su et al., *RoFormer: enhanced transformer with rotary position embedding*, 2021, arXiv:2104.09864: equations 12 to 16 (the rotation, and why only the distance is left).
# - O. Press, N. Smith, M. Lewis, *Train short, test long: attention with linear biases enables input length extrapolation*, ICLR 2022, arXiv:2108.12409: section 3 (slopes), figure 1 (extrapolation).
# - A. Haviv et al., *Transformer language models without positional encodings still learn positional information*, Findings of EMNLP 2022, arXiv:2203.16634.
# - A. Kazemnejad et al., *The impact of positional encoding on length generalization in transformers*, NeurIPS 2023, arXiv:2305.19466: the comparison, and theorems 1 and 2 (what a causal model without positions can compute).
# - S. Chen et al., *Extending context window of large language models via positional interpolation*, 2023, arXiv:2306.15595: section 2.3.
# - Videos: *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30, why order must be put back in; *Attention and the Transformer*, practicum, https://www.youtube.com/watch?v=f01J0Dri-6k, the same in code.

# %% [markdown]
# ## Going deeper
#
# Optional, in any order.
#
# - *Can a causal mask count?* With a mark at the start.
# - *Can ALiBi point three back?* The best mixture of its windows.
# - *Does it hold for a Transformer?* Two layers, more steps.
# - *Which entries make a pair?* Two forms of RoPE, and how weights move from one to the other.
# - *Has RoPE really no longest length?* Angles in `float32`.
# - *What moves, and what is saved?* Buffers on the device `meta`.

# %% [markdown] tags=["deeper"]
# ### Can a causal mask count?
#
# A query at position $i$ sees $i + 1$ keys. Suppose the first token is a mark, `<sos>`, with value 1, and all others have value 0. A head that looks at everything equally ($q = 0$) then gives $\frac{1}{i + 1}$: the position can be read off. Without a mark, and with equal tokens, it cannot.

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
# Haviv et al. (2022) trained causal language models without any positions: they come close to those with positions, and a probe reads the position off their inner layers. An encoder, which sees both sides and is trained to fill in masked words, fails without them. And a count is a coarse clock: far out, $1/(i+1)$ hardly moves.

# %% [markdown] tags=["deeper"]
# ### Can ALiBi point three back?
#
# Whatever its slope, ALiBi's window peaks at distance 0. Can a *sum* of the model's four windows single out "three back"? Here is the best mixture, by least squares. The token itself may take part too, since the layer adds its input to its output.

# %%
back = torch.arange(20, dtype=torch.float64)
windows = (-alibi_slopes(4).double()[:, None] * back).softmax(-1)  # (H, 20)
itself = (back == 0).double()[None]  # the token itself, by the residual
windows = torch.cat([windows, itself])
wanted = (back == 3).double()[:, None]
mix = torch.linalg.lstsq(windows.T, wanted).solution  # (H + 1, 1)
share = (windows.T @ mix)[:, 0]  # of the token at each distance, in the best mixture

# %%
guess_3 = predict("the share of the token three back, from 0 to 1 (wanted: 1)", ...)

# %% tags=["fold", "reveal"]
# @title What the best mixture gives each distance
guess_3.compare(f"{share[3]:.2f}")
table(["distance", *map(str, range(1, 7))], [["best mixture", *share[1:7].tolist()]])
table(["slope", "1/4", "1/16", "1/64", "1/256", "the token itself"], [["weight in the mixture", *mix.flatten().tolist()]])
claim(
    "In the best sum of ALiBi's four windows the token three back has no more than a quarter of the wanted share, and its neighbours nearly as much.",
    share[3] < 0.25 and share[[2, 4]].min() > 0.8 * share[3],
    three_back=share[3],
)
steps_back = torch.arange(20) - torch.arange(20)[:, None]  # (T, S): j - i
seen = (alibi_slopes(4).double()[:, None, None] * steps_back).masked_fill(steps_back > 0, -math.inf).softmax(-1)
mixture = (mix[:4, :, None] * seen).sum(0) + mix[4] * torch.eye(20)  # (T, S): the same, for each query
sequences, answers = lengths.fixed_distance(2000, 20, torch.Generator().manual_seed(0))
named = (mixture @ F.one_hot(sequences, lengths.TOKENS).double()).argmax(-1)  # the token with the largest share
right = (named == answers)[:, 15:].double().mean().item()  # the last five places, as in section 8
claim(
    "Used to name the token with the largest share, this sum is right on more than 4 of 10 at 20 tokens, more often than the trained model with ALiBi in any of its three seeds; but two of its weights are above 300, with opposite signs.",
    right > max(0.4, recorded("fixed distance", "ALiBi", 1)[2]) and mix.min() < -300 and mix.max() > 300,
    right=right,
)

# %% [markdown]
# So a sum can only just point three back: its peak hardly stands out, and it is the small rest of huge weights that nearly cancel. 250 steps of training did not find it. All this is for windows that do not depend on the words. In this task the tokens are random, so the words' products cannot sharpen them in the right place. A steeper slope or more steps might give a little more; that we did not measure.

# %% [markdown] tags=["deeper"]
# ### Does it hold for a Transformer?
#
# The same tasks for a model of two layers with feed-forward networks (chapter 09), 400 steps, three seeds (`python -m course_lib.experiments position-extrapolation`):

# %%
figures.extrapolation("position-extrapolation", compared, tasks)

# %% tags=["fold"]
# @title What changes, and what does not
two_layers = {
    task: {name: [recorded(task, name, k, "position-extrapolation") for k in (1, 1.5, 2, 4)] for name in compared}
    for task in tasks
}
claim(
    "The leaders at 80 tokens are the same: ALiBi on 'latest value', the relative bias on 'fixed distance'.",
    max(compared, key=lambda name: two_layers["latest value"][name][3][0]) == "ALiBi"
    and max(compared, key=lambda name: two_layers["fixed distance"][name][3][0]) == "relative bias",
)
claim(
    "In each seed the model without positions is right on more than 90 % of the questions of 'latest value' at 20 tokens, and learned positions on fewer than 90 % of 'fixed distance'.",
    two_layers["latest value"]["none"][0][1] > 0.9 and two_layers["fixed distance"]["learned"][0][2] < 0.9,
)

# %% [markdown]
# Two layers can do more: on *latest value* the model without positions is right on 97 to 99 % at 20 tokens. Only its mask can tell it the order. On *fixed distance* the learned table reaches only about two thirds even at 20 tokens. (The one layer above reached 100 % in fewer steps, with a learning rate three times as high.)

# %% [markdown] tags=["deeper"]
# ### Which entries make a pair?
#
# GPT-NeoX, and Llama in Hugging Face's library, pair entry $n$ with entry $n + K/2$. The paper, Llama's own code and we pair neighbours. Weights loaded from one form into the other give wrong scores, until the entries of queries and keys (the rows of $W_Q$ and $W_K$) are permuted:


# %%
def rotate_halves(x):
    """RoPE as in GPT-NeoX: entry n is paired with n + K/2."""
    first, second = x.chunk(2, dim=-1)
    theta = rope_angles(torch.arange(x.shape[-2]), x.shape[-1])  # (T, K/2)
    c, s = theta.cos(), theta.sin()
    return torch.cat([first * c - second * s, second * c + first * s], dim=-1)


set_seed(4)
rope = RoPE(head_dim=8)
q, k = torch.randn(2, 1, 3, 6, 8)  # queries and keys of 6 tokens: (B, H, T, K) each
theirs = attention_scores(rotate_halves(q), rotate_halves(k))
to_neighbours = torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
for name, entries in (("wrong", torch.arange(8)), ("repaired", to_neighbours)):
    ours = attention_scores(rope.rotate(q[..., entries]), rope.rotate(k[..., entries]))
    print(f"{name}: off by {(ours - theirs).abs().max():.2f}")

# %% [markdown] tags=["deeper"]
# ### Has RoPE really no longest length?
#
# In exact arithmetic it has none. But an angle is a position times a speed, and `float32` holds whole numbers exactly only up to $2^{24}$, about 16.8 million; angles are rounded long before. The first query and the first key of the part before, always three positions apart, further and further out:

# %% tags=["nbval-ignore-output"]
def three_apart(first):
    """Scores (B, H) of a query at first + 3 and a key at first."""
    late, early = rope.rotate(q[:, :, :1], first + 3), rope.rotate(k[:, :, :1], first)
    return (late * early).sum((-2, -1))


drift = {}
for first in (10**3, 10**5, 10**6, 2**24, 2**27):
    drift[first] = (three_apart(first) - three_apart(0)).abs().max().item()
    print(f"first position {first:>11,}: score off by {drift[first]:.4f}")

# %% tags=["fold"]
# @title Where it breaks
claim(
    "At position 1,000 the score is right to three digits; at $2^{24}$ it is off by more than a tenth.",
    drift[10**3] < 1e-3 and drift[2**24] > 0.1,
)

# %% [markdown] tags=["deeper"]
# ### What moves, and what is saved?
#
# torch's device `meta` (shapes without numbers) shows on any machine what `model.to(device)` moves. (With an odd $D$ the last sine would have no cosine; our table wants an even $D$.)

# %%
plain, ours = PlainTable(8, 10).to("meta"), Sines(8, 10).to("meta")
print("plain attribute:", plain.P.device, "| buffer:", ours.P.device)
print("saved with the model:", list(ours.state_dict()))

# %% [markdown]
# The buffer is *non-persistent*: it moves, but is not saved, since it can be computed again.
