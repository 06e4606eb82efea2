# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 330
#     needs: "chapters 02 (BLEU, padding), 03 and 05"
# ---

# %% [markdown]
# # 06 · Sequence to sequence
#
# Somebody reads you a sentence, once, and you must write its translation from memory. It would help to keep a note on the desk and to look at it before every word.
#
# Two neural translators are put in these two situations. Both read the sentence with the same kind of network, into one vector of 64 numbers. The first, *once*, is given the vector before its first word. The second, *every step*, sees the same vector again before each word.
# Both train equally long on 4,000 sentence pairs of a small invented language. **Of 500 new sentences, how many will each translate without a single mistake?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("encoder_decoder")

# %% tags=["setup", "fold"]
# @title Imports
import math
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib import generate, metrics, pretrained, text, translation
from course_lib.attention import AdditiveAttention
from course_lib.datasets import synthetic
from course_lib.exercises import ch06
from course_lib.experiments import toy_context, toy_translation
from course_lib.notebook import claim, diagrams, ledger, predict, table
from course_lib.notebook.figures import ch06 as figures
from course_lib.train import set_seed

set_seed(0)

# %%
guess_once = predict("once: perfect sentences of 500", ...)
guess_step = predict("every step: perfect sentences of 500", ...)

# %%
task = toy_translation.toy_task(pairs=4000, test=500, seed=0)
translators, scores = {}, {}
for given in ("once", "every step"):
    set_seed(0)
    model = toy_context.context_translator(task, given, width=64)
    toy_translation.train_translator(model, task, epochs=6, batch_size=32)
    translators[given] = model
    scores[given] = toy_translation.translation_scores(model, task)

# %% tags=["fold", "reveal"]
# @title Once, and at every step
guess_once.compare(round(500 * scores["once"]["exact"]))
guess_step.compare(round(500 * scores["every step"]["exact"]))
claim(
    "*Once* translates fewer than 1 sentence in 50 without a mistake, *every step* more than half of them.",
    scores["once"]["exact"] < 0.02 and scores["every step"]["exact"] > 0.5,
    once=scores["once"]["exact"],
    every_step=scores["every step"]["exact"],
)

# %% [markdown]
# The encoders are alike, and the vectors have the same size; what differs is how often the decoder may see the vector. (The library's *every step* also has a larger output layer; section 5 does without.) *Once* must keep the whole sentence in a state that changes with every word it writes. *Every step* needs, in principle, to remember only how far it has got.
#
# In this chapter you build a plainer version of both, train them, and let them write. Then comes a third, which keeps the whole source open on the desk and looks where it needs to. That is *attention*, the idea from which chapter 07, and everything after it, grew.
#
# | translator | what its decoder is given | section, class |
# |---|---|---|
# | **once** | the vector, before the first word | 2, `Decoder` |
# | **every step** | the same vector, before each word | 5, `ContextDecoder` |
# | **attention** | a new mix of all states, before each word | 6, `AttentionDecoder` |
#
# On the first screen and in the recorded curves the library's versions run. Yours are plainer; section 5 says how they differ.
#
# *In two sittings.* Sections 1 to 7, with exercises 6.1 to 6.3, take about two and a quarter hours. The rest, on search and on real sentences, takes a good three hours, mostly exercises.
#
# ### You will be able to
#
# 1. build an encoder-decoder, train it with teacher forcing, and find bugs that ruin it silently (exercise 6.1);
# 2. let it write, for a whole batch (6.2);
# 3. compute attention with its mask (6.3), read its weights, and show where one vector falls behind (6.6);
# 4. say why a decoder does worse alone than in training, and search for a better sentence (6.4, 6.5);
# 5. assemble a translator of your own (6.7).
#
# **Letters.** `B` sentences in a batch, `S` source tokens, `T` target tokens, `V` words in the target's vocabulary, `D` units in a state. Indices: $s$ runs over the source, $t$ over the target.
# States of the encoder carry a bar, $\bar h_s$; states of the decoder do not, $h_t$. Vectors are rows.

# %% [markdown]
# ## 1 · A language to translate into
#
# A real sentence has many right translations, and that makes mistakes hard to count. To see what a network learns we take an invented language with a grammar of six rules, in which every English sentence has exactly one translation:
#
# 1. The order is time, subject, place, object, verb. *Yesterday* is `pasinta tago`, *tomorrow* `venonta tago`, *today* `nun`.
# 2. A noun has a gender, which is its last letter: `hundo` (dog), `kata` (cat).
# 3. *The* and *a* agree with their noun: `lo hundo`, `la kata`; `uno hundo`, `una kata`.
# 4. An adjective follows its noun and agrees with it: *the old cat* is `la kata veta`.
# 5. A preposition follows its place: *near the river* is `la riva apud`.
# 6. The verb ends in its tense, `vidas` (sees), `vidis` (saw), `vidos` (will see), and *not* is a final `ne`. *Does*, *did* and *will* have no word of their own.

# %% tags=["fold"]
# @title A sentence pair, and what each word translates
shown_pair = next(
    p for p in task.test_pairs if len(p.source) == 9 and "not" in p.source and "yesterday" in p.source
)
print(" ".join(shown_pair.source))
table(
    ["target", *shown_pair.target],
    [["translates", *(shown_pair.source[i] for i in shown_pair.alignment)]],
)
longer = sum(len(p.target) != len(p.source) for p in task.test_pairs) / len(task.test_pairs)
claim(
    "In more than 4 of 10 pairs source and target differ in length; in every pair some word changes its place.",
    longer > 0.4 and all(p.alignment != sorted(p.alignment) for p in task.test_pairs),
    differ_in_length=longer,
)

# %% [markdown]
# The models of the earlier chapters give one answer for a text, or one for each word that they read. Neither is enough: the translation has its own length, and its own order. *Yesterday* is read last and written first. So the network must read to the end before it writes its first word.
#
# The answer of 2014 (Cho et al.; Sutskever et al.) is the picture above: **two networks. The *encoder* reads the whole source; the *decoder*, a language model as in chapter 03, writes the target, given what the encoder has understood.**

# %% [markdown]
# ## 2 · Read, then write
#
# We take one short pair, and go through it tensor by tensor. Words become ids; the source ends in `<eos>`, *end of sentence*, so that the encoder knows where the sentence ends.

# %%
short = min(range(500), key=lambda i: len(task.test[0][i]))
print(*task.test_pairs[short].source, "->", *task.test_pairs[short].target)
source = torch.tensor([task.test[0][short]])  # (1, S)
target = torch.tensor([task.test[1][short]])  # (1, T)
print("source", source.tolist(), tuple(source.shape))
print("target", target.tolist(), tuple(target.shape))

# %% [markdown]
# **Read.** The encoder is a recurrent layer over embeddings $e(x_s)$, here a GRU (chapter 05). It has a state after each word, and its last state is the **context vector** $c$: all that will be known of the source.
#
# $$ \bar h_s = \mathrm{GRU}\big(e(x_s), \bar h_{s-1}\big), \qquad c = \bar h_S. $$
#
# `nn.GRU` returns two things: the states after all words, and once more the last one. The second has the number of layers as its first axis, here 1, so `last[0]` is $c$:

# %%
V_source, V, D = len(task.source_vocab), len(task.target_vocab), 64
set_seed(0)
embed_source = nn.Embedding(V_source, D)
reading_gru = nn.GRU(D, D, batch_first=True)
states, last = reading_gru(embed_source(source))
c = last[0]
print("states", tuple(states.shape), "(B, S, D): one after each source word")
print("c     ", tuple(c.shape), "(B, D): the last of them")

# %% [markdown]
# **Write.** The decoder is a second GRU, with weights of its own. It starts from $c$, reads the previous target word $y_{t-1}$, and predicts the next one, $y_t$. Before the first word there is no previous one, so it reads a special token, $y_0$ = `<sos>`, *start of sentence*. An output layer ($W_{ho}$, $b_o$) turns each state into a score for every word:
#
# $$ h_0 = c, \qquad h_t = \mathrm{GRU}\big(e(y_{t-1}), h_{t-1}\big), \qquad \mathrm{logits}_t = h_t\, W_{ho}^\top + b_o, $$
#
# and $p(y_t \mid y_1 \ldots y_{t-1}, x) = \mathrm{softmax}(\mathrm{logits}_t)[y_t]$. The first step (`c[None]` gives $c$ the axis of layers that `nn.GRU` expects):

# %%
embed_target = nn.Embedding(V, D)
writing_gru = nn.GRU(D, D, batch_first=True)
readout = nn.Linear(D, V)
y_0 = torch.tensor([[text.SOS]])
outputs, h_1 = writing_gru(embed_target(y_0), c[None])  # h_0 = c: (1, B, D)
logits = readout(outputs)
print("logits", tuple(logits.shape), "(B, 1, V): a score for every target word")

# %% [markdown]
# ### The same as modules
#
# Now we put these layers into modules. In this first version every batch holds sources of one length, so that none of them is padded; exercise 6.7 lifts that restriction.
#
# The decoder's `forward` has four arguments, because it will have two successors. This first one knows the source only through its first state `h`; `states` (all states of the encoder) and `c` are for the decoders of sections 5 and 6.


# %%
class Encoder(nn.Module):
    def __init__(self, vocab_size, units):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, units)
        self.gru = nn.GRU(units, units, batch_first=True)

    def forward(self, source):  # (B, S)
        states, last = self.gru(self.embed(source))  # (B, S, D), (1, B, D)
        return states, last[0]  # all states, and the context vector (B, D)


class Decoder(nn.Module):
    def __init__(self, vocab_size, units):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, units)
        self.gru = nn.GRU(units, units, batch_first=True)
        self.readout = nn.Linear(units, vocab_size)

    def forward(self, words, h, states, c):  # (B, T), (B, D), (B, S, D), (B, D)
        outputs, last = self.gru(self.embed(words), h[None])  # (B, T, D), (1, B, D)
        return self.readout(outputs), last[0]  # logits (B, T, V), the state (B, D)


# %% [markdown]
# Both halves together. The vector $c$ is passed twice: as the first state `h`, and as itself, for section 5:


# %%
class Translator(nn.Module):
    def __init__(self, encoder, decoder):
        super().__init__()
        self.encoder, self.decoder = encoder, decoder

    def forward(self, source, target_in):  # (B, S), (B, T)
        states, c = self.encoder(source)
        logits, _ = self.decoder(target_in, c, states, c)  # h_0 = c
        return logits  # (B, T, V)


# %% [markdown]
# ## 3 · Train it on the reference
#
# In training we know the right translation, the *reference*. So the decoder is fed the reference, not its own words. This is called **teacher forcing**, and it lets all T steps of this decoder be computed in one call. Input and output are the same words, shifted by one.
#
# A batch of sentence pairs has five tensors: `source` and `source_real` (needed only when sources are padded: exercise 6.7), then `target_in` (what the decoder reads), `target_out` (what it must predict) and `target_real`. The two named `_real` are True at real tokens and False at padding. Here are two targets in a batch:

# %%
test_sources, test_targets = task.test  # lists of ids
two = translation.translation_batch(test_sources[:2], test_targets[:2])
for title, tensor in {"target_in": two.target_in, "target_out": two.target_out}.items():
    for row in tensor.tolist():
        words = [f"{task.target_vocab.itos[i]:>8}" for i in row]
        print(f"{title:>10}:", *words)

# %% [markdown]
# Read it in columns. After `<sos>` comes the first word. After the last word comes `<eos>`, by which the decoder will say that it has finished. The shorter row is filled with `<pad>`, which must not count.
#
# The loss is that of a language model, the mean over the real target tokens:
#
# $$ L = -\frac{1}{M} \sum_{b,t} m_{bt} \ln p\big(y_{bt} \mid y_{b,1} \ldots y_{b,t-1},\, x_b\big), \qquad M = \sum_{b,t} m_{bt}, $$
#
# with $b$ the sentence in the batch, $m_{bt} = 1$ at a real target token (`<eos>` is one) and 0 at padding. With `reduction="none"`, `F.cross_entropy` returns one number for each token, and the boolean mask picks the real ones:


# %%
def loss_with_teacher(model, batch):
    """The mean negative log-likelihood of the real target tokens."""
    logits = model(batch.source, batch.target_in)  # (B, T, V)
    nats = F.cross_entropy(  # it wants the V scores second: (B, V, T)
        logits.transpose(1, 2), batch.target_out, reduction="none"
    )  # (B, T)
    return nats[batch.target_real].mean()  # real tokens only


# %% [markdown]
# (You can do exercise 6.1 now; it stands before the break, after section 7.)
#
# Before we train, the model must be able to write without a teacher, so that we can watch what it learns.

# %% [markdown]
# ## 4 · Let it write
#
# Now there is no reference to feed. The decoder takes the most probable word, and reads it at the next step as if it were right:
#
# $$ \hat y_t = \arg\max_y\; p(y \mid \hat y_1 \ldots \hat y_{t-1}, x), \qquad t = 1, 2, \ldots \text{ until } \hat y_t = \langle\text{eos}\rangle. $$
#
# This is **greedy decoding**: the best word now, whatever it leads to.


# %%
@torch.no_grad()
def translate(model, words, most=30):
    ids = text.numericalize(words, task.source_vocab, eos=True)
    states, c = model.encoder(torch.tensor([ids]))  # (1, S, D), (1, D)
    h, word, written = c, "<sos>", []
    while len(written) < most:
        y = torch.tensor([[task.target_vocab[word]]])  # the previous word
        logits, h = model.decoder(y, h, states, c)  # one step
        word = task.target_vocab.itos[logits[0, -1].argmax()]
        if word == "<eos>":
            break
        written.append(word)
    return written


# %% [markdown]
# (Exercise 6.2, before the break, does this for a whole batch; you can do it now.)
#
# The training loop is that of chapter 03. After each epoch it translates one example:


# %% tags=["fold"]
# @title one_length_batches: no source is padded
def one_length_batches(task, batch_size, generator):
    """Batches of pairs whose sources are equally long, in random order."""
    groups = {}
    for pair in zip(*task.train, strict=True):
        groups.setdefault(len(pair[0]), []).append(pair)
    batches = []
    for group in groups.values():
        order = torch.randperm(len(group), generator=generator).tolist()
        for start in range(0, len(group), batch_size):
            chosen = [group[i] for i in order[start : start + batch_size]]
            batches.append(translation.translation_batch(*map(list, zip(*chosen, strict=True))))
    return [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]


# %%
def train(model, epochs, example=shown_pair):
    order = torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    for epoch in range(1, epochs + 1):
        for batch in tqdm(one_length_batches(task, 32, order), leave=False):
            loss = loss_with_teacher(model, batch)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
        print(f"epoch {epoch}, loss {loss:.2f}:", *translate(model, example.source))


# %% [markdown]
# Everything is there. Six epochs, in batches of at most 32, are 774 updates. Watch the example learn (each loss is that of one batch, so it jumps a little):

# %%
print("source:   ", *shown_pair.source)
print("reference:", *shown_pair.target)

# %% tags=["nbval-ignore-output"]
set_seed(0)
once = Translator(Encoder(V_source, D), Decoder(V, D))
train(once, epochs=6)

# %% [markdown]
# That was one sentence. On 200 we count the perfect translations, and take BLEU (chapter 02): from 0 to 100, roughly the share of its groups of one to four words that also stand in the reference.

# %% tags=["fold"]
# @title Scores on 200 test sentences
def score(model, first=200):
    """The fraction of perfect translations, and BLEU."""
    found = [translate(model, p.source) for p in tqdm(task.test_pairs[:first], leave=False)]
    wanted = [p.target for p in task.test_pairs[:first]]
    exact = sum(a == b for a, b in zip(found, wanted, strict=True)) / first
    return {"exact": exact, "bleu": metrics.bleu(found, [[w] for w in wanted])}


once_score = score(once)
claim(
    "*Once* writes fewer than 1 sentence in 20 without a mistake, and its BLEU is below 40.",
    once_score["exact"] < 0.05 and once_score["bleu"] < 40,
    **once_score,
)
ENDING = {"nun": "as", "pasinta": "is", "venonta": "os"}  # of the verb, for each time
dated, articles = [], []  # does the verb contradict the time; does the article agree
for words in [translate(once, p.source) for p in task.test_pairs[:200]]:
    asked_for = [ENDING[word] for word in words if word in ENDING]
    verbs = [word for word in words if word.endswith(("as", "is", "os"))]  # no other word ends so
    dated += [not verbs[-1].endswith(asked_for[0])] if asked_for and verbs else []
    articles += [one[-1] == after[-1] for one, after in pairwise(words) if one in ("lo", "la", "uno", "una")]
claim(
    "Where *once* writes a time and a verb, the tense contradicts the time in more than 4 of 10 sentences; of its articles at least 19 in 20 agree with the next word.",
    sum(dated) > 0.4 * len(dated) and sum(articles) >= 0.95 * len(articles) and min(len(dated), len(articles)) > 50,
    contradict=f"{sum(dated)} of {len(dated)}",
    agree=f"{sum(articles)} of {len(articles)}",
)

# %% [markdown]
# It writes sentences that look like the language: the time stands first, the verb near the end, and articles agree with their nouns. But *who* and *what* are largely invented, and even the verb's tense often contradicts the time that it has written itself. A fluent translation can be a wrong one, and only a comparison with the source shows it.
#
# What must this decoder remember? The whole source, in the very state with which it writes. There is a simple remedy.

# %% [markdown]
# ## 5 · Keep the note on the desk
#
# If the decoder forgets, show it the vector again, before every word. Sutskever's decoder starts from $c$, as ours does; Cho's (2014) also sees $c$ at every step, beside the previous word:
#
# $$ h_t = \mathrm{GRU}\big([e(y_{t-1}), c],\, h_{t-1}\big), \qquad [\,\cdot\,, \cdot\,]: \text{side by side}. $$
#
# Only the GRU's input changes, so we inherit the rest:


# %%
class ContextDecoder(Decoder):
    def __init__(self, vocab_size, units):
        super().__init__(vocab_size, units)
        self.gru = nn.GRU(2 * units, units, batch_first=True)  # a word and c

    def forward(self, words, h, states, c):
        x = self.embed(words)  # (B, T, D)
        again = c[:, None].expand_as(x)  # (B, T, D): the same c at every step
        outputs, last = self.gru(torch.cat([x, again], dim=2), h[None])
        return self.readout(outputs), last[0]


# %% tags=["nbval-ignore-output"]
set_seed(0)
every_step = Translator(Encoder(V_source, D), ContextDecoder(V, D))
train(every_step, epochs=6)

# %% tags=["fold", "nbval-ignore-output"]
# @title Yours and the library's, on the same 200 sentences
step_score = score(every_step)
library_score = {
    name: toy_translation.translation_scores(model, task, first=200) for name, model in translators.items()
}
both_scores = {"once": (once_score, library_score["once"]), "every step": (step_score, library_score["every step"])}
table(
    ["six epochs", "perfect, yours", "perfect, library's", "BLEU, yours", "BLEU, library's"],
    [
        [name, *(f"{each['exact']:.2f}" for each in pair), *(f"{each['bleu']:.0f}" for each in pair)]
        for name, pair in both_scores.items()
    ],
)

# %% tags=["fold"]
# @title How much further?
claim(
    "Your *every step* has more than twice the BLEU of your *once*, after the same number of updates.",
    step_score["bleu"] > 2 * once_score["bleu"],
)

# %% [markdown]
# Your two decoders differ in the GRU's input alone. That input brings 12,288 parameters; but a recorded *once* twice as wide, with far more of them, stays far behind (*Going deeper*).
#
# The library's versions have more than yours: they take padded sources, so that their batches differ too; a learned map, $\tanh(c W_c^\top + b_c)$, makes $h_0$; a hidden layer stands before the logits, and in *every step* it sees the previous word and $c$ as well, which takes 8,192 parameters; and the weights that make the logits are the target's embeddings over again (*tied weights*). In this run both are a little ahead of yours in BLEU, at much the same distance from each other; in perfect sentences the library's *every step* is clearly ahead.
#
# One run of each is only an example. The ledger holds three of each, from the library, trained for 16 epochs in batches of 64, 1,008 updates:

# %%
figures.once_or_at_every_step()

# %% tags=["fold"]
# @title In numbers, in every seed
bleu = {name: ledger.values("toy-context", name, "bleu") for name in ("once", "every step")}
claim(
    "In each of three seeds *every step* ends above 95 BLEU, *once* below 50.",
    min(bleu["every step"]) > 95 and max(bleu["once"]) < 50 and len(bleu["once"]) == 3,
    **bleu,
)
by_words = ledger.values("toy-context", "every step", "bleu_by_length")  # 6 to 14 words, for each seed
claim(
    "*Every step* has 100 BLEU on sentences of six words, and less than 98 on those of fourteen, in each seed.",
    min(run[0] for run in by_words) > 99.9 and max(run[-1] for run in by_words) < 98,
    fourteen_words=[run[-1] for run in by_words],
)

# %% [markdown]
# (The curves are scored on 200 test sentences, the numbers on 1,000, of which 24 to 29 have fourteen words. The curve of *once* is still rising: what is compared is how much is learned in the same number of updates.)
#
# So 64 numbers can hold nearly all that a translation needs, if the decoder sees them at every step.

# %% [markdown]
# ## 6 · Attention: the book stays open
#
# Nearly: the longest sentences lost a few points of BLEU, perhaps because $c$ has the same size whatever the length of the source. If so, a narrower vector should do worse. Here is the library's *every step*, with 64 units in the decoder and E = 4, 8, 16 or 64 in the encoder:

# %%
figures.by_width(attention=False)

# %% [markdown]
# After the same number of updates, a narrow vector is a bottleneck. But a human translator does not squeeze a text into a note of fixed size. She keeps the book open, and looks at the place that she needs now.
#
# Bahdanau, Cho and Bengio (2015) let the decoder do the same. The encoder has a state after *each* word, of which we kept the last. Keep them all, and let the decoder choose among them at each step.

# %%
diagrams.show("decoder_attention")

# %% [markdown]
# The decoder's state $h_{t-1}$ asks: it is the **query**. Each state of the encoder, $\bar h_s$, is compared with it: it is a **key**. The same states are also mixed, as *values*; chapter 07 tells the two apart. Three steps make the context *of this step*, $c_t$:
#
# 1. **Score.** A small network with one hidden layer reads the query and a key, and answers with a number: how well do they fit?
# 2. **Weigh.** The softmax over $s$ turns the scores into positive weights with sum 1.
# 3. **Mix.** The context is the weighted mean of the encoder's states.
#
# $$ a_{ts} = \tanh\big(h_{t-1} W_q^\top + \bar h_s W_k^\top\big)\, v^\top, \qquad w_{ts} = \frac{\exp a_{ts}}{\sum_{r} \exp a_{tr}}, \qquad c_t = \sum_s w_{ts}\, \bar h_s. $$
#
# $W_q$ and $W_k$ are (A, D) and $v$ is a row of A numbers, with A the width of the hidden layer (64 here). This form is called *additive* attention. For the short pair of section 2 the first query is $h_0 = c$:

# %%
set_seed(1)
W_q, W_k = nn.Linear(D, D, bias=False), nn.Linear(D, D, bias=False)
v = nn.Linear(D, 1, bias=False)
hidden = torch.tanh(W_q(c)[:, None] + W_k(states))  # (1, 1, A) + (1, S, A)
scores_1 = v(hidden)[..., 0]  # (1, S): one number for each source word
w_1 = scores_1.softmax(dim=1)  # (1, S), positive, sum 1
c_1 = (w_1[:, :, None] * states).sum(dim=1)  # (1, D)
print("hidden", tuple(hidden.shape), "scores", tuple(scores_1.shape))
print("c_1   ", tuple(c_1.shape))
print(f"the weights sum to {w_1.sum():.2f}")

# %% [markdown]
# No layer here depends on S: a source of any length gives a context of D numbers, and the number of parameters stays the same.
#
# ### One change in the decoder
#
# The decoder goes on as in section 5, with $c_t$ in place of $c$; its first state is still $h_0 = c$. Since $c_t$ depends on $h_{t-1}$, the steps can no longer be computed in one call of a GRU; the decoder needs a loop. New are `keys` and the three lines that make `scores`, `w` and `c_t`:


# %%
class AttentionDecoder(Decoder):
    def __init__(self, vocab_size, units):
        super().__init__(vocab_size, units)
        self.gru = nn.GRUCell(2 * units, units)  # one step at a time
        self.W_q = nn.Linear(units, units, bias=False)
        self.W_k = nn.Linear(units, units, bias=False)
        self.v = nn.Linear(units, 1, bias=False)

    def forward(self, words, h, states, c):  # c is not used: the caller passed it as h
        keys = self.W_k(states)  # (B, S, A), the same at every step
        outputs, self.weights = [], []
        for x in self.embed(words).unbind(dim=1):  # x (B, D)
            scores = self.v(torch.tanh(self.W_q(h)[:, None] + keys))  # (B, S, 1)
            w = scores[..., 0].softmax(dim=1)  # (B, S)
            c_t = (w[:, :, None] * states).sum(dim=1)  # (B, D): what we look at now
            h = self.gru(torch.cat([x, c_t], dim=1), h)  # (B, D)
            outputs.append(h)
            self.weights.append(w)  # kept for section 7
        return self.readout(torch.stack(outputs, dim=1)), h


# %% [markdown]
# Encoder, training loop and `translate` stay as they are. We train for three epochs, half as many updates as before:

# %% tags=["nbval-ignore-output"]
set_seed(0)
attention = Translator(Encoder(V_source, D), AttentionDecoder(V, D))
train(attention, epochs=3)

# %% tags=["fold"]
# @title Scores after three epochs
attention_score = score(attention)
claim(
    "*Attention* writes more than 9 of 10 sentences without a mistake, after half as many updates.",
    attention_score["exact"] > 0.9,
    **attention_score,
)

# %% [markdown]
# With the book open, nearly every sentence is right. And when the states are narrow? Each has to hold one word and its surroundings, no longer the whole sentence:

# %%
figures.by_width(attention=True)

# %% tags=["fold"]
# @title In numbers, in every seed
narrow = {
    given: ledger.values("toy-bottleneck", f"{given}, E = 8", "bleu") for given in ("every step", "attention")
}
claim(
    "With 8 units in the encoder, *attention* is ahead of *every step* by more than 20 BLEU, in each of three seeds.",
    all(a > b + 20 for a, b in zip(narrow["attention"], narrow["every step"], strict=True))
    and len(narrow["attention"]) == 3,
    **narrow,
)

# %% [markdown]
# Does the length of the sentence matter? We split the test sentences by it, and take for each translator a width at which it is neither hopeless nor perfect:

# %%
figures.by_length()

# %% tags=["fold"]
# @title Six words and fourteen


def first_and_last(variant):
    """BLEU of the shortest and of the longest sentences, for each seed."""
    return [(run[0], run[-1]) for run in ledger.values("toy-bottleneck", variant, "bleu_by_length")]


shrinks, holds = first_and_last("every step, E = 16"), first_and_last("attention, E = 8")
claim(
    "With E = 16 *every step* is more than 10 BLEU lower at fourteen words than at six, in each seed; *attention* with E = 8 is less than 5 lower.",
    min(short_ - long_ for short_, long_ in shrinks) > 10
    and max(short_ - long_ for short_, long_ in holds) < 5,
    every_step=[long_ - short_ for short_, long_ in shrinks],
    attention=[long_ - short_ for short_, long_ in holds],
)

# %% [markdown]
# (Decoder, data and the number of updates are the same in each pair. *Attention* adds 4,400 to 8,300 parameters, and a run took 1.1 to 2.5 times as long.)
#
# Attention also leaves a trace: its weights say where the decoder has read.

# %% [markdown]
# ## 7 · Where does it look?
#
# The weights $w_{ts}$ form a matrix, with a row for each target word and a column for each source word. Our grammar knows which source word each target word translates. **Where does the decoder look when it has to choose between *lo* and *la*?**


# %%
def attention_map(pair):
    """Weights (T, S + 1) of one sentence pair (B = 1); the last column is <eos>."""
    ids = [text.numericalize(pair.source, task.source_vocab, eos=True)]
    fed = [text.SOS, *text.numericalize(pair.target, task.target_vocab)]
    with torch.no_grad():
        attention(torch.tensor(ids), torch.tensor([fed]))
    rows = attention.decoder.weights  # T + 1 tensors (1, S + 1)
    return torch.cat(rows)[:-1]  # without the row of <eos>


# %% tags=["reveal"]
figures.weights_and_truth(attention_map(shown_pair), shown_pair)

# %% tags=["fold", "reveal"]
# @title Over 500 sentences, by kind of word
KINDS = {
    "noun": {*synthetic.BEINGS.values(), *synthetic.PLACES.values()},
    "adjective": {stem + gender for stem in synthetic.ADJECTIVES.values() for gender in "oa"},
    "determiner": {form + gender for form in synthetic.DETERMINERS.values() for gender in "oa"},
    **{word: {word} for word in ("ne", "venonta", "pasinta", "nun")},
}
looked, at_its_noun = {kind: [] for kind in KINDS}, []
for p in tqdm(task.test_pairs, leave=False):
    largest = attention_map(p).argmax(dim=1).tolist()
    for t, (word, true) in enumerate(zip(p.target, p.alignment, strict=True)):
        for kind, members in KINDS.items():
            if word in members:
                looked[kind].append(largest[t] == true)
        if word in KINDS["determiner"]:
            noun = next(u for u in range(t, len(p.target)) if p.target[u] in KINDS["noun"])
            at_its_noun.append(largest[t] == p.alignment[noun])
at_itself = {kind: sum(hits) / len(hits) for kind, hits in looked.items()}
at_noun = sum(at_its_noun) / len(at_its_noun)
claim(
    "More than 9 in 10 nouns, adjectives and *ne* have their largest weight on the word that they translate; of the determiners fewer than 1 in 10 have it there, and more than 9 in 10 on their noun.",
    min(at_itself[kind] for kind in ("noun", "adjective", "ne")) > 0.9
    and at_itself["determiner"] < 0.1
    and at_noun > 0.9,
    **{kind: at_itself[kind] for kind in ("noun", "adjective", "ne", "determiner")},
    determiner_at_its_noun=at_noun,
)
claim(
    "*Pasinta* has its largest weight on *yesterday* in fewer than 1 in 2 sentences, *nun* on *today* in fewer than 1 in 4.",
    at_itself["pasinta"] < 0.5 and at_itself["nun"] < 0.25,
    **{word: at_itself[word] for word in ("pasinta", "nun", "venonta")},
)

# %% [markdown]
# Nearly every sentence of this model is right, and yet for some kinds of words the largest weight is seldom on the word that is being translated. (One model; another may look elsewhere. Whether *venonta* looks at *tomorrow* changed here even with the number of threads, that is, with the order in which sums are taken.) Why? Three possible reasons:
#
# - **The word is not where the information is.** To choose between *lo* and *la* the decoder needs the gender, and that is a matter of the noun.
# - **Some words need no look.** `tago` always follows `pasinta` or `venonta`. And instead of looking for *yesterday* the decoder can ask $h_0 = c$, which has just read it.
# - **States know what stands before them.** The state of *dog* has read *the* as well: one look can give the article and the gender.
#
# Weights show what was read. They do not show why a word was chosen.
#
# Before the break, practise what went by quickly: the loss, decoding for more than one sentence, and weights with padding.

# %% [markdown]
# ### Exercise 6.1 · Find the bugs: a loss that looks fine
#
# Difficulty ●●○○○ · 20 minutes · needs section 3
#
# The loss below runs, falls, and ends near zero. It has two bugs. (`mask` says which *source* tokens are real; you only pass it on to the model.)


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
        Tensor (): mean nats per real token to be predicted, <eos> included; differentiable.
        Logits are float64; five digits are compared.
    """
    ### BEGIN SOLUTION
    logits = model(source, mask, target[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-1-shifted-loss-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.shifted_loss(shifted_loss)

# %% [markdown]
# ### Exercise 6.2 · Greedy decoding for a batch
#
# Difficulty ●●●○○ · 25 minutes · needs section 4
#
# `step` stands for any decoder: it takes the last tokens and a state, and returns logits and the next state.


# %% nbgrader={"grade": false, "grade_id": "ex06-2-greedy-decode", "locked": false, "schema_version": 3, "solution": true, "task": false}
def greedy_decode(step, state, sos, eos, max_length):
    """Take the most probable token, feed it back, until every row has reached <eos>.

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
# ### Exercise 6.3 · Additive attention from tensors
#
# Difficulty ●●●○○ · 25 minutes · needs section 6
#
# In a padded batch some keys stand for padding, and their weight must be exactly 0. Compute the weights from matrices, for a whole batch, without the library's `AdditiveAttention`. Inputs are float64; five digits are compared.


# %% nbgrader={"grade": false, "grade_id": "ex06-3-additive-weights", "locked": false, "schema_version": 3, "solution": true, "task": false}
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
        (B, S), the softmax over s of tanh(q W_q^T + k_s W_k^T) v^T; 0 where the mask is False.
    """
    ### BEGIN SOLUTION
    scores = torch.tanh((query @ W_q.T).unsqueeze(1) + keys @ W_k.T) @ v
    return scores.masked_fill(~mask, -math.inf).softmax(dim=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-3-additive-weights-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch06.additive_weights(additive_weights)

# %% [markdown]
# *A good place for a break.* You have built three translators, and the third gets nearly every sentence right.
#
# ---

# %% [markdown]
# ## 8 · In training and alone
#
# All three translators learn with a teacher and write alone. In training, each word is predicted after a *correct* beginning. Alone, the decoder continues what it has written itself, mistakes included, and such beginnings it has rarely seen. This mismatch is called **exposure bias** (Ranzato et al. 2016).
#
# We take the first screen's *once*: the library's, because it accepts padded sources. On the 500 test targets we feed it the reference, or its own predictions, and ask how probable it finds the reference's words. The model's `start` reads the source; its `step` reads one word, and returns the logits and the next state. **By what factor does its perplexity grow?**

# %%
guess_factor = predict("the factor by which the perplexity grows", ...)

# %%
library_once = translators["once"].eval()
every_pair = next(translation.translation_batches(*task.test, 500, shuffle=False))
read_by_it = (every_pair.source, every_pair.source_real)
with torch.no_grad():
    forced = library_once(*read_by_it, every_pair.target_in)  # (B, T, V)
    memory = library_once.start(*read_by_it)
    last_words, own = every_pair.target_in[:, :1], []  # <sos> in every row
    for _ in range(forced.shape[1]):
        logits, memory = library_once.step(last_words, memory)  # (B, V)
        last_words = logits.argmax(dim=1, keepdim=True)  # fed back, right or wrong
        own.append(logits)
    free = torch.stack(own, dim=1)  # (B, T, V)

# %% tags=["fold", "reveal", "nbval-ignore-output"]
# @title Perplexity and accuracy, both ways
measured = {}
for name, way in {"the reference": forced, "its own predictions": free}.items():
    measured[name] = toy_translation.perplexity_and_accuracy(way, every_pair.target_out, every_pair.target_real)
    of_wanted = way.softmax(dim=-1).gather(2, every_pair.target_out[..., None])[..., 0]
    measured[name]["improbable"] = (of_wanted[every_pair.target_real] < 0.01).double().mean().item()
table(
    ["fed", "perplexity per word", "accuracy per word", "reference's words given less than 1 %"],
    [
        [name, f"{m['perplexity']:.1f}", f"{m['accuracy']:.2f}", f"{100 * m['improbable']:.0f} %"]
        for name, m in measured.items()
    ],
)

# %% tags=["fold", "reveal"]
# @title By what factor?
factor = measured["its own predictions"]["perplexity"] / measured["the reference"]["perplexity"]
guess_factor.compare(round(factor, 1))
lost = measured["the reference"]["accuracy"] - measured["its own predictions"]["accuracy"]
claim(
    "Fed its own predictions, the same model on the same sentences has more than one and a half times the perplexity; its accuracy falls by less than 10 words in 100.",
    factor > 1.5 and lost < 0.1,
    factor=factor,
    lost=lost,
)
claim(
    "Fed its own predictions, it gives more than 1 in 20 of the reference's words a probability below 1 %; fed the reference, fewer than 1 in 100.",
    measured["its own predictions"]["improbable"] > 0.05 and measured["the reference"]["improbable"] < 0.01,
)

# %% [markdown]
# Accuracy hardly falls. The perplexity is so large because a few words cost a great deal: alone, the model all but excludes some words of the reference.
#
# Not all of that is harm. After a forgotten word everything that follows is scored at the wrong position; and after another noun the reference's adjective ending *should* become improbable. So the factor is no measure of exposure bias alone. A fairer question: one step after a sentence's first mistake, how often is the next word right, if the decoder reads its mistake, or the reference's word in its place? The ledger has the answer for another *once*, of 128 units, in three seeds:

# %% tags=["fold"]
# @title One step after the first mistake, recorded
after_mistake = {
    fed: [run[0] for run in ledger.values("toy-translation", "no attention", f"{way}_after_mistake")]
    for fed, way in {"the reference's word": "forced", "its own mistake": "free"}.items()
}
table(
    ["*once* (128 units) reads", "seed 0", "seed 1", "seed 2"],
    [[fed, *(f"{share:.2f}" for share in shares)] for fed, shares in after_mistake.items()],
)
claim(
    "After its own mistake it is right less often, by 5 to 10 words in 100; with the reference's word it still makes more than three quarters as many errors (in each of three seeds).",
    all(
        0.05 < a - b < 0.1 and 1 - a > 0.75 * (1 - b)
        for a, b in zip(*after_mistake.values(), strict=True)
    )
    and len(after_mistake["its own mistake"]) == 3,
)

# %% [markdown]
# So most of these errors remain when the mistake is taken away.
#
# For your own models: do not rank two of them by losses of which one was measured with the reference and the other without it; the smaller number need not belong to the better model. And a validation loss is usually teacher-forced. It can fall while translations get worse; look at both.
#
# A second gap: fed the reference, the model of the first screen is right on more than half of all words, and still fewer than one sentence in fifty comes out whole. Ten words, each right with probability one half, independently of the others, are *all* right one time in a thousand.
#
# Should one train on the model's own predictions, then? *Going deeper* tries it; nearly all large models are pre-trained with teacher forcing. But the decoder can look further ahead before it commits itself.

# %% [markdown]
# ## 9 · Searching: beams
#
# The best first word need not begin the best sentence. Here is a whole model in a picture: six sentences of two words.

# %%
diagrams.show("beam_tree")

# %% [markdown]
# What we look for is the most probable sentence, $\arg\max_Y p(Y \mid x)$. There are $V^T$ candidates of T words, too many to try. **Beam search** keeps the $k$ best beginnings:
#
# 1. extend each open beginning by each word; its score is the *sum of the log-probabilities* of its words;
# 2. of all these extensions *together*, keep the best, as many as there are places;
# 3. an extension by `<eos>` is finished: it is set aside, but keeps its place. Stop when every place holds a finished sentence.
#
# With $k = 1$ this is greedy decoding. The library's search takes any model with `start` and `step`; the smallest such model is a table of probabilities.


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
    print(f"beam of {k}: {tree.say(best.tokens)}, p = {math.exp(best.score):.2f}")

# %% [markdown]
# Step through the search with each size of the beam; before every other click, say which beginnings it will keep. **At which step does greedy search lose the best sentence?**

# %% tags=["fold"]
# @title Interactive: beam search, step by step
from course_lib.notebook import interactive

interactive.beam_search(tree, tree.words, nothing, sizes=(1, 2, 3, 6))

# %% [markdown]
# A beam is no guarantee: it may drop the beginning of the best sentence one step too early. As long as probability alone ranks the sentences, it can be sure only when the finished one is at least as probable as every beginning that it has dropped, for a beginning can only become less probable.
#
# ### Every additional word costs
#
# Each additional word multiplies the probability by a number of at most 1. So short sentences have an advantage that they have not earned. The next little language produces a sentence of three words four times out of five. **Which sentence does a beam find if it is wide enough to keep everything?**

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

# %% tags=["fold", "reveal"]
# @title The four most probable sentences
table(
    ["sentence", "tokens with `<eos>`", "probability", "log P"],
    [[chatty.say(h.tokens), len(h.tokens) + 1, math.exp(h.score), h.score] for h in all_seven[:4]],
)
claim("The most probable sentence is *ok*.", chatty.say(all_seven[0].tokens) == "ok")

# %% [markdown]
# The usual remedy is a *length penalty* (Wu et al. 2016, equation 14). It ranks *finished* hypotheses; open ones are equally long, so it could not change their order.
#
# $$ \mathrm{score}(Y) = \frac{\ln p(Y \mid x)}{\mathrm{lp}(Y)}, \qquad \mathrm{lp}(Y) = \Big(\frac{5 + |Y|}{6}\Big)^{\alpha}, $$
#
# with $|Y|$ the number of tokens, here with `<eos>`. $\alpha = 0$ turns it off; 0.6 to 1 is usual, chosen on validation data. With $\alpha = 1$:

# %% tags=["fold", "reveal"]
# @title The same four sentences, penalised
lp = {len(h.tokens): generate.length_factor(len(h.tokens) + 1, 1.0) for h in all_seven}
table(
    ["sentence", "log P", "lp", "log P / lp"],
    [[chatty.say(h.tokens), h.score, lp[len(h.tokens)], h.score / lp[len(h.tokens)]] for h in all_seven[:4]],
)
penalised = generate.beam_search(chatty, nothing, beam_size=7, length_penalty=1.0)[0]
claim("With this length penalty a sentence of three words wins.", len(penalised.tokens) == 3)

# %% [markdown]
# It treats a symptom: the *most probable* sentence is not the *typical* one. In large translation models it is often the empty sentence (Stahlberg and Byrne 2019), and very wide beams make translations *worse* (Koehn and Knowles 2017).

# %% [markdown]
# ### How wide a beam?
#
# One example, a single model on real text: the small Transformer that comes with the course (chapter 09 builds it) has translated 1,000 captions of photographs from German into English (Multi30k, section 10) with wider and wider beams. Each search runs once; its finished sentences are ranked without and with the penalty: two columns of BLEU.

# %% tags=["fold"]
# @title Greedy, and beams of 2 to 10, recorded
def of_beam(k, alpha, metric):
    """A number of the recorded example."""
    return ledger.values("multi30k-beams", f"beam {k}, alpha {alpha}", metric)[0]


BEAMS = (1, 2, 4, 5, 10)
table(
    ["beam", "log P (mean)", "less probable than greedy (%)", "words (mean)", "BLEU", "BLEU, $\\alpha = 0.6$"],
    [
        [
            k,
            f"{of_beam(k, 0, 'log_p'):.2f}",
            f"{100 * of_beam(k, 0, 'less_probable'):.1f}",
            f"{of_beam(k, 0, 'words'):.1f}",
            f"{of_beam(k, 0, 'bleu'):.1f}",
            f"{of_beam(k, 0.6, 'bleu'):.1f}",
        ]
        for k in BEAMS
    ]
    + [["references", "", "", f"{ledger.values('multi30k-beams', 'references', 'words')[0]:.1f}", "", ""]],
)
claim(
    "The wider the beam, the more probable and the shorter the sentences on average; yet even with a beam of 10 some are less probable than the greedy ones.",
    all(of_beam(a, 0, "log_p") < of_beam(b, 0, "log_p") for a, b in pairwise(BEAMS))
    and all(of_beam(a, 0, "words") > of_beam(b, 0, "words") for a, b in pairwise(BEAMS))
    and of_beam(10, 0, "less_probable") > 0,
)
claim(
    "BLEU rises by less than one point over greedy search; with and without the penalty it is higher with a beam of 4 or 5 than with one of 10.",
    all(
        of_beam(10, alpha, "bleu") < min(of_beam(k, alpha, "bleu") for k in (4, 5))
        and max(of_beam(k, alpha, "bleu") for k in BEAMS) < of_beam(1, 0, "bleu") + 1
        for alpha in (0, 0.6)
    ),
)

# %% [markdown]
# What the search maximises goes on rising; what we want soon stops, perhaps because the sentences grow shorter, and the references are longer already; but with the penalty, which favours longer ones, it stops too. (A few tenths of BLEU on 1,000 captions are little; another model may order the beams otherwise.) A wider beam keeps more beginnings, but may drop the one that greedy search would have followed to a good end.

# %% [markdown]
# ### Exercise 6.4 · Derive: a search by hand
#
# Difficulty ●●●○○ · 20 minutes · needs section 9
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
# 4. `alpha`: the $\alpha$ at which X and Y tie.
#
# Give three digits of each.

# %% nbgrader={"grade": false, "grade_id": "ex06-4-search-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
found = ...  # (greedy, best, score, alpha)
### BEGIN SOLUTION
found = (0.55 * 0.4, 0.45 * 0.9 * 0.8, -1.6 / (11 / 6), math.log(1.6 / 1.2) / math.log(11 / 7))
### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-4-search-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch06.search_by_hand(found)

# %% [markdown]
# ### Exercise 6.5 · Beam search
#
# Difficulty ●●●●● · 45 minutes · needs section 9
#
# Here the model is a function of the tokens so far, and the search treats one sentence at a time.


# %% nbgrader={"grade": false, "grade_id": "ex06-5-beam-search", "locked": false, "schema_version": 3, "solution": true, "task": false}
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
        score: float, its log P divided by the length penalty; four digits are compared. If none is
            finished, both are those of the best open hypothesis.
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


# %% nbgrader={"grade": true, "grade_id": "ex06-5-beam-search-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch06.beam_search(beam_search)

# %% [markdown]
# ## 10 · Real sentences: Multi30k
#
# Does attention's lead hold for real language? Multi30k (Elliott et al. 2016) has 29,000 captions of photographs in German and English. We translate German to English. The captions are lower-cased and cut into subword units (chapter 02); then a caption goes in like a toy sentence. Here is one, with the vocabularies of the small Transformer, and a translator of yours, untrained:

# %%
_, german, english = pretrained.load_translator()
caption = "Ein Mann mit einem orangefarbenen Hut, der etwas anstarrt."
target_caption = "a man in an orange hat starring at something."
print(" ".join(german.pieces(caption)))  # </w> ends a word
caption_in = torch.tensor([german.encode(caption)])  # (1, S), <eos> at the end
reference_in = torch.tensor([[text.SOS, *english.encode(target_caption, eos=False)]])
untrained = Translator(Encoder(len(german), D), AttentionDecoder(len(english), D))
print("logits", tuple(untrained(caption_in, reference_in).shape), "(1, T, V)")

# %% [markdown]
# The recorded models are the library's, trained for ten epochs. Of these the one with the lowest validation loss is kept (in every run the tenth, so longer training might help each of them), and scored on 1,000 test captions.
#
# All encoders read in both directions: a second GRU (or LSTM) reads from the end, and the two states of a word stand side by side. What the decoder gets differs:
#
# - **mean**: as *every step*, but the vector is the *mean* of the encoder's states, to which every word has a short path;
# - **attention**: a *weighted* mean, with weights of its own at every step.
#
# The two GRU models share encoder, sizes, dropout and training. (The table says how many runs stand behind each row.) **Will attention lead by more on short captions or on long ones?**

# %% tags=["reveal"]
figures.multi30k_by_length()

# %% tags=["fold", "reveal"]
# @title In numbers: scores, and the lead by length
def with_range(experiment, variant, metric):
    """Mean over seeds, and the range where the seeds differ."""
    average, low, high, _ = ledger.summary(experiment, variant, metric)
    if metric == "parameters":
        return f"{average:,.0f}"
    return f"{average:.3g}" + (f" ({low:.3g} to {high:.3g})" if f"{low:.3g}" != f"{high:.3g}" else "")


MEASURES = {
    "parameters": "parameters",
    "perplexity": "perplexity per subword, fed the reference",
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
runs = {name: ledger.values(*at, "bleu") for name, at in figures.MULTI30K.items()}
claim(
    "Every recorded run with attention is more than 3 BLEU above every run with the mean, and a beam of 4 raises BLEU in every run.",
    min(runs["GRU + attention"]) > max(runs["GRU, mean"] + runs["LSTM, mean"]) + 3
    and all(
        beam > greedy
        for at in figures.MULTI30K.values()
        for beam, greedy in zip(ledger.values(*at, "bleu_beam"), ledger.values(*at, "bleu"), strict=True)
    ),
    **{name: [round(value, 1) for value in values] for name, values in runs.items()},
)


def by_group(name):
    """BLEU of each group of lengths, mean over the seeds."""
    columns = ledger.values(*figures.MULTI30K[name], "bleu_by_length")
    return [sum(column) / len(column) for column in zip(*columns, strict=True)]


lead = [a - b for a, b in zip(by_group("GRU + attention"), by_group("GRU, mean"), strict=True)]
claim(
    "Attention leads the GRU with the mean in every group of lengths, and by more in the two groups of longest captions than in the two of shortest (means over the recorded runs).",
    min(lead) > 0 and sum(lead[-2:]) > sum(lead[:2]),
    lead_from_short_to_long=lead,
)

# %% [markdown]
# This is consistent with a bottleneck: a vector of fixed size, although it is shown at every step, falls further behind on the longer captions, though not steadily. (The last group has only 78.) But a mean also dilutes each word, and blurs their order, so the size of the vector is not isolated here. A beam of 4 (with $\alpha = 0.6$) helps in every run, perhaps because a caption can be said in many ways.
#
# What does such a lead mean in words?

# %% tags=["fold"]
# @title What they write: the first five test captions
# The references are the first five lines of Multi30k's test_2016_flickr.en, lower-cased.
references_en = [
    "a man in an orange hat starring at something.",
    "a boston terrier is running on lush green grass in front of a white fence.",
    "a girl in karate uniform breaking a stick with a front kick.",
    "five people wearing winter jackets and helmets stand in the snow, with snowmobiles in the background.",
    "people are fixing the roof of a house.",
]
written = {name: ledger.values(*figures.MULTI30K[name], "examples")[0] for name in ("GRU, mean", "GRU + attention")}
table(["reference", *written], [list(row) for row in zip(references_en, *written.values(), strict=True)])

# %% [markdown]
# ### Exercise 6.6 · Explore and explain: what length and search can tell
#
# Difficulty ●●●○○ · 40 minutes · needs sections 6, 9 and 10
#
# The cell trains a translator with a narrow encoder for 4 epochs in batches of 32, 500 updates (section 6 recorded 1,008), and prints BLEU by the number of source words. (Lengths with fewer than 20 test sentences are left out, here and in section 6.) Change what the decoder is given (`"every step"`, `"attention"`), the encoder's width E (4 to 64), and the number of epochs.

# %% tags=["nbval-ignore-output"]
for given, E in [("every step", 16), ("attention", 16)]:  # your turn
    set_seed(0)
    tried = toy_context.context_translator(task, given, states=E)
    toy_translation.train_translator(tried, task, epochs=4, batch_size=32)
    by_length = toy_translation.scores_by_length(tried, task)
    print(f"{given}, E = {E}:")
    for words, bleu_there in zip(by_length["length"], by_length["bleu_by_length"]):
        print(f"{words:4} words: BLEU {bleu_there:.0f}")

# %% [markdown]
# Answer in words. (a) At which widths does *every step* fail, and at which *attention*? What does a state of the encoder have to hold in the one case, and in the other? And does BLEU fall with the length in your runs, as it does after 1,008 updates in section 6? If not, why? (b) With a wider beam, what, if anything, *must* rise, what *often* rises, and what may well fall? Point to rows of the table in *How wide a beam?*. (c) A translator of yours has
# BLEU 20 on a test set with short sentences and 8 on one with long ones. Name two different causes, and a measurement that tells them apart.

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex06-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) With four epochs and E = 16, one run: one vector 12 to 19 BLEU, attention 94 to 99. With E = 8 both are poor (below 10, and 24 to 39); after 16 epochs attention has learned to do with 8 (ledger: 86 to 98), one vector has not (6 to 9). With one vector the *last* state must hold the whole sentence; with attention each state has to hold one word and a little of its surroundings.
# With so few epochs BLEU hardly depends on the length: the model has not yet learned to use the room that it has, even for six words. After 16 epochs (ledger) one vector of 16 reaches 48 to 63 BLEU at six words and 25 to 29 at fourteen; attention with 8 units is nearly level.
#
# (b) Nothing *must* rise: only a beam that keeps every beginning finds the most probable sentence for certain. The log-probability of the sentence found *often* rises, but a wider beam may also keep beginnings that push out the one which would have ended better: in the table the mean rises with every beam, and with every beam some captions are less probable than the greedy ones. BLEU may rise or fall (from 5 places to 10 it falls there): it measures agreement with a reference, not probability, and the most probable sentences tend to be short.
# With $\alpha > 0$ longer ones win, which helps if the hypotheses were too short and hurts if they were not.
#
# (c) Either the decoder lacks information about a long source (the bottleneck), or its own mistakes accumulate, because each wrong word is fed back (exposure bias). Feed the *reference* and measure the perplexity per word by source length. If it *rises* with the length, already at the first words of the target, the decoder does not know enough about long sources: the bottleneck. If it stays level and only the free-running score falls, the mistakes accumulate.
# (There are other causes: long sentences may be rare in training, or hard in themselves. Compare with a model that attends, on the same sentences.)
# ### END SOLUTION

# %% [markdown]
# Paste your answer in place of the three dots; write at least 20 words to see what a good answer contains.

# %%
ch06.what_length_tells.compare(...)

# %% [markdown]
# ## 11 · Errors you will meet
#
# None of these raises an error; that is why you will meet them. For the first three we train small models for 100 updates, with the bug and without; the fourth can be shown on the model that we have.


# %%
def hundred_updates(spoil=lambda batch: batch):
    """A translator after 100 updates, its last loss, and that of real tokens."""
    set_seed(0)
    model = Translator(Encoder(V_source, D), ContextDecoder(V, D))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005)
    order = torch.Generator().manual_seed(0)
    for batch in tqdm(one_length_batches(task, 32, order)[:100], leave=False):
        batch = spoil(batch)
        logits = model(batch.source, batch.target_in).transpose(1, 2)
        nats = F.cross_entropy(logits, batch.target_out, reduction="none")
        loss = nats[batch.target_real].mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model, loss.item(), nats[batch.target_out != text.PAD].mean().item()


right_model, right_loss, _ = hundred_updates()

# %% [markdown]
# **1 · The target is not shifted.** Somebody feeds `target_out` in place of `target_in`: at each step the decoder reads the very word that it must predict.

# %% tags=["nbval-ignore-output"]
copier, copy_loss, _ = hundred_updates(lambda b: b._replace(target_in=b.target_out))
print(f"loss after 100 updates: {copy_loss:.1f}; repaired: {right_loss:.1f}")
print(*translate(copier, shown_pair.source, most=8), "...")

# %% [markdown]
# Too good a loss, too soon, is the symptom; the model has learned to copy its input, and alone it repeats itself.
#
# **2 · `<eos>` is not in the target.** Then no one teaches the decoder to stop.

# %%
endless, *_ = hundred_updates(
    lambda b: b._replace(target_real=b.target_real & (b.target_out != text.EOS))
)
for name, model in {"without <eos>": endless, "repaired": right_model}.items():
    lengths = [len(translate(model, p.source)) for p in task.test_pairs[:20]]
    print(f"{name}: {sum(n < 30 for n in lengths)} of 20 translations end")

# %% [markdown]
# **3 · The loss counts padding.** Then the model soon learns to predict `<pad>`, and its loss looks too good; how good depends on how far the batch happens to be padded. We pad the targets by no or by 20 more columns, and count every cell:


# %% tags=["nbval-ignore-output"]
def count_padding(more):
    def spoil(b):
        read = F.pad(b.target_in, (0, more), value=text.PAD)
        wanted = F.pad(b.target_out, (0, more), value=text.PAD)
        counted = torch.ones_like(wanted, dtype=torch.bool)  # every cell
        return b._replace(target_in=read, target_out=wanted, target_real=counted)

    return spoil


of_cells, of_words = {}, {}
for more in (0, 20):
    _, of_cells[more], of_words[more] = hundred_updates(count_padding(more))
    print(f"{more:2} more columns: loss {of_cells[more]:.1f},", end=" ")
    print(f"on real tokens {of_words[more]:.1f}")

# %% [markdown]
# Only the second number says how well it predicts real words, fed the reference, and that has not improved.
#
# **4 · Attention looks at padding.** A packed encoder leaves zeros there, but a key of zeros gets a score like any other, and the softmax gives it weight. We put our weights into the library's `AdditiveAttention`, which takes a mask, and ask about the short sentence, padded by 20 columns:

# %% tags=["nbval-ignore-output"]
scorer = AdditiveAttention(query_size=D, key_size=D, hidden_size=D)
for theirs, ours in zip(("query", "key", "score"), ("W_q", "W_k", "v")):
    scorer.get_submodule(theirs).load_state_dict(
        attention.decoder.get_submodule(ours).state_dict()
    )
padded, is_word = text.pad_batch([task.test[0][short]], length=source.shape[1] + 20)
with torch.no_grad():
    read, start = attention.encoder(source)
    keys = F.pad(read, (0, 0, 0, 20))  # (1, S + 20, D), zeros at padding
    for name, mask in {"no mask": None, "with its mask": is_word}.items():
        _, w = scorer(start, scorer.project(keys), keys, mask)
        print(f"{name}: weight {w[~is_word].sum():.1f} on padding")

# %% tags=["fold"]
# @title The four errors as claims
alone = [translate(copier, p.source) for p in task.test_pairs[:20]]
claim(
    "Not shifted, the loss falls below 0.3 and the repaired model's stays above 0.5, yet none of 20 translations is right or ends.",
    copy_loss < 0.3 and right_loss > 0.5 and all(len(words) == 30 for words in alone),
    not_shifted=copy_loss,
    repaired=right_loss,
)
claim(
    "With 20 more columns of padding the loss that counts them is less than two thirds as high; on real tokens it is not even a tenth lower.",
    of_cells[20] < of_cells[0] * 2 / 3 and of_words[20] > 0.9 * of_words[0],
    all_cells=list(of_cells.values()),
    real_tokens=list(of_words.values()),
)
stops = {
    name: sum(len(translate(m, p.source)) < 30 for p in task.test_pairs[:20])
    for name, m in {"without": endless, "with": right_model}.items()
}
claim(
    "Trained without `<eos>` no translation ends; with it, at least 18 of 20 do.",
    stops["without"] == 0 and stops["with"] >= 18,
)
with torch.no_grad():
    weights_no_mask, weights_masked = (
        scorer(start, scorer.project(keys), keys, mask)[1] for mask in (None, is_word)
    )
claim(
    "Without its mask more than a tenth of the weight lies on padding, with it none.",
    weights_no_mask[~is_word].sum() > 0.1 and weights_masked[~is_word].sum() == 0,
    on_padding=weights_no_mask[~is_word].sum(),
)

# %% [markdown]
# One test finds the last two: *pad a batch further; neither its loss nor its translations may change.*

# %% [markdown]
# ### Exercise 6.7 · Assemble: a translator from your own parts
#
# Difficulty ●●●●● · 60 minutes · needs section 6 and exercises 6.1 to 6.3
#
# Now everything comes together in one class, for sources that *are* padded. Call your own functions where you can, for instance `additive_weights(h, states, self.W_q.weight, self.W_k.weight, self.v.weight[0], mask)`. The library's models are not allowed. (If a loss looks too good to be true: section 11.) The constructor makes eight layers, with these names:
#
# - `source_embedding` and `target_embedding`, `nn.Embedding` of width I; `encoder`, `nn.GRU(I, D, batch_first=True)`;
# - `W_q` and `W_k` (from D to A) and `v` (from A to 1), `nn.Linear` without bias;
# - `decoder`, an `nn.GRUCell` that reads $[e(y_{t-1}), c_t]$, in this order; `output`, `nn.Linear` from $h_t$ to the V logits.
#
# The query of step $t$ is $h_{t-1}$, and $h_0$ is the encoder's state after each row's *own* last token. The check runs your model in float64 and compares five digits, the gradients too.


# %% nbgrader={"grade": false, "grade_id": "ex06-7-own-translator", "locked": false, "schema_version": 3, "solution": true, "task": false}
class OwnTranslator(nn.Module):
    """A GRU encoder-decoder with additive attention, for padded sources."""

    def __init__(self, source_size, target_size, embedding_dim, hidden_size, attention_size):
        super().__init__()
        ### BEGIN SOLUTION
        self.source_embedding = nn.Embedding(source_size, embedding_dim)
        self.encoder = nn.GRU(embedding_dim, hidden_size, batch_first=True)
        self.target_embedding = nn.Embedding(target_size, embedding_dim)
        self.W_q = nn.Linear(hidden_size, attention_size, bias=False)
        self.W_k = nn.Linear(hidden_size, attention_size, bias=False)
        self.v = nn.Linear(attention_size, 1, bias=False)
        self.decoder = nn.GRUCell(embedding_dim + hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, target_size)
        ### END SOLUTION

    def read(self, source, mask):
        """All states (B, S, D) and h_0 (B, D) of source (B, S); mask (B, S) bool, True = a real token, padding last."""
        ### BEGIN SOLUTION
        states, _ = self.encoder(self.source_embedding(source))
        return states, states[torch.arange(len(source)), mask.sum(dim=1) - 1]
        ### END SOLUTION

    def step(self, tokens, h, states, mask):
        """Logits (B, V) of the next words and the new state (B, D), from the previous words (B,) and state (B, D)."""
        ### BEGIN SOLUTION
        scores = self.v(torch.tanh(self.W_q(h)[:, None] + self.W_k(states)))[..., 0]
        weights = scores.masked_fill(~mask, -math.inf).softmax(dim=1)  # (B, S)
        context = (weights[..., None] * states).sum(dim=1)  # (B, D)
        h = self.decoder(torch.cat([self.target_embedding(tokens), context], dim=1), h)
        return self.output(h), h
        ### END SOLUTION

    def forward(self, source, mask, inputs):
        """Logits (B, T, V) under teacher forcing; inputs (B, T) are what the decoder reads."""
        ### BEGIN SOLUTION
        states, h = self.read(source, mask)
        rows = []
        for tokens in inputs.unbind(dim=1):
            logits, h = self.step(tokens, h, states, mask)
            rows.append(logits)
        return torch.stack(rows, dim=1)
        ### END SOLUTION

    def learn(self, optimizer, source, mask, target, pad):
        """One update, without clipping, on target (B, T + 1), as in exercise 6.1; the loss before it, a float."""
        ### BEGIN SOLUTION
        logits = self(source, mask, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=pad)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.item()
        ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex06-7-own-translator-check", "locked": true, "points": 5, "schema_version": 3, "solution": false, "task": false}
ch06.own_translator(OwnTranslator)

# %% [markdown]
# The next cell trains your class on the toy language, in padded batches, and translates three new sentences with *your* `greedy_decode`.


# %% tags=["fold", "nbval-ignore-output"]
# @title Train your translator; let it translate
def train_your_own(epochs=2):
    """Train OwnTranslator by its own `learn`; print translations by the reader's own greedy_decode."""
    set_seed(0)
    yours = OwnTranslator(V_source, V, 64, 64, 64)
    optimizer = torch.optim.Adam(yours.parameters(), lr=0.005)
    order = torch.Generator().manual_seed(0)
    for epoch in range(1, epochs + 1):
        batches = list(translation.translation_batches(*task.train, 32, generator=order))
        for part in tqdm(batches, leave=False):
            whole_target = torch.cat([part.target_in, part.target_out[:, -1:]], dim=1)
            ends = part.target_real.sum(dim=1)
            whole_target[torch.arange(len(ends)), ends] = text.EOS
            loss = yours.learn(optimizer, part.source, part.source_real, whole_target, text.PAD)
        print(f"epoch {epoch}, loss {loss:.2f}")
    with torch.no_grad():
        mask_of_three = text.pad_batch(task.test[0][:3])
        read_states, h_0 = yours.read(*mask_of_three)

        def one_step(tokens, h):
            return yours.step(tokens, h, read_states, mask_of_three[1])

        rows_of_ids = greedy_decode(one_step, h_0, text.SOS, text.EOS, 30)
    for p, row in zip(task.test_pairs[:3], rows_of_ids, strict=True):
        print("\nsource:   ", *p.source)
        print("reference:", *p.target)
        print("yours:    ", *text.denumericalize(row, task.target_vocab))


try:
    train_your_own()
except NotImplementedError:
    print("Not yet: this needs exercises 6.2 and 6.7.")

# %% [markdown]
# ## Summary
#
# 1. An encoder reads the source into states; a decoder, a language model that is given the source, writes a target of any length, until it writes `<eos>`.
# 2. Training feeds the reference (teacher forcing): shift the target by one, count real tokens only, keep `<eos>`. Alone, the decoder is fed its own predictions and usually does worse; a loss with the reference and one without it cannot rank two models.
# 3. It matters how often the decoder sees the vector: *every step* ended above 95 BLEU, *once* below 50, in all three runs and after the same 1,008 updates.
# 4. Attention gives the decoder a new weighted mean of all encoder states at each step. On real captions it leads by more on the longer ones.
# 5. A beam keeps several beginnings, and a length penalty makes sentences of different lengths comparable; neither adds knowledge.
#
# ## Where next
#
# *Chapter 07* takes attention out of the recurrent network: other scores, keys apart from values, many heads, and sequences that attend to themselves. *Chapter 09* lets a Transformer write with the same `greedy` and `beam_search`.
#
# ## References
#
# - K. Cho et al., *Learning phrase representations using RNN encoder-decoder for statistical machine translation*, EMNLP 2014, arXiv:1406.1078: section 2.2 (*every step*).
# - I. Sutskever, O. Vinyals, Q. Le, *Sequence to sequence learning with neural networks*, NIPS 2014, arXiv:1409.3215: sections 2, 3.2 (beams), 3.3 (source reversed).
# - D. Bahdanau, K. Cho, Y. Bengio, *Neural machine translation by jointly learning to align and translate*, ICLR 2015, arXiv:1409.0473: equations 4 to 6; figures 2 and 3.
# - M. Ranzato et al., *Sequence level training with recurrent neural networks*, ICLR 2016, arXiv:1511.06732: section 1 names exposure bias.
# - Y. Wu et al., *Google's neural machine translation system*, 2016, arXiv:1609.08144: equation 14 (length penalty).
# - P. Koehn, R. Knowles, *Six challenges for neural machine translation*, 2017, arXiv:1706.03872: section 3.6 (beam search).
# - F. Stahlberg, B. Byrne, *On NMT search errors and model errors: cat got your tongue?*, EMNLP 2019, arXiv:1908.10090: the most probable translation is often empty.
# - D. Elliott et al., *Multi30K: multilingual English-German image descriptions*, Workshop on Vision and Language 2016, arXiv:1605.00459.
# - Videos: *Deep Learning for Natural Language Processing*, https://youtu.be/6D4EWKJgNn0; *Recurrent Neural Networks*, MIT 6.S191, https://www.youtube.com/watch?v=SEnXr6v2ifU.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question.

# %% [markdown] tags=["deeper"]
# ### What is in the context vector?
#
# If $c$ is an embedding of the sentence, then sentences with similar vectors should say similar things. For each of the 500 test sentences we look up the nearest neighbour, by the Euclidean distance of their vectors, in *once* of the first screen (one model, so an example). Which do neighbours share most often: the time (*yesterday*), the subject, the object, or the verb?


# %% tags=["fold"]
# @title Context vectors, and what each sentence says
def facts(pair):
    """What a sentence says: its time, subject, object and verb."""
    beings = [word for word in pair.source if word in synthetic.BEINGS]
    end = pair.target[-2] if pair.target[-1] == "ne" else pair.target[-1]  # the verb, perhaps denied
    when = next((word for word in pair.source if word in synthetic.TIMES), "no time")
    return {"time": when, "subject": beings[0], "object": beings[1], "verb": end[:-2]}


@torch.no_grad()
def context_vectors(sources):
    """The context vectors (B, D) of the first screen's *once*."""
    return library_once.eval().encoder(*text.pad_batch(sources))[1]


vectors = context_vectors(task.test[0])
said = [facts(p) for p in task.test_pairs]
distances = torch.cdist(vectors, vectors).fill_diagonal_(math.inf)
nearest = distances.argmin(dim=1).tolist()

# %% tags=["fold", "reveal", "nbval-ignore-output"]
# @title What nearest neighbours share
shared = {fact: sum(said[i][fact] == said[j][fact] for i, j in enumerate(nearest)) / 500 for fact in said[0]}
by_chance = {
    fact: sum(each[fact] == said[i - 1][fact] for i, each in enumerate(said)) / 500 for fact in said[0]
}
table(
    ["share the", "nearest neighbours", "two at random"],
    [[fact, f"{shared[fact]:.1f}", f"{by_chance[fact]:.1f}"] for fact in shared],
)

# %% tags=["fold", "reveal"]
# @title Which most often?
claim(
    "Neighbours share the time more often than anything else, in more than 4 of 5 pairs.",
    shared["time"] > 0.8 and shared["time"] == max(shared.values()),
    **shared,
)
claim(
    "They share the verb about as often as two sentences at random: the difference is below 5 in 100.",
    abs(shared["verb"] - by_chance["verb"]) < 0.05,
    at_random=by_chance["verb"],
)

# %% [markdown]
# Subject and object come next; the verb is shared no more than by chance. Can we see the time? We look for the plane in which the mean vectors of the four times lie furthest apart. It is fitted on 500 *training* sentences; the picture and the score are of the test sentences, which it has not seen.

# %%
times = ["no time", "today", "yesterday", "tomorrow"]
training_pairs = synthetic.translation_pairs(500, seed=0)  # task.train's first
fitted = context_vectors(task.train[0][:500])
fitted_group = torch.tensor([times.index(facts(p)["time"]) for p in training_pairs])
means = torch.stack([fitted[fitted_group == k].mean(dim=0) for k in range(4)])  # (4, D)
_, _, directions = torch.linalg.svd(means - means.mean(dim=0), full_matrices=False)
group = torch.tensor([times.index(each["time"]) for each in said])  # (500,)
flat = vectors @ directions[:2].T  # (500, 2)

# %%
figures.context_vectors(flat, group, times)

# %% tags=["fold"]
# @title Checked: nearest to the mean of its own time
own_mean = torch.cdist(flat, means @ directions[:2].T).argmin(dim=1) == group
claim(
    "In this plane at least 7 of 10 new sentences lie nearest to the training mean of their own time.",
    own_mean.double().mean() > 0.7,
    fraction=own_mean.double().mean(),
)

# %% [markdown]
# So the vector of this model is an embedding of the sentence, and first of all of its time: what the decoder needs first, and what was read last. Distances cannot tell whether the rest is missing or merely takes up little room.

# %% [markdown] tags=["deeper"]
# ### Would a wider state, or a second direction, have helped *once*?
#
# Section 5 changed when the context is shown. Here are the other two obvious repairs, from the ledger, after as many updates: twice the width, and an encoder that reads from both ends (32 units in each direction).

# %% tags=["fold"]
# @title Four recorded translators without attention
REPAIRS = {
    "once": ("toy-context", "once"),
    "once, twice as wide": ("toy-translation", "no attention"),
    "once, two directions": ("toy-context", "once, two directions"),
    "every step": ("toy-context", "every step"),
}
table(
    ["translator", "parameters", "BLEU", "perfect (fraction)"],
    [
        [name, *(with_range(*where, metric) for metric in ("parameters", "bleu", "exact"))]
        for name, where in REPAIRS.items()
    ],
)
repaired = {name: ledger.values(*where, "bleu") for name, where in REPAIRS.items()}
claim(
    "In each of three seeds two directions are better than one, and both repairs stay more than 30 BLEU below *every step*.",
    all(two > one for one, two in zip(repaired["once"], repaired["once, two directions"], strict=True))
    and min(repaired["every step"])
    > max(repaired["once, twice as wide"] + repaired["once, two directions"]) + 30,
)

# %% [markdown]
# Sutskever's translators had another trick: they read the source *backwards*, so that its first words stand close to the first words of the translation. In our language the time is read last and written first, so the order is favourable already for that one word.

# %% [markdown] tags=["deeper"]
# ### Should the decoder be trained on its own predictions?
#
# It can be: feed the model's own prediction with probability $1 - p$ in training too, and let $p$ fall from 1 to 0. That is **scheduled sampling** (Bengio et al. 2015). With $p = 0$ throughout, the model is never fed the reference, though it is still scored against it. The recorded models are *once*, with 128 units, and *attention*, with 64; each has the same number of updates.

# %% tags=["fold"]
# @title Five recorded translators
FED = {
    "forced_perplexity": "perplexity, fed the reference",
    "free_perplexity": "fed its own predictions",
    "exact": "perfect (fraction)",
    "bleu": "BLEU",
}
FIVE = {
    "no attention": "once, trained on the reference",
    "no attention, scheduled": "once, scheduled sampling",
    "no attention, own words": "once, own predictions",
    "attention": "attention, trained on the reference",
    "attention, own words": "attention, own predictions",
}
table(
    ["trained translator", *FED.values()],
    [[name, *(with_range("toy-translation", variant, metric) for metric in FED)] for variant, name in FIVE.items()],
)

# %%
figures.fed_in_training()

# %% tags=["fold"]
# @title In numbers, in every seed


def growth(variant):
    """Perplexity fed its own predictions over perplexity fed the reference, for each seed."""
    both = [ledger.values("toy-translation", variant, f"{way}_perplexity") for way in ("free", "forced")]
    return [free / forced for free, forced in zip(*both, strict=True)]


ends = {variant: ledger.values("toy-translation", variant, "bleu") for variant in FIVE}
claim(
    "For *once*, trained on the reference, the perplexity rises by more than a third when it is fed its own words, in each of three seeds; trained on its own predictions, by less than a tenth.",
    min(growth("no attention")) > 4 / 3 and max(growth("no attention, own words")) < 1.1,
)
claim(
    "For *once*, own predictions end higher in some seeds and lower in others; scheduled sampling is last in each. For *attention* both end at 100 BLEU.",
    0 < sum(own > ref for own, ref in zip(ends["no attention, own words"], ends["no attention"], strict=True)) < 3
    and all(s < min(t, o) for t, s, o in zip(*(ends[v] for v in list(FIVE)[:3]), strict=True))
    and min(ends["attention"] + ends["attention, own words"]) > 99.9,
)

# %% [markdown]
# So training on its own predictions removes most of the gap between the two perplexities. Whether the translations get better is another question, and the answer here depends on the seed. This language is kind. Each source has one translation, so the reference often stays aligned after a slip; only a forgotten or added word shifts it. In natural text the reference rarely stays aligned, and the model is scored against words that no longer fit (Huszár 2015 shows that the objective of scheduled sampling is not consistent). And the T steps of training can no longer be computed at once.
#
# - S. Bengio, O. Vinyals, N. Jaitly, N. Shazeer, *Scheduled sampling for sequence prediction with recurrent neural networks*, NIPS 2015, arXiv:1506.03099: section 2.4.
# - F. Huszár, *How (not) to train your generative model: scheduled sampling, likelihood, adversary?*, 2015, arXiv:1511.05101: the objective of scheduled sampling is improper.

# %% [markdown] tags=["deeper"]
# ### Does a beam help on the toy language?
#
# *Once* is unsure enough to be worth a search. What does it gain there, and what does *attention* gain?

# %% tags=["fold"]
# @title A beam of 5 against greedy search, recorded
beam_gain = {
    variant: [
        b - a
        for a, b in zip(
            ledger.values("toy-translation", variant, "bleu"),
            ledger.values("toy-translation", variant, "bleu_beam_5"),
            strict=True,
        )
    ]
    for variant in ("no attention", "attention")
}
claim(
    "For the recorded *once* and *attention* a beam of 5 changes BLEU by less than one point, in each of three seeds.",
    max(abs(points) for each in beam_gain.values() for points in each) < 1,
    **beam_gain,
)

# %% [markdown]
# Next to nothing: *once* does not know the nouns, and no search can supply them; *attention* is sure of every word.

# %% [markdown] tags=["deeper"]
# ### How do other books write it?
#
# Bahdanau's paper, and the docstrings of `course_lib.seq2seq`, write $h$ for the encoder's states and $s$ for the decoder's; Luong's papers have a bar over the encoder's, as here. The paper's vectors are columns ($v^\top \tanh(W_a s + U_a h)$). In Bahdanau's decoder the readout sees $[h_t, e(y_{t-1}), c_t]$ and has a maxout layer, and the first state is $\tanh$ of a learned map of the encoder's *backward* state; the library follows it more closely than this chapter's plain version. Luong et al. (2015) ask with $h_t$ where Bahdanau asks with $h_{t-1}$. So in some models the row of weights that explains word $t$ is off by one: compare with an alignment that you know.
#
# The library's versions (`seq2seq.Encoder`, `Decoder`, `AttentionDecoder`) add what a first version leaves out: padded sources, LSTM and stacked layers, two directions, dropout, a learned map between $c$ and $h_0$, a hidden layer before the logits, and *tied weights*: the logits are made with the target's embeddings (Press and Wolf 2017, arXiv:1608.05859), which are multiplied by $\sqrt{D}$ where they are read. `feed_context=True` makes its `Decoder` that of section 5.
