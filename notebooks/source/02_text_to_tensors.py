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
# A model never sees text. It sees a tensor that somebody made from text, and no training brings back what that step left out. Here is a
# classifier that is right on all of its 96 training reviews, such as *the film was great* or *what a dull plot!* Then it reads two new
# sentences: *not terrible, it's great* and *not great, it's terrible*. **What will it say about them?**

# %% tags=["fold"]
# @title This chapter in a picture
from course_lib.notebook import diagrams

diagrams.show("text_pipeline")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import math
import random
from collections import Counter
from itertools import combinations, pairwise, product

import sacrebleu
import torch
from torch import nn
from torch.nn import functional as F
from tqdm import tqdm

from course_lib import bag_of_words, bpe, datasets, metrics, text
from course_lib.datasets import synthetic
from course_lib.exercises import ch02
from course_lib.notebook import claim, diagrams, ledger, markdown, predict, show_source, table, torchtext_tour
from course_lib.notebook.figures import ch02 as figures

torch.set_printoptions(precision=2, sci_mode=False)
_ = torch.manual_seed(0)

# %%
FORMS = ("the {thing} was {word}", "what a {word} {thing}!")
plain = [
    (FORMS[k % 2].format(thing=thing, word=word), label)
    for words, label in ((synthetic.GOOD, 1), (synthetic.BAD, 0))
    for word in words
    for k, thing in enumerate(synthetic.THINGS)
]
for review, label in (plain[0], plain[1], plain[-1]):
    print(label, review)
sentences = ["not terrible, it's great", "not great, it's terrible"]

# %% tags=["fold"]
# @title Train the classifier
hook_tokens = [text.tokenize(review) for review, _ in plain]
hook_labels = torch.tensor([label for _, label in plain])
# The words of both sentences are in the vocabulary: none is unknown.
hook_vocab = text.build_vocab([*hook_tokens, *map(text.tokenize, sentences)])
hook_ids = [text.numericalize(tokens, hook_vocab) for tokens in hook_tokens]
hook = bag_of_words.BagOfWords(len(hook_vocab))
_ = bag_of_words.fit_bag_of_words(hook, hook_ids, hook_labels, l2=1e-3)

# %%
verdict = predict("what it says about the two sentences", ...)

# %% tags=["fold", "reveal"]
# @title What it says
hook_accuracy = ((hook(*text.pad_batch(hook_ids)) > 0) == hook_labels).float().mean()
hook_rows = [text.numericalize(text.tokenize(sentence), hook_vocab) for sentence in sentences]
p_positive = torch.sigmoid(hook(*text.pad_batch(hook_rows)))
claim(
    "The classifier is right on all 96 reviews, and finds the two sentences equally likely to be positive.",
    hook_accuracy == 1 and abs(p_positive[0] - p_positive[1]) < 1e-6,
    accuracy=hook_accuracy,
    probabilities=p_positive,
)
verdict.compare("the same about both")

# %% [markdown]
# *Great* pulls it up as far as *terrible* pulls it down, wherever they stand. It was given a *bag of words*: which words
# occur, not where. The two sentences are the same bag, so no weights, however long you train, can tell
# them apart. The mistake was made before the first layer.
#
# In this chapter you walk the road from a string to a tensor, first in plain Python, in some thirty lines. Then we go through it again and ask of
# every step: **what does it keep, and what does it lose?**
#
# *In two sittings: first sections 1 to 5 with exercises 2.1 to 2.4; then bags of words on real reviews, and BLEU.*
#
# ### You will be able to
#
# 1. learn a subword vocabulary by byte-pair encoding (exercise 2.1);
# 2. turn strings into padded batches with a mask, from your own parts (2.2), and keep the padding out of every mean (2.3);
# 3. compute how much of a batch is padding (2.4);
# 4. train a bag of words, and say which reviews it must fail on (2.5);
# 5. compute BLEU from its parts, and name what it cannot see (2.6, 2.7).
#
# **Letters.** `B` texts in a batch, `T` tokens in the longest of them, `V` tokens in the vocabulary, `D` numbers in an embedding. Masks are
# boolean, and `True` means *a real token*. Some libraries mean the opposite by `True`; read the manual each time.

# %% [markdown]
# ## 1 · From three reviews to a batch
#
# Three reviews, and nothing but Python and a few tensor lines. We print everything along the way.
#
# ### Tokenise
#
# First we cut each string into *tokens*, here words and punctuation marks.

# %%
three = ["The cast was great!", "Not dull!", "The ending was weak, sadly"]


def cut(string):
    """Lower-cased words; a punctuation mark stands alone."""
    for mark in ".,!?":
        string = string.replace(mark, f" {mark} ")
    return string.lower().split()


tokens = [cut(review) for review in three]
for row in tokens:
    print(len(row), row)

# %% [markdown]
# ### Count, and build a vocabulary
#
# A *vocabulary* gives each token a number, its *id*. We count all tokens and number them by falling frequency, ties in alphabetical
# order, so that two runs number alike. Two ids come first, for what is not a token of the text: `<unk>` stands for every token that the vocabulary does
# not know, `<pad>` fills free places.

# %%
counts = Counter(token for row in tokens for token in row)
by_frequency = sorted(counts, key=lambda token: (-counts[token], token))
itos = ["<unk>", "<pad>", *by_frequency]  # id -> token: "int to string"
stoi = {token: i for i, token in enumerate(itos)}  # token -> id: "string to int"
print(counts.most_common(3))
print(len(itos), "ids:", itos)

# %% [markdown]
# ### Look up the ids

# %%
ids = [[stoi.get(token, 0) for token in row] for row in tokens]  # 0 is <unk>
for row in ids:
    print(row)
new_ids = [stoi.get(token, 0) for token in cut("The cast was hilarious!")]
print("a new review:", new_ids, "->", *(itos[i] for i in new_ids))

# %% [markdown]
# The new review comes back as *the cast was &lt;unk&gt; !* What its writer thought is lost, and no layer can bring it back. Hence the
# first rule of this chapter: know your rate of `<unk>`.
#
# ### Pad, and remember what is real
#
# A tensor is a rectangle, and texts are not:

# %%
try:
    torch.tensor(ids)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# So shorter rows are filled up on the right with the id of `<pad>`, to the length $T$ of the longest. A *mask* remembers which entries are real: with $\ell_b$ the length of text $b$,
#
# $$ \mathrm{real}[b, t] = (t < \ell_b), \qquad b = 0 \ldots B-1, \quad t = 0 \ldots T-1. $$

# %%
T = max(len(row) for row in ids)
batch = torch.tensor([row + [1] * (T - len(row)) for row in ids])  # 1 is <pad>
lengths = torch.tensor([len(row) for row in ids])  # (B,)
real = torch.arange(T) < lengths[:, None]  # (T,) < (B, 1) -> (B, T)
print("ids", tuple(batch.shape), batch, "real", real.int(), sep="\n")

# %% [markdown]
# `batch[real]` gives back the 14 real tokens and nothing else.
#
# ### From ids to vectors
#
# An id is a name, not a quantity: token 7 is not more than token 6. So a network must not multiply by it. The classical way is the *one-hot*
# vector: $V$ zeros with a 1 in place $i$. Times a matrix $W$ of shape (V, D), it picks row $i$ of the matrix.

# %% tags=["fold"]
# @title Diagram: a one-hot row picks a row of W
diagrams.show("one_hot_lookup")

# %% [markdown]
# But then why not pick the row directly? That is an *embedding*: a table of learned vectors, one row for each token.

# %%
V, D = len(itos), 4
W = torch.randn(V, D, generator=torch.Generator().manual_seed(0))
x = W[batch]  # (B, T) -> (B, T, D)
one_hot = F.one_hot(batch, V).float()  # (B, T, V)
print("look-up:", tuple(batch.shape), "->", tuple(x.shape))
print("one-hot:", tuple(one_hot.shape), "@", tuple(W.shape), "->", tuple(x.shape))
print("the same numbers:", torch.equal(one_hot @ W, x))
print("the second review:", x[1], sep="\n")

# %% tags=["fold"]
# @title Check: the same gradient too
table_W, upstream = W.clone().requires_grad_(), torch.ones_like(x)
(by_product,) = torch.autograd.grad(one_hot @ table_W, table_W, upstream)
(by_lookup,) = torch.autograd.grad(F.embedding(batch, table_W), table_W, upstream)
claim(
    "The gradients with respect to $W$ agree as well; a row whose token is not in the batch gets none.",
    torch.allclose(by_product, by_lookup)
    and not by_lookup[0].any().item()  # <unk>
    and by_lookup[1:].ne(0).all().item(),
)

# %% [markdown]
# The three last rows of the second review are equal: all three are `<pad>`. So the look-up gives the same numbers as the product, but what a difference in cost! For 128 reviews of 200 tokens and a vocabulary of 50,000, the one-hot rows would take 128 · 200 ·
# 50,000 numbers, or 5 GB; the ids take 0.2 MB. `nn.Embedding(V, D)` holds $W$ as a parameter and does the look-up. There is another gain: any two one-hot rows are equally far apart, while learned vectors
# of words that matter alike can come to lie together.
#
# ### The library's version: the same, fast and tested
#
# `course_lib.text` does these steps too, on any text. Its vocabulary has two more special tokens, `<sos>` (2) and `<eos>` (3), which mark start and end of a sequence for
# the decoders of later chapters; so all other ids are larger by 2.

# %%
their_tokens = [text.tokenize(review) for review in three]
their_vocab = text.build_vocab(their_tokens)
their_ids, their_real = text.pad_batch(
    [text.numericalize(row, their_vocab) for row in their_tokens]
)
print(their_ids)

# %% tags=["fold"]
# @title The same batch
claim(
    "Token for token the library's batch is yours, and so is its mask.",
    [[their_vocab.itos[i] for i in row] for row in their_ids.tolist()]
    == [[itos[i] for i in row] for row in batch.tolist()]
    and torch.equal(their_real, real),
)

# %% [markdown]
# ## 2 · A whole classifier
#
# With a batch in hand, a first model takes ten lines. Give each word $v$ a weight $w_v$, large if it speaks for praise, and add up the weights of all
# real tokens:
#
# $$ z_b = \beta + \sum_{t=0}^{T-1} \mathrm{real}[b, t] \; w_{\mathrm{ids}[b, t]}, \qquad p_b(\text{positive}) = \sigma(z_b) = \frac{1}{1 + e^{-z_b}}. $$
#
# The number $z_b$ is a *logit*, $\beta$ a bias. This is logistic regression on a bag of words. The weights are an embedding with $D = 1$:


# %%
class WordVotes(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.weight = nn.Embedding(vocab_size, 1)  # one number for each word
        nn.init.zeros_(self.weight.weight)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids, real):  # (B, T), (B, T)
        votes = self.weight(ids)[:, :, 0]  # (B, T): one number for each token
        return (votes * real).sum(dim=1) + self.bias  # (B,): one logit for each text


# %% [markdown]
# With two classes one logit is enough: $\sigma(z) = e^z / (e^0 + e^z)$ is the softmax of the two logits $(z, 0)$, and of two logits only the difference counts. (Chapter 05's classifier has two.)
#
# We put section 1 into one function, number the words of the 96 reviews and of the two sentences (so that `<unk>` is not to blame), and train.


# %%
def to_batch(texts, stoi):
    """Texts -> ids (B, T) and real (B, T)."""
    rows = [[stoi.get(token, 0) for token in cut(string)] for string in texts]
    T = max(len(row) for row in rows)
    ids = torch.tensor([row + [1] * (T - len(row)) for row in rows])
    return ids, torch.arange(T) < torch.tensor([[len(row)] for row in rows])


# %%
train_texts = [review for review, _ in plain]
train_answers = torch.tensor([float(label) for _, label in plain])  # (96,)
words = sorted({token for string in train_texts + sentences for token in cut(string)})
word_ids = {word: i for i, word in enumerate(["<unk>", "<pad>", *words])}
train_ids, train_real = to_batch(train_texts, word_ids)  # (96, 5) each

votes = WordVotes(len(word_ids))
optimizer = torch.optim.Adam(votes.parameters(), lr=0.1)
for step in range(1, 101):
    logits = votes(train_ids, train_real)  # (96, 5) -> (96,)
    loss = F.binary_cross_entropy_with_logits(logits, train_answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (1, 10, 100):
        correct = ((logits > 0) == (train_answers > 0.5)).float().mean()
        print(f"step {step}: loss {loss:.2f}, accuracy {correct:.2f}")

# %% [markdown]
# `binary_cross_entropy_with_logits` is minus the logarithm of the probability of the right label, averaged over the batch; it starts at ln 2 = 0.69, the loss of guessing. What has the model learned, and what does it say about our two sentences?

# %%
for word in ("great", "terrible", "film", "not"):
    print(f"{word:9} {votes.weight.weight[word_ids[word]].item():5.1f}")
two_logits = votes(*to_batch(sentences, word_ids))
for sentence, logit in zip(sentences, two_logits.tolist(), strict=True):
    print(sorted(cut(sentence)), f"logit {logit:.1f}")

# %% tags=["fold"]
# @title The same logit for both
claim(
    "Your classifier gives the two sentences the same logit.",
    torch.allclose(two_logits[0], two_logits[1], atol=1e-5),
    logits=two_logits,
)

# %% [markdown]
# The sentences have the same tokens, so the sums have the same terms. (That *not* has weight 0, because it never occurred in training, does not matter: another weight would be added to both.) Before we
# see how far one gets without order, in section 6, let us go through the steps again.

# %% [markdown]
# ## 3 · Where does a token end?
#
# At the end of a word? After every character? Or somewhere in between, which is learned from data? Each choice has its price. Our `cut` keeps whole words, and lower-cases them: `us` and `US` become one, and
# an angry `GREAT` is as calm as any other. Plain `str.split` does worse, since it takes *cast.* and *cast* for unrelated words. Characters lose hardly anything, but make long sequences.
#
# So words give a small $T$ and a huge $V$; characters the opposite. We measure both on real text that every
# machine has: the docstrings of your own Python's standard library. The last tenth, almost all of it from other modules, is kept aside as new text. **Cut into words and marks, what percentage of
# the tokens in the last tenth has never occurred before it?** One in a thousand? One in a hundred? One in ten?

# %%
corpus = datasets.docstrings(limit=400_000)
nine_tenths = len(corpus) * 9 // 10
seen, unseen = {}, {}
for name, split in {"words": text.tokenize, "characters": text.characters}.items():
    seen[name], unseen[name] = split(corpus[:nine_tenths]), split(corpus[nine_tenths:])
distinct = {name: set(found) for name, found in seen.items()}

# %%
new_words = predict("the percentage of new word tokens in the last tenth", ...)

# %% tags=["fold", "reveal"]
# @title T, V and what is unknown
new_fraction = {
    name: sum(token not in known for token in unseen[name]) / len(unseen[name])
    for name, known in distinct.items()
}
claim(
    "Characters make T more than 3 times as long; words make V more than 20 times as large.",
    len(seen["characters"]) > 3 * len(seen["words"])
    and len(distinct["words"]) > 20 * len(distinct["characters"]),
    **{
        "T, words and characters": [len(seen["words"]), len(seen["characters"])],
        "V": [len(distinct["words"]), len(distinct["characters"])],
    },
)
claim(
    "More than 2 % of the word tokens in the last tenth are new; of the characters, fewer than 0.1 %.",
    new_fraction["words"] > 0.02 and new_fraction["characters"] < 0.001,
    **{name: f"{100 * found:.2g} %" for name, found in new_fraction.items()},
)
new_words.compare(f"{100 * new_fraction['words']:.2g} %")

# %% [markdown]
# Several in a hundred, and this was text of the same kind. (A larger vocabulary helps less than one hopes: see *Going deeper*. And if every word of the training text is in the vocabulary, `<unk>` never occurs in training, so its vector learns nothing; `build_vocab(..., min_freq=2)` leaves out words seen once.)
#
# ### In between: byte-pair encoding
#
# *Byte-pair encoding* (BPE) was invented in 1994 to compress files and became the standard way to cut text for
# translation (Sennrich et al. 2016). Begin with characters, and again and again let
# the two neighbours that occur together most often become one symbol: a *merge*.
#
# With $n_w$ the count of word $w$ in the corpus, and $c_w(s_1, s_2)$ the number of places in $w$ where symbol $s_2$ follows
# symbol $s_1$, the next merge is
#
# $$ (s_1, s_2)^* = \arg\max_{(s_1, s_2)} \sum_w n_w \, c_w(s_1, s_2). $$
#
# On a tie the alphabetically first pair wins. Merges never reach across words; a last symbol `</w>` marks a word's end, so that pieces can be joined into words again. Say the corpus has *great* 6 times, *greater* 3, *dull* 5
# and *later* 4 times. The letters `a` `t` stand together in three of these words, 6 + 3 + 4 = 13 times, and no pair occurs more often: the first merge is `at`. Here is how it goes on:

# %% tags=["fold"]
# @title Diagram: ten merges
diagrams.show("bpe_merges")

# %%
merges = bpe.train_bpe({"great": 6, "greater": 3, "dull": 5, "later": 4}, 10)
print("the first four merges:", *("+".join(pair) for pair in merges[:4]))
for word in ("great", "duller", "tall"):
    print(f"{word:>7} -> {' '.join(bpe.bpe_tokenize(word, merges))}")

# %% [markdown]
# To cut a *new* word, start from its characters and apply the merges in the order in which they were learned. Unknown words are spelled, at worst in
# single characters. The number of merges is a dial from characters to words; we turn it on the words of the docstrings. **How many merges halve the number of tokens that a word takes?**

# %%
word_counts = Counter(token for token in seen["words"] if token.isalpha())
new_counts = Counter(token for token in unseen["words"] if token.isalpha())
all_merges = bpe.train_bpe(word_counts, 3000)

dial = [0, 30, 100, 300, 1000, 3000]
tokens_per_word = []
for number in tqdm(dial, leave=False):
    pieces = {word: bpe.bpe_tokenize(word, all_merges[:number]) for word in new_counts}
    cost = sum(times * len(pieces[word]) for word, times in new_counts.items())
    tokens_per_word.append(cost / new_counts.total())

# %% tags=["reveal"]
figures.tokens_per_word(dial, tokens_per_word)

# %% tags=["fold", "reveal"]
# @title With 300 merges
claim(
    "With 300 merges a word of the held-out text takes fewer than half as many tokens as with characters; with 3,000, fewer than 1.5.",
    tokens_per_word[3] < tokens_per_word[0] / 2 and tokens_per_word[5] < 1.5,
    **{f"{number} merges": found for number, found in zip(dial, tokens_per_word, strict=True)},
)

# %% [markdown]
# Today's models read subword units: GPT-2 learned 50,000 merges; BERT has about 30,000 pieces, chosen by another criterion (*WordPiece*). An unseen *character* would still be unknown, which is why GPT-2 begins with bytes. The price: BPE chooses its pieces by frequency, not by
# meaning. In this chapter we stay with words, which are easier to read.

# %% [markdown]
# ### Exercise 2.1 · One merge of byte-pair encoding
#
# Difficulty ●●●○○ · 25 minutes · needs section 3
#
# One turn of the loop: count, choose, merge. Words are tuples of *symbols*, and after a few merges a symbol has several letters.


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
# ## 4 · The mask at work
#
# A padded batch holds entries that are not text, and most operations do not know that. Take the simplest summary of a text, the mean of its vectors. `nn.Embedding`
# has a row for `<pad>` like for every other id, and `.mean(dim=1)` averages over it. *Not dull!* is embedded alone, then in the batch of section 1. **Will its mean be the same?**

# %%
alone, alone_real = to_batch(["Not dull!"], stoi)  # (1, 3)
print("alone:       ", W[alone].mean(dim=1)[0])
print("in the batch:", W[batch].mean(dim=1)[1])

# %% [markdown]
# It depends on the longest review of its batch! In the batch, half of the mean is padding. The repair is to add up real vectors only, and to divide by how many there are, row by row. With $x_{bt}$ the vector at
# step $t$ of row $b$,
#
# $$ \bar x_b = \frac{\sum_t \mathrm{real}[b, t] \; x_{bt}}{\sum_t \mathrm{real}[b, t]}. $$
#
# You write it in exercise 2.3. (Is it enough to keep the vector of `<pad>` at zero, as `nn.Embedding(V, D, padding_idx=1)` does? You will know then.) The library's `AveragedEmbeddings` is a
# classifier of this mean. We can test it without knowing how it works inside:

# %%
averager = bag_of_words.AveragedEmbeddings(V, d_model=4)  # random weights will do
not_dull = averager(alone, alone_real)[0]
in_batch = averager(batch, real)[1]
padded_to_50 = averager(
    F.pad(alone, (0, 47), value=1), F.pad(alone_real, (0, 47), value=False)
)[0]

# %% tags=["fold"]
# @title Pad further, and nothing changes
claim(
    "With the mask, *not dull!* gives the same output alone, in the batch, and padded to 50.",
    torch.allclose(not_dull, in_batch, atol=1e-6)
    and torch.allclose(not_dull, padded_to_50, atol=1e-6),
)

# %% [markdown]
# A forgotten mask raises no error, and the loss still falls; often the only symptom is a slightly worse score, if any. So test for it: *pad further, and nothing should change.* The same test will guard the LSTM's last step (chapter 05) and
# attention (chapter 07). Chapter 01's perplexity needs the mask too: its mean is over *real* tokens.

# %% [markdown]
# ## 5 · Buckets: padding is work for nothing
#
# The model computes on every cell of the rectangle. Which fraction is wasted?
# With $\ell_n$ the length of text $n$, and $B_k$ texts in batch $k$, the longest of them $T_k$ tokens long,
#
# $$ \text{padding} = 1 - \frac{\sum_n \ell_n}{\sum_k B_k \, T_k}. $$
#
# So it matters which texts share a batch. *Bucketing* puts texts of similar length together, and shuffles the batches instead of the texts. We need more reviews: a small grammar writes 2,000 of them, with one to three judgements each and a label, 1 for praise.

# %%
reviews = synthetic.reviews(2000, seed=1)
train_reviews, test_reviews = reviews[:1600], reviews[1600:]
train_tokens = [text.tokenize(review) for review, _ in train_reviews]
test_tokens = [text.tokenize(review) for review, _ in test_reviews]
vocab = text.build_vocab(train_tokens)
review_lengths = [len(row) for row in train_tokens]
print(len(vocab), "ids; the shortest review has", min(review_lengths), "tokens,")
print("the longest", max(review_lengths), "- one of them:", train_reviews[0])


# %%
def padding_of(batches):
    """The fraction of cells that is padding: add up all cells, then divide once."""
    cells = sum(len(b) * max(review_lengths[i] for i in b) for b in batches)
    return 1 - sum(review_lengths) / cells


order = torch.randperm(1600, generator=torch.Generator().manual_seed(2)).tolist()
shuffled = [order[i : i + 32] for i in range(0, 1600, 32)]  # 50 batches of 32
bucketed = list(
    text.bucket_batches(review_lengths, 32, torch.Generator().manual_seed(2))
)

# %%
padded = predict("the percentages of padding, shuffled and bucketed", ...)

# %% tags=["reveal"]
figures.two_batches(
    {
        "shuffled": [review_lengths[i] for i in shuffled[1]],
        "bucketed": [review_lengths[i] for i in bucketed[1]],
    },
    longest=max(review_lengths),
)

# %% tags=["fold", "reveal"]
# @title In all 50 batches
claim(
    "Bucketing lowers the padding from over 40 % of the cells to less than 10 %.",
    padding_of(shuffled) > 0.4 and padding_of(bucketed) < 0.1,
    shuffled=f"{100 * padding_of(shuffled):.3g} %",
    bucketed=f"{100 * padding_of(bucketed):.2g} %",
)
padded.compare([f"{100 * padding_of(kind):.2g} %" for kind in (shuffled, bucketed)])

# %% [markdown]
# The price: batches are less random, since texts of equal length meet again and again. So `text.bucket_batches` shuffles all texts, sorts only within pools of 100
# batches, and shuffles the batches again. (*Going deeper* measures this price, and the padding of real reviews.)
#
# ### The same pipeline in torchtext
#
# Much code that you will meet does all this with torchtext. Its version 0.6.0 is pure Python and works with the torch of this course.
#
# | step | torchtext 0.6.0 | `course_lib.text` |
# |---|---|---|
# | tokenise | `Field(tokenize=..., lower=...)` | `tokenize` |
# | vocabulary | `Field.build_vocab`, `Vocab` | `build_vocab`, `Vocab` |
# | ids, padding | `Field.process` | `numericalize`, `pad_batch`, which returns the mask too |
# | buckets | `BucketIterator` | `bucket_batches`, `batches` |

# %%
splits = {"train": train_reviews, "test": test_reviews}
iterators, torchtext_vocab = torchtext_tour.review_iterators(splits, batch_size=32)
torchtext_batch = next(iter(iterators["train"]))
torchtext_ids, torchtext_lengths = torchtext_batch.text
print("ids", tuple(torchtext_ids.shape), "lengths", tuple(torchtext_lengths.shape))

# %% tags=["fold"]
# @title Check: the same vocabulary, the same mask
claim(
    "torchtext's vocabulary is ours, and its lengths give the mask.",
    torchtext_vocab.itos == vocab.itos
    and torch.equal(text.length_mask(torchtext_lengths), torchtext_ids != text.PAD),
)

# %% [markdown]
# `review_iterators` is 30 lines in `course_lib/notebook/torchtext_tour.py`. It avoids two traps of torchtext; a third stays. *Going deeper* shows all three. (torchtext is no longer developed; you will still meet it in older code. In new code `torch.utils.data.DataLoader` draws the batches, and what this section does by hand goes into its `collate_fn`, with `nn.utils.rnn.pad_sequence` for the padding.)

# %% [markdown]
# ### Exercise 2.2 · Assemble: from texts to padded batches
#
# Difficulty ●●●○○ · 30 minutes · needs sections 1 and 5
#
# All steps in one function of your own, without `course_lib.text`. A text may contain any token, even `<pad>`; so take the mask from the lengths, not from the ids.


# %% nbgrader={"grade": false, "grade_id": "ex02-2-padded-batches", "locked": false, "schema_version": 3, "solution": true, "task": false}
def padded_batches(texts, stoi, batch_size, max_len):
    """Batches of texts of similar length.

    Args:
        texts: N strings, tokens separated by spaces.
        stoi: dict, token -> id; "<unk>" and "<pad>" are in it, with any ids.
        batch_size: texts in a batch; the last batch may have fewer.
        max_len: only the first max_len tokens of a text are kept.

    Returns:
        A list of batches, the shortest texts first (by the length that is kept; equal
        lengths in the order of `texts`). Each batch is a tuple of
            ids: (B, T) torch.int64, padded on the right; T is the longest row of this batch;
            real: (B, T) torch.bool, True = a real token;
            where: list of B ints, the positions in `texts` of the rows.
    """
    ### BEGIN SOLUTION
    rows = [[stoi.get(token, stoi["<unk>"]) for token in string.split()[:max_len]] for string in texts]
    by_length = sorted(range(len(rows)), key=lambda i: len(rows[i]))
    batches = []
    for start in range(0, len(rows), batch_size):
        where = by_length[start : start + batch_size]
        T = len(rows[where[-1]])
        ids = torch.full((len(where), T), stoi["<pad>"])
        real = torch.zeros(len(where), T, dtype=torch.bool)
        for b, i in enumerate(where):
            ids[b, : len(rows[i])] = torch.tensor(rows[i])
            real[b, : len(rows[i])] = True
        batches.append((ids, real, where))
    return batches
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-2-padded-batches-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch02.padded_batches(padded_batches)

# %% [markdown]
# When the check passes, let section 2's classifier learn from your batches: run `train_from(padded_batches)` in a cell of your own. It should be right on all 96 reviews.


# %% tags=["fold"]
# @title train_from: WordVotes on your batches
def train_from(make_batches, epochs=20):
    """Train section 2's classifier on the 96 reviews, in batches of 16; its accuracy on them, from 0 to 1."""
    texts = [" ".join(cut(string)) for string in train_texts]
    model = WordVotes(len(word_ids))
    adam = torch.optim.Adam(model.parameters(), lr=0.1)
    made = make_batches(texts, word_ids, batch_size=16, max_len=50)
    for _ in range(epochs):
        for its_ids, its_real, where in made:
            cost = F.binary_cross_entropy_with_logits(model(its_ids, its_real), train_answers[where])
            adam.zero_grad()
            cost.backward()
            adam.step()
    right = sum(((model(i, r) > 0) == (train_answers[w] > 0.5)).sum().item() for i, r, w in made)
    return right / len(texts)


# %% [markdown]
# ### Exercise 2.3 · Find the bug: a mean that knows its mask
#
# Difficulty ●●○○○ · 15 minutes · needs section 4
#
# This function uses the mask and has the right shape. Its author tried it on the longest row of a batch, found the right
# mean, and shipped it. Below it gets vectors that are all 1, whose mean must be 1 in every row.


# %%
def buggy_mean(vectors, mask):
    """vectors (B, T, D), mask (B, T) -> (B, D)."""
    vectors = vectors * mask.unsqueeze(-1)  # padding becomes zero
    return vectors.mean(dim=1)


print("real tokens:", real.sum(dim=1).tolist())
print("mean of ones:", buggy_mean(torch.ones(3, 6, 1), real)[:, 0])

# %% [markdown]
# What happens to the short rows, and why not to the longest? Write the version that is right for every row, however far
# the batch is padded. A row without any real token must give zeros, not `nan`, and its gradients must be finite too. Inputs are float64; five digits are compared.


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
# ### Exercise 2.4 · Derive: how much is padding?
#
# Difficulty ●●○○○ · 10 minutes · needs section 5
#
# Four reviews have 1, 10, 2 and 4 tokens. With pencil and paper, find the fraction of padding, a number between 0 and 1, if they are batched
# two by two (a) in this order, (b) sorted by length, and (c) if every row is padded to 12. Three digits each; replace `...` by the tuple.

# %% nbgrader={"grade": false, "grade_id": "ex02-4-padding-shares", "locked": false, "schema_version": 3, "solution": true, "task": false}
shares = ...  # (a, b, c)
### BEGIN SOLUTION
shares = (11 / 28, 7 / 24, 31 / 48)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex02-4-padding-shares-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.padding_shares(shares)

# %% [markdown]
# *A good place to stop for today.* You can turn any texts into batches, and train a classifier on them. The second half asks how far one gets without the order of
# the words, and how to score a text that a model wrote.
#
# ---

# %% [markdown]
# ## 6 · How far do words without order get?
#
# The reviews of section 5 were made to show the limit. Each comes with its *mirror*: the same words in another order, with the opposite label.

# %%
for review, label in test_reviews[4:6]:
    print(label, review)

# %% [markdown]
# The library's `BagOfWords` is section 2's model, except that it counts a word once, however often it occurs. `fit_bag_of_words` goes to the minimum of the loss (plus a small
# penalty on large weights), so nobody can blame the learning rate.


# %%
def train_bag(token_lists, labels, vocab):
    """A bag of words at the minimum of its loss on these reviews."""
    model = bag_of_words.BagOfWords(len(vocab))
    rows = [text.numericalize(row, vocab) for row in token_lists]
    bag_of_words.fit_bag_of_words(model, rows, labels, l2=1e-4)
    return model


@torch.no_grad()
def logits_of(model, token_lists, vocab):
    """Logits (N,) that the reviews are positive."""
    return model(*text.pad_batch([text.numericalize(t, vocab) for t in token_lists]))


train_labels = torch.tensor([label for _, label in train_reviews])
test_labels = torch.tensor([label for _, label in test_reviews])
words_model = train_bag(train_tokens, train_labels, vocab)
test_logits = logits_of(words_model, test_tokens, vocab)

# %% tags=["fold"]
# @title A review and its mirror
toy_accuracy = ((test_logits > 0) == test_labels).float().mean().item()
claim(
    "A review and its mirror get the same logit, so the accuracy on the other 400 reviews is one half.",
    torch.allclose(test_logits[::2], test_logits[1::2], atol=1e-5) and abs(toy_accuracy - 0.5) < 0.01,
    accuracy=toy_accuracy,
)

# %% [markdown]
# One half is not bad luck but a theorem. The bag is the same for both, so the answer is the same; the labels differ, so exactly one
# answer is right. This holds for anything that forgets the order, such as the mean of embeddings.
#
# ### On real reviews
#
# Real reviews have no mirrors. IMDB (Maas et al. 2011) has 25,000 film reviews to train on and 25,000 to test, half of
# them positive. They are too many to load in every run of this notebook, so their numbers come from the *ledger*,
# `results/`, where recorded and seeded runs are kept. All settings, also when to stop, were chosen on a tenth of the training reviews, another tenth for each seed; the test reviews decided nothing. **How accurate is a model that knows which words occur, and nothing of their order?**

# %%
imdb_guess = predict("its accuracy on IMDB's test reviews, in per cent", ...)

# %% tags=["fold"]
# @title Recorded accuracies on IMDB
IMDB_MODELS = {
    "words, counted": "unigrams, counts",
    "words, once": "unigrams, binary",
    "words and pairs, once": "unigrams + bigrams, binary",
}
imdb = {shown: ledger.values("imdb-bow", name, "accuracy") for shown, name in IMDB_MODELS.items()}
imdb["averaged embeddings"] = ledger.values("imdb-embeddings", "averaged embeddings", "accuracy")

# %% tags=["reveal"]
figures.imdb_accuracy(imdb)

# %% tags=["fold", "reveal"]
# @title In numbers, seed by seed
claim(
    "Words without order are right on more than 85 % of the test reviews, in each of three seeds.",
    min(imdb["words, counted"] + imdb["words, once"] + imdb["averaged embeddings"]) > 0.85,
    once=imdb["words, once"],
)
pair_gain = [
    100 * (pairs - once)
    for once, pairs in zip(imdb["words, once"], imdb["words and pairs, once"], strict=True)
]
repeats_gain = [
    100 * (counted - once)
    for once, counted in zip(imdb["words, once"], imdb["words, counted"], strict=True)
]
claim(
    "Pairs of neighbouring words, as further features, add more than 2 points in each seed. Counting repeats makes less than 1 point of difference, and its sign changes with the seed.",
    min(pair_gain) > 2
    and max(map(abs, repeats_gain)) < 1
    and min(repeats_gain) < 0 < max(repeats_gain),
    pairs=pair_gain,
    repeats=repeats_gain,
)
imdb_guess.compare([f"{100 * found:.3g} %" for found in imdb["words, once"]])

# %% [markdown]
# What has the model learned? Its weights can be read, which is one more reason to begin with it.

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

# %% [markdown]
# And the two sentences from the beginning? To IMDB's model of single words they are the same, of course. The model with pairs does tell them apart:

# %% tags=["fold"]
# @title The two sentences, read by IMDB's models
praise, blame, pairs_praise, pairs_blame = (
    ledger.values("imdb-bow", name, f"logit_{side}")
    for name in ("unigrams, binary", "unigrams + bigrams, binary")
    for side in ("praise", "blame")
)
claim(
    "Single words give both sentences the same logit. Pairs give them different logits, and in each of three seeds the praise gets the lower one.",
    all(abs(a - b) < 1e-4 for a, b in zip(praise, blame, strict=True))
    and all(a < b for a, b in zip(pairs_praise, pairs_blame, strict=True)),
    **{"with pairs, praise": pairs_praise, "blame": pairs_blame},
)

# %% [markdown]
# Hardly different, and the wrong way round. So a model can be right on nine reviews in ten and still fail on five words: most often the words alone give the verdict away. *A high score on a
# benchmark does not prove the ability that you had in mind.*
#
# ### Where is the verdict?
#
# One more question to the bag, which will matter when chapter 05 cuts long reviews. Of all reviews with 150 tokens or more, one model reads only the first 50 tokens, one the middle 50, one the last 50. **Which is most often right?**

# %%
where_guess = predict("the place whose 50 tokens tell most: first, middle or last", ...)

# %% tags=["fold"]
# @title Recorded accuracies of the three pieces
ends = {
    f"{place} 50 tokens": ledger.values("imdb-ends", place, "accuracy")
    for place in ("first", "middle", "last")
}

# %% tags=["reveal"]
figures.imdb_ends(ends)

# %% tags=["fold", "reveal"]
# @title The same in numbers
claim(
    "In each of three seeds the last 50 tokens give more than 4 points more than the first or the middle 50.",
    all(
        last > max(first, middle) + 0.04
        for first, middle, last in zip(*ends.values(), strict=True)
    ),
    **ends,
)
where_guess.compare("last")

# %% [markdown]
# As far as single words can tell, these reviewers give their verdict last. If you must cut such reviews, keep the end.

# %% [markdown]
# ### Exercise 2.5 · Explore and explain: how much order do n-grams see?
#
# Difficulty ●●●○○ · 30 minutes · needs section 6
#
# A bag of *bigrams* sees `not great` as one feature. `ngram_experiment` trains a bag of all n-grams up to `n` on the mirrored reviews. It returns the number of features, the accuracy on the test reviews, the
# accuracy on each pattern of the grammar (in a pattern, YES is what the reviewer holds, NO what is denied), and the n-grams with the largest weights. Change `n` to
# 2, 3 and 5, and try fewer training reviews.


# %% tags=["fold"]
# @title The experiment, and the patterns
def ngrams(tokens, n):
    """The tokens and their runs of 2 to n, each run written as one token."""
    starts = [(i, k) for k in range(1, n + 1) for i in range(len(tokens) - k + 1)]
    return [" ".join(tokens[i : i + k]) for i, k in starts]


def of_pattern(pattern):
    """Every review of one pattern, with its label."""
    sides = [(synthetic.GOOD, synthetic.BAD, 1), (synthetic.BAD, synthetic.GOOD, 0)]
    return [
        (pattern.format(thing=thing, yes=yes, no=no) + " .", label)
        for yes_words, no_words, label in sides
        for thing, yes, no in product(synthetic.THINGS, yes_words, no_words)
    ]


def ngram_experiment(n, reviews=1600):
    """Features, test accuracy, accuracy on each pattern, and the five strongest n-grams of either side."""
    inputs = [ngrams(row, n) for row in train_tokens[:reviews]]
    gram_vocab = text.build_vocab(inputs)
    model = train_bag(inputs, train_labels[:reviews], gram_vocab)

    def accuracy(pairs):
        """The fraction of the reviews whose label the model finds."""
        rows = [ngrams(text.tokenize(review), n) for review, _ in pairs]
        right = (logits_of(model, rows, gram_vocab) > 0) == torch.tensor([y for _, y in pairs])
        return right.float().mean().item()

    by_weight = [gram_vocab.itos[i] for i in model.weight.argsort().tolist()]
    strongest = {"for praise": by_weight[::-1][:5], "for blame": by_weight[:5]}
    by_pattern = [accuracy(of_pattern(pattern)) for pattern in synthetic.JUDGEMENTS]
    return len(gram_vocab), accuracy(test_reviews), by_pattern, strongest


for k, pattern in enumerate(synthetic.JUDGEMENTS, start=1):
    print(k, pattern.format(thing="film", yes="YES", no="NO"))

# %% tags=["nbval-ignore-output"]
n = 1  # your turn: 2, 3, 5
features, accuracy, by_pattern, strongest = ngram_experiment(n, reviews=1600)
print(f"n = {n}: {features} features, accuracy {accuracy:.2f}")
print("by pattern, 1 to 8:", *(f"{value:.2f}" for value in by_pattern))
if n > 1:  # single words all have a weight near 0
    print(strongest)

# %% [markdown]
# Then explain in a few sentences. (a) Which patterns does the bag of bigrams get right, by which bigrams, and why does n = 3 settle the others?
# (b) What happens to the number of features, and why does it matter? (c) Write a review that no bag of n-grams with your largest n could judge, and say what a model must be able to do instead.

# %% [markdown] nbgrader={"grade": true, "grade_id": "ex02-5-explain", "locked": false, "points": 3, "schema_version": 3, "solution": true, "task": false}
# ### BEGIN SOLUTION
# (a) Patterns 1, 2, 5 and 6, completely: the word *before* the judged one tells what is meant, `not NO` in 1 and 2, `be NO` against `was YES` in 5 and 6; the strongest n-grams are of these kinds.
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
# When you have written your answer, paste it in place of the three dots; at 20 words or more you are told what a good answer contains.

# %%
ch02.ngrams_and_order.compare(...)

# %% [markdown]
# ## 7 · BLEU: scoring text that a model wrote
#
# At the other end of a model, tensors become text again, and somebody must say how good it is. For a translation there is no
# single right answer. *BLEU* (Papineni et al. 2002) compares a *hypothesis*, the model's text, with one or more human *references*. How many of its *n-grams*, runs of $n$ tokens, does a reference have too?

# %% tags=["fold"]
# @title Diagram: the parts of BLEU
diagrams.show("bleu_parts")

# %% [markdown]
# **Clipped precision.** Over all sentences $i$ of a test set, with $g$ running through the *different* n-grams of hypothesis $i$ and $j$ through its references,
#
# $$ p_n = \frac{\sum_i \sum_g \min\big(\mathrm{count}_{\mathrm{hyp}_i}(g),\ \max_j \mathrm{count}_{\mathrm{ref}_{ij}}(g)\big)}{\sum_i \sum_g \mathrm{count}_{\mathrm{hyp}_i}(g)}. $$
#
# An n-gram may match as often as the *one* reference that has it most often. Without this clip, *great great
# great great* would have $p_1 = 1$ against any reference with one *great*.
#
# **Brevity penalty.** Precision rewards saying little. So BLEU compares lengths: $c$ tokens in all hypotheses, $r$ in
# the references closest in length (of two equally close, the shorter),
#
# $$ \mathrm{BP} = \min\big(1,\ e^{1 - r/c}\big). $$
#
# **The mean.** The geometric mean of $p_1$ to $p_4$, times BP, on the scale of 0 to 100:
#
# $$ \mathrm{BLEU} = 100 \cdot \mathrm{BP} \cdot (p_1 \, p_2 \, p_3 \, p_4)^{1/4}. $$
#
# Here is the picture's sentence, part by part. (`metrics.modified_precision` counts; you write it in exercise 2.6.)

# %%
hypothesis = "the plot of the film is not good".split()
reference = "the plot of this film is not good either".split()
p = []
for n_words in (1, 2, 3, 4):
    matches, total = metrics.modified_precision([hypothesis], [[reference]], n_words)
    p.append(matches / total)
    print(f"p{n_words} = {matches}/{total}")
BP = min(1, math.exp(1 - len(reference) / len(hypothesis)))
print(f"BP = {BP:.2f}, BLEU = {100 * BP * math.prod(p) ** (1 / 4):.1f}")
print(f"the library: {metrics.bleu([hypothesis], [[reference]]):.1f}")

# %% [markdown]
# If one $p_n$ is 0, BLEU is 0, as often happens to a single short sentence. And few translations reach 100, even human ones: in the paper a human translator scored 35 against four references, and 26 against two (on its scale of 0 to 1: 0.35 and 0.26). There are many right ways to say a thing, and the references hold a few of them. So scores
# are comparable only with the same references and the same tokens; papers therefore report `sacrebleu`, the standard implementation, with its *signature*, which names the settings (see *Going deeper*).
#
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
    "'fine' and 'bad' get exactly the same BLEU, though one of them contradicts the reference, and a good paraphrase gets 0.",
    fine == opposite > 0 == paraphrase,
    BLEU=fine,
)

# %% [markdown]
# BLEU counts shared n-grams, no more. It says little about one sentence. Over a whole test set it is used to compare versions of one system;
# small differences prove little. Use it for such comparisons, and look at real outputs too.

# %% [markdown]
# ### Exercise 2.6 · Clipped precision with several references
#
# Difficulty ●●●○○ · 20 minutes · needs section 7
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
# Difficulty ●●●○○ · 15 minutes · needs section 7
#
# - hypothesis: *the cast and the script were both weak* (8 words)
# - reference: *cast and script were very weak in the second half* (10 words)
#
# With pencil and paper, find $p_1$, $p_2$, the brevity penalty, and BLEU-2, which is BLEU with the geometric mean of $p_1$ and $p_2$ only,
# on the scale 0 to 100. Three digits each.

# %% nbgrader={"grade": false, "grade_id": "ex02-7-bleu-by-hand", "locked": false, "schema_version": 3, "solution": true, "task": false}
parts = ...  # (p1, p2, BP, BLEU-2)
### BEGIN SOLUTION
brevity = 2.718281828 ** (1 - 10 / 8)
parts = (6 / 8, 2 / 7, brevity, 100 * brevity * (6 / 8 * 2 / 7) ** 0.5)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex02-7-bleu-by-hand-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.bleu_by_hand(parts)

# %% [markdown]
# ## 8 · Errors you will meet
#
# Two raise an error, two do not. (The padded mean of section 4 is the fifth.)
#
# **An id that the embedding does not have.** The vocabulary was built again, with more texts, after the model was made.

# %%
table_of_60 = nn.Embedding(60, 4)  # V = 60
try:
    table_of_60(torch.tensor([[5, 60]]))  # wrong: ids go from 0 to 59
except IndexError as error:
    print("IndexError:", error)
print("repaired:", tuple(nn.Embedding(61, 4)(torch.tensor([[5, 60]])).shape))

# %% [markdown]
# Build the vocabulary once, give its size to the model, and save the two together.
#
# **Integer labels for one logit.** `cross_entropy` is usually given class numbers, integers; with one logit the label is a probability, so it must be a float.

# %%
one_logit_each, labels = torch.tensor([0.3, -0.2]), torch.tensor([1, 0])
try:
    F.binary_cross_entropy_with_logits(one_logit_each, labels)
except RuntimeError as error:
    print("RuntimeError:", error)
repaired = F.binary_cross_entropy_with_logits(one_logit_each, labels.float())
print(f"repaired: loss {repaired:.2f}")

# %% [markdown]
# **A vocabulary that has seen the test set**, built on all the data "to be safe". No error is raised.


# %%
def unknown_rate(tokens, vocab):
    """The fraction of the tokens that become <unk>."""
    found = text.numericalize(tokens, vocab)
    return found.count(text.UNK) / len(found)


leaky = text.build_vocab([seen["words"], unseen["words"]])  # wrong
honest = text.build_vocab([seen["words"]])  # repaired: training text only

# %% tags=["fold"]
# @title What the two vocabularies report on the last tenth
claim(
    "The leaky vocabulary reports an `<unk>` rate of 0; the honest one, more than 2 %.",
    unknown_rate(unseen["words"], leaky) == 0 and unknown_rate(unseen["words"], honest) > 0.02,
    honest=f"{100 * unknown_rate(unseen['words'], honest):.2g} %",
)

# %% [markdown]
# Do not expect a rate of 0 on your users' texts. *Whatever is fitted, is fitted on the training part only*, the vocabulary too.
#
# **The average of sentence BLEUs.** BLEU *sums* matches, totals and lengths over the corpus, and divides once. Some scripts score each sentence and average. System A spoils one short
# sentence and gets a long one right; system B the other way round:

# %%
long = "we saw it on sunday and the film was great although critics called it dull"
spoiled = "we saw it on sunday and a movie is good but the critics found that boring"
two_references = [[long.split()], ["the cast was great".split()]]
systems = {
    "A": [long.split(), "a cast is good".split()],
    "B": [spoiled.split(), "the cast was great".split()],
}
for name, output in systems.items():
    each = [metrics.bleu([h], [r]) for h, r in zip(output, two_references, strict=True)]
    print(f"{name}: corpus {metrics.bleu(output, two_references):.0f}", end=", ")
    print(f"mean of sentences {sum(each) / 2:.0f}")

# %% [markdown]
# The corpus score prefers A, which has more words right; the mean of sentences prefers B.

# %% [markdown]
# ## Summary
#
# 1. Text is tokenised, numbered, padded and looked up: strings become ids (B, T) with a mask, then vectors (B, T, D). An embedding is a one-hot row times a matrix, computed as a look-up.
# 2. Words give a large V, characters a long T; BPE turns the dial. Words outside the vocabulary become `<unk>`; fit it on the training part only and report the rate.
# 3. Padding makes rectangles, and the mask undoes them: pad further, and nothing should change. Buckets save the work.
# 4. A bag of words is a strong baseline and blind to order: on mirrored reviews no weights help.
# 5. BLEU counts n-grams over a corpus and is blind to meaning.
#
# | step | keeps | loses or adds | how you notice |
# |---|---|---|---|
# | tokenise | the words | capitals, spaces | read the tokens of ten texts |
# | number | frequent tokens | rare ones become `<unk>` | the `<unk>` rate on held-out text |
# | pad | everything | entries that are not text | pad further: nothing should change |
# | look up | everything | nothing | the shape: (B, T) becomes (B, T, D) |
# | bag | which words | their order | contrast pairs |
# | BLEU | shared n-grams | the meaning | read the output |
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
# - K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, *BLEU: a method for automatic evaluation of machine translation*, ACL 2002: sections 2.1 (clipping), 2.2 (brevity), 2.3 (the score) and 3 (a human translator's).
# - M. Post, *A call for clarity in reporting BLEU scores*, WMT 2018, arXiv 1804.08771: why published scores differ, and sacrebleu.
# - A. Maas et al., *Learning word vectors for sentiment analysis*, ACL 2011: the IMDB reviews.
# - S. Wang, C. Manning, *Baselines and bigrams: simple, good sentiment and topic classification*, ACL 2012: sections 2 and 4.
# - Video: *Deep Learning for Natural Language Processing*, https://youtu.be/6D4EWKJgNn0: from text to vectors to sequence models, in one lecture.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question.

# %% [markdown] tags=["deeper"]
# ### Does a larger vocabulary remove `<unk>`?
#
# A few words are very frequent and most are rare (*Zipf's law*: the k-th most frequent word occurs about in proportion to $1/k$). So a short list covers most of a running text, and each additional word covers less. Measured on the
# text that the vocabulary was built from, the rate of `<unk>` falls to 0, which flatters large vocabularies. And on the held-out tenth of section 3?

# %%
frequent_first = [token for token, _ in Counter(seen["words"]).most_common()]
sizes = [100, 300, 1000, 3000, len(frequent_first)]
kept_words = [set(frequent_first[:size]) for size in sizes]
rates, both = {}, {"training text": seen, "held-out text": unseen}
for name, part in both.items():
    its_words = part["words"]
    unknown = [sum(word not in kept for word in its_words) for kept in kept_words]
    rates[name] = [100 * number / len(its_words) for number in unknown]

# %% tags=["reveal"]
figures.unknown_by_size(sizes, rates)

# %% [markdown] tags=["deeper"]
# ### What do buckets cost, and do they work in large batches?
#
# The larger a batch, the more likely it holds one very long review. Does bucketing still help?

# %%
batch_sizes = [1, 2, 4, 8, 16, 32, 64, 128]
waste = {"shuffled": [], "bucketed": []}
for size in batch_sizes:
    random_order = torch.Generator().manual_seed(size)
    any_order = torch.randperm(1600, generator=random_order).split(size)
    waste["shuffled"].append(padding_of([b.tolist() for b in any_order]))
    by_length = text.bucket_batches(review_lengths, size, random_order)
    waste["bucketed"].append(padding_of(list(by_length)))
figures.padding_by_batch_size(batch_sizes, waste)

# %% [markdown]
# The price is less randomness. Of the pairs of reviews that share a batch of 32 in one epoch, how
# many share one again in the next?


# %% tags=["fold"]
# @title Pairs that meet again
def meetings(batches):
    """All pairs of reviews that share a batch."""
    return {pair for batch in batches for pair in combinations(sorted(batch), 2)}


def meet_again(one_epoch):
    """The fraction of the pairs of one epoch that meet in the next, too."""
    epoch_1, epoch_2 = meetings(one_epoch()), meetings(one_epoch())
    return len(epoch_1 & epoch_2) / len(epoch_1)


epoch_order = torch.Generator().manual_seed(3)
by_chance = meet_again(
    lambda: [b.tolist() for b in torch.randperm(1600, generator=epoch_order).split(32)]
)
in_buckets = meet_again(lambda: text.bucket_batches(review_lengths, 32, epoch_order))
claim(
    "More than a third of the pairs meet again in the next epoch; of shuffled ones, fewer than 1 in 30.",
    in_buckets > 1 / 3 and by_chance < 1 / 30,
    bucketed=in_buckets,
    shuffled=by_chance,
)

# %% [markdown]
# Here all 50 batches are in a single pool. On large data sets there are many pools, filled anew in each epoch, and the
# price is lower.

# %% [markdown] tags=["deeper"]
# ### How much padding do real reviews need, and what does cutting lose?
#
# A common choice is to cut or pad every review of IMDB to 200 tokens. What fraction of all tokens is thrown away?


# %% tags=["fold"]
# @title Recorded facts about the reviews' lengths
def recorded(metric):
    """A recorded fact about the reviews' lengths (first seed's training part)."""
    return ledger.values("imdb-padding", "lengths", metric)[0]


def padding_mean(way, metric):
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
    "padding": "fraction of padding",
    "tokens_lost": "fraction of the text cut off",
    "entries_per_review": "cells per review",
}
markdown(ledger.table("imdb-padding", COLUMNS, WAYS))
claim(
    "Cut at 200 tokens, more than a third of the text is never seen; buckets keep every token in less than a third of the cells of random batches.",
    padding_mean("fixed: 200 tokens", "tokens_lost") > 1 / 3
    and padding_mean("per batch, bucketed", "tokens_lost") == 0
    and padding_mean("per batch, bucketed", "entries_per_review")
    < padding_mean("per batch, random", "entries_per_review") / 3,
)

# %% [markdown]
# A fixed length looks cheap in the table because it throws text away. If you must
# cut, choose the length on validation data and report what is lost.

# %% [markdown] tags=["deeper"]
# ### Which traps does torchtext 0.6.0 hold?
#
# **1. Looking up an unknown word stores it.** In torchtext `vocab.stoi` is a `defaultdict`: a look-up of an unknown token returns the id of `<unk>`, and also *enters* the token into the dictionary. `Field` looks up
# every token of every batch. So after one pass over new text, `token not in vocab.stoi` is false for all its words:

# %%
growing = copy.deepcopy(torchtext_vocab)
new_review = text.tokenize("A hilarious, gripping film: the finale was great!")
for moment in ("before", "after"):
    unknown = sum(token not in growing.stoi for token in new_review)
    print(f"{moment}: {unknown} unknown of {len(new_review)} tokens", end="; ")
    print(f"{len(growing.stoi)} entries")
    for token in new_review:
        growing.stoi[token]  # what Field does with each token

# %% [markdown]
# Count the ids that equal `UNK` instead, as `unknown_rate` does, or use a vocabulary that does not grow, such as the course's.
#
# **2. `BucketIterator` makes no buckets.** Most examples pass a `sort_key` and expect that texts of similar length come together. For the training split that happens only with `sort_within_batch=True`, and its
# default there is `False`.

# %% tags=["fold"]
# @title Padding with and without sort_within_batch
from torchtext.data import BucketIterator, Dataset, Example, Field

fields = list(zip(("text", "label"), torchtext_tour.review_fields(), strict=True))
torchtext_data = Dataset([Example.fromlist(review, fields) for review in train_reviews], fields)


def torchtext_padding(**options):
    """The fraction of padding in one epoch of BucketIterator over the training reviews."""
    iterator = BucketIterator(
        torchtext_data, batch_size=32, sort_key=lambda review: len(review.text), **options
    )
    iterator.random_shuffler.random_state = random.Random(0).getstate()
    iterator.create_batches()
    rows = [[len(review.text) for review in batch] for batch in iterator.batches]
    return 1 - sum(map(sum, rows)) / sum(len(row) * max(row) for row in rows)


plain_call, sorting_call = torchtext_padding(), torchtext_padding(sort_within_batch=True)
claim(
    "With `sort_key` alone BucketIterator pads like shuffled batches; with `sort_within_batch=True`, less than a third of that.",
    abs(plain_call - padding_of(shuffled)) < 0.03 and sorting_call < plain_call / 3,
    **{"sort_key alone": f"{100 * plain_call:.3g} %", "with it": f"{100 * sorting_call:.2g} %"},
)

# %% [markdown]
# **3. There is no mask.** A `Field` returns ids and nothing else. Ask for the lengths with `include_lengths=True`, and make the mask of them:

# %%
two_texts = [["not", "dull"], ["the", "cast", "was", "great"]]
with_lengths = Field(batch_first=True, include_lengths=True)
with_lengths.vocab = vocab
field_ids, field_lengths = with_lengths.process(two_texts)
print("ids", tuple(field_ids.shape), "lengths", field_lengths.tolist())
print(text.length_mask(field_lengths).int())

# %% [markdown]
# A smaller trap: a `LabelField` with a vocabulary numbers the labels by frequency, so that *positive* may become 0. `review_fields` keeps the 0 and 1 of the data.

# %% [markdown] tags=["deeper"]
# ### Can other weights help against mirrored reviews?
#
# No, and not only the accuracy is stuck. A pair with the logits $z, z$ and the labels 1, 0 costs, per review,
#
# $$ -\tfrac12 \big[ \ln \sigma(z) + \ln \sigma(-z) \big] \ge \ln 2, $$
#
# with equality only at $z = 0$. So every set of weights has a loss of at least $\ln 2$, the loss of knowing nothing.


# %% tags=["fold"]
# @title The loss of random and of fitted weights
def nats_per_review(model):
    """Mean loss on the test reviews, without the penalty."""
    found = logits_of(model, test_tokens, vocab)
    return F.binary_cross_entropy_with_logits(found, test_labels.float()).item()


random_model = bag_of_words.BagOfWords(len(vocab))
random_model.weight.data.normal_(generator=torch.Generator().manual_seed(0))
claim(
    "Random weights cost more than ln 2 nats per review, the fitted ones ln 2.",
    nats_per_review(random_model) > math.log(2) + 0.01
    and abs(nats_per_review(words_model) - math.log(2)) < 1e-5,
    random=nats_per_review(random_model),
    fitted=nats_per_review(words_model),
    ln_2=math.log(2),
)

# %% [markdown] tags=["deeper"]
# ### Which BLEU is the BLEU?
#
# BLEU counts tokens, so it changes with the tokeniser. The same pair of
# sentences, scored in four ways:

# %%
film_hypothesis = "It's a great film, isn't it? The U.S. cast was GREAT!"
film_reference = "It's a great film, is it not? The US cast was great!"

# %% tags=["fold", "reveal"]
# @title Four scores of one pair
four_ways = {
    "split at spaces": metrics.bleu([film_hypothesis.split()], [[film_reference.split()]]),
    "our tokeniser, lower-cased": metrics.bleu(
        [text.tokenize(film_hypothesis)], [[text.tokenize(film_reference)]]
    ),
    "sacrebleu on the raw strings": sacrebleu.corpus_bleu(
        [film_hypothesis], [[film_reference]]
    ).score,
    "single characters": sacrebleu.corpus_bleu(
        [film_hypothesis], [[film_reference]], tokenize="char"
    ).score,
}
table(["tokens", "BLEU"], [[name, found] for name, found in four_ways.items()])
among_words = [found for name, found in four_ways.items() if name != "single characters"]
claim(
    "One hypothesis, one reference, and scores that differ by more than 10 points, even among words.",
    max(among_words) - min(among_words) > 10,
)

# %% [markdown]
# The repair (Post 2018): *detokenise* the output to plain text, give that to sacrebleu, and publish the signature beside the score. It says
# how many references there were, and which case, tokeniser and smoothing were used. (sacrebleu smooths a $p_n$ of 0 unless told not to: `smooth:exp`.) Scores with different signatures are not comparable.

# %%
scorer = sacrebleu.metrics.BLEU()
score = scorer.corpus_score([film_hypothesis], [[film_reference]])
signature = str(scorer.get_signature())  # a paper gives the version, too
print(f"BLEU = {score.score:.1f}   {signature.partition('|version')[0]}")

# %% [markdown]
# And is the course's BLEU sacrebleu's? On 40 noisy sentences with two references each, over the same tokens and without smoothing:


# %% tags=["fold"]
# @title Check: ours is sacrebleu's
def noisy(tokens, rng):
    """A sentence with a tenth of its words dropped and a tenth replaced."""
    kept = [token if rng.random() < 0.9 else "film" for token in tokens if rng.random() < 0.9]
    return kept or tokens


rng = random.Random(4)
noisy_hypotheses = [noisy(row, rng) for row in test_tokens[:40]]
noisy_references = [[noisy(row, rng), noisy(row, rng)] for row in test_tokens[:40]]
ours = metrics.bleu(noisy_hypotheses, noisy_references)
theirs = sacrebleu.corpus_bleu(
    [" ".join(h) for h in noisy_hypotheses],
    [[" ".join(r[j]) for r in noisy_references] for j in range(2)],
    tokenize="none",
    smooth_method="none",
).score
one_reference = metrics.bleu(noisy_hypotheses, [r[:1] for r in noisy_references])
ten, eight, eleven = list("abcdefghij"), list("abcdefgh"), list("abcdexyzuvw")
short_only = metrics.bleu([ten], [[eight]])
with_longer = metrics.bleu([ten], [[eight, eleven]])
claim("Ours is sacrebleu's.", abs(ours - theirs) < 1e-9, ours=ours, sacrebleu=theirs)
claim(
    "Here a second reference raises the score. In another example it lowers it, because $r$ grows too, from 8 to 11.",
    ours > one_reference and with_longer < short_only,
    **{"one reference, two": [one_reference, ours], "the other example": [short_only, with_longer]},
)
