"""The forget gate: what is left of a cell after k steps (chapter 05)."""

import torch

from course_lib.notebook import plots
from course_lib.notebook.interactive.base import Interactive

STEPS = 200


def forget_gate(*, bias=1.0, steps=60, beside=(1.0, 3.0), title="What a forget gate leaves", alt=None, caption=None):
    r"""Show $f^k$, what is left of a cell after k steps, and the half-life, for the f that the reader sets.

    The slider moves the gate's bias b, $f = \sigma(b)$, so it is fine where f is near 1.

    Args:
        bias: the bias at the start, from 0 to 8.
        steps: the number of steps k at the start, from 1 to 200.
        beside: biases whose curves the still picture draws beside it.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence; None has a sentence of its own.
        caption: its answer, as a sentence, below; None has a sentence of its own.

    >>> forget_gate(bias=3.0)
    [interactive figure] What is left of a cell falls with every step, ...
    """
    if not 0 <= bias <= 8 or steps not in range(1, STEPS + 1):
        raise ValueError(f"bias must be from 0 to 8 and steps from 1 to {STEPS}; got {bias=}, {steps=}")
    view = {"title": title, "bias": bias, "steps": steps, "most": STEPS}
    alt = alt or "What is left of a cell falls with every step, the more slowly the nearer its forget gate is to 1."
    caption = (
        caption or "How long does a cell remember? Each step multiplies it by f: only a gate very near 1 keeps it."
    )
    return Interactive("gate", view, [], alt, caption, lambda: _draw(bias, steps, beside))


def _draw(bias, steps, beside):
    k = torch.arange(STEPS + 1)
    ax = plots.axes(height=3.2)
    for b in sorted({*beside, bias}):
        f = torch.tensor(b).sigmoid()
        name = f"f = {f:.3g}, bias {b:g}"
        color = "forget gate" if b == bias else "muted"
        plots.lines(ax, {name: (k.tolist(), (f**k).tolist())}, "", "", colors={name: color})
    ax.axvline(steps, color=plots.COLORS["ink"], linewidth=1, linestyle=":")
    ax.set(xlabel="steps k", ylabel="left of the cell, f to the power k")
    ax.legend(loc="upper right")  # at the curves' ends the names would lie on the axis
    return ax
