"""How long a chapter takes: `minutes` in the header of its source, by one rule for all.

100 words of the main path a minute; a minute and a half for each code cell that is seen, and for each figure; the
exercises' own minutes. Rounded to ten. The main path ends before *References* and *Going deeper*; what belongs to an
exercise counts by its minutes alone. `python -m tools.notebooks.minutes` prints what each chapter says and what the
rule gives.
"""

import re
import sys

from tools.notebooks import editions

WORDS, CELL = 100, 1.5  # words of technical prose a minute; minutes a cell or a figure
EXERCISE = re.compile(r"^### Exercise .*", re.M | re.S)
END = re.compile(r"^## (References|Going deeper).*", re.M | re.S)


def counted(notebook):
    """What the rule counts: "words", "cells" (seen, or showing a figure), "exercises" (their minutes).

    A cell's text from `### Exercise` on, and what follows up to the line that ends it, are the exercise's.
    """
    words = cells = exercises = 0
    in_exercise = False
    for cell in notebook.cells:
        text, end = cell.source, None
        if text.startswith("*End of exercise"):
            in_exercise = False
        elif cell.cell_type == "markdown":
            end = END.search(text)
            text = END.sub("", text)
            if found := EXERCISE.search(text):
                in_exercise = True
                exercises += int(re.search(r"(\d+) minutes", found.group())[1])
                words += spoken(EXERCISE.sub("", text))
            elif not in_exercise:
                words += spoken(text)
        elif not in_exercise:
            cells += not editions.is_folded(cell) or bool(re.search(r"^(figures|diagrams|interactive)\.", text, re.M))
        if end:
            break
    return {"words": words, "cells": cells, "exercises": exercises}


def spoken(text):
    """How many words a Markdown text has, its set-off formulas left out."""
    return len(re.sub(r"\$\$.*?\$\$", " ", text, flags=re.S).split())


def minutes(notebook):
    """The rule's result, rounded to ten."""
    parts = counted(notebook)
    total = parts["words"] / WORDS + CELL * parts["cells"] + parts["exercises"]
    return 10 * round(total / 10)


def main():
    """Print every chapter's own minutes and those of the rule."""
    for path in editions.sources():
        notebook = editions.chapter(path)
        said = notebook.metadata["course"]["minutes"]
        print(f"{path.stem[:2]}: says {said}, rule {minutes(notebook)}: {counted(notebook)}")


if __name__ == "__main__":
    sys.exit(main())
