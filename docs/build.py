"""Build the course's site from the stored outputs into build/site: `make site`, or `python -m docs.build`.

The pages are gathered in build/site_source (the chapters' notebooks as they are stored, the
hand-written pages of docs/, what `docs/pages.py` makes) and Sphinx builds them, with
warnings as errors. A page loads nothing from another host: the script that sets formulas,
MathJax, is fetched once with npm and travels with the site. Nothing is executed.
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import nbformat

from course_lib.notebook import ledger
from docs import pages, sections
from tools import readme
from tools.notebooks import editions
from tools.notebooks.editions import ROOT

PAGES = ROOT / "docs"
SOURCE = ROOT / "build" / "site_source"
DOCTREES = ROOT / "build" / "site_doctrees"
TARGET = ROOT / "build" / "site"

MATHJAX = ROOT / "build" / "mathjax" / "tex-svg-full.js"
MATHJAX_PACKAGE = "mathjax@3.2.2"
MATHJAX_SHA256 = "a4354ff94fd868aea0cc6eaaa79a57fda0588646fc46ee3700a349ee0a11cbe6"

CHAPTERS, OTHERS = "<!-- the course map -->", "<!-- pages for instructors and authors -->"
PAGES_OF_CHAPTERS = "<!-- the chapters' pages -->"
GOING_ON = ["INSTRUCTORS.md", "CONTRIBUTING.md", "CHANGELOG.md"]  # included where they exist


class SiteError(RuntimeError):
    """The site cannot be built; the message says what to do."""


# --- MathJax ----------------------------------------------------------------------


def mathjax(file=MATHJAX, npm="npm"):
    """Return the script that sets formulas, fetched with npm if it is not there yet.

    Args:
        file: where it is kept.
        npm: the command to fetch it with.

    Returns:
        Path.

    Raises:
        SiteError: if it is not there and npm is missing or cannot fetch it, or if another file came.
    """
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        script = _from_npm(npm)
        if hashlib.sha256(script).hexdigest() != MATHJAX_SHA256:
            raise SiteError(f"what npm fetched as {MATHJAX_PACKAGE} is another file than expected; {_way_out(file)}")
        file.write_bytes(script)
    return file


def _from_npm(npm):
    """Fetch MathJax's package and return its one script that needs no other file."""
    if shutil.which(npm) is None:
        raise SiteError(f"npm is not installed, and the site needs it once to fetch {MATHJAX_PACKAGE}; {_way_out()}")
    with tempfile.TemporaryDirectory() as folder:
        run = subprocess.run(
            [npm, "pack", MATHJAX_PACKAGE, "--silent"], cwd=folder, capture_output=True, text=True, check=False
        )
        packages = list(Path(folder).glob("*.tgz"))
        if run.returncode or not packages:
            raise SiteError(f"npm could not fetch {MATHJAX_PACKAGE}: {run.stderr.strip()[-500:]}; {_way_out()}")
        with tarfile.open(packages[0]) as package:
            return package.extractfile(f"package/es5/{MATHJAX.name}").read()


def _way_out(file=MATHJAX):
    """Say what to do without npm."""
    return (
        f"install Node.js, which brings npm, or put es5/{file.name} of {MATHJAX_PACKAGE} "
        f"into {file.parent.relative_to(ROOT) if file.is_relative_to(ROOT) else file.parent}, and run make site again"
    )


# --- the pages --------------------------------------------------------------------


def assemble():
    """Gather everything that Sphinx reads in build/site_source."""
    shutil.rmtree(SOURCE, ignore_errors=True)
    shutil.copytree(PAGES, SOURCE, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    shutil.copy(PAGES / "conf.py", SOURCE)
    (SOURCE / "_static" / "mathjax").mkdir()
    shutil.copy(mathjax(), SOURCE / "_static" / "mathjax")
    write_chapters()
    shutil.copytree(ROOT / "images", SOURCE / "images")
    others = [name for name in GOING_ON if (ROOT / name).exists()]
    for name in others:
        write(name, adapted((ROOT / name).read_text(encoding="utf8"), editions.address()))
    write("index.md", home((SOURCE / "index.md").read_text(encoding="utf8"), others))
    write_library()
    write_experiments()


def write(name, text):
    """Write a page into the folder that Sphinx reads."""
    path = SOURCE / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf8")


def home(text, others):
    """Return the home page with the course map and the list of other pages in place of their marks.

    Args:
        text: docs/index.md.
        others: names of the pages for instructors and authors that exist.

    Returns:
        str.

    Raises:
        ValueError: if a mark is missing.
    """
    for mark in (CHAPTERS, PAGES_OF_CHAPTERS, OTHERS):
        if mark not in text:
            raise ValueError(f"docs/index.md must hold the line {mark!r}")
    text = text.replace(PAGES_OF_CHAPTERS, "\n".join(f"notebooks/{path.stem}" for path in editions.sources()))
    toctree = pages.toctree([name.removesuffix(".md") for name in others], "For instructors and authors")
    return text.replace(CHAPTERS, without_badges(readme.course_map())).replace(OTHERS, toctree if others else "")


def without_badges(text):
    """Return Markdown with words in place of Colab's badges, which would be loaded from another host.

    >>> without_badges("[![Open in Colab](https://a.org/b.svg)](https://c.org)")
    '[Open in Colab](https://c.org)'
    """
    return re.sub(r"!\[([^\]]*)\]\(https?://[^)]*\)", r"\1", text)


def adapted(text, address, root=ROOT):
    """Return a page of the repository's root for the site: what is not on the site is linked in the repository.

    Args:
        text: Markdown.
        address: the repository's address.
        root: folder of the repository.

    Returns:
        str.
    """

    def link(found):
        target, _, _ = found.group(2).partition("#")
        on_site = target in GOING_ON or re.fullmatch(r"notebooks/[^/]+\.ipynb|images/.*", target)
        if not target or on_site or ":" in target or not (root / target).exists():
            return found.group()
        if target == "README.md":
            return f"{found.group(1)}(index.md)"
        kind = "tree" if (root / target).is_dir() else "blob"
        return f"{found.group(1)}({address}/{kind}/main/{found.group(2)})"

    return re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", link, without_badges(text))


def write_chapters():
    """Write each stored chapter in sections; the cell that installs the library has no use on a page."""
    for path in sorted(editions.NOTEBOOKS.glob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells = [cell for cell in notebook.cells if "install" not in cell.metadata.get("tags", [])]
        for name, page in sections.pages(notebook, path.stem).items():
            write(f"notebooks/{name}.ipynb", nbformat.writes(page))


def write_library():
    """Write the map of chapters and library, and a page for each module."""
    used = pages.uses()
    write("map.md", pages.map_page(used))
    write("library/index.md", pages.api_index(used))
    for module in pages.reading_order():
        write(f"library/{module}.md", pages.api_page(module, used))


def write_experiments():
    """Write a page for each experiment of the ledger, with its curves and its record."""
    sources = {path.stem[:2]: editions.with_figures(path) for path in editions.sources()}
    records = {name: ledger.load(name) for name in ledger.names()}
    write("experiments/index.md", pages.experiments_page(records, sources))
    for name, record in records.items():
        pictures = pages.draw_results(record, SOURCE / "experiments") + pages.draw_curves(
            record, SOURCE / "experiments"
        )
        numbers = pages.drawn_in(name, sources)
        write(f"experiments/{name}.md", pages.experiment_page(record, numbers, pictures))
        write(f"records/{name}.json", json.dumps(record, indent=1, ensure_ascii=False))


# --- the build --------------------------------------------------------------------


def build(target=TARGET):
    """Gather the pages and let Sphinx build them anew.

    Args:
        target: folder of the finished site.

    Raises:
        SiteError: if Sphinx finds anything wrong.
    """
    assemble()
    for folder in (target, DOCTREES):
        shutil.rmtree(folder, ignore_errors=True)
    sphinx = [sys.executable, "-m", "sphinx", "--builder", "html", "--fail-on-warning", "--quiet", "--jobs", "2"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "agg", "OMP_NUM_THREADS": "1"}
    run = subprocess.run([*sphinx, "-d", DOCTREES, SOURCE, target], cwd=ROOT, env=environment, check=False)
    if run.returncode:
        raise SiteError("Sphinx could not build the site without warnings; they stand above")


def main(arguments=None):
    """Build the site and say where it is."""
    argparse.ArgumentParser(description=__doc__).parse_args(arguments)
    try:
        build()
    except SiteError as error:
        return f"make site: {error}"
    print(f"the site is in {TARGET.relative_to(ROOT)}; open index.html there")
    return None


if __name__ == "__main__":
    sys.exit(main())
