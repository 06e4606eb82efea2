"""A chapter as pages of the site: the opening, a page for each section, what is optional, and the end.

The notebook stays whole; here its cells are dealt out, each section's heading becomes a page's title.
"""

import copy
import re

import nbformat

HEADING = re.compile(r"## (.+)")
ENDS = ("Summary", "Where next", "References")  # together on the last page of the main path


def pages(notebook, name):
    """Return {name of the page: notebook}; the first, of the chapter's own name, leads to the others.

    A page begins at each numbered section, at what is optional ("Going deeper"), at exercises that stand by
    themselves, and at the summary. Other headings stay on the page before.
    """
    parts = [(name, [])]
    for cell in notebook.cells:
        title = _heading(cell)
        if title and begins_a_page(title, parts[-1][1]):
            parts.append((f"{name}-{slug(title)}", []))
        parts[-1][1].append(cell)
    found = {}
    for number, (page, cells) in enumerate(parts):
        part = copy.copy(notebook)
        part.cells = [copy.deepcopy(cell) for cell in cells]
        if number:
            promote(part.cells, name[:2])
        without_jumps(part.cells)
        found[page] = part
    sections = [(page, _heading(cells[0])) for page, cells in parts[1:]]
    if sections:
        found[name].cells.append(nbformat.v4.new_markdown_cell(contents(sections)))
    return found


def begins_a_page(title, before):
    """Whether a heading of the second level begins a page of its own; `before` are the cells of the page so far."""
    if re.match(r"\d+ ·", title):
        return True
    if title in ENDS:
        return not any(_heading(cell) in ENDS for cell in before)
    return title.startswith(("Going deeper", "Exercises", "Errors you will meet"))


def contents(sections):
    """Return the list of a chapter's pages, as a table of contents that the theme shows beside them too."""
    entries = "\n".join(f"{re.sub('[`*]', '', title)} <{page}>" for page, title in sections)
    return f"```{{toctree}}\n:caption: The sections\n:maxdepth: 1\n\n{entries}\n```"


def promote(cells, chapter):
    """Make the first heading the page's title, which names the chapter; those below it follow by one level."""
    words = [cell for cell in cells if cell.cell_type == "markdown"]
    between = "." if re.match(r"## \d", words[0].source) else " · "
    words[0].source = words[0].source.replace("## ", f"# {chapter}{between}", 1)
    if not any(re.search(r"^## ", cell.source, re.M) for cell in words):
        for cell in words:
            cell.source = re.sub(r"^#(##+ )", r"\1", cell.source, flags=re.M)


def without_jumps(cells):
    """Let no heading be more than one level below the one that it belongs to, and no page end in a line across."""
    above = []  # of the headings that the next one may belong to: (level as written, level on the page)
    for cell in cells:
        if cell.cell_type != "markdown":
            continue
        lines, fenced = cell.source.split("\n"), False
        for number, line in enumerate(lines):
            fenced ^= line.startswith("```")
            found = re.match(r"(#+) ", line)
            if found and not fenced:
                level = len(found[1])
                while above and above[-1][0] >= level:
                    above.pop()
                above.append((level, len(above) + 1))
                lines[number] = "#" * len(above) + line[level:]
        cell.source = "\n".join(lines)
    if cells[-1].cell_type == "markdown":
        cells[-1].source = re.sub(r"\n+---\s*$", "", cells[-1].source)


def slug(title):
    """Return what stands for a section in a page's name.

    >>> slug("3 · What reaches an old step")
    '3-what-reaches-an-old-step'
    """
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")


def _heading(cell):
    found = HEADING.match(cell.source) if cell.cell_type == "markdown" else None
    return found[1].strip() if found else None
