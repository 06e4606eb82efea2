"""Small mistakes in a piece of Python, one at a time: what `mutants.py` does to the reference solutions.

Each kind of mistake is a generator: it gets a node of the syntax tree, and yields what could wrongly stand in its
place. A new kind is one function more, with `@kind`.
"""

import ast
import copy
import dataclasses
import difflib

OTHER_NAME = {
    a: b
    for pair in (
        "prod sum", "sum mean", "log2 log", "log exp", "max min", "amax amin", "argmax argmin", "sigmoid tanh",
        "sin cos", "softmax log_softmax", "floor ceil", "any all", "zeros ones", "zeros_like ones_like", "tril triu",
        "cumsum cumprod", "append extend", "items keys",
    )
    for a, b in (pair.split(), pair.split()[::-1])
}  # fmt: skip
OTHER_OPERATOR = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,  # codespell:ignore
}  # fmt: skip
SYMMETRIC = {"max", "min", "transpose", "allclose", "gcd"}  # their arguments may be swapped
MODULES = {"torch", "math", "nn", "F", "functional", "linalg", "utils"}
KINDS = {}


@dataclasses.dataclass(frozen=True)
class Mutant:
    """A changed source: the kind of mistake, the change in words ("old line -> new line"), and the source."""

    kind: str
    change: str
    source: str


def kind(function):
    """Add a kind of mistake: a generator of what may stand in a node's place."""
    KINDS[function.__name__] = function
    return function


def mutants(source, inside=lambda line: True, answer=None):
    """Return all mutants of a piece of Python, without two that read the same.

    Args:
        source: the code.
        inside: function of a line's number, from 1: whether it may be changed.
        answer: name of a value that was worked out on paper; its entries are changed as numbers, too.

    Example:
        >>> for mutant in mutants("y = 2 * x"):
        ...     print(mutant.change)
        y = 2 * x -> pass
        y = 2 * x -> y = 2
        y = 2 * x -> y = x
        y = 2 * x -> y = 3 * x
        y = 2 * x -> y = 1 * x
    """
    tree = ast.parse(source)
    reference = ast.unparse(tree)
    found = {}
    for holder, key, node in list(_places(tree)):
        if not inside(node.lineno):
            continue
        for name, new in [*_mistakes(node, tree), *(("number", n) for n in _numbers(node, tree, answer))]:
            holder[key] = new
            found.setdefault(ast.unparse(tree), name)
            holder[key] = node
    found.pop(reference, None)
    changes = _numbered([change(reference, changed) for changed in found])
    return [Mutant(name, words, changed) for (changed, name), words in zip(found.items(), changes, strict=True)]


def change(reference, changed):
    """Say in words what differs between two sources.

    >>> change("a = 1", "a = 2")
    'a = 1 -> a = 2'
    """
    lines = list(difflib.ndiff(reference.split("\n"), changed.split("\n")))
    old, new = ("; ".join(line[2:].strip() for line in lines if line.startswith(mark)) for mark in ("- ", "+ "))
    return f"{old} -> {new}"


def _numbered(changes):
    """Tell apart the changes that read the same, because a line stands in the source twice."""
    seen, told = {}, []
    for words in changes:
        seen[words] = seen.get(words, 0) + 1
        told.append(words if seen[words] == 1 else f"{words} ({seen[words]})")
    return told


def _places(tree):
    """Yield (holder, key, node): holder[key] is the expression or statement `node`, and can be replaced."""
    for parent in ast.walk(tree):
        for field, value in ast.iter_fields(parent):
            if isinstance(value, list):
                yield from ((value, i, node) for i, node in enumerate(value) if hasattr(node, "lineno"))
            elif hasattr(value, "lineno"):
                yield vars(parent), field, value


def _mistakes(node, tree):
    for name, function in KINDS.items():
        for new in function(node):
            yield name, new
    for new in _earlier(node, tree):
        yield "other result", new


def _with(node, **fields):
    """Return a copy of a node with some fields changed."""
    new = copy.copy(node)
    for field, value in fields.items():
        setattr(new, field, value)
    return new


def _combined(left, operator, right):
    return ast.BinOp(left, operator, right if isinstance(right, ast.AST) else ast.Constant(right))


def _is_number(node, numbers=(int, float)):
    return isinstance(node, ast.Constant) and type(node.value) in numbers


def _moved(node, step):
    """Return an expression that is one more, or one less."""
    if _is_number(node, (int,)):
        return ast.Constant(node.value + step)
    return _combined(node, ast.Add() if step > 0 else ast.Sub(), 1)


def _called(node):
    """Return the name of the function that is called, "" if the node is no call."""
    if not isinstance(node, ast.Call):
        return ""
    return getattr(node.func, "id", getattr(node.func, "attr", ""))


def _swapped(nodes):
    """Yield the list with each two neighbours swapped."""
    for i in range(len(nodes) - 1):
        yield [*nodes[:i], nodes[i + 1], nodes[i], *nodes[i + 2 :]]


@kind
def axis(node):
    """Another axis where one is named; a transpose left out."""
    if isinstance(node, ast.keyword) and node.arg == "dim" and _is_number(node.value, (int,)):
        yield from (_with(node, value=_moved(node.value, step)) for step in (1, -1))
    if isinstance(node, ast.Attribute) and node.attr in ("T", "mT"):
        yield node.value


@kind
def off_by_one(node):
    """Integers, bounds of slices and of ranges, one more and one less; < for <=."""
    if _is_number(node, (int,)):
        yield from (_moved(node, step) for step in (1, -1))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in (ast.Lt, ast.LtE, ast.Gt, ast.GtE):
        yield _with(node, ops=[OTHER_OPERATOR[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.Slice):
        yield _with(node, lower=_moved(node.lower, 1) if node.lower else ast.Constant(1))
        yield _with(node, upper=_moved(node.upper, -1) if node.upper else ast.Constant(-1))
        if node.lower:
            yield from (_with(node, lower=None), _with(node, lower=_moved(node.lower, -1)))
        if node.upper:
            yield from (_with(node, upper=None), _with(node, upper=_moved(node.upper, 1)))
    if _called(node) == "range":
        for i, bound in enumerate(node.args):
            for step in (1, -1):
                yield _with(node, args=[*node.args[:i], _moved(bound, step), *node.args[i + 1 :]])


@kind
def scale(node):
    """A factor, a divisor or a power left out; a number twice or half as large."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Mult, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult)):
        yield node.left
        if isinstance(node.op, (ast.Mult, ast.MatMult)):
            yield node.right
    if _is_number(node, (float,)):
        yield from (ast.Constant(2 * node.value), ast.Constant(node.value / 2))


@kind
def mask(node):
    """A choice made without its condition; an index or a part of a condition left out."""
    if _called(node) == "where" and len(node.args) == 3:
        yield from node.args[1:]
    if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
        yield node.value
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
        other = ast.BitOr() if isinstance(node.op, ast.BitAnd) else ast.BitAnd()
        yield from (node.left, node.right, _with(node, op=other))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.Invert, ast.Not)):
        yield node.operand
    if isinstance(node, ast.IfExp):
        yield from (node.body, node.orelse)
    if isinstance(node, ast.If):
        yield _with(node, test=ast.Constant(True))


@kind
def sign(node):
    """Plus for minus, a term or a minus left out."""
    if isinstance(node, (ast.BinOp, ast.AugAssign)) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield _with(node, op=ast.Sub() if isinstance(node.op, ast.Add) else ast.Add())
    if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.Add, ast.Sub)):
        yield from (node.left, node.right)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield node.operand


@kind
def function(node):
    """Another function, another comparison, and for or; True for False, break for continue."""
    if _called(node) in OTHER_NAME:
        field = "id" if isinstance(node.func, ast.Name) else "attr"
        yield _with(node, func=_with(node.func, **{field: OTHER_NAME[_called(node)]}))
    if isinstance(node, ast.Compare) and type(node.ops[0]) in OTHER_OPERATOR:
        yield _with(node, ops=[OTHER_OPERATOR[type(node.ops[0])](), *node.ops[1:]])
    if isinstance(node, ast.BoolOp):
        yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        yield from node.values
    if isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield ast.Constant(not node.value)
    if isinstance(node, ast.Break):
        yield ast.Continue()
    if isinstance(node, ast.Continue):
        yield ast.Break()


@kind
def statement(node):
    """A step left out."""
    if isinstance(node, (ast.Assign, ast.AugAssign, ast.Expr, ast.If, ast.For, ast.While)):
        yield ast.Pass()


@kind
def call(node):
    """A function left out: f(x) is x, and x.f() is x."""
    if not isinstance(node, ast.Call):
        return
    of = node.func.value if isinstance(node.func, ast.Attribute) else None
    if of is None or ast.unparse(of).split(".")[-1] in MODULES:
        yield from node.args[:1]
    else:
        yield of


@kind
def swap(node):
    """Two neighbours swapped: arguments, operands, entries."""
    if isinstance(node, ast.Call) and _called(node) not in SYMMETRIC:
        yield from (_with(node, args=args) for args in _swapped(node.args))
    if isinstance(node, (ast.Tuple, ast.List)):
        yield from (_with(node, elts=entries) for entries in _swapped(node.elts))
    if isinstance(node, ast.BinOp) and isinstance(
        node.op, (ast.Sub, ast.Div, ast.FloorDiv, ast.Pow, ast.MatMult, ast.Mod)
    ):
        yield _with(node, left=node.right, right=node.left)


def _earlier(node, tree):
    """What was computed before, returned in the place of the result."""
    if isinstance(node, ast.Return):
        names = [n for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        for name in dict.fromkeys(n.id for n in names if n.lineno < node.lineno):
            yield ast.Return(ast.Name(name, ast.Load()))


def _numbers(node, tree, answer):
    """The numbers of an answer on paper: twice, half, one more, the other sign; tensors and single numbers too."""
    if node not in _entries(tree, answer):
        return
    yield from (_combined(node, ast.Mult(), 2), _combined(node, ast.Div(), 2), _combined(node, ast.Add(), 1))
    yield ast.UnaryOp(ast.USub(), node)


def _entries(tree, answer):
    """The entries of the last value that has the answer's name, or the value itself if it has none."""
    values = [n.value for n in ast.walk(tree) if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == answer]
    if not values:
        return []
    lists = [n for n in ast.walk(values[-1]) if isinstance(n, (ast.Tuple, ast.List))]
    return lists[0].elts if lists else [values[-1]]
