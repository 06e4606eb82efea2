"""Beam search, step by step: what the course's own search saw and kept (chapter 06)."""

import math

import torch

from course_lib import generate
from course_lib.notebook import plots
from course_lib.notebook.interactive.base import Interactive, rounded
from course_lib.text import EOS, PAD, SOS

MOST = 16  # candidates that are shown of a step


def beam_search(
    model, words, source=None, *, prompt=None, sizes=(1, 2, 3), size=None, max_new_tokens=8, eos_id=EOS,
    suppress_tokens=(PAD, SOS), title="Beam search, step by step", alt=None, caption=None,
):  # fmt: skip
    """Show which beginnings a search extends, which it keeps and which are finished, for each size of the beam.

    Args:
        model: as `generate.beam_search_one` takes it; its searches are recorded.
        words: list of all words, or a function from an id to its word.
        source: (1, S), or None.
        prompt: (1, T), or None.
        sizes: sizes of the beam that the reader may choose among.
        size: the one at the start; None: the first.
        max_new_tokens: as in the search.
        eos_id: as in the search.
        suppress_tokens: as in the search.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence; None has a sentence of its own.
        caption: its answer, as a sentence, below; None has a sentence of its own.
    """
    if size is not None and size not in sizes:
        raise ValueError(f"size is {size!r}; wanted one of {list(sizes)}")
    options = {"prompt": prompt, "max_new_tokens": max_new_tokens, "eos_id": eos_id, "suppress_tokens": suppress_tokens}
    runs = [record(model, source, beam_size=k, **options) for k in sizes]
    say = words if callable(words) else words.__getitem__
    runs_view, numbers = [], []
    for steps in runs:
        runs_view.append([[[say(c["tokens"][-1]), c["parent"], c["fate"]] for c in step] for step in steps])
        numbers.append(rounded([[c["score"] for c in step] for step in steps]))
    view = {
        "title": title,
        "sizes": list(sizes),
        "start": 0 if size is None else list(sizes).index(size),
        "runs": runs_view,
    }
    alt = (
        alt or "A search grows to the right: at each step every open beginning is extended, and only the best are kept."
    )
    caption = caption or (
        "What does a beam keep? Of all extensions together the best, as many as it has places; a sentence that is "
        "finished keeps its place."
    )
    return Interactive("beam", view, numbers, alt, caption, lambda: _draw(runs[view["start"]], say))


class Recorded:
    """A model that writes down what a search asks of it: at each step the beginnings and the next log-probabilities."""

    def __init__(self, model):
        self.model, self.vocab_size, self.max_len, self.asked = model, model.vocab_size, model.max_len, []

    def start(self, *source):
        """The model's state, and beside it what is written so far: the search reorders both alike."""
        return {**self.model.start(*source), "recorded": torch.zeros(1, 0, dtype=torch.int64)}

    def step(self, tokens, state):
        """One step of the model."""
        written = torch.cat([state["recorded"], tokens.cpu()], 1)
        logits, new = self.model.step(tokens, {name: part for name, part in state.items() if name != "recorded"})
        self.asked.append((written, logits.log_softmax(-1).double().cpu()))
        return logits, {**new, "recorded": written}


def record(model, source=None, *, beam_size, prompt=None, eos_id=EOS, suppress_tokens=(PAD, SOS), **options):
    """Search with `generate.beam_search_one` and tell its steps.

    Returns:
        list of steps, each a list of candidates by falling score, at most 16: dict of "tokens" (without the prompt),
        "score", "parent" (number of the beginning among the step before's candidates, -1 at the first) and "fate"
        ("kept", "finished" or "dropped").
    """
    ends = {"eos_id": eos_id, "suppress_tokens": suppress_tokens}
    watched = Recorded(model)
    found = generate.beam_search_one(watched, source, prompt=prompt, beam_size=beam_size, **ends, **options)
    given = 1 if prompt is None else prompt.shape[1]
    ended = {(*h.tokens, eos_id) for h in found if h.finished}
    steps, scores = [], {(): 0.0}
    for number, (written, log_probs) in enumerate(watched.asked):
        begun = [tuple(row) for row in written[:, given:].tolist()]
        later = watched.asked[number + 1][0] if number + 1 < len(watched.asked) else None
        if later is None:
            kept = {tuple(h.tokens) for h in found if not h.finished}
        else:
            kept = {tuple(row) for row in later[:, given:].tolist()}
        log_probs = generate.without_tokens(log_probs, suppress_tokens)
        candidates = []
        for row, beginning in enumerate(begun):
            parent = next((n for n, c in enumerate(steps[-1]) if c["tokens"] == beginning), -1) if steps else -1
            best, tokens = log_probs[row].topk(min(MOST, log_probs.shape[1]))
            for value, token in zip(best.tolist(), tokens.tolist(), strict=True):
                extended = (*beginning, token)
                fate = "finished" if extended in ended else "kept" if extended in kept else "dropped"
                if value > -math.inf:
                    score = scores[beginning] + value
                    candidates.append({"tokens": extended, "score": score, "parent": parent, "fate": fate})
        steps.append(sorted(candidates, key=lambda c: -c["score"])[:MOST])
        scores = {c["tokens"]: c["score"] for c in steps[-1]}
    return steps


def _draw(steps, say):
    """The tree of all candidates, a column for each step."""
    heights = _heights(steps)
    ax = plots.axes(height=0.9 + 0.36 * max(map(len, steps)))
    colors = {"kept": plots.COLORS["attention"], "finished": plots.COLORS["hidden"], "dropped": "#9AA0A6"}
    for number, step in enumerate(steps):
        for c, y in zip(step, heights[number], strict=True):
            before = heights[number - 1][c["parent"]] if number else 0.5
            weight = "normal" if c["fate"] == "dropped" else "bold"
            ax.plot([number + 0.42, number + 0.8], [before, y], color=colors[c["fate"]], linewidth=1.4, zorder=0)
            name = f"{say(c['tokens'][-1])}  {c['score']:.2f}".replace("-", "−")
            ax.text(
                number + 1.1, y, name, ha="center", va="center", color=colors[c["fate"]], weight=weight, fontsize=9.5
            )
    ax.text(0.2, 0.5, "start", ha="center", va="center", fontsize=9.5)
    ax.set(xlim=(0, len(steps) + 0.5), ylim=(-0.02, 1.02), yticks=[])
    ax.set_xticks([n + 1.1 for n in range(len(steps))], [f"step {n + 1}" for n in range(len(steps))])
    ax.grid(visible=False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    return ax


def _heights(steps):
    """Where each candidate of each step stands, from 1 at the top to 0: those of one beginning together."""
    heights = []
    for step in steps:
        above = (lambda c, last=heights[-1] if heights else None: -last[c["parent"]]) if heights else (lambda c: 0)
        order = sorted(range(len(step)), key=lambda n, step=step, above=above: (above(step[n]), n))
        heights.append([1 - (order.index(n) + 0.5) / len(step) for n in range(len(step))])
    return heights
