"""Recurrent classifiers on a small generated IMDB: what is recorded, and that the test decides nothing."""

import functools

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import imdb_rnn
from course_lib.lstm_gru import GRU, LSTM
from course_lib.recurrent_models import SequenceClassifier
from course_lib.text import pad_batch
from tests.helpers import imdb as fake

FILLER = "the film was a story of it and is".split()


@pytest.fixture
def small_imdb(monkeypatch):
    """300 + 100 reviews in place of IMDB's; three test reviews stand in the training set too."""
    splits = fake.splits(functools.partial(fake.review, rate=1 / 4, filler=FILLER), train=300, test=100)
    monkeypatch.setattr(datasets, "imdb", lambda split: splits[split])
    return splits


SMALL = {"width": 8, "hidden": 8, "epochs": 3, "batch_size": 16, "learning_rate": 0.02}


def test_imdb_recurrent_records_every_model(small_imdb):
    """Fails if a model or metric is missing, the row is not that of the best epoch, or nothing is learnt."""
    torch.manual_seed(0)
    outcome = imdb_rnn.imdb_recurrent(seed=0, **SMALL)
    assert list(outcome["results"]) == list(outcome["history"]) == list(imdb_rnn.MATCHED)
    for name, row in outcome["results"].items():
        scores = [entry["valid_accuracy"] for entry in outcome["history"][name]]
        assert row["valid_accuracy"] == max(scores) == scores[row["best_epoch"] - 1]
        assert row["seen"] == 3
        assert row["seconds"] > 0
    assert outcome["results"]["LSTM, max"]["accuracy"] > 0.8
    assert outcome["results"]["LSTM, max"]["parameters"] == outcome["results"]["LSTM, last"]["parameters"]


def test_test_labels_decide_nothing(small_imdb):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""
    torch.manual_seed(0)
    before = imdb_rnn.imdb_recurrent(seed=2, models=("GRU, max",), **SMALL)
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    torch.manual_seed(0)
    after = imdb_rnn.imdb_recurrent(seed=2, models=("GRU, max",), **SMALL)
    assert before["history"] == after["history"]
    right, wrong = (outcome["results"]["GRU, max"]["accuracy"] for outcome in (before, after))
    assert right == pytest.approx(1 - wrong)


def test_bidirectional_classifier_can_be_asked_for(small_imdb):
    """Fails if the model named in the docstring's command is not there."""
    outcome = imdb_rnn.imdb_recurrent(seed=0, models=("bidirectional LSTM, max",), **(SMALL | {"epochs": 1}))
    assert set(outcome["results"]) == {"bidirectional LSTM, max"}


def test_long_run_takes_its_settings(small_imdb):
    """Fails if the model or the number of epochs is not the one asked for."""
    history = imdb_rnn.imdb_recurrent_long(seed=0, epochs=1)["history"]
    assert {name: len(epochs) for name, epochs in history.items()} == {"GRU, max, 400 tokens": 1}


def test_embeddings_of_two_scales_are_compared(small_imdb):
    """Fails if a metric is missing, reviews are not cut, or both models start from the same scale."""
    outcome = imdb_rnn.imdb_embedding_scale(seed=0, count=40, keep=5, width=8, epochs=2, batch_size=16)
    large, small = (outcome["results"][name] for name in ("std 1", "std 0.1"))
    assert large["parameters"] == small["parameters"]
    assert large["words"] == small["words"] > 4
    assert 0 <= large["rare"] == small["rare"] < 1
    first = [outcome["history"][name][0]["train_loss"] for name in ("std 1", "std 0.1")]
    assert first[0] != first[1]
    assert {"valid_accuracy", "accuracy", "best_epoch"} <= set(small)


def test_last_column_reads_padding_and_the_classifier_does_not():
    """Fails if the pitfall does not depend on padding, or the right reading does."""
    torch.manual_seed(0)
    layer = LSTM(4, 6)
    wrong = imdb_rnn.make_classifier(20, layer, "padded", 0.0)
    right = imdb_rnn.make_classifier(20, layer, "last", 0.0)
    short, long = [5, 6, 7], [8, 9, 10, 11, 12, 13]
    alone, beside = pad_batch([short]), pad_batch([short, long])
    torch.testing.assert_close(right(*alone)[0], right(*beside)[0])
    assert (wrong(*alone)[0] - wrong(*beside)[0]).abs().max() > 1e-4
    wrong.load_state_dict(right.state_dict())
    torch.testing.assert_close(wrong(*pad_batch([long])), right(*pad_batch([long])))  # without padding they agree


def test_classifiers_start_small_with_an_open_memory():
    """Fails if the embeddings keep torch's scale of 1 or an LSTM's forget bias is left at random."""
    torch.manual_seed(0)
    model = imdb_rnn.make_classifier(500, LSTM(16, 6), "max", 0.1)
    assert 0.09 < model.embedding.weight.std() < 0.11
    assert torch.equal((model.layer.bias_ih_l0 + model.layer.bias_hh_l0)[6:12], torch.ones(6))
    assert isinstance(imdb_rnn.make_classifier(9, GRU(4, 6), "max", 0.1), SequenceClassifier)


def test_word_dropout_hides_words_and_no_padding():
    """Fails if padding is replaced, labels move, the share is wrong, or every epoch hides the same words."""
    rows, labels = [torch.arange(10, 10 + n) for n in range(1, 61)], list(range(60))
    epochs = [list(imdb_rnn._review_batches(rows, labels, 8, True, 0.25, 0, epoch)) for epoch in (1, 2)]
    hidden = real = 0
    for ids, mask, y in epochs[0]:
        assert mask.sum(1).tolist() == (y + 1).tolist()  # row n has n + 1 words
        assert (ids[~mask] == 1).all()
        hidden += ((ids == 0) & mask).sum().item()
        real += mask.sum().item()
    assert 0.2 < hidden / real < 0.3
    assert any(not torch.equal(one[0], other[0]) for one, other in zip(*epochs, strict=True))


def test_last_tokens_are_kept():
    """Fails if the first tokens are kept instead."""
    vocab = imdb_rnn.build_vocab([["a", "b", "c"]])
    rows, labels = imdb_rnn._last_tokens([["a", "b", "c"], ["b"]], [1, 0], vocab, 2)
    assert [[vocab.itos[i] for i in row.tolist()] for row in rows] == [["b", "c"], ["b"]]
    assert labels == [1, 0]
