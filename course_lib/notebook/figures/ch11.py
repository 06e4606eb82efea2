"""Figures of chapter 11: which runs fail, what their first steps do, and what each trick changes."""

from statistics import median

from course_lib.notebook import ledger, plots
from course_lib.notebook.diagrams import arrow, box, canvas, label
from course_lib.notebook.display import show
from course_lib.optim import rectification

RESIDUALS = {"post-ln": "Post-LN", "pre-ln": "Pre-LN", "rezero": "ReZero"}


def deeper():
    """The puzzle of the chapter: two layers reverse a word; what do twelve do?"""
    ax = canvas(14.4, 4.4)
    for y, layers, written in ((3.1, 2, "noipmahc"), (1.3, 12, "????????")):
        box(ax, 1.75, y, " ".join("champion"), kind="input", w=2.9, h=0.8, size=12)
        first = 7.2 - 0.5 * (layers - 1) / 2
        arrow(ax, (3.25, y), (first - 0.27, y))
        for i in range(layers):
            box(ax, first + 0.5 * i, y, "", kind="hidden", w=0.36, h=1.1)
        arrow(ax, (14.4 - first + 0.27, y), (11.15, y))
        box(ax, 12.65, y, " ".join(written), kind="output", w=2.9, h=0.8, size=12)
        label(ax, 7.2, y + 0.85, f"{layers} layers", size=10.5, weight="bold")
    show(
        ax,
        alt="Two rows. Above: the letters of champion go into a stack of 2 layers, and noipmahc comes out. Below: the "
        "same letters go into a stack of 12 layers, and eight question marks come out.",
        caption="Two layers learn to write a word backwards. What do twelve learn, trained in the same way?",
    )


def cures(losses, blind):
    """Loss by step of 12 layers unchanged and with each of three cures; `blind`: of a guess."""
    ax, steps = plots.axes(height=3.3), len(next(iter(losses.values())))
    ax.plot([1, steps], [blind, blind], "--", color=plots.COLORS["muted"], linewidth=1)
    series = {name: (range(1, len(curve) + 1), curve) for name, curve in losses.items()}
    colors = dict(zip(losses, ("Post-LN", "ink", "Post-LN, warm-up", "Pre-LN"), strict=True))
    plots.lines(ax, series, "optimizer step", "training loss (nats per letter)", colors, direct=True)
    show(
        ax,
        alt="Four loss curves over 120 steps, all of 12 layers. Unchanged: it stays on the dashed line at ln 16. With "
        "a tenth of the rate and with a warm-up it falls to a little above 2; with the warm-up it rises again for a "
        "while around step 60. With Pre-LN it falls to near 0.",
        caption="What gets the 12 layers going? A tenth of the rate, a warm-up (its loss rises again as the rate nears "
        "its full value, at step 60), and, far ahead of both, Pre-LN. Dashed, behind the red line: a blind guess "
        "among 16 letters.",
    )


def gradient_by_layer(lengths):
    """Median and quartiles, over the draws, of the gradient's length in each layer: {name: (draws, layers)}."""
    ax = plots.axes(height=2.8)
    for name, draws in lengths.items():
        columns = [sorted(column) for column in zip(*draws, strict=True)]
        layers, color, quarter = range(1, len(columns) + 1), plots.color(name), len(draws) // 4
        ax.plot(layers, [median(c) for c in columns], "o-", markersize=4, color=color, label=name)
        ax.fill_between(
            layers, [c[quarter] for c in columns], [c[-1 - quarter] for c in columns], color=color, alpha=0.2, lw=0
        )
    ax.set(xlabel="layer (12 is nearest to the loss)", ylabel="length of the gradient", ylim=(0, None))
    ax.set_xticks(list(layers))
    plots.direct_labels(ax)
    show(
        ax,
        alt="Length of the gradient in each of 12 layers, median of 20 untrained models with quartiles. The line of "
        "Post-LN is nearly level.",
        caption="Is the gradient of the lower layers too small, before training? No. Line: median of 20 models; "
        "band: quartiles.",
    )


def jacobian_norm(lengths, centred, shifted):
    """Largest singular value of LayerNorm's Jacobian by the length of x, for x with mean 0 and with another mean."""
    ax = plots.axes(height=3.0)
    law, muted = "law: $\\sqrt{D}\\, /\\, \\Vert x \\Vert$", plots.COLORS["muted"]
    ax.plot(lengths, [gain["law"] for gain in centred], color=muted, label=law)
    for gains, marker, kind, name in (
        (centred, "o", "attention", "x with mean 0"),
        (shifted, "s", "output", "x with entries around 1"),
    ):
        found = [gain["largest"] for gain in gains]
        ax.plot(lengths, found, marker, color=plots.COLORS[kind], label=name)
    ax.set(xscale="log", yscale="log", xlabel="length of x", ylabel="largest singular value")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Largest singular value of LayerNorm's Jacobian against the length of x on logarithmic axes. Dots for x "
        "with mean 0 lie on the falling line of the law; squares for x with another mean lie above it, parallel.",
        caption="Does the law hold? On the line for x with mean 0. With another mean the gain is larger: the part of "
        "the length that is mean does not count.",
    )


def _draw_steps(ax, by_training, key, log=True):
    """Draw one measurement of the first 40 steps, a line for each run: {name: one {step: values} a seed}."""
    for name, runs in by_training.items():
        for i, run in enumerate(runs):
            values, label = [measured[key] for measured in run.values()], None if i else name
            ax.plot(list(run), values, "o-", markersize=2.5, linewidth=1.4, color=plots.color(name), label=label)
    ax.set_xscale("symlog", linthresh=1)
    ax.set_xticks([0, 1, 3, 10, 40], ["0", "1", "3", "10", "40"])
    ax.set_xlabel("steps taken")
    if log:
        ax.set_yscale("log")


def one_step(change_by_rate):
    """Change of the loss on other words by one step of Adam, against its rate: {rate: one value a seed}."""
    ax, rates = plots.axes(height=2.8), list(change_by_rate)
    ax.axhline(0, color=plots.COLORS["muted"], linewidth=1, linestyle="--")
    for run in zip(*change_by_rate.values(), strict=True):
        ax.plot(rates, run, "o-", markersize=4, linewidth=1, color=plots.color("Post-LN"), alpha=0.7)
    ax.set(xscale="log", xlabel="learning rate of the one step", ylabel="change of the loss (nats)")
    show(
        ax,
        alt="Change of the loss by one step of Adam against the learning rate from 0.00001 to 0.01, on a logarithmic "
        "axis, for five seeds. All lines start just below 0 and dip; above 0.001 they rise, and at 0.01 all lie above "
        "0.",
        caption="How far may the first step go? The shortest changes next to nothing; at the full rate, 0.01, all five "
        "seeds are worse after the step than before.",
    )


def way_down(ways):
    """Length of the gradient on its way down through the norms and additions: {steps taken: list of lengths}."""
    ax = plots.axes(height=3.2)
    for (step, way), alpha in zip(ways.items(), (0.4, 0.6, 0.8, 1.0), strict=True):
        name = "before training" if step == 0 else f"after {step} step{'s' * (step > 1)}"
        ax.plot(range(len(way)), way, color=plots.color("Post-LN"), alpha=alpha, label=name)
        passed = range(1, len(way), 2)  # a norm, then an addition
        ax.plot(passed, [way[i] for i in passed], ".", markersize=5, color=plots.color("Post-LN"), alpha=alpha)
    ax.set(yscale="log", xlabel="norms and additions passed, from the top", ylabel="length of the gradient")
    ax.set_xticks(range(0, len(way), 8))
    plots.direct_labels(ax)
    show(
        ax,
        alt="Length of the gradient on its way down past 24 norms and 24 additions, on a logarithmic axis, at four "
        "moments. All lines start at the same height. Before training the line stays nearly level; after 1 step it "
        "falls about tenfold, after 5 steps a thousandfold, after 40 steps by almost six orders of magnitude.",
        caption="Where does the gradient of the failing model die? On its way down: at the top it always has the same "
        "length. Dots: after a norm; each is followed by an addition. (Seed 0.)",
    )


def first_steps(by_training):
    """How alike the outputs are, and the first layer's gradient, by steps taken."""
    panels = plots.grid(1, 2, width=7.0, height=3.1)[0]
    _draw_steps(panels[0], by_training, "alike", log=False)
    _draw_steps(panels[1], by_training, "gradient")
    panels[0].set_ylim(0, 1.05)
    panels[0].set_title("1 · how alike are the outputs?", fontsize=10)
    panels[1].set_title("2 · how long is the first layer's gradient?", fontsize=10)
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), ncols=3, loc="outside lower center", fontsize=9)
    show(
        panels[0],
        alt="Two panels over the first 40 steps, three seeds each. 1: how alike the outputs are jumps to 1 after one "
        "step for Post-LN and stays there; in the other two it rises and comes down again. 2: the gradient of the "
        "first layer falls by many orders of magnitude for Post-LN, and stays above a hundredth of its start for the "
        "other two.",
        caption="Who survives the accident? In all three the outputs become alike (1), but only in Post-LN without "
        "a warm-up (red) does the gradient die (2). Each line is one of three seeds.",
    )


def last_sums(by_training):
    """Standard deviation of what the last norm reads, by steps taken."""
    ax = plots.axes(height=2.8)
    _draw_steps(ax, by_training, "reads")
    ax.set_ylabel("what the last norm reads")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Standard deviation of what the last norm reads over the first 40 steps, three seeds each. For Post-LN it "
        "grows steadily, for Pre-LN more; for Post-LN with a warm-up it hardly changes.",
        caption="Does a norm of the failing model read larger vectors? Yes, and larger from step to step. (Pre-LN's "
        "are larger still; section 6 says why it survives.)",
    )


def step_sizes(by_training):
    """How far a weight of the first layer moves in a step, by steps taken."""
    ax = plots.axes(height=2.8)
    _draw_steps(ax, by_training, "step")
    ax.set_ylabel("mean step of a weight")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Mean step of a weight of the first layer over the first 40 steps, three seeds each, on a logarithmic "
        "axis. For Post-LN and Pre-LN it starts at the rate, 0.01, and falls alike for 10 steps; then Post-LN's falls "
        "on, to a hundredth of the rate, and Pre-LN's stays above a tenth. With a warm-up it starts sixty times "
        "lower and rises.",
        caption="How far does a weight of the first layer move? For 10 steps Post-LN's (red, behind the blue) shrink "
        "as Pre-LN's do, then they go on shrinking.",
    )


def change_by_depth(depths, change):
    """Squared relative change of the output by depth, when every matrix changes by 1 %."""
    ax = plots.axes(height=2.8)
    series = {RESIDUALS[residual]: (depths, found) for residual, found in change.items()}
    plots.lines(ax, series, "layers N", "squared relative change", marker="o")
    ax.set(xscale="log", yscale="log")
    ax.set_xticks(depths, map(str, depths))
    ax.minorticks_off()
    show(
        ax,
        alt="Squared relative change of the output against depth on logarithmic axes. Both rise from the same value at "
        "2 layers; Post-LN rises faster, and is two to three times as high at 32 layers.",
        caption="Which placement amplifies a change of the weights more? Equal at 2 layers; with depth Post-LN grows "
        "faster than N, Pre-LN slower.",
    )


def rectifications(betas=(0.9, 0.98, 0.999), last=10000):
    """RAdam's factor by the number of gradients, for several memories of v, and a linear warm-up."""
    counts, ax = range(1, last + 1), plots.axes(height=3.0)
    for beta, kind in zip(betas, ("output", "hidden", "attention"), strict=True):
        curve = [rectification(t, beta) for t in counts]
        ax.plot(counts, curve, color=plots.COLORS[kind], label=f"$\\beta_2$ = {beta}")
    warmup = [min(t / 2000, 1) for t in counts]
    ax.plot(counts, warmup, "--", color=plots.COLORS["muted"], label="linear warm-up, 2000 steps")
    ax.legend(ncols=4, loc="lower center", bbox_to_anchor=(0.5, 1.0), fontsize=9)
    ax.set(xscale="log", xlabel="gradients seen t", ylabel="rectification r")
    show(
        ax,
        alt="RAdam's factor against the number of gradients on a logarithmic axis, for three values of beta2. Each is "
        "0 up to 5 gradients and rises to 1; the larger beta2, the later. A dashed linear warm-up of 2000 steps starts "
        "below the curve of 0.999 and reaches 1 before it.",
        caption="How long is RAdam's own warm-up? As long as the memory of v: some tens of steps for 0.9, some "
        "thousands for 0.999, about as long as a linear warm-up of $2 / (1 - \\beta_2) = 2000$ steps (dashed).",
    )


def falls(steps, curves):
    """Factor of the learning rate by step for schedules with the same warm-up."""
    ax = plots.axes(height=2.7)
    plots.lines(ax, {name: (steps, curve) for name, curve in curves.items()}, "step s", "factor of the learning rate")
    ax.set_ylim(-0.1, 1.05)
    plots.direct_labels(ax)
    show(
        ax,
        alt="Factor of the learning rate over 240 steps. All three curves rise on a line to 1 in the first 20 steps. "
        "Then one stays at 1, one falls on a line to 0, one along half a cosine wave to 0.",
        caption="How do the schedules differ? Not in the warm-up (20 of 240 steps), only in the fall.",
    )


def schedules(steps, curves, noam):
    """Learning rate by step for four schedules, and Noam's as a dotted line."""
    ax = plots.axes(height=3.2)
    series = {name: (steps, curve) for name, curve in curves.items()}
    plots.lines(ax, series, "optimizer step s", "learning rate")
    ax.plot(steps, noam, ":", color=plots.COLORS["ink"], linewidth=2.5, label="Noam, D = 512")
    plots.direct_labels(ax)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
    show(
        ax,
        alt="Learning rate over 20,000 steps for five schedules. All rise on a line for 4,000 steps to 0.0007. Then "
        "one stays, one falls on a line to 0, one along a cosine to 0, and inverse square root and Noam fall together "
        "to less than half.",
        caption="How do the schedules differ? Not in the warm-up, only in the fall: constant, linear and cosine to 0 "
        "at step 20,000, inverse square root without an end. Noam (dotted) is inverse square root with a height that "
        "follows from D and the warm-up.",
    )


def spike(plain, spiked, clipped):
    """Distance that a weight travels under Adam: without a spike, with one, and with one that is clipped."""
    ax, steps = plots.axes(height=2.8), range(len(plain))
    ax.plot(steps, plain, color=plots.COLORS["muted"], linewidth=4, alpha=0.6, label="no spike")
    ax.plot(steps, clipped, "--", color=plots.color("clipped"), label="spike, clipped at 5")
    ax.plot(steps, spiked, color=plots.color("not clipped"), label="spike at step 100")
    ax.set(xlabel="step", ylabel="distance travelled")
    plots.direct_labels(ax)
    show(
        ax,
        alt="Distance travelled by a weight over 400 steps. Without a spike it rises steadily. With a spike at step "
        "100 it rises hardly any more from there on. With the spike clipped it rises nearly as without.",
        caption="What does one bad batch do to Adam? It does not throw the weight far; it fills v, and "
        "makes thousands of steps small. Clipping keeps it out of v.",
    )


def grid_of_settings(experiment):
    """Accuracy by step of the grid's 24 settings, one panel for each placement and depth."""
    panels = plots.grid(2, 3, width=7.0, height=4.6, sharex=True, sharey=True)
    for row, layers in zip(panels, (4, 12), strict=True):
        for ax, (residual, title) in zip(row, RESIDUALS.items(), strict=True):
            for optimizer in ("Adam", "RAdam"):
                for warmup, style in (("no warm-up", "-"), ("warm-up", "--")):
                    name = f"{residual}, {warmup}, {optimizer}, {layers} layers"
                    steps = ledger.curves(experiment, name, "step")[0]
                    runs = ledger.curves(experiment, name, "accuracy")
                    label = f"{optimizer}, {warmup}"
                    plots.band(ax, steps, runs, label, plots.color(optimizer), linestyle=style)
            ax.set_title(f"{title}, {layers} layers", fontsize=10)
    for ax in panels[1]:
        ax.set_xlabel("optimizer step")
    for ax in panels[:, 0]:
        ax.set_ylabel("accuracy")
    handles = panels[0, 0].get_legend_handles_labels()
    ax.figure.legend(*handles, ncols=4, loc="outside lower center", fontsize=8)
    show(
        ax,
        alt="Six panels of accuracy over 240 steps: Post-LN, Pre-LN and ReZero, with 4 and with 12 layers; four curves "
        "each, with bands over seeds. In the panel of Post-LN with 12 layers the curve of Adam without warm-up stays "
        "low; the other three rise. In all other panels Adam rises earlier than RAdam.",
        caption="Which settings fail? One: Post-LN with 12 layers, Adam and no warm-up. Bands: least to greatest of "
        "3 seeds.",
    )


def accuracy_by_rate(rates, by_rate):
    """Accuracy at the end against the learning rate, for {(residual, warm-up): one list of seeds a rate}."""
    ax = plots.axes(height=3.2)
    for (residual, warmup), found in by_rate.items():
        name = RESIDUALS[residual] + (", warm-up" if warmup == "warm-up" else "")
        marker, style = ("s", "--") if warmup == "warm-up" else ("o", "-")
        plots.band(ax, rates, list(zip(*found, strict=True)), name, linestyle=style, marker=marker)
    ax.set(xscale="log", xlabel="learning rate", ylabel="accuracy", ylim=(0, 1))
    ax.set_xticks(rates, map(str, rates))
    ax.minorticks_off()
    plots.direct_labels(ax)
    show(
        ax,
        alt="Accuracy after 240 steps against four learning rates from 0.001 to 0.01, with bands over seeds. Up to "
        "0.0025 all four lines lie above 0.8. At 0.005 Post-LN without warm-up has fallen to 0.27, at 0.01 Post-LN "
        "with warm-up to 0.14; both lines of Pre-LN stay above 0.75.",
        caption="Who needs what? Pre-LN tolerates a wider range of rates; a warm-up moves Post-LN's limit from below "
        "0.005 to "
        "above it.",
    )


def deep_start(experiment):
    """Loss and length of the steps of deep character models, recorded for plain Adam, a warm-up, RAdam and Pre-LN."""
    colors = {
        "Post-LN, Adam": "Post-LN",
        "Post-LN, Adam, warm-up": "Post-LN, warm-up",
        "Post-LN, RAdam": "ink",
        "Pre-LN, Adam": "Pre-LN",
    }
    panels = plots.grid(1, 2, width=7.0, height=3.1, sharex=True)[0]
    titles = {"loss": "training loss (nats per character)", "step_size": "length of a step over the rate"}
    for ax, (metric, title) in zip(panels, titles.items(), strict=True):
        for row, color in colors.items():
            steps = ledger.curves(experiment, row, "step")[0]
            plots.band(ax, steps, ledger.curves(experiment, row, metric), row, plots.color(color))
        ax.set_title(title, fontsize=10)
        ax.set_xlabel("optimizer step")
    panels[1].set_yscale("log")
    panels[0].figure.legend(*panels[0].get_legend_handles_labels(), ncols=4, loc="outside lower center", fontsize=8)
    show(
        panels[0],
        alt="Two panels over 300 steps of a 12-layer model on Shakespeare's characters. Left: the loss of Post-LN with "
        "plain Adam stays above 3.2; with a warm-up, with RAdam and with Pre-LN it falls to about 2.4. Right, on a "
        "logarithmic axis: plain Adam's steps fall to about a two-hundredth of the rate; with a warm-up they fall to "
        "two hundredths and come back; RAdam's begin short, fall to less than a hundredth, and come back; Pre-LN's "
        "stay near a tenth or above.",
        caption="Does Post-LN fail on a real text too, and do the updates shrink? Yes: with plain Adam, and there they "
        "stay small. Bands: least to greatest seed.",
    )


def schedule_units(ways):
    """Factor of the learning rate by optimizer step, for three ways of counting."""
    ax = plots.axes(height=2.8)
    colors = dict(zip(ways, ("attention", "gradient", "output"), strict=True))
    series = {name: (range(len(curve)), curve) for name, curve in ways.items()}
    label = "factor of the learning rate"
    plots.lines(ax, series, "optimizer step", label, colors, direct=True, drawstyle="steps-post")
    ax.set_ylim(-0.14, 1.08)
    show(
        ax,
        alt="Factor of the learning rate over 30 optimizer steps. Stepped once an optimizer step it rises for 6 steps "
        "and falls to near 0 at the end. Stepped once a micro-batch it is 0 from step 8 on. Stepped once an epoch it "
        "has three levels, all in the rise, at most one half.",
        caption="When does each schedule end? Stepped per micro-batch, it ends after a quarter of the training; "
        "stepped per epoch, it never ends: it does not leave the warm-up.",
    )


def grid_map(experiment):
    """Mean accuracy of the grid's 24 settings, as recorded."""

    def accuracy(residual, warmup, optimizer, layers):
        values = ledger.values(experiment, f"{residual}, {warmup}, {optimizer}, {layers} layers", "accuracy")
        return sum(values) / len(values)

    panels = plots.grid(1, 2, width=7.0, height=2.7, sharey=True)[0]
    ways = [(optimizer, warmup) for optimizer in ("Adam", "RAdam") for warmup in ("no warm-up", "warm-up")]
    names = ["Adam", "Adam,\nwarm-up", "RAdam", "RAdam,\nwarm-up"]
    for ax, layers in zip(panels, (4, 12), strict=True):
        matrix = [
            [accuracy(residual, warmup, optimizer, layers) for optimizer, warmup in ways] for residual in RESIDUALS
        ]
        plots.heatmap(ax, matrix, names, list(RESIDUALS.values()), "accuracy", annotate=True)
        ax.collections[0].set_clim(0, 1)
        ax.tick_params(axis="x", rotation=0, labelsize=8)
        ax.set_title(f"{layers} layers", fontsize=10)
    panels[0].collections[0].colorbar.remove()
    show(
        panels[0],
        alt="Two heat maps of mean accuracy, for 4 and for 12 layers; rows Post-LN, Pre-LN and ReZero, columns Adam "
        "and RAdam with and without warm-up. One of the 24 fields is pale: Post-LN with 12 layers, Adam and no "
        "warm-up, at 0.27. All others lie between 0.55 and 0.95; RAdam's are paler than Adam's.",
        caption="Which setting fails? One: Post-LN with 12 layers, Adam and no warm-up. Mean of 3 seeds, all at the "
        "learning rate 0.005.",
    )
