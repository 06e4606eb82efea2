"""What travels between the judge and the process in which a student's code runs: plain data as JSON, in frames.

A reply comes from code that nobody trusts. It is read as text of limited length: no object is ever made by it,
nothing in it can share, expand or refer to anything, and reading it costs no more than its length.
"""

import base64
import json
import math
import numbers
import struct

import torch

LARGEST = 8 * 2**20  # bytes of one message
ITEMS = 100_000  # numbers, strings and containers in one answer, the numbers of tensors not counted
DEPTH = 50  # of lists in lists
KEYS = 1000  # of one dict or set: keys that collide cost the square of their number
DTYPES = {
    str(dtype).removeprefix("torch."): dtype
    for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.complex64, torch.complex128,
                  torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
}  # fmt: skip


class NotPlain(TypeError):
    """An answer gave something that is no tensor, array, number, string, list, tuple, dict, set, or None."""


class Unreadable(ValueError):
    """The bytes of a message are none that `encoded` made."""


def plain(value):
    """Return a value made of tensors, numbers, strings, lists, dicts and None alone, cut off from any graph.

    NumPy's numbers and those of other libraries become Python's, arrays become tensors, tuples and sets lists.

    Raises:
        NotPlain: if it holds anything else, or far too much.

    Example:
        >>> plain((torch.ones(2, requires_grad=True), {"a": 1}))
        [tensor([1., 1.]), {'a': 1}]
    """
    return _plain(value, [ITEMS], 0)


def _plain(value, left, depth):
    left[0] -= 1
    if left[0] < 0 or depth > DEPTH:
        raise NotPlain("the answer gave far more than was asked for")
    if isinstance(value, torch.Tensor):
        return _plain_tensor(value)
    if value is None or type(value) in (bool, int, float):
        return value
    if isinstance(value, str):
        return "".join(value)  # an exact str
    if isinstance(value, (list, tuple)):
        return [_plain(item, left, depth + 1) for item in value]
    if isinstance(value, (set, frozenset)):
        return [_plain(item, left, depth + 1) for item in sorted(value, key=repr)]
    if isinstance(value, dict) and len(value) > KEYS:
        raise NotPlain("the answer gave far more than was asked for")
    if isinstance(value, dict):
        return {_key(_plain(key, left, depth + 1)): _plain(item, left, depth + 1) for key, item in value.items()}
    if hasattr(value, "tolist"):  # a NumPy array or number
        return _plain_array(value)
    return _number(value)


def _key(key):
    """Lists cannot be keys; tuples, which they come from, can."""
    return tuple(map(_key, key)) if isinstance(key, list) else key


def _plain_tensor(value):
    if value.numel() * value.element_size() > LARGEST // 2:  # before anything is expanded
        raise NotPlain(f"the answer gave a tensor of shape {tuple(value.shape)}, far more than was asked for")
    if type(value) is not torch.Tensor:
        value = value.as_subclass(torch.Tensor)
    value = value.detach().to("cpu")
    if value.layout is not torch.strided:
        value = value.to_dense()
    return value.resolve_conj().resolve_neg().contiguous().clone()


def _plain_array(value):
    shape = getattr(value, "shape", ())
    if math.prod(shape) > LARGEST // 16:
        raise NotPlain(f"the answer gave an array of shape {shape}, far more than was asked for")
    if not shape:
        item = value.tolist()
        return item if type(item) in (bool, int, float, str) else _number(item)
    try:
        return torch.as_tensor(value).clone()
    except (TypeError, RuntimeError, ValueError):  # an array of strings or objects, or no array at all
        return plain(value.tolist())


def _number(value):
    """Integers, fractions, decimals and whatever else knows its value."""
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) or (hasattr(value, "__float__") and not isinstance(value, str)):
        return float(value)
    raise NotPlain(f"the answer gave a {type(value).__name__}")


def encoded(message):
    """Return a message as bytes: JSON in which what JSON does not have is marked.

    Args:
        message: of tensors, numbers, strings, lists, tuples, sets, dicts, None.

    Example:
        >>> decoded(encoded({"x": (1, torch.tensor([2.5])), 3: {None}}))
        {'x': (1, tensor([2.5000])), 3: {None}}
    """
    return json.dumps(_marked(message)).encode("ascii")


def _marked(value):
    if isinstance(value, torch.Tensor):
        raw = value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return {"tensor": [str(value.dtype).removeprefix("torch."), list(value.shape), base64.b64encode(raw).decode()]}
    if isinstance(value, tuple):
        return {"tuple": [_marked(item) for item in value]}
    if isinstance(value, (set, frozenset)):
        return {"set": [_marked(item) for item in value]}
    if isinstance(value, dict):
        return {"dict": [[_marked(key), _marked(item)] for key, item in value.items()]}
    if isinstance(value, list):
        return [_marked(item) for item in value]
    return value


def decoded(data):
    """Return the message in these bytes.

    Raises:
        Unreadable: if they are not what `encoded` makes.
    """
    try:
        return _unmarked(json.loads(data))
    except Exception as error:  # whatever a forged message makes of it: too deep, no JSON, wrong sizes, unhashable keys
        raise Unreadable(f"a message of {len(data)} bytes cannot be read: {type(error).__name__}") from None


def _unmarked(value):
    if isinstance(value, list):
        return [_unmarked(item) for item in value]
    if not isinstance(value, dict):
        return value
    ((mark, inside),) = value.items()
    if mark == "tensor":
        name, shape, raw = inside
        raw, dtype = base64.b64decode(raw, validate=True), DTYPES[name]
        if len(shape) > 20 or min(shape, default=1) < 0 or math.prod(shape) * dtype.itemsize != len(raw):
            raise Unreadable("sizes and bytes do not agree")
        return torch.frombuffer(bytearray(raw), dtype=dtype).reshape(shape) if raw else torch.zeros(shape, dtype=dtype)
    if mark in ("dict", "set") and len(inside) > KEYS:
        raise Unreadable("too many keys")
    if mark == "dict":
        return {_unmarked(key): _unmarked(item) for key, item in inside}
    return {"tuple": tuple, "set": set}[mark](_unmarked(item) for item in inside)


def framed(message):
    """Return what is written for a message: its length, then its bytes.

    Raises:
        NotPlain: if it is longer than a message may be.
    """
    data = encoded(message)
    if len(data) > LARGEST:
        raise NotPlain("the answer gave far more than was asked for")
    return struct.pack("<q", len(data)) + data


def send(stream, message):
    """Write a message."""
    stream.write(framed(message))
    stream.flush()


def receive(stream):
    """Read a message; None at the end of the stream."""
    head = stream.read(8)
    if len(head) < 8:
        return None
    return decoded(stream.read(*struct.unpack("<q", head)))


def clean(text, length=2000):
    r"""Return text as it may be stored and shown: readable characters, no more of them than `length`.

    >>> clean("a\x1b[31m \ud800 b"), clean("x" * 50, length=10)
    ('a?[31m ? b', 'xxxxxxxxxx ...')
    """
    text = str(text)
    short = "".join(c if c in "\n\t" or c.isprintable() else "?" for c in text[:length])
    return short if len(text) <= length else f"{short} ..."
