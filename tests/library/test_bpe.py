"""Byte-pair encoding against the paper's algorithm and the `tokenizers` library."""

import itertools
import json
import random
from collections import Counter

import pytest

from course_lib import bpe


def test_bpe_on_the_example_of_the_paper():
    """Fails if counts are not weighted by the words' or the pairs of a word are not updated after a merge."""
    merges = bpe.train_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 10)
    assert merges[:3] == [("e", "s"), ("es", "t"), ("est", "</w>")]
    assert set(merges[3:5]) == {("l", "o"), ("lo", "w")}
    assert bpe.bpe_tokenize("newest", merges) == ["newest</w>"]
    assert bpe.bpe_tokenize("wow", merges) == ["w", "o", "w", "</w>"]


def naive_bpe(word_counts, num_merges, tie_break=min):
    """Algorithm 1 of the paper: count all pairs anew each time. Also says if a tie was met."""
    words, merges, tie = {(*word, "</w>"): count for word, count in word_counts.items()}, [], False
    for _ in range(num_merges):
        pairs = Counter()
        for symbols, count in words.items():
            for pair in itertools.pairwise(symbols):
                pairs[pair] += count
        if not pairs:
            break
        top = max(pairs.values())
        tied = sorted(pair for pair, count in pairs.items() if count == top)
        tie |= len(tied) > 1
        best = tie_break(tied)
        merges.append(best)
        joined = {}
        for symbols, count in words.items():
            out = []
            for symbol in symbols:
                # `out` is marked by None after a join, so that "aaa" gives "aa", "a".
                if out and out[-1] is not None and (out[-1], symbol) == best:
                    out[-1:] = [out[-1] + symbol, None]
                else:
                    out.append(symbol)
            joined[tuple(symbol for symbol in out if symbol is not None)] = count
        words = joined
    return merges, tie


def random_words(seed, n=150, most=997):
    """Words over three letters with random counts: a large `most` makes ties rare."""
    rng = random.Random(seed)
    return {"".join(rng.choice("abc") for _ in range(rng.randint(1, 8))): rng.randint(1, most) for _ in range(n)}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("most", [3, 997])
def test_bpe_equals_counting_everything_anew(seed, most):
    """Fails if the pair counts drift from the truth, or if a tie is broken by another rule."""
    words = random_words(seed, n=30, most=most)
    want, tie = naive_bpe(words, 60)
    assert tie
    assert bpe.train_bpe(words, 60) == want


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_bpe_equals_the_tokenizers_library(seed):
    """Fails if merges or their application differ. "_" is the end of a word, which the library does not know."""
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    words = random_words(seed)
    merges, tie = naive_bpe(words, 20)
    assert not tie, "the library breaks ties by its own rule: choose another seed"
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    trainer = trainers.BpeTrainer(vocab_size=len("abc_") + 20, show_progress=False, initial_alphabet=list("abc_"))
    tokenizer.train_from_iterator((f"{word}_" for word, count in words.items() for _ in range(count)), trainer)
    learned = json.loads(tokenizer.to_str())["model"]["merges"]

    assert bpe.train_bpe(words, 20) == [tuple(s.replace("_", "</w>") for s in pair) for pair in learned]
    for word in random_words(100 + seed):
        want = [token.replace("_", "</w>") for token in tokenizer.encode(f"{word}_").tokens]
        assert bpe.bpe_tokenize(word, merges) == want


def test_bpe_ties_and_the_end_of_merging():
    """Fails if ties follow the order of the words, or if a merge is invented when none is left."""
    for words in ({"ba": 1, "ab": 1}, {"ab": 1, "ba": 1}):
        assert bpe.train_bpe(words, 9) == [("a", "</w>"), ("a", "b"), ("ab", "</w>"), ("b", "a</w>")]
    assert bpe.train_bpe({}, 3) == bpe.train_bpe({"ab": 1}, 0) == []


def test_bpe_joins_overlapping_pairs_from_the_left():
    """Fails if "aaa" is joined from the right or its overlap is counted wrongly."""
    merges = bpe.train_bpe({"aaa": 9, "b": 1}, 1)
    assert merges == [("a", "a")]
    assert bpe.bpe_tokenize("aaaaa", merges) == ["aa", "aa", "a", "</w>"]


def test_ties_to_the_largest_without_an_end_of_word():
    """Fails if a university's convention (bytes, no end mark, the largest of tied pairs) cannot be had."""
    words = {tuple(bytes([b]) for b in word.encode()): n for word, n in {" ba": 1, " ab": 1, " é": 2}.items()}
    merges = bpe.train_bpe(words, 9, end_of_word=None, ties="largest")
    assert merges == [
        (b"\xc3", b"\xa9"), (b" ", b"\xc3\xa9"), (b"b", b"a"), (b"a", b"b"), (b" ", b"ba"), (b" ", b"ab"),
    ]  # fmt: skip
    assert bpe.bpe_tokenize([b" ", b"b", b"a", b"b"], merges, end_of_word=None) == [b" ba", b"b"]
    assert bpe.bpe_tokenize("ab", [], end_of_word=None) == ["a", "b"]


@pytest.mark.parametrize("seed", range(4))
def test_ties_to_the_largest_equal_counting_everything_anew(seed):
    """Fails if the largest of tied pairs is not taken at some merge."""
    words = random_words(seed, n=30, most=3)
    assert bpe.train_bpe(words, 60, ties="largest") == naive_bpe(words, 60, max)[0]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bpe.train_bpe({"a": 1}, -1), "num_merges must be a whole number of at least 0, got -1"),
        (lambda: bpe.train_bpe({"b": 1, "a": 0}, 1), r"counts must be at least 1, got \('a', 0\)"),
        (lambda: bpe.train_bpe({"a": 1}, 1, ties="first"), "ties must be one of 'smallest', 'largest', got 'first'"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes or the message names another thing."""
    with pytest.raises(ValueError, match=message):
        call()
