"""Figures of chapter 04: backpropagation through time."""

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show

RADII = {0.9: "input", 1.0: "hidden", 1.1: "output", 1.5: "gradient"}
WINDOWS = [2, 4, 8, 10, 12, 16, 32]
RATES = [0.01, 0.03, 0.1, 0.3, 1.0]


def gradient_by_lag():
    """The recorded norms of a gradient by lag, for rotations times four radii, linear and with tanh."""
    panels = plots.grid(1, 2, height=3.3, sharey=True)[0]
    for ax, nonlinearity in zip(panels, ["linear", "tanh"], strict=True):
        for radius, color in RADII.items():
            runs = ledger.values("bptt-lag", f"{nonlinearity}, orthogonal, radius {radius}", "norms")
            plots.band(ax, range(len(runs[0])), runs, f"radius {radius}", color)
        ax.set(yscale="log", title=nonlinearity, xlabel="lag (steps back)", ylim=(1e-7, 1e7))
    panels[0].set_ylabel("norm / norm at lag 0 (log scale)")
    panels[0].legend(loc="lower left", fontsize=9)
    show(
        panels[0],
        alt="Gradient norm against lag on a log scale, for radii 0.9 to 1.5. Linear: four straight lines, falling for "
        "0.9, level for 1.0, rising for 1.1 and 1.5. Tanh: all lines are lower; 0.9, 1.0 and 1.1 fall, 1.5 rises.",
        caption="How much of a loss arrives k steps earlier? In a linear network the radius to the power k. Tanh takes "
        "its share at every step: for these rotations the gradient now shrinks at radius 1 and 1.1, and yet at 1.5 it "
        "still explodes. (The curves bend up at the end, which is the sequence's beginning: its states still grow from "
        "0, where tanh' is 1.)",
    )


def gradient_by_time_and_depth(maps):
    """Norms of a gradient by layer and step: `maps` is {start: (layers, T)}."""
    panels = plots.grid(2, 1, height=4.6, sharex=True)[:, 0]
    for ax, (start, norms) in zip(panels, maps.items(), strict=True):
        T = norms.shape[1]
        shares = (norms / norms.amax(dim=1, keepdim=True)).flip(0)  # top layer in the top row
        ticks = [str(t) if t % 5 == 0 else "" for t in range(1, T + 1)]
        plots.heatmap(ax, shares, ticks, ["4 (top)", "3", "2", "1"], "of the row's largest", ylabel="layer")
        ax.set_title(f"$W_{{hh}}$: {start} initialisation")
    panels[1].set_xlabel("step t (the loss is at step 40)")
    show(
        panels[0],
        alt="Two heat maps of gradient norm, four layers by 40 steps. Default initialisation: colour only in the last "
        "ten steps or so. Orthogonal: colour fades slowly over 20 to 30 steps, and reaches further back in lower "
        "layers.",
        caption="Where does the loss of step 40 arrive? With the default initialisation only in the last few steps, in "
        "every layer. With an orthogonal one it fades slowly, and lower layers hear it from further back (their "
        "largest lies some steps before 40): more paths lead there.",
    )


def truncation_bias():
    """The recorded cosine and length of truncated gradients against the full ones, by window."""
    panels = plots.grid(1, 2, height=3.0)[0]
    ylabels = {"cosine": "cosine with the full gradient", "norm_ratio": "norm ratio to the full gradient"}
    for ax, (metric, ylabel) in zip(panels, ylabels.items(), strict=True):
        for name in ("untrained", "trained"):
            windows = ledger.values("bptt-truncation", f"bias, {name}", "windows")[0]
            runs = ledger.values("bptt-truncation", f"bias, {name}", metric)
            plots.band(ax, windows, runs, name, marker="o", markersize=4)
        ax.set_xscale("log", base=2)
        ax.set(xlabel="window w (steps, log scale)", ylabel=ylabel, ylim=(0, 1.08))
        ax.set_xticks([2, 4, 8, 16, 32, 64], [2, 4, 8, 16, 32, 64])
    panels[0].legend(loc="lower right")
    show(
        panels[0],
        alt="Cosine and norm ratio against window, both rising to 1. The untrained network's curves are near 1 from "
        "the start; the trained one's begin at a cosine of about 0.25 and a ratio of about 0.1, and reach 1 at windows "
        "of 32 and 64.",
        caption="How far is a truncated gradient from the full one? In a network that remembers (trained), the "
        "gradients of short windows point elsewhere and are several times too short. In an untrained one they differ "
        "much less: its far gradients have vanished anyway.",
    )


def learned_by_window():
    """The recorded accuracy of a memory task of lag 8 by the window of training."""
    ax = plots.axes(height=3.2)
    for name in ("carried", "zeroed"):
        runs = [ledger.values("bptt-truncation", f"{name}, window {w}", "accuracy") for w in WINDOWS]
        plots.band(ax, WINDOWS, list(zip(*runs, strict=True)), f"state {name}", name, marker="o")
    ax.axhline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
    ax.text(26, 0.225, "guessing", color=plots.COLORS["muted"])
    ax.axvline(8, color=plots.COLORS["ink"], linestyle=":")
    ax.text(8.2, 0.05, "lag 8", color=plots.COLORS["ink"])
    ax.set_xscale("log", base=2)
    ax.set_xticks(WINDOWS, WINDOWS)
    ax.set(xlabel="window w (steps, log scale)", ylabel="accuracy on a stream without cuts", ylim=(0, 1.05))
    ax.legend(loc="upper left")
    show(
        ax,
        alt="Accuracy against window. Up to a window of 8, the lag, both curves lie near guessing. From 10 on the "
        "carried state is above 0.9. The zeroed state rises later and unevenly, and meets it at 32.",
        caption="Which lag can truncated training learn? One that fits into a window. With w of 8 or less the answer "
        "and its cause never share a window. Carrying the state lets two extra steps (w = 10) suffice; zeroing it "
        "wastes the first 8 answers of every window.",
    )


def clipping():
    """The recorded accuracy by learning rate, and a run's gradient norms, with and without clipping."""
    panels = plots.grid(1, 2, height=3.2, width_ratios=[1, 1.15])[0]
    for name in ("not clipped", "clipped at 1"):
        runs = [ledger.values("bptt-clipping", f"{name}, rate {rate:g}", "accuracy") for rate in RATES]
        plots.band(panels[0], RATES, list(zip(*runs, strict=True)), name, marker="o")
        steps = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "step")[0]
        norms = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "norm")[0]
        panels[1].plot(steps, norms, color=plots.color(name), label=name, linewidth=1.3)
    panels[0].axhline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
    panels[0].text(0.01, 0.13, "guessing", color=plots.COLORS["muted"], fontsize=9)
    panels[0].set(xscale="log", xlabel="learning rate (log scale)", ylabel="accuracy", ylim=(0, 1.05))
    panels[1].legend(loc="upper right", fontsize=9)
    panels[1].axhline(1.0, color=plots.COLORS["ink"], linestyle=":")
    panels[1].set(yscale="log", xlabel="step", ylabel="norm before clipping (log)", title="rate 0.3, first seed")
    show(
        panels[0],
        alt="Left: accuracy by learning rate. Clipped rises to 1 at 0.3 and falls at 1; not clipped stays below a half "
        "on average everywhere. Right: gradient norm over 600 steps at rate 0.3: without clipping it stays near 5 "
        "after early spikes, with clipping it falls a hundredfold.",
        caption="What does clipping buy? A learning rate at which every seed solves the task in time; without it there "
        "is none (left: mean and range of five seeds). The gradients before clipping still spike (right), but each "
        "spike moves the weights by a bounded step.",
    )
