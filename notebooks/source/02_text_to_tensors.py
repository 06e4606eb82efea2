# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 150
#     needs: chapter 01, a first month of PyTorch
# ---

# %% [markdown]
# # 02 · Text to tensors
#
# A model never sees text. It sees a tensor that somebody made from text, and what that step left out no training brings
# back. Here is a classifier that gets every one of its 96 training reviews right, such as *the film was great*. Then it reads two
# sentences with the same words: *not terrible, it's great* and *not great, it's terrible*. **What will it say about them?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("text_pipeline")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import math
import random
import time
from collections import Counter
from itertools import combinations, pairwise, product

import sacrebleu
import torch
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import bag_of_words, bpe, datasets, metrics, text
from course_lib.datasets import synthetic
from course_lib.exercises import ch02
from course_lib.notebook import claim, diagrams, ledger, markdown, predict, show_source, table, torchtext_tour
from course_lib.notebook.figures import ch02 as figures

_ = torch.manual_seed(0)

# %%
judged = [(synthetic.GOOD, 1), (synthetic.BAD, 0)]
plain = [
    (f"the {thing} was {word}", label)
    for thing in synthetic.THINGS
    for words, label in judged
    for word in words
]
plain_tokens = [text.tokenize(review) for review, _ in plain]
plain_labels = torch.tensor([label for _, label in plain])
# Both sentences' words are in the vocabulary: none is unknown.
words_seen = text.build_vocab([*plain_tokens, text.tokenize("not, it's")])
plain_ids = [text.numericalize(tokens, words_seen) for tokens in plain_tokens]

hook = bag_of_words.BagOfWords(len(words_seen))
_ = bag_of_words.fit_bag_of_words(hook, plain_ids, plain_labels, l2=1e-3)

# %%
verdict = predict("what it says about the two sentences", ...)

# %% tags=["fold", "reveal"]
# @title What it says
hook_accuracy = ((hook(*text.pad_batch(plain_ids)) > 0) == plain_labels).float().mean()
claim(
    "The classifier is right on all 96 plain reviews.", hook_accuracy == 1, accuracy=hook_accuracy
)
sentences = ["not terrible, it's great", "not great, it's terrible"]
p_positive = torch.sigmoid(
    hook(*text.pad_batch([text.numericalize(text.tokenize(s), words_seen) for s in sentences]))
)
claim(
    "It gives both sentences the same probability of being positive.",
    abs(p_positive[0] - p_positive[1]) < 1e-6,
    probabilities=p_positive,
)
verdict.compare("the same about both")

# %% [markdown]
# *Great* pulls it up as far as *terrible* pulls it down, wherever they stand. It was given a *bag of words*: which words
# occur, not where. Both sentences put the same tensor in front of it, so no weights, however long you train, can tell
# them apart. The mistake was made before the first layer.
#
# This chapter walks the road from a string to a tensor, the one in the picture, a step at a time, and asks of every step the same
# question: **what does it keep, and what does it lose?**

# %% [markdown]
# ## You will be able to
#
# 1. learn a subword vocabulary by byte-pair encoding, one merge at a time (exercise 2.1);
# 2. turn strings into a padded batch of ids with its mask, and keep the padding out of every mean (exercises 2.2, 2.3);
# 3. compute how much of a batch is padding, and lower it by bucketing (exercise 2.4);
# 4. train the bag-of-words baseline, and say which reviews it must fail on and which features help (exercise 2.5);
# 5. compute BLEU from its parts, report it comparably, and name what it cannot see (exercises 2.6, 2.7).
#
# The letters for shapes are those of the whole course: `B` texts in a batch, `T` tokens in the longest of them, `V` tokens
# in the vocabulary, `D` numbers in an embedding. Masks are boolean and `True` means *a real token* (later: *may be attended
# to*). Some libraries mean the opposite by `True`; read the manual each time.

# %% [markdown]
# ## 1 · Tokens: words, characters, subwords
#
# Where does one token end? There are three answers: at the end of a word, after every character, or somewhere in between
# that is learned from data. The tempting first attempt is `str.split`. **Which tokens of this review will it get wrong?**

# %% tags=["fold"]
# @title Three ways to cut a review
review = "A GREAT cast. Great script: it's the greatest!"
table(
    ["cut", "tokens", "T"],
    [
        [name, " ".join(f"`{token}`" for token in tokens), len(tokens)]
        for name, tokens in {
            "str.split": review.split(),
            "words": text.tokenize(review),
            "characters": [*text.characters(review)[:14], "…"],
        }.items()
    ],
)
claim(
    "For `str.split` 'GREAT' and 'Great' are unrelated words, and 'cast.' is not 'cast'.",
    {"GREAT", "Great", "cast."} <= set(review.split())
    and text.tokenize(review).count("great") == 2,
)

# %% [markdown]
# The course's tokenizer lower-cases and sets punctuation free. Neither is free of loss: `us` and `US` become one word, and
# an angry `GREAT` is as calm as any other. Here it is; `MARKS` pairs each ASCII punctuation mark but the apostrophe with
# the same mark between spaces.

# %%
show_source(text.tokenize)

# %% [markdown]
# ### The bargain: a large V or a long T
#
# Words make short sequences and a huge vocabulary; characters the opposite. We measure both on real text that every
# machine has: the docstrings of your own Python's standard library. The last tenth (other modules than the rest) is kept
# aside, as a stand-in for new text of the same kind. Text from elsewhere has more unknown words.
#
# Cut into words and punctuation, what fraction of the *tokens* in that last tenth has never occurred in the nine
# tenths before it? One in a thousand? One in a hundred? One in ten?

# %%
corpus = datasets.docstrings(limit=400_000)
cut = len(corpus) * 9 // 10
seen, unseen = {}, {}
for name, split in {"words": text.tokenize, "characters": text.characters}.items():
    seen[name], unseen[name] = split(corpus[:cut]), split(corpus[cut:])
distinct = {name: set(tokens) for name, tokens in seen.items()}

# %%
new_words = predict("how many word tokens of the last tenth are new, in per cent", ...)

# %% tags=["fold", "reveal"]
# @title T, V and what is unknown
T_words, T_characters = len(seen["words"]), len(seen["characters"])
V_words, V_characters = len(distinct["words"]), len(distinct["characters"])
new_share = {
    name: sum(token not in known for token in unseen[name]) / len(unseen[name])
    for name, known in distinct.items()
}
claim(
    "Characters: T more than 3 times as long. Words: V more than 20 times as large.",
    T_characters > 3 * T_words and V_words > 20 * V_characters,
    **{"T, words and characters": [T_words, T_characters], "V": [V_words, V_characters]},
)
claim(
    "More than 2 % of the word tokens in the last tenth are new; of the characters, fewer than 0.1 %.",
    new_share["words"] > 0.02 and new_share["characters"] < 0.001,
    **{name: f"{100 * share:.2g} %" for name, share in new_share.items()},
)
new_words.compare("more than 2 %")

# %% [markdown]
# ### In between: byte-pair encoding
#
# *Byte-pair encoding* (BPE) was invented in 1994 to compress files and became the standard way to cut text for
# translation (Sennrich et al. 2016, algorithm 1). The idea in one sentence: begin with characters, and again and again let
# the two neighbours that occur together most often become one symbol. Each of the joined pairs is called a *merge*.
#
# With $n_w$ the count of word $w$ in the corpus and $c_w(s_1, s_2)$ the number of places in $w$ where symbol $s_2$ follows
# symbol $s_1$, the next merge is
#
# $$ (s_1, s_2)^* = \arg\max_{(s_1, s_2)} \sum_w n_w \, c_w(s_1, s_2). $$
#
# On a tie the alphabetically first pair wins. Merges never reach across words; a last symbol `</w>` (a dot in the
# diagram below) marks the end, so that pieces can be joined into words again.
#
# Let us run it on four words: *great* (6 times), *greater* (3), *dull* (5) and *later* (4). Which two letters stand next to each
# other most often?

# %%
counts = {"great": 6, "greater": 3, "dull": 5, "later": 4}
merges = bpe.train_bpe(counts, 10)

# %%
first_merge = predict("the first merge, two letters", ...)

# %% tags=["fold", "reveal"]
# @title The first six merges
merge_rows = []
for k, (a, b) in enumerate(merges[:6]):
    pieces = {word: bpe.bpe_tokenize(word, merges[:k]) for word in counts}
    times = sum(n * list(pairwise(pieces[w])).count((a, b)) for w, n in counts.items())
    merge_rows.append([k + 1, f"`{a}` `{b}`", f"`{a + b}`", times])
table(["merge", "pair", "new symbol", "times in the corpus"], merge_rows)
claim(
    "The first merge is 'a' with 't', which stand together 6 + 3 + 4 = 13 times.",
    merges[0] == ("a", "t") and merge_rows[0][-1] == 6 + 3 + 4,
)
first_merge.compare("'a' with 't'")

# %%
diagrams.show("bpe_merges")

# %% [markdown]
# To cut a *new* word, start from its characters and apply the merges in the order in which they were learned. A word that
# was never counted gets pieces that were, in the worst case single characters.

# %%
for word in ["great", "duller", "tall"]:
    print(f"{word:>7} -> {' '.join(bpe.bpe_tokenize(word, merges))}")
show_source(bpe.bpe_tokenize)

# %% [markdown]
# Training is a loop of two steps, count and merge; you write one turn of it in **exercise 2.1**. The library's version does
# the same, but recounts only the words that a merge has changed.
#
# The number of merges is a dial from characters to words. We turn it on the words of the docstrings (tokens made of letters
# only). With 0 merges a word costs its letters and one `</w>`. How many merges halve that?

# %%
word_counts = Counter(token for token in seen["words"] if token.isalpha())
new_counts = Counter(token for token in unseen["words"] if token.isalpha())
all_merges = bpe.train_bpe(word_counts, 3000)


def tokens_per_word(merges, counts):
    """Mean number of pieces of a running word."""
    cost = sum(n * len(bpe.bpe_tokenize(word, merges)) for word, n in counts.items())
    return cost / sum(counts.values())


dial = [0, 30, 100, 300, 1000, 3000]
cost_per_word = [
    tokens_per_word(all_merges[:k], new_counts) for k in tqdm(dial, leave=False)
]

# %% tags=["reveal"]
figures.tokens_per_word(dial, cost_per_word)

# %% tags=["fold", "reveal"]
# @title With 3,000 merges
claim(
    "With 3,000 merges a word of the held-out text takes fewer than half as many tokens as with characters.",
    cost_per_word[-1] < cost_per_word[0] / 2,
    **{"tokens per word, characters": cost_per_word[0], "3,000 merges": cost_per_word[-1]},
)

# %% [markdown]
# No word is unknown any more: unseen words are spelled. (An unseen *character* still is, which is why GPT-2 begins with bytes
# instead.) So today's models use subwords: GPT-2 50,000 merges, BERT about 30,000 pieces. (BERT's *WordPiece* chooses its merges by another criterion.) The price: BPE chooses pieces by frequency, not by meaning.
# In this chapter we stay with words, which are easier to read, and come back to subwords where they matter.

# %% [markdown]
# ### Exercise 2.1 · One merge of byte-pair encoding
#
# Difficulty ●●●○○ · 25 minutes · needs section 1
#
# One turn of the loop: count, choose, merge. Words are tuples of symbols; a symbol may have several letters.


# %% nbgrader={"grade": false, "grade_id": "ex02-1-bpe-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bpe_step(words):
    """Find the most frequent pair of neighbouring symbols and merge it.

    Args:
        words: dict {tuple of symbols: count}, for instance {("t", "e", "a"): 9}.

    Returns:
        pair: (a, b), the neighbours that occur most often in the corpus (a word that occurs 9 times
            counts 9 times); on a tie the smallest pair, as Python orders tuples.
        merged: dict like `words`, with a and b joined wherever they are neighbours, from left to right.
    """
    ### BEGIN SOLUTION
    counts = Counter()
    for symbols, count in words.items():
        for neighbours in pairwise(symbols):
            counts[neighbours] += count
    best = min(counts, key=lambda candidate: (-counts[candidate], candidate))
    merged = {}
    for symbols, count in words.items():
        joined, i = [], 0
        while i < len(symbols):
            step = 2 if symbols[i : i + 2] == best else 1
            joined.append("".join(symbols[i : i + step]))
            i += step
        merged[tuple(joined)] = count
    return best, merged
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-1-bpe-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch02.bpe_step(bpe_step)

# %% [markdown]
# ## 2 · The vocabulary
#
# A *vocabulary* gives each token a number, its *id*. Four ids are reserved for tokens that are not text:
#
# | id | token | stands for |
# |---|---|---|
# | 0 | `<unk>` | a token that the vocabulary does not know |
# | 1 | `<pad>` | nothing: it fills the row of a shorter text |
# | 2 | `<sos>` | the start of a sequence (what a decoder reads first) |
# | 3 | `<eos>` | the end of a sequence (what tells a decoder to stop) |
#
# The others follow by falling frequency, ties in alphabetical order, so that two runs number alike. These are the ids of
# *this* course; torchtext's default has no `<sos>` and `<eos>`, other libraries order them otherwise. We number the toy
# reviews, which a small grammar writes: one to three judgements each (the one printed has two), and a label, 1 for praise.

# %%
reviews = synthetic.reviews(2000, seed=1)
train_reviews, test_reviews = reviews[:1600], reviews[1600:]
train_tokens = [text.tokenize(review) for review, _ in train_reviews]
test_tokens = [text.tokenize(review) for review, _ in test_reviews]
vocab = text.build_vocab(train_tokens)
print("one review:", reviews[0])
print("the first ids:", vocab.itos[:12])

said = text.tokenize("the plot was not boring, it was hilarious")
said_ids = text.numericalize(said, vocab, sos=True, eos=True)
print("ids: ", said_ids)
print("back:", " ".join(text.denumericalize(said_ids, vocab)))

# %% tags=["fold"]
# @title What happened to hilarious?
claim(
    "A word outside the vocabulary comes back as `<unk>`: what was said is lost.",
    said_ids[-2] == text.UNK,
)

# %% [markdown]
# ### How large a vocabulary?
#
# A few words are very frequent and most are rare, so a short list covers most of a running text and the rest costs more
# and more. The *rate of* `<unk>` is the share of running tokens that the vocabulary does not know. Measured on the text the
# vocabulary was built from, it flatters a large vocabulary; the honest figure is on held-out text.
#
# By how much does the rate on the held-out text fall from V = 1,000 to V = 3,000? And on the training text?

# %%
by_frequency = [token for token, _ in Counter(seen["words"]).most_common()]
sizes = [100, 300, 1000, 3000, len(by_frequency)]
known = [set(by_frequency[:size]) for size in sizes]
rates = {}
for name, part in {"training text": seen, "held-out text": unseen}.items():
    tokens = part["words"]
    rates[name] = [100 * sum(t not in k for t in tokens) / len(tokens) for k in known]

# %% tags=["reveal"]
figures.unknown_by_size(sizes, rates)

# %% tags=["fold", "reveal"]
# @title From V = 1,000 to 3,000
claim(
    "From V = 1,000 to 3,000 both rates fall by more than 5 points; less is left of the training text's.",
    all(rate[2] - rate[3] > 5 for rate in rates.values())
    and rates["training text"][3] < rates["held-out text"][3],
    **{f"%, {name}": rate[2:4] for name, rate in rates.items()},
)

# %% [markdown]
# **Common mistake · a vocabulary that has seen the test set.** It is built "on all the data, to be safe". The `<unk>` rate on
# the test set becomes 0, which no user's text will ever give you, and the test score includes words that the model could
# never have had. The repair is a habit: *whatever is fitted, is fitted on the training part only*; report the `<unk>` rate
# beside the score.


# %%
def unknown_rate(tokens, vocab):
    """Share of the tokens that numericalize to <unk>."""
    ids = text.numericalize(tokens, vocab)
    return ids.count(text.UNK) / len(ids)


leaky = text.build_vocab([seen["words"], unseen["words"]])
honest = text.build_vocab([seen["words"]])

# %% tags=["fold"]
# @title What the two vocabularies report
claim(
    "The leaky vocabulary reports an `<unk>` rate of 0; the honest one, more than 2 %.",
    unknown_rate(unseen["words"], leaky) == 0 and unknown_rate(unseen["words"], honest) > 0.02,
    leaky=unknown_rate(unseen["words"], leaky),
    honest=f"{100 * unknown_rate(unseen['words'], honest):.2g} %",
)

# %% [markdown]
# ## 3 · Padding and the mask
#
# A tensor is a rectangle and texts are not. Shorter rows are filled up with `<pad>` on the right, to the length $T$ of the
# longest, and a mask says which entries are real. With $\ell_b$ the length of text $b$,
#
# $$ \mathrm{mask}[b, t] = (t < \ell_b), \qquad b = 0 \ldots B-1, \quad t = 0 \ldots T-1. $$

# %%
show_source(text.length_mask)

# %%
three = ["the cast was great", "not dull", "the ending was weak, sadly"]
three_ids, three_mask = text.pad_batch(
    [text.numericalize(text.tokenize(sentence), vocab) for sentence in three]
)
print(three_ids, three_ids.shape)
print(three_mask.int())

# %% tags=["fold"]
# @title The mask undoes the padding
claim(
    "`ids[mask]` is the real tokens and nothing else.", len(three_ids[three_mask]) == 4 + 2 + 6
)

# %% [markdown]
# (The 0 in the last row is *sadly*: the vocabulary does not know it, so it became `<unk>`. It is a real token all the same.)
#
# **Common mistake · padding counted in a mean.** The plainest summary of a text is the mean of its vectors. Below, `<pad>`
# has a vector like every other id, and `.mean(dim=1)` averages over it. The review *not dull* is first embedded alone, then in the
# batch above. **Will its mean be the same?**

# %%
_ = torch.manual_seed(0)
embedding = torch.nn.Embedding(len(vocab), 4, dtype=torch.float64)
alone, _ = text.pad_batch([text.numericalize(["not", "dull"], vocab)])
mean_alone = embedding(alone).mean(dim=1)[0]
mean_in_batch = embedding(three_ids).mean(dim=1)[1]

# %% tags=["fold", "reveal"]
# @title The two means
claim(
    "The mean of 'not dull' depends on the longest review of its batch.",
    not torch.allclose(mean_alone, mean_in_batch),
    alone=mean_alone,
    in_batch=mean_in_batch,
)

# %% [markdown]
# The repair: add up real vectors only, and divide by how many there are, row by row. With $e_{bt}$ the vector (D numbers) at
# step $t$ of row $b$ and $m_{bt}$ the mask as 0 or 1,
#
# $$ \bar e_b = \frac{\sum_t m_{bt} \, e_{bt}}{\sum_t m_{bt}}. $$
#
# `course_lib` does this inside `bag_of_words.AveragedEmbeddings`. Is it enough to keep the padding's vector at zero, as
# `nn.Embedding(V, D, padding_idx=1)` does? It is still counted: the bug that you repair in **exercise 2.3**.

# %%
averager = bag_of_words.AveragedEmbeddings(len(vocab), d_model=4).double().eval()
together = averager(three_ids, three_mask)[1]
by_itself = averager(alone, torch.ones(1, 2, dtype=torch.bool))[0]
not_dull = text.numericalize(["not", "dull"], vocab)
padded_to_50 = averager(*text.pad_batch([not_dull], length=50))[0]

# %% tags=["fold"]
# @title Check: pad further, and nothing changes
claim(
    "With the mask, 'not dull' gives the same output alone, in the batch, and padded to 50.",
    torch.allclose(together, by_itself) and torch.allclose(padded_to_50, by_itself),
)

# %% [markdown]
# A forgotten mask raises no error and the loss still falls: the only symptom is a slightly worse score. So test for it, as
# above: *pad further, and nothing should change.* The same test will guard the LSTM's last step (chapter 05) and
# attention (chapter 07). Chapter 01's perplexity needs it too: the mean nats per token is a mean over *real* tokens.

# %% [markdown]
# ### Exercise 2.2 · Pad and mask
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# From lists to a rectangle. Take the mask from the lengths: some vocabularies have no padding id, and people pad with
# a real token (GPT-2's has none; its `<|endoftext|>` is often used).


# %% nbgrader={"grade": false, "grade_id": "ex02-2-pad-and-mask", "locked": false, "schema_version": 3, "solution": true, "task": false}
def pad_and_mask(sequences, pad):
    """Pad lists of ids on the right.

    Args:
        sequences: B lists of ids, of different lengths; T is the longest length.
        pad: the id that fills the free places.

    Returns:
        ids: (B, T) torch.int64.
        mask: (B, T) torch.bool, True = a real token.
    """
    ### BEGIN SOLUTION
    B, T = len(sequences), max(len(sequence) for sequence in sequences)
    ids = torch.full((B, T), pad, dtype=torch.int64)
    mask = torch.zeros(B, T, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        ids[row, : len(sequence)] = torch.tensor(sequence, dtype=torch.int64)
        mask[row, : len(sequence)] = True
    return ids, mask
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-2-pad-and-mask-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.pad_and_mask(pad_and_mask)

# %% [markdown]
# ### Exercise 2.3 · Find the bug: a mean that knows its mask
#
# Difficulty ●●○○○ · 15 minutes · needs section 3
#
# This function uses the mask and has the right shape. Its author tried it on the longest row of a batch, found the right
# mean, and shipped it. The next cell feeds it vectors that are all 1, whose mean must be 1 in every row.


# %%
def buggy_mean(vectors, mask):
    """vectors (B, T, D), mask (B, T) -> (B, D)."""
    vectors = vectors * mask.unsqueeze(-1)  # padding becomes zero
    return vectors.mean(dim=1)


print("real tokens per row:", three_mask.sum(dim=1).tolist())
of_ones = buggy_mean(torch.ones(3, 6, 1), three_mask)[:, 0]
print("'mean' of ones:     ", [round(value, 3) for value in of_ones.tolist()])

# %% [markdown]
# What happens to the short rows, and why not to the longest? Write the version that is right for every row, however far
# the batch is padded. A row without any real token must give zeros, not `nan`.


# %% nbgrader={"grade": false, "grade_id": "ex02-3-masked-mean", "locked": false, "schema_version": 3, "solution": true, "task": false}
def masked_mean(vectors, mask):
    """Mean of the real tokens' vectors, row by row.

    Args:
        vectors: (B, T, D) floats.
        mask: (B, T) bool, True = a real token.

    Returns:
        (B, D); zeros for a row without a real token.
    """
    ### BEGIN SOLUTION
    total = (vectors * mask.unsqueeze(-1)).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-3-masked-mean-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.masked_mean(masked_mean)

# %% [markdown]
# ## 4 · Bucketing: padding is work for nothing
#
# The model computes on every cell of the rectangle. The *padding share* of a set of batches is the part that is wasted.
# With $\ell_n$ the length of text $n$, and $B_k$ texts in batch $k$, the longest of them $T_k$ tokens long,
#
# $$ \text{padding share} = 1 - \frac{\sum_n \ell_n}{\sum_k B_k \, T_k}. $$
#
# So it depends on who sits together. *Bucketing* puts texts of similar length into one batch, and
# shuffles the batches instead of the texts.
#
# The toy reviews have 1 to 3 judgements; put 32 in a batch. What share of the cells is padding in shuffled order? And bucketed?

# %%
sequences = [torch.tensor(text.numericalize(tokens, vocab)) for tokens in train_tokens]
lengths = [len(sequence) for sequence in sequences]


def shuffled_batches(size, generator):
    """Batches of `size` reviews in random order."""
    order = torch.randperm(len(lengths), generator=generator).tolist()
    return [order[i : i + size] for i in range(0, len(order), size)]


def share_of_padding(batches):
    """Padding share of all batches together: cells first, one division at the end."""
    cells = sum(len(batch) * max(lengths[i] for i in batch) for batch in batches)
    return 1 - sum(lengths) / cells


generator = torch.Generator().manual_seed(2)
shuffled = shuffled_batches(32, generator)
bucketed = list(text.bucket_batches(lengths, 32, generator))

# %%
padded = predict("how many cells are padding, shuffled and bucketed, in per cent", ...)

# %% tags=["fold", "reveal"]
# @title Padding, shuffled and bucketed
claim(
    "Padding shrinks from over 40 % of the cells (shuffled) to less than 10 % (bucketed).",
    share_of_padding(shuffled) > 0.4 and share_of_padding(bucketed) < 0.1,
    shuffled=f"{100 * share_of_padding(shuffled):.3g} %",
    bucketed=f"{100 * share_of_padding(bucketed):.2g} %",
    every_review_padded_to_80=f"{100 * (1 - sum(lengths) / (len(lengths) * 80)):.3g} %",
)
padded.compare("over 40 % and below 10 %")

# %%
one_batch = {"shuffled": shuffled[1], "bucketed": bucketed[1]}
rows_of = {name: [lengths[i] for i in batch] for name, batch in one_batch.items()}
figures.two_batches(rows_of, longest=max(lengths))

# %% [markdown]
# Does bucketing still pay when the batches grow? The larger a batch, the more likely it holds one very long review.

# %%
batch_sizes = [1, 2, 4, 8, 16, 32, 64, 128]
waste = {"shuffled": [], "bucketed": []}
for size in batch_sizes:
    generator = torch.Generator().manual_seed(size)
    in_any_order = shuffled_batches(size, generator)
    by_length = list(text.bucket_batches(lengths, size, generator))
    waste["shuffled"].append(share_of_padding(in_any_order))
    waste["bucketed"].append(share_of_padding(by_length))
figures.padding_by_batch_size(batch_sizes, waste)

# %% tags=["fold"]
# @title At every batch size?
claim(
    "At every batch size from 2 to 128, bucketing at least halves the padding.",
    all(b <= s / 2 for s, b in zip(waste["shuffled"][1:], waste["bucketed"][1:], strict=True)),
    **{f"share {name}, B = 2 and 128": [shares[1], shares[-1]] for name, shares in waste.items()},
)

# %% [markdown]
# Bucketing has a price: the batches are less random. `text.bucket_batches` shuffles all texts, sorts within pools of 100
# batches, and shuffles the batches again. Of the pairs of reviews that share a batch in one epoch, how
# many share one again in the next?

# %%
def meetings(batches):
    """All pairs of reviews that sit in one batch."""
    return {pair for batch in batches for pair in combinations(sorted(batch), 2)}


def meet_again(one_epoch):
    """Share of the pairs of one epoch that meet in the next, too."""
    first, second = meetings(one_epoch()), meetings(one_epoch())
    return len(first & second) / len(first)

# %% tags=["fold", "reveal"]
# @title Pairs that meet again
generator = torch.Generator().manual_seed(3)
by_chance = meet_again(lambda: shuffled_batches(32, generator))
in_buckets = meet_again(lambda: text.bucket_batches(lengths, 32, generator))
claim(
    "More than a third of the pairs meet again in the next epoch; of shuffled ones, fewer than 1 in 30.",
    in_buckets > 1 / 3 and by_chance < 1 / 30,
    bucketed=in_buckets,
    shuffled=by_chance,
)

# %% [markdown]
# Here all 50 batches are in a single pool. On large data sets there are many pools, filled anew in each epoch, and the
# price is lower.

# %% [markdown]
# ### On real reviews
#
# IMDB's film reviews (Maas et al. 2011) are the sentiment data of this course: 25,000 to train on, 25,000 to test, half of
# them positive. They are too large to load in every run of this notebook. So their numbers come from the *ledger*,
# `results/`, in which recorded and seeded runs are kept; `python -m course_lib.experiments imdb-padding` makes these
# again.
#
# A common choice is to cut every review to 200 tokens. What share of all tokens is thrown away?

# %% tags=["fold"]
# @title Recorded facts about the reviews' lengths
def recorded(metric):
    """A recorded fact about the reviews' lengths (first seed's training part)."""
    return ledger.values("imdb-padding", "lengths", metric)[0]


def share(way, metric):
    """Mean over the recorded seeds."""
    return ledger.summary("imdb-padding", way, metric)[0]

# %%
edges, numbers = recorded("histogram_edges"), recorded("histogram_counts")
figures.review_lengths(edges, numbers, cut=200)

# %% tags=["fold", "reveal"]
# @title Five ways to pad: what each wastes and cuts off
WAYS = [
    "fixed: the longest review",
    "fixed: 200 tokens",
    "per batch, random",
    "per batch, bucketed",
    "bucketed, at most 400 tokens",
]
COLUMNS = {
    "padding": "padding share",
    "tokens_lost": "share of the text cut off",
    "entries_per_review": "cells a review",
}
markdown(ledger.table("imdb-padding", COLUMNS, WAYS))
claim(
    "Cut at 200 tokens, more than a third of the text is never seen.",
    share("fixed: 200 tokens", "tokens_lost") > 1 / 3,
    share_of_the_tokens_lost=share("fixed: 200 tokens", "tokens_lost"),
    share_of_the_reviews_cut=recorded("share_over_200"),
)
claim(
    "Buckets keep every token, and need less than a third of the cells of random batches.",
    share("per batch, bucketed", "tokens_lost") == 0
    and share("per batch, bucketed", "entries_per_review")
    < share("per batch, random", "entries_per_review") / 3,
)

# %% [markdown]
# A fixed length looks cheap in the table because it throws text away. If you must
# cut, choose the length on validation data and report what is lost.

# %% [markdown]
# ### Exercise 2.4 · Derive: how much is padding?
#
# Difficulty ●●○○○ · 10 minutes · needs section 4
#
# Four reviews have 1, 10, 2 and 4 tokens. With pencil and paper, find the padding share, as a number between 0 and 1 to three decimals, if they are batched
# two by two (a) in this order, (b) sorted by length, and (c) if every row is padded to 12. Replace `...` by the tuple of the three numbers.

# %% nbgrader={"grade": false, "grade_id": "ex02-4-padding-shares", "locked": false, "schema_version": 3, "solution": true, "task": false}
shares = ...  # (a, b, c)
### BEGIN SOLUTION
shares = (11 / 28, 7 / 24, 31 / 48)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex02-4-padding-shares-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.padding_shares(shares)

# %% [markdown]
# ## 5 · One-hot against embedding
#
# An id is a name, not a quantity: token 7 is not more than token 6. So a network must not multiply by it. The *one-hot*
# vector of id $i$ is a row of $V$ zeros with a 1 in place $i$. Multiplied by a matrix $W$ of shape $(V, D)$ it gives
#
# $$ x_{bt} \, W = \sum_{v=0}^{V-1} x_{btv} \, W_{v} = W_{i}, \qquad i = \mathrm{ids}[b, t]. $$

# %%
diagrams.show("one_hot_lookup")

# %% [markdown]
# So `nn.Embedding` is a linear layer without bias on one-hot rows, computed as a look-up. Same output, same gradient.
# (`nn.Linear` stores the transpose, of shape (D, V).)

# %%
B, T, V, D = 3, 5, 11, 4
W = torch.randn(V, D, dtype=torch.float64, requires_grad=True)
picked = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))
one_hot = F.one_hot(picked, V).double()
product_shape, lookup_shape = tuple((one_hot @ W).shape), tuple(W[picked].shape)
print("one-hot", tuple(one_hot.shape), "@ W", tuple(W.shape), "->", product_shape)
print("ids    ", tuple(picked.shape), " of W", tuple(W.shape), "->", lookup_shape)

# %% tags=["fold"]
# @title Check: same output, same gradient
upstream = torch.randn(B, T, D, dtype=torch.float64)
by_product = torch.autograd.grad((one_hot @ W * upstream).sum(), W)[0]
by_lookup = torch.autograd.grad((F.embedding(picked, W) * upstream).sum(), W)[0]
claim(
    "The product and the look-up are equal, bit for bit.",
    torch.equal(one_hot @ W, F.embedding(picked, W)),
)
claim(
    "Their gradients agree too, to rounding; rows of W whose token is not in the batch get none.",
    torch.allclose(by_product, by_lookup)
    and not by_lookup[~torch.isin(torch.arange(V), picked)].any(),
)

# %% [markdown]
# Take a batch of 128 reviews of 200 tokens and a vocabulary of 50,000 words, the sizes of a common tutorial on IMDB. How
# much memory do the one-hot vectors take, in 32-bit floats? Megabytes? Gigabytes?

# %% tags=["fold", "reveal"]
# @title Memory, multiplications and time
B_large, T_large, V_large, D_large = 128, 200, 50_000, 32
one_hot_numbers = B_large * T_large * V_large
table(
    ["", "one-hot times W", "look-up"],
    [
        ["input", f"{one_hot_numbers * 4 / 1e9:.2f} GB", f"{B_large * T_large * 8 / 1e6:.2f} MB"],
        ["multiplications", f"{one_hot_numbers * D_large / 1e9:.0f} billion", "0"],
    ],
)
few_ids, few_weights = torch.randint(5000, (16, 50)), torch.randn(5000, 32)
milliseconds = {}
for name, compute in {
    "one-hot": lambda: F.one_hot(few_ids, 5000).float() @ few_weights,
    "look-up": lambda: F.embedding(few_ids, few_weights),
}.items():
    compute()
    begin = time.perf_counter()
    for _ in range(5):
        compute()
    milliseconds[name] = (time.perf_counter() - begin) / 5 * 1e3
claim(
    "Even for 800 tokens and 5,000 words, the look-up is more than 10 times as fast.",
    milliseconds["one-hot"] > 10 * milliseconds["look-up"],
    **{name: f"{ms:.2g} ms" for name, ms in milliseconds.items()},
)

# %% [markdown]
# The gain of an embedding is not only cost. Any two one-hot rows are equally far apart: `great` is as unlike `superb` as it is
# unlike `terrible`. The $D$ numbers of an embedding are learned, so that words that matter alike can come to lie together.

# %% [markdown]
# ## 6 · The same pipeline with torchtext
#
# Much code that you will meet does the same with torchtext's `Field`, `Vocab` and `BucketIterator`. We use its version 0.6.0, which is pure Python and works with the torch of this course.
#
# | step | torchtext 0.6.0 | `course_lib.text` |
# |---|---|---|
# | cut | `Field(tokenize=..., lower=...)` | `tokenize` |
# | number | `Field.build_vocab`, `Vocab` | `build_vocab`, whose `Vocab` does not grow |
# | pad | `Field.process` | `pad_batch`, which returns the mask too |
# | batch | `BucketIterator` | `bucket_batches`, `batches` |
#
# Here it is on the toy reviews, put into the shape of IMDB: a text, a label. It works; then come three traps.

# %%
show_source(torchtext_tour.review_fields, torchtext_tour.review_iterators)

# %%
splits = {"train": train_reviews, "test": test_reviews}
iterators, torchtext_vocab = torchtext_tour.review_iterators(splits, batch_size=32)
batch = next(iter(iterators["train"]))
(batch_ids, batch_lengths), batch_labels = batch.text, batch.label
print("ids", tuple(batch_ids.shape), "lengths", tuple(batch_lengths.shape))
print("labels", tuple(batch_labels.shape))

# %% tags=["fold"]
# @title Check: the same vocabulary
claim("torchtext's vocabulary is the one of section 2.", torchtext_vocab.itos == vocab.itos)
claim(
    "The lengths give the mask: True exactly where the id is not `<pad>`.",
    torch.equal(text.length_mask(batch_lengths), batch_ids != text.PAD),
)

# %% [markdown]
# **Trap 1 · `Vocab.stoi` grows.** `stoi` is a `defaultdict`: asking it for an unknown token *stores* that token, with the id of `<unk>`. `Field` asks
# it for every token of every batch. **After one pass over some test text, what will `token not in vocab.stoi` say of the
# unknown words in it?**

# %%
trap = copy.deepcopy(torchtext_vocab)
new_review = "A hilarious, gripping, unforgettable film: the finale was great!"
new_text = text.tokenize(new_review)


def share_not_in_stoi(tokens):
    """The <unk> rate as many a script measures it."""
    return sum(token not in trap.stoi for token in tokens) / len(tokens)


before, size_before = share_not_in_stoi(new_text), len(trap.stoi)
for token in new_text:
    trap.stoi[token]  # what Field.numericalize does
after, size_after = share_not_in_stoi(new_text), len(trap.stoi)

# %% tags=["fold", "reveal"]
# @title Unknown words, before and after one look
claim(
    "Reading a text through `stoi` makes its unknown words look known.",
    before > 0.3 and after == 0 and size_after > size_before == len(trap),
    **{
        "unknown, before and after": f"{before:.0%}, {after:.0%}",
        "entries of stoi": [size_before, size_after],
    },
)
claim(
    "The vocabulary of section 2 does not grow, and still says `<unk>`.",
    unknown_rate(new_text, vocab) == before and len(vocab.stoi) == len(vocab),
)

# %% [markdown]
# So the hidden `<unk>` rate is not only a sin of omission: with `stoi` the rate *measures* as zero. Count ids equal to `UNK`
# instead, as `unknown_rate` does.

# %% [markdown]
# **Trap 2 · `BucketIterator` does not sort.** Given a `sort_key`, as in most tutorials, you expect buckets. In 0.6.0 the training
# iterator sorts only if you also pass `sort_within_batch=True`. Its default is `False` for the training split, and then the batches are the shuffled ones.

# %%
from torchtext.data import BucketIterator, Dataset, Example, Field

fields = list(zip(("text", "label"), torchtext_tour.review_fields(), strict=True))
examples = [Example.fromlist(review, fields) for review in train_reviews]
examples = Dataset(examples, fields)


def torchtext_padding(**options):
    """Padding share of one epoch of BucketIterator over the training reviews."""
    iterator = BucketIterator(
        examples, batch_size=32, sort_key=lambda review: len(review.text), **options
    )
    iterator.random_shuffler.random_state = random.Random(0).getstate()
    iterator.create_batches()
    rows = [[len(review.text) for review in batch] for batch in iterator.batches]
    return 1 - sum(map(sum, rows)) / sum(len(row) * max(row) for row in rows)


plain_call = torchtext_padding()
sorting_call = torchtext_padding(sort_within_batch=True)

# %% tags=["fold"]
# @title Padding with and without sort_within_batch
claim(
    "With `sort_key` alone, BucketIterator pads like shuffled batches.",
    abs(plain_call - share_of_padding(shuffled)) < 0.03,
    sort_key_alone=f"{100 * plain_call:.3g} %",
    shuffled=f"{100 * share_of_padding(shuffled):.3g} %",
)
claim(
    "With `sort_within_batch=True` the buckets are there.",
    sorting_call < plain_call / 3,
    **{"padding with it": f"{100 * sorting_call:.2g} %"},
)

# %% [markdown]
# **Trap 3 · there is no padding mask.** A `Field` returns ids and nothing else; the padding must be guessed from
# `ids == 1` or is forgotten, as in many a tutorial, where padding takes part in attention and in the maximum over time.
# `include_lengths=True` returns the lengths too; `text.length_mask` makes the mask of them. `review_fields` does so.
# (A smaller trap beside it: a `LabelField` with a vocabulary numbers the labels by frequency, so that *positive* may be 0.
# `review_fields` keeps our own 0 and 1.)

# %%
two_texts = [["not", "dull"], ["the", "cast", "was", "great"]]
bare = Field(tokenize=text.tokenize, batch_first=True)
with_lengths = Field(tokenize=text.tokenize, batch_first=True, include_lengths=True)
bare.vocab = with_lengths.vocab = vocab
bare_ids = bare.process(two_texts)
field_ids, field_lengths = with_lengths.process(two_texts)
print("without:", type(bare_ids).__name__, tuple(bare_ids.shape))
print("with:   ", tuple(field_ids.shape), "and lengths", field_lengths.tolist())
print(text.length_mask(field_lengths).int())

# %% [markdown]
# ## 7 · The bag-of-words baseline
#
# Before anything with a memory, the baseline that every text classifier must beat. With $x_v = 1$ if token $v$ occurs in the
# review and 0 if not, $w_v$ a learned weight for each token, $\beta$ the bias, and $\sigma(z) = 1 / (1 + e^{-z})$,
#
# $$ p(\text{positive}) = \sigma\Big( \beta + \sum_{v=0}^{V-1} w_v x_v \Big). $$
#
# This is logistic regression. It counts each token once, however often it occurs; further down the ledger compares
# that with counting repeats. With $N$ training reviews and a small $\lambda > 0$, training minimises
#
# $$ L = \frac1N \sum_{n=1}^{N} -\ln p(\mathrm{label}_n) + \frac{\lambda}{2} \lVert w \rVert^2. $$
#
# The penalty makes $L$ strictly convex and keeps its optimum finite: there is exactly one, and `bag_of_words.fit_bag_of_words` comes
# close to it (it stops at a small gradient), so nobody can blame the learning rate. In the code below the vector $x$ is
# never formed in `forward`: the weights of the words that occur are looked up and added, as in section 5.

# %%
show_source(bag_of_words.bag_of_words, bag_of_words.BagOfWords.forward)

# %% [markdown]
# The toy reviews were made for this baseline: each comes with its *mirror*, the same words in another order with the opposite
# label. A bag of words is trained on 1,600 of them. Is it right on more than half of the others, on half, or on fewer?

# %%
def train_bag(token_lists, labels, vocab):
    """A bag of words at the optimum of its loss on these reviews."""
    model = bag_of_words.BagOfWords(len(vocab))
    ids = [text.numericalize(tokens, vocab) for tokens in token_lists]
    bag_of_words.fit_bag_of_words(model, ids, labels, l2=1e-4)
    return model


@torch.no_grad()
def logits_of(model, token_lists, vocab):
    """Logits (N,) that the reviews are positive."""
    return model(*text.pad_batch([text.numericalize(t, vocab) for t in token_lists]))


train_labels = torch.tensor([label for _, label in train_reviews])
test_labels = torch.tensor([label for _, label in test_reviews])
words_model = train_bag(train_tokens, train_labels, vocab)
test_logits = logits_of(words_model, test_tokens, vocab)

# %%
mirrored = predict("its accuracy on the other 400 reviews, in per cent", ...)

# %% tags=["fold", "reveal"]
# @title A review and its mirror
toy_accuracy = ((test_logits > 0) == test_labels).float().mean().item()
claim(
    "A review and its mirror always get the same logit.",
    torch.allclose(test_logits[::2], test_logits[1::2], atol=1e-5),
)
claim(
    "So of every pair one is right and one is wrong: the accuracy is one half.",
    abs(toy_accuracy - 0.5) < 0.01,
    accuracy=toy_accuracy,
)
mirrored.compare("50 %, one of every pair")

# %% [markdown]
# One half is not bad luck but a theorem. The bag is the same for both, so the answer is; the labels differ, so exactly one
# answer is right. Nor do other weights help the loss. A pair with the logits $z, z$ and the labels 1, 0 costs, per review,
#
# $$ -\tfrac12 \big[ \ln \sigma(z) + \ln \sigma(-z) \big] \ge \ln 2, $$
#
# with equality only at $z = 0$; and then the penalty wants $w = 0$.


# %% tags=["fold"]
# @title The loss of random and of fitted weights
def nats_per_review(model):
    """Mean loss on the test reviews, without the penalty."""
    logits = logits_of(model, test_tokens, vocab)
    return F.binary_cross_entropy_with_logits(logits, test_labels.float()).item()


random_model = bag_of_words.BagOfWords(len(vocab))
random_model.weight.data.normal_(generator=torch.Generator().manual_seed(0))
claim(
    "Random weights cost more than ln 2 nats a review, the fitted ones ln 2.",
    nats_per_review(random_model) > math.log(2) + 0.01
    and abs(nats_per_review(words_model) - math.log(2)) < 1e-5,
    **{
        "nats, random": nats_per_review(random_model),
        "fitted": nats_per_review(words_model),
        "ln 2": math.log(2),
    },
)

# %% [markdown]
# The theorem holds for anything that forgets the order, such as the *average of embeddings*:

# %%
mean_model = bag_of_words.AveragedEmbeddings(len(vocab), d_model=16).eval()
with torch.no_grad():
    mean_logits = logits_of(mean_model, test_tokens, vocab)
for sentence in sentences:
    print(sentence, "->", sorted(text.tokenize(sentence)))

# %% tags=["fold"]
# @title Averaged embeddings on the mirrored reviews
claim(
    "Averaged embeddings cannot tell a review from its mirror either.",
    torch.allclose(mean_logits[::2], mean_logits[1::2], atol=1e-5),
)

# %% [markdown]
# ### On real reviews
#
# Now the same baseline on IMDB, recorded in the ledger: the strength of the penalty and the step at which to stop were chosen
# on a tenth of the training reviews (another tenth for each seed), the official test reviews decided nothing. *Binary* counts a word once, *scaled* lets a word's
# weight go further the more its counts differ between good and bad reviews (the idea of Wang and Manning 2012).
#
# In the table, *features* is V, and the two logits are those of *not terrible, it's great* (praise) and *not great, it's terrible* (blame).
#
# How accurate will it be? The model does not know the order of a single pair of words.

# %% tags=["fold"]
# @title Recorded accuracies on IMDB
IMDB_MODELS = {
    "words, counts": "unigrams, counts",
    "words, binary": "unigrams, binary",
    "with pairs, binary": "unigrams + bigrams, binary",
    "with pairs, scaled": "unigrams + bigrams, scaled",
}
imdb = {shown: ledger.values("imdb-bow", name, "accuracy") for shown, name in IMDB_MODELS.items()}
imdb["averaged embeddings"] = ledger.values("imdb-embeddings", "averaged embeddings", "accuracy")
imdb_mean = {name: sum(values) / len(values) for name, values in imdb.items()}

# %% tags=["reveal"]
figures.imdb_accuracy(imdb)

# %% tags=["fold", "reveal"]
# @title The same in a table
COLUMNS_BOW = {
    "accuracy": "accuracy",
    "accuracy_unseen": "accuracy on unseen texts",
    "features": "features",
    "logit_praise": "logit, praise",
    "logit_blame": "logit, blame",
}
ROWS_BOW = {"majority": "always the same answer"} | {v: k for k, v in IMDB_MODELS.items()}
markdown(ledger.table("imdb-bow", COLUMNS_BOW, ROWS_BOW))
claim(
    "Words without order are right on more than 85 % of IMDB's test reviews.",
    min(imdb_mean["words, binary"], imdb_mean["averaged embeddings"]) > 0.85,
    bag_of_words=imdb_mean["words, binary"],
    averaged_embeddings=imdb_mean["averaged embeddings"],
)
claim(
    "On average over the seeds, counting repeats gains nothing over counting each word once; pairs of words, scaled, add 1 to 5 points.",
    imdb_mean["words, counts"] <= imdb_mean["words, binary"]
    and 0.01 < imdb_mean["with pairs, scaled"] - imdb_mean["words, binary"] < 0.05,
    once=imdb_mean["words, binary"],
    repeats=imdb_mean["words, counts"],
    with_pairs=imdb_mean["with pairs, scaled"],
)

# %% [markdown]
# (*Unseen texts* leaves out the test reviews that also stand in the training data. They are few, but one should look.)
# Which words decide? The weights can be read, which is a reason of its own to begin with this model.

# %% tags=["fold"]
# @title The recorded weights of the words
top_words = {}
for side in ("positive", "negative"):
    names, weights = (
        ledger.values("imdb-bow", "words", f"{side}_{what}")[0][:8] for what in ("words", "weights")
    )
    top_words |= dict(zip(names, weights, strict=True))

# %%
figures.words_that_decide(top_words)

# %% tags=["fold"]
# @title A digit and a name
claim(
    "Among the eight most positive are a digit and a name.",
    {"7", "bourne"} <= {word for word, weight in top_words.items() if weight > 0},
)

# %% [markdown]
# And what do the models that were trained on real reviews say about the two sentences of this chapter's beginning?

# %% tags=["fold", "reveal"]
# @title The two sentences on IMDB's models
praise, blame, pairs_praise, pairs_blame = (
    ledger.values("imdb-bow", name, f"logit_{side}")
    for name in ("unigrams, binary", "unigrams + bigrams, binary")
    for side in ("praise", "blame")
)
claim(
    "On the two sentences the IMDB model of single words is as blind as the toy.",
    all(abs(a - b) < 1e-4 for a, b in zip(praise, blame, strict=True)),
    **{"logits by seed, praise": praise, "blame": blame},
)
claim(
    "With pairs of words the two sentences get different logits, and in every run the praise gets the lower one.",
    all(a < b for a, b in zip(pairs_praise, pairs_blame, strict=True)),
    **{"logits by seed, praise": pairs_praise, "blame": pairs_blame},
)

# %% [markdown]
# So a model can be right on nearly nine reviews in ten and not read at all: in most reviews the words alone give the verdict away. *A high score on a
# benchmark does not prove the ability that you had in mind.* The contrast pair stays with us as a standing test for every classifier to come,
# beside its accuracy. Different logits are not yet right ones: praise should be above 0 and blame below. Which
# pairs the training reviews happened to hold decides.

# %% [markdown]
# ### Exercise 2.5 · Explore and explain: how much order do n-grams buy?
#
# Difficulty ●●●○○ · 30 minutes · needs section 7
#
# A bag of *bigrams* sees `not great` as one feature. `ngram_experiment` trains a bag of the n-grams up to `n`; the accuracy for
# n = 1 is the half that you know. It also tests every sentence of each single pattern of `synthetic.JUDGEMENTS`, 1 to 8. Change `n` to
# 2, 3 and 5, and try a smaller part of the training reviews.


# %%
def ngrams(tokens, n):
    """The tokens and their runs of 2 to n, each run written as one token."""
    starts = [(i, k) for k in range(1, n + 1) for i in range(len(tokens) - k + 1)]
    return [" ".join(tokens[i : i + k]) for i, k in starts]


for k, pattern in enumerate(synthetic.JUDGEMENTS, start=1):
    print(k, pattern)

# %% tags=["fold"]
# @title The experiment: features, test accuracy
def of_pattern(pattern):
    """Every review of one pattern, with its label."""
    sides = [(synthetic.GOOD, synthetic.BAD, 1), (synthetic.BAD, synthetic.GOOD, 0)]
    return [
        (pattern.format(thing=thing, yes=yes, no=no) + " .", label)
        for yes_words, no_words, label in sides
        for thing, yes, no in product(synthetic.THINGS, yes_words, no_words)
    ]


def ngram_experiment(n, reviews=1600):
    """Features, test accuracy, and accuracy on each pattern, of a bag of n-grams trained on so many reviews."""
    inputs = [ngrams(tokens, n) for tokens in train_tokens[:reviews]]
    gram_vocab = text.build_vocab(inputs)
    model = train_bag(inputs, train_labels[:reviews], gram_vocab)

    def accuracy(pairs):
        """Share of the reviews whose label the model finds."""
        cut = [ngrams(text.tokenize(review), n) for review, _ in pairs]
        right = (logits_of(model, cut, gram_vocab) > 0) == torch.tensor([y for _, y in pairs])
        return right.float().mean().item()

    return (
        len(gram_vocab),
        accuracy(test_reviews),
        [accuracy(of_pattern(p)) for p in synthetic.JUDGEMENTS],
    )


_, of_single_words, _ = ngram_experiment(1)
claim(
    "A bag of single words is right on half of the mirrored reviews.",
    abs(of_single_words - 0.5) < 0.02,
    accuracy=of_single_words,
)

# %%
n = 1  # your turn: 2, 3, 5
features, accuracy, by_pattern = ngram_experiment(n, reviews=1600)
table(
    ["n", "features", "accuracy", *(f"pattern {k}" for k in range(1, 9))],
    [[n, features, accuracy, *by_pattern]],
)

# %% [markdown]
# Then explain in a few sentences: (a) Which patterns does the *trained* bag of bigrams get right, by which bigrams, and why does n = 3 settle the others?
# (b) Why does the number of features matter? (c) Write a review that no bag of n-grams with your largest n could judge, and say what a model must be able to do instead.

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex02-5-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) Patterns 1, 2, 5 and 6, completely: the word *before* the judged one tells what is meant, `not NO` in 1 and 2, `be NO` against `was YES` in 5 and 6.
# Patterns 3, 4, 7 and 8 stay between 0.3 and 0.7, so the accuracy is about 0.8. In 3 and 4 both judged words follow `was`; in 7 and 8 they follow the thing
# and `it`, one way in one pattern and the other way in its twin. What is left (`YES ,` in one twin, `NO ,` in the other) votes for opposite labels, so
# the weights that help one twin hurt the other. Trigrams reach past the comma or the verb, `YES , and` (4) against `NO , i` (3), `found it YES` (7) against
# `called it NO` (8), and the accuracy is nearly 1.
#
# (b) A weight can only be learned from reviews that hold its n-gram. From n = 1 to 5 the features grow from some 60 to several thousand, most of
# them seen a few times; with 100 reviews many of the test reviews' n-grams were never seen. On real text the number of possible n-grams is $V^n$.
#
# (c) Put the deciding word further away than n: *nobody who saw this film with us on a sunday would say that it was great*. The model must
# remember *nobody* until *great* arrives, however many words are between: it needs a memory that is carried along (chapter 03),
# or a direct look at every earlier word (chapter 07).
# ### END SOLUTION

# %% [markdown]
# ## 8 · BLEU: scoring text that a model wrote
#
# At the other end of a model, tensors become text again, and somebody must say how good it is. For a translation there is no
# single right answer. *BLEU* (Papineni et al. 2002) compares a *hypothesis* with one or more human *references* by their
# *n-grams*, the runs of $n$ tokens. It was made for whole test sets, and three of its parts are easy to get wrong.

# %%
diagrams.show("bleu_parts")

# %% [markdown]
# **Part 1: clipped precision.** Over all sentences $i$ of the corpus, with $g$ running through the *different* n-grams of hypothesis $i$,
#
# $$ p_n = \frac{\sum_i \sum_g \min\big(\mathrm{count}_{\mathrm{hyp}_i}(g),\ \max_j \mathrm{count}_{\mathrm{ref}_{ij}}(g)\big)}{\sum_i \sum_g \mathrm{count}_{\mathrm{hyp}_i}(g)}. $$
#
# A word may match as often as the *one* reference that has it most often. Without the clip, a model that says *great great
# great great* has precision 1. `metrics.modified_precision` computes the sums; you write its heart in **exercise 2.6**.

# %%
parrot = "great great great great".split()
plot_and_cast = "the plot is great and the cast is too".split()
matches, total = metrics.modified_precision([parrot], [[plot_and_cast]], 1)
print(f"{matches} of {total} words match")

# %% tags=["fold"]
# @title The parrot's precision
claim(
    "The parrot has 4 words, all in the reference, and only 1 clipped match.",
    (matches, total) == (1, 4) and set(parrot) <= set(plot_and_cast),
)

# %% [markdown]
# **Part 2: brevity.** Precision rewards saying little. Recall would punish it, but has no good meaning with several references:
# nobody should use all their synonyms at once (section 2.2.1). So BLEU compares lengths: $c$ tokens in all hypotheses, $r$ in
# the references closest in length (of two equally close, the shorter),
#
# $$ \mathrm{BP} = \min\big(1,\ e^{1 - r/c}\big). $$
#
# **Part 3: the mean.** The geometric mean of $p_1 \ldots p_4$, times BP. We give it on the scale 0 to 100, as `sacrebleu` does; the
# paper itself writes 0 to 1.
#
# $$ \mathrm{BLEU} = 100 \cdot \mathrm{BP} \cdot \exp\Big(\frac14 \sum_{n=1}^{4} \ln p_n\Big). $$
#
# If one $p_n$ is 0, BLEU is 0, as nearly always for a single short sentence. sacrebleu's default smooths such zeros (`smooth:exp` in
# the signature below); comparisons of single sentences depend on that choice.

# %%
show_source(metrics.brevity_penalty, metrics.bleu)


# %% tags=["fold"]
# @title The first 15, 12, 9 and 6 words of a reference
def precisions(hypothesis, reference):
    """The precisions p1 to p4 of one sentence."""
    counts = [metrics.modified_precision([hypothesis], [[reference]], n) for n in range(1, 5)]
    return [matches / total for matches, total in counts]


whole = "the film is good and the music is lovely , though the ending is weak".split()
table(
    ["hypothesis", "p1 to p4", "BP", "BLEU"],
    [
        [
            f"first {c} of 15 words",
            " ".join(f"{value:.2f}" for value in precisions(whole[:c], whole)),
            metrics.brevity_penalty(c, 15),
            metrics.bleu([whole[:c]], [[whole]]),
        ]
        for c in (15, 12, 9, 6)
    ],
)

# %% [markdown]
# Every n-gram of a prefix matches, so only the brevity penalty keeps *the film is good and the* from a perfect score.
#
# ### Against sacrebleu
#
# A metric of your own is worth nothing until it agrees with the one that others use. `sacrebleu` (Post 2018) is the standard.


# %% tags=["fold"]
# @title Check: ours is sacrebleu's
def noisy(tokens, rng):
    """A sentence with a fifth of its words dropped or replaced."""
    kept = [token if rng.random() < 0.9 else "film" for token in tokens if rng.random() < 0.9]
    return kept or tokens


rng = random.Random(4)
hypotheses = [noisy(tokens, rng) for tokens in test_tokens[:40]]
references = [[noisy(tokens, rng), noisy(tokens, rng)] for tokens in test_tokens[:40]]
ours = metrics.bleu(hypotheses, references)
theirs = sacrebleu.corpus_bleu(
    [" ".join(h) for h in hypotheses],
    [[" ".join(r[j]) for r in references] for j in range(2)],
    tokenize="none",
    smooth_method="none",
).score
one_reference = metrics.bleu(hypotheses, [r[:1] for r in references])
claim(
    "Ours is sacrebleu's, on 40 sentences with two references each.",
    abs(ours - theirs) < 1e-9,
    ours=ours,
    sacrebleu=theirs,
)
ten, eight, eleven = list("abcdefghij"), list("abcdefgh"), list("abcdexyzuvw")
short_only = metrics.bleu([ten], [[eight]])
with_longer = metrics.bleu([ten], [[eight, eleven]])
claim(
    "Here a second reference raises the score: more ways to be right. But not always: clipped matches can only grow, yet r may grow too (in another example, from 8 to 11).",
    ours > one_reference and with_longer < short_only,
    **{
        "BLEU with one reference and with two": [one_reference, ours],
        "in the other example": [short_only, with_longer],
    },
)

# %% [markdown]
# **Common mistake · the average of sentence BLEUs.** Some tutorials say that sentence scores are averaged over the corpus. They are not:
# matches, totals and lengths are *summed* over the corpus, then divided once. System A makes a mess of one short
# sentence and gets a long one right; system B the other way round. Do the two ways of computing agree on who is better?

# %%
long = "we saw it on sunday and the film was great although critics called it dull"
bad = "we saw it on sunday and a movie is good but the critics found that boring"
refs = [[long.split()], ["the cast was great".split()]]
system_a = [long.split(), "a cast is good".split()]
system_b = [bad.split(), "the cast was great".split()]


def mean_of_sentences(hypotheses):
    """The wrong way: score each sentence, then average."""
    scores = [metrics.bleu([h], [r]) for h, r in zip(hypotheses, refs, strict=True)]
    return sum(scores) / len(scores)

# %% tags=["fold", "reveal"]
# @title Which system is better?
table(
    ["", "corpus BLEU", "mean of sentence BLEUs"],
    [
        [name, metrics.bleu(h, refs), mean_of_sentences(h)]
        for name, h in {"A": system_a, "B": system_b}.items()
    ],
)
claim(
    "Corpus BLEU prefers A, which translated more words well; the mean of sentences prefers B.",
    metrics.bleu(system_a, refs) > metrics.bleu(system_b, refs)
    and mean_of_sentences(system_a) < mean_of_sentences(system_b),
)

# %% [markdown]
# **Common mistake · comparing BLEU over different tokens.** BLEU counts tokens, so it changes with the tokenizer. Here the same pair of
# sentences is scored in four ways. Which of them is "the BLEU"?

# %%
film_hypothesis = "It's a great film, isn't it? The U.S. cast was GREAT!"
film_reference = "It's a great film, is it not? The US cast was great!"

# %% tags=["fold", "reveal"]
# @title Four scores of one pair
four_ways = {
    "split at spaces": metrics.bleu([film_hypothesis.split()], [[film_reference.split()]]),
    "our tokenizer, lower-cased": metrics.bleu(
        [text.tokenize(film_hypothesis)], [[text.tokenize(film_reference)]]
    ),
    "sacrebleu on the raw strings": sacrebleu.corpus_bleu(
        [film_hypothesis], [[film_reference]]
    ).score,
    "single characters": sacrebleu.corpus_bleu(
        [film_hypothesis], [[film_reference]], tokenize="char"
    ).score,
}
table(["tokens", "BLEU"], [[name, score] for name, score in four_ways.items()])
among_words = [score for name, score in four_ways.items() if name != "single characters"]
claim(
    "One hypothesis, one reference, and scores that differ by more than 10 points, even among words.",
    max(among_words) - min(among_words) > 10,
)

# %% [markdown]
# The repair (Post 2018): *detokenise* the output to plain text, give that to sacrebleu, and publish the signature beside the score, which says
# which references, case, tokenizer and smoothing were used. Scores with different signatures are not comparable.

# %%
scorer = sacrebleu.metrics.BLEU()
score = scorer.corpus_score([film_hypothesis], [[film_reference]])
signature = str(scorer.get_signature())  # a paper gives the version, too
print(f"BLEU = {score.score:.1f}   {signature.partition('|version')[0]}")

# %% [markdown]
# ### What BLEU cannot see
#
# The reference says *the film is good and the music is lovely*. Four hypotheses follow. **Order them** by how well they say the same;
# then look at their scores.

# %%
film_and_music = "the film is good and the music is lovely".split()
meaning = {
    "the film is fine and the music is lovely": "right",
    "the film is bad and the music is lovely": "wrong",
    "the music is lovely and the film is good": "right",
    "good film with really lovely music": "right",
}
bleu_of = {s: metrics.bleu([s.split()], [[film_and_music]]) for s in meaning}

# %% tags=["reveal"]
figures.bleu_and_meaning(bleu_of, meaning)

# %% tags=["fold", "reveal"]
# @title The synonym, the opposite and the paraphrase
fine, opposite, _, paraphrase = bleu_of.values()
claim(
    "'fine' and 'bad' get exactly the same BLEU; one of them is the opposite of the reference.",
    fine == opposite,
    BLEU=fine,
)
claim(
    "A good paraphrase gets 0 without smoothing: it shares no bigram with the reference.",
    paraphrase == 0,
)

# %% [markdown]
# BLEU counts shared n-grams, no more. It says little about one sentence. Over a whole test set it is used to track versions of *one* system, and
# small differences prove little. Use it so: on a corpus, with its signature, beside a look at real outputs.

# %% [markdown]
# ### Exercise 2.6 · Clipped precision with several references
#
# Difficulty ●●●○○ · 20 minutes · needs section 8
#
# Without `metrics.modified_precision`. Do not divide: a corpus adds up matches and totals first.


# %% nbgrader={"grade": false, "grade_id": "ex02-6-clipped-precision", "locked": false, "schema_version": 3, "solution": true, "task": false}
def clipped_precision(hypothesis, references, n):
    """Clipped n-gram matches of one sentence.

    Args:
        hypothesis: list of tokens.
        references: list of lists of tokens, at least one.
        n: length of the n-grams.

    Returns:
        matches: int; each n-gram counts at most as often as in the one reference that has it most often.
        total: int, the number of n-grams in the hypothesis.
    """

    ### BEGIN SOLUTION
    def count(tokens):
        return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))

    most = Counter()
    for reference in references:
        most |= count(reference)
    mine = count(hypothesis)
    return sum(min(times, most[gram]) for gram, times in mine.items()), sum(mine.values())
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-6-clipped-precision-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch02.clipped_precision(clipped_precision)

# %% [markdown]
# ### Exercise 2.7 · Derive: BLEU by hand
#
# Difficulty ●●●○○ · 15 minutes · needs section 8
#
# - hypothesis: *the cast and the script were both weak* (8 words)
# - reference: *cast and script were very weak in the second half* (10 words)
#
# With pencil and paper, find $p_1$, $p_2$, the brevity penalty, and BLEU-2, which is BLEU with the geometric mean of $p_1$ and $p_2$ only,
# on the scale 0 to 100. Three digits are enough.

# %% nbgrader={"grade": false, "grade_id": "ex02-7-bleu-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
parts = ...  # (p1, p2, BP, BLEU-2)
### BEGIN SOLUTION
brevity = 2.718281828 ** (1 - 10 / 8)
parts = (6 / 8, 2 / 7, brevity, 100 * brevity * (6 / 8 * 2 / 7) ** 0.5)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex02-7-bleu-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.bleu_by_hand(parts)

# %% [markdown]
# ## The road in one table
#
# | step | keeps | loses or adds | how you notice |
# |---|---|---|---|
# | cut | the words | capitals, spaces; spelling, if words are whole | read the tokens of ten texts |
# | number | frequent tokens | rare ones become `<unk>` | the `<unk>` rate on held-out text |
# | pad | everything | adds entries that are not text | pad further: nothing may change |
# | embed | everything | nothing | the shape: (B, T) becomes (B, T, D) |
# | bag | which words | their order | contrast pairs |
# | BLEU | shared n-grams | the meaning | read the output |

# %% [markdown]
# ## Summary
#
# 1. Cutting text into words, subwords or characters trades the size V of the vocabulary against the length T of the sequences; BPE turns the dial.
# 2. A vocabulary is fitted on the training part only; words outside it become `<unk>`, and the rate on held-out text is reported, not hidden.
# 3. Padding makes rectangles and the mask undoes them: pad further, and nothing may change. Bucketing saves the work.
# 4. An embedding is a one-hot row times a matrix, computed as a look-up: same output, same gradient, a fraction of the cost.
# 5. A bag of words is a strong baseline and blind to order; BLEU counts n-grams over a corpus and is blind to meaning.
#
# ## Where next
#
# *Chapter 03* gives the model what the bag lacks: a state that is carried from word to word, so that *not* can change what comes after it.
# BLEU returns with the translators of chapter 06, perplexity with every language model.
#
# ## References
#
# - P. Gage, *A new algorithm for data compression*, C Users Journal 12(2), 1994: byte-pair encoding for files.
# - R. Sennrich, B. Haddow, A. Birch, *Neural machine translation of rare words with subword units*, ACL 2016, arXiv 1508.07909: section 3.2, algorithm 1.
# - K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, *BLEU: a method for automatic evaluation of machine translation*, ACL 2002: sections 2.1 (clipping; 2.1.1 for the sum over the corpus), 2.2 (brevity) and 2.3 (the score).
# - M. Post, *A call for clarity in reporting BLEU scores*, WMT 2018, arXiv 1804.08771: section 2 (why published scores differ), and the proposal of sacrebleu.
# - A. Maas et al., *Learning word vectors for sentiment analysis*, ACL 2011: the IMDB reviews, section 4.
# - S. Wang, C. Manning, *Baselines and bigrams: simple, good sentiment and topic classification*, ACL 2012: sections 2 and 4.
# - Video: *Deep Learning for Natural Language Processing*, https://youtu.be/6D4EWKJgNn0: from text to vectors to sequence models, in one lecture.
