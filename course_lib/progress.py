"""A progress bar for the reader who is watching, and nothing for the machine that is not.

A bar stored inside a notebook looks unfinished to whoever opens it later, and it differs
from run to run. So a bar appears only on a terminal or in an interactive notebook;
`COURSE_PROGRESS=0` (set when notebooks are built and tested) turns it off everywhere.
Used by every notebook that trains.
"""

import os
import sys


def watched():
    """Whether somebody watches this process: a terminal or a notebook, and `COURSE_PROGRESS` is not 0.

    Returns:
        bool.

    Example:
        >>> watched() in (True, False)
        True
    """
    if os.environ.get("COURSE_PROGRESS") == "0":
        return False
    return sys.stderr.isatty() or _in_kernel()


def progress(iterable, total=None, label=""):
    """The same items, with a progress bar on standard error if somebody watches.

    Args:
        iterable: what to loop over.
        total: number of items, for an iterable without a length; None asks the iterable.
        label: text in front of the bar.

    Returns:
        An iterable over the same items in the same order.

    Example:
        >>> list(progress([2, 3, 5]))
        [2, 3, 5]
    """
    if not watched():
        return iterable
    from tqdm import tqdm

    return tqdm(iterable, total=total, desc=label, leave=False)


def _in_kernel():
    """Whether this process is a Jupyter kernel; asks without importing IPython."""
    ipython = sys.modules.get("IPython")
    return ipython is not None and hasattr(ipython.get_ipython(), "kernel")
