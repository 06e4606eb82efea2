"""Figures of chapter 07: attention."""

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def recall_by_updates():
    """The recorded memory task: accuracy by updates, attention against recurrent networks."""
    ax = plots.axes(height=3.0)
    runs = {
        "attention, 2,346 parameters": ("attention, rate 0.01", "attention", (85, 0.9)),
        "GRU, 17,162 parameters": ("GRU, long", "gradient", (900, 0.37)),
        "GRU, 216,074 parameters": ("GRU, wide", "muted", (220, 0.2)),
    }
    for name, (variant, kind, place) in runs.items():
        updates = ledger.values("attention-recall", variant, "updates")[0]
        found = ledger.values("attention-recall", variant, "by_updates")
        if variant == "GRU, long":  # the same model at fewer updates
            updates = [*ledger.values("attention-recall", "GRU, rate 0.005", "updates")[0][:-1], *updates]
            earlier = ledger.values("attention-recall", "GRU, rate 0.005", "by_updates")
            found = [[*first[:-1], *rest] for first, rest in zip(earlier, found, strict=True)]
        plots.band(ax, updates, found, name, plots.COLORS[kind], marker="o", markersize=4)
        ax.text(*place, name, color=plots.COLORS[kind], fontsize=9.5)
    ax.set_xscale("log")
    ax.set(xlabel="updates", ylabel="accuracy", ylim=(0, 1.05))
    show(
        ax,
        alt="Accuracy over the number of updates, on a logarithmic axis. Attention rises from 0.3 to 1 within 100 "
        "updates. The GRUs stay near 0.3, the larger one up to 2,000 updates, where its line ends, the smaller one up "
        "to 10,000; at 20,000 it is above 0.9.",
        caption="How many updates does it take? Attention fewer than 100, the GRU more than 10,000 (at 0.005, the one "
        "learning rate that was run so long; bands: three seeds).",
    )


def word_weights(words, plain, by_role):
    """Four words' weights (T, T): the words themselves compared, and their queries with their keys."""
    panels = plots.grid(1, 2, height=2.9)[0]
    titles = ("words compared with words", "queries compared with keys")
    for ax, matrix, title in zip(panels, (plain, by_role), titles, strict=True):
        plots.heatmap(ax, matrix, words, words, "weight", annotate=True, xlabel="is asked", ylabel="asks")
        ax.set_title(title)
        ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=25, ha="right", rotation_mode="anchor")
    show(
        panels[0],
        alt="Two 4 by 4 maps of weights. Left, 'river' and 'collapsed' have most of their weight on themselves, and "
        "'bank' has its largest weight on itself. Right, 'bank' looks at 'river' and 'collapsed' looks at 'bank'.",
        caption="Who looks at whom? Compared directly, most words fit themselves best; with queries and keys *bank* "
        "looks most at *river*, and *collapsed* at *bank*.",
    )


def kernel_regression(keys, values, queries, answers):
    """Noisy points (S,), and the weighted means at the queries: {inverse temperature: answers}."""
    ax = plots.axes(height=3.0)
    ax.plot(keys.tolist(), values.tolist(), "o", color=plots.COLORS["input"], markersize=4.5)
    styles = ((0.1, "muted", (2.1, 0.4)), (10.0, "attention", (2.9, 0.72)), (3000.0, "gradient", (0.85, 1.45)))
    for c, kind, place in styles:
        ax.plot(queries.tolist(), answers[c].tolist(), color=plots.COLORS[kind], linewidth=1.2 if c > 99 else 2)
        ax.text(*place, f"c = {c:g}", color=plots.COLORS[kind], fontsize=9.5)
    ax.set(xlabel="query", ylabel="answer")
    show(
        ax,
        alt="Noisy points along a wave, and three curves through them: a nearly flat line, a smooth curve that follows "
        "the wave, and a staircase that jumps from point to point.",
        caption="What does the inverse temperature do? A small one answers with nearly the mean of all values, a large "
        "one with the value of the nearest key; in between, the answer follows the data.",
    )


def lookup_weights(weights, letters, digits):
    """The trained reader's weights (T, S): the pairs as they were shown, and their letters asked in reverse order."""
    ax = plots.axes(height=3.1)
    pairs = [f"{letter} {digit}" for letter, digit in zip(letters, digits, strict=True)]
    asked = [f"{letter} ?" for letter in reversed(letters)]
    plots.heatmap(ax, weights, pairs, asked, "weight", xlabel="pairs, in the order shown", ylabel="question")
    show(
        ax,
        alt="An 8 by 8 map: rows are the questions, the letters of the pairs from the last to the first; columns are "
        "the pairs. Each row has one dark cell, and together they form the diagonal from top right to bottom left.",
        caption="Does it look where it should? Each question has most of its weight on the pair that begins with its "
        "letter: they were asked in reverse order, so the dark cells form the other diagonal.",
    )


def query_gradients():
    """The recorded gradients of random queries over the width, with and without the division by the root."""
    widths = ledger.values("attention-scaling", "without", "width")[0]
    left, right = plots.grid(1, 2, height=3.1)[0]
    ways = {"without": ("without the root", "gradient"), "with the root": ("with the root", "attention")}
    for way, (name, kind) in ways.items():
        color = plots.COLORS[kind]
        plots.band(left, widths, ledger.values("attention-scaling", way, "largest"), name, color, marker="o")
        found = {
            part: torch.tensor(ledger.values("attention-scaling", way, f"gradient_{part}")).mean(0)
            for part in ("low", "median", "high", "mean")
        }
        right.fill_between(widths, found["low"].clamp_min(1e-6), found["high"], color=color, alpha=0.18, linewidth=0)
        right.plot(widths, found["median"], color=color, marker="o")
        right.plot(widths, found["mean"], color=color, linestyle=":")
    left.text(150, 0.66, "without\nthe root", color=plots.COLORS["gradient"], fontsize=9.5, ha="center", va="center")
    left.text(128, 0.25, "with the root", color=plots.COLORS["attention"], fontsize=9.5, ha="center", va="center")
    right.text(5, 4e-4, "line: median\nband: quartiles\ndotted: mean", fontsize=9)
    for ax, label in ((left, "largest of 32 weights"), (right, "length of a query's gradient")):
        ax.set_xscale("log", base=4)
        ax.set_xticks(widths, widths)
        ax.set(xlabel="width K", ylabel=label)
    left.set_ylim(0, 1)
    right.set_yscale("log")
    right.set_ylim(3e-6, 8)
    show(
        left,
        alt="Two panels over the width K from 4 to 1024. Left, the largest weight: without the root it rises towards "
        "1, with it it stays below a quarter. Right, the norm of a query's gradient on a logarithmic axis: with the "
        "root median, quartiles and mean stay level; without it the mean rises slowly while the median falls to a "
        "thousandth and the lower quartile below the axis.",
        caption="What does the division by $\\sqrt K$ prevent? Without it, in a wide space, one key takes nearly all "
        "the weight, and at K = 1024 half of the queries get almost no gradient; the mean stays high because some "
        "get a large one.",
    )


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
        "$1/\\sqrt K$, and of 1,000 keys of width 1024 even the two most similar are nearly orthogonal.",
    )


def looks_of_it(pair, first_layer, second_layer):
    """Where "it" looks in a sentence and in its twin: maps (B, H, T, T) of the two layers."""
    names = ["gather, head 0", "gather, head 1", "read"]
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
        "sentence and at the second noun in the other. In the first layer both maps differ too.",
        caption="Where does *it* look? One word is changed, and in the second layer *it* looks at the other noun.",
    )


def hidden_adjectives(rows):
    """By adjective, in the order of their weights: how many answers stay right, hidden (dot), exchanged (ring)."""
    ax = plots.axes(height=3.3)
    ordered = sorted(rows, key=lambda word: rows[word]["weight"])
    for kind, part, marks in (
        ("gradient", "right_exchanged", {"markersize": 11, "fillstyle": "none", "markeredgewidth": 1.5}),
        ("attention", "right_without", {"markersize": 6}),
    ):
        heights = [rows[word][part] for word in ordered]
        ax.plot(range(len(ordered)), heights, "o", color=plots.COLORS[kind], clip_on=False, zorder=3, **marks)
    for name, kind, height in (("adjective hidden", "attention", 0.75), ("exchanged for its twin", "gradient", 0.25)):
        mark = "dot" if kind == "attention" else "ring"
        ax.text(-0.3, height, f"{mark}: {name}", color=plots.COLORS[kind], fontsize=9.5, va="center")
    names = [f"{word} {rows[word]['weight']:.2f}" for word in ordered]
    ax.set_xticks(range(len(ordered)), names, rotation=40, ha="right", rotation_mode="anchor")
    ax.set(xlabel="adjective, and the weight on it", ylabel="answers that stay right", ylim=(-0.08, 1.08))
    ax.set_yticks([0, 0.5, 1])
    show(
        ax,
        alt="A dot and a ring for each of 14 adjectives, which stand in the order of the weight that 'it' gave them; "
        "vertically the fraction of right answers that stay. Among the largest weights, near 1, there are dots at "
        "the bottom and at the top. The rings lie at the bottom, at every weight.",
        caption="What happens without the word, or with its twin in its place? Hidden, an adjective that was looked "
        "at a lot may leave all answers right or none; exchanged, it leaves none, whatever its weight. (The weight is "
        "that of the gathering head that looks at it more, a mean over the adjective's sentences.)",
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
