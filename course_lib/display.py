"""Showing things in a notebook: figures with alt text, real source code, tables.

Everything goes out as the plainest output that JupyterLab, Colab and GitHub all render
in a notebook that the reader has not yet trusted: PNG and Markdown, no HTML, no script.
"""

import ast
import base64
import inspect
import io
import textwrap

from course_lib import plots


def show(figure, alt, caption):
    """Show a figure with its alt text, and the caption below it; then close the figure.

    Args:
        figure: a matplotlib `Figure`, or an `Axes` on it.
        alt: what a reader who cannot see the figure should know, as a sentence.
        caption: the figure's answer, as a sentence; Markdown and $formulas$ work.

    Raises:
        ValueError: if alt or caption is empty.

    Example:
        >>> from course_lib import plots
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
    bundle = {"image/png": base64.b64encode(png.getvalue()).decode(), "text/plain": f"[figure] {alt}"}
    _display(bundle, {"image/png": {"alt": alt, "width": round(plots.PIXELS_PER_INCH * width)}})
    markdown(f"*{caption.strip()}*")


def markdown(text):
    """Show a string as Markdown.

    Args:
        text: Markdown; formulas between dollar signs.

    Example:
        >>> markdown("**bold**")
        **bold**
    """
    _display({"text/markdown": text, "text/plain": text}, {})


def source(obj):
    """Return the source code of a function or class without its docstrings.

    Args:
        obj: a function, class or method of `course_lib`.

    Returns:
        The code, dedented, as a string.

    Example:
        >>> print(source(markdown))
        def markdown(text):
            _display({"text/markdown": text, "text/plain": text}, {})
    """
    code = textwrap.dedent(inspect.getsource(obj))
    drop = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and ast.get_docstring(node) is not None:
            drop.update(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    kept = [line for number, line in enumerate(code.splitlines(), 1) if number not in drop]
    return "\n".join(kept).strip()


def show_source(*objects):
    """Show the real code of functions or classes of `course_lib`, without their docstrings.

    What is shown is what runs: the code is read from the library, so it cannot go stale.

    Args:
        *objects: functions or classes.

    Example:
        >>> show_source(markdown)
        ```python
        def markdown(text):
            _display({"text/markdown": text, "text/plain": text}, {})
        ```
    """
    markdown("```python\n" + "\n\n\n".join(source(obj) for obj in objects) + "\n```")


def table(headers, rows):
    r"""Show a table.

    Args:
        headers: the names of the columns.
        rows: one sequence for each row; floats are written with 3 significant digits. A cell is Markdown, so write a
            token such as `<pad>` between backticks; a `|` may stand anywhere.

    Raises:
        ValueError: if a row has not one cell for each column.

    Example:
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
        lines.append([f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in row])
    lines = [[cell.replace("|", "\\|") for cell in line] for line in lines]
    text = ["|" + "|".join(lines[1]) + "|" if line is lines[1] else "| " + " | ".join(line) + " |" for line in lines]
    markdown("\n".join(text))


def _display(bundle, metadata):
    """Publish to the notebook; outside of one, print what a terminal can show."""
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.display import display

    if InteractiveShell.initialized():
        display(bundle, raw=True, metadata=metadata)
    else:
        print(bundle["text/plain"])
