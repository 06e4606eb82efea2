# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 240
#     needs: "chapters 02 (BLEU, padding), 03 and 05"
# ---

# %% [markdown]
# # 06 · Sequence to sequence
#
# Below, a translator is trained on 4,000 sentence pairs of a small invented language. Then it is examined on 500 new
# sentences: word by word, always shown the reference so far, it has to predict the next word. It is right about half the time.
# **How many of the 500 sentences will it translate without a mistake?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("encoder_decoder")

# %% tags=["setup", "fold"]
# @title Imports
import math
from collections import Counter

import torch
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import generate, metrics, seq2seq, text, translation
from course_lib.attention import AdditiveAttention, attention_weights
from course_lib.datasets import synthetic
from course_lib.exercises import ch06
from course_lib.experiments import toy_translation
from course_lib.notebook import claim, diagrams, ledger, predict, show_source, table
from course_lib.notebook.figures import ch06 as figures
from course_lib.train import set_seed, train_epoch

set_seed(0)

# %%
guess_whole = predict("the sentences of 500 that are translated without a mistake", ...)

# %%
set_seed(0)
task = toy_translation.toy_task(pairs=4000, test=500, seed=0)
vector_model = toy_translation.translator(task, attention=False, width=64)
toy_translation.train_translator(vector_model, task, epochs=4, batch_size=32)

forced, free, target_out, target_mask = toy_translation.both_ways(vector_model, task)
word_by_word = toy_translation.perplexity_and_accuracy(forced, target_out, target_mask)
whole = toy_translation.translation_scores(vector_model, task)

# %% tags=["fold", "reveal"]
# @title The examination: word by word, and whole sentences
guess_whole.compare(round(500 * whole["exact"]))
claim(
    "Shown the reference so far, the model predicts the next word right more than 4 times in 10.",
    word_by_word["accuracy"] > 0.4,
    accuracy=word_by_word["accuracy"],
    perplexity=word_by_word["perplexity"],
)
claim(
    "Decoding on its own, it translates fewer than 1 sentence in 50 without a mistake.",
    whole["exact"] < 0.02,
    fraction_without_a_mistake=whole["exact"],
    bleu=whole["bleu"],
)

# %% [markdown]
# Three things stand behind this gap, and each is a part of this chapter. The model *learned* with the right words in front of it, but
# must *write* from its own predictions. It takes the best word at each step, which need not give the best sentence. And everything
# it knows about the source went through one vector of 64 numbers. At the end of the chapter a model with fewer updates
# translates nearly every sentence right.

# %% [markdown]
# ## You will be able to
#
# 1. train an encoder-decoder with teacher forcing, and find the two bugs that ruin it silently (exercise 6.1);
# 2. let a trained decoder write, and say why its score differs from the training score (exercise 6.2);
# 3. search for a better sentence than the greedy one, and compare sentences of different lengths (exercises 6.3, 6.4);
# 4. compute additive attention with its mask, and read a map of weights against a true alignment (exercise 6.5);
# 5. show with measurements where one vector falls behind, and what a wider search does and does not buy (exercise 6.6).
#
# Letters for shapes: `B` sentences in a batch, `S` source tokens, `T` target tokens, `V` words of the target's vocabulary, `D`
# the width of a state, `E` the width of what the encoder hands over. Indices: $s$ runs over the source, $t$ over the
# target. Encoder states carry a bar, $\bar h_s$, decoder states none, $h_t$. (Bahdanau's paper and the docstrings of
# `course_lib.seq2seq` write $h$ for the encoder's states and $s$ for the decoder's.)

# %% [markdown]
# ## 1 · Two networks and one vector
#
# A tagger says one thing for each word it reads. A translation has its own length and its own order. Here is a pair of our
# toy languages, with its *alignment*: for each target word, the source word it came from.

# %% tags=["fold"]
# @title A sentence pair with its alignment
shown_pair = next(
    p for p in task.test_pairs if 8 <= len(p.source) <= 9 and "not" in p.source and len(p.target) > 7
)
table(["", *map(str, range(len(shown_pair.source)))], [["source", *shown_pair.source]])
table(
    ["target", *shown_pair.target],
    [
        ["aligned to", *map(str, shown_pair.alignment)],
        ["which is", *(shown_pair.source[i] for i in shown_pair.alignment)],
    ],
)
longer = Counter(len(p.target) - len(p.source) for p in task.test_pairs)
claim(
    "In more than 4 of 10 pairs source and target differ in length; in every pair the order changes: some word comes "
    "before one that it follows in the source.",
    longer[0] < 0.6 * len(task.test_pairs) and all(p.alignment != sorted(p.alignment) for p in task.test_pairs),
    **{f"pairs {n:+} words longer" if n else "pairs of equal length": longer[n] for n in sorted(longer)},
)

# %% [markdown]
# The answer of 2014 (Cho et al.; Sutskever et al.) is the picture at the beginning of this chapter: let one recurrent network read the whole source and another write the whole target.

# %% [markdown]
# The **encoder** turns source ids $x_1 \ldots x_S$ into states $\bar h_s$ of width $D$; $e(\cdot)$ is an embedding. Its last state
# is the **context vector** $c$, of width $E = D$, also called the *sentence embedding*:
#
# $$ \bar h_s = \mathrm{GRU}\big(e(x_s), \bar h_{s-1}\big), \qquad c = \bar h_S. $$
#
# The **decoder** is a language model (chapter 03) that starts from $c$. It reads the word before, $y_{t-1}$, with $y_0$ = `<sos>`:
#
# $$ h_0 = \tanh(c\, W_c^\top + b_c), \qquad h_t = \mathrm{GRU}\big(e(y_{t-1}), h_{t-1}\big). $$
#
# A state is not a word. The **output transformation** $D$ makes scores of words from it, the same $D$ at each step:
#
# $$ \mathrm{logits}_t = D(h_t), \qquad p(y_t \mid y_{<t}, x) = \mathrm{softmax}(\mathrm{logits}_t)[y_t]. $$
#
# with $y_{<t}$ the target's words before $y_t$. (Two habits collide here: $D$ the transformation, `D` the width. The first is always a function.)

# %%
show_source(seq2seq.Decoder.forward, seq2seq.OutputLayer.forward)

# %% [markdown]
# The state is a dict; `by_layer` puts it into the layer's own form (an LSTM has two parts), `by_row` back. `readout`, an `OutputLayer`, is $D$: one hidden layer, then the product with the target's own embeddings (*tied weights*).
# With `feed_context=True` the decoder sees $c$ at *every* step, as in Cho et al. (2014); with `False` only at the start, as in
# Sutskever et al. (2014). The shapes, on two sentences:

# %%
two = next(translation.translation_batches(*task.test, 2, shuffle=False))
with torch.no_grad():
    states, context = vector_model.encoder(two.source, two.source_real)
    start = vector_model.decoder.start(states, context)
    logits, _ = vector_model.decoder(two.target_in, start)

# %% tags=["fold"]
# @title The shapes on the way, and one step at a time
table(
    ["what", "shape", "is"],
    [
        ["source", tuple(two.source.shape), "(B, S)"],
        ["encoder states", tuple(states.shape), "(B, S, E)"],
        ["context vector", tuple(context.shape), "(B, E): all that the decoder gets"],
        ["first state of the decoder", tuple(start["h"].shape), "(B, N, D), N layers"],
        ["target_in", tuple(two.target_in.shape), "(B, T)"],
        ["logits", tuple(logits.shape), "(B, T, V)"],
    ],
)
state, one_by_one = start, []
for tokens in two.target_in.split(1, dim=1):  # (B, 1)
    step_logits, state = vector_model.step(tokens, state)
    one_by_one.append(step_logits)
claim(
    "Fed word by word, the decoder gives the logits that one call for all steps gives.",
    torch.allclose(torch.stack(one_by_one, dim=1), logits, atol=1e-5),
)

# %% [markdown]
# ### What is in the context vector?
#
# If $c$ is an embedding of the sentence, sentences with similar vectors should say similar things. We take the 500 test sentences
# and look up the nearest neighbour of each by Euclidean distance. Which of these will neighbours
# share most often: the time (*yesterday*), the subject, the object, or the verb?


# %%
with torch.no_grad():
    vectors = vector_model.encoder(*text.pad_batch(task.test[0]))[1]  # (500, E)
distances = torch.cdist(vectors, vectors).fill_diagonal_(math.inf)
nearest = distances.argmin(dim=1).tolist()

# %% tags=["fold"]
# @title What a sentence says: time, subject, verb, object
def facts(pair):
    """What a sentence says: its time, subject, object and verb."""
    beings = [word for word in pair.source if word in synthetic.BEINGS]
    end = pair.target[-2] if pair.target[-1] == "ne" else pair.target[-1]  # the verb, perhaps denied
    when = next((word for word in pair.source if word in synthetic.TIMES), "no time")
    return {"time": when, "subject": beings[0], "object": beings[1], "verb": end[:-2]}


said = [facts(p) for p in task.test_pairs]
shared = {fact: sum(said[i][fact] == said[j][fact] for i, j in enumerate(nearest)) / 500 for fact in said[0]}
by_chance = {
    fact: sum((n / 500) ** 2 for n in Counter(each[fact] for each in said).values()) for fact in said[0]
}

# %% tags=["nbval-ignore-output", "fold", "reveal"]
# @title Two sentences with their nearest neighbours
for i in (1, 2):
    print("sentence:", " ".join(task.test_pairs[i].source))
    print(" nearest:", " ".join(task.test_pairs[nearest[i]].source), "\n")
table(
    ["nearest neighbours share the", "fraction", "two sentences at random"],
    [[fact, shared[fact], by_chance[fact]] for fact in shared],
)

# %% [markdown]
# To see it, we project the 64 numbers onto a plane: the one in which the mean vectors of the four times lie furthest apart (the first two principal components *of the means*; the
# components of all vectors show other differences, too, such as the place).

# %%
times = ["no time", "today", "yesterday", "tomorrow"]
group = torch.tensor([times.index(each["time"]) for each in said])  # (500,)
means = torch.stack([vectors[group == k].mean(dim=0) for k in range(4)])  # (4, E)
_, _, directions = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)
flat = vectors @ directions[:2].T  # (500, 2)

# %%
figures.context_vectors(flat, group, times)

# %% tags=["fold"]
# @title Checked: the clouds, and what neighbours share
own_mean = torch.cdist(flat, means @ directions[:2].T).argmin(dim=1) == group
claim(
    "In this plane at least 8 of 10 vectors lie nearest to the mean of their own time.",
    own_mean.double().mean() > 0.8,
    fraction=own_mean.double().mean(),
)
claim(
    "Neighbours nearly always share the time, and much less often the object or the verb.",
    shared["time"] > 0.9 and max(shared["object"], shared["verb"]) < 0.65,
    **shared,
)

# %% [markdown]
# So the vector is an embedding of the sentence, and mostly of one part of it: what the decoder needs first, which here was also read last. Whether
# the rest is missing or only takes little room, distances cannot tell. The translations will.

# %% [markdown]
# ## 2 · Training: the teacher gives the previous word
#
# The loss is that of a language model, given the source:
#
# $$ L = -\frac{1}{M} \sum_{b,t} m_{bt} \ln p\big(y_{bt} \mid y_{b,<t},\, x_b\big), \qquad M = \sum_{b,t} m_{bt}, $$
#
# with $m_{bt}$ = 1 at a real target token (`<eos>` is one) and 0 at padding. The $y_{b,<t}$ are the *true* words, whatever the model would have said:
# **teacher forcing**. All $T$ steps can then be computed in one call, since the inputs are known beforehand. What goes in is what has to come out, one step later:

# %%
lengths = torch.tensor([len(ids) for ids in task.test[1]])
short_and_longer = lengths.sort(stable=True).indices[[0, 19]].tolist()
chosen = [[side[i] for i in short_and_longer] for side in task.test]
brief = next(translation.translation_batches(*chosen, 2, shuffle=False))
for title in ("target_in", "target_out"):  # what the decoder reads, what it must output
    for row in getattr(brief, title).tolist():
        words = [f"{task.target_vocab.itos[i]:>7}" for i in row]
        print(f"{title:>10}:", *words)

# %%
show_source(translation.translation_loss)

# %% [markdown]
# **Common mistake · the target is not shifted.** Somebody feeds `target_out` in place of `target_in`: at each step the decoder reads the very
# word that it must output. What will the loss be after 100 updates, and the translation?

# %%
set_seed(0)
generator = torch.Generator().manual_seed(0)
batches = translation.translation_batches(*task.train, 32, generator=generator)
hundred = list(batches)[:100]
copying = [b._replace(target_in=b.target_out) for b in hundred]  # the mistake
unshifted = toy_translation.translator(task, attention=False, width=64)
optimizer = torch.optim.Adam(unshifted.parameters(), 5e-3)
for part in (copying, copying[:20]):
    part = tqdm(part, leave=False)
    last = train_epoch(
        unshifted, part, translation.translation_loss, optimizer, clip_norm=1.0
    )

# %% tags=["fold", "reveal"]
# @title The loss at the end, and 100 translations
copies = translation.translate(unshifted, task.test[0][:100], max_new_tokens=15)
one_word = sum(len(set(h.tokens)) == 1 for h in copies)
claim(
    "The training loss falls below 0.05 nats: better than any honest model could be so early.",
    last["loss"] < 0.05,
    loss_in_nats=last["loss"],
)
claim(
    "Its translations never end: it has learned to output what it reads. Most of them are one word, again and again.",
    not any(h.finished for h in copies) and one_word > 50,
    one_word_of_100=one_word,
)

# %% [markdown]
# Too good a loss, too soon, is the symptom. The fix is one line, `target[:, :-1]` in and `target[:, 1:]` out; here `translation_batches` does it. The
# model of the first screen was trained so, and its loss is far from 0: it cannot copy.
#
# **Common mistake · the loss counts padding.** The same model, the same sentences, padded a little further:


# %%
def careless(logits, wanted, mask):
    """Mean over every cell of the rectangle."""
    return F.cross_entropy(logits.flatten(0, 1), wanted.flatten())


# %% tags=["fold", "reveal"]
# @title The perplexity of 50 sentences, padded further
def by_padding(loss):
    """Perplexity of 50 sentences, padded by 0, 5 and 20 more columns."""
    fifty = next(translation.translation_batches(*[side[:50] for side in task.test], 50, shuffle=False))
    perplexities = []
    for extra in (0, 5, 20):
        inputs, wanted = (F.pad(t, (0, extra), value=text.PAD) for t in (fifty.target_in, fifty.target_out))
        with torch.no_grad():
            padded_logits = vector_model(fifty.source, fifty.source_real, inputs)
        mask = F.pad(fifty.target_real, (0, extra), value=False)
        perplexities.append(loss(padded_logits, wanted, mask).exp().item())
    return perplexities


careless_perplexity, right_perplexity = by_padding(careless), by_padding(metrics.cross_entropy)
claim(
    "Counted over all cells, 'perplexity' changes more than threefold with the padding; counted over real tokens it does "
    "not change.",
    careless_perplexity[2] > 3 * careless_perplexity[0] and max(right_perplexity) - min(right_perplexity) < 1e-3,
    **{"over all cells, padded by 0, 5, 20": careless_perplexity, "over real tokens": right_perplexity},
)

# %% [markdown]
# (A model that was *trained* on such a loss learns to predict padding after padding, which is easy, and then looks better than it is.)
#
# **Common mistake · `<eos>` is not in the target.** Then no one ever teaches the decoder to stop.

# %%
set_seed(0)
endless = toy_translation.translator(task, attention=False, width=64)
optimizer = torch.optim.Adam(endless.parameters(), 5e-3)
without_eos = [  # the mistake: <eos> is not counted
    b._replace(target_real=b.target_real & (b.target_out != text.EOS)) for b in hundred
]
batches = tqdm(without_eos, leave=False)
_ = train_epoch(
    endless, batches, translation.translation_loss, optimizer, clip_norm=1.0
)

# %% tags=["fold", "reveal"]
# @title How many of 100 translations end?
ended = {
    name: sum(h.finished for h in translation.translate(each, task.test[0][:100], max_new_tokens=30))
    for name, each in {"without": endless, "with": vector_model}.items()
}
claim(
    "Trained without `<eos>`, not one of 100 translations ends; trained with it, nearly all do.",
    ended["without"] == 0 and ended["with"] > 90,
    **{"ended, trained without": ended["without"], "trained with": ended["with"]},
)

# %% [markdown]
# ### Exercise 6.1 · Find the bugs: a loss that looks fine
#
# Difficulty ●●○○○ · 20 minutes · needs section 2
#
# The loss below runs, falls, and ends near zero. It has two bugs.


# %%
def buggy_loss(model, source, mask, target, pad):
    """model(source, mask, inputs) -> (B, T, V); target (B, T + 1) with <sos>."""
    logits = model(source, mask, target)
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


# %% [markdown]
# Write the right one. `target` begins with `<sos>` and holds `<eos>` and padding; cut it yourself.


# %% nbgrader={"grade": false, "grade_id": "ex06-1-shifted-loss", "locked": false, "schema_version": 3, "solution": true, "task": false}
def shifted_loss(model, source, mask, target, pad):
    """Mean cross-entropy of a translator on a batch.

    Args:
        model: model(source, mask, inputs) -> logits (B, T, V), for inputs (B, T) of any length T.
        source: (B, S) ids.
        mask: (B, S) bool, True = a real token of the source.
        target: (B, T + 1) ids: <sos>, the words, <eos>, then padding.
        pad: the id of the padding.

    Returns:
        Tensor (): nats per real token that the decoder has to say, <eos> included.
    """
    ### BEGIN SOLUTION
    logits = model(source, mask, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-1-shifted-loss-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.shifted_loss(shifted_loss)

# %% [markdown]
# ## 3 · Writing: greedy decoding
#
# When the model translates there is no teacher. It has to feed itself:
#
# $$ \hat y_t = \arg\max_y\; p(y \mid \hat y_{<t}, x), \qquad t = 1, 2, \ldots \text{ until } \hat y_t = \langle\text{eos}\rangle. $$
#
# This is *greedy decoding*: the best word now, whatever it leads to. Steps must be taken one after the other, because the input of step $t$ is the
# output of step $t - 1$. `greedy` does it for a batch: rows that have ended are fed padding and ignored. You write it in **exercise 6.2**.

# %% tags=["nbval-ignore-output"]
hypotheses = translation.translate(vector_model, task.test[0][:3])
for p, hypothesis in zip(task.test_pairs[:3], hypotheses, strict=True):
    print("source   ", " ".join(p.source))
    print("reference", " ".join(p.target))
    said_words = text.denumericalize(hypothesis.tokens, task.target_vocab)
    print("greedy   ", " ".join(said_words), "\n")

# %% [markdown]
# The time is right, nouns and adjectives agree, the order is that of the grammar: the decoder has become a good language model of the
# target. *Who* and *what* are invented, and even the verb's ending often contradicts the time. A fluent translation can be a wrong one; only a comparison with the source shows it.

# %% [markdown]
# ### Exercise 6.2 · Greedy decoding for a batch
#
# Difficulty ●●●○○ · 25 minutes · needs section 3
#
# `step` stands for any decoder: it takes the last tokens and a state, and returns logits and the next state.


# %% nbgrader={"grade": false, "grade_id": "ex06-2-greedy-decode", "locked": false, "schema_version": 3, "solution": true, "task": false}
def greedy_decode(step, state, sos, eos, max_length):
    """Say the most likely token, feed it back, until every row has said <eos>.

    Args:
        step: step(tokens (B,), state) -> (logits (B, V), state).
        state: the decoder's first state, with len(state) = B.
        sos: id of the first input of every row.
        eos: id at which a row ends.
        max_length: a row has at most so many tokens.

    Returns:
        list of B lists of ids, each without <sos>, and without <eos> and what follows it.
    """
    ### BEGIN SOLUTION
    tokens = torch.full((len(state),), sos)
    done, rows = torch.zeros(len(state), dtype=torch.bool), [[] for _ in state]
    for _ in range(max_length):
        logits, state = step(tokens, state)
        tokens = logits.argmax(-1)
        done = done | (tokens == eos)
        for row, token, stop in zip(rows, tokens.tolist(), done.tolist(), strict=True):
            if not stop:
                row.append(token)
        if done.all():
            break
    return rows
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-2-greedy-decode-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch06.greedy_decode(greedy_decode)

# %% [markdown]
# ## 4 · Exposure bias
#
# In training, each word is predicted after a *true* beginning. In use, after the model's *own*, with whatever mistakes are in it, and
# such beginnings it has never seen. This mismatch is called **exposure bias** (Ranzato et al. 2016). `scheduled_sampling` gives the logits when the model feeds itself:

# %%
show_source(translation.scheduled_sampling)

# %% [markdown]
# The opening experiment measured the model's perplexity on the test targets, fed the reference. What is it when the model is fed its own
# words, and asked for the probability of the reference at each position: the same, half as much again, or several times as much?

# %%
guess_factor = predict("the factor by which the perplexity grows", ...)

# %% tags=["reveal"]
alone = toy_translation.perplexity_and_accuracy(free, target_out, target_mask)
guess_factor.compare(round(alone["perplexity"] / word_by_word["perplexity"], 1))

# %% tags=["fold", "reveal"]
# @title Checked: perplexity and accuracy, fed its own words
claim(
    "Fed its own words, the same model on the same sentences has more than twice the perplexity, and a lower accuracy, "
    "position by position.",
    alone["perplexity"] > 2 * word_by_word["perplexity"] and alone["accuracy"] < word_by_word["accuracy"],
    perplexity_fed_the_reference=word_by_word["perplexity"],
    fed_its_own_words=alone["perplexity"],
    accuracy_fed_the_reference=word_by_word["accuracy"],
    accuracy_fed_its_own_words=alone["accuracy"],
)

# %% [markdown]
# **Common mistake · comparing the two.** One paper reports the first number, another the second: the smaller is not the better model. Say which you
# report. Validation loss is nearly always teacher-forced; it can fall while translations get worse, so look at both.
#
# The second number has a weakness, too. If the model leaves out a word, every word after it is compared with the wrong one. So what happens *after a mistake*? Up to
# the first one, both ways are fed the same words. We look at the positions after it.

# %%
show_source(toy_translation.after_first_mistake)

# %%
after_forced, after_free = toy_translation.after_first_mistake(
    forced, free, target_out, target_mask
)
figures.after_a_mistake(after_forced, after_free)

# %% tags=["fold"]
# @title Checked: four to six steps after the first mistake
claim(
    "Four to six steps after the first mistake, the model that is fed its own words is right less often.",
    all(b < a for a, b in zip(after_forced[3:], after_free[3:], strict=True)),
    fed_the_reference=after_forced[3:],
    fed_its_own_words=after_free[3:],
)

# %% [markdown]
# ### Should it train on its own words, then?
#
# It can: feed the model's own word with probability $1 - p$ in training, too, and let $p$ fall from 1 to 0. That is **scheduled sampling** (Bengio et al. 2015). At
# $p = 0$ throughout it never sees a true word. `translation_loss(..., teacher_forcing=p)` does it. Such a training can no longer compute all steps at once.
#
# Five models below, each trained for the same number of updates. Is training on true words worse, better, or the same?

# %% tags=["fold", "reveal"]
# @title Five recorded translators
def with_range(experiment, variant, metric):
    """Mean over seeds, and the range where the seeds differ."""
    average, low, high, _ = ledger.summary(experiment, variant, metric)
    if metric == "parameters":
        return f"{average:,.0f}"
    return f"{average:.3g}" + (f" ({low:.3g} to {high:.3g})" if f"{low:.3g}" != f"{high:.3g}" else "")


def average(variant, metric):
    """Mean over the recorded seeds."""
    return ledger.summary("toy-translation", variant, metric)[0]


def growth(variant):
    """Perplexity fed its own words over perplexity fed the true ones."""
    return average(variant, "free_perplexity") / average(variant, "forced_perplexity")


FED = {
    "forced_perplexity": "perplexity, fed true words",
    "free_perplexity": "fed its own",
    "forced_accuracy": "accuracy, fed true words",
    "free_accuracy": "fed its own",
    "exact": "perfect translations (fraction)",
    "bleu": "BLEU",
}
FIVE = ["no attention", "no attention, own words", "no attention, scheduled", "attention", "attention, own words"]
table(
    ["trained translator", *FED.values()],
    [[variant, *(with_range("toy-translation", variant, metric) for metric in FED)] for variant in FIVE],
)
claim(
    "Without attention: trained on true words, the perplexity rises by more than a third when the model is fed its own; "
    "trained on its own, by less than a tenth.",
    growth("no attention") > 4 / 3 and growth("no attention, own words") < 1.1,
    factor_trained_on_true_words=growth("no attention"),
    own_words=growth("no attention, own words"),
    scheduled=growth("no attention, scheduled"),
)

# %% tags=["reveal"]
figures.fed_in_training()

# %% tags=["fold", "reveal"]
# @title Checked: which training ends higher, in which seeds
final = {
    "true words": ledger.values("toy-translation", "no attention", "bleu"),
    "scheduled": ledger.values("toy-translation", "no attention, scheduled", "bleu"),
    "own words": ledger.values("toy-translation", "no attention, own words", "bleu"),
}
claim(
    "Without attention, own words end higher on average, but not in every seed; scheduled sampling is last in each.",
    sum(final["own words"]) > sum(final["true words"])
    and any(own < true for own, true in zip(final["own words"], final["true words"], strict=True))
    and all(s < min(t, o) for t, s, o in zip(*final.values(), strict=True)),
    **{f"BLEU, {name}": values for name, values in final.items()},
)
early = {
    variant: [run[1] for run in ledger.curves("toy-translation", variant, "bleu")]  # after two epochs
    for variant in ("attention", "attention, own words")
}
claim(
    "With attention, true words learn faster: after two epochs they are ahead in every seed.",
    min(early["attention"]) > max(early["attention, own words"]),
    **{"BLEU, true words": early["attention"], "BLEU, own words": early["attention, own words"]},
)

# %% [markdown]
# So exposure bias is real, and training on own words removes most of it: the two perplexities come together. Whether the translations get better is another question. With one vector the answer depends on the seed; with attention true words
# teach faster, and in the end both make no mistakes. Mind two things before you carry this over. This language is kind: each source has exactly one translation, and every place in it one right word, so the
# truth stays aligned after a slip. In natural text it does not, and a model fed its own words is scored against words that no longer fit (Huszár 2015 shows that scheduled sampling optimises no consistent goal). And own words cost time: the steps of training cannot be computed at once.
# Nearly all large models are trained on true words.

# %% [markdown]
# ## 5 · Searching: beams
#
# The best first word need not begin the best sentence. Here is a whole model in a picture: two words, six sentences.

# %%
diagrams.show("beam_tree")

# %% [markdown]
# What we want is $\arg\max_Y p(Y \mid x)$, over *all* sentences $Y$. There are about $V^T$ of them. **Beam search** keeps the $k$ best beginnings:
#
# 1. extend each open beginning by each word; its score is the *sum of log-probabilities* of its words;
# 2. of all these extensions *together*, keep the best, as many as there are places;
# 3. an extension by `<eos>` is finished: it is set aside and keeps its place. Stop when no place is open.
#
# With $k = 1$ this is greedy decoding. The library's search takes any model with `start` and `step`; the smallest such model is a table.


# %% tags=["fold"]
# @title A language written down as a table of probabilities
class TableModel:
    """A language written down: for each beginning, the probabilities of the next word."""

    def __init__(self, tables):
        self.words = [*text.SPECIALS, *sorted({word for row in tables.values() for word in row} - {"<eos>"})]
        self.tables = tables
        self.vocab_size, self.max_len = len(self.words), None

    def start(self, source, source_real=None):
        return {"so_far": torch.zeros(len(source), 0, dtype=torch.int64)}

    def step(self, tokens, state):
        so_far = torch.cat([state["so_far"], tokens], dim=1)  # (B, words so far)
        rows = [self.tables.get(self.say(row[1:]), {"<eos>": 1.0}) for row in so_far.tolist()]
        p = torch.tensor([[row.get(word, 0.0) for word in self.words] for row in rows])
        return p.log(), {"so_far": so_far}

    def say(self, ids):
        return " ".join(self.words[i] for i in ids)


nothing = torch.zeros(1, 1, dtype=torch.int64)  # a table asks for no source

# %%
tree = TableModel(
    {
        "": {"the": 0.6, "a": 0.4},
        "the": {"cat": 0.4, "dog": 0.35, "cow": 0.25},
        "a": {"cat": 0.9, "dog": 0.06, "cow": 0.04},
    }
)
for k in (1, 2, 6):
    best = generate.beam_search(tree, nothing, beam_size=k)[0]
    print(f"beam of {k}: {tree.say(best.tokens)}, p = {math.exp(best.score):.3f}")

# %% tags=["fold"]
# @title Checked: the best of six sentences
every = {f"{a} {b}": p * q for a, p in tree.tables[""].items() for b, q in tree.tables[a].items()}
by_beam = {k: tree.say(generate.beam_search(tree, nothing, beam_size=k)[0].tokens) for k in (1, 2)}
claim(
    "Greedy search misses the best of the six sentences; a beam of two finds it.",
    by_beam[1] != max(every, key=every.get) and by_beam[2] == max(every, key=every.get),
)

# %% [markdown]
# Step through the search with each size of the beam; before each second click, say which beginnings it will keep. **At which step does greedy search lose the best sentence, and how much log-probability was missing to keep it?**

# %% tags=["fold"]
# @title Interactive: beam search, step by step
from course_lib.notebook import interactive

interactive.beam_search(tree, tree.words, nothing, sizes=(1, 2, 3, 6))

# %% [markdown]
# A beam is no guarantee: it may drop the beginning of the best sentence one step too early. Only a beam that drops nothing is sure.
#
# ### Every additional word costs
#
# Each further word multiplies the probability by a number below 1. So a model that is asked for its *most probable* sentence tends to prefer short ones. What does
# a wide beam find in this little language, in which four times out of five a three-word sentence is said?

# %%
chatty = TableModel(
    {
        "": {"ok": 0.2, "the": 0.8},
        "the": {"cat": 0.4, "dog": 0.3, "cow": 0.3},
        "the cat": {"sleeps": 0.5, "eats": 0.5},
        "the dog": {"sleeps": 0.5, "eats": 0.5},
        "the cow": {"sleeps": 0.5, "eats": 0.5},
    }
)
all_seven = generate.beam_hypotheses(chatty, nothing, beam_size=7)[0]
plain, penalised = (
    generate.beam_search(chatty, nothing, beam_size=7, length_penalty=alpha)[0]
    for alpha in (0.0, 1.0)
)

# %% tags=["fold", "reveal"]
# @title The four most probable sentences
table(
    ["sentence", "tokens with `<eos>`", "probability", "log P", "log P / lp, alpha = 1"],
    [
        [chatty.say(h.tokens), n, math.exp(h.score), h.score, h.score / generate.length_factor(n, 1.0)]
        for h in all_seven[:4]
        for n in [len(h.tokens) + 1]
    ],
)
three_words = sum(math.exp(h.score) for h in all_seven if len(h.tokens) == 3)
claim(
    "The single most probable sentence is the short 'ok', though 80 % of what is said has three words; with the length "
    "penalty a sentence of three words wins.",
    chatty.say(plain.tokens) == "ok" and abs(three_words - 0.8) < 1e-5 and len(penalised.tokens) == 3,
)

# %% [markdown]
# **Common mistake · comparing finished sentences by $\log P$ alone.** That is the failure above; the fix is a *length penalty* (Wu et al. 2016, equation 14):
#
# $$ \mathrm{score}(Y) = \frac{\ln p(Y \mid x)}{\mathrm{lp}(Y)}, \qquad \mathrm{lp}(Y) = \Big(\frac{5 + |Y|}{6}\Big)^{\alpha}, $$
#
# with $|Y|$ the number of tokens, `<eos>` included here. $\alpha = 0$ turns it off; 0.6 to 1 is usual, chosen on validation data. Other systems divide by $|Y|^\alpha$, or add a
# bonus for each word. It is a patch: the disease is that the *most probable* sentence is not the *typical* one. In large translation
# models the most probable output is often the empty sentence (Stahlberg & Byrne 2019), and wider beams then make translations *worse*.
#
# On our translator, with the first 200 test sentences. Does a wider beam find more probable sentences? Longer or shorter ones? Does BLEU rise?

# %%
searches = {
    "greedy": (1, 0.0),
    "beam 5": (5, 0.0),
    "beam 10": (10, 0.0),
    "beam 10, alpha 1": (10, 1.0),
}
sample, references = task.test[0][:200], [[target] for target in task.test[1][:200]]
searched = {
    name: translation.translate(
        vector_model, sample, generate.beam_search,
        beam_size=k, length_penalty=alpha, max_new_tokens=30,
    )
    for name, (k, alpha) in tqdm(searches.items(), leave=False)
}

# %% tags=["fold", "reveal"]
# @title What a wider search finds: log P, length, BLEU
log_probs = {
    name: [h.score * generate.length_factor(len(h.tokens) + 1, searches[name][1]) for h in each]
    for name, each in searched.items()
}
mean_words = {name: sum(len(h.tokens) for h in each) / len(each) for name, each in searched.items()}
bleus = {name: metrics.bleu([h.tokens for h in each], references) for name, each in searched.items()}
table(
    ["search", "log P (mean)", "words (mean)", "BLEU"],
    [[name, sum(log_probs[name]) / len(sample), mean_words[name], bleus[name]] for name in searches],
)
gains = [b - a for a, b in zip(log_probs["greedy"], log_probs["beam 5"], strict=True)]
better, worse = sum(g > 1e-4 for g in gains) / len(sample), sum(g < -1e-4 for g in gains) / len(sample)
claim(
    "A beam of 5 finds a more probable sentence than greedy search for more than 1 source in 10, "
    "and a less probable one for more than 1 in 10, too.",
    better > 0.1 and worse > 0.1,
    fraction_better=better,
    worse=worse,
)
claim(
    "A beam of 10 writes shorter sentences than greedy search; the length penalty makes them longer again.",
    mean_words["beam 10"] < min(mean_words["greedy"], mean_words["beam 10, alpha 1"]),
)
claim("BLEU gains less than 3 points from any of these searches.", max(bleus.values()) - bleus["greedy"] < 3)

# %% [markdown]
# A wider beam keeps more beginnings, yet it may drop the one that greedy search would have followed to a good end: it is a heuristic, without the promise "wider is more probable". Wide beams do find more *short* sentences, here as in large systems. And search can only find what
# the model believes: this one does not know the nouns. The recorded models, trained longer, gain as little:

# %% tags=["fold"]
# @title The recorded models, greedy and with beams
BEAMS = {
    "bleu": "BLEU, greedy",
    "bleu_beam_2": "beam of 2",
    "bleu_beam_5": "beam of 5",
    "exact": "perfect translations (fraction), greedy",
    "exact_beam_2": "beam of 2",
    "exact_beam_5": "beam of 5",
}
THREE = ["no attention", "no attention, own words", "attention"]
table(
    ["trained translator", *BEAMS.values()],
    [[variant, *(with_range("toy-translation", variant, metric) for metric in BEAMS)] for variant in THREE],
)
gain = {variant: average(variant, "bleu_beam_5") - average(variant, "bleu") for variant in THREE}
claim(
    "On this task a beam of 5 changes BLEU by less than one point on average over the seeds, with every model.",
    max(abs(points) for points in gain.values()) < 1,
    **gain,
)

# %% [markdown]
# ### Exercise 6.3 · Derive: a search by hand
#
# Difficulty ●●●○○ · 20 minutes · needs section 5
#
# A decoder knows two words and `<eos>`. At the start: `a` 0.55, `b` 0.45. After `a`: `<eos>` 0.4, `a` 0.3, `b` 0.3. After `b`: `a` 0.9, `<eos>` 0.1.
# After `b a`: `<eos>` 0.8, `a` 0.1, `b` 0.1. After `a a` and after `a b`: `<eos>` 0.5, `a` 0.5.
#
# 1. `greedy`: the probability of the finished sentence that greedy search returns, its `<eos>` included;
# 2. `best`: the probability of the most probable finished sentence.
#
# Another search ends with two finished hypotheses: X with 2 tokens and $\ln p = -1.2$, Y with 6 tokens and $\ln p = -1.6$ (both counts include `<eos>`).
#
# 3. `score`: the score of Y under the length penalty above with $\alpha = 1$;
# 4. `alpha`: the $\alpha$ at which X and Y tie. (Above it Y wins.)
#
# Give three digits of each.

# %% nbgrader={"grade": false, "grade_id": "ex06-3-search-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
found = ...  # (greedy, best, score, alpha)
### BEGIN SOLUTION
found = (0.55 * 0.4, 0.45 * 0.9 * 0.8, -1.6 / (11 / 6), math.log(1.6 / 1.2) / math.log(11 / 7))
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-3-search-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.search_by_hand(found)

# %% [markdown]
# ### Exercise 6.4 · Beam search
#
# Difficulty ●●●●● · 45 minutes · needs section 5
#
# Here the model is a function of the tokens so far, and the search treats one sentence at a time.


# %% nbgrader={"grade": false, "grade_id": "ex06-4-beam-search", "locked": false, "schema_version": 3, "solution": true, "task": false}
def beam_search(step, eos, size, max_length, alpha):
    """Search with several hypotheses at once.

    Args:
        step: step(prefix) -> (V,) log-probabilities of the next token; a prefix is a tuple of ids,
            () at the start.
        eos: id at which a hypothesis is finished and is set aside.
        size: places in the beam. At each step the best extensions of all open hypotheses are kept,
            as many as there are places. A finished hypothesis keeps its place; the open ones share
            those that are left.
        max_length: a hypothesis has at most so many tokens, <eos> included.
        alpha: strength of the length penalty, ((5 + |Y|) / 6) ** alpha with |Y| tokens, <eos>
            included.

    Returns:
        tokens: tuple of ids, <eos> included: the finished hypothesis with the best score.
        score: float, its log P divided by the length penalty. If none is finished, both are those
            of the best open hypothesis.
    """

    ### BEGIN SOLUTION
    def score(hypothesis):
        tokens, log_p = hypothesis
        return log_p / ((5 + len(tokens)) / 6) ** alpha

    unfinished, finished = [((), 0.0)], []
    for _ in range(max_length):
        candidates = [
            ((*tokens, i), log_p + value)
            for tokens, log_p in unfinished
            for i, value in enumerate(step(tokens).tolist())
        ]
        kept = sorted(candidates, key=lambda candidate: -candidate[1])[: size - len(finished)]
        finished += [candidate for candidate in kept if candidate[0][-1] == eos]
        unfinished = [candidate for candidate in kept if candidate[0][-1] != eos]
        if not unfinished:
            break
    best = max(finished or unfinished, key=score)
    return best[0], score(best)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-4-beam-search-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch06.beam_search(beam_search)

# %% [markdown]
# ## 6 · The bottleneck
#
# Whatever the source, $c$ has the same 64 numbers (128 in the recorded runs). Six words fit in more easily than fourteen. The recorded models without attention
# saw each pair four times as often as ours and are twice as wide. Draw their BLEU against the length of the source before you run on.


# %%
guess_fall = predict("the fall in BLEU from 6 to 14 words (true words)", ...)

# %% tags=["reveal"]
figures.one_vector_by_length()

# %% tags=["fold", "reveal"]
# @title How far BLEU falls with length
WITHOUT = {"true words": "no attention", "own words": "no attention, own words"}
all_lengths = [ledger.values("toy-translation", variant, "length") for variant in WITHOUT.values()]
common = sorted(set.intersection(*(set(each) for runs in all_lengths for each in runs)))
falls = {
    name: [
        values[which.index(common[0])] - values[which.index(common[-1])]
        for which, values in zip(
            ledger.values("toy-translation", variant, "length"),
            ledger.values("toy-translation", variant, "bleu_by_length"),
            strict=True,
        )
    ]
    for name, variant in WITHOUT.items()
}
guess_fall.compare(round(sum(falls["true words"]) / len(falls["true words"])))
claim(
    "From the shortest to the longest sources BLEU falls by more than 15 points, for both models and in every seed.",
    min(min(fall) for fall in falls.values()) > 15,
    **{f"points, trained on {name}": fall for name, fall in falls.items()},
)
rises = {
    name: [run[-1] - run[-4] for run in ledger.curves("toy-translation", variant, "bleu")]
    for name, variant in WITHOUT.items()
}
claim(
    "Neither model has learned all that it can: in every seed BLEU is higher than three epochs before.",
    min(min(rise) for rise in rises.values()) > 0,
    **{f"points, trained on {name}": rise for name, rise in rises.items()},
)

# %% [markdown]
# So this is no proof of what a vector *can* hold. It shows what these models have learned to put into it. And is it the vector, or are long sentences hard in themselves? They have more phrases, hence more to get wrong, and the longest are rare in the training pairs.
# The fair question is whether the *same* measure falls for a model without the bottleneck.

# %% [markdown]
# ## 7 · Attention: look again at the source
#
# A human translator does not learn the sentence by heart and close the book. The idea of Bahdanau, Cho and Bengio (2015): keep *all* encoder states, and let the decoder
# choose, at each step, which of them it needs now.

# %%
diagrams.show("decoder_attention")

# %% [markdown]
# The decoder's last state $h_{t-1}$ asks (the *query*); each encoder state $\bar h_s$ is asked (a *key*). A small network with one hidden layer of width $A$
# scores how well the two fit, a softmax over $s$ makes weights of the scores, and the context of *this step* is the weighted sum:
#
# $$ a_{ts} = v^\top \tanh\big(W_q h_{t-1} + W_k \bar h_s\big), \qquad w_{ts} = \frac{\exp a_{ts}}{\sum_{s'} \exp a_{ts'}}, \qquad c_t = \sum_s w_{ts}\, \bar h_s, $$
#
# with $W_q$ ($A \times D$), $W_k$ ($A \times E$), $v$ ($A$). (Vectors are columns here, as in the paper; for the rows of the code $W_q h$ reads $h\, W_q^\top$.) The sum in the softmax runs over real tokens only. Then the decoder goes on as before, but reads $c_t$ beside the last word:
#
# $$ h_t = \mathrm{GRU}\big([e(y_{t-1}); c_t],\, h_{t-1}\big), \qquad \mathrm{logits}_t = D\big([h_t; e(y_{t-1}); c_t]\big). $$
#
# This is *additive* attention (equations 5 and 6 of the paper and its appendix A.1.2). The encoder now reads in both directions, so that $\bar h_s$ knows what stands before *and* after word $s$: a second difference from section 1, which in section 8 all models share.

# %%
show_source(AdditiveAttention.forward, attention_weights)

# %% [markdown]
# Nothing in it depends on $S$: sources of any length have a context of width $E$, and the same parameters. Now the run. The model with attention gets half as many updates: 250 where the
# first one had 500, on the same sentences. What fraction of its translations will be perfect?

# %%
set_seed(0)
attention_model = toy_translation.translator(task, attention=True, width=64)
toy_translation.train_translator(attention_model, task, epochs=2, batch_size=32)
with_attention = toy_translation.translation_scores(attention_model, task)

# %% tags=["fold", "reveal"]
# @title With attention, after half as many updates
live = toy_translation.scores_by_length(attention_model, task)
claim(
    "With attention, after half as many updates, more than 8 of 10 sentences are translated without a mistake; more than "
    "7 of 10 at every length.",
    with_attention["exact"] > 0.8 and min(live["exact_by_length"]) > 0.7,
    fraction=with_attention["exact"],
    bleu=with_attention["bleu"],
    fraction_without_attention=whole["exact"],
    lowest_fraction_at_any_length=min(live["exact_by_length"]),
)

# %% [markdown]
# The recorded models, all with the same number of updates:

# %%
figures.attention_by_length()

# %% tags=["fold"]
# @title Checked: perfect at every length
level = ledger.values("toy-translation", "attention", "exact_by_length")
claim(
    "With attention, at least 19 of 20 sentences of every length are perfect, in every seed.",
    min(min(values) for values in level) > 0.95,
    lowest_fraction_by_seed=[min(values) for values in level],
)
claim(
    "It needs fewer than half of the parameters of the model without.",
    average("attention", "parameters") < average("no attention", "parameters") / 2,
    attention=average("attention", "parameters"),
    no_attention=average("no attention", "parameters"),
)

# %% [markdown]
# ### Reading the weights
#
# The weights $w_{ts}$ form a matrix: a row for each target word, a column for each source word. For natural language nobody knows what it should be. Our grammar knows the true alignment of every sentence that it makes. The fraction of target words
# whose largest weight is on the true source word is the **alignment accuracy**. What is it for nouns, and what for determiners?

# %%
guess_determiners = predict("the alignment accuracy for determiners, from 0 to 1", ...)

# %%
def attention_map(i):
    """Weights (T, S + 1) of test sentence i; the column of <eos> is the last."""
    source, target = task.test[0][i], task.test[1][i]
    target_in = torch.tensor([[text.SOS, *target]])
    with torch.no_grad():
        weights = translation.alignment(
            attention_model.eval(), torch.tensor([source]), None, target_in
        )
    return weights[0, : len(target)]  # without the row that predicts <eos>


# %% tags=["fold"]
# @title A sentence with a negation and a time
example = next(
    i
    for i, p in enumerate(task.test_pairs)
    if 9 <= len(p.source) <= 10 and "not" in p.source and "yesterday" in p.source
)

# %% [markdown]
# One sentence: left, where the decoder looked while it was fed the true target; right, the alignment by which the sentence was made.

# %% tags=["reveal"]
figures.weights_and_truth(attention_map(example), task.test_pairs[example])

# %% [markdown]
# And over all 500 test sentences, by the kind of word:

# %% tags=["fold", "reveal"]
# @title The alignment accuracy, by the kind of word
KINDS = {
    "determiner": {form + gender for form in synthetic.DETERMINERS.values() for gender in "oa"},
    "noun": {*synthetic.BEINGS.values(), *synthetic.PLACES.values()},
    "adjective": {stem + gender for stem in synthetic.ADJECTIVES.values() for gender in "oa"},
}


def kind(word):
    """Which kind of target word this is."""
    return next((name for name, members in KINDS.items() if word in members), "other")


looked, second = {}, []
for i, p in enumerate(tqdm(task.test_pairs, leave=False)):
    at_most = attention_map(i).argmax(dim=1).tolist()
    for word, at, true in zip(p.target, at_most, p.alignment, strict=True):
        nouns = [s for s, w in enumerate(p.source) if s > true and w in synthetic.BEINGS | synthetic.PLACES]
        looked.setdefault(kind(word), []).append((at == true, bool(nouns) and at == nouns[0]))
    if p.target[1] == "tago":
        second.append(at_most[1] == p.alignment[1])
everything = toy_translation.alignment_scores(attention_model, task)
aligned = {name: sum(right for right, _ in pairs) / len(pairs) for name, pairs in looked.items()}
aligned["tago"] = sum(second) / len(second)
at_noun = sum(noun for _, noun in looked["determiner"]) / len(looked["determiner"])
guess_determiners.compare(round(aligned["determiner"], 2))
claim(
    "Over all words the alignment accuracy is far above that of a guess, and far from 1.",
    0.5 < everything["alignment"] < 0.95,
    alignment_accuracy=everything["alignment"],
    one_word_before=everything["one_before"],
    one_word_after=everything["one_after"],
)
claim(
    "For nouns it is above 0.8; for determiners it is lower, and so it is for 'tago', which always follows 'pasinta' or "
    "'venonta': there is nothing to look up.",
    aligned["noun"] > 0.8 and max(aligned["determiner"], aligned["tago"]) < aligned["noun"],
    **aligned,
)
claim(
    "The determiner's largest weight is on its noun more often than on the determiner itself.",
    at_noun > aligned["determiner"],
    fraction_at_the_noun=at_noun,
    at_the_determiner=aligned["determiner"],
)

# %% [markdown]
# Nearly every sentence is right, and yet the largest weight is often not on the word that is being translated. Four reasons, each worth remembering when you read such maps elsewhere:
#
# - **The word is not where the information is.** To choose *lo* or *la* the decoder needs the gender, which stands at the noun.
# - **Some words need no look.** *tago* follows from the word before it; the weights of its row mean nothing.
# - **States know their neighbours.** The bidirectional $\bar h_s$ of a noun also holds the determiner before it; looking one word further loses nothing.
# - **The time of asking.** $w_t$ is computed from $h_{t-1}$, before $y_t$ is known. In some models and for some plots the row that *explains* word $t$ is off by one: check it against a truth, as here.
#
# Weights show what was read, not why the word was chosen.

# %% [markdown]
# **Common mistake · attending to padding.** The encoder's states at padding are zeros here, but a zero key still gets a score, and softmax gives it weight. We hand the same trained model a short sentence, padded as in a batch with a
# long one, with and without its mask. **What will happen to the weights on the real words?**

# %%
short = min(range(500), key=lambda i: len(task.test[0][i]))
S, extra = len(task.test[0][short]), 30
padded = torch.tensor([task.test[0][short] + [text.PAD] * extra])
padded_real = text.length_mask([S], S + extra)
short_in = torch.tensor([[text.SOS, *task.test[1][short]]])


def weight_on_padding(mask):
    """Mean of the weight on padding; encoder and start are right."""
    with torch.no_grad():
        states, context = attention_model.encoder(padded, padded_real)
        start = attention_model.decoder.start(states, context, mask)
        logits, state = attention_model.decoder(short_in, start)
    return state["weights"][0, :, S:].sum(dim=1).mean().item(), logits


on_padding, logits_unmasked = weight_on_padding(None)  # the mistake: no mask
on_none, logits_masked = weight_on_padding(padded_real)

# %% tags=["fold", "reveal"]
# @title The weight on 30 paddings, without and with the mask
with torch.no_grad():
    logits_alone = attention_model(torch.tensor([task.test[0][short]]), None, short_in)
claim(
    "Without the mask a part of the weight lies on padding, and the logits depend on how far the batch is padded.",
    on_padding > 0.001 and not torch.allclose(logits_unmasked, logits_alone, atol=1e-3),
    weight_on_padding=on_padding,
    largest_change_of_a_logit=(logits_unmasked - logits_alone).abs().max(),
)
claim(
    "With the mask none does, and the sentence is translated as if it were alone.",
    on_none == 0 and torch.allclose(logits_masked, logits_alone, atol=1e-4),
)

# %% [markdown]
# No error was raised. *Pad further, and nothing may change*: the test of chapter 02 finds it.
#
# ### Exercise 6.5 · Additive attention from tensors
#
# Difficulty ●●●○○ · 25 minutes · needs section 7
#
# From matrices to weights, in three lines, without `AdditiveAttention`; no loop is needed.


# %% nbgrader={"grade": false, "grade_id": "ex06-5-additive-weights", "locked": false, "schema_version": 3, "solution": true, "task": false}
def additive_weights(query, keys, W_q, W_k, v, mask):
    """Weights of additive attention.

    Args:
        query: (B, Q), one state of the decoder in each row.
        keys: (B, S, E), the states of the encoder.
        W_q: (A, Q).
        W_k: (A, E).
        v: (A,).
        mask: (B, S) bool, True = may be attended to; every row has a True.

    Returns:
        (B, S), the softmax over s of v . tanh(W_q q + W_k k_s); 0 where the mask is False.
    """
    ### BEGIN SOLUTION
    scores = torch.tanh((query @ W_q.T).unsqueeze(1) + keys @ W_k.T) @ v
    return scores.masked_fill(~mask, -math.inf).softmax(dim=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-5-additive-weights-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch06.additive_weights(additive_weights)

# %% [markdown]
# ## 8 · Real sentences: Multi30k
#
# Multi30k (Elliott et al. 2016) holds 29,000 captions of photographs in German and English. Three models, one protocol: German to English, lower-cased, subword units by byte-pair encoding, ten epochs, the epoch with the lowest validation loss, scores on the test captions of 2016. All three encoders read in both directions. The LSTM and the GRU hand over **one vector**, the *mean* of the encoder's states, and the decoder sees it at every step. Every word has a short way into it, so it is a stronger rival than the last state of section 1. And they are the larger models: a GRU with the sizes of the third underfitted and scored lower on validation and test, so both were given more, by the validation loss.
#
# BLEU is sacrebleu's with greedy decoding, its signature below, and with a beam of 4 and $\alpha = 0.6$; perplexity and accuracy are teacher-forced, per subword. Recorded by `python -m course_lib.experiments multi30k-lstm` (and `-gru`, `-attention`).
# Where does attention lead by more, on short captions or on long ones? Does a beam help here?

# %% tags=["fold", "reveal"]
# @title Three recorded translators on Multi30k
MEASURES = {
    "parameters": "parameters",
    "perplexity": "perplexity per subword",
    "piece_accuracy": "accuracy per subword",
    "bleu": "BLEU, greedy",
    "bleu_beam": "BLEU, beam of 4",
}
table(
    ["model", *MEASURES.values(), "seeds"],
    [
        [name, *(with_range(*at, metric) for metric in MEASURES), ledger.summary(*at, "bleu")[3]]
        for name, at in figures.MULTI30K.items()
    ],
)
signature = ledger.values("multi30k-lstm", "LSTM", "signature")[0]
print("sacrebleu:", signature.partition("|version")[0])
greedy_bleu, beam_bleu, sizes = (
    [ledger.summary(*at, metric)[0] for at in figures.MULTI30K.values()]
    for metric in ("bleu", "bleu_beam", "parameters")
)
claim(
    "With half their parameters or less, attention is ahead of both models with one vector by more than 3 BLEU (one seed each).",
    greedy_bleu[2] > max(greedy_bleu[:2]) + 3 and sizes[2] <= min(sizes[:2]) / 2,
    lead_in_bleu=greedy_bleu[2] - max(greedy_bleu[:2]),
)
claim(
    "A beam raises the BLEU of every model.",
    all(beam > greedy for beam, greedy in zip(beam_bleu, greedy_bleu, strict=True)),
    gain_in_bleu=[beam - greedy for beam, greedy in zip(beam_bleu, greedy_bleu, strict=True)],
)

# %% tags=["reveal"]
figures.multi30k_by_length()

# %% tags=["fold", "reveal"]
# @title Checked: the lead at every length
def by_group(experiment, variant):
    """BLEU of each group of lengths, mean over seeds."""
    runs = ledger.values(experiment, variant, "bleu_by_length")
    return [sum(values) / len(values) for values in zip(*runs, strict=True)]


groups = {name: by_group(*at) for name, at in figures.MULTI30K.items()}
lstm_groups, gru_groups, attending = groups.values()
claim(
    "Attention is ahead of both at every length; but even with it the longest captions score lower than the others: one "
    "vector was not the only difficulty.",
    all(best > max(others) for best, *others in zip(attending, lstm_groups, gru_groups, strict=True))
    and attending[-1] < sum(attending[:-1]) / len(attending[:-1]),
    lead_over_the_gru_by_length=[a - b for a, b in zip(attending, gru_groups, strict=True)],
    bleu_with_attention_by_length=attending,
)
keeps = {name: sum(values[-2:]) / sum(values[:2]) for name, values in groups.items()}
claim(
    "From the two groups of shortest captions to the two of longest it keeps a larger fraction of its BLEU than the GRU "
    "with one vector.",
    keeps["GRU + attention"] > keeps["GRU, one vector"] + 0.05,
    **{f"fraction kept, {name}": value for name, value in keeps.items()},
)

# %% [markdown]
# On the toy pair a beam bought nothing: one model was sure of every word, the other did not know the nouns. Captions can be said in many ways: even the best model here is unsure (its perplexity), and there is something to search for.

# %% [markdown]
# ### Exercise 6.6 · Explore and explain: what search and length can tell
#
# Difficulty ●●●○○ · 40 minutes · needs sections 5 to 7
#
# Change the cell below and run it again: beams from 1 to 20, $\alpha$ from 0 to 2; `vector_model` and `attention_model`. Then look at lengths: `toy_translation.scores_by_length(model, task)` gives
# exact matches and BLEU for each source length. Answer in words:
#
# (a) With a wider beam, what, if anything, *must* rise, what *often* rises, and what may well fall? (b) Why does a wide beam change almost nothing for `attention_model`? (c) You have a translator with
# BLEU 20 on a test set whose sentences are short, and 8 on one with long sentences. Name two different causes, and the one measurement that tells them apart.

# %% tags=["nbval-ignore-output"]
explored = {}
for k, alpha in [(1, 0.0), (5, 0.0), (5, 1.0)]:
    tried = translation.translate(
        vector_model,
        task.test[0][:100],
        generate.beam_search,
        beam_size=k,
        length_penalty=alpha,
        max_new_tokens=30,
    )
    bleu = metrics.bleu([h.tokens for h in tried], references[:100])
    explored[k, alpha] = [bleu, sum(len(h.tokens) for h in tried) / len(tried)]
table(
    ["beam", "alpha", "BLEU", "words"],
    [[k, alpha, *row] for (k, alpha), row in explored.items()],
)

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex06-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) Nothing *must* rise: only a beam that keeps every beginning finds the most probable sentence for certain. A wider beam often finds a more probable sentence, but it may also keep beginnings that push the one out which would
# have ended better; for `vector_model` both happen. BLEU may rise or fall: it measures agreement with a reference, not probability, and the most probable sentences tend to be short and general. With $\alpha > 0$ longer ones win, which helps if the hypotheses were too short and
# hurts if they were not.
#
# (b) It gives nearly all probability to one word at each step. Then the greedy sentence is already the most probable one, and there is nothing to search for. Search helps where a good model is unsure.
#
# (c) Either the state cannot hold a long sentence (the bottleneck), or errors pile up because each wrong word is fed back (exposure bias). Measure the accuracy by position, or the perplexity, with *true words fed*: if it falls with source length, already
# at the first words of the target, it is the bottleneck; if it stays and only the free-running score falls, it is the feeding back. (Other causes are possible: long sentences may be rare in training. Compare at equal frequency.)
# ### END SOLUTION

# %% [markdown]
# ## Summary
#
# 1. An encoder-decoder reads a source into states and writes a target of any length from them; with the last state alone, one vector $c$ carries everything, and $D$ turns the decoder's states into scores of words.
# 2. Training feeds the true word before (teacher forcing): shift the target by one, count real tokens only, and keep `<eos>` in it.
# 3. Writing feeds the model's own words, so its perplexity and accuracy are worse than teacher-forced ones; the two numbers must not be compared.
# 4. Beam search often finds more probable sentences than greedy search, and a length penalty makes sentences of different lengths comparable; neither adds knowledge.
# 5. Attention lets the decoder weigh all encoder states at each step: the bottleneck is gone, and the weights say what was read.
#
# ## Where next
#
# *Chapter 07* takes attention out of the recurrent network: other scores (the scaled dot product), keys apart from values, many heads, and sequences that attend to themselves. *Chapter 09* decodes a Transformer with the same `greedy` and `beam_search`.
#
# ## References
#
# - K. Cho et al., *Learning phrase representations using RNN encoder-decoder for statistical machine translation*, EMNLP 2014, arXiv:1406.1078: section 2.2 (encoder-decoder), section 2.3 (the GRU).
# - I. Sutskever, O. Vinyals, Q. Le, *Sequence to sequence learning with neural networks*, NIPS 2014, arXiv:1409.3215: section 2 (model), 3.2 (beam search), 3.3 (reversed source).
# - D. Bahdanau, K. Cho, Y. Bengio, *Neural machine translation by jointly learning to align and translate*, ICLR 2015, arXiv:1409.0473: equations 4 to 6; appendix A.1.2 (the scoring network); figure 2 (BLEU by length); figure 3 (alignments).
# - S. Bengio, O. Vinyals, N. Jaitly, N. Shazeer, *Scheduled sampling for sequence prediction with recurrent neural networks*, NIPS 2015, arXiv:1506.03099: section 2.4.
# - M. Ranzato, S. Chopra, M. Auli, W. Zaremba, *Sequence level training with recurrent neural networks*, ICLR 2016, arXiv:1511.06732: section 1 names exposure bias.
# - Y. Wu et al., *Google's neural machine translation system*, 2016, arXiv:1609.08144: equation 14 (length penalty).
# - F. Stahlberg, B. Byrne, *On NMT search errors and model errors: cat got your tongue?*, EMNLP 2019, arXiv:1908.10090: the most probable translation is often empty.
# - D. Elliott, S. Frank, K. Sima'an, L. Specia, *Multi30K: multilingual English-German image descriptions*, Workshop on Vision and Language 2016, arXiv:1605.00459.
# - F. Huszár, *How (not) to train your generative model: scheduled sampling, likelihood, adversary?*, 2015, arXiv:1511.05101: the objective of scheduled sampling is improper.
# - Videos: *Deep Learning for Natural Language Processing*, https://youtu.be/6D4EWKJgNn0, from words to sequence models; *Recurrent Neural Networks*, MIT 6.S191, https://www.youtube.com/watch?v=SEnXr6v2ifU, sequence modelling up to attention.
