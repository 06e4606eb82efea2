"""Diagrams of chapter 09: a direct function in place of a loop, the blocks of a Transformer, writing word by word."""

import math
from itertools import pairwise

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, joint, label, operation, wire

# The arrows of queries, keys and values, coloured by the kind of attention, the same in every diagram of the chapter.
SELF, MASKED, CROSS = "self-attention", "masked self-attention", "cross-attention"
DEEP, NORM = "feed-forward", "Add & Norm"


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
    frame(ax, 8.55, 1.62, 7.55, 2.75)
    for t in range(4):
        x = 9.6 + 1.82 * t
        box(ax, x, 0.7, f"$x_{t + 1}$", kind="input", w=1.0, h=0.7, size=11)
        box(ax, x, 2.35, "attend", kind="attention", w=1.55, h=0.7, size=9.5)
        box(ax, x, 3.6, "feed-fwd", kind=DEEP, w=1.55, h=0.7, size=9.5)
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


def _sublayer(ax, x, y, text, kind, dot, w=3.3):
    """A sublayer at y and the Add & Norm over it; the residual parts at height `dot`. Returns the y of its top."""
    side = x + w / 2 + 0.5
    joint(ax, x, dot)
    wire(ax, [(x, dot), (side, dot), (side, y + 1.0), (x + w / 2, y + 1.0)], "residual")
    box(ax, x, y, text, kind=kind, w=w, h=0.86, size=9.5)
    wire(ax, [(x, y + 0.43), (x, y + 0.75)])
    box(ax, x, y + 1.0, "add & norm", kind=NORM, w=w, h=0.5, size=9)
    return y + 1.25


def _three(ax, x, y, kind, spread=1.05):
    """The arrows of queries, keys and values from (x, y - 0.55) into a box whose lower edge is at y."""
    for place, name in zip((x - spread, x, x + spread), "qkv", strict=True):
        turns = [(x, y - 0.55), (place, y - 0.55)] if place != x else [(x, y - 0.55)]
        wire(ax, [*turns, (place, y)], kind, lw=2.0, r=0.2)
        label(ax, place + 0.27, y - 0.23, f"${name}$", kind=kind, size=10)


def _attention(ax, x, below, y, text, kind):
    """A self-attention at y, fed from the top `below` of what stands under it. Returns the y of its top."""
    wire(ax, [(x, below), (x, y - 0.98)], head=False)
    _three(ax, x, y - 0.43, kind)
    return _sublayer(ax, x, y, text, kind, y - 1.3)


def _feed_forward(ax, x, below, y):
    """The feed-forward sublayer at y. Returns the y of its top."""
    wire(ax, [(x, below), (x, y - 0.43)])
    return _sublayer(ax, x, y, "feed-forward", DEEP, (below + y - 0.43) / 2 - 0.1)


def _encoder_block(ax, x, y, below):
    """An encoder block in its frame, its self-attention at y, fed from the height `below`. Returns the y of its top."""
    frame(ax, x - 2.2, y - 1.75, 4.9, 5.65)
    return _feed_forward(ax, x, _attention(ax, x, below, y, "self-attention", SELF), y + 2.35)


def _decoder_block(ax, x, y, below, memory):
    """A decoder block in its frame, its cross-attention at y, on a straight line with the memory at x = `memory`."""
    frame(ax, x - 2.2, y - 4.4, 4.9, 8.3)
    top = _attention(ax, x, below, y - 2.65, "masked\nself-attention", MASKED)
    wire(ax, [(x, top), (x, y - 0.98)], head=False)
    wire(ax, [(x, y - 0.98), (x, y - 0.43)], CROSS, lw=2.0)
    label(ax, x + 0.27, y - 0.66, "$q$", kind=CROSS, size=10)
    for name, shift in (("k", 0.22), ("v", -0.22)):
        part = x - 2.75
        wire(ax, [(memory, y), (part, y), (part, y + shift), (x - 1.65, y + shift)], CROSS, lw=2.0, r=0.15)
        label(ax, x - 1.98, y + shift + (0.24 if shift > 0 else -0.24), f"${name}$", kind=CROSS, size=10)
    top = _sublayer(ax, x, y, "cross-attention", CROSS, (top + y - 0.98) / 2 - 0.05)
    return _feed_forward(ax, x, top, y + 2.35)


def _legend(ax, x, y, texts=None):
    """Which colour is which attention, and who looks at whom."""
    texts = texts or ("the source looks at itself", "the target looks back at itself", "the target looks at the source")
    for i, (kind, text) in enumerate(zip((SELF, MASKED, CROSS), texts, strict=True)):
        wire(ax, [(x, y - 0.6 * i), (x + 0.9, y - 0.6 * i)], kind, lw=2.2)
        label(ax, x + 1.1, y - 0.6 * i, text, kind=kind, size=9.5, align="left")


@diagram(
    alt="One encoder block from bottom to top. The inputs x, (B, T, D), become the queries, keys and values of the "
    "self-attention; its output goes to 'add & norm', together with a grey line that passes the attention by. Then "
    "feed-forward, the same way. The output has the shape (B, T, D) again.",
    caption="The encoder block: look around, then think at each place, each step added to what it read. Queries, keys "
    "and values all come from the block's own input. Input and output have one shape, so blocks stack.",
)
def encoder_block():
    """Draw one encoder block, Post-LN."""
    ax = canvas(13.0, 8.4)
    x = 4.6
    box(ax, x, 0.6, "$x$", kind="token", w=2.2, h=0.66, size=11)
    top = _encoder_block(ax, x, 3.0, 0.93)
    wire(ax, [(x, top), (x, 7.4)])
    box(ax, x, 7.75, r"$h$", kind="output", w=2.2, h=0.66, size=11)
    for y, text in (
        (0.6, "(B, T, D)"),
        (3.0, "looks around: mixes positions"),
        (4.0, "LayerNorm(x + attention(x))"),
        (5.35, "thinks: each position for itself"),
        (6.35, "LayerNorm(x + feed-forward(x))"),
        (7.75, "(B, T, D)"),
    ):
        label(ax, 7.7, y, text, size=9.5, align="left")
    label(ax, 7.7, 1.72, "residual: passes by", kind="residual", size=9.5, align="left")
    return ax


TOKENS = ["ein", "hund", "läuft"]
VECTORS = [[1, 0, 0, 1], [0, 2, 0, 0], [0, 0, 3, -1]]  # x, (T, D)
WEIGHTS = [[0.2, 0.7, 0.1], [0.3, 0.5, 0.2], [0.1, 0.6, 0.3]]  # of attention, (T, T)


def _rounded(vectors):
    return [[round(entry, 1) + 0.0 for entry in vector] for vector in vectors]


def _added(one, other):
    return _rounded([[a + b for a, b in zip(*pair, strict=True)] for pair in zip(one, other, strict=True)])


def _normalised(vectors):
    """LayerNorm without gain and offset, rounded."""
    result = []
    for vector in vectors:
        mean = sum(vector) / len(vector)
        spread = math.sqrt(sum((entry - mean) ** 2 for entry in vector) / len(vector))
        result.append([(entry - mean) / spread for entry in vector])
    return _rounded(result)


def _small_block():
    """Every step of an encoder block on three vectors of four entries, each step from the rounded one before."""
    steps = {"x": _rounded(VECTORS)}
    steps["found"] = _rounded([[sum(w * v[d] for w, v in zip(row, VECTORS, strict=True)) for d in range(4)]
                               for row in WEIGHTS])  # fmt: skip
    steps["added"] = _added(steps["x"], steps["found"])
    steps["x1"] = _normalised(steps["added"])
    steps["hidden"] = _rounded([[max(0, b + c), max(0, a - c)] for a, b, c, _ in steps["x1"]])
    steps["thought"] = _rounded([[second, 0, 0, first] for first, second in steps["hidden"]])
    steps["added again"] = _added(steps["x1"], steps["thought"])
    steps["x2"] = _normalised(steps["added again"])
    return steps


@diagram(
    alt="Three words, ein, hund, läuft, each a vector of four numbers, go up through an encoder block. Self-attention, "
    "which spans all three columns, gives each a weighted mean of the three vectors: for läuft 0.1, 0.6 and 0.3. The "
    "vector itself, on a grey line beside it, is added, and the sum normalised. Then, in each column by itself, a "
    "feed-forward network of two hidden units; its result is added, and the sum normalised.",
    caption="The encoder block in numbers small enough to check: first each word looks around, then it thinks by "
    "itself; what it was (grey) is added both times, and the sum normalised. (Made up: $D$ = 4, two hidden units, "
    "values that are $x$ itself; each step rounded.)",
)
def block_with_numbers():
    """Draw three words going through an encoder block, with the numbers of every step."""
    ax = canvas(17.0, 13.6)
    columns, w, steps = (7.05, 10.9, 14.75), 3.3, _small_block()
    rows = {"x": 1.4, "found": 4.35, "added": 5.5, "x1": 6.65, "hidden": 8.25, "thought": 9.4, "added again": 10.7,
            "x2": 11.85}  # fmt: skip
    kinds = {"x": "token", "found": SELF, "hidden": DEEP, "thought": DEEP, "x1": NORM, "x2": NORM}
    frame(ax, 5.15, 1.95, 11.75, 10.45)
    box(ax, 10.9, 3.2, "", kind=SELF, w=11.1, h=0.8)
    names = list(rows)
    for name, y in rows.items():
        for x, vector in zip(columns, steps[name], strict=True):
            box(ax, x, y, "", kind=kinds.get(name, "plain"), w=w, h=0.64)
            _numbers(ax, x, y, vector)
    for below, above in pairwise(names[1:]):
        for x in columns:
            wire(ax, [(x, rows[below] + 0.32), (x, rows[above] - 0.32)])
    for x, word, weights in zip(columns, TOKENS, WEIGHTS, strict=True):
        label(ax, x, 0.55, word, size=10.5, weight="bold")
        _numbers(ax, x, 3.2, weights)
        wire(ax, [(x, rows["x"] + 0.32), (x, 2.8)], SELF)
        wire(ax, [(x, 3.6), (x, rows["found"] - 0.32)], SELF)
        wire(ax, [(x, rows["x2"] + 0.32), (x, 13.2)])
        for below, above in (("x", "added"), ("x1", "added again")):
            y, side = rows[below] + 0.83, x + w / 2 + 0.26
            joint(ax, x, y, "residual")
            wire(ax, [(x, y), (side, y), (side, rows[above]), (x + w / 2, rows[above])], "residual")
            ax.patches[-1].set_zorder(1.5)
    for y, text in (
        (rows["x"], "$x$: its meaning and place"),
        (3.2, "self-attention: how much it\ntakes of ein, hund, läuft"),
        (rows["found"], "what it found"),
        (rows["added"], "$x$ + what it found"),
        (rows["x1"], "normalised"),
        (rows["hidden"], "hidden units: relu(2nd + 3rd),\nrelu(1st − 3rd)"),
        (rows["thought"], "what feed-forward gives:\nunit 1 writes to entry 4,\nunit 2 to entry 1"),
        (rows["added again"], "what it was + what it made"),
        (rows["x2"], "normalised: the output"),
    ):
        label(ax, 0.15, y, text, size=9, align="left")
    return ax


def _numbers(ax, x, y, vector):
    """The entries of a vector side by side, around x."""
    for i, entry in enumerate(vector):
        label(ax, x + 0.8 * (i - (len(vector) - 1) / 2), y, f"{entry:g}".replace("-", "−"), size=9)


@diagram(
    alt="One decoder block from bottom to top: masked self-attention over its own input, in purple; then "
    "cross-attention, in vermilion, whose query comes from below and whose keys and values come straight from the "
    "left, from the memory, the encoder's output (B, S, D); then feed-forward. Each is followed by add & norm.",
    caption="The decoder block has a third sublayer: cross-attention. What has been written asks ($q$), what has been "
    "read answers ($k$, $v$). The self-attention is masked: no word may see a later one.",
)
def decoder_block():
    """Draw one decoder block, Post-LN."""
    ax = canvas(14.6, 11.0)
    x, y = 7.0, 5.65
    box(ax, x, 0.6, "$y$", kind="token", w=2.2, h=0.66, size=11)
    box(ax, 1.8, y, "memory $m$", kind=CROSS, w=2.6, h=0.8, size=10.5)
    label(ax, 1.8, y - 0.75, "(B, S, D)", size=9.5)
    top = _decoder_block(ax, x, y, 0.93, 3.1)
    wire(ax, [(x, top), (x, 10.0)])
    box(ax, x, 10.35, "$y$", kind="output", w=2.2, h=0.66, size=11)
    for at, text in (
        (0.6, "(B, T, D)"),
        (3.0, "the target looks back,\nnever ahead"),
        (y, "each target place asks\nall source places:\n(T, S) weights"),
        (8.0, "each position for itself"),
        (10.35, "(B, T, D)"),
    ):
        label(ax, 10.05, at, text, size=9.5, align="left")
    return ax


@diagram(
    alt="Left, lower, an encoder block over the source x; right, higher, a decoder block over the shifted target y. "
    "Blue: queries, keys and values of the encoder's self-attention. Purple: those of the decoder's masked "
    "self-attention. Vermilion: the cross-attention, its query from the decoder, its keys and values on a straight "
    "line from the encoder's output.",
    caption="Three attentions in one model. Blue: the source looks at itself. Purple: the target looks at what came "
    "before. Vermilion, the only bridge: the target looks at the encoded source.",
)
def encoder_decoder_block():
    """Draw an encoder block and, a step higher, a decoder block, so that the memory crosses on a straight line."""
    ax = canvas(17.0, 12.3)
    x, y = 3.2, 7.45
    box(ax, x, 0.6, "source $x$", kind="token", w=2.6, h=0.66, size=10.5)
    top = _encoder_block(ax, x, 2.9, 0.93)
    wire(ax, [(x, top), (x, y), (9.2, y)], CROSS, head=False, lw=2.0)
    label(ax, 6.75, y + 0.35, "memory (B, S, D)", kind=CROSS, size=9.5)
    label(ax, 1.1, 7.1, "encoder", size=10.5, align="left", weight="bold")
    x = 12.6
    box(ax, x, 2.35, "target $y$, shifted", kind="token", w=3.2, h=0.66, size=10.5)
    top = _decoder_block(ax, x, y, 2.68, 9.2)
    wire(ax, [(x, top), (x, 12.0)])
    label(ax, 10.5, 11.65, "decoder", size=10.5, align="left", weight="bold")
    _legend(ax, 0.6, 11.2)
    label(ax, 8.4, 0.95, "grey: residuals, added to what each part computes", kind="residual", size=9.5, align="left")
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
            wire(ax, [(x, y - step + 0.38), (x, y - 0.38)])
    return [bottom + step * i for i in range(len(texts))]


@diagram(
    alt="Left a stack of encoder layers 1, 2, to N over the source, right a stack of decoder layers 1, 2, to N over "
    "the target. From the top of the encoder one line goes to the side of the decoder and sends an arrow into "
    "every decoder layer. No arrow leaves a lower encoder layer sideways.",
    caption="Stacked N times. The output of the *last* encoder layer is the memory of *every* decoder layer: layer 1 "
    "of the decoder does not look at layer 1 of the encoder.",
)
def stacked():
    """Draw two stacks and the memory that goes to every decoder layer."""
    ax = canvas(15.0, 8.2)
    encoder = _tower(ax, 3.0, 0.8, ["source $x$", "encoder layer 1", "encoder layer 2", "", "encoder layer N"],
                     ["token", SELF, SELF, SELF, SELF], dots=3)  # fmt: skip
    decoder = _tower(ax, 11.4, 0.8, ["target $y$, shifted", "decoder layer 1", "decoder layer 2", "", "decoder layer N",
                     "linear, softmax"], ["token", MASKED, MASKED, MASKED, MASKED, "projections"], dots=3)  # fmt: skip
    top = encoder[-1]
    bus = 7.6
    wire(
        ax, [(3.0, top + 0.38), (3.0, top + 1.0), (bus, top + 1.0), (bus, decoder[1]), (9.7, decoder[1])], CROSS, lw=2.2
    )
    for y in (decoder[1], decoder[2], decoder[4]):
        if y != decoder[1]:
            joint(ax, bus, y, CROSS)
            wire(ax, [(bus, y), (9.7, y)], CROSS, lw=2.2)
        label(ax, 8.7, y + 0.3, "$k$, $v$", kind=CROSS, size=9.5)
    label(ax, 5.3, top + 1.35, "memory $m$ (B, S, D)", kind=CROSS, size=9.5)
    wire(ax, [(11.4, decoder[-1] + 0.38), (11.4, 8.0)])
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
    ax = canvas(17.0, 17.0)
    x, y = 3.6, 9.65
    _entrance(ax, x, 0.55, "source ids (B, S)", -1)
    top = _encoder_block(ax, x, 5.1, 2.98)
    wire(ax, [(x, top), (x, y), (9.2, y)], CROSS, head=False, lw=2.0)
    label(ax, 6.95, y + 0.35, "memory (B, S, D)", kind=CROSS, size=9.5)
    label(ax, 6.5, 6.2, "× N", size=12, weight="bold", align="left")
    label(ax, 1.5, 9.3, "encoder", size=10.5, weight="bold", align="left")
    x = 12.2
    _entrance(ax, x, 2.45, "target ids, shifted (B, T)", 1)
    top = _decoder_block(ax, x, y, 4.88, 9.2)
    label(ax, 15.3, 9.4, "× N", size=12, weight="bold", align="left")
    label(ax, 10.1, 13.85, "decoder", size=10.5, weight="bold", align="left")
    wire(ax, [(x, top), (x, 14.25)])
    box(ax, x, 14.6, "linear", kind="projections", w=3.3, h=0.7, size=9.5)
    wire(ax, [(x, 14.95), (x, 15.3)])
    box(ax, x, 15.65, "softmax", kind="output", w=3.3, h=0.7, size=9.5)
    wire(ax, [(x, 16.0), (x, 16.7)])
    label(ax, x + 0.3, 16.45, "next word (B, T, V)", size=9.5, align="left")
    _legend(ax, 0.6, 15.65)
    return ax


def _entrance(ax, x, y, text, side):
    """Ids, their embedding, and the position added to it from the side (-1 left, 1 right)."""
    box(ax, x, y, text, kind="token", w=3.9, h=0.7, size=9.5)
    wire(ax, [(x, y + 0.35), (x, y + 0.7)])
    box(ax, x, y + 1.05, r"embedding × $\sqrt{D}$", kind="token", w=3.3, h=0.7, size=9.5)
    wire(ax, [(x, y + 1.4), (x, y + 1.88)])
    operation(ax, x, y + 2.15, "+")
    box(ax, x + 2.4 * side, y + 2.15, "position", kind="position", w=1.7, h=0.6, size=9.5)
    wire(ax, [(x + 1.55 * side, y + 2.15), (x + 0.27 * side, y + 2.15)], "position")
    return ax


# --- writing -------------------------------------------------------------------------

WORDS = ["la", "kata", "vidis", "<eos>"]


@diagram(
    alt="Four frames. In each, a row of input words stands below a box 'decoder', and the new output word above it. "
    "Frame 1: input <sos>, output la. Frame 2: inputs <sos> la, output kata. Frame 3: <sos> la kata, output vidis. "
    "Frame 4: <sos> la kata vidis, output <eos>. A dashed arrow leads from each output to the next frame's input.",
    caption="Generating: each output is appended to the input, and in our loop the decoder runs again on all of it, "
    "until it says `<eos>`. Three words and `<eos>` take four passes, each waiting for the one before. (In practice "
    "the keys and values of earlier words are kept, and only the new word is computed.)",
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
            wire(ax, turns, "output", dashed=True)
    return ax


@diagram(
    alt="Training: the true words <sos> la kata vidis go into the decoder all at once, and the outputs to be said are "
    "la kata vidis <eos>, each compared with the truth.",
    caption="In training the answer is known: the true words go in, shifted by one, and all positions are computed in "
    "one pass; the causal mask keeps each from seeing the word it must say.",
)
def teacher_forcing():
    """Draw what goes into the decoder in training."""
    ax = canvas(12.6, 5.4)
    x = [3.0 + 2.4 * t for t in range(4)]
    box(ax, 6.6, 2.45, "decoder, causal mask", kind="weight", w=9.4, h=0.85, size=10)
    for t in range(4):
        box(ax, x[t], 0.75, ["<sos>", *WORDS][t], kind="input", w=1.6, h=0.7, size=9.5)
        arrow(ax, (x[t], 1.11), (x[t], 2.01))
        arrow(ax, (x[t], 2.88), (x[t], 3.5))
        box(ax, x[t], 3.86, WORDS[t], kind="output", w=1.6, h=0.7, size=9.5)
        label(ax, x[t], 4.5, "≈", size=12)
        label(ax, x[t], 5.0, WORDS[t], kind="attention", size=9.5)
    for y, said, kind in ((5.0, "true", "attention"), (3.86, "predicted", None), (0.75, "goes in", None)):
        label(ax, 0.15, y, said, **({"kind": kind} if kind else {}), size=9.5, align="left")
    return ax
