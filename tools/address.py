"""Set the repository's address everywhere without executing a notebook: `make address URL=https://github.com/ann/course`.

It stands in pyproject.toml; Colab's links and the cells that install the library are made from it.
"""

import re
import sys

import nbformat

from tools import readme
from tools.notebooks import build, editions


def set_address(url):
    """Write the address into pyproject.toml, and what is made from it into the stored notebooks and the README."""
    new = re.fullmatch(r"(https://github\.com/[\w.-]+/[\w.-]+?)(?:\.git)?/?", url)
    if new is None:
        raise ValueError(
            f"wanted an address such as https://github.com/ann/course, for Colab opens no other, got {url!r}"
        )
    old, current = editions.address(), {path for path in editions.sources() if is_current(path)}
    pyproject = editions.ROOT / "pyproject.toml"
    pyproject.write_text(pyproject.read_text("utf8").replace(f'"{old}"', f'"{new[1]}"'), "utf8")
    for path in editions.sources():
        rewrite(path, path in current)
    readme.main()


def is_current(path):
    """Whether a stored notebook was executed with all that it depends on as it is now."""
    stored = nbformat.read(editions.NOTEBOOKS / f"{path.stem}.ipynb", as_version=4)
    return stored.metadata.course.get("fingerprint") == build.fingerprint(path)


def rewrite(path, current):
    """Give a stored notebook the cells that hold the address; outputs stay."""
    target = editions.NOTEBOOKS / f"{path.stem}.ipynb"
    stored, fresh = nbformat.read(target, as_version=4), editions.student(editions.chapter(path))
    for old, new in list(zip(stored.cells, fresh.cells, strict=False))[:2]:  # the title and the install cell
        old.source, old.id = new.source, new.id
    if current:
        stored.metadata.course["fingerprint"] = build.fingerprint(path)
    build.write(stored, target)


if __name__ == "__main__":
    try:
        set_address(*sys.argv[1:2] or [""])
    except ValueError as error:
        sys.exit(f"make address: {error}")
