"""Bags that vote: features by hand, and that the better model is trusted."""

import torch

from course_lib.experiments import imdb_voting


def test_features_are_words_and_frequent_pairs():
    """Fails if a pair gets another number, or a rare one a number at all."""
    codes = torch.tensor([1 * 9 + 2, 2 * 9 + 5, 5 * 9 + 2])
    features = imdb_voting.pair_features([torch.tensor([2, 5, 2, 7]), torch.tensor([8])], codes, 9)
    assert [row.tolist() for row in features] == [[2, 5, 2, 7, 9, 10, 11], [8]]


def test_vote_trusts_the_better_model():
    """Fails if the weights are not the optimum of logistic regression: the gradient of its loss is zero there."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(2, (300,), generator=generator)
    noise = torch.randn(300, 2, generator=generator)
    logits = (2 * labels - 1)[:, None] * torch.tensor([2.0, 0.1]) + noise
    weights = imdb_voting.voting_weights(logits, labels)
    assert weights[0] > 5 * weights[1].abs()
    x = torch.cat([logits, torch.ones(300, 1)], 1).double()
    torch.testing.assert_close(
        x.T @ ((x @ weights).sigmoid() - labels) / 300, torch.zeros(3).double(), rtol=0, atol=1e-5
    )
