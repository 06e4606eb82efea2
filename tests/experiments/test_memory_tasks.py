"""Chapter 05's experiments at tiny sizes: shapes of the record, who chooses what, and the statistics by hand."""

import functools

import pytest
import torch

from course_lib.experiments import memory_tasks

# --- memory -----------------------------------------------------------------------

TINY = {
    "lags": (2, 4),
    "delays": (1,),
    "lengths": (3, 5),
    "recall_steps": 20,
    "steps": 8,
    "width": 8,
    "batch_size": 16,
    "gradient_lag": 4,
    "test_size": 50,
}


@pytest.fixture(scope="module")
def memory():
    """One small run of the experiment."""
    torch.manual_seed(0)
    return memory_tasks.memory_by_lag(seed=0, **TINY)["results"]


def test_memory_by_lag_records_every_task(memory):
    """Fails if a variant or list that the chapter plots is missing or has another length than its lags."""
    recall_models = ("RNN", "RNN, identity", "LSTM", "LSTM, bias 0", "GRU")
    names = {f"{part}, {model}" for part in ("recall", "gradient") for model in recall_models}
    assert set(memory) == names | {
        f"{task}, {model}" for task in ("copy", "adding") for model in ("RNN", "LSTM", "GRU")
    }
    for task, where, metric, lags in (
        ("recall", "lags", "accuracy", [2, 4]),
        ("copy", "delays", "accuracy", [1]),
        ("adding", "lengths", "mse", [3, 5]),
    ):
        row = memory[f"{task}, GRU"]
        assert row[where] == lags
        assert len(row[metric]) == len(row["steps"]) == len(row["learning_rate"]) == len(lags)
        assert all(0 <= value <= (1 if metric == "accuracy" else 4) for value in row[metric])
        assert set(row["learning_rate"]) <= {1e-2, 3e-3}
    chances = [memory[f"{task}, RNN"]["chance"] for task in ("recall", "copy", "adding")]
    assert chances == [1 / 8, 1 / 7, 1 / 6]


def test_gradients_by_lag(memory):
    """Fails if lag 0 is not first, or the state that starts as kept does not keep the gradient before training."""
    rows = {model: memory[f"gradient, {model}"] for model in ("RNN", "LSTM", "LSTM, bias 0", "GRU")}
    shrunk = {}
    for model, row in rows.items():
        assert row["lags"] == [0, 1, 2, 3, 4]
        assert len(row["trained"]) == len(row["untrained"]) == 5
        shrunk[model] = row["untrained"][4] / row["untrained"][0]
    assert max(shrunk["RNN"], shrunk["LSTM, bias 0"]) < 0.1 < min(shrunk["LSTM"], shrunk["GRU"])


def test_models_start_as_named():
    """Fails if a bias lands in another gate's rows or the identity is not set."""
    D = 6
    lstm, open_lstm, gru, rnn = (
        memory_tasks.make_reader("recall", name, D, 5.0).layer
        for name in ("LSTM", "LSTM, bias 0", "GRU", "RNN, identity")
    )
    assert torch.equal((lstm.bias_ih_l0 + lstm.bias_hh_l0)[D : 2 * D], torch.full((D,), 5.0))
    assert torch.equal((open_lstm.bias_ih_l0 + open_lstm.bias_hh_l0)[D : 2 * D], torch.zeros(D))
    assert torch.equal(rnn.weight_hh_l0, torch.eye(D))
    h = torch.rand(1, 3, D)  # update gates of 0.993 keep a state whatever the candidate is
    assert (gru(torch.zeros(3, 1, gru.input_size), h)[1] - h).abs().max() < 0.05


def test_training_ends_when_solved_or_at_the_budget():
    """Fails if a solved task goes on, an unsolved one stops early, or the model has not learnt."""
    torch.manual_seed(0)
    draw = functools.partial(memory_tasks.recall, 2)
    model = memory_tasks.make_reader("recall", "LSTM", 16, 5.0)
    steps = memory_tasks.train_reader(model, draw, 1e-2, 400, 32, torch.Generator().manual_seed(0), window=5)
    assert 5 < steps < 400
    x, y = draw(200, torch.Generator().manual_seed(1))
    assert memory_tasks.error(model(x), y) < 0.05
    untrained = memory_tasks.make_reader("recall", "RNN", 16, 5.0)
    assert memory_tasks.train_reader(untrained, draw, 1e-9, 7, 32, torch.Generator().manual_seed(0), window=5) == 7


def test_losses_and_errors_by_hand():
    """Fails if the squared error is of logits, the share counts right answers, or a dimension is mixed up."""
    logits = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]])  # says 1, 0
    assert memory_tasks.error(logits, torch.tensor([[1, 2]])) == 0.5
    assert memory_tasks.answer_loss(logits, torch.tensor([[1, 0]])).item() < 0.001
    assert memory_tasks.answer_loss(logits, torch.tensor([[0, 1]])).item() == pytest.approx(9, abs=0.001)
    numbers = torch.tensor([[[1.0]], [[4.0]]])
    assert (
        memory_tasks.error(numbers, torch.tensor([[1.0], [2.0]]))
        == memory_tasks.answer_loss(numbers, torch.tensor([[1.0], [2.0]]))
        == 2
    )


def test_better_rate_is_kept():
    """Fails if the last rate is kept although an earlier one is better, or the grid is not left once solved."""
    torch.manual_seed(0)
    start = memory_tasks.make_reader("recall", "LSTM", 16, 5.0)
    options = {"seed": 0, "batch_size": 32, "test_size": 100}
    draw = functools.partial(memory_tasks.recall, 2)
    model, found = memory_tasks._best_rate(start, draw, 60, learning_rates=(1e-2, 1e-9), **options)
    assert found["learning_rate"] == 1e-2
    assert found["error"] < 0.5
    assert not torch.equal(model.output.weight, start.output.weight)  # the copy was trained, not the start
    rates = []

    def watched(size, generator):
        rates.append(size)
        return draw(size, generator)

    memory_tasks._best_rate(start, watched, 400, learning_rates=(1e-2, 1e-3), **options)
    assert rates.count(100) == 2  # one validation, one test: the second rate was not tried


def test_recall_32_records_every_model():
    """Fails if a model that the chapter draws is missing, or the wide RNN has not the LSTM's number of parameters."""
    results = memory_tasks.recall_32(0, biases=(0.0, 5.0), lag=2, steps=3, test_size=20)["results"]
    assert list(results) == ["LSTM, bias 0", "LSTM, bias 5", "GRU, default", "RNN, 32 units", "RNN, 76 units"]
    assert all(0 <= row["accuracy"] <= 1 for row in results.values())
    sizes = [results[name]["parameters"] for name in ("RNN, 76 units", "LSTM, bias 5")]
    assert sizes[0] == pytest.approx(sizes[1], rel=0.02)


def test_recall_32_opens_the_gates():
    """Fails if the bias does not reach the forget gate, or nothing is learned."""
    row = memory_tasks.recall_32(0, biases=(-20.0, 3.0), lag=4, steps=150, test_size=200)["results"]
    assert row["LSTM, bias -20"]["accuracy"] < 0.5 < 0.9 < row["LSTM, bias 3"]["accuracy"]
