"""Timing side by side: candidates in rounds, ratios of times in the same round, rows of a table with goals."""

import statistics
from dataclasses import dataclass

from course_lib.cost.measure import time_rounds


@dataclass(frozen=True)
class Row:
    """One line of the table.

    Args:
        name: what was measured.
        measured: the number, or None if it was skipped.
        goal: limit of the number, or None for information.
        better: "lower" or "higher": on which side of the goal it passes.
        low: lower quartile, or lowest.
        high: upper quartile, or highest.
        note: how it was measured, or why not.
    """

    name: str
    measured: float | None
    goal: float | None = None
    better: str = "lower"
    low: float | None = None
    high: float | None = None
    note: str = ""

    @property
    def passed(self):
        """Whether the goal is met; None without a goal or a number."""
        if self.goal is None or self.measured is None:
            return None
        return self.measured <= self.goal if self.better == "lower" else self.measured >= self.goal


def compare(functions, rounds=7, least=0.1, clock=None):
    """Time some functions side by side: `measure.time_rounds`, a dict of name to one number of seconds a round."""
    return time_rounds(functions, rounds, least, clock)


def ratio(samples, name, base):
    """Median and quartiles of the ratios of two functions' times in the same round.

    Args:
        samples: from `compare`.
        name: the function above the line.
        base: the function below it.

    Returns:
        `(median, lower quartile, upper quartile)`.
    """
    return quartiles([a / b for a, b in zip(samples[name], samples[base], strict=True)])


def quartiles(numbers):
    """Median, lower and upper quartile.

    Args:
        numbers: at least two numbers.

    Returns:
        `(median, lower quartile, upper quartile)`.
    """
    low, middle, high = statistics.quantiles(numbers, n=4, method="inclusive")
    return middle, low, high


def timed(name, found, goal, better, note):
    """A row of a median and its quartiles.

    Args:
        name: what was measured.
        found: from `ratio` or `quartiles`.
        goal: limit, or None.
        better: "lower" or "higher".
        note: how it was measured.

    Returns:
        Row.
    """
    median, low, high = found
    return Row(name, median, goal, better, low, high, note)


def table(rows):
    """The rows as text: what was measured, goal, number with its range, and whether the goal is met.

    Args:
        rows: list of Row.

    Returns:
        str.
    """
    sign = {"lower": "<=", "higher": ">="}
    lines = [("measured", "goal", "number", "range", "pass", "")]
    for row in rows:
        goal = "" if row.goal is None else f"{sign[row.better]} {row.goal:g}"
        number = "-" if row.measured is None else f"{row.measured:.3g}"
        spread = "" if row.low is None else f"{row.low:.3g}..{row.high:.3g}"
        lines.append((row.name, goal, number, spread, {True: "yes", False: "NO", None: ""}[row.passed], row.note))
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines)
