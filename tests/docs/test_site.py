"""The site's pages, made from tiny inputs: the map, the API pages' text, the ledger's pages, the home page."""

import doctest
import hashlib
import io
import json
import subprocess
import tarfile

import nbformat
import pytest

from course_lib import experiments
from course_lib.notebook import ledger
from docs import build, docstrings, pages, sections
from tools import links, readme
from tools.notebooks import editions


@pytest.mark.parametrize("module", [links, build, docstrings, pages, sections], ids=lambda module: module.__name__)
def test_the_examples_of_a_tool_hold(module):
    """Fails if an example in a docstring shows something else than the function gives."""
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


# --- chapters and library ---------------------------------------------------------


def test_names_are_found_through_modules_aliases_and_imports():
    """Fails if a name is missed: an attribute of a module, of an alias, or imported by itself."""
    code = (
        "%pip install x\nimport torch\nfrom course_lib import lstm_gru\n"
        "from course_lib.datasets import synthetic as t\n"
        "from course_lib.rnn import RNN as R\nfrom course_lib.exercises import ch05\n\n"
        "def f():\n    return t.recall_task(1), lstm_gru.lstm_step, torch.ones(1)\n"
    )
    assert pages.names_used(code) == {
        "datasets.synthetic": ["recall_task"],
        "rnn": ["RNN"],
        "lstm_gru": ["lstm_step"],
        "exercises.ch05": [],
    }


def test_modules_come_in_the_reading_order():
    """Fails if the map lists modules as they are imported instead."""
    code = "from course_lib.notebook import claim, plots\nfrom course_lib.text import PAD"
    code += "\nfrom course_lib.bert import BERT"
    assert pages.names_used(code) == {"text": ["PAD"], "bert": ["BERT"], "notebook": ["claim"], "notebook.plots": []}


def test_the_map_leads_both_ways():
    """Fails if a chapter does not lead to its modules and names, or a module not to its chapters."""
    page = pages.map_page({"05": {"rnn": ["RNN"], "exercises.ch05": []}, "07": {"rnn": []}})
    there, back = page.split("## From the library to the chapters")
    chapter = "./notebooks/05_lstm_and_gru.ipynb"
    (line,) = [line for line in there.splitlines() if f"]({chapter})" in line]
    assert "[rnn](library/rnn.md)** {py:obj}`RNN <course_lib.rnn.RNN>`" in line
    assert "[exercises.ch05](library/exercises.md)" in line
    (line,) = [line for line in back.splitlines() if line.startswith("| [rnn](library/rnn.md)")]
    assert f"[05]({chapter}), [07](./notebooks/07_attention.ipynb)" in line
    for name in ("exercises", "exercises.ch05"):
        (line,) = [line for line in back.splitlines() if line.startswith(f"| [{name}](library/exercises.md)")]
        assert f"| [05]({chapter}) |" in line
    (line,) = [line for line in back.splitlines() if line.startswith("| [exercises.ch06]")]
    assert line.endswith("|  |")


def test_every_chapter_and_every_module_is_on_the_map():
    """Fails if the real map misses a chapter or a module."""
    used = pages.uses()
    page = pages.map_page(used)
    assert list(used) == [number for number, _, _ in readme.MAP]
    assert all(f"/{path.stem}.ipynb" in page for path in editions.sources())
    library = editions.ROOT / "course_lib"
    modules = [path.relative_to(library).with_suffix("").parts for path in library.rglob("[a-z]*.py")]
    modules = {module[:2] for module in modules} | {module[:1] for module in modules}
    for module in modules:
        assert f"\n| [{'.'.join(module)}](library/{module[0]}.md)" in page


def test_the_librarys_page_lists_what_is_taught_first():
    """Fails if a module is missing, or a folder that no chapter teaches stands among the others."""
    page = pages.api_index({"05": {"rnn": ["RNN"]}})
    taught, rest = page.split("no chapter teaches")
    folders = ["datasets", "utils", "notebook", "exercises", "experiments"]
    assert pages.not_taught() == folders
    for module in pages.reading_order():
        assert f"\n| [{module}]({module}.md)" in (rest if module in folders else taught)


def test_an_api_page_documents_a_module_and_the_modules_inside_it():
    """Fails if a page leaves out the module, its chapters, or a module of the package."""
    page = pages.api_page("rnn", {"05": {"rnn": ["RNN"]}})
    assert ".. automodule:: course_lib.rnn\n   :members:" in page
    assert "Used in chapters [05](../notebooks/05_lstm_and_gru.ipynb)." in page
    page = pages.api_page("exercises", {})
    assert ".. automodule:: course_lib.exercises.ch14\n" in page
    assert "Used in" not in page


# --- docstrings -------------------------------------------------------------------


def to_rst(text):
    return "\n".join(docstrings.to_rst(text.split("\n")))


def test_a_formula_on_its_own_becomes_a_block():
    """Fails if a displayed formula stays between dollar signs, in one line or in several."""
    assert to_rst("Sum.\n\n$$ a_t \\cdot b $$\n\nThen.") == "Sum.\n\n.. math:: a_t \\cdot b\n\nThen."
    assert to_rst("$$ a\n   + b $$") == ".. math:: a + b"
    assert to_rst("$$ a $$ with b") == ".. math:: a\n\nwith b"


def test_formulas_and_names_in_text():
    """Fails if a formula or a name between backticks is not marked, or a price is taken for a formula."""
    assert to_rst("At $x_t$ call `RNN` with `a + b`.") == "At :math:`x_t` call :py:obj:`RNN` with ``a + b``."
    assert to_rst("a$b and c$d") == "a$b and c$d"


def test_indented_lines_are_tables_outside_sections_only():
    """Fails if a table of words loses its lines, or a section's second paragraph becomes one."""
    assert to_rst("Kinds:\n\n    a   one\n    b   two") == "Kinds:\n\n::\n\n    a   one\n    b   two"
    text = "Args:\n    x: one.\n\n    More on *x*.\n\nText."
    assert to_rst(text) == text


def test_examples_stay_as_they_are():
    """Fails if a doctest's stars and dollars are changed."""
    text = "Example:\n    >>> f(*a, '$x$')\n    `b`\n\n    >>> 2 * 3"
    assert to_rst(text) == text


def test_several_things_returned_become_a_list():
    """Fails if the second name stands in the first one's description."""
    text = "Returns:\n    loss: nats,\n        one a token.\n    state: (B, D)."
    assert (
        to_rst(text) == "Returns:\n    in this order\n\n    - loss: nats,\n          one a token.\n    - state: (B, D)."
    )
    assert to_rst("Returns:\n    loss: nats.") == "Returns:\n    loss: nats."


# --- the ledger -------------------------------------------------------------------


@pytest.fixture
def record(tmp_path):
    """A small record of two seeds, also in a ledger of its own."""

    def run(seed, accuracy):
        history = [{"epoch": epoch, "seconds": 1.0, "loss": 1 / (epoch + seed + 1)} for epoch in range(3)]
        row = {"accuracy": accuracy, "by_length": [seed, 1.0], "note": "text", "steps": None if seed else 3}
        results = {"model | a": row, "model b": {"accuracy": 0.5}}
        return {"seed": seed, "seconds": 90.0, "peak_mb": 12.0, "results": results, "history": {"model | a": history}}

    return {
        "experiment": "tiny",
        "summary": "Two models.",
        "command": "python -m course_lib.experiments tiny",
        "config": {"epochs": 3, "sizes": [1, 2], "name": None},
        "device": "cpu",
        "threads": 1,
        "versions": {"python": "3.11"},
        "runs": [run(0, 0.25), run(1, 0.75)],
    }


@pytest.fixture
def known(monkeypatch):
    """The tiny experiment among the known ones."""

    def tiny(seed, epochs=3):
        """What it does, with $x_t$."""

    entry = experiments.Experiment("tiny", "Two models.", tiny)
    monkeypatch.setattr(experiments, "known", lambda: {"tiny": entry})


def test_an_experiments_page_says_everything(record, known, tmp_path, monkeypatch):
    """Fails if the page leaves out the summary, docstring, command, facts, results, curves, lists or settings."""
    ledger.save({**record, "runs": json.loads(json.dumps(record["runs"]).replace("model | a", "model a"))}, tmp_path)
    record = ledger.load("tiny", tmp_path)
    monkeypatch.setattr(ledger, "course_folder", lambda: tmp_path)
    page = pages.experiment_page(record, ["05"], [("tiny-1.svg", "Curves.", "Loss.")])
    for wanted in (
        "# tiny\n\nTwo models.\n\nWhat it does, with $x_t$.",
        "$ python -m course_lib.experiments tiny",
        "**Drawn in:** [05 LSTM and GRU](../notebooks/05_lstm_and_gru.ipynb)",
        "**Seeds:** 0, 1",
        "**Time:** 90 s a seed",
        "**Device:** cpu, 1 thread",
        "**Memory:** 12 MB at most",
        "**Versions:** python 3.11",
        "| model a | 0.500 (0.250 to 0.750) | 2 |\n| model b | 0.500 | 2 |",
        "![Curves.](tiny-1.svg)",
        "<details><summary>model a: by_length</summary>\n\n| by_length |\n|---|\n| 0.5 |\n| 1 |",
        "| `epochs` | `3` |\n| `sizes` | `[1, 2]` |\n| `name` | `None` |",
        "{download}`tiny.json <../records/tiny.json>`",
    ):
        assert wanted in page


def test_variants_with_other_numbers_get_a_table_of_their_own(tmp_path):
    """Fails if a metric that one variant lacks fills a column with dashes."""
    results = {"a": {"loss": 1.0}, "b": {"steps": 3}, "c": {"loss": 2.0}}
    record = {"experiment": "e", "runs": [{"seed": 0, "results": results}]}
    ledger.save(record, tmp_path)
    tables = pages.result_tables("e", record, tmp_path).split("\n\n")
    assert "share a table" in tables.pop(0)
    assert [table.split("\n")[0] for table in tables] == [
        "|  | loss (nats) | seeds |",
        "|  | steps to solve it | seeds |",
    ]
    assert tables[0].count("\n") == 3


def test_curves_are_grouped_and_drawn(record, tmp_path):
    """Fails if a figure is missing, or mixes histories of different numbers, or has no alt text."""
    for run in record["runs"]:
        run["history"] |= {f"other {i}": [{"step": 1, "accuracy": 0.1}, {"step": 9, "accuracy": 0.2}] for i in range(8)}
    groups = pages.curve_groups(record)
    others = [f"other {i}" for i in range(8)]
    assert groups == [["model | a"], others[:4], others[4:]]
    pictures = pages.draw_curves(record, tmp_path)
    assert [file for file, _, _ in pictures] == ["tiny-1.svg", "tiny-2.svg", "tiny-3.svg"]
    assert all((tmp_path / file).read_text(encoding="utf8").count("<svg") == 1 for file, _, _ in pictures)
    assert pictures[0][1] == "Curves by epoch: loss of model | a."
    assert pictures[1][1] == "Curves by step: accuracy of other 0; other 1; other 2; other 3."


def test_a_panel_has_a_line_for_each_seed_and_one_label(record):
    """Fails if a seed is not drawn, or the legend names each seed."""
    figure = pages._figure(record, ["model | a"], ["loss"])
    lines = figure.axes[0].lines
    assert [line.get_ydata()[0] for line in lines] == [1.0, 0.5]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["model | a"]


def test_the_benchmarks_page_has_its_goals():
    """Fails if the real benchmark's page does not show medians, quartiles and goals in words."""
    row = {"measured": 3.154, "low": 3.05, "high": 3.17, "goal": 2.0, "passed": True, "note": "how"}
    slow = {"measured": 1.2, "goal": 1.05, "passed": False, "note": ""}
    page = pages.bench_table({"runs": [{"results": {"speed": row, "time": slow}}]})
    assert "| speed | 3.15 (3.05 to 3.17) | at\u00a0least\u00a02 | yes | how |" in page
    assert "| time | 1.2 | at\u00a0most\u00a01.05 | **no** |" in page


def test_every_experiment_of_the_ledger_gets_a_page(tmp_path):
    """Fails if a record of the ledger cannot be shown."""
    for name in ledger.names():
        page = pages.experiment_page(ledger.load(name), [], [])
        assert page.startswith(f"# {name}\n")
        assert "\n| " in page.split("## Results")[1]


def test_the_list_of_experiments_follows_the_chapters():
    """Fails if an experiment is missing, or one of a later chapter stands before one of an earlier."""
    record = {"summary": "S.", "runs": [{}]}
    page = pages.experiments_page({"a": record, "b": record, "c": record}, {"02": '"b"', "03": '"a"'})
    rows = [line for line in page.splitlines() if line.startswith("| [")]
    assert rows == ["| [b](b.md) | S. | 1 | 02 |", "| [a](a.md) | S. | 1 | 03 |", "| [c](c.md) | S. | 1 |  |"]


def test_an_experiment_shows_its_main_number_or_its_lists(tmp_path):
    """Fails if the page of an experiment has no figure, or draws the number of parameters in place of the accuracy."""
    runs = [
        {"seed": s, "results": {"a": {"parameters": 9, "accuracy": s / 4}, "b": {"parameters": 8, "accuracy": 1.0}}}
        for s in (0, 1)
    ]
    ((file, _, caption),) = pages.draw_results({"experiment": "e", "runs": runs}, tmp_path)
    assert (tmp_path / file).exists()
    assert caption == "Accuracy, a dot for each seed."
    lists = {"a": {"lags": [1, 2, 3], "accuracy": [1.0, 0.5, 0.2]}}
    ((_, _, caption),) = pages.draw_results({"experiment": "l", "runs": [{"seed": 0, "results": lists}]}, tmp_path)
    assert caption == "Accuracy by lags; the mean over the seeds."
    matrix = {"a": {"norms": [[1.0, 0.1], [1.0, 10.0]], "ends": [0.1, 10.0]}}
    ((_, _, caption),) = pages.draw_results({"experiment": "m", "runs": [{"seed": 0, "results": matrix}]}, tmp_path)
    assert caption == "Norm of the gradient by layer and time step, as powers of ten; the first seed."
    apart = {"model": {"valid_loss": 1.9}, "a": {"nll": 1.0}, "b": {"nll": 2.0}}
    ((_, _, caption),) = pages.draw_results({"experiment": "n", "runs": [{"seed": 0, "results": apart}]}, tmp_path)
    assert caption == "Surprise (nats a character), a dot for each seed."


def test_the_benchmarks_figure_says_how_far_each_goal_is(tmp_path, monkeypatch):
    """Fails if a ratio that should be low is drawn as bad when it is, or what has no goal is drawn."""
    drawn = []
    make = pages.plots.axes
    monkeypatch.setattr(pages.plots, "axes", lambda *sizes: drawn.append(make(*sizes)) or drawn[-1])
    rows = {
        "at least 2": {"measured": 3.0, "goal": 2.0, "passed": True},
        "at most 1": {"measured": 1.25, "goal": 1.0, "passed": False},
        "no goal": {"measured": 7.0},
    }
    pages.draw_results({"experiment": "bench", "runs": [{"seed": 0, "results": rows}]}, tmp_path)
    dots = [line.get_xdata()[0] for line in drawn[0].lines[:2]]
    assert dots == pytest.approx([1.5, 0.8])
    assert [label.get_text() for label in drawn[0].get_yticklabels()] == ["at least 2", "at most 1"]


# --- chapters in sections -----------------------------------------------------------


def test_a_chapter_is_dealt_out_in_sections():
    """Fails if a cell is lost or doubled, a heading keeps its level, or the opening does not lead to the sections."""
    first = ["# 05 · LSTM", "## You will be able to", "## 1 · A `memory`\n\ntext", "### Part"]
    texts = [*first, "## Errors you will meet", "## Summary", "## References", "## Going deeper", "### More"]
    whole = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell(text) for text in texts])
    found = sections.pages(whole, "05_lstm")
    assert [[cell.source for cell in page.cells] for page in found.values()] == [
        ["# 05 · LSTM", "## You will be able to", found["05_lstm"].cells[-1].source],
        ["# 05.1 · A `memory`\n\ntext", "## Part"],
        ["# 05 · Errors you will meet"],
        ["# 05 · Summary", "## References"],
        ["# 05 · Going deeper", "## More"],
    ]
    assert "1 · A memory <05_lstm-1-a-memory>\nErrors" in found["05_lstm"].cells[-1].source
    assert [cell.source for cell in whole.cells] == texts


def test_no_heading_jumps_and_no_page_ends_in_a_line():
    """Fails on what Sphinx refuses: a third level below a first, a line across at the end; or if code is changed."""
    texts = ["# Title\n\n### A", "### B\n\n```python\n# comment\n```", "## C\n\n### D", "*End.*\n\n---"]
    cells = [nbformat.v4.new_markdown_cell(text) for text in texts]
    sections.without_jumps(cells)
    assert [cell.source for cell in cells] == [
        "# Title\n\n## A",
        "## B\n\n```python\n# comment\n```",
        "## C\n\n### D",
        "*End.*",
    ]


# --- home, and the pages of the repository ----------------------------------------


def test_the_home_page_has_the_map_and_loads_no_badge():
    """Fails if a chapter is missing, or a badge would be loaded from another host."""
    page = build.home((build.PAGES / "index.md").read_text(encoding="utf8"), ["CONTRIBUTING.md"])
    assert all(f"](notebooks/{path.stem}.ipynb)" in page for path in editions.sources())
    assert links.from_markdown(page).loads == ["images/course_overview.svg"]
    assert ":caption: For instructors and authors\n\nCONTRIBUTING\n```" in page
    assert "For instructors and authors" not in build.home((build.PAGES / "index.md").read_text(encoding="utf8"), [])


def test_a_home_page_without_its_marks_is_refused():
    """Fails if the course map is left out without a word."""
    with pytest.raises(ValueError, match="must hold the line"):
        build.home("# Home", [])


def test_links_of_the_repositorys_pages_are_adapted(tmp_path):
    """Fails if a link to a file that is not on the site leads nowhere, or one that is on it leads away."""
    (tmp_path / "tools").mkdir()
    for name in ("README.md", "CHANGELOG.md", "Makefile"):
        (tmp_path / name).write_text("")
    text = (
        "[a](Makefile) [b](tools) [c](CHANGELOG.md#x) [d](notebooks/01_x.ipynb) [e](README.md) [f](https://a.org) "
        "[g](#here) ![h](https://a.org/h.svg)"
    )
    assert build.adapted(text, "https://h.org/o/r", tmp_path) == (
        "[a](https://h.org/o/r/blob/main/Makefile) [b](https://h.org/o/r/tree/main/tools) [c](CHANGELOG.md#x) "
        "[d](notebooks/01_x.ipynb) [e](index.md) [f](https://a.org) [g](#here) h"
    )


# --- MathJax ----------------------------------------------------------------------


def test_without_npm_the_way_out_is_named(tmp_path):
    """Fails if a missing npm is a traceback, or the message does not say what to do."""
    with pytest.raises(build.SiteError, match=r"npm is not installed.*install Node.js.*tex-svg-full.js of mathjax@3"):
        build.mathjax(tmp_path / "tex-svg-full.js", npm="no-such-npm")


def fake_npm(monkeypatch, script=b"", returncode=0):
    """Let the call of npm leave a package with this script, or fail."""

    def run(command, cwd, **_):
        if not returncode:
            with tarfile.open(f"{cwd}/mathjax-3.2.2.tgz", "w:gz") as package:
                entry = tarfile.TarInfo("package/es5/tex-svg-full.js")
                entry.size = len(script)
                package.addfile(entry, io.BytesIO(script))
        return subprocess.CompletedProcess(command, returncode, "", "ENOTFOUND registry")

    monkeypatch.setattr(build.shutil, "which", lambda name: name)
    monkeypatch.setattr(build.subprocess, "run", run)


def test_npm_that_cannot_fetch_says_why(tmp_path, monkeypatch):
    """Fails if npm's own words are lost."""
    fake_npm(monkeypatch, returncode=1)
    with pytest.raises(build.SiteError, match=r"npm could not fetch mathjax@3.2.2: ENOTFOUND registry; install"):
        build.mathjax(tmp_path / "tex-svg-full.js")


def test_another_file_than_expected_is_refused(tmp_path, monkeypatch):
    """Fails if any script that comes is put on the site."""
    fake_npm(monkeypatch, b"something else")
    with pytest.raises(build.SiteError, match="another file than expected"):
        build.mathjax(tmp_path / "tex-svg-full.js")
    assert not (tmp_path / "tex-svg-full.js").exists()


def test_mathjax_is_fetched_once(tmp_path, monkeypatch):
    """Fails if a second build needs npm again."""
    fake_npm(monkeypatch, b"the script")
    monkeypatch.setattr(build, "MATHJAX_SHA256", hashlib.sha256(b"the script").hexdigest())
    file = build.mathjax(tmp_path / "mathjax" / "tex-svg-full.js")
    assert file.read_bytes() == b"the script"
    assert build.mathjax(file, npm="no-such-npm") == file


def test_an_error_of_the_build_is_a_message_and_a_status(monkeypatch):
    """Fails if make would go on, or show a traceback, when the site cannot be built."""

    def broken():
        raise build.SiteError("npm is not installed")

    monkeypatch.setattr(build, "build", broken)
    assert build.main([]) == "make site: npm is not installed"


@pytest.mark.parametrize("path", sorted(editions.NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_a_chapter_has_a_page_for_its_summary(path):
    """Fails if the heading stands in another section's cell, and the summary at the end of that section's page."""
    found = sections.pages(nbformat.read(path, as_version=4), path.stem)
    assert f"{path.stem}-summary" in found
