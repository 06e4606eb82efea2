"""Diagrams of chapter 14: a Llama's block, heads that share, LoRA, the scan, and a head that copies."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, frame, joint, label, operation, wire


@diagram(
    alt="Two blocks side by side, GPT-2 and Llama. The plan is the same: a stream to which two branches are added, "
    "norm and masked attention, then norm and feed-forward. Four parts differ, with the same numbers on both sides: "
    "1, LayerNorm becomes RMSNorm, twice; 2, the feed-forward network with GELU becomes SwiGLU; 3, the table of "
    "positions, added below the first block, becomes RoPE, which turns queries and keys in every block; 4, 12 "
    "query heads with 12 key/value heads become 32 with 8.",
    caption="What is new in Llama 3? The plan is GPT-2's. Four parts are exchanged, those in colour: the norms (1), "
    "the feed-forward network (2), the positions (3), the heads (4).",
)
def gpt_and_llama_block():
    """Draw the two blocks with the same plan; what the second exchanges is in colour."""
    ax = canvas(16, 12.6)
    names = ("LayerNorm", "12 query heads,\n12 key/value heads", "feed-forward, GELU")
    _block(ax, 1.3, 4.9, "GPT-2 small", names, ("plain",) * 3)
    names = ("RMSNorm", "32 query heads,\n8 key/value heads", "feed-forward, SwiGLU")
    _block(ax, 9.3, 12.9, "Llama 3 8B", names, ("RMSNorm", "grouped queries", "SwiGLU"))
    operation(ax, 1.3, 1.75, "+")
    box(ax, 4.9, 1.75, "table of positions", w=3.3, h=0.75)
    wire(ax, [(3.25, 1.75), (1.57, 1.75)])
    _number(ax, 6.85, 1.75, 3)
    box(ax, 12.2, 5.28, "RoPE", "RoPE", w=1.3, h=0.56, size=9.5)
    _number(ax, 11.3, 5.28, 3, "RoPE")
    return ax


def _block(ax, x, side, title, names, kinds):
    """One block: a stream at x and two branches at side; the norm, the attention, the feed-forward network."""
    norm, attend, mlp = names
    frame(ax, x - 0.65, 2.55, 6.95, 9.0)
    label(ax, x + 6.1, 11.15, f"{title}: block, × N", size=10.5, align="right", weight="bold")
    box(ax, x + 0.75, 0.6, "vectors of tokens", "token", w=3.3, h=0.7)
    wire(ax, [(x, 0.95), (x, 7.23)])
    joint(ax, x, 2.95)
    wire(ax, [(x, 2.95), (side, 2.95), (side, 3.32)])
    box(ax, side, 3.65, norm, kinds[0], w=3.3, h=0.62, size=10)
    _number(ax, side + 1.95, 3.65, 1, kinds[0])
    wire(ax, [(side, 3.96), (side, 4.4), (side - 0.7, 4.4), (side - 0.7, 5.98)])
    wire(ax, [(side, 4.2), (side, 4.4), (side + 0.9, 4.4), (side + 0.9, 5.98)])
    label(ax, side - 1.0, 4.7, "q, k", size=9.5, align="right")
    label(ax, side + 1.1, 4.7, "v", size=9.5, align="left")
    box(ax, side, 6.44, attend, kinds[1], w=3.3, h=0.95, size=9.5)
    _number(ax, side + 1.95, 6.44, 4, kinds[1])
    wire(ax, [(side, 6.89), (side, 7.5), (x + 0.27, 7.5)])
    operation(ax, x, 7.5, "+")
    wire(ax, [(x, 7.77), (x, 10.43)])
    joint(ax, x, 8.05)
    wire(ax, [(x, 8.05), (side, 8.05), (side, 8.35)])
    box(ax, side, 8.66, norm, kinds[0], w=3.3, h=0.62, size=10)
    _number(ax, side + 1.95, 8.66, 1, kinds[0])
    wire(ax, [(side, 8.97), (side, 9.35)])
    box(ax, side, 9.73, mlp, kinds[2], w=3.3, h=0.75, size=9)
    _number(ax, side + 1.95, 9.73, 2, kinds[2])
    wire(ax, [(side, 10.11), (side, 10.7), (x + 0.27, 10.7)])
    operation(ax, x, 10.7, "+")
    wire(ax, [(x, 10.97), (x, 12.4)])
    label(ax, x + 0.3, 12.0, "to the next block", size=9.5, align="left")


def _number(ax, x, y, number, kind="plain"):
    """The number of an exchange."""
    operation(ax, x, y, str(number), kind, r=0.26, size=9.5)


@diagram(
    alt="Three panels, each with four queries above. G = 4: each query has a key and a value of its own, a cache of 8 "
    "vectors a token. G = 2: queries 1 and 2 share one key and value, queries 3 and 4 the other, 4 vectors. G = 1: all "
    "four share one, 2 vectors.",
    caption="Who shares with whom? Four heads ask four different questions in all three panels. They put them to four, "
    "two or one set of keys and values, and only these must be kept.",
)
def grouped_queries():
    """Draw four heads of queries over four, two and one heads of keys and values."""
    ax = canvas(16, 6.6)
    panels = (("multi-head attention", 4), ("grouped queries", 2), ("multi-query attention", 1))
    for left, (name, G) in zip((0.2, 5.5, 10.8), panels, strict=True):
        xs = [left + 0.65 + 1.23 * h for h in range(4)]
        middle, share = sum(xs) / 4, 4 // G
        label(ax, middle, 6.25, name, size=10.5, weight="bold")
        label(ax, middle, 5.75, f"H = 4, G = {G}", size=9.5)
        frame(ax, left, 1.2, 5.0, 1.95)
        for g in range(G):
            group = xs[g * share : (g + 1) * share]
            x = sum(group) / share
            for x_query in group:
                wire(ax, [(x_query, 4.52), (x + 0.35 * (x_query - x) / share, 2.93)], "muted")
            box(ax, x, 2.55, f"$k_{g + 1}$", "key", w=1.0, h=0.7, size=11)
            box(ax, x, 1.75, f"$v_{g + 1}$", "value", w=1.0, h=0.7, size=11)
        for h, x in enumerate(xs):
            box(ax, x, 4.9, f"$q_{h + 1}$", "query", w=1.0, h=0.7, size=11)
        label(ax, middle, 0.75, f"kept for each token: {2 * G} vectors", size=9.5)
        label(ax, middle, 0.3, f"{2 * G} K numbers", size=9.5)
    return ax


@diagram(
    alt="The input x, of shape (T, in), goes two ways. Above through the big square W, (out, in), which stays as it "
    "is. Below through A, (r, in), a low and wide matrix, to (T, r), then through B, (out, r), a high and narrow one, "
    "to (T, out), times alpha / r. Both are added and give y, (T, out).",
    caption="What is trained? Only A and B, two thin matrices beside the big one. Their product has W's shape: after "
    "training it can be added to W, and the second way is gone.",
)
def low_rank_update():
    """Draw a linear layer with a second, narrow way round it."""
    ax = canvas(16, 8.3)
    box(ax, 1.0, 4.5, "x", "input", w=1.1, h=0.8, size=12)
    wire(ax, [(1.55, 4.5), (3.6, 4.5)], head=False)
    wire(ax, [(3.6, 4.5), (3.6, 6.3), (5.9, 6.3)])
    label(ax, 2.45, 4.85, "(T, in)", size=9.5)
    joint(ax, 3.6, 4.5)
    wire(ax, [(3.6, 4.5), (3.6, 1.9), (4.6, 1.9)], "LoRA")
    box(ax, 7.4, 6.3, "W", w=3.0, h=3.0, size=14)
    label(ax, 9.1, 7.5, "(out, in)\nnot trained", size=9.5, align="left")
    box(ax, 6.1, 1.9, "A", "LoRA", w=3.0, h=0.6, size=12)
    label(ax, 6.1, 1.3, "(r, in), trained", size=9.5)
    wire(ax, [(7.6, 1.9), (9.4, 1.9)], "LoRA")
    label(ax, 8.5, 2.25, "(T, r)", size=9.5)
    box(ax, 9.7, 1.9, "B", "LoRA", w=0.6, h=3.0, size=12)
    label(ax, 10.2, 0.75, "(out, r), trained,\nat first 0", size=9.5, align="left")
    wire(ax, [(10.0, 1.9), (11.15, 1.9)], "LoRA")
    operation(ax, 11.6, 1.9, r"$\frac{\alpha}{r}$", "LoRA", r=0.45, size=12)
    wire(ax, [(12.05, 1.9), (12.9, 1.9), (12.9, 4.23)], "LoRA")
    wire(ax, [(8.9, 6.3), (12.9, 6.3), (12.9, 4.77)])
    operation(ax, 12.9, 4.5, "+")
    wire(ax, [(13.17, 4.5), (14.45, 4.5)])
    label(ax, 13.8, 4.85, "(T, out)", size=9.5)
    box(ax, 15.05, 4.5, "y", "output", w=1.1, h=0.8, size=12)
    return ax


@diagram(
    alt="Eight steps in a row, four rows from below upwards. At the start each box holds its own step. In round 1 each "
    "is joined with the box 1 before it, in round 2 with the box 2 before it, in round 3 with the box 4 before it. The "
    "boxes say which steps they cover: in the end box 8 covers steps 1 to 8, and every box all steps up to its own.",
    caption="How can a chain of 8 steps be done in 3 rounds? In each, every box is joined with the one 1, 2, then 4 "
    "places before, all at once. Coloured boxes know all steps up to their own.",
)
def parallel_scan():
    """Draw the doubling scan over eight steps."""
    ax = canvas(16, 8.4)
    xs, rows = [3.1 + 1.68 * t for t in range(8)], (0.9, 3.0, 5.2, 7.5)
    for level, y in enumerate(rows):
        distance = 2 ** (level - 1)
        label(ax, 0.2, y, f"round {level}:\n{distance} before" if level else "start", size=10, align="left")
        for t, x in enumerate(xs):
            first = max(0, t - 2**level + 1)
            if level:
                wire(ax, [(x, rows[level - 1] + 0.37), (x, y - 0.37)], "muted")
                if t >= distance:
                    wire(ax, [(xs[t - distance], rows[level - 1] + 0.37), (x - 0.16, y - 0.4)], "scan")
            text = f"{t + 1}" if first == t else f"{first + 1} to {t + 1}"
            box(ax, x, y, text, "hidden" if first == 0 else "plain", w=1.3, h=0.72, size=10)
    return ax


@diagram(
    alt="Six tokens: Mr, Durs, ley, met, Mr, Durs. In layer 1 a head at each place looks at the token before; the "
    "place of 'ley' so learns: before me came Durs. In layer 2 a head at the last place, Durs, asks who came after "
    "Durs; its key at 'ley' answers, and 'ley' is copied as the next token.",
    caption="How does a Transformer copy? A head of layer 1 tells each place which token came before it. A head of "
    "layer 2 asks for the place that had my token before it, and says what stands there.",
)
def induction_head():
    """Draw the two heads that together continue a text as it went on before."""
    ax = canvas(16, 8.6)
    words = ["Mr", "Durs", "ley", "met", "Mr", "Durs"]
    xs = [3.5 + 2.15 * t for t in range(6)]
    for y, text in ((0.8, "tokens"), (3.5, "after layer 1:\nknows what\ncame before"), (6.9, "layer 2 says")):
        label(ax, 0.2, y, text, size=10, align="left", weight="bold" if y < 1 else "normal")
    for t, (x, word) in enumerate(zip(xs, words, strict=True)):
        found = t == 2
        box(ax, x, 0.8, word, "token", w=1.5, h=0.75)
        wire(ax, [(x, 1.18), (x, 3.05)], "muted")
        if t:
            wire(ax, [(xs[t - 1] + 0.1, 1.18), (x - 0.2, 3.05)], "key", lw=2.6 if found else 1.4)
        before = words[t - 1] if t else "–"
        box(ax, x, 3.5, f"{word}\nbefore: {before}", "key" if found else "plain", w=1.95, h=0.95, size=9)
    label(ax, 0.2, 2.1, "head of layer 1:\none back", "key", size=9.5, align="left")
    last, there = xs[5], xs[2]
    wire(ax, [(last, 3.95), (last, 5.3), (there + 0.3, 5.3), (there + 0.3, 3.98)], "query", lw=2.6)
    label(ax, (last + there) / 2 + 0.3, 5.65, "head of layer 2: who has Durs before it?", "query", size=9.5)
    wire(ax, [(there - 0.3, 3.95), (there - 0.3, 6.9), (last - 0.78, 6.9)], "value", lw=2.6)
    label(ax, (last + there) / 2, 7.25, "copies what stands there", "value", size=9.5)
    box(ax, last, 6.9, "ley", "output", w=1.5, h=0.75, size=11)
    arrow(ax, (last, 7.28), (last, 7.85))
    label(ax, last, 8.15, "next token", size=9.5)
    return ax
