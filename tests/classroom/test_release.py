"""Making an assignment: exercises and points, sheets, hidden tests, and no solution in anything that students get."""

import csv
import json
import re
import sys
import zipfile

import nbformat
import pytest

from classroom import exercises, release, sheets
from tests.helpers import leaks
from tools.notebooks import editions

CHAPTERS = [path.stem[:2] for path in editions.sources()]


@pytest.fixture(scope="module")
def chapters():
    """Every chapter, with solutions."""
    return {path.stem[:2]: editions.chapter(path) for path in editions.sources()}


# Exercises and points.


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_graded_cell_belongs_to_one_exercise(chapter, chapters):
    """Fails if an exercise is overlooked, or a cell is counted twice or for the wrong exercise."""
    found = exercises.exercises(chapters[chapter], chapter)
    graded = {c.metadata.nbgrader.grade_id: c.metadata.nbgrader.points
              for c in chapters[chapter].cells if c.metadata.get("nbgrader", {}).get("grade")}  # fmt: skip
    assert {name: worth for exercise in found for name, worth in exercise.points.items()} == graded
    for exercise in found:
        number = exercise.number.replace(".", "-")
        assert all(name.startswith((f"ex{number}-", f"ex0{number}-")) for name in exercise.points)
    assert sum(len(exercise.cells) for exercise in found) == len({i for e in found for i in e.cells})


def test_an_exercise_is_described_by_its_text():
    third = exercises.of_chapter("07")[2]
    assert (third.number, third.title, third.chapter) == ("7.3", "Split and merge heads", "07")
    assert (third.difficulty, third.minutes, third.by_hand, third.total) == (2, 15, False, 4)
    assert set(third.points) == {"ex07-3-split-check", "ex07-3-merge-check"}
    assert exercises.of_chapter("05")[5].by_hand


def test_an_exercise_without_its_line_is_refused(chapters):
    """Fails if an exercise without difficulty or minutes gets into a table as it is."""
    bare = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("### Exercise 5.1 · One")])
    with pytest.raises(ValueError, match=r"exercise 5\.1 needs a graded cell"):
        exercises.exercises(bare, "05")


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ((["99"], []), "no chapter 99; there are 01, 02"),
        (([], ["5.99"]), r"no exercise 5\.99; chapter 05 has 5\.1, 5\.2"),
        (([], ["42.1"]), "no chapter 42"),
        (([], ["lstm"]), r"got 'lstm'; an exercise is named like 5\.1"),
        (([], []), "give either chapters"),
        ((["05"], ["5.1"]), "give either chapters"),
    ],
)
def test_what_does_not_exist_is_refused(chosen, message):
    with pytest.raises(ValueError, match=message):
        release.assigned(*chosen)


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ("5.1=many", r"got '5\.1=many'; points are given like 5\.1=3"),
        ("5.1=-2", "points are given like"),
        ("5.1", "points are given like"),
        ("=3", "points are given like"),
        ("5.1=nan", "points are given like"),
        ("7.2=3", r"points for 7\.2, which is not in the assignment"),
    ],
)
def test_bad_points_are_refused(points, message):
    with pytest.raises(ValueError, match=message):
        release.assigned([], ["5.1"], points)


def test_points_of_an_exercise_with_two_checks_are_shared_out():
    """Fails if both checks get all points, or other exercises change."""
    split, other = release.assigned([], ["7.4", "7.3"], "7.3=5")
    assert split.points == {"ex07-3-split-check": 2.5, "ex07-3-merge-check": 2.5}
    assert other.total == 2


def test_chapters_may_be_named_without_the_zero_and_come_in_order():
    assert [e.number for e in release.assigned(["5", "04"], [])][::7] == ["4.1", "5.1"]


def test_the_points_table_adds_up(tmp_path):
    """Fails if the sums are wrong, or points.csv and points.md disagree."""
    release.write_points(tmp_path, release.assigned([], ["5.1", "5.6"], "5.6=4.5"))
    with (tmp_path / "points.csv").open(encoding="utf8") as file:
        head, first, second, total = csv.reader(file)
    assert head == ["exercise", "title", "marked by", "points", "minutes", "difficulty", "chapter"]
    assert (first[2], second[2]) == ("machine", "hand")
    assert total[3:5] == ["7.5", str(int(first[4]) + int(second[4]))]
    assert len((tmp_path / "points.md").read_text(encoding="utf8").splitlines()) == 5


def test_instructors_md_lists_every_exercise():
    """Fails if an exercise's points, time or title changed since: python -m classroom.exercises."""
    text = exercises.INSTRUCTORS.read_text(encoding="utf8")
    assert exercises.filled(text) == text
    with pytest.raises(ValueError, match="must hold the lines"):
        exercises.filled("no marks")


# Sheets.


@pytest.mark.parametrize(
    ("code", "defined", "needed"),
    [
        ("x = x + 1", {"x"}, {"x"}),
        ("y = [a for a in b]", {"y"}, {"b"}),
        ("for i in range(n):\n    total = total + f(i)", {"i", "total"}, {"n", "f"}),
        ("def f(x, k=K):\n    y = x\n    return g(y)", {"f"}, {"K", "g"}),
        ("def f():\n    return later\nlater = 3", {"f", "later"}, set()),
        ("class A(B):\n    c = D\n    def m(self):\n        return E", {"A"}, {"B", "D", "E"}),
        ("import a.b as c\nfrom d import e\n%pip install f", {"c", "e"}, set()),
        ("with open(p) as q:\n    print(q, r)", {"q"}, {"p", "r"}),
        ("f = lambda x: x + z", {"f"}, {"z"}),
        ("print(f'{v:{w}}')", set(), {"v", "w"}),
    ],
)
def test_names_that_code_defines_and_needs(code, defined, needed):
    assert sheets.defined_and_needed(code) == (defined, needed)


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_exercise_finds_what_it_needs_outside_the_other_exercises(chapter, chapters):
    """Fails if a sheet would lack a name, or would need another exercise's answer."""
    found = exercises.exercises(chapters[chapter], chapter)
    answers = {i for e in found for i in e.cells if editions.is_solution(chapters[chapter].cells[i])}
    for exercise in found:
        assert not sheets.cells_before(chapters[chapter], exercise) & answers, exercise.number


def test_a_name_that_nobody_defines_is_an_error(chapters):
    broken = nbformat.from_dict(json.loads(json.dumps(chapters["05"])))
    exercise = exercises.exercises(broken, "05")[0]
    broken.cells[exercise.cells[1]].source += "\nnowhere_defined()"
    with pytest.raises(ValueError, match="uses nowhere_defined, which no cell before it defines"):
        sheets.cells_before(broken, exercise)


def test_a_sheet_holds_the_chosen_exercises_and_no_more(chapters):
    """Fails if another exercise, or a cell that is not needed, comes along."""
    notebook = release.source_notebook("05", exercises.chosen(["5.2", "5.7"]), whole=False)
    headings = [c.source.partition("\n")[0] for c in notebook.cells if c.source.startswith("#") and c.id != "setup-05"]
    assert headings[0] == "# Exercises of chapter 05 · LSTM and GRU"
    assert [h for h in headings if h.startswith("###")] == [
        "### Exercise 5.2 · Derive: what is left of an old cell",
        "### Exercise 5.7 · Assemble: an LSTM that reads padded reviews",
    ]
    assert 8 <= len(notebook.cells) < 20
    assert len({cell.id for cell in notebook.cells}) == len(notebook.cells)
    nbformat.validate(notebook)


def test_text_before_a_heading_stays_in_the_chapter():
    """Exercise 1.6 begins in the middle of a cell."""
    notebook = release.source_notebook("01", exercises.chosen(["1.6"]), whole=False)
    assert any(cell.source.startswith("### Exercise 1.6") for cell in notebook.cells)


def test_a_cell_that_two_exercises_need_comes_once():
    """3.3 and 3.4 need the same cell of the chapter."""
    texts = [cell.source for cell in release.source_notebook("03", exercises.chosen(["3.3", "3.4"]), False).cells]
    assert texts.count(sheets.FROM_THE_CHAPTER) == 1
    assert len(set(texts)) == len(texts)


# What nbgrader is given.


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_check_gets_its_hidden_test_and_nothing_else_changes(chapter, chapters):
    """Fails if a check lacks its block, if the block names another answer, or if another cell's text changes."""
    notebook = release.source_notebook(chapter, exercises.of_chapter(chapter), whole=True)
    for cell, before in zip(notebook.cells, chapters[chapter].cells, strict=True):
        if not editions.is_check(cell):
            assert cell.source == before.source
            continue
        block = cell.source.removeprefix(before.source)
        assert block.startswith("\n### BEGIN HIDDEN TESTS\n")
        assert block.endswith("\n### END HIDDEN TESTS")
        (answer,) = re.findall(rf'hidden_test\("{cell.metadata.nbgrader.grade_id}", (\w+)\)', block)
        assert re.search(rf"\b{answer}\b", before.source)


def test_setup_cells_are_locked():
    """Fails if nbgrader would let a student's own imports stand."""
    notebook = release.source_notebook("05", exercises.chosen(["5.1"]), whole=False)
    marks = [notebook.cells[i].metadata.nbgrader for i in sheets.opening(notebook)]
    assert [(m.grade_id, m.locked, m.grade, m.solution) for m in marks] == [
        ("install-05", True, False, False),
        ("setup-05", True, False, False),
    ]


def test_a_check_without_hidden_test_is_refused(monkeypatch):
    monkeypatch.setattr(release.hidden, "tests", lambda chapter: {})
    with pytest.raises(ValueError, match=r"ex05-1-lstm-cell-check has no hidden test in classroom/hidden/ch05\.py"):
        release.hidden_block("ex05-1-lstm-cell-check")


def test_the_key_has_solutions_outputs_and_passed_checks():
    """Fails if the instructor's key lacks a solution or an expected answer."""
    notebook = release.key_notebook("05", exercises.chosen(["5.1", "5.6"]), whole=False)
    text = "\n".join(cell.source for cell in notebook.cells)
    assert "NotImplementedError" not in text
    assert "Write your answer here" not in text
    outputs = [o.get("text", "") for cell in notebook.cells for o in cell.get("outputs", [])]
    assert "passed: lstm_cell\n" in outputs


def test_a_key_is_not_made_from_an_old_notebook(monkeypatch):
    monkeypatch.setattr(release.guards, "stale", lambda path, notebook: ["cell 3 is old; run make notebooks"])
    with pytest.raises(ValueError, match="run make notebooks"):
        release.key_notebook("05", [], whole=True)


# The course folder; nbgrader itself is left to the slow tests.


@pytest.fixture
def course(tmp_path, monkeypatch):
    """A course with homework1 in it; nbgrader's commands are only written down."""
    commands = []
    monkeypatch.setattr(release, "nbgrader", lambda course, *words: commands.append(words) or pretend(course, words))
    release.main(["--exercises", "5.1", "--course", str(tmp_path), "--due", "2027-01-31"])
    assert commands == [
        ("generate_assignment", "homework1", "--force"),
        ("db", "assignment", "add", "homework1", "--duedate=2027-01-31 23:59:59 UTC"),
    ]
    return tmp_path


def pretend(course, words):
    if words[0] == "generate_assignment":
        (course / "release" / words[1]).mkdir(parents=True, exist_ok=True)
        (course / "release" / words[1] / "a.ipynb").write_text("{}")


def test_a_release_has_its_parts(course):
    files = {path.relative_to(course).as_posix() for path in course.rglob("*") if path.is_file()}
    assert files == {
        "nbgrader_config.py",
        "policy.toml",
        "source/homework1/05_lstm_and_gru.ipynb",
        "key/homework1/05_lstm_and_gru.ipynb",
        "key/homework1/points.csv",
        "key/homework1/points.md",
        "release/homework1/a.ipynb",
        "release/homework1.zip",
    }
    assert zipfile.ZipFile(course / "release" / "homework1.zip").namelist() == ["homework1/", "homework1/a.ipynb"]


def refused(capsys, *words):
    with pytest.raises(SystemExit):
        release.main(words)
    return capsys.readouterr().err


def test_an_assignment_is_not_made_twice_without_force(course, capsys):
    """Fails if a released assignment is overwritten, or FORCE=1 does not work."""
    again = ["--exercises", "5.2", "--course", str(course)]
    assert "homework1 exists already" in (said := refused(capsys, *again))
    assert "FORCE=1" in said
    release.main([*again, "--force"])
    assert "5.2" in (course / "key" / "homework1" / "points.md").read_text(encoding="utf8")


def test_graded_work_is_never_overwritten(course, capsys):
    (course / "autograded" / "ada" / "homework1").mkdir(parents=True)
    said = refused(capsys, "--exercises", "5.2", "--course", str(course), "--force")
    assert "answers of homework1 are graded already" in said
    assert "nbgrader db assignment remove homework1" in said


def test_configuration_and_policy_are_written_once_and_hold_no_seed(course):
    """Fails if an instructor's changes are lost, or a file tells which numbers the hidden tests will ask."""
    for name in ("nbgrader_config.py", "policy.toml"):
        path = course / name
        assert "c.Examine.seed = " not in path.read_text(encoding="utf8").replace("# c.Examine.seed = 123", "")
        path.write_text("# mine", encoding="utf8")
        release.configure(course)
        assert path.read_text(encoding="utf8") == "# mine"


def test_a_configuration_that_cannot_be_loaded_stops_nbgrader(course, monkeypatch):
    """Fails if nbgrader would go on with its own steps, which run students' code without any fence."""
    monkeypatch.setitem(sys.modules, "nbgrader", None)
    with pytest.raises(SystemExit, match="is the environment of `make classroom` active"):
        exec((course / "nbgrader_config.py").read_text(encoding="utf8"), {})


@pytest.mark.parametrize("name", ["", "a b", "../up", "-x", "a+b"])
def test_a_name_that_is_no_folder_is_refused(name, tmp_path, capsys):
    assert "wanted letters, digits" in refused(
        capsys, "--exercises", "5.1", "--course", str(tmp_path), f"--name={name}"
    )


def test_a_bad_date_is_refused(tmp_path, capsys):
    said = refused(capsys, "--exercises", "5.1", "--course", str(tmp_path), "--due", "31 January")
    assert "a date is written like 2027-01-31" in said


@pytest.mark.parametrize(
    ("text", "utc"),
    [("2027-01-31", "2027-01-31 23:59:59 UTC"), ("2027-01-31 18:00", "2027-01-31 18:00:00 UTC"),
     ("2027-01-31 18:00+02:00", "2027-01-31 16:00:00 UTC")],
)  # fmt: skip
def test_due_dates_are_in_utc(text, utc):
    assert release.due(text) == utc


def test_what_nbgrader_says_is_shown_when_it_fails(tmp_path, monkeypatch):
    program = tmp_path / "nbgrader"
    program.write_text("#!/bin/sh\necho no such luck; exit 1\n")
    program.chmod(0o755)
    monkeypatch.setattr(release.sys, "executable", str(tmp_path / "python"))
    with pytest.raises(RuntimeError, match="nbgrader export: no such luck"):
        release.nbgrader(tmp_path, "export")


# Leaks; tests/leaks.py says what counts as one.


@pytest.fixture(scope="module")
def secrets(chapters):
    return [secret for chapter in chapters.values() for secret in leaks.solutions(chapter)]


@pytest.mark.parametrize("path", sorted(editions.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_no_solution_in_a_students_notebook(path, secrets):
    """Fails if a part of any chapter's solutions stands in what students open, in a cell or in an output."""
    text = leaks.text_of(nbformat.read(path, as_version=4))
    assert leaks.found_in_notebook(secrets, text) == []
    assert "SOLUTION" not in text
    assert "HIDDEN" not in text


def test_no_solution_in_the_package(secrets):
    """Fails if a check, or any other file that students install, holds a solution."""
    found = {
        path.name: names
        for path in sorted(editions.ROOT.glob("course_lib/**/*.py"))
        if (names := leaks.found_in_package(secrets, path.read_text(encoding="utf8")))
    }
    assert found == {}


def test_the_search_finds_what_it_should(chapters):
    """Fails if the search is blind: the solutions are found in the instructor's edition."""
    secrets, text = leaks.solutions(chapters["05"]), leaks.text_of(chapters["05"])
    found = leaks.found_in_notebook(secrets, text)
    assert {"ex05-1-lstm-cell", "ex05-3-gru-cell", "ex05-6-explain", "ex05-7-review-classifier"} <= set(found)
    assert {"ex05-1-lstm-cell", "ex05-6-explain"} <= set(leaks.found_in_package(secrets, text))
    assert leaks.found_in_package(secrets, "x") == []
