"""The machinery of checks: every kind of answer gets its own words, and nothing hangs or raises."""

import functools
import time
from collections import namedtuple
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch

from course_lib import exercises
from course_lib.exercises import (
    CheckFailed,
    Wrong,
    as_torch,
    check,
    close,
    expect_number,
    expect_numbers,
    expect_tensor,
    expect_type,
    precision,
)


@check(hints=("multiply", "2 * x", "return 2 * x, nearly"))
def double(student):
    x = torch.tensor([[1.0, 2.0, 3.0]])
    got = expect_tensor(student(x), shape=(1, 3))
    if close(got, 2 * x):
        return
    if close(got, x**2):
        raise Wrong("that is the square")
    raise Wrong("3 gives something other than 6")


def says(answer):
    return double._verdict(answer)


def loops(x):
    while True:
        pass


def exits(x):
    raise SystemExit(3)


def in_place(x):
    x *= 2
    return x


def with_a_mistake(x):
    y = x
    return y @ y


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (lambda x: 2 * x, "passed: double"),
        (lambda x: x * x, "not yet: that is the square"),
        (lambda x: x, "not yet: 3 gives something other than 6"),
        (lambda x: None, "not yet: the result is None; is a return missing?"),
        (lambda x: [2.0], "not yet: the result is a list; wanted a torch tensor"),
        (lambda x: x.T, "not yet: the result has shape (3, 1); wanted (1, 3)"),
        (in_place, "not yet: your function changes its argument in place"),
        (with_a_mistake, "not yet: your code raised RuntimeError in its line"),
        (exits, "not yet: your code raised SystemExit"),
        (lambda: 1, "not yet: your code raised TypeError"),
        ("a string", "not yet: your answer could not be examined: TypeError"),
        (..., "not attempted yet: double"),
        (None, "not attempted yet: double"),
    ],
)
def test_each_kind_of_answer_gets_its_own_words(answer, words):
    assert says(answer).startswith(words)


@pytest.mark.parametrize(
    ("given", "meddle"),
    [
        ({"weight": torch.ones(2)}, lambda given: given["weight"].add_(1)),
        ({"weight": torch.ones(2)}, lambda given: given.pop("weight")),
        ([torch.ones(2), 3], lambda given: given.append(4)),
        ([[torch.ones(2)]], lambda given: given[0][0].mul_(2)),
        ([1, 2], lambda given: given.reverse()),
    ],
)
def test_changes_inside_lists_and_dicts_are_seen(given, meddle):
    """Fails if a changed entry passes unseen, or tensors in a container cannot be compared at all."""

    @exercises.check(hints=("a", "b", "c"))
    def example(student):
        student(given)

    assert example._verdict(lambda given: None) == "passed: example"
    assert example._verdict(meddle).startswith("not yet: your function changes its argument in place")


def test_a_stub_is_not_attempted():
    def stub(x):
        raise NotImplementedError("replace this line with your code")

    assert says(stub) == "not attempted yet: double"


def test_the_line_of_the_students_mistake_is_named():
    line = with_a_mistake.__code__.co_firstlineno + 2
    assert f"in its line {line}:" in says(with_a_mistake)


class Doubling(torch.nn.Module):
    """Right as a module, with a mistake if there is one to make."""

    def __init__(self, mistake=None):
        super().__init__()
        self.mistake = mistake

    def forward(self, x):
        return 2 * x if self.mistake is None else self.mistake(x)


class Called:
    """The same as an instance that can be called."""

    def __init__(self, mistake=None):
        self.mistake = mistake

    def __call__(self, x):
        return 2 * x if self.mistake is None else self.mistake(x)


def multiplied(factor, x):
    return factor * x


@pytest.mark.parametrize(
    "answer",
    [
        Doubling(), Called(), functools.partial(multiplied, 2), functools.lru_cache(lambda x: 2 * x),
        torch.no_grad()(lambda x: 2 * x), Called().__call__, lambda *given: sum(given, given[0]),
        lambda x: 2 * x.numpy(), lambda x: torch.nn.Parameter(2 * x),
    ],
)  # fmt: skip
def test_whatever_can_be_called_is_an_answer(answer):
    """Fails if only plain functions are, or if NumPy's array is not taken for its numbers."""
    assert says(answer) == "passed: double"


@pytest.mark.parametrize("kind", [Doubling, Called])
def test_what_is_no_function_is_diagnosed_like_one(kind):
    """Fails if its errors count as the check's, its stub as an attempt, or its changes of an argument pass."""
    line = with_a_mistake.__code__.co_firstlineno + 2
    own = kind.forward if kind is Doubling else kind.__call__
    assert f"raised RuntimeError in its line {own.__code__.co_firstlineno + 1}:" in says(kind(with_a_mistake))
    assert f"raised RuntimeError in its line {line}:" in says(functools.partial(with_a_mistake))
    assert f"raised RuntimeError in its line {line}:" in says(torch.no_grad()(with_a_mistake))
    assert says(kind(in_place)).startswith("not yet: your function changes its argument in place")
    assert says(kind(exits)).startswith("not yet: your code raised SystemExit")

    def unwritten(x):
        raise NotImplementedError

    assert says(kind(unwritten)) == "not attempted yet: double"


def test_an_error_outside_the_students_code_has_no_line_of_theirs():
    assert says(functools.partial(torch.ones, 2, 3, "x")).startswith("not yet: your code raised TypeError: ")


def test_changes_of_named_arguments_are_seen():
    @exercises.check(hints=("a", "b", "c"))
    def example(student):
        student(x=torch.ones(2))

    assert example._verdict(lambda x: x + 1) == "passed: example"
    assert example._verdict(lambda x: x.add_(1)).startswith("not yet: your function changes its argument in place")


def test_a_loop_that_never_ends_is_stopped(monkeypatch):
    monkeypatch.setattr(exercises, "SECONDS", 0.2)
    begin = time.monotonic()
    assert says(loops) == "not yet: your code ran for more than 0.2 seconds; is there a loop that never ends?"
    assert time.monotonic() - begin < 30  # far above 0.2 s, so that a busy machine does not fail it; unguarded it hangs


def waiting(seconds):
    """A right answer that waits first, as on a busy machine."""

    def doubled(x):
        time.sleep(seconds)
        return 2 * x

    return doubled


def test_time_is_the_processors_not_the_clocks(monkeypatch):
    """Fails if a right answer is refused because the machine had other work to do, or if waiting may last for ever."""
    monkeypatch.setattr(exercises, "SECONDS", 0.1)
    assert says(waiting(0.2)) == "passed: double"
    assert says(waiting(5.0)) == "not yet: your code ran for more than 0.1 seconds; is there a loop that never ends?"


def test_an_untouched_exercise_names_its_hints(capsys):
    double(...)
    assert capsys.readouterr().out == "not attempted yet: double · hints: test_checks.double.hint(1)\n"


def test_printing_and_hints(capsys):
    double(lambda x: x * x)
    double.hint(2)
    assert capsys.readouterr().out == (
        "not yet: that is the square\n(hints: test_checks.double.hint(1), .hint(2), .hint(3))\nhint 2 of 3: 2 * x\n"
    )
    with pytest.raises(ValueError, match="hint 4 does not exist; there are hints 1, 2 and 3"):
        double.hint(4)
    with pytest.raises(ValueError, match="got 2 hints; wanted 3"):
        check(hints=("a", "b"))


@pytest.mark.parametrize("variable", [("NBGRADER_EXECUTION", "autograde"), ("COURSE_CHECKS", "raise")])
def test_under_grading_everything_but_passed_raises(monkeypatch, capsys, variable):
    monkeypatch.setenv(*variable)
    double(lambda x: 2 * x)
    assert capsys.readouterr().out == "passed: double\n"
    with pytest.raises(CheckFailed, match="that is the square"):
        double(lambda x: x * x)
    with pytest.raises(CheckFailed, match="not attempted yet: double"):
        double(...)


def test_expectations():
    assert expect_number(3) == 3.0
    assert expect_number(torch.tensor([[2.0]])) == 2.0
    assert expect_type([1], list) == [1]
    for call, words in [
        (lambda: expect_number(None), "is None; is a return missing"),
        (lambda: expect_number(torch.ones(2)), r"a tensor of shape \(2,\); wanted one number"),
        (lambda: expect_number(True), "a bool; wanted a number"),
        (lambda: expect_number(float("nan")), "is nan"),
        (lambda: expect_type(1, list, "the merges"), "the merges is a int; wanted a list"),
        (lambda: expect_type(None, list), "is None"),
        (lambda: expect_tensor(torch.ones(2), dtype=torch.int64), "dtype torch.float32; wanted torch.int64"),
    ]:
        with pytest.raises(Wrong, match=words):
            call()


Pair = namedtuple("Pair", "mean variance")


@pytest.mark.parametrize(
    "half",
    [
        0.5, Fraction(1, 2), Decimal("0.5"), np.float64(0.5), np.float32(0.5), np.float16(0.5), np.array(0.5),
        np.array([[0.5]]), torch.tensor(0.5), torch.tensor([0.5], requires_grad=True), torch.tensor(0.5).half(),
        torch.tensor(0.5).bfloat16(), torch.nn.Parameter(torch.tensor(0.5)), sympy.Rational(1, 2),
    ],
    ids=lambda half: type(half).__name__,
)  # fmt: skip
def test_a_number_of_any_make_is_a_number(half):
    """Fails if the type of a right number costs the points."""
    assert expect_number(half) == 0.5
    assert expect_numbers((half, 2), ("mean", "variance")) == [0.5, 2.0]
    assert expect_numbers(Pair(half, half), ("mean", "variance")) == [0.5, 0.5]
    assert expect_numbers([np.int64(3), half], ("mean", "variance")) == [3.0, 0.5]


@pytest.mark.parametrize("both", [np.array([0.5, 2]), torch.tensor([0.5, 2]).half(), np.array([0.5, 2], dtype=object)])
def test_a_row_of_any_make_is_a_row(both):
    assert expect_numbers(both, ("mean", "variance")) == [0.5, 2.0]


@pytest.mark.parametrize(
    "nothing", ["0.5", True, np.True_, torch.tensor(True), 1j, np.complex128(1), [0.5], sympy.Symbol("x"), object]
)
def test_what_is_no_number_is_none(nothing):
    """Fails if text, truth, or something that cannot be ordered counts as a number."""
    for call in (lambda: expect_number(nothing), lambda: expect_numbers((nothing, 1), ("mean", "variance"))):
        with pytest.raises(Wrong, match="number"):
            call()


def test_a_number_beyond_floats_is_infinite():
    assert expect_number(-(10**400)) == float("-inf")


def test_what_numpy_gave_becomes_torchs():
    """Fails if an array inside a tuple or dict is left, an array is shared, or what is no array is copied."""
    array, tensor, text = np.ones((2, 3), dtype=np.float32).T, torch.ones(2), np.array(["a", "b"])
    (x, y), found = as_torch(([array, tensor], {"k": np.int64(3), np.str_("n"): text}))
    assert (x.dtype, tuple(x.shape), y is tensor) == (torch.float32, (3, 2), True)
    assert (found, type(found["k"])) == ({"k": 3, "n": ["a", "b"]}, int)
    array += 1
    assert x.eq(1).all()
    same = [1, (tensor, "a")]
    assert as_torch(same) is same


def test_precision():
    assert precision(torch.ones(2).double()) == 1e-8
    assert precision(torch.ones(2).double(), 1e-6) == 1e-6
    assert precision(torch.ones(2), 1e-6) == 1e-5


def test_close():
    assert close(1.0, 1 + 1e-7)
    assert close(float("inf"), float("inf"))
    assert not close(1.0, 1.001)
    assert not close(torch.ones(2, 1), torch.ones(1, 2))
    assert not close(float("nan"), float("nan"))
