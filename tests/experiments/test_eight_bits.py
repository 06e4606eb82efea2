"""Eight bits in small: that bytes and losses are of what they say, and the record's form."""

import json

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import eight_bits, known
from course_lib.gpt import GPT, GPTConfig
from course_lib.pretrained import save_shakespeare

TEXT = "".join(f"the cat {i % 7} saw a dog and no {i % 11} hats, " for i in range(40))


@pytest.fixture
def folder(monkeypatch, tmp_path):
    """A small random model of the characters of a short text, which stands for Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)
    torch.manual_seed(0)
    chars = sorted(set(TEXT))
    save_shakespeare(tmp_path, GPT(GPTConfig(len(chars), 7, 64, 2, 4)), chars)
    return str(tmp_path)


def test_losses(folder):
    """Fails if a row is missing, a form is not what its name says, or 8 bits change the loss by more than 1 %."""
    rows = eight_bits.loss_rows(tuple(eight_bits.FORMS), folder)
    assert list(rows) == [f"Shakespeare, {form}" for form in eight_bits.FORMS]
    full, coarse, both = rows.values()
    assert full["loss_change"] == 0
    assert all(0 < abs(row["loss_change"]) < 0.01 for row in (coarse, both))
    assert coarse["bytes"] == both["bytes"] < 0.4 * full["bytes"]


def test_bytes_of_a_token():
    """Fails if the table of positions is counted, or another weight is not."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(11, 5, 8, 1, 2))
    table, matrices, rows, norms = 11 * 8, 12 * 8 * 8, (3 + 1 + 4 + 1) * 8, 3 * 2 * 8  # a row of a matrix has a bias
    assert eight_bits.bytes_per_token(model) == 4 * (table + matrices + rows + norms)
    coarse = eight_bits.FORMS["8 bits"](model)  # where it has a scale, too
    assert eight_bits.bytes_per_token(coarse) == 4 * (table + 2 * rows + norms) + matrices


def test_record(folder, monkeypatch):
    """Fails if the experiment is not announced, a number is missing, or the share is not of the same model's bytes."""
    assert "eight-bits" in known()
    monkeypatch.setattr(GPTConfig, "from_name", lambda name: GPTConfig(13, 20, 64, 1, 2))
    found = eight_bits.eight_bits(0, tokens=3, rounds=1, folder=folder)["results"]
    json.dumps(found, allow_nan=False)
    rows = [found[f"writing, {form}"] for form in eight_bits.FORMS]
    assert rows[1]["bytes_per_token"] < rows[0]["bytes_per_token"]
    for row in rows:
        assert row["tokens_per_second"] * row["seconds_per_token"] == pytest.approx(1)
        assert row["share"] == pytest.approx(row["roofline_seconds"] / row["seconds_per_token"])
