"""Reading what students hand in: zips, folders and notebooks that may be broken, enormous or hostile.

Nothing is unpacked to disk: a file is read from where it lies, up to the limits below, and the caller decides where
it goes. What cannot be read is a ValueError that says why.
"""

import dataclasses
import functools
import io
import json
import re
import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import nbformat

from classroom.grading import restored

NOTEBOOK_BYTES = 20 * 2**20  # of one notebook
FILE_BYTES = 200 * 2**20  # of a zip, or of another file that is set aside
STUDENT_BYTES = 2 * FILE_BYTES  # of everything that is read for one student
ZIP_FILES = 10_000  # in one student's zip
CELLS = 2_000  # in one notebook; a chapter has about a hundred
VALUES = (
    100_000  # lists, dicts and commas in one notebook; a chapter has 8,000. Millions keep nbformat busy for minutes
)
JUNK = re.compile(r"__MACOSX|\.DS_Store|\._.*|Thumbs\.db|desktop\.ini|\.ipynb_checkpoints|__pycache__", re.S)


@dataclasses.dataclass(frozen=True)
class File:
    """A file of a download.

    Args:
        parts: of its path in the download.
        size: in bytes, as the download says.
        when: its time as the disk or the zip says, to find the newer of two.
        open: returns a binary stream.
        trouble: why it cannot be read, or "".
        container: the student's zip that it is in, or None.
    """

    parts: tuple[str, ...]
    size: int
    when: tuple
    open: Callable
    trouble: str = ""
    container: "File | None" = None

    @property
    def name(self):
        """The last part of its path."""
        return self.parts[-1]

    def read(self, limit=NOTEBOOK_BYTES):
        """Return its bytes.

        Raises:
            ValueError: if they cannot be read, or are more than `limit`.
        """
        if self.trouble:
            raise ValueError(self.trouble)
        try:
            with self.open() as stream:
                data = stream.read(limit + 1) if self.size <= limit else None
        except Exception as error:  # zipfile and zlib raise many kinds
            raise ValueError(f"cannot be read ({short(error)})") from None
        if data is None or len(data) > limit:
            raise ValueError(f"too large (more than {limit // 2**20} MiB)")
        return data


def short(error):
    """Return the first line of an error's message, or its type if it has none."""
    return shown(str(error).partition("\n")[0] or type(error).__name__, 80)


def shown(text, limit=150):
    r"""Return a text that no terminal takes for a command, and no spreadsheet for a formula.

    >>> shown("a\x1b[2Jb"), shown("=1+1")
    ('a?[2Jb', "'=1+1")
    """
    text = "".join(sign if sign.isprintable() else "?" for sign in unicodedata.normalize("NFC", text))
    text = text if len(text) <= limit else f"{text[: limit - 1]}…"
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


def files_of(path):
    """Return the files of a download, which is a folder or a zip.

    Raises:
        ValueError: if it cannot be read at all.
    """
    if not path.is_dir():
        return files_of_zip(path)
    below = [(found, found.relative_to(path).parts) for found in sorted(path.rglob("*"))]
    return [on_disk(found, parts) for found, parts in below
            if (found.is_symlink() or not found.is_dir()) and not any(map(JUNK.fullmatch, parts))]  # fmt: skip


def on_disk(path, parts):
    """Return the File at a path; links, pipes and the like are not read."""
    about = path.lstat()
    trouble = "" if stat.S_ISREG(about.st_mode) else "a link" if path.is_symlink() else "not a file"
    return File(parts, about.st_size, (about.st_mtime,), functools.partial(path.open, "rb"), trouble)


def files_of_zip(source):
    """Return the files of a zip, given its path or a binary stream.

    Raises:
        ValueError: if it is no zip.
    """
    try:
        archive = zipfile.ZipFile(source)
    except Exception as error:  # struct.error, OverflowError, NotImplementedError, ... besides BadZipFile
        raise ValueError(f"not a zip that can be read ({short(error)})") from None
    found = []
    for entry in archive.infolist():
        name = name_of(entry)
        parts = tuple(part for part in name.split("/") if part not in ("", "."))
        if name.endswith("/") or any(map(JUNK.fullmatch, parts)):
            continue
        trouble = ""
        if name.startswith("/") or ".." in parts or re.match(r"[A-Za-z]:/", name):
            trouble = "its name leads out of the zip"
        elif entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            trouble = "compressed in another way than zips usually are"
        found.append(File(parts, entry.file_size, entry.date_time, functools.partial(archive.open, entry), trouble))
    return found


def name_of(entry):
    """Return a zip entry's name as it was meant: macOS writes UTF-8 without saying so, Windows backslashes."""
    name = entry.filename
    if not entry.flag_bits & 0x800:  # the mark of UTF-8
        try:
            name = name.encode("cp437").decode("utf8")
        except UnicodeError:
            pass
    return name.replace("\\", "/")


def unzipped(file, data):
    """Return the files of a student's zip, given its bytes.

    Raises:
        ValueError: if it cannot be read, or holds too many files.
    """
    if data.count(b"PK\1\2") > ZIP_FILES:  # what every entry of a zip's directory begins with
        raise ValueError(f"a zip of more than {ZIP_FILES:,} files")
    return [
        dataclasses.replace(inner, parts=(*file.parts, *inner.parts), container=file)
        for inner in files_of_zip(io.BytesIO(data))
    ]


def released(folder):
    """Return {name without ".ipynb": notebook} of an assignment as it was handed out.

    Args:
        folder: such as grading/release/homework1.

    Raises:
        ValueError: if there is none.
    """
    found = {path.stem: nbformat.read(path, as_version=4) for path in sorted(Path(folder).glob("*.ipynb"))}
    if not found:
        raise ValueError(f"no notebook in {folder}; was {Path(folder).name} released?")
    return found


def notebook_of(data, releases):
    """Say which notebook a file is, by its exercises, and return its bytes as they can be graded.

    Args:
        data: bytes.
        releases: what `released` returns.

    Returns:
        (name of the released notebook, bytes): the same bytes, or, where outputs or metadata would break the grading
        or hold it up, only the cells' sources and exercise ids.

    Raises:
        ValueError: if it cannot be read, or is another notebook.
    """
    data = data.removeprefix(b"\xef\xbb\xbf")  # the mark that Windows puts before UTF-8
    cells = cells_of(data)
    own = {exercise(cell) for cell in cells} - {None}
    shared = {stem: len(own & {exercise(cell) for cell in release.cells}) for stem, release in releases.items()}
    stem = max(shared, key=shared.get)
    if not shared[stem]:
        raise ValueError("holds none of the assignment's exercises")
    small = sum(map(data.count, (b",", b"[", b"{"))) <= VALUES
    if small and can_be_graded(data, releases[stem]):
        return stem, data
    data = without_extras(cells)
    if not can_be_graded(data, releases[stem]):
        raise ValueError("its cells cannot be read")
    return stem, data


def cells_of(data):
    """Return the cells of a notebook, each a dict that may hold anything.

    Raises:
        ValueError: if it is no notebook.
    """
    try:
        cells = json.loads(data.decode())["cells"]
        cells = [cell for cell in cells if isinstance(cell, dict)]
    except (ValueError, TypeError, KeyError, RecursionError, MemoryError):
        raise ValueError("cannot be read as a notebook" if data.strip() else "empty") from None
    if len(cells) > CELLS:
        raise ValueError(f"more than {CELLS:,} cells")
    return cells


def exercise(cell):
    """Return the grade_id in a cell's metadata, or None."""
    try:
        found = cell["metadata"]["nbgrader"]["grade_id"]
    except (KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None


def can_be_graded(data, release):
    """Say whether the answers can be taken out of a notebook, and written again."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            nbformat.writes(restored(release, nbformat.reads(data.decode(), as_version=4))).encode()
    except Exception:  # its metadata may hold anything
        return False
    return True


def without_extras(cells):
    """Return a notebook, as bytes, with nothing but the cells' sources and exercise ids."""
    made = []
    for cell in cells:
        source = cell.get("source")
        source = "".join(line for line in source if isinstance(line, str)) if isinstance(source, list) else source
        if not isinstance(source, str):
            continue
        source = source.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # half a letter is none
        metadata = {"nbgrader": {"grade_id": exercise(cell)}} if exercise(cell) else {}
        if cell.get("cell_type") == "code":
            made.append({"cell_type": "code", "outputs": [], "execution_count": None})
        else:
            made.append({"cell_type": "markdown"})
        made[-1] |= {"metadata": metadata, "source": source}
    return json.dumps({"nbformat": 4, "nbformat_minor": 4, "metadata": {}, "cells": made}).encode()
