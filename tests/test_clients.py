"""Slow: the notebooks where students really open them (make test-slow).

Colab's conditions: a notebook alone in an empty folder, the library from a built wheel, no
network. JupyterLab in a real browser: opens, runs from top to bottom, shows no error and
asks no other host for anything. The attention explorer on a plain page, in a frame such as
Colab's, and in JupyterLab before and after the reader runs it. Screenshots are left in
build/screenshots.
"""

import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tools import editions

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
SCREENSHOTS = editions.ROOT / "build" / "screenshots"
NOWHERE = {name: "http://127.0.0.1:9" for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY")}
QUIET = {"OMP_NUM_THREADS": "1", "COURSE_PROGRESS": "0"}


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The library as a wheel installs it, in a folder of its own."""
    folder = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder), str(editions.ROOT)]
    subprocess.run([*pip, *build], check=True)
    (wheel,) = folder.glob("course_lib-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", str(folder / "site"), str(wheel)], check=True)
    return folder / "site"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_alone_with_the_wheel(path, site, tmp_path):
    """Outputs equal the stored ones with nothing but the wheel; fails if a file of the checkout was needed."""
    shutil.copy(path, tmp_path)
    environment = {**os.environ, **QUIET, **NOWHERE, "PYTHONPATH": str(site), "COURSE_DATA": str(tmp_path / "empty")}
    environment.pop("PYTEST_CURRENT_TEST", None)
    where = subprocess.run(
        [sys.executable, "-c", "import course_lib; print(course_lib.__file__)"],
        env=environment, cwd=tmp_path, check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert where.stdout.startswith(str(site))
    sanitize = str(editions.ROOT / "tests" / "nbval_sanitize.cfg")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbval", "--nbval-current-env",
         "--nbval-cell-timeout=120", "--nbval-sanitize-with", sanitize, path.name],
        env=environment, cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout[-3000:]
    assert " passed" in run.stdout


@pytest.fixture
def lab(tmp_path):
    """A JupyterLab server on loopback over copies of the notebooks, with settings of its own."""
    folder = tmp_path / "course"
    shutil.copytree(editions.NOTEBOOKS, folder, ignore=shutil.ignore_patterns("source", ".*"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    settings = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
    environment = {**os.environ, **QUIET, **{name: str(tmp_path / name) for name in settings}}
    environment.pop("PYTEST_CURRENT_TEST", None)
    with (tmp_path / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}", "--allow-root",
             "--IdentityProvider.token=course", "--LabApp.expose_app_in_browser=True", f"--notebook-dir={folder}"],
            env=environment, cwd=folder, stdout=log, stderr=log,
        )  # fmt: skip
    base = f"http://127.0.0.1:{port}"
    try:
        for _ in range(120):
            try:
                urllib.request.urlopen(f"{base}/api?token=course", timeout=5).close()
                break
            except OSError:
                assert server.poll() is None, (tmp_path / "server.log").read_text()
                time.sleep(0.5)
        yield base
    finally:
        server.terminate()
        server.wait(timeout=30)


CELLS = """() => window.jupyterapp.shell.currentWidget.content.widgets
    .filter(w => w.model.type === 'code' && w.model.sharedModel.getSource().trim())
    .map(w => w.model.toJSON())"""


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


def open_in_lab(page, lab, name):
    """Open a notebook and wait until its kernel is there."""
    page.goto(f"{lab}/lab/tree/{name}?token=course&reset")
    page.wait_for_function(
        "() => window.jupyterapp?.shell.currentWidget?.sessionContext?.session?.kernel?.status === 'idle'",
        timeout=90_000,
    )
    page.wait_for_timeout(1000)


def elsewhere(requests, lab):
    """The requests that went to another host than the server."""
    return [url for url in requests if not url.startswith((lab, "data:", "blob:", lab.replace("http", "ws")))]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_jupyterlab(path, lab, browser):
    """Run All in a real browser; fails on an unmarked error, a cell that did not run, or a request to another host."""
    page = browser.new_page(viewport={"width": 1280, "height": 1600})
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    open_in_lab(page, lab, path.name)
    page.screenshot(path=SCREENSHOTS / f"{path.stem}_opened.png")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:restart-run-all') }")
    page.get_by_role("button", name="Confirm Kernel Restart").click(timeout=10_000)
    page.wait_for_timeout(1000)
    page.wait_for_function(f"() => ({CELLS})().every(c => c.execution_count)", timeout=240_000)
    page.wait_for_timeout(1000)
    cells = page.evaluate(CELLS)
    page.screenshot(path=SCREENSHOTS / f"{path.stem}_run.png")
    errors = [
        output
        for cell in cells
        for output in cell["outputs"]
        if output["output_type"] == "error" and "raises-exception" not in cell["metadata"].get("tags", [])
    ]
    assert errors == []
    assert len(cells) == len([c for c in cells if c["execution_count"]]) > 10
    assert elsewhere(requests, lab) == []
    page.close()


# The attention explorer. One notebook cell makes it; the tests know its weights from here.
EXPLORER = """\
import torch
from course_lib.explorer import explore

def attention(queries, keys, seed, mask):
    scores = torch.randn(2, 3, queries, keys, generator=torch.Generator().manual_seed(seed))
    return scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()

source, target = "das müde Tier schlief <pad>".split(), "<sos> the tired animal slept".split()
real = torch.tensor([True, True, True, True, False])
maps = {
    "encoder": list(attention(5, 5, 0, real & real[:, None])),
    "decoder": list(attention(5, 5, 1, torch.ones(5, 5).tril().bool())),
    "cross": list(attention(5, 5, 2, real)),
}
shown = explore(
    {"encoder": source, "decoder": target, "cross": target}, maps, keys={"cross": source}, title="A translation",
    alt="Attention maps of a small translation.", caption="Each word looks where $softmax$ tells it to.", layer=1,
)
"""


@pytest.fixture(scope="module")
def example():
    """The explorer of the cell above and its maps."""
    names = {}
    exec(EXPLORER, names)
    return names["shown"], names["maps"]


def three_digits(weights):
    """What the explorer writes for the weights of a row or a column."""
    return ["–" if w == 0 else f"{round(1000 * w) / 1000:.3f}" for w in weights.tolist()]


def assert_works(root, maps):
    """Use one explorer by mouse, by lists and by keyboard, and compare what it writes with the maps."""
    live, keyboard = root.locator(".ax-live"), root.page.keyboard
    live.wait_for(state="visible")
    assert not root.locator(".ax-still").is_visible()
    queries, keys = live.locator("div.ax-queries .ax-token"), live.locator(".ax-keys .ax-token")
    drawn = live.locator(".ax-lines path")

    def lines():
        return sorted(drawn.evaluate_all("lines => lines.map(line => line.dataset.weight)"))

    def numbers(tokens):
        return tokens.locator("i").all_inner_texts()

    def wanted(weights):
        return sorted(f"{round(1000 * w) / 1000:.3f}" for w in weights.flatten().tolist() if round(1000 * w) >= 10)

    assert lines() == wanted(maps["encoder"][1][0])
    queries.nth(1).hover()
    assert numbers(keys) == three_digits(maps["encoder"][1][0, 1])
    assert lines() == wanted(maps["encoder"][1][0, 1])
    keys.nth(2).hover()
    assert numbers(queries) == three_digits(maps["encoder"][1][0, :, 2])
    queries.nth(4).hover()
    assert "<pad>” (position 4) looks nowhere" in live.locator(".ax-said").inner_text()
    keys.nth(4).hover()
    assert "Nobody looks at “<pad>”" in live.locator(".ax-said").inner_text()

    live.locator(".ax-head-choice").select_option("2")
    live.locator(".ax-bar strong").hover()
    assert lines() == wanted(maps["encoder"][1][2])
    live.locator(".ax-heads button[title='layer 0, head 1']").click()
    live.locator(".ax-bar strong").hover()
    assert lines() == wanted(maps["encoder"][0][1])
    live.locator(".ax-part").select_option("2")
    live.locator(".ax-layer").select_option("1")
    live.locator(".ax-head-choice").select_option("mean")
    assert "cross" in live.locator(".ax-code").inner_text()
    assert keys.locator("b").all_inner_texts() == "das müde Tier schlief <pad>".split()
    mean = maps["cross"][1].mean(0)
    for seen, weight in zip(lines(), sorted(w for w in mean.flatten().tolist() if w >= 0.0105), strict=True):
        assert abs(float(seen) - weight) < 0.0015

    live.locator(".ax-part").select_option("1")
    live.locator(".ax-head-choice").select_option("0")
    live.locator(".ax-head-choice").focus()
    keyboard.press("Tab")  # to the first token, and no further: the rest is for the arrow keys
    assert numbers(keys) == three_digits(maps["decoder"][1][0, 0])
    keyboard.press("ArrowDown")
    keyboard.press("ArrowDown")
    assert numbers(keys) == three_digits(maps["decoder"][1][0, 2])
    keyboard.press("ArrowRight")
    assert numbers(queries) == three_digits(maps["decoder"][1][0, :, 2])
    keyboard.press("Escape")
    assert set(numbers(queries)) == {""}
    queries.nth(3).click()
    live.locator(".ax-bar strong").hover()  # what was clicked stays
    assert numbers(keys) == three_digits(maps["decoder"][1][0, 3])


def watch(page):
    """Collect what goes wrong on a page and what it asks for."""
    trouble, requests = [], []
    page.on("console", lambda message: trouble.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: trouble.append(str(error)))
    page.on("request", lambda request: requests.append(request.url))
    return trouble, requests


@pytest.mark.parametrize(("width", "scheme"), [(700, "light"), (1200, "dark")])
def test_the_explorer_on_a_plain_page(width, scheme, browser, example, tmp_path):
    """Two on one page, from a file; fails if they get in each other's way or ask for anything."""
    shown, maps = example
    path = tmp_path / "page.html"
    path.write_text(shown.page().replace("</body>", f"{shown.html()}</body>"), encoding="utf8")
    page = browser.new_page(viewport={"width": width, "height": 1000}, color_scheme=scheme)
    trouble, requests = watch(page)
    page.goto(path.as_uri())
    for number in (1, 0):
        assert_works(page.locator(".attention-explorer").nth(number), maps)
    page.screenshot(path=SCREENSHOTS / f"explorer_page_{scheme}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert trouble == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    page.close()


def test_the_explorer_without_scripts_is_a_still_picture(browser, example, tmp_path):
    """Fails if the reader sees nothing, or an empty frame beside the picture."""
    path = tmp_path / "page.html"
    example[0].write_page(path)
    page = browser.new_context(java_script_enabled=False).new_page()
    page.goto(path.as_uri())
    assert page.locator(".ax-still img").is_visible()
    assert not page.locator(".ax-live").is_visible()
    page.close()


def test_the_explorer_in_a_frame_such_as_colabs(browser, example):
    """Colab shows an output in a sandboxed frame of another origin; fails if the script needs more than that."""
    shown, maps = example
    page = browser.new_page(viewport={"width": 900, "height": 800})
    trouble, requests = watch(page)
    page.set_content("<iframe sandbox='allow-scripts' width='860' height='760'></iframe>")
    page.eval_on_selector("iframe", "(frame, text) => { frame.srcdoc = text }", shown.html())
    assert_works(page.frame_locator("iframe").locator(".attention-explorer"), maps)
    page.screenshot(path=SCREENSHOTS / "explorer_frame.png")
    assert trouble == []
    assert [url for url in requests if not url.startswith(("data:", "about:"))] == []
    page.close()


def test_the_explorer_in_jupyterlab(lab, browser, example, tmp_path):
    """Still in a notebook that is not trusted, live once the reader runs the cell, in a dark theme as well."""
    shown, maps = example
    data, metadata = shown._repr_mimebundle_()
    output = new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    cells = [new_code_cell(f"{EXPLORER}\nshown", execution_count=1, outputs=[output]), new_markdown_cell("The end.")]
    nbformat.write(
        new_notebook(cells=cells, metadata={"kernelspec": editions.KERNEL}), tmp_path / "course" / "explorer.ipynb"
    )
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    trouble, requests = watch(page)
    open_in_lab(page, lab, "explorer.ipynb")
    still = page.locator(".attention-explorer .ax-still img, .jp-OutputArea img").first
    still.wait_for(state="visible")
    assert still.evaluate("image => image.naturalWidth") == 980
    assert page.locator(".jp-OutputArea img").count() == 1
    assert not page.locator(".ax-live").is_visible()
    page.screenshot(path=SCREENSHOTS / "explorer_lab_untrusted.png")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    assert_works(page.locator(".attention-explorer"), maps)
    cell = "() => window.jupyterapp.shell.currentWidget.content.activeCellIndex"
    assert page.evaluate(cell) == 0
    page.keyboard.press("ArrowDown")  # from token 3 to token 4, and not to the next cell
    assert "(position 4)" in page.locator(".ax-said").inner_text()
    assert page.evaluate(cell) == 0
    page.screenshot(path=SCREENSHOTS / "explorer_lab_run.png")
    page.evaluate("""() => window.jupyterapp.commands.execute('apputils:change-theme', {theme: 'JupyterLab Dark'})""")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".ax-live.ax-dark").wait_for(state="visible", timeout=30_000)
    page.screenshot(path=SCREENSHOTS / "explorer_lab_dark.png")
    assert trouble == []
    assert elsewhere(requests, lab) == []
    page.close()


def test_the_wheel_carries_the_explorers_page(site):
    """Fails if the wheel leaves out what is not Python: the explorer could not be shown in Colab."""
    assert (site / "course_lib" / "explorer.html").read_text(encoding="utf8").startswith("<div")
