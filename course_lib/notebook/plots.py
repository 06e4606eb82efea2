"""Figures in one visual language: a colour means the same thing in every chapter.

Every function takes an `Axes`, draws on it and returns it, so that figures compose;
`axes` and `grid` make them, `course_lib.notebook.display.show` puts them into a notebook with
alt text and a caption. matplotlib and seaborn are imported where they are used.

The hues are Okabe and Ito's (2008) and two more, moved apart until readers with any colour vision can tell them apart,
on white and on a dark page. A curve, bar or dot whose label is in `ENTITIES` gets its colour by itself.
"""

import math

HUES = {
    "blue": "#0072B2",
    "vermilion": "#BC3C0D",
    "green": "#0B7A54",
    "orange": "#BE8B03",
    "purple": "#A2457F",
    "sky": "#289FB8",
    "indigo": "#5468E3",
    "olive": "#848342",
    "grey": "#8C8C8C",
}
COLORS = {
    "input": HUES["sky"],  # tokens, values that come in
    "hidden": HUES["green"],  # hidden state, embeddings
    "output": HUES["orange"],  # predictions
    "weight": HUES["purple"],  # parameters
    "gradient": HUES["vermilion"],  # gradients, errors
    "attention": HUES["blue"],  # attention, probability, masks
    "muted": HUES["grey"],  # baselines, what is not in the foreground
    "ink": "#222222",  # text and outlines
}
FAMILIES = {  # what may stand in one figure: distinct in every family; between families a hue comes again
    "models": {
        "RNN": "vermilion",
        "LSTM": "green",
        "GRU": "orange",
        "GRU + attention": "indigo",
        "Transformer": "blue",
        "bidirectional LSTM": "sky",
        "CNN": "purple",
        "window network": "olive",
        "bag of words": "grey",
    },
    "recurrent": {
        "RNN": "vermilion",
        "RNN, identity": "purple",
        "RNN, ReLU identity": "olive",
        "RNN, orthogonal": "blue",
        "LSTM": "green",
        "LSTM, bias 0": "sky",
        "LSTM, bias 5": "indigo",
        "GRU": "orange",
        "n-gram": "grey",
    },
    "language models": {
        "RNN": "vermilion",
        "LSTM": "green",
        "GRU": "orange",
        "BERT": "purple",
        "GPT": "sky",
        "nanoGPT": "olive",
        "n-gram": "grey",
    },
    "pre-training": {"ELMo": "green", "GPT": "sky", "BERT": "purple"},
    "LSTM": {
        "forget gate": "vermilion",
        "input gate": "indigo",
        "output gate": "orange",
        "candidate": "purple",
        "cell state": "blue",
        "hidden state": "green",
        "token": "sky",
    },
    "GRU": {
        "reset gate": "olive",
        "update gate": "vermilion",  # how much of the old stays: the forget gate's part, and its hue
        "candidate": "purple",
        "hidden state": "green",
        "token": "sky",
    },
    "attention": {
        "query": "purple",
        "key": "orange",
        "value": "green",
        "score": "vermilion",
        "attention weight": "blue",
        "token": "sky",
        "position": "indigo",
        "padding": "grey",
    },
    "Transformer": {
        "self-attention": "blue",
        "masked self-attention": "purple",
        "cross-attention": "vermilion",
        "feed-forward": "green",
        "Add & Norm": "olive",
        "token": "sky",
        "position": "indigo",
        "projections": "orange",
        "residual": "grey",
    },
    "positions": {
        "none": "grey",
        "sinusoidal": "orange",
        "learned": "vermilion",
        "relative bias": "purple",
        "RoPE": "green",
        "ALiBi": "blue",
    },
    "norms": {
        "Post-LN": "vermilion",
        "Post-LN, warm-up": "orange",
        "Pre-LN": "blue",
        "Pre-LN, warm-up": "sky",
        "ReZero": "green",
        "ReZero, warm-up": "olive",
    },
    "warm-up": {"with warm-up": "orange", "without warm-up": "grey"},
    "optimizers": {"Adam": "blue", "RAdam": "orange", "SGD": "olive"},
    "schedules": {"constant": "grey", "linear": "orange", "cosine": "blue", "inverse square root": "green"},
    "transfer": {
        "pre-trained": "purple",
        "from scratch": "orange",
        "frozen": "olive",
        "untrained": "grey",
        "published": "blue",
    },
    "learning": {"trained": "vermilion", "untrained": "grey"},
    "context": {"once": "grey", "every step": "blue"},
    "decoder input": {"true words": "green", "own words": "vermilion", "scheduled": "olive"},
    "cache": {"no cache": "vermilion", "cache": "blue"},
    "state": {"carried": "green", "zeroed": "vermilion"},
    "clipping": {"not clipped": "vermilion", "clipped": "blue"},
    "pooling": {"mean": "green", "max": "orange", "cls": "blue", "last": "vermilion"},
    "smoothing": {"add-k": "grey", "interpolated": "blue", "window network": "olive"},
    "splits": {"training": "grey", "validation": "blue"},
    "memory": {"weights": "purple", "gradients": "vermilion", "moments": "grey", "activations": "green"},
    "forecast": {"autoregression": "orange", "persistence": "grey", "series": "sky"},
    "modern parts": {
        "GPT": "sky",
        "Llama": "vermilion",
        "RMSNorm": "olive",
        "SwiGLU": "orange",
        "RoPE": "green",
        "grouped queries": "blue",
        "LoRA": "purple",
    },
    "recall": {
        "softmax attention": "blue",
        "linear attention": "vermilion",
        "gated recurrence": "purple",
        "GRU": "orange",
    },
    "recurrence": {"loop": "vermilion", "scan": "purple"},
    "layers": {"two layers": "blue", "one layer": "grey", "one layer, wide": "olive"},
}
ALIASES = {
    "GRU with attention": "GRU + attention",
    "LSTM, one vector": "LSTM",
    "GRU, one vector": "GRU",
    "RNN + attention": "GRU + attention",
    "bidirectional": "bidirectional LSTM",
    "ours": "GPT",
    "n-grams": "n-gram",
    "interpolated n-grams": "n-gram",
    "majority": "bag of words",
    "bag with pairs": "bag of words",
    "bag of pairs": "bag of words",
    "bag of words and pairs": "bag of words",
    "uniform": "n-gram",
    "baseline": "bag of words",
    "guessing": "bag of words",
    "cell": "cell state",
    "LSTM, bias 1": "LSTM",
    "no position": "none",
    "warm-up": "with warm-up",
    "no warm-up": "without warm-up",
    "embedding": "token",
    "LayerNorm": "Add & Norm",
    "Noam": "inverse square root",
    "with a cache": "cache",
    "everything again": "no cache",
    "fed the true words": "true words",
    "fed its own words": "own words",
    "clipped at 1": "clipped",
    "shuffled": "frozen",
    "training text": "training",
    "held-out text": "validation",
    "GPT-2": "GPT",
}
ENTITIES = {name: HUES[hue] for family in FAMILIES.values() for name, hue in family.items()}
ENTITIES |= {alias: ENTITIES[name] for alias, name in ALIASES.items()}  # one colour for each entity of the course
CYCLE = [HUES[hue] for hue in ("blue", "orange", "green", "vermilion", "purple", "sky", "olive", "indigo", "grey")]
PIXELS_PER_INCH = 100  # a figure 7 inches wide is shown 700 pixels wide

STYLE = {
    "axes.facecolor": "white",
    "axes.edgecolor": COLORS["ink"],
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.titlesize": 11,
    "axes.labelsize": 10.5,
    "figure.facecolor": "white",
    "font.size": 10,
    "font.family": "DejaVu Sans",
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.7,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.facecolor": "white",
    "svg.hashsalt": "course_lib",
    "svg.fonttype": "path",
}


def grid(rows=1, columns=1, width=7.0, height=3.2, **subplots):
    """Make an array of `Axes` in the course's style, which stays on for all that is drawn after it.

    Args:
        rows: number of rows of axes.
        columns: number of columns of axes.
        width: width of the whole figure in inches; 7 is shown as 700 pixels.
        height: height of the whole figure in inches.
        **subplots: passed on to `matplotlib.pyplot.subplots` (`sharex`, `width_ratios`, ...).

    Returns:
        numpy array of shape (rows, columns) of `Axes`.

    >>> grid(2, 3).shape
    (2, 3)
    """
    import matplotlib.pyplot as plt
    from cycler import cycler

    plt.rcParams.update({**STYLE, "axes.prop_cycle": cycler(color=CYCLE)})  # a legend is styled when it is made
    return plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout="constrained", **subplots)[1]


def axes(width=7.0, height=3.2):
    """Make one `Axes` in the course's style, on a figure of its own.

    Args:
        width: width of the figure in inches; 7 is shown as 700 pixels.
        height: height of the figure in inches.

    Returns:
        A matplotlib `Axes`.

    >>> axes(width=6, height=2).figure.get_size_inches().tolist()
    [6.0, 2.0]
    """
    return grid(width=width, height=height)[0, 0]


def color(name):
    """The colour of an entity of the course, or of a meaning in `COLORS`; capitals and line breaks do not count.

    Args:
        name: a key of `ENTITIES` or `COLORS`.

    Raises:
        ValueError: if the name is in neither.

    >>> color("LSTM") == color("lstm") == HUES["green"]
    True
    """
    found = _named(name)
    if found is None:
        raise ValueError(f"there is no colour for {name!r}; there are {', '.join([*ENTITIES, *COLORS])}")
    return found


def lines(ax, series, xlabel, ylabel, colors=None, direct=False, **style):
    """Draw named curves, each labelled in the legend or at its end.

    Args:
        ax: the `Axes` to draw on.
        series: {label: (x, y)}, x and y of equal length.
        xlabel: label of the x axis, with its unit.
        ylabel: label of the y axis, with its unit.
        colors: {label: colour, or a name that `color` knows}; the others take their own colour where `color` knows the
            label, else the cycle's next.
        direct: write the labels at the curves' ends (`direct_labels`) in place of a legend.
        **style: passed on to `Axes.plot` (`marker`, `linestyle`, ...).

    >>> ax = lines(axes(), {"square": ([1, 2], [1, 4])}, "n", "n squared")
    >>> ax.lines[0].get_ydata().tolist()
    [1, 4]
    """
    colors = colors or {}
    for label, (x, y) in series.items():
        if len(x) != len(y):
            raise ValueError(f"curve {label!r} has {len(x)} x values and {len(y)} y values; they must be equally many")
        ax.plot(x, y, label=label, color=_color(ax, label, colors.get(label)), **style)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if direct:
        direct_labels(ax)
    elif len(series) > 1:
        ax.legend()
    return ax


def band(ax, x, runs, label, color=None, direct=False, **style):
    """Draw the mean over seeds as a line and the range from least to greatest as a band.

    Args:
        ax: the `Axes` to draw on.
        x: (points,) positions.
        runs: (seeds, points) one curve for each seed.
        label: name in the legend, or at the line's end.
        color: a colour, or a name that `color` knows; None takes the label's own, else the cycle's next.
        direct: write the labels at the curves' ends (`direct_labels`).
        **style: passed on to `Axes.plot`.

    >>> ax = band(axes(), [0, 1], [[1, 2], [3, 4]], "LSTM")
    >>> ax.lines[0].get_ydata().tolist()
    [2.0, 3.0]
    """
    for run in runs:
        if len(run) != len(x):
            raise ValueError(f"a run has {len(run)} values for {len(x)} positions x; they must be equally many")
    columns = list(zip(*runs, strict=True))
    color = _color(ax, label, color)
    ax.plot(x, [math.fsum(c) / len(c) for c in columns], label=label, color=color, **style)
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.25, linewidth=0)
    return direct_labels(ax) if direct else ax


def direct_labels(ax, names=None, size=9.5):
    """Write each labelled curve's name at its right end, in its colour, names pushed apart, in place of a legend.

    Call it after the last curve (again after more curves: it begins anew).

    Args:
        ax: the `Axes` with the curves.
        names: {label: what is written}; the others are written as they are.
        size: font size in points.

    >>> ax = lines(axes(), {"a": ([1, 2], [1, 4]), "b": ([1, 2], [1, 4])}, "n", "", direct=True)
    >>> [text.get_text() for text in ax.texts]
    ['a', 'b']
    """
    names = names or {}
    for text in [text for text in ax.texts if hasattr(text, "together")]:
        text.remove()
    if ax.get_legend() is not None:
        ax.get_legend().remove()
    together = []
    for line in ax.lines:
        points = [(x, y) for x, y in zip(line.get_xdata(), line.get_ydata(), strict=True) if math.isfinite(y)]
        if points and not str(line.get_label()).startswith("_"):
            text = names.get(line.get_label(), line.get_label())
            together.append(_end_label(text, max(points, key=lambda p: p[0]), line.get_color(), size, together))
            ax.add_artist(together[-1]).set_clip_on(False)  # so that the layout leaves room for it
    return ax


def _end_label(text, end, color, size, together):
    """A text at the end of a curve that makes room for the others of its `Axes` when it is drawn."""
    from matplotlib.text import Annotation

    class EndLabel(Annotation):
        def __init__(self):
            place = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
            super().__init__(text, end, (6, 0), color=color, fontsize=size, **place)
            self.together = together

        def update_positions(self, renderer):
            points = self.figure.dpi / 72
            at = [label.axes.transData.transform(label.xy)[1] / points for label in together]
            gaps = [1.25 * size * (label.get_text().count("\n") + 1) for label in together]
            self.xyann = (6, _apart(at, gaps)[together.index(self)] - at[together.index(self)])
            super().update_positions(renderer)

        def get_tightbbox(self, renderer=None):
            self.axes.get_ylim()  # limits that are still due are set now: on a log axis the old ones give no place
            return self.get_window_extent(renderer)

    return EndLabel()


def _apart(at, heights):
    """The heights nearest to `at` at which texts so high do not overlap.

    >>> _apart([0, 1, 50], [10, 10, 10])
    [-4.5, 5.5, 50.0]
    """
    order = sorted(range(len(at)), key=lambda i: at[i])
    blocks = []  # [members from below, their middle]
    for i in order:
        blocks.append([[i], float(at[i])])
        while len(blocks) > 1 and _low(blocks[-1], heights) < _high(blocks[-2], heights):
            members = blocks[-2][0] + blocks.pop()[0]
            total, below, wanted = sum(heights[k] for k in members), 0.0, 0.0
            for k in members:  # where the block's middle would be if k stood where it wants
                wanted += at[k] + total / 2 - below - heights[k] / 2
                below += heights[k]
            blocks[-1] = [members, wanted / len(members)]
    found = [0.0] * len(at)
    for block in blocks:
        y = _low(block, heights)
        for k in block[0]:
            found[k] = y + heights[k] / 2
            y += heights[k]
    return found


def _low(block, heights):
    return block[1] - sum(heights[k] for k in block[0]) / 2


def _high(block, heights):
    return block[1] + sum(heights[k] for k in block[0]) / 2


def heatmap(ax, matrix, xlabels, ylabels, label, kind="attention", annotate=False, xlabel="", ylabel=""):
    """Draw a matrix as colours, with a name on every row and column.

    Args:
        ax: the `Axes` to draw on.
        matrix: (rows, columns) tensor or nested list.
        xlabels: one name for each column.
        ylabels: one name for each row.
        label: what the colours measure, with its unit (beside the colour bar).
        kind: "attention" for values from 0 up (white to blue), "diverging" for signed values
            (vermilion, white, blue, symmetric about 0).
        annotate: also write each value, with 2 digits.
        xlabel: label of the x axis.
        ylabel: label of the y axis.

    >>> ax = heatmap(axes(3, 2), [[0.9, 0.1]], ["a", "b"], ["q"], "weight")
    >>> [t.get_text() for t in ax.get_xticklabels()]
    ['a', 'b']
    """
    import seaborn as sns
    from matplotlib.colors import LinearSegmentedColormap

    rows = [[float(v) for v in row] for row in matrix]
    if len(rows) != len(ylabels) or any(len(row) != len(xlabels) for row in rows):
        raise ValueError(
            f"the matrix has shape ({len(rows)}, {len(rows[0]) if rows else 0}), "
            f"but there are {len(ylabels)} row names and {len(xlabels)} column names"
        )
    low, mid, high = COLORS["gradient"], "#FFFFFF", COLORS["attention"]
    if kind == "attention":
        limits, colours = {"vmin": 0}, [mid, high]
    elif kind == "diverging":
        top = max(abs(v) for row in rows for v in row) or 1.0
        limits, colours = {"vmin": -top, "vmax": top}, [low, mid, high]
    else:
        raise ValueError(f"kind is {kind!r}; wanted 'attention' or 'diverging'")
    sns.heatmap(
        rows, ax=ax, cmap=LinearSegmentedColormap.from_list(kind, colours), xticklabels=list(xlabels),
        yticklabels=list(ylabels), cbar_kws={"label": label}, annot=annotate, fmt=".2f", linewidths=0.5,
        linecolor="#EEEEEE", **limits,
    )  # fmt: skip
    ax.tick_params(axis="y", rotation=0)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    return ax


def bars(ax, groups, ylabel, colors=None, digits=3):
    """Draw one bar for each name: the mean over seeds, a line from least to greatest, the value above.

    Args:
        ax: the `Axes` to draw on.
        groups: {label: value, or list of values by seed}.
        ylabel: label of the y axis, with its unit.
        colors: {label: colour, or a name that `color` knows}; else the label's own colour, else blue.
        digits: significant digits of the written value.

    >>> ax = bars(axes(), {"a": [1.0, 3.0], "b": 5}, "score")
    >>> [float(p.get_height()) for p in ax.patches]
    [2.0, 5.0]
    """
    colors = colors or {}
    for i, (label, values) in enumerate(groups.items()):
        values = _seeds(label, values, "bar")
        mean = math.fsum(values) / len(values)
        ax.bar(i, mean, color=_color(None, label, colors.get(label)), width=0.7)
        if len(values) > 1:
            ax.vlines(i, min(values), max(values), color=COLORS["ink"], linewidth=2)
        ax.annotate(_written(mean, digits), (i, max(values)), ha="center", va="bottom", xytext=(0, 2),
                    textcoords="offset points")  # fmt: skip
    ax.set_xticks(range(len(groups)), list(groups))
    ax.set_ylabel(ylabel)
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.12)
    return ax


def dots(ax, groups, xlabel, colors=None, digits=3, order="sorted"):
    """Draw one row for each name, the greatest on top: a small dot for each seed, a large one for the mean, its value.

    The axis covers the data's range and does not begin at 0, so that small differences can be seen.

    Args:
        ax: the `Axes` to draw on.
        groups: {label: value, or list of values by seed}.
        xlabel: label of the x axis, with its unit.
        colors: {label: colour, or a name that `color` knows}; else the label's own colour, else blue.
        digits: significant digits of the written value.
        order: "sorted", or "given" for the order of `groups`, from the top.

    >>> ax = dots(axes(), {"a": [81.0, 83.0], "b": 85.2}, "accuracy (%)")
    >>> [t.get_text() for t in ax.get_yticklabels()], [t.get_text() for t in ax.texts]
    (['a', 'b'], ['82.0', '85.2'])
    """
    if order not in ("sorted", "given"):
        raise ValueError(f"order is {order!r}; wanted 'sorted' or 'given'")
    colors = colors or {}
    rows = {label: _seeds(label, values, "row") for label, values in groups.items()}
    means = {label: math.fsum(values) / len(values) for label, values in rows.items()}
    shown = sorted(rows, key=lambda label: means[label]) if order == "sorted" else list(rows)[::-1]
    for y, label in enumerate(shown):
        hue = _color(None, label, colors.get(label))
        ax.plot(rows[label], [y] * len(rows[label]), "o", color=hue, markersize=4, alpha=0.5, clip_on=False)
        ax.plot([means[label]], [y], "o", color=hue, markersize=8.5, clip_on=False)
        ax.annotate(_written(means[label], digits), (max(rows[label]), y), xytext=(8, 0), textcoords="offset points",
                    va="center", fontsize=9, color=COLORS["ink"])  # fmt: skip
    ax.set_yticks(range(len(shown)), shown)
    ax.set(xlabel=xlabel, ylim=(-0.6, len(shown) - 0.4))
    ax.tick_params(axis="y", length=0)
    low, high = min(min(v) for v in rows.values()), max(max(v) for v in rows.values())
    span = (high - low) or abs(high) or 1.0
    ax.set_xlim(low - 0.06 * span, high + 0.16 * span)  # room for the value on the right
    return ax


def _seeds(label, values, what):
    """The values by seed as a list, also of a single number."""
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    if not values:
        raise ValueError(f"{what} {label!r} has no value; give a number or one for each seed")
    return values


def _written(value, digits):
    """A number with so many significant digits: 0.861, 82.0, 25,000."""
    if isinstance(value, int) or abs(value) >= 10**digits - 0.5:
        return f"{value:,.0f}"
    return f"{value:#.{digits}g}".rstrip(".")


def _named(name):
    """The colour of a name that the registry has, else None."""
    wanted = " ".join(str(name).replace("_", " ").split()).casefold()
    return _FOLDED.get(wanted)


def _color(ax, label, wanted):
    """The colour of a curve: the wanted one, else the label's own, else the cycle's next that is free."""
    if wanted is not None:
        return _named(wanted) or wanted
    if ax is None:  # rows and bars have their names beside them: "LSTM, last" may have the LSTM's colour
        return _named(label) or _named(label.partition(",")[0]) or COLORS["attention"]
    if _named(label):
        return _named(label)
    used = {line.get_color() for line in ax.lines}
    return next((hue for hue in CYCLE if hue not in used), CYCLE[len(ax.lines) % len(CYCLE)])


_FOLDED = {name.casefold(): hue for name, hue in {**COLORS, **ENTITIES}.items()}
