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
import shutil
import stat
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

from classroom import intake, people
from classroom.intake import NOTEBOOK_BYTES, ZIP_BYTES, mebibytes, say, short, shown
from classroom.release import COURSE, NAME

COLUMNS = ("student", "name", "platform", "platform_id", "notebook", "file", "handed_in", "late", "what")
NOBODY = "nobody"  # the folder in set_aside/NAME/ for files without a student
FILES = 1_000  # of one student that are looked at
NAMED = 3  # files of one student, and one reason, that a line names


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
    roster = people.Roster(roster_text(course / "students.csv"))
    paths = [Path(path).resolve() for path in downloads]
    for path in paths:
        if not path.exists():
            raise ValueError(f"got {shown(str(path))}; wanted a zip or a folder that is there")
        if any(path.is_relative_to(own) or own.is_relative_to(path) for own in
               (course / "submitted", course / "set_aside", course / "collected")):  # fmt: skip
            raise ValueError(f"{shown(str(path))} holds what was collected before; wanted a download")
    persons, whole = {}, True
    for rank, path in enumerate(paths):
        try:
            sorted_out = by_person(path, name, releases, roster)
        except (ValueError, OSError) as error:
            say(f"{shown(path.name)}: {short(error)}; if it is the whole class's, download it again")
            person, whole = container_of(path), False
            sorted_out = {person: [(people.Origin(person, path.name), intake.on_disk(path, (path.name,)))]}
        for person, files in sorted_out.items():
            persons.setdefault(person, []).extend((rank, *both) for both in files)
    ids, lines = people.students([person for person in persons if person], roster, earlier(course))
    by_student, last = {}, {}
    for person, came in persons.items():
        by_student.setdefault(ids[person] if person else NOBODY, []).extend(came)
    for _, line in rows_of(course, name):
        last.setdefault(line["student"], {})[line["notebook"]] = line if line["what"] == "taken" else None
    rows, replaced = [], []
    for student, came in by_student.items():
        shelf = Shelf(course, name, student, releases, last.get(student, {}))
        try:
            shelf.sort_in(came)
        except Exception as error:  # whatever it is, the others go on
            say(f"{student}: not collected: {short(error)}")
            _, found, file = came[0]
            shelf.rows.append(row(student, found, "/".join(file.parts), f"not collected: {short(error)}"))
        rows += shelf.rows
        replaced += [student] if shelf.replaced else []
    every = write(course, name, rows)
    for line in lines:
        say(shown(line, 300))
    summary(course, name, every, list(by_student), roster, replaced)
    return whole


def roster_text(path):
    """Return the text of students.csv, "" if there is none; Excel writes it in Windows' letters."""
    if not path.exists():
        return ""
    data = path.read_bytes()
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


def by_person(path, name, releases, roster):
    """Return {Person: list of (Origin, File)} of a download; None in a Person's place for what is nobody's.

    Raises:
        ValueError: if the download cannot be read.
    """
    found, container = {}, container_of(path)
    for file in intake.files_of(path):
        origin = people.origin(file.parts, people.stem_of(path.name), name, list(releases))
        person, names_somebody = origin.person, looks_like_notebook(file) or is_zip(file)
        if person.platform == "plain":
            if roster.by_name(container) and not roster.by_name(person):
                person = container  # `ada.zip` with a folder of another name
            elif not names_somebody and (len(file.parts) == 1 or person == container):
                person = None  # a file such as `notes.txt` names nobody
        found.setdefault(person, []).append((origin, file))
    own = None if container not in found else container
    for person in [person for person in found if person is None or person.platform == "plain"]:
        if not any(looks_like_notebook(file) or is_zip(file) for _, file in found[person]) and (own or person is None):
            files = found.pop(person)  # beside a student's own notebooks: also the student's
            found.setdefault(own or (next(iter(found)) if len(found) == 1 else None), []).extend(files)
    return found


def container_of(path):
    """Return the Person that a download itself is named after."""
    return people.Person("plain", "", people.without_copy(people.stem_of(path.name)))


def looks_like_notebook(file):
    """Say whether a file may be a notebook, whatever a browser made of its ending."""
    return bool(re.search(r"\.ipynb|\.json$", file.parts[-1], re.I))


def is_zip(file):
    """Say whether a file is a zip by its name."""
    return file.parts[-1].lower().endswith(".zip")


class Shelf:
    """One student's place in the course folder.

    Args:
        course: the folder.
        name: of the assignment.
        student: the id.
        releases: {name: notebook as it was handed out}.
        earlier: {name of a notebook: its line in the list so far, if one was taken}.
    """

    def __init__(self, course, name, student, releases, earlier):
        self.course, self.name, self.student, self.releases = course, name, student, releases
        self.folder = course / "submitted" / student / name
        self.rows, self.replaced, self.left, self.reasons = [], False, ZIP_BYTES, {}
        self.earlier = earlier

    def sort_in(self, came):
        """Take the notebooks of one student, and set everything else aside.

        Args:
            came: list of (rank of the download, Origin, File).
        """
        came.sort(key=lambda item: not (looks_like_notebook(item[2]) or is_zip(item[2])))
        if came[FILES:]:
            _, found, file = came[FILES]
            self.reject(
                found, file, f"more than {FILES:,} files; this and {len(came) - FILES - 1:,} more", keep_it=False
            )
        came = came[:FILES]
        newest = max(rank for rank, _, _ in came)
        with ExitStack() as stack:
            best = {}
            for number, (rank, found, file) in enumerate(came):
                for inner, outer in self.opened(stack, found, file):
                    about = self.notebook(found, inner, outer)
                    if about is None:
                        continue
                    stem, data, original = about
                    order = (newest if found.attachment else rank, found.attachment, people.counts(found.file),
                             people.counts(inner.parts[-1]), tuple(inner.when), number)  # fmt: skip
                    now = (order, data, found, inner, original)
                    if stem in best:
                        older, now = sorted((best[stem], now), key=lambda item: comparable(item[0]))
                        if older[1] != now[1]:
                            self.reject(older[2], older[3], f"older than {shown(now[3].parts[-1])}", stem=stem)
                    best[stem] = now
            times = [
                self.take(stem, *best[stem][1:]) for stem in sorted(best) if not self.outdated(stem, *best[stem][2:4])
            ]
            self.stamp(came, times)
        for reason, (files, kept) in self.reasons.items():
            named = ", ".join(shown(file, 60) for file in files[:NAMED]) + (
                f", … ({len(files)})" if len(files) > NAMED else ""
            )
            say(f"{self.student}: set aside{'' if kept else ', left in the download'}: {named}: {reason}")

    def opened(self, stack, found, file):
        """Yield (file, None), or the files of a zip with the zip that they are in."""
        if not is_zip(file):
            yield file, None
            return
        try:
            inside = stack.enter_context(intake.unpacked(file))
        except ValueError as error:
            self.reject(found, file, str(error))
            return
        if (
            found.person.platform == "plain"
            and inside
            and all(people.on_platform(f.parts, self.releases) for f in inside)
        ):
            self.reject(
                found, file, "holds names as Canvas or Moodle writes them; if it is a download, name it by itself"
            )
            return
        trouble = [inner for inner in inside if inner.trouble]
        if trouble or not inside:
            reason = f"in it, {shown(trouble[0].parts[-1], 60)}: {trouble[0].trouble}" if trouble else "an empty zip"
            self.reject(found, file, reason)
        inside.sort(key=lambda inner: not looks_like_notebook(inner))
        for inner in inside[:FILES]:
            if not inner.trouble:
                yield intake.File((*file.parts, *inner.parts), inner.size, inner.when, inner.open), file
        if inside[FILES:]:
            self.reject(found, file, f"more than {FILES:,} files")

    def notebook(self, found, file, outer):
        """Return (name, bytes, bytes as they came) of a file that is one of the assignment's notebooks, or None."""
        try:
            if found.kind != "file":
                raise ValueError("text typed into Moodle, no file")
            if not looks_like_notebook(file):
                raise ValueError("a zip in a zip" if outer and is_zip(file) else "no notebook")
            if self.left < min(file.size, NOTEBOOK_BYTES):
                raise ValueError(f"more than {mebibytes(ZIP_BYTES)} in all")
            original = file.read()
            self.left -= len(original)
            own = people.squash(people.without_copy(people.stem_of(file.parts[-1])))
            named = [stem for stem in self.releases if own.endswith(people.squash(stem))]
            stem, data = intake.notebook_of(original, self.releases, named[0] if named else "")
        except ValueError as error:
            if outer and file.parts[-1] == "timestamp.txt":
                return None
            self.reject(found, file, str(error), outer=outer)
            return None
        return stem, data, original

    def reject(self, found, file, reason, stem="", keep_it=True, outer=None):
        """Set a file aside, and write down why."""
        if file.parts[-1] == "timestamp.txt" and found.person.platform == "plain":
            return
        kept = keep_it and keep(self.course, self.name, self.student, file)
        if outer and not kept:
            kept = keep(self.course, self.name, self.student, outer)
        files, _ = self.reasons.setdefault(reason, ([], kept))
        files.append(file.parts[-1])
        self.rows.append(row(self.student, found, "/".join(file.parts), f"set aside: {reason}", stem))

    def outdated(self, stem, found, file):
        """Say whether a later upload was collected before, by Canvas's numbers."""
        old = self.earlier.get(stem)
        then = people.on_platform(tuple(old["file"].split("/"))[:1], self.releases) if old else None
        if (
            not then
            or found.person.platform != "canvas"
            or then.person != found.person
            or then.attachment <= found.attachment
        ):
            return False
        self.reject(found, file, f"older than {shown(then.file)}, collected before", stem=stem)
        return True

    def take(self, stem, data, found, file, original):
        """Write a notebook into the student's folder; return whether it is new."""
        path = self.folder / f"{stem}.ipynb"
        real_folders(self.course, "submitted", self.student, self.name)
        self.rows.append(row(self.student, found, "/".join(file.parts), "taken", stem))
        if is_regular(path) and path.stat().st_size == len(data) and path.read_bytes() == data:
            return False
        if path.is_symlink() or path.exists():
            aside = move_aside(path, self.course, self.name, self.student)
            say(f"{self.student}: {stem} is replaced by {shown(file.parts[-1], 60)}; the earlier one: {aside}")
            self.replaced = True
            if old := self.earlier.get(stem):
                self.rows.append(
                    old | {"handed_in": "", "what": f"set aside: replaced by {shown('/'.join(file.parts))}"}
                )
        if data != original:
            keep(self.course, self.name, self.student, file)
            said = "counts as far as it can be graded; as it came it is set aside"
            say(f"{self.student}: {shown(file.parts[-1], 60)} {said}")
        write_bytes(path, data)
        return True

    def stamp(self, came, new):
        """Write timestamp.txt if a folder of the instructor's says when, and take away an older one otherwise."""
        stamps = [
            file for _, found, file in came if found.person.platform == "plain" and file.parts[-1] == "timestamp.txt"
        ]
        when = ""
        for file in stamps:
            if (
                len(file.when) == 1 and not file.trouble and file.size <= 100
            ):  # on disk: a zip's may be the student's own
                when = max(when, intake.moment(file.read(100)))
        path = self.folder / "timestamp.txt"
        old = path.read_bytes() if is_regular(path) and path.stat().st_size <= 100 else None
        if when and new:
            real_folders(self.course, "submitted", self.student, self.name)
            if any(new) or old is None:
                write_bytes(path, f"{when}\n".encode())
        elif any(new) and (path.is_symlink() or path.exists()):
            aside = move_aside(path, self.course, self.name, self.student)
            say(f"{self.student}: timestamp.txt was of the earlier files; it is set aside: {aside}")
        for taken in self.rows:
            if taken["what"] == "taken":
                taken["handed_in"] = when or (intake.moment(old) if old and not any(new) else "")


def comparable(order):
    """Return an order in which times of a disk and of a zip do not meet."""
    *first, when, number = order
    return (*first, when if len(when) > 1 else (), when if len(when) == 1 else (), number)


def row(student, found, file, what, notebook=""):
    """Return a line of collected/NAME.csv."""
    person = found.person
    return {"student": student, "name": shown(person.name), "platform": person.platform, "platform_id": person.number,
            "notebook": notebook, "file": shown(file, 300), "handed_in": "", "late": "yes" if found.late else "",
            "what": shown(what, 300)}  # fmt: skip


def real_folders(course, *names):
    """Make a folder in the course folder, step by step, and return it.

    Raises:
        ValueError: if a step is a link, or no folder.
    """
    path = course
    for name in names:
        path /= name
        path.mkdir(exist_ok=True) if not path.is_symlink() else None
        if path.is_symlink() or not path.is_dir():
            raise ValueError(f"{path.relative_to(course)} is a link or no folder; nothing is written there")
    return path


def is_regular(path):
    """Say whether a path is a regular file, no link."""
    return not path.is_symlink() and path.is_file()


def write_bytes(path, data):
    """Write a regular file, in the place of whatever has its name, with plain permissions."""
    new = path.with_name(f".{path.name}.new")
    new.unlink(missing_ok=True)
    with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644), "wb") as file:
        file.write(data)
    os.replace(new, path)


def place_aside(course, name, student, file):
    """Return the path of a file in set_aside/NAME/STUDENT, without a sign that could do harm."""
    folder = real_folders(course, "set_aside", name, student)
    clean = re.sub(r"[^\w .(),+-]", "_", file.encode("utf8", "replace").decode()).lstrip(". ") or "file"
    while len(clean.encode()) > 150:
        clean = clean[1:]  # the ending stays
    return folder / clean


def keep(course, name, student, file):
    """Copy a file of a download into set_aside; return False if it is left where it is."""
    if file.trouble or file.size > ZIP_BYTES:
        return False
    try:
        data = file.read(ZIP_BYTES)
        wanted = place_aside(course, name, student, file.parts[-1])
        for path in other_names(wanted):
            if is_regular(path) and path.stat().st_size == len(data) and path.read_bytes() == data:
                return True
            if not path.exists() and not path.is_symlink():
                write_bytes(path, data)
                return True
    except (ValueError, OSError):
        return False


def move_aside(path, course, name, student):
    """Move whatever has a path, a link as a link, into set_aside; return where it is now, below the course folder."""
    wanted = place_aside(course, name, student, path.name)
    new = next(new for new in other_names(wanted) if not os.path.lexists(new))
    os.rename(path, new)
    return shown(str(new.relative_to(course)))


def other_names(path):
    """Yield a path, and then the same with -2, -3, ..."""
    yield path
    number = 1
    while True:
        number += 1
        yield path.with_name(f"{path.stem}-{number}{path.suffix}")


def rows_of(course, name="*"):
    """Return [(assignment, row)] of collected/NAME.csv, as far as they can be read."""
    found = []
    for path in sorted((course / "collected").glob(f"{name}.csv")):
        with path.open(newline="", encoding="utf8", errors="replace") as file:
            found += [
                (path.stem, {column: line.get(column) or "" for column in COLUMNS}) for line in csv.DictReader(file)
            ]
    return found


def earlier(course):
    """Return who was collected before: list of (assignment, student, Person)."""
    return [
        (name, line["student"], people.Person(line["platform"], line["platform_id"], line["name"].removeprefix("'")))
        for name, line in rows_of(course)
        if line["student"] != NOBODY
    ]


def write(course, name, rows):
    """Write collected/NAME.csv, with the earlier lines that still hold; return all of them."""
    new = {(line["student"], line["notebook"]) for line in rows if line["what"] == "taken"}
    kept = [line for _, line in rows_of(course, name)
            if line["what"] != "taken" or (line["student"], line["notebook"]) not in new]  # fmt: skip
    every = {tuple(line[column] for column in COLUMNS): line for line in [*kept, *rows]}
    lines = sorted(every.values(), key=lambda line: (line["student"], line["what"] != "taken", line["notebook"]))
    folder = real_folders(course, "collected")
    with open(folder / f".{name}.new", "w", newline="", encoding="utf8") as file:
        table = csv.DictWriter(file, COLUMNS)
        table.writeheader()
        table.writerows(lines)
    os.replace(folder / f".{name}.new", folder / f"{name}.csv")
    return lines


def summary(course, name, lines, came, roster, replaced):
    """Say who handed in what, who is missing, and what is left to do."""
    taken = {(line["student"], line["notebook"]) for line in lines if line["what"] == "taken"}
    students = {student for student, _ in taken}
    say(f"{name}: {len(students)} students, {len(taken)} notebooks; the list: {course.name}/collected/{name}.csv")
    if none := [student for student in came if student not in students and student != NOBODY]:
        say(f"handed in, but no notebook that can be read: {', '.join(sorted(none))}")
    if missing := [student for student in roster.names if student not in students]:
        named = ", ".join(
            f"{student} ({roster.names[student]})" if roster.names[student] else student for student in missing
        )
        say(f"missing, {len(missing)} of {len(roster.names)} in students.csv: {shown(named, 5000)}")
    aside = [line for line in lines if line["what"].startswith("set aside")]
    if aside:
        say(f"set aside: {len(aside)} files, of {len({line['student'] for line in aside})} students; "
            f"{course.name}/set_aside/{name}/ and the list's last column say what and why")  # fmt: skip
    for student in replaced:
        if (course / "autograded" / student / name).exists():
            say(f"{student} was graded before; grade again: nbgrader autograde {name} --student={student} --force")


# What nbgrader calls before it grades.


def take_in(assignment, student, notebooks):
    """Make a student's folder hold exactly the released notebooks, as regular files, and perhaps timestamp.txt.

    A file with another name is taken for the notebook whose exercises it holds. What is missing, or cannot be read,
    is put there as it was handed out: no points, and the others go on. Everything else, links above all, is moved to
    set_aside/ASSIGNMENT/STUDENT: nbgrader would copy it to what students get back.

    Args:
        assignment: its name; the folder's own is used, since nbgrader may say "*".
        student: not used, for the same reason.
        notebooks: list of the files that nbgrader found; it is brought up to date in place.
    """
    folder = Path(os.path.abspath(notebooks[0])).parent
    course, student = folder.parents[2], folder.parent.name
    try:
        releases = intake.released(course / "release" / folder.name)
    except Exception as error:  # nbgrader would go on with what lies there
        raise SystemExit(f"{short(error)}; nothing was graded") from error
    try:
        Intake(course, student, folder, releases).run()
        notebooks[:] = [str(folder / f"{stem}.ipynb") for stem in releases]
    except Exception as error:  # nbgrader would go on here too: a name that it refuses fails this student alone
        say(f"{student}: cannot be taken in, and is not graded: {short(error)}")
        notebooks[:] = [str(folder / "not taken in")]


class Intake:
    """One submitted folder, made fit for nbgrader.

    Args:
        course: the course folder.
        student: the id.
        folder: submitted/STUDENT/ASSIGNMENT.
        releases: {name: notebook as it was handed out}.
    """

    def __init__(self, course, student, folder, releases):
        self.course, self.student, self.folder, self.releases = course, student, folder, releases

    def run(self):
        """Look at everything in the folder, and leave what belongs there."""
        if self.folder.is_symlink():
            self.aside(self.folder, "a link")
        self.folder.mkdir(exist_ok=True)
        plain_mode(self.folder, 0o755)
        good, others = {}, []
        for path in sorted(self.folder.iterdir()):
            reason, found = self.look(path)
            if found and found[0] == path.stem and path.suffix == ".ipynb":
                good[path.stem] = (path, found)
            elif found:
                others.append((path, found))
            elif reason:
                self.aside(path, reason)
        others.sort(key=lambda item: people.counts(item[0].name), reverse=True)
        for path, (stem, data, _) in others:
            self.aside(path, "another file counts" if stem in good else f"it is taken for {stem}.ipynb")
            good.setdefault(stem, (None, data))
        for stem in self.releases:
            path, found = good.get(stem, (None, None))
            if path and found[1] != found[2]:
                self.aside(path, "it counts as far as it can be graded")
                write_bytes(path, found[1])
            elif found and not path:
                write_bytes(self.folder / f"{stem}.ipynb", found)
            elif not found:
                shutil.copyfile(
                    self.course / "release" / self.folder.name / f"{stem}.ipynb", self.folder / f"{stem}.ipynb"
                )
                say(f"{self.student}: {stem}.ipynb is missing; it is graded as it was handed out")

    def look(self, path):
        """Return why a file is set aside, or "", and (notebook, bytes, bytes as they came) if it is one, or None."""
        about = path.lstat()
        if not stat.S_ISREG(about.st_mode):
            return ("a link" if stat.S_ISLNK(about.st_mode) else "not a file"), None
        if about.st_nlink > 1:
            return "a second name of another file (hard link)", None
        if path.name == "timestamp.txt":
            return self.timestamp(path, about)
        if not looks_like_notebook(intake.File((path.name,), 0, (), None)):
            return "no notebook", None
        try:
            if about.st_size > NOTEBOOK_BYTES:
                raise ValueError(f"too large ({mebibytes(about.st_size)})")
            plain_mode(path, 0o644)
            data = path.read_bytes()
            stem, good = intake.notebook_of(data, self.releases, path.stem)
        except ValueError as error:
            counted = "; it counts as not handed in" if path.stem in self.releases else ""
            return f"cannot be read: {error}{counted}", None
        return "", (stem, good, data)

    def timestamp(self, path, about):
        """Keep timestamp.txt if it is a short file with a date; it then says so in UTC."""
        plain_mode(path, 0o644)
        when = intake.moment(path.read_bytes()) if about.st_size <= 100 else ""
        if not when:
            return 'no time such as "2027-02-01 09:30:00 UTC"', None
        if path.read_text().strip() != when:
            write_bytes(path, f"{when}\n".encode())
        return "", None

    def aside(self, path, reason):
        """Move a file out of the folder, and say so."""
        if path.is_dir() and not path.is_symlink():
            plain_mode(path, 0o755)  # or else it cannot be moved
        new = move_aside(path, self.course, self.folder.name, self.student)
        say(f"{self.student}: {shown(path.name)} is set aside: {reason} ({new})")


def plain_mode(path, mode):
    """Set a file's permissions, as far as that is ours to do."""
    with suppress(OSError):
        os.chmod(path, mode)


def main(arguments=None):
    """Collect, from the command line's words."""
    parser = argparse.ArgumentParser(prog="make collect", description=__doc__.partition("\n\n")[0])
    parser.add_argument("downloads", nargs="+", type=Path, help="zips and folders; the newest counts")
    parser.add_argument("--name", default="homework1", help="of the assignment")
    parser.add_argument("--course", type=Path, default=COURSE, help="folder of the course")
    options = parser.parse_args(arguments)
    logging.disable(logging.ERROR)  # nbformat's, of every odd notebook
    try:
        downloads = [path.expanduser() for path in options.downloads]
        downloads.sort(key=lambda path: path.stat().st_mtime if path.exists() else 0)
        return 0 if collect(options.course, options.name, downloads) else 1
    except (ValueError, OSError) as error:
        parser.error(str(error))
    finally:
        logging.disable(logging.NOTSET)


if __name__ == "__main__":
    sys.exit(main())
