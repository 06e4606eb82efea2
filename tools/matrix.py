"""One Python with one torch, really tried: `python -m tools.matrix --python python3.13 --torch 2.11.0`.

In a fresh environment, with the library from a built wheel and nothing of the checkout: every module is imported, the
core's unit tests run, and each notebook runs alone in an empty folder and is compared with what is stored. Prints one
line of result a part. `--torch newest` takes the newest that pyproject.toml allows; further requirements may follow:
`-- ipython==7.34.0 ipywidgets==7.7.1`. Needs nothing but Python and the network.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = [f"tests/test_{name}.py" for name in "attention rnn gated transformer train pretrained gpt text data".split()]
IMPORT_ALL = """
import importlib, pkgutil, sys, torch, course_lib
names = [m.name for m in pkgutil.walk_packages(course_lib.__path__, "course_lib.") if not m.name.endswith("__main__")]
_ = [importlib.import_module(name) for name in names]
print(len(names), "modules; Python", sys.version.split()[0], "torch", torch.__version__)"""


def run(part, folder, *command):
    """Run one part in a folder and print a line about it, and what it said if it failed; return whether it held."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COURSE_PROGRESS": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    said = done.stdout.strip()
    print(f"{part}: {'ok' if done.returncode == 0 else 'FAILED'} {' '.join(said.splitlines()[-1:])}", flush=True)
    if done.returncode:
        print(said[-6000:], flush=True)
    return done.returncode == 0


def install(folder, python, requirements):
    """Make the environment with the wheel in it; return its Python, or None if that failed."""
    own = str(folder / "venv" / "bin" / "python")
    pip = [own, "-m", "pip", "--disable-pip-version-check"]
    made = (
        run("environment", folder, python, "-m", "venv", "venv")
        and run("wheel", folder, *pip, "wheel", "--no-deps", "--wheel-dir", ".", str(ROOT))
        and run("packages", folder, *pip, "install", *requirements, f"{next(folder.glob('*.whl'))}[dev]")
    )
    return own if made else None


def try_all(folder, own, notebooks):
    """Import, test, and run the notebooks with the environment's Python; return for each part whether it held."""
    unit = folder / "unit"
    shutil.copytree(ROOT / "tests", unit / "tests")
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, unit)
    pytest = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    nbval = [*pytest, "--nbval", "--nbval-current-env", "--nbval-cell-timeout=240"]
    nbval.append(f"--nbval-sanitize-with={unit / 'tests' / 'nbval_sanitize.cfg'}")
    held = [run("modules", unit, own, "-c", IMPORT_ALL), run("unit tests", unit, *pytest, *TESTS)]
    for path in notebooks:
        (folder / path.stem).mkdir()
        shutil.copy(path, folder / path.stem)
        held.append(run(path.stem, folder / path.stem, *nbval, path.name))
    return held


def main(arguments=None):
    """Try one combination; return 0 if every part held, else 1."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable, help="the interpreter, a name or a path")
    parser.add_argument("--torch", default="newest", help="a version, such as 2.11.0, or newest")
    parser.add_argument("--chapters", nargs="+", metavar="NN", help="numbers, such as 01 05; default: all")
    parser.add_argument("requirements", nargs="*", help="what else must be installed, after --")
    options = parser.parse_args(arguments)
    notebooks = {path.name[:2]: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
    if unknown := set(options.chapters or []) - set(notebooks):
        parser.error(f"no chapter {', '.join(sorted(unknown))}; there are {', '.join(notebooks)}")
    pin = [] if options.torch == "newest" else [f"torch=={options.torch}"]
    with tempfile.TemporaryDirectory() as folder:
        own = install(Path(folder), options.python, pin + options.requirements)
        chosen = [notebooks[number] for number in options.chapters or notebooks]
        return int(own is None or not all(try_all(Path(folder), own, chosen)))


if __name__ == "__main__":
    sys.exit(main())
