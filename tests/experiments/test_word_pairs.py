"""Pairs of words: counted within reviews, and added to the embedding."""

import itertools
from collections import Counter

import torch

from course_lib.experiments import word_pairs
from course_lib.positional import Sinusoidal


def test_frequent_pairs_are_counted_within_reviews():
    """Fails if a pair reaches from one review into the next, or the count's limit is another: counted by a loop."""
    rows = [torch.tensor(row) for row in ([2, 5, 2, 5, 7], [5, 2, 7], [2, 5], [7])]
    counts = Counter()
    for row in rows:
        counts.update(itertools.pairwise([1, *row.tolist()]))
    wanted = sorted(before * 9 + after for (before, after), count in counts.items() if count >= 2)
    assert word_pairs.frequent_pairs(rows, 9, least=2).tolist() == wanted == [1 * 9 + 2, 2 * 9 + 5, 5 * 9 + 2]


def test_pair_embedding_adds_the_row_of_each_frequent_pair():
    """Fails if a pair gets another row, a rare pair one at all, or the rows are not added before the rest."""
    torch.manual_seed(0)
    codes = torch.tensor([1 * 9 + 2, 2 * 9 + 5, 5 * 9 + 2])
    embedding = word_pairs.PairEmbedding(9, 4, codes, position=Sinusoidal(4), scale=1.0, norm=True)
    ids = torch.tensor([[2, 5, 2, 5, 7], [5, 2, 8, 8, 5]])
    assert embedding.rows(ids).tolist() == [[1, 2, 3, 2, 0], [0, 3, 0, 0, 0]]
    x = embedding.embedding.weight[ids] + embedding.pairs.weight[embedding.rows(ids)]
    torch.testing.assert_close(embedding(ids), embedding.norm(embedding.position.add(x)))
    assert embedding.pairs.weight[0].eq(0).all()
