"""Claims, display, plots and diagrams: what a notebook shows, looked at as data."""

import base64
import xml.etree.ElementTree as ET

import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.patches import FancyBboxPatch

from course_lib import diagrams, display, plots
from course_lib.claims import claim
from tools import images


@pytest.fixture
def published(monkeypatch):
    """Catch what would go to the notebook: (bundle, metadata) pairs."""
    caught = []
    monkeypatch.setattr(display, "_display", lambda bundle, metadata: caught.append((bundle, metadata)))
    return caught


def test_a_claim_prints_one_stable_line_and_the_measured_values_below(capsys):
    claim("Shuffling raises the loss.", torch.tensor(True), before=2.0, after=torch.tensor(3.14159), runs=[1, 2.5])
    claim("It falls.", False)
    assert capsys.readouterr().out.splitlines() == [
        "holds: Shuffling raises the loss.",
        "measured: before=2, after=3.14, runs=[1, 2.5]",
        "does not hold here: It falls.",
    ]


@pytest.mark.parametrize("value", [0.9, 1, "yes", None])
def test_a_claim_wants_a_truth_value(value):
    """`claim(text, accuracy)` in place of `accuracy > 0.9` would hold always."""
    with pytest.raises(TypeError, match="wanted a truth value"):
        claim("It is high.", value)


def test_show_publishes_png_alt_text_and_caption(published):
    import matplotlib.pyplot as plt

    display.show(plots.axes(width=5), alt="A line.", caption="It rises.")
    (bundle, metadata), (caption, _) = published
    assert base64.b64decode(bundle["image/png"]).startswith(b"\x89PNG")
    assert bundle["text/plain"] == "[figure] A line."
    assert metadata == {"image/png": {"alt": "A line.", "width": 500}}
    assert caption["text/markdown"] == "*It rises.*"
    assert plt.get_fignums() == []  # else every figure would be shown a second time


@pytest.mark.parametrize(("alt", "caption"), [("", "x"), ("x", " ")])
def test_show_refuses_a_figure_without_words(alt, caption):
    with pytest.raises(ValueError, match="needs alt text and a caption"):
        display.show(plots.axes(), alt=alt, caption=caption)


def test_in_a_kernel_the_bundle_is_displayed(monkeypatch):
    calls = []
    monkeypatch.setattr(InteractiveShell, "initialized", classmethod(lambda cls: True))
    monkeypatch.setattr("IPython.display.display", lambda *a, **k: calls.append((a, k)))
    display.markdown("x")
    assert calls == [(({"text/markdown": "x", "text/plain": "x"},), {"raw": True, "metadata": {}})]


class Documented:
    """A class."""

    def method(self):
        """A method."""
        return "kept"


def test_source_shows_the_code_without_docstrings():
    assert display.source(Documented) == 'class Documented:\n\n    def method(self):\n        return "kept"'


def test_table(published):
    display.table(["a", "b"], [["x", 0.123456], [2, True]])
    assert published[0][0]["text/markdown"] == "| a | b |\n|---|---|\n| x | 0.123 |\n| 2 | True |"
    with pytest.raises(ValueError, match="has 1 cells; wanted 2"):
        display.table(["a", "b"], [["x"]])


def test_colours_are_distinct_also_without_colour_vision():
    """Deuteranopia (Machado et al. 2009, severity 1) must leave any two meanings apart in CIE Lab by more than 8."""
    import numpy as np
    from matplotlib.colors import to_rgb

    deuteranopia = np.array([[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]])
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])

    def lab(colour):
        rgb = np.array(to_rgb(colour))
        linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
        xyz = to_xyz @ np.clip(deuteranopia @ linear, 0, 1) / np.array([0.9505, 1.0, 1.089])
        f = np.cbrt(np.maximum(xyz, 0.008856))
        return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])

    seen = {name: lab(colour) for name, colour in plots.COLORS.items()}
    pairs = [(a, b) for a in seen for b in seen if a < b]
    assert min((np.linalg.norm(seen[a] - seen[b]), a, b) for a, b in pairs)[0] > 8


def test_band_draws_mean_and_range():
    ax = plots.band(plots.axes(), [0, 1], [[1, 5], [3, 4]], "loss", "output")
    assert ax.lines[0].get_ydata().tolist() == [2.0, 4.5]
    corners = {tuple(v) for v in ax.collections[0].get_paths()[0].vertices.tolist()}
    assert {(0.0, 1.0), (0.0, 3.0), (1.0, 4.0), (1.0, 5.0)} <= corners


def test_heatmap_limits():
    """Signed values are symmetric about white; weights begin at 0."""
    ax = plots.heatmap(plots.axes(), torch.tensor([[-1.0, 4.0]]), ["a", "b"], ["q"], "score", kind="diverging")
    assert ax.collections[0].get_clim() == (-4.0, 4.0)
    ax = plots.heatmap(plots.axes(), [[0.2, 0.8]], ["a", "b"], ["q"], "weight")
    assert ax.collections[0].get_clim()[0] == 0
    assert [t.get_text() for t in ax.get_yticklabels()] == ["q"]


def test_bars_draw_means():
    ax = plots.bars(plots.axes(), {"a": [1.0, 2.0, 6.0], "b": 4.0}, "score")
    assert [p.get_height() for p in ax.patches] == [3.0, 4.0]
    assert [t.get_text() for t in ax.get_xticklabels()] == ["a", "b"]


def test_what_is_drawn_later_has_the_courses_style_too():
    """Fails if the style holds only while the axes are made: legends and texts come after it."""
    ax = plots.lines(plots.axes(), {"a": ([1, 2], [3, 4]), "b": ([1, 2], [4, 3])}, "x", "y")
    assert ax.get_legend().get_frame_on() is False
    assert [line.get_color() for line in ax.lines] == plots.CYCLE[:2]


def test_plots_refuse_what_does_not_fit():
    for call, words in [
        (lambda: plots.lines(plots.axes(), {"a": ([1], [1, 2])}, "x", "y"), "1 x values and 2 y values"),
        (lambda: plots.band(plots.axes(), [1], [[1, 2]], "a", "output"), "2 values for 1 positions"),
        (lambda: plots.heatmap(plots.axes(), [[1]], ["a", "b"], ["q"], ""), r"shape \(1, 1\).*2 column names"),
        (lambda: plots.heatmap(plots.axes(), [[1]], ["a"], ["q"], "", kind="hot"), "kind is 'hot'"),
        (lambda: plots.bars(plots.axes(), {"a": []}, "y"), "bar 'a' has no value"),
        (lambda: diagrams.box(diagrams.canvas(), 1, 1, "x", kind="nothing"), "kind is 'nothing'"),
        (lambda: diagrams.show("nothing"), "there is no diagram 'nothing'"),
    ]:
        with pytest.raises(ValueError, match=words):
            call()


def test_two_diagrams_of_one_name_are_refused():
    diagrams.all_diagrams()
    name = next(iter(diagrams.DIAGRAMS))
    draw = diagrams.DIAGRAMS[name].draw
    with pytest.raises(ValueError, match="there is already a diagram"):
        diagrams.diagram(alt="a", caption="b")(draw)


ALL = pytest.mark.parametrize("name", sorted(diagrams.all_diagrams()))


@ALL
def test_the_stored_image_is_what_the_code_draws(name):
    """Fails when a diagram was changed and `make images` was not run."""
    stored = (images.IMAGES / f"{name}.svg").read_text(encoding="utf8")
    assert stored == images.svg(diagrams.DIAGRAMS[name])
    title = ET.fromstring(stored).find("{http://www.w3.org/2000/svg}title")
    assert title.text == diagrams.DIAGRAMS[name].alt


@ALL
def test_text_in_a_diagram_fits(name):
    """Fails when a text runs off the canvas, over the edge of its box, or into another text."""
    ax = diagrams.DIAGRAMS[name].draw()
    ax.figure.draw_without_rendering()
    canvas = ax.figure.bbox
    boxes = [patch.get_window_extent() for patch in ax.patches if isinstance(patch, FancyBboxPatch)]
    texts = {text: text.get_window_extent() for text in ax.texts if text.get_text().strip()}
    for text, extent in texts.items():
        middle = ((extent.x0 + extent.x1) / 2, (extent.y0 + extent.y1) / 2)
        for around in [canvas, *(box for box in boxes if box.contains(*middle))]:
            assert around.x0 <= extent.x0 < extent.x1 <= around.x1, f"{text.get_text()!r} is too wide"
            assert around.y0 <= extent.y0 < extent.y1 <= around.y1, f"{text.get_text()!r} is too high"
        for other, its in texts.items():
            overlap = min(extent.x1, its.x1) - max(extent.x0, its.x0), min(extent.y1, its.y1) - max(extent.y0, its.y0)
            assert other is text or min(overlap) <= 1, f"{text.get_text()!r} runs into {other.get_text()!r}"


def test_no_image_is_left_over():
    assert {p.stem for p in images.IMAGES.glob("*.svg")} == set(diagrams.all_diagrams())
