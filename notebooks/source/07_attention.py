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
# answer. The first is a GRU with more than 16,000 trained parameters. The second has **no parameters at all and is never trained**: one line of algebra. **How often will the GRU be right?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("soft_dictionary")

# %% tags=["setup", "fold"]
# @title Imports
import math
from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import lstm_gru
from course_lib.attention import (
    MultiHeadAttention,
    attention,
    attention_backend,
    attention_scores,
    attention_weights,
    hard_attention,
    merge_heads,
    record_attention,
    split_heads,
)
from course_lib.exercises import ch07
from course_lib.experiments import attention_scaling
from course_lib.experiments import coreference as heads
from course_lib.functional import causal_mask, padding_mask
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch07 as figures
from course_lib.train import set_seed
from course_lib.utils import number_of_parameters

set_seed(0)

# %% [markdown]
# The task in tensors: eight different letters of ten, a digit for each, and one of the letters as the question, all as one-hot rows.

# %%
LETTERS, PAIRS = 10, 8


def memory_task(B, generator):
    """Letters and digits (B, 8, 10), the letter asked for (B, 10), its digit (B,)."""
    letters = torch.rand(B, LETTERS, generator=generator).argsort(1)[:, :PAIRS]
    digits = torch.randint(10, (B, PAIRS), generator=generator)
    rows, asked = torch.arange(B), torch.randint(PAIRS, (B,), generator=generator)
    each = letters, digits, letters[rows, asked]
    return *(F.one_hot(ids, 10).float() for ids in each), digits[rows, asked]


# %% [markdown]
# The GRU reads the eight pairs and then the question, and predicts the digit from its last state. The one line compares the question with every letter, and takes the digits in proportion.


# %%
class Reader(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru, self.output = lstm_gru.GRU(20, 64), nn.Linear(64, 10)

    def forward(self, keys, values, query):
        question = torch.cat([query, torch.zeros_like(query)], dim=1)  # no digit here
        pairs = torch.cat([keys, values], dim=2)
        x = torch.cat([pairs, question.unsqueeze(1)], dim=1)  # (B, 9, 20)
        return self.output(self.gru(x)[0][:, -1])


def one_line(keys, values, query):
    return ((10 * query.unsqueeze(1) @ keys.mT).softmax(dim=-1) @ values).squeeze(1)


# %%
guess_gru = predict("the GRU's fraction of right answers (guessing: 0.1)", ...)

# %%
set_seed(0)
generator = torch.Generator().manual_seed(0)
reader = Reader()
optimizer = torch.optim.Adam(reader.parameters(), lr=5e-3)
for _ in tqdm(range(200), leave=False):
    *inputs, digit = memory_task(64, generator)
    loss = F.cross_entropy(reader(*inputs), digit)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

# %% tags=["fold", "reveal"]
# @title Who remembers? 1,000 new sequences
*inputs, digit = memory_task(1000, torch.Generator().manual_seed(1))
recall = {
    name: (each(*inputs).argmax(1) == digit).float().mean().item()
    for name, each in {"gru": reader, "one_line": one_line}.items()
}
guess_gru.compare(round(recall["gru"], 2))
claim(
    "After 200 updates with 64 sequences each, the GRU is right less than half of the time; the one line is right every time.",
    recall["gru"] < 0.5 and recall["one_line"] == 1,
    **{"accuracy of the GRU": recall["gru"]},
    parameters=number_of_parameters(reader),
    **{"accuracy of the one line": recall["one_line"]},
)

# %% [markdown]
# The GRU must compress eight pairs into one state *before* it knows what will be asked. (With longer training it may find a way; and it is not told that the pairs are pairs, which the one
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
# value. Vectors are rows, so that $x W^\top$ is what `nn.Linear` computes. A mask is boolean, **True = may attend**, and broadcasts to (B, H, T, S).

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
# $n_1$ the weight $z_1 z_2$ in place of $(1 - z_1)\, z_2$. The checks below try both.) Take two old candidates, $n_1$ and $n_2$. As the GRU reads on, can it raise the weight of $n_1$ and lower that of $n_2$?

# %% tags=["reveal"]
set_seed(1)
B, T, D = 2, 6, 5
gru = lstm_gru.GRU(4, D, dtype=torch.float64)
x_gru = torch.randn(B, T, 4, dtype=torch.float64)  # (B, T, I)
gates = gru.gate_values(x_gru)
z, n, h_gru = (gates[name].detach() for name in "znh")  # (B, T, D) each
# states, candidates: (B, T, T, D); the weight of h_0 = 0 is left out
w_gru = lstm_gru.unrolled_weights(z)[:, :, 1:]
ratio = w_gru[:, 1:, 0] / w_gru[:, 1:, 1]  # n_1 against n_2, at steps 2 to T
print("The weight of n_1 over that of n_2, one unit, steps 2 to 6:")
print([round(r, 3) for r in ratio[0, :, 0].tolist()])

# %% tags=["fold", "reveal"]
# @title Checked: the weighted sum
claim(
    "The weighted sum of candidates is the GRU's state, to 1e-12.",
    torch.allclose((w_gru * n.unsqueeze(1)).sum(2), h_gru, atol=1e-12),
)
printed = torch.stack(  # the product as the slides have it, at t = 2; z[:, j - 1] is z_j
    [z[:, i - 1 : 2 - i + 1].prod(1) * (1 - z[:, : i - 1]).prod(1) for i in (1, 2)], dim=1
)  # (B, 2, D)
off = ((printed * n[:, :2]).sum(1) - h_gru[:, 1]).abs().max()
claim("With the weights that the slides print, $h_2$ is wrong by more than 0.01.", off > 0.01, largest_error=off)
claim(
    "The ratio of two weights never changes once both candidates are in, and no weight ever grows.",
    torch.allclose(ratio, ratio[:, :1].expand_as(ratio)) and (w_gru[:, 1:, 0] <= w_gru[:, :-1, 0]).all().item(),
)

# %% [markdown]
# It cannot: every later gate scales *all* old weights alike. What was ranked second stays second, whatever is asked later.
#
# **Step 1 · decouple the weights.** Let the input of this step, $x_t$, ask each candidate how well it fits. Any function of the two may score, here $n_i W x_t^\top$ with a matrix $W$ ($D \times I$, $I$ the width of an input):
#
# $$ h_t = \sum_{i=1}^{t} \alpha_{ti}\, n_i, \qquad \alpha_{ti} = \frac{\exp a_{ti}}{\sum_{i' \le t} \exp a_{ti'}}, \qquad a_{ti} = n_i W x_t^\top. $$
#
# The product of gates is gone; a softmax keeps its weights positive, and makes them add up to 1 (the GRU's miss 1 by the product of all its gates). One thing gets *poorer*: the GRU has one weight for each of the $D$ units, $\alpha_{ti}$ is one number for all. Step 4 will give some of that back.

# %%
set_seed(1)
W = torch.randn(n.shape[-1], x_gru.shape[-1], dtype=torch.float64)  # (D, I)
a = x_gru @ W.T @ n.mT  # (B, T, T): every step asks every candidate
alpha = attention_weights(a, causal_mask(a.shape[-1]))
h_free = alpha @ n  # (B, T, D)

# %% tags=["fold"]
# @title Checked: the decoupled weights
claim(
    "The weights of each step add up to 1, and candidates that are yet to come get none.",
    torch.allclose(alpha.sum(-1), torch.ones_like(alpha[..., 0])) and (alpha.triu(1).abs().max() == 0).item(),
)
ratio_free = alpha[:, 1:, 0] / alpha[:, 1:, 1]
claim(
    "Now two old candidates can change their order: the ratio of their weights crosses 1 as the question changes.",
    ((ratio_free.amax(1) > 1) & (ratio_free.amin(1) < 1)).any(),
    ratios_of_one_sequence=ratio_free[((ratio_free.amax(1) > 1) & (ratio_free.amin(1) < 1)).int().argmax()],
)

# %% [markdown]
# **Step 2 · free the candidates.** $n_i$ still needs the state before it, which needs $n_{i-1}$, and so on: $T$ steps, one after the other. Use $f(x_i)$, a function of one input: $h_t = \sum_i \alpha_{ti}\, f(x_i)$.
# Change the first input: which candidates of the GRU change, and which $f(x_i)$?

# %%
W_f = torch.randn(5, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def free_candidates(x):
    return torch.tanh(x @ W_f.T)  # all in one product: (B, T, I) -> (B, T, D)


moved = x_gru.clone()
moved[:, 0] += 1  # the first input changes
both_kinds = {  # before and after
    "n": (n, gru.gate_values(moved)["n"]),
    "f": (free_candidates(x_gru), free_candidates(moved)),
}

# %% tags=["fold", "reveal"]
# @title Which candidates change with the first input?
changed = {
    name: [t + 1 for t in range(6) if not torch.equal(before[:, t], after[:, t])]
    for name, (before, after) in both_kinds.items()
}
claim(
    "All candidates of the GRU change; of the free ones only the first does: they can be computed all at once.",
    changed == {"n": [1, 2, 3, 4, 5, 6], "f": [1]},
)

# %% [markdown]
# The loop over time is gone, and with it all knowledge of order: $f(x_i)$ does not know its $i$. Chapter 08 pays for that.
#
# **Step 3 · keys and values apart.** So far one vector plays three parts: it asks, it is asked, and it is returned. If all three are $f(x)$ and the score is their dot product, two things go wrong. What can you say about the matrix of scores, and where will a word look most?

# %% tags=["reveal"]
f = torch.randn(20, 32, generator=torch.Generator().manual_seed(0))  # 20 positions
fits = f @ f.T  # everyone asks everyone
print("The scores of 20 random positions")
print("symmetric:", torch.allclose(fits, fits.T))
at_itself = fits.argmax(1) == torch.arange(20)
print("looks most at itself:", at_itself.sum().item(), "of 20")

# %% [markdown]
# How much word $i$ fits $t$ is how much $t$ fits $i$; and a word usually fits itself best, for a vector has its largest dot product with itself if the others are not much longer. But an adjective should find its noun without the noun finding the adjective; and what makes a word *findable* need not be what it has to *say*. So three linear maps make three vectors of each input: a **query** $q_t$ (what do I look for?), a **key** $k_i$ (what
# am I found by?), a **value** $v_i$ (what do I tell?):
#
# $$ q_t = x_t W_q^\top, \quad k_i = x_i W_k^\top, \quad v_i = x_i W_v^\top, \qquad h_t = \sum_i \alpha_{ti}\, v_i, \quad \alpha_{ti} \propto \exp(q_t \cdot k_i). $$
#
# **Step 4 · heads.** One softmax gives *one* mean. Suppose *it* needs the noun **and** the adjective. With one set of weights the answer is half of each, added up: was it "tired animal" or "animal that is tired of …"? Two **heads**, each with its own $W_q, W_k, W_v$, give
# two answers, side by side: $h_t = [h_t^1; \ldots; h_t^H]$.

# %%
adjective, noun = 30 * torch.eye(4)[0], 30 * torch.eye(4)[1]  # two queries
word_values = torch.tensor([[1.0, 0], [0, 1], [5, 5], [7, 7]])
for asks in (adjective + noun, adjective, noun):  # one head; then two
    answer = attention(asks.view(1, 4), torch.eye(4), word_values)[0]
    print([round(c, 3) for c in answer.tolist()])

# %% [markdown]
# The first line is one head's answer. From it nobody can tell that the first value was $(1, 0)$ and the second $(0, 1)$, rather than the other way round; from the two heads below anyone can. With all four steps written out in tensors we have the layer of the library:

# %%
set_seed(2)
B, T, D, H = 2, 5, 12, 3
K = D // H
layer_four = MultiHeadAttention(D, H, bias=False).double()
x_four = torch.randn(B, T, D, dtype=torch.float64)
W_q, W_k, W_v = layer_four.in_proj_weight.detach().split(D)  # (D, D) each
answers = []
for head in range(H):
    part = slice(head * K, (head + 1) * K)  # this head's K rows of each matrix
    q, k, v = (x_four @ each[part].T for each in (W_q, W_k, W_v))  # (B, T, K)
    weights = attention_weights(q @ k.mT / math.sqrt(K), causal_mask(T))  # (B, T, T)
    answers.append(weights @ v)
by_hand = torch.cat(answers, dim=-1) @ layer_four.out_proj.weight.T

# %% tags=["fold"]
# @title Checked: by hand = the library's layer
claim(
    "Four steps from the GRU's sum: multi-head attention, to 1e-12.",
    torch.allclose(by_hand, layer_four(x_four, causal=True), atol=1e-12),
)

# %% [markdown]
# Two details are new in these lines: the division by $\sqrt K$ (section 3) and the last matrix, $W^O$, which projects the concatenated heads (section 5).

# %% [markdown]
# ## 2 · A dictionary that you can ask softly
#
# Queries, keys and values are words of *databases*. In a recipe book the **keys** are the titles, the **values** the recipes. You come with a **query**. Python's dictionary is strict:

# %% tags=["raises-exception"]
# title: minutes
book = {"lasagne": 90, "cannelloni": 75, "tomato soup": 30, "apple pie": 60}
book["lasagna"]

# %% [markdown]
# The *soft* dictionary is the picture at the beginning of this chapter. To compare softly we need titles as vectors. Count pairs of letters (`la`, `as`, `sa`, …), scale each title to length 1, and the dot product with the query says how much two words have in common. An *inverse temperature* multiplies the scores: what will a large one do, and what will 0 do?

# %%
titles = list(book)
minutes = torch.tensor([[float(book[title])] for title in titles])  # values (S, 1)
letter_pairs = sorted({a + b for title in titles for a, b in pairwise(title)})


def as_vector(word):
    parts = [a + b for a, b in pairwise(word)]
    return torch.tensor([float(parts.count(pair)) for pair in letter_pairs])  # (K,)


title_keys = F.normalize(torch.stack([as_vector(title) for title in titles]))  # (S, K)
scores = as_vector("lasagna").unsqueeze(0) @ title_keys.T  # (1, S)
soft = {c: attention_weights(c * scores) for c in (0, 1, 4, 16)}

# %% tags=["fold", "reveal"]
# @title Four inverse temperatures: weights and answer
soft_minutes = {c: (each @ minutes).item() for c, each in soft.items()}
table(
    ["inverse temperature", *titles, "answer (minutes)"],
    [[c, *each[0].tolist(), soft_minutes[c]] for c, each in soft.items()],
)
claim(
    "Asked at a high inverse temperature, the soft dictionary answers like a strict one that forgives a misspelt title; "
    "at 0 it returns the mean of all recipes.",
    abs(soft_minutes[16] - book["lasagne"]) < 0.01 and abs(soft_minutes[0] - minutes.mean().item()) < 1e-4,
    **{"minutes at 16": soft_minutes[16], "minutes at 0": soft_minutes[0]},
)

# %% [markdown]
# A mean of recipes is no recipe. Soft answers are useful where a mixture means something, as it does for vectors of features, or where training can make the weights sharp.
#
# ### Hard and soft
#
# **Hard attention** takes the value of the best key alone, $h = v_{s^*}$ with $s^* = \arg\max_s q \cdot k_s$. As a weighted sum its weights are one-hot. **Soft attention** puts a softmax in place of the argmax. (Some books write *soft(arg)max* for it, and they have a point:
# it is the argmax that is softened.) Why be soft? What is the gradient of hard attention with respect to the query?

# %%
show_source(hard_attention)

# %%
set_seed(0)
k6, v6 = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 3, dtype=torch.float64)
q6 = torch.randn(1, 4, dtype=torch.float64, requires_grad=True)
hard, soft_answer = hard_attention(q6, k6, v6), attention(q6, k6, v6)
soft_answer.sum().backward()  # hard.sum().backward() would raise an error
nudges = 1e-4 * torch.eye(4, dtype=torch.float64)  # one in each direction
with torch.no_grad():
    ahead, back = (
        [hard_attention(q6 + sign * d, k6, v6) for d in nudges] for sign in (1, -1)
    )

# %% tags=["fold", "reveal"]
# @title Checked: which of the two can train a query
slopes = [(a - b).abs().max().item() for a, b in zip(ahead, back, strict=True)]
claim(
    "Hard attention's output has no gradient function, and that is not torch's fault: move the query a little, in any "
    "direction, and nothing changes.",
    not hard.requires_grad and max(slopes) == 0,
)
claim("Soft attention has a slope.", q6.grad.norm() > 0.01, norm_of_the_gradient=q6.grad.norm())

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
# What are weights and output for three queries: equal to key 2; equal to keys 3 and 4; and $(10, 10, 0)$, between keys 1 and 2?

# %%
k4 = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
v4 = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]])
q4 = torch.tensor([[0.0, 10, 0], [0, 0, 10], [10, 10, 0]])
scores4 = attention_scores(q4, k4)  # (3, 4): products of 100 or 0, over sqrt(3)
weights4, output4 = attention_weights(scores4), attention(q4, k4, v4)

# %% tags=["fold", "reveal"]
# @title Three queries: scores, weights, outputs
def rounded(row):
    return [round(c, 4) for c in row.tolist()]


table(
    ["query", "scores", "weights", "output"],
    [[[int(c) for c in q4[t]], *map(rounded, (scores4[t], weights4[t], output4[t]))] for t in range(3)],
)
claim(
    "A query equal to one key returns its value; equal keys share the weight, and the output is the mean of their values, "
    "as it is for a query between two keys.",
    torch.allclose(output4[0], v4[1])
    and torch.allclose(output4[1], v4[2:].mean(0))
    and torch.allclose(output4[2], v4[:2].mean(0)),
)
softer = attention_weights(q4[:1] @ k4.T / math.sqrt(64))
claim(
    "Divided by $\\sqrt{64}$ instead, the first query gives each of the other keys a few millionths.",
    (1e-6 < softer[0, 0] < 1e-5).item(),
    weight_of_key_1=softer[0, 0],
    output=softer[0] @ v4,
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
# the two vectors shrinks: their lengths are about $\sqrt K$ each, so the cosine has a standard deviation of about $\sqrt K / (\sqrt K \sqrt K) = 1 / \sqrt K$. In high dimensions random vectors are **nearly orthogonal**. Of 1,000 random keys of width 4, two are nearly parallel: the most similar pair has a cosine near 1. And at $K = 1024$?

# %%
guess_cosine = predict("the cosine of the two most similar keys at width 1024", ...)

# %%
widths = [4, 16, 64, 256, 1024]
generator = torch.Generator().manual_seed(0)
cosines = {}
for K in widths:
    keys = F.normalize(torch.randn(1000, K, generator=generator), dim=1)
    above = torch.ones(1000, 1000, dtype=torch.bool).triu(1)  # every pair once
    cosines[K] = (keys @ keys.T)[above]

# %% tags=["reveal"]
figures.cosines_of_random_keys(cosines)
guess_cosine.compare(round(cosines[1024].max().item(), 2))

# %% tags=["fold", "reveal"]
# @title Checked: the spread, and the most similar keys
claim(
    "From K = 4 to K = 1024 the cosine's standard deviation is $1/\\sqrt K$, within a twentieth.",
    all(abs(cosines[K].std().item() * K**0.5 - 1) < 0.05 for K in widths),
    **{f"standard deviation at K = {K}": cosines[K].std() for K in widths},
)
claim(
    "Of 1,000 keys the two most similar have a cosine above 0.95 at K = 4 and below 0.25 at K = 1024.",
    (cosines[4].max() > 0.95).item() and (cosines[1024].max() < 0.25).item(),
    **{f"largest cosine at K = {K}": cosines[K].max() for K in widths},
)

# %% [markdown]
# Good news for a dictionary: many keys fit into a wide space without getting in each other's way, far more than $K$ of them nearly so. The bad news is the other half of the argument: undivided *scores* grow, and the softmax turns their differences into factors. With 32 random keys, equal weights would be 0.03 each.

# %%
guess_weight = predict("the largest of 32 weights at width 1024, without root", ...)

# %%
def largest_weights(K, root):
    """Of 200 queries with 32 keys each: the largest weight, with or without root."""
    generator = torch.Generator().manual_seed(K)
    q = torch.randn(200, 1, K, generator=generator)
    k = torch.randn(200, 32, K, generator=generator)
    a = (q @ k.mT)[:, 0]  # (200, 32) scores
    return (a / math.sqrt(K) if root else a).softmax(-1).amax(-1)


largest_at = {root: largest_weights(1024, root).mean().item() for root in (False, True)}

# %% tags=["fold", "reveal"]
# @title The softmax of random scores at five widths
drawn = {
    K: attention_scaling.softmax_by_width(K, 200, 32, torch.Generator().manual_seed(K))
    for K in widths
}
measures = {
    "score_std": "standard deviation of the scores",
    "largest": "largest weight",
    "choices": "choices",
    "slope": "slope",
    "flat": "saturated",
}
table(
    ["K", "", *measures.values()],
    [
        [K, name, *(drawn[K][way][measure] for measure in measures)]
        for way, name in {"without": "without the root", "with the root": "with the root"}.items()
        for K in widths
    ],
)
guess_weight.compare(round(largest_at[False], 2))
claim(
    "Undivided scores have a standard deviation of $\\sqrt K$, within a tenth; divided ones of 1.",
    all(
        abs(row["without"]["score_std"] / K**0.5 - 1) < 0.1 and abs(row["with the root"]["score_std"] - 1) < 0.1
        for K, row in drawn.items()
    ),
)
claim(
    "At K = 1024 the largest of 32 weights is above 0.9 without the root and below 0.25 with it.",
    drawn[1024]["without"]["largest"] > 0.9
    and drawn[1024]["with the root"]["largest"] < 0.25
    and math.isclose(drawn[1024]["without"]["largest"], largest_at[False], rel_tol=1e-3)
    and math.isclose(drawn[1024]["with the root"]["largest"], largest_at[True], rel_tol=1e-3),
    without=drawn[1024]["without"]["largest"],
    with_the_root=drawn[1024]["with the root"]["largest"],
)

# %% [markdown]
# *Largest weight* is a mean over the queries; *choices* is the exponential of the entropy (as many equal weights would be as undecided, chapter 01). *Slope* says how sensitive the weights are to the scores: the norm of the softmax's Jacobian
#
# $$ J_{ij} = \frac{\partial w_i}{\partial a_j} = w_i\,(\delta_{ij} - w_j), $$
#
# through which *every* gradient to queries and keys must pass; $\delta_{ij}$ is 1 for $i = j$ and 0 otherwise. If one weight is 1 and the others are 0, every entry is 0: the softmax is **saturated**. *Saturated* is the fraction of queries whose slope is less than a hundredth of that of uniform weights.
# The recorded runs, three seeds:

# %%
figures.softmax_by_width()

# %% tags=["fold"]
# @title Checked: the slope and the saturated queries
recorded_scaling = {
    (way, metric): ledger.values("attention-scaling", way, metric)
    for way in ("without", "with the root")
    for metric in ("slope", "flat")
}
claim(
    "In every recorded seed the slope more than halves from K = 16 to 1024; with the root it keeps nine tenths.",
    all(run[-1] < run[1] / 2 for run in recorded_scaling["without", "slope"])
    and all(run[-1] > 0.9 * run[1] for run in recorded_scaling["with the root", "slope"]),
    fraction_kept_without=[run[-1] / run[1] for run in recorded_scaling["without", "slope"]],
    with_the_root=[run[-1] / run[1] for run in recorded_scaling["with the root", "slope"]],
)
claim(
    "Without it most queries are saturated at K = 1024; with it none is, at any width.",
    all(run[-1] > 0.5 for run in recorded_scaling["without", "flat"])
    and all(max(run) == 0 for run in recorded_scaling["with the root", "flat"]),
    fraction_without=[run[-1] for run in recorded_scaling["without", "flat"]],
)

# %% [markdown]
# All this is about means. Look at single queries, with 8 keys: widen the vectors, and ask another query now and then. **At which width does the undivided softmax first give one key more than 0.99, and is it the same for every query?**

# %% tags=["fold"]
# @title Interactive: one query, with and without the root
from course_lib.notebook import interactive

interactive.root_of_k(width=4)

# %% [markdown]
# Two cautions. The argument is about the *start*, when queries and keys are unrelated; a trained model may make its scores as large as it likes, and often does. And the assumption matters: exercise 7.1 (c) has other variances. (Additive attention needs no such division: each of its hidden units is bounded by the tanh, however wide the queries.)
#
# **Common mistake · softmax over the wrong axis.** In a square matrix of scores `softmax(dim=-2)` raises no error:

# %%
set_seed(0)
q, k = torch.randn(5, 4), torch.randn(5, 4)
wrong = attention_scores(q, k).softmax(dim=-2)  # over the queries
right = attention_weights(attention_scores(q, k))  # over the keys
for name, each in {"wrong": wrong, "right": right}.items():
    print(name, [round(c, 3) for c in (each @ torch.ones(5, 1)).flatten().tolist()])

# %% [markdown]
# Multiplying by values of 1 is a good habit: *a mean of ones is one*. It finds a wrong axis, a lost normalisation and a wrong mask in one go.

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
# **One rule for every mask:** it is boolean, True = may attend, and broadcasts to the weights, (B, H, T, S). Combining masks is `&`. `causal_mask(T)` is (T, T): the same for all sentences and heads. Which tokens are *real*, no padding, is known as (B, S);
# `padding_mask(real)` makes a mask of it, (B, 1, 1, S): the same for all heads and queries. (`real` itself is no mask: handed over as one, it would be read as (T, S).) Below, one head and two sentences (the second has two words and two paddings). Which shape has the mask that hides padding *and* the future?

# %%
set_seed(0)
real = torch.tensor([[True, True, True, True], [True, True, False, False]])  # (B, S)
# (B, 1, 1, S) & (T, S) -> (B, 1, T, S)
both = padding_mask(real) & causal_mask(4)
print(tuple(both.shape), "sentence 2:", both[1, 0].int().tolist())
x_words = torch.randn(2, 1, 4, 8)  # (B, H, T, K)
masked_weights = attention_weights(attention_scores(x_words, x_words), both)

# %%
figures.padding_and_future(masked_weights)

# %% tags=["fold"]
# @title Checked: rows and hidden entries
claim(
    "Every row adds up to 1, hidden entries are exactly 0.",
    torch.allclose(masked_weights.sum(-1), torch.ones(2, 1, 4)) and (masked_weights[~both].abs().max() == 0).item(),
)

# %% [markdown]
# **Does the mask do its job?** Two tests that will follow us through every model: changing what is hidden must change *nothing*, to the bit.

# %%
other_words = x_words.clone()
other_words[0, :, 3] += 5  # a word in the future of words 0, 1, 2
other_words[1, :, 2:] += 5  # padding
before, after = (attention(each, each, each, both) for each in (x_words, other_words))
print("the past, unchanged:", torch.equal(before[0, :, :3], after[0, :, :3]))
print("real words, unchanged:", torch.equal(before[1, :, :2], after[1, :, :2]))
unmasked = [attention(each, each, each) for each in (x_words, other_words)]
leaks = (unmasked[1] - unmasked[0]).abs().amax((1, 3))  # (B, T)
moved_by = [round(c, 2) for c in leaks[:, :2].amax(1).tolist()]
print("without a mask the first two words move by up to", moved_by)

# %% tags=["fold"]
# @title Checked: nothing leaks through the mask
claim(
    "A change in the future changes nothing before it, a change in the padding nothing at real words; without a mask both leak.",
    torch.equal(before[0, :, :3], after[0, :, :3])
    and torch.equal(before[1, :, :2], after[1, :, :2])
    and not any(torch.allclose(unmasked[0][b, :, :2], unmasked[1][b, :, :2], atol=1e-2) for b in (0, 1)),
)

# %% [markdown]
# ### When T is not S
#
# In cross-attention $T \ne S$ is normal. In *causal* attention it happens when keys of earlier steps are kept (a **cache**, chapter 13): one new query, many keys. The query stands at the *end* of the keys, so query $t$ is at position $S - T + t$ and may see keys up to there:
#
# $$ \text{mask}_{ts} = [\, s \le S - T + t \,]. $$
#
# **Common mistake · the triangle in the wrong corner.** torch's `is_causal=True` aligns the triangle top left, as does `tril()` without an argument. What does the last word of five see then, if it is the only query?

# %%
set_seed(0)
q5, k5, v5 = (torch.randn(1, 1, 5, 4) for _ in range(3))
full = attention(q5, k5, v5, causal=True)[..., -1:, :]  # the last row of all five
last = q5[..., -1:, :]
corner = F.scaled_dot_product_attention(last, k5, v5, is_causal=True)
cached = attention(last, k5, v5, causal=True)
print(causal_mask(2, 5).int())  # two queries, five keys

# %% tags=["fold", "reveal"]
# @title Checked: the triangle in the corner, and at the end
claim(
    "torch's is_causal lets the one query see key 0 alone, so it differs from the last row of the full computation.",
    torch.allclose(corner, v5[..., :1, :]) and not torch.allclose(corner, full, atol=1e-2),
)
claim("Aligned at the end, the cached step equals that row.", torch.allclose(cached, full, atol=1e-6))

# %% [markdown]
# ### Fully masked rows
#
# It happens: an empty sentence in a batch, a padded query that may see only padding. What *should* a mean over nothing be? Several answers are in use. What do you expect of each?

# %%
set_seed(0)
q3, k3, v3 = torch.randn(2, 4), torch.randn(3, 4), torch.tensor([[1.0], [2.0], [6.0]])
mask3 = torch.tensor([[True, True, False], [False, False, False]])
scores3 = attention_scores(q3, k3)
infinite, billion = (
    scores3.masked_fill(~mask3, c).softmax(-1) for c in (-math.inf, -1e9)
)
in_torch = F.scaled_dot_product_attention(q3[None], k3[None], v3[None], mask3[None])[0]
empty_rows = {
    "fill with -inf": infinite @ v3,
    "fill with -1e9": billion @ v3,
    "torch's sdpa": in_torch,
    "ours, math": attention(q3, k3, v3, mask3, backend="math"),
    "ours, sdpa": attention(q3, k3, v3, mask3, backend="sdpa"),
}

# %%
leaf_v, leaf_q = v3.clone().requires_grad_(), q3.clone().requires_grad_()
(infinite @ leaf_v)[0].sum().backward()  # row 1, all masked, is not read
attention(leaf_q, k3, v3, mask3, backend="math").sum().backward()

# %% tags=["fold", "reveal"]
# @title What each way returns, and what its gradients are
table(
    ["way", "query that sees two keys", "query that sees none"],
    [[name, *out[:, 0].tolist()] for name, out in empty_rows.items()],
)
claim(
    "-inf gives NaN; even if nobody reads that row, the gradients of all values are NaN: $W_v$ would be next.",
    (empty_rows["fill with -inf"][1].isnan().all() & leaf_v.grad.isnan().all()).item(),
)
claim(
    "-1e9 silently gives the mean of the hidden values.",
    torch.allclose(empty_rows["fill with -1e9"][1], v3.mean()),
)
claim(
    "torch's kernel and both of our backends give zeros; the gradient of ours is zero there, not NaN.",
    all(empty_rows[name][1].item() == 0 for name in list(empty_rows)[2:]) and (leaf_q.grad[1].abs().max() == 0).item(),
)

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
    ours = layer(x, mask=padding_mask(real))
    same, _ = twin(x, x, x, key_padding_mask=~real, need_weights=False)
    inverted, _ = twin(x, x, x, key_padding_mask=real, need_weights=False)
    at_padding = layer(x, mask=~padding_mask(real))
    asked, _ = twin(x, x, x, key_padding_mask=real, need_weights=True)

# %% tags=["fold"]
# @title Checked: the inverted mask
claim("With ~mask the twin computes the same at all real words.", torch.allclose(ours[real], same[real], atol=1e-6))
claim(
    "With our mask as it is, it looks at the padding of sentence 2 and nowhere else, without an error.",
    torch.allclose(inverted[1], at_padding[1], atol=1e-6) and not torch.allclose(ours[1], inverted[1], atol=1e-2),
)
claim(
    "Sentence 1, all hidden now, comes out as NaN if the twin is asked for its weights.",
    asked[0].isnan().all(),
)

# %% [markdown]
# And a float mask, meant as 1 = may attend and 0 = hidden, is *added*:

# %%
set_seed(1)
x_float = torch.randn(1, 4, 8)
ones_and_zeros = real[1].float().expand(1, 4, 4)  # meant as a mask
added = F.scaled_dot_product_attention(
    x_float, x_float, x_float, attn_mask=ones_and_zeros
)
float_scores = attention_scores(x_float, x_float) + ones_and_zeros
as_bias = float_scores.softmax(-1) @ x_float
print("added to the scores:", torch.allclose(added, as_bias, atol=1e-5))

# %% tags=["fold"]
# @title Checked: the float mask
claim(
    "A float mask is added: scores of hidden keys fall by 1 against the others, and nothing is hidden.",
    torch.allclose(added, as_bias, atol=1e-5)
    and not torch.allclose(added, attention(x_float, x_float, x_float, real[1]), atol=1e-2),
)

# %% tags=["raises-exception"]
attention(x_float, x_float, x_float, mask=ones_and_zeros)

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
show_source(MultiHeadAttention.forward, MultiHeadAttention.project)

# %% [markdown]
# In self-attention one product makes all queries, keys and values of all heads. (`place` tells them their positions, which is for chapter 08, and `cache` is for chapter 13; here both do nothing.) Then every head is just one more leading axis: `attention` never learns that there are heads.

# %%
set_seed(0)
B, T, S, D, H = 2, 3, 5, 12, 4
layer_st = MultiHeadAttention(D, H)
x_s, y_t = torch.randn(B, S, D), torch.randn(B, T, D)
packed = F.linear(x_s, layer_st.in_proj_weight, layer_st.in_proj_bias)  # (B, S, 3 D)
# (B, H, S, K) each
q_h, k_h, v_h = (split_heads(part, H) for part in packed.chunk(3, dim=-1))
out = attention(q_h, k_h, v_h)  # (B, H, S, K)
step_by_step = layer_st.out_proj(merge_heads(out))  # (B, S, D)
crossed = layer_st(y_t, x_s)  # (B, T, D): y asks, x is asked

# %% tags=["fold"]
# @title The shapes on the way, and what was checked
shapes = {
    "x": (x_s, "(B, S, D)"),
    "in_proj_weight": (layer_st.in_proj_weight, "(3 D, D)"),
    "packed": (packed, "(B, S, 3 D)"),
    "q, k, v": (q_h, "(B, H, S, K)"),
    "weights": (layer_st.attention_weights(x_s), "(B, H, S, S)"),
    "out": (out, "(B, H, S, K)"),
    "merged": (merge_heads(out), "(B, S, D)"),
    "cross-attention: layer(y, x)": (crossed, "(B, T, D)"),
    "its weights": (layer_st.attention_weights(y_t, x_s), "(B, H, T, S)"),
}
table(["what", "shape", "is"], [[name, tuple(each.shape), is_] for name, (each, is_) in shapes.items()])
claim("Step by step it is the layer's output.", torch.allclose(step_by_step, layer_st(x_s), atol=1e-6))
claim(
    "A layer with 4 heads has as many parameters as one with 1: 4 D (D + 1).",
    number_of_parameters(layer_st) == number_of_parameters(MultiHeadAttention(D, 1)) == 4 * D * (D + 1),
    parameters=number_of_parameters(layer_st),
)

# %% [markdown]
# **Common mistake · `view` without `transpose`.** `split_heads` first cuts the last axis, $(B, T, D) \to (B, T, H, K)$, then swaps two axes. `x.view(B, H, T, K)` has the right shape at once. What stands in head 0 then?

# %%
show_source(split_heads, merge_heads)

# %%
tens = 10 * torch.arange(4).view(1, 4, 1)
x = (tens + torch.arange(6)).float()  # (1, 4, 6): 23 is position 2, column 3
split_right, split_wrong = split_heads(x, 2), x.view(1, 2, 4, 3)
print("x, one row a position\n", x[0].int())
print("head 0, split: columns 0 to 2 of every position\n", split_right[0, 0].int())
print("head 0, view: positions 0 and 1, cut into pieces\n", split_wrong[0, 0].int())

# %%
cuts = {
    "split": (split_heads, merge_heads),
    "view": (lambda x, H: x.view(1, H, 4, 3), lambda x: x.reshape(1, 4, 6)),
}
set_seed(0)
x = torch.randn(1, 4, 6)
other = torch.cat([x[:, :1] + 5, x[:, 1:]], dim=1)  # position 0 changes
heard = {}
for way, (cut, join) in cuts.items():
    parts = cut(x, 2), cut(other, 2)  # attention among themselves, in each head
    old, new = (join(attention(part, part, part)) for part in parts)
    heard[way] = [t for t in range(4) if not torch.allclose(old[0, t], new[0, t])]
print("positions that hear of a change at position 0:", heard)

# %% tags=["fold"]
# @title Checked: which positions hear of a change
claim(
    "Split rightly, every position hears of a change at position 0. With view, positions 2 and 3 never do: head 1 holds "
    "these two alone. No shape complained.",
    heard == {"split": [0, 1, 2, 3], "view": [0, 1]},
)

# %% [markdown]
# And `merge_heads` must be the exact inverse: `transpose` back, then `flatten`. A `reshape` without `transpose` scrambles positions again.
#
# ### The same as torch
#
# Our layer has the parameter names of `nn.MultiheadAttention`, so one call loads its weights. It should then compute the same, forward and gradients, on both backends:

# %%
set_seed(0)
torchs = nn.MultiheadAttention(12, 4, batch_first=True).double()
library = MultiHeadAttention(12, 4).double()
library.load_state_dict(torchs.state_dict())
query = torch.randn(2, 3, 12, dtype=torch.float64)
memory = torch.randn(2, 5, 12, dtype=torch.float64)
memory_real = torch.tensor([[True] * 5, [True, True, True, False, False]])
mask = padding_mask(memory_real)
expected, maps_of_torch = torchs(
    query, memory, memory, key_padding_mask=~memory_real, average_attn_weights=False
)
got = library(query, memory, mask=mask)
print("the same as torch:", torch.allclose(got, expected, atol=1e-12))

# %% tags=["fold"]
# @title Checked: torch's numbers, maps and gradients
outputs = {}
for backend in ("math", "sdpa"):
    with attention_backend(backend):
        outputs[backend] = library(query, memory, mask=mask)
claim(
    "On both backends cross-attention with padding equals torch's to 1e-12, and so do the maps of every head.",
    all(torch.allclose(each, expected, atol=1e-12) for each in outputs.values())
    and torch.allclose(library.attention_weights(query, memory, mask=mask), maps_of_torch, atol=1e-12),
)
for each in (torchs, library):
    each.zero_grad()
torchs(query, memory, memory, key_padding_mask=~memory_real)[0].square().sum().backward()
library(query, memory, mask=mask).square().sum().backward()
claim(
    "And the gradients of all parameters, to 1e-10.",
    all(
        torch.allclose(a.grad, b.grad, atol=1e-10)
        for a, b in zip(library.parameters(), torchs.parameters(), strict=True)
    ),
)

# %% [markdown]
# The backend `"math"` is the equation; `"sdpa"`, the default, calls torch's kernel, which, without dropout on the weights, need not hold the whole $(T, S)$ matrix of them: less memory, and faster (chapter 10 measures it). That is why `forward` returns no maps. Who wants to look asks
# `layer.attention_weights`, which computes them apart; `record_attention(model)`, in section 7, collects those of a whole model.

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
banks = ("the river bank was green".split(), "the savings bank was green".split())
index = {word: i for i, word in enumerate(sorted({*banks[0], *banks[1]}))}
embedding, layer_bank = nn.Embedding(len(index), 16), MultiHeadAttention(16, 2)
with torch.no_grad():
    ids = torch.tensor([[index[word] for word in words] for words in banks])
    x_bank = embedding(ids)  # (2, 5, 16)
    after_layer = layer_bank(x_bank)
for name, found in {"before": x_bank, "after": after_layer}.items():
    print(f"{name}: {(found[0, 2] - found[1, 2]).norm():.2f} between bank and bank")

# %% tags=["fold"]
# @title Checked: one word, two contexts
claim(
    "Before, 'bank' is the same vector in both sentences; after, it differs, and so does every other word.",
    torch.equal(x_bank[0, 2], x_bank[1, 2])
    and not any(torch.allclose(*after_layer[:, t], atol=1e-3) for t in range(5)),
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

# %% tags=["fold"]
# @title How many sentences there are
seen = {heads.nouns(s) for s in task.test_sentences}
print(
    f"{len(task.train.ids)} sentences to train, {len(task.test.ids)} to test,",
    f"with {len(seen)} pairs of nouns never trained on together",
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
show_source(heads.TicketReader.context, heads.TicketReader.forward, heads.ticket_loss)

# %% [markdown]
# Before you run on: in a trained model, at which word will a head of the first layer look most, for *it*? And the head of the second? (Training takes some seconds.)

# %%
set_seed(1)
model = heads.TicketReader(len(task.vocab))
heads.train_reader(model, task, epochs=6, seed=1)
quality = heads.coreference_scores(model, task)

# %% tags=["fold", "reveal"]
# @title What the trained reader gets right
claim(
    "On pairs of nouns never seen together, it predicts the right ticket in more than 85 % of the sentences, and its "
    "reading head looks most at the referent in more than 85 %, too; a uniform look would give the referent less than 10 % of its weight.",
    quality["accuracy"] > 0.85 and quality["head_at_referent"] > 0.85 and quality["uniform"] < 0.1,
    accuracy=quality["accuracy"],
    head_at_referent=quality["head_at_referent"],
    uniform=quality["uniform"],
)
claim(
    "In the first layer one head of 'it' looks most at the adjective, which decides, in more than 30 %.",
    quality["head_at_adjective"] > 0.3,
    head_at_adjective=quality["head_at_adjective"],
)

# %%
written = task.test_sentences
all_twins = zip(written[::2], written[1::2], strict=True)
pair = next(  # one tired, one wide
    pair
    for pair in (sorted(both, key=lambda s: s.tokens[-1]) for both in all_twins)
    if [sentence.tokens[-1] for sentence in pair] == ["tired", "wide"]
)
twins = heads.as_batch(pair, task.vocab)
tickets = torch.arange(twins.ids.shape[1]).expand(2, -1)  # any: they change no look
with torch.no_grad(), record_attention(model) as maps:
    model(twins.ids, tickets, twins.real)
first_layer, second_layer = maps["gather"], maps["read"]  # (B, H, T, T) each

# %% tags=["reveal"]
figures.looks_of_it(pair, first_layer, second_layer)

# %% [markdown]
# Is it always so neat? The map above is one pair of twins. All test sentences, by their adjective:

# %% tags=["nbval-ignore-output", "fold"]
# @title All test sentences, by their adjective
at_adjective = heads.looks_of_it(model, task.test)[0] == heads.adjective_of(task.test)[:, None]
last_words = [sentence.tokens[-1] for sentence in task.test_sentences]
right_ticket = heads.right_tickets(model, task.test)
by_adjective = {}
for word in sorted(set(last_words)):
    chosen = torch.tensor([each == word for each in last_words])
    shares = at_adjective[chosen].float().mean(0).tolist()
    neither = (~at_adjective[chosen].any(1)).float().mean().item()
    by_adjective[word] = [*shares, neither, right_ticket[chosen].float().mean().item()]
table(
    ["adjective", "gather, head 0 looks there", "gather, head 1", "neither", "right answers"],
    [[word, *row] for word, row in by_adjective.items()],
)

# %% [markdown]
# Look down the column *neither* (which adjectives have a large number there depends on the training): is the model wrong at those? Usually not; in the recorded runs below, too, it is right far more often than its best head is at the adjective. How can that be? With two candidates, "I have *not* seen *wide*" is as good as "I have seen *tired*". Not to look can be an answer, too. Remember it when you miss a look in somebody's map.
#
# So a missing look is no proof, and neither is a look. What would be one? Change the computation: hide the adjective from `gather`, and from nothing else. Then hide the word before it, *too*, instead.

# %%
guess_hidden = predict("the accuracy with the adjective hidden, from 0 to 1", ...)


# %%
@torch.no_grad()
def accuracy_without(hidden):
    """Nothing can be gathered from the positions in hidden (B,), one a sentence."""
    test, rows = task.test, torch.arange(len(task.test.ids))
    B, T = test.ids.shape
    visible = test.real & (torch.arange(T) != hidden.unsqueeze(1))  # (B, T)
    x = model.words(test.ids)
    h = x + model.gather(x, mask=padding_mask(visible))
    drawn = heads.draw_tickets(1, T, torch.Generator().manual_seed(0)).expand(B, T)
    y = model.read(h, x, model.tickets(drawn), mask=padding_mask(test.real))
    told = model.output(y)[rows, test.pronoun].argmax(1)
    return (told == drawn[rows, test.referent]).float().mean().item()


adjectives = heads.adjective_of(task.test)  # (B,): the place of each
without_adjective = accuracy_without(adjectives)
without_too = accuracy_without(adjectives - 1)  # "too", in every sentence

# %% tags=["fold", "reveal"]
# @title Right answers with one word hidden
guess_hidden.compare(round(without_adjective, 2))
claim(
    "With the adjective hidden from the first layer it is right in about half; with the word before it hidden, 'too', in "
    "more than 3 of 4.",
    0.3 < without_adjective < 0.6 and without_too > 0.75,
    accuracy_without_the_adjective=without_adjective,
    without_too=without_too,
)

# %% [markdown]
# Without the adjective the two twins are the same to the model, so of each pair it can get at most one right: half. Now we know that the answer goes *through* the adjective, whatever the maps look like.

# %% tags=["fold"]
# @title The trained reader on any sentence of this language
from course_lib.notebook.recorder import explore_sentence
from course_lib.text import numericalize, pad_batch


def words_and_ids(sentence):
    """The words of a sentence, and what the reader is called with: their ids, and tickets, which change no look."""
    words = sentence.split()
    unknown = sorted(set(words) - set(task.vocab.itos))
    if unknown:
        raise ValueError(f"not in this language: {', '.join(unknown)}; see sorted(task.vocab.itos)")
    ids, _ = pad_batch([numericalize(words, task.vocab)])
    return words, ids, torch.zeros_like(ids)


def explore_reader(*sentences):
    """Show where the trained reader looks in sentences of your own."""
    return explore_sentence(
        model,
        words_and_ids,
        *sentences,
        part="read",
        query="it",
        title="A trained reader",
        alt="Attention maps of the trained reader: one layer gathers with two heads, one reads with one head. Shown "
        "first is where each word looks when it reads, in a sentence that ends in 'tired'; a switch leads to its twin.",
        caption="Whose row can you trust? That of *it*. Most other words look at the same noun: they gather the same "
        "adjective, and nobody ever asked them. A row that was not trained for a task says nothing.",
    )


# %% [markdown]
# The famous sentence, with both its ends. The words are tinted by the weight that *it* gives them. (A picture stands here where scripts do not run.)
#
# **Question.** Keep *it* chosen, and switch between the two sentences. Under `gather`: what does *it* take in? Under `read`: where does it look then? Now raise the temperature, the number by which the scores are divided once more. How high must it be before *it* gives its noun less than a half, and which numbers of the two nouns decide that?
#
# Then write sentences of your own, from the words in `sorted(task.vocab.itos)`, and run the cell again. Can you find one that the model reads wrongly?

# %%
explore_reader(
    "the animal didn't cross the street because it was too tired",
    "the animal didn't cross the street because it was too wide",
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
# *One head at the referent* is for one head of the last layer, chosen on the *training* sentences. What will each of them score?

# %%
guess_one_layer = predict("the accuracy of the reader with one layer, from 0 to 1", ...)

# %% tags=["reveal"]
figures.readers()
one_layer_right = ledger.summary("coreference-heads", "one layer", "accuracy")[0]
guess_one_layer.compare(round(one_layer_right, 2))

# %% tags=["fold", "reveal"]
# @title Checked: ours and its rivals, in every recorded seed
recorded = {
    name: {
        metric: ledger.values("coreference-heads", name, metric)
        for metric in ("accuracy", "both_twins", "head_at_referent", "any_head_at_referent")
    }
    for name in heads.READERS
}
one, causal, shallow = (recorded[name] for name in ("one reading head", "causal mask", "one layer"))
recorded_at_adjective = ledger.values("coreference-heads", "one reading head", "head_at_adjective")
claim(
    "Ours resolves 'it' in every seed: its accuracy and its head at the referent are above 0.85; it is right in more "
    "sentences, by more than 1 in 10, than its best gathering head looks at the adjective.",
    min(one["accuracy"] + one["head_at_referent"]) > 0.85
    and all(a > b + 0.1 for a, b in zip(one["accuracy"], recorded_at_adjective, strict=True)),
    accuracy=one["accuracy"],
    head_at_referent=one["head_at_referent"],
    head_at_adjective=recorded_at_adjective,
)
claim(
    "Under the causal mask both twins are never right, and the accuracy is one half at best; with one layer it is below "
    "0.55; the head of either is at the referent in half of the sentences at best.",
    max(causal["both_twins"]) == 0
    and max(causal["accuracy"] + causal["head_at_referent"] + shallow["head_at_referent"]) <= 0.5
    and max(shallow["accuracy"]) < 0.55,
    causal_accuracy=causal["accuracy"],
    one_layer_accuracy=shallow["accuracy"],
    causal_head=causal["head_at_referent"],
    one_layer_head=shallow["head_at_referent"],
)

# %% [markdown]
# Live, the same can be seen without any score: train a reader under the causal mask, and compare its maps of the two twins.

# %%
set_seed(0)
blind = heads.TicketReader(len(task.vocab), causal=True)
heads.train_reader(blind, task, epochs=3)
# (2, H, T) each: the rows of "it", in both twins
map_a, map_b = (each[:, :, pair[0].pronoun] for each in heads.maps(blind, twins))

# %% tags=["fold"]
# @title Checked: a causal reader cannot tell the twins
claim(
    "Under the causal mask 'it' has the same maps in both twins.",
    torch.allclose(map_a[0], map_a[1], atol=1e-6) and torch.allclose(map_b[0], map_b[1], atol=1e-6),
)

# %% [markdown]
# Why can *one layer* not resolve it? Its query comes from the word *it* alone, its keys from single words: for each head the two nouns' weights have the same ratio in both twins. A look that depends on *another* word needs two layers, one to learn what to ask, one to ask.
#
# ### What a map proves, and what it does not
#
# Look at the reader with two reading heads in the figure. **Does one of its heads always look at the referent when the model is right?**

# %% tags=["fold", "reveal"]
# @title Checked: right answers without a head
two = recorded["two reading heads"]
shared = [right > 0.9 and at < 0.75 for right, at in zip(two["accuracy"], two["head_at_referent"], strict=True)]
claim(
    "With two reading heads, in at least one seed of the three: right in over 9 of 10, but its best head is there in under 3 of 4. In that "
    "seed 'some head looks there' is true far more often than 'this head looks there'.",
    any(shared)
    and all(
        some > alone + 0.2
        for some, alone, is_shared in zip(two["any_head_at_referent"], two["head_at_referent"], shared, strict=True)
        if is_shared
    ),
    accuracy_by_seed=two["accuracy"],
    one_head=two["head_at_referent"],
    some_head=two["any_head_at_referent"],
)

# %% [markdown]
# Two heads can share the work: say, one mostly at the first noun, one mostly at the second, and what decides is how *much* each of them looks. Then no single map shows it, though the same model, trained from another seed, lets a single head look at the referent nearly always. And the more heads there are, the less it means that *some* head looks at the right word: choose the head *before* you look at the test sentences.
#
# There is a limit that no choice of heads removes. The output has $E$ entries; with more keys than that, $S > E + 1$, *other* weights give the very same output (Brunner et al. 2020). Here are 12 keys with values of width 4; one key has more weight than any other. How much weight can move without changing the output?

# %%
guess_moved = predict("the part of the weight that moves, from 0 to 1", ...)

# %%
set_seed(0)
S, E = 12, 4
v_twelve = torch.randn(S, E, dtype=torch.float64)
one_map = attention_weights(1.5 * torch.randn(S, dtype=torch.float64))
# to keep: the output and the sum of the weights, E + 1 conditions
kept = torch.cat([v_twelve, torch.ones(S, 1)], dim=1)
change = -F.one_hot(one_map.argmax(), S).double()  # take from the largest weight ...
least = torch.linalg.lstsq(kept, change.unsqueeze(1)).solution.squeeze(1)
change = change - kept @ least  # ... and keep output and sum
far = (one_map / -change)[change < 0].min()  # until the first weight is 0
another = (one_map + far * change).clamp(min=0)

# %% tags=["reveal"]
figures.two_maps(one_map, another)

# %% tags=["fold", "reveal"]
# @title Checked: the same output, and how much has moved
amount = (another - one_map).abs().sum() / 2
guess_moved.compare(round(amount.item(), 2))
claim(
    "Both maps are nowhere negative and add up to 1, and their outputs are equal to 1e-12.",
    (another.min() >= 0).item()
    and (abs(another.sum() - 1) < 1e-12).item()
    and torch.allclose(one_map @ v_twelve, another @ v_twelve, atol=1e-12),
)
claim(
    "More than two fifths of the weight have moved, and the first map's favourite has lost more than half.",
    (amount > 0.4).item() and (another[one_map.argmax()] < one_map.max() / 2).item(),
    moved=amount,
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
rows = torch.arange(2)
weaker = torch.tensor([s.distractor for s in pair])
swapped = tickets.clone()  # the two nouns exchange their tickets
swapped[rows, twins.referent] = tickets[rows, weaker]
swapped[rows, weaker] = tickets[rows, twins.referent]
with torch.no_grad():
    told, told_after = (
        model(twins.ids, each, twins.real)[rows, twins.pronoun].argmax(1)
        for each in (tickets, swapped)
    )

# %% tags=["fold"]
# @title Checked: swapped tickets, and shuffled words
claim(
    "The test: swap the tickets of the two nouns, and the answer swaps with them.",
    torch.equal(told, twins.referent) and torch.equal(told_after, weaker),
)
order = torch.randperm(int(twins.real[0].sum()), generator=torch.Generator().manual_seed(1))
with torch.no_grad():
    shuffled = model(twins.ids[:1, order], tickets[:1, order])[0, (order == twins.pronoun[0]).nonzero().item()]
print(" ".join(pair[0].tokens[i] for i in order))
claim("And one more: shuffle the words, and this model gives the same answer.", shuffled.argmax() == told[0])

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
        maps.append(layer.attention_weights(x, mask=mask))
        x = x + layer(x)
    return maps


# %% [markdown]
# Write the right one.


# %% nbgrader={"grade": false, "grade_id": "ex07-5-stack-maps", "locked": false, "schema_version": 3, "solution": true, "task": false}
def stack_maps(layers, x, mask):
    """The attention maps of a stack that computes x = x + layer(x, mask=mask), layer by layer.

    Args:
        layers: N layers; layer(x, mask=mask) -> (B, T, D),
            layer.attention_weights(x, mask=mask) -> (B, H, T, T).
        x: (B, T, D), what the first layer reads.
        mask: bool, True = may attend, broadcasts to (B, H, T, T); of padding,
            as in the check, it is (B, 1, 1, T).

    Returns:
        list of N tensors (B, H, T, T).
    """
    ### BEGIN SOLUTION
    maps = []
    for layer in layers:
        maps.append(layer.attention_weights(x, mask=mask))
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
        x, h = model.context(twins.ids, padding_mask(twins.real))
        W_q, W_k, _ = model.read.in_proj_weight.split(32)
        b_q, b_k, _ = model.read.in_proj_bias.split(32)
        # one head; of two, split_heads first
        q, k = F.linear(h, W_q, b_q), F.linear(x, W_k, b_k)
        scores = attention_scores(sharpness * q, k)
        weights = attention_weights(scores, twins.real.unsqueeze(1))
        looks = weights[0, pair[0].pronoun]
    rows.append(
        [
            sharpness,
            pair[0].tokens[looks.argmax()],
            looks.max().item(),
            attention_scaling.softmax_jacobian(looks).norm().item(),
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
# 4. Masks say who may look at whom: boolean, True = may attend, broadcast to (B, H, T, S); the opposite in `nn.MultiheadAttention`; with a cache the triangle is aligned at the end; a row that sees nothing gives zeros.
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
