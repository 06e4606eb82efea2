# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 240
#     needs: "chapters 05 (GRU) and 06 (attention in a decoder)"
# ---

# %% [markdown]
# # 07 · Attention
#
# A memory task. Eight pairs are shown, a letter with a digit each: `c 4`, `h 0`, `a 7`, … Then one of the letters is shown again: which digit came with it? Two models
# answer. The first is a GRU with more than 16,000 trained parameters. The second has **no parameters at all and is never trained**: one line of algebra. **Which one knows its digits?**

# %% tags=["setup"]
import math

import torch
from torch import nn
from torch.nn import functional as F

from course_lib import diagrams, gated, ledger, plots
from course_lib.attention import (
    MultiHeadAttention,
    attention,
    attention_scores,
    attention_weights,
    causal_mask,
    hard_attention,
    merge_heads,
    split_heads,
)
from course_lib.checks import ch07
from course_lib.claims import claim
from course_lib.display import markdown, show, show_source, table
from course_lib.experiments import ch07 as heads
from course_lib.explorer import explore
from course_lib.tasks import number_of_parameters
from course_lib.train import set_seed

set_seed(0)

# %%
LETTERS, PAIRS = 10, 8


def memory_task(B, generator):
    """Letters (B, 8, 10) and digits (B, 8, 10) as one-hot rows, the letter asked for (B, 10), its digit (B,)."""
    letters = torch.rand(B, LETTERS, generator=generator).argsort(1)[:, :PAIRS]
    digits = torch.randint(10, (B, PAIRS), generator=generator)
    rows, asked = torch.arange(B), torch.randint(PAIRS, (B,), generator=generator)
    one_hot = [F.one_hot(ids, 10).float() for ids in (letters, digits, letters[rows, asked])]
    return *one_hot, digits[rows, asked]


class Reader(nn.Module):
    """A GRU that reads eight pairs and a question, and tells a digit from its last state."""

    def __init__(self):
        super().__init__()
        self.gru, self.output = gated.GRU(20, 64), nn.Linear(64, 10)

    def forward(self, keys, values, query):
        question = torch.cat([query, torch.zeros_like(query)], dim=1).unsqueeze(1)  # no digit here
        x = torch.cat([torch.cat([keys, values], dim=2), question], dim=1)  # (B, 9, 20)
        return self.output(self.gru(x)[0][:, -1])


def one_line(keys, values, query):
    """Compare the question with every letter, and mix the digits accordingly."""
    return ((10 * query.unsqueeze(1) @ keys.mT).softmax(dim=-1) @ values).squeeze(1)


generator = torch.Generator().manual_seed(0)
reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), lr=5e-3)
for _ in range(200):
    *inputs, digit = memory_task(64, generator)
    loss = F.cross_entropy(reader(*inputs), digit)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

*inputs, digit = memory_task(1000, generator)
accuracy = {
    name: (model(*inputs).argmax(1) == digit).float().mean().item()
    for name, model in {"gru": reader, "one_line": one_line}.items()
}
claim(
    "After 200 updates with 64 sequences each, the GRU is right less than half of the time",
    accuracy["gru"] < 0.5,
    accuracy=accuracy["gru"],
    parameters=number_of_parameters(reader),
)
claim("The one line is right every time", accuracy["one_line"] == 1, accuracy=accuracy["one_line"])

# %% [markdown]
# The GRU must press eight pairs into one state *before* it knows what will be asked. (With a longer training it may find a way; and nobody told it that the pairs are pairs, which the one
# line has built in.) The one line keeps all pairs, and *looks up* once the question is there. That look-up is **attention**. In chapter 06 it helped a recurrent decoder; here it stands alone.

# %% [markdown]
# ## You will be able to
#
# 1. derive the numbers of a small attention by hand: weights, variance, slope (exercise 7.1);
# 2. write scaled dot-product attention with every mask and every corner case (exercise 7.2);
# 3. split a width into heads and merge it again, and say the shape on every arrow, in self- and cross-attention (exercises 7.3, 7.4);
# 4. find a mask that was lost on the way to the attention maps (exercise 7.5);
# 5. explain what saturation does, and what a head's map does and does not prove (exercise 7.6).
#
# Letters for shapes: `B` batch, `T` queries, `S` keys and values, `D` width of a model, `H` heads, `K` width of a query or key (often $D/H$; the papers write $d_k$), `E` width of a
# value. Vectors are rows, so that $x W^\top$ is what `nn.Linear` computes. Masks are boolean, **True = may attend**.

# %% [markdown]
# ## 1 · From the GRU to attention in four steps
#
# Chapter 05 ended its GRU with a surprise: its state is a *weighted sum* of all candidates it ever made. Kyunghyun Cho's course takes that sum as the starting point and frees it, one step at a time.

# %%
diagrams.show("four_steps")

# %% [markdown]
# **Step 0 · where we stand.** With update gates $z_i$ and candidates $n_i$ (both of width $D$) and $h_0 = 0$:
#
# $$ h_t = \sum_{i=1}^{t} w_{ti} \odot n_i, \qquad w_{ti} = (1 - z_i) \odot \prod_{j=i+1}^{t} z_j. $$
#
# The weights are **dependent**: they are made of each other's gates. (Slides that retell this print the weight of $n_i$ as $\prod_{j=i}^{t-i+1} z_j \prod_{k=1}^{i-1} (1 - z_k)$, and say that *hidden states* are summed. It is candidates; and at $t = 2$ that product gives
# $n_1$ the weight $z_1 z_2$ in place of $(1 - z_1)\, z_2$. The cell tries both.) **Predict:** take two old candidates, $n_1$ and $n_2$. As the GRU reads on, can it raise the weight of $n_1$ and lower that of $n_2$?

# %%
set_seed(1)
B, T, inputs, D = 2, 6, 4, 5
gru = gated.GRU(inputs, D, dtype=torch.float64)
x = torch.randn(B, T, inputs, dtype=torch.float64)
trace = {name: part.detach() for name, part in gru.trace(x).items()}
z, n, h = (trace[name] for name in "znh")  # (B, T, D) each
# (B, T, T, D): states, candidates; the weight of h_0 = 0 is left out
w = gated.unrolled_weights(z)[:, :, 1:]
claim(
    "The weighted sum of candidates is the GRU's state, to 1e-12",
    torch.allclose((w * n.unsqueeze(1)).sum(2), h, atol=1e-12),
)
t = 2
printed = torch.stack(  # the product as the slides have it; z[:, j - 1] is z_j
    [z[:, i - 1 : t - i + 1].prod(1) * (1 - z[:, : i - 1]).prod(1) for i in (1, 2)], dim=1
)  # (B, 2, D)
claim(
    "With the weights that the slides print it is not: h_2 comes out wrong by more than 0.01",
    ((printed * n[:, :2]).sum(1) - h[:, 1]).abs().max() > 0.01,
    largest_error=((printed * n[:, :2]).sum(1) - h[:, 1]).abs().max(),
)
ratio = w[:, 1:, 0] / w[:, 1:, 1]  # (B, T - 1, D): n_1 against n_2 at steps 2 .. T
claim(
    "The ratio of two weights never changes once both candidates are in",
    torch.allclose(ratio, ratio[:, :1].expand_as(ratio)),
    first_unit=ratio[0, :, 0],
)
claim("And no weight ever grows", (w[:, 1:, 0] <= w[:, :-1, 0]).all())

# %% [markdown]
# It cannot: every later gate scales *all* old weights alike. What was ranked second stays second, whatever is asked later.
#
# **Step 1 · free the weights.** Let the input of this step, $x_t$, ask each candidate how well it fits. Any function of the two may score, here $n_i W x_t^\top$ with a matrix $W$ ($D \times I$, $I$ the width of an input):
#
# $$ h_t = \sum_{i=1}^{t} \alpha_{ti}\, n_i, \qquad \alpha_{ti} = \frac{\exp a_{ti}}{\sum_{i' \le t} \exp a_{ti'}}, \qquad a_{ti} = n_i W x_t^\top. $$
#
# The product of gates is gone; a softmax keeps what was good about it: positive weights that add up to 1. One thing gets *poorer*: the GRU has one weight for each of the $D$ units, $\alpha_{ti}$ is one number for all. Step 4 will give some of that back.

# %%
W = torch.randn(D, inputs, dtype=torch.float64)
alpha = attention_weights(x @ W.T @ n.mT, causal_mask(T))  # (B, T, T)
free_weights = alpha @ n  # (B, T, D)
ratio = alpha[:, 1:, 0] / alpha[:, 1:, 1]
claim(
    "The weights of each step add up to 1, and candidates that are yet to come get none",
    torch.allclose(alpha.sum(-1), torch.ones(B, T, dtype=alpha.dtype))
    and alpha.triu(1).abs().max() == 0,
)
claim(
    "Now two old candidates can change their order: their ratio crosses 1 as the question changes",
    ((ratio.amax(1) > 1) & (ratio.amin(1) < 1)).any(),
    ratio=ratio[0],
)

# %% [markdown]
# **Step 2 · free the candidates.** $n_i$ still needs the state before it, which needs $n_{i-1}$, and so on: $T$ steps, one after the other. Use $f(x_i)$, a function of one input: $h_t = \sum_i \alpha_{ti}\, f(x_i)$.
# **Predict:** change the first input. Which candidates of the GRU change, and which $f(x_i)$?

# %%
W_f = torch.randn(D, inputs, dtype=torch.float64)


def free_candidates(x):
    """All candidates in one product: (B, T, inputs) -> (B, T, D)."""
    return torch.tanh(x @ W_f.T)


other = x.clone()
other[:, 0] += 1
changed = {
    name: [t + 1 for t in range(T) if not torch.equal(before[:, t], after[:, t])]
    for name, before, after in (
        ("n", n, gru.trace(other)["n"]),
        ("f", free_candidates(x), free_candidates(other)),
    )
}
claim("All candidates of the GRU change", changed["n"] == [1, 2, 3, 4, 5, 6])
claim("Of the free ones only the first does: they can be computed all at once", changed["f"] == [1])

# %% [markdown]
# The loop over time is gone, and with it all knowledge of order: $f(x_i)$ does not know its $i$. Chapter 08 pays for that.
#
# **Step 3 · keys and values apart.** So far one vector plays three parts: it asks, it is asked, and it is returned. If all three are $f(x)$ and the score is their dot product, two things go wrong. **Predict** both: what can you say about the matrix of scores, and where will a word look most?

# %%
set_seed(0)
f = torch.randn(20, 32, dtype=torch.float64)  # 20 positions of width 32
scores = f @ f.T  # everyone asks everyone
claim(
    "How much i fits t is how much t fits i: the scores are symmetric",
    torch.allclose(scores, scores.T),
)
claim(
    "And each word fits itself best, because a long vector's dot product with itself is largest",
    torch.equal(scores.argmax(1), torch.arange(20)),
)

# %% [markdown]
# An adjective should find its noun without the noun finding the adjective; and what makes a word *findable* need not be what it has to *say*. So three linear maps make three vectors of each input: a **query** $q_t$ (what do I look for?), a **key** $k_i$ (what
# am I found by?), a **value** $v_i$ (what do I tell?):
#
# $$ q_t = x_t W_q^\top, \quad k_i = x_i W_k^\top, \quad v_i = x_i W_v^\top, \qquad h_t = \sum_i \alpha_{ti}\, v_i, \quad \alpha_{ti} \propto \exp(q_t \cdot k_i). $$
#
# **Step 4 · heads.** One softmax gives *one* mean. Suppose *it* needs the noun **and** the adjective. With one set of weights the answer is half of each, added up: was it "tired animal" or "animal that is tired of …"? Two **heads**, each with its own $W_q, W_k, W_v$, give
# two answers, side by side: $h_t = [h_t^1; \ldots; h_t^H]$.

# %%
keys = torch.eye(4, dtype=torch.float64)
values = torch.tensor([[1.0, 0], [0, 1], [5, 5], [7, 7]], dtype=torch.float64)
first, second = 30 * keys[0], 30 * keys[1]
mixed = attention((first + second).view(1, 4), keys, values)
apart = [attention(q.view(1, 4), keys, values) for q in (first, second)]
print("one head:  ", [round(v, 3) for v in mixed[0].tolist()])
print("two heads: ", [[round(v, 3) for v in head[0].tolist()] for head in apart])

# %% [markdown]
# From the one head's answer nobody can tell that the first value was $(1, 0)$ and the second $(0, 1)$, rather than the other way round. With all four steps written out in tensors we have the layer of the library:

# %%
set_seed(2)
B, T, D, H = 2, 5, 12, 3
K = D // H
layer = MultiHeadAttention(D, H, bias=False).double()
x = torch.randn(B, T, D, dtype=torch.float64)
W_q, W_k, W_v = layer.in_proj_weight.detach().split(D)  # (D, D) each
answers = []
for head in range(H):
    rows = slice(head * K, (head + 1) * K)  # this head's K rows of each matrix
    q, k, v = (x @ W[rows].T for W in (W_q, W_k, W_v))  # (B, T, K)
    alpha = attention_weights(q @ k.mT / math.sqrt(K), causal_mask(T))  # (B, T, T)
    answers.append(alpha @ v)
by_hand = torch.cat(answers, dim=-1) @ layer.out_proj.weight.T
claim(
    "Four steps from the GRU's sum: multi-head attention, to 1e-12",
    torch.allclose(by_hand, layer(x, causal=True), atol=1e-12),
)

# %% [markdown]
# Two details are new in this cell: the division by $\sqrt K$ (section 3) and the last matrix, $W^O$, which mixes the heads (section 5).

# %% [markdown]
# ## 2 · A dictionary that you can ask softly
#
# Queries, keys and values are words of *databases*. In a recipe book the **keys** are the titles, the **values** the recipes. You come with a **query**. Python's dictionary is strict:

# %% tags=["raises-exception"]
book = {"lasagne": 90, "cannelloni": 75, "tomato soup": 30, "apple pie": 60}  # title: minutes
book["lasagna"]

# %%
diagrams.show("soft_dictionary")

# %% [markdown]
# To compare softly we need titles as vectors. Count pairs of letters (`la`, `as`, `sa`, …), scale each title to length 1, and the dot product with the query says how much two words have in common:

# %%
titles = list(book)
minutes = torch.tensor([[float(book[title])] for title in titles])  # values (S, 1)
letter_pairs = sorted({title[i : i + 2] for title in titles for i in range(len(title) - 1)})


def as_vector(word):
    """How often each pair of letters occurs: (K,)."""
    parts = [word[i : i + 2] for i in range(len(word) - 1)]
    return torch.tensor([float(parts.count(pair)) for pair in letter_pairs])


keys = F.normalize(torch.stack([as_vector(title) for title in titles]))  # (S, K)
query = as_vector("lasagna").unsqueeze(0)  # (1, K)
rows = []
for sharpness in (0, 1, 4, 16):
    weights = attention_weights(sharpness * query @ keys.T)
    rows.append([sharpness, *weights[0].tolist(), (weights @ minutes).item()])
table(["sharpness", *titles, "answer (minutes)"], rows)
claim(
    "Asked sharply, the soft dictionary answers like a strict one that forgives a misspelt title",
    abs(rows[-1][-1] - book["lasagne"]) < 0.01,
    minutes=rows[-1][-1],
)
claim(
    "Asked with sharpness 0, it returns the mean of all recipes",
    abs(rows[0][-1] - minutes.mean().item()) < 1e-4,
)

# %% [markdown]
# A mean of recipes is no recipe. Soft answers are useful where a mixture means something, as it does for vectors of features, or where training can make the weights sharp.
#
# ### Hard and soft
#
# **Hard attention** takes the value of the best key alone, $h = v_{s^*}$ with $s^* = \arg\max_s q \cdot k_s$. As a weighted sum its weights are one-hot. **Soft attention** puts a softmax in place of the argmax. (Some books write *soft(arg)max* for it, and they have a point:
# it is the argmax that is softened.) Why be soft? **Predict** the gradient of hard attention with respect to the query.

# %%
show_source(hard_attention)

# %%
set_seed(0)
k, v = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
q = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
hard, soft = hard_attention(q, k, v), attention(q, k, v)
claim(
    "Hard attention's output has no gradient function: there is nothing to train the query by",
    not hard.requires_grad,
)
step = 1e-4 * torch.eye(4, dtype=torch.float64)
with torch.no_grad():
    slopes = [
        (hard_attention(q + d, k, v) - hard_attention(q - d, k, v)).abs().max().item() for d in step
    ]
claim(
    "Not torch's fault: move the query a little, in any direction, and nothing changes",
    max(slopes) == 0,
)
soft.sum().backward()
claim("Soft attention has a slope", q.grad.norm() > 0.01, norm=q.grad.norm())

# %% [markdown]
# A piecewise constant function: flat almost everywhere, with jumps where the winner changes. Hard attention can be trained by sampling $s$ and weighing samples by their success (Xu et al. 2015, section 4.1), at the cost of noise. Soft attention needs only
# backpropagation, so nearly all models use it. (Values get gradients in both cases.)
#
# ### A worked example: four keys
#
# Keys and values of a small dictionary. Key 3 and key 4 are the same:
#
# $$ K = \begin{pmatrix} 10 & 0 & 0 \\ 0 & 10 & 0 \\ 0 & 0 & 10 \\ 0 & 0 & 10 \end{pmatrix}, \qquad V = \begin{pmatrix} 1 & 0 & 0 \\ 10 & 0 & 0 \\ 100 & 5 & 0 \\ 1000 & 6 & 0 \end{pmatrix}. $$
#
# **Predict** weights and output for three queries: equal to key 2; equal to keys 3 and 4; and $(10, 10, 0)$, between keys 1 and 2.

# %%
k = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
v = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]])
q = torch.tensor([[0.0, 10, 0], [0, 0, 10], [10, 10, 0]])
scores = attention_scores(q, k)  # (3, 4): dot products of 100 or 0, divided by sqrt(3)
weights, output = attention_weights(scores), attention(q, k, v)


def rounded(row):
    return [round(c, 4) for c in row.tolist()]


table(
    ["query", "scores", "weights", "output"],
    [
        [[int(c) for c in q[t]], *map(rounded, (scores[t], weights[t], output[t]))]
        for t in range(3)
    ],
)
claim("A query equal to one key returns its value", torch.allclose(output[0], v[1]))
claim(
    "Equal keys share the weight: the output is the mean of their values",
    torch.allclose(output[1], v[2:].mean(0)),
)
claim(
    "A query between two keys returns the mean of their values",
    torch.allclose(output[2], v[:2].mean(0)),
)
softer = attention_weights(q[:1] @ k.T / math.sqrt(64))
claim(
    "Divided by sqrt(64) instead, the first query gives each of the other keys a few millionths",
    1e-6 < softer[0, 0] < 1e-5,
    weights=softer[0],
    output=softer[0] @ v,
)

# %% [markdown]
# By hand, the first row: key 2 has the score $100 / \sqrt 3 = 57.7$, the others 0, so each of these gets $e^{-57.7}$ of key 2's weight: nothing that four digits show. The notebook from which this example comes (NYU, see the references) prints larger
# numbers, those of the last claim: it divides by $\sqrt{64}$, the head width of *its module* (512 / 8), though these vectors have width 3. And the second query cannot tell keys 3 and 4 apart: attention looks at content; which of them came first it does not know.

# %% [markdown]
# ## 3 · The scaled dot product
#
# Chapter 06 scored with a small network. The dot product needs no parameters, and for all queries and keys at once it is one matrix product, the operation that computers do best:
#
# $$ \mathrm{attention}(Q, K, V) = \mathrm{softmax}\Big( \frac{Q K^\top}{\sqrt{K}} \Big) V. $$
#
# (The letter $K$ does two jobs here: the matrix of keys, and under the root the *width* of a key, $d_k$ in equation 1 of Vaswani et al. 2017. In code they are `k` and `k.shape[-1]`.)

# %%
diagrams.show("scaled_dot_product")

# %%
show_source(attention_scores, attention_weights)

# %% [markdown]
# `bias` is for chapter 08. No activation function stands between $x$ and the scores, yet the layer is far from linear: scores are products of two projections of $x$, and the softmax follows.
#
# **Why $\sqrt K$?** Let the entries of $q$ and $k$ be independent, with mean 0 and variance 1. Each product $q_i k_i$ has mean 0 and variance 1, and $q \cdot k$ is a sum of $K$ of them: variance $K$, standard deviation $\sqrt K$. At the same time the *cosine* of
# the two vectors shrinks: their lengths are about $\sqrt K$ each, so the cosine has a standard deviation of about $\sqrt K / (\sqrt K \sqrt K) = 1 / \sqrt K$. In high dimensions random vectors are **nearly orthogonal**. **Predict:** of 1,000 random keys, how large is the cosine of the *two most similar* ones at $K = 4$, and at $K = 1024$?

# %%
widths = [4, 16, 64, 256, 1024]
generator = torch.Generator().manual_seed(0)
cosines = {}
for K in widths:
    keys = F.normalize(torch.randn(1000, K, generator=generator), dim=1)
    above = torch.ones(1000, 1000, dtype=torch.bool).triu(1)  # every pair once
    cosines[K] = (keys @ keys.T)[above]
left, right = plots.grid(1, 2, height=3.0)[0]
for K, kind in ((4, "muted"), (64, "input"), (1024, "attention")):
    heights, edges = torch.histogram(cosines[K], bins=160, range=(-1, 1), density=True)
    left.stairs(heights, edges, color=plots.COLORS[kind], label=f"K = {K}", linewidth=1.8)
left.set(xlabel="cosine of two random keys", ylabel="density")
left.legend(loc="upper left", fontsize=9)
largest = [cosines[K].max().item() for K in widths]
right.plot(widths, largest, color=plots.COLORS["gradient"], marker="s")
right.plot(widths, [cosines[K].std().item() for K in widths], color=plots.COLORS["attention"], marker="o")
right.annotate("most similar\nof 1,000 keys", (64, largest[2]), (6, 8), textcoords="offset points", fontsize=9)
right.text(4, 0.05, "standard\ndeviation", fontsize=9)
right.set_xscale("log", base=4)
right.set_xticks(widths, widths)
right.set(xlabel="width K", ylabel="cosine", ylim=(0, 1.05))
show(
    left,
    alt="Left, the distribution of the cosine of two random keys: broad at K = 4, narrow around 0 at K = 64, a needle at K = 1024. Right, over K "
    "from 4 to 1024: its standard deviation falls from one half towards 0, and the cosine of the two most similar of 1,000 keys falls from 1 to below one quarter.",
    caption="How orthogonal are random vectors? The wider, the more: the spread of the cosine falls as $1/\\sqrt K$, and of 1,000 wide keys no two are alike.",
)
claim(
    "From K = 4 to K = 1024 the cosine's standard deviation is 1 / sqrt(K), within a twentieth",
    all(abs(cosines[K].std().item() * K**0.5 - 1) < 0.05 for K in widths),
    std=[cosines[K].std() for K in widths],
)
claim(
    "Of 1,000 keys the two most similar have a cosine above 0.95 at K = 4 and below 0.25 at K = 1024",
    largest[0] > 0.95 and largest[-1] < 0.25,
    largest=largest,
)

# %% [markdown]
# Good news for a dictionary: many keys fit into a wide space without getting in each other's way, far more than $K$ of them nearly so. The bad news is the other half of the argument: undivided *scores* grow. **Predict:** without the division, how much of the weight will the largest of 32 random keys get at $K = 1024$?

# %%
drawn = [heads.softmax_by_width(width, 200, 32, generator) for width in widths]
ways = ("without", "with the root")
columns = ["score_std", "largest", "choices", "slope", "flat"]
for way in ways:
    markdown(f"**{way}**" if way == "with the root" else "**without the root**")
    table(
        ["K", *columns],
        [[K, *(row[way][c] for c in columns)] for K, row in zip(widths, drawn, strict=True)],
    )
claim(
    "Undivided scores have a standard deviation of sqrt(K), within a tenth; divided ones of 1",
    all(
        abs(row["without"]["score_std"] / K**0.5 - 1) < 0.1
        and abs(row["with the root"]["score_std"] - 1) < 0.1
        for K, row in zip(widths, drawn, strict=True)
    ),
)

# %% [markdown]
# `largest` is the mean of the largest weight, `choices` the exponential of the entropy (as many equal weights would be as undecided, chapter 01). `slope` is how much the weights answer to the scores: the norm of the softmax's Jacobian
#
# $$ J_{ij} = \frac{\partial w_i}{\partial a_j} = w_i\,(\delta_{ij} - w_j), $$
#
# through which *every* gradient to queries and keys must pass; $\delta_{ij}$ is 1 for $i = j$ and 0 otherwise. If one weight is 1 and the others are 0, every entry is 0: the softmax is **saturated**. `flat` is the share of queries whose slope is less than a hundredth of that of uniform weights.
# The recorded runs, three seeds:

# %%
panels = plots.grid(1, 3, height=3.0)[0]
for ax, metric, ylabel in zip(
    panels,
    ("largest", "slope", "flat"),
    ("largest weight", "slope |J|", "share of flat queries"),
    strict=True,
):
    for way, color in zip(ways, ("gradient", "attention"), strict=True):
        runs = ledger.values("attention-scaling", way, metric)
        name = "without the root" if way == "without" else way
        plots.band(ax, widths, runs, name, color, marker="o")
    ax.set_xscale("log", base=4)
    ax.set_xticks(widths, widths)
    ax.set(xlabel="width K", ylabel=ylabel)
    ax.set_ylim(0, None)
panels[1].legend(loc="lower left", fontsize=9)
show(
    panels[0],
    alt="Three panels over the width K from 4 to 1024. Without the root the largest weight rises towards 1, the slope falls "
    "and the share of flat queries rises; with the root all three stay level.",
    caption="What does the division by $\\sqrt K$ prevent? Without it the softmax of a wide model starts almost one-hot, and its slope vanishes; "
    "with it all widths start alike (bands: three seeds).",
)
recorded = {
    (way, metric): ledger.values("attention-scaling", way, metric)
    for way in ways
    for metric in ("largest", "slope", "flat")
}
claim(
    "Live: at K = 1024 the largest of 32 weights is above 0.9 without the root and below 0.25 with it",
    drawn[-1]["without"]["largest"] > 0.9 and drawn[-1]["with the root"]["largest"] < 0.25,
    without=drawn[-1]["without"]["largest"],
    with_root=drawn[-1]["with the root"]["largest"],
)
claim(
    "In every recorded seed the slope more than halves from K = 16 to 1024; with the root it keeps nine tenths",
    all(run[-1] < run[1] / 2 for run in recorded["without", "slope"])
    and all(run[-1] > 0.9 * run[1] for run in recorded["with the root", "slope"]),
    without=[run[-1] / run[1] for run in recorded["without", "slope"]],
    with_root=[run[-1] / run[1] for run in recorded["with the root", "slope"]],
)
claim(
    "Without it most queries are flat at K = 1024; with it none is, at any width",
    all(run[-1] > 0.5 for run in recorded["without", "flat"])
    and all(max(run) == 0 for run in recorded["with the root", "flat"]),
    share=[run[-1] for run in recorded["without", "flat"]],
)

# %% [markdown]
# Two cautions. The argument is about the *start*, when queries and keys are unrelated; a trained model may make its scores as large as it likes, and often does. And the assumption matters: exercise 7.1 (c) has other variances. (Additive attention needs no such division: each of its hidden units is bounded by the tanh, however wide the queries.)
#
# **Common mistake · softmax over the wrong axis.** In a square matrix of scores `softmax(dim=-2)` raises no error:

# %%
set_seed(0)
q, k, v = (torch.randn(5, 4) for _ in range(3))
wrong = attention_scores(q, k).softmax(dim=-2)  # over the queries
claim(
    "Its rows do not add up to 1",
    not torch.allclose(wrong.sum(-1), torch.ones(5), atol=0.05),
    sums=wrong.sum(-1),
)
right = attention_weights(attention_scores(q, k))
claim(
    "Over the last axis they do, and v = 1 everywhere comes out as 1",
    torch.allclose(right @ torch.ones(5, 1), torch.ones(5, 1)),
)

# %% [markdown]
# That last line is a good habit: *a mean of ones is one*. It finds a wrong axis, a lost normalisation and a wrong mask in one go.

# %% [markdown]
# ### Exercise 7.1 · Numbers by hand
#
# Difficulty ●●●○○ · 30 minutes · needs sections 2 and 3
#
# With paper and calculator, four numbers, three digits each.
#
# (a) `weight`: the four keys of section 2, query $(0, 0, 0.3)$, scores divided by $\sqrt 3$. The weight of key 3.
#
# (b) `length`: the query $(0, c, 0)$, same keys and scale. Which $c$ gives key 2 a weight of exactly 0.9?
#
# (c) `variance`: the entries of $q$ and $k$ are independent with mean 0; those of $q$ have variance 0.25, those of $k$ variance 9; $K = 16$. The variance of $q \cdot k$ (*before* the division).
#
# (d) `slope`: three weights are $w = (0.7, 0.2, 0.1)$. By how much does $w_1$ change for each unit that the *second* score $a_2$ grows: $\partial w_1 / \partial a_2$?

# %% nbgrader={"grade": false, "grade_id": "ex07-1-numbers-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
numbers = ...  # weight, length, variance, slope
### BEGIN SOLUTION
grown = math.exp(0.3 * 10 / math.sqrt(3))
numbers = (grown / (2 * grown + 2), math.sqrt(3) * math.log(27) / 10, 16 * 0.25 * 9, -0.7 * 0.2)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex07-1-numbers-by-hand-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch07.numbers_by_hand(numbers)

# %% [markdown]
# ## 4 · Who may look at whom
#
# The same function serves three kinds of attention. They differ in where $q$, $k$ and $v$ come from and in what is hidden:
#
# | kind | queries from | keys and values from | hidden | chapter 09 uses it in |
# |---|---|---|---|---|
# | self-attention | $x$ | $x$ | padding | the encoder |
# | masked (causal) self-attention | $x$ | $x$ | padding, and what comes later | the decoder |
# | cross-attention | $y$ | $x$ | padding of $x$ | the decoder, looking at the encoder |

# %%
diagrams.show("masks")

# %% [markdown]
# A mask is a matrix, and combining masks is `&`. Below, a batch of two sentences (the second has two words and two paddings). **Predict** the shape of the mask that hides padding *and* the future.

# %%
set_seed(0)
real = torch.tensor([[True, True, True, True], [True, True, False, False]])  # (B, S)
both = real.unsqueeze(1) & causal_mask(4)  # (B, 1, S) & (T, S) -> (B, T, S)
print(both.int())
x = torch.randn(2, 4, 8)
weights = attention_weights(attention_scores(x, x), both)
panels = plots.grid(1, 2, height=2.9)[0]
words = (["the", "old", "cat", "sleeps"], ["birds", "sing", "·", "·"])
for ax, matrix, names in zip(panels, weights, words, strict=True):
    plots.heatmap(ax, matrix, names, names, "weight", annotate=True, xlabel="key", ylabel="query")
show(
    panels[0],
    alt="Two 4 by 4 maps of weights, lower triangles. In the second, the columns of the two paddings (dots) are white, and the rows of "
    "the paddings look at the two words.",
    caption="Where may each word look? Only back, and never at padding. The *rows* of padding are computed, too; nobody reads them.",
)
claim(
    "Every row adds up to 1, hidden entries are exactly 0",
    torch.allclose(weights.sum(-1), torch.ones(2, 4)) and weights[~both].abs().max() == 0,
)

# %% [markdown]
# **Does the mask do its job?** Two tests that will follow us through every model: changing what is hidden must change *nothing*, to the bit.

# %%
other = x.clone()
other[0, 3] += 5  # a word in the future of words 0, 1, 2
other[1, 2:] += 5  # padding
before, after = (attention(each, each, each, both) for each in (x, other))
claim("A change in the future changes nothing before it", torch.equal(before[0, :3], after[0, :3]))
claim(
    "A change in the padding changes nothing at real words",
    torch.equal(before[1, :2], after[1, :2]),
)
unmasked = [attention(each, each, each) for each in (x, other)]
claim(
    "Without a mask both leak",
    not torch.allclose(unmasked[0][:, :2], unmasked[1][:, :2], atol=1e-2),
)

# %% [markdown]
# ### When T is not S
#
# In cross-attention $T \ne S$ is normal. In *causal* attention it happens when keys of earlier steps are kept (a **cache**, chapter 13): one new query, many keys. The query stands at the *end* of the keys, so query $t$ is at position $S - T + t$ and may see keys up to there:
#
# $$ \text{mask}_{ts} = [\, s \le S - T + t \,]. $$
#
# **Common mistake · the triangle in the wrong corner.** torch's `is_causal=True` aligns the triangle top left, as does `tril()` without an argument. **Predict** what the last word of five sees then, if it is the only query.

# %%
set_seed(0)
q, k, v = torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4), torch.randn(1, 1, 5, 4)
full = attention(q, k, v, causal=True)[..., -1:, :]  # the last row of all five
last = q[..., -1:, :]
corner = F.scaled_dot_product_attention(last, k, v, is_causal=True)
claim("torch's is_causal lets the one query see key 0 alone", torch.allclose(corner, v[..., :1, :]))
claim(
    "So it differs from the last row of the full computation",
    not torch.allclose(corner, full, atol=1e-2),
)
claim(
    "Aligned at the end, the cached step equals that row",
    torch.allclose(attention(last, k, v, causal=True), full, atol=1e-6),
)
print(causal_mask(2, 5).int())

# %% [markdown]
# ### The row in which everything is hidden
#
# It happens: an empty sentence in a batch, a padded query that may see only padding. What *should* a mean over nothing be? Four answers are in use. **Predict** each.

# %%
set_seed(0)
q, k, v = torch.randn(2, 4), torch.randn(3, 4), torch.tensor([[1.0], [2.0], [6.0]])
mask = torch.tensor(
    [[True, True, False], [False, False, False]]
)  # the second query may see nothing
scores = attention_scores(q, k)
answers = {
    "fill with -inf": scores.masked_fill(~mask, -math.inf).softmax(-1) @ v,
    "fill with -1e9": scores.masked_fill(~mask, -1e9).softmax(-1) @ v,
    "torch's sdpa": F.scaled_dot_product_attention(q[None], k[None], v[None], mask[None])[0],
    "ours, math": attention(q, k, v, mask, impl="math"),
    "ours, sdpa": attention(q, k, v, mask, impl="sdpa"),
}
table(
    ["way", "query that sees two keys", "query that sees none"],
    [[name, *out[:, 0].tolist()] for name, out in answers.items()],
)
claim(
    "-inf gives NaN",
    answers["fill with -inf"][1].isnan().all(),
)
leaf = v.clone().requires_grad_()
(scores.masked_fill(~mask, -math.inf).softmax(-1) @ leaf)[0].sum().backward()
claim(
    "Even if nobody reads that row, the gradients of all values are NaN: W_v would be next",
    leaf.grad.isnan().all(),
)
claim(
    "-1e9 gives the mean of the hidden values, without a word",
    torch.allclose(answers["fill with -1e9"][1], v.mean()),
)
claim(
    "torch's kernel and both of our paths give zeros",
    all(answers[n][1] == 0 for n in list(answers)[2:]),
)
leaf = q.clone().requires_grad_()
attention(leaf, k, v, mask, impl="math").sum().backward()
claim("And their gradient is zero there, not NaN", leaf.grad[1].abs().max() == 0)

# %% [markdown]
# ### Boolean and float masks, and the opposite polarity
#
# A mask may also be *added* to the scores: 0 where one may attend, $-\infty$ where not. Both forms circulate under one name, and the booleans exist in both polarities: `scaled_dot_product_attention` and this course say **True = may attend**; `nn.MultiheadAttention` and `nn.Transformer` say **True = hidden**.
# **Common mistake:** the inverted mask, and the float mask of ones and zeros.

# %%
set_seed(0)
twin = nn.MultiheadAttention(8, 2, batch_first=True)
layer = MultiHeadAttention(8, 2)
layer.load_state_dict(twin.state_dict())
x = torch.randn(2, 4, 8)
with torch.no_grad():
    ours = layer(x, mask=real)
    same, _ = twin(x, x, x, key_padding_mask=~real, need_weights=False)
    inverted, _ = twin(x, x, x, key_padding_mask=real, need_weights=False)
    at_padding = layer(x, mask=~real)
claim(
    "With ~mask the twin computes the same at all real words",
    torch.allclose(ours[real], same[real], atol=1e-6),
)
claim(
    "With our mask as it is, it looks at the padding of sentence 2 and nowhere else: no error",
    torch.allclose(inverted[1], at_padding[1], atol=1e-6)
    and not torch.allclose(ours[1], inverted[1], atol=1e-2),
)
with torch.no_grad():
    asked, _ = twin(x, x, x, key_padding_mask=real, need_weights=True)
claim(
    "Sentence 1, all hidden now, comes out as NaN if the twin is asked for its weights",
    asked[0].isnan().all(),
)
q = torch.randn(1, 4, 8)
ones_and_zeros = real[1].float().expand(1, 4, 4)  # 1.0 = may attend, 0.0 = hidden: meant as a mask
added = F.scaled_dot_product_attention(q, q, q, attn_mask=ones_and_zeros)
claim(
    "A float mask is added: scores of hidden keys fall by 1, and nothing is hidden",
    not torch.allclose(added, attention(q, q, q, real[1]), atol=1e-2),
)

# %% tags=["raises-exception"]
attention(q, q, q, mask=ones_and_zeros)

# %% [markdown]
# The library refuses instead of guessing. What is *meant* to be added has a name of its own, `bias`.

# %% [markdown]
# ### Exercise 7.2 · Scaled dot-product attention
#
# Difficulty ●●●○○ · 30 minutes · needs sections 3 and 4
#
# From tensors, without the library's attention and without torch's, with every corner case: any leading axes, $T \ne S$, values of another width, a mask, causality, both at once, and rows that may see nothing.


# %% nbgrader={"grade": false, "grade_id": "ex07-2-dot-product-attention", "locked": false, "schema_version": 3, "solution": true, "task": false}
def dot_product_attention(q, k, v, mask=None, causal=False):
    """Scaled dot-product attention.

    Args:
        q: (..., T, K) queries.
        k: (..., S, K) keys.
        v: (..., S, E) values.
        mask: bool, expands to (..., T, S), True = may attend; None: everywhere.
        causal: True: query t stands at position S - T + t and sees no key after it.

    Returns:
        (..., T, E): the weighted means; zeros for a query that may attend to nothing.
    """
    ### BEGIN SOLUTION
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    T, S = scores.shape[-2:]
    visible = torch.ones_like(scores, dtype=torch.bool)
    if causal:
        visible = visible.tril(S - T)
    if mask is not None:
        visible = visible & mask
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ v
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-2-dot-product-attention-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
ch07.dot_product_attention(dot_product_attention)

# %% [markdown]
# ## 5 · Many heads
#
# $H$ heads of width $K = D / H$ have the parameters and the multiplications of one head of width $D$: the same matrices, cut differently. (There are $H$ times as many weights, and as many softmaxes.)

# %%
diagrams.show("multi_head")

# %% [markdown]
# In the equations of the paper (section 3.2.2), for queries from $x_q$ and keys and values from $x_k$:
#
# $$ \text{head}_h = \mathrm{attention}\big(x_q W_h^Q,\; x_k W_h^K,\; x_k W_h^V\big), \qquad \text{out} = [\text{head}_1; \ldots; \text{head}_H]\, W^O, $$
#
# with $W_h^Q, W_h^K, W_h^V$ of shape $D \times K$ and $W^O$ of shape $D \times D$. Nobody multiplies $3H$ small matrices. They are *packed* into one:

# %%
diagrams.show("packed_projection")

# %%
show_source(MultiHeadAttention._project, MultiHeadAttention.forward)

# %% [markdown]
# In self-attention one product makes all queries, keys and values of all heads (`position` is for chapter 08). Then every head is just one more leading axis: `attention` never learns that there are heads.

# %%
set_seed(0)
B, T, S, D, H = 2, 3, 5, 12, 4
layer = MultiHeadAttention(D, H)
x, y = torch.randn(B, S, D), torch.randn(B, T, D)
packed = F.linear(x, layer.in_proj_weight, layer.in_proj_bias)
q, k, v = (split_heads(part, H) for part in packed.chunk(3, dim=-1))
out = attention(q, k, v)
table(
    ["what", "shape", "is"],
    [
        ["x", tuple(x.shape), "(B, S, D)"],
        ["in_proj_weight", tuple(layer.in_proj_weight.shape), "(3 D, D)"],
        ["packed", tuple(packed.shape), "(B, S, 3 D)"],
        ["q, k, v", tuple(q.shape), "(B, H, S, K)"],
        ["weights", tuple(layer.weights(x).shape), "(B, H, S, S)"],
        ["out", tuple(out.shape), "(B, H, S, K)"],
        ["merged", tuple(merge_heads(out).shape), "(B, S, D)"],
        ["cross-attention: layer(y, x)", tuple(layer(y, x).shape), "(B, T, D)"],
        ["its weights", tuple(layer.weights(y, x).shape), "(B, H, T, S)"],
    ],
)
claim(
    "Step by step it is the layer's output",
    torch.allclose(layer.out_proj(merge_heads(out)), layer(x), atol=1e-6),
)
claim(
    "A layer with 4 heads has as many parameters as one with 1: 4 D (D + 1)",
    number_of_parameters(layer)
    == number_of_parameters(MultiHeadAttention(D, 1))
    == 4 * D * (D + 1),
    parameters=number_of_parameters(layer),
)

# %% [markdown]
# **Common mistake · `view` without `transpose`.** `split_heads` first cuts the last axis, $(B, T, D) \to (B, T, H, K)$, then swaps two axes. `x.view(B, H, T, K)` has the right shape at once. **Predict** what stands in head 0 then.

# %%
show_source(split_heads, merge_heads)

# %%
B, T, D, H = 1, 4, 6, 2
x = (
    10 * torch.arange(T).view(1, T, 1) + torch.arange(D)
).float()  # entry 23 = position 2, column 3
right, wrong = split_heads(x, H), x.view(B, H, T, D // H)
print("x, one row a position\n", x[0].int())
print("head 0, split: columns 0 to 2 of every position\n", right[0, 0].int())
print("head 0, view: positions 0 and 1, cut into pieces\n", wrong[0, 0].int())

# %%
set_seed(0)
x = torch.randn(1, 4, 6)
other = torch.cat([x[:, :1] + 5, x[:, 1:]], dim=1)  # position 0 changes
ways = {
    "split": (split_heads, merge_heads),
    "view": (lambda x, H: x.view(1, H, 4, 3), lambda x: x.reshape(1, 4, 6)),
}
heard = {}
for way, (cut, join) in ways.items():
    before, after = (
        join(attention(cut(each, 2), cut(each, 2), cut(each, 2))) for each in (x, other)
    )
    heard[way] = [t for t in range(4) if not torch.allclose(before[0, t], after[0, t])]
claim(
    "Split rightly, every position hears of a change at position 0", heard["split"] == [0, 1, 2, 3]
)
claim(
    "With view, positions 2 and 3 never hear of it: head 1 holds these two alone. No shape complained",
    heard["view"] == [0, 1],
)

# %% [markdown]
# And `merge_heads` must be the exact inverse: `transpose` back, then `flatten`. A `reshape` without `transpose` scrambles positions again.
#
# ### The same as torch
#
# Our layer has the parameter names of `nn.MultiheadAttention`, so one call loads its weights. It should then compute the same, forward and gradients:

# %%
set_seed(0)
B, T, S, D, H = 2, 3, 5, 12, 4
twin, layer = (
    nn.MultiheadAttention(D, H, batch_first=True).double(),
    MultiHeadAttention(D, H).double(),
)
layer.load_state_dict(twin.state_dict())
query, memory = torch.randn(B, T, D, dtype=torch.float64), torch.randn(B, S, D, dtype=torch.float64)
real = torch.tensor([[True] * 5, [True, True, True, False, False]])
expected, maps = twin(query, memory, memory, key_padding_mask=~real, average_attn_weights=False)
for impl in ("math", "sdpa"):
    output = layer(query, memory, mask=real, impl=impl)
    claim(
        f"impl={impl!r}: cross-attention with padding equals torch's to 1e-12",
        torch.allclose(output, expected, atol=1e-12),
    )
claim(
    "So do the maps of every head",
    torch.allclose(layer.weights(query, memory, mask=real), maps, atol=1e-12),
)
expected.square().sum().backward()
layer(query, memory, mask=real).square().sum().backward()
claim(
    "And the gradients of all parameters",
    all(
        torch.allclose(a.grad, b.grad, atol=1e-10)
        for a, b in zip(layer.parameters(), twin.parameters(), strict=True)
    ),
)

# %% [markdown]
# `impl="math"` is the equation; `impl="sdpa"` calls torch's kernel, which never holds the whole $(T, S)$ matrix of weights: less memory, and faster (chapter 10 measures it). That is why `forward` returns no maps. Who wants to look asks `layer.weights`, which computes them apart.

# %% [markdown]
# ### Exercise 7.3 · Split and merge heads
#
# Difficulty ●●○○○ · 15 minutes · needs section 5
#
# From tensors, without `split_heads` and `merge_heads`.


# %% nbgrader={"grade": false, "grade_id": "ex07-3-split", "locked": false, "schema_version": 3, "solution": true, "task": false}
def split(x, H):
    """Cut (B, T, D) into heads (B, H, T, K), K = D / H: head h gets the entries h K .. (h + 1) K - 1 of each position."""
    ### BEGIN SOLUTION
    B, T, D = x.shape
    return x.view(B, T, H, D // H).transpose(1, 2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-3-split-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.split(split)


# %% nbgrader={"grade": false, "grade_id": "ex07-3-merge", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge(x):
    """Put heads (B, H, T, K) side by side again: (B, T, H K), head 0 first."""
    ### BEGIN SOLUTION
    B, H, T, K = x.shape
    return x.transpose(1, 2).reshape(B, T, H * K)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-3-merge-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.merge(merge)

# %% [markdown]
# ### Exercise 7.4 · A shape on every arrow
#
# Difficulty ●●○○○ · 15 minutes · needs section 5
#
# Cross-attention in a translator: batches of $B = 8$, German sentences of $S = 21$ words are the memory, English ones of $T = 17$ words ask. $D = 96$, $H = 6$. Give the shapes, as tuples: of the queries and of the keys after splitting, of the weights, of the
# output of the layer, and of `in_proj_weight`. Last, `numbers`: how many attention weights (not parameters) one such layer computes for the whole batch.

# %% nbgrader={"grade": false, "grade_id": "ex07-4-shapes", "locked": false, "schema_version": 3, "solution": true, "task": false}
arrows = ...  # {"queries": (...), "keys": (...), "weights": (...), "output": (...), "in_proj_weight": (...), "numbers": ...}
### BEGIN SOLUTION
arrows = {
    "queries": (8, 6, 17, 16),
    "keys": (8, 6, 21, 16),
    "weights": (8, 6, 17, 21),
    "output": (8, 17, 96),
    "in_proj_weight": (288, 96),
    "numbers": 8 * 6 * 17 * 21,
}
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex07-4-shapes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.shapes(arrows)

# %% [markdown]
# ## 6 · A memory that depends on the context
#
# Look back at the first screen with the words we have now. A recurrent state is a memory of *fixed size*: $D$ numbers, whatever was read. Keys and values are a memory that *grows* with what was read: $S$ pairs, written by appending, read by asking. Nothing is overwritten, and what comes out depends on the question: a **context-sensitive memory**.
#
# | | recurrent state | keys and values |
# |---|---|---|
# | size after $S$ steps | $D$ | $2 S D$ |
# | to write | mix into the state, for ever | append |
# | to read | whatever is left | weigh by the question |
# | way from step $i$ to step $t$ | $t - i$ steps | one step |
# | price of a read, of the order of | $D^2$ | $S D$ |
#
# And self-attention makes each *word* sensitive to its context. Before it, a word's vector is its embedding, the same in every sentence. After it, it is made of weighted means over this sentence:

# %%
set_seed(0)
sentences = ("the river bank was green", "the savings bank was green")
vocab = {word: i for i, word in enumerate(sorted({w for s in sentences for w in s.split()}))}
embedding, layer = nn.Embedding(len(vocab), 16), MultiHeadAttention(16, 2)
with torch.no_grad():
    x = embedding(
        torch.tensor([[vocab[word] for word in s.split()] for s in sentences])
    )  # (2, 5, 16)
    after = layer(x)
claim("Before: 'bank' is the same vector in both sentences", torch.equal(x[0, 2], x[1, 2]))
claim(
    "After: 'bank' differs, and so does every other word",
    not any(torch.allclose(*after[:, t], atol=1e-3) for t in range(5)),
)

# %% [markdown]
# The layer was not even trained: *that* a word answers to its context is built in, *how* it does must be learned.

# %% [markdown]
# ## 7 · What does "it" mean?
#
# > The animal didn't cross the street because **it** was too *tired*.
# >
# > The animal didn't cross the street because **it** was too *wide*.
#
# In the first sentence *it* is the animal, in the second the street. One word decides, and it stands at the other end. Famous pictures show a head of *it* that looks at the right noun. Pictures are chosen; we want a score. Our toy language writes thousands of such **twins** and knows the truth:

# %%
task = heads.coreference_task(3000, seed=0)
for sentence in task.test_sentences[:4]:
    print(" ".join(sentence.tokens), "| it =", sentence.tokens[sentence.referent])
seen = {heads.nouns(s) for s in task.test_sentences}
print(
    len(task.train.ids),
    "sentences to train,",
    len(task.test.ids),
    "to test, with",
    len(seen),
    "pairs of nouns never trained on together",
)

# %% [markdown]
# ### A task that keeps attention honest
#
# What shall the model predict? Suppose it must *name the noun*. **How could it do that without *it* ever looking at the noun?** The adjective *tired* alone votes for all nouns that can be tired, the nouns present vote for themselves, and the sum of votes wins. So we hand out **tickets**: in every sentence every word gets a random number from 0 to 15, none twice. The model must
# tell the ticket of the word that *it* stands for. A ticket says nothing about its word, so the only way to know it is to look there.
#
# The model has the parts of this chapter and no more:
#
# $$ h = x + \mathrm{gather}(x), \qquad y = \mathrm{read}(q = h,\; k = x,\; v = \text{tickets}). $$
#
# `gather` is self-attention with two heads: *it* can learn of the adjective. `read` has one head: it asks with $h$, compares with the *words*, and returns *tickets*. Keys are one thing, values another: step 3.

# %%
show_source(heads.TicketReader.context, heads.TicketReader.forward)

# %% [markdown]
# **Predict**, for *it* in a trained model: at which word will a head of the first layer look most? And the head of the second? What will a model score that has a causal mask?

# %%
set_seed(1)
model = heads.TicketReader(len(task.vocab))
heads.train_reader(model, task, epochs=6, seed=1)
scores = heads.coreference_scores(model, task)
claim(
    "On pairs of nouns never seen together, it tells the right ticket in more than 17 of 20 sentences",
    scores["accuracy"] > 0.85,
    accuracy=scores["accuracy"],
)
claim(
    "Its reading head looks most at the referent in more than 17 of 20; a random look: in fewer than 2",
    scores["head_at_referent"] > 0.85 and scores["uniform"] < 0.1,
    head_at_referent=scores["head_at_referent"],
    uniform=scores["uniform"],
)
claim(
    "In the first layer one head of 'it' looks most at the adjective, which decides, in more than 3 of 10",
    scores["head_at_adjective"] > 0.3,
    head_at_adjective=scores["head_at_adjective"],
)

# %%
where = next(
    i
    for i in range(0, len(task.test_sentences), 2)
    if {"tired", "wide"} == {task.test_sentences[j].tokens[-1] for j in (i, i + 1)}
)
pair = sorted(task.test_sentences[where : where + 2], key=lambda s: s.tokens[-1])  # tired, wide
twins = heads.as_batch(pair, task.vocab)
with torch.no_grad():
    first_layer, second_layer = model.weights(twins.ids, twins.mask)
names = ["gather, head 0", "gather, head 1", "read, head 0"]
panels = plots.grid(2, 1, height=4.8)[:, 0]
for row, (ax, sentence) in enumerate(zip(panels, pair, strict=True)):
    looks = torch.cat([w[row, :, sentence.pronoun] for w in (first_layer, second_layer)])  # (3, T)
    plots.heatmap(ax, looks, sentence.tokens, names, "weight")
    ax.set_xticks(
        ax.get_xticks(), ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor"
    )
    ax.set_title(f'where "it" looks; it = {sentence.tokens[sentence.referent]}')
show(
    panels[0],
    alt="Two maps of the rows of 'it', for the sentence that ends in 'tired' and its twin that ends in 'wide': where the two heads of the first layer look, "
    "and that of the second, which looks at the first noun in one sentence and at the second noun in the other.",
    caption="What do the heads of *it* look at? Those of the first layer gather, above all the adjective; knowing it, the head of the second looks at the "
    "noun that can be so. One word changed, and *it* looks elsewhere.",
)

# %% [markdown]
# Is it always so neat? The map above is one pair of twins. All test sentences, by their adjective:

# %% tags=["nbval-ignore-output"]
at_adjective = heads.looks_of_it(model, task.test)[0] == heads.adjective_of(task.test)[:, None]
last_words = [sentence.tokens[-1] for sentence in task.test_sentences]
right = heads.right_tickets(model, task.test)
by_adjective = {}
for word in sorted(set(last_words)):
    rows = torch.tensor([each == word for each in last_words])
    shares = at_adjective[rows].float().mean(0).tolist()
    neither = (~at_adjective[rows].any(1)).float().mean().item()
    by_adjective[word] = [*shares, neither, right[rows].float().mean().item()]
table(
    ["adjective", "gather, head 0 looks there", "gather, head 1", "neither", "right answers"],
    [[word, *row] for word, row in by_adjective.items()],
)

# %% [markdown]
# Look down the column *neither* (which adjectives have a large number there depends on the training): is the model wrong at those? Usually not; in the recorded runs below, too, it is right far more often than its best head is at the adjective. How can that be? With two candidates, "I have *not* seen *wide*" is as good as "I have seen *tired*". Not to look can be an answer, too. Remember it when you miss a look in somebody's map.
#
# So a missing look is no proof, and neither is a look. What would be one? Change the computation. **Predict:** hide the adjective from `gather`, and from nothing else: in how many sentences is the model still right?

# %%
@torch.no_grad()
def accuracy_without(hidden):
    """Share of right tickets if no word can gather from the positions in hidden (B,), an index a sentence."""
    test = task.test
    B, T = test.ids.shape
    x, rows = model.words(test.ids), torch.arange(B)
    visible = test.mask & (torch.arange(T) != hidden.unsqueeze(1))  # (B, T)
    h = x + model.gather(x, mask=visible)
    tickets = heads.draw_tickets(1, T, torch.Generator().manual_seed(0)).expand(B, T)
    told = model.output(model.read(h, x, model.tickets(tickets), mask=test.mask))[rows, test.pronoun]
    return (told.argmax(1) == tickets[rows, test.referent]).float().mean().item()


without_adjective = accuracy_without(heads.adjective_of(task.test))
without_too = accuracy_without(heads.adjective_of(task.test) - 1)  # "too", in every sentence
claim(
    "With the adjective hidden from the first layer it is right in about half: a guess between two nouns",
    0.3 < without_adjective < 0.6,
    accuracy=without_adjective,
)
claim(
    "With the word before it hidden, 'too', it is right in more than 3 of 4",
    without_too > 0.75,
    accuracy=without_too,
)

# %% [markdown]
# Now we know that the answer goes *through* the adjective, whatever the maps look like.

# %% [markdown]
# All heads, all words: choose a layer and a head, point at a word. (A picture stands here where scripts do not run.)

# %%
tokens = pair[1].tokens
explore(
    {"gather": tokens, "read": tokens},
    {"gather": [first_layer[1]], "read": [second_layer[1]]},
    title="A trained reader",
    alt="Attention maps of the trained reader on the twin that ends in 'wide': one layer gathers "
    "with two heads, one reads with one head.",
    caption="Reading, *it* looks at its noun. Most other words look there, too: they gather the "
    "same adjective, and nobody ever asked them. A row that was not trained for a task says nothing.",
    part="read",
    query=pair[1].pronoun,
)

# %% [markdown]
# ### Compared with whom?
#
# A score needs rivals. Three more models, the same sentences, three seeds each; recorded by `python -m course_lib.experiments coreference-heads`:
#
# - **causal mask**: *it* may not see what comes after it. Twins are equal up to their last word, so it *cannot* know: at most one of two twins can be right.
# - **one layer**: no `gather`. Then the question of *it* is the same in every sentence.
# - **two reading heads**: as ours, but the tickets come through two heads.
#
# `head_at_referent` is for one head of the last layer, chosen on the *training* sentences. **Predict** accuracy and `head_at_referent` of each.

# %%
columns = [
    "accuracy",
    "both_twins",
    "head_at_referent",
    "any_head_at_referent",
    "head_at_adjective",
    "uniform",
]
markdown(ledger.table("coreference-heads", columns))

# %%
recorded = {
    name: {metric: ledger.values("coreference-heads", name, metric) for metric in columns[:4]}
    for name in heads.READERS
}
claim(
    "Ours resolves 'it' in every seed: accuracy and head_at_referent above 0.85",
    min(recorded["one reading head"]["accuracy"]) > 0.85
    and min(recorded["one reading head"]["head_at_referent"]) > 0.85,
    accuracy=recorded["one reading head"]["accuracy"],
    head_at_referent=recorded["one reading head"]["head_at_referent"],
)
at_adjective = ledger.values("coreference-heads", "one reading head", "head_at_adjective")
claim(
    "It is right in more sentences, by 1 in 10, than its best gathering head looks at the adjective",
    all(
        a > b + 0.1
        for a, b in zip(recorded["one reading head"]["accuracy"], at_adjective, strict=True)
    ),
    head_at_adjective=at_adjective,
)
claim(
    "Causal mask: never both twins; right, and its head at the referent, in half of the sentences at best",
    max(recorded["causal mask"]["both_twins"]) == 0
    and max(recorded["causal mask"]["accuracy"]) <= 0.5
    and max(recorded["causal mask"]["head_at_referent"]) <= 0.5,
    accuracy=recorded["causal mask"]["accuracy"],
    head_at_referent=recorded["causal mask"]["head_at_referent"],
)
claim(
    "One layer: its head is at the referent in half at best, too, and it is right in fewer than 11 of 20",
    max(recorded["one layer"]["head_at_referent"]) <= 0.5
    and max(recorded["one layer"]["accuracy"]) < 0.55,
    accuracy=recorded["one layer"]["accuracy"],
    head_at_referent=recorded["one layer"]["head_at_referent"],
)
set_seed(0)
causal = heads.TicketReader(len(task.vocab), causal=True)
heads.train_reader(causal, task, epochs=3)
with torch.no_grad():
    a, b = (w[:, :, pair[0].pronoun] for w in causal.weights(twins.ids, twins.mask))
claim(
    "Live: under the causal mask 'it' has the same maps in both twins",
    torch.allclose(a[0], a[1], atol=1e-6) and torch.allclose(b[0], b[1], atol=1e-6),
)

# %% [markdown]
# Why can *one layer* not resolve it? Its query comes from the word *it* alone, its keys from single words: for each head the two nouns' weights have the same ratio in both twins. A look that depends on *another* word needs two layers, one to learn what to ask, one to ask.
#
# ### What a map proves, and what it does not
#
# Look at the row of the two reading heads in the table. **Does one of its heads always look at the referent when the model is right?**

# %%
two = recorded["two reading heads"]
shared = [
    right > 0.9 and at < 0.75
    for right, at in zip(two["accuracy"], two["head_at_referent"], strict=True)
]
claim(
    "Two reading heads, in one seed: right in over 9 of 10, but its best head is there in under 3 of 4",
    any(shared),
    accuracy=two["accuracy"],
    head_at_referent=two["head_at_referent"],
)
claim(
    "In that seed 'some head looks there' is true far more often than 'this head looks there'",
    all(
        some > one + 0.2
        for some, one, is_shared in zip(
            two["any_head_at_referent"], two["head_at_referent"], shared, strict=True
        )
        if is_shared
    ),
    any_head=two["any_head_at_referent"],
    one_head=two["head_at_referent"],
)

# %% [markdown]
# Two heads can share the work: say, one mostly at the first noun, one mostly at the second, and what decides is how *much* each of them looks. Then no single map shows it, though the same model, trained from another seed, lets a single head look at the referent nearly always. And the more heads there are, the less it means that *some* head looks at the right word: choose the head *before* you look at the test sentences.
#
# There is a limit that no choice of heads removes. The output has $E$ entries; with more keys than that, $S > E + 1$, *other* weights give the very same output (Brunner et al. 2020). **Predict:** 12 keys, values of width 4, most of the weight on one key. How much weight can move without changing the output?

# %%
set_seed(0)
S, E = 12, 4
v = torch.randn(S, E, dtype=torch.float64)
w = attention_weights(1.5 * torch.randn(S, dtype=torch.float64))
kept = torch.cat([v, torch.ones(S, 1, dtype=torch.float64)], dim=1)  # output and sum: E + 1 conditions
change = -F.one_hot(w.argmax(), S).double()  # take weight from the key that has most ...
change = change - kept @ torch.linalg.lstsq(kept, change.unsqueeze(1)).solution.squeeze(1)  # ... and keep those
step = (w / -change)[change < 0].min()  # until the first weight is 0
other = w + step * change
ax = plots.axes(height=1.9)
maps, names = torch.stack([w, other]), ["one map", "another"]
plots.heatmap(ax, maps, range(S), names, "weight", annotate=True, xlabel="key")
show(
    ax,
    alt="Two rows of twelve weights. In the first, key 5 has most of the weight; in the second the weight is spread over nearly all keys.",
    caption="Which of the two maps is the explanation? Their outputs are the same to the last digits.",
)
claim(
    "Both maps are positive and add up to 1, and their outputs are equal to 1e-12",
    other.min() > -1e-12
    and abs(other.sum() - 1) < 1e-12
    and torch.allclose(w @ v, other @ v, atol=1e-12),
)
claim(
    "More than two fifths of the weight have moved, and the first map's favourite has lost more than half",
    (other - w).abs().sum() / 2 > 0.4 and other[w.argmax()] < w.max() / 2,
    moved=(other - w).abs().sum() / 2,
)

# %% [markdown]
# So, plainly.
#
# **A map proves** which values were mixed at this layer and how much of each: it is a step of the computation. What has weight 0 contributed nothing *here*. With our tickets, which stand at one word each and have no way around the one reading head, that settles where the answer came from.
#
# **A map does not prove** *why*, nor that the model needs the word: the vector at position $s$ of a deep layer holds more than word $s$; a large weight on a short value brings little; the residual $x + \ldots$ goes around the map; a word not looked at can decide, too (the column *neither*); other weights may give the same output.
#
# Jain and Wallace (2019) found very different weights with nearly the same predictions: *attention is not explanation*. Wiegreffe and Pinter (2019) answered that it depends on what an explanation must do: *attention is not not explanation*. A map is a hypothesis. Test it: hide the word, as we did, or move what it points at.

# %%
weaker = torch.tensor([s.distractor for s in pair])
with torch.no_grad():
    tickets = torch.arange(twins.ids.shape[1]).expand(2, -1)
    told = model(twins.ids, tickets, twins.mask)[torch.arange(2), twins.pronoun].argmax(1)
    swapped = tickets.clone()
    rows = torch.arange(2)
    swapped[rows, twins.referent], swapped[rows, weaker] = (
        tickets[rows, weaker],
        tickets[rows, twins.referent],
    )
    told_after = model(twins.ids, swapped, twins.mask)[rows, twins.pronoun].argmax(1)
claim(
    "The test: swap the tickets of the two nouns, and the answer swaps with them",
    torch.equal(told, twins.referent) and torch.equal(told_after, weaker),
)
order = torch.randperm(int(twins.mask[0].sum()), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    shuffled = model(twins.ids[:1, order], tickets[:1, order])[
        0, (order == twins.pronoun[0]).nonzero().item()
    ].argmax()
print(" ".join(pair[0].tokens[i] for i in order))
claim("And one more: shuffle the words, and this model gives the same answer", shuffled == told[0])

# %% [markdown]
# The last claim should worry you. Our language can be read as a bag of words, so it did no harm. But *dog bites man*? Attention does not know order: chapter 08.

# %% [markdown]
# ### Exercise 7.5 · Find the bug: maps that no model ever used
#
# Difficulty ●●●○○ · 20 minutes · needs sections 4 and 5
#
# A model is a stack of layers, each added to what it reads; to look at it, one runs through the stack and collects the maps. The function below is modelled on a real course notebook. It runs, every map looks like a map, and those of the first layer are right.


# %%
def buggy_maps(layers, x, mask):
    """The weights of each layer on the way through the stack."""
    maps = []
    for layer in layers:
        maps.append(layer.weights(x, mask=mask))
        x = x + layer(x)
    return maps


# %% [markdown]
# Write the right one.


# %% nbgrader={"grade": false, "grade_id": "ex07-5-stack-maps", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stack_maps(layers, x, mask):
    """The attention maps of a stack that computes x = x + layer(x, mask=mask), layer by layer.

    Args:
        layers: N layers; layer(x, mask=mask) -> (B, T, D), layer.weights(x, mask=mask) -> (B, H, T, T).
        x: (B, T, D), what the first layer reads.
        mask: (B, T) bool, True = a real token.

    Returns:
        list of N tensors (B, H, T, T).
    """
    ### BEGIN SOLUTION
    maps = []
    for layer in layers:
        maps.append(layer.weights(x, mask=mask))
        x = x + layer(x, mask=mask)
    return maps
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-5-stack-maps-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch07.stack_maps(stack_maps)

# %% [markdown]
# ### Exercise 7.6 · Explore and explain: saturation and heads
#
# Difficulty ●●●○○ · 40 minutes · needs sections 3 and 7
#
# Change the cell and run it again: the sharpness with which the trained reader asks (its queries are multiplied by a number), other sentences of `task.test_sentences`, models with `read_heads=2`. Answer in words:
#
# (a) With a sharpness of 0.1, of 1 and of 10: what happens to the weights, to the answer, and to the gradient that a *wrong* answer would send into the queries? (b) When would you rather have a soft, and when a sharp attention? (c) Somebody shows you a map of their model
# in which *it* looks at the right noun and says: "it has understood the sentence". Name two reasons why the map alone does not show that, and one experiment that would tell you more.

# %% tags=["nbval-ignore-output"]
rows = []
for sharpness in (0.1, 1, 10):
    with torch.no_grad():
        x, h = model.context(twins.ids, twins.mask)
        W_q, W_k, _ = model.read.in_proj_weight.split(32)
        b_q, b_k, _ = model.read.in_proj_bias.split(32)
        q, k = F.linear(h, W_q, b_q), F.linear(x, W_k, b_k)  # one head; of two, split_heads first
        looks = attention_weights(attention_scores(sharpness * q, k), twins.mask.unsqueeze(1))[
            0, pair[0].pronoun
        ]
    rows.append(
        [
            sharpness,
            pair[0].tokens[looks.argmax()],
            looks.max().item(),
            heads.softmax_jacobian(looks).norm().item(),
        ]
    )
table(["sharpness", "looks most at", "weight", "slope |J|"], rows)

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex07-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) Small sharpness: weights near uniform, the answer a mean of all tickets, which tells none of them; the slope is moderate, but it moves the mean of everything. Large sharpness: one weight near 1, the answer that of hard attention. If it is right, fine; if it is wrong, hardly any gradient reaches the queries, because every entry of the Jacobian holds a factor
# $w_i (1 - w_i)$ or $w_i w_j$ that is near 0: the model is sure and cannot learn otherwise. In between the weights lean to the right word *and* answer to the scores.
#
# (b) Soft at the beginning of training and where a mixture means something (gathering hints from several words); sharp where one item must be returned unmixed (a ticket, a name to be copied). Training sharpens by itself if that lowers the loss, so one starts soft: hence the division by the root.
#
# (c) The head may look at the noun in every sentence, whatever the adjective (then it is right in half of the twins): show the twin. The vector at the noun's position may hold something else than the noun, or its value may be near zero and the answer come around the map through the residual. The head may have been chosen after the fact among many. Experiments: score the head, chosen beforehand, on many twins; change the word at which
# it looks (or hide it by the mask) and see whether the answer follows; compare with a model that cannot know.
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. A GRU's state is a weighted sum with dependent weights. Free the weights, then the candidates, part keys from values, ask with several heads: multi-head attention, computed without a loop over time.
# 2. Attention is a soft dictionary: a query is compared with all keys, and the weighted mean of the values comes back. Soft, because the hard choice has no slope.
# 3. Dot products of random vectors of width $K$ have a standard deviation of $\sqrt K$ (and cosines of $1/\sqrt K$: near-orthogonality); divided by $\sqrt K$, the softmax does not start saturated.
# 4. Masks say who may look at whom: True = may attend here, the opposite in `nn.MultiheadAttention`; with a cache the triangle is aligned at the end; a row that sees nothing gives zeros.
# 5. Heads can resolve what *it* means, if the task leaves no way around them and two layers let the question depend on the context. A map shows what was mixed, not why: it is a hypothesis, and hiding a word is a test.
#
# ## Where next
#
# *Chapter 08* gives attention a sense of order. *Chapter 09* builds the Transformer from these layers, *chapter 10* counts what they cost, *chapter 13* keeps keys and values in a cache.
#
# ## References
#
# - K. Cho, course on natural language processing, African Master's in Machine Intelligence (AMMI): the GRU unrolled, and attention as the freeing of its weights; retold in the slides of S. Kabongo, *The Transformer: from RNN to attention*, AMMI, April 2020.
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: equation 1, footnote 4 (the variance of a dot product), section 3.2.2 (heads), 3.2.3 (three uses).
# - D. Bahdanau, K. Cho, Y. Bengio, *Neural machine translation by jointly learning to align and translate*, ICLR 2015, arXiv:1409.0473: equations 5 and 6.
# - K. Xu et al., *Show, attend and tell*, ICML 2015, arXiv:1502.03044: section 4.1 hard, 4.2 soft attention.
# - M.-T. Luong, H. Pham, C. Manning, *Effective approaches to attention-based neural machine translation*, EMNLP 2015, arXiv:1508.04025: equation 8, dot-product scores.
# - J. Uszkoreit, *Transformer: a novel neural network architecture for language understanding*, Google Research blog, 2017: the animal and the street. H. Levesque, E. Davis, L. Morgenstern, *The Winograd schema challenge*, KR 2012.
# - S. Jain, B. Wallace, *Attention is not explanation*, NAACL 2019, arXiv:1902.10186. S. Wiegreffe, Y. Pinter, *Attention is not not explanation*, EMNLP 2019, arXiv:1908.04626. G. Brunner et al., *On identifiability in Transformers*, ICLR 2020, arXiv:1908.04211.
# - Videos: *Attention and the Transformer* with its practicum (NYU Deep Learning), https://www.youtube.com/watch?v=f01J0Dri-6k, the recipe book; *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30, from recurrence to attention.
