"""IMDB's reviews as every experiment on them reads and scores them.

The official test reviews decide nothing: everything is chosen on a tenth of the training reviews, another tenth for
each seed.
"""

import torch

from course_lib import datasets
from course_lib.text import tokenize


def raw_reviews(seed, fraction):
    """Texts and labels of each split, and "seen": which test reviews stand in the official training set too."""
    texts, labels = datasets.imdb("train")
    parts = zip(("train", "valid"), datasets.split_validation(len(texts), fraction, seed), strict=True)
    reviews = {split: ([texts[i] for i in part], [labels[i] for i in part]) for split, part in parts}
    reviews["test"] = datasets.imdb("test")
    known = set(texts)
    reviews["seen"] = torch.tensor([text in known for text in reviews["test"][0]])
    return reviews


def tokenized_reviews(seed, fraction):
    """`raw_reviews` with lists of tokens in place of texts."""
    reviews = raw_reviews(seed, fraction)
    for split in ("train", "valid", "test"):
        texts, labels = reviews[split]
        reviews[split] = [tokenize(text) for text in texts], labels
    return reviews


def accuracy_of(logits, labels):
    """The fraction of reviews on the right side of 0."""
    return ((logits > 0) == (labels > 0)).double().mean().item()


def test_scores(logits, reviews):
    """Accuracy on all test reviews, and without those that stand in the training set too."""
    labels, unseen = torch.tensor(reviews["test"][1]), ~reviews["seen"]
    return {
        "accuracy": accuracy_of(logits, labels),
        "accuracy_unseen": accuracy_of(logits[unseen], labels[unseen]),
        "seen": reviews["seen"].sum().item(),
    }
