"""The marks: deadlines and free days, answers that nobody has read, and the files for Canvas and Moodle."""

import csv
import datetime
import io
import os
import subprocess
import zoneinfo
from pathlib import Path

import pytest

from classroom import exports, marks, policy
from classroom.marks import Book, Mark, Submission
from classroom.policy import Exceptions, Policy, instant
from tools.notebooks import editions

BERLIN = zoneinfo.ZoneInfo("Europe/Berlin")
NOW = instant("2027-06-01")
CELLS = {"ex05-1-lstm-cell-check": (4, False), "ex05-6-explain": (3, True)}
FULL = {"ex05-1-lstm-cell-check": 4.0, "ex05-6-explain": 3.0}


def days(number):
    return datetime.timedelta(days=number)


def said(text):
    """The Policy that a text says, through a file."""
    return policy._policy(policy.tomllib.loads(text))


# Deadlines.


@pytest.mark.parametrize(
    ("handed_in", "late"),
    [
        ("2027-01-31 18:00:00", 0),
        ("2027-01-31 18:00:00.999999", 0),  # the platforms show whole seconds
        ("2027-01-31 18:00:01", 1),
        ("2027-02-01 18:00:00", 1),
        ("2027-02-01 18:00:01", 2),
        ("2027-02-07 18:00:00", 7),
        ("2027-02-07 18:00:01", 8),
        ("2026-12-01 00:00:00", 0),
    ],
)
def test_days_late_at_the_boundaries(handed_in, late):
    """Fails if a second is a day too many or too few."""
    assert Policy().days_late(instant(handed_in), instant("2027-01-31 18:00")) == late


@pytest.mark.parametrize(("seconds", "late"), [(600, 0), (601, 1), (600 + 86400, 1), (601 + 86400, 2)])
def test_the_grace_moves_every_limit(seconds, late):
    due = instant("2027-01-31 18:00")
    graceful = Policy(grace=datetime.timedelta(minutes=10))
    assert graceful.days_late(due + datetime.timedelta(seconds=seconds), due) == late


@pytest.mark.parametrize(
    ("due", "handed_in", "late"),
    [
        ("2027-03-27 18:00", "2027-03-28 18:00:00", 1),  # 23 hours, by the clock a day
        ("2027-03-27 18:00", "2027-03-28 18:00:01", 2),
        ("2027-10-30 18:00", "2027-10-31 18:00:00", 1),  # 25 hours, by the clock a day
        ("2027-10-30 18:00", "2027-10-31 18:00:01", 2),
        ("2027-03-27 18:00", "2027-04-03 18:00:00", 7),
    ],
)
def test_a_day_is_a_day_by_the_clock_when_the_clocks_change(due, handed_in, late):
    """Fails if days are counted as 24 hours in UTC."""
    assert Policy(zone=BERLIN).days_late(instant(handed_in, BERLIN), instant(due, BERLIN)) == late


@pytest.mark.parametrize(
    ("text", "utc"),
    [
        ("2027-01-31 18:00", "2027-01-31 17:00:00"),
        ("2027-07-31 18:00", "2027-07-31 16:00:00"),
        ("2027-07-31", "2027-07-31 21:59:59"),
        ("2027-07-31T18:00:00-04:00", "2027-07-31 22:00:00"),
        ("2027-07-31 18:00 UTC", "2027-07-31 18:00:00"),
        ("2027-10-31 02:30", "2027-10-31 01:30:00"),  # shown twice: the later
        ("2027-03-28 02:30", "2027-03-28 01:30:00"),  # never shown: 03:30 by the new time
    ],
)
def test_dates_are_read_in_the_course_s_time_zone(text, utc):
    assert instant(text, BERLIN) == instant(utc)


def test_toml_s_own_dates_are_dates_too():
    read = said('timezone = "Europe/Berlin"\n[due]\na = 2027-01-31\nb = 2027-01-31T18:00:00\nc = 2027-01-31T18:00:00Z')
    assert read.due == {"a": instant("2027-01-31 22:59:59"), "b": instant("2027-01-31 17:00"),
                        "c": instant("2027-01-31 18:00")}  # fmt: skip


def test_what_is_due_when_for_whom():
    """Fails if an own date, extra time, or the policy's date loses against the gradebook's."""
    due = instant("2027-03-27 18:00", BERLIN)
    own = {"ada": Exceptions(1, 2), "bob": Exceptions(3, due={"two": due + days(9)})}
    held = Policy(zone=BERLIN, due={"two": due}, students=own)
    assert held.due_for("cleo", "two", instant("2026-01-01")) == due
    assert held.due_for("cleo", "one", instant("2026-01-01")) == instant("2026-01-01")
    assert held.due_for("cleo", "one", None) is None
    assert held.due_for("ada", "two", None) == instant("2027-03-28 20:00", BERLIN)  # the clocks changed in between
    assert held.due_for("bob", "two", None, days(1)) == due + days(9)
    assert held.due_for("cleo", "two", None, days(1)) == due + days(1)


@pytest.mark.parametrize(
    ("late", "allowed", "used"),
    [([2, 2, 2], 0, [0, 0, 0]), ([2, 2, 2], 3, [2, 1, 0]), ([0, 5], 9, [0, 5]), ([1, 0, 1], 2, [1, 0, 1])],
)
def test_free_days_are_used_in_order(late, allowed, used):
    assert list(policy.free_days(dict(enumerate(late)), allowed).values()) == used


# The policy file.


def test_the_written_policy_is_read_and_never_overwritten(tmp_path):
    """Fails if the template does not parse, costs anything unasked, or an instructor's changes are lost."""
    policy.write_policy(tmp_path)
    read = policy.read_policy(tmp_path / "policy.toml")
    assert (read.late_days, read.penalty_per_day, read.last_day, read.zone) == (0, 0, None, datetime.UTC)
    (tmp_path / "policy.toml").write_text("late_days = 3\n", encoding="utf8")
    policy.write_policy(tmp_path)
    assert policy.read_policy(tmp_path / "policy.toml").late_days == 3


def test_the_examples_in_the_template_are_right():
    """Fails if a line that an instructor uncomments is refused."""
    text = policy.TEMPLATE
    for line in ("last_day = 7", "homework1 =", "[students.ada]", "extra_days =", "extra_hours =", "late_days = 5",
                 "excused =", "due = {", "handed_in = {"):  # fmt: skip
        assert f"# {line}" in text
        text = text.replace(f"# {line}", line)
    read = said(text)
    assert read.last_day == 7
    came = {"homework1": instant("2027-02-15 09:30")}
    assert read.student("ada") == Exceptions(2, 12, 5, {"homework1": instant("2027-02-14")}, came, ("homework2",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("late_day = 3", r"late_day: there is no such key \(did you mean late_days\?\)"),
        ("late_days = 1.5", "late_days: got 1.5; wanted a whole number from 0"),
        ("late_days = true", "late_days: got True"),
        ("penalty_per_day = 10", "penalty_per_day: got 10; wanted a number from 0 to 1"),
        ("penalty_per_day = nan", "penalty_per_day: got nan"),
        ("grace_minutes = -1", "grace_minutes: got -1"),
        ('timezone = "Europe/Berln"', "timezone: got 'Europe/Berln'"),
        ('timezone = "../etc"', "timezone: got"),
        ("timezone = 1", "timezone: got 1"),
        ('due = "tomorrow"', r"due: got 'tomorrow'; wanted a table, \[due\]"),
        ('[due]\nhomework1 = "tomorrow"', "due.homework1: got 'tomorrow'; a date is written"),
        ("[due]\nhomework1 = 20270131", "due.homework1: got 20270131"),
        ("[due]\nhomework1 = 18:00:00", r"due.homework1: got datetime\.time"),
        ('[due]\nhomework1 = "0207-01-31"', "wanted a date in the years 2000 to 2100"),
        ("[students.ada]\nextra = 2", "students.ada.extra: there is no such key"),
        ("[students.ada]\nextra_days = 0.5", "students.ada.extra_days: got 0.5"),
        ('[students.ada]\nexcused = "homework1"', "students.ada.excused: got 'homework1'; wanted a list"),
        ("students = 3", "students: got 3; wanted a table"),
        ("late_days = 3\nlate_days = 4\n", "line 2"),
        ("late_days: 3", "line 1"),
    ],
)
def test_a_mistake_in_the_policy_is_named(text, message, tmp_path):
    (tmp_path / "policy.toml").write_text(text, encoding="utf8")
    with pytest.raises(ValueError, match=message) as error:
        policy.read_policy(tmp_path / "policy.toml")
    assert "policy.toml" in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[due]\nhomework9 = 2027-01-31", r"due.homework9: there is no such assignment \(did you mean homework1\?\)"),
        ("[students.adda]\nlate_days = 1", r"students.adda: there is no such student \(did you mean ada\?\)"),
        ('[students.ada]\nexcused = ["hw"]', "students.ada.excused: hw: there is no such assignment; there are home"),
        ("[students.ada]\ndue = { hw = 2027-01-31 }", "students.ada.due.hw: there is no such assignment"),
    ],
)
def test_a_policy_names_only_what_exists(text, message):
    with pytest.raises(ValueError, match=message):
        policy.check_names(said(text), {"homework1"}, {"ada"})


# The marks.


def book(**handed_in):
    """A gradebook of three assignments, due on 1, 11 and 21 March; {student: [days after the due date, or None]}."""
    due = {f"homework{k + 1}": instant(f"2027-03-{k}1 12:00") for k in range(3)}
    submissions = {
        (name, student): Submission(due[name] + days(late) if late != "?" else None, scores=dict(FULL))
        for student, each in handed_in.items()
        for name, late in zip(due, each, strict=False)
        if late is not None
    }
    return Book(due, dict(CELLS), {s: {"last_name": "", "first_name": s.title(), "email": "", "canvas": ""}
                                   for s in handed_in}, submissions)  # fmt: skip


def marked(tmp_path, held, name="homework1", rules=None, now=NOW, collected=None, **options):
    people = marks.roster(tmp_path, name, held, collected or {})
    found = marks.marked(tmp_path, name, held, people, collected or {}, rules or Policy(), now, **options)
    return {mark.student: mark for mark in found}


def test_lateness_free_days_and_penalty(tmp_path):
    """Fails if free days are not shared in order, or a late day that is not free costs too much or too little."""
    held = book(ada=[1, 3, 1], bob=[3, None, 3], cleo=[0, 8, 3])
    rules = Policy(late_days=3, penalty_per_day=0.1, last_day=7)
    each = {name: marked(tmp_path, held, name, rules) for name in held.due}
    assert [each[n]["ada"].free_days for n in held.due] == [1, 2, 0]
    assert [each[n]["ada"].final for n in held.due] == [7, 6.3, 6.3]
    assert each["homework2"]["ada"].penalty == pytest.approx(0.7)
    assert each["homework3"]["bob"].final == pytest.approx(7 * 0.7)  # all free days went to the first
    assert each["homework2"]["cleo"].final == 0  # after the last day
    assert "after the last day (7)" in " ".join(each["homework2"]["cleo"].notes)
    assert (each["homework3"]["cleo"].free_days, each["homework3"]["cleo"].final) == (3, 7)  # nothing was wasted on it


def test_the_order_is_that_of_the_due_dates_in_the_policy(tmp_path):
    held = book(ada=[2, 2, 2])
    rules = Policy(late_days=2, penalty_per_day=0.5, due={"homework3": instant("2027-01-01")})
    assert marks.in_order(held, rules) == ["homework3", "homework1", "homework2"]
    assert marked(tmp_path, held, "homework1", rules)["ada"].free_days == 0


def test_the_last_day_still_counts_and_a_penalty_never_exceeds_the_points(tmp_path):
    held = book(ada=[3], bob=[3.00002])
    found = marked(tmp_path, held, rules=Policy(penalty_per_day=0.1, last_day=3))
    assert (found["ada"].days_late, found["ada"].final) == (3, 4.9)
    assert (found["bob"].days_late, found["bob"].final) == (4, 0)
    ada = marked(tmp_path, held, rules=Policy(penalty_per_day=0.4))["ada"]
    assert (ada.penalty, ada.final) == (7, 0)


def test_excused_students_and_their_free_days(tmp_path):
    """Fails if an excused assignment is marked, or uses free days."""
    rules = Policy(late_days=2, penalty_per_day=0.5, students={"ada": Exceptions(excused=("homework1",)),
                                                               "bob": Exceptions(late_days=9)})  # fmt: skip
    held = book(ada=[2, 2], bob=[4, 4])
    assert marked(tmp_path, held, "homework1", rules)["ada"].final == "EX"
    assert marked(tmp_path, held, "homework2", rules)["ada"].free_days == 2
    assert [marked(tmp_path, held, name, rules)["bob"].free_days for name in ("homework1", "homework2")] == [4, 4]


def test_an_answer_that_nobody_has_read_has_no_points_yet(tmp_path):
    """Fails if it counts as 0 without a word."""
    held = book(ada=[0], bob=[0])
    held.submissions["homework1", "ada"].scores["ex05-6-explain"] = None
    ada = marked(tmp_path, held)["ada"]
    assert (ada.points, ada.final, ada.unread) == (4, None, ["5.6"])
    head, line, _ = marks.as_rows([ada, Mark("z")], CELLS, BERLIN)
    row = dict(zip(head, line, strict=True))
    assert (row["5.1"], row["5.6"], row["final_points"], row["unread"]) == ("4", "", "", "5.6")
    assert "nobody has read 5.6" in row["note"]
    assert [line for line in marks.summary([ada]) if "NOT READ, 1 of 1 students" in line]
    assert "  ada: 5.6" in marks.summary([ada])
    counted = marked(tmp_path, held, unread_as_zero=True)["ada"]
    assert (counted.final, counted.unread) == (4, ["5.6"])
    assert [line for line in marks.summary([counted]) if "COUNTED AS 0" in line]


def test_an_answer_read_before_it_was_graded_again_is_named(tmp_path):
    held = book(ada=[0])
    held.submissions["homework1", "ada"].again = ["ex05-6-explain"]
    ada = marked(tmp_path, held)["ada"]
    assert ada.final == 7
    assert "5.6 was marked before it was regraded" in ada.odd[0]


def test_what_cannot_be_read_is_no_zero(tmp_path):
    """Fails if a student whose file is broken gets 0 points as if nothing had come."""
    line = {"student": "flora", "name": "Flora", "platform": "", "platform_id": "", "what": "set aside: cannot be read"}
    found = marked(tmp_path, book(ada=[0]), collected={"homework1": [line]})
    assert (found["flora"].final, found["flora"].notes) == (None, [marks.UNREADABLE])
    (said,) = [each for each in marks.summary(list(found.values())) if "flora" in each]
    assert "NO READABLE NOTEBOOK, no final points" in said


def test_who_handed_in_nothing_is_in_the_marks(tmp_path):
    """Fails if students of students.csv are missing, or somebody with time left gets a 0."""
    (tmp_path / "students.csv").write_text("id,last_name,first_name,email\ncleo,Kahn,Cleo,c@example.org\n", "utf8")
    (tmp_path / "submitted/dan/homework1").mkdir(parents=True)
    (tmp_path / "submitted/dan/homework1/05_lstm.ipynb").write_text("{}", "utf8")
    rules = Policy(students={"bob": Exceptions(extra_days=30)})
    found = marked(tmp_path, book(ada=[0], bob=[None]), rules=rules, now=instant("2027-03-15"))
    assert list(found) == ["ada", "bob", "cleo", "dan"]
    assert (found["cleo"].final, found["cleo"].name, found["cleo"].notes) == (0, "Cleo Kahn", ["nothing handed in"])
    assert (found["bob"].final, found["bob"].notes) == (None, ["nothing handed in yet, and there is time left"])
    assert found["dan"].final is None
    assert [line for line in marks.summary(list(found.values())) if "NOT GRADED" in line and line.endswith(": dan")]
    assert "Nothing handed in, 0 points: cleo" in marks.summary(list(found.values()))


def test_a_time_that_is_not_known_is_named_and_stops_nobody(tmp_path):
    held = book(ada=["?"], bob=["?"], cleo=["?"], dan=["?"], eve=[0])
    stamps = {"bob": "2027-03-03 12:00:00 UTC", "cleo": "last week", "eve": "2027-03-01 13:00:00 UTC"}
    for student, text in stamps.items():
        (tmp_path / f"submitted/{student}/homework1").mkdir(parents=True)
        (tmp_path / f"submitted/{student}/homework1/timestamp.txt").write_text(text, "utf8")
    line = {"name": "Dan", "platform": "canvas", "platform_id": "44", "notebook": "", "file": "", "what": "taken"}
    collected = {"homework1": [line | {"student": "dan", "handed_in": "2027-03-02 12:00:00 UTC", "late": ""},
                               line | {"student": "ada", "handed_in": "", "late": "yes"}]}  # fmt: skip
    found = marked(tmp_path, held, collected=collected)
    assert [found[name].days_late for name in ("ada", "bob", "cleo", "dan")] == [0, 2, 0, 1]
    (odd,) = found["ada"].odd
    assert odd.endswith("counted as on time, though the platform says late: give the time in policy.toml")
    said_when = Policy(students={"ada": Exceptions(handed_in={"homework1": instant("2027-03-04 12:00")})})
    ada = marked(tmp_path, held, rules=said_when, collected=collected)["ada"]
    assert (ada.days_late, ada.odd) == (3, [])
    assert "its time cannot be read (got 'last week'" in found["cleo"].odd[0]
    assert "handed in again since: nbgrader autograde homework1 --student=... --force" in found["eve"].odd
    assert found["dan"].ids == {"canvas": "44"}
    held = book(ada=["?"], bob=["?"])
    assert "ada, bob: submission time unknown" in marks.summary(list(marked(tmp_path / "none", held).values()))[0]


def test_moodle_s_numbers_hold_for_one_assignment_only(tmp_path):
    """Fails if the number of another assignment, where somebody else may have it, is used."""
    line = {"student": "ada", "name": "Ada", "platform": "moodle", "platform_id": "7"}
    held = book(ada=[0])
    assert marks.roster(tmp_path, "homework1", held, {"homework1": [line]})["ada"].ids == {"moodle": "7"}
    assert marks.roster(tmp_path, "homework2", held, {"homework1": [line]})["ada"].ids == {}
    line = line | {"platform": "canvas"}
    assert marks.roster(tmp_path, "homework2", held, {"homework1": [line]})["ada"].ids == {"canvas": "7"}


def test_files_as_they_come(tmp_path):
    """students.csv out of Excel, in its own letters; collected lines that are nobody's; lines that were not taken."""
    (tmp_path / "students.csv").write_bytes(
        "ID;Last_Name;First_Name;Canvas_ID\r\nzoe;Brontë;Zoë;55\r\n".encode("cp1252")
    )
    (tmp_path / "collected").mkdir()
    (tmp_path / "collected/homework1.csv").write_text(
        "student,name,platform,platform_id,notebook,file,handed_in,late,what\nnobody,x,canvas,1,,a.pdf,,,no notebook\n"
        "ada,'=Ada,canvas,7,05,a.ipynb,,yes,older\nada,'=Ada,canvas,7,05,b.ipynb,,,taken\n", "utf8")  # fmt: skip
    collected = marks.read_collected(tmp_path)
    held = book(ada=["?"])
    held.students["ada"]["first_name"] = ""
    found = marked(tmp_path, held, collected=collected)
    assert list(found) == ["ada", "zoe"]
    assert (found["zoe"].name, found["zoe"].ids) == ("Zoë Brontë", {"canvas": "55"})
    assert found["ada"].name == "=Ada"
    assert found["ada"].odd == ["submission time unknown; counted as on time"]


def test_nbgrader_s_own_penalty_is_not_taken_twice(tmp_path):
    held = book(ada=[1])
    held.submissions["homework1", "ada"].penalty = 7.0
    ada = marked(tmp_path, held)["ada"]
    assert ada.final == 7
    assert "nbgrader's own late penalty of 7 is not counted here" in ada.odd[0]


# Spreadsheets.


@pytest.mark.parametrize(
    "text", ["=1+1", "+1", "-cmd|' /C calc'!A0", "@SUM(A1)", " =1", "\t=1", "x\n=1", "x,=1", "a;=1", "\uff1d1"]
)
def test_no_text_of_a_student_becomes_a_formula(text):
    """Fails if a cell, or what a spreadsheet with another separator takes for one, begins with a formula's sign."""
    cells = [cell.strip() for part in exports.safe(text).splitlines() for cell in part.replace(",", ";").split(";")]
    assert not any(cell.startswith(tuple("=+-@\uff1d")) for cell in cells)


@pytest.mark.parametrize("text", ["Ada-Marie Lovelace", "O'Brien, Sinéad", "a=b", "x@example.org", ""])
def test_honest_names_stay(text):
    assert exports.safe(text) == text


def test_marks_csv_is_safe(tmp_path):
    mark = Mark("-ada", name="=HYPERLINK(1)", notes=["=x"], final=1.0)
    row = marks.as_rows([mark], CELLS, BERLIN)[1]
    assert (row[0], row[1], row[-1]) == ("'-ada", "'=HYPERLINK(1)", "'=x")


# Canvas.

CANVAS = """\
Student,ID,SIS User ID,SIS Login ID,Section,Notes,Homework 1 (1234),Homework 10 (77),Current Score,Final Score
,,,,,,Manual Posting,,,
    Points Possible,,,,,,7.00,10.00,(read only),(read only)
"Lovelace, Ada",101,s1,ada@example.org,Section A,likes it,,9,90,90
"O'Brien, Sinéad",102,s2,sob,Section A,,1,8,80,80
"=Evil, Bob",103,s3,bob@example.org,Section A,,,,,
"Twin, Tim",104,s4,tim1,Section A,,,,,
"Twin, Tim",105,s5,tim2,Section B,,,,,
"Excused, Eve",106,s6,eve,Section B,,,,,
"Absent, Abe",107,s7,abe,Section B,,3,,,
"Unread, Uma",108,s8,uma,Section B,,2,,,
"Not, Assigned",109,s9,nat,Section B,,N/A,,,
"Student, Test",110,,x,Section A,,,,,
"""


def person(student, final, first="", last="", email="", **ids):
    return Mark(student, f"{first} {last}".strip(), last, first, email, ids, max_points=7.0, final=final)


PEOPLE = [
    person("ada", 6.5, "Augusta", "King", "other@example.org", canvas="101"),
    person("sinead", 10 / 3, "Sinead", "O'Brien"),
    person("bob", 0.0, email="BOB@example.org"),
    person("tim", 5.0, "Tim", "Twin"),
    person("eve", "EX"),
    person("uma", None),
    person("nat", 1.0),
    person("ghost", 2.0, "Gus", "Ghost", canvas="999"),
]


def table(text):
    return list(csv.reader(io.StringIO(text)))


def test_canvas_s_export_is_filled():
    """Fails if a mark goes to another person, or a cell of Canvas's changes that need not."""
    rows, problems = exports.fill_canvas(table(CANVAS), "homework1", PEOPLE)
    assert rows[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "Homework 1 (1234)"]
    assert rows[1] == ["", "", "", "", "", "Manual Posting"]
    assert rows[2] == ["    Points Possible", "", "", "", "", "7.00"]
    assert {row[1]: row[5] for row in rows[3:]} == {
        "101": "6.5", "102": "3.33", "103": "0", "104": "", "105": "", "106": "EX", "107": "3", "108": "2",
        "109": "N/A", "110": "",
    }  # fmt: skip
    assert rows[3][:5] == ["Lovelace, Ada", "101", "s1", "ada@example.org", "Section A"]
    assert rows[5][0] == "'=Evil, Bob"
    assert [text for text in problems if text.startswith("tim: may be Twin, Tim")]
    assert [text for text in problems if text.startswith("ghost: not found in Canvas's file (Gus Ghost, no email)")]
    assert [text for text in problems if text.startswith("Absent, Abe: in Canvas's file, but not in the course")]
    assert [text for text in problems if text.startswith("nat: Canvas has not assigned")]
    assert not [text for text in problems if "Student, Test" in text]


def test_who_has_another_number_is_another_person():
    """Fails if a namesake gets the mark of somebody whose number is known."""
    rows, _ = exports.fill_canvas(table(CANVAS), "homework1", [person("ada", 5.0, "Ada", "Lovelace", canvas="555")])
    assert rows[3][5] == ""


def test_canvas_s_other_shapes(tmp_path):
    """Semicolons, a byte order mark, names in two columns."""
    text = (
        "\ufeffLastName;FirstName;ID;SIS Login ID;Section;homework1 (5)\n    Points Possible;;;;;8,0\nLove;Ada;1;a;S;\n"
    )
    (tmp_path / "export.csv").write_text(text, "utf8")
    rows, separator = exports.read_table(tmp_path / "export.csv")
    filled, problems = exports.fill_canvas(rows, "homework1", [person("ada", 2.5, "Ada", "Love")])
    assert separator == ";"
    assert filled[2] == ["Love", "Ada", "1", "a", "S", "2.5"]
    assert problems == ["Canvas counts 8 points for the assignment, here it has 7; nothing is converted"]


@pytest.mark.parametrize(
    ("name", "column", "message"),
    [
        ("homework2", None, "no column of Canvas's export is called homework2; give its header with COLUMN"),
        ("homework1", "Essay", "no column of Canvas's export is called Essay"),
    ],
)
def test_the_column_must_be_told(name, column, message):
    with pytest.raises(ValueError, match=message):
        exports.fill_canvas(table(CANVAS), name, PEOPLE, column)


def test_a_column_may_be_chosen():
    rows, _ = exports.fill_canvas(table(CANVAS), "essay", PEOPLE, "Homework 10 (77)")
    assert (rows[0][-1], rows[3][-1]) == ("Homework 10 (77)", "6.5")


def test_what_is_not_canvas_s_is_refused():
    with pytest.raises(ValueError, match="got the columns a, b; wanted Canvas's own export"):
        exports.fill_canvas([["a", "b"]], "homework1", PEOPLE)


def test_a_new_file_for_canvas():
    """Fails if it lacks what Canvas's importer asks of the first rows, or holds students without final points."""
    rows = exports.new_canvas("homework1", 7.0, [*PEOPLE, person("=x", 1.0)])
    assert rows[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "homework1"]
    assert "Points Possible" in rows[1][0]
    assert rows[1][5] == "7"
    assert rows[2] == ["King, Augusta", "101", "ada", "other@example.org", "", "6.5"]
    assert [row[2] for row in rows[2:]] == ["ada", "sinead", "bob", "tim", "eve", "nat", "ghost", "'=x"]
    assert rows[6][5] == "EX"


# Moodle.

MOODLE = """\
\ufeffIdentifier,"Full name","Email address",Status,Grade,"Maximum Grade","Grade can be changed",\
"Last modified (submission)","Online text","Last modified (grade)","Feedback comments"
"Participant 98765","Ada Lovelace",ada@example.org,"Submitted for grading",,7.00,Yes,"Sunday","=evil()",-,"- good"
"Participant 98766","=Bob",bob@example.org,"No submission",1.00,7.00,Yes,-,,"Monday, 1 March 2027, 10:00 AM",
"Participant 98767","Cleo Kahn",cleo@example.org,"Submitted for grading",2.00,7.00,No,-,,-,
"""


def test_moodle_s_worksheet_is_filled(tmp_path):
    (tmp_path / "sheet.csv").write_text(MOODLE, "utf8")
    rows, _ = exports.read_table(tmp_path / "sheet.csv")
    people = [person("x", 9.0, moodle="98765"), person("bob", "EX", email="bob@example.org"),
              person("cleo", 4.25, "Cleo", "Kahn"), person("dan", 1.0)]  # fmt: skip
    filled, problems = exports.fill_moodle(rows, people)
    assert filled == [
        ["Identifier", "Full name", "Email address", "Grade", "Maximum Grade", "Last modified (grade)"],
        ["Participant 98765", "Ada Lovelace", "ada@example.org", "9", "7.00", "-"],
        ["Participant 98766", "'=Bob", "bob@example.org", "1.00", "7.00", "Monday, 1 March 2027, 10:00 AM"],
        ["Participant 98767", "Cleo Kahn", "cleo@example.org", "4.25", "7.00", "-"],
    ]
    assert "x: 9 points are more than Moodle's maximum of 7; it will not take them" in problems
    assert "bob: excused; Moodle has no such mark, so the cell is left unchanged" in problems
    assert "cleo: Moodle has locked this grade, and will not take another" in problems
    assert "dan: not found in Moodle's file (no name, no email)" in problems


def test_moodle_in_another_language_is_refused():
    with pytest.raises(ValueError, match="no column Identifier, Grade, Last modified"):
        exports.fill_moodle([["Bezeichnung", "Bewertung"]], PEOPLE)


def test_a_new_file_for_moodle():
    rows, problems = exports.new_moodle(7.0, [person("ada", 6.5, "Ada", "L", "a@b.c", moodle="98765"), *PEOPLE])
    assert rows == [list(exports.WORKSHEET), ["Participant 98765", "Ada L", "a@b.c", "6.5", "7", "-"]]
    assert "sinead: Moodle number unknown; use Moodle's own worksheet" in problems


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b"", b'a,b\n"' + b"x" * 200_000])
def test_what_is_no_table_is_refused(data, tmp_path):
    (tmp_path / "x.csv").write_bytes(data)
    with pytest.raises(ValueError, match=r"x\.csv.*wanted a CSV file"):
        exports.read_table(tmp_path / "x.csv")


# With nbgrader's own gradebook.

ENVIRONMENT = Path(os.environ.get("CLASSROOM_ENV", editions.ROOT / ".venv-classroom"))
MAKE = """
import datetime
from nbgrader.api import Gradebook
with Gradebook("sqlite:///gradebook.db") as book:
    for name, due in (("homework1", "2027-01-31 18:00:00 UTC"), ("homework2", None)):
        book.add_assignment(name, duedate=due)
        book.add_notebook("05_lstm", name)
        book.add_grade_cell("ex05-1-lstm-cell-check", "05_lstm", name, max_score=4, cell_type="code")
        book.add_grade_cell("ex05-6-explain", "05_lstm", name, max_score=3, cell_type="markdown")
        book.add_solution_cell("ex05-6-explain", "05_lstm", name)
    book.add_student("ada", last_name="Lovelace", first_name="Ada", email="ada@example.org", lms_user_id="101")
    for student in ("bob", "cleo", "dan"):
        book.add_student(student)
    def submit(student, when, cell, words, manual=None, extra=None):
        book.add_submission("homework1", student, timestamp=when)
        grade = book.find_grade("ex05-1-lstm-cell-check", "05_lstm", "homework1", student)
        grade.auto_score, grade.needs_manual_grade, grade.extra_credit = cell, False, extra
        grade = book.find_grade("ex05-6-explain", "05_lstm", "homework1", student)
        grade.auto_score, grade.manual_score, grade.needs_manual_grade = words, manual, words is manual is None
        book.db.commit()
    submit("ada", "2027-02-01 18:00:00 UTC", 4, None, 2.5, 0.5)
    submit("bob", "2027-01-31 18:00:00 UTC", 4, None)
    submit("cleo", None, 0, 0)
"""


@pytest.mark.slow
def test_a_real_gradebook(tmp_path):
    """Fails if what nbgrader stored is read otherwise than nbgrader exports it, or the program does not run."""

    def run(*words, code=0):
        environment = {**os.environ, "PATH": f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}",
                       "PYTHONPATH": str(editions.ROOT)}  # fmt: skip
        environment.pop("PYTEST_CURRENT_TEST", None)
        done = subprocess.run([ENVIRONMENT / "bin" / words[0], *words[1:]], cwd=tmp_path, env=environment, text=True,
                              capture_output=True, check=False)  # fmt: skip
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    if not (ENVIRONMENT / "bin" / "nbgrader").exists():
        pytest.fail(f"there is no nbgrader in {ENVIRONMENT}: run make classroom, or name a place by CLASSROOM_ENV")
    run("python", "-c", MAKE)
    (tmp_path / "policy.toml").write_text("penalty_per_day = 0.1\n", "utf8")
    (tmp_path / "canvas.csv").write_text(CANVAS, "utf8")
    grades = ("python", "-m", "classroom.marks", "--course", str(tmp_path), "--name", "homework1")
    output = run(*grades, "--canvas", "canvas.csv", "--moodle")
    run("nbgrader", "export", "--assignment=homework1")

    def read(file):
        return list(csv.DictReader(io.StringIO((tmp_path / file).read_text("utf-8-sig"))))

    exported = {line["student_id"]: line for line in read("grades.csv")}
    found = {line["student"]: line for line in read("marks/homework1.csv")}
    assert {s: float(line["points"]) for s, line in found.items()} == {
        s: float(line["raw_score"]) for s, line in exported.items()
    }
    assert {float(line["max_points"]) for line in found.values()} == {7.0}
    assert (found["ada"]["points"], found["ada"]["days_late"], found["ada"]["final_points"]) == ("7", "1", "6.3")
    assert found["ada"]["due"] == "2027-01-31 18:00:00+00:00"
    assert (found["bob"]["days_late"], found["bob"]["final_points"], found["bob"]["unread"]) == ("0", "", "5.6")
    assert (found["cleo"]["points"], found["cleo"]["unread"]) == ("0", "")  # untouched: 0 by itself
    assert "NOT READ, 1 of 4 students" in output
    assert "  bob: 5.6" in output
    assert "cleo: submission time unknown" in output
    filled = {line["ID"]: line["Homework 1 (1234)"] for line in read("marks/homework1-canvas.csv")}
    assert (filled["101"], filled["103"]) == ("6.3", "")
    assert "there are homework1, homework2" in run(*grades[:-1], "homework3", code=2)
    (tmp_path / "policy.toml").write_text("[students.adda]\n", "utf8")
    assert "did you mean ada?" in run(*grades, code=2)
