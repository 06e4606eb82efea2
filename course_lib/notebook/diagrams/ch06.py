"""Diagrams of chapter 06: the bridge between two networks, a choice among all states, a search over sentences."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, label, wire

SOURCE = ["the", "quiet", "river", "<eos>"]
TARGET = ["la", "riva", "tranqa", "<eos>"]
LEFT, RIGHT, STEP = 1.2, 10.2, 1.9  # x of the first encoder state, of the first decoder state, and between two states


def _encoder(ax, y):
    """The source words and the encoder's states above them."""
    for s, word in enumerate(SOURCE):
        x = LEFT + STEP * s
        box(ax, x, y - 1.4, word, kind="input", w=1.5, h=0.66, size=9.5)
        wire(ax, [(x, y - 1.06), (x, y - 0.36)])
        box(ax, x, y, rf"$\bar h_{s + 1}$", kind="hidden", w=1.1, h=0.7, size=11)
        if s:
            wire(ax, [(x - STEP + 0.56, y), (x - 0.56, y)], "hidden state")


def _decoder(ax, y, top, between=None):
    """The decoder's states, its inputs below (each the output before it), its outputs at height `top`.

    `between` is the height of the lower and the upper edge of what lies between states and outputs.
    """
    for t, word in enumerate(TARGET):
        x = RIGHT + STEP * t
        box(ax, x, y - 1.4, ["<sos>", *TARGET][t], kind="output" if t else "token", w=1.5, h=0.66, size=9.5)
        wire(ax, [(x, y - 1.06), (x, y - 0.36)])
        box(ax, x, y, f"$h_{t + 1}$", kind="hidden state", w=1.1, h=0.7, size=11)
        if t:
            wire(ax, [(x - STEP + 0.56, y), (x - 0.56, y)], "hidden state")
        low, high = between or (top - 0.34, None)
        wire(ax, [(x, y + 0.36), (x, low)])
        if high:
            wire(ax, [(x, high), (x, top - 0.34)])
        box(ax, x, top, word, kind="output", w=1.5, h=0.66, size=9.5)


@diagram(
    alt="Left, a frame with the encoder: a row of states over the words 'the quiet river <eos>'. One thick line leaves "
    "its last state, the context vector c, (B, D), and starts the decoder in the right frame: four states, each fed "
    "with the word before it, first with <sos>. Over all four lies one bar, the output layer, and on top "
    "stand the words 'la riva tranqa <eos>'.",
    caption="The encoder reads; the decoder writes, each word fed back as its next input. All that passes between them "
    "is the context vector $c$. The same output layer at every step turns a state into scores of words.",
)
def encoder_decoder():
    """Draw two networks and the one vector between them."""
    ax = canvas(17.3, 6.6)
    y, top = 2.45, 5.65
    frame(ax, 0.25, y - 0.75, 7.6, 1.5)
    frame(ax, RIGHT - 0.95, y - 0.75, 7.6, 3.0 - 0.35)
    _encoder(ax, y)
    _decoder(ax, y, top, between=(3.49, 4.21))
    end, start = LEFT + STEP * (len(SOURCE) - 1), RIGHT
    wire(ax, [(end + 0.56, y), (start - 0.56, y)], "attention", lw=3.4)
    label(ax, 8.55, y + 0.65, "context\n$c$", kind="attention", size=10)
    label(ax, 8.55, y - 0.4, "(B, D)", kind="attention", size=9)
    middle = RIGHT + STEP * 1.5
    box(
        ax,
        middle,
        3.85,
        "output layer: a score for every word, (B, V)",
        kind="projections",
        w=6.95,
        h=0.72,
        size=9.5,
    )
    label(ax, 0.3, 3.6, "encoder", size=11, align="left", weight="bold")
    label(ax, 2.35, 3.58, "reads the source", size=9.5, align="left")
    label(ax, RIGHT - 0.9, 6.35, "decoder", size=11, align="left", weight="bold")
    label(ax, RIGHT + 1.2, 6.33, "writes the target", size=9.5, align="left")
    label(ax, RIGHT + 0.75, 0.3, "its own last word, fed back", kind="output", size=9.5, align="left")
    return ax


@diagram(
    alt="The encoder's four states on the left, the decoder's states on the right, as before. Blue lines go from the "
    "encoder's states to a box above them, a weighted sum; the line from the state over 'river' is the thickest. The "
    "weights are 0.1, 0.1, 0.8 and 0.0. A dashed arrow 'asks' goes from the decoder's first state to the sum, an arrow "
    "'answers' from the sum, the context c_2, into the decoder's second state.",
    caption="With attention the decoder chooses anew at each step: its state asks, all encoder states are weighed, and "
    "their weighted sum is the context $c_t$ of this step. About to write *riva*, it looks at *river*.",
)
def decoder_attention():
    """Draw one step of the decoder choosing among all encoder states."""
    ax = canvas(17.3, 7.0)
    y, top = 2.2, 5.2
    _encoder(ax, y)
    _decoder(ax, y, y + 1.3)
    middle = LEFT + 1.5 * STEP
    box(ax, middle, top, r"$c_2 = \sum_s w_{2s}\, \bar h_s$", kind="attention", w=4.4, h=0.9, size=11)
    for s, weight in enumerate((0.1, 0.1, 0.8, 0.0)):
        start, end = (LEFT + STEP * s, y + 0.37), (middle + 1.0 * (s - 1.5), top - 0.48)
        kind = "attention" if weight else "muted"
        arrow(ax, start, end, kind=kind, dashed=not weight)
        if weight > 0.5:
            ax.patches[-1].set_linewidth(4)
        x = start[0] + 0.42 * (end[0] - start[0])
        label(ax, x, start[1] + 0.42 * (end[1] - start[1]), f"{weight:.1f}", kind=kind, size=9.5, background=True)
    corner = RIGHT + STEP / 2  # between two outputs
    wire(ax, [(middle + 2.2, top), (corner, top), (corner, y + 0.75), (corner + 0.5, y + 0.38)], "attention", lw=2.2)
    arrow(ax, (RIGHT - 0.5, y + 0.38), (middle + 2.25, top - 0.42), kind="hidden", dashed=True)
    label(ax, RIGHT - 1.95, y + 1.5, "asks", kind="hidden", size=9.5, background=True)
    label(ax, RIGHT - 1.2, top + 0.3, "answers", kind="attention", size=9.5)
    label(ax, 0.45, 6.5, "encoder", size=10.5, align="left", weight="bold")
    label(ax, RIGHT - 0.75, 6.5, "decoder, at step t = 2", size=10.5, align="left", weight="bold")
    return ax


FIRST = {"the": 0.6, "a": 0.4}
SECOND = {"the": {"cat": 0.4, "dog": 0.35, "cow": 0.25}, "a": {"cat": 0.9, "dog": 0.06, "cow": 0.04}}


@diagram(
    alt="A tree of two words. From the start: 'the' 0.6 and 'a' 0.4. After 'the': cat 0.4, dog 0.35, cow 0.25. After "
    "'a': cat 0.9, dog 0.06, cow 0.04. Greedy search takes 'the cat' with 0.24; a beam of two keeps both first words "
    "and finds 'a cat' with 0.36.",
    caption="Greedy search takes *the*, the best first word, and can reach 0.24 at most. A beam of two keeps *a* alive "
    "for one more step and finds the best sentence, *a cat*, with 0.36.",
)
def beam_tree():
    """Draw all two-word sentences of a tiny model with their probabilities."""
    ax = canvas(16, 7.4)
    box(ax, 1.3, 3.4, "<sos>", kind="input", w=1.6, h=0.7)
    rows = iter((6.2, 5.1, 4.0, 2.8, 1.7, 0.6))
    best = {("the", "cat"): ("output", "greedy"), ("a", "cat"): ("attention", "beam of two")}
    for first, p in FIRST.items():
        y = 5.1 if first == "the" else 1.7
        box(ax, 5.2, y, first, kind="output" if first == "the" else "attention", w=1.5, h=0.7)
        arrow(ax, (2.12, 3.4), (4.42, y), kind="ink")
        label(ax, 3.3, y + (-0.55 if first == "the" else 0.55), f"{p}", size=10, background=True)
        for second, q in SECOND[first].items():
            row = next(rows)
            kind, remark = best.get((first, second), ("plain", ""))
            box(ax, 9.0, row, second, kind=kind, w=1.5, h=0.7)
            arrow(ax, (5.97, y), (8.22, row), kind="ink" if remark else "muted")
            label(ax, 7.25, y + 0.58 * (row - y), f"{q}", size=9.5, background=True)
            label(ax, 10.1, row, f"{p} · {q} = {p * q:.2g}", size=9.5, align="left")
            label(ax, 13.3, row, remark, kind=kind if remark else "ink", size=9.5, align="left", weight="bold")
    label(ax, 5.2, 7.1, "first word", size=10, weight="bold")
    label(ax, 8.8, 7.1, "second word", size=10, weight="bold")
    label(ax, 10.9, 7.1, "probability", size=10, weight="bold", align="left")
    return ax
