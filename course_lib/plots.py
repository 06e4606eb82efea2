"""Figures in one visual language: a colour means the same thing in every chapter.

Every function takes an `Axes`, draws on it and returns it, so that figures compose;
`axes` and `grid` make them, `course_lib.display.show` puts them into a notebook with
alt text and a caption. matplotlib and seaborn are imported where they are used.

The colours are Okabe and Ito's (2008), which colour-blind readers can tell apart.
"""

import math

COLORS = {
    "input": "#56B4E9",  # sky blue: tokens, values that come in
    "hidden": "#009E73",  # green: hidden state, embeddings
    "output": "#E69F00",  # orange: predictions
    "weight": "#CC79A7",  # purple: parameters
    "gradient": "#D55E00",  # vermilion: gradients, errors
    "attention": "#0072B2",  # blue: attention, probability, masks
    "muted": "#767676",  # grey: baselines, what is not in the foreground
    "ink": "#222222",  # text and outlines
}
CYCLE = [COLORS[k] for k in ("attention", "output", "hidden", "gradient", "weight", "input", "muted")]
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

    Example:
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

    Example:
        >>> axes(width=6, height=2).figure.get_size_inches().tolist()
        [6.0, 2.0]
    """
    return grid(width=width, height=height)[0, 0]


def lines(ax, series, xlabel, ylabel, colors=None, **style):
    """Draw named curves, each labelled in the legend.

    Args:
        ax: the `Axes` to draw on.
        series: {label: (x, y)}, x and y of equal length.
        xlabel: label of the x axis, with its unit.
        ylabel: label of the y axis, with its unit.
        colors: {label: colour or key of `COLORS`}; the others take the cycle's next colour.
        **style: passed on to `Axes.plot` (`marker`, `linestyle`, ...).

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if x and y of a curve differ in length.

    Example:
        >>> ax = lines(axes(), {"square": ([1, 2], [1, 4])}, "n", "n squared")
        >>> ax.lines[0].get_ydata().tolist()
        [1, 4]
    """
    colors = colors or {}
    for label, (x, y) in series.items():
        if len(x) != len(y):
            raise ValueError(f"curve {label!r} has {len(x)} x values and {len(y)} y values; they must be equally many")
        color = colors.get(label)
        ax.plot(x, y, label=label, color=COLORS.get(color, color), **style)
    ax.set(xlabel=xlabel, ylabel=ylabel)
    if len(series) > 1:
        ax.legend()
    return ax


def band(ax, x, runs, label, color, **style):
    """Draw the mean over seeds as a line and the range from least to greatest as a band.

    Args:
        ax: the `Axes` to draw on.
        x: (points,) positions.
        runs: (seeds, points) one curve for each seed.
        label: name in the legend.
        color: a key of `COLORS` or any matplotlib colour.
        **style: passed on to `Axes.plot`.

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if a run has not one value for each x.

    Example:
        >>> ax = band(axes(), [0, 1], [[1, 2], [3, 4]], "loss", "output")
        >>> ax.lines[0].get_ydata().tolist()
        [2.0, 3.0]
    """
    for run in runs:
        if len(run) != len(x):
            raise ValueError(f"a run has {len(run)} values for {len(x)} positions x; they must be equally many")
    columns = list(zip(*runs, strict=True))
    color = COLORS.get(color, color)
    ax.plot(x, [math.fsum(c) / len(c) for c in columns], label=label, color=color, **style)
    ax.fill_between(x, [min(c) for c in columns], [max(c) for c in columns], color=color, alpha=0.25, linewidth=0)
    return ax


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

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if the names do not fit the matrix, or `kind` is unknown.

    Example:
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
        colors: {label: colour or key of `COLORS`}; default blue.
        digits: significant digits of the written value.

    Returns:
        The same `Axes`.

    Raises:
        ValueError: if a group has no value.

    Example:
        >>> ax = bars(axes(), {"a": [1.0, 3.0], "b": 5}, "score")
        >>> [float(p.get_height()) for p in ax.patches]
        [2.0, 5.0]
    """
    colors = colors or {}
    for i, (label, values) in enumerate(groups.items()):
        values = list(values) if isinstance(values, (list, tuple)) else [values]
        if not values:
            raise ValueError(f"bar {label!r} has no value; give a number or one for each seed")
        mean = math.fsum(values) / len(values)
        color = colors.get(label, "attention")
        ax.bar(i, mean, color=COLORS.get(color, color), width=0.7)
        if len(values) > 1:
            ax.vlines(i, min(values), max(values), color=COLORS["ink"], linewidth=2)
        ax.annotate(f"{mean:.{digits}g}", (i, max(values)), ha="center", va="bottom", xytext=(0, 2),
                    textcoords="offset points")  # fmt: skip
    ax.set_xticks(range(len(groups)), list(groups))
    ax.set_ylabel(ylabel)
    ax.grid(axis="x", visible=False)
    ax.margins(y=0.12)
    return ax
