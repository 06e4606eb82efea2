"""Figures of chapter 05: LSTM and GRU."""

import math

import torch

from course_lib.notebook import ledger, plots
from course_lib.notebook.diagrams import arrow, box, canvas, label
from course_lib.notebook.display import show


def two_ways():
    """The puzzle of the first screen, and the two ways in which a state can cross it."""
    ax = canvas(14.6, 5.2)
    shown = [*range(7), None, *range(29, 33)]  # steps that are drawn; None is the gap
    places = [1.9 + 1.04 * k for k in range(len(shown))]
    label(ax, 0.1, 4.95, "33 tokens", align="left", weight="bold", size=10.5)
    label(ax, 0.1, 3.35, "plain RNN: made anew at every step", align="left", weight="bold", size=10.5)
    label(ax, 0.1, 1.75, "LSTM: kept, and added to", align="left", weight="bold", size=10.5)
    tokens = iter("dbeacebcda?")
    for k, (step, x) in enumerate(zip(shown, places, strict=True)):
        if step is None:
            for y in (4.2, 2.6):
                label(ax, x, y, "· · ·", size=13)
            continue
        kind = {0: "output", 32: "input"}.get(step, "plain")
        box(ax, x, 4.2, next(tokens), kind=kind, w=0.72, h=0.62, size=11)
        if step:
            box(ax, x, 2.6, "tanh", kind="weight", w=0.78, h=0.55, size=8.5)
        if 0 < k and shown[k - 1] is not None:
            arrow(ax, (places[k - 1] + 0.4, 2.6), (x - 0.41, 2.6))
        if step:
            label(ax, x - 0.16, 0.98, "×", size=13, background=True)
            label(ax, x + 0.16, 0.98, "+", size=15, background=True)
            arrow(ax, (x, 0.35), (x, 0.72), kind="muted")
    box(ax, places[0], 2.6, "d", kind="output", w=0.72, h=0.55, size=10)
    box(ax, places[0], 0.98, "d", kind="output", w=0.72, h=0.55, size=10)
    arrow(ax, (places[-1] + 0.4, 2.6), (14.4, 2.6))
    ax.plot([places[0] + 0.36, 14.0], [0.98, 0.98], color=plots.color("cell state"), lw=3, zorder=0.5)
    arrow(ax, (13.9, 0.98), (14.4, 0.98), kind="cell state")
    show(
        ax,
        alt="A row of 33 tokens, the first one marked d, the last a question mark. Below, the plain RNN's state passes "
        "through a tanh at every step. Below that, a straight line that every step scales and adds to.",
        caption="The first token is the answer, the `?` asks for it 32 steps later. Two ways to carry it there: "
        "through 32 tanhs (and as many matrices), or along a line that each step scales and adds to.",
    )


def gradient_by_lag(flow):
    """The gradient that reaches back, before training: `flow` is {name: norms at 0, 1, ... steps back}."""
    ax = plots.axes(height=3.4)
    series = {name: (range(len(values)), values) for name, values in flow.items()}
    plots.lines(ax, series, "steps back, k", "gradient norm (k = 0 is 1)")
    ax.set(yscale="log", ylim=(1e-15, 30))
    ax.get_legend().remove()
    places = {"RNN": (30, 1e-12), "GRU": (50, 8e-10), "LSTM, bias 0": (54, 6e-15), "LSTM, bias 1": (46, 4e-4)}
    for name, place in (places | {"LSTM, bias 5": (46, 2)}).items():
        ax.text(
            *place,
            name,
            color=plots.color(name),
            fontsize=9.5,
            ha="left" if name == "GRU" else "right",
        )
    show(
        ax,
        alt="Gradient norm against steps back on a log scale. The RNN falls steepest, to 1e-15 within 45 steps; GRU "
        "and LSTM with bias 0 fall to about 1e-13 at 60; bias 1 to 1e-6; bias 5 stays near its start.",
        caption="How far back does a gradient reach before training? The plain RNN loses it fastest, but LSTM and GRU "
        "lose it too if their gates start half open. With a bias of 5 it reaches back over all of them.",
    )


def recall_by_bias():
    """The recorded accuracy at lag 32 by forget bias, five seeds, beside what the gates leave of the cell."""
    ax = plots.axes(height=3.3)
    biases = range(7)
    for bias in biases:
        runs = ledger.values("recall-32", f"LSTM, bias {bias}", "accuracy")
        places = [
            bias + 0.07 * (k - (len(runs) - 1) / 2) for k in range(len(runs))
        ]  # side by side, so that all are seen
        ax.plot(places, [100 * value for value in runs], "o", color=plots.color("LSTM"), markersize=5, clip_on=False)
    fine = [0.05 * k for k in range(-4, 125)]
    left = [100 / (1 + math.exp(-b)) ** 32 for b in fine]
    ax.plot(fine, left, color=plots.color("forget gate"))
    ax.axhline(20, color=plots.COLORS["ink"], linestyle=":", linewidth=1)
    ax.text(6.35, 22, "guessing", fontsize=9, ha="right")
    ax.text(3.95, 47, r"left after 32 steps, $\sigma(b)^{32}$", color=plots.color("forget gate"), fontsize=9.5)
    ax.text(3.6, 93, "recalled, a dot for each seed", color=plots.color("LSTM"), fontsize=9.5, ha="center")
    ax.set(xlabel="forget bias b at the start", ylabel="recalled, or left (%)", ylim=(0, 104), xlim=(-0.4, 6.4))
    show(
        ax,
        alt="Accuracy at lag 32 against the forget bias, five dots for each of seven biases. At 0 and 1 all lie at "
        "guessing, 20 %; at 2 one of five is at 100 %, at 3 three, from 4 on all. A curve of what is left after 32 "
        "steps rises from 0 at bias 1 over 21 % at 3 to 92 % at 6.",
        caption="How large must the bias be at lag 32? Where next to nothing is left of the cell, every run "
        "guesses; where half or more is left, every run recalls. In between, the seed decides.",
    )


def price_of_open_gates():
    """The recorded validation accuracy on reviews by epoch, for each forget bias at the start: a line for each seed."""
    starts = {
        "default": "torch's default: 0.5",
        "bias 1": "bias 1: 0.73",
        "bias 3": "bias 3: 0.95",
        "bias 5": "bias 5: 0.99",
    }
    panels = plots.grid(1, 4, height=2.7, sharey=True)[0]
    for ax, (name, title) in zip(panels, starts.items(), strict=True):
        for run in ledger.curves("gates-price", name, "valid_accuracy"):
            ax.plot(range(1, len(run) + 1), [100 * value for value in run], color=plots.color("LSTM"), lw=1.4)
        ax.axvline(5, color=plots.COLORS["ink"], linestyle=":", linewidth=1)
        ax.set(xlabel="epoch", ylim=(38, 103), xticks=(1, 5, 10, 15))
        ax.set_title(title, fontsize=10)
    panels[0].set_ylabel("validation accuracy (%)")
    show(
        panels[0],
        alt="Validation accuracy by epoch, a line for each of five seeds and each of four starts. All begin at 50 %. "
        "Torch's default and bias 1 pass 90 % in the second or third epoch, bias 3 in the fourth to sixth, "
        "bias 5 in the sixth to tenth.",
        caption="What do open gates cost on the reviews? Time: the further open they start, the later the rise from "
        "guessing, 50 %. With a bias of 5 every run passes 90 % only after the fifth epoch (dotted). Above each panel: "
        "what a gate keeps in a step at the start. One line per seed.",
    )


def gradient_by_time_and_depth():
    """The recorded map of gradient norms, four layers by 40 steps, of an RNN and of two LSTMs."""
    rows = {"default": "RNN", "LSTM, default": "LSTM, as torch starts it", "LSTM, open": "LSTM, forget bias 5"}
    panels = plots.grid(3, 1, height=5.2, sharex=True)[:, 0]
    for ax, (start, name) in zip(panels, rows.items(), strict=True):
        maps = torch.tensor(ledger.values("bptt-map", f"{start} start", "norms"))  # (seeds, layers, T)
        logs = (maps / maps[:, -1:, -1:]).log10().mean(0).clamp(-3, 3).flip(0)  # top layer in the top row
        N, T = logs.shape
        ticks = [str(t) if t == 1 or t % 5 == 0 else "" for t in range(1, T + 1)]
        layers = [f"{N} (top)", *(str(n) for n in range(N - 1, 0, -1))]
        plots.heatmap(ax, logs, ticks, layers, "power of 10", kind="diverging", ylabel="layer")
        ax.collections[0].set_clim(-3, 3)  # one scale for all three
        ax.set_title(name)
    panels[-1].set_xlabel("step t (the loss is at step 40)")
    show(
        panels[0],
        alt="Three heat maps of the gradient's norm, four layers by 40 steps, as a power of ten. RNN and the LSTM as "
        "torch starts it: pale only in the last steps, saturated red everywhere before. LSTM with forget bias 5: near "
        "white over all steps in the top layer; in the lower layers near white at the first steps and red at the last.",
        caption="Where does the loss of step 40 arrive? (White: as much as at the top of step 40; deep red: 1/1000 "
        "or less.) In the RNN and in the half-open LSTM it reaches only the last few steps. With open gates it reaches "
        "every step of every layer, but the further down, the more of it arrives at early steps.",
    )


def what_the_state_consists_of(weights, tokens):
    """A trained GRU's states as weighted sums: `weights` (T, T + 1), the mean over the units."""
    place = tokens.index("!") + 2  # the column of the letter after the mark: the first is h_0
    ax = plots.heatmap(
        plots.axes(height=4.6),
        weights,
        ["$h_0$", *tokens],
        tokens,
        "weight (mean over the 16 units)",
        xlabel="what is weighed: $h_0$, and the candidate at each token",
        ylabel="state after reading",
    )
    show(
        ax,
        alt=f"Heat map, triangular: rows are states, columns candidates, tokens {' '.join(tokens)}. The column of the "
        "letter after the mark stays dark down to the last row; from there on all columns left of the mark are white.",
        caption="What does each state consist of? Once the letter after the `!` is read, the candidates from before "
        "the `!` have next to no weight. This letter's weight falls from "
        f"{weights[place - 1, place]:.1f} to {weights[-1, place]:.1f} and stays there; other letters fade within a few "
        "steps.",
    )


def recall_by_start():
    """Recall by lag in the ledger: three RNNs that begin by keeping, and gates open or as torch has them."""
    left, right = plots.grid(1, 2, height=3.5, sharey=True)[0]
    panels = {
        left: {
            "RNN, ReLU identity": ("ReLU identity", "RNN, ReLU identity", (68, 98)),
            "RNN, orthogonal": ("orthogonal", "RNN, orthogonal", (23, 70)),
            "RNN, identity": ("identity, tanh", "RNN, identity", (32, 32)),
        },
        right: {
            "GRU": ("GRU, open", "GRU", (66, 103)),
            "LSTM": ("LSTM, open", "LSTM", (66, 83)),
            "GRU, default": ("GRU, default", "GRU", (34, 52)),
            "LSTM, default": ("LSTM, default", "LSTM", (24, 5)),
        },
    }
    for ax, models in panels.items():
        for model, (name, color, place) in models.items():
            lags = ledger.values("recall-by-start", model, "lags")[0]
            runs = ledger.values("recall-by-start", model, "accuracy")
            percent = [[100 * value for value in run] for run in runs]
            dashed = {"linestyle": "--"} if "default" in model else {}
            plots.band(ax, lags, percent, name, color, marker="o", **dashed)
            ax.text(*place, name, color=plots.color(color), fontsize=9.5)
        ax.axhline(12.5, color=plots.COLORS["ink"], linestyle=":", linewidth=1)
        ax.set(xlabel="lag (steps)", ylim=(0, 110), xticks=lags)
    left.text(100, 3, "guessing", fontsize=9, ha="right")
    left.set(title="without gates: RNNs that begin by keeping", ylabel="recalled (%)")
    right.set_title("with gates")
    show(
        left,
        alt="Recall accuracy against lag, with bands over three seeds. Left, RNNs without gates: the ReLU identity "
        "network stays above 90 % up to 60 and falls at 100; the orthogonal one is near 100 % at 40 and spreads widely "
        "at 60; the tanh identity falls to guessing at 40. Right: open LSTM and GRU stay near 100 %, the LSTM a little "
        "lower at 100; the default GRU falls to guessing at 40, the default LSTM is there at 20.",
        caption="Is it the gates? At lag 40 a good initialisation does as well without them, and gates that start half "
        "open fail. At 100 only open gates recall more than 80 % in every run. (Best of up to three learning rates. "
        "Lines: mean of three seeds; bands: lowest to highest.)",
    )


def verdicts(pair, curves):
    """The verdict after each word of two reviews with the same words."""
    ax = plots.axes(height=3.4)
    for sentence, curve, color, side in zip(pair, curves, ("attention", "gradient"), (1, -1), strict=True):
        ax.plot(curve, marker="o", color=plots.COLORS[color])
        ax.annotate(sentence, (len(curve) - 1, curve[-1]), (0, side * 9), textcoords="offset points", fontsize=9,
                    ha="right", va="bottom" if side > 0 else "top", color=plots.COLORS[color])  # fmt: skip
    ax.axhline(0, color=plots.COLORS["ink"], linewidth=1)
    words = [a if a == b else f"{a}\n{b}" for a, b in zip(*(s.split() for s in pair), strict=True)]
    ax.set_xticks(range(len(words)), words)
    ax.set(xlabel="word read", ylabel="logit: positive - negative")
    ax.margins(y=0.2)
    show(
        ax,
        alt="Two curves of the logit difference over the ten tokens. They start together, part at the first judging "
        "word, and end on opposite sides of zero.",
        caption="When does the verdict form? The curves part at the word after *not*. One ends well above 0, positive, "
        "the other well below: the same words, another order.",
    )


def imdb():
    """Test accuracy on IMDB: three layers, read in two ways, beside the bags of words."""
    rows = {
        "bag with pairs": ("imdb-bow", "unigrams + bigrams, binary", "bag of words"),
        "bag of words": ("imdb-bow", "unigrams, binary", "bag of words"),
    }
    for kind in ("RNN", "LSTM", "GRU"):
        for pool in ("last", "max"):
            rows[f"{kind}, {pool}"] = ("imdb-recurrent", f"{kind}, {pool}", kind)
    values = {
        label: [100 * value for value in ledger.values(name, row, "accuracy")] for label, (name, row, _) in rows.items()
    }
    seeds = len(values["RNN, last"])
    colors = {label: kind for label, (_, _, kind) in rows.items()}
    ax = plots.dots(plots.axes(height=3.4), values, "test accuracy (%)", colors)
    show(
        ax,
        alt="Dots by seed of the test accuracy on IMDB, sorted: "
        + ", ".join(sorted(values, key=lambda row: -math.fsum(values[row]) / len(values[row])))
        + ".",
        caption="What do gates gain on real reviews? The LSTM and the GRU lie above the RNN, the more so when only "
        "the last state is read. A bag that also counts word pairs is ahead of all. (LSTM: forget bias 1; RNN and GRU: "
        f"torch's start. Small dots: {seeds} seeds; large: their mean.)",
    )


def adding_by_hand(layer, inputs):
    """Gates and cell of an LSTM whose weights were set by hand, on one sequence (1, T, 2) of the adding task."""
    with torch.no_grad():
        inside = {name: value[0, :, 0] for name, value in layer.gate_values(inputs).items()}
    steps = range(1, inputs.shape[1] + 1)
    top, bottom = plots.grid(2, 1, height=3.8, sharex=True)[:, 0]
    for name, key, height in (("input gate", "i", 0.12), ("forget gate", "f", 1.06)):
        top.plot(steps, inside[key], color=plots.color(name))
        top.text(2, height, name, color=plots.color(name), fontsize=9.5)
    top.set(ylabel="gate", ylim=(-0.05, 1.25))
    colors = [plots.color("token") if mark else "#D8D8D8" for mark in inputs[0, :, 1]]
    bottom.bar(steps, inputs[0, :, 0], color=colors)
    bottom.plot(steps, 100 * inside["c"], color=plots.color("cell state"))
    bottom.text(
        100, 100 * inside["c"][-1] + 0.06, "cell, times 100", color=plots.color("cell state"), fontsize=9.5, ha="right"
    )
    bottom.set(xlabel="step t", ylabel="number")
    bottom.margins(y=0.15)
    show(
        top,
        alt="Above, the forget gate stays at 1 and the input gate jumps to 1 at two steps. Below, bars of random "
        "numbers, two of them marked; the cell is a staircase that rises at these two steps and stays level elsewhere.",
        caption="What do the gates do? The input gate opens at the two marks (blue bars), the forget gate never "
        "closes, and the cell keeps the sum to the end.",
    )


def gates_of_a_trained_lstm(inside, tokens):
    """All three gates of all units while one sequence is read; `inside` as `LSTM.gate_values` gives it."""
    panels = plots.grid(3, 1, height=5.8, sharex=True)[:, 0]
    units = [1, *14 * [""], 16]
    for ax, (name, key) in zip(
        panels, {"input gate": "i", "forget gate": "f", "output gate": "o"}.items(), strict=True
    ):
        plots.heatmap(ax, inside[key][0].T, tokens, units, "", ylabel=f"{name}: unit")
    panels[-1].set_xlabel("token read")
    show(
        panels[0],
        alt=f"Three heat maps, 16 units by 16 tokens {' '.join(tokens)}: input gate, forget gate, output gate. At the "
        f"mark "
        "several forget gates are white; in the input gate the column of the letter after the mark is darker.",
        caption="What do the gates of a trained LSTM do (white 0, blue 1)? At the `!` many forget gates close and "
        "clear their units; at the letter after it most input gates are open.",
    )


def gates_by_offset():
    """The recorded gates around the marked letter, three seeds."""
    offsets = ledger.values("gate-activations", "marked token", "offsets")[0]
    ax = plots.axes(height=3.1)
    for name in ("input gate", "forget gate", "output gate"):
        metric = f"{name.replace(' ', '_')}_by_offset"
        plots.band(
            ax, offsets, ledger.values("gate-activations", "marked token", metric), name, marker="o", markersize=4
        )
    ax.axvline(0, color=plots.COLORS["ink"], linestyle="--", linewidth=1)
    ax.set(xlabel="step, counted from the marked letter (0)", ylabel="gate, mean over units", ylim=(0, 1))
    plots.direct_labels(ax)
    show(
        ax,
        alt="Mean of the three gates by distance from the marked letter, three seeds: at -1, the mark, the forget gate "
        "dips deeply; at 0, the letter, the input gate is above its usual value.",
        caption="Do gates react to what matters? At the mark (-1) the mean forget gate drops; at the letter (0) the "
        "mean input gate is above its usual value, in two of three runs already at the mark.",
    )


def writes_that_make_the_answer(offsets, values, last):
    """What each step's write adds to the right logit, by its distance from the marked letter; `last` is that at `?`."""
    ax = plots.axes(height=2.6)
    steps = [*offsets, max(offsets) + 2]  # a gap before the last step
    colors = [plots.color("cell state") if k == 0 else plots.COLORS["muted"] for k in steps]
    ax.bar(steps, [*values, last], color=colors)
    ax.set(xlabel="step of the write, counted from the marked letter (0)", ylabel="adds to the right logit")
    ax.set_xticks(steps, [*offsets, "the last: ?"])
    ax.grid(axis="x", visible=False)
    show(
        ax,
        alt="Bars by distance from the marked letter: low before it, high at it, somewhat lower at the four steps "
        "after it; the bar of the last step, at the question mark, is the highest.",
        caption="Which writes make the answer? The marked letter's adds more than any of the four before or after it. "
        "But the later ones together add more, and so does the last step, at the `?`.",
    )


def gradient_before_and_after():
    """The recorded gradient by steps back at lag 60, untrained and trained."""
    panels = plots.grid(1, 2, height=3.5, sharey=True)[0]
    for ax, when in zip(panels, ("untrained", "trained"), strict=True):
        for name in ("LSTM", "GRU", "RNN, identity", "LSTM, bias 0", "RNN"):
            runs = ledger.values("memory-by-lag", f"gradient, {name}", when)
            norms = [[value / run[0] for value in run] for run in runs]
            lags = ledger.values("memory-by-lag", f"gradient, {name}", "lags")[0]
            plots.band(ax, lags, norms, name)
        ax.set(yscale="log", ylim=(1e-16, 1e2), xlabel="steps back, k", title=when)
    panels[0].set_ylabel("gradient norm (k = 0 is 1)")
    panels[0].legend(fontsize=8, loc="lower left")
    show(
        panels[0],
        alt="Gradient norm by steps back on a log scale, untrained and trained, five models. LSTM and GRU with open "
        "gates stay near their start, one trained GRU rises far above it; the others fall steeply, and training does "
        "not lift them.",
        caption="Who gets a gradient from 60 steps back? LSTM and GRU with open gates, before training and after it. "
        "Training lifts no line that starts out steep. In one run the trained GRU's gradient even *grows* on the way "
        "back.",
    )


def shakespeare():
    """Validation loss by epoch at equal parameters, on tiny Shakespeare."""
    ax = plots.axes(height=3.1)
    for name in ("RNN", "LSTM", "GRU"):
        runs = ledger.curves("shakespeare-recurrent", name, "valid_loss")
        plots.band(ax, range(1, len(runs[0]) + 1), runs, name, marker="o")
    ax.set(xlabel="epoch", ylabel="validation loss (nats per character)")
    ax.set_xticks(range(1, len(runs[0]) + 1))
    plots.direct_labels(ax)
    show(
        ax,
        alt="Validation loss by epoch of RNN, LSTM and GRU with equally many parameters on tiny Shakespeare; the "
        "curves of RNN and LSTM end together, the GRU's below them.",
        caption="At equal parameters and in a short training, do gates pay off on characters? The GRU's do. The LSTM "
        "learns faster at first and ends about where the RNN ends.",
    )
