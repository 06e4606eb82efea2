"""Diagrams of chapter 13: three ways to use a language model, and what a cache of keys and values keeps."""

from course_lib.diagrams import arrow, box, canvas, diagram, label


@diagram(
    alt="Three rows. GPT, 2018: a review goes into the model; the vector of the last token goes through a new linear "
    "layer to the class 'positive'; all weights are trained further. GPT-2, 2019: the text 'in French, bread is "
    "called' goes in and the next words, 'le pain', come out; nothing is trained. GPT-3, 2020: two examples, 'the dog "
    "= le chien' and 'the house = la maison', stand before 'the bread =', and 'le pain' comes out; nothing is trained.",
    caption="One model, three uses: trained further with a new layer on top (fine-tuning), asked by a prefix alone "
    "(zero-shot), asked by a prefix that holds examples (few-shot). Only in the first do weights change.",
)
def three_uses():
    """Draw fine-tuning, a prefix, and a prefix with examples."""
    ax = canvas(16, 8.2)
    examples = "the dog = le chien\nthe house = la maison\nthe bread ="
    rows = [
        (6.9, "GPT, 2018\nfine-tuning", "great , i loved every minute", True, "positive"),
        (4.1, "GPT-2, 2019\nzero-shot", "in French , bread is called", False, "le pain"),
        (1.3, "GPT-3, 2020\nfew-shot", examples, False, "le pain"),
    ]
    for y, name, text, head, out in rows:
        label(ax, 1.35, y, name, size=10, weight="bold")
        box(ax, 5.15, y, text, kind="input", w=4.7, h=1.5 if "\n" in text else 0.8, size=9.5)
        arrow(ax, (7.55, y), (8.35, y))
        box(ax, 9.3, y, "GPT", kind="hidden", w=1.8, h=1.1, size=11)
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
    alt="Five tokens, 'the cat sat on the', the last one new. Below each a box for its key and one for its value; the "
    "first four of each row are kept in the cache, the fifth is new. Only the new token has a query. An arrow leads "
    "from the query to a row of five scores, one for each key: the last row of a triangle, whose earlier rows are "
    "grey. The five values weighted by softmax give one vector, and in the end the next token, 'mat'.",
    caption="What is computed at step t, and what is kept? Computed: one query, one key, one value, one row of scores, "
    "and the layers' work for one token. Kept: the keys and values of all earlier tokens, in every layer.",
)
def kv_cache():
    """Draw one step of decoding with a cache."""
    ax = canvas(16, 9.2)
    xs = [2.9 + 1.5 * i for i in range(5)]
    for y, name in ((8.6, "tokens"), (7.2, "keys"), (6.1, "values"), (4.7, "query"), (2.1, "scores")):
        label(ax, 1.95, y, name, size=10.5, align="right", weight="bold")
    for i, x in enumerate(xs):
        kind = "weight" if i == 4 else "hidden"
        box(ax, x, 8.6, WORDS[i], kind="input" if i == 4 else "muted", w=1.25, h=0.62)
        box(ax, x, 7.2, f"$k_{i}$", kind=kind, w=1.25, h=0.74, size=11)
        box(ax, x, 6.1, f"$v_{i}$", kind=kind, w=1.25, h=0.74, size=11)
    box(ax, xs[4], 4.7, "$q_4$", kind="weight", w=1.25, h=0.74, size=11)
    arrow(ax, (xs[4], 8.27), (xs[4], 7.6))
    arrow(ax, (xs[4] + 0.66, 8.5), (xs[4] + 0.66, 4.85), bend=-0.2)
    label(ax, 5.15, 7.84, "kept in the cache", kind="hidden", size=10, weight="bold")
    label(ax, 10.5, 6.65, "new: computed once,\nthen kept", kind="weight", size=10, align="left")
    label(ax, 10.5, 4.6, "new: used once,\nnever again", kind="weight", size=10, align="left")
    label(ax, 5.7, 4.3, "$q_4 \\cdot k_j$ for all five keys", kind="attention", size=10)
    arrow(ax, (xs[4], 4.3), (xs[4], 1.27), kind="attention")
    _triangle(ax, xs)
    label(ax, 9.9, 2.7, "grey: rows of earlier steps;\nwithout a cache all of them\nare computed again", align="left")
    box(ax, 11.5, 0.9, "weighted mean\nof 5 values", kind="attention", w=2.8, h=0.95, size=9.5)
    box(ax, 15.1, 0.9, "mat", kind="output", w=1.4, h=0.7)
    arrow(ax, (xs[4] + 0.7, 0.9), (10.05, 0.9))
    arrow(ax, (12.95, 0.9), (14.35, 0.9))
    label(ax, 13.75, 1.75, "rest of\nthe model", size=9)
    return ax


def _triangle(ax, xs):
    """The scores: one row for each step, the last one in colour."""
    from matplotlib.patches import Rectangle

    from course_lib import plots

    for i in range(5):
        for j in range(i + 1):
            color = plots.COLORS["attention"] if i == 4 else "#D9D9D9"
            ax.add_patch(Rectangle((xs[j] - 0.55, 3.3 - 0.66 * i), 1.1, 0.5, facecolor=color, edgecolor="white"))
