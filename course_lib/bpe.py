"""Byte-pair encoding: a vocabulary of pieces, learned by merging what stands together most often."""

import itertools
from collections import Counter, defaultdict

from course_lib.utils.validate import check_choice, check_instance, check_length, check_sizes

END_OF_WORD = "</w>"


def train_bpe(word_counts, num_merges, end_of_word=END_OF_WORD, ties="smallest"):
    """Learn which pairs of symbols to join, in order: again and again the most frequent pair becomes one new symbol.

    Args:
        word_counts: dict of word to its count. A word is a str, or a tuple of symbols that `+` joins, such as bytes.
        num_merges: most merges to learn; fewer come back when every word is one symbol.
        end_of_word: symbol after each word; None for none, as in GPT-2, whose words begin with their space.
        ties: which of equally frequent pairs, "smallest" or "largest" (as most byte-level trainers).

    >>> train_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 4)
    [('e', 's'), ('es', 't'), ('est', '</w>'), ('l', 'o')]

    Source: Sennrich, Haddow and Birch 2016, "Neural Machine Translation of Rare Words with Subword Units",
    arXiv 1508.07909, algorithm 1. Differs: only words that hold the pair are visited, and the tie rule is free.
    """
    check_sizes(0, num_merges=num_merges)
    check_choice("ties", ties, ("smallest", "largest"))
    check_instance("word_counts", word_counts, dict)
    if min(word_counts.values(), default=1) < 1:
        raise ValueError(f"counts must be at least 1, got {min(word_counts.items(), key=lambda item: item[1])}")
    tie_break = {"smallest": min, "largest": max}[ties]
    words = [(split_word(word, end_of_word), count) for word, count in word_counts.items()]
    pair_counts, where = Counter(), defaultdict(set)  # where: the words that a pair stands in

    def add(index, sign):
        symbols, count = words[index]
        for pair in itertools.pairwise(symbols):
            pair_counts[pair] += sign * count
            where[pair].add(index)

    for index in range(len(words)):
        add(index, 1)
    merges = []
    while len(merges) < num_merges and (top := max(pair_counts.values(), default=0)) > 0:
        best = tie_break(pair for pair, count in pair_counts.items() if count == top)
        merges.append(best)
        for index in where.pop(best):  # only these words change: take their pairs out, join, count again
            add(index, -1)
            symbols, count = words[index]
            words[index] = merge_pair(symbols, best), count
            add(index, 1)
    return merges


def bpe_tokenize(word, merges, end_of_word=END_OF_WORD):
    """Cut a word into learned pieces: join the earliest-learned pair until none is left.

    The last piece ends in `end_of_word`, so that words can be told apart again.

    >>> merges = train_bpe({"low": 5, "lower": 2, "newest": 6, "widest": 3}, 10)
    >>> bpe_tokenize("lowest", merges)
    ['low', 'est</w>']

    Source: Sennrich, Haddow and Birch 2016, section 3.2.
    """
    check_length("merges", merges, 0)
    rank = {pair: i for i, pair in enumerate(merges)}
    symbols = split_word(word, end_of_word)
    while len(symbols) > 1:
        best = min(itertools.pairwise(symbols), key=lambda pair: rank.get(pair, len(rank)))
        if best not in rank:
            break
        symbols = merge_pair(symbols, best)
    return symbols


def split_word(word, end_of_word):
    """The symbols that a word starts as."""
    return [*word, end_of_word] if end_of_word else [*word]


def merge_pair(symbols, pair):
    """The symbols with each occurrence of the pair joined, from left to right."""
    merged, i = [], 0
    while i < len(symbols):
        if tuple(symbols[i : i + 2]) == pair:
            merged.append(symbols[i] + symbols[i + 1])
            i += 2
        else:
            merged.append(symbols[i])
            i += 1
    return merged
