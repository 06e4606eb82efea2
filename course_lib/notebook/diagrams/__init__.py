"""Diagrams drawn by code, in the colours of `course_lib.notebook.plots`.

A diagram is a function that draws boxes and arrows on a canvas. `show("rnn_unrolled")`
puts it into a notebook; `make images` writes each as SVG into `images/`. The diagrams
of a chapter are in the module of its number.
"""

import importlib
import math
import pkgutil
from dataclasses import dataclass
from typing import Any

from course_lib.notebook import display, plots

FAINT = "#CDCDCD"  # what is not yet there
FRAME = "#F7F7F7"  # the inside of a cell or block
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


def box(ax, x, y, text, kind="plain", w=1.4, h=0.7, size=10, lw=1.6):
    """Draw a rounded box centred at (x, y).

    Args:
        ax: the canvas.
        x: centre, in the canvas' units.
        y: centre, in the canvas' units.
        text: what stands in it; formulas between dollar signs.
        kind: what the box holds, a name of `plots.color`; or "plain", or "faint" for what is not yet there.
        w: width.
        h: height.
        size: font size in points.
        lw: width of the outline in points.

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if `kind` is unknown.

    >>> len(box(canvas(), 2, 2, "$h_t$", kind="hidden").patches)
    1
    """
    from matplotlib.colors import to_rgb
    from matplotlib.patches import FancyBboxPatch

    edge = _color(kind)
    face = tuple(1 - 0.28 * (1 - c) for c in to_rgb(edge)) if kind not in ("plain", "faint") else "white"
    shape = "round,pad=0,rounding_size=0.12"
    ax.add_patch(FancyBboxPatch((x - w / 2, y - h / 2), w, h, boxstyle=shape, facecolor=face, edgecolor=edge, lw=lw))
    ink = FAINT if kind == "faint" else plots.COLORS["ink"]
    ax.text(x, y, text, ha="center", va="center", fontsize=size, color=ink)
    return ax


def arrow(ax, start, end, kind="ink", text="", bend=0.0, dashed=False, size=9):
    """Draw an arrow from one point to another.

    Args:
        ax: the canvas.
        start: (x, y).
        end: (x, y), the arrow's head.
        kind: what flows along it, a name of `plots.color`.
        text: a label beside the middle.
        bend: curvature; 0 is straight.
        dashed: draw a dashed line.
        size: font size of the label in points.

    Returns:
        The same `Axes`.

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


def wire(ax, points, kind="ink", head=True, lw=1.6, r=0.3, dashed=False):
    """Draw a line through points with rounded corners, and an arrow's head at its end.

    Args:
        ax: the canvas.
        points: (x, y) pairs: start, corners, end.
        kind: what flows along it, a name of `plots.color`.
        head: draw the arrow's head.
        lw: line width in points.
        r: radius of the corners.
        dashed: draw a dashed line.

    Returns:
        The same `Axes`.

    >>> len(wire(canvas(), [(1, 1), (3, 1), (3, 2)], kind="hidden").patches)
    1
    """
    from matplotlib.patches import FancyArrowPatch
    from matplotlib.path import Path

    vertices, codes = [points[0]], [Path.MOVETO]
    for before, corner, after in zip(points, points[1:], points[2:], strict=False):
        vertices += [_toward(corner, before, r), corner, _toward(corner, after, r)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    path = Path([*vertices, points[-1]], [*codes, Path.LINETO])
    ax.add_patch(
        FancyArrowPatch(
            path=path, arrowstyle="-|>" if head else "-", mutation_scale=11 + lw, lw=lw, color=_color(kind),
            linestyle="--" if dashed else "-", capstyle="butt", zorder=0.8,
        )
    )  # fmt: skip
    return ax


def _toward(corner, other, r):
    """The point at distance r from the corner on the way to another point, or halfway if that is nearer."""
    (x, y), (u, v) = corner, other
    length = math.hypot(u - x, v - y)
    share = min(r, length / 2) / length
    return x + share * (u - x), y + share * (v - y)


def operation(ax, x, y, sign, kind="ink", r=0.27, size=11):
    """Draw a small circle with a sign: x for a product entry by entry, + for a sum.

    Args:
        ax: the canvas.
        x: centre, in the canvas' units.
        y: centre, in the canvas' units.
        sign: what stands in it.
        kind: a name of `plots.color`, for the outline.
        r: radius.
        size: font size in points.

    Returns:
        The same `Axes`.

    >>> operation(canvas(), 1, 1, "+").texts[0].get_text()
    '+'
    """
    from matplotlib.patches import Circle

    ax.add_patch(Circle((x, y), r, facecolor="white", edgecolor=_color(kind), lw=1.5, zorder=2))
    ax.text(x, y, sign, ha="center", va="center", fontsize=size, color=_color(kind), zorder=3)
    return ax


def joint(ax, x, y, kind="ink"):
    """Draw a dot where a wire parts in two.

    >>> len(joint(canvas(), 1, 1).patches)
    1
    """
    from matplotlib.patches import Circle

    ax.add_patch(Circle((x, y), 0.09, color=_color(kind), lw=0, zorder=2))
    return ax


def frame(ax, x, y, w, h, face=FRAME, edge="#B5B5B5"):
    """Draw the frame of a cell or a block behind all else; (x, y) is its lower left corner.

    >>> len(frame(canvas(), 1, 1, 4, 2).patches)
    1
    """
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.3"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=shape, facecolor=face, edgecolor=edge, lw=1.3, zorder=0.2))
    return ax


def label(ax, x, y, text, kind="ink", size=9.5, align="center", background=False, weight="normal"):
    """Write text centred at (x, y).

    Args:
        ax: the canvas.
        x: position, in the canvas' units.
        y: position, in the canvas' units.
        text: what is written.
        kind: a name of `plots.color`.
        size: font size in points.
        align: "center", "left" or "right" of x.
        background: put white (or the colour given) behind the text, so that lines do not cross it.
        weight: "normal" or "bold".

    Returns:
        The same `Axes`.

    >>> label(canvas(), 1, 1, "time").texts[0].get_text()
    'time'
    """
    face = "white" if background is True else background
    behind = {"facecolor": face, "edgecolor": "none", "pad": 1.2} if background else None
    ax.text(x, y, text, ha=align, va="center", fontsize=size, color=_color(kind), bbox=behind, weight=weight)
    return ax


def _color(kind):
    if kind in ("plain", "faint"):
        return plots.COLORS["ink"] if kind == "plain" else FAINT
    try:
        return plots.color(kind)
    except ValueError as error:
        raise ValueError(f"kind is {kind!r}; wanted 'plain', 'faint' or a colour's name: {error}") from None
