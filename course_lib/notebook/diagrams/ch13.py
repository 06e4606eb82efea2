"""Diagrams of chapter 13: the whole GPT, three ways to use one, and what a cache of keys and values keeps."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, joint, label, operation, wire


@diagram(
    alt="Three rows. GPT, 2018: a review goes into the model; the vector of the last token goes through a new linear "
    "layer to the class 'positive'; all weights are trained further. GPT-2, 2019: the text 'in French, bread is "
    "called' goes in and the next words, 'le pain', come out; nothing is trained. GPT-3, 2020: two examples, 'the dog "
    "= le chien' and 'the house = la maison', stand before 'the bread =', and 'le pain' comes out; nothing is trained.",
    caption="One model, three uses: trained further with a new layer on top (fine-tuning), prompted without examples "
    "(zero-shot), prompted with examples (few-shot). Only in the first do weights change.",
)
def three_uses():
    """Draw fine-tuning, a prefix, and a prefix with examples."""
    ax = canvas(16, 8.2)
    examples = "the dog = le chien\nthe house = la maison\nthe bread ="
    rows = [
        (6.9, "GPT, 2018\nfine-tuning", "great, I loved every minute", True, "positive"),
        (4.1, "GPT-2, 2019\nzero-shot", "in French, bread is called", False, "le pain"),
        (1.3, "GPT-3, 2020\nfew-shot", examples, False, "le pain"),
    ]
    for y, name, text, head, out in rows:
        label(ax, 1.35, y, name, size=10, weight="bold")
        box(ax, 5.15, y, text, kind="token", w=4.7, h=1.5 if "\n" in text else 0.8, size=9.5)
        arrow(ax, (7.55, y), (8.35, y))
        box(ax, 9.3, y, "GPT", kind="GPT", w=1.8, h=1.1, size=11)
        arrow(ax, (10.25, y), (11.05 if head else 13.45, y))
        if head:
            box(ax, 12.1, y, "new linear\nlayer", kind="weight", w=2.0, h=1.0, size=9.5)
            arrow(ax, (13.15, y), (13.65, y))
        else:
            label(ax, 11.85, y + 0.32, "next tokens", size=9)
        box(ax, 14.7, y, out, kind="output", w=2.0 if head else 2.3, h=0.8, size=10)
    label(ax, 10.7, 5.55, "labels train all weights", kind="gradient", size=9.5)
    arrow(ax, (9.3, 5.8), (9.3, 6.32), kind="gradient")
    arrow(ax, (12.1, 5.8), (12.1, 6.36), kind="gradient")
    return ax


WORDS = ["the", "cat", "sat", "on", "the"]


@diagram(
    alt="The tokens 'the cat sat on the' go into a wide box, GPT. Over its last place stand bars, a probability for "
    "every next token: mat 0.64, sofa 0.24, floor 0.09, and so on. One is drawn, 'mat', and a line leads it round into "
    "an empty place after the last token.",
    caption="How does a GPT write? It reads the text so far, gives every token a probability of being next, and one is "
    "drawn and appended. Then it reads again, one token more.",
)
def gpt_loop():
    """Draw one turn of writing: read, weigh, draw, append."""
    from matplotlib.patches import Rectangle

    from course_lib.notebook import plots

    ax = canvas(16, 7.2)
    xs = [1.15 + 1.75 * i for i in range(6)]
    for i, x in enumerate(xs[:5]):
        box(ax, x, 0.9, WORDS[i], "token", w=1.5, h=0.7)
        wire(ax, [(x, 1.25), (x, 2.2)])
    box(ax, (xs[0] + xs[4]) / 2, 2.75, "GPT", "GPT", w=8.5, h=1.1, size=13)
    wire(ax, [(xs[4], 3.3), (xs[4], 4.9), (9.7, 4.9)], "output")
    label(ax, 5.0, 4.9, "a probability for\nevery next token", "output", size=10)
    for row, (word, p) in enumerate((("mat", 0.64), ("sofa", 0.24), ("floor", 0.09))):
        y = 6.15 - 0.75 * row
        label(ax, 10.95, y, word, size=10, align="right")
        bar = Rectangle((11.15, y - 0.24), 4.2 * p, 0.48, color=plots.color("output"), lw=0)
        bar.set_alpha(0.45 if row else 1)
        ax.add_patch(bar)
        label(ax, 11.3 + 4.2 * p, y, f"{p:.2f}", size=9.5, align="left")
    label(ax, 11.15, 3.95, "…", size=12, align="left")
    frame(ax, 9.7, 3.4, 5.2, 3.4, face="none")
    wire(ax, [(14.9, 6.15), (15.5, 6.15), (15.5, 0.9), (xs[5] + 0.75, 0.9)], "output", lw=2.4)
    label(ax, 13.0, 1.25, "one is drawn and appended", "output", size=10)
    box(ax, xs[5], 0.9, "mat", "output", w=1.5, h=0.7)
    label(ax, xs[5] - 0.75, 2.75, "then all again,\none token more", size=9.5, align="left")
    return ax


@diagram(
    alt="The whole GPT from bottom to top, beside each part its line of code. The ids (B, T) choose rows of a table of "
    "tokens; rows of a table of positions are added. Then a frame that is repeated N times: a branch with a norm and "
    "masked attention is added to the stream, then a branch with a norm and a feed-forward network. After the last "
    "block one more norm, and the table of tokens again, which gives the logits (B, T, V).",
    caption="What is a GPT? A stream of vectors, one for each token, from a table to the same table. N blocks add to "
    "it what each position finds by looking back, and what it makes of that.",
)
def whole_gpt():
    """Draw every part of a GPT in its place, with the line that computes it."""
    ax = canvas(15.5, 15.0)
    x, branch, code = 2.3, 5.3, 8.2

    def line(y, text, words=""):
        ax.text(code, y, text, ha="left", va="center", fontsize=9.5, family="monospace")
        label(ax, code, y - 0.45, words, size=9, align="left")

    box(ax, x, 0.6, "ids", "token", w=2.6, h=0.7)
    line(0.75, "ids", "(B, T)")
    wire(ax, [(x, 0.95), (x, 1.55)])
    box(ax, x, 1.95, "table of tokens", "token", w=3.2, h=0.75)
    line(1.95, "self.embedding(ids)", "a row for each token: (B, T, D)")
    wire(ax, [(x, 2.33), (x, 3.05)])
    operation(ax, x, 3.32, "+")
    box(ax, branch, 3.32, "table of positions", "position", w=3.2, h=0.75)
    wire(ax, [(branch - 1.6, 3.32), (x + 0.27, 3.32)], "position")
    line(3.32, "+ self.positions[:T]", "a row for each position: (T, D)")
    wire(ax, [(x, 3.59), (x, 7.23)])
    frame(ax, 0.35, 4.3, 7.25, 6.75)
    label(ax, 7.25, 10.6, "block, × N", size=10.5, align="right", weight="bold")
    _branch(ax, x, branch, 4.75, 7.5, "masked attention", "masked self-attention")
    line(6.35, "x + self.attn(self.ln1(x))", "look back, add")
    wire(ax, [(x, 7.77), (x, 9.98)])
    _branch(ax, x, branch, 7.95, 10.25, "feed-forward", "feed-forward")
    line(9.3, "x + self.mlp(self.ln2(x))", "think, add")
    wire(ax, [(x, 10.52), (x, 11.55)])
    box(ax, x, 11.85, "norm", "Add & Norm", w=2.6, h=0.6)
    line(11.85, "self.norm(x)")
    wire(ax, [(x, 12.15), (x, 12.75)])
    box(ax, x, 13.13, "table of tokens", "token", w=3.2, h=0.75)
    line(13.13, "self.head(...)", "the same table, transposed")
    wire(ax, [(x, 13.51), (x, 14.1)])
    box(ax, x, 14.45, "logits", "output", w=2.6, h=0.7)
    line(14.45, "logits", "(B, T, V): a score for each next token")
    return ax


def _branch(ax, x, side, below, above, text, kind):
    """A branch that leaves the stream at x, goes through a norm and a part, and is added to it."""
    joint(ax, x, below)
    middle = (below + above) / 2
    wire(ax, [(x, below), (side, below), (side, middle - 0.63)])
    box(ax, side, middle - 0.4, "norm", "Add & Norm", w=2.6, h=0.46, size=9)
    wire(ax, [(side, middle - 0.17), (side, middle + 0.1)])
    box(ax, side, middle + 0.48, text, kind, w=3.2, h=0.75, size=10)
    wire(ax, [(side, middle + 0.86), (side, above), (x + 0.27, above)])
    operation(ax, x, above, "+")


@diagram(
    alt="Five tokens, 'the cat sat on the', the last one new. Under them, from top to bottom, a row of keys, a row of "
    "weights and a row of values. The keys and values of the first four, in two frames, are kept in the cache; those "
    "of the fifth are new. On the right the new token's query, the only one. It leads to the row of weights, as an "
    "arrow from each key does. An arrow leads from each weight to its value, and from each value to the weighted mean, "
    "which goes through the rest of the model and gives the next token, 'mat'. Aside a triangle of scores: without a "
    "cache its grey rows are computed again, with a cache only the last.",
    caption="What is computed at step t, and what is kept? Computed: one query, one key, one value, one row of scores, "
    "and the layers' work for one token. Kept: the keys and values of all earlier tokens, in every layer.",
)
def kv_cache():
    """Draw one step of decoding with a cache."""
    ax = canvas(16, 9.2)
    xs = [2.9 + 1.6 * i for i in range(5)]
    for y, name in ((8.5, "tokens"), (6.85, "keys"), (5.25, "weights"), (3.65, "values")):
        label(ax, 1.8, y, name, size=10.5, align="right", weight="bold")
    for y in (6.85, 3.65):
        frame(ax, xs[0] - 0.85, y - 0.52, 6.5, 1.04)
        label(ax, xs[4] + 0.85, y, "new, then\nkept", size=9.5, align="left")
    label(ax, xs[1] + 0.8, 7.72, "cache: kept, not computed again", kind="hidden", size=10, weight="bold")
    for i, x in enumerate(xs):
        new = i == 4
        box(ax, x, 8.5, WORDS[i], kind="token" if new else "faint", w=1.35, h=0.64)
        box(ax, x, 6.85, f"$k_{i}$", kind="key", w=1.3, h=0.74, size=11, lw=2.4 if new else 1.6)
        wire(ax, [(x, 6.48), (x, 5.62)], "key")
        wire(ax, [(x, 4.9), (x, 4.04)], "attention weight")
        box(ax, x, 3.65, f"$v_{i}$", kind="value", w=1.3, h=0.74, size=11, lw=2.4 if new else 1.6)
        wire(ax, [(x, 3.28), (x, 2.17)], "value")
    wire(ax, [(xs[4], 8.18), (xs[4], 7.24)])
    asked = 12.9
    wire(ax, [(xs[4] + 0.68, 8.5), (asked, 8.5), (asked, 7.24)])
    box(ax, asked, 6.85, "$q_4$", kind="query", w=1.3, h=0.74, size=11, lw=2.4)
    label(ax, asked + 0.85, 6.85, "new, used\nonly once", size=9.5, align="left")
    wire(ax, [(asked, 6.48), (asked, 5.25), (xs[4] + 0.75, 5.25)], "query")
    label(ax, asked - 1.45, 5.58, "asks every key", kind="query", size=9.5)
    _weights(ax, xs, 5.25)
    box(ax, xs[2], 1.7, "weighted mean of 5 values", kind="attention weight", w=7.3, h=0.9, size=10)
    wire(ax, [(xs[2] + 3.65, 1.7), (11.05, 1.7)])
    label(ax, 10.45, 2.62, "rest of\nthe model", size=9)
    box(ax, 11.75, 1.7, "mat", kind="output", w=1.4, h=0.7)
    _triangle(ax, 13.05, 3.45)
    label(ax, 14.1, 0.55, "grey: computed again,\nwithout a cache", size=9.5)
    return ax


def _weights(ax, xs, y):
    """One row of weights, one between each key and its value, as cells filled by their share."""
    from matplotlib.patches import Rectangle

    from course_lib.notebook import plots

    blue = plots.color("attention weight")
    for x, share in zip(xs, (0.1, 0.35, 0.25, 0.15, 0.15), strict=True):
        ax.add_patch(Rectangle((x - 0.65, y - 0.35), 1.3, 0.7, facecolor="white", edgecolor=blue, lw=1.6))
        ax.add_patch(Rectangle((x - 0.65, y - 0.35), 1.3, 0.7 * share, facecolor=blue, alpha=0.75, lw=0))


def _triangle(ax, x, y):
    """The scores of all steps: one row for each, the last one in colour; (x, y) is the upper left corner."""
    from matplotlib.patches import Rectangle

    from course_lib.notebook import plots

    for i in range(5):
        for j in range(i + 1):
            hue = plots.color("attention weight") if i == 4 else "#D9D9D9"
            ax.add_patch(Rectangle((x + 0.52 * j, y - 0.44 * (i + 1)), 0.46, 0.38, facecolor=hue, lw=0))
