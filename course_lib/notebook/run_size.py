"""How large the runs are: `quick` on a laptop, `full` where there is a GPU.

Every notebook has one set of cells for both sizes. A cell asks `pick(quick, full)` for the number that is in force, and
the environment variable `COURSE_PROFILE` overrules the choice.
"""

import os

import torch

PROFILES = ("quick", "full")


def name():
    """Name of the profile in force: `COURSE_PROFILE` if it is set, else "full" with a CUDA device, "quick" without.

    >>> from unittest import mock
    >>> with mock.patch.dict(os.environ, COURSE_PROFILE="full"):
    ...     name(), pick("small", "large")
    ('full', 'large')
    """
    asked = os.environ.get("COURSE_PROFILE", "")
    if not asked:
        return "full" if torch.cuda.is_available() else "quick"
    if asked not in PROFILES:
        raise ValueError(f"COURSE_PROFILE is {asked!r}; it must be 'quick' or 'full'")
    return asked


def pick(quick, full):
    """One of two values: for two CPU cores (a whole notebook takes at most 90 seconds), or worth a GPU."""
    return {"quick": quick, "full": full}[name()]
