"""The marks of an assignment: `make grades NAME=homework1`, for the instructor, for Canvas and for Moodle.

Points come from nbgrader's gradebook, and their sum is what `nbgrader export` calls raw_score. Deadlines, free days
and penalties are `policy.toml`'s; times come from the gradebook, or else from what was collected. A written answer
that nobody has read has no points yet, not 0: it is named, and its student has no final points until it is read, so
that no export holds a mark that is not one. Whatever is odd about one student is said and stops no other.
"""

import argparse
import contextlib
import csv
import dataclasses
import datetime
import os
import re
import sys
from pathlib import Path

from classroom import exports
from classroom.exercises import COURSE
from classroom.exports import EXCUSED, safe
from classroom.policy import FILE, check_names, free_days, instant, read_policy, write_policy

PLATFORMS = ("canvas", "moodle")
UNREADABLE = "handed in, but no readable notebook"
NOBODY = "nobody"  # in collected/*.csv: files without a student


@dataclasses.dataclass
class Submission:
    """What the gradebook says of one student's submission.

    Args:
        handed_in: instant, or None.
        extension: timedelta granted in nbgrader, or None.
        scores: {grade_id: points, or None where nobody has given any}; of other assignments it may be empty.
        again: grade_ids that a person has marked before they were graded again.
        penalty: that nbgrader itself would take.
    """

    handed_in: datetime.datetime | None = None
    extension: datetime.timedelta | None = None
    scores: dict = dataclasses.field(default_factory=dict)
    again: list = dataclasses.field(default_factory=list)
    penalty: float = 0.0


@dataclasses.dataclass
class Book:
    """What the gradebook says.

    Args:
        due: {assignment: instant or None} of all assignments.
        cells: {grade_id: (most points, whether a person marks it)} of the one that is marked.
        students: {id: {"last_name", "first_name", "email", "canvas"}}.
        submissions: {(assignment, student): Submission} of all assignments.
    """

    due: dict
    cells: dict
    students: dict
    submissions: dict


@dataclasses.dataclass
class Mark:
    """A line of the marks: one student.

    `final` is None where it is not known yet, and "EX" for an excused student. What `odd` says is said on the screen
    too, what `notes` say only in the file.
    """

    student: str
    name: str = ""
    last_name: str = ""
    first_name: str = ""
    email: str = ""
    ids: dict = dataclasses.field(default_factory=dict)
    points: float = 0.0
    max_points: float = 0.0
    exercises: dict = dataclasses.field(default_factory=dict)
    handed_in: datetime.datetime | None = None
    due: datetime.datetime | None = None
    days_late: int = 0
    free_days: int = 0
    penalty: float = 0.0
    final: float | str | None = None
    unread: list = dataclasses.field(default_factory=list)
    notes: list = dataclasses.field(default_factory=list)
    odd: list = dataclasses.field(default_factory=list)
    ungraded: bool = False


def read_gradebook(path, name):
    """Return the Book of an assignment, read with nbgrader.

    Raises:
        ValueError: if there is no gradebook, it cannot be read, or it has no such assignment.
    """
    from nbgrader.api import Gradebook  # only in the environment of `make classroom`
    from sqlalchemy.exc import SQLAlchemyError

    if not path.is_file():
        raise ValueError(f"no {path}; wanted a course folder in which `make release` has made an assignment")
    try:
        with Gradebook(f"sqlite:///{path}") as gradebook:
            return _book(gradebook, name)
    except SQLAlchemyError as error:
        raise ValueError(f"{path} cannot be read as nbgrader's gradebook: {error}") from None


def _book(gradebook, name):
    due = {assignment.name: _utc(assignment.duedate) for assignment in gradebook.assignments}
    if name not in due:
        raise ValueError(f"no assignment {name!r} in the gradebook; there are {', '.join(sorted(due)) or 'none'}")
    notebooks = gradebook.find_assignment(name).notebooks
    by_hand = {cell.name for notebook in notebooks for cell in notebook.solution_cells}
    cells = {
        cell.name: (cell.max_score, cell.name in by_hand) for notebook in notebooks for cell in notebook.grade_cells
    }
    students = {
        student.id: {"last_name": student.last_name or "", "first_name": student.first_name or "",
                     "email": student.email or "", "canvas": student.lms_user_id or ""}
        for student in gradebook.students
    }  # fmt: skip
    submissions = {
        (assignment.name, submission.student.id): _submission(submission, assignment.name == name)
        for assignment in gradebook.assignments
        for submission in assignment.submissions
    }
    return Book(due, cells, students, submissions)


def _submission(submission, whole):
    if not whole:
        return Submission(_utc(submission.timestamp), submission.extension)
    grades = [grade for notebook in submission.notebooks for grade in notebook.grades]
    known = {grade.name: None if grade.manual_score is None and grade.auto_score is None else grade.score
             for grade in grades}  # fmt: skip
    again = [g.name for g in grades if g.needs_manual_grade and g.manual_score is not None]
    return Submission(
        _utc(submission.timestamp), submission.extension, known, again, submission.late_submission_penalty
    )


def _utc(naive):
    """The gradebook's times are in UTC and do not say so."""
    return naive and naive.replace(tzinfo=datetime.UTC)


def roster(course, name, book, collected):
    """Return everybody of whom anything is known.

    Args:
        course: the folder; its students.csv may be missing.
        name: of the assignment: Moodle numbers its participants anew in each.
        book: a Book.
        collected: {assignment: list of dict}, as `read_collected` returns it.

    Returns:
        {id: Mark} with the names, email and numbers filled in; first what the gradebook knows.
    """
    people = {student: Mark(student, **{key: about[key] for key in ("last_name", "first_name", "email")},
                            ids={"canvas": about["canvas"]} if about["canvas"] else {})
              for student, about in book.students.items()}  # fmt: skip
    for line in _lines(course / "students.csv", ["id"]):
        if student := line["id"].strip():
            mark = people.setdefault(student, Mark(student))
            for key in ("last_name", "first_name", "email"):
                setattr(mark, key, getattr(mark, key) or (line.get(key) or "").strip())
            if number := (line.get("canvas_id") or "").strip():
                mark.ids["canvas"] = number
    for assignment, lines in collected.items():
        for line in lines:
            mark = people.setdefault(line["student"], Mark(line["student"]))
            mark.name = mark.name or (line.get("name") or "").removeprefix("'")
            platform, number = (line.get("platform") or "").casefold(), line.get("platform_id") or ""
            if number.isdigit() and (platform == "canvas" or assignment == name):
                mark.ids.setdefault(platform, number)
    for folder in course.glob("submitted/*/*/"):
        people.setdefault(folder.parent.name, Mark(folder.parent.name))
    for mark in people.values():
        mark.name = " ".join(filter(None, (mark.first_name, mark.last_name))) or mark.name
    return dict(sorted(people.items()))


def read_collected(course):
    """Return what the collecting wrote down: {assignment: its lines that belong to a student}."""
    return {path.stem: [line for line in _lines(path, ["student"]) if line["student"] not in ("", NOBODY)]
            for path in sorted(course.glob("collected/*.csv"))}  # fmt: skip


def _lines(path, wanted):
    """The lines of a CSV file as dicts; none if there is no file."""
    if not path.exists():
        return []
    rows, _ = exports.read_table(path, otherwise="cp1252")  # as Excel may write it
    rows[0] = [title.strip().lower() for title in rows[0]]
    if missing := set(wanted) - set(rows[0]):
        raise ValueError(
            f"{path}: got the columns {', '.join(rows[0])}; wanted {', '.join(sorted(missing))} among them"
        )
    return [dict(zip(rows[0], row, strict=False)) for row in rows[1:]]


def when_handed_in(course, book, collected, policy, assignment, student):
    """Return when a student handed an assignment in, from the first that knows, and what is odd about it.

    Returns:
        instant or None, and a list of str.
    """
    if assignment in policy.student(student).handed_in:
        return policy.student(student).handed_in[assignment], []
    submission = book.submissions.get((assignment, student))
    if submission and submission.handed_in:
        return submission.handed_in, []
    lines = [line for line in collected.get(assignment, [])
             if line["student"] == student and line.get("what", "taken") == "taken"]  # fmt: skip
    texts = [line["handed_in"] for line in lines if line.get("handed_in")]
    try:
        if stamp := _stamp(course, assignment, student):
            return stamp, []
        if texts:
            return max(map(instant, texts)), []
    except ValueError as error:
        return None, [f"its time cannot be read ({error}); counted as handed in on time"]
    marked = (
        f", though the platform says late: give the time in {FILE}"
        if any(line.get("late") == "yes" for line in lines)
        else ""
    )
    return None, [f"submission time unknown; counted as on time{marked}"]


def _stamp(course, assignment, student):
    """The instant in a submission's timestamp.txt, or None."""
    path = course / "submitted" / student / assignment / "timestamp.txt"
    if path.is_symlink() or not path.is_file():
        return None
    text = path.read_bytes()[:100].decode("utf8", "replace").strip()
    return instant(text) if text else None


def marked(course, name, book, people, collected, policy, now, unread_as_zero=False):
    """Return the marks of an assignment.

    Args:
        course: the folder.
        name: of the assignment.
        book: a Book.
        people: {id: Mark}, as `roster` returns it; it is filled in.
        collected: as `read_collected` returns it.
        policy: a Policy.
        now: instant; who may still hand in has no mark yet.
        unread_as_zero: whether a written answer that nobody has read counts as 0.

    Returns:
        list of Mark, in the order of the ids.
    """
    for student, mark in people.items():
        mark.max_points = sum(most for most, _ in book.cells.values())
        mark.due = policy.due_for(student, name, book.due[name], _extension(book, name, student))
        submission = book.submissions.get((name, student))
        if name in policy.student(student).excused:
            mark.final = EXCUSED
            mark.notes.append("excused")
        elif submission is None:
            _nothing(course, name, mark, policy, now, collected.get(name, []))
        else:
            _points(mark, submission, book.cells)
            _lateness(course, name, book, collected, policy, mark)
            _final(mark, policy, unread_as_zero)
    return list(people.values())


def _extension(book, name, student):
    submission = book.submissions.get((name, student))
    return submission and submission.extension


def _nothing(course, name, mark, policy, now, lines):
    """A student of whom nothing is graded."""
    if any((course / "submitted" / mark.student / name).glob("*.ipynb")):
        mark.ungraded = True
        mark.notes.append("handed in, but not graded yet")
    elif any(line["student"] == mark.student and line.get("what", "").startswith("set aside") for line in lines):
        mark.notes.append(UNREADABLE)
    elif mark.due and now <= mark.due + policy.grace:
        mark.notes.append("nothing handed in yet, and there is time left")
    else:
        mark.final = 0.0
        mark.notes.append("nothing handed in")


def _points(mark, submission, cells):
    for grade_id, (_, by_hand) in cells.items():
        number, score = exercise_of(grade_id), submission.scores.get(grade_id)
        mark.exercises[number] = mark.exercises.get(number, 0.0) + (score or 0.0)
        if score is None and number not in mark.unread:
            mark.unread.append(number)
            if not by_hand and "not everything is graded yet: run nbgrader autograde" not in mark.odd:
                mark.odd.append("not everything is graded yet: run nbgrader autograde")
        if grade_id in submission.again:
            mark.odd.append(f"{number} was marked before it was regraded: check it again")
    mark.points = sum(score or 0.0 for score in submission.scores.values())
    if submission.penalty:
        mark.odd.append(f"nbgrader's own late penalty of {submission.penalty:g} is not counted here; {FILE} rules")


def exercise_of(grade_id):
    """Return the number of the exercise that a graded cell belongs to.

    >>> exercise_of("ex05-1-lstm-cell-check")
    '5.1'
    """
    found = re.match(r"ex0*(\d+)-(\d+)-", grade_id)
    return f"{found[1]}.{found[2]}" if found else grade_id


def _lateness(course, name, book, collected, policy, mark):
    """How late it came, and which of the student's free days this uses."""
    mark.handed_in, odd = when_handed_in(course, book, collected, policy, name, mark.student)
    mark.odd += odd
    with contextlib.suppress(ValueError):  # a time that only nbgrader can read
        if _stamp(course, name, mark.student) not in (None, mark.handed_in):
            mark.odd.append(f"handed in again since: nbgrader autograde {name} --student=... --force")
    late = {}
    for assignment in in_order(book, policy):
        if (assignment, mark.student) in book.submissions and assignment not in policy.student(mark.student).excused:
            due = policy.due_for(
                mark.student, assignment, book.due[assignment], _extension(book, assignment, mark.student)
            )
            when, _ = when_handed_in(course, book, collected, policy, assignment, mark.student)
            late[assignment] = policy.days_late(when, due) if when and due else 0
    mark.days_late = late[name]
    allowed = policy.student(mark.student).late_days
    counted = {assignment: days for assignment, days in late.items() if not _too_late(days, policy)}
    mark.free_days = free_days(counted, policy.late_days if allowed is None else allowed).get(name, 0)


def in_order(book, policy):
    """Return the assignments in the order of their due dates; those without one come last."""
    end = datetime.datetime.max.replace(tzinfo=datetime.UTC)
    return sorted(book.due, key=lambda name: (policy.due.get(name, book.due[name]) or end, name))


def _too_late(days, policy):
    return policy.last_day is not None and days > policy.last_day


def _final(mark, policy, unread_as_zero):
    if mark.unread:
        word = "counted as 0" if unread_as_zero else "no final points until it is read"
        mark.notes.append(f"nobody has read {', '.join(mark.unread)}: {word}")
        if not unread_as_zero:
            return
    if _too_late(mark.days_late, policy):
        mark.penalty = mark.points
        mark.notes.append(f"{mark.days_late} days late, after the last day ({policy.last_day})")
    else:
        mark.penalty = mark.points * min(1.0, policy.penalty_per_day * (mark.days_late - mark.free_days))
        if mark.days_late:
            mark.notes.append(f"{mark.days_late} days late, {mark.free_days} of them free")
    mark.final = round(max(0.0, mark.points - mark.penalty) + 1e-9, 2)


def as_rows(marks, cells, zone):
    """Return marks.csv as rows: a head, then a line for each student.

    Args:
        marks: list of Mark.
        cells: {grade_id: ...} of the assignment, in order.
        zone: time zone in which times are written.
    """
    numbers = list(dict.fromkeys(map(exercise_of, cells)))
    head = ["student", "name", "points", "max_points", *numbers, "handed_in", "due", "days_late", "free_days_used",
            "penalty", "final_points", "unread", "note"]  # fmt: skip
    rows = [head]
    for mark in marks:
        each = ["" if number in mark.unread or number not in mark.exercises else f"{mark.exercises[number]:.10g}"
                for number in numbers]  # fmt: skip
        times = [when.astimezone(zone).isoformat(" ", "seconds") if when else "" for when in (mark.handed_in, mark.due)]
        final = (
            {None: "", EXCUSED: "excused"}.get(mark.final) if mark.final in (None, EXCUSED) else f"{mark.final:.10g}"
        )
        penalty = f"{mark.penalty:.10g}" if mark.final not in (None, EXCUSED) else ""
        rows.append([
            safe(mark.student), safe(mark.name), f"{mark.points:.10g}", f"{mark.max_points:.10g}", *each, *times,
            mark.days_late, mark.free_days, penalty, final, " ".join(mark.unread),
            safe("; ".join(mark.odd + mark.notes)),
        ])  # fmt: skip
    return rows


def export(course, name, marks, files, column=None):
    """Write the files for the platforms.

    Args:
        course: the folder.
        name: of the assignment.
        marks: list of Mark.
        files: {platform: its own CSV file, or "" to make one}.
        column: header of the assignment's column in Canvas's file, if it is not called as the assignment.

    Returns:
        what is to be said: list of str.

    Raises:
        ValueError: if a file is not the platform's.
    """
    said = []
    for platform, file in files.items():
        path, separator = course / "marks" / f"{name}-{platform}.csv", ","
        worth = marks[0].max_points if marks else 0
        problems = []
        if file:
            rows, separator = exports.read_table(file)
            rows, problems = (exports.fill_canvas(rows, name, marks, column) if platform == "canvas"
                              else exports.fill_moodle(rows, marks))  # fmt: skip
        elif platform == "canvas":
            rows = exports.new_canvas(name, worth, marks)
        else:
            rows, problems = exports.new_moodle(worth, marks)
        exports.write_table(path, rows, separator)
        said += [*problems, f"For {platform.capitalize()}: {path}"]
    return said


def summary(marks):
    """Return the lines for the screen: what is odd, student by student, and last the answers that nobody has read."""
    odd = {}
    for mark in marks:
        for what in mark.odd:
            odd.setdefault(what, []).append(mark.student)
    lines = [f"{', '.join(students)}: {what}" for what, students in odd.items()]
    if nothing := [mark.student for mark in marks if "nothing handed in" in mark.notes]:
        lines.append(f"Nothing handed in, 0 points: {', '.join(nothing)}")
    if unreadable := [mark.student for mark in marks if UNREADABLE in mark.notes]:
        lines.append(f"HANDED IN, BUT NO READABLE NOTEBOOK, no final points: {', '.join(unreadable)}")
    if ungraded := [mark.student for mark in marks if mark.ungraded]:
        lines.append(f"HANDED IN, BUT NOT GRADED (nbgrader autograde), no final points: {', '.join(ungraded)}")
    unread = [mark for mark in marks if mark.unread]
    if unread:
        counted = all(mark.final is not None for mark in unread)
        zero = "these answers are COUNTED AS 0, although nobody has read them"
        wait = "they wait for a reader; till then there are no final points, and the exports leave them out"
        what = zero if counted else wait
        lines.append(f"NOT READ, {len(unread)} of {len(marks)} students: {what}:")
        lines += [f"  {mark.student}: {', '.join(mark.unread)}" for mark in unread]
    return lines


def main(arguments=None):
    """Write the marks, from the command line's words."""
    parser = argparse.ArgumentParser(prog="make grades", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--name", default="homework1", help="of the assignment")
    parser.add_argument("--course", type=Path, default=COURSE, help="folder of the course")
    parser.add_argument("--canvas", metavar="EXPORT.csv", nargs="?", const="", help="Canvas's gradebook, to fill in")
    parser.add_argument("--moodle", metavar="WORKSHEET.csv", nargs="?", const="", help="Moodle's worksheet, to fill in")
    parser.add_argument("--column", help="header of the assignment's column in Canvas's file, if it has another name")
    parser.add_argument("--unread-as-zero", action="store_true", help="count answers that nobody has read as 0")
    options = parser.parse_args(arguments)
    course = options.course.resolve()
    try:
        book = read_gradebook(course / "gradebook.db", options.name)
        collected = read_collected(course)
        people = roster(course, options.name, book, collected)
        write_policy(course)
        policy = read_policy(course / FILE)
        check_names(policy, set(book.due), set(people))
        marks = marked(course, options.name, book, people, collected, policy, datetime.datetime.now(datetime.UTC),
                       options.unread_as_zero)  # fmt: skip
        path = course / "marks" / f"{options.name}.csv"
        path.parent.mkdir(exist_ok=True)
        with path.open("w", newline="", encoding="utf-8-sig") as file:  # Excel reads UTF-8 only with this mark
            csv.writer(file).writerows(as_rows(marks, book.cells, policy.zone))
        files = {
            platform: os.path.expanduser(getattr(options, platform))
            for platform in PLATFORMS
            if getattr(options, platform) is not None
        }
        known = {platform: "" for platform in PLATFORMS if any(platform in mark.ids for mark in marks)}
        said = export(course, options.name, marks, files or known or dict.fromkeys(PLATFORMS, ""), options.column)
    except ValueError as error:
        parser.error(str(error))
    for line in [*said, *summary(marks), f"Marks: {path}"]:
        print("".join(letter if letter.isprintable() else "?" for letter in line))  # names may hold anything


if __name__ == "__main__":
    sys.exit(main())
