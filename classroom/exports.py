"""Marks as Canvas and Moodle import them: their own files filled in, or new ones with the columns that they want.

What they want was read from their sources: Canvas's `lib/gradebook_importer.rb` (the first columns are Student, ID,
then SIS User ID and SIS Login ID, the last before the assignments is Section; a second row has the points possible;
"EX" excuses), and Moodle's `mod/assign/feedback/offline/importgradeslib.php` (Identifier, Grade and "Last modified
(grade)" by name; an empty grade is passed over). Both take decimal points whatever their language is.
"""

import csv
import functools
import io
import re
from pathlib import Path

from classroom.people import squash

EXCUSED = "EX"
ABOUT_STUDENTS = (
    "Student", "LastName", "FirstName", "ID", "SIS User ID", "SIS Login ID", "Integration ID", "Root Account",
    "Section",
)  # fmt: skip
WORKSHEET = ("Identifier", "Full name", "Email address", "Grade", "Maximum grade", "Last modified (grade)")
FORMULA = re.compile(r"(^|[;,\t\r\n])(\s*)(?=[=+\-@\uff1d\uff0b\uff0d\uff20])")


def safe(text):
    """Return text that no spreadsheet takes for a formula: an apostrophe stands before what could begin one.

    Example:
        >>> safe("=1+1"), safe("Ada-Marie"), safe('x;@SUM(A1)')
        ("'=1+1", 'Ada-Marie', "x;'@SUM(A1)")
    """
    return FORMULA.sub(r"\1\2'", str(text))


def number(value):
    """Return a number for a cell, with at most two decimals.

    >>> number(2.5), number(3.0), number(10 / 3)
    ('2.5', '3', '3.33')
    """
    return format(round(value + 1e-9, 2), ".10g")


def read_table(path, otherwise=None):
    """Return the rows of a CSV file, and what separates its cells.

    Args:
        path: of the file.
        otherwise: the encoding if it is not UTF-8, or None.

    Raises:
        ValueError: if it cannot be read as CSV in UTF-8, or has no rows.
    """
    try:
        data = Path(path).read_bytes()
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError:
            if otherwise is None:
                raise
            text = data.decode(otherwise, "replace")
        separator = max(",;\t", key=text.partition("\n")[0].count)
        rows = [row for row in csv.reader(io.StringIO(text, newline=""), delimiter=separator) if row]
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: {error}; wanted a CSV file in UTF-8, as the platform gives it") from None
    if not rows:
        raise ValueError(f"{path} is empty; wanted a CSV file as the platform gives it")
    return [row + [""] * (len(rows[0]) - len(row)) for row in rows], separator


def write_table(path, rows, separator=","):
    """Write rows as CSV."""
    with Path(path).open("w", newline="", encoding="utf8") as file:
        csv.writer(file, delimiter=separator).writerows(rows)


def fill_canvas(rows, name, marks, column=None):
    """Fill the marks into a gradebook export of Canvas.

    Args:
        rows: of the export, the header first.
        name: of the assignment here.
        marks: list of Mark; those whose final points are None stay as they are.
        column: the header of the assignment's column, or None: the one with the assignment's name.

    Returns:
        the rows to import (the columns about the student and the assignment's), and what is to be said: list of str.

    Raises:
        ValueError: if these are no rows of Canvas's, or no column can be told to be the assignment's.
    """
    head = rows[0]
    if "ID" not in head or not {"Student", "LastName"} & set(head) or "Section" not in head:
        raise ValueError(f"got the columns {', '.join(head)}; wanted Canvas's own export (Grades, Export), with "
                         f"Student, ID, Section and the assignments")  # fmt: skip
    place = head.index(column) if column in head else _canvas_column(head, name, column)
    about = [i for i, title in enumerate(head[: head.index("Section") + 1]) if title in ABOUT_STUDENTS]
    said, people = [], {}
    for i, row in enumerate(rows[1:], 1):
        if "Points Possible" in row[0]:
            said += _other_points(row[place], marks, "Canvas")
        elif row[head.index("ID")].strip():
            people[i] = _canvas_keys(dict(zip(head, row, strict=False)))
    found, problems = match(people, marks, "canvas", "Canvas")
    filled = [list(row) for row in rows]
    for i, mark in found.items():
        if filled[i][place].strip() == "N/A":
            problems.append(
                f"{mark.student}: Canvas has not assigned {head[place]} to this student; nothing is filled in"
            )
        elif mark.final is not None:
            filled[i][place] = EXCUSED if mark.final == EXCUSED else number(mark.final)
    kept = [[*(safe(row[k]) if i in people else row[k] for k in about), row[place]] for i, row in enumerate(filled)]
    return kept, said + problems


def _canvas_column(head, name, column):
    titles = head[head.index("Section") + 1 :]
    wanted = squash(column or name)
    fitting = [title for title in titles if wanted in (squash(re.sub(r"\s*\(\d+\)$", "", title)), squash(title))]
    if len(fitting) != 1 or head.count(fitting[0]) > 1:
        how_many = f"{len(fitting)} columns of Canvas's export are" if fitting else "no column of Canvas's export is"
        raise ValueError(f"{how_many} called {column or name}; give its header with COLUMN=...; "
                         f"there are {', '.join(titles)}")  # fmt: skip
    return head.index(fitting[0])


def _canvas_keys(cells):
    name = cells.get("Student") or f"{cells.get('LastName', '')}, {cells.get('FirstName', '')}"
    logins = {cells.get("SIS User ID", ""), cells.get("SIS Login ID", ""), cells.get("Integration ID", "")}
    return {"id": cells["ID"].strip(), "logins": logins, "name": name, "shown": name}


def new_canvas(name, points, marks):
    """Return rows that Canvas can import, made without an export of its own.

    Args:
        name: of the assignment; Canvas makes it if there is none of this name.
        points: the most that it is worth.
        marks: list of Mark; those whose final points are None are left out.
    """
    rows = [["Student", "ID", "SIS User ID", "SIS Login ID", "Section", name],
            ["    Points Possible", "", "", "", "", number(points)]]  # fmt: skip
    for mark in marks:
        if mark.final is not None:
            shown = f"{mark.last_name}, {mark.first_name}" if mark.last_name and mark.first_name else mark.name
            final = EXCUSED if mark.final == EXCUSED else number(mark.final)
            about = (shown, mark.ids.get("canvas", ""), mark.student, mark.email, "")
            rows.append([*map(safe, about), final])
    return rows


def fill_moodle(rows, marks):
    """Fill the marks into a grading worksheet of Moodle.

    Args:
        rows: of the worksheet, the header first.
        marks: list of Mark; those whose final points are None, and the excused, stay as they are.

    Returns:
        the rows to import (without texts and comments, which Moodle then leaves alone), and what is to be said.

    Raises:
        ValueError: if these are no rows of Moodle's.
    """
    head = {title.strip().casefold(): i for i, title in reversed(list(enumerate(rows[0])))}
    place = {title: head[title.casefold()] for title in WORKSHEET if title.casefold() in head}
    if missing := [title for title in ("Identifier", "Grade", "Last modified (grade)") if title not in place]:
        raise ValueError(f"no column {', '.join(missing)} among {', '.join(rows[0])}; wanted Moodle's own grading "
                         f"worksheet, downloaded with Moodle in English")  # fmt: skip
    people, problems = {}, []
    for i, row in enumerate(rows[1:], 1):
        cells = {title: row[k] for title, k in place.items()}
        ending = re.search(r"\d+$", cells["Identifier"].strip())
        name = cells.get("Full name", "")
        people[i] = {"id": ending[0] if ending else "", "logins": {cells.get("Email address", "")}, "name": name,
                     "shown": name or cells["Identifier"]}  # fmt: skip
    found, unmatched = match(people, marks, "moodle", "Moodle")
    filled = [list(row) for row in rows]
    for i, mark in found.items():
        problems += [f"{mark.student}: {what}" for what in _moodle_refuses(rows[i], head, mark)]
        if mark.final not in (None, EXCUSED):
            filled[i][place["Grade"]] = number(mark.final)
    most = next((row[place["Maximum grade"]] for row in rows[1:]), "") if "Maximum grade" in place else ""
    kept = [[row[k] for k in place.values()] for row in filled]
    safely = [[cell if title in ("Grade", "Last modified (grade)") else safe(cell) for title, cell in
               zip(place, row, strict=True)] for row in kept[1:]]  # fmt: skip
    return [kept[0], *safely], _other_points(most, marks, "Moodle") + problems + unmatched


def _moodle_refuses(row, head, mark):
    """Why Moodle would pass over a mark without a word."""
    if mark.final == EXCUSED:
        return ["excused; Moodle has no such mark, so the cell is left unchanged"]
    if "grade can be changed" in head and row[head["grade can be changed"]].strip().casefold() == "no":
        return ["Moodle has locked this grade, and will not take another"]
    most = _float(row[head["maximum grade"]]) if "maximum grade" in head else None
    if most is not None and mark.final is not None and mark.final > most:
        return [f"{number(mark.final)} points are more than Moodle's maximum of {number(most)}; it will not take them"]
    return []


def new_moodle(points, marks):
    """Return rows that Moodle can import as a grading worksheet, made without one of its own.

    Args:
        points: the most that the assignment is worth.
        marks: list of Mark; left out are those whose number in Moodle is not known, and the excused.

    Returns:
        the rows, and what is to be said.
    """
    rows, said = [list(WORKSHEET)], []
    for mark in marks:
        if mark.final in (None, EXCUSED):
            continue
        if not mark.ids.get("moodle"):
            said.append(f"{mark.student}: Moodle number unknown; use Moodle's own worksheet")
            continue
        about = (f"Participant {mark.ids['moodle']}", mark.name, mark.email)
        rows.append([*map(safe, about), number(mark.final), number(points), "-"])
    return rows, said


def match(people, marks, platform, called):
    """Find whose row is whose: by the platform's number, then by login or email, then by name.

    Nobody is guessed: a key that fits two people fits none, and who has another number is another person.

    Args:
        people: {row: {"id", "logins", "name", "shown"}}.
        marks: list of Mark.
        platform: "canvas" or "moodle", as in Mark.ids.
        called: the platform's name in what is said.

    Returns:
        {row: Mark}, and what is to be said of those who are not found.
    """
    found, clashes = {}, []
    for fits in (_same_id, _same_login, _same_name):
        there = {mark.student for mark in found.values()}
        left = [mark for mark in marks if mark.student not in there]
        pairs = [(i, mark) for i, keys in people.items() if i not in found for mark in left
                 if fits(keys, mark, mark.ids.get(platform))]  # fmt: skip
        rows, whose = [i for i, _ in pairs], [mark.student for _, mark in pairs]
        for i, mark in pairs:
            if rows.count(i) == whose.count(mark.student) == 1:
                found[i] = mark
            else:
                clashes.append((mark.student, people[i]["shown"]))
    there = {mark.student for mark in found.values()}
    said = [f"{student}: may be {shown} in {called}'s file, but name, login or number fit several; fill it in by hand"
            for student, shown in dict.fromkeys(clashes) if student not in there]  # fmt: skip
    for mark in marks:
        if mark.student not in there:
            said.append(
                f"{mark.student}: not found in {called}'s file ({mark.name or 'no name'}, {mark.email or 'no email'})"
            )
    for i, keys in people.items():
        if i not in found and squash(keys["shown"]) not in TEST_STUDENTS:
            said.append(f"{keys['shown']}: in {called}'s file, but not in the course; the cell stays as it was")
    return found, said


TEST_STUDENTS = ("studenttest", "teststudent")  # Canvas's own


def _same_id(keys, mark, known):
    return bool(known) and keys["id"] == known


def _same_login(keys, mark, known):
    ours = {word.strip().casefold() for word in (mark.student, mark.email) if word}
    return not known and bool(ours & {word.strip().casefold() for word in keys["logins"]})


def _same_name(keys, mark, known):
    ours = _orders(mark.name) | _orders(f"{mark.last_name},{mark.first_name}")
    return not known and bool(_orders(keys["name"]) & ours)


@functools.cache
def _orders(name):
    """A name without blanks, accents and capitals; what stands before a comma may also stand behind."""
    last, _, first = name.partition(",")
    return {squash(last + first), squash(first + last)} - {""}


def _other_points(cell, marks, called):
    theirs, ours = _float(cell), marks[0].max_points if marks else None
    if None in (theirs, ours) or abs(theirs - ours) < 0.005:
        return []
    return [
        f"{called} counts {number(theirs)} points for the assignment, here it has {number(ours)}; nothing is converted"
    ]


def _float(cell):
    try:
        return float(cell.strip().replace(",", "."))
    except ValueError:
        return None
