"""The hidden tests: every machine-graded exercise has one; references pass, wrong answers do not."""

import contextlib
import copy
import dataclasses
import functools
import importlib
import inspect
import itertools
import math
import time

import pytest
import torch

from classroom import hidden, mutants
from classroom.hidden import Draw, Hidden, agree, examine, here
from classroom.wire import plain
from course_lib.exercises import Wrong
from tests.helpers.solutions import solution
from tools.notebooks import editions

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


FUNCTIONS = [(chapter, test) for chapter, test in ALL if test.probe is not hidden.value]
FUNCTION_IDS = [test.grade_id.removesuffix("-check") for _, test in FUNCTIONS]


def remembered(answer, calls):
    """An answer that keeps in a list what it was asked and what it gave."""

    def call(*given, **named):
        asked = copies((*given, *named.values()))
        result = answer(*given, **named)
        calls.append((asked, copies(result)))
        return result

    return call


def copies(value):
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, (list, tuple)):
        return type(value)(map(copies, value))
    return value if callable(value) else copy.deepcopy(value)


def same(a, b):
    """Whether two values are made of equal numbers."""
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and torch.equal(a, b)
    return type(a) is type(b) and a == b


@pytest.mark.parametrize(("chapter", "test"), FUNCTIONS, ids=FUNCTION_IDS)
def test_who_counts_calls_learns_nothing(chapter, test):
    """Fails if the right answers of one seed, given in their order, are right for another."""
    calls = []
    assert passes(test, remembered(solution(chapter, test.answer), calls), seed=0)
    for seed in (1, 2):
        again = itertools.cycle([result for _, result in calls])
        assert not passes(test, lambda *_, again=again, **__: copies(next(again)), seed)


@pytest.mark.parametrize(("chapter", "test"), FUNCTIONS, ids=FUNCTION_IDS)
def test_who_knows_the_visible_check_by_heart_fails(chapter, test):
    """Fails if the hidden test asks what the visible check asks."""
    exercise = next(e for e in mutants.exercises(chapter) if f"{e.name}-check" == test.grade_id)
    calls = []
    said = mutants.verdict(exercise, remembered(solution(chapter, test.answer), calls))
    assert said.startswith("passed")
    assert calls

    def by_heart(*given, **named):
        asked = (*given, *named.values())
        return copies(next((result for known, result in calls if same(known, asked)), calls[-1][1]))

    assert not passes(test, by_heart)


@pytest.mark.parametrize(("chapter", "test"), FUNCTIONS, ids=FUNCTION_IDS)
def test_guesses_are_hopeless(chapter, test):
    """Fails if always the same, or one of the arguments, is right."""
    calls = []
    passes(test, remembered(solution(chapter, test.answer), calls))
    for _, result in calls[:10]:
        assert not passes(test, lambda *_, result=result, **__: copies(result), seed=1)
    for place in range(max(len(asked) for asked, _ in calls)):
        assert not passes(test, lambda *given, place=place, **named: (*given, *named.values())[place], seed=1)


def test_yes_or_no_is_asked_often_enough():
    """Fails if coins could answer: of few questions, or of one kind."""
    for chapter, test in FUNCTIONS:
        calls = []
        passes(test, remembered(solution(chapter, test.answer), calls))
        said = [result for _, result in calls]
        if all(isinstance(result, bool) for result in said):
            assert len(said) >= 50
            assert 10 <= sum(said) <= len(said) - 10


DEEP = functools.reduce(lambda inside, _: [inside], range(90), [])
ODD = [
    None, True, -0.0, 10**400, -(10**4000), math.nan, math.inf, 1 + 2j, "\ud800", "x" * 5_000_000, [], {}, [None],
    {1: 2, "a": 3}, [1, "a", None, {}], [0] * 200_000, [[0] * 3] * 50_000, ["x" * 1000] * 1000, [10**400] * 4,
    [math.nan] * 4, DEEP, torch.zeros(()), torch.zeros(0), torch.zeros(2, 0, 5), torch.full((2, 3), math.nan),
    torch.ones(4, dtype=torch.bool), torch.zeros(3, dtype=torch.complex64), torch.zeros(2, 2, dtype=torch.float16),
    torch.zeros(2, dtype=torch.uint16), torch.zeros(5, dtype=torch.float8_e4m3fn), [torch.zeros(2), None],
]  # fmt: skip


def odd_replies(reply):
    """A reply with something odd in the place of each of its parts."""
    yield from ODD
    if isinstance(reply, list):
        yield from (reply[:-1], [*reply, None], reply * 3)
        for place in {0, 1, len(reply) - 1} & set(range(len(reply))):
            for part in odd_replies(reply[place]):
                yield [*reply[:place], part, *reply[place + 1 :]]
    elif isinstance(reply, dict):
        for key in list(reply)[:3]:
            for part in odd_replies(reply[key]):
                yield {**reply, key: part}
    elif isinstance(reply, torch.Tensor):
        yield from (
            reply.to(torch.complex64),
            reply.bool(),
            reply.unsqueeze(0),
            torch.full_like(reply.double(), math.nan),
        )


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=IDS)
def test_no_reply_upsets_the_judge(chapter, test):
    """Fails if an odd reply raises anything but `Wrong`, or takes long."""
    given = test.draw(Draw(3))
    wanted = test.right(*copy.deepcopy(given))
    reply = plain(test.probe(solution(chapter, test.answer), *copy.deepcopy(given)))
    test = dataclasses.replace(test, cases=1, draw=lambda _: given, right=lambda *_: wanted)
    examine(test, lambda *_: reply)
    slowest = 0.0
    for odd in odd_replies(reply):
        begin = time.process_time()
        with contextlib.suppress(Wrong):
            examine(test, lambda *_, odd=odd: odd)
        slowest = max(slowest, time.process_time() - begin)
    assert slowest < 5


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
