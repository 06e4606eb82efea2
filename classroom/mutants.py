"""Do the checks check? Wrong answers to every exercise, and which of them its check lets pass.

For every exercise that is graded by machine: the wrong answers planted in `tests/exercises/test_chNN.py`, and all small
mistakes (`mutator.py`) in the reference solution. All are put to the visible check, the mutants to the hidden test as
well; what does not pass is killed. A mutant that gives what the reference gives, whatever it is given, is no mistake:
such ones are named in `equivalent.toml`, with the reason, and are believed only as long as 200 other draws of the
hidden test show no difference. `python -m classroom.mutants` (`make check-the-checks`) writes the table MUTANTS.md, and
fails if too many wrong answers pass.
"""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import io
import math
import multiprocessing
import re
import resource
import sys
import time
import tomllib
import warnings
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import torch

from classroom import hidden, mutator
from course_lib.exercises import SECONDS, _time_limit
from tools.notebooks import editions

HERE = Path(__file__).resolve().parent
TABLE = HERE / "MUTANTS.md"
EQUIVALENT = HERE / "equivalent.toml"
SEEDS = 200
MEMORY = 8 * 2**30  # bytes; a mutant may ask for more and more
VISIBLE, EACH, TOGETHER = 0.95, 0.90, 0.98  # shares that have to be killed
PROCESSES = 2


@dataclasses.dataclass(frozen=True)
class Exercise:
    """An exercise that is graded by machine.

    Args:
        name: such as "ex05-1-lstm-cell".
        check: name of its check.
        answer: name of the student's answer.
        source: the cell with the reference solution.
    """

    name: str
    check: str
    answer: str
    source: str

    @property
    def chapter(self):
        """Its chapter, two digits."""
        return self.name[2:4]

    @property
    def on_paper(self):
        """Whether the answer is no function."""
        return f"def {self.answer}(" not in self.source


@dataclasses.dataclass
class Row:
    """What was found for one exercise; mutants are called by their change, planted answers by their place."""

    exercise: str
    planted: int = 0
    planted_passed: list = dataclasses.field(default_factory=list)
    mutants: int = 0  # without the equivalent ones
    passed_visible: list = dataclasses.field(default_factory=list)
    passed_hidden: list = dataclasses.field(default_factory=list)
    told: dict = dataclasses.field(default_factory=dict)  # of those that passed the check, what else is known
    equivalent: dict = dataclasses.field(default_factory=dict)  # change: reason
    refuted: list = dataclasses.field(default_factory=list)  # called equivalent, but a draw tells
    same_numbers: int = 0  # answers on paper that are the right numbers, computed in another way

    @property
    def passed_both(self):
        """The mutants that neither the check nor the hidden test kills."""
        return [change for change in self.passed_visible if change in self.passed_hidden]

    @property
    def wrong(self):
        """The number of wrong answers."""
        return self.planted + self.mutants

    @property
    def killed(self):
        """By the visible check, planted ones included."""
        return self.wrong - len(self.planted_passed) - len(self.passed_visible)


def exercises(chapter):
    """Return the exercises of a chapter ("05") that are graded by machine, in order."""
    cells = editions.chapter(_path(chapter)).cells
    sources = {cell.metadata.nbgrader["grade_id"]: cell.source for cell in cells if editions.is_solution(cell)}
    found = []
    for cell in cells:
        if editions.is_check(cell):
            name = cell.metadata.nbgrader["grade_id"].removesuffix("-check")
            check, answer = re.search(r"^ch\d\d\.(\w+)\((\w+)\)", cell.source, flags=re.MULTILINE).groups()
            found.append(Exercise(name, check, answer, sources[name]))
    return found


def mutants(exercise):
    """Return the mutants of the reference solution: small mistakes between the marks of the solution."""
    lines = [line.strip() for line in exercise.source.split("\n")]
    first, last = lines.index(editions.BEGIN) + 1, lines.index(editions.END) + 1
    answer = exercise.answer if exercise.on_paper else None
    return mutator.mutants(exercise.source, lambda line: first < line < last, answer)


def planted(exercise):
    """Return the wrong answers of the check's tests."""
    tests = importlib.import_module(f"tests.exercises.test_ch{exercise.chapter}")
    lazy = [getattr(tests, table)[exercise.check] for table in ("IDENTITY", "ZEROS") if hasattr(tests, table)]
    return [wrong for _, wrong in tests.PLANTED[exercise.check]] + lazy


def answer_of(exercise, source):
    """Return the answer that a cell defines, after the chapter's setup cells."""
    names = dict(_setup(exercise.chapter))
    with _quiet():
        exec(compile(source, exercise.name, "exec"), names)
    return names[exercise.answer]


def verdict(exercise, answer):
    """Return what the visible check says."""
    check = getattr(importlib.import_module(f"course_lib.exercises.ch{exercise.chapter}"), exercise.check)
    torch.manual_seed(0)
    with _quiet():
        return check._verdict(answer)


def passes_hidden(exercise, answer, seed=0, cases=None):
    """Say whether the hidden test is content, with as many cases as it asks for or as are given."""
    test = hidden.tests(exercise.chapter)[f"{exercise.name}-check"]
    test = dataclasses.replace(test, cases=cases or test.cases)
    try:
        with _quiet():
            hidden.examine(test, hidden.here(answer), seed)
    except Exception:
        return False
    return True


def differs(exercise, answer):
    """Say whether one of 200 other draws of the hidden test tells an answer from the right one."""
    seeds = 1 if exercise.on_paper else SEEDS  # an answer on paper is not drawn for
    return any(not passes_hidden(exercise, answer, seed, cases=1) for seed in range(1, seeds + 1))


def examine(exercise, reasons):
    """Put all wrong answers of an exercise to its tests.

    Args:
        exercise: an `Exercise`.
        reasons: {change: why it is no mistake}.

    Returns:
        Row.

    Raises:
        ValueError: if the reference does not pass, or a reason is given for a change that is not made.
    """
    right = answer_of(exercise, exercise.source)
    made = mutants(exercise)
    unknown = reasons.keys() - {mutant.change for mutant in made}
    if unknown:
        raise ValueError(f"{exercise.name}: {EQUIVALENT.name} explains changes that are not made: {sorted(unknown)}")
    for _ in range(3):  # what is imported at the first time counts as the answer's time
        passes = verdict(exercise, right).startswith("passed") and passes_hidden(exercise, right)
    if not passes:
        raise ValueError(f"{exercise.name}: the reference solution does not pass")
    row = Row(exercise.name)
    for number, wrong in enumerate(planted(exercise)):
        row.planted += 1
        if verdict(exercise, wrong).startswith("passed"):
            row.planted_passed.append(number)
    for mutant in made:
        _judge(exercise, mutant, row, reasons, right)
    return row


def _judge(exercise, mutant, row, reasons, right):
    """Put one mutant to the tests and write down what came."""
    try:
        answer = answer_of(exercise, mutant.source)
    except Exception:  # the cell does not run: killed
        row.mutants += 1
        return
    if exercise.on_paper and _same(answer, right):
        row.same_numbers += 1
        return
    said = verdict(exercise, answer)
    visible, other = said.startswith("passed"), "ran for more than" not in said and passes_hidden(exercise, answer)
    if mutant.change in reasons and visible and not differs(exercise, answer):
        row.equivalent[mutant.change] = reasons[mutant.change]
        return
    row.mutants += 1
    if mutant.change in reasons:
        row.refuted.append(mutant.change)
    if visible:
        row.passed_visible.append(mutant.change)
        row.told[mutant.change] = _told(exercise, answer, other)
    if other:
        row.passed_hidden.append(mutant.change)


def _told(exercise, answer, passed_hidden):
    """Say what else is known of a mutant that the check lets pass."""
    if not passed_hidden:
        return "the hidden test says no"
    if differs(exercise, answer):
        return "passes the hidden test; other draws tell"
    return "agrees to the digits asked for" if exercise.on_paper else f"no difference in {SEEDS} draws"


def _same(answer, right):
    """Whether two answers on paper are the same numbers."""
    if isinstance(right, dict):
        return isinstance(answer, dict) and answer == right
    try:
        with _quiet():
            one, other = _flat(answer), _flat(right)
    except Exception:
        return False
    return one.shape == other.shape and all(map(functools.partial(math.isclose, rel_tol=1e-9), one, other))


def _flat(answer):
    """Return all numbers of an answer as one tensor."""
    listed = answer if isinstance(answer, (list, tuple)) else [answer]
    return torch.cat([torch.as_tensor(value).double().flatten() for value in listed])


@contextlib.contextmanager
def _quiet():
    """No output, no warnings, and an end after two seconds of computing."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()), _time_limit(SECONDS):
        warnings.simplefilter("ignore")
        yield


def _path(chapter):
    return next(path for path in editions.sources() if path.stem.startswith(chapter))


@functools.cache
def _setup(chapter):
    """Return the names that the setup cells of a chapter define."""
    names = {}
    for cell in editions.chapter(_path(chapter)).cells:
        if cell.cell_type == "code" and "setup" in cell.metadata.get("tags", []):
            exec(compile(cell.source, chapter, "exec"), names)
    return names


# --- the table ---------------------------------------------------------------------------------


def counted(rows):
    """Return the totals that the thresholds are about.

    Returns:
        dict: the shares killed by the visible checks ("visible"), by visible check and hidden test together
        ("together"), and in each exercise by its visible check ("each", a dict).
    """
    wrong = sum(row.wrong for row in rows)
    return {
        "visible": sum(row.killed for row in rows) / wrong,
        "together": 1 - sum(len(row.passed_both) + len(row.planted_passed) for row in rows) / wrong,
        "each": {row.exercise: row.killed / row.wrong for row in rows},
    }


def complaints(rows):
    """Return what is not good enough, in words; an empty list if the checks do check."""
    shares, found = counted(rows), []
    if shares["visible"] < VISIBLE:
        found.append(f"the visible checks kill {shares['visible']:.1%}, wanted {VISIBLE:.0%}")
    if shares["together"] < TOGETHER:
        found.append(f"visible checks and hidden tests kill {shares['together']:.1%}, wanted {TOGETHER:.0%}")
    for name, share in shares["each"].items():
        if share < EACH:
            found.append(f"{name}: its check kills {share:.1%}, wanted {EACH:.0%}")
    found += [f"{row.exercise}: not equivalent after all: {change}" for row in rows for change in row.refuted]
    return found


def table(rows):
    """Return MUTANTS.md."""
    shares = counted(rows)
    lines = [
        "# Do the checks check?",
        "",
        "Written by `make check-the-checks` (`python -m classroom.mutants`); do not edit. Not for students: it shows",
        "pieces of solutions. Each exercise gets the wrong answers planted in the tests of its check, and every small",
        "mistake of `mutator.py` in its reference solution. Killed: the check, or the hidden test, says no.",
        "Equivalent: the change gives the same results and is no mistake; these are not counted.",
        "",
        f"Killed by the visible checks: {shares['visible']:.1%} of {sum(row.wrong for row in rows)} wrong answers "
        f"(wanted {VISIBLE:.0%}, and {EACH:.0%} in each exercise); by visible checks and hidden tests together: "
        f"{shares['together']:.1%} (wanted {TOGETHER:.0%}).",
        "",
        "| exercise | planted, killed | mutants, killed by the check | by the hidden test | by either | equivalent |",
        "|---|---|---|---|---|---|",
        *map(_line, rows),
        _line(_total(rows)),
        "",
        *_list("Wrong answers that a visible check lets pass", [r for r in rows if r.passed_visible], _survivors),
        *_list("Equivalent", [r for r in rows if r.equivalent], _reasons),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _line(row):
    def killed(passed):
        return f"{row.mutants - len(passed)}/{row.mutants}"

    planted_killed = f"{row.planted - len(row.planted_passed)}/{row.planted}"
    mutants_killed = " | ".join(map(killed, (row.passed_visible, row.passed_hidden, row.passed_both)))
    return f"| {row.exercise} | {planted_killed} | {mutants_killed} | {row.same_numbers + len(row.equivalent)} |"


def _total(rows):
    """Add up all rows."""
    total = Row("**all**")
    for row in rows:
        total.planted += row.planted
        total.mutants += row.mutants
        total.same_numbers += row.same_numbers
        for field in ("planted_passed", "passed_visible", "passed_hidden"):
            getattr(total, field).extend((row.exercise, change) for change in getattr(row, field))
        total.equivalent |= {(row.exercise, change): reason for change, reason in row.equivalent.items()}
    return total


def _list(title, rows, entries):
    if not rows:
        return [f"## {title}", "", "None.", ""]
    lines = [f"## {title}", ""]
    for row in rows:
        lines += [f"{row.exercise}:", "", *entries(row), ""]
    return lines


def _survivors(row):
    return [f"- `{change}` ({row.told[change]})" for change in row.passed_visible]


def _reasons(row):
    return [f"- `{change}`: {reason}" for change, reason in row.equivalent.items()]


def main(arguments=None):
    """Run all, write the table, print what came; return 1 if too much passes."""
    parser = argparse.ArgumentParser(prog="python -m classroom.mutants", description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="only exercises whose names begin so, such as ex05; writes no table")
    names = tuple(parser.parse_args(arguments).names)
    chosen = [e for path in editions.sources() for e in exercises(path.stem[:2]) if e.name.startswith(names or "ex")]
    if not chosen:
        parser.error(f"no exercise begins with {names}")
    began = time.monotonic()
    reasons = tomllib.loads(EQUIVALENT.read_text(encoding="utf8"))
    # Fresh processes: torch's threads do not survive a fork.
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn"), _begin) as pool:
        rows = []
        for row in pool.map(examine, chosen, [reasons.get(e.name, {}) for e in chosen]):
            rows.append(row)
            print(_line(row), flush=True)
    text = table(rows)
    if names:
        print(text)
    else:
        TABLE.write_text(text, encoding="utf8")
        print(text.split("\n")[7], text.split("\n")[8])
    print(f"{len(rows)} exercises in {time.monotonic() - began:.0f} s")
    found = complaints(rows)
    print("\n".join(found) if found else "The checks check.")
    return int(bool(found))


def _begin():
    """Set up a process: one thread, bounded memory."""
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


if __name__ == "__main__":
    sys.exit(main())
