"""Whose file it is: names as Canvas, Moodle and people write them, and the ids that students get here.

What the platforms write, read in their own source:

- Canvas, `app/models/content_zipper.rb`: NAME_late_USER_ATTACHMENT_FILE, all in one folder. NAME is "Lovelace, Ada" in
  small letters, without spaces and punctuation; `late` is there or not; the numbers are Canvas's own, the same in the
  whole course. With anonymous marking: anon_abc12_ATTACHMENT_FILE, earlier USER_ATTACHMENT_FILE.
- Moodle, `mod/assign/classes/downloader.php`: folders "Ada Lovelace_NUMBER_assignsubmission_file", before Moodle 4
  with one more _ at the end, or files that begin so. NAME holds no _. NUMBER is the participant's in this one
  assignment (the grading worksheet calls it "Participant NUMBER"), another in the next.

Neither says when a file was handed in: the times in both zips are those of the download.
"""

import hashlib
import re
import unicodedata
from dataclasses import dataclass

MOODLE = re.compile(r"(?P<name>[^_]+)(?:_(?P<number>\d{1,18}))?_assignsubmission_[a-z]+(?:_(?P<file>.*))?", re.S)
UPLOAD = r"(?:(?P<attachment>[1-9]\d{0,17})_(?P<file>.+)|(?:text|link)\.html)"
CANVAS = [
    re.compile(rf"anon_(?P<late>late_)?(?P<number>[a-z0-9]{{5}})_{UPLOAD}", re.S | re.I),
    re.compile(rf"(?:(?P<name>.+?)_)??(?P<late>late_)?(?P<number>[1-9]\d{{0,17}})_{UPLOAD}", re.S | re.I),
]
COPY = re.compile(r"(?:[ _]?\(\d+\)|[ _-]+copy\d*)+$", re.I)
NEUTRAL = {"hw", "homework", "assignment", "assignments", "submission", "submissions", "submitted", "notebooks"}
NAMED = re.compile(r"\.ipynb|\.json$|\.zip$", re.I)  # what may be named after its student; `notes.txt` is not
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
    """What a file's path says.

    Args:
        person: whose it is.
        attachment: Canvas's number of the upload; a later one is larger. 0 elsewhere.
        late: whether Canvas calls it late.
    """

    person: Person
    attachment: int = 0
    late: bool = False


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
    known = NEUTRAL | {squash(name) for name in (container, assignment, *stems)}
    names = [part for part in parts[:-1] if known.isdisjoint({squash(part), squash(part).rstrip("0123456789")})]
    if NAMED.search(parts[-1]):
        names.append(without_notebook(parts[-1], assignment, stems))
    return Origin(Person("plain", "", unicodedata.normalize("NFC", next(filter(None, names), container))))


def on_platform(parts, stems):
    """Return the Origin of a file whose path Canvas or Moodle made, or None."""
    for part in parts:
        if found := MOODLE.fullmatch(part):
            name, number = found["name"].strip(), found["number"] or ""
            name = f"{name} {number}" if name == "Participant" else name  # anonymous marking
            return Origin(Person("moodle", number, unicodedata.normalize("NFC", name)))
    found = next((match for pattern in CANVAS if (match := pattern.fullmatch(parts[-1]))), None)
    if not found or any(f"{found['attachment']}_{found['file']}".startswith(stem) for stem in stems):
        return None  # in `jones_2_10_what_it_costs.ipynb`, 10 is the chapter
    name = unicodedata.normalize("NFC", found.groupdict().get("name") or "anonymous")
    return Origin(Person("canvas", found["number"], name), int(found["attachment"] or 0), bool(found["late"]))


def without_notebook(file, assignment, stems):
    """Return what of a file's name is the student's.

    >>> files = ("ada_05_lstm (1).ipynb", "ada_homework1.zip", "05_lstm.ipynb", "ada_Copy_of_05_lstm.ipynb")
    >>> [without_notebook(file, "homework1", ["05_lstm"]) for file in files]
    ['ada', 'ada', '', 'ada']
    """
    known = "|".join(re.escape(name) for name in (assignment, *(stem.partition("_")[0] for stem in stems)))
    found = re.sub(rf"(?:^|[\W_]+)(?:copy[ _]of[ _])*(?:{known})(?![^\W_]).*", "", stem_of(file), flags=re.I | re.S)
    return without_copy(found).strip(" _-")


def stem_of(file):
    """Return a file's name without its ending, whatever the browser made of it: `a.ipynb.txt`, `a.ipynb.json`."""
    return re.sub(r"\.(?:ipynb.*|json|txt|zip)$", "", file, flags=re.I | re.S)


def without_copy(name):
    """Return a name without what browsers and Jupyter add to a second file of the same name.

    >>> [without_copy(name) for name in ("submissions (1)", "05_lstm-Copy1", "mary-ann")]
    ['submissions', '05_lstm', 'mary-ann']
    """
    return COPY.sub("", name)


def squash(text):
    """Return the letters and digits of a name, without accents and case, for comparing.

    >>> squash("O'Brien, Sinéad") == squash("obriensinead")
    True
    """
    letters = unicodedata.normalize("NFKD", text.casefold()).casefold().translate(LETTERS)
    return "".join(letter for letter in letters if letter.isalnum())


def words(text):
    """Return the words of a name, with accents and without case: the same words mean the same person.

    >>> words("Mary Ann") == words("mary-ann") != words("maryann")
    True
    """
    text = re.sub(r"['’`]", "", unicodedata.normalize("NFC", text).casefold())
    return " ".join(re.findall(r"[^\W_]+", text))


def safe(text, number=""):
    """Return a name, and perhaps a number, in letters, digits and hyphens that every file system knows.

    >>> [safe(name) for name in ("Grace", "O'Brien, Sinéad", "Müller_Jonas", "Łukasz Żak")]
    ['grace', 'obrien-sinead', 'muller-jonas', 'lukasz-zak']
    """
    parts = [re.sub(r"[^a-z0-9]", "", squash(word)) for word in words(text).split()]
    found = "-".join(filter(None, parts))
    if not found:  # not one Latin letter
        found = f"student-{hashlib.sha256(words(text).encode('utf8', 'replace')).hexdigest()[:8]}"
    if found.isdigit():  # nbgrader's commands take digits for a number
        found = f"student-{found}"
    return f"{found[: LONGEST - 20].strip('-')}-{number.lower()}" if number else found[:LONGEST].strip("-")


class Roster:
    """The course's students.csv: id,last_name,first_name,email, and perhaps canvas_id and moodle_id.

    Args:
        rows: of the file, each a list of str, the titles first; none if there is no file.

    Raises:
        ValueError: if an id is missing, is no name for a folder, or is there twice.
    """

    def __init__(self, rows):
        self.names, self.numbers, self.known = {}, {}, {}
        for number, row in enumerate(rows[1:], start=2):
            row = {title.strip().lower(): value.strip() for title, value in zip(rows[0], row, strict=False)}
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
        return self.numbers.get((person.platform, person.number), set())

    def by_name(self, person):
        """Return the ids of the students who may be called as a person is."""
        if person.name in self.names:
            return {person.name}
        return self.known.get(squash(person.name), set()) if squash(person.name) else set()


def students(people, roster, before):
    """Say which student each person is.

    Args:
        people: list of different Person.
        roster: a Roster.
        before: list of (assignment, student, Person) that were collected earlier, of all assignments.

    Returns:
        ({Person: id}, list of lines for the reader about what is not certain).
    """
    # Two numbers with one name are two people; in Moodle, which numbers anew in each assignment, only within one.
    numbers, names = {}, {}
    for assignment, person in [*(("", person) for person in people), *((where, person) for where, _, person in before)]:
        where = assignment if person.platform == "moodle" else ""
        numbers.setdefault((person.platform, words(person.name), where), set()).add(person.number)
    for person in people:
        names.setdefault((person.platform, person.number), set()).add(words(person.name))
    namesakes = {key[:2] for key, found in numbers.items() if len(found) > 1}
    taken = {student: words(person.name) for _, student, person in before if student not in roster.names}
    found, lines = {}, []
    for person in people:
        name = words(person.name)
        called = f"{person.name} ({person.number})" if person.number else person.name
        namesake = (person.platform, name) in namesakes
        matches = set() if namesake else roster.by_name(person)
        if person.platform == "canvas" and len(names["canvas", person.number]) > 1:
            lines.append(f"{called}: Canvas's number is there with another name too")
        else:
            matches = roster.by_number(person) or matches
        if len(matches) == 1:
            found[person] = next(iter(matches))
            continue
        if namesake and person.platform == "moodle":
            lines.append(f"{called}: several have this name, and Moodle numbers them anew in each assignment; "
                         "look who is who")  # fmt: skip
        base = student = safe(person.name, person.number if person.platform == "canvas" or namesake else "")
        count = 1
        while student in roster.names or taken.get(student, name) != name:
            count += 1
            student = f"{base}-{count}"
        taken[student] = name
        found[person] = student
        if roster.names:
            lines.append(f"{called}: nobody in students.csv; collected as {student}")
    return found, lines
