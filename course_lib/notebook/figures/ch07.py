"""Figures of chapter 07: attention."""

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def cosines_of_random_keys(cosines):
    """How orthogonal random keys are, by their width: `cosines` is {K: the cosine of every pair of keys}."""
    widths = list(cosines)
    left, right = plots.grid(1, 2, height=3.0)[0]
    for K, kind, place in ((4, "muted", (-0.86, 0.9)), (64, "input", (0.14, 3.0)), (1024, "attention", (0.07, 10))):
        heights, edges = torch.histogram(cosines[K], bins=160, range=(-1, 1), density=True)
        left.stairs(heights, edges, color=plots.COLORS[kind], linewidth=1.8)
        left.text(*place, f"K = {K}", color=plots.COLORS[kind], fontsize=9.5)
    left.set(xlabel="cosine of two random keys", ylabel="density")
    largest = [cosines[K].max().item() for K in widths]
    right.plot(widths, largest, color=plots.COLORS["gradient"], marker="s")
    right.plot(widths, [cosines[K].std().item() for K in widths], color=plots.COLORS["attention"], marker="o")
    right.annotate("most similar\nof 1,000 keys", (64, largest[2]), (6, 8), textcoords="offset points", fontsize=9)
    right.text(4, 0.05, "standard\ndeviation", fontsize=9)
    right.set_xscale("log", base=4)
    right.set_xticks(widths, widths)
    right.set(xlabel="width K", ylabel="cosine", ylim=(0, 1.05))
    show(
        left,
        alt="Left, the distribution of the cosine of two random keys: broad at K = 4, narrow around 0 at K = 64, a "
        "needle at K = 1024. Right, over K from 4 to 1024: its standard deviation falls from one half towards 0, and "
        "the cosine of the two most similar of 1,000 keys falls from 1 to below one quarter.",
        caption="How orthogonal are random vectors? The wider, the more: the spread of the cosine falls as "
        "$1/\\sqrt K$, and of 1,000 wide keys no two are alike.",
    )


def softmax_by_width():
    """The recorded softmax over the width, with and without the division by the root."""
    widths = ledger.values("attention-scaling", "without", "width")[0]
    panels = plots.grid(1, 3, height=3.0)[0]
    labels = {"largest": "largest weight", "slope": "slope |J|", "flat": "fraction of saturated queries"}
    ways = {"without": ("without the root", "gradient"), "with the root": ("with the root", "attention")}
    for ax, (metric, ylabel) in zip(panels, labels.items(), strict=True):
        for way, (name, color) in ways.items():
            plots.band(ax, widths, ledger.values("attention-scaling", way, metric), name, color, marker="o")
        ax.set_xscale("log", base=4)
        ax.set_xticks(widths, widths)
        ax.set(xlabel="width K", ylabel=ylabel)
        ax.set_ylim(0, None)
    panels[0].text(
        180, 0.68, "without\nthe root", color=plots.COLORS["gradient"], fontsize=9.5, ha="center", va="center"
    )
    panels[0].text(128, 0.24, "with the root", color=plots.COLORS["attention"], fontsize=9.5, ha="center", va="center")
    show(
        panels[0],
        alt="Three panels over the width K from 4 to 1024. Without the root the largest weight rises towards 1, the "
        "slope falls and the fraction of saturated queries rises; with the root all three stay level.",
        caption="What does the division by $\\sqrt K$ prevent? Without it the softmax of a wide model starts almost "
        "one-hot, and its slope falls towards 0; with it all widths start alike (bands: three seeds).",
    )


def padding_and_future(weights):
    """Two sentences' maps (2, 1, 4, 4) under a mask that hides padding and the future."""
    panels = plots.grid(1, 2, height=2.9)[0]
    words = (["the", "old", "cat", "sleeps"], ["birds", "sing", "·", "·"])
    for ax, matrix, names in zip(panels, weights[:, 0], words, strict=True):
        plots.heatmap(ax, matrix, names, names, "weight", annotate=True, xlabel="key", ylabel="query")
    show(
        panels[0],
        alt="Two 4 by 4 maps of weights, lower triangles. In the second, the columns of the two paddings (dots) are "
        "white, and the rows of the paddings look at the two words.",
        caption="Where may each word look? Only back, and never at padding. The *rows* of padding are computed, too; "
        "nobody reads them.",
    )


def looks_of_it(pair, first_layer, second_layer):
    """Where "it" looks in a sentence and in its twin: maps (B, H, T, T) of the two layers."""
    names = ["gather, head 0", "gather, head 1", "read, head 0"]
    panels = plots.grid(2, 1, height=4.8)[:, 0]
    for row, (ax, sentence) in enumerate(zip(panels, pair, strict=True)):
        looks = torch.cat([w[row, :, sentence.pronoun] for w in (first_layer, second_layer)])  # (3, T)
        plots.heatmap(ax, looks, sentence.tokens, names, "weight")
        ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=35, ha="right", rotation_mode="anchor")
        ax.set_title(f'where "it" looks; it = {sentence.tokens[sentence.referent]}')
    show(
        panels[0],
        alt="Two maps of the rows of 'it', for the sentence that ends in 'tired' and its twin that ends in 'wide': "
        "where the two heads of the first layer look, and that of the second, which looks at the first noun in one "
        "sentence and at the second noun in the other.",
        caption="What do the heads of *it* look at? Those of the first layer gather, above all the adjective; the "
        "head of the second looks at the noun that can be so. One word changed, and *it* looks elsewhere.",
    )


def readers():
    """The recorded readers: right answers, both twins right, and the best head's looks at the referent."""
    metrics = {
        "accuracy": "right tickets",
        "both_twins": "both twins right",
        "head_at_referent": "one head at the referent",
    }
    variants = ["one reading head", "two reading heads", "one layer", "causal mask"]
    panels = plots.grid(1, 3, height=2.4, sharey=True)[0]
    for ax, (metric, label) in zip(panels, metrics.items(), strict=True):
        rows = {name: ledger.values("coreference-heads", name, metric) for name in variants}
        plots.dots(ax, rows, "fraction", digits=2, order="given")
        for written in ax.texts:
            written.set_text(f"{float(written.get_text()):.2f}")
        ax.set(title=label, xlim=(-0.05, 1.24), xticks=[0, 0.5, 1])
    show(
        panels[0],
        alt="Three panels of dots, a row for each reader. One and two reading heads: nearly all tickets and twins "
        "right. One layer and the causal mask: half of the tickets, hardly any or no pair of twins. One head at the "
        "referent: nearly always for one reading head, from 0.6 to 1 for two, one half for the others.",
        caption="Which readers resolve *it*? Those with two layers and no causal mask; with two reading heads, one "
        "head alone is not at the referent in every seed (small dots: seeds; large dots: their means).",
    )


def two_maps(one_map, another):
    """Two maps (S,) with the same output."""
    ax = plots.axes(height=1.9)
    rows, names = torch.stack([one_map, another]), ["one map", "another"]
    plots.heatmap(ax, rows, range(len(one_map)), names, "weight", annotate=True, xlabel="key")
    show(
        ax,
        alt="Two rows of twelve weights. In the first, one key has most of the weight; in the second the weight is "
        "spread over nearly all keys.",
        caption="Which of the two maps is the explanation? Their outputs are the same to the last digits.",
    )
