"""Figures of chapter 03: what a state holds, what it is worth, and where it ends."""

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def open_after(line):
    """Is a quotation open after each character of a line? Booleans (T,)."""
    return torch.tensor([line[: t + 1].count('"') % 2 == 1 for t in range(len(line))])


def telling_units(states, line, at_marks):
    """Units of states (T, D) whose sign alone tells it at every mark, or at every character but the marks."""
    where = torch.tensor([(character == '"') == at_marks for character in line])
    agreeing = ((states > 0) == open_after(line)[:, None])[where].float().mean(0)  # (D,)
    return ((agreeing == 0) | (agreeing == 1)).nonzero()[:, 0].tolist()


def state_over_text(states, line):
    """Draw the units of states (T, D) over a line, with a bar where a quotation is open; outline those that tell it."""
    from matplotlib.patches import Rectangle

    inside = open_after(line)
    outlined = telling_units(states, line, at_marks=False)
    contrast = states[inside].mean(0) - states[~inside].mean(0)  # (D,)
    order = contrast.argsort(descending=True)
    ax = plots.heatmap(
        plots.axes(height=4.1),
        states[:, order].T,
        list(line.replace(" ", "·")),
        [f"{i}" for i in order.tolist()],
        "state (-1 to 1)",
        kind="diverging",
        xlabel="character just read",
        ylabel="unit",
    )
    ax.tick_params(axis="x", rotation=0)
    for t, is_open in enumerate(inside.tolist()):
        ax.add_patch(Rectangle((t, -1.3), 1, 0.9, clip_on=False, facecolor="#222222" if is_open else "#EEEEEE", lw=0))
    ax.text(-0.4, -0.85, "open", ha="right", va="center")
    for unit in outlined:
        row = order.tolist().index(unit)
        ax.add_patch(Rectangle((0, row), len(line), 1, clip_on=False, fill=False, edgecolor="#222222", lw=2.2))
    sign = "negative" if contrast[outlined[0]] < 0 else "positive"
    two_late = inside | inside.roll(1) | inside.roll(2)  # the line ends outside a quotation
    late = ((states > 0) == two_late[:, None]).all(0).nonzero()[:, 0].tolist()
    lingering = f"{_units(late)}: positive, and two characters late. " if late else ""
    show(
        ax,
        alt="Heat map of 16 units against the characters of a sentence with two quotations; a bar on top is black "
        "where a quotation is open. The three upper units are blue throughout the quotations and a little longer, "
        "vermilion elsewhere; the lowest one, outlined, is the other way round, others change near the marks.",
        caption=f"What is in the 16 numbers? {_units(outlined)} (outlined) is {sign} while a quotation is open, "
        f"but late at the closing mark. {lingering}Several units share the job; the output layer weighs all 16.",
    )


def _units(numbers):
    """Units by name: 'Unit 13', 'Units 0, 10 and 14'."""
    *others, last = [str(number) for number in numbers]
    return f"Units {', '.join(others)} and {last}" if others else f"Unit {last}"


def self_weight(curves):
    """Draw the state of one unit that receives nothing: pairs (self-weight, states by step)."""
    ax = plots.axes(height=2.7)
    colors = {0.9: "muted", 1.0: "input", 2.0: "hidden"}
    for w, states in curves:
        ax.plot(range(len(states)), states, color=plots.color(colors[w]))
    for w, height in ((0.9, -0.1), (1.0, 0.3), (2.0, 0.85)):
        ax.text(25.4, height, f"w = {w:g}", color=plots.color(colors[w]), va="center")
    ax.set(xlabel="steps without input", ylabel="state $h$", ylim=(-1.1, 1.1))
    show(
        ax,
        alt="State of one unit over 25 steps. With w = 2 it goes to 0.96 from 0.5 and 0.2, to -0.96 from -0.5; "
        "with w = 1 it decays slowly from 0.5, with w = 0.9 quickly, to 0.",
        caption="Does a single unit keep its state by itself? Of these three self-weights, only $w = 2$ does. What it "
        "keeps is the side of 0, not the value: from 0.5 and from 0.2 it ends at the same place.",
    )


def against_ngrams(ngram_bits, rnn_bits, nearest):
    """Draw bits per character of n-grams, {n: bits}, and of the RNN; `nearest` is the n that comes closest."""
    ax = plots.axes(height=2.9)
    n = list(ngram_bits)
    plots.lines(ax, {"n-grams": (n, list(ngram_bits.values()))}, "$n$", "", marker="o")
    plots.lines(ax, {"RNN": (n, [rnn_bits] * len(n))}, "$n$", "held-out bits per character", direct=True)
    show(
        ax,
        alt="Held-out bits per character against n: n-grams fall steeply up to n = 4 and then level off; a horizontal "
        "line for the RNN lies below the 3-gram and above the best n-gram.",
        caption=f"Which n-gram comes nearest to the RNN after two passes? The {nearest}-gram.",
    )


def on_shakespeare(bits, sizes):
    """Draw bits per character on the reported text as dots, {model: values by seed}, with each model's size."""
    rows = {f"{name}\n({sizes[name]:,.0f} numbers)": values for name, values in bits.items()}
    colors = {row: "n-gram" if "gram" in row else row.split("\n")[0] for row in rows}
    ax = plots.dots(plots.axes(height=3.0), rows, "bits per character on the last tenth of the text", colors)
    show(
        ax,
        alt="Dots by seed of the bits per character, sorted: "
        + ", ".join(sorted(bits, key=lambda name: -sum(bits[name]) / len(bits[name])))
        + "; the number of weights or counts stands beside each name.",
        caption="Who needs the fewest bits on real text? The RNN needs fewer than the window network of about the "
        "same size, and slightly fewer than the 7-gram, which stores several times as many numbers. (Fewer bits are "
        "better. Small dots: seeds; large: their mean.)",
    )


def catching_up(names, binned, carried):
    """Draw bits per character by how much was read since the state was zero."""
    ax = plots.axes(height=2.8)
    x = range(len(binned))
    xlabel = "characters read since the start of the piece"
    plots.lines(ax, {"from zeros": (x, binned)}, xlabel, "bits per character", {"from zeros": "zeroed"}, marker="o")
    plots.lines(ax, {"carried": (x, carried)}, xlabel, "bits per character", linestyle="--", direct=True)
    ax.set_xticks(x, names)
    show(
        ax,
        alt="Bits per character against the number of characters read since the state was zero: high at the first, "
        "after eight it lies on the dashed line of the carried state.",
        caption="How long does the model need to catch up? Most of the cost is in the first four characters; "
        "after eight the two lines, over the same characters, can hardly be told apart.",
    )


def gaps():
    """Draw the error one month ahead against the fraction of missing months, from the ledger."""
    ax = plots.axes(height=3.3)
    rows = {
        "last value": ("last value", "persistence", "last value seen", {"linestyle": ":"}),
        "AR": ("AR, filled", "autoregression", "linear, filled", {}),
        "RNN, filled": ("RNN, filled", "input", "RNN, filled", {"linestyle": "--"}),
        "RNN, both": ("RNN, filled and mask", "weight", "RNN, filled, with mask", {"linestyle": "-."}),
        "RNN, mask": ("RNN, zeros and mask", "RNN", "RNN, zeros and mask", {}),
    }
    for row, color, name, style in rows.values():
        fractions = [100 * f for f in ledger.values("sunspots-gaps", row, "fractions")[0]]
        plots.band(ax, fractions, ledger.values("sunspots-gaps", row, "mae"), name, color, marker="o", **style)
    plots.direct_labels(ax)
    ax.set(xlabel="months missing (%)", ylabel="mean absolute error (sunspots)", xticks=fractions)
    show(
        ax,
        alt="Mean absolute error one month ahead against the percentage of missing months, five curves with bands "
        "over three draws. All rise, and from 50 % on most bands overlap; the linear autoregression is lowest on "
        "average at 0, 50 and 75 %, the RNN with filled values and mask at 25 %.",
        caption="Who copes with the holes? On average the linear autoregression on filled values, except at 25 %, "
        "where the RNN with filled values *and* mask is slightly ahead; but the draws differ more than these two. (At "
        "0 % the three networks read the same values, two of them with an extra column that is always 1; how they "
        "differ is mostly chance. Lines: mean of three draws of the holes; "
        "bands: lowest to highest.)",
    )


def memory_by_lag(remembered):
    """Draw the fraction of the input k steps back that each state rebuilds: {D: R^2 by lag}."""
    ax = plots.axes(height=2.9)
    for (D, r2), color in zip(remembered.items(), ("muted", "input", "hidden"), strict=True):
        curve = {D: (range(len(r2)), r2)}
        plots.lines(ax, curve, "lag $k$ (steps)", "fraction of $x_{t-k}$\nthat is rebuilt", {D: color})
        half = int((r2 < 0.5).int().argmax())
        ax.annotate(f"$D$ = {D}", (half + 2, 0.6), color=plots.color(color))
    show(
        ax,
        alt="Fraction rebuilt against lag for states of 8, 32 and 128 numbers: each stays near 1 and then falls to 0, "
        "around lag 8, 32 and 128; the larger D, the more gently.",
        caption="How far back does a linear read-out of these states reach, with the best of three shrinking factors? "
        "To about lag $D$; well beyond, the past is gone.",
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
        caption="Does what was read long ago reach the loss? With each step back the gradient shrinks by a nearly "
        "constant factor, before training and, more slowly, after it.",
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
        caption="What does it cost to go step by step? The same number of multiplications takes many times longer in "
        "4,096 small steps than in 16 large ones, even on a CPU. (Times are this machine's.)",
    )
