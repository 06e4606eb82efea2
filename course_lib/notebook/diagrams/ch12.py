"""Diagrams of chapter 12: what ELMo, GPT and BERT let each token see, BERT's parts, and the exchange of its head."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, label, operation, wire

WORDS = ("the", "plot", "was", "dull")


TRACED = 1  # the position whose sources are drawn in colour
STEP = 1.28


def _panel(ax, x, kind, title, note, seen):
    """Title, note and words of one model; the words that reach the traced position are coloured."""
    columns = [x + STEP * t for t in range(4)]
    label(ax, x + 1.5 * STEP, 7.05, title, kind=kind, size=13, weight="bold")
    for line, text in enumerate(note):
        label(ax, x + 1.5 * STEP, 6.5 - 0.42 * line, text, size=9)
    for t, (column, word) in enumerate(zip(columns, WORDS, strict=True)):
        box(ax, column, 0.55, word, kind="token" if t in seen else "faint", w=1.12, h=0.6, size=9.5)
    return columns


def _layers(ax, columns, kind, links):
    """Two layers; the links that lead to the traced position are drawn in colour, over the others."""
    used = [[s for s, t in links if t == TRACED], [TRACED]]  # positions of layer 1 and of layer 2 that matter
    for wanted in (False, True):
        for row in range(2):
            y = 2.35 + 2.0 * row
            for s, t in links:
                if (t in used[row]) == wanted:
                    low = y - 2.0 + (0.3 if row == 0 else 0.25)
                    low = 0.85 if row == 0 else low
                    line = [(columns[s], low), (columns[t], y - 0.27)]
                    wire(ax, line, kind if wanted else "faint", lw=1.8 if wanted else 0.9, head=wanted)
    for row in range(2):
        for t, column in enumerate(columns):
            here = t in used[row]
            box(ax, column, 2.35 + 2.0 * row, "", kind=kind if here else "faint", w=0.8, h=0.54)


def _two_chains(ax, columns, kind):
    """A chain to the right and, apart from it, a chain to the left, joined on top."""
    from matplotlib.patches import Rectangle

    low, high, top = 2.0, 3.6, 4.9
    for y, step, shift in ((low, 1, -0.29), (high, -1, 0.29)):
        for t, column in enumerate(columns):
            here = t <= TRACED if step == 1 else t >= TRACED
            if 0 <= t + step < 4:
                ahead = t + step <= TRACED if step == 1 else t + step >= TRACED
                line = [(column + shift + 0.26 * step, y), (columns[t + step] + shift - 0.26 * step, y)]
                wire(ax, line, kind if ahead else "faint", lw=1.8 if ahead else 0.9)
            x = column + shift
            for bottom, end in ((0.85, y - 0.25), (y + 0.25, top - 0.25)):
                use = here and (bottom < 1 or t == TRACED)
                crossed = high if y == low and bottom > 1 else low if y == high and bottom < 1 else None
                if crossed:
                    ax.add_patch(Rectangle((x - 0.09, crossed - 0.1), 0.18, 0.2, facecolor="white", lw=0, zorder=0.85))
                wire(ax, [(x, bottom), (x, end)], kind if use else "faint", lw=1.8 if use else 0.9)
                ax.patches[-1].set_zorder(0.9)
            arrow_text = r"$\rightarrow$" if step == 1 else r"$\leftarrow$"
            box(ax, x, y, arrow_text, kind=kind if here else "faint", w=0.52, h=0.5, size=9)
    for t, column in enumerate(columns):
        box(ax, column, top, "both", kind=kind if t == TRACED else "faint", w=1.12, h=0.5, size=9)


@diagram(
    alt="Three small networks over the words 'the plot was dull'; in each, what reaches the position of 'plot' is "
    "drawn in colour. ELMo: a chain from the left brings 'the plot', and apart from it a chain from the right brings "
    "'plot was dull'; they meet only at the output. GPT: two layers in which every position reads itself and those to "
    "its left; coloured are 'the' and 'plot'. BERT: two layers in which every position reads all; all is coloured.",
    caption="What may see what? ELMo joins two networks, each of which sees one side; GPT sees the left side in every "
    "layer; BERT sees both sides in every layer. In colour: all that reaches the position of *plot*.",
)
def pretraining_directions():
    """Draw the links between layers of the three models, those to one place in colour."""
    ax = canvas(17, 7.5)
    causal = [(s, t) for t in range(4) for s in range(t + 1)]
    full = [(s, t) for t in range(4) for s in range(4)]
    columns = _panel(ax, 0.95, "ELMo", "ELMo", ("two LSTMs, one each way;", "joined at the end"), range(4))
    _two_chains(ax, columns, "ELMo")
    columns = _panel(ax, 6.6, "GPT", "GPT", ("each layer: itself and", "what stands before it"), (0, 1))
    _layers(ax, columns, "GPT", causal)
    columns = _panel(ax, 12.25, "BERT", "BERT", ("each layer: all positions,", "before and after"), range(4))
    _layers(ax, columns, "BERT", full)
    return ax


@diagram(
    alt="Two frames. Left, 1, pre-train, on unlabelled texts: the tokens '[CLS] the plot was [MASK] [SEP]' go into "
    "BERT, which says 'dull?' over the mask. A thick line, the weights are kept, leads to the right frame. Right, 2, "
    "fine-tune, on a few labelled texts: '[CLS] the film was dull [SEP]' goes into the same BERT; the mean of its six "
    "vectors goes into a new linear layer, which says 'negative'.",
    caption="First the model fills in words that were hidden in plain text, of which there is plenty; then the same "
    "weights, with one new layer, learn from the few texts that somebody has labelled. The new layer reads the mean "
    "of all vectors; in the paper it reads that of [CLS] (section 5).",
)
def pretrain_finetune():
    """Draw the two stages, with one BERT in both."""
    ax = canvas(16, 8.2)
    stages = (
        (0.3, "1  pre-train", "unlabelled texts: plenty", "[CLS] the plot was [MASK] [SEP]"),
        (8.9, "2  fine-tune", "labelled texts: few", "[CLS] the film was dull [SEP]"),
    )
    for left, title, texts, words in stages:
        frame(ax, left, 0.3, 6.8, 7.0)
        label(ax, left + 0.1, 7.75, title, size=12, weight="bold", align="left")
        label(ax, left + 3.4, 0.75, texts, size=9.5)
        box(ax, left + 3.4, 3.25, "BERT", "BERT", w=6.2, h=1.0, size=13)
        for t, word in enumerate(words.split()):
            x = left + 0.7 + 1.08 * t
            box(ax, x, 1.65, word, "muted" if word.startswith("[") else "token", w=1.03, h=0.66, size=8)
            wire(ax, [(x, 1.98), (x, 2.75)])
    wire(ax, [(6.8, 3.25), (9.2, 3.25)], "BERT", lw=4)
    label(ax, 8.0, 4.15, "weights\nare kept", "BERT", size=10)
    mask = 0.3 + 0.7 + 1.08 * 4
    wire(ax, [(mask, 3.75), (mask, 6.25)], "output")
    box(ax, mask, 6.6, "dull ?", "output", w=1.5, h=0.66)
    for t in range(6):
        wire(ax, [(8.9 + 0.7 + 1.08 * t, 3.75), (8.9 + 0.7 + 1.08 * t, 4.22)])
    box(ax, 12.3, 4.5, "mean of the six vectors", "hidden", w=6.2, h=0.56, size=9.5)
    wire(ax, [(12.3, 4.78), (12.3, 5.25)])
    box(ax, 12.3, 5.55, "new linear layer", "projections", w=2.7, h=0.6, size=9.5)
    wire(ax, [(12.3, 5.85), (12.3, 6.27)], "output")
    box(ax, 12.3, 6.6, "negative", "output", w=2.0, h=0.66)
    return ax


@diagram(
    alt="Bottom row: the tokens [CLS], the, plot, was, [MASK], [SEP], we, left, early, [SEP]. Above each token three "
    "boxes that are added: its token vector, its position from 0 to 9, and its segment, 0 for the first six "
    "and 1 for the last four. Above them the encoder over all positions. On top, an arrow from [CLS] to the question "
    "'does the second text follow the first?' and an arrow from [MASK] to the question 'which word was here?'.",
    caption="What does BERT read, and what must it predict? It reads the sum of three vectors at each position. It "
    "predicts the hidden word at chosen positions, and at [CLS] whether the second text follows the first.",
)
def mlm_nsp():
    """Draw the input's three embeddings and the two pre-training questions."""
    ax = canvas(16, 8.2)
    tokens = ("[CLS]", "the", "plot", "was", "[MASK]", "[SEP]", "we", "left", "early", "[SEP]")
    for t, token in enumerate(tokens):
        x, special = 1.95 + 1.44 * t, token.startswith("[")
        box(ax, x, 0.5, token, kind="muted" if special else "input", w=1.32, h=0.62, size=9)
        box(ax, x, 1.72, f"E[{token.strip('[]')}]", kind="hidden", w=1.32, h=0.62, size=9)
        box(ax, x, 2.72, f"P[{t}]", kind="position", w=1.32, h=0.62, size=10)
        box(ax, x, 3.72, "S[0]" if t < 6 else "S[1]", kind="attention" if t < 6 else "output", w=1.32, h=0.62, size=10)
        arrow(ax, (x, 0.82), (x, 1.39))
        arrow(ax, (x, 4.05), (x, 4.62))
        for y in (2.22, 3.22):
            label(ax, x, y, "+", size=11)
    for y, name in ((1.72, "token"), (2.72, "position"), (3.72, "segment")):
        label(ax, 0.63, y, name, kind="muted", size=8)
    box(ax, 8.43, 5.1, "LayerNorm, then N encoder layers: every position sees every position", w=14.6, h=0.86, size=11)
    arrow(ax, (1.95, 5.55), (1.95, 6.5), kind="output")
    arrow(ax, (7.71, 5.55), (7.71, 6.5), kind="output")
    box(ax, 2.45, 7.0, "does the second text\nfollow the first?", kind="output", w=4.4, h=0.95, size=9.5)
    box(ax, 8.4, 7.0, "which word was here?", kind="output", w=4.4, h=0.95, size=9.5)
    label(ax, 2.45, 7.85, "next sentence prediction", size=9.5, weight="bold")
    label(ax, 8.4, 7.85, "masked language model", size=9.5, weight="bold")
    return ax


@diagram(
    alt="From bottom to top. The ids, (B, T), the positions and the segments choose rows of three tables: token E (V, "
    "D), position P (L, D), segment S (2, D). The rows are added and go through a LayerNorm: (B, T, D). A frame, N "
    "times: attend, added to its input, norm1; think, added to its input, norm2; still (B, T, D). On top the head: "
    "prepare, then the product with E, transposed, plus a bias: logits (B, T, V). A line leads from the token table to "
    "this product: it is the same table.",
    caption="What happens to the ids? Three tables give each position a vector, the blocks let the positions read each "
    "other, and the head compares each vector with the token table again. Every part keeps its name in the code.",
)
def plain_bert():
    """Draw tables, norm, blocks and head, from bottom to top, with the shapes at the right."""
    ax = canvas(16, 11)
    middle, shapes = 6.6, 13.2
    tables = (
        (3.0, "ids", "token", "E: (V, D)", "hidden"),
        (6.6, "0 to T - 1", "position", "P: (L, D)", "position"),
        (10.2, "0 or 1", "segment", "S: (2, D)", "attention"),
    )
    for x, given, name, size, kind in tables:
        box(ax, x, 0.6, given, "input", w=2.4, h=0.66, size=9.5)
        wire(ax, [(x, 0.93), (x, 1.5)])
        box(ax, x, 1.9, f"{name}   {size}", kind, w=3.3, h=0.7, size=9.5)
        if x != middle:
            wire(ax, [(x, 2.25), (x, 2.75), (middle + (0.3 if x > middle else -0.3), 2.75)])
    wire(ax, [(middle, 2.25), (middle, 2.48)], head=False)
    operation(ax, middle, 2.75, "+")
    wire(ax, [(middle, 3.02), (middle, 3.3)])
    box(ax, middle, 3.6, "norm", "Add & Norm", w=3.3, h=0.6)
    frame(ax, 3.0, 4.3, 7.2, 3.9)
    label(ax, 9.75, 4.65, "N blocks", size=9.5, align="right")
    for low, part, norm in ((4.6, "attend", "norm1"), (6.45, "think", "norm2")):
        wire(ax, [(middle, low - 0.7), (middle, low + 0.2)])
        box(ax, middle, low + 0.5, part, "self-attention" if part == "attend" else "feed-forward", w=3.3, h=0.6)
        wire(ax, [(middle, low - 0.1), (4.1, low - 0.1), (4.1, low + 1.2), (4.95, low + 1.2)])
        label(ax, 3.8, low + 0.55, "+", size=12)
        wire(ax, [(middle, low + 0.8), (middle, low + 0.92)], head=False)
        box(ax, middle, low + 1.2, norm, "Add & Norm", w=3.3, h=0.5)
    wire(ax, [(middle, 7.9), (middle, 8.5)])
    box(ax, middle, 8.8, "prepare", "projections", w=3.3, h=0.6)
    wire(ax, [(middle, 9.1), (middle, 9.4)])
    box(ax, middle, 9.7, r"$\cdot\; E^\top$ + bias", "output", w=3.3, h=0.6)
    wire(ax, [(middle, 10.0), (middle, 10.4)])
    label(ax, middle, 10.65, "logits", size=10.5)
    wire(ax, [(1.35, 1.9), (0.9, 1.9), (0.9, 9.7), (4.95, 9.7)], "hidden", dashed=True)
    label(ax, 1.15, 9.2, "the same table", "hidden", size=9, align="left")
    for y, shape in ((0.6, "(B, T)"), (3.6, "(B, T, D)"), (7.65, "(B, T, D)"), (10.65, "(B, T, V)")):
        label(ax, shapes, y, shape, size=10)
    for y, part in ((2.3, "what is read"), (6.2, "who looks at whom"), (9.25, "the head")):
        label(ax, shapes, y, part, "muted", size=9)
    return ax


@diagram(
    alt="Two towers over the same network, bert. Left, before: the ids go into bert; each of its vectors, (B, T, D), "
    "goes into the head, prepare and the token table: (B, T, V), a word for each token. Right, after: a copy of bert; "
    "the mean of its vectors over the real tokens, (B, D), goes into output, a new layer: (B, 2), negative or "
    "positive.",
    caption="What is exchanged? The head alone. Below it the network is the same, with all that it has learned.",
)
def new_head():
    """Draw the network with the head of the masked language model, and with the judge's."""
    ax, left, right = canvas(16, 7.2), 3.4, 11.2
    for x, title in ((left, "before: guesses words"), (right, "after: the judge")):
        label(ax, x, 6.8, title, size=11.5, weight="bold")
        label(ax, x, 0.45, "ids  (B, T)", size=10)
        wire(ax, [(x, 0.75), (x, 1.25)])
        box(ax, x, 1.7, "bert", "BERT", w=5.6, h=0.9, size=12)
        for t in range(5):
            wire(ax, [(x + 1.1 * (t - 2), 2.15), (x + 1.1 * (t - 2), 2.95)])
        label(ax, x + 3.7, 2.55, "(B, T, D)", size=9.5)
    wire(ax, [(6.2, 1.7), (8.4, 1.7)], "BERT", lw=4)
    label(ax, 7.3, 1.25, "copied", "BERT", size=9.5)
    box(ax, left, 3.4, r"prepare, $\cdot\; E^\top$ + bias", "projections", w=5.6, h=0.9, size=10.5)
    for t in range(5):
        wire(ax, [(left + 1.1 * (t - 2), 3.85), (left + 1.1 * (t - 2), 4.75)], "output")
    label(ax, left + 3.7, 4.3, "(B, T, V)", size=9.5)
    box(ax, left, 5.15, "a word for each token", "output", w=5.6, h=0.75, size=10.5)
    box(ax, right, 3.3, "mean over the real tokens", "hidden", w=5.6, h=0.7, size=10.5)
    wire(ax, [(right, 3.65), (right, 4.1)])
    label(ax, right + 1.2, 3.87, "(B, D)", size=9.5)
    box(ax, right, 4.45, "output: new, random", "projections", w=4.0, h=0.7, size=10.5)
    wire(ax, [(right, 4.8), (right, 5.35)], "output")
    label(ax, right + 1.2, 5.07, "(B, 2)", size=9.5)
    box(ax, right, 5.75, "negative or positive", "output", w=4.0, h=0.75, size=10.5)
    return ax
