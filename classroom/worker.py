"""The process in which a student's code runs while it is graded.

It gets code and questions over a pipe and sends back what the answers gave. What is right it never learns: the
comparison is done where it came from (`judge.py`), so there is nothing here to read or to patch. It works in an
empty folder and may do nothing but compute (`sandbox.py`). `judge.py` runs it as a script.
"""

import __future__

import ast
import asyncio
import builtins
import contextlib
import inspect
import io
import linecache
import os
import signal
import sys
import types

import IPython
import torch
from IPython.core.inputtransformer2 import TransformerManager

from classroom import sandbox, wire

CHEAP = {"torch.tensor", "len", "range", "enumerate", "list", "tuple", "dict", "set", "sorted", "math.sqrt", "math.log"}
PLAIN = (ast.Constant, ast.List, ast.Tuple, ast.Dict, ast.Set, ast.UnaryOp, ast.BinOp, ast.operator, ast.unaryop,
         ast.Name, ast.Attribute, ast.expr_context, ast.keyword, ast.Call, ast.DictComp, ast.ListComp,
         ast.comprehension)  # fmt: skip
SECONDS = 10  # of computing for one cell or one question, first imports included


class Shell:
    """What `get_ipython()` gives: enough of Jupyter's shell that magics do no harm and lose no definitions."""

    def __init__(self, names):
        self.user_ns = names

    def run_line_magic(self, name, line, *_, **__):
        """Do what matters of a line such as `%time y = f(x)`: the statement."""
        if name in ("time", "prun"):
            run(self.user_ns, line, "<line magic>")

    def run_cell_magic(self, name, line, cell):
        """Run the cell where Jupyter would run it in its own names."""
        if name in ("time", "capture", "prun"):
            run(self.user_ns, cell, f"<%%{name}>")
        if name in ("writefile", "file"):
            with open(line.split()[-1], "w", encoding="utf8") as file:
                file.write(cell)

    def __getattr__(self, name):
        """Anything else, such as `system` for a line that begins with an exclamation mark, does nothing."""
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *_, **__: None


def run(names, code, where):
    """Execute a cell as Jupyter does: magics, question marks, `await` at the top level."""
    code = as_python(code)
    remember(where, code)
    kept = names.get("annotations") is __future__.annotations and __future__.annotations.compiler_flag
    compiled = compile(code, where, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | kept)
    if compiled.co_flags & inspect.CO_COROUTINE:
        asyncio.run(types.FunctionType(compiled, names)())
    else:
        exec(compiled, names)


def define(names, code, where):
    """Execute what a cell only defines: imports, functions, classes, constants; nothing that takes time."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    code = as_python(code)
    remember(where, code)
    for node in ast.parse(code).body:
        if isinstance(node, kinds) or (isinstance(node, ast.Assign) and is_constant(node.value)):
            with contextlib.suppress(Exception):  # a decorator or a base that is not there: nor is the function, then
                exec(compile(ast.Module([node], []), where, "exec"), names)


def as_python(code):
    r"""Return a cell as Python, as IPython reads it.

    >>> as_python("%matplotlib inline\ntorch.chunk?\nx = (7\n     % 4)").endswith("x = (7\n     % 4)\n")
    True
    """
    return TransformerManager().transform_cell(code)


def remember(where, code):
    """Let `inspect.getsource` and tracebacks find a cell's lines."""
    linecache.cache[where] = (len(code), None, code.splitlines(keepends=True), where)


def is_constant(node):
    """Say whether an expression is made of numbers, strings, names and the cheapest functions.

    >>> [is_constant(ast.parse(text, mode="eval").body) for text in ("{'a': -1}", "torch.tensor([4 * D])", "train(3)")]
    [True, True, False]
    """
    return all(
        isinstance(part, PLAIN) and (not isinstance(part, ast.Call) or ast.unparse(part.func) in CHEAP)
        for part in ast.walk(node)
    )


def ask(names, answer, probe, given):
    """Run a probe, which comes as text, on what the student's code defines under a name; return what it gave."""
    tools = {}
    exec(probe["source"], tools)
    return wire.plain(tools[probe["name"]](defined(names, answer), *given))


def defined(names, answer):
    """Return what the student's code defines under a name; `NotImplementedError` if that is nothing."""
    found = names.get(answer)
    if found is None or found is ...:
        raise NotImplementedError
    return found


def check(names, answer, code, where):
    """Run the visible check of an exercise; return what it printed."""
    defined(names, answer)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        run(names, code, where)
    return said.getvalue()


def reply(names, message):
    """Do what a message asks and return the reply: {"got": ...} or {"error": ...}."""
    message = dict(message)
    number, seconds = message.pop("number"), message.pop("seconds", SECONDS)
    work = {"run": run, "define": define, "ask": ask, "check": check}[message.pop("do")]
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"number": number, "got": work(names, **message)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt as well
        return {"number": number, "error": described(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(*_):
    raise TimeoutError("your code computed for too long; is there a loop that never ends?")


def described(error):
    """Say in a line what an error is, and in which line of the student's cell it arose."""
    if isinstance(error, NotImplementedError):
        return "not attempted yet"
    try:
        text = wire.clean(error)
    except Exception:  # an error of the student's own that cannot be printed
        text = ""
    if type(error).__name__ == "CheckFailed":  # its words are the diagnosis
        return text
    if isinstance(error, (TimeoutError, wire.NotPlain)):
        return f"not yet: {text}"
    frame, line = error.__traceback__, None
    while frame is not None:
        line = frame.tb_lineno if frame.tb_frame.f_code.co_filename.startswith("<ex") else line
        frame = frame.tb_next
    place = f" in line {line} of the answer" if line else ""
    return f"not yet: your code raised {wire.clean(type(error).__name__, 100)}{place}: {text}"


def hide_checks():
    """Put empty modules in the place of the visible checks: their own answers are not to be called."""
    sys.modules["course_lib.exercises"] = Nothing("course_lib.exercises")


class Nothing(types.ModuleType):
    """A module in which every name is found and does nothing."""

    def __getattr__(self, name):
        """Return such a module again; none of what tools ask of every module, such as __file__."""
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing(name)

    def __call__(self, *_, **__):
        """Do nothing."""


def main():
    """Answer messages until there are no more."""
    sandbox.end_with_parent()
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)
    import course_lib

    hole = os.path.join(os.path.dirname(course_lib.__file__), "exercises")
    if sys.argv[1:] == ["checks"]:
        from course_lib import exercises

        exercises.SECONDS, hole = SECONDS, None  # in a fresh process some of torch is loaded at its first use
    else:
        hide_checks()
    torch.ones(2).half().sum()  # asks the processor what it can do, from files that will be closed
    by_kernel = sandbox.confine(os.getcwd(), hole)
    notebook = types.ModuleType("__main__")
    sys.modules["__main__"] = notebook
    shell = Shell(vars(notebook))
    builtins.get_ipython, builtins.display = lambda: shell, lambda *_, **__: None
    IPython.get_ipython = builtins.get_ipython
    sys.path.append(os.getcwd())
    for name in ("google.colab", "google.colab.drive", "google.colab.files"):  # a notebook that was written in Colab
        sys.modules[name] = Nothing(name)
    sys.modules.setdefault("google", Nothing("google"))
    wire.send(outbox, {"confined": by_kernel})
    while (message := wire.receive(inbox)) is not None:
        answer = reply(vars(notebook), message)
        try:
            wire.send(outbox, answer)
        except Exception as error:  # more than a message may hold, or patched into something odd
            wire.send(outbox, {"number": answer["number"], "error": described(error)})


if __name__ == "__main__":
    main()
