"""Hidden tests: every exercise that is graded by machine, asked again with other numbers and other sizes.

A visible check explains; a hidden test decides. It draws its inputs from a seed, so that nothing can be
learned by heart, and compares with a reference of its own: torch, a textbook formula written another way, a
count by brute force; never with the check's code. One module a chapter (`ch05.py`), each with a list TESTS.

A test of a function:

    def draw_lstm_cell(draw): ...                  # the inputs of one case
    def right_lstm_cell(x, h, c, ...): ...         # what must come back
    Hidden("ex05-1-lstm-cell-check", "lstm_cell", draw_lstm_cell, right_lstm_cell)

and of numbers worked out on paper:

    on_paper("ex05-2-along-the-cell-check", "left", right_left)

Where the answer needs more than arguments made of tensors, numbers, strings, lists and dicts (a module, a
function), a probe makes it: it is sent to the student's process as text, so it must stand alone.
"""

import copy
import dataclasses
import importlib
import inspect
import random
import reprlib
import textwrap
from collections.abc import Callable

import torch

from classroom.wire import plain
from course_lib.exercises import Wrong, close, expect_number, expect_tensor, near

CASES = 5


class Missed(Wrong):
    """An answer gave something else than what is right.

    Args:
        reason: what differs, right values included: for instructors.
        given: the arguments of the case.
        got: what the answer gave.
    """

    def __init__(self, reason, given, got):
        super().__init__(f"{reason}{_for(given)}")
        self.told = f"the check asks again with other inputs, and there your answer is not right{_for(given)}"
        if isinstance(got, torch.Tensor):
            self.told += f"; it gives a tensor of shape {tuple(got.shape)}"


class Draw(random.Random):
    """Random inputs from a seed: Python's numbers, and tensors in float64."""

    def __init__(self, seed):
        super().__init__(seed)
        self.generator = torch.Generator().manual_seed(seed)

    def sizes(self, number, low=2, high=7):
        """Return sizes that differ from each other, so that no two axes can be mistaken for each other."""
        return self.sample(range(low, max(high + 1, low + number)), number)

    def normal(self, *shape):
        """Return a tensor of standard normal numbers."""
        return torch.randn(*shape, generator=self.generator, dtype=torch.float64)

    def share(self, *shape):
        """Return a tensor of numbers between 0 and 1."""
        return torch.rand(*shape, generator=self.generator, dtype=torch.float64)

    def ids(self, high, *shape, low=0):
        """Return a tensor of integers from low to high - 1."""
        return torch.randint(low, high, shape, generator=self.generator)


def call(answer, *given):
    """The usual probe: call the answer."""
    return answer(*given)


def value(answer):
    """The probe of an exercise whose answer is no function: the answer itself."""
    return answer


def agree(got, wanted):
    """Compare what an answer gave with what is right: types, sizes, every number to five digits.

    Raises:
        Wrong: with what differs.

    Example:
        >>> agree([torch.ones(2), 3], [torch.ones(2), 4])
        Traceback (most recent call last):
        course_lib.exercises.Wrong: entry 1: got 3, wanted 4
    """
    if isinstance(wanted, torch.Tensor):
        got = torch.tensor(got) if wanted.ndim == 0 and type(got) in (int, float) else got
        expect_tensor(got, tuple(wanted.shape))
        if (got.dtype == torch.bool) != (wanted.dtype == torch.bool):
            raise Wrong(f"the result has dtype {got.dtype}; wanted {wanted.dtype}")
        if not close(got, wanted):
            worst = (got.double() - wanted.double()).abs().nan_to_num(torch.inf).max().item()
            raise Wrong(f"the result differs from the right one, by {worst:.3g} at most")
    elif isinstance(wanted, (list, tuple)):
        got = got.tolist() if isinstance(got, torch.Tensor) else got
        if not isinstance(got, (list, tuple)) or len(got) != len(wanted):
            raise Wrong(f"got {_shown(got)}; wanted {len(wanted)} entries")
        for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
            _within(f"entry {number}", mine, theirs)
    elif isinstance(wanted, dict):
        if not isinstance(got, dict) or got.keys() != wanted.keys():
            raise Wrong(f"got {_shown(got)}; wanted the keys {sorted(map(str, wanted))}")
        for key in wanted:
            _within(f"entry {key!r}", got[key], wanted[key])
    elif isinstance(wanted, float):
        if not close(expect_number(got), wanted):
            raise Wrong(f"got {_shown(got)}, wanted {wanted:.6g}")
    else:
        got = got.item() if isinstance(got, torch.Tensor) and got.numel() == 1 else got
        if isinstance(got, torch.Tensor):
            raise Wrong(f"got a tensor of shape {tuple(got.shape)}, wanted {_shown(wanted)}")
        if isinstance(got, bool) != isinstance(wanted, bool) or got != wanted:
            raise Wrong(f"got {_shown(got)}, wanted {_shown(wanted)}")


def to_three_digits(got, wanted):
    """Compare numbers that were worked out on paper.

    Raises:
        Wrong: with the first that differs.
    """
    got = got.tolist() if isinstance(got, torch.Tensor) else got
    got = got if isinstance(got, list) else [got]
    if len(got) != len(wanted):
        raise Wrong(f"got {len(got)} numbers, wanted {len(wanted)}")
    for number, (mine, theirs) in enumerate(zip(got, wanted, strict=True)):
        if not near(expect_number(mine), theirs):
            raise Wrong(f"number {number + 1} is {_shown(mine)}, wanted {theirs:.4g}")


def _within(place, got, wanted):
    try:
        agree(got, wanted)
    except Wrong as wrong:
        raise Wrong(f"{place}: {wrong}") from None


def _shown(thing):
    return reprlib.repr(thing)


@dataclasses.dataclass(frozen=True)
class Hidden:
    """The hidden test of one exercise.

    Args:
        grade_id: of the check's cell, such as "ex05-1-lstm-cell-check".
        answer: the name that the student's cell defines.
        draw: function of a `Draw`; returns the arguments of one case as a tuple.
        right: function of these arguments; returns what the probe must give.
        probe: function of the answer and the arguments; returns tensors, numbers, strings, lists, dicts. It travels
            as text: all that it needs it imports itself.
        judge: function of what came and what is right; raises `Wrong`.
        without: names that the answer may not use, such as "LSTMCell": the exercise asks for its own code.
        cases: how many cases are drawn.
    """

    grade_id: str
    answer: str
    draw: Callable
    right: Callable
    probe: Callable = call
    judge: Callable = agree
    without: tuple[str, ...] = ()
    cases: int = CASES


def on_paper(grade_id, answer, right, judge=to_three_digits):
    """Return the hidden test of numbers worked out on paper.

    Args:
        grade_id: of the check's cell.
        answer: the name of the student's tuple.
        right: function of nothing; returns the numbers, computed in another way than the check does.
        judge: how they are compared.
    """
    return Hidden(grade_id, answer, lambda draw: (), right, probe=value, judge=judge, cases=1)


def tests(chapter):
    """Return the hidden tests of a chapter ("05") as {grade_id: test}."""
    return {test.grade_id: test for test in importlib.import_module(f"classroom.hidden.ch{chapter}").TESTS}


def examine(test, ask, seed=0):
    """Put an answer to the test.

    Args:
        test: a `Hidden`.
        ask: function of the test and the arguments of a case; returns what the probe gave.
        seed: another seed draws other cases.

    Raises:
        Missed: if a case gives something else than what is right.
    """
    for case in range(test.cases):
        given = test.draw(Draw(1000 * seed + case))
        wanted = plain(test.right(*copy.deepcopy(given)))
        got = ask(test, copy.deepcopy(given))
        try:
            _judge(test, got, wanted)
        except Wrong as wrong:
            raise Missed(str(wrong), given, got) from None


def _judge(test, got, wanted):
    """Judge; a judge that stumbles over something odd has not seen a right answer."""
    try:
        test.judge(got, wanted)
    except Wrong:
        raise
    except Exception as error:
        raise Wrong(f"what came back cannot be compared: {type(error).__name__}: {error}") from None


def _for(given):
    plain_ones = [g for g in given if not isinstance(g, (list, tuple, dict, set))]
    if not plain_ones:
        return ""
    shown = (f"shape {tuple(g.shape)}" if isinstance(g, torch.Tensor) else _shown(g) for g in plain_ones)
    return f" (with other inputs: {', '.join(shown)})"


def here(answer):
    """Return an `ask` for an answer in this very process: for tests, and for nbgrader's own way of executing."""
    return lambda test, given: plain(test.probe(answer, *given))


def hidden_test(grade_id, answer):
    """Put an answer to the hidden test with this id, in this process; raise if it is not right."""
    examine(tests(grade_id[2:4])[grade_id], here(answer))


def text_of(probe):
    """Return a probe as it is sent: its name and its source.

    >>> text_of(value)["name"]
    'value'
    """
    return {"name": probe.__name__, "source": textwrap.dedent(inspect.getsource(probe))}
