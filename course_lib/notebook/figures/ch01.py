"""Figures of chapter 01: order in numbers and in letters, and what it is worth."""

from course_lib.notebook import plots
from course_lib.notebook.display import show

LINE = "the order of the letters is what makes a text of them"
SHUFFLED = "ws heo xeardtr ltteesh meehhto s eaft tf a im okert t"  # each of its pairs occurs in the chapter's text


def puzzle():
    """Draw a line of English and the same letters shuffled, each on a shade that shows how often it occurs."""
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
        alt=f"Two rows of letters. Above: {LINE}. Below: the same letters in random order. "
        "The most frequent letters, e and t, have the darkest background.",
        caption="Which of the two lines is more probable? The letters are the same. The darker a letter's background, "
        "the more often it occurs in its line; spaces have none.",
    )


def sunspots(series, choose, test):
    """Draw yearly sunspot numbers from 1749 on: the years to fit, to choose with, and to test."""
    ax = plots.axes(height=2.7)
    years = range(1749, 1749 + len(series))
    plots.lines(ax, {"series": (years, series)}, "year", "sunspots")
    parts = {
        "to fit": (0, choose, "none"),
        "to choose K": (choose, test, "weight"),
        "test": (test, len(series), "output"),
    }
    for name, (first, last, kind) in parts.items():
        if kind != "none":
            ax.axvspan(1749 + first, 1748 + last, color=plots.COLORS[kind], alpha=0.15, zorder=0)
        ax.annotate(name, (1748.5 + (first + last) / 2, 205), ha="center", va="center")
    ax.set(ylim=(0, 218), xlim=(1745, 1987))
    show(
        ax,
        alt="Yearly sunspot numbers from 1749 to 1983: some twenty peaks, about eleven years apart and of different "
        "heights. The first 140 years are for fitting, the next 50 for choosing K, the last 45 are the test.",
        caption="Peaks come about every eleven years, and no two are alike. The highest lie in the last part, on "
        "which nothing will be fitted or chosen.",
    )


def error_by_order(errors, copy_error):
    """Draw the one-step error of K = 1, 2, ... on the validation years, and that of copying the year before."""
    orders = range(1, len(errors) + 1)
    ax = plots.axes(height=2.7)
    plots.lines(
        ax, {"autoregression": (orders, errors)}, "$K$ (years back)", "mean absolute error", marker="o", markersize=4
    )
    ax.axhline(copy_error, color=plots.COLORS["muted"], linestyle="--", linewidth=1.4)
    ax.annotate("copy the year before", (20, copy_error), xytext=(0, -4), textcoords="offset points", ha="right",
                va="top", color=plots.COLORS["ink"])  # fmt: skip
    ax.annotate("autoregression", (16, errors[15]), xytext=(0, 8), textcoords="offset points", ha="center",
                color=plots.color("autoregression"))  # fmt: skip
    ax.set(ylim=(0, 1.1 * copy_error), xticks=[1, 2, 5, 10, 15, 20])
    show(
        ax,
        alt="One-step error on the validation years against K: it falls from 15 at K = 1 to 11 at K = 2 and then stays "
        "nearly level, near 10. Copying the year before has 15.",
        caption="One year ahead, the second year of past makes most of the gain; after it the curve is almost flat.",
    )


def eleven_years(series, test, forecasts):
    """Draw a series around the first year of the test, and forecasts from there on: {forecast: values}."""
    ax = plots.axes(height=3.0)
    begin, ahead = test - 22, len(next(iter(forecasts.values())))
    plots.lines(ax, {"series": (range(1749 + begin, 1749 + test + ahead), series[begin : test + ahead])}, "", "")
    for (name, values), dashes in zip(forecasts.items(), ("--", "-"), strict=True):
        points = (range(1748 + test, 1749 + test + ahead), [series[test - 1], *values])
        plots.lines(ax, {name: points}, "", "", {name: "autoregression"}, linestyle=dashes, linewidth=2)
    ax.axvline(1748 + test, color=plots.COLORS["muted"], linewidth=1)
    ax.annotate("known", (1748 + test, 148), xytext=(-6, 0), textcoords="offset points", ha="right")
    plots.direct_labels(ax, {"series": "actual"})
    ax.set(xlabel="year", ylabel="sunspots", ylim=(0, 160))
    show(
        ax,
        alt="Sunspot numbers from 1917 to 1949 and two forecasts made at the end of 1938. Both fall until "
        "1943, a year before the actual minimum, and rise until 1948: K = 2 from 20 to 54, K = 11 from 7 to 84. The "
        "actual numbers reach 150 in 1947.",
        caption="Both know that the sunspots will fall and rise again. With $K = 2$ the forecast fades towards the "
        "mean; with $K = 11$ it keeps the rhythm, but not the height of the peak.",
    )


def error_by_horizon(errors):
    """Draw the mean error against the distance of the forecast: {forecast: errors}."""
    ax = plots.axes(height=3.2)
    for (name, e), dashes in zip(errors.items(), ("--", "-", "--", ":"), strict=True):
        color = {name: "autoregression" if name.startswith("K =") else "muted"}
        plots.lines(
            ax, {name: (range(1, len(e) + 1), e)}, "years ahead", "mean absolute error", color, linestyle=dashes
        )
    for name, place in {
        "K = 2": (3.6, 43),
        "K = 11": (2.6, 14),
        "eleven years ago": (6.2, 19),
        "last year": (7.1, 80),
    }.items():
        ax.annotate(name, place, color=plots.color("autoregression" if name.startswith("K =") else "ink"))
    ax.set(ylim=(0, None), xticks=range(1, len(next(iter(errors.values()))) + 1))
    show(
        ax,
        alt="Test error against years ahead. K = 2 rises from 18 to 38 at three years and stays above 37; K = 11 rises "
        "from 15 to 25 at three years and to 30 at eight. Eleven years ago stays near 30. Last year rises from 26 to "
        "88 at five years and falls again.",
        caption="With two years of past the error is soon half as large again as with eleven. "
        "Copying last year is worst where the sun is in the opposite phase.",
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
        plots.direct_labels(ax, size=8.5)
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
        ylabel="letter before (· = space)",
    )
    show(
        ax,
        alt="Heat map of 27 by 27 letters: q is almost always followed by u; many words end in y, s, d, e; vowels "
        "follow consonants.",
        caption="Each row is a distribution. Dark cells are habits of the text: u after q, e after many consonants, a "
        "space after y and s.",
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


def bits_by_n(bits):
    """Draw bits per letter for n = 1, 2, ...: on held-out and on training text with add-0.1, perhaps interpolated."""
    ax = plots.axes(height=3.2)
    shown = {
        "training": ("add 0.1, training text", "add-k", {"linestyle": "--", "alpha": 0.6}),
        "held out": ("add 0.1, new text", "add-k", {}),
        "interpolated, k = 1": ("interpolated, k = 1", "interpolated", {"linestyle": "--", "alpha": 0.6}),
        "interpolated, k = 10": ("interpolated, k = 10", "interpolated", {}),
    }
    for key, (label, color, style) in shown.items():
        if key in bits:
            points = {label: (range(1, len(bits[key]) + 1), bits[key])}
            plots.lines(ax, points, "", "bits per letter", {label: color}, marker="o", **style)
    ax.set_xlabel("$n$ (the model looks $n-1$ letters back)")
    plots.direct_labels(ax)
    if "interpolated, k = 10" in bits:
        alt = ("The same figure with two more curves: interpolated, on new text. With k = 10 it falls until n = 6 and "
               "stays level, with k = 1 it rises after n = 5.")  # fmt: skip
        caption = ("Filled up from shorter contexts, and with $k = 10$, long contexts do no harm on new text; "
                   "with $k = 1$ they still do.")  # fmt: skip
    else:
        alt = ("Bits per letter against n for add-0.1. On training text the curve falls up to n = 7; on new text it "
               "falls until n = 5 and then rises.")  # fmt: skip
        caption = "Longer contexts fit the training text ever better. On new text the curve soon turns up again."
    show(ax, alt=alt, caption=caption)


def loss_and_references(updates, losses, references):
    """Draw the bits per letter on new text against updates, with other models as lines, {name: bits}."""
    ax = plots.axes(height=3.4)
    plots.lines(ax, {"window network": (updates, losses)}, "updates", "bits per letter, new text", marker="o",
                markersize=4)  # fmt: skip
    for name, value in references.items():
        ax.axhline(value, color=plots.COLORS["muted"], linestyle="--", linewidth=1.2)
        ax.annotate(name, (updates[-1], value), xytext=(0, 2), textcoords="offset points", ha="right", va="bottom")
    ax.annotate("window network", (updates[2], losses[2]), xytext=(6, 8), textcoords="offset points",
                color=plots.color("window network"))  # fmt: skip
    ax.set_ylim(1.5, 5.1)
    show(
        ax,
        alt="Bits per letter on new text against updates: the curve starts near log V, passes the lines of no "
        "context and of one letter within 200 updates, and flattens above the best n-gram.",
        caption="The loss starts near $\\log_2 V$ and ends far below the bigram model: that needs more than one letter "
        "of context. The best table of counts is still ahead.",
    )


def letter_vectors(vectors, names):
    """Draw the learned vectors (V, 2) of a network with two numbers for each letter, vowels in another colour."""
    ax = plots.axes(width=5.6, height=4.2)
    ax.axhline(0, color=plots.COLORS["muted"], linewidth=0.6)
    ax.axvline(0, color=plots.COLORS["muted"], linewidth=0.6)
    ax.scatter(*vectors.T, s=0)
    for name, place in zip(names, vectors.tolist(), strict=True):
        is_vowel = name in set("aeiou")
        color = plots.COLORS["output"] if is_vowel else plots.COLORS["ink"]
        size = 15 if is_vowel else 11 if len(name) == 1 else 8
        weight = "bold" if is_vowel else "normal"
        ax.annotate(name, place, ha="center", va="center", color=color, fontsize=size, fontweight=weight)
    ax.set(xlabel="first number", ylabel="second number")
    ax.margins(0.08)
    show(
        ax,
        alt="Scatter of 26 letters and the space by two learned numbers. The vowels a, i, o and u lie in the lower "
        "part, most consonants in the upper right; e is on the left, near y.",
        caption="One run. The vowels a, i, o and u lie in the lower part, c and m not far off; e stands nearer to y.",
    )


def worth_of_order(letters, words):
    """Draw every model's bits, {model: bits}, on letters, with people's range, and on words."""
    (top,), (bottom,) = plots.grid(2, 1, height=5.2)
    colors = {"window network": "window network", "knows nothing": "muted"}
    colors |= {name: "add-k" for name in (*letters, *words) if "n =" in name}
    plots.dots(top, letters, "bits per letter", colors, order="given")
    top.axvspan(0.6, 1.3, color=plots.COLORS["hidden"], alpha=0.25, zorder=0)
    top.annotate("people, different text\n(Shannon, 1951)", (0.64, len(letters) - 0.95), va="center", fontsize=9)
    top.set(xlim=(0.45, 5.2), title="letters of Python's documentation: seconds of training")
    plots.dots(bottom, words, "bits per word", colors, order="given")
    bottom.set_title("words of WikiText-2: recorded runs, three seeds")
    gains = [100 * (1 - best / without) for best, without in map(_best_and_without, (letters, words))]
    show(
        top,
        alt="Dots of bits on test text. Letters: 4.75 for knowing nothing, 4.1 without context, then falling with "
        "context to about 1.8 for seven-grams; the window network has 2.3. Words: 9.83 without context, 8.15, 7.93, "
        "7.92 and 7.92 with one to four words; the window network 7.77.",
        caption="Compare within a panel, not across. Against no context, the best of these models saves "
        f"{gains[0]:.0f} % of the bits on letters and {gains[1]:.0f} % on words (mind the axis). On letters the best "
        "table of counts is ahead of this network; on words, where most long contexts are new, the network is ahead. "
        "Band: Shannon's bounds for people guessing letters, on a different English text; for scale only.",
    )


def _best_and_without(bits):
    """The fewest bits of all models, and those of the model without context; of several seeds the mean."""
    means = {name: sum(b) / len(b) if isinstance(b, list) else b for name, b in bits.items()}
    return min(means.values()), means["no context (n = 1)"]


def two_texts(scores, network):
    """Draw bits per token against n, a panel for each text: {text: {smoothing: bits}}, {text: the network's bits}."""
    panels = plots.grid(1, 2, height=3.2)[0]
    for ax, (name, curves) in zip(panels, scores.items(), strict=True):
        for kind, bits in curves.items():
            plots.lines(ax, {kind: (range(1, len(bits) + 1), bits)}, "$n$", "bits per token", marker="o")
        line = {"window network": ([1, len(bits)], [network[name]] * 2)}
        plots.lines(ax, line, "$n$", "bits per token", linestyle="--")
        ax.set_title(name)
        plots.direct_labels(ax, {"window network": "network"}, size=8.5)
    show(
        panels[0],
        alt="Bits per token against n. Characters: add-k has its minimum near n = 5, interpolation falls on and "
        "flattens. Words: add-k rises steeply from n = 3 on, interpolation flattens at n = 4, and the network's line "
        "lies below both.",
        caption="The same two smoothings on two texts. There are so many words that add-$k$ fails from $n = 3$ on, "
        "while interpolation flattens; there the network, which shares what it learns between words, is best.",
    )
