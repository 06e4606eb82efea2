"""The figures of chapter 09: the Transformer."""

from course_lib import text, translation
from course_lib.notebook import ledger, plots
from course_lib.notebook.display import show
from course_lib.notebook.explorer import Sentence, explore
from course_lib.notebook.recorder import record, short_names


def reactions(matrices):
    """Draw how strongly each output reacts to each input: {name: (T, T)}, in powers of ten below the largest."""
    axes = plots.grid(1, len(matrices), height=2.7)[0]
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        decades = (4 + (matrix / matrix.max()).log10()).clamp(min=0)  # 4: the largest; 0: 1/10,000 or nothing
        places = [str(t + 1) if t % 3 == 0 else "" for t in range(len(matrix))]
        label = "reaction, as a fraction of the largest" if ax is axes[-1] else ""
        plots.heatmap(ax, decades, places, places, label, xlabel="input s", ylabel="output t" if ax is axes[0] else "")
        bar = ax.collections[0].colorbar
        if ax is axes[-1]:
            bar.set_ticks(range(5), labels=["1/10,000", "1/1,000", "1/100", "1/10", "1"])
        else:
            bar.remove()
        ax.set(title=name, aspect="equal")
        ax.tick_params(labelsize=7, length=0)
    show(
        axes[0],
        alt="Three maps of 12 outputs by 12 inputs. Loop: below the diagonal only, fading quickly with the "
        "distance. Direct, causal: on and below the diagonal only, strongest on it, about even elsewhere in a row. "
        "Direct, full: everywhere.",
        caption="What does an output react to? This untrained loop: to the past, and to the distant past hardly at "
        "all. The causal direct function: to every input before it, near or far. The full one: to everything.",
    )


def recognised(matrices):
    """Draw the similarities of outputs to inputs after twelve layers: {name: (T, T)}."""
    axes = plots.grid(1, len(matrices), height=3.1)[0]
    for ax, (name, matrix) in zip(axes, matrices.items(), strict=True):
        places = [str(t + 1) if t % 5 == 4 or t == 0 else "" for t in range(len(matrix))]
        label = "similarity (cosine, 0 or above)" if ax is axes[-1] else ""
        ylabel = "output" if ax is axes[0] else ""
        plots.heatmap(ax, matrix.clamp(min=0), places, places, label, xlabel="input", ylabel=ylabel)
        ax.collections[0].set_clim(0, 1)
        if ax is not axes[-1]:
            ax.collections[0].colorbar.remove()
        ax.set(title=name, aspect="equal")
        ax.tick_params(labelsize=8, length=0)
    show(
        axes[0],
        alt="Two maps of 20 outputs by 20 inputs. With the sums: a dark diagonal on a pale ground. Without: pale "
        "spots everywhere, and no diagonal.",
        caption="What is left of 20 vectors after twelve untrained layers? With the sums each output resembles its own "
        "input (the diagonal); without them almost none does. (One seed.)",
    )


def layer_norm(first, second, result):
    """Draw two vectors, and the one vector that LayerNorm makes of both."""
    axes = plots.grid(1, 3, height=2.2)[0]
    titles = ("a vector", "times 10, plus 100", "LayerNorm of either")
    for ax, vector, title in zip(axes, (first, second, result), titles, strict=True):
        kind = "output" if ax is axes[-1] else "input"
        ax.bar(range(1, len(vector) + 1), vector, color=plots.COLORS[kind], width=0.6)
        mean = sum(vector) / len(vector)
        ax.axhline(mean, color=plots.COLORS["ink"], lw=1, ls="--")
        ax.annotate(
            f"mean {mean:.0f}", (len(vector) + 0.4, mean), xytext=(0, 3), textcoords="offset points", ha="right"
        )
        ax.set(title=title, xlabel="entry", xticks=range(1, len(vector) + 1))
    show(
        axes[0],
        alt="Three bar charts of four entries: a vector with mean 3; the same times 10, plus 100, with mean 130; and "
        "what LayerNorm makes of either, with mean 0 and entries between -1 and 2. The pattern is the same in all.",
        caption="What does LayerNorm keep? The pattern, not the size: both vectors become the same, with mean 0 and "
        "standard deviation 1.",
    )


def alignment(pair, weights):
    """Draw the cross-attention (T, S) of one sentence pair, with squares on the true alignment."""
    ax = plots.heatmap(
        plots.axes(height=3.9),
        weights,
        [*pair.source, "<eos>"],
        pair.target,
        "weight, mean of 4 heads",
        xlabel="source",
        ylabel="target word to be predicted",
    )
    for t, place in enumerate(pair.alignment):
        ax.plot(place + 0.5, t + 0.5, "s", ms=13, mfc="none", mec=plots.COLORS["gradient"], mew=1.6)
    show(
        ax,
        alt="Cross-attention of one sentence, target words by source words; squares mark the true alignment, and "
        "in most rows the darkest cell is there, in some it is elsewhere.",
        caption="Where does the decoder look for each word? More often than not at the word that it translates "
        "(squares), although no alignment was shown in training; in some rows it looks elsewhere first.",
    )


def look_across(weights, source, target):
    """Draw the cross-attention (T, S) of a translation: a row for each word so far, with the word that comes next."""
    read = [piece.removesuffix("</w>") for piece in source]
    rows = [f"{word} → {following}" for word, following in zip(target, [*target[1:], "<eos>"], strict=True)]
    ax = plots.heatmap(
        plots.axes(height=3.3),
        weights,
        read,
        rows,
        "weight, mean of 4 heads",
        xlabel="German, read by the encoder",
        ylabel="last word → next word",
    )
    show(
        ax,
        alt="Cross-attention of one translation, seven English rows by eight German tokens. The rows before dog, runs, "
        "through and snow are darkest at hund, läuft, durch and schnee; the row of <sos> at hund too; the last two at "
        "<eos>.",
        caption="Where does the decoder look? In this block, before *dog*, *runs*, *through* and *snow*, mostly at "
        "the German word for what comes next. No training example says which word that is. (Not always: before *a* it "
        "looks most at *hund*, before the full stop and `<eos>` at the German `<eos>`. And the block is chosen, the "
        "last of three: in those four rows the second agrees, the first only before *dog*.)",
    )


def translation_explorer(translator, task, *sources):
    """Translate sentences, and show all three attentions of the translator on each; opens at "miro", if it is there."""
    sentences = {}
    for name, source in zip(short_names([source.split() for source in sources]), sources, strict=True):
        unknown = sorted(set(source.split()) - set(task.source_vocab.itos))
        if unknown:
            raise ValueError(f"not in this language: {', '.join(unknown)}; see task.source_vocab.itos")
        ids, real = text.pad_batch([text.numericalize(source.split(), task.source_vocab, eos=True)])
        best = translation.translate(translator, ids.tolist(), max_new_tokens=30)[0]
        target = text.denumericalize(best.tokens, task.target_vocab)
        written, _ = text.pad_batch([[text.SOS, *text.numericalize(target, task.target_vocab)]])
        looks = [[each] for each in record(translator, ids, real, written).values()]
        kinds = dict(zip(("encoder", "decoder", "cross"), looks, strict=True))
        read, said = [*source.split(), "<eos>"], ["<sos>", *target]
        sentences[name] = Sentence({"encoder": read, "decoder": said, "cross": said}, kinds, {"cross": read})
    first = next(iter(sentences.values())).tokens["cross"]
    return explore(
        sentences,
        title="A trained translator",
        alt="Attention maps of the trained translator: the encoder's self-attention, the decoder's masked "
        "self-attention, which is empty above the diagonal, and the cross-attention, four heads each.",
        caption="Only the decoder's own map is a triangle: the source is known as a whole, the target is not. In "
        "the cross-attention the row of a word shows where the decoder looks to predict the *next* one.",
        part="cross",
        head="all",
        query="miro" if "miro" in first else 0,
    )


def passes(experiment):
    """Draw the recorded fraction of exact translations by epoch, for each model of the experiment."""
    ax = plots.axes(height=3.0)
    for name in ledger.load(experiment)["runs"][0]["results"]:
        runs = [[100 * value for value in run] for run in ledger.curves(experiment, name, "exact")]
        plots.band(ax, range(1, len(runs[0]) + 1), runs, name, marker="o", markersize=4)
    plots.direct_labels(ax)
    ax.set(xlabel="epoch (each 4,000 pairs)", ylabel="exact translations (%)", ylim=(-3, 103))
    show(
        ax,
        alt="Exact translations by epoch: the GRU with attention rises first and is at 100 percent "
        "after the second; the Transformer with the lower rate is above 99 at the fourth to sixth, with the higher "
        "rate it stays below.",
        caption="Does a Transformer need fewer epochs than a GRU with attention? No: on this small task the GRU is "
        "right on 99 of 100 after two, the Transformer after four to six, at the better of its two rates. "
        "(Bands: the range of three seeds.)",
    )


def pooling(experiment, variants):
    """Draw the recorded accuracy on the toy reviews by epoch, for each way to pool."""
    ax = plots.axes(height=3.0)
    for name in variants:
        runs = [[100 * value for value in run] for run in ledger.curves(experiment, name, "accuracy")]
        plots.band(ax, range(1, len(runs[0]) + 1), runs, name, marker="o", markersize=3)
    plots.direct_labels(ax, {"cls": "CLS"})
    ax.axhline(50, color=plots.COLORS["muted"], ls="--")
    ax.annotate("bag of words", (1, 50), xytext=(0, -12), textcoords="offset points", color=plots.COLORS["muted"])
    ax.set(xlabel="epoch", ylabel="test accuracy (%)", ylim=(43, 101))
    show(
        ax,
        alt="Test accuracy on the toy reviews over ten epochs for mean, max and CLS pooling, three seeds each: all "
        "leave 50 percent after some epochs and end near or above 90; max rises first, mean and CLS later.",
        caption="Does it matter how one pools? More for how soon it learns than for where it ends: all three begin "
        "at the level of guessing, the maximum leaves it first, and after ten epochs the three ranges overlap. "
        "(Bands: the range of three seeds.)",
    )


def imdb(accuracy):
    """Draw the test accuracy of each model on IMDB: {name: one value a seed}."""
    percent = {name: [100 * value for value in values] for name, values in accuracy.items()}
    colors = {name: "Transformer" for name in percent}
    colors |= {"as it was": "gradient", "bag of words and pairs": "bag of words"}
    ax = plots.dots(plots.axes(height=2.9), percent, "test accuracy (%), small dots: seeds", colors)
    show(
        ax,
        alt="Test accuracy on IMDB, sorted: lowest the tutorial's Transformer as it was, then the one with all fixes, "
        "then the best Transformers from scratch, and highest the bag of words with pairs.",
        caption="What do the fixes buy on real reviews? They lift a model of the same size almost five points above "
        "the tutorial's (vermilion). Longer reviews and other settings, and then word pairs, with eight times as many "
        "parameters, add almost three more. The bag of words with pairs (grey) is still ahead.",
    )


def one_change(taken_back, with_all):
    """Draw the accuracy on IMDB with one fix taken back, {what is done instead: one value a seed}, and with all."""
    percent = {name: [100 * value for value in values] for name, values in taken_back.items()}
    low, high = 100 * min(with_all), 100 * max(with_all)
    ax = plots.dots(
        plots.axes(height=3.1), percent, "test accuracy (%), small dots: seeds", dict.fromkeys(percent, "ink")
    )
    ax.axvspan(low, high, color=plots.COLORS["muted"], alpha=0.2, linewidth=0, zorder=0)
    ax.set_xlim(right=max(high, ax.get_xlim()[1]) + 0.1)
    apart = [name for name, values in percent.items() if max(values) < low]
    show(
        ax,
        alt="Accuracy on IMDB when one of seven fixes is taken back, sorted by the mean of the seeds, over a grey "
        f"band, the range of all fixes. Left of the band in every seed: {', '.join(apart)}. The others reach into it.",
        caption="With which change is every seed below every seed of all fixes (the grey band)? Only with "
        f"{' and with '.join(f'“{name}”' for name in apart)}.",
    )


def bleu_by_length(recorded):
    """Draw BLEU by source length on Multi30k for recorded models: {name: (experiment, variant)}."""
    ax = plots.axes(height=3.3)
    for name, (experiment, variant) in recorded.items():
        lengths = ledger.values(experiment, variant, "length_mean")[0]
        plots.band(ax, lengths, ledger.values(experiment, variant, "bleu_by_length"), name, marker="o", markersize=4)
    plots.direct_labels(ax)
    ax.set(xlabel="source length (words, mean of the group)", ylabel="BLEU on words (0 to 100)")
    show(
        ax,
        alt="BLEU by source length for four models on Multi30k. The lines of the Transformer and of the GRU with "
        "attention lie close together at every length; the two models with one vector are about ten points lower.",
        caption="Does looking back help at every length? In these runs yes: both models that can do it are well above "
        "both that cannot, though the LSTM is nearly as large as the Transformer. (Bands: least to greatest seed.)",
    )
