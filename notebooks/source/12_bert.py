# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 260
#     needs: "chapters 07 to 09; 11 helps"
# ---

# %% [markdown]
# # 12 · BERT
#
# A hundred film reviews are labelled: good or bad. 3,608 others have no label. A network trained briefly on the hundred alone is often wrong. Can the others help it? It could *read* them first: hide words, guess them, and so learn how reviews are written. That is BERT's idea: first read a lot without labels, then learn from a few. **How many new reviews will it then judge right?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("pretrain_finetune")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import itertools
import math
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import text
from course_lib.attention import MultiHeadAttention, attention_weights
from course_lib.bert import (
    BERT,
    IGNORE,
    BERTConfig,
    BERTForPreTraining,
    join_pair,
    mask_tokens,
    pretraining_loss,
    sentence_pairs,
)
from course_lib.cost import formulas
from course_lib.datasets import DataError, synthetic
from course_lib.exercises import ch12
from course_lib.experiments import minilm
from course_lib.experiments import toy_bert as toys
from course_lib.experiments.toy_bert import CLS, FIRST, MASK, SEP
from course_lib.functional import causal_mask
from course_lib.notebook import (
    claim,
    diagrams,
    ledger,
    predict,
    table,
)
from course_lib.notebook.figures import ch12 as figures
from course_lib.optim import linear_schedule
from course_lib.train import set_seed
from course_lib.utils import huggingface, number_of_parameters

set_seed(0)

# %% [markdown]
# The reviews are artificial, so that all of this runs in seconds. A small grammar writes them, from 40 words and punctuation marks; it can write 4,608 in all. The network reads 3,608 of them. 400 are the new ones that it will judge. The other 600 have labels, of which it gets a hundred. The network is a Transformer's encoder (chapter 09) of two layers and width 64. Three of the 400 new reviews, with the labels that it must find:

# %%
task = toys.review_task(seed=0)
vocab, V = task.vocab, len(task.vocab)
hundred = task.labelled[:100]
for review in task.reviews[:3]:  # of the 400 to be judged
    print("+" if review.label else "-", " ".join(review.words))

# %%
guess_1 = predict(
    "the share of new reviews that it judges right, once it has read the 3,608", ...
)

# %% tags=["fold"]
# @title The run, with the library's network
untrained = toys.small_bert(task)
small_bert = copy.deepcopy(untrained)
toys.pretrain(small_bert, task, seed=0)  # 800 steps; no label is read here
judges = {
    "pre-trained": toys.finetune(small_bert.bert, hundred),  # 150 steps
    "from scratch": toys.finetune(untrained.bert, hundred),  # the same 150 steps
}

# %% tags=["reveal"]
tuned, scratch = (toys.accuracy(judge, task.test) for judge in judges.values())
guess_1.compare(f"{tuned:.2f}, and {scratch:.2f} from the hundred alone (one seed)")

# %% tags=["fold", "reveal", "nbval-ignore-output"]
# @title Some of the 400 new reviews
def verdicts(judge):
    """One bool a test review: True = positive."""
    rows, real = text.pad_batch([row for row, _ in task.test])
    with torch.no_grad():
        return (judge(rows, real).argmax(-1) == 1).tolist()


SIGN = {True: "+", False: "-"}
said = list(zip(task.reviews, *map(verdicts, judges.values()), strict=True))
differ = [each for each in said if each[1] != each[2]][:3]
table(
    ["review", "its label", "pre-trained", "from scratch"],
    [
        [" ".join(review.words), SIGN[bool(review.label)], SIGN[tuned_says], SIGN[scratch_says]]
        for review, tuned_says, scratch_says in differ + [each for each in said if each not in differ][:2]
    ],
)

# %% tags=["fold", "reveal"]
# @title What the reading gained
means = [ledger.summary("bert-toy", f"{way}, 100 labels", "accuracy")[0] for way in ("pre-trained", "from scratch")]
claim(
    "With 100 labels the pre-trained network is right on more than 85 % of new reviews, and more than 5 points ahead of the same network from scratch.",
    tuned > 0.85 and tuned > scratch + 0.05,
    **{"pre-trained": tuned, "from scratch": scratch},
)
claim(
    f"In the recorded runs, three seeds, the means are {means[0]:.2f} with the reading and {means[1]:.2f} without.",
    means[0] > means[1] + 0.2,
)

# %% [markdown]
# Same network, same hundred labels, the same 150 steps on them: only one of the two has read before. Its reading took 800 steps more; section 5 gives the other network as many.
#
# In so small a language 0.97 means less than it seems. The network reads 78 % of its reviews, and each of the 400 new ones differs from one of these in a single word.

# %% tags=["fold"]
# @title Checked: how new the new reviews are
def with_a_gap(rows):
    """Every row with each of its tokens left out in turn: two rows share one of these if they differ in one token."""
    return {(t, *row[:t], *row[t + 1 :]) for row in rows for t in range(len(row))}


gaps_read, rows_read = with_a_gap(task.unlabelled), {tuple(row) for row in task.unlabelled}
claim(
    "78 % of all reviews of the language are read. None of the 400 new ones is among them, and each differs in one word from one that is.",
    round(len(rows_read) / len(toys.review_text()), 2) == 0.78
    and len(task.test) == 400
    and all(tuple(row) not in rows_read and with_a_gap([row]) & gaps_read for row, _ in task.test),
)

# %% [markdown]
# **Sections 1 to 5, some 80 minutes,** build such a judge in your own code: hide words of one sentence by hand (1), build the network that guesses them (2), decide how to hide (3), let the network read (4), and give it a new last layer that judges (5).
#
# **Sections 6 to 8, for a second sitting,** take the same steps with real words and a published network, and search with it.
#
# ### You will be able to
#
# 1. hide tokens as BERT does, and say what each of the three replacements is for (exercise 12.1);
# 2. write BERT's loss, and assemble a step of its pre-training (12.2, 12.3);
# 3. fine-tune a classifier, save it and use it (section 5), and compare it fairly with no pre-training (12.5);
# 4. cut words into WordPieces (12.4);
# 5. count the parameters of BERT-base and BERT-large (12.6);
# 6. search texts by meaning with an encoder's vectors (12.7).
#
# **Letters.** `B` sequences of a batch, `T` tokens of a sequence, `D` width, `H` heads, `V` size of the vocabulary, `N` layers, `L` maximum sequence length, `n` chosen positions.

# %% [markdown]
# ## 1 · One sentence, masked by hand
#
# **What can be learned from a text that nobody has labelled?** *The ___ was not boring, it was wonderful.* You can say something about the missing word at once, because you know how people write about films. So nobody needs to label anything: hide words of any text, and the text itself is the answer key. (Taylor's *cloze procedure* of 1953.)
#
# We do it for one sentence. First words become ids, between two special tokens: `[CLS]` begins every input, `[SEP]` ends it.

# %%
words = "the plot was not boring , it was wonderful .".split()
plot_ids = torch.tensor([[CLS, *(vocab.stoi[word] for word in words), SEP]])
print("tokens", *(vocab.itos[i] for i in plot_ids[0]))
print("ids   ", tuple(plot_ids.shape), plot_ids[0].tolist())  # (B, T)

# %% [markdown]
# **Hide two words.** In the input the tokens 2 and 8, counted from 0, become `[MASK]`. These are the **chosen positions**, the only ones where a prediction counts. The **targets** hold the old token there, and -100 everywhere else, which a loss in torch leaves out.

# %%
chosen = [2, 8]
masked_ids = plot_ids.clone()
masked_ids[0, chosen] = MASK
old_words = torch.full_like(plot_ids, -100)  # the targets
old_words[0, chosen] = plot_ids[0, chosen]
print("inputs ", *(vocab.itos[i] for i in masked_ids[0]))
print("targets", old_words[0].tolist())  # (B, T)

# %% [markdown]
# **Predict.** What would *you* say? Token 8 is *was*, without a doubt. Token 2 must be a *thing*: these reviews know eight, and nothing says which it is. So give *was* the probability 1, and each thing 1/8.
#
# **The loss** is the negative log-probability of the old token, averaged over the chosen positions alone. The other ten positions show their own answer, so they prove nothing. For your prediction, and for a blind guess among all V = 45 tokens:

# %%
for name, probs in {"yours": [1 / 8, 1], "blind": [1 / V, 1 / V]}.items():
    nats = [math.log(1 / p) for p in probs]  # of "plot" and of "was"
    print(f"{name} {nats[0]:.2f} and {nats[1]:.2f}: mean {sum(nats) / 2:.2f} nats")

# %% tags=["fold"]
# @title Checked: what can be known about the two words
fitting = [
    review.words
    for review in toys.review_text()
    if len(review.words) == len(words) and all(i + 1 in chosen or word == words[i] for i, word in enumerate(review.words))
]
claim(
    "Of all reviews of the language that fit the visible words, each has *was* there, and the eight things occur equally often.",
    {review[7] for review in fitting} == {"was"}
    and sorted(Counter(review[1] for review in fitting).values()) == [len(fitting) / 8] * 8,
)

# %% [markdown]
# In one formula, with $C$ the set of the $n$ chosen positions and $\tilde x$ for the input with its masks:
#
# $$ \text{loss} = -\frac{1}{n} \sum_{t \in C} \log p(x_t \mid \tilde x), $$
#
# in **nats per chosen token**. A network trained this way is called a **masked language model**.
#
# **Why hide words, when one could predict the *next* word, as in all chapters so far?** Because what decides may stand on the right: *i ___ the plot lovely , although critics called it boring .* From *i* alone three verbs are possible; the whole review leaves only *found*. A network that predicts the next word must not look to its right, where that word stands. A masked word is not in the input at all, so the network may look both ways, in every layer. (*Going deeper* counts what the right side is worth.)
#
# Which network looks both ways?

# %% [markdown]
# ## 2 · The network that guesses
#
# **What does the network that guesses the words look like?** It is chapter 09's encoder with small differences, named as they come.

# %%
diagrams.show("plain_bert")

# %% [markdown]
# The block first: attention over both sides, then a feed-forward network, each added to its input and normalised (Post-LN). GELU is a smooth ReLU.

# %%
class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.attend = MultiHeadAttention(D, H)  # chapter 07
        self.think = nn.Sequential(nn.Linear(D, 4 * D), nn.GELU(), nn.Linear(4 * D, D))
        self.norm1 = nn.LayerNorm(D, eps=1e-12)  # as in BERT's released code
        self.norm2 = nn.LayerNorm(D, eps=1e-12)

    def forward(self, x, mask):  # (B, T, D), (B, 1, 1, T): True = a real token
        x = self.norm1(x + self.attend(x, mask=mask))  # no causal mask: both sides
        return self.norm2(x + self.think(x))

# %% [markdown]
# Each token enters as the sum of three *learned* vectors: which token it is, at which position it is, and in which of two texts (its *segment*; a single text is all segment 0). They are rows of three tables, $E$ (V, D), $P$ (L, D) and $S$ (2, D). Chapter 09's factor $\sqrt D$ is gone: a LayerNorm brings the sum to one size:
#
# $$ x_t = \mathrm{LayerNorm}(E[\text{id}_t] + P[t] + S[\text{segment}_t]). $$

# %%
class PlainBERT(nn.Module):
    def __init__(self, V, D=64, H=4, N=2, L=32):
        super().__init__()
        self.token = nn.Embedding(V, D)  # E
        self.position = nn.Embedding(L, D)  # P
        self.segment = nn.Embedding(2, D)  # S
        self.norm = nn.LayerNorm(D, eps=1e-12)
        self.blocks = nn.ModuleList(Block(D, H) for _ in range(N))

    def forward(self, ids, real, segments=None):  # (B, T) each
        segments = torch.zeros_like(ids) if segments is None else segments
        positions = torch.arange(ids.shape[1], device=ids.device)  # (T,)
        x = self.token(ids) + self.position(positions) + self.segment(segments)
        x = self.norm(x)  # (B, T, D)
        for block in self.blocks:
            x = block(x, real[:, None, None])  # (B, 1, 1, T): no look at padding
        return x  # (B, T, D)

# %% [markdown]
# On top is the **head** of the masked language model. A small layer prepares each vector, which is then compared with every row of the token table by a dot product. So the output layer *is* the embedding table, read backwards ("tied" weights), with one bias for each token.

# %%
class MaskedLM(nn.Module):
    def __init__(self, bert):
        super().__init__()
        V, D = bert.token.weight.shape
        self.bert = bert
        norm = nn.LayerNorm(D, eps=1e-12)
        self.prepare = nn.Sequential(nn.Linear(D, D), nn.GELU(), norm)
        self.bias = nn.Parameter(torch.zeros(V))

    def forward(self, ids, real):  # (B, T) each
        x = self.prepare(self.bert(ids, real))  # (B, T, D)
        return x @ self.bert.token.weight.T + self.bias  # (B, T, V)

# %% [markdown]
# A new network starts with small random numbers in its tables and matrices, as in BERT's released code (where biases start at 0; here they stay torch's). With torch's usual tables the logits would be huge. For the masked sentence of section 1:

# %%
def init_small(network):
    for parameter in network.parameters():
        if parameter.ndim == 2:  # tables and matrices, no biases
            nn.init.normal_(parameter, std=0.02)
    return network


set_seed(0)
reader = init_small(MaskedLM(PlainBERT(V)))
all_real = torch.ones_like(masked_ids, dtype=torch.bool)
logits = reader(masked_ids, all_real)
loss = F.cross_entropy(logits.flatten(0, 1), old_words.flatten())  # skips -100
print("ids       ", tuple(masked_ids.shape))
print("vectors   ", tuple(reader.bert(masked_ids, all_real).shape))
print("logits    ", tuple(logits.shape))
print("parameters", number_of_parameters(reader))
print(f"loss       {loss:.2f} nats, a blind guess {math.log(V):.2f}")

# %% [markdown]
# It returns V logits for *every* position, though only two count, and guesses about as well as a blind one. To watch it learn we take one gap: *i found the plot lovely , ___ critics called it boring .* `fill` gives the probabilities at each gap of a sentence, `best_three` names the likeliest words:

# %% tags=["nbval-ignore-output"]
def fill(network, sentence):
    """Probabilities (n, V) at the n gaps `_` of a sentence."""
    words = [MASK if word == "_" else vocab.stoi[word] for word in sentence.split()]
    ids = torch.tensor([[CLS, *words, SEP]])
    with torch.no_grad():
        logits = network(ids, torch.ones_like(ids, dtype=torch.bool))
    return logits[ids == MASK].softmax(dim=-1)


def best_three(probs):  # (V,)
    return ", ".join(f"{vocab.itos[i]} {probs[i]:.2f}" for i in probs.topk(3).indices)


gap = "i found the plot lovely , _ critics called it boring ."
print(best_three(fill(reader, gap)[0]))

# %% [markdown]
# It knows nothing yet.
#
# - Left out here: BERT's dropout, and its second head, which learned from `[CLS]` whether the second of two texts followed the first (*next sentence prediction*). RoBERTa dropped it.
#
# What should our network be asked, so that it learns?

# %% [markdown]
# ## 3 · How to hide
#
# **How many words should be hidden, and what stands in their place?** If few are chosen, each pass over the text teaches little; if many, too little context is left. BERT chooses **15 %** of the tokens, at random.
#
# Should they all become `[MASK]`? Later BERT will read texts in which every word is visible and no `[MASK]` occurs. A network that only ever had to think at `[MASK]` might neglect the words it can see. So one of three things happens to a chosen token:
#
# - **80 % become `[MASK]`:** a gap to be filled.
# - **10 % become a random token:** a visible word may be wrong, so *every* word must be checked against its context.
# - **10 % stay as they are:** the vector of a visible word must still say which word it is.
#
# The loss counts all of them: the targets hold the old token in each case. In code `fate`, a random number from 0 to 1, decides: below 0.8 the mask, from 0.9 on a random word, between the two no change. Special tokens and padding are never chosen:

# %%
def hide_words(ids, real, draws):  # (B, T) each, and a generator
    maskable = real & (ids >= FIRST)  # FIRST: the id of the first word
    chosen = maskable & (torch.rand(ids.shape, generator=draws) < 0.15)
    fate = torch.rand(ids.shape, generator=draws)
    random_words = torch.randint(FIRST, V, ids.shape, generator=draws)
    inputs = ids.clone()
    inputs[chosen & (fate < 0.8)] = MASK
    replaced = chosen & (fate >= 0.9)
    inputs[replaced] = random_words[replaced]
    targets = ids.masked_fill(~chosen, -100)
    return inputs, targets  # (B, T) each

# %% [markdown]
# Our sentence, hidden three times. Each call chooses anew, so in later passes over the text other words are asked for. Of the targets we print what is not -100, with its position:

# %%
draws = torch.Generator().manual_seed(8)  # a seed that shows all three
for _ in range(3):
    inputs, targets = hide_words(plot_ids, all_real, draws)
    print("inputs ", *(vocab.itos[i] for i in inputs[0]))
    asked = [f"{t} {vocab.itos[i]}" for t, i in enumerate(targets[0]) if i != -100]
    print("targets", ", ".join(asked))

# %% [markdown]
# In the third call all three happen: *not* became `[MASK]`, *wonderful* became *would*, and *the* stays, though it is asked for.
#
# - The reasons for the three replacements are the paper's (appendix A.1).
# - 15 % is no law: for models of BERT-large's size Wettig et al. (2023) found 40 % better.
#
# So a step of pre-training is: hide, predict, measure, improve.

# %% tags=["fold"]
# @title Checked: your lines and the library's
def parameters_of(network):
    """All but those of BERT's second task, which your network leaves out; the rest stand in the same order."""
    return [p for name, p in network.named_parameters() if not name.startswith(("bert.pooler", "pair"))]


def copy_weights(source, target):
    """The target, with the source's numbers in it."""
    with torch.no_grad():
        for theirs, mine in zip(parameters_of(source), parameters_of(target), strict=True):
            mine.copy_(theirs)
    return target


test_ids, test_real = text.pad_batch([row for row, _ in task.test])
words_only = test_real & (test_ids >= FIRST)


def hide_in_tests(seed):
    """Hide words of the 400 test reviews."""
    return hide_words(test_ids, test_real, torch.Generator().manual_seed(seed))


with torch.no_grad():
    our_logits = copy_weights(untrained, MaskedLM(PlainBERT(V)))(test_ids, test_real)
    library_logits, _ = untrained(test_ids, test_real)
claim(
    "With the same weights your network and the library's give the same logits at all real tokens of 400 padded reviews.",
    torch.allclose(library_logits[test_real], our_logits[test_real], atol=1e-5),
    largest_difference=(library_logits - our_logits)[test_real].abs().max(),
)
by_library = mask_tokens(test_ids, words_only, V, MASK, generator=torch.Generator().manual_seed(0), first_regular_id=FIRST)
claim(
    "With the same draws `hide_words` hides the same words of the 400 reviews as the library's `mask_tokens`.",
    all(torch.equal(mine, theirs) for mine, theirs in zip(hide_in_tests(0), by_library, strict=True)),
)

# %% [markdown]
# ## 4 · The reading
#
# **How does the network learn to guess?** By an ordinary loop. Two helpers come first:
#
# - `endless` gives batches without end, pass after pass over the reviews;
# - `adamw` gives AdamW a rate that rises for a tenth of the steps, then falls to 0 (chapter 11).

# %%
def endless(rows, labels, size, draws):
    while True:  # one pass after another, each in a new order
        yield from text.batches(rows, labels, size, generator=draws)


def adamw(network, rate, steps):
    def share(step):  # of the rate: up to 1, then down to 0
        return linear_schedule(step, warmup=steps // 10, total=steps)

    optimizer = torch.optim.AdamW(network.parameters(), rate)
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, share)

# %% [markdown]
# Now the loop: hide, predict, measure, improve, 800 times.
#
# - No label is read: zeros stand in for the labels.
# - Gradients are clipped at 1 before each step; after it `schedule` sets the next rate.
# - Every 200 steps we print the mean of the last 50 losses, and look at the gap.

# %% tags=["nbval-ignore-output"]
set_seed(0)
reader = init_small(MaskedLM(PlainBERT(V)))  # section 2's
draws = torch.Generator().manual_seed(0)
stream = endless(task.unlabelled, [0] * len(task.unlabelled), 32, draws)
optimizer, schedule = adamw(reader, 0.003, steps=800)
losses = []
for step in tqdm(range(1, 801), leave=False):
    ids, real, _ = next(stream)
    inputs, targets = hide_words(ids, real, draws)  # hide
    logits = reader(inputs, real)  # predict: (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())  # measure
    optimizer.zero_grad()  # improve, down to schedule.step()
    loss.backward()
    nn.utils.clip_grad_norm_(reader.parameters(), 1.0)
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    if step % 200 == 0:
        print(f"step {step}, loss {sum(losses[-50:]) / 50:.2f}", end=": ")
        print(best_three(fill(reader, gap)[0]))

# %% [markdown]
# At the end the network is nearly sure. *But* would be good English too; this language always says *although* there.
#
# **Is the loss low?** The figure compares it with three others:
#
# - $\ln V$ = 3.81 is the loss of a blind guess.
# - The *unigram* entropy, 3.36, is the loss of a network that knows only how often each word occurs.
# - A **perfect reader**, 0.41, knows every review of the language, and computes the best guess. It is not told which of them the network read; a network that remembers these could get below it.

# %% tags=["fold"]
# @title The perfect reader
def perfect_reader(draws=2, seed=12345):
    """Its mean loss at the positions that `toys.masked_scores` chooses, what it expects by Bayes' rule, and at [MASK] alone.

    All reviews of the language are equally likely beforehand; none is excluded as read before. What each position
    shows has a probability given the word that stood there: that of a chosen one where the answer is asked for, that
    of any word elsewhere.
    """
    language = defaultdict(list)  # by length
    for review in toys.review_text():
        language[len(review.words) + 2].append([CLS, *text.numericalize(review.words, vocab), SEP])
    language = {length: torch.tensor(rows) for length, rows in language.items()}
    generator, nats, expected, at_mask = torch.Generator().manual_seed(seed), [], [], []
    rows_read = [row for row, _ in task.test]
    for _ in range(draws):
        for batch in toys.masked_batches(rows_read, V, 100, generator):
            for shown, real, wanted in zip(*batch, strict=True):
                shown, wanted = shown[real], wanted[real]
                reviews = language[len(shown)]  # (M, T)
                same = (reviews == shown).double()
                chosen = torch.where(shown == MASK, 0.8, 0.1 * same + 0.1 / (V - FIRST))
                anywhere = torch.where(shown == MASK, 0.15 * chosen, 0.15 * chosen + 0.85 * same)
                anywhere[:, [0, -1]] = 1.0  # [CLS] and [SEP] are never chosen
                for t in (wanted != IGNORE).nonzero().flatten().tolist():
                    shows = anywhere.clone()
                    shows[:, t] = chosen[:, t]
                    weights = shows.log().sum(1).softmax(0)  # (M,)
                    p = torch.zeros(V).double().index_add(0, reviews[:, t], weights)
                    nats.append(-p[wanted[t]].log().item())
                    expected.append(-torch.xlogy(p, p).sum().item())
                    if shown[t] == MASK:
                        at_mask.append(nats[-1])
    return [sum(each) / len(each) for each in (nats, expected, at_mask)]


perfect, perfect_expects, perfect_at_mask = perfect_reader()

# %%
times_seen = Counter(word for review in toys.review_text() for word in review.words)
probs_of_words = [n / times_seen.total() for n in times_seen.values()]
unigram = -sum(p * math.log(p) for p in probs_of_words)
levels = {"ln V": math.log(V), "unigram": unigram, "perfect reader": perfect}
curve = []
for step in range(50, 801, 50):  # the mean of 50 steps each
    curve.append({"step": step, "loss": sum(losses[step - 50 : step]) / 50})

figures.loss_at_chosen(curve, levels)

# %% tags=["fold"]
# @title Checked: the perfect reader, new reviews
claim(
    "The three levels are 3.81, 3.36 and about 0.41 nats, and the perfect reader's is what its own probabilities expect, within 0.02.",
    [f"{levels[name]:.2f}" for name in ("ln V", "unigram")] == ["3.81", "3.36"]
    and abs(perfect - 0.41) < 0.01
    and abs(perfect - perfect_expects) < 0.02,
    loss=f"{perfect:.3f} nats",
    expected=f"{perfect_expects:.3f} nats",
)
reader_as_library = copy_weights(reader, copy.deepcopy(untrained))  # yours, in the library's class
scores, library_scores = toys.masked_scores(reader_as_library, task), toys.masked_scores(small_bert, task)
claim(
    "At the same chosen positions of unseen reviews your network is below a quarter of the unigram entropy and above the perfect reader's loss, at 0.5 to 0.6 nats; so is the library's, within a tenth of a nat of yours.",
    all(levels["perfect reader"] < score["loss"] < levels["unigram"] / 4 for score in (scores, library_scores))
    and 0.5 < scores["loss"] < 0.6
    and abs(scores["loss"] - library_scores["loss"]) < 0.1,
    yours=f"{scores['loss']:.2f} nats",
    library=f"{library_scores['loss']:.2f} nats",
)

# %% [markdown]
# You have built a small BERT. The curve is its loss on the reviews that it reads; on new ones it is about 0.55 nats. Even the perfect reader has 0.41: where several words fit, nobody can know. Section 1's sentence once more:

# %% tags=["nbval-ignore-output"]
at_thing, at_verb = fill(reader, "the _ was not boring , it _ wonderful .")  # (V,) each
nats = [-at_thing[vocab.stoi["plot"]].log(), -at_verb[vocab.stoi["was"]].log()]
print("token 2:", best_three(at_thing))
print("token 8:", best_three(at_verb))
print(f"{nats[0]:.2f} and {nats[1]:.2f}: mean {sum(nats) / 2:.2f} nats")

# %% [markdown]
# It has found what you knew: *was*, and that a thing is wanted. **What has it not found?** A harder gap: *the plot was not ___ , it was wonderful .* In this language one of a review's two adjectives is good, the other bad. Here the good one is visible, so the gap must hold one of the six bad ones. How much of the probability does your network give to *good* ones?

# %%
guess_2 = predict("the probability of good adjectives, from 0 to 1", ...)

# %% tags=["fold", "reveal"]
# @title What it knows, and what not
things, good, bad = (
    torch.tensor([vocab.stoi[word] for word in words_of_kind])
    for words_of_kind in (synthetic.THINGS, synthetic.GOOD, synthetic.BAD)
)
harder = fill(reader, "the plot was not _ , it was wonderful .")[0]  # (V,)
given_to_good, given_to_bad = harder[good].sum(), harder[bad].sum()
guess_2.compare(f"{given_to_good:.2f}")
sentences = (
    "critics called the plot boring , _ i found it lovely .",
    "the plot was not boring , it _ wonderful .",
)
filled = [fill(reader, sentence)[0] for sentence in (gap, *sentences)]
claim(
    "It predicts *although*, *but* and *was* where they belong. In the harder gap it knows that an adjective is wanted, but gives good and bad ones about half of the probability each.",
    [vocab.itos[probs.argmax()] for probs in filled] == ["although", "but", "was"]
    and given_to_good + given_to_bad > 0.95
    and abs(given_to_good - given_to_bad) < 0.4,
    likeliest=best_three(harder),
)
claim(
    "At section 1's two masks it finds the verb, and knows that a thing is wanted, but not which one. Its mean loss is within 0.4 nats of the 1.04 that can be known.",
    vocab.itos[at_verb.argmax()] == "was"
    and at_thing[things].sum() > 0.95
    and at_thing.max() < 0.4
    and abs(sum(nats) / 2 - math.log(8) / 2) < 0.4,
    verb=at_verb.max(),
    all_things=at_thing[things].sum(),
    likeliest_thing=at_thing.max(),
)

# %% [markdown]
# In 800 steps the network has learned the *forms* of the reviews. Its guesses ignore that a review's two adjectives are opposites. (*Going deeper* masks all 800 adjectives.)
#
# So what it brings to the hundred labels seems to be the grammar. Good and bad it must learn from the labels. Can it?

# %% [markdown]
# ## 5 · A new last layer: the judge
#
# **How does a network that fills gaps become a judge?** It gets a new last layer, and is trained on, with labels.
#
# **The data** are the hundred labelled reviews. Each is a row of ids with a label, 1 for positive. A batch of 16 is padded to its longest row, and `real` is False at padding:

# %%
review_rows, review_labels = zip(*hundred)
print(sum(review_labels), "of", len(hundred), "are positive")
batches = text.batches(review_rows, review_labels, 16, bucket=False, shuffle=False)
first_ids, first_real, first_labels = next(batches)
print("ids   ", tuple(first_ids.shape), *(vocab.itos[i] for i in first_ids[0]))
print("real  ", tuple(first_real.shape), first_real[0].int().tolist())
print("labels", tuple(first_labels.shape), first_labels.tolist())

# %% [markdown]
# **The network that has read** is `reader`. Its encoder gives each *token* a vector. A verdict needs one vector for the *whole review*, so we take the mean over the real tokens. A new layer turns the mean into two numbers, for negative and for positive. Line by line:

# %% tags=["nbval-ignore-output"]
set_seed(0)
new_layer = nn.Linear(64, 2)  # random
with torch.no_grad():
    x = reader.bert(first_ids, first_real)  # (B, T, D)
    total = (x * first_real[..., None]).sum(dim=1)  # (B, D), nothing from padding
    mean = total / first_real.sum(dim=1, keepdim=True)  # (B, D)
    logits = new_layer(mean)  # (B, 2)
print("vectors", tuple(x.shape))
print("mean   ", tuple(mean.shape))
print("logits ", tuple(logits.shape), [round(z, 2) for z in logits[0].tolist()])
print("verdict", logits[0].argmax().item(), "label", first_labels[0].item())

# %% [markdown]
# The verdict is the larger of the two. It means nothing yet, since the layer is random. As one module:

# %%
class Classifier(nn.Module):
    def __init__(self, bert, classes, D=64):
        super().__init__()
        self.bert = copy.deepcopy(bert)  # the one given stays as it is
        self.output = nn.Linear(D, classes)  # new, random

    def forward(self, ids, real):  # (B, T) each
        x = self.bert(ids, real) * real[..., None]  # (B, T, D), 0 at padding
        mean = x.sum(dim=1) / real.sum(dim=1, keepdim=True)  # (B, D)
        return self.output(mean)  # (B, classes)

# %% [markdown]
# The head that guessed words goes, a new one comes:

# %%
diagrams.show("new_head")

# %%
judge = Classifier(reader.bert, classes=2)
print("before", tuple(reader(first_ids, first_real).shape))
print("after ", tuple(judge(first_ids, first_real).shape))
print("kept  ", number_of_parameters(judge.bert), "parameters")
print("new   ", number_of_parameters(judge.output))

# %% [markdown]
# **Training** changes *everything*, the new layer and the old ones, in small steps. The loop is section 4's, with two changes: nothing is hidden, and the targets are the labels. `train()` and `eval()` switch a network's dropout on and off; ours has none.

# %%
def fine_tune(judge, pairs, steps, rate, every=50):
    rows, labels = zip(*pairs)
    draws = torch.Generator().manual_seed(0)
    stream = endless(rows, labels, 16, draws)
    optimizer, schedule = adamw(judge, rate, steps)
    losses = []
    judge.train()
    for step in tqdm(range(1, steps + 1), leave=False):
        ids, real, wanted = next(stream)
        loss = F.cross_entropy(judge(ids, real), wanted)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(judge.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if step % every == 0:
            print(f"step {step}, loss {sum(losses[-every:]) / every:.2f}")
    judge.eval()

# %% [markdown]
# `share_right` says how often the verdict is the label:

# %%
def share_right(judge, pairs):
    rows, wanted = zip(*pairs)
    ids, real = text.pad_batch(rows)
    with torch.no_grad():
        said = judge(ids, real).argmax(dim=1)
    return (said == torch.tensor(wanted)).float().mean().item()

# %% [markdown]
# Before training the judge should be no better than a coin. Then come 150 steps, as in the opening, at a rate that rises to 0.001 and falls to 0:

# %% tags=["nbval-ignore-output"]
set_seed(0)
judge = Classifier(reader.bert, classes=2)
before = share_right(judge, task.test)
fine_tune(judge, hundred, steps=150, rate=0.001)
after = share_right(judge, task.test)
print(f"new reviews {before:.2f} before, {after:.2f} after")
print(f"the hundred {share_right(judge, hundred):.2f} after")

# %% tags=["fold"]
# @title Checked: before and after training
claim(
    "Before training the judge is within 10 points of a coin on new reviews, after training right on more than 9 of 10.",
    abs(before - 0.5) < 0.1 and after > 0.9,
    before=before,
    after=after,
)
recorded_100 = ledger.values("bert-toy", "pre-trained, 100 labels", "accuracy")
claim(
    "Of the three recorded judges with a hundred labels, each with another start and other reviews, the worst is right on 0.88 of the new ones.",
    len(recorded_100) == 3 and abs(min(recorded_100) - 0.88) < 0.005,
    **{"seed by seed": ", ".join(f"{value:.3f}" for value in recorded_100)},
)

# %% [markdown]
# Here a hundred labels have made a judge that is nearly always right. (The opening's 0.97 was the library's network, from another random start.) That is partly luck: of three recorded judges, each with its own start and reviews, the worst is right on 0.88.
#
# - BERT's authors take the vector at `[CLS]`. Their second task trains it; ours was never trained there.
#
# ### Your judge at work
#
# From a string to a verdict: words to ids, ids to two logits, logits to two probabilities.

# %% tags=["nbval-ignore-output"]
def to_ids(review):
    words = text.tokenize(review)  # lower case; punctuation marks are tokens
    return [CLS, *text.numericalize(words, vocab), SEP]


def judge_review(review, judge, encode):
    ids = torch.tensor([encode(review)])  # (1, T)
    real = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        probs = judge(ids, real).softmax(dim=1)[0]  # (2,): negative, positive
    verdict = ("negative", "positive")[probs.argmax().item()]
    print(f"{verdict} {probs.max():.2f}  {review}")


for review in (
    "The plot was not boring, it was wonderful.",
    "The plot was boring, it was not wonderful.",
    "Critics called the plot wonderful, but I found it boring.",
):
    judge_review(review, judge, to_ids)

# %% tags=["fold"]
# @title Checked: the twins
labels_of_bag = defaultdict(list)
for review in toys.review_text():
    labels_of_bag[tuple(sorted(review.words))].append(review.label)
claim(
    "In this language every bag of words belongs to as many positive reviews as negative ones.",
    all(2 * sum(labels_in_bag) == len(labels_in_bag) for labels_in_bag in labels_of_bag.values()),
)

# %% [markdown]
# The first two hold the same words and mean the opposite, and your judge tells them apart. A bag of words cannot: every review of this language has such a twin.
#
# **Save it and load it.** `state_dict()` is a table of names and numbers. It goes into a file, and from there into a network of the same sizes. Then write a sentence of your own in the last line, from the words that are printed:

# %% tags=["nbval-ignore-output"]
with tempfile.TemporaryDirectory() as folder:  # take a folder that stays
    path = Path(folder, "judge.pt")
    torch.save(judge.state_dict(), path)
    loaded = Classifier(PlainBERT(V), classes=2)
    loaded.load_state_dict(torch.load(path))
    loaded.eval()  # a new network is in training mode

print(*sorted(vocab.itos[FIRST:]))
judge_review("I expected the music to be poor, but it was superb.", loaded, to_ids)

# %% tags=["fold"]
# @title Checked: the verdicts, and the judge from the file
def verdict_on(review, network):
    """1 = positive, by a network of this section."""
    ids = torch.tensor([to_ids(review)])
    with torch.no_grad():
        return network(ids, torch.ones_like(ids, dtype=torch.bool)).argmax(1).item()


TRIED = (
    "the plot was not boring , it was wonderful .",
    "the plot was boring , it was not wonderful .",
    "critics called the plot wonderful , but i found it boring .",
    "critics called the plot boring , but i found it lovely .",
    "i found the plot lovely , although critics called it boring .",
    "i expected the music to be poor , but it was superb .",
)
read_before = {tuple(row) for row in [*task.unlabelled, *(row for row, _ in hundred)]}
short_reviews = {TRIED[0]: 1, TRIED[1]: 0, TRIED[2]: 0, TRIED[-1]: 1}
claim(
    "Your judge and the one from the file judge all four reviews right.",
    all(verdict_on(review, network) == label for review, label in short_reviews.items() for network in (judge, loaded)),
)
claim(
    "None of the six reviews tried in sections 1 to 5 is among the 3,608 or the hundred.",
    not any((CLS, *text.numericalize(review.split(), vocab), SEP) in read_before for review in TRIED),
)

# %% [markdown]
# So a judge is made in three steps: load a network that has read, put on a new head, fine-tune. What can go wrong?
#
# ### Errors you will meet
#
# The first three raise no error, and all shapes fit.
#
# **1 · Masks on special tokens and padding.** Suppose `hide_words` forgot `real & (ids >= FIRST)`. Then the network must also predict `[CLS]`, `[SEP]` and padding, which are always the same. The library's `mask_tokens` is told what may be chosen:

# %%
test_ids, test_real = text.pad_batch([row for row, _ in task.test])
words_only = test_real & (test_ids >= FIRST)
wasted = {}
for name, where in {"wrong": torch.ones_like(test_real), "fixed": words_only}.items():
    draws = torch.Generator().manual_seed(1)
    _, targets = mask_tokens(
        test_ids, where, V, MASK, generator=draws, first_regular_id=FIRST
    )
    wasted[name] = (targets[targets != -100] < FIRST).float().mean()
    print(f"{name}: {wasted[name]:.0%} of the chosen tokens are no words")

# %% [markdown]
# **2 · Padding that is read.** Forget `real`, so that all positions count. Attention looks at padding, the mean takes in its vectors, and some verdicts change. All new reviews, padded to 32 tokens:

# %% tags=["nbval-ignore-output"]
ids, real = text.pad_batch([row for row, _ in task.test], length=32)
wanted = torch.tensor([label for _, label in task.test])
padded_right = {}
for name, read in {"wrong": torch.ones_like(real), "fixed": real}.items():
    with torch.no_grad():
        said = judge(ids, read).argmax(dim=1)
    padded_right[name] = (said == wanted).float().mean().item()
    print(f"{name}: new reviews {padded_right[name]:.3f}")

# %% [markdown]
# **3 · Too large a rate in fine-tuning.** At 0.02, twenty times our rate, the same network ends far behind, even on the hundred reviews that it trains on (one seed): here it calls every review positive, and 58 of the hundred are.

# %% tags=["nbval-ignore-output"]
hasty, praised = {}, {}
for name, rate in {"wrong": 0.02, "fixed": 0.001}.items():
    set_seed(0)
    tried = Classifier(reader.bert, classes=2)
    fine_tune(tried, hundred, steps=150, rate=rate)
    hasty[name] = share_right(tried, hundred), share_right(tried, task.test)
    praised[name] = tried(test_ids, test_real).argmax(dim=1).sum().item()
    print(f"{name}: the hundred {hasty[name][0]:.2f}, new reviews {hasty[name][1]:.2f}")
    print(f"{praised[name]} of the 400 new ones called positive")

# %% [markdown]
# **4 · A text longer than the table of positions.** This one raises an error, whose message names no cause. Your network has L = 32 positions. Keep a text's end: a review's verdict often comes last (check on your data):

# %% tags=["nbval-ignore-output"]
long_review = 4 * "The plot was not boring, it was wonderful. "
try:
    judge_review(long_review, judge, to_ids)  # 42 ids
except IndexError as error:
    print("wrong:", error)


def last_32(review):
    return [CLS, *to_ids(review)[-31:]]


judge_review(long_review, judge, last_32)

# %% [markdown]
# So try a few texts whose answer you know, long and short, alone and in a batch.

# %% tags=["fold"]
# @title The first three errors as claims
row = task.test[0][0]
alone_ids, padded = torch.tensor([row]), text.pad_batch([row], length=30)
real = padded[1]
with torch.no_grad():
    by_itself = judge(alone_ids, torch.ones_like(alone_ids).bool())
    wrong = judge(padded[0], torch.ones_like(real)) - by_itself
    fixed = judge(*padded) - by_itself
    vectors = reader.bert(*padded)  # (1, 30, D), not 0 at padding
    with_zeros = reader_as_library.bert(*padded)  # (1, 30, D), 0 at padding
right_mean = vectors[real].mean(dim=0, keepdim=True)
off = (vectors.mean(dim=1) - right_mean).norm() / right_mean.norm()
claim(
    "1: choosing from everything wastes more than a third of the chosen positions on tokens that are always the same.",
    wasted["wrong"] > 1 / 3 and wasted["fixed"] == 0,
)
claim(
    "2: with the mask padding costs no accuracy, without it some, and the logits change; a mean over padding too is off by more than a tenth of the right one's length; where the library sets these vectors to 0, it is the right one, times the share of real tokens.",
    padded_right["fixed"] == after > padded_right["wrong"]
    and wrong.abs().max() > 1e-3
    and fixed.abs().max() < 1e-4
    and off > 0.1
    and torch.allclose(with_zeros.mean(dim=1), with_zeros[real].mean(dim=0) * real.float().mean(), atol=1e-5),
    logits_change=f"{wrong.abs().max():.3f}",
)
claim(
    "3: at a rate of 0.02 the network is at least 15 points behind the one at 0.001, on the hundred and on new reviews; it gives more than nine in ten new reviews the same verdict.",
    max(praised["wrong"], len(wanted) - praised["wrong"]) > 0.9 * len(wanted)
    and all(fixed_share - wrong_share >= 0.15 for wrong_share, fixed_share in zip(hasty["wrong"], hasty["fixed"], strict=True)),
)

# %% [markdown]
# ### Was it the reading that helped?
#
# The network that read had 800 more steps. So the one from scratch now gets 950 steps on the labels, and the best of three rates. The opening's seed was its luckiest, so here are all three, with 20, 50, 100 and 200 labels:

# %% tags=["fold"]
# @title With and without reading
TOY_WAYS = {
    "pre-trained": ("bert-toy", "pre-trained, {} labels"),
    "from scratch, 950 steps": ("bert-toy-steps", "from scratch, 950 steps, {} labels"),
}
figures.accuracy_by_labels(
    TOY_WAYS,
    toys.LABELS,
    "What is reading worth, against as many steps from scratch? With 20 labels no gain that shows; with 50 and 100 a lead on average, "
    "in two seeds of three; with 200 nothing. Line: mean of three seeds; band: least to greatest; dotted: a coin.",
)

# %% tags=["fold"]
# @title The ledger: 20 to 200 labels
def by_seed(way, n, ways=TOY_WAYS):
    """Accuracy of each seed."""
    experiment, variant = ways[way]
    return ledger.values(experiment, variant.format(n), "accuracy")


def recorded(way, n, ways=TOY_WAYS):
    """Mean accuracy over the seeds."""
    return sum(by_seed(way, n, ways)) / len(by_seed(way, n, ways))


table(
    ["accuracy, mean of three seeds", *(f"{n} labels" for n in toys.LABELS)],
    [[way, *(recorded(way, n) for n in toys.LABELS)] for way in TOY_WAYS],
)
claim(
    "With 20 labels neither gets 62 % of the new reviews right in any seed, and reading is no gain on average.",
    all(value < 0.62 for way in TOY_WAYS for value in by_seed(way, 20))
    and recorded("pre-trained", 20) < recorded("from scratch, 950 steps", 20),
)
behind = {
    n: sorted(ours - theirs for ours, theirs in zip(by_seed("pre-trained", n), by_seed("from scratch, 950 steps", n), strict=True))
    for n in (50, 100, 200)
}
claim(
    "With 950 steps the network from scratch is within 2 points of the pre-trained one, or ahead, in every seed with 200 labels; with 50 and with 100 in one seed of three, and in the other two more than 10 points behind. With 100 both reach 97 % in the opening's own seed; in the other two it is about 20 points behind.",
    behind[200][-1] < 0.02
    and all(behind[n][0] < 0.02 and behind[n][1] > 0.1 for n in (50, 100))
    and all(abs(by_seed(way, 100)[0] - 0.97) < 0.005 for way in ("pre-trained", "from scratch, 950 steps"))
    and all(0.18 < points < 0.23 for points in behind[100][1:]),
    **{f"{way}, 100 labels": ", ".join(f"{value:.1%}" for value in by_seed(way, 100)) for way in ("pre-trained", "from scratch, 950 steps")},
)

# %% [markdown]
# **So what is reading worth?** In these runs it helped with 50 and with 100 labels, on average.
#
# - With 20 labels the three seeds show no gain: both networks stay below 0.62.
# - With 100 the network from scratch, too, reaches 0.97 in the opening's seed; in the two others it is some 20 points behind.
# - With 200 it does as well.
# - The fine print: the rates from scratch were chosen on 400 further labelled reviews; after reading it stays 0.001. The network that read saw 28,000 reviews, in larger batches, the one with 950 steps 15,200.
#
# *Going deeper* tries 150 and 300 steps from scratch, and a frozen network.
#
# *You have a judge that works: a good place to stop.* Three exercises belong to this half, an hour in all: rebuild hiding, the loss and the step, without looking back.
#
# ### Exercise 12.1 · Hide
#
# Difficulty ●●○○○ · 20 minutes · needs section 3
#
# The draws are given, so that the result is determined.

# %% nbgrader={"grade": false, "grade_id": "ex12-1-hide", "locked": false, "schema_version": 3, "solution": true, "task": false}
def hide(ids, maskable, choose, fate, others, mask_id):
    """Hide tokens for a masked language model.

    Args:
        ids: (B, T) int64 tokens.
        maskable: (B, T) bool, True = may be chosen.
        choose: (B, T) uniform in [0, 1): a maskable token is chosen where it is below 0.15.
        fate: (B, T) uniform in [0, 1): below 0.8 the mask, from 0.9 on the token of `others`, else unchanged.
        others: (B, T) int64 random tokens.
        mask_id: id of [MASK].

    Returns:
        inputs: (B, T) int64.
        targets: (B, T) int64, -100 where not chosen.
    """
    ### BEGIN SOLUTION
    chosen = maskable & (choose < 0.15)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), others, inputs)
    return inputs, torch.where(chosen, ids, -100)
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-1-hide-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.hide(hide)

# %% [markdown]
# ### Exercise 12.2 · Find the bug: a loss that is too good
#
# Difficulty ●●○○○ · 15 minutes · needs section 4
#
# After a hundred steps a colleague's loss is less than a third of yours. Measured with your loss at the end, her network has learned less than yours. Find two mistakes, and write it right: from log-probabilities, without torch's `cross_entropy` and `nll_loss`.
#
# ```python
# def chosen_loss(logits, targets):  # (B, T, V), (B, T) with -100 where not chosen
#     targets = targets.clamp(min=0)  # -100 is not a token
#     loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
#     return loss / targets.numel()
# ```

# %% nbgrader={"grade": false, "grade_id": "ex12-2-blank-loss", "locked": false, "schema_version": 3, "solution": true, "task": false}
def chosen_loss(logits, targets):
    """Mean cross-entropy over the chosen tokens.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64, -100 where not chosen; at least one position is chosen.

    Returns:
        scalar tensor, nats per chosen token.
    """
    ### BEGIN SOLUTION
    chosen = targets != -100
    log_probs = logits[chosen].log_softmax(-1)  # (n, V)
    return -log_probs.gather(1, targets[chosen][:, None]).mean()
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-2-blank-loss-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch12.chosen_loss(chosen_loss)

# %% [markdown]
# ### Exercise 12.3 · Assemble: a step of pre-training
#
# Difficulty ●●●○○ · 25 minutes · needs exercises 12.1 and 12.2, and section 4
#
# You have a way to hide words, a loss and a network. Without looking back, rebuild the step: hide, predict, measure, improve, with one plain `optimizer.step()`, no clipping. The draws are given again. You may call your `hide` and `chosen_loss`; do without the library's `mask_tokens` and its losses.
#
# When the check passes, run the folded cell after it, then `watch_it_fill(pretraining_step)` in a cell of your own. The loss falls, and the gap fills.

# %% nbgrader={"grade": false, "grade_id": "ex12-3-pretraining-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pretraining_step(network, optimizer, ids, real, choose, fate, others):
    """One step of pre-training on one batch, with the usual shares.

    Args:
        network: called with inputs and real, both (B, T); returns logits (B, T, V).
        optimizer: of its parameters; gradients of an earlier step may still be there.
        ids: (B, T) int64 tokens; special tokens and padding have ids below FIRST = 5, [MASK] is MASK = 4.
        real: (B, T) bool, True = a real token.
        choose, fate: (B, T) uniform in [0, 1), as in `hide`.
        others: (B, T) int64 random words.

    Returns:
        float, the loss before the step, in nats per chosen token.
    """
    ### BEGIN SOLUTION
    chosen = real & (ids >= FIRST) & (choose < 0.15)
    inputs = torch.where(chosen & (fate >= 0.9), others, ids)
    inputs = torch.where(chosen & (fate < 0.8), MASK, inputs)
    loss = F.cross_entropy(network(inputs, real)[chosen], ids[chosen])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-3-pretraining-step-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch12.pretraining_step(pretraining_step)

# %% tags=["fold"]
# @title watch_it_fill: pre-train with your function
def watch_it_fill(step, steps=450):
    """Pre-train the network of section 2 with a step of your own; three words for one gap as it learns."""
    reader = copy_weights(untrained, MaskedLM(PlainBERT(V)))
    draws, optimizer = torch.Generator().manual_seed(0), torch.optim.AdamW(reader.parameters(), 0.002)
    done, nats = 0, []
    while done < steps:
        for ids, real, _ in text.batches(task.unlabelled, [0] * len(task.unlabelled), 32, generator=draws):
            choose, fate = torch.rand(2, *ids.shape, generator=draws)
            others = torch.randint(FIRST, V, ids.shape, generator=draws)
            nats.append(float(step(reader, optimizer, ids, real, choose, fate, others)))
            done += 1
            if done % 150 == 0:
                print(f"step {done}, loss {sum(nats[-50:]) / 50:.2f}:", best_three(fill(reader, gap)[0]))
            if done == steps:
                break

# %% [markdown]
# ## 6 · Real words
#
# **What does your judge do with words that it does not know?** It judges this text, too, though it can read nothing of it but the full stop:

# %% tags=["nbval-ignore-output"]
print(*(vocab.itos[i] for i in to_ids("We left early.")))
judge_review("We left early.", judge, to_ids)

# %% [markdown]
# Real words do not fit in a list of 40, and a longer list always lacks some. BERT's 30,522 tokens are words *and pieces of words*: frequent words are whole, rare ones are cut into **WordPieces**. A piece inside a word begins with `##`, and is a different entry from the same letters at a word's start. The tokenizer takes the longest known piece from the left, then the longest that continues it; if none fits, the whole word is `[UNK]`. With eleven pieces:

# %%
pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] play un ##play ##able ##ing !".split()
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = huggingface.tokenizer(folder)
encoded = tokenizer.encode("Playing! unplayable playful")
print("tokens", *encoded.tokens)
print("ids   ", *encoded.ids)

# %% tags=["fold"]
# @title Checked: a word that no pieces make up
claim(
    "'playful' is unknown as a whole, though it begins with a known piece.",
    encoded.tokens[-2] == "[UNK]",
)

# %% [markdown]
# "Uncased" models lower-case the text and drop accents first. `tokenizer.encode(string).ids` takes the place of `to_ids`. Is there a network that has read such words?

# %% [markdown]
# ## 7 · The same three steps, with a published model
#
# **Where do you find a network that has read a real language?** On the [Hugging Face hub](https://huggingface.co/models). Ours is **MiniLM** (all-MiniLM-L6-v2). It has BERT's architecture, with six layers of width 384. It descends from a network that learned to imitate a larger one. Then it was trained on a billion pairs of texts. A published model is a folder: `config.json` with the sizes, the tokenizer with its pieces, and `model.safetensors`, a table of names and numbers.
#
# The rest is section 5 again:
#
# 1. **Load.** `BERT.from_pretrained` makes the library's network, of the same parts as your `PlainBERT`, with the published numbers. The tokenizer keeps the last 256 ids of a long review.
# 2. **Put on a head:** `Classifier`.
# 3. **Fine-tune:** `fine_tune`, at a rate of 5e-5, one that BERT's authors recommend. MiniLM has dropout, so here `train()` and `eval()` matter.

# %%
def make_film_judge(source, reviews):
    tokenizer = huggingface.tokenizer(source)  # 1 load
    tokenizer.enable_truncation(256, direction="left")  # keeps a review's end
    bert = BERT.from_pretrained(source)

    def encode(review):
        return tokenizer.encode(review.replace("<br />", " ")).ids

    pairs = [(encode(review), label) for review, label in reviews]
    set_seed(0)
    film_judge = Classifier(bert, classes=2, D=384)  # 2 put on a head
    steps = 8 * 7  # 8 passes; 100 reviews are 7 batches
    fine_tune(film_judge, pairs, steps, rate=5e-5, every=14)  # 3 fine-tune
    return film_judge, encode

# %% [markdown]
# It learns from a hundred of IMDB's reviews (chapter 02) and is tried on new ones. Then it judges five short reviews of our own, two of which you know. With MiniLM and IMDB on this machine that takes some three minutes; without them a recorded run is shown, the library's version of these steps, in bfloat16. (`BERT.from_pretrained(minilm.MINILM)` and `huggingface.tokenizer(minilm.MINILM)` fetch MiniLM once, 91 MB.)

# %% tags=["nbval-ignore-output"]
try:
    source = minilm.find_minilm()  # the model's folder
    known, new = minilm.draw_reviews(seed=0, size=100, tested=200)
    known_pairs = list(zip(*known))  # (text, label) pairs
    film_judge, encode = make_film_judge(source, known_pairs)
    new_pairs = [(encode(review), label) for review, label in zip(*new)]
    print(f"new reviews {share_right(film_judge, new_pairs):.2f}")
    for review in minilm.JUDGED:
        judge_review(review, film_judge, encode)
except DataError:
    print("Not in the cache: here is the recorded run.")
    print(*minilm.recorded_judge(seed=0), sep="\n")

# %% tags=["fold"]
# @title Three recorded judges of a hundred labels each
recorded_judges = [run["results"]["100 labels"] for run in ledger.load("minilm-judge")["runs"]]
says = list(zip(*(row["positive"] for row in recorded_judges), strict=True))  # a row for each of the five
minilm_right = ledger.values("imdb-minilm", "100 labels", "accuracy")
bag_right = ledger.values("minilm-bag", "words, 100 labels", "accuracy")
claim(
    "The three recorded film judges are right on 0.80, 0.745 and 0.705 of the same 200 new reviews. In another run of three seeds MiniLM is right on 73 to 82 % of 2,000, the bag of words on 70 to 72 %, and MiniLM is ahead each time.",
    [row["accuracy"] for row in recorded_judges] == [0.8, 0.745, 0.705]
    and ledger.load("minilm-judge")["config"]["tested"] == 200
    and len(minilm_right) == 3
    and all(0.73 < m < 0.82 and 0.7 < b < 0.72 and m > b for m, b in zip(minilm_right, bag_right, strict=True)),
    MiniLM=", ".join(f"{value:.2f}" for value in minilm_right),
)
claim(
    "All three judge the plain praise right. All three are below 0.5 for *not boring, it was wonderful*, one of them at 0.48, and for its negative twin too. The first, with 0.80, calls the fifth, negative review positive, at 0.50.",
    list(minilm.JUDGED) == recorded_judges[0]["texts"]
    and len(recorded_judges) == 3
    and all(p > 0.5 for p in says[2])
    and all(p < 0.5 for p in says[0] + says[1])
    and round(max(says[0]), 2) == 0.48
    and recorded_judges[0]["wanted"][4] == 0
    and 0.5 < says[4][0] < 0.505,
    **{"positive, the first of the five": ", ".join(f"{p:.2f}" for p in says[0])},
)

# %% [markdown]
# So the same three steps make a judge of real reviews. The recorded run with 0.80 is the best of three; the others are right on 0.745 and 0.705 of the same 200.
#
# But look at the first of the five. Your judge of 40 words was sure of it, and right. All three recorded film judges call it a bad review, one barely, with 0.48 for *positive*. That with 0.80 also calls the fifth positive, at 0.50. Five short reviews are examples, no measurement.
#
# **What do more labels bring?** In another experiment MiniLM learns from 100, 400 or 1,600 reviews, and is tried on 2,000. Chapter 02's bags of words get the same reviews, and have read nothing beforehand:

# %% tags=["fold"]
# @title Accuracy with 100 to 1,600 labels
WAYS = {
    "MiniLM": ("imdb-minilm", "{} labels"),
    "our pre-training": ("imdb-bert-curves", "pre-trained, {} labels"),
    "from scratch": ("imdb-bert-curves", "from scratch, {} labels"),
    "bag of words": ("minilm-bag", "words, {} labels"),
    "bag of words and pairs": ("minilm-bag", "words and pairs, {} labels"),
}
FEW = (100, 400, 1600)


def few(way, n):
    """Accuracy with n labels: {seed: accuracy}."""
    experiment, variant = WAYS[way]
    seeds = [run["seed"] for run in ledger.load(experiment)["runs"]]
    return dict(zip(seeds, ledger.values(experiment, variant.format(n), "accuracy"), strict=True))


def mean_of(values):
    """Their mean."""
    return sum(values) / len(values)


def leads(way, others, n):
    """How far a way is ahead of the best of others, one number for each seed."""
    return [value - max(few(other, n)[seed] for other in others) for seed, value in few(way, n).items()]


small, bags = ("our pre-training", "from scratch"), ("bag of words", "bag of words and pairs")
table(
    ["accuracy, mean of three seeds", *(f"{n:,} labels" for n in FEW)],
    [[way, *(mean_of(few(way, n).values()) for n in FEW)] for way in ("MiniLM", *bags)],
)
ahead = {n: mean_of(leads("MiniLM", bags, n)) for n in FEW}
claim(
    "On average over three seeds MiniLM is more than 4 points ahead of the better bag with 100 labels, more than 3 with 400, and within a point of it "
    "with 1,600.",
    ahead[100] > 0.04 and ahead[400] > 0.03 and abs(ahead[1600]) < 0.01,
    **{f"ahead with {n:,}": f"{100 * points:.1f} points" for n, points in ahead.items()},
)

# %% [markdown]
# With few labels MiniLM is ahead. With 1,600 a bag of words and pairs comes within a point of it, on average: most film reviews can probably be judged so. On such a task try a bag first, then see what a well-read network adds.
#
# - MiniLM also learned from pairs of texts; how much is due to reading is not shown here.
# - The bags read whole reviews, MiniLM only their ends.
# - *Going deeper* has all 25,000 labels, and a BERT of our own that read IMDB, beside the same network from scratch.
#
# MiniLM can judge after a few labels. What can it do with none?

# %% [markdown]
# ## 8 · Search by meaning
#
# **Can a text be found that shares no word with the question?** MiniLM needs no label for this and no new layer. A text's vector is section 5's mean over its tokens, brought to length 1. One text alone has no padding:

# %%
def vector_of(string, bert, tokenizer):
    ids = torch.tensor([tokenizer.encode(string).ids])  # (1, T)
    real = torch.ones_like(ids, dtype=torch.bool)
    with torch.no_grad():
        x = bert(ids, real)[0]  # (T, D)
    mean = x.mean(dim=0)  # (D,)
    return mean / mean.norm()  # length 1

# %% [markdown]
# The answer to a question is the text with the nearest vector. Here are four questions, written so that words mislead, and twelve notices:

# %%
print(*minilm.QUERIES, "", *minilm.DOCUMENTS, sep="\n")

# %%
guess_3 = predict("how many of the four questions get the right text", ...)

# %% [markdown]
# The dot product of two vectors of length 1 is the cosine of their angle, from -1 to 1. So all comparisons are one product of matrices:

# %%
try:
    source = minilm.find_minilm()
    bert, tokenizer = BERT.from_pretrained(source), huggingface.tokenizer(source)
    asked = [vector_of(string, bert, tokenizer) for string in minilm.QUERIES]
    notices = [vector_of(string, bert, tokenizer) for string in minilm.DOCUMENTS]
    cosines = torch.stack(asked) @ torch.stack(notices).T  # (4, D) @ (D, 12)
except DataError:
    cosines = minilm.search()  # (4, 12), as recorded

# %% tags=["fold", "reveal"]
# @title The nearest text for each question
right_text = list(minilm.QUERIES.values())
notices_by_words, questions_by_words = minilm.tf_idf(minilm.DOCUMENTS, minilm.QUERIES)
by_words = questions_by_words @ notices_by_words.T  # (4, 12): by the words in common
nearest = {"words": by_words.argmax(1).tolist(), "MiniLM": cosines.argmax(1).tolist()}
found = {
    way: sum(b == r for b, r in zip(best, right_text)) for way, best in nearest.items()
}
guess_3.compare(f"{found['MiniLM']} of 4; by the words in common {found['words']}")
table(
    ["question", "nearest by words in common", "nearest by MiniLM"],
    [
        [question, *(minilm.DOCUMENTS[i] for i in best)]
        for question, *best in zip(minilm.QUERIES, nearest["words"], nearest["MiniLM"], strict=True)
    ],
)
claim(
    "MiniLM puts the right text first for all four questions, a count of shared words (tf-idf) for none.",
    found["MiniLM"] == len(right_text) and found["words"] == 0,
)

# %% [markdown]
# All cosines of the four questions:

# %%
figures.search_by_meaning(cosines, minilm.DOCUMENTS, minilm.QUERIES)

# %% tags=["fold"]
# @title The right texts and the others
is_right = F.one_hot(torch.tensor(right_text), cosines.shape[1]).bool()
claim(
    "Every right text has a cosine above 0.4, every other one below 0.35.",
    cosines[is_right].min() > 0.4 and cosines[~is_right].max() < 0.35,
    least_right=cosines[is_right].min(),
    greatest_other=cosines[~is_right].max(),
)

# %% [markdown]
# **Not every BERT can do this.** Guessing hidden words does not bring the means of related texts together. At judging how similar two sentences are, the mean of BERT-base's vectors did worse than a mean of fixed word vectors (Reimers and Gurevych 2019, table 1). So such a network is trained once more, on pairs of texts that belong together. Each query of a batch must choose its own text among all texts of the batch, by their cosines. These were MiniLM's billion pairs. (*Going deeper* has the loss.)
#
# - Four questions prove little.
# - The count of shared words, tf-idf, is a weak baseline: three of its four matches share only words like *the* or *in*, and full stops.
# - On large collections BM25, another weighted word count, is hard to beat (Thakur et al. 2021).
#
# So an encoder that has read judges with a new last layer, and finds texts after one more training.
#
# Four exercises wait here, 95 minutes in all; 12.5 looks back at section 5, 12.6 at section 2.
#
# ### Exercise 12.4 · Greedy, longest first
#
# Difficulty ●●●○○ · 20 minutes · needs section 6
#
# Write section 6's rule: the longest known piece from the left, then the longest that continues it, with `##` before a piece inside a word; if none fits, `[UNK]` for the whole word.
#
# Write the loop yourself, without any library's tokenizer.

# %% nbgrader={"grade": false, "grade_id": "ex12-4-wordpiece", "locked": false, "schema_version": 3, "solution": true, "task": false}
def wordpiece(word, vocab):
    """Cut a word into known pieces, the longest first, from left to right.

    Args:
        word: str, not empty.
        vocab: set of pieces; those inside a word begin with "##".

    Returns:
        list of pieces, or ["[UNK]"] if the word cannot be cut to its end in this way.
    """
    ### BEGIN SOLUTION
    found, start = [], 0
    while start < len(word):
        mark = "##" if start else ""
        ends = [e for e in range(len(word), start, -1) if mark + word[start:e] in vocab]
        if not ends:
            return ["[UNK]"]
        found.append(mark + word[start : ends[0]])
        start = ends[0]
    return found
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-4-wordpiece-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.wordpiece(wordpiece)

# %% [markdown]
# ### Exercise 12.5 · Explore and explain: how much reading does it take?
#
# Difficulty ●●●○○ · 35 minutes · needs section 5
#
# Below, a network reads for 50 steps only, then learns from a hundred labels. Change the steps of reading and of fine-tuning, the number of labels, the rate, the seed: it stands in every call, so that a run is the same again. Reading for 0 steps is a start from scratch. Answer in words, with your numbers:
#
# (a) From how many steps on does reading pay? What had the network learned by then? (Its loss at the chosen positions is printed; section 4 has lines to compare it with.) Try it with at least two seeds.
#
# (b) You may spend 400 steps in all. Would you read for 250 and fine-tune for 150, or fine-tune from scratch for 400, at 0.001 or 0.003? Again with at least two seeds. What does reading save here?
#
# Optional, with *Going deeper*'s first part, on probes, and `toys.probe_layers(bert, task)`: (c) The role is read off layer 2 by a linear probe almost without a mistake, yet the linear layer on frozen features does poorly on the verdict. How can both be true? (d) What do you expect of the probes for "role" and "thing" after fine-tuning? Test it. (e) A colleague shows that a two-layer probe reads syntax trees off BERT with 90 %, and concludes that BERT "knows syntax". Which three numbers do you ask for?

# %% tags=["nbval-ignore-output"]
seed = 0
other = toys.review_task(seed)
set_seed(seed)
explored = toys.small_bert(other)  # the library's network of these sizes, random
toys.pretrain(explored, other, steps=50, seed=seed)
print(f"loss {toys.masked_scores(explored, other)['loss']:.2f} nats")
few_labels = other.labelled[:100]
explored_judge = toys.finetune(
    explored.bert, few_labels, steps=150, learning_rate=0.001, seed=seed
)
print(f"new reviews {toys.accuracy(explored_judge, other.test):.2f}")

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex12-5-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) A good answer shows its numbers, and more than one seed. Ours, for 0, 50, 100 and 200 steps: 0.81, 0.65, 0.88, 0.97 in seed 0; 0.56, 0.58, 0.76, 0.81 in seed 1; 0.74, 0.68, 0.58, 0.72 in seed 2. So 200 steps pay in two seeds of three, 100 in two, 50 hardly or not at all; the 800 of the chapter pay in all three. The losses are alike in all seeds, near 2.6 after 50 steps, 2.1 after 100 and 1.2 after 200. All are below the unigram entropy, so to know more than how often words occur is not enough. After 200 steps the network knows which kinds of words go together, and is still far above the perfect reader's loss.
#
# (b) In each of our three seeds 250 steps of reading and 150 of fine-tuning get further than 400 from scratch at the better rate: 0.99 against 0.91, 0.84 against 0.68, 0.93 against 0.81. A run may go the other way, and one with other draws did: 0.62 against 0.84. With 950 steps the other catches up where labels are many (section 5's figure). So here reading usually saves steps on each new task, and some labels; with enough of both it need not raise what can be reached, since the toy's grammar can be learned from 200 reviews by repeating them. In a real language a few hundred texts do not hold the grammar.
#
# (c) The verdict is positive if a good adjective is held *or* a bad one denied: role and polarity enter as a product (exclusive or), which no linear layer computes from a mean in which every review has one good and one bad adjective, one held and one denied. Each factor may be linearly readable at its own token; the product needs a nonlinear step at that token, which fine-tuning learns in the layers.
#
# (d) The role stays readable (fine-tuning needs it and starts from it); the thing stays absent, since the verdict does not depend on it. Fine-tuning adds little knowledge; it combines what is there and moves it to where the new layer reads. A good answer shows the numbers of its own run.
#
# (e) The same probe on an untrained network and on the embeddings alone; on a control task (random answers by word), whose gap to the real task is the selectivity; and a linear probe, or one of limited size. Also good: accuracy on held-out sentences, a majority baseline.
# ### END SOLUTION

# %% [markdown]
# Nothing here reads your words: you compare them yourself. Paste your answer in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch12.what_tuning_adds.compare(...)

# %% [markdown]
# ### Exercise 12.6 · Count
#
# Difficulty ●●●○○ · 25 minutes · needs section 2, chapter 10
#
# **BERT-base** has $N = 12$, $D = 768$, $H = 12$, **BERT-large** $N = 24$, $D = 1024$, $H = 16$; both have $F = 4D$ as the width of the feed-forward network, $V = 30522$, $L = 512$. They have one part that yours lacks, the *pooler*: a linear layer from $D$ to $D$ with a bias, for the vector at `[CLS]`. Count from the sizes alone, without building a model: with two segments, no heads, and the pooler.

# %% nbgrader={"grade": false, "grade_id": "ex12-6-bert-parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bert_parameters(V, L, D, N, F):
    """Number of parameters of a BERT with its pooler and without heads.

    Args:
        V: vocabulary.
        L: most tokens of a sequence.
        D: width.
        N: layers.
        F: feed-forward width.

    Returns:
        int.
    """
    ### BEGIN SOLUTION
    embeddings = (V + L + 2) * D + 2 * D
    attention = 4 * (D * D + D)
    feed_forward = D * F + F + F * D + D
    norms = 2 * 2 * D
    return embeddings + N * (attention + feed_forward + norms) + D * D + D
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-6-bert-parameters-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.bert_parameters(bert_parameters)

# %% [markdown]
# ### Exercise 12.7 · Search
#
# Difficulty ●●○○○ · 15 minutes · needs section 8
#
# Section 8 takes one text at a time. Here come whole batches, padded: go from the encoder's output to the cosines of all pairs. The vectors at padding may hold any finite numbers.
#
# When it passes, search any texts of your own, with a network connection:
#
# ```python
# bert = BERT.from_pretrained(minilm.MINILM)  # 91 MB, once
# tokenizer = huggingface.tokenizer(minilm.MINILM)
# asked, notices = (
#     text.pad_batch([tokenizer.encode(string).ids for string in texts])
#     for texts in (minilm.QUERIES, minilm.DOCUMENTS)
# )
# similarities(bert(*asked), asked[1], bert(*notices), notices[1])  # (4, 12), as in the figure
# ```

# %% nbgrader={"grade": false, "grade_id": "ex12-7-similarities", "locked": false, "schema_version": 3, "solution": true, "task": false}
def similarities(queries, real_queries, documents, real_documents):
    """Cosines between texts, each the mean over the vectors of its real tokens.

    Args:
        queries: (B, T, D) vectors of the queries' tokens.
        real_queries: (B, T) bool, True = a real token; padding comes after them.
        documents: (M, S, D) the same of the documents.
        real_documents: (M, S) bool.

    Returns:
        (B, M), from -1 to 1: a row for each query, a column for each document.
    """
    ### BEGIN SOLUTION
    def direction(x, real):
        total = (x * real[..., None]).sum(1)  # a sum points where the mean does
        return F.normalize(total, dim=1)

    return direction(queries, real_queries) @ direction(documents, real_documents).T
    ### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-7-similarities-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch12.similarities(similarities)

# %% [markdown]
# ## Summary
#
# 1. Hide words, and the text is its own answer key. Of the 15 % chosen tokens, 80 % are masked, 10 % replaced, 10 % kept; the loss counts the chosen ones alone; the choice is drawn anew for each batch, as in RoBERTa.
# 2. A network that sees the next word need only copy it; so, to look both ways in every layer, BERT hides words. Its input is a sum of token, position and segment.
# 3. Fine-tuning exchanges the last layer and trains everything, gently. In the toy, with 200 labels and the same 950 steps in all, a network from scratch did as well; with 100 it did so in one seed of three. Its rate was chosen on 400 further labels.
# 4. Published networks read WordPieces. On real reviews one with far more training led; with 1,600 labels a bag of words and pairs came within a point of it, on average.
# 5. BERT-base has 109,482,240 parameters, a fifth of them in the token table. It judges texts and, trained once more on pairs, finds them by meaning; it is not made to write them.
#
# ## Where next
#
# *Chapter 13*: the other branch, GPT, which generates text, and does tasks when prompted.
#
# ## References
#
# - J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, *BERT: pre-training of deep bidirectional transformers for language understanding*, NAACL 2019, arXiv:1810.04805: section 3 and figure 2 (input), 3.1 (both tasks), figure 4 (four kinds of task), 5.3 and table 7 (features), appendices A.1 (the three replacements), A.2 (training), A.3 (fine-tuning), C.2 (masking).
# - M. Peters et al., *Deep contextualized word representations* (ELMo), NAACL 2018, arXiv:1802.05365: section 3.
# - A. Radford, K. Narasimhan, T. Salimans, I. Sutskever, *Improving language understanding by generative pre-training* (GPT), 2018: section 3.
# - W. L. Taylor, *"Cloze procedure": a new tool for measuring readability*, Journalism Quarterly 30, 1953.
# - Y. Wu et al., *Google's neural machine translation system*, 2016, arXiv:1609.08144: section 4.1 (WordPiece).
# - Y. Liu et al., *RoBERTa: a robustly optimized BERT pretraining approach*, 2019, arXiv:1907.11692: section 4 (dynamic masking, NSP, data).
# - A. Wettig, T. Gao, Z. Zhong, D. Chen, *Should you mask 15% in masked language modeling?*, EACL 2023, arXiv:2202.08005.
# - V. Sanh, L. Debut, J. Chaumond, T. Wolf, *DistilBERT, a distilled version of BERT*, 2019, arXiv:1910.01108: tables 1 and 3.
# - Z. Lan et al., *ALBERT: a lite BERT*, ICLR 2020, arXiv:1909.11942: section 3.1. K. Clark et al., *ELECTRA*, ICLR 2020, arXiv:2003.10555: section 2.
# - J. Hewitt, P. Liang, *Designing and interpreting probes with control tasks*, EMNLP 2019, arXiv:1909.03368: section 2. I. Tenney, D. Das, E. Pavlick, *BERT rediscovers the classical NLP pipeline*, ACL 2019, arXiv:1905.05950.
# - N. Reimers, I. Gurevych, *Sentence-BERT: sentence embeddings using Siamese BERT-networks*, EMNLP 2019, arXiv:1908.10084: table 1. N. Thakur et al., *BEIR*, 2021, arXiv:2104.08663. W. Wang et al., *MiniLM*, 2020, arXiv:2002.10957. The model: https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2.
# - Video: *BERT Explained!*, https://www.youtube.com/watch?v=OR0wfP2FD3c, both pre-training tasks and the input. J. Alammar, *The illustrated BERT, ELMo, and co.*, http://jalammar.github.io/illustrated-bert/.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question. (Exercise 12.5 mentions the first.)

# %% [markdown] tags=["deeper"]
# ### What do the layers know? Probing
#
# A **probe** is a small classifier on frozen vectors. If a linear probe reads a property off one token's vector, the property is there, in an easily readable form. Our grammar knows two things about every adjective:
#
# - its **role**: does the reviewer *hold* it ("it was superb") or *deny* it ("not dull", "critics called it dull")? Each adjective occurs in both roles equally often;
# - the **thing** that it is said of: film, plot, acting, ... eight of them.
#
# Which of the two can be read off the adjective's vector, and from which layer on?

# %% tags=["reveal"]
figures.probes("bert-toy", dict(zip(toys.QUESTIONS, (1 / 2, 1 / 8), strict=True)))

# %% tags=["fold", "reveal"]
# @title The role and the thing
def probed(kind, question, layer):
    """The probe's accuracies at one layer, one for each seed."""
    return [run[layer] for run in ledger.values("bert-toy", f"probe, {kind}", question)]


claim(
    "In every seed the role is read off layer 2 on more than 95 % of the adjectives, off layer 1 on more than 90 %, off the embeddings on less than 80 %.",
    min(probed("pre-trained", "role", 2)) > 0.95
    and min(probed("pre-trained", "role", 1)) > 0.9
    and max(probed("pre-trained", "role", 0)) < 0.8,
)
claim(
    "The thing is not found: no more than 8 points above chance (1 in 8) in any layer.",
    all(max(probed("pre-trained", "thing", layer)) < 1 / 8 + 0.08 for layer in range(3)),
)

# %% [markdown]
# The curves need **controls**:
#
# - The *embeddings* already give three quarters on "role". They hold the position, and in some forms of review the held adjective comes early, in others late. So only what lies *above* that is due to context.
# - The *untrained* network has the same architecture and mixes all tokens too. It adds nothing here: its weights start so small (0.02) that its layers hardly change what they read. On other tasks random networks are surprisingly good, and a probe on a trained one must be compared with them.
# - *Shuffled answers* (akin to the control tasks of Hewitt and Liang 2019, who give each *word* a random answer): if the probe does well on these, it can learn by heart, and its score says little about the vectors.

# %% tags=["fold"]
# @title The controls
claim(
    "The untrained network's layers give no more than its embeddings do.",
    max(probed("untrained", "role", 2)) < max(probed("untrained", "role", 0)) + 0.02,
)
claim(
    "On shuffled answers the probe stays at chance.",
    all(
        abs(value - 0.5) < 0.08 for layer in range(3) for value in probed("shuffled", "role", layer)
    ),
)

# %% [markdown]
# And a property may be absent because it was never needed. In this language every thing goes with every adjective, so knowing the thing helps to fill no gap. A network learns what its loss pays for.

# %% [markdown] tags=["deeper"]
# ### Can a probe know too much itself?
#
# Give the probe not one vector but those of the neighbours too, *of the untrained embeddings*. And score it on the examples that it was fitted to. (`R` = 400 is the number of test reviews.)

# %%
layers, adjective_answers = toys.adjectives(untrained.bert, task)
role = adjective_answers["role"]
with torch.no_grad():  # three more positions on either side
    embedded = F.pad(untrained.bert.embedding(test_ids), (0, 0, 3, 3))
positions = torch.tensor([[1 + r.held, 1 + r.denied] for r in task.reviews])  # (R, 2)
every_row = torch.arange(len(test_ids))[:, None]
around = torch.stack([embedded[every_row, positions + k] for k in range(7)], 2)
around = around.flatten(0, 1).flatten(1)  # (2 R, 7 D): it and its neighbours
half = len(around) // 2
wide = toys.probe(around[:half], role[:half], around[half:], role[half:])
narrow = toys.probe(layers[0][:half], role[:half], layers[0][half:], role[half:])

# %%
last_layer = toys.adjectives(reader_as_library.bert, task)[0][-1]  # (2 R, D), layer 2
order = torch.randperm(len(last_layer), generator=torch.Generator().manual_seed(0))
first_40 = last_layer[:40], role[order][:40]  # shuffled answers
heart = toys.probe(*first_40, last_layer[40:], role[order][40:], decay=1e-6)

# %% tags=["fold"]
# @title A probe on seven embeddings
claim(
    "The untrained layers hardly change what they read (cosines above 0.98 with the embeddings, at every adjective). A probe that sees seven untrained embeddings finds the role nearly always: the knowledge is the probe's.",
    torch.cosine_similarity(layers[0], layers[2]).min() > 0.98 and wide["accuracy"] > 0.95 and narrow["accuracy"] < 0.85,
    with_seven=wide["accuracy"],
    with_one=narrow["accuracy"],
)
claim(
    "Fitted to 40 vectors of 64 numbers, even one-vector probes learn shuffled answers by heart, and are at chance on new vectors.",
    heart["train_accuracy"] > 0.95 and abs(heart["accuracy"] - 0.5) < 0.1,
    fitted=heart["train_accuracy"],
    new=heart["accuracy"],
)

# %% [markdown] tags=["deeper"]
# ### Has the network sorted good and bad adjectives into two kinds?
#
# It fills the gap of section 4 with both. But do the vectors of its token table know more? Compare those of the twelve adjectives, after subtracting their mean. Two clear kinds would have cosines near 1 within and near -1 between them:

# %% tags=["nbval-ignore-output"]
twelve = reader.bert.token.weight.detach()[torch.cat([good, bad])]  # (12, D)
centred = F.normalize(twelve - twelve.mean(dim=0), dim=1)
cosines_of = centred @ centred.T  # (12, 12): six good, six bad
unequal = ~torch.eye(6, dtype=torch.bool)  # without a word and itself
print(f"good with good {cosines_of[:6, :6][unequal].mean():+.2f}")
print(f"bad with bad   {cosines_of[6:, 6:][unequal].mean():+.2f}")
print(f"good with bad  {cosines_of[:6, 6:].mean():+.2f}")

# %% tags=["fold"]
# @title Two kinds of adjectives, or one?
def gap_between(cosines, six):
    """Mean cosine within six of the twelve and within the others, less the mean cosine between both."""
    others = [i for i in range(12) if i not in six]
    within = [cosines[part][:, part][~torch.eye(6, dtype=torch.bool)].mean() for part in (list(six), others)]
    return (sum(within) / 2 - cosines[list(six)][:, others].mean()).item()


as_they_stand = F.normalize(twelve, dim=1)
claim(
    "As they stand, the vectors of good and bad adjectives are nearly as similar to each other as those of one kind: within a tenth on average, at a mean cosine above 0.5.",
    abs(gap_between(as_they_stand @ as_they_stand.T, range(6))) < 0.1 and (as_they_stand @ as_they_stand.T)[:6, 6:].mean() > 0.5,
)
splits = [(0, *rest) for rest in itertools.combinations(range(1, 12), 5)]
gaps_between = [gap_between(cosines_of, six) for six in splits]  # the first: good and bad
claim(
    "Without the mean of the twelve, cosines within a kind are less than 0.3 above those between the kinds; two clear kinds would give about 2. Other ways to cut the twelve in half part them at least as well.",
    gaps_between[0] < 0.3 and max(gaps_between[1:]) >= gaps_between[0],
    difference=gaps_between[0],
    as_well_or_better=f"{sum(gap >= gaps_between[0] for gap in gaps_between)} of {len(splits)} halvings, this one included",
)

# %% [markdown]
# At most a trace of two kinds. And in use? Each adjective of the test reviews is masked in turn:

# %% tags=["fold"]
# @title Is it so at every adjective?
def given_to_the_right_kind():
    """Mean probability of the six adjectives of the right polarity, each adjective masked in turn."""
    given, every_review = [], torch.arange(len(test_ids))
    for where in ([r.held for r in task.reviews], [r.denied for r in task.reviews]):
        at = 1 + torch.tensor(where)  # 1: after [CLS]
        old, hidden = test_ids[every_review, at], test_ids.index_put((every_review, at), torch.tensor(MASK))
        with torch.no_grad():
            probs = reader(hidden, test_real)[every_review, at].softmax(dim=-1)  # (R, V)
        given.append(torch.where(torch.isin(old, good), probs[:, good].sum(1), probs[:, bad].sum(1)))
    return torch.cat(given).mean()


right_kind = given_to_the_right_kind()
claim(
    "Each of the 800 adjectives of the test reviews masked in turn: the six of the right polarity together get half of the probability on average, as from a coin.",
    abs(right_kind - 0.5) < 0.05,
    mean=right_kind,
)

# %% [markdown] tags=["deeper"]
# ### Why hide a word, when one could predict the next?
#
# Two reviews of our language, and in both the verb is missing:
#
# - *critics called the plot boring , but i ___ it lovely .*
# - *i ___ the plot lovely , although critics called it boring .*
#
# It is *found*, both times. In the first review everything that gives it away stands on the left. In the second only *i* stands there, and three verbs can follow it; what decides is on the right. So whoever predicts the *next* word, from the left side alone, can only guess there. Three models, three ways to look:

# %%
diagrams.show("pretraining_directions")

# %% [markdown]
# **GPT** (Radford et al. 2018) predicts the next word. **ELMo** (Peters et al. 2018) does so twice, forwards and backwards, and joins the two; while they read, neither knows of the other. **BERT** (Devlin et al. 2019) looks both ways in every layer.
#
# How much is the other side worth? Our language is small enough to count. In each of its 4,608 reviews, at every position: how uncertain is the word, given nothing, the left side, or both?

# %% tags=["fold"]
# @title How uncertain is a word?
def by_context(context):
    """The words that occur in each context, counted over all reviews of the language: {context: Counter}."""
    seen = defaultdict(Counter)
    for review in toys.review_text():
        for t, word in enumerate(review.words):
            seen[context(review.words, t)][word] += 1
    return seen


def uncertainty(seen):
    """Mean entropy in nats of a word given its context, over all positions."""
    surprise = positions = 0
    for counts in seen.values():
        total = counts.total()
        positions += total
        surprise += sum(c * math.log(total / c) for c in counts.values())
    return surprise / positions


given_left = by_context(lambda words, t: tuple(words[:t]))
given_both = by_context(lambda words, t: (*words[:t], None, *words[t + 1 :]))
entropies = {
    "nothing (unigram)": uncertainty(by_context(lambda words, t: None)),
    "the left side": uncertainty(given_left),
    "both sides": uncertainty(given_both),
}
table(
    ["given", "nats per word", "effective number of choices"],
    [[name, nats, math.exp(nats)] for name, nats in entropies.items()],
)
claim(
    "Both sides leave less than three quarters of the uncertainty that the left side leaves.",
    entropies["both sides"] < 0.75 * entropies["the left side"],
)
left_verb = "critics called the plot boring , but i found it lovely .".split()
right_verb = "i found the plot lovely , although critics called it boring .".split()
claim(
    "Of the two verbs above, the left side leaves one word in the first review and three in the second; both sides leave *found* alone.",
    set(given_left[tuple(left_verb[:8])]) == {"found"}
    and set(given_left[("i",)]) == {"would", "expected", "found"}
    and set(given_both[(*left_verb[:8], None, *left_verb[9:])]) == {"found"}
    and set(given_both[("i", None, *right_verb[2:])]) == {"found"},
)

# %% [markdown]
# No model that sees the left side alone can get below the second row on average over the language. (Whether it would *judge* worse is not tested here.) And why not let it predict the *next* word with both sides open? Because the next word stands on the right: a network that sees it need only copy it. So BERT hides the word itself, and leaves both sides open. Section 4's perfect reader fits in between:

# %% tags=["fold"]
# @title The perfect reader, and both sides
claim(
    "The perfect reader of section 4 is below the uncertainty given both sides, because a tenth of the chosen words stay visible; at `[MASK]` alone it is above.",
    perfect < entropies["both sides"] < perfect_at_mask,
    perfect_reader=f"{perfect:.3f} nats",
    both_sides=f"{entropies['both sides']:.3f} nats",
    at_mask=f"{perfect_at_mask:.3f} nats",
)

# %% [markdown] tags=["deeper"]
# ### Where does it look when it fills a gap?
#
# The two reviews of the part before. Switch heads on and off. Then press *causal mask*, for what GPT could see: in which of the two is anything left that gives the verb away?

# %% tags=["fold"]
# @title Your network on any review
from course_lib.notebook.recorder import explore_sentence


def tokens_and_ids(review):
    """The tokens of a review, with [MASK] at each gap _, and what the network is called with, their ids."""
    unknown = sorted(set(review.split()) - set(vocab.itos) - {"_"})
    if unknown:
        raise ValueError(f"not in this language: {', '.join(unknown)}; see vocab.itos")
    words = [MASK if word == "_" else vocab.stoi[word] for word in review.split()]
    gap_ids = [CLS, *words, SEP]
    return [vocab.itos[i] for i in gap_ids], torch.tensor([gap_ids])


def explore_gaps(*reviews):
    """Fill the gaps of reviews of your own, and show where the network looks."""
    for review in reviews:
        _, gap_ids = tokens_and_ids(review)
        with torch.no_grad():
            best = reader_as_library(gap_ids)[0][0].argmax(-1)[1:-1]
        filled = [f"[{vocab.itos[i]}]" if w == "_" else w for w, i in zip(review.split(), best.tolist(), strict=True)]
        print("filled:", " ".join(filled))
    return explore_sentence(
        reader_as_library,
        tokens_and_ids,
        *reviews,
        title="A small BERT, pre-trained on toy reviews",
        alt="Attention maps of two layers with four heads each, over two reviews with a hidden verb. Every token may "
        "attend to every token, on both sides.",
        caption="No triangle: every position attends to *both* sides, and so does the gap.",
        layer=1,
        head="all",
        query="[MASK]",
    )

# %%
explore_gaps(
    "critics called the plot boring , but i _ it lovely .",
    "i _ the plot lovely , although critics called it boring .",
)

# %% [markdown]
# In the first: *critics called ... but i* stands on the left of the gap. In the second what gives the verb away is on the right.

# %% [markdown] tags=["deeper"]
# ### What is learned if the next word is visible?
#
# Take tokens drawn at random, 50 kinds, which nobody can foresee: a blind guess costs $\ln 50 = 3.9$ nats. One attention head, set by hand, without a single learned number, has to predict the next token at every position, with both sides open. (`attention_weights(scores, mask)` is chapter 07's masked softmax.)

# %%
T, SHARP = 12, 20.0  # SHARP: makes a softmax, of scores or logits, nearly 0 and 1
noise = torch.randint(50, (8, T), generator=torch.Generator().manual_seed(0))
one_hot = F.one_hot(noise, 50).double()  # (B, T, V): a token's vector is its name
to_the_right = SHARP * torch.diag(torch.ones(T - 1).double(), 1)  # (T, T) scores
print("the scores of four tokens (row: who looks; column: at whom):")
print(*to_the_right[:4, :5].int().tolist(), sep="\n")


def loss_of_head(visible):
    """Nats per token of the head that looks one position to the right, if it may."""
    copied = attention_weights(to_the_right.expand(8, -1, -1), visible) @ one_hot
    logits = SHARP * copied[:, :-1]  # (B, T - 1, V): of the next token
    return F.cross_entropy(logits.flatten(0, 1), noise[:, 1:].flatten()).item()

# %%
guess_4 = predict("its loss in nats per token", ...)

# %% tags=["reveal"]
sees_both, sees_left = loss_of_head(None), loss_of_head(causal_mask(T))
guess_4.compare(f"{sees_both:.6f} nats; with a causal mask {sees_left:.1f} nats")

# %% tags=["fold", "reveal"]
# @title What the head needed to learn
claim(
    "With both sides open a head in which nothing was learned predicts random tokens with a loss of nearly 0.",
    sees_both < 1e-5,
)
claim(
    "Under a causal mask it does worse than a guess.",
    sees_left > math.log(50),
    loss=f"{sees_left:.1f} nats",
    guess=f"{math.log(50):.1f} nats",
)

# %% [markdown]
# The low loss is a copy from one position to the right: it can be had without learning anything about the tokens. Under the causal mask the head cannot reach that position, and averages the tokens seen so far.
#
# Would a causal mask in the first layer be enough? No. In the second layer position $t$ may look at position $t + 1$, whose vector holds word $t + 1$: the answer can be copied there. GPT hides the future in every layer.

# %% [markdown] tags=["deeper"]
# ### Can it write?
#
# It fills each gap *by itself*: it gives $p(x_s \mid \tilde x)$ and $p(x_t \mid \tilde x)$, not $p(x_s, x_t \mid \tilde x)$. In our language exactly one of the two adjectives is good. Now hide both. Take a *perfect* reader, whose probabilities are counted from all reviews, and draw each gap from its own.

# %%
guess_5 = predict("how often the perfect reader breaks the rule, as a share", ...)

# %%
frame = "the plot was not _ , it was _ .".split()
fits = [
    [word in synthetic.GOOD for word, at in zip(review.words, frame) if at == "_"]
    for review in toys.review_text()
    if len(review.words) == len(frame)
    and all(at in ("_", word) for word, at in zip(review.words, frame))
]  # a pair of bools for each review of this form: is the adjective good?
first, second = torch.tensor(fits).double().mean(dim=0)  # each gap by itself
by_itself = first * second + (1 - first) * (1 - second)
in_turn = sum(a == b for a, b in fits) / len(fits)  # the second, given the first

# %% tags=["reveal"]
guess_5.compare(f"{by_itself:.2f}; {in_turn:.2f} if the gaps are filled in turn")

# %% tags=["fold", "reveal"]
# @title The perfect reader, and yours
def share_good(probs):
    """Of the probability that adjectives get, the share of good ones: (n,)."""
    return probs[:, good].sum(1) / (probs[:, good].sum(1) + probs[:, bad].sum(1))


both = fill(reader, " ".join(frame))  # (2, V)
p = share_good(both)
own_by_itself = (p.prod() + (1 - p).prod()).item()
own_in_turn = total = 0.0
for word in (*synthetic.GOOD, *synthetic.BAD):
    weight = both[0, vocab.stoi[word]].item()
    then = share_good(fill(reader, f"the plot was not {word} , it was _ ."))[0].item()
    own_in_turn += weight * (then if word in synthetic.GOOD else 1 - then)
    total += weight
own_in_turn /= total
claim(
    "Filled independently, the gaps are both good or both bad half of the time, even with perfect probabilities; filled one after the other, never.",
    abs(by_itself - 0.5) < 1e-9 and in_turn == 0,
)
claim(
    "Your network, which has not learned the rule, breaks it about half of the time in both ways.",
    abs(own_by_itself - 0.5) < 0.1 and abs(own_in_turn - 0.5) < 0.2,
    independently=own_by_itself,
    one_after_the_other=own_in_turn,
)

# %% [markdown]
# So it does not write in one pass. Later models fill the gaps in rounds, and are trained for it; BERT was not. For generation take a causal model (chapter 13); for classifying, searching and labelling whole texts, BERT's descendants (*Going deeper*).

# %% [markdown] tags=["deeper"]
# ### How does an encoder learn to search?
#
# From pairs $(q_i, d_i)$ that belong together. Each query of a batch must choose its own text among all B, by the cosines $c_{ij} = \cos(q_i, d_j)$ and a temperature $\tau$:
#
# $$ \text{loss} = -\frac{1}{B} \sum_{i=1}^{B} \log \frac{\exp(c_{ii} / \tau)}{\sum_{j=1}^{B} \exp(c_{ij} / \tau)}. $$
#
# It is a cross-entropy in which the batch's other texts are the wrong classes.

# %% [markdown] tags=["deeper"]
# ### How much do the three shares matter?
#
# In the paper's ablation (C.2) fine-tuned results hardly depend on them; frozen features suffer if all chosen tokens are masked. There exactly 15 % of a sequence's tokens are chosen, here each with probability 0.15. To choose whole words instead of pieces, or spans, came later.

# %% [markdown]
# Counted here, over 100 draws:

# %% tags=["fold"]
# @title The three replacements, counted over 100 draws
counted = Counter()
for seed in range(100):
    shown, targets = hide_in_tests(seed)
    in_loss, replaced = targets != IGNORE, shown != test_ids
    counted["tokens"] += words_only.sum().item()
    counted["chosen"] += in_loss.sum().item()
    counted["`[MASK]`"] += (shown == MASK).sum().item()
    counted["another token"] += (in_loss & replaced & (shown != MASK)).sum().item()
    counted["as it was"] += (in_loss & ~replaced).sum().item()
shares = {kind: counted[kind] / counted["chosen"] for kind in ("`[MASK]`", "another token", "as it was")}
table(["a chosen token becomes", "share"], [[kind, f"{s:.2%}"] for kind, s in shares.items()])
claim(
    "15 % are chosen; of these 80 % become the mask.",
    abs(counted["chosen"] / counted["tokens"] - 0.15) < 0.002 and abs(shares["`[MASK]`"] - 0.8) < 0.004,
)
claim(
    "A little less than 10 % become another token: one random draw in V - 5 gives the old one.",
    shares["another token"] < 0.1 < shares["as it was"],
)

# %% [markdown] tags=["deeper"]
# ### Draw the masks once, or anew for each batch?
#
# BERT's first code prepared its text beforehand, with ten different maskings for 40 epochs: *static* masking. RoBERTa draws for each batch: *dynamic* masking. Which words have ever been chosen after 40 epochs?

# %% tags=["fold"]
# @title Words ever chosen, after 40 epochs
drawn = torch.stack([hide_in_tests(seed=100 + epoch)[1] != IGNORE for epoch in range(40)])  # (40, R, T)
ever = {n: (drawn[:n].any(0).sum() / words_only.sum()).item() for n in (1, 10, 40)}
table(
    ["different maskings", "words ever chosen", "expected"],
    [[n, f"{share:.1%}", f"{1 - 0.85**n:.1%}"] for n, share in ever.items()],
)
claim(
    "One masking chooses 15 % of the words in all, BERT's ten for 80 %, a new one in each of 40 epochs for more than 99 %.",
    abs(ever[1] - 0.15) < 0.02 and abs(ever[10] - 0.8) < 0.02 and ever[40] > 0.99,
)

# %% [markdown] tags=["deeper"]
# ### What if each evaluation draws its own masks?
#
# Then luck is compared. The loss depends on which words are hidden, and two draws differ by more than many reported improvements. Draw the masks once, with a seed of their own, and call `eval()`.

# %% tags=["nbval-ignore-output"]
six = [
    toys.masked_scores(reader_as_library, task, draws=1, seed=seed)["loss"]
    for seed in range(6)
]
print("wrong:", *(f"{loss:.3f}" for loss in six))
again = [toys.masked_scores(reader_as_library, task)["loss"] for _ in range(2)]
print("fixed:", *(f"{loss:.3f}" for loss in again))

# %% tags=["fold"]
# @title Six draws
claim(
    "Six draws of masks on the same 400 reviews differ by more than 5 % of the loss; the same draw gives the same number.",
    max(six) - min(six) > 0.05 * scores["loss"] and again[0] == again[1] == scores["loss"],
)

# %% [markdown] tags=["deeper"]
# ### How wrong is a loss over all positions?
#
# Exercise 12.2 had such a loss. Most of the answers can be read in the question. Take a reader that copies what it sees, and at `[MASK]` knows only how often each word occurs:

# %%
shown, targets = hide_in_tests(seed=2)
often = torch.bincount(test_ids[words_only], minlength=V) + 1e-3
copying = 0.99 * F.one_hot(shown, V) + 0.01 / V  # (B, T, V) probabilities
answers = torch.where((shown == MASK)[..., None], often / often.sum(), copying)
each = -answers.gather(2, test_ids[..., None]).log()[..., 0]  # (B, T) nats
everywhere, at_chosen = each[words_only].mean(), each[targets != IGNORE].mean()
print(f"wrong: {everywhere:.2f} nats, fixed: {at_chosen:.2f} nats per chosen token")

# %% tags=["fold"]
# @title Both losses
claim(
    "Averaged over all words the loss of the copying reader is less than a fifth of that at the chosen positions.",
    everywhere < 0.2 * at_chosen,
)

# %% [markdown] tags=["deeper"]
# ### Which other last layers are there?
#
# Most tasks for an encoder are of four kinds (the paper's figure 4). They differ in what the new layer reads. Our classifier is of the first kind, with a mean in place of `[CLS]`:

# %%
figures.four_heads()

# %%
x = reader.bert(test_ids[:8], test_real[:8])  # (B, T, D)
print("encoder      ", tuple(x.shape))
print("one text     ", tuple(nn.Linear(64, 2)(x[:, 0]).shape))  # positive or not
print("two texts    ", tuple(nn.Linear(64, 3)(x[:, 0]).shape))  # entailment or not, ...
print("each token   ", tuple(nn.Linear(64, 5)(x).shape))  # a person, a town, ...
start, end = nn.Linear(64, 2)(x).unbind(dim=-1)  # question and passage
print("span         ", tuple(start.shape), tuple(end.shape))  # softmax over T, each

# %% [markdown]
# The loss is always a cross-entropy: over the classes, of the text or of every real token; for a span over the T positions, once for the start and once for the end.

# %% [markdown] tags=["deeper"]
# ### What do fewer steps from scratch, or frozen features, reach?
#
# Section 5 compared two ways. Here are two more. In the last the network that has read stays *frozen*, which was ELMo's way, **feature extraction**: only the new layer learns.
#
# | way | steps of reading | steps on labels | rate |
# |---|---|---|---|
# | pre-trained | 800 | 150 | 0.001 |
# | from scratch, 950 steps | none | 950 | the best of 0.001, 0.003 and 0.006 |
# | from scratch, 150 steps | none | 150 | the best of the three |
# | frozen | 800 | at most 100, of the new layer alone | set by the method (L-BFGS) |

# %% tags=["fold"]
# @title Four ways
FOUR_WAYS = TOY_WAYS | {
    "from scratch, 150 steps": ("bert-toy-steps", "from scratch, 150 steps, {} labels"),
    "frozen": ("bert-toy", "frozen, {} labels"),
}
figures.accuracy_by_labels(
    FOUR_WAYS,
    toys.LABELS,
    "What is reading worth? With 20 labels no gain that shows; after 150 steps on 50 to 200 labels a lead; against 950 steps from "
    "scratch and a choice of rates, nothing with 200 labels. Line: mean of three seeds; band: least to greatest; "
    "dotted: a coin.",
)

# %% tags=["fold"]
# @title The ledger: four ways
first_page = [ledger.summary("bert-toy", f"from scratch, {n} labels", "accuracy")[0] for n in toys.LABELS]
table(
    ["accuracy, mean of three seeds", *(f"{n} labels" for n in toys.LABELS)],
    [
        *([way, *(recorded(way, n, FOUR_WAYS) for n in toys.LABELS)] for way in FOUR_WAYS),
        ["from scratch, 150 steps at 0.001, as in the opening", *first_page],
    ],
)
claim(
    "With 20 labels no way gets 62 % of the new reviews right in any seed, and reading is no gain on average. After the same 150 steps on 50, 100 or 200 labels the pre-trained network is ahead of the one from scratch in each of three seeds, though that chose its rate.",
    all(value < 0.62 for way in FOUR_WAYS for value in by_seed(way, 20, FOUR_WAYS))
    and all(recorded("pre-trained", 20) < recorded(way, 20, FOUR_WAYS) for way in FOUR_WAYS if way != "pre-trained")
    and all(
        ours > theirs
        for n in (50, 100, 200)
        for ours, theirs in zip(by_seed("pre-trained", n), by_seed("from scratch, 150 steps", n, FOUR_WAYS), strict=True)
    ),
)

# %% [markdown]
# With 200 labels the network from scratch needs more than 150 steps, but far fewer than 950:

# %% tags=["fold"]
# @title From scratch: 300 steps, 200 labels
def from_scratch_300(seed):
    """Accuracy at 0.001 or 0.003, whichever does better on 400 labelled reviews that it does not learn from."""
    other = toys.review_task(seed)
    torch.manual_seed(seed)
    start, tried = toys.small_bert(other).bert, []
    for rate in (0.001, 0.003):
        tuned = toys.finetune(start, other.labelled[:200], steps=300, learning_rate=rate, seed=seed)
        tried.append((toys.accuracy(tuned, other.labelled[200:]), toys.accuracy(tuned, other.test)))
    return max(tried)[1]


after_300 = [from_scratch_300(seed) for seed in range(3)]
claim(
    "After 300 steps on 200 labels the network from scratch is right on more than 95 % of the new reviews in each of three seeds.",
    min(after_300) > 0.95,
    **{"seed by seed": ", ".join(f"{value:.3f}" for value in after_300)},
)

# %% [markdown]
# In the opening the rate was 0.001 for both. The frozen network does poorly here. With more labels, too?

# %% tags=["fold"]
# @title Frozen features, with more labels too
with_600 = toys.frozen_accuracy(reader_as_library.bert, task.labelled, task.test)
claim(
    "A linear layer on the frozen network is more than 20 points behind fine-tuning with 200 labels, on average; on your network, frozen, even 600 labels do not reach two thirds.",
    recorded("frozen", 200, FOUR_WAYS) < recorded("pre-trained", 200) - 0.2 and with_600 < 2 / 3,
    with_600_labels=with_600,
)

# %% [markdown]
# A likely reason: the verdict needs "which" and "held or denied" combined, and the last layer was made to guess words, not to lay this out for a linear layer. Elsewhere they can do well: the next part tries MiniLM.

# %% [markdown] tags=["deeper"]
# ### Where is the sentiment in MiniLM?
#
# The same kind of probe on MiniLM, frozen: is a review positive? It is fitted to the mean of each layer's vectors over 400 labelled reviews, and tested on section 7's 2,000.

# %% tags=["reveal"]
figures.sentiment_by_layer("minilm-probe")

# %% tags=["fold", "reveal"]
# @title By layer
by_layer = ledger.values("minilm-probe", "by layer", "accuracy")
claim(
    "In every seed the last layer's vectors give less than those of the layer before, by more than 4 points, and less than the embeddings.",
    all(run[-1] < run[-2] - 0.04 and run[-1] < run[0] for run in by_layer),
)
probe_seeds = [run["seed"] for run in ledger.load("minilm-probe")["runs"]]
best_probe = dict(zip(probe_seeds, map(max, by_layer), strict=True))
over_probe = [value - best_probe[seed] for seed, value in few("MiniLM", 400).items()]
claim(
    "Fine-tuned on the same 400 reviews, MiniLM is more than 2 points ahead of its best layer's probe in each of three seeds.",
    len(over_probe) == 3 and min(over_probe) > 0.02,
    mean=f"{100 * mean_of(over_probe):.1f} points",
)

# %% [markdown]
# A mean of the embeddings is a bag of words with vectors, and does well. The layers above add a little; the last one loses more than that. A likely reason: it was trained to bring texts on the same subject together, and praise and blame of one film are on the same subject. Fine-tuning changes the layers, and with the same 400 reviews gets further.
#
# Frozen features can do well: for named entities the paper reports 0.3 F1 less than with fine-tuning (table 7, a two-layer LSTM on four frozen layers).

# %% [markdown] tags=["deeper"]
# ### Is there a cheaper way to fine-tune?
#
# For large networks, yes: chapter 14's LoRA trains a small addition to each matrix, and leaves the matrices as they are.

# %% [markdown] tags=["deeper"]
# ### What was our own pre-training worth?
#
# Section 7's figures were of other people's reading. Here is our own, in the same comparison, with 100, 400 or 1,600 labels:
#
# - **from scratch**: a small encoder, two layers of width 128;
# - **our pre-training**: the same, after reading 12 million words of IMDB's training and unlabelled reviews.
#
# The points at the right have all 25,000 labels.

# %% tags=["fold"]
# @title Accuracy by the number of labels
ALL = {  # with all 25,000 labels
    "MiniLM": ("imdb-minilm-all", "25000 labels"),
    "bag of words": ("imdb-bow", "unigrams, scaled"),
    "bag of words and pairs": ("imdb-bow", "unigrams + bigrams, scaled"),
}
figures.imdb_by_labels(WAYS, FEW, ALL)

# %% tags=["fold"]
# @title The ledger: 100 to 25,000 labels
with_all = {way: ledger.values(*where, "accuracy") for way, where in ALL.items()}
table(
    ["accuracy, mean of three seeds", *(f"{n:,} labels" for n in FEW), "25,000 labels"],
    [
        [way, *(mean_of(few(way, n).values()) for n in FEW), mean_of(with_all[way]) if way in with_all else "-"]
        for way in WAYS
    ],
)
claim(
    "With all labels each seed of MiniLM is more than a point ahead of each of either bag.",
    min(with_all["MiniLM"]) > max(max(with_all[bag]) for bag in bags) + 0.01,
)
gains = [mean_of(leads("our pre-training", ["from scratch"], n)) for n in FEW]
claim(
    "With each number of labels the pre-trained network is ahead of the same from scratch in every seed; with 100, 400 and 1,600 labels its mean gain is 5.8, 4.9 and 1.6 points.",
    all(min(leads("our pre-training", ["from scratch"], n)) > 0 for n in FEW) and [round(100 * gain, 1) for gain in gains] == [5.8, 4.9, 1.6],
)

# %% [markdown]
# The two small networks have the same architecture, each a rate fixed beforehand, and the same passes over the labels. In these runs the reading gained 5.8, 4.9 and 1.6 points.
#
# - The two rates were 0.0015 from scratch and 0.0005 after reading. From scratch got no extra steps, so this does not show what longer training would do.
# - MiniLM differs in more than reading: it is five times as large as our BERT.
# - Our pre-training was done once; the three seeds are of fine-tuning.
# - With all labels the bags keep a tenth back to choose by, all test reviews are judged, and MiniLM has other settings (the next part).
#
# How does that compare with more labels, and with the others?

# %% tags=["fold"]
# @title The small network beside the others
claim(
    "In every seed MiniLM, and the bag of words too, is more than 4 points ahead of both small networks, with 100, 400 and 1,600 labels.",
    min(min(leads(way, small, n)) for way in ("MiniLM", "bag of words") for n in FEW) > 0.04,
)
claim(
    "It is not worth four times as many labels: from scratch with 1,600 every seed is better than any pre-trained with 400.",
    min(few("from scratch", 1600).values()) > max(few("our pre-training", 400).values()),
)

# %% [markdown]
# Does it still help with *all* labels? There a larger network was tried, on an H100: six layers of width 256. In each of three seeds it read the reviews' 20 million words eight times, then made three passes over the labelled ones. The same network from scratch made eight. Sizes, rates and passes were set beforehand, and none was tuned for either. Beside them are chapter 09's Transformers, smaller, from scratch, and chosen for this task; chapter 02's bag; and MiniLM. MiniLM and the network of chapter 09 marked *all labels* learned from all 25,000 labelled reviews; the others kept a tenth back for validation.

# %% tags=["fold"]
# @title The ledger: IMDB's test reviews, all labels
SOURCES = {
    "from scratch": ("imdb-bert-gpu", "from scratch"),
    "chapter 09, words": ("imdb-best", "words"),
    "chapter 09, words and pairs": ("imdb-best", "words and pairs"),
    "chapter 09, words and pairs, all labels": ("imdb-best-all", "words and pairs"),
    "pre-trained": ("imdb-bert-gpu", "pre-trained"),
    "bag of words and pairs": ("imdb-bow", "unigrams + bigrams, scaled"),
    "MiniLM": ("imdb-minilm-all", "25000 labels"),
}
imdb = {name: ledger.values(*where, "accuracy") for name, where in SOURCES.items()}

# %% tags=["reveal"]
figures.imdb_models(
    imdb,
    "Where is our pre-trained BERT? Ahead of the same network from scratch, behind "
    "the bag of words and pairs and MiniLM. Small dots: three seeds each.",
)

# %% tags=["fold", "reveal"]
# @title What the reading was worth
gpu_runs = ledger.load("imdb-bert-gpu")["runs"]
gained = [ours - theirs for ours, theirs in zip(imdb["pre-trained"], imdb["from scratch"], strict=True)]
passes = [run["history"]["from scratch"] for run in gpu_runs]
claim(
    "In each of three seeds pre-training is worth between 5 and 6 points over the same network from scratch; over chapter 09's best network of single words, less than 3 on average.",
    len(gained) == 3
    and all(0.05 < gain < 0.06 for gain in gained)
    and 0 < mean_of(imdb["pre-trained"]) - mean_of(imdb["chapter 09, words"]) < 0.03,
    **{"seed by seed": ", ".join(f"{100 * gain:.1f}" for gain in gained)},
)
claim(
    "From scratch the passes were enough: in each seed more than 98 % of the training reviews are right after the last, "
    "which does not raise the accuracy on the validation reviews, and the best of the eight is less than a point above the last.",
    all(
        run[-1]["train_accuracy"] > 0.98
        and run[-1]["valid_accuracy"] <= run[-2]["valid_accuracy"]
        and max(entry["valid_accuracy"] for entry in run) < run[-1]["valid_accuracy"] + 0.01
        for run in passes
    ),
)

# %% [markdown]
# So the size of the gain is that of one pair of networks. From scratch, one as large as this learns the labelled reviews by heart. Reading helps against that; so, less, does chapter 09's way, a smaller network with more dropout.

# %% [markdown] tags=["deeper"]
# ### How does our small network for IMDB differ from BERT?
#
# *The masks:* only the 8,000 most frequent words can be chosen, each with probability 0.25, the very frequent ones with less; no NSP. *The input:* whole words, 30,000 of them, in windows of 128 without `[CLS]`. *The network:* Pre-LN, ALiBi (chapter 08) beside the learned positions, larger initial weights, no dropout in pre-training. *Fine-tuning:* the mean of all vectors instead of `[CLS]`, the last 128 words of a review, a fifth of them masked at random. MiniLM reads the last 256 WordPieces, masks none, trains for 8, 4 and 2 epochs (ours for 10, 6 and 3, at a rate of 0.0005 after reading and of 0.0015 from scratch) at a rate that the paper recommends, 5e-5, and uses no attention dropout, which halves its time on a processor. With all labels it reads the last 512 in three epochs, in batches of 32 instead of 16, on an H100. Rates and epochs were set beforehand. (The paper: batches of 16 or 32, rates of 2e-5 to 5e-5, 2 to 4 epochs.) The bags read whole reviews. With few labels they choose their penalty by cross-validation on the labelled reviews; of all 25,000 they keep a tenth back for that.

# %% [markdown] tags=["deeper"]
# ### What does BERT add to a bag of word pairs?
#
# Let both vote: the scores of the pre-trained network and of a bag of words and pairs are added, with weights chosen on the validation reviews.

# %% tags=["fold"]
# @title The bag, the network, and their vote
alone = ledger.values("imdb-bert-gpu", "bag of pairs", "accuracy")
vote = ledger.values("imdb-bert-gpu", "pre-trained, with pairs", "accuracy")
table(
    ["seed", "bag alone", "pre-trained BERT alone", "both vote", "MiniLM alone"],
    [[run["seed"], *row] for run, *row in zip(gpu_runs, alone, imdb["pre-trained"], vote, imdb["MiniLM"], strict=True)],
)
claim(
    "In each of three seeds the vote is better than the bag alone, by less than a point; and the bag alone is better than BERT alone.",
    all(0 < both - bag < 0.01 and bag > bert for both, bag, bert in zip(vote, alone, imdb["pre-trained"], strict=True)),
    **{"added": ", ".join(f"{100 * (both - bag):.1f} points" for both, bag in zip(vote, alone, strict=True))},
)
claim(
    "MiniLM by itself is ahead of all of them in every seed.",
    min(imdb["MiniLM"]) > max(vote + alone + imdb["pre-trained"]),
)

# %% [markdown] tags=["deeper"]
# ### How long did our BERT read IMDB, and was it finished?

# %%
figures.reading_imdb("imdb-bert-gpu")

# %% tags=["fold"]
# @title How much it read
def points_of(experiment):
    """The history of the pre-training, one list for each seed."""
    return [run["history"]["pre-training"] for run in ledger.load(experiment)["runs"]]


claim(
    "The loss still falls: in each seed each of the last three points is lower than the one before.",
    all(
        last["valid_loss"] < before["valid_loss"]
        for points in points_of("imdb-bert-gpu")
        for before, last in zip(points[-4:], points[-3:], strict=False)
    ),
)
words_read = {name: [points[-1]["tokens"] for points in points_of(name)] for name in ("imdb-bert", "imdb-bert-gpu")}
claim(
    "The larger network read 164 million words in each of three seeds; the small one read 12 million, and had a higher loss on the same held-out reviews.",
    all(round(n / 1e6) == 164 for n in words_read["imdb-bert-gpu"])
    and all(round(n / 1e6) == 12 for n in words_read["imdb-bert"])
    and min(points[-1]["valid_loss"] for points in points_of("imdb-bert"))
    > max(points[-1]["valid_loss"] for points in points_of("imdb-bert-gpu")),
)

# %% [markdown] tags=["deeper"]
# ### What if the input is two texts?
#
# Many tasks compare two: a question and a passage, a claim and its evidence. So BERT can read pairs, `[CLS] first [SEP] second [SEP]`, and its segments say which text a token belongs to:

# %%
ids_of_both = (
    text.numericalize(part.split(), vocab)
    for part in ("the plot was dull", "i found it boring")
)
joined, segments = join_pair(*ids_of_both, CLS, SEP)
print("tokens  ", *(vocab.itos[i] for i in joined))
print("segments", *segments)

# %% [markdown]
# The first `[SEP]` belongs to the first text.
#
# In pre-training BERT has a second task, on pairs: **next sentence prediction** (NSP). In half of the pairs the second text followed the first, in the other half it comes from another document. The answer is read at a token that stands for no word, `[CLS]`: a layer with tanh, the *pooler*, and a linear layer turn its vector into two logits. The two losses are added.

# %%
diagrams.show("mlm_nsp")

# %% tags=["fold"]
# @title Both tasks before training, on 64 pairs
documents = [
    [text.numericalize(f"{part} .".split(), vocab) for part in review.removesuffix(" .").split(" . ")]
    for review, _ in synthetic.reviews(400, seed=5)
]
pairs = sentence_pairs(documents, torch.Generator().manual_seed(0))
joined_pairs = [(*join_pair(a, b, CLS, SEP), follows) for a, b, follows in pairs]
joined_pairs = [row for row in joined_pairs if len(row[0]) <= 32][:64]
pair_ids, pair_real = text.pad_batch([row for row, _, _ in joined_pairs])
pair_segments = torch.zeros_like(pair_ids)
pair_segments[pair_real] = torch.tensor([s for _, row, _ in joined_pairs for s in row])
strangers = torch.tensor([0 if follows else 1 for _, _, follows in joined_pairs])
options = {"generator": torch.Generator().manual_seed(0), "first_regular_id": FIRST}
shown, shown_labels = mask_tokens(pair_ids, pair_real & (pair_ids >= FIRST), V, MASK, **options)
with torch.no_grad():
    sums = pretraining_loss(untrained, (shown, pair_real, pair_segments, shown_labels, strangers))
neighbours = sum(follows for _, _, follows in pairs) / len(pairs)
claim("About half of the pairs are neighbours.", 0.4 < neighbours < 0.6, share=neighbours)
claim(
    "Before training both tasks together cost about ln V + ln 2 nats.",
    abs(sums["loss"] / sums["count"] - math.log(V) - math.log(2)) < 0.3,
    loss=f"{sums['loss'] / sums['count']:.2f} nats",
    guess=f"{math.log(V) + math.log(2):.2f} nats",
)

# %% [markdown]
# RoBERTa (Liu et al. 2019) dropped NSP, with results as good or better; your network does without it, too.

# %% [markdown] tags=["deeper"]
# ### What if the second text's segments are left at 0?
#
# Nothing fails: the code runs, the loss falls. But a published BERT was made to read the second text with $S[1]$ added to each of its vectors. In a random BERT, on the pairs above:

# %%
set_seed(3)
pair_reader = toys.small_bert(task).bert
with torch.no_grad():
    given = pair_reader.embedding(pair_ids, pair_segments)
    left_out = pair_reader.embedding(pair_ids)

# %% tags=["fold"]
# @title Which vectors differ
claim(
    "Exactly the vectors of the second text differ.",
    torch.equal((given != left_out).any(-1), pair_segments == 1),
    largest_difference=(given - left_out).abs().max(),
)

# %% [markdown] tags=["deeper"]
# ### How is a vocabulary of WordPieces found?
#
# By merging, like BPE (chapter 02), but merges are ranked by how much they raise the likelihood of the text.

# %% [markdown] tags=["deeper"]
# ### Can a published BERT fill gaps?
#
# With a network connection:
#
# ```python
# model = BERTForPreTraining.from_pretrained("bert-base-uncased")  # 440 MB, once
# tokenizer = huggingface.tokenizer("bert-base-uncased")
# encoded = tokenizer.encode("The plot was [MASK].")
# logits, _ = model(torch.tensor([encoded.ids]))
# best = logits[0, encoded.tokens.index("[MASK]")].topk(5).indices
# print([tokenizer.id_to_token(i) for i in best])
# ```
#
# (Not run here.) The library reads and writes Hugging Face's names, so the round trip can be made with `small_bert`, the network that read in the opening:

# %%
with tempfile.TemporaryDirectory() as folder:
    small_bert.save_pretrained(folder)
    returned = BERTForPreTraining.from_pretrained(folder)
    files = sorted(path.name for path in Path(folder).iterdir())
    config, tensors = huggingface.read(folder)
with torch.no_grad():
    ours = small_bert(test_ids[:20], test_real[:20])
    theirs = returned(test_ids[:20], test_real[:20])
print(*files)

# %% tags=["fold"]
# @title The files, and the logits compared
claim(
    "The folder holds `config.json` and `model.safetensors`, and the loaded network gives the same logits, bit by bit.",
    files == ["config.json", "model.safetensors"]
    and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)),
)

# %% [markdown] tags=["deeper"]
# ### Which names are in a published file?
#
# Those of Hugging Face's `BertForPreTraining`, in `model.safetensors`. (Older files, `pytorch_model.bin`, are pickles; opening a pickle can run any program, and the library refuses them.) There query, key and value are three matrices, in the library one; it cuts and joins. Of the network just saved, the weights of one layer and of the rest:

# %% tags=["fold"]
# @title Some of the names
shown_names = [name for name in sorted(tensors) if ".layer.1" not in name and name.endswith("weight")]
table(["name in the file", "shape"], [[f"`{name}`", tuple(tensors[name].shape)] for name in shown_names])

# %% [markdown] tags=["deeper"]
# ### What if a checkpoint does not fit?
#
# Then nothing of it may be loaded. One tensor taken out, one of another shape:

# %%
damaged = {n: x for n, x in tensors.items() if n != "bert.pooler.dense.bias"}
damaged["bert.embeddings.position_embeddings.weight"] = torch.zeros(9, 64)
with tempfile.TemporaryDirectory() as folder:
    huggingface.save(folder, config, damaged)
    try:
        BERTForPreTraining.from_pretrained(folder)
        complaint = ""
    except ValueError as error:
        complaint = str(error)

# %% tags=["fold"]
# @title What the library says
claim(
    "It is refused, and both tensors are named.",
    "pooler" in complaint and "position" in complaint,
)

# %% [markdown] tags=["deeper"]
# ### What did the published models read, and for how long?
#
# BooksCorpus (800 million words) and English Wikipedia (2,500 million), says the paper (sections 3.1 and A.2): batches of 256 sequences, a million steps, about 40 epochs. Nine tenths of the steps had sequences of 128 tokens and the rest 512, because attention grows with $T^2$ (chapter 10). It took four days on 4 Cloud TPUs (16 chips) for the base and on 16 (64 chips) for the large model.

# %% [markdown] tags=["deeper"]
# ### Where are the parameters?
#
# On torch's device `meta` tensors have shapes and no numbers, so both published sizes can be built without any memory, with the pooler, without the heads of pre-training. (Exercise 12.6 asks for the formula: write yours first.)

# %%
published = {}
for name in ("bert-base-uncased", "bert-large-uncased"):
    with torch.device("meta"):
        published[name] = BERT(BERTConfig.from_name(name))
totals = [number_of_parameters(bert) for bert in published.values()]

# %% tags=["fold"]
# @title How many parameters
in_tokens = number_of_parameters(published["bert-base-uncased"].embedding.token)
claim("109,482,240 and 335,141,888 parameters.", totals == [109_482_240, 335_141_888])
claim(
    "Of BERT-base's parameters about a fifth are in the token table.",
    abs(in_tokens / totals[0] - 0.2) < 0.02,
    share=f"{in_tokens / totals[0]:.1%}",
)

# %% [markdown]
# The paper rounds to 110 and 340 million. Part by part:

# %% tags=["fold"]
# @title Where the parameters are
def parts_of(bert):
    """Number of parameters of each part."""
    count, layer = number_of_parameters, bert.encoder.layers[0]
    attention = bert.config.num_layers * count(layer.self_attn)
    return {
        "token table": count(bert.embedding.token),
        "positions, segments, norm": count(bert.embedding) - count(bert.embedding.token),
        "attention": attention,
        "feed-forward and norms": count(bert.encoder) - attention,
        "pooler": count(bert.pooler),
    }


def by_formula(c):
    """Parameters of the encoder, by chapter 10."""
    layout = c.d_model, c.num_heads, c.dim_feedforward, c.num_layers
    return formulas.encoder_cost(1, 1, *layout).parameters


base, large = (parts_of(bert) for bert in published.values())
table(
    ["part", "BERT-base", "share", "BERT-large", "share"],
    [
        *(
            [part, number, f"{number / totals[0]:.1%}", large[part], f"{large[part] / totals[1]:.1%}"]
            for part, number in base.items()
        ),
        ["all", totals[0], "100 %", totals[1], "100 %"],
    ],
)
claim(
    "The parts add up to 109,482,240 and 335,141,888 parameters.",
    [sum(base.values()), sum(large.values())] == totals == [109_482_240, 335_141_888],
)
claim(
    "Chapter 10's formula counts both encoders.",
    all(by_formula(b.config) == number_of_parameters(b.encoder) for b in published.values()),
)

# %% [markdown] tags=["deeper"]
# ### What do the heads of pre-training add?
#
# Little, since the output layer *is* the token table:

# %%
with torch.device("meta"):
    whole = BERTForPreTraining(BERT(BERTConfig.from_name("bert-base-uncased")))
extra = number_of_parameters(whole) - totals[0]

# %% tags=["fold"]
# @title What the heads of pre-training add
D_base, V_base = 768, 30522
claim(
    "The heads add $D^2 + D + 2D + V + 2D + 2$ = 624,188 parameters; an untied output layer would add 23.4 million more.",
    extra == D_base * D_base + 5 * D_base + V_base + 2 == 624_188 and V_base * D_base > 23.4e6,
)

# %% [markdown] tags=["deeper"]
# ### What came after BERT?
#
# | model | what is different | size |
# |---|---|---|
# | BERT (Devlin et al. 2019, Google) | masked language model and NSP; 16 GB of text; WordPiece, 30,522 | 110M, 340M |
# | RoBERTa (Liu et al. 2019, Facebook) | no NSP; dynamic masking; 160 GB of text; larger batches, longer training; byte-level BPE, 50,000 | 125M, 355M |
# | DistilBERT (Sanh et al. 2019, Hugging Face) | 6 layers, trained to imitate BERT-base's outputs (distillation); no segments, no pooler; by its authors' count 97 % of the score on GLUE, 60 % faster | 66M, 40 % smaller |
# | ALBERT (Lan et al. 2020) | all layers share their weights; a narrow table of embeddings; order of sentences in place of NSP | 12M (base) |
# | ELECTRA (Clark et al. 2020) | a small network fills the gaps, the large one says of *every* token whether it was replaced: a loss at all positions | 110M (base) |
