"""Checks of chapter 02's exercises: BPE, padding and masks, BLEU.

Each check asks for the properties of a right answer first; if one fails, it looks
for the usual mistakes and names the one it recognises. Notebook: 02.
"""

import copy
import itertools
import math
import numbers
from collections import Counter

import torch

from course_lib.exercises import Wrong, check, close, expect_numbers, expect_tensor, near


def _pieces(symbols):
    """The symbols of a word, written with spaces between them."""
    return " ".join(symbols)


def _words(table):
    """{"s e a": 9} -> {("s", "e", "a"): 9}."""
    return {tuple(word.split()): count for word, count in table.items()}


def _bpe_step(student, table):
    """Call the student's bpe_step on a table of words; its pair and its words, of the right types."""
    words = _words(table)
    before = copy.deepcopy(words)
    got = student(words)
    if words != before:
        raise Wrong("your function changed the dictionary it was given: build a new one and leave the input alone")
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (pair, words), got {type(got).__name__}")
    pair, merged = got
    pair = tuple(pair) if isinstance(pair, list) else pair
    if not (isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(symbol, str) for symbol in pair)):
        raise Wrong(f"the pair must be a tuple of two strings, got {pair!r}")
    if not isinstance(merged, dict) or not all(isinstance(word, tuple) for word in merged):
        raise Wrong("the words must be a dictionary from tuples of symbols to counts, like the input")
    return pair, merged


def _same_spelling(table, merged):
    """The merge must neither lose words nor change their letters or their counts."""
    want = {"".join(word.split()): count for word, count in table.items()}
    got = {"".join(word): count for word, count in merged.items()}
    if set(got) != set(want):
        raise Wrong(f"after the merge the words spell {sorted(got)}, before it {sorted(want)}: no letter may be lost")
    if got != want:
        raise Wrong(f"the counts of the words changed from {want} to {got}: merging moves symbols, not counts")


@check(
    hints=(
        "Two loops over the words: one to count neighbouring pairs, one to rewrite each word with the winner merged.",
        "Count: for each word, for each pair in zip(word, word[1:]), add the word's count. Choose the largest count, "
        "on a tie the smallest pair. Rewrite: walk through the symbols with an index i; where symbols i and i+1 are "
        "the pair, append their concatenation and move on by 2, else append symbol i and move on by 1.",
        "best = min(counts, key=lambda pair: (-counts[pair], pair)); then, per word: out, i = [], 0; while i < "
        "len(word): step = 2 if word[i:i + 2] == best else 1; out.append(''.join(word[i:i + step])); i += step.",
    )
)
def bpe_step(student):
    """Exercise 2.1: one merge of byte-pair encoding, on four small tables of words."""
    table = {"p i a n o": 3, "c a n o e": 2, "l o a n": 4, "n o a h": 9}
    pair, merged = _bpe_step(student, table)
    if pair == ("a", "n"):
        raise Wrong(
            "you merged ('a', 'n'). It stands in as many different words as ('n', 'o'), but in running text ('n', 'o') "
            "occurs more often (14 times against 9): weight each pair by the count of its word"
        )
    if pair != ("n", "o"):
        counts = Counter()
        for word, count in table.items():
            symbols = word.split()
            for neighbours in itertools.pairwise(symbols):
                counts[neighbours] += count
        if pair not in counts:
            raise Wrong(f"{pair} are never neighbours inside one word: a merge does not reach across words")
        raise Wrong(f"you merged {pair}, which occurs {counts[pair]} times; another pair occurs more often")
    if merged == _words(table):
        raise Wrong("the pair is right, but the words came back unmerged: ('n', 'o') must become the symbol 'no'")
    _same_spelling(table, merged)
    if merged != _words({"p i a no": 3, "c a no e": 2, "l o a n": 4, "no a h": 9}):
        shown = ", ".join(_pieces(word) for word in merged)
        raise Wrong(f"the pair is right, but the words became: {shown}. Merge 'n' with 'o' only where 'o' follows 'n'")

    table = {"n a n a": 7, "a n t": 2}
    pair, merged = _bpe_step(student, table)
    _same_spelling(table, merged)
    if ("na", "n", "a") in merged:
        raise Wrong("'n a n a' became 'na n a': merge every occurrence of the pair in a word, not only the first")
    if pair != ("n", "a") or merged != _words({"na na": 7, "a n t": 2}):
        raise Wrong(f"in 'n a n a' (7 times) the pair ('n', 'a') occurs 14 times; you merged {pair}")

    table = {"o o o": 5, "x o": 3}
    pair, merged = _bpe_step(student, table)
    if ("oo", "oo") in merged:
        raise Wrong("'o o o' became 'oo oo': the middle symbol was used twice. After a merge move on by two symbols")
    _same_spelling(table, merged)
    if ("o", "oo") in merged:
        raise Wrong("'o o o' became 'o oo': merge from left to right")

    table = {"b c": 6, "ab c": 2, "d b c": 3}
    pair, merged = _bpe_step(student, table)
    _same_spelling(table, merged)
    if ("abc",) in merged:
        raise Wrong(
            "'ab c' became 'abc', but the pair is ('b', 'c') and 'ab' is another symbol: compare whole symbols, "
            "do not replace inside the joined string"
        )
    if pair != ("b", "c") or merged != _words({"bc": 6, "ab c": 2, "d bc": 3}):
        raise Wrong(f"with symbols of several letters you merged {pair}; ('b', 'c') occurs 9 times")

    pair, _ = _bpe_step(student, {"s t": 4, "p q": 4, "m n": 3})
    if pair != ("p", "q"):
        raise Wrong(f"('p', 'q') and ('s', 't') both occur 4 times and you took {pair}: on a tie take the smaller pair")


@check(
    hints=(
        "Start from a whole (B, T) tensor of padding and a whole (B, T) tensor of False; then write each row's part.",
        "T = the longest length; ids = full of pad, int64; mask = zeros, bool; for each row: the first len(sequence) "
        "ids are the sequence, the first len(sequence) mask entries are True.",
        "ids[row, :len(sequence)] = torch.tensor(sequence, dtype=torch.int64); mask[row, :len(sequence)] = True",
    )
)
def pad_and_mask(student):
    """Exercise 2.2: pad a list of lists to (B, T) and say which entries are real."""
    sequences = [[7, 4], [5, 9, 6, 8], [3, 9, 2], [6]]  # B = 4, T = 4 would hide a transposed result: add a fifth row
    sequences.append([2, 8, 5])
    pad = 1
    got = student([list(sequence) for sequence in sequences], pad)
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (ids, mask), got {type(got).__name__}")
    ids, mask = got
    if isinstance(ids, torch.Tensor) and ids.shape == (5, 1):
        raise Wrong("the batch is as long as its shortest sequence: T is the length of the longest, or tokens are lost")
    expect_tensor(ids, shape=(5, 4), name="ids")
    expect_tensor(mask, shape=(5, 4), name="mask")
    if ids.dtype != torch.int64:
        raise Wrong(f"ids has dtype {ids.dtype}; an index must be torch.int64")
    if mask.dtype != torch.bool:
        raise Wrong(f"mask has dtype {mask.dtype}; a mask is boolean, True = real token")

    lengths = torch.tensor([len(sequence) for sequence in sequences])
    real = torch.arange(4) < lengths[:, None]
    want = torch.full((5, 4), pad)
    for row, sequence in enumerate(sequences):
        want[row, : len(sequence)] = torch.tensor(sequence)
    left = torch.full((5, 4), pad)
    for row, sequence in enumerate(sequences):
        left[row, 4 - len(sequence) :] = torch.tensor(sequence)
    if torch.equal(ids, left):
        raise Wrong(
            "the padding stands before the tokens; this course pads after them, so that step 0 is the first word"
        )
    if not torch.equal(ids[real], want[real]):
        raise Wrong("some real tokens are not where they belong: row b must begin with the ids of sequence b, in order")
    if not torch.equal(ids, want):
        filled = sorted(set(ids[~real].tolist()))
        raise Wrong(f"the free places hold {filled}, not pad = {pad}: fill them with the id that was passed")
    if torch.equal(mask, ~real):
        raise Wrong("your mask is True at the padding. Here True = real token (may attend)")
    if bool(mask.all()):
        raise Wrong("your mask is True everywhere, so the padding counts as text")
    if not torch.equal(mask, real):
        raise Wrong(f"the mask has {mask.sum(1).tolist()} real tokens per row, the sequences {lengths.tolist()}")

    ids, mask = student([[4, 9, 5], [9, 3, 6, 7, 2]], 9)
    if isinstance(ids, torch.Tensor) and ids.shape == (2, 5) and int(ids[0, -1]) != 9:
        raise Wrong(f"called with pad = 9, the free places hold {int(ids[0, -1])}: use the id that was passed")
    if mask.tolist() != [[True, True, True, False, False], [True] * 5]:
        raise Wrong(
            "called with pad = 9 on a text that holds the id 9, the mask hides a real token: it was read off "
            "ids != pad. Take it from the lengths, which cannot be mistaken"
        )


@check(
    hints=(
        "Look at a short row: by how many numbers does it add up, and by how many does it divide?",
        "Zero the padded vectors, sum over the steps, divide by the number of real tokens of that row; "
        "a row with no token has nothing to divide by, so keep its divisor at least 1.",
        "total = (vectors * mask.unsqueeze(-1)).sum(1); count = mask.sum(1, keepdim=True).clamp(min=1); total / count",
    )
)
def masked_mean(student):
    """Exercise 2.3: the mean over the real tokens, and over nothing else."""
    generator = torch.Generator().manual_seed(3)
    vectors = torch.randn(3, 5, 4, generator=generator, dtype=torch.float64)
    mask = torch.tensor([[1, 1, 0, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0]]).bool()
    vectors[1, 3] = 0.0  # a real token whose vector is zero
    got = student(vectors, mask)
    expect_tensor(got, shape=(3, 4))
    real = mask.unsqueeze(-1)
    total = (vectors * real).sum(1)
    count = mask.sum(1, keepdim=True)
    if not close(got, total / count):
        if close(got, total / 5):
            raise Wrong(
                "the padded vectors are zero but still counted: the row with 2 tokens of 5 comes out 2/5 of its mean. "
                "Divide by the number of real tokens, not by T"
            )
        if close(got, total / (vectors.ne(0).any(2) & mask).sum(1, keepdim=True)):
            raise Wrong(
                "row 1 has 5 real tokens, one of them with the vector zero, and you divide by 4: a token counts "
                "because the mask says so, whatever its vector is"
            )
        if close(got, vectors.mean(1)):
            raise Wrong("the padding takes part in your mean: the mask is not used")
        if close(got, total):
            raise Wrong("this is the sum over the real tokens: long texts come out larger than short ones")
        if close(got, total / mask.sum()):
            raise Wrong("you divide every row by the 8 real tokens of the whole batch: count them per row")
        if close(got, (vectors * ~real).sum(1) / (~mask).sum(1, keepdim=True).clamp(min=1)):
            raise Wrong("you averaged the padding and left out the tokens: True = real token")
        if close(got, vectors.masked_fill(~real, -math.inf).amax(1)):
            raise Wrong("this is the largest value over the real tokens, not their mean")
        if close(got, torch.zeros_like(got)):
            raise Wrong("every mean is zero, though the tokens' vectors are not")
        if close(got[:2], (total / count)[:2]):
            raise Wrong("the row with a single token is wrong: its mean is this token's vector")
        raise Wrong(
            f"row 0 has two real tokens whose first features are {vectors[0, 0, 0]:.3f} and {vectors[0, 1, 0]:.3f}; "
            f"you return {got[0, 0]:.3f}, which is not their mean"
        )
    longer = torch.cat([vectors, torch.full((3, 2, 4), 50.0, dtype=torch.float64)], dim=1)
    if not close(student(longer, torch.cat([mask, torch.zeros(3, 2, dtype=torch.bool)], dim=1)), total / count):
        raise Wrong("two more steps of padding change the result: it must not depend on how far a batch is padded")
    empty = student(vectors, torch.zeros(3, 5, dtype=torch.bool))
    expect_tensor(empty, shape=(3, 4))
    if empty.isnan().any():
        raise Wrong("a row without any real token gives nan (0 / 0), and one nan spoils the whole batch: return zeros")
    if not close(empty, torch.zeros_like(empty)):
        raise Wrong("a row without any real token must give zeros")


def _expect_three_digits(got, want):
    """A right answer that was rounded too far gets a message of its own."""
    pairs = list(zip(got, want, strict=True))
    if all(math.isclose(a, b, rel_tol=2e-2) for a, b in pairs) and not all(near(a, b) for a, b in pairs):
        raise Wrong("right to two digits: give three digits of each number")


@check(
    hints=(
        "Draw the two batches as rectangles and count: cells in all, cells that hold a token.",
        "Per way of batching: add up the cells (2 x longest length) of both batches, subtract the 17 tokens, and "
        "divide by the cells.",
        "As given: rectangles 2 x 10 and 2 x 4, so (28 - 17) / 28. Sorted: 1 with 2, 4 with 10. Fixed: 4 x 12 cells.",
    )
)
def padding_shares(answer):
    """Exercise 2.4: three padding shares, worked out by hand."""
    names = ("as given", "sorted by length", "fixed length 12")
    got = expect_numbers(answer, names)
    want = (11 / 28, 7 / 24, 31 / 48)
    if all(near(a, b) for a, b in zip(got, want, strict=True)):
        return
    _expect_three_digits(got, want)
    if all(near(a, 100 * b) for a, b in zip(got, want, strict=True)):
        raise Wrong("these are percentages: give fractions between 0 and 1")
    if all(near(a, 1 - b) for a, b in zip(got, want, strict=True)):
        raise Wrong("these are the shares of real tokens: the padding is the rest")
    if all(near(a, b / 17) for a, b in zip(got, (11, 7, 31), strict=True)):
        raise Wrong("you divided the padding by the number of tokens: the share is of all cells, tokens and padding")
    if near(got[0], 0.35) and near(got[1], 0.275):
        raise Wrong(
            "you averaged the two batches' shares, as if both batches had as many cells: pool the cells first, "
            "then divide once"
        )
    for name, a, b in zip(names, got, want, strict=True):
        if not near(a, b):
            raise Wrong(f"'{name}' is not right yet: {a:.3f} of the cells would be padding. Count its rectangles again")


def _grams(tokens, n):
    """Counts of the n-grams of a sentence."""
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def _pair_of_counts(got):
    """(matches, total) as two whole numbers, or a message."""
    if isinstance(got, float):
        raise Wrong(
            "expected (matches, total), two whole numbers, got one float: do not divide yet, a corpus pools them"
        )
    if not isinstance(got, (tuple, list)) or len(got) != 2:
        raise Wrong(f"expected a tuple (matches, total), got {type(got).__name__}")
    pair = [value.item() if isinstance(value, torch.Tensor) and value.numel() == 1 else value for value in got]
    if not all(isinstance(value, numbers.Integral) and not isinstance(value, bool) for value in pair):
        raise Wrong(f"matches and total must be whole numbers, got {got}")
    return int(pair[0]), int(pair[1])


@check(
    hints=(
        "collections.Counter counts n-grams; its operators & (smaller count) and | (larger count) do the clipping.",
        "Count the hypothesis's n-grams. For each n-gram find the most that any single reference has of it. A match "
        "counts at most that often. total = number of n-grams in the hypothesis.",
        "most = Counter(); for reference in references: most |= grams(reference); "
        "matches = sum((grams(hypothesis) & most).values())",
    )
)
def clipped_precision(student):
    """Exercise 2.6: matches and total of one sentence's modified n-gram precision."""
    hypothesis = "a a a d a b a a".split()
    references = ["a c d".split(), "b a b c c c a a c".split()]
    got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], 1))
    if got != (5, 8):
        matches, total = got
        if got == (8, 5):
            raise Wrong("you return (8, 5), which is (total, matches): swap them")
        if matches in (20, 38):
            raise Wrong(
                f"you count {matches} matches for 8 unigrams: you looped over every occurrence and added its whole "
                "count each time. Loop over the different n-grams"
            )
        if total == 7:
            raise Wrong("your total is 7, but the hypothesis has 8 unigrams: the last n-gram is missing. "
                        "T tokens have T - n + 1 n-grams")  # fmt: skip
        if total == 3:
            raise Wrong(
                "your total is 3, the number of different unigrams (or the first reference's length); the hypothesis "
                "has 8, repeats included"
            )
        if total in (9, 12):
            raise Wrong(f"your total is {total}, a length of references; precision counts the hypothesis's 8 unigrams")
        if matches == 8:
            raise Wrong(
                "every 'a' counted as a match, six of them, though no reference has more than three: clip each count"
            )
        if matches == 6:
            raise Wrong("you let 'a' match four times, once more than any single reference has it: take the maximum "
                        "over the references, not the sum")  # fmt: skip
        if matches == 3:
            raise Wrong("you counted different words (a set): 'a' occurs six times and three of them match")
        if matches == 4 and _pair_of_counts(student(list(hypothesis), [list(r) for r in references[::-1]], 1)) == got:
            raise Wrong(
                "you scored each reference alone and kept the best: the maximum is taken n-gram by n-gram, so 'a' "
                "may match in one reference and 'd' in another"
            )
        if matches in (2, 4):
            missing = "'b', which only the second" if matches == 2 else "'d', which only the first"
            raise Wrong(f"{missing} reference has, counts as a miss: look at all references")
        raise Wrong(f"for 'a a a d a b a a' against 'a c d' and 'b a b c c c a a c' you count {matches} of {total}")

    hypothesis, references = "x y x y x y".split(), ["x y z x".split(), "w x y v".split()]
    got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], 2))
    if got == (1, 6):
        raise Wrong("'x y x y x y' has five bigrams and you counted six pieces: the last piece is shorter than n")
    if got[1] == 6:
        raise Wrong("asked for bigrams (n = 2) you counted single words: n is not used")
    if got[1] == 3:
        raise Wrong("'x y x y x y' has five bigrams, overlapping ones included; you counted three")
    if got != (1, 5):
        raise Wrong(f"for the bigrams of 'x y x y x y' you count {got[0]} of {got[1]} matches")

    if _pair_of_counts(student(["ab", "c"], [["a", "bc"]], 2)) != (0, 1):
        raise Wrong(
            "'ab c' matched 'a bc': their letters are the same, their tokens are not. An n-gram is a sequence of "
            "tokens, not one joined string"
        )
    got = _pair_of_counts(student(["a", "b"], [["a", "b", "c", "d"]], 4))
    if got != (0, 0):
        raise Wrong(f"a sentence of 2 words has no 4-gram: (0, 0), not {got}")
    if _pair_of_counts(student(["a", "b"], [["c", "c", "a", "b"]], 1)) != (2, 2):
        raise Wrong(
            "'a b' against 'c c a b' has 2 matches of 2: count each reference to its own end, it may be longer than "
            "the hypothesis"
        )
    generator = torch.Generator().manual_seed(5)
    for n in (1, 2, 3):
        draw = [["a", "b", "c"][i] for i in torch.randint(3, (19,), generator=generator).tolist()]
        hypothesis, references = draw[:7], [draw[7:12], draw[12:]]
        most = _grams(references[0], n) | _grams(references[1], n)
        want = (sum((_grams(hypothesis, n) & most).values()), 8 - n)
        got = _pair_of_counts(student(list(hypothesis), [list(r) for r in references], n))
        if got != want:
            texts = " | ".join(" ".join(r) for r in references)
            raise Wrong(f"n = {n}, '{' '.join(hypothesis)}' against '{texts}': {got} cannot be right, count by hand")


@check(
    hints=(
        "Write the 8 unigrams and the 7 bigrams of the hypothesis in a column and tick those in the reference.",
        "p1 = ticked unigrams / 8, with 'the' ticked once only. p2 = ticked bigrams / 7. The hypothesis is shorter "
        "(8 against 10), so BP = exp(1 - 10/8). BLEU-2 = 100 BP sqrt(p1 p2).",
        "p1 = 6/8. The ticked bigrams are 'cast and' and 'script were'.",
    )
)
def bleu_by_hand(answer):
    """Exercise 2.7: p1, p2, brevity penalty and BLEU-2 of one pair, worked out by hand."""
    names = ("p1", "p2", "BP", "BLEU-2")
    p1, p2, bp, bleu = expect_numbers(answer, names)
    want_bp, product = math.exp(1 - 10 / 8), 6 / 8 * 2 / 7
    _expect_three_digits((p1, p2, bp, bleu), (6 / 8, 2 / 7, want_bp, 100 * want_bp * math.sqrt(product)))
    if near(p1, 7 / 8):
        raise Wrong("p1: the hypothesis says 'the' twice and the reference once, so the second is clipped")
    if near(p1, 6 / 10):
        raise Wrong("p1: you divided by the 10 words of the reference (that is recall); precision divides by 8")
    if not near(p1, 6 / 8):
        raise Wrong(f"p1: {p1:.3f} of the 8 unigrams would be {8 * p1:.1f} matches. Tick them again")
    if near(p2, 2 / 8):
        raise Wrong("p2: a sentence of 8 words has 7 bigrams, not 8")
    if not near(p2, 2 / 7):
        raise Wrong(f"p2: {p2:.3f} of the 7 bigrams would be {7 * p2:.1f} matches. Tick them again")
    if near(bp, 1.0):
        raise Wrong("BP: the hypothesis has 8 words and the reference 10, so there is a penalty")
    if near(bp, math.exp(1 - 8 / 10)):
        raise Wrong("BP: above 1 it would be a reward for being short; the ratio in the exponent is upside down")
    if near(bp, 8 / 10):
        raise Wrong("BP: this is the ratio of the lengths; the penalty is exp(1 - r/c)")
    if not near(bp, want_bp):
        raise Wrong(f"BP: {bp:.3f} is not exp(1 - r/c) for c = 8 and r = 10")
    if near(bleu, want_bp * math.sqrt(product)):
        raise Wrong("BLEU-2 is right as a fraction; the score is given on the scale of 0 to 100")
    if near(bleu, 100 * want_bp * (6 / 8 + 2 / 7) / 2):
        raise Wrong("BLEU-2: you took the arithmetic mean of p1 and p2; BLEU takes the geometric mean")
    if near(bleu, 100 * want_bp * product):
        raise Wrong("BLEU-2: you multiplied p1 and p2; the geometric mean also takes the square root")
    if near(bleu, 100 * math.sqrt(product)):
        raise Wrong("BLEU-2: the brevity penalty is missing from the product")
    if not near(bleu, 100 * want_bp * math.sqrt(product)):
        raise Wrong(f"BLEU-2: your p1, p2 and BP are right, but 100 BP sqrt(p1 p2) is not {bleu:.2f}")
