"""What an answer calls, and how its steps grow: seen under any name, and nothing else is seen.

A test here fails when a forbidden call hides behind an alias, a helper or a module, or an innocent one is reported.
"""

import functools
import statistics
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib.exercises.ready_made import called, steps

own = statistics.mean  # under another name


def with_helper(x):
    return own(x) + 0


def imported_inside(x):
    from statistics import mean as middle

    return middle(x)


class Module(nn.Module):
    def forward(self, x):
        return statistics.mean(x)


@pytest.mark.parametrize(
    "answer",
    [own, with_helper, imported_inside, functools.partial(with_helper), Module()],
    ids=["own", "with a helper", "imported inside", "partial", "module"],
)
@pytest.mark.parametrize("library", [[statistics.mean], [statistics]], ids=["a function", "a module"])
def test_a_call_is_seen(answer, library):
    assert called(answer, [(([1.0, 2.0],), {})], library) == "mean"


def test_an_innocent_answer_calls_nothing():
    def mean(x):
        return sum(x) / len(x)

    assert called(mean, [(([1.0, 2.0],), {})], [statistics]) is None
    assert called(lambda x: x @ x.softmax(0), [((torch.ones(2),), {})], torchs=("layer_norm",)) is None


def test_functions_of_torch_are_seen_and_the_watch_ends():
    before = sys.getprofile()
    assert called(lambda x: F.layer_norm(x, (2,)), [((torch.ones(1, 2),), {})], torchs=("layer_norm",)) == "layer_norm"
    assert called(nn.LayerNorm(2), [((torch.ones(1, 2),), {})], torchs=("layer_norm",)) == "layer_norm"
    with pytest.raises(ZeroDivisionError):
        called(lambda x: x / 0, [((1,), {})], [statistics])
    assert sys.getprofile() is before


def test_a_loop_takes_more_steps_and_a_product_does_not():
    before = sys.gettrace()
    looped = [steps(lambda x: torch.stack([row.exp() for row in x]), torch.ones(n, 2)) for n in (5, 50)]
    whole = [steps(lambda x: x.exp(), torch.ones(n, 2)) for n in (5, 50)]
    assert looped[1] > looped[0] + 100
    assert whole[1] == whole[0]
    assert sys.gettrace() is before
