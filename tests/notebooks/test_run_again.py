"""Any cell can be run again after the whole notebook has run: a reader goes back and changes a number."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

from tools.notebooks import build, editions


def run_twice(notebook, folder):
    """Run all cells, then all once more; what went wrong the second time, as (cell's number, what)."""
    client = NotebookClient(
        notebook, timeout=build.CELL_SECONDS, kernel_name="python3", allow_errors=True,
        resources={"metadata": {"path": str(folder)}},
    )  # fmt: skip
    wrong = []
    with client.setup_kernel():
        for again in (False, True):
            for number, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, number)
                    wrong += [(number, what) for what in faults(cell)] if again else []
    return wrong


def faults(cell):
    """Errors that are not meant, and claims that no longer hold."""
    meant = "raises-exception" in cell.metadata.get("tags", [])
    for output in cell.outputs:
        if output.output_type == "error" and not meant:
            yield f"{output.ename}: {output.evalue}"
        if "✗" in output.get("data", {}).get("text/markdown", ""):
            yield output.data["text/markdown"]


def test_a_name_with_two_meanings_is_found(tmp_path):
    """Fails if a cell that works once and not twice passes."""
    cells = [nbformat.v4.new_code_cell(code) for code in ("x = 2", "y = x + 1", "x = 'two'", "z = 1")]
    found = run_twice(nbformat.v4.new_notebook(cells=cells[:2] + cells[3:]), tmp_path)
    assert found == []
    cells[0].source = "x = x if 'x' in globals() else 2"
    ((number, what),) = run_twice(nbformat.v4.new_notebook(cells=cells), tmp_path)
    assert number == 1
    assert what.startswith("TypeError")


@pytest.mark.slow
@pytest.mark.parametrize("path", editions.sources(), ids=lambda path: path.stem)
def test_every_cell_can_be_run_again(path, tmp_path, monkeypatch):
    """Fails if a second run of a cell raises an error, or makes a claim false."""
    for name, value in build.ENVIRONMENT.items():
        monkeypatch.setitem(os.environ, name, value)
    assert run_twice(editions.student(editions.chapter(path)), tmp_path) == []
