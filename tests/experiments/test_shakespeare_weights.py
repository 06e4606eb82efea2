"""The GPT that comes with the course, trained small on made-up speeches: record, files, going on."""

import json
import math

import pytest
import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.experiments import known
from course_lib.experiments import shakespeare_weights as experiment
from course_lib.pretrained import load_shakespeare

TEXT = "".join(
    f"\n\nGREMIO {'ABC'[i % 3]}:\nthe cat {i % 7} saw a dog and no {i % 11} hats, so it goes" for i in range(60)
)
TINY = {"layers": 2, "heads": 2, "width": 8, "block": 13, "batch_size": 3, "steps": 30, "warmup": 5, "chunk": 8}
TINY |= {"early": 10, "new": 4}


@pytest.fixture
def play(monkeypatch, tmp_path):
    """Short speeches in place of Shakespeare's; checkpoints in a folder of their own."""
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: TEXT)
    monkeypatch.setenv("COURSE_CHECKPOINTS", str(tmp_path))


def test_the_run_is_recorded_and_its_weights_are_kept(play, tmp_path):
    """Fails if a number is missing, training makes nothing better, or the files are not the model that was scored."""
    found = experiment.shakespeare_weights(0, **TINY)
    json.dumps(found, allow_nan=False)
    assert "shakespeare-weights" in known()
    row, early = found["results"]["GPT"], found["results"]["early"]
    assert [entry["step"] for entry in found["history"]["GPT"]] == [8, 10, 16, 24, 30]
    assert (early["steps"], row["steps"], row["tokens"]) == (10, 30, 30 * 3 * 13)
    assert row["valid_loss"] < early["valid_loss"] < math.log(len(set(TEXT)))
    assert row["sample"].startswith("GREMIO:\n")
    assert len(row["sample"]) == len(early["sample"]) == 8 + 4
    model, characters = load_shakespeare(tmp_path / "shakespeare-0")
    assert characters == "".join(sorted(set(TEXT)))
    assert row["parameters"] == sum(p.numel() for p in model.parameters())
    assert not list(tmp_path.glob("*.pt"))  # the checkpoint of the training has done its work


def test_the_scores_are_those_of_the_file(play, tmp_path):
    """Fails if the model is scored or writes before its weights are rounded."""
    row = experiment.shakespeare_weights(0, **TINY)["results"]["GPT"]
    model, characters = load_shakespeare(tmp_path / "shakespeare-0")
    ids = torch.tensor([characters.index(char) for char in TEXT[int(0.9 * len(TEXT)) :]])
    n = (len(ids) - 1) // 13
    inputs, targets = ids[: n * 13].view(n, 13), ids[1 : n * 13 + 1]
    with torch.no_grad():
        assert F.cross_entropy(model(inputs).flatten(0, 1), targets).item() == pytest.approx(
            row["valid_loss"], rel=1e-5
        )
    assert experiment.sample_of(model, characters, 4) == row["sample"]


def test_a_stopped_run_goes_on(play, monkeypatch):
    """Fails if a stopped run ends with other numbers than one in a piece, or goes on from another run's checkpoint."""
    whole = experiment.shakespeare_weights(0, **TINY)
    keep, calls = experiment.keep, []

    def stop(*parts):
        keep(*parts)
        calls.append(parts)
        if len(calls) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(experiment, "keep", stop)
    with pytest.raises(KeyboardInterrupt):
        experiment.shakespeare_weights(0, **TINY)
    with pytest.raises(ValueError, match="delete it to start again"):
        experiment.shakespeare_weights(0, **TINY | {"steps": 31})
    found = experiment.shakespeare_weights(0, **TINY)
    for row in ("early", "GPT"):
        for name in ("steps", "valid_loss", "sample"):
            assert found["results"][row][name] == whole["results"][row][name]
    assert len(calls) == 5  # three before the stop, two after it


def test_positions_start_as_sine_waves():
    """Fails if positions and embeddings start at different sizes, or branches are not divided by the root of 2 N."""
    torch.manual_seed(0)
    model = experiment.make_model(50, 24, layers=8, heads=2, width=40)
    size = [w.square().mean().sqrt().item() for w in (model.embedding.weight, model.positions)]
    assert size == pytest.approx([0.05, 0.05], rel=0.1)
    assert model.blocks[3].attn.out_proj.weight.std().item() == pytest.approx(0.05 / 4, rel=0.1)
    distances = torch.cdist(model.positions, model.positions)
    assert torch.allclose(distances[0, 1], distances[6, 7], atol=1e-6)  # a step is a step, wherever
