"""Checks at the doors: what a user hands over is right, or refused with a sentence that says what is wrong.

Inside the library torch may raise; these stand where data and settings come in. What looks at a tensor's values is
skipped while a model is compiled or exported.
"""

import math
import numbers

import torch

LARGEST = 10**9  # of a size: beyond it stands a slip, and what would come is a wait without end


def check_sizes(least=1, **sizes):
    """Each a whole number of at least `least`.

    >>> check_sizes(d_model=8, num_heads=2.5)
    Traceback (most recent call last):
    ValueError: num_heads must be a whole number of at least 1, got 2.5
    """
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, numbers.Integral | torch.SymInt) or size < least:
            raise ValueError(f"{name} must be a whole number of at least {least}, got {size!r}")
        if size > LARGEST:
            raise ValueError(f"{name} must be a whole number of at most {LARGEST:,}, got {size!r}")


def check_probability(**probabilities):
    """Each a number from 0 to below 1: dropout and the like.

    >>> check_probability(dropout=1.5)
    Traceback (most recent call last):
    ValueError: dropout must be from 0 to below 1, got 1.5
    """
    for name, p in probabilities.items():
        if not isinstance(p, numbers.Real) or not 0 <= p < 1:
            raise ValueError(f"{name} must be from 0 to below 1, got {p!r}")


def check_positive(zero=False, **values):
    """Each a finite number above 0, or from 0 on if `zero`.

    >>> check_positive(lr=float("nan"))
    Traceback (most recent call last):
    ValueError: lr must be a finite number above 0, got nan
    """
    for name, x in values.items():
        if not isinstance(x, numbers.Real) or not math.isfinite(x) or not (x >= 0 if zero else x > 0):
            raise ValueError(f"{name} must be a finite number {'from 0 on' if zero else 'above 0'}, got {x!r}")


def check_choice(name, value, choices):
    """One of a few names.

    >>> check_choice("pool", "sum", ["last", "mean"])
    Traceback (most recent call last):
    ValueError: pool must be one of 'last', 'mean', got 'sum'
    """
    if not isinstance(value, str) or value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def check_tensor(name, x, shape, dtype=None, like=None):
    """A tensor of a shape, in which letters and None stand for any size.

    Args:
        name: of the argument, for the message.
        x: what came.
        shape: tuple of int, and of str or None for sizes that are free, e.g. ("B", "T", 12).
        dtype: torch.dtype that it must have; "float" any floating one; None: any.
        like: tensor (a weight) whose device it must share.

    >>> check_tensor("x", torch.zeros(2, 3), ("B", "T", 4))
    Traceback (most recent call last):
    ValueError: x must be a tensor (B, T, 4), got one of shape (2, 3)
    """
    if not isinstance(x, torch.Tensor):
        kind = f"{type(x).__module__}.{type(x).__name__}"
        raise ValueError(f"{name} must be a torch tensor {shape_in_words(shape)}, got {kind}")
    if x.ndim != len(shape) or any(isinstance(w, int) and w != size for w, size in zip(shape, x.shape, strict=True)):
        raise ValueError(f"{name} must be a tensor {shape_in_words(shape)}, got one of shape {tuple(x.shape)}")
    if (dtype == "float" and not x.is_floating_point()) or (isinstance(dtype, torch.dtype) and x.dtype != dtype):
        raise ValueError(f"{name} must be {'floating' if dtype == 'float' else dtype}, got {x.dtype}")
    if like is not None and x.device != like.device:
        raise ValueError(f"{name} is on {x.device}, wanted {like.device}")


def shape_in_words(shape):
    """For a message: letters and numbers as they are, None as "any".

    >>> shape_in_words(("B", None, 12))
    '(B, any, 12)'
    """
    sizes = ", ".join("any" if size is None else str(size) for size in shape)
    return f"({sizes},)" if len(shape) == 1 else f"({sizes})"


def check_expands(name, x, shape, dtype=None, like=None):
    """A tensor that broadcasts to a shape (None: any) without making it larger: a mask, a bias; else as `check_tensor`.

    >>> check_expands("mask", torch.ones(5, 3, dtype=torch.bool), (2, 4, 3), torch.bool)
    Traceback (most recent call last):
    ValueError: mask of shape (5, 3) does not broadcast to (2, 4, 3)
    """
    if not isinstance(x, torch.Tensor):
        raise ValueError(f"{name} must be a torch tensor, got {type(x).__module__}.{type(x).__name__}")
    check_tensor(name, x, tuple(x.shape), dtype, like)
    if shape is None:
        return
    sizes = zip(reversed(x.shape), reversed(shape), strict=False)
    if x.ndim > len(shape) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"{name} of shape {tuple(x.shape)} does not broadcast to {tuple(shape)}")


def check_floats(**tensors):
    """Each a floating torch tensor, of any shape.

    >>> check_floats(q=[[0.5, 1.0]])
    Traceback (most recent call last):
    ValueError: q must be a floating torch tensor, got list
    """
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"{name} must be a floating torch tensor, got {kind}")


def check_width(name, x, width):
    """A floating torch tensor whose last axis has a width.

    >>> check_width("query", torch.zeros(2, 5, dtype=torch.int64), 5)
    Traceback (most recent call last):
    ValueError: query must be a floating torch tensor, got torch.int64
    """
    check_floats(**{name: x})
    if x.shape[-1:] != (width,):
        raise ValueError(f"{name} must have the width {width}, got shape {tuple(x.shape)}")


def check_instance(name, x, kind):
    """An object of a class, or of one below it.

    >>> check_instance("encoder", "gru", torch.nn.Module)
    Traceback (most recent call last):
    ValueError: encoder must be a Module, got str 'gru'
    """
    if not isinstance(x, kind):
        raise ValueError(f"{name} must be a {getattr(kind, '__name__', kind)}, got {type(x).__name__} {x!r:.40}")


def check_finite(name, x):
    """No NaN and no infinity."""
    if not torch.compiler.is_compiling() and not torch.isfinite(x).all():
        raise ValueError(f"{name} must be finite, got NaN or infinity")


def check_ids(name, ids, shape, vocab_size=None):
    """int64 token numbers of a shape, from 0 to below the vocabulary's size.

    >>> check_ids("ids", torch.tensor([[1, 12]]), ("B", "T"), vocab_size=11)
    Traceback (most recent call last):
    ValueError: ids must be from 0 to 10, got 1 to 12
    """
    check_tensor(name, ids, shape, dtype=torch.int64)
    check_sizes(vocab_size=1 if vocab_size is None else vocab_size)
    if vocab_size is not None and not torch.compiler.is_compiling() and ids.numel():
        low, high = ids.aminmax()
        if low < 0 or high >= vocab_size:
            raise ValueError(f"{name} must be from 0 to {vocab_size - 1}, got {low.item()} to {high.item()}")


def check_labels(name, labels, logits):
    """Classes of logits (..., C): int64, from 0 to C - 1. Off the CPU values are not read: the processor would wait.

    >>> check_labels("labels", torch.tensor([-100, 1]), torch.zeros(2, 3))
    Traceback (most recent call last):
    ValueError: labels must be from 0 to 2, got -100 to 1
    """
    *shape, C = logits.shape
    check_ids(name, labels, tuple(shape), C if getattr(labels, "is_cpu", False) else None)


def as_numbers(name, values):
    """A tensor of finite numbers, made of a list, an array or a tensor.

    >>> as_numbers("labels", ["a", "b"])
    Traceback (most recent call last):
    ValueError: labels must be numbers, in rows of one length, got list ['a', 'b']
    """
    try:
        numbers = torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError) as error:
        got = f"{type(values).__name__} {str(values)[:40]}"
        raise ValueError(f"{name} must be numbers, in rows of one length, got {got}") from error
    check_finite(name, numbers)
    return numbers


def look_up(name, ids, embedding):
    """The rows of an embedding for (B, T) ids; ids that it lacks are named. Costs nothing where all is right."""
    check_tensor(name, ids, ("B", "T"), dtype=torch.int64, like=embedding.weight)
    if torch.compiler.is_compiling():
        return embedding(ids)
    try:
        return embedding(ids)
    except IndexError:
        check_ids(name, ids, ("B", "T"), embedding.num_embeddings)
        raise


def check_real(name, real, ids, first=False):
    """Which tokens are real: (B, T) bool like the ids, at least one in each row.

    Args:
        name: of the argument, for the message.
        real: bool tensor, True = a token, False = padding; or None.
        ids: (B, T) the tokens.
        first: True wants the real tokens before the padding, as lengths and learned positions do.
    """
    if real is None:
        return
    check_tensor(name, real, tuple(ids.shape[:2]), dtype=torch.bool)
    if torch.compiler.is_compiling():
        return
    if not real.any(1).all():
        raise ValueError(f"{name} has a row without a real token: row {(~real.any(1)).nonzero()[0].item()}")
    if first and not (real[:, :-1] | ~real[:, 1:]).all():
        raise ValueError(f"{name} has padding before a real token; the real tokens must come first")


def check_text(name, text):
    """One string."""
    if not isinstance(text, str):
        raise ValueError(f"{name} must be one string, got {type(text).__name__} {str(text)[:40]!r}")


def check_tokens(name, tokens):
    """Several strings; returned as a list.

    >>> check_tokens("tokens", "not great")
    Traceback (most recent call last):
    ValueError: tokens must be a list of strings, got str 'not great'
    """
    listed = list(tokens) if hasattr(tokens, "__iter__") else [None]
    if isinstance(tokens, str) or not all(issubclass(kind, str) for kind in set(map(type, listed))):
        raise ValueError(f"{name} must be a list of strings, got {type(tokens).__name__} {str(tokens)[:40]!r}")
    return listed


def check_lengths(name, lengths, longest=None):
    """(B,) whole numbers from 0, or from 0 to `longest`; at least one of them."""
    limit = f" to {longest}" if longest is not None else ""
    wanted = f"{name} must be a list of at least one whole number from 0{limit}"
    if lengths.ndim != 1 or len(lengths) == 0 or lengths.is_floating_point():
        raise ValueError(f"{wanted}, got {lengths.dtype} of shape {tuple(lengths.shape)}")
    if not torch.compiler.is_compiling() and (lengths.min() < 0 or (longest is not None and lengths.max() > longest)):
        raise ValueError(f"{wanted}, got {lengths.min().item()} to {lengths.max().item()}")


def check_index(name, i, size):
    """A whole number from 0 to below `size`, such as the id of a token.

    >>> check_index("eos_id", "3", 11)
    Traceback (most recent call last):
    ValueError: eos_id must be a whole number from 0 to 10, got '3'
    """
    if isinstance(i, bool) or not isinstance(i, numbers.Integral) or not 0 <= i < size:
        raise ValueError(f"{name} must be a whole number from 0 to {size - 1}, got {i!r}")


def check_length(name, items, least=1):
    """A list or a tensor of at least so many items.

    >>> check_length("labels", [])
    Traceback (most recent call last):
    ValueError: labels must have a length of at least 1, got 0
    """
    if isinstance(items, str | bytes) or not hasattr(items, "__len__") or (torch.is_tensor(items) and not items.ndim):
        raise ValueError(f"{name} must be a list or a tensor, got {type(items).__name__} {str(items)[:40]!r}")
    if len(items) < least:
        raise ValueError(f"{name} must have a length of at least {least}, got {len(items)}")


def dtype_of(tensor):
    """The dtype that goes with a tensor, for `check_tensor`; None where autocast brings them together."""
    kind = tensor.device.type
    return None if kind != "meta" and torch.is_autocast_enabled(kind) else tensor.dtype
