"""Answers that are alike: `make alike NAME=homework1`. Likeness is a reason to read both answers, not a verdict.

Answers to the same exercise are compared across students by the passages that they share, as in Schleimer, Wilkerson
and Aiken, "Winnowing: local algorithms for document fingerprinting" (SIGMOD 2003): a fingerprint is a run of K tokens.
A class is small enough to keep every fingerprint, so nothing is winnowed away. In code, comments, docstrings and
blanks do not count, and the names that a student can choose are numbered anew in each run, so that neither other names
nor another order of the statements hides a passage. In written answers the tokens are words.

What the student was given (the released notebook) and what the reference solution says does not count. Of the rest, a
passage that m students share counts 1/sqrt(m - 1): a right answer that many find tells little. And the more of the
others have a twin too, as in an exercise that has only a few short answers, the more two must share to be reported.
"""

import argparse
import builtins
import collections
import csv
import dataclasses
import itertools
import json
import keyword
import re
import sys
from pathlib import Path

from classroom.exports import safe
from classroom.marks import COURSE, exercise_of
from tools.notebooks import editions

K = {"code": 9, "markdown": 5}  # tokens of a fingerprint
LEAST = {"code": 60, "markdown": 25}  # tokens (words) in common that are reported where nobody else has a twin
LEAST_TWINS = {"code": 180, "markdown": 75}  # and where everybody has
TOGETHER = 2.0  # the sum of an assignment's exercises, each divided by what it needs, that is reported
TWINS = 0.8  # the part of two answers that makes them twins
LIKENESS = 0.5  # the part of the shorter answer that must be shared
LONGEST = 4000  # tokens of one answer that are compared
LONGEST_SOURCE = 50_000  # its characters
LARGEST = 20_000_000  # bytes of a notebook that is read
MANY = 20  # a passage that more students share is nobody's
OWN = "own cells"  # what students wrote outside the exercises

_TOKEN = re.compile(
    r"""(?P<comment>\#[^\n]*)
    | (?P<string>(?i:[bfru]{0,2})
        (?:\"\"\"(?:[^\\]|\\.)*?\"\"\" | '''(?:[^\\]|\\.)*?''' | "(?:[^"\\\n]|\\.)*" | '(?:[^'\\\n]|\\.)*'))
    | (?P<number>0[xXoObB][\da-fA-F_]+|(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)(?:[eE][+-]?\d+)?[jJ]?)
    | (?P<name>[^\W\d]\w*)
    | (?P<newline>\\?\n)
    | (?P<sign>\*\*=|//=|>>=|<<=|->|:=|[-+*/%&|^@=<>!]=|\*\*|//|<<|>>|[^\s\w])""",
    re.VERBOSE | re.DOTALL,
)
_KEPT = {*keyword.kwlist, *dir(builtins), "self"}


@dataclasses.dataclass(frozen=True)
class Pair:
    """Two answers that are alike.

    Args:
        exercise: its number, or "all" for all exercises together.
        grade_id: of the answer's cell.
        students: the two ids.
        likeness: the part of the shorter answer that is shared, from 0 to 1; what was given does not count.
        common: tokens (words) that are shared, beyond what was given and the reference solution.
        longest: the longest passage that is shared, in tokens (words).
        shared_by: how many students share most of it, these two among them.
        answers: how many were compared.
        unit: "tokens" or "words".
    """

    exercise: str
    grade_id: str
    students: tuple
    likeness: float
    common: int
    longest: int
    shared_by: int
    answers: int
    unit: str


def code_tokens(source):
    r"""Return the tokens of Python code, whether it is right or not: without comments, docstrings and blanks.

    Strings are all the same; the names that a student chooses come as ("own", name).

    Example:
        >>> code_tokens('"Docstring."\ny = 2 * x.sum()  # twice\n')
        [('own', 'y'), '=', '2', '*', ('own', 'x'), '.', 'sum', '(', ')']
    """
    found, depth = [], 0
    for match in _TOKEN.finditer(source[:LONGEST_SOURCE] + "\n"):
        kind, text = match.lastgroup, match[0]
        if kind == "sign":
            depth = max(0, depth + (text in "([{") - (text in ")]}"))
        if kind == "newline" or (text == ";" and not depth):
            if found[-1:] == ['""'] and found[-2:-1] in (["\n"], []):
                found.pop()  # a string that stands alone: a docstring
            if depth or text.startswith("\\") or found[-1:] in ([], ["\n"]):
                continue
            found.append("\n")
        elif kind == "string":
            found.append('""')
        elif kind == "name" and text not in _KEPT and found[-1:] != ["."]:
            found.append(("own", text))
        elif kind != "comment":
            found.append(text)
        if len(found) > LONGEST:
            break
    own = {found[i + 1] for i in range(len(found) - 2) if found[i] == "." and found[i + 2] == "="}
    found = [("own", t) if i and found[i - 1] == "." and t in own else t for i, t in enumerate(found)]
    return found[:-1] if found[-1:] == ["\n"] else found


def words(text):
    """Return the words and numbers of a written answer.

    >>> words("The *forget* gate, b = 0.5")
    ['the', 'forget', 'gate', 'b', '0', '5']
    """
    return re.findall(r"[^\W_]+", text[:LONGEST_SOURCE].casefold())[:LONGEST]


def fingerprints(tokens, k):
    """Return the runs of k tokens, one for each place, with own names numbered from the beginning of each run.

    Example:
        >>> a, b = (fingerprints(code_tokens(text), 5) for text in ("y = f(y)", "out = g(out)"))
        >>> a == b, a[0]
        (True, (0, '=', 1, '(', 0))
    """
    runs = []
    for start in range(len(tokens) - k + 1):
        numbers = {}
        runs.append(tuple(numbers.setdefault(t, len(numbers)) if isinstance(t, tuple) else t
                          for t in tokens[start : start + k]))  # fmt: skip
    return runs


def compare(answers, given=(), reference="", kind="code"):
    """Find pairs of answers to one exercise that share more than chance and the exercise explain.

    Args:
        answers: {student: source}.
        given: sources that everybody has been given.
        reference: source of the reference solution.
        kind: "code" or "markdown".

    Returns:
        {(student, student): {"likeness", "common", "strength", "longest", "shared_by"}} of all pairs that share a
        passage of their own, whether it is much or little; from a strength of 1 on it is worth a look.
    """
    k, cut = K[kind], code_tokens if kind == "code" else words
    tokens = {student: cut(source) for student, source in answers.items()}
    runs = {student: fingerprints(each, k) for student, each in tokens.items()}
    known = {run for source in given for run in fingerprints(cut(source), k)}
    standard = known | set(fingerprints(cut(reference), k))
    holders = collections.defaultdict(set)
    for student, each in runs.items():
        for run in each:
            holders[run].add(student)
    pairs = collections.defaultdict(set)
    for run, students in holders.items():
        if run not in standard and 2 <= len(students) <= MANY:
            for pair in itertools.combinations(sorted(students), 2):
                pairs[pair].add(run)
    twins = with_twins({student: set(each) - known for student, each in runs.items()})
    found = {}
    for pair, common in pairs.items():
        about, sharing = _about(pair, common, runs, tokens, holders, known, k)
        others = answers.keys() - sharing
        part = (len(others & twins) + 1) / (len(others) + 2)  # of few others, little is known
        about["strength"] = about.pop("evidence") / (LEAST[kind] + part * (LEAST_TWINS[kind] - LEAST[kind]))
        found[pair] = about
    return found


def with_twins(runs):
    """Return the students whose answer is nearly another's, whatever the reason.

    Args:
        runs: {student: set of fingerprints}.
    """
    return {student for pair in itertools.combinations(runs, 2) for student in pair
            if min(len(runs[s]) for s in pair) and len(runs[pair[0]] & runs[pair[1]])
            >= TWINS * max(len(runs[s]) for s in pair)}  # fmt: skip


def _about(pair, common, runs, tokens, holders, known, k):
    """What two answers share, and the students who share most of it."""
    a, b = pair
    shared = {run for run in runs[a] if b in holders[run] and run not in known}
    own = [len(tokens[s]) - len(_covered(runs[s], known, k)) for s in pair]
    weights = [_covered(runs[s], common, k, lambda run: (len(holders[run]) - 1) ** -0.5) for s in pair]
    most = collections.Counter(student for run in common for student in holders[run])
    sharing = {student for student, count in most.items() if 2 * count > len(common)}
    about = {
        "likeness": min(1.0, max(len(_covered(runs[s], shared, k)) / max(1, min(own)) for s in pair)),
        "common": min(map(len, weights)),
        "evidence": min(sum(each.values()) for each in weights),
        "longest": _longest(runs[a], runs[b], k),
        "shared_by": len(sharing),
    }
    return about, sharing


def _covered(runs, wanted, k, weight=lambda run: 1.0):
    """{place of a token: the largest weight of the wanted runs that cover it}."""
    places = {}
    for start, run in enumerate(runs):
        if run in wanted:
            worth = weight(run)
            for place in range(start, start + k):
                places[place] = max(places.get(place, 0.0), worth)
    return places


def _longest(a, b, k):
    """Tokens of the longest passage that two answers share: the longest common substring of their runs."""
    best, before = 0, {}
    places = collections.defaultdict(list)
    for j, run in enumerate(b):
        places[run].append(j)
    for run in a:
        here = {j: before.get(j - 1, 0) + 1 for j in places.get(run, ())}
        best = max(best, *here.values(), 0) if here else best
        before = here
    return best + k - 1 if best else 0


def report(exercises):
    """Return the pairs that are worth reading, the most alike first.

    Args:
        exercises: {grade_id: (kind, {student: source}, sources that were given, reference)}.

    Returns:
        list of Pair.
    """
    found, together = [], collections.defaultdict(list)
    for grade_id, (kind, answers, given, reference) in exercises.items():
        unit = "tokens" if kind == "code" else "words"
        for pair, about in compare(answers, given, reference, kind).items():
            strength = about.pop("strength")
            if about["likeness"] < LIKENESS:
                continue
            one = Pair(exercise_of(grade_id), grade_id, pair, answers=len(answers), unit=unit, **about)
            together[pair].append((strength, one))
            if strength >= 1:
                found.append(one)
    for pair, each in together.items():
        strengths = sorted(strength for strength, _ in each)
        if sum(strengths) >= TOGETHER and sum(strengths[:-1]) >= 0.5:  # more than one of them is worth a look
            ones = [one for _, one in each]
            found.append(Pair(
                "all", " ".join(one.exercise for one in ones), pair, sum(one.likeness for one in ones) / len(ones),
                sum(one.common for one in ones), max(one.longest for one in ones),
                max(one.shared_by for one in ones), max(one.answers for one in ones), "tokens",
            ))  # fmt: skip
    return sorted(found, key=lambda pair: (-pair.common, pair.students, pair.grade_id))


# Reading a course's notebooks. Nothing of them is run, and nothing of them is shown.


def read(path):
    """Return the cells of a notebook as (grade_id or "", whether it is an answer, kind, source).

    Raises:
        ValueError: if it cannot be read.
    """
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST:
        raise ValueError("it is no regular file, or too large")
    try:
        return [_cell(cell) for cell in json.loads(path.read_text(encoding="utf8"))["cells"]]
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it cannot be read as a notebook ({type(error).__name__})") from None


def _cell(cell):
    source = cell["source"] if isinstance(cell["source"], str) else "".join(cell["source"])
    mark = cell.get("metadata", {}).get("nbgrader", {})
    grade_id = mark.get("grade_id")
    return grade_id if isinstance(grade_id, str) else "", mark.get("solution") is True, str(cell["cell_type"]), source


def gathered(course, name):
    """Read all answers to an assignment.

    They are read from submitted/, as students wrote them; from autograded/ if they are no longer there.

    Args:
        course: the folder.
        name: of the assignment.

    Returns:
        exercises as `report` takes them, and what could not be read: list of str.

    Raises:
        ValueError: if the assignment was not released here.
    """
    released = {path.name: read(path) for path in sorted((course / "release" / name).glob("*.ipynb"))}
    if not released:
        raise ValueError(f"no notebooks in {course / 'release' / name}; wanted an assignment that `make release` made")
    exercises = {}
    for file, cells in released.items():
        source = course / "source" / name / file
        solved = {cell[0]: cell[3] for cell in read(source) if cell[1]} if source.is_file() else {}
        given = {kind: [text for *_, each, text in cells if each == kind] for kind in ("code", "markdown")}
        for grade_id, answer, kind, _ in cells:
            if answer:
                exercises[grade_id] = (kind, {}, given[kind], _without_marks(solved.get(grade_id, "")))
        exercises[f"{OWN} {file}"] = ("code", {}, given["code"], "\n".join(map(_without_marks, solved.values())))
    skipped = []
    for student in sorted(
        {path.name for path in course.glob("submitted/*/")} | {p.name for p in course.glob("autograded/*/")}
    ):
        for file, cells in released.items():
            places = [course / kind / student / name / file for kind in ("submitted", "autograded")]
            there = [path for path in places if path.is_symlink() or path.exists()]
            if there:
                try:
                    _take(read(there[0]), student, cells, file, exercises)
                except ValueError as error:
                    skipped.append(f"{student}: {file} is left out: {error}")
    return exercises, skipped


def _without_marks(source):
    return "\n".join(line for line in source.split("\n") if line.strip() not in (editions.BEGIN, editions.END))


def _take(cells, student, released, file, exercises):
    """Put a student's answers beside the others'."""
    given = {text.strip() for *_, text in released}
    locked = {grade_id for grade_id, answer, *_ in released if grade_id and not answer}
    for grade_id, _, kind, text in cells:
        if text.strip() in given or grade_id in locked:
            continue
        if grade_id in exercises and exercises[grade_id][0] == kind:
            answers = exercises[grade_id][1]
        elif kind == "code":
            answers = exercises[f"{OWN} {file}"][1]
        else:
            continue
        answers[student] = f"{answers[student]}\n{text}" if student in answers else text


def main(arguments=None):
    """Write the report, from the command line's words."""
    parser = argparse.ArgumentParser(prog="make alike", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--name", default="homework1", help="of the assignment")
    parser.add_argument("--course", type=Path, default=COURSE, help="folder of the course")
    options = parser.parse_args(arguments)
    try:
        exercises, skipped = gathered(options.course, options.name)
    except ValueError as error:
        parser.error(str(error))
    found = report(exercises)
    path = options.course / "alike" / f"{options.name}.csv"
    path.parent.mkdir(exist_ok=True)
    with path.open("w", newline="", encoding="utf-8-sig") as file:
        csv.writer(file).writerows(as_rows(found))
    for line in [*skipped, *as_text(found), f"All of it: {path}"]:
        print("".join(letter if letter.isprintable() else "?" for letter in line))


def as_rows(found):
    """Return the report as rows: a head, then a line for each pair."""
    head = ["exercise", "student", "other_student", "likeness_percent", "in_common", "longest_passage", "unit",
            "shared_by", "answers", "cells"]  # fmt: skip
    return [head, *([p.exercise, *map(safe, p.students), round(100 * p.likeness), p.common, p.longest, p.unit,
                     p.shared_by, p.answers, p.grade_id] for p in found)]  # fmt: skip


def as_text(found, most=20):
    """Return the lines for the screen."""
    if not found:
        return ["No answers are more alike than is usual for the same exercise."]
    lines = [f"Pairs of answers with passages that few others have: {len(found)}. That is a reason to read both, "
             "not a verdict: people learn together, and there are few ways to write a short answer."]  # fmt: skip
    for pair in found[:most]:
        what = f"exercises {pair.grade_id} together" if pair.exercise == "all" else pair.exercise
        lines.append(
            f"  {' and '.join(pair.students)}, {what}: {round(100 * pair.likeness)} % alike, {pair.common} "
            f"{pair.unit} in common, {pair.longest} of them in a row; shared by {pair.shared_by} of {pair.answers}"
        )
    return lines + ([f"  and {len(found) - most} more in the file"] if len(found) > most else [])


if __name__ == "__main__":
    sys.exit(main())
