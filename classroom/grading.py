"""Grading a submission: the student's code in a process of its own, and the judgement in another.

`restored` puts a student's answers and own cells into the notebook as it was released, so that a deleted or
rewritten cell, changed points or broken metadata change nothing. `judged` starts the judge (`judge.py`), which runs
these cells in a worker (`worker.py`), puts every answer to its hidden test (inputs go out, results come back, what is
right stays here), and runs the visible check for its words. `preprocessors.py` makes nbgrader do both.
"""

import contextlib
import copy
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import nbformat

from tools.notebooks import editions

SECONDS = 60  # on the clock, for one cell or one question; then the process is ended
BUDGET = 300  # on the clock, for one notebook
COMPARE_SECONDS = 10  # for one comparison of what an answer gave with what is right
START_SECONDS = 240  # for the judge and the first two workers to start, on a busy machine
UNTOUCHED = "not attempted yet"
NOT_JUDGED = "not yet: what your answer gave could not be compared with anything right"
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"


class Refused(RuntimeError):
    """The judge will not work here: nothing confines the students' code."""


def restored(release, submitted):
    """Return the released notebook with a student's answers and own cells in it.

    An answer is found by its cell's id, the last one that differs from the stub if there are several. Every cell
    that is not in the release is the student's own and stays where it stood; `classroom` in its metadata says so.

    Args:
        release: the notebook as it was handed out.
        submitted: what came back.

    Returns:
        A notebook.
    """
    places = {_key(cell): number for number, cell in enumerate(release.cells)}
    kept = {places.get(_key(cell)) for cell in submitted.cells}
    answers, own, position = {}, {}, 0
    for cell in submitted.cells:
        number = places.get(_key(cell))
        if number is None:
            while (
                position < len(release.cells)
                and position not in kept
                and not editions.is_check(release.cells[position])
            ):
                position += 1  # a cell that was rewritten comes after the one that it replaces
            own.setdefault(position, []).append(cell)
            continue
        position = number + 1
        if not editions.is_solution(release.cells[number]) or cell.source == release.cells[number].source:
            continue
        if number in answers:
            own.setdefault(number, []).extend([answers[number], *own.pop(position, [])])  # in the student's order
        answers[number] = cell
    cells = []
    for number, cell in enumerate(release.cells):
        cells += [_own(mine) for mine in own.get(number, [])]
        cell = copy.deepcopy(cell)
        if editions.is_solution(cell):
            cell.metadata.classroom = "answer" if number in answers else "untouched"
            if number in answers:
                cell.source = answers[number].source
                cell.update(_attachments(answers[number]))
        cells.append(cell)
    cells += [_own(mine) for mine in own.get(len(release.cells), [])]
    return nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(release.metadata))


def _key(cell):
    """What a cell is recognised by: its exercise, or else its text."""
    mark = cell.metadata.get("nbgrader")
    grade_id = mark.get("grade_id") if isinstance(mark, dict) else None
    return grade_id if grade_id and isinstance(grade_id, str) else (cell.cell_type, cell.source.strip())


def _own(cell):
    new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    return new(cell.source, metadata={"classroom": "own"}, **_attachments(cell))


def _attachments(cell):
    """Pictures that were pasted into text; `pages.harmless` looks at what they are."""
    return {"attachments": cell.attachments} if cell.cell_type == "markdown" and "attachments" in cell else {}


def judged(notebook, seed=0, seconds=SECONDS, budget=BUDGET, unconfined=False):
    """Judge the machine-graded exercises of a restored notebook, in a process of its own.

    If an answer brings the judge down, or keeps it busy, it fails, and another judge goes on with the rest.

    Args:
        notebook: with the check cells, as `restored` and nbgrader's OverwriteCells leave it.
        seed: of the hidden tests' cases.
        seconds: on the clock, for one cell or one question.
        budget: seconds for the whole notebook.
        unconfined: whether to go on where the kernel does not confine the students' code.

    Returns:
        {grade_id: (None if the answer is right, else what is wrong; what only instructors may read, or None)}.

    Raises:
        Refused: if the kernel does not confine it, and `unconfined` is not given.
    """
    wanted = [cell.metadata.nbgrader.grade_id for cell in notebook.cells if editions.is_check(cell)]
    found, end = {"hidden": {}, "visible": {}}, time.monotonic() + budget
    while todo := [name for name in wanted if not all(name in side for side in found.values())]:
        order = {"notebook": nbformat.writes(notebook), "seed": seed, "seconds": seconds,
                 "skip": [name for name in wanted if name not in todo],
                 "budget": max(0.0, end - time.monotonic()), "unconfined": unconfined}  # fmt: skip
        for name, why in one_judge(order, found).items():
            for side in found.values():
                side.setdefault(name, (NOT_JUDGED, why))
    return {name: together(found["visible"][name], found["hidden"][name]) for name in wanted}


def graded(notebook, **options):
    """Return {grade_id: None if the answer is right, else what is wrong}; the arguments are those of `judged`."""
    return {name: wrong for name, (wrong, _) in judged(notebook, **options).items()}


def one_judge(order, found):
    """Let one judge work until it is done or has to be ended.

    Args:
        order: what it is to do.
        found: {"hidden": {}, "visible": {}}, which is filled.

    Returns:
        {grade_id: the judge's last words}: of the answers that brought it down.

    Raises:
        Refused: if nothing confines the students' code here.
        RuntimeError: if it did not begin, or ended before it came to an answer; that is no answer's fault.
    """
    lines, at, comparing, end = queue.Queue(), {}, None, time.monotonic() + START_SECONDS + order["budget"]
    with scratch() as folder, tempfile.TemporaryFile() as words:
        process = subprocess.Popen(
            [sys.executable, "-m", "classroom.judge"], cwd=editions.ROOT, start_new_session=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=words,
            env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": folder},
        )  # fmt: skip
        ear = threading.Thread(target=_hear, args=(process.stdout, lines))
        ear.start()
        try:
            with contextlib.suppress(BrokenPipeError), process.stdin:
                process.stdin.write(json.dumps(order).encode())
            while line := lines.get(timeout=max(0.0, (comparing or end) - time.monotonic())):
                if "refused" in line:
                    raise Refused(line["refused"])
                if "done" in line:
                    return {}
                if "at" in line:
                    at[line["side"]] = line["at"]
                elif "id" in line:
                    at.pop(line["side"], None)  # nothing, if the time was used up before
                    found[line["side"]].setdefault(line["id"], (line["wrong"], line["why"]))
                else:
                    comparing = time.monotonic() + COMPARE_SECONDS if "comparing" in line else None
        except queue.Empty:
            pass
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ear.join()
        words.seek(0)
        last = words.read().decode(errors="replace")[-2000:] or "it took too long"
    if not at:
        raise RuntimeError(f"the judge ended before it came to an answer: {last}")
    return dict.fromkeys([at["hidden"]] if comparing else at.values(), last)


@contextlib.contextmanager
def scratch():
    """A folder for temporary files, and its end."""
    folder = tempfile.mkdtemp()
    try:
        yield folder
    finally:
        remove(folder)


def remove(folder):
    """Remove a folder, however deep it is and whoever may read what is in it."""
    for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
        subprocess.run([*command, folder], check=False, stderr=subprocess.DEVNULL)


def _hear(stream, lines):
    with stream:
        for line in stream:
            lines.put(json.loads(line))
    lines.put(None)


def together(visible, unseen):
    """Both must be content; the visible check's words come first."""
    (seen, _), (hidden, why) = visible, unseen
    if hidden == UNTOUCHED or seen in (None, hidden):
        return hidden, why
    return (seen if hidden is None else f"{seen}\n{hidden}"), why


def without_hidden(source):
    r"""Return a check cell's source without the lines that students do not see.

    >>> without_hidden("ch05.f(f)\n### BEGIN HIDDEN TESTS\nx\n### END HIDDEN TESTS")
    'ch05.f(f)'
    """
    lines, inside = [], False
    for line in source.split("\n"):
        inside = inside or line.strip() == BEGIN_HIDDEN
        lines += [] if inside else [line]
        inside = inside and line.strip() != END_HIDDEN
    return "\n".join(lines)


def release_of(path):
    """Read a released notebook, with an error that says what is missing."""
    if not Path(path).exists():
        raise ValueError(f"{Path(path).name} was never released in this assignment: there is no {path}")
    return nbformat.read(path, as_version=4)
