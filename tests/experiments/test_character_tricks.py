"""Chapter 11's runs on Shakespeare's characters, in small: what is recorded, against independent computations."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.experiments import character_tricks, known
from course_lib.experiments.shakespeare_gpt import make_gpt

TEXT = "".join(
    f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)
TINY = {"layers": 1, "heads": 2, "width": 8, "block": 6, "batch_size": 3}


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)


def test_both_are_announced():
    """Fails if an experiment cannot be run by name."""
    assert {"smoothing-bf16", "deep-start"} <= known().keys()


def test_smoothing_is_shared_by_all_characters():
    """Fails if the loss is not the cross-entropy against the softened target."""
    torch.manual_seed(0)
    logits, y = torch.randn(2, 3, 5), torch.randint(5, (2, 3))
    target = 0.8 * F.one_hot(y, 5) + 0.2 / 5
    wanted = -(target * logits.log_softmax(-1)).sum(-1).mean()
    torch.testing.assert_close(character_tricks.smoothed_loss(lambda x: logits, None, y, 0.2), wanted)


def test_judged_against_one_window_at_a_time():
    """Fails if a window is lost, targets are off by one, or the confidence is not that of the likeliest character."""
    torch.manual_seed(0)
    model, ids = make_gpt(5, 4, 1, 1, 8).eval(), torch.randint(5, (23,))
    found = character_tricks.judged(model, ids, 4, batch_size=2)
    with torch.no_grad():
        logits = torch.cat([model(ids[i : i + 4][None])[0] for i in range(0, 20, 4)])
    best = logits.softmax(-1).max(-1)
    assert found["valid_loss"] == pytest.approx(F.cross_entropy(logits, ids[1:21]).item(), rel=1e-5)
    assert found["accuracy"] == pytest.approx((best.indices == ids[1:21]).float().mean().item())
    assert found["confidence"] == pytest.approx(best.values.mean().item(), rel=1e-5)
    assert found["overconfidence"] == pytest.approx(found["confidence"] - found["accuracy"])


def test_smoothing_bf16_records_all_four(play):
    """Fails if a row or a number is missing, rows are the same, or the loss of validation is smoothed."""
    found = character_tricks.smoothing_bf16(0, **TINY, steps=30, chunk=20, warmup=5)["results"]
    json.dumps(found, allow_nan=False)
    assert list(found) == [f"{p}, smoothing {s}" for p in ("float32", "bfloat16") for s in ("0", "0.1")]
    keys = {"valid_loss", "accuracy", "confidence", "overconfidence", "seconds_per_step"}
    assert all(set(row) == keys and row["seconds_per_step"] > 0 for row in found.values())
    assert len({row["valid_loss"] for row in found.values()}) == 4
    confident = [row["confidence"] for row in found.values()]
    assert confident[0] > confident[1]
    assert confident[2] > confident[3]
    losses = [row["valid_loss"] for row in found.values()]
    assert losses[0] == pytest.approx(losses[2], rel=0.05)  # bfloat16 is no other training


def test_deep_start_records_each_row(play):
    """Fails if a row or an entry is missing, or a warm-up, an optimizer or a placement changes nothing."""
    options = {"layers": 2, "width": 8, "block": 6, "batch_size": 3, "steps": 20, "every": 5}
    found = character_tricks.deep_start(0, **options)
    json.dumps(found, allow_nan=False)
    assert list(found["results"]) == list(found["history"]) == list(character_tricks.STARTS)
    assert all(set(row) == {"loss", "valid_loss", "step_shrinks"} for row in found["results"].values())
    assert len({row["valid_loss"] for row in found["results"].values()}) == 4
    for name, entries in found["history"].items():
        assert [entry["step"] for entry in entries] == [5, 10, 15, 20]
        assert set(entries[0]) == {"step", "loss", "gradient", "update", "step_size"}
        row = found["results"][name]
        assert row["step_shrinks"] == pytest.approx(entries[-1]["step_size"] / entries[0]["step_size"])
        assert row["loss"] == pytest.approx(sum(entry["loss"] for entry in entries) / 4, rel=1e-3)


def test_step_size_is_that_of_the_step(play):
    """Fails if the rate of the warm-up is not taken out, or another change than the step's is measured."""
    options = {"layers": 1, "width": 8, "block": 6, "batch_size": 3, "steps": 1, "every": 1}
    found = character_tricks.deep_start(0, rows=("Post-LN, Adam", "Post-LN, RAdam"), **options)["history"]
    assert found["Post-LN, Adam"][0]["step_size"] == pytest.approx(1.0, abs=0.02)  # Adam's first step: the rate
    one = found["Post-LN, RAdam"][0]  # plain gradient descent in its first step
    count = 3 * 8 * 8 + 8 * 8 + 2 * 8 * 32
    assert one["step_size"] <= one["gradient"] / math.sqrt(count) * 1.01
