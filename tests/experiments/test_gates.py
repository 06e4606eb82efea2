"""Gates at a marked token and two forms of the GRU, at tiny sizes."""

import random

import pytest
import torch

from course_lib import datasets
from course_lib.experiments import gates


def test_marked_recall_has_one_mark():
    """Fails if a mark is missing or doubled or not before the answer, or the question is overwritten."""
    x, y, where = gates.marked_recall(300, 5, torch.Generator().manual_seed(0))
    rows = torch.arange(300)
    assert (x == gates.MARK).sum(1).tolist() == [1] * 300
    assert torch.equal(x[rows, where - 1], torch.full((300,), gates.MARK))
    assert torch.equal(x[rows, where], y)
    assert (x[:, -1] == 0).all()
    assert set(where.tolist()) == {1, 2, 3}
    assert set(y.tolist()) == set(range(1, 9))


def test_gate_statistics_by_hand():
    """Fails if offsets are shifted, the question counts, or units are not averaged."""
    gate = torch.tensor(
        [[[0.0, 0.2], [0.8, 1.0], [0.2, 0.4], [1.0, 1.0]], [[0.0, 0.0], [0.4, 0.4], [0.6, 0.8], [1.0, 1.0]]]
    )
    trace = {"i": gate, "f": 2 * gate, "o": 3 * gate}
    row = gates.gate_statistics(trace, torch.tensor([1, 2]), reach=1)
    assert row["offsets"] == [-1, 0, 1]
    assert row["input_gate_by_offset"] == pytest.approx([(0.1 + 0.4) / 2, (0.9 + 0.7) / 2, 0.3])
    assert row["input_gate_marked"] == pytest.approx(0.8)
    assert row["forget_gate_before"] == pytest.approx(2 * (0.1 + 0.0 + 0.4) / 3)
    assert row["output_gate_after"] == pytest.approx(3 * 0.3)
    assert row["output_gate_elsewhere"] == pytest.approx(3 * (0.1 + 0.3 + 0.0 + 0.4) / 4)


def test_gate_activations_finds_the_input_gate():
    """Fails if the LSTM does not learn the task, or what is recorded does not come from the trained one."""
    torch.manual_seed(0)
    row = gates.gate_activations(seed=0, length=8, steps=400, reach=3, test_size=300)["results"]["marked token"]
    assert row["accuracy"] > 0.95
    assert row["steps"] <= 400
    assert row["input_gate_marked"] > row["input_gate_elsewhere"] + 0.1
    assert len(row["input_gate_by_offset"]) == len(row["offsets"]) == 7


def test_gru_reset_records_both_forms(monkeypatch):
    """Fails if a variant or metric is missing or the two forms differ in size."""
    text = "".join(random.Random(0).choice(("to ", "be ", "not ")) for _ in range(400))
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: text)
    sizes = {"lags": (2, 3), "steps": 20, "width": 8, "hidden": 6, "epochs": 3, "length": 8, "streams": 4, "timed": 1}
    outcome = gates.gru_reset(seed=0, batch_size=8, characters=300, test_size=30, **sizes)
    results, history = outcome["results"], outcome["history"]
    both = [f"{task}, reset {when}" for task in ("recall", "characters") for when in ("after", "before")]
    assert set(results) == {*both, "time"}
    assert results["recall, reset before"]["lags"] == [2, 3]
    assert len(results["recall, reset before"]["accuracy"]) == 2
    rows = [results[f"characters, reset {when}"] for when in ("after", "before")]
    assert rows[0]["parameters"] == rows[1]["parameters"]
    assert rows[0]["valid_nats"] != rows[1]["valid_nats"]
    assert all(value > 0 for value in results["time"].values())
    assert set(history) == set(both[2:])


def test_one_gate_is_the_gru_without_its_reset_gate():
    """Fails if the lone gate is reversed, or the candidate is not that of r = 1."""
    torch.manual_seed(3)
    layer, h = gates.OneGateGRU(3, 5), torch.randn(2, 5)
    x = torch.randn(2, 1, 3)
    weight_ih, weight_hh, bias_ih, bias_hh = layer.all_weights[0]
    _, z_x, n_x = (x[:, 0] @ weight_ih.T + bias_ih).chunk(3, 1)
    _, z_h, n_h = (h @ weight_hh.T + bias_hh).chunk(3, 1)
    z, n = (z_x + z_h).sigmoid(), (n_x + n_h).tanh()
    torch.testing.assert_close(layer(x, h[None])[1][0], (1 - z) * n + z * h)
    with torch.no_grad():
        bias_ih[:5] = 50.0  # the GRU with r = 1 is the same layer
    two_gates = gates.GRU(3, 5)
    two_gates.load_state_dict(layer.state_dict())
    torch.testing.assert_close(layer(x, h[None])[0], two_gates(x, h[None])[0])


def test_gru_one_gate_records_both(monkeypatch):
    """Fails if a variant or metric that the chapter reads is missing."""
    text = "".join(random.Random(0).choice(("to ", "be ", "not ")) for _ in range(400))
    monkeypatch.setattr(datasets, "tiny_shakespeare", lambda: text)
    sizes = {"lags": (2, 3), "steps": 20, "width": 8, "hidden": 6, "epochs": 3, "length": 8, "streams": 4}
    outcome = gates.gru_one_gate(seed=0, batch_size=8, characters=300, test_size=30, **sizes)
    both = [f"{task}, {which}" for task in ("recall", "characters") for which in ("one gate", "two gates")]
    assert set(outcome["results"]) == set(both)
    for name in both[:2]:
        assert len(outcome["results"][name]["accuracy"]) == len(outcome["results"][name]["lags"]) == 2
    assert [len(log) for log in outcome["history"].values()] == [3, 3]


def test_gates_price_tests_the_best_epoch_so_far():
    """Fails if a bias is missing, an epoch is lost, or the test does not follow validation."""
    sizes = {"train_reviews": 40, "valid_reviews": 8, "test_reviews": 12, "batch_size": 8}
    outcome = gates.gates_price(seed=0, biases=(2, 7), epochs=(1, 3), **sizes)
    assert list(outcome["results"]) == ["default", "bias 2", "bias 7"]
    for name, row in outcome["results"].items():
        log = outcome["history"][name]
        assert [entry["epoch"] for entry in log] == [1, 2, 3]
        assert row["epochs"] == [1, 3]
        assert len(row["accuracy"]) == 2
        assert row["valid_accuracy"] == max(entry["valid_accuracy"] for entry in log)
        if log[0]["valid_accuracy"] == row["valid_accuracy"]:  # the first of the best is kept
            assert row["accuracy"][0] == row["accuracy"][1]


def test_a_review_is_read_at_its_own_end():
    """Fails if padding changes a verdict, or dropout is on in the test."""
    torch.manual_seed(0)
    model = gates.ReviewLSTM(20)
    ids, lengths = torch.randint(2, 20, (2, 6)), torch.tensor([4, 6])
    model.eval()
    wide = torch.cat([ids, torch.ones(2, 5, dtype=torch.int64)], 1)
    torch.testing.assert_close(model(wide, lengths), model(ids, lengths))
    model.train()
    rows = [[2, 3, 4], [5, 6]]
    assert gates.reviews_right(model, rows, [0, 1]) == gates.reviews_right(model, rows, [0, 1])
    assert not model.training


def test_gates_speed_times_four_layers_in_turn():
    """Fails if a layer is missing, the LSTM is not the measure, or the wide GRU has another number of parameters."""
    found = gates.gates_speed(seed=0, width=12, batch_size=2, length=5, rounds=3, times=1)["results"]
    assert set(found) == {"LSTM", "LSTM, no oneDNN", "GRU", "GRU, equal parameters"}
    assert found["LSTM"]["times_lstm_rounds"] == [1.0, 1.0, 1.0]
    assert found["GRU"]["hidden_size"] == found["LSTM"]["hidden_size"] == 12
    assert found["GRU, equal parameters"]["parameters"] == pytest.approx(found["LSTM"]["parameters"], rel=0.05)
    assert all(row["milliseconds"] > 0 for row in found.values())
