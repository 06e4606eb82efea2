"""Slow: the notebooks in JupyterLab in a real browser, where students really open them (make test-slow).

Each notebook opens, runs from top to bottom, shows no unmarked error, asks no other host for anything and is legible
in the light theme, in the dark theme, and 700 pixels wide. The attention explorer on a plain page, in a frame such as
Colab's, and in JupyterLab before and after the reader runs it. Screenshots are left in build/screenshots. The helpers
are in tests/lab.py; Colab is in tests/test_clients_colab.py.
"""

import re
import shutil

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests import lab
from tests.lab import SCREENSHOTS, watch
from tools import editions

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A folder with a copy of the notebooks."""
    folder = tmp_path_factory.mktemp("lab") / "course"
    shutil.copytree(editions.NOTEBOOKS, folder, ignore=shutil.ignore_patterns("source", ".*"))
    return folder


@pytest.fixture(scope="module")
def server(course):
    """The address of a JupyterLab over the copies."""
    with lab.server(course) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    if lab.CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with lab.chromium() as browser:
        yield browser


@pytest.fixture
def page(browser):
    """An empty page; whatever is opened on it ends with the test."""
    page = browser.new_page(viewport={"width": 1280, "height": 1400})
    yield page
    lab.close(page)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_markdown_swallows_no_token(path):
    """Fails if a text or an output has <eos> without backticks: a browser takes it for a tag and shows nothing."""
    cells = nbformat.read(path, as_version=4).cells
    outputs = [out.data.get("text/markdown", "") for cell in cells for out in cell.get("outputs", []) if "data" in out]
    for text in [cell.source for cell in cells if cell.cell_type == "markdown"] + outputs:
        shown = re.sub(r"```.*?```|`[^`]*`|[$][^$]*[$]", "", text, flags=re.DOTALL)
        assert re.findall(r"</?[a-z][^>]*>", shown, flags=re.IGNORECASE) == [], shown


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_jupyterlab(path, server, page):
    """Run All; fails on an unmarked error, a cell that did not run, a request elsewhere, or what cannot be read."""
    trouble, requests = watch(page)
    lab.open_notebook(page, server, path.name)
    lab.run_all(page, seconds=400)
    cells = page.evaluate(lab.CELLS)
    marked = [cell for cell in cells if "raises-exception" in cell["metadata"].get("tags", [])]
    errors = [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error" and cell not in marked]
    assert errors == []
    assert len(cells) == len([c for c in cells if c["execution_count"]]) > 10
    pictures = [out for cell in cells for out in cell["outputs"] if "image/png" in out.get("data", {})]
    assert [p for p in pictures if not p["metadata"]["image/png"].get("alt")] == []  # JupyterLab itself shows none
    assert page.locator(".jp-OutputArea-output img").count() >= 1

    lab.photograph(page, f"{path.stem}_light", 1280)
    lab.photograph(page, f"{path.stem}_narrow", 700)
    assert page.evaluate(lab.RAW) == []
    assert page.evaluate(lab.CUT_OFF) == []
    assert page.evaluate(lab.PICTURES) == []
    lab.theme(page, "Dark")
    lab.photograph(page, f"{path.stem}_dark", 1280)
    assert page.evaluate(lab.PALE) == []

    assert trouble == []
    assert lab.elsewhere(requests, server) == []


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


def test_the_explorer_in_jupyterlab(server, course, page, example):
    """Still in a notebook that is not trusted, live once the reader runs the cell, in a dark theme as well."""
    shown, maps = example
    data, metadata = shown._repr_mimebundle_()
    output = new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    cells = [new_code_cell(f"{EXPLORER}\nshown", execution_count=1, outputs=[output]), new_markdown_cell("The end.")]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": editions.KERNEL}), course / "explorer.ipynb")
    trouble, requests = watch(page)
    lab.open_notebook(page, server, "explorer.ipynb")
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
    lab.theme(page, "Dark")
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
    page.locator(".ax-live.ax-dark").wait_for(state="visible", timeout=30_000)
    page.screenshot(path=SCREENSHOTS / "explorer_lab_dark.png")
    assert trouble == []
    assert lab.elsewhere(requests, server) == []
