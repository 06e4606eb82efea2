"""Right answers in other styles pass: the visible check and the hidden test, in this process and as they are graded.

What nobody thought of is tried too: every reference solution in other clothes, such as NumPy's.
"""

import contextlib
import copy
import functools
import importlib
import importlib.util
import io
from collections import Counter
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import sympy
import torch
from nbformat.v4 import new_code_cell

from classroom import grading, hidden
from tests.helpers.right_answers import RIGHT, STYLES
from tests.helpers.solutions import solution, verdict
from tools.notebooks import editions

CHAPTERS = {path.stem[:2]: editions.chapter(path) for path in editions.sources()}
TESTS = {grade_id: test for chapter in CHAPTERS for grade_id, test in hidden.tests(chapter).items()}
SOLUTION = functools.cache(solution)
ON_PAPER = [grade_id for grade_id, test in TESTS.items() if test.probe is hidden.value]
FUNCTIONS = [grade_id for grade_id in TESTS if grade_id not in ON_PAPER]


def is_there(right):
    """Whether what it imports is installed here."""
    return all(importlib.util.find_spec(package) for package in right.needs)


def check_of(grade_id):
    """The visible check of an exercise."""
    cell = next(c for c in CHAPTERS[grade_id[2:4]].cells if c.metadata.get("nbgrader", {}).get("grade_id") == grade_id)
    (name,) = editions.check_names(cell.source)
    return getattr(importlib.import_module(f"course_lib.exercises.ch{grade_id[2:4]}"), name)


def assert_passes(grade_id, answer, seeds=(0, 1, 2)):
    """Both must be content."""
    assert verdict(check_of(grade_id), answer).startswith("passed: ")
    for seed in seeds:
        hidden.examine(TESTS[grade_id], hidden.here(answer), seed)


# --- the answers ----------------------------------------------------------------------------


def test_there_are_enough_of_them():
    """Fails if an exercise has no answer in another style (01 to 06: fewer than three), or a style has none."""
    assert len(RIGHT) >= 90
    assert {right.grade_id for right in RIGHT} == set(TESTS)
    times = Counter(right.exercise for right in RIGHT)
    assert [exercise for exercise in times if exercise < "ex07" and times[exercise] < 3] == []
    assert {style for right in RIGHT for style in right.styles.split(", ")} == set(STYLES)


def run(right):
    """What an answer's cells define after the chapter's setup."""
    names = {"__name__": "__main__"}
    setup = [c.source for c in CHAPTERS[right.chapter].cells if "setup" in c.metadata.get("tags", [])]
    with contextlib.redirect_stdout(io.StringIO()):
        for source in (*setup, *right.before, right.answer, *right.after):
            exec(compile(source, f"<{right.exercise}>", "exec"), names)
    return names[TESTS[right.grade_id].answer]


PLAIN = [right for right in RIGHT if not right.jupyter]


@pytest.mark.parametrize("right", PLAIN, ids=lambda right: f"{right.exercise}: {right.styles}")
def test_a_right_answer_passes(right):
    """Fails if the check or the hidden test refuses it."""
    if not is_there(right):
        pytest.skip(f"{', '.join(right.needs)} is not installed")
    assert_passes(right.grade_id, run(right))


def sheets():
    """Pack the answers into few notebooks, each with one answer to an exercise: (chapter, answers)."""
    packed = []
    for chapter in CHAPTERS:
        rest = [right for right in RIGHT if right.chapter == chapter and is_there(right)]
        while rest:
            here = list({right.grade_id: right for right in reversed(rest)}.values())
            packed.append((chapter, here))
            rest = [right for right in rest if right not in here]
    return packed


def submission(release, answers):
    """A released notebook with answers in it, and the student's own cells before and behind them."""
    notebook, by_id = copy.deepcopy(release), {right.exercise: right for right in answers}
    cells = []
    for cell in notebook.cells:
        right = by_id.get(cell.metadata.get("nbgrader", {}).get("grade_id"))
        if right is not None:
            cell.source = right.answer
        before, after = ((), ()) if right is None else (right.before, right.after)
        cells += [*map(new_code_cell, before), cell, *map(new_code_cell, after)]
    notebook.cells = cells
    return notebook


@pytest.mark.slow
@pytest.mark.parametrize(("chapter", "answers"), sheets(), ids=lambda part: part if isinstance(part, str) else "")
def test_right_answers_are_graded_as_right(chapter, answers):
    """The whole way, with magics and own cells: fails if any of them costs an answer its points."""
    release = editions.student(CHAPTERS[chapter])
    found = grading.graded(grading.restored(release, submission(release, answers)), seed=5)
    assert {right.grade_id: found[right.grade_id] for right in answers} == {right.grade_id: None for right in answers}


# --- numbers worked out on paper, in every type that numbers have -----------------------------

NUMBERS = {
    "float": float,
    "np.float64": np.float64,
    "np.float32": np.float32,
    "np.float16": np.float16,
    "np 0-d": np.array,
    "np (1,)": lambda number: np.array([number]),
    "Fraction": lambda number: Fraction(number).limit_denominator(10**9),
    "Decimal": lambda number: Decimal(repr(number)),
    "sympy": sympy.Float,
    "tensor ()": torch.tensor,
    "tensor (1,)": lambda number: torch.tensor([number], requires_grad=True),
    "half": lambda number: torch.tensor(number).half(),
    "bfloat16": lambda number: torch.tensor(number).bfloat16(),
    "float64": lambda number: torch.tensor(number, dtype=torch.float64),
    "int": lambda number: int(number) if number == int(number) else number,
    "np.int64": lambda number: np.int64(number) if number == int(number) < 2**63 else number,
    "three digits": lambda number: float(f"{number:.3g}"),
}
CONTAINERS = {
    "list": list,
    "array": lambda numbers: np.array([float(number) for number in numbers]),
    "float32 array": lambda numbers: np.array([float(number) for number in numbers], dtype=np.float32),
    "tensor": lambda numbers: torch.tensor([float(number) for number in numbers]),
    "Parameter": lambda numbers: torch.nn.Parameter(torch.tensor([float(number) for number in numbers])),
}
WHOLE = {
    "ex10-2-crossovers-check",
    "ex03-5-stack-sizes-check",
    "ex05-4-parameter-counts-check",
    "ex10-4-parameters-by-hand-check",
}
LARGE = {"ex10-4-parameters-by-hand-check", "ex13-7-training-run-check"}  # beyond the largest number in half precision
ROUNDS = {"np.float16", "half", "bfloat16", "three digits"}
OF_NUMBERS = [g for g in ON_PAPER if g not in ("ex03-2-quotation-weights-check", "ex07-4-shapes-check")]


def on_paper(grade_id):
    """The reference solution: a list of floats, or one float."""
    right = SOLUTION(grade_id[2:4], TESTS[grade_id].answer)
    return right if isinstance(right, float) else [float(number) for number in right]


@pytest.mark.parametrize("kind", NUMBERS)
@pytest.mark.parametrize("grade_id", OF_NUMBERS)
def test_numbers_on_paper_may_have_any_type(grade_id, kind):
    """Fails if the type decides, where the digits are right."""
    if (kind in ROUNDS and grade_id in WHOLE) or (kind in ("half", "np.float16") and grade_id in LARGE):
        pytest.skip("too coarse for this exercise's digits")
    right, convert = on_paper(grade_id), NUMBERS[kind]
    assert_passes(grade_id, convert(right) if isinstance(right, float) else tuple(map(convert, right)), seeds=(0,))


@pytest.mark.parametrize("kind", CONTAINERS)
@pytest.mark.parametrize("grade_id", OF_NUMBERS)
def test_numbers_on_paper_may_stand_in_any_row(grade_id, kind):
    """Fails if a list, an array or a tensor is refused."""
    right = on_paper(grade_id)
    if isinstance(right, list):
        assert_passes(grade_id, CONTAINERS[kind](right), seeds=(0,))


# --- the reference solutions in other clothes ---------------------------------------------------


def each(change):
    """Return a function that changes every part of a result."""

    def changed(value):
        if isinstance(value, (list, tuple)):
            return type(value)(changed(part) for part in value)
        return change(value)

    return changed


def as_numpy(value):
    if isinstance(value, torch.Tensor):
        return value.detach().numpy()
    kinds = {bool: np.bool_, int: np.int64, float: np.float64, str: np.str_}
    return kinds[type(value)](value) if type(value) in kinds else value


def is_real(value):
    return isinstance(value, torch.Tensor) and value.is_floating_point()


def strided(value):
    """The same numbers, laid out backwards."""
    if not isinstance(value, torch.Tensor) or value.ndim == 0:
        return value
    return value.permute(*reversed(range(value.ndim))).contiguous().permute(*reversed(range(value.ndim)))


def swapped(value):
    """Lists for tuples and tuples for lists, outermost."""
    return {list: tuple, tuple: list}.get(type(value), lambda same: same)(value)


RESULTS = {
    "NumPy": each(as_numpy),
    "float32": each(lambda value: value.float() if is_real(value) else value),
    "Parameter": each(lambda value: torch.nn.Parameter(value.detach()) if is_real(value) else value),
    "strides": each(strided),
    "0-d tensors": each(lambda value: torch.tensor(value) if type(value) in (float, bool) else value),
    "list or tuple": swapped,
}
DEMANDED = {  # what the exercise's text asks for
    ("ex02-1-masked-mean-check", "NumPy"): "a gradient flows through it",
    ("ex02-1-masked-mean-check", "Parameter"): "a gradient flows through it",
    ("ex03-1-rnn-forward-check", "NumPy"): "a gradient flows through it",
    ("ex03-1-rnn-forward-check", "Parameter"): "a gradient flows through it",
    ("ex03-7-two-directions-check", "NumPy"): "a gradient flows through it",
    ("ex03-7-two-directions-check", "Parameter"): "a gradient flows through it",
    ("ex05-1-lstm-cell-check", "NumPy"): "a gradient flows through it",
    ("ex05-1-lstm-cell-check", "Parameter"): "a gradient flows through it",
    ("ex06-1-shifted-loss-check", "NumPy"): "a loss, to be differentiated",
    ("ex06-1-shifted-loss-check", "Parameter"): "a loss, to be differentiated",
    ("ex12-2-blank-loss-check", "NumPy"): "a loss, to be differentiated",
    ("ex12-2-blank-loss-check", "Parameter"): "a loss, to be differentiated",
    ("ex12-4-wordpiece-check", "list or tuple"): "a list",
    ("ex08-7-scores-with-cache-check", "NumPy"): "what it gave is given to it again",
}


@pytest.mark.parametrize("clothes", RESULTS)
@pytest.mark.parametrize("grade_id", FUNCTIONS)
def test_a_result_may_come_in_other_clothes(grade_id, clothes):
    """Fails if NumPy's arrays and numbers, float32, strides, or a list for a tuple cost a right answer its points."""
    if (grade_id, clothes) in DEMANDED:
        pytest.skip(DEMANDED[grade_id, clothes])
    right = SOLUTION(grade_id[2:4], TESTS[grade_id].answer)
    assert_passes(grade_id, lambda *given, **named: RESULTS[clothes](right(*given, **named)), seeds=(0,))


class Callable:
    """Something that can be called and is no function."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *given, **named):
        return self.function(*given, **named)


class Module(torch.nn.Module):
    """The same as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *given, **named):
        return self.function(*given, **named)


@pytest.mark.parametrize("kind", [functools.partial, Callable, Module], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("grade_id", FUNCTIONS)
def test_whatever_can_be_called_is_a_function(grade_id, kind):
    """Fails if a partial function, an instance or a module is treated otherwise."""
    assert_passes(grade_id, kind(SOLUTION(grade_id[2:4], TESTS[grade_id].answer)), seeds=(0,))
