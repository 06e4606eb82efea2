"""RoPE's angles: clock hands for a query and a key, and their product by distance (chapter 08)."""

import torch

from course_lib.notebook import plots
from course_lib.notebook.interactive.base import Interactive, rounded
from course_lib.positional import RoPE

QUERY = (1.0, 0.3, 0.8, -0.6, -0.4, 1.1, 0.9, 0.5)
KEY = (0.7, -0.8, 1.0, 0.4, 0.6, 0.9, 0.2, 1.2)
LONGEST = 64


def rope_angles(
    query=QUERY, key=KEY, *, at=(9, 4), base=10000.0, title="RoPE: every pair is a clock", alt=None, caption=None
):
    r"""Show a query and a key as hands of clocks, one for each pair, and $q \cdot k$ as a function of their distance.

    Args:
        query: K numbers, K even, at most 12.
        key: K numbers; with `None` it is the query.
        at: positions of the query and of the key at the start, from 0 to 63.
        base: of RoPE's frequencies.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence; None has a sentence of its own.
        caption: its answer, as a sentence, below; None has a sentence of its own.

    >>> rope_angles()
    [interactive figure] Each pair of a query and a key is a clock with two hands; ...
    """
    query = torch.as_tensor(query, dtype=torch.float64)
    key = query if key is None else torch.as_tensor(key, dtype=torch.float64)
    if query.shape != key.shape or query.dim() != 1 or len(query) % 2 or not 2 <= len(query) <= 12:
        raise ValueError(
            f"query and key must be (K,) with an even K up to 12, got {tuple(query.shape)} and {tuple(key.shape)}"
        )
    if any(place not in range(LONGEST) for place in at):
        raise ValueError(f"positions must be from 0 to {LONGEST - 1}, got {at!r}")
    view = {"title": title, "at": list(at), "base": base, "longest": LONGEST}
    alt = (
        alt or "Each pair of a query and a key is a clock with two hands; their product depends on the distance alone."
    )
    caption = caption or (
        "What does RoPE let a score know? Only the distance: moving both positions alike turns all hands, and the "
        "angle between them, which makes the product, stays."
    )
    numbers = [rounded(query), rounded(key)]
    return Interactive("rope", view, numbers, alt, caption, lambda: _draw(query, key, at, base))


def _draw(query, key, at, base):
    rope = RoPE(len(query), base)
    distances = torch.arange(1 - LONGEST, LONGEST)
    here = rope.rotate(query.expand(1, 1, 2 * LONGEST - 1, -1), positions=distances + LONGEST)  # the key stands at 64
    there = rope.rotate(key.view(1, 1, 1, -1), LONGEST)
    products = (here * there).sum(-1).flatten()
    ax = plots.axes(height=3.0)
    ax.plot((-distances).tolist(), products.tolist(), color=plots.color("score"))
    now = at[0] - at[1]
    ax.plot([-now], [products[now + LONGEST - 1].item()], "o", color=plots.color("score"))
    ax.axvline(0, color=plots.COLORS["muted"], linewidth=1)
    ax.set(xlabel="distance: position of the key less position of the query", ylabel="product of query and key")
    return ax
