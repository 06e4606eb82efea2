"""The root of K: what the softmax makes of dot products of random vectors (chapter 07)."""

import base64

import torch

from course_lib.notebook import plots
from course_lib.notebook.interactive.base import Interactive

WIDEST, KEYS, QUERIES = 1024, 8, 16


def root_of_k(*, width=64, seed=0, title="Dot products, with and without the root", alt=None, caption=None):
    r"""Show the weights of 8 random keys, with the scores divided by $\sqrt K$ and undivided, for a K from 1 to 1024.

    The vectors are standard normal; those of width K are the first K entries of the widest. Beside the weights stand
    the largest of them and the slope, the norm of the softmax's Jacobian, through which every gradient must pass.

    Args:
        width: K at the start, a power of two.
        seed: of the vectors.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence; None has a sentence of its own.
        caption: its answer, as a sentence, below; None has a sentence of its own.

    >>> root_of_k(width=256)
    [interactive figure] Undivided, the largest of 8 weights goes to 1 ...
    """
    if width not in [2**n for n in range(11)]:
        raise ValueError(f"width must be a power of two from 1 to {WIDEST}, got {width!r}")
    vectors = normal_vectors(seed)
    view = {"title": title, "width": width, "keys": KEYS, "queries": QUERIES, "widest": WIDEST}
    numbers = base64.b64encode((1000 * vectors).round().short().numpy().astype("<i2").tobytes()).decode()
    alt = alt or "Undivided, the largest of 8 weights goes to 1 as K grows and the slope to 0; divided, both stay."
    caption = caption or (
        "What does the division by the root of K prevent? Undivided scores grow with the width until one key takes "
        "all, and no gradient comes through; divided ones stay where the softmax answers."
    )
    return Interactive("saturation", view, numbers, alt, caption, lambda: _draw(vectors, width))


def normal_vectors(seed):
    """16 queries and 8 keys, standard normal, in thousandths: (24, 1024).

    >>> normal_vectors(0).shape
    torch.Size([24, 1024])
    """
    drawn = torch.randn(QUERIES + KEYS, WIDEST, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (1000 * drawn).round() / 1000


def _draw(vectors, width):
    q, k = vectors[0, :width], vectors[QUERIES:, :width]
    axes = plots.grid(1, 2, height=2.8, sharey=True)[0]
    for ax, scores, name, kind in (
        (axes[0], k @ q, "undivided", "gradient"),
        (axes[1], k @ q / width**0.5, f"divided by the root of {width}", "attention"),
    ):
        ax.bar(range(1, KEYS + 1), scores.softmax(0).tolist(), color=plots.COLORS[kind])
        ax.set(title=name, xlabel="key", ylim=(0, 1))
        ax.set_xticks(range(1, KEYS + 1))
        ax.grid(visible=False, axis="x")
    axes[0].set_ylabel(f"weight, K = {width}")
    return axes[0]
