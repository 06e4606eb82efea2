"""Chapter 04's experiments in small: what they record, and that the comparisons are fair."""

import itertools
import json
import math

import pytest
import torch

from course_lib import bptt
from course_lib.experiments import gradients_through_time, known

TINY_ECHO = {"lag": 2, "windows": (2, 4), "tokens": 40, "vocab_size": 3, "width": 5, "batch_size": 2}


def test_all_are_announced():
    """Fails if an experiment cannot be run by name."""
    assert {"bptt-lag", "bptt-activations", "bptt-map", "bptt-truncation", "bptt-readout", "bptt-clipping"} <= set(
        known()
    )


def test_lag_records_norms_that_follow_the_radius():
    """Fails if the linear norms are not powers of the radius, lag 0 is not 1, or tanh' is not measured."""
    results = gradients_through_time.bptt_lag(0, steps=9, width=4, batch_size=3, radii=(0.5, 2.0))["results"]
    json.dumps(results, allow_nan=False)
    assert len(results) == 8
    for radius in (0.5, 2.0):
        row = results[f"linear, orthogonal, radius {radius}"]
        assert row["norms"] == pytest.approx([radius**k for k in range(9)])
        assert row["rate"] == pytest.approx(radius)
        assert row["mean_slope"] == 1
        tanh = results[f"tanh, orthogonal, radius {radius}"]
        assert tanh["norms"][0] == pytest.approx(1)
        assert all(a < b for a, b in zip(tanh["norms"][1:], row["norms"][1:], strict=True))
        assert 0 < tanh["mean_slope"] < 1


@pytest.mark.parametrize("kind", ["orthogonal", "gaussian"])
def test_recurrent_matrices_have_their_radius(kind):
    """Fails if the gain is taken for the radius, or the kinds are mixed up."""
    W = gradients_through_time.recurrent_matrix(kind, 5, 1.3, torch.Generator().manual_seed(0))
    assert bptt.spectral_radius(W) == pytest.approx(1.3)
    singular = torch.linalg.svdvals(W)
    assert (singular.max() / singular.min() < 1.0001) == (kind == "orthogonal")


def test_norms_by_lag_are_those_of_a_layer():
    """Fails if lags are shifted or the direction of the loss is not the one that is drawn: compares with autograd."""
    x, W_hh = torch.randn(3, 6, 4, dtype=torch.float64), 0.5 * torch.randn(4, 4, dtype=torch.float64)
    layer = torch.nn.RNN(4, 4, bias=False, batch_first=True, dtype=torch.float64)
    layer.weight_ih_l0.data, layer.weight_hh_l0.data = torch.eye(4, dtype=torch.float64), W_hh
    direction = torch.randn(3, 4, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    found, _ = gradients_through_time.norms_by_lag(x, W_hh, "tanh", torch.Generator().manual_seed(5))
    for b in range(3):
        alone = bptt.gradient_norm_by_lag(layer, x[b : b + 1], lambda h, b=b: (h * direction[b]).sum())
        assert (alone / alone[0])[0] == 1
    rows = [bptt.gradient_norm_by_lag(layer, x[b : b + 1], lambda h, b=b: (h * direction[b]).sum()) for b in range(3)]
    wanted = torch.stack([row / row[0] for row in rows]).mean(0)
    torch.testing.assert_close(torch.tensor(found, dtype=torch.float64), wanted, rtol=1e-10, atol=1e-10)


def test_map_records_a_row_for_each_layer():
    """Fails if a start is missing, or layers and steps are swapped."""
    results = gradients_through_time.bptt_map(0, layers=2, steps=5, width=4, batch_size=3, inputs=2)["results"]
    json.dumps(results, allow_nan=False)
    starts = ("default", "orthogonal", "LSTM, default", "LSTM, open")
    assert list(results) == [f"{start} start" for start in starts]
    for row in results.values():
        assert [len(norms) for norms in row["norms"]] == [5, 5]
        assert row["first_over_last"] == pytest.approx([norms[0] / norms[-1] for norms in row["norms"]])


def test_starts_of_a_stack():
    """Fails if the orthogonal start is not orthogonal in every layer, or the default one is changed."""
    for start in ("default", "orthogonal"):
        stack = gradients_through_time.stacked(3, 2, 4, start, torch.Generator().manual_seed(0))
        gaps = [(layer.weight_hh_l0 @ layer.weight_hh_l0.T - torch.eye(4)).abs().max().item() for layer in stack]
        assert (max(gaps) < 1e-5) == (start == "orthogonal")
        assert [layer.input_size for layer in stack] == [2, 4, 4]
    opened = gradients_through_time.stacked(3, 2, 4, "LSTM, open", torch.Generator().manual_seed(0), open_bias=6.0)
    for layer in opened:
        assert torch.equal((layer.bias_ih_l0 + layer.bias_hh_l0)[4:8], torch.full((4,), 6.0))


def test_truncation_records_every_row():
    """Fails if a row or metric that the chapter draws is missing, or cannot be written as JSON."""
    results = gradients_through_time.bptt_truncation(0, **TINY_ECHO)["results"]
    json.dumps(results, allow_nan=False)
    states = [f"{state}, window {w}" for w in (2, 4) for state in ("carried", "zeroed")]
    assert list(results) == [*states, "bias, untrained", "bias, trained"]
    for name in ("bias, untrained", "bias, trained"):
        assert results[name]["windows"] == [2, 4, 64]
        assert len(results[name]["cosine"]) == len(results[name]["norm_ratio"]) == 3


def test_the_echo_is_the_token_of_lag_steps_before():
    """Fails if targets are not the inputs, `lag` steps late."""
    model = gradients_through_time.echo_model(0, 4, 3)
    inputs, targets = gradients_through_time.echo_stream(model, 3, 2, 11, torch.Generator().manual_seed(0))
    assert inputs.shape == targets.shape == (2, 11)
    assert torch.equal(targets[:, 3:], inputs[:, :-3])


def test_every_window_reads_the_same_stream_from_the_same_weights():
    """Fails if carried and zeroed runs differ in anything but the state: the first window's loss is the same."""
    losses = {}
    for carry in (True, False):
        model = gradients_through_time.echo_model(3, 4, 5)
        losses[carry] = gradients_through_time.train_echo(
            model, 2, 4, 3, 2, 1e-3, torch.Generator().manual_seed(0), carry=carry
        )
    assert losses[True][0] == losses[False][0]
    assert losses[True][1] != losses[False][1]


def test_accuracy_leaves_out_what_nobody_can_know():
    """Fails if the first `lag` answers count: a model that is always right must score 1."""
    model = gradients_through_time.echo_model(0, 4, 3)

    class Perfect(torch.nn.Module):
        input_size = 4

        def forward(self, x):
            late = torch.zeros_like(x)
            late[:, 2:] = x[:, :-2]
            return late, None

    model.layer, model.head = Perfect(), torch.nn.Identity()
    assert gradients_through_time.echo_accuracy(model, 2, torch.Generator().manual_seed(0), batch_size=5, steps=9) == 1
    assert (
        gradients_through_time.echo_accuracy(model, 3, torch.Generator().manual_seed(0), batch_size=50, steps=9) < 0.5
    )


def test_clipping_records_every_row():
    """Fails if a rate or a metric is missing, or the history has not about a hundred points."""
    outcome = gradients_through_time.bptt_clipping(
        0, lag=3, steps=12, width=4, vocab_size=3, batch_size=2, learning_rates=(0.1, 1.0), max_norm=0.5
    )
    json.dumps(outcome, allow_nan=False)
    names = [f"{way}, rate {rate}" for way in ("not clipped", "clipped at 0.5") for rate in ("0.1", "1")]
    assert list(outcome["results"]) == list(outcome["history"]) == names
    assert [point["step"] for point in outcome["history"][names[0]]] == list(range(1, 13))
    for row in outcome["results"].values():
        assert row["norm_max"] >= row["norm_median"] > 0
        assert 0 <= row["accuracy"] <= 1


def test_clipping_is_the_only_difference():
    """Fails if the clipped run starts elsewhere or sees other data, or the norm logged is the clipped one."""
    runs = [gradients_through_time.train_recall(1, 3, 4, 5, 4, 6, 0.5, max_norm) for max_norm in (math.inf, 1e-3)]
    assert runs[0][1][0] == runs[1][1][0]
    assert runs[0][2][0] == runs[1][2][0] > 1e-3
    assert runs[0][1][1] != runs[1][1][1]


def test_activations_record_what_the_figure_draws():
    """Fails if a function or a radius is missing, lag 0 is not 1, or a sigmoid's step beats its bound of radius / 4."""
    results = gradients_through_time.bptt_activations(0, steps=12, width=4, batch_size=3, radii=(0.5, 2.0))["results"]
    json.dumps(results, allow_nan=False)
    assert list(results) == [f"{name}, radius {r}" for name in ("tanh", "sigmoid", "ReLU") for r in (0.5, 2.0)]
    for radius in (0.5, 2.0):
        assert all(results[f"{name}, radius {radius}"]["norms"][0] == pytest.approx(1) for name in ("tanh", "ReLU"))
        norms = results[f"sigmoid, radius {radius}"]["norms"]
        assert len(norms) == 12
        assert all(b <= a * radius / 4 * 1.000001 for a, b in itertools.pairwise(norms))
        assert results[f"tanh, radius {radius}"]["largest_state"] < 1


def test_readout_leaves_a_frozen_recurrence_alone(monkeypatch):
    """Fails if a frozen layer moves, a trained one does not, or the rotation has another radius."""
    moved, train = {}, gradients_through_time.train_echo

    def watched(model, *args, **kwargs):
        before = model.layer.weight_hh_l0.detach().clone()
        losses = train(model, *args, **kwargs)
        moved[len(moved)] = not torch.equal(before, model.layer.weight_hh_l0)
        if len(moved) > 2:  # the last two start from the rotation
            torch.testing.assert_close(before @ before.T, 0.81 * torch.eye(8))
        return losses

    monkeypatch.setattr(gradients_through_time, "train_echo", watched)
    results = gradients_through_time.bptt_readout(
        0, lag=2, window=2, radius=0.9, tokens=8, vocab_size=3, width=8, batch_size=2
    )["results"]
    json.dumps(results, allow_nan=False)
    assert list(results) == ["default, frozen", "default, trained", "rotation, frozen", "rotation, trained"]
    assert list(moved.values()) == [False, True, False, True]
    assert all(0 <= row["accuracy"] <= 1 for row in results.values())
