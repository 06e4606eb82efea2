"""Diagrams of chapter 12: what ELMo, GPT and BERT let each token see, and what BERT reads and must answer."""

from course_lib.diagrams import arrow, box, canvas, diagram, label

WORDS = ("the", "plot", "was", "dull")


def _stack(ax, x, title, note, layers):
    """Words below, the output of one place above, and `layers` in between: (kind, links) each, upwards."""
    columns = [x + 1.28 * t for t in range(4)]
    label(ax, x + 1.92, 6.95, title, size=12, weight="bold")
    for column, word in zip(columns, WORDS, strict=True):
        box(ax, column, 0.55, word, kind="input", w=1.12, h=0.6, size=9.5)
    for row, (kind, links) in enumerate(layers):
        y = 2.0 + 1.5 * row
        for column in columns:
            box(ax, column, y, "", kind=kind, w=0.8, h=0.5)
        for start, end in links:
            arrow(ax, (columns[start], y - (1.12 if row == 0 else 1.22)), (columns[end], y - 0.28), kind="attention")
    for line, text in enumerate(note):
        label(ax, x + 1.92, 6.4 - 0.42 * line, text, kind="muted", size=9)
    return columns


@diagram(
    alt="Three small networks over the words 'the plot was dull'. ELMo: a chain of arrows to the right in one layer "
    "and, apart from it, a chain to the left; the two meet only at the output. GPT: two layers in which every place "
    "receives arrows from itself and from places to its left. BERT: two layers in which every place receives arrows "
    "from all places.",
    caption="What may see what? ELMo joins two networks, each of which sees one side; GPT sees the left side in every "
    "layer; BERT sees both sides in every layer.",
)
def pretraining_directions():
    """Draw the links between layers of the three models."""
    ax = canvas(17, 7.4)
    causal = [(s, t) for t in range(4) for s in range(t + 1)]
    full = [(s, t) for t in range(4) for s in range(4)]
    columns = _stack(ax, 0.9, "ELMo", ("two LSTMs, one each way;", "joined at the end"), ())
    for row, (y, kind, step) in enumerate(((2.0, "hidden", 1), (3.5, "weight", -1))):
        for t, column in enumerate(columns):
            box(ax, column, y, r"$\rightarrow$" if row == 0 else r"$\leftarrow$", kind=kind, w=0.8, h=0.5)
            if 0 <= t + step < 4:
                arrow(ax, (column + 0.42 * step, y), (columns[t + step] - 0.42 * step, y), kind="attention")
    for column in columns:
        arrow(ax, (column - 0.2, 0.87), (column - 0.2, 1.72))
        arrow(ax, (column + 0.55, 0.87), (column + 0.38, 3.22))
        box(ax, column, 5.0, "both", kind="output", w=1.12, h=0.5, size=8.5)
        arrow(ax, (column + 0.1, 3.78), (column + 0.1, 4.72))
    for column in columns:
        arrow(ax, (column - 0.42, 2.28), (column - 0.53, 4.72))
    _stack(
        ax, 6.55, "GPT", ("each layer: itself and", "what stands before it"), [("hidden", causal), ("output", causal)]
    )
    _stack(ax, 12.2, "BERT", ("each layer: all places,", "before and after"), [("hidden", full), ("output", full)])
    return ax


@diagram(
    alt="Bottom row: the tokens [CLS], the, plot, was, [MASK], [SEP], we, left, early, [SEP]. Above each token three "
    "boxes that are added: its token vector, its position from 0 to 9, and its segment, A for the first six places "
    "and B for the last four. Above them the encoder over all places. On top, an arrow from [CLS] to the question "
    "'does B follow A?' and an arrow from [MASK] to the question 'which word was here?'.",
    caption="What does BERT read, and what is asked of it? The sum of three vectors a place. Asked: the hidden word at "
    "chosen places, and at [CLS] whether the second text follows the first.",
)
def mlm_nsp():
    """Draw the input's three embeddings and the two pre-training questions."""
    ax = canvas(16, 8.2)
    tokens = ("[CLS]", "the", "plot", "was", "[MASK]", "[SEP]", "we", "left", "early", "[SEP]")
    for t, token in enumerate(tokens):
        x, special = 1.75 + 1.46 * t, token.startswith("[")
        box(ax, x, 0.5, token, kind="muted" if special else "input", w=1.32, h=0.62, size=9)
        box(ax, x, 1.72, f"$E_{{{token.strip('[]')}}}$", kind="hidden", w=1.32, h=0.62, size=9)
        box(ax, x, 2.72, f"$P_{{{t}}}$", kind="weight", w=1.32, h=0.62, size=10)
        box(ax, x, 3.72, "$S_A$" if t < 6 else "$S_B$", kind="attention" if t < 6 else "output", w=1.32, h=0.62)
        arrow(ax, (x, 0.82), (x, 1.39))
        arrow(ax, (x, 4.05), (x, 4.62))
        for y in (2.22, 3.22):
            label(ax, x, y, "+", size=11)
    for y, name in ((1.72, "token"), (2.72, "place"), (3.72, "text")):
        label(ax, 0.5, y, name, kind="muted", size=9)
    box(ax, 8.3, 5.1, "LayerNorm, then N encoder layers: every place sees every place", w=14.6, h=0.86, size=11)
    arrow(ax, (1.75, 5.55), (1.75, 6.5), kind="output")
    arrow(ax, (7.59, 5.55), (7.59, 6.5), kind="output")
    box(ax, 2.45, 7.0, "does the second text\nfollow the first?", kind="output", w=4.4, h=0.95, size=9.5)
    box(ax, 8.4, 7.0, "which word was here?", kind="output", w=4.4, h=0.95, size=9.5)
    label(ax, 2.45, 7.85, "next sentence prediction", size=9.5, weight="bold")
    label(ax, 8.4, 7.85, "masked language model", size=9.5, weight="bold")
    return ax
