"""Any cell can be run again, alone, after the whole notebook has run: a reader goes back and changes a number."""

import os
import subprocess
import sys

import nbformat
import pytest

from tools.notebooks import build, editions

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs a system that can copy a process")


def again(notebook, *options):
    """Return the lines that `tools.notebooks.again` prints of a chapter's number or a notebook's path."""
    done = subprocess.run(
        [sys.executable, "-m", "tools.notebooks.again", str(notebook), *options],
        cwd=editions.ROOT, env={**os.environ, **build.ENVIRONMENT}, capture_output=True, text=True,
    )  # fmt: skip
    assert f"{len(done.stdout.splitlines())} faults" in done.stderr, done.stderr  # it came to its end
    return done.stdout.splitlines()


def faults_of(folder, *cells, options=()):
    """Store a notebook of these cells, and return what is found when each is run again."""
    path = folder / "planted.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(**cell) for cell in cells]), path)
    return again(path, *options)


def test_a_cell_that_cannot_be_run_again_is_found(tmp_path):
    """Fails if an error, another text, a failing claim or a missing error passes, or what is sound does not.

    Run again in order, all would be well but the last two: the first cell repairs what the others read.
    """
    claim = "from course_lib.notebook.claims import claim\nclaim('It is small.', n < 3)"
    found = faults_of(
        tmp_path,
        {"source": "x, n, names = 2, 1, ['a']"},
        {"source": "y = x + 1\ny"},
        {"source": "print('n is', n)"},
        {"source": claim},
        {"source": "names[1]", "metadata": {"tags": ["raises-exception"]}},
        {"source": "import random\nrandom.seed(0)"},
        {"source": "print(random.random())"},
        {"source": "random.seed(0)\nprint(random.random())"},
        {"source": "print(n)", "metadata": {"tags": ["nbval-ignore-output"]}},
        {"source": "names.append(n)\nprint(len(names))"},
        {"source": "x, n = 'two', 3"},
    )
    planted = "planted"
    assert [line.partition(": ")[0] for line in found] == [
        f"{planted} [1] y = x + 1",
        f"{planted} [2] print('n is', n)",
        f"{planted} [3] from course_lib.notebook.claims import claim",
        f"{planted} [3] from course_lib.notebook.claims import claim",
        f"{planted} [4] names[1]",
        f"{planted} [6] print(random.random())",
        f"{planted} [9] names.append(n)",
    ]
    said = [line.partition(": ")[2] for line in found]
    assert said[0].startswith("TypeError: can only concatenate str")
    assert said[1] == "'n is 3' for 'n is 1'"
    assert said[2].startswith("✗ Not with these settings: It is small.")
    assert said[4] == "no error the second time"
    assert said[6] == "'3' for '2'"


def test_no_cell_is_changed_by_the_second_run_of_another(tmp_path):
    """Fails if the cells are run again in one process: the first would train on what the second measures."""
    cells = (
        {"source": "if 'losses' not in globals():\n    losses = []\nlosses.append(1)"},
        {"source": "print(losses)"},
    )
    assert faults_of(tmp_path, *cells) == []


def test_a_long_second_run_is_stopped(tmp_path):
    """Fails if a second run is waited for, or stopped before the error that its first lines make."""
    cells = (
        {"source": "import time\nn = [0]\npause = 0"},
        {"source": "time.sleep(pause)"},
        {"source": "n[0] + 1\ntime.sleep(pause)"},
        {"source": "n, pause = [''], 600"},
    )
    (found,) = faults_of(tmp_path, *cells, options=("--seconds", "2"))
    assert "[2]" in found
    assert "TypeError" in found


@pytest.mark.slow
@pytest.mark.parametrize("path", editions.sources(), ids=lambda path: path.stem)
def test_every_cell_can_be_run_again(path):
    """Fails if a cell that is run alone after the whole raises an error, says something else or makes a claim false.

    A long training is stopped after 5 seconds, in which it has read what it needs: `python -m tools.notebooks.again`
    waits for all.
    """
    assert again(path.stem[:2], "--seconds", "5") == []
