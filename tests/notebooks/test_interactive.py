"""The five interactive figures: what they store, what they refuse, and, slow, how they behave in a Chromium.

Numbers that the browser computes are compared with torch and with the course's own functions.
"""

import base64
import contextlib
import io
import math
import re

import nbformat
import pytest
import torch
from nbformat.v4 import new_code_cell, new_notebook, new_output
from nbval.plugin import get_sanitize_patterns

from course_lib import generate, text
from course_lib.experiments.attention_scaling import softmax_jacobian
from course_lib.notebook import interactive
from course_lib.notebook.interactive import saturation
from course_lib.notebook.interactive.beam import record
from course_lib.positional import RoPE
from tests.helpers import lab
from tests.helpers.lab import SCREENSHOTS, watch
from tools.notebooks import editions, guards


class TableModel:
    """For each beginning the probabilities of the next word; after all others comes the end."""

    def __init__(self, tables):
        self.words = [*text.SPECIALS, *sorted({word for row in tables.values() for word in row} - {"<eos>"})]
        self.tables, self.vocab_size, self.max_len = tables, len(self.words), None

    def start(self, source, source_real=None):
        return {"so_far": torch.zeros(len(source), 0, dtype=torch.int64)}

    def step(self, tokens, state):
        so_far = torch.cat([state["so_far"], tokens], 1)
        rows = [self.tables.get(" ".join(self.words[i] for i in row[1:]), {"<eos>": 1.0}) for row in so_far.tolist()]
        return torch.tensor([[row.get(w, 0.0) for w in self.words] for row in rows]).log(), {"so_far": so_far}


TREE = TableModel(
    {
        "": {"the": 0.6, "a": 0.4},
        "the": {"cat": 0.4, "dog": 0.35, "cow": 0.2, "<eos>": 0.05},
        "a": {"cat": 0.9, "dog": 0.06, "cow": 0.04},
        "a cat": {"<eos>": 0.8, "cat": 0.2},
    }
)
NOTHING = torch.zeros(1, 1, dtype=torch.int64)
TOKENS = [*"abcdefghijklmnopqrstuvwxyz", " ", "\n", "<b>", '"']
LOGITS = {name: 2 * torch.randn(30, generator=torch.Generator().manual_seed(n), dtype=torch.float64).round(decimals=3)
          for n, name in enumerate(("sure", "open"))}  # fmt: skip
LOGITS["sure"][3] += 9


def made(**more):
    """One of each, by name."""
    return {
        "sampling": interactive.sampling(TOKENS, LOGITS, **more),
        "forget_gate": interactive.forget_gate(**more),
        "root_of_k": interactive.root_of_k(**more),
        "rope_angles": interactive.rope_angles(**more),
        "beam_search": interactive.beam_search(TREE, TREE.words, NOTHING, sizes=(1, 2, 4), size=2, **more),
    }


@pytest.fixture(scope="module")
def figures():
    return made()


NAMES = ["sampling", "forget_gate", "root_of_k", "rope_angles", "beam_search"]
each = pytest.mark.parametrize("name", NAMES)


@each
def test_it_asks_for_nothing_and_names_nothing(name, figures):
    """Fails on an address (a network would be asked), an id (two on a page clash), or a change from run to run."""
    written = figures[name].html()
    words = re.sub('base64,[^"]*', "", written)
    assert re.findall(r"https?:/|=[\"']//|@import|url\(|fetch|XMLHttp|WebSocket|\bimport\b|require| id=", words) == []
    assert re.findall("@[A-Z]+@", words) == []
    assert made()[name].html() == written


@each
def test_what_a_notebook_stores_is_small_and_has_alt_text(name, figures):
    data, metadata = figures[name]._repr_mimebundle_()
    assert set(data) == {"text/html", "image/png", "text/plain"}
    assert sum(map(len, data.values())) < 160_000
    assert metadata["image/png"] == {"alt": figures[name].alt, "width": 700}
    assert data["text/plain"] == f"[interactive figure] {figures[name].alt}"
    from PIL import Image

    assert Image.open(io.BytesIO(base64.b64decode(data["image/png"]))).width == 980


@each
def test_a_notebook_with_it_passes_the_guards(name, figures):
    data, metadata = figures[name]._repr_mimebundle_()
    output = new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    notebook = new_notebook(cells=[new_code_cell("figure", execution_count=1, outputs=[output])])
    passing = [
        guard for guard in guards.GUARDS if guard.__name__ not in ("code_before_a_picture", "more_code_than_words")
    ]
    assert [problem for guard in passing for problem in guard(notebook)] == []


def compared(figure):
    """What nbval compares of the HTML, by the project's own rules."""
    written = figure.html()
    for pattern, replacement in get_sanitize_patterns(guards.SANITIZE.read_text(encoding="utf8")):
        written = re.sub(pattern, replacement, written)
    return written


def test_comparisons_see_words_and_not_numbers(figures):
    """Trained logits vary between machines: fails if they or pixels are compared, or if nothing is."""
    other = interactive.sampling(TOKENS, {name: z + 0.01 for name, z in LOGITS.items()})
    assert compared(other) == compared(figures["sampling"])
    assert compared(interactive.sampling(TOKENS[::-1], LOGITS)) == compared(other)  # an alphabet is a corpus's own
    assert compared(interactive.sampling(TOKENS, LOGITS["sure"])) != compared(other)
    assert compared(interactive.root_of_k(seed=1)) == compared(figures["root_of_k"])
    assert compared(interactive.forget_gate(bias=2.0)) != compared(figures["forget_gate"])


@each
def test_words_cannot_become_markup(name):
    wild = {"title": "</script><i>", "alt": '"><i>', "caption": "*<i>* & more"}
    written = made(**wild)[name].page()
    assert "<i>" not in written
    assert "<em><b>&lt;i&gt;</b> &amp; more</em>" in written


def test_the_page_is_a_whole_document(figures, tmp_path):
    path = tmp_path / "gate.html"
    figures["forget_gate"].write_page(path)
    written = path.read_text(encoding="utf8")
    assert written.startswith("<!DOCTYPE html>")
    assert "<title>What a forget gate leaves</title>" in written
    assert figures["forget_gate"].html() in written


@pytest.mark.parametrize("size", [1, 2, 3, 6])
def test_the_recorded_steps_are_those_of_the_search(size):
    """Fails if a score, a finished or a kept beginning differs from what beam_search_one returns, at its end or cut."""
    for steps in range(1, 5):
        recorded = record(TREE, NOTHING, beam_size=size, max_new_tokens=steps)
        found = generate.beam_search_one(TREE, NOTHING, beam_size=size, max_new_tokens=steps)
        wanted = {(*h.tokens, *[text.EOS] * h.finished): h.score for h in found}
        last = [c for c in recorded[-1] if c["fate"] == "kept"]
        ended = [c for step in recorded for c in step if c["fate"] == "finished"]
        got = {c["tokens"]: c["score"] for c in [*ended, *last]}
        assert got == pytest.approx(wanted, abs=1e-6)
        for before, step in zip([[], *recorded], recorded, strict=False):
            for c in step:
                parent = before[c["parent"]] if before else {"tokens": (), "fate": "kept"}
                assert (parent["tokens"], parent["fate"]) == (c["tokens"][:-1], "kept")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: interactive.forget_gate(alt=" "), "needs alt text and a caption; got alt=' '"),
        (lambda: interactive.forget_gate(bias=9), "bias must be from 0 to 8"),
        (lambda: interactive.forget_gate(steps=0), "steps from 1 to 200"),
        (lambda: interactive.root_of_k(width=100), "a power of two from 1 to 1024, got 100"),
        (lambda: interactive.rope_angles((1.0, 2.0, 3.0), None), r"an even K up to 12, got \(3,\)"),
        (lambda: interactive.rope_angles((1.0, 2.0), (1.0,)), r"got \(2,\) and \(1,\)"),
        (lambda: interactive.rope_angles(at=(0, 64)), r"from 0 to 63, got \(0, 64\)"),
        (lambda: interactive.sampling("ab", [0.0]), r"one for each of the 2 tokens .* got shape \(1,\)"),
        (lambda: interactive.sampling("ab", [0.0, math.nan]), "must be finite"),
        (lambda: interactive.sampling("ab", [0.0, 1.0], top_p=0.0), "top_p from 0.05 to 1"),
        (lambda: interactive.beam_search(TREE, TREE.words, NOTHING, size=9), r"size is 9; wanted one of \[1, 2, 3\]"),
    ],
)  # fmt: skip
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- in a browser -----------------------------------------------------------------


@pytest.fixture(scope="module")
def browser():
    """A Chromium without a window."""
    if lab.CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with lab.chromium() as browser:
        yield browser


@contextlib.contextmanager
def opened(browser, figure, tmp_path, **context):
    """A page with two copies of a figure, whose own trouble and requests fail the test; yields the second copy."""
    path = tmp_path / "page.html"
    path.write_text(figure.page().replace("</body>", f"{figure.html()}</body>"), encoding="utf8")
    context = browser.new_context(**({"viewport": {"width": 900, "height": 1000}} | context))
    page = context.new_page()
    trouble, requests = watch(page)
    page.goto(path.as_uri())
    root = page.locator(".course-figure").nth(1)
    root.locator(".cf-live").wait_for(state="visible")
    yield root
    assert trouble == []
    assert [url for url in requests if not url.startswith("data:")] == [path.as_uri()]
    context.close()


def said(root):
    return root.locator(".cf-said").inner_text()


def numbers(root, attribute):
    found = root.locator(f"[data-{attribute}]").evaluate_all(f"all => all.map(e => e.getAttribute('data-{attribute}'))")
    return [float(value) for value in found]


def move(root, name, value):
    root.get_by_label(name, exact=True).fill(str(value))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("temperature", "k", "p"), [(1, None, None), (0.5, None, 0.9), (2, 7, None), (1.5, 12, 0.7), (0.1, 1, 0.05)]
)
def test_sampling_draws_from_what_torch_leaves(temperature, k, p, browser, figures, tmp_path):
    """Fails if another set is left, if a probability differs, or if a token is drawn that is cut."""
    with opened(browser, figures["sampling"], tmp_path) as root:
        for place, z in LOGITS.items():
            root.get_by_label(place).check()
            move(root, "temperature", temperature)
            stops = root.get_by_label("top-k", exact=True).evaluate("input => input.max")
            move(root, "top-k", stops if k is None else k - 1)  # the stops are 1 to 20 and some more
            move(root, "top-p", 1 if p is None else p)
            left = generate.top_k_top_p(z / temperature, k, p)
            probs, order = left.softmax(0), (z / temperature).argsort(descending=True)[:15]
            torch.testing.assert_close(
                torch.tensor(numbers(root, "p"), dtype=torch.float64), probs[order], atol=2e-6, rtol=0
            )
            assert numbers(root, "token") == order.tolist()
            kept = int(left.isfinite().sum())
            choices = torch.special.entr(probs).sum().exp().item()
            assert said(root).startswith(f"{kept} of 30 tokens")
            assert abs(float(re.search(r"undecided as ([\d.]+)", said(root))[1]) / choices - 1) < 0.05
            root.get_by_role("button", name="draw 100").click()
            root.get_by_role("button", name="draw a token").click()
            assert "Drawn 101 times" in said(root)
            drawn = root.locator(".cf-drawn").inner_text().split()
            shown = {"␣": " ", "↵": "\n"}
            possible = {TOKENS[i] for i in left.isfinite().nonzero().flatten().tolist()}
            assert {shown.get(token, token) for token in drawn} <= possible
        root.get_by_role("button", name="start again").click()
        assert "Drawn" not in said(root)


@pytest.mark.slow
def test_what_is_drawn_follows_the_probabilities(browser, figures, tmp_path):
    with opened(browser, figures["sampling"], tmp_path) as root:
        root.get_by_label("open").check()
        for _ in range(40):
            root.get_by_role("button", name="draw 100").click()
        top = LOGITS["open"].softmax(0).max().item()
        came = int(re.search(r"” (\d+) times", said(root))[1])
        assert abs(came / 4000 - top) < 4 * (top * (1 - top) / 4000) ** 0.5


@pytest.mark.slow
def test_the_gate_leaves_what_torch_says(browser, figures, tmp_path):
    with opened(browser, figures["forget_gate"], tmp_path) as root:
        for bias, k in ((0.0, 1), (1.0, 60), (3.0, 17), (5.0, 200), (8.0, 128)):
            move(root, "forget gate f", bias)
            move(root, "steps k", k)
            f = torch.tensor(bias, dtype=torch.float64).sigmoid()
            assert numbers(root, "left") == pytest.approx([(f**k).item()], rel=1e-9)
            half = math.log(0.5) / math.log(f)
            assert f"(bias {bias:.2f})" in said(root)
            words = "every step" if half < 1.05 else f"every {half:.1f} steps" if half < 10 else "every "
            assert words in said(root)
            root.get_by_label("logarithmic").check()
            assert numbers(root, "left") == pytest.approx([(f**k).item()], rel=1e-9)
            root.get_by_label("plain").check()
        move(root, "forget gate f", 5)
        assert "0.9933 (bias 5.00) halves what the cell holds every 103 steps" in said(root)


@pytest.mark.slow
def test_the_weights_and_the_slope_are_torchs(browser, figures, tmp_path):
    vectors = saturation.normal_vectors(0)
    keys = vectors[saturation.QUERIES :]
    with opened(browser, figures["root_of_k"], tmp_path) as root:
        slider = root.get_by_label("width K of queries and keys")
        for query in range(3):
            for stop in (0, 3, 20, int(slider.evaluate("input => input.max"))):
                slider.fill(str(stop))
                K = int(re.search(r"K = (\d+)", slider.get_attribute("aria-valuetext"))[1])
                scores = keys[:, :K] @ vectors[query, :K]
                both = torch.stack([scores, scores / K**0.5]).softmax(1)
                close = {"atol": 1e-8, "rtol": 0}
                torch.testing.assert_close(
                    torch.tensor(numbers(root, "weight"), dtype=torch.float64), both.flatten(), **close
                )
                assert numbers(root, "largest") == pytest.approx(both.amax(1).tolist(), abs=1e-8)
                slopes = softmax_jacobian(both).flatten(1).norm(dim=1)
                assert numbers(root, "slope") == pytest.approx(slopes.tolist(), abs=1e-8)
                assert f"{both[0].max():.2f}" in said(root)
            root.get_by_role("button", name="another query").click()
        assert K == 1024


@pytest.mark.slow
def test_the_hands_are_ropes(browser, figures, tmp_path):
    """Fails if the product is not RoPE's, or if moving both changes it."""
    query, key = torch.tensor(figures["rope_angles"].numbers, dtype=torch.float64)
    rope = RoPE(len(query))

    def wanted(i, j, key=key):
        one, other = rope.rotate(query.view(1, 1, 1, -1), i), rope.rotate(key.view(1, 1, 1, -1), j)
        return [(one * other).sum().item()]

    with opened(browser, figures["rope_angles"], tmp_path) as root:
        for i, j in ((0, 0), (9, 4), (4, 9), (63, 0), (63, 63)):
            move(root, "query at", i)
            move(root, "key at", j)
            assert numbers(root, "product") == pytest.approx(wanted(i, j), abs=1e-7)
        move(root, "query at", 20)
        move(root, "key at", 12)
        before = numbers(root, "product")
        move(root, "both together", 40)
        assert numbers(root, "product") == before
        assert "Query at 48, key at 40: the distance is \N{MINUS SIGN}8" in said(root)
        assert "stay" in said(root)
        move(root, "both together", 63)  # only as far as the query's last place
        assert "Query at 63, key at 55" in said(root)
        assert numbers(root, "product") == before
        root.get_by_label("the query itself").check()
        assert numbers(root, "product") == pytest.approx(wanted(63, 55, query), abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_search_is_shown_as_it_went(size, browser, figures, tmp_path):
    """Step by step; fails if an answer is shown before the reader asks, or a fate or a score is another's."""
    steps = record(TREE, NOTHING, beam_size=size, max_new_tokens=8)
    nodes = "g[data-fate]"
    with opened(browser, figures["beam_search"], tmp_path) as root:
        root.get_by_label(str(size), exact=True).check()
        forward, back = (root.get_by_role("button", name=name) for name in ("forward", "back"))
        seen = 0
        for number, step in enumerate(steps):
            if number:
                forward.click()
            fates = root.locator(nodes).evaluate_all("all => all.map(e => e.dataset.fate)")
            assert fates[seen:] == ["open"] * len(step)
            assert f"Step {number + 1}: {len(step)} candidate" in said(root)
            forward.click()
            fates = root.locator(nodes).evaluate_all("all => all.map(e => e.dataset.fate)")
            assert fates[seen:] == [c["fate"] for c in step]
            assert numbers(root, "score")[seen:] == pytest.approx([c["score"] for c in step], abs=1e-4)
            seen += len(step)
        best = generate.beam_search(TREE, NOTHING, beam_size=size)[0]
        sentence = " ".join(TREE.words[i] for i in best.tokens)
        assert f"The search ends with “{sentence} <eos>”, probability {math.exp(best.score):.2f}" in said(root)
        forward.dispatch_event("click")  # the end stays the end
        back.click()
        back.click()
        assert f"Step {len(steps) - 1}:" in said(root)
        root.get_by_role("button", name="to the end").click()
        assert "The search ends with" in said(root)


@pytest.mark.slow
@each
def test_keys_reach_everything(name, browser, figures, tmp_path):
    """By Tab, arrows and the space bar alone; fails if a control cannot be reached or says nothing."""
    with opened(browser, figures[name], tmp_path) as root:
        controls = root.locator("input[type=range], input[type=radio]:checked, button")
        controls.first.focus()
        keyboard = root.page.keyboard
        for number in range(controls.count()):
            assert controls.nth(number).evaluate("e => e === document.activeElement")
            before = said(root) + root.locator(".cf-stage").inner_html()
            tag = controls.nth(number).evaluate("e => e.type")
            first = controls.nth(number).evaluate("e => e.type === 'range' && e.value === e.max")
            keyboard.press({"range": "ArrowLeft" if first else "ArrowRight", "radio": "ArrowRight"}.get(tag, "Space"))
            assert (said(root) + root.locator(".cf-stage").inner_html() != before) or tag == "button"
            keyboard.press("Tab")


@pytest.mark.slow
@each
def test_it_fits_and_follows_the_width(name, browser, figures, tmp_path):
    """Fails if a page scrolls sideways, a text of the picture leaves the card, or a target is below 40 pixels."""
    with opened(browser, figures[name], tmp_path, viewport={"width": 1280, "height": 900}) as root:
        for width in (1280, 700, 400, 340):
            root.page.set_viewport_size({"width": width, "height": 900})
            root.page.wait_for_timeout(150)
            assert root.page.evaluate("document.documentElement.scrollWidth") <= width
            box = root.locator(".cf-live").bounding_box()
            outside = root.locator(".cf-stage text").evaluate_all(
                "(all, [x, wide]) => all.map(e => [e.textContent, e.getBoundingClientRect()])"
                ".filter(([, b]) => b.left < x || b.right > x + wide).map(([t]) => t)",
                [box["x"], box["width"]],
            )
            assert outside == []
            small = root.locator("input, button").evaluate_all(
                "all => all.map(e => [e.value, e.getBoundingClientRect()])"
                ".filter(([, b]) => b.height < 39.5 || b.width < 39.5).map(([v]) => v)")  # fmt: skip
            assert small == []
            root.page.screenshot(path=SCREENSHOTS / f"interactive_{name}_{width}.png", full_page=True)


@pytest.mark.slow
@each
def test_it_follows_the_theme(name, browser, figures, tmp_path):
    """Fails if a white card stays on a page that has become dark, or a text is pale."""
    with opened(browser, figures[name], tmp_path, color_scheme="light") as root:
        live = root.locator(".cf-live")
        paper = "e => getComputedStyle(e).backgroundColor"
        assert live.evaluate(paper) == "rgb(255, 255, 255)"
        root.page.emulate_media(color_scheme="dark")
        root.locator(".cf-dark").wait_for(timeout=3000)
        assert live.evaluate(paper) == "rgb(22, 25, 29)"
        root.page.screenshot(path=SCREENSHOTS / f"interactive_{name}_dark.png", full_page=True)
        root.page.emulate_media(color_scheme="light")
        root.locator(".cf-live:not(.cf-dark)").wait_for(timeout=3000)


@pytest.mark.slow
@each
def test_a_finger_moves_it(name, browser, figures, tmp_path):
    with opened(browser, figures[name], tmp_path, viewport={"width": 400, "height": 900}, has_touch=True) as root:
        before = said(root) + root.locator(".cf-stage").inner_html()
        if name == "beam_search":
            root.get_by_role("button", name="forward").tap()
        else:
            slider = root.locator("input[type=range]").first
            slider.scroll_into_view_if_needed()
            box = slider.bounding_box()
            root.page.touchscreen.tap(box["x"] + 0.8 * box["width"], box["y"] + 5)  # the edge of the target
        assert said(root) + root.locator(".cf-stage").inner_html() != before


@pytest.mark.slow
@each
def test_without_scripts_it_is_a_still_picture(name, browser, figures, tmp_path):
    path = tmp_path / "page.html"
    figures[name].write_page(path)
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(path.as_uri())
    assert page.locator(".cf-still img").is_visible()
    assert not page.locator(".cf-live").is_visible()
    context.close()


@pytest.mark.slow
def test_all_work_in_a_frame_such_as_colabs(browser, figures):
    """Colab shows an output in a sandboxed frame of another origin; fails if a script needs more than that."""
    page = browser.new_page(viewport={"width": 900, "height": 800})
    trouble, requests = watch(page)
    for figure in figures.values():
        page.set_content("<iframe sandbox='allow-scripts' width='860' height='760'></iframe>")
        page.eval_on_selector("iframe", "(frame, text) => { frame.srcdoc = text }", figure.html())
        live = page.frame_locator("iframe").locator(".cf-live")
        live.wait_for(state="visible")
        assert len(live.locator(".cf-said").inner_text()) > 30
    assert trouble == []
    assert [url for url in requests if not url.startswith(("data:", "about:"))] == []
    page.close()


CELL = """\
from course_lib.notebook import interactive
interactive.rope_angles()"""


@pytest.mark.slow
def test_it_works_in_jupyterlab(browser, figures, tmp_path):
    """Still in a notebook that is not trusted, live once the cell runs, and dark as soon as the theme is."""
    course = tmp_path / "course"
    course.mkdir()
    data, metadata = figures["rope_angles"]._repr_mimebundle_()
    output = new_output("execute_result", data=data, metadata=metadata, execution_count=1)
    cells = [new_code_cell(CELL, execution_count=1, outputs=[output])]
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": editions.KERNEL}), course / "figure.ipynb")
    page = browser.new_page(viewport={"width": 1280, "height": 1000})
    with lab.server(course) as server:
        trouble, requests = watch(page)
        lab.open_notebook(page, server, "figure.ipynb")
        page.locator(".jp-OutputArea img").first.wait_for(state="visible")
        assert not page.locator(".cf-live").is_visible()
        page.evaluate("() => { window.jupyterapp.commands.execute('notebook:run-all-cells') }")
        live = page.locator(".cf-live")
        live.wait_for(state="visible", timeout=60_000)
        both = live.get_by_label("both together")
        both.focus()
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert "Query at 12, key at 7" in page.locator(".cf-said").inner_text()
        assert page.locator(".cf-dark").count() == 0
        lab.theme(page, "Dark")
        page.locator(".cf-dark").wait_for(timeout=5000)
        page.screenshot(path=SCREENSHOTS / "interactive_lab_dark.png")
        lab.theme(page, "Light")
        page.locator(".cf-live:not(.cf-dark)").wait_for(timeout=5000)
        assert trouble == []
        assert lab.elsewhere(requests, server) == []
        lab.close(page)
