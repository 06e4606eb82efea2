"""Chapter 05's diagrams: the LSTM cell gate by gate, the GRU cell on the same canvas, the additive short-cut."""

from course_lib.notebook.diagrams import FRAME, arrow, box, canvas, diagram, frame, joint, label, operation, wire

LINE, PRODUCT, GATES, BUS, INPUT = (
    6.35,
    5.2,
    3.95,
    2.55,
    0.75,
)  # heights: memory, products, gates, the wire with x and h
LEFT, RIGHT = 2.4, 13.6  # the frame of a cell
STEPS = {"LSTM": ("memory line", "forget", "write", "show"), "GRU": ("update", "reset")}


def _stage(model, step, equation):
    """The frame of a cell, what is new in this step above it, and its equation below."""
    ax = canvas(16, 8.7)
    frame(ax, LEFT, 1.75, RIGHT - LEFT, 5.55)
    names = STEPS[model]
    for i, name in enumerate(names):
        x = 8.3 + 3.3 * (i - (len(names) - 1) / 2)
        operation(ax, x - 1.05, 8.2, str(i + 1), kind="ink" if i == step else "faint", r=0.29, size=9.5)
        kind = "ink" if i == step else "faint"
        label(ax, x - 0.6, 8.18, name, kind=kind, size=10, align="left", weight="bold" if i == step else "normal")
    label(ax, 9.3, INPUT, equation, size=11)
    return ax


class _Pen:
    """Draws a part in its colour, heavier when it is new, and faint when it is not yet there."""

    def __init__(self, ax, step):
        self.ax, self.step = ax, step

    def kind(self, since, kind):
        return kind if since <= self.step else "faint"

    def wire(self, since, *points, kind="ink", head=True):
        lw = 2.6 if since == self.step else 1.6
        wire(self.ax, points, self.kind(since, kind), head=head, lw=lw if since <= self.step else 1.2)

    def gate(self, since, x, name, function, kind, w=1.5, size=9.5):
        self.wire(since, (x, BUS), (x, GATES - 0.55))
        new = since == self.step
        lw = 2.6 if new else 1.6
        box(self.ax, x, GATES, "", self.kind(since, kind), w=w, h=1.1, lw=lw if since <= self.step else 1.2)
        ink = self.kind(since, "ink")
        label(self.ax, x, GATES + 0.24, name, ink, size=9.5, weight="bold" if since <= self.step else "normal")
        label(self.ax, x, GATES - 0.23, function, ink, size=size)

    def operation(self, since, x, y, sign, kind="ink"):
        operation(self.ax, x, y, sign, self.kind(since, kind))

    def name(self, since, x, y, text, kind, size=11, align="center"):
        if since <= self.step:
            label(self.ax, x, y, text, kind, size=size, align=align)

    def joint(self, since, x, y, kind="ink"):
        joint(self.ax, x, y, self.kind(since, kind))


def _inputs(pen, since, end, state_line):
    """Token and old state, joined to the wire that every gate reads, which runs to x = end."""
    if not state_line:
        pen.wire(since, (0.35, BUS), (3.1, BUS), kind="hidden state", head=False)
        pen.wire(since, (3.1, BUS), (end, BUS), head=False)
        pen.name(since, 1.3, BUS + 0.4, "$h_{t-1}$", "hidden state", size=12)
        pen.name(since, 1.3, BUS - 0.38, "(B, D)", "muted", size=8.5)
    pen.wire(since, (3.1, 1.08), (3.1, BUS), kind="token", head=False)
    box(pen.ax, 3.1, INPUT, "$x_t$", pen.kind(since, "token"), w=1.1, h=0.66, size=12)
    pen.name(since, 3.85, INPUT, "(B, I)", "muted", size=8.5, align="left")


def _ends(pen, since, y, left, right, kind):
    """Names and shapes of what goes in and out at height y."""
    if left:
        pen.name(since, 1.3, y + 0.4, left, kind, size=12)
        pen.name(since, 1.3, y - 0.38, "(B, D)", "muted", size=8.5)
    if right:
        pen.name(since, 14.7, y + 0.4, right, kind, size=12)
        pen.name(since, 14.7, y - 0.38, "(B, D)", "muted", size=8.5)


def _lstm(step, equation):
    """The LSTM cell: 0 the line, 1 the forget gate, 2 input gate and candidate, 3 the output gate."""
    ax = _stage("LSTM", step, equation)
    pen = _Pen(ax, step)
    forget, enter, write, show, out = 4.35, 6.3, 8.25, 10.2, 12.4
    pen.wire(0, (0.35, LINE), (15.65, LINE), kind="cell state")
    _ends(pen, 0, LINE, "$c_{t-1}$", "$c_t$", "cell state")
    _inputs(pen, 1, (forget, forget, write, show)[step], state_line=False)
    if step < 3:
        pen.wire(3, ((forget, forget, write)[step], BUS), (show, BUS), head=False)
    pen.joint(1, 3.1, BUS)
    pen.gate(1, forget, "forget", r"$\sigma$", "forget gate")
    pen.wire(1, (forget, GATES + 0.55), (forget, LINE - 0.27), kind="forget gate")
    pen.operation(0, forget, LINE, "×")
    pen.name(1, forget + 0.4, PRODUCT, "$f_t$", "forget gate")
    pen.gate(2, enter, "input", r"$\sigma$", "input gate")
    pen.wire(2, (enter, GATES + 0.55), (enter, PRODUCT), (write - 0.27, PRODUCT), kind="input gate")
    pen.name(2, enter + 0.55, PRODUCT + 0.32, "$i_t$", "input gate")
    pen.gate(2, write, "candidate", "tanh", "candidate", w=1.85)
    pen.wire(2, (write, GATES + 0.55), (write, PRODUCT - 0.27), kind="candidate")
    pen.name(2, write + 0.45, PRODUCT - 0.48, "$g_t$", "candidate")
    pen.wire(2, (write, PRODUCT + 0.27), (write, LINE - 0.27))
    pen.operation(2, write, PRODUCT, "×")
    pen.operation(0, write, LINE, "+")
    pen.gate(3, show, "output", r"$\sigma$", "output gate")
    pen.wire(3, (show + 0.75, GATES), (out - 0.27, GATES), kind="output gate")
    pen.name(3, show + 1.15, GATES + 0.32, "$o_t$", "output gate")
    pen.wire(3, (out, LINE), (out, PRODUCT + 0.3), kind="cell state")
    pen.joint(3, out, LINE, kind="cell state")
    box(ax, out, PRODUCT, "tanh", pen.kind(3, "plain"), w=1.15, h=0.6, size=9.5)
    pen.wire(3, (out, PRODUCT - 0.3), (out, GATES + 0.27), kind="cell state")
    pen.wire(3, (out, GATES - 0.27), (out, BUS), (15.65, BUS), kind="hidden state")
    pen.operation(3, out, GATES, "×")
    _ends(pen, 3, BUS, "", "$h_t$", "hidden state")
    if step == 0:
        label(ax, forget, LINE - 0.72, "how much of the\nold memory stays?", size=9.5, background=FRAME)
        label(ax, write, LINE - 0.56, "what is written?", size=9.5, background=FRAME)
    return ax


@diagram(
    alt=(
        "The frame of a cell. Through its top runs one line from the old memory c t-1 on the left to the new memory "
        "c t on the right. On it a product, how much of the old memory stays?, and a sum, what is written?, and "
        "nothing else. The rest of the cell is drawn faintly, without names."
    ),
    caption=(
        "Step 1, the cell line: the memory runs straight through time. In each step it is multiplied once, entry "
        "by entry, and added to once. What is grey comes later."
    ),
)
def lstm_cell_line():
    """The line alone."""
    return _lstm(0, r"$c_t \;=\; (\;?\;) \odot c_{t-1} \;+\; (\;?\;)$")


@diagram(
    alt=(
        "The same cell; new is the forget gate. The old hidden state from the left and the input from below join on a "
        "wire at the bottom, from which a sigmoid layer computes f; its numbers multiply the memory."
    ),
    caption=(
        "Step 2, the forget gate: x and h decide, entry by entry, which fraction of the old cell stays "
        "(1: all, 0: nothing)."
    ),
)
def lstm_forget_gate():
    """The line and the forget gate."""
    return _lstm(1, r"$f_t = \sigma(x_t W_{if}^\top + h_{t-1} W_{hf}^\top + b_f)$")


@diagram(
    alt=(
        "The same cell; new are two layers on the same wire: a sigmoid, the input gate i, and a tanh, the candidate "
        "g. Their product is added to the memory."
    ),
    caption="Step 3, the input gate: tanh proposes what could be written, the input gate says how much of it is.",
)
def lstm_input_gate():
    """The line, forget and input gates."""
    return _lstm(2, r"$c_t = f_t \odot c_{t-1} + i_t \odot g_t$")


@diagram(
    alt=(
        "The whole LSTM cell, nothing faint any more: new is the output gate o, which multiplies tanh of the new "
        "memory and gives the new hidden state h, which leaves on the right at the height at which the old one came."
    ),
    caption=(
        "Step 4, the output gate, and with it the whole cell. Two states leave: the memory $c_t$ above, and the hidden "
        "state $h_t$ below, which shows a part of it."
    ),
)
def lstm_cell():
    """The whole cell."""
    return _lstm(3, r"$h_t = o_t \odot \tanh(c_t)$")


def _small_cell(ax, x, t):
    """One LSTM cell of a chain, its parts without names; x is the frame's left edge."""
    frame(ax, x, 1.55, 5.6, 4.1)
    line, product, gates, bus = 5.0, 4.05, 3.0, 2.05
    at = {"f": x + 1.0, "i": x + 2.05, "g": x + 3.0, "o": x + 3.95}
    out = x + 4.9
    wire(ax, [(max(0.2, x - 1.5), bus), (x + 0.45, bus)], "hidden state", head=False)
    wire(ax, [(x + 0.45, bus), (at["o"], bus)], head=False)
    wire(ax, [(x + 0.45, 1.12), (x + 0.45, bus)], "token", head=False)
    joint(ax, x + 0.45, bus)
    box(ax, x + 0.45, 0.8, f"$x_{t}$", "token", w=1.0, h=0.62, size=11)
    kinds = {"f": "forget gate", "i": "input gate", "g": "candidate", "o": "output gate"}
    for name, kind in kinds.items():
        wire(ax, [(at[name], bus), (at[name], gates - 0.3)], lw=1.3)
        box(ax, at[name], gates, f"${name}$", kind, w=0.72, h=0.6, size=11)
    wire(ax, [(at["f"], gates + 0.3), (at["f"], line - 0.22)], "forget gate")
    wire(ax, [(at["i"], gates + 0.3), (at["i"], product), (at["g"] - 0.22, product)], "input gate")
    wire(ax, [(at["g"], gates + 0.3), (at["g"], product - 0.22)], "candidate")
    wire(ax, [(at["g"], product + 0.22), (at["g"], line - 0.22)])
    wire(ax, [(at["o"] + 0.36, gates), (out - 0.22, gates)], "output gate")
    wire(ax, [(out, line), (out, gates + 0.22)], "cell state")
    box(ax, out, product, "tanh", w=0.95, h=0.5, size=8.5)
    wire(ax, [(out, gates - 0.22), (out, bus), (x + 5.6, bus)], "hidden state", head=False)
    joint(ax, out, line, "cell state")
    for where, sign in (((at["f"], line), "×"), ((at["g"], line), "+"), ((at["g"], product), "×"), ((out, gates), "×")):
        operation(ax, *where, sign, r=0.22, size=9.5)


@diagram(
    alt=(
        "Two LSTM cells side by side, the same drawing twice. The memory line c runs along the top through both, the "
        "hidden state h along the bottom leaves the first and enters the second at one height; each cell reads its "
        "own input from below."
    ),
    caption=(
        "Unrolled, the cells are chained at two heights: the memory $c$ passes above, touched by a product and a sum "
        "in each step; the hidden state $h$ passes below, through all the gates."
    ),
)
def lstm_chain():
    """Two chained cells."""
    ax = canvas(16, 6.2)
    wire(ax, [(0.2, 5.0), (15.8, 5.0)], "cell state", lw=2.4)
    for x, t in ((1.5, 1), (8.6, 2)):
        _small_cell(ax, x, t)
    wire(ax, [(14.2, 2.05), (15.8, 2.05)], "hidden state")
    for x, t in ((0.65, 0), (7.85, 1), (15.1, 2)):
        label(ax, x, 5.35, f"$c_{t}$", "cell state", size=12)
        label(ax, x, 2.4, f"$h_{t}$", "hidden state", size=12)
    return ax


def _gru(step, equation):
    """The GRU cell: 0 the update gate and a plain candidate, 1 the reset gate, and so all of it."""
    ax = _stage("GRU", step, equation)
    pen = _Pen(ax, step)
    tap, update, reset, candidate, blend = 3.1, 4.55, 6.5, 10.45, 11.9
    pen.wire(0, (0.35, LINE), (15.65, LINE), kind="hidden state")
    pen.wire(0, (tap, LINE), (tap, BUS), kind="hidden state", head=False)
    _inputs(pen, 0, candidate, state_line=True)
    pen.wire(0, (tap, BUS), (candidate, BUS), head=False)
    pen.joint(0, tap, LINE, kind="hidden state")
    pen.joint(0, tap, BUS)
    pen.gate(0, update, "update", r"$\sigma$", "update gate")
    pen.gate(1, reset, "reset", r"$\sigma$", "reset gate")
    proposal = r"$\tanh(x_t W_{in}^\top + r_t \odot (h_{t-1} W_{hn}^\top))$"
    if step == 0:
        proposal = r"$\tanh(x_t W_{in}^\top + h_{t-1} W_{hn}^\top)$"
    pen.gate(0, candidate, "candidate", proposal, "candidate", w=4.7)
    pen.wire(1, (reset + 0.75, GATES), (candidate - 2.35, GATES), kind="reset gate")
    pen.wire(0, (update, GATES + 0.55), (update, LINE - 0.27), kind="update gate")
    pen.wire(0, (update, PRODUCT), (7.7, PRODUCT), kind="update gate")
    pen.joint(0, update, PRODUCT, kind="update gate")
    box(ax, 8.4, PRODUCT, "$1 - z_t$", "update gate", w=1.4, h=0.6)
    pen.wire(0, (9.1, PRODUCT), (blend - 0.27, PRODUCT), kind="update gate")
    pen.wire(0, (blend, GATES + 0.55), (blend, PRODUCT - 0.27), kind="candidate")
    pen.wire(0, (blend, PRODUCT + 0.27), (blend, LINE - 0.27))
    pen.operation(0, blend, PRODUCT, "×")
    pen.operation(0, update, LINE, "×")
    pen.operation(0, blend, LINE, "+")
    pen.name(0, update + 0.4, PRODUCT + 0.4, "$z_t$", "update gate")
    pen.name(1, reset + 1.13, GATES + 0.32, "$r_t$", "reset gate")
    pen.name(0, blend + 0.45, GATES + 0.78, "$n_t$", "candidate")
    _ends(pen, 0, LINE, "$h_{t-1}$", "$h_t$", "hidden state")
    return ax


@diagram(
    alt=(
        "The frame of a GRU cell. The state runs along a line at the top. A branch of it and the input from below join "
        "on a wire at the bottom, which feeds a sigmoid layer, the update gate z, and the candidate n, a tanh layer. z "
        "multiplies the state on its line, 1 - z multiplies the candidate, and the two are added. The reset gate is "
        "still faint."
    ),
    caption=(
        "The GRU, step 1, the update gate: one gate does two jobs. A fraction z of the old state stays, "
        "a fraction 1 - z of the candidate comes in."
    ),
)
def gru_update_gate():
    """The line of the state, and what is mixed into it."""
    return _gru(0, r"$h_t = (1 - z_t) \odot n_t + z_t \odot h_{t-1}$")


@diagram(
    alt=(
        "The same cell; new is a second sigmoid layer, the reset gate r, on the wire with input and old state. It "
        "enters the candidate, which is now tanh of x W in plus r times h W hn."
    ),
    caption=(
        "The GRU, step 2, the reset gate, and with it the whole cell. It decides how much of the old state the "
        "candidate may use. One state is memory and output in one. (The biases are left out.)"
    ),
)
def gru_reset_gate():
    """The candidate and its gate."""
    return _gru(1, r"$n_t = \tanh(x_t W_{in}^\top + r_t \odot (h_{t-1} W_{hn}^\top))$")


@diagram(
    alt=(
        "Two rows. Plain RNN: four hidden states in a chain, and between each two a box W hh and tanh. GRU: the same "
        "states on a straight line, only a product with z between each two; the candidates n come in from below with "
        "weight 1 - z."
    ),
    caption=(
        "Three steps of each. The GRU's straight line only scales the old state. (Dashed: the candidate reads the "
        "old state, too.)"
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
        box(ax, x, 5.3, "$W_{hh}$, tanh", kind="RNN", w=1.7, size=9.5)
        arrow(ax, (x - 1.45, 5.3), (x - 0.85, 5.3))
        arrow(ax, (x + 0.85, 5.3), (x + 1.45, 5.3))
        arrow(ax, (x - 1.45, 3.1), (x - 0.85, 3.1), kind="hidden")
        box(ax, x - 0.4, 3.1, f"× $z_{t}$", kind="update gate", w=0.9, h=0.6, size=9.5)
        arrow(ax, (x + 0.05, 3.1), (x + 0.45, 3.1), kind="hidden")
        operation(ax, x + 0.72, 3.1, "+")
        arrow(ax, (x + 1.0, 3.1), (x + 1.45, 3.1), kind="hidden")
        box(ax, x + 0.72, 1.75, f"× $(1 - z_{t})$", kind="update gate", w=1.5, h=0.6, size=9.5)
        arrow(ax, (x + 0.72, 2.05), (x + 0.72, 2.82))
        box(ax, x + 0.72, 0.6, f"$n_{t}$", kind="candidate", w=1.0, h=0.6)
        arrow(ax, (x + 0.72, 0.9), (x + 0.72, 1.45))
        arrow(ax, (x - 1.75, 2.75), (x + 0.2, 0.7), kind="muted", dashed=True)
    return ax
