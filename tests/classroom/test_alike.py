"""Answers that are alike: copies are found whatever was done to them, and right answers of one's own are not."""

import csv
import json
import random
import re

import pytest

from classroom import alike

# Exercises of the course: what is given, the reference, and right answers as different people write them.

GIVEN = {
    "ex05-1-lstm-cell": "def lstm_cell(x, h, c, weight_ih, weight_hh, bias):\n    raise NotImplementedError()",
    "ex05-5-gru-weights": "def gru_weights(z):\n    raise NotImplementedError()",
    "ex05-7-last-states": "def last_states(output, lengths):\n    raise NotImplementedError()",
    "ex07-2-dot-product-attention": (
        "def dot_product_attention(q, k, v, mask=None, causal=False):\n    raise NotImplementedError()"
    ),
}
VERSIONS = {
    "ex05-1-lstm-cell": [
        """
    i, f, g, o = (x @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, dim=1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    return h, c""",
        """
    gates = F.linear(x, weight_ih, bias) + F.linear(h, weight_hh)
    input_gate, forget, cell, output = gates.chunk(4, -1)
    new_c = forget.sigmoid() * c + input_gate.sigmoid() * cell.tanh()
    return output.sigmoid() * new_c.tanh(), new_c""",
        """
    D = h.shape[1]
    gates = x @ weight_ih.T + h @ weight_hh.T + bias
    i = torch.sigmoid(gates[:, :D])
    f = torch.sigmoid(gates[:, D:2 * D])
    g = torch.tanh(gates[:, 2 * D:3 * D])
    o = torch.sigmoid(gates[:, 3 * D:])
    c_new = f * c + i * g
    h_new = o * torch.tanh(c_new)
    return h_new, c_new""",
        """
    gates = torch.einsum("bi,gi->bg", x, weight_ih) + torch.einsum("bd,gd->bg", h, weight_hh) + bias
    i, f, g, o = torch.split(gates, h.size(1), dim=1)
    i, f, o = map(torch.sigmoid, (i, f, o))
    c = f * c + i * g.tanh()
    return o * c.tanh(), c""",
        """
    W_i, W_f, W_g, W_o = weight_ih.chunk(4)
    U_i, U_f, U_g, U_o = weight_hh.chunk(4)
    b_i, b_f, b_g, b_o = bias.chunk(4)
    write = torch.sigmoid(x @ W_i.T + h @ U_i.T + b_i)
    keep = torch.sigmoid(x @ W_f.T + h @ U_f.T + b_f)
    new = torch.tanh(x @ W_g.T + h @ U_g.T + b_g)
    show = torch.sigmoid(x @ W_o.T + h @ U_o.T + b_o)
    c = keep * c + write * new
    return show * torch.tanh(c), c""",
    ],
    "ex05-5-gru-weights": [
        """
    weights = torch.ones_like(z[:1])
    for gate in z:
        weights = torch.cat([weights * gate, (1 - gate)[None]])
    return weights""",
        """
    T, D = z.shape
    out = torch.zeros(T + 1, D)
    for i in range(T + 1):
        w = torch.ones(D) if i == 0 else 1 - z[i - 1]
        for j in range(i, T):
            w = w * z[j]
        out[i] = w
    return out""",
        """
    kept = torch.cat([z.flip(0).cumprod(0).flip(0), torch.ones_like(z[:1])])
    written = torch.cat([torch.ones_like(z[:1]), 1 - z])
    return kept * written""",
        """
    rows = [z.prod(dim=0)]
    for i in range(1, len(z) + 1):
        rows.append((1 - z[i - 1]) * z[i:].prod(dim=0))
    return torch.stack(rows)""",
        """
    def weight(i):
        rest = z[i:].prod(0)
        return rest if i == 0 else (1 - z[i - 1]) * rest
    return torch.stack([weight(i) for i in range(z.shape[0] + 1)])""",
    ],
    "ex05-7-last-states": [
        """
    B, D = len(output), output.shape[2] // 2
    forward = output[torch.arange(B), lengths - 1, :D]
    backward = output[:, 0, D:]
    return torch.cat([forward, backward], dim=1)""",
        """
    rows = []
    half = output.size(-1) // 2
    for b, n in enumerate(lengths.tolist()):
        rows.append(torch.cat((output[b, n - 1, :half], output[b, 0, half:])))
    return torch.stack(rows)""",
        """
    D = output.shape[-1] // 2
    index = (lengths - 1).view(-1, 1, 1).expand(-1, 1, D)
    last = output[..., :D].gather(1, index).squeeze(1)
    return torch.cat([last, output[:, 0, D:]], -1)""",
        """
    forward, backward = output.chunk(2, dim=-1)
    return torch.hstack([forward[range(len(lengths)), lengths - 1], backward[:, 0]])""",
    ],
    "ex07-2-dot-product-attention": [
        """
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    T, S = scores.shape[-2:]
    visible = torch.ones_like(scores, dtype=torch.bool)
    if causal:
        visible = visible.tril(S - T)
    if mask is not None:
        visible = visible & mask
    weights = scores.masked_fill(~visible, -math.inf).softmax(-1)
    return weights.masked_fill(~visible, 0.0) @ v""",
        """
    scores = torch.matmul(q, k.transpose(-2, -1)) / q.size(-1) ** 0.5
    T, S = q.size(-2), k.size(-2)
    if causal:
        t = torch.arange(T)[:, None] + S - T
        scores = scores.masked_fill(torch.arange(S)[None] > t, float("-inf"))
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    weights = torch.softmax(scores, dim=-1)
    return torch.nan_to_num(weights) @ v""",
        """
    scores = torch.einsum("...tk,...sk->...ts", q, k) * k.shape[-1] ** -0.5
    allowed = torch.ones(scores.shape[-2:], dtype=torch.bool)
    allowed = torch.tril(allowed, diagonal=k.shape[-2] - q.shape[-2]) if causal else allowed
    allowed = allowed if mask is None else allowed & mask
    e = torch.where(allowed, (scores - scores.amax(-1, keepdim=True)).exp(), 0.0)
    total = e.sum(-1, keepdim=True)
    return torch.einsum("...ts,...sv->...tv", e / total.clamp_min(1e-30), v)""",
        """
    T, S, K = q.shape[-2], k.shape[-2], q.shape[-1]
    bias = torch.zeros(T, S)
    if causal:
        for t in range(T):
            bias[t, S - T + t + 1:] = -torch.inf
    if mask is not None:
        bias = bias + torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    weights = ((q / K ** 0.5) @ k.transpose(-1, -2) + bias).softmax(-1)
    return weights.nan_to_num(0) @ v""",
        """
    logits = (q.unsqueeze(-2) * k.unsqueeze(-3)).sum(-1) / math.sqrt(k.size(-1))
    hidden = torch.zeros_like(logits).bool()
    if mask is not None:
        hidden |= ~mask
    if causal:
        hidden |= torch.ones_like(logits).triu(logits.size(-1) - logits.size(-2) + 1).bool()
    p = logits.masked_fill(hidden, -1e30).softmax(dim=-1) * ~hidden
    return p @ v""",
    ],
}


def answer(grade_id, version):
    return GIVEN[grade_id].replace("\n    raise NotImplementedError()", VERSIONS[grade_id][version])


def class_of(size, seed, share=None):
    """{grade_id: what `report` takes}: everybody takes a usual way at random, word for word, each exercise for itself.

    That is harder than a real class, in which two who go the same way still write it differently.
    """
    draw = random.Random(seed)
    exercises = {}
    for grade_id, versions in VERSIONS.items():
        taken = draw.choices(range(len(versions)), share and share[: len(versions)], k=size)
        answers = {f"s{k:02}": answer(grade_id, version) for k, version in enumerate(taken)}
        exercises[grade_id] = ["code", answers, [GIVEN[grade_id]], answer(grade_id, 0)]
    return exercises


SLOTS = """\
gates = x @ weight_ih.T + h @ weight_hh.T + bias | gates = h @ weight_hh.T + x @ weight_ih.T + bias
    | gates = F.linear(x, weight_ih, bias) + F.linear(h, weight_hh)
    | gates = x @ weight_ih.t() + bias + h @ weight_hh.t()
    | gates = torch.matmul(x, weight_ih.T) + torch.matmul(h, weight_hh.T) + bias
i, f, g, o = gates.chunk(4, dim=1) | i, f, g, o = gates.chunk(4, -1) | i, f, g, o = torch.chunk(gates, 4, dim=1)
    | i, f, g, o = gates.split(h.shape[1], dim=1) | i, f, g, o = torch.split(gates, h.shape[-1], dim=-1)
i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid() | i, f, o = torch.sigmoid(i), torch.sigmoid(f), torch.sigmoid(o)
    | f, i, o = (torch.sigmoid(a) for a in (f, i, o)) | i = torch.sigmoid(i); f = torch.sigmoid(f); o = torch.sigmoid(o)
c_new = f * c + i * torch.tanh(g) | c_new = f * c + i * g.tanh() | c_new = c * f + g.tanh() * i
    | g = torch.tanh(g); c_new = f * c + i * g
return o * c_new.tanh(), c_new | return o * torch.tanh(c_new), c_new | h = o * torch.tanh(c_new); return h, c_new
"""


def textbook(seed):
    """{student: answer} of twenty who go the same way, each line as they like."""
    draw = random.Random(seed)
    slots = [line.split(" | ") for line in SLOTS.replace("\n    |", " |").strip().split("\n")]
    head = GIVEN["ex05-1-lstm-cell"].partition("\n")[0]
    return {f"s{k:02}": "\n    ".join([head, *map(draw.choice, slots)]) for k in range(20)}


def reports(exercises, exercise=None):
    return [pair for pair in alike.report(exercises) if exercise in (None, pair.exercise)]


OWN = """
    batch, width = h.shape
    pieces = []
    for number in range(4):
        rows = slice(number * width, (number + 1) * width)
        total = bias[rows].expand(batch, width).clone()
        for k in range(x.shape[1]):
            total += x[:, k:k + 1] * weight_ih[rows, k]
        for k in range(width):
            total += h[:, k:k + 1] * weight_hh[rows, k]
        pieces.append(total)
    keep = 1 / (1 + (-pieces[1]).exp())
    write = 1 / (1 + (-pieces[0]).exp())
    show = 1 / (1 + (-pieces[3]).exp())
    candidate = 2 / (1 + (-2 * pieces[2]).exp()) - 1
    cell = keep * c + write * candidate
    return show * (2 / (1 + (-2 * cell).exp()) - 1), cell"""


def renamed(source):
    """The same with other names, comments, a docstring and blanks."""
    names = {"batch": "n", "width": "hidden_size", "pieces": "parts", "rows": "sl", "total": "acc", "keep": "fg",
             "write": "ig", "show": "og", "candidate": "gg", "cell": "new_cell", "number": "q", "k": "col"}  # fmt: skip
    source = re.sub(r"\b(" + "|".join(names) + r")\b", lambda m: names[m[0]], source)
    lines = [f"{line}  # step {k}" if k % 2 else line.replace(" * ", "*") for k, line in enumerate(source.split("\n"))]
    return "\n".join([lines[0], '    """My own work."""', "", *lines[1:]])


def reordered(source):
    """The same with statements in another order, where this changes nothing."""
    lines = source.split("\n")
    gates = [k for k, line in enumerate(lines) if "1 / (1 +" in line and "=" in line]
    first, second, third = gates[0], gates[1], gates[2]
    lines[first], lines[second], lines[third] = lines[third], lines[first], lines[second]
    return "\n".join(lines)


def with_copy(change, seed=0):
    exercises = class_of(20, seed)
    original = GIVEN["ex05-1-lstm-cell"].replace("\n    raise NotImplementedError()", OWN)
    exercises["ex05-1-lstm-cell"][1] |= {"s03": original, "s11": change(original)}
    return exercises


# What must be found.


@pytest.mark.parametrize(
    "change", [str, renamed, reordered, lambda text: reordered(renamed(text)), lambda text: text + "\n    print(1)"]
)
def test_a_copy_is_found(change):
    """Fails if other names, comments, blanks or another order hide a copy, or the innocent are reported with it."""
    (pair,) = reports(with_copy(change), "5.1")
    assert pair.students == ("s03", "s11")
    assert pair.likeness > 0.8
    assert pair.shared_by == 2
    assert pair.answers == 20
    assert pair.longest >= 40


def test_half_a_copy_is_found():
    half = "\n".join(OWN.split("\n")[:12]) + "\n    return finish(pieces, c)"
    given = GIVEN["ex05-1-lstm-cell"]
    answers = textbook(0) | {"s03": given.partition("\n")[0] + OWN, "s11": renamed(given.partition("\n")[0] + half)}
    (pair,) = reports({"ex05-1-lstm-cell": ("code", answers, [given], answer("ex05-1-lstm-cell", 0))})
    assert pair.students == ("s03", "s11")
    assert pair.common >= 100


def test_a_group_is_found():
    exercises = with_copy(renamed)
    exercises["ex05-1-lstm-cell"][1]["s17"] = reordered(exercises["ex05-1-lstm-cell"][1]["s03"])
    found = reports(exercises, "5.1")
    assert {pair.students for pair in found} == {("s03", "s11"), ("s03", "s17"), ("s11", "s17")}
    assert {pair.shared_by for pair in found} == {3}


def test_two_who_share_rare_short_answers_again_and_again_are_found_together():
    """Fails if a copy of short answers is seen in none of them, since each alone may be chance."""
    exercises = class_of(20, 1, share=[8, 8, 1, 0, 0])
    rare = {"ex05-1-lstm-cell": 4, "ex05-5-gru-weights": 4, "ex05-7-last-states": 2, "ex07-2-dot-product-attention": 4}
    for grade_id, version in rare.items():
        exercises[grade_id][1].update(dict.fromkeys(("s03", "s11"), answer(grade_id, version)))
    assert ("s03", "s11") in {pair.students for pair in reports(exercises, "all")}


# What must not.


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("share", [None, [8, 5, 3, 2, 2]])
def test_right_answers_of_one_s_own_are_not_reported(share, seed):
    """Fails if students who chose the same of a few usual ways are called alike."""
    assert reports(class_of(20, seed, share)) == []


@pytest.mark.parametrize("seed", range(8))
def test_one_way_in_many_words_is_not_reported(seed):
    """Fails if those who go the textbook's way are called alike."""
    given = [GIVEN["ex05-1-lstm-cell"]]
    assert reports({"ex05-1-lstm-cell": ("code", textbook(seed), given, answer("ex05-1-lstm-cell", 0))}) == []


@pytest.mark.parametrize("grade_id", list(GIVEN))
def test_the_reference_solution_is_nobody_s(grade_id):
    """Fails if two who write what the course itself writes are reported."""
    answers = {"a": answer(grade_id, 0), "b": renamed(answer(grade_id, 0)), "c": GIVEN[grade_id], "d": GIVEN[grade_id]}
    assert reports({grade_id: ("code", answers, [GIVEN[grade_id]], answer(grade_id, 0))}) == []


# Written answers.

WRITTEN = [
    "What is left of the cell is the gate to the power of the lag. At a lag of 64 a bias of 1 leaves nothing at all, "
    "so no gradient comes back and the loss stays where guessing puts it. I needed a bias of 5 before any learning.",
    "With more lag one needs a higher bias. My table shows 0.2 at lag 8 and 1.0 at lag 16 for the bias 3, and I think "
    "that saturation is the reason why 20 fails: sigmoid has no slope there.",
    "The product of the forget gates decides. If every gate is one half, ten steps leave a thousandth. That is why the "
    "first token has no influence, and why training finds nothing to improve for a long while.",
]


def test_a_copied_text_is_found_and_others_are_not():
    """Fails if changed words hide a copied text, or texts on the same subject are called copies."""
    changed = WRITTEN[0].replace("at all", "").replace("I needed", "We needed").replace("comes", "flows")
    answers = {"ada": WRITTEN[0], "bob": changed.upper(), "cleo": WRITTEN[1], "dan": WRITTEN[2]}
    (pair,) = reports({"ex05-6-explain": ("markdown", answers, ["*Write your answer here.*"], "")})
    assert (pair.students, pair.unit, pair.exercise) == (("ada", "bob"), "words", "5.6")
    assert reports({"ex05-6-explain": ("markdown", answers, [WRITTEN[0]], "")}) == []  # everybody was given it


# A course's folder.


def notebook(path, cells):
    path.parent.mkdir(parents=True, exist_ok=True)
    made = [
        {
            "cell_type": kind,
            "source": source,
            "metadata": {"nbgrader": {"grade_id": name, "solution": "check" not in name}} if name else {},
        }
        for name, kind, source in cells
    ]
    path.write_text(json.dumps({"cells": made, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}), "utf8")


@pytest.fixture
def course(tmp_path):
    """Twelve students, two of whom share an answer and a helper; four files that cannot be read."""
    name, file = "ex05-1-lstm-cell", "05_lstm.ipynb"
    given = [("", "code", "import torch"), (name, "code", GIVEN[name])]
    hidden = renamed(OWN).replace("sl", "hidden")  # in a check's cell, where grading puts it
    check = f"{name}-check"
    notebook(tmp_path / "release/homework1" / file, [*given, (check, "code", "check(lstm_cell)")])
    solved = f"### BEGIN SOLUTION\n{answer(name, 0)}\n### END SOLUTION"
    notebook(tmp_path / "source/homework1" / file, [given[0], (name, "code", solved)])
    for k in range(10):
        own = answer(name, k % 5) + f"\n    y{k} = {k}"
        cells = [given[0], (name, "code", own), (check, "code", hidden)]
        notebook(tmp_path / f"submitted/s{k:02}/homework1" / file, cells[: 2 + (k < 2)])
    copied = GIVEN[name].replace("\n    raise NotImplementedError()", OWN)
    notebook(tmp_path / "autograded/=ada/homework1" / file, [(name, "code", GIVEN[name])])  # what is submitted counts
    notebook(tmp_path / "submitted/=ada/homework1" / file, [given[0], (name, "code", copied), ("", "code", OWN)])
    notebook(tmp_path / "submitted/bob/homework1" / file,
             [given[0], (name, "code", reordered(renamed(copied))), ("", "code", renamed(OWN))])  # fmt: skip
    bad = tmp_path / "submitted/bad/homework1" / file
    for student, content in (("deep", "[" * 100_000), ("list", "[]"), ("odd", '{"cells": [{"source": [1]}]}')):
        (bad.parents[2] / student / "homework1").mkdir(parents=True)
        (bad.parents[2] / student / "homework1" / file).write_text(content, "utf8")
    bad.parent.mkdir(parents=True)
    bad.symlink_to(tmp_path / "source/homework1" / file)
    return tmp_path


def test_the_program(course, capsys):
    """Fails if a submission stops the others, a link is followed, or a student's text gets into the report."""
    alike.main(["--course", str(course), "--name", "homework1"])
    said = capsys.readouterr().out
    rows = list(csv.reader((course / "alike/homework1.csv").read_text("utf-8-sig").splitlines()))
    assert {row[0] for row in rows[1:]} == {"5.1", "own cells 05_lstm.ipynb", "all"}
    assert {tuple(row[1:3]) for row in rows[1:]} == {("'=ada", "bob")}
    assert "a reason to read both, not a verdict" in said
    for student in ("bad", "deep", "list", "odd"):
        assert f"{student}: 05_lstm.ipynb is left out: it" in said
    assert "candidate" not in said + str(rows)


def test_what_was_not_released_is_refused(tmp_path, capsys):
    with pytest.raises(SystemExit):
        alike.main(["--course", str(tmp_path), "--name", "homework1"])
    assert "wanted an assignment that `make release` made" in capsys.readouterr().err


def test_nothing_alike_is_said_so():
    assert alike.as_text([]) == ["No answers are more alike than is usual for the same exercise."]


# Tokens.


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("a = b(c)  # c", "x=y( z )"),
        ("x = 1; y = 2", "p = 1\nq = 2"),
        ("f(a,\n  b)", "f(x, y)"),
        ("x = 1 + \\\n 2", "x = 1 + 2"),
        ('print("a")', "print(f'{b}')"),
        ("self.a = 1\nself.a.sum()", "self.b = 1\nself.b.sum()"),
        ('def f():\n    """Doc\n    string."""\n    return 1', "def g():\n    return 1"),
    ],
)
def test_what_does_not_count(one, other):
    assert alike.fingerprints(alike.code_tokens(one), 5) == alike.fingerprints(alike.code_tokens(other), 5)


@pytest.mark.parametrize(
    ("one", "other"),
    [("x = a + b", "x = a - b"), ("x.sum()", "x.mean()"), ("x = a + a", "x = a + b"), ("x = 0.5", "x = 0.25")],
)
def test_what_counts(one, other):
    assert alike.fingerprints(alike.code_tokens(one), 3) != alike.fingerprints(alike.code_tokens(other), 3)


@pytest.mark.parametrize("source", ["def f(:", "'''", "%matplotlib inline\n!ls", "x?", "(((", "\\", "é = 1", "\0"])
def test_whatever_is_no_python_has_tokens_too(source):
    assert alike.code_tokens(f"{source}\nx = 1")
