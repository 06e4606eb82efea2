"""The link checker: finds each kind of broken link, and leaves good ones alone."""

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import links


@pytest.fixture
def project(tmp_path):
    """A small project: a README, a page with headings, a notebook, a picture."""
    (tmp_path / "notebooks").mkdir()
    (tmp_path / "picture.svg").write_text("<svg/>")
    (tmp_path / "page.md").write_text('# A page\n\n## What is new?\n\n## Twice\n\n## Twice\n\n<a id="here"></a>\n')
    output = new_output("display_data", data={"text/markdown": "[good](02.ipynb)", "text/plain": ""})
    cells = [new_markdown_cell("# 02 · A chapter\n\n## What is new?"), new_code_cell("1", outputs=[output])]
    nbformat.write(new_notebook(cells=cells), tmp_path / "notebooks" / "02.ipynb")
    return tmp_path


def problems(project, text, name="README.md"):
    """What the checker says of a Markdown file, or of a notebook, with this text."""
    path = project / name
    if path.suffix == ".ipynb":
        nbformat.write(new_notebook(cells=[new_markdown_cell(text)]), path)
    else:
        path.write_text(text, encoding="utf8")
    return links.source_problems(path, project)


@pytest.mark.parametrize(
    "link",
    ["page.md", "page.md#what-is-new", "page.md#twice-1", "page.md#here", "notebooks/02.ipynb", "notebooks/",
     "notebooks/02.ipynb#What-is-new?", "picture.svg", "https://arxiv.org/abs/1706.03762", "mailto:a@b.org"],
)  # fmt: skip
def test_good_links_pass(project, link):
    """Fails if the checker complains of a link that works."""
    assert problems(project, f"[text]({link})") == []


@pytest.mark.parametrize(
    ("link", "problem"),
    [
        ("gone.md", "leads to a file that does not exist"),
        ("page.md#gone", "leads to an anchor that does not exist"),
        ("page.md#What-is-new?", "leads to an anchor that does not exist"),
        ("notebooks/02.ipynb#what-is-new", "leads to an anchor that does not exist"),
        ("#gone", "leads to an anchor that does not exist"),
        ("/page.md", "begins with a slash"),
        ("../outside.md", "leads out of the project"),
        ("https:/arxiv.org", "has no host"),
        ("ftp://a.org/b", "has the scheme 'ftp'"),
    ],
)
def test_a_broken_link_is_named(project, link, problem):
    """Fails if a broken link passes, or the line does not say file, link and what is wrong."""
    (line,) = problems(project, f"# Title\n\n[text]({link})")
    assert line.startswith(f"README.md: {link!r} {problem}")


def test_pictures_and_html_are_links_too(project):
    """Fails if only Markdown's own links are read."""
    found = problems(project, '![alt](a.png)\n\n<img src="b.png" alt="b">\n\n<a href="c.md">c</a>\n')
    assert sorted(line.split("'")[1] for line in found) == ["a.png", "b.png", "c.md"]


@pytest.mark.parametrize("text", ["$a[t](b)$", "$$ x[1](y) $$", "`[a](b)`", "```\n[a](b)\n```", r"\[a](b\)"])
def test_formulas_and_code_hold_no_links(project, text):
    """Fails if what only looks like a link, in a formula or in code, is taken for one."""
    assert problems(project, text) == []


def test_a_notebook_loads_nothing_from_another_host(project):
    """Fails if a picture from another host passes in a notebook, or a link to one does not."""
    (line,) = problems(project, "![badge](https://a.org/b.svg)", "notebooks/01.ipynb")
    assert line == "notebooks/01.ipynb: 'https://a.org/b.svg' is loaded from another host"
    assert problems(project, "[badge](https://a.org/b.svg)", "notebooks/01.ipynb") == []
    assert problems(project, "![badge](https://a.org/b.svg)") == []


def test_outputs_of_a_notebook_are_read(project):
    """Fails if a broken link in an output in Markdown or HTML passes."""
    kinds = {"text/markdown": "[a](gone.md)", "text/html": '<img src="https://a.org/b.png">'}
    outputs = [new_output("display_data", data={kind: text, "text/plain": ""}) for kind, text in kinds.items()]
    nbformat.write(new_notebook(cells=[new_code_cell("1", outputs=outputs)]), project / "notebooks" / "03.ipynb")
    found = links.source_problems(project / "notebooks" / "03.ipynb", project)
    assert [line.split(": ", 1)[1] for line in found] == [
        "'gone.md' leads to a file that does not exist",
        "'https://a.org/b.png' is loaded from another host",
    ]


@pytest.fixture
def site(tmp_path):
    """A site of two pages and a style sheet, all in order."""
    (tmp_path / "index.html").write_text(
        '<link rel="stylesheet" href="a.css?v=1"><link rel="next" href="b.html"><script src="a.js"></script>'
        '<a href="b.html#part">b</a><a href="https://a.org/">a</a><a href="#">top</a><img src="data:image/png,A">'
    )
    (tmp_path / "b.html").write_text('<h2 id="part">Part</h2><a href="./">home</a>')
    (tmp_path / "a.css").write_text("@font-face { src: url('f.woff2') }")
    for name in ("a.js", "f.woff2"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_a_good_site_passes(site):
    """Fails if the checker complains of what works."""
    assert links.site_problems(site) == []


@pytest.mark.parametrize(
    ("html", "problem"),
    [
        ('<script src="https://a.org/x.js"></script>', "'https://a.org/x.js' is loaded from another host"),
        ('<link rel="stylesheet" href="//a.org/x.css">', "'//a.org/x.css' is loaded from another host"),
        ('<iframe src="https://a.org/x"></iframe>', "'https://a.org/x' is loaded from another host"),
        ("<style>a { background: url(https://a.org/x.png) }</style>", "is loaded from another host"),
        ('<p style="background: url(https://a.org/x.png)">', "is loaded from another host"),
        ('<img srcset="https://a.org/x.png 2x" src="a.js">', "is loaded from another host"),
        ('<script src="gone.js"></script>', "'gone.js' leads to a file that does not exist"),
        ('<a href="b.html#gone">', "'b.html#gone' leads to an anchor that does not exist"),
        ('<a href="../../x.html">', "leads out of the project"),
    ],
)
def test_a_fault_of_a_page_is_named(site, html, problem):
    """Fails if a page may load from elsewhere or link to nothing."""
    (site / "c.html").write_text(html)
    (line,) = links.site_problems(site)
    assert line.startswith("c.html: ")
    assert problem in line


@pytest.mark.parametrize("address", ["https://a.org/f.woff2", "gone.woff2"])
def test_a_fault_of_a_style_sheet_is_named(site, address):
    """Fails if a style sheet may load a font from another host, or one that is missing."""
    (site / "a.css").write_text(f"@font-face {{ src: url({address}) }}")
    (line,) = links.site_problems(site)
    assert line.startswith(f"a.css: '{address}' ")


def test_without_a_site_the_way_out_is_named(tmp_path):
    """Fails if an empty folder passes as a site without problems."""
    with pytest.raises(ValueError, match="build it with make site"):
        links.site_problems(tmp_path)


def test_the_projects_own_links_work():
    """Fails if a link in a Markdown file or a notebook of the project leads nowhere."""
    assert [problem for path in links.source_files() for problem in links.source_problems(path)] == []
