"""Toy reviews: the data are apart, and padding matters only without a mask."""

import pytest
import torch

from course_lib.experiments import toy_reviews
from course_lib.text import pad_batch


@pytest.fixture(scope="module")
def reviews():
    return toy_reviews.review_task(train=60, test=20)


def test_no_test_review_is_trained_on(reviews):
    """Fails if train and test overlap, a review's mirror is on the other side, or labels are not balanced."""
    bags = [{tuple(sorted(row)) for row in rows} for rows, _ in (reviews.train, reviews.test)]
    assert not bags[0] & bags[1]
    assert sum(reviews.test[1]) == 10
    assert len(reviews.texts) == 20


@pytest.mark.parametrize("pool", ["mean", "max", "cls"])
def test_padding_matters_only_without_a_mask(reviews, pool):
    """Fails if a classifier reads padding, or if `Unmasked` passes `real` on."""
    torch.manual_seed(0)
    model = toy_reviews.review_classifier(reviews, pool, width=8, layers=1)
    ids, real = pad_batch(reviews.test[0][:3])
    wide, wide_real = pad_batch(reviews.test[0][:3], ids.shape[1] + 9)
    assert torch.allclose(model(ids, real), model(wide, wide_real), atol=1e-5)
    unmasked = toy_reviews.Unmasked(model)
    assert not torch.allclose(unmasked(ids, real), unmasked(wide, wide_real), atol=1e-4)


def test_classifier_training_is_recorded_by_epoch(reviews):
    """Fails if epochs are lost or the accuracy is not that of the test reviews."""
    torch.manual_seed(0)
    model = toy_reviews.review_classifier(reviews, "mean", width=8, layers=1)
    history = toy_reviews.train_classifier(model, reviews, 2)
    assert [entry["epoch"] for entry in history] == [1, 2]
    assert history[-1]["accuracy"] == toy_reviews.review_accuracy(model, reviews)
    assert history[-1]["accuracy"] == toy_reviews.review_accuracy(model, reviews, length=120)
