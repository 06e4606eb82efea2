"""Drawing the next token: temperature, top-k and top-p on logits of a model (chapter 13)."""

import torch

from course_lib.generate import top_k_top_p
from course_lib.notebook import plots
from course_lib.notebook.interactive.base import Interactive, rounded

SHOWN = 15  # bars


def sampling(
    tokens, logits, *, temperature=1.0, top_k=None, top_p=None, title="Drawing the next token", alt=None, caption=None
):
    """Let the reader turn temperature, top-k and top-p, see what is cut, and draw.

    Args:
        tokens: the V tokens, as strings.
        logits: (V,) of the next token. Or a dict of them, one for each place in a text, by a short name:
            the reader chooses.
        temperature: at the start, from 0.1 to 3.
        top_k: at the start, or None.
        top_p: at the start, from 0.05 to 1, or None.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence; None has a sentence of its own.
        caption: its answer, as a sentence, below; None has a sentence of its own.

    >>> sampling(["a", "b"], [0.3, 0.1])
    [interactive figure] Probabilities of the likeliest next tokens as bars; ...
    """
    tokens = [str(token) for token in tokens]
    places = logits if isinstance(logits, dict) else {"": logits}
    places = {name: torch.as_tensor(z).detach().double().cpu() for name, z in places.items()}
    for name, z in places.items():
        if z.shape != (len(tokens),) or len(tokens) < 2 or not z.isfinite().all():
            raise ValueError(
                f"logits {name!r} must be finite numbers, one for each of the {len(tokens)} tokens (at least two), "
                f"got shape {tuple(z.shape)}"
            )
    if (
        not 0.1 <= temperature <= 3
        or (top_k is not None and top_k < 1)
        or (top_p is not None and not 0.05 <= top_p <= 1)
    ):
        raise ValueError(
            f"temperature must be from 0.1 to 3, top_k at least 1, top_p from 0.05 to 1; "
            f"got {temperature=}, {top_k=}, {top_p=}"
        )
    view = {
        "title": title, "places": list(places), "shown": SHOWN,
        "temperature": temperature, "top_k": top_k, "top_p": top_p,
    }  # fmt: skip
    alt = alt or "Probabilities of the likeliest next tokens as bars; what top-k and top-p cut is pale."
    caption = caption or (
        "What does each dial cut? Temperature tilts all bars and cuts nothing; top-k keeps a number of tokens, top-p a "
        "share of the probability."
    )
    numbers = {
        "tokens": tokens,
        "logits": [rounded(z) for z in places.values()],
    }  # an alphabet may be the machine's own

    def draw():
        return _draw(tokens, places, temperature, top_k, top_p)

    return Interactive("decoding", view, numbers, alt, caption, draw)


def _draw(tokens, places, temperature, top_k, top_p):
    axes = plots.grid(1, len(places), height=3.4)[0]
    for ax, (name, z) in zip(axes, places.items(), strict=True):
        p, order = (z / temperature).softmax(0).sort(descending=True, stable=True)
        kept = top_k_top_p(z / temperature, top_k, top_p).isfinite()[order]
        names = [tokens[n].replace(" ", "␣").replace("\n", "↵").replace("$", r"\$") for n in order[:SHOWN]]
        colors = [plots.COLORS["attention"] if is_kept else "#D0D4D9" for is_kept in kept[:SHOWN]]
        ax.barh(range(len(names)), p[:SHOWN].tolist(), color=colors)
        ax.set_yticks(range(len(names)), names)
        ax.invert_yaxis()
        ax.grid(visible=False, axis="y")
        ax.set(xlabel="probability", title=name)
    return axes[0]
