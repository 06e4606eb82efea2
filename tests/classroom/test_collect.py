"""Collecting: names as Canvas, Moodle and people write them; files that are broken, enormous or meant to do harm."""

import csv
import io
import json
import os
import stat
import time
import zipfile
from pathlib import Path

import nbformat
import pytest

from classroom import collect, intake, people

STEMS = ("05_lstm_and_gru", "07_attention")
LSTM, ATTENTION = STEMS


def cell(grade_id, source, **mark):
    mark = {
        "grade_id": grade_id,
        "grade": False,
        "solution": False,
        "locked": False,
        "schema_version": 3,
        "task": False,
    } | mark
    made = nbformat.v4.new_code_cell(source, metadata={"nbgrader": mark})
    made.id = grade_id
    return made


def notebook(stem, answer="stub"):
    """A released notebook with two exercises, and an answer in the first."""
    chapter = stem[:2]
    return nbformat.v4.new_notebook(
        cells=[
            cell(f"setup-{chapter}", "import torch", locked=True),
            *(
                made
                for number in (1, 2)
                for made in (
                    cell(f"ex{chapter}-{number}", answer if number == 1 else "stub", solution=True),
                    cell(f"ex{chapter}-{number}-check", "check", grade=True, locked=True, points=1),
                )
            ),
        ]
    )


def text(stem=LSTM, answer="stub"):
    return nbformat.writes(notebook(stem, answer))


@pytest.fixture
def course(tmp_path):
    course = tmp_path / "grading"
    for stem in STEMS:
        (course / "release" / "homework1").mkdir(parents=True, exist_ok=True)
        (course / "release" / "homework1" / f"{stem}.ipynb").write_text(text(stem))
    return course


def pack(path, files):
    """Write a zip; a key is a name or a ZipInfo, the content text, bytes, or another dict for a zip in it."""
    path = path if isinstance(path, io.BytesIO) else Path(path)
    if isinstance(path, Path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items() if isinstance(files, dict) else files:
            archive.writestr(name, packed(content) if isinstance(content, dict) else content)
    return path


def packed(files):
    data = io.BytesIO()
    pack(data, files)
    return data.getvalue()


def run(course, *downloads):
    return collect.collect(course, "homework1", downloads)


def answers(course):
    """{student: {notebook: first answer}} of what was collected."""
    found = {}
    for path in sorted(course.glob("submitted/*/homework1/*.ipynb")):
        made = nbformat.read(path, as_version=4)
        found.setdefault(path.parts[-3], {})[path.stem] = next(
            (c.source for c in made.cells if c.metadata.get("nbgrader", {}).get("solution")), made.cells[0].source
        )
    return found


def table(course):
    with (course / "collected" / "homework1.csv").open(encoding="utf8", newline="") as file:
        return list(csv.DictReader(file))


def aside(course, student="*"):
    return sorted(path.name for path in course.glob(f"set_aside/homework1/{student}/*"))


def everything(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Names.


@pytest.mark.parametrize(
    ("file", "student", "number", "late"),
    [
        ("lovelaceada_123_4567_05_lstm_and_gru.ipynb", "lovelaceada-123", "123", False),
        ("lovelaceada_late_123_4567_05_lstm_and_gru.ipynb", "lovelaceada-123", "123", True),
        ("lovelaceada_LATE_123_4567_05_lstm_and_gru-2.ipynb", "lovelaceada-123", "123", True),
        ("lovelaceada_123_4567_05_lstm_and_gru (1).ipynb", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_Copy_of_05_lstm_and_gru.ipynb", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_Copy of Copy of 05_lstm_and_gru (2)-1.ipynb", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_05_lstm_and_gru.ipynb.json", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_05_lstm_and_gru.ipynb.txt", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_my homework, final (really!) ☕.ipynb", "lovelaceada-123", "123", False),
        ("lovelaceada_123_4567_1_2_3.ipynb", "lovelaceada-123", "123", False),
        ("müllerjonas_77_4567_05_lstm_and_gru.ipynb", "mullerjonas-77", "77", False),
        ("李雷_78_4567_05_lstm_and_gru.ipynb", None, "78", False),
        ("mary_ann_79_4567_05_lstm_and_gru.ipynb", "mary-ann-79", "79", False),
        ("late_80_4567_05_lstm_and_gru.ipynb", None, "80", True),
        ("anon_ab12c_123_05_lstm_and_gru.ipynb", "anonymous-ab12c", "ab12c", False),
        ("anon_ab12c_123_10_hours_of_work.ipynb", "anonymous-ab12c", "ab12c", False),
        ("anon_late_ab12c_123_05_lstm_and_gru.ipynb", "anonymous-ab12c", "ab12c", True),
        ("123_4567_05_lstm_and_gru.ipynb", "anonymous-123", "123", False),
    ],
)
def test_names_as_canvas_writes_them(course, tmp_path, file, student, number, late):
    """Fails if a name of Canvas is cut, or its number or its mark of lateness is lost."""
    assert run(course, pack(tmp_path / "submissions.zip", {file: text(answer="mine")}))
    (line,) = table(course)
    assert answers(course) == {line["student"]: {LSTM: "mine"}}
    assert student in (None, line["student"])
    assert set(line["student"]) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert line["student"].endswith(number)
    assert (line["platform"], line["platform_id"], line["what"]) == ("canvas", number, "taken")
    assert (line["late"], line["handed_in"], line["file"]) == ("yes" if late else "", "", file)


@pytest.mark.parametrize(
    ("file", "student", "number"),
    [
        ("Ada Lovelace_98765_assignsubmission_file_/05_lstm_and_gru.ipynb", "ada-lovelace", "98765"),
        ("Ada Lovelace_98765_assignsubmission_file/05_lstm_and_gru.ipynb", "ada-lovelace", "98765"),
        ("Ada Lovelace_98765_assignsubmission_file_/a/b/c/05_lstm_and_gru.ipynb", "ada-lovelace", "98765"),
        ("Ada Lovelace_98765_assignsubmission_file_05_lstm_and_gru.ipynb", "ada-lovelace", "98765"),
        ("homework 1/Ada Lovelace_98765_assignsubmission_file_/x.ipynb", "ada-lovelace", "98765"),
        ("Jean-Luc O'Brien_1_assignsubmission_file_/x.ipynb", "jean-luc-obrien", "1"),
        ("Sinéad Ní Bhriain_2_assignsubmission_file_/x.ipynb", "sinead-ni-bhriain", "2"),
        ("Łukasz Żak_3_assignsubmission_file/x.ipynb", "lukasz-zak", "3"),
        ("Participant_98765_assignsubmission_file_/x.ipynb", "participant-98765", "98765"),
        ("Participant 98765_98765_assignsubmission_file_/x.ipynb", "participant-98765", "98765"),
        ("Default group_assignsubmission_file/x.ipynb", "default-group", ""),
    ],
)
def test_names_as_moodle_writes_them(course, tmp_path, file, student, number):
    """Fails if a name of Moodle is cut, or the participant's number is lost."""
    assert run(course, pack(tmp_path / "SM-Homework 1-77.zip", {file: text(answer="mine")}))
    assert answers(course) == {student: {LSTM: "mine"}}
    (line,) = table(course)
    assert (line["platform"], line["platform_id"], line["handed_in"]) == ("moodle", number, "")


@pytest.mark.parametrize(
    ("file", "student"),
    [
        ("ada/05_lstm_and_gru.ipynb", "ada"),
        ("ada/homework1/05_lstm_and_gru.ipynb", "ada"),
        ("homework1/ada/05_lstm_and_gru.ipynb", "ada"),
        ("submitted/ada/homework1/05_lstm_and_gru.ipynb", "ada"),
        ("ada_05_lstm_and_gru.ipynb", "ada"),
        ("ada_05_lstm_and_gru (1).ipynb", "ada"),
        ("ada_Copy_of_05_lstm_and_gru.ipynb", "ada"),
        ("ada_homework1.ipynb", "ada"),
        ("ada.ipynb", "ada"),
        ("Grace_05_lstm_and_gru.ipynb", "grace"),
        ("mary-ann_05_lstm_and_gru.ipynb", "mary-ann"),
        ("O'Brien, Sinéad_05_lstm_and_gru.ipynb", "obrien-sinead"),
        ("Müller_Jonas_05_lstm_and_gru.ipynb", "muller-jonas"),
        ("Müller_Jonas/my work.ipynb", "muller-jonas"),
        ("12345/05_lstm_and_gru.ipynb", "student-12345"),
        ("12345_05_lstm_and_gru.ipynb", "student-12345"),
        ("ada@example.org/05_lstm_and_gru.ipynb", "ada-example-org"),
        ("ada.zip", "ada"),
        ("ada (1).zip", "ada"),
        ("ada/anything at all.zip", "ada"),
    ],
)
@pytest.mark.parametrize("as_zip", [True, False])
def test_plain_names(course, tmp_path, file, student, as_zip):
    """Fails if `Grace` becomes `race`, `mary-ann` becomes `ann`, or a folder between is taken for somebody."""
    content = (
        packed({"05_lstm_and_gru.ipynb": text(answer="mine")})
        if file.endswith(".zip")
        else text(answer="mine").encode()
    )
    if as_zip:
        download = pack(tmp_path / "class.zip", {file: content})
    else:
        download = tmp_path / "class"
        (download / file).parent.mkdir(parents=True)
        (download / file).write_bytes(content)
    assert run(course, download)
    assert answers(course) == {student: {LSTM: "mine"}}


@pytest.mark.parametrize(
    "inside", ["05_lstm_and_gru.ipynb", "homework1/05_lstm.ipynb", "ada/05_lstm_and_gru.ipynb", "hw 1/Copy of 05.ipynb"]
)
def test_a_zip_or_a_folder_of_one_student(course, tmp_path, inside):
    """Fails if a download that is one student's is not named after it."""
    assert run(
        course, pack(tmp_path / "ada.zip", {inside: text(answer="mine"), "notes.txt": "x", "homework1/a.csv": "y"})
    )
    assert answers(course) == {"ada": {LSTM: "mine"}}
    assert aside(course, "ada") == ["a.csv", "notes.txt"]
    (tmp_path / "bob").mkdir()
    (tmp_path / "bob" / "07_attention.ipynb").write_text(text(ATTENTION, "mine"))
    assert run(course, tmp_path / "bob")
    assert answers(course)["bob"] == {ATTENTION: "mine"}


@pytest.mark.parametrize(
    "bad", ["../" * 9, "ø" * 300, "a" * 300, "+" * 5, "...", "CON", "\x1b[2J", "=1+1", "-rf", "☕", "\u202eada"]
)
def test_every_name_gives_a_safe_id(bad):
    """Fails if a name can become a path, a wildcard, an option, or nothing."""
    found = people.safe(bad)
    assert 1 <= len(found) <= 60
    assert set(found) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert found[0] != "-"


def test_two_of_one_name_are_told_apart(course, tmp_path, capsys):
    """Fails if one of two people with the same name overwrites the other, or nobody hears of it."""
    canvas = {f"kimmin_{n}_4{n}_05_lstm_and_gru.ipynb": text(answer=f"c{n}") for n in (11, 12)}
    moodle = {f"Min Kim_{n}_assignsubmission_file_/x.ipynb": text(answer=f"m{n}") for n in (901, 902)}
    plain = {"Müller/x.ipynb": text(answer="ü"), "Muller/x.ipynb": text(answer="u")}
    assert run(
        course, pack(tmp_path / "a.zip", canvas), pack(tmp_path / "b.zip", moodle), pack(tmp_path / "c.zip", plain)
    )
    found = {student: made[LSTM] for student, made in answers(course).items()}
    assert found == {"kimmin-11": "c11", "kimmin-12": "c12", "min-kim-901": "m901", "min-kim-902": "m902",
                     "muller": "ü", "muller-2": "u"}  # fmt: skip
    assert "several have this name" in capsys.readouterr().out
    assert run(course, pack(tmp_path / "d.zip", {"Muller/x.ipynb": text(answer="new")}))
    assert answers(course)["muller-2"][LSTM] == "new", "the next time, each is the same again"


def test_moodles_numbers_are_of_one_assignment(course, tmp_path):
    """Fails if a student becomes another one in the next assignment, where Moodle's number is another."""
    run(course, pack(tmp_path / "a.zip", {"Ada Lovelace_5_assignsubmission_file_/x.ipynb": text()}))
    os.rename(course / "release" / "homework1", course / "release" / "homework2")
    collect.collect(
        course, "homework2", [pack(tmp_path / "b.zip", {"Ada Lovelace_99_assignsubmission_file_/x.ipynb": text()})]
    )
    assert [path.name for path in (course / "submitted").iterdir()] == ["ada-lovelace"]


def roster(course, lines, head="id,last_name,first_name,email,canvas_id,moodle_id", coding="utf8"):
    (course / "students.csv").write_bytes("\n".join([head, *lines]).encode(coding))


@pytest.mark.parametrize(
    "file",
    [
        "lovelaceada_123_4567_x.ipynb", "lovelaceada_999_4567_x.ipynb", "other_123_4567_x.ipynb",
        "Ada Lovelace_5_assignsubmission_file_/x.ipynb", "Lovelace Ada_6_assignsubmission_file_/x.ipynb",
        "Participant_31_assignsubmission_file_/x.ipynb", "al99/x.ipynb", "AL99_05_lstm_and_gru.ipynb",
        "Ada Lovelace/x.ipynb",
        "Lovelace, Ada/x.ipynb", "lovelace_ada_05_lstm_and_gru.ipynb", "ada.l@example.org/x.ipynb", "ada.l/x.ipynb",
    ],
)  # fmt: skip
@pytest.mark.parametrize("coding", ["utf-8-sig", "cp1252"])
def test_the_roster_says_who_it_is(course, tmp_path, capsys, file, coding):
    """Fails if a student of students.csv is not found by name, number, id or address."""
    roster(course, ["al99,Lovelace,Ada,ada.l@example.org,123,Participant 31", "jm,Müller,Jonas,,,"], coding=coding)
    assert run(course, pack(tmp_path / "x.zip", {file: text(answer="mine")}))
    assert answers(course) == {"al99": {LSTM: "mine"}}
    said = capsys.readouterr().out
    assert "missing, 1 of 2 in students.csv: jm (Jonas Müller)" in said
    assert "nobody in students.csv" not in said


def test_who_is_nobody_in_the_roster_is_collected_and_named(course, tmp_path, capsys):
    """Fails if somebody who is not in students.csv is lost, or comes in without a word."""
    roster(course, ["ada,Lovelace,Ada,,,"])
    assert run(course, pack(tmp_path / "x.zip", {"Eve/x.ipynb": text(answer="mine")}))
    assert answers(course) == {"eve": {LSTM: "mine"}}
    said = capsys.readouterr().out
    assert "Eve: nobody in students.csv; collected as eve" in said
    assert "missing, 1 of 1" in said


def test_a_name_that_two_in_the_roster_have_is_nobodys(course, tmp_path):
    """Fails if the work of one of two people of a name is given to the other."""
    roster(course, ["mk1,Kim,Min,,11,", "mk2,Kim,Min,,,"])
    files = {f"kimmin_{n}_4{n}_x.ipynb": text(answer=f"c{n}") for n in (11, 12)} | {
        "Min Kim/x.ipynb": text(answer="plain")
    }
    assert run(course, pack(tmp_path / "x.zip", files))
    assert {s: a[LSTM] for s, a in answers(course).items()} == {"mk1": "c11", "kimmin-12": "c12", "min-kim": "plain"}


def test_a_roster_with_one_of_two_namesakes(course, tmp_path):
    """Fails if two of Canvas's people are both taken for the one in students.csv."""
    roster(course, ["mk1,Kim,Min,,,"])
    files = {f"kimmin_{n}_4{n}_x.ipynb": text(answer=f"c{n}") for n in (11, 12)}
    assert run(course, pack(tmp_path / "x.zip", files))
    assert sorted(answers(course)) == ["kimmin-11", "kimmin-12"]


@pytest.mark.parametrize(
    ("lines", "wanted"),
    [
        (["../../x,A,B,,,"], "line 2: got id"),
        ([",A,B,,,"], "line 2: got id ''"),
        (["a,A,B,,,", "a,C,D,,,"], "line 3: .*twice"),
    ],
)
def test_a_roster_with_a_mistake_is_not_read(course, tmp_path, lines, wanted):
    """Fails if an id leads out of the course folder, or a mistake passes in silence."""
    roster(course, lines)
    with pytest.raises(ValueError, match=wanted):
        run(course, pack(tmp_path / "x.zip", {"ada/x.ipynb": text()}))


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("eve_7_4567_lovelaceada_123_9999_05_lstm_and_gru.ipynb", "eve-7"),
        ("eve_7_4567_Ada Lovelace_98765_assignsubmission_file_05.ipynb", "eve-7"),
        ("Eve_7_assignsubmission_file_/lovelaceada_123_9999_05.ipynb", "eve"),
        ("Eve_7_assignsubmission_file_/Ada Lovelace_98765_assignsubmission_file_/05.ipynb", "eve"),
        ("Eve_7_assignsubmission_file_Ada Lovelace_98765_assignsubmission_file_05.ipynb", "eve"),
        ("eve/lovelaceada/05_lstm_and_gru.ipynb", "eve"),
        ("eve_7_4567_hw.zip", "eve-7"),
        ("eve.zip", None),
    ],
)
def test_nobody_hands_in_in_anothers_name(course, tmp_path, file, owner):
    """Fails if a student's own file or folder name, or one in a zip, puts the work under somebody else's."""
    good = {
        "lovelaceada_123_4000_x.ipynb": text(answer="ada's"),
        "Ada Lovelace_98765_assignsubmission_file_/x.ipynb": text(),
    }
    inner = {"lovelaceada_123_9999_05_lstm_and_gru.ipynb": text(answer="eve's")}
    assert run(
        course, pack(tmp_path / "x.zip", {file: packed(inner) if file.endswith("zip") else text(answer="eve's")} | good)
    )
    assert answers(course)["lovelaceada-123"][LSTM] == "ada's"
    assert set(answers(course)) == {"lovelaceada-123", "ada-lovelace"} | ({owner} if owner else set())


@pytest.mark.parametrize("inner", ["lovelaceada_123_9_x.ipynb", "Ada_1_assignsubmission_file_/x.ipynb"])
def test_a_platforms_download_in_a_folder_is_no_students_zip(course, tmp_path, capsys, inner):
    """Fails if the whole class's work is taken for one student's because the zip lies in a folder of plain ones."""
    files = {"submissions.zip": {inner: text()}, "bob.zip": {"x.ipynb": text(answer="bob's"), "plot_1_2_x.png": "x"}}
    assert run(course, pack(tmp_path / "class.zip", files))
    assert answers(course) == {"bob": {LSTM: "bob's"}}
    assert "looks like a download of Canvas or Moodle" in capsys.readouterr().out


def test_one_number_with_two_names_is_said(course, tmp_path, capsys):
    """Fails if somebody who calls himself `x_123` in Canvas is taken for number 123."""
    roster(course, ["ada,Lovelace,Ada,,123,"])
    files = {"lovelaceada_123_4000_x.ipynb": text(answer="ada's"), "x_123_900_9000_y.ipynb": text(answer="eve's")}
    assert run(course, pack(tmp_path / "x.zip", files))
    assert answers(course)["ada"][LSTM] == "ada's"
    assert "is there with another name too" in capsys.readouterr().out


# Which file counts.


def test_the_exercises_say_which_notebook_it_is(course, tmp_path):
    """Fails if a file's name counts for more than what is in it."""
    files = {"ada/05_lstm_and_gru.ipynb": text(ATTENTION, "seven"), "ada/final FINAL.ipynb": text(LSTM, "five")}
    assert run(course, pack(tmp_path / "x.zip", files))
    assert answers(course) == {"ada": {LSTM: "five", ATTENTION: "seven"}}


def test_a_notebook_without_its_exercises_is_not_taken_by_its_name(course, tmp_path, capsys):
    """Fails if a notebook that has lost its metadata is graded with no points and without a word."""
    bare = notebook(LSTM, "mine")
    for made in bare.cells:
        made.metadata = {}
    assert run(course, pack(tmp_path / "x.zip", {"ada/05_lstm_and_gru.ipynb": nbformat.writes(bare)}))
    assert answers(course) == {}
    assert "ada: set aside: 05_lstm_and_gru.ipynb: holds none of the assignment's exercises" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("lovelaceada_123_4000_05_lstm_and_gru.ipynb", "lovelaceada_123_4567_05_lstm_and_gru-1.ipynb"),
        ("lovelaceada_123_4567_05_lstm_and_gru-2.ipynb", "lovelaceada_late_123_4600_05_lstm_and_gru-10.ipynb"),
        ("lovelaceada_123_4567_05_lstm_and_gru.ipynb", "lovelaceada_123_4567_05_lstm_and_gru-2.ipynb"),
        ("lovelaceada_123_999_z.ipynb", "lovelaceada_123_4567_a.ipynb"),
        ("A_1_assignsubmission_file_/05_lstm_and_gru.ipynb", "A_1_assignsubmission_file_/05_lstm_and_gru (1).ipynb"),
        (
            "A_1_assignsubmission_file_/05_lstm_and_gru (9).ipynb",
            "A_1_assignsubmission_file_/05_lstm_and_gru (10).ipynb",
        ),
    ],
)
@pytest.mark.parametrize("turned", [True, False])
def test_the_newest_of_several_counts(course, tmp_path, capsys, old, new, turned):
    """Fails if an older upload counts, or if it is lost or not named."""
    files = [(old, text(answer="old")), (new, text(answer="new"))]
    assert run(course, pack(tmp_path / "x.zip", files[::-1] if turned else files))
    assert [made[LSTM] for made in answers(course).values()] == ["new"]
    assert "older than" in capsys.readouterr().out
    assert ["taken" in line["what"] for line in table(course)] == [True, False]
    (kept,) = course.glob("set_aside/homework1/*/*")
    assert "old" in kept.read_text()


def test_of_several_downloads_the_last_counts(course, tmp_path):
    """Fails if an e-mailed file does not replace the platform's, whichever comes first by name."""
    paths = [pack(tmp_path / name / "x.zip", {"ada/x.ipynb": text(answer=name)}) for name in ("2", "1", "3")]
    assert run(course, *paths)
    assert answers(course) == {"ada": {LSTM: "3"}}


def test_two_entries_of_one_name(course, tmp_path):
    """Fails if the second of two entries with the same name hides the first without a word."""
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = pack(tmp_path / "x.zip", [("ada/x.ipynb", text(answer="1")), ("ada/x.ipynb", text(answer="2"))])
    assert run(course, path)
    assert answers(course) == {"ada": {LSTM: "2"}}
    assert aside(course) == ["x.ipynb"]


def test_a_checkpoint_or_macos_shadow_is_no_submission(course, tmp_path):
    """Fails if a file that a program left there counts in the place of the student's."""
    files = {"ada/x.ipynb": text(answer="mine"), "ada/.ipynb_checkpoints/x-checkpoint (9).ipynb": text(answer="old"),
             "__MACOSX/ada/._x.ipynb": "\x00\x05", "ada/._x.ipynb": "\x00", "ada/.DS_Store": "x"}  # fmt: skip
    assert run(course, pack(tmp_path / "x.zip", files))
    assert answers(course) == {"ada": {LSTM: "mine"}}
    assert aside(course) == []


# Again.


def test_collecting_again_changes_nothing(course, tmp_path):
    """Fails if a second run moves, doubles or renames anything."""
    files = {
        "ada_1_2_x.ipynb": text(answer="1"),
        "ada_1_3_y.ipynb": text(answer="2"),
        "ada_1_4_z.pdf": "z",
        "bob_2_5_x.ipynb": "{",
    }
    path = pack(tmp_path / "x.zip", files)
    assert run(course, path)
    before = everything(course)
    assert run(course, path)
    assert everything(course) == before


def test_a_resubmission_replaces_and_the_earlier_one_is_kept(course, tmp_path, capsys):
    """Fails if the earlier file is lost, the other notebook is touched, or nothing is said."""
    run(course, pack(tmp_path / "a.zip", {"ada/x.ipynb": text(LSTM, "old"), "ada/y.ipynb": text(ATTENTION, "same")}))
    (course / "submitted/ada/homework1/timestamp.txt").write_text("2027-01-31 10:00:00 UTC\n")
    (course / "autograded/ada/homework1").mkdir(parents=True)
    capsys.readouterr()
    run(course, pack(tmp_path / "b.zip", {"ada/x.ipynb": text(LSTM, "new"), "bob/x.ipynb": text(LSTM, "bob's")}))
    assert answers(course) == {"ada": {LSTM: "new", ATTENTION: "same"}, "bob": {LSTM: "bob's"}}
    said = capsys.readouterr().out
    assert "ada: 05_lstm_and_gru.ipynb is set aside: replaced by x.ipynb" in said
    assert "nbgrader autograde homework1 --student=ada --force" in said
    assert aside(course) == ["05_lstm_and_gru.ipynb", "timestamp.txt"], "the time was of the earlier file"
    assert "old" in (course / "set_aside/homework1/ada/05_lstm_and_gru.ipynb").read_text()
    taken = [line for line in table(course) if line["what"] == "taken"]
    assert sorted((line["student"], line["notebook"]) for line in taken) == [
        ("ada", LSTM),
        ("ada", ATTENTION),
        ("bob", LSTM),
    ]


def test_an_old_download_does_not_undo_a_new_one(course, tmp_path, capsys):
    """Fails if Canvas's zip of last week, collected by mistake, replaces what was handed in since."""
    old = pack(tmp_path / "old.zip", {"ada_1_4000_x.ipynb": text(answer="old")})
    new = pack(tmp_path / "new.zip", {"ada_1_5000_x-1.ipynb": text(answer="new")})
    run(course, new)
    run(course, old)
    assert answers(course) == {"ada-1": {LSTM: "new"}}
    assert "collected before" in capsys.readouterr().out
    run(course, new)
    assert [line["file"] for line in table(course) if line["what"] == "taken"] == ["ada_1_5000_x-1.ipynb"]


# Times.


def test_a_time_in_a_download_is_not_believed(course, tmp_path):
    """Fails if a student's own timestamp.txt counts, or the time of a zip's entry is taken for the submission's."""
    stamp = "2027-01-31 10:00:00 +01:00\n"
    folder = tmp_path / "class"
    for name, content in {"ada/x.ipynb": text().encode(), "ada/timestamp.txt": stamp.encode(),
                          "bob.zip": packed({"x.ipynb": text(), "timestamp.txt": stamp})}.items():  # fmt: skip
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    moodle = {"Eve_1_assignsubmission_file_/x.ipynb": text(), "Eve_1_assignsubmission_file_/timestamp.txt": stamp}
    assert run(
        course,
        folder,
        pack(tmp_path / "m.zip", moodle),
        pack(tmp_path / "c.zip", {"cy/x.ipynb": text(), "cy/timestamp.txt": stamp}),
    )
    assert list(course.glob("submitted/*/homework1/timestamp.txt")) == []
    assert {line["student"]: line["handed_in"] for line in table(course) if line["what"] == "taken"} == {
        "ada": "", "bob": "", "cy": "", "eve": ""}  # fmt: skip


# What cannot be read.


def v3(answer):
    made = nbformat.v3.new_notebook(
        worksheets=[nbformat.v3.new_worksheet(cells=[nbformat.v3.new_code_cell(input=answer)])]
    )
    return nbformat.v3.writes_json(made)


def with_cells(**changes):
    raw = json.loads(text(answer="mine"))
    raw["cells"][0] |= changes
    return json.dumps(raw)


BROKEN = {
    "nothing": b"",
    "spaces": b"  \n",
    "text": b"{not JSON",
    "utf-16": text().encode("utf-16"),
    "bytes": b"\xff\xfe\x00",
    "list": b"[]",
    "number": b"5",
    "no cells": b'{"nbformat": 4, "nbformat_minor": 5}',
    "cells a number": b'{"cells": 3, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    "cells a dict": b'{"cells": {"a": 1}, "nbformat": 4, "nbformat_minor": 5, "metadata": {}}',
    "cell without a source": b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [{"cell_type": "code"}]}',
    "cells of lists": b'{"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": [[[]]]}',
    "100,000 deep": b"[" * 100_000,
    "deep in it": b'{"cells": [' + b"[" * 900 + b"]" * 900 + b"]}",
    "long number": b'{"cells": [' + b"9" * 10_000 + b"]}",
    "9,999 cells": b'{"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": ['
    + b'{"source": "x"},' * 9_999
    + b"{}]}",
    "a page of HTML": b"<!DOCTYPE html><title>Sign in</title>",
    "format 99": b'{"nbformat": 99, "cells": [{"cell_type": "code", "source": "x"}]}',
    "format 3, another": v3("x = 1").encode(),
    "foreign": nbformat.writes(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("x")])).encode(),
    "a zip": packed({"x.ipynb": text()}),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_what_cannot_be_read_is_set_aside(course, tmp_path, capsys, broken):
    """Fails if a broken notebook stops the others, is lost, or nobody hears of it."""
    files = {"ada/x.ipynb": broken, "ada/y.ipynb": text(ATTENTION, "ada's"), "bob/x.ipynb": text(answer="bob's")}
    assert run(course, pack(tmp_path / "x.zip", files))
    assert answers(course) == {"ada": {ATTENTION: "ada's"}, "bob": {LSTM: "bob's"}}
    assert (course / "set_aside/homework1/ada/x.ipynb").read_bytes() == broken
    assert "ada: set aside: x.ipynb: " in capsys.readouterr().out
    assert [line["what"].partition(":")[0] for line in table(course)] == ["taken", "set aside", "taken"]


REPAIRED = {
    "a grade_id of lists": with_cells(metadata={"nbgrader": {"grade_id": ["list"]}}),
    "marks of text": with_cells(metadata={"nbgrader": "text"}),
    "no metadata": with_cells(metadata=None),
    "tags": with_cells(metadata={"tags": 5, "nbgrader": None}),
    "a source of numbers": with_cells(source=[1, "x", None]),
    "a source that is a dict": with_cells(source={"a": 1}),
    "half a letter": with_cells(source="x = '\ud83d'"),
    "half a letter in a name": with_cells(metadata={"\ud83d": "\ud83d"}),
    "an unknown kind of cell": with_cells(cell_type="evil"),
    "attachments": with_cells(cell_type="markdown", attachments=[1]),
    "outputs": with_cells(outputs={"a": 5}),
    "two cells of one id": with_cells(id="ex05-1"),
    "Windows' mark": "\ufeff" + text(answer="mine"),
}


@pytest.mark.filterwarnings("ignore::nbformat.warnings.DuplicateCellId")
@pytest.mark.parametrize("odd", REPAIRED.values(), ids=REPAIRED)
def test_one_odd_cell_does_not_cost_the_others(course, tmp_path, odd):
    """Fails if an odd cell loses a notebook, or what is collected would bring nbgrader down."""
    assert run(course, pack(tmp_path / "x.zip", {"ada/x.ipynb": odd.encode("utf8", "surrogatepass")}))
    made = nbformat.read(course / "submitted/ada/homework1/05_lstm_and_gru.ipynb", as_version=4)
    release = intake.released(course / "release/homework1")[LSTM]
    back = intake.restored(release, made)
    assert [c.source for c in back.cells if c.metadata.get("nbgrader", {}).get("solution")] == ["mine", "stub"]
    nbformat.writes(back).encode()
    before = everything(course)
    assert run(course, tmp_path / "x.zip")
    assert everything(course) == before, "the second time there is nothing to repair"


@pytest.mark.parametrize(
    "more",
    [
        '"x": [' + "{}," * 1_000_000 + "0]",
        '"x": [' + "[[]]," * 1_000_000 + "0]",
        ",".join(f'"{n}": {n}' for n in range(500_000)),
    ],
    ids=["dicts", "lists", "keys"],
)
def test_a_notebook_that_is_slow_to_read_is_read_without_it(course, tmp_path, more):
    """Fails if a few megabytes of metadata hold up the collecting, and every later step, for minutes."""
    odd = text(answer="mine").replace('"metadata": {}', '"metadata": {' + more + "}")
    start = time.monotonic()
    assert run(course, pack(tmp_path / "x.zip", [("ada/x.ipynb", odd)]))
    assert time.monotonic() - start < 20
    taken = (course / "submitted/ada/homework1/05_lstm_and_gru.ipynb").read_text()
    assert '"source": "mine"' in taken
    assert len(taken) < 10_000
    assert aside(course) == ["x.ipynb"]


def entry(name, mode=0, **more):
    made = zipfile.ZipInfo(name)
    made.external_attr = mode << 16
    for key, value in more.items():
        setattr(made, key, value)
    return made


def corrupt(data):
    """Change a byte in the middle of the first entry's content."""
    return data[:60] + bytes([data[60] ^ 255]) + data[61:]


def locked(data):
    """Set the marks of encryption in a zip."""
    data = bytearray(data)
    data[6] |= 1
    data[data.index(b"PK\1\2") + 8] |= 1
    return bytes(data)


def bomb(size=300 * 2**20):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("x.ipynb", "w") as file:
        for _ in range(size // 2**20):
            file.write(bytes(2**20))
    return data.getvalue()


def lying_bomb():
    """A zip whose list says that 50 MiB are 100 bytes."""
    data = bytearray(bomb(50 * 2**20))
    place = data.index(b"PK\1\2") + 24
    data[place : place + 4] = (100).to_bytes(4, "little")
    return bytes(data)


def other_packing(kind):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w", kind) as archive:
        archive.writestr("x.ipynb", text(answer="mine"))
    return data.getvalue()


def many(number):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for n in range(number):
            archive.writestr(f"{n}.txt", "")
    return data.getvalue()


ZIPS = {
    "no zip": b"PK\3\4 and no more",
    "nothing": b"",
    "cut": packed({"x.ipynb": text()})[:-40],
    "changed": corrupt(packed({"x.ipynb": text()})),
    "locked": locked(packed({"x.ipynb": text()})),
    "out of it": packed({"../../../x.ipynb": text()}),
    "absolute": packed({"/tmp/x.ipynb": text()}),
    "a drive": packed({"C:\\x.ipynb": text()}),
    "a link": packed([(entry("x.ipynb", stat.S_IFLNK | 0o777), "/etc/passwd")]),
    "a pipe": packed([(entry("x.ipynb", stat.S_IFIFO | 0o666), "")]),
    "a bomb": bomb(),
    "a bomb that lies": lying_bomb(),
    "bzip2": other_packing(zipfile.ZIP_BZIP2),
    "lzma": other_packing(zipfile.ZIP_LZMA),
    "a folder x.ipynb": packed({"x.ipynb/": ""}),
    "a zip in a zip in a zip": packed({"y.zip": {"x.ipynb": text()}}),
    "20,000 files": many(20_000),
    "no file": packed({}),
    "no notebook": packed({"x.pdf": "x"}),
}


@pytest.mark.parametrize("data", ZIPS.values(), ids=ZIPS)
@pytest.mark.parametrize("name", ["ada_7_8_hw.zip", "Ada_7_assignsubmission_file_/hw.zip", "ada.zip"])
def test_a_bad_zip_is_set_aside_and_the_others_go_on(course, tmp_path, capsys, data, name):
    """Fails if one student's zip stops the class, is unpacked where it should not be, or is lost."""
    start = time.monotonic()
    assert run(course, pack(tmp_path / "x.zip", [(entry(name), data), ("bob_1_2_x.ipynb", text(answer="bob's"))]))
    assert time.monotonic() - start < 20
    assert answers(course) == {"bob-1": {LSTM: "bob's"}}
    (student,) = {line["student"] for line in table(course)} - {"bob-1"}
    assert student in ("ada", "ada-7")
    assert aside(course, student)
    said = capsys.readouterr().out
    assert f"{student}: set aside" in said
    assert f"no readable notebook: {student}" in said
    assert set(os.listdir(tmp_path)) == {"grading", "x.zip"}
    assert all(stat.S_ISREG(p.lstat().st_mode) or stat.S_ISDIR(p.lstat().st_mode) for p in course.rglob("*"))


def test_a_good_file_beside_a_bad_one_in_a_zip(course, tmp_path):
    """Fails if one entry that cannot be read costs the student all the others."""
    data = packed(
        [
            ("../x.ipynb", text()),
            (entry("l", stat.S_IFLNK), "/etc"),
            ("good.ipynb", text(answer="mine")),
            ("a.pdf", "a"),
        ]
    )
    assert run(course, pack(tmp_path / "x.zip", {"ada_7_8_hw.zip": data}))
    assert answers(course) == {"ada-7": {LSTM: "mine"}}
    assert aside(course, "ada-7") == ["ada_7_8_hw.zip"], "with everything that is in it"


@pytest.mark.parametrize("data", [b"", b"no zip", packed({"x.ipynb": text()})[:-40]], ids=["empty", "text", "cut"])
def test_a_download_that_is_broken_does_not_stop_the_next(course, tmp_path, capsys, data):
    """Fails if the whole class waits for one download, or the command calls this a success."""
    (tmp_path / "bad.zip").write_bytes(data)
    good = pack(tmp_path / "good.zip", {"ada/x.ipynb": text(answer="mine")})
    assert not run(course, tmp_path / "bad.zip", good)
    assert answers(course) == {"ada": {LSTM: "mine"}}
    assert "bad.zip: " in capsys.readouterr().out


@pytest.mark.parametrize("name", ["../../../../ada/x.ipynb", "/ada/x.ipynb", "ada/../../x.ipynb", "..\\ada\\x.ipynb"])
def test_a_download_cannot_write_elsewhere(course, tmp_path, name):
    """Fails if an entry's name takes it out of the course folder."""
    assert run(course, pack(tmp_path / "x.zip", {name: text(), "bob/x.ipynb": text(answer="bob's")}))
    assert answers(course) == {"bob": {LSTM: "bob's"}}
    assert set(os.listdir(tmp_path)) == {"grading", "x.zip"}


def test_names_in_other_encodings(course, tmp_path):
    """Fails if macOS's UTF-8 without a mark, or a backslash from Windows, spoils a name."""
    path = pack(tmp_path / "x.zip", {"M##ller/x.ipynb": text(answer="mine"), "Windows\\y.ipynb": text(answer="w")})
    data = path.read_bytes().replace(b"M##ller", "Müller".encode())
    path.write_bytes(data)
    assert run(course, path)
    assert {s: a[LSTM] for s, a in answers(course).items()} == {"muller": "mine", "windows": "w"}


def test_a_hundred_thousand_entries(course, tmp_path):
    """Fails if a huge class's zip takes for ever, or floods the screen."""
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(100_000):
            archive.writestr(f"eve/{n}.txt", "")
        archive.writestr("ada/x.ipynb", text(answer="mine"))
    start = time.monotonic()
    assert run(course, path)
    assert time.monotonic() - start < 60
    assert answers(course) == {"ada": {LSTM: "mine"}}
    assert len(table(course)) < 1_100


def test_a_large_notebook_is_left_in_the_download(course, tmp_path, capsys):
    """Fails if 500 MB are read, or copied, for one student."""
    folder = tmp_path / "class" / "ada"
    folder.mkdir(parents=True)
    sparse(folder / "x.ipynb")
    (folder / "y.ipynb").write_text(text(ATTENTION, "mine"))
    assert run(course, tmp_path / "class")
    assert answers(course) == {"ada": {ATTENTION: "mine"}}
    assert "ada: set aside: x.ipynb: too large (more than 20 MiB); left in the download" in capsys.readouterr().out


def test_links_and_pipes_in_a_folder(course, tmp_path):
    """Fails if collecting follows a link to the instructor's own files, or waits at a pipe."""
    folder = tmp_path / "class" / "ada"
    folder.mkdir(parents=True)
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key.ipynb").write_text(text(answer="the key"))
    (folder / "x.ipynb").symlink_to(tmp_path / "secret" / "key.ipynb")
    (folder / "sub").symlink_to(tmp_path / "secret")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "z.ipynb")
    (folder / "d.ipynb").mkdir()
    (folder / "y.ipynb").write_text(text(ATTENTION, "mine"))
    assert run(course, tmp_path / "class")
    assert answers(course) == {"ada": {ATTENTION: "mine"}}
    assert not any("the key" in str(data) for data in everything(course).values())


@pytest.mark.parametrize("link", ["submitted", "submitted/ada", "submitted/ada/homework1"])
def test_nothing_is_written_through_a_link(course, tmp_path, capsys, link):
    """Fails if a link in the course folder takes a student's file elsewhere."""
    (tmp_path / "elsewhere").mkdir()
    (course / link).parent.mkdir(parents=True, exist_ok=True)
    (course / link).symlink_to(tmp_path / "elsewhere")
    assert run(course, pack(tmp_path / "x.zip", {"ada/x.ipynb": text(answer="mine")}))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert "ada: not collected: " in capsys.readouterr().out


def test_a_link_in_the_place_of_a_notebook_is_replaced(course, tmp_path):
    """Fails if a student's file is written over the instructor's."""
    secret = tmp_path / "secret.ipynb"
    secret.write_text("secret")
    folder = course / "submitted/ada/homework1"
    folder.mkdir(parents=True)
    (folder / f"{LSTM}.ipynb").symlink_to(secret)
    assert run(course, pack(tmp_path / "x.zip", {"ada/x.ipynb": text(answer="mine")}))
    assert secret.read_text() == "secret"
    assert answers(course) == {"ada": {LSTM: "mine"}}


def test_permissions_are_plain(course, tmp_path):
    """Fails if a file that was handed in can be run."""
    files = [(entry("ada/x.ipynb", stat.S_IFREG | 0o7777), text()), (entry("ada/evil.sh", stat.S_IFREG | 0o7777), "rm")]
    assert run(course, pack(tmp_path / "x.zip", files))
    made = [p for p in course.rglob("*") if p.is_file() and ("submitted" in p.parts or "set_aside" in p.parts)]
    assert len(made) == 2
    assert all(p.stat().st_mode & 0o7133 == 0 for p in made)


def test_hostile_names_on_the_screen_and_in_the_table(course, tmp_path, capsys):
    """Fails if a name clears the instructor's screen, or is a formula in a spreadsheet."""
    files = {
        "ada_1_2_\x1b[2J\rx.pdf": "x",
        "=cmd|'x'!A1/y.pdf": "y",
        "=cmd|'x'!A1/y.ipynb": text(),
        "b_1_3_" + "n" * 200 + ".pdf": "z",
    }
    assert run(course, pack(tmp_path / "x.zip", files))
    assert "\x1b" not in capsys.readouterr().out
    assert not any(value.startswith(("=", "+", "-", "@")) for line in table(course) for value in line.values())


def test_an_error_with_one_student_does_not_stop_the_others(course, tmp_path, capsys, monkeypatch):
    """Fails if whatever nobody thought of stops the class."""
    real = collect.Submission.read

    def broken(self, *about):
        if self.student == "ada":
            raise RuntimeError("nobody thought of it")
        return real(self, *about)

    monkeypatch.setattr(collect.Submission, "read", broken)
    assert run(course, pack(tmp_path / "x.zip", {"ada/x.ipynb": text(), "bob/x.ipynb": text(answer="bob's")}))
    assert answers(course) == {"bob": {LSTM: "bob's"}}
    assert "ada: not collected: nobody thought of it" in capsys.readouterr().out


def test_text_typed_into_the_platform_is_no_notebook(course, tmp_path):
    """Fails if a student who typed text is taken for one who handed in nothing."""
    files = {
        "Ada_1_assignsubmission_onlinetext_/onlinetext.html": "<p>",
        "bob_2_text.html": "x",
        "cy_late_3_4_x.ipynb": text(),
    }
    assert run(course, pack(tmp_path / "x.zip", files))
    assert {line["student"]: line["what"] for line in table(course)} == {
        "ada": "set aside: not a notebook",
        "bob-2": "set aside: not a notebook",
        "cy-3": "taken",
    }


def test_the_words_for_wrong_use(course, tmp_path):
    """Fails if a mistake of the instructor's ends in a traceback, or in collecting the course's own folders."""
    with pytest.raises(ValueError, match=r"nowhere.*wanted a zip or a folder"):
        run(course, tmp_path / "nowhere.zip")
    (course / "submitted").mkdir()
    for path in (course, course / "submitted"):
        with pytest.raises(ValueError, match="collected before"):
            run(course, path)
    with pytest.raises(ValueError, match="was homework7 released"):
        collect.collect(course, "homework7", [])
    with pytest.raises(ValueError, match=r"got NAME='\.\./x'"):
        collect.collect(course, "../x", [])


def test_the_command(course, tmp_path, capsys):
    """Fails if the command line does not collect, or a mistake does not show its usage."""
    path = pack(tmp_path / "x.zip", {"ada/x.ipynb": text()})
    assert collect.main(["--course", str(course), "--name", "homework1", str(path)]) == 0
    assert "homework1: 1 students, 1 notebooks; the list: grading/collected/homework1.csv" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        collect.main(["--course", str(course), "--name", "homework1", str(tmp_path / "no.zip")])


# What nbgrader calls.


@pytest.fixture
def folder(course):
    folder = course / "submitted/ada/homework1"
    folder.mkdir(parents=True)
    return folder


def taken_in(folder, good=True):
    """Call take_in as nbgrader does; return {notebook: whether an answer is in it}. Nothing else may be left."""
    found = [str(path) for path in folder.glob("*.ipynb")]
    collect.take_in("*", "*", found)
    assert found == [str(folder / f"{stem}.ipynb") for stem in STEMS]
    for path in folder.iterdir():
        about = path.lstat()
        assert path.stem in STEMS or path.name == "timestamp.txt"
        assert stat.S_ISREG(about.st_mode)
        assert about.st_nlink == 1
    return {stem: "mine" in (folder / f"{stem}.ipynb").read_text(encoding="utf8") for stem in STEMS}


def hand_in(folder, stem=LSTM, name=None):
    (folder / (name or f"{stem}.ipynb")).write_text(text(stem, "mine"))


def test_what_is_whole_is_left_alone(folder, capsys):
    hand_in(folder, LSTM)
    hand_in(folder, ATTENTION)
    (folder / "timestamp.txt").write_text("2027-02-01 09:30:00 UTC\n")
    before = everything(folder)
    assert taken_in(folder) == {LSTM: True, ATTENTION: True}
    assert everything(folder) == before
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
def test_take_in_sets_aside_what_cannot_be_read(course, folder, broken, capsys):
    """Fails if a broken file takes the other notebook with it, is lost, or is left for nbgrader to stumble over."""
    hand_in(folder, ATTENTION)
    (folder / f"{LSTM}.ipynb").write_bytes(broken)
    found = taken_in(folder)
    assert found == {LSTM: False, ATTENTION: True}
    said = capsys.readouterr().out
    assert (course / f"set_aside/homework1/ada/{LSTM}.ipynb").read_bytes() == broken
    assert f"ada: {LSTM}.ipynb is set aside: " in said
    assert f"ada: {LSTM}.ipynb is missing; it is graded as it was handed out" in said


@pytest.mark.parametrize("odd", REPAIRED.values(), ids=REPAIRED)
def test_take_in_repairs_an_odd_cell(folder, odd):
    """Fails if nbgrader would stumble over marks of another type than its own."""
    (folder / f"{LSTM}.ipynb").write_bytes(odd.encode("utf8", "surrogatepass"))
    assert taken_in(folder)[LSTM]


@pytest.mark.parametrize(
    "name", ["05 (1).ipynb", "05-Copy1.ipynb", "homework.ipynb", "05_lstm_and_gru.ipynb.txt", "a.ipynb.json"]
)
def test_another_file_name_is_recognised_by_the_exercises(course, folder, name, capsys):
    hand_in(folder, LSTM, name)
    hand_in(folder, ATTENTION)
    assert taken_in(folder) == {LSTM: True, ATTENTION: True}
    assert f"ada: {name} is set aside: its gradable parts are used for {LSTM}.ipynb" in capsys.readouterr().out
    assert aside(course, "ada") == [name]


def test_notebooks_with_each_others_names(folder):
    """Fails if what is saved under the other's name counts for nothing."""
    hand_in(folder, LSTM, f"{ATTENTION}.ipynb")
    hand_in(folder, ATTENTION, f"{LSTM}.ipynb")
    assert taken_in(folder) == {LSTM: True, ATTENTION: True}
    assert '"ex07-1"' in (folder / f"{ATTENTION}.ipynb").read_text()


def test_a_foreign_notebook_is_not_taken(folder, capsys):
    """Fails if any notebook at all is graded in the place of a missing one."""
    hand_in(folder, ATTENTION)
    nbformat.write(nbformat.v4.new_notebook(), folder / "other.ipynb")
    assert taken_in(folder) == {LSTM: False, ATTENTION: True}
    assert f"ada: {LSTM}.ipynb is missing" in capsys.readouterr().out


def sparse(path):
    path.touch()
    os.truncate(path, 500 * 2**20)


ODD = {  # what may lie in a folder and does not belong there
    "a link": lambda folder, outside: (folder / "x.html").symlink_to(outside / "config.py"),
    "a link as a notebook": lambda folder, outside: (folder / f"{LSTM}.ipynb").symlink_to(outside / "key.ipynb"),
    "a link to nothing": lambda folder, outside: (folder / f"{LSTM}.ipynb").symlink_to("nothing"),
    "a link to itself": lambda folder, outside: (folder / f"{LSTM}.ipynb").symlink_to(folder / f"{LSTM}.ipynb"),
    "a link to a folder": lambda folder, outside: (folder / "sub").symlink_to(outside / "dir"),
    "a link with another name": lambda folder, outside: (folder / "other.ipynb").symlink_to(outside / "key.ipynb"),
    "a hard link": lambda folder, outside: os.link(outside / "config.py", folder / "x.txt"),
    "a hard link as a notebook": lambda folder, outside: os.link(outside / "key.ipynb", folder / f"{LSTM}.ipynb"),
    "a hard link as a time": lambda folder, outside: os.link(outside / "config.py", folder / "timestamp.txt"),
    "a page": lambda folder, outside: (folder / "x.html").write_text("<script>"),
    "code": lambda folder, outside: (folder / "evil.py").write_text("import os"),
    "torch": lambda folder, outside: (folder / "torch.py").write_text("import os"),
    "hidden": lambda folder, outside: (folder / ".bashrc").write_text("x"),
    "a folder": lambda folder, outside: (folder / "feedback").mkdir(),
    "a folder with a link in it": lambda folder, outside: (
        (folder / "d").mkdir(),
        (folder / "d" / "l").symlink_to(outside / "config.py"),
    ),
    "a folder as a notebook": lambda folder, outside: (folder / f"{LSTM}.ipynb").mkdir(),
    "a locked folder": lambda folder, outside: (folder / "d").mkdir(mode=0),
    "a pipe": lambda folder, outside: os.mkfifo(folder / "p"),
    "a pipe as a notebook": lambda folder, outside: os.mkfifo(folder / f"{LSTM}.ipynb"),
    "a pipe as a time": lambda folder, outside: os.mkfifo(folder / "timestamp.txt"),
    "a link as a time": lambda folder, outside: (folder / "timestamp.txt").symlink_to(outside / "config.py"),
    "a folder as a time": lambda folder, outside: (folder / "timestamp.txt").mkdir(),
    "bytes in a name": lambda folder, outside: (folder / os.fsdecode(b"\xff\xfe.html")).write_text("x"),
    "commands in a name": lambda folder, outside: (folder / "\x1b[2J\n.html").write_text("x"),
    "a long name": lambda folder, outside: (folder / ("n" * 250 + ".htm")).write_text("x"),
    "checkpoints": lambda folder, outside: (folder / ".ipynb_checkpoints").mkdir(),
    "a large notebook": lambda folder, outside: (folder / f"{LSTM}.ipynb").write_bytes(
        b" " * (intake.NOTEBOOK_BYTES + 1)
    ),
    "a notebook with a hole": lambda folder, outside: sparse(folder / f"{LSTM}.ipynb"),
    "a large time": lambda folder, outside: (folder / "timestamp.txt").write_text(
        "2027-02-01 09:30:00 UTC" + " " * 1000
    ),
    "no time": lambda folder, outside: (folder / "timestamp.txt").write_text("yesterday"),
    "an empty time": lambda folder, outside: (folder / "timestamp.txt").write_text(""),
    "a time of bytes": lambda folder, outside: (folder / "timestamp.txt").write_bytes(b"\xff\xfe"),
    "no such day": lambda folder, outside: (folder / "timestamp.txt").write_text("2027-02-31 09:30:00 UTC"),
    "the year 9999": lambda folder, outside: (folder / "timestamp.txt").write_text("9999-12-31 23:59:59 -14:00"),
    "a zone that is a path": lambda folder, outside: (folder / "timestamp.txt").write_text(
        "2027-02-01 09:30:00 ../../../../etc/passwd"
    ),
}


@pytest.mark.parametrize("odd", ODD)
def test_only_released_regular_files_are_left(course, folder, tmp_path, odd, capsys):
    """Fails if a link, a page or a folder stays where nbgrader copies it to the feedback, or follows a link."""
    hand_in(folder, ATTENTION)
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.py").write_text("seed = 1")
    (outside / "key.ipynb").write_text(text(LSTM, "mine"))
    (outside / "dir").mkdir()
    ODD[odd](folder, outside)
    before = everything(outside)
    (name,) = set(os.listdir(folder)) - {f"{ATTENTION}.ipynb"}
    about = (folder / name).lstat()
    assert taken_in(folder) == {LSTM: False, ATTENTION: True}
    (kept,) = (course / "set_aside/homework1/ada").iterdir()
    assert (kept.lstat().st_ino, stat.S_IFMT(kept.lstat().st_mode)) == (about.st_ino, stat.S_IFMT(about.st_mode))
    said = capsys.readouterr().out
    assert "is set aside: " in said
    assert "\x1b" not in said
    assert everything(outside) == before
    assert not (folder / "timestamp.txt").exists()


def test_a_folder_that_is_a_link(course, folder, tmp_path):
    """Fails if what is graded, and changed, is a folder somewhere else."""
    elsewhere = tmp_path / "elsewhere"
    os.rename(folder, elsewhere)
    hand_in(elsewhere, LSTM)
    folder.symlink_to(elsewhere)
    before = everything(elsewhere)
    assert taken_in(folder) == {LSTM: False, ATTENTION: False}
    assert everything(elsewhere) == before


def test_files_that_nobody_may_read_are_read(folder):
    """Fails if permissions in a student's zip, as the instructor unpacked it, cost an answer."""
    hand_in(folder, LSTM)
    (folder / f"{LSTM}.ipynb").chmod(0)
    folder.chmod(0o500)
    assert taken_in(folder)[LSTM]
    assert (folder / f"{LSTM}.ipynb").stat().st_mode & 0o7777 == 0o644


def test_a_time_is_written_as_nbgrader_reads_it(folder):
    """Fails if nbgrader, which takes `+0100` for 100 seconds, reads another time than is meant."""
    hand_in(folder, LSTM)
    (folder / "timestamp.txt").write_text("2027-02-01 10:30:00 +0100")
    assert taken_in(folder)[LSTM]
    assert (folder / "timestamp.txt").read_text() == "2027-02-01 09:30:00 UTC\n"


def test_twice_is_once(course, folder):
    """Fails if grading again moves more than the first time."""
    hand_in(folder, LSTM, "x.ipynb")
    (folder / "x.html").write_text("x")
    taken_in(folder)
    before = everything(course)
    taken_in(folder)
    assert everything(course) == before


def test_where_it_fails_nbgrader_refuses_this_student(course, folder, capsys):
    """Fails if an error is raised, which nbgrader would note and then grade, and copy, what lies there."""
    hand_in(folder, LSTM)
    (folder / "x.html").write_text("x")
    (course / "set_aside").symlink_to("/nowhere")
    found = [str(folder / f"{LSTM}.ipynb")]
    collect.take_in("*", "*", found)
    assert not found[0].endswith(".ipynb")
    assert "ada: cannot be taken in, and is not graded: " in capsys.readouterr().out


def test_without_a_release_nothing_is_graded(course, folder):
    """Fails if all submissions are moved away because release/ is not there."""
    hand_in(folder, LSTM)
    os.rename(course / "release", course / "gone")
    before = everything(folder)
    with pytest.raises(SystemExit, match="no notebook in"):
        collect.take_in("*", "*", [str(folder / f"{LSTM}.ipynb")])
    assert everything(folder) == before
