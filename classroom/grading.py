"""Grading a submission: the student's code in a process of its own, the judgement here.

`restored` puts a student's answers and own cells into the notebook as it was released, so that a deleted or
rewritten cell, changed points or broken metadata change nothing. `graded` runs these cells in a worker (`worker.py`),
puts every answer to its hidden test (inputs go out, results come back, what is right stays here), and runs the
visible check for its words. `preprocessors.py` makes nbgrader do both.
"""

import contextlib
import copy
import functools
import os
import selectors
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

from classroom import hidden, worker
from classroom.hidden import defines, examine, text_of, used_without_leave
from course_lib.checks import Wrong
from tools import editions

SECONDS = 30  # on the clock, for one cell or one question; then the process is ended
START_SECONDS = 120  # for a process to start on a busy machine
SETUP_SECONDS = 60  # of computing, for the chapter's own imports
UNTOUCHED = "not attempted yet"
LARGEST = 2**28  # bytes of one reply
BEGIN_HIDDEN, END_HIDDEN = "### BEGIN HIDDEN TESTS", "### END HIDDEN TESTS"
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "COURSE_PROGRESS": "0", "COURSE_PROFILE": "quick", "MPLBACKEND": "agg",
               "NBGRADER_EXECUTION": "autograde", "PATH": os.defpath, "LANG": "C.UTF-8"}  # fmt: skip


class Stopped(Exception):
    """The worker did not reply in time, ended, or sent something that is no reply."""


class Worker:
    """A process in an empty folder that runs a student's code.

    Args:
        checks: whether the visible checks are there; without them nobody can call their answers.
        seconds: how long it may take over one message.
    """

    def __init__(self, checks=False, seconds=SECONDS):
        self.seconds = seconds
        self.folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        places = {name: self.folder.name for name in ("HOME", "TMPDIR", "MPLCONFIGDIR", "COURSE_DATA")}
        self.process = subprocess.Popen(
            [sys.executable, "-I", worker.__file__, *(["checks"] if checks else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=self.folder.name, env=ENVIRONMENT | places, start_new_session=True,
        )  # fmt: skip
        try:
            self._read(8, START_SECONDS)  # the first message is the worker's: it is ready
        except Stopped:
            self.close()
            raise RuntimeError("the worker did not start; does `python -m classroom.worker` run?") from None

    def ask(self, message):
        """Send a message and return the reply.

        Raises:
            Stopped: if none comes that can be read; the process is then ended.
        """
        try:
            worker.send(self.process.stdin, message)
            seconds = max(self.seconds, message.get("seconds", 0))
            (length,) = struct.unpack("<q", self._read(8, seconds))
            if not 0 < length <= LARGEST:
                raise Stopped("your code gave far too much, or wrote where it should not")
            return worker.loaded(self._read(length, seconds))
        except (Stopped, BrokenPipeError) as reason:
            self.close()
            raise Stopped(str(reason) if isinstance(reason, Stopped) else "your code ended its process") from None

    def _read(self, size, seconds):
        """Read so many bytes, as long as time is left."""
        end, parts = time.monotonic() + seconds, []
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            while size:
                if not selector.select(max(0.0, end - time.monotonic())):
                    raise Stopped(f"your code did not end within {seconds:g} seconds; is there an endless loop?")
                part = os.read(self.process.stdout.fileno(), min(size, 2**20))
                if not part:
                    raise Stopped("your code ended its process")
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def close(self):
        """End the process and remove its folder."""
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        self.process.wait()
        self.folder.cleanup()


class Desk:
    """A worker that is replaced when an answer breaks it: what ran before runs again, without what broke it."""

    def __init__(self, checks=False, seconds=SECONDS):
        self.make = lambda: Worker(checks, seconds)
        self.worker, self.history = self.make(), []

    def do(self, message):
        """Send a message and return the reply; {"error": ...} if the answer broke the worker."""
        try:
            reply = self.worker.ask(message)
        except Stopped as stopped:
            self._again()
            return {"error": f"not yet: {stopped}"}
        if message["do"] in ("run", "define"):
            self.history.append(message)
        return reply

    def _again(self):
        before, self.history = self.history, []
        self.worker = self.make()
        for message in before:
            self.do(message)

    def close(self):
        """End the worker."""
        self.worker.close()


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
    answers, own, position = {}, {}, 0
    for cell in submitted.cells:
        number = places.get(_key(cell))
        if number is None:
            own.setdefault(position, []).append(cell)
            continue
        position = number + 1
        if not editions.is_solution(release.cells[number]) or cell.source == release.cells[number].source:
            continue
        if number in answers:
            own.setdefault(position, []).append(answers[number])
        answers[number] = cell
    cells = []
    for number, cell in enumerate(release.cells):
        cells += [_own(mine) for mine in own.get(number, [])]
        cell = copy.deepcopy(cell)
        if editions.is_solution(cell):
            cell.metadata.classroom = "answer" if number in answers else "untouched"
            cell.source = answers[number].source if number in answers else cell.source
        cells.append(cell)
    cells += [_own(mine) for mine in own.get(len(release.cells), [])]
    return nbformat.v4.new_notebook(cells=cells, metadata=copy.deepcopy(release.metadata))


def _key(cell):
    """What a cell is recognised by: its exercise, or else its text."""
    return cell.metadata.get("nbgrader", {}).get("grade_id") or (cell.cell_type, cell.source.strip())


def _own(cell):
    new = nbformat.v4.new_code_cell if cell.cell_type == "code" else nbformat.v4.new_markdown_cell
    return new(cell.source, metadata={"classroom": "own"})


def graded(notebook, seed=0, seconds=SECONDS):
    """Grade the machine-graded exercises of a restored notebook.

    Args:
        notebook: with the check cells, as `restored` and nbgrader's OverwriteCells leave it.
        seed: of the hidden tests' cases.
        seconds: on the clock, for one cell or one question.

    Returns:
        {grade_id: None if the answer is right, else what is wrong}.
    """
    with ThreadPoolExecutor(2) as both:
        unseen = both.submit(_walk, notebook, seconds, False, functools.partial(_hidden, seed=seed))
        visible = both.submit(_walk, notebook, seconds, True, _visible)
    return {grade_id: _together(visible.result()[grade_id], wrong) for grade_id, wrong in unseen.result().items()}


def _together(visible, unseen):
    """Both must be content; the visible check's words come first."""
    if unseen == UNTOUCHED or visible in (None, unseen):
        return unseen
    return visible if unseen is None else f"{visible}\n{unseen}"


def _walk(notebook, seconds, checks, examined):
    """Run the cells from top to bottom and examine each answer where its check stands."""
    desk, found, code, trouble = Desk(checks, seconds), {}, [], None
    try:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            if editions.is_check(cell):
                grade_id = cell.metadata.nbgrader.grade_id
                message = examined(desk, cell, hidden.tests(grade_id[2:4])[grade_id], code)
                if message == UNTOUCHED and trouble:  # the answer's cell did not get as far as to define it
                    message = trouble
                found[grade_id], trouble = message, None
            elif (order := _order(cell)) is not None:
                reply = desk.do(order)
                if cell.metadata.get("classroom") in ("answer", "own"):
                    code.append(cell.source)
                if cell.metadata.get("classroom") == "answer":
                    trouble = reply.get("error")
    finally:
        desk.close()
    return found


def _order(cell):
    """What is to be done with a cell: the student's and the setup run; of the chapter's others only the definitions."""
    tags, whose = cell.metadata.get("tags", []), cell.metadata.get("classroom")
    where = f"<ex {cell.metadata.get('nbgrader', {}).get('grade_id', 'own cell')}>"
    if "install" in tags or whose == "untouched":
        return None
    if "setup" in tags:
        return {"do": "run", "code": cell.source, "where": "<setup>", "seconds": SETUP_SECONDS}
    if whose in ("answer", "own"):
        return {"do": "run", "code": cell.source, "where": where}
    return {"do": "define", "code": cell.source, "where": "<chapter>"}


def _hidden(desk, cell, test, code, seed=0):
    """Put the answer to its hidden test; None or what is wrong."""

    def ask(test, given):
        reply = desk.do({"do": "ask", "answer": test.answer, "probe": text_of(test.probe), "given": list(given)})
        if reply.get("error") == UNTOUCHED:
            raise NotImplementedError
        if "got" not in reply:
            raise Wrong(str(reply.get("error", "not yet: your code wrote where it should not")))
        return reply["got"]

    forbidden = [name for cell in code if defines(cell, test.answer) for name in used_without_leave(cell, test.without)]
    if forbidden:
        return f"not yet: the exercise asks for your own code; yours uses {', '.join(sorted(set(forbidden)))}"
    try:
        examine(test, ask, seed)
    except NotImplementedError:
        return UNTOUCHED
    except Wrong as wrong:
        if str(wrong).startswith("not "):
            return str(wrong)
        # Of numbers worked out on paper the right ones are not told: they are the same for the next student.
        return f"not yet, in the hidden test: {'this is not right' if test.probe is hidden.value else wrong}"
    return None


def _visible(desk, cell, test, code):
    """Run the visible check; None or its words."""
    real = f"from course_lib.checks import ch{test.grade_id[2:4]}\n"  # whatever the student's code put in its place
    source = real + without_hidden(cell.source)
    reply = desk.do({"do": "check", "answer": test.answer, "code": source, "where": "<check>"})
    passed = "".join(f"passed: {name}\n" for name in editions.check_names(cell.source))
    return None if reply.get("got") == passed else str(reply.get("error", "not yet"))


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
