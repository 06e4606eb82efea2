"""Check every link inside the project: `python -m tools.links`, with `--site` also in the built site.

Sources: the Markdown files, and the text and the outputs of the notebooks. The target file must
exist, and an anchor must be one that the reader's program makes: GitHub's for Markdown files,
JupyterLab's for notebooks. A notebook loads no picture from another host. The site: every link
and anchor of every page, and nothing (script, style, picture, font) is loaded from another host.
Links to other hosts are read for their form only; nothing is fetched.
"""

import argparse
import re
import sys
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import nbformat
from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin

from tools.notebooks.editions import ROOT

SITE = ROOT / "build" / "site"
NOT_OURS = {
    "docs",
    "build",
    "dist",
    ".venv",
    ".venv-classroom",
    "grading",
    ".git",
    ".pytest_cache",
    ".ruff_cache",
    ".ipynb_checkpoints",
    "node_modules",
}
LOADED = {"script", "img", "iframe", "source", "video", "audio", "embed", "track", "input"}
LOADED_RELATIONS = {"stylesheet", "icon", "shortcut", "preload", "prefetch", "modulepreload", "manifest", "preconnect"}
CSS_URL = re.compile(r"""url\(\s*(['"]?)(.*?)\1\s*\)|@import\s+(['"])(.*?)\3""")


# --- pages ------------------------------------------------------------------------


class Page(HTMLParser):
    """What a piece of HTML links to, what it loads, and the anchors that it has.

    Args:
        text: HTML.
    """

    def __init__(self, text=""):
        super().__init__()
        self.links, self.loads, self.anchors, self.headings = [], [], set(), []
        self._style, self._heading = False, None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        """Note what a tag links to and loads."""
        values = {key: value or "" for key, value in attributes}
        self.anchors |= {values[key] for key in ("id", "name") if values.get(key)}
        self.loads += [found for found in css_urls(values.get("style", ""))]
        relations = set(values.get("rel", "").lower().split())
        if tag in LOADED or (tag == "link" and relations & LOADED_RELATIONS):
            self.loads += [values[key] for key in ("src", "href", "poster") if values.get(key)]
            self.loads += [part.split()[0] for part in values.get("srcset", "").split(",") if part.strip()]
        elif tag in ("a", "area", "link") and values.get("href"):
            self.links.append(values["href"])
        elif tag == "object" and values.get("data"):
            self.loads.append(values["data"])
        self._style = tag == "style"
        if re.fullmatch("h[1-6]", tag):
            self._heading = ""

    def handle_endtag(self, tag):
        """Note the end of a style or a heading."""
        self._style = False
        if re.fullmatch("h[1-6]", tag) and self._heading is not None:
            self.headings.append(self._heading)
            self._heading = None

    def handle_data(self, data):
        """Read styles and headings."""
        if self._style:
            self.loads += css_urls(data)
        if self._heading is not None:
            self._heading += data


def css_urls(css):
    """Return what a style loads.

    >>> css_urls("a { background: url('a.png') } @import 'b.css';")
    ['a.png', 'b.css']
    """
    return [quoted or imported for _, quoted, _, imported in CSS_URL.findall(css)]


def from_markdown(text):
    """Return Markdown as a `Page`: formulas are no links, and code is none."""
    parser = MarkdownIt("commonmark").enable("table").use(dollarmath_plugin, double_inline=True).use(amsmath_plugin)
    return Page(parser.render(text))


def slug(heading):
    """Return the anchor that GitHub, and the site, make of a heading.

    >>> slug("1 · What is new? `loop` and more")
    '1--what-is-new-loop-and-more'
    """
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def lab_anchor(heading):
    """Return the anchor that JupyterLab makes of a heading.

    >>> lab_anchor("What is new?")
    'What-is-new?'
    """
    return heading.strip().replace(" ", "-")


def numbered(anchors):
    """Return anchors as GitHub makes them unique: the second `x` is `x-1`.

    >>> sorted(numbered(["x", "y", "x"]))
    ['x', 'x-1', 'y']
    """
    seen, result = {}, set()
    for anchor in anchors:
        count = seen[anchor] = seen.get(anchor, -1) + 1
        result.add(f"{anchor}-{count}" if count else anchor)
    return result


# --- one link ---------------------------------------------------------------------


def is_elsewhere(link):
    """Say whether a link leads to another host.

    >>> is_elsewhere("//a.org/b"), is_elsewhere("a/b.md"), is_elsewhere("mailto:a@b.org")
    (True, False, True)
    """
    parts = urlsplit(link)
    return bool(parts.scheme or parts.netloc)


def malformed(link):
    """Return what is wrong with the form of a link to another host, or None.

    >>> malformed("https://arxiv.org/abs/1706.03762"), malformed("https:/arxiv.org")
    (None, 'has no host')
    """
    parts = urlsplit(link)
    if parts.scheme in ("data", "mailto", "javascript"):
        return None
    if parts.scheme not in ("http", "https"):
        return f"has the scheme {parts.scheme!r}; wanted https"
    if "." not in (parts.hostname or ""):
        return "has no host"
    return "holds a space" if re.search(r"\s", link) else None


def broken(link, path, anchors, root):
    """Return what is wrong with a link inside the project, or None.

    Args:
        link: the address as it is written.
        path: the file that it stands in.
        anchors: function from a file to the set of its anchors, or None for a file without any.
        root: folder that nothing may lead out of.

    Returns:
        str or None.
    """
    if is_elsewhere(link):
        return malformed(link)
    target, _, anchor = link.partition("#")
    if target.startswith("/"):
        return "begins with a slash: it leads elsewhere on each machine"
    file = (path.parent / unquote(target.partition("?")[0])).resolve() if target else path
    if not file.is_relative_to(root):
        return "leads out of the project"
    if not file.exists():
        return "leads to a file that does not exist"
    known = anchors(file) if anchor else None
    if known is not None and unquote(anchor) not in known:
        return "leads to an anchor that does not exist"
    return None


# --- the sources ------------------------------------------------------------------


def source_files(root=ROOT):
    """Return the Markdown files and notebooks of the project, sorted."""
    files = [*root.rglob("*.md"), *(root / "notebooks").glob("*.ipynb")]
    return sorted(path for path in files if not NOT_OURS & set(path.relative_to(root).parts))


def read_source(path):
    """Return a Markdown file or a notebook, text and outputs, as one `Page`."""
    if path.suffix == ".md":
        return from_markdown(path.read_text(encoding="utf8"))
    whole = Page()
    for page in _pages_of(nbformat.read(path, as_version=4)):
        whole.links += page.links
        whole.loads += page.loads
        whole.anchors |= page.anchors
        whole.headings += page.headings
    return whole


def _pages_of(notebook):
    """Return each Markdown cell, and each output in Markdown or HTML, as a `Page`."""
    pages = [from_markdown(cell.source) for cell in notebook.cells if cell.cell_type == "markdown"]
    bundles = [output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", [])]
    pages += [from_markdown(data["text/markdown"]) for data in bundles if "text/markdown" in data]
    return pages + [Page(data["text/html"]) for data in bundles if "text/html" in data]


def source_anchors(path):
    """Return the anchors of a Markdown file or a notebook; None for other files."""
    if path.suffix not in (".md", ".ipynb"):
        return None
    page = read_source(path)
    made = numbered(map(slug, page.headings)) if path.suffix == ".md" else set(map(lab_anchor, page.headings))
    return made | page.anchors


def source_problems(path, root=ROOT):
    """Return what is wrong with the links of one source file, as lines."""
    page = read_source(path)
    found = [(link, broken(link, path, source_anchors, root)) for link in page.links + page.loads]
    if path.suffix == ".ipynb":
        found += [(link, "is loaded from another host") for link in page.loads if is_loaded_elsewhere(link)]
    return [f"{path.relative_to(root)}: {link!r} {problem}" for link, problem in found if problem]


def is_loaded_elsewhere(link):
    """Say whether a thing that a page loads comes from another host."""
    return is_elsewhere(link) and urlsplit(link).scheme not in ("data", "about", "blob")


# --- the site ---------------------------------------------------------------------


def site_problems(site=SITE):
    """Return what is wrong with the links of the built site, as lines.

    Args:
        site: folder of the site.

    Returns:
        list of str.

    Raises:
        ValueError: if there is no site.
    """
    if not (site / "index.html").exists():
        raise ValueError(f"there is no site in {site}; build it with make site")
    files = [path for path in sorted(site.rglob("*.html")) if "_static" not in path.parts]  # there: a theme's templates
    pages = {path: Page(path.read_text(encoding="utf8")) for path in files}

    def anchors(file):
        return pages[file].anchors | {"", "top"} if file in pages else None

    problems = []
    for path, page in pages.items():
        found = [(link, broken(link, path, anchors, site)) for link in page.links]
        found += [(link, load_problem(link, path, site)) for link in page.loads]
        problems += [f"{path.relative_to(site)}: {link!r} {problem}" for link, problem in found if problem]
    return problems + style_problems(site)


def load_problem(link, path, site):
    """Return what is wrong with a thing that a page or a style sheet of the site loads, or None."""
    return "is loaded from another host" if is_loaded_elsewhere(link) else broken(link, path, lambda _: None, site)


def style_problems(site):
    """Return what the site's style sheets load that is missing or from another host."""
    problems = []
    for path in sorted(site.rglob("*.css")):
        for link in css_urls(path.read_text(encoding="utf8")):
            if problem := load_problem(link, path, site):
                problems.append(f"{path.relative_to(site)}: {link!r} {problem}")
    return problems


def main(arguments=None):
    """Check the links and list what is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--site", action="store_true", help="also the site in build/site")
    options = parser.parse_args(arguments)
    files = source_files()
    problems = [problem for path in files for problem in source_problems(path)]
    if options.site:
        try:
            problems += site_problems()
        except ValueError as error:
            parser.error(str(error))
    for problem in problems:
        print(problem)
    print(f"{len(files)} files{' and the site' if options.site else ''}: {len(problems)} problems")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
