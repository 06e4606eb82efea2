"""Collect what students handed in: `make collect NAME=homework1 FROM="submissions.zip late/"`.

A download is a zip or a folder: Canvas's, Moodle's, or any other in which folders, zips or file names say whose a
notebook is (`people.py`). The result, in the course folder:

    submitted/STUDENT/NAME/*.ipynb    as nbgrader wants it
    set_aside/NAME/STUDENT/           what was not taken: other files, unreadable ones, older ones
    collected/NAME.csv                a line for each file: whose it is, and whether it was taken

Nothing is thrown away, and no student's files stop the others. It can be run again with newer downloads.

nbgrader calls `take_in` before it grades a student's folder; nbgrader_config.py says so.
"""

import argparse
import csv
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from classroom import exports, intake, people
from classroom.intake import FILE_BYTES, STUDENT_BYTES, short, shown
from classroom.marks import NOBODY
from classroom.policy import instant
from classroom.release import COURSE, NAME

COLUMNS = ("student", "name", "platform", "platform_id", "notebook", "file", "handed_in", "late", "what")
FILES = 1_000  # of one student that are looked at
NAMED = 3  # files that one line names


def collect(course, name, downloads):
    """Sort downloads into the course folder.

    Args:
        course: the folder.
        name: of the assignment.
        downloads: list of paths; what comes in a later one counts as newer.

    Returns:
        True, or False if one of the downloads could not be read at all.

    Raises:
        ValueError: if the assignment is not released, a download is not there or lies in the course folder's own
            folders, or students.csv cannot be read.
    """
    course = Path(course).resolve()
    if not NAME.fullmatch(name):
        raise ValueError(f"got NAME={name!r}; wanted letters, digits, - and _, such as homework1")
    releases = intake.released(course / "release" / name)
    listed = course / "students.csv"
    roster = people.Roster(exports.read_table(listed, otherwise="cp1252")[0] if listed.exists() else [])
    paths = [Path(path).resolve() for path in downloads]
    for path in paths:
        if not path.exists():
            raise ValueError(f"got {shown(str(path))}; wanted a zip or a folder that is there")
        own = [course / folder for folder in ("submitted", "set_aside", "collected")]
        if any(path.is_relative_to(folder) or folder.is_relative_to(path) for folder in own):
            raise ValueError(f"{shown(str(path))} holds what was collected before; wanted a download")

    came, whole = {}, True  # {Person, or None: list of (number of the download, Origin, File)}
    for number, path in enumerate(paths):
        try:
            for person, found in by_person(path, name, releases).items():
                came.setdefault(person, []).extend((number, *both) for both in found)
        except (ValueError, OSError) as error:
            print(f"{shown(path.name)}: {short(error)}; nothing of it is collected, download it again")
            whole = False

    before = read_rows(course)
    known = [(assignment, row["student"], people.Person(row["platform"], row["platform_id"], row["name"]))
             for assignment, rows in before.items() for row in rows if row["student"] != NOBODY]  # fmt: skip
    ids, lines = people.students([person for person in came if person], roster, known)
    by_student = {}
    for person, files in came.items():
        by_student.setdefault(ids.get(person, NOBODY), []).extend(files)

    rows, graded = [], []
    for student, files in by_student.items():
        earlier = {row["notebook"]: row for row in before.get(name, [])
                   if row["student"] == student and row["what"] == "taken"}  # fmt: skip
        submission = Submission(course, name, student, releases)
        try:
            submission.collect(files, earlier)
        except Exception as error:  # whatever it is, the others go on
            print(f"{student}: not collected: {short(error)}")
            submission.note(*files[0][1:], f"not collected: {short(error)}")
        rows += submission.rows
        if submission.replaced and (course / "autograded" / student / name).exists():
            graded.append(student)
    rows = write_rows(course, name, before.get(name, []), rows)
    for line in lines:
        print(shown(line, 300))
    summary(course, name, rows, list(by_student), roster)
    for student in graded:
        print(f"{student} was graded before; grade again: nbgrader autograde {name} --student={student} --force")
    return whole


def by_person(path, name, releases):
    """Return {Person: list of (Origin, File)} of a download; None in a Person's place for what is nobody's.

    Raises:
        ValueError: if the download cannot be read.
    """
    found, container = {}, people.without_copy(people.stem_of(path.name))
    for file in intake.files_of(path):
        origin = people.origin(file.parts, container, name, list(releases))
        found.setdefault(origin.person, []).append((origin, file))
    own = people.Person("plain", "", container)
    if own in found and not any(people.NAMED.search(file.name) for _, file in found[own]):
        found[None] = found.pop(own)  # only files such as `notes.txt`
    return found


def may_be_notebook(file):
    """Say whether a file may be a notebook, whatever a browser made of its ending."""
    return bool(re.search(r"\.ipynb|\.json$", file.name, re.I))


def numbers(file):
    """Return the numbers in a file's name, for finding the last of `a.ipynb`, `a (1).ipynb` and `a (10).ipynb`."""
    return [int(digits) for digits in re.findall(r"\d{1,9}", file)]


class Submission:
    """One student's files for one assignment.

    Args:
        course: the course folder.
        name: of the assignment.
        student: the id.
        releases: {name: notebook as it was handed out}.
    """

    def __init__(self, course, name, student, releases):
        self.course, self.name, self.student, self.releases = course, name, student, releases
        self.folder = course / "submitted" / student / name
        self.rows = []  # for collected/NAME.csv
        self.left = STUDENT_BYTES  # that may still be read
        self.kept = {}  # {File: whether it is in set_aside}
        self.reasons = {}  # {reason: names of the files that were set aside for it}
        self.replaced = False

    def collect(self, came, earlier):
        """Take the newest file of each notebook, and set everything else aside.

        Args:
            came: list of (number of the download, Origin, File).
            earlier: {notebook: row of what was taken before}.
        """
        best = {}
        for number, origin, file in self.candidates(came):
            try:
                data = self.read(file)
                stem, good = intake.notebook_of(data, self.releases)
            except ValueError as error:
                self.reject(origin, file, str(error))
                continue
            own_time = file.container or origin.person.platform == "plain"  # a platform's times are the download's
            order = (number, origin.attachment, file.when if own_time else (), numbers(file.name))
            new = (order, origin, file, data, good)
            if stem in best:
                older, new = sorted((best[stem], new), key=lambda found: found[0])
                if older[-1] != new[-1]:
                    self.reject(older[1], older[2], f"older than {shown(new[2].name)}", stem)
            best[stem] = new
        new = [self.take(stem, *best[stem][1:], earlier.get(stem)) for stem in sorted(best)]
        if any(new) and os.path.lexists(stamp := self.folder / "timestamp.txt"):
            self.move_aside(stamp, "it was the time of the earlier files")
        for reason, files in self.reasons.items():
            more = f", … ({len(files)} files)" if len(files) > NAMED else ""
            print(f"{self.student}: set aside: {', '.join(shown(file, 60) for file in files[:NAMED])}{more}: {reason}")

    def candidates(self, came):
        """Return the files that may be notebooks, also those in zips, as (number of the download, Origin, File)."""
        found = []
        came = sorted(came, key=lambda item: not people.NAMED.search(item[2].name))
        for number, (download, origin, file) in enumerate(came):
            if max(number, len(found)) >= FILES:
                reason = f"more than {FILES:,} files; left in the download with {len(came) - number - 1:,} more"
                self.note(origin, file, f"set aside: {reason}")
                self.reasons[reason] = [file.name]
                break
            if file.name.lower().endswith(".zip"):
                found += [(download, origin, inner) for inner in self.opened(origin, file)]
            elif may_be_notebook(file):
                found.append((download, origin, file))
            else:
                self.reject(origin, file, "not a notebook")
        return found

    def opened(self, origin, file):
        """Return the files in a zip that may be notebooks; the zip itself is set aside if there is more in it."""
        try:
            inside = intake.unzipped(file, self.read(file, FILE_BYTES))
        except ValueError as error:
            self.reject(origin, file, str(error))
            return []
        names = [inner.parts[len(file.parts) :] for inner in inside]
        if origin.person.platform == "plain" and names and all(people.on_platform(n, self.releases) for n in names):
            self.reject(origin, file, "looks like a download of Canvas or Moodle; collect it by itself")
            return []
        found = [inner for inner in inside if may_be_notebook(inner)]
        if not found:
            self.reject(origin, file, "no notebook in it")
        elif len(found) < len(inside):
            self.reject(origin, file, "not everything in it is a notebook")
        return found

    def read(self, file, limit=intake.NOTEBOOK_BYTES):
        """Return a file's bytes, and count them."""
        if self.left < min(file.size, limit):
            raise ValueError(f"more than {STUDENT_BYTES // 2**20} MiB in all")
        data = file.read(limit)
        self.left -= len(data)
        return data

    def note(self, origin, file, what, notebook=""):
        """Write down what became of a file."""
        person = origin.person
        self.rows.append({
            "student": self.student, "name": shown(person.name), "platform": person.platform,
            "platform_id": person.number, "notebook": notebook, "file": shown("/".join(file.parts), 300),
            "handed_in": "",  # the platforms do not say
            "late": "yes" if origin.late else "", "what": shown(what, 300),
        })  # fmt: skip

    def reject(self, origin, file, reason, notebook=""):
        """Set a file aside, and write down why."""
        reason += "" if self.keep(file) else "; left in the download"
        self.reasons.setdefault(reason, []).append(file.name)
        self.note(origin, file, f"set aside: {reason}", notebook)

    def keep(self, file):
        """Copy a file, or the zip that it is in, into set_aside; return False if it is left in the download."""
        file = file.container or file
        if file not in self.kept:
            try:
                data = self.read(file, FILE_BYTES)
                free = self.place_aside(file.name, data)
                if not free.exists():
                    free.write_bytes(data)
                self.kept[file] = True
            except (ValueError, OSError):
                self.kept[file] = False
        return self.kept[file]

    def place_aside(self, name, data=None):
        """Return a free path in set_aside, or that of a file that holds these bytes already."""
        clean = re.sub(r"[^\w .(),+-]", "_", name.encode("utf8", "replace").decode()).lstrip(". ") or "file"
        clean = Path(clean.encode()[-150:].decode(errors="ignore"))  # the ending stays
        folder = own_folder(self.course, "set_aside", self.name, self.student)
        path, number = folder / clean, 1
        while os.path.lexists(path) and not (data is not None and holds(path, data)):
            number += 1
            path = folder / f"{clean.stem}-{number}{clean.suffix}"
        return path

    def move_aside(self, path, reason):
        """Move whatever has a path, a link as a link, into set_aside, and say so."""
        if path.is_dir() and not path.is_symlink():
            plain_mode(path, 0o755)  # or else it cannot be moved
        new = self.place_aside(path.name)
        os.rename(path, new)
        where = shown(str(new.relative_to(self.course)))
        print(f"{self.student}: {shown(path.name)} is set aside: {reason} ({where})")

    def take(self, notebook, origin, file, data, good, old):
        """Write a file's bytes, those that can be graded, as a notebook; return whether that is new.

        `old` is the row of what was taken before, or None.
        """
        before = old and people.on_platform(tuple(old["file"].split("/"))[:1], self.releases)
        if before and before.person == origin.person and before.attachment > origin.attachment:
            self.reject(origin, file, "older than what was collected before", notebook)
            return False
        path = own_folder(self.course, "submitted", self.student, self.name) / f"{notebook}.ipynb"
        self.note(origin, file, "taken", notebook)
        if holds(path, good):
            return False
        if os.path.lexists(path):
            self.replaced = True
            self.move_aside(path, f"replaced by {shown(file.name, 60)}")
            if old:
                self.rows.append(old | {"what": f"set aside: replaced by {shown(file.name)}"})
        if good != data:
            self.keep(file)
            print(f"{self.student}: {shown(file.name, 60)} is taken as far as it can be graded; set aside as it came")
        path.write_bytes(good)
        return True

    def take_in(self):
        """Leave in the submitted folder exactly the released notebooks, and perhaps timestamp.txt."""
        if self.folder.is_symlink():
            self.move_aside(self.folder, "a link")
        self.folder.mkdir(exist_ok=True)
        plain_mode(self.folder, 0o755)
        found = {}
        for path in sorted(self.folder.iterdir(), key=lambda path: numbers(path.name)):
            try:
                if path.lstat().st_nlink > 1 and not path.is_dir():
                    raise ValueError("a second name of another file (hard link)")
                file = intake.on_disk(path, (path.name,))
                if not file.trouble:
                    plain_mode(path, 0o644)
                if path.name == "timestamp.txt":
                    in_utc(path, file)
                    continue
                if not (file.trouble or may_be_notebook(file)):
                    raise ValueError("not a notebook")
                data = file.read()
                stem, good = intake.notebook_of(data, self.releases)
                found.setdefault(stem, []).append((path, data, good))
            except ValueError as error:
                self.move_aside(path, str(error))
        new = {}
        for stem in self.releases:
            name = f"{stem}.ipynb"
            *others, last = sorted(found.get(stem, []), key=lambda item: item[0].name == name) or [None]
            for path, _, _ in others:
                self.move_aside(path, f"another file counts as {name}")
            if last is None:
                print(f"{self.student}: {name} is missing; it is graded as it was handed out")
                new[name] = (self.course / "release" / self.name / name).read_bytes()
            elif last[0].name != name or last[1] != last[2]:
                self.move_aside(last[0], f"its gradable parts are used for {name}")
                new[name] = last[2]
        for name, data in new.items():
            (self.folder / name).write_bytes(data)


def own_folder(course, *names):
    """Make a folder in the course folder, step by step, and return it.

    Raises:
        ValueError: if a step is a link.
    """
    path = course
    for name in names:
        path /= name
        if path.is_symlink():
            raise ValueError(f"{path.relative_to(course)} is a link; nothing is written there")
        path.mkdir(exist_ok=True)
    return path


def holds(path, data):
    """Say whether a path is a regular file, no link, with these bytes."""
    return not path.is_symlink() and path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def plain_mode(path, mode):
    """Set a file's permissions, if it is ours."""
    with suppress(OSError):
        os.chmod(path, mode)


def in_utc(path, file):
    """Write the time in a timestamp.txt as nbgrader reads it, which takes `+0100` for 100 seconds.

    Raises:
        ValueError: if there is no time in it.
    """
    try:
        text = file.read(100).decode("utf8", "replace").strip()
        when = f"{instant(text.replace(' +', '+').replace(' -', '-')):%Y-%m-%d %H:%M:%S} UTC"
    except ValueError:
        raise ValueError('no time such as "2027-02-01 09:30:00 UTC"') from None
    if text != when:
        path.write_text(f"{when}\n")


def read_rows(course):
    """Return {assignment: rows of collected/ASSIGNMENT.csv}."""
    found = {}
    for path in sorted((course / "collected").glob("*.csv")):
        with path.open(newline="", encoding="utf8", errors="replace") as file:
            found[path.stem] = [{column: row.get(column) or "" for column in COLUMNS} for row in csv.DictReader(file)]
    return found


def write_rows(course, name, before, rows):
    """Write collected/NAME.csv, with the earlier rows that still hold; return all of them."""
    new = {(row["student"], row["notebook"]) for row in rows if row["what"] == "taken"}
    kept = [row for row in before if row["what"] != "taken" or (row["student"], row["notebook"]) not in new]
    rows = {tuple(row.values()): row for row in [*kept, *rows]}.values()  # each once
    rows = sorted(rows, key=lambda row: (row["student"], row["what"] != "taken", row["notebook"]))
    path = own_folder(course, "collected") / f"{name}.csv"
    with path.with_suffix(".new").open("w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(rows)
    os.replace(path.with_suffix(".new"), path)
    return rows


def summary(course, name, rows, came, roster):
    """Say who handed in what, who is missing, and what was set aside."""
    taken = {(row["student"], row["notebook"]) for row in rows if row["what"] == "taken"}
    students = {student for student, _ in taken}
    print(f"{name}: {len(students)} students, {len(taken)} notebooks; the list: {course.name}/collected/{name}.csv")
    if none := sorted(set(came) - students - {NOBODY}):
        print(f"handed in, but no readable notebook: {', '.join(none)}")
    if missing := [student for student in roster.names if student not in students]:
        named = ", ".join(f"{student} ({roster.names[student]})" for student in missing)
        print(f"missing, {len(missing)} of {len(roster.names)} in students.csv: {shown(named, 5000)}")
    for stem in sorted(path.stem for path in (course / "release" / name).glob("*.ipynb")):
        if lacking := sorted(student for student in students if (student, stem) not in taken):
            print(f"without {stem}.ipynb: {shown(', '.join(lacking), 5000)}")
    if aside := [row["student"] for row in rows if row["what"].startswith("set aside")]:
        print(f"set aside: {len(aside)} files, of {len(set(aside))} students; {course.name}/set_aside/{name}/ and the "
              "list's last column say what and why")  # fmt: skip


def take_in(assignment, student, notebooks):
    """Make a student's folder fit for grading: exactly the released notebooks, as regular files; nbgrader calls it.

    A file with another name is taken for the notebook whose exercises it holds. What is missing, or cannot be read,
    is put there as it was handed out: no points, and the others go on. Everything else, links above all, is moved to
    set_aside/ASSIGNMENT/STUDENT: nbgrader would copy it to what students get back.

    Args:
        assignment: its name; the folder's own is used, since nbgrader may say "*".
        student: not used, for the same reason.
        notebooks: list of the files that nbgrader found; it is brought up to date in place.
    """
    folder = Path(os.path.abspath(notebooks[0])).parent
    course, student, name = folder.parents[2], folder.parent.name, folder.name
    try:
        releases = intake.released(course / "release" / name)
    except Exception as error:  # nbgrader would go on with what lies there
        raise SystemExit(f"{short(error)}; nothing was graded") from error
    try:
        Submission(course, name, student, releases).take_in()
        notebooks[:] = [str(folder / f"{stem}.ipynb") for stem in releases]
    except Exception as error:  # nbgrader would go on here too: a name that it refuses fails this student alone
        print(f"{student}: cannot be taken in, and is not graded: {short(error)}")
        notebooks[:] = [str(folder / "not taken in")]


def main(arguments=None):
    """Collect, from the command line's words."""
    parser = argparse.ArgumentParser(prog="make collect", description=__doc__.partition("\n\n")[0])
    parser.add_argument("downloads", nargs="*", type=Path, help="zips and folders; the newest counts")
    parser.add_argument("--name", default="homework1", help="of the assignment")
    parser.add_argument("--course", type=Path, default=COURSE, help="folder of the course")
    options = parser.parse_args(arguments)
    sys.stdout.reconfigure(errors="backslashreplace")  # a name that the terminal cannot show stops nothing
    logging.disable(logging.ERROR)  # nbformat's, of every odd notebook
    try:
        if not options.downloads:
            raise ValueError("give FROM=..., a zip or a folder with what students handed in")
        downloads = [path.expanduser() for path in options.downloads]
        downloads.sort(key=lambda path: path.stat().st_mtime if path.exists() else 0)
        return 0 if collect(options.course, options.name, downloads) else 1
    except (ValueError, OSError) as error:
        parser.error(str(error))
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
