"""The still picture of the attention explorer, for readers whose page runs no scripts."""

import base64
import io
import math

import torch

from course_lib.notebook import plots

WIDTH = 7.0  # in inches
MASKED = "#E4E4E4"


def still(sentences, view):
    """Draw the map that is shown first with its tokens, and all maps small beside it; return PNG in base64.

    Args:
        sentences: dict from name to list of `explorer.Part`; the first one is drawn.
        view: what is shown first, of the `Explorer`.
    """
    import matplotlib.pyplot as plt
    from PIL import Image  # matplotlib's own means to write PNG; 256 colours take a third of the room

    name, parts = next(iter(sentences.items()))
    begin, heads = parts[view["part"]], view["heads"]
    shown = _masked_as_nan(_chosen(begin.layers[view["layer"]].weights, heads))
    height = min(9.0, max(2.8, 1.6 + 0.21 * len(begin.queries)))
    ax, small = plots.grid(1, 2, width=WIDTH, height=height, width_ratios=[3, 2])[0]
    plots.heatmap(ax, shown, begin.keys, begin.queries, "weight", xlabel="key", ylabel="query")
    ax.set_facecolor(MASKED)
    ax.tick_params(axis="x", rotation=90)
    ax.grid(visible=False)
    said = f"head {heads[0]}" if len(heads) == 1 else "mean of heads"
    where = f"{begin.name} layer {view['layer']}, {said}".strip()
    ax.set_title(f"{where} ({name})" if name else where)
    _mosaic(small, parts)
    drawn, png = io.BytesIO(), io.BytesIO()
    ax.figure.savefig(drawn, format="png", dpi=140)
    plt.close(ax.figure)
    Image.open(drawn).convert("RGB").quantize(256).save(png, format="png", optimize=True)
    return base64.b64encode(png.getvalue()).decode()


def _chosen(layer, heads):
    return layer.mean(0) if heads == "mean" else layer[heads].mean(0)


def _masked_as_nan(matrix):
    """Leave out what is masked, so that it shows the background; an empty map stays as it is."""
    return matrix if (matrix == 0).all() else torch.where(matrix == 0, math.nan, matrix)


def _mosaic(ax, parts):
    """Draw all maps small: a row for each layer, a column for each head and, last, for the mean of several."""
    rows = [(f"{part.name} layer {n}".strip(), looks[0]) for part in parts for n, looks in enumerate(part.layers)]
    heads = max(len(layer) for _, layer in rows)
    columns = [*range(heads), *(["mean"] if heads > 1 else [])]
    high, wide = (1 + max(layer.shape[axis] for _, layer in rows) for axis in (1, 2))
    picture = torch.ones(high * len(rows) - 1, wide * len(columns) - 1, 3)
    for r, (_, layer) in enumerate(rows):
        shown = [*enumerate(layer), *([(heads, layer.mean(0))] if len(layer) > 1 else [])]  # (column, map)
        for c, m in shown:
            picture[r * high : r * high + m.shape[0], c * wide : c * wide + m.shape[1]] = _colours(m)
    ax.imshow(picture.numpy(), interpolation="nearest")
    ax.set_xticks([wide * c + (wide - 2) / 2 for c in range(len(columns))], columns)
    ax.set_yticks([high * r + (high - 2) / 2 for r in range(len(rows))], [name for name, _ in rows])
    ax.grid(visible=False)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set(xlabel="head", title="every layer and head")


def _colours(weights):
    """Return (T, S, 3) colours: white to blue by the weight's square root, grey where it is masked."""
    from matplotlib.colors import to_rgb

    white, blue = torch.ones(3), torch.tensor(to_rgb(plots.COLORS["attention"]))
    mixed = white + weights.sqrt().unsqueeze(-1) * (blue - white)
    return torch.where(weights.unsqueeze(-1) == 0, torch.tensor(to_rgb(MASKED)), mixed).float()
