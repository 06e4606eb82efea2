"""What the five figures share: data and a script in a piece of HTML, and a still picture for where no script runs."""

import base64
import html
import io
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from course_lib.notebook import plots
from course_lib.notebook.explorer import PAGE
from course_lib.notebook.explorer_still import WIDTH

FOLDER = Path(__file__).parent


@dataclass(frozen=True, repr=False)
class Interactive:
    """An interactive figure: shows itself as the last line of a cell, and writes itself as a page.

    Args:
        template: name of the file beside this one that holds its style and its script.
        view: what is the same on every machine, as JSON: "title", names, what is shown first.
        numbers: what may differ between machines, as JSON: comparisons of notebooks pass over it.
        alt: what a reader who cannot see it should know, as a sentence.
        caption: its answer, as a sentence, below; *stress* works, and $formulas$ do in notebooks.
        draw: draws the still picture and returns its `Axes`.
    """

    template: str
    view: dict
    numbers: object
    alt: str
    caption: str
    draw: Callable

    def __post_init__(self):
        if not self.alt.strip() or not self.caption.strip():
            raise ValueError(
                f"a figure needs alt text and a caption; got alt={self.alt!r} and caption={self.caption!r}"
            )

    def __repr__(self):
        return f"[interactive figure] {self.alt}"

    def html(self):
        """Return the figure as a piece of HTML, to stand in any page, any number of times."""
        return self._html(self._still())

    def page(self):
        """Return a whole HTML document with the figure, which needs no other file."""
        return PAGE.format(title=html.escape(self.view["title"]), body=self.html())

    def write_page(self, path):
        """Write the document that `page` returns to a file, such as "gate.html"."""
        Path(path).write_text(self.page(), encoding="utf8")

    def _repr_mimebundle_(self, include=None, exclude=None):
        png = self._still()
        data = {"text/html": self._html(png), "image/png": png, "text/plain": repr(self)}
        return data, {"image/png": {"alt": self.alt, "width": round(plots.PIXELS_PER_INCH * WIDTH)}}

    def _html(self, png):
        style, script = (FOLDER / f"{self.template}.html").read_text(encoding="utf8").split("<script>")
        values = {
            "NAME": self.template,
            "VIEW": json.dumps(self.view, ensure_ascii=False),
            "NUMBERS": json.dumps(self.numbers, ensure_ascii=False, separators=(",", ":")),
            "ALT": self.alt.strip(),
            "CAPTION": self.caption.strip(),
            "WIDTH": str(round(plots.PIXELS_PER_INCH * WIDTH)),
            "PNG": png,
        }
        values = {name: html.escape(value) for name, value in values.items()}
        values["CAPTION"] = re.sub(r"\*([^*]+)\*", r"<b>\1</b>", values["CAPTION"])
        values["HUES"] = " ".join(f"--{name}: {hue};" for name, hue in plots.HUES.items())
        values["STYLE"] = style.replace("<style>", "").replace("</style>", "").strip()
        values["SCRIPT"] = script.replace("</script>", "").strip()
        whole = (FOLDER / "base.html").read_text(encoding="utf8")
        return re.sub("@([A-Z]+)@", lambda name: values[name[1]], whole)

    def _still(self):
        """Draw the still picture; return PNG in base64."""
        import matplotlib.pyplot as plt
        from PIL import Image  # matplotlib's own means to write PNG; 256 colours take a third of the room

        figure = self.draw().figure
        drawn, png = io.BytesIO(), io.BytesIO()
        figure.savefig(drawn, format="png", dpi=140)
        plt.close(figure)
        Image.open(drawn).convert("RGB").quantize(256).save(png, format="png", optimize=True)
        return base64.b64encode(png.getvalue()).decode()


def rounded(values, digits=4):
    """Nested lists of numbers, rounded: what a figure stores of a tensor.

    >>> import torch
    >>> rounded(torch.tensor([[0.123456, 1.0]], dtype=torch.float64))
    [[0.1235, 1.0]]
    """
    values = values.tolist() if hasattr(values, "tolist") else values
    return [rounded(v, digits) for v in values] if isinstance(values, list | tuple) else round(float(values), digits)
