"""Diagrams of chapter 11: where the norm stands."""

from course_lib.notebook import plots
from course_lib.notebook.diagrams import arrow, box, canvas, diagram, joint, label, operation, wire


def _stream(ax, x, low, high, kind="hidden"):
    """The residual stream, a thick line upwards."""
    ax.plot([x, x], [low, high - 0.25], color=plots.COLORS[kind], lw=3.2, solid_capstyle="round", zorder=0.5)
    arrow(ax, (x, high - 0.3), (x, high), kind=kind)


def _branch(ax, x, y, boxes):
    """A branch that leaves the stream at y, passes boxes and comes back; returns the height of the plus."""
    side, top = x + 1.75, y + 0.75 + 1.0 * len(boxes)
    wire(ax, [(x, y), (side, y), (side, y + 0.47)])
    joint(ax, x, y)
    for i, (text, kind) in enumerate(boxes):
        box(ax, side, y + 0.8 + 1.0 * i, text, kind=kind, w=1.95, h=0.66, size=9.5)
        if i + 1 < len(boxes):
            arrow(ax, (side, y + 1.14 + 1.0 * i), (side, y + 1.46 + 1.0 * i))
    last = y + 0.8 + 1.0 * (len(boxes) - 1) + 0.34
    wire(ax, [(side, last), (side, top), (x + 0.25, top)])
    operation(ax, x, top, "+", r=0.25, size=12)
    return top


@diagram(
    alt="Three columns, each a residual stream from x at the bottom to h at the top with two sublayers at its side. "
    "Post-LN: after each plus a norm stands on the stream itself. Pre-LN: the norms stand in the branches, before "
    "attention and feed-forward; on the stream stands only one last norm, above both sublayers. ReZero: no norms; a "
    "factor alpha, at first 0, stands in each branch after the sublayer.",
    caption="What stands on the green line? In Post-LN a norm after each addition, which every gradient must pass. In "
    "Pre-LN and ReZero the path through the blocks passes additions only; above the last block Pre-LN has one norm.",
)
def norm_placement():
    """Draw Post-LN, Pre-LN and ReZero side by side."""
    ax = canvas(14.4, 10.2)
    norm, attend, forward = ("norm", "Add & Norm"), ("attention", "self-attention"), ("feed-forward", "feed-forward")
    alpha = (r"$\times\;\alpha$", "gradient")
    columns = {
        "Post-LN": ([attend], [forward], True),
        "Pre-LN": ([norm, attend], [norm, forward], False),
        "ReZero": ([attend, alpha], [forward, alpha], False),
    }
    for i, (name, (first, second, on_stream)) in enumerate(columns.items()):
        x = 1.3 + 4.9 * i
        box(ax, x, 0.5, "$x$", kind="input", w=1.2, h=0.66, size=11)
        _stream(ax, x, 0.85, 8.75)
        y = 1.15
        for branch in (first, second):
            top = _branch(ax, x, y, branch)
            if on_stream:
                box(ax, x, top + 0.75, "norm", kind="Add & Norm", w=1.4, h=0.6, size=9.5)
                top += 0.9
            y = top + 0.5
        if name == "Pre-LN":
            box(ax, x, 8.12, "last norm", kind="Add & Norm", w=1.9, h=0.6, size=9.5)
        box(ax, x, 9.1, "$h$", kind="hidden", w=1.2, h=0.66, size=11)
        label(ax, x + 0.9, 9.85, name, size=11, weight="bold")
    return ax
