# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 210
#     needs: "chapters 07 to 09; 11 helps"
# ---

# %% [markdown]
# # 12 · BERT
#
# One hundred labelled film reviews, and 3,608 that nobody has judged. A small Transformer that learns from the hundred alone is often wrong. **How much can it gain from the reviews without a label?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("pretraining_directions")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import math
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

import torch
from torch.nn import functional as F

from course_lib import text
from course_lib.attention import attention_weights
from course_lib.bert import (
    BERT,
    IGNORE,
    BERTConfig,
    BERTEmbedding,
    BERTForPreTraining,
    BERTForSequenceClassification,
    join_pair,
    mask_tokens,
    masked_lm_loss,
    pretraining_loss,
    sentence_pairs,
)
from course_lib.cost import formulas
from course_lib.datasets import synthetic
from course_lib.exercises import ch12
from course_lib.experiments import toy_bert as toys
from course_lib.experiments.toy_bert import CLS, FIRST, MASK, SEP
from course_lib.functional import causal_mask
from course_lib.notebook import (
    claim,
    diagrams,
    ledger,
    predict,
    show_source,
    table,
)
from course_lib.notebook.figures import ch12 as figures
from course_lib.train import set_seed
from course_lib.utils import huggingface, number_of_parameters

set_seed(0)

# %%
task = toys.review_task(seed=0)
vocab, V = task.vocab, len(task.vocab)
for review in task.reviews[:3]:
    print("+" if review.label else "-", " ".join(review.words))

# %%
guess_1 = predict("the share of new reviews judged right after reading the 3,608", ...)

# %%
untrained = toys.small_bert(task)
model = copy.deepcopy(untrained)
history = toys.pretrain(model, task, seed=0)  # no label is read here

# %%
hundred = task.labelled[:100]
scratch_model = toys.finetune(untrained.bert, hundred)
tuned_model = toys.finetune(model.bert, hundred)

# %% tags=["reveal"]
scratch = toys.accuracy(scratch_model, task.test)
tuned = toys.accuracy(tuned_model, task.test)
guess_1.compare(f"{tuned:.2f}, and {scratch:.2f} from the hundred alone")

# %% tags=["fold", "reveal", "nbval-ignore-output"]
# @title Some of the 400 new reviews
def verdicts(classifier):
    """One bool a test review: True = positive."""
    rows, real = text.pad_batch([row for row, _ in task.test])
    with torch.no_grad():
        return (classifier(rows, real).argmax(-1) == 1).tolist()


SIGN = {True: "+", False: "-"}
said = list(zip(task.reviews, verdicts(tuned_model), verdicts(scratch_model), strict=True))
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
claim(
    "With 100 labels the pre-trained network is right on more than 85 % of new reviews, and more than 5 points ahead of the same network from scratch.",
    tuned > 0.85 and tuned > scratch + 0.05,
    **{"pre-trained": tuned, "from scratch": scratch},
)

# %% [markdown]
# Same network, same hundred labels, same 150 steps on them. The difference is a game played before: words were hidden, and the network had to guess them. (It took 800 steps of its own; section 7 comes back to that.) This chapter is about that game and what comes of it.
#
# ## You will be able to
#
# 1. hide tokens as BERT does, and say what each of the three fates is for (exercises 12.1, 12.2);
# 2. build BERT's input from pairs of texts, and its loss, without the usual mistakes (exercises 12.3, 12.4);
# 3. cut words into WordPieces (exercise 12.5);
# 4. compare fine-tuning with frozen features, and read a probe with its controls (exercise 12.6);
# 5. derive the number of parameters of BERT-base and BERT-large (exercise 12.7).
#
# Letters: `B` sequences, `T` tokens, `D` width, `H` heads, `F` width of the feed-forward network, `V` vocabulary, `N` layers, $L$ the most tokens of a sequence.

# %% [markdown]
# ## 1 · What may see what
#
# Text without labels is cheap, labels are not. So: *pre-train* once on a task that the text itself sets, with as much text as there is (all of Wikipedia), then *fine-tune* for each task with its few labels. What should the text ask? A word's meaning depends on both sides of it. The picture at the head of the chapter shows three ways to get there:
#
# - **ELMo** (Peters et al. 2018) trains two language models, one reading forwards and one backwards, each an LSTM, and joins their states. It sees both sides, but *shallowly*: no layer can weigh left against right context, since each half was computed in ignorance of the other. Its vectors are then fed, as features, to a network made for the task.
# - **GPT** (Radford et al. 2018) trains one deep causal Transformer, and fine-tunes it as a whole. *Deep*, but each position sees the left side only.
# - **BERT** (Devlin et al. 2019) is *deep and bidirectional*: every layer sees both sides. Fine-tuned as a whole, with one small layer for each task.
#
# How much is the other side worth? Our language is small enough to count. Take every review that it has, and every place in it: how uncertain is the word, given nothing, the left side, or both?

# %%
def uncertainty(context):
    """Mean entropy in nats of a word given its context, over all places."""
    seen = defaultdict(Counter)
    for review in toys.review_text():
        for t, word in enumerate(review.words):
            seen[context(review.words, t)][word] += 1
    surprise = places = 0
    for counts in seen.values():
        places += counts.total()
        surprise += sum(n * math.log(counts.total() / n) for n in counts.values())
    return surprise / places


floors = {
    "nothing (unigram)": uncertainty(lambda words, t: None),
    "the left side": uncertainty(lambda words, t: tuple(words[:t])),
    "both sides": uncertainty(lambda words, t: (*words[:t], None, *words[t + 1 :])),
}

# %% tags=["fold", "reveal"]
# @title How uncertain is a word?
table(
    ["given", "nats a word", "effective number of choices"],
    [[name, nats, math.exp(nats)] for name, nats in floors.items()],
)
claim(
    "Both sides leave less than three quarters of the uncertainty that the left side leaves.",
    floors["both sides"] < 0.75 * floors["the left side"],
)

# %% [markdown]
# These are floors: no model can do better on average. A causal model is bound to the second row, whatever its size.

# %% [markdown]
# ## 2 · Why not predict the next word from both sides?
#
# Because the next word *is* on the right side. Take tokens drawn at random, 50 kinds; nobody can foresee them. A blind guess costs $\ln 50 = 3.9$ nats. One attention head, set by hand, without a single learned number, is asked for the next token at every place, with both sides open.

# %%
guess_2 = predict("its loss in nats a token", ...)

# %%
noise = torch.randint(50, (8, 12), generator=torch.Generator().manual_seed(0))
one_hot = F.one_hot(noise, 50).double()  # (B, T, V): a token's vector is its name
to_the_right = 20.0 * torch.diag(torch.ones(11).double(), 1)  # (T, T) scores


def loss_of_head(visible):
    """Nats a token of the head that looks one place to the right, if it may."""
    copied = attention_weights(to_the_right.expand(8, -1, -1), visible) @ one_hot
    logits = 20 * copied[:, :-1]  # (B, T - 1, V): of the next token
    return F.cross_entropy(logits.flatten(0, 1), noise[:, 1:].flatten()).item()

# %% tags=["reveal"]
sees_both, sees_left = loss_of_head(None), loss_of_head(causal_mask(12))
guess_2.compare(f"{sees_both:.6f} nats; with a causal mask {sees_left:.1f} nats")

# %% tags=["fold", "reveal"]
# @title What the head has understood
claim(
    "With both sides open the head foretells random tokens without a mistake; it has understood nothing.",
    sees_both < 1e-5,
)
claim(
    "Under a causal mask it does worse than a guess.",
    sees_left > math.log(50),
    loss=f"{sees_left:.1f} nats",
    guess=f"{math.log(50):.1f} nats",
)

# %% [markdown]
# The low loss is a copy from one place to the right: a loss that can be had in this way asks for nothing else. When the text is to be continued, there is nothing to copy. A causal mask in the first layer alone would not help: in the next, word $t + 1$ is read at its own place. So: either hide the future in every layer (GPT), or hide the *word itself*.

# %% [markdown]
# ## 3 · The masked language model
#
# Choose a set $C$ of places at random, 15 % of the tokens. Replace them, and ask for the old tokens, at these places only. With $\tilde x$ for what is read:
#
# $$ \text{loss} = -\frac{1}{|C|} \sum_{t \in C} \log p(x_t \mid \tilde x). $$
#
# A place in $C$ cannot see its own word, so both sides can be open to every layer. The idea is an old test for readers, the *cloze* (Taylor 1953).

# %%
show_source(mask_tokens, masked_lm_loss)

# %% [markdown]
# ### 80, 10, 10
#
# What would a network learn about the words that it can see, if all chosen tokens became `[MASK]`? And what would it see in fine-tuning? So a chosen token has one of three fates:
#
# - **80 % become `[MASK]`:** the blank.
# - **10 % become a random token:** so a word that shows may be wrong, and the network must check *every* word against its context.
# - **10 % stay as they are:** so that the vector of a visible word is asked to say which word it is. In fine-tuning all words are visible and there is no `[MASK]`.
#
# These are the paper's reasons (appendix A.1). Its ablation (C.2) says how much they matter: fine-tuned results hardly depend on the shares; frozen features suffer if all chosen tokens are masked.

# %%
test_ids, test_real = text.pad_batch([row for row, _ in task.test])
maskable = test_real & (test_ids >= FIRST)  # real, and no special token


def blanks(seed):
    """What is read and what is asked for, with blanks of this seed."""
    draws = torch.Generator().manual_seed(seed)
    return mask_tokens(test_ids, maskable, V, MASK, draws, first_regular_id=FIRST)


for name, row in zip(("read", "asked"), blanks(seed=0), strict=True):
    print(f"{name:5}", " ".join("." if i == IGNORE else vocab.itos[i] for i in row[0]))

# %%
fates = Counter()
for seed in range(100):
    shown, asked_for = blanks(seed)
    chosen, replaced = asked_for != IGNORE, shown != test_ids
    fates["tokens"] += maskable.sum().item()
    fates["chosen"] += chosen.sum().item()
    fates["`[MASK]`"] += (shown == MASK).sum().item()
    fates["another token"] += (chosen & replaced & (shown != MASK)).sum().item()
    fates["as it was"] += (chosen & ~replaced).sum().item()

# %% tags=["fold"]
# @title The three fates, counted over 100 draws
shares = {fate: fates[fate] / fates["chosen"] for fate in ("`[MASK]`", "another token", "as it was")}
table(["fate of a chosen token", "share"], [[fate, f"{s:.1%}"] for fate, s in shares.items()])
claim(
    "15 % are chosen; of these 80 % become the mask.",
    abs(fates["chosen"] / fates["tokens"] - 0.15) < 0.002 and abs(shares["`[MASK]`"] - 0.8) < 0.004,
)
claim(
    "A little less than 10 % become another token: one random draw in V - 5 gives the old one.",
    shares["another token"] < 0.1 < shares["as it was"],
)

# %% [markdown]
# (In the paper exactly 15 % of a sequence's tokens are chosen; here each with probability 0.15. Whole words instead of pieces, or spans, are later variants.)
#
# ### Exercise 12.1 · Hide
#
# Difficulty ●●○○○ · 20 minutes · needs section 3
#
# The draws are given, so that the result is determined. `others` holds the random tokens.


# %% nbgrader={"grade": false, "grade_id": "ex12-1-hide", "locked": false, "schema_version": 3, "solution": true, "task": false}
def hide(ids, maskable, choose, fate, others, mask_id):
    """Hide tokens for a masked language model.

    Args:
        ids: (B, T) int64 tokens.
        maskable: (B, T) bool, True = may be chosen.
        choose: (B, T) uniform in [0, 1): a maskable token is chosen where it is below 0.15.
        fate: (B, T) uniform in [0, 1): below 0.8 the mask, below 0.9 the token of `others`, else unchanged.
        others: (B, T) int64 random tokens.
        mask_id: id of [MASK].

    Returns:
        inputs: (B, T) int64.
        targets: (B, T) int64, -100 where not chosen.
    """
    ### BEGIN SOLUTION
    chosen = maskable & (choose < 0.15)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.8) & (fate < 0.9), others, inputs)
    return inputs, torch.where(chosen, ids, -100)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex12-1-hide-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.hide(hide)

# %% [markdown]
# ### Exercise 12.2 · How suspect is a word that looks normal?
#
# Difficulty ●●●○○ · 15 minutes · needs section 3
#
# Masked language models read DNA too: $V = 4$ letters. The shares are those above, and random tokens are drawn from all four. Write two numbers, as a tuple: (a) the share of all tokens whose input *differs* from the text; (b) you look at a place that shows its true letter: the probability that it is one of the chosen.

# %% nbgrader={"grade": false, "grade_id": "ex12-2-shares", "locked": false, "schema_version": 3, "solution": true, "task": false}
changed_and_suspect = ...
### BEGIN SOLUTION
changed_and_suspect = (
    0.15 * (0.8 + 0.1 * 3 / 4),
    0.15 * (0.1 + 0.1 / 4) / (0.85 + 0.15 * (0.1 + 0.1 / 4)),
)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex12-2-shares-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch12.shares(changed_and_suspect)

# %% [markdown]
# ### Common mistakes
#
# **Blanks in special tokens and padding.** With `maskable = mask`, or everything, the network is asked for `[CLS]`, `[SEP]` and padding, which are always the same. The loss looks better, and nothing was learned:

# %%
draws = torch.Generator().manual_seed(1)
_, careless = mask_tokens(test_ids, torch.ones_like(test_real), V, MASK, draws)
where_asked = careless != IGNORE
empty = (where_asked & ~maskable).sum() / where_asked.sum()

# %% tags=["fold"]
# @title How many blanks are wasted
claim(
    "Choosing from everything spends more than a third of the blanks on places that need no reading.",
    empty > 1 / 3,
    share=empty,
)

# %% [markdown]
# **The loss over all places.** Then most of the answers stand in the question. Take a reader that copies what shows, and at a `[MASK]` knows only how often each word occurs. It has understood nothing; what is its loss?

# %%
shown, asked_for = blanks(seed=2)
often = torch.bincount(test_ids[maskable], minlength=V) + 1e-3
copied = 0.99 * F.one_hot(shown, V) + 0.01 / V  # (B, T, V) probabilities
answers = torch.where((shown == MASK)[..., None], often / often.sum(), copied)
each = -answers.gather(2, test_ids[..., None]).log()[..., 0]  # (B, T) nats
everywhere, at_blanks = each[maskable].mean(), each[asked_for != IGNORE].mean()

# %% tags=["fold", "reveal"]
# @title Its loss, averaged in two ways
claim(
    "Averaged over all words its loss seems small, less than a fifth of what it is at the chosen places.",
    everywhere < 0.2 * at_blanks,
    everywhere=f"{everywhere:.2f} nats",
    chosen=f"{at_blanks:.2f} nats",
)

# %% [markdown]
# **The same blanks in every epoch.** BERT's first code masked its text once (ten different ways, for 40 epochs): *static* masking. Drawing anew for each batch costs nothing and asks for every word in the end:

# %%
asked = torch.zeros_like(test_real)
for epoch in range(20):
    new_blanks = blanks(seed=100 + epoch)[1] != IGNORE
    asked |= new_blanks
dynamic = (asked.sum() / maskable.sum()).item()
static = (new_blanks.sum() / maskable.sum()).item()  # one draw, for all epochs

# %% tags=["fold"]
# @title The share of the words that were ever asked for
claim(
    "In 20 epochs of dynamic masking more than 95 % of the words were asked for, with static masking 15 %.",
    dynamic > 0.95 and static < 0.17,
    dynamic=dynamic,
    expected=1 - 0.85**20,
    static=static,
)

# %% [markdown]
# ### Exercise 12.3 · Find the bug: a loss that is too good
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# A colleague's loss falls within a minute to a tenth of yours. Find two mistakes, and write it right.
#
# ```python
# def blank_loss(logits, targets):  # (B, T, V), (B, T) with -100 outside the blanks
#     targets = targets.clamp(min=0)  # -100 is not a token
#     loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
#     return loss / targets.numel()
# ```


# %% nbgrader={"grade": false, "grade_id": "ex12-3-blank-loss", "locked": false, "schema_version": 3, "solution": true, "task": false}
def blank_loss(logits, targets):
    """Mean cross-entropy over the blanks.

    Args:
        logits: (B, T, V).
        targets: (B, T) int64, -100 where nothing is asked; at least one place is asked.

    Returns:
        scalar tensor, nats a blank.
    """
    ### BEGIN SOLUTION
    asked = targets != -100
    log_probs = logits[asked].log_softmax(-1)  # (n, V)
    return -log_probs.gather(1, targets[asked][:, None]).mean()
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex12-3-blank-loss-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch12.blank_loss(blank_loss)

# %% [markdown]
# ## 4 · What BERT reads
#
# Many tasks compare two texts: question and answer, claim and evidence. So BERT reads pairs, and pre-training has a second game, **next sentence prediction** (NSP): in half of the pairs B followed A in the text, in the other half B comes from elsewhere. The answer is read at a token that stands for nothing else, `[CLS]`: its vector must sum up the whole input, as the masked words make each other vector speak of its token in this context.

# %%
diagrams.show("mlm_nsp")

# %% [markdown]
# Each place has the sum of three vectors: which token, at which place (a learned table, chapter 08), in which of the two texts. Then a LayerNorm, so that the three arrive with one size:
#
# $$ x_t = \mathrm{LayerNorm}(E[\text{id}_t] + P[t] + S[\text{segment}_t]). $$

# %%
show_source(BERTEmbedding.forward, join_pair, BERT.pool)

# %%
two_texts = "the plot was dull", "we left early"
ids_of_both = (text.numericalize(part.split(), vocab) for part in two_texts)
joined, segments = join_pair(*ids_of_both, CLS, SEP)
print(*(f"{vocab.itos[i]}" for i in joined))
print(*segments)

# %% tags=["fold"]
# @title Which text the first separator belongs to
claim("The first `[SEP]` belongs to the first text.", segments == [0] * 6 + [1] * 4)

# %% [markdown]
# (`left` and `early` do not occur in our language, so they are `<unk>`; section 5 is about that.) Pairs for the second game come from documents. Here a document is a longer toy review, cut into its sentences:

# %%
def ids_of(words):
    """Their numbers in the vocabulary."""
    return text.numericalize(words, vocab)


documents = [
    [f"{part} .".split() for part in review.removesuffix(" .").split(" . ")]
    for review, _ in synthetic.reviews(400, seed=5)
]
pairs = sentence_pairs(documents, torch.Generator().manual_seed(0))
for first, second, neighbours in pairs[:3]:
    print("neighbours:" if neighbours else "strangers: ", *first, "|", *second)

# %%
rows = [
    (*join_pair(ids_of(a), ids_of(b), CLS, SEP), follows) for a, b, follows in pairs
]
rows = [row for row in rows if len(row[0]) <= 32][:64]
pair_ids, pair_real = text.pad_batch([ids for ids, _, _ in rows])
pair_segments = torch.zeros_like(pair_ids)
pair_segments[pair_real] = torch.tensor([s for _, row, _ in rows for s in row])
strangers = torch.tensor([0 if follows else 1 for _, _, follows in rows])
regular = pair_real & (pair_ids >= FIRST)
options = {"generator": torch.Generator().manual_seed(0), "first_regular_id": FIRST}
shown, asked_for = mask_tokens(pair_ids, regular, V, MASK, **options)
with torch.no_grad():
    batch = shown, pair_real, pair_segments, asked_for, strangers
    sums = pretraining_loss(untrained, batch)

# %% tags=["fold"]
# @title The two games before training
neighbours = sum(follows for _, _, follows in pairs) / len(pairs)
claim("About half of the pairs are neighbours.", 0.4 < neighbours < 0.6, share=neighbours)
claim(
    "Before training both games together cost about ln V + ln 2 nats.",
    abs(sums["loss"] / sums["count"] - math.log(V) - math.log(2)) < 0.3,
    loss=f"{sums['loss'] / sums['count']:.2f} nats",
    guess=f"{math.log(V) + math.log(2):.2f} nats",
)

# %% [markdown]
# NSP is easy when the stranger comes from a document about something else: the topic tells. RoBERTa (Liu et al. 2019) dropped it, with results as good or better; ALBERT (Lan et al. 2020) asks for the *order* of two neighbours instead. Our small BERT plays the first game alone.
#
# ### Common mistakes
#
# **Padding without a mask.** A batch pads its short rows. If the mask is not passed, the same text gets other logits in longer company:

# %%
row = task.test[0][0]
alone = torch.tensor([row])
padded, padded_real = text.pad_batch([row], length=30)
with torch.no_grad():
    by_itself = tuned_model(alone, torch.ones_like(alone).bool())
    forgotten = tuned_model(padded, torch.ones_like(padded_real))
    masked = tuned_model(padded, padded_real)

# %% tags=["fold"]
# @title The same review, three times
claim(
    "Without the mask padding changes the logits; with it nothing changes.",
    not torch.allclose(by_itself, forgotten, atol=1e-3)
    and torch.allclose(by_itself, masked, atol=1e-4),
    change_without=(by_itself - forgotten).abs().max(),
    change_with=(by_itself - masked).abs().max(),
)

# %% [markdown]
# **A mean that counts padding.** The outputs at padding are 0, so the sum is right, and the mean is not: it shrinks with the longest row of the batch.

# %%
with torch.no_grad():
    vectors = model.bert(padded, padded_real)  # (1, 30, D)
wrong = vectors.mean(1)
right = vectors.sum(1) / padded_real.sum(1, keepdim=True)

# %% tags=["fold"]
# @title The careless mean
claim(
    "The careless mean is the right one, shrunk by the share of real tokens.",
    torch.allclose(wrong, right * padded_real.float().mean(), atol=1e-5),
    shrunk_to=padded_real.float().mean(),
)

# %% [markdown]
# **The second text's segments left at 0.** Nothing fails: the code runs, the loss falls. But the network was made to read the second text with $S_B$ added to each of its vectors:

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

# %% [markdown]
# ### Exercise 12.4 · A batch of pairs
#
# Difficulty ●●○○○ · 20 minutes · needs section 4


# %% nbgrader={"grade": false, "grade_id": "ex12-4-pair-batch", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pair_batch(pairs, cls_id, sep_id, pad_id):
    """Pairs of texts as one padded batch: [CLS] first [SEP] second [SEP] padding.

    Args:
        pairs: list of B (first, second), lists of ids.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        pad_id: id of padding.

    Returns:
        ids: (B, T) int64, T the longest row.
        mask: (B, T) bool, True = real token, special ones included.
        segments: (B, T) int64, 0 up to the first [SEP], 1 up to the second, 0 at padding.
    """
    ### BEGIN SOLUTION
    rows = [[cls_id, *first, sep_id, *second, sep_id] for first, second in pairs]
    ids = torch.full((len(rows), max(map(len, rows))), pad_id)
    mask, segments = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids)
    for i, (row, (first, _)) in enumerate(zip(rows, pairs, strict=True)):
        ids[i, : len(row)] = torch.tensor(row)
        mask[i, : len(row)] = True
        segments[i, len(first) + 2 : len(row)] = 1
    return ids, mask, segments
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex12-4-pair-batch-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.pair_batch(pair_batch)

# %% [markdown]
# ## 5 · WordPieces
#
# A vocabulary of words always lacks some: `left` became `<unk>` above. BERT's 30,522 tokens are words *and pieces of words*: frequent words are whole, rare ones are cut. A piece inside a word is written with `##` and is another entry than the same letters at a word's start.
#
# The vocabulary is found by merging, like BPE (chapter 02), but merges are ranked by how much they raise the likelihood of the text. To cut a word, take the **longest known piece from the left**, then the longest that goes on, until the end. If no piece fits, the whole word is `[UNK]`. The real tokenizer reads a file with one piece a line; here is one with eleven:

# %%
pieces = "[PAD] [UNK] [CLS] [SEP] [MASK] play un ##play ##able ##ing !".split()
with tempfile.TemporaryDirectory() as folder:
    Path(folder, "vocab.txt").write_text("\n".join(pieces) + "\n", encoding="utf-8")
    tokenizer = huggingface.tokenizer(folder)
encoded = tokenizer.encode("Playing!", "unplayable playful")

# %% tags=["fold"]
# @title The pieces of the two texts
table(
    ["", *(f"`{token}`" for token in encoded.tokens)],
    [["id", *encoded.ids], ["segment", *encoded.type_ids]],
)
claim(
    "'playful' is unknown as a whole, though it begins with a known piece.",
    encoded.tokens[-2] == "[UNK]",
)

# %% [markdown]
# `huggingface.tokenizer("bert-base-uncased")` reads the published one from the Hugging Face hub (with a network connection). "Uncased" lower-cases the text and drops accents first.
#
# ### Exercise 12.5 · Greedy, longest first
#
# Difficulty ●●●○○ · 20 minutes · needs section 5
#
# Write the loop yourself, without any library's tokenizer.


# %% nbgrader={"grade": false, "grade_id": "ex12-5-wordpiece", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "ex12-5-wordpiece-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.wordpiece(wordpiece)

# %% [markdown]
# ## 6 · Pre-training a small one
#
# Two layers, width 64, four heads; AdamW with warm-up and linear decay (chapter 11); 3,608 reviews of one judgement each, no labels. It ran in the first screen; this was its loss. Where would you draw the lines of a network that knows nothing, of one that knows only how often each word occurs, and of one that cannot be beaten?

# %%
show_source(toys.masked_batches, toys.pretrain)

# %%
levels = {
    "log V": math.log(V),
    "unigram": floors["nothing (unigram)"],
    "both sides": floors["both sides"],
}

# %% tags=["reveal"]
figures.loss_at_blanks(history, levels)

# %% tags=["fold", "reveal"]
# @title The loss on unseen reviews
scores = toys.masked_scores(model, task)
claim(
    "On blanks in unseen reviews the loss is less than a quarter of the unigram entropy, and above the floor for one blank.",
    floors["both sides"] < scores["loss"] < floors["nothing (unigram)"] / 4,
    loss=f"{scores['loss']:.2f} nats",
    accuracy=scores["accuracy"],
)

# %% [markdown]
# **Common mistake · other blanks, or dropout, at evaluation.** The loss depends on which words are hidden. Two draws of the same reviews differ by more than many an improvement that one would like to report. Draw the blanks once, with a seed of their own, and call `eval()`:

# %%
six_draws = [toys.masked_scores(model, task, draws=1, seed=seed) for seed in range(6)]
six_losses = [draw["loss"] for draw in six_draws]
again = toys.masked_scores(model, task)["loss"]

# %% tags=["fold"]
# @title Six draws of the blanks
claim(
    "Six draws of blanks on the same 400 reviews differ by more than 5 % of the loss; the same draw gives the same number.",
    max(six_losses) - min(six_losses) > 0.05 * scores["loss"] and again == scores["loss"],
    least=f"{min(six_losses):.3f} nats",
    greatest=f"{max(six_losses):.3f} nats",
)

# %% [markdown]
# ### Fill in the blank
#
# The blank's neighbours on the left are the same in the first two sentences below. Write down your own first three words for each of the five blanks; then see the network's.

# %%
def fill(sentence):
    """Probabilities (V,) at each `_` of a sentence."""
    words = [MASK if word == "_" else vocab.stoi[word] for word in sentence.split()]
    ids = torch.tensor([[CLS, *words, SEP]])
    with torch.no_grad():
        logits, _ = model(ids)
    return logits[ids == MASK].softmax(-1)


sentences = (
    "i found the plot superb , _ critics called it dull .",
    "critics called the plot dull , _ i found it superb .",
    "the plot was not dull , it _ superb .",
    "the _ was not dull , it was superb .",
    "the plot was not _ , it was superb .",
)

# %% tags=["nbval-ignore-output", "reveal"]
filled = {sentence: fill(sentence)[0] for sentence in sentences}
print("The three likeliest words for each blank:")
for sentence, probs in filled.items():
    best = zip(*probs.topk(3), strict=True)
    words = ", ".join(f"{vocab.itos[i]} {p:.2f}" for p, i in best)
    print(f"{sentence:52}  {words}")

# %%
things, good, bad = (
    torch.tensor([vocab.stoi[word] for word in words])
    for words in (synthetic.THINGS, synthetic.GOOD, synthetic.BAD)
)

# %% tags=["fold", "reveal"]
# @title What it knows
top = [vocab.itos[probs.argmax()] for probs in filled.values()]
claim(
    "'although' and 'but' are told apart, and the verb is found.",
    top[:3] == ["although", "but", "was"],
)
claim(
    "Where any thing fits, the network knows that a thing is wanted, and not which.",
    filled[sentences[3]][things].sum() > 0.95 and filled[sentences[3]].max() < 0.4,
    all_things=filled[sentences[3]][things].sum(),
    likeliest=filled[sentences[3]].max(),
)

# %% [markdown]
# And the last sentence? In this language one of the two adjectives is good and the other bad, so after "it was superb" the blank must be one of six. A perfect network would know. How much of the probability does ours give to good adjectives there?

# %%
last_blank = filled[sentences[4]]  # (V,)
judged = last_blank[good].sum() + last_blank[bad].sum()
share_good = last_blank[good].sum() / judged

# %% tags=["fold", "reveal"]
# @title Good and bad
claim(
    "It knows that an adjective is wanted, but gives good and bad ones about half of the probability each.",
    judged > 0.95 and abs(share_good - 0.5) < 0.2,
    adjectives=judged,
    good=share_good,
)

# %% [markdown]
# So the forms of the reviews were learned in these 800 steps, and the meaning of the adjectives was not: which go together is a fact about *pairs* of words, and needs many examples of each. What pre-training gave to the classifier of the first screen is the grammar; good and bad it learned from the hundred labels.

# %% [markdown]
# ## 7 · Fine-tuning
#
# Take the pre-trained encoder, put one new linear layer on top, and train *everything* on the labels, gently. In the paper: batches of 16 or 32, learning rates 2e-5 to 5e-5, 2 to 4 epochs. The new layer reads `[CLS]`, or, as ours does, the mean over the tokens.

# %%
show_source(BERTForSequenceClassification.forward, toys.finetune)

# %% [markdown]
# The other way is ELMo's, **feature extraction**: the encoder stays frozen, and only the new layer is trained. It is cheap: each text is encoded once. With 20, 50, 100 and 200 labels: fine-tuned, frozen, from scratch. Which order?

# %% tags=["reveal"]
ways = ("pre-trained", "from scratch", "frozen")
figures.accuracy_by_labels("bert-toy", toys.LABELS, ways)

# %% tags=["fold", "reveal"]
# @title The ledger: 20 to 200 labels
def recorded(way, n):
    """Mean accuracy over the seeds."""
    return ledger.summary("bert-toy", f"{way}, {n} labels", "accuracy")[0]


table(
    ["accuracy, mean of three seeds", *(f"{n} labels" for n in toys.LABELS)],
    [[way, *(recorded(way, n) for n in toys.LABELS)] for way in ways],
)
claim(
    "With 20 labels no way is far from a coin; with 100 and with 200 pre-training gains more than 20 points over starting from scratch, on average over the seeds.",
    all(abs(recorded(way, 20) - 0.5) < 0.12 for way in ways)
    and all(recorded("pre-trained", n) > recorded("from scratch", n) + 0.2 for n in (100, 200)),
)
claim(
    "A linear layer on the frozen network is more than 20 points behind fine-tuning at 200 labels.",
    recorded("frozen", 200) < recorded("pre-trained", 200) - 0.2,
)

# %% [markdown]
# (`python -m course_lib.experiments bert-toy` records this again.) Is it fair? Both have the same labels and the same 150 steps with them, but one had 800 steps before. The figure says what reading saves later, not how far a network from scratch can get with patience: exercise 12.6 gives it as many steps, and a larger rate. Reading has to be done only once, for all tasks to come.
#
# Frozen features do poorly *here*: the verdict is right only if "which adjective" and "held or denied" are combined, and the last layer was made to guess words, not to lay this out for a linear layer. Elsewhere they do well: for named entities the paper puts a two-layer LSTM on the last four layers of a frozen BERT-base, and reports 0.3 F1 less than with fine-tuning (table 7). Which is better is a question to the task.
#
# **Common mistake · too large a rate in fine-tuning.** At thirty times the rate not even the hundred reviews that it trains on are learned:

# %%
hasty = toys.finetune(model.bert, hundred, learning_rate=0.03)
known, new = toys.accuracy(hasty, hundred), toys.accuracy(hasty, task.test)

# %% tags=["fold"]
# @title The hasty network
claim(
    "At a rate of 0.03 in place of 0.001 the pre-training is wasted: fewer than 7 in 10 of its own hundred are right, and of new reviews about as many as a coin gets.",
    known < 0.7 and new < 0.6,
    its_own_hundred=known,
    new_reviews=new,
    **{"new reviews, rate 0.001": tuned},
)

# %% [markdown]
# ### The same on real reviews
#
# IMDB has 25,000 labelled training reviews and 50,000 more without labels (chapter 02). A small BERT, two layers of width 128, was pre-trained on the text of these 75,000 (400 of them kept out to measure it), never on that of the test reviews, and then fine-tuned on the labels; beside it stands the same network from scratch. Three departures make more of a processor's hour: rare words are chosen more often than frequent ones, heads look at near words first (ALiBi, chapter 08), and there is no NSP. `python -m course_lib.experiments imdb-bert` records it again. First the pre-training:

# %%
figures.reading_imdb("imdb-bert")

# %% tags=["fold"]
# @title How much it read, and how long that took
reading = ledger.load("imdb-bert")["runs"]
entries = [run["history"]["pre-training"] for run in reading]
claim(
    "The loss still falls: each of the last three points is lower than the one before.",
    all(
        last["valid_loss"] < before["valid_loss"]
        for points in entries
        for before, last in zip(points[-4:], points[-3:], strict=False)
    ),
)
pretraining_seconds = [sum(entry["seconds"] for entry in points) for points in entries]
tuning_seconds = ledger.values("imdb-bert", "pre-trained", "train_seconds")
scratch_seconds = ledger.values("imdb-bert", "from scratch", "train_seconds")
together = sum(pretraining_seconds + tuning_seconds) / sum(scratch_seconds)
words_read = max(points[-1]["tokens"] for points in entries)
claim(
    "It read 12 million words in less than half an hour of one processor core; with the fine-tuning that is more than three times as long as training from scratch.",
    12e6 < words_read < 13e6 and max(pretraining_seconds) < 1800 and together > 3,
    **{
        "pre-training": f"{max(pretraining_seconds) / 60:.0f} minutes",
        "all together": f"{together:.1f} times as long",
    },
)

# %% [markdown]
# Is it ahead of the same network from scratch? Of chapter 09's best Transformer? Of a bag of word pairs? (*Vote*: the scores of BERT and of a bag are added up. *Trained once more*: a bag that was also given the unlabelled reviews whose label the vote was sure of.)

# %%
guess_3 = predict("the test accuracy of the pre-trained network, in percent", ...)

# %% tags=["fold"]
# @title The ledger: nine models on IMDB's test reviews
SOURCES = {
    "from scratch": ("imdb-bert", "from scratch"),
    "chapter 09, all fixes": ("imdb-transformer", "mended"),
    "pre-trained": ("imdb-bert", "pre-trained"),
    "chapter 09, best": ("imdb-best", "words and pairs"),
    "bag of words and pairs (chapter 02)": ("imdb-bow", "unigrams + bigrams, scaled"),
    "another bag of pairs": ("imdb-bert", "bag of pairs"),
    "pre-trained and this bag vote": ("imdb-bert", "pre-trained, with pairs"),
    "bag, trained once more": ("imdb-bert", "self-trained bag of pairs"),
    "pre-trained and that bag vote": ("imdb-bert", "self-trained, with pairs"),
}
imdb = {name: ledger.values(*where, "accuracy") for name, where in SOURCES.items()}
average = {name: sum(values) / len(values) for name, values in imdb.items()}

# %% tags=["reveal"]
figures.imdb_models(imdb)
guess_3.compare(f"{100 * average['pre-trained']:.1f} percent")

# %% tags=["fold", "reveal"]
# @title Ahead of whom, behind whom
in_percent = {name: f"{100 * value:.1f} %" for name, value in average.items()}
claim(
    "Pre-training gains more than 2 points over the same network from scratch; it is ahead of chapter 09's Transformer with all fixes, too.",
    average["pre-trained"] > average["from scratch"] + 0.02
    and average["pre-trained"] > average["chapter 09, all fixes"] + 0.005,
    **{name: in_percent[name] for name in ("pre-trained", "from scratch", "chapter 09, all fixes")},
)
claim(
    "It is more than 1 point behind chapter 09's best, which has pairs of words, and more than 2 points behind chapter 02's bag of words and pairs.",
    average["pre-trained"] < average["chapter 09, best"] - 0.01
    and average["bag of words and pairs (chapter 02)"] > average["pre-trained"] + 0.02,
)

# %% [markdown]
# And the two together? Two votes and a bag trained once more stand in the figure.

# %% tags=["fold", "reveal"]
# @title What BERT adds to a bag
claim(
    "Where BERT and a bag vote together, BERT adds less than half a point to the bag, if anything.",
    average["pre-trained and this bag vote"] < average["another bag of pairs"] + 0.005,
    added=f"{100 * (average['pre-trained and this bag vote'] - average['another bag of pairs']):.2f} points",
)
claim(
    "Trained once more, with the unlabelled reviews that the vote was sure of, the bag changes by less than half a point.",
    abs(average["bag, trained once more"] - average["another bag of pairs"]) < 0.005,
    gain=f"{100 * (average['bag, trained once more'] - average['another bag of pairs']):.2f} points",
)

# %% [markdown]
# And with fewer labels? Both networks again, on 100, 400 and 1,600 labelled reviews; which ones is drawn anew for each seed, the pre-training is one and the same. Each has as many passes over them as the other. Where is the gain largest?

# %% tags=["reveal"]
figures.imdb_by_labels("imdb-bert-curves", (100, 400, 1600))

# %% tags=["fold", "reveal"]
# @title The ledger: 100 to 1,600 labels
def few(way, n):
    """Accuracies with n labels, one for each seed."""
    return ledger.values("imdb-bert-curves", f"{way}, {n} labels", "accuracy")


def mean_of_few(way, n):
    """Mean over the seeds."""
    return sum(few(way, n)) / len(few(way, n))


FEW = (100, 400, 1600)
table(
    ["accuracy, mean of three seeds", *(f"{n:,} labels" for n in FEW)],
    [[way, *(mean_of_few(way, n) for n in FEW)] for way in ("pre-trained", "from scratch")],
)
gains = [mean_of_few("pre-trained", n) - mean_of_few("from scratch", n) for n in FEW]
claim(
    "With each number of labels the pre-trained network is ahead in every seed; reading is worth most where labels are few: more than 4 points with the fewest, less than 4 with the most.",
    all(
        ours > theirs
        for n in FEW
        for ours, theirs in zip(few("pre-trained", n), few("from scratch", n), strict=True)
    )
    and gains[0] > 0.04 > gains[-1],
    **{f"gain with {n}": f"{100 * gain:.1f} points" for n, gain in zip(FEW, gains, strict=True)},
)
claim(
    "It is not worth four times as many labels: from scratch with 1,600 the network is better than pre-trained with 400.",
    mean_of_few("from scratch", 1600) > mean_of_few("pre-trained", 400),
)

# %% [markdown]
# So reading helps the network that reads, and does not make it the best model here. It is little reading: not one pass over the text, where BERT-base made 40 over 3,300 million words, with a network 25 times as large. And most verdicts can be told from single words and pairs of them, which a bag learns from the labels alone. (Where the table says one seed, half a point says nothing.)

# %% [markdown]
# ## 8 · Probing: what do the layers know?
#
# A **probe** is a small classifier on frozen vectors. If a linear probe reads a property off one token's vector, the property is there, in an easily readable form. Our grammar knows two things about every adjective:
#
# - its **role**: does the reviewer *hold* it ("it was superb") or *deny* it ("not dull", "critics called it dull")? Each adjective occurs in both roles equally often;
# - the **thing** that it is said of: film, plot, acting, ... eight of them.
#
# Which of the two can be read off the adjective's vector, and from which layer on?

# %%
show_source(toys.probe)

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
# The curves need their **controls**:
#
# - The *embeddings* already give three quarters on "role". They hold the place, and in some forms of review the held adjective comes early, in others late. So only what lies *above* that is due to context.
# - The *untrained* network has the same architecture and mixes all tokens too. It adds nothing here: its weights start so small (0.02) that its layers hardly change what they read. On other tasks random networks are surprisingly good, and a probe on a trained one must be compared with them.
# - *Shuffled answers* (a control task in the sense of Hewitt and Liang 2019, who give each *word* a random answer): if the probe does well on these, it can learn by heart, and its score says little about the vectors.

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
# And a property may be absent because nobody asked for it. In this language every thing goes with every adjective, so knowing the thing helps to fill no blank. A network learns what its loss pays for.
#
# **Common mistake · a probe that learns the task itself.** Give the probe not one vector but those of the neighbours too, *of the untrained embeddings*. And score it on the examples that it was fitted to:

# %%
layers, adjective_answers = toys.adjectives(untrained.bert, task)
role = adjective_answers["role"]
with torch.no_grad():  # three more places on either side
    embedded = F.pad(untrained.bert.embedding(test_ids), (0, 0, 3, 3))
places = torch.tensor([[1 + r.held, 1 + r.denied] for r in task.reviews])  # (R, 2)
every_row = torch.arange(len(test_ids))[:, None]
around = torch.stack([embedded[every_row, places + k] for k in range(7)], 2)
around = around.flatten(0, 1).flatten(1)  # (2 R, 7 D): it and its neighbours
half = len(around) // 2
wide = toys.probe(around[:half], role[:half], around[half:], role[half:])
narrow = toys.probe(layers[0][:half], role[:half], layers[0][half:], role[half:])

# %%
last_layer = toys.adjectives(model.bert, task)[0][-1]  # (2 R, D), layer 2
order = torch.randperm(len(last_layer), generator=torch.Generator().manual_seed(0))
first_40 = last_layer[:40], role[order][:40]  # shuffled answers
heart = toys.probe(*first_40, last_layer[40:], role[order][40:], decay=1e-6)

# %% tags=["fold"]
# @title A probe on seven embeddings
claim(
    "The untrained layers hardly change what they read: the cosine with the embeddings is above 0.98 at every adjective.",
    torch.cosine_similarity(layers[0], layers[2]).min() > 0.98,
)
claim(
    "A probe that sees seven untrained embeddings finds the role nearly always: the knowledge is the probe's.",
    wide["accuracy"] > 0.95 and narrow["accuracy"] < 0.85,
    with_seven=wide["accuracy"],
    with_one=narrow["accuracy"],
)
claim(
    "Fitted to 40 vectors of 64 numbers, even one-vector probes learn shuffled answers by heart, and are at chance on new vectors.",
    heart["train_accuracy"] > 0.95 and abs(heart["accuracy"] - 0.5) < 0.1,
    fitted=heart["train_accuracy"],
    new=heart["accuracy"],
)

# %% [markdown]
# ### Where does it look?
#
# The maps of the pre-trained network, opened at the blank: all heads of its last layer at once, a colour for each. (A picture stands here where scripts do not run.)
#
# **Question.** In one review the blank stands late, in the other early. At which words do the heads look, and on which side of the blank? Switch heads off to see the others, in both layers. Then press *causal mask*, the view that GPT would have: in which of the two reviews is anything left that tells the verb?

# %% tags=["fold"]
# @title The pre-trained network on any review
from course_lib.notebook.recorder import explore_sentence


def tokens_and_ids(review):
    """The tokens of a review, with [MASK] at each blank _, and what the network is called with, their ids."""
    unknown = sorted(set(review.split()) - set(vocab.itos) - {"_"})
    if unknown:
        raise ValueError(f"not in this language: {', '.join(unknown)}; see vocab.itos")
    words = [MASK if word == "_" else vocab.stoi[word] for word in review.split()]
    blank_ids = [CLS, *words, SEP]
    return [vocab.itos[i] for i in blank_ids], torch.tensor([blank_ids])


def explore_blanks(*reviews):
    """Fill the blanks of reviews of your own, and show where the network looks."""
    for review in reviews:
        _, blank_ids = tokens_and_ids(review)
        with torch.no_grad():
            best = model(blank_ids)[0][0].argmax(-1)[1:-1]
        filled = [f"[{vocab.itos[i]}]" if w == "_" else w for w, i in zip(review.split(), best.tolist(), strict=True)]
        print("filled:", " ".join(filled))
    return explore_sentence(
        model,
        tokens_and_ids,
        *reviews,
        title="A small BERT, pre-trained on toy reviews",
        alt="Attention maps of two layers with four heads each, over two reviews with a hidden verb. Every token may "
        "attend to every token, on both sides.",
        caption="No triangle: every place reads *both* sides, and so does the blank.",
        layer=1,
        head="all",
        query="[MASK]",
    )


# %%
explore_blanks(
    "critics called the plot dull , but i _ it superb .",
    "i _ the plot superb , although critics called it dull .",
)

# %% [markdown]
# Hide another word, or write a review of your own from the words in `vocab.itos`, and run the cell again. Where do the heads look when the blank hides an adjective, and can the network fill it?

# %% [markdown]
# ### Exercise 12.6 · Explore and explain
#
# Difficulty ●●●○○ · 50 minutes · needs sections 7 and 8
#
# Change the cell below: other numbers of labels and steps (`steps=`), the rate (`learning_rate=`), the untrained network, `toys.frozen_accuracy(bert, pairs, task.test)`, probes with `toys.probe_layers(bert, task)`. Then answer in words:
#
# (a) The role is read off layer 2 by a linear probe almost without a mistake, yet the linear layer on frozen features does poorly on the verdict. How can both be true?
#
# (b) After fine-tuning, what do you expect of the probe for "role" on `tuned_model.bert`, and for "thing"? Test it. What does the result say about what fine-tuning adds?
#
# (c) Give the network from scratch, `untrained.bert`, all 950 steps on the hundred labels, at the rates 0.001 and 0.003. What is left of the gap in the first screen? What, then, does pre-training save here?
#
# (d) A colleague shows that a two-layer probe reads syntax trees off BERT with 90 %, and concludes that BERT "knows syntax". Which three numbers do you ask for?

# %% tags=["nbval-ignore-output"]
explored = toys.finetune(model.bert, task.labelled[:50], steps=50)
print("accuracy", round(toys.accuracy(explored, task.test), 2))
for name, row in toys.probe_layers(explored.bert, task).items():
    print(name, [round(a, 2) for a in row])

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex12-6-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# *Your answer:*
#
# ### BEGIN SOLUTION
# (a) The verdict is positive if a good adjective is held *or* a bad one denied: role and polarity enter as a product (exclusive or), which no linear layer computes from a mean in which every review has one good and one bad adjective, one held and one denied. Each factor may be linearly readable at its own token; the product needs a nonlinear step at that token, which fine-tuning learns in the layers.
#
# (b) The role stays readable (fine-tuning needs it and starts from it); the thing stays absent, since the verdict does not depend on it. Fine-tuning adds little knowledge; it combines what is there and moves it to where the new layer reads. A good answer shows the numbers of its own run.
#
# (c) In our runs the network from scratch came to 0.91 at the rate 0.001 and to 0.97 at 0.003, as far as the pre-trained one did in 150 steps. So on this small language pre-training saves time on each new task, and need not raise what can be reached in the end: the toy's grammar can be learned from a hundred reviews by repeating them. In a real language a hundred texts do not hold the grammar. Compare one seed with care: other seeds, other gaps.
#
# (d) The same probe on an untrained network and on the embeddings alone; on a control task (random answers by word), whose gap to the real task is the selectivity; and a linear probe, or one of limited size. Also good: accuracy on held-out sentences, a majority baseline.
# ### END SOLUTION

# %% [markdown]
# ## 9 · How large is BERT?
#
# The published models: **BERT-base** with $N = 12$, $D = 768$, $H = 12$, and **BERT-large** with $N = 24$, $D = 1024$, $H = 16$; $F = 4D$, $V = 30522$, $L = 512$. The paper says 110 and 340 million parameters. torch's device `meta` builds them without any memory:

# %%
published = {}
for name in ("bert-base-uncased", "bert-large-uncased"):
    with torch.device("meta"):
        published[name] = BERT(BERTConfig.from_name(name))
totals = [number_of_parameters(bert) for bert in published.values()]

# %%
def parts_of(bert):
    """Number of parameters of each part."""
    n, layer = number_of_parameters, bert.encoder.layers[0]
    attention = bert.config.num_layers * n(layer.self_attn)
    return {
        "token table": n(bert.embedding.token),
        "places, segments, norm": n(bert.embedding) - n(bert.embedding.token),
        "attention": attention,
        "feed-forward and norms": n(bert.encoder) - attention,
        "pooler": n(bert.pooler),
    }


def by_formula(c):
    """Parameters of the encoder, by chapter 10."""
    sizes = c.d_model, c.num_heads, c.dim_feedforward, c.num_layers
    return formulas.encoder_cost(1, 1, *sizes).parameters


# %% tags=["fold"]
# @title Where the parameters are
base, large = (parts_of(bert) for bert in published.values())
table(
    ["part", "BERT-base", "share", "BERT-large", "share"],
    [
        *(
            [part, n, f"{n / totals[0]:.1%}", large[part], f"{large[part] / totals[1]:.1%}"]
            for part, n in base.items()
        ),
        ["all", totals[0], "100 %", totals[1], "100 %"],
    ],
)
claim(
    "109,482,240 and 335,141,888 parameters.",
    totals == [109_482_240, 335_141_888]
    and [sum(base.values()), sum(large.values())] == totals,
)
claim(
    "Chapter 10's formula counts both encoders.",
    all(by_formula(b.config) == number_of_parameters(b.encoder) for b in published.values()),
)

# %% [markdown]
# The paper rounds generously: 109.5 and 335.1 million, with the pooler and without the heads. The two heads of pre-training add little, since the output layer *is* the token table:

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

# %% [markdown]
# Both were pre-trained, says the paper (sections 3.1 and A.2), on BooksCorpus (800 million words) and English Wikipedia (2,500 million words; lists, tables and headers left out): batches of 256 sequences of up to 512 tokens, a million steps, about 40 epochs. Nine tenths of the steps had sequences of 128 tokens, because attention grows with $T^2$ (chapter 10). It took four days on 4 Cloud TPUs (16 chips) for the base and on 16 (64 chips) for the large model.
#
# ### Exercise 12.7 · Count
#
# Difficulty ●●●○○ · 25 minutes · needs sections 4 and 9, chapter 10
#
# From the sizes alone, without building a model: with two segments, the pooler, and no heads.


# %% nbgrader={"grade": false, "grade_id": "ex12-7-bert-parameters", "locked": false, "schema_version": 3, "solution": true, "task": false}
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


# %% nbgrader={"grade": true, "grade_id": "ex12-7-bert-parameters-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch12.bert_parameters(bert_parameters)

# %% [markdown]
# ## 10 · Weights from elsewhere
#
# Few people pre-train a BERT; most take one from the [Hugging Face hub](https://huggingface.co/models), where anyone can publish models: each is a folder with a `config.json`, the weights, and the tokenizer's files. (The company's library [`transformers`](https://github.com/huggingface/transformers) runs them in PyTorch.) With a network connection:
#
# ```python
# model = BERTForPreTraining.from_pretrained("bert-base-uncased")  # 440 MB, once
# tokenizer = huggingface.tokenizer("bert-base-uncased")
# encoded = tokenizer.encode("The plot was [MASK].")
# ```
#
# Weights are read from `model.safetensors`, a table of names and numbers. Older files (`pytorch_model.bin`) are pickles, and opening a pickle can run any program; the library refuses them. Our BERT writes and reads the same names, so the round trip can be made here:

# %%
some_ids, some_real = text.pad_batch([row for row, _ in task.test[:20]])
with tempfile.TemporaryDirectory() as folder:
    model.save_pretrained(folder)
    returned = BERTForPreTraining.from_pretrained(folder)
    files = sorted(path.name for path in Path(folder).iterdir())
    config, tensors = huggingface.read(folder)
with torch.no_grad():
    ours, theirs = model(some_ids, some_real), returned(some_ids, some_real)

# %% tags=["fold"]
# @title Some of the names, and the logits compared
shown_names = [n for n in sorted(tensors) if ".layer.1" not in n and n.endswith("weight")]
table(["name in the file", "shape"], [[f"`{n}`", tuple(tensors[n].shape)] for n in shown_names])
claim(
    "The folder holds `config.json` and `model.safetensors`, and the loaded network gives the same logits, bit by bit.",
    files == ["config.json", "model.safetensors"]
    and all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True)),
)

# %% [markdown]
# A checkpoint that does not fit must not be loaded in part. One tensor taken out, one of another shape:

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

# %% [markdown]
# The names are those of Hugging Face's `BertForPreTraining`. There query, key and value are three matrices, here one packed one (chapter 07); the library cuts and joins. The course's tests compare the logits with `transformers`, token by token, on models of several shapes.

# %% [markdown]
# ## 11 · What BERT cannot do
#
# It fills blanks *each by itself*: $p(x_s, x_t \mid \tilde x)$ is not what it gives, only $p(x_s \mid \tilde x)$ and $p(x_t \mid \tilde x)$. In our language of the two adjectives exactly one is good. Now both are hidden, and each is drawn from its own probabilities.

# %%
guess_4 = predict("how often the result breaks the rule, as a share", ...)

# %%
both = fill("the plot was not _ , it was _ .")  # (2, V)
p_good, p_bad = both[:, good].sum(1), both[:, bad].sum(1)
p = p_good / (p_good + p_bad)  # each blank is good

# %% tags=["fold", "reveal"]
# @title How often both are good, or both bad
broken = (p.prod() + (1 - p).prod()).item()
guess_4.compare(f"{broken:.2f} of the time")
claim(
    "Two blanks filled independently are both good or both bad about half of the time; in the language never.",
    abs(broken - 0.5) < 0.1,
    share=broken,
)

# %% [markdown]
# So it is no generator: there is no order in which a text's probability would be the product of its answers, as with chapter 01's chain rule. One can fill blanks one after the other, but that is not what it was trained for: 15 % of the places were hidden, at random, not all that come after. For writing, take a causal model (chapter 13). For judging, finding and labelling texts that are there as a whole, both sides help.

# %% [markdown]
# ## 12 · Descendants
#
# | model | what is different | size |
# |---|---|---|
# | BERT (Devlin et al. 2019, Google) | masked language model and NSP; 16 GB of text; WordPiece, 30,522 | 110M, 340M |
# | RoBERTa (Liu et al. 2019, Facebook) | no NSP; dynamic masking; 160 GB of text; larger batches, longer training; byte-level BPE, 50,000 | 125M, 355M |
# | DistilBERT (Sanh et al. 2019, Hugging Face) | 6 layers, trained to imitate BERT-base's outputs (distillation); no segments, no pooler; by its authors' count 97 % of the score on GLUE, 60 % faster | 66M, 40 % smaller |
# | ALBERT (Lan et al. 2020) | all layers share their weights; a narrow table of embeddings; order of sentences in place of NSP | 12M (base) |
# | ELECTRA (Clark et al. 2020) | a small network fills the blanks, the large one says of *every* token whether it was replaced: a loss at all places | 110M (base) |

# %% [markdown]
# ## Summary
#
# 1. ELMo sees both sides shallowly, GPT one side deeply, BERT both deeply. A network that sees the next word cannot be trained to predict it; so BERT hides words and guesses them.
# 2. Of 15 % chosen tokens 80 % are masked, 10 % replaced, 10 % kept; the loss counts the chosen ones alone, drawn anew each time.
# 3. The input is a sum of token, place and segment, normalised; pairs are `[CLS] A [SEP] B [SEP]`, words are cut into WordPieces.
# 4. With the same labels and the same steps on them a pre-trained network gets further than one from scratch; frozen features may or may not do, and probes, with controls, say what is in them.
# 5. BERT-base has 109,482,240 parameters, a fifth of them in the token table. It judges texts; it does not write them.
#
# ## Where next
#
# *Chapter 13*: the other branch, GPT, which writes, and does tasks by being asked.
#
# ## References
#
# - J. Devlin, M.-W. Chang, K. Lee, K. Toutanova, *BERT: pre-training of deep bidirectional transformers for language understanding*, NAACL 2019, arXiv:1810.04805: section 3 and figure 2 (input), 3.1 (both tasks), 5.3 and table 7 (features), appendix A.2 (training), C.2 (masking).
# - M. Peters et al., *Deep contextualized word representations* (ELMo), NAACL 2018, arXiv:1802.05365: section 3.
# - A. Radford, K. Narasimhan, T. Salimans, I. Sutskever, *Improving language understanding by generative pre-training* (GPT), 2018: section 3.
# - W. L. Taylor, *"Cloze procedure": a new tool for measuring readability*, Journalism Quarterly 30, 1953.
# - Y. Wu et al., *Google's neural machine translation system*, 2016, arXiv:1609.08144: section 4.1 (WordPiece).
# - Y. Liu et al., *RoBERTa: a robustly optimized BERT pretraining approach*, 2019, arXiv:1907.11692: section 4 (dynamic masking, NSP, data).
# - V. Sanh, L. Debut, J. Chaumond, T. Wolf, *DistilBERT, a distilled version of BERT*, 2019, arXiv:1910.01108: tables 1 and 3.
# - Z. Lan et al., *ALBERT: a lite BERT*, ICLR 2020, arXiv:1909.11942: section 3.1. K. Clark et al., *ELECTRA*, ICLR 2020, arXiv:2003.10555: section 2.
# - J. Hewitt, P. Liang, *Designing and interpreting probes with control tasks*, EMNLP 2019, arXiv:1909.03368: section 2. I. Tenney, D. Das, E. Pavlick, *BERT rediscovers the classical NLP pipeline*, ACL 2019, arXiv:1905.05950.
# - Video: *BERT Explained!*, https://www.youtube.com/watch?v=OR0wfP2FD3c, both pre-training tasks and the input. J. Alammar, *The illustrated BERT, ELMo, and co.*, http://jalammar.github.io/illustrated-bert/.
