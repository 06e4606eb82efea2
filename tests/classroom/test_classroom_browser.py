"""Slow: a submission full of scripts, in the formgrader and in the feedback, opened in Chromium.

One student writes every payload of tests/classroom/test_pages.py into the written answer and into cells of her own,
another one hands in nothing. Two layers protect the pages, each tried alone: the filters that nbgrader_config.py names
(course "filtered", where autograded/ holds the answers as they came), and what is stored in autograded/ (course
"bare", whose configuration names none). With neither layer the payloads must run, or these tests could not fail.
"""

import contextlib
import os
import re
import shutil
import socket
import sqlite3
import subprocess
import time
import urllib.request
from types import SimpleNamespace

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell

from classroom.pages import harmless
from tests.classroom.test_classroom import ENVIRONMENT, FIVE, WRITTEN, answered, make, released, run, write
from tests.classroom.test_pages import HONEST, PAYLOADS
from tests.helpers import lab
from tools.notebooks import editions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not lab.CHROMIUM, reason="there is no Chromium"),
]

NAME = "written"
FILTERS = """
c.HTMLExporter.filters = {
    "markdown2html": "classroom.pages.markdown2html", "highlight_code": "classroom.pages.highlight_code",
}
c.HTMLExporter.preprocessors = ["classroom.pages.Names"]
"""
CODE = "x = '</pre><script>alert(1)</script>'  # <img src=x onerror=alert(1)> \u202e"
MATHJAX = editions.ROOT / "build" / "mathjax-2.7.9"  # what the pages ask cdnjs for, of the same series
# Whatever a reader could do to an answer.
TOUCH = """() => {
    const parts = [...document.querySelectorAll('.rendered_html > [style*=contain] *, .input_area *')]
    for (const part of parts.slice(0, 5000))
        for (const kind of ['mouseover', 'pointerenter', 'mouseenter', 'focus', 'click', 'toggle', 'wheel'])
            part.dispatchEvent(new MouseEvent(kind, {bubbles: true, cancelable: true}))
    return parts.length
}"""


@pytest.fixture(scope="module")
def courses(tmp_path_factory):
    """Two copies of a graded course: with and without the filters."""
    filtered = tmp_path_factory.mktemp("pages") / "filtered"
    make(filtered, "--exercises", "5.6", "--name", NAME)
    notebook = released(filtered, NAME, FIVE)
    write(filtered, "bob", NAME, FIVE, notebook)
    answered(notebook, {WRITTEN: HONEST + "\n\n".join(PAYLOADS.values())})
    notebook.cells += [new_markdown_cell(text) for text in PAYLOADS.values()] + [new_code_cell(CODE)]
    write(filtered, "mallory", NAME, FIVE, notebook)
    run(["nbgrader", "autograde", NAME], filtered)
    with contextlib.closing(sqlite3.connect(filtered / "gradebook.db")) as book, book:
        book.execute(
            "UPDATE student SET last_name = ?, first_name = 'M' WHERE id = 'mallory'", [PAYLOADS["image error"]]
        )
    config = filtered / "nbgrader_config.py"
    text = re.sub(r"(?m)^c\.HTMLExporter\.\w+ = (\{[^}]*\}|.*)$", "", config.read_text(encoding="utf8"))
    assert "classroom.pages" not in text
    config.write_text(text, encoding="utf8")
    bare = filtered.with_name("bare")
    shutil.copytree(filtered, bare)
    config.write_text(text + FILTERS, encoding="utf8")
    store(filtered, as_it_came)
    return SimpleNamespace(filtered=filtered, bare=bare)


def as_it_came(cell):
    """Undo what was done to a written answer when it was stored."""


def without_missing_pictures(cell):
    """With one of these nbconvert shows nothing at all, and no feedback is made."""
    cell.source = cell.source.replace("attachment:", "")


def store(course, treated):
    """Write the answers that came into autograded/, treated in one way or another."""
    submitted = nbformat.read(course / "submitted" / "mallory" / NAME / FIVE, as_version=4)
    path = course / "autograded" / "mallory" / NAME / FIVE
    path.chmod(0o644)
    graded = nbformat.read(path, as_version=4)
    theirs = [cell for cell in graded.cells if cell.metadata.get("classroom") in ("answer", "own")]
    mine = [c for c in submitted.cells if c.metadata.get("nbgrader", {}).get("grade_id") in (WRITTEN, None)]
    mine = mine[-len(theirs) :]
    assert len(mine) == len(PAYLOADS) + 2
    for cell, came in zip(theirs, mine, strict=True):
        cell.source = came.source
        treated(cell)
    nbformat.write(graded, path)


@contextlib.contextmanager
def formgrader(course):
    """Serve the formgrader of a course on loopback; yield its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    folder = course.parent / f"{course.name}-settings"
    names = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    path = f"{ENVIRONMENT / 'bin'}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, **{name: str(folder / name) for name in names}}
    environment.pop("PYTEST_CURRENT_TEST", None)
    folder.mkdir(exist_ok=True)
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [ENVIRONMENT / "bin" / "jupyter-server", "--no-browser", "--allow-root", "--ip=127.0.0.1",
             f"--port={port}", "--IdentityProvider.token=course"],
            env=environment, cwd=course, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        for _ in range(120):
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{port}/api?token=course", timeout=5).close()
                break
            assert process.poll() is None, (folder / "server.log").read_text()
            time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(timeout=30)


@pytest.fixture(scope="module")
def servers(courses):
    """The address of each course's formgrader."""
    with formgrader(courses.filtered) as filtered, formgrader(courses.bare) as bare:
        yield {"filtered": filtered, "bare": bare}


@pytest.fixture(scope="module")
def browser():
    """One Chromium for all."""
    with lab.chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def mathjax():
    """MathJax 2.7 as npm has it, or None where there is no npm or no network."""
    if not MATHJAX.exists():
        part = MATHJAX.with_name(f"{MATHJAX.name}.part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        try:
            subprocess.run(["npm", "pack", "mathjax@2.7.9"], cwd=part, check=True, capture_output=True, timeout=90)
        except (OSError, subprocess.SubprocessError):
            return None
        shutil.unpack_archive(part / "mathjax-2.7.9.tgz", part, filter="data")
        (part / "package").rename(MATHJAX)
        shutil.rmtree(part)
    return MATHJAX


def opened(browser, address, scripts=None):
    """Open a page, do to it whatever a reader could, and return it with what happened.

    Args:
        browser: a Chromium.
        address: of the page.
        scripts: folder of MathJax; without it cdnjs does not answer.
    """
    context = browser.new_context(viewport={"width": 1200, "height": 1600})
    happened = []

    def answer(route):
        url, _, query = route.request.url.partition("?")
        place, _, file = url.partition("/2.7.7/")
        if scripts is None or place != "https://cdnjs.cloudflare.com/ajax/libs/mathjax":
            route.abort()
        elif file == "latest.js":  # it only looks for the newest version
            script = f'<script src="{place}/2.7.7/MathJax.js?{query}"><\\/script>'
            route.fulfill(body=f"document.write('{script}')", content_type="text/javascript")
        else:
            route.fulfill(path=scripts / file)

    def asked(request):
        here = (address.partition("/formgrader")[0], "data:", "https://cdnjs.cloudflare.com/ajax/libs/")
        if not request.url.startswith(here):
            happened.append(f"asked for {request.url}")

    context.route(re.compile(r"^https?://(?!127\.0\.0\.1)"), answer)
    page = context.new_page()
    page.on("dialog", lambda dialog: (happened.append(f"a dialog: {dialog.message}"), dialog.dismiss()))
    page.on("request", asked)
    page.on("popup", lambda popup: happened.append(f"a window: {popup.url}"))
    page.on("framenavigated", lambda frame: None if frame.url.startswith(address.partition("?")[0]) else
            happened.append(f"went to {frame.url}"))  # fmt: skip
    if address.startswith("http"):  # as who starts the server is sent to it
        page.goto(f"{address.partition('/formgrader')[0]}/login?token=course&next=/api")
        happened.clear()
    page.goto(address, wait_until="load")
    page.wait_for_timeout(500)
    return page, happened


def submission(course, address):
    """The address of mallory's page in the formgrader."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as book:
        ((key,),) = book.execute(
            "SELECT n.id FROM submitted_notebook n JOIN submitted_assignment a ON n.assignment_id = a.id "
            "WHERE a.student_id = 'mallory'"
        )
    return f"{address}/formgrader/submissions/{key}/"


def feedback(course):
    """Make the feedback pages; return the address of mallory's."""
    run(["nbgrader", "generate_feedback", NAME, "--student=mallory", "--force"], course)
    return (course / "feedback" / "mallory" / NAME / FIVE).with_suffix(".html").as_uri()


def assert_all_is_text(page, happened):
    """Nothing ran when the page was opened, nor does when it is touched; the answer can be read."""
    assert page.evaluate(TOUCH) > 200
    page.wait_for_timeout(500)
    assert happened == []
    text = page.inner_text("body")
    assert "a < b, so List<int> and List<int> stay, as do <eos> and AT&T; 5 < 6." in text
    assert "<script>alert(1)</script>" in text
    assert "{{ 7 * 191 }}" in text
    assert page.locator("td", has_text="x_1 < y_2").count()
    answer = page.locator(".nbgrader_cell .rendered_html").first
    assert answer.locator("strong", has_text="bias 1").count() == 1
    assert answer.locator("a, form, input, button, script, style, iframe, svg, [id], [class^=nb]").count() == 0


def photograph(page, name):
    page.screenshot(path=lab.SCREENSHOTS / f"classroom_{name}.png", full_page=False)


def test_the_formgrader_shows_an_answer_and_marks_it(courses, servers, browser):
    page, happened = opened(browser, submission(courses.filtered, servers["filtered"]))
    assert_all_is_text(page, happened)
    with page.expect_response(lambda response: "/api/grade/" in response.url and response.request.method == "PUT"):
        page.fill(f"#{WRITTEN}", "2")
        page.press(f"#{WRITTEN}", "Tab")
    with page.expect_response(lambda response: "/api/comment/" in response.url and response.request.method == "PUT"):
        page.fill(f"#{WRITTEN}-comment", "Well seen: a < b.")
        page.locator(f"#{WRITTEN}-comment").blur()
    assert_boxes_are_free(page)
    page.locator(f"#{WRITTEN}").scroll_into_view_if_needed()
    photograph(page, "formgrader")
    with contextlib.closing(sqlite3.connect(courses.filtered / "gradebook.db")) as book:
        assert (2.0,) in book.execute("SELECT manual_score FROM grade").fetchall()
        assert ("Well seen: a < b.",) in book.execute("SELECT manual_comment FROM comment").fetchall()
    page.context.close()


def test_the_list_of_students_shows_names(servers, browser):
    for place in ("manage_students", f"gradebook/{NAME}/{FIVE.removesuffix('.ipynb')}", f"manage_submissions/{NAME}"):
        page, happened = opened(browser, f"{servers['filtered']}/formgrader/{place}")
        page.wait_for_selector("tbody tr:has-text('mallory'), tbody tr:has-text('<img')", state="attached")
        assert happened == []
        page.context.close()


def test_the_feedback_shows_an_answer(courses, browser):
    page, happened = opened(browser, feedback(courses.filtered))
    assert_all_is_text(page, happened)
    photograph(page, "feedback")
    page.context.close()


def test_without_either_layer_a_payload_runs(courses, servers, browser):
    store(courses.bare, without_missing_pictures)
    for address in (submission(courses.bare, servers["bare"]), feedback(courses.bare)):
        page, happened = opened(browser, address)
        assert "a dialog: 1" in happened
        assert any(what.startswith("asked for http://evil.invalid/") for what in happened)
        page.context.close()


def with_a_plain_name(course):
    """Give the attacker an ordinary name: names are for the filters."""
    with contextlib.closing(sqlite3.connect(course / "gradebook.db")) as book, book:
        book.execute("UPDATE student SET last_name = 'M' WHERE id = 'mallory'")


def test_what_is_stored_needs_no_filter(courses, servers, browser):
    with_a_plain_name(courses.bare)
    store(courses.bare, harmless)
    for address in (submission(courses.bare, servers["bare"]), feedback(courses.bare)):
        page, happened = opened(browser, address)
        assert_all_is_text(page, happened)
        page.context.close()


def test_formulas_are_set_and_do_nothing(courses, servers, browser, mathjax):
    if mathjax is None:
        pytest.skip("npm cannot fetch mathjax@2.7.9 here; tests/classroom/test_pages.py looks at the text of formulas")
    with_a_plain_name(courses.bare)
    links = {}
    for name, treated in {"raw": only_formulas, "stored": lambda cell: (only_formulas(cell), harmless(cell))}.items():
        store(courses.bare, treated)
        page, happened = opened(browser, submission(courses.bare, servers["bare"]), mathjax)
        page.wait_for_function("() => window.MathJax?.loaded === true", timeout=60_000)  # the formgrader's, at the end
        assert page.locator(".nbgrader_cell .mjx-chtml").count() > 5
        links[name] = page.locator(".mjx-chtml [href], a:has(.mjx-chtml), a .mjx-chtml").count()
        if name == "stored":
            assert page.evaluate(TOUCH) > 100
            page.wait_for_timeout(500)
            assert happened == []
            assert_boxes_are_free(page)
            page.evaluate("() => document.querySelector('.nbgrader_cell').scrollIntoView()")
            photograph(page, "formulas")
        page.context.close()
    assert links["raw"] > 0 == links["stored"]


def only_formulas(cell):
    """Leave what would disturb the formulas out of a page."""
    if cell.metadata.get("classroom") == "answer":
        cell.source = HONEST + "\n\n".join(text for name, text in PAYLOADS.items() if name.startswith("formula, "))
    else:
        cell.source = ""


def assert_boxes_are_free(page):
    """Nothing lies over the boxes for points and comments."""
    for box in (f"#{WRITTEN}", f"#{WRITTEN}-comment"):
        page.locator(box).scroll_into_view_if_needed()
        assert page.evaluate(
            "name => { const e = document.querySelector(name), b = e.getBoundingClientRect();"
            " return document.elementFromPoint(b.x + b.width / 2, b.y + b.height / 2) === e }",
            box,
        )
