"""Reading what students hand in: zips, folders and notebooks that may be broken, enormous or made to do harm.

Nothing is unpacked by its own name: a file is read from where it lies, as far as the limits here allow, and whoever
reads it decides where it goes. What cannot be read is a ValueError with the reason.
"""

import contextlib
import datetime
import functools
import json
import os
import re
import stat
import sys
import tempfile
import unicodedata
import warnings
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import nbformat

from classroom.grading import restored

NOTEBOOK_BYTES = 20 * 2**20  # of one notebook
ZIP_BYTES = 200 * 2**20  # of one student's zip, and of all that comes out of it
ZIP_FILES = 10_000  # in one student's zip
RATIO = 200  # to which a file larger than a notebook may be packed
DEPTH = 100  # of lists in lists; a notebook has about ten
CELLS = 2_000  # of one notebook; a chapter has about a hundred
VALUES = 100_000  # in one notebook; with more it is read without its outputs, or nbformat would take minutes
JUNK = re.compile(r"__MACOSX|\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.ipynb_checkpoints|__pycache__", re.S)
DATE = re.compile(r"(\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?) ?(UTC|GMT|Z|[+-]\d\d:?\d\d)?")


@dataclass(frozen=True)
class File:
    """A file of a download.

    Args:
        parts: names on the way to it, its own the last.
        size: in bytes, as the download says.
        when: its time, as far as there is one: only good for finding the newer of two.
        open: returns a binary stream.
        trouble: why it cannot be read, or "".
    """

    parts: tuple[str, ...]
    size: int
    when: tuple
    open: Callable
    trouble: str = ""

    def read(self, limit=NOTEBOOK_BYTES):
        """Return its bytes.

        Raises:
            ValueError: if they cannot be read, or are more than `limit`.
        """
        if self.trouble:
            raise ValueError(self.trouble)
        if self.size > limit:
            raise ValueError(f"too large ({mebibytes(self.size)})")
        try:
            with self.open() as stream:
                data = stream.read(limit + 1)
        except Exception as error:  # zipfile and zlib raise much
            raise ValueError(f"cannot be read ({short(error)})") from None
        if len(data) > limit:
            raise ValueError(f"too large (more than {mebibytes(limit)})")
        return data


def mebibytes(size):
    """Return a size in words."""
    return f"{size / 2**20:.0f} MiB"


def short(error):
    """Return the first line of an error's words, or its kind."""
    return shown(str(error).partition("\n")[0] or type(error).__name__, 80)


def shown(text, limit=150):
    r"""Return a text that no terminal takes for a command, and no spreadsheet for a formula.

    >>> shown("a\x1b[2Jb"), shown("=1+1")
    ('a?[2Jb', "'=1+1")
    """
    text = "".join(sign if sign.isprintable() else "?" for sign in unicodedata.normalize("NFC", text))
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def say(line):
    """Print a line, whatever the terminal's letters."""
    coding = getattr(sys.stdout, "encoding", None) or "utf8"
    print(line.encode(coding, "backslashreplace").decode(coding), flush=True)


def files_of(path):
    """Return the files of a download.

    Args:
        path: a zip, a folder, or one notebook.

    Raises:
        ValueError: if it is none of these, or cannot be read at all.
    """
    path = Path(path)
    if path.is_dir():
        return files_of_folder(path)
    if not path.is_file():
        raise ValueError(f"got {shown(str(path))}; wanted a zip or a folder that is there")
    if path.name.lower().endswith(".ipynb"):
        return [on_disk(path, (path.name,))]
    return files_of_zip(path)


def files_of_folder(folder):
    """Return the files below a folder; links and the like with their trouble."""
    found = []
    for place, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not JUNK.fullmatch(name))
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in sorted([*names, *links]):
            path = Path(place, name)
            if not JUNK.fullmatch(name):
                found.append(on_disk(path, path.relative_to(folder).parts))
    return found


def on_disk(path, parts):
    """Return the File at a path."""
    about = path.lstat()
    trouble = "" if stat.S_ISREG(about.st_mode) else "a link" if path.is_symlink() else "not a file"
    return File(parts, about.st_size, (about.st_mtime,), functools.partial(open_regular, path), trouble)


def open_regular(path):
    """Open a file for reading, but no link and nothing that waits for a writer."""
    return os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb")


def files_of_zip(source, students=False):
    """Return the files of a zip.

    Args:
        source: path or binary stream.
        students: whether a student made it: then the limits hold.

    Raises:
        ValueError: if it is no zip, or holds more than it may.
    """
    try:
        if students:
            check_size(source)
        archive = zipfile.ZipFile(source)
        entries = archive.infolist()
    except ValueError:
        raise
    except Exception as error:  # struct.error, OverflowError, NotImplementedError, ... besides BadZipFile
        raise ValueError(f"not a zip that can be read ({short(error)})") from None
    found, total = [], 0
    for entry in entries:
        parts = tuple(part for part in name_of(entry).split("/") if part not in ("", "."))
        folder = entry.filename.endswith(("/", "\\"))
        if not parts or any(JUNK.fullmatch(part) for part in parts):
            continue
        if folder and not parts[-1].lower().endswith(".ipynb"):
            continue
        trouble = "a folder, no notebook" if folder else trouble_with(entry)
        total += entry.file_size
        if students and total > ZIP_BYTES and not trouble:
            trouble = f"unpacked, the zip is too large (more than {mebibytes(ZIP_BYTES)})"
        opener = functools.partial(archive.open, entry)
        found.append(File(parts, entry.file_size, entry.date_time, opener, trouble))
    return found


def check_size(stream):
    """Raise ValueError if a zip holds more files than a student's may; zipfile would read all their names first."""
    count, rest = 0, b""
    stream.seek(0)
    while part := stream.read(2**20):
        count += (rest + part).count(b"PK\1\2")  # what each entry of a zip's list begins with
        rest = part[-3:]
        if count > ZIP_FILES:
            raise ValueError(f"a zip of more than {ZIP_FILES:,} files")
    stream.seek(0)


def name_of(entry):
    """Return an entry's name as it was meant: macOS writes UTF-8 and does not say so, Windows may write backslashes."""
    name = entry.filename
    if not entry.flag_bits & 0x800:
        with contextlib.suppress(UnicodeError):
            name = name.encode("cp437").decode("utf8")
    return name.replace("\\", "/")


def trouble_with(entry):
    """Return why an entry of a zip is not read, or ""."""
    name, kind = name_of(entry), stat.S_IFMT(entry.external_attr >> 16)
    if name.startswith("/") or ".." in name.split("/") or re.match(r"[A-Za-z]:/", name):
        return "its name leads out of the zip"
    if kind not in (0, stat.S_IFREG):
        return "a link" if kind == stat.S_IFLNK else "not a file"
    if entry.flag_bits & 1:
        return "locked with a password"
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        return "packed in another way than zips usually are"
    if entry.file_size > max(NOTEBOOK_BYTES, RATIO * entry.compress_size):
        return f"unpacks to {mebibytes(entry.file_size)}, more than {RATIO} times its size"
    return ""


@contextlib.contextmanager
def unpacked(file):
    """Yield the files of a student's zip.

    Raises:
        ValueError: if it cannot be read.
    """
    if file.trouble:
        raise ValueError(file.trouble)
    if file.size > ZIP_BYTES:
        raise ValueError(f"too large ({mebibytes(file.size)})")
    with tempfile.TemporaryFile() as copy:
        try:
            with file.open() as stream:
                while part := stream.read(2**20):
                    copy.write(part)
                    if copy.tell() > ZIP_BYTES:
                        raise ValueError(f"too large (more than {mebibytes(ZIP_BYTES)})")
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(f"cannot be read ({short(error)})") from None
        yield files_of_zip(copy, students=True)


def released(folder):
    """Return the notebooks of an assignment as they were handed out.

    Args:
        folder: such as grading/release/homework1.

    Returns:
        {name without ".ipynb": notebook}.

    Raises:
        ValueError: if there is none.
    """
    found = {path.stem: nbformat.read(path, as_version=4) for path in sorted(Path(folder).glob("*.ipynb"))}
    if not found:
        raise ValueError(f"no notebook in {folder}; was {Path(folder).name} released?")
    return found


def notebook_of(data, releases, name=""):
    """Say which notebook a file's bytes are, and return them as they can be graded.

    Args:
        data: bytes.
        releases: what `released` returns.
        name: the released name that the file's own name suggests; it counts where no exercise is recognised.

    Returns:
        (name of the released notebook, bytes): the same bytes, or only the texts and marks of the cells where the
        rest, outputs or metadata, would break the grading or hold it up.

    Raises:
        ValueError: if it cannot be read, or is another notebook.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")  # Windows' mark of UTF-8, which nbformat does not read
    raw, values = parsed(data)
    shared = {stem: len(grade_ids(raw) & grade_ids(notebook)) for stem, notebook in releases.items()}
    stem = max(shared, key=lambda stem: (shared[stem], stem == name))
    recognised = shared[stem] > 0
    if not recognised and name not in releases:
        raise ValueError("holds none of the assignment's exercises")
    if not recognised:
        stem = name
    if values <= VALUES and fits(data, releases[stem]):
        return stem, data
    bare = json.dumps(plain(raw)).encode()
    if (recognised or values > VALUES) and cells_of(raw) and fits(bare, releases[stem]):
        return stem, bare
    raise ValueError("its cells cannot be read")


def parsed(data):
    """Return the JSON of a notebook, and how many values are in it.

    Raises:
        ValueError: if it is none.
    """
    if len(data) > NOTEBOOK_BYTES:
        raise ValueError(f"too large ({mebibytes(len(data))})")
    if not data.strip():
        raise ValueError("empty")
    try:
        raw = json.loads(data.decode())
    except RecursionError:
        raise ValueError("nested too deeply") from None
    except (ValueError, MemoryError) as error:
        raise ValueError(f"not a notebook ({short(error)})") from None
    if not isinstance(raw, dict) or not (raw.get("cells") or raw.get("worksheets")):
        raise ValueError("not a notebook")
    if len(cells_of(raw)) > CELLS:
        raise ValueError(f"more than {CELLS:,} cells")
    level, values = [raw], 0
    for _ in range(DEPTH):
        values += sum(map(len, level))
        level = [
            child for value in level for child in (value.values() if isinstance(value, dict) else value)
            if isinstance(child, dict | list)
        ]  # fmt: skip
        if not level:
            return raw, values
    raise ValueError("nested too deeply")


def cells_of(notebook):
    """Return the cells of a notebook's JSON, of format 3 too, as far as they are dicts."""
    sheets = [notebook, *(notebook.get("worksheets") if isinstance(notebook.get("worksheets"), list) else [])]
    lists = [sheet.get("cells") for sheet in sheets if isinstance(sheet, dict)]
    return [cell for cells in lists if isinstance(cells, list) for cell in cells if isinstance(cell, dict)]


def mark_of(cell):
    """Return the grade_id in a cell's metadata, which may hold anything, or None."""
    metadata = cell.get("metadata")
    mark = metadata.get("nbgrader") if isinstance(metadata, dict) else None
    found = mark.get("grade_id") if isinstance(mark, dict) else None
    return found if isinstance(found, str) else None


def grade_ids(notebook):
    """Return the ids of a notebook's exercises."""
    return {mark_of(cell) for cell in cells_of(notebook)} - {None}


def fits(data, release):
    """Say whether the answers can be taken out of a notebook, and be written again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nbformat.writes(restored(release, nbformat.reads(data.decode(), as_version=4))).encode()
    except Exception:  # its metadata may hold anything
        return False
    return True


def plain(raw):
    """Return a notebook's JSON with its texts and marks only, and only such letters as can be written."""
    cells = []
    for cell in cells_of(raw):
        source = cell.get("source", cell.get("input", ""))
        source = "".join(line for line in source if isinstance(line, str)) if isinstance(source, list) else source
        if not isinstance(source, str):
            continue
        source = source.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        kind = "code" if cell.get("cell_type") == "code" else "markdown"
        mark = mark_of(cell)
        made = {"cell_type": kind, "metadata": {"nbgrader": {"grade_id": mark}} if mark else {}, "source": source}
        cells.append(made | ({"outputs": [], "execution_count": None} if kind == "code" else {}))
    return {"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": cells}


def moment(data):
    """Return the time in the bytes of a timestamp.txt, in UTC and as nbgrader reads it, or "" if it is none.

    >>> moment(b"2027-02-01 10:30:00 +01:00"), moment(b"2027-02-31 10:30:00 UTC"), moment(b"yesterday")
    ('2027-02-01 09:30:00 UTC', '', '')
    """
    found = DATE.fullmatch(data[:100].decode("utf8", "replace").strip()) if len(data) <= 100 else None
    if not found:
        return ""
    zone = found[2] if found[2] and found[2][0] in "+-" else "+00:00"
    try:
        when = datetime.datetime.fromisoformat(f"{found[1]}{zone}").astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return ""
    return f"{when:%Y-%m-%d %H:%M:%S} UTC" if 2000 <= when.year < 2100 else ""
