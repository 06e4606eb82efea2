"""Draw every diagram into `images/` as SVG: `make images`.

The SVG are for GitHub and for slides; the notebooks draw the same diagrams by the same code.
"""

import html
import io
import sys

from course_lib.notebook import diagrams, plots
from tools.notebooks.editions import ROOT

IMAGES = ROOT / "images"


def svg(diagram):
    """Return a diagram as SVG text, the same bytes every time, with its alt text as the title; and its `Axes`."""
    import matplotlib
    import matplotlib.pyplot as plt

    matplotlib.use("agg")
    with plt.rc_context(plots.STYLE):
        ax, out = diagram.draw(), io.StringIO()
        ax.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    plt.close(ax.figure)
    head, _, body = out.getvalue().partition("<metadata>")
    head = head.replace("<svg ", '<svg role="img" ', 1)
    return f"{head}<title>{html.escape(diagram.alt)}</title>\n <metadata>{body}", ax


def main():
    """Write the SVG of every diagram and remove those that no diagram makes."""
    IMAGES.mkdir(exist_ok=True)
    drawn = {f"{name}.svg": svg(diagram)[0] for name, diagram in diagrams.all_diagrams().items()}
    for old in set(path.name for path in IMAGES.glob("*.svg")) - set(drawn):
        (IMAGES / old).unlink()
    for name, text in drawn.items():
        (IMAGES / name).write_text(text, encoding="utf8")
    print(f"{len(drawn)} diagrams in {IMAGES.name}/")


if __name__ == "__main__":
    sys.exit(main())
