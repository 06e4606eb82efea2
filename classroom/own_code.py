"""Does an answer call the ready-made function that its exercise asks students to write? A reminder, not a proof.

It reads the student's cells without running them, and sees the ordinary `return nn.LSTMCell(...)`, also through a
helper, an alias or an import in another cell. It holds nothing against an honest answer: a name counts only if the
answer can reach it, and only if the student's own code gives it no other meaning. Whoever wants to hide a call from it
can; the exercise says what is asked, and people read answers.
"""

import ast
import bisect

LONGEST = 100_000  # characters of a cell that is read
DEEPEST = 40  # functions inside each other
HOPS = 10  # aliases of aliases
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
CALLED_BY_TORCH = ("forward", "backward", "setup_context")  # methods that run although nobody names them
MAGICS = ("time", "capture", "prun")  # that run the cell in the notebook's own names
# Names for the lists of several exercises: gradients that torch computes, and models whose parameters are counted.
BY_AUTOGRAD = (
    "grad", "backward", "grad_and_value", "vjp", "jvp", "jacobian", "jacrev", "jacfwd", "linearize", "hessian",
)  # fmt: skip
BY_BUILDING = (
    "Linear", "LayerNorm", "Embedding", "MultiheadAttention", "MultiHeadAttention", "EncoderLayer",
    "TransformerEncoder", "TransformerEncoderLayer", "parameters", "number_of_parameters",
)  # fmt: skip
UNKNOWN = object()  # what a name stands for if it is neither imported nor another name for something


def used(cells, answer, without):
    r"""Return the names that an answer uses although it may not, sorted.

    Only what the answer can reach counts: its own code, and what it names of the student's other definitions. There a
    forbidden name counts if the student's code does not define it (`lstm_step`), as part of a module
    (`nn.LSTMCell`, `getattr(torch, "lstm_cell")`), or as a method that is called on something else than an object of
    the student's own class (`loss.backward()`). Comments, strings, annotations, assertions and `isinstance` do not.

    Args:
        cells: the student's cells in their order, as plain Python. One that cannot be parsed is passed over.
        answer: the name that the exercise asks for; its last definition counts.
        without: the forbidden names, such as ("LSTMCell", "lstm_step").

    Returns:
        list of those that are used.

    Example:
        >>> cells = ["from torch import nn\nCell = nn.LSTMCell", "def f(x):\n    return Cell(3, 4)(x)"]
        >>> used(cells, "f", ("LSTMCell", "lstm_step"))
        ['LSTMCell']
        >>> used(["def f(lstm_step):\n    return lstm_step + 1"], "f", ("LSTMCell", "lstm_step"))
        []
    """
    if not without:
        return []
    reader = _Reader([tree for cell in cells if (tree := _parsed(cell))], frozenset(without))
    reader.read(answer, _Scope())
    return sorted(reader.found)


def defines(cells, name):
    r"""Say whether cells define a name at their top level.

    >>> defines(["def f(x):\n    g = x"], "f"), defines(["def f(x):\n    g = x"], "g"), defines(["f(1)"], "f")
    (True, False, False)
    """
    return any(name in names for cell in cells if (tree := _parsed(cell)) for names, _ in _steps(tree.body))


def _parsed(cell):
    """A cell's tree, or None: running the cell says what is wrong with it."""
    try:
        return ast.parse(cell) if len(cell) <= LONGEST else None
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _steps(body):
    """What statements at the top level define, in their order: ({name: meaning}, the nodes that give the meaning)."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield {node.name: UNKNOWN}, [node]
        elif isinstance(node, (ast.Import, ast.ImportFrom, ast.Assign, ast.AnnAssign, ast.AugAssign)):
            yield _bound([node]), [node]
        elif isinstance(node, (ast.For, ast.AsyncFor)):
            yield _bound([node.target]), [node.iter]
        elif isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                yield _bound([item.optional_vars] if item.optional_vars else []), [item.context_expr]
        elif cell := _inside_magic(node):
            yield from _steps(cell.body)
        for part in ("body", "handlers", "orelse", "finalbody", "cases"):
            inner = getattr(node, part, []) if isinstance(node, BLOCKS) else []
            yield from _steps(inner)


BLOCKS = (ast.If, ast.For, ast.AsyncFor, ast.While, ast.With, ast.AsyncWith, ast.Try, ast.TryStar, ast.ExceptHandler,
          ast.Match, ast.match_case)  # fmt: skip


def _inside_magic(node):
    """The tree of the cell inside `get_ipython().run_cell_magic("time", "", cell)`: so IPython reads %%time."""
    call = node.value if isinstance(node, ast.Expr) else None
    if not isinstance(call, ast.Call) or getattr(call.func, "attr", "") != "run_cell_magic" or len(call.args) != 3:
        return None
    name, _, cell = (_constant(argument) for argument in call.args)
    return _parsed(cell) if name in MAGICS and cell else None


def _constant(node):
    """The text of a string that stands in the code; "" for anything else."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _bound(nodes):
    """The names that code binds in its own scope, each with an import's path, the expression it equals, or UNKNOWN."""
    names, elsewhere, todo = {}, set(), list(nodes)
    while todo:
        node = todo.pop()
        meanings = {}
        if isinstance(node, ast.Import):
            paths = {alias.asname: alias.name for alias in node.names if alias.asname}
            tops = [alias.name.split(".")[0] for alias in node.names if not alias.asname]  # `import a.b` binds a
            meanings = paths | {top: top for top in tops}
        elif isinstance(node, ast.ImportFrom):
            meanings = {alias.asname or alias.name: f"{node.module or ''}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            meanings = {node.targets[0].id: node.value}
            todo.append(node.value)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            elsewhere.update(node.names)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            meanings = {node.name: UNKNOWN}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            meanings = {node.id: UNKNOWN}
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            meanings = {node.name: UNKNOWN}
        elif isinstance(node, ast.MatchMapping) and node.rest:
            meanings = {node.rest: UNKNOWN}
        for name, meaning in meanings.items():
            names[name] = UNKNOWN if name in names else meaning  # bound twice: it may be either
        if not meanings or isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchMapping)):
            todo += [] if isinstance(node, ast.Lambda) else ast.iter_child_nodes(node)
    return {name: meaning for name, meaning in names.items() if name not in elsewhere}


class _Scope:
    """Where names are looked up: a function's, a class's or a comprehension's own, then those around it.

    Args:
        names: what it binds, as `_bound` gives it.
        around: the scope outside; None at the top level.
        limit: at the top level, the number of the step that is evaluated: it sees only what stands before it.
            Functions run later and see everything.
        is_class: the functions in a class do not see its names.
    """

    def __init__(self, names=None, around=None, limit=None, is_class=False):
        self.names, self.around, self.limit, self.is_class = names or {}, around, limit, is_class
        self.depth = around.depth + 1 if around else 0

    def for_function(self, names):
        """Return the scope of a function that is defined in this one."""
        outside = self.around if self.is_class else self
        if outside.around is None:
            outside = _Scope()
        return _Scope(names, outside)


class _Reader:
    """Reads what an answer can reach, and notes the forbidden names in it."""

    def __init__(self, trees, without):
        self.without, self.found = without, set()
        self.steps = [step for tree in trees for step in _steps(tree.body)]
        self.places = {}  # of each name: the numbers of the steps that define it
        for number, (names, _) in enumerate(self.steps):
            for name in names:
                self.places.setdefault(name, []).append(number)
        self.own = {name for tree in trees for name in _attributes(tree)}
        self.reached, self.todo = set(), []
        self.asked, self.methods = set(), {}  # attributes that were named; methods that wait until theirs is

    def read(self, name, scope):
        """Read a definition and all that it leads to."""
        self.find(name, scope)
        while self.todo:
            node, scope = self.todo.pop()
            if scope.depth < DEEPEST:
                self.look(node, scope)

    def find(self, name, scope):
        """Return (what a name stands for, the scope in which to read that), and put its definition on the list.

        A name that the student's code does not define stands for itself.
        """
        while scope.around is not None:
            if name in scope.names:
                return scope.names[name], scope
            scope = scope.around
        places = self.places.get(name, [])
        place = len(places) if scope.limit is None else bisect.bisect_left(places, scope.limit)
        if place == 0:
            return name, scope
        number = places[place - 1]
        names, nodes = self.steps[number]
        inside = _Scope(limit=number)
        if number not in self.reached:
            self.reached.add(number)
            self.todo += [(node, inside) for node in nodes]
        return names[name], inside

    def look(self, node, scope):
        """Look at one node, and put on the list what is to be looked at after it."""
        if isinstance(node, FUNCTIONS):
            self.function(node, scope)
        elif isinstance(node, ast.ClassDef):
            self.class_(node, scope)
        elif isinstance(node, COMPREHENSIONS):
            inner = _Scope(_bound([generator.target for generator in node.generators]), scope)
            self.todo += [(child, inner) for child in ast.iter_child_nodes(node)]
        elif isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)):
            self.expression(node, scope)
        elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):  # it reads what it changes
            self.todo += [(node.value, scope), (ast.Name(node.target.id, ast.Load()), scope)]
        elif isinstance(node, ast.AnnAssign):
            self.todo += [(node.value, scope)] if node.value else []
        elif not isinstance(node, ast.Assert):  # which compares and gives nothing
            self.todo += [(child, scope) for child in ast.iter_child_nodes(node)]

    def function(self, node, scope):
        """Look at a function: defaults and decorators where it is defined, the body in its own scope."""
        a = node.args
        outside = [*a.defaults, *a.kw_defaults, *getattr(node, "decorator_list", [])]
        self.todo += [(part, scope) for part in outside if part]
        arguments = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(each for each in (a.vararg, a.kwarg) if each)]
        body = [node.body] if isinstance(node, ast.Lambda) else node.body
        inner = scope.for_function(_bound(body) | {argument.arg: UNKNOWN for argument in arguments})
        self.todo += [(part, inner) for part in body]

    def class_(self, node, scope):
        """Look at a class; a method only when something that is reached names it."""
        self.todo += [(part, scope) for part in (*node.bases, *node.keywords, *node.decorator_list)]
        inner = _Scope(_bound(node.body), scope, is_class=True)
        for part in node.body:
            name = part.name if isinstance(part, (ast.FunctionDef, ast.AsyncFunctionDef)) else "__"
            if name.startswith("__") or name in CALLED_BY_TORCH or name in self.asked:
                self.todo.append((part, inner))
            else:
                self.methods.setdefault(name, []).append((part, inner))

    def expression(self, node, scope):
        """Look at a name, at a chain of attributes such as `torch.nn.LSTMCell`, or at a call."""
        if isinstance(node, ast.Call) and not _attribute(node):
            if isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
                node = ast.Tuple(node.args[:1], ast.Load())
            elif (step := _attribute(node.func)) and self.path(node.func, scope) is None:
                self.found |= {step[0]} & self.without - self.own
            self.todo += [(child, scope) for child in ast.iter_child_nodes(node)]
            return
        if not isinstance(getattr(node, "ctx", None), (ast.Store, ast.Del)):
            self.found.update(self.without.intersection((self.path(node, scope) or "").split(".")))
        root = node
        while step := _attribute(root):
            self.asked.add(step[0])
            self.todo += self.methods.pop(step[0], [])
            root = step[1]
        if root is not node:
            self.todo.append((root, scope))
        elif not isinstance(node, ast.Name):
            self.todo += [(child, scope) for child in ast.iter_child_nodes(node)]

    def path(self, node, scope):
        """Return what a name or a chain of attributes stands for, such as "torch.nn.LSTMCell"; None if not known."""
        parts = []
        for _ in range(HOPS):
            while step := _attribute(node):
                parts.append(step[0])
                node = step[1]
            if not isinstance(node, ast.Name):
                return None
            meaning, scope = self.find(node.id, scope)
            if isinstance(meaning, str):
                return ".".join([meaning, *reversed(parts)])
            if meaning is UNKNOWN:
                return None
            node = meaning
        return None


def _attribute(node):
    """The name of an attribute and whose it is, for `a.b`, `getattr(a, "b")` and `vars(a)["b"]`; else None."""
    if isinstance(node, ast.Attribute):
        return node.attr, node.value
    if isinstance(node, ast.Call) and _is_call(node, "getattr") and len(node.args) > 1 and _constant(node.args[1]):
        return _constant(node.args[1]), node.args[0]
    if isinstance(node, ast.Subscript) and _is_call(node.value, "vars") and node.value.args and _constant(node.slice):
        return _constant(node.slice), node.value.args[0]
    return None


def _is_call(node, name):
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name


def _attributes(tree):
    """The attributes that the student's own objects have: of classes, set on objects, given by keyword."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            yield from _bound(node.body)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.keyword) and node.arg:
            yield node.arg
