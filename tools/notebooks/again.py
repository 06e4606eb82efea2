"""Run every cell of a chapter once more, alone: `python -m tools.notebooks.again 07`, or the path of a notebook.

A reader goes back and runs one cell. It must then say what it said at first, whatever later cells have left behind: no
name that it reads may stand for another thing by then, and random numbers must not depend on what ran before. The
chapter is run from top to bottom; then each cell in a copy of the process as the last cell left it, so that no cell is
helped, or harmed, by the second run of another. Each fault is printed on a line.

With `--seconds 5` a second run is stopped after 5 seconds: a training of a minute reads its names in the first of them.
"""

import argparse
import os
import pickle
import re
import signal
import sys
import tempfile
import time
from pathlib import Path

import nbformat

from tools.notebooks import build, editions, guards

# Cells that are run only once, as (chapter, first line): reason. Keep it short; so far none needs to be here.
LEFT_OUT = {}


def faults(notebook, name="", seconds=None):
    """Yield what goes wrong when a cell is run again, as (cell's number, what). Runs in an IPython of its own."""
    shell = _shell()
    cells = [(n, c) for n, c in enumerate(notebook.cells) if c.cell_type == "code" and c.source.strip()]
    first = {number: _run(shell, cell.source) for number, cell in cells}
    for number, cell in cells:
        if (name[:2], cell.source.splitlines()[0]) in LEFT_OUT:
            continue
        if first[number]["error"] and "raises-exception" not in cell.metadata.get("tags", []):
            yield number, f"the first run: {first[number]['error']}"
            continue
        second = _in_a_copy(lambda: _run(shell, cell.source), seconds)  # noqa: B023
        if second is not None:
            for what in differences(cell, first[number], second):
                yield number, what


def differences(cell, before, after):
    """Yield how a second run differs: by an error, a claim that fails, or a text that nbval compares."""
    if after["error"] != before["error"]:
        yield after["error"] or "no error the second time"
        return
    yield from (line for line in after["text"].splitlines() if line.startswith("✗"))
    if guards.says_exempt(cell) or after["text"] == before["text"]:
        return
    lines = [text.splitlines() for text in (before["text"], after["text"])]
    if len(lines[0]) != len(lines[1]):
        yield f"{len(lines[1])} lines for {len(lines[0])}: {after['text'][:200]!r} for {before['text'][:200]!r}"
        return
    old, new = next(pair for pair in zip(*lines, strict=True) if pair[0] != pair[1])
    yield f"{new!r} for {old!r}"


def _shell():
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    return InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))


def _run(shell, source):
    """Run a cell; return its error and its text as nbval compares it."""
    from IPython.utils.capture import capture_output

    with capture_output() as captured:
        result = shell.run_cell(source, store_history=False)
    error = result.error_before_exec or result.error_in_exec
    kinds = ("text/markdown", "text/html", "text/plain")
    parts = [captured.stdout]
    parts += [next((output.data[kind] for kind in kinds if kind in output.data), "") for output in captured.outputs]
    return {"error": f"{type(error).__name__}: {error}" if error else "", "text": guards.sanitised("\n".join(parts))}


def _in_a_copy(function, seconds=None):
    """Return what a function returns in a copy of this process; None if it was stopped after so many seconds."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(reader)
            if seconds:
                signal.signal(signal.SIGALRM, signal.SIG_DFL)  # the alarm ends the copy
                signal.alarm(seconds)
            with os.fdopen(writer, "wb") as stream:
                pickle.dump(function(), stream)
        finally:  # whatever happens, the copy does not go on
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as stream:
        data = stream.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGALRM:
        return None
    return pickle.loads(data) if data else {"error": "the process ended", "text": ""}


def main(arguments=None):
    """Print the faults of the notebooks whose numbers or paths are given; return 1 if there are any."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("notebook", help="a chapter's number, such as 07, or the path of a notebook")
    parser.add_argument("--seconds", type=int, help="stop a second run after so many seconds")
    options = parser.parse_args(arguments)
    wanted = options.notebook
    if wanted.endswith(".ipynb"):
        name, notebook = Path(wanted).stem, nbformat.read(wanted, as_version=4)
    else:
        (path,) = (path for path in editions.sources() if path.stem[:2] == wanted)
        name, notebook = path.stem, editions.student(editions.chapter(path))
    os.environ.update(build.ENVIRONMENT, MPLBACKEND="agg")
    begin, found = time.monotonic(), 0
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        for number, what in faults(notebook, name, options.seconds):
            head = re.sub(r"^# @title ", "", notebook.cells[number].source.strip().splitlines()[0])
            print(f"{name} [{number}] {head}: {what}", flush=True)
            found += 1
        os.chdir(editions.ROOT)
    print(f"{name}: {found} faults, {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return int(found > 0)


if __name__ == "__main__":
    sys.exit(main())
