"""Chapter 11's experiments in miniature: the task, the trainings and the measurements against independent ones."""

import collections
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.datasets import synthetic
from course_lib.experiments import training_tricks
from course_lib.notebook import ledger

SMALL = {"width": 8, "every": 2}  # of a training


@pytest.fixture(scope="module")
def task():
    return training_tricks.translation_task(train=60, valid=30, seed=3)


@pytest.fixture
def float64():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def torch_model(residual, layers, task, seed, width=8):
    """The same untrained model from torch's own layers: the logits as a function, and the layers."""
    ours = training_tricks.make_model(residual, layers, len(task.words), seed, width)
    first = residual == "pre-ln"
    sizes, options = (width, 2, 4 * width, 0.0), {"batch_first": True, "norm_first": first}
    stack = [nn.TransformerEncoderLayer(*sizes, **options) for _ in range(layers)]
    for layer, mine in zip(stack, ours.encoder.layers, strict=True):
        layer.load_state_dict(mine.state_dict())
    streams = []

    def logits(inputs):
        x, later = ours.embedding(inputs).detach(), torch.ones(inputs.shape[1], inputs.shape[1]).triu(1).bool()
        x.requires_grad_()
        for layer in stack:
            x.retain_grad()
            streams.append(x)
            x = layer(x, src_mask=later)
        x = F.layer_norm(x, (width,)) if first else x
        return x @ ours.embedding.embedding.weight.T

    return logits, stack, streams


def mean_loss(logits, batch):
    inputs, targets = batch
    asked = targets != -100
    return F.cross_entropy(logits(inputs)[asked], targets[asked])


# --- the task ---------------------------------------------------------------------


def test_each_row_is_a_pair_and_asks_for_its_translation(task):
    """Fails if the source or the mark is asked for, a word is moved by a place, the end is missing or a pair is cut."""
    pairs = {" ".join(pair.source): " ".join(pair.target) for pair in synthetic.translation_pairs(60, 3)}
    short = [source for source, target in pairs.items() if len(f"{source} = {target} <eos>".split()) <= 20]
    inputs, targets = task.train
    assert inputs.shape == targets.shape == (len(short), 19)
    assert 10 < len(short) < 60
    for row, answers in zip(inputs.tolist(), targets.tolist(), strict=True):
        text = [task.words[i] for i in row]
        mark = text.index("=")
        wanted = f"{pairs[' '.join(text[:mark])]} <eos>".split()
        assert answers[:mark] == [-100] * mark
        assert [task.words[i] for i in answers[mark : mark + len(wanted)]] == wanted
        assert text[mark + 1 : mark + len(wanted)] == wanted[:-1]
        assert set(answers[mark + len(wanted) :]) <= {-100}


def test_no_validation_pair_is_a_training_pair():
    """Fails if pairs that both drawings contain stay in the validation data, or both come from one seed."""
    task = training_tricks.translation_task(train=30, valid=30, seed=4)
    rows = [set(map(tuple, part[0].tolist())) for part in (task.train, task.valid)]
    assert len(rows[1]) > 5
    assert not rows[0] & rows[1]


def test_the_loss_is_that_of_the_words_asked_for(task):
    """Fails if the source or padding counts, or the sums are means."""
    torch.manual_seed(0)
    logits = torch.randn(*task.valid[0].shape, len(task.words))
    sums = training_tricks.asked_loss(lambda inputs: logits, task.valid)
    asked = task.valid[1] != -100
    wanted = F.cross_entropy(logits[asked], task.valid[1][asked])
    assert sums["count"] == asked.sum()
    torch.testing.assert_close(sums["loss"] / sums["count"], wanted)
    assert sums["accuracy"] == (logits[asked].argmax(-1) == task.valid[1][asked]).sum()


def test_the_table_of_word_pairs_against_a_count_by_hand(task):
    """Fails if the given word is not the one before, or words of the source are counted."""
    pairs = []
    for row, answers in zip(*(part.tolist() for part in task.train), strict=True):
        pairs += [(a, b) for a, b in zip(row, answers, strict=True) if b != -100]
    both, first = collections.Counter(pairs), collections.Counter(a for a, _ in pairs)
    wanted = -sum(n * math.log(n / first[a]) for (a, _), n in both.items()) / len(pairs)
    assert training_tricks.word_pair_loss(task) == pytest.approx(wanted, rel=1e-12)


# --- training -----------------------------------------------------------------------


def test_all_settings_of_a_seed_see_the_same_data_and_start_alike(task, monkeypatch):
    """Fails if residual, optimizer, depth or warm-up changes the batches, or the residual the matrices."""
    seen, measure = [], training_tricks.asked_loss

    def watched(model, batch):
        if model.training:
            seen[-1].append(batch[0])
        return measure(model, batch)

    monkeypatch.setattr(training_tricks, "asked_loss", watched)
    for residual, warmup, optimizer, layers in (("post-ln", 0, "Adam", 1), ("rezero", 3, "RAdam", 2)):
        seen.append([])
        training_tricks.train_one(residual, warmup, optimizer, layers, 5, 4, task=task, **SMALL)
    assert len(seen[0]) == len(seen[1]) == 4
    assert all(torch.equal(a, b) for a, b in zip(*seen, strict=True))
    assert not torch.equal(seen[0][0], seen[0][1])
    models = [training_tricks.make_model(residual, 2, 11, 5, width=8) for residual in ("post-ln", "pre-ln", "rezero")]
    matrices = [[p for p in model.parameters() if p.ndim > 1] for model in models]
    assert len(matrices[0]) == 1 + 2 * 4
    for same in zip(*matrices, strict=True):
        assert torch.equal(same[0], same[1])
        assert torch.equal(same[0], same[2])
    assert [model.encoder.norm is None for model in models] == [True, False, True]


def test_the_same_seed_gives_the_same_numbers(task):
    """Fails if anything is drawn from elsewhere than the seed, or the seed is not used."""
    runs = [training_tricks.train_one("pre-ln", 2, "RAdam", 1, seed, 4, task=task, **SMALL) for seed in (0, 0, 1)]
    assert runs[0] == runs[1]
    assert runs[0][1] != runs[2][1]


@pytest.mark.parametrize(("optimizer", "size"), [("Adam", 1e-3), ("RAdam", None)])
def test_the_first_step_is_that_of_the_optimizer_named(task, monkeypatch, optimizer, size):
    """Fails if the warm-up is left out (Adam's first step is the rate for every number) or RAdam is Adam."""
    kept, make = [], training_tricks.make_model
    monkeypatch.setattr(training_tricks, "make_model", lambda *sizes: kept.append(make(*sizes)) or kept[-1])
    training_tricks.train_one("pre-ln", 5, optimizer, 1, 0, 1, 5e-3, task=task, width=8, every=1)
    before = make("pre-ln", 1, len(task.words), 0, 8)
    moved = [(a - b).detach() for a, b in zip(kept[0].parameters(), before.parameters(), strict=True)]
    largest = max(change.abs().max().item() for change in moved)
    if size:
        assert largest == pytest.approx(size, rel=1e-2)  # float32: entries near 1 move by 1e-3 within 6e-8, and epsilon
    else:  # momentum alone: rate times gradient
        mean_loss(before, next(training_tricks.batches(task, 0))).backward()
        for change, parameter in zip(moved, before.parameters(), strict=True):
            torch.testing.assert_close(change, -1e-3 * parameter.grad, rtol=1e-3, atol=2e-7)


def test_a_training_that_diverges_is_recorded_as_such(task):
    """Fails if the error ends the run, the curve is shorter than the others or holds a number that is not finite."""
    row, history = training_tricks.train_one("post-ln", 0, "Adam", 1, 0, 6, 1e30, task=task, **SMALL)
    assert row["diverged"] == 1
    assert row["reached"] == 0
    assert row["steps"] is None
    assert [entry["step"] for entry in history] == [0, 2, 4, 6]
    assert all(math.isfinite(value) for entry in history for value in entry.values())
    assert row["loss"] == history[-1]["loss"]
    assert training_tricks.train_one("post-ln", 0, "Adam", 1, 0, 6, 1e-3, task=task, **SMALL)[0]["diverged"] == 0


def test_the_row_says_what_the_history_shows():
    """Fails if a threshold counts before it is reached, the best entry is taken for the last, or stuck is turned."""
    history = [{"step": s, "loss": x, "accuracy": a} for s, x, a in [(0, 5.0, 0.0), (2, 1.0, 0.8), (4, 2.0, 0.5)]]
    row = training_tricks._row(history, 0.8, 1.9, False)
    assert row == {"loss": 2.0, "accuracy": 0.5, "steps": 2, "reached": 1, "stuck": 1, "diverged": 0}
    row = training_tricks._row(history, 0.81, 2.1, False)
    assert row == {"loss": 2.0, "accuracy": 0.5, "steps": None, "reached": 0, "stuck": 0, "diverged": 0}


def test_training_learns(task):
    """Fails if no gradient reaches the model, or the measurement is not of the trained model."""
    row, history = training_tricks.train_one(
        "pre-ln", 0, "Adam", 1, 0, 40, 1e-2, task=task, width=16, every=20, threshold=0.25
    )
    assert history[0]["loss"] > 4.0
    assert row["loss"] < 3.0
    assert row["reached"] == 1


@pytest.mark.parametrize("steps", [0, -2, 3])
def test_steps_must_be_measured_to_the_end(task, steps):
    """Fails if steps after the last measurement are trained, or none are."""
    with pytest.raises(ValueError, match=f"multiple of every .2., got {steps}"):
        training_tricks.train_one("pre-ln", 0, "Adam", 1, 0, steps, task=task, **SMALL)


@pytest.mark.parametrize(
    ("residual", "optimizer", "wanted"), [("postln", "Adam", "rezero"), ("pre-ln", "SGD", "RAdam")]
)
def test_only_known_settings_are_trained(task, residual, optimizer, wanted):
    """Fails if a setting with a typing error is trained as another one."""
    with pytest.raises(ValueError, match=f"{wanted}.*got '{residual if wanted == 'rezero' else optimizer}'"):
        training_tricks.train_one(residual, 0, optimizer, 1, 0, 2, task=task, **SMALL)


# --- the recorded runs --------------------------------------------------------------

TINY = {"depths": (1,), "steps": 2, "every": 1, "width": 8, "batch_size": 4}


def test_each_row_of_the_grid_has_the_setting_of_its_name(monkeypatch):
    """Fails if a row is missing, or is filled with another setting's training."""
    monkeypatch.setattr(
        training_tricks, "translation_task", lambda seed, task=training_tricks.translation_task: task(60, 30, seed)
    )
    found = training_tricks.training_grid(1, warmups=(0, 5), learning_rate=1e-2, **TINY)
    names = itertools.product(training_tricks.RESIDUALS, ("no warm-up", "warm-up"), ("Adam", "RAdam"), ("1 layers",))
    assert list(found["results"]) == list(found["history"]) == [", ".join(name) for name in names]
    sizes = {"every": 1, "width": 8, "batch_size": 4}
    row, history = training_tricks.train_one("pre-ln", 5, "RAdam", 1, 1, 2, 1e-2, **sizes)
    assert found["results"]["pre-ln, warm-up, RAdam, 1 layers"] == row
    assert found["history"]["pre-ln, warm-up, RAdam, 1 layers"] == history
    assert len({str(curve) for curve in found["history"].values()}) > 6


def test_each_row_of_the_rates_has_the_setting_of_its_name(monkeypatch):
    """Fails if a row is missing, or is filled with another rate's training."""
    monkeypatch.setattr(
        training_tricks, "translation_task", lambda seed, task=training_tricks.translation_task: task(60, 30, seed)
    )
    sizes = {"every": 1, "width": 8, "batch_size": 4}
    found = training_tricks.training_rates(1, warmups=(0, 5), learning_rates=(1e-3, 1e-2), layers=1, steps=2, **sizes)
    assert len(found["results"]) == 8
    row, history = training_tricks.train_one("post-ln", 0, "Adam", 1, 1, 2, 1e-2, **sizes)
    assert found["results"]["post-ln, no warm-up, rate 0.01"] == row
    assert found["history"]["post-ln, no warm-up, rate 0.01"] == history
    assert history != found["history"]["post-ln, no warm-up, rate 0.001"]


def test_radams_row_is_the_training_of_its_name(monkeypatch):
    """Fails if the row that the chapter reads is another optimizer's, placement's or rate's."""
    monkeypatch.setattr(
        training_tricks, "translation_task", lambda seed, task=training_tricks.translation_task: task(60, 30, seed)
    )
    sizes = {"every": 1, "width": 8, "batch_size": 4}
    found = training_tricks.training_radam(1, steps=2, **sizes)
    row, history = training_tricks.train_one("post-ln", 0, "RAdam", 4, 1, 2, 0.015, **sizes)
    name = "post-ln, no warm-up, RAdam, 4 layers, rate 0.015"
    assert found == {"results": {name: row}, "history": {name: history}}


RECORDED = ["training-grid", *({"training-rates"} & set(ledger.names()))]  # the sweep over rates is an extra


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_rows_agree_with_their_curves(name):
    """Fails if the ledger lacks a row of its settings, a curve ends elsewhere than its row, or lengths differ."""
    record = ledger.load(name)
    config = record["config"]
    rows = len(config["residuals"]) * len(config["warmups"])
    rows *= len(config["learning_rates"]) if name == "training-rates" else len(config["optimizers"]) * 2
    places = list(range(0, config["steps"] + 1, config["every"]))
    assert len(record["runs"]) >= (3 if name == "training-grid" else 1)
    for run in record["runs"]:
        assert len(run["results"]) == len(run["history"]) == rows
        for variant, row in run["results"].items():
            curve = run["history"][variant]
            assert [entry["step"] for entry in curve] == places
            assert (row["loss"], row["accuracy"]) == (curve[-1]["loss"], curve[-1]["accuracy"])
            assert row["reached"] == (max(entry["accuracy"] for entry in curve) >= 0.8)
