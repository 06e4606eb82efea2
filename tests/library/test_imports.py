"""Who imports whom: the order of the modules, and what must not be loaded before it is needed."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import course_lib

PACKAGE = Path(course_lib.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))
LAZY = ["matplotlib.pyplot", "seaborn", "torchtext", "pandas", "sacrebleu", "tokenizers", "IPython"]
LAZY += ["safetensors", "huggingface_hub", "transformers", "pooch"]


def reading_order():
    """The modules' names, as the package's own docstring lists them."""
    listed = re.search(r"those before it:\n\n(.*?)\.\n", course_lib.__doc__, re.DOTALL).group(1)
    return re.findall(r"`(\w+)`", listed)


def module_of(path):
    """The module of course_lib that a file is, or the package in it that the file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(tree):
    """Dotted names of all modules imported anywhere in a file, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative imports hide where a module stands"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def violations(path, source, order):
    """Modules of course_lib that a file imports though they stand below it."""
    allowed = [*order[: order.index(module_of(path)) + 1], "__version__"]
    parts = [name.split(".") for name in imported(ast.parse(source))]
    return [part[1] for part in parts if part[0] == "course_lib" and len(part) > 1 and part[1] not in allowed]


def test_every_module_has_its_place_in_the_order():
    """Fails if a module is missing from the docstring's list, or the list names one that is not there."""
    modules = {module_of(path) for path in FILES} - {"__init__"}
    assert modules == set(reading_order())


@pytest.mark.parametrize("path", [path for path in FILES if path != PACKAGE / "__init__.py"], ids=lambda p: p.stem)
def test_a_module_imports_only_what_stands_above_it(path):
    """Fails if an import points downwards in the reading order."""
    assert violations(path, path.read_text(encoding="utf-8"), reading_order()) == []


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("from course_lib.notebook import ledger", ["notebook"]),
        ("def f():\n    import course_lib.notebook.plots as p", ["notebook"]),
        ("from course_lib.exercises.ch01 import x", ["exercises"]),
        ("import course_lib, torch\nfrom course_lib import text, train, __version__", []),
    ],
)
def test_the_search_finds_imports_that_point_downwards(source, wanted):
    """Fails if a form of import escapes the test above: `train` stands above `notebook` and `exercises`."""
    assert violations(PACKAGE / "train.py", source, reading_order()) == wanted


def test_the_data_sets_know_nothing_of_the_models():
    """Fails if a file in a package is judged by its own name, or `datasets`, the first, may import another module."""
    source = (
        "from course_lib.datasets import real\nfrom course_lib.utils import device\nfrom course_lib.text import PAD"
    )
    assert violations(PACKAGE / "datasets" / "synthetic.py", source, reading_order()) == ["utils", "text"]


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_only_the_tour_imports_torchtext(path):
    """Fails if another module depends on torchtext's interface."""
    names = {name.split(".")[0] for name in imported(ast.parse(path.read_text(encoding="utf-8")))}
    assert "torchtext" not in names or path.name == "torchtext_tour.py"


def loaded(statements, suspects):
    """Which of the suspects a fresh interpreter has loaded after the statements."""
    code = f"{statements}\nimport sys\nprint(*[name for name in {suspects!r} if name in sys.modules])"
    path = os.pathsep.join(filter(None, [str(PACKAGE.parent), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


def test_importing_the_package_loads_nothing():
    """Fails if `import course_lib` costs the second that torch takes."""
    assert loaded("import course_lib", ["torch", "numpy", *LAZY]) == []


def test_importing_every_module_loads_torch_and_no_plotting():
    """Fails if a module loads a heavy package before a function needs it; torch is the one that all may use."""
    dotted = [".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts) for path in FILES]
    names = [name.removesuffix(".__init__") for name in dotted if not name.endswith("__main__")]
    statements = "\n".join(f"import {name}" for name in names)
    assert loaded(statements, ["torch", *LAZY]) == ["torch"]
