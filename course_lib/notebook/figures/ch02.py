"""Figures of chapter 02: what each step from a string to a tensor keeps and costs, and what its scores see."""

from course_lib.notebook import plots
from course_lib.notebook.display import show


def tokens_per_word(merges, pieces):
    """Draw how many tokens a word takes after so many merges."""
    ax = plots.axes(height=3)
    x = range(len(merges))
    plots.lines(ax, {"pieces": (x, pieces)}, "merges learned", "tokens per word", {"pieces": "input"}, marker="o")
    ax.set_xticks(x, [f"{k:,}" for k in merges])
    ax.set_ylim(0, None)
    ax.axhline(1, color=plots.COLORS["muted"], linestyle="--")
    ax.text(0, 1.1, "whole words", color=plots.COLORS["muted"])
    show(
        ax,
        alt="Tokens per word fall from about 6 with no merge to little more than 1 with 3,000 merges; a dashed line "
        "marks 1.",
        caption="How many merges bring the sequences close to word length? A few hundred already halve them; with a "
        "few thousand most running words are one token.",
    )


def unknown_by_size(sizes, rates):
    """Draw the rate of unknown tokens against the vocabulary's size: {text: per cent}."""
    curves = {name: (sizes, rate) for name, rate in rates.items()}
    ax = plots.axes(height=3)
    ax.set_xscale("log")
    colors = {"training text": "muted", "held-out text": "input"}
    plots.lines(
        ax, curves, "vocabulary size V (log scale)", "<unk> rate (% of tokens)", colors, direct=True, marker="o"
    )
    ax.set(ylim=(-1, None), xlim=(80, 3.4 * sizes[-1]))
    show(
        ax,
        alt="Two falling curves of the <unk> rate against vocabulary size; the training curve reaches 0, held-out does "
        "not.",
        caption="Does a larger vocabulary remove `<unk>`? Only on the text it was built from. On held-out text the "
        "curve flattens: with every training word known, a few per cent of the tokens are still unknown.",
    )


def two_batches(lengths_by_kind, longest):
    """Draw the mask of one batch of each kind, {kind: lengths of its rows}, on the same scale."""
    from matplotlib.colors import ListedColormap

    panels = plots.grid(1, 2, height=2.9)[0]
    colors = ListedColormap(["#C8C8C8", plots.COLORS["attention"]])
    for ax, (name, rows) in zip(panels, lengths_by_kind.items(), strict=True):
        outside = [float("nan")] * (longest - max(rows))  # of this batch's rectangle
        picture = [[1.0] * row + [0.0] * (max(rows) - row) + outside for row in rows]
        ax.imshow(picture, aspect="auto", interpolation="nearest", cmap=colors, vmin=0, vmax=1)
        ax.set(title=name, xlabel="step t (tokens)", ylabel="review in the batch")
        ax.grid(visible=False)
    show(
        panels[0],
        alt="Two masks of 32 reviews. Shuffled: ragged blue rows, nearly half of the rectangle grey. Bucketed: rows of "
        "13 to 15 tokens, hardly any grey.",
        caption="What does one batch look like? Real tokens are blue, padding is grey. In shuffled order one long "
        "review forces padding onto 31 others; in a bucket the rows end together.",
    )


def padding_by_batch_size(sizes, waste):
    """Draw the fraction of padding against the batch size: {kind: shares}."""
    curves = {name: (sizes, [100 * share for share in shares]) for name, shares in waste.items()}
    colors = {"shuffled": "muted", "bucketed": "attention"}
    ax = plots.axes(height=2.9)
    ax.set_xscale("log", base=2)
    plots.lines(ax, curves, "batch size B (log scale)", "padding (% of cells)", colors, direct=True, marker="o")
    ax.set_xticks(sizes, sizes)
    ax.set(ylim=(-1, None), xlim=(0.9, 2.2 * sizes[-1]))
    show(
        ax,
        alt="Fraction of padding against batch size. Shuffled rises steeply to nearly half; bucketed stays near zero "
        "up to 16, then rises to about 6 %.",
        caption="Does bucketing still help in large batches? Yes. Shuffled, padding climbs to nearly half; bucketed, "
        f"it stays below 7 % up to B = {sizes[-1]}, where 1,600 reviews no longer fill buckets of one length.",
    )


def review_lengths(edges, numbers, cut):
    """Draw the histogram of the reviews' lengths, with the place where a common choice cuts them."""
    ax = plots.axes(height=2.6)
    ax.bar(edges, numbers, width=0.92 * (edges[1] - edges[0]), align="edge", color=plots.COLORS["input"])
    ax.axvline(cut, color=plots.COLORS["ink"], linestyle="--")
    ax.annotate(f"cut at {cut}", (cut, max(numbers)), xytext=(5, -8), textcoords="offset points")
    ax.set(xlabel="length of the review (tokens; the last bar holds all from 1,000 on)", ylabel="reviews")
    show(
        ax,
        alt="Histogram of the lengths of IMDB reviews: most have 100 to 300 tokens, with a long tail to more than "
        "1,000.",
        caption=f"How long are real reviews? Half are longer than {cut} tokens, and a long tail goes beyond 1,000: "
        "whatever length you fix, it wastes cells on most reviews or cuts off the others.",
    )


def imdb_accuracy(accuracies):
    """Draw test accuracies on IMDB by seed: {model: list}."""
    groups = {name: [100 * value for value in values] for name, values in accuracies.items()}
    ax = plots.dots(plots.axes(height=2.4), groups, "test accuracy (%)", dict.fromkeys(groups, "attention"))
    show(
        ax,
        alt="Test accuracy on IMDB: bags of words and averaged embeddings close together, a little below 90 %; with "
        "word pairs a little above.",
        caption="How far do words without order get on real reviews? To nearly nine right in ten; pairs of neighbours "
        "remove a fifth to nearly a third of the errors. (Small dots: seeds. Always the same answer would be right "
        "on 50 %.)",
    )


def imdb_ends(accuracies):
    """Draw test accuracies by seed of bags that read one piece of each review: {piece: list}."""
    groups = {name: [100 * value for value in values] for name, values in accuracies.items()}
    ax = plots.dots(
        plots.axes(height=1.9), groups, "test accuracy (%)", dict.fromkeys(groups, "attention"), order="given"
    )
    show(
        ax,
        alt="Test accuracy of bags of words on pieces of IMDB's reviews: the first 50 tokens 72.7 %, the middle 50 "
        "73.3 %, the last 50 79.2 %.",
        caption="Which 50 tokens of a review tell most about its verdict? The last. (Small dots: seeds. Reviews of 150 "
        "tokens or more, so that the pieces do not overlap.)",
    )


def words_that_decide(weights):
    """Draw the weights of the most positive and the most negative words, {word: weight}."""
    words = sorted(weights, key=weights.get)
    ax = plots.axes(height=3.6)
    ax.barh(words, [weights[word] for word in words], color=plots.COLORS["weight"])
    ax.axvline(0, color=plots.COLORS["ink"], linewidth=1)
    ax.grid(axis="y", visible=False)
    ax.set(xlabel="weight (added to the logit of a positive review)")
    show(
        ax,
        alt="Bars of the eight most positive and the eight most negative words' weights, among them refreshing and "
        "worst.",
        caption="What has the bag learned? Of the words seen at least 100 times, those that judge, and, look closely, "
        "a rating that reviewers wrote into their text (7) and the hero of a liked film (bourne): it uses whatever "
        "predicts the label.",
    )


def bleu_and_meaning(scores, meaning):
    """Draw the BLEU of each hypothesis, {hypothesis: score}, and whether it says the same as the reference."""
    ax = plots.axes(height=2.6)
    colors = {"right": plots.COLORS["hidden"], "wrong": plots.COLORS["gradient"]}
    for i, (sentence, score) in enumerate(reversed(scores.items())):
        ax.barh(i, score, color=colors[meaning[sentence]], height=0.6)
        text = f"{score:.1f}, {meaning[sentence]}"
        ax.annotate(text, (score, i), xytext=(4, 0), va="center", textcoords="offset points")
    ax.set_yticks(range(len(scores)), list(reversed(scores)))
    ax.grid(visible=False)
    ax.set(xlabel="BLEU (0 to 100)", xlim=(0, 100))
    show(
        ax,
        alt="Bars of BLEU for four hypotheses: 'fine' and the wrong 'bad' both 59.7, swapped halves 63.9, the "
        "paraphrase 0.",
        caption="Does BLEU follow the meaning (right, wrong)? No: the hypothesis that calls the film bad scores as "
        "much as the synonym, and a fair paraphrase scores 0.",
    )
