"""The course at a glance, for the README."""

from course_lib.diagrams import arrow, box, canvas, diagram, label


@diagram(
    alt="The thirteen chapters in four steps: text and order (01, 02), a state that remembers (03 to 06), "
    "attention in its place (07 to 10), training and pre-training (11 to 13).",
    caption="Each step repairs what the one before it cannot do.",
)
def course_overview():
    """Four columns of chapters, with the failure that leads from each to the next."""
    steps = [
        ("Text and order", "input", ["01 language models", "02 text to tensors"]),
        ("A state", "hidden", ["03 RNN", "04 BPTT", "05 LSTM and GRU", "06 seq2seq"]),
        ("Attention", "attention", ["07 attention", "08 position", "09 Transformer", "10 what it costs"]),
        ("Training at depth", "output", ["11 tricks, measured", "12 BERT", "13 GPT"]),
    ]
    leads = ["a window forgets", "a state is narrow", "depth resists"]
    ax = canvas(16.2, 4.75)
    for i, (title, kind, chapters) in enumerate(steps):
        x = 1.8 + 4.2 * i
        label(ax, x, 4.4, title, size=10, weight="bold")
        for j, chapter in enumerate(chapters):
            box(ax, x, 3.2 - 0.9 * j, chapter, kind=kind, w=3.1, h=0.68, size=8.5)
        if i < 3:
            arrow(ax, (x + 1.6, 3.2), (x + 2.6, 3.2), kind="gradient")
            label(ax, x + 2.1, 3.77, leads[i], kind="gradient", size=8)
    return ax
