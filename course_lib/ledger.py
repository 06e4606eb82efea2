r"""The ledger: recorded, seeded runs, from which every table and curve in a notebook is drawn.

One JSON file an experiment, written by `python -m course_lib.experiments`:

    experiment, summary, command    what was run, and the line that runs it again
    config                          the profile and every setting of the experiment
    device, threads, versions       where it ran: "cpu" or the GPU's model, Python, torch, course_lib
    runs                            one entry a seed: seed, seconds, peak_mb, results, history

`results` is `{variant: {metric: number or list}}`; `history` is `{variant: [one dict an epoch]}`.
`peak_mb` is the most memory held during the run, in units of 10^6 bytes: on the GPU if one was
used, else by the whole process. No number in a notebook is typed by hand: read `summary` for
one number, `table` for a table, `curves` for a figure. Used by every notebook with trained results.
"""

import json
import math
import os
import tempfile
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def folder():
    """The folder with the ledger's files.

    Returns:
        Path: `results` inside an installed package, else the repository's `results`.

    Example:
        >>> folder().name
        'results'
    """
    shipped = _PACKAGE / "results"
    return shipped if shipped.is_dir() else _PACKAGE.parent / "results"


def writing_folder(where=None):
    """The folder to record in.

    Args:
        where: a folder, which need not exist; None takes the repository's ledger.

    Returns:
        Path.

    Raises:
        ValueError: if `where` is None and `course_lib` is installed from a wheel: its ledger is for reading.

    Example:
        >>> writing_folder("my_results").name
        'my_results'
    """
    if where is None and not (_PACKAGE.parent / "pyproject.toml").exists():
        raise ValueError("the ledger of an installed course_lib is for reading; name a folder to write to with --out")
    return Path(where or folder())


def names(where=None):
    """Names of the recorded experiments, sorted.

    Args:
        where: folder to read; None reads the course's ledger.

    Returns:
        list of str.

    Example:
        >>> names() == sorted(names())
        True
    """
    return sorted(path.stem for path in Path(where or folder()).glob("*.json"))


def load(name, where=None):
    """The record of one experiment.

    Args:
        name: the experiment's name.
        where: folder to read; None reads the course's ledger.

    Returns:
        dict with the keys named at the top of this module.

    Raises:
        ValueError: if nothing is recorded under that name, or the file is not a whole record.
    """
    where = Path(where or folder())
    if name not in names(where):
        known = ", ".join(names(where)) or "nothing yet"
        raise ValueError(f"no experiment {name!r} in the ledger; recorded: {known}")
    try:
        record = json.loads((where / f"{name}.json").read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"the ledger's file {name}.json is damaged ({error}); record it again with --redo") from None
    if not isinstance(record, dict) or "runs" not in record:
        raise ValueError(f"the ledger's file {name}.json has no 'runs'; record it again with --redo")
    return record


def save(record, where=None):
    """Write a record: the whole file or nothing, even if the process is killed while writing.

    Args:
        record: dict with the keys named at the top of this module. Tensors become numbers and lists.
        where: folder to write to, made if missing; None writes to the repository's ledger.

    Returns:
        Path of the file.

    Raises:
        ValueError: as `writing_folder`; or if the record holds a number that is not finite or a value
            that JSON cannot hold.
    """
    where = writing_folder(where)
    try:
        text = json.dumps(record, indent=1, allow_nan=False, default=_plain, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"cannot record {record['experiment']!r}: {error}") from None
    where.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=where, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text + "\n")
        os.chmod(temporary, 0o644)  # mkstemp's files are the owner's alone
        path = where / f"{record['experiment']}.json"
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
    return path


def values(name, variant, metric, where=None):
    """One result for each seed, in the order of the seeds.

    Args:
        name: the experiment.
        variant: the model or setting compared, e.g. "bag of words".
        metric: what was measured, e.g. "accuracy".
        where: folder to read; None reads the course's ledger.

    Returns:
        list with one number, or one list of numbers, a seed.

    Raises:
        ValueError: if the experiment, the variant or the metric was not recorded; says what was.
    """
    found = []
    for run in load(name, where)["runs"]:
        results = run["results"]
        if variant not in results:
            raise ValueError(f"{name!r} has no variant {variant!r}; recorded: {', '.join(results)}")
        if metric not in results[variant]:
            known = ", ".join(results[variant])
            raise ValueError(f"{variant!r} of {name!r} has no metric {metric!r}; recorded: {known}")
        found.append(results[variant][metric])
    return found


def curves(name, variant, metric, where=None):
    """A metric of the history, epoch by epoch, for each seed: what a figure with a band needs.

    Args:
        name: the experiment.
        variant: the model or setting compared.
        metric: a key of the history's dicts, e.g. "valid_loss".
        where: folder to read; None reads the course's ledger.

    Returns:
        list (seeds) of lists (epochs) of numbers.

    Raises:
        ValueError: if the experiment, the variant or the metric was not recorded; says what was.
    """
    found = []
    for run in load(name, where)["runs"]:
        history = run.get("history", {})
        if variant not in history:
            raise ValueError(f"{name!r} has no history of {variant!r}; recorded: {', '.join(history) or 'none'}")
        if any(metric not in epoch for epoch in history[variant]):
            known = ", ".join(history[variant][0])
            raise ValueError(f"the history of {variant!r} in {name!r} has no {metric!r}; recorded: {known}")
        found.append([epoch[metric] for epoch in history[variant]])
    return found


def summary(name, variant, metric, where=None):
    """Mean and range of one number over the seeds.

    Args:
        name: the experiment.
        variant: the model or setting compared.
        metric: what was measured; one number a seed.
        where: folder to read; None reads the course's ledger.

    Returns:
        `(mean, lowest, highest, number of seeds)`.

    Raises:
        ValueError: if the experiment, the variant or the metric was not recorded, or if the metric is
            a list of numbers.
    """
    found = values(name, variant, metric, where)
    if not all(isinstance(value, int | float) for value in found):
        raise ValueError(f"{metric!r} of {variant!r} in {name!r} is not one number a seed; read it with ledger.values")
    return math.fsum(found) / len(found), min(found), max(found), len(found)


def table(name, metrics=None, variants=None, digits=3, where=None):
    """A Markdown table of an experiment: mean (lowest..highest over the seeds), one row a variant.

    Args:
        name: the experiment.
        metrics: columns, in order; None takes every metric that is one number.
        variants: rows, in order; None takes all that have one of the metrics, as recorded.
        digits: significant digits.
        where: folder to read; None reads the course's ledger.

    Returns:
        str. A metric that a variant does not have shows as a dash; the range is left out where all seeds agree.

    Raises:
        ValueError: if the experiment, a variant or a metric was not recorded.
    """
    runs = load(name, where)["runs"]
    results = runs[0]["results"]
    if metrics is None:
        pairs = [pair for row in results.values() for pair in row.items()]
        metrics = _unique(metric for metric, value in pairs if isinstance(value, int | float))
    unknown = [metric for metric in metrics if not any(metric in row for row in results.values())]
    if unknown:
        known = ", ".join(_unique(key for row in results.values() for key in row))
        raise ValueError(f"{name!r} has no metric {unknown[0]!r}; recorded: {known}")
    lines = [_row(["", *metrics, "seeds"]), _row(["---"] + ["---:"] * (len(metrics) + 1))]
    for variant in variants or [name for name, row in results.items() if set(metrics) & set(row)]:
        held = results.get(variant, metrics)  # an unknown variant is asked for, and `values` names it
        cells = [
            _cell(*summary(name, variant, metric, where)[:3], digits) if metric in held else "-" for metric in metrics
        ]
        lines.append(_row([variant, *cells, str(len(runs))]))
    return "\n".join(lines)


def _row(cells):
    """One line of a Markdown table."""
    return "| " + " | ".join(cells) + " |"


def _cell(mean, low, high, digits):
    """Text of one cell: the range only where the seeds differ."""
    if low == high:
        return _number(mean, digits)
    return f"{_number(mean, digits)} ({_number(low, digits)}..{_number(high, digits)})"


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
