"""Build, execute and store the notebooks: `make notebooks`, or `python -m tools.notebooks.build 01 02`.

The student's edition goes to `notebooks/`, with outputs; the instructor's to
`build/instructor/`, which git ignores. A chapter is executed only if its source, the
modules that it uses or the ledger files that it draws have changed.
"""

import argparse
import ast
import hashlib
import json
import os
import sys
import tempfile
import time

import nbformat
import psutil  # comes with the kernel
from nbclient import NotebookClient

from tools.notebooks import editions, guards
from tools.notebooks.editions import INSTRUCTOR, NOTEBOOKS, ROOT

# The conditions under which notebooks are executed and compared.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TQDM_DISABLE": "1", "COURSE_PROFILE": "quick"}
CELL_SECONDS = 120
SLOW_SECONDS = 3
# Run in the kernel first: a file grows with each progress bar, which is not drawn while a notebook is built.
COUNT_BARS = """
import tqdm
def counted(self, *args, start=tqdm.tqdm.__init__, **options):
    open({file!r}, "a").write("|")
    start(self, *args, **options)
tqdm.tqdm.__init__ = counted
"""


def build(path, force=False):
    """Bring both editions of one chapter up to date; say whether it had to be executed."""
    target = NOTEBOOKS / f"{path.stem}.ipynb"
    fresh = editions.student(editions.chapter(path))
    fresh.metadata.course["fingerprint"] = fingerprint(path)
    stored = nbformat.read(target, as_version=4) if target.exists() else None
    same = stored is not None and editions.comparable(stored) == editions.comparable(fresh)
    executed = force or not same or stored.metadata.course.get("fingerprint") != fresh.metadata.course.fingerprint
    if executed:
        stored = execute(fresh)
        write(stored, target)
    build_instructor(path)
    return executed


def build_instructor(path):
    """Make the instructor's edition of a chapter from its source and the stored outputs of the student's."""
    stored = nbformat.read(NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)
    edition = editions.instructor(editions.chapter(path), stored)
    write(edition, INSTRUCTOR / f"{path.stem}.ipynb")


def execute(notebook):
    """Run a notebook in an empty folder, as in Colab; return it with outputs, and its silent cells in its metadata.

    Silent is a visible cell that computes for more than 3 s and shows no progress; a guard finds it there.
    Errors stop the run unless the cell is tagged `raises-exception`.
    """
    os.environ.update(ENVIRONMENT)
    begin, before, silent = time.monotonic(), {}, {}
    with tempfile.TemporaryDirectory() as folder, tempfile.NamedTemporaryFile() as bars:
        count = f"exec({COUNT_BARS.format(file=bars.name)!r}, {{}})"

        def so_far():
            """The seconds of processors that the kernel has used, and the progress bars that it has made."""
            used = psutil.Process(client.km.provisioner.pid).cpu_times()
            return sum(used[:4]), os.path.getsize(bars.name)

        def begin_cell(cell, cell_index):
            before[cell.id] = so_far()

        def end_cell(cell, cell_index, **_):
            seconds, shown = (now - old for now, old in zip(so_far(), before[cell.id], strict=True))
            if seconds > SLOW_SECONDS and not shown and guards.is_story(cell):
                silent[cell.id] = round(seconds)
                print(f"  {seconds:4.0f} s without progress: {cell.source.strip().splitlines()[0]}", flush=True)

        client = NotebookClient(
            notebook, timeout=CELL_SECONDS, kernel_name="python3", record_timing=False, coalesce_streams=True,
            resources={"metadata": {"path": folder}}, extra_arguments=[f"--IPKernelApp.exec_lines={count}"],
            on_cell_start=begin_cell, on_cell_executed=end_cell,
        )  # fmt: skip
        client.execute()
    if silent:
        notebook.metadata.course["silent"] = silent
    notebook.metadata.course["seconds"] = round(time.monotonic() - begin)
    notebook.metadata.pop("language_info", None)
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":  # its lines name folders of this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]
    return notebook


def write(notebook, target):
    """Store a notebook whole: beside the target first, then in its place."""
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_suffix(".tmp")
    nbformat.write(notebook, beside)
    beside.replace(target)


def fingerprint(path):
    """Return a hash of all that a chapter's outputs depend on: source, modules, ledger."""
    text = path.read_text(encoding="utf8")
    parts = [json.dumps(editions.comparable(editions.student(editions.chapter(path))))]
    parts += [file.read_text(encoding="utf8") for file in sorted(modules_used(text))]
    text = editions.with_figures(path)
    parts += [f.read_text(encoding="utf8") for f in sorted((ROOT / "results").glob("*.json")) if f'"{f.stem}"' in text]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def modules_used(code, seen=None):
    """Return the files of `course_lib` that code imports, what stands beside them, and those that they import."""
    seen = set() if seen is None else seen
    lines = [line for line in code.splitlines() if not line.lstrip().startswith(("%", "!"))]
    for node in ast.walk(ast.parse("\n".join(lines))):
        names = []
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("course_lib"):
            names = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names if alias.name.startswith("course_lib")]
        for name in names:
            base = ROOT.joinpath(*name.split("."))
            # `explorer` has its page beside it; `diagrams` finds its modules by itself, so all of them count.
            files = [
                base.with_suffix(".py"),
                *(base.with_suffix(end) for end in (".html", ".css", ".js")),
                base / "__init__.py",
                *(base.glob("*.py") if base.name == "diagrams" else []),
            ]
            for file in files:
                if file.exists() and file not in seen:
                    seen.add(file)
                    if file.suffix == ".py":
                        modules_used(file.read_text(encoding="utf8"), seen)
    return seen


def main(arguments=None):
    """Build the chapters whose numbers are given, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("chapters", nargs="*", help="numbers, such as 01 02; default: all")
    parser.add_argument("--instructor", action="store_true", help="execute nothing; only make the instructor's edition")
    parser.add_argument("--force", action="store_true", help="execute even what has not changed")
    options = parser.parse_args(arguments)
    known = {path.stem[:2]: path for path in editions.sources()}
    unknown = [number for number in options.chapters if number not in known]
    if unknown:
        parser.error(f"no chapter {', '.join(unknown)}; there are {', '.join(known)}")
    for number in options.chapters or known:
        if options.instructor:
            build_instructor(known[number])
            continue
        executed = build(known[number], options.force)
        print(f"{known[number].stem}: {'executed' if executed else 'up to date'}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
