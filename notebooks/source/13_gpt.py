# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 320
#     needs: "chapters 09 to 11"
# ---

# %% [markdown]
# # 13 · GPT
#
# A small GPT learns from Shakespeare's plays, one character at a time. After 500 steps it is given `GREMIO:` and must go on. At each step it gives every character a probability, and the natural rule seems to be: *take the likeliest one*. By this rule it continues 20 such openings, of 13 speakers, for 240 characters each. **Cut each text into overlapping pieces of 8 characters. Of every 100, how many occurred earlier in that text?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("gpt_loop")

# %% tags=["setup", "fold"]
# @title Imports
import functools
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib import datasets, metrics, ngram, pretrained
from course_lib.cost import measure
from course_lib.exercises import ch13
from course_lib.experiments import (
    data_parallel,
    kv_cache,
    prefix_tasks,
    sampling,
)
from course_lib.generate import generate, sample_tokens, top_k_top_p
from course_lib.gpt import GPT, GPTConfig
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
from course_lib.notebook.figures import ch13 as figures
from course_lib.optim import cosine_schedule
from course_lib.train import set_seed
from course_lib.utils import huggingface, number_of_parameters

torch.set_printoptions(precision=2, sci_mode=False)
set_seed(0)

# %%
guess_1 = predict("the repeated pieces in every 100", ...)

# %% tags=["fold", "reveal"]
# @title One model, two ways to choose, and Shakespeare
# 20 openings of 13 speakers: without chance these are 13 different texts
trainings = [run["results"] for run in ledger.load("gpt-sampling")["runs"]]
first, *others = (f"{100 * texts['greedy']['repetition']:.0f}" for texts in trainings)
guess_1.compare(f"{first} of 100; in two other trainings {' and '.join(others)}")
for way in ("greedy", "temperature 0.7", "real text"):
    markdown(f"**{way}**\n```text\n{trainings[0][way]['sample'][:180]}\n```")
claim(
    "In each of three trainings more than half of the pieces had occurred before where the likeliest character is always taken; in Shakespeare's own text fewer than 1 in 20; drawn at temperature 0.7, fewer still.",
    len(trainings) == 3
    and all(
        texts["greedy"]["repetition"] > 0.5
        and texts["temperature 0.7"]["repetition"] < texts["real text"]["repetition"] < 0.05
        for texts in trainings
    ),
    **{way: [texts[way]["repetition"] for texts in trainings] for way in ("greedy", "temperature 0.7", "real text")},
)

# %% [markdown]
# The same network wrote the first two texts; the third is Shakespeare's. In the second, each character was drawn by chance, with a preference for the likely ones. So two things make a text: a network that gives probabilities, and a rule that chooses.
#
# You will build such a network in about 50 lines (sections 1 to 3) and train a small one on text from your own machine (4 and 5). Then weights that were trained on Shakespeare go into your code, and *it* writes. *Sections 1 to 5, with exercise 13.1, take about an hour and a half.*
#
# ### You will be able to
#
# 1. build a whole GPT and predict its first loss (sections 2 to 4);
# 2. train it, compare it fairly, and let it write (5);
# 3. choose how to draw the next token (13.2 to 13.4);
# 4. keep keys and values in a cache, and check that nothing changed (13.5);
# 5. count what training takes (13.6, 13.7);
# 6. load weights in GPT-2's layout, and assemble a GPT of your own on trained ones (13.8).
#
# **Letters.** `B` sequences, `T` tokens, `L` positions (the most tokens a text may have, the *context*), `V` tokens in the vocabulary, width `D`, `N` blocks, `H` heads of width `K` = `D`/`H`; `S` tokens in a cache (section 7).

# %% [markdown]
# ## 1 · Any text is a set of exercises
#
# What does the network learn from? To guess how *the cat sat on the* goes on, it helps to know some English, and something about cats. Nobody needs to write down the right answers: they stand in the text. The text up to section 5 is what comes with every Python installation: its docstrings, one token for each character. (They differ a little between versions, and so will your numbers.)

# %%
# run_size.pick(quick, full): this page shows the quick run
corpus = datasets.docstrings(run_size.pick(300_000, None))
alphabet = sorted(set(corpus))


def encode(string, letters=alphabet):
    return [letters.index(character) for character in string]


def decode(ids, letters=alphabet):
    return "".join(letters[i] for i in ids)


print(len(corpus), "characters,", len(alphabet), "different ones:")
print(corpus[:150])


# %% [markdown]
# The input is a text without its last token. The target of each token is the one after it:

# %%
word = torch.tensor(encode("Return"))
inputs, targets = word[:-1], word[1:]  # (T,) both: the targets stand one token later
for t in range(len(inputs)):
    print(f"after {decode(inputs[: t + 1]):6} comes {decode(targets[t : t + 1])}")

# %% [markdown]
# Six characters make five exercises. A **GPT** (*Generative Pre-trained Transformer*) is trained for one thing: to give the token that comes next a high probability, at every position. So at each of the `T` positions it must give every token of the vocabulary a probability.

# %% [markdown]
# ## 2 · The skeleton first
#
# Which network does this, at all positions at once? Here it is, with the line you will write beside each part. It is chapter 09's right-hand stack alone: without a source sentence, the memory and every arrow from it fall away.

# %%
diagrams.show("whole_gpt")

# %% [markdown]
# We build from the outside in: first a GPT whose blocks do nothing.

# %%
class DummyBlock(nn.Module):
    def __init__(self, D, H):
        super().__init__()

    def forward(self, x):  # (B, T, D)
        return x  # to be filled in


# %% [markdown]
# Around the blocks stand an **embedding**, a table with a learned vector for each token, and three parts.
#
# - **Positions.** Each position has a learned vector of its own, which is added to the token's.
# - **A last LayerNorm.** Each block adds to the stream of vectors `x`; the norm brings each vector to mean 0 and variance 1, times a learned gain, plus a learned offset (chapter 09's Pre-LN).
# - **The head,** a linear layer, gives each of the `V` tokens a score, its *logit*. GPT-2 reuses the token table here: token $i$ gets a high logit where the vector points the way row $i$ does (**weight tying**, Press and Wolf 2017).


# %%
class PlainGPT(nn.Module):
    def __init__(self, V, L, D, N, H, block):  # block: a class, called with (D, H)
        super().__init__()
        self.L = L
        self.embedding = nn.Embedding(V, D)  # a row for each token
        self.positions = nn.Parameter(torch.zeros(L, D))  # and for each position
        self.blocks = nn.ModuleList(block(D, H) for _ in range(N))
        self.norm = nn.LayerNorm(D)
        self.head = nn.Linear(D, V, bias=False)
        self.head.weight = self.embedding.weight  # one table, used twice

    def forward(self, ids):  # (B, T)
        T = ids.shape[1]
        x = self.embedding(ids) + self.positions[:T]  # (B, T, D) + (T, D)
        for block in self.blocks:
            x = block(x)  # (B, T, D)
        return self.head(self.norm(x))  # logits (B, T, V)


# %% [markdown]
# Does it run? Two texts of five characters go in:

# %%
V, L = len(alphabet), 64
D, N, H = run_size.pick((64, 2, 4), (256, 6, 8))
skeleton = PlainGPT(V, L, D, N, H, DummyBlock)
ids = torch.tensor([encode("Retur"), encode("Raise")])  # (B, T)
x = skeleton.embedding(ids) + skeleton.positions[:5]  # (B, T, D)
print("ids", tuple(ids.shape), "-> x", tuple(x.shape), end=" ")
print("-> logits", tuple(skeleton(ids).shape))  # (B, T, V)

# %% [markdown]
# It runs: at every position `V` logits for the token *after* it. But each vector knows only its own token and position, so it can learn little more than pairs, like chapter 01's bigrams.

# %% [markdown]
# ## 3 · Fill the boxes
#
# How does a position use the tokens before it? A block has two parts: in masked self-attention each position looks back at the earlier ones, and a feed-forward network works on what it found.
#
# ### Look back
#
# This is chapter 07's attention. Every position makes three vectors: a *query* asks, a *key* answers, and a *value* is what can be fetched. Unlike chapter 07's `MultiHead`, one linear layer makes all three, and `chunk` cuts them apart. A head owns `K` numbers of each. The product of query $t$ with key $j$, over $\sqrt K$, is a score. Here are those of one head in our first text. (The layer is random: look only at the shapes.)

# %%
set_seed(0)
K, in_proj = D // H, nn.Linear(D, 3 * D)
joint = in_proj(x)  # (B, T, 3D)
queries, keys, values = joint.chunk(3, dim=-1)  # (B, T, D) each
print("joint", tuple(joint.shape), "-> one part", tuple(queries.shape))
query, key = queries[0, :, :K], keys[0, :, :K]  # (T, K): text 0, head 0
print("scores:", (query @ key.T / K**0.5).detach(), sep="\n")

# %% [markdown]
# Now all heads and texts at once. Each part becomes (B, H, T, K), so that every head is a small matrix like the one above:

# %%
# (B, T, D) -> (B, T, H, K) -> (B, H, T, K)
q = queries.unflatten(2, (H, K)).transpose(1, 2)
k = keys.unflatten(2, (H, K)).transpose(1, 2)
v = values.unflatten(2, (H, K)).transpose(1, 2)
scores = q @ k.mT / K**0.5  # .mT turns (T, K) into (K, T)
print("q, k, v", tuple(q.shape), "-> scores", tuple(scores.shape))

# %% [markdown]
# Row $t$ holds the scores of query $t$ with all keys, those of *later* tokens too: the very tokens it should predict. So their scores become $-\infty$, and softmax makes 0 of them. Each row still sums to 1, and is used to average the values:

# %%
past = torch.ones(5, 5, dtype=torch.bool).tril()  # row t: columns 0 to t
weights = scores.masked_fill(~past, -torch.inf).softmax(dim=-1)
print("weights of text 0, head 0:", weights[0, 0].detach(), sep="\n")
found = weights @ v  # (B, H, T, K)
print("weights @ v", tuple(found.shape), end=" -> heads merged ")
print(tuple(found.transpose(1, 2).flatten(2).shape))  # (B, T, D)

# %% [markdown]
# The first token can only look at itself, the last at all five. The same lines as a class, where `heads` cuts all three parts alike, and a second linear layer mixes the heads.
#
# *Write it yourself first, if you like, with the names `in_proj`, `heads` and `out_proj`: ten minutes; the test after the next cell tells whether it is right.*


# %%
class CausalAttention(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.H = H
        self.in_proj = nn.Linear(D, 3 * D)  # queries, keys and values
        self.out_proj = nn.Linear(D, D)

    def heads(self, x):  # (B, T, D) -> three times (B, H, T, K)
        parts = self.in_proj(x).chunk(3, dim=-1)
        return [part.unflatten(2, (self.H, -1)).transpose(1, 2) for part in parts]

    def forward(self, x):  # (B, T, D)
        q, k, v = self.heads(x)
        scores = q @ k.mT / k.shape[-1] ** 0.5  # (B, H, T, T)
        past = torch.ones_like(scores[0, 0], dtype=torch.bool).tril()
        weights = scores.masked_fill(~past, -torch.inf).softmax(dim=-1)
        found = (weights @ v).transpose(1, 2).flatten(2)  # (B, T, D)
        return self.out_proj(found)


# %% [markdown]
# With the layer from above, and its heads left unmixed, it must find what we found by hand:

# %%
attention = CausalAttention(D, H)
attention.in_proj, attention.out_proj = in_proj, nn.Identity()
by_hand = found.transpose(1, 2).flatten(2)  # (B, T, D)
print("as by hand:", torch.allclose(attention(x), by_hand, atol=1e-6))

# %% [markdown]
# ### Think
#
# The feed-forward network takes each position by itself: from `D` numbers to `4D`, an activation, and back to `D`. The activation is **GELU**, $x\,\Phi(x)$ with $\Phi$ the normal distribution function: a ReLU with a soft corner. (GPT-2 uses GELU's `tanh` approximation.)

# %%
wide, narrow = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
inner = F.gelu(wide(x), approximate="tanh")  # (B, T, 4D)
print("x", tuple(x.shape), "-> wide", tuple(inner.shape), end=" ")
print("-> narrow", tuple(narrow(inner).shape))  # (B, T, D)

# %% [markdown]
# ### Add
#
# The block is chapter 09's layer in its Pre-LN form. Each part reads a normalised copy of `x`, and what it computes is *added* to `x`, so the gradient has a way past every part (*Going deeper* measures it). Look back, add; think, add.
#
# *Write this one, too, with the names `ln1`, `attn`, `ln2`, and `mlp` for an `nn.Sequential`. Section 5 tests it: with trained weights it must give the library's logits.*


# %%
class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.ln1, self.ln2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.attn = CausalAttention(D, H)
        wide, narrow = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)
        self.mlp = nn.Sequential(wide, nn.GELU("tanh"), narrow)

    def forward(self, x):  # (B, T, D)
        x = x + self.attn(self.ln1(x))  # look back
        x = x + self.mlp(self.ln2(x))  # think
        return x


# %% [markdown]
# ### Write
#
# Generation is the loop of the first picture. It runs the model, takes the logits of the last position, lets a rule `choose`, appends, and starts again. If the text is longer than the context, the oldest tokens drop out.


# %%
@torch.no_grad()
def continue_text(model, ids, steps, choose):  # ids (B, T)
    for _ in range(steps):
        logits = model(ids[:, -model.L :])[:, -1]  # (B, V), of the last position
        ids = torch.cat([ids, choose(logits)[:, None]], dim=1)  # (B, T + 1)
    return ids


# %% [markdown]
# The simplest rule draws by chance, each token with its probability. So our network can write before it has learned anything:


# %%
def by_chance(logits):  # (B, V) -> (B,)
    return torch.multinomial(logits.softmax(dim=-1), 1)[:, 0]


def sample(model, beginning, steps, choose=by_chance, letters=alphabet):
    ids = torch.tensor([encode(beginning, letters)], device=model.positions.device)
    ids = continue_text(model, ids, steps, choose)  # (1, T + steps)
    return decode(ids[0].tolist(), letters)


set_seed(0)
untrained = PlainGPT(V, L, D, N, H, Block)
print(f"{number_of_parameters(untrained):,} parameters")
print(sample(untrained, "Return", 60))

# %% [markdown]
# That is the whole GPT: `PlainGPT`, `CausalAttention`, `Block`, `continue_text`, about 50 lines. Untrained, it repeats one letter.
#
# ### Is it right?
#
# A wrong mask would not show in a single shape. So we change token 5 of 8, counted from 0, and look where the logits change:

# %%
eight = torch.tensor([encode("Return a")])
changed = eight.clone()
changed[0, 5] = alphabet.index("x")  # "Returx a"
with torch.no_grad():
    moved = (untrained(changed) - untrained(eight)).abs().amax(dim=-1)[0]  # (T,)
print("changed:", (moved > 1e-4).tolist())

# %% [markdown]
# The past does not see the change; positions 5 to 7 do. So far our model knows nothing. But why does it repeat one letter?

# %% [markdown]
# ## 4 · How wrong is it?
#
# Before training, every character should be about equally likely. Ours is sure that each one comes twice. Look at its logits after `Return`:

# %%
with torch.no_grad():
    z = untrained(word[None])[0, -1]  # (1, T) in, the last row of logits out: (V,)
others = [i for i in range(V) if i != word[-1]]
print(f"after Return: n {z[word[-1]]:.0f}, largest other logit {z[others].max():.0f}")

# %% [markdown]
# The `n` just read wins. Each logit is a product with a row of the table. The table is tied, so the row of `n` is still in the stream. How large is a row's product with itself, and how large with another? torch draws all their numbers from $\mathcal{N}(0, 1)$:

# %%
row_products = (untrained.embedding.weight @ untrained.embedding.weight.T).detach()
other_rows = row_products[~torch.eye(V, dtype=torch.bool)]
print(f"with itself about {row_products.diag().mean():.0f}, ", end="")
print(f"with another about {other_rows.std():.0f}, up or down")

# %% [markdown]
# The first is about $D$, the second about $\sqrt D$. GPT-2 starts smaller:
#
# - nearly all weights are drawn from $\mathcal{N}(0, 0.02^2)$;
# - biases are 0;
# - weights that write into the stream are divided by $\sqrt{2N}$ (as later code reads the paper). The variances of $2N$ parts add up, so lengths grow like the root.

# %%
@torch.no_grad()
def start_small(model, std=0.02):
    for name, p in model.named_parameters():
        if p.ndim == 2:  # matrices and tables
            p.normal_(std=std)
        elif name.endswith("bias"):
            p.zero_()
        if name.endswith(("out_proj.weight", "mlp.2.weight")):
            p /= math.sqrt(2 * len(model.blocks))
    return model


set_seed(0)
small_start = start_small(PlainGPT(V, L, D, N, H, Block))
print(sample(small_start, "Return", 60))

# %% [markdown]
# Now it draws all kinds of characters. How wrong is that? At each position the text holds the right answer. How likely was it?

# %%
with torch.no_grad():
    logits = small_start(word[None, :-1])[0]  # (T, V)
p_right = logits.softmax(dim=-1)[range(5), word[1:]]  # (T,)
for t in range(5):
    right = decode(word[t + 1 : t + 2])
    print(f"after {decode(word[: t + 1]):5} the right {right} had {p_right[t]:.4f}")

# %% [markdown]
# The logarithm is 0 at probability 1, and negative below. Take it, then the mean, then change the sign:

# %%
print("logarithms     ", p_right.log())
print("mean, negative ", -p_right.log().mean())
print("cross-entropy  ", F.cross_entropy(logits, word[1:]))
print(f"ln V            {math.log(V):.2f}")

# %% [markdown]
# This mean is the **average negative log-likelihood** of the right tokens. It is the loss: training makes it small. `cross_entropy` computes it straight from the logits:
#
# $$ \mathcal{L}(\theta) = -\frac1T \sum_{t=1}^{T} \ln p_\theta(x_{t+1} \mid x_1, \dots, x_t) . $$
#
# Its exponential is the **perplexity**, about $V$ with this small start.
#
# It could be known beforehand. A student who has not opened the book finds each of `V` answers equally likely. Then every loss is $-\ln \frac1V = \ln V$.
#
# So check the first loss of any run. Far above $\ln V$? Look at the initialisation, or at how the loss is averaged. Clearly below it? The targets may be the inputs (in a tied model; an untied one shows nothing).
#
# Which way does this loss push the logits? Take four tokens, of which the second is right, and ask autograd:

# %%
z = torch.tensor([3.0, 2.0, 1.0, 0.0], requires_grad=True)  # logits of four tokens
F.cross_entropy(z, torch.tensor(1)).backward()
p, one_hot = z.detach().softmax(dim=-1), torch.eye(4)[1]
print("softmax        ", p)
print("minus one-hot  ", p - one_hot)
print("autograd's     ", z.grad)

# %% [markdown]
# The gradient is *softmax minus one-hot*: $\partial \ell / \partial z_i = p_i - [\,i = r\,]$, with $r$ the right token. A step of the logits goes against it. It raises the right token's by 1 minus its probability. It lowers every other by its own probability. (Both times the learning rate.) *Going deeper* derives the formula, and the first loss of other starts.

# %% [markdown]
# ## 5 · Train it
#
# Does the loss fall, and does what is learned carry over to unseen text? We keep the last tenth of the text for validation. It comes from different modules, except the one at the cut.

# %%
B, steps = run_size.pick((24, 800), (64, 5000))
device = "cuda" if torch.cuda.is_available() else "cpu"
corpus_ids = torch.tensor(encode(corpus))
cut = len(corpus_ids) * 9 // 10
train_ids, valid_ids = corpus_ids[:cut], corpus_ids[cut:]
print(f"{len(train_ids):,} characters to learn from, {len(valid_ids):,} kept")

# %% [markdown]
# A batch is `B` pieces from random places. A column of starts plus the row 0, 1, 2, … gives the places of whole pieces. The targets are the same pieces, one token later:

# %%
print(torch.tensor([[10], [40]]) + torch.arange(6))  # (2, 1) + (6,) -> (2, 6)


def random_windows(ids, B, L, draws):
    starts = torch.randint(len(ids) - L, (B, 1), generator=draws)
    positions = starts + torch.arange(L)  # (B, 1) + (L,) -> (B, L)
    return ids[positions], ids[positions + 1]


draws = torch.Generator().manual_seed(0)
two_inputs, two_targets = random_windows(train_ids, 2, 24, draws)  # (2, 24)
for row in range(2):
    print(repr(decode(two_inputs[row])), "->", repr(decode(two_targets[row])))

# %% [markdown]
# The loss of a batch is the mean over all its positions. `cross_entropy` wants a row of logits for each target, so both are flattened:

# %%
def mean_loss(model, inputs, targets):  # (B, L) both
    logits = model(inputs.to(device))  # (B, L, V)
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten().to(device))


two_logits = small_start(two_inputs)  # (2, 24, V)
print("logits ", tuple(two_logits.shape), "->", tuple(two_logits.flatten(0, 1).shape))
print("targets", tuple(two_targets.shape), "->", tuple(two_targets.flatten().shape))

# %% [markdown]
# One batch is a noisy judge. So `estimate` takes the mean of 20. `report` prints it for both parts, and lets the model write:

# %%
@torch.no_grad()
def estimate(model, ids):
    draws = torch.Generator().manual_seed(0)  # the same windows every time
    total = 0.0
    for _ in range(20):
        inputs, targets = random_windows(ids, B, L, draws)  # (B, L) both
        total += mean_loss(model, inputs, targets).item()
    return total / 20


def report(model, step):  # with dropout: model.eval() before, train() after
    train, valid = estimate(model, train_ids), estimate(model, valid_ids)
    print(f"step {step:4}: training {train:.2f}, validation {valid:.2f}")
    print("   ", repr(sample(model, "Return the ", 60)))
    return step, train, valid

# %% [markdown]
# The loop is the usual one, with chapter 11's AdamW and clipping. The scheduler multiplies the learning rate by a factor: up to 1 in 50 steps, then down half a cosine. *(Write it first, if you like: fifteen minutes; the losses below tell whether it is right.)*

# %% tags=["nbval-ignore-output"]
set_seed(0)
gpt = start_small(PlainGPT(V, L, D, N, H, Block)).to(device)
# one weight decay for all; chapter 11 spares biases and norms
rate = run_size.pick(1e-2, 1e-3)
optimizer = torch.optim.AdamW(gpt.parameters(), rate, betas=(0.9, 0.99), fused=True)
factor = functools.partial(cosine_schedule, warmup=50, total=steps)  # of the step
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, factor)  # rate * factor
windows, history = torch.Generator().manual_seed(1), []
for step in tqdm(range(steps), leave=False):
    if step % (steps // 5) == 0:
        history.append(report(gpt, step))
    inputs, targets = random_windows(train_ids, B, L, windows)  # (B, L) both
    optimizer.zero_grad()
    loss = mean_loss(gpt, inputs, targets)
    loss.backward()
    nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
history.append(report(gpt, steps))
gpt = gpt.cpu()  # from here on we work with single texts

# %% tags=["fold"]
# @title How the loss fell
figures.learning_curves(history)
claim(
    "The first validation loss is ln V to within a tenth of a nat; the last is less than half of it.",
    abs(history[0][2] - math.log(V)) < 0.1 and history[-1][2] < history[0][2] / 2,
    first=f"{history[0][2]:.2f} nats",
    last=f"{history[-1][2]:.2f} nats",
)

# %% [markdown]
# Gibberish turns into pieces of words, some whole, and lines. The two losses stay close: what it has learned holds for new modules, too.
#
# ### Is that good?
#
# How do chapter 01's tables of counts do on the same new text? We measure in bits *per character*, nats divided by $\ln 2$. The windows overlap. Only characters with at least `L`/2 others before them in their window count, so that the GPT is not judged where it has little to read.

# %% tags=["fold"]
# @title Our GPT and the tables, on the same new text
@torch.no_grad()
def bits_per_character(model, ids):
    """On overlapping windows, of which only the second half counts."""
    starts = torch.arange(0, len(ids) - L, L // 2)
    rows = ids[starts[:, None] + torch.arange(L + 1)]  # (windows, L + 1)
    nats = []
    for part in rows.split(64):
        logits = model(part[:, :-1]).transpose(1, 2)  # (64, V, L)
        losses = F.cross_entropy(logits, part[:, 1:], reduction="none")
        nats.append(losses[:, L // 2 :])
    return metrics.bits(torch.cat(nats).mean().item())


gpt_bits = bits_per_character(gpt, valid_ids)
ngrams, ngram_bits = {}, {}
for n in tqdm(range(1, 7), leave=False):  # as in chapter 01
    ngrams[n] = ngram.NgramModel(n, V, add=2.0, interpolate=True).fit(train_ids)
    ngram_bits[n] = metrics.bits(ngrams[n].nll(valid_ids).mean().item())
figures.bits_by_n(ngram_bits, gpt_bits)
claim(
    "In this run our GPT beats the 3-gram, and does not reach the 4-gram.",
    ngram_bits[4] < gpt_bits < ngram_bits[3],
    GPT=f"{gpt_bits:.2f} bits per character",
    **{f"{n}-gram": f"{bits:.2f}" for n, bits in ngram_bits.items()},
)
claim(
    "In training it read more than four times as many characters as the training text has.",
    steps * B * L / len(train_ids) > 4,
    times=f"{steps * B * L / len(train_ids):.1f}",
)

# %% [markdown]
# In this short run your GPT beats the 3-gram and *loses* to the 4-gram. Yet in training it read more than four times as many characters as the text has; a table counts each once. Would a larger model, trained for longer, do better?
#
# ### The same network, larger, on Shakespeare
#
# A network of the same design, 7.6 times as large, read the plays for 6,000 steps. Its weights come with the course. From here on it is our model: the **speaker**. Below, it writes twice, early and late in its training, with the same random numbers, at temperature 0.8 with top-p 0.95 (section 6).

# %% tags=["fold"]
# @title Three networks, and what the third one wrote
def recorded_mean(experiment, row, metric):
    """Mean over the seeds."""
    return ledger.summary(experiment, row, metric)[0]


stages = ledger.load("shakespeare-weights")["runs"][0]["results"]
as_large = f"{stages['GPT']['parameters']:,}"
table(
    ["", "learned from", "parameters", "steps", "where"],
    [
        ["`gpt`", "docstrings", f"{number_of_parameters(gpt):,}", f"{steps:,}", "this page, up to here"],
        ["the early one", "plays", as_large, f"{ledger.load('gpt-sampling')['config']['steps']:,}",
         "the first screen (the first part of the speaker's training, repeated)"],
        ["the **speaker**", "plays", as_large, f"{stages['GPT']['steps']:,}", "from here on"],
    ],
)
for stage in (stages["early"], stages["GPT"]):
    minutes = f"{stage['seconds'] / 60:.0f} minutes, {stage['steps']:,} steps"
    stage_bits = metrics.bits(stage["valid_loss"])
    markdown(f"**{minutes}, {stage_bits:.2f} bits per new character**\n```text\n{stage['sample'][:122]}\n```")
by_n = {n: recorded_mean("shakespeare-lm", f"{n}-gram interpolated", "bits") for n in range(1, 8)}
best_n = min(by_n, key=by_n.get)
train_bits = metrics.bits(stages["GPT"]["train_loss"])
largest_n = ", the largest tried" if best_n == max(by_n) else ""
print(f"speaker {stage_bits:.2f}, best table (n = {best_n}{largest_n}) {by_n[best_n]:.2f} bits per new character")
print(f"speaker {train_bits:.2f} bits per character of the text it was trained on")

# %% [markdown]
# By the end it beats all of chapter 01's tables that were tried on the plays; the largest, $n = 7$, is the best. And it predicts the text it was trained on better than new text, by the sizeable gap between the speaker's two numbers above.
#
# The comparison is not quite even. For the speaker: it trained on nine tenths of the plays, the tables on eight. Against it: it is also scored where its windows begin, and little stands before. And do not compare its bits with those of `gpt`: other text, other scoring.
#
# It was trained as the library's `GPT`, another implementation of the same network. Its tensors have the same names as yours, except `in_proj`. So the weights fit into *your* 50 lines, and must give the same logits there:

# %% tags=["nbval-ignore-output"]
library_speaker, characters = pretrained.load_shakespeare()  # the library's GPT
speaker = PlainGPT(len(characters), 256, 128, 4, 4, Block)  # V, L, D, N, H
renamed = {}
for name, tensor in library_speaker.state_dict().items():
    renamed[name.replace("in_proj_", "in_proj.")] = tensor
speaker.load_state_dict(renamed)


def ids_of(text):  # a text of the plays
    return torch.tensor([encode(text, characters)])  # (1, T)


morrow = ids_of("GREMIO:\nGood morrow")
with torch.no_grad():
    same = torch.allclose(speaker(morrow), library_speaker(morrow), atol=1e-3)
print("the library's logits:", same, end="\n\n")

set_seed(0)
print(sample(speaker, "GREMIO:\n", 240, by_chance, characters))

# %% [markdown]
# **It writes:** speakers, lines, and mostly real words, but little sense. *Going deeper* compares it with six others.
#
# *A good place to stop for today.* Exercise 13.1 takes 25 minutes. Next, about an hour and a quarter with exercises 13.2 to 13.4: how it should choose.

# %% [markdown]
# ### Exercise 13.1 · Implement: the gradient of a tied table
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# A table that is used twice gets the sum of two gradients, one for each use. At the logits $z$ of one position, with the right token $r$, the gradient of the loss is *softmax minus one-hot*: $\partial \ell / \partial z_i = p_i - [\,i = r\,]$. (*Going deeper* derives both.) The smallest tied language model has no layers: $\text{logits}_t = E\,e_t$, with $e_t$ the row of $E$ that belongs to token `ids[t]`, and the loss is the mean cross-entropy of the targets. Write its gradient from tensors, without autograd. (The logits here are small: a plain softmax will do.) Mind tokens that occur twice.


# %% nbgrader={"grade": false, "grade_id": "ex13-1-tied-gradient", "locked": false, "schema_version": 3, "solution": true, "task": false}
def tied_gradient(table, ids, targets):
    """Gradient of the mean cross-entropy of logits = table[ids] @ table.T with respect to the table.

    Args:
        table: (V, D) float, embedding and output layer.
        ids: (T,) int64, the tokens that are read; a token may occur more than once.
        targets: (T,) int64, the tokens that follow.

    Returns:
        (V, D).
    """
    ### BEGIN SOLUTION
    x = table[ids]  # (T, D)
    error = (x @ table.T).softmax(-1)  # (T, V)
    error[torch.arange(len(ids)), targets] -= 1
    error = error / len(ids)
    as_output = error.T @ x  # (V, D)
    return as_output.index_add(0, ids, error @ table)  # plus the part of the look-up
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex13-1-tied-gradient-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch13.tied_gradient(tied_gradient)


# %% [markdown]
# ## 6 · Choosing the next token
#
# So far the speaker writes by pure chance. Should it not always take what it considers likeliest? This rule is called **greedy**:

# %% tags=["nbval-ignore-output"]
def likeliest(logits):  # (B, V) -> (B,)
    return logits.argmax(dim=-1)


print(sample(speaker, "GREMIO:\n", 240, likeliest, characters))

# %% tags=["fold"]
# @title The first screen's 20 openings, by the speaker
spoken = functools.partial(recorded_mean, "speaker-sampling")
for way in ("greedy", "temperature 0.5"):
    print(f"{way:15}: {100 * spoken(way, 'repetition'):2.0f} of 100 pieces of 8 characters had come before")

# %% [markdown]
# Even at the end of its training it goes round in circles. Nothing is drawn. So once the last few characters come again, the same choice usually follows, and the next one, too. Holtzman et al. (2020) found such loops in *large* models.
#
# For such open text, chance helps. Take four words that may follow *the cat sat on the*. Softmax turns their logits into probabilities. Draw a thousand times, and count:

# %%
four = ["mat", "sofa", "floor", "roof"]
four_logits = torch.tensor([3.0, 2.0, 1.0, 0.0])
probs, fixed = four_logits.softmax(dim=-1), torch.Generator().manual_seed(0)
drawn = torch.multinomial(probs, 1000, replacement=True, generator=fixed)  # (1000,)
print("probabilities:  ", probs)
print("drawn:          ", drawn.bincount(minlength=4))
print("greedy:         ", four[four_logits.argmax()])

# %% [markdown]
# Three rules set how often the unlikely is drawn.
#
# **Temperature** $\tau$: draw from $\mathrm{softmax}(z / \tau)$, with $z$ the logits. Below 1 it prefers what is likely, above 1 it evens out. It cuts nothing:

# %%
for tau in (0.5, 1.0, 2.0):
    print(f"temperature {tau}:", (four_logits / tau).softmax(dim=-1))

# %% [markdown]
# **Top-k** (Fan et al. 2018): draw among the $k$ likeliest. Logits below the $k$-th largest become $-\infty$, and softmax makes 0 of them, as under the mask. Apart from ties, the same *number* of tokens is always left:

# %%
second = four_logits.topk(2).values[-1]  # the smaller of the two largest
top2 = four_logits.masked_fill(four_logits < second, -torch.inf)
print("logits left:    ", top2)
print("top-k, k = 2:   ", top2.softmax(dim=-1))

# %% [markdown]
# **Top-p**, or *nucleus* (Holtzman et al. 2020): draw among the fewest tokens that together have a probability of at least $p$. Here the number adapts. By hand, with $p = 0.9$: go down from the likeliest, and add up:

# %%
print("added up:       ", probs.cumsum(dim=-1))
print("first three:    ", probs[:3] / probs[:3].sum())

# %% [markdown]
# The third token crosses 0.9. So three stay, and their probabilities are divided by their sum, 0.97.
#
# Now the speaker. After `Good morro` it is nearly sure; where a speech begins it is not. Top-k with $k = 5$ leaves five characters in both places. And top-p with $p = 0.9$? (The library's `top_k_top_p` sets the logits of what is cut to $-\infty$.)

# %%
guess_2 = predict("how many characters top-p 0.9 leaves inside, and at the start", ...)

# %% tags=["reveal"]
places = {"inside a word": "GREMIO:\nGood morro", "where a speech begins": "GREMIO:\n"}
scores_at, nucleus = {}, {}
for place, text in places.items():
    with torch.no_grad():
        scores_at[place] = speaker(ids_of(text))[0, -1]  # (V,)
    left = top_k_top_p(scores_at[place], top_p=0.9).isfinite()  # the others are -inf
    nucleus[place] = int(left.sum())

figures.next_characters(characters, scores_at, nucleus)
guess_2.compare("{} inside the word, {} at the start".format(*nucleus.values()))
five = scores_at["inside a word"].topk(5).values.softmax(dim=-1)  # what top-k 5 leaves
print(f"inside, top-k's four less likely get {five[1:].sum():.3f} of the draws")

# %% [markdown]
# Inside the word, $k = 5$ lets in four characters that make no sense there, and the last line says how often they come. Where a speech begins it forbids much of what could follow. Turn the dials yourself:

# %% tags=["fold"]
# @title Interactive: temperature, top-k and top-p
from course_lib.notebook import interactive

interactive.sampling(characters, scores_at)

# %% [markdown]
# ### How unlikely is good text?
#
# Is the likeliest text the best? The speaker continues the first screen's 20 lines by ten rules. We measure two things.
#
# - *Surprise:* how many bits per character do the texts cost the speaker itself, at temperature 1?
# - *Variety:* of all runs of four characters in the 20 texts, what fraction is left when each is counted once?
#
# Where a rule draws, its dot is a mean over three sets of draws.

# %% tags=["fold"]
# @title The ledger: ten rules and real text
strategies = ["real text", *sampling.WAYS]
figures.variety_by_surprise("speaker-sampling", strategies)
claim(
    "The speaker's greedy text has the lowest surprise, the least variety and the most repetition of all ten, and is farthest from real text in both measures.",
    all(
        spoken("greedy", "nll") < spoken(way, "nll")
        and spoken("greedy", "distinct_4") < spoken(way, "distinct_4")
        and spoken("greedy", "repetition") > spoken(way, "repetition")
        and all(
            abs(spoken("greedy", metric) - spoken("real text", metric))
            > abs(spoken(way, metric) - spoken("real text", metric))
            for metric in ("nll", "distinct_4")
        )
        for way in sampling.WAYS
        if way != "greedy"
    ),
)
claim(
    "Real text surprises the speaker more than pure sampling does, and is less varied; of all ten rules only temperature 1.3 is more surprising.",
    [way for way in sampling.WAYS if spoken(way, "nll") > spoken("real text", "nll")] == ["temperature 1.3"]
    and spoken("real text", "nll") > spoken("pure sampling", "nll")
    and spoken("real text", "distinct_4") < spoken("pure sampling", "distinct_4"),
)


# %% [markdown]
# In these texts likelihood and variety pull, nearly always, in opposite directions. Always taking the likeliest is farthest from real text in both measures, though nearly all of its words are real. And the speaker finds real text even more surprising than text drawn by pure chance.
#
# Where variety matters, draw by chance, from a distribution that is cut or cooled; how much depends on what the text is for. In the library, `generate` is `continue_text`, and `sample_tokens` holds all the rules.
#
# **A second good place to stop.** Your GPT writes, and you choose how. Exercises 13.2 to 13.4 take an hour. *The last sitting, sections 7 to 10, takes about an hour and a half with exercises 13.5 to 13.7; 13.8 takes an hour more.*

# %% [markdown]
# ### Exercise 13.2 · Derive: temperature on paper
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# Three tokens; give three digits each. (a) Their logits are 2, 1, 1. What is the first one's probability at temperature 1? (b) At temperature 1/2? (c) The logits are 2, 2, 1. Where does the first one's probability go as $\tau \to 0$? (d) The same logits: as $\tau \to \infty$? (e) The logits are 2, 1, 1 again. At which temperature is the first token exactly three times as likely as the second?

# %% nbgrader={"grade": false, "grade_id": "ex13-2-temperature", "locked": false, "schema_version": 3, "solution": true, "task": false}
temperature_numbers = ...  # five numbers: (a), (b), (c), (d), (e)
### BEGIN SOLUTION
temperature_numbers = (
    math.e**2 / (math.e**2 + 2 * math.e),
    math.e**4 / (math.e**4 + 2 * math.e**2),
    1 / 2,  # the two largest share all
    1 / 3,  # all logits go to 0
    1 / math.log(3),  # e^((2 - 1) / tau) = 3
)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex13-2-temperature-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch13.temperature_numbers(temperature_numbers)

# %% [markdown]
# ### Exercise 13.3 · Implement: top-p
#
# Difficulty ●●●○○ · 20 minutes · needs section 6
#
# From probabilities to probabilities, without `top_k_top_p`: keep in each row the fewest tokens that together reach p, likeliest first, and make them sum to 1 again.


# %% nbgrader={"grade": false, "grade_id": "ex13-3-top-p", "locked": false, "schema_version": 3, "solution": true, "task": false}
def top_p(probs, p):
    """The distribution from which nucleus sampling draws.

    Args:
        probs: (B, V), each row adds up to 1.
        p: share of the probability that the kept tokens must reach, above 0, up to 1.

    Returns:
        (B, V): 0 for the tokens that are cut; each row adds up to 1. At least one token is kept.
    """
    ### BEGIN SOLUTION
    ordered, order = probs.sort(-1, descending=True)
    before = ordered.cumsum(-1) - ordered  # probability of all likelier tokens
    ordered = ordered.masked_fill(before >= p, 0.0)
    kept = torch.zeros_like(probs).scatter(-1, order, ordered)  # back to their own places
    return kept / kept.sum(-1, keepdim=True)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex13-3-top-p-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch13.top_p(top_p)


# %% [markdown]
# ### Exercise 13.4 · Explore and explain: how would you let it write?
#
# Difficulty ●●○○○ · 25 minutes · needs section 6
#
# Change the options in the cell: temperature from 0.3 to 2, `top_k`, `top_p`, both together. Then explain in a few sentences: (a) Why does greedy decoding get caught in a loop, and why does the speaker repeat less than half as much at a temperature of 0.3? (*Going deeper* measures it, after eight names.) (b) Why is top-p with p = 0.9 hardly different from pure sampling where the model is sure, and very different where it is not? (c) A program writes 1,000 tokens, and at every step 0.5 % of the probability is on nonsense. How likely is a text without nonsense under pure sampling? (d) Which dials would you choose for code, for product names, and for estimating how good the model is?

# %% tags=["nbval-ignore-output"]
options = {"temperature": 0.8, "top_k": None, "top_p": 0.95}  # your turn
seeded = torch.Generator().manual_seed(5)
for _ in range(3):
    rule = functools.partial(sample_tokens, generator=seeded, **options)
    print(sample(speaker, "GREMIO:\n", 120, rule, characters) + "\n----")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex13-4-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) Greedy decoding is a calculation without chance: the next token depends on the context alone. Once the characters that decide come again, the same choice follows, and the next, so the text returns to where it was, for ever. (It need not become more likely with each turn; in the one loop that *Going deeper* prints it stays about the same.) At temperature 0.3 a probability ratio of 3 becomes $3^{1/0.3} \approx 39$, so at a sure step the second choice is rare. But a ratio of 1.5 becomes only 3.9: where two characters are nearly as likely, the second is drawn about once in five times. A loop passes its steps again and again, and one other choice is enough to leave it.
#
# (b) Where the model is sure, one or two tokens hold more than 0.9, and pure sampling would nearly always have drawn them too. Where it is not, the tenth that is cut is spread over many unlikely tokens, each bad, together drawn every tenth time.
#
# (c) $0.995^{1000} \approx 0.0067$: hardly ever. This is why the tail is cut although each of its tokens is rare.
#
# (d) Code: greedy or a low temperature, since there are few right continuations. Names: a higher temperature with top-p, since variety is wanted and each draw is short. Estimating the model: none of them; the loss on held-out text is taken from the model's own distribution, uncut. (A cut distribution gives some true tokens probability 0 and has an infinite loss.)
# ### END SOLUTION

# %% [markdown]
# Paste your answer in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch13.how_to_draw.compare(...)


# %% [markdown]
# ## 7 · Keys and values that stay
#
# `continue_text` reads the whole text again for every new token. Must it? Under a causal mask the vector at position $j$ depends on tokens $0 \dots j$ only, in every layer. A new token changes none of the earlier ones, and so none of their keys and values. All that token $t$ asks of the past is, for one head,
#
# $$ h_t = \mathrm{softmax}\!\left(\frac{q_t\,[k_0; \dots; k_t]^\top}{\sqrt K}\right) [v_0; \dots; v_t] . $$
#
# Earlier queries are never needed again. So we keep the keys and values in a store, the **cache**:

# %%
diagrams.show("kv_cache")

# %% [markdown]
# `append` puts the keys and values of new tokens behind the old ones, and gives back all:


# %%
class Cache:
    def __init__(self):
        self.length = 0

    def append(self, k, v):  # (B, H, T, K) both, of the new tokens
        if self.length:
            k = torch.cat([self.k, k], dim=2)  # (B, H, S, K)
            v = torch.cat([self.v, v], dim=2)
        self.k, self.v, self.length = k, v, k.shape[2]
        return k, v  # (B, H, S, K) both, of all S tokens


# %% [markdown]
# And the mask? Now `T` new queries meet `S` keys. The last query may look at all `S`, the one before it at one fewer. So the triangle moves to the right, by the number of tokens that are kept. For two tokens after three:

# %%
T, S = 2, 5
print(torch.ones(T, S, dtype=torch.bool).tril(S - T).long())

# %% [markdown]
# With $T = S$ it is section 3's mask, and for one new token a row of ones. So the attention of section 3 changes in two places, `append` and the mask:


# %%
class CachedAttention(CausalAttention):
    def forward(self, x, cache):  # (B, T, D), of the new tokens
        q, k, v = self.heads(x)
        k, v = cache.append(k, v)  # (B, H, S, K), of all tokens
        scores = q @ k.mT / k.shape[-1] ** 0.5  # (B, H, T, S)
        T, S = scores.shape[-2:]
        past = torch.ones_like(scores[0, 0], dtype=torch.bool).tril(S - T)
        weights = scores.masked_fill(~past, -torch.inf).softmax(dim=-1)
        found = (weights @ v).transpose(1, 2).flatten(2)  # (B, T, D)
        return self.out_proj(found)


# %% [markdown]
# In the model two things change: each block takes a cache of its own, and new tokens stand *after* those that are kept. Their positions begin at `kept`, not at 0:


# %%
class CachedBlock(Block):
    def __init__(self, D, H):
        super().__init__(D, H)
        self.attn = CachedAttention(D, H)

    def forward(self, x, cache):  # (B, T, D), of the new tokens
        x = x + self.attn(self.ln1(x), cache)
        return x + self.mlp(self.ln2(x))


class CachedGPT(PlainGPT):
    def forward(self, ids, caches):  # new ids (B, T), a cache for each block
        kept, T = caches[0].length, ids.shape[1]
        assert kept + T <= self.L, "the context is full"
        x = self.embedding(ids) + self.positions[kept : kept + T]
        for block, cache in zip(self.blocks, caches):
            x = block(x, cache)  # (B, T, D)
        return self.head(self.norm(x))  # logits (B, T, V)


# %% [markdown]
# It has the same parameters, so the speaker's weights fit. It reads 40 characters in parts: a prompt at once, a few more, then one by one. In float64 the logits must agree, at *every* position and to rounding, with those of the whole text read at once:

# %%
forty = ids_of("GREMIO:\nGood morrow, neighbour Baptista.")  # (1, 40)
uncached = PlainGPT(len(characters), 256, 128, 4, 4, Block).double()
cached = CachedGPT(len(characters), 256, 128, 4, 4, CachedBlock).double()
for model in (uncached, cached):
    model.load_state_dict(speaker.state_dict())
caches, parts = [Cache() for _ in cached.blocks], []
with torch.no_grad():
    for new in forty.split([30, 7, 1, 1, 1], dim=1):
        parts.append(cached(new, caches))  # logits (1, T, V)
        print("new", new.shape[1], " kept", caches[0].length)
    whole_text = uncached(forty)  # (1, 40, V)
largest = (torch.cat(parts, dim=1) - whole_text).abs().max().item()
print("in parts equals at once:", largest < 1e-11)

# %% [markdown]
# Nothing changed, as long as the text fits into the context. Once the oldest token drops out, every other has a new position, and all keys and values change.
#
# The loop is `continue_text`, but after the prompt the model reads the newest token alone. With the same random numbers both must write one text:

# %% tags=["nbval-ignore-output"]
@torch.no_grad()
def continue_cached(model, ids, steps, choose):  # ids (B, T)
    caches, new = [Cache() for _ in model.blocks], ids  # first the whole prompt
    for _ in range(steps):
        logits = model(new, caches)[:, -1]  # (B, V), of the last position
        new = choose(logits)[:, None]  # (B, 1): all that is read next
        ids = torch.cat([ids, new], dim=1)  # (B, T + 1)
    return ids


both_texts = []
for model, write in ((uncached, continue_text), (cached, continue_cached)):
    set_seed(0)
    both_texts.append(write(model, ids_of("GREMIO:\n"), 120, by_chance))
print("the same text:", torch.equal(*both_texts), end="\n\n")
print(decode(both_texts[1][0].tolist(), characters))

# %% [markdown]
# ### How much does it save?
#
# The speaker writes 200 tokens in both ways. **Without a cache, how many times as long as the first ten tokens do the last ten take, by their medians?**

# %%
guess_3 = predict("the last ten's time over the first ten's, without a cache", ...)


# %% tags=["fold"]
# @title Write 200 tokens in both ways, and take the time
@torch.no_grad()
def timed(model, steps, caches=None):
    """The likeliest tokens after token 0, and the processor's milliseconds for each."""
    text, milliseconds = torch.zeros(1, 1, dtype=torch.int64), []
    for _ in tqdm(range(steps), leave=False):
        start = time.process_time()
        # with caches the model reads the newest token alone
        logits = model(text) if caches is None else model(text[:, -1:], caches)
        text = torch.cat([text, logits[:, -1:].argmax(-1)], 1)  # (1, T + 1)
        milliseconds.append(1000 * (time.process_time() - start))
    tens = [milliseconds[i : i + 10] for i in range(0, steps, 10)]
    return text, [statistics.median(ten) for ten in tens]


timed(uncached, 20)  # the first calls of all are slower
again, again_ms = timed(uncached, 200)
kept, kept_ms = timed(cached, 200, [Cache() for _ in cached.blocks])

# %% tags=["reveal"]
figures.time_by_token(again_ms, kept_ms)
without, with_cache = again_ms[-1] / again_ms[0], kept_ms[-1] / kept_ms[0]
guess_3.compare(f"{without:.1f} times; with a cache {with_cache:.1f} times")

# %% tags=["fold", "reveal"]
# @title The same logits, the same text
claim(
    "Read in parts, 40 characters get the logits that they get at once, to rounding in float64; and both ways write the same 200 characters, among them more than 20 different ones.",
    largest < 1e-11 and torch.equal(again, kept) and len(again.unique()) > 20,
    largest_difference=f"{largest:.0e}",
    different=len(again.unique()),
)


# %% [markdown]
# **The gain is time.** Without a cache the $t$-th token costs a pass over $t$ tokens, so a text of $T$ tokens costs about $T^2/2$ token passes; with it, $T$. By this count the last ten of 200 tokens take about 35 times as long as the first ten. At this size fixed costs, which even a single token pays, probably hide most of it.
#
# **The price is memory.** Keys and values, in each of `N` blocks, for `B` texts of $S$ tokens, `D` numbers each: $2\,N B S D$ numbers. (Heads do not appear: together they make `D`.) The speaker, with its full context of 256, keeps 262,144 numbers for each text, a megabyte. The smallest GPT-2, with 12 blocks, D = 768 and a context of 1,024, keeps 18.9 million numbers for each text. In 16 bits these are 38 megabytes, and seven such texts outweigh the model's weights.

# %% [markdown]
# ### Exercise 13.5 · Find the bugs: a cache that is off by one
#
# Difficulty ●●●○○ · 25 minutes · needs section 7
#
# One head, a table of learned positions, one new token a call. The output should be that of causal attention over all tokens at once. Nothing fails, every shape is right, and two things are off by one. Find them, then write it right.
#
# ```python
# def cached_step(x, cache, project, table):
#     t = cache.length
#     q, k, v = project(x + table[t - 1])
#     cache.keys[:, t], cache.values[:, t] = k, v
#     cache.length = t + 1
#     keys, values = cache.keys[:, :t], cache.values[:, :t]
#     scores = (keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])
#     return (scores.softmax(-1)[..., None] * values).sum(1)
# ```


# %% nbgrader={"grade": false, "grade_id": "ex13-5-cached-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cached_step(x, cache, project, table):
    """Attention of one new token to itself and all before it, one head; its key and value are added to the cache.

    Args:
        x: (B, D) vectors of the new token, without position.
        cache: object with `.keys` and `.values` (B, L, D), of which the first `.length` rows are filled. It is changed; its shape stays.
        project: function from (B, D) to queries, keys and values, (B, D) each.
        table: (L, D) learned positions, the first token's in row 0.

    Returns:
        (B, D).
    """
    ### BEGIN SOLUTION
    t = cache.length
    q, k, v = project(x + table[t])
    cache.keys[:, t], cache.values[:, t] = k, v
    cache.length = t + 1
    keys, values = cache.keys[:, : t + 1], cache.values[:, : t + 1]
    scores = (keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])
    return (scores.softmax(-1)[..., None] * values).sum(1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex13-5-cached-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch13.cached_step(cached_step)


# %% [markdown]
# ## 8 · From GPT to GPT-3
#
# What lies between your GPT and GPT-3? The network changed little: GPT-2 moved the norms before the parts and added the last one; in GPT-3 every second layer attends to a band of nearby tokens. What changed is the size, and with it how a task is given:

# %%
diagrams.show("three_uses")

# %% [markdown]
# | | parameters | blocks × width | context | text | how a task is given |
# |---|---|---|---|---|---|
# | GPT, 2018 | 117 million | 12 × 768 | 512 | 7,000 books | a new linear layer; all weights fine-tuned on labels |
# | GPT-2, 2019 | up to 1.56 billion | 48 × 1600 | 1,024 | 8 million web pages | *prompted*: as text before the answer (mostly zero-shot) |
# | GPT-3, 2020 | up to 175 billion | 96 × 12288 | 2,048 | 300 billion tokens | the same, with a few solved examples (few-shot) |
#
# A prompt needs no new weights: "translate" or a list of examples *is* text, and its continuation is the answer. Web pages contain translations, and questions with answers; a model that predicts them well should have learned something of both. (*Going deeper* has a toy.)

# %% [markdown]
# ## 9 · What does such a size cost?
#
# $P$ is the number of **parameters**, $M$ that of **training tokens**. A token meets each matrix weight once, and the table once, at the output, for one multiplication and one addition: about $2P$ floating-point operations (FLOPs) forward. Backward there are two products for each weight, for the gradient of the input and for that of the weight: $4P$. Together, without attention's own products,
#
# $$ C \approx 6\,P\,M . $$
#
# How is a fixed $C$ best spent? Hoffmann et al. (2022, *Chinchilla*) trained more than 400 models and found that $P$ and $M$ should grow equally. From their tables a rule is read: **about 20 tokens per parameter.** Then $C = 120 P^2$.
#
# Here are the speaker, GPT-3, and a model that spends GPT-3's FLOPs by the rule. For GPT-3 we take 1,024 GPUs of 2020 (A100: $3.12 \cdot 10^{14}$ FLOPs a second), at 40 % of their peak:

# %%
gpt3 = 6 * 1.75e11 * 3e11  # FLOPs
by_rule = math.sqrt(gpt3 / 120)  # parameters, for the same FLOPs
runs = {"the speaker": (number_of_parameters(speaker), stages["GPT"]["tokens"])}
runs |= {"GPT-3": (1.75e11, 3e11), "by the rule": (by_rule, 20 * by_rule)}
for name, (P, M) in runs.items():
    print(f"{name:11} {P:.2e} parameters, {M:.2e} tokens", end=" ")
    print(f"({M / P:4.1f} for each): {6 * P * M:.2e} FLOPs")
minutes = stages["GPT"]["seconds"] / 60
days_of_gpt3 = gpt3 / (1024 * 0.4 * 3.12e14) / 86400  # 1,024 GPUs at 40 %
print(f"the speaker took {minutes:.0f} minutes on one core, ", end="")
print(f"GPT-3 would take {days_of_gpt3:.0f} days on the GPUs")

# %% [markdown]
# **Memory.** For each parameter, training with Adam holds the weight, its gradient and two moments. In float32 that is sixteen bytes: 2.8 terabytes for GPT-3, before the first activation is kept. So many GPUs share the work (*Going deeper*).

# %% [markdown]
# ### Exercise 13.6 · Derive: the memory of a model with Adam
#
# Difficulty ●●○○○ · 20 minutes · needs sections 3 and 9
#
# From the sizes alone, without building a model: how many parameters does a GPT have (tied table, learned positions, biases in every linear layer, feed-forward width 4D, two LayerNorms a layer and one at the end), and how many bytes does training with Adam in float32 hold for them, activations left out?


# %% nbgrader={"grade": false, "grade_id": "ex13-6-training-memory", "locked": false, "schema_version": 3, "solution": true, "task": false}
def training_memory(V, L, D, N):
    """Parameters of a GPT, and the bytes of weights, gradients and Adam's moments.

    Args:
        V: vocabulary.
        L: positions, the context.
        D: width.
        N: layers.

    Returns:
        (parameters, bytes): two int.
    """
    ### BEGIN SOLUTION
    attention_part = 4 * D * D + 4 * D
    feed_forward = 2 * 4 * D * D + 4 * D + D
    norms = 2 * 2 * D
    parameters = V * D + L * D + N * (attention_part + feed_forward + norms) + 2 * D
    return parameters, 16 * parameters
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex13-6-training-memory-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch13.training_memory(training_memory)

# %% [markdown]
# ### Exercise 13.7 · Derive: a training run on paper
#
# Difficulty ●●○○○ · 20 minutes · needs sections 7 and 9
#
# A model of 774 million parameters (36 blocks of width 1280, 20 heads) is to be trained by the rule of 20 tokens per parameter on eight GPUs whose peak is $4 \cdot 10^{14}$ FLOPs a second; your program reaches 40 % of it. To three digits: (a) How many tokens? (b) How many FLOPs, by $6PM$? (c) How many days? (d) Then it generates 32 texts of 1,024 tokens at once, in bfloat16: how many gigabytes ($10^9$ bytes) hold keys and values?

# %% nbgrader={"grade": false, "grade_id": "ex13-7-training-run", "locked": false, "schema_version": 3, "solution": true, "task": false}
training_run = ...  # four numbers: tokens, FLOPs, days, gigabytes
### BEGIN SOLUTION
tokens = 20 * 774e6
operations = 6 * 774e6 * tokens
days = operations / (8 * 0.4 * 4e14) / 86400
gigabytes = 2 * 36 * 32 * 1024 * 1280 * 2 / 1e9
training_run = (tokens, operations, days, gigabytes)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex13-7-training-run-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch13.training_run(training_run)


# %% [markdown]
# ## 10 · Your GPT writes
#
# Trained weights are published, GPT-2's among them. Your lines compute the same function, so only the layout must be translated. Here is the speaker's checkpoint, a folder of sizes and tensors, in GPT-2's layout:

# %%
with tempfile.TemporaryDirectory() as folder:
    library_speaker.save_pretrained(folder)  # in GPT-2's layout
    sizes, stored = huggingface.read(folder)
tensors = {name.removeprefix("transformer."): t for name, t in stored.items()}
print(*list(tensors)[:6], "...")
for name in ("attn.c_attn", "attn.c_proj", "mlp.c_fc"):
    print(f"{name:11}", tuple(tensors[f"h.0.{name}.weight"].shape))
print("our in_proj", tuple(speaker.blocks[0].attn.in_proj.weight.shape))

# %% [markdown]
# Two things differ: the names, and the blocks' matrices, which stand *transposed*: (in, out), where torch's linear layer keeps (out, in). So for each of our parameters we find its name there, and turn the matrices. `blocks.0.attn.in_proj.weight` becomes `h.0.attn.c_attn.weight`:

# %%
names_there = {"embedding": "wte", "norm.": "ln_f."}
names_there["positions"] = "wpe.weight"  # a bare parameter: the whole name
names_there |= {"blocks": "h", "ln1": "ln_1", "ln2": "ln_2", "in_proj": "c_attn"}
names_there |= {"out_proj": "c_proj", "mlp.0": "mlp.c_fc", "mlp.2": "mlp.c_proj"}


@torch.no_grad()
def from_gpt2(sizes, tensors, turned=("c_attn", "c_proj", "c_fc")):
    keys = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")
    model = PlainGPT(*(sizes[key] for key in keys), Block)
    for name, p in model.named_parameters():  # the tied table comes once
        for ours, theirs in names_there.items():
            name = name.replace(ours, theirs)
        tensor = tensors[name]
        if tensor.ndim == 2 and any(part in name for part in turned):
            tensor = tensor.T
        p.copy_(tensor)
    return model


# %% [markdown]
# A square matrix such as `attn.c_proj` fits either way, so a right shape proves nothing. We load the folder twice, once with that one forgotten, and ask for the speaker's logits:

# %%
forgetful = ("c_attn", "mlp.c_proj", "c_fc")  # attn.c_proj stays as it is
all_turned = from_gpt2(sizes, tensors)
one_forgotten = from_gpt2(sizes, tensors, turned=forgetful)
for name, loaded in (("all turned", all_turned), ("one forgotten", one_forgotten)):
    with torch.no_grad():
        same = torch.allclose(loaded(morrow), speaker(morrow), atol=1e-3)
    print(f"{name:13} the speaker's logits: {same}")
    set_seed(0)
    print(sample(loaded, "GREMIO:\n", 60, by_chance, characters), end="\n\n")

# %% [markdown]
# Nothing failed, and the second model writes nonsense. The first one's `True` is a round trip: the course's own `save_pretrained` wrote the folder. **Equal logits with an independent implementation are strong evidence.** (For the library's `GPT`, the course's tests compare with Hugging Face's code for GPT-2, on random weights.)
#
# `from_gpt2` should load the real GPT-2, too. These lines fetch about 550 megabytes; they are not run on this page:
#
# ```python
# sizes, stored = huggingface.read("gpt2")
# tensors = {name.removeprefix("transformer."): t for name, t in stored.items()}
# gpt2, tokenizer = from_gpt2(sizes, tensors), huggingface.tokenizer("gpt2")
# prompt = torch.tensor([tokenizer.encode("The meaning of life is").ids])
# rule = functools.partial(sample_tokens, top_p=0.9)
# print(tokenizer.decode(continue_text(gpt2, prompt, 30, rule)[0].tolist()))
# ```
#
# Run them, and judge the 30 tokens yourself; they are other ones each time.

# %% [markdown]
# ### Exercise 13.8 · Assemble: your GPT writes
#
# Difficulty ●●●●● · 60 minutes · needs sections 3, 6 and 7, and exercises 13.3 and 13.5
#
# Everything of this chapter comes together in a GPT of your own: section 3's network, section 7's cache, 13.3's sampler. Layers of `nn`, of the library or of sections 3 and 7 are not allowed; functions of `F` are, and so is your `top_p` (or `top_k_top_p`). The weights are handed over as a dict, every matrix as (out, in), as `F.linear` wants it:
#
# - `table` (V, D), which makes the logits too; `positions` (L, D); `gain`, `offset` (D,) of the last norm;
# - `blocks`, a list with a dict for each block: `gain1`, `offset1`, `in_proj_weight` (3D, D; the first D rows make the queries, then keys, then values), `in_proj_bias`, `out_weight` (D, D), `out_bias`, `gain2`, `offset2`, `weight1` (F, D), `bias1`, `weight2` (D, F), `bias2`; here F is the feed-forward network's width, not always 4D.
#
# Write one method after the other; the check goes through them on a small model, and says how far you are right. In `logits` begin without the cache. With it, two things change: where the new tokens stand, and which keys they may see. A call may bring a whole prompt, one token, or a few. (To try things: `pretrained.weights_by_layer(library_speaker)` hands over the speaker's weights, and `library_speaker(ids)` gives its logits.) Then your model gets these weights, and writes.


# %% nbgrader={"grade": false, "grade_id": "ex13-8-own-gpt", "locked": false, "schema_version": 3, "solution": true, "task": false}
class OwnGPT:
    """A GPT on weights that are handed over; eps = 1e-5 in all norms, GELU in its tanh form."""

    def __init__(self, weights, num_heads):
        self.weights, self.num_heads = weights, num_heads

    def start(self):
        """An empty cache, in whatever form suits your `logits`, but not None."""
        ### BEGIN SOLUTION
        return [{"length": 0} for _ in self.weights["blocks"]]
        ### END SOLUTION

    def logits(self, ids, cache=None):
        """Logits (B, T, V) of the token after each of ids (B, T).

        Without a cache, ids begin their texts. With one, they come after the tokens of all earlier calls with it; the cache is changed.
        """
        ### BEGIN SOLUTION
        cache = self.start() if cache is None else cache
        first, weights = cache[0]["length"], self.weights
        x = weights["table"][ids] + weights["positions"][first : first + ids.shape[1]]
        for p, kept in zip(weights["blocks"], cache, strict=True):
            x = x + self.look_back(F.layer_norm(x, x.shape[-1:], p["gain1"], p["offset1"]), p, kept)
            x = x + self.think(F.layer_norm(x, x.shape[-1:], p["gain2"], p["offset2"]), p)
        x = F.layer_norm(x, x.shape[-1:], weights["gain"], weights["offset"])
        return F.linear(x, weights["table"])
        ### END SOLUTION

    def probabilities(self, logits, temperature, p):
        """The distribution (B, V) to draw from: logits (B, V) at this temperature, then the nucleus of p."""
        ### BEGIN SOLUTION
        return top_k_top_p(logits / temperature, top_p=p).softmax(dim=-1)
        ### END SOLUTION

    def write(self, prompt, max_new_tokens, temperature, p, choose):
        """The new ids, a list of max_new_tokens int; `prompt` is a list of ids. Each token is read once.

        choose: the draw, from probabilities (1, V) to an id, an int.
        """
        ### BEGIN SOLUTION
        cache, unread, written = self.start(), prompt, []
        for _ in range(max_new_tokens):
            last = self.logits(torch.tensor([unread]), cache)[:, -1]
            written.append(choose(self.probabilities(last, temperature, p)))
            unread = written[-1:]
        return written

    def look_back(self, x, p, kept):
        B, T, D = x.shape
        rows = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).view(B, T, 3, self.num_heads, -1)
        q, k, v = rows.permute(2, 0, 3, 1, 4)  # (B, H, T, K) each
        if kept["length"]:
            k, v = torch.cat([kept["k"], k], 2), torch.cat([kept["v"], v], 2)
        earlier = torch.ones(T, k.shape[2], dtype=torch.bool).tril(kept["length"])
        kept.update(k=k, v=v, length=k.shape[2])
        found = F.scaled_dot_product_attention(q, k, v, attn_mask=earlier)
        return F.linear(found.transpose(1, 2).reshape(B, T, D), p["out_weight"], p["out_bias"])

    def think(self, x, p):
        wide = F.gelu(F.linear(x, p["weight1"], p["bias1"]), approximate="tanh")
        return F.linear(wide, p["weight2"], p["bias2"])
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex13-8-own-gpt-check", "locked": true, "points": 6, "schema_version": 3, "solution": false, "task": false}
ch13.own_gpt(OwnGPT)

# %% [markdown]
# Now Shakespeare. Change the beginning (in the plays, capitals and a colon announce a speaker) and the two dials; then run both cells. (Until 13.8 is written, the chapter's own parts write in its place.)

# %%
beginning = "GREMIO:\n"  # your turn
dials = {"temperature": 0.8, "top_p": 0.95}

# %% tags=["fold", "nbval-ignore-output"]
# @title It writes
draws = torch.Generator().manual_seed(0)


def draw_one(probs):  # by_chance, on probabilities
    return torch.multinomial(probs, 1, generator=draws).item()


try:
    yours = OwnGPT(pretrained.weights_by_layer(library_speaker), num_heads=4)
    first_ids, writer = encode(beginning, characters), "13.8"
    with torch.no_grad():
        written = yours.write(first_ids, 200, *dials.values(), choose=draw_one)
except NotImplementedError:
    rule = functools.partial(sample_tokens, generator=draws, **dials)
    whole_ids = continue_cached(cached, ids_of(beginning), 200, rule)[0]
    written, writer = whole_ids[len(beginning) :].tolist(), "sections 3, 6 and 7"
print(f"by {writer}:\n\n{beginning}{decode(written, characters)}")

# %% [markdown]
# ## Summary
#
# 1. A GPT is a table of tokens, a table of positions, Pre-LN blocks under a causal mask, and the first table again; about 50 lines.
# 2. The first loss should be about $\ln V$, and its gradient at the logits is softmax minus one-hot.
# 3. Decoding is a choice of its own. Always taking the likeliest token tends to go round in circles; temperature tilts, top-k cuts by number, top-p by probability.
# 4. While the text fits into the context, keys and values of the past do not change, so they are kept: $2NBSD$ numbers. Equal logits are strong evidence that a cache is right. For loaded weights, compare with an independent implementation.
# 5. Training takes about $6PM$ FLOPs, without attention's own products, and with Adam in float32 16 bytes per parameter, plus activations. For the lowest loss at fixed training FLOPs, the rule is about 20 tokens per parameter.
#
# ## Where next
#
# *Chapter 14* swaps in the parts current open models use (rotary positions, gated feed-forward networks, RMSNorm, shared keys and values), and adapts and shrinks the result. To follow instructions, such a model is trained further, with examples and preferences (Ouyang et al. 2022): the same network, another loss.
#
# ## References
#
# - A. Radford et al., *Improving Language Understanding by Generative Pre-Training*, 2018: sections 3.1, 4.1. A. Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: sections 2, 2.3, table 2. (It prints 117 to 1,542 million parameters; the published tensors have the numbers above.)
# - T. Brown et al., *Language Models are Few-Shot Learners*, NeurIPS 2020, arXiv:2005.14165: table 2.1, section 4, table D.1.
# - O. Press, L. Wolf, *Using the Output Embedding to Improve Language Models*, EACL 2017, arXiv:1608.05859.
# - A. Fan et al., *Hierarchical Neural Story Generation*, ACL 2018, arXiv:1805.04833: section 5. A. Holtzman et al., *The Curious Case of Neural Text Degeneration*, ICLR 2020, arXiv:1904.09751.
# - R. Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv:2211.05102: section 2. N. Shazeer, *Fast Transformer Decoding*, 2019, arXiv:1911.02150. J. Ainslie et al., *GQA*, 2023, arXiv:2305.13245.
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv:2001.08361: section 2.1. J. Hoffmann et al., *Training Compute-Optimal Large Language Models*, 2022, arXiv:2203.15556.
# - D. Hendrycks, K. Gimpel, *Gaussian Error Linear Units*, 2016, arXiv:1606.08415. D. So et al., *Primer*, 2021, arXiv:2109.08668. L. Ouyang et al., *Training Language Models to Follow Instructions*, 2022, arXiv:2203.02155.
# - Code to read: A. Karpathy, *nanoGPT*, 2022. Videos: *GPT Explained!*, https://www.youtube.com/watch?v=9ebPNEHRwXU; *OpenAI GPT-3: Good At Almost Everything!*, https://www.youtube.com/watch?v=_x9AwxfjxvE.

# %% [markdown]
# ## Going deeper
#
# Each part answers one question. The first two belong to section 3, the next four to section 4 and three more to section 5; then come three for section 6, five for section 7, three for sections 8 and 10, and the others are about training and scale.

# %% [markdown] tags=["deeper"]
# ### How far do the logits move, and how near is the library?
#
# Section 3 changed one token. And the rest of the network? The library's `GPT` is GPT-2's, with dropout, faster attention and a cache besides. With the same weights, ours must give the same logits. A new model's positions are zeros, which would hide a mistake in them; so we compare a twin with positions drawn at random:

# %% tags=["fold"]
# @title `to_library`: our weights in the library's GPT
def to_library(model):
    """The library's GPT with the weights of a model of this notebook's sizes; in_proj has other names there."""
    library = GPT(GPTConfig(V, L, D, N, H, dropout=0.0))
    weights = model.state_dict().items()
    renamed = {name.replace("in_proj.", "in_proj_"): w for name, w in weights}
    library.load_state_dict(renamed)
    return library.eval()


# %%
set_seed(0)
twin = PlainGPT(V, L, D, N, H, Block)
nn.init.normal_(twin.positions)
with torch.no_grad():
    same = torch.allclose(to_library(twin)(eight), twin(eight), atol=1e-3)
print(f"{number_of_parameters(twin):,} parameters; the library's logits:", same)

# %% tags=["fold"]
# @title The mask, and the library
library_gap = (to_library(twin)(eight) - twin(eight)).abs().max()
claim(
    "Positions 0 to 4 keep their logits, positions 5 to 7 change theirs.",
    moved[:5].max() < 1e-4 and moved[5:].min() > 1e-3,
    largest_changes=moved,
)
claim(
    "With the same weights, positions drawn at random among them, our GPT and the library's give the same logits, and have equally many parameters.",
    library_gap < 1e-3 and number_of_parameters(twin) == number_of_parameters(to_library(twin)),
    largest_difference=library_gap,
)

# %% [markdown] tags=["deeper"]
# ### How much of the gradient does adding save?
#
# In a stack of twelve layers, the gradient of the first has come through all the others. Section 3's block *adds* what a part computes to what came in. We measure the length of the first layer's gradient, in one small stack, without such shortcuts and with them:

# %%
for shortcut in (False, True):
    set_seed(0)
    stack = [nn.Linear(8, 8) for _ in range(12)]
    signal = torch.randn(5, 8)
    for linear in stack:
        signal = linear(signal).tanh() + (signal if shortcut else 0)  # (5, 8)
    signal.mean().backward()
    gradient_length = stack[0].weight.grad.norm()
    print(f"shortcuts {shortcut!s:5}: norm of the first gradient {gradient_length:.0e}")

# %% [markdown]
# With shortcuts far more arrives.

# %% [markdown] tags=["deeper"]
# ### Which way does the loss push?
#
# At one position the network gives logits $z_1, \dots, z_V$, and the text holds the right token $r$. The loss is $-\ln p_r$, and $p_i = e^{z_i} / \sum_j e^{z_j}$, so in terms of the logits
#
# $$ \ell = -\ln p_r = -z_r + \ln \sum_j e^{z_j} . $$
#
# Differentiate with respect to a logit. The first term gives $-1$ for the right token and 0 for the others; the second gives $e^{z_i} / \sum_j e^{z_j} = p_i$:
#
# $$ \frac{\partial \ell}{\partial z_i} = p_i - [\,i = r\,] : \qquad \text{softmax minus one-hot.} $$
#
# Section 4's four logits show it. For the mean over `T` positions, each row is divided by `T`. From the logits, `backward` carries the push to every weight.

# %% [markdown] tags=["deeper"]
# ### Why is a tied table's gradient a sum?
#
# A parameter that is used twice gets the sum of two gradients. Write the loss with two tables, $\ell(E_{in}, E_{out})$. With both set to $E$, the chain rule gives
#
# $$ \frac{d\ell(E, E)}{dE} = \frac{\partial \ell}{\partial E_{in}} + \frac{\partial \ell}{\partial E_{out}} . $$
#
# The smallest tied model has no blocks at all. `detach` cuts off one of the two uses:

# %%
E = torch.randn(6, 3, generator=torch.Generator().manual_seed(0), requires_grad=True)
read, follow = torch.tensor([0, 2, 2]), torch.tensor([2, 2, 5])  # inputs, targets


def gradient(table_in, table_out):
    logits = table_in[read] @ table_out.T  # (T, V)
    return torch.autograd.grad(F.cross_entropy(logits, follow), E)[0]


whole = gradient(E, E)
as_input, as_output = gradient(E, E.detach()), gradient(E.detach(), E)
print("the sum:", torch.allclose(whole, as_input + as_output))
print("length of each row's part, as input ", as_input.norm(dim=1))
print("                           as output", as_output.norm(dim=1))

# %% [markdown]
# As input only the rows that were read (0 and 2) get a gradient; as output every row does.

# %% [markdown] tags=["deeper"]
# ### How wrong is a network with a wider start?
#
# With torch's own start the first model wrote one letter again and again. What was its loss? If it knew nothing, it would be $\ln V$, about 4.6 nats.

# %%
guess_4 = predict("the first loss with torch's own start, in nats", ...)

# %%
first_inputs, first_targets = random_windows(
    corpus_ids, 16, L, torch.Generator().manual_seed(1)
)  # (B, L) both
with torch.no_grad():
    z = untrained(first_inputs)  # (B, L, V)
    untrained_loss = F.cross_entropy(z.flatten(0, 1), first_targets.flatten())
    z = small_start(first_inputs)
    small_loss = F.cross_entropy(z.flatten(0, 1), first_targets.flatten())

# %% tags=["fold", "reveal"]
# @title The first loss
guess_4.compare(f"{untrained_loss:.0f} nats; ln V is {math.log(V):.1f}")
with torch.no_grad():
    doubled = (untrained(first_inputs).argmax(-1) == first_inputs).float().mean()
claim(
    "With torch's own start the first loss is more than five times ln V: the model is confidently wrong. Started with 0.02, it is ln V to within a tenth of a nat.",
    untrained_loss > 5 * math.log(V) and abs(small_loss - math.log(V)) < 0.1,
    with_0_02=small_loss,
)
claim(
    "At more than nine of ten positions its likeliest next character is the one that it has just read.",
    doubled > 0.9,
    fraction=doubled,
)

# %% [markdown]
# Which logits make it so large? Look once more at section 4's position, after `Return`, where a space should come:

# %%
with torch.no_grad():
    z = untrained(word[None])[0, -1]  # (V,)
n_id, space = encode("n ")
print(f"logit of n, just read {z[n_id]:.0f}, of the space {z[space]:.0f}")

# %% [markdown]
# One logit lies far above the others, so the sum in $\ell$ is about that one term, and $\ell$ is how far the right logit lies below it.
#
# Why is it so large? Each logit is a dot product with a row of the table. torch draws tables from $\mathcal{N}(0, 1)$, and the last LayerNorm makes vectors of length about $\sqrt D$. So a product with an unrelated row is about $\sqrt D$ large, 8 for $D = 64$; the largest of a hundred is some two and a half times that. But the token just read is still in the stream, and its product with its own row is about $\sqrt D \cdot \sqrt D = D$, more for a long row.
#
# Between this start and GPT's lie others. If all logits are equal, the sum in $\ell$ is $V e^{z}$, and $\ell = \ln V$. But each is a dot product with a row of normal random numbers, so they are roughly normal, too. With mean 0 and variance $s^2$, the mean of $e^z$ is then $e^{s^2/2}$, and the sum about $V e^{s^2/2}$. And $z_r$ is about 0 on average, over many starts, so $\ell \approx \ln V + s^2/2$. Beside GPT's 0.02 we try a larger start, with two seeds:

# %%
first_losses = {}
for std, seed in ((0.02, 0), (0.16, 0), (0.16, 1)):
    set_seed(seed)
    with torch.no_grad():
        z = start_small(PlainGPT(V, L, D, N, H, Block), std)(first_inputs)
    expected = math.log(V) + z.var(dim=-1).mean().item() / 2
    measured = F.cross_entropy(z.flatten(0, 1), first_targets.flatten()).item()
    z_right = z.gather(-1, first_targets[..., None]).mean().item()
    first_losses[std, seed] = (expected, measured, z_right)
    print(f"std {std}, seed {seed}: ln V + s²/2 {expected:.2f}, ", end="")
    print(f"loss {measured:.2f}, mean z_r {z_right:.2f}")

# %% tags=["fold"]
# @title Checked: the first loss of a wider start
wide_starts = [first_losses[0.16, seed] for seed in (0, 1)]
claim(
    "At 0.16 the variance counts: with both seeds ln V alone misses the loss by more than three times as much as ln V + s²/2. Less the mean of $z_r$, positive once and negative once, this misses by less than half.",
    all(abs(loss - math.log(V)) > 3 * abs(loss - formula) for formula, loss, _ in wide_starts)
    and all(abs(formula - z_r - loss) < abs(formula - loss) / 2 for formula, loss, z_r in wide_starts)
    and min(z_r for _, _, z_r in wide_starts) < 0 < max(z_r for _, _, z_r in wide_starts),
    ln_V=math.log(V),
)

# %% [markdown]
# At GPT's 0.02 plain $\ln V$ will do. At 0.16 the variance explains most of the surplus. What is left is, with both seeds, mostly the mean of $z_r$: above 0 with one, below 0 with the other.

# %% [markdown] tags=["deeper"]
# ### Why is the start divided by the root of 2N?
#
# In a Pre-LN stack each sublayer *adds* to the residual stream, $x \leftarrow x + f(\mathrm{norm}(x))$, and `N` blocks have $2N$ of them. The norm gives every $f$ an input of variance 1, so each adds about the same variance $v$, and after the last block the stream has $v_0 + 2Nv$. Weights divided by $\sqrt{2N}$ make outputs of variance $v / 2N$: then the whole stack adds $v$, whatever its depth. (About: the branches are not quite independent of one another.) With 24 blocks, with the factor and without:

# %%
guess_5 = predict("how many times as much the stream grows without the factor", ...)

# %%
four_windows, _ = random_windows(train_ids, 4, L, torch.Generator().manual_seed(0))


@torch.no_grad()
def variances(factor):
    """Variance of the stream after the embedding and after each of 24 blocks."""
    set_seed(0)
    model = start_small(PlainGPT(V, L, 128, 24, 4, Block))
    stream = model.embedding(four_windows) + model.positions  # (4, L, 128)
    found = [stream.var().item()]
    for block in model.blocks:
        block.attn.out_proj.weight *= factor
        block.mlp[2].weight *= factor
        stream = block(stream)
        found.append(stream.var().item())
    return found


scaled = variances(factor=1)  # as GPT starts
unscaled = variances(factor=math.sqrt(2 * 24))  # the division undone

# %% tags=["reveal"]
figures.stream_variance(unscaled, scaled)
growth = [found[-1] - found[0] for found in (unscaled, scaled)]
guess_5.compare(f"{growth[0] / growth[1]:.0f} times")

# %% tags=["fold", "reveal"]
# @title What the 48 branches add
claim(
    "Divided by the root of 2N = 48, the 48 branches together add a 30th to a 90th of the variance.",
    30 < growth[0] / growth[1] < 90,
    added_without=growth[0],
    added_with=growth[1],
)

# %% [markdown] tags=["deeper"]
# ### Which model predicts the plays best?
#
# Seven models on tiny Shakespeare, one run of each GPT; the last one wrote in section 5. The RNN and the GRU are those of chapters 03 and 05.

# %% tags=["fold"]
# @title Checked: what longer training brought
shipped = metrics.bits(recorded_mean("shakespeare-weights", "GPT", "valid_loss"))
claim(
    "In this run the loss on new text falls by more than half a bit between section 5's two texts; at the end it is more than a quarter of a bit above the loss on the text that was trained on.",
    metrics.bits(stages["early"]["valid_loss"] - stages["GPT"]["valid_loss"]) > 0.5
    and metrics.bits(stages["GPT"]["valid_loss"] - stages["GPT"]["train_loss"]) > 0.25,
    training=f"{metrics.bits(stages['GPT']['train_loss']):.2f} bits",
)
claim(
    "In this one run the speaker needs over a quarter of a bit less per character than the best n-gram up to n = 7 on the same new text; the n-grams read eight tenths of the plays, the speaker nine.",
    shipped < by_n[best_n] - 0.25,
    **{"speaker": f"{shipped:.2f} bits per character", f"{best_n}-gram": f"{by_n[best_n]:.2f}"},
)

# %% tags=["fold"]
# @title The ledger: tiny Shakespeare, bits per character
n_grams = {f"{n}-gram (chapter 01)": n for n in (4, best_n)}
recurrent = {"RNN (chapter 03)": "RNN", "GRU (chapter 05)": "GRU"}
gpts = {
    "GPT, nanoGPT's small CPU setting": ("shakespeare-gpt", "nanoGPT"),
    "GPT, rotary positions": ("shakespeare-gpt", "ours"),
    "GPT of this course, the speaker": ("shakespeare-weights", "GPT"),
}
training_characters = 0.9 * 1_115_394  # those that the GPTs read
epochs = ledger.load("shakespeare-recurrent")["config"]["epochs"]
recorded_rows = [
    [name, recorded_mean("shakespeare-lm", f"{n}-gram interpolated", "parameters"), 1, n - 1, by_n[n]]
    for name, n in n_grams.items()
]
recorded_rows += [
    [name, *(recorded_mean("shakespeare-recurrent", row, "parameters"), epochs, "all before"),
     recorded_mean("shakespeare-recurrent", row, "bits")]
    for name, row in recurrent.items()
]
recorded_rows += [
    [name, recorded_mean(*run, "parameters"), recorded_mean(*run, "tokens") / training_characters,
     ledger.load(run[0])["config"]["block"], metrics.bits(recorded_mean(*run, "valid_loss"))]
    for name, run in gpts.items()
]
plain, rotary = (row[-1] for row in recorded_rows[-3:-1])
table(
    ["tiny Shakespeare, last 10 %", "parameters", "passes over the training text", "context (characters)", "bits per character"],
    [[name, f"{P:,.0f}", f"{passes:.2g}", context, f"{bits:.2f}"] for name, P, passes, context, bits in recorded_rows],
)
claim(
    "After 2,000 steps the rotary GPT is 0.05 to 0.15 bit below the best n-gram; nanoGPT's small setting is above it, and just below the 4-gram.",
    0.05 < by_n[best_n] - rotary < 0.15 and by_n[best_n] < plain < by_n[4] < plain + 0.1,
)
claim(
    "Of these seven the course's GPT is the lowest, more than a quarter of a bit below the best n-gram.",
    shipped == min(row[-1] for row in recorded_rows) and shipped < by_n[best_n] - 0.25,
)

# %% [markdown]
# The first GPT has the small CPU setting of nanoGPT's README, 2,000 steps. (The README's larger model, on a GPU, reports 1.47 nats, which are 2.12 bits: less than all of these.) The second, trained as long, is a variant tuned by us: rotary positions and a squared ReLU (chapter 14), biases, a wider start and a higher rate; start and rate were chosen in short runs on held-out *training* text. The third is the speaker. It, too, started wider (0.05 for 0.02), and its learned positions started as small sine waves.
#
# The rotary GPT's small lead over the GRU says nothing about architectures: parameters and passes differ, and the GRU read eight tenths of the text in place of nine (it and the n-grams kept a tenth for choices).

# %% [markdown] tags=["deeper"]
# ### An error you will meet: a loss per token against one per character
#
# Two models without any context: one counts characters, the other 512 BPE pieces (chapter 02). Per token the second looks worse, because its tokens are longer. Divide all bits by all *characters*. (So perplexities of different tokenizers cannot be compared.)

# %%
from tokenizers import ByteLevelBPETokenizer

bpe = ByteLevelBPETokenizer()
bpe.train_from_iterator([corpus[:cut]], vocab_size=512, show_progress=False)
pieces = torch.tensor(bpe.encode(corpus[:cut]).ids)
new_pieces = torch.tensor(bpe.encode(corpus[cut:]).ids)


def unigram_bits(read, new, V):  # counted on one text, measured on another
    counted = ngram.NgramModel(1, V, add=1.0).fit(read)
    return metrics.bits(counted.nll(new).mean().item())


per_character = unigram_bits(train_ids, valid_ids, V)
per_piece = unigram_bits(pieces, new_pieces, 512)
repaired = per_piece * len(new_pieces) / len(valid_ids)
for name, bits in (("wrong, per token", per_piece), ("repaired", repaired)):
    print(f"{name:17} the BPE model is better:", bool(bits < per_character))

# %% tags=["fold"]
# @title The error as a claim
claim(
    "Per token the BPE model looks worse by more than 2 bits; per character it is better by more than half a bit.",
    per_piece > per_character + 2 and repaired < per_character - 0.5,
    per_token=f"{per_piece:.2f} bits",
    per_character=f"{repaired:.2f} bits",
    characters=f"{per_character:.2f} bits",
)

# %% [markdown] tags=["deeper"]
# ### What if a model is tested on what it has read?
#
# Shuffle overlapping windows and keep a tenth for testing: nearly every character of it was in training too. The extreme case is to score text that was trained on. Of section 5's tables the longer one, which memorises, then looks like the better model. (Brown et al. 2020, section 4, searched their training text for every test set.)

# %%
read_before = train_ids[: len(valid_ids)]
seen_bits = {n: metrics.bits(ngrams[n].nll(read_before).mean().item()) for n in (5, 6)}
for name, bits in (("wrong, text it has read", seen_bits), ("repaired", ngram_bits)):
    print(f"{name:24} the 6-gram gains {bits[5] - bits[6]:+.2f} bits on the 5-gram")

# %% tags=["fold"]
# @title Checked: text that was read
claim(
    "On text that it has read, the 6-gram seems better by more than half a bit than on new text.",
    seen_bits[6] < ngram_bits[6] - 0.5,
    read=f"{seen_bits[6]:.2f} bits per character",
    new=f"{ngram_bits[6]:.2f}",
)

# %% [markdown] tags=["deeper"]
# ### An error you will meet: temperature after the softmax
#
# Probabilities divided by $\tau$ and normalised again are what they were; a second softmax over them makes everything nearly equal. With section 6's four words, we want $\tau = 0.5$:

# %%
z, tau = four_logits, 0.5
p = z.softmax(dim=-1)
print("wrong:   ", (p / tau) / (p / tau).sum())
print("wrong:   ", (p / tau).softmax(dim=-1))
print("repaired:", (z / tau).softmax(dim=-1))

# %% [markdown] tags=["deeper"]
# ### Does a loop get likelier, and does a better model loop?
#
# We let section 5's `gpt` write greedily, find the phrase that is repeated at the end, and print how unlikely the model finds each repetition.

# %%
greedy, nats = encode("Return the "), []  # nats: how unlikely each character is
with torch.no_grad():
    for _ in tqdm(range(300), leave=False):
        recent = torch.tensor([greedy[-L:]])  # (1, at most L)
        log_probs = gpt(recent)[0, -1].log_softmax(dim=-1)  # (V,)
        greedy.append(log_probs.argmax().item())
        nats.append(-log_probs.max().item())
greedy_text = decode(greedy)

# %% tags=["fold"]
# @title Find the phrase that is repeated at the end
phrase = ""  # the shortest ending that stands there three times in a row
for length in range(75, 0, -1):
    if greedy_text.endswith(3 * greedy_text[-length:]):
        phrase = greedy_text[-length:]

turns = []  # the nats of each turn; we walk back from the end
rest = greedy_text[len("Return the ") :]  # what the model wrote: rest[i] cost nats[i]
while phrase and rest.endswith(phrase):
    turns.insert(0, sum(nats[len(rest) - len(phrase) : len(rest)]))
    rest = rest[: -len(phrase)]

# %% tags=["nbval-ignore-output"]
print(greedy_text[:150], "...\n\nphrase", repr(phrase))
print("nats of each turn:", *(f"{turn:.1f}" for turn in turns[:8]))

# %% [markdown]
# In our run it stays about as likely as it was. (In Holtzman et al. 2020, figure 4, a repeated phrase even becomes likelier each time.) And the better model, the speaker? It continues eight names; `generate` is the library's `continue_text`, and `library_speaker` its form of the speaker:

# %% tags=["nbval-ignore-output"]
names = "GREMIO KATHARINA PETRUCHIO BIANCA LUCENTIO TRANIO HORTENSIO BAPTISTA"
after = [encode(name + ":\n", characters) for name in names.split()]
cold, warm = {"temperature": 0.3}, {"temperature": 0.7}
rules, repeated = {"greedy": {"top_k": 1}, "0.3": cold, "0.7": warm}, {}
for dial, rule_of in tqdm(rules.items(), leave=False):
    draws = torch.Generator().manual_seed(0)
    eight_texts = generate(library_speaker, after, 240, draws, **rule_of)
    strings = [decode(each, characters) for each in eight_texts]
    repeated[dial] = sampling.repetition(strings)  # of the pieces of 8 characters
    print(f"{dial:6} repeats {100 * repeated[dial]:.0f} of 100 pieces")

# %% tags=["fold"]
# @title Checked: a better model
claim(
    "This model, too, repeats more than a quarter of its pieces when it writes greedily; at temperature 0.3 less than half as many, at 0.7 fewer than 1 in 20.",
    repeated["greedy"] > 0.25 and repeated["0.3"] < repeated["greedy"] / 2 and repeated["0.7"] < 0.05,
    **repeated,
)

# %% [markdown]
# Fewer pieces repeat than on the first screen, with other names, but many still do; with chance, far fewer.

# %% [markdown] tags=["deeper"]
# ### What do ten rules of choosing do to a text?
#
# Section 6's texts of the speaker, 20 for each rule, means over three sets of draws. *Known words* is the fraction of words that occur in the training text; *repetition* that of 8-character pieces that had occurred before in the same text. Do not compare the loss of section 5, which is *teacher-forced* (each character predicted after the true ones), with the first column, the likelihood of texts that the model wrote itself, *free-running* (chapter 06). Judged by free-running likelihood, the rule that repeats itself looks best.

# %% tags=["fold"]
# @title The ledger: ten rules
columns = ("nll", "repetition", "distinct_4", "known_words")
table(
    ["", "bits per character", "repetition", "different 4-grams", "known words"],
    [
        [way, metrics.bits(spoken(way, "nll")), *(spoken(way, column) for column in columns[1:])]
        for way in strategies
    ],
)
known = {
    way: spoken(way, "known_words")
    for way in ("top-p 0.9", "pure sampling", "temperature 1.3")
}
claim(
    "In these texts cutting the tail makes more words real: top-p 0.9 has a larger fraction of known words than pure sampling, temperature 1.3 a smaller one.",
    known["top-p 0.9"] > known["pure sampling"] > known["temperature 1.3"],
    **known,
)
early_known = {way: recorded_mean("gpt-sampling", way, "known_words") for way in known}
claim(
    "The three early models of the first screen agree in this.",
    early_known["top-p 0.9"] > early_known["pure sampling"] > early_known["temperature 1.3"],
    **early_known,
)

# %% [markdown]
# Does this hold for one model only? The first screen's early networks, trained three times, with different seeds, and stopped after 500 steps, continued the same lines:

# %% tags=["fold"]
# @title The ledger: three early models
sampled = functools.partial(recorded_mean, "gpt-sampling")
figures.variety_by_surprise("gpt-sampling", strategies)
claim(
    "Greedy text has the lowest negative log-likelihood, the least variety and the most repetition of all ten.",
    all(
        sampled("greedy", "nll") < sampled(way, "nll")
        and sampled("greedy", "distinct_4") < sampled(way, "distinct_4")
        and sampled("greedy", "repetition") > sampled(way, "repetition")
        for way in sampling.WAYS
        if way != "greedy"
    ),
)
claim(
    "Nearest to real text in negative log-likelihood is pure sampling or a mild cut; real text is less likely and less varied than pure sampling.",
    min(sampling.WAYS, key=lambda way: abs(sampled(way, "nll") - sampled("real text", "nll")))
    in ("pure sampling", "top-k 40", "top-p 0.95")
    and sampled("real text", "nll") > sampled("pure sampling", "nll")
    and sampled("real text", "distinct_4") < sampled("pure sampling", "distinct_4"),
)

# %% [markdown]
# And section 6's two places: the cut adapts, and a higher temperature moves it.

# %% tags=["fold"]
# @title What top-p leaves in two places
for hundredths in range(100, 500):
    tilted = scores_at["inside a word"] * 100 / hundredths
    if top_k_top_p(tilted, top_p=0.9).isfinite().sum() >= 10:
        break
print(f"from temperature {hundredths / 100:.2f} on, at least ten are left")
claim(
    "Top-p leaves at most 3 characters inside the word and more than 5 where a speech begins.",
    nucleus["inside a word"] <= 3 and nucleus["where a speech begins"] > 5,
    **nucleus,
)

# %% [markdown] tags=["deeper"]
# ### An error you will meet: every new token believes it is the first
#
# New tokens stand after those that are kept; section 7's line with `self.positions` says so. Here are its 40 characters again, the last one by itself, first without the offset, then with it:

# %%
with torch.no_grad():
    for name, first in (("wrong", 0), ("repaired", 39)):
        caches = [Cache() for _ in cached.blocks]
        cached(forty[:, :39], caches)
        newest = cached.embedding(forty[:, 39:]) + cached.positions[first : first + 1]
        for block, cache in zip(cached.blocks, caches):
            newest = block(newest, cache)  # (1, 1, D)
        answer = cached.head(cached.norm(newest))[0, -1]
        same = torch.allclose(answer, whole_text[0, -1], atol=1e-3)
        print(f"{name:9} equals the whole text:", same)

# %% [markdown] tags=["deeper"]
# ### How can prompts of different lengths share a batch?
#
# Pad them on the right, and `logits[:, -1]` is the answer to *padding* in each shorter row. (What stands before it is unchanged: the mask is causal.)

# %%
short = torch.tensor([encode("Return")])
padded = F.pad(short, (0, 3))  # as beside a row of nine characters
with torch.no_grad():
    alone, in_batch = gpt(short)[0, -1], gpt(padded)[0]
for name, column in (("wrong", -1), ("repaired", 5)):
    same = torch.allclose(in_batch[column], alone, atol=1e-3)
    print(f"{name:9} column {column:2} is this row's own answer:", same)

# %% [markdown]
# The usual way pads short prompts on the left and masks the padding at every step. There is a way without padding: **start at the end of the shortest prompt.** All rows advance together; a row whose prompt is longer ignores what was drawn for it and is given its own next token instead. So all rows always stand at the same position, and one cache and one offset will do, without a mask for padding. The price: longer rows read the rest of their prompts one token a step. `generate` works like this.

# %%
trained = to_library(gpt).double()
three = [valid_ids[s : s + n].tolist() for s, n in ((0, 3), (500, 19), (900, 8))]
together = generate(trained, three, 40, top_k=1)
one_by_one = [generate(trained, [prompt], 40, top_k=1)[0] for prompt in three]

# %% tags=["fold"]
# @title Proof: a batch changes nothing
claim(
    "Generated together, prompts of 3, 19 and 8 characters go on as each of them does alone.",
    together == one_by_one,
)

# %% [markdown]
# So the speaker writes three texts at once:

# %% tags=["nbval-ignore-output"]
openings = ["ROMEO:\nI", "KATHARINA:\n", "First Citizen:\nWe"]
prompts = [encode(opening, characters) for opening in openings]
draws = torch.Generator().manual_seed(2)
dials = {"temperature": 0.7, "top_p": 0.95}
three_texts = generate(library_speaker, prompts, 120, draws, **dials)
for opening, written_ids in zip(openings, three_texts):
    print(opening + decode(written_ids, characters) + "\n----")

# %% [markdown] tags=["deeper"]
# ### Do the counts hold in GPT-2's four sizes?
#
# Section 7 counts the numbers in a cache, $2NBSD$, and section 8's table the parameters. We build the four published models without their numbers (on torch's `meta` device), and count:

# %% tags=["fold"]
# @title Checked: the formula, in GPT-2's four sizes
counts, cache_bytes, formula = {}, {}, {}
for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    config = GPTConfig.from_name(name)
    with torch.device("meta"):  # shapes without numbers, in no memory
        published = GPT(config)
        cache_bytes[name] = kv_cache.cache_bytes(published.start(batch_size=1)["kv_caches"])
    counts[name] = number_of_parameters(published)
    formula[name] = 2 * config.num_layers * config.max_len * config.d_model
claim(
    "In all four sizes our counter gives the published parameters to the last one, and the tensors of a cache hold as many bytes as the formula says.",
    list(counts.values()) == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200]
    and all(cache_bytes[name] == 4 * formula[name] for name in counts),
)
claim(
    "For the smallest, that is 18.9 million numbers for one text; seven texts outweigh the weights, six do not.",
    round(formula["gpt2"] / 1e6, 1) == 18.9 and 7 * formula["gpt2"] > counts["gpt2"] > 6 * formula["gpt2"],
)

# %% [markdown]
# And the sixteen bytes per parameter of section 9? Our own training still holds them:

# %%
held = {"weights": 0, "gradients": 0, "moments": 0}  # bytes
for p in gpt.parameters():
    held["weights"] += p.nbytes
    held["gradients"] += p.grad.nbytes
    held["moments"] += optimizer.state[p]["exp_avg"].nbytes
    held["moments"] += optimizer.state[p]["exp_avg_sq"].nbytes
for part, held_bytes in held.items():
    print(f"{part:10}{held_bytes / number_of_parameters(gpt):3.0f} bytes per parameter")

# %% [markdown] tags=["deeper"]
# ### How does a cache's gain grow with the text?
#
# From the ledger (one run, one core), for one text and for eight at once:

# %%
figures.time_by_length("gpt-cache")

# %% tags=["fold"]
# @title Checked: the gain in numbers
gain = {}
for batch in (1, 8):
    slow, fast = (
        ledger.values("gpt-cache", f"{name}, batch {batch}", "seconds")
        for name in ("no cache", "cache")
    )
    gain[batch] = [statistics.mean(a[i] / b[i] for a, b in zip(slow, fast, strict=True)) for i in (0, -1)]
claim(
    "In this one run, at 1,024 tokens, the cache gains more than 10 times for one text and more than 30 times for eight; at 16 less than 5 times.",
    gain[1][-1] > 10 and gain[8][-1] > 30 and gain[1][0] < 5 and gain[8][0] < 5,
    **{f"batch {batch}": [f"{g:.1f}" for g in gains] for batch, gains in gain.items()},
)
late = statistics.mean(again_ms[-3:])
claim(
    "In section 7's run on this machine, when everything is computed again, the last tokens take more than one and a half times as long as the first, and more than twice as long as with a cache.",
    late > 1.5 * statistics.mean(again_ms[:3]) and statistics.mean(kept_ms[-3:]) < late / 2,
    **{
        "median of tokens 1 to 10": f"{again_ms[0]:.1f} ms",
        "of 191 to 200": f"{again_ms[-1]:.1f} ms",
        "of 191 to 200 with a cache": f"{kept_ms[-1]:.1f} ms",
    },
)

# %% [markdown] tags=["deeper"]
# ### Why does generating one text leave a processor idle?
#
# For one token of one text every weight is read from memory once and takes part in one multiplication and one addition. In 16 bits that is 2 FLOPs for 2 bytes. A large GPU of 2023 does about $10^{15}$ FLOPs a second and reads $3.35 \cdot 10^{12}$ bytes. How long do GPT-2's 1.56 billion parameters take for one token, by FLOPs, and by bytes?

# %%
guess_6 = predict("the time by bytes over the time by FLOPs", ...)

# %%
arithmetic = 2 * counts["gpt2-xl"] / 1e15  # seconds
reading = 2 * counts["gpt2-xl"] / 3.35e12

# %% tags=["reveal"]
guess_6.compare(f"{reading / arithmetic:.0f} times")
print(f"arithmetic {1e6 * arithmetic:.1f} µs, reading {1e6 * reading:.0f} µs")

# %% [markdown]
# Decoding one text is bound by memory, not by arithmetic (Pope et al. 2022, section 2). So what helps is to read *less* (fewer bits a weight; fewer keys and values, which several heads share in multi-query and grouped-query attention), or to *do more with each byte*: a batch reads each weight once for all its texts.

# %%
seconds_of = {}
for batch in tqdm((1, 16), leave=False):
    token_step = kv_cache.token_steps(library_speaker, B=batch, T=64)
    seconds_of[batch] = measure.seconds(token_step, rounds=3)["cache"]
one, sixteen = seconds_of[1], seconds_of[16]

# %% tags=["fold"]
# @title Measured: one text and sixteen
claim(
    "Here, on a processor, 16 texts take less than half of 16 times the time of one.",
    sixteen < 8 * one,
    measured=f"{sixteen / one:.1f} times as long",
)

# %% [markdown] tags=["deeper"]
# ### Can the first token choose the task?
#
# GPT-2's discovery was made on web-sized text. A toy shows only the mechanism: texts of the form *task, letters, separator, answer*, such as `sort d b a d c | a b c d d`. One model is trained on three tasks (copy, reverse, sort) mixed in every batch, with the loss on the answer. This is supervised *multitask* training with the task in the input, as in T5 (Raffel et al. 2020, arXiv:1910.10683); it is not zero-shot, since every task was trained. What is new to the model are the strings: an eighth of all inputs never occurs in training. What will it do if the first token is missing?

# %%
tasks = list(prefix_tasks.TASKS)
asked, _ = prefix_tasks.train_prefix_model(seed=0, steps=run_size.pick(250, 2000))
fresh = torch.Generator().manual_seed(1)  # each prefix, and none, on 200 unseen inputs
answered = prefix_tasks.prefix_table(asked, length=5, generator=fresh, size=200)

# %% tags=["reveal"]
figures.tasks_by_prefix(answered, tasks)

# %% tags=["fold", "reveal"]
# @title What each prefix gets, here and in the ledger
claim(
    "Told the task, one model copies, reverses and sorts more than 4 of 5 unseen inputs right in all letters.",
    min(answered[task][task] for task in tasks) > 0.8,
    **{f"{task} right": answered[task][task] for task in tasks},
)
claim(
    "In every recorded seed each prefix gets its own answer on more than nine of ten unseen inputs; without one no task gets a third.",
    all(ledger.summary("gpt-prefix", task, task)[1] > 0.9 for task in tasks)
    and all(ledger.summary("gpt-prefix", "no prefix", task)[2] < 1 / 3 for task in tasks),
    seeds=ledger.summary("gpt-prefix", "copy", "copy")[3],
)

# %% [markdown]
# Without the prefix two things are missing at once: the task, and the positions that the model knows. Every letter then stands one position earlier than in any text of the training. So the last row does not show what the missing task alone does.

# %% [markdown] tags=["deeper"]
# ### Why does GPT-2 never meet an unknown character?
#
# Chapter 02's BPE began with characters, and a character that the training text lacks is unknown. GPT-2 begins with the 256 **bytes** of UTF-8: every text of every script is a sequence of bytes, so nothing is unknown, and decoding gives back the text exactly. (Bytes without a printable form are shown as other signs: a space as `Ġ`, a line's end as `Ċ`.) How many tokens is one smiling face to a tokenizer that has hardly seen any?

# %% tags=["nbval-ignore-output", "reveal"]
awkward = ["the value", "  two  spaces", "line\n\tend", "naïve café", "日本", "🙂"]
encoded = [bpe.encode(string) for string in awkward]
print("Six texts, and what they are cut into:")
for string, cut_up in zip(awkward, encoded):
    size = f"{len(string):2} characters {len(string.encode()):2} bytes"
    print(f"{string!r:18} {size} {len(cut_up.ids):2} tokens: {' '.join(cut_up.tokens)}")

# %% tags=["fold", "reveal"]
# @title Nothing is unknown, nothing is lost
claim(
    "Every one of these texts comes back unchanged.",
    [bpe.decode(e.ids, skip_special_tokens=False) for e in encoded] == awkward,
)
claim(
    "One emoji is one character, four bytes, and here four tokens.",
    (len(awkward[5]), len(awkward[5].encode()), len(encoded[5].ids)) == (1, 4, 4),
)

# %% [markdown]
# GPT-2's vocabulary has 256 bytes, 50,000 merged pieces, and `<|endoftext|>`, which stands between two texts: 50,257. Spaces belong to the word after them (`Ġvalue`). This is why a prompt that ends in a space often works badly: the model expects the space to come *with* the next word.

# %% [markdown] tags=["deeper"]
# ### What is in a folder of weights?
#
# A checkpoint is a folder: the sizes in `config.json`, the tensors in `model.safetensors` (numbers only; never open a pickle from a stranger). Our model has what distinguishes GPT-2 from the Transformer of 2017: one causal stack in place of two, Pre-LN, GELU, learned positions, a start scaled by depth, no factor $\sqrt D$ after the embedding. So we write it in section 10's layout, and load it back:

# %%
saved = to_library(gpt)
with tempfile.TemporaryDirectory() as folder:
    saved.save_pretrained(folder)
    print(sorted(path.name for path in Path(folder).iterdir()))
    loaded = GPT.from_pretrained(folder)
with torch.no_grad():
    print("equal logits:", torch.equal(loaded(forty), saved(forty)))

# %% [markdown]
# Equal logits prove little here, since two opposite errors in writing and reading would cancel. An independent implementation tells more: with `likeliest` as the rule, section 10's lines for GPT-2 must print the 30 tokens that Hugging Face's own GPT-2 writes greedily.

# %% [markdown] tags=["deeper"]
# ### What does 6·P·M leave out?
#
# First, does it give the number that was published for GPT-3?

# %% tags=["fold"]
# @title Checked: our inputs
claim(
    "With section 9's $P$ and $M$, $6PM$ is the published $3.14 \\cdot 10^{23}$ FLOPs of GPT-3 to within 1 %; by the rule of 20 these FLOPs would train a model of about a third of its size.",
    abs(gpt3 / 3.14e23 - 1) < 0.01 and 0.28 < by_rule / 1.75e11 < 0.35,
)
own_products = 3 * 4 * 4 * 256 * 128  # 4·N·T·D a token forward, twice that backward
claim(
    "For the speaker, attention's own products add more than 30 % to $6P$, and less than a third.",
    0.3 < own_products / (6 * number_of_parameters(speaker)) < 1 / 3,
)
markdown("The paper counts in the same way: this checks section 9's inputs, not the formula. A FLOP counter checks the formula, below.")

# %% [markdown]
# It leaves out the products of attention that hold no weights: queries with keys, and weights with values. For $n$ blocks of width $d$ these are $4\,n\,T\,d$ FLOPs a token forward (chapter 10). From which $T$ on are they a tenth of the whole, for GPT-2's smallest model?

# %%
guess_7 = predict("the T from which attention's own products are a tenth", ...)

# %% tags=["reveal"]
def share_of_attention(T):
    """Of the forward FLOPs of GPT-2's smallest model: 12 blocks of width 768."""
    attention_products = 4 * 12 * T * 768
    return attention_products / (2 * (counts["gpt2"] - 1024 * 768) + attention_products)


tenth = next(T for T in range(1, 2049) if share_of_attention(T) > 0.1)
guess_7.compare(f"T = {tenth}")

# %% tags=["fold"]
# @title Counted, one by one, and by formula
from torch.utils.flop_counter import FlopCounterMode

from course_lib.attention import attention_backend

rows_counted, agree, by_formula = [], [], {}
for context in (64, 1024):
    small = GPT(GPTConfig(vocab_size=65, max_len=context, d_model=64, num_layers=2, num_heads=4, dropout=0.0))
    one_text = torch.zeros(1, context, dtype=torch.int64)
    with attention_backend("math"):  # in which torch's counter sees every product
        forward_count = measure.count_operations(small, one_text) / context
        with FlopCounterMode(display=False) as counter:
            small(one_text).sum().backward()
    training_count = counter.get_total_flops() / context
    n_small = number_of_parameters(small) - small.positions.numel()
    products = 4 * 2 * context * 64  # scores and means
    rows_counted.append(
        [context, *(f"{round(n):,}" for n in (
            forward_count, 2 * n_small, 2 * n_small + products,
            training_count, 6 * n_small, 6 * n_small + 3 * products,
        ))]
    )
    agree.append(forward_count == 2 * (2 * 12 * 64**2 + 65 * 64) + products and training_count == 3 * forward_count)
    by_formula[context] = [6 * n_small / training_count, (6 * n_small + 3 * products) / training_count]
table(["T", "counted, forward", "2P", "2P + attention", "counted, training", "6P", "6P + attention"], rows_counted)
claim(
    "The counter finds the matrices, the output table and attention's products to the last FLOP, and a backward pass of exactly twice the forward pass.",
    all(agree),
)
claim(
    "With attention's products the formula is within 3 % for this small model; without them it misses more than half at T = 1,024.",
    all(abs(with_attention - 1) < 0.03 for _, with_attention in by_formula.values()) and by_formula[1024][0] < 0.5,
)

# %% [markdown]
# (Half of these products lie above the causal diagonal. They are counted here; a program that skips them does half.)
#
# And the rule of 20 gives the lowest loss for given *training* FLOPs. A model that will generate for millions of users should be smaller, and trained for longer, because every token that it generates costs $2P$.

# %% [markdown] tags=["deeper"]
# ### How do many processors train one model?
#
# **Data parallel:** every process holds the whole model and computes the mean gradient of *its rows*. The processes average their gradients, and everyone takes the same step. When all have equally many rows, the mean of their means is the mean over the whole batch. So the test is strict: the same losses, step by step, and in float64, where rounding is small. torch's `DistributedDataParallel` averages while backward runs; a program wraps its model in it, and gives each process its rows.

# %%
show_source(data_parallel.shard, data_parallel.losses)

# %%
torchrun = "-m torch.distributed.run --standalone --nproc-per-node 2"
program = "-m course_lib.experiments.data_parallel --steps 25"
command = [sys.executable, *torchrun.split(), *program.split()]
only_cpu = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
with tqdm(total=2, leave=False, desc="runs") as progress:
    run_options = {"env": only_cpu, "capture_output": True, "text": True, "check": True}
    done = subprocess.run(command, **run_options)
    progress.update()
    two_processes = json.loads(done.stdout.strip().splitlines()[-1])
    one_process = data_parallel.losses(25)

# %%
figures.one_and_two_processes(one_process, two_processes)

# %% tags=["fold"]
# @title The same losses?
gap = max(abs(a - b) for a, b in zip(one_process, two_processes, strict=True))
claim(
    "In float64 two processes with half of the rows each give the losses of one, in all 25 steps, to less than a billionth of a nat: up to rounding.",
    gap < 1e-9 and one_process[-1] < one_process[0] - 0.5,
    largest_difference=gap,
)

# %% [markdown]
# A model that does not fit into one processor is cut. *Tensor parallel* cuts every matrix, and needs fast links; *pipeline parallel* gives each processor some blocks. *ZeRO*'s third stage (in torch: FSDP; Rajbhandari et al. 2020, arXiv:1910.02054) stays data parallel, but each process keeps only its part of weights, gradients and moments, and fetches the rest when a block needs it.
#
# **Mixed precision** (Micikevicius et al. 2018, arXiv:1710.03740, with float16 and a loss scaled up so that small gradients do not vanish): today matrix products run in bfloat16, which has float32's range in half of the bytes and is several times as fast on a GPU; weights, their sums, softmax, norms and the loss stay in float32. `train_epoch(bf16=True)` does it with `torch.autocast`, which in a loop of your own is one line around the loss:

# %%
half_x, half_y = random_windows(train_ids, B, L, torch.Generator().manual_seed(2))
with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
    half_logits = gpt(half_x)  # (B, L, V)
    half_loss = F.cross_entropy(half_logits.flatten(0, 1), half_y.flatten())
with torch.no_grad():
    full_loss = F.cross_entropy(gpt(half_x).flatten(0, 1), half_y.flatten())
print("logits ", half_logits.dtype, " loss", half_loss.dtype)
print("weights", gpt.head.weight.dtype)

# %% tags=["fold"]
# @title Checked: the loss in bfloat16
claim(
    "With matrix products in bfloat16 the trained model's loss is the same to within a hundredth of a nat.",
    abs(half_loss - full_loss) < 0.01,
    difference=abs(half_loss - full_loss),
)
