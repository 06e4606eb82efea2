"""Toy reviews whose verdict only the order of the words tells: how to pool, and what padding does (chapter 09)."""

from typing import NamedTuple

import torch
from tqdm import tqdm

from course_lib.datasets import synthetic
from course_lib.positional import Sinusoidal
from course_lib.text import batches, build_vocab, numericalize, pad_batch, tokenize
from course_lib.train import classification_loss, evaluate, train_epoch
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier


class Reviews(NamedTuple):
    """The toy reviews as ids.

    Args:
        vocab: vocabulary of the training reviews.
        train: (ids, labels) of the training reviews; each review's mirror stands beside it.
        test: the same of the others.
        texts: the test reviews as strings.
    """

    vocab: object
    train: tuple
    test: tuple
    texts: list


def review_task(train=1600, test=400, seed=1):
    """Draw reviews and number their words.

    Args:
        test: test reviews, an even number; none of them is a training review.

    >>> task = review_task(train=20, test=4)
    >>> len(task.train[0]), sum(task.test[1])
    (20, 2)
    """
    drawn = synthetic.reviews(train + test, seed)
    tokens, labels = [tokenize(review) for review, _ in drawn], [label for _, label in drawn]
    vocab = build_vocab(tokens[:train])
    ids = [numericalize(review, vocab) for review in tokens]
    texts = [review for review, _ in drawn[train:]]
    return Reviews(vocab, (ids[:train], labels[:train]), (ids[train:], labels[train:]), texts)


def review_classifier(task, pool, width=32, heads=2, layers=2):
    """A small encoder-style Transformer that judges reviews."""
    encoder = TransformerEncoder([EncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    return TransformerClassifier(len(task.vocab), encoder, position=Sinusoidal(width), pool=pool)


class Unmasked(torch.nn.Module):
    """A classifier that is never told what is padding: it attends to it and pools it."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, real=None):
        """(B, T) ids to (B, C) logits; `real` is dropped on the way."""
        return self.model(ids)


def train_classifier(model, task, epochs, *, batch_size=32, learning_rate=3e-3, seed=0):
    """Train with Adam, and score the test reviews after every epoch.

    Args:
        model: of (ids, real), such as `TransformerClassifier`.

    Returns:
        list with a dict for each epoch: "epoch", "train_loss", "train_accuracy", "accuracy" on the test reviews.
    """
    optimizer, generator = torch.optim.Adam(model.parameters(), learning_rate), torch.Generator().manual_seed(seed)
    history = []
    for epoch in tqdm(range(1, epochs + 1), desc="epochs", leave=False):
        loader = list(batches(*task.train, batch_size, generator=generator))
        means = train_epoch(model, loader, classification_loss, optimizer, clip_norm=1.0)
        entry = {"epoch": epoch} | {f"train_{key}": value for key, value in means.items()}
        history.append(entry | {"accuracy": review_accuracy(model, task)})
    return history


def review_accuracy(model, task, length=None):
    """Accuracy on the test reviews.

    Args:
        length: pad all of them to so many tokens; None: batches of 100, each padded to its own longest row.

    Returns:
        float from 0 to 1.
    """
    if length is None:
        loader = list(batches(*task.test, 100, shuffle=False))
    else:
        loader = [(*pad_batch(task.test[0], length), torch.tensor(task.test[1]))]
    return evaluate(model, loader, classification_loss)["accuracy"]
