"""Figures of chapter 03: what a state holds, what it is worth, and where it ends."""

from course_lib.notebook import plots
from course_lib.notebook.display import show


def state_over_text(states, line, order):
    """Draw the units' values (T, D), rows in the given order, below the characters of a line."""
    ax = plots.heatmap(
        plots.axes(height=3.8),
        states[:, order].T,
        list(line.replace(" ", "·")),
        [f"{i}" for i in order.tolist()],
        "state (-1 to 1)",
        kind="diverging",
        xlabel="character just read",
        ylabel="unit",
    )
    ax.tick_params(axis="x", rotation=0)
    show(
        ax,
        alt="Heat map of 16 units against the characters of a sentence with two quotations. The upper units are blue "
        "throughout the quotations and vermilion outside; the lower ones are the other way round, others change only "
        "at a quotation mark.",
        caption="What is in the 16 numbers? The upper units are high all through a quotation and low outside, however "
        "many letters pass: a bit, stored several times over. Others react to the marks themselves.",
    )


def self_weight(curves):
    """Draw the state of one unit that receives nothing: {self-weight: states by step}."""
    ax = plots.axes(height=2.7)
    series = {f"w = {w:g}": (range(len(states)), states) for w, states in curves.items()}
    colors = dict(zip(series, ("muted", "input", "hidden"), strict=True))
    plots.lines(ax, series, "steps without input", "state $h$", colors, direct=True)
    ax.set_ylim(-0.03, 1.05)
    show(
        ax,
        alt="Three curves from 0.5: with w = 2 the state rises to 0.96 and stays; with w = 1 it decays slowly, with "
        "w = 0.9 quickly, to 0.",
        caption="Does a state keep a value by itself? Only with a self-weight above 1, and then it keeps which side of "
        "0 it is on, not the value.",
    )


def word_order(accuracies):
    """Draw held-out accuracy by epoch on reviews that only the order of the words decides."""
    epochs = range(1, len(accuracies) + 1)
    ax = plots.axes(height=2.7)
    points = {"RNN": (epochs, [100 * accuracy for accuracy in accuracies])}
    plots.lines(ax, points, "epoch", "held-out accuracy (%)", marker="o")
    guess = {"bag of words": (epochs, [50] * len(epochs))}
    plots.lines(ax, guess, "epoch", "held-out accuracy (%)", linestyle="--", direct=True)
    ax.set_ylim(45, 103)
    show(
        ax,
        alt="Held-out accuracy by epoch: about 50 at first, then a rise to 100 per cent; a dashed line at 50 for any "
        "bag of words.",
        caption="Can a state tell *not great, it's terrible* from its mirror image? Yes: after a few passes it is "
        "right on nearly all reviews, where every bag of words is right on exactly half.",
    )


def against_ngrams(ngram_bits, rnn_bits):
    """Draw bits per character of n-grams, {n: bits}, and of the RNN."""
    ax = plots.axes(height=2.9)
    n = list(ngram_bits)
    plots.lines(ax, {"n-grams": (n, list(ngram_bits.values()))}, "$n$", "", marker="o")
    plots.lines(ax, {"RNN": (n, [rnn_bits] * len(n))}, "$n$", "held-out bits per character", direct=True)
    show(
        ax,
        alt="Held-out bits per character against n: n-grams fall steeply up to n = 4 and then level off; a horizontal "
        "line for the RNN lies below the 3-gram and above the best n-gram.",
        caption="Which n-gram does the RNN match after two passes? It is between a 3-gram and the best n-gram.",
    )


def on_shakespeare(curves, best_n, counted_bits):
    """Draw validation bits by epoch, {model: runs}, and the best n-gram's as a line."""
    ax = plots.axes(height=2.9)
    for name, runs in curves.items():
        plots.band(ax, range(1, len(runs[0]) + 1), runs, name, marker="o")
    epochs = range(1, max(len(runs[0]) for runs in curves.values()) + 1)
    counted = {f"{best_n}-gram": (epochs, [counted_bits] * len(epochs))}
    plots.lines(
        ax, counted, "epoch", "validation bits per character", {f"{best_n}-gram": "n-gram"}, linestyle="--", direct=True
    )
    show(
        ax,
        alt="Validation bits per character against epochs on tiny Shakespeare, for the window network and the RNN, "
        "with a dashed line for the best n-gram.",
        caption="What does carrying a state buy on real text? In the end the RNN is below the window network, which is "
        "about as large, and near the best n-gram, which is several times larger. (Bands: range over seeds.)",
    )


def catching_up(names, binned, carried):
    """Draw bits per character by how much was read since the state was zero."""
    ax = plots.axes(height=2.8)
    x = range(len(binned))
    xlabel = "characters read since the start of the piece"
    plots.lines(ax, {"zeroed": (x, binned)}, xlabel, "bits per character", marker="o")
    plots.lines(ax, {"carried": (x, [carried] * len(x))}, xlabel, "bits per character", linestyle="--", direct=True)
    ax.set_xticks(x, names)
    show(
        ax,
        alt="Bits per character against the number of characters read since the state was zero: high at the first, "
        "falling to nearly the dashed line of the carried state.",
        caption="How long does the model need to catch up? Most of the cost is in the first eight characters; after "
        "that the zero start is hardly noticed.",
    )


def memory_by_lag(remembered):
    """Draw the share of the input k steps back that each state rebuilds: {D: R^2 by lag}."""
    ax = plots.axes(height=2.9)
    for (D, r2), color in zip(remembered.items(), ("muted", "input", "hidden"), strict=True):
        curve = {D: (range(len(r2)), r2)}
        plots.lines(ax, curve, "lag $k$ (steps)", "fraction of $x_{t-k}$\nthat is rebuilt", {D: color})
        half = int((r2 < 0.5).int().argmax())
        ax.annotate(f"$D$ = {D}", (half + 2, 0.6), color=plots.color(color))
    show(
        ax,
        alt="Share rebuilt against lag for states of 8, 32 and 128 numbers: each stays near 1 and then falls to 0, "
        "around lag 8, 32 and 128; the larger D, the more gently.",
        caption="How far back does a linear read-out of these states reach? To about lag $D$; well beyond, the past is "
        "gone.",
    )


def gradient_by_lag(relative):
    """Draw the norm of the gradient against the lag: {model: norms relative to lag 0}."""
    ax = plots.axes(height=2.9)
    ax.set_yscale("log")
    series = {name: (range(len(norms)), norms.tolist()) for name, norms in relative.items()}
    plots.lines(ax, series, "lag (steps back from the loss)", "gradient norm,\nrelative to lag 0", direct=True)
    ax.set_xlim(-1, 68)  # room for the names
    show(
        ax,
        alt="Gradient norm against lag on a logarithmic scale: two nearly straight falling lines; the untrained "
        "model's falls faster.",
        caption="Does the loss feel what was read long ago? Its gradient shrinks by a nearly constant factor with each "
        "step, before training and, more slowly, after it.",
    )


def time_by_length(lengths, taken):
    """Draw the time for the same number of symbols in ever longer sequences: {model: milliseconds}."""
    ax = plots.axes(height=2.9)
    ax.set_xscale("log")
    series = {name: (lengths, times) for name, times in taken.items()}
    plots.lines(ax, series, "$T$, with $B = 4096 / T$", "time (ms)", marker="o", direct=True)
    ax.set_ylim(0, None)
    ax.set_xticks(lengths, [f"{T:,}" for T in lengths])
    ax.minorticks_off()
    show(
        ax,
        alt="Time against T at a constant number of symbols: the window network's does not rise, the RNN's rises "
        "steeply at large T.",
        caption="What does it cost to wait for the step before? The same number of multiplications takes many times "
        "longer when the steps must follow one another. (Times are this machine's.)",
    )
