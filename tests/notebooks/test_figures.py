"""Claims, display, plots and diagrams: what a notebook shows, looked at as data."""

import base64
import itertools
import re
import xml.etree.ElementTree as ET

import matplotlib.colors
import pytest
import torch
from IPython.core.interactiveshell import InteractiveShell
from matplotlib.patches import FancyBboxPatch

from course_lib.notebook import diagrams, display, plots
from course_lib.notebook.claims import claim
from tools import images
from tools.notebooks.editions import ROOT


@pytest.fixture
def published(monkeypatch):
    """Catch what would go to the notebook: (bundle, metadata) pairs."""
    caught = []
    monkeypatch.setattr(display, "_display", lambda bundle, metadata: caught.append((bundle, metadata)))
    return caught


def test_a_claim_prints_one_stable_line(capsys):
    claim("Shuffling raises the loss.", torch.tensor(True), before=2.0, after=torch.tensor(3.14159), runs=[1, 2.5])
    claim("It falls.", False)
    assert capsys.readouterr().out.splitlines() == [
        "✓ Shuffling raises the loss. <small>before 2 · after 3.14 · runs 1, 2.5</small>",
        "✗ Not with these settings: It falls.",
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
    assert bundle["text/plain"] == "[figure]"
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


def test_table(published):
    display.table(["a", "b"], [["x", 0.123456], [2, True]])
    assert published[0][0]["text/markdown"] == "| a | b |\n|---|---|\n| x | 0.123 |\n| 2 | True |"
    with pytest.raises(ValueError, match="has 1 cells; wanted 2"):
        display.table(["a", "b"], [["x"]])


def _linear(colour):
    """Linear RGB of a colour."""
    import numpy as np
    from matplotlib.colors import to_rgb

    rgb = np.array(to_rgb(colour))
    return np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)


def _seen(colour, vision):
    """CIE Lab of a colour as a reader sees it: "normal", or with a severity of 1 (Machado et al. 2009)."""
    import numpy as np

    matrices = {
        "normal": np.eye(3),
        "deuteranopia": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
        "protanopia": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    }
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ np.clip(np.array(matrices[vision]) @ _linear(colour), 0, 1) / np.array([0.9505, 1.0, 1.089])
    f = np.cbrt(np.maximum(xyz, 0.008856))
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _contrast(a, b):
    """Contrast of two colours, from 1 to 21, as WCAG defines it."""
    low, high = sorted(0.05 + float([0.2126, 0.7152, 0.0722] @ _linear(colour)) for colour in (a, b))
    return high / low


@pytest.mark.parametrize("vision", ["normal", "deuteranopia", "protanopia"])
def test_hues_are_distinct_also_without_colour_vision(vision):
    """Fails if two hues come nearer than 15 in CIE Lab to any reader, or black text is lost among them."""
    import numpy as np

    seen = {name: _seen(hue, vision) for name, hue in [*plots.HUES.items(), ("ink", plots.COLORS["ink"])]}
    assert min(np.linalg.norm(seen[a] - seen[b]) for a, b in itertools.combinations(seen, 2)) > 15


@pytest.mark.parametrize("page", ["#FFFFFF", "#111111"])
def test_hues_can_be_read_on_white_and_on_dark(page):
    """Fails if a hue has less than 3:1 on white or on JupyterLab's dark page."""
    assert min(_contrast(hue, page) for hue in plots.HUES.values()) >= 3


def _own_colours(source):
    """Hex colours that are not greys, and hues taken past the registry, as they stand in a module's source."""
    hexes = re.findall(r"[\"']#([0-9A-Fa-f]{6})[\"']", source)
    parts = {text: [int(text[i : i + 2], 16) for i in (0, 2, 4)] for text in hexes}
    tinted = [f"#{text}" for text, rgb in parts.items() if max(rgb) - min(rgb) > 12]
    return tinted + re.findall(r"HUES\[[^]]*\]", source)


@pytest.mark.parametrize("folder", ["figures", "diagrams", "interactive"])
def test_colours_come_from_the_registry(folder):
    """Fails if a figure brings a colour of its own, so that one thing has two colours in the course; greys are free."""
    files = sorted((ROOT / "course_lib/notebook" / folder).glob("*.py"))
    assert len(files) > 5
    assert {file.name: found for file in files if (found := _own_colours(file.read_text("utf8")))} == {}


def test_a_colour_of_its_own_is_seen():
    source = 'a = "#9A6700"; b = plots.HUES["blue"]; c = "#D8D8D8"; d = plots.color("LSTM"); e = "#9AA0A6"'
    assert _own_colours(source) == ["#9A6700", 'HUES["blue"]']


@pytest.mark.parametrize("family", sorted(plots.FAMILIES))
def test_a_family_has_a_hue_for_each_member(family):
    hues = list(plots.FAMILIES[family].values())
    assert len(set(hues)) == len(hues)


def test_an_entity_has_one_colour_in_the_whole_course():
    """Fails if two families give one name two hues, or an alias or a word of another case has no colour."""
    for family in plots.FAMILIES.values():
        assert {name: plots.HUES[hue] for name, hue in family.items()}.items() <= plots.ENTITIES.items()
    assert not set(plots.ENTITIES) & set(plots.COLORS)
    assert plots.color("gru with\nATTENTION") == plots.color("GRU + attention") == plots.ENTITIES["GRU + attention"]
    assert plots.color("forget_gate") == plots.HUES["vermilion"]
    with pytest.raises(ValueError, match="no colour for 'perceptron'; there are RNN, LSTM,"):
        plots.color("perceptron")


def test_labels_get_their_own_colours():
    """Fails if a name of the registry is drawn in another colour, or an unknown one in a colour that is taken."""
    curve = ([1, 2], [3, 4])
    ax = plots.lines(plots.axes(), {"LSTM": curve, "x": curve, "Transformer": curve, "y": curve}, "x", "y")
    wanted = [plots.color("LSTM"), plots.HUES["blue"], plots.color("Transformer"), plots.HUES["orange"]]
    assert [line.get_color() for line in ax.lines] == wanted
    ax = plots.lines(plots.axes(), {"a": curve, "b": curve}, "x", "y", {"a": "GRU", "b": "#123456"})
    assert [line.get_color() for line in ax.lines] == [plots.color("GRU"), "#123456"]
    assert plots.band(plots.axes(), [1, 2], [[1, 2]], "RNN").lines[0].get_color() == plots.color("RNN")
    bars = plots.bars(plots.axes(), {"GRU": 1, "LSTM, last": 2, "what": 3}, "y").patches
    colours = [plots.color("GRU"), plots.color("LSTM"), plots.HUES["blue"]]
    assert [bar.get_facecolor() for bar in bars] == [matplotlib.colors.to_rgba(colour) for colour in colours]


def test_labels_at_the_ends_do_not_overlap():
    """Fails if names of curves that end at one height overlap, lie outside the figure, or a legend stays."""
    ax = plots.axes(height=2.5)
    for i in range(6):
        plots.band(ax, [1, 2, 3], [[3, 2, 1 + 0.01 * i]], f"curve {i}", direct=True)
    ax.figure.canvas.draw()
    boxes = sorted((text.get_window_extent() for text in ax.texts), key=lambda box: box.y0)
    assert len(boxes) == 6
    assert ax.get_legend() is None
    assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(boxes))
    assert max(box.x1 for box in boxes) <= ax.figure.bbox.x1
    assert [text.get_text() for text in plots.direct_labels(ax, {"curve 0": "first"}).texts][:2] == ["first", "curve 1"]


def test_dots_are_sorted_on_the_datas_range():
    """Fails if a seed or a mean is missing, the order or the written value is wrong, or the axis begins at 0."""
    ax = plots.dots(plots.axes(), {"RNN": [81.0, 82.0], "GRU": 88.5, "bag": [88.0, 88.9, 88.1]}, "accuracy (%)")
    assert [t.get_text() for t in ax.get_yticklabels()] == ["RNN", "bag", "GRU"]
    assert [t.get_text() for t in ax.texts] == ["81.5", "88.3", "88.5"]
    assert [list(line.get_xdata()) for line in ax.lines][:4] == [[81.0, 82.0], [81.5], [88.0, 88.9, 88.1], [265 / 3]]
    assert 79 < ax.get_xlim()[0] < 81
    given = plots.dots(plots.axes(), {"a": 1, "b": 2}, "x", order="given")
    assert [t.get_text() for t in given.get_yticklabels()] == ["b", "a"]


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
        (lambda: plots.dots(plots.axes(), {"a": []}, "y"), "row 'a' has no value"),
        (lambda: plots.dots(plots.axes(), {"a": 1}, "y", order="up"), "order is 'up'"),
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


@pytest.mark.parametrize("name", sorted(diagrams.all_diagrams()))
def test_a_diagram_is_stored_and_its_text_fits(name):
    """Fails if `make images` was not run, or a text runs off the canvas, over its box's edge or into another text."""
    stored = (images.IMAGES / f"{name}.svg").read_text(encoding="utf8")
    drawn, ax = images.svg(diagrams.DIAGRAMS[name])
    assert stored == drawn, "run make images"
    title = ET.fromstring(stored).find("{http://www.w3.org/2000/svg}title")
    assert title.text == diagrams.DIAGRAMS[name].alt
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
