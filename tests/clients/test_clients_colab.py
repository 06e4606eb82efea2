"""Slow: every notebook in Colab's conditions (make test-slow), or with another Python and torch (make test-clients).

An environment has Colab's packages (`tests/clients/colab.txt`) and no `course_lib`. The notebooks' first cell must get
the library, from a repository on this disk in place of the one it names, and leave torch alone. Then each notebook runs
alone in an empty folder, without network, and its outputs must be the stored ones.

COLAB_PYTHON and COLAB_TORCH choose another interpreter and another version of torch.
"""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from filelock import FileLock
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_notebook

from tools.notebooks import editions

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))
PACKAGES = editions.ROOT / "tests" / "clients" / "colab.txt"
# What the first cell must get: the library's requirements that Colab lacks, and what builds the library.
MISSING = ["torchtext", "sacrebleu", "portalocker", "colorama"]
MISSING += ["hatchling", "packaging", "pathspec", "pluggy", "tomlkit", "trove-classifiers"]
NOWHERE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
# Colab has two cores and lets torch use both. Waiting threads must sleep: other tests need the cores.
COLAB = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE", "TQDM_DISABLE": "1"}


def pins():
    """The exact versions in constraints.txt, by name."""
    lines = (editions.ROOT / "constraints.txt").read_text(encoding="utf8").splitlines()
    return {line.partition("==")[0]: line for line in lines if not line.startswith("#")}


def output(*command, **options):
    """Run a command; return what it printed, or fail with it."""
    command = [str(part) for part in command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def build_environment(folder, python, torch):
    """Make Colab's environment and a folder with the wheels that its user would download."""
    output(python, "-m", "venv", folder / "env")
    pip = [folder / "env" / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check"]
    output(*pip, "install", "--no-deps", "--requirement", PACKAGES)
    output(*pip, "install", "--constraint", PACKAGES, f"torch=={torch}")
    output(*pip, "download", "--no-deps", "--dest", folder / "wheels", *(pins()[name] for name in MISSING))


@pytest.fixture(scope="module")
def colab():
    """The folder with Colab's environment: made once, kept in build/colab until a requirement changes."""
    python = os.environ.get("COLAB_PYTHON") or sys.executable
    torch = os.environ.get("COLAB_TORCH") or pins()["torch"].partition("==")[2]
    wanted = [output(python, "--version"), torch, PACKAGES.read_text(encoding="utf8"), *(pins()[n] for n in MISSING)]
    folder = editions.ROOT / "build" / "colab" / hashlib.sha256("\n".join(wanted).encode()).hexdigest()[:12]
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):
        if not (folder / "ready").exists():
            shutil.rmtree(folder, ignore_errors=True)
            build_environment(folder, python, torch)
            (folder / "ready").touch()
    return folder


@pytest.fixture(scope="module")
def session(colab, tmp_path_factory):
    """What Colab gives to one user: an environment to write to, over the one that is there; and no network.

    Returns the variables under which a program that starts kernels finds this one, under the name colab.
    """
    folder = tmp_path_factory.mktemp("session")
    python = folder / "env" / "bin" / "python"
    output(colab / "env" / "bin" / "python", "-m", "venv", "--without-pip", folder / "env")
    (below,) = (colab / "env" / "lib").glob("python*/site-packages")
    (here,) = (folder / "env" / "lib").glob("python*/site-packages")
    (here / "colab.pth").write_text(f"{below}\n", encoding="utf8")
    kernel = folder / "kernels" / "colab"
    kernel.mkdir(parents=True)
    argv = [str(python), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    (kernel / "kernel.json").write_text(json.dumps({"argv": argv, "display_name": "Colab", "language": "python"}))
    environment = {**os.environ, **NOWHERE, **COLAB, "JUPYTER_PATH": str(folder), "IPYTHONDIR": str(folder / "ipython")}
    for name in ("PYTEST_CURRENT_TEST", "PYTHONPATH", "MPLBACKEND"):
        environment.pop(name, None)
    return environment


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    """A repository with the library as it stands in this folder."""
    folder = tmp_path_factory.mktemp("repository")
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(editions.ROOT / name, folder)
    for name in ("course_lib", "results"):
        shutil.copytree(editions.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    git = ["git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@example.org"]
    output(*git, "init", "--quiet")
    output(*git, "add", ".")
    output(*git, "commit", "--quiet", "--message", "as it stands")
    return folder


WHERE = """\
import importlib.util, sys
import torch
library = importlib.util.find_spec("course_lib")
print(library and library.origin, torch.__file__, torch.__version__, sys.prefix, sep="\\n")"""


@pytest.fixture(scope="module")
def installed(session, colab, repository, tmp_path_factory):
    """The session after the first cell has run twice in it, with what was seen before, between and after."""
    instead = {  # git gets the address that the cell names from this disk, and pip the rest
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": f"url.{repository.as_uri()}.insteadOf",
        "GIT_CONFIG_VALUE_0": editions.address(),
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(colab / "wheels"),
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }
    first = editions.INSTALL.format(address=editions.address())
    notebook = new_notebook(cells=[new_code_cell(source) for source in (WHERE, first, WHERE, first)])
    with pytest.MonkeyPatch.context() as patch:
        for name in set(os.environ) - set(session):
            patch.delenv(name)
        for name, value in {**session, **instead}.items():
            patch.setenv(name, value)
        resources = {"metadata": {"path": str(tmp_path_factory.mktemp("first_cell"))}}
        NotebookClient(notebook, kernel_name="colab", timeout=600, resources=resources).execute()
    before, first_run, after, second_run = (
        "".join(output.get("text", "") for output in cell.outputs) for cell in notebook.cells
    )
    return before.split("\n"), first_run, after.split("\n"), second_run


def test_the_first_cell_gets_the_library_and_leaves_torch_alone(installed):
    """Fails if the cell does not install, takes another torch with it, or says or does anything once it has."""
    before, first_run, after, second_run = installed
    library, torch, version, prefix = after[:4]
    assert before == ["None", torch, version, prefix, ""], first_run
    assert library.startswith(prefix), first_run
    assert not torch.startswith(prefix), first_run
    assert not list(Path(prefix).glob("lib/python*/site-packages/torch")), first_run
    assert list(Path(prefix).glob("lib/python*/site-packages/torchtext")), first_run
    assert second_run == ""


@pytest.mark.parametrize("path", NOTEBOOKS[::-1], ids=lambda path: path.stem)
def test_a_notebook_alone(path, session, installed, tmp_path):
    """Outputs equal the stored ones; fails if a file of the checkout or a newer package was needed.

    `make test` runs the notebooks in order, with one thread; this is the reverse order, with two.
    """
    folder = tmp_path / "empty"
    folder.mkdir()
    shutil.copy(path, folder)
    sanitize = editions.ROOT / "tests" / "notebooks" / "nbval_sanitize.cfg"
    said = output(
        sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-kernel-name=colab",
        "--nbval-cell-timeout=240", "--nbval-sanitize-with", sanitize, path.name,
        env={**session, "COURSE_DATA": str(tmp_path / "data")}, cwd=folder,
    )  # fmt: skip
    assert " passed" in said
    assert sorted(folder.iterdir()) == [folder / path.name], "the notebook left files behind"
