"""Whose file it is: names as Canvas, Moodle and people write them, and the ids that students get here.

What the platforms write, read in their own source:

- Canvas, `app/models/content_zipper.rb`: NAME_late_USER_ATTACHMENT_FILE, all in one folder. NAME is "Lovelace, Ada"
  without spaces and signs, in small letters; `late` is there or not; the numbers are Canvas's own, the same in the
  whole course. With anonymous marking: anon_abc12_ATTACHMENT_FILE, earlier USER_ATTACHMENT_FILE.
- Moodle, `mod/assign/classes/downloader.php`: folders "Ada Lovelace_NUMBER_assignsubmission_file", before Moodle 4
  with one more _ at the end, or files that begin so. NAME holds no _. NUMBER is the participant's in this one
  assignment (the grading worksheet calls it "Participant NUMBER"), another in the next.

Neither says when a file was handed in: the times in both zips are those of the download.
"""

import csv
import functools
import hashlib
import io
import re
import unicodedata
from dataclasses import dataclass

MOODLE = re.compile(r"(?P<name>[^_]+)(?:_(?P<number>\d+))?_assignsubmission_(?P<kind>[a-z]+)(?:_(?P<file>.*))?", re.S)
UPLOAD = r"(?P<attachment>[1-9]\d*)_(?P<file>.+)"
CANVAS = [
    re.compile(rf"anon_(?P<late>late_)?(?P<number>[a-z0-9]{{5}})_(?P<late2>late_)?{UPLOAD}", re.S | re.I),
    re.compile(rf"(?:(?P<name>.+?)_)??(?P<late>late_)?(?P<number>[1-9]\d*)_{UPLOAD}", re.S | re.I),
    re.compile(r"(?P<name>.+?)_(?P<late>late_)?(?P<number>[1-9]\d*)_(?P<file>(?:text|link)\.html)", re.S | re.I),
]
COPY = re.compile(
    r"^(?:(?:copy|kopie|copia)[ _](?:of|von|de|di)[ _])+"
    r"|(?:[ _]?\(\d{1,3}\)|-copy\d*|[ _]copy| - copy|-\d{1,2})+$",
    re.I,
)
COUNT = re.compile(r"\((\d{1,3})\)|-(?:copy)?(\d{1,2})(?!\d)", re.I)
NEUTRAL = re.compile(
    r"(?:home|course)work|hw|assignments?|submi(?:ssions?|tted)|exercises?|notebooks?|src|downloads?|release", re.I
)
LETTERS = str.maketrans({"ß": "ss", "ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "ae", "œ": "oe", "ı": "i"})
ID = re.compile(r"\w[\w.@-]{0,99}")
LONGEST = 60  # letters of an id made here


@dataclass(frozen=True)
class Person:
    """Somebody who handed in, as the download calls them.

    Args:
        platform: "canvas", "moodle" or "plain".
        number: the platform's, as text; "" if there is none.
        name: as it stands in the download.
    """

    platform: str
    number: str
    name: str


@dataclass(frozen=True)
class Origin:
    """What a file's name says.

    Args:
        person: whose it is.
        file: its own name, without the platform's.
        attachment: Canvas's number of the upload; a later one is larger. 0 elsewhere.
        late: whether Canvas calls it late.
        kind: Moodle's: "file", "onlinetext", ...
    """

    person: Person
    file: str
    attachment: int = 0
    late: bool = False
    kind: str = "file"


def origin(parts, container, assignment, stems):
    """Say whose a file is.

    Args:
        parts: of its path in the download, such as ("ada", "homework1", "05_lstm_and_gru.ipynb").
        container: the download's own name, for what has no other.
        assignment: its name.
        stems: names of the released notebooks, without ".ipynb".

    Returns:
        An Origin.

    Example:
        >>> origin(("lovelaceada_late_123_4567_05_lstm.ipynb",), "submissions", "homework1", ["05_lstm"]).person
        Person(platform='canvas', number='123', name='lovelaceada')
        >>> origin(("Ada Lovelace_98765_assignsubmission_file_", "a.ipynb"), "x", "homework1", ["05_lstm"]).person
        Person(platform='moodle', number='98765', name='Ada Lovelace')
        >>> origin(("mary-ann_05_lstm.ipynb",), "submissions", "homework1", ["05_lstm"]).person.name
        'mary-ann'
    """
    if found := on_platform(parts, stems):
        return found
    folders = [part for part in parts[:-1] if not neutral(part, container, assignment, stems)]
    name = folders[0] if folders else without_notebook(parts[-1], assignment, stems)
    return Origin(Person("plain", "", unicodedata.normalize("NFC", name or without_copy(container))), parts[-1])


def on_platform(parts, stems):
    """Return the Origin of a file with a name that Canvas or Moodle made, or None."""
    for number, part in enumerate(parts):
        last = number == len(parts) - 1
        if found := MOODLE.fullmatch(part):
            name, file = unicodedata.normalize("NFC", found["name"].strip()), found["file"] if last else parts[-1]
            return Origin(Person("moodle", found["number"] or "", name), file or part, kind=found["kind"])
        if last and (found := next((m for pattern in CANVAS if (m := pattern.fullmatch(part))), None)):
            said = found.groupdict()
            attachment = said.get("attachment") or "0"
            if any(f"{attachment}_{said['file']}".startswith(stem) for stem in stems):
                return None  # `jones_2_10_what_it_costs.ipynb`: 10 is the chapter
            name = unicodedata.normalize("NFC", said.get("name") or "anonymous")
            late = bool(said["late"] or said.get("late2"))
            return Origin(Person("canvas", said["number"], name), said["file"], int(attachment[:18]), late)
    return None


def neutral(folder, container, assignment, stems):
    """Say whether a folder's name is nobody's: the assignment's, the notebook's, the download's own."""
    known = {squash(name) for name in (container, without_copy(container), assignment, *stems)}
    return squash(folder) in known or bool(NEUTRAL.fullmatch(re.sub(r"[\W\d_]+$", "", without_copy(folder))))


def without_notebook(file, assignment, stems):
    """Return what of a file's name is the student's.

    >>> files = ("ada_05_lstm (1).ipynb", "ada_homework1.zip", "05_lstm.ipynb")
    >>> [without_notebook(file, "homework1", ["05_lstm"]) for file in files]
    ['ada', 'ada', '']
    """
    name = without_copy(stem_of(file))
    for stem in sorted(stems, key=len, reverse=True):
        pattern = re.sub(r"[\W_]+", r"[\\W_]+", stem)
        if found := re.search(rf"(?:^|[\W_])({pattern})(?![^\W_])", name, re.I):
            return tidy(name[: found.start(1)])
    for chapter in {stem[:2] for stem in stems if stem[:2].isdigit()}:
        if found := re.search(rf"(?:^|[\s_-]){chapter}(?:[\s_-]|$)", name):
            return tidy(name[: found.start()])
    return tidy(re.sub(rf"(?:^|[\s_-]+){re.escape(assignment)}$", "", name, flags=re.I))


def tidy(name):
    """Return a name without the signs, and the `Copy of`, between it and the notebook's."""
    return re.sub(r"(?:[\s_-]+(?:copy|kopie)[ _](?:of|von))?[\s_-]*$", "", f" {name}", flags=re.I).strip(" _-")


def stem_of(file):
    """Return a file's name without its ending, whatever the browser made of it: `a.ipynb.txt`, `a.ipynb.json`."""
    return re.sub(r"\.(?:ipynb.*|json|txt|zip)$", "", file, flags=re.I | re.S)


def without_copy(name):
    """Return a name without what browsers, Colab and Jupyter add to a second file of the same name.

    >>> [without_copy(name) for name in ("05_lstm (1)", "Copy of 05_lstm", "05_lstm-Copy1", "05_lstm-2", "mary-ann")]
    ['05_lstm', '05_lstm', '05_lstm', '05_lstm', 'mary-ann']
    """
    return COPY.sub("", name).strip() or name


def counts(file):
    """Return the numbers of a second, third, ... file of the same name; the last one first, as it was added last.

    >>> counts("05_lstm (1)-2.ipynb")
    (2, 1)
    """
    stem = stem_of(file)
    kept = without_copy(stem)
    return tuple(int(a or b) for a, b in reversed(COUNT.findall(stem[len(kept) :] if stem.startswith(kept) else stem)))


@functools.lru_cache(maxsize=10_000)
def squash(text):
    """Return the letters and digits of a name, without accents and case, for comparing.

    >>> squash("O'Brien, Sinéad") == squash("obriensinead")
    True
    """
    letters = unicodedata.normalize("NFKD", text.casefold()).casefold().translate(LETTERS)
    return "".join(letter for letter in letters if letter.isalnum())


def words(text):
    """Return the words of a name, with accents and without case: who has the same words is the same person.

    >>> words("Mary Ann") == words("mary-ann") != words("maryann")
    True
    """
    text = re.sub(r"['’`]", "", unicodedata.normalize("NFC", text).casefold())
    return " ".join(re.findall(r"[^\W_]+", text))


def safe(text):
    """Return a name in letters, digits and hyphens that every file system knows.

    >>> [safe(name) for name in ("Grace", "O'Brien, Sinéad", "Müller_Jonas", "Łukasz Żak")]
    ['grace', 'obrien-sinead', 'muller-jonas', 'lukasz-zak']
    """
    said = unicodedata.normalize("NFKD", words(text)).translate(LETTERS)
    found = re.sub(r"[^a-z0-9]+", "-", "".join(sign for sign in said if not unicodedata.combining(sign))).strip("-")
    if not found:  # no Latin letter at all
        return f"student-{hashlib.sha256(words(text).encode('utf8', 'replace')).hexdigest()[:8]}"
    found = f"student-{found}" if found.isdigit() else found  # nbgrader's programs take digits for a number
    return found[:LONGEST].strip("-")


class Roster:
    """The course's students.csv: id,last_name,first_name,email, and perhaps canvas_id and moodle_id.

    Args:
        text: of the file.

    Raises:
        ValueError: if a column or an id is missing, or an id is no name for a folder, or is there twice.
    """

    def __init__(self, text=""):
        self.names, self.numbers, self.known = {}, {}, {}
        for number, row in enumerate(csv.DictReader(io.StringIO(text)), start=2):
            row = {str(key).strip().lower(): str(value or "").strip() for key, value in row.items()}
            student = row.get("id", "")
            if not ID.fullmatch(student):
                raise ValueError(f"students.csv, line {number}: got id {student!r}; wanted letters, digits, . @ - _")
            if student in self.names:
                raise ValueError(f"students.csv, line {number}: id {student!r} is there twice")
            first, last, email = row.get("first_name", ""), row.get("last_name", ""), row.get("email", "")
            self.names[student] = f"{first} {last}".strip()
            for platform in ("canvas", "moodle"):
                if said := row.get(f"{platform}_id"):
                    self.numbers.setdefault((platform, said.rpartition(" ")[2]), set()).add(student)
            for key in {squash(text) for text in (student, first + last, last + first, email, email.partition("@")[0])}:
                self.known.setdefault(key, set()).add(student)

    def by_number(self, person):
        """Return the ids of the students who have a person's number."""
        return self.numbers.get((person.platform, person.number), set()) if person.number else set()

    def by_name(self, person):
        """Return the ids of the students who may be called as a person is."""
        if person.name in self.names:
            return {person.name}
        return self.known.get(squash(person.name), set()) if squash(person.name) else set()


def students(people, roster, before):
    """Say which student each person is.

    Args:
        people: list of Person.
        roster: a Roster.
        before: list of (assignment's, student, Person) that were collected earlier, of all assignments.

    Returns:
        ({Person: id}, list of lines for the reader about what is not certain).
    """
    found, lines = {}, []
    every = dict.fromkeys([*people, *(person for _, _, person in before)])
    named = {}  # how many different people of a platform have the same name, or the same number
    for person in every:
        named.setdefault((person.platform, words(person.name)), set()).add(person.number)
        named.setdefault((person.platform, "number", person.number), set()).add(words(person.name))
    # Moodle's numbers are other ones in each assignment: only within one do two of them mean two people.
    namesakes = {}
    for where, person in [*((None, person) for person in people), *((where, person) for where, _, person in before)]:
        if person.platform == "moodle":
            namesakes.setdefault((where, words(person.name)), set()).add(person.number)
    doubled = {name for (_, name), numbers in namesakes.items() if len(numbers) > 1}
    taken = {student: words(person.name) for _, student, person in before if student not in roster.names}
    for person in dict.fromkeys(people):
        name = words(person.name)
        anonymous = name in ("anonymous", "participant")
        sole = not anonymous and (
            name not in doubled if person.platform == "moodle" else len(named[person.platform, name]) == 1
        )
        several = person.number and len(named[person.platform, "number", person.number]) > 1
        matches = set() if several and person.platform == "canvas" else roster.by_number(person)
        matches = matches or (roster.by_name(person) if sole else set())
        if len(matches) == 1:
            found[person] = next(iter(matches))
            continue
        if several and person.platform == "canvas":
            lines.append(f"{person.name}: Canvas's number {person.number} is there with another name too")
        if person.platform == "moodle" and not sole and not anonymous:
            lines.append(
                f"{person.name} ({person.number}): there are several of this name, and Moodle numbers them anew "
                "in each assignment; look who is who"
            )
        numbered = person.number and (person.platform == "canvas" or not sole)
        base = safe(f"{person.name} {person.number}" if numbered else person.name)
        if numbered and not base.endswith(safe(person.number).removeprefix("student-")):  # a very long name
            base = f"{base[: LONGEST - 1 - len(person.number)]}-{safe(person.number).removeprefix('student-')}"
        count, student = 1, base
        while student in roster.names or taken.get(student, name) != name:
            count += 1
            student = f"{base}-{count}"
        taken[student] = name
        found[person] = student
        if roster.names:
            lines.append(f"{person.name}{f' ({person.number})' if person.number else ''}: nobody in students.csv; "
                         f"collected as {student}")  # fmt: skip
    return found, lines
