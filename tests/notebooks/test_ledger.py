import json
import os

import pytest
import torch

from course_lib.notebook import ledger


def record(name="toy-run"):
    def run(seed, accuracy):
        history = [{"epoch": 1, "loss": 0.9 + seed}, {"epoch": 2, "loss": 0.5 + seed}]
        return {
            "seed": seed,
            "seconds": 12.3456,
            "peak_mb": 321.0,
            "results": {
                "bag": {"accuracy": accuracy, "parameters": 12345},
                "lstm": {"accuracy": 1.0, "by lag": [1, seed], "note": "text"},
            },
            "history": {"bag": history},
        }

    return {"experiment": name, "summary": "A toy.", "runs": [run(0, 0.8604), run(1, 0.8722), run(2, 0.8558)]}


@pytest.fixture
def folder(tmp_path):
    ledger.save(record(), tmp_path)
    return tmp_path


def test_what_is_saved_comes_back(folder):
    """Fails if any value is changed, lost or written under another name."""
    assert ledger.names(folder) == ["toy-run"]
    assert ledger.load("toy-run", folder) == record()
    assert sorted(path.name for path in folder.iterdir()) == ["toy-run.json"]


def test_tensors_become_numbers(tmp_path):
    """Fails if a tensor of the results is refused or written as text."""
    kept = record() | {"extra": {"x": torch.tensor(0.25, requires_grad=True), "y": torch.tensor([[1, 2]])}}
    ledger.save(kept, tmp_path)
    assert ledger.load("toy-run", tmp_path)["extra"] == {"x": 0.25, "y": [[1, 2]]}


def test_a_writer_that_is_stopped_leaves_the_old_file_whole(folder, monkeypatch):
    """Fails if the file is opened for writing in place, or a temporary file stays behind."""

    def stopped(source, target):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", stopped)
    with pytest.raises(KeyboardInterrupt):
        ledger.save(record() | {"summary": "half"}, folder)
    assert ledger.load("toy-run", folder) == record()
    assert sorted(path.name for path in folder.iterdir()) == ["toy-run.json"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (float("nan"), "cannot record 'toy-run': Out of range"),
        ({1, 2}, "cannot record 'toy-run': a set is not a number"),
    ],
)
def test_what_json_cannot_hold_is_refused(tmp_path, value, message):
    """Fails if NaN reaches the file (JSON has none) or a set raises without naming the experiment."""
    with pytest.raises(ValueError, match=message):
        ledger.save(record() | {"extra": value}, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_summary_is_mean_lowest_highest_count(folder):
    """Fails if mean and median, or the two ends, are mixed up (the mean here is 0.8628, the median 0.8604)."""
    mean, low, high, seeds = ledger.summary("toy-run", "bag", "accuracy", folder)
    assert (mean, low, high, seeds) == (pytest.approx(0.8628, abs=1e-12), 0.8558, 0.8722, 3)


def test_values_and_curves_keep_the_seeds_apart(folder):
    """Fails if seeds are averaged or transposed."""
    assert ledger.values("toy-run", "lstm", "by lag", folder) == [[1, 0], [1, 1], [1, 2]]
    assert ledger.curves("toy-run", "bag", "loss", folder) == [[0.9, 0.5], [1.9, 1.5], [2.9, 2.5]]


def test_table_by_hand(folder):
    """Fails if a cell, the dash for a missing metric, the rounding or the Markdown differs."""
    assert ledger.table("toy-run", folder=folder) == (
        "|  | accuracy | parameters | seeds |\n"
        "| --- | ---: | ---: | ---: |\n"
        "| bag | 0.863 (0.856 to 0.872) | 12,345 | 3 |\n"
        "| LSTM | 1 | - | 3 |"
    )
    chosen = ledger.table("toy-run", metrics=["parameters"], variants=["lstm", "bag"], folder=folder)
    assert chosen.splitlines()[2:] == ["| LSTM | - | 3 |", "| bag | 12,345 | 3 |"]
    without = ledger.table("toy-run", metrics=["parameters"], folder=folder)
    assert without.splitlines()[2:] == ["| bag | 12,345 | 3 |"]  # a row of dashes only is left out


def test_a_table_has_names_for_readers(tmp_path):
    """Fails if a raw name of code stands in a table, or the names that a chapter gives are not used."""
    results = {"pre-ln, rnn": {"valid_nats": 1.0, "loss": 2.0}}
    ledger.save({"experiment": "named", "summary": "", "runs": [{"seed": 0, "results": results}]}, tmp_path)
    lines = ledger.table("named", folder=tmp_path).splitlines()
    assert lines[0] == "|  | validation loss (nats) | loss (nats) | seeds |"
    assert lines[2] == "| Pre-LN, RNN | 1 | 2 | 1 |"
    lines = ledger.table("named", {"loss": "how bad"}, {"pre-ln, rnn": "mine"}, folder=tmp_path).splitlines()
    assert [lines[0], lines[2]] == ["|  | how bad | seeds |", "| mine | 2 | 1 |"]


def test_a_range_that_rounding_hides_is_left_out():
    """Fails if a cell says 171 (171 to 171)."""
    assert ledger._cell(171.2, 170.9, 171.4, 3) == "171"
    assert ledger._cell(171.2, 170.9, 171.6, 3) == "171 (171 to 172)"


def test_table_of_one_seed_has_no_range(tmp_path):
    """Fails if one run pretends to a range."""
    ledger.save(record() | {"runs": record()["runs"][:1]}, tmp_path)
    assert "| bag | 0.860 | 12,345 | 1 |" in ledger.table("toy-run", folder=tmp_path)


@pytest.mark.parametrize(
    ("value", "digits", "text"),
    [
        (0.86149, 3, "0.861"),
        (12.345, 3, "12.3"),
        (123.4, 3, "123"),
        (999.7, 3, "1,000"),
        (25000, 3, "25,000"),
        (0.9, 3, "0.900"),
        (0.9, 2, "0.90"),
        (0, 3, "0"),
        (-1.5, 2, "-1.5"),
        (0.000123, 2, "0.00012"),
    ],
)
def test_numbers_have_the_asked_digits(value, digits, text):
    """Fails if digits are lost, or a power of ten appears."""
    assert ledger._number(value, digits) == text


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda w: ledger.load("toy", w), "no experiment 'toy' in the ledger; recorded: toy-run"),
        (lambda w: ledger.load("../toy-run", w), "no experiment '../toy-run'"),
        (lambda w: ledger.load("toy", w / "none"), "recorded: nothing yet"),
        (
            lambda w: ledger.values("toy-run", "gru", "accuracy", w),
            "'toy-run' has no variant 'gru'; recorded: bag, lstm",
        ),
        (
            lambda w: ledger.values("toy-run", "lstm", "loss", w),
            "'lstm' of 'toy-run' has no metric 'loss'; recorded: acc",
        ),
        (lambda w: ledger.summary("toy-run", "lstm", "by lag", w), "'by lag' of 'lstm' .* is not one number a seed"),
        (lambda w: ledger.curves("toy-run", "lstm", "loss", w), "'toy-run' has no history of 'lstm'; recorded: bag"),
        (
            lambda w: ledger.curves("toy-run", "bag", "bleu", w),
            "'bag' in 'toy-run' has no 'bleu'; recorded: epoch, loss",
        ),
        (
            lambda w: ledger.table("toy-run", metrics=["bleu"], folder=w),
            "'toy-run' has no metric 'bleu'; recorded: accuracy",
        ),
        (lambda w: ledger.table("toy-run", variants=["gru"], folder=w), "'toy-run' has no variant 'gru'"),
    ],
)
def test_an_unknown_name_says_what_is_recorded(folder, call, message):
    """Fails if the message does not name what was asked and what there is."""
    with pytest.raises(ValueError, match=message):
        call(folder)


@pytest.mark.parametrize(("text", "message"), [('{"runs": [', "is damaged"), ("[]", "has no 'runs'")])
def test_a_damaged_file_is_named(folder, text, message):
    """Fails if a file that was cut short surfaces as an error of the JSON parser."""
    (folder / "toy-run.json").write_text(text)
    with pytest.raises(ValueError, match=f"toy-run.json {message}.*--redo"):
        ledger.load("toy-run", folder)


def test_folders_of_a_checkout_and_of_a_wheel(tmp_path, monkeypatch):
    """Fails if a wheel reads beside the package instead of inside it, or lets a run write there."""
    package = tmp_path / "course_lib"
    package.mkdir()
    monkeypatch.setattr(ledger, "_PACKAGE", package)
    assert ledger.course_folder() == tmp_path / "results"
    (package / "results").mkdir()
    (package / "results" / "toy-run.json").write_text(json.dumps(record()))
    assert ledger.course_folder() == package / "results"
    assert ledger.load("toy-run") == record()
    with pytest.raises(ValueError, match="is for reading; name a folder to write to with --out"):
        ledger.save(record())
    assert ledger.save(record(), tmp_path / "mine") == tmp_path / "mine" / "toy-run.json"


def test_a_checkout_is_written_to(tmp_path, monkeypatch):
    """Fails if the repository's results are not found beside its pyproject.toml."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(ledger, "_PACKAGE", tmp_path / "course_lib")
    assert ledger.save(record()) == tmp_path / "results" / "toy-run.json"
