"""The Transformer on a small made-up Multi30k: the record, the configuration, and fairness towards chapter 06."""

import inspect
import math

import pytest
import torch

from course_lib import datasets
from course_lib.datasets import synthetic
from course_lib.experiments import multi30k
from course_lib.experiments import multi30k_transformer as ch09
from course_lib.experiments.multi30k_rnn import multi30k_attention

SMALL = {"merges": (60, 40), "width": 12, "heads": 3, "layers": 2, "feedforward": 16, "warm_up": 3, "epochs": 2}


@pytest.fixture
def captions(monkeypatch):
    """80 + 10 + 15 pairs of the toy language in place of the captions."""
    pairs = [
        tuple(f"{' '.join(words).capitalize()}." for words in (target, source))
        for source, target, _ in synthetic.translation_pairs(105, seed=5)
    ]
    splits = {"train": pairs[:80], "valid": pairs[80:90], "test": pairs[90:]}
    monkeypatch.setattr(datasets, "multi30k", lambda split: splits[split])
    multi30k._prepared.cache_clear()
    yield splits
    multi30k._prepared.cache_clear()


def run(**settings):
    """The row and the history of one small run."""
    torch.manual_seed(0)
    outcome = ch09.multi30k_transformer(seed=0, **SMALL | {"batch_size": 16} | settings)
    return outcome["results"]["Transformer"], outcome["history"]["Transformer"]


@pytest.mark.parametrize("residual", ["pre-ln", "post-ln"])
def test_the_run_is_recorded_with_all_that_the_chapter_shows(captions, residual):
    """Fails if a metric is missing, nothing is learned, or the row is not that of the best epoch."""
    row, history = run(residual=residual)
    best = min(history, key=lambda entry: entry["valid_loss"])
    assert history[-1]["valid_loss"] < history[0]["valid_loss"]
    assert row["best_epoch"] == best["epoch"]
    assert row["valid_perplexity"] == math.exp(best["valid_loss"])
    assert row["signature"].startswith("nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:")
    for metric in ("valid_bleu", "bleu", "bleu_tokens", "bleu_beam"):
        assert 0 <= row[metric] <= 100
    assert sum(row["length_count"]) == 15
    assert 1 < row["perplexity"] < row["perplexity_word"]
    assert len(row["examples"]) == 5
    assert row["train_cpu_seconds"] > 0


def test_the_model_is_the_one_that_is_configured(captions):
    """Fails if a setting does not arrive: the parameters are counted by hand."""
    row, _ = run()
    D, F, N = SMALL["width"], SMALL["feedforward"], SMALL["layers"]
    attention, feed_forward, norm = 4 * (D * D + D), 2 * D * F + F + D, 2 * D
    encoder = N * (attention + feed_forward + 2 * norm) + norm
    decoder = N * (2 * attention + feed_forward + 3 * norm) + norm
    assert row["parameters"] == encoder + decoder + sum(row["vocabulary"]) * D
    assert run(residual="post-ln")[0]["parameters"] == row["parameters"] - 2 * norm  # no norm at the ends


def test_a_seed_gives_the_same_run_again(captions):
    """Fails if a run cannot be repeated, or the dropouts do nothing."""
    (row, history), (again, same) = run(), run()
    assert history == same
    assert {**row, "train_cpu_seconds": 0} == {**again, "train_cpu_seconds": 0}
    for other in ({"dropout": 0.0}, {"attention_dropout": 0.0}):
        assert run(**other)[1] != history


def test_the_test_captions_decide_nothing(captions):
    """Fails if merges, vocabulary or epoch depend on the test set: with other captions the history stays."""
    row, before = run()
    captions["test"] = [("Qvx wzy.", "Jkq zzz.")] * 15
    multi30k._prepared.cache_clear()
    other, after = run()
    assert before == after
    assert other["perplexity"] != row["perplexity"]


def test_the_protocol_is_that_of_chapter_06():
    """Fails if the comparison is unfair: text, batches, smoothing, precision and number of epochs are the same."""
    ours, theirs = (
        {p.name: p.default for p in inspect.signature(function).parameters.values()}
        for function in (ch09.multi30k_transformer, multi30k_attention)
    )
    for key in ("merges", "label_smoothing", "batch_size", "epochs", "bf16"):
        assert ours[key] == theirs[key], key
