"""Diagrams drawn by code, in the colours of `course_lib.plots`.

A diagram is a function that draws boxes and arrows on a canvas. `show("rnn_unrolled")`
puts it into a notebook; `make images` writes each as SVG into `images/`. The diagrams
of a chapter are in the module of its number.
"""

import importlib
import pkgutil
from dataclasses import dataclass
from typing import Any

from course_lib import display, plots

DIAGRAMS = {}  # name -> Diagram, filled by the decorator


@dataclass(frozen=True)
class Diagram:
    """A drawing function with what must be said beside the drawing."""

    draw: Any
    alt: str
    caption: str


def diagram(alt, caption):
    """Register a function of no arguments that draws a diagram and returns its `Axes`.

    Args:
        alt: what a reader who cannot see it should know.
        caption: its answer, in a sentence.

    Raises:
        ValueError: if a diagram of this name exists already.

    Example:
        >>> @diagram(alt="A box.", caption="One box.")
        ... def one_box():
        ...     return box(canvas(4, 2), 2, 1, "h")
        >>> DIAGRAMS.pop("one_box").caption
        'One box.'
    """

    def register(draw):
        if draw.__name__ in DIAGRAMS:
            raise ValueError(f"there is already a diagram {draw.__name__!r}; choose another name")
        DIAGRAMS[draw.__name__] = Diagram(draw, alt, caption)
        return draw

    return register


def all_diagrams():
    """Return every chapter's diagrams.

    Returns:
        dict from name to `Diagram`.

    Example:
        >>> "task_forms" in all_diagrams()
        True
    """
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return DIAGRAMS


def show(name):
    """Show a diagram in a notebook, with its alt text and caption.

    Args:
        name: a name from `all_diagrams()`.

    Raises:
        ValueError: if there is no such diagram.

    Example:
        >>> show("no_such")
        Traceback (most recent call last):
        ValueError: there is no diagram 'no_such'; there are ...
    """
    known = all_diagrams()
    if name not in known:
        raise ValueError(f"there is no diagram {name!r}; there are {', '.join(sorted(known))}")
    display.show(known[name].draw(), known[name].alt, known[name].caption)


def canvas(width=10.0, height=4.0):
    """Make an empty drawing surface, 7 inches wide, with equal units on both axes.

    Args:
        width: the x coordinates run from 0 to this.
        height: the y coordinates run from 0 to this.

    Returns:
        A matplotlib `Axes` without ticks or frame.

    Example:
        >>> canvas(10, 5).figure.get_size_inches().tolist()
        [7.0, 3.5]
    """
    import matplotlib.pyplot as plt

    with plt.rc_context(plots.STYLE):
        figure = plt.figure(figsize=(7, 7 * height / width))
        ax = figure.add_axes((0, 0, 1, 1))
    ax.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    ax.axis("off")
    return ax


def box(ax, x, y, text, kind="plain", w=1.4, h=0.7, size=10):
    """Draw a rounded box centred at (x, y).

    Args:
        ax: the canvas.
        x: centre, in the canvas' units.
        y: centre, in the canvas' units.
        text: what stands in it; formulas between dollar signs.
        kind: a key of `plots.COLORS` (what the box holds), or "plain".
        w: width.
        h: height.
        size: font size in points.

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if `kind` is unknown.

    Example:
        >>> len(box(canvas(), 2, 2, "$h_t$", kind="hidden").patches)
        1
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import FancyBboxPatch

    edge = _color(kind)
    face = tuple(1 - 0.28 * (1 - c) for c in to_rgb(edge)) if kind != "plain" else "white"
    shape = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=shape, facecolor=face, edgecolor=edge, lw=1.6))
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=plots.COLORS["ink"])
    return ax


def arrow(ax, start, end, kind="ink", text="", bend=0.0, dashed=False, size=9):
    """Draw an arrow from one point to another.

    Args:
        ax: the canvas.
        start: (x, y).
        end: (x, y), the arrow's head.
        kind: a key of `plots.COLORS`: what flows along it.
        text: a label beside the middle.
        bend: curvature; 0 is straight.
        dashed: draw a dashed line.
        size: font size of the label in points.

    Returns:
        The same `Axes`.

    Example:
        >>> len(arrow(canvas(), (1, 1), (3, 1), text="$W_{hh}$").patches)
        1
    """
    from matplotlib.patches import FancyArrowPatch

    ax.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=13, lw=1.6, color=_color(kind), shrinkA=0, shrinkB=0,
            connectionstyle=f"arc3,rad={bend}", linestyle="--" if dashed else "-",
        )
    )  # fmt: skip
    if text:
        (x0, y0), (x1, y1) = start, end
        x, y = (x0 + x1) / 2 + bend * (y1 - y0) / 2, (y0 + y1) / 2 - bend * (x1 - x0) / 2
        label(ax, x, y, text, kind=kind, size=size, background=True)
    return ax


def label(ax, x, y, text, kind="ink", size=9.5, align="center", background=False, weight="normal"):
    """Write text centred at (x, y).

    Args:
        ax: the canvas.
        x: position, in the canvas' units.
        y: position, in the canvas' units.
        text: what is written.
        kind: a key of `plots.COLORS`.
        size: font size in points.
        align: "center", "left" or "right" of x.
        background: put white behind the text, so that lines do not cross it.
        weight: "normal" or "bold".

    Returns:
        The same `Axes`.

    Example:
        >>> label(canvas(), 1, 1, "time").texts[0].get_text()
        'time'
    """
    behind = {"facecolor": "white", "edgecolor": "none", "pad": 1.2} if background else None
    ax.text(x, y, text, ha=align, va="center", fontsize=size, color=_color(kind), bbox=behind, weight=weight)
    return ax


def _color(kind):
    if kind == "plain":
        return plots.COLORS["ink"]
    if kind not in plots.COLORS:
        raise ValueError(f"kind is {kind!r}; wanted 'plain' or one of {', '.join(plots.COLORS)}")
    return plots.COLORS[kind]
