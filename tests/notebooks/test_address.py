"""`make address` on a copy of two files: what must follow follows, and no output is lost."""

import shutil

import nbformat
import pytest

from tools import address
from tools.notebooks import build, editions

URL = "https://github.com/ann/course"


@pytest.fixture
def copy(tmp_path, monkeypatch):
    """The project's address, README and one stored chapter, in a folder of their own."""
    (tmp_path / "notebooks" / "source").mkdir(parents=True)
    source = editions.sources()[0]
    for path in (editions.ROOT / "pyproject.toml", editions.ROOT / "README.md"):
        shutil.copy(path, tmp_path)
    shutil.copy(source, tmp_path / "notebooks" / "source")
    shutil.copy(editions.NOTEBOOKS / f"{source.stem}.ipynb", tmp_path / "notebooks")
    monkeypatch.setattr(editions, "ROOT", tmp_path)
    monkeypatch.setattr(editions, "SOURCES", tmp_path / "notebooks" / "source")
    monkeypatch.setattr(editions, "NOTEBOOKS", tmp_path / "notebooks")
    stored = tmp_path / "notebooks" / f"{source.stem}.ipynb"
    notebook = nbformat.read(stored, as_version=4)
    notebook.metadata.course["fingerprint"] = build.fingerprint(editions.sources()[0])  # as if just executed
    nbformat.write(notebook, stored)
    return stored


def test_the_address_is_set_everywhere_and_nothing_is_executed(copy, monkeypatch):
    """Fails if a link keeps the old address, an output changes, or the notebook would be executed again."""
    monkeypatch.setattr(build, "execute", lambda notebook: pytest.fail("executed"))
    before, old = nbformat.read(copy, as_version=4), editions.address()
    address.set_address(URL + ".git")
    after = nbformat.read(copy, as_version=4)
    assert editions.address() == URL
    assert "github/ann/course/blob/main/notebooks/" in after.cells[0].source
    assert f"git+{URL}" in after.cells[1].source
    assert old.removeprefix("https://github.com/") not in str(after)
    readme = (editions.ROOT / "README.md").read_text("utf8")
    assert "github/ann/course/blob" in readme
    assert "](https://ann.github.io/course/)" in readme
    assert [c.get("outputs") for c in before.cells] == [c.get("outputs") for c in after.cells]
    assert before.cells[2:] == after.cells[2:]
    assert address.is_current(editions.sources()[0])


@pytest.mark.parametrize(
    "url", ["", "https://gitlab.com/ann/course", "github.com/ann/course", "https://github.com/ann"]
)
def test_an_address_that_colab_cannot_open_is_refused(copy, url):
    with pytest.raises(ValueError, match="wanted an address such as"):
        address.set_address(url)
