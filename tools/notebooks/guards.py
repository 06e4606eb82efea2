"""Guards: what must be true of every stored notebook, each a function that lists what is wrong.

nbval compares outputs, but it does not compare cells that were never run, nor images, and
it cannot see that a notebook is older than its source. These guards can.
"""

import re
from pathlib import Path

from tools.notebooks import editions, giveaways

SANITIZE = editions.ROOT / "tests" / "notebooks" / "nbval_sanitize.cfg"
EXEMPT_SHARE = 0.25  # of the cells with output, at most so many are not compared
LINES, WIDTH, WORDS = 20, 88, 10  # of visible code: most lines a cell, most characters a line, least words to a line
MAIN_PATH, CLAIMS = 4000, 2  # most words on the main path; most claims at a figure
MARK = re.compile(r"#\s*(noqa|fmt:|type: ignore|pragma:|pylint:)")
EXEMPT_TAGS = {"nbval-ignore-output", "nbval-skip"}
EXEMPT_MARKS = re.compile(r"#\s*(NBVAL_IGNORE_OUTPUT|NBVAL_SKIP|PYTEST_VALIDATE_IGNORE_OUTPUT)", re.IGNORECASE)
PATH = re.compile(
    r"(?<![\w.])/(?:home|root|tmp|usr|var|opt|work|mnt|Users|private|content)/|[A-Za-z]:\\\w|site-packages"
)
DATE = re.compile(r"\b20\d\d-\d\d-\d\d\b|\b\d{1,2}:\d\d:\d\d\b")
VERSION = re.compile(r"\b\d+\.\d+\.\d+(\+cpu|\+cu\d+)?\b")


def stale(path, notebook):
    """A notebook must be what its source makes of it."""
    source = editions.SOURCES / f"{Path(path).stem}.py"
    if not source.exists():
        return [f"there is no source {source.name}"]
    wanted = editions.comparable(editions.student(editions.chapter(source)))
    found = editions.comparable(notebook)
    if wanted == found:
        return []
    differ = (i for i, (a, b) in enumerate(zip(wanted, found, strict=False)) if a != b)
    number = next(differ, min(len(wanted), len(found)))
    return [f"cell {number} is not what {source.name} says; run make notebooks"]


def not_executed(notebook):
    """Every code cell must have been run once, from top to bottom: nbval compares no others."""
    cells = [c for c in notebook.cells if c.cell_type == "code" and c.source.strip()]
    counts = [c.execution_count for c in cells]
    if counts == list(range(1, len(cells) + 1)):
        return []
    return [f"the cells were executed as {counts}, not 1 to {len(cells)}"]


def unmarked_errors(notebook):
    """A cell may raise only if it says so."""
    return [
        f"{cell.id}: raises {output.ename} without the tag raises-exception"
        for cell, output in _outputs(notebook)
        if output.output_type == "error" and "raises-exception" not in cell.metadata.get("tags", [])
    ]


def failed_claims(notebook):
    """Every stored claim must hold: nbval would be content with a claim that fails each time."""
    return [
        f"{cell.id}: {line}"
        for cell, output in _outputs(notebook)
        for line in _text(output).splitlines()
        if line.startswith("✗")
    ]


def machine_traces(notebook):
    """An output must not show a path, a date or a version: they differ on every machine."""
    return [
        f"{cell.id}: an output shows {what}: {found.group()!r}"
        for cell, output in _outputs(notebook)
        for what, pattern in {"a path": PATH, "a date or time": DATE, "a version": VERSION}.items()
        if (found := pattern.search(_text(output)))
    ]


def missing_alt(notebook):
    """Every image must come with alt text."""
    problems = []
    for cell, output in _outputs(notebook):
        for kind in output.get("data", {}):
            if kind.startswith("image/") and not output.metadata.get(kind, {}).get("alt", "").strip():
                problems.append(f"{cell.id}: an image without alt text; use course_lib.notebook.display.show")
    for cell in notebook.cells:
        if cell.cell_type == "markdown" and re.search(r"!\[\s*\]\(|<img(?![^>]*\balt=\"[^\"])", cell.source):
            problems.append(f"{cell.id}: an image in the text without alt text")
    return problems


def semicolons(notebook):
    """No cell may end in a semicolon: nbval runs it without its silencing."""
    return [f"{c.id}: ends in ';'" for c in notebook.cells if c.cell_type == "code" and c.source.rstrip().endswith(";")]


def moving_outputs(notebook):
    """No widgets and no cleared outputs: the first show nothing when stored, the second nbval cannot read."""
    problems = ["the notebook stores widgets"] if "widgets" in notebook.metadata else []
    problems += [f"{cell.id}: clears its output" for cell in notebook.cells if "clear_output" in cell.source]
    return problems + [
        f"{cell.id}: a widget, which a stored notebook cannot show"
        for cell, output in _outputs(notebook)
        if any("widget" in kind for kind in output.get("data", {}))
    ]


def too_many_exempt(notebook):
    """At most a quarter of the cells with output may be exempt from comparison.

    A cell of which sanitising leaves nothing counts as exempt.
    """
    with_output = [cell for cell in notebook.cells if cell.get("outputs")]
    exempt = [cell for cell in with_output if _is_exempt(cell)]
    if len(exempt) <= EXEMPT_SHARE * len(with_output):
        return []
    return [f"{len(exempt)} of {len(with_output)} cells with output are not compared; at most a quarter may be exempt"]


def long_cells(notebook):
    """A visible cell is read at a glance: at most 20 lines of 88 characters."""
    problems = []
    for cell in _story(notebook):
        lines = [line for line in cell.source.split("\n") if line.strip()]
        if len(lines) > LINES:
            problems.append(
                f"{cell.id}: {len(lines)} visible lines, more than {LINES}; split it, or fold what is apparatus"
            )
        problems += [f"{cell.id}: a line of {len(line)} characters: {line}" for line in lines if len(line) > WIDTH]
    return problems


def silent_cells(notebook):
    """A visible cell that takes over 3 s shows progress: the build, which measures, stores those that do not."""
    silent = notebook.metadata.get("course", {}).get("silent", {})
    return [f"{name}: takes {seconds} s and shows no progress; use tqdm" for name, seconds in silent.items()]


def marks_for_tools(notebook):
    """No mark for a formatter or a linter stands in code that a reader can open, or that `show_source` shows."""
    shown = [(cell, cell.source) for cell in notebook.cells if cell.cell_type == "code"]
    shown += [(cell, _text(output)) for cell, output in _outputs(notebook)]
    return [f"{cell.id}: a mark for tools: {line}" for cell, text in shown for line in text.splitlines()
            if MARK.search(line)]  # fmt: skip


def many_claims(notebook):
    """At a figure or a table stand at most two claims, in one cell or in cells that follow each other.

    In a section on errors each of them may have one.
    """
    problems, count, heading = [], 0, ""
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            heading = (re.findall(r"^#+ .+", cell.source, re.M) or [heading])[-1]
        texts = [output.get("data", {}).get("text/markdown", "") for output in cell.get("outputs", [])]
        here = sum(line.startswith(("✓", "✗")) for text in texts for line in text.splitlines())
        shows_more = any(o.output_type == "stream" or "image/png" in o.get("data", {}) for o in cell.get("outputs", []))
        shows_more = shows_more or any(re.search(r"^\|-|^```", text, re.M) for text in texts)
        count = here if shows_more or not here else count + here
        if here and count > CLAIMS and "error" not in heading.lower():
            problems.append(f"{cell.id}: {count} claims at a figure, more than {CLAIMS}; say the rest in the text")
    return problems


def long_main_path(notebook):
    """What everybody reads is at most 4,000 words."""
    words = words_of_the_main_path(notebook)
    return [f"{words} words before Going deeper, more than {MAIN_PATH}"] if words > MAIN_PATH else []


def words_of_the_main_path(notebook):
    """Count the words of the Markdown cells before "Going deeper".

    Not counted: exercises, from their heading to the line where they end; references; tables, code, displayed
    formulas, what is folded in details; pictures, and the addresses of links. A formula in a sentence is one word.
    """
    text = "\n\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    text = re.split(r"^#+ Going deeper", text, flags=re.M)[0]
    left_out = (
        r"^#+ Exercise \d.*?^\*End of exercise.*?$",
        r"^#+ References.*?(?=^#|\Z)",
        r"^```.*?^```$",
        r"\$\$.*?\$\$",
        r"<(details|svg)\b.*?</\1>",
        r"^ *\|[^\n]*$",
        r"!\[[^\]]*\]\([^)]*\)",
        r"(?<=\])\([^)]*\)",
    )
    for pattern in left_out:
        text = re.sub(pattern, " ", text, flags=re.M | re.S)
    text = re.sub(r"\$[^$]+\$", " x ", text)
    return sum(bool(re.search(r"[^\W_]", word)) for word in text.split())


def more_code_than_words(notebook):
    """A chapter explains: at least ten words of prose to a visible line of code."""
    prose = [re.sub(r"\$\$.*?\$\$|<details>.*?</details>", " ", c.source, flags=re.S) for c in notebook.cells
             if c.cell_type == "markdown"]  # fmt: skip
    words = sum(len(text.split()) for text in prose)
    code = sum(bool(line.strip()) for cell in _story(notebook) for line in cell.source.split("\n"))
    if words >= WORDS * code:
        return []
    return [f"{words} words and {code} visible lines of code, {words / code:.1f} to a line; wanted {WORDS}"]


def code_before_a_picture(notebook):
    """The first screen shows a picture; code that a reader sees comes after it."""
    for cell in notebook.cells:
        if _has_picture(cell):
            return []
        if cell in _story(notebook):
            return [f"{cell.id}: visible code before the first picture"]
    return []


def answers_given_away(notebook):
    """After a question nothing that is visible may answer it, until the reader has asked for the result.

    The result is shown by the first cell after the question that is tagged `reveal`, whose output is closed until it is
    run. Up to there no claim, caption or table is written in visible code, no output is open, in no visible text
    stands a claim of that result or what was measured, in four characters or more; and no sentence of its section that
    speaks of the question says it in fewer, as a number or a word (`giveaways`).
    """
    names = re.findall(
        r"^(\w+) = predict\(", "\n".join(c.source for c in notebook.cells if c.cell_type == "code"), re.M
    )
    problems = [
        f"two questions keep their guess as {name}" for name in sorted({n for n in names if names.count(n) > 1})
    ]
    asked = None
    for place, cell in enumerate(notebook.cells):
        tags = cell.metadata.get("tags", [])
        if cell.cell_type == "code" and re.search(r"\bpredict\(", cell.source):
            asked = place
        elif asked is not None and "reveal" in tags:
            if not cell.metadata.get("jupyter", {}).get("outputs_hidden"):
                problems.append(f"{cell.id}: shows the result of a question with its output open")
            if not editions.is_folded(cell) and cell.outputs and not _shows_no_answer(cell.outputs[0]):
                problems.append(f"{cell.id}: JupyterLab shows the first line of a closed output; fold the cell")
            told = "\n".join(c.source for c in notebook.cells[:place] if not editions.is_folded(c))
            verbatim = [answer for answer in _answers(cell) if answer in told]
            problems += [f"{cell.id}: the answer {answer!r} stands in visible text above it" for answer in verbatim]
            problems += [
                f"{cell.id}: the answer {answer!r} is given away above it: {text}"
                for answer, text in giveaways.found(notebook, asked, place)
                if answer not in verbatim
            ]
            asked = None
        elif asked is not None and cell.cell_type == "code" and cell.get("outputs"):
            problems.append(f"{cell.id}: an open output between a question and its result; tag it reveal")
    if asked is not None:
        problems.append(f"{notebook.cells[asked].id}: asks for a guess, and no cell tagged reveal follows")
    for cell in _story(notebook):
        if re.search(r"\bclaim\(", cell.source):
            problems.append(f"{cell.id}: a claim in visible code; fold it")
    return problems


GUARDS = (
    not_executed,
    unmarked_errors,
    failed_claims,
    machine_traces,
    missing_alt,
    semicolons,
    moving_outputs,
    too_many_exempt,
    long_cells,
    silent_cells,
    marks_for_tools,
    many_claims,
    long_main_path,
    more_code_than_words,
    code_before_a_picture,
    answers_given_away,
)


def problems(path, notebook):
    """Return everything that any guard finds in a notebook."""
    found = stale(path, notebook)
    for guard in GUARDS:
        found += guard(notebook)
    return [f"{Path(path).name}: {problem}" for problem in found]


def is_story(cell):
    """Whether a cell is code that a reader sees and did not write: no apparatus, no exercise."""
    return cell.cell_type == "code" and not editions.is_folded(cell) and "nbgrader" not in cell.metadata


def _story(notebook):
    return [cell for cell in notebook.cells if is_story(cell)]


def _has_picture(cell):
    if cell.cell_type == "markdown":
        return "![" in cell.source or "<svg" in cell.source
    return any(kind.startswith("image/") for output in cell.outputs for kind in output.get("data", {}))


def _answers(cell):
    """What a revealing cell says: its claims' sentences, and the number beside a guess."""
    text = "\n".join(_text(output) for output in cell.outputs)
    return re.findall(r"✓ (.{15,}?)(?= <small>|$)", text, re.M) + re.findall(r"measured: <b>(.{4,}?)</b>", text)


def _shows_no_answer(output):
    """Whether the first line of an output is a picture's or a question's."""
    text = _text(output).strip()
    return text.startswith(("[figure]", "*")) or "text/html" in output.get("data", {})


def _outputs(notebook):
    return [(cell, output) for cell in notebook.cells for output in cell.get("outputs", [])]


def _text(output):
    data = output.get("data", {})
    parts = [output.get("text", ""), output.get("evalue", ""), *output.get("traceback", [])]
    parts += [value for kind, value in data.items() if kind.startswith("text/")]
    return "\n".join(dict.fromkeys(parts))  # text/plain often repeats text/markdown


def says_exempt(cell):
    """Whether a cell is marked so that its output is not compared."""
    return bool(EXEMPT_TAGS & set(cell.metadata.get("tags", [])) or EXEMPT_MARKS.search(cell.source))


def _is_exempt(cell):
    return says_exempt(cell) or not any(
        sanitised(_text(output)).strip() or output.output_type == "error" for output in cell.outputs
    )


def sanitised(text):
    """Return a text without what nbval leaves out of a comparison."""
    lines = SANITIZE.read_text(encoding="utf8").splitlines()
    for rule in (line.removeprefix("regex:").strip() for line in lines if line.startswith("regex:")):
        text = re.sub(rule, "", text)
    return text
