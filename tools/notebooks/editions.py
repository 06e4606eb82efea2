"""From one source to two editions of a chapter.

A chapter is written in `notebooks/source/NN_topic.py` (jupytext's percent format). From
it come the student's edition, with stubs in place of the solutions, and the instructor's,
with the solutions. Both are made here as notebooks in memory; `tools/build.py` executes
and stores them. Everything here is a pure function of the source, so that a stale
notebook can be recognised by making it again.
"""

import copy
import hashlib
import re
import tomllib
from pathlib import Path

import jupytext
import nbformat

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "notebooks" / "source"
NOTEBOOKS = ROOT / "notebooks"
INSTRUCTOR = ROOT / "build" / "instructor"

TITLE = 52  # characters of a folded cell's title, so that it fits beside 700 pixels
BEGIN, END = "### BEGIN SOLUTION", "### END SOLUTION"
KERNEL = {"display_name": "Python 3", "language": "python", "name": "python3"}

INSTALL = """\
# @title In Colab: get the course's library
import importlib.util

if importlib.util.find_spec("course_lib") is None:
    %pip install -q "course_lib @ git+{address}"\
"""


def sources():
    """Return the chapters' source files, in order."""
    return sorted(SOURCES.glob("[0-9][0-9]_*.py"))


def with_figures(path):
    """Return a chapter's source and the code of its figures, which read the ledger too."""
    figures = ROOT / "course_lib" / "notebook" / "figures" / f"ch{path.stem[:2]}.py"
    return path.read_text(encoding="utf8") + (figures.read_text(encoding="utf8") if figures.exists() else "")


def address():
    """Return the repository's address; it stands in pyproject.toml and nowhere else."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))["project"]["urls"]["Repository"]


def colab_link(name):
    """Return the address that opens the notebook of this name in Colab."""
    owner_and_repository = address().removeprefix("https://github.com/")
    return f"https://colab.research.google.com/github/{owner_and_repository}/blob/main/notebooks/{name}.ipynb"


def chapter(path):
    """Read a chapter's source: its cells with the Colab link and the install cell put in, ids set, solutions kept."""
    source = jupytext.read(path)
    title, *rest = source.cells
    if title.cell_type != "markdown" or not title.source.startswith("# "):
        raise ValueError(f"{path.name}: the first cell must be Markdown and begin with the title, '# ...'")
    heading, _, body = title.source.partition("\n")
    # A link and no badge: an opened notebook must not ask another host for an image.
    title.source = f"{heading}\n\n[Open in Colab]({colab_link(path.stem)})\n{body}"
    install = nbformat.v4.new_code_cell(INSTALL.format(address=address()), metadata={"tags": ["install", "fold"]})
    cells = _with_ids([dressed(cell) for cell in with_ends([title, install, *rest])])
    return nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL, "course": _course(source, path)})


def dressed(cell):
    """Give a cell what its one tag means in JupyterLab, in Colab and on the site.

    `fold`: apparatus; the code is folded, and its first line, `# @title ...`, stands for it. `reveal`: the output of a
    prediction; it is closed until the cell is run. `deeper`: the heading of an optional part, which is folded.
    """
    tags = cell.metadata.get("tags", [])
    more = []
    if "fold" in tags:
        title = re.match(r"# @title (.+)", cell.source)
        if title is None or len(title[1]) > TITLE:
            raise ValueError(
                f"a folded cell must begin with a line '# @title ...' of at most {TITLE} characters:\n{cell.source}"
            )
        cell.metadata.setdefault("jupyter", {})["source_hidden"] = True
        cell.metadata["cellView"] = "form"
        cell.metadata["mystnb"] = {"code_prompt_show": title[1], "code_prompt_hide": title[1]}
        more.append("hide-input")
    if "reveal" in tags:
        cell.metadata.setdefault("jupyter", {})["outputs_hidden"] = True
        more.append("hide-output")
    if "deeper" in tags:
        if not re.match(r"#+ ", cell.source):
            raise ValueError(f"the tag 'deeper' belongs to a cell that begins with a heading:\n{cell.source}")
        cell.metadata["jp-MarkdownHeadingCollapsed"] = True
    if more:
        cell.metadata["tags"] = [*tags, *more]
    return cell


def with_ends(cells):
    """Put a line after the last cell of each exercise, which may show what a good answer contains: there it ends."""
    last, exercise = {}, None
    for place, cell in enumerate(cells):
        found = re.match(r"ex(\d\d)-(\d+)-", cell.metadata.get("nbgrader", {}).get("grade_id", ""))
        if found:
            exercise = found.groups()
        if found or (exercise and re.match(rf"ch{exercise[0]}\.\w+\.compare\(", cell.source)):
            last[exercise] = place
    ends = {place: f"{int(chapter)}.{number}" for (chapter, number), place in last.items()}
    out = []
    for place, cell in enumerate(cells):
        out.append(cell)
        if place in ends:
            out.append(nbformat.v4.new_markdown_cell(f"*End of exercise {ends[place]}.*\n\n---"))
    return out


def is_folded(cell):
    """Whether a reader sees a title in place of a cell's code."""
    return cell.metadata.get("jupyter", {}).get("source_hidden", False)


def student(notebook):
    """Return the student's edition: a stub in the place of every solution."""
    edition = copy.deepcopy(notebook)
    for cell in edition.cells:
        cell.source = without_solution(cell.source, cell.cell_type)
    return edition


def without_solution(source, cell_type="code"):
    r"""Replace what stands between the marks: in a function by an error, at top level by a comment, in text by a line.

    >>> print(without_solution("def f(x):\n    ### BEGIN SOLUTION\n    return x\n    ### END SOLUTION"))
    def f(x):
        raise NotImplementedError("replace this line with your code")
    """
    lines, inside = [], False
    for line in source.split("\n"):
        if line.strip() == BEGIN:
            if inside:
                raise ValueError(f"{BEGIN} stands inside another solution:\n{source}")
            inside = True
            indent = line[: len(line) - len(line.lstrip())]
            if cell_type == "markdown":
                lines.append("*Write your answer here.*")
            elif indent:
                lines.append(f'{indent}raise NotImplementedError("replace this line with your code")')
            else:
                lines.append("# replace the ... above, or write your code here")
        elif line.strip() == END:
            if not inside:
                raise ValueError(f"{END} without {BEGIN}:\n{source}")
            inside = False
        elif not inside:
            lines.append(line)
    if inside:
        raise ValueError(f"{BEGIN} without {END}:\n{source}")
    return "\n".join(lines)


def instructor(notebook, executed_student):
    """Return the instructor's edition with the outputs that it must have.

    The two editions share every cell but the solutions, so the outputs are the student's
    edition's; a check must print that it passed. Comparing a fresh run with this notebook
    proves that the solutions pass and change nothing else.
    """
    edition = copy.deepcopy(notebook)
    for cell in edition.cells:  # the marks are for the build
        cell.source = "\n".join(line for line in cell.source.split("\n") if line.strip() not in (BEGIN, END))
    for cell, done in zip(edition.cells, executed_student.cells, strict=True):
        if cell.cell_type != "code":
            continue
        cell.execution_count = done.execution_count
        cell.outputs = copy.deepcopy(done.outputs)
        if is_check(cell):
            passed = "".join(f"passed: {name}\n" for name in check_names(cell.source))
            cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=passed)]
        elif is_solution(cell) and done.outputs:
            raise ValueError(f"a solution cell must not have outputs, or the editions would differ:\n{cell.source}")
    return edition


def is_check(cell):
    """Say whether a cell is the locked cell that checks an exercise."""
    mark = cell.metadata.get("nbgrader", {})
    return cell.cell_type == "code" and mark.get("grade", False) and not mark.get("solution", False)


def is_solution(cell):
    """Say whether a cell is one that the student fills."""
    return cell.metadata.get("nbgrader", {}).get("solution", False)


def check_names(source):
    """Return the names of the checks that a cell calls.

    >>> check_names("ch01.perplexity(perplexity)")
    ['perplexity']
    """
    return re.findall(r"^ch\d\d\.(\w+)\(", source, flags=re.MULTILINE)


def comparable(notebook):
    """Return all of a notebook that the source decides: what must agree, or the stored notebook is stale."""
    return [(cell.cell_type, cell.id, cell.source, dict(cell.metadata)) for cell in notebook.cells]


def _course(source, path):
    """Return what the course map says of a chapter: read from the header of its source."""
    course = dict(source.metadata.get("course", {}))
    for key in ("minutes", "needs"):
        if key not in course:
            raise ValueError(f"{path.name}: the header must say course: {key}: ... (jupytext metadata)")
    return course


def _with_ids(cells):
    """Give each cell an id that depends on itself alone: its exercise, or else its text.

    So ids do not change when other cells do.
    """
    seen = {}
    for cell in cells:
        base = cell.metadata.get("nbgrader", {}).get("grade_id")
        base = base or hashlib.sha256(f"{cell.cell_type}\n{cell.source}".encode()).hexdigest()[:12]
        seen[base] = seen.get(base, 0) + 1
        cell.id = base if seen[base] == 1 else f"{base}-{seen[base]}"
    return cells
