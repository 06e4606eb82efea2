"""Looking for solutions where students could find them.

Two texts are compared line by line, without blanks and comments; lines of fewer than 9 characters do not count.
What a notebook may not hold of a solution: two lines in a row, or one line of more than 30 characters. Exempt is
what the student is given (the exercise's own cells: the function with the bug, the signature) and what the library
teaches (the notebooks show its code). What the package may not hold: three lines in a row, or a sentence of a
written answer. Formulas are the same wherever they stand, so a single line of code proves nothing there.
"""

import functools
import re

from tools.notebooks import editions

LONG = 30
IDIOM = ("loss.backward()", "optimizer.step()")  # how every training step ends
LIBRARY = [path for path in editions.ROOT.glob("course_lib/**/*.py") if path.parent.name != "exercises"]


def lines_of(text):
    """The lines that count, without blanks and comments."""
    lines = (re.sub(r"\s+|^# ?", "", line.partition("  #")[0]) for line in text.split("\n"))
    return [line for line in lines if len(line) > 8]


def sentences_of(text):
    """The same of prose: its sentences, of more than 30 characters."""
    return [s for s in (re.sub(r"\s+", "", s) for s in re.split(r"(?<=[.;:?])\s", text)) if len(s) > LONG]


def solutions(chapter):
    """Return (id, whether it is prose, lines) for each solution of a chapter, less what its exercise gives away."""
    student, found = editions.student(chapter), []
    for place, cell in enumerate(chapter.cells):
        for block in re.findall(rf"{editions.BEGIN}\n(.*?)\n *{editions.END}", cell.source, flags=re.DOTALL):
            prose = cell.cell_type == "markdown"
            given = {line for near in student.cells[max(0, place - 4) : place + 1] for line in lines_of(near.source)}
            lines = sentences_of(block) if prose else lines_of(block)
            found.append((cell.id, prose, [None if line in given else line for line in lines]))
    return found


def runs(lines, length):
    """Every run of so many lines; None, a line that does not count, breaks it."""
    found = zip(*(lines[i:] for i in range(length)), strict=False)
    return {run for run in found if None not in run}


@functools.cache
def taught():
    """The lines, and the pairs of lines, of the library without its checks."""
    files = [lines_of(path.read_text(encoding="utf8")) for path in LIBRARY]
    return {line for lines in files for line in lines}, {run for lines in files for run in runs(lines, 2)} | {IDIOM}


def found_in_notebook(secrets, text):
    """The ids of the solutions of which a student's notebook, given as one text, holds a part."""
    known, known_pairs = taught()
    pairs, prose = runs(lines_of(text), 2) - known_pairs, set(sentences_of(text))
    single = {line for line in lines_of(text) if len(line) > LONG} - known
    return [
        name
        for name, is_prose, lines in secrets
        if (prose & set(lines) if is_prose else pairs & runs(lines, 2) or single & set(lines))
    ]


def found_in_package(secrets, text):
    """The ids of the solutions of which a file of the package holds a part."""
    triples, prose = runs(lines_of(text), 3), set(sentences_of(text))
    return [name for name, is_prose, lines in secrets if (prose & set(lines) if is_prose else triples & runs(lines, 3))]


def text_of(notebook):
    """All that a notebook shows: its cells and their outputs."""
    parts = []
    for cell in notebook.cells:
        parts.append(cell.source)
        for output in cell.get("outputs", []):
            parts.append(output.get("text", "") + output.get("evalue", ""))
            parts += [value for kind, value in output.get("data", {}).items() if kind.startswith("text/")]
    return "\n".join(parts)
