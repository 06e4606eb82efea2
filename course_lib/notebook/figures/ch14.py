"""Figures of chapter 14: activations, the worth of each new part, time and recall of recurrences, copying."""

import math

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show

PARTS = ("RMSNorm", "SwiGLU", "RoPE", "grouped queries", "grouped queries, same F", "Llama")
RECALL = ("softmax attention", "linear attention", "gated recurrence", "GRU")


def silu_and_gelu(left=-6.0, right=3.0):
    """The activations of SwiGLU's gate and of GPT-2's hidden layer, as curves."""
    inputs = [left + (right - left) * i / 300 for i in range(301)]
    silu = [z / (1 + math.exp(-z)) for z in inputs]
    gelu = [z * (1 + math.erf(z / math.sqrt(2))) / 2 for z in inputs]
    ax = plots.axes(height=2.6)
    ax.axhline(0, color=plots.COLORS["ink"], linewidth=0.8)
    series = {"SiLU": (inputs, silu), "GELU": (inputs, gelu)}
    hues = {"SiLU": "SwiGLU", "GELU": "GPT"}
    plots.lines(ax, series, "$z$", "activation", colors=hues, direct=True)
    lowest = min(silu)
    show(
        ax,
        alt="Two curves against z. Both are near 0 at the left, dip a little below 0, and rise nearly along z at the "
        "right; that of SiLU dips deeper and lies below GELU's at the right.",
        caption="What does a gate let through? Nearly nothing far below 0, nearly $z$ itself far above, and in between "
        f"SiLU dips below 0, deepest at {inputs[silu.index(lowest)]:.1f} with {lowest:.2f}; GELU, GPT-2's activation, "
        f"dips to {min(gelu):.2f}.".replace("-1", "−1").replace("-0", "−0"),
    )


def modern_parts(experiment="modern-parts", rows=PARTS):
    """Validation loss of each exchanged part minus that of GPT-2's block, seed by seed, in the chapter's order."""
    start = ledger.values(experiment, "GPT-2", "valid_loss")
    ax = plots.axes(height=3.3)
    for y, row in enumerate(rows):
        found = [a - b for a, b in zip(ledger.values(experiment, row, "valid_loss"), start, strict=True)]
        mean, hue = math.fsum(found) / len(found), plots.color(row.removesuffix(", same F"))
        ax.barh(y, mean, height=0.5, color=hue, alpha=0.35)
        ax.plot(found, [y] * len(found), "o", color=hue, markersize=6)
        ax.annotate(f"{mean:+.2f}".replace("-", "−"), (min(*found, 0), y), xytext=(-8, 0), textcoords="offset points",
                    va="center", ha="right", fontsize=10)  # fmt: skip
    ax.axvline(0, color=plots.color("GPT"), linewidth=1.5)
    ax.annotate("GPT-2's block", (0, -0.75), xytext=(5, 0), textcoords="offset points", va="center", fontsize=9.5,
                color=plots.color("GPT"))  # fmt: skip
    ax.set_yticks(range(len(rows)), ["all four (Llama)" if row == "Llama" else row for row in rows])
    ax.set(ylim=(len(rows) - 0.5, -1.1), xlim=(-0.32, 0.09), xlabel="← lower loss (nats per character) higher →")
    ax.tick_params(axis="y", length=0)
    ax.grid(axis="y", visible=False)
    show(
        ax,
        alt=f"One row for each exchanged part, in the chapter's order: a bar from 0 to the mean difference from "
        f"GPT-2's block, and a dot for each of {len(start)} seeds. RoPE and all four parts together lie far "
        "to the left of 0, the others near it.",
        caption="What is each part worth here? A dot is a seed, against GPT-2's block of the same seed; a bar is their "
        "mean. Where dots lie on both sides of the line, these seeds do not say. Small models, tiny Shakespeare. Each "
        "row except “grouped queries, same F” has GPT-2's number of parameters to within 1 % (F was adjusted); each "
        "has the best of five learning rates, a factor of 2 apart, chosen with one seed in shorter runs on other text.",
    )


def linear_recall(without_looking, experiment="linear-recall", rows=RECALL):
    """Accuracy by the number of pairs, one line a model; a dot is a seed.

    `without_looking` says for a number of pairs what share is right of answers that name the commonest digit.
    """
    ax = plots.axes(height=3.2)
    for row in rows:
        pairs = ledger.values(experiment, row, "pairs")[0]
        runs = ledger.values(experiment, row, "by_pairs")
        plots.band(ax, pairs, runs, row, marker="o")
        for run in runs:
            ax.plot(pairs, run, ".", color=plots.color(row), alpha=0.6, markersize=4, label="_seed")
    floor, ink = [without_looking(count) for count in pairs], plots.COLORS["ink"]
    ax.plot(pairs, floor, "--", color=ink, linewidth=1.2, label="_floor", zorder=5)
    ax.annotate(
        "naming the commonest digit", (pairs[1], floor[1]), xytext=(0, 9), textcoords="offset points", color=ink
    )
    ax.set(xscale="log", ylim=(0, 1.04), xlabel="pairs to keep", ylabel="right answers (share)")
    ax.set_xticks(pairs, [str(count) for count in pairs])
    ax.minorticks_off()
    plots.direct_labels(ax)
    show(
        ax,
        alt="Share of right answers against the number of pairs, one line for each of: " + ", ".join(rows) + ". Small "
        f"dots are seeds. A dashed line, what naming the commonest digit would score, falls from {floor[0]:.2f} to "
        f"{floor[-1]:.2f}; gated recurrence and GRU lie near it.",
        caption="How many pairs are looked up after 1,000 steps? Softmax attention all; linear attention fewer as "
        "pairs are added; gated recurrence and GRU show no lookup: they lie near the dashed line, "
        "which ignores the letter and names the digit most frequent in its text, a smaller share where there are more "
        "pairs. Lines are means, bands and small dots the three seeds. Each model has the best of six learning rates "
        "(chosen in shorter runs); the states of the last three hold 288 numbers a block.",
    )


def times_by_length(rows):
    """Milliseconds by length; `rows` are dicts of T and the milliseconds of each way, by its name."""
    names = [name for name in rows[0] if name != "T"]
    lengths = [row["T"] for row in rows]
    ax = plots.axes(height=3.0)
    series = {name: (lengths, [row[name] for row in rows]) for name in names}
    plots.lines(ax, series, "tokens $T$", "milliseconds", direct=True, marker="o")
    for line in ax.lines:  # the colour of `loop` is also that of linear attention
        line.set_linestyle("--" if line.get_label() == "linear attention" else "-")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(lengths, [f"{T:,}" for T in lengths])
    ax.minorticks_off()
    plots.direct_labels(ax)
    show(
        ax,
        alt=f"Milliseconds against the number of tokens, both logarithmic, one line for each of: {', '.join(names)}.",
        caption="How does the time grow? On these axes a line that rises by one decade for each decade is proportional "
        "to the length; a steeper one grows faster than the text.",
    )


def induction_heads(experiment="induction-heads", rows=("two layers", "one layer", "one layer, wide")):
    """Loss in the repeated half by step, and how much the best head looks at the token that it should copy."""
    left, right = plots.grid(1, 2, height=3.3)[0]
    for row in rows:
        steps = ledger.curves(experiment, row, "step")[0]
        style = {"linestyle": "--" if row == "one layer, wide" else "-"}
        plots.band(left, steps, ledger.curves(experiment, row, "second_loss"), row, **style)
        plots.band(right, steps, ledger.curves(experiment, row, "best_induction"), row, **style)
    runs = ledger.curves(experiment, rows[0], "first_loss")
    first = [math.fsum(column) / len(column) for column in zip(*runs, strict=True)]
    left.plot(steps, first, ":", color=plots.COLORS["ink"])
    bag = ledger.summary(experiment, "bag", "second_loss")[0]
    left.axhline(bag, color=plots.COLORS["gradient"], linestyle="--", linewidth=1)
    for y, text, kind in ((first[-1], "first half, nothing to copy", "ink"), (bag, "counting only", "gradient")):
        place = {"xytext": (0, 6 if kind == "ink" else -12), "textcoords": "offset points", "ha": "right"}
        left.annotate(text, (steps[-1], y), fontsize=8.5, color=plots.COLORS[kind], **place)
    left.set(xlabel="step", ylabel="loss, repeated half (nats)", ylim=(0, 5))
    right.set(xlabel="step", ylabel="attention to the token to copy", ylim=(0, 1))
    plots.direct_labels(right)
    show(
        left,
        alt="Two panels by training step. Left, the loss in the repeated half: two layers fall from 4 to near 0 within "
        "a few hundred steps, both models of one layer stay above the dashed line of counting. Right, the share of "
        "attention that the best head of the last layer gives to the token to copy: two layers rise at the same steps, "
        "one layer stays near 0.",
        caption="When is copying learned? Where a head begins to look at the token to copy, the loss drops: with two "
        f"layers. With one, or one wider, it does not in {steps[-1]:,} steps. Bands are seeds.",
    )
