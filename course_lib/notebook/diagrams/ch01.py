"""Diagrams of chapter 01: what goes in and out, what a model may look at."""

from course_lib.notebook.diagrams import arrow, box, canvas, diagram, label

TASKS = {  # form: (words in, words out, column of the first output)
    "one to one": (["photo"], ["cat"], 0),
    "one to many": (["photo"], ["a", "red", "kite"], 0),
    "many to one": (["not", "bad", "!"], ["positive"], 2),
    "many to many": (["es", "regnet"], ["it", "is", "raining"], 1),
    "many to many, in step": (["dogs", "bark", "loudly"], ["noun", "verb", "adverb"], 0),
}


@diagram(
    alt="Five small graphs: one to one, one to many, many to one, many to many, and many to many in step. "
    "Inputs stand below, hidden states in the middle, outputs on top.",
    caption="Five forms of task differ only in where inputs come in and outputs come out (green: what the model "
    "computes in between and hands on); the last form, with the next token as output, is a language model.",
)
def task_forms():
    """Draw the five forms of sequence task, inputs below, outputs on top."""
    ax = canvas(16, 9.6)
    for (name, task), (left, base) in zip(
        TASKS.items(), ((1.2, 5.5), (4.8, 5.5), (11.0, 5.5), (1.2, 0.7), (11.0, 0.7)), strict=True
    ):
        _task(ax, name, *task, left, base)
    return ax


def _task(ax, name, inputs, outputs, first_output, left, base):
    """One form: a row of hidden states, fed from below, read from above."""
    step, columns = 1.9, max(len(inputs), first_output + len(outputs))
    for column in range(columns):
        x = left + step * column
        box(ax, x, base + 1.3, "", kind="hidden", w=1.1, h=0.62)
        if column + 1 < columns:
            arrow(ax, (x + 0.55, base + 1.3), (x + step - 0.55, base + 1.3), kind="hidden")
        if column < len(inputs):
            box(ax, x, base, inputs[column], kind="input", w=1.6, h=0.62, size=9)
            arrow(ax, (x, base + 0.31), (x, base + 0.99))
        if first_output <= column < first_output + len(outputs):
            box(ax, x, base + 2.6, outputs[column - first_output], kind="output", w=1.6, h=0.62, size=9)
            arrow(ax, (x, base + 1.61), (x, base + 2.29))
    label(ax, left - 0.8, base + 3.4, name, size=10.5, align="left", weight="bold")


@diagram(
    alt="A row of past values; the last three are multiplied by the weights w3, w2, w1 and summed to predict the next. "
    "Below, the same three weights one step later, with the prediction as the newest value.",
    caption="With $K=3$ the next value is a weighted sum of the last three. The window slides with its weights. To "
    "forecast further it takes in its own predictions; what has left the window enters only through them.",
)
def autoregressive_window():
    """Draw the window of a linear autoregression at two successive steps."""
    ax = canvas(16, 7.6)
    _window(ax, 5.0, 0, ["$x_{t-5}$", "$x_{t-4}$", "$x_{t-3}$", "$x_{t-2}$", "$x_{t-1}$"], r"$\hat x_{t}$", [])
    _window(
        ax, 1.1, 1, ["$x_{t-5}$", "$x_{t-4}$", "$x_{t-3}$", "$x_{t-2}$", "$x_{t-1}$", r"$\hat x_{t}$"],
        r"$\hat x_{t+1}$", [5],
    )  # fmt: skip
    label(ax, 0.3, 7.2, "predict one step", size=10.5, align="left", weight="bold")
    label(ax, 0.3, 3.3, "then the next one", size=10.5, align="left", weight="bold")
    return ax


def _window(ax, y, shift, names, predicted, own):
    """A row of values, of which the last three reach the prediction."""
    step, left = 2.2, 1.3
    target = left + step * len(names)
    box(ax, target, y, predicted, kind="output", w=1.5, h=0.8, size=11)
    for i, name in enumerate(names):
        x, lag = left + step * i, len(names) - i
        kind = "output" if i in own else "input" if lag <= 3 else "muted"
        box(ax, x, y, name, kind=kind, w=1.5, h=0.8, size=11)
        if lag <= 3:
            arrow(ax, (x, y + 0.42), (target - 0.42 * (lag - 2), y + 0.42), kind="weight", bend=-0.17 - 0.05 * lag)
            label(ax, x - 0.35, y + 0.75, f"$w_{lag}$", kind="weight", size=11)
    if shift:
        label(ax, left + step * 1, y - 0.85, "has left the window", size=9.5)
        label(ax, left + step * 5, y - 0.85, "fed back", size=9.5)


@diagram(
    alt="Four tokens, twice. Above, the fourth token has arrows from all three before it. "
    "Below, only the arrow from the third token remains; the two others are dashed and grey.",
    caption="The chain rule lets every token depend on all tokens before it and is exact. The Markov assumption keeps "
    "the last $K$ of them ($K=1$ here) and drops the rest.",
)
def language_model_chain():
    """Draw the dependencies of the chain rule, and those that a bigram model keeps."""
    ax = canvas(16, 8.6)
    words = ["the", "dog", "bit", "us"]
    exact = ["$p(x_1)$", "$p(x_2|x_1)$", "$p(x_3|x_1,x_2)$", "$p(x_4|x_1,x_2,x_3)$"]
    bigram = ["$p(x_1)$", "$p(x_2|x_1)$", "$p(x_3|x_2)$", "$p(x_4|x_3)$"]
    for name, y, factors, reach in (("chain rule", 5.4, exact, 3), ("Markov, K = 1", 1.2, bigram, 1)):
        label(ax, 0.3, y + 2.5, name, size=10.5, align="left", weight="bold")
        for t, (word, factor) in enumerate(zip(words, factors, strict=True)):
            x = 2.2 + 3.85 * t
            box(ax, x, y, word, kind="input", w=1.9, h=0.8, size=11)
            label(ax, x, y - 0.8, factor, kind="attention", size=10.5)
            for s in range(t):
                kept, start = t - s <= reach, 2.2 + 3.85 * s
                ends = (start + 0.5, y + 0.43), (x - 0.7 + 0.35 * (t - s - 1), y + 0.43)
                bend = -0.24 if t - s > 1 else -0.35
                arrow(ax, *ends, kind="attention" if kept else "muted", bend=bend, dashed=not kept)
    return ax


@diagram(
    alt="Bottom to top: six letters, an embedding for each; from the third letter on a hidden state, made from three "
    "embeddings by the same weights, and from each hidden state a prediction of the next letter.",
    caption="A letter becomes the same vector wherever it stands; the same weights turn every window of three vectors "
    "into a guess at the letter after it. The first two letters have no full window, and get no prediction.",
)
def conv_language_model():
    """Draw the fixed-window language model: embedding, convolution, prediction."""
    ax = canvas(16, 8.8)
    tokens, following = ["a", "t", "·", "t", "h", "e"], ["t", "h", "e", "·"]  # the dot is the space
    columns = [3.6 + 2.25 * i for i in range(6)]
    for t, x in enumerate(columns):
        box(ax, x, 0.7, tokens[t], kind="input", w=1.6, h=0.75, size=11)
        box(ax, x, 2.5, rf"$\mathbf{{e}}_{t + 1}$", kind="hidden", w=1.4, h=0.75, size=11)
        arrow(ax, (x, 1.08), (x, 2.12))
    for t, x in enumerate(columns[2:], 2):
        box(ax, x, 5.3, rf"$\mathbf{{h}}_{t + 1}$", kind="hidden", w=1.4, h=0.75, size=11)
        box(ax, x, 7.4, f"{following[t - 2]} ?", kind="output", w=1.6, h=0.75, size=11)
        arrow(ax, (x, 5.68), (x, 7.02))
        for j in range(3):
            now = t == 4
            arrow(ax, (columns[t - j], 2.89), (x - 0.25 * j, 4.92), kind="weight" if now else "muted", dashed=not now)
    for j, dx in enumerate((0.5, 0.3, 0.0)):
        label(ax, columns[4] - 1.55 * j + dx, 3.75, f"$W_{j}$", kind="weight", size=11, background=True)
    for y, text in ((0.7, "letters"), (2.5, "embeddings"), (5.3, "hidden"), (7.4, "next letter")):
        label(ax, 0.2, y, text, size=9.5, align="left")
    return ax
