r"""An attention explorer: choose a layer and a head, point at a token, see where it looks.

`explore(tokens, maps)` shows the attention maps of one sentence, or of a source and its target.
It is one piece of HTML with its own SVG and script (`explorer.html`, beside this file): it asks no
network and no kernel for anything, so it works in JupyterLab, in Colab and on a plain page. Where
scripts do not run (a notebook that the reader has not trusted yet, GitHub, print) the reader sees
a still picture of the same maps in its place.

Used in notebooks 07 and 09.
"""

import base64
import html
import io
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path

import torch

from course_lib import plots

TEMPLATE = Path(__file__).with_suffix(".html")
WIDTH = 7.0  # of the still picture, in inches
MASKED = "#E4E4E4"
TOLERANCE = 1e-2  # how far a row's sum may be from 1: maps in half precision are welcome
PAGE = """\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>:root {{ color-scheme: light dark; }} body {{ max-width: 860px; margin: 24px auto; padding: 0 12px;
font-family: "DejaVu Sans", system-ui, sans-serif; }}</style>
</head>
<body>
{body}
</body>
</html>
"""


@dataclass(frozen=True)
class Part:
    """The maps of one kind of attention: N layers of (H, T, S), with the T and S tokens.

    Example:
        >>> Part("cross", ["a"], ["b"], [torch.ones(1, 1, 1)]).code
        'maps["cross"]'
    """

    name: str  # "" if it is the only one
    queries: list
    keys: list
    maps: list

    @property
    def code(self):
        """What to write to get the list of maps."""
        return f"maps[{json.dumps(self.name)}]" if self.name else "maps"


def explore(tokens, maps, *, keys=None, title="Attention", alt, caption, part=None, layer=0, head=0, query=None):
    r"""Show attention maps in which the reader chooses a layer and a head and points at a token.

    Pointing at a query shows where it looks (the row of the map), pointing at a key shows who looks
    at it (the column). Layers, heads and positions are counted from 0, as in the tensors.

    Args:
        tokens: the T query tokens; or, if `maps` is a dict, a dict with the tokens of each part.
        maps: a list with one tensor (H, T, S) for each layer: the weights of one sentence. Or a dict from
            the name of a part ("encoder", "decoder", "cross") to such a list. Each row sums to 1, or to 0
            where every key is masked; a weight of exactly 0 is shown as masked.
        keys: the S key tokens; None means that they are the queries. If `maps` is a dict, a dict that
            needs to name only the parts whose keys are not their queries.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence.
        caption: its answer, as a sentence, below; *stress* works, and $formulas$ do in notebooks.
        part: name of the part to begin with; None means the first.
        layer: index of the layer to begin with.
        head: index of the head to begin with, or "mean" for the mean over the heads.
        query: index of the query token to begin with; None shows the lines of all.

    Returns:
        An `Explorer`; as the last line of a cell it shows itself.

    Raises:
        ValueError: if alt or caption is empty, if the maps have another shape than the tokens ask for, if
            a row sums to neither 1 nor 0 or a weight is negative or not a number, or if there is no such
            part, layer, head or query.

    Example:
        >>> maps = [torch.full((3, 2, 2), 0.5)]
        >>> shown = explore(["a", "b"], maps, alt="Two tokens.", caption="Each looks at both alike.")
        >>> shown
        [attention explorer] Two tokens.
        >>> shown.page().splitlines()[0]
        '<!DOCTYPE html>'
    """
    if not alt.strip() or not caption.strip():
        raise ValueError(f"an explorer needs alt text and a caption; got alt={alt!r} and caption={caption!r}")
    if isinstance(maps, dict):
        parts = _parts(tokens, maps, keys or {})
    else:
        parts = [_part("", tokens, maps, keys)]
    names = [p.name for p in parts]
    if part is not None and not isinstance(maps, dict):
        raise ValueError(f"part is {part!r}, but maps is a list; only the maps of a dict have names")
    if part is not None and part not in names:
        raise ValueError(f"part is {part!r}; wanted one of {names}")
    start = 0 if part is None else names.index(part)
    begin = parts[start]
    _in_range("layer", layer, len(begin.maps))
    if head != "mean":
        _in_range("head", head, len(begin.maps[0]))
    if query is not None:
        _in_range("query", query, len(begin.queries))
    view = {"title": title, "part": start, "layer": layer, "head": head, "query": query}
    return Explorer(parts, view, alt.strip(), caption.strip())


@dataclass(frozen=True, repr=False)
class Explorer:
    """What `explore` returns: shows itself in a notebook, and writes itself as a page.

    Args:
        parts: list of `Part`, checked.
        view: the title and what is shown first.
        alt: text for a reader who cannot see it.
        caption: the line below.

    Example:
        >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
        >>> [part.queries for part in shown.parts]
        [['a', 'b']]
    """

    parts: list
    view: dict
    alt: str
    caption: str

    def __repr__(self):
        return f"[attention explorer] {self.alt}"

    def html(self):
        """Return the explorer as a piece of HTML, to stand in any page, any number of times.

        Example:
            >>> maps = torch.eye(2).expand(1, 1, 2, 2)
            >>> "http" in explore(["a", "b"], maps, alt="Two tokens.", caption="Each looks at itself.").html()
            False
        """
        return self._html(self._still())

    def page(self):
        """Return a whole HTML document with the explorer, which needs no other file.

        Example:
            >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
            >>> "<title>Attention</title>" in shown.page()
            True
        """
        return PAGE.format(title=html.escape(self.view["title"]), body=self.html())

    def write_page(self, path):
        """Write the document that `page` returns.

        Args:
            path: the file to write, such as "attention.html".

        Example:
            >>> import tempfile
            >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
            >>> with tempfile.TemporaryDirectory() as folder:
            ...     shown.write_page(f"{folder}/attention.html")
        """
        Path(path).write_text(self.page(), encoding="utf8")

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = self._still()
        data = {"text/html": self._html(png), "image/png": png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": round(plots.PIXELS_PER_INCH * WIDTH)}}

    def _html(self, png):
        parts = [{"name": p.name, "code": p.code, "queries": p.queries, "keys": p.keys} for p in self.parts]
        weights = [[_thousandths(layer) for layer in p.maps] for p in self.parts]
        values = {
            "VIEW": json.dumps(self.view | {"parts": parts}, ensure_ascii=False),
            "WEIGHTS": json.dumps(weights, separators=(",", ":")),
            "ALT": self.alt,
            "CAPTION": self.caption,
            "WIDTH": str(round(plots.PIXELS_PER_INCH * WIDTH)),
            "PNG": png,
        }
        values = {name: html.escape(value) for name, value in values.items()}
        values["CAPTION"] = re.sub(r"\*([^*]+)\*", r"<b>\1</b>", values["CAPTION"])
        return re.sub("@([A-Z]+)@", lambda name: values[name[1]], TEMPLATE.read_text(encoding="utf8"))

    def _still(self):
        """Draw the map that is shown first with its tokens, and all maps small beside it; return PNG in base64."""
        import matplotlib.pyplot as plt
        from PIL import Image  # matplotlib's own means to write PNG; 256 colours take a third of the room

        begin = self.parts[self.view["part"]]
        shown = _masked_as_nan(_chosen(begin.maps[self.view["layer"]], self.view["head"]))
        height = min(9.0, max(2.8, 1.6 + 0.21 * len(begin.queries)))
        ax, small = plots.grid(1, 2, width=WIDTH, height=height, width_ratios=[3, 2])[0]
        plots.heatmap(ax, shown, begin.keys, begin.queries, "weight", xlabel="key", ylabel="query")
        ax.set_facecolor(MASKED)
        ax.tick_params(axis="x", rotation=90)
        ax.grid(visible=False)
        name = f"head {self.view['head']}" if self.view["head"] != "mean" else "mean of heads"
        ax.set_title(" ".join([begin.name, f"layer {self.view['layer']}, {name}"]).strip())
        _mosaic(small, self.parts)
        drawn, png = io.BytesIO(), io.BytesIO()
        ax.figure.savefig(drawn, format="png", dpi=140)
        plt.close(ax.figure)
        Image.open(drawn).convert("RGB").quantize(256).save(png, format="png", optimize=True)
        return base64.b64encode(png.getvalue()).decode()


def _parts(tokens, maps, keys):
    """Return the parts of a dict of maps; the tokens must be a dict with the same names."""
    if not isinstance(tokens, dict) or set(tokens) != set(maps):
        came = list(tokens) if isinstance(tokens, dict) else f"a {type(tokens).__name__}"
        raise ValueError(f"maps is a dict of {list(maps)}, so tokens must be a dict of the same names; got {came}")
    if not isinstance(keys, dict) or not set(keys) <= set(maps):
        came = list(keys) if isinstance(keys, dict) else f"a {type(keys).__name__}"
        raise ValueError(f"maps is a dict of {list(maps)}, so keys must be a dict of some of these names; got {came}")
    if not maps:
        raise ValueError("maps is an empty dict; wanted a list of tensors (H, T, S) under each name")
    return [_part(name, tokens[name], layers, keys.get(name)) for name, layers in maps.items()]


def _part(name, queries, maps, keys):
    """Check the maps of one part against its tokens."""
    queries = [str(token) for token in queries]
    keys = queries if keys is None else [str(token) for token in keys]
    part = Part(name, queries, keys, [torch.as_tensor(layer).detach().double().cpu() for layer in maps])
    if not part.maps or not queries or not keys:
        raise ValueError(f"{part.code} has {len(part.maps)} layers, {len(queries)} query tokens and {len(keys)} "
                         "key tokens; there must be at least one of each")  # fmt: skip
    for n, layer in enumerate(part.maps):
        if layer.dim() != 3 or layer.shape != (len(part.maps[0]), len(queries), len(keys)) or not len(layer):
            hint = " Of a batch, take one sentence: [w[0] for w in maps]." if layer.dim() == 4 else ""
            raise ValueError(
                f"{part.code}[{n}] has shape {tuple(layer.shape)}; wanted (H, T, S) with the same H in each layer, "
                f"T = {len(queries)} query tokens and S = {len(keys)} key tokens.{hint}"
            )
        if not (layer >= 0).all():  # not a number is caught as well
            raise ValueError(f"{part.code}[{n}] holds {layer.min().item():.3g}; weights must be numbers from 0 to 1")
        sums = layer.sum(-1)
        bad = ((sums - 1).abs() > TOLERANCE) & (sums != 0)
        if bad.any():
            h, t = bad.nonzero()[0].tolist()
            raise ValueError(f"{part.code}[{n}][{h}][{t}] sums to {sums[h, t].item():.3g}; each row must sum to 1 over "
                             "the keys, or to 0 where all of them are masked")  # fmt: skip
    return part


def _in_range(name, index, size):
    if index not in range(size):
        raise ValueError(f"{name} is {index!r}; wanted an index from 0 to {size - 1}")


def _thousandths(weights):
    """Return nested lists of whole thousandths, which are short to write; -1 stands for exactly 0, a masked key."""
    return torch.where(weights == 0, -1, (1000 * weights).round()).long().tolist()


def _chosen(layer, head):
    return layer.mean(0) if head == "mean" else layer[head]


def _masked_as_nan(matrix):
    """Leave out what is masked, so that it shows the background; an empty map stays as it is."""
    return matrix if (matrix == 0).all() else torch.where(matrix == 0, math.nan, matrix)


def _mosaic(ax, parts):
    """Draw all maps small: a row for each layer, a column for each head and, last, for the mean of several."""
    rows = [(f"{part.name} layer {n}".strip(), layer) for part in parts for n, layer in enumerate(part.maps)]
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
