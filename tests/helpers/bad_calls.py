"""Bad calls: a valid call of every public function and class, and what may come in place of one argument.

The table `tests.helpers.valid_calls.CALLS` has the arguments by name, each a `Domain`, which makes a valid value and
knows bad ones. `cases` are all calls with one bad argument. As a program, `python -m tests.helpers.bad_calls 0 7 12`,
this makes the calls with these numbers, each with a time limit, and writes what became of each as a line of JSON.
"""

import json
import os
import re
import resource
import signal
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import torch

ROOT = Path(__file__).parent.parent.parent
NAN, INF, HUGE = float("nan"), float("inf"), 10**12
SECONDS = 10  # of one call, on the processor: a busy machine makes no call hang
MEMORY = 8 * 2**30  # bytes of address space of a process that makes calls

# A message is clear if it names the argument or says what was wanted: any of these words, and not Python's own phrases.
WANTED = re.compile(r"\b(must|wanted|needs?|at least|at most|between|one of|has to|expected|no such|known)\b")
STOCK = re.compile(
    r"object is not|has no len|has no attribute|unsupported operand|not supported between|indices must be|"
    r"cannot be interpreted|must be real number|argument of type|can't convert|can't multiply|only integer|"
    r"positional argument|keyword argument|required argument|invalid combination of arguments|object does not support|"
    r"argument must be a string|not subscriptable|must be a sequence, not|must be an iterable|can only concatenate|"
    r"descriptor|not enough values|too many values|first argument must be callable|must match in length"
)


@dataclass
class Domain:
    """Valid and bad values of an argument.

    Args:
        make: function of nothing that gives a valid value, a new one for each call.
        bad: {what is wrong with it: function of the valid value that gives a bad one}.
    """

    make: object
    bad: dict = field(default_factory=dict)

    def but(self, *labels):
        """The same without some bad values, which are right for this argument, and with a reason beside the call."""
        unknown = set(labels) - set(self.bad)
        assert not unknown, f"no such bad values: {unknown}"
        return Domain(self.make, {label: bad for label, bad in self.bad.items() if label not in labels})

    def also(self, **bad):
        """The same with more bad values, given as they are."""
        return Domain(self.make, self.bad | {label: lambda _, value=value: value for label, value in bad.items()})


def of_values(make, **bad):
    """A domain whose bad values do not depend on the valid one; `make` may be a value that calls cannot change."""
    return Domain(make if callable(make) else lambda: make).also(**bad)


def size(n, least=1):
    """A whole number of at least `least`."""
    below = {"below": least - 1} if least > 0 else {}
    return of_values(n, none=None, negative=-1, fraction=2.5, text="3", nan=NAN, inf=INF, list=[3], huge=HUGE, **below)


def index(n, count):
    """A whole number from 0 to below `count`: a token's id."""
    return of_values(n, none=None, negative=-1, fraction=1.5, text="1", nan=NAN, list=[1], too_large=count, huge=HUGE)


def prob(p):
    """A number from 0 to 1."""
    return of_values(p, none=None, negative=-0.1, above=1.5, nan=NAN, inf=INF, text="0.5", list=[0.1])


def number(x, zero=False):
    """A finite number above 0, or from 0 on."""
    below = {} if zero else {"zero": 0.0}
    return of_values(x, none=None, negative=-1.0, nan=NAN, inf=INF, text="1", list=[1.0], **below)


def real_number(x):
    """Any finite number."""
    return of_values(x, none=None, nan=NAN, inf=INF, text="1", list=[1.0])


def choice(name):
    """One of a few names."""
    return of_values(name, none=None, unknown="no such", number=3, list=[name])


def text(string):
    """One string."""
    return of_values(string, none=None, number=3, list=["a", "b"], bytes=b"abc")


def words(tokens):
    """A list of strings."""
    return of_values(lambda: list(tokens), none=None, text="a string", number=3, numbers=[1, 2], hole=["a", None])


def whole_numbers(values):
    """A list of whole numbers."""
    return of_values(lambda: list(values), none=None, number=3, text="abc", fractions=[1.5, 2.0], nans=[NAN, NAN])


def floats(make):
    """A tensor of floating numbers."""
    return Domain(make, TENSOR | FLOATS)


def ids(make, count):
    """A tensor of int64 numbers from 0 to below `count`."""
    return Domain(
        make,
        TENSOR
        | {
            "float": lambda x: x.float() + 0.5,
            "bool": lambda x: x > 1,
            "negative": lambda x: _with(x, -1),
            "too large": lambda x: _with(x, count),
            "huge": lambda x: _with(x, HUGE),
        },
    )


def mask(make):
    """A tensor of bools."""
    return Domain(make, TENSOR | {"float": lambda x: x.float(), "int": lambda x: x.long()})


def a_module(make):
    """A module or another object that is made for this argument."""
    return of_values(make, none=None, text="text", number=3, function=len)


def function(f):
    """A function."""
    return of_values(lambda: f, none=None, text="text", number=3)


def generator():
    """A torch.Generator."""
    return of_values(lambda: torch.Generator().manual_seed(0), seed=3, text="0")


def fixed(make):
    """An argument of which no bad value is drawn: a flag, or another value that is drawn for elsewhere."""
    return Domain(make if callable(make) else lambda: make)


def _with(x, value):
    """The tensor with another last number."""
    x = x.clone()
    x.view(-1)[-1] = value
    return x


def _wider(x):
    """The tensor with one more column."""
    return torch.cat([x, x[..., -1:]], -1)


TENSOR = {
    "none": lambda x: None,
    "text": lambda x: "text",
    "number": lambda x: 3,
    "list": lambda x: x.tolist(),
    "array": lambda x: x.detach().numpy(),
    "fewer axes": lambda x: x[0],
    "more axes": lambda x: x[None],
    "wider": _wider,
    "empty": lambda x: x[:0],
}
FLOATS = {
    "int64": lambda x: x.detach().long(),
    "bool": lambda x: x.detach() > 0,
    "nan": lambda x: _with(x.detach(), NAN),
    "inf": lambda x: _with(x.detach(), INF),
}


# --- calls --------------------------------------------------------------------------


def cases():
    """All calls with one bad argument: a list of (name of the call, argument, what is wrong with it)."""
    from tests.helpers.valid_calls import CALLS

    return [
        (name, argument, label)
        for name, (_, _, domains) in CALLS.items()
        for argument, domain in domains.items()
        for label in domain.bad
    ]


def draw(count, seed):
    """Numbers of `count` different cases: a call at random, then one of its arguments, then what is wrong with it."""
    numbers = {}
    for number, (name, argument, _) in enumerate(cases()):
        numbers.setdefault(name, {}).setdefault(argument, []).append(number)
    random, drawn = Random(seed), set()
    while len(drawn) < count:
        arguments = numbers[random.choice(sorted(numbers))]
        drawn.add(random.choice(arguments[random.choice(sorted(arguments))]))
    return sorted(drawn)


def make_call(name, argument=None, label=None):
    """Make a call of the table, with a bad value if an argument is named; what comes back is used once."""
    from tests.helpers.valid_calls import CALLS

    torch.manual_seed(0)
    function, on, domains = CALLS[name]
    values = {key: domain.make() for key, domain in domains.items()}
    if argument is not None:
        values[argument] = domains[argument].bad[label](values[argument])
    result = function(on(), **values) if on else function(**values)
    if hasattr(result, "__enter__") and not isinstance(result, torch.Tensor):
        with result:
            return None
    return next(result, None) if hasattr(result, "__next__") else result


def outcome(name, argument, label):
    """What becomes of a bad call, as (kind, message).

    Kinds: "clear" (an error that says what is wrong), "cryptic" (another error), "hung", and "nonsense": it comes back
    without an error although the value is outside of what is documented. A size of 10^12 may also be quick, or more
    than there is memory.
    """

    def too_long(*_):
        raise TimeoutError(f"took longer than {SECONDS} s")

    signal.signal(signal.SIGPROF, too_long)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        make_call(name, argument, label)
    except TimeoutError as error:
        return "hung", str(error)
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        return ("clear" if is_clear(error, argument, label) else "cryptic"), message
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return ("clear", "quick") if label == "huge" else ("nonsense", "no error")


def is_clear(error, argument, label):
    """Whether an error names the argument or says what was wanted."""
    message = str(error)
    if label == "huge" and (isinstance(error, MemoryError) or "allocate" in message):
        return True
    says = re.search(rf"\b{re.escape(argument)}\b", message) or WANTED.search(message)
    return isinstance(error, ValueError | TypeError) and bool(says) and not STOCK.search(message)


def make_all(numbers, seconds=300):
    """Make the calls with these numbers in processes of their own; (kind, message) of each, by number.

    A process that dies leaves the kind "crashed" behind, and one that is stopped for its time "hung"; the calls after
    it are made in another.
    """
    found, left = {}, list(numbers)
    while left:
        command = [sys.executable, "-m", "tests.helpers.bad_calls", *map(str, left)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        try:
            done = subprocess.run(
                command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=seconds, check=False
            )
            output, end = done.stdout, ("crashed", f"exit status {done.returncode}: {done.stderr[-300:]}")
        except subprocess.TimeoutExpired as late:
            output, end = (late.stdout or b"").decode(), ("hung", "had to be stopped")
        lines = [json.loads(line) for line in output.splitlines() if line.startswith("[")]
        found |= {number: (kind, message) for number, kind, message in lines}
        left = [number for number in left if number not in found]
        if left:
            found[left[0]] = end
            left = left[1:]
    return found


def main(numbers):
    """Make the calls with these numbers; one line of JSON for each."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    warnings.simplefilter("ignore")
    every = cases()
    for number in numbers:
        print(json.dumps([number, *outcome(*every[number])]), flush=True)


if __name__ == "__main__":
    main([int(number) for number in sys.argv[1:]])
