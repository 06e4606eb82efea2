"""Chapter 11's jumps of the learning rate in miniature."""

import json

import torch

from course_lib.experiments import deep_jumps

SMALL = {"layers": 1, "steps": 4, "every": 2}


def test_each_row_has_its_plan():
    """Fails if a row is missing, or is trained with another plan than that of its name."""
    found = deep_jumps.deep_jumps(0, high_first=(1, 4), low_first=(1,), rises=(2,), **SMALL)
    json.dumps(found, allow_nan=False)
    names = ["high first, 1 steps", "high first, 4 steps", "low first, 1 steps", "rise, 2 steps"]
    assert list(found["results"]) == list(found["history"]) == names
    for name, rates in zip(
        names, ([0.01, *[0.001] * 3], [0.01] * 4, [0.001, *[0.01] * 3], [0.005, *[0.01] * 3]), strict=True
    ):
        assert deep_jumps.train(rates, 0, layers=1, every=2) == (found["results"][name], found["history"][name])
    assert len({row["loss"] for row in found["results"].values()}) == 4


def test_a_rate_of_zero_changes_nothing():
    """Fails if the gradient is compared with another model's or batch's."""
    row, _ = deep_jumps.train([0.0] * 4, 0, layers=2, every=2)
    assert row["gradient"] == 1


def test_the_controls_have_their_placement_rate_and_optimizer():
    """Fails if a control is trained with another placement or rate, or keeps the first Adam."""
    found = deep_jumps.deep_controls(0, fresh=2, after=4, **SMALL)
    json.dumps(found, allow_nan=False)
    trained = {
        "pre-ln, high rate": deep_jumps.train([0.01] * 4, 0, layers=1, every=2, residual="pre-ln"),
        "pre-ln, low rate": deep_jumps.train([0.001] * 4, 0, layers=1, every=2, residual="pre-ln"),
        "post-ln, fresh Adam": deep_jumps.train([0.01] * 6, 0, layers=1, every=2, fresh=2),
    }
    assert {name: (row, found["history"][name]) for name, row in found["results"].items()} == trained
    kept, _ = deep_jumps.train([0.01] * 6, 0, layers=1, every=2)
    assert kept["loss"] != found["results"]["post-ln, fresh Adam"]["loss"]


def test_only_pre_ln_has_a_last_norm():
    """Fails if Post-LN is normalised twice at its end, or Pre-LN's sum reaches the output layer as it is."""
    post, pre = (deep_jumps.make_model(0, 2, residual) for residual in ("post-ln", "pre-ln"))
    words, _ = deep_jumps.examples(torch.Generator().manual_seed(0))
    assert not any(isinstance(module, torch.nn.LayerNorm) for module in post[2].modules())
    read = pre[:2](words)
    assert torch.allclose(pre(words), pre[2][1](torch.nn.functional.layer_norm(read, (32,))))
