"""Bad input at the library's doors: 300 calls with one bad argument, drawn from a table of valid ones.

None may crash the interpreter, hang, or come back without an error though the value is outside of what is documented;
at least three quarters must get a ValueError or TypeError that names the argument or what was wanted.
"""

import collections
import importlib
import inspect
import pkgutil

import pytest

from tests.helpers import bad_calls
from tests.helpers.valid_calls import CALLS
from tests.library.test_imports import reading_order

NEEDS_DATA = {"datasets.real.imdb", "datasets.real.multi30k", "datasets.real.wikitext2"}  # only bad calls of these
NO_DOORS = {
    "bag_of_words.flatten_rows": "a step of `fit_bag_of_words`",
    "datasets.cache.converted": "for the modules beside it",
    "datasets.synthetic.Pair": "a tuple that is given back",
    "datasets.synthetic.Sentence": "a tuple that is given back",
    "generate.draw": "a step of `sample_tokens`",
    "generate.length_factor": "arithmetic",
    "rnn.Recurrent": "the class behind `RNN`, `LSTM` and `GRU`",
    "rnn.scan": "of any function of a step",
}


def modules():
    """What is taught and what gives data, with the modules in their folders."""
    for name in set(reading_order()) - {"utils", "notebook", "exercises", "experiments"}:
        module = importlib.import_module(f"course_lib.{name}")
        yield module
        for inner in pkgutil.iter_modules(getattr(module, "__path__", [])):
            yield importlib.import_module(f"course_lib.{name}.{inner.name}")


def doors():
    """Names of the functions and classes whose docstring shows how to call them."""
    for module in modules():
        for name, thing in vars(module).items():
            here = inspect.isroutine(thing) or inspect.isclass(thing)
            if here and thing.__module__ == module.__name__ and not name.startswith("_"):
                if ">>>" in (thing.__doc__ or "") or "Args:" in (thing.__doc__ or ""):
                    yield f"{module.__name__.removeprefix('course_lib.')}.{name}"


def test_every_door_has_a_valid_call():
    """Fails if a function or class that is made for calling is left out of the table without a reason."""
    assert set(doors()) - CALLS.keys() - NO_DOORS.keys() == set()


@pytest.mark.parametrize("name", sorted(CALLS.keys() - NEEDS_DATA))
def test_the_valid_calls_work(name):
    """Fails if a call of the table is bad without a bad argument: the test below would find errors everywhere."""
    bad_calls.make_call(name)


def test_what_crashed_or_hung_once():
    """Fails if a matrix with NaN reaches LAPACK, which crashes, or a size of 10^12 is neither refused nor quick."""
    every = bad_calls.cases()
    numbers = [
        number
        for number, (name, _, label) in enumerate(every)
        if label == "huge" or ("radius" in name and label in ("nan", "inf"))
    ]
    found = bad_calls.make_all(numbers)
    assert len(numbers) > 100
    assert {every[number]: found[number] for number in numbers if found[number][0] in ("crashed", "hung")} == {}


@pytest.mark.parametrize("count", [300, pytest.param(None, marks=pytest.mark.slow)], ids=["300", "all"])
def test_bad_calls(count):
    """Fails if one crashes, hangs or gives nonsense, or more than a quarter get an error that does not help."""
    every = bad_calls.cases()
    found = bad_calls.make_all(bad_calls.draw(count, seed=0) if count else range(len(every)))
    by_kind = collections.defaultdict(list)
    for number, (kind, message) in found.items():
        name, argument, label = every[number]
        by_kind[kind].append(f"{name}({argument}: {label}): {message}")
    for kind in ("crashed", "hung", "nonsense"):
        assert not by_kind[kind], "\n".join([kind, *by_kind[kind]])
    assert len(by_kind["clear"]) >= 0.75 * len(found), "\n".join(by_kind["cryptic"])
