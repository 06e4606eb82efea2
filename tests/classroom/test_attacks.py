"""Attacks on the grading, by a student who knows its code: no unearned point, no harm, nobody beside loses.

What is tried stands in `attacks.py`. A *world* lies around: a file, a process, and two servers that belong to others.
"""

import contextlib
import copy
import importlib.util
import os
import platform
import resource
import select
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from nbformat.v4 import new_code_cell

from classroom import grading, hidden, judge, sandbox, wire
from classroom.hidden import Draw
from classroom.judge import Desk, Stopped, Worker, by_hidden_test
from tests.classroom.test_grading import (
    CELL,
    LAST,
    LEFT,
    RIGHT_CELL,
    RIGHT_LAST,
    RIGHT_LEFT,
    release,
    verdicts,
    with_answers,
)
from tests.helpers.attacks import BREAKING, FORGE, PRELUDE, REFUSED, UNEARNED, WRONG
from tools.notebooks import editions

__all__ = ["release"]  # a fixture
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Landlock and seccomp are Linux's"),
]
MACHINE = platform.machine()
SECONDS = 5  # for one question, on a busy machine


class World:
    """What belongs to others: a file and its folder, a process, two servers, and this process."""

    def __init__(self, folder):
        self.victim = folder / "gradebook.db"
        self.victim.write_text("0.336, 0.42, 4.968" * 100)
        torch.save([0.336, 0.42, 4.968], folder / "answers.pt")
        with contextlib.suppress(OSError):  # not every file system has them
            os.setxattr(self.victim, "user.mark", b"mine")
        os.chmod(self.victim, 0o640)
        os.utime(self.victim, (10**9, 10**9))
        self.bystander = subprocess.Popen(["sleep", "1000"], start_new_session=True)
        self.tcp, self.udp = socket.create_server(("127.0.0.1", 0)), socket.socket(type=socket.SOCK_DGRAM)
        self.udp.bind(("127.0.0.1", 0))
        self.before = self.state()

    def state(self):
        """Everything that an attack might change."""
        status, process = self.victim.stat(), self.bystander.pid
        marks = {name: os.getxattr(self.victim, name) for name in os.listxattr(self.victim)}
        return {
            "file": (status.st_mode, status.st_uid, status.st_gid, status.st_size, status.st_mtime_ns, status.st_nlink),
            "content": self.victim.read_bytes(),
            "marks": marks,
            "folder": (sorted(os.listdir(self.victim.parent)), self.victim.parent.stat().st_mode),
            "process": (self.bystander.poll(), os.getpriority(os.PRIO_PROCESS, process), os.sched_getaffinity(process)),
            "session": (os.getsid(process), os.sched_getscheduler(process)),
            "limits": [resource.prlimit(p, resource.RLIMIT_NOFILE) for p in (process, os.getpid())],
            "arrived": bool(select.select([self.tcp, self.udp], [], [], 0)[0]),
        }

    def secrets(self):
        """Paths of what a student may not read, all of which can be read from here."""
        here = Path(grading.__file__).parent
        checks = Path(editions.ROOT, "course_lib", "exercises", "ch05.py")
        compiled = Path(importlib.util.cache_from_source(checks))
        source = next(path for path in editions.sources() if path.stem.startswith("05"))
        paths = [self.victim, self.victim.with_name("answers.pt"), here / "hidden" / "ch05.py", here / "judge.py"]
        paths += [checks, compiled, source, Path(__file__).with_name("solutions.py")]
        paths += [Path("/etc/passwd"), Path(f"/proc/{os.getpid()}/environ")]
        return [str(path) for path in paths if path.exists() and path.read_bytes()]

    def close(self):
        self.bystander.kill()
        self.bystander.wait()
        self.tcp.close()
        self.udp.close()


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    made = World(tmp_path_factory.mktemp("others"))
    yield made
    made.close()


@pytest.fixture(scope="module")
def laboratory(world):
    """A student's process for all attacks that are to be refused."""
    newer = {"pidfd_send_signal": 424, "io_uring_setup": 425, "pidfd_open": 434, "clone3": 435, "openat2": 437,
             "memfd_secret": 447, "fchmodat2": 452}  # fmt: skip
    numbers = sandbox.DENIED[MACHINE] | sandbox.SIGNALS[MACHINE] | newer
    numbers |= {"clone": sandbox.CLONE[MACHINE], "prlimit64": sandbox.PRLIMIT[MACHINE]}
    numbers |= {name: number for name, (number, *_) in sandbox.BITS[MACHINE].items()}
    names = {"VICTIM": str(world.victim), "PARENT": os.getpid(), "BYSTANDER": world.bystander.pid, "NUMBERS": numbers,
             "TCP": world.tcp.getsockname()[1], "UDP": world.udp.getsockname()[1], "SECRETS": world.secrets(),
             "COURSE": str(Path(editions.ROOT, "course_lib", "__init__.py"))}  # fmt: skip
    desk = Desk(seconds=30, budget=10**6)
    told = run(desk, "\n".join(f"{name} = {value!r}" for name, value in names.items()) + PRELUDE)
    assert told.get("error") is None
    yield desk
    desk.close()


def run(desk, source):
    return desk.do({"do": "run", "code": source, "where": "<ex>"})


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_harm_or_reads_is_refused(name, laboratory, world):
    """Fails if a single way works, or anything of the others' is not as it was."""
    del laboratory.history[1:]
    told = run(laboratory, f"won = 'not reached'\n{REFUSED[name]}")
    assert told.get("error") is None
    asked = {"do": "ask", "answer": "won", "probe": hidden.text_of(hidden.value), "given": []}
    assert laboratory.do(asked).get("got") == []
    assert world.state() == world.before


def examined(desk, grade_id, source, seed=7):
    """What the hidden test says of an answer: None or words."""
    run(desk, "import torch")
    run(desk, source)
    return by_hidden_test(desk, None, hidden.tests("05")[grade_id], [source], seed)[0]


@pytest.mark.parametrize("name", UNEARNED)
def test_what_is_not_right_earns_nothing(name, world):
    """Fails if it gets the points, costs those of the answers beside it, or fills the feedback."""
    desk = Desk(seconds=SECONDS, budget=1000)
    try:
        wrong = examined(desk, CELL, UNEARNED[name])
        assert wrong.startswith("not ")
        assert len(wrong) < 2500
        assert wrong.replace("\n", " ").isprintable()
        assert examined(desk, LEFT, RIGHT_LEFT) is None
        assert examined(desk, LAST, RIGHT_LAST) is None
    finally:
        desk.close()
    assert world.state() == world.before


@pytest.mark.parametrize("name", BREAKING)
def test_what_breaks_a_process_ends_it_in_time(name, world):
    """Fails if it takes longer than it may, brings the judge down, or leaves a process or a file."""
    student = Worker(seconds=30)
    began = time.monotonic()
    with pytest.raises(Stopped):
        student.ask({"do": "run", "code": FORGE + BREAKING[name], "where": "<ex>"}, seconds=2)
    assert time.monotonic() - began < 8
    assert student.process.poll() is not None
    assert not os.path.exists(student.folder)
    assert world.state() == world.before


def test_who_does_not_read_is_not_waited_for():
    """A reply is forged while the next, long message is not read: fails if the judge waits for ever to write it."""
    student = Worker(seconds=30)
    forged = 'forge(b\'{"dict": [["number", 1], ["got", 1]]}\')\ntime.sleep(99)'
    student.ask({"do": "run", "code": FORGE + forged, "where": "<ex>"}, seconds=10)
    began = time.monotonic()
    with pytest.raises(Stopped, match="did not end within 2 seconds"):
        student.ask({"do": "run", "code": "#" * 10**6, "where": "<ex>"}, seconds=2)
    assert time.monotonic() - began < 8


def test_a_lesson_learned_by_heart_is_good_for_one_seed():
    """Fails if the numbers of one grading can be handed in for the next."""
    test = hidden.tests("05")[CELL]
    cases = [test.draw(Draw(case)) for case in range(test.cases)]
    known = {round(given[0][0, 0].item(), 6): [part.tolist() for part in test.right(*given)] for given in cases}
    source = f"import torch\nknown = {known}\n" + (
        "def lstm_cell(x, h, c, *rest):\n    found = known.get(round(x[0, 0].item(), 6))\n"
        "    return tuple(torch.tensor(part).double() for part in found) if found else (h, c)"
    )
    desk = Desk(seconds=SECONDS, budget=1000)
    try:
        assert examined(desk, CELL, source, seed=0) is None
        assert examined(desk, CELL, source, seed=1).startswith("not yet, in the hidden test")
    finally:
        desk.close()


def test_counting_the_calls_earns_nothing():
    """8.1 asks for yes or no, of layers in an order that is drawn: fails if the order is always the same."""
    test = hidden.tests("08")["ex08-1-equivariant-check"]
    kinds = [test.right(*test.draw(Draw(case))) for case in range(test.cases)]
    desk = Desk(seconds=SECONDS, budget=1000)
    source = f"calls, kinds = [], {[kind for case in kinds for kind in case]}\n" + (
        "def is_equivariant(*given):\n    calls.append(1)\n    return kinds[len(calls) - 1]"
    )
    try:
        for seed, passes in ((0, True), (5, False)):
            run(desk, source)
            wrong, _ = by_hidden_test(desk, None, test, [source], seed)
            assert (wrong is None) == passes
    finally:
        desk.close()


def test_questions_that_all_take_long_are_not_all_asked(monkeypatch):
    """Forty cases that each sleep: fails if an exercise may take forty times the time of a question."""
    monkeypatch.setattr(judge, "EXERCISE_SECONDS", 2)
    test, desk = hidden.tests("02")["ex02-2-bpe-step-check"], Desk(seconds=SECONDS, budget=1000)
    began = time.monotonic()
    try:
        run(desk, SLOW_STEP)
        assert "took more than 2 seconds" in by_hidden_test(desk, None, test, [], 0)[0]
    finally:
        desk.close()
    assert time.monotonic() - began < 30


SLOW_STEP = """
import time
from collections import Counter
def bpe_step(words):
    time.sleep(0.3)
    pairs = Counter()
    for word, count in words.items():
        for pair in zip(word, word[1:]):
            pairs[pair] += count
    best = min(pairs, key=lambda pair: (-pairs[pair], pair))
    merged = {}
    for word, count in words.items():
        new, i = [], 0
        while i < len(word):
            if word[i : i + 2] == best:
                new.append(word[i] + word[i + 1])
                i += 2
            else:
                new.append(word[i])
                i += 1
        merged[tuple(new)] = count
    return best, merged
"""


def test_reading_the_code_for_the_reminder_counts_as_comparing(monkeypatch):
    """A cell that takes minutes to read as Jupyter reads it: fails if the judge may spend that time unwatched."""
    said = []
    monkeypatch.setattr(judge, "ready_made", lambda code, test: said.append("reading") or ["x"])
    by_hidden_test(None, None, hidden.tests("05")[CELL], [], 0, lambda found: said.append(*found))
    assert said == ["comparing", "reading", "compared"]


# --- whole notebooks -------------------------------------------------------------------------------------------------

FORGED_CHECK = f"""\
import sys, types
class Content(types.ModuleType):
    def __getattr__(self, name):
        return lambda *a: print('passed:', name)
ch05 = sys.modules['course_lib.exercises.ch05'] = Content('ch05')
sys.modules['course_lib.exercises'] = checks = Content('checks')
checks.ch05 = ch05
{WRONG}"""
STOLEN = """\
try:
    from course_lib.exercises import ch05
    right = ch05._lstm
    def lstm_cell(*given):
        got = right(*given)
        return got['h'], got['c']
except Exception:
    pass
"""


LOOP, END = UNEARNED["loops at once and listens to nobody"], UNEARNED["ends the process"]


@pytest.mark.parametrize("attack", [FORGED_CHECK, STOLEN, LOOP, END], ids=["forges", "steals", "loops", "ends"])
def test_an_attack_in_a_notebook_costs_nobody_else(attack, release, world):
    """Fails if the answers beside it lose; a visible check that was forged or called is there to be had."""
    submitted = with_answers(release, cell=attack, left=RIGHT_LEFT, last=RIGHT_LAST)
    cell, left, last = verdicts(release, submitted, seconds=SECONDS)
    assert cell.startswith("not ")
    assert (left, last) == (None, None)
    assert world.state() == world.before


def test_own_cells_that_attack_cost_no_right_answer(release, world):
    """Fails if what stands before the answers brings the judge down, and all of them with it."""
    submitted = with_answers(release, cell=RIGHT_CELL, left=RIGHT_LEFT, last=RIGHT_LAST)
    odd = [BREAKING[name] for name in ("a number of tensors", "an error that is no text", "a name of odd bytes")]
    cells = [*(new_code_cell(FORGE + source) for source in odd), new_code_cell("ch05 = None\ndef broken(:\n"),
             new_code_cell("import os\nos._exit(1)")]  # fmt: skip
    submitted.cells[2:2] = cells
    assert verdicts(release, submitted, seconds=SECONDS) == (None, None, None)
    assert world.state() == world.before


def test_own_cells_that_take_long_end_with_the_budget(release):
    """Each stays below the limit of a cell: fails if there is no limit of all together."""
    submitted = with_answers(release, cell=RIGHT_CELL, left=RIGHT_LEFT, last=RIGHT_LAST)
    submitted.cells[3:3] = [new_code_cell("import time\ntime.sleep(4)") for _ in range(30)]
    began = time.monotonic()
    found = verdicts(release, submitted, seconds=SECONDS, budget=8)
    assert all("time for this notebook ran out" in wrong for wrong in found)
    assert time.monotonic() - began < 60


# --- the notebook itself ---------------------------------------------------------------------------------------------


def metadata(**mark):
    return {"nbgrader": {"grade": False, "solution": True, "locked": False, "schema_version": 3, **mark}}


FORGED_CELLS = {
    "the id of another exercise": [new_code_cell(RIGHT_CELL, metadata=metadata(grade_id=LEFT.removesuffix("-check")))],
    "the id of a check": [new_code_cell("print('passed')", metadata=metadata(grade_id=CELL, grade=True, points=9))],
    "two with one id": [new_code_cell(s, metadata=metadata(grade_id=CELL.removesuffix("-check"))) for s in "ab"],
    "points": [new_code_cell("a", metadata=metadata(grade_id="mine", grade=True, solution=False, points=99))],
    "tags": [new_code_cell("a", metadata={"tags": ["setup", "install"]})],
    "classroom": [new_code_cell("a", metadata={"classroom": "answer", **metadata(grade_id="mine")})],
    "no text as id": [new_code_cell("a", metadata=metadata(grade_id=[1, {}]))],
    "a number as id": [new_code_cell("a", metadata=metadata(grade_id=5))],
    "no dict": [new_code_cell("a", metadata={"nbgrader": ["x"], "classroom": {"why": 1}, "tags": ["setup"]})],
    "nothing": [new_code_cell("a", metadata={"nbgrader": None})],
}


@pytest.mark.parametrize("name", FORGED_CELLS)
def test_forged_metadata_change_nothing(name, release):
    """Fails if a cell of a student's gets another exercise, a tag or a mark, or the notebook cannot be restored."""
    submitted = copy.deepcopy(release)
    submitted.cells += copy.deepcopy(FORGED_CELLS[name])
    kept = grading.restored(release, submitted)
    marked = [cell for cell in kept.cells if "nbgrader" in cell.metadata]
    assert [c.metadata.nbgrader for c in marked] == [
        c.metadata.nbgrader for c in release.cells if "nbgrader" in c.metadata
    ]
    assert [c.source for c in marked if editions.is_check(c)] == [
        c.source for c in release.cells if editions.is_check(c)
    ]
    for cell in kept.cells:
        if cell.metadata.get("classroom") == "own":
            assert dict(cell.metadata) == {"classroom": "own"}
            assert judge.order_for(cell)["do"] == "run"


def test_a_message_is_no_larger_than_it_may_be():
    """Fails if a reply of any size is taken in, or keys that collide may be as many as they like."""
    for odd in ({k * (2**61 - 1): 0 for k in range(1, 1500)}, "x" * (9 * 2**20)):
        with pytest.raises((wire.NotPlain, wire.Unreadable)):
            wire.decoded(wire.framed(odd)[8:])
