"""Sheets: some exercises of a chapter as a short notebook that runs alone.

A sheet has the chapter's name, its first two cells (which install and import), the chosen exercises, and before
each the earlier cells of the chapter that define the names which its cells use: found by reading the code, as few
as possible.
"""

import ast
import builtins
import copy
import functools
import re
import symtable

import nbformat

from classroom.exercises import HEADING
from tools.notebooks import editions

FROM_THE_CHAPTER = "*From the chapter; what follows uses it:*"


@functools.cache
def defined_and_needed(code):
    r"""Return the names that code defines at its top level, and those that it needs from elsewhere.

    Args:
        code: of a cell; lines that only IPython understands do not count.

    Returns:
        two sets of names.

    Example:
        >>> defined, needed = defined_and_needed("def f(x):\n    return g(x) + k\ny = f(len(z))")
        >>> sorted(defined), sorted(needed)
        (['f', 'y'], ['g', 'k', 'z'])
    """
    defined, needed, inside = set(), set(), set()
    for statement in ast.parse(_without_magics(code)).body:
        top = symtable.symtable(ast.unparse(statement), "cell", "exec")
        here = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
        used = {s.get_name() for s in top.get_symbols() if s.is_referenced()}
        simple = isinstance(statement, (ast.Assign, ast.AugAssign))  # x = x + 1 needs the x before it
        needed |= used - defined - (set() if simple else here)
        inside |= _used_inside(top)
        defined |= here
    return defined, (needed | inside - defined) - set(dir(builtins))


def _used_inside(table):
    """The global names that functions and classes use, however deep."""
    names = set()
    for child in table.get_children():
        names |= {s.get_name() for s in child.get_symbols() if s.is_global() and s.is_referenced()}
        names |= _used_inside(child)
    return names


def _without_magics(code):
    return re.sub(r"^(\s*)[%!].*$", r"\1pass", code, flags=re.MULTILINE)


def cells_before(notebook, exercise):
    """Return where the cells stand that an exercise needs, itself not among them.

    Args:
        notebook: of the chapter, with the solutions: a sheet must run with them as well.
        exercise: an Exercise.

    Returns:
        set of int: the chapter's first cells are not counted; they open every sheet.

    Raises:
        ValueError: if a name that is needed is defined nowhere before.
    """
    todo, found, always = list(exercise.cells), set(), opening(notebook)
    while todo:
        for place in _definitions(notebook, todo.pop()):
            if place not in found and place not in always and place not in exercise.cells:
                found.add(place)
                todo.append(place)
    return found


def _definitions(notebook, place):
    """Where the names that a cell needs were defined last before it."""
    cell = notebook.cells[place]
    if cell.cell_type != "code":
        return set()
    places = set()
    for name in defined_and_needed(cell.source)[1]:
        before = [i for i in range(place) if _defines(notebook.cells[i], name)]
        if not before:
            raise ValueError(f"{cell.id} uses {name}, which no cell before it defines")
        places.add(before[-1])
    return places


def _defines(cell, name):
    return cell.cell_type == "code" and name in defined_and_needed(cell.source)[0]


def opening(notebook):
    """Return where the cells stand that install and import."""
    tags = [set(cell.metadata.get("tags", [])) for cell in notebook.cells]
    return [i for i, own in enumerate(tags) if own & {"install", "setup"}]


def sheet(edition, exercises, needed):
    """Make a sheet from a chapter.

    Args:
        edition: the chapter's notebook, the student's edition or any other.
        exercises: list of Exercise of this chapter, in order.
        needed: {number of an exercise: what `cells_before` found}.

    Returns:
        A notebook.
    """
    cells, taken = [_title(edition), *(edition.cells[i] for i in opening(edition))], set()
    for exercise in exercises:
        before = sorted(needed[exercise.number] - taken)
        taken |= {*before, *exercise.cells}
        first, *rest = (edition.cells[i] for i in exercise.cells)
        if before:
            cells += [_text(FROM_THE_CHAPTER, f"before-{exercise.number}"), *(edition.cells[i] for i in before)]
        cells += [_from_heading(first), *rest]
    return nbformat.v4.new_notebook(cells=copy.deepcopy(cells), metadata=copy.deepcopy(edition.metadata))


def _title(edition):
    """The chapter's title, and where to read it."""
    heading = edition.cells[0].source.partition("\n")[0].removeprefix("# ")
    number = heading.partition(" ")[0]
    return _text(
        f"# Exercises of chapter {heading}\n\nRead the chapter first: `{number}_*.ipynb`, or "
        f"[in Colab]({_link(edition)}). *Section* means a section of the chapter.",
        f"sheet-{number}",
    )


def _link(edition):
    number = edition.cells[0].source.removeprefix("# ")[:2]
    return next(editions.colab_link(path.stem) for path in editions.sources() if path.stem.startswith(number))


def _text(source, name):
    return nbformat.v4.new_markdown_cell(source, id=name.replace(".", "-"))


def _from_heading(cell):
    """The cell with an exercise's heading, without what stood before it."""
    cell = copy.deepcopy(cell)
    cell.source = cell.source[HEADING.search(cell.source).start() :]
    return cell
