"""The figures of chapter 10: what it costs."""

import math

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show


def operation_shares(quadratic, D):
    """Draw which part of an encoder layer does the work, from {T: share of the quadratic part}; F = 4D."""
    lengths, shares = list(quadratic), list(quadratic.values())
    parts = {
        "quadratic part": ([100 * share for share in shares], "attention weight"),
        "feed-forward": ([100 * (1 - share) * 2 / 3 for share in shares], "feed-forward"),
        "projections": ([100 * (1 - share) / 3 for share in shares], "projections"),
    }
    ax = plots.lines(
        plots.axes(height=3.1),
        {name: (lengths, percent) for name, (percent, _) in parts.items()},
        "length T (positions, log scale)",
        "share of the FLOPs (%)",
        colors={name: color for name, (_, color) in parts.items()},
        direct=True,
        marker="o",
        markersize=4,
    )
    ax.set_xscale("log", base=2)
    ax.set_ylim(0, 100)
    for T, name in ((D, "T = D"), (6 * D, "T = 6 D")):
        ax.axvline(T, color=plots.COLORS["muted"], linestyle=":")
        ax.annotate(name, (T, 93), xytext=(4, 0), textcoords="offset points", fontsize=9)
    show(
        ax,
        alt="Shares of an encoder layer's FLOPs against T from 16 to 8192 at D = 512. The quadratic part is "
        "near 0 at the left, 14 % at T = D, 50 % at T = 6 D and 73 % at the right; feed-forward and projections "
        "fall, always two to one.",
        caption="Which part of an encoder layer takes the FLOPs (D = 512, F = 4D)? Up to T = 4D the "
        "feed-forward network has the largest share, beyond it the quadratic part, which reaches half at T = 6D.",
    )


def gradient_by_distance(by_seed):
    """Draw the gradient against the distance from {layer: one list of norms for each seed}, not normalised."""
    ax = plots.axes(height=3.6)
    colors = {"attention": "self-attention", "LSTM, forget bias 3": "LSTM", "CNN, 8 layers": "CNN"}
    for name, runs in by_seed.items():
        runs = [[value if value > 1e-9 else math.nan for value in run] for run in runs]
        length = min(next((i for i, v in enumerate(run) if v != v), len(run)) for run in runs)
        plots.band(
            ax,
            range(length),
            [run[:length] for run in runs],
            name,
            colors.get(name),
            linestyle="--" if "bias" in name else "-",
        )
    ax.set_yscale("log")
    ax.set(xlabel="distance d (steps)", ylabel="norm of the gradient (log scale)", ylim=(1e-9, 10))
    plots.direct_labels(ax)
    show(
        ax,
        alt="Norm of the gradient against distance on a log scale. RNN and LSTM start at 1 to 4 and fall steeply, to "
        "1e-9 within 25 to 40 steps; an LSTM with a forget bias of 3 falls only to about 0.2 and stays there; the CNN "
        "of 8 layers rises, falls and ends at 16 steps; attention drops from 0.3 at d = 0 to 0.03 at d = 1 and stays "
        "level to 127.",
        caption="How much arrives from d steps back in an untrained layer? Close by, most arrives in the RNN and the "
        "LSTM, but as torch initialises them they forget exponentially; with its gates opened the LSTM keeps more "
        "than a tenth over these 128 steps. The CNN's window ends at 8 · (3 − 1) = 16 steps. Attention without "
        "positions passes on little from each earlier input, but on average as much from far as from near; at d = 0, "
        "the word that asks, it passes on more. (Lines are cut at 1e-9; only the CNN's gradient is exactly 0 beyond "
        "its end.)",
    )


# Name in the records: (colour of, line style).
TIMED = {
    "RNN, loop": ("RNN", "--"),
    "RNN, fused": ("RNN", "-"),
    "LSTM, fused": ("LSTM", "-"),
    "CNN": ("CNN", "-"),
    "attention, math": ("self-attention", "--"),
    "attention, sdpa": ("self-attention", "-"),
}


def _times(experiment, names):
    """Draw the recorded time of a training step against the length, from {name in the records: what is written}."""
    ax = plots.axes(height=3.8)
    for name, label in names.items():
        color, linestyle = TIMED[name]
        lengths = ledger.values(experiment, f"time, {name}", "T")[0]
        runs = ledger.values(experiment, f"time, {name}", "seconds")
        runs = [[1000 * seconds for seconds in run] for run in runs]
        plots.band(ax, lengths, runs, label, color, linestyle=linestyle, marker="o", markersize=3)
    ax.set_xscale("log", base=2)
    ax.set_yscale("log")
    ax.set_xticks(lengths, lengths)
    ax.set(xlabel="length T (steps, log scale)", ylabel="time of a training step (ms, log scale)")
    plots.direct_labels(ax)
    return ax


def time_by_length(experiment):
    """Draw the recorded times of the LSTM and of attention on two paths against the length."""
    names = {"LSTM, fused": "LSTM", "attention, math": "attention, math", "attention, sdpa": "attention, sdpa"}
    show(
        _times(experiment, names),
        alt="Time of a training step against T from 16 to 1024, both axes logarithmic. The LSTM bends up to slope 1, "
        "from 0.9 to about 27 ms; attention starts below it, sdpa crosses it near T = 97 and ends at about 170 ms, "
        "math crosses it near T = 75 and ends at about 470 ms.",
        caption="Which layer is faster on this machine? Attention while the text is short, the LSTM when it is long; "
        "the lines of attention cross it between T = 64 and 128.",
    )


def time_of_all(experiment):
    """Draw the recorded times of all six layers and kernels against the length."""
    show(
        _times(experiment, {name: name for name in TIMED}),
        alt="Time of a training step against T, both axes logarithmic. CNN lowest throughout; RNNs and LSTM bend up "
        "to slope 1, the LSTM below the RNN from T = 32 on; attention starts below them and rises "
        "towards slope 2, math above sdpa.",
        caption="Which layer is fastest on this machine? At every length the convolution, one layer that sees 3 "
        "places. Attention is ahead of the recurrent layers on short sequences and behind on long ones; where its "
        "line crosses another is the crossover in time, a different one for each of them.",
    )


def time_and_memory(experiment):
    """Draw recorded time and peak memory of attention against the length, on the math path and with the kernel."""
    panels = plots.grid(1, 2, height=3.3)[0]
    metrics = {
        "seconds": ("time of a training step (ms)", 1000),
        "peak_mb": ("peak memory beside the inputs (MB)", 1),
    }
    for ax, (metric, (ylabel, unit)) in zip(panels, metrics.items(), strict=True):
        for backend, linestyle in {"math": "--", "sdpa": "-"}.items():
            lengths = ledger.values(experiment, backend, "T")[0]
            runs = [[max(unit * v, 0.05) for v in run] for run in ledger.values(experiment, backend, metric)]
            plots.band(ax, lengths, runs, backend, "self-attention", linestyle=linestyle, marker="o", markersize=4)
        ax.set_xscale("log", base=2)
        ax.set_yscale("log")
        ax.set_xticks(lengths, lengths)
        ax.set(xlabel="length T (positions)", ylabel=ylabel)
        plots.direct_labels(ax)
    show(
        panels[0],
        alt="Two log-log panels against T from 64 to 2048. Left, time: both rise, math ever steeper, sdpa several "
        "times below it at the right. Right, peak memory: math rises with slope 2 to several hundred megabytes, "
        "sdpa with slope 1 to about twenty.",
        caption="What does the kernel save on this machine (causal, B = 2, H = 4, K = 64, one core)? At "
        "T = 2048 more than half of the time, and more than nine tenths of the peak memory: the math path's peak grows "
        "like T squared.",
    )
