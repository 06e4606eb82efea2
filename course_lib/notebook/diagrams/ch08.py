"""Diagrams of chapter 08: two roads through a layer without positions, and the three points where positions enter."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, joint, label, operation, wire

KINDS = {"dog": "input", "bites": "hidden", "man": "output"}


def _column(ax, x, y, words, text="{}"):
    """Words from top to bottom, each in the colour that belongs to it."""
    for row, word in enumerate(words):
        box(ax, x, y - 0.72 * row, text.format(word), kind=KINDS[word], w=1.5, h=0.6, size=9.5)


@diagram(
    alt="A square of four columns of three words. Top: 'dog, bites, man' goes through attention to 'dog, bites, man', "
    "primed. Bottom: the same words in another order, 'man, bites, dog', go through the same attention to their primed "
    "versions in that other order. Arrows Pi lead down on both sides.",
    caption="Two roads, one result: permute first and attend then, or attend first and permute then. A layer for which "
    "this holds cannot know in which order its input came.",
)
def permutation_equivariance():
    """Draw the commuting square of a permutation and a layer."""
    ax = canvas(16, 7.6)
    first, second = ["dog", "bites", "man"], ["man", "bites", "dog"]
    for y, words in ((6.7, first), (2.2, second)):
        _column(ax, 2.2, y, words)
        _column(ax, 13.8, y, words, "{}'")
        box(ax, 8.0, y - 0.72, "attention", kind="attention", w=3.4, h=1.1, size=11)
        arrow(ax, (3.1, y - 0.72), (6.2, y - 0.72))
        arrow(ax, (9.8, y - 0.72), (12.9, y - 0.72))
    for x in (2.2, 13.8):
        arrow(ax, (x, 4.8), (x, 2.65))
        label(ax, x + (0.3 if x < 8 else -0.3), 3.75, r"permute: $\Pi$", size=10.5, align="left" if x < 8 else "right")
    label(ax, 4.6, 6.35, "$X$", size=11)
    label(ax, 11.4, 6.35, "$Y$", size=11)
    label(ax, 4.6, 1.85, r"$\Pi X$", size=11)
    label(ax, 11.4, 1.85, r"$\Pi Y$", size=11)
    return ax


@diagram(
    alt="From bottom to top: tokens, embeddings, then a plus sign marked 'add', where a vector of the position joins. "
    "In the layer, repeated N times: projections to queries, keys and values. Queries and keys pass a box 'rotate'. "
    "Their product gives scores, to which a plus sign marked 'bias' adds a number for each pair. "
    "Softmax and the values give the output.",
    caption="Three points where positions may enter: added to the embeddings, once (sinusoidal, learned); turning "
    "queries and keys, in every layer (RoPE); added to the scores, in every layer (relative bias, ALiBi).",
)
def where_positions_enter():
    """Draw one attention layer with the three points."""
    ax = canvas(16, 9.2)
    frame(ax, 1.0, 3.0, 14.3, 6.05)
    label(ax, 2.1, 8.7, "× N layers", kind="muted", size=10)
    box(ax, 6.0, 0.5, "tokens", kind="token", w=2.4, h=0.64)
    arrow(ax, (6.0, 0.83), (6.0, 1.14))
    box(ax, 6.0, 1.48, "embeddings", kind="token", w=2.8, h=0.64)
    arrow(ax, (6.0, 1.81), (6.0, 2.1))
    operation(ax, 6.0, 2.42, "+", kind="position", r=0.3, size=13)
    arrow(ax, (8.2, 2.42), (6.36, 2.42), kind="position")
    label(ax, 8.35, 2.42, "1  add: a vector for each position", kind="position", size=10, align="left", weight="bold")
    joint(ax, 6.0, 3.28)
    wire(ax, [(6.0, 2.72), (6.0, 3.66)])
    for x in (3.0, 13.9):
        wire(ax, [(6.0, 3.28), (x, 3.28), (x, 3.66)])
    for x, name, kind in ((3.0, "queries", "query"), (6.0, "keys", "key"), (13.9, "values", "value")):
        box(ax, x, 3.98, name, kind=kind, w=2.1, h=0.64)
    for x, kind in ((3.0, "query"), (6.0, "key")):
        wire(ax, [(x, 4.3), (x, 4.74)], kind)
        box(ax, x, 5.06, "turn", kind="position", w=1.5, h=0.64)
        into = 4.5 + 0.8 * (x - 4.5) / 1.5
        wire(ax, [(x, 5.38), (x, 5.65), (into, 5.65), (into, 5.99)], kind, r=0.2)
    label(ax, 7.0, 5.06, "2  rotate: by the position's angle", kind="position", size=10, align="left", weight="bold")
    box(ax, 4.5, 6.32, r"scores  $q\,k^\top/\sqrt{K}$", kind="attention weight", w=3.6, h=0.66)
    arrow(ax, (4.5, 6.66), (4.5, 7.02))
    operation(ax, 4.5, 7.34, "+", kind="position", r=0.3, size=13)
    arrow(ax, (6.85, 7.34), (4.86, 7.34), kind="position")
    label(ax, 7.0, 7.34, "3  bias: a number for", kind="position", size=10, align="left", weight="bold")
    label(ax, 7.0, 6.86, "    each query and key", kind="position", size=10, align="left", weight="bold")
    arrow(ax, (4.5, 7.65), (4.5, 7.98))
    box(ax, 4.5, 8.3, "softmax", kind="attention weight", w=2.2, h=0.64)
    box(ax, 13.9, 8.3, "weighted sum", kind="value", w=2.5, h=0.64, size=9.5)
    wire(ax, [(5.6, 8.3), (12.65, 8.3)], "attention weight")
    wire(ax, [(13.9, 4.3), (13.9, 7.98)], "value")
    return ax
