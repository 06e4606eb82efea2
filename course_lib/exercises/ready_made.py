"""How an answer computes: which ready-made functions it calls, and whether its steps grow with a size.

For exercises that ask students to write what the library or torch has. It watches the answer run, so it does not matter
under which name, in which helper or by which import a function is called; a name that is merely the same is no call.
"""

import contextlib
import inspect
import sys
import types

from torch.overrides import TorchFunctionMode


def called(student, calls, library=(), torchs=()):
    """Return the name of the first forbidden function that an answer calls; None if it calls none.

    Args:
        student: the answer, a function.
        calls: list of (arguments, options) to call it with.
        library: the forbidden functions and classes; a module stands for all that it defines.
        torchs: names of torch's forbidden functions.

    >>> import statistics
    >>> called(lambda x: statistics.mean(x), [(([1, 2],), {})], library=[statistics.mean])
    'mean'
    >>> called(lambda x: sum(x) / len(x), [(([1, 2],), {})], library=[statistics])
    """
    with _Watch(library, torchs) as watch:
        for arguments, options in calls:
            student(*arguments, **options)
    return watch.found[0] if watch.found else None


class _Watch(TorchFunctionMode):
    """Notes the calls: of Python's functions by their code, of torch's by their name."""

    def __init__(self, library, torchs):
        super().__init__()
        modules = [part for part in library if isinstance(part, types.ModuleType)]
        self.files = {module.__file__ for module in modules}
        self.parts = {(inspect.getfile(part), part.__qualname__) for part in library if part not in modules}
        self.torchs, self.found, self.before = torchs, [], None

    def __enter__(self):
        self.before = sys.getprofile()
        sys.setprofile(self._note)
        return super().__enter__()

    def __exit__(self, *error):
        sys.setprofile(self.before)
        return super().__exit__(*error)

    def _note(self, frame, event, _):
        if event == "call":
            file, name = frame.f_code.co_filename, frame.f_code.co_qualname.partition(".")[0]
            if file in self.files or (file, name) in self.parts:
                self.found.append(name)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        name = getattr(function, "__name__", "")
        if name in self.torchs:
            self.found.append(name)
        return function(*args, **(kwargs or {}))


def steps(student, *arguments, **options):
    """Return how many steps Python takes in a call: more for a larger size, if there is a loop over it.

    >>> steps(lambda n: [i for i in range(n)], 50) > steps(lambda n: [i for i in range(n)], 5) + 100
    True
    """
    count = 0

    def trace(frame, event, _):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    with contextlib.ExitStack() as stack:
        stack.callback(sys.settrace, sys.gettrace())
        sys.settrace(trace)
        student(*arguments, **options)
    return count
