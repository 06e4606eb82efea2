import ctypes
import json
import os
import platform
import subprocess
import sys

import pytest
import torch

from course_lib import experiments
from course_lib.experiments import ExperimentError
from course_lib.experiments.__main__ import main
from course_lib.notebook import ledger
from course_lib.utils import memory


@pytest.fixture
def toy(monkeypatch, tmp_path):
    """An experiment `toy-run` that notes its calls; its result depends on seed and settings alone."""
    monkeypatch.setattr(experiments, "_REGISTRY", {})
    monkeypatch.setattr(experiments, "__path__", [])
    monkeypatch.setenv("COURSE_PROFILE", "quick")
    calls = []

    @experiments.experiment("toy-run", "A toy.")
    def toy_run(seed, epochs=2, rate=0.5, kind="plain", sizes=(2, 3)):
        calls.append((seed, epochs))
        accuracy = rate + epochs + torch.rand(())
        return {"results": {kind: {"accuracy": accuracy}}, "history": {kind: [{"epoch": 1, "loss": 0.5}]}}

    toy_run.calls, toy_run.out = calls, tmp_path / "out"
    return toy_run


def quiet(line):
    """Report nothing."""


def test_each_seed_is_recorded_with_all_that_is_needed(toy):
    """Fails if an entry of the record is missing or wrong, or the seed does not reach torch."""
    record = experiments.run("toy-run", 2, {"epochs": 5}, toy.out, report=quiet)
    assert record == ledger.load("toy-run", toy.out)
    assert record["experiment"] == "toy-run"
    assert record["summary"] == "A toy."
    assert record["config"] == {"profile": "quick", "epochs": 5, "rate": 0.5, "kind": "plain", "sizes": [2, 3]}
    assert record["command"] == "python -m course_lib.experiments toy-run --seeds 2 --profile quick --set epochs=5"
    assert record["threads"] == torch.get_num_threads()
    assert record["versions"]["torch"] == torch.__version__
    assert record["versions"]["python"] == platform.python_version()
    for seed, run in enumerate(record["runs"]):
        torch.manual_seed(seed)
        assert run["results"] == {"plain": {"accuracy": pytest.approx(5.5 + torch.rand(()).item(), abs=1e-6)}}
        assert run["history"] == {"plain": [{"epoch": 1, "loss": 0.5}]}
        assert run["seed"] == seed
        assert 0 <= run["seconds"] < 60
    assert toy.calls == [(0, 5), (1, 5)]


def test_the_file_names_no_machine_and_no_path(toy):
    """Fails if a path, the machine's name or the user's reaches the ledger."""
    experiments.run("toy-run", 1, None, toy.out, report=quiet)
    text = (toy.out / "toy-run.json").read_text()
    for private in [str(toy.out), os.getcwd(), sys.prefix, os.path.expanduser("~") + "/"]:
        assert private not in text
    assert f'"{platform.node()}"' not in text
    assert os.sep not in json.dumps([json.loads(text)[key] for key in ("command", "device", "versions", "config")])


def test_finished_seeds_are_skipped_and_missing_ones_added(toy):
    """Fails if a finished seed runs twice, or an added seed replaces one."""
    lines = []
    first = experiments.run("toy-run", 1, None, toy.out, report=quiet)
    both = experiments.run("toy-run", 3, None, toy.out, report=lines.append)
    assert toy.calls == [(0, 2), (1, 2), (2, 2)]
    assert both["runs"][0] == first["runs"][0]
    assert both["command"].endswith("--seeds 3 --profile quick")
    assert lines[0] == "toy-run seed 0: already recorded"
    assert lines[1].startswith("toy-run seed 1: 0.")
    assert experiments.run("toy-run", 1, None, toy.out, report=quiet) == both  # fewer seeds take nothing away


def test_a_run_that_breaks_keeps_the_seeds_before(toy, monkeypatch):
    """Fails if seeds are written only when all are finished."""
    original = experiments.find("toy-run").function

    def breaks(seed, **config):
        if seed == 1:
            raise KeyboardInterrupt
        return original(seed, **config)

    monkeypatch.setitem(experiments._REGISTRY, "toy-run", experiments.Experiment("toy-run", "A toy.", breaks))
    monkeypatch.setattr(experiments.Experiment, "defaults", {"epochs": 2})
    with pytest.raises(KeyboardInterrupt):
        experiments.run("toy-run", 3, None, toy.out, report=quiet)
    assert [run["seed"] for run in ledger.load("toy-run", toy.out)["runs"]] == [0]


def test_another_configuration_is_refused_unless_redone(toy):
    """Fails if runs of two configurations end in one file, or the message does not name the difference."""
    experiments.run("toy-run", 2, None, toy.out, report=quiet)
    before = (toy.out / "toy-run.json").read_text()
    with pytest.raises(
        ExperimentError, match="recorded with config epochs=2, not 7; add --redo to replace it, or --out"
    ):
        experiments.run("toy-run", 2, {"epochs": 7}, toy.out, report=quiet)
    assert (toy.out / "toy-run.json").read_text() == before
    redone = experiments.run("toy-run", 1, {"epochs": 7}, toy.out, redo=True, report=quiet)
    assert [run["seed"] for run in redone["runs"]] == [0]
    assert redone["config"]["epochs"] == 7


def test_another_profile_is_another_configuration(toy, monkeypatch):
    """Fails if a quick and a full run are mixed."""
    experiments.run("toy-run", 1, None, toy.out, report=quiet)
    monkeypatch.setenv("COURSE_PROFILE", "full")
    with pytest.raises(ExperimentError, match="config profile=quick, not full"):
        experiments.run("toy-run", 1, None, toy.out, report=quiet)


def test_seeds_from_another_machine_are_not_mixed_in(toy):
    """Fails if seconds of two devices or results of two torch versions share one header; reading is always allowed."""
    record = experiments.run("toy-run", 1, None, toy.out, report=quiet)
    ledger.save(record | {"versions": record["versions"] | {"torch": "2.0.0"}}, toy.out)
    assert experiments.run("toy-run", 1, None, toy.out, report=quiet)["versions"]["torch"] == "2.0.0"
    with pytest.raises(ExperimentError, match=f"versions torch=2.0.0, not {torch.__version__}".replace("+", r"\+")):
        experiments.run("toy-run", 2, None, toy.out, report=quiet)
    ledger.save(record | {"threads": 99}, toy.out)
    with pytest.raises(ExperimentError, match="is recorded with threads 99, not"):
        experiments.run("toy-run", 2, None, toy.out, report=quiet)


@pytest.mark.parametrize(
    ("items", "wanted"),
    [
        (["epochs=5"], {"epochs": 5}),
        (["rate=1"], {"rate": 1.0}),
        (["rate=1e-3", "kind=3"], {"rate": 0.001, "kind": "3"}),
        (["sizes=(4, 5)"], {"sizes": (4, 5)}),
        (["free=cuda"], {"free": "cuda"}),
    ],
)
def test_settings_take_the_defaults_types(items, wanted):
    """Fails if a number arrives as text or an int where a float was."""
    settings = experiments.parse_settings(
        items, {"epochs": 2, "rate": 0.5, "kind": "plain", "sizes": (2, 3), "free": None}
    )
    assert settings == wanted
    assert [type(value) for value in settings.values()] == [type(value) for value in wanted.values()]


@pytest.mark.parametrize(
    ("item", "message"),
    [
        ("epoch=5", "--set epoch=5: not a setting of this experiment; its settings: epochs=2, kind=plain"),
        ("epochs", "--set epochs: not a setting"),
        ("epochs=many", "--set epochs=many: wanted int, such as 2"),
        ("epochs=2.5", "--set epochs=2.5: wanted int, such as 2"),
    ],
)
def test_a_bad_setting_is_named(item, message):
    """Fails if a misspelt setting is ignored."""
    with pytest.raises(ExperimentError, match=message):
        experiments.parse_settings([item], {"epochs": 2, "kind": "plain"})


def test_registering_is_checked(toy):
    """Fails if an argument without a default is accepted: the configuration would not be complete."""
    with pytest.raises(ValueError, match="experiment 'bad': the argument 'epochs' needs a default"):

        @experiments.experiment("bad", "Bad.")
        def bad(seed, epochs):
            pass


def test_two_experiments_of_one_name_are_refused(toy):
    """Fails if a later chapter silently replaces an experiment of an earlier one."""
    function = lambda seed: {}  # noqa: E731
    function.__module__ = "course_lib.experiments.ch99"
    with pytest.raises(ValueError, match="two experiments are called 'toy-run'"):
        experiments.experiment("toy-run", "Again.")(function)


def test_the_command_line_lists_and_runs(toy, capsys):
    """Fails if the listing lacks an experiment, or the options do not reach the run."""
    assert main([]) == 0
    assert capsys.readouterr().out.split() == ["toy-run", "A", "toy."]
    assert main(["toy-run", "--seeds", "2", "--out", str(toy.out), "--set", "epochs=4", "--set", "kind=a b"]) == 0
    record = ledger.load("toy-run", toy.out)
    assert record["command"].endswith("toy-run --seeds 2 --profile quick --set epochs=4 --set 'kind=a b'")
    assert len(record["runs"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["toy"], "no experiment 'toy'; known: toy-run\n"),
        (["toy-run", "--seeds", "0"], "--seeds 0: at least 1 is needed\n"),
        (["toy-run", "--set", "x=1"], "--set x=1: not a setting"),
    ],
)
def test_a_request_that_cannot_be_met_is_one_sentence(toy, capsys, arguments, message):
    """Fails if a traceback appears, the exit status is not 2, or the message spans lines."""
    assert main([*arguments, "--out", str(toy.out)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(message)
    assert error.count("\n") == 1
    assert toy.calls == []


def test_an_installed_ledger_is_not_written_to(toy, monkeypatch, tmp_path, capsys):
    """Fails if the refusal comes after the training instead of before."""
    monkeypatch.setattr(ledger, "_PACKAGE", tmp_path / "course_lib")
    assert main(["toy-run"]) == 2
    assert "name a folder to write to with --out" in capsys.readouterr().err
    assert toy.calls == []


def test_the_profile_is_set_before_the_chapters_are_imported(tmp_path):
    """Fails if defaults made by run_size.pick do not follow --profile: a fresh process lists what it was given."""
    (tmp_path / "ch99.py").write_text(
        "from course_lib import experiments; from course_lib.notebook import run_size\n"
        "@experiments.experiment('sized', 'Sized.')\n"
        "def sized(seed, epochs=run_size.pick(3, 11)):\n"
        "    return {'results': {'model': {'epochs': epochs}}}\n"
    )
    code = (
        "import sys\n"
        "from course_lib import experiments\n"
        "from course_lib.experiments.__main__ import main\n"
        "experiments.__path__ = [sys.argv[1]]\n"
        "sys.exit(main(['sized', '--seeds', '1', '--profile', 'full', '--out', sys.argv[1]]))\n"
    )
    environment = os.environ | {"PYTHONPATH": os.getcwd(), "COURSE_PROFILE": "quick"}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True, env=environment, capture_output=True)
    record = ledger.load("sized", tmp_path)
    assert record["config"] == {"profile": "full", "epochs": 11}
    assert record["runs"][0]["results"] == {"model": {"epochs": 11}}


def test_peak_memory_is_that_of_the_run():
    """Fails if the unit is wrong, or the peak of an earlier run is reported again."""
    if not os.access("/proc/self/clear_refs", os.W_OK):
        pytest.skip("only Linux resets a process's peak memory")
    ctypes.CDLL(None).malloc_trim(0)  # what other tests have left in the heap would be used again, and nothing grow
    torch.ones(200_000_000, dtype=torch.uint8)  # an earlier run's peak: 200 * 10^6 bytes, given back at once
    memory.reset_peak()
    before = memory.peak()
    torch.ones(50_000_000, dtype=torch.uint8)
    assert 45e6 < memory.peak() - before < 60e6
