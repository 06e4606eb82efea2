"""Chapter 05's experiments at tiny sizes: shapes of the record, who chooses what, and the statistics by hand."""

import functools
import random

import pytest
import torch

from course_lib import data
from course_lib.experiments import ch05
from course_lib.gated import GRU, LSTM
from course_lib.tasks import SequenceClassifier
from course_lib.text import pad_batch

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
    return ch05.memory_by_lag(seed=0, **TINY)["results"]


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
        ch05.make_reader("recall", name, D, 5.0).layer for name in ("LSTM", "LSTM, bias 0", "GRU", "RNN, identity")
    )
    assert torch.equal((lstm.bias_ih_l0 + lstm.bias_hh_l0)[D : 2 * D], torch.full((D,), 5.0))
    assert torch.equal((open_lstm.bias_ih_l0 + open_lstm.bias_hh_l0)[D : 2 * D], torch.zeros(D))
    assert torch.equal(rnn.weight_hh_l0, torch.eye(D))
    h = torch.rand(1, 3, D)  # update gates of 0.993 keep a state whatever the candidate is
    assert (gru(torch.zeros(3, 1, gru.input_size), h)[1] - h).abs().max() < 0.05


def test_training_ends_when_solved_or_at_the_budget():
    """Fails if a solved task goes on, an unsolved one stops early, or the model has not learnt."""
    torch.manual_seed(0)
    draw = functools.partial(ch05.recall, 2)
    model = ch05.make_reader("recall", "LSTM", 16, 5.0)
    steps = ch05.train_reader(model, draw, 1e-2, 400, 32, torch.Generator().manual_seed(0), window=5)
    assert 5 < steps < 400
    x, y = draw(200, torch.Generator().manual_seed(1))
    assert ch05.error(model(x), y) < 0.05
    untrained = ch05.make_reader("recall", "RNN", 16, 5.0)
    assert ch05.train_reader(untrained, draw, 1e-9, 7, 32, torch.Generator().manual_seed(0), window=5) == 7


def test_losses_and_errors_by_hand():
    """Fails if the squared error is of logits, the share counts right answers, or a dimension is mixed up."""
    logits = torch.tensor([[[0.0, 9.0, 0.0], [9.0, 0.0, 0.0]]])  # says 1, 0
    assert ch05.error(logits, torch.tensor([[1, 2]])) == 0.5
    assert ch05.answer_loss(logits, torch.tensor([[1, 0]])).item() < 0.001
    assert ch05.answer_loss(logits, torch.tensor([[0, 1]])).item() == pytest.approx(9, abs=0.001)
    numbers = torch.tensor([[[1.0]], [[4.0]]])
    assert (
        ch05.error(numbers, torch.tensor([[1.0], [2.0]]))
        == ch05.answer_loss(numbers, torch.tensor([[1.0], [2.0]]))
        == 2
    )


def test_better_rate_is_kept():
    """Fails if the last rate is kept although an earlier one is better, or the grid is not left once solved."""
    torch.manual_seed(0)
    start = ch05.make_reader("recall", "LSTM", 16, 5.0)
    options = {"seed": 0, "batch_size": 32, "test_size": 100}
    draw = functools.partial(ch05.recall, 2)
    model, found = ch05._best_rate(start, draw, 60, learning_rates=(1e-2, 1e-9), **options)
    assert found["learning_rate"] == 1e-2
    assert found["error"] < 0.5
    assert not torch.equal(model.output.weight, start.output.weight)  # the copy was trained, not the start
    rates = []

    def watched(size, generator):
        rates.append(size)
        return draw(size, generator)

    ch05._best_rate(start, watched, 400, learning_rates=(1e-2, 1e-3), **options)
    assert rates.count(100) == 2  # one validation, one test: the second rate was not tried


# --- gates ------------------------------------------------------------------------


def test_marked_recall_has_one_mark():
    """Fails if a mark is missing or doubled or not before the answer, or the question is overwritten."""
    x, y, where = ch05.marked_recall(300, 5, torch.Generator().manual_seed(0))
    rows = torch.arange(300)
    assert (x == ch05.MARK).sum(1).tolist() == [1] * 300
    assert torch.equal(x[rows, where - 1], torch.full((300,), ch05.MARK))
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
    row = ch05.gate_statistics(trace, torch.tensor([1, 2]), reach=1)
    assert row["offsets"] == [-1, 0, 1]
    assert row["input_gate_by_offset"] == pytest.approx([(0.1 + 0.4) / 2, (0.9 + 0.7) / 2, 0.3])
    assert row["input_gate_marked"] == pytest.approx(0.8)
    assert row["forget_gate_before"] == pytest.approx(2 * (0.1 + 0.0 + 0.4) / 3)
    assert row["output_gate_after"] == pytest.approx(3 * 0.3)
    assert row["output_gate_elsewhere"] == pytest.approx(3 * (0.1 + 0.3 + 0.0 + 0.4) / 4)


def test_gate_activations_finds_the_input_gate():
    """Fails if the LSTM does not learn the task, or what is recorded does not come from the trained one."""
    torch.manual_seed(0)
    row = ch05.gate_activations(seed=0, length=8, steps=400, reach=3, test_size=300)["results"]["marked token"]
    assert row["accuracy"] > 0.95
    assert row["steps"] <= 400
    assert row["input_gate_marked"] > row["input_gate_elsewhere"] + 0.1
    assert len(row["input_gate_by_offset"]) == len(row["offsets"]) == 7


# --- two forms of the GRU ---------------------------------------------------------


def test_gru_reset_records_both_forms(monkeypatch):
    """Fails if a variant or metric is missing or the two forms differ in size."""
    text = "".join(random.Random(0).choice(("to ", "be ", "not ")) for _ in range(400))
    monkeypatch.setattr(data, "tiny_shakespeare", lambda: text)
    sizes = {"lags": (2, 3), "steps": 20, "width": 8, "hidden": 6, "epochs": 3, "length": 8, "streams": 4, "timed": 1}
    outcome = ch05.gru_reset(seed=0, batch_size=8, characters=300, test_size=30, **sizes)
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


# --- IMDB -------------------------------------------------------------------------

GOOD, BAD, FILLER = ["great", "fine", "lovely"], ["awful", "bad", "dull"], "the film was a story of it and is".split()


def review(rng, label):
    """A review of 4 to 30 words, one in four of them telling."""
    telling = GOOD if label else BAD
    return " ".join(rng.choice(telling if rng.random() < 1 / 4 else FILLER) for _ in range(rng.randint(4, 30)))


@pytest.fixture
def small_imdb(monkeypatch):
    """300 + 100 reviews in place of IMDB's; three test reviews stand in the training set too."""
    splits = {}
    for seed, (split, n) in enumerate((("train", 300), ("test", 100))):
        rng = random.Random(seed)
        labels = [i % 2 for i in range(n)]
        splits[split] = [review(rng, label) for label in labels], labels
    splits["test"][0][:3] = splits["train"][0][:3]
    monkeypatch.setattr(data, "imdb", lambda split: splits[split])
    return splits


SMALL = {"width": 8, "hidden": 8, "epochs": 3, "batch_size": 16, "learning_rate": 0.02}


def test_imdb_recurrent_records_every_model(small_imdb):
    """Fails if a model or metric is missing, the row is not that of the best epoch, or nothing is learnt."""
    torch.manual_seed(0)
    outcome = ch05.imdb_recurrent(seed=0, **SMALL)
    names = ["RNN, last", "LSTM, padded end", "LSTM, last", "LSTM, max", "GRU, max", "LSTM, max, 400 tokens"]
    assert list(outcome["results"]) == list(outcome["history"]) == names
    for name, row in outcome["results"].items():
        scores = [entry["valid_accuracy"] for entry in outcome["history"][name]]
        assert row["valid_accuracy"] == max(scores) == scores[row["best_epoch"] - 1]
        assert row["seen"] == 3
        assert row["seconds"] > 0
    assert outcome["results"]["LSTM, max"]["accuracy"] > 0.8
    assert outcome["results"]["LSTM, max"]["parameters"] == outcome["results"]["LSTM, last"]["parameters"]


def test_test_labels_decide_nothing(small_imdb):
    """Fails if anything is chosen by the test set: with its labels turned over only the test accuracy changes."""
    torch.manual_seed(0)
    before = ch05.imdb_recurrent(seed=2, models=("GRU, max",), **SMALL)
    small_imdb["test"] = small_imdb["test"][0], [1 - label for label in small_imdb["test"][1]]
    torch.manual_seed(0)
    after = ch05.imdb_recurrent(seed=2, models=("GRU, max",), **SMALL)
    assert before["history"] == after["history"]
    right, wrong = (outcome["results"]["GRU, max"]["accuracy"] for outcome in (before, after))
    assert right == pytest.approx(1 - wrong)


def test_bidirectional_classifier_can_be_asked_for(small_imdb):
    """Fails if the model named in the docstring's command is not there."""
    outcome = ch05.imdb_recurrent(seed=0, models=("bidirectional LSTM, max",), **(SMALL | {"epochs": 1}))
    assert set(outcome["results"]) == {"bidirectional LSTM, max"}


def test_long_run_takes_its_settings(small_imdb):
    """Fails if the model or the number of epochs is not the one asked for."""
    history = ch05.imdb_recurrent_long(seed=0, epochs=1)["history"]
    assert {name: len(epochs) for name, epochs in history.items()} == {"GRU, max, 400 tokens": 1}


def test_last_column_reads_padding_and_the_classifier_does_not():
    """Fails if the pitfall does not depend on padding, or the right reading does."""
    torch.manual_seed(0)
    layer = LSTM(4, 6)
    wrong = ch05.make_classifier(20, layer, "padded", 0.0)
    right = ch05.make_classifier(20, layer, "last", 0.0)
    short, long = [5, 6, 7], [8, 9, 10, 11, 12, 13]
    alone, beside = pad_batch([short]), pad_batch([short, long])
    torch.testing.assert_close(right(*alone)[0], right(*beside)[0])
    assert (wrong(*alone)[0] - wrong(*beside)[0]).abs().max() > 1e-4
    wrong.load_state_dict(right.state_dict())
    torch.testing.assert_close(wrong(*pad_batch([long])), right(*pad_batch([long])))  # without padding they agree


def test_classifiers_start_small_with_an_open_memory():
    """Fails if the embeddings keep torch's scale of 1 or an LSTM's forget bias is left at random."""
    torch.manual_seed(0)
    model = ch05.make_classifier(500, LSTM(16, 6), "max", 0.1)
    assert 0.09 < model.embedding.weight.std() < 0.11
    assert torch.equal((model.layer.bias_ih_l0 + model.layer.bias_hh_l0)[6:12], torch.ones(6))
    assert isinstance(ch05.make_classifier(9, GRU(4, 6), "max", 0.1), SequenceClassifier)


def test_word_dropout_hides_words_and_no_padding():
    """Fails if padding is replaced, labels move, the share is wrong, or every epoch hides the same words."""
    rows, labels = [torch.arange(10, 10 + n) for n in range(1, 61)], list(range(60))
    epochs = [list(ch05._review_batches(rows, labels, 8, True, 0.25, 0, epoch)) for epoch in (1, 2)]
    hidden = real = 0
    for ids, mask, y in epochs[0]:
        assert mask.sum(1).tolist() == (y + 1).tolist()  # row n has n + 1 words
        assert (ids[~mask] == 1).all()
        hidden += ((ids == 0) & mask).sum().item()
        real += mask.sum().item()
    assert 0.2 < hidden / real < 0.3
    assert any(not torch.equal(one[0], other[0]) for one, other in zip(*epochs, strict=True))


def test_last_tokens_are_kept():
    """Fails if the first tokens are kept instead."""
    vocab = ch05.build_vocab([["a", "b", "c"]])
    rows, labels = ch05._last_tokens([["a", "b", "c"], ["b"]], [1, 0], vocab, 2)
    assert [[vocab.itos[i] for i in row.tolist()] for row in rows] == [["b", "c"], ["b"]]
    assert labels == [1, 0]
