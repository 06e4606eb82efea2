# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 240
#     needs: "chapters 09 and 10"
# ---

# %% [markdown]
# # 13 · GPT
#
# A small GPT writes 200 tokens. For each token it reads its text so far, computes the logits of the next and takes the likeliest: as every language model of this course has done it.
# **Predict:** how much longer does the 200th token take than the 10th? And must it?

# %% tags=["setup"]
import copy
import functools
import itertools
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

from course_lib import (
    cost,
    data,
    diagrams,
    language,
    ledger,
    metrics,
    parallel,
    plots,
    pretrained,
    profile,
)
from course_lib.attention import attention
from course_lib.checks import ch13
from course_lib.claims import claim
from course_lib.display import markdown, show, show_source, table
from course_lib.experiments import ch13 as recorded
from course_lib.gpt import GPT, GPTConfig, KVCache, filter_logits, generate, next_tokens
from course_lib.optim import cosine, decay_groups
from course_lib.positions import RoPE
from course_lib.tasks import number_of_parameters
from course_lib.train import evaluating, set_seed
from course_lib.transformer import EncoderLayer

set_seed(0)

# %%
SIZES = {"max_len": 256, "d_model": 128, "num_layers": 4, "nhead": 4, "dropout": 0.0}
writer = GPT(GPTConfig(vocab_size=65, **SIZES)).eval()


@torch.no_grad()
def write(model, steps, caches=None):
    """The likeliest tokens after token 0, and the processor's milliseconds for each."""
    ids, milliseconds = torch.zeros(1, 1, dtype=torch.int64), []
    for _ in range(steps):
        start = time.process_time()
        unread = ids if caches is None else ids[:, -1:]
        ids = torch.cat([ids, model.next_logits(unread, caches).argmax(-1, keepdim=True)], 1)
        milliseconds.append(1000 * (time.process_time() - start))
    return ids, [statistics.median(milliseconds[i : i + 10]) for i in range(0, steps, 10)]


write(writer, 20)  # the first calls of all are slower
again, again_ms = write(writer, 200)
kept, kept_ms = write(writer, 200, writer.caches(batch_size=1))
ax = plots.lines(
    plots.axes(height=2.8),
    {
        "everything again": (range(10, 201, 10), again_ms),
        "with a cache": (range(10, 201, 10), kept_ms),
    },
    "token written",
    "milliseconds",
    {"everything again": "gradient", "with a cache": "attention"},
    marker="o",
)
show(
    ax,
    "Milliseconds for a token against its number. Without a cache they rise steadily; with one they stay flat.",
    "What does the 200th token cost? Without a cache far more than the 10th; with one, about the same. (Medians of ten.)",
)
claim("Both ways write the same 200 tokens", torch.equal(again, kept))
claim(
    "When everything is computed again, the last tokens take more than one and a half times as long as the first",
    statistics.mean(again_ms[-3:]) > 1.5 * statistics.mean(again_ms[:3]),
    milliseconds=[again_ms[0], again_ms[-1]],
)
claim(
    "With a cache the last tokens take less than half of what they take without",
    statistics.mean(kept_ms[-3:]) < statistics.mean(again_ms[-3:]) / 2,
    milliseconds=[kept_ms[0], kept_ms[-1]],
)

# %% [markdown]
# The cache is one of the things that turn chapter 09's decoder-only Transformer into a GPT that writes. This chapter builds, trains, questions, loads and counts one.
#
# ## You will be able to
#
# 1. say what is in a GPT, and why its table of embeddings has two gradients (exercise 13.1);
# 2. choose how to draw the next token: temperature, top-k, top-p, and say what each cuts (exercises 13.2 to 13.4);
# 3. cache keys and values, prove that nothing changed, and find a cache that is off by one (exercise 13.5);
# 4. count a model's parameters, the memory of its training, and the days and tokens a run needs (exercises 13.6, 13.7).
#
# `B` sequences, `T` tokens, `S` tokens in a cache, width `D`, `H` heads of width `K = D / H`, `V` tokens in the vocabulary, `L` positions (the context). The layers are `N`, except where papers on scaling use $N$ for the *parameters*: section 11 says so.

# %% [markdown]
# ## 1 · One objective, three uses
#
# GPT (*Generative Pre-trained Transformer*) is a causal language model. Its only objective is the mean surprise over a text, in nats a token:
#
# $$ \mathcal{L}(\theta) = -\frac1T \sum_{t=1}^{T} \ln p_\theta(x_t \mid x_1, \dots, x_{t-1}) . $$
#
# No labels: any text is data. BERT (chapter 12) learns to fill gaps from both sides and gives vectors; GPT sees the left side alone, and so it can *write*. What changed from paper to paper is less the network than what one does with it afterwards.

# %%
diagrams.show("three_uses")

# %% [markdown]
# | | parameters | layers × width | context | text | how a task is given |
# |---|---|---|---|---|---|
# | GPT, Radford et al. 2018 | 117 million | 12 × 768 | 512 | BooksCorpus, 7,000 books | a new linear layer; all weights fine-tuned on labels |
# | GPT-2, Radford et al. 2019 | up to 1.56 billion | 48 × 1600 | 1,024 | WebText, 8 million pages | as text before the answer; nothing is trained (*zero-shot*) |
# | GPT-3, Brown et al. 2020 | up to 175 billion | 96 × 12288 | 2,048 | 300 billion tokens | the same, with a few solved examples (*few-shot*) |
#
# The first recipe is BERT's too: pre-train on text, then fine-tune with few labels. GPT-1's fine-tuning loss kept the language model's loss beside the task's, with weight 0.5 (their equation 5). The second and third need no new weights at all, since "translate", a question or a list of examples *are* text, and their continuation is the answer. Section 9 trains a model that can be asked like this.

# %% [markdown]
# ## 2 · The same blocks
#
# Nothing here is new since chapter 09. Read `forward` from the bottom: look up vectors, run N layers under a causal mask, multiply with the table.

# %%
show_source(GPT.forward, GPT._read, GPT._logits)

# %% [markdown]
# | | Transformer (2017) | GPT-2 | why |
# |---|---|---|---|
# | stacks | encoder and decoder | one, causal; no cross-attention | there is no second text to read |
# | residual | Post-LN | Pre-LN, and a LayerNorm at the end | trains deep without tricks (chapter 11) |
# | activation | $\max(0, x)$ | GELU: $x\,\Phi(x)$, Φ the normal distribution function | smooth; a little better in practice |
# | positions | sinusoidal | a learned table of L rows (chapter 08) | simple; ends at L |
# | output layer | the target's table | the table of all tokens | weight tying, section 3 |
#
# **Predict:** token 5 of 8 is changed. At which places do the logits change?

# %%
ids = torch.randint(65, (1, 8), generator=torch.Generator().manual_seed(1))
changed = ids.clone()
changed[0, 5] = (ids[0, 5] + 1) % 65
with torch.no_grad():
    moved = (writer(changed) - writer(ids)).abs().amax(-1)[0]  # (T,)
claim(
    "Every layer is an encoder layer of chapter 09, called with causal=True",
    all(type(layer) is EncoderLayer for layer in writer.encoder.layers),
)
claim(
    "Places 0 to 4 keep their logits, places 5 to 7 change theirs",
    moved[:5].max() < 1e-5 and moved[5:].min() > 1e-4,
    largest_changes=moved,
)

# %% [markdown]
# ## 3 · Weight tying
#
# The table of embeddings $E$ $(V, D)$ is used twice: row $i$ is the vector that token $i$ brings in, and the direction along which the output speaks for token $i$: $\text{logits} = y E^\top$. Press and Wolf (2017) found this better than two tables; it is also cheaper. **Predict:** what share of GPT-2's smallest model is the table? And of its largest?

# %%
rows, counts = [], {}
for name in ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl"):
    with torch.device("meta"):  # shapes without numbers: 1.5 billion parameters in no memory
        model = GPT(GPTConfig.from_name(name))
    counts[name] = number_of_parameters(model)
    own = model.embedding.embedding.weight.numel()
    rows.append(
        [name, f"{counts[name]:,}", f"{own:,}", own / counts[name], f"{counts[name] + own:,}"]
    )
table(["", "parameters", "of which the table V D", "share", "with two tables"], rows)
claim(
    "Our counter gives the parameters of the four published models to the last one",
    list(counts.values()) == [124_439_808, 354_823_168, 774_030_080, 1_557_611_200],
)

# %% [markdown]
# (GPT-2's paper prints 117, 345, 762 and 1,542 million; its authors said later that they had miscounted. The tensors that they published have the numbers above.)
#
# **A parameter that is used twice has two gradients, and gets their sum.** Write the loss with two tables, $\ell(E_{in}, E_{out})$. With both set to $E$, the chain rule gives
#
# $$ \frac{d\ell(E, E)}{dE} = \frac{\partial \ell}{\partial E_{in}} + \frac{\partial \ell}{\partial E_{out}} . $$
#
# To see the parts, cut one of the two ways with `detach`:

# %%
set_seed(0)
tiny = GPT(
    GPTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3, dropout=0.0)
).double()
E = tiny.embedding.embedding.weight
text_ids = torch.tensor([[1, 7, 8, 2, 7, 3]])
inputs, targets = text_ids[:, :-1], text_ids[0, 1:]
y = tiny._read(inputs, None, "sdpa")[0]  # (T, D), what the layers and the last norm make
(whole,) = torch.autograd.grad(F.cross_entropy(y @ E.T, targets), E, retain_graph=True)
(as_input,) = torch.autograd.grad(F.cross_entropy(y @ E.detach().T, targets), E, retain_graph=True)
(as_output,) = torch.autograd.grad(F.cross_entropy(y.detach() @ E.T, targets), E)
claim(
    "The gradient of the tied table is the sum of its two parts",
    torch.allclose(whole, as_input + as_output, rtol=0, atol=1e-14),
)
read = sorted(set(inputs[0].tolist()))
claim(
    "As input only the rows that were read get a gradient; as output every row does",
    as_input.norm(dim=1).nonzero()[:, 0].tolist() == read
    and bool((as_output.norm(dim=1) > 0).all()),
)

# %% [markdown]
# So a rare token's row is pushed at every step by the output layer: away from all that does not predict it.
#
# ### Exercise 13.1 · Implement: the gradient of a tied table
#
# Difficulty ●●●○○ · 25 minutes · needs section 3
#
# The smallest tied language model has no layers: $\text{logits}_t = E\,e_t$, with $e_t$ the row of $E$ that belongs to token `ids[t]`, and the loss is the mean cross-entropy of the targets. Write its gradient from tensors, without autograd. Mind tokens that occur twice.


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
# ## 4 · Where training starts
#
# GPT draws all weights from $\mathcal{N}(0, 0.02^2)$. In a Pre-LN stack each sublayer *adds* to the residual stream, $x \leftarrow x + f(\mathrm{norm}(x))$, and there are $2N$ of them. The norm gives every $f$ an input of variance 1, so each adds about the same variance $v$: after the last layer the stream has $v_0 + 2Nv$. GPT-2 therefore divides the weights that write into the stream (`out_proj`, `linear2`) by $\sqrt{2N}$: each branch then adds $v/2N$, and the whole stack adds $v$, **whatever its depth.** (About: the branches are not quite independent of one another.) **Predict:** with 24 layers, how much less does the stream grow?

# %%
set_seed(0)
N = 24
deep = GPT(GPTConfig(vocab_size=65, max_len=64, d_model=128, num_layers=N, nhead=4, dropout=0.0))


@torch.no_grad()
def variances(model, ids):
    """Variance of the residual stream after the embedding and after each layer, N + 1 numbers."""
    x = model.embedding(ids)
    found = [x.var().item()]
    for layer in model.encoder.layers:
        x = layer(x, causal=True)
        found.append(x.var().item())
    return found


ids = torch.randint(65, (4, 64), generator=torch.Generator().manual_seed(0))
scaled = variances(deep, ids)
with torch.no_grad():
    for layer in deep.encoder.layers:  # undo the factor
        layer.self_attn.out_proj.weight *= math.sqrt(2 * N)
        layer.linear2.weight *= math.sqrt(2 * N)
unscaled = variances(deep, ids)
ax = plots.lines(
    plots.axes(height=2.8),
    {
        "N(0, 0.02²) everywhere": (range(N + 1), unscaled),
        "branches divided by $\\sqrt{2N}$": (range(N + 1), scaled),
    },
    "layer",
    "variance of the stream",
    {"N(0, 0.02²) everywhere": "gradient", "branches divided by $\\sqrt{2N}$": "hidden"},
)
ax.set_ylim(bottom=0)
show(
    ax,
    "Variance of the residual stream by layer. Without the factor it rises steadily to many times its start; with it the line is nearly flat.",
    "Does the stream grow with depth? Without the factor layer after layer; with it, all layers together add about what one branch adds without.",
)
growth = [found[-1] - found[0] for found in (unscaled, scaled)]
claim(
    "Divided by the root of 2N = 48, the 48 branches together add a 30th to a 90th of the variance",
    30 < growth[0] / growth[1] < 90,
    without=growth[0],
    with_factor=growth[1],
)

# %% [markdown]
# **The first loss can be predicted:** a model that knows nothing should give each of V tokens the same probability, a loss of $\ln V$. Look at it in every run before anything else. **Predict:** torch's `nn.Embedding` starts from $\mathcal{N}(0, 1)$. As a tied table of width 128, what would it make of the first loss?

# %%
set_seed(0)
fresh = GPT(GPTConfig(vocab_size=65, **SIZES))
ids = torch.randint(65, (8, 65), generator=torch.Generator().manual_seed(0))


@torch.no_grad()
def loss_of(model, ids):
    """Nats a token."""
    return F.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten()).item()


first = loss_of(fresh, ids)
with torch.no_grad():
    fresh.embedding.embedding.weight /= 0.02  # as nn.Embedding starts
claim(
    "The first loss is ln V, to within a fifth of a nat",
    abs(first - math.log(65)) < 0.2,
    loss=first,
    ln_V=math.log(65),
)
claim(
    "With a table of variance 1 it is more than ten times as large: sure, and wrong",
    loss_of(fresh, ids) > 10 * math.log(65),
    loss=loss_of(fresh, ids),
)

# %% [markdown]
# (It is a little above $\ln V$ even when all is right. A tied model that has learned nothing prefers the token that it has just read, whose own vector is still in the stream.)

# %% [markdown]
# ## 5 · Training one
#
# The text is that of chapters 01 and 03: the docstrings of your own Python, cut in the same place, with chapter 03's alphabet of all characters. The sizes are small enough for one core, and two things differ from GPT-2: positions are rotary (chapter 08), so that nothing about them has to be learned first, and there is no dropout, because two passes are too few to learn a text by heart.

# %%
corpus = data.docstrings(profile.pick(300_000, None))
alphabet = sorted(set(corpus))
number = {character: i for i, character in enumerate(alphabet)}
V = len(alphabet)


def encode(string):
    """List of ids."""
    return [number[character] for character in string]


def decode(ids):
    """The text of ids."""
    return "".join(alphabet[i] for i in ids)


corpus_ids = torch.tensor(encode(corpus))
cut = len(corpus_ids) * 9 // 10
train_ids, valid_ids = corpus_ids[:cut], corpus_ids[cut:]

T, B, steps = 96, profile.pick(12, 64), profile.pick(450, 5000)
D, N, H = profile.pick((96, 2, 4), (256, 6, 8))
set_seed(0)
config = GPTConfig(V, T, D, N, H, dropout=0.0, activation="gelu")
gpt = GPT(config, RoPE(D // H))
generator = torch.Generator().manual_seed(0)
untrained = generate(gpt, [encode("Return the ")], 80, generator)[0]
optimizer = torch.optim.AdamW(decay_groups(gpt, 0.1), lr=5e-3, betas=(0.9, 0.99), fused=True)
schedule = functools.partial(cosine, warmup=30, total=steps)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
losses = []
for _ in range(steps):
    # random pieces of the text, and for each of their characters the one that follows: (B, T) both
    x, y = recorded.windows(train_ids, T, B, generator)
    loss = F.cross_entropy(gpt(x).flatten(0, 1), y.flatten())
    optimizer.zero_grad()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(gpt.parameters(), 1.0)
    optimizer.step()
    scheduler.step()
    losses.append(loss.item())
gpt.eval()
claim(
    "The first loss is ln V, to within a fifth of a nat",
    abs(losses[0] - math.log(V)) < 0.2,
    first=losses[0],
    ln_V=math.log(V),
    last=losses[-1],
)

# %% [markdown]
# **How to compare fairly.** The unit is bits *per character*, so that models with other tokens can join. The text is the last tenth, from other modules than the rest. And each character should have a fair amount of text before it: an n-gram always has its n - 1, but the first character of a window has nothing. So the windows overlap, and only their second half counts.


# %%
@torch.no_grad()
def bits_per_character(model, ids, batch_size=64):
    """Every window's second half, with at least T / 2 characters to look back on."""
    T = model.config.max_len
    starts = torch.arange(0, len(ids) - T, T // 2)
    rows = ids[starts[:, None] + torch.arange(T + 1)]
    nats = [
        F.cross_entropy(model(part[:, :-1]).transpose(1, 2), part[:, 1:], reduction="none")[
            :, T // 2 :
        ]
        for part in rows.split(batch_size)
    ]
    return metrics.bits(torch.cat(nats).mean().item())


gpt_bits = bits_per_character(gpt, valid_ids)
ngrams = {
    n: language.NgramModel(n, V, add=2.0, interpolate=True).fit(train_ids) for n in range(1, 7)
}
ngram_bits = {n: metrics.bits(ngram.nll(valid_ids).mean().item()) for n, ngram in ngrams.items()}
ax = plots.axes(height=2.9)
plots.lines(ax, {"interpolated n-grams": (list(ngram_bits), list(ngram_bits.values()))}, "$n$", "bits per character",
            {"interpolated n-grams": "muted"}, marker="o")  # fmt: skip
ax.axhline(gpt_bits, color=plots.COLORS["output"], label="GPT")
ax.legend()
show(
    ax,
    "Held-out bits per character against n: n-grams fall until n is 5; a horizontal line for the GPT lies below the 3-gram.",
    "Where does the small GPT stand after two passes? Between a 3-gram and the best n-gram. Counting learns in one pass, a network in many.",
)
claim(
    "After about two passes the GPT is better than the 3-gram, and behind the best n-gram",
    min(ngram_bits.values()) < gpt_bits < ngram_bits[3],
    gpt=gpt_bits,
    three_gram=ngram_bits[3],
    best_n_gram=min(ngram_bits.values()),
)

# %% tags=["nbval-ignore-output"]
trained = generate(
    gpt, [encode("Return the ")], 80, torch.Generator().manual_seed(2), temperature=0.7
)
print("before:", repr("Return the " + decode(untrained)))
print("after: ", repr("Return the " + decode(trained[0])))

# %% [markdown]
# Chapter 03's RNN, on the same text and after two passes too, stood between the 3-gram and the best n-gram as well. On so little text, read so few times, the architecture does not decide. Does it with more of both?

# %% [markdown]
# ### With more time: the ledger
#
# Tiny Shakespeare, cut as in chapters 01 and 03, in nanoGPT's setting for a CPU: 4 layers, 4 heads, D = 128, windows of 64 characters, 12 of them a step, 2,000 steps. nanoGPT (Karpathy 2022), the usual yardstick, and ours were trained in one process, some steps each in turn, on the same windows. Ours has rotary positions, squared ReLUs ($\max(0, x)^2$, So et al. 2021) in place of GELU, biases, weights that start 2.5 times as wide, and a learning rate that is 2.5 times as high and ends at zero.
#
# Read the table with care: **ours was tuned** (learning rate, activation and start, in short runs on a piece cut off the end of the training text), **while nanoGPT kept its published rate** (its README reports a loss of 1.88 for this setting, estimated on random windows). And in these runs no single change was taken out by itself, so nobody can say from them which one it was. `valid_loss` is in nats a character over the whole validation text; `time_share` is the processor's time for all steps relative to nanoGPT's; `seeds` is how often both were trained.

# %%
markdown(
    ledger.table("shakespeare-gpt", ["valid_loss", "time_share", "parameters"], ["nanoGPT", "ours"])
)
ax = plots.axes(height=2.9)
for name, color in (("nanoGPT", "muted"), ("ours", "output")):
    seen = ledger.curves("shakespeare-gpt", name, "step")[0]
    runs = ledger.curves("shakespeare-gpt", name, "valid_estimate")
    plots.band(ax, seen, runs, name, color, marker="o")
ax.set(xlabel="step", ylabel="validation loss (nats a character)")
ax.legend()
show(
    ax,
    "Validation loss against steps for nanoGPT and for ours; ours is lower from the first measurement on.",
    "What do these changes and the tuning buy together, at equal size and steps? A lower loss from the first measurement on.",
)


def recorded_mean(experiment, row, metric):
    """Mean over the seeds."""
    return ledger.summary(experiment, row, metric)[0]


by_n = {n: recorded_mean("shakespeare-lm", f"{n}-gram interpolated", "bits") for n in range(1, 8)}
best_n = min(by_n, key=by_n.get)
before = {
    f"{best_n}-gram (chapter 01)": ("shakespeare-lm", f"{best_n}-gram interpolated"),
    "RNN (chapter 03)": ("shakespeare-recurrent", "RNN"),
    "GRU (chapter 05)": ("shakespeare-recurrent", "GRU"),
}
bits = {name: recorded_mean(*row, "bits") for name, row in before.items()}
bits |= {
    name: metrics.bits(recorded_mean("shakespeare-gpt", name, "valid_loss"))
    for name in ("nanoGPT", "ours")
}
before |= {name: ("shakespeare-gpt", name) for name in ("nanoGPT", "ours")}
table(
    ["tiny Shakespeare, last 10 %", "bits per character", "counts or weights"],
    [[name, bits[name], f"{recorded_mean(*before[name], 'parameters'):,.0f}"] for name in before],
)
history = [ledger.curves("shakespeare-gpt", name, "valid_estimate") for name in ("ours", "nanoGPT")]
claim(
    "At the same size and steps ours is ahead from the first measurement on, and ends below 1.75, more than a tenth of a nat below nanoGPT",
    all(a < b for runs in zip(*history, strict=True) for a, b in zip(*runs, strict=True))
    and recorded_mean("shakespeare-gpt", "ours", "valid_loss")
    < min(1.75, recorded_mean("shakespeare-gpt", "nanoGPT", "valid_loss") - 0.1),
)
claim(
    "Ours takes longer a step; with a quarter fewer steps it takes no longer, and still ends below 1.75",
    recorded_mean("shakespeare-gpt-time", "ours", "steps")
    * recorded_mean("shakespeare-gpt", "ours", "time_share")
    < recorded_mean("shakespeare-gpt", "nanoGPT", "steps")
    and recorded_mean("shakespeare-gpt-time", "ours", "valid_loss") < 1.75,
    share_of_a_step=recorded_mean("shakespeare-gpt", "ours", "time_share"),
    loss=recorded_mean("shakespeare-gpt-time", "ours", "valid_loss"),
)
claim(
    "In bits per character ours is below the best n-gram and the RNN; nanoGPT, so briefly trained, is above both",
    bits["ours"] < min(list(bits.values())[:2]) and bits["nanoGPT"] > max(list(bits.values())[:2]),
)

# %% [markdown]
# The GPTs read 1.5 million characters, one and a half passes, in windows that forget what stood before; the recurrent networks had four passes or so and carried their state. So neither side has every advantage, and a short training decides by *how fast* a network learns. That is a matter of the details above as much as of attention.

# %% [markdown]
# ## 6 · Drawing the next token
#
# The model gives a distribution; *decoding* turns it into a text. Four dials, applied to the logits $z$ of one step:
#
# - **greedy:** take the largest. No chance at all.
# - **temperature** $\tau$: draw from $\mathrm{softmax}(z / \tau)$. Below 1 sharpens, above 1 flattens. Cuts nothing.
# - **top-k** (Fan et al. 2018): draw among the k likeliest. Cuts the same *number* of tokens always.
# - **top-p**, or *nucleus* (Holtzman et al. 2020): draw among the fewest tokens whose probabilities reach p. Cuts the same *probability*, so the number of tokens adapts.

# %%
show_source(filter_logits, next_tokens)

# %% [markdown]
# **Predict:** after "Return" without its last letter the model is nearly sure; at the start of a new docstring it is not. How many characters do top-k with k = 5 and top-p with p = 0.9 leave in the two places?

# %%
places = {
    "inside a word": "Raise an error.\n\n" + "Return"[:-1],
    "at a new start": "Return the value of the name.\n\n",
}
axes = plots.grid(1, 2, height=3.0, sharey=True)[0]
nucleus = {}
for ax, (name, context) in zip(axes, places.items(), strict=True):
    with torch.no_grad():
        logits = gpt.next_logits(torch.tensor([encode(context)]))[0]
    p, order = logits.softmax(-1).sort(descending=True)
    nucleus[name] = int(filter_logits(logits, top_p=0.9).isfinite().sum())
    for temperature, kind in ((0.5, "gradient"), (1.0, "ink"), (2.0, "hidden")):
        curve = (logits / temperature).softmax(-1)[order][:25]
        ax.plot(range(1, 26), curve, color=plots.COLORS[kind], label=f"temperature {temperature:g}")
    ax.axvline(5.5, color=plots.COLORS["attention"], linestyle="--", label="top-k 5 cuts here")
    ax.axvline(
        nucleus[name] + 0.5,
        color=plots.COLORS["output"],
        linestyle=":",
        label="top-p 0.9 cuts here",
    )
    ax.set(title=name, xlabel="character, by rank", yscale="log", ylim=(1e-5, 1.5))
axes[0].set_ylabel("probability")
axes[1].legend(fontsize=8)
show(
    axes[0],
    "Two panels, probability on a logarithmic axis against rank. Left the first character has nearly all; right the curve falls slowly. Three temperatures tilt the curve; a dashed line at rank 5 in both, a dotted line at rank 1 on the left and far to the right in the other.",
    "What does each dial cut? Temperature tilts the whole curve and cuts nothing. Top-k cuts at the same rank everywhere; top-p where the model's certainty puts it.",
)
claim(
    "Top-p leaves at most 3 characters inside the word and more than 8 at a new start; top-k leaves 5 in both",
    nucleus["inside a word"] <= 3 and nucleus["at a new start"] > 8,
    left=list(nucleus.values()),
)

# %% [markdown]
# Inside the word, k = 5 lets in four characters of which none is sensible: over thousands of steps one of them will come. At a new start, k = 5 forbids most of what a docstring may begin with.
#
# ### Exercise 13.2 · Derive: temperature on paper
#
# Difficulty ●●○○○ · 15 minutes · needs section 6
#
# Three tokens. (a) Their logits are 2, 1, 1. What is the first one's probability at temperature 1? (b) At temperature 1/2? (c) The logits are 2, 2, 1. Where does the first one's probability go as $\tau \to 0$? (d) The same logits: as $\tau \to \infty$? (e) The logits are 2, 1, 1 again. At which temperature is the first token exactly three times as likely as the second?

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
# From probabilities to probabilities, without `filter_logits`: keep in each row the fewest tokens that together reach p, likeliest first, and make them sum to 1 again.


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
# ### The likeliest text is not a good text
#
# Greedy decoding looks like the honest choice: why draw something less likely on purpose? **Predict:** what does it write?

# %% tags=["nbval-ignore-output"]
print(repr(decode(generate(gpt, [encode("Return ")], 88, top_k=1)[0])))

# %% [markdown]
# A loop. A phrase that stands in the context makes itself more likely; after the second time nothing else has a chance. Two numbers tell it: the *repetition rate*, the share of 8-character strings that stood before in the same text, and the *distinct* n-grams, the share of all n-grams that are different ones. Beside them stands the surprise of the model itself at what was drawn, in nats a character. The prompts are pieces of the validation text, and the row "real text" is how they truly go on.

# %% tags=["nbval-ignore-output"]
length, starts = 72, range(0, 24 * 900, 900)
prompts = [valid_ids[s : s + 24].tolist() for s in starts]
real = [valid_ids[s + 24 : s + 24 + length].tolist() for s in starts]
ways = {
    "greedy": {"top_k": 1},
    "temperature 0.5": {"temperature": 0.5},
    "top-k 5": {"top_k": 5},
    "top-p 0.9": {"top_p": 0.9},
    "pure sampling": {},
    "temperature 1.5": {"temperature": 1.5},
}
drawn = {"real text": real}
for name, options in ways.items():
    drawn[name] = generate(gpt, prompts, length, torch.Generator().manual_seed(3), **options)
found = {
    name: (
        recorded.negative_log_likelihood(gpt, prompts, ids),
        recorded.repetition([decode(row) for row in ids]),
        recorded.distinct([decode(row) for row in ids], 4),
    )
    for name, ids in drawn.items()
}
table(
    ["", "nats a character", "repetition", "distinct 4-grams"],
    [[name, *row] for name, row in found.items()],
)

# %%
claim(
    "To the model its greedy text is less than two thirds as surprising as real text, and it repeats itself more than three times as often",
    found["greedy"][0] < found["real text"][0] * 2 / 3
    and found["greedy"][1] > 3 * found["real text"][1],
    nats=[found["greedy"][0], found["real text"][0]],
    repetition=[found["greedy"][1], found["real text"][1]],
)
claim(
    "The surprise rises in the order temperature 0.5, pure sampling, temperature 1.5, and the variety with it; greedy text varies least",
    all(
        found[a][0] < found[b][0] and found[a][2] < found[b][2]
        for a, b in itertools.pairwise(["temperature 0.5", "pure sampling", "temperature 1.5"])
    )
    and found["greedy"][2] < found["temperature 0.5"][2],
)

# %% [markdown]
# **Two numbers that must not be compared.** The loss of section 5 is *teacher-forced*: each character is predicted after the true ones. The surprise at text that the model drew itself is *free-running*: each character stands after the model's own. By the second, the model that repeats itself looks best (chapter 06); only the first says how well it knows the language.
#
# So likelihood and variety pull in opposite directions, and people do not write the likeliest text: real text is as surprising to the model as its own draws, not as its greedy line. Top-k and top-p stand between: they take away the tail, where a small model is wrong most often, and keep chance among the rest.

# %% [markdown]
# The same with a GPT trained on Shakespeare, ten ways. `known_words` is the share of words that occur in the training text.

# %%
strategies = ["real text", *recorded.WAYS]
markdown(
    ledger.table("gpt-sampling", ["nll", "repetition", "distinct_4", "known_words"], strategies)
)


def sampled(way, metric):
    """Mean over the seeds."""
    return ledger.summary("gpt-sampling", way, metric)[0]


ax = plots.axes(height=3.6)
left_of_point = {"top-k 40": (-46, 3), "temperature 0.5": (-84, -3), "temperature 0.7": (-84, 3)}
for way in strategies:
    kind = "output" if way == "real text" else "gradient" if way == "greedy" else "attention"
    ax.scatter(sampled(way, "nll"), sampled(way, "distinct_4"), color=plots.COLORS[kind])
    place, shift = (sampled(way, "nll"), sampled(way, "distinct_4")), left_of_point.get(way, (5, -9))
    ax.annotate(way, place, xytext=shift, textcoords="offset points", fontsize=8)
ax.set(
    xlabel="surprise of the model at the text (nats a character)", ylabel="distinct 4-grams (share)"
)
ax.margins(x=0.2)
show(
    ax,
    "Scatter of eleven kinds of text, surprise to the right and variety upwards. Greedy stands alone at the lower left; the others rise nearly on a curve to the hottest at the upper right; real text lies at about the surprise of pure sampling, a little below it.",
    "Diversity against likelihood: nearly one curve, from greedy at the lower left to a high temperature at the upper right. Real text is about as surprising as pure sampling, and less varied.",
)
claim(
    "Greedy text has the lowest surprise, the least variety and the most repetition of all ten ways",
    all(
        sampled("greedy", "nll") < sampled(way, "nll")
        and sampled("greedy", "distinct_4") < sampled(way, "distinct_4")
        and sampled("greedy", "repetition") > sampled(way, "repetition")
        for way in recorded.WAYS
        if way != "greedy"
    ),
)
claim(
    "The way whose surprise is nearest to real text's is pure sampling or a mild cut, not greedy or a low temperature; real text is less varied than pure sampling",
    min(recorded.WAYS, key=lambda way: abs(sampled(way, "nll") - sampled("real text", "nll")))
    in ("pure sampling", "top-k 40", "top-p 0.95")
    and sampled("real text", "distinct_4") < sampled("pure sampling", "distinct_4"),
)
claim(
    "Cutting the tail makes more words real: top-p 0.9 writes a larger share of known words than pure sampling, temperature 1.3 a smaller one",
    sampled("top-p 0.9", "known_words")
    > sampled("pure sampling", "known_words")
    > sampled("temperature 1.3", "known_words"),
)

# %% [markdown]
# ### Exercise 13.4 · Explore and explain: how would you let it write?
#
# Difficulty ●●○○○ · 25 minutes · needs section 6
#
# Change the options in the cell: temperature from 0.3 to 2, `top_k`, `top_p`, both together. Then explain in a few sentences: (a) Why does greedy decoding get caught in a loop, and why does a temperature of 0.3 seldom leave it? (b) Why is top-p with p = 0.9 hardly different from pure sampling where the model is sure, and very different where it is not? (c) A program writes 1,000 tokens, and at every step a share of 0.5 % of the probability is on nonsense. How likely is a text without nonsense under pure sampling? (d) Which dials would you choose for code, for names of new products, and for estimating how good the model is?

# %% tags=["nbval-ignore-output"]
options = {"temperature": 0.8, "top_k": None, "top_p": 0.95}  # your turn
for text in generate(gpt, [encode("Return ")] * 3, 80, torch.Generator().manual_seed(5), **options):
    print(repr(decode(text)))

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex13-4-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) Every repetition is evidence that this text repeats, and the causal context holds it: the probability of the next repetition rises with each one. Greedy decoding always follows the largest probability, so once a cycle's every step is the largest, nothing leads out. At temperature 0.3 a probability ratio of 3 becomes $3^{1/0.3} \approx 39$: leaving the loop is possible, but rare.
#
# (b) Where the model is sure, one or two tokens hold more than 0.9, and pure sampling would nearly always have drawn them too. Where it is not, the tenth that is cut is spread over many unlikely tokens, each bad, together drawn every tenth time.
#
# (c) $0.995^{1000} \approx 0.0067$: hardly ever. This is why the tail is cut although each of its tokens is rare.
#
# (d) Code: greedy or a low temperature, since there are few right continuations. Names: a higher temperature with top-p, since variety is wanted and each draw is short. Estimating the model: none of them; the loss on held-out text is taken from the model's own distribution, uncut. (A cut distribution gives some true tokens probability 0 and has an infinite loss.)
# ### END SOLUTION

# %% [markdown]
# ## 7 · Keys and values that stay
#
# Back to the hook. Why may a cache work at all? Under a causal mask the vector at place $j$ depends on tokens $1 \dots j$ only, in every layer. A new token changes none of them, and so none of their keys and values. All that step $t$ asks of the past is
#
# $$ \text{out}_t = \mathrm{softmax}\!\left(\frac{q_t\,[k_1; \dots; k_t]^\top}{\sqrt K}\right) [v_1; \dots; v_t], $$
#
# with one new query, one new key and one new value. Queries of the past are never needed again. (The drawing counts from 0, as code does.)

# %%
diagrams.show("kv_cache")

# %%
show_source(KVCache.append, GPT.caches, GPT.next_logits)

# %% [markdown]
# The tensors are made once, at their full length, and filled row by row. (Joining old and new with `torch.cat` would copy the whole past at every step.) An optimisation needs a proof. In float64 the two ways must agree to rounding, at *every* step, and for a prompt that is fed at once as well as for tokens that come one by one:

# %%
double = copy.deepcopy(gpt).double()
ids = valid_ids[None, :40]
caches = double.caches(batch_size=1)
with torch.no_grad():
    whole = double(ids)  # (1, 40, V)
    parts = [double(ids[:, :7], caches)]  # the prompt at once
    parts += [double(ids[:, t : t + 1], caches) for t in range(7, 40)]
claim(
    "Fed in parts, with a cache, the logits of all 40 places equal those of the whole",
    torch.allclose(torch.cat(parts, 1), whole, rtol=0, atol=1e-11),
    largest_difference=(torch.cat(parts, 1) - whole).abs().max(),
)

# %% [markdown]
# **What it costs: memory.** Keys and values, in each of N layers, for B texts of S tokens, D numbers each: $2\,N\,B\,S\,D$ numbers. The heads do not appear: together they make D.

# %%
rows, exact = [], []
for name in counts:
    config = GPTConfig.from_name(name)
    formula = 2 * config.num_layers * config.max_len * config.d_model
    with torch.device("meta"):
        held = recorded.cache_bytes(GPT(config).caches(batch_size=1))
    exact.append(held == 4 * formula)  # bytes of the tensors themselves, in float32
    weights = 2 * counts[name]
    megabytes = f"{2e-6 * formula:.1f}", f"{1e-6 * weights:,.0f}"
    rows.append([name, f"{formula:,}", *megabytes, math.ceil(weights / (2 * formula))])
table(
    [
        "context full",
        "numbers a text",
        "megabytes a text (16 bits)",
        "weights, megabytes (16 bits)",
        "texts until the cache outweighs them",
    ],
    rows,
)
claim("The formula gives the bytes of the tensors in all four models", all(exact))
claim(
    "GPT-2's smallest model keeps 37.7 million bytes a text in 16 bits: seven texts outweigh its weights",
    rows[0][2] == "37.7" and rows[0][-1] == 7,
)

# %% [markdown]
# So a server that writes for many at once fills its memory with caches, not with weights. That is what multi-query and grouped-query attention shrink (several heads share keys and values), and what sliding windows bound.
#
# **What it gains: time.** Without a cache, token $t$ costs a forward pass over $t$ tokens, so a text of T tokens costs about $T^2/2$ token passes; with it, T.

# %%
times = {T: cost.seconds(recorded.token_steps(writer, B=1, T=T), rounds=3) for T in (16, 64, 250)}
gains = {T: found["no cache"] / found["cache"] for T, found in times.items()}
claim(
    "The gain grows with the length: at 250 tokens it is more than twice that at 16",
    gains[250] > 2 * gains[16],
    gains=list(gains.values()),
)

# %% [markdown]
# The ledger has the whole curve, on one core, for a model of the hook's size with a context of 1,025, for one text and for eight at once.

# %%
ax = plots.axes(height=3.0)
for row, kind, style, marker in (
    ("no cache, batch 8", "gradient", "--", "s"),
    ("no cache, batch 1", "gradient", "-", "o"),
    ("cache, batch 8", "attention", "--", "s"),
    ("cache, batch 1", "attention", "-", "o"),
):
    lengths = ledger.values("gpt-cache", row, "T")[0]
    runs = [[1000 * s for s in run] for run in ledger.values("gpt-cache", row, "seconds")]
    plots.band(ax, lengths, runs, row, kind, marker=marker, linestyle=style)
ax.set(xscale="log", yscale="log", xlabel="tokens before", ylabel="milliseconds a step")
ax.legend(fontsize=8, handlelength=4)
show(
    ax,
    "Milliseconds for one more token against the number of tokens before, both logarithmic. Without a cache two steep lines; with one two nearly flat ones.",
    "How does the gain grow? Without a cache a token's cost rises like the length; with one it stays nearly flat.",
)
gain = {}
for B in (1, 8):
    slow, fast = (
        ledger.values("gpt-cache", f"{name}, batch {B}", "seconds")
        for name in ("no cache", "cache")
    )
    gain[B] = [
        statistics.mean(a[i] / b[i] for a, b in zip(slow, fast, strict=True))
        for i in range(len(lengths))
    ]
table(["tokens before", *map(str, lengths)], [[f"gain, batch {B}", *gain[B]] for B in gain])
claim(
    "At 1,024 tokens the cache gains more than 10 times for one text and more than 30 times for eight; at 16 less than 5 times",
    gain[1][-1] > 10 and gain[8][-1] > 30 and gain[1][0] < 5 and gain[8][0] < 5,
)
claim(
    "From 128 tokens on, the time without a cache grows about like the length (exponent above 0.8); with it, hardly (below 0.4)",
    ledger.summary("gpt-cache", "no cache, batch 1", "exponent")[1] > 0.8
    and ledger.summary("gpt-cache", "cache, batch 1", "exponent")[2] < 0.4,
)

# %% [markdown]
# ### Why writing one text leaves a processor idle
#
# One token of one text: every weight is read from memory once and takes part in one multiplication and one addition. In 16 bits that is 2 operations for 2 bytes: **one operation a byte.** A large GPU of 2023 does about $10^{15}$ operations a second and reads $3.35 \cdot 10^{12}$ bytes: to keep its arithmetic busy it needs 300 operations a byte. **Predict:** how long do GPT-2's 1.56 billion parameters take for one token, by operations, and by bytes?

# %%
operations, bytes_read = 2 * counts["gpt2-xl"], 2 * counts["gpt2-xl"]
by_operations, by_bytes = operations / 1e15, bytes_read / 3.35e12
table(
    ["one token of GPT-2 XL, one text", "amount", "microseconds"],
    [
        ["operations", f"{operations:,}", 1e6 * by_operations],
        ["bytes of weights", f"{bytes_read:,}", 1e6 * by_bytes],
    ],
)
claim(
    "By its bytes a token takes about 300 times as long as by its operations",
    250 < by_bytes / by_operations < 350,
)

# %% [markdown]
# Decoding is bound by memory, not by arithmetic (Pope et al. 2022, section 2). So what helps is to read *less* (fewer bits a weight, fewer keys) or to *do more with each byte*: write many texts at once. A batch reads each weight once for all of them:

# %%
one, sixteen = (
    cost.seconds(recorded.token_steps(writer, B=B, T=64), rounds=3)["cache"] for B in (1, 16)
)
claim(
    "16 texts take less than half of 16 times the time of one",
    sixteen < 8 * one,
    times_as_long=sixteen / one,
)

# %% [markdown]
# ### Exercise 13.5 · Find the bugs: a cache that is off by one
#
# Difficulty ●●●○○ · 25 minutes · needs section 7
#
# One head, a table of learned positions, one new token a call. The output should be that of causal attention over all tokens at once. Nothing fails, every shape is right, and both lines marked with a question are one off. Find out how, then write it right.
#
# ```python
# def cached_step(x, cache, project, table):
#     t = cache.length
#     q, k, v = project(x + table[t - 1])                    # ?
#     cache.keys[:, t], cache.values[:, t] = k, v
#     cache.length = t + 1
#     keys, values = cache.keys[:, :t], cache.values[:, :t]  # ?
#     scores = (keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])
#     return (scores.softmax(-1)[..., None] * values).sum(1)
# ```


# %% nbgrader={"grade": false, "grade_id": "ex13-5-cached-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def cached_step(x, cache, project, table):
    """Attention of one new token to itself and all before it, one head; the cache learns its key and value.

    Args:
        x: (B, D) vectors of the new token, without position.
        cache: object with `.keys` and `.values` (B, L, D), of which the first `.length` rows are filled. It is changed.
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
# ## 8 · Many texts, prompts of different lengths
#
# A batch has one T; prompts do not. The usual way pads short prompts on the left and masks the padding in every step. There is a way without padding: **start at the end of the shortest prompt.** All rows advance together; a row whose prompt is longer ignores what was drawn for it and is given its own next token instead. At every moment all rows stand at the same position, so one cache, one offset and no mask will do. The price: the longer rows read the rest of their prompts one token a step.

# %%
show_source(generate)

# %%
three = [valid_ids[s : s + n].tolist() for s, n in ((0, 3), (500, 19), (900, 8))]
together = generate(double, three, 40, top_k=1)
one_by_one = [generate(double, [prompt], 40, top_k=1)[0] for prompt in three]
claim(
    "Written together, prompts of 3, 19 and 8 characters go on as each of them does alone",
    together == one_by_one,
)

# %% [markdown]
# ## 9 · A task given by a prefix
#
# GPT-2's and GPT-3's discovery needs web-sized text, but its mechanism fits into a toy. Our texts are of the form *task, letters, separator, answer*:
#
#     sort    d b a d c | a b c d d
#     reverse d b a d c | c d a b d
#
# One model is trained on all three tasks (copy, reverse, sort) mixed in every batch. What comes before the separator is context; the loss is taken on the answer. No part of the network belongs to a task: the first token is all that tells them apart. An eighth of all inputs never occurs in training.

# %%
show_source(recorded.prefix_prompts, recorded.prefix_batch)

# %% [markdown]
# **Predict:** the model is asked to reverse letters that it has never seen. Then the same letters without any task. What will it answer?

# %%
asked, _ = recorded.train_prefix_model(seed=0, steps=profile.pick(250, 2000))
answered = recorded.prefix_table(
    asked, length=5, generator=torch.Generator().manual_seed(1), size=200
)
ax = plots.heatmap(
    plots.axes(width=5.5, height=2.8),
    [[answered[prefix][task] for task in recorded.TASKS] for prefix in answered],
    list(recorded.TASKS),
    list(answered),
    "share of answers, all 5 letters",
    annotate=True,
    xlabel="answer that the task wants",
    ylabel="prefix given",
)
show(
    ax,
    "Heat map of prefix given against the task whose answer came. The three prefixes are dark on the diagonal and near zero elsewhere; without a prefix no task is done reliably.",
    "Does the first token choose the task? Yes: each prefix gets its own answers, for letters that never occurred in training. Without it there is no task to do.",
)
claim(
    "Told the task, one model copies, reverses and sorts more than 4 of 5 unseen inputs right in all letters",
    min(answered[task][task] for task in recorded.TASKS) > 0.8,
    right=[answered[task][task] for task in recorded.TASKS],
)
claim(
    "A prefix seldom gets the answer of another task: on fewer than one input in eight",
    max(answered[a][b] for a in recorded.TASKS for b in recorded.TASKS if a != b) < 0.125,
)

# %% [markdown]
# From the ledger, with more inputs (the table says with how many seeds): rows are the prefix, columns the share of answers that are those of a task.

# %%
markdown(ledger.table("gpt-prefix", list(recorded.TASKS), [*recorded.TASKS, "no prefix"]))
claim(
    "In every seed each prefix gets its own answer on more than nine of ten unseen inputs; without one no task gets a third",
    all(ledger.summary("gpt-prefix", task, task)[1] > 0.9 for task in recorded.TASKS)
    and all(ledger.summary("gpt-prefix", "no prefix", task)[2] < 1 / 3 for task in recorded.TASKS),
)

# %% [markdown]
# This is *multitask* training with the task in the input, as T5 does on purpose. In GPT-2 nobody wrote the prefixes: web pages do contain translations, questions with answers, summaries after "TL;DR", and a model that predicts such pages well has learned to do what they do (Radford et al. 2019, section 2). Few-shot prompts add that the *rule itself* is read off the examples, which this small model cannot.

# %% [markdown]
# ## 10 · Loading GPT-2
#
# With a network that computes the same function, others' weights can be loaded. With the internet, two lines do it (about 550 megabytes, once):
#
# ```python
# gpt2, tokenizer = GPT.from_pretrained("gpt2"), pretrained.tokenizer("gpt2")
# print(tokenizer.decode(generate(gpt2, [tokenizer.encode("The meaning of life is").ids], 30, top_p=0.9)[0]))
# ```
#
# A checkpoint is three things: sizes (`config.json`), tensors (`model.safetensors`, numbers alone: never open a pickle from a stranger), and the pieces of text (`vocab.json`, `merges.txt`). We write such a folder ourselves and load it back, with the very format of the published one.

# %%
from tokenizers import ByteLevelBPETokenizer

bpe = ByteLevelBPETokenizer()
bpe.train_from_iterator([corpus[:cut]], vocab_size=512, show_progress=False)
set_seed(0)
original = GPT(
    GPTConfig(bpe.get_vocab_size(), max_len=40, d_model=48, num_layers=2, nhead=4)
).eval()
with tempfile.TemporaryDirectory() as folder:
    original.save_pretrained(folder)
    bpe.save_model(folder)
    files = sorted(path.name for path in Path(folder).iterdir())
    _, tensors = pretrained.read(folder)
    loaded, tokenizer = GPT.from_pretrained(folder), pretrained.tokenizer(folder)
print(files)
table(
    ["tensor in the file", "shape there", "ours", "shape here"],
    [
        [
            f"`{theirs}`",
            tuple(tensors[theirs].shape),
            f"`{ours}`",
            tuple(original.state_dict()[ours].shape),
        ]
        for theirs, ours in (
            ("transformer.wte.weight", "embedding.embedding.weight"),
            ("transformer.h.0.attn.c_attn.weight", "encoder.layers.0.self_attn.in_proj_weight"),
            ("transformer.h.0.mlp.c_fc.weight", "encoder.layers.0.linear1.weight"),
            ("transformer.h.0.mlp.c_proj.weight", "encoder.layers.0.linear2.weight"),
        )
    ],
)
ids = torch.tensor([tokenizer.encode("Return the number of bytes written.").ids])
with torch.no_grad():
    claim(
        "The loaded model gives the same logits, bit for bit",
        torch.equal(loaded(ids), original(ids)),
    )

# %% [markdown]
# The matrices stand transposed: GPT-2's code keeps (in, out), torch's linear layer (out, in). A square one, such as `attn.c_proj`, would load *without complaint* the wrong way round. Shapes prove nothing; **equal logits do.** The course's tests compare every logit with those of Hugging Face's own GPT-2, for random weights of several sizes, and cached greedy texts with `transformers.generate`.
#
# ### Bytes, not characters
#
# Chapter 02's BPE began with characters, and a character that the training text lacks is unknown. GPT-2 begins with the 256 **bytes** of UTF-8: every text of every script is a row of bytes, so nothing is ever unknown, and decoding gives back the text exactly. (Bytes that have no printable form are shown as other signs: a blank as `Ġ`, a line's end as `Ċ`.) **Predict:** how many tokens is one smiling face to a tokenizer that has seen ASCII text alone?

# %% tags=["nbval-ignore-output"]
awkward = ["the value", "  two  blanks", "line\n\tend", "naïve café", "日本", "🙂", "<|endoftext|>"]
encoded = [tokenizer.encode(string) for string in awkward]
table(
    ["text", "characters", "bytes", "tokens", ""],
    [
        [repr(s), len(s), len(s.encode()), len(e.ids), " ".join(f"`{t}`" for t in e.tokens)]
        for s, e in zip(awkward, encoded, strict=True)
    ],
)

# %%
claim(
    "Every one of these texts comes back unchanged",
    [tokenizer.decode(e.ids, skip_special_tokens=False) for e in encoded] == awkward,
)
claim(
    "One emoji is one character, four bytes, and here four tokens",
    (len(awkward[5]), len(awkward[5].encode()), len(encoded[5].ids)) == (1, 4, 4),
)

# %% [markdown]
# GPT-2's own vocabulary has 256 bytes, 50,000 merged pieces, and one token more, `<|endoftext|>`, which stands between two texts: 50,257. Ours has no such token, so the last row is spelled out.
#
# Blanks belong to the word behind them (`Ġvalue`), so the same word at the start of a text is another token. This is why a prompt that ends in a blank often writes badly: the model expects the blank to come *with* the next word.

# %% [markdown]
# ## 11 · Scaling on paper
#
# In this section, as in the papers, $N$ is the number of **parameters** and $D$ the number of **training tokens**; layers are $n$, the width is $d$.
#
# ### Operations: 6ND
#
# A token meets each weight of a matrix once: a multiplication and an addition, so the forward pass takes $2N$ operations a token. The backward pass makes two products out of each: the gradient of the input and the gradient of the weight, $4N$. Together
#
# $$ C \approx 6\,N\,D . $$
#
# What does it leave out? The products of attention that hold no weights: queries with keys and weights with values, $4\,n\,T\,d$ a token forward (chapter 10). What does it count too much? Biases and norms, which are not matrices, and tables that are only looked up. (Below, $N$ leaves the table of positions out. The table of tokens counts once: it is the output's matrix.) **Predict:** from which T on are the left-out products a tenth of the whole, for GPT-2's smallest model?

# %%
rows, agree = [], []
for T in (64, 256):
    row = recorded.operation_row(layers=2, heads=4, width=64, vocab_size=65, T=T)
    rows.append(
        [
            T,
            *(
                f"{row[key]:,.0f}"
                for key in ("forward", "2N", "2N + attention", "training", "6N", "6N + attention")
            ),
        ]
    )
    exact = 2 * (2 * 12 * 64**2 + 65 * 64) + 4 * 2 * T * 64  # matrices and table, then attention
    agree.append(row["forward"] == exact and row["training"] == 3 * exact)
table(
    ["T", "counted, forward", "2N", "2N + attention", "counted, training", "6N", "6N + attention"],
    rows,
)
share = {
    T: 2 * T * 768 * 12 / (counts["gpt2"] - 1024 * 768 + 2 * T * 768 * 12) for T in range(1, 2049)
}
tenth = next(T for T in share if share[T] > 0.1)
claim(
    "The counter finds the matrices, the output table and attention's products to the last operation, and a backward pass of exactly twice the forward pass",
    all(agree),
)
claim(
    "For GPT-2's smallest model attention's own products are a tenth of all from T = 746 on, and 13 % at its full context",
    tenth == 746 and round(share[1024], 2) == 0.13,
)

# %% [markdown]
# (Half of these products lie above the causal diagonal. They are counted here; a program that skips them does half.) The ledger has four sizes. The counted operations of training, a token, against the formula, in a short context and a long one:

# %%
sizes = list(recorded.SIZES)
rows = []
for T in (64, 1024):
    for size in sizes:
        row = ledger.load("gpt-scaling")["runs"][0]["results"][f"operations {size}, T = {T}"]
        rows.append(
            [
                T,
                size,
                f"{row['training']:,.0f}",
                row["6N"] / row["training"],
                row["6N + attention"] / row["training"],
            ]
        )
table(["T", "width × layers", "counted a token", "6N is so much of it", "6N + attention"], rows)
claim(
    "With attention's products the formula is within 3 % everywhere; without them it misses more than half at T = 1,024 in all four models",
    all(abs(row[4] - 1) < 0.03 for row in rows)
    and all(row[3] < 0.5 for row in rows if row[0] == 1024),
)
losses_by_size = {
    size: ledger.values("gpt-scaling", f"loss {size}", "valid_loss") for size in sizes
}
sizes_counted = [ledger.summary("gpt-scaling", f"loss {size}", "parameters")[0] for size in sizes]
tokens_read = ledger.summary("gpt-scaling", f"loss {sizes[0]}", "tokens")[0]
ax = plots.band(
    plots.axes(height=2.6),
    sizes_counted,
    list(zip(*losses_by_size.values(), strict=True)),
    "loss",
    "output",
    marker="o",
)
ax.set(xscale="log", xlabel="parameters", ylabel="loss (nats a character)")
ax.set_xticks(sizes_counted, [f"{n:,.0f}" for n in sizes_counted])
ax.set_xticks([], minor=True)
show(
    ax,
    "Validation loss against parameters on a logarithmic axis, falling from the smallest to the largest of four models.",
    f"Is larger better at equal tokens? On tiny Shakespeare, after {tokens_read:,.0f} characters, yes: the first step up gains much, the last little.",
)
means = [statistics.mean(found) for found in losses_by_size.values()]
claim(
    "Every larger model has a lower loss after the same characters, and the last step up gains less than half of the first",
    means == sorted(means, reverse=True) and means[-2] - means[-1] < (means[0] - means[1]) / 2,
)


# %% [markdown]
# **GPT-3 as an example** (Brown et al. 2020, table D.1): $N = 1.75 \cdot 10^{11}$, $D = 3 \cdot 10^{11}$.

# %%
gpt3 = 6 * 1.75e11 * 3e11
claim(
    "6ND gives GPT-3's published 3.14e23 operations to within 1 %",
    abs(gpt3 / 3.14e23 - 1) < 0.01,
    operations=gpt3,
)
days = gpt3 / (1024 * 0.4 * 3.12e14) / 86400  # 1,024 processors of 312 teraflop/s at 40 %
claim(
    "1,024 processors of 3.12e14 operations a second, at 40 %, need about a month",
    25 < days < 33,
    days=days,
)

# %% [markdown]
# ### How large, how long?
#
# Kaplan et al. (2020, equation 1.5) measured that the loss falls as a power law in parameters and tokens. Hoffmann et al. (2022, "Chinchilla") asked how to spend a fixed $C$, trained more than 400 models, and found that parameters and tokens should grow together: **about 20 tokens a parameter.** With $D = 20N$, $C = 120N^2$.

# %%
models = {
    "GPT-3": (1.75e11, 3e11),
    "Chinchilla": (7e10, 1.4e12),
    "GPT-2 XL, if trained by the rule": (1.5576e9, 20 * 1.5576e9),
}
rows = []
for name, (N, D) in models.items():
    C = 6 * N * D
    best = math.sqrt(C / 120)
    rows.append(
        [name, f"{N:.3g}", f"{D:.3g}", D / N, f"{C:.3g}", f"{best:.3g}", f"{20 * best:.3g}"]
    )
table(
    [
        "",
        "parameters N",
        "tokens D",
        "tokens a parameter",
        "operations 6ND",
        "by the rule: N",
        "by the rule: D",
    ],
    rows,
)
claim(
    "GPT-3 saw fewer than 2 tokens a parameter; its operations would have trained a model of a third of its size on three times the tokens",
    rows[0][3] < 2 and 0.28 < math.sqrt(gpt3 / 120) / 1.75e11 < 0.35,
)

# %% [markdown]
# The rule answers one question: the lowest loss for given *training* operations. A model that will write for millions is worth training far longer than that, because every token it writes costs $2N$.
#
# ### Memory: 16 bytes a parameter, and then the activations
#
# Training with Adam in float32 holds four numbers for each parameter: the weight, its gradient, and Adam's two moments, 16 bytes in all. On top come the activations, which grow with $B\,T\,n\,d$, not with the parameters alone (chapter 10).

# %%
small = GPT(GPTConfig(vocab_size=65, max_len=64, d_model=64, num_layers=2, nhead=4, dropout=0.0))
optimizer, x = torch.optim.AdamW(small.parameters()), torch.zeros(12, 64, dtype=torch.int64)
loss_function = functools.partial(recorded.gpt_loss, small)
activations = 4 * cost.count_activations(loss_function, x, x)  # bytes that autograd keeps
loss_function(x, x).backward()
optimizer.step()
moments = [value for state in optimizer.state.values() for value in state.values() if value.ndim]
held = {
    "weights": sum(p.nbytes for p in small.parameters()),
    "gradients": sum(p.grad.nbytes for p in small.parameters()),
    "moments": sum(value.nbytes for value in moments),
}
megabytes = {part: size / 1e6 for part, size in {**held, "activations": activations}.items()}
ax = plots.bars(plots.axes(height=2.6), megabytes, "megabytes",
                {"weights": "weight", "gradients": "gradient", "moments": "muted", "activations": "hidden"})  # fmt: skip
show(
    ax,
    "Bars: weights and gradients equal, moments twice that, activations many times larger.",
    "What holds the memory of a training step? For a small model and 768 tokens the activations; weights, gradients and moments are 4, 4 and 8 bytes a parameter.",
)
claim(
    "Weights, gradients and moments are 16 bytes a parameter, counted on the tensors that are there",
    sum(held.values()) == 16 * number_of_parameters(small),
)
claim(
    "With 768 tokens a step, activations take more than three times as much",
    activations > 3 * sum(held.values()),
    megabytes=list(megabytes.values()),
)
table(
    ["", "parameters", "16 bytes each, gigabytes"],
    [[name, f"{n:,}", 16e-9 * n] for name, n in counts.items()],
)

# %% [markdown]
# Is that all? The ledger compares the sum of the four parts with the largest amount that the process really held during training steps. It can be below the sum, because the backward pass gives activations back while it makes gradients:

# %%
rows = []
for size in recorded.SIZES:
    row = ledger.load("gpt-scaling")["runs"][0]["results"][f"memory {size}"]
    parts = [row[part] / 1e6 for part in ("weights", "gradients", "moments", "activations")]
    rows.append([size, *parts, row["sum"] / 1e6, row["peak"] / 1e6])
table(["megabytes", "weights", "gradients", "moments", "activations", "sum", "measured peak"], rows)
claim(
    "The measured peak is within 15 % of the sum of the four parts, for all four sizes",
    all(abs(row[-1] / row[-2] - 1) < 0.15 for row in rows),
)

# %% [markdown]
# ### Exercise 13.6 · Derive: the memory of a model with Adam
#
# Difficulty ●●○○○ · 20 minutes · needs sections 2, 3 and 11
#
# From the sizes alone, without building a model: how many parameters has a GPT (tied table, learned positions, biases in every linear layer, feed-forward width 4D, two LayerNorms a layer and one at the end), and how many bytes does training with Adam in float32 hold for them, activations left out?


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
# Difficulty ●●○○○ · 20 minutes · needs sections 7 and 11
#
# A model of 774 million parameters (36 layers, D = 1280, 20 heads) shall be trained by the rule of 20 tokens a parameter on eight processors whose peak is $4 \cdot 10^{14}$ operations a second; your program reaches 40 % of it. (a) How many tokens? (b) How many operations, by 6ND? (c) How many days? (d) Then it writes 32 texts of 1,024 tokens at once, in bfloat16: how many gigabytes ($10^9$ bytes) hold keys and values?

# %% nbgrader={"grade": false, "grade_id": "ex13-7-training-run", "locked": false, "schema_version": 3, "solution": true, "task": false}
training_run = ...  # four numbers: tokens, operations, days, gigabytes
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
# ## 12 · Many processors, fewer bits
#
# **Data parallel:** every process holds the whole model and computes the gradient of *its rows*; the gradients are added over all processes, and everyone takes the same step. Since a gradient is a sum over rows, the step is that of the whole batch on one machine. So the test is strict: the same losses, step by step. `train_epoch` adds gradients and counts whenever it runs under `torchrun`; what a program must do is give each process its rows.

# %%
show_source(parallel.shard, parallel.losses)

# %%
environment = {**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}  # one GPU is no two
torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
program = ["-m", "course_lib.parallel", "--steps", "25"]
done = subprocess.run(
    torchrun + program, env=environment, capture_output=True, text=True, check=True
)
curves = {
    "one process": parallel.losses(25),
    "two processes": json.loads(done.stdout.strip().splitlines()[-1]),
}
ax = plots.lines(plots.axes(height=2.6), {"one process": (range(1, 26), curves["one process"])}, "step", "nats a character",
                 {"one process": "hidden"}, linewidth=5, alpha=0.4)  # fmt: skip
plots.lines(
    ax,
    {"two processes": (range(1, 26), curves["two processes"])},
    "step",
    "nats a character",
    {"two processes": "ink"},
)
ax.legend()
show(
    ax,
    "Loss against step for one process and for two; the thin line of two runs inside the broad line of one.",
    "Does sharing the rows change the training? No: two processes with half of the rows each have the loss curve of one.",
)
gap = max(abs(a - b) for a, b in zip(*curves.values(), strict=True))
claim(
    "Two processes with half of the rows each give the losses of one, step by step, up to rounding",
    gap < 1e-3 and curves["one process"][-1] < curves["one process"][0] - 0.5,
    largest_difference=gap,
)

# %% [markdown]
# When a model does not fit into one processor, it is cut. *Tensor parallel* cuts every matrix and adds partial products in each layer, which needs fast links; *pipeline parallel* gives each processor some layers and sends small batches through them like parts on a belt. *ZeRO* (in torch: FSDP) stays data parallel, but each process keeps only its share of moments, gradients and weights, and fetches the rest when a layer needs it: the 16 bytes a parameter are divided by the number of processes. (Rajbhandari et al. 2020 count 16 too, but other ones: weight and gradient in 16 bits, 2 + 2 bytes, and a copy of the weight and two moments in float32, 12.)
#
# **Mixed precision:** products of matrices run in bfloat16 (8 bits of exponent as float32, 8 of precision), which is several times as fast on a GPU and halves the activations; weights, their sums, softmax, norms and the loss stay in float32. `train_epoch(bf16=True)` does it with `torch.autocast`. A float16 has a small range and needs the loss scaled so that small gradients do not become 0; bfloat16 does not.

# %% [markdown]
# ## 13 · Common mistakes
#
# **Mistake 1 · `is_causal` with a cache.** One new query, five keys. torch's flag draws its triangle from the *top left*: query 0 sees key 0, and nothing else.

# %%
generator = torch.Generator().manual_seed(0)
q = torch.randn(1, 1, 1, 8, generator=generator)
k, v = torch.randn(2, 1, 1, 5, 8, generator=generator)
flagged = F.scaled_dot_product_attention(q, k, v, is_causal=True)
claim(
    "With the flag the new token sees the first key alone: its output is value 0",
    torch.allclose(flagged, v[:, :, :1]),
)
claim(
    "Repaired: the last query stands at the last key, so one query needs no mask. Ours aligns at the bottom right",
    torch.allclose(
        attention(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v), atol=1e-6
    ),
)

# %% [markdown]
# **Mistake 2 · every new token believes it is the first.** With a cache, the table of positions must be told how many tokens came before.

# %%
ids = torch.randint(65, (1, 6), generator=torch.Generator().manual_seed(2))
last = {}
with torch.no_grad():
    wanted = writer(ids)[:, -1]
    for name, offset in (("careless", 0), ("repaired", 5)):
        caches = writer.caches(batch_size=1)
        writer(ids[:, :5], caches)
        x = writer.embedding(ids[:, 5:], offset)
        last[name] = writer._logits(writer.encoder(x, causal=True, caches=caches)[:, -1])
claim(
    "Without the offset the logits are wrong, though no shape is",
    (last["careless"] - wanted).abs().max() > 0.01,
)
claim(
    "With it they are those of the whole text", torch.allclose(last["repaired"], wanted, atol=1e-5)
)

# %% [markdown]
# **Mistake 3 · comparing a loss per character with a loss per token.** Two models without any context, on the same text: one knows how often each character stands in it, one how often each of section 10's BPE tokens does. Which is better?

# %%
pieces = torch.tensor(bpe.encode(corpus[cut:]).ids)
per_character = metrics.bits(language.unigram_entropy(valid_ids))
per_token = metrics.bits(language.unigram_entropy(pieces))
repaired = per_token * len(pieces) / len(valid_ids)
claim(
    "Per token the BPE model looks worse by more than 2 bits",
    per_token > per_character + 2,
    token=per_token,
    character=per_character,
)
claim(
    "Repaired, by dividing all bits by all characters, it is better by more than half a bit",
    repaired < per_character - 0.5,
    character=[repaired, per_character],
)

# %% [markdown]
# Perplexities per token of two models with different tokenizers cannot be compared either: the exponent is per token.
#
# **Mistake 4 · temperature after the softmax.** Probabilities divided by $\tau$ and normalised again are what they were. And a second softmax over probabilities, which all lie between 0 and 1, makes everything nearly equal.

# %%
logits = torch.tensor([4.0, 2.0, 1.0, 0.0])
p = logits.softmax(-1)
divided, twice = (p / 0.5) / (p / 0.5).sum(), (p / 0.5).softmax(-1)
right = (logits / 0.5).softmax(-1)
table(
    ["", "A", "B", "C", "D"],
    [
        ["logits / 0.5, then softmax", *right.tolist()],
        ["probabilities / 0.5, normalised", *divided.tolist()],
        ["softmax of probabilities / 0.5", *twice.tolist()],
    ],
)
claim(
    "Dividing probabilities changes nothing; a second softmax flattens where sharpening was wanted",
    torch.allclose(divided, p) and twice.max() < p.max() < right.max(),
)
claim(
    "Repaired in probabilities: the power 1 / tau, then normalise",
    torch.allclose(p ** (1 / 0.5) / (p ** (1 / 0.5)).sum(), right),
)

# %% [markdown]
# **Mistake 5 · top-p without the token that crosses p.** Where the model is sure, nothing is left, and softmax over nothing is not a number.

# %%
ordered, order = p.sort(descending=True)
careless = logits.masked_fill((ordered.cumsum(0) > 0.8)[order.argsort()], -torch.inf).softmax(-1)
claim(
    "The first token alone has more than 0.8; cut there, the distribution is nan",
    bool(careless.isnan().all()),
    p=p,
)
claim(
    "Repaired: what comes *before* a token must stay below p, so one token always stays",
    filter_logits(logits, top_p=0.8).isfinite().sum() == 1,
)

# %% [markdown]
# **Mistake 6 · writing with dropout on.** A model fresh from training is in training mode: each call drops others of its units, and even greedy decoding becomes a game of chance. `generate` switches to evaluation and back; `forward` does what you say.

# %%
set_seed(0)
dropping = GPT(GPTConfig(vocab_size=65, max_len=32, d_model=48, num_layers=2, nhead=4, dropout=0.2))
with torch.no_grad():
    twice = [dropping(ids) for _ in range(2)]
    with evaluating(dropping):
        evaluated = [dropping(ids) for _ in range(2)]
claim(
    "In training mode the same text gets two different answers",
    (twice[0] - twice[1]).abs().max() > 0.01,
)
claim("Repaired: in evaluation mode it gets one", torch.equal(*evaluated))

# %% [markdown]
# **Mistake 7 · testing on text that was read.** Cut a text into overlapping windows, shuffle them, keep a tenth for validation: nearly every character of it was in training too. The 6-gram, which can learn text by heart, shows what that hides.

# %%
read_before = metrics.bits(ngrams[6].nll(train_ids[: len(valid_ids)]).mean().item())
claim(
    "On text that it has read the 6-gram seems better by more than half a bit than on new text",
    read_before < ngram_bits[6] - 0.5,
    read=read_before,
    new=ngram_bits[6],
)
claim(
    "Repaired, on new text, the 6-gram is no better than the 5-gram; on read text it seems far better",
    ngram_bits[6] > ngram_bits[5] - 0.05
    and read_before < metrics.bits(ngrams[5].nll(train_ids[: len(valid_ids)]).mean().item()) - 0.1,
)

# %% [markdown]
# The same happens to large models when the test's questions stand on the web. Brown et al. (2020, section 4) searched their training text for overlaps with every test set.
#
# **Mistake 8 · the last column of a padded batch.** `logits[:, -1]` is the answer to padding in every row that is shorter than the longest.

# %%
rows = [valid_ids[:9].tolist(), valid_ids[20:24].tolist()]
padded = torch.zeros(2, 9, dtype=torch.int64)
for row, ids in zip(padded, rows, strict=True):
    row[: len(ids)] = torch.tensor(ids)
with torch.no_grad():
    alone = torch.cat([gpt.next_logits(torch.tensor([ids])) for ids in rows])
    logits = gpt(padded)
careless, repaired = logits[:, -1], logits[torch.arange(2), torch.tensor([8, 3])]
claim(
    "In the last column only the longest row has its own answer",
    torch.allclose(careless[0], alone[0], atol=1e-4) and (careless[1] - alone[1]).abs().max() > 0.1,
)
claim(
    "Repaired: each row's own last place. (Padding behind it changes nothing: the mask is causal.)",
    torch.allclose(repaired, alone, atol=1e-4),
)

# %% [markdown]
# ## Summary
#
# 1. A GPT is chapter 09's Pre-LN layers under a causal mask, a learned table of positions, and one table for input and output, whose gradient is the sum of both uses. It starts at a loss of $\ln V$, with branches divided by $\sqrt{2N}$.
# 2. Decoding is a choice of its own: the likeliest text repeats itself; temperature tilts, top-k cuts by number, top-p by probability.
# 3. Keys and values of the past never change, so they are kept: $2NBSD$ numbers. Proof: in parts equals at once. One text at a time is bound by memory bandwidth; batches share each byte.
# 4. A task is text before the answer. Loading others' weights is proven by equal logits, not by equal shapes.
# 5. Training takes $6ND$ operations, 16 bytes a parameter with Adam, and about 20 tokens a parameter for the best loss at a fixed cost; many processes with a share of the rows each make the same steps.
#
# ## Where next
#
# This is the end of the course. You began with a table of letter pairs and now hold, in code that you can read from top to bottom, the network that most of today's language models are. Three ways on: load GPT-2 and repeat sections 6 and 7 with it; read a current open model's code and name what differs (rotary positions, gated feed-forward networks, RMSNorm, shared keys and values: each changes a few lines here); or take a question that a claim of yours could answer, and run it with seeds. What a base model does *not* do, follow wishes, is taught afterwards, with examples and preferences (Ouyang et al. 2022): the same network, another loss.
#
# ## References
#
# - A. Radford, K. Narasimhan, T. Salimans, I. Sutskever, *Improving Language Understanding by Generative Pre-Training*, 2018: sections 3.1 (equations 1, 2), 3.2 (equations 3 to 5), 4.1 (sizes, initialisation).
# - A. Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019: sections 2 (tasks as text), 2.2 (byte-level BPE), 2.3 (the scaled initialisation, Pre-LN), table 2 (sizes).
# - T. Brown et al., *Language Models are Few-Shot Learners*, NeurIPS 2020, arXiv:2005.14165: section 2 and figure 2.1 (zero-, one-, few-shot), table 2.1 (sizes), section 4 (overlap), table D.1 (operations).
# - O. Press, L. Wolf, *Using the Output Embedding to Improve Language Models*, EACL 2017, arXiv:1608.05859: section 3 (the two updates of a tied table).
# - A. Vaswani et al., *Attention Is All You Need*, NeurIPS 2017, arXiv:1706.03762: sections 3.1 and 3.4. N. Shazeer, *Fast Transformer Decoding*, 2019, arXiv:1911.02150: multi-query attention. J. Ainslie et al., *GQA*, 2023, arXiv:2305.13245: grouped queries.
# - A. Karpathy, *nanoGPT*, 2022, https://github.com/karpathy/nanoGPT. D. So et al., *Primer*, 2021, arXiv:2109.08668: squared ReLU. C. Raffel et al., *Exploring the Limits of Transfer Learning* (T5), JMLR 2020, arXiv:1910.10683.
# - A. Fan, M. Lewis, Y. Dauphin, *Hierarchical Neural Story Generation*, ACL 2018, arXiv:1805.04833: section 5 (top-k). A. Holtzman et al., *The Curious Case of Neural Text Degeneration*, ICLR 2020, arXiv:1904.09751: sections 3.1 (top-p), 4 and 5 (likelihood and repetition).
# - R. Pope et al., *Efficiently Scaling Transformer Inference*, 2022, arXiv:2211.05102: section 2 (memory and operations of decoding).
# - J. Kaplan et al., *Scaling Laws for Neural Language Models*, 2020, arXiv:2001.08361: section 2.1 (6ND), equation 1.5. J. Hoffmann et al., *Training Compute-Optimal Large Language Models*, 2022, arXiv:2203.15556: table 3 and section 3 (20 tokens a parameter).
# - D. Hendrycks, K. Gimpel, *Gaussian Error Linear Units*, 2016, arXiv:1606.08415: section 2. S. Rajbhandari et al., *ZeRO*, 2020, arXiv:1910.02054: section 3 (what its 16 bytes hold). P. Micikevicius et al., *Mixed Precision Training*, ICLR 2018, arXiv:1710.03740. L. Ouyang et al., *Training Language Models to Follow Instructions*, 2022, arXiv:2203.02155.
# - Videos: *GPT Explained!*, https://www.youtube.com/watch?v=9ebPNEHRwXU; *OpenAI GPT-3: Good At Almost Everything!*, https://www.youtube.com/watch?v=_x9AwxfjxvE.
