"""Operations and memory by size, against hand-worked counts."""

import json
import math

import pytest
import torch

from course_lib import datasets
from course_lib.cost import measure
from course_lib.experiments import scaling
from course_lib.gpt import GPT, GPTConfig
from course_lib.utils import number_of_parameters

TEXT = "".join(
    f"\n\nSPEAKER {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)


@pytest.fixture
def play(monkeypatch):
    """Short speeches in place of Shakespeare's."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)


def test_operations_against_the_formulas():
    """Fails if a count is not the hand-worked one: products with matrices, and attention's two of T^2 D."""
    layers, heads, D, V, T = 2, 3, 12, 11, 7
    row = scaling.operation_row(layers, heads, D, V, T)
    matrices = layers * 12 * D * D + V * D
    small = layers * (3 * D + D + 4 * D + D + 4 * D) + 2 * D  # biases and norms
    assert row["without_positions"] == matrices + small == row["parameters"] - T * D
    assert row["non_embedding"] == matrices + small - V * D
    assert row["forward"] == 2 * matrices + 4 * layers * T * D
    assert row["training"] == 3 * row["forward"]
    assert row["2N + attention"] - row["forward"] == 2 * small
    assert row["6N + attention"] - row["training"] == 6 * small


def test_memory_is_that_of_the_tensors():
    """Fails if a part of a training step is missing or counted twice, or the peak is not that of a training step."""
    row = scaling.memory_row(1, 2, 96, 300, 6, 3)
    model = GPT(GPTConfig(300, 6, 96, 1, 2, dropout=0.0))
    parameters = number_of_parameters(model)
    assert row["weights"] == row["gradients"] == 4 * parameters
    assert row["moments"] == 8 * parameters
    logits_alone = measure.count_activations(model, torch.zeros(3, 6, dtype=torch.int64))
    loss = 3 * 6 * 300 + 1  # log-probabilities and the number of targets
    assert row["activations"] == 4 * (logits_alone + loss)
    assert row["sum"] == row["activations"] + 16 * parameters
    assert row.get("peak", row["sum"]) > 3 * row["weights"]  # left out where the system does not tell


def test_scaling_records_every_size(play, monkeypatch):
    """Fails if a row is missing, an unknown peak is written down, or the loss is of an untrained model."""
    monkeypatch.setattr(measure, "peak_memory", lambda statements, setup: [None])
    found = scaling.gpt_scaling(0, ("32 x 2",), 11, 8, 3, steps=40, contexts=(8,), memory_batch=2)["results"]
    json.dumps(found, allow_nan=False)
    assert list(found) == ["operations 32 x 2, T = 8", "memory 32 x 2", "loss 32 x 2"]
    assert "peak" not in found["memory 32 x 2"]
    assert found["loss 32 x 2"]["valid_loss"] < 0.9 * math.log(len(set(TEXT)))
