"""The reminder that asks for own code: it refuses no honest answer, and sees the ordinary ready-made call."""

import re
import time

import pytest

from classroom import exercises, hidden
from classroom.own_code import LONGEST, defines, used
from tools.notebooks import editions

LSTM, GRU = "ex05-1-lstm-cell-check", "ex05-3-gru-cell-check"


def without(grade_id):
    return hidden.tests(grade_id[2:4])[grade_id].without


def cells(text):
    """Cells, divided by lines of dashes."""
    return re.split(r"^---$", text.strip("\n"), flags=re.MULTILINE)


HONEST = {
    "a local variable called gated": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    gated = (x @ weight_ih.T + h @ weight_hh.T + bias).chunk(4, 1)
    i, f, g, o = gated
    return i, gated[0]
"""),
    "a local variable called number_of_parameters": ("ex12-6-bert-parameters-check", "bert_parameters", """
def bert_parameters(V, L, D, N, F):
    number_of_parameters = 0
    for rows in (V, L, 2):
        number_of_parameters += rows * D
    return number_of_parameters
"""),
    "a local variable called parameters, summed up in a loop": ("ex13-6-training-memory-check", "training_memory", """
def training_memory(V, L, D, N):
    parameters = V * D
    parameters += L * D
    return parameters, 16 * parameters
"""),
    "sizes of shapes, without a model": ("ex12-6-bert-parameters-check", "bert_parameters", """
def bert_parameters(V, L, D, N, F):
    shapes = [(V, D), (L, D), (2, D), *[(D, D), (D,)] * 4 * N]
    return sum(torch.Size(shape).numel() for shape in shapes)
"""),
    "a local variable called sinusoidal_table": ("ex08-2-position-table-check", "position_table", """
def position_table(length, width):
    sinusoidal_table = torch.zeros(length, width)
    sinusoidal_table[:, 0::2] = angles(length, width).sin()
    return sinusoidal_table
---
def angles(length, width):
    return torch.arange(length)[:, None] * 10000 ** (-torch.arange(0, width, 2) / width)
"""),
    "an inner function called split_heads": ("ex07-3-split-check", "split", """
def split(x, H):
    def split_heads(row):
        return row.chunk(H, -1)
    return torch.stack(split_heads(x), 1)
"""),
    "a helper called multi_head": ("ex10-1-attention-operations-check", "attention_operations", """
def multi_head(T, D):
    return 4 * T * T * D
---
def attention_operations(B, T, D, H, K):
    return B * (8 * T * D * H * K + multi_head(T, H * K))
"""),
    "a number called cost": ("ex10-1-attention-operations-check", "attention_operations", """
def attention_operations(B, T, D, H, K):
    cost = 0
    for _ in range(4):
        cost += 2 * B * T * D * H * K
    return cost
"""),
    "a helper called backward": ("ex13-1-tied-gradient-check", "tied_gradient", """
def backward(error, x):
    return error.T @ x
def tied_gradient(table, ids, targets):
    return backward(table[ids], table[targets])
"""),
    "a method called backward of an own class": ("ex04-3-leaky-backward-check", "leaky_backward", """
class Step:
    def __init__(self, alpha):
        self.alpha = alpha
    def backward(self, dh):
        return self.alpha * dh
---
def leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    return Step(alpha).backward(do)
"""),
    "a variable called grad": ("ex11-1-layer-norm-backward-check", "layer_norm_backward", """
def layer_norm_backward(x, gradient, eps=1e-5):
    grad = gradient - gradient.mean(-1, keepdim=True)
    jacobian = grad * x
    return grad - jacobian.mean(-1, keepdim=True)
"""),
    "a variable called GRU": (GRU, "gru_cell", """
def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    GRU = x @ weight_ih.T + bias_ih
    r, z, n = GRU.chunk(3, 1)
    return r
"""),
    "an own class LSTMCell in another cell": (LSTM, "lstm_cell", """
class LSTMCell:
    def __init__(self, *weights):
        self.weights = weights
    def __call__(self, x, h, c):
        return self.gates(x, h)
    def gates(self, x, h):
        return x, h
---
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return LSTMCell(weight_ih, weight_hh, bias)(x, h, c)
"""),
    "an own cell that compares with torch": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return torch.tanh(c), c
---
from torch import nn
torch_cell = nn.LSTMCell(3, 4)
x, h, c = torch.zeros(2, 3), torch.zeros(2, 4), torch.zeros(2, 4)
mine = lstm_cell(x, h, c, torch_cell.weight_ih, torch_cell.weight_hh, torch_cell.bias_ih + torch_cell.bias_hh)
print(torch.allclose(mine[0], torch_cell(x, (h, c))[0]), torch.lstm_cell(x, (h, c), *torch_cell.parameters()))
"""),
    "an earlier attempt with the ready function": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return nn.LSTMCell(3, 4)(x, (h, c))
---
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return torch.tanh(c), c
"""),
    "a helper whose first version called it": (LSTM, "lstm_cell", """
def one_step(*given):
    return lstm_step(*given)
---
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return one_step(x, h, c)
---
def one_step(x, h, c):
    return torch.tanh(c), c
"""),
    "an import that nobody uses": (LSTM, "lstm_cell", """
from course_lib.lstm_gru import lstm_step, LSTM
import torch.nn as nn
---
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    from torch.nn import LSTMCell
    return torch.tanh(c), c
"""),
    "words in comments, strings and keys": (LSTM, "lstm_cell", '''
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    """One step, as in nn.LSTMCell and gated.lstm_step."""
    parts = {"LSTM": x}  # torch.lstm_cell does the same
    print("LSTMCell", f"{c} gated")
    return parts["LSTM"], c
'''),
    "keyword arguments of the same name": (LSTM, "lstm_cell", """
def helper(x, LSTM=None, gated=True):
    return x if gated else LSTM
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return helper(c, LSTM=h, gated=False), c
"""),
    "annotations and isinstance": (LSTM, "lstm_cell", """
def lstm_cell(x: torch.Tensor, h, c, weight_ih: "LSTM", weight_hh, bias, like: nn.LSTMCell = None) -> nn.LSTM:
    kind: nn.LSTM = None
    if isinstance(like, nn.LSTMCell):
        c = c * 1
    return torch.tanh(c), c
"""),
    "an assertion inside": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    new = torch.tanh(c)
    assert torch.allclose(new, torch.lstm_cell(x, (h, c), weight_ih, weight_hh)[0])
    return new, c
"""),
    "every other way to bind a name": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    for LSTM in (x, h):
        c = c + LSTM.mean()
    with torch.no_grad() as gated:
        c = gated or c
    import math as LSTMCell
    rows = [lstm_step + 1 for lstm_step in (1, 2)]
    if (lstm_gates := c.sum()) > 0:
        c = c * lstm_gates * LSTMCell.pi
    return (lambda lstm_loop: lstm_loop + 1)(c), {lstm: lstm for lstm in rows}
"""),
    "a parameter called without its meaning": ("ex03-1-rnn-forward-check", "rnn_forward", """
def rnn_forward(x, h, weight_ih, weight_hh, bias):
    def scan(step, state):
        return [state := step(each, state) for each in x.unbind(1)]
    RNN = scan(lambda each, h: torch.tanh(each @ weight_ih.T + h @ weight_hh.T + bias), h)
    return torch.stack(RNN, 1), RNN[-1]
"""),
    "padding tools of torch's module rnn": ("ex03-1-rnn-forward-check", "rnn_forward", """
def rnn_forward(x, h, weight_ih, weight_hh, bias):
    states = [h := torch.tanh(each @ weight_ih.T + h @ weight_hh.T + bias) for each in x.unbind(1)]
    return torch.nn.utils.rnn.pad_sequence(states), h
"""),
    "a variable called attention": ("ex07-2-dot-product-attention-check", "dot_product_attention", """
def dot_product_attention(q, k, v, mask=None, causal=False):
    attention_scores = q @ k.mT
    attention_weights = attention_scores.softmax(-1)
    attention = attention_weights @ v
    return attention
"""),
    "an own method called layer_norm": ("ex09-1-layer-norm-check", "layer_norm", """
class Norm:
    def layer_norm(self, x, eps):
        return (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
---
def layer_norm(x, weight, bias, eps):
    return Norm().layer_norm(x, eps) * weight + bias
"""),
    "a class as answer": ("ex09-1-layer-norm-check", "layer_norm", """
class MyNorm:
    def __call__(self, x, weight, bias, eps):
        return weight * (x - x.mean(-1, keepdim=True)) / (x.var(-1, correction=0, keepdim=True) + eps) ** 0.5 + bias
    def compare(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:])
layer_norm = MyNorm()
"""),
    "recursion": ("ex01-1-ar-forecast-check", "ar_forecast", """
def ar_forecast(past, weights, bias, horizon):
    if horizon == 0:
        return past[:0]
    forecast = bias + weights @ past[-len(weights):].flip(0)
    return torch.cat([forecast[None], ar_forecast(torch.cat([past, forecast[None]]), weights, bias, horizon - 1)])
"""),
    "a decorated answer": (GRU, "gru_cell", """
def watched(f):
    return lambda *given: f(*given)
@watched
def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    return h
gru_cell = torch.no_grad()(gru_cell)
"""),
    "a cell with magic, another that cannot be read": (LSTM, "lstm_cell", """
get_ipython().run_cell_magic("time", "", "def lstm_cell(x, h, c, *w):\\n    return torch.tanh(c), c\\n")
---
def half(:
"""),
    "math.dist and Tensor.norm beside a clipping of one's own": ("ex04-6-training-step-check", "training_step", """
def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    clip_norm = torch.nn.utils.get_total_norm(weights)
    return [W.clone() for W in weights], h_0, clip_norm
"""),
    "F.layer_norm where it is allowed": ("ex09-3-encoder-block-check", "encoder_block", """
def encoder_block(x, mask, p, num_heads):
    attention = F.linear(x, p["in_proj_weight"])
    return F.layer_norm(attention, (x.shape[-1],), p["gain1"], p["offset1"])
"""),
    "a dictionary of merged pieces": ("ex12-4-wordpiece-check", "wordpiece", """
tokenizers = {"a": 1}
def wordpiece(word, vocab):
    tokenizer = sorted(vocab, key=len)
    return [piece for piece in tokenizer if piece in tokenizers]
"""),
}  # fmt: skip

READY = {
    "nn.LSTMCell": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    cell = nn.LSTMCell(x.shape[1], h.shape[1])
    return cell(x, (h, c))
""", "LSTMCell"),
    "torch.lstm_cell": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return torch.lstm_cell(x, (h, c), weight_ih, weight_hh, bias)
""", "lstm_cell"),
    "torch.gru_cell": (GRU, "gru_cell", """
def gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh):
    return torch.gru_cell(x, h, weight_ih, weight_hh, bias_ih, bias_hh)
""", "gru_cell"),
    "torch._VF": (GRU, "gru_cell", """
from torch import _VF
def gru_cell(*given):
    return _VF.gru_cell(*given)
""", "gru_cell"),
    "the library's step, by its name": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    return lstm_step(x, h, c, weight_ih, weight_hh, bias)
""", "lstm_step"),
    "the library's step, by its module": (LSTM, "lstm_cell", """
def lstm_cell(*given):
    return gated.lstm_step(*given)
""", "lstm_step"),
    "the answer is the ready function": (GRU, "gru_cell", "gru_cell = gated.gru_step", "gru_step"),
    "an alias in another cell": (LSTM, "lstm_cell", """
Cell = nn.LSTMCell
---
def lstm_cell(x, h, c, *w):
    return Cell(3, 4)(x, (h, c))
""", "LSTMCell"),
    "an alias of the module": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, *w):
    layers = torch.nn
    return layers.LSTMCell(3, 4)(x, (h, c))
""", "LSTMCell"),
    "a helper in another cell, below": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, *w):
    return by_torch(x, h, c)
---
def by_torch(x, h, c):
    return nn.LSTM(3, 4)(x)
""", "LSTM"),
    "a helper of a helper": ("ex03-1-rnn-forward-check", "rnn_forward", """
def last(x):
    return nn.RNN(3, 4)(x)
def first(x):
    return last(x)
def rnn_forward(x, *rest):
    return first(x)
""", "RNN"),
    "import under another name": (GRU, "gru_cell", """
from course_lib.lstm_gru import gru_step as g
def gru_cell(*given):
    return g(*given)
""", "gru_step"),
    "import inside": (GRU, "gru_cell", """
def gru_cell(x, h, *w):
    import torch.nn as layers
    return layers.GRUCell(3, 4)(x, h)
""", "GRUCell"),
    "getattr": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, *w):
    return getattr(torch, "lstm_cell")(x, (h, c), *w)
""", "lstm_cell"),
    "vars": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, *w):
    return vars(torch)["lstm_cell"](x, (h, c), *w)
""", "lstm_cell"),
    "an own class on top of torch's": (LSTM, "lstm_cell", """
class Mine(torch.nn.LSTMCell):
    pass
def lstm_cell(x, h, c, *w):
    return Mine(3, 4)(x, (h, c))
""", "LSTMCell"),
    "a module in an own module": ("ex09-3-encoder-block-check", "encoder_block", """
class Block(nn.Module):
    def __init__(self, D, H):
        super().__init__()
        self.attention = nn.MultiheadAttention(D, H)
    def forward(self, x):
        return self.attention(x, x, x)[0]
---
def encoder_block(x, mask, p, num_heads):
    return Block(x.shape[-1], num_heads)(x)
""", "MultiheadAttention"),
    "an object made at the top level": (GRU, "gru_cell", """
cells = [nn.GRUCell(3, 4) for _ in range(2)]
def gru_cell(x, h, *w):
    return cells[0](x, h)
""", "GRUCell"),
    "inside a comprehension and a lambda": ("ex03-1-rnn-forward-check", "rnn_forward", """
def rnn_forward(x, h, *w):
    step = lambda each: torch.rnn_tanh_cell(each, h, *w)
    return [step(each) for each in x]
""", "rnn_tanh_cell"),
    "scaled_dot_product_attention": ("ex07-2-dot-product-attention-check", "dot_product_attention", """
def dot_product_attention(q, k, v, mask=None, causal=False):
    return F.scaled_dot_product_attention(q, k, v, mask)
""", "scaled_dot_product_attention"),
    "the library's attention": ("ex07-2-dot-product-attention-check", "dot_product_attention", """
def dot_product_attention(q, k, v, mask=None, causal=False):
    return attention(q, k, v, mask, causal)
""", "attention"),
    "split_heads": ("ex07-3-split-check", "split", "split = split_heads", "split_heads"),
    "native_layer_norm": ("ex09-1-layer-norm-check", "layer_norm", """
def layer_norm(x, weight, bias, eps):
    return torch.native_layer_norm(x, weight.shape, weight, bias, eps)[0]
""", "native_layer_norm"),
    "F.layer_norm in a function of its name": ("ex09-1-layer-norm-check", "layer_norm", """
import torch.nn.functional as F
def layer_norm(x, weight, bias, eps):
    return F.layer_norm(x, weight.shape, weight, bias, eps)
""", "layer_norm"),
    "group_norm": ("ex09-1-layer-norm-check", "layer_norm", """
def layer_norm(x, weight, bias, eps):
    return torch.group_norm(x.flatten(0, 1), 1, weight, bias, eps).view_as(x)
""", "group_norm"),
    "autograd.grad": ("ex11-1-layer-norm-backward-check", "layer_norm_backward", """
def layer_norm_backward(x, gradient, eps=1e-5):
    x = x.detach().requires_grad_()
    y = (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + eps).sqrt()
    return torch.autograd.grad(y, x, gradient)[0]
""", "grad"),
    "backward": ("ex13-1-tied-gradient-check", "tied_gradient", """
def tied_gradient(table, ids, targets):
    table = table.clone().requires_grad_()
    loss = F.cross_entropy(table[ids] @ table.T, targets)
    loss.backward()
    return table.grad
""", "backward"),
    "backward of something just made": ("ex13-1-tied-gradient-check", "tied_gradient", """
def tied_gradient(table, ids, targets):
    F.cross_entropy(table[ids] @ table.T, targets).backward()
    return table.grad
""", "backward"),
    "torch.func.vjp": ("ex11-1-layer-norm-backward-check", "layer_norm_backward", """
from torch.func import vjp
def layer_norm_backward(x, gradient, eps=1e-5):
    return vjp(lambda z: z - z.mean(-1, keepdim=True), x)[1](gradient)[0]
""", "vjp"),
    "clip_grad_norm_": ("ex04-6-training-step-check", "training_step", """
def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    norm = torch.nn.utils.clip_grad_norm_([nn.Parameter(W) for W in weights], max_norm)
    return list(weights), h_0, norm
""", "clip_grad_norm_"),
    "alibi_slopes": ("ex08-5-alibi-bias-check", "alibi_bias", """
def alibi_bias(num_heads, T, S):
    return -alibi_slopes(num_heads)[:, None, None] * distances(T, S).abs()
""", "alibi_slopes"),
    "the library's cost": ("ex10-1-attention-operations-check", "attention_operations", """
def attention_operations(B, T, D, H, K):
    return formulas.multi_head_cost(B, T, D, H).operations
""", "formulas"),
    "parameters of a model": ("ex12-6-bert-parameters-check", "bert_parameters", """
def bert_parameters(V, L, D, N, F):
    return sum(p.numel() for p in BERT(BERTConfig(V, D, N, 1, F, L)).parameters())
""", "BERT"),
    "series.forecast": ("ex01-1-ar-forecast-check", "ar_forecast", """
def ar_forecast(past, weights, bias, horizon):
    return series.forecast(past, weights, bias, horizon)
""", "forecast"),
    "the definition before the last one, wrapped": (LSTM, "lstm_cell", """
def lstm_cell(x, h, c, *w):
    return nn.LSTMCell(3, 4)(x, (h, c))
---
lstm_cell = torch.no_grad()(lstm_cell)
""", "LSTMCell"),
    "inside %%time": (LSTM, "lstm_cell", """
get_ipython().run_cell_magic("time", "", "def lstm_cell(x, h, c, *w):\\n    return nn.LSTMCell(3, 4)(x, (h, c))\\n")
""", "LSTMCell"),
    "inside if, try and with at the top level": (GRU, "gru_cell", """
try:
    with torch.no_grad():
        if True:
            ready = gated.gru_step
except ImportError:
    pass
---
def gru_cell(*given):
    return ready(*given)
""", "gru_step"),
    "a method that is called": (GRU, "gru_cell", """
class Tools:
    def one(self, *given):
        return gru_step(*given)
---
def gru_cell(*given):
    return Tools().one(*given)
""", "gru_step"),
}  # fmt: skip


@pytest.mark.parametrize(("grade_id", "answer", "text"), HONEST.values(), ids=HONEST)
def test_nothing_is_held_against_honest_code(grade_id, answer, text):
    """Fails if an honest answer is refused for a name, a comment, a comparison."""
    assert used(cells(text), answer, without(grade_id)) == []


@pytest.mark.parametrize(("grade_id", "answer", "text", "name"), READY.values(), ids=READY)
def test_the_ready_made_call_is_seen(grade_id, answer, text, name):
    """Fails if an ordinary call of the ready function passes."""
    assert name in used(cells(text), answer, without(grade_id))


def test_there_are_enough_programs():
    """Fails if the two tables shrink."""
    assert min(len(HONEST), len(READY)) >= 25


ALL = [(path.stem[:2], test) for path in editions.sources() for test in hidden.tests(path.stem[:2]).values()]


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=[test.grade_id for _, test in ALL])
def test_no_reference_uses_what_its_exercise_forbids(chapter, test):
    """Fails if an exercise forbids what its own solution uses."""
    path = next(p for p in editions.sources() if p.stem.startswith(chapter))
    solutions = [cell.source for cell in editions.chapter(path).cells if editions.is_solution(cell)]
    assert defines(solutions, test.answer)
    assert used(solutions, test.answer, test.without) == []


SAID = re.compile(r"\b(without|yourself|no call of)\b", re.IGNORECASE)


@pytest.mark.parametrize(("chapter", "test"), ALL, ids=[test.grade_id for _, test in ALL])
def test_what_is_forbidden_is_said(chapter, test):
    """Fails if an exercise has forbidden names, and its text no word of it."""
    path = next(p for p in editions.sources() if p.stem.startswith(chapter))
    chapter_cells = editions.student(editions.chapter(path)).cells
    exercise = next(e for e in exercises.of_chapter(chapter) if test.grade_id in e.points)
    first, *others = (chapter_cells[i].source for i in exercise.cells)
    text = first[exercises.HEADING.search(first).start() :] + "\n".join(others)
    assert SAID.search(text) or not test.without


def test_a_function_that_is_not_there_uses_nothing():
    assert used([], "f", ("g",)) == []
    assert used(["g = 1"], "f", ("g",)) == []
    assert used(["def f():\n    return h()"], "f", ()) == []


@pytest.mark.parametrize(
    "code",
    [
        "f = " + "(" * 5000 + ")" * 5000,
        "f = " + "-" * 50_000 + "1",
        "f = " + "+".join("g" for _ in range(20_000)),
        "f = x" + ".g" * 20_000,
        "f = " + "lambda: " * 3000 + "1",
        "f = 1\n" + "f = f\n" * 10_000,
        "\n".join(["a0 = g", *(f"a{i + 1} = a{i}" for i in range(5000)), "f = a5000"]),
        "f = '\0'",
        "f = '\ud800'",
        "f = 1\n" * (LONGEST // 4),
        "def f():\n" + "".join(f"    a{i} = a{i - 1}\n" for i in range(3000)),
        "def f():\n" + "".join(f"{' ' * (i + 1)}def f{i}():\n" for i in range(90)) + " " * 99 + "pass",
    ],
    ids=range(12),
)
def test_nothing_odd_stops_it(code):
    """Fails if code that is too deep, too long or not Python at all raises, or takes more than a moment."""
    begin = time.process_time()
    used([code, "def f():\n    return h()"], "f", ("g", "h"))
    used([code], "f", ("g", "h"))
    assert time.process_time() - begin < 5
