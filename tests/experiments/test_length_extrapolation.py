"""Chapter 08's experiment at tiny sizes: the tasks against loops, the record's shape, what a place's accuracy means."""

import pytest
import torch

from course_lib.experiments import length_extrapolation
from course_lib.positional import ALiBi, LearnedPositions, RelativeBias, RoPE, Sinusoidal


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_latest_value_is_the_last_one_given():
    """Fails if a question is answered with an older value, another name's, or one that comes later."""
    x, y = length_extrapolation.latest_value(5, 30, seeded())
    asked = 0
    for row, answers in zip(x, y, strict=True):
        held = {}
        for word, answer in zip(length_extrapolation.words(row), answers.tolist(), strict=True):
            if word.endswith("?"):
                asked += word[0] in held
                assert answer == held.get(word[0], length_extrapolation.NOTHING)
            else:
                assert answer == length_extrapolation.NOTHING
                held[word[0]] = int(word[2:])
    assert asked > 30


def test_the_fixed_distance_looks_three_back():
    """Fails if the answer is that of another distance, or asked for where there is none."""
    x, y = length_extrapolation.fixed_distance(4, 9, seeded())
    assert torch.equal(y[:, 3:], x[:, :6])
    assert (y[:, :3] == length_extrapolation.NOTHING).all()
    assert x.unique().tolist() == list(range(8))


def test_each_name_gets_its_scheme():
    """Fails if a name is given to another scheme, or a table is shorter than the longest test."""
    kinds = {
        "sinusoidal": Sinusoidal,
        "learned": LearnedPositions,
        "relative bias": RelativeBias,
        "RoPE": RoPE,
        "ALiBi": ALiBi,
    }
    for name in length_extrapolation.SCHEMES:
        model = length_extrapolation.make_model("fixed distance", name, 12, width=8, heads=2, layers=1)
        if name == "none":
            assert model.embedding.position.bias(3, 3) is None
        else:
            assert type(model.embedding.position) is kinds[name]
        assert model(torch.zeros(1, 12, dtype=torch.int64)).shape == (1, 12, 8)


def test_the_one_layer_sees_other_tokens_by_causal_attention_alone():
    """Fails if a scheme is lost or added twice, or if the layer sees what comes after."""
    for name in length_extrapolation.SCHEMES:
        torch.manual_seed(0)
        scheme = length_extrapolation.SCHEMES[name](8, 2, 12)
        model = length_extrapolation.OneLayer(8, 8, 2, scheme)
        ids = torch.arange(12).remainder(8)[None]
        changed = ids.clone()
        changed[0, 9:] = 0
        assert torch.equal(model(ids)[:, :9], model(changed)[:, :9])
        assert {type(model.added), type(model.attend.position)} == {type(scheme), type(None)}


def test_one_long_test_scores_short_lengths_as_a_short_test_would():
    """Fails if the model is not causal, or places are put into the wrong window."""
    torch.manual_seed(0)
    model = length_extrapolation.make_model("fixed distance", "RoPE", 20, width=8, heads=2, layers=1)
    x, y = length_extrapolation.fixed_distance(400, 20, seeded(1))
    with torch.no_grad():
        right = model(x[:, :10]).argmax(-1) == y[:, :10]
    got = length_extrapolation.accuracy_by_place(model, "fixed distance", 20, seeded(1))
    assert len(got) == 4
    assert got[1] == pytest.approx(right[:, 5:].double().mean().item(), abs=2e-3)  # a rounded tie may flip one of 2,000


@pytest.mark.parametrize("name", ["position_extrapolation", "position_one_layer"])
def test_the_record_has_what_the_chapter_draws(name):
    """Fails if a variant or a metric is missing, or "2x" is not the window that ends at twice the length."""
    results = getattr(length_extrapolation, name)(0, length=10, times=4, steps=2, width=8)["results"]
    assert set(results) == {
        f"{task}, {name}" for task in length_extrapolation.TASKS for name in length_extrapolation.SCHEMES
    }
    for row in results.values():
        assert row["places"] == list(range(5, 41, 5))
        assert len(row["accuracy"]) == 8
        ends = {"1x": 10, "1.5x": 15, "2x": 20, "4x": 40}
        assert all(row[f"accuracy at {k}"] == row["accuracy"][row["places"].index(end)] for k, end in ends.items())
        assert row["loss"] > 0


def test_training_learns_a_short_task():
    """Fails if the loss counts places where nothing is asked, or no gradient reaches the relative table."""
    torch.manual_seed(0)
    model = length_extrapolation.make_model("fixed distance", "relative bias", 8, width=16, heads=2, layers=1)
    first = length_extrapolation.train_on_short(model, "fixed distance", 8, 1, seeded(), batch_size=32)
    last = length_extrapolation.train_on_short(
        model, "fixed distance", 8, 150, seeded(), batch_size=32, learning_rate=1e-2
    )
    assert last < 0.5 < 1.8 < first
    assert model.embedding.position.weight.abs().max() > 0.1
