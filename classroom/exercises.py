"""The exercises of the chapters, as an instructor chooses them: titles, points, times, and the cells of each.

All of it is read from the chapters' sources. `python -m classroom.exercises` writes the table of all exercises
into INSTRUCTORS.md.
"""

import dataclasses
import re
import sys

from tools.notebooks import editions

HEADING = re.compile(r"^### Exercise (\d+\.\d+) · (.+)$", re.MULTILINE)
ABOUT = re.compile(r"^Difficulty (●+)○* · (\d+) minutes", re.MULTILINE)
COURSE = editions.ROOT / "grading"  # the course folder, if no other is named
INSTRUCTORS = editions.ROOT / "INSTRUCTORS.md"
BEGIN, END = "<!-- exercises: made by classroom/exercises.py -->", "<!-- end of the exercises -->"


@dataclasses.dataclass(frozen=True)
class Exercise:
    """One exercise of a chapter.

    Args:
        number: such as "5.1".
        title: what stands behind the number.
        chapter: such as "05".
        cells: where its cells stand in the chapter: from the one with its heading to the last that is graded.
        points: {grade_id: points} of its graded cells.
        by_hand: whether a person reads the answer.
        difficulty: 1 to 5.
        minutes: that a student needs.
    """

    number: str
    title: str
    chapter: str
    cells: range
    points: dict[str, float]
    by_hand: bool
    difficulty: int
    minutes: int

    @property
    def total(self):
        """All its points."""
        return sum(self.points.values())


def source_of(chapter):
    """Return the source file of a chapter.

    Raises:
        ValueError: if there is no chapter with this number.

    Example:
        >>> source_of("05").name
        '05_lstm_and_gru.py'
    """
    known = {path.stem[:2]: path for path in editions.sources()}
    if chapter not in known:
        raise ValueError(f"no chapter {chapter}; there are {', '.join(known)}")
    return known[chapter]


def exercises(notebook, chapter):
    """Return the exercises of a chapter's notebook, in order.

    Args:
        notebook: of the chapter, in any edition.
        chapter: its number, such as "05".

    Returns:
        list of Exercise.

    Raises:
        ValueError: if an exercise has no line "Difficulty ●●○○○ · 20 minutes", or nothing that is graded.
    """
    starts = [
        i for i, cell in enumerate(notebook.cells) if cell.cell_type == "markdown" and HEADING.search(cell.source)
    ]
    ends = [*starts[1:], len(notebook.cells)]
    return [_exercise(notebook, chapter, start, end) for start, end in zip(starts, ends, strict=True)]


def _exercise(notebook, chapter, start, end):
    heading = HEADING.search(notebook.cells[start].source)
    number, title = heading.groups()
    graded = [i for i in range(start, end) if notebook.cells[i].metadata.get("nbgrader", {}).get("grade")]
    about = ABOUT.search(notebook.cells[start].source, heading.end())
    if not graded or not about:
        raise ValueError(f"exercise {number} needs a graded cell, and a line such as 'Difficulty ●●○○○ · 20 minutes'")
    marks = [notebook.cells[i].metadata.nbgrader for i in graded]
    return Exercise(
        number, title, chapter, range(start, graded[-1] + 1), {mark.grade_id: mark.points for mark in marks},
        any(mark.solution for mark in marks), len(about[1]), int(about[2]),
    )  # fmt: skip


def of_chapter(chapter):
    """Return the exercises of a chapter ("05"), in order.

    Raises:
        ValueError: if there is no such chapter.
    """
    return exercises(editions.chapter(source_of(chapter)), chapter)


def chosen(numbers):
    """Return the exercises with these numbers, in the order of the chapters.

    Args:
        numbers: such as ["7.2", "5.1"].

    Returns:
        list of Exercise.

    Raises:
        ValueError: if a number is not written like 5.1, or there is no such exercise.

    Example:
        >>> [exercise.title for exercise in chosen(["5.3", "5.1"])]
        ['One step, one product', 'One step of the GRU']
    """
    found = []
    for chapter in sorted({_chapter_of(number) for number in numbers}):
        there = of_chapter(chapter)
        wanted = {number for number in numbers if _chapter_of(number) == chapter}
        unknown = wanted - {exercise.number for exercise in there}
        if unknown:
            raise ValueError(
                f"no exercise {', '.join(sorted(unknown))}; chapter {chapter} has {', '.join(e.number for e in there)}"
            )
        found += [exercise for exercise in there if exercise.number in wanted]
    return found


def _chapter_of(number):
    if not re.fullmatch(r"\d{1,2}\.\d+", number):
        raise ValueError(f"got {number!r}; an exercise is named like 5.1")
    return number.partition(".")[0].zfill(2)


def with_points(exercises, text):
    """Return the exercises with other points.

    Args:
        exercises: list of Exercise.
        text: such as "5.1=5 7.2=2.5". The points of an exercise with several checks are shared out in proportion.

    Returns:
        list of Exercise.

    Raises:
        ValueError: if a word is not NUMBER=POINTS with POINTS from 0 on, or names an exercise that is not among them.

    Example:
        >>> [exercise.total for exercise in with_points(chosen(["5.1", "5.3"]), "5.3=10")]
        [3, 10.0]
    """
    wanted = dict(_assignment(word) for word in text.split())
    unknown = set(wanted) - {exercise.number for exercise in exercises}
    if unknown:
        raise ValueError(f"points for {', '.join(sorted(unknown))}, which is not in the assignment")
    return [_worth(exercise, wanted[exercise.number]) if exercise.number in wanted else exercise
            for exercise in exercises]  # fmt: skip


def _assignment(word):
    number, _, points = word.partition("=")
    if not number or not re.fullmatch(r"\d+(\.\d+)?", points):
        raise ValueError(f"got {word!r}; points are given like 5.1=3 or 5.1=2.5")
    return number, float(points)


def _worth(exercise, points):
    shares = {grade_id: points * old / exercise.total for grade_id, old in exercise.points.items()}
    return dataclasses.replace(exercise, points=shares)


def rows(exercises):
    """Return the points table as rows of text: a head, one for each exercise, the totals."""
    lines = [["exercise", "title", "marked by", "points", "minutes", "difficulty", "chapter"]]
    for e in exercises:
        marked = "hand" if e.by_hand else "machine"
        lines.append([e.number, e.title, marked, f"{e.total:g}", str(e.minutes), str(e.difficulty), e.chapter])
    points, minutes = sum(e.total for e in exercises), sum(e.minutes for e in exercises)
    by_hand = sum(e.total for e in exercises if e.by_hand)
    about = f"{len(exercises)} exercises, of the points {by_hand:g} by hand"
    return [*lines, ["total", about, "", f"{points:g}", str(minutes), "", ""]]


def as_markdown(rows):
    """Write rows as a Markdown table.

    >>> print(as_markdown([["a", "b"], ["1", "2"]]))
    | a | b |
    |---|---|
    | 1 | 2 |
    """
    head, *body = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([head, "|---" * len(rows[0]) + "|", *body])


def overview():
    """Return the table of all exercises, a row for each chapter."""
    lines = [["chapter", "exercises (points, minutes)", "points", "of these by hand", "minutes"]]
    for path in editions.sources():
        there = of_chapter(path.stem[:2])
        points, by_hand = sum(e.total for e in there), sum(e.total for e in there if e.by_hand)
        minutes = sum(e.minutes for e in there)
        lines.append([path.stem[:2], "; ".join(map(_briefly, there)), f"{points:g}", f"{by_hand:g}", str(minutes)])
    return as_markdown(lines)


def _briefly(exercise):
    text = f"{exercise.number} {exercise.title} ({exercise.total:g}, {exercise.minutes})"
    return f"*{text}*" if exercise.by_hand else text


def filled(text):
    """Return INSTRUCTORS.md's text with the table of all exercises between its marks made anew."""
    if BEGIN not in text or END not in text:
        raise ValueError(f"INSTRUCTORS.md must hold the lines {BEGIN!r} and {END!r}")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    return f"{before}{BEGIN}\n{overview()}\n{END}{after}"


def main():
    """Write INSTRUCTORS.md with the table made anew."""
    INSTRUCTORS.write_text(filled(INSTRUCTORS.read_text(encoding="utf8")), encoding="utf8")


if __name__ == "__main__":
    sys.exit(main())
