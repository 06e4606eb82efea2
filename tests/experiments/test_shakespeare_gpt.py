"""Chapter 13's experiments in small: the re-typed baseline, and that each recorded number is of what it says."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.experiments import known, shakespeare_gpt

TEXT = "".join(
    f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)


# --- Shakespeare ------------------------------------------------------------------

TINY = {"layers": 1, "heads": 2, "width": 8, "block": 6, "batch_size": 3}


def test_all_are_announced():
    """Fails if an experiment cannot be run by name."""
    names = {
        "shakespeare-gpt",
        "shakespeare-gpt-positions",
        "shakespeare-gpt-time",
        "gpt-sampling",
        "gpt-cache",
        "gpt-prefix",
    }
    assert names <= known().keys()


def test_the_texts_are_cut_as_usual(play):
    """Fails if validation text is trained on, also when a part of the training text is set aside for choices."""
    train, valid, chars = shakespeare_gpt.shakespeare()
    assert "".join(chars[i] for i in train) + "".join(chars[i] for i in valid) == TEXT
    assert len(train) == int(0.9 * len(TEXT))
    first, second, _ = shakespeare_gpt.shakespeare(choose=True)
    assert torch.equal(torch.cat([first, second]), train)
    assert len(first) == len(train) * 8 // 9


def test_shakespeare_gpt_records_both_models(play):
    """Fails if a row or a number is missing, the models' tokens differ, or training makes nothing better."""
    found = shakespeare_gpt.shakespeare_gpt(0, **TINY, steps=30, chunk=20, warmup=5, estimates=2)
    json.dumps(found, allow_nan=False)
    results, history = found["results"], found["history"]
    assert list(results) == list(history) == ["nanoGPT", "ours"]
    for row, entries in history.items():
        assert [entry["step"] for entry in entries] == [20, 30]
        assert entries[-1]["train_loss"] < entries[0]["train_loss"]
        assert results[row]["tokens"] == 30 * 3 * 6
        assert results[row]["valid_loss"] < math.log(len(set(TEXT)))
        assert results[row]["seconds_per_step"] * 30 == pytest.approx(results[row]["seconds"])
    assert results["nanoGPT"]["time_share"] == 1


def test_turns_do_not_change_what_is_learnt(play):
    """Fails if a learner's losses depend on the other one or on the length of a turn."""
    together = shakespeare_gpt.shakespeare_gpt(0, ("ours", "nanoGPT"), **TINY, steps=4, chunk=2, warmup=2, estimates=1)
    alone = shakespeare_gpt.shakespeare_gpt(0, ("ours",), **TINY, steps=4, chunk=4, warmup=2, estimates=1)
    assert together["results"]["ours"]["valid_loss"] == alone["results"]["ours"]["valid_loss"]


def test_learned_positions_are_a_row_of_their_own(play):
    """Fails if the row with learned positions has none: a table of block x D numbers more."""
    rows = ("ours", "ours, learned positions")
    results = shakespeare_gpt.shakespeare_gpt(0, rows, **TINY, steps=2, chunk=2, warmup=1, estimates=1)["results"]
    assert results[rows[1]]["parameters"] - results[rows[0]]["parameters"] == 6 * 8


def test_whole_loss_counts_every_window_once():
    """Fails if the mean over batches of unequal size is not the mean over all tokens."""
    torch.manual_seed(0)
    ids = torch.randint(9, (38,))
    model = shakespeare_gpt.make_gpt(9, 5, 1, 2, 8)
    learner = shakespeare_gpt.our_learner(model, 1, 0.1, 0)
    inputs, targets = ids[:35].view(7, 5), ids[1:36].view(7, 5)
    wanted = F.cross_entropy(model(inputs).flatten(0, 1), targets.flatten()).item()
    assert learner.whole(ids, 5, batch_size=3) == pytest.approx(wanted, rel=1e-6)


def test_estimates_are_of_the_same_windows():
    """Fails if two estimates of one model differ, or training moves the windows of the estimate."""
    ids = torch.arange(40) % 9
    learner = shakespeare_gpt.our_learner(shakespeare_gpt.make_gpt(9, 5, 1, 2, 8), 1, 0.0, 0)
    before = learner.estimate(ids, 5, 2, 3)
    learner.advance(ids, 5, 2, 1)  # with a learning rate of 0
    assert learner.estimate(ids, 5, 2, 3) == before
