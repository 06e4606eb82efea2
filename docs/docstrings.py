"""From the library's docstrings to reStructuredText, for the API pages of the site.

The docstrings are written to be read as text: Google's sections, formulas between dollar
signs, code between single backticks, examples as doctests, tables as indented lines. Sphinx
reads the sections itself; what it would misread is put into its language here.
"""

import re

SECTIONS = {"Args:", "Returns:", "Raises:", "Yields:", "Example:", "Examples:", "Attributes:", "Note:"}
FORMULA = re.compile(r"(?<![\w$\\])\$(?=\S)([^$]*?\S)\$(?![\w$])")
EMPHASIS = r"(?<![\w*])\*(?=\S)[^*\n]+?(?<=\S)\*(?![\w*])"
PROTECTED = re.compile(rf"(:math:`[^`]*`|``[^`]*``|`[^`]*`|{EMPHASIS})")
NAMED = re.compile(r"^    (\w+): (?=.)", flags=re.MULTILINE)


def to_rst(lines):
    r"""Return a docstring's lines with formulas, tables and stray marks in reStructuredText.

    Args:
        lines: list of str, as autodoc hands them over.

    Returns:
        list of str.

    Example:
        >>> to_rst(["The sum of all $x_t$ with *args."])
        ['The sum of all :math:`x_t` with \\*args.']
    """
    blocks = re.split(r"\n{2,}", "\n".join(lines))
    done, section = [], False
    for block in blocks:
        section = _in_section(block, section)
        done.append(block if _is_example(block) else _block(block, section))
    return "\n\n".join(done).split("\n")


def _in_section(block, before):
    """Say whether a block belongs to a section such as Args: it begins one, or goes on indented."""
    first = block.split("\n")[0]
    return first in SECTIONS or (before and first.startswith(" "))


def _is_example(block):
    return block.lstrip().startswith((">>>", "Example"))


def _block(block, section):
    """Convert one paragraph: a formula on its own, a table of indented lines, or text."""
    formula = re.fullmatch(r"(\s*)\$\$(.*?)\$\$(.*)", block, flags=re.DOTALL)
    if formula:
        indent, tex, after = formula.groups()
        body = " ".join(tex.split())
        rest = f"\n\n{indent}{_text(after.strip())}" if after.strip() else ""
        return f"{indent}.. math:: {body}{rest}"
    if block.startswith("    ") and not section:
        return f"::\n\n{block}"
    if block.startswith("Returns:\n") and len(NAMED.findall(block)) > 1:
        return _several(_text(block))
    return _text(block)


def _several(block):
    """Convert a section that names several things returned into a list."""
    lines = block.split("\n")[1:]
    items = [NAMED.sub(r"    - \1: ", line) if NAMED.match(line) else f"  {line}" for line in lines]
    return "\n".join(["Returns:", "    in this order", "", *items])


def _text(block):
    """Convert formulas in running text, and escape what reStructuredText would take for its own marks."""
    block = FORMULA.sub(lambda found: f":math:`{' '.join(found.group(1).split())}`", block)
    parts = PROTECTED.split(block)
    parts[::2] = [_escaped(part) for part in parts[::2]]
    parts[1::2] = [_code(part) for part in parts[1::2]]
    return "".join(parts)


def _code(part):
    """Turn a name between single backticks into a link to what it names, anything else between them into code.

    >>> _code("`RNN`"), _code("`.tokens`"), _code("*stress*")
    (':py:obj:`RNN`', '``.tokens``', '*stress*')
    """
    if not re.fullmatch(r"`[^`]+`", part):
        return part
    name = part.strip("`")
    return f":py:obj:{part}" if re.fullmatch(r"[A-Za-z_]\w*(\.\w+)*", name) else f"`{part}`"


def _escaped(text):
    r"""Escape stars, bars and underscores at the end of a word.

    >>> print(_escaped("2 * 3, **kwargs, |x|, ids_, d_k"))
    2 \* 3, \*\*kwargs, \|x\|, ids\_, d_k
    """
    return re.sub(r"[*|]|(?<=\w)_(?!\w)", lambda found: f"\\{found.group()}", text)
