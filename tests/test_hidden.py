"""The hidden tests: every machine-graded exercise has one; references pass, wrong answers do not."""

import importlib
import inspect

import pytest
import torch

from classroom import hidden
from classroom.hidden import Draw, Hidden, agree, examine, here
from classroom.worker import plain
from course_lib.checks import Wrong
from tests.solutions import solution
from tools import editions

CHAPTERS = [path.stem[:2] for path in editions.sources()]
ALL = [(chapter, test) for chapter in CHAPTERS for test in hidden.tests(chapter).values()]
IDS = [test.grade_id.removesuffix("-check") for _, test in ALL]


def passes(test, answer, seed=0):
    """Whether an answer passes; one that raises or gives something odd does not."""
    try:
        examine(test, here(answer), seed)
    except Exception:
        return False
    return True


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_every_check_has_its_hidden_test(chapter):
    """Fails if an exercise is added, renamed or dropped on one side only."""
    path = next(p for p in editions.sources() if p.stem.startswith(chapter))
    checks = [c.metadata.nbgrader["grade_id"] for c in editions.chapter(path).cells if editions.is_check(c)]
    assert list(hidden.tests(chapter)) == checks


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=IDS)
def test_the_reference_passes_whatever_is_drawn(chapter, test):
    """Fails if a reference solution or a hidden reference is wrong for some size; three seeds, fifteen cases."""
    for seed in (0, 1, 2):
        examine(test, here(solution(chapter, test.answer)), seed)


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=IDS)
def test_the_cases_differ_from_each_other(chapter, test):
    """Fails if a function is asked the same again and again: an answer learned by heart would pass."""
    if test.probe is hidden.value:
        assert test.cases == 1
        return
    given = [repr(plain(list(test.draw(Draw(seed))))) for seed in range(test.cases)]
    assert len(given) >= 3
    assert len(set(given)) > len(given) // 2


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=IDS)
def test_a_probe_stands_alone_as_text(chapter, test):
    """Fails if a probe needs a name of its module: in the student's process there is none."""
    text = hidden.text_of(test.probe)
    alone = {}
    exec(text["source"], alone)
    sent = Hidden(test.grade_id, test.answer, test.draw, test.right, alone[text["name"]], test.judge, test.without)
    assert passes(sent, solution(chapter, test.answer))


@pytest.mark.parametrize("chapter", CHAPTERS)
def test_hidden_tests_do_not_borrow_the_visible_checks_answers(chapter):
    """Fails if a hidden test computes what is right with the code of the check that it is to back up."""
    source = inspect.getsource(importlib.import_module(f"classroom.hidden.ch{chapter}"))
    assert f"checks import ch{chapter}" not in source
    assert f"checks.ch{chapter}" not in source


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=IDS)
def test_lazy_answers_fail(chapter, test):
    """Fails if a test is content with nothing, zeros, or what it gave."""
    for lazy in (
        lambda *given: None,
        lambda *given: given[0] if given else None,
        lambda *given: torch.zeros(()),
        lambda *given: 0,
        (0, 0, 0),
    ):
        assert not passes(test, lazy)


def test_without_is_respected_by_the_reference():
    """Fails if an exercise forbids what its own solution uses."""
    for chapter, test in ALL:
        path = next(p for p in editions.sources() if p.stem.startswith(chapter))
        cells = [c.source for c in editions.chapter(path).cells if editions.is_solution(c) and test.answer in c.source]
        assert [hidden.used_without_leave(code, test.without) for code in cells] == [[]] * len(cells), test.grade_id


@pytest.mark.parametrize(
    ("got", "wanted"),
    [
        (torch.ones(2, 3), torch.ones(3, 2)),
        (torch.ones(2), torch.ones(2) + 1e-3),
        (torch.ones(2), torch.ones(2, dtype=torch.bool)),
        (torch.tensor([float("nan")]), torch.ones(1)),
        ([1, 2], [1, 2, 3]),
        ([1, [2]], [1, [3]]),
        ({"a": 1}, {"b": 1}),
        (1.1, 1.0),
        (True, 1),
        ("a", "b"),
        (None, 1.0),
        (torch.ones(1), None),
    ],
)
def test_agree_sees_what_differs(got, wanted):
    """Fails if a difference of type, size or number passes."""
    with pytest.raises(Wrong):
        agree(got, wanted)


def test_agree_is_content_with_what_is_equal():
    agree([torch.ones(2), {"a": 1.0 + 1e-7}, "x", None, True, 3], [torch.ones(2), {"a": 1.0}, "x", None, True, 3])
