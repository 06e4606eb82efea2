"""Slow: a class from the release to the marks, with the real nbgrader in the instructors' environment.

`make classroom` makes this environment; CLASSROOM_ENV names another. Two assignments are released, some twenty
students hand in, and everything is graded once. Each student does one thing; the gradebook must hold exactly what
each has earned, and nobody may keep the others from being graded.
"""

import csv
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import nbformat
import pytest
from nbformat.v4 import new_code_cell

from classroom import release
from classroom.grading import without_hidden
from course_lib.exercises import ch05
from tests.helpers import leaks
from tests.helpers.solutions import solution
from tools.notebooks import editions

pytestmark = pytest.mark.slow

ENVIRONMENT = Path(os.environ.get("CLASSROOM_ENV", editions.ROOT / ".venv-classroom"))
SHEET, TWO = "sheet", "chapters"
FIVE, FOUR = "05_lstm_and_gru.ipynb", "04_backpropagation_through_time.ipynb"
CELL, LEFT, WEIGHTS, WRITTEN = "ex05-1-lstm-cell", "ex05-2-along-the-cell", "ex05-5-gru-weights", "ex05-6-explain"
POINTS = {f"{CELL}-check": 4, f"{LEFT}-check": 3, f"{WEIGHTS}-check": 2, WRITTEN: 3}  # of the sheet


def run(words, folder, **variables):
    """Run a program of the instructors' environment; return what it said."""
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", **variables}
    variables.pop("PYTEST_CURRENT_TEST", None)
    done = subprocess.run(
        [ENVIRONMENT / "bin" / words[0], *words[1:]],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"{words}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}"
    return done.stdout + done.stderr


def make(course, *words):
    return run(["python", "-m", "classroom.release", "--course", str(course), *words], editions.ROOT)


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A course with a sheet of four exercises, and an assignment of two whole chapters."""
    if not (ENVIRONMENT / "bin" / "nbgrader").exists():
        pytest.fail(f"there is no nbgrader in {ENVIRONMENT}: run make classroom, or name a place by CLASSROOM_ENV")
    course = tmp_path_factory.mktemp("course")
    make(course, "--exercises", "5.1 5.2 5.5 5.6", "--points", "5.1=4 5.5=2", "--name", SHEET, "--due", "2027-01-31")
    make(course, "--chapters", "04 05", "--name", TWO)
    return course


def released(course, name, file):
    return nbformat.read(course / "release" / name / file, as_version=4)


def reference(course, name, file):
    """{grade_id: the reference answer} of a released notebook."""
    source = nbformat.read(course / "source" / name / file, as_version=4)
    return {
        cell.metadata.nbgrader.grade_id: "\n".join(
            line for line in cell.source.split("\n") if line.strip() not in (editions.BEGIN, editions.END)
        )
        for cell in source.cells
        if editions.is_solution(cell)
    }


# The students: each function changes the released sheet into what comes back, and returns what it has earned.
# `right` are the reference answers, `course` is where the instructor's files are.


def answered(notebook, answers):
    for cell in notebook.cells:
        name = cell.metadata.get("nbgrader", {}).get("grade_id")
        if name in answers:
            cell.source = answers[name]


def drop(notebook, *grade_ids):
    notebook.cells = [c for c in notebook.cells if c.metadata.get("nbgrader", {}).get("grade_id") not in grade_ids]


def ada_has_all_right(notebook, right, course):
    answered(notebook, right)
    return {CELL, LEFT, WEIGHTS}


def bob_hands_in_nothing(notebook, right, course):
    return set()


def cleo_has_some_right(notebook, right, course):
    answered(notebook, {**right, LEFT: "left = (0.5, 0.5, 0.5)"})
    return {CELL, WEIGHTS}


def dan_rewrites_the_tests(notebook, right, course):
    answered(notebook, {CELL: "def lstm_cell(*given):\n    return given[1], given[2]", WEIGHTS: right[WEIGHTS]})
    for cell in notebook.cells:
        if editions.is_check(cell):
            cell.source = 'print("passed: lstm_cell")'
    return {WEIGHTS}


def eva_changes_points_and_versions(notebook, right, course):
    answered(notebook, {LEFT: right[LEFT]})
    for number, cell in enumerate(notebook.cells):
        if "nbgrader" in cell.metadata:
            cell.metadata.nbgrader.update(points=1000, schema_version=(1, 99, "new")[number % 3], grade=True)
    return {LEFT}


def finn_deletes_a_check(notebook, right, course):
    answered(notebook, right)
    drop(notebook, f"{CELL}-check")
    return {CELL, LEFT, WEIGHTS}


def gus_deletes_an_answer(notebook, right, course):
    answered(notebook, right)
    drop(notebook, CELL)
    return {LEFT, WEIGHTS}


def hana_deletes_nearly_everything(notebook, right, course):
    answered(notebook, right)
    drop(notebook, CELL, LEFT, f"{CELL}-check", f"{LEFT}-check", f"{WEIGHTS}-check", WRITTEN, "setup-05", "install-05")
    return {WEIGHTS}


def ida_retypes_her_answer(notebook, right, course):
    place = next(i for i, c in enumerate(notebook.cells) if c.metadata.get("nbgrader", {}).get("grade_id") == CELL)
    notebook.cells[place] = new_code_cell(right[CELL])
    return {CELL}


def jan_learned_the_visible_check_by_heart(notebook, right, course):
    """Knows every input of the visible check and its answer; the check alone would pass."""
    table, answer = [], solution("05", "gru_weights")

    def recorded(z):
        table.append((z.tolist(), answer(z).tolist()))
        return answer(z)

    ch05.gru_weights.examine(recorded)
    code = (
        f"TABLE = {table!r}\n\n\ndef gru_weights(z):\n    for inputs, outputs in TABLE:\n"
        "        if inputs == z.tolist():\n            return torch.tensor(outputs, dtype=z.dtype)\n"
    )
    names = {}
    exec(f"import torch\n{code}", names)
    ch05.gru_weights.examine(names["gru_weights"])  # so it does pass what students see
    answered(notebook, {**right, WEIGHTS: code})
    return {CELL, LEFT}


def kim_never_comes_to_an_end(notebook, right, course):
    stubborn = (
        "def gru_weights(z):\n    while True:\n        try:\n            while True:\n                pass\n"
        "        except BaseException:\n            pass"
    )
    answered(notebook, {CELL: f"while True:\n    pass\n{right[CELL]}", LEFT: right[LEFT], WEIGHTS: stubborn})
    return {LEFT}


def leo_sleeps(notebook, right, course):
    answered(notebook, {**right, CELL: "import time\n\n\ndef lstm_cell(*given):\n    time.sleep(10**6)"})
    return {LEFT, WEIGHTS}


def mia_reads_what_is_not_hers(notebook, right, course):
    """Her function is right as soon as one single read succeeds."""
    places = [
        course / "gradebook.db",
        course / "nbgrader_config.py",
        course / "source" / SHEET / FIVE,
        course / "key" / SHEET / FIVE,
        course / "submitted" / "ada_has_all_right" / SHEET / FIVE,
        editions.SOURCES / "05_lstm_and_gru.py",
        editions.ROOT / "classroom" / "hidden" / "ch05.py",
        editions.ROOT / "tests" / "helpers" / "solutions.py",
    ]
    thief = (
        "import os, sqlite3\nfound = []\nparent = f'/proc/{os.getppid()}'\n"
        f"for place in {[str(place) for place in places]!r} + [parent + '/environ', parent + '/mem']:\n"
        "    try:\n        with open(place, 'rb') as file:\n            found.append(file.read(1))\n"
        "    except OSError:\n        pass\n"
        f"for place in ('..', '/', {str(course)!r}, parent + '/fd', parent + '/cwd', '/home', '/root'):\n"
        "    try:\n        found.extend(os.listdir(place))\n    except OSError:\n        pass\n"
        f"try:\n    book = sqlite3.connect({str(course / 'gradebook.db')!r})\n"
        "    found += book.execute('select * from grade').fetchall()\n    book.close()\n"
        "except Exception:\n    pass\n"
        f"try:\n    import classroom.hidden\n    found.append(classroom.hidden)\nexcept Exception:\n    pass\n"
        f"{right[CELL]}\n\n\nif not found:\n    del lstm_cell\n"
    )
    names = {}
    exec(f"import torch\n{thief}", names)
    assert "lstm_cell" in names  # where nothing stops her, as here, she would get the points
    answered(notebook, {CELL: thief, WEIGHTS: right[WEIGHTS]})
    return {WEIGHTS}


def ned_patches_the_tools(notebook, right, course):
    patch = (
        "import course_lib.exercises, torch\ntorch.allclose = lambda *a, **k: True\n"
        "torch.equal = lambda *a, **k: True\n"
        "torch.testing.assert_close = lambda *a, **k: None\n"
        "for name in ('close', 'near'):\n    setattr(course_lib.exercises, name, lambda *a, **k: True)\n"
        "try:\n    course_lib.exercises.Check.__call__ = lambda self, answer: print(f'passed: {self.__name__}')\n"
        "    course_lib.exercises.Check._verdict = lambda self, answer: f'passed: {self.__name__}'\n"
        "    course_lib.exercises.CheckFailed = course_lib.exercises.Wrong = None\nexcept Exception:\n    pass\n"
        "try:\n    get_ipython().showtraceback = lambda *a, **k: None\nexcept Exception:\n    pass\n"
        "def lstm_cell(x, h, c, *weights):\n    return h, c"
    )
    answered(notebook, {CELL: patch, WEIGHTS: right[WEIGHTS]})
    return {WEIGHTS}


def olga_pretends_to_be_equal(notebook, right, course):
    """Returns objects that say yes to every question."""
    yes = (
        "class Yes(torch.Tensor):\n    def __eq__(self, other):\n        return True\n\n"
        "    @classmethod\n    def __torch_function__(cls, *a, **k):\n        return True\n\n\n"
        "def lstm_cell(x, h, c, *weights):\n    return h.as_subclass(Yes), c.as_subclass(Yes)"
    )
    answered(notebook, {CELL: yes, LEFT: right[LEFT]})
    return {LEFT}


def pia_leaves(notebook, right, course):
    answered(
        notebook, {CELL: "import os\n\nos._exit(0)", LEFT: f"{right[LEFT]}\nraise SystemExit", WEIGHTS: right[WEIGHTS]}
    )
    return {LEFT, WEIGHTS}


def quin_kills_the_grader(notebook, right, course):
    kill = (
        "import os, signal\n\n\ndef lstm_cell(*given):\n    for process in (os.getppid(), 0):\n"
        "        os.kill(process, signal.SIGKILL)"
    )
    answered(notebook, {**right, CELL: kill})
    return {LEFT, WEIGHTS}


def rosa_wants_all_memory(notebook, right, course):
    answered(
        notebook, {**right, CELL: "hoard = bytearray(2**42)\n\n\ndef lstm_cell(*given):\n    return bytearray(2**41)"}
    )
    return {LEFT, WEIGHTS}


def sam_prints_and_prints(notebook, right, course):
    answered(notebook, {**right, CELL: f"for _ in range(100):\n    print('x' * 10**6)\n{right[CELL]}"})
    return {CELL, LEFT, WEIGHTS}


def tess_defines_no_function(notebook, right, course):
    answered(notebook, {CELL: "def lstm_cell(x: this is no Python", LEFT: "left = object()", WEIGHTS: right[WEIGHTS]})
    return {WEIGHTS}


def uwe_answers_in_numpy(notebook, right, course):
    """NumPy's numbers are floats too, and no pickle of them is to stop the grading."""
    numbers = "import numpy as np\n\nleft = (np.float64(0.336), np.float32(0.42), -np.log(2 ** np.float64(0.01) - 1))"
    answered(notebook, {**right, LEFT: numbers})
    return {CELL, LEFT, WEIGHTS}


def vera_writes_as_in_jupyter(notebook, right, course):
    """Magics, questions, a display, lines that begin with a percent sign but are Python."""
    cell = f"%matplotlib inline\ntorch.chunk?\ndisplay(torch.ones(1))\n!ls\nodd = (7\n    % 4)\n{right[CELL]}"
    answered(notebook, {CELL: cell, LEFT: f"%time {right[LEFT]}", WEIGHTS: f"%%time\n{right[WEIGHTS]}"})
    return {CELL, LEFT, WEIGHTS}


def will_calls_what_is_ready(notebook, right, course):
    ready = (
        "def lstm_cell(x, h, c, weight_ih, weight_hh, bias):\n"
        "    return torch.lstm_cell(x, (h, c), weight_ih, weight_hh, bias, torch.zeros_like(bias))"
    )
    answered(notebook, {**right, CELL: ready})
    return {LEFT, WEIGHTS}


def yves_hands_in_more(notebook, right, course):
    """Files beside the notebook, one of them a link to what only the instructor has."""
    folder = course / "submitted" / "yves_hands_in_more" / SHEET
    folder.mkdir(parents=True)
    (folder / "x.html").symlink_to(course / "nbgrader_config.py")
    (folder / "key").symlink_to(course / "key")
    (folder / "evil.py").write_text("print('I run')", encoding="utf8")
    answered(notebook, {LEFT: right[LEFT]})
    return {LEFT}


STUDENTS = [
    ada_has_all_right,
    bob_hands_in_nothing,
    cleo_has_some_right,
    dan_rewrites_the_tests,
    eva_changes_points_and_versions,
    finn_deletes_a_check,
    gus_deletes_an_answer,
    hana_deletes_nearly_everything,
    ida_retypes_her_answer,
    jan_learned_the_visible_check_by_heart,
    kim_never_comes_to_an_end,
    leo_sleeps,
    mia_reads_what_is_not_hers,
    ned_patches_the_tools,
    olga_pretends_to_be_equal,
    pia_leaves,
    quin_kills_the_grader,
    rosa_wants_all_memory,
    sam_prints_and_prints,
    tess_defines_no_function,
    uwe_answers_in_numpy,
    vera_writes_as_in_jupyter,
    will_calls_what_is_ready,
    yves_hands_in_more,
]


def write(course, student, name, file, notebook):
    path = course / "submitted" / student / name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, path)


# Both chapters: what happens to files rather than to cells.


def whole(course, file):
    notebook = released(course, TWO, file)
    answered(notebook, reference(course, TWO, file))
    return notebook


def hand_in_chapters(course):
    five, four = whole(course, FIVE), whole(course, FOUR)
    for student in ("ada_has_all_right", "uma_renames_a_file", "vic_breaks_a_file", "walt_forgets_a_file"):
        write(course, student, TWO, "05_lstm_and_gru (1).ipynb" if student.startswith("uma") else FIVE, five)
    for student in ("ada_has_all_right", "uma_renames_a_file"):
        write(course, student, TWO, FOUR, four)
    (course / "submitted" / "vic_breaks_a_file" / TWO / FOUR).write_text('{"cells": [', encoding="utf8")
    write(course, "xena_hands_in_something_else", TWO, "essay.ipynb", nbformat.v4.new_notebook())


GRADES = """
import json, sys
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    print(json.dumps({
        assignment.name: {
            submission.student.id: {
                grade.name: [grade.auto_score, grade.max_score, grade.needs_manual_grade]
                for notebook in submission.notebooks for grade in notebook.grades
            }
            for submission in assignment.submissions
        }
        for assignment in book.assignments
    }))
"""
BY_HAND = """
import sys
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    for assignment in book.assignments:
        submission = book.find_submission(assignment.name, "ada_has_all_right")
        for grade in (grade for notebook in submission.notebooks for grade in notebook.grades):
            if grade.needs_manual_grade:
                grade.manual_score, grade.needs_manual_grade = grade.max_score, False
    book.db.commit()
"""


@pytest.fixture(scope="module")
def earned(course):
    """Everybody hands in the sheet; {student: the grade ids that are worth points}."""
    right = reference(course, SHEET, FIVE)
    found = {}
    for student in STUDENTS:
        notebook = released(course, SHEET, FIVE)
        found[student.__name__] = {f"{name}-check" for name in student(notebook, right, course)}
        write(course, student.__name__, SHEET, FIVE, notebook)
    hand_in_chapters(course)
    return found


@pytest.fixture(scope="module")
def said(course, earned):
    """What nbgrader said while it graded everything."""
    config = course / "nbgrader_config.py"
    text = config.read_text(encoding="utf8")
    assert "c.Examine.seconds = 60" in text
    config.write_text(text.replace("c.Examine.seconds = 60", "c.Examine.seconds = 20"), encoding="utf8")
    return {name: run(["nbgrader", "autograde", name], course) for name in (SHEET, TWO)}


@pytest.fixture(scope="module")
def grades(course, said):
    return json.loads(run(["python", "-c", GRADES], course))


# The release.


@pytest.mark.parametrize(("name", "file"), [(SHEET, FIVE), (TWO, FIVE), (TWO, FOUR)])
def test_students_get_no_solution(course, name, file):
    """Fails if a solution, a hidden test or an output is in the folder or the archive that students get."""
    secrets = [secret for path in editions.sources() for secret in leaks.solutions(editions.chapter(path))]
    archive = zipfile.ZipFile(course / "release" / f"{name}.zip")
    assert f"{name}/{file}" in archive.namelist()
    for text in (
        archive.read(f"{name}/{file}").decode(),
        (course / "release" / name / file).read_text(encoding="utf8"),
    ):
        notebook = nbformat.reads(text, as_version=4)
        assert leaks.found_in_notebook(secrets, leaks.text_of(notebook)) == []
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in notebook.cells)
        for mark in ("BEGIN SOLUTION", "HIDDEN", "hidden_test", "classroom"):
            assert mark not in text


@pytest.mark.parametrize("file", [FIVE, FOUR])
def test_a_released_chapter_is_the_students_edition(course, file):
    """Fails if a cell of a chapter that is released differs from what is in notebooks/."""
    theirs = nbformat.read(editions.NOTEBOOKS / file, as_version=4)
    assert [c.source for c in released(course, TWO, file).cells] == [c.source for c in theirs.cells]


def test_a_released_sheet_runs_in_an_empty_folder(course, tmp_path):
    """Fails if a cell of the sheet needs what is not in it."""
    name = str(course / "release" / SHEET / FIVE)
    run(["jupyter", "nbconvert", "--to", "notebook", "--execute", "--output-dir", str(tmp_path), name], tmp_path,
        TQDM_DISABLE="1", IPYTHONDIR=str(tmp_path / "ipython"))  # fmt: skip
    done = nbformat.read(tmp_path / FIVE, as_version=4)
    outputs = [o.text for cell in done.cells if editions.is_check(cell) for o in cell.outputs]
    names = ("lstm_cell", "along_the_cell", "gru_weights")
    assert outputs == [f"not attempted yet: {name} · hints: ch05.{name}.hint(1)\n" for name in names]


def test_the_wheel_holds_nothing_of_the_instructors(tmp_path):
    """Fails if a source, a hidden test, a test or a solution travels with what students install."""
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(tmp_path), str(editions.ROOT)], check=True)
    (wheel,) = map(zipfile.ZipFile, tmp_path.glob("*.whl"))
    assert {name.partition("/")[0].partition("-")[0] for name in wheel.namelist()} == {"course_lib"}
    secrets = [secret for path in editions.sources() for secret in leaks.solutions(editions.chapter(path))]
    for name in (name for name in wheel.namelist() if name.endswith(".py")):
        assert leaks.found_in_package(secrets, wheel.read(name).decode()) == [], name


# The marks.


@pytest.mark.parametrize("student", [student.__name__ for student in STUDENTS])
def test_everybody_gets_what_they_earned(student, earned, grades):
    """Fails if an answer that is right gets no points, or one that is not right gets some."""
    machine = {name: points for name, points in POINTS.items() if name != WRITTEN}
    marks = {name: tuple(grades[SHEET][student][name][:2]) for name in machine}
    assert marks == {name: (points if name in earned[student] else 0, points) for name, points in machine.items()}


def test_nobody_is_left_out(earned, grades, said):
    """Fails if one submission keeps others from being graded, or nbgrader stumbles over one."""
    assert set(grades[SHEET]) == set(earned)
    assert set(grades[TWO]) == {"ada_has_all_right", "uma_renames_a_file", "vic_breaks_a_file", "walt_forgets_a_file",
                                "xena_hands_in_something_else"}  # fmt: skip
    assert "error processing" not in "".join(said.values())


def test_what_was_written_waits_for_a_reader(grades):
    """Fails if a written answer is overlooked, or an untouched one has to be read."""
    assert grades[SHEET]["ada_has_all_right"][WRITTEN] == [None, 3, True]
    assert grades[SHEET]["bob_hands_in_nothing"][WRITTEN] == [0, 3, False]


@pytest.mark.parametrize(
    ("student", "chapters"),
    [("ada_has_all_right", {"04", "05"}), ("uma_renames_a_file", {"04", "05"}), ("vic_breaks_a_file", {"05"}),
     ("walt_forgets_a_file", {"05"}), ("xena_hands_in_something_else", set())],
)  # fmt: skip
def test_files_that_are_broken_missing_or_renamed(student, chapters, grades):
    """Fails if a whole notebook loses its points because of another, or a missing one gets any."""
    for name, (score, worth, by_hand) in grades[TWO][student].items():
        if by_hand:
            assert name in (WRITTEN, "ex04-7-explain")
            assert name[2:4] in chapters
        else:
            assert score == (worth if name[2:4] in chapters else 0), name


def test_only_released_notebooks_are_taken_in(course, finished):
    """Fails if a link or a file of the student's own gets into what is graded or given back."""
    for folder in ("autograded", "feedback"):
        place = course / folder / "yves_hands_in_more" / SHEET
        names = {path.name for path in place.iterdir()}
        assert names <= {FIVE, FIVE.replace(".ipynb", ".html"), "timestamp.txt"}, folder
        assert not any(path.is_symlink() for path in place.iterdir())


def test_each_grading_asks_with_other_numbers(course, finished):
    """Fails if what feedback says of one grading helps in the next."""
    graded = course / "autograded" / "bob_hands_in_nothing" / SHEET / FIVE
    first = nbformat.read(graded, as_version=4).metadata.classroom.seed
    run(["nbgrader", "autograde", SHEET, "--student=bob_hands_in_nothing", "--force"], course)
    assert nbformat.read(graded, as_version=4).metadata.classroom.seed != first


def test_nbgrader_says_what_was_mended(said):
    assert "vic_breaks_a_file: 04_backpropagation_through_time.ipynb is set aside: cannot be read" in said[TWO]
    assert "05_lstm_and_gru (1).ipynb is set aside: its gradable parts are used for 05_lstm_and_gru.ipynb" in said[TWO]
    assert "yves_hands_in_more: evil.py is set aside" in said[SHEET]
    assert "walt_forgets_a_file: 04_backpropagation_through_time.ipynb is missing" in said[TWO]


# Reading by hand, feedback, export.


@pytest.fixture(scope="module")
def finished(course, grades):
    """The written answers of the reference are read, everybody gets feedback, the marks are written out."""
    run(["python", "-c", BY_HAND], course)
    for name in (SHEET, TWO):
        run(["nbgrader", "generate_feedback", name], course)
    run(["nbgrader", "export"], course)
    with (course / "grades.csv").open(encoding="utf8") as file:
        return {(row["assignment"], row["student_id"]): row for row in csv.DictReader(file)}


def test_grades_csv_holds_the_totals(finished, earned):
    """Fails if the reference does not reach the maximum, or a total is not the sum of what was earned."""
    for student, names in earned.items():
        row = finished[SHEET, student]
        total = sum(POINTS[name] for name in names) + (3 if student == "ada_has_all_right" else 0)
        assert (float(row["score"]), float(row["max_score"])) == (total, sum(POINTS.values())), student
        assert row["duedate"].startswith("2027-01-31 23:59:59")
    best = finished[TWO, "ada_has_all_right"]
    assert float(best["score"]) == float(best["max_score"]) == 44


def test_feedback_says_what_was_wrong(course, finished, earned):
    """Fails if a student gets no page, or one without the diagnosis."""
    pages = {
        s: (course / "feedback" / s / SHEET / FIVE).with_suffix(".html").read_text(encoding="utf8") for s in earned
    }
    assert "passed: lstm_cell" in pages["ada_has_all_right"]
    assert "not attempted yet" in pages["bob_hands_in_nothing"]
    assert "not yet" in pages["jan_learned_the_visible_check_by_heart"]
    assert "endless loop" in pages["leo_sleeps"] or "never ends" in pages["leo_sleeps"]
    assert "0.336" not in pages["cleo_has_some_right"], "the right numbers are not told"
    assert not any("wanted" in page.split("in the hidden test:")[1][:300] for page in pages.values()
                   if "in the hidden test:" in page)  # fmt: skip


def test_feedback_does_not_show_the_solutions(course, finished):
    """Fails if what students get back holds a solution that they did not write."""
    secrets = leaks.solutions(editions.chapter(editions.SOURCES / "05_lstm_and_gru.py"))
    graded = course / "autograded" / "bob_hands_in_nothing" / SHEET / FIVE
    notebook = nbformat.read(graded, as_version=4)
    for cell in notebook.cells:
        cell.source = without_hidden(cell.source)
    assert leaks.found_in_notebook(secrets, leaks.text_of(notebook)) == []


def test_released_and_graded_points_are_the_instructors(course, grades):
    """Fails if points chosen at the release are not those that are given."""
    with (course / "key" / SHEET / "points.csv").open(encoding="utf8") as file:
        table = {row["exercise"]: float(row["points"]) for row in csv.DictReader(file)}
    assert (table["5.1"], table["5.5"], table["total"]) == (4, 2, 12)
    assert {name: worth for name, (_, worth, _) in grades[SHEET]["ada_has_all_right"].items()} == POINTS


def test_the_name_of_a_graded_assignment_is_taken(course, grades):
    """Fails if FORCE=1 would overwrite what students have been marked for."""
    with pytest.raises(ValueError, match="are graded already"):
        release.refuse_to_overwrite(course, SHEET, force=True)
