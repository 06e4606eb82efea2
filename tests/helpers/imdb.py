"""Miniature reviews in place of IMDB's: words that tell among words that do not."""

import random

GOOD, BAD = ["good", "great", "fine"], ["bad", "awful", "poor"]
FILLER = ["the", "film", "actor", "plot", "was", "."]


def review(rng, label, rate=1 / 3, filler=FILLER):
    """A review of 4 to 30 words, of which one in three tells its label."""
    telling = GOOD if label else BAD
    return " ".join(rng.choice(telling if rng.random() < rate else filler) for _ in range(rng.randint(4, 30)))


def splits(review=review, seen=3, **sizes):
    """{split: (texts, labels)}, half of them good; the first `seen` test reviews stand in the training set too."""
    found = {}
    for seed, (split, n) in enumerate(sizes.items()):
        rng, labels = random.Random(seed), [i % 2 for i in range(n)]
        found[split] = [review(rng, label) for label in labels], None if split == "unsup" else labels
    found["test"][0][:seen] = found["train"][0][:seen]
    return found
