"""The most memory held at once: by a GPU if one is used, else by this process (Linux)."""

from pathlib import Path

import torch


def reset_peak():
    """Start measuring anew; returns the bytes held now, None where the system does not tell (macOS, Windows)."""
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak falls back to what is held now
        held = _status("VmRSS")
    except OSError:
        held = None
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        torch.cuda.synchronize()
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    return held


def peak():
    """The most bytes held since `reset_peak`; None where the system does not tell.

    >>> before = reset_peak()
    >>> x = torch.ones(30_000_000); del x
    >>> before is None or peak() - before > 30e6
    True
    """
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated()
    try:
        return _status("VmHWM")
    except OSError:
        return None


def _status(key):
    """An entry of this process's status, in bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))
