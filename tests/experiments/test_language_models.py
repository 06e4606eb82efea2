"""Chapter 01's experiments on tiny texts and series: what they record, and that nobody peeks at the test."""

import json
import math
import random

import pytest
import torch

from course_lib import datasets
from course_lib.datasets.synthetic import seasonal_series
from course_lib.experiments import known, language_models
from course_lib.ngram import NgramModel, WindowLM

SMALL = {"max_order": 3, "window": 2, "width": 3, "hidden": 16, "epochs": 2, "batch_size": 4, "length": 16}


def plain_words(count, seed):
    return random.Random(seed).choices(["a", "a", "b", "c", "d", "<unk>", "<eos>"], k=count)


@pytest.fixture
def tiny(monkeypatch):
    """Loaders that give little and need no files."""
    text = "".join(random.Random(0).choices("aabbc d", k=900))
    splits = {"train": 800, "valid": 150, "test": 140}
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: text)
    monkeypatch.setattr(datasets, "wikitext2", lambda split: plain_words(splits[split], split))
    monkeypatch.setattr(datasets, "sunspots", lambda: ([], seasonal_series(200, period=11)))
    monkeypatch.setattr(datasets, "temperatures", lambda: ([], seasonal_series(160, period=12)))


def test_all_four_are_announced():
    """Fails if an experiment cannot be run by name."""
    assert {"shakespeare-lm", "wikitext2-lm", "sunspots-ar", "temperatures-ar"} <= known().keys()


@pytest.mark.parametrize(
    ("function", "settings"),
    [(language_models.shakespeare_lm, {}), (language_models.wikitext2_lm, {"cutoffs": (2, 4)})],
)
def test_language_models_record_every_row(tiny, function, settings):
    """Fails if a row or metric that the chapter draws is missing, or cannot be written as JSON."""
    outcome = function(0, **SMALL, **settings)
    json.dumps(outcome, allow_nan=False)
    rows = outcome["results"]
    ngrams = [f"{n}-gram {kind}" for n in (1, 2, 3) for kind in ("add-k", "interpolated")]
    assert list(rows) == ["uniform", "unigram entropy", "bigram entropy", *ngrams, "window network"]
    for row in rows.values():
        assert row["perplexity"] == pytest.approx(math.exp(row["nats"]))
        assert row["bits"] == pytest.approx(row["nats"] / math.log(2))
    for name in ngrams:
        best = rows[name]["adds"].index(rows[name]["add"])
        assert rows[name]["valid_perplexity"] == min(rows[name]["valid_perplexity_by_add"])
        assert rows[name]["valid_perplexity"] == rows[name]["valid_perplexity_by_add"][best]
    history = outcome["history"]["window network"]
    assert [epoch["epoch"] for epoch in history] == [1, 2]
    lowest = min(epoch["valid_loss"] for epoch in history)
    assert rows["window network"]["valid_perplexity"] == pytest.approx(math.exp(lowest))


def test_ngrams_of_shakespeare_learn_from_the_networks_text(tiny):
    """Fails if the n-grams are counted on more text than the network saw, or k was chosen on the reported part."""
    row = language_models.shakespeare_lm(0, **SMALL)["results"]["2-gram add-k"]
    text = datasets.tiny_shakespeare()
    number = {c: i for i, c in enumerate(sorted(set(text)))}
    ids = torch.tensor([number[c] for c in text])
    losses = [NgramModel(2, 5, add=k).fit(ids[:720]).nll(ids[720:810]).mean() for k in language_models.ADDS]
    k = language_models.ADDS[losses.index(min(losses))]
    assert row["add"] == k
    model = NgramModel(2, 5, add=k).fit(ids[:720])
    assert row["nats"] == pytest.approx(model.nll(ids[810:]).mean().item())
    assert row["parameters"] == model.num_ngrams[1]
    assert row["unseen"] == (model.counts(ids[810:]) == 0).double().mean().item()


def test_seeds_differ_for_the_network_only(tiny):
    """Fails if the seed does not reach the order of the training rows, or changes what is counted."""
    torch.manual_seed(0)
    first = language_models.wikitext2_lm(0, cutoffs=(2, 4), **SMALL)["results"]
    torch.manual_seed(0)
    other = language_models.wikitext2_lm(1, cutoffs=(2, 4), **SMALL)["results"]
    assert first["window network"]["nats"] != other["window network"]["nats"]
    assert first["3-gram interpolated"] == other["3-gram interpolated"]


@pytest.mark.parametrize("length", [5, 16, 100])
def test_chunks_give_the_loss_of_the_whole_text(length):
    """Fails if a piece lacks the context before it, or a token is counted twice or not at all."""
    model, ids = WindowLM(7, window=4, d_model=3, hidden=5).double(), torch.randint(7, (53,))
    whole = language_models._window_loss(model, (ids[None, :-1], ids[None, 1:]))
    sums = [language_models._window_loss(model, piece) for piece in language_models._chunks(ids, 4, length)]
    torch.testing.assert_close(sum(s["loss"] for s in sums), whole["loss"], rtol=1e-10, atol=1e-10)
    assert sum(s["count"] for s in sums) == whole["count"] == 52


def test_adaptive_softmax_counts_like_a_full_one():
    """Fails if the loss of the adaptive output has another sign or is a mean: compares with its own log_prob."""
    torch.manual_seed(0)
    model = WindowLM(20, window=2, d_model=3, hidden=16)
    model.output = torch.nn.AdaptiveLogSoftmaxWithLoss(16, 20, cutoffs=[5, 11]).double()
    model.double()
    ids = torch.randint(20, (3, 7))
    found = language_models._window_loss(model, (ids[:, :-1], ids[:, 1:]))["loss"]
    log_p = model.output.log_prob(model.features(ids[:, :-1]).flatten(0, 1))
    torch.testing.assert_close(log_p.exp().sum(1), torch.ones(18, dtype=torch.float64), rtol=1e-10, atol=1e-10)
    wanted = -log_p[torch.arange(18), ids[:, 1:].flatten()].sum()
    torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


def test_rows_cover_the_text_once_in_a_new_order():
    """Fails if targets are not the next tokens, rows repeat, or two epochs are the same."""
    ids = torch.arange(200)
    epochs = [list(language_models._rows(ids, 16, 4, seed=0, epoch=epoch)) for epoch in (1, 2)]
    for batches in epochs:
        inputs, targets = (torch.cat(part) for part in zip(*batches, strict=True))
        assert torch.equal(targets, inputs + 1)
        assert inputs.unique().numel() == inputs.numel() >= 200 - 2 * 16
    assert not torch.equal(epochs[0][0][0], epochs[1][0][0])
