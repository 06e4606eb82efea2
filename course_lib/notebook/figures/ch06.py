"""Figures of chapter 06: sequence to sequence."""

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show

MULTI30K = {
    "LSTM, mean": ("multi30k-lstm", "LSTM"),
    "GRU, mean": ("multi30k-gru", "GRU"),
    "GRU + attention": ("multi30k-attention", "attention"),
}


def once_or_at_every_step():
    """The recorded BLEU by updates of *once* and *every step*."""
    ax = plots.axes(height=3)
    for variant in ("every step", "once"):
        updates = ledger.curves("toy-context", variant, "updates")[0]
        runs = ledger.curves("toy-context", variant, "bleu")
        plots.band(ax, updates, runs, variant, direct=True)
    ax.set(xlabel="updates", ylabel="BLEU (0 to 100)", ylim=(0, 102))
    show(
        ax,
        alt="BLEU by updates for two translators with the same encoder: every step rises to nearly 100, once ends "
        "below 40.",
        caption="Does it matter how often the decoder sees the context vector? With the same encoder and the same "
        "number of updates, *every step* is far ahead of *once* (bands: three seeds, 200 test sentences each).",
    )


def by_width(attention):
    """The recorded BLEU by the width of the encoder's states; with attention, too, if True."""
    ax = plots.axes(height=3)
    models = {"every step": plots.color("every step")}
    if attention:
        models["attention"] = plots.color("GRU + attention")
    widths = [4, 8, 16, 64]
    for given, color in models.items():
        columns = [ledger.values("toy-bottleneck", f"{given}, E = {E}", "bleu") for E in widths[:-1]]
        columns.append(ledger.values("toy-context", given, "bleu"))
        plots.band(ax, widths, list(zip(*columns, strict=True)), given, color, marker="o", direct=True)
    ax.set(xlabel="units in the encoder", ylabel="BLEU (0 to 100)", ylim=(0, 104), xscale="log")
    ax.set_xticks(widths, map(str, widths))
    ax.minorticks_off()
    both = " Attention is far above it at 8 and 16 units, and level with it at 64." * attention
    show(
        ax,
        alt="BLEU against the number of units in the encoder, 4 to 64: every step climbs from about 5 to nearly "
        "100." + both,
        caption="How wide must the encoder's states be? For *attention* they can be much narrower: each need not hold "
        "the whole sentence (bands: three seeds)."
        if attention
        else "What if the one vector is narrower? The narrower it is, the worse the translations, although "
        "*every step* sees it before each word (band: three seeds).",
    )


def by_length():
    """The recorded BLEU by the number of source words, each translator with a narrow encoder."""
    ax = plots.axes(height=3)
    for given, width, color in (("attention", 8, "GRU + attention"), ("every step", 16, "every step")):
        variant = f"{given}, E = {width}"
        lengths = ledger.values("toy-bottleneck", variant, "length")[0]
        runs = ledger.values("toy-bottleneck", variant, "bleu_by_length")
        plots.band(ax, lengths, runs, variant, plots.color(color), marker="o", direct=True)
    ax.set(xlabel="source words", ylabel="BLEU (0 to 100)", ylim=(0, 104))
    show(
        ax,
        alt="BLEU by the number of source words, 6 to 14: attention with 8 units stays near 90, every step with 16 "
        "falls from above 50 to below 30.",
        caption="Do long sentences suffer more from narrow states? With *every step* and one vector of 16 numbers they "
        "do; *attention* with 8 units loses little with the length (bands: three seeds).",
    )


def context_vectors(flat, group, times):
    """Context vectors in a plane (N, 2), marked by the time that the sentence speaks of: group (N,) counts in times."""
    ax = plots.axes(height=3.6)
    for k, (name, marker) in enumerate(zip(times, "o^sD", strict=True)):
        points = flat[group == k]
        ax.scatter(*points.T, s=14, marker=marker, color=plots.CYCLE[k], alpha=0.4)
        behind = {"facecolor": "white", "alpha": 0.8, "linewidth": 0}
        place = {"ha": "center", "va": "center", "fontweight": "bold", "bbox": behind}
        ax.text(*points.median(0).values.tolist(), name, color=plots.CYCLE[k], **place)
    ax.set(xlabel="first direction", ylabel="second direction")
    show(
        ax,
        alt="500 context vectors in two dimensions, with four marks for the four times, in groups of which two touch.",
        caption="Does the context vector hold the time? Yes: in this plane most new sentences lie nearest to their "
        "own group, though two of the groups touch.",
    )


def fed_in_training():
    """The recorded BLEU of three trainings of *once*, by what the decoder was fed."""
    ax = plots.axes(height=3)
    for variant, (name, color) in {
        "no attention": ("the reference", "true words"),
        "no attention, scheduled": ("scheduled", "scheduled"),
        "no attention, own words": ("own predictions", "own words"),
    }.items():
        updates = ledger.curves("toy-translation", variant, "updates")[0]
        plots.band(ax, updates, ledger.curves("toy-translation", variant, "bleu"), name, color, direct=True)
    ax.set(xlabel="updates", ylabel="BLEU (0 to 100)")
    show(
        ax,
        alt="BLEU by updates for three trainings of once, with broad bands: own predictions end highest "
        "on average, scheduled lowest; the reference is between, and its band overlaps with the first.",
        caption="Which words should the decoder of *once* be fed in training? After these updates own predictions are "
        "ahead on average, but the seeds differ more than the methods (bands: three seeds).",
    )


def weights_and_truth(weights, pair):
    """Weights (T, S + 1) of a sentence pair beside its true alignment; the last column is that of <eos>."""
    truth = [[float(s == at) for s in range(len(pair.source) + 1)] for at in pair.alignment]
    panels = plots.grid(1, 2, height=4.2)[0]
    for ax, matrix, title in zip(panels, (weights, truth), ("weights $w_{ts}$", "true alignment"), strict=True):
        plots.heatmap(ax, matrix, [*pair.source, "<eos>"], pair.target, "weight")
        if matrix is truth:
            ax.collections[0].colorbar.remove()  # ones and zeros need no scale
        ax.set_title(title)
        ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=60, ha="right", rotation_mode="anchor")
    show(
        panels[0],
        alt="Two matrices, target words by source words. The weights follow the true alignment at nouns, verb and "
        "adjectives; the rows of determiners look at the noun instead.",
        caption="Does the decoder look where the grammar says? In this sentence it does at the nouns, the adjective "
        "and the verb. For a determiner it looks at the noun, whose gender decides between *lo* and *la*.",
    )


def multi30k_by_length():
    """The recorded BLEU on Multi30k against the length of the source."""
    ax = plots.axes(height=3.2)
    for (name, where), color in zip(MULTI30K.items(), ("LSTM", "GRU", "GRU + attention"), strict=True):
        lengths = ledger.values(*where, "length_mean")[0]
        plots.band(
            ax, lengths, ledger.values(*where, "bleu_by_length"), name, plots.color(color), direct=True, marker="o"
        )
    ax.set(xlabel="source length (words, mean of the group)", ylabel="BLEU on words (0 to 100)")
    ax.set_ylim(0, None)
    show(
        ax,
        alt="BLEU by source length for three models on Multi30k: attention is highest at every length; the GRU with "
        "the mean falls further with length.",
        caption="Does attention help on real captions? At every length, and more on the longer ones. The longest group "
        "remains the hardest.",
    )
