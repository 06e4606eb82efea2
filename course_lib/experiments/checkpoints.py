"""Parts of long runs that are kept, so that a stopped run goes on (chapter 12)."""

import os
from pathlib import Path

import torch

from course_lib import datasets


def checkpoint_folder():
    """Where finished parts of these runs are kept: `COURSE_CHECKPOINTS`, else a folder beside the data sets.

    Returns:
        Path; it need not exist yet.
    """
    return Path(os.environ.get("COURSE_CHECKPOINTS") or datasets.cache_folder() / "checkpoints")


def load_part(name, settings):
    """What was kept under that name, or None; it must have been made with these settings."""
    path = checkpoint_folder() / f"imdb-bert-{name}.pt"
    if not path.exists():
        return None
    found = torch.load(path, weights_only=True)
    if found["settings"] != settings:
        raise ValueError(f"{path.name} was made with {found['settings']}, not {settings}; delete it to start again")
    return found["state"]


def save_part(name, settings, state):
    """Keep it: the whole file or nothing."""
    path = checkpoint_folder() / f"imdb-bert-{name}.pt"
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({"settings": settings, "state": state}, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)
    return state
