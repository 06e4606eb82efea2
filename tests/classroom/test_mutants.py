"""Mutants of the reference solutions: each kind of mistake is made, the table is up to date, the thresholds bite."""

import re
import tomllib

import pytest

from classroom import mutants
from classroom.mutants import Row, complaints, examine, exercises
from classroom.mutator import KINDS, Mutant
from classroom.mutator import mutants as made
from course_lib.exercises import ch05
from tools.notebooks import editions

CHAPTERS = [path.stem[:2] for path in editions.sources()]
ALL = [exercise for chapter in CHAPTERS for exercise in exercises(chapter)]


def kinds_of(source):
    """The mutants of a source as {what the changed line reads: kind of mistake}."""
    return {mutant.change.partition(" -> ")[2]: mutant.kind for mutant in made(source)}


@pytest.mark.parametrize(
    ("kind", "source", "wanted"),
    [
        ("axis", "y = x.sum(dim=1)", {"y = x.sum(dim=0)", "y = x.sum(dim=2)"}),
        ("axis", "y = a @ b.T", {"y = a @ b"}),
        ("off_by_one", "y = x + 3", {"y = x + 4", "y = x + 2"}),
        ("off_by_one", "y = a < b", {"y = a <= b"}),
        ("off_by_one", "y = x[i:n]", {"y = x[i + 1:n]", "y = x[i - 1:n]", "y = x[i:n - 1]", "y = x[:n]", "y = x[i:]"}),
        ("off_by_one", "y = x[:, t]", {"y = x[1:, t]", "y = x[:-1, t]"}),
        ("off_by_one", "y = range(n)", {"y = range(n + 1)", "y = range(n - 1)"}),
        ("scale", "y = a / b", {"y = a"}),
        ("scale", "y = a * b", {"y = a", "y = b"}),
        ("scale", "y = a ** b", {"y = a"}),
        ("scale", "y = 0.5 + x", {"y = 1.0 + x", "y = 0.25 + x"}),
        ("mask", "y = torch.where(m, a, b)", {"y = a", "y = b"}),
        ("mask", "y = x[m]", {"y = x"}),
        ("mask", "y = a & ~b", {"y = a", "y = ~b", "y = a | ~b", "y = a & b"}),
        ("mask", "y = a if m else b", {"y = a", "y = b"}),
        ("mask", "if m:\n    y = 1", {"if True:"}),
        ("call", "y = x.masked_fill(m, 0)", {"y = x"}),
        ("call", "y = torch.tanh(x)", {"y = x"}),
        ("sign", "y = 1 - x", {"y = 1 + x", "y = x", "y = 1"}),
        ("sign", "y = -x", {"y = x"}),
        ("sign", "y += x", {"y -= x"}),
        ("function", "y = max(a, b)", {"y = min(a, b)"}),
        ("function", "y = x.sum()", {"y = x.mean()"}),
        ("function", "y = torch.sigmoid(x)", {"y = torch.tanh(x)"}),
        ("function", "y = a and b", {"y = a or b", "y = a", "y = b"}),
        ("function", "y = a == b", {"y = a != b"}),
        ("function", "y = True", {"y = False"}),
        ("function", "for t in x:\n    break", {"continue"}),
        ("mask", "y = not a", {"y = a"}),
        ("statement", "y = f()\nz = y", {"pass"}),
        ("swap", "y = f(a, b, c)", {"y = f(b, a, c)", "y = f(a, c, b)"}),
        ("swap", "y = (a, b)", {"y = (b, a)"}),
        ("swap", "y = a - b", {"y = b - a"}),
        ("other result", "def f(x):\n    y = g(x)\n    return 2 * y", {"return y"}),
    ],
)
def test_each_kind_of_mistake_is_made(kind, source, wanted):
    """Fails if a kind is lost, or makes something else."""
    found = kinds_of(source)
    assert wanted <= found.keys()
    assert {found[line] for line in wanted} == {kind}


def test_every_kind_is_tested():
    """Fails if a kind is added or lost without a line in the test above."""
    cases = test_each_kind_of_mistake_is_made.pytestmark[0].args[1]
    assert {kind for kind, _, _ in cases} == {*KINDS, "other result"}


def test_numbers_on_paper_are_doubled_halved_shifted_and_turned():
    lines = {mutant.change for mutant in made("y = (a, b)", answer="y")}
    for new in ("a * 2, b", "a / 2, b", "a + 1, b", "-a, b", "b, a", "a, -b"):
        assert f"y = (a, b) -> y = ({new})" in lines


def test_mutants_differ_from_the_reference_and_from_each_other():
    """Fails if a mistake that changes nothing is counted, or one mistake twice."""
    found = made("y = -1 + x[1:]")
    assert len({mutant.source for mutant in found}) == len({mutant.change for mutant in found}) == len(found)
    assert "y = -1 + x[1:]" not in {mutant.source for mutant in found}


def test_only_lines_of_the_solution_are_changed():
    """Fails if the signature or a line outside the marks is changed."""
    for exercise in exercises("05"):
        head = exercise.source.split(editions.BEGIN)[0]
        if "def " in head:
            signature = re.search(r"def .*", head).group()
            assert all(signature in mutant.source for mutant in mutants.mutants(exercise))


def test_the_table_is_up_to_date():
    """Fails if an exercise or a solution has changed since `make check-the-checks` ran."""
    stored = mutants.TABLE.read_text("utf8")
    rows = re.findall(r"^\| (ex\S+) \| \d+/(\d+) \| \d+/(\d+) .*\| (\d+) \|$", stored, re.MULTILINE)
    wanted = [(e.name, len(mutants.planted(e)), len(mutants.mutants(e))) for e in ALL]
    assert [(name, int(planted), int(counted) + int(rest)) for name, planted, counted, rest in rows] == wanted


def test_reasons_are_given_for_changes_that_are_made():
    """Fails if a solution has changed, and a reason for an equivalent mutant stayed behind."""
    reasons = tomllib.loads(mutants.EQUIVALENT.read_text("utf8"))
    made_now = {e.name: {mutant.change for mutant in mutants.mutants(e)} for e in ALL}
    assert [(name, change) for name in reasons for change in reasons[name] if change not in made_now[name]] == []


def test_examine_finds_what_a_check_lets_pass(monkeypatch):
    """Fails if a check that says yes to everything looks as good as the real one."""
    exercise = next(e for e in exercises("05") if e.check == "gru_weights")
    monkeypatch.setattr(mutants, "mutants", lambda e: [Mutant("sign", "a -> b", e.source.replace("1 - gate", "gate"))])
    assert examine(exercise, {}).killed == examine(exercise, {}).wrong
    monkeypatch.setattr(ch05.gru_weights, "examine", lambda student: None)
    row = examine(exercise, {})
    assert row.passed_visible == ["a -> b"]
    assert row.passed_hidden == []
    assert row.killed == 0


def test_a_reason_is_not_believed_when_a_draw_tells(monkeypatch):
    """Fails if a wrong answer can be declared equivalent."""
    exercise = next(e for e in exercises("05") if e.check == "gru_weights")
    monkeypatch.setattr(mutants, "mutants", lambda e: [Mutant("sign", "a -> b", e.source.replace("1 - gate", "gate"))])
    row = examine(exercise, {"a -> b": "I say so"})
    assert row.refuted == ["a -> b"]
    assert not row.equivalent
    with pytest.raises(ValueError, match="explains changes that are not made"):
        examine(exercise, {"c -> d": "stale"})


def row(name="ex", wrong=100, visible=0, both=0):
    """A row in which so many mutants pass the check, and so many of these the hidden test."""
    passed = [str(i) for i in range(visible)]
    return Row(name, mutants=wrong, passed_visible=passed, passed_hidden=passed[:both])


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row(visible=6), row("b")], None),
        ([row("a", visible=11), row("b"), row("c")], "a: its check kills 89.0%"),
        ([row(visible=6), row("b", visible=5)], "the visible checks kill 94.5%"),
        ([row(visible=3, both=3), row("b", visible=2, both=2)], "hidden tests kill 97.5%"),
        ([Row("ex", mutants=9, refuted=["a -> b"])], "not equivalent after all: a -> b"),
    ],
)
def test_the_thresholds_bite(rows, said):
    """Fails if too many wrong answers may pass."""
    found = " ".join(complaints(rows))
    assert (said in found) if said else not found


def test_an_unknown_exercise_is_an_error(capsys):
    with pytest.raises(SystemExit):
        mutants.main(["ex99"])
    assert "no exercise begins with" in capsys.readouterr().err
