"""Slow: the notebooks in JupyterLab in a real browser, where students really open them (make test-slow).

Each notebook opens, runs from top to bottom, shows no unmarked error, asks no other host for anything and is legible
in the light theme, in the dark theme, and 700 pixels wide. The attention explorer on a plain page, in a frame such as
Colab's, and in JupyterLab before and after the reader runs it. Screenshots are left in build/screenshots. The helpers
are in tests/helpers/lab.py; Colab is in tests/clients/test_clients_colab.py.
"""

import shutil

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from tests.helpers import lab
from tests.helpers.lab import SCREENSHOTS, watch
from tools.notebooks import editions

pytestmark = pytest.mark.slow

NOTEBOOKS = sorted(editions.NOTEBOOKS.glob("*.ipynb"))
# What the browser's kernel runs; the others are read as they are stored, with every output opened. nbval runs them all.
RUN = ("05", "07", "08", "13")  # with interactive figures


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


GUESS = """() => {
    const content = window.jupyterapp.shell.currentWidget.content
    const cells = content.widgets, source = w => w.model.sharedModel.getSource()
    const ask = cells.findIndex(w => /= predict\\(/.test(source(w)))
    const show = cells.findIndex((w, i) => i > ask && (w.model.getMetadata('tags') || []).includes('reveal'))
    cells[ask].model.sharedModel.setSource(source(cells[ask]).replace('...', '0.6'))
    const closed = cells[show].outputHidden
    content.activeCellIndex = show + 1
    return [show, closed, cells[show].node.innerText]
}"""


def test_the_first_screen_asks_and_then_answers(server, page):
    """Fails if the first picture is not on the first screen, the answer is open before, or closed after the run."""
    lab.open_notebook(page, server, "05_lstm_and_gru.ipynb")
    page.locator(".jp-OutputArea-output img").first.wait_for(state="visible")
    assert page.locator(".jp-OutputArea-output img").first.bounding_box()["y"] < 600
    show, closed, before = page.evaluate(GUESS)
    assert closed
    assert "measured" not in before
    page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-above') }")
    cell = page.locator(".jp-Cell").nth(show)
    cell.locator("text=you guessed").wait_for(state="visible", timeout=240_000)
    assert "measured" in cell.inner_text()
    assert "0.6" in cell.inner_text()
    page.set_viewport_size({"width": 1040, "height": 2000})
    page.evaluate("() => { document.querySelector('.jp-WindowedPanel-outer').scrollTop = 0 }")
    page.wait_for_timeout(500)
    page.screenshot(path=SCREENSHOTS / "first_screen.png")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_in_jupyterlab(path, server, page):
    """Fails on an unmarked error, a cell that Run All leaves out, a request elsewhere, or what cannot be read."""
    trouble, requests = watch(page)
    lab.open_notebook(page, server, path.name)
    if path.name[:2] in RUN:
        lab.run_all(page, seconds=400)
    else:
        lab.command(page, "notebook:show-all-cell-outputs")
    cells = page.evaluate(lab.CELLS)
    marked = [cell for cell in cells if "raises-exception" in cell["metadata"].get("tags", [])]
    errors = [out for cell in cells for out in cell["outputs"] if out["output_type"] == "error" and cell not in marked]
    assert errors == []
    assert len(cells) > 10
    assert path.name[:2] not in RUN or all(cell["execution_count"] for cell in cells)
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


# The attention explorer. One notebook cell makes it; the tests know its numbers from here.
EXPLORER = """\
import torch
from course_lib.notebook.explorer import Looks, Sentence, explore

def attention(queries, keys, seed, mask):
    scores = 2 * torch.randn(2, 3, queries, keys, generator=torch.Generator().manual_seed(seed))
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1).nan_to_num()
    return [Looks(w, s, head_dim=4) for w, s in zip(weights, scores)]

source, target = "das müde Tier schlief <pad>".split(), "<sos> the tired animal slept".split()
real = torch.tensor([True, True, True, True, False])
maps = {
    "encoder": attention(5, 5, 0, real & real[:, None]),
    "decoder": attention(5, 5, 1, torch.ones(5, 5).tril().bool()),
    "cross": attention(5, 5, 2, real),
}
other = {name: attention(5, 5, 7, real & real[:, None]) for name in maps}
tokens, keys = {"encoder": source, "decoder": target, "cross": target}, {"cross": source}
wide = {"encoder": "das breite Tier schlief <pad>".split(), "decoder": target, "cross": target}
shown = explore(
    {"müde": Sentence(tokens, maps, keys), "breite": Sentence(wide, other, keys)}, title="A translation",
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


def assert_close(seen, weights, mask=None):
    """Numbers that the explorer computed itself are torch's, but for the thousandths that it computed from."""
    wanted = weights.tolist() if mask is None else [w if yes else None for w, yes in zip(weights, mask, strict=True)]
    for text, weight in zip(seen, wanted, strict=True):
        assert (text == "–") if weight is None else abs(float(text) - weight) < 0.0021, (seen, wanted)


class Used:
    """One explorer in a page, and what a test asks of it."""

    def __init__(self, root):
        self.root, self.live, self.keyboard = root, root.locator(".ax-live"), root.page.keyboard
        self.queries, self.keys = self.live.locator("div.ax-queries .ax-token"), self.live.locator(".ax-keys .ax-token")
        self.live.wait_for(state="visible")
        assert not root.locator(".ax-still").is_visible()

    def press(self, group, name):
        """Press a button of the bar: a sentence, map, layer or head."""
        self.live.get_by_role("group", name=group, exact=True).get_by_role("button", name=name, exact=True).click()

    def away(self):
        """Put the mouse where there is no token."""
        self.live.locator(".ax-title").hover()

    def lines(self, head=None):
        which = "" if head is None else f"[data-head='{head}']"
        drawn = self.live.locator(f".ax-lines path{which}")
        return sorted(drawn.evaluate_all("lines => lines.map(line => line.dataset.weight)"))

    def numbers(self, tokens):
        return tokens.locator("i").all_inner_texts()

    def said(self):
        return self.live.locator(".ax-said").inner_text()

    def chain(self):
        """The rows of numbers from the dot product to the weight."""
        rows = self.live.locator(".ax-chain tr").all()
        return [row.locator("td, th").all_inner_texts() for row in rows]


def assert_works(root, maps):
    """Use one explorer by mouse, by buttons and by keyboard, and compare what it writes with the maps."""
    it = Used(root)
    encoder, decoder, cross = ([looks.weights for looks in maps[name]] for name in ("encoder", "decoder", "cross"))

    def wanted(weights):
        return sorted(f"{round(1000 * w) / 1000:.3f}" for w in weights.flatten().tolist() if round(1000 * w) >= 10)

    assert it.lines() == wanted(encoder[1][0])
    it.queries.nth(1).hover()
    assert it.numbers(it.keys) == three_digits(encoder[1][0, 1])
    assert it.lines() == wanted(encoder[1][0, 1])
    it.keys.nth(2).hover()
    assert it.numbers(it.queries) == three_digits(encoder[1][0, :, 2])
    it.queries.nth(4).hover()
    assert "<pad>” (position 4) looks nowhere" in it.said()
    it.keys.nth(4).hover()
    assert "“<pad>” (position 4) is masked: nobody looks at it" in it.said()

    # Several heads, each in its colour, and the numbers of a pair.
    it.press("heads", "2")
    it.away()
    assert it.lines(0) == wanted(encoder[1][0])
    assert it.lines(2) == wanted(encoder[1][2])
    assert (
        len(set(it.live.locator(".ax-lines path").evaluate_all("all => all.map(x => getComputedStyle(x).stroke)"))) == 2
    )
    it.press("heads", "0")
    it.away()
    assert it.lines() == wanted(encoder[1][2])
    it.live.locator(".ax-heads button[title='layer 0, head 1']").click()
    it.away()
    assert it.lines() == wanted(encoder[0][1])
    it.press("map", "cross")
    it.press("layer", "1")
    it.press("heads", "mean")
    assert it.keys.locator("b").all_inner_texts() == "das müde Tier schlief <pad>".split()
    it.queries.nth(3).click()
    assert_close(it.numbers(it.keys), cross[1].mean(0)[3], cross[1].mean(0)[3] > 0)
    it.queries.nth(3).click()

    # By keyboard: one stop for Tab, the arrow keys within; the mouse, which rests on a token, is not in their way.
    it.press("map", "decoder")
    it.press("heads", "0")
    it.queries.nth(2).click()
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 2])
    it.keyboard.press("ArrowDown")
    assert "(position 3)" in it.said()
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 3])
    it.keyboard.press("ArrowRight")
    it.keyboard.press("Home")
    scores = maps["decoder"][1].scores[0, 3]
    pair = [["0", f"{2 * scores[0]:.2f}", f"{scores[0]:.2f}", three_digits(decoder[1][0, 3])[0]]]
    assert [[c.replace("−", "-") for c in row] for row in it.chain()[1:]] == pair
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 3])
    it.keyboard.press("Enter")  # the key itself: who looks at it
    assert it.numbers(it.queries) == three_digits(decoder[1][0, :, 0])
    it.keyboard.press("Escape")
    it.keyboard.press("Escape")
    assert set(it.numbers(it.queries)) == {""}
    it.live.get_by_role("group", name="heads").get_by_role("button", name="mean").focus()
    it.keyboard.press("Tab")  # to the first token, and no further
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 0])
    it.keyboard.press("ArrowDown")
    it.keyboard.press("ArrowDown")
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 2])

    # Mask and temperature: computed in the page, and then as torch computes them.
    scores = maps["decoder"][1].scores[0]
    it.live.get_by_role("button", name="causal mask").click()
    assert_close(it.numbers(it.keys), scores[2].softmax(-1))
    small = it.live.locator(".ax-heads button[title='layer 1, head 0'] canvas")
    picture = small.evaluate("canvas => canvas.toDataURL()")
    slider = it.live.get_by_role("slider", name="temperature")
    slider.fill("-2")
    assert small.evaluate("canvas => canvas.toDataURL()") != picture
    assert_close(it.numbers(it.keys), (scores[2] / 0.25).softmax(-1))
    it.live.get_by_role("button", name="no division by √4").click()
    it.live.get_by_role("button", name="causal mask").click()
    seen = torch.arange(5) <= 2
    assert_close(it.numbers(it.keys), (2 * scores[2]).masked_fill(~seen, -torch.inf).softmax(-1), seen)
    assert it.chain()[0][1:] == ["q·k", "→ / √4", "→ × √4", "→ softmax"]
    it.live.get_by_role("button", name="as in the model").click()
    assert it.numbers(it.keys) == three_digits(decoder[1][0, 2])
    it.press("map", "encoder")
    it.live.get_by_role("button", name="causal mask").click()
    it.queries.nth(4).hover()
    assert "looks nowhere" in it.said()  # padding stays padding
    it.live.get_by_role("button", name="as in the model").click()

    # The other sentence, at the same word; the running text stands for both.
    it.press("sentence", "breite")
    assert it.live.locator(".ax-text").inner_text().split() == "das breite Tier schlief <pad>".split()
    it.press("sentence", "müde")
    it.live.locator(".ax-text .ax-word").nth(1).click()
    assert it.numbers(it.keys) == three_digits(encoder[1][0, 1])
    tinted = it.live.locator(".ax-text .ax-word b").evaluate_all("all => all.map(x => x.style.backgroundImage !== '')")
    assert tinted == [True, True, True, True, False]


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


def test_the_explorer_follows_a_change_of_scheme(browser, example, tmp_path):
    """Fails if a page that turns dark keeps the colours of the light one."""
    path = tmp_path / "page.html"
    example[0].write_page(path)
    page = browser.new_page(color_scheme="light")
    page.goto(path.as_uri())
    it = Used(page.locator(".attention-explorer"))
    it.queries.nth(1).click()
    light = it.live.locator(".ax-lines path").first.evaluate("e => getComputedStyle(e).stroke")
    page.emulate_media(color_scheme="dark")
    page.locator(".ax-live.ax-dark").wait_for()
    assert it.live.locator(".ax-lines path").first.evaluate("e => getComputedStyle(e).stroke") != light
    assert it.numbers(it.keys) == three_digits(example[1]["encoder"][1].weights[0, 1])  # what was chosen stays
    page.close()


@pytest.mark.parametrize("width", [400, 1000])
def test_the_explorer_by_touch(width, browser, example, tmp_path):
    """Everything to press is 40 pixels high, nothing is wider than the page, a tap chooses."""
    path = tmp_path / "page.html"
    example[0].write_page(path)
    page = browser.new_context(has_touch=True, viewport={"width": width, "height": 900}).new_page()
    page.goto(path.as_uri())
    it = Used(page.locator(".attention-explorer"))
    it.queries.nth(1).tap()
    assert it.numbers(it.keys) == three_digits(example[1]["encoder"][1].weights[0, 1])
    it.keys.nth(2).tap()  # its partner
    assert "weighs “Tier” (2)" in it.live.locator(".ax-chain").inner_text()
    it.live.get_by_role("button", name="Who looks at “Tier”?").tap()
    assert it.numbers(it.queries) == three_digits(example[1]["encoder"][1].weights[0, :, 2])
    places = it.live.locator("button, input, .ax-word").evaluate_all("""all => all.filter(x => x.checkVisibility())
        .map(x => [x.getBoundingClientRect().height, x.textContent || x.title])""")
    assert len(places) > 20
    assert [place for place in places if place[0] < 39.9] == []
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.screenshot(path=SCREENSHOTS / f"explorer_touch_{width}.png")
    page.context.close()


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
    page.locator("div.ax-queries .ax-token").nth(3).click()
    page.keyboard.press("ArrowDown")  # from token 3 to token 4, and not to the next cell
    assert "(position 4)" in page.locator(".ax-said").inner_text()
    page.get_by_role("slider", name="temperature").press("ArrowUp")
    assert page.locator(".ax-try output").inner_text() == "1.07"
    assert page.evaluate(cell) == 0
    page.keyboard.press("Escape")
    page.locator("div.ax-queries .ax-token").nth(1).click()
    page.screenshot(path=SCREENSHOTS / "explorer_lab_run.png")
    assert page.evaluate(lab.PALE) == []
    lab.theme(page, "Dark")  # while it is open
    page.locator(".ax-live.ax-dark").wait_for(state="visible", timeout=30_000)
    page.screenshot(path=SCREENSHOTS / "explorer_lab_dark.png")
    assert page.evaluate(lab.PALE) == []
    assert page.locator(".ax-live").evaluate("e => getComputedStyle(e).backgroundColor") == "rgba(0, 0, 0, 0)"
    lab.theme(page, "Light")
    page.locator(".ax-live:not(.ax-dark)").wait_for(state="visible", timeout=30_000)
    assert trouble == []
    assert lab.elsewhere(requests, server) == []
