"""Diagrams of chapter 03: a loop with a state, the same unrolled, in two directions, and in layers."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, label, wire


@diagram(
    alt="Left: a green box, the step f, takes the input x_t from below; a loop leads its state h_t back into it as "
    "h_(t-1). Above it a small box g makes the output y_t from the state. Right: the same in words, for a reader who "
    "keeps track of quotations.",
    caption="One function, applied again and again: each turn reads one input and the state left by the turn "
    "before. Whatever the past contributes must pass through the state.",
)
def rnn_loop():
    """Draw the loop with a latent state, in symbols and for one example."""
    ax = canvas(16, 7.6)
    for x, below, inside, read, above in (
        (4.0, r"$\mathbf{x}_t$", "$f$", "$g$", r"$\mathbf{y}_t$"),
        (11.6, "next character", "a quote mark?\nthen flip", "read it off", "inside a quotation?"),
    ):
        example = x > 8
        box(ax, x, 3.2, inside, kind="hidden", w=3.0 if example else 1.8, h=1.2, size=11)
        box(ax, x, 0.8, below, kind="input", w=3.0 if example else 1.5, h=0.75, size=11)
        box(ax, x, 5.05, read, kind="output", w=2.2 if example else 0.9, h=0.65, size=10.5)
        box(ax, x, 6.7, above, kind="output", w=3.7 if example else 1.5, h=0.75, size=11)
        arrow(ax, (x, 1.2), (x, 2.58))
        arrow(ax, (x, 3.82), (x, 4.7))
        arrow(ax, (x, 5.4), (x, 6.3))
        side = x + (1.5 if example else 0.9)
        _loop_back(ax, side, 3.2)
    label(ax, 6.05, 3.5, r"$\mathbf{h}_t$, which is the next", kind="hidden", size=10.5, align="left")
    label(ax, 6.05, 2.85, r"turn's $\mathbf{h}_{t-1}$", kind="hidden", size=10.5, align="left")
    label(ax, 14.3, 3.2, "inside\nor not", kind="hidden", size=10.5, align="left")
    return ax


def _loop_back(ax, x, y):
    """An arrow that leaves a box on its right side and comes back to it, below."""
    wire(ax, [(x, y + 0.3), (x + 0.9, y + 0.3), (x + 0.9, y - 0.3), (x, y - 0.3)], "hidden state", r=0.25)


@diagram(
    alt="Four columns. From each input x_1 to x_4 an arrow W_ih leads up to a hidden state h_1 to h_4, from each state "
    "an arrow W_ho up to an output. Arrows W_hh lead from h_0 to h_1 and on to h_4. Every column has the same weights.",
    caption="Unrolled over time, the loop is a deep network with one layer for each step, in which all layers share "
    "the same weights (purple). A longer sequence makes it deeper, not larger.",
)
def rnn_unrolled():
    """Draw four steps of the unrolled loop, with the shared weights on the arrows."""
    ax = canvas(16, 7.4)
    columns = [3.6 + 3.4 * t for t in range(4)]
    box(ax, 0.9, 3.7, r"$\mathbf{h}_0=0$", kind="hidden", w=1.6, h=0.85, size=11)
    for t, x in enumerate(columns, 1):
        box(ax, x, 0.8, rf"$\mathbf{{x}}_{t}$", kind="input", w=1.5, h=0.8, size=12)
        box(ax, x, 3.7, rf"$\mathbf{{h}}_{t}$", kind="hidden", w=1.5, h=0.85, size=12)
        box(ax, x, 6.6, rf"$\mathbf{{y}}_{t}$", kind="output", w=1.5, h=0.8, size=12)
        arrow(ax, (x, 1.22), (x, 3.25))
        arrow(ax, (x, 4.15), (x, 6.18))
        start = 1.72 if t == 1 else columns[t - 2] + 0.77
        arrow(ax, (start, 3.7), (x - 0.77, 3.7), kind="hidden")
        label(ax, (start + x - 0.77) / 2 - 0.05, 4.15, "$W_{hh}$", kind="weight", size=11)
        label(ax, x + 0.5, 2.2, "$W_{ih}$", kind="weight", size=11)
        label(ax, x + 0.5, 5.15, "$W_{ho}$", kind="weight", size=11)
    return ax


@diagram(
    alt="Five columns for the piece Return. Inputs R, e, t, u, r lead up to states h_1 to h_5, which are joined from "
    "left to right; from each state an arrow leads up to logits. On top stand the targets e, t, u, r, n. In each "
    "column logits and target meet in a loss.",
    caption="Each step has a target and a loss: the target is the input of the next step, one column to the right.",
)
def rnn_next_character():
    """Draw the inputs, states, logits, losses and targets of the piece Return."""
    ax = canvas(16, 9.2)
    piece, columns = "Return", [3.3 + 2.8 * t for t in range(5)]
    label(ax, 1.35, 2.7, r"$\mathbf{h}_0$", kind="hidden", size=12)
    for t, x in enumerate(columns):
        box(ax, x, 0.7, piece[t], kind="input", w=1.4, h=0.8, size=12)
        box(ax, x, 2.7, rf"$\mathbf{{h}}_{t + 1}$", kind="hidden", w=1.4, h=0.8, size=12)
        box(ax, x, 4.7, "logits", kind="output", w=1.4, h=0.8, size=11)
        box(ax, x, 6.6, "loss", kind="gradient", w=1.4, h=0.7, size=11)
        box(ax, x, 8.5, piece[t + 1], kind="input", w=1.4, h=0.8, size=12)
        arrow(ax, (x, 1.12), (x, 2.27))
        arrow(ax, (x, 3.12), (x, 4.27))
        arrow(ax, (x, 5.12), (x, 6.22))
        arrow(ax, (x, 8.08), (x, 6.98))
        start = 1.7 if t == 0 else columns[t - 1] + 0.72
        arrow(ax, (start, 2.7), (x - 0.72, 2.7), kind="hidden")
    for y, text in ((0.7, "inputs"), (8.5, "targets")):
        label(ax, 0.1, y, text, size=11, align="left")
    return ax


@diagram(
    alt="Six tokens: the, a blank, is, a, flightless, bird. Above them a row of states with arrows to the right, above "
    "that a row with arrows to the left. Both states of a step are joined into its output. The path from the word "
    "flightless to the blank runs through the upper row.",
    caption="Two networks read the sequence in opposite directions, with weights of their own; the output at each step "
    "is both states side by side. Only the backward one brings *flightless* to the blank (orange path).",
)
def rnn_bidirectional():
    """Draw a bidirectional layer on the start of the penguin sentence."""
    ax = canvas(16, 8.4)
    tokens = ["the", "____", "is", "a", "flightless", "bird"]
    columns = [3.05 + 2.35 * t for t in range(len(tokens))]
    low, high, ahead, back = 2.75, 4.95, -0.48, 0.48  # heights of the rows; forward states stand left, backward right
    for t, x in enumerate(columns[:-1], 1):
        wire(ax, [(x + ahead + 0.44, low), (columns[t] + ahead - 0.44, low)], "hidden state")
        carried = 2 <= t <= 4
        kind = "output" if carried else "hidden state"
        wire(ax, [(columns[t] + back - 0.44, high), (x + back + 0.44, high)], kind, lw=3 if carried else 1.6)
    for t, (x, token) in enumerate(zip(columns, tokens, strict=True), 1):
        blank, named = token == "____", token == "flightless"
        wire(ax, [(x + ahead, 1.05), (x + ahead, low - 0.42)])
        _over(ax, (x + back, 1.05), (x + back, high - 0.42), low, "output" if named else "ink", 3 if named else 1.6)
        _over(ax, (x + ahead, low + 0.42), (x + ahead, 7.1), high, "ink", 1.6)
        kind = "output" if blank else "ink"
        wire(ax, [(x + back, high + 0.42), (x + back, 7.1)], kind, lw=3 if blank else 1.6)
        box(ax, x, 0.7, token, kind="token", w=2.1, h=0.7, size=10.5)
        box(ax, x + ahead, low, rf"$\overrightarrow{{\mathbf{{h}}}}_{t}$", kind="hidden state", w=0.86, h=0.84, size=11)
        kind = "output" if 2 <= t <= 5 else "hidden state"
        box(ax, x + back, high, rf"$\overleftarrow{{\mathbf{{h}}}}_{t}$", kind=kind, w=0.86, h=0.84, size=11)
        box(ax, x, 7.52, rf"$[\overrightarrow{{\mathbf{{h}}}}_{t};\overleftarrow{{\mathbf{{h}}}}_{t}]$",
            kind="output" if blank else "muted", w=1.9, h=0.84, size=11)  # fmt: skip
    for y, text in ((0.7, "tokens"), (low, "reads\nforward"), (high, "reads\nbackward"), (7.52, "output\n(B, T, 2D)")):
        label(ax, 0.1, y, text, size=9.5, align="left")
    return ax


def _over(ax, start, end, crossed, kind, lw):
    """An upright wire that passes over what it crosses at height `crossed`, which is left out around it."""
    from matplotlib.patches import Rectangle

    ax.add_patch(Rectangle((start[0] - 0.13, crossed - 0.12), 0.26, 0.24, facecolor="white", lw=0, zorder=0.85))
    wire(ax, [start, end], kind, lw=lw)
    ax.patches[-1].set_zorder(0.9)


@diagram(
    alt="Three time steps in two layers. Inputs x_1 to x_3 lead up to the states of layer 0, these to the states of "
    "layer 1, these to the output. Within each layer arrows lead from step to step. Between the layers stands dropout.",
    caption="The states of one layer are the inputs of the next. `output` holds the top row, for every step; `h_n` "
    "holds the right-hand column, for every layer. Dropout acts between layers, never along time.",
)
def rnn_stacked():
    """Draw two stacked layers over three steps, with what output and h_n contain."""
    ax = canvas(16, 8.8)
    columns, rows = [4.2, 7.4, 10.6], [3.0, 5.6]
    for t, x in enumerate(columns, 1):
        box(ax, x, 0.7, rf"$\mathbf{{x}}_{t}$", kind="input", w=1.5, h=0.8, size=12)
        arrow(ax, (x, 1.12), (x, rows[0] - 0.45))
        arrow(ax, (x, rows[0] + 0.45), (x, rows[1] - 0.45), dashed=True)
        arrow(ax, (x, rows[1] + 0.45), (x, 7.3))
        for n, y in enumerate(rows):
            box(ax, x, y, rf"$\mathbf{{h}}^{{({n})}}_{t}$", kind="hidden", w=1.5, h=0.85, size=12)
            start = 2.1 if t == 1 else columns[t - 2] + 0.77
            arrow(ax, (start, y), (x - 0.77, y), kind="hidden")
    for n, y in enumerate(rows):
        label(ax, 0.1, y, f"layer {n}", size=10.5, align="left", weight="bold")
        label(ax, 1.85, y, "0", kind="hidden", size=11)
    label(ax, 8.9, 4.3, "dropout", kind="muted", size=9.5)
    label(ax, 5.75, 4.3, "dropout", kind="muted", size=9.5)
    _frame(ax, (3.1, 7.3), 8.6, 1.1, "output")
    label(ax, 7.4, 7.85, "output: (B, T, D), the top layer at every step", kind="ink", size=10.5)
    _frame(ax, (9.65, 2.35), 1.9, 3.95, "attention")
    label(ax, 11.85, 4.6, "h_n: (N, B, D),", size=10.5, align="left")
    label(ax, 11.85, 4.05, "every layer at", size=10.5, align="left")
    label(ax, 11.85, 3.5, "the last step", size=10.5, align="left")
    return ax


def _frame(ax, corner, width, height, kind):
    """A dashed frame around what belongs together."""
    from matplotlib.patches import Rectangle

    from course_lib.notebook.plots import COLORS

    ax.add_patch(Rectangle(corner, width, height, fill=False, edgecolor=COLORS[kind], lw=1.6, linestyle="--"))
