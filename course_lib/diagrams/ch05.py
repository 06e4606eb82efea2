"""Chapter 05's diagrams: the LSTM cell gate by gate, the GRU cell gate by gate, the additive short-cut."""

from course_lib import plots
from course_lib.diagrams import arrow, box, canvas, diagram, label

TOP, MIDDLE, GATES, BUS = 5.6, 4.2, 2.75, 1.45  # heights: cell line, products, gates, the wire with x and h


def _wire(ax, *points, kind="ink"):
    """A line through the points, without an arrow's head."""
    xs, ys = zip(*points, strict=True)
    ax.plot(xs, ys, color=plots.COLORS[kind], lw=1.6, solid_capstyle="butt", zorder=0.5)


def _operation(ax, x, y, sign):
    """A small box with × or +."""
    box(ax, x, y, sign, w=0.55, h=0.55, size=11)


def _gate(ax, x, name, kind, y=GATES):
    """A layer that reads the wire below it."""
    arrow(ax, (x, BUS), (x, y - 0.35))
    box(ax, x, y, name, kind=kind, w=1.3, h=0.7)


def _lstm(parts, equation):
    """The LSTM cell with the named parts: any of "forget", "input", "output"."""
    ax = canvas(14, 6.6 if parts else 2.2)
    _cell_line(ax, parts, TOP if parts else 1.6)
    if parts:
        _read_x_and_h(ax, {"forget": 3.3, "input": 6.9, "output": 9.0}[parts[-1]])
    if "forget" in parts:
        _gate(ax, 3.3, "σ:  $f_t$", "attention")
        arrow(ax, (3.3, GATES + 0.35), (3.3, TOP - 0.28))
    if "input" in parts:
        _gate(ax, 5.1, "σ:  $i_t$", "attention")
        _gate(ax, 6.9, "tanh:  $g_t$", "hidden")
        _operation(ax, 6.0, MIDDLE, "×")
        arrow(ax, (5.1, GATES + 0.35), (5.78, MIDDLE - 0.28))
        arrow(ax, (6.9, GATES + 0.35), (6.22, MIDDLE - 0.28))
        arrow(ax, (6.0, MIDDLE + 0.28), (6.0, TOP - 0.28))
    if "output" in parts:
        _gate(ax, 9.0, "σ:  $o_t$", "attention")
        arrow(ax, (11.0, TOP), (11.0, MIDDLE + 0.35), kind="hidden")
        box(ax, 11.0, MIDDLE, "tanh", w=1.2, h=0.7)
        arrow(ax, (11.0, MIDDLE - 0.35), (11.0, GATES + 0.28), kind="hidden")
        _operation(ax, 11.0, GATES, "×")
        arrow(ax, (9.65, GATES), (10.72, GATES))
        arrow(ax, (11.28, GATES), (12.65, GATES), kind="hidden")
        box(ax, 13.2, GATES, "$h_t$", kind="hidden", w=1.0)
    label(ax, 7, 0.35, equation, size=11)
    return ax


def _cell_line(ax, parts, y):
    """The cell from left to right, with a place for the product and one for the sum."""
    box(ax, 0.8, y, "$c_{t-1}$", kind="hidden", w=1.2)
    box(ax, 13.2, y, "$c_t$", kind="hidden", w=1.0)
    signs = {3.3: "×", 6.0: "+"} if "input" in parts or not parts else {3.3: "×"}
    stops = [1.12, *signs]
    for start, end in zip(stops, [*signs, 12.98], strict=True):
        arrow(ax, (start + 0.28, y), (end - 0.28, y), kind="hidden")
    for x, sign in signs.items():
        _operation(ax, x, y, sign)


def _read_x_and_h(ax, end):
    """Input and old state, joined to the wire that every gate reads."""
    box(ax, 0.8, BUS + 0.5, "$h_{t-1}$", kind="hidden", w=1.2)
    box(ax, 0.8, BUS - 0.5, "$x_t$", kind="input", w=1.2)
    _wire(ax, (1.4, BUS + 0.5), (1.9, BUS + 0.5), (1.9, BUS), (end, BUS))
    _wire(ax, (1.4, BUS - 0.5), (1.9, BUS - 0.5), (1.9, BUS))


@diagram(
    alt=(
        "A line from the old cell c t-1 on the left to the new cell c t on the right. On it a product and a sum, "
        "and nothing else: no weight matrix, no tanh."
    ),
    caption=(
        "Step 1, the cell line: the memory runs straight through time. In each step it is multiplied once, entry "
        "by entry, and added to once."
    ),
)
def lstm_cell_line():
    """The line alone."""
    return _lstm([], "$c_t \\;=\\; (\\;?\\;) \\odot c_{t-1} \\;+\\; (\\;?\\;)$")


@diagram(
    alt=(
        "The cell line with its product. The old hidden state and the input feed a sigmoid layer, the forget gate f; "
        "the gate's numbers multiply the cell."
    ),
    caption=(
        "Step 2, the forget gate: x and h decide, entry by entry, which share of the old cell stays "
        "(1: all, 0: nothing)."
    ),
)
def lstm_forget_gate():
    """The line and the forget gate."""
    return _lstm(["forget"], "$f_t = \\sigma(x_t W_{if}^\\top + b_{if} + h_{t-1} W_{hf}^\\top + b_{hf})$")


@diagram(
    alt=(
        "The cell line with forget gate, and two new layers: a sigmoid, the input gate i, and a tanh, the candidate "
        "g. Their product is added to the cell."
    ),
    caption="Step 3, the input gate: tanh proposes what could be written, the input gate says how much of it is.",
)
def lstm_input_gate():
    """The line, forget and input gates."""
    return _lstm(["forget", "input"], "$c_t = f_t \\odot c_{t-1} + i_t \\odot g_t$")


@diagram(
    alt=(
        "The whole LSTM cell: forget gate, input gate with candidate, and the output gate o, which multiplies tanh of "
        "the new cell and gives the new hidden state h."
    ),
    caption=(
        "Step 4, the output gate, and with it the whole cell: two states leave, the memory $c_t$ and its "
        "visible part $h_t$. Blue layers are gates between 0 and 1, green is what is remembered."
    ),
)
def lstm_cell():
    """The whole cell."""
    return _lstm(["forget", "input", "output"], "$h_t = o_t \\odot \\tanh(c_t)$")


def _gru_candidate(ax):
    """The reset gate and the candidate, reset after the product with W_hn."""
    box(ax, 3.2, BUS, "$h W_{hn}^\\top + b_{hn}$", kind="weight", w=2.5, h=0.7, size=9)
    arrow(ax, (1.5, BUS), (1.95, BUS), kind="hidden")
    box(ax, 3.2, GATES + 0.2, "σ:  $r_t$", kind="attention", w=1.3)
    arrow(ax, (1.5, GATES + 0.2), (2.55, GATES + 0.2))
    _operation(ax, 5.4, BUS, "×")
    arrow(ax, (4.45, BUS), (5.12, BUS))
    arrow(ax, (3.85, GATES + 0.2), (5.25, BUS + 0.28))
    _operation(ax, 6.6, BUS, "+")
    arrow(ax, (5.68, BUS), (6.32, BUS))
    box(ax, 3.2, 0.45, "$x W_{in}^\\top + b_{in}$", kind="weight", w=2.5, h=0.7, size=9)
    arrow(ax, (1.5, 0.45), (1.95, 0.45), kind="input")
    _wire(ax, (4.45, 0.45), (6.6, 0.45))
    arrow(ax, (6.6, 0.45), (6.6, BUS - 0.28))
    box(ax, 8.2, BUS, "tanh:  $n_t$", kind="hidden", w=1.6)
    arrow(ax, (6.88, BUS), (7.4, BUS))


def _gru_mix(ax):
    """The update gate and the line of the state."""
    box(ax, 5.9, MIDDLE - 0.1, "σ:  $z_t$", kind="attention", w=1.3)
    arrow(ax, (1.5, MIDDLE - 0.1), (5.25, MIDDLE - 0.1))
    _operation(ax, 5.9, TOP, "×")
    _operation(ax, 10.2, TOP, "+")
    arrow(ax, (5.9, MIDDLE + 0.25), (5.9, TOP - 0.28))
    arrow(ax, (1.5, TOP), (5.62, TOP), kind="hidden")
    arrow(ax, (6.18, TOP), (9.92, TOP), kind="hidden")
    arrow(ax, (10.48, TOP), (12.6, TOP), kind="hidden")
    box(ax, 13.15, TOP, "$h_t$", kind="hidden", w=1.0)
    box(ax, 8.2, MIDDLE - 0.1, "$1 - z_t$", kind="attention", w=1.4)
    arrow(ax, (6.55, MIDDLE - 0.1), (7.5, MIDDLE - 0.1))
    _operation(ax, 10.2, MIDDLE - 0.1, "×")
    arrow(ax, (8.9, MIDDLE - 0.1), (9.92, MIDDLE - 0.1))
    arrow(ax, (10.2, MIDDLE + 0.18), (10.2, TOP - 0.28))


def _gru_inputs(ax, rows):
    """The old state and the input at the left edge of the rows: {height: what is read there}."""
    for y, what in rows.items():
        names = {"h": "$h_{t-1}$", "x": "$x_t$", "xh": "$x_t, h_{t-1}$"}
        box(ax, 0.8, y, names[what], kind="input" if what == "x" else "hidden", w=1.4, h=0.6, size=9.5)


@diagram(
    alt=(
        "The old state times W hn, plus its bias, is multiplied by the reset gate r; x times W in with its bias is "
        "added; tanh gives the candidate n."
    ),
    caption=(
        "The GRU, step 1, the reset gate: it decides how much the candidate hears of the old state. Here the gate "
        "comes *after* the product with $W_{hn}$, as in torch."
    ),
)
def gru_reset_gate():
    """The candidate and its gate."""
    ax = canvas(14, 3.5)
    _gru_inputs(ax, {GATES + 0.2: "xh", BUS: "h", 0.45: "x"})
    _gru_candidate(ax)
    return ax


@diagram(
    alt=(
        "A line from the old state to the new one. On it a product with the update gate z, then a sum; what is "
        "added is the candidate n times 1 - z."
    ),
    caption=(
        "The GRU, step 2, the update gate: one gate does two jobs. The share z of the old state stays, "
        "the share 1 - z is replaced."
    ),
)
def gru_update_gate():
    """The line of the state, without the inside of the candidate."""
    ax = canvas(14, 6.2)
    _gru_inputs(ax, {TOP: "h", MIDDLE - 0.1: "xh"})
    _gru_mix(ax)
    box(ax, 10.2, BUS + 0.6, "candidate  $n_t$", kind="hidden", w=2.4)
    arrow(ax, (10.2, BUS + 0.95), (10.2, MIDDLE - 0.38), kind="hidden")
    label(ax, 7, 0.5, "$h_t = (1 - z_t) \\odot n_t + z_t \\odot h_{t-1}$", size=11)
    return ax


@diagram(
    alt=(
        "The whole GRU cell: reset gate and candidate below, update gate above; the old state times z and the "
        "candidate times 1 - z add up to the new state."
    ),
    caption="The whole GRU: two gates, one candidate, and a single state, which is memory and output in one.",
)
def gru_cell():
    """The whole cell."""
    ax = canvas(14, 6.2)
    _gru_inputs(ax, {TOP: "h", MIDDLE - 0.1: "xh", GATES + 0.2: "xh", BUS: "h", 0.45: "x"})
    _gru_candidate(ax)
    _gru_mix(ax)
    _wire(ax, (9.0, BUS), (10.2, BUS), kind="hidden")
    arrow(ax, (10.2, BUS), (10.2, MIDDLE - 0.38), kind="hidden")
    return ax


@diagram(
    alt=(
        "Two rows. Plain RNN: four hidden states in a chain, and between each two a box W hh and tanh. GRU: the same "
        "states on a straight line, only a product with z between each two; the candidates n come in from below with "
        "weight 1 - z."
    ),
    caption=(
        "In the plain RNN every way back leads through every $W_{hh}$ and every tanh. The additive update has a "
        "straight line beside them, on which the old state is only scaled (dashed: the candidate, too, reads the "
        "old state)."
    ),
)
def additive_shortcut():
    """Three steps of a plain RNN above, three steps of a GRU below."""
    ax = canvas(14, 6.6)
    states, between = [1.0, 4.9, 8.8, 12.7], [2.95, 6.85, 10.75]
    label(ax, 0.2, 6.3, "plain RNN", align="left", weight="bold")
    label(ax, 0.2, 3.9, "GRU", align="left", weight="bold")
    for y in (5.3, 3.1):
        for t, x in enumerate(states):
            box(ax, x, y, f"$h_{t}$", kind="hidden", w=1.0)
    for t, x in enumerate(between, start=1):
        box(ax, x, 5.3, "$W_{hh}$, tanh", kind="weight", w=1.7, size=9.5)
        arrow(ax, (x - 1.45, 5.3), (x - 0.85, 5.3))
        arrow(ax, (x + 0.85, 5.3), (x + 1.45, 5.3))
        arrow(ax, (x - 1.45, 3.1), (x - 0.85, 3.1), kind="hidden")
        box(ax, x - 0.4, 3.1, f"× $z_{t}$", kind="attention", w=0.9, h=0.6, size=9.5)
        arrow(ax, (x + 0.05, 3.1), (x + 0.45, 3.1), kind="hidden")
        _operation(ax, x + 0.72, 3.1, "+")
        arrow(ax, (x + 1.0, 3.1), (x + 1.45, 3.1), kind="hidden")
        box(ax, x + 0.72, 1.75, f"× $(1 - z_{t})$", kind="attention", w=1.5, h=0.6, size=9.5)
        arrow(ax, (x + 0.72, 2.05), (x + 0.72, 2.82))
        box(ax, x + 0.72, 0.6, f"$n_{t}$", kind="hidden", w=1.0, h=0.6)
        arrow(ax, (x + 0.72, 0.9), (x + 0.72, 1.45))
        arrow(ax, (x - 1.75, 2.75), (x + 0.2, 0.7), kind="muted", dashed=True)
    return ax
