"""The process in which a student's code runs while it is graded.

It gets code and questions over a pipe and sends back what the answers gave. What is right it never learns: the
comparison is done where it came from (`grading.py`), so there is nothing here to read or to patch. It works in an
empty folder, may read nothing but Python and `course_lib`, and may start no other process. `grading.py` runs this
file as a script.
"""

import ast
import contextlib
import io
import numbers
import os
import resource
import signal
import struct
import sys
import types
from pathlib import Path

import torch

SECONDS = 10  # of computing for one cell or one question, first imports included
MEMORY = 12 * 2**30  # bytes
FILE_BYTES = 100 * 2**20
FORBIDDEN = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.fork", "os.kill", "socket.connect")


class NotPlain(TypeError):
    """An answer gave something that is no tensor, number, string, list, tuple, dict, set, or None."""


def plain(value):
    """Return a value made of tensors, numbers, strings, lists, dicts and None alone, cut off from any graph.

    Raises:
        NotPlain: if it holds anything else.

    Example:
        >>> plain((torch.ones(2, requires_grad=True), {"a": 1}))
        [tensor([1., 1.]), {'a': 1}]
    """
    if isinstance(value, torch.Tensor):
        return value.detach().to("cpu").contiguous().clone()
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return [plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, dict):
        return {plain(key): plain(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # a NumPy array or number
        return plain(value.tolist())
    if isinstance(value, numbers.Real):  # such as a Fraction
        return float(value)
    raise NotPlain(f"the answer gave a {type(value).__name__}")


def send(stream, message):
    """Write a message: its length, then torch's own format, which is read back without running any code."""
    buffer = io.BytesIO()
    torch.save(message, buffer)
    stream.write(struct.pack("<q", buffer.tell()) + buffer.getvalue())
    stream.flush()


def receive(stream):
    """Read a message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return loaded(stream.read(*struct.unpack("<q", head)))


def loaded(data):
    """Return the message in these bytes: tensors, lists, dicts, numbers, strings; reading it runs no code."""
    return torch.load(io.BytesIO(data), weights_only=True)


def run(names, code, where):
    """Execute a cell."""
    exec(compile(without_magics(code), where, "exec"), names)


def define(names, code, where):
    """Execute what a cell only defines: imports, functions, classes, constants; nothing that takes time."""
    kinds = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    for node in ast.parse(without_magics(code)).body:
        if isinstance(node, kinds) or (isinstance(node, ast.Assign) and is_constant(node.value)):
            with contextlib.suppress(Exception):  # a decorator or a base that is not there: nor is the function, then
                exec(compile(ast.Module([node], []), where, "exec"), names)


def is_constant(node):
    """Say whether an expression is a number, a string, or a list, tuple, dict or set of such."""
    try:
        ast.literal_eval(node)
    except ValueError:
        return False
    return True


def ask(names, answer, probe, given):
    """Run a probe, which comes as text, on what the student's code defines under a name; return what it gave."""
    tools = {}
    exec(probe["source"], tools)
    return plain(tools[probe["name"]](defined(names, answer), *given))


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


def without_magics(code):
    """Drop the lines that only IPython understands."""
    return "\n".join("" if line.lstrip().startswith(("%", "!")) else line for line in code.split("\n"))


def reply(names, message):
    """Do what a message asks and return the reply: {"got": ...} or {"error": ...}."""
    message = dict(message)
    seconds = message.pop("seconds", SECONDS)
    work = {"run": run, "define": define, "ask": ask, "check": check}[message.pop("do")]
    signal.signal(signal.SIGPROF, _stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return {"got": work(names, **message)}
    except BaseException as error:  # SystemExit and KeyboardInterrupt as well
        return {"error": described(error)}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)


def _stop(*_):
    raise TimeoutError("your code computed for too long; is there a loop that never ends?")


def described(error):
    """Say in a line what an error is, and in which line of the student's cell it arose."""
    if isinstance(error, NotImplementedError):
        return "not attempted yet"
    if type(error).__name__ == "CheckFailed":  # its words are the diagnosis
        return str(error)
    if isinstance(error, (TimeoutError, NotPlain)):
        return f"not yet: {error}"
    frame, line = error.__traceback__, None
    while frame is not None:
        line = frame.tb_lineno if frame.tb_frame.f_code.co_filename.startswith("<ex") else line
        frame = frame.tb_next
    place = f" in line {line} of the answer" if line else ""
    return f"not yet: your code raised {type(error).__name__}{place}: {error}"


def hide_checks():
    """Put empty modules in the place of the visible checks: their own answers are not to be called."""
    nothing = types.ModuleType("nothing")
    nothing.__getattr__ = lambda name: lambda *_, **__: None
    checks = types.ModuleType("course_lib.checks")
    checks.__getattr__ = lambda name: nothing
    sys.modules["course_lib.checks"] = checks


def restrict(folder):
    """Allow this process to read Python and the library, to write into its folder, and nothing else.

    On Linux the kernel sees to it (Landlock), whatever the code does. Elsewhere an audit hook of Python's does,
    which a determined attacker can pass by.
    """
    import course_lib

    library = Path(course_lib.__file__).resolve().parent
    readable = [sys.prefix, sys.base_prefix, library, library.parent / "results", "/usr", "/lib", "/lib64", "/etc/ssl"]
    readable = [Path(path).resolve() for path in readable if Path(path).exists()]
    for limit, amount in ((resource.RLIMIT_AS, MEMORY), (resource.RLIMIT_FSIZE, FILE_BYTES), (resource.RLIMIT_CORE, 0)):
        with contextlib.suppress(ValueError, OSError):  # not every system has each
            resource.setrlimit(limit, (amount, amount))
    _restrict_by_kernel(readable, folder)
    sys.addaudithook(_hook(readable, Path(folder).resolve()))


def _restrict_by_kernel(readable, folder):
    try:
        from landlock import FSAccess, Ruleset

        rules = Ruleset()
    except (ImportError, OSError):
        return
    rules.allow(*readable, rules=FSAccess.READ_FILE | FSAccess.READ_DIR | FSAccess.EXECUTE)
    rules.allow(folder)
    rules.allow("/dev/null", "/dev/urandom", rules=FSAccess.READ_FILE | FSAccess.WRITE_FILE)
    rules.apply()


def _hook(readable, folder):
    def hook(event, arguments):
        if event in FORBIDDEN:
            raise PermissionError(f"{event} is not for an answer that is graded")
        if event not in ("open", "os.listdir", "os.scandir") or not isinstance(arguments[0], (str, bytes)):
            return
        path = Path(os.path.realpath(os.fsdecode(arguments[0])))
        if not any(path.is_relative_to(place) for place in (*readable, folder, Path("/dev"), Path("/proc/self"))):
            raise PermissionError(f"an answer that is graded may not open {path.name}")

    return hook


def main():
    """Answer messages until there are no more."""
    inbox, outbox = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    if sys.argv[1:] == ["checks"]:
        from course_lib import checks

        checks.SECONDS = SECONDS  # in a fresh process some of torch is loaded at its first use
    else:
        hide_checks()
    restrict(os.getcwd())
    names = {"__name__": "__main__"}
    outbox.write(b"ready...")  # eight bytes
    outbox.flush()
    while (message := receive(inbox)) is not None:
        send(outbox, reply(names, message))


if __name__ == "__main__":
    main()
