"""Make an assignment: `make release CHAPTERS="05 07"`, or `make release EXERCISES="5.1 5.4 7.2"`.

The result is a course folder as nbgrader wants it, by default grading/ (not in build/, which `make clean` removes):

    nbgrader_config.py        how nbgrader grades here; written once, an instructor's changes stay
    source/NAME/*.ipynb       with solutions and hidden tests: the instructor's
    release/NAME/*.ipynb      what students get; release/NAME.zip holds the same
    key/NAME/                 solutions with outputs, and the points: the instructor's
    gradebook.db              nbgrader's

INSTRUCTORS.md says how it goes on.
"""

import argparse
import csv
import datetime
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat

from classroom import hidden
from classroom.exercises import COURSE, as_markdown, chosen, of_chapter, rows, source_of, with_points
from classroom.policy import write_policy
from classroom.sheets import cells_before, opening, sheet
from tools.notebooks import editions, guards

CONFIG = """\
# How nbgrader makes and grades the assignments of this course: written by `make release`, yours to change.
import warnings
from pathlib import Path

try:
    from nbgrader import preprocessors as p
    from sqlalchemy.exc import SAWarning

    from classroom.collect import take_in
    from classroom.handout import Stubs
    from classroom.preprocessors import Examine, Overwrite, Restore
except ImportError as error:  # nbgrader would go on without this file, and run students' code as its own
    raise SystemExit(f"nbgrader_config.py: {error}; is the environment of `make classroom` active?") from error

warnings.simplefilter("ignore", SAWarning)  # of nbgrader's own book-keeping
c = get_config()
c.CourseDirectory.course_id = "sequence-models"
c.CourseDirectory.root = str(Path(__file__).parent)
c.Exchange.root = str(Path(__file__).parent / "exchange")  # not used; a place that exists keeps nbgrader quiet

# Handing out: the students' stubs in the place of the solutions, no outputs, no hidden tests.
c.GenerateAssignment.preprocessors = [
    p.LockCells, Stubs, p.ClearOutput, p.CheckCellMetadata, p.ComputeChecksums, p.SaveCells,
    p.ClearHiddenTests, p.ComputeChecksums, p.CheckCellMetadata,
]

# Grading: first the notebook as it was released, with the student's answers in it; then a separate process.
c.Autograde.pre_convert_hook = take_in
c.Autograde.sanitize_preprocessors = [
    Restore, p.ClearOutput, p.DeduplicateIds, p.OverwriteKernelspec, Overwrite, p.CheckCellMetadata,
]
c.Autograde.autograde_preprocessors = [
    Examine, p.LimitOutput, p.SaveAutoGrades, p.AssignLatePenalties, p.CheckCellMetadata,
]
c.Examine.seconds = 60  # elapsed time allowed for one cell or one question; computing time: ten
c.Examine.budget = 300  # elapsed time allowed for one notebook
# The hidden tests use new numbers in each grading; the notebook in autograded/ records the seed. To repeat a grading:
# c.Examine.seed = 123

# What students wrote shows in the formgrader and in feedback, and never acts there.
c.HTMLExporter.filters = {
    "markdown2html": "classroom.pages.markdown2html", "highlight_code": "classroom.pages.highlight_code",
}
c.HTMLExporter.preprocessors = ["classroom.pages.Names"]
"""
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


def assigned(chapters, numbers, points=""):
    """Return the exercises of an assignment.

    Args:
        chapters: such as ["05", "07"], for all their exercises; or [].
        numbers: of exercises, such as ["5.1", "7.2"]; or [].
        points: such as "5.1=5"; the others keep those of the course.

    Returns:
        list of Exercise, in the order of the chapters.

    Raises:
        ValueError: if both or neither are given, or one of them does not exist.
    """
    if bool(chapters) == bool(numbers):
        raise ValueError('give either chapters, CHAPTERS="05 07", or exercises, EXERCISES="5.1 7.2"')
    if chapters:
        found = [exercise for chapter in sorted({c.zfill(2) for c in chapters}) for exercise in of_chapter(chapter)]
    else:
        found = chosen(numbers)
    return with_points(found, points)


def source_notebook(chapter, wanted, whole):
    """Return what nbgrader makes an assignment from: solutions between marks, hidden tests, locked setup cells.

    Args:
        chapter: such as "05".
        wanted: the Exercises of this chapter that are assigned.
        whole: whether the whole chapter is, or a sheet.

    Returns:
        A notebook.
    """
    full = editions.chapter(source_of(chapter))
    edition = full if whole else sheet(full, wanted, _needed(full, wanted))
    give_points(edition, wanted)
    for cell in edition.cells:
        if editions.is_check(cell):
            cell.source += f"\n{hidden_block(cell.metadata.nbgrader.grade_id)}"
    for number in opening(edition):
        cell = edition.cells[number]
        cell.metadata.nbgrader = {"grade": False, "grade_id": f"{cell.metadata.tags[0]}-{chapter}", "locked": True,
                                  "schema_version": 3, "solution": False, "task": False}  # fmt: skip
    return edition


def give_points(edition, wanted):
    """Write the points of the Exercises into a notebook's graded cells."""
    points = {grade_id: worth for exercise in wanted for grade_id, worth in exercise.points.items()}
    for cell in edition.cells:
        if cell.metadata.get("nbgrader", {}).get("grade"):
            cell.metadata.nbgrader.points = points[cell.metadata.nbgrader.grade_id]


def _needed(full, wanted):
    return {exercise.number: cells_before(full, exercise) for exercise in wanted}


def hidden_block(grade_id):
    """Return the lines that nbgrader hides from students: they put the answer to its hidden test.

    Raises:
        ValueError: if the exercise has no hidden test.
    """
    tests = hidden.tests(grade_id[2:4])
    if grade_id not in tests:
        raise ValueError(f"{grade_id} has no hidden test in classroom/hidden/ch{grade_id[2:4]}.py")
    return (
        "### BEGIN HIDDEN TESTS\n"
        "from classroom.hidden import hidden_test\n\n"
        f'hidden_test("{grade_id}", {tests[grade_id].answer})\n'
        "### END HIDDEN TESTS"
    )


def key_notebook(chapter, wanted, whole):
    """Return the answer key: solutions and the outputs that they give, every check passed.

    Raises:
        ValueError: if the stored notebook is older than its source.
    """
    path = editions.NOTEBOOKS / f"{source_of(chapter).stem}.ipynb"
    stored = nbformat.read(path, as_version=4)
    if old := guards.stale(path, stored):
        raise ValueError(f"{path.name}: {old[0]}")
    full = editions.chapter(source_of(chapter))
    edition = editions.instructor(full, stored)
    edition = edition if whole else sheet(edition, wanted, _needed(full, wanted))
    give_points(edition, wanted)
    return edition


def due(text):
    """Return a due date as nbgrader reads it, in UTC.

    Raises:
        ValueError: if it is not written like 2027-01-31 or "2027-01-31 18:00".

    Example:
        >>> due("2027-01-31")
        '2027-01-31 23:59:59 UTC'
    """
    try:
        when = datetime.datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f'got DUE={text!r}; a date is written like 2027-01-31 or "2027-01-31 18:00"') from None
    if len(text) == len("2027-01-31"):
        when = when.replace(hour=23, minute=59, second=59)
    if when.tzinfo is not None:
        when = when.astimezone(datetime.UTC)
    return f"{when:%Y-%m-%d %H:%M:%S} UTC"


def release(course, name, wanted, whole, duedate="", force=False):
    """Make the assignment in the course folder.

    Args:
        course: the folder.
        name: of the assignment.
        wanted: list of Exercise.
        whole: whether whole chapters are released.
        duedate: as `due` returns it, or "".
        force: make an assignment anew that exists.

    Raises:
        ValueError: if it exists and `force` is not given, or somebody's answers are graded already.
        RuntimeError: if nbgrader fails; the message is what it said.
    """
    course = Path(course).resolve()
    refuse_to_overwrite(course, name, force)
    chapters = sorted({exercise.chapter for exercise in wanted})
    made = {"source": {}, "key": {}}
    for chapter in chapters:
        own = [exercise for exercise in wanted if exercise.chapter == chapter]
        made["source"][source_of(chapter).stem] = source_notebook(chapter, own, whole)
        made["key"][source_of(chapter).stem] = key_notebook(chapter, own, whole)
    configure(course)
    for kind, notebooks in made.items():
        shutil.rmtree(course / kind / name, ignore_errors=True)
        (course / kind / name).mkdir(parents=True)
        for stem, notebook in notebooks.items():
            nbformat.write(notebook, course / kind / name / f"{stem}.ipynb")
    write_points(course / "key" / name, wanted)
    nbgrader(course, "generate_assignment", name, "--force")
    if duedate:
        nbgrader(course, "db", "assignment", "add", name, f"--duedate={duedate}")
    shutil.make_archive(course / "release" / name, "zip", course / "release", name)


def refuse_to_overwrite(course, name, force):
    """Raise ValueError if the name is no name, or making the assignment would lose work."""
    if not NAME.fullmatch(name):
        raise ValueError(f"got NAME={name!r}; wanted letters, digits, - and _, such as homework1")
    if any(course.glob(f"autograded/*/{name}")):
        raise ValueError(
            f"answers of {name} are graded already in {course}; give another NAME, or remove what was graded first: "
            f"nbgrader db assignment remove {name} --force, and the folders autograded/*/{name}"
        )
    if (course / "source" / name).exists() and not force:
        raise ValueError(f"{name} exists already in {course}; give another NAME, or FORCE=1 to make it anew")


def configure(course):
    """Write nbgrader_config.py and policy.toml into a course folder that has none."""
    course.mkdir(parents=True, exist_ok=True)
    path = course / "nbgrader_config.py"
    if not path.exists():
        path.write_text(CONFIG, encoding="utf8")
    write_policy(course)
    (course / "exchange").mkdir(exist_ok=True)


def write_points(folder, wanted):
    """Write the points table as points.csv and points.md."""
    table = rows(wanted)
    with (folder / "points.csv").open("w", newline="", encoding="utf8") as file:
        csv.writer(file).writerows(table)
    (folder / "points.md").write_text(as_markdown(table) + "\n", encoding="utf8")


def nbgrader(course, *arguments):
    """Run an nbgrader command in the course folder.

    Raises:
        RuntimeError: if it fails; the message is what it said.
    """
    programs = Path(sys.executable).parent  # nbgrader calls `alembic` by its name
    environment = {**os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [programs / "nbgrader", *arguments], cwd=course, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"nbgrader {' '.join(arguments)}: {done.stdout}{done.stderr}")


def main(arguments=None):
    """Make an assignment from the command line's words."""
    parser = argparse.ArgumentParser(prog="make release", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--chapters", default="", help='whole chapters, "05 07"')
    parser.add_argument("--exercises", default="", help='chosen exercises, "5.1 7.2"')
    parser.add_argument("--points", default="", help='"5.1=5 7.2=10"')
    parser.add_argument("--name", default="homework1", help="of the assignment")
    parser.add_argument("--due", default="", help='"2027-01-31 18:00", in UTC')
    parser.add_argument("--course", type=Path, default=COURSE, help="folder of the course")
    parser.add_argument("--force", action="store_true", help="make an assignment anew that exists")
    options = parser.parse_args(arguments)
    try:
        wanted = assigned(options.chapters.split(), options.exercises.split(), options.points)
        release(options.course, options.name, wanted, bool(options.chapters.split()),
                options.due and due(options.due), options.force)  # fmt: skip
    except ValueError as error:
        parser.error(str(error))
    except RuntimeError as error:
        parser.exit(1, f"{error}\n")
    print(as_markdown(rows(wanted)))
    if "/OWNER/" in editions.address():
        print(
            "\nThis will not work in Colab: pyproject.toml does not say yet where your course is (see INSTRUCTORS.md)"
        )
    print(f"\nFor students: {options.course}/release/{options.name}.zip; for you: {options.course}/key/{options.name}/")


if __name__ == "__main__":
    sys.exit(main())
