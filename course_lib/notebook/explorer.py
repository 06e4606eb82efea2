r"""An attention explorer: choose a layer and heads, choose a token, see where it looks and why.

`explore(tokens, maps)` shows the attention maps of one sentence, of a source and its target, or of several sentences
between which the reader switches; `recorder.explore_sentence` computes them for sentences of the reader's own.
It is one piece of HTML with its own SVG, style and script (`explorer.html`, `.css` and `.js`, beside this file). It
asks no network and no kernel for anything, so it works in JupyterLab, in Colab and on a plain page. Where scripts do
not run (a notebook that the reader has not trusted yet, GitHub, print) a still picture stands in its place.

Used in notebooks 07, 09 and 12.
"""

import html
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from course_lib.notebook import plots
from course_lib.notebook.explorer_still import WIDTH, still

TEMPLATE, STYLE, SCRIPT = (Path(__file__).with_suffix(end) for end in (".html", ".css", ".js"))
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


class Looks(NamedTuple):
    r"""One layer of attention on one sentence.

    `weights` (H, T, S), as in a list of maps. `scores` (H, T, S), what the softmax turns into these weights, before
    masked keys are left out. `head_dim`, the K of the root by which the dot products were divided; None: the scores
    are not $q \cdot k / \sqrt{K}$ alone, a bias was added.

    >>> Looks(torch.ones(1, 1, 1)).scores is None
    True
    """

    weights: torch.Tensor
    scores: torch.Tensor | None = None
    head_dim: int | None = None


class Sentence(NamedTuple):
    """A sentence and its maps, one of several that `explore` shows with a switch; as the arguments of `explore`.

    >>> Sentence(["a", "b"], [torch.eye(2)[None]]).keys is None
    True
    """

    tokens: list
    maps: list
    keys: list | None = None


@dataclass(frozen=True)
class Part:
    """The maps of one kind of attention: N `Looks` of (H, T, S), with the T and S tokens.

    >>> Part("cross", ["a"], ["b"], [Looks(torch.ones(1, 1, 1))]).code
    'maps["cross"]'
    """

    name: str  # "" if it is the only one
    queries: list
    keys: list
    layers: list
    own: bool = False  # self-attention: the keys are the queries

    @property
    def code(self):
        """What to write to get the list of maps."""
        return f"maps[{json.dumps(self.name)}]" if self.name else "maps"

    def view(self):
        """What the page knows of it, besides its numbers."""
        widths = [looks.head_dim for looks in self.layers]
        return {"name": self.name, "queries": self.queries, "keys": self.keys, "own": self.own, "head_dims": widths}


def explore(
    tokens, maps=None, *, keys=None, title="Attention", alt, caption, part=None, layer=0, head=0, query=None, key=None
):
    r"""Show attention maps in which the reader chooses layers, heads and tokens.

    To choose a query shows where it looks (the row of the map), to choose a key who looks at it (the column). Layers,
    heads and positions are counted from 0, as in the tensors. Where the scores are known too, the reader also sees how
    the softmax makes a weight of a score, and may change the mask and the temperature.

    Args:
        tokens: the T query tokens; or, if `maps` is a dict, a dict with the tokens of each part. Or, in place of
            tokens, maps and keys, a dict from a short name to a `Sentence`: several, with a switch between them.
        maps: a list with one tensor (H, T, S) for each layer, the weights of one sentence; with the scores, a `Looks`
            in place of a tensor. Or a dict from the name of a part ("encoder", "decoder", "cross") to such a list. Each
            row sums to 1, or to 0 where every key is masked; a weight of exactly 0 is shown as masked.
        keys: the S key tokens; None means that they are the queries. If `maps` is a dict, a dict that
            needs to name only the parts whose keys are not their queries.
        title: what stands at the top.
        alt: what a reader who cannot see it should know, as a sentence.
        caption: its answer, as a sentence, below; *stress* works, and $formulas$ do in notebooks.
        part: name of the part to begin with; None means the first.
        layer: index of the layer to begin with.
        head: the heads to begin with: an index, a list of them, "all", or "mean" for the mean over the heads.
        query: the query to begin with, as an index or as its token; None shows the lines of all.
        key: the key to begin with, likewise; None: the one at which the query looks most.

    Returns:
        An `Explorer`; as the last line of a cell it shows itself.

    >>> maps = [torch.full((3, 2, 2), 0.5)]
    >>> shown = explore(["a", "b"], maps, alt="Two tokens.", caption="Each looks at both alike.", query="b")
    >>> shown
    [attention explorer] Two tokens.
    >>> shown.page().splitlines()[0]
    '<!DOCTYPE html>'
    """
    if not alt.strip() or not caption.strip():
        raise ValueError(f"an explorer needs alt text and a caption; got alt={alt!r} and caption={caption!r}")
    several = isinstance(tokens, dict) and maps is None
    sentences = tokens if several else {"": Sentence(tokens, maps, keys)}
    named = {name: _parts(*sentence) for name, sentence in sentences.items()}
    if not named:
        raise ValueError("tokens is an empty dict; wanted a Sentence under each name")
    first, *others = named.values()
    names = [p.name for p in first]
    for name, parts in zip(list(named)[1:], others, strict=True):
        if (came := [(p.name, *_size(p)) for p in parts]) != (wanted := [(p.name, *_size(p)) for p in first]):
            raise ValueError(f"sentence {name!r} has the parts, layers and heads {came}; the first one has {wanted}")
    if part is not None and names == [""]:
        raise ValueError(f"part is {part!r}, but maps is a list; only the maps of a dict have names")
    if part is not None and part not in names:
        raise ValueError(f"part is {part!r}; wanted one of {names}")
    start = 0 if part is None else names.index(part)
    begin = first[start]
    N, H = _size(begin)
    _in_range("layer", layer, N)
    if head == "all":
        head = list(range(H))
    if head != "mean":
        head = head if isinstance(head, list) and head else [head]
        for one in head:
            _in_range("head", one, H)
    query, key = _place("query", query, begin.queries), _place("key", key, begin.keys)
    if key is not None and query is None:
        raise ValueError(f"key is {key}, but query is None; a key to begin with needs a query")
    view = {"title": title, "part": start, "layer": layer, "heads": head, "query": query, "key": key}
    return Explorer(named, view, alt.strip(), caption.strip())


@dataclass(frozen=True, repr=False)
class Explorer:
    """What `explore` returns: shows itself in a notebook, and writes itself as a page.

    Args:
        sentences: dict from name to list of `Part`, checked.
        view: the title and what is shown first.
        alt: text for a reader who cannot see it.
        caption: the line below.

    >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
    >>> [part.queries for part in shown.sentences[""]]
    [['a', 'b']]
    """

    sentences: dict
    view: dict
    alt: str
    caption: str

    def __repr__(self):
        return f"[attention explorer] {self.alt}"

    def html(self):
        """Return the explorer as a piece of HTML, to stand in any page, any number of times.

        >>> maps = torch.eye(2).expand(1, 1, 2, 2)
        >>> "http" in explore(["a", "b"], maps, alt="Two tokens.", caption="Each looks at itself.").html()
        False
        """
        return self._html(still(self.sentences, self.view))

    def page(self):
        """Return a whole HTML document with the explorer, which needs no other file.

        >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
        >>> "<title>Attention</title>" in shown.page()
        True
        """
        return PAGE.format(title=html.escape(self.view["title"]), body=self.html())

    def write_page(self, path):
        """Write the document that `page` returns.

        Args:
            path: the file to write, such as "attention.html".

        >>> import tempfile
        >>> shown = explore("ab", torch.eye(2).expand(1, 1, 2, 2), alt="Two tokens.", caption="Alone.")
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     shown.write_page(f"{folder}/attention.html")
        """
        Path(path).write_text(self.page(), encoding="utf8")

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = still(self.sentences, self.view)
        data = {"text/html": self._html(png), "image/png": png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": round(plots.PIXELS_PER_INCH * WIDTH)}}

    def _html(self, png):
        sentences = [{"name": name, "parts": [p.view() for p in parts]} for name, parts in self.sentences.items()]
        view = self.view | {"colors": plots.CYCLE, "sentences": sentences}
        layers = [[p.layers for p in parts] for parts in self.sentences.values()]
        weights = [[[_thousandths(looks.weights) for looks in part] for part in parts] for parts in layers]
        scores = [[[_scores(looks.scores) for looks in part] for part in parts] for parts in layers]
        values = {
            "VIEW": json.dumps(view, ensure_ascii=False),
            "WEIGHTS": json.dumps(weights, separators=(",", ":")),
            "SCORES": json.dumps(scores, separators=(",", ":")),
            "ALT": self.alt,
            "CAPTION": self.caption,
            "WIDTH": str(round(plots.PIXELS_PER_INCH * WIDTH)),
            "PNG": png,
        }
        values = {name: html.escape(value) for name, value in values.items()}
        values["CAPTION"] = re.sub(r"\*([^*]+)\*", r"<b>\1</b>", values["CAPTION"])
        values |= {"STYLE": STYLE.read_text(encoding="utf8"), "SCRIPT": SCRIPT.read_text(encoding="utf8")}
        return re.sub("@([A-Z]+)@", lambda name: values[name[1]], TEMPLATE.read_text(encoding="utf8"))


def _parts(tokens, maps, keys=None):
    """Return the parts of one sentence; of a dict of maps the tokens must be a dict with the same names."""
    if not isinstance(maps, dict):
        return [_part("", tokens, maps, keys)]
    keys = keys or {}
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
    queries, own = [str(token) for token in queries], keys is None
    keys = queries if own else [str(token) for token in keys]
    layers = [looks if isinstance(looks, Looks) else Looks(looks) for looks in maps]
    layers = [Looks(_plain(weights), _plain(scores), K) for weights, scores, K in layers]
    part = Part(name, queries, keys, layers, own)
    if not layers or not queries or not keys:
        raise ValueError(f"{part.code} has {len(layers)} layers, {len(queries)} query tokens and {len(keys)} "
                         "key tokens; there must be at least one of each")  # fmt: skip
    for n, (weights, scores, _) in enumerate(layers):
        if weights.dim() != 3 or weights.shape != (len(layers[0][0]), len(queries), len(keys)) or not len(weights):
            hint = " Of a batch, take one sentence: [w[0] for w in maps]." if weights.dim() == 4 else ""
            raise ValueError(
                f"{part.code}[{n}] has shape {tuple(weights.shape)}; wanted (H, T, S) with the same H in each layer, "
                f"T = {len(queries)} query tokens and S = {len(keys)} key tokens.{hint}"
            )
        if not (weights >= 0).all():  # not a number is caught as well
            raise ValueError(f"{part.code}[{n}] holds {weights.min().item():.3g}; weights must be numbers from 0 to 1")
        sums = weights.sum(-1)
        bad = ((sums - 1).abs() > TOLERANCE) & (sums != 0)
        if bad.any():
            h, t = bad.nonzero()[0].tolist()
            raise ValueError(f"{part.code}[{n}][{h}][{t}] sums to {sums[h, t].item():.3g}; each row must sum to 1 over "
                             "the keys, or to 0 where all of them are masked")  # fmt: skip
        if scores is not None:
            _check_scores(f"{part.code}[{n}]", weights, scores)
    return part


def _check_scores(where, weights, scores):
    """Raise unless the softmax makes these weights of these scores, where they are not masked."""
    if scores.shape != weights.shape:
        raise ValueError(f"{where} has scores of shape {tuple(scores.shape)}, weights of {tuple(weights.shape)}")
    if not scores.isfinite().all():
        raise ValueError(f"{where} has scores that are not finite; give the scores before the mask")
    made = scores.masked_fill(weights == 0, -math.inf).softmax(-1).nan_to_num()
    off = (made - weights).abs()
    if off.max() > TOLERANCE:
        h, t, s = (off == off.max()).nonzero()[0].tolist()
        raise ValueError(f"{where}: the softmax of the scores gives {made[h, t, s].item():.3g} at [{h}][{t}][{s}], "
                         f"the weight is {weights[h, t, s].item():.3g}; wanted q k / sqrt K")  # fmt: skip


def _plain(tensor):
    return None if tensor is None else torch.as_tensor(tensor).detach().double().cpu()


def _size(part):
    """Return the layers and the heads of a part."""
    return len(part.layers), len(part.layers[0].weights)


def _place(name, wanted, tokens):
    """Return the index of a token that is given as an index or as itself."""
    if isinstance(wanted, str):
        if wanted not in tokens:
            raise ValueError(f"{name} is {wanted!r}; wanted an index or one of {tokens}")
        return tokens.index(wanted)
    if wanted is not None:
        _in_range(name, wanted, len(tokens))
    return wanted


def _in_range(name, index, size):
    if index not in range(size):
        raise ValueError(f"{name} is {index!r}; wanted an index from 0 to {size - 1}")


def _thousandths(weights):
    """Return nested lists of whole thousandths, which are short to write; -1 stands for exactly 0, a masked key."""
    return torch.where(weights == 0, -1, (1000 * weights).round()).long().tolist()


def _scores(scores):
    return None if scores is None else (1000 * scores).round().long().tolist()
