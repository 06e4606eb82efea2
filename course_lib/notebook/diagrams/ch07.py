"""Diagrams of chapter 07: a memory task, look-ups, roles, heads, shapes, masks, four steps from a GRU to attention."""

import itertools

from course_lib.notebook import plots
from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, label, wire

# --- the memory task ------------------------------------------------------------------------

PAIRS = ("c 4", "h 0", "a 7", "e 1", "j 4", "b 9", "d 2", "f 5")


@diagram(
    alt="Eight boxes in a row hold pairs: c 4, h 0, a 7, e 1, j 4, b 9, d 2, f 5; a ninth holds the question, 'a ?'. "
    "Above them a GRU: one state after each box, handed on from left to right; at the end its answer, a question mark."
    " Below them attention: lines lead from the question back to each pair, one of them thick, to a 7, and from this"
    " pair an arrow leads to the answer 7.",
    caption="Which digit came with *a*? The GRU must carry all pairs to the end in one state. Attention leaves them "
    "where they are, and looks one up when it knows the question.",
)
def memory_task():
    """Draw the pairs with a state carried above them, and a look-up below."""
    ax = canvas(16.8, 6.2)
    places = [2.5 + 1.45 * i for i in range(len(PAIRS))]
    asked, answers, top, row = 14.1, 16.0, 5.4, 3.9
    for x, pair in zip(places, PAIRS, strict=True):
        box(ax, x, row, pair, kind="input", w=1.05, h=0.74, size=11)
    box(ax, asked, row, "a ?", kind="query", w=1.05, h=0.74, size=11)
    stops = [*places, asked]
    for x in stops:
        box(ax, x, top, "$h$", kind="hidden", w=0.72, h=0.6, size=11)
        arrow(ax, (x, row + 0.4), (x, top - 0.33))
    for left, right in itertools.pairwise(stops):
        arrow(ax, (left + 0.38, top), (right - 0.38, top), kind="hidden")
    arrow(ax, (asked + 0.38, top), (answers - 0.4, top), kind="hidden")
    box(ax, answers, top, "?", kind="output", w=0.75, h=0.7, size=12)
    for i, x in enumerate(places):
        heavy = PAIRS[i].startswith("a")
        arrow(ax, (asked - 0.2, row - 0.4), (x + 0.15, row - 0.4), kind="attention" if heavy else "muted", bend=-0.28)
        ax.patches[-1].set_linewidth(4.0 if heavy else 0.9)
        ax.patches[-1].set_mutation_scale(18 if heavy else 8)
    found = places[2] - 0.2
    wire(ax, [(found, row - 0.4), (found, 0.65), (answers - 0.4, 0.65)], "attention")
    box(ax, answers, 0.65, "7", kind="output", w=0.75, h=0.7, size=12)
    label(ax, 1.0, top, "GRU", kind="hidden", size=10.5, weight="bold")
    label(ax, 1.15, 2.3, "attention", kind="attention", size=10.5, weight="bold")
    return ax


# --- from the GRU to heads ----------------------------------------------------------------

POSITIONS = (1.0, 2.8, 4.6)  # x of the three positions of a panel


def _panel(ax, x, y, number, title, formula):
    """The frame of a panel whose lower left corner is (x, y): its title, and what it computes."""
    ax.plot([x + 0.05, x + 5.5, x + 5.5, x + 0.05, x + 0.05], [y, y, y + 6, y + 6, y], color="#CCCCCC", lw=1)
    label(ax, x + 0.3, y + 5.55, number, size=13, align="left", weight="bold", kind="attention")
    label(ax, x + 0.85, y + 5.55, title, size=9.5, align="left", weight="bold")
    label(ax, x + 2.8, y + 4.75, formula, size=10)


def _words(ax, x, y):
    """The three inputs."""
    for i, at in enumerate(POSITIONS, 1):
        box(ax, x + at, y + 0.5, f"$x_{i}$", kind="input", w=1.0, h=0.6, size=10)


def _row(ax, x, y, names, kind, w=1.25):
    """One box for each position, fed by the input below it."""
    for at, name in zip(POSITIONS, names, strict=True):
        arrow(ax, (x + at, y + 0.82), (x + at, y + 1.46))
        box(ax, x + at, y + 1.8, name, kind=kind, w=w, h=0.66, size=9.5)


def _sum(ax, x, y, weights, kind):
    """The weighted sum of what stands in the row."""
    box(ax, x + 2.8, y + 3.9, "$h_3$", kind="hidden", w=1.1, h=0.62, size=10)
    for at, weight in zip(POSITIONS, weights, strict=True):
        arrow(ax, (x + at, y + 2.15), (x + 2.8 + 0.2 * (at - 2.8), y + 3.57), kind=kind)
        label(ax, x + at + 0.36 * (2.8 - at), y + 2.72, weight, kind=kind, size=9, background=True)


def _chain(ax, x, y, bend):
    """Each candidate needs the state before it."""
    for left, right in itertools.pairwise(POSITIONS):
        arrow(ax, (x + left + 0.64, y + 1.8), (x + right - 0.64, y + 1.8), kind="hidden", bend=bend)


@diagram(
    alt="Five panels. 0: a GRU's state as a sum of candidates n_i whose weights are products of update gates, the"
    " candidates chained to each other. 1: the products are replaced by the weights alpha of a softmax. 2: the"
    " candidates are functions f(x_i) of one input each; the chain is gone. 3: each position gives a key and a value, "
    "the last one a query. 4: two such sums with their own weights stand side by side.",
    caption="From a GRU to multi-head attention: the state stays a weighted sum throughout. Decouple the weights (1), "
    "then the candidates (2); part what is compared from what is returned (3); ask several questions at once (4).",
)
def four_steps():
    """Draw the sum of a GRU and what each step changes in it."""
    ax = canvas(16.8, 13.0)
    top, low = 6.75, 0.25
    x, y = 0, top
    _panel(ax, x, y, "0", "GRU: dependent weights", r"$\sum_i\, w_i \odot n_i$,  $w_i = (1 - z_i) \prod_{j>i} z_j$")
    _words(ax, x, y)
    _row(ax, x, y, ("$n_1$", "$n_2$", "$n_3$"), "hidden")
    _chain(ax, x, y, 0)
    _sum(ax, x, y, ("$w_1$", "$w_2$", "$w_3$"), "weight")
    x = 5.6
    _panel(ax, x, y, "1", "decoupled weights", r"$\sum_i\, \alpha_i\, n_i$")
    _words(ax, x, y)
    _row(ax, x, y, ("$n_1$", "$n_2$", "$n_3$"), "hidden")
    _chain(ax, x, y, 0)
    _sum(ax, x, y, (r"$\alpha_1$", r"$\alpha_2$", r"$\alpha_3$"), "attention")
    x = 11.2
    _panel(ax, x, y, "2", "decoupled candidates", r"$\sum_i\, \alpha_i\, f(x_i)$")
    _words(ax, x, y)
    _row(ax, x, y, ("$f(x_1)$", "$f(x_2)$", "$f(x_3)$"), "hidden")
    _sum(ax, x, y, (r"$\alpha_1$", r"$\alpha_2$", r"$\alpha_3$"), "attention")
    x, y = 0, low
    _panel(ax, x, y, "3", "keys and values apart", r"$\sum_i \alpha_i\, v_i$,  $\alpha_i \propto e^{q_3 \cdot k_i}$")
    _words(ax, x, y)
    _row(ax, x, y, ("$k_1 \\;\\, v_1$", "$k_2 \\;\\, v_2$", "$k_3 \\;\\, v_3$"), "hidden")
    _sum(ax, x, y, (r"$\alpha_1$", r"$\alpha_2$", r"$\alpha_3$"), "attention")
    box(ax, x + 4.9, y + 3.75, "$q_3$", kind="query", w=0.9, h=0.6, size=10)
    arrow(ax, (x + 4.75, y + 3.42), (x + 4.28, y + 2.86), kind="query", dashed=True)
    x = 5.6
    ax.plot([x + 0.05, 16.7, 16.7, x + 0.05, x + 0.05], [y, y, y + 6, y + 6, y], color="#CCCCCC", lw=1)
    label(ax, x + 0.3, y + 5.55, "4", size=13, align="left", weight="bold", kind="attention")
    label(ax, x + 0.85, y + 5.55, "heads: several sums at once, each with its own question", size=9.5, align="left",
          weight="bold")  # fmt: skip
    box(ax, x + 5.5, y + 4.7, r"$h_3 = [\,h_3^1 ;\, h_3^2\,]$", kind="hidden", w=3.6, h=0.66, size=10.5)
    for head, shift in ((1, 0), (2, 5.5)):
        _words(ax, x + shift, y)
        names = [rf"$k_{i}^{head} \; v_{i}^{head}$" for i in (1, 2, 3)]
        _row(ax, x + shift, y, names, "hidden", w=1.45)
        heavy = 0 if head == 1 else 1
        box(ax, x + shift + 2.8, y + 3.5, f"$h_3^{head}$", kind="hidden", w=1.1, h=0.6, size=10)
        for i, at in enumerate(POSITIONS):
            start, end = (x + shift + at, y + 2.15), (x + shift + 2.8 + 0.2 * (at - 2.8), y + 3.18)
            arrow(ax, start, end, kind="attention" if i == heavy else "muted")
            if i == heavy:
                ax.patches[-1].set_linewidth(3.5)
        arrow(ax, (x + shift + 2.8, y + 3.82), (x + 5.5 + (-1 if head == 1 else 1), y + 4.35))
    label(ax, x + 0.75, y + 3.5, "head 1", kind="attention", size=9.5)
    label(ax, x + 10.0, y + 3.5, "head 2", kind="attention", size=9.5)
    return ax


# --- a soft dictionary ---------------------------------------------------------------------

BOOK = (("lasagne", 0.72), ("cannelloni", 0.09), ("tomato soup", 0.09), ("apple pie", 0.09))


@diagram(
    alt="Left the query 'lasagna?'. In the middle four keys, the titles lasagne, cannelloni, tomato soup, apple "
    "pie, with lines from the query whose thickness is the weight: 0.72, 0.09, 0.09, 0.09. Right of each key "
    "its value, the recipe; four arrows of those weights meet in the weighted sum.",
    caption="A soft look-up: the query is compared with every *key*, the matches become weights that add up to 1, and "
    "the answer is the weighted mean of the *values*. A misspelt title still finds its recipe.",
)
def soft_dictionary():
    """Draw the query, the keys with their weights, and the values."""
    rows = [(title, f"recipe $v_{number}$", "", weight) for number, (title, weight) in enumerate(BOOK, start=1)]
    ax = _look_up("lasagna ?", rows, r"$\sum_s w_s\, v_s$")
    for x, name in ((1.6, "query $q$"), (6.3, "keys $k_s$: titles"), (10.3, "values $v_s$: recipes")):
        label(ax, x, 6.1, name, size=10.5, weight="bold")
    label(ax, 1.7, 4.85, "how well does\neach key fit?", kind="attention", size=9.5)
    label(ax, 15.0, 4.15, "answer", size=10.5, weight="bold")
    return ax


FOUR_WORDS = (
    ("the", "(0, 0, 0, 0)", "0", 0.11),
    ("river", "(2, 0, 0, 0)", "1", 0.30),
    ("bank", "(0.5, 0.5, 1, 0)", "1.5", 0.49),
    ("collapsed", "(0, 0, 0, 2)", "0", 0.11),
)


@diagram(
    alt="Left the word 'bank', which asks. In the middle the four words the, river, bank, collapsed, with arrows from "
    "'bank' that carry the scores 0, 1, 1.5 and 0. Right of each word its four numbers; arrows with the weights 0.11, "
    "0.30, 0.49 and 0.11 lead from them to the output, (0.83, 0.24, 0.49, 0.22).",
    caption="One look-up: *bank* is compared with every word (scores), a softmax makes weights of the scores, and the "
    "output is the weighted mean of the words' numbers.",
)
def bank_asks():
    """Draw one word that asks, four that are asked, and their weighted mean."""
    ax = _look_up("bank", FOUR_WORDS, "(0.83, 0.24,\n0.49, 0.22)", query="hidden", key="hidden", value="hidden")
    for x, name in ((1.6, "asks"), (6.3, "is asked"), (10.3, "its numbers")):
        label(ax, x, 6.1, name, size=10.5, weight="bold")
    label(ax, 3.85, 6.1, "scores", kind="attention", size=10.5, weight="bold")
    label(ax, 12.9, 6.1, "weights", kind="attention", size=10.5, weight="bold")
    label(ax, 15.0, 4.15, "output", size=10.5, weight="bold")
    return ax


ROLES = (
    ("q", "query", "I look for a topic", (1, 0)),
    ("k", "key", "I have a topic, and am a thing", (2, 2)),
    ("v", "value", "half water, half money", (0.5, 0.5)),
)


def _cells(ax, x, y, numbers, kind="token"):
    """A vector as a row of cells whose left edge is at x, centred at y."""
    for i, number in enumerate(numbers):
        box(ax, x + 1.1 * (i + 0.5), y, f"{number:g}", kind=kind, w=1.1, h=0.8, size=10.5)


@diagram(
    alt="Left the row of 'bank' in x, four cells: water 0.5, money 0.5, thing 1, event 0. Three arrows lead from it "
    "through the matrices W_q, W_k and W_v to three rows of two cells: the query (1, 0), 'I look for a topic'; the "
    "key (2, 2), 'I have a topic, and am a thing'; the value (0.5, 0.5), half water, half money.",
    caption="One word, three roles: the row of *bank* goes through three matrices, and comes out as a query, a key and "
    "a value.",
)
def three_roles():
    """Draw one row of x, three matrices, and what each makes of it."""
    ax = canvas(16.8, 5.4)
    middle, rows = 2.5, (4.2, 2.5, 0.8)
    _cells(ax, 0.2, middle, (0.5, 0.5, 1, 0))
    for i, name in enumerate(("water", "money", "thing", "event")):
        label(ax, 0.2 + 1.1 * (i + 0.5), middle + 0.72, name, size=8.5)
    label(ax, 2.4, middle - 0.85, "bank, a row of $x$", size=9.5, weight="bold")
    for y, (letter, kind, says, numbers) in zip(rows, ROLES, strict=True):
        wire(ax, [(4.6, middle), (5.4, middle), (5.4, y), (6.4, y)] if y != middle else [(4.6, y), (6.4, y)], kind)
        box(ax, 7.2, y, f"$W_{letter}$", kind=kind, w=1.6, h=0.9, size=12)
        wire(ax, [(8.0, y), (9.2, y)], kind)
        _cells(ax, 9.2, y, numbers, kind)
        label(ax, 11.7, y + 0.28, f"{kind} ${letter}$", kind=kind, size=9.5, align="left", weight="bold")
        label(ax, 11.7, y - 0.26, says, size=9, align="left")
    label(ax, 2.4, 5.05, "$D = 4$", size=9)
    label(ax, 7.2, 5.05, "(K, D)", size=9)
    label(ax, 10.3, 5.05, "$K = 2$", size=9)
    return ax


BY_ROLE = (
    ("the\n(0, 0)", "(0, 0)", "0", 0.04),
    ("river\n(4, 0)", "(2, 0)", "2.83", 0.73),
    ("bank\n(2, 2)", "(0.5, 0.5)", "1.41", 0.18),
    ("collapsed\n(0, 0)", "(0, 0)", "0", 0.04),
)


@diagram(
    alt="Left the query of 'bank', (1, 0). In the middle the keys of the four words: the (0, 0), river (4, 0), bank "
    "(2, 2), collapsed (0, 0), with arrows that carry the scores 0, 2.83, 1.41 and 0. Right of each key its value: "
    "(0, 0), (2, 0), (0.5, 0.5), (0, 0); arrows with the weights 0.04, 0.73, 0.18 and 0.04 lead from them to the "
    "output, (1.56, 0.09).",
    caption="The same look-up by roles: the *query* of *bank* is compared with every *key*, and the weights mix the "
    "*values*. Now *river* wins.",
)
def bank_asks_by_role():
    """Draw a query, four keys with their values, and the weighted mean."""
    ax = _look_up("bank\n(1, 0)", BY_ROLE, "(1.56, 0.09)")
    for x, name in ((1.6, "query"), (6.3, "keys"), (10.3, "values")):
        label(ax, x, 6.1, name, kind=name.removesuffix("s"), size=10.5, weight="bold")
    label(ax, 3.85, 6.1, "scores", kind="attention", size=10.5, weight="bold")
    label(ax, 12.9, 6.1, "weights", kind="attention", size=10.5, weight="bold")
    label(ax, 15.0, 4.15, "output", kind="value", size=10.5, weight="bold")
    return ax


def _look_up(asks, rows, answer, query="query", key="key", value="value"):
    """A query, and rows of a key, its value, its score ("": not written) and its weight, which meet in the answer."""
    ax = canvas(16.8, 6.6)
    box(ax, 1.6, 3.0, asks, kind=query, w=2.2, h=1.05 if "\n" in asks else 0.8, size=10.5)
    box(ax, 15.0, 3.0, answer, kind=value, w=2.4, h=0.9, size=11.5 if "$" in answer else 9.5)
    for row, (name, what, score, weight) in enumerate(rows):
        y = 5.1 - 1.4 * row
        box(ax, 6.3, y, name, kind=key, w=2.6, h=1.05 if "\n" in name else 0.72, size=10)
        box(ax, 10.3, y, what, kind=value, w=2.6 if score else 2.2, h=0.72, size=10)
        arrow(ax, (2.75, 3.0 + 0.08 * (y - 3.0)), (4.95, y), kind="attention")
        ax.patches[-1].set_linewidth(1 + 4 * weight)
        if score:
            label(ax, 3.95, 3.0 + 0.6 * (y - 3.0), score, kind="attention", size=9.5, background=True)
        arrow(ax, (7.65, y), (8.95 if score else 9.15, y), kind="muted")
        arrow(ax, (11.65 if score else 11.45, y), (13.75, 3.0 + 0.1 * (y - 3.0)), kind="attention")
        ax.patches[-1].set_linewidth(1 + 4 * weight)
        label(ax, 12.4, y - 0.36 * (y - 3.0) + 0.02, f"{weight:.2f}", kind="attention", size=9.5, background=True)
    return ax


HEADS = {"q": "query", "k": "key", "v": "value"}

# --- shapes -------------------------------------------------------------------------------


@diagram(
    alt="Queries q of shape T by K and keys k of shape S by K are multiplied: scores T by S. They are divided by "
    "the root of K, masked, and go through a softmax over S: weights T by S. Multiplied with the values v, S "
    "by E, they give the output, T by E.",
    caption="Scaled dot-product attention, with the shape on every arrow. Positions meet in "
    "three places: the product of $q$ and $k$, the softmax over S, and the product with $v$. "
    "T and S may differ, and E may differ from K, the width of queries and keys.",
)
def scaled_dot_product():
    """Draw the five operations with their shapes."""
    ax = canvas(16.8, 5.6)
    y = 3.4
    for at, name, kind in ((4.7, "q", "query"), (2.1, "k", "key")):
        box(ax, 0.9, at, f"${name}$", kind=kind, w=1.1, h=0.8, size=12)
    steps = (
        (4.0, r"$q\, k^\top$"),
        (6.9, r"$/\,\sqrt{K}$"),
        (9.5, "mask"),
        (12.0, "softmax"),
        (15.0, r"$\times\, v$"),
    )
    for x, name in steps:
        kind = "attention" if name in ("softmax", "mask") else "plain"
        box(ax, x, y, name, kind=kind, w=1.6, h=0.85, size=11 if "$" in name else 10)
    arrow(ax, (1.48, 4.7), (3.18, 3.72))
    arrow(ax, (1.48, 2.1), (3.18, 3.08))
    label(ax, 2.3, 4.75, "(T, K)", size=9.5)
    label(ax, 2.3, 2.05, "(S, K)", size=9.5)
    for (left, _), (right, _) in itertools.pairwise(steps):
        kind = "attention" if right == 15.0 else "ink"
        arrow(ax, (left + 0.82, y), (right - 0.82, y), kind=kind)
        label(ax, (left + right) / 2, y + 0.72, "(T, S)", size=9.5)
    label(ax, 13.5, y - 0.72, "weights", kind="attention", size=9.5)
    label(ax, 5.45, y - 0.72, "scores", size=9.5)
    label(ax, 9.5, y - 0.85, "True = may attend", kind="attention", size=9.5)
    label(ax, 12.0, y - 0.85, "over S", kind="attention", size=9.5)
    box(ax, 15.0, 1.1, "$v$", kind="value", w=1.1, h=0.8, size=12)
    arrow(ax, (15.0, 1.52), (15.0, y - 0.46))
    label(ax, 15.75, 2.2, "(S, E)", size=9.5)
    arrow(ax, (15.0, y + 0.45), (15.0, 5.1), kind="value")
    label(ax, 15.75, 4.5, "(T, E)", size=9.5)
    label(ax, 14.1, 4.85, "output", kind="value", size=9.5)
    return ax


@diagram(
    alt="x of shape B, T, D meets one matrix in_proj_weight of 3 D rows and D columns, drawn as three blocks W_q,"
    " W_k, W_v of D rows, each block cut into H = 2 heads of K rows. The product has shape B, T, 3 D; it is "
    "cut into q, k and v of shape B, T, D, and each into heads: B, H, T, K.",
    caption="One product instead of three, or of $3H$: the projections of queries, keys and values stand one above "
    "the other in `in_proj_weight`, and inside each of them the heads. Cut along $3D$, then along $D$.",
)
def packed_projection():
    """Draw the stacked weights and how the product is cut."""
    ax = canvas(16.8, 6.9)
    middle, rows = 3.1, {"q": 4.7, "k": 3.1, "v": 1.5}
    box(ax, 0.75, middle, "$x$", kind="token", w=1.0, h=0.8, size=12)
    wire(ax, [(1.25, middle), (2.75, middle)])
    label(ax, 1.98, middle + 0.4, "(B, T, D)", size=9)
    frame(ax, 2.75, 0.5, 2.9, 5.2)
    wire(ax, [(5.65, middle), (7.3, middle)])
    label(ax, 6.45, middle + 0.62, "one\nproduct", size=9.5)
    frame(ax, 7.3, 0.5, 1.5, 5.2)
    for name, y in rows.items():
        kind = HEADS[name]
        for head, shift in ((1, 0.36), (2, -0.36)):
            box(ax, 4.2, y + shift, f"$W_{name}$, head {head}", kind=kind, w=2.4, h=0.64, size=9.5)
            box(ax, 15.0, y + shift, f"${name}^{head}$", kind=kind, w=1.4, h=0.62, size=11)
        box(ax, 8.05, y, f"${name}$", kind=kind, w=1.0, h=1.3, size=12)
        wire(ax, [(8.8, y), (10.9, y)], kind)
        box(ax, 11.5, y, f"${name}$", kind=kind, w=1.2, h=0.8, size=12)
        wire(ax, [(12.1, y), (13.4, y), (13.4, y + 0.36), (14.3, y + 0.36)], kind, r=0.15)
        wire(ax, [(12.1, y), (13.4, y), (13.4, y - 0.36), (14.3, y - 0.36)], kind, r=0.15)
    label(ax, 4.2, 6.05, "in_proj_weight (3D, D)", size=9.5, weight="bold")
    label(ax, 8.05, 6.05, "(B, T, 3D)", size=9.5)
    label(ax, 9.85, 5.1, "chunk(3)", size=9.5)
    label(ax, 11.5, 6.05, "(B, T, D)", size=9.5)
    label(ax, 13.2, 5.35, "split", size=9.5)
    label(ax, 15.0, 6.05, "(B, H, T, K)", size=9.5)
    label(ax, 15.0, 0.3, "K = D / H", size=9.5)
    return ax


@diagram(
    alt="The queries' source, x of shape B, T, D, and that of keys and values, memory of shape B, S, D, are projected, "
    "cut into heads of shape B, H, T, K and B, H, S, K, attended in each head separately with weights B, H, "
    "T, S, giving B, H, T, K; merged into B, T, D and multiplied with W_o.",
    caption="Multi-head attention: project, cut into heads, attend in every head, merge, project with $W_o$. "
    "In self-attention the memory is $x$ itself; in cross-attention it is another tensor, and $T$ and $S$ may differ.",
)
def multi_head():
    """Draw the layer with a shape on every arrow."""
    ax = canvas(16.8, 5.8)
    ax.set_ylim(0.75, 6.55)
    rows, middle = {"q": 5.0, "k": 3.2, "v": 1.7}, 3.35
    source = (rows["k"] + rows["v"]) / 2
    for shift in (0.3, 0.15, 0):
        box(ax, 9.2 + shift, middle + shift, "", kind="attention weight", w=3.4, h=4.5)
    for y, name in ((rows["q"], "$x$"), (source, "memory")):
        box(ax, 0.85, y, name, kind="token", w=1.5, h=0.76, size=11.5 if "$" in name else 9.5)
    wire(ax, [(1.6, rows["q"]), (3.0, rows["q"])])
    for name in "kv":
        wire(ax, [(1.6, source), (2.4, source), (2.4, rows[name]), (3.0, rows[name])])
    label(ax, 0.85, rows["q"] - 0.62, "(B, T, D)", size=9)
    label(ax, 0.85, source - 0.62, "(B, S, D)", size=9)
    for name, length in (("q", "T"), ("k", "S"), ("v", "S")):
        y, kind = rows[name], HEADS[name]
        box(ax, 3.65, y, f"$W_{name}$", kind=kind, w=1.3, h=0.8, size=11)
        wire(ax, [(4.3, y), (7.5, y)], kind)
        label(ax, 5.9, y + 0.34, f"(B, H, {length}, K)", kind=kind, size=9.5)
        label(ax, 5.9, y - 0.3, "cut into heads", size=9)
    label(ax, 9.2, 4.9, "each of H heads", size=9.5, weight="bold")
    label(ax, 9.2, 4.05, r"$w = \mathrm{softmax}\left(\frac{qk^\top}{\sqrt{K}}\right)$", size=10.5)
    label(ax, 9.2, 3.3, "(B, H, T, S)", kind="attention weight", size=9.5)
    label(ax, 9.2, 2.25, r"$w\, v$", size=11.5)
    label(ax, 9.2, 1.65, "(B, H, T, K)", kind="attention weight", size=9.5)
    wire(ax, [(11.2, middle), (12.4, middle)])
    box(ax, 13.05, middle, "merge", w=1.3, h=0.95, size=9.5)
    wire(ax, [(13.7, middle), (15.1, middle)])
    label(ax, 14.4, middle + 0.42, "(B, T, D)", size=9)
    box(ax, 15.75, middle, "$W_o$", kind="plain", w=1.25, h=0.8, size=11)
    wire(ax, [(15.75, middle + 0.4), (15.75, 5.3)])
    label(ax, 15.75, 5.98, "output\n(B, T, D)", size=9.5)
    return ax


@diagram(
    alt="Left a table of four positions by six numbers, from 0 to 35; 23 is number 3 of position 2. Its first three "
    "columns belong to head 0, the last three to head 1. Two arrows, 'unflatten, transpose', lead to two tables of "
    "four by three, one a head; two more, 'transpose, flatten', lead from them to the whole table again.",
    caption="Cut and merge: every head has all positions, and its own columns of them.",
)
def cut_and_merge():
    """Draw a table of numbers that say where they stand, cut into two heads and merged again."""
    ax = canvas(16.8, 6.6)
    middle, tops, columns = 3.25, (5.9, 2.55), (range(3), range(3, 6))
    for x in (0.3, 12.7):
        _table(ax, x, middle + 1.24, range(6))
        label(ax, x + 1.92, middle + 1.6, "(T, D)", size=9.5, weight="bold")
    for head, (top, kind) in enumerate(zip(tops, HEAD_KINDS, strict=True)):
        _table(ax, 7.44, top, columns[head])
        label(ax, 8.4, top + 0.35, f"head {head}: (T, K)", size=9.5, weight="bold")
        y = top - 1.24
        wire(ax, [(4.2, middle), (5.2, middle), (5.2, y), (7.35, y)], kind)
        wire(ax, [(9.45, y), (11.6, y), (11.6, middle), (12.6, middle)], kind)
    label(ax, 6.3, middle + 0.35, "unflatten,\ntranspose", size=9.5)
    label(ax, 10.5, middle + 0.35, "transpose,\nflatten", size=9.5)
    return ax


@diagram(
    alt="From left to right. The words become x. From x lines lead to gather, with two heads, and around it, to a plus "
    "behind it; the sum is h, the query of read. The keys of read come from x itself. Its values come from the "
    "tickets, which go nowhere else. Read, with one head, hands its mean of tickets to the output, 16 logits.",
    caption="The reader of *it*: `read` takes its query from what was gathered, its keys from the words alone, its "
    "values from the tickets.",
)
def ticket_reader():
    """Draw the two layers, with the three inputs of the second."""
    ax = canvas(16.8, 5.9)
    top, middle, low = 4.1, 2.5, 0.9
    box(ax, 1.1, top, "words", kind="input", w=1.8, h=0.8)
    box(ax, 1.1, low, "tickets", kind="input", w=1.8, h=0.8)
    box(ax, 3.9, top, "$x$", kind="token", w=1.0, h=0.8, size=12)
    box(ax, 3.9, low, "vectors", kind="token", w=1.8, h=0.8)
    wire(ax, [(2.0, top), (3.4, top)])
    wire(ax, [(2.0, low), (3.0, low)])
    wire(ax, [(4.4, top), (5.6, top)])
    box(ax, 6.6, top, "gather", kind="attention", w=2.0, h=1.0, size=10.5)
    label(ax, 6.6, top - 0.75, "two heads", size=9)
    wire(ax, [(7.6, top), (8.55, top)])
    wire(ax, [(4.9, top), (4.9, 5.35), (8.8, 5.35), (8.8, top + 0.25)])
    label(ax, 6.85, 5.62, "residual", size=9)
    box(ax, 8.8, top, "+", w=0.5, h=0.5, size=11)
    wire(ax, [(9.05, top), (9.7, top)])
    box(ax, 10.2, top, "$h$", kind="hidden", w=1.0, h=0.8, size=12)
    wire(ax, [(10.7, top), (12.3, top)], "query")
    wire(ax, [(3.9, top - 0.4), (3.9, middle), (12.3, middle)], "key")
    wire(ax, [(4.8, low), (12.3, low)], "value")
    for y, kind in ((top, "query"), (middle, "key"), (low, "value")):
        label(ax, 11.5, y + 0.32, kind, kind=kind, size=9.5)
    box(ax, 13.3, middle, "read", kind="attention", w=2.0, h=4.2, size=10.5)
    label(ax, 13.3, 0.2, "one head", size=9)
    wire(ax, [(14.3, middle), (15.0, middle)])
    box(ax, 15.8, middle, "output", kind="output", w=1.6, h=0.8)
    label(ax, 15.8, middle - 0.65, "16 logits", size=9)
    return ax


HEAD_KINDS = ("attention", "muted")  # a colour for each head


def _table(ax, x, top, columns):
    """Four positions of numbers: number i of position t is 10 t + i, in the colour of its head."""
    for t in range(4):
        for j, i in enumerate(columns):
            at = x + 0.64 * (j + 0.5), top - 0.62 * (t + 0.5)
            box(ax, *at, f"{10 * t + i}", kind=HEAD_KINDS[i // 3], w=0.64, h=0.62, size=9, lw=1)


# --- masks --------------------------------------------------------------------------------

CELL = 0.5


def _matrix(ax, x, y, visible, title, rows, columns):
    """Cells of a mask whose top left corner is (x, y); filled = may attend."""
    from matplotlib.patches import Rectangle

    for i, row in enumerate(visible):
        for j, seen in enumerate(row):
            at = (x + CELL * j, y - CELL * (i + 1))
            face = plots.COLORS["attention"] if seen else "white"
            ax.add_patch(Rectangle(at, CELL, CELL, facecolor=face, edgecolor="#AAAAAA", lw=0.8, alpha=0.75))
        label(ax, x - 0.12, y - CELL * (i + 0.5), rows[i], size=9, align="right")
    for j, name in enumerate(columns):
        label(ax, x + CELL * (j + 0.5), y + 0.25, name, size=9)
    label(ax, x + CELL * len(columns) / 2, y + 0.95, title, size=10, weight="bold")


@diagram(
    alt="Three matrices, rows are queries, columns keys, filled cells may be attended to. No mask: all filled. "
    "Causal: the lower triangle with its diagonal. Padding: all but the last two columns.",
    caption="A mask says who may look at whom: rows are queries, columns keys, blue means *may attend*. A padding "
    "mask hides columns, a causal mask hides what comes later.",
)
def masks():
    """Draw three masks as matrices."""
    ax = canvas(11.0, 4.9)
    five, padded = list("abcde"), ["a", "b", "c", "·", "·"]
    drawn = (
        (0.75, [[1] * 5] * 5, "no mask", five),
        (4.3, [[j <= i for j in range(5)] for i in range(5)], "causal", five),
        (7.85, [[1, 1, 1, 0, 0]] * 5, "padding (·)", padded),
    )
    for x, visible, title, names in drawn:
        _matrix(ax, x, 3.4, visible, title, names, names)
    return ax


@diagram(
    alt="One matrix of two rows, d and e, over five columns, a to e: row d may attend to a, b, c and d, row e to all.",
    caption="Causal with a cache, T = 2 and S = 5: the two queries are the *last* positions of the keys.",
)
def cache_mask():
    """Draw the causal mask of two queries at the end of five keys."""
    ax = canvas(8.0, 2.9)
    _matrix(ax, 2.75, 1.4, [[1, 1, 1, 1, 0], [1] * 5], "causal, with a cache", ["d", "e"], list("abcde"))
    return ax
