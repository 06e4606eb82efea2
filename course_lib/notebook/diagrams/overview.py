"""The course at a glance, for the README."""

from course_lib.notebook.diagrams import FAINT, box, canvas, diagram, frame, label, wire

STEP, WIDTH, RISE = 4.1, 3.75, 0.55  # from one station to the next, of a station, and how much higher it stands


@diagram(
    alt="Four frames, each a step higher than the one before. Text and order, chapters 01 and 02: a row of tokens, of "
    "which a window covers three; but a window forgets. A state, 03 to 06: the tokens feed a chain of states; but a "
    "state is narrow. Attention, 07 to 10: the last place has lines to all tokens; but depth resists. Depth, 11 to "
    "14: a tall stack of layers over all tokens, which says the next word.",
    caption="Each step repairs what the one before it cannot do.",
)
def course_overview():
    """Four stations, each with its picture, its chapters and the failure that leads to the next."""
    stations = [
        ("Text and order", "token", _window, ["01 language models", "02 text to tensors"], "a window forgets"),
        ("A state", "hidden", _chain, ["03 RNN", "04 BPTT", "05 LSTM and GRU", "06 seq2seq"], "a state is narrow"),
        ("Attention", "attention", _fan, ["07 attention", "08 position", "09 Transformer", "10 what it costs"],
         "depth resists"),
        ("Depth", "weight", _stack, ["11 tricks, measured", "12 BERT", "13 GPT", "14 today's models"], ""),
    ]  # fmt: skip
    ax = canvas(16.4, 8.2)
    for i, (title, kind, draw, chapters, failure) in enumerate(stations):
        x, y = 0.15 + STEP * i, 0.15 + RISE * i
        frame(ax, x, y, WIDTH, 6.2)
        label(ax, x + WIDTH / 2, y + 5.75, title, kind=kind, size=12, weight="bold")
        draw(ax, x + 0.46, y + 2.85, kind)
        for row, text in enumerate(chapters):
            label(ax, x + WIDTH / 2, y + 1.62 - 0.4 * (row - (len(chapters) - 1) / 2), text, size=8.5)
        if failure:
            label(ax, x + WIDTH / 2, y + 0.36, f"but {failure}", kind="gradient", size=8.5, weight="bold")
            wire(ax, [(x + WIDTH, y + 3.4), (x + STEP, y + 3.4)], "gradient", lw=2.4)
    return ax


def _tokens(ax, x, y, kinds):
    """Five small tokens in a row; returns the x of their middles."""
    places = [x + 0.7 * t for t in range(5)]
    for place, kind in zip(places, kinds, strict=True):
        box(ax, place, y, "", kind=kind, w=0.5, h=0.4)
    return places


def _next(ax, x, y, kind="output"):
    """The place where the next word is said."""
    box(ax, x, y, "?", kind=kind, w=0.5, h=0.44, size=9.5)


def _window(ax, x, y, kind):
    """A window of three tokens, and the next one."""
    places = _tokens(ax, x, y, ["faint", kind, kind, kind, "faint"])
    frame(ax, places[1] - 0.36, y - 0.33, 2.12, 0.66, face="none", edge=FAINT)
    for place in places[1:4]:
        wire(ax, [(place, y + 0.2), (places[3] + 0.3 * (place - places[3]) / 1.4, y + 1.95)], kind, lw=1.4)
    _next(ax, places[3], y + 2.2)


def _chain(ax, x, y, kind):
    """Tokens that feed a chain of states."""
    places = _tokens(ax, x, y, ["token"] * 5)
    for t, place in enumerate(places):
        wire(ax, [(place, y + 0.2), (place, y + 0.9)], lw=1.2)
        box(ax, place, y + 1.1, "", kind=kind, w=0.42, h=0.4)
        if t:
            wire(ax, [(places[t - 1] + 0.21, y + 1.1), (place - 0.21, y + 1.1)], kind, lw=1.4)
    wire(ax, [(places[4], y + 1.3), (places[4], y + 1.98)], kind, lw=1.4)
    _next(ax, places[4], y + 2.2)


def _fan(ax, x, y, kind):
    """One place that looks at all tokens."""
    places = _tokens(ax, x, y, ["token"] * 5)
    for place, lw in zip(places, (0.8, 3.2, 0.8, 1.6, 1.2), strict=True):
        wire(ax, [(places[4] + 0.06 * (place - places[4]), y + 1.92), (place, y + 0.2)], kind, head=False, lw=lw)
    _next(ax, places[4], y + 2.2)


def _stack(ax, x, y, kind):
    """Many layers over all tokens."""
    places = _tokens(ax, x, y, ["token"] * 5)
    for row in range(4):
        box(ax, places[2], y + 0.52 + 0.4 * row, "", kind="attention" if row % 2 == 0 else kind, w=3.3, h=0.3)
    wire(ax, [(places[4], y + 1.87), (places[4], y + 2.2)], kind, lw=1.4)
    _next(ax, places[4], y + 2.42)
