"""Slow: the whole site is built, its links are checked, and a real browser reads it (make test-slow).

The site is built from the stored outputs as `make site` does, and served on loopback. Home,
three chapters, an API page, a page of the ledger and the search are opened in a light and a dark
theme, wide, at 700 px and as on a telephone. Screenshots are left in build/screenshots.
"""

import functools
import http.server
import os
import shutil
import threading

import pytest
from filelock import FileLock

from docs import build
from tools import links
from tools.notebooks.editions import ROOT

pytestmark = pytest.mark.slow

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOTS = ROOT / "build" / "screenshots"
PAGES = [
    "index.html",
    "notebooks/05_lstm_and_gru.html",
    "notebooks/07_attention.html",
    "notebooks/05_lstm_and_gru-summary.html",
    "library/bptt.html",
    "experiments/training-grid.html",
    "experiments/bench.html",
]
WITH_FORMULAS = {"bptt"}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The site, built anew, once for all processes of a run; fails with what is missing if it cannot be built."""
    run = tmp_path_factory.getbasetemp()
    run = run.parent if "PYTEST_XDIST_WORKER" in os.environ else run
    with FileLock(run / "site.lock"):
        if not (run / "site.built").exists():
            build.build()
            (run / "site.built").touch()
    return build.TARGET


@pytest.fixture(scope="module")
def address(built):
    """The site on a server on loopback."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(built))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    from playwright.sync_api import sync_playwright

    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"]  # fmt: skip
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=flags)
        yield browser
        browser.close()


@pytest.fixture(params=[("light", 1280), ("dark", 700), ("light", 400)], ids=["light-1280", "dark-700", "light-400"])
def page(request, browser, address):
    """A page of the browser; fails in the end on a console error or a request to another host."""
    scheme, width = request.param
    context = browser.new_context(viewport={"width": width, "height": 1400}, color_scheme=scheme)
    page = context.new_page()
    page.set_default_timeout(120_000)
    page.look = f"{scheme}_{width}"
    trouble = []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda r: None if r.url.startswith((address, "data:")) else trouble.append(r.url))
    yield page
    context.close()
    assert trouble == []


def open_page(page, url):
    """Open a page, and wait until its formulas are set."""
    page.goto(url)
    page.wait_for_function("() => !window.MathJax || window.MathJax.startup.promise.then(() => true)")


def test_every_link_of_the_site_leads_somewhere(built):
    """Fails if a link or an anchor is broken, or a page loads something from another host."""
    assert links.site_problems(built) == []


def test_the_sites_pages_hold_no_solution(built):
    """Fails if an instructor's edition was taken instead of a student's."""
    chapters = sorted((built / "notebooks").glob("??_*.html"))
    assert len({path.name[:2] for path in chapters}) == 14
    for number in sorted({path.name[:2] for path in chapters}):
        text = "".join(path.read_text(encoding="utf8") for path in chapters if path.name.startswith(number))
        assert "replace this line with your code" in text
        assert "BEGIN SOLUTION" not in text


def test_every_experiments_page_has_a_figure(built):
    """Fails if a recorded run is shown as numbers alone."""
    pages = [path for path in (built / "experiments").glob("*.html") if path.stem != "index"]
    assert len(pages) > 60
    assert [path.stem for path in pages if f'src="../_images/{path.stem}-' not in path.read_text("utf8")] == []


def test_what_goes_deeper_is_folded(page, address):
    """Fails if an optional part is open at once, cannot be opened, or a link into it does not open it."""
    open_page(page, f"{address}/notebooks/05_lstm_and_gru-going-deeper.html")
    parts = page.locator("details.deeper")
    assert parts.count() > 5
    assert page.locator("details.deeper[open]").count() == 0
    parts.first.locator("> summary").click()
    assert parts.first.locator("p").first.is_visible()
    last = parts.last.locator("section").first.get_attribute("id")
    page.evaluate("id => { location.hash = id }", last)
    parts.last.locator("p").first.wait_for(state="visible")


@pytest.mark.parametrize("name", PAGES, ids=lambda name: name.split("/")[-1].removesuffix(".html"))
def test_a_page_in_a_browser(name, page, address):
    """Fails on an error, a request to another host, a formula that is not set, a lost picture, or a page too wide."""
    open_page(page, f"{address}/{name}")
    stem = name.split("/")[-1].removesuffix(".html")
    page.screenshot(path=SCREENSHOTS / f"site_{stem}_{page.look}.png")
    unset = page.locator(".math:not(:has(mjx-container))").count()
    assert unset == 0
    assert page.locator("mjx-container").count() > 5 or stem not in WITH_FORMULAS
    assert page.locator("mjx-merror").count() == 0
    page.evaluate("() => document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
    page.wait_for_function("() => [...document.images].every(image => image.complete)")
    assert page.evaluate("() => [...document.images].filter(image => !image.naturalWidth).map(i => i.src)") == []
    assert page.evaluate("() => [...document.images].filter(image => !image.alt).map(i => i.src)") == []
    assert page.evaluate("() => document.documentElement.scrollWidth") <= page.viewport_size["width"]
    assert page.evaluate("() => document.documentElement.dataset.theme") == page.look.split("_")[0]


def test_the_explorer_works_on_a_chapters_page(page, address, built):
    """Fails if chapter 07 shows a still picture, one that ignores the pointer, or a light one on a dark page."""
    pages = (built / "notebooks").glob("07_attention*.html")
    name = next(path.name for path in sorted(pages) if 'class="attention-explorer' in path.read_text("utf8"))
    open_page(page, f"{address}/notebooks/{name}")
    page.evaluate("() => document.querySelectorAll('details').forEach(part => { part.open = true })")
    live = page.locator(".attention-explorer .ax-live").first
    live.wait_for(state="visible")
    assert not page.locator(".attention-explorer .ax-still").is_visible()
    before = live.locator(".ax-said").inner_text()
    live.locator("div.ax-queries .ax-token").nth(2).hover()
    assert live.locator(".ax-said").inner_text() != before
    assert live.locator("xpath=self::*[contains(@class, 'ax-dark')]").count() == page.look.startswith("dark")
    live.scroll_into_view_if_needed()
    page.screenshot(path=SCREENSHOTS / f"site_explorer_{page.look}.png")


def test_an_interactive_figure_works_on_a_chapters_page(page, address, built):
    """Fails if chapter 08 shows RoPE's angles as a still picture, or its sliders change nothing."""
    pages = (built / "notebooks").glob("08_position*.html")
    name = next(path.name for path in sorted(pages) if 'class="course-figure' in path.read_text("utf8"))
    open_page(page, f"{address}/notebooks/{name}")
    live = page.locator(".course-figure .cf-live").first
    live.wait_for(state="visible")
    before = live.inner_text()
    live.get_by_role("slider").first.press("ArrowRight")
    assert live.inner_text() != before


def test_the_search_finds_the_lstm(page, address):
    """Fails if the search, which runs in the page, does not name chapter 05 for "LSTM"."""
    page.goto(f"{address}/search.html?q=LSTM")
    page.wait_for_function("() => document.querySelectorAll('#search-results li').length > 5")
    found = page.locator("#search-results li a").evaluate_all("links => links.map(link => link.getAttribute('href'))")
    page.wait_for_timeout(1000)  # for the lines of text under the hits
    page.screenshot(path=SCREENSHOTS / f"site_search_{page.look}.png")
    assert "notebooks/05_lstm_and_gru" in found[0]  # a chapter, and not a function of the library
    assert all("notebooks/" in link for link in found[:5])


def test_a_chapter_leads_from_section_to_section(page, address):
    """Fails if the opening does not lead to the first section, or a folded cell shows its code at once."""
    open_page(page, f"{address}/notebooks/05_lstm_and_gru.html")
    titles = page.locator("details.hide.above-input summary .collapsed").all_inner_texts()
    assert "Imports" in titles
    assert not page.locator("details.hide.above-input pre").first.is_visible()
    closed = page.locator("details.hide.below-input summary .collapsed").all_inner_texts()
    assert set(closed) == {"Show the result"}
    page.locator("a.right-next").click()
    page.wait_for_url("**/05_lstm_and_gru-1-*")
    assert page.locator("article h1").inner_text().startswith("05.1 · ")
