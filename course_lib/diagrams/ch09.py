"""Diagrams of chapter 09: a direct function in place of a loop, the blocks of a Transformer, writing word by word."""

from course_lib import plots
from course_lib.diagrams import arrow, box, canvas, diagram, label

# The arrows of queries, keys and values, coloured by the kind of attention, the same in every diagram of the chapter.
SELF, MASKED, CROSS = "hidden", "gradient", "attention"


def _line(ax, points, kind="ink", dashed=False, lw=1.6, behind=False):
    """A bent line through points, with an arrow's head at the end; `behind` draws it below all boxes."""
    xs, ys = zip(*points, strict=True)
    style = {"ls": "--" if dashed else "-", "solid_capstyle": "round", "zorder": 0.5 if behind else 2}
    ax.plot(xs[:-1], ys[:-1], color=plots.COLORS[kind], lw=lw, **style)
    arrow(ax, points[-2], points[-1], kind=kind, dashed=dashed)
    ax.patches[-1].set_linewidth(lw)


def _frame(ax, x, y, w, h, text):
    """A large rounded frame around a block, with N times beside it."""
    from matplotlib.patches import FancyBboxPatch

    shape = "round,pad=0,rounding_size=0.25"
    ax.add_patch(FancyBboxPatch((x, y), w, h, boxstyle=shape, facecolor="#F6F6F6", edgecolor="#BBBBBB", lw=1.2))
    if text:
        label(ax, x + 0.2, y + h - 0.4, text, size=10, align="left", weight="bold")


# --- a direct function --------------------------------------------------------------


def _units(ax, left, title, visible):
    """Four units over four inputs; unit t reads the inputs for which visible(t, s) holds."""
    x = [left + 1.75 * i for i in range(4)]
    for t in range(4):
        box(ax, x[t], 0.7, f"$x_{t + 1}$", kind="input", w=1.0, h=0.7, size=11)
        box(ax, x[t], 3.5, "$f$", kind="weight", w=1.0, h=0.8, size=12)
        arrow(ax, (x[t], 3.92), (x[t], 4.65))
        box(ax, x[t], 5.0, f"$y_{t + 1}$", kind="output", w=1.0, h=0.7, size=11)
    for t in range(4):
        for s in range(4):
            if visible(t, s):
                arrow(ax, (x[s], 1.06), (x[t] + 0.18 * (s - t), 3.08), kind="attention")
    label(ax, (x[0] + x[3]) / 2, 5.95, title, size=10.5, weight="bold")


@diagram(
    alt="Two panels of four inputs x, four boxes f side by side, and four outputs y. Left, causal: box t has arrows "
    "from inputs 1 to t alone. Right, full: every box has arrows from all four inputs. No arrow leads from box to box.",
    caption="In place of a loop, a direct function: each output is computed from the inputs themselves. With a causal "
    "mask (left) it sees a prefix, as a recurrent network does; without (right) everything, which a loop in one "
    "direction cannot. Nothing passes from one unit to the next.",
)
def direct_function():
    """Draw the direct function for a prefix, and for the whole sequence."""
    ax = canvas(15.2, 6.4)
    _units(ax, 1.0, "causal: $y_t = f(x_1, …, x_t)$", lambda t, s: s <= t)
    _units(ax, 8.95, "full: $y_t = f(x_1, …, x_T)$", lambda t, s: True)
    return ax


@diagram(
    alt="Left, a loop: four states h in a row, arrows between them, computed in four steps. Right, one wide box "
    "'Transformer layer' that holds four equal units without arrows between them; each unit is attention followed by "
    "feed-forward, all with the same weights; all are computed in one step.",
    caption="The loop needs its last state before it can make the next one: $T$ steps. The units of a Transformer "
    "layer wait for nobody. They share one set of weights, so the layer has the same parameters for every length.",
)
def transformer_as_parallel_units():
    """Draw an unrolled loop beside a layer of parallel units."""
    ax = canvas(16.6, 6.6)
    for t in range(4):
        x = 1.0 + 1.75 * t
        box(ax, x, 0.7, f"$x_{t + 1}$", kind="input", w=1.0, h=0.7, size=11)
        arrow(ax, (x, 1.06), (x, 2.78))
        box(ax, x, 3.2, f"$h_{t + 1}$", kind="hidden", w=1.0, h=0.8, size=11)
        if t:
            arrow(ax, (x - 1.24, 3.2), (x - 0.51, 3.2), kind="hidden")
        arrow(ax, (x, 3.61), (x, 4.75))
        box(ax, x, 5.1, f"$y_{t + 1}$", kind="output", w=1.0, h=0.7, size=11)
        label(ax, x + 0.06, 2.2, f"step {t + 1}", size=9, background=True)
    label(ax, 3.6, 6.1, "a loop: T steps, one after the other", size=10.5, weight="bold")
    _frame(ax, 8.55, 1.62, 7.55, 2.75, "")
    for t in range(4):
        x = 9.6 + 1.82 * t
        box(ax, x, 0.7, f"$x_{t + 1}$", kind="input", w=1.0, h=0.7, size=11)
        box(ax, x, 2.35, "attend", kind="attention", w=1.55, h=0.7, size=9.5)
        box(ax, x, 3.6, "feed-fwd", kind="weight", w=1.55, h=0.7, size=9.5)
        arrow(ax, (x, 2.71), (x, 3.24))
        arrow(ax, (x, 3.96), (x, 4.75))
        box(ax, x, 5.1, f"$y_{t + 1}$", kind="output", w=1.0, h=0.7, size=11)
        for s in range(4):
            arrow(ax, (9.6 + 1.82 * s, 1.06), (x + 0.15 * (s - t), 1.99), kind="attention")
            ax.patches[-1].set_linewidth(0.8)
            ax.patches[-1].set_mutation_scale(8)
    label(ax, 12.33, 6.1, "a Transformer layer: one step for all", size=10.5, weight="bold")
    return ax


# --- the blocks ----------------------------------------------------------------------


def _sublayer(ax, x, y, text, kind, w=3.3):
    """A sublayer at y and the Add & Norm over it; the residual goes round on the right. Returns the y of its top."""
    box(ax, x, y, text, kind=kind, w=w, h=0.85, size=9.5)
    arrow(ax, (x, y + 0.43), (x, y + 0.98))
    box(ax, x, y + 1.3, "add & norm", kind="plain", w=w, h=0.62, size=9.5)
    side = x + w / 2 + 0.45
    _line(ax, [(x, y - 1.0), (side, y - 1.0), (side, y + 1.3), (x + w / 2 + 0.03, y + 1.3)], "muted")
    return y + 1.61


def _three(ax, x, y, kind, names="qkv", spread=0.95):
    """The arrows of queries, keys and values into a box whose lower edge is at y, fanning out from (x, y - 0.5)."""
    for i, name in enumerate(names):
        place = x + spread * (i - (len(names) - 1) / 2)
        _line(ax, [(x, y - 0.52), (place, y - 0.52), (place, y - 0.02)], kind, lw=2.0)
        label(ax, place + 0.3, y - 0.25, f"${name}$", kind=kind, size=9.5)


def _encoder_block(ax, x, y):
    """An encoder block whose input arrives at (x, y). Returns the y of its top."""
    arrow(ax, (x, y), (x, y + 0.63))
    ax.patches[-1].set_arrowstyle("-")
    _three(ax, x, y + 1.15, SELF)
    top = _sublayer(ax, x, y + 1.6, "self-attention", SELF)
    arrow(ax, (x, top), (x, top + 1.0))
    return _sublayer(ax, x, top + 1.45, "feed-forward", "weight")


def _decoder_block(ax, x, y, memory):
    """A decoder block whose input arrives at (x, y); keys and values of the cross-attention come from `memory`."""
    arrow(ax, (x, y), (x, y + 0.63))
    ax.patches[-1].set_arrowstyle("-")
    _three(ax, x, y + 1.15, MASKED)
    top = _sublayer(ax, x, y + 1.6, "masked\nself-attention", MASKED)
    cross = top + 1.6
    _line(ax, [(x, top), (x, top + 0.62), (x + 0.95, top + 0.62), (x + 0.95, cross - 0.45)], CROSS, lw=2.0)
    label(ax, x + 1.18, cross - 0.72, "$q$", kind=CROSS, size=9.5)
    (start_x, start_y), bend = memory, x - 2.2
    for i, name in enumerate("kv"):
        place = x - 0.95 + 0.7 * i
        level = cross - 0.72 - 0.14 * i
        points = [(place, level), (place, cross - 0.45)]
        turns = [(start_x, start_y - 0.14 * i), (bend - 0.14 * i, start_y - 0.14 * i), (bend - 0.14 * i, level)]
        _line(ax, [*turns, *points], CROSS, lw=2.0)
        label(ax, place + 0.3, cross - 0.6, f"${name}$", kind=CROSS, size=9.5)
    top = _sublayer(ax, x, cross, "cross-attention", CROSS)
    arrow(ax, (x, top), (x, top + 1.0))
    return _sublayer(ax, x, top + 1.45, "feed-forward", "weight")


def _legend(ax, x, y):
    """Which colour is which attention."""
    for i, (kind, text) in enumerate(((SELF, "self"), (MASKED, "masked self"), (CROSS, "cross"))):
        _line(ax, [(x, y - 0.55 * i), (x + 0.4, y - 0.55 * i), (x + 0.85, y - 0.55 * i)], kind, lw=2.0)
        label(ax, x + 1.05, y - 0.55 * i, text, kind=kind, size=9.5, align="left")


@diagram(
    alt="One encoder block from bottom to top. The inputs x, (B, T, D), become the queries, keys and values of the "
    "self-attention; its output goes to 'add & norm', together with a grey line that passes the attention by. Then "
    "feed-forward, the same way. The output has the shape (B, T, D) again.",
    caption="The encoder block: look around, then think at each place, each step added to what it read. Queries, keys "
    "and values all come from the block's own input. Input and output have one shape, so blocks stack.",
)
def encoder_block():
    """Draw one encoder block, Post-LN."""
    ax = canvas(13.0, 8.6)
    x = 4.6
    box(ax, x, 0.55, "$x$", kind="input", w=2.2, h=0.66, size=11)
    _frame(ax, 1.6, 1.15, 6.4, 6.25, "")
    top = _encoder_block(ax, x, 0.9)
    arrow(ax, (x, top), (x, 7.72))
    box(ax, x, 8.05, r"$h$", kind="output", w=2.2, h=0.66, size=11)
    for y, text in (
        (0.55, "(B, T, D)"),
        (2.5, "mixes positions"),
        (3.8, "LayerNorm(x + attention)"),
        (5.55, "each position for itself"),
        (6.85, "LayerNorm(x + feed-forward)"),
        (8.05, "(B, T, D)"),
    ):
        label(ax, 8.3, y, text, size=9.5, align="left")
    label(ax, 7.35, 3.15, "residual", kind="muted", size=9.5)
    return ax


@diagram(
    alt="One decoder block from bottom to top: masked self-attention over its own input, whose queries, keys and "
    "values are drawn in red; then cross-attention, in blue, whose query comes from below and whose keys and values "
    "come from the memory on the left, the encoder's output (B, S, D); then feed-forward. Each is followed by add & "
    "norm.",
    caption="The decoder block has a third sublayer: cross-attention. What has been written asks ($q$), what has been "
    "read answers ($k$, $v$). The self-attention is masked: no word may see a later one.",
)
def decoder_block():
    """Draw one decoder block, Post-LN."""
    ax = canvas(14.6, 11.8)
    x = 7.3
    box(ax, x, 0.55, "$y$, shifted", kind="input", w=2.6, h=0.66, size=10.5)
    _frame(ax, 3.9, 1.15, 6.8, 9.45, "")
    box(ax, 1.75, 4.2, "memory $m$", kind="output", w=2.6, h=0.7, size=10.5)
    label(ax, 1.75, 3.5, "(B, S, D)", size=9.5)
    top = _decoder_block(ax, x, 0.9, (3.06, 4.27))
    arrow(ax, (x, top), (x, 10.95))
    box(ax, x, 11.28, "$h$", kind="output", w=2.2, h=0.66, size=11)
    for y, text in (
        (0.55, "(B, T, D)"),
        (2.5, "no look ahead"),
        (5.7, "(T, S) weights"),
        (8.75, "each position\nfor itself"),
        (11.28, "(B, T, D)"),
    ):
        label(ax, 10.95, y, text, size=9.5, align="left")
    _legend(ax, 0.5, 10.2)
    return ax


@diagram(
    alt="Left an encoder block over the source x, right a decoder block over the shifted target y. Green arrows: "
    "queries, keys and values of the encoder's self-attention. Red arrows: those of the decoder's masked "
    "self-attention. Blue: the cross-attention, its query from the decoder, its keys and values from the encoder's "
    "output.",
    caption="Three attentions in one model. Green: the source looks at itself. Red: the target looks at what came "
    "before. Blue, the only bridge: the target looks at the encoded source.",
)
def encoder_decoder_block():
    """Draw an encoder block beside a decoder block."""
    ax = canvas(17.0, 11.8)
    x = 3.2
    box(ax, x, 0.55, "source $x$", kind="input", w=2.6, h=0.66, size=10.5)
    _frame(ax, 0.9, 1.15, 5.1, 6.45, "")
    label(ax, 1.0, 8.0, "encoder", size=10.5, align="left", weight="bold")
    top = _encoder_block(ax, x, 0.9)
    _line(ax, [(x, top), (x, 7.95), (6.7, 7.95), (6.7, 4.13)], CROSS, lw=2.0)
    ax.patches[-1].set_arrowstyle("-")
    label(ax, 4.9, 8.3, "memory", kind=CROSS, size=9.5)
    x = 11.6
    box(ax, x, 0.55, "target $y$, shifted", kind="input", w=3.2, h=0.66, size=10.5)
    _frame(ax, 8.9, 1.15, 5.7, 9.45, "")
    label(ax, 9.0, 11.0, "decoder", size=10.5, align="left", weight="bold")
    top = _decoder_block(ax, x, 0.9, (6.7, 4.27))
    arrow(ax, (x, top), (x, 11.35))
    _legend(ax, 1.2, 10.6)
    return ax


def _tower(ax, x, bottom, texts, kinds, step=1.25, w=3.4, dots=None):
    """Boxes over each other with arrows between; `dots` is the index of one that stands for many."""
    for i, (text, kind) in enumerate(zip(texts, kinds, strict=True)):
        y = bottom + step * i
        if i == dots:
            label(ax, x, y, "⋮", size=14)
        else:
            box(ax, x, y, text, kind=kind, w=w, h=0.75, size=9.5)
        if i:
            arrow(ax, (x, y - step + 0.38), (x, y - 0.38))
    return [bottom + step * i for i in range(len(texts))]


@diagram(
    alt="Left a stack of encoder layers 1, 2, to N over the source, right a stack of decoder layers 1, 2, to N over "
    "the target. From the top of the encoder one blue line goes to the side of the decoder and sends an arrow into "
    "every decoder layer. No arrow leaves a lower encoder layer sideways.",
    caption="Stacked N times. The output of the *last* encoder layer is the memory of *every* decoder layer: layer 1 "
    "of the decoder does not look at layer 1 of the encoder.",
)
def stacked():
    """Draw two stacks and the memory that goes to every decoder layer."""
    ax = canvas(15.0, 8.2)
    encoder = _tower(ax, 3.0, 0.8, ["source $x$", "encoder layer 1", "encoder layer 2", "", "encoder layer N"],
                     ["input", SELF, SELF, SELF, SELF], dots=3)  # fmt: skip
    decoder = _tower(ax, 11.4, 0.8, ["target $y$, shifted", "decoder layer 1", "decoder layer 2", "", "decoder layer N",
                     "linear, softmax"], ["input", MASKED, MASKED, MASKED, MASKED, "output"], dots=3)  # fmt: skip
    top = encoder[-1]
    _line(ax, [(3.0, top + 0.38), (3.0, top + 1.2), (7.2, top + 1.2), (7.2, decoder[1])], CROSS, lw=2.2)
    ax.patches[-1].set_arrowstyle("-")
    for y in (decoder[1], decoder[2], decoder[4]):
        _line(ax, [(7.2, y), (8.4, y), (9.66, y)], CROSS, lw=2.2)
        label(ax, 8.4, y + 0.3, "$k$, $v$", kind=CROSS, size=9.5)
    label(ax, 5.1, top + 1.55, "memory $m$ (B, S, D)", kind=CROSS, size=9.5)
    arrow(ax, (11.4, decoder[-1] + 0.38), (11.4, 8.0))
    return ax


@diagram(
    alt="The whole Transformer. Left: source ids, embedding times root D, plus position, N encoder blocks of "
    "self-attention and feed-forward, each followed by add & norm. Right: shifted target ids, embedding, plus "
    "position, N decoder blocks of masked self-attention, cross-attention and feed-forward; then a linear layer and "
    "softmax. The encoder's output gives keys and values to the cross-attention.",
    caption="The whole model of 2017. Everything in the grey frames is repeated N times; embeddings and positions "
    "enter once, at the bottom.",
)
def full_transformer():
    """Draw the whole encoder-decoder, every part in its place."""
    ax = canvas(17.0, 17.2)
    x = 3.2
    _frame(ax, 0.9, 4.3, 5.1, 6.65, "")
    label(ax, 0.45, 7.6, "N ×", size=11, weight="bold")
    for y, text, kind in ((0.55, "source ids", "input"), (1.75, r"embedding × $\sqrt{D}$", "weight")):
        box(ax, x, y, text, kind=kind, w=3.4, h=0.7, size=9.5)
        arrow(ax, (x, y + 0.36), (x, y + 0.84 if y < 1 else y + 0.9))
    box(ax, x, 3.0, "+", kind="plain", w=0.7, h=0.7, size=12)
    box(ax, 0.95, 3.0, "position", kind="hidden", w=1.7, h=0.66, size=9.5)
    arrow(ax, (1.82, 3.0), (2.82, 3.0))
    arrow(ax, (x, 3.36), (x, 4.1))
    ax.patches[-1].set_arrowstyle("-")
    top = _encoder_block(ax, x, 4.1)
    _line(ax, [(x, top), (x, 11.5), (6.7, 11.5), (6.7, 7.33)], CROSS, lw=2.0)
    ax.patches[-1].set_arrowstyle("-")
    label(ax, 4.9, 11.85, "memory (B, S, D)", kind=CROSS, size=9.5)
    x = 11.6
    _frame(ax, 8.9, 4.3, 5.7, 9.65, "")
    label(ax, 15.2, 9.1, "× N", size=11, weight="bold")
    for y, text, kind in ((0.55, "target ids, shifted", "input"), (1.75, r"embedding × $\sqrt{D}$", "weight")):
        box(ax, x, y, text, kind=kind, w=3.4, h=0.7, size=9.5)
        arrow(ax, (x, y + 0.36), (x, y + 0.84 if y < 1 else y + 0.9))
    box(ax, x, 3.0, "+", kind="plain", w=0.7, h=0.7, size=12)
    box(ax, 15.0, 3.0, "position", kind="hidden", w=1.7, h=0.66, size=9.5)
    arrow(ax, (14.14, 3.0), (11.98, 3.0))
    arrow(ax, (x, 3.36), (x, 4.1))
    ax.patches[-1].set_arrowstyle("-")
    top = _decoder_block(ax, x, 4.1, (6.7, 7.47))
    arrow(ax, (x, top), (x, 14.3))
    box(ax, x, 14.7, "linear (B, T, V)", kind="weight", w=3.4, h=0.7, size=9.5)
    arrow(ax, (x, 15.06), (x, 15.48))
    box(ax, x, 15.85, "softmax", kind="output", w=3.4, h=0.7, size=9.5)
    arrow(ax, (x, 16.21), (x, 16.85))
    _legend(ax, 1.2, 15.4)
    return ax


# --- writing -------------------------------------------------------------------------

WORDS = ["la", "kata", "vidis", "<eos>"]


@diagram(
    alt="Four frames. In each, a row of input words stands below a box 'decoder', and the new output word above it. "
    "Frame 1: input <sos>, output la. Frame 2: inputs <sos> la, output kata. Frame 3: <sos> la kata, output vidis. "
    "Frame 4: <sos> la kata vidis, output <eos>. A dashed arrow leads from each output to the next frame's input.",
    caption="Writing: each output is appended to the input, and the decoder runs again on all of it, until it says "
    "`<eos>`. With T words, T runs, each waiting for the word before.",
)
def autoregressive_decoding():
    """Draw four steps of decoding as a strip of frames."""
    ax = canvas(17.4, 5.6)
    inputs, size = ["<sos>", *WORDS[:-1]], 1.28
    lefts, left = [], 0.35
    for t in range(4):
        lefts.append(left)
        left += max(2, t + 1) * size + 0.75
    for t, left in enumerate(lefts):
        width = max(2, t + 1) * size
        label(ax, left + width / 2, 5.2, f"step {t + 1}", size=10, weight="bold")
        box(ax, left + width / 2, 2.35, "decoder", kind="weight", w=width, h=0.8, size=9.5)
        start = left + (width - (t + 1) * size) / 2
        for i in range(t + 1):
            x = start + (i + 0.5) * size
            box(ax, x, 0.75, inputs[i], kind="output" if i else "input", w=size - 0.12, h=0.7, size=9)
            arrow(ax, (x, 1.09), (x, 1.94))
        x = start + (t + 0.5) * size
        arrow(ax, (x, 2.76), (x, 3.62))
        box(ax, x, 3.96, WORDS[t], kind="output", w=size - 0.12, h=0.7, size=9)
        if t < 3:
            w = max(2, t + 2) * size
            new = lefts[t + 1] + (w - (t + 2) * size) / 2 + (t + 1.5) * size
            gap = lefts[t + 1] - 0.38
            side = x + size / 2 - 0.05
            turns = [(side, 3.96), (gap, 3.96), (gap, 0.2), (new, 0.2), (new, 0.41)]
            _line(ax, turns, "output", dashed=True)
    return ax


@diagram(
    alt="Two panels. Left, training: the true words <sos> la kata vidis go into the decoder all at once, and the "
    "outputs to be said are la kata vidis <eos>, each compared with the truth. Right, inference: <sos> goes in, the "
    "output la is fed back as the next input by a dashed arrow, and so on.",
    caption="Training knows the answer: the true words go in, shifted by one, and all positions are computed in one "
    "run; the causal mask keeps each from seeing the word it must say. At inference the model's own words go in, one "
    "run each.",
)
def teacher_forcing():
    """Draw what goes into the decoder in training and in use."""
    ax = canvas(17.4, 6.2)
    for left, title in ((0.5, "training: one run"), (9.3, "inference: a run for each word")):
        x = [left + 0.9 + 1.85 * t for t in range(4)]
        training = left < 5
        label(ax, left + 3.7, 5.85, title, size=10.5, weight="bold")
        box(ax, left + 3.7, 2.45, "decoder, causal mask", kind="weight", w=7.3, h=0.85, size=10)
        for t in range(4):
            first = not t or training
            box(ax, x[t], 0.75, ["<sos>", *WORDS][t], kind="input" if first else "output", w=1.45, h=0.7, size=9.5)
            arrow(ax, (x[t], 1.11), (x[t], 2.01))
            arrow(ax, (x[t], 2.88), (x[t], 3.5))
            box(ax, x[t], 3.86, WORDS[t], kind="output", w=1.45, h=0.7, size=9.5)
            if training:
                label(ax, x[t], 4.5, "≈", size=12)
                label(ax, x[t], 5.0, WORDS[t], kind="attention", size=9.5)
            elif t < 3:
                middle = (x[t] + x[t + 1]) / 2
                turns = [(x[t] + 0.73, 3.86), (middle, 3.86), (middle, 0.75), (x[t + 1] - 0.74, 0.75)]
                _line(ax, turns, "output", dashed=True, behind=True)
    label(ax, 0.15, 5.0, "true", kind="attention", size=9.5, align="left")
    return ax
