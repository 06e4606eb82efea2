"""Figures of chapter 13: what a token costs, and how a GPT starts, learns and writes."""

from course_lib import metrics
from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def time_by_token(again_ms, kept_ms):
    """Milliseconds for each token of a text, with and without a cache; medians of ten tokens."""
    tokens = range(10, 10 * len(again_ms) + 1, 10)
    ax = plots.axes(height=2.8)
    series = {"everything again": (tokens, again_ms), "with a cache": (tokens, kept_ms)}
    plots.lines(ax, series, "token generated", "milliseconds a token", direct=True, marker="o")
    ax.set_ylim(bottom=0)
    show(
        ax,
        alt="Milliseconds for a token against its number, medians of ten tokens each, drawn at the last one. Without a "
        "cache they rise steadily; with one far less.",
        caption="What do tokens 191 to 200 cost? Without a cache far more than tokens 1 to 10; with one, the time "
        "rises far less. (Each dot: the median of the ten tokens up to it.)",
    )


def stream_variance(unscaled, scaled):
    """Variance of the residual stream after each layer, without and with the factor of the initialisation."""
    ax, names = plots.axes(height=2.8), ("without the factor", "with the factor")
    series = {name: (range(len(found)), found) for name, found in zip(names, (unscaled, scaled), strict=True)}
    colors = dict(zip(names, ("gradient", "hidden"), strict=True))
    plots.lines(ax, series, "layer", "variance of the stream", colors, direct=True)
    ax.set_ylim(bottom=-0.008)  # room for the lower line's name
    show(
        ax,
        alt="Variance of the residual stream by layer. Without the factor it rises steadily to many times its start; "
        "with it the line is nearly flat.",
        caption="Does the stream grow with depth? Without the factor, layer after layer; with it, all layers together "
        "add about what one branch adds without.",
    )


def learning_curves(history):
    """Loss on training text and on validation text by step; `history` holds (step, training, validation)."""
    steps, training, validation = zip(*history, strict=True)
    ax = plots.axes(height=2.8)
    series = {"validation": (steps, validation), "training": (steps, training)}
    colors = {"validation": "output", "training": "hidden"}
    plots.lines(ax, series, "step", "nats per character", colors, direct=True, marker="o")
    ax.set_ylim(bottom=0)
    show(
        ax,
        alt="Mean loss on training and on validation windows against the step. Both fall steeply and then slowly, and "
        "stay close together.",
        caption="Does it learn, and does that carry over to new text? Both losses fall, nearly together.",
    )


def bits_by_n(ngram_bits, gpt_bits):
    """Bits per held-out character of n-grams, and of the GPT as a level."""
    ax = plots.axes(height=2.9)
    name = "interpolated n-grams"
    plots.lines(ax, {name: (list(ngram_bits), list(ngram_bits.values()))}, "$n$", "bits per character", marker="o")
    ax.axhline(gpt_bits, color=plots.color("GPT"))
    ax.annotate("our GPT", (1.5, gpt_bits), xytext=(0, -13), textcoords="offset points", color=plots.color("GPT"))
    ax.annotate(name, (1.3, ngram_bits[1] - 0.1), xytext=(12, 0), textcoords="offset points", color=plots.color(name))
    show(
        ax,
        alt="Held-out bits per character against n: n-grams fall until n is 5; a horizontal line for our GPT lies "
        "above the 4-gram and below the 3-gram.",
        caption="Where does our GPT stand? Better than the 3-gram, worse than the 4-gram. "
        "Lower is better; held-out text.",
    )


def next_characters(characters, logits, kept, most=20):
    """Probabilities of the likeliest next characters as bars; what top-p 0.9 keeps in colour, and where top-k 5 cuts.

    `logits` holds those of the next character at each named place; `kept` how many characters top-p leaves there.
    """
    shown = {"\n": "↵", " ": "␣"}
    axes = plots.grid(1, len(logits), height=2.8)[0]
    for ax, (name, scores) in zip(axes, logits.items(), strict=True):
        probabilities, order = scores.softmax(-1).sort(descending=True)
        colors = [plots.COLORS["output" if rank < kept[name] else "muted"] for rank in range(most)]
        ax.bar(range(most), probabilities[:most], color=colors)
        ax.axvline(4.5, color=plots.COLORS["attention"], linestyle="--")
        ax.annotate("top-k 5 cuts here", (4.5, 0.94), xytext=(4, 0), textcoords="offset points", fontsize=8,
                    xycoords=("data", "axes fraction"), color=plots.COLORS["attention"])  # fmt: skip
        names = [characters[i] for i in order[:most].tolist()]
        ax.set_xticks(range(most), [shown.get(character, character) for character in names], fontsize=8)
        ax.set(title=name, xlabel="next character, likeliest first", ylim=(0, 1.15 * probabilities[0].item()))
    axes[0].set_ylabel("probability")
    show(
        axes[0],
        alt="Two panels of bars, the probabilities of the likeliest next characters; a dashed line after the fifth. "
        "Inside a word the first bar is nearly 1 and the only one in colour. Where a speech begins the bars fall "
        "slowly, and many of them, far beyond the dashed line, are in colour.",
        caption="What does each rule keep? Top-k 5 the five to the left of the dashed line, in both places; top-p 0.9 "
        "the coloured ones: few where the model is sure, many where it is not. (The scales differ.)",
    )


def variety_by_surprise(experiment, ways):
    """Fraction of different 4-grams of each rule of choosing, against the model's own bits per character."""
    shifts = {"temperature 0.5": (-84, -3), "temperature 0.7": (-84, 3), "top-p 0.8": (-56, -5)}
    names = {"pure sampling": "pure sampling, top-k 40", "top-k 40": ""}  # their dots coincide
    ax = plots.axes(height=3.6)
    for way in ways:
        kind = {"real text": "output", "greedy": "gradient"}.get(way, "attention")
        nats, variety = (ledger.summary(experiment, way, metric)[0] for metric in ("nll", "distinct_4"))
        place = (metrics.bits(nats), variety)
        ax.scatter(*place, color=plots.COLORS[kind])
        ax.annotate(names.get(way, way), place, xytext=shifts.get(way, (5, -9)), textcoords="offset points", fontsize=8)
    ax.set(xlabel="surprise (bits per character, by the model itself)", ylabel="fraction of different 4-grams")
    ax.margins(x=0.2)
    show(
        ax,
        alt="Scatter of eleven kinds of text, surprise to the right and variety upwards. Greedy stands "
        "alone at the lower left; the others rise nearly on a curve to the hottest at the upper right; real text lies "
        "to the right of pure sampling and below it.",
        caption="How do variety and likelihood go together? Nearly along one curve, from greedy at the lower left to a "
        "high temperature at the upper right. Real text is less likely than pure sampling, and less varied. "
        "(Greedy text is the same after the same name, which is a part of its little variety.)",
    )


def tasks_by_prefix(answered, tasks):
    """Share of the answers that are each task's, for each prefix."""
    ax = plots.heatmap(
        plots.axes(width=5.5, height=2.8),
        [[answered[prefix][task] for task in tasks] for prefix in answered],
        tasks,
        list(answered),
        "fraction of answers",
        annotate=True,
        xlabel="answer that the task wants",
        ylabel="prefix given",
    )
    show(
        ax,
        alt="Heat map of prefix given against the task whose answer came. The three prefixes are dark on the diagonal "
        "and near zero elsewhere; without a prefix no task is done reliably.",
        caption="Does the first token choose the task? Yes: each prefix gets its own answers, for strings that never "
        "occurred in training. Without it, with every letter one position earlier, no task is done reliably.",
    )


def time_by_length(experiment):
    """Milliseconds for one more token against the tokens before, with and without a cache, for one text and eight."""
    ax = plots.axes(height=3.0)
    for name in ("no cache", "cache"):
        for batch, style, marker in ((8, "--", "s"), (1, "-", "o")):
            row = f"{name}, batch {batch}"
            texts = "1 text" if batch == 1 else f"{batch} texts"
            lengths = ledger.values(experiment, row, "T")[0]
            runs = [[1000 * seconds for seconds in run] for run in ledger.values(experiment, row, "seconds")]
            plots.band(ax, lengths, runs, f"{name}, {texts}", name, marker=marker, linestyle=style)
    ax.set(xscale="log", yscale="log", xlabel="tokens before", ylabel="milliseconds a step")
    ax.set_xlim(right=5000)
    ax.set_xticks([16, 64, 256, 1024], ["16", "64", "256", "1,024"])
    ax.minorticks_off()
    plots.direct_labels(ax)
    show(
        ax,
        alt="Milliseconds for one more token against the number of tokens before, both logarithmic. Without a cache "
        "two steep lines; with one two nearly flat ones.",
        caption="How does the gain grow? Without a cache a token's cost rises, for long texts nearly like the "
        "length; with one it stays nearly flat.",
    )


def one_and_two_processes(one, two):
    """Loss by step of a run in one process and of the same run in two."""
    steps, ax = range(1, len(one) + 1), plots.axes(height=2.6)
    ax.plot(steps, one, color=plots.COLORS["hidden"], linewidth=6, alpha=0.4, label="one process")
    ax.plot(steps, two, color=plots.COLORS["ink"], label="two processes")
    ax.set(xlabel="step", ylabel="nats per character")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Loss against step for one process and for two; the thin line of two runs inside the broad line of one.",
        caption="Does sharing the rows change the training? Not in these steps: both lines lie on each other.",
    )
