"""Figures of chapter 12: what guessing hidden words teaches, and what it is worth with few labels."""

import textwrap

from course_lib.notebook import ledger, plots
from course_lib.notebook.diagrams import box, canvas, label, wire
from course_lib.notebook.display import show


def loss_at_chosen(history, levels):
    """Loss at chosen words by step of the pre-training, beside levels {name: nats} that knowledge of a kind gives."""
    ax, steps = plots.axes(height=3.2), [entry["step"] for entry in history]
    ax.plot(steps, [entry["loss"] for entry in history], "o-", markersize=3, color=plots.color("pre-trained"))
    for name, level in levels.items():
        ax.axhline(level, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
        below = level == min(levels.values())  # the curve is above it
        ax.annotate(
            name,
            (steps[-1], level),
            xytext=(0, -3 if below else 2),
            textcoords="offset points",
            ha="right",
            va="top" if below else "bottom",
        )
    ax.set(xlabel="optimizer steps", ylabel="loss (nats per chosen token)", ylim=(0, 4.2))
    show(
        ax,
        alt="The first point, the mean of steps 1 to 50, lies near the unigram entropy; the loss falls quickly to "
        "below 1 nat, and ends a little above the perfect reader's; ln V, the unigram entropy and the perfect "
        "reader's loss are dotted lines.",
        caption="What does the network learn? Far more than how often each word occurs; it ends above the loss of "
        "the perfect reader, who was given reviews with words hidden in the same way.",
    )


def accuracy_by_labels(ways, sizes, caption):
    """Accuracy on new toy reviews by the number of labels; ways: {name: (experiment, variant with {})}."""
    styles = {name: {"linestyle": "--"} for name in ways if name.endswith("150 steps")}
    ax = _by_labels(ways, sizes, styles)
    ax.set(ylabel="accuracy on 400 new reviews", ylim=(0.4, 1.03))
    plots.direct_labels(ax)
    means = {
        name: [ledger.summary(experiment, variant.format(n), "accuracy")[0] for n in sizes]
        for name, (experiment, variant) in ways.items()
    }
    show(
        ax,
        alt=f"Accuracy by number of labelled reviews, {', '.join(map(str, sizes))}, a band over the seeds: "
        + "; ".join(f"{name} {', '.join(f'{mean:.2f}' for mean in row)}" for name, row in means.items())
        + ".",
        caption=caption,
    )


def imdb_by_labels(ways, sizes, everything):
    """Accuracy on IMDB by the number of labels; ways: {name: (experiment, variant with {} for the number)}.

    `everything`: {name: (experiment, variant)} with all 25,000 labels, for some of the ways.
    """
    colors = {"MiniLM": "published", "our pre-training": "pre-trained"}
    styles = {name: {"color": color} for name, color in colors.items()} | {
        "bag of words and pairs": {"linestyle": "--"}
    }
    ax = _by_labels(ways, sizes, styles)
    means = {
        name: [ledger.summary(experiment, variant.format(n), "accuracy")[0] for n in sizes]
        for name, (experiment, variant) in ways.items()
    }
    for name, where in everything.items():
        values, color = ledger.values(*where, "accuracy"), plots.color(colors.get(name, name))
        last, marker = sum(values) / len(values), "o" if name == "MiniLM" else "s"
        ax.plot([sizes[-1], 25_000], [means[name][-1], last], color=color, linewidth=1, linestyle=":")
        ax.plot([25_000] * len(values), values, marker, color=color, markersize=3, alpha=0.5)
        ax.plot([25_000], [last], marker, color=color, markersize=5)
        means[name].append(last)
    scores = {name: ledger.values(e, variant.format(sizes[0]), "accuracy") for name, (e, variant) in ways.items()}
    bags = zip(*(values for name, values in scores.items() if "bag" in name), strict=True)
    ahead = [100 * (ours - max(theirs)) for ours, theirs in zip(scores["MiniLM"], bags, strict=True)]
    places = (*sizes, 25_000)
    ax.set_xticks(places, [f"{n:,}" for n in places])
    ax.set(ylabel="accuracy on test reviews", ylim=(0.48, 0.97))
    ax.legend(loc="lower right")
    show(
        ax,
        alt="Accuracy on IMDB's test reviews by the number of labelled reviews, 100 to 1,600, with bands over the "
        "seeds; for three of them with all 25,000 too: "
        + "; ".join(f"{name} {', '.join(f'{mean:.2f}' for mean in row)}" for name, row in means.items())
        + ".",
        caption=f"What is pre-training worth on real reviews? With 100 labels MiniLM is {min(ahead):.0f} to "
        f"{max(ahead):.0f} points ahead of the better bag; with 1,600 a bag of words and pairs, which read nothing "
        "beforehand, comes within a point of it on average; with all labels MiniLM leads again, now with longer "
        "reviews. Line: mean of three seeds; band: least to greatest; dots at the right: 25,000 labels, tested on all "
        "reviews, not on 2,000.",
    )


def _by_labels(ways, sizes, styles=None):
    """Bands of accuracy over the seeds against the number of labels."""
    ax = plots.axes(height=3.2)
    for way, (experiment, variant) in ways.items():
        by_size = [ledger.values(experiment, variant.format(n), "accuracy") for n in sizes]
        style = {"marker": "o", "markersize": 4} | (styles or {}).get(way, {})
        plots.band(ax, sizes, list(zip(*by_size, strict=True)), way, **style)
    ax.axhline(0.5, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
    ax.set(xscale="log", xlabel="labelled reviews")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    return ax


def reading_imdb(experiment):
    """Loss at hidden words of held-out reviews, by millions of words read."""
    ax = plots.axes(height=2.8)
    for run in ledger.load(experiment)["runs"]:
        entries = run["history"]["pre-training"]
        words = [entry["tokens"] / 1e6 for entry in entries]
        losses = [entry["valid_loss"] for entry in entries]
        ax.plot(words, losses, "o-", markersize=3, color=plots.color("pre-trained"), alpha=0.6)
    ax.set(xlabel="words read (millions)", ylabel="loss (nats per masked token)", xlim=(0, None))
    show(
        ax,
        alt="The loss at hidden words of 400 held-out reviews, by millions of words read, a curve for each seed: it "
        "falls fast at first, then slowly, and still falls at the end.",
        caption="Was the pre-training finished? Nearly: on held-out reviews the loss still falls at the end, but "
        "slowly, as the rate goes to 0. A curve for each of three seeds; they lie on each other.",
    )


def imdb_models(accuracies, caption):
    """Test accuracy on IMDB of each model, a dot for each seed."""
    percent = {name: [100 * value for value in values] for name, values in accuracies.items()}
    colors = {name: "pre-trained" for name in accuracies if name.startswith("pre-trained")}
    colors |= {name: "Transformer" for name in accuracies if name.startswith("chapter 09")}
    colors |= {"MiniLM": "published"} | {name: "muted" for name in accuracies if "bag" in name}
    ax = plots.dots(plots.axes(height=3.4), percent, "test accuracy (%)", colors)
    means = {name: sum(values) / len(values) for name, values in percent.items()}
    ranked = sorted(means, key=means.get)
    show(
        ax,
        alt="Dots of test accuracy on IMDB, from low to high: "
        + "; ".join(f"{name} {means[name]:.1f} %" for name in ranked)
        + ".",
        caption=caption,
    )


def probes(experiment, questions):
    """Accuracy of linear probes by layer: pre-trained, untrained, shuffled answers; {question: chance}."""
    panels = plots.grid(1, len(questions), height=3.2, sharey=True)[0]
    for ax, (question, chance) in zip(panels, questions.items(), strict=True):
        for kind in ("pre-trained", "untrained", "shuffled"):
            runs = ledger.values(experiment, f"probe, {kind}", question)
            style = "--" if kind == "shuffled" else "-"
            plots.band(ax, range(3), runs, kind, marker="o", markersize=4, linestyle=style)
        ax.axhline(chance, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
        ax.set(title=question, ylim=(0, 1.04), xlabel="layer (0: embeddings)")
        ax.set_xticks(range(3))
    panels[0].set(ylabel="accuracy of a linear probe")
    plots.direct_labels(panels[-1])
    show(
        panels[0],
        alt="Two panels, role and thing, by layer. Role: the pre-trained network rises from three quarters at the "
        "embeddings to 1 at layer 1; the untrained network stays at three quarters; shuffled answers give a half. "
        "Thing: all curves lie near one eighth.",
        caption="What do the vectors at the adjectives know? After pre-training their role, from the first layer on. "
        "Of which thing they are said, nothing that a linear probe finds. Dotted: chance; bands over the seeds.",
    )


def sentiment_by_layer(experiment):
    """Accuracy of a linear probe for sentiment on the frozen vectors of each layer."""
    ax = plots.axes(height=3.0)
    runs = ledger.values(experiment, "by layer", "accuracy")
    layers = range(len(runs[0]))
    plots.band(ax, layers, runs, "published", marker="o", markersize=4)
    ax.axhline(0.5, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
    ax.set(xlabel="layer (0: embeddings)", ylabel="accuracy of a linear probe", ylim=(0.48, 0.86))
    ax.set_xticks(layers)
    means = [sum(values) / len(values) for values in zip(*runs, strict=True)]
    show(
        ax,
        alt="Accuracy of a linear probe for sentiment by layer, a band over three seeds: "
        + ", ".join(f"layer {layer} {mean:.2f}" for layer, mean in enumerate(means))
        + ".",
        caption="Where is the sentiment? In every layer, the embeddings included; most in the two before the last, "
        "least in the last. Line: mean of three seeds; band: least to greatest; dotted: a coin.",
    )


def search_by_meaning(cosines, documents, queries):
    """The cosines of texts: a row for each document, a column for each query."""
    ax = plots.axes(height=4.6)
    columns = [textwrap.fill(query, 13) for query in queries]
    rows = [textwrap.shorten(document, 45, placeholder=" ...") for document in documents]
    plots.heatmap(ax, cosines.T, columns, rows, "cosine", annotate=True)
    ax.tick_params(axis="both", labelsize=7.5)
    ax.tick_params(axis="x", rotation=0, top=True, labeltop=True, bottom=False, labelbottom=False, length=0)
    best = cosines.argmax(1).tolist()
    in_order = [row.sort(descending=True).values for row in cosines]
    rest = max(in_order[0][3], *(row[1] for row in in_order[1:])).item()
    show(
        ax,
        alt="Twelve notices and four questions, the cosine of each pair; in each column one is far above the others: "
        + "; ".join(
            f"{query} {documents[i]} {row[i]:.2f}" for query, i, row in zip(queries, best, cosines, strict=True)
        ),
        caption="Does one notice stand out for each question? Yes, the one that answers it. Two of the others, on "
        f"money and receipts, share the first question's subject; the rest reach at most {rest:.2f}.",
    )


HEADS = (  # title, tokens, which vectors are read, what is said above, shapes
    ("a class for a text", ("[CLS]", "the", "plot", "was", "dull", "[SEP]"), (0,), ("negative",),
     "(B, D) to (B, classes)"),
    ("a class for a pair", ("[CLS]", "it rains", "[SEP]", "I am wet", "[SEP]"), (0,), ("follows",),
     "(B, D) to (B, classes)"),
    ("a class for each token", ("[CLS]", "Ada", "lives", "in", "Rome", "[SEP]"), (1, 2, 3, 4),
     ("person", "-", "-", "place"), "(B, T, D) to (B, T, classes)"),
    ("a span of the text", ("[CLS]", "where", "[SEP]", "Ada", "in", "Rome", "[SEP]"), (3, 4, 5), ("", "start", "end"),
     "(B, T, D) to (B, T, 2)"),
)  # fmt: skip


def four_heads():
    """Draw the four kinds of task: which of the encoder's vectors each head reads, and its shapes."""
    ax = canvas(17, 11.4)
    for number, head in enumerate(HEADS):
        _head(ax, 0.2 + 8.6 * (number % 2), 5.9 - 5.8 * (number // 2), *head)
    show(
        ax,
        alt="Four panels, each with five to seven tokens, a BERT above them and one vector above each token. A class "
        "for a text and a class for a pair: only the vector at [CLS] goes into a linear layer. A class for each token: "
        "the vectors of all words do. A span of the text: all vectors of the passage do; two are marked start and end.",
        caption="What does each head read of the same encoder? One vector for a class of the whole input, every vector "
        "for classes of tokens; a span is two such classes, with a softmax over the T positions.",
    )


def _head(ax, x, y, title, tokens, read, said, shapes):
    """One panel: tokens, BERT, its vectors, and the linear layer on those that are read."""
    pitch = 7.6 / len(tokens)
    columns = [x + 0.15 + pitch * (t + 0.5) for t in range(len(tokens))]
    label(ax, x + 3.95, y + 5.0, title, size=11.5, weight="bold")
    box(ax, x + 3.95, y + 1.55, "BERT", "BERT", w=7.6, h=0.62, size=11)
    spread = [columns[t] for t in read]
    middle = (spread[0] + spread[-1]) / 2
    width = max(4.4, spread[-1] - spread[0] + 1.2)
    middle = max(middle, x + 0.15 + width / 2)
    for t, (column, token) in enumerate(zip(columns, tokens, strict=True)):
        used = t in read
        box(ax, column, y + 0.5, token, "muted" if token.startswith("[") else "token", w=pitch - 0.08, h=0.6, size=8.5)
        wire(ax, [(column, y + 0.8), (column, y + 1.24)], lw=1.1)
        box(ax, column, y + 2.4, "", "hidden" if used else "faint", w=0.7 * pitch, h=0.36)
        wire(ax, [(column, y + 1.86), (column, y + 2.22)], "ink" if used else "faint", lw=1.1, head=False)
        if used:
            wire(ax, [(column, y + 2.58), (column, y + 3.0)], "projections")
    box(ax, middle, y + 3.28, f"linear: {shapes}", "projections", w=width, h=0.52, size=8.5)
    for column, word in zip(spread, said, strict=True):
        if word:
            wire(ax, [(column, y + 3.54), (column, y + 3.95)], "output")
            box(ax, column, y + 4.25, word, "output", w=1.45 if len(said) == 1 else pitch - 0.08, h=0.55, size=8.5)
