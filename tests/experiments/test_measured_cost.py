"""Chapter 10's experiments in small: what they record, and that each number is of what it says."""

import json
import sys

import pytest
import torch

from course_lib.cost import measure
from course_lib.experiments import known, measured_cost

TINY = {"lengths": (2, 4, 8), "width": 4, "batch_size": 2, "heads": 2, "rounds": 1}


def test_all_are_announced():
    """Fails if an experiment cannot be run by name."""
    assert {"layer-cost", "attention-time", "attention-mask-time"} <= known().keys()


def test_layer_cost_records_every_row():
    """Fails if a row or a number that the chapter draws is missing, or threads stay changed."""
    before = torch.get_num_threads()
    results = measured_cost.layer_cost(0, **TINY, crossover_widths=(4, 6), reach=7, conv_layers=2)["results"]
    json.dumps(results, allow_nan=False)
    assert torch.get_num_threads() == before
    layers = ["RNN, loop", "RNN, fused", "LSTM, fused", "CNN", "attention, math", "attention, sdpa"]
    gradients = ["RNN", "LSTM", "CNN, 2 layers", "attention"]
    assert list(results) == [
        *(f"time, {name}" for name in layers),
        *(f"crossover, width {width}" for width in (4, 6)),
        *(f"gradient, {name}" for name in gradients),
    ]
    for name in layers:
        row = results[f"time, {name}"]
        assert row["T"] == [2, 4, 8]
        assert min(row["seconds"]) > 0
        assert row["exponent"] == pytest.approx(measure.growth_exponent([4, 8], row["seconds"][1:]))


def test_gradients_are_relative_to_the_largest_and_by_distance():
    """Fails if distances run backwards or the CNN's window has another length: 2 layers of kernel 3 reach 4."""
    rows = measured_cost.layer_cost(0, **TINY, crossover_widths=(), reach=7, conv_layers=2)["results"]
    for name in ("RNN", "LSTM", "CNN, 2 layers", "attention"):
        row = rows[f"gradient, {name}"]
        assert max(row["by_distance"]) == 1
        assert len(row["by_distance"]) == 7
        assert row["least"] == min(row["by_distance"])
    assert [norm > 0 for norm in rows["gradient, CNN, 2 layers"]["by_distance"]] == [True] * 5 + [False] * 2
    assert rows["gradient, CNN, 2 layers"]["reached"] == 4
    assert rows["gradient, attention"]["reached"] == 6


@pytest.mark.parametrize(
    ("ratios", "wanted"),
    [
        ([0.5, 0.5, 2.0], 40.0),  # halfway between the logarithms of 20 and 80
        ([0.5, 2.0, 4.0], 20 / 2**0.5),
        ([0.25, 0.5, 0.99], None),
        ([2.0, 3.0, 4.0], 10.0),
        ([2.0, 0.5, 2.0], 40.0),  # noise at the beginning
    ],
)
def test_crossing(ratios, wanted):
    """Fails if the crossing is between other lengths, or not interpolated."""
    assert measured_cost.crossing((10, 20, 80), ratios) == (wanted if wanted is None else pytest.approx(wanted))


def test_crossover_is_of_the_recorded_ratios():
    """Fails if the recorded length does not follow from the recorded ratios, or a width gets another's."""
    rows = measured_cost.crossovers((4, 6), (2, 4), 2, 2, rounds=1)
    for width in (4, 6):
        row = rows[f"crossover, width {width}"]
        assert row["width"] == width
        assert row["crossover"] == measured_cost.crossing((2, 4), row["attention_over_RNN"])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak memory of a process is read on Linux")
def test_attention_time_records_time_and_memory():
    """Fails if a backend or a length is missing, or the memory is not that of the pass: math holds the weights."""
    results = measured_cost.attention_time(0, lengths=(2, 512, 1024), batch_size=1, heads=2, head_width=4, rounds=1)[
        "results"
    ]
    json.dumps(results, allow_nan=False)
    assert list(results) == ["math", "sdpa", "at the longest"]
    for backend in ("math", "sdpa"):
        assert results[backend]["T"] == [2, 512, 1024]
        assert min(results[backend]["seconds"]) > 0
    weights = 2 * 1024**2 * 4 / 1e6
    assert 2 * weights < results["math"]["peak_mb"][-1] < 8 * weights
    assert results["sdpa"]["peak_mb"][-1] < weights
    ratio = results["math"]["seconds"][-1] / results["sdpa"]["seconds"][-1]
    assert results["at the longest"] == {"T": 1024, "math_over_sdpa": ratio}


def test_attention_mask_time_records_both_masks():
    """Fails if a mask or a backend is missing, or the ratio is not that of the recorded times."""
    results = measured_cost.attention_mask_time(0, length=8, batch_size=1, heads=2, head_width=4, rounds=1)["results"]
    json.dumps(results, allow_nan=False)
    assert list(results) == ["causal", "not causal"]
    for row in results.values():
        assert row["T"] == 8
        assert min(row["math"], row["sdpa"]) > 0
        assert row["math_over_sdpa"] == row["math"] / row["sdpa"]


def test_a_step_goes_forward_and_backward():
    """Fails if the timed step leaves the backward pass out, or gradients pile up."""
    layer, x = torch.nn.Linear(3, 3), torch.ones(2, 3)
    measured_cost.training_step(layer, x)()
    assert layer.weight.grad.abs().sum() > 0
    q = torch.ones(1, 2, 3)
    measured_cost.attention_step(q, q, q, True, "math")()
    assert q.grad is None
