"""The ledger: recorded, seeded runs, from which every table and curve in a notebook is drawn.

One JSON file an experiment, written by `python -m course_lib.experiments`:

    experiment, summary, command    what was run, and the line that runs it again
    config                          the profile and every setting of the experiment
    device, threads, versions       where it ran: "cpu" or the GPU's model, Python, torch, course_lib
    runs                            one entry a seed: seed, seconds, peak_mb, results, history

`results` is `{variant: {metric: number or list}}`; `history` is `{variant: [one dict an epoch]}`. `peak_mb` is the most
memory held during the run, in 10^6 bytes: on the GPU if one was used, else by the whole process. Read `summary` for one
number, `table` for a table, `curves` for a figure. `folder` is where to read; None is the course's ledger.
"""

import json
import math
import os
import tempfile
from pathlib import Path

from course_lib.notebook.names import column_name, row_name

_PACKAGE = Path(__file__).resolve().parents[1]


def course_folder():
    """The folder with the course's ledger: `results` inside an installed package, else the repository's.

    >>> course_folder().name
    'results'
    """
    shipped = _PACKAGE / "results"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "results"


def writing_folder(folder=None):
    """The folder to record in, which need not exist; an installed package's ledger is for reading.

    >>> writing_folder("my_results").name
    'my_results'
    """
    if folder is None and not (_PACKAGE.parent / "pyproject.toml").exists():
        raise ValueError("the ledger of an installed course_lib is for reading; name a folder to write to with --out")
    return Path(folder or course_folder())


def names(folder=None):
    """Names of the recorded experiments, sorted.

    >>> names(folder="empty")
    []
    """
    return sorted(path.stem for path in Path(folder or course_folder()).glob("*.json"))


def load(name, folder=None):
    """The record of one experiment: a dict with the keys named at the top of this module."""
    folder = Path(folder or course_folder())
    if name not in names(folder):
        known = ", ".join(names(folder)) or "nothing yet"
        raise ValueError(f"no experiment {name!r} in the ledger; recorded: {known}")
    try:
        record = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"the ledger's file {name}.json is damaged ({error}); record it again with --redo") from None
    if not isinstance(record, dict) or "runs" not in record:
        raise ValueError(f"the ledger's file {name}.json has no 'runs'; record it again with --redo")
    return record


def save(record, folder=None):
    """Write a record, the whole file or nothing, even if the process is killed meanwhile; returns the file's path.

    Tensors become numbers and lists; a number that is not finite, or what JSON cannot hold, is refused.
    """
    folder = writing_folder(folder)
    try:
        text = json.dumps(record, indent=1, allow_nan=False, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot record {record['experiment']!r}: {error}") from None
    folder.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(temporary, 0o644)  # mkstemp's files are the owner's alone
        path = folder / f"{record['experiment']}.json"
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def values(name, variant, metric, folder=None):
    """One result (a number or a list of numbers) for each seed, in the order of the seeds.

    Args:
        name: the experiment.
        variant: the model or setting compared, e.g. "bag of words".
        metric: what was measured, e.g. "accuracy".
        folder: to read; None is the course's ledger.
    """
    found = []
    for run in load(name, folder)["runs"]:
        results = run["results"]
        if variant not in results:
            raise ValueError(f"{name!r} has no variant {variant!r}; recorded: {', '.join(results)}")
        if metric not in results[variant]:
            known = ", ".join(results[variant])
            raise ValueError(f"{variant!r} of {name!r} has no metric {metric!r}; recorded: {known}")
        found.append(results[variant][metric])
    return found


def curves(name, variant, metric, folder=None):
    """A metric of the history, a list of epochs for each seed: what a figure with a band needs."""
    found = []
    for run in load(name, folder)["runs"]:
        history = run.get("history", {})
        if variant not in history:
            raise ValueError(f"{name!r} has no history of {variant!r}; recorded: {', '.join(history) or 'none'}")
        if any(metric not in epoch for epoch in history[variant]):
            known = ", ".join(history[variant][0])
            raise ValueError(f"the history of {variant!r} in {name!r} has no {metric!r}; recorded: {known}")
        found.append([epoch[metric] for epoch in history[variant]])
    return found


def summary(name, variant, metric, folder=None):
    """`(mean, lowest, highest, number of seeds)` of a metric that is one number a seed."""
    found = values(name, variant, metric, folder)
    if not all(isinstance(value, int | float) for value in found):
        raise ValueError(f"{metric!r} of {variant!r} in {name!r} is not one number a seed; read it with ledger.values")
    return math.fsum(found) / len(found), min(found), max(found), len(found)


def table(name, metrics=None, variants=None, digits=3, folder=None):
    """A Markdown table of an experiment: mean (lowest to highest over the seeds), one row a variant.

    A metric that a variant does not have shows as a dash; the range is left out where all seeds agree. Rows and columns
    have the names that `course_lib.notebook.names` gives them, or yours.

    Args:
        name: the experiment.
        metrics: columns, in order, or {column: its name for the reader}; None takes every metric that is one number.
        variants: rows, in order, or {row: its name}; None takes all that have one of the metrics, as recorded.
        digits: significant digits.
        folder: to read; None is the course's ledger.
    """
    runs = load(name, folder)["runs"]
    results = runs[0]["results"]
    if metrics is None:
        pairs = [pair for row in results.values() for pair in row.items()]
        metrics = _unique(metric for metric, value in pairs if isinstance(value, int | float))
    unknown = [metric for metric in metrics if not any(metric in row for row in results.values())]
    if unknown:
        known = ", ".join(_unique(key for row in results.values() for key in row))
        raise ValueError(f"{name!r} has no metric {unknown[0]!r}; recorded: {known}")
    shown = metrics if isinstance(metrics, dict) else {metric: column_name(metric) for metric in metrics}
    lines = [_row(["", *shown.values(), "seeds"]), _row(["---"] + ["---:"] * (len(metrics) + 1))]
    for variant in variants or [name for name, row in results.items() if set(metrics) & set(row)]:
        held = results.get(variant, metrics)  # an unknown variant is asked for, and `values` names it
        cells = [
            _cell(*summary(name, variant, metric, folder)[:3], digits) if metric in held else "-" for metric in metrics
        ]
        row = variants[variant] if isinstance(variants, dict) else row_name(variant)
        lines.append(_row([row, *cells, str(len(runs))]))
    return "\n".join(lines)


def _row(cells):
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _cell(mean, low, high, digits):
    """Text of one cell: the range only where the seeds can be seen to differ."""
    mean, low, high = (_number(value, digits) for value in (mean, low, high))
    return mean if mean == low == high else f"{mean} ({low} to {high})"


def _number(value, digits):
    """A number with so many significant digits: 0.861, 12.3, 25,000."""
    if value == int(value) or abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def _unique(items):
    """The items without repetitions, in order of first appearance."""
    return list(dict.fromkeys(items))


def _plain(value):
    """A tensor or array as numbers and lists, for JSON."""
    if hasattr(value, "tolist"):
        return value.detach().tolist() if hasattr(value, "detach") else value.tolist()
    raise TypeError(f"a {type(value).__name__} is not a number, a string, a list or a dict")
