"""The process that judges a submission: it asks the student's process, and compares what comes back with what is right.

`grading.py` runs this file as a script, with limits of time and memory of its own: what a student's process sends is
only ever plain data, but comparing it may still stumble. It reads a restored notebook and writes a line of JSON for
everything that it finds, so that what was found stays if it is ended.
"""

import contextlib
import dataclasses
import functools
import json
import os
import re
import resource
import secrets
import selectors
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat

from classroom import hidden, own_code, sandbox, wire, worker
from classroom.grading import remove, without_hidden
from course_lib.exercises import Wrong
from tools.notebooks import editions

START_SECONDS = 120  # for a process to start on a busy machine
SETUP_SECONDS = 60  # of computing, for the chapter's own imports
EXERCISE_SECONDS = 90  # on the clock, for all questions to one answer
WATCH_SECONDS = 0.1  # between two looks at what a student's process uses
RESIDENT = 3 * 2**30  # bytes of memory
THREADS = 100
FOLDER_BYTES, FOLDER_FILES = 64 * 2**20, 1000
OWN_MEMORY = 6 * 2**30  # of the judge
UNTOUCHED = "not attempted yet"
USED_UP = "not graded: the time for this notebook ran out before; does one of your cells take long, or never end?"
UNCONFINED = (
    "students' code could do anything here that you can; of Landlock and seccomp, this system has {}. Grade on Linux "
    "5.13 or later (x86-64 or ARM); or in a container without network that holds nothing of value, and set "
    "c.Examine.unconfined = True in nbgrader_config.py"
)
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "COURSE_PROFILE": "quick", "MPLBACKEND": "agg",
               "NBGRADER_EXECUTION": "autograde", "PATH": os.defpath, "LANG": "C.UTF-8"}  # fmt: skip


class Stopped(Exception):
    """The worker did not reply in time, ended, used too much, or sent something that is no reply."""


class Stray(Stopped):
    """The worker sent something that is no reply to what it was asked; code that ran earlier may have written it."""


class Unconfined(Exception):
    """The kernel does not confine a student's process."""


class UsedUp(Exception):
    """The time for the notebook is used up."""


class Worker:
    """A process in an empty folder that runs a student's code.

    Args:
        checks: whether the visible checks are there; without them nobody can call their answers.
        seconds: how long it may take over one message.
        unconfined: whether to go on where the kernel does not confine it.

    Raises:
        Unconfined: if the kernel does not, and `unconfined` does not say that this is known.
        RuntimeError: if it does not start.
    """

    def __init__(self, checks=False, seconds=30, unconfined=False):
        self.seconds, self.number = seconds, 0
        self.folder = tempfile.mkdtemp(prefix="answers-")
        places = {name: self.folder for name in ("HOME", "TMPDIR", "MPLCONFIGDIR", "COURSE_DATA")}
        self.process = subprocess.Popen(
            [sys.executable, "-I", worker.__file__, *(["checks"] if checks else [])],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            cwd=self.folder, env=ENVIRONMENT | places, start_new_session=True,
        )  # fmt: skip
        os.set_blocking(self.process.stdin.fileno(), False)
        self.watched = time.monotonic()
        try:
            self.confined = set(self._message(START_SECONDS)["confined"])  # it is ready
        except Stopped:
            self.close()
            raise RuntimeError("the worker did not start; does `python -m classroom.worker` run?") from None
        if not unconfined and self.confined != {"landlock", "seccomp"}:
            self.close()
            raise Unconfined(UNCONFINED.format(" and ".join(sorted(self.confined)) or "neither"))

    def ask(self, message, seconds=None):
        """Send a message and return the reply.

        Args:
            message: dict; worker.py says what is in it.
            seconds: how long it may take; by default what the message or the worker says.

        Raises:
            Stopped: if no reply comes that can be read; the process is then ended.
        """
        self.process.send_signal(signal.SIGCONT)
        self.number = secrets.randbelow(2**53)  # or replies to later questions could be written in advance
        seconds = seconds or max(self.seconds, message.get("seconds", 0))
        try:
            self._write(wire.framed({"number": self.number, **message}), time.monotonic() + seconds, seconds)
            reply = self._message(seconds)
            if not self._is_reply(reply) or self._has_more():
                raise Stray("your code wrote where it should not")
            self._watch()
            self.process.send_signal(signal.SIGSTOP)  # nothing runs on between questions, where nobody looks
            return reply
        except Stopped:
            self.close()
            raise
        except BrokenPipeError:
            self.close()
            raise Stopped("your code ended its process") from None

    def _is_reply(self, reply):
        """Say whether this is {"number": this one, "got": anything} or {"number": this one, "error": text}."""
        if not isinstance(reply, dict) or set(map(type, reply)) != {str}:
            return False
        number, error = reply.get("number"), reply.get("error", "")
        return type(number) is int and number == self.number and isinstance(error, str)

    def _has_more(self):
        """Say whether more was written than one reply."""
        with selectors.DefaultSelector() as selector:
            selector.register(self.process.stdout, selectors.EVENT_READ)
            return bool(selector.select(0)) and self.process.poll() is None

    def _message(self, seconds):
        end = time.monotonic() + seconds
        (length,) = struct.unpack("<q", self._read(8, end, seconds))
        if not 0 < length <= wire.LARGEST:
            raise Stray("your code returned far too much, or wrote where it should not")
        try:
            return wire.decoded(self._read(length, end, seconds))
        except wire.Unreadable:
            raise Stray("your code gave something that cannot be read, or wrote where it should not") from None

    def _read(self, size, end, seconds):
        parts = []
        while size:
            self._wait(self.process.stdout, selectors.EVENT_READ, end, seconds)
            part = os.read(self.process.stdout.fileno(), min(size, 2**20))
            if not part:
                raise Stopped("your code ended its process")
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _write(self, data, end, seconds):
        while data:
            self._wait(self.process.stdin, selectors.EVENT_WRITE, end, seconds)
            data = data[os.write(self.process.stdin.fileno(), data) :]

    def _wait(self, stream, event, end, seconds):
        """Wait until a pipe is ready, as long as time is left, and watch what the process uses."""
        with selectors.DefaultSelector() as selector:
            selector.register(stream, event)
            ready = False
            while not ready:
                ready = selector.select(WATCH_SECONDS)
                now = time.monotonic()
                if now > self.watched + WATCH_SECONDS:
                    self._watch()
                    self.watched = now
                if now > end:
                    raise Stopped(f"your code did not end within {seconds:.3g} seconds; is there an endless loop?")

    def _watch(self):
        """End a process that uses more than any right answer."""
        memory, threads = used(self.process.pid)
        try:
            size, files = content(self.folder)
        except OSError:  # too deep to be counted, or closed to us
            size, files = 0, FOLDER_FILES + 1
        if memory > RESIDENT:
            raise Stopped(f"your code used more than {RESIDENT / 2**30:.0f} GB of memory")
        if threads > THREADS:
            raise Stopped(f"your code started more than {THREADS} threads")
        if size > FOLDER_BYTES or files > FOLDER_FILES:
            raise Stopped(f"your code wrote more than {FOLDER_FILES} files or {FOLDER_BYTES / 2**20:.0f} MB")

    def close(self):
        """End the process and whatever it started, and remove its folder."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                stream.close()
        self.process.wait()
        remove(self.folder)


def used(process):
    """Return the bytes of memory and the number of threads that a process uses; 0 where nobody tells."""
    try:
        status = Path(f"/proc/{process}/status").read_bytes()  # its name may be any bytes
    except OSError:
        return 0, 0
    numbers = dict(re.findall(rb"^(VmRSS|Threads):\s*(\d+)", status, re.MULTILINE))
    return 1024 * int(numbers.get(b"VmRSS", 0)), int(numbers.get(b"Threads", 0))


def content(folder):
    """Return the bytes and the number of files in a folder, counted no further than the limits.

    Raises:
        OSError: if a folder in it cannot be read, or its path is too long.
    """
    size, files, places = 0, 0, [folder]
    while places and size <= FOLDER_BYTES and files <= FOLDER_FILES:
        with os.scandir(places.pop()) as entries:
            for entry in entries:
                files += 1
                size += entry.stat(follow_symlinks=False).st_blocks * 512
                if entry.is_dir(follow_symlinks=False):
                    places.append(entry.path)
    return size, files


class Desk:
    """A worker that is replaced when an answer breaks it: what ran before runs again, without what broke it.

    Args:
        checks: whether the visible checks are there.
        seconds: for one cell or one question.
        budget: seconds for everything.
        unconfined: whether to go on where the kernel does not confine it.
    """

    def __init__(self, checks=False, seconds=30, budget=300, unconfined=False):
        self.make, self.seconds = lambda: Worker(checks, seconds, unconfined), seconds
        self.worker, self.history = self.make(), []
        self.half, self.end = (time.monotonic() + budget * part for part in (0.5, 1.0))

    def do(self, message, again=True):
        """Send a message and return the reply; {"error": ...} if the answer broke the worker.

        Args:
            message: dict; worker.py says what is in it.
            again: whether to ask again, in a new worker, if something stray came in the place of a reply.

        Raises:
            UsedUp: if no time is left.
        """
        left = self.end - time.monotonic()
        if left <= 0:
            raise UsedUp
        try:
            reply = self.worker.ask(message, min(left, max(self.seconds, message.get("seconds", 0))))
        except Stopped as stopped:
            self._again()
            if again and isinstance(stopped, Stray):
                return self.do(message, again=False)
            return {"error": f"not yet: {stopped}"}
        except wire.NotPlain:  # the message itself was too long to be sent
            return {"error": "not yet: this cell is too long"}
        if message["do"] in ("run", "define"):
            self.history.append(message)
        return reply

    def half_used(self):
        """Say whether half of the time is used up."""
        return time.monotonic() > self.half

    def _again(self):
        before, self.history = self.history, []
        self.worker = self.make()
        for message in before:
            self.do(message)

    def close(self):
        """End the worker."""
        self.worker.close()


def judge(notebook, seed, seconds, budget, skip, unconfined, report):
    """Judge the machine-graded exercises of a restored notebook.

    Args:
        notebook: with the check cells, as `grading.restored` and nbgrader's OverwriteCells leave it.
        seed: of the hidden tests' cases.
        seconds: on the clock, for one cell or one question.
        budget: seconds for the whole notebook.
        skip: grade ids that are not to be examined again.
        unconfined: whether to go on where the kernel does not confine the students' code.
        report: function of a dict, called with what is found.
    """
    unseen = functools.partial(by_hidden_test, seed=seed, report=report)
    sides = {"hidden": (False, unseen), "visible": (True, by_visible_check)}

    def walk(side):
        checks, examined = sides[side]
        desk = Desk(checks, seconds, budget, unconfined)
        try:
            walk_through(notebook, desk, skip, examined, lambda **found: report({"side": side, **found}))
        finally:
            desk.close()

    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(walk, side) for side in sides]:
            done.result()


def walk_through(notebook, desk, skip, examined, report):
    """Run the cells from top to bottom and examine each answer where its check stands."""
    checks = [cell.metadata.nbgrader.grade_id for cell in notebook.cells if editions.is_check(cell)]
    waiting, code, trouble = [grade_id for grade_id in checks if grade_id not in skip], [], None
    try:
        for cell in (cell for cell in notebook.cells if cell.cell_type == "code"):
            if editions.is_check(cell):
                grade_id = cell.metadata.nbgrader.grade_id
                if grade_id in waiting:
                    report(at=grade_id)
                    wrong, why = examined(desk, cell, hidden.tests(grade_id[2:4])[grade_id], code)
                    if wrong == UNTOUCHED and trouble:  # the answer's cell did not get as far as to define it
                        wrong = trouble
                    report(id=grade_id, wrong=wrong, why=why)
                    waiting.remove(grade_id)
                trouble = None
            elif (order := order_for(cell)) is not None:
                if cell.metadata.get("classroom") == "own" and desk.half_used():
                    order["seconds"] = 1  # experiments must not use up the time of the answers
                reply = desk.do(order)
                if cell.metadata.get("classroom") in ("answer", "own"):
                    code.append(cell.source)
                if cell.metadata.get("classroom") == "answer":
                    trouble = reply.get("error") and words_of(reply["error"])
    except UsedUp:
        for grade_id in waiting:
            report(id=grade_id, wrong=USED_UP, why=None)


def order_for(cell):
    """What is to be done with a cell: the student's and the setup run; of the chapter's others only the definitions."""
    tags, whose = cell.metadata.get("tags", []), cell.metadata.get("classroom")
    where = f"<ex {cell.metadata.get('nbgrader', {}).get('grade_id', 'own cell')} {cell.get('id', '')}>"
    if "install" in tags or whose == "untouched":
        return None
    if "setup" in tags:
        return {"do": "run", "code": cell.source, "where": "<setup>", "seconds": SETUP_SECONDS}
    if whose in ("answer", "own"):
        return {"do": "run", "code": cell.source, "where": where}
    return {"do": "define", "code": cell.source, "where": "<chapter>"}


def by_hidden_test(desk, cell, test, code, seed=0, report=lambda found: None):
    """Put the answer to its hidden test; return (None or what is wrong, for instructors: why)."""
    end = time.monotonic() + EXERCISE_SECONDS

    def ask(test, given):
        if time.monotonic() > end:
            raise Wrong(f"not yet: the questions to your answer took more than {EXERCISE_SECONDS} seconds")
        reply = desk.do({"do": "ask", "answer": test.answer, "probe": hidden.text_of(test.probe), "given": list(given)})
        if reply.get("error") == UNTOUCHED:
            raise NotImplementedError
        if "got" not in reply:
            raise Wrong(words_of(reply.get("error", "your code wrote where it should not")))
        return reply["got"]

    def compare(got, wanted):
        report({"comparing": test.grade_id})
        try:
            test.judge(got, wanted)
        finally:
            report({"compared": test.grade_id})

    report({"comparing": test.grade_id})  # reading the code may take long, too
    forbidden = ready_made(code, test)
    report({"compared": test.grade_id})
    if forbidden:
        return f"not yet: the exercise asks for your own code; yours uses {', '.join(forbidden)}", None
    try:
        hidden.examine(dataclasses.replace(test, judge=compare), ask, seed)
    except NotImplementedError:
        return UNTOUCHED, None
    except hidden.Missed as missed:
        # Of numbers worked out on paper there is nothing to tell: they are the same for the next student.
        told = "this is not right" if test.probe is hidden.value else missed.told
        return f"not yet, in the hidden test: {wire.clean(told)}", wire.clean(missed)
    except Wrong as wrong:
        return wire.clean(wrong), None
    return None, None


def ready_made(code, test):
    """Return the ready-made functions that the answer uses though it may not; nothing if the code is too odd to say."""
    cells = []
    for cell in code if test.without else []:
        with contextlib.suppress(Exception):
            cells.append(worker.as_python(cell))
    try:
        return own_code.used(cells, test.answer, test.without)
    except Exception:
        return []


def by_visible_check(desk, cell, test, code):
    """Run the visible check; return (None or its words, None)."""
    real = f"from course_lib.exercises import ch{test.grade_id[2:4]}\n"  # whatever the student's code put in its place
    source = real + without_hidden(cell.source)
    reply = desk.do({"do": "check", "answer": test.answer, "code": source, "where": "<check>"})
    passed = "".join(f"passed: {name}\n" for name in editions.check_names(cell.source))
    wrong = words_of(reply.get("error", "the check did not pass"))
    said = reply.get("got")
    return (None if isinstance(said, str) and said.endswith(passed) else wrong), None


def words_of(error):
    """Return an error's words. They are the student's, and must not look like those of a check that passed."""
    text = wire.clean(error)
    return text if text.startswith("not ") else f"not yet: {text}"


def main():
    """Judge the notebook that comes as JSON, and write what is found."""
    for limit in (resource.RLIMIT_DATA, resource.RLIMIT_CORE):
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(limit, (OWN_MEMORY, OWN_MEMORY) if limit == resource.RLIMIT_DATA else (0, 0))
    order, lock = json.load(sys.stdin), threading.Lock()

    def report(found):
        with lock:
            print(json.dumps(found), flush=True)

    notebook = nbformat.reads(order.pop("notebook"), as_version=4)
    if any(editions.ROOT.is_relative_to(tree) for tree in sandbox.readable_trees()):
        report(
            {"refused": "answers may read the folder that this course lies in (/usr, or Python's own); move the course"}
        )
        return
    try:
        judge(notebook, report=report, **order)
    except Unconfined as error:
        report({"refused": str(error)})
        return
    report({"done": True})


if __name__ == "__main__":
    main()
