"""Figures of chapter 01: order in numbers and in letters, and what it is worth."""

from course_lib.notebook import plots
from course_lib.notebook.display import show

LINE = "the order of the letters is what makes a text of them"
SHUFFLED = "fx srt ehofs de hahtlmt o ieee r rwt saht t maetoeekt"  # as the chapter shuffles it, with seed 4


def puzzle():
    """Draw a line of English and the same letters shuffled, the frequent letters dark."""
    ax = plots.axes(height=1.5)
    ax.axis("off")
    most = max(LINE.count(letter) for letter in LINE if letter != " ")
    for y, letters in ((1.5, LINE), (0, SHUFFLED)):
        for x, letter in enumerate(letters):
            shade = 0.0 if letter == " " else 0.75 * LINE.count(letter) / most
            box = {"facecolor": plots.COLORS["attention"], "alpha": shade, "edgecolor": "none", "pad": 1.5}
            ax.text(x, y, " ", family="monospace", fontsize=10.5, ha="center", va="center", bbox=box)
            ax.text(x, y, letter, family="monospace", fontsize=10.5, ha="center", va="center")
    ax.set(xlim=(-1, len(LINE)), ylim=(-0.8, 2.3))
    show(
        ax,
        alt=f"Two rows of letters. Above: {LINE}. Below: the same letters in random order.",
        caption="Which of the two lines is more probable? The letters are the same; the frequent ones are dark.",
    )


def series_and_shuffle(wave, mixed, correlations):
    """Draw a series, its shuffled twin, and their correlations with their own past, {name: by lag}."""
    left, middle, right = plots.grid(1, 3, height=2.6, width_ratios=[1, 1, 1.4])[0]
    plots.lines(left, {"series": (range(60), wave[:60])}, "time step", "value")
    plots.lines(middle, {"shuffled": (range(60), mixed[:60])}, "time step", "", {"shuffled": "muted"})
    left.set(title="the series")
    middle.set(title="shuffled", ylim=left.get_ylim())
    by_lag = {name: (range(1, len(c) + 1), c) for name, c in correlations.items()}
    plots.lines(right, by_lag, "lag (steps)", "correlation with the past", {"shuffled": "muted"}, direct=True)
    show(
        left,
        alt="The first 60 of 240 steps of a seasonal series; of its shuffled twin, which is jagged; and their "
        "correlation with past values, which swings with period 12 for the series and stays near zero for the twin.",
        caption="Shuffling keeps every value, and so mean, spread and histogram; it destroys the relation to the past, "
        "here a season of 12 steps. (The first 60 of 240 steps are shown.)",
    )


def error_by_order(errors, floor):
    """Draw the one-step error of orders 1, 2, ... and what the noise alone costs."""
    orders = range(1, len(errors) + 1)
    curves = {"autoregression": (orders, errors), "noise alone": (orders, [floor] * len(errors))}
    colors = {"noise alone": "muted"}
    ax = plots.axes(height=2.9)
    plots.lines(ax, curves, "order $K$ (steps back)", "mean absolute error", colors, direct=True)
    show(
        ax,
        alt="One-step error against the order: it falls in steps until an order of about 13, then stays flat, a "
        "little above a grey line for the noise.",
        caption="Looking further back helps until the window holds a whole season and one step; what is left is nearly "
        "all noise, which no order can predict.",
    )


def forecasts(series, start, ahead, naive):
    """Draw 36 steps of past, what came after `start`, the forecast and its naive rivals {name: values}."""
    end = start + len(ahead)
    steps = range(start, end)
    ax = plots.axes()
    plots.lines(
        ax,
        {"the past": (range(start - 36, start), series[start - 36 : start])},
        "time step",
        "value",
        {"the past": "series"},
    )
    curves = {"actual": (steps, series[start:end]), "autoregression": (steps, ahead)}
    plots.lines(ax, curves, "time step", "value", {"actual": "ink"})
    for (name, values), dashes in zip(naive.items(), ("--", ":"), strict=True):
        plots.lines(ax, {name: (steps, values)}, "time step", "value", {name: "muted"}, linestyle=dashes)
    ax.legend(ncols=3, loc="upper left")
    ax.set_ylim(2, 7.8)
    show(
        ax,
        alt="36 steps of past, then forecasts: the autoregression follows season and trend, last season repeats "
        "without the trend, last value is flat.",
        caption="Fed with its own forecasts, the autoregression keeps season and trend for three seasons; repeating "
        "the last season misses the trend, repeating the last value misses both.",
    )


def error_by_horizon(errors):
    """Draw the mean error against the distance of the forecast: {forecast: errors}."""
    ax = plots.axes()
    for (name, e), dashes in zip(errors.items(), ("-", "--", ":"), strict=True):
        color = {} if name == "autoregression" else {name: "muted"}
        plots.lines(
            ax, {name: (range(1, len(e) + 1), e)}, "steps ahead", "mean absolute error", color, linestyle=dashes
        )
    plots.direct_labels(ax)
    ax.set_ylim(0, 1.5)
    show(
        ax,
        alt="Error against steps ahead: the autoregression stays near 0.2, last season near 0.3 and then 0.5, last "
        "value swings between 0.3 and 1.3 with the season.",
        caption="The autoregression's error grows slowly, because each step inherits the errors of those before.",
    )


def real_series(by_series):
    """Draw test errors against the distance, a panel for each series: {series: (step, unit, {forecast: errors})}."""
    panels = plots.grid(1, 2, height=3.0)[0]
    for ax, (name, (step, unit, curves)) in zip(panels, by_series.items(), strict=True):
        for (forecast, e), dashes in zip(curves.items(), ("-", "--", ":", "-."), strict=True):
            color = {} if forecast == "autoregression" else {forecast: "muted"}
            points = {forecast: (range(1, len(e) + 1), e)}
            plots.lines(ax, points, f"{step} ahead", f"mean absolute error ({unit})", color, linestyle=dashes)
        ax.set(title=name, ylim=(0, None))
    panels[1].legend(ncols=2, loc="lower center")
    show(
        panels[0],
        alt="Test error against steps ahead. Sunspots: the autoregression rises from 13 to about 34, below last "
        "season and the mean everywhere. Temperatures: it rises from 1.8 to 2.1 within days, then stays level below "
        "the others.",
        caption="Weather forgets within days, so the autoregression's curve is soon flat; sunspots remember for years.",
    )


def letter_pairs(probabilities, names):
    """Draw the table (V, V) of a bigram model."""
    ax = plots.heatmap(
        plots.axes(height=6.2),
        probabilities,
        names,
        names,
        "probability of the next letter",
        xlabel="next letter",
        ylabel="letter before (· = blank)",
    )
    show(
        ax,
        alt="Heat map of 27 by 27 letters: q is almost always followed by u; many words end in y, s, d, e; vowels "
        "follow consonants.",
        caption="Each row is a distribution. Dark cells are habits of the text: u after q, e after many consonants, a "
        "blank after y and s.",
    )


def effective_choices(distributions, choices):
    """Draw distributions over a few tokens, {name: p}, with their effective numbers of choices."""
    panels = plots.grid(1, len(distributions), height=2.5, sharey=True)[0]
    for ax, (name, p) in zip(panels, distributions.items(), strict=True):
        ax.bar(range(len(p)), p, color=plots.COLORS["attention"])
        ax.set(xticks=range(len(p)), xlabel="token", title=f"{name}:\n{choices[name]:.3g} effective choices")
    panels[0].set_ylabel("probability")
    shown = ", ".join(f"{name} with {choices[name]:.3g}" for name in distributions)
    show(
        panels[0],
        alt=f"Three distributions over 8 tokens as bars, with their effective choices: {shown}.",
        caption="Eight tokens are eight choices only if they are equally likely; the more probability a few take, the "
        "fewer choices remain.",
    )


def two_smoothings(held_out, seen):
    """Draw bits per letter against n on held-out and on training text: {smoothing: bits for n = 1, 2, ...}."""
    ax = plots.axes(height=3.4)
    colors = {"add 0.1": "add-k", "interpolated": "interpolated"}
    for part, bits, style in (("held out", held_out, {}), ("training", seen, {"linestyle": "--", "alpha": 0.55})):
        for name, b in bits.items():
            label = f"{name}, {part}"
            points = {label: (range(1, len(b) + 1), b)}
            plots.lines(ax, points, "", "bits per letter", {label: colors[name]}, marker="o", **style)
    ax.set_xlabel("$n$ (the model looks $n-1$ letters back)")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Bits per letter against n for two smoothings. On training text both fall; on held-out text the add-0.1 "
        "curve turns up steeply from the middle on, the interpolated one a little.",
        caption="Longer contexts fit the training text ever better. On new text add-$k$ soon turns up again; "
        "interpolation, which fills the gap from the shorter context, rises far less.",
    )


def loss_and_marks(updates, losses, marks):
    """Draw the held-out loss against updates, with the baselines {name: nats} as marks."""
    ax = plots.axes()
    curve = {"window network": (updates, losses)}
    plots.lines(ax, curve, "updates", "held-out loss (nats per letter)")
    for name, value in marks.items():
        ax.axhline(value, color=plots.COLORS["muted"], linestyle="--", linewidth=1.2)
        ax.annotate(name, (updates[-1], value), xytext=(0, 2), textcoords="offset points", ha="right", va="bottom")
    ax.margins(y=0.1)
    show(
        ax,
        alt="Held-out loss against updates: it starts at the uniform mark, passes the unigram entropy and then the "
        "bigram entropy, and flattens below it.",
        caption="The loss starts at $\\log V$ and ends below the bigram entropy: that needs more than one letter of "
        "context.",
    )


def reach_of_a_window(effect, window):
    """Draw how much the change of one letter moves the prediction, by its distance."""
    ax = plots.bars(
        plots.axes(height=2.6),
        {str(d): round(e, 2) for d, e in enumerate(effect)},
        "largest change of a logit",
        {str(d): "input" if d < window else "muted" for d in range(len(effect))},
        digits=2,
    )
    ax.set_xlabel("distance of the changed letter (0 = the newest)")
    show(
        ax,
        alt=f"Effect of changing one letter against its distance: large for distance 0, positive up to {window - 1}, "
        f"exactly zero from {window} on.",
        caption=f"A window of {window} letters ends at distance {window - 1}. Beyond it the effect is exactly zero.",
    )


def worth_of_order(bits):
    """Draw every model's bits per letter, {model: bits}, and the range of people who guess English."""
    colors = {"window network": "window network", "uniform": "muted"}
    ax = plots.dots(plots.axes(height=2.9), bits, "held-out bits per letter", colors, order="given")
    ax.axvspan(0.6, 1.3, color=plots.COLORS["hidden"], alpha=0.25, zorder=0)
    ax.annotate("people, other English\n(Shannon, 1951)", (1.36, len(bits) - 1), va="center", fontsize=9)
    ax.set_xlim(0.45, 5.2)
    show(
        ax,
        alt="Dots of bits per letter: uniform 4.75, without order about 4.1, falling with context to about half of "
        "that; a band from 0.6 to 1.3 bits marks people who guess English.",
        caption="About half of what a letter seems to say without order is already said by the letters before it. "
        "Band: Shannon's bounds for people guessing other English, to scale only.",
    )


def two_texts(scores, network):
    """Draw bits per token against n, a panel for each text: {text: {smoothing: bits}}, {text: the network's bits}."""
    panels = plots.grid(1, 2, height=3.2)[0]
    for ax, (name, curves) in zip(panels, scores.items(), strict=True):
        for kind, bits in curves.items():
            plots.lines(ax, {kind: (range(1, len(bits) + 1), bits)}, "$n$", "bits per token", marker="o")
        line = {"window network": ([1, len(bits)], [network[name]] * 2)}
        plots.lines(ax, line, "$n$", "bits per token", linestyle="--")
        ax.set_title(name)
    panels[1].legend()
    show(
        panels[0],
        alt="Bits per token against n. Characters: add-k has its minimum near n = 5, interpolation falls on and "
        "flattens. Words: add-k rises steeply from n = 3 on, interpolation flattens at n = 4, and the network's line "
        "lies below both.",
        caption="The same two smoothings on two texts. Words are so many that add-$k$ fails from $n = 3$ on, while "
        "interpolation flattens; there the network, which shares what it learns between words, is best.",
    )
