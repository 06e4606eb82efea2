"""The recorded runs: every trained number of the course comes from one of these.

An experiment is a function of a seed and its settings, announced with `@experiment`:

    @experiment("imdb-bow", "A bag of words on IMDB's reviews.")
    def imdb_bow(seed, epochs=run_size.pick(3, 10), width=64):
        ...
        return {"results": {"bag of words": {"accuracy": 0.88}}, "history": {"bag of words": history}}

The defaults of the keyword arguments are the configuration. The runner calls the function
once a seed and writes each finished seed to the ledger at once (`course_lib.notebook.ledger`), so a
run that was stopped goes on where it stood:

    python -m course_lib.experiments                          lists the experiments
    python -m course_lib.experiments imdb-bow --seeds 3 --set epochs=5

The experiments themselves are in the modules of this package: one module a topic.
"""

import ast
import importlib
import inspect
import json
import pkgutil
import platform
import shlex
import time
from dataclasses import dataclass

import torch

import course_lib
from course_lib.notebook import ledger, run_size
from course_lib.train import set_seed
from course_lib.utils import memory
from course_lib.utils.device import pick_device

_REGISTRY = {}


class ExperimentError(ValueError):
    """The request cannot be carried out as it stands; the message says what to change."""


@dataclass(frozen=True)
class Experiment:
    """A function that can be recorded.

    Args:
        name: the experiment's name, also the ledger file's.
        summary: one sentence on what it measures.
        function: `function(seed, **config) -> {"results": ..., "history": ...}`.
    """

    name: str
    summary: str
    function: object

    @property
    def defaults(self):
        """The function's keyword arguments and their defaults, as a dict."""
        parameters = list(inspect.signature(self.function).parameters.values())[1:]
        return {parameter.name: parameter.default for parameter in parameters}


def experiment(name, summary):
    """Announce a function as an experiment.

    Args:
        name: lower-case words joined by hyphens; also the name of the ledger's file.
        summary: one sentence on what it measures.

    Returns:
        A decorator that gives the function back unchanged.

    Raises:
        ValueError: if another function has that name, or an argument after the seed has no default.

    >>> @experiment("doctest-example", "Nothing.")
    ... def example(seed, epochs=3):
    ...     return {"results": {"model": {"accuracy": 0.5}}}
    >>> _REGISTRY.pop("doctest-example").defaults
    {'epochs': 3}
    """

    def register(function):
        new, old = Experiment(name, summary, function), _REGISTRY.get(name)
        if old and old.function.__module__ != function.__module__:
            raise ValueError(f"two experiments are called {name!r}")
        missing = [key for key, default in new.defaults.items() if default is inspect.Parameter.empty]
        if missing:
            raise ValueError(f"experiment {name!r}: the argument {missing[0]!r} needs a default")
        _REGISTRY[name] = new
        return function

    return register


def known():
    """All experiments, by name, sorted; imports every module of this package.

    Returns:
        dict of name to `Experiment`.

    >>> known()["bptt-lag"].summary[:20]
    'Gradient norm by lag'
    """
    for module in pkgutil.iter_modules(__path__):
        if module.name != "__main__":
            importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(_REGISTRY.items()))


def find(name):
    """The experiment of that name.

    Args:
        name: an experiment's name.

    Returns:
        Experiment.

    Raises:
        ExperimentError: if there is none; names the known ones.
    """
    experiments = known()
    if name not in experiments:
        raise ExperimentError(f"no experiment {name!r}; known: {', '.join(experiments) or 'none'}")
    return experiments[name]


def parse_settings(items, defaults):
    """Settings from the command line, with the types of the defaults.

    Args:
        items: list of "key=value".
        defaults: dict with the experiment's settings.

    Returns:
        dict.

    Raises:
        ExperimentError: if an item has no "=", its key is not a setting, or its value has another type.

    >>> parse_settings(["epochs=5", "rate=1"], {"epochs": 3, "rate": 0.1, "width": 64})
    {'epochs': 5, 'rate': 1.0}
    """
    settings = {}
    for item in items:
        key, equals, text = item.partition("=")
        if not equals or key not in defaults:
            choices = ", ".join(f"{name}={value}" for name, value in defaults.items()) or "none"
            raise ExperimentError(f"--set {item}: not a setting of this experiment; its settings: {choices}")
        settings[key] = _convert(key, text, defaults[key])
    return settings


def run(name, seeds=3, settings=None, out=None, redo=False, report=print):
    """Run an experiment for the seeds 0, 1, ... and record each as soon as it is finished.

    Args:
        name: the experiment.
        seeds: number of seeds, at least 1.
        settings: dict of settings that differ from the defaults; None for none.
        out: folder to write to; None writes to the repository's ledger.
        redo: True throws away what is recorded and starts again.
        report: called with one line of text a seed.

    Returns:
        The record, as `ledger.load` gives it.

    Raises:
        ExperimentError: if the experiment is unknown, `seeds` is below 1, what is recorded has another
            configuration, or seeds are missing and were to be added from another device, number of
            threads or version of Python, torch or course_lib.
    """
    chosen = find(name)
    if seeds < 1:
        raise ExperimentError(f"--seeds {seeds}: at least 1 is needed")
    try:
        ledger.writing_folder(out)  # before an hour of training, not after it
    except ValueError as error:
        raise ExperimentError(str(error)) from None
    settings = settings or {}
    record = _header(chosen, settings)
    if not redo and name in ledger.names(out):
        record = _continue(ledger.load(name, out), record, seeds)
    done = {finished["seed"] for finished in record["runs"]}
    for seed in range(seeds):
        if seed in done:
            report(f"{name} seed {seed}: already recorded")
            continue
        finished = _run_seed(chosen, seed, settings)
        record["runs"] = sorted([*record["runs"], finished], key=lambda entry: entry["seed"])
        record["command"] = _command(record, settings)
        ledger.save(record, out)
        report(f"{name} seed {seed}: {finished['seconds']:.1f} s")
    return ledger.load(name, out)


def conditions(device=None):
    """What a record says about where it was made; never the machine's name or a path.

    Args:
        device: device or its name; None takes the best there is.

    Returns:
        dict: "device" ("cpu", "mps" or the GPU's model), "threads", and "versions" of Python, torch and
        course_lib.

    >>> conditions("cpu")["device"]
    'cpu'
    """
    device = pick_device(device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "course_lib": course_lib.__version__,
        },
    }


def _header(chosen, settings):
    """A record without runs: what would be run here and now."""
    config = {"profile": run_size.name(), **chosen.defaults, **settings}
    config = json.loads(json.dumps(config))  # as it comes back from the ledger: tuples are lists
    return {
        "experiment": chosen.name,
        "summary": chosen.summary,
        "command": "",
        "config": config,
        **conditions(config.get("device")),
        "runs": [],
    }


def _continue(old, new, seeds):
    """The recorded runs under today's header, if both were made under the same conditions."""
    missing = set(range(seeds)) - {finished["seed"] for finished in old["runs"]}
    keys = ("config", "device", "threads", "versions") if missing else ("config",)
    for key in keys:
        if old[key] != new[key]:
            raise ExperimentError(
                f"{old['experiment']!r} is recorded with {key} {_difference(old[key], new[key])}; "
                "add --redo to replace it, or --out FOLDER to record elsewhere"
            )
    return {**old, "summary": new["summary"]}


def _difference(old, new):
    """What differs between two values, as text: only the differing entries of two dicts."""
    if not isinstance(old, dict):
        return f"{old}, not {new}"
    keys = [key for key in {**old, **new} if old.get(key) != new.get(key)]
    return ", ".join(f"{key}={old.get(key)}, not {new.get(key)}" for key in keys)


def _run_seed(chosen, seed, settings):
    """One run: its results with time and memory."""
    set_seed(seed)
    memory.reset_peak()
    start = time.perf_counter()
    outcome = chosen.function(seed, **settings)
    seconds, peak = time.perf_counter() - start, memory.peak()
    return {
        "seed": seed,
        "seconds": round(seconds, 2),
        "peak_mb": None if peak is None else round(peak / 1e6, 1),
        "results": outcome["results"],
        "history": outcome.get("history", {}),
    }


def _command(record, settings):
    """The line that makes this record again."""
    line = f"python -m course_lib.experiments {record['experiment']} --seeds {len(record['runs'])}"
    line += f" --profile {record['config']['profile']}"
    return line + "".join(f" --set {shlex.quote(f'{key}={value}')}" for key, value in settings.items())


def _convert(key, text, default):
    """The text as a value of the default's type."""
    if isinstance(default, str):
        return text
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(default, float) and type(value) is int:
        value = float(value)
    if default is not None and type(value) is not type(default):
        raise ExperimentError(f"--set {key}={text}: wanted {type(default).__name__}, such as {default}")
    return value
