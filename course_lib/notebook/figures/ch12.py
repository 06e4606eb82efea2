"""Figures of chapter 12: what guessing hidden words teaches, and what it is worth with few labels."""

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def loss_at_blanks(history, levels):
    """Loss at hidden words by step of the pre-training, between levels {name: nats} that knowledge of a kind gives."""
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
    ax.set(xlabel="optimizer steps", ylabel="loss (nats per masked token)", ylim=(0, 4.2))
    show(
        ax,
        alt="The loss starts near the unigram entropy, falls quickly to below 1 nat, and ends a little above the floor "
        "for both sides; log V, unigram and the floor are dotted lines.",
        caption="What does the network learn? Far more than how often each word occurs; it ends above the floor, since "
        "in one review several words are hidden at once, and a random word may mislead.",
    )


def accuracy_by_labels(experiment, sizes, ways):
    """Accuracy on new toy reviews by the number of labels, for each way of learning from them."""
    ax = _by_labels(experiment, sizes, ways)
    ax.set(ylabel="accuracy on 400 new reviews", ylim=(0.4, 1.03))
    show(
        ax,
        alt="Accuracy by number of labelled reviews, 20 to 200, a band over the seeds: the fine-tuned pre-trained "
        "network rises to nearly 1, the network from scratch less, the linear layer on frozen features hardly at all.",
        caption="What is pre-training worth? With 20 labels nothing yet; with 100 and more, most of the task, after "
        "the same "
        "150 steps. Line: mean over the seeds; band: least to greatest; dotted: a coin.",
    )


def imdb_by_labels(experiment, sizes):
    """Accuracy on IMDB by the number of labels, pre-trained and from scratch."""
    ax = _by_labels(experiment, sizes, ("pre-trained", "from scratch"))
    ax.set(ylabel="accuracy on 2,000 test reviews")
    show(
        ax,
        alt="Accuracy on 2,000 of IMDB's test reviews by the number of labelled reviews, pre-trained and from scratch, "
        "a band over the seeds.",
        caption="How many labels is reading worth? With few of them several points of accuracy, with more of them "
        "less. Line: mean over the seeds; band: least to greatest; dotted: a coin.",
    )


def _by_labels(experiment, sizes, ways):
    """Bands of accuracy over the seeds against the number of labels."""
    ax = plots.axes(height=3.2)
    for way in ways:
        by_size = [ledger.values(experiment, f"{way}, {n} labels", "accuracy") for n in sizes]
        plots.band(ax, sizes, list(zip(*by_size, strict=True)), way, marker="o", markersize=4)
    ax.axhline(0.5, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
    ax.set(xscale="log", xlabel="labelled reviews")
    ax.set_xticks(sizes, [f"{n:,}" for n in sizes])
    ax.minorticks_off()
    ax.legend(loc="upper left")
    return ax


def reading_imdb(experiment):
    """Loss at hidden words of reviews kept out, by millions of words read."""
    ax = plots.axes(height=2.8)
    runs = ledger.load(experiment)["runs"]
    for run in runs:
        entries = run["history"]["pre-training"]
        words = [entry["tokens"] / 1e6 for entry in entries]
        losses = [entry["valid_loss"] for entry in entries]
        ax.plot(words, losses, "o-", markersize=3, color=plots.color("pre-trained"), label=f"seed {run['seed']}")
    ax.set(xlabel="words read (millions)", ylabel="loss (nats per masked token)", xlim=(0, None))
    if len(runs) > 1:
        plots.direct_labels(ax)
    show(
        ax,
        alt="The loss at hidden words of 400 reviews that were kept out, by millions of words read: it falls fast at "
        "first, then slowly, and still falls at the end.",
        caption="Was the pre-training finished? No: on reviews kept out the loss still falls when the time is up.",
    )


def imdb_models(accuracies):
    """Test accuracy on IMDB of each model, a dot for each seed."""
    percent = {name: [100 * value for value in values] for name, values in accuracies.items()}
    colors = {name: "pre-trained" for name in accuracies if name.startswith("pre-trained")}
    colors |= {name: "Transformer" for name in accuracies if name.startswith("chapter 09")}
    colors |= {name: "muted" for name in accuracies if "bag" in name and name not in colors}
    ax = plots.dots(plots.axes(height=3.4), percent, "test accuracy (%)", colors)
    means = {name: sum(values) / len(values) for name, values in percent.items()}
    ranked = sorted(means, key=means.get)
    show(
        ax,
        alt="Dots of test accuracy on IMDB, from low to high: "
        + "; ".join(f"{name} {means[name]:.1f} %" for name in ranked)
        + ".",
        caption="Where does the small BERT stand? Ahead of the same network from scratch, and behind every model that "
        "sees pairs of words.",
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
    panels[0].legend(loc="lower left")
    show(
        panels[0],
        alt="Two panels, role and thing, by layer. Role: the pre-trained network rises from three quarters at the "
        "embeddings to 1 at layer 1; the untrained network stays at three quarters; shuffled answers give a half. "
        "Thing: all curves lie near one eighth.",
        caption="What do the vectors at the adjectives know? After pre-training their role, from the first layer on. "
        "Of which thing they are said, nothing that a linear probe finds. Dotted: chance; bands over the seeds.",
    )
