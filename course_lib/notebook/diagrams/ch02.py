"""Chapter 02's diagrams: the road from text to a verdict, a look-up, the masked sum, BPE's merges, BLEU's parts."""

from course_lib import bpe
from course_lib.notebook.diagrams import arrow, box, canvas, diagram, label

BPE_COUNTS = {"great": 6, "greater": 3, "dull": 5, "later": 4}  # the notebook learns from the same words


def _row(ax, x, y, cells, kinds, w=1.0, gap=0.1, size=10):
    """Boxes side by side; x is the left edge. Returns the right edge."""
    for cell, kind in zip(cells, kinds, strict=True):
        box(ax, x + w / 2, y, cell, kind=kind, w=w, h=0.62, size=size)
        x += w + gap
    return x - gap


@diagram(
    alt=(
        "A box in the middle, the classifier. Into it go two of its training reviews, 'the film was great' and 'what a "
        "dull plot!', and come out as positive and negative. Two new sentences go in as well, 'not terrible, it's "
        "great' and 'not great, it's terrible'; beside each stands a question mark."
    ),
    caption="A classifier that is right on its 96 training reviews reads two new sentences.",
)
def two_sentences():
    """Two reviews with their verdicts, two new sentences without."""
    ax = canvas(13, 4.6)
    reviews = ["the film was great", "what a dull plot!", "not terrible, it's great", "not great, it's terrible"]
    verdicts = ["positive", "negative", "?", "?"]
    box(ax, 8.0, 2.25, "classifier", kind="weight", w=2.2, h=3.9)
    for y, review, verdict in zip((3.8, 2.9, 1.6, 0.7), reviews, verdicts, strict=True):
        kind = "plain" if verdict == "?" else "output"
        box(ax, 4.3, y, f"“{review}”".replace("'", "’"), kind="input", w=4.2, h=0.7)
        arrow(ax, (6.4, y), (6.9, y))
        arrow(ax, (9.1, y), (9.6, y))
        box(ax, 10.8, y, verdict, kind=kind, w=2.2, h=0.7)
    label(ax, 0.1, 3.35, "two training\nreviews", align="left", size=9.5, weight="bold")
    label(ax, 0.1, 1.15, "two new\nsentences", align="left", size=9.5, weight="bold")
    return ax


@diagram(
    alt=(
        "The road from top to bottom. Strings: 'Great plot!' and 'not a hilarious plot'. Tokens: 3 and 4 boxes. "
        "Ids: 5 6 2 and 4 3 0 6, where 0 stands for the unknown word 'hilarious'. Padded batch of shape (B, T) = "
        "(2, 4): the first row ends in the padding id 1. Beside it the mask: the same shape, 0 at the padding and 1 "
        "elsewhere. Below the batch the vectors of shape (B, T, D), one row of W for each id. The real ones are "
        "combined into one verdict for each text, of shape (B,)."
    ),
    caption=(
        "Each step keeps something and loses something: tokens fix the units, the vocabulary turns words that it does "
        "not know into `<unk>`, padding adds entries that are not text, and the mask says which ones. Vectors and a "
        "verdict follow."
    ),
)
def text_pipeline():
    """Two strings on their way to a padded batch, its mask, vectors, and a verdict for each."""
    ax = canvas(13, 9.6)
    left, right, w = 2.6, 8.1, 1.05
    rows = {"strings": 8.9, "tokens": 7.2, "ids": 5.5, "batch (B, T)": 3.7, "vectors (B, T, D)": 0.9}
    for name, y in rows.items():
        label(ax, 0.15, y, name.replace(" (B, T, D)", "\n(B, T, D)"), align="left", size=10, weight="bold")
    box(ax, left + 1.7, rows["strings"], "“Great plot!”", kind="plain", w=3.4, h=0.7)
    box(ax, right + 2.25, rows["strings"], "“not a hilarious plot”", kind="plain", w=4.5, h=0.7)
    _row(ax, left, rows["tokens"], ["great", "plot", "!"], ["input"] * 3, w=w, size=8.5)
    _row(ax, right, rows["tokens"], ["not", "a", "hilarious", "plot"], ["input"] * 4, w=w, size=8.5)
    _row(ax, left, rows["ids"], ["5", "6", "2"], ["input"] * 3, w=w)
    _row(ax, right, rows["ids"], ["4", "3", "0", "6"], ["input"] * 4, w=w)
    for y, ids, mask in ((4.05, ["5", "6", "2", "1"], "1110"), (3.35, ["4", "3", "0", "6"], "1111")):
        _row(ax, left, y, ids, ["input" if real == "1" else "muted" for real in mask], w=w)
        _row(ax, right, y, list(mask), ["attention" if real == "1" else "muted" for real in mask], w=w)
        vectors = [f"$W$[{i}]" for i in ids]
        _row(ax, left, y - 2.8, vectors, ["hidden" if real == "1" else "muted" for real in mask], w=w)
        box(ax, 10.0, y - 2.8, "p(positive)", kind="output", w=1.9, h=0.62)
    for x in (left + 1.7, right + 2.25):
        arrow(ax, (x, 8.45), (x, 7.6))
        arrow(ax, (x, 6.8), (x, 5.9))
    label(ax, 7.3, 8.05, "tokenise", size=9.5)
    label(ax, 7.3, 6.35, "look up ids", size=9.5)
    label(ax, 11.7, 6.35, "0 = <unk>", size=9, kind="muted")
    arrow(ax, (left + 1.7, 5.1), (left + 1.7, 4.5))
    arrow(ax, (right + 0.5, 5.1), (6.6, 4.5))
    label(ax, 5.6, 4.8, "pad", size=9.5)
    label(ax, 9.4, 4.7, "mask (B, T)", size=10, weight="bold")
    label(ax, 11.6, 4.7, "1 = a real token", size=9, kind="muted")
    label(ax, 6.6, 2.75, "1 = <pad>", size=9, kind="muted")
    arrow(ax, (left + 1.7, 2.95), (left + 1.7, 1.65))
    label(ax, left + 1.9, 2.25, "look up rows of W", size=9.5, align="left")
    arrow(ax, (10.0, 2.95), (10.0, 1.65))
    label(ax, 10.2, 2.25, "only real tokens", size=9.5, align="left")
    arrow(ax, (7.25, 0.9), (8.9, 0.9))
    label(ax, 8.05, 1.2, "combine", size=9.5)
    label(ax, 11.1, 0.9, "verdict (B,)", size=10, weight="bold", align="left")
    return ax


@diagram(
    alt=(
        "Four columns of words, one row for each stage of byte-pair encoding. With no merge every word stands as "
        "letters. After 2 merges 'eat' is one piece, after 4 'great', after 6 the ending 'er', "
        "after 10 'great' with its end of word is one piece, and 'dull' is one piece before its end of word. The last "
        "column, duller, was never counted; it ends as 'dull', 'er'."
    ),
    caption=(
        "Byte-pair encoding joins the most frequent neighbours, again and again: the most frequent word becomes "
        "one piece, stems and endings become pieces, and a word that was never seen (*duller*) is spelled with "
        "pieces that were. The dot stands for `</w>`, the end of the word."
    ),
)
def bpe_merges():
    """Words in pieces after more and more merges; the last word is not among the counts."""
    merges = bpe.train_bpe(BPE_COUNTS, 10)
    words = ["great", "greater", "dull", "duller"]
    stages = (0, 2, 4, 6, 10)
    cell, gap, top = 0.52, 0.55, 6.1
    starts, x = [], 2.4
    for word in words:
        starts.append(x)
        x += cell * (len(word) + 1) + gap
    ax = canvas(x - gap + 0.5, top + 0.9)
    for word, x in zip(words, starts, strict=True):
        note = f"{BPE_COUNTS[word]} times" if word in BPE_COUNTS else "never seen"
        label(ax, x, top + 0.45, f"{word}: {note}", align="left", size=10, weight="bold")
    for row, stage in enumerate(stages):
        y = top - 0.55 - 1.15 * row
        label(ax, 0.15, y, f"{stage} merges" if stage else "letters", align="left", size=10)
        for word, x in zip(words, starts, strict=True):
            for piece in bpe.bpe_tokenize(word, merges[:stage]):
                w = cell * len(piece.replace(bpe.END_OF_WORD, "."))
                kind = "plain" if w < 1.5 * cell else "input"
                box(ax, x + w / 2, y, piece.replace(bpe.END_OF_WORD, "·"), kind=kind, w=w - 0.07, h=0.62, size=10)
                x += w
    return ax


@diagram(
    alt=(
        "A one-hot row of six numbers, all 0 except a 1 in place 3, times a 6 by 3 matrix W. Row 3 of the matrix is "
        "highlighted; the product equals that row."
    ),
    caption=(
        "A one-hot row times a matrix picks one row of the matrix: the product spends V·D multiplications to copy D "
        "numbers. An embedding copies them."
    ),
)
def one_hot_lookup():
    """A one-hot row picks a row of W."""
    ax = canvas(13, 5.6)
    y0 = 4.6 - 0.72 * 3  # the height of W's row 3
    for v in range(6):
        box(ax, 0.6 + 0.72 * v, y0, "1" if v == 3 else "0", kind="input" if v == 3 else "plain", w=0.66, h=0.62)
    label(ax, 2.4, y0 + 0.85, "one-hot row $x$  (1, V)")
    label(ax, 2.4, y0 - 0.85, "id = 3", weight="bold")
    label(ax, 5.05, y0, "×", size=15)
    for v in range(6):
        for d in range(3):
            kind = "weight" if v == 3 else "plain"
            box(ax, 6.1 + 0.92 * d, 4.6 - 0.72 * v, f"$w_{{{v}{d}}}$", kind=kind, w=0.86, h=0.62)
    label(ax, 7.0, 5.25, "$W$  (V, D)")
    label(ax, 8.85, y0, "=", size=15)
    for d in range(3):
        box(ax, 9.85 + 0.92 * d, y0, f"$w_{{3{d}}}$", kind="hidden", w=0.86, h=0.62)
    label(ax, 10.77, y0 + 0.85, "$x W = W[3]$  (1, D)")
    return ax


def _masked_steps(ax, mask, rows, w):
    """From tokens to a masked product, a row of boxes for each step and a column for each position, padding muted.

    `rows` are five (name, cells, kind): tokens, ids, what is looked up, the mask, the product.
    """
    for i, (name, cells, kind) in enumerate(rows):
        y = 6.2 - 1.05 * i
        label(ax, 0.1, y, name, align="left", size=9.5, weight="bold")
        _row(ax, 2.5, y, cells, [kind if real == "1" else "muted" for real in mask], w=w, gap=0.15)
    label(ax, 12.4, 4.62, "look up", size=9.5)
    label(ax, 12.4, 3.58, "×", size=15)
    label(ax, 12.4, 2.52, "=", size=15)


@diagram(
    alt=(
        "The row of 'not dull!' in a batch of width 6: three tokens with the ids 10, 7, 2, and three times the "
        "padding, 1. Below each id its row of W. Below that the mask: 1, 1, 1, 0, 0, 0. Their product keeps W[10], "
        "W[7] and W[2]; the three columns of padding are 0. An arrow leads from the products to their sum, W[10] + "
        "W[7] + W[2]."
    ),
    caption=("The mask multiplies each vector by 1 or 0. However many padded columns follow, they add 0 to the sum."),
)
def masked_sum():
    """The vectors of a padded row, times the mask, added up."""
    ax = canvas(13, 6.7)
    mask, ids = "111000", ["10", "7", "2", "1", "1", "1"]
    vectors = [f"$W$[{i}]" for i in ids]
    rows = [
        ("tokens", ["not", "dull", "!", "<pad>", "<pad>", "<pad>"], "input"),
        ("ids (T,)", ids, "input"),
        ("vectors (T, D)", vectors, "hidden"),
        ("mask (T,)", list(mask), "attention"),
        ("product (T, D)", [*vectors[:3], "0", "0", "0"], "hidden"),
    ]
    _masked_steps(ax, mask, rows, w=1.45)
    arrow(ax, (4.85, 1.65), (4.85, 1.0))
    label(ax, 5.1, 1.35, "add up over t", size=9.5, align="left")
    label(ax, 0.1, 0.6, "sum $s$ (D,)", align="left", size=9.5, weight="bold")
    box(ax, 4.85, 0.6, "$W$[10] + $W$[7] + $W$[2]", kind="hidden", w=4.7, h=0.66)
    return ax


@diagram(
    alt=(
        "The review 'the film was dull' on its way to a verdict. Tokens: the, film, was, dull and one padding. Each id "
        "looks up one weight. The mask, 1 1 1 1 0, multiplies them: the padding's becomes 0. The four that are left "
        "and the bias add up to the logit z; the sigmoid turns it into the probability of 'positive'; here it is "
        "below one half, so the verdict is negative."
    ),
    caption=(
        "The same sum with one number for each word: the votes of the real tokens and the bias make the logit, and "
        "the sigmoid makes it a probability."
    ),
)
def word_votes():
    """From tokens and ids to one weight each, the masked sum, the sigmoid, the verdict."""
    ax = canvas(13, 6.7)
    mask, ids = "11110", ["25", "13", "26", "10", "1"]  # as in the notebook's vocabulary
    weights = [f"$w$[{i}]" for i in ids]
    rows = [
        ("tokens", ["the", "film", "was", "dull", "<pad>"], "input"),
        ("ids (T,)", ids, "input"),
        ("weights (T,)", weights, "weight"),
        ("mask (T,)", list(mask), "attention"),
        ("votes (T,)", [*weights[:4], "0"], "weight"),
    ]
    _masked_steps(ax, mask, rows, w=1.75)
    arrow(ax, (4.3, 1.65), (4.3, 1.05))
    label(ax, 4.5, 1.35, "add up over t, and the bias β", size=9.5, align="left")
    label(ax, 0.1, 0.6, "verdict", align="left", size=9.5, weight="bold")
    box(ax, 4.3, 0.6, "logit $z$", kind="output", w=2.2, h=0.7)
    arrow(ax, (5.4, 0.6), (6.7, 0.6))
    label(ax, 6.05, 0.95, "$\\sigma$", size=11)
    box(ax, 8.0, 0.6, "p(positive)", kind="output", w=2.6, h=0.7)
    arrow(ax, (9.3, 0.6), (10.3, 0.6))
    box(ax, 11.6, 0.6, "negative", kind="output", w=2.4, h=0.7)
    label(ax, 9.8, 0.98, "< ½", size=9.5)
    return ax


@diagram(
    alt=(
        "A hypothesis of eight words above a reference of nine words. Blue lines join seven of the hypothesis's words "
        "to equal words of the reference; the second 'the' has no partner and is grey: clipped. Below, three "
        "boxes: precisions 7/8, 5/7, 3/6 and 1/5, brevity penalty e to the 1 - 9/8, BLEU 44.1."
    ),
    caption=(
        "BLEU asks how many of the hypothesis's n-grams the reference has, each used up once (the second *the* is "
        "clipped), and lowers the score if the hypothesis is shorter than the reference."
    ),
)
def bleu_parts():
    """Matched words, the clipped one, and the three parts of the score."""
    ax = canvas(15.4, 7.6)
    hypothesis = "the plot of the film is not good".split()
    reference = "the plot of this film is not good either".split()
    partners = {0: 0, 1: 1, 2: 2, 4: 4, 5: 5, 6: 6, 7: 7}
    w, top, bottom = 1.18, 6.7, 4.4

    def center(i):
        return 2.9 + i * (w + 0.08)

    label(ax, 0.1, top, "hypothesis", align="left", size=9.5, weight="bold")
    label(ax, 0.1, bottom, "reference", align="left", size=9.5, weight="bold")
    for i, j in partners.items():
        arrow(ax, (center(i), top - 0.36), (center(j), bottom + 0.36), kind="attention")
    for i, word in enumerate(hypothesis):
        box(ax, center(i), top, word, kind="output" if i in partners else "muted", w=w, h=0.66)
    for j, word in enumerate(reference):
        box(ax, center(j), bottom, word, kind="input" if j in partners.values() else "plain", w=w, h=0.66)
    label(ax, center(3), top - 0.62, "clipped", size=9, kind="muted")
    label(ax, 13.2, top, "c = 8 words", size=9.5, align="left")
    label(ax, 13.2, bottom - 0.7, "r = 9 words", size=9.5, align="left")

    box(ax, 3.1, 2.3, "precisions $p_1 \\ldots p_4$\n7/8, 5/7, 3/6, 1/5", kind="attention", w=4.8, h=1.25)
    box(ax, 3.1, 0.75, "brevity penalty\nBP $= e^{1 - 9/8} = 0.882$", kind="plain", w=4.8, h=1.25)
    box(
        ax,
        11.6,
        1.5,
        "BLEU = 100 · BP · geometric mean\nof $p_1 \\ldots p_4$ = 100 · 0.882 · 0.500 = 44.1",
        kind="output",
        w=7.0,
        h=1.4,
    )
    arrow(ax, (5.6, 2.3), (8.3, 1.75))
    arrow(ax, (5.6, 0.75), (8.3, 1.25))
    return ax
