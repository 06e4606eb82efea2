"""Each guard is shown a notebook that breaks it, and one that does not.

A guard that found nothing would pass all notebooks; these tests fail then.
"""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import editions, guards

PNG = {"image/png": "aGVsbG8=", "text/plain": "[figure] A line."}


NO_WORDS = new_output("display_data", data=PNG, metadata={"image/png": {"alt": " "}})
ERROR = new_output("error", ename="KeyError", evalue="x", traceback=[])


def printed(text):
    return new_output("stream", name="stdout", text=text)


def sound(**changes):
    """Return a notebook of four cells with output that no guard objects to."""
    cells = [new_code_cell(f"print({i})", execution_count=i, outputs=[printed(f"{i}\n")]) for i in (1, 2, 3)]
    figure = new_output("display_data", data=PNG, metadata={"image/png": {"alt": "A line."}})
    cells.append(new_code_cell("show()", execution_count=4, outputs=[figure]))
    for name, value in changes.items():
        setattr(cells[0], name, value)
    return new_notebook(cells=[new_markdown_cell("# Title"), *cells])


def all_guards(notebook):
    return [problem for guard in guards.GUARDS for problem in guard(notebook)]


def test_a_sound_notebook_passes_every_guard():
    assert all_guards(sound()) == []


@pytest.mark.parametrize(
    ("guard", "changes", "words"),
    [
        (guards.not_executed, {"execution_count": None}, "executed as [None, 2, 3, 4]"),
        (guards.not_executed, {"execution_count": 7}, "executed as [7, 2, 3, 4]"),
        (guards.unmarked_errors, {"outputs": [ERROR]}, "KeyError"),
        (guards.failed_claims, {"outputs": [printed("does not hold here: It falls.")]}, "not hold here: It falls."),
        (guards.machine_traces, {"outputs": [printed("saved to /home/ann/model.pt")]}, "a path: '/home/'"),
        (guards.machine_traces, {"outputs": [printed("saved to C:\\Users\\ann")]}, "a path"),
        (guards.machine_traces, {"outputs": [printed("in lib/site-packages/torch")]}, "a path"),
        (guards.machine_traces, {"outputs": [printed("run on 2026-11-20")]}, "a date or time: '2026-11-20'"),
        (guards.machine_traces, {"outputs": [printed("torch 2.13.0+cpu")]}, "a version: '2.13.0+cpu'"),
        (guards.missing_alt, {"outputs": [new_output("display_data", data=PNG)]}, "without alt text"),
        (guards.missing_alt, {"outputs": [NO_WORDS]}, "without alt text"),
        (guards.semicolons, {"source": "plot(x);\n"}, "ends in ';'"),
        (guards.moving_outputs, {"source": "clear_output(wait=True)"}, "clears its output"),
        (
            guards.moving_outputs,
            {"outputs": [new_output("display_data", data={"application/vnd.jupyter.widget-view+json": {}})]},
            "a widget",
        ),
    ],
)  # fmt: skip
def test_a_guard_finds_what_it_guards_against(guard, changes, words):
    """Fails if the guard stays silent, or if another guard than the named one speaks."""
    notebook = sound(**changes)
    (problem,) = all_guards(notebook)
    assert guard(notebook) == [problem]
    assert words in problem


def test_an_error_marked_as_meant_passes():
    assert guards.unmarked_errors(sound(outputs=[ERROR], metadata={"tags": ["raises-exception"]})) == []


def test_images_in_text_need_alt_text():
    notebook = sound()
    notebook.cells[0].source = "![](https://example.org/a.png)"
    assert guards.missing_alt(notebook) == [f"{notebook.cells[0].id}: an image in the text without alt text"]
    notebook.cells[0].source = "![A cell.](https://example.org/a.png)"
    assert guards.missing_alt(notebook) == []


def test_a_quarter_may_be_exempt_and_no_more():
    notebook = sound(metadata={"tags": ["nbval-ignore-output"]})
    assert guards.too_many_exempt(notebook) == []  # one of four
    notebook.cells[2].source = "# NBVAL_IGNORE_OUTPUT\nprint(2)"
    assert guards.too_many_exempt(notebook) == [
        "2 of 4 cells with output are not compared; at most a quarter may be exempt"
    ]


def test_a_cell_of_which_sanitising_leaves_nothing_counts_as_exempt():
    """Otherwise everything could be printed on lines that are not compared."""
    notebook = sound(metadata={"tags": ["nbval-ignore-output"]})
    notebook.cells[2].outputs = [printed("measured: loss=1.23\n")]
    assert len(guards.too_many_exempt(notebook)) == 1
    notebook.cells[2].outputs = [printed("holds: It falls.\nmeasured: loss=1.23\n")]
    assert guards.too_many_exempt(notebook) == []


SOURCE = """\
# ---
# jupyter:
#   course:
#     minutes: 10
#     needs: nothing
# ---

# %% [markdown]
# # 98 · A chapter

# %%
print(1)
"""


@pytest.fixture
def a_source(tmp_path, monkeypatch):
    monkeypatch.setattr(editions, "SOURCES", tmp_path)
    path = tmp_path / "98_chapter.py"
    path.write_text(SOURCE, encoding="utf8")
    return path


def test_a_notebook_older_than_its_source_is_stale(a_source):
    notebook = editions.student(editions.chapter(a_source))
    assert guards.stale("98_chapter.ipynb", notebook) == []
    a_source.write_text(SOURCE.replace("print(1)", "print(2)"), encoding="utf8")
    assert guards.stale("98_chapter.ipynb", notebook) == ["cell 2 is not what 98_chapter.py says; run make notebooks"]


def test_a_cell_added_by_hand_is_stale(a_source):
    notebook = editions.student(editions.chapter(a_source))
    notebook.cells.append(new_code_cell("print(3)"))
    assert guards.stale("98_chapter.ipynb", notebook) == ["cell 3 is not what 98_chapter.py says; run make notebooks"]


def test_a_notebook_without_source_is_found(a_source):
    assert guards.stale("97_other.ipynb", new_notebook()) == ["there is no source 97_other.py"]


NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))


def test_every_source_has_its_notebook():
    assert [path.stem for path in NOTEBOOKS] == [path.stem for path in editions.sources()]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_notebooks_pass_every_guard(path):
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert guards.problems(path, notebook) == []
