"""Figures of chapter 06: sequence to sequence."""

from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show

MULTI30K = {
    "LSTM, one vector": ("multi30k-lstm", "LSTM"),
    "GRU, one vector": ("multi30k-gru", "GRU"),
    "GRU + attention": ("multi30k-attention", "attention"),
}


def context_vectors(flat, group, times):
    """Context vectors in a plane (N, 2), marked by the time that the sentence speaks of: group (N,) counts in times."""
    ax = plots.axes(height=3.6)
    for k, (name, marker) in enumerate(zip(times, "o^sD", strict=True)):
        points = flat[group == k]
        ax.scatter(*points.T, s=14, marker=marker, color=plots.CYCLE[k], label=name, alpha=0.8)
    ax.set(xlabel="first direction", ylabel="second direction")
    ax.legend(ncols=4, loc="upper center", bbox_to_anchor=(0.5, 1.16), handletextpad=0.1)
    show(
        ax,
        alt="500 context vectors in two dimensions, with four marks for the four times, which form four clouds.",
        caption="Can the decoder read the time off the context vector? Yes: the sentences fall into four clouds by the "
        "word that stands last in the source and comes first in the target.",
    )


def after_a_mistake(forced, free):
    """Accuracy at the steps after the first mistake, fed the reference and fed its own words."""
    steps = list(range(1, len(forced) + 1))
    curves = {"fed the true words": (steps, forced), "fed its own words": (steps, free)}
    ax = plots.lines(
        plots.axes(height=2.9), curves, "steps after the first mistake (tokens)", "accuracy", direct=True, marker="o"
    )
    ax.set_ylim(0, None)
    show(
        ax,
        alt="Accuracy one to six steps after the first mistake: from the fourth step on clearly lower for the model "
        "that is fed its own words.",
        caption="Does a model recover from its own mistake? Not fully, either way; but fed its own words it stays "
        "further off, and some steps later the distance is clear.",
    )


def fed_in_training():
    """The recorded BLEU of three models without attention, by what their decoder was fed in training."""
    ax = plots.axes(height=3)
    for variant, name in {
        "no attention": "true words",
        "no attention, scheduled": "scheduled",
        "no attention, own words": "own words",
    }.items():
        updates = ledger.curves("toy-translation", variant, "updates")[0]
        plots.band(ax, updates, ledger.curves("toy-translation", variant, "bleu"), name, direct=True)
    ax.set(xlabel="updates", ylabel="BLEU (0 to 100)")
    show(
        ax,
        alt="BLEU by updates for three trainings without attention, with broad bands: own words ends highest on "
        "average, scheduled lowest; true words is between, and its band overlaps with that of own words.",
        caption="Which words should the decoder be fed in training? After these updates own words are ahead on "
        "average, but the seeds differ more than the methods (bands: three seeds).",
    )


def _by_length(ax, metric, variants, ylabel):
    """A recorded metric of the toy translators against the source's length: variants is {variant: (name, colour)}."""
    for variant, (name, color) in variants.items():
        lengths = ledger.values("toy-translation", variant, "length")
        common = sorted(set.intersection(*map(set, lengths)))
        values = ledger.values("toy-translation", variant, metric)
        runs = [[v[which.index(n)] for n in common] for which, v in zip(lengths, values, strict=True)]
        plots.band(ax, common, runs, name, color, marker="o")
    ax.set(xlabel="source length (words)", ylabel=ylabel)


def one_vector_by_length():
    """The recorded BLEU of two models without attention against the length of the source."""
    ax = plots.axes(height=3)
    names = {"no attention": ("trained on\ntrue words", "true words")}
    names["no attention, own words"] = ("trained on\nown words", "own words")
    _by_length(ax, "bleu_by_length", names, "BLEU (0 to 100)")
    plots.direct_labels(ax)
    ax.set_ylim(0, 100)
    show(
        ax,
        alt="BLEU against source length for two models without attention: both fall by about 20 points or more from 6 "
        "words to 14.",
        caption="How well does one vector serve sentences of different lengths? Here both models without attention "
        "translate short sentences much better than long ones (bands: three seeds).",
    )


def attention_by_length():
    """The recorded scores of three models against the length of the source."""
    panels = plots.grid(1, 2, height=3.1)[0]
    models = {
        "no attention": ("no attention", "true words"),
        "no attention, own words": ("no attention, own words", "own words"),
        "attention": ("attention", "GRU + attention"),
    }
    _by_length(panels[0], "exact_by_length", models, "perfect translations (fraction)")
    _by_length(panels[1], "bleu_by_length", models, "BLEU (0 to 100)")
    panels[0].set_ylim(0, 1.04)
    panels[1].set_ylim(0, 104)
    panels[1].legend(loc="lower left", fontsize=9)
    show(
        panels[0],
        alt="Perfect translations and BLEU against source length: the models without attention fall, the one with "
        "attention is flat at the top.",
        caption="Is the fall with length gone? Yes: with attention both curves are flat, on the same pairs and after "
        "as many updates. Long sentences are not too hard in themselves.",
    )


def weights_and_truth(weights, pair):
    """Weights (T, S + 1) of a sentence pair beside its true alignment; the last column is that of <eos>."""
    truth = [[float(s == at) for s in range(len(pair.source) + 1)] for at in pair.alignment]
    panels = plots.grid(1, 2, height=4.2)[0]
    for ax, matrix, title in zip(panels, (weights, truth), ("weights $w_{ts}$", "true alignment"), strict=True):
        plots.heatmap(ax, matrix, [*pair.source, "<eos>"], pair.target, "weight")
        ax.set_title(title)
        ax.set_xticks(ax.get_xticks(), ax.get_xticklabels(), rotation=60, ha="right", rotation_mode="anchor")
    show(
        panels[0],
        alt="Two matrices, target words by source words. The weights follow the true alignment at nouns, verb and "
        "adjectives; the rows of determiners look at the noun instead.",
        caption="Does the decoder look where the grammar says? At nouns, adjectives and the verb it does. For a "
        "determiner it looks at the noun, whose gender decides between *lo* and *la*.",
    )


def multi30k_by_length():
    """The recorded BLEU on Multi30k against the length of the source."""
    ax = plots.axes(height=3.2)
    for name, where in MULTI30K.items():
        lengths = ledger.values(*where, "length_mean")[0]
        plots.band(ax, lengths, ledger.values(*where, "bleu_by_length"), name, direct=True, marker="o")
    ax.set(xlabel="source length (words, mean of the group)", ylabel="BLEU on words (0 to 100)")
    ax.set_ylim(0, None)
    show(
        ax,
        alt="BLEU by source length for three models on Multi30k: attention is highest at every length; the GRU with "
        "one vector falls further with length.",
        caption="Does attention help on real captions? At every length, and more on the longer ones. The longest group "
        "remains the hardest.",
    )
