r"""What an instructor's browser shows of a submission: its text, formulas and pictures, and nothing that acts.

nbgrader puts answers into the pages of its formgrader, which can set marks, read files and open a terminal, and into
the feedback. Two layers keep a submission from acting there:

* `harmless` turns a written answer into safe HTML before it is stored in autograded/; this holds whatever the
  configuration, and in JupyterLab.
* nbgrader_config.py names what works when a page is made: the filters `markdown2html`, which does the same to
  everything written in Markdown, and `highlight_code`, and the preprocessor `Names`.

HTML that a student typed is shown as it was typed. Of links the address is shown, and cannot be clicked: the pages of
nbgrader repeat parts of their own address as HTML, so that a link to them could still run a script there.
"""

import re
from html import escape, unescape
from urllib.parse import unquote

import bleach
from bleach.css_sanitizer import CSSSanitizer
from mistune import import_plugin
from nbconvert.filters import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from nbconvert.preprocessors import Preprocessor

LONGEST = 20_000  # characters of a written answer that are shown; the longest text cell of the course has 4,000
LONGEST_CODE = 50_000
LARGEST = 5_000_000  # characters in base64 of all the pictures of an answer
FORMULAS, ENTRIES = 500, 200  # and entries of tables in them; with more, MathJax would take minutes: shown as typed

# Nothing inside paints outside, or makes the page endless.
OPEN, CLOSE = '<div style="contain: content; overflow: auto; max-height: 10000px">', "</div>"
KEPT = "\n$\\"  # what Markdown would read in HTML; the browser gets these characters by their numbers
TAGS = {
    *("p", "br", "hr", "h1", "h2", "h3", "h4", "h5", "h6", "em", "strong", "del", "code", "pre", "blockquote", "img"),
    *("ul", "ol", "li", "dl", "dt", "dd", "table", "thead", "tbody", "tr", "th", "td"),
}
ALIGNED = CSSSanitizer(allowed_css_properties=["text-align"])
PICTURE = re.compile(r"data:image/(?:png|jpeg|gif|webp);base64,[A-Za-z0-9+/]+={0,2}")
ENTITY = re.compile(r"&#?\w{1,32};?")
SURROGATE = re.compile("[\ud800-\udfff]")
# Control characters, bidirectional overrides, surrogates, invisible tags, and code points that are no characters.
UNSEEN = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u202a-\u202e\u2060-\u206f\ud800-\udfff\ufeff\ufff9-\ufffb\ufffe\uffff"
    "\U000e0000-\U000e0fff]"
)
# Commands of MathJax that set links, attributes or styles, or define commands. A pair `\\` only ends a line.
ACTIVE = re.compile(
    r"(\\\\)|\\(?=(?:href|url|require|class|style|cssId|html[A-Z]\w*|data|unicode|mmlToken|bbox|enclose|toggle|texttip"
    r"|mathtip|[egx]?def|global|(?:future)?let|(?:re)?newcommand|providecommand|(?:re)?newenvironment|Newextarrow"
    r"|Declare\w+|definecolor|begingroup|endgroup|includegraphics)(?![A-Za-z]))"
)


def visible(text):
    r"""Return a text in which characters that hide, reverse or break text are replaced by their numbers.

    >>> visible("a\x1b[31m b\u202e c\ud800")
    'a[U+001B][31m b[U+202E] c[U+D800]'
    """
    return UNSEEN.sub(_number, re.sub("\r\n?|\u2028|\u2029", "\n", text))


def _number(found):
    return f"[U+{ord(found[0]):04X}]"


def cut(text, longest):
    """Return a text, or the beginning of one that is longer and a line that says so."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]}\n\n[cut: the first {longest:,} of {len(text):,} characters; submitted/ has all]\n"


class Plain(IPythonRenderer):
    """Markdown without links, HTML, anchors, and pictures from elsewhere.

    Args:
        pictures: {name: a data: address}; each is shown once.
    """

    def __init__(self, pictures):
        super().__init__(escape=True, exclude_anchor_links=True)
        self.pictures = pictures

    def text(self, text):
        """`&lt;` stands for `<`, as everywhere in Markdown."""
        return escape(unescape(text))

    def link(self, text, url, title=None):
        """The text and the address."""
        return text if text == escape(url) else f"{text} ({escape(url)})"

    def image(self, text, url, title=None):
        """A picture that came with the notebook."""
        picture = self.pictures.pop(unquote(url), None)
        if picture is None:
            return f"[picture, not shown: {text} {escape(cut(url, 200))}]"
        return f'<img src="{picture}" alt="{escape(unescape(text))}">'

    def block_code(self, code, info=None):
        """No colours: a student could choose a lexer that never ends."""
        return f"<pre><code>{escape(code)}</code></pre>\n"


def rendered(text, attachments):
    """Return HTML of a student's Markdown."""
    pictures = {f"attachment:{name}": address for name, address in _attached(attachments)}
    room = LARGEST - sum(map(len, pictures.values()))

    def keep(found):  # Colab writes pictures into the text
        nonlocal room
        room -= len(found[0])
        if room < 0:
            return "too-large"
        pictures[f"picture:{len(pictures)}"] = found[0]
        return f"picture:{len(pictures) - 1}"

    text = visible(cut(PICTURE.sub(keep, text), LONGEST))
    formulas, entries = re.findall(r"\$|\\[(\[]|\\begin", text), re.findall(r"&|\\\\|\\cr", text)
    if len(formulas) > 2 * FORMULAS or len(entries) > ENTRIES:
        return f"<pre>{escape(text)}</pre>"
    try:
        plugins = [import_plugin(name) for name in ("strikethrough", "table", "def_list")]
        return MarkdownWithMath(renderer=Plain(pictures), plugins=plugins).render(text)
    except Exception:  # whatever a text does to the parser, it can be read
        return f"<pre>{escape(text)}</pre>"


def _attached(attachments):
    """Yield the names and data: addresses of attached pictures, as long as there is room."""
    room = LARGEST
    for name, kinds in attachments.items() if isinstance(attachments, dict) else ():
        for kind, data in kinds.items() if isinstance(kinds, dict) else ():
            address = f"data:{kind};base64,{''.join(str(data).split())}"
            if PICTURE.fullmatch(address) and len(address) <= room:
                room -= len(address)
                yield name, address
                break


def clean(html):
    """Return HTML in which nothing is left but harmless tags; on one line, so that Markdown takes it as it is."""
    for character in KEPT:
        html = html.replace(f"&#{ord(character)};", character)
    html = bleach.clean(
        html,
        tags=TAGS,
        attributes={"td": ["style"], "th": ["style"], "ol": ["start"], "img": _of_picture},
        protocols=["data"],
        css_sanitizer=ALIGNED,
    )
    html = ENTITY.sub(lambda found: escape(unescape(found[0])), html)  # so that nothing hides in an entity
    html = ACTIVE.sub(lambda found: found[1] or "∖", visible(html))
    for character in KEPT:
        html = html.replace(character, f"&#{ord(character)};")
    return html


def _of_picture(tag, name, value):
    return name == "alt" or (name == "src" and PICTURE.fullmatch(value) is not None)


def harmless(cell):
    """Make a cell of a student harmless before it is stored.

    A written answer becomes HTML that looks as its Markdown did; its attached pictures become part of it. Code stays
    as it is, except for halves of surrogate pairs, which no file can hold.

    Args:
        cell: of a notebook; changed in place.
    """
    if cell.cell_type == "code":
        cell.source = SURROGATE.sub(_number, cell.source)
    else:
        cell.source = f"{OPEN}{clean(rendered(cell.source, cell.pop('attachments', {})))}{CLOSE}"


def markdown2html(source):
    """Filter of the pages: HTML of Markdown, or of what `harmless` has made of it."""
    inside = source[len(OPEN) : -len(CLOSE)] if source.startswith(OPEN) else rendered(source, {})
    return f"{OPEN}{clean(inside)}{CLOSE}"


def highlight_code(source, language=None, metadata=None):
    """Filter of the pages: code in colours, always as Python, with whatever would be unseen."""
    return Highlight2HTML(pygments_lexer="ipython3")(visible(cut(source, LONGEST_CODE)))


class Names(Preprocessor):
    """Escapes what else of a submission the formgrader's template puts into the page."""

    def preprocess(self, nb, resources):
        """Return the notebook as it is, and the resources with escaped names."""
        for name in ("student", "first_name", "last_name", "notebook_path"):
            if isinstance(resources.get(name), str):
                resources[name] = escape(visible(resources[name]))
        return nb, resources
