"""Chapter 03's experiment on a miniature text: equal sizes, carried state, choice by validation only."""

import random

import pytest
import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.experiments import shakespeare_rnn
from course_lib.experiments.shakespeare_rnn import RATES
from course_lib.recurrent_models import LanguageModel
from course_lib.rnn import RNN
from course_lib.utils import number_of_parameters


@pytest.fixture
def small_text(monkeypatch):
    """3,000 characters of a language of three words in place of Shakespeare."""
    rng = random.Random(0)
    text = "".join(rng.choice(("to ", "be ", "not ")) for _ in range(1000))[:3000]
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: text)
    return text


SMALL = {"parameters": 2950, "width": 5, "epochs": 2, "batch_size": 4, "length": 16}


def test_record_of_the_three_models(small_text):
    """Fails if a model or metric is missing, the sizes are unequal, or a model learns no more than the letters."""
    outcome = shakespeare_rnn.shakespeare_recurrent(seed=0, **SMALL)
    assert list(outcome["results"]) == list(outcome["history"]) == ["RNN", "LSTM", "GRU"]
    V = len(set(small_text))
    for kind, row in outcome["results"].items():
        model = LanguageModel(V, shakespeare_rnn.LAYERS[kind](5, row["hidden_size"]))
        assert row["parameters"] == number_of_parameters(model)
        assert abs(row["parameters"] - 2950) <= 29.5
        assert row["nats"] == pytest.approx(row["bits"] * torch.log(torch.tensor(2.0)).item())
        assert row["perplexity"] == pytest.approx(torch.tensor(row["nats"]).exp().item())
        losses = [entry["valid_loss"] for entry in outcome["history"][kind]]
        assert row["valid_nats"] == min(losses) == losses[row["best_epoch"] - 1]
        assert row["perplexity"] < 4.5  # letters by their frequencies alone: 5.4
        assert row["seconds"] > 0


def test_sizes_that_cannot_be_equal_are_refused(small_text):
    """Fails if the runs go on with models of unequal size."""
    with pytest.raises(ValueError, match=r"no RNN of width 5 has 130 parameters within 1 %: nearest is \d+"):
        shakespeare_rnn.shakespeare_recurrent(seed=0, **(SMALL | {"parameters": 130}))


def test_parts_are_those_of_chapter_01(small_text):
    """Fails if the parts overlap, leave something out, or are not 80, 10 and 10 %."""
    *parts, V = shakespeare_rnn.shakespeare_parts()
    letters = sorted(set(small_text))
    assert [len(part) for part in parts] == [2400, 300, 300]
    assert "".join(letters[i] for part in parts for i in part.tolist()) == small_text
    assert len(letters) == V


def test_state_is_carried_and_its_gradient_is_not():
    """Fails if a piece starts from zero, an epoch or the validation from an old state, or nothing detaches."""
    torch.manual_seed(0)
    model = LanguageModel(7, RNN(3, 5))
    ids = torch.randint(0, 7, (41,))
    loss = shakespeare_rnn.CarriedLoss()
    total = sum(loss(model, batch)["loss"] for batch in shakespeare_rnn.in_order(ids, length=9))
    whole = F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="sum")
    torch.testing.assert_close(total, whole)
    again = sum(loss(model, batch)["loss"] for batch in shakespeare_rnn.in_order(ids, length=9))
    torch.testing.assert_close(again, whole)
    batches = shakespeare_rnn.in_order(ids, length=9)
    loss(model, batches[0])["loss"].backward()
    loss(model, batches[1])["loss"].backward()  # through the freed graph of the first: an error without detaching


def test_streams_begin_elsewhere_in_every_epoch():
    """Fails if all epochs cut the text alike, or the same epoch does not repeat, or a flag is wrong."""
    ids = torch.arange(200)
    first, second, again = (shakespeare_rnn.streams(ids, 3, 8, seed, epoch) for seed, epoch in ((0, 1), (0, 2), (0, 1)))
    assert torch.equal(first[0][0], again[0][0])
    assert not torch.equal(first[0][0], second[0][0])
    assert [flag for _, _, flag in first] == [True] + [False] * (len(first) - 1)


def test_test_part_decides_nothing(small_text, monkeypatch):
    """Fails if anything but the reported number depends on the last 10 % of the text."""
    before = shakespeare_rnn.shakespeare_recurrent(seed=3, **SMALL)
    turned = small_text[:2700] + small_text[2700:][::-1]
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: turned)
    torch.manual_seed(0)
    one = shakespeare_rnn.shakespeare_recurrent(seed=3, **SMALL)
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: small_text)
    torch.manual_seed(0)
    other = shakespeare_rnn.shakespeare_recurrent(seed=3, **SMALL)
    assert one["history"] == other["history"] != before["history"]
    assert all(one["results"][kind]["nats"] != other["results"][kind]["nats"] for kind in shakespeare_rnn.LAYERS)


def test_rates_are_compared_on_validation_text(small_text):
    """Fails if a rate is missing, does not reach the optimizer, starts elsewhere, or the last 10 % are read."""
    small = {name: value for name, value in SMALL.items() if name != "epochs"} | {"epochs": 1}
    results = shakespeare_rnn.shakespeare_rates(seed=0, rates=(1e-3, 1e-2), **small)["results"]
    assert [(name, row["learning_rate"]) for name, row in results.items()] == [
        (f"{kind} {rate:g}", rate) for kind in shakespeare_rnn.LAYERS for rate in (1e-3, 1e-2)
    ]
    assert all("nats" not in row for row in results.values())
    assert all(results[f"{kind} 0.001"]["valid_nats"] > results[f"{kind} 0.01"]["valid_nats"] for kind in RATES)
    again = shakespeare_rnn.shakespeare_rates(seed=0, rates=(1e-2,), **small)["results"]
    assert again["RNN 0.01"]["valid_nats"] == results["RNN 0.01"]["valid_nats"]


def test_each_model_has_its_own_rate(small_text, monkeypatch):
    """Fails if the chosen rates are not used, or a rate that is given is not."""
    monkeypatch.setattr(shakespeare_rnn, "RATES", {"RNN": 1e-3, "LSTM": 2e-3, "GRU": 3e-3})
    for given, wanted in ((None, [1e-3, 2e-3, 3e-3]), (5e-3, [5e-3] * 3)):
        rows = shakespeare_rnn.shakespeare_recurrent(seed=0, learning_rate=given, **SMALL)["results"].values()
        assert [row["learning_rate"] for row in rows] == wanted
