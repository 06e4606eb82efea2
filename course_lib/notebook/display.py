"""Showing things in a notebook: figures with alt text, real source code, tables.

Everything goes out as the plainest output that JupyterLab, Colab and GitHub all render
in a notebook that the reader has not yet trusted: PNG and Markdown, no HTML, no script.
"""

import ast
import base64
import inspect
import io
import textwrap

from course_lib.notebook import plots


def show(figure, alt, caption):
    """Show a figure (or the one of an `Axes`) with its alt text, and the caption below it; then close the figure.

    Args:
        figure: a matplotlib `Figure` or `Axes`.
        alt: what a reader who cannot see the figure should know, as a sentence.
        caption: the figure's answer, as a sentence; Markdown and $formulas$ work.

    >>> from course_lib.notebook import plots
    >>> show(plots.axes(), alt="", caption="Empty.")
    Traceback (most recent call last):
    ValueError: a figure needs alt text and a caption; got alt='' and caption='Empty.'
    """
    import matplotlib.pyplot as plt

    if not alt.strip() or not caption.strip():
        raise ValueError(f"a figure needs alt text and a caption; got alt={alt!r} and caption={caption!r}")
    figure = figure.figure
    width, _ = figure.get_size_inches()
    png = io.BytesIO()
    figure.savefig(png, format="png", dpi=140, metadata={"Software": None})
    plt.close(figure)
    # The alt text stands in the metadata alone: of an output that is closed, JupyterLab shows the first line of text.
    bundle = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": "[figure]"}
    _display(bundle, {"image/png": {"alt": alt, "width": round(plots.PIXELS_PER_INCH * width)}})
    markdown(f"*{caption.strip()}*")


def markdown(text):
    """Show a string as Markdown, with formulas between dollar signs.

    >>> markdown("**bold**")
    **bold**
    """
    _display({"text/markdown": text, "text/plain": text}, {})


def number(value, digits=3):
    """A number for a reader: so many significant digits, thousands set apart, powers of ten where it is very small.

    >>> number(0.123456), number(804096), number(2.5e-9), number(12.0), number(2100000.7)
    ('0.123', '804,096', '2.5 · 10⁻⁹', '12', '2,100,001')
    """
    if value != value or value in (float("inf"), float("-inf")):
        return {"inf": "∞", "-inf": "-∞"}.get(str(value), "not a number")
    if isinstance(value, int) or abs(value) >= 10 ** (digits - 1) or value == int(value):
        return f"{value:,.0f}"
    if abs(value) >= 1e-4:
        text = f"{value:.{digits}g}"
        return text if "e" not in text else f"{value:.{digits + 4}f}".rstrip("0")
    mantissa, power = f"{value:.{digits - 1}e}".split("e")
    mantissa = mantissa.rstrip("0").rstrip(".")
    return f"{mantissa} · 10{str(int(power)).translate(str.maketrans('-0123456789', '⁻⁰¹²³⁴⁵⁶⁷⁸⁹'))}"


def source(obj):
    """The code of a function, class or method of `course_lib`, without docstrings and checks of the input.

    What is left out: calls of `check_...`, and ifs and loops that do nothing but raise. All else is what runs.

    >>> print(source(markdown))
    def markdown(text):
        _display({"text/markdown": text, "text/plain": text}, {})
    """
    lines = textwrap.dedent(inspect.getsource(obj)).splitlines()
    drop = set()
    for node in ast.walk(ast.parse("\n".join(lines))):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            left_out = [part for part in body if _is_docstring(part, node) or _is_check(part)]
            for part in left_out if len(left_out) < len(body) else []:
                blank = part is body[0] and not lines[part.end_lineno].strip()  # what a docstring leaves behind
                drop.update(range(part.lineno, part.end_lineno + 1 + blank))
    return "\n".join(line for number, line in enumerate(lines, 1) if number not in drop).strip()


def show_source(*objects):
    """Show the code of functions or classes of `course_lib`, as `source` gives it: read from the library when it runs.

    >>> show_source(markdown)
    ```python
    def markdown(text):
        _display({"text/markdown": text, "text/plain": text}, {})
    ```
    """
    markdown("```python\n" + "\n\n\n".join(source(obj) for obj in objects) + "\n```")


def table(headers, rows):
    r"""Show a table; numbers are written by `number`.

    A cell is Markdown, so write a token such as `<pad>` between backticks; a `|` may stand anywhere.

    >>> table(["model", "loss"], [["bigram", 2.45321]])
    | model | loss |
    |---|---|
    | bigram | 2.45 |
    >>> table(["weight"], [["|w|"]])
    | weight |
    |---|
    | \|w\| |
    """
    lines = [headers, ["---"] * len(headers)]
    for row in rows:
        if len(row) != len(headers):
            raise ValueError(f"row {row!r} has {len(row)} cells; wanted {len(headers)}, one for each of {headers!r}")
        lines.append([number(cell) if _is_number(cell) else str(cell) for cell in row])
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    text = ["|" + "|".join(lines[1]) + "|" if line is lines[1] else "| " + " | ".join(line) + " |" for line in lines]
    markdown("\n".join(text))


def _is_number(cell):
    return isinstance(cell, int | float) and not isinstance(cell, bool)


def _is_docstring(part, node):
    """Whether a statement is the docstring of the function or class it stands in."""
    return part is node.body[0] and isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant)


def _is_check(part):
    """Whether a statement only refuses what it does not like."""
    if isinstance(part, ast.If | ast.For):
        return not part.orelse and all(isinstance(inner, ast.Raise) or _is_check(inner) for inner in part.body)
    if not (isinstance(part, ast.Expr) and isinstance(part.value, ast.Call)):
        return False
    return ast.unparse(part.value.func).rpartition(".")[2].startswith("check_")


def _display(bundle, metadata):
    """Publish to the notebook; outside of one, print what a terminal can show."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    if InteractiveShell.initialized():
        display(bundle, raw=True, metadata=metadata)
    else:
        print(bundle["text/plain"])
