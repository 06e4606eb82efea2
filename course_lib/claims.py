"""Claims: every sentence about what a run shows is checked by that run.

A claim prints one stable line, which the tests compare with the stored notebook, and
beside it the measured values, which may differ from machine to machine.
"""


def claim(text, holds, **measured):
    """Say a sentence about a run, and whether the run bears it out.

    Prints `holds: TEXT`, or `does not hold here: TEXT` when your settings made it false.
    The measured values follow on a line that begins `measured:`; comparisons of notebooks
    ignore that line, so numbers that honestly vary belong there. Nothing is raised: a claim
    that fails is a result.

    Args:
        text: the claim, a sentence.
        holds: bool, or a tensor with one boolean element.
        **measured: the numbers behind it; floats are written with 3 significant digits.

    Raises:
        TypeError: if `holds` is not a truth value (a float, say, where a comparison was meant).

    Example:
        >>> claim("Shuffling raises the loss.", 2.0 < 3.0, before=2.0, after=3.14159)
        holds: Shuffling raises the loss.
        measured: before=2, after=3.14
    """
    if hasattr(holds, "item"):
        holds = holds.item()
    if not isinstance(holds, bool):
        raise TypeError(f"holds is {holds!r}, a {type(holds).__name__}; wanted a truth value, such as a < b")
    print(f"holds: {text}" if holds else f"does not hold here: {text}")
    if measured:
        print("measured: " + ", ".join(f"{name}={_format(value)}" for name, value in measured.items()))


def _format(value):
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format(v) for v in value) + "]"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
