"""Diagrams of chapter 10: how far a signal travels, and which matrices are learned."""

from course_lib.notebook import plots
from course_lib.notebook.diagrams import arrow, box, canvas, diagram, label

PLACES, STEP = 9, 0.82


def _row(ax, left, y, kind, places=PLACES):
    """Small boxes of a kind, nine unless told."""
    for t in range(places):
        box(ax, left + STEP * t, y, "", kind=kind, w=0.5, h=0.42)


def _edge(ax, start, end, on_path):
    """A thin grey line, or an arrow in the gradient's colour."""
    if on_path:
        arrow(ax, start, end, kind="gradient")
    else:
        ax.plot(*zip(start, end, strict=True), color=plots.COLORS["muted"], lw=0.7, alpha=0.55, zorder=0)


def _convolution(ax, left, bottom, gaps, rise, places=PLACES):
    """Layers of kernel 3; the way from the first input to the last output takes the longest jump of each."""
    place = 0
    for n, gap in enumerate(gaps):
        y = bottom + rise * n
        for t in range(places):
            for source in (t - 2 * gap, t - gap, t):
                if source >= 0:
                    ends = (left + STEP * source, y + 0.21), (left + STEP * t, y + rise - 0.21)
                    _edge(ax, *ends, on_path=(source, t) == (place, place + 2 * gap))
        place += 2 * gap
        _row(ax, left, y + rise, "output" if n == len(gaps) - 1 else "hidden", places)


def _recurrence(ax, left, bottom, top, places=PLACES):
    """Inputs below, states above; the way goes up into the first state, then along all of them."""
    for t in range(places):
        x = left + STEP * t
        _edge(ax, (x, bottom + 0.21), (x, top - 0.21), on_path=t == 0)
        if t:
            arrow(ax, (x - STEP + 0.25, top), (x - 0.25, top), kind="gradient")
    _row(ax, left, top, "hidden", places)


def _attention(ax, left, bottom, top, places=PLACES, causal=False):
    """Attention: every output has an edge from each input, or from those up to its own; the way is the longest one."""
    for t in range(places):
        for source in range(t + 1 if causal else places):
            ends = (left + STEP * source, bottom + 0.21), (left + STEP * t, top - 0.21)
            _edge(ax, *ends, on_path=(source, t) == (0, places - 1))
    _row(ax, left, top, "output", places)


@diagram(
    alt="Three ways from the first of seven words to the last output, arrows in the gradient's colour. RNN: up into "
    "the first state, then along six more states. CNN of kernel 3: three layers, two places to the right in each. "
    "Attention: one long arrow; thin lines join every word to every output.",
    caption="How does the first of seven words (below) reach the last output (above)? In an RNN through one state "
    "after the other; in convolutions that see three places each, in jumps of two, one jump per layer; in attention "
    "directly.",
)
def three_layers():
    """Draw an RNN, a stack of convolutions and attention side by side, with the way from the first word to the last."""
    places = 7
    ax = canvas(18.7, 7.0)
    bottom, top = 1.6, 5.2
    for left, name, how, way in (
        (0.8, "RNN", "one after the other", "through 7 states"),
        (7.0, "CNN, kernel 3", "neighbours, layer by layer", "through 3 layers"),
        (13.2, "attention", "everyone with everyone", "directly"),
    ):
        label(ax, left - 0.3, 6.6, name, align="left", size=11, weight="bold")
        label(ax, left - 0.3, 6.0, how, align="left")
        label(ax, left + STEP * (places - 1) / 2, 0.4, way, kind="gradient")
        _row(ax, left, bottom, "input", places)
        label(ax, left, bottom - 0.6, "$x_1$", size=10.5)
        label(ax, left + STEP * (places - 1), bottom - 0.6, "$x_7$", size=10.5)
    _recurrence(ax, 0.8, bottom, top, places)
    _convolution(ax, 7.0, bottom, [1, 1, 1], (top - bottom) / 3, places)
    _attention(ax, 13.2, bottom, top, places)
    return ax


@diagram(
    alt="Four ways from the first of nine inputs to the last of nine outputs, arrows in the gradient's colour. "
    "RNN: up into the first state, then along eight states. CNN of kernel 3: four layers, two places to the right in "
    "each. Dilated CNN: two layers, two places, then six. Attention: one long arrow.",
    caption="How many matrix products lie between the first of T = 9 inputs and the last output? Nine in an RNN; four "
    "in convolutions, of which each output reads three places (kernel 3); two if they leave gaps (dilated); one in "
    "causal attention. A gradient goes back the same way.",
)
def path_length():
    """Draw the shortest way from the first input to the last output in four kinds of layer."""
    ax = canvas(17.2, 12.6)
    columns, top, bottom = (1.2, 9.9), 8.3, 1.0
    for left, base, name in (
        (columns[0], top, "RNN: T = 9 products"),
        (columns[1], top, "attention: 1"),
        (columns[0], bottom, "CNN, kernel 3: (T - 1) / 2 = 4 layers"),
        (columns[1], bottom, "dilated: log$_3$ T = 2 layers"),
    ):
        height = 3.6 if base == top else 5.6
        label(ax, left - 0.3, base + height, name, align="left", size=11, weight="bold")
        _row(ax, left, base, "input")
        label(ax, left, base - 0.55, "$x_1$", size=10.5)
        label(ax, left + STEP * (PLACES - 1), base - 0.55, "$x_9$", size=10.5)
    _recurrence(ax, columns[0], top, top + 2.4)
    _attention(ax, columns[1], top, top + 2.4, causal=True)
    _convolution(ax, columns[0], bottom, [1, 1, 1, 1], 1.2)
    _convolution(ax, columns[1], bottom, [1, 3], 2.4)
    return ax


@diagram(
    alt="Above: the inputs x, T by D, times the learned weights, D by D, are the queries, T by D. The "
    "weights are in the colour of parameters. Below: queries, T by D, times the transposed keys, D by T, are "
    "the scores, T by T; the weights, T by T, times the values, T by D, are the outputs, T by D. T by T matrices have "
    "the colour of attention: none of them is learned.",
    caption="Two kinds of matrices. Purple is learned: D × D numbers, whatever the length. Blue is computed: T × T "
    "numbers for each head, which cost FLOPs and memory, and none of them is a parameter.",
)
def two_kinds_of_matrices():
    """Draw a projection above, the quadratic part below."""
    ax = canvas(17.6, 9.4)
    long, wide = 2.9, 1.5  # T and D

    def matrix(x, y, name, size, kind, w, h):
        box(ax, x, y, name, kind=kind, w=w, h=h, size=11.5)
        label(ax, x, y - h / 2 - 0.36, size, size=9.5)

    y = 7.2
    learned = "projections: words meet learned matrices (real attention only)"
    label(ax, 0.3, 9.0, learned, align="left", weight="bold")
    matrix(2.0, y, "$x$", "T × D", "input", wide, long)
    label(ax, 3.6, y, "×", size=13)
    matrix(5.1, y, "$W^Q$", "D × D", "weight", wide, wide)
    label(ax, 6.7, y, "=", size=13)
    matrix(8.2, y, "$Q$", "T × D", "hidden", wide, long)
    label(ax, 9.6, y, "$D^2$ parameters; so for keys, values, output", align="left", size=10.5, kind="weight")
    y = 2.3
    label(ax, 0.3, 4.4, "quadratic part: words meet words, no parameters (one head)", align="left", weight="bold")
    matrix(1.05, y, "$Q$", "T × D", "hidden", wide, long)
    label(ax, 2.2, y, "×", size=13)
    matrix(4.05, y, r"$K^\top$", "D × T", "hidden", long, wide)
    label(ax, 5.9, y, "=", size=13)
    matrix(7.75, y, "scores", "T × T", "attention", long, long)
    label(ax, 9.6, y, "→", size=13)
    matrix(11.45, y, "weights", "T × T", "attention", long, long)
    label(ax, 13.3, y, "×", size=13)
    matrix(14.45, y, "$V$", "T × D", "hidden", wide, long)
    label(ax, 15.6, y, "=", size=13)
    matrix(16.75, y, "out", "T × D", "output", wide, long)
    return ax
