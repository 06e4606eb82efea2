"""Figures of chapter 04: backpropagation through time."""

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show

WINDOWS = [2, 4, 8, 10, 12, 16, 32]
RATES = [0.01, 0.03, 0.1, 0.3, 1.0]


FUNCTIONS = {"tanh": "hidden", "sigmoid": "attention", "ReLU": "output"}
ACTIVATION_RADII = [0.9, 1.5, 2.0, 4.0]
READOUT = {
    "rotation, frozen": "rotation, only the output layer learns",
    "rotation, trained": "rotation, everything learns",
    "default, frozen": "torch's, only the output layer learns",
    "default, trained": "torch's, everything learns",
}


def slopes():
    """The slopes of tanh, sigmoid and ReLU."""
    ax = plots.axes(width=5.4, height=2.7)
    a = torch.linspace(-5, 5, 401, dtype=torch.float64)
    curves = {
        "tanh": 1 - a.tanh() ** 2,
        "sigmoid": a.sigmoid() * (1 - a.sigmoid()),
        "ReLU": torch.where(a > 0, 1.0, 0.0).where(a.abs() > 1e-9, torch.nan),
    }
    for name, y in curves.items():
        ax.plot(a, y, color=plots.color(FUNCTIONS[name]))
    for name, x, y in (
        ("tanh: at most 1", -4.9, 0.62),
        ("sigmoid: at most 1/4", -4.9, 0.27),
        ("ReLU: 0 or 1", 2.2, 0.88),
    ):
        ax.text(x, y, name, color=plots.color(FUNCTIONS[name.split(":")[0]]))
    ax.set(xlabel="$a$, what stands inside", ylabel="slope", ylim=(-0.04, 1.08), xlim=(-5, 5))
    show(
        ax,
        alt="Three slopes against a. That of tanh is a bell of height 1 around 0, that of the sigmoid a bell of height "
        "one quarter, that of ReLU is 0 left of 0 and 1 right of it.",
        caption="What factor does the function put into each step back? At most 1 with tanh, and that only near 0; at "
        "most 1/4 with the sigmoid; 0 or 1 with ReLU. (The other factor is $W_{hh}$.)",
    )


def activations():
    """The recorded growth of a gradient on its way back, for three functions and four radii."""
    left, right = plots.grid(1, 2, height=3.3, width_ratios=[1, 1.15])[0]
    for name, hue in FUNCTIONS.items():
        rates = [ledger.values("bptt-activations", f"{name}, radius {radius}", "rate") for radius in ACTIVATION_RADII]
        plots.band(left, ACTIVATION_RADII, list(zip(*rates, strict=True)), name, hue, marker="o")
        runs = ledger.values("bptt-activations", f"{name}, radius 2.0", "norms")
        plots.band(right, range(31), [run[:31] for run in runs], name, hue)
    for ax in (left, right):
        ax.axhline(1, color=plots.COLORS["ink"], linestyle=":", linewidth=1.2)
        ax.set_yscale("log")
        plots.direct_labels(ax)
    left.set_yticks([0.25, 0.5, 1, 2, 4], ["1/4", "1/2", "1", "2", "4"])
    left.set_yticks([], minor=True)
    left.text(3.95, 1.03, "explodes", fontsize=9, va="bottom", ha="right")
    left.text(3.95, 0.97, "vanishes", fontsize=9, va="top", ha="right")
    left.set(xlabel="radius", ylabel="factor for each step back", ylim=(0.16, 5))
    right.set(xlabel="steps back", ylabel="gradient, relative to the last step", title="radius 2")
    show(
        left,
        alt="Left: factor per step against radius, 0.9 to 4. At 0.9 all three lie below 1. Tanh and ReLU are above 1 "
        "from 1.5 on, ReLU higher; the sigmoid stays below 1. Right: at radius 2, over 30 steps, ReLU rises about five "
        "powers of ten, tanh about two, the sigmoid falls by more than ten.",
        caption="Where does a gradient vanish, where does it explode? At radius 0.9 it vanishes with all three. At "
        "1.5, 2 and 4 it explodes with tanh and faster with ReLU, while the sigmoid lets it vanish even at 4. (Small "
        "inputs; mean and range of three seeds.)",
    )


def readout():
    """The recorded accuracy with windows as long as the lag: output layer alone, or everything."""
    ax = plots.axes(height=2.5)
    runs = {label: ledger.values("bptt-readout", name, "accuracy") for name, label in READOUT.items()}
    plots.dots(ax, runs, "accuracy (lag 6, windows of 6)")
    ax.axvline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
    ax.set_xlim(0, 1.16)
    show(
        ax,
        alt="Four rows of dots. Rotation with only the output layer learning: about 0.96. The other three lie between "
        "0.23 and 0.35, near guessing (dashed, 0.2).",
        caption="What can be learned about a lag that fits into no window? The output layer can read it from a frozen "
        "rotation, which holds it anyway. Trained through the windows, the rotation is lost. (A dot is a seed; dashed: "
        "guessing.)",
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
    plots.direct_labels(panels[1])
    show(
        panels[0],
        alt="Cosine and norm ratio against window, both rising towards 1. The untrained network's begin at about 0.9 "
        "and 0.83; the trained one's at a cosine of about 0.25 and a ratio of about 0.1. Its cosine comes close to 1 "
        "at windows of 16 to 32; its ratio is about 0.88 at 32 and 0.97 at 64.",
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
    plots.direct_labels(ax)
    show(
        ax,
        alt="Accuracy against window. Up to a window of 8, the lag, both curves lie near guessing. From 10 on the "
        "carried state is above 0.9. The zeroed state rises later and unevenly, and meets it at 32.",
        caption="How long must a window be to learn lag 8? Longer than the lag: with w of 8 or "
        "less the answer and its cause never share a window. Carrying the state lets two extra steps (w = 10) "
        "suffice. Zeroing it wastes the first 8 answers of every window, and the network never practises on a running "
        "state; we have not separated the two. (Why the zeroed state does worse at 16 than "
        "at 12 we cannot say: there are only three seeds, and they differ widely.)",
    )


def clipping():
    """The recorded accuracy by learning rate, and a run's gradient norms, with and without clipping."""
    panels = plots.grid(1, 2, height=3.2, width_ratios=[1, 1.15])[0]
    for name, aside in {"not clipped": 0.93, "clipped at 1": 1.07}.items():
        runs = [ledger.values("bptt-clipping", f"{name}, rate {rate:g}", "accuracy") for rate in RATES]
        xs = [aside * rate for rate in RATES]
        panels[0].plot(xs, [sum(run) / len(run) for run in runs], color=plots.color(name), alpha=0.6)
        for x, run in zip(xs, runs, strict=True):
            panels[0].plot([x] * len(run), run, "o", color=plots.color(name), markersize=4.5, alpha=0.7)
        steps = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "step")[0]
        norms = ledger.curves("bptt-clipping", f"{name}, rate 0.3", "norm")[0]
        panels[1].plot(steps, norms, color=plots.color(name), label=name, linewidth=1.3)
    panels[0].axhline(1 / 5, color=plots.COLORS["muted"], linestyle="--")
    panels[0].text(0.009, 0.1, "guessing", color=plots.COLORS["muted"], fontsize=9)
    panels[0].text(0.3, 1.03, "clipped at 1", color=plots.color("clipped at 1"), fontsize=9, ha="center")
    panels[0].text(0.22, 0.33, "not\nclipped", color=plots.color("not clipped"), fontsize=9, ha="center")
    panels[0].set(xscale="log", xlabel="learning rate (log scale)", ylabel="accuracy", ylim=(0, 1.12))
    plots.direct_labels(panels[1])
    panels[1].axhline(1.0, color=plots.COLORS["ink"], linestyle=":")
    panels[1].set(yscale="log", xlabel="step", ylabel="norm before clipping (log)", title="rate 0.3, first seed")
    show(
        panels[0],
        alt="Left: accuracy by learning rate, a dot for each seed. Clipped rises to 1 at 0.3 and falls at 1; not "
        "clipped stays below a half on average everywhere. Right: gradient norm over 600 steps at rate 0.3, the "
        "largest of every six: without clipping it stays near 5 after early spikes, with clipping it falls a "
        "hundredfold.",
        caption="What does clipping buy? At rate 0.3 all five seeds solve the task; without clipping, no rate does it "
        "for more than one (left: a dot is a seed, the line their mean). Right: the largest norm in every six steps, "
        "first seed. After early spikes the unclipped run's gradient stays long, and it does not recover within these "
        "600 steps. Clipped, spikes still come, but each moves the weights by a bounded step.",
    )
