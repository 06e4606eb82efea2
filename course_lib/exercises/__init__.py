r"""Checks of exercises: what a check does with a student's answer, the same everywhere.

A check never marks; it diagnoses. It prints one of

    passed: NAME
    not yet: ... what is wrong, and how one can see it ...
    not attempted yet: NAME · hints: chNN.NAME.hint(1)

and lets the notebook run on. Under nbgrader (or with COURSE_CHECKS=raise) everything but
`passed` raises, so that points can be counted. The checks of a chapter are in the module
of its number: `from course_lib.exercises import ch01`.
"""

import contextlib
import copy
import functools
import math
import os
import signal
import threading
import traceback
from pathlib import Path

import numpy as np
import torch

# Where an error in a student's code does not arise: here, in Python's own modules, and in installed packages.
OTHERS = (__file__, str(Path(os.__file__).parent), str(Path(torch.__file__).parent.parent))
SECONDS = 2.0  # of computing, after which a check is stopped; waiting, as on a busy machine, may take ten times as long


class Wrong(Exception):
    """Raised by a check's examination: the message tells the student what is wrong."""


class CheckFailed(AssertionError):
    """Raised instead of printing when answers are being graded."""


class _StudentError(Exception):
    """The student's own code raised; `__cause__` says what."""


def check(hints):
    """Turn an examination into a check with hints.

    The examination is a function of one argument, the student's function or value. It
    returns when the answer is right and raises `Wrong` with a diagnosis when it is not.

    Args:
        hints: three strings: a nudge, pseudocode, nearly the answer.

    Raises:
        ValueError: if there are not exactly three hints.

    >>> @check(hints=("What is 6 times 7?", "answer = 6 * 7", "forty-something"))
    ... def the_answer(value):
    ...     if expect_number(value) != 42:
    ...         raise Wrong(f"{value} is not 6 times 7")
    >>> the_answer(41)
    not yet: 41 is not 6 times 7
    (hints: exercises.the_answer.hint(1), .hint(2), .hint(3))
    >>> the_answer(...)
    not attempted yet: the_answer · hints: exercises.the_answer.hint(1)
    >>> the_answer(42)
    passed: the_answer
    >>> the_answer.hint(1)
    hint 1 of 3: What is 6 times 7?
    """
    if len(hints) != 3:
        raise ValueError(f"got {len(hints)} hints; wanted 3: a nudge, pseudocode, nearly the answer")
    return lambda examine: Check(examine, hints)


class Check:
    """A check of one exercise: call it with the answer, or ask it for a hint."""

    def __init__(self, examine, hints):
        self.examine, self.hints = examine, hints
        self.__name__, self.__doc__ = examine.__name__, examine.__doc__

    def __call__(self, student):
        """Check an answer and print what was found.

        Args:
            student: the function, class or value that the exercise asked for.

        Raises:
            CheckFailed: only while grading, if the answer is missing or wrong.
        """
        verdict = self._verdict(student)
        if verdict == f"passed: {self.__name__}":
            print(verdict)
        elif _grading():
            raise CheckFailed(verdict)
        elif verdict.startswith("not attempted"):
            print(f"{verdict} · hints: {self._called()}.hint(1)")
        else:
            print(f"{verdict}\n(hints: {self._called()}.hint(1), .hint(2), .hint(3))")

    def hint(self, number):
        """Print one of the three hints.

        Args:
            number: 1 a nudge, 2 pseudocode, 3 nearly the answer.

        Raises:
            ValueError: if number is not 1, 2 or 3.
        """
        _print_hint(self.hints, number)

    def _called(self):
        """How a notebook calls this check: ch05.lstm_cell."""
        return f"{self.examine.__module__.rpartition('.')[2]}.{self.__name__}"

    def _verdict(self, student):
        if student is None or student is Ellipsis:
            return f"not attempted yet: {self.__name__}"
        try:
            with _time_limit(SECONDS):
                self.examine(guarded(student))
        except Wrong as wrong:
            return f"not yet: {wrong}"
        except TimeoutError:
            return f"not yet: your code ran for more than {SECONDS:g} seconds; is there a loop that never ends?"
        except _StudentError as error:
            return self._raised(error.__cause__)
        except NotImplementedError:
            return f"not attempted yet: {self.__name__}"
        except Exception as error:  # the check stumbled over what the answer is
            return f"not yet: your answer could not be examined: {type(error).__name__}: {error}"
        return f"passed: {self.__name__}"

    def _raised(self, error):
        if isinstance(error, NotImplementedError):
            return f"not attempted yet: {self.__name__}"
        lines = [line for frame, line in traceback.walk_tb(error.__traceback__) if not _is_others(frame)]
        place = f" in its line {lines[0]}" if lines else ""
        return f"not yet: your code raised {type(error).__name__}{place}: {error}"


class Written:
    """An exercise that is answered in words: hints before, and afterwards what a good answer contains.

    Nobody marks the words here; the reader compares.

    Args:
        hints: three strings: a nudge, where to look, nearly the answer.
        good_answer: what a good answer contains.

    >>> why = Written(hints=("Look down.", "At the apple.", "It falls."), good_answer="Gravity, and a reason for it.")
    >>> why.hint(3)
    hint 3 of 3: It falls.
    >>> why.compare("It just falls.")
    Your answer has 3 words. Write at least 20 words, then compare; there are hints: .hint(1), .hint(2), .hint(3)
    >>> why.compare("word " * 20)
    A good answer contains: Gravity, and a reason for it.
    """

    def __init__(self, hints, good_answer):
        if len(hints) != 3:
            raise ValueError(f"got {len(hints)} hints; wanted 3: a nudge, where to look, nearly the answer")
        self.hints, self.good_answer = hints, good_answer

    def hint(self, number):
        """Print one of the three hints: 1 a nudge, 2 where to look, 3 nearly the answer."""
        _print_hint(self.hints, number)

    def compare(self, words, least=20):
        """Print what a good answer contains, once `words`, the reader's own answer, has at least so many words."""
        count = len(words.split()) if isinstance(words, str) else 0
        if count >= least:
            print(f"A good answer contains: {self.good_answer}")
            return
        found = f"Your answer has {count} word{'s' * (count != 1)}." if count else "There is no answer yet."
        print(f"{found} Write at least {least} words, then compare; there are hints: .hint(1), .hint(2), .hint(3)")


def _print_hint(hints, number):
    """Print one of three hints."""
    if number not in (1, 2, 3):
        raise ValueError(f"hint {number!r} does not exist; there are hints 1, 2 and 3")
    print(f"hint {number} of 3: {hints[number - 1]}")


def _is_others(frame):
    return frame.f_code.co_filename.startswith(OTHERS)


def as_torch(value):
    """Return NumPy's arrays as tensors and its numbers as Python's, in lists, tuples and dicts too; all else as it is.

    So an answer that was computed with NumPy is judged by its numbers.

    >>> as_torch((np.ones(2), np.float32(0.5), "a"))
    (tensor([1., 1.], dtype=torch.float64), 0.5, 'a')
    """
    if isinstance(value, np.ndarray):
        try:
            return torch.as_tensor(value.copy())
        except TypeError:  # of strings or objects
            return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, (tuple, list)):
        parts = [as_torch(part) for part in value]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return tuple(parts) if isinstance(value, tuple) else parts
    if isinstance(value, dict):
        return {as_torch(key): as_torch(part) for key, part in value.items()}
    return value


def expect_tensor(value, shape=None, dtype=None, name="the result"):
    """Return `value` if it is a tensor of this shape and type; raise `Wrong` if not.

    Args:
        value: what the student returned.
        shape: tuple of sizes, or None for any.
        dtype: torch dtype, or None for any.
        name: how the message calls the value.

    Returns:
        The value.

    Raises:
        Wrong: if it is no tensor, or its shape or dtype differ.

    >>> expect_tensor(torch.zeros(2, 3), shape=(3, 2))
    Traceback (most recent call last):
    course_lib.exercises.Wrong: the result has shape (2, 3); wanted (3, 2)
    """
    if value is None:
        raise Wrong(f"{name} is None; is a return missing?")
    if not isinstance(value, torch.Tensor):
        raise Wrong(f"{name} is a {type(value).__name__}; wanted a torch tensor")
    if shape is not None and tuple(value.shape) != tuple(shape):
        raise Wrong(f"{name} has shape {tuple(value.shape)}; wanted {tuple(shape)}")
    if dtype is not None and value.dtype != dtype:
        raise Wrong(f"{name} has dtype {value.dtype}; wanted {dtype}")
    return value


def expect_number(value, name="the result"):
    """Return `value` as a float if it is one finite or infinite number; raise `Wrong` if not.

    Args:
        value: a number of any make (int, float, Fraction, Decimal, NumPy's), or a tensor or array with one element.
        name: how the message calls the value.

    Returns:
        float.

    Raises:
        Wrong: if it is no number, or not a number (nan).

    >>> expect_number(torch.tensor(2.5))
    2.5
    >>> expect_number("2.5")
    Traceback (most recent call last):
    course_lib.exercises.Wrong: the result is a str; wanted a number
    """
    if value is None:
        raise Wrong(f"{name} is None; is a return missing?")
    number = _as_float(value)
    if number is None and isinstance(value, (torch.Tensor, np.ndarray)):
        raise Wrong(f"{name} is a tensor of shape {tuple(value.shape)}; wanted one number")
    if number is None:
        raise Wrong(f"{name} is a {type(value).__name__}; wanted a number")
    if number != number:
        raise Wrong(f"{name} is nan (not a number); is something divided by zero, or 0 times infinity?")
    return number


def _as_float(value):
    """A number of any make, alone or in a tensor with one element, as a float; None if it is no number."""
    value = as_torch(value)
    if isinstance(value, torch.Tensor) and value.numel() == 1:
        value = value.item()
    if isinstance(value, (bool, str, torch.Tensor)) or not hasattr(value, "__float__"):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):  # such as an unknown of sympy
        return None


def expect_numbers(answer, names):
    """Return an answer of several numbers as a list of floats; raise `Wrong` if it is something else.

    Args:
        answer: tuple, list, tensor or NumPy array, of numbers of any make.
        names: what each number is called, for the messages.

    Returns:
        list of float, one for each name.

    Raises:
        Wrong: if it is no sequence, has another length, or holds something that is no number.

    >>> expect_numbers((1, torch.tensor(0.5)), ("mean", "variance"))
    [1.0, 0.5]
    >>> expect_numbers([1], ("mean", "variance"))
    Traceback (most recent call last):
    course_lib.exercises.Wrong: expected 2 numbers (mean, variance), got 1
    """
    if hasattr(answer, "tolist"):  # a tensor or a NumPy array
        answer = answer.tolist()
    wanted = f"{len(names)} numbers ({', '.join(names)})"
    if not isinstance(answer, (tuple, list)):
        raise Wrong(f"expected {wanted}, got {type(answer).__name__}")
    if len(answer) != len(names):
        raise Wrong(f"expected {wanted}, got {len(answer)}")
    numbers = [_as_float(value) for value in answer]
    for name, value, number in zip(names, answer, numbers, strict=True):
        if number is None:
            raise Wrong(f"{name} must be a number, got {type(value).__name__}")
    return numbers


def near(got, wanted):
    """Say whether a number agrees to the three digits that an exercise on paper asks for.

    Args:
        got: float.
        wanted: float.

    Returns:
        bool.

    >>> near(0.333, 1 / 3), near(0.33, 1 / 3)
    (True, False)
    """
    return math.isclose(got, wanted, rel_tol=4e-3, abs_tol=4e-4)


def expect_type(value, kind, name="the result"):
    """Return `value` if it is an instance of `kind`; raise `Wrong` if not.

    Args:
        value: what the student returned.
        kind: a type.
        name: how the message calls the value.

    Returns:
        The value.

    Raises:
        Wrong: if the type differs.

    >>> expect_type((1, 2), list, "the merges")
    Traceback (most recent call last):
    course_lib.exercises.Wrong: the merges is a tuple; wanted a list
    """
    if value is None:
        raise Wrong(f"{name} is None; is a return missing?")
    if not isinstance(value, kind):
        raise Wrong(f"{name} is a {type(value).__name__}; wanted a {kind.__name__}")
    return value


def close(got, wanted, tolerance=1e-5):
    """Say whether two numbers, or two tensors of equal shape, agree.

    Args:
        got: number or tensor.
        wanted: number or tensor.
        tolerance: greatest difference allowed, relative to the larger of 1 and |wanted|.

    Returns:
        bool; False when the shapes differ or a value is nan.

    >>> close(torch.ones(2), torch.ones(2) + 1e-7), close(torch.ones(2), torch.ones(3))
    (True, False)
    """
    got, wanted = torch.as_tensor(got, dtype=torch.float64), torch.as_tensor(wanted, dtype=torch.float64)
    return got.shape == wanted.shape and torch.allclose(got, wanted, rtol=tolerance, atol=tolerance)


def precision(got, double=1e-8):
    """How closely a tensor can agree with one in float64: one in float32, such as a filled `torch.zeros`, to 1e-5.

    >>> precision(torch.zeros(2)), precision(torch.zeros(2, dtype=torch.float64))
    (1e-05, 1e-08)
    """
    return double if got.dtype == torch.float64 else 1e-5


def _grading():
    return bool(os.environ.get("NBGRADER_EXECUTION")) or os.environ.get("COURSE_CHECKS") == "raise"


def guarded(student):
    """Wrap what can be called: its exceptions are told from the check's own, its arguments stay as they were."""
    if not callable(student):
        return as_torch(student)

    @functools.partial(functools.update_wrapper, wrapped=student, updated=())
    def call(*arguments, **keywords):
        given, named = [_copy(a) for a in arguments], {name: _copy(a) for name, a in keywords.items()}
        try:
            result = as_torch(student(*given, **named))
        except (TimeoutError, KeyboardInterrupt):
            raise
        except BaseException as error:  # also SystemExit: an answer must not end the notebook
            raise _StudentError from error
        for before, after in zip([*arguments, *keywords.values()], [*given, *named.values()], strict=True):
            if _changed(before, after):
                raise Wrong("your function changes its argument in place; work on a copy, so that callers keep theirs")
        return result

    return call


def _copy(value):
    if isinstance(value, torch.Tensor):
        return value.clone()  # not detached: a check may ask for the gradients of what it hands out
    return copy.deepcopy(value) if isinstance(value, (list, dict, set)) else value


def _changed(before, after):
    """Whether a tensor, or a list, dict or set, with tensors in it or not, is no longer what it was."""
    if isinstance(before, torch.Tensor):
        return before.shape != after.shape or not torch.equal(before.nan_to_num(), after.nan_to_num())
    if isinstance(before, dict):
        return before.keys() != after.keys() or any(_differ(before[key], after[key]) for key in before)
    if isinstance(before, list):
        return len(before) != len(after) or any(map(_differ, before, after))
    return isinstance(before, set) and before != after


def _differ(before, after):
    """The same of a value inside a list or dict."""
    if type(before) is not type(after):
        return True
    return _changed(before, after) if isinstance(before, (torch.Tensor, dict, list)) else before != after


@contextlib.contextmanager
def _time_limit(seconds):
    """Raise TimeoutError after so many seconds of computing, or ten times as many on the clock.

    A right answer must not fail because the machine has other work to do. Needs timers that interrupt: not on Windows.
    """
    if not hasattr(signal, "setitimer") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(*_):
        raise TimeoutError

    limits = [(signal.SIGPROF, signal.ITIMER_PROF, seconds), (signal.SIGALRM, signal.ITIMER_REAL, 10 * seconds)]
    before = [signal.signal(number, stop) for number, _, _ in limits]
    for _, timer, limit in limits:
        signal.setitimer(timer, limit)
    try:
        yield
    finally:
        for (number, timer, _), handler in zip(limits, before, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, handler)
