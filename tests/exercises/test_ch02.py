"""The checks of chapter 02: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import itertools
import math
import re
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
import torch

from course_lib.exercises import ch02
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("bpe_step", "padded_batches", "masked_mean", "clipped_precision")
VALUES = {"padding_shares": "shares", "bleu_by_hand": "parts"}  # check: the name of the student's answer


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def merge(words, best, first_only=False, step=2):
    merged = {}
    for symbols, count in words.items():
        joined, i, done = [], 0, False
        while i < len(symbols):
            if symbols[i : i + 2] == best and not done:
                joined.append("".join(best))
                i, done = i + step, first_only
            else:
                joined.append(symbols[i])
                i += 1
        merged[tuple(joined)] = count
    return merged


def pair_counts(words, weighted=True):
    counts = Counter()
    for symbols, count in words.items():
        for pair in itertools.pairwise(symbols):
            counts[pair] += count if weighted else 1
    return counts


def smallest(counts):
    return min(counts, key=lambda pair: (-counts[pair], pair))


def bpe(choose=lambda words: smallest(pair_counts(words)), rewrite=merge):
    def step(words):
        best = choose(words)
        return best, rewrite(words, best)

    return step


def replace_in_string(words, best):
    return {tuple(" ".join(w).replace(" ".join(best), "".join(best)).split()): n for w, n in words.items()}


def from_the_right(words, best):
    backwards = {word[::-1]: count for word, count in words.items()}
    merged = {}
    for symbols, count in merge(backwards, best[::-1]).items():
        joined = "".join(best[::-1])
        merged[tuple("".join(best) if s == joined else s for s in symbols[::-1])] = count
    return merged


def twice_used(words, best):
    merged = {}
    for symbols, count in words.items():
        joined, i = [], 0
        while i < len(symbols):
            if symbols[i : i + 2] == best:
                joined.append("".join(best))
                i += 1 if symbols[i + 1 : i + 3] == best else 2
            else:
                joined.append(symbols[i])
                i += 1
        merged[tuple(joined)] = count
    return merged


def merge_in_place(words):
    best, merged = solution("02", "bpe_step")(words)
    words.clear()
    words.update(merged)
    return best, words


def letters_counted(words):
    """Choose among the letters of the joined words."""
    counts = Counter()
    for symbols, count in words.items():
        for pair in itertools.pairwise("".join(symbols)):
            counts[pair] += count
    return smallest(counts)


def once_a_word(words):
    """Count each pair of a word once, however often it stands there."""
    return smallest(sum((Counter(dict.fromkeys(itertools.pairwise(w), n)) for w, n in words.items()), Counter()))


def overlaps_once(words):
    """Count as the merge does: after a hit move on by two symbols."""

    def times(word, pair):
        found, i = 0, 0
        while i < len(word) - 1:
            hit = word[i : i + 2] == pair
            found, i = found + hit, i + 1 + hit
        return found

    return smallest({p: sum(n * times(w, p) for w, n in words.items()) for p in pair_counts(words)})


def substrings_counted(words):
    """Count a pair wherever its text stands in the spaced word."""
    pairs = pair_counts(words)
    return smallest({p: sum(n * " ".join(w).count(" ".join(p)) for w, n in words.items()) for p in pairs})


def batches(give=lambda batch: batch, **change):
    """The library of mistakes, as tensors."""

    def made(texts, stoi, batch_size, max_len):
        found = ch02._batches(texts, stoi, batch_size, max_len, **change)
        return [give((torch.tensor(ids), torch.tensor(real), where)) for ids, real, where in found]

    return made


def empty_rows_as_floats(*arguments):
    """Pad with pad_sequence, whose first row sets the type: torch.tensor([]) holds floats."""
    return [(ids.float() if "" in arguments[0] and not real[0].any() else ids, real, where)
            for ids, real, where in batches()(*arguments)]  # fmt: skip


def grams(tokens, n):
    return Counter(tuple(tokens[i : i + n]) for i in range(len(tokens) - n + 1))


def precision(count=grams, most=lambda counts: counts[0] | counts[-1], clip=lambda mine, most: (mine & most).total()):
    def clipped(hypothesis, references, n):
        mine = count(hypothesis, n)
        return clip(mine, most([count(reference, n) for reference in references])), mine.total()

    return clipped


def every_occurrence(hypothesis, references, n):
    most = grams(references[0], n) | grams(references[-1], n)
    mine = grams(hypothesis, n)
    pieces = [tuple(hypothesis[i : i + n]) for i in range(len(hypothesis) - n + 1)]
    return sum(min(mine[piece], most[piece]) for piece in pieces), len(pieces)


def mean(divide):
    def masked(vectors, mask):
        real = mask.unsqueeze(-1)
        return divide(vectors, real, (vectors * real).sum(1))

    return masked


def masked_at_the_start(vectors, lengths):
    """The mean of each row's first entries, as many as it has real tokens."""
    real = torch.arange(vectors.shape[1]) < lengths[:, None]
    return (vectors * real[:, :, None]).sum(1) / lengths.clamp(min=1)[:, None]


BP, PRODUCT = math.exp(1 - 10 / 8), 6 / 8 * 2 / 7
PLANTED = {
    "bpe_step": [
        ("weight each pair", bpe(lambda words: smallest(pair_counts(words, weighted=False)))),
        ("not once for each word", bpe(once_a_word)),
        ("count overlapping places too", bpe(overlaps_once)),
        ("never neighbours inside one word", bpe(lambda words: ("a", "l"))),
        (
            "another pair occurs more often",
            bpe(lambda words: min(pair_counts(words).items(), key=lambda item: item[1])[0]),
        ),
        ("came back unmerged", bpe(rewrite=lambda words, best: words)),
        ("not only the first", bpe(rewrite=lambda words, best: merge(words, best, first_only=True))),
        ("used twice", bpe(rewrite=twice_used)),
        ("merge from left to right", bpe(rewrite=from_the_right)),
        ("compare whole symbols", bpe(rewrite=replace_in_string)),
        ("no letter may be lost", bpe(rewrite=lambda words, best: merge(words, best, step=3))),
        ("counts of the words changed", bpe(rewrite=lambda words, best: dict.fromkeys(merge(words, best), 1))),
        ("on a tie take the smaller", bpe(lambda words: max((n, p) for p, n in pair_counts(words).items())[1])),
        ("changes its argument", merge_in_place),
        ("not the letters of the joined word", bpe(letters_counted)),
        ("not a piece of the word's text", bpe(substrings_counted)),
        ("their first symbols are equal", bpe(lambda words: min(c := pair_counts(words), key=lambda p: (-c[p], p[0])))),
        ("not their joined texts", bpe(lambda words: min(c := pair_counts(words), key=lambda p: (-c[p], "".join(p))))),
        ("tuple (pair, words)", lambda words: merge(words, ("n", "o"))),
        ("tuple of two strings", lambda words: ("no", words)),
        ("dictionary from tuples", lambda words: (("n", "o"), {"no a h": 9})),
    ],
    "padded_batches": [
        ("follow the order of `texts`", batches(order="none")),
        ("by the full length", batches(order="full")),
        ("the longest texts", batches(order="longest")),
        ("changed their order", batches(order="ties")),
        ("by their ids", batches(order="text")),
        ("longest text of all", batches(T="all")),
        ("padded to max_len", batches(T="max_len")),
        ("must not be dropped", batches(last=False)),
        ("the last max_len tokens", batches(cut="last")),
        ("max_len is not used", batches(cut="none")),
        ("is left out", batches(unknown=None)),
        ("became padding", batches(unknown="<pad>")),
        ("the id of <unk>: fill", batches(pad="<unk>")),
        ("stoi['<pad>'] is", batches(pad=1)),
        ("with stoi as given", batches(unknown=0)),
        ("pads on the right", batches(left=True)),
        ("True at the padding", batches(mask="inverse")),
        ("True everywhere", batches(mask="all")),
        ("read off the ids", batches(mask="ids")),
        ("counts the rows of the batch", batches(where="batch")),
        ("after sorting", batches(where="sorted")),
        ("the position of the first for both", batches(where="looked up")),
        ("you lower-case the text", batches(split=lambda string: string.lower().split())),
        ("cut the mark off", batches(split=lambda string: re.findall(r"\w+|[^\w\s]", string))),
        ("became one <unk>: it has no token", batches(split=lambda string: string.split(" "))),
        ("torch.tensor([]) holds floats", empty_rows_as_floats),
        ("by length it should hold", batches(lambda b: (b[0].flip(0), b[1].flip(0), b[2][::-1]))),
        ("make 2 batches", lambda *a: batches()(*a)[:1] * 3),
        ("has 2 real tokens", batches(lambda b: (b[0], b[1] & (torch.arange(b[1].shape[1]) < 2), b[2]))),
        (
            "has shape (4, 4); wanted (4, 3)",
            batches(lambda b: tuple(torch.cat([part, part[:, :1]], 1) if k < 2 else part for k, part in enumerate(b))),
        ),
        ("tuple (ids, real, where), got 2", batches(lambda b: b[:2])),
        ("where is a int", batches(lambda b: (*b[:2], 3))),
        ("in `texts`, B integers", batches(lambda b: (*b[:2], torch.tensor(b[2]).double()))),
        ("real has dtype", batches(lambda b: (b[0], b[1].float(), b[2]))),
        ("ids has dtype", batches(lambda b: (b[0].float(), *b[1:]))),
        ("wanted two axes", batches(lambda b: (b[0].flatten(), *b[1:]))),
        ("both are (B, T)", batches(lambda b: (b[0], b[1].T, b[2]))),
        ("ids is a list", batches(lambda b: (b[0].tolist(), *b[1:]))),
        ("a list of batches, got", lambda *a: batches()(*a)[0][0]),
        ("a generator, which can be read only once", lambda *a: (batch for batch in batches()(*a))),
    ],
    "masked_mean": [
        ("not by T", mean(lambda vectors, real, total: total / vectors.shape[1])),
        ("whatever its vector is", mean(lambda v, real, total: total / (v * real).ne(0).any(2).sum(1)[:, None])),
        ("the mask is not used", mean(lambda vectors, real, total: vectors.mean(1))),
        ("the padding's vectors", mean(lambda v, real, total: v.sum(1) / real.sum(1).clamp(min=1))),
        ("where the real tokens are", lambda v, mask: masked_at_the_start(v, mask.sum(1))),
        ("sum over the real tokens", mean(lambda vectors, real, total: total)),
        ("of the whole batch", mean(lambda vectors, real, total: total / real.sum())),
        ("averaged the padding", mean(lambda v, real, total: (v * ~real).sum(1) / (~real).sum(1).clamp(min=1))),
        ("largest value", mean(lambda vectors, real, total: vectors.masked_fill(~real, -math.inf).amax(1))),
        ("0 / 0", mean(lambda vectors, real, total: total / real.sum(1))),
        ("not their mean", mean(lambda vectors, real, total: vectors[:, 0])),
        ("the row with a single token", mean(lambda v, real, total: total / real.sum(1).clamp(min=2))),
        ("must give zeros", mean(lambda v, real, total: torch.where(real.any(1), total / real.sum(1), v.mean(1)))),
        ("0 / 0 was computed", mean(lambda v, real, total: (total / real.sum(1)).nan_to_num(0.0))),
        ("no gradient flows", mean(lambda v, real, total: (total / real.sum(1).clamp(min=1)).detach())),
        ("the gradients are not", mean(lambda v, real, total: total.detach() / real.sum(1).clamp(min=1) + 0 * total)),
        ("has shape (3, 5)", mean(lambda vectors, real, total: vectors.mean(2))),
        ("is a list", mean(lambda vectors, real, total: total.tolist())),
    ],
    "padding_shares": [
        ("are percentages", (1100 / 28, 700 / 24, 3100 / 48)),
        ("fractions of real tokens", (17 / 28, 17 / 24, 17 / 48)),
        ("divided the padding by the number of tokens", (11 / 17, 7 / 17, 31 / 17)),
        ("these are counts", (11, 7, 31)),
        ("'sorted by length': 0.708 is the fraction of real tokens", (11 / 28, 17 / 24, 31 / 48)),
        ("'fixed length 12': 31 cannot be a fraction", (11 / 28, 7 / 24, 31)),
        ("are swapped", (7 / 24, 11 / 28, 31 / 48)),
        ("add up the cells first", (0.35, 0.275, 31 / 48)),
        ("did you sort?", (11 / 28, 11 / 28, 31 / 48)),
        ("'sorted by length' is not right", (11 / 28, 9 / 26, 31 / 48)),
        ("'fixed length 12' is not right", (11 / 28, 7 / 24, 23 / 40)),
        ("right to two digits", (0.39, 0.29, 0.65)),
        ("got 2", (11 / 28, 7 / 24)),
        ("got float", 11 / 28),
        ("must be a number, got str", ("11/28", "7/24", "31/48")),
    ],
    "clipped_precision": [
        ("clip each count", precision(clip=lambda mine, most: sum(n for g, n in mine.items() if g in most))),
        ("(a set)", precision(clip=lambda mine, most: len(set(mine) & set(most)))),
        ("swap them", lambda h, r, n: precision()(h, r, n)[::-1]),
        ("over every occurrence", every_occurrence),
        ("number of different unigrams", lambda h, r, n: (precision()(h, r, n)[0], len(grams(h, n)))),
        ("the last n-gram is missing", precision(lambda t, n: Counter(tuple(t[i : i + n]) for i in range(len(t) - n)))),
        ("shorter than n", precision(lambda t, n: Counter(tuple(t[i : i + n]) for i in range(len(t))))),
        (
            "not one joined string",
            precision(lambda t, n: Counter("".join(t[i : i + n]) for i in range(len(t) - n + 1))),
        ),
        (
            "Search among the reference's tokens",
            lambda h, r, n: (
                sum(min(c, max(" ".join(x).count(" ".join(g)) for x in r)) for g, c in grams(h, n).items()),
                max(len(h) - n + 1, 0),
            ),
        ),
        ("kept the best", lambda h, r, n: max(precision()(h, [one], n) for one in r)),
        ("not the sum", precision(most=lambda counts: sum(counts, Counter()))),
        ("not the minimum", precision(most=lambda counts: counts[0] & counts[-1])),
        ("only the second reference", precision(most=lambda counts: counts[0])),
        ("only the first reference", precision(most=lambda counts: counts[-1])),
        ("n is not used", lambda hypothesis, references, n: precision()(hypothesis, references, 1)),
        ("to its own end", lambda h, r, n: precision(lambda t, n: grams(t[: len(h)], n))(h, r, n)),
        ("a length of references", lambda h, r, n: (precision()(h, r, n)[0], len(r[-1]) - n + 1)),
        ("overlapping ones included", precision(lambda t, n: Counter(zip(*[iter(t)] * n, strict=False)))),
        ("do not divide yet", lambda h, r, n: precision()(h, r, n)[0] / 6),
        ("has no 4-gram", lambda h, r, n: (precision()(h, r, n)[0], len(h) - n + 1)),
        ("expected a tuple", lambda hypothesis, references, n: 4),
        ("whole numbers, got", lambda hypothesis, references, n: (4.0, 6.0)),
        ("count by hand", lambda h, r, n: precision()(h, r, n) if n != 3 else (0, 5)),
    ],
    "bleu_by_hand": [
        ("the second is clipped", (7 / 8, 2 / 7, BP, 40.0)),
        ("p1: 75 is not a fraction", (75, 200 / 7, 100 * BP, 100 * BP * PRODUCT**0.5)),
        ("p2: 28.5714 is not a fraction", (6 / 8, 200 / 7, BP, 40.0)),
        ("is a percentage; only", (6 / 8, 2 / 7, 100 * BP, 40.0)),
        ("that is recall", (6 / 10, 2 / 7, BP, 40.0)),
        ("p1: 0.625 of the 8", (5 / 8, 2 / 7, BP, 40.0)),
        ("has 7 bigrams, not 8", (6 / 8, 2 / 8, BP, 40.0)),
        ("p2: 0.429 of the 7", (6 / 8, 3 / 7, BP, 40.0)),
        ("so there is a penalty", (6 / 8, 2 / 7, 1.0, 40.0)),
        ("upside down", (6 / 8, 2 / 7, math.exp(1 - 8 / 10), 40.0)),
        ("ratio of the lengths", (6 / 8, 2 / 7, 0.8, 40.0)),
        ("is not exp(1 - r/c)", (6 / 8, 2 / 7, 0.5, 40.0)),
        ("right as a fraction", (6 / 8, 2 / 7, BP, BP * PRODUCT**0.5)),
        ("arithmetic mean", (6 / 8, 2 / 7, BP, 100 * BP * (6 / 8 + 2 / 7) / 2)),
        ("takes the square root", (6 / 8, 2 / 7, BP, 100 * BP * PRODUCT)),
        ("penalty is missing", (6 / 8, 2 / 7, BP, 100 * PRODUCT**0.5)),
        ("is not 40.00", (6 / 8, 2 / 7, BP, 40.0)),
        ("right to two digits", (0.75, 0.29, 0.78, 36)),
        ("got 1", (0.36,)),
        ("got float", 36.05),
    ],
}
IDENTITY = {  # "returns its input"
    "bpe_step": lambda words: words,
    "padded_batches": lambda texts, stoi, batch_size, max_len: texts,
    "masked_mean": lambda vectors, mask: vectors,
    "clipped_precision": lambda hypothesis, references, n: (hypothesis, references),
    "padding_shares": (1, 10, 2, 4),
    "bleu_by_hand": (8, 10, 1, 0),
}
ZEROS = {
    "bpe_step": lambda words: (("", ""), {(): 0}),
    "padded_batches": batches(lambda b: tuple(0 * part if k == 0 else part for k, part in enumerate(b))),
    "masked_mean": lambda vectors, mask: torch.zeros(vectors.shape[0], vectors.shape[2], dtype=vectors.dtype),
    "clipped_precision": lambda hypothesis, references, n: (0, 0),
    "padding_shares": (0, 0, 0),
    "bleu_by_hand": (0, 0, 0, 0),
}


@pytest.mark.parametrize("name", [*FUNCTIONS, *VALUES])
def test_reference_passes(name):
    assert verdict(getattr(ch02, name), solution("02", VALUES.get(name, name))) == f"passed: {name}"


@pytest.mark.parametrize("name", VALUES)
def test_three_digits_are_enough(name):
    rounded = tuple(float(f"{value:.3g}") for value in solution("02", VALUES[name]))
    assert verdict(getattr(ch02, name), rounded) == f"passed: {name}"


# Fails when a check insists on Python's own int and float.
@pytest.mark.parametrize("kind", [tuple, torch.tensor, np.array, lambda v: [np.float32(x) for x in v]])
def test_numbers_of_any_kind_are_welcome(kind):
    assert verdict(ch02.bleu_by_hand, kind(solution("02", "parts"))) == "passed: bleu_by_hand"
    shares = (Fraction(11, 28), Fraction(7, 24), Fraction(31, 48))
    assert verdict(ch02.padding_shares, shares) == "passed: padding_shares"
    right = solution("02", "clipped_precision")
    assert verdict(ch02.clipped_precision, lambda *a: tuple(map(np.int64, right(*a)))) == "passed: clipped_precision"
    assert verdict(ch02.clipped_precision, lambda *a: torch.tensor(right(*a))) == "passed: clipped_precision"


def test_batches_of_any_kind_are_welcome():
    """Fails when a check insists on tuples and lists."""
    for give in (list, lambda b: (b[0].numpy(), b[1].numpy(), np.array(b[2])), lambda b: (*b[:2], torch.tensor(b[2]))):
        assert verdict(ch02.padded_batches, batches(give)) == "passed: padded_batches"
    assert verdict(ch02.padded_batches, lambda *a: tuple(batches()(*a))) == "passed: padded_batches"
    right = solution("02", "bpe_step")
    assert verdict(ch02.bpe_step, lambda words: [list(right(words)[0]), right(words)[1]]) == "passed: bpe_step"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch02, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    messages = [verdict(getattr(ch02, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("answers", [IDENTITY, ZEROS], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", PLANTED)
def test_the_laziest_answers_fail(name, answers):
    assert verdict(getattr(ch02, name), answers[name]).startswith("not yet: ")


@pytest.mark.parametrize("name", PLANTED)
def test_untouched_is_not_attempted(name):
    assert verdict(getattr(ch02, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", PLANTED)
def test_messages_do_not_show_the_solution(name):
    # The reference's own lines must not stand in any diagnosis.
    messages = " ".join(verdict(getattr(ch02, name), wrong) for _, wrong in PLANTED[name])
    for line in ("clamp(min=1)", "most |=", "torch.full(", "step = 2", "len(rows[where[-1]])"):
        assert line not in messages
