# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 280
#     needs: "chapters 05 (GRU) and 06 (attention in a decoder)"
# ---

# %% [markdown]
# # 07 · Attention
#
# Eight pairs are shown, a letter with a digit each: `c 4`, `h 0`, `a 7`, … Then one of the letters comes again. Which digit came with it? Two models are trained on this memory task. The first is a GRU with 17,162 parameters, and it gets 1,000 updates. The second has 2,346 parameters, gets 100 updates, and has no recurrence at all: it is little more than *attention*, the look back that helped a recurrent decoder in chapter 06. **How often will the GRU be right?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("memory_task")

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
from course_lib.experiments import attention_recall as recall
from course_lib.experiments import attention_scaling, coreference
from course_lib.functional import causal_mask, padding_mask
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch07 as figures
from course_lib.positional import RelativeBias
from course_lib.train import set_seed

torch.set_printoptions(precision=2, sci_mode=False)
set_seed(0)

# %% [markdown]
# The next cell takes your guess; the one after trains both models, at different learning rates, and keeps their accuracy on 2,000 new sequences. Section 6 writes out the loop and tries other rates.

# %%
guess_gru = predict("the GRU's accuracy after 1,000 updates (guessing: 0.1)", ...)

# %%
set_seed(0)
gru = recall.RecurrentReader("GRU", 64)
gru_right = recall.train_reader(gru, rate=0.005, seed=0, marks=[1000])[-1]
set_seed(0)
looks_up = recall.AttentionReader(32)
attention_right = recall.train_reader(looks_up, rate=0.01, seed=0, marks=[100])[-1]

# %% tags=["fold", "reveal"]
# @title Who remembered? 2,000 new sequences
guess_gru.compare(round(gru_right, 2))
seen, seen_answers = recall.draw(2000, torch.Generator().manual_seed(1))
most_frequent = seen[:, :-1, 10:].sum(1).argmax(1)  # the digit that came most often
claim(
    "After 1,000 updates the GRU is right less than 4 times in 10; attention, after 100, more than 9 times in 10.",
    gru_right < 0.4 and attention_right > 0.9,
    gru=gru_right,
    attention=attention_right,
    **{"the most frequent digit, always": (most_frequent == seen_answers).float().mean()},
)

# %% [markdown]
# The GRU must write eight pairs into one state *before* it knows what will be asked. The other model keeps all pairs, and looks one up once the question is there. You build that look-up from one sentence of four words, step by step, until one class is whole. At the end such layers learn the memory task, and which noun the word *it* stands for.
#
# *Sections 1 to 5 build the class, and section 6 trains one head of it, in an hour and a half; exercises 7.1 to 7.4 follow, 90 minutes. Section 7, with 7.5 to 7.7, fills a second sitting.*
#
# ### You will be able to
#
# 1. calculate a small attention by hand: weights, variance, slope (exercise 7.1);
# 2. write scaled dot-product attention with masks and all corner cases (7.2);
# 3. build multi-head attention from it, and give the shape on every arrow (7.3, 7.4, 7.5);
# 4. find a bug that changes no shape (7.6), and say what weights prove (7.7).
#
# **Letters.** `B` batch, `T` words of a sequence, `D` width of a model. Vectors are rows, as in torch: $x W^\top$ is what `nn.Linear` computes, up to the bias.

# %% [markdown]
# ## 1 · One sentence, every matrix
#
# How does a word look something up? A *bank* is the side of a river in one sentence and a company in the next, yet an embedding gives it the same vector in both. It would be better if each word could look at the others and take in what is relevant to it. We do this by hand, for four words with four numbers each. In a trained model such numbers have no names. Here they do, so that you can read every matrix.

# %%
words = ["the", "river", "bank", "collapsed"]
x = torch.tensor(
    [  # water, money, thing, event
        [0.0, 0.0, 0.0, 0.0],  # the
        [2.0, 0.0, 0.0, 0.0],  # river
        [0.5, 0.5, 1.0, 0.0],  # bank: a little of both
        [0.0, 0.0, 0.0, 2.0],  # collapsed
    ]
)  # (T, D)

# %% [markdown]
# Begin with one word, *bank*. It asks, and all four words answer, *bank* itself among them.

# %%
diagrams.show("bank_asks")

# %% [markdown]
# From left to right, in three lines. **Scores.** How well does each word fit *bank*? Take their dot product. For *river* it is $2 \cdot 0.5 + 0 \cdot 0.5 + 0 \cdot 1 + 0 \cdot 0 = 1$. One product of `x` with `bank` gives all four.

# %%
bank = x[2]  # (D,)
scores_bank = x @ bank  # (T, D) @ (D,) -> (T,)
print("scores (T,)", scores_bank)

# %% [markdown]
# **Weights.** A softmax turns the scores into positive numbers that add up to 1: $e^0, e^1, e^{1.5}, e^0$, divided by their sum, 9.2.

# %%
weights_bank = scores_bank.softmax(dim=0)  # (T,)
print("weights (T,)", weights_bank, "sum", weights_bank.sum())

# %% [markdown]
# **Output.** *Bank* becomes the weighted mean of all words. Its water, for example, comes from *river* and from itself: $0.295 \cdot 2 + 0.487 \cdot 0.5 = 0.83$.

# %%
h_bank = weights_bank @ x  # (T,) @ (T, D) -> (D,)
print("output (D,)", h_bank)

# %% [markdown]
# For all four words the three lines stay the same, with `x` in place of `bank`. In the matrices, row $t$ asks and column $s$ is asked.

# %%
scores = x @ x.T  # (T, D) @ (D, T) -> (T, T)
weights = scores.softmax(dim=-1)  # (T, T), each row adds up to 1
h = weights @ x  # (T, T) @ (T, D) -> (T, D)
print("scores (T, T)", scores, "weights (T, T)", weights, sep="\n")
print("output (T, D)", h, sep="\n")

# %% [markdown]
# The third row is the one you computed. *Bank* had as much water as money, and now it has more water: it has taken in the river. What if the second word is *savings*?

# %%
x_savings = x.clone()
x_savings[1] = torch.tensor([0.0, 2.0, 0.0, 0.0])  # all money
h_savings = (x_savings @ x_savings.T).softmax(dim=-1) @ x_savings  # (T, D)
print("water, money, thing, event")
print("bank, alone        (D,)", x[2])
print("bank after river   (D,)", h[2])
print("bank after savings (D,)", h_savings[2])

# %% [markdown]
# One word, three vectors. The three lines (scores, weights, output) are **self-attention**: each word looks at all others and mixes what it finds. But who decides what fits whom?

# %% [markdown]
# ## 2 · Three roles: query, key, value
#
# So far similarity decides, and that is not always what a word needs. Of vectors of equal length, a word fits itself best; here *river*, *bank* and *collapsed* do. So *collapsed* looks at itself. But it should find out *what* collapsed, and a verb is not similar to its subject. And *river* fits *bank* exactly as well as *bank* fits *river*: the matrix of scores is symmetric.
#
# The reason is that one vector plays three parts: it asks, it is asked, and it is what comes back. Now each word gets a vector for each part, made by a matrix of its own:
#
# - the **query** $q_t = x_t W_q^\top$: what do I look for?
# - the **key** $k_s = x_s W_k^\top$: what can I be found by?
# - the **value** $v_s = x_s W_v^\top$: what do I pass on to those who find me?
#
# In a model the matrices are learned; here we choose them, with $K = 2$ numbers in each vector:

# | | first number | second number | for example |
# |---|---|---|---|
# | query | "I look for a topic" | "I look for a thing" | a thing, *bank*, asks the first; an event, *collapsed*, the second |
# | key | "I have a topic" | "I am a thing" | *river* answers the first, *bank* both |
# | value | water | money | what is passed on |
#
# A river is a thing, too. We leave its third number at 0, so that *bank* is the only noun to collapse. What becomes of *bank*:

# %%
diagrams.show("three_roles")

# %%
W_q = torch.tensor(
    [  # water, money, thing, event
        [0.0, 0, 1, 0],  # a thing asks for a topic
        [0.0, 0, 0, 1],  # an event asks for a thing
    ]
)  # (K, D)
W_k = torch.tensor(
    [
        [2.0, 2, 0, 0],  # water or money: a topic; 2 makes a stronger match than 1
        [0.0, 0, 2, 0],  # a thing
    ]
)
W_v = torch.tensor([[1.0, 0, 0, 0], [0.0, 1, 0, 0]])  # row 1: water; row 2: money
q, k, v = x @ W_q.T, x @ W_k.T, x @ W_v.T  # (T, K) each
print("queries (T, K)", q, "keys (T, K)", k, "values (T, K)", v, sep="\n")

# %% [markdown]
# Then the same three lines, with `q`, `k` and `v` where `x` stood. One thing is new: the scores are divided by $\sqrt K$. For *bank*:

# %%
diagrams.show("bank_asks_by_role")

# %%
scores_qk = q @ k.T / math.sqrt(2)  # K = 2; (T, K) @ (K, T) -> (T, T)
weights_qk = scores_qk.softmax(dim=-1)  # (T, T)
h_qk = weights_qk @ v  # (T, T) @ (T, K) -> (T, K)
print("scores (T, T)", scores_qk, "weights (T, T)", weights_qk, sep="\n")
print("output (T, K)", h_qk, sep="\n")

# %%
figures.word_weights(words, weights, weights_qk)

# %% [markdown]
# *River* has a query of zeros, and so looks at all words alike: its output is their mean. The scores need not be symmetric any more: *bank* gives *river* 2.83, and *river* gives *bank* 0.
#
# In one formula, with a row for each word in $q$, $k$ and $v$, as in the code:
#
# $$ \mathrm{attention}(q, k, v) = \mathrm{softmax}\Big( \frac{q\, k^\top}{\sqrt K} \Big)\, v. $$
#
# Now as a class whose matrices can be trained. Each becomes an `nn.Linear`, and `.mT` transposes the last two axes, so that the same lines serve a whole batch.

# %%
class PlainAttention(nn.Module):
    def __init__(self, D, K):
        super().__init__()
        self.K = K
        self.W_q = nn.Linear(D, K, bias=False)
        self.W_k = nn.Linear(D, K, bias=False)
        self.W_v = nn.Linear(D, K, bias=False)

    def forward(self, x):  # (B, T, D)
        q, k, v = self.W_q(x), self.W_k(x), self.W_v(x)  # (B, T, K) each
        scores = q @ k.mT / math.sqrt(self.K)  # (B, T, T)
        weights = scores.softmax(dim=-1)  # (B, T, T)
        return weights @ v  # (B, T, K)

# %% [markdown]
# We put our own matrices in, fixed, and pass both sentences as a batch:

# %%
def with_matrices(layer, W_q, W_k, W_v):  # (K, D) each
    layer.W_q.weight = nn.Parameter(W_q)
    layer.W_k.weight = nn.Parameter(W_k)
    layer.W_v.weight = nn.Parameter(W_v)
    return layer.requires_grad_(False)


sentences = torch.stack([x, x_savings])  # (B, T, D)
layer = with_matrices(PlainAttention(D=4, K=2), W_q, W_k, W_v)
found = layer(sentences)  # (B, T, K)
print("output (B, T, K)", tuple(found.shape))
print("bank after river:   water, money", found[0, 2])
print("bank after savings: water, money", found[1, 2])

# %% [markdown]
# That is a complete layer of self-attention: *bank* is water after *river* and money after *savings*. Only the division by $\sqrt K$ is unexplained.

# %% [markdown]
# ## 3 · Why divide by the root?
#
# With $K = 2$ it only made the weights a little more even. But in large models queries and keys often have 64 or 128 numbers, and before training these are random. Suppose that their numbers are independent, with mean 0 and variance 1. (`nn.Linear` starts with a smaller variance; its scores are smaller, and grow with the width in the same way.) Each product $q_i k_i$ has mean 0 and variance 1, and $q \cdot k$ adds up $K$ of them: its variance is $K$, its standard deviation $\sqrt K$. At a very large width, $K = 1024$, that should be 32:

# %%
generator = torch.Generator().manual_seed(1024)
q_random = torch.randn(200, 1, 1024, generator=generator)  # 200 queries
k_random = torch.randn(200, 32, 1024, generator=generator)  # 32 keys for each
scores_random = q_random @ k_random.mT  # (200, 1, 32)
print(f"standard deviation of the scores: {scores_random.std():.1f}")

# %% [markdown]
# So wide vectors have large scores, by chance alone, and the softmax turns differences of scores into ratios of weights. With 32 keys, equal weights would be 0.03 each. How large is the largest?

# %%
guess_weight = predict("the largest of 32 weights at width 1024, without root", ...)

# %%
largest = scores_random.softmax(dim=-1).amax(dim=-1)  # (200, 1)
largest_divided = (scores_random / math.sqrt(1024)).softmax(dim=-1).amax(dim=-1)
undivided, divided = largest.mean().item(), largest_divided.mean().item()

# %% tags=["fold", "reveal"]
# @title The largest weight
guess_weight.compare(round(undivided, 2))
claim(
    "At K = 1024 the largest of 32 weights is above 0.9 without the root, and below 0.25 with it.",
    undivided > 0.9 and divided < 0.25,
    without=undivided,
    with_the_root=divided,
)

# %% [markdown]
# One key takes nearly everything. Why is that bad? Every gradient to queries and keys must pass the softmax. Take two keys. How fast does $w_1$ change with its own score? By $w_1 (1 - w_1)$: that is 0.25 for weights of 0.5 and 0.5, and 0.0099 for 0.99 and 0.01. In general
#
# $$ \frac{\partial w_i}{\partial a_j} = w_i\,(\delta_{ij} - w_j), $$
#
# where $a_j$ is a score and $\delta_{ij}$ is 1 for $i = j$, otherwise 0. Call the matrix of these slopes $J$. If one weight is 1 and the others are 0, $J$ is 0: the softmax is **saturated**, and the choice that chance has made can hardly be revised.
#
# For one query, with the simplest loss: each key has one random number, and their weighted mean is the loss.

# %%
set_seed(0)
query = torch.randn(1024, requires_grad=True)  # (K,)
keys = torch.randn(32, 1024)  # (S, K)
number = torch.randn(32)  # (S,), one for each key
for divide_by in (1, math.sqrt(1024)):
    loss = (keys @ query / divide_by).softmax(dim=0) @ number
    (gradient,) = torch.autograd.grad(loss, query)  # (K,)
    print(f"divided by {divide_by:2.0f}: length of the gradient {gradient.norm():.1e}")

# %% [markdown]
# One query, and an extreme draw. Here are 500 at each width, in three seeds; watch the median.

# %%
figures.query_gradients()

# %% tags=["fold"]
# @title In numbers, in each of three seeds
at_1024 = {
    (way, part): [run[-1] for run in ledger.values("attention-scaling", way, f"gradient_{part}")]
    for way in ("without", "with the root")
    for part in ("mean", "median", "low", "high")
}
claim(
    "At K = 1024, without the root the median gradient is less than a hundredth of the mean; with it the quartiles are within a factor of 2.",
    all(
        median < mean / 100
        for median, mean in zip(at_1024["without", "median"], at_1024["without", "mean"], strict=True)
    )
    and all(
        high < 2 * low
        for high, low in zip(at_1024["with the root", "high"], at_1024["with the root", "low"], strict=True)
    ),
    median_without=at_1024["without", "median"],
    mean_without=at_1024["without", "mean"],
    median_with=at_1024["with the root", "median"],
)

# %% [markdown]
# The root does not help every query; it saves those that chance saturates. At 1024 without it, the median gradient is almost nothing. Up to 64 the median is even *larger* without it, but some queries are lost already. Count a query as saturated if the norm of its $J$, over all entries, is below a hundredth of that at equal weights: about one in nine at 64, four in ten at 256, six in ten at 1024; divided by $\sqrt K$, none. So the division keeps the gradients of random queries alive, and in wide heads even that of the typical query.
#
# Every word still looks at all others. May it?

# %% [markdown]
# ## 4 · Who may look at whom
#
# Not always. A model that predicts the next word must not see it, and the padding of a batch is no word at all. A **mask** says who may look at whom. It is boolean, and in this course **True = may attend**. Rows are queries, columns are keys:

# %%
diagrams.show("masks")

# %% [markdown]
# The causal mask on our four words: hidden scores become $-\infty$, *before* the softmax, so that what is left still adds up to 1.

# %%
mask = torch.ones(4, 4, dtype=torch.bool).tril()  # (T, T), True up to the diagonal
masked = scores_qk.masked_fill(~mask, -math.inf)  # (T, T)
weights_masked = masked.softmax(dim=-1)  # (T, T)
print("masked scores (T, T)", masked, "weights (T, T)", weights_masked, sep="\n")

# %% [markdown]
# Only *collapsed* sees everything. Padding is hidden in the same way. A boolean tensor `real`, (B, S), is True for words and False for padding. One more axis, for the queries, makes it (B, 1, S). A causal mask is (T, T), the same for all sentences. The two combine with `&`. Suppose the sentence about *savings* had two words and two rows of padding:

# %%
real = torch.tensor([[True, True, True, True], [True, True, False, False]])  # (B, S)
both = real[:, None, :] & mask  # (B, 1, S) & (T, S) -> (B, T, S)
print("mask (B, T, S)", tuple(both.shape))
print("second sentence (T, S)", both[1].int(), sep="\n")

# %% [markdown]
# The last two rows belong to the padding, which still asks; nobody reads the answers.
#
# So far a sentence looks at itself. Can one text look at another, as a translation looks at its source? Then queries come from `x`, but keys and values from the other text, which we call `memory`. $T$ queries meet $S$ keys, and usually $T \ne S$. Here *bank*, a single word, asks the sentence about *savings* what it means there:

# %%
memory = x_savings  # (S, D), S = 4
q_bank = x[2:3] @ W_q.T  # (T, K), T = 1
k_memory, v_memory = memory @ W_k.T, memory @ W_v.T  # (S, K) each
weights_memory = (q_bank @ k_memory.T / math.sqrt(2)).softmax(dim=-1)  # (T, S)
h_memory = weights_memory @ v_memory  # (T, S) @ (S, K) -> (T, K)
print("weights (T, S)", weights_memory)
print("output (T, K)", h_memory)

# %% [markdown]
# That is the vector of section 2, money: a query need not be part of what it looks at. This is **cross-attention**. Now the class gains `memory` and `mask`, and keeps its attention weights, so that we can look at them:

# %%
class PlainAttention(nn.Module):
    def __init__(self, D, K):
        super().__init__()
        self.K = K
        self.W_q = nn.Linear(D, K, bias=False)
        self.W_k = nn.Linear(D, K, bias=False)
        self.W_v = nn.Linear(D, K, bias=False)

    def forward(self, x, memory=None, mask=None):  # x (B, T, D), memory (B, S, D)
        memory = x if memory is None else memory  # new
        q, k, v = self.W_q(x), self.W_k(memory), self.W_v(memory)  # (B, T or S, K)
        scores = q @ k.mT / math.sqrt(self.K)  # (B, T, S)
        if mask is not None:  # new: broadcasts to (B, T, S)
            scores = scores.masked_fill(~mask, -math.inf)  # new
        self.weights = scores.softmax(dim=-1)  # (B, T, S), new: kept
        return self.weights @ v  # (B, T, K)


first_head = with_matrices(PlainAttention(D=4, K=2), W_q, W_k, W_v)
print("as by hand:", torch.allclose(first_head(x[2:3], memory), h_memory))

# %% [markdown]
# Does the mask do its job? A test for every model: *change position $s$: every output that is not allowed to see $s$ must stay the same*, to the last bit. We change the last word of the first sentence, and the padding of the second.

# %%
changed = sentences.clone()  # (B, T, D)
changed[0, 3] += 5  # "collapsed"
changed[1, 2:] += 5  # the padding
for name, allowed in {"masked": both, "no mask": None}.items():
    old = first_head(sentences, mask=allowed)  # (B, T, K)
    new = first_head(changed, mask=allowed)
    print(f"{name}: earlier words unchanged:", torch.equal(old[0, :3], new[0, :3]))
    print(f"{name}: real words unchanged:   ", torch.equal(old[1, :2], new[1, :2]))

# %% [markdown]
# Nothing that the mask hides has leaked. So one class serves three kinds:
#
# | kind | queries from | keys and values from | hidden |
# |---|---|---|---|
# | self-attention | $x$ | $x$ | padding |
# | masked (causal) self-attention | $x$ | $x$ | padding, and what comes later |
# | cross-attention | $x$ | memory | padding of the memory |
#
# But a word still gets only one answer, one mean. What if it has two questions?

# %% [markdown]
# ## 5 · Several heads
#
# Suppose *bank* needs its topic *and* what happened to it. One softmax shares one unit of weight among all questions: what goes to *collapsed* is taken from *river*. So let it look twice: $H = 2$ **heads**, each with a unit of its own, and its own $W_q$, $W_k$ and $W_v$. The first is that of section 2; in the second head things look for events, and the values carry event and thing. The outputs are put side by side.

# %%
W_q2 = torch.tensor([[0.0, 0, 3, 0], [0, 0, 0, 0]])  # query for an event; 3: strong
W_k2 = torch.tensor([[0.0, 0, 0, 1], [0, 0, 0, 0]])  # key: an event
W_v2 = torch.tensor([[0.0, 0, 0, 1], [0, 0, 1, 0]])  # value: event and thing
second_head = with_matrices(PlainAttention(D=4, K=2), W_q2, W_k2, W_v2)
h_both = torch.cat([first_head(x), second_head(x)], dim=-1)  # (T, H K)
print("water, money | event, thing (T, H K)", h_both, sep="\n")

# %% [markdown]
# Now *bank* has both answers, each in its own columns. With $K = D / H$ the concatenated heads have the width $D$ again. As a class: a list of heads, and one more matrix, $W_o$, that lets their numbers mix.

# %%
class PlainMultiHead(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.heads = nn.ModuleList(PlainAttention(D, D // H) for _ in range(H))
        self.W_o = nn.Linear(D, D, bias=False)

    def forward(self, x, memory=None, mask=None):  # (B, T, D)
        outputs = [head(x, memory, mask) for head in self.heads]  # (B, T, K) each
        return self.W_o(torch.cat(outputs, dim=-1))  # (B, T, D)


print("output (B, T, D)", tuple(PlainMultiHead(D=4, H=2)(sentences).shape))

# %% [markdown]
# Can it do without the loop? Stack the heads along one more axis, which `@` treats like a batch. For one sentence, queries (H, T, K) and keys (H, S, K) give scores (H, T, S), one matrix for each head. The first head has section 2's `q`, `k` and `v`:

# %%
q_heads = torch.stack([q, x @ W_q2.T])  # (H, T, K)
k_heads = torch.stack([k, x @ W_k2.T])  # (H, S, K)
v_heads = torch.stack([v, x @ W_v2.T])  # (H, S, K)
scores_heads = q_heads @ k_heads.mT / math.sqrt(2)  # (H, T, S)
weights_heads = scores_heads.softmax(dim=-1)  # (H, T, S)
h_heads = weights_heads @ v_heads  # (H, T, K)
print("scores (H, T, S)", tuple(scores_heads.shape))
print("output (H, T, K)", tuple(h_heads.shape))
print("as before:", torch.allclose(torch.cat([h_heads[0], h_heads[1]], dim=-1), h_both))

# %% [markdown]
# The matrices can be joined, too. Put the heads' $W_q$ one above the other, and they are one matrix (D, D): a single product makes the queries of all heads, side by side, (B, T, D).
#
# Then they are cut, in two steps. `unflatten` cuts each position's $D$ numbers into $H$ heads of $K$; `transpose` moves the axis of the heads in front of the positions. The way back is the same two steps, undone: `transpose`, then `flatten`. Try it on numbers that say where they stand: 23 is number 3 of position 2.

# %%
diagrams.show("cut_and_merge")

# %%
tens = 10 * torch.arange(4).view(1, 4, 1) + torch.arange(6)  # (B, T, D)
cut = tens.unflatten(-1, (2, 3))  # (B, T, H, K)
halves = cut.transpose(1, 2)  # (B, H, T, K)
print("all (T, D)", tens[0], sep="\n")
print("head 0 (T, K)", halves[0, 0], "head 1 (T, K)", halves[0, 1], sep="\n")
merged = halves.transpose(1, 2).flatten(-2)  # (B, T, H, K) -> (B, T, D)
print("merged again:", torch.equal(merged, tens))

# %% [markdown]
# So the whole layer is: project, cut, attend in every head, merge, project.

# %%
diagrams.show("multi_head")

# %% [markdown]
# `W_q`, `W_k`, `W_v` hold all heads, and between cut and merge stand the lines of section 4, with one more axis. In `unflatten`, -1 stands for the size that is left, here $K$.

# %%
class MultiHead(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H, self.K = H, D // H
        self.W_q = nn.Linear(D, D, bias=False)  # the H matrices, one above the other
        self.W_k = nn.Linear(D, D, bias=False)
        self.W_v = nn.Linear(D, D, bias=False)
        self.W_o = nn.Linear(D, D, bias=False)

    def forward(self, x, memory=None, mask=None):  # x (B, T, D), memory (B, S, D)
        memory = x if memory is None else memory
        q = self.W_q(x).unflatten(-1, (self.H, -1)).transpose(1, 2)  # (B, H, T, K)
        k = self.W_k(memory).unflatten(-1, (self.H, -1)).transpose(1, 2)  # (B, H, S, K)
        v = self.W_v(memory).unflatten(-1, (self.H, -1)).transpose(1, 2)  # (B, H, S, K)
        scores = q @ k.mT / math.sqrt(self.K)  # (B, H, T, S)
        if mask is not None:  # broadcasts to (B, H, T, S)
            scores = scores.masked_fill(~mask, -math.inf)
        weights = scores.softmax(dim=-1)  # (B, H, T, S)
        merged = (weights @ v).transpose(1, 2).flatten(-2)  # (B, T, D)
        return self.W_o(merged)  # (B, T, D)

# %% [markdown]
# Does it compute what the list of heads does? Give both the same matrices, our two sentences and their mask, which gets an axis for the heads, (B, 1, T, S).

# %%
set_seed(0)
plain = PlainMultiHead(D=4, H=2).requires_grad_(False)
joined = with_matrices(
    MultiHead(D=4, H=2),
    torch.cat([head.W_q.weight for head in plain.heads]),  # (H K, D), that is, (D, D)
    torch.cat([head.W_k.weight for head in plain.heads]),
    torch.cat([head.W_v.weight for head in plain.heads]),
)
joined.W_o.weight = plain.W_o.weight
one_by_one = plain(sentences, mask=both)  # (B, T, D)
at_once = joined(sentences, mask=both[:, None])  # (B, T, D)
print("output (B, T, D)", tuple(at_once.shape))
print("the same:", torch.allclose(one_by_one, at_once, atol=1e-6))
print("parameters, list:  ", sum(p.numel() for p in plain.parameters()))
print("parameters, joined:", sum(p.numel() for p in joined.parameters()))

# %% [markdown]
# The same numbers, from equally many parameters. Each head has $3 D K$ of them; $H$ heads, with $K = D / H$, have $3 D^2$, and $W_o$ has $D^2$. That is always $4 D^2$, here 64, however many heads there are.
#
# The class is whole. This is how it grew:
#
# | section | what is new | in the code |
# |---|---|---|
# | 1 | scores, weights, output | `x @ x.T`, `softmax`, `weights @ x` |
# | 2 | a query, a key and a value for each word | `W_q`, `W_k`, `W_v` |
# | 3 | the scale | `/ math.sqrt(K)` |
# | 4 | who may look at whom, and at which text | `mask`, `memory` |
# | 5 | several questions at once | `unflatten` and `transpose`, their way back, `W_o` |
#
# The library calls the cut `split_heads` and the way back `merge_heads`.
# %% [markdown]
# ## 6 · Can it learn where to look?
#
# We chose the matrices for our four words. Can training find such matrices by itself? Take the memory task of the first screen. A sequence has nine rows of 20 numbers: a letter and a digit, one-hot. The last row is the question, without a digit.

# %%
example, answer = recall.draw(1, torch.Generator().manual_seed(9))
print("input (B, 9, 20)", tuple(example.shape))
names = ["abcdefghij"[i] for i in example[0, :, :10].argmax(dim=1)]
digits = example[0, :8, 10:].argmax(dim=1).tolist()
print("letters", *names)
print("digits ", *digits, "?")
print("answer ", answer.item())

# %% [markdown]
# The eight pairs are a dictionary: letters are keys, digits are values, and the last row asks. Python's dictionary wants exactly the right key and returns one value. Attention compares the query with *all* keys and returns a weighted mean, a **soft dictionary**. Move the query a little, and the answer moves a little: so there is a slope, and training can improve the query.
#
# Nobody tells the model what to compare. One head will do. In `LookUp` the question asks, and the pairs are its `memory`. Its own row stays out: it has the right letter, but no digit to give. It is the first screen's model without biases in its projections:

# %%
class LookUp(nn.Module):
    def __init__(self, K=32):
        super().__init__()
        self.attend = PlainAttention(D=20, K=K)
        self.output = nn.Linear(K, 10)

    def forward(self, sequence):  # (B, 9, 20)
        question, pairs = sequence[:, -1:], sequence[:, :-1]  # (B, 1, 20), (B, 8, 20)
        h = self.attend(question, memory=pairs)  # (B, 1, K)
        return self.output(h[:, 0])  # logits (B, 10)

# %% [markdown]
# Each update draws 64 new sequences, and the loss is the cross-entropy with the right digit.

# %% tags=["nbval-ignore-output"]
set_seed(1)
draws = torch.Generator().manual_seed(1)
lookup = LookUp()
optimizer = torch.optim.Adam(lookup.parameters(), lr=0.01)
for update in range(1, 151):
    sequence, digit = recall.draw(64, draws)  # new in every batch
    logits = lookup(sequence)
    loss = F.cross_entropy(logits, digit)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if update in (1, 50, 100, 150):
        right = (logits.argmax(dim=1) == digit).float().mean()
        print(f"update {update:3}: loss {loss:.2f}, accuracy {right:.2f}")

# %% [markdown]
# Does it really look things up? Its `memory` is now the first example's eight pairs, and we ask for all their letters, in reverse order. The digits should come back in reverse.

# %%
shown = example[0, :8]  # memory (S, 20)
questions = shown.flip(0)  # x (T, 20), the last pair first
questions[:, 10:] = 0  # letters without their digits
with torch.no_grad():
    found_digits = lookup.output(lookup.attend(questions, memory=shown))  # (T, 10)
weights_shown = lookup.attend.weights  # (T, S), kept by the class
print("pairs shown, digits (S,)", digits)
print("asked in reverse    (T,)", found_digits.argmax(dim=1).tolist())
figures.lookup_weights(weights_shown, names[:8], digits)

# %% tags=["fold"]
# @title Checked: it learns, and looks where it should
claim(
    "After 150 updates more than 95 % of the last batch is right, and each question has more than half of its weight on its own pair.",
    right > 0.95 and weights_shown.flip(0).diagonal().min() > 0.5,
    accuracy=right,
    smallest=weights_shown.flip(0).diagonal().min(),
)

# %% [markdown]
# So it can learn where to look. Did the GRU lose because we stopped it too soon? From the recorded runs:

# %%
figures.recall_by_updates()

# %% tags=["fold"]
# @title In numbers, in each of three seeds
def after(variant, updates):
    """The accuracy of each seed after so many updates."""
    marks = ledger.values("attention-recall", variant, "updates")[0]
    return [run[marks.index(updates)] for run in ledger.values("attention-recall", variant, "by_updates")]


kinds = (*(f"GRU, rate {rate}" for rate in (0.002, 0.005, 0.01)), "GRU, wide", "LSTM, rate 0.005")
after_100 = after("attention, rate 0.01", 100)
after_2000 = {name: after(name, 2000) for name in kinds}
late = {updates: after("GRU, long", updates) for updates in (10000, 20000)}
claim(
    "In each of three seeds: attention is right more than 95 % of the time after 100 updates. After 2,000, no recurrent network reaches 40 %: neither the GRU, at three learning rates, nor one with four times the units, nor an LSTM.",
    min(after_100) > 0.95 and max(max(runs) for runs in after_2000.values()) < 0.4 and len(after_100) == 3,
    attention=after_100,
    **after_2000,
)
claim(
    "After 10,000 updates the GRU is still below 40 %, after 20,000 above 80 %.",
    max(late[10000]) < 0.4 and min(late[20000]) > 0.8,
    **{f"after {updates:,}": runs for updates, runs in late.items()},
)

# %% [markdown]
# The GRU can learn it, but it took more than a hundred times as many updates. Up to 5,000 it stays at 0.3, which is about what you get by always naming the digit that occurred most often. Two kinds of memory have met:
#
# | | recurrent state | keys and values |
# |---|---|---|
# | values stored after $S$ steps (all vectors of width $D$) | $D$ | $2 S D$ |
# | to write | mix into the state | append |
# | to read | whatever is left | weigh by the question |
# | path length from step $i$ to $t$ | $t - i$ steps | one step |
#
# Two caveats. Only one learning rate, 0.005, was run so long, and the larger GRU had 2,000 updates, so whether a larger one would be faster stays open. And each letter stands with its digit in one row here: from rows of their own, one layer that knows no order could not match them.
#
# In this task we knew where it should look. Do the weights of a trained layer also tell us something about language?
#
# *A good place to stop for today. Exercises 7.1 to 7.4 follow, 90 minutes in all; section 7 needs none of them.*
#
# ---

# %% [markdown]
# ### Exercise 7.1 · Numbers by hand
#
# Difficulty ●●●○○ · 30 minutes · needs sections 1 to 3
#
# Find four numbers with paper and a calculator, to three digits each. For (a) and (b) there are four keys, $k_1 = (10, 0, 0)$, $k_2 = (0, 10, 0)$ and $k_3 = k_4 = (0, 0, 10)$, and scores are divided by $\sqrt 3$.
#
# (a) `weight`: the weight of key 3 for the query $(0, 0, 0.3)$.
#
# (b) `length`: with the query $(0, \ell, 0)$, which $\ell$ gives key 2 a weight of exactly 0.9?
#
# (c) `variance`: the entries of $q$ and $k$ are independent with mean 0; those of $q$ have variance 0.25, those of $k$ variance 9; $K = 16$. The variance of $q \cdot k$ (*before* the division).
#
# (d) `slope`: three weights are $w = (0.7, 0.2, 0.1)$. How fast does $w_1$ change with the *second* score, that is, what is $\partial w_1 / \partial a_2$?

# %% nbgrader={"grade": false, "grade_id": "ex07-1-numbers-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
numbers = ...  # (weight, length, variance, slope)
### BEGIN SOLUTION
grown = math.exp(0.3 * 10 / math.sqrt(3))
numbers = (grown / (2 * grown + 2), math.sqrt(3) * math.log(27) / 10, 16 * 0.25 * 9, -0.7 * 0.2)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex07-1-numbers-by-hand-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch07.numbers_by_hand(numbers)

# %% [markdown]
# ### Exercise 7.2 · Scaled dot-product attention
#
# Difficulty ●●●○○ · 30 minutes · needs sections 1 to 4
#
# As a function of tensors, without the library's functions of attention and without torch's, with all corner cases: any leading axes, $T \ne S$, values of another width, a mask, causality, both at once, and rows that may see nothing. `PlainAttention` does not show three of these: another width, causality with $T \ne S$, empty rows. They are explained next.
#
# *Values of another width.* $E$, the width of the values and of the output, may differ from $K$, the width of queries and keys:

# %%
diagrams.show("scaled_dot_product")

# %% [markdown]
# *Causal, with $T \ne S$.* A model that generates text keeps the keys of earlier steps (a *cache*), and few queries meet many keys. They are the *last* positions: with $S = 5$ and $T = 2$, query 0 stands at position 3, and query 1 at position 4. In general query $t$ stands at position $S - T + t$, and sees the keys up to there:
#
# $$ \text{mask}_{ts} = [\, s \le S - T + t \,]. $$

# %%
diagrams.show("cache_mask")

# %% [markdown]
# *A query that may see nothing*, for example in an empty sentence. `PlainAttention` gives it NaN (0 divided by 0), which spoils the gradient of $W_v$ and of everything below the values. In this course it gets zeros.

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
# ### Exercise 7.3 · Split and merge heads
#
# Difficulty ●●○○○ · 15 minutes · needs section 5
#
# The two steps of section 5 as a function, then the function that undoes them. `MultiHead` has them for one batch, where every tensor has the axes (B, T, D). Yours must work for any leading axes, for none (one sentence) as well as for two. From tensors, without `split_heads` and `merge_heads`.


# %% nbgrader={"grade": false, "grade_id": "ex07-3-split", "locked": false, "schema_version": 3, "solution": true, "task": false}
def split(x, H):
    """Cut (..., T, D) into heads (..., H, T, K), K = D / H: head h gets the entries h K .. (h + 1) K - 1 of a position."""
    ### BEGIN SOLUTION
    *lead, T, D = x.shape
    return x.reshape(*lead, T, H, D // H).transpose(-3, -2)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-3-split-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.split(split)


# %% nbgrader={"grade": false, "grade_id": "ex07-3-merge", "locked": false, "schema_version": 3, "solution": true, "task": false}
def merge(x):
    """Concatenate heads (..., H, T, K) again: (..., T, H K), head 0 first."""
    ### BEGIN SOLUTION
    *lead, H, T, K = x.shape
    return x.transpose(-3, -2).reshape(*lead, T, H * K)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-3-merge-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.merge(merge)

# %% [markdown]
# ### Exercise 7.4 · A shape on every arrow
#
# Difficulty ●●○○○ · 15 minutes · needs section 5
#
# Cross-attention in a translator: batches of $B = 8$, German sentences of $S = 21$ words are the memory, English ones of $T = 17$ words ask. $D = 96$, $H = 6$. Give, as tuples, the shapes of the queries and keys after splitting, of the attention weights, and of the
# layer's output. Last, `count`: how many attention weights (not parameters) the layer computes for the whole batch.

# %% nbgrader={"grade": false, "grade_id": "ex07-4-shapes", "locked": false, "schema_version": 3, "solution": true, "task": false}
arrows = ...  # {"queries": (...), "keys": (...), "weights": (...), "output": (...), "count": ...}
### BEGIN SOLUTION
arrows = {
    "queries": (8, 6, 17, 16),
    "keys": (8, 6, 21, 16),
    "weights": (8, 6, 17, 21),
    "output": (8, 17, 96),
    "count": 8 * 6 * 17 * 21,
}
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex07-4-shapes-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch07.shapes(arrows)

# %% [markdown]
# ## 7 · What does "it" mean?
#
# > The cat didn't cross the bridge because **it** was too *tired*.
# >
# > The cat didn't cross the bridge because **it** was too *wide*.
#
# One word decides whether *it* is the cat or the bridge. A famous picture shows a head in which *it*, in such a pair, looks at the right noun. But that is one example, and somebody chose it. So we write thousands of such **twins** in a toy language, where we know the truth for each:

# %%
task = coreference.coreference_task(3000, seed=0)
for sentence in task.test_sentences[:4]:
    print(" ".join(sentence.tokens), "| it =", sentence.tokens[sentence.referent])

# %% [markdown]
# Suppose the model had to *name* the noun. From *tired* alone it could already guess some animal, without ever looking at one. So in every sentence each word gets a **ticket**, a random number from 0 to 15, no number used twice, and the model must say the noun's number. Here is a batch of 64 sentences, and the first of them:

# %%
batches = coreference.ticket_batches(task.train, 64, torch.Generator().manual_seed(1))
one_batch, their_tickets = next(batches)
print("ids, tickets, real  (B, T)", tuple(one_batch.ids.shape))  # real: True = a word
print("pronoun, referent   (B,)  ", tuple(one_batch.pronoun.shape))  # places in a row
sentence_0 = [task.vocab.itos[i] for i in one_batch.ids[0]]
tickets_0 = their_tickets[0].tolist()
print("words  ", *sentence_0)
print("tickets", *[f"{n:{len(word)}}" for n, word in zip(tickets_0, sentence_0)])
print("wanted at 'it':", tickets_0[one_batch.referent[0]])

# %% [markdown]
# Guessing from the words alone is right once in 16. Tickets are drawn anew in every batch, and the nouns of a test sentence never stood together in training.
#
# One layer with one head could not do it: *it* is always the same word, so its query would be the same in every sentence, and in both twins the same noun would nearly always win. So there are two layers. In `gather`, with two heads, *it* collects hints from the sentence; in `read`, with one, it asks with what it has gathered. The weights decide which ticket comes back:
#
# %%
diagrams.show("ticket_reader")

# %% [markdown]
# Both are the library's `MultiHeadAttention`: `MultiHead` with biases, called with query, key and value one by one; given `x` alone, all three are `x`. `padding_mask(real)` is `real[:, None, None]`, (B, 1, 1, S).

# %%
class Reader(nn.Module):
    def __init__(self, vocab_size, D=32):
        super().__init__()
        self.words = nn.Embedding(vocab_size, D)
        self.tickets = nn.Embedding(16, D)
        self.gather = MultiHeadAttention(D, 2)
        self.read = MultiHeadAttention(D, 1)
        self.output = nn.Linear(D, 16)
        nn.init.normal_(self.words.weight, std=0.3)

    def context(self, ids, mask=None):  # (B, T)
        x = self.words(ids)  # (B, T, D)
        return x, x + self.gather(x, mask=mask)  # "it" has gathered hints

    def forward(self, ids, tickets, real=None):  # (B, T) each; real: True = a word
        mask = padding_mask(real)
        x, h = self.context(ids, mask)  # (B, T, D)
        y = self.read(h, x, self.tickets(tickets), mask=mask)  # query, key, value
        return self.output(y)  # logits (B, T, 16)

# %% [markdown]
# The loop is the usual one, and the loss is the cross-entropy between the logits at *it* and the wanted ticket. The learning rate rises and falls during training (`OneCycleLR`), and long gradients are clipped.

# %% tags=["nbval-ignore-output"]
set_seed(0)
model = Reader(len(task.vocab))
draws = torch.Generator().manual_seed(0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
steps = 6 * math.ceil(len(task.train.ids) / 64)
rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)
for epoch in tqdm(range(6), leave=False):
    for batch, tickets in coreference.ticket_batches(task.train, 64, draws):
        rows = torch.arange(len(tickets))
        logits = model(batch.ids, tickets, batch.real)  # (B, T, 16)
        logits_it = logits[rows, batch.pronoun]  # (B, 16)
        wanted = tickets[rows, batch.referent]  # (B,), the ticket of its noun
        loss = F.cross_entropy(logits_it, wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        rate.step()
    print(f"epoch {epoch + 1}: loss of the last batch {loss:.4f}")

# %% [markdown]
# Where does *it* look now? Its weights, as an **attention map**, for a test sentence and its twin:

# %% tags=["fold"]
# @title One pair of twins, and where "it" looks in them
written = task.test_sentences
all_twins = zip(written[::2], written[1::2], strict=True)
pair = next(  # one tired, one wide
    pair
    for pair in (sorted(both, key=lambda s: s.tokens[-1]) for both in all_twins)
    if [sentence.tokens[-1] for sentence in pair] == ["tired", "wide"]
)
twins = coreference.as_batch(pair, task.vocab)
twin_tickets = torch.arange(twins.ids.shape[1]).expand(2, -1)  # any: they change no look
with torch.no_grad(), record_attention(model) as maps:
    model(twins.ids, twin_tickets, twins.real)

# %%
figures.looks_of_it(pair, maps["gather"], maps["read"])

# %% tags=["fold"]
# @title Over all test sentences, in each seed
quality = coreference.coreference_scores(model, task)
recorded_one = {
    metric: ledger.values("coreference-heads", "one reading head", metric)
    for metric in ("accuracy", "head_at_referent")
}
claim(
    "It predicts the right ticket in more than 85 % of the sentences, and its reading head looks most at the right noun in more than 85 %, here and in each of three recorded seeds.",
    min(quality["accuracy"], quality["head_at_referent"], *recorded_one["accuracy"], *recorded_one["head_at_referent"])
    > 0.85,
    accuracy=[quality["accuracy"], *recorded_one["accuracy"]],
    head_at_referent=[quality["head_at_referent"], *recorded_one["head_at_referent"]],
)

# %% [markdown]
# In both twins *it* reads the right noun. But look at the rows of `gather`: in our run *it* hardly looked at *tired*, the very word that decides! What do these weights tell us?
#
# **Two tests.** First we *hide* the adjective from `gather` alone. In both twins *it* then asks `read` the same question, and the nouns have the same keys, so the same noun wins, the model's default, unless the adjective, which `read` still sees, tips it. At most one of two twins should then be right. Next we *exchange* the adjective: `gather` alone reads the twin's in its place. In our pair:

# %%
visible = twins.real.clone()  # (B, T)
visible[torch.arange(2), twins.real.sum(1) - 1] = False  # the last word, the adjective
words_seen = padding_mask(twins.real)
with torch.no_grad():
    x_twins, h_full = model.context(twins.ids, words_seen)  # (B, T, D) each
    _, h_hidden = model.context(twins.ids, padding_mask(visible))
    h_other = h_full.flip(0)  # each twin gets what "it" gathered in the other
    for name, h_it in [("whole", h_full), ("hidden", h_hidden), ("exchanged", h_other)]:
        y = model.read(h_it, x_twins, model.tickets(twin_tickets), mask=words_seen)
        named = model.output(y)[torch.arange(2), twins.pronoun].argmax(1)  # (B,)
        print(f"{name:9} it =", *[s.tokens[n] for s, n in zip(pair, named)])

# %% [markdown]
# Over all test sentences, by adjective:

# %%
by_adjective = coreference.by_adjective(model, task)
figures.hidden_adjectives(by_adjective)

# %% tags=["fold"]
# @title Checked in each of three recorded seeds
right_hidden = sum(row["sentences"] * row["right_without"] for row in by_adjective.values()) / len(written)
hidden_runs = [
    list(zip(*columns, strict=True))
    for columns in zip(
        *(
            ledger.values("coreference-hidden", "by adjective", name)
            for name in ("adjective", "weight", "right_without", "right_exchanged")
        ),
        strict=True,
    )
]
looked_at = [[row[2:] for row in rows if row[1] > 0.8] for rows in hidden_runs]  # (hidden, exchanged) of each
half = [right_hidden, *ledger.values("coreference-hidden", "all", "without_adjective")]
exchanged = [max(exchanged for _, exchanged in rows) for rows in looked_at]
claim(
    "In each of three recorded seeds: with the adjective hidden, at most half of all answers are right, here too. Of the adjectives with a weight above 0.8, one can be hidden and the answers stay right (more than 9 in 10), and with another hidden hardly any is right (fewer than 1 in 10).",
    max(half) < 0.5001
    and len(half) == 4
    and all(max(rows)[0] > 0.9 and min(rows)[0] < 0.1 for rows in looked_at)
    and len(looked_at) == 3,
    right=half,
    answers_stay=[max((row for row in rows if row[1] > 0.8), key=lambda row: row[2])[0] for rows in hidden_runs],
    in_between=[sum(0.1 < row[2] < 0.9 for row in rows) for rows in hidden_runs],
)
last = [sentence.tokens[-1] for sentence in written]
stays = coreference.right_without(model, task.test, coreference.adjective_of(task.test))
claim(
    "With the adjective exchanged, fewer than 1 answer in 10 stays right: in our run for all adjectives, in each recorded seed for all with a weight above 0.8.",
    max(row["right_exchanged"] for row in by_adjective.values()) < 0.1 and max(exchanged) < 0.1,
    here=max(row["right_exchanged"] for row in by_adjective.values()),
    recorded=exchanged,
    **{
        f"lazy, hidden, beside {twin}": stays[
            torch.tensor([word == "lazy" and last[i ^ 1] == twin for i, word in enumerate(last)])
        ].float().mean()
        for twin in ("busy", "tall")
    },
)

# %% [markdown]
# Compare *small* and *wide*: in our run both have a weight of about 0.99. Hide *small*, and all answers stay right; hide *wide*, and all become wrong. So a large weight does not tell what hiding the word will do. Hiding shows what the model answers *without* the word, and for about half of the sentences its default is right anyway. *Tired* is such an adjective: perhaps not looking is also an answer, "I have *not* seen *wide*".
#
# Nor does a dot at the top mean that the word is not used. Exchange *small* for its twin, *big*, and no answer stays. So with every adjective in our run, at large weights and small ones, as it must if the model reads both twins rightly: *it* then asks the twin's question. In the recorded seeds we checked this for weights above 0.8.
#
# > **What a map proves, and what it does not**
# >
# > *It proves* which values were mixed at this layer, and how much of each. Our tickets have no way around the one reading head, so that head's map shows where the answer came from.
# >
# > *It does not prove* what the model would answer without the word, or with another (our tests), nor why it looked. In a deeper layer the vector at position $s$ holds more than word $s$; a large weight on a short value brings little; the residual $x + \ldots$ goes around the map; several heads can share the work; other weights may give the same output.
# >
# > Jain and Wallace (2019): *attention is not explanation*. Wiegreffe and Pinter (2019): *attention is not not explanation*. A map is a hypothesis. Test it: hide the word, and exchange it.
#
# *Lazy* lies in between: with it hidden, the answer stays right where its twin is *busy*, not where it is *tall*. And right or wrong is not everything: a hidden word may change how sure the answer is. *Going deeper* looks at that, and at other readers.
#
# *Exercises 7.5 to 7.7 follow, 90 minutes in all.*
#
# ---

# %% [markdown]
# ### Exercise 7.5 · Assemble: multi-head attention from your own parts
#
# Difficulty ●●●○○ · 30 minutes · needs exercises 7.2 and 7.3
#
# Torch's layer as a function, from your `split`, `dot_product_attention` and `merge`, without a loop over heads, without torch's attention and without the library's functions. Three things differ from `MultiHead`. The weights are packed: the first D rows of `in_proj_weight` make queries, the next keys, the last values. There are biases. And `key` and `value` may be two different tensors.

# %%
diagrams.show("packed_projection")

# %% nbgrader={"grade": false, "grade_id": "ex07-5-multi-head", "locked": false, "schema_version": 3, "solution": true, "task": false}
def multi_head(query, key, value, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, H, mask=None):
    """Multi-head attention.

    Args:
        query: (B, T, D); key, value: (B, S, D).
        in_proj_weight: (3 D, D), a weight is used as x @ W.T; in_proj_bias: (3 D,).
        out_proj_weight: (D, D); out_proj_bias: (D,).
        H: number of heads.
        mask: bool, broadcasts to (B, H, T, S), True = may attend; None: everywhere.

    Returns:
        (B, T, D).
    """
    ### BEGIN SOLUTION
    given = zip((query, key, value), in_proj_weight.chunk(3), in_proj_bias.chunk(3))
    q, k, v = ((each @ W.T + b).unflatten(-1, (H, -1)).transpose(1, 2) for each, W, b in given)
    fits = q @ k.mT / math.sqrt(k.shape[-1])
    fits = fits if mask is None else torch.where(mask, fits, -math.inf)
    heads_of_all = fits.softmax(-1) @ v
    return heads_of_all.transpose(1, 2).flatten(2) @ out_proj_weight.T + out_proj_bias
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex07-5-multi-head-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch07.multi_head(multi_head)

# %% [markdown]
# Can your own attention read the twins? The next cell puts your function, with the trained weights, into both layers of the reader.

# %% tags=["fold", "nbval-ignore-output"]
# @title Your attention reads the twins


def your_layer(layer, query, key, value, mask):
    """A trained layer, computed by the reader's own function."""
    trained = layer.in_proj_weight, layer.in_proj_bias, layer.out_proj.weight, layer.out_proj.bias
    return multi_head(query, key, value, *trained, layer.num_heads, mask)


def read_by_yours(sentence):
    """The word whose ticket the trained reader names at "it", by the reader's own attention."""
    ids = coreference.as_batch([sentence], task.vocab).ids
    everything = torch.ones(1, 1, 1, ids.shape[1], dtype=torch.bool)
    embedded, ticket_vectors = model.words(ids), model.tickets(torch.arange(ids.shape[1])[None])
    gathered = embedded + your_layer(model.gather, embedded, embedded, embedded, everything)
    told = model.output(your_layer(model.read, gathered, embedded, ticket_vectors, everything))
    return sentence.tokens[told[0, sentence.pronoun, : len(sentence.tokens)].argmax()]


try:
    with torch.no_grad():
        for sentence in task.test_sentences[:6]:
            print(" ".join(sentence.tokens), "| it =", read_by_yours(sentence))
except NotImplementedError:
    print("Not yet: this needs exercises 7.2, 7.3 and 7.5.")

# %% [markdown]
# ### Exercise 7.6 · Find the bug: maps that no model ever used
#
# Difficulty ●●●○○ · 20 minutes · needs sections 4 and 5
#
# A model is a stack of layers, and what each layer returns is added to what it read. A layer of the library can also return its attention maps: `layer.attention_weights(x, mask=mask)`. The function below collects the attention maps of all layers; it is modelled on `get_attention_maps` in UvA's tutorial 6. Every map looks like a map, and those of the first layer are right.


# %%
def buggy_maps(layers, x, mask):
    """The weights of each layer on the way through the stack."""
    maps = []
    for layer in layers:
        maps.append(layer.attention_weights(x, mask=mask))
        x = x + layer(x)
    return maps


# %% [markdown]
# Write a correct version.


# %% nbgrader={"grade": false, "grade_id": "ex07-6-stack-maps", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "ex07-6-stack-maps-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch07.stack_maps(stack_maps)

# %% [markdown]
# ### Exercise 7.7 · Explore and explain: saturation and heads
#
# Difficulty ●●●○○ · 40 minutes · needs sections 3 and 7
#
# The second cell multiplies the trained reader's queries by $c$, an *inverse temperature*, and shows where *it* then looks in the first twin, whose ticket it names, and the slope of the weights ($J$ is the matrix of section 3's slopes). Change $c$. Answer in words:
#
# (a) At 0.1, 1 and 10: what happens to the weights, to the answer, and to the gradient that a *wrong* answer would send into the queries? (b) When would you rather have a soft, and when a sharp attention? (c) Somebody shows you a map
# in which *it* looks at the right noun and says: "the model has understood the sentence". Name two reasons why the map alone does not show that, and one experiment that would tell you more.

# %% tags=["fold"]
# @title What the next cell calls: read_sharper(c)


def read_sharper(c):
    """Where *it* looks most in the first twin and with which weight, which word's ticket it names, and c |J|."""
    with torch.no_grad():
        x_words, h_words = model.context(twins.ids, padding_mask(twins.real))
        q_r, k_r, v_r = model.read.project(h_words, x_words, model.tickets(twin_tickets))
        w = attention_weights(attention_scores(c * q_r, k_r), padding_mask(twins.real))
        y_r = model.output(model.read.out_proj(merge_heads(w @ v_r)))  # (B, T, tickets)
    told = y_r[0, pair[0].pronoun, : twins.real[0].sum()].argmax()  # tickets: positions
    looks = w[0, 0, pair[0].pronoun]  # (T,)
    most = looks.argmax()
    # the query is multiplied by c, and so is its slope
    slope = c * attention_scaling.softmax_jacobian(looks).norm().item()
    return [pair[0].tokens[most], looks[most].item(), pair[0].tokens[told], slope]


# %% tags=["nbval-ignore-output"]
rows = []
for c in (0.1, 1, 10):  # your turn
    rows.append([c, *read_sharper(c)])
table(["c", "looks most at", "weight", "names", "slope c |J|"], rows)

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex07-7-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) At 0.1 the weights are near uniform, and what comes back is a mean of all tickets, which is none of them (in our run even the answer is wrong); the slope in the query is small. At 10 one weight is near 1, and the answer is that of hard attention. If it is right, fine; if it is wrong, hardly any gradient reaches the queries, because every entry of the Jacobian holds a factor
# $w_i (1 - w_i)$ or $w_i w_j$ that is near 0: the model is sure and cannot learn otherwise. In between the weights lean towards the right word *and* are sensitive to the scores.
#
# (b) Soft at the beginning of training and where a mixture means something (gathering hints from several words, noisy values); sharp where one item must be returned unmixed (a ticket, a name to be copied). Training sharpens by itself if that lowers the loss, so one starts soft: hence the division by the root.
#
# (c) The head may look at the noun in every sentence, whatever the adjective (then it is right in half of the twins): show the twin. The vector at the noun's position may hold something else than the noun, or its value may be near zero and the answer come around the map through the residual. The head may have been chosen after the fact among many. Experiments: score the head, chosen beforehand, on many twins; change the word at which
# it looks (or hide it by the mask) and see whether the answer follows; compare with a model that cannot know.
# ### END SOLUTION

# %% [markdown]
# Paste your answer in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch07.saturation_and_heads.compare(...)

# %% [markdown]
# ## Summary
#
# 1. Each word asks with a query, is found by its key and passes on its value: scores $q\, k^\top / \sqrt K$, a softmax over the keys, a weighted mean of the values.
# 2. It is a soft dictionary that learns what to compare. On a look-up task it needed fewer than 100 updates, and a GRU with seven times the parameters, at the one learning rate run that long, more than 10,000.
# 3. Without the division, the scores of random queries and keys of variance 1 have a standard deviation of $\sqrt K$: at $K = 1024$ the softmax saturates for more than half of the queries, and these get hardly any gradient.
# 4. A mask says who may look at whom; several heads give several means, with the same number of parameters.
# 5. A map shows what was mixed. What the model answers without a word, or with another in its place, takes a test.
#
# ## Where next
#
# *Chapter 08* gives attention a sense of order. *Chapter 09* builds the Transformer from these layers.
#
# ## References
#
# - A. Vaswani et al., *Attention is all you need*, NIPS 2017, arXiv:1706.03762: equation 1, footnote 4 (variance), 3.2.2 (heads), 3.2.3 (three uses).
# - K. Cho, course on natural language processing, AMMI; retold in S. Kabongo, *The Transformer: from RNN to attention*, slides, AMMI, 2020.
# - E. Nadaraya, *On estimating regression*, 1964; G. Watson, *Smooth regression analysis*, 1964.
# - K. Xu et al., *Show, attend and tell*, ICML 2015, arXiv:1502.03044: section 4, hard and soft.
# - J. Uszkoreit, *Transformer: a novel neural network architecture for language understanding*, 2017: the animal and the street. H. Levesque, E. Davis, L. Morgenstern, *The Winograd schema challenge*, KR 2012.
# - S. Jain, B. Wallace, *Attention is not explanation*, NAACL 2019, arXiv:1902.10186. S. Wiegreffe, Y. Pinter, *Attention is not not explanation*, EMNLP 2019, arXiv:1908.04626. G. Brunner et al., *On identifiability in Transformers*, ICLR 2020, arXiv:1908.04211.
# - Videos: *Attention and the Transformer* (NYU), https://www.youtube.com/watch?v=f01J0Dri-6k, the recipe book; *LSTM is dead. Long live Transformers!*, https://www.youtube.com/watch?v=S27pHKBEp30.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question. `attention(q, k, v, mask, causal)` is the library's version of exercise 7.2; its halves are `attention_scores` and `attention_weights`.

# %% [markdown] tags=["deeper"]
# ### Errors you will meet
#
# None of these errors raises an exception, and all shapes are right.
#
# **1 · The softmax runs over the wrong axis.** A softmax keeps the shape, so `dim=-2` never raises an error, whether the matrix of scores is square or not. A good test is to attend to values of 1: *a mean of ones is one*.

# %%
ones = torch.ones(4, 1)
print("wrong   ", (scores_qk.softmax(dim=-2) @ ones).flatten())
print("repaired", (scores_qk.softmax(dim=-1) @ ones).flatten())

# %% [markdown]
# **2 · A row sees nothing.** Filling with $-\infty$ gives NaN, and even if nobody reads that row, the gradient of the values becomes NaN ([reported](https://github.com/pytorch/pytorch/issues/41508) in 2020). Filling with `-1e9`, as in the *Annotated Transformer*, silently returns the mean of what is hidden.

# %%
empty = torch.tensor([[True, True, False], [False, False, False]])
values = torch.tensor([[1.0], [2.0], [6.0]])
equal = torch.zeros(2, 3)  # scores
for fill in (-math.inf, -1e9):
    filled = equal.masked_fill(~empty, fill).softmax(dim=-1)
    print(f"filled with {fill:4.0g}:", (filled @ values).flatten())
print("repaired:         ", (attention_weights(equal, empty) @ values).flatten())

# %% [markdown]
# **3 · The mask means the opposite.** `scaled_dot_product_attention` and this course say True = may attend; `nn.MultiheadAttention` and `nn.Transformer` say True = hidden (see their documentation). And a mask of *floats* is added to the scores, so ones and zeros hide nothing. The weights of a padded sentence, in torch's layer:

# %%
set_seed(0)
torch_layer = nn.MultiheadAttention(8, 2, batch_first=True)
y = torch.randn(1, 4, 8)
is_word = torch.tensor([[True, True, False, False]])  # two words, two paddings
masks = {"wrong": is_word, "floats": is_word.float(), "repaired": ~is_word}
for name, each in masks.items():
    _, weights_of = torch_layer(y, y, y, key_padding_mask=each)
    print(f"{name:8} weights of word 0:", weights_of[0, 0].detach())

# %% [markdown]
# **4 · The triangle is in the wrong corner.** With `is_causal=True`, torch's function aligns it at the top left ([discussed here](https://github.com/pytorch/pytorch/issues/108108)). With a cache, the one new query then sees key 0 alone:

# %%
set_seed(0)
q_1, k_5, v_5 = torch.randn(1, 1, 8), torch.randn(1, 5, 8), torch.eye(5)[None]
wrong = F.scaled_dot_product_attention(q_1, k_5, v_5, is_causal=True)
print("wrong   ", wrong[0, 0])  # the values are an identity: these are the weights
print("repaired", attention(q_1, k_5, v_5, causal=True)[0, 0])

# %% [markdown]
# **5 · `view` without `transpose`.** `x.view(B, H, T, K)` has the right shape, but head 0 then gets the first two *positions*, each cut in two, instead of a part of every position ([a bug of this kind](https://github.com/reczoo/FuxiCTR/issues/30)). With the numbers of section 5:

# %%
print("head 0, wrong", tens.view(1, 2, 4, 3)[0, 0], sep="\n")
print("head 0, repaired", split_heads(tens, 2)[0, 0], sep="\n")

# %% tags=["fold"]
# @title What the printed lines do not show of errors 2 and 5
leaf = torch.zeros(3, 1, requires_grad=True)
lost = torch.zeros(2, 3).masked_fill(~empty, -math.inf).softmax(dim=-1) @ leaf
lost[0].sum().backward()  # the empty row is not read
claim("Filled with -inf, the gradient of all values is NaN though the empty row is not read.", leaf.grad.isnan().all())
set_seed(0)
first, second = torch.randn(1, 4, 6), torch.randn(1, 1, 6)
other = torch.cat([second, first[:, 1:]], dim=1)  # position 0 differs
heard = {
    name: [
        t for t in range(4) if not torch.equal(*(join(attention(*[cut(each)] * 3))[0, t] for each in (first, other)))
    ]
    for name, cut, join in (
        ("view", lambda each: each.view(1, 2, 4, 3), lambda each: each.reshape(1, 4, 6)),
        ("split", lambda each: split_heads(each, 2), merge_heads),
    )
}
claim(
    "With view, positions 2 and 3 never hear of a change at position 0; with `split_heads`, all do.",
    heard == {"view": [0, 1], "split": [0, 1, 2, 3]},
)

# %% [markdown] tags=["deeper"]
# ### How does the library write the layer?
#
# `MultiHeadAttention` has the parameters of `nn.MultiheadAttention`, so either loads the other's weights. (`p` is the dropout probability: in training each attention weight is set to 0 with this probability. Here it is 0.) In self-attention all three sources are one tensor, and one product does: it is cut into $3H$ heads, and these into three groups of $H$ (`chunk(3, -3)`). (`place` and `cache` are for chapters 08 and 13.)

# %%
show_source(MultiHeadAttention.forward, MultiHeadAttention.project)
show_source(split_heads, merge_heads)

# %% [markdown]
# With the matrices of our list of heads, it returns the same, and its maps as well:

# %%
librarys = MultiHeadAttention(d_model=4, num_heads=2, bias=False)
with torch.no_grad():
    rows_of_all = [joined.W_q.weight, joined.W_k.weight, joined.W_v.weight]
    librarys.in_proj_weight.copy_(torch.cat(rows_of_all))  # (3 D, D)
    librarys.out_proj.weight.copy_(joined.W_o.weight)
    from_library = librarys(sentences, mask=both[:, None])
print("the same:", torch.allclose(from_library, one_by_one, atol=1e-6))
print("maps", tuple(librarys.attention_weights(sentences).shape))  # (B, H, T, T)

# %% tags=["fold"]
# @title Checked against torch's layer, with padding
set_seed(0)
torchs = nn.MultiheadAttention(12, 4, batch_first=True).double()
library = MultiHeadAttention(12, 4).double()
library.load_state_dict(torchs.state_dict())
query_st, memory_st = torch.randn(2, 3, 12).double(), torch.randn(2, 5, 12).double()
memory_real = torch.tensor([[True] * 5, [True, True, True, False, False]])
padding = padding_mask(memory_real)
expected, maps_of_torch = torchs(
    query_st, memory_st, memory_st, key_padding_mask=~memory_real, average_attn_weights=False
)
outputs = {}
for backend in ("math", "sdpa"):
    with attention_backend(backend):
        outputs[backend] = library(query_st, memory_st, mask=padding)
expected.square().sum().backward()
outputs["sdpa"].square().sum().backward()
claim(
    "Outputs and maps equal those of `nn.MultiheadAttention` to 1e-12, the gradients of all parameters to 1e-10.",
    all(torch.allclose(each, expected, atol=1e-12) for each in outputs.values())
    and torch.allclose(library.attention_weights(query_st, memory_st, mask=padding), maps_of_torch, atol=1e-12)
    and all(
        torch.allclose(a.grad, b.grad, atol=1e-10)
        for a, b in zip(library.parameters(), torchs.parameters(), strict=True)
    ),
)

# %% [markdown] tags=["deeper"]
# ### What does a soft dictionary answer?
#
# In a recipe book the titles are the keys and the recipes the values, and you come with a query. Python's dictionary is strict: one wrong letter, and there is no answer.

# %% tags=["raises-exception"]
# title: minutes
book = {"lasagne": 90, "cannelloni": 75, "tomato soup": 30, "apple pie": 60}
book["lasagna"]

# %%
diagrams.show("soft_dictionary")

# %% [markdown]
# To compare softly, we make each word a vector that counts its pairs of letters (`la`, `as`, `sa`, …). A dot product then says how much two words have in common. Before the softmax the scores are multiplied by an **inverse temperature** $c$. What will a large $c$ do, and what will 0 do?

# %% tags=["fold"]
# @title Titles as vectors: title_keys (S, K)
titles = list(book)
letter_pairs = sorted({a + b for title in titles for a, b in pairwise(title)})


def as_vector(word):
    """How often each pair of letters stands in a word, (K,)."""
    parts = [a + b for a, b in pairwise(word)]
    return torch.tensor([float(parts.count(pair)) for pair in letter_pairs])


title_keys = F.normalize(torch.stack([as_vector(title) for title in titles]))  # all of length 1
lasagna = as_vector("lasagna").unsqueeze(0)
minutes = torch.tensor([[float(book[title])] for title in titles])

# %%
title_scores = lasagna @ title_keys.T  # (1, S)
soft = {c: (c * title_scores).softmax(dim=-1) for c in (0, 1, 4, 16)}
answers = {c: (w @ minutes).item() for c, w in soft.items()}

# %% tags=["fold", "reveal"]
# @title Four inverse temperatures: weights and answer
table(
    ["inverse temperature", *titles, "answer (minutes)"],
    [[c, *w[0].tolist(), answers[c]] for c, w in soft.items()],
)
claim(
    "At 16 the soft dictionary answers like a strict one that forgives a misspelt title; at 0 it returns the mean of all recipes.",
    abs(answers[16] - book["lasagne"]) < 0.01 and abs(answers[0] - minutes.mean().item()) < 1e-4,
)

# %% [markdown]
# A mean of recipes is no recipe; but a soft answer has a slope, and training can make it as sharp as the task needs.

# %% [markdown] tags=["deeper"]
# ### When is a mean of values a good answer?
#
# Soft answers are better where values are noisy and similar keys have similar values. Here 40 keys are numbers, and their values are noisy points of a curve. The weights depend on the squared distance, $\mathrm{softmax}_s\big({-c\,(q - k_s)^2 / 2}\big)$:

# %%
noise = torch.Generator().manual_seed(3)
places = 5 * torch.rand(40, generator=noise)  # keys (S,)
heights = torch.sin(2 * places) + 0.3 * torch.randn(40, generator=noise)  # values
asked = torch.linspace(0, 5, 400)  # queries (T,)
distance = (asked[:, None] - places) ** 2 / 2  # (T, S)
curves = {c: (-c * distance).softmax(dim=-1) @ heights for c in (0.1, 10.0, 3000.0)}
figures.kernel_regression(places, heights, asked, curves)

# %% [markdown]
# This is *kernel regression* (Nadaraya 1964, Watson 1964): attention that needs no training. And it is a dot product in disguise: $-|q - k|^2/2 = q \cdot k - |q|^2/2 - |k|^2/2$, and what all keys share cancels in the softmax, so keys of equal length get the same weights from either.

# %% [markdown] tags=["deeper"]
# ### Why soft, and not simply the best value?
#
# Call one query's weights $w$. *Hard* attention takes the best value alone: one weight is 1, the others are 0, so $\lVert w \rVert_0$, the number of entries that are not 0, is 1. *Soft* attention asks only for $w \ge 0$ and $\lVert w \rVert_1 = 1$. Why do nearly all models use the soft kind? Move the query a little:

# %%
set_seed(0)
query, keys, values = torch.randn(1, 4), torch.randn(6, 4), torch.randn(6, 3)
for kind in (hard_attention, attention):  # the library's
    moved = kind(query + 0.01, keys, values) - kind(query, keys, values)
    print(f"{kind.__name__:14} moves by {moved.norm():.4f}")

# %% [markdown]
# Hard attention is flat almost everywhere, and jumps where the winner changes: no gradient tells the query how to improve. Soft attention has a slope, and training can make it sharp.

# %% [markdown] tags=["deeper"]
# ### How do other books write it?
#
# Vaswani et al. (2017, equation 1) call the matrices $Q$, $K$, $V$ and the width $d_k$. Others have vectors as *columns*. Then $X$ is $D \times T$, the weights of one query are a column, there called $a$, with $\lVert a \rVert_0 = 1$ (hard) or $\lVert a \rVert_1 = 1$ and $a \ge 0$ (soft), one output is $h = X a$, and all of them are
#
# $$ H = X A, \qquad A = \mathrm{softmax}(X^\top X), \qquad \text{or} \qquad H = V A, \qquad A = \mathrm{softmax}(K^\top Q), $$
#
# with $Q = W_q X$, and so on, and a softmax over each *column*. Some write *soft(arg)max*, and they have a point: it is the argmax that is softened. In their notation, our four words:

# %%
X = x.T  # (D, T): words are columns
A = (X.T @ X).softmax(dim=0)  # (T, T): column t holds the weights of word t
print("H = X A is our output, transposed:", torch.allclose((X @ A).T, weights @ x))

# %% [markdown]
# Hard attention *can* be trained, by drawing $s$ from the weights and rewarding draws that led to success (Xu et al. 2015, section 4.1); the price is noise. Its values get gradients in any case.

# %% [markdown] tags=["deeper"]
# ### What do equal keys get, and why does another book print other weights?
#
# A small dictionary in which key 3 and key 4 are the same, as in a notebook of the NYU course. What are weights and output for a query equal to key 2, for one equal to keys 3 and 4, and for one between keys 1 and 2?

# %%
k_nyu = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
v_nyu = torch.tensor([[1.0, 0, 0], [10, 0, 0], [100, 5, 0], [1000, 6, 0]])
q_nyu = torch.tensor([[0.0, 10, 0], [0, 0, 10], [10, 10, 0]])

# %% tags=["fold", "reveal"]
# @title Three queries: weights and outputs
weights_nyu = attention_weights(attention_scores(q_nyu, k_nyu))
output_nyu = attention(q_nyu, k_nyu, v_nyu)
table(
    ["query", "weights", "output"],
    [
        [str([int(c) for c in q_nyu[t]]), *([round(c, 4) for c in row[t].tolist()] for row in (weights_nyu, output_nyu))]
        for t in range(3)
    ],
)
softer = attention_weights(q_nyu[:1] @ k_nyu.T / math.sqrt(64))
claim(
    "Equal keys share the weight, and the output is the mean of their values. Divided by $\\sqrt{64}$ instead, the first query gives each other key a few millionths.",
    torch.allclose(output_nyu[1], v_nyu[2:].mean(0)) and (1e-6 < softer[0, 0] < 1e-5).item(),
    weight_of_key_1=softer[0, 0],
)

# %% [markdown]
# That notebook prints the millionths: it divides by the root of 64, the head width of *its* module (512 / 8), though these vectors have width 3. And the second query cannot tell keys 3 and 4 apart: attention looks at content, and does not know which came first.

# %% [markdown] tags=["deeper"]
# ### How many keys fit into a space?
#
# Undivided scores grow, but the *cosine* of two random vectors shrinks: their lengths are about $\sqrt K$, so it has a standard deviation of about $\sqrt K / (\sqrt K \sqrt K) = 1 / \sqrt K$. In high dimensions random vectors are **nearly orthogonal**. Of 1,000 random keys of width 4, the two most similar are nearly parallel. And at $K = 1024$?

# %%
guess_cosine = predict("the cosine of the two most similar keys at width 1024", ...)

# %%
generator = torch.Generator().manual_seed(0)
cosines = {}
for K in (4, 16, 64, 256, 1024):
    unit = F.normalize(torch.randn(1000, K, generator=generator), dim=1)
    above = torch.ones(1000, 1000, dtype=torch.bool).triu(1)  # every pair once
    cosines[K] = (unit @ unit.T)[above]

# %% tags=["reveal"]
figures.cosines_of_random_keys(cosines)
guess_cosine.compare(round(cosines[1024].max().item(), 2))

# %% tags=["fold", "reveal"]
# @title Checked: the spread
claim(
    "The cosine's standard deviation is $1/\\sqrt K$, within a twentieth, from K = 4 to 1024.",
    all(abs(each.std().item() * K**0.5 - 1) < 0.05 for K, each in cosines.items()),
)

# %% [markdown]
# That is good news for a dictionary: a wide space has room for far more than $K$ keys that hardly disturb each other.

# %% [markdown] tags=["deeper"]
# ### At which width does a query saturate?
#
# Watch single queries, each with 8 keys: **at which width does the undivided softmax first give one key more than 0.99? Is it the same for all queries?**

# %% tags=["fold"]
# @title Interactive: one query, with and without the root
from course_lib.notebook import interactive

interactive.root_of_k(width=4)

# %% [markdown]
# No, the queries differ: of the 16 here, one gets there at $K = 8$, most at 64 or 128, some not before 512, and a query can fall back at the next width. If two keys compete, the better one has the weight $1 / (1 + e^{-\text{lead}})$, where the lead is the difference of their scores. That is more than 0.99 once the lead is more than $\ln 99 \approx 4.6$. Without the division, two random scores differ with a standard deviation of $\sqrt{2K}$, which is 11 at $K = 64$: by then such a lead is common, but which key has it is chance.
#
# The runs of section 3's figure have 500 queries at each width, each with 32 keys. There a query counts as saturated if the norm of its $J$, the root of the sum of the squared slopes, is below a hundredth of that at equal weights. How many are there?

# %% tags=["fold"]
# @title Saturated queries, in each of three seeds
saturated = {way: ledger.values("attention-scaling", way, "flat") for way in ("without", "with the root")}
medians = {way: ledger.values("attention-scaling", way, "gradient_median") for way in ("without", "with the root")}
claim(
    "Without the root the saturated fraction is 0 at K = 4, between 0.1 and 0.13 at 64, 0.35 and 0.45 at 256, 0.55 and 0.65 at 1024; with it, 0 at all widths.",
    all(
        run[0] == 0 and 0.1 < run[2] < 0.13 and 0.35 < run[3] < 0.45 and 0.55 < run[4] < 0.65
        for run in saturated["without"]
    )
    and max(max(run) for run in saturated["with the root"]) == 0,
    **{f"at K = {K}": [run[i] for run in saturated["without"]] for i, K in enumerate((4, 16, 64, 256, 1024))},
)
claim(
    "At K = 4, 16 and 64 the median gradient is larger without the root, in each of three seeds.",
    all(
        without[i] > divided_by[i]
        for without, divided_by in zip(medians["without"], medians["with the root"], strict=True)
        for i in (0, 1, 2)
    )
    and len(medians["without"]) == 3,
    without=[run[2] for run in medians["without"]],
    with_the_root=[run[2] for run in medians["with the root"]],
)

# %% [markdown]
# So up to $K = 64$ the typical gradient does not suffer; what grows is the fraction of saturated queries, while a few with long gradients hold up the mean.

# %% [markdown] tags=["deeper"]
# ### How do you get from a GRU to attention?
#
# Chapter 05 found that a GRU's state is a *weighted sum* of all the candidates $n_i$ that it ever made. Kyunghyun Cho's course changes that sum step by step.

# %%
diagrams.show("four_steps")

# %% [markdown]
# **0 · Dependent weights.** The weight of $n_i$ is $(1 - z_i) \prod_{j>i} z_j$, made of update gates. Every later gate scales *all* old weights alike: whatever is asked later, the second stays second. (They add up to 1 minus the product of all gates.)
#
# **1 · Decouple the weights.** Let the newest input ask each candidate how well it fits, and take a softmax. Now the order can change with the question. That is the attention of chapter 06.
#
# **2 · Decouple the candidates.** $n_i$ needs the state before it, so $T$ steps wait for each other. Functions $f(x_i)$ of one input each can all be computed at the same time. With the loop we also lose all knowledge of order; chapter 08 brings it back.
#
# **3 · Keys and values apart; 4 · heads.** As in sections 2 and 5.

# %% [markdown] tags=["deeper"]
# ### Is the GRU's state really such a sum?
#
# The same in numbers. With $h_0 = 0$,
#
# $$ h_t = \sum_{i=1}^{t} w_{ti} \odot n_i, \qquad w_{ti} = (1 - z_i) \odot \prod_{j=i+1}^{t} z_j. $$
#
# Take two old candidates. As the GRU reads on, can it raise the weight of $n_1$ and lower that of $n_2$? And if the input asks, with scores $a_{ti} = n_i W x_t^\top$ and a softmax over $i \le t$?

# %%
set_seed(1)
gru_small = lstm_gru.GRU(4, 5, dtype=torch.float64)
x_gru = torch.randn(2, 6, 4, dtype=torch.float64)  # (B, T, I)
gates = gru_small.gate_values(x_gru)
z, n, h_gru = (gates[name].detach() for name in "znh")  # (B, T, D) each
w_gru = lstm_gru.unrolled_weights(z)[:, :, 1:]  # (B, T, T, D), without that of h_0
W = torch.randn(5, 4, dtype=torch.float64)  # (D, I)
alpha = attention_weights(x_gru @ W.T @ n.mT, causal_mask(6))  # (B, T, T)
print("weight of n_1 over that of n_2, steps 2 to 6")
print("GRU:      ", w_gru[0, 1:, 0, 0] / w_gru[0, 1:, 1, 0])
print("softmax:  ", alpha[0, 1:, 0] / alpha[0, 1:, 1])

# %% tags=["fold"]
# @title Checked: the sum, and another book's product
claim(
    "The weighted sum of candidates is the GRU's state, to 1e-12; its weights add up to 1 minus the product of all gates.",
    torch.allclose((w_gru * n.unsqueeze(1)).sum(2), h_gru, atol=1e-12)
    and torch.allclose(w_gru.sum(2), 1 - z.cumprod(1), atol=1e-12),
)
printed = torch.stack(  # the product as the slides have it, at t = 2; z[:, j - 1] is z_j
    [z[:, i - 1 : 2 - i + 1].prod(1) * (1 - z[:, : i - 1]).prod(1) for i in (1, 2)], dim=1
)  # (B, 2, D)
off = ((printed * n[:, :2]).sum(1) - h_gru[:, 1]).abs().max()
claim("With the product printed in the slides, $h_2$ is wrong by more than 0.01.", off > 0.01, largest_error=off)

# %% [markdown]
# The GRU's ratio is settled once both are in; that of the softmax crosses 1. (Kabongo's slides give $n_i$ the weight $\prod_{j=i}^{t-i+1} z_j \prod_{k=1}^{i-1} (1 - z_k)$ and sum *hidden states*; at $t = 2$ that makes $z_1 z_2$ of $(1 - z_1)\, z_2$.) One thing gets poorer on the way: the GRU has one weight for each of its $D$ units, attention one for each head.

# %% [markdown] tags=["deeper"]
# ### Is a score of 0.9 good? Compared with what?
#
# Three more readers of "it", trained on the same sentences, three seeds each: one under a *causal mask*, where *it* cannot see what follows, so that both twins look the same to it; one with *one layer* of one head, without `gather`; one with *two reading heads*. *One head at the referent* is for one head of the last layer, chosen on the training sentences.

# %%
guess_one_layer = predict("the accuracy of the reader with one layer, from 0 to 1", ...)

# %% tags=["reveal"]
figures.readers()
one_layer_right = ledger.summary("coreference-heads", "one layer", "accuracy")[0]
guess_one_layer.compare(round(one_layer_right, 2))

# %% tags=["fold", "reveal"]
# @title In numbers, in each of three seeds
recorded = {
    name: {
        metric: ledger.values("coreference-heads", name, metric)
        for metric in ("accuracy", "both_twins", "head_at_referent", "any_head_at_referent")
    }
    for name in coreference.READERS
}
causal, shallow, two = (recorded[name] for name in ("causal mask", "one layer", "two reading heads"))
claim(
    "Under the causal mask both twins are never right, so the accuracy is one half at best; with one layer of one head it is below 0.55.",
    max(causal["both_twins"]) == 0 and max(causal["accuracy"]) <= 0.5 and max(shallow["accuracy"]) < 0.55,
    causal=causal["accuracy"],
    one_layer=shallow["accuracy"],
)
shared = [right > 0.9 and at < 0.75 for right, at in zip(two["accuracy"], two["head_at_referent"], strict=True)]
claim(
    "With two reading heads, in at least one of three seeds: right in over 9 of 10, but its best head is there in under 3 of 4; that *some* head is there is true for over 20 points more.",
    any(shared)
    and all(
        some > alone + 0.2
        for some, alone, is_shared in zip(two["any_head_at_referent"], two["head_at_referent"], shared, strict=True)
        if is_shared
    ),
    accuracy=two["accuracy"],
    one_head=two["head_at_referent"],
    some_head=two["any_head_at_referent"],
)

# %% [markdown]
# Why can one layer with one head not do it? Its query comes from *it* alone and its keys from single words, so the two nouns' weights have the same ratio in both twins. Several heads are not bound by this: the adjective can draw the weight of one head to itself, so that another decides. That is hard to learn. We trained three readers with one layer of two heads, for 12 epochs: one got most pairs of twins right, two hardly any.
#
# With two layers, too, two heads can share the work: then no single map shows it. The more heads there are, the less it means that *some* head looks at the right word. Choose the head *before* you look at the test sentences.

# %% [markdown] tags=["deeper"]
# ### Can another map give the same output?
#
# The output has $E$ entries; with more keys than that, $S > E + 1$, *other* weights give the very same output (Brunner et al. 2020). (Our reader of "it" has $E = 32$ and fewer words, so this does not concern it; a text of 500 words with heads of width 64 it does.) Here are 12 keys with values of width 4. How much weight can move?

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
another = (one_map + far * change).clamp(min=0).abs()

# %% tags=["reveal"]
figures.two_maps(one_map, another)

# %% tags=["fold", "reveal"]
# @title How much has moved
amount = (another - one_map).abs().sum() / 2
guess_moved.compare(round(amount.item(), 2))
claim(
    "Both maps are nowhere negative and add up to 1; their outputs agree to 1e-12; more than two fifths of the weight have moved.",
    (another.min() >= 0).item()
    and (abs(another.sum() - 1) < 1e-12).item()
    and torch.allclose(one_map @ v_twelve, another @ v_twelve, atol=1e-12)
    and (amount > 0.4).item(),
    moved=amount,
)

# %% [markdown] tags=["deeper"]
# ### Where does the trained reader look, in your own sentences?
#
# Switch between the sentences: what does *it* gather, and where does it read? Then write your own, from the words in `sorted(task.vocab.itos)`. Can you find one that is read wrongly?

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
        caption="Whose row can you trust? That of *it*. No other row was trained for a task, so none of them says "
        "anything.",
    )

# %%
explore_reader(
    "the animal didn't cross the street because it was too tired",
    "the animal didn't cross the street because it was too wide",
)

# %% [markdown] tags=["deeper"]
# ### More tests of the reader
#
# Hide the word before the adjective, *too*. Let the two nouns exchange their tickets: does the answer change with them? And shuffle the words of the sentence.

# %%
rows = torch.arange(2)
weaker = torch.tensor([s.distractor for s in pair])
swapped = twin_tickets.clone()
swapped[rows, twins.referent] = twin_tickets[rows, weaker]
swapped[rows, weaker] = twin_tickets[rows, twins.referent]
length = int(twins.real[0].sum())
order = torch.randperm(length, generator=torch.Generator().manual_seed(1))
it_now = (order == twins.pronoun[0]).nonzero().item()
with torch.no_grad():
    told, told_after = (
        model(twins.ids, each, twins.real)[rows, twins.pronoun].argmax(1)
        for each in (twin_tickets, swapped)
    )
    shuffled = model(twins.ids[:1, order], twin_tickets[:1, order])[0, it_now]
print(" ".join(pair[0].tokens[i] for i in order))

# %% tags=["fold"]
# @title Whose ticket it names
claim(
    "Swap the tickets of the two nouns, and the answers swap. Shuffle the words, and the answer stays.",
    torch.equal(told, twins.referent) and torch.equal(told_after, weaker) and (shuffled.argmax() == told[0]).item(),
)
too = ledger.values("coreference-hidden", "all", "without_too")
whole = ledger.values("coreference-hidden", "all", "accuracy")
claim(
    "Hiding the word before the adjective, 'too', changes the accuracy by less than 5 points in each of three recorded seeds.",
    all(abs(a - b) < 0.05 for a, b in zip(too, whole, strict=True)) and len(too) == 3,
)

# %% [markdown]
# And does a hidden adjective show where the answer stays right? For each adjective, the logarithm of the probability that the right ticket gets, as it is and with the adjective hidden from `gather`:

# %%
test, at_adjective = task.test, coreference.adjective_of(task.test)  # (B,)
all_rows = torch.arange(len(test.ids))
without_it = test.real.clone()  # (B, T)
without_it[all_rows, at_adjective] = False
each_own = torch.arange(test.ids.shape[1]).expand(len(test.ids), -1)  # tickets
log_p = {}
with torch.no_grad():
    for name, visible in {"as it is": test.real, "hidden": without_it}.items():
        x_test, h_test = model.context(test.ids, padding_mask(visible))
        values_test, seen_by_read = model.tickets(each_own), padding_mask(test.real)
        y_test = model.read(h_test, x_test, values_test, mask=seen_by_read)
        logits_it = model.output(y_test)[all_rows, test.pronoun]  # (B, 16)
        log_p[name] = logits_it.log_softmax(dim=1)[all_rows, test.referent]

# %% tags=["fold"]
# @title The right ticket's log-probability, by adjective
last_words = [sentence.tokens[-1] for sentence in task.test_sentences]
change_of = {
    word: (log_p["hidden"] - log_p["as it is"])[torch.tensor([last == word for last in last_words])].mean().item()
    for word in by_adjective
}
table(
    ["adjective", "weight", "right with it hidden", "change of the log-probability"],
    [
        [word, f"{row['weight']:.2f}", f"{row['right_without']:.2f}", f"{change_of[word]:+.1f}"]
        for word, row in by_adjective.items()
    ],
)
claim(
    "In our run, of the adjectives with a weight above 0.8, hiding one changes the log-probability by less than 0.01, and hiding another lowers it by more than 5.",
    min(abs(change_of[word]) for word, row in by_adjective.items() if row["weight"] > 0.8) < 0.01
    and min(change_of[word] for word, row in by_adjective.items() if row["weight"] > 0.8) < -5,
    small=f"{change_of['small']:.1f}",
    wide=f"{change_of['wide']:.1f}",
)

# %% [markdown]
# In our run the reader looks at *small* with a weight near 1, and hiding it changes the probability of the right ticket hardly at all. That probability is near 1, though, so the logits themselves may still move.
#
# The shuffle should worry you. This language can be read as a bag of words, so it did no harm. But *dog bites man*? Attention without a mask does not know order: chapter 08.

# %% [markdown] tags=["deeper"]
# ### What must be stored for the backward pass, and when?
#
# The equation stores the whole matrix of weights, (B, H, T, S). Torch's kernel computes it in pieces and need not store it: less memory, and faster (chapter 10). That is why `forward` returns no maps; `layer.attention_weights` computes them apart. But "need not" has conditions. For $B = 2$, $H = 4$, $T = S = 512$ and $D = 64$, the values that autograd stores of one layer, its parameters left out (one matrix of weights has $B H T^2$ = 2,097,152):


# %% tags=["fold", "nbval-ignore-output"]
# @title Values stored, counted
def values_stored(backend, **options):
    """How many values autograd stores of one self-attention, parameters left out."""
    set_seed(0)
    layer = MultiHeadAttention(64, 4, **options)
    inputs, found = torch.randn(2, 512, 64, requires_grad=True), {}
    parameters = {each.untyped_storage().data_ptr() for each in layer.parameters()}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            found[storage.data_ptr()] = storage.nbytes() // tensor.element_size()
        return tensor

    with attention_backend(backend), torch.autograd.graph.saved_tensors_hooks(keep, lambda each: each):
        out = layer(inputs)
    return sum(found.values()) if out.requires_grad else 0


stored = {
    "the equation": values_stored("math"),
    "torch's kernel": values_stored("sdpa"),
    "torch's kernel, dropout on the weights": values_stored("sdpa", dropout=0.1),
    "torch's kernel, a learned bias on the scores": values_stored("sdpa", position=RelativeBias(4, 16)),
}
table(["way", "values stored"], [[name, found] for name, found in stored.items()])
square = 2 * 4 * 512**2
claim(
    "The kernel stores less than a quarter of one matrix of weights. With dropout on the weights, or with a learned bias, it stores more than one, like the equation.",
    stored["torch's kernel"] < square / 4
    and min(found for name, found in stored.items() if name != "torch's kernel") > square,
)
