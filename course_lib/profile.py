"""How large the runs are: `quick` on a laptop, `full` where there is a GPU.

Every notebook has one set of cells for both sizes. A cell asks `pick(quick, full)` for
the number that is in force, and the environment variable `COURSE_PROFILE` overrules the
choice. Read this file first; every notebook uses it.
"""

import os

import torch

PROFILES = ("quick", "full")


def name():
    """Name of the profile in force.

    Returns:
        `COURSE_PROFILE` when it is set; else "full" with a CUDA device and "quick" without.

    Raises:
        ValueError: if `COURSE_PROFILE` is neither "quick" nor "full".

    Example:
        >>> name() in ("quick", "full")
        True
    """
    asked = os.environ.get("COURSE_PROFILE", "")
    if not asked:
        return "full" if torch.cuda.is_available() else "quick"
    if asked not in PROFILES:
        raise ValueError(f"COURSE_PROFILE is {asked!r}; it must be 'quick' or 'full'")
    return asked


def pick(quick, full):
    """The value for the profile in force.

    Args:
        quick: value for two CPU cores; a whole notebook then takes at most 90 seconds.
        full: value worth a GPU.

    Returns:
        One of the two, unchanged.

    Raises:
        ValueError: if `COURSE_PROFILE` is neither "quick" nor "full".

    Example:
        >>> pick("small", "large") in ("small", "large")
        True
    """
    return {"quick": quick, "full": full}[name()]
