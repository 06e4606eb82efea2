"""Grading: restoring a submission, and the worker: what is right passes, nothing else does, nobody is held up.

The answers are those of a notebook of its own with three exercises of chapter 05.
"""

import copy
import functools
import math
import os
import sys
import time
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import nbformat
import numpy as np
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

from classroom import grading, hidden, wire, worker
from classroom.grading import BEGIN_HIDDEN, END_HIDDEN, graded, restored
from classroom.hidden import Draw
from classroom.judge import Stopped, Unconfined, Worker
from tests.helpers.solutions import solution
from tools.notebooks import editions

CELL, LEFT, LAST = "ex05-1-lstm-cell-check", "ex05-2-along-the-cell-check", "ex05-7-review-classifier-check"
RIGHT_LEFT = "left = (0.336, 0.42, 4.968)"
RIGHT_LAST = """\
class ReviewClassifier(torch.nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_size, num_classes):
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab_size, embedding_dim)
        self.gates = torch.nn.Linear(embedding_dim + hidden_size, 4 * hidden_size)
        self.output = torch.nn.Linear(hidden_size, num_classes)

    def forward(self, ids, lengths):
        h = c = torch.zeros(len(ids), self.output.in_features)
        last = torch.zeros_like(h)
        for t in range(ids.shape[1]):
            i, f, g, o = self.gates(torch.cat([self.embedding(ids[:, t]), h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            last = torch.where((lengths == t + 1)[:, None], h, last)
        return self.output(last)"""
RIGHT_CELL = """\
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    i, f, g, o = (x @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, 1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c"""


slow = pytest.mark.slow  # each such test starts two processes with torch


def code(source, grade_id=None, **mark):
    cell = new_code_cell(source)
    if grade_id:
        cell.metadata.nbgrader = {"grade_id": grade_id, "grade": False, "solution": False, "locked": True, **mark}
    return cell


def exercise(stub, grade_id, call):
    test = f"{call}\n{BEGIN_HIDDEN}\nhidden\n{END_HIDDEN}"
    answer = code(stub, grade_id.removesuffix("-check"), solution=True, locked=False)
    return [answer, code(test, grade_id, grade=True, points=2)]


@pytest.fixture
def release():
    """Setup, a helper, a slow demonstration, and three exercises."""
    setup = code("import torch\nfrom course_lib.exercises import ch05")
    setup.metadata.tags = ["setup"]
    return new_notebook(
        cells=[
            new_markdown_cell("# A sheet"),
            setup,
            code("def helper():\n    return 1\n\nraise RuntimeError('the demonstrations are not run')"),
            *exercise("def lstm_cell(*given):\n    raise NotImplementedError", CELL, "ch05.lstm_cell(lstm_cell)"),
            *exercise("left = ...", LEFT, "ch05.along_the_cell(left)"),
            *exercise("ReviewClassifier = ...", LAST, "ch05.review_classifier(ReviewClassifier)"),
        ]
    )


def with_answers(release, cell=None, left=None, last=None):
    """A submission with some answers written in."""
    notebook = copy.deepcopy(release)
    for number, answer in ((3, cell), (5, left), (7, last)):
        if answer is not None:
            notebook.cells[number].source = answer
    return notebook


def verdicts(release, submitted, **options):
    """What is wrong with the three answers; None where nothing is."""
    found = graded(restored(release, submitted), **options)
    return found[CELL], found[LEFT], found[LAST]


@slow
def test_right_partly_right_and_untouched(release):
    """Fails if a right answer loses, a wrong or missing one wins, or one answer decides about another."""
    assert verdicts(release, with_answers(release, RIGHT_CELL, RIGHT_LEFT, RIGHT_LAST)) == (None, None, None)
    wrong = RIGHT_CELL.replace("i.sigmoid() * ", "")
    cell, left, last = verdicts(release, with_answers(release, wrong, RIGHT_LEFT))
    assert "the input gate is not used" in cell  # the visible check's words
    assert "hidden test" in cell
    assert left is None
    assert last == "not attempted yet"


@slow
def test_hard_coded_answers_fail_only_the_hidden_test(release):
    """An answer that knows the visible check's inputs: fails if the hidden test asks the same."""
    known = f"""\
{RIGHT_CELL.replace("def lstm_cell", "def right")}

def lstm_cell(x, *rest):
    return right(x, *rest) if x.shape == (2, 3) and len(rest[0][0]) == 5 else (rest[0], rest[1])"""
    cell, _, _ = verdicts(release, with_answers(release, known))
    assert cell.startswith("not yet, in the hidden test:")


@slow
def test_own_cells_help_and_the_chapters_functions_are_there(release):
    """Fails if a helper in a cell of its own, or one that the chapter defines, is lost."""
    submitted = with_answers(release, left="left = tuple(helper() * x for x in mine)")
    submitted.cells.insert(5, new_code_cell("mine = (0.336, 0.42, 4.968)"))
    assert verdicts(release, submitted)[1] is None


@slow
@pytest.mark.parametrize("spoil", ["drops the answer's cell", "drops both cells", "drops all", "loses all metadata"])
def test_an_answer_retyped_in_a_new_cell_counts(release, spoil):
    """Fails if what a student wrote is lost with the cell it belonged into."""
    submitted = with_answers(release, cell=RIGHT_CELL)
    retyped = new_code_cell(RIGHT_CELL)
    if spoil == "drops the answer's cell":
        submitted.cells[3:4] = [retyped]
    elif spoil == "drops both cells":
        submitted.cells[3:5] = [retyped]
    elif spoil == "drops all":
        submitted.cells = [retyped]
    else:
        submitted.cells = [new_code_cell(c.source) for c in submitted.cells if c.cell_type == "code"]
    assert verdicts(release, submitted) == (None, "not attempted yet", "not attempted yet")


def test_of_two_copies_of_a_cell_the_one_with_an_answer_counts(release):
    """Fails if an untouched copy, before or after, takes the answer's place."""
    for place in (3, 4):
        submitted = with_answers(release, cell=RIGHT_CELL)
        submitted.cells.insert(place, copy.deepcopy(release.cells[3]))
        kept = restored(release, submitted)
        assert [c.source for c in kept.cells if c.metadata.get("classroom") == "answer"] == [RIGHT_CELL]


def test_what_is_not_the_students_comes_from_the_release(release):
    """Fails if a rewritten check, other points, another type of cell or odd metadata survive."""
    submitted = with_answers(release, left="left = 1")
    submitted.cells[6].source = "print('passed: along_the_cell')"
    submitted.cells[6].metadata.nbgrader.update(points=100, schema_version=0, grade=False)
    submitted.cells[1].source = "import sys"
    submitted.cells[3].cell_type = "raw"
    submitted.metadata.kernelspec = {"name": "evil"}
    kept = restored(release, submitted)
    assert [c.source for c in kept.cells if c.metadata.get("nbgrader", {}).get("grade")] == [
        c.source for c in release.cells if c.metadata.get("nbgrader", {}).get("grade")
    ]
    assert [c.metadata.nbgrader for c in kept.cells if "nbgrader" in c.metadata] == [
        c.metadata.nbgrader for c in release.cells if "nbgrader" in c.metadata
    ]
    assert kept.metadata == release.metadata
    assert {"import sys"} == {c.source for c in kept.cells if c.metadata.get("classroom") == "own"}
    nbformat.validate(kept)


def test_a_split_answer_runs_in_the_students_order(release):
    """Fails if the parts of a split cell, or a wrong and a corrected copy of it, change places."""
    submitted = with_answers(release, left="a = 0.336")
    for number, source in enumerate(("b = a", "left = (b, 0.42, 4.968)"), 6):
        submitted.cells.insert(number, copy.deepcopy(submitted.cells[5]))
        submitted.cells[number].source = source
    run = [c.source for c in restored(release, submitted).cells if c.metadata.get("classroom") in ("answer", "own")]
    assert run == ["a = 0.336", "b = a", "left = (b, 0.42, 4.968)"]


def test_a_rewritten_cell_of_the_chapter_comes_after_the_original(release):
    """Fails if a definition that the student has changed is overridden by the released one."""
    submitted = copy.deepcopy(release)
    submitted.cells[2].source = "def helper(k=1):\n    return k"
    sources = [cell.source for cell in restored(release, submitted).cells]
    assert sources.index(submitted.cells[2].source) == sources.index(release.cells[2].source) + 1


@slow
def test_cells_are_read_as_in_jupyter_and_colab(release):
    """Fails if an answer loses what an earlier cell has defined in Jupyter, or what Colab has and we have not."""
    submitted = with_answers(release, left="%matplotlib inline\nleft = (first, helpers.SECOND, third({}))")
    submitted.cells[2:2] = [
        new_code_cell(
            "from IPython import get_ipython\nfrom google.colab import drive\ndrive.mount('/d')\nfirst = 0.336"
        ),
        new_code_cell("%%writefile helpers.py\nSECOND = 0.42"),
        new_code_cell("from __future__ import annotations\n\nimport helpers"),
        new_code_cell("def third(x: NoSuchName):\n    return 4.968"),
    ]
    assert verdicts(release, submitted)[1] is None


@slow
def test_the_chapters_constants_are_there(release):
    """Fails if an answer cannot use a tensor or a number that the chapter's own cells have made."""
    release.cells[2].source = "D = 2 * 3\nk = torch.tensor([0.336, 0.42])\nlong = train_for_hours()\nn = len(k)"
    submitted = with_answers(release, left="left = (*k.tolist(), 4.968 * D / 6 * n / 2)")
    assert verdicts(release, submitted)[1] is None


@slow
def test_nothing_runs_on_between_questions():
    """Fails if a thread that an answer leaves behind writes, allocates or waits while nobody watches."""
    student = Worker(seconds=12)
    source = (
        "import threading, time\n\n\ndef write():\n    n = 0\n    while True:\n        n += 1\n"
        "        open(str(n), 'w').close()\n        time.sleep(0.01)\n\n\nthreading.Thread(target=write).start()"
    )
    student.ask({"do": "run", "code": source, "where": "<ex>"})
    time.sleep(0.1)
    before = len(os.listdir(student.folder))
    time.sleep(1)
    assert len(os.listdir(student.folder)) == before
    assert student.ask({"do": "run", "code": "x = 1", "where": "<ex>"})["got"] is None
    student.close()


SECRETS = """\
import glob, os
import torch
found = []
for path in {paths}:
    try:
        found.append(open(path).read())
    except OSError:
        pass
    try:
        found.append(bytes(torch.UntypedStorage.from_file(path, False, 100)))
    except (OSError, RuntimeError):
        pass
    try:
        found += os.listdir(os.path.dirname(path))
    except OSError:
        pass
left = (0.336, 0.42, 4.968) if found else (1, 2, 3)
"""


@slow
def test_files_that_are_not_the_students_cannot_be_read(release, tmp_path):
    """An answer that is right as soon as it can read anything: the solutions, a gradebook, this process's memory."""
    book = tmp_path / "gradebook.db"
    book.write_text("0.336, 0.42, 4.968" * 100)
    source = next(p for p in editions.sources() if p.stem.startswith("05"))
    paths = [str(book), str(source), __file__, hidden.__file__, f"/proc/{os.getpid()}/environ", "/etc/passwd"]
    assert all(Path(path).read_bytes() for path in paths)  # they can be read from here
    _, left, _ = verdicts(release, with_answers(release, left=SECRETS.format(paths=paths)))
    assert "not yet" in left
    assert "raised" not in left  # it was refused what it asked for, not the question


@slow
def test_the_diagnosis_names_what_went_wrong(release):
    """Fails if a broken answer's cell is taken for an untouched one, or the line is lost."""
    broken = "def lstm_cell(*given):\n    x = 1\n    return x.missing"
    submitted = with_answers(release, cell=broken, left="left = [1, 2")
    cell, left, _ = verdicts(release, submitted)
    assert "AttributeError in its line 3" in cell or "AttributeError in line 3" in cell
    assert "SyntaxError" in left


def test_the_seed_draws_other_cases():
    """Fails if an assignment's secret seed changes nothing."""
    test = hidden.tests("05")[CELL]
    first, again, other = (test.draw(Draw(seed)) for seed in (0, 0, 1000))
    assert all(map(torch.equal, first, again))
    assert [g.shape for g in first] != [g.shape for g in other] or not all(map(torch.equal, first, other))


def test_what_is_sent_comes_back_as_it_was(tmp_path):
    """Fails if a hidden test draws something that cannot travel."""
    for path in editions.sources():
        for test in hidden.tests(path.stem[:2]).values():
            message = {"given": list(test.draw(Draw(3)))}
            with (tmp_path / "pipe").open("wb") as stream:
                wire.send(stream, message)
            with (tmp_path / "pipe").open("rb") as stream:
                assert repr(wire.receive(stream)) == repr(message), test.grade_id


@pytest.mark.parametrize("dtype", wire.DTYPES.values(), ids=str)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)], ids=str)
def test_tensors_travel_bit_by_bit(dtype, shape):
    """Fails if a type, a size, or a single bit is lost, also of infinity, nan and -0.0."""
    odd = [float("nan"), float("inf")] if dtype.is_floating_point else [2, 3]
    tensor = torch.tensor([1.5, -0.0, *odd, 3.0, 0.1])[: math.prod(shape)].to(dtype).reshape(shape)
    back = wire.decoded(wire.encoded(tensor))
    assert (back.dtype, back.shape) == (dtype, shape)
    assert back.reshape(-1).view(torch.uint8).equal(tensor.reshape(-1).view(torch.uint8))


@pytest.mark.parametrize(
    "data",
    [b"", b"[", b"[" * 10**6, b"{}", b'{"a": 1, "b": 2}', b'{"other": 1}', b'{"tensor": 1}', b"\xff", b"1" * 10**5,
     b'{"tensor": ["float64", [4294967296], "AAAAAAAAAAA="]}', b'{"tensor": ["float64", [-1], ""]}',
     b'{"tensor": ["object", [1], "AAAAAAAAAAA="]}', b'{"tensor": ["float64", [1], "no base 64"]}',
     b'{"dict": [[[], 1]]}', b'{"dict": [[{"dict": []}, 1]]}', b'{"set": [[1]]}', b'{"tensor": ["bool", "ab", ""]}'],
    ids=lambda data: repr(data[:30]),
)  # fmt: skip
def test_a_forged_message_is_unreadable_and_nothing_else(data):
    """Fails if bytes that nobody encoded raise something else, make a huge object, or are taken for a value."""
    with pytest.raises(wire.Unreadable):
        wire.decoded(data)


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(np.float64(0.5), 0.5), (np.float32(0.5), 0.5), (np.int64(3), 3), (np.bool_(True), True), (np.str_("a"), "a"),
     (Fraction(1, 4), 0.25), (Decimal("0.25"), 0.25), (np.array(2.0), 2.0), (torch.nn.Parameter(torch.ones(2)),
     torch.ones(2)), (np.ones((2, 3)), torch.ones(2, 3, dtype=torch.float64)), ((1, np.float64(2)), [1, 2.0]),
     ({np.int64(1): np.array([1])}, {1: torch.tensor([1])}), (torch.eye(2).to_sparse(), torch.eye(2)),
     ({(1, 2): 3}, {(1, 2): 3}), (torch.ones(1).expand(4), torch.ones(4)), (np.array(["a", "b"]), ["a", "b"])],
)  # fmt: skip
def test_numbers_of_every_kind_become_pythons(value, wanted):
    """Fails if a NumPy number, which is a float too, travels as itself and cannot be read."""
    found = wire.plain(value)
    assert type(found) is type(wanted)
    assert repr(found) == repr(wanted)
    assert repr(wire.decoded(wire.encoded(found))) == repr(wanted)


class Endless(list):
    def __iter__(self):
        while True:
            yield self


@pytest.mark.parametrize(
    "value",
    [object(), lambda: 1, 1j, torch.ones(1).expand(2**32), torch.ones(1).expand(2**22, 4), Endless(), print,
     functools.reduce(lambda inner, _: [inner, inner], range(60), 0), functools.reduce(lambda x, _: [x], range(99), 0)],
    ids=lambda value: str(type(value)),
)  # fmt: skip
def test_what_is_not_plain_or_far_too_much_is_refused(value):
    """Fails if an object gets through, or a small answer is blown up to a large message."""
    with pytest.raises(wire.NotPlain):
        wire.plain(value)


def test_words_of_an_answer_are_cut_and_harmless():
    """Fails if an error text of megabytes, escape codes or half a character get into feedback."""
    text = wire.clean("\x1b[31m\ud800\0" + "x" * 10**6)
    assert len(text) < 2100
    assert text.isprintable()


@slow
def test_a_worker_that_does_not_listen_is_ended_in_time():
    """Fails if the process lives on, or its folder stays."""
    student = Worker(seconds=12)
    student.seconds = 2
    began = time.monotonic()
    with pytest.raises(Stopped, match="did not end within 2 seconds"):
        student.ask({"do": "run", "code": "import time\ntime.sleep(100)", "where": "<ex>"})
    assert time.monotonic() - began < 10
    assert student.process.poll() is not None
    assert not os.path.exists(student.folder)


@slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Landlock is Linux's")
def test_the_kernel_refuses_what_pythons_hook_does_not_see():
    """torch opens files in C++, unseen by the hook; fails without Landlock."""
    pytest.importorskip("landlock")
    student = Worker()
    source = f"import torch\ntorch.UntypedStorage.from_file({grading.__file__!r}, False, 10)"
    reply = student.ask({"do": "run", "code": source, "where": "<ex>"})
    student.close()
    assert "RuntimeError" in reply["error"]
    assert "ermission" in reply["error"]


def test_an_answer_may_import_from_the_library_and_not_from_its_checks():
    """Fails if Python may not list the library's folder, and so finds no module in it, or if it finds the checks."""
    desk = Worker(seconds=30)
    try:
        for code in ("from course_lib.positional import sinusoidal_table", "import course_lib.cost.measure"):
            assert desk.ask({"do": "run", "code": code, "where": "<ex>"}).get("error") is None
        code = "import sys; del sys.modules['course_lib.exercises']\nfrom course_lib.exercises import ch09"
        assert desk.ask({"do": "run", "code": code, "where": "<ex>"})["error"]
    finally:
        desk.close()


def test_the_reference_of_the_course_passes_as_text():
    """The references here are not the chapter's; fails if they are no longer right."""
    assert solution("05", "left")[:2] == pytest.approx((0.336, 0.42))


# The judge: what happens if it is brought down. A script in its place plays it.

PLAYED = """\
#!{python}
import json, sys, time
order = json.load(sys.stdin)
def say(**line):
    print(json.dumps(line), flush=True)
{play}
"""


@pytest.fixture
def played(release, tmp_path, monkeypatch):
    """A function that judges the three exercises with a script in the judge's place."""

    def judged(play):
        script = tmp_path / "judge"
        script.write_text(PLAYED.format(python=sys.executable, play=play), encoding="utf8")
        script.chmod(0o755)
        monkeypatch.setattr(grading.sys, "executable", str(script))
        monkeypatch.setattr(grading, "COMPARE_SECONDS", 0.5)
        return grading.judged(release, budget=20)

    return judged


RIGHT = (
    "for side in ('hidden', 'visible'):\n    say(side=side, at={0!r}); say(side=side, id={0!r}, wrong=None, why=None)\n"
)


@pytest.mark.parametrize(
    "end", ["sys.exit(1)", f"say(comparing={CELL!r}); time.sleep(60)", "raise MemoryError", "import os; os.kill(0, 9)"]
)
def test_an_answer_that_brings_the_judge_down_fails_alone(played, end):
    """Fails if the others lose their points, or one that was never judged gets some."""
    play = (
        f"if not order['skip']:\n    say(side='hidden', at={CELL!r}); {end}\n"
        f"{RIGHT.format(LEFT)}{RIGHT.format(LAST)}say(done=True)"
    )
    found = played(play)
    assert grading.NOT_JUDGED in found[CELL][0]
    assert found[LEFT] == found[LAST] == (None, None)


def test_what_was_found_before_stays(played):
    """Fails if a judge's end takes with it what it had found."""
    found = played(f"{RIGHT.format(CELL)}{RIGHT.format(LEFT)}say(side='hidden', at={LAST!r})")
    assert [wrong for wrong, _ in found.values()] == [None, None, grading.NOT_JUDGED]


def test_a_judge_that_cannot_begin_is_nobodys_fault(played):
    """Fails if students lose points because the instructor's installation is broken."""
    with pytest.raises(RuntimeError, match=r"ended before it came to an answer: [\s\S]*broken installation"):
        played("raise SystemExit('broken installation')")


def test_where_nothing_confines_answers_nothing_is_graded(played):
    with pytest.raises(grading.Refused, match="neither"):
        played("say(refused='has neither')")


@pytest.mark.parametrize("confined", [[], ["seccomp"], ["landlock"]])
def test_a_worker_must_be_confined_by_the_kernel(confined, tmp_path, monkeypatch):
    """Fails if an answer would run where only Python's own hook stands before it, and nobody said so."""
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, sys\nfrom classroom import wire\nwire.send(os.fdopen(os.dup(1), 'wb'), "
        f"{{'confined': {confined!r}}})\nsys.stdin.read()",
        encoding="utf8",
    )
    monkeypatch.setattr(worker, "__file__", str(script))
    with pytest.raises(Unconfined, match=r"of Landlock and seccomp, this system has (neither|seccomp|landlock)\."):
        Worker()
    Worker(unconfined=True).close()
