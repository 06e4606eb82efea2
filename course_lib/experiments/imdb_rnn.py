"""Recurrent classifiers on IMDB's reviews (chapter 05)."""

import functools
import time

import torch

from course_lib.experiments import experiment
from course_lib.experiments.imdb import test_scores, tokenized_reviews
from course_lib.lstm_gru import GRU, LSTM, set_forget_bias
from course_lib.recurrent_models import SequenceClassifier
from course_lib.rnn import RNN
from course_lib.text import UNK, batches, build_vocab, numericalize
from course_lib.train import classification_loss, fit
from course_lib.utils import number_of_parameters


class LastColumn(SequenceClassifier):
    """The pitfall: reads the state at the last column of a padded batch, as `out[:, -1]` does.

    In a row shorter than the longest that state has read padding after the review.
    """

    def pooled(self, states, real):
        """(B, T, D) states to (B, D)."""
        return states[:, -1]


# name: (layer, pool, bidirectional, whether batches are bucketed, how many of a review's last tokens are kept)
CLASSIFIERS = {
    "RNN, last": (RNN, "last", False, True, 200),
    "LSTM, last": (LSTM, "last", False, True, 200),
    "GRU, last": (GRU, "last", False, True, 200),
    "RNN, max": (RNN, "max", False, True, 200),
    "LSTM, max": (LSTM, "max", False, True, 200),
    "GRU, max": (GRU, "max", False, True, 200),
    "LSTM, last, random batches": (LSTM, "last", False, False, 200),
    "LSTM, padded end, random batches": (LSTM, "padded", False, False, 200),
    "GRU, max, 400 tokens": (GRU, "max", False, True, 400),
    "bidirectional LSTM, max": (LSTM, "max", True, True, 200),
}
MATCHED = tuple(CLASSIFIERS)[:8]


@experiment("imdb-recurrent", "RNN, LSTM, GRU on IMDB's reviews, two epochs from scratch, and where the state is read.")
def imdb_recurrent(
    seed,
    models=MATCHED,
    max_size=25_000,
    width=64,
    hidden=64,
    dropout=0.3,
    word_dropout=0.1,
    epochs=2,
    batch_size=64,
    learning_rate=4e-3,
    fraction=0.1,
):
    """The epoch with the best validation accuracy; that model's test accuracy.

    Three layers, each read at its last state and by a maximum over all of them; all else is equal, and nothing was
    tuned for one of them. Reviews are cut to their last 200 tokens. Batches hold reviews of similar length; the two
    rows with "random batches" see batches in random order, since bucketing hides the pitfall of the padded end. LSTMs
    start with a forget bias of 1. Two epochs are fewer than the models could use; with more time: --set epochs=5.
    """
    reviews = tokenized_reviews(seed, fraction)
    vocab = build_vocab(reviews["train"][0], max_size=max_size)
    results, history = {}, {}
    for name in models:
        kind, pool, bidirectional, bucket, keep = CLASSIFIERS[name]
        splits = {split: _last_tokens(*reviews[split], vocab, keep) for split in ("train", "valid", "test")}
        model = make_classifier(len(vocab), kind(width, hidden, bidirectional=bidirectional), pool, dropout)
        train_batches = functools.partial(_review_batches, *splits["train"], batch_size, bucket, word_dropout, seed)
        row, history[name] = _fit_classifier(model, train_batches, splits["valid"], bucket, epochs, learning_rate)
        results[name] = row | test_scores(_review_logits(model, splits["test"], bucket), reviews)
    return {"results": results, "history": history}


@experiment("imdb-recurrent-long", "The GRU of `imdb-recurrent` with longer reviews, more dropout and one more epoch.")
def imdb_recurrent_long(seed, models=("GRU, max, 400 tokens",), dropout=0.5, epochs=3):
    """Its form was the best of an earlier `imdb-recurrent` on validation reviews; all else is set as there."""
    return imdb_recurrent(seed, models, dropout=dropout, epochs=epochs)


@experiment("imdb-bidirectional", "The LSTM of `imdb-recurrent` in two directions: twice the states, slower batches.")
def imdb_bidirectional(seed, models=("bidirectional LSTM, max",)):
    """On its own, because packed sequences make it several times slower on a CPU; settings as in `imdb-recurrent`."""
    return imdb_recurrent(seed, models)


@experiment("imdb-embedding-scale", "An LSTM on 4,000 short reviews, with embeddings that start large, and small.")
def imdb_embedding_scale(
    seed, scales=(1.0, 0.1), count=4000, keep=60, width=64, epochs=4, batch_size=32, learning_rate=4e-3, fraction=0.1
):
    """A newcomer's task: few texts, most words rare. Only the scale of the same first embeddings differs.

    Of `count` training reviews the last `keep` words; all else as `imdb-recurrent`, without dropout.
    """
    reviews = tokenized_reviews(seed, fraction)
    reviews["train"] = tuple(part[:count] for part in reviews["train"])
    vocab = build_vocab([tokens[-keep:] for tokens in reviews["train"][0]])
    splits = {split: _last_tokens(*reviews[split], vocab, keep) for split in ("train", "valid", "test")}
    frequencies = torch.bincount(torch.cat(splits["train"][0]), minlength=len(vocab))
    results, history = {}, {}
    for scale in scales:
        torch.manual_seed(seed)
        layer = set_forget_bias(LSTM(width, width), 1.0)
        model = SequenceClassifier(len(vocab), layer, embedding_std=scale)
        train_batches = functools.partial(_review_batches, *splits["train"], batch_size, True, 0.0, seed)
        name = f"std {scale:g}"
        row, history[name] = _fit_classifier(model, train_batches, splits["valid"], True, epochs, learning_rate)
        row |= {"words": len(vocab), "rare": (frequencies < 5).double().mean().item()}
        results[name] = row | test_scores(_review_logits(model, splits["test"], True), reviews)
    return {"results": results, "history": history}


def make_classifier(vocab_size, layer, pool, dropout):
    """A `SequenceClassifier`, or with pool="padded" the one with the pitfall; an LSTM's forget bias is 1."""
    if isinstance(layer, LSTM):
        set_forget_bias(layer, 1.0)
    if pool == "padded":
        return LastColumn(vocab_size, layer, dropout=dropout)
    return SequenceClassifier(vocab_size, layer, pool=pool, dropout=dropout)


def _last_tokens(token_lists, labels, vocab, keep):
    """The ids of the last `keep` tokens of each review, and the labels."""
    return [torch.tensor(numericalize(tokens[-keep:], vocab)) for tokens in token_lists], labels


def _review_batches(rows, labels, batch_size, bucket, word_dropout, seed, epoch):
    """The training batches of an epoch; a fraction of the words is hidden behind <unk>, others in each epoch."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    for ids, mask, y in batches(rows, labels, batch_size, bucket=bucket, generator=generator):
        hidden = (torch.rand(ids.shape, generator=generator) < word_dropout) & mask
        yield ids.masked_fill(hidden, UNK), mask, y


def _fit_classifier(model, train_batches, valid, bucket, epochs, learning_rate):
    """Train with the best epoch by validation accuracy; the row and the history."""
    start = time.perf_counter()
    steps = sum(1 for _ in train_batches(1)) * epochs
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    history = fit(
        model,
        train_batches,
        classification_loss,
        optimizer,
        epochs=epochs,
        valid_batches=lambda: batches(*valid, 256, bucket=bucket, shuffle=False),
        scheduler=scheduler,
        clip_norm=1.0,
        monitor="accuracy",
    )
    best = max(history, key=lambda entry: entry["valid_accuracy"])
    row = {"parameters": number_of_parameters(model), "best_epoch": best["epoch"]}
    return row | {"valid_accuracy": best["valid_accuracy"], "seconds": time.perf_counter() - start}, history


@torch.no_grad()
def _review_logits(model, split, bucket):
    """How far the logit of "positive" is above that of "negative", for all rows in their order."""
    rows, _ = split
    model.eval()
    logits = torch.empty(len(rows))
    for ids, mask, where in batches(rows, range(len(rows)), 256, bucket=bucket, shuffle=False):
        logits[where] = model(ids, mask).diff(dim=1)[:, 0]
    return logits
