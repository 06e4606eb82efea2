# ---
# jupyter:
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
#   course:
#     minutes: 230
#     needs: chapter 01, a first month of PyTorch
# ---

# %% [markdown]
# # 02 · Text to tensors
#
# A model never sees text. It sees a tensor that somebody made from text, and no amount of training brings back what was left out on the way.

# %% tags=["fold"]
# @title Diagram: what will it say?
from course_lib.notebook import diagrams

diagrams.show("two_sentences")

# %% tags=["setup", "fold"]
# @title Imports
import copy
import itertools
import math
import random
from collections import Counter
from itertools import combinations, pairwise, product

import sacrebleu
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader
from tqdm import tqdm

from course_lib import bag_of_words, bpe, datasets, metrics, text
from course_lib.datasets import synthetic
from course_lib.exercises import ch02
from course_lib.notebook import claim, diagrams, ledger, markdown, predict, table, torchtext_tour
from course_lib.notebook.figures import ch02 as figures

torch.set_printoptions(precision=2, sci_mode=False)
_ = torch.manual_seed(0)

# %% tags=["fold"]
# @title A classifier, trained on 96 reviews
FORMS = ("the {thing} was {word}", "what a {word} {thing}!")
plain = [
    (FORMS[k % 2].format(thing=thing, word=word), label)
    for words, label in ((synthetic.GOOD, 1), (synthetic.BAD, 0))
    for word in words
    for k, thing in enumerate(synthetic.THINGS)
]
sentences = ["not terrible, it's great", "not great, it's terrible"]

hook_tokens = [text.tokenize(review) for review, _ in plain]
hook_labels = torch.tensor([label for _, label in plain])
# The words of both sentences are in the vocabulary: none is unknown.
hook_vocab = text.build_vocab([*hook_tokens, *map(text.tokenize, sentences)])
hook_ids = [text.numericalize(tokens, hook_vocab) for tokens in hook_tokens]
hook = bag_of_words.BagOfWords(len(hook_vocab))
_ = bag_of_words.fit_bag_of_words(hook, hook_ids, hook_labels, l2=1e-3)

# %% [markdown]
# Here is a classifier that is right on all of its 96 training reviews, such as *the film was great* or *what a dull plot!* Now it reads two new
# sentences: *not terrible, it's great* and *not great, it's terrible*. **What will it say about them?**

# %%
# A guess looks like this: "positive, negative".
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
# In this model *great* counts for praise exactly as much as *terrible* counts against it, wherever in the sentence they stand, and the two cancel. The classifier reads a *bag of words*: it adds up which words
# occur, and forgets where. The two sentences are the same bag, so no weights can tell
# them apart.
#
# In this chapter you walk the whole road, from a string to a trained classifier, in plain Python and a few tensor lines. At every step we ask:
# **what does it keep, and what does it lose?**

# %% tags=["fold"]
# @title This chapter in a picture
diagrams.show("text_pipeline")

# %% [markdown]
# *Plan two sittings: the road and two repairs (sections 1 to 7, a good two hours), then bags of words, errors and BLEU (8 to 10, an hour and a half).*
#
# ### You will be able to
#
# 1. keep the padding out of every sum and mean (exercise 2.1);
# 2. learn a subword vocabulary by byte-pair encoding (2.2);
# 3. turn strings into padded batches with a mask, from your own parts (2.3), and compute how much of them is padding (2.4);
# 4. train a bag of words, and say which reviews it must fail on (2.5);
# 5. compute BLEU from its parts, and name what it cannot see (2.6, 2.7).
#
# **Letters.** `B` texts in a batch, `T` tokens in the longest of them, `V` tokens in the vocabulary, `D` numbers in each token's vector. Masks are
# boolean, and `True` means *a real token*. Some PyTorch functions use the opposite convention (`True` means *ignore this entry*), so check each time.

# %% [markdown]
# ## 1 · From strings to ids
#
# We begin with three reviews, and print everything along the way.
#
# First we cut each string into *tokens*, here lower-cased words and punctuation marks. The marks stand alone, so that the word in *dull!* is
# the same token as *dull*. Something is lost already: `US` and `us` become one, and a shouted `GREAT` reads like any other.

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
# Next, each different token gets a number, its *id*. The *vocabulary* is the list of all tokens with their ids. We number tokens by falling frequency, with ties in alphabetical
# order, so that every run gives the same ids. The first two ids are special: `<unk>` (0) stands for every token that the vocabulary does
# not know, and `<pad>` (1) will fill empty places.

# %%
counts = Counter(token for row in tokens for token in row)
by_frequency = sorted(counts, key=lambda token: (-counts[token], token))
UNK, PAD = 0, 1
itos = ["<unk>", "<pad>", *by_frequency]  # id -> token: "int to string"
stoi = {token: i for i, token in enumerate(itos)}  # token -> id: "string to int"
print(counts.most_common(3))
print(len(itos), "ids:", itos)

# %% [markdown]
# Now every token can be looked up. Watch what becomes of a new review:

# %%
ids = [[stoi.get(token, UNK) for token in row] for row in tokens]
for row in ids:
    print(row)
new_ids = [stoi.get(token, UNK) for token in cut("The cast was hilarious!")]
print("a new review:", new_ids, "->", *(itos[i] for i in new_ids))

# %% [markdown]
# The new review comes back as *the cast was &lt;unk&gt; !* The one word that carried the verdict is lost, and no layer can know which it was. Section 6 measures how often that happens, and repairs it.
# First the three lists of ids must become one tensor.

# %% [markdown]
# ## 2 · From ids to a padded batch
#
# A network reads many texts at once: a *batch*, one tensor with a row for each text. But a tensor is a rectangle, and texts are not:

# %%
try:
    torch.tensor(ids)
except ValueError as error:
    print("ValueError:", error)

# %% [markdown]
# So we extend the shorter rows on the right with the id of `<pad>`, until all have the length $T$ of the longest. A *mask* remembers which entries are real. With $\ell_b$ the length of text $b$,
#
# $$ \mathrm{real}[b, t] = (t < \ell_b), \qquad b = 0 \ldots B-1, \quad t = 0 \ldots T-1. $$

# %%
T = max(len(row) for row in ids)
batch = torch.tensor([row + [PAD] * (T - len(row)) for row in ids])
lengths = torch.tensor([len(row) for row in ids])  # (B,)
real = torch.arange(T) < lengths[:, None]  # (T,) < (B, 1) -> (B, T)
print("ids", tuple(batch.shape), batch, "real", real.int(), sep="\n")

# %% [markdown]
# `batch[real]` gives back the 14 real tokens and nothing else. We have a tensor at last. But its numbers are only names, and a network cannot
# compute with names.

# %% [markdown]
# ## 3 · From ids to vectors
#
# Id 7 is not *more* than id 6; it only names another word. So every token gets $D$ numbers of its own: its row in a table $W$ of shape (V, D). The id says which row to take.
# The table is called an *embedding*. Its numbers begin at random, and training moves them, so that words with a similar effect can end up with similar vectors (section 5 looks at some).
#
# You will also see the look-up written as a product. The *one-hot* vector of token $i$ has $V$ places, all zero except for a 1 in place $i$. Multiplied by $W$, it picks row $i$. (One-hot vectors alone say nothing about likeness: any two are equally far apart.)

# %% tags=["fold"]
# @title Diagram: a one-hot row picks a row of W
diagrams.show("one_hot_lookup")

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
# The numbers are the same; the cost is not. For 128 reviews of 200 tokens and a vocabulary of 50,000, the one-hot rows would take 128 · 200 ·
# 50,000 numbers, or 5 GB as 32-bit floats; the ids, 64-bit integers, take 0.2 MB. So models look rows up: `nn.Embedding(V, D)` holds $W$ as a parameter and returns the rows you ask for.
#
# Each review is now a row of $T$ vectors. The last three of the second review are equal, because all three are `<pad>`. They must have no say in the
# verdict.

# %% [markdown]
# ## 4 · Keep the padding out
#
# A verdict needs one summary of each text. The simplest is the sum of its vectors. We put sections 1 and 2 into one function, `to_batch`. Then we sum up *Not dull!* twice: alone, and in the batch
# of three. **Will the sums be the same?**


# %%
def to_batch(texts, stoi):
    """Texts -> ids (B, T) and real (B, T)."""
    rows = [[stoi.get(token, UNK) for token in cut(string)] for string in texts]
    T = max(len(row) for row in rows)
    ids = torch.tensor([row + [PAD] * (T - len(row)) for row in rows])
    return ids, torch.arange(T) < torch.tensor([[len(row)] for row in rows])


alone, alone_real = to_batch(["Not dull!"], stoi)  # (1, 3)
print("alone:       ", W[alone].sum(dim=1)[0])
print("in the batch:", W[batch].sum(dim=1)[1])

# %% [markdown]
# No: the sum depends on the longest review of its batch! In the batch, half of its terms are padding, since `<pad>` has a vector like every other token. The repair is to add up real vectors only. With $x_{bt}$ the vector at step $t$ of row $b$,
#
# $$ s_b = \sum_t \mathrm{real}[b, t] \; x_{bt}. $$

# %% tags=["fold"]
# @title Diagram: the mask times the vectors, then the sum
diagrams.show("masked_sum")

# %%
alone_kept = W[alone] * alone_real[:, :, None]  # (1, 3, D) * (1, 3, 1)
batch_kept = W[batch] * real[:, :, None]  # (B, T, D) * (B, T, 1): padding becomes 0
print("alone:       ", alone_kept.sum(dim=1)[0])
print("in the batch:", batch_kept.sum(dim=1)[1])

longer, longer_real = F.pad(alone, (0, 47), value=PAD), F.pad(alone_real, (0, 47))
longer_kept = W[longer] * longer_real[:, :, None]  # (1, 50, D) * (1, 50, 1)
print("padded to 50:", longer_kept.sum(dim=1)[0])

# %% [markdown]
# A forgotten mask raises no error, and the loss can still fall; the symptom may be only a slightly worse score. So test for it, as the last three lines do: *pad further, and nothing should change.*
#
# Divided by the number of real tokens, the sum becomes their *mean*: you write it in the exercise. Then only the verdict is missing.

# %% [markdown]
# ### Exercise 2.1 · Find the bug: a mean that knows its mask
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
# What happens to the short rows, and why not to the longest? (A plain mean with a zero vector for `<pad>`, as `nn.Embedding(V, D, padding_idx=1)` keeps it, comes to the same as this function.) Write the version that is right for every row, however far
# the batch is padded. A row without any real token must give zeros, not `nan`, and its gradients must be finite too.


# %% nbgrader={"grade": false, "grade_id": "ex02-1-masked-mean", "locked": false, "schema_version": 3, "solution": true, "task": false}
def masked_mean(vectors, mask):
    """Mean of the real tokens' vectors, row by row.

    Args:
        vectors: (B, T, D) float64; five digits are compared.
        mask: (B, T) bool, True = a real token, wherever in its row it stands.

    Returns:
        (B, D); zeros for a row without a real token.
    """
    ### BEGIN SOLUTION
    total = (vectors * mask.unsqueeze(-1)).sum(dim=1)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)
    ### END SOLUTION


# %% nbgrader={"grade": true, "grade_id": "ex02-1-masked-mean-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.masked_mean(masked_mean)

# %% [markdown]
# ## 5 · A whole classifier
#
# Let each word vote. Word $v$ gets a single weight $w_v$, positive if the word speaks for praise and negative if against. A review's verdict is the sum of its real tokens' weights: section 4's sum, with $D = 1$.
#
# $$ z_b = \beta + \sum_{t=0}^{T-1} \mathrm{real}[b, t] \; w_{\mathrm{ids}[b, t]}, \qquad p_b(\text{positive}) = \sigma(z_b) = \frac{1}{1 + e^{-z_b}}. $$
#
# The number $z_b$ is a *logit*, $\beta$ a bias, and the function $\sigma$, the *sigmoid*, turns a logit into a probability. The weights are an embedding with $D = 1$:

# %% tags=["fold"]
# @title Diagram: from ids to a verdict
diagrams.show("word_votes")


# %%
class WordVotes(nn.Module):
    def __init__(self, vocab_size):
        super().__init__()
        self.table = nn.Embedding(vocab_size, 1)  # one number for each word
        nn.init.zeros_(self.table.weight)
        self.bias = nn.Parameter(torch.zeros(()))

    def forward(self, ids, real):  # (B, T), (B, T)
        votes = self.table(ids)[:, :, 0]  # (B, T): one number for each token
        return (votes * real).sum(dim=1) + self.bias  # (B,): one logit for each text


# %% [markdown]
# Its data are the 96 reviews of the first screen, in one batch:

# %%
print(len(plain), plain[:2])
print(sentences)
train_texts = [review for review, _ in plain]
train_answers = torch.tensor([float(label) for _, label in plain])  # (96,)
known = train_texts + sentences  # + sentences: no <unk> here
# Any fixed order of the words will do; here it is alphabetical.
words = sorted({token for string in known for token in cut(string)})
word_ids = {word: i for i, word in enumerate(["<unk>", "<pad>", *words])}
train_ids, train_real = to_batch(train_texts, word_ids)  # (96, 5) each
print(len(word_ids), "ids; the batch:", tuple(train_ids.shape))

# %% [markdown]
# Now the loop. The loss, `binary_cross_entropy_with_logits`, is minus the logarithm of the probability of the right label, averaged over the batch. All weights begin at 0, so every $p$ is one half,
# and the loss starts at ln 2 = 0.69, the loss of guessing.

# %%
model = WordVotes(len(word_ids))
optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
for step in range(1, 101):
    logits = model(train_ids, train_real)  # (96, 5) -> (96,)
    loss = F.binary_cross_entropy_with_logits(logits, train_answers)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step in (1, 10, 100):
        correct = ((logits > 0) == (train_answers > 0.5)).float().mean()
        print(f"step {step}: loss {loss:.2f}, accuracy {correct:.2f}")

# %% [markdown]
# Right on every review. What has it learned, and what does it say about our two sentences?

# %% tags=["nbval-ignore-output"]
for word in ("great", "terrible", "film", "not"):
    print(f"{word:9} {model.table.weight[word_ids[word]].item():5.1f}")
two_logits = model(*to_batch(sentences, word_ids))
for sentence, logit in zip(sentences, two_logits.tolist(), strict=True):
    print(sorted(cut(sentence)), f"logit {logit:.2f}")

# %% tags=["fold"]
# @title The same logit for both
claim(
    "The classifier you just trained gives the two sentences the same logit.",
    torch.allclose(two_logits[0], two_logits[1], atol=1e-5),
    logits=two_logits,
)

# %% [markdown]
# This is the mistake of the first screen again (its classifier differs only in counting a repeated word once). The two sentences have the same tokens, so the two sums have the same terms. (*Not* has weight 0, because it never occurred in training.
# That does not matter: any other weight would be added to both. The logit is not quite 0 because Adam has magnified rounding errors: by symmetry the bias should not move.)
#
# ### What does an embedding learn?
#
# With $D = 1$ a word can only vote. With a larger $D$, a linear layer reads section 4's mean of the vectors: that is the library's `AveragedEmbeddings`. We train one with $D = 8$ on the same reviews. **Which vectors are most similar to
# that of *great*, before and after?**

# %% tags=["fold"]
# @title Train averaged embeddings on the 96 reviews
def train_vectors(seed, steps=200):
    """The embedding (V, 8) before and after training."""
    torch.manual_seed(seed)
    model = bag_of_words.AveragedEmbeddings(len(word_ids), d_model=8)
    at_first = model.embedding.weight.detach().clone()
    adam = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(steps):
        cost = F.cross_entropy(model(train_ids, train_real), train_answers.long())
        adam.zero_grad()
        cost.backward()
        adam.step()
    return at_first, model.embedding.weight.detach()


before_and_after = [train_vectors(seed) for seed in range(3)]


# %%
def nearest(vectors, word):
    """The five tokens with the largest cosine with the word, nearest first."""
    cosine = F.cosine_similarity(vectors, vectors[word_ids[word]], dim=1)  # (V,)
    order = cosine.argsort(descending=True).tolist()  # the word itself comes first
    return [list(word_ids)[i] for i in order[1:6]]


before, after = before_and_after[0]
for word in ("great", "dull"):
    print(f"{word:5} before:", *nearest(before, word))
    print(f"{word:5} after: ", *nearest(after, word))

# %% tags=["fold"]
# @title In three seeds
neighbours = [
    [set(nearest(vectors, word)) == set(kind) - {word} for vectors in pair]
    for pair in before_and_after
    for word, kind in (("great", synthetic.GOOD), ("dull", synthetic.BAD))
]
claim(
    "In each of three seeds the five neighbours of *great* are the other words of praise after training, and those of *dull* the other words of blame. Before training they never are.",
    all(learned and not chance for chance, learned in neighbours),
)

averager = bag_of_words.AveragedEmbeddings(V, d_model=4)  # random weights will do
not_dull = averager(alone, alone_real)[0]
in_batch = averager(batch, real)[1]
padded_to_50 = averager(longer, longer_real)[0]
claim(
    "The library's `AveragedEmbeddings` passes section 4's test: *not dull!* gives the same output alone, in the batch, and padded to 50.",
    torch.allclose(not_dull, in_batch, atol=1e-6)
    and torch.allclose(not_dull, padded_to_50, atol=1e-6),
)

# %% [markdown]
# Before training the neighbours are accidental; afterwards words that do the same work lie together. The model was only told which reviews are praise.
#
# This is the whole road: string, tokens, ids, padded batch, vectors, verdict. It leaves three questions. What becomes of new words? How much of the work goes into padding? And how far does one get
# without the order of the words?

# %% [markdown]
# ## 6 · New words: subword units
#
# *Hilarious* became `<unk>`, because the vocabulary knows a word as a whole or not at all. How often does that happen? We measure it on real text that comes
# with every Python: 400,000 characters of the docstrings of its standard library, as installed on your machine. The last tenth is kept aside as new text. **What percentage of
# the words and marks in the last tenth never occurs in the first nine tenths?** One in a thousand? One in a hundred? One in twenty?
#
# At the other extreme every character is a token; we measure that too.

# %% tags=["fold"]
# @title The docstrings, cut in two ways
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
every_tenth = []  # each of the other nine tenths of the words held out in turn
all_words = seen["words"] + unseen["words"]
for k in range(9):
    start, end = len(all_words) * k // 10, len(all_words) * (k + 1) // 10
    others = set(all_words[:start] + all_words[end:])
    every_tenth.append(sum(w not in others for w in all_words[start:end]) / (end - start))
claim(
    "More than 2 % of the word tokens in the last tenth are new, and in each other tenth held out instead; of the characters in the last, fewer than 0.1 %.",
    min(new_fraction["words"], *every_tenth) > 0.02 and new_fraction["characters"] < 0.001,
    **{name: f"{100 * found:.2g} %" for name, found in new_fraction.items()},
    **{"words, the other nine tenths": ", ".join(f"{100 * found:.2g} %" for found in every_tenth)},
)
new_words.compare(f"{100 * new_fraction['words']:.2g} %")

# %% [markdown]
# About one in twenty (in other tenths up to one in thirteen), although both parts document the same library. Characters are hardly ever new (this text is plain ASCII; in open text new ones occur), but make sequences several times as long. So words give a small $T$ and a huge $V$, characters the opposite. Is there something in between?
#
# ### Byte-pair encoding
#
# *Byte-pair encoding* (BPE; Gage 1994, Sennrich et al. 2016) learns pieces of words from data. Begin with characters, and a symbol `</w>` at the end of each word, so that pieces can be joined into words again. Find the two neighbours that occur together most often, and join them into one symbol: a *merge*. On a tie the alphabetically first pair wins, and merges never reach across words. Do it again, as
# often as you like.
#
# Say the corpus has *great* 6 times, *greater* 3, *dull* 5 and *later* 4 times. The letters `a` `t` stand together in three of these words, 6 + 3 + 4 = 13 times, and no pair occurs more often. So the first merge is `at`.
# It goes on (*later* is not shown):

# %% tags=["fold"]
# @title Diagram: the words after 2, 4, 6 and 10 merges
diagrams.show("bpe_merges")

# %% [markdown]
# Now in plain lines. One merge goes through a word from left to right, and joins the pair wherever it stands:


# %%
def merge_pair(symbols, pair):
    merged, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged


print(merge_pair(["l", "a", "t", "e", "r", "</w>"], ("a", "t")))

# %% [markdown]
# To learn, count the pairs, merge the most frequent one everywhere, and begin again. Watch *greater* on the right:

# %%
corpus_words = ["great"] * 6 + ["greater"] * 3 + ["dull"] * 5 + ["later"] * 4
cut_words = [[*word, "</w>"] for word in corpus_words]  # 18 lists of symbols
merges = []
for number in range(1, 11):
    pairs = Counter()
    for symbols in cut_words:
        pairs.update(pairwise(symbols))  # neighbours inside one word
    best = max(sorted(pairs), key=pairs.get)  # the first of the most frequent
    cut_words = [merge_pair(symbols, best) for symbols in cut_words]
    merges.append(best)
    print(f"{number:2}. {'+'.join(best):10} {pairs[best]:2} times  ", *cut_words[6])

# %% [markdown]
# The list of merges is all that BPE learns. To cut a *new* word, start from its characters and apply the merges in the order in which they were learned:


# %%
def cut_word(word, merges):
    symbols = [*word, "</w>"]
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return symbols


for number in (0, 1, 2, 5, 6):
    print(f"{number} merges:", *cut_word("eater", merges[:number]))
for word in ("duller", "tall"):
    print(f"{word} ->", *cut_word(word, merges))

# %% tags=["fold"]
# @title Check: the library learns and cuts the same
claim(
    "The library's `train_bpe` learns the same ten merges, and its `bpe_tokenize` cuts the words into the same pieces.",
    bpe.train_bpe(Counter(corpus_words), 10) == merges
    and all(bpe.bpe_tokenize(w, merges) == cut_word(w, merges) for w in ("great", "eater", "duller", "tall")),
)

# %% [markdown]
# No word is unknown any more, as long as its characters are known: at worst it is spelled in them one by one. The number of merges is a dial between characters and words. We turn the dial on the docstrings' words, with the library's fast version. **How many merges does it take to get half as many tokens per word as with characters?**

# %% tags=["fold"]
# @title Tokens to a held-out word, for 0 to 3,000 merges
word_counts = Counter(token for token in seen["words"] if token.isalpha())
held_out_counts = Counter(token for token in unseen["words"] if token.isalpha())
all_merges = bpe.train_bpe(word_counts, 3000)

dial = [0, 30, 100, 300, 1000, 3000]
never_seen = Counter({w: times for w, times in held_out_counts.items() if w not in word_counts})
tokens_per_word, tokens_per_new = [], []
for number in tqdm(dial, leave=False):
    pieces = {word: bpe.bpe_tokenize(word, all_merges[:number]) for word in held_out_counts}
    for found, those in ((tokens_per_word, held_out_counts), (tokens_per_new, never_seen)):
        cost = sum(times * len(pieces[word]) for word, times in those.items())
        found.append(cost / those.total())
letters_per_word = tokens_per_word[0] - 1  # without the mark of the word's end

# %% tags=["reveal"]
figures.tokens_per_word(dial, tokens_per_word)
print("300 merges, hilarious:", *cut_word("hilarious", all_merges[:300]))

# %% tags=["fold", "reveal"]
# @title With 300 merges
claim(
    "With 300 merges a word of the held-out text takes fewer than half as many tokens as with characters; with 3,000, fewer than 1.5.",
    tokens_per_word[3] < tokens_per_word[0] / 2 and tokens_per_word[5] < 1.5,
    **{f"{number} merges": found for number, found in zip(dial, tokens_per_word, strict=True)},
    **{"letters alone": letters_per_word},
)
claim(
    "A truly new word takes more: over 3 tokens with 300 merges, but fewer than two thirds of its characters.",
    3 < tokens_per_new[3] < tokens_per_new[0] * 2 / 3,
    **{
        "new words": sum(never_seen.values()) / held_out_counts.total(),
        "their tokens, 0 merges": tokens_per_new[0],
        "300 merges": tokens_per_new[3],
        "hilarious": " ".join(bpe.bpe_tokenize("hilarious", all_merges[:300])).removesuffix("</w>"),
    },
)

# %% [markdown]
# So *hilarious* survives, in pieces, which get their ids as words do. (The count with characters includes the mark of the word's end; without it, 300 merges about halve the number. And most held-out words also occur in the text that taught the merges.)
#
# Most of today's language models read such subword units. GPT-2 learned 50,000 merges, and begins with bytes, so that no character is unknown either. BERT uses about 30,000 pieces, chosen by another criterion (*WordPiece*).
# The price: pieces are chosen by frequency, not by meaning, and texts become longer. This chapter stays with words. But longer texts make the second question more urgent: how much work does a batch waste?

# %% [markdown]
# ### Exercise 2.2 · One merge of byte-pair encoding
#
# Difficulty ●●●○○ · 20 minutes · needs section 6
#
# One turn of the loop, as it is written for large corpora: each different word is stored once, with its count. So count, choose (ties too) and merge, all in one function of your own, without `course_lib.bpe`; the lines of `merge_pair` may serve you. Words are tuples of *symbols*, and after a few merges a symbol has several letters.


# %% nbgrader={"grade": false, "grade_id": "ex02-2-bpe-step", "locked": false, "schema_version": 3, "solution": true, "task": false}
def bpe_step(words):
    """Find the most frequent pair of neighbouring symbols and merge it.

    Args:
        words: dict {tuple of symbols: count}, for instance {("t", "e", "a"): 9}; no two spell the same word.

    Returns:
        pair: (a, b), the neighbours that occur most often in the corpus (at every place in a word, overlapping
            places too, and a word that occurs 9 times counts 9 times); on a tie the smallest pair, as Python orders tuples.
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


# %% nbgrader={"grade": true, "grade_id": "ex02-2-bpe-step-check", "locked": true, "points": 3, "schema_version": 3, "solution": false, "task": false}
ch02.bpe_step(bpe_step)

# %% [markdown]
# ## 7 · Padding: buckets instead of idle work
#
# Unless told otherwise, a model computes on every cell of a batch, padding too. How much of its work is wasted? In section 2, 4 of 18 cells are padding, a fraction of 0.22. With $\ell_n$ the length of text $n$, and
# $B_k$ texts in batch $k$, the longest of them $T_k$ tokens long,
#
# $$ \text{padding} = 1 - \frac{\sum_n \ell_n}{\sum_k B_k \, T_k}. $$
#
# So it matters which texts share a batch. A small grammar writes us 2,000 reviews in pairs: each has its *mirror*, the same words in another order with the opposite label (1 is praise, 0 blame).

# %%
reviews = synthetic.reviews(2000, seed=1)
train_reviews, test_reviews = reviews[:1600], reviews[1600:]
review_lengths = [len(cut(review)) for review, _ in train_reviews]
print(*train_reviews[:2], sep="\n")  # a review and its mirror
print("lengths from", min(review_lengths), "to", max(review_lengths))

# %% [markdown]
# *Bucketing* sorts the texts by length, cuts the sorted list into batches, and shuffles the batches instead of the texts. How much does it save, in batches of 32?


# %%
def padding_of(batches):
    """The fraction of cells that is padding: add up all cells, then divide once."""
    cells = sum(len(b) * max(review_lengths[i] for i in b) for b in batches)
    return 1 - sum(review_lengths) / cells


generator = torch.Generator().manual_seed(2)
order = torch.randperm(1600, generator=generator).tolist()
shuffled = [order[i : i + 32] for i in range(0, 1600, 32)]  # 50 batches of 32

sorted_order = sorted(order, key=lambda i: review_lengths[i])  # 1. sort the texts
buckets = [sorted_order[i : i + 32] for i in range(0, 1600, 32)]  # 2. cut
places = torch.randperm(len(buckets), generator=generator).tolist()
bucketed = [buckets[k] for k in places]  # 3. shuffle the batches

# %%
figures.two_batches(
    {
        "shuffled": [review_lengths[i] for i in shuffled[1]],
        "bucketed": [review_lengths[i] for i in bucketed[1]],
    },
    longest=max(review_lengths),
)

# %% tags=["fold"]
# @title In all 50 batches, and on IMDB
claim(
    "Bucketing lowers the padding from over 40 % of the cells to less than 10 %.",
    padding_of(shuffled) > 0.4 and padding_of(bucketed) < 0.1,
    shuffled=f"{100 * padding_of(shuffled):.3g} %",
    bucketed=f"{100 * padding_of(bucketed):.2g} %",
)
imdb_padding = {
    kind: ledger.values("imdb-padding", f"per batch, {kind}", "padding")
    for kind in ("random", "bucketed")
}
claim(
    "On the reviews of IMDB, which differ more in length, buckets of 64 lower it from over 70 % to less than 6 %, in each of three seeds.",
    min(imdb_padding["random"]) > 0.7 and max(imdb_padding["bucketed"]) < 0.06,
    **{
        kind: ", ".join(f"{100 * found:.2g} %" for found in seeds)
        for kind, seeds in imdb_padding.items()
    },
)

# %% [markdown]
# Buckets have a price: batches are less random, since texts of equal length meet again and again. So the library's `text.bucket_batches` sorts only within pools of 100
# batches, drawn anew in each epoch.

# %% [markdown]
# ### Exercise 2.3 · Assemble: from texts to padded batches
#
# Difficulty ●●●○○ · 30 minutes · needs sections 1, 2 and 7
#
# Put all the steps into one function of your own, without `course_lib.text`. A text may contain any token, even `<pad>`; so take the mask from the lengths, not from the ids.


# %% nbgrader={"grade": false, "grade_id": "ex02-3-padded-batches", "locked": false, "schema_version": 3, "solution": true, "task": false}
def padded_batches(texts, stoi, batch_size, max_len):
    """Batches of texts of similar length.

    Args:
        texts: N strings, tokens separated by spaces; "" has no token, so its row is all padding;
            no batch consists of such texts only.
        stoi: dict, token -> id; "<unk>" and "<pad>" are in it, with any ids.
        batch_size: texts in a batch; the last batch may have fewer.
        max_len: only the first max_len tokens of a text are kept.

    Returns:
        A list of batches, the shortest texts first (by the length that is kept; equal
        lengths in the order of `texts`). Each batch is a tuple of
            ids: (B, T) torch.int64, padded on the right; T is the longest row of this batch;
            real: (B, T) torch.bool, True = a real token;
            where: the positions in `texts` of the rows, B integers in a list or a tensor.
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


# %% nbgrader={"grade": true, "grade_id": "ex02-3-padded-batches-check", "locked": true, "points": 4, "schema_version": 3, "solution": false, "task": false}
ch02.padded_batches(padded_batches)

# %% [markdown]
# When the check passes, let section 5's classifier learn from your batches: remove the `#` in the cell below. It should be right on all 96 reviews.


# %% tags=["fold"]
# @title train_from: WordVotes on your batches
def train_from(make_batches, epochs=20):
    """Train section 5's classifier on the 96 reviews, in batches of 16; its accuracy on them, from 0 to 1."""
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


# %%
# print(train_from(padded_batches))

# %% [markdown]
# ### Exercise 2.4 · Derive: how much is padding?
#
# Difficulty ●●○○○ · 10 minutes · needs section 7
#
# Four reviews have 1, 10, 2 and 4 tokens. With pencil, paper and this section's formula, find the fraction of padding, a number between 0 and 1, if they are batched
# two by two (a) in this order, (b) sorted by length, and (c) if every row is padded to 12. Three digits each; replace `...` by the tuple.

# %% nbgrader={"grade": false, "grade_id": "ex02-4-padding-shares", "locked": false, "schema_version": 3, "solution": true, "task": false}
shares = ...  # (a, b, c)
### BEGIN SOLUTION
shares = (11 / 28, 7 / 24, 31 / 48)
### END SOLUTION

# %% nbgrader={"grade": true, "grade_id": "ex02-4-padding-shares-check", "locked": true, "points": 2, "schema_version": 3, "solution": false, "task": false}
ch02.padding_shares(shares)

# %% [markdown]
# ### The library, and PyTorch's `DataLoader`
#
# From here on we use `course_lib.text`: the same steps, fast and tested (its tokeniser separates the other marks too, except apostrophes inside words). Its vocabulary has two more special tokens, `<sos>` (2) and `<eos>` (3), for the decoders of later chapters; so for the same texts every word's id is larger by 2.

# %%
train_tokens = [text.tokenize(review) for review, _ in train_reviews]
test_tokens = [text.tokenize(review) for review, _ in test_reviews]
vocab = text.build_vocab(train_tokens)
print(len(vocab), "ids:", *vocab.itos[:8], "...")

# %% tags=["fold"]
# @title Check: the library makes the same batches
their_tokens = [text.tokenize(review) for review in three]
their_vocab = text.build_vocab(their_tokens)
their_ids, their_real = text.pad_batch(
    [text.numericalize(row, their_vocab) for row in their_tokens]
)
claim(
    "Token for token the library's batch is yours, and so is its mask.",
    [[their_vocab.itos[i] for i in row] for row in their_ids.tolist()]
    == [[itos[i] for i in row] for row in batch.tolist()]
    and torch.equal(their_real, real),
)
same_seed = torch.Generator().manual_seed(2)
claim(
    "With the same seed, so are its buckets.",
    list(text.bucket_batches(review_lengths, 32, same_seed)) == bucketed,
)

# %% [markdown]
# In your own projects a `DataLoader` draws the batches. It asks a `batch_sampler` which texts belong together, and hands these to your `collate_fn`, which makes one batch of them. (*Going deeper*: what buckets cost, how much padding real reviews need, and torchtext.)


# %%
def collate(items):
    """Pairs (tokens, label) -> ids (B, T), real (B, T), labels (B,)."""
    rows = [torch.tensor(text.numericalize(row, vocab)) for row, _ in items]
    padded_ids = pad_sequence(rows, batch_first=True, padding_value=text.PAD)
    mask = text.length_mask([len(row) for row in rows])
    return padded_ids, mask, torch.tensor([label for _, label in items])


labels_of_train = [label for _, label in train_reviews]
items = list(zip(train_tokens, labels_of_train, strict=True))
# `bucketed` is one fixed list: make a new one, and a new loader, for each epoch.
loader = DataLoader(items, batch_sampler=bucketed, collate_fn=collate)
embedding = nn.Embedding(len(vocab), 8)  # W, (V, D) = (57, 8)
for its_ids, its_real, its_labels in itertools.islice(loader, 3):  # the first three
    vectors = embedding(its_ids)  # (B, T) -> (B, T, D)
    print(*(tuple(part.shape) for part in (its_ids, its_real, its_labels, vectors)))

# %% [markdown]
# *A good place to stop for today.* You can turn any texts into batches, and train a classifier on them. The third question is left: how far does one get without order?
#
# ---

# %% [markdown]
# ## 8 · How far do words without order get?
#
# Does it matter for real reviews that the order is lost? IMDB (Maas et al. 2011) has 25,000 film reviews to train on and 25,000 to test, half of
# them positive. A bag may note only whether a word occurs (*once*), or how often (*counted*). The models were trained beforehand, with three seeds each; their results are kept in `results/`, the *ledger*. **How accurate is a model that knows which words occur, and nothing of their order?**

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
penalty = ledger.values("imdb-bow", "unigrams, binary", "l2")
pair_gain = [
    100 * (pairs - once)
    for once, pairs in zip(imdb["words, once"], imdb["words and pairs, once"], strict=True)
]
repeats_gain = [
    100 * (counted - once)
    for once, counted in zip(imdb["words, once"], imdb["words, counted"], strict=True)
]
claim(
    "Pairs of neighbouring words, as further features, add more than 2 points in each seed. Counting repeats makes less than 1 point of difference, and its sign changes with the seed (in the third, a weaker penalty was chosen for *words, once*).",
    min(pair_gain) > 2
    and max(map(abs, repeats_gain)) < 1
    and max(repeats_gain[:2]) < 0 < repeats_gain[2]
    and penalty[2] < min(penalty[:2]),
    pairs=pair_gain,
    repeats=repeats_gain,
)
imdb_guess.compare([f"{100 * found:.3g} %" for found in imdb["words, once"]])

# %% [markdown]
# Nearly nine in ten: in most reviews the words alone give the verdict away. And the two sentences from the beginning?

# %% tags=["fold"]
# @title The two sentences, read by IMDB's models
praise, blame, pairs_praise, pairs_blame, scaled_praise, scaled_blame = (
    ledger.values("imdb-bow", name, f"logit_{side}")
    for name in (
        "unigrams, binary",
        "unigrams + bigrams, binary",
        "unigrams + bigrams, scaled",
    )
    for side in ("praise", "blame")
)
gaps = [a - b for a, b in zip(pairs_praise, pairs_blame, strict=True)]
scaled_gaps = [a - b for a, b in zip(scaled_praise, scaled_blame, strict=True)]
claim(
    "In each of three seeds single words give both sentences the same logit; pairs separate them by about 0.1, the praise lower, and call both negative.",
    all(abs(a - b) < 1e-4 for a, b in zip(praise, blame, strict=True))
    and all(-0.15 < gap < -0.05 for gap in gaps)
    and max(pairs_praise + pairs_blame) < 0,
    **{"with pairs, praise": pairs_praise, "blame": pairs_blame},
)
claim(
    "In a variant that lets telling features weigh more, the gap is smaller than 0.01, its sign changes with the seed, and both are negative again.",
    max(map(abs, scaled_gaps)) < 0.01
    and min(scaled_gaps) < 0 < max(scaled_gaps)
    and max(scaled_praise + scaled_blame) < 0,
    gap=scaled_gaps,
)

# %% [markdown]
# Pairs of words separate them by about 0.1, and call both negative. So a model can be right on nine reviews in ten, and be wrong on one of two that differ only in their order. (They are also far shorter than the reviews it learned from.) *A high score on a
# benchmark does not prove the ability that you had in mind.*
#
# <details><summary>How the models were made</summary>
#
# The bags know the words that occur at least twice in the training part. The penalty on large weights (one of three values) and the stopping time were chosen on a held-out tenth of the training reviews, a different tenth for each seed, never on the test reviews. The averaged embeddings know the 25,000 most frequent words, and are those of the best of eight epochs on the same tenth.
#
# </details>
#
# ### Reviews that need order
#
# A test of that ability needs reviews in which the words alone do not help: section 7's mirrored ones.
#
# We train the library's `BagOfWords` on them, the first screen's model. `fit_bag_of_words` goes close to the minimum of the loss (plus a small
# penalty on large weights), so a failure cannot be blamed on the learning rate.


# %% tags=["fold"]
# @title A bag of words, trained on the mirrored reviews
def train_bag(token_lists, labels, vocab):
    """A bag of words near the minimum of its loss on these reviews."""
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
    **{"for instance": test_reviews[4][0], "its mirror": test_reviews[5][0]},
)

# %% [markdown]
# One half is not bad luck but a theorem. The bag is the same for both, so the answer is the same; the labels differ, so exactly one
# answer is right. This holds for anything that forgets the order, such as the mean of embeddings. What if the bag may see a little order, as runs of $n$ neighbouring tokens, *n-grams*? Find out:

# %% [markdown]
# ### Exercise 2.5 · Explore and explain: how much order do n-grams see?
#
# Difficulty ●●●○○ · 30 minutes · needs section 8
#
# A bag of *bigrams* (n = 2) sees `not great` as one feature. `ngram_experiment` trains a bag of all n-grams up to `n` on the mirrored reviews. It returns the number of features (the four special tokens among them), the accuracy on the test reviews, the
# accuracy on each pattern of the grammar, and the n-grams with the largest weights. In a pattern YES is what the reviewer thinks, NO the opposite. The pattern accuracies include training reviews. Change `n` to
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
# (b) What happens to the number of features, and why does it matter? (c) Write a review whose verdict no n-gram up to your largest n shows, and say what a model must be able to do instead.

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
# No program judges your words here: you compare them yourself. Paste them in place of the three dots; at 20 words or more you see what a good answer contains.

# %%
ch02.ngrams_and_order.compare(...)

# %% [markdown]
# ## 9 · Errors you will meet
#
# Mirrored reviews defeat a bag by design. What goes wrong by mistake? Two mistakes raise an error. Silent mistakes are worse: the unmasked sum in section 4, and the last one below.
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
# **A vocabulary that has seen the test text.** Section 6 found many new words in its last tenth. A vocabulary built from all the data would have hidden them:

# %%
leaky = set(seen["words"]) | set(unseen["words"])  # wrong: all data, "to be safe"
honest = set(seen["words"])  # repaired: training text only
unknown_rates = []
for name, vocabulary in (("leaky", leaky), ("honest", honest)):
    unknown = [token for token in unseen["words"] if token not in vocabulary]
    unknown_rates.append(len(unknown) / len(unseen["words"]))
    print(f"{name:6} <unk> rate {unknown_rates[-1]:.1%}")

# %% tags=["fold"]
# @title What the two vocabularies report on the last tenth
claim(
    "The leaky vocabulary reports an `<unk>` rate of 0; the honest one, more than 2 %.",
    unknown_rates[0] == 0 and unknown_rates[1] > 0.02,
    honest=f"{100 * unknown_rates[1]:.2g} %",
)
paragraphs = corpus.split("\n\n")
random.Random(0).shuffle(paragraphs)
shuffled_words = text.tokenize("\n\n".join(paragraphs))
start_of_last = len(shuffled_words) * 9 // 10
shuffled_seen, shuffled_last = set(shuffled_words[:start_of_last]), shuffled_words[start_of_last:]
shuffled_rate = sum(token not in shuffled_seen for token in shuffled_last) / len(shuffled_last)
claim(
    "With shuffled paragraphs the honest rate is lower: between a third and two thirds of what it was.",
    1 / 3 < shuffled_rate / unknown_rates[1] < 2 / 3,
    shuffled=f"{100 * shuffled_rate:.2g} %",
)

# %% [markdown]
# The leaky vocabulary's 0 is false: your users' texts contain new words, too. Fit everything on the training part only, the vocabulary included. A careless split flatters as well: with the paragraphs shuffled before the cut, both parts hold paragraphs of the same modules, and the rate falls to about half. (Section 5 broke this rule on purpose, so that `<unk>` could not explain the tie.)

# %% [markdown]
# ## 10 · One more question: who scores text that a model wrote?
#
# *Read this now, or before chapter 06, which needs it.*
#
# A rate or an accuracy is counted, and can still flatter. And a model that writes text? At its other end tensors become text again, and for a translation there is no
# single right answer to count. *BLEU* (Papineni et al. 2002) compares a *hypothesis*, the model's text, with one or more human *references*. BLEU, too, is a bag, but of n-grams: it asks how many of the hypothesis's n-grams also occur in a reference. **Does such a score see the order of words, and the meaning?**

# %% tags=["fold"]
# @title Diagram: the parts of BLEU
diagrams.show("bleu_parts")

# %% [markdown]
# BLEU has three parts.
#
# **Clipped precision** $p_n$ is the fraction of the hypothesis's n-grams that match. An n-gram may match at most as often as it occurs in the *one* reference that has it most often. Without this clip, *great great
# great great* would have $p_1 = 1$ against any reference with one *great*.
#
# **The brevity penalty** is there because precision rewards saying little. With $c$ tokens in the hypothesis and $r$ in the reference (of several, the one closest in length; of two equally close, the shorter),
#
# $$ \mathrm{BP} = \min\big(1,\ e^{1 - r/c}\big). $$
#
# **The geometric mean** of $p_1$ to $p_4$, times BP, on the scale of 0 to 100, is the score:
#
# $$ \mathrm{BLEU} = 100 \cdot \mathrm{BP} \cdot (p_1 \, p_2 \, p_3 \, p_4)^{1/4}. $$
#
# Here is the picture's sentence, part by part. (`metrics.modified_precision` is exercise 2.6.)

# %%
hypothesis = "the plot of the film is not good".split()
reference = "the plot of this film is not good either".split()
p = []
for n_words in (1, 2, 3, 4):
    matches, total = metrics.modified_precision([hypothesis], [[reference]], n_words)
    p.append(matches / total)
    print(f"p{n_words} = {matches}/{total}")
BP = min(1, math.exp(1 - len(reference) / len(hypothesis)))
print(f"BP = {BP:.3f}, BLEU = {100 * BP * math.prod(p) ** (1 / 4):.1f}")
print(f"the library: {metrics.bleu([hypothesis], [[reference]]):.1f}")

# %% [markdown]
# If one $p_n$ is 0, BLEU is 0, as often happens with a single short sentence. So BLEU is computed over a whole test set: add up matches, n-grams and lengths of all sentences, then divide once.
#
# The reference says *the film is good and the music is lovely*. Four hypotheses follow. **Order them** by how well they keep its meaning;
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
fine, opposite, swapped_halves, paraphrase = bleu_of.values()
claim(
    "'fine' and 'bad' get exactly the same BLEU, though one of them contradicts the reference; the swapped halves get more than either, and a good paraphrase gets 0.",
    swapped_halves > fine == opposite > 0 == paraphrase,
    BLEU=[fine, swapped_halves],
)

# %% [markdown]
# Order: the swapped halves score highest, for BLEU sees order only inside runs of four tokens. Meaning: the tie is no accident, because BLEU counts shared n-grams and compares lengths, no more. (The 0 is the accident of a single sentence: no pair of words matches, so $p_2 = 0$.) Use it over a whole test set, to compare versions of one system with the same references and the same tokens; small differences prove little. And look at real outputs too.

# %% [markdown]
# ### Exercise 2.6 · Clipped precision with several references
#
# Difficulty ●●●○○ · 20 minutes · needs section 10
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
# Difficulty ●●●○○ · 15 minutes · needs section 10
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
# ## Summary
#
# 1. Text is tokenised, numbered, padded and looked up: strings become ids (B, T) with a mask, then vectors (B, T, D). An embedding is a one-hot row times a matrix, computed as a look-up.
# 2. Words give a large V, characters a long T; with BPE you choose any point in between. Words outside the vocabulary become `<unk>`: build the vocabulary on the training part only.
# 3. Padding makes rectangles, and the mask says which cells are real. Buckets save most of the wasted work.
# 4. A bag of words is a strong baseline and blind to order: on mirrored reviews no weights help.
# 5. BLEU counts shared n-grams over a corpus, compares lengths, and cannot tell a synonym from an opposite, unless a reference contains one.
#
# | step | keeps | loses or adds | how you notice |
# |---|---|---|---|
# | tokenise | the words | capitals, spaces | read the tokens of ten texts |
# | number | known tokens | all others become `<unk>` | the `<unk>` rate on held-out text |
# | pad | everything | entries that are not text | pad further: nothing should change |
# | look up | everything | nothing | the shape: (B, T) becomes (B, T, D) |
# | bag | which words | their order | contrast pairs |
# | BLEU | shared n-grams | synonym or opposite | read the output |
#
# ## Where next
#
# *Chapter 03* gives the model what the bag lacks: a state that is carried from word to word, so that *not* can change what comes after it.
# BLEU returns with the translators of chapter 06.
#
# ## References
#
# - P. Gage, *A new algorithm for data compression*, C Users Journal 12(2), 1994: byte-pair encoding for files.
# - R. Sennrich, B. Haddow, A. Birch, *Neural machine translation of rare words with subword units*, ACL 2016, arXiv 1508.07909: section 3.2, algorithm 1.
# - K. Papineni, S. Roukos, T. Ward, W.-J. Zhu, *BLEU: a method for automatic evaluation of machine translation*, ACL 2002: sections 2.1 (clipping), 2.2 (brevity), 2.3 (the score) and 3 (a human translator's).
# - M. Post, *A call for clarity in reporting BLEU scores*, WMT 2018, arXiv 1804.08771: why published scores differ, and sacrebleu.
# - A. Maas et al., *Learning word vectors for sentiment analysis*, ACL 2011: the IMDB reviews.
# - S. Wang, C. Manning, *Baselines and bigrams: simple, good sentiment and topic classification*, ACL 2012: sections 2 and 4.
# - B. Trevett, *PyTorch sentiment analysis*, https://github.com/bentrevett/pytorch-sentiment-analysis: its notebook on neural bags of words ends with the same pair of sentences, after *This film is*.
# - Video: *Deep Learning for Natural Language Processing*, https://youtu.be/6D4EWKJgNn0: from text to vectors to sequence models, in one lecture.

# %% [markdown]
# ## Going deeper
#
# Nothing later in the course needs these parts; each answers one question.

# %% [markdown] tags=["deeper"]
# ### Does a larger vocabulary remove `<unk>`?
#
# A few words are very frequent and most are rare (*Zipf's law*: the frequency of the k-th most frequent word is roughly proportional to $1/k$). So a short list covers most of a running text, and each additional word covers less. Measured on the
# text that the vocabulary was built from, the rate of `<unk>` falls to 0, which flatters large vocabularies. And on the held-out tenth of section 6?

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

# %% [markdown]
# Besides saving rows of $W$, there is a reason to leave rare words out: if every word of the training text is in the vocabulary, `<unk>` never occurs in training, so its vector learns nothing. `build_vocab(..., min_freq=2)` leaves out words seen once.

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
# price should be lower.

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
# @title Five ways to pad, in batches of 64
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
# ### How does torchtext 0.6.0 do it, and which traps does it hold?
#
# torchtext is no longer developed, but you will meet it in older code. Its version 0.6.0 is pure Python and works with the torch of this course.
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
# `review_iterators` is 30 lines in `course_lib/notebook/torchtext_tour.py`. It avoids two of the following traps; the first stays.
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
# Count the ids that equal `UNK` instead, or use a vocabulary that does not grow, such as the course's.
#
# **2. `BucketIterator` makes no buckets.** Many examples pass a `sort_key` and expect texts of similar length to come together. For the training split that happens only with `sort_within_batch=True`, whose
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
# **3. There is no mask.** A `Field` returns ids and nothing else. Ask for the lengths with `include_lengths=True`, and make the mask from them:

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
# ### What has IMDB's bag learned, and where in a review is the verdict?
#
# The weights of a bag can be read, which is one more reason to begin with it.

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
# And where do such words stand? Of all reviews with 150 tokens or more, one model reads only the first 50 tokens, one the middle 50, one the last 50. **Which is most often right?**

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
# As far as single words can tell, these reviewers give their verdict last. If you must cut such reviews, try keeping the end first.

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
# ### What is BLEU over a whole test set, and why not the average of sentences?
#
# Here $g$ runs over the distinct n-grams of hypothesis $i$, and $j$ over its references. Matches and totals are added up over all sentences before the one division:
#
# $$ p_n = \frac{\sum_i \sum_g \min\big(\mathrm{count}_{\mathrm{hyp}_i}(g),\ \max_j \mathrm{count}_{\mathrm{ref}_{ij}}(g)\big)}{\sum_i \sum_g \mathrm{count}_{\mathrm{hyp}_i}(g)}. $$
#
# In BP, $c$ and $r$ are sums over the test set too. Some scripts score each sentence instead, and average. System A spoils one short
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
#
# Few translations reach 100, even human ones: in the paper a human translator scored 35 against four references, and 26 against two (on its scale of 0 to 1: 0.35 and 0.26). There are many right ways to say a thing, and the references hold a few of them.

# %% [markdown] tags=["deeper"]
# ### Which BLEU is the BLEU?
#
# BLEU counts tokens, so it changes with the tokeniser, and scores are comparable only with the same tokens. The same pair of
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
# The repair (Post 2018): *detokenise* the output to plain text, give that to *sacrebleu*, the standard implementation, and publish its *signature*, which names the settings, beside the score. It says
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
