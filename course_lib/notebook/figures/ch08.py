"""The figures of chapter 08: position."""

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def bits_and_waves(table):
    """Draw the bits of the positions above the sinusoidal table (T, D), positions to the right in both."""
    from matplotlib.colors import LinearSegmentedColormap

    positions = torch.arange(len(table))
    count = (len(table) - 1).bit_length()
    bits = (positions >> torch.arange(count)[:, None]) & 1  # (number of bits, T)
    axes = plots.grid(2, 1, height=4.6, sharex=True, height_ratios=(1, 2.2))[:, 0]
    ends = [plots.COLORS["gradient"], "#FFFFFF", plots.COLORS["attention"]]
    colours = LinearSegmentedColormap.from_list("diverging", ends)
    for ax, rows, ylabel in ((axes[0], bits, "bit"), (axes[1], table.T, "column")):
        image = ax.imshow(rows, aspect="auto", cmap=colours, vmin=-1, vmax=1, interpolation="nearest")
        ax.set(ylabel=ylabel)
        ax.grid(visible=False)
    axes[0].set_title("binary numbers (bit 0: the last)")
    axes[0].set_yticks(range(0, count, 2))
    axes[1].set_title("sines and cosines")
    axes[1].set_xlabel("position (tokens)")
    axes[1].figure.colorbar(image, ax=list(axes), label="entry")
    show(
        axes[0],
        alt="Two heat maps, positions to the right. Above, seven bits: the first row alternates at every position, "
        "each further one half as often, the last changes once, at 64. Below, the 32 columns of the table: the first "
        "ones flicker, the last hardly change over 100 positions.",
        caption="Does each position have its own column of colours? Yes, in both. Bits jump from 0 to 1 and back; the "
        "table's waves do the same smoothly, and in pairs. The first ones distinguish neighbours, those around 10 "
        "distant regions; from about 24 on hardly anything changes within 100 positions.",
    )


def clocks(table, clocks):
    """Draw the two columns of some clocks of the sinusoidal table (T, D), a dot at each position."""
    panels = plots.grid(1, len(clocks), height=2.4, sharey=True)[0]
    for ax, n in zip(panels, clocks, strict=True):
        for name, column, style, colour in (("sine", 2 * n, "-", "attention"), ("cosine", 2 * n + 1, "--", "gradient")):
            label = f"column {column} ({name})"
            ax.plot(table[:, column], style, marker="o", markersize=3.5, color=plots.COLORS[colour], label=label)
        ax.set(title=f"clock {n}", xlabel="position (tokens)", ylim=(-1.15, 1.75), yticks=(-1, 0, 1))
        ax.legend(loc="upper right", ncol=2, fontsize=8, columnspacing=1.0, handlelength=1.8)
    panels[0].set_ylabel("entry")
    show(
        panels[0],
        alt=f"Two panels: sine and cosine over {len(table)} positions, a dot at each. The first clock goes round "
        "about three times, the second makes not a third of one round.",
        caption="What does a pair of columns look like? A wave and the same wave a quarter of a round ahead: together "
        "they say where the hand stands. The slow clock tells apart positions that look alike on the fast one.",
    )


def shift(matrix):
    """Draw the matrix that shifts the rows of the table by three positions."""
    names = range(len(matrix))
    ax = plots.axes(width=4.6, height=3.6)
    plots.heatmap(
        ax, matrix, names, names, "entry", "diverging", xlabel="dimension of P[i + 3]", ylabel="dimension of P[i]"
    )
    show(
        ax,
        alt="An 8 by 8 matrix: four 2 by 2 blocks along the diagonal, zeros elsewhere. The later the block, the "
        "more it resembles the identity.",
        caption="What does a shift by 3 do to the table? It turns each pair by its own angle: a rotation in every "
        "block, nearly none for the slow clocks.",
    )


def products(matrix, starts):
    """Draw the dot products of the table's rows with the rows around some positions."""
    steps = torch.arange(-60, 61)
    ax = plots.lines(
        plots.axes(height=2.8),
        {f"from position {i}": (steps, matrix[i, i + steps]) for i in starts},
        "distance (tokens)",
        "dot product",
    )
    for line, style, width in zip(ax.lines, ("-", "--", ":"), (7, 4, 1.6), strict=True):
        line.set(linestyle=style, linewidth=width)  # three widths, so that all three can be seen
    ax.set_ylim(bottom=23)  # room for the names at the ends
    plots.direct_labels(ax)
    show(
        ax,
        alt="Three curves of the dot product over the distance from -60 to 60, from three positions; they coincide: "
        "a peak of 64 at distance 0 that falls to both sides with ripples.",
        caption="Does the product depend on where we start? No: three curves lie on each other. It falls with "
        "distance, at first, and it cannot tell before from after: the curve is symmetric.",
    )


def relative_biases(biases):
    """Draw the bias of each head (H, T, S)."""
    axes = plots.grid(1, len(biases), height=3.0)[0]
    names = range(biases.shape[-1])
    for head, (ax, bias) in enumerate(zip(axes, biases, strict=True)):
        plots.heatmap(ax, bias, names, names, "bias", "diverging", xlabel="key j", ylabel="query i")
        ax.set_title(f"head {head}")
    show(
        axes[0],
        alt="Two 8 by 8 matrices of biases, constant along diagonals. Head 0 is highest one place left of the "
        "diagonal; head 1 rises from left to right up to a distance of 4 and is constant beyond.",
        caption="What can such a table say? Head 0 (set by hand) favours the word before; head 1 what comes later. "
        "Nothing changes along a diagonal, or beyond the distance M = 4.",
    )


def turned(rope, query, key, places):
    """Draw a query and a key (1, 2) as arrows, turned to each of the places (i, j), and their product."""
    axes = plots.grid(1, len(places), height=3.4)[0]
    for ax, (i, j) in zip(axes, places, strict=True):
        for vector, place, name in ((query, i, "query"), (key, j, "key")):
            arrow = {"arrowstyle": "-|>", "color": plots.color(name)}
            x0, y0 = vector[0].tolist()
            x1, y1 = rope.rotate(vector, offset=place)[0].tolist()
            ax.annotate("", (x0, y0), (0, 0), arrowprops=arrow | {"alpha": 0.35, "lw": 1.6, "ls": "--"})
            ax.annotate("", (x1, y1), (0, 0), arrowprops=arrow | {"lw": 2.2})
            label = f"{name} at {place}"
            ax.text(1.18 * x1, 1.18 * y1, label, ha="center", va="center", color=plots.color(name))
        score = (rope.rotate(query, i) * rope.rotate(key, j)).sum().item()
        ax.set_title(f"query at {i}, key at {j}: product {score:.3f}")
        ax.set(xlim=(-1.6, 1.6), ylim=(-1.5, 1.5), aspect="equal")
        ax.set(xlabel="first of the pair", ylabel="second of the pair")
    show(
        axes[0],
        alt="Two planes with two arrows each. Left, the query at position 1 and the key at position 0; right, the "
        "same at 4 and 3: both arrows are turned by three more radians, the angle between them is the same.",
        caption="What does moving both by three places change? Both arrows turn together (dashed: unturned). The "
        "angle between them, and the product, stay.",
    )


def alibi(slopes, bias):
    """Draw the factor that each slope leaves on a weight by distance, and the bias (T, S) of one head."""
    axes = plots.grid(1, 2, height=3.0, width_ratios=(1.2, 1))[0]
    back = torch.arange(0, 65)
    curves = {f"1/{round(1 / m)}": (back, (-m * back).exp()) for m in slopes.tolist()}
    plots.lines(axes[0], curves, "distance (tokens)", "factor on the weight", direct=True)
    axes[0].set_title("by slope $m$")
    names = range(bias.shape[-1])
    plots.heatmap(axes[1], bias, names, names, "bias", "diverging", xlabel="key j", ylabel="query i")
    axes[1].set_title("head 2 of 8")
    show(
        axes[0],
        alt="Left: four curves that fall from 1 with distance, the steepest is near 0 after 8 tokens, the flattest "
        "still above 0.7 after 64. Right: an 8 by 8 matrix, 0 on the diagonal, more and more negative away from it.",
        caption="How far does a head look? Steep heads a few tokens, flat ones hundreds. The bias (right, the "
        "second head) falls alike to both sides of the diagonal, in every row.",
    )


def extrapolation(experiment, schemes, tasks):
    """Draw the recorded accuracy by length, one panel a task: `tasks` is {name: accuracy by chance}."""
    axes = plots.grid(1, len(tasks), height=3.7, sharey=True)[0]
    for ax, (task, chance) in zip(axes, tasks.items(), strict=True):
        for name in schemes:
            places = ledger.values(experiment, f"{task}, {name}", "places")[0]
            runs = ledger.values(experiment, f"{task}, {name}", "accuracy")
            plots.band(ax, places, runs, name, marker="o", markersize=3)
        ax.axvline(20, color=plots.COLORS["ink"], linewidth=1, linestyle="--")
        ax.axhline(chance, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
        ax.set(title=task, xlabel="length of the sequence (tokens)", ylim=(0, 1.04))
        plots.direct_labels(ax)
    axes[0].set_ylabel("accuracy at its last five places")
    show(
        axes[0],
        alt="Accuracy by length for six schemes on two tasks, a band over three seeds, with the training length 20 "
        "marked by a dashed line and chance by a dotted one.",
        caption="Which scheme goes on beyond the training length (dashed line; dotted: chance)? No scheme on both "
        "tasks without loss. Three seeds: line, mean; band, least to greatest.",
    )
