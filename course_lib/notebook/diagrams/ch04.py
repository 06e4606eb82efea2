"""Chapter 04's diagrams: three steps of a recurrent network forward and backward, and one path of a gradient."""

import itertools

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, label


@diagram(
    alt=(
        "A recurrent network unrolled over three steps. Forward arrows: each input x goes up through W_ih into the "
        "state h, each state goes right through W_hh into the next state and up through W_ho into the output o, and "
        "the three outputs go into the loss L. Backward arrows, in the gradient's colour, run beside them the other "
        "way: from L to each output, from each output down to its state, and from each state left to the one before, "
        "as far as h0."
    ),
    caption=(
        "Black: what the forward pass computes. Orange-red: the gradient's way back, down from each output and left "
        "from each state, through its tanh and $W_{hh}$. Each weight matrix is used three times, so its gradient is a "
        "sum of three terms."
    ),
)
def bptt_graph():
    """Three steps, forward and backward arrows side by side."""
    ax = canvas(14, 9.4)
    xs, gap = [3.4, 7.3, 11.2], 0.26
    rows = {"x": 1.2, "h": 3.7, "o": 6.2, "L": 8.6}
    label(ax, 0.15, rows["x"], "input", align="left", size=10)
    label(ax, 0.15, rows["h"], "state", align="left", size=10)
    label(ax, 0.15, rows["o"], "output", align="left", size=10)
    box(ax, xs[1], rows["L"], "loss $L$", kind="plain", w=3.0, h=0.8, size=11)
    for t, x in enumerate(xs, start=1):
        box(ax, x, rows["x"], f"$x_{t}$", kind="input", w=1.3, h=0.9, size=12)
        box(ax, x, rows["h"], f"$h_{t}$", kind="hidden", w=1.3, h=0.9, size=12)
        box(ax, x, rows["o"], f"$o_{t}$", kind="output", w=1.3, h=0.9, size=12)
        arrow(ax, (x - gap, rows["x"] + 0.45), (x - gap, rows["h"] - 0.45))
        label(ax, x - gap - 0.5, 2.45, "$W_{ih}$", kind="weight", size=10)
        arrow(ax, (x - gap, rows["h"] + 0.45), (x - gap, rows["o"] - 0.45))
        label(ax, x - gap - 0.5, 4.95, "$W_{ho}$", kind="weight", size=10)
        arrow(ax, (x + gap, rows["o"] - 0.45), (x + gap, rows["h"] + 0.45), kind="gradient")
        shift = (t - 2) * 0.9
        arrow(ax, (x - gap, rows["o"] + 0.45), (xs[1] + shift - 0.1, rows["L"] - 0.4))
        arrow(ax, (xs[1] + shift + 0.1 + gap, rows["L"] - 0.4), (x + gap, rows["o"] + 0.45), kind="gradient")
    box(ax, 1.0, rows["h"] - 1.25, "$h_0$", kind="hidden", w=1.1, h=0.8, size=12)
    arrow(ax, (1.25, rows["h"] - 0.85), (xs[0] - 0.65, rows["h"] + 0.1))
    arrow(ax, (xs[0] - 0.65, rows["h"] - 0.22), (1.5, rows["h"] - 1.0), kind="gradient")
    label(ax, 1.75, rows["h"] + 0.1, "$W_{hh}$", kind="weight", size=10)
    for t, (a, b) in enumerate(itertools.pairwise(xs), start=2):  # between h_(t-1) and h_t
        arrow(ax, (a + 0.65, rows["h"] + 0.17), (b - 0.65, rows["h"] + 0.17))
        label(ax, (a + b) / 2, rows["h"] + 0.55, "$W_{hh}$", kind="weight", size=10)
        arrow(ax, (b - 0.65, rows["h"] - 0.17), (a + 0.65, rows["h"] - 0.17), kind="gradient")
        label(ax, (a + b) / 2, rows["h"] - 0.55, f"$\\times (1 - h_{t}^2)\\ W_{{hh}}$", kind="gradient", size=9)
    for x in xs:
        label(ax, x + gap + 0.68, 4.95, "$\\times\\ W_{ho}$", kind="gradient", size=10)
    return ax


@diagram(
    alt=(
        "Seven states in a row, h0 to h6. From the loss at h6 an arrow in the gradient's colour goes back from state "
        "to state; each arrow carries a Jacobian, J6 down to J1. Below, the same row cut into two windows of three "
        "steps: the forward arrow still crosses from h3 to h4, the backward one stops there."
    ),
    caption=(
        "A gradient that goes back k steps is multiplied by k Jacobians, one for each step. Here it is the gradient of "
        "$L_6$, the loss of step 6 alone. "
        "The cut (below) stops the backward arrow between two windows; the forward arrow, with the numbers of the "
        "state, crosses."
    ),
)
def gradient_path():
    """One path of a gradient, whole and cut."""
    ax = canvas(15, 7.4)
    xs = [1.2 + 1.95 * t for t in range(7)]
    for y, cut, name in ((5.6, None, "whole"), (1.9, 3, "cut into windows of 3 steps")):
        label(ax, 0.4, y + 1.35, name, align="left", size=10.5, weight="bold")
        for t, x in enumerate(xs):
            box(ax, x, y, f"$h_{t}$", kind="hidden", w=0.95, h=0.8, size=11)
        for t in range(1, 7):
            a, b = xs[t - 1] + 0.475, xs[t] - 0.475
            arrow(ax, (a, y + 0.16), (b, y + 0.16))
            if t - 1 == cut:
                label(ax, (a + b) / 2, y - 0.2, "✂", size=12, kind="gradient")
                label(ax, (a + b) / 2, y - 0.78, "detach", size=9, kind="gradient")
                continue
            kind = "gradient" if cut is None or t > cut else "muted"
            arrow(ax, (b, y - 0.16), (a, y - 0.16), kind=kind)
            label(ax, (a + b) / 2, y - 0.6, f"$J_{t}$", kind=kind, size=10)
        box(ax, 14.35, y, "$L_6$", kind="plain", w=0.95, h=0.8, size=11)
        arrow(ax, (xs[6] + 0.475, y + 0.16), (14.35 - 0.475, y + 0.16))
        arrow(ax, (14.35 - 0.475, y - 0.16), (xs[6] + 0.475, y - 0.16), kind="gradient")
    label(
        ax, 7.5, 4.05,
        "$\\frac{\\partial L_6}{\\partial h_1} = \\frac{\\partial L_6}{\\partial h_6}\\ J_6\\ J_5\\ J_4\\ J_3\\ J_2$",
        size=12,
    )  # fmt: skip
    label(ax, 4.1, 0.55, "nothing of $L_6$ arrives here", size=9.5, kind="muted")
    return ax


@diagram(
    alt=(
        "Fourteen steps of a stream, a symbol at each. Below, what must be output: a question mark for the first six "
        "steps, then the symbol of six steps before; an arrow leads from the symbol of step 4 to output 10. "
        "Two rows of bars show the windows: the first network's runs from step 1 beyond the edge, to step 24; the "
        "second network's end after steps 6 and 12, each with a pair of scissors at its end."
    ),
    caption=(
        "What are the two networks asked? At every step, for the symbol of six steps ago (arrow). They differ only in "
        "where learning cuts the stream (scissors). The state's numbers cross every cut."
    ),
)
def two_windows():
    """The task of the opening, and the two ways to cut its stream."""
    ax = canvas(15, 6.2)
    letters = "caebdacbeadcba"
    xs = [3.1 + 0.84 * t for t in range(len(letters))]
    for y, name in ((5.4, "reads"), (3.9, "must output"), (2.2, "first network"), (0.9, "second network")):
        label(ax, 0.1, y, name, align="left", size=10)
    for t, x in enumerate(xs):
        label(ax, x, 6.0, str(t + 1), size=8, kind="muted")
        box(ax, x, 5.4, letters[t], kind="input", w=0.64, h=0.64, size=11)
        answer = letters[t - 6] if t >= 6 else "?"
        box(ax, x, 3.9, answer, kind="output" if t >= 6 else "faint", w=0.64, h=0.64, size=11)
    arrow(ax, (xs[3] + 0.1, 5.08), (xs[9] - 0.2, 4.22))
    edge = xs[-1] + 0.32
    box(
        ax,
        (xs[0] - 0.32 + edge) / 2,
        2.2,
        "window of 24: goes on to step 24",
        kind="hidden",
        w=edge - xs[0] + 0.32,
        h=0.7,
    )
    for a, b, text in ((0, 5, "window of 6"), (6, 11, "window of 6"), (12, 13, "")):
        left, right = xs[a] - 0.32, xs[b] + 0.32
        box(ax, (left + right) / 2, 0.9, text, kind="hidden", w=right - left, h=0.7)
        if b < 13:
            label(ax, (xs[b] + xs[b + 1]) / 2, 0.32, "✂", size=12, kind="gradient")
    return ax
