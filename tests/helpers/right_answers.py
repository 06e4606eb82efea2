"""Right answers in other styles than the course's own: what honest students write, and what must get its points.

Data for `test_right_answers.py`. Each entry answers one exercise that is graded by machine.
"""

import dataclasses

from tests.helpers.short_right_answers import SHORT


@dataclasses.dataclass(frozen=True)
class Right:
    """A right answer.

    Args:
        exercise: such as "ex05-1-lstm-cell".
        styles: what is unusual about it.
        answer: source of the answer's own cell.
        before: sources of the student's own cells in front of it.
        after: sources of own cells between it and the check.
        needs: packages that it imports beside those of the course; Colab has them.
        jupyter: whether only Jupyter can read it (magics, `?`, top-level await), not Python.
    """

    exercise: str
    styles: str
    answer: str
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    jupyter: bool = False

    @property
    def grade_id(self):
        """The id of the check's cell."""
        return f"{self.exercise}-check"

    @property
    def chapter(self):
        """Such as "05"."""
        return self.exercise[2:4]


STYLES = (  # each of these must occur
    "NumPy array for a tensor", "NumPy numbers", "NumPy array for numbers", "float32", "half precision", "Fraction",
    "Decimal", "0-d tensors", "Python loops", "einsum", "einops", "scipy", "scikit-learn", "recursion", "generator",
    "lambda", "partial", "lru_cache", "decorator", "instance with __call__", "nn.Module instance", "classmethod",
    "helper cell", "own class", "dataclass", "NamedTuple", "Enum", "jacrev", "vmap", "torch.func.grad", "annotations",
    "no_grad", "keyword-only", "*args", "walrus", "match", "getsource", "innocent names", "compared with torch's own",
    "line magic", "cell magic", "help with ?", "shell", "display", "continuation lines", "text like magics",
    "last expression", "await", "prints", "plots", "list for tuple", "tuple for list", "bool tensor", "int for float",
    "not contiguous", "requires_grad", "negative zero", "Parameter", "own cells that fail", "progress bar", "one-hot",
    "own parts", "gradients cleared last", "autograd.grad", "a dict by name",
)  # fmt: skip

RIGHT = [
    # --- 01 ---------------------------------------------------------------------------------
    Right("ex01-1-ar-forecast", "generator, helper cell, Python loops", '''\
def ar_forecast(past, weights, bias, horizon):
    values = islice(forecasts(past.tolist(), weights.tolist(), bias), horizon)
    return torch.tensor(list(values), dtype=past.dtype)
''', before=('''\
from collections import deque
from itertools import islice

def forecasts(past, weights, bias):
    """All values to come, one after the other."""
    window = deque(past, maxlen=len(weights))
    while True:
        window.append(bias + sum(w * x for w, x in zip(weights, reversed(window))))
        yield window[-1]
''', "list(islice(forecasts([1.0, 2.0], [0.5, 0.5], 0.0), 3))")),
    Right("ex01-2-sine-weights", "NumPy array for a tensor, line magic, plots", '''\
%matplotlib inline
import matplotlib.pyplot as plt
import numpy as np
sine_weights = np.array([2 * np.cos(2 * np.pi / 12), -1])
plt.plot(np.sin(2 * np.pi * np.arange(24) / 12))
plt.show()
%time np.sin(1.0)
''', before=("%load_ext autoreload\n%autoreload 2\n%config InlineBackend.figure_format = 'retina'\n!pip install einops",
            "%%bash\nls -l\necho done"), after=("%%capture said\nprint(sine_weights)",), jupyter=True),
    Right("ex01-3-perplexity-of-four", "NumPy numbers", '''\
import numpy as np
perplexity_of_four = np.exp(-np.log([1/2, 1/4, 1/8, 1/8]).mean())
'''),
    Right("ex01-3-perplexity-of-four", "scipy, NumPy numbers", '''\
from scipy.stats import gmean
perplexity_of_four = gmean([2, 4, 8, 8])
''', needs=("scipy",)),
    Right("ex01-3-perplexity-of-four", "scikit-learn, NumPy numbers", '''\
import numpy as np
from sklearn.metrics import log_loss

perplexity_of_four = np.exp(log_loss([1, 1, 1, 1], [1/2, 1/4, 1/8, 1/8], labels=[0, 1]))
''', needs=("sklearn",)),
    Right("ex01-4-language-model", "recursion, lru_cache, innocent names, display", '''\
from functools import lru_cache

class LanguageModel:
    def __init__(self, n, symbols, k):
        self.n, self.symbols, self.k = n, symbols, k

    def fit(self, text):
        NgramModel = [text[max(0, i - self.n + 1) : i + 1] for i in range(len(text))]  # only a name
        self.times = Counter(g[j:] for g in NgramModel for j in range(len(g)))
        self.known = Counter(g[:-1] for g in self.times for _ in range(self.times[g]))
        self.kinds = Counter(g[:-1] for g in self.times)
        self.p = lru_cache(None)(self.smoothed)

    def smoothed(self, symbol, context):
        lower = self.p(symbol, context[1:]) if context else 1 / len(self.symbols)
        if context not in self.known:
            return lower
        extra = self.k * self.kinds[context]
        return (self.times[context + symbol] + extra * lower) / (self.known[context] + extra)

    def probability(self, symbol, context):
        return self.p(symbol, context[len(context) - min(self.n - 1, len(context)) :])

    def perplexity(self, text):
        return math.prod(1 / self.probability(s, text[:i]) for i, s in enumerate(text)) ** (1 / len(text))

    def sample(self, numbers, context=""):
        text = context
        for u in numbers:
            left = u
            for s in self.symbols:
                left -= self.probability(s, text)
                if left < 0:
                    break
            text += s
        return text[len(context) :]

display(1)
''', jupyter=True),
    Right("ex01-4-language-model", "dataclass, NumPy numbers, Python loops", '''\
from dataclasses import dataclass
import numpy as np

@dataclass
class LanguageModel:
    n: int
    symbols: str
    k: float

    def fit(self, text):
        self.table = {}
        for m in range(self.n):
            for i in range(m, len(text)):
                row = self.table.setdefault(text[i - m : i], np.zeros(len(self.symbols)))
                row[self.symbols.index(text[i])] += 1

    def row(self, context):
        p = np.full(len(self.symbols), 1 / len(self.symbols))
        for m in range(min(self.n - 1, len(context)) + 1):
            row = self.table.get(context[len(context) - m :])
            if row is not None:
                a = self.k * (row > 0).sum()
                p = (row + a * p) / (row.sum() + a)
        return p

    def probability(self, symbol, context):
        return self.row(context)[self.symbols.index(symbol)]

    def perplexity(self, text):
        return np.exp(-np.mean([np.log(self.probability(s, text[:i])) for i, s in enumerate(text)]))

    def sample(self, numbers, context=""):
        new = ""
        for u in numbers:
            new += self.symbols[np.searchsorted(self.row(context + new).cumsum(), u, side="right")]
        return new
'''),
    Right("ex01-4-language-model", "own class, 0-d tensors, generator", '''\
class LanguageModel(Counts):
    def probability(self, symbol, context):
        return self.distribution(context)[self.symbols.index(symbol)]

    def perplexity(self, text):
        surprise = sum(-self.probability(s, text[:i]).log() for i, s in enumerate(text))
        return (surprise / len(text)).exp()

    def sample(self, numbers, context=""):
        return "".join(self.drawn(numbers, context))
''', before=('''\
class Counts:
    def __init__(self, n, symbols, k):
        self.n, self.symbols, self.k = n, symbols, k

    def fit(self, text):
        self.text = text

    def distribution(self, context):
        context = context[-(self.n - 1) :] if self.n > 1 else ""
        p = torch.full((len(self.symbols),), 1 / len(self.symbols), dtype=torch.float64)
        for m in range(len(context) + 1):
            u = context[len(context) - m :]
            after = [self.text[i] for i in range(m, len(self.text)) if self.text[i - m : i] == u]
            c = torch.tensor([after.count(s) for s in self.symbols], dtype=torch.float64)
            extra = self.k * len(set(after))
            p = (c + extra * p) / (c.sum() + extra) if after else p
        return p

    def drawn(self, numbers, context):
        for u in numbers:
            symbol = self.symbols[int((self.distribution(context).cumsum(0) <= u).sum())]
            context += symbol
            yield symbol
''',)),
    Right("ex01-6-causal-conv", "einsum, help with ?, last expression", '''\
torch.nn.functional.conv1d?
def causal_conv(x, weight, bias):
    n = weight.shape[-1]
    padded = torch.cat([x.new_zeros(len(x), n - 1, x.shape[2]), x], dim=1)
    return torch.einsum("btdn,fdn->btf", padded.unfold(1, n, 1), weight) + bias

causal_conv(torch.ones(1, 4, 2), torch.ones(3, 2, 2), torch.zeros(3)).shape
''', jupyter=True),
    Right("ex01-6-causal-conv", "nn.Module instance, own class", '''\
class CausalConv(torch.nn.Module):
    def forward(self, x, weight, bias):
        time_last = torch.nn.functional.pad(x.mT, (weight.size(-1) - 1, 0))
        return torch.nn.functional.conv1d(time_last, weight, bias).mT

causal_conv = CausalConv()
'''),
    Right("ex01-7-fair-comparison", "NumPy array for a tensor, float32", '''\
import numpy as np
fair_comparison = np.array([np.log2(692) / 5.7, np.log2(10.5), np.exp(5.1) / 27], dtype=np.float32)
fair_comparison.round(2)
'''),
    Right("ex01-7-fair-comparison", "half precision", '''\
fair_comparison = torch.tensor([692, 10.5]).log2().half() / torch.tensor([5.7, 1]).half()
fair_comparison = torch.cat([fair_comparison, (torch.tensor([5.1]).exp() / 27).half()])
'''),
    # --- 02 ---------------------------------------------------------------------------------
    Right("ex02-2-bpe-step", "recursion, match, annotations, helper cell", '''\
from __future__ import annotations

def bpe_step(words: dict[tuple[str, ...], int]) -> tuple[tuple[str, str], dict[tuple[str, ...], int]]:
    counts: Counter[tuple[str, str]] = Counter()
    for word, times in words.items():
        for pair in zip(word, word[1:]):
            counts[pair] += times
    best = max(sorted(counts), key=counts.get)
    return best, {joined(word, best): times for word, times in words.items()}
''', before=('''\
def joined(word, pair):
    match word:
        case (a, b, *rest) if (a, b) == pair:
            return (a + b, *joined(tuple(rest), pair))
        case (a, *rest):
            return (a, *joined(tuple(rest), pair))
    return ()
''',)),
    Right("ex02-3-padded-batches", "NumPy array for a tensor, not contiguous, list for tuple", '''\
from itertools import zip_longest
import numpy as np

def padded_batches(texts, stoi, batch_size, max_len):
    rows = [[stoi[t] if t in stoi else stoi["<unk>"] for t in text.split()][:max_len] for text in texts]
    lengths = np.array([len(row) for row in rows])
    order, found = np.argsort(lengths, kind="stable"), []
    while order.size:
        where, order = order[:batch_size], order[batch_size:]
        ids = np.array(list(zip_longest(*(rows[i] for i in where), fillvalue=stoi["<pad>"]))).T
        found.append([ids, np.arange(ids.shape[1]) < lengths[where, None], where])
    return found
'''),
    Right("ex02-3-padded-batches", "generator, 0-d tensors, helper cell", '''\
def padded_batches(texts, stoi, batch_size, max_len):
    return list(one_by_one(texts, stoi, batch_size, max_len))

def one_by_one(texts, stoi, batch_size, max_len):
    rows = [[stoi.get(t, stoi["<unk>"]) for t in text.split()[:max_len]] for text in texts]
    rows = [torch.tensor(row, dtype=torch.int64) for row in rows]
    lengths = torch.tensor([len(row) for row in rows])
    for where in lengths.argsort(stable=True).split(batch_size):
        yield rectangle([rows[i] for i in where], stoi["<pad>"]), below(lengths[where]), where
''', before=('''\
from torch.nn.utils.rnn import pad_sequence

def rectangle(rows, pad):
    return pad_sequence(rows, batch_first=True, padding_value=pad)

def below(lengths):
    return torch.arange(lengths.max()) < lengths[:, None]
''',)),
    Right("ex02-3-padded-batches", "walrus, keyword-only, lambda", '''\
def padded_batches(texts, stoi, batch_size, max_len, *, dtype=torch.long):
    number = lambda t: stoi["<unk>"] if (i := stoi.get(t)) is None else i
    queue = sorted(enumerate([*map(number, s.split())][:max_len] for s in texts), key=lambda pair: len(pair[1]))
    batches = []
    while chunk := queue[:batch_size]:
        queue = queue[batch_size:]
        T = len(chunk[-1][1])
        ids = torch.tensor([row + [stoi["<pad>"]] * (T - len(row)) for _, row in chunk], dtype=dtype)
        real = torch.tensor([[t < len(row) for t in range(T)] for _, row in chunk])
        batches.append((ids, real, [i for i, _ in chunk]))
    return batches
'''),
    Right("ex02-1-masked-mean", "Python loops", '''\
def masked_mean(vectors, mask):
    means = []
    for row, keep in zip(vectors, mask):
        means.append(row[keep].mean(0) if keep.any() else row.sum(0) * 0)
    return torch.stack(means)
'''),
    Right("ex02-1-masked-mean", "lambda", '''\
real_only = lambda vectors, mask: torch.where(mask[..., None], vectors, 0.0)
masked_mean = lambda vectors, mask: real_only(vectors, mask).sum(1) / mask.sum(1, keepdim=True).clamp_min(1)
'''),
    Right("ex02-1-masked-mean", "einsum, innocent names", '''\
def masked_mean(vectors, mask):
    attention = mask.to(vectors.dtype)  # 1 for a real token
    return torch.einsum("btd,bt->bd", vectors, attention) / torch.maximum(attention.sum(1), torch.tensor(1))[:, None]
'''),
    Right("ex02-4-padding-shares", "Fraction, list for tuple", '''\
from fractions import Fraction
shares = [Fraction(28 - 17, 28), Fraction(24 - 17, 24), Fraction(48 - 17, 48)]
'''),
    Right("ex02-6-clipped-precision", "NumPy numbers, keyword-only", '''\
import numpy as np

def clipped_precision(hypothesis, references, n, *, dtype=int):
    def grams(tokens):
        return [tuple(tokens[i:i + n]) for i in range(len(tokens) - n + 1)]

    mine = grams(hypothesis)
    kinds = sorted(set(mine))
    said = np.array([mine.count(kind) for kind in kinds], dtype=dtype)
    most = np.array([[grams(r).count(kind) for kind in kinds] for r in references], dtype=dtype).max(axis=0)
    return np.minimum(said, most).sum(), said.sum()
'''),
    Right("ex02-6-clipped-precision", "0-d tensors, list for tuple", '''\
def clipped_precision(hypothesis, references, n):
    def count(tokens):
        return Counter(zip(*(tokens[i:] for i in range(n))))

    mine = count(hypothesis)
    clipped = [min(times, max(count(r)[gram] for r in references)) for gram, times in mine.items()]
    return [torch.tensor(clipped, dtype=torch.int64).sum(), torch.tensor(max(len(hypothesis) - n + 1, 0))]
'''),
    Right("ex02-7-bleu-by-hand", "Decimal", '''\
from decimal import Decimal
p1, p2 = Decimal(6) / 8, Decimal(2) / 7
BP = (1 - Decimal(10) / 8).exp()
parts = (p1, p2, BP, 100 * BP * (p1 * p2).sqrt())
'''),
    Right("ex02-7-bleu-by-hand", "NumPy numbers, shell", '''\
!echo thinking
import numpy as np
p = np.array([6 / 8, 2 / 7])
BP = np.exp(1 - 10 / 8)
parts = (*p, BP, 100 * BP * np.sqrt(p.prod()))
''', jupyter=True),
    # --- 03 ---------------------------------------------------------------------------------
    Right("ex03-1-rnn-forward", "lambda, innocent names, compared with torch's own", '''\
from itertools import accumulate

def rnn_forward(x, h, weight_ih, weight_hh, bias):
    rnn_step = lambda h, x_t: (x_t @ weight_ih.T + h @ weight_hh.T + bias).tanh()
    scan = list(accumulate(x.unbind(1), rnn_step, initial=h))[1:]
    return torch.stack(scan, 1), scan[-1]
''', after=('''\
layer = nn.RNN(2, 3, batch_first=True)
x = torch.randn(4, 5, 2)
wanted = layer(x)[0]
got = rnn_forward(x, torch.zeros(4, 3), layer.weight_ih_l0, layer.weight_hh_l0, layer.bias_ih_l0 + layer.bias_hh_l0)[0]
assert torch.allclose(got, wanted, atol=1e-6)
''',)),
    Right("ex03-2-quotation-weights", "Parameter, requires_grad, no_grad", '''\
two = nn.RNN(1, 2)
with torch.no_grad():
    two.weight_ih_l0.copy_(torch.full((2, 1), 8.0))
    two.weight_hh_l0.copy_(torch.tensor([[4.0, -4.0]]).expand(2, 2))
    two.bias_ih_l0.copy_(torch.tensor([-4.0, -12.0]))
quotation_weights = (two.weight_ih_l0, two.weight_hh_l0, two.bias_ih_l0, nn.Parameter(torch.tensor([1.0, -1.0])), -1)
'''),
    Right("ex03-2-quotation-weights", "NumPy array for a tensor, NumPy numbers", '''\
import numpy as np
k = 7
quotation_weights = (k * np.ones((2, 1)), k / 2 * np.array([[1, -1], [1, -1]]), k * np.array([-0.5, -1.5]),
                     np.array([1, -1]), np.float32(-1))
'''),
    Right("ex03-3-continue-text", "NumPy numbers, generator", '''\
import numpy as np

def continue_text(run, prompt, steps):
    def write():
        ids, state = prompt, None
        while True:
            logits, state = run(torch.tensor([ids]), state)
            ids = [np.argmax(logits[0, -1].numpy())]
            yield ids[0]

    return [word for word, _ in zip(write(), range(steps))]
'''),
    Right("ex03-5-stack-sizes", "NumPy array for numbers, innocent names", '''\
import numpy as np
stack = nn.RNN(input_size=12, hidden_size=5, num_layers=3, bidirectional=True)
number_of_parameters = sum(p.numel() for p in stack.parameters())
output, h_n = stack(torch.zeros(4, 2, 12))
stack_sizes = np.array([number_of_parameters, stack.weight_ih_l2_reverse.size(1), len(h_n), output.size(-1)])
'''),
    Right("ex03-6-summaries", "cell magic, Python loops", '''\
%%time
def summaries(output, lengths):
    D = output.shape[-1] // 2
    return torch.stack([torch.cat([row[n - 1, :D], row[0, D:]]) for row, n in zip(output, lengths)])
''', after=("%%time\n_ = summaries(torch.ones(2, 3, 4), torch.tensor([1, 3]))",), jupyter=True),
    Right("ex03-7-two-directions", "helper cell, list for tuple", '''\
def two_directions(x, lengths, forward_weights, backward_weights):
    """Both directions at once, step by step; rows that have ended keep their state."""
    B, T, _ = x.shape
    real = torch.arange(T) < lengths[:, None]
    ahead, end = one_way(x, real, *forward_weights, range(T))
    behind, start = one_way(x, real, *backward_weights, reversed(range(T)))
    return [torch.cat([ahead, behind], -1), torch.cat([end, start], -1)]
''', before=('''\
def one_way(x, real, w, u, b, order):
    h = torch.zeros(len(x), len(b)).to(x)
    found = [None] * x.size(1)
    for t in order:
        now = real[:, t, None]
        h = torch.where(now, torch.tanh(x[:, t] @ w.mT + h @ u.mT + b), h)
        found[t] = h * now
    return torch.stack(found, 1), h
''',)),
    Right("ex03-7-two-directions", "recursion, einsum", '''\
def two_directions(x, lengths, forward_weights, backward_weights):
    def after(h, steps, w, u, b):
        if not len(steps):
            return []
        h = torch.tanh(torch.einsum("i,di->d", steps[0], w) + torch.einsum("e,de->d", h, u) + b)
        return [h, *after(h, steps[1:], w, u, b)]

    T, D = x.size(1), len(forward_weights[2])
    output, summary = torch.zeros(len(x), T, 2 * D).to(x), torch.zeros(len(x), 2 * D).to(x)
    for k, n in enumerate(lengths):
        there = torch.stack(after(x.new_zeros(D), x[k, :n], *forward_weights))
        back = torch.stack(after(x.new_zeros(D), x[k, :n].flip(0), *backward_weights)[::-1])
        output[k, :n] = torch.hstack([there, back])
        summary[k] = torch.hstack([there[-1], back[0]])
    return output, summary
'''),
    Right("ex03-7-two-directions", "own class, walrus", '''\
class Walker:
    def __init__(self, weight_ih, weight_hh, bias):
        self.weight, self.bias = torch.cat([weight_ih, weight_hh], dim=1), bias

    def walk(self, rows):
        h, states = torch.zeros_like(self.bias), []
        for x_t in rows:
            states.append(h := torch.tanh(self.weight @ torch.cat([x_t, h]) + self.bias))
        return torch.stack(states)


def two_directions(x, lengths, forward_weights, backward_weights):
    one, two = Walker(*forward_weights), Walker(*backward_weights)
    rows = [row[: int(n)] for row, n in zip(x, lengths)]
    pairs = [(one.walk(row), two.walk(torch.flip(row, [0])).flip(0)) for row in rows]
    padded = nn.utils.rnn.pad_sequence([torch.cat(pair, 1) for pair in pairs], batch_first=True)
    missing = x.shape[1] - padded.shape[1]
    output = torch.cat([padded, padded.new_zeros(len(x), missing, padded.shape[2])], dim=1)
    return output, torch.stack([torch.cat([a[-1], b[0]]) for a, b in pairs])
'''),
    # --- 04 ---------------------------------------------------------------------------------
    Right("ex04-1-three-steps", "0-d tensors, requires_grad", '''\
w_ih, w_hh, w_ho = (torch.tensor(w, requires_grad=True) for w in (1.0, 0.5, 2.0))
h, L = torch.tensor(0.0), 0
for t, (x_t, y_t) in enumerate(zip([2, 0, 1], [1, 2, 0])):
    h = w_ih * x_t + w_hh * h
    if t == 0:
        h_1 = h
        h_1.retain_grad()
    L = L + (w_ho * h - y_t) ** 2 / 2 / 3
L.backward()
on_paper = (h_1.grad, w_ih.grad, w_hh.grad, w_ho.grad)
on_paper
'''),
    Right("ex04-1-three-steps", "half precision, helper cell", '''\
on_paper = rounded([2.5, 7, 4, 3.5])
''', before=('''\
def rounded(numbers):
    return torch.tensor(numbers).half()

torch.randn(3).half() @ torch.randn(3).half()
''',)),
    Right("ex04-2-expanded-gradient", "NumPy array for a tensor", '''\
import numpy as np

def expanded_gradient(do, W_hh, W_ho, t):
    do, W_hh, W_ho = do.numpy(), W_hh.numpy(), W_ho.numpy()
    return sum(do[:, k - 1] @ W_ho @ np.linalg.matrix_power(W_hh, k - t) for k in range(t, do.shape[1] + 1))
'''),
    Right("ex04-3-leaky-backward", "NumPy array for a tensor, list for tuple, innocent names", '''\
import numpy as np

def leaky_backward(do, x, h, c, W_hh, W_ho, alpha):
    do, x, h, c, W_hh, W_ho = (a.numpy() for a in (do, x, h, c, W_hh, W_ho))
    backward, inside = np.zeros_like(h[:, 0]), np.zeros_like(c)
    for t in reversed(range(x.shape[1])):
        dh = do[:, t] @ W_ho + backward
        inside[:, t] = alpha * dh * (1 - c[:, t] ** 2)
        backward = inside[:, t] @ W_hh + (1 - alpha) * dh
    return [np.tensordot(inside, x, axes=([0, 1], [0, 1])), np.tensordot(inside, h[:, :-1], axes=([0, 1], [0, 1])),
            np.tensordot(do, h[:, 1:], axes=([0, 1], [0, 1])), inside.sum((0, 1))]
'''),
    Right("ex04-4-kept-pairs", "NumPy numbers", '''\
import numpy as np
shares = tuple(np.mean([t // 4 == (t - k) // 4 for t in range(k, 12)]) for k in (1, 3, 4))
'''),
    Right("ex04-4-kept-pairs", "negative zero, NumPy array for numbers, float32", '''\
import numpy as np
shares = np.array([9 / 11, 1 / 3, -0.0], dtype="float32")
'''),
    Right("ex04-5-window-backward", "0-d tensors, walrus, prints", '''\
def window_backward(layer, loss_fn, x, y, window):
    total, state, start = torch.zeros(()), None, 0
    while (part := x[:, start:start + window]).shape[1]:
        state = state if state is None else state.detach()
        steps = [((out := layer(step, state)), state := out[1])[0][0] for step in part.split(1, dim=1)]
        loss = loss_fn(torch.cat(steps, 1), y[:, start:start + window])
        loss.backward()
        total = total + loss.detach()
        start += window
    print(f"{total:.2f}")
    return total
'''),
    Right("ex04-6-training-step", "NumPy array for a tensor, list for tuple, NumPy numbers", '''\
import numpy as np

def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    W_ih, W_hh, W_ho, b = (w.numpy() for w in weights)
    x, y, states, inside = x.numpy(), y.numpy(), [h_0.numpy()], []
    B, T = y.shape
    for t in range(T):
        inside.append(np.tanh(x[:, t] @ W_ih.T + states[-1] @ W_hh.T + b))
        states.append(states[-1] + alpha * (inside[-1] - states[-1]))
    slopes, from_next, loss = [np.zeros_like(w) for w in (W_ih, W_hh, W_ho, b)], np.zeros_like(states[0]), 0.0
    for t in range(T - 1, -1, -1):
        logits = states[t + 1] @ W_ho.T
        p = np.exp(logits - logits.max(1, keepdims=True))
        p /= p.sum(1, keepdims=True)
        loss -= np.log(p[np.arange(B), y[:, t]]).sum() / (B * T)
        p[np.arange(B), y[:, t]] -= 1
        p /= B * T
        dh = p @ W_ho + from_next
        da = alpha * dh * (1 - inside[t] ** 2)
        from_next = dh - alpha * dh + da @ W_hh
        for slope, term in zip(slopes, (da.T @ x[:, t], da.T @ states[t], p.T @ states[t + 1], da.sum(0))):
            slope += term
    norm = np.sqrt(np.sum([np.sum(slope ** 2) for slope in slopes]))
    slopes = [slope * min(1.0, max_norm / norm) for slope in slopes]
    return [[w - rate * s for w, s in zip((W_ih, W_hh, W_ho, b), slopes)], states[-1], loss]
'''),
    Right("ex04-6-training-step", "recursion, einsum, generator, keyword-only, helper cell", '''\
def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    W_ih, W_hh, W_ho, b = weights

    def walk(h, t):
        # Loss and gradients of the steps from t on, and the gradient that comes back into h
        if t == x.shape[1]:
            return h, 0.0, [torch.zeros_like(w) for w in weights], torch.zeros_like(h)
        c = torch.tanh(x[:, t] @ W_ih.T + h @ W_hh.T + b)
        new = (1 - alpha) * h + alpha * c
        log_p = F.log_softmax(new @ W_ho.T, dim=1)
        last, loss, slopes, came = walk(new, t + 1)
        do = (log_p.exp() - F.one_hot(y[:, t], len(W_ho))) / y.numel()
        dh = do @ W_ho + came
        da = alpha * dh * (1 - c**2)
        own = (outer(of=da, by=x[:, t]), outer(of=da, by=h), outer(of=do, by=new), da.sum(0))
        loss = loss - log_p.gather(1, y[:, t, None]).sum() / y.numel()
        return last, loss, [s + o for s, o in zip(slopes, own)], da @ W_hh + (1 - alpha) * dh

    last, loss, slopes, _ = walk(h_0, 0)
    whole = torch.cat([s.flatten() for s in slopes])
    if whole.norm() > max_norm:
        whole = whole / whole.norm() * max_norm
    pieces = whole.split([w.numel() for w in weights])
    return list(w - rate * p.view(w.shape) for w, p in zip(weights, pieces)), last, float(loss)
''', before=('''\
def outer(*, of, by):
    return torch.einsum("bi,bj->ij", of, by)
''',)),
    Right("ex04-6-training-step", "NamedTuple, tuple for list, 0-d tensors, compared with torch's own", '''\
from typing import NamedTuple

class Step(NamedTuple):
    weights: tuple
    state: torch.Tensor
    loss: torch.Tensor

def training_step(weights, h_0, x, y, alpha, rate, max_norm):
    W_ih, W_hh, W_ho, b = weights
    states, inside = [h_0], []
    for t in range(x.shape[1]):
        inside += [torch.tanh(F.linear(x[:, t], W_ih, b) + F.linear(states[-1], W_hh))]
        states += [torch.lerp(states[-1], inside[-1], alpha)]
    log_p = torch.log_softmax(torch.stack(states[1:], 1) @ W_ho.T, -1)
    loss = -log_p.gather(-1, y[..., None]).mean()
    do = (log_p.exp() - torch.eye(len(W_ho), dtype=log_p.dtype)[y]) / y.numel()
    slopes, carried = [0.0] * 4, 0.0
    for t in reversed(range(x.shape[1])):
        dh = do[:, t] @ W_ho + carried
        da = alpha * dh * (1 - inside[t].square())
        for k, term in enumerate((da.T @ x[:, t], da.T @ states[t], do[:, t].T @ states[t + 1], da.sum(0))):
            slopes[k] = slopes[k] + term
        carried = da @ W_hh + (1 - alpha) * dh
    norm = torch.cat([slope.flatten() for slope in slopes]).norm()
    factor = (max_norm / norm).clamp(max=1)
    return Step(tuple(W - rate * factor * slope for W, slope in zip(weights, slopes)), states[-1], loss)
''', after=('''\
weight = nn.Parameter(torch.ones(3))
weight.grad = torch.tensor([3.0, 0.0, 4.0])
nn.utils.clip_grad_norm_([weight], 1.0)
assert torch.allclose(weight.grad, torch.tensor([0.6, 0.0, 0.8]), atol=1e-5)
''',)),
    # --- 05 ---------------------------------------------------------------------------------
    Right("ex05-1-lstm-cell", "instance with __call__, own class, helper cell, compared with torch's own", '''\
lstm_cell = LSTMCell()
''', before=('''\
class LSTMCell:
    """My own, without nn.LSTMCell."""

    def __call__(self, x, h, c, weight_ih, weight_hh, bias):
        i, f, g, o = self.gates(x, h, weight_ih, weight_hh, bias)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * c.tanh(), c

    def gates(self, x, h, weight_ih, weight_hh, bias):
        return (F.linear(x, weight_ih) + F.linear(h, weight_hh, bias)).chunk(4, -1)
''',), after=('''\
theirs = nn.LSTMCell(3, 5)
x, h, c = torch.randn(2, 3), torch.randn(2, 5), torch.randn(2, 5)
mine = lstm_cell(x, h, c, theirs.weight_ih, theirs.weight_hh, theirs.bias_ih + theirs.bias_hh)
for a, b in zip(mine, theirs(x, (h, c))):
    assert torch.allclose(a, b, atol=1e-6)
''',)),
    Right("ex05-1-lstm-cell", "not contiguous, list for tuple, help with ?, innocent names", '''\
?torch.chunk
def lstm_cell(x, h, c, weight_ih, weight_hh, bias):
    LSTM = torch.cat([x, h], 1) @ torch.cat([weight_ih, weight_hh], 1).T + bias
    gated = LSTM.unflatten(1, (4, -1)).permute(2, 0, 1)  # (D, B, 4)
    shares, g = gated[..., [0, 1, 3]].sigmoid(), gated[..., 2].tanh()
    new = shares[..., 1] * c.T + shares[..., 0] * g
    return [(shares[..., 2] * new.tanh()).T, new.T]
''', jupyter=True),
    Right("ex05-2-along-the-cell", "NumPy numbers", '''\
import numpy as np
left = (np.prod([0.8, 0.6, 0.7]), np.prod([0.6, 0.7]), -np.log(2**0.01 - 1))
'''),
    Right("ex05-2-along-the-cell", "scipy, list for tuple", '''\
from scipy.special import logit
left = [0.8 * 0.6 * 0.7, 0.6 * 0.7, logit(0.5 ** 0.01)]
''', needs=("scipy",)),
    Right("ex05-3-gru-cell", "einsum, annotations, innocent names", '''\
from __future__ import annotations
from torch import Tensor

def gru_cell(x: Tensor, h: Tensor, weight_ih: Tensor, weight_hh: Tensor, bias_ih: Tensor, bias_hh: Tensor) -> Tensor:
    gated = torch.einsum("bi,gi->bg", x, weight_ih) + bias_ih
    LSTM = torch.einsum("bd,gd->bg", h, weight_hh) + bias_hh  # not really
    D = h.size(1)
    r, z = torch.sigmoid(gated[:, :2 * D] + LSTM[:, :2 * D]).split(D, 1)
    n = torch.tanh(gated[:, 2 * D:] + r * LSTM[:, 2 * D:])
    return torch.lerp(n, h, z)
'''),
    Right("ex05-5-gru-weights", "recursion, own cells that fail", '''\
def gru_weights(z):
    if len(z) == 0:
        return z.new_ones(1, z.shape[1])
    return torch.cat([gru_weights(z[:-1]) * z[-1], 1 - z[-1:]])

gru_weights(z_T)  # a slip: there is no z_T
''', after=("assert gru_weights(torch.rand(3, 2)).sum() == 1", "plt.plot(", "gru_weights(torch.rand(3, 2)).sum(0)"),
          jupyter=True),
    Right("ex05-4-parameter-counts", "NumPy array for numbers, innocent names", '''\
import numpy as np

def gate(I, D, biases=2):
    return D * I + D * D + biases * D

number_of_parameters = 4 * gate(10, 20)
numbers = np.array([number_of_parameters, 3 * gate(10, 20), 8 * (gate(10, 20) + gate(40, 20)), 4 * 20, 2 * 20])
'''),
    Right("ex05-7-review-classifier", "helper cell, annotations, innocent names", '''\
class ReviewClassifier(nn.Module):
    def __init__(self, vocab_size: int, embedding_dim: int, hidden_size: int, num_classes: int):
        super().__init__()
        self.D = hidden_size
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.gates = nn.Linear(embedding_dim + hidden_size, 4 * hidden_size)
        self.output = nn.Linear(hidden_size, num_classes)

    def forward(self, ids: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
        LSTM = self.embedding(ids).unbind(1)  # only a name
        h = c = LSTM[0].new_zeros(len(ids), self.D)
        for t, x in enumerate(LSTM):
            new = step(self.gates(torch.cat([x, h], 1)), c)
            going = (lengths > t)[:, None]  # a row that has ended keeps its state
            h, c = torch.where(going, new[0], h), torch.where(going, new[1], c)
        return self.output(h)
''', before=('''\
def step(gated, c):
    i, f, g, o = gated.tensor_split(4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c
''',)),
    Right("ex05-7-review-classifier", "own class", '''\
class ReviewClassifier(Recurrent):
    def forward(self, ids, lengths):
        last = [self.read(row[:n]) for row, n in zip(ids, lengths.tolist())]  # one review after the other
        return self.output(torch.stack(last))
''', before=('''\
class Recurrent(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_size, num_classes):
        super().__init__()
        self.output = nn.Linear(hidden_size, num_classes)
        self.gates = nn.Linear(hidden_size + embedding_dim, hidden_size * 4)
        self.embedding = nn.Embedding(vocab_size, embedding_dim)

    def read(self, tokens):
        h = c = torch.zeros_like(self.output.weight[0])
        for x in self.embedding(tokens):
            i, f, g, o = self.gates(torch.cat([x, h])).view(4, -1)
            c = c * f.sigmoid() + g.tanh() * i.sigmoid()
            h = c.tanh() * o.sigmoid()
        return h
''',)),
    Right("ex05-7-review-classifier", "einops", '''\
from einops import rearrange, repeat

class ReviewClassifier(nn.Module):
    def __init__(self, vocab_size, embedding_dim, hidden_size, num_classes):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim)
        self.gates = nn.Linear(embedding_dim + hidden_size, 4 * hidden_size)
        self.output = nn.Linear(hidden_size, num_classes)

    def forward(self, ids, lengths):
        h = c = torch.zeros(ids.size(0), self.output.in_features).to(self.output.weight)
        states = []
        for x in rearrange(self.embedding(ids), "b t i -> t b i"):
            i, f, g, o = rearrange(self.gates(torch.hstack([x, h])), "b (four d) -> four b d", four=4)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * c.tanh()
            states.append(h)
        ends = repeat(lengths - 1, "b -> 1 b d", d=h.size(1))
        return self.output(torch.stack(states).gather(0, ends)[0])
''', needs=("einops",)),
    # --- 06 ---------------------------------------------------------------------------------
    Right("ex06-1-shifted-loss", "partial", '''\
import functools

nats = functools.partial(F.cross_entropy, reduction="none")

def shifted_loss(model, source, mask, target, pad):
    said, wanted = target[:, :-1], target[:, 1:]
    return nats(model(source, mask, said).mT, wanted)[wanted.ne(pad)].mean()
'''),
    Right("ex06-1-shifted-loss", "Python loops, helper cell", '''\
def shifted_loss(model, source, mask, target, pad):
    rows = model(source, mask, target[..., :-1])
    bits = [surprise(row[t], wanted) for row, words in zip(rows, target) for t, wanted in enumerate(words[1:])
            if wanted != pad]
    return sum(bits) / len(bits)
''', before=('''\
def surprise(logits, word):
    return logits.logsumexp(0) - logits[word]
''',)),
    Right("ex06-1-shifted-loss", "einsum, bool tensor", '''\
def shifted_loss(model, source, mask, target, pad):
    # all of the target goes in; the logits after the last token are dropped
    log_p = torch.log_softmax(model(source, mask, target), dim=2)[:, :-1]
    wanted = target[:, 1:]
    real = ~torch.eq(wanted, pad)
    chosen = F.one_hot(wanted, log_p.shape[-1]).to(log_p)
    return -torch.einsum("btv,btv,bt->", log_p, chosen, real.to(log_p)) / real.sum()
'''),
    Right("ex06-2-greedy-decode", "generator, helper cell", '''\
def greedy_decode(step, state, sos, eos, max_length):
    rows, over = [[] for _ in range(len(state))], set()
    for tokens in words(step, state, torch.tensor([sos] * len(state)), max_length):
        for b, token in enumerate(tokens.tolist()):
            if token == eos:
                over.add(b)
            elif b not in over:
                rows[b].append(token)
        if len(over) == len(rows):
            return rows
    return rows
''', before=('''\
def words(step, state, tokens, most):
    """The most probable token of each row, step after step."""
    for _ in range(most):
        logits, state = step(tokens, state)
        tokens = logits.max(dim=-1).indices
        yield tokens
''',)),
    Right("ex06-2-greedy-decode", "tuple for list, no_grad, decorator", '''\
from itertools import takewhile

@torch.no_grad()
def greedy_decode(step, state, sos, eos, max_length):
    said = [torch.full((len(state),), sos)]
    ended = torch.zeros(len(state), dtype=torch.bool)
    while len(said) <= max_length and not ended.all():
        logits, state = step(said[-1], state)
        said.append(logits.argmax(1))
        ended |= said[-1] == eos
    return tuple(tuple(takewhile(lambda t: t != eos, row)) for row in torch.stack(said[1:], 1).tolist())
'''),
    Right("ex06-3-additive-weights", "vmap, help with ?", '''\
def additive_weights(query, keys, W_q, W_k, v, mask):
    def row(query, keys, mask):
        scores = torch.tanh(W_q @ query + keys @ W_k.T) @ v
        return torch.where(mask, scores, -torch.inf).softmax(0)

    return torch.func.vmap(row)(query, keys, mask)

torch.func.vmap?
''', jupyter=True),
    Right("ex06-3-additive-weights", "einsum, not contiguous", '''\
def additive_weights(query, keys, W_q, W_k, v, mask):
    hidden = torch.einsum("aq,bq->ba", W_q, query)[:, None] + torch.einsum("ae,bse->bsa", W_k, keys)
    scores = torch.einsum("bsa,a->sb", hidden.tanh(), v)  # transposed
    return torch.where(mask.T, scores, torch.tensor(-torch.inf).to(scores)).softmax(0).T
'''),
    Right("ex06-4-search-by-hand", "half precision", '''\
a, b = torch.tensor([0.55, 0.45], dtype=torch.half)
found = torch.stack([a * 0.4, b * 0.9 * 0.8, torch.tensor(-1.6).half() * 6 / 11,
                     torch.tensor(4 / 3).half().log() / torch.tensor(11 / 7).half().log()])
'''),
    Right("ex06-5-beam-search", "dataclass, helper cell, list for tuple, 0-d tensors", '''\
from heapq import nlargest

def beam_search(step, eos, size, max_length, alpha):
    alive, done = [Hypothesis([], torch.tensor(0.0))], []
    while alive and len(alive[0].tokens) < max_length:
        longer = [one.extended(i, value) for one in alive for i, value in enumerate(step(one.tokens))]
        best = nlargest(size - len(done), longer, key=lambda one: one.log_p)
        done += (one for one in best if one.tokens[-1] == eos)
        alive = [one for one in best if one.tokens[-1] != eos]
    winner = max(done or alive, key=lambda one: one.score(alpha))
    return [winner.tokens, winner.score(alpha)]
''', before=('''\
from dataclasses import dataclass

@dataclass
class Hypothesis:
    tokens: list[int]
    log_p: torch.Tensor

    def extended(self, token, log_p):
        return Hypothesis([*self.tokens, token], self.log_p + log_p)

    def score(self, alpha):
        return self.log_p / ((5 + len(self.tokens)) / 6) ** alpha
''',)),
    Right("ex06-7-own-translator", "helper cell, keyword-only", '''\
class OwnTranslator(nn.Module):
    def __init__(self, source_size, target_size, embedding_dim, hidden_size, attention_size):
        super().__init__()
        I, D, A = embedding_dim, hidden_size, attention_size
        self.output, self.decoder = nn.Linear(D, target_size), nn.GRUCell(I + D, D)
        self.W_q, self.W_k = nn.Linear(D, A, bias=False), nn.Linear(D, A, bias=False)
        self.v, self.encoder = nn.Linear(A, 1, bias=False), nn.GRU(I, D, batch_first=True)
        self.source_embedding = nn.Embedding(source_size, I)
        self.target_embedding = nn.Embedding(target_size, I)

    def read(self, source, mask):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.source_embedding(source), mask.sum(1), batch_first=True, enforce_sorted=False
        )
        states, last = self.encoder(packed)
        states, _ = nn.utils.rnn.pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        return states, last[0]

    def step(self, tokens, h, states, mask):
        w = look(h, states, mask, W_q=self.W_q, W_k=self.W_k, v=self.v)
        h = self.decoder(torch.hstack([self.target_embedding(tokens), (w @ states)[:, 0]]), h)
        return self.output(h), h

    def forward(self, source, mask, inputs):
        (states, h), rows = self.read(source, mask), []
        for t in range(inputs.shape[1]):
            row, h = self.step(inputs[:, t], h, states, mask)
            rows.append(row)
        return torch.stack(rows).transpose(0, 1)

    def learn(self, optimizer, source, mask, target, pad):
        optimizer.zero_grad()
        log_p = self(source, mask, target[:, :-1]).log_softmax(-1)
        wanted = target[:, 1:]
        loss = -log_p.gather(2, wanted[:, :, None])[wanted != pad].mean()
        loss.backward()
        optimizer.step()
        return loss.tolist()
''', before=('''\
def look(h, states, mask, *, W_q, W_k, v):
    """Weights (B, 1, S)."""
    scores = v(torch.tanh(W_q(h)[:, None] + W_k(states))).transpose(1, 2)
    return scores.masked_fill(~mask[:, None], -torch.inf).softmax(-1)
''',)),
    Right("ex06-7-own-translator", "own class, 0-d tensors", '''\
class OwnTranslator(Reader):
    def step(self, tokens, h, states, mask):
        scores = (self.W_q(h).unsqueeze(1) + self.W_k(states)).tanh() @ self.v.weight[0]
        scores[~mask] = -math.inf
        context = torch.einsum("bs,bsd->bd", scores.softmax(1), states)
        h = self.decoder(torch.cat((self.target_embedding(tokens), context), dim=-1), h)
        return [self.output(h), h]

    def forward(self, source, mask, inputs):
        states, h = self.read(source, mask)
        logits = h.new_empty(0)
        rows = []
        for t, word in enumerate(inputs.T):
            logits, h = self.step(word, h, states, mask)
            rows += [logits[:, None]]
        return torch.cat(rows, 1)

    def learn(self, optimizer, source, mask, target, pad):
        logits = self.forward(source, mask, target[:, :-1]).permute(0, 2, 1)
        loss = F.cross_entropy(logits, target[:, 1:], reduction="sum", ignore_index=pad) / (target[:, 1:] != pad).sum()
        self.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()
''', before=('''\
class Reader(nn.Module):
    def __init__(self, source_size, target_size, embedding_dim, hidden_size, attention_size):
        super().__init__()
        self.source_embedding = nn.Embedding(source_size, embedding_dim)
        self.target_embedding = nn.Embedding(target_size, embedding_dim)
        self.encoder = nn.GRU(embedding_dim, hidden_size, batch_first=True)
        self.W_q = nn.Linear(hidden_size, attention_size, bias=False)
        self.W_k = nn.Linear(hidden_size, attention_size, bias=False)
        self.v = nn.Linear(attention_size, 1, bias=False)
        self.decoder = nn.GRUCell(embedding_dim + hidden_size, hidden_size)
        self.output = nn.Linear(hidden_size, target_size)

    def read(self, source, mask):
        states = self.encoder(self.source_embedding(source))[0]
        return states, torch.stack([row[real][-1] for row, real in zip(states, mask)])
''',)),
    # --- 07 ---------------------------------------------------------------------------------
    Right("ex07-1-numbers-by-hand", "jacrev, 0-d tensors", '''\
keys = torch.tensor([[10.0, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
weight = (keys @ torch.tensor([0, 0, 0.3]) / 3**0.5).softmax(0)[2]
slopes = torch.func.jacrev(lambda a: a.softmax(0))(torch.tensor([0.7, 0.2, 0.1]).log())
numbers = (weight, math.log(27) * 3**0.5 / 10, 16 * 0.25 * 9, slopes[0, 1])
numbers
'''),
    Right("ex07-1-numbers-by-hand", "scipy, NumPy array for numbers, list for tuple", '''\
import numpy as np
from scipy.optimize import brentq
from scipy.special import softmax

keys = np.array([[10, 0, 0], [0, 10, 0], [0, 0, 10], [0, 0, 10]])
weights = lambda *query: softmax(keys @ np.array(query) / np.sqrt(3))
length = brentq(lambda l: weights(0, l, 0)[1] - 0.9, 0, 10)
w = np.array([0.7, 0.2, 0.1])
numbers = np.array([weights(0, 0, 0.3)[2], length, 16 * 0.25 * 9, (np.diag(w) - np.outer(w, w))[0, 1]])
''', needs=("scipy",)),
    Right("ex07-1-numbers-by-hand", "Fraction, int for float, helper cell", '''\
s = 3 / math.sqrt(3)
length = score_for(Fraction(9, 10)) * math.sqrt(3) / 10
numbers = [1 / (2 + 2 * math.exp(-s)), length, 36, -Fraction(7, 10) * Fraction(1, 5)]
''', before=('''\
from fractions import Fraction

def score_for(share):
    """The score that beats three scores of 0 by so much."""
    return math.log(3 * share / (1 - share))
''',)),
    Right("ex07-1-numbers-by-hand", "a dict by name", '''\
grown = math.exp(math.sqrt(3))
numbers = {"weight": grown / (2 * grown + 2), "length": 0.571, "variance": 36, "slope": -0.14}
'''),
    Right("ex07-2-dot-product-attention", "einsum, keyword-only, innocent names", '''\
def dot_product_attention(q, k, v, *, mask=None, causal=False):
    attention_scores = torch.einsum("...tk,...sk->...ts", q, k) * q.shape[-1] ** -0.5
    T, S = attention_scores.shape[-2:]
    if causal:
        causal_mask = torch.arange(S) <= torch.arange(S - T, S)[:, None]
        mask = causal_mask if mask is None else mask & causal_mask
    if mask is not None:
        attention_scores = torch.where(mask, attention_scores, -torch.inf)
    attention_weights = attention_scores.softmax(-1).nan_to_num(0.0)
    return torch.einsum("...ts,...se->...te", attention_weights, v)
'''),
    Right("ex07-2-dot-product-attention", "Python loops, recursion", '''\
def dot_product_attention(q, k, v, mask=None, causal=False):
    T, S = q.shape[-2], k.shape[-2]
    seen = torch.ones(*q.shape[:-1], S, dtype=torch.bool)
    if mask is not None:
        seen = seen & mask
    if q.ndim > 2:  # one leading axis after the other
        parts = zip(q, k, v, seen)
        return torch.stack([dot_product_attention(*part, causal=causal) for part in parts])
    rows = []
    for t in range(T):
        keys = [s for s in range(S) if seen[t, s] and (s <= S - T + t or not causal)]
        w = torch.softmax(k[keys] @ q[t] / math.sqrt(q.shape[1]), 0) if keys else None
        rows.append(w @ v[keys] if keys else v.new_zeros(v.shape[1]))
    return torch.stack(rows)
'''),
    Right("ex07-2-dot-product-attention", "NumPy array for a tensor, helper cell, walrus", '''\
def dot_product_attention(q, k, v, mask=None, causal=False):
    q, k, v = (a.numpy() for a in (q, k, v))
    scores = np.matmul(q, np.swapaxes(k, -1, -2)) / np.sqrt(q.shape[-1])
    hidden = np.zeros(scores.shape, dtype=bool) if mask is None else np.broadcast_to(~mask.numpy(), scores.shape)
    if causal and (T := scores.shape[-2]):
        hidden = hidden | np.triu(np.ones((T, S := scores.shape[-1]), dtype=bool), S - T + 1)
    return shares(scores, hidden) @ v
''', before=('''\
import numpy as np

def shares(scores, hidden):
    """A softmax over what is not hidden, zeros where all is."""
    top = np.where(hidden, -1e30, scores).max(-1, keepdims=True)
    grown = np.where(hidden, 0.0, np.exp(np.where(hidden, 0.0, scores - top)))
    return grown / np.maximum(grown.sum(-1, keepdims=True), 1e-300)
''',)),
    Right("ex07-3-split", "innocent names, not contiguous", '''\
def split(x, H):
    split_heads = x.chunk(H, dim=-1)
    return torch.stack(split_heads, dim=-3)
'''),
    Right("ex07-3-split", "einops, lambda", '''\
import einops
split = lambda x, H: einops.rearrange(x, "... t (h k) -> ... h t k", h=H)
''', needs=("einops",)),
    Right("ex07-3-split", "Python loops, annotations", '''\
def split(x: torch.Tensor, H: int) -> torch.Tensor:
    *lead, T, D = x.shape
    heads = x.new_empty(*lead, H, T, D // H)
    for h in range(H):
        heads[..., h, :, :] = x[..., h * (D // H) : (h + 1) * (D // H)]
    return heads
'''),
    Right("ex07-3-merge", "lambda, *args", '''\
merge = lambda *args: torch.cat(args[0].unbind(-3), -1)
'''),
    Right("ex07-3-merge", "einops, lambda", '''\
import einops
merge = lambda x: einops.rearrange(x, "... h t k -> ... t (h k)")
''', needs=("einops",)),
    Right("ex07-3-merge", "Python loops, innocent names, NumPy array for a tensor", '''\
import numpy as np

def merge(x):
    if x.ndim > 3:  # one leading axis after the other
        return np.stack([merge(part) for part in x])
    merge_heads = np.moveaxis(x.numpy(), 0, 1)
    return np.stack([np.concatenate(list(row)) for row in merge_heads])
'''),
    Right("ex07-4-shapes", "list for tuple, NumPy numbers, own class", '''\
import numpy as np
q, k = torch.empty(8, 6, 17, 96 // 6), torch.empty(8, 6, 21, 96 // 6)
arrows = dict(queries=q.shape, keys=list(k.shape), weights=(q @ k.mT).size(), output=np.array([8, 17, 96]),
              count=np.prod((8, 6, 17, 21)))
'''),
    Right("ex07-4-shapes", "NumPy array for a tensor, int for float, helper cell", '''\
B, T, S, D, H = 8, 17, 21, 96, 6
arrows = named(queries=[B, H, T, D // H], keys=[B, H, S, D // H], weights=[B, H, T, S], output=[B, T, D])
arrows["count"] = torch.zeros(*arrows["weights"]).numel()
''', before=('''\
import numpy as np

def named(**sizes):
    return {name: np.array(size) for name, size in sizes.items()}
''',)),
    Right("ex07-4-shapes", "compared with torch's own, prints", '''\
layer = MultiHeadAttention(96, 6)
weights = layer.attention_weights(torch.zeros(8, 17, 96), torch.zeros(8, 21, 96))
arrows = {"queries": split_heads(torch.zeros(8, 17, 96), 6).shape, "keys": split_heads(torch.zeros(8, 21, 96), 6).shape,
          "weights": weights.shape, "output": layer(torch.zeros(8, 17, 96), torch.zeros(8, 21, 96)).shape,
          "count": weights.numel()}
print(arrows)
'''),
    Right("ex07-5-multi-head", "einsum, einops, *args, keyword-only", '''\
def multi_head(*args, mask=None):
    *three, W_in, b_in, W_out, b_out, H = args
    W = einops.rearrange(W_in, "(n h k) d -> n h k d", n=3, h=H)
    b = einops.rearrange(b_in, "(n h k) -> n h 1 k", n=3, h=H)
    q, k, v = (torch.einsum("btd,hkd->bhtk", y, W[i]) + b[i] for i, y in enumerate(three))
    fits = torch.einsum("bhtk,bhsk->bhts", q, k) * k.shape[-1] ** -0.5
    if mask is not None:
        fits = fits.masked_fill(mask.logical_not(), -torch.inf)
    return einops.rearrange(fits.softmax(3) @ v, "b h t k -> b t (h k)") @ W_out.mT + b_out
''', before=("import einops\n",), needs=("einops",)),
    Right("ex07-5-multi-head", "Python loops, helper cell", '''\
def multi_head(query, key, value, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, H, mask=None):
    B, T, D = query.shape
    if mask is not None:
        mask = mask.expand(B, H, T, key.shape[1])
    texts = []
    for b in range(B):  # text by text, all heads at once
        q, k, v = (
            (y[b] @ in_proj_weight[r : r + D].T + in_proj_bias[r : r + D]).view(-1, H, D // H).movedim(1, 0)
            for y, r in ((query, 0), (key, D), (value, 2 * D))
        )
        texts.append(all_heads(q, k, v, None if mask is None else mask[b]))
    return torch.stack(texts) @ out_proj_weight.T + out_proj_bias
''', before=('''\
def all_heads(q, k, v, mask):
    a = torch.bmm(q, k.transpose(1, 2)) / q.shape[-1] ** 0.5
    a = a if mask is None else a.masked_fill(mask == False, float("-inf"))
    return torch.bmm(torch.softmax(a, dim=2), v).movedim(0, 1).flatten(1)
''',)),
    Right("ex07-5-multi-head", "vmap, einsum", '''\
def multi_head(query, key, value, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, H, mask=None):
    B, T, D = query.shape

    def one(W_q, W_k, W_v, b_q, b_k, b_v, W_o, seen):
        q, k, v = query @ W_q.T + b_q, key @ W_k.T + b_k, value @ W_v.T + b_v
        return (torch.where(seen, q @ k.mT * (D // H) ** -0.5, -torch.inf)).softmax(-1) @ v @ W_o

    seen = torch.ones(1, dtype=torch.bool) if mask is None else mask
    seen = seen.expand(B, H, T, key.shape[1]).transpose(0, 1)  # (H, B, T, S)
    W, b = in_proj_weight.view(3, H, -1, D), in_proj_bias.view(3, H, -1)
    return torch.vmap(one)(*W, *b, out_proj_weight.T.reshape(H, -1, D), seen).sum(0) + out_proj_bias
'''),
    Right("ex07-5-multi-head", "own class, generator", '''\
class Heads:
    def __init__(self, W, b, H):
        self.W, self.b, self.H = W, b, H

    def __call__(self, y):
        return F.linear(y, self.W, self.b).view(*y.shape[:2], self.H, -1).permute(0, 2, 1, 3)

def multi_head(query, key, value, in_proj_weight, in_proj_bias, out_proj_weight, out_proj_bias, H, mask=None):
    D = query.shape[2]
    parts = zip(in_proj_weight.split(D), in_proj_bias.split(D), (query, key, value))
    q, k, v = (Heads(W, b, H)(y) for W, b, y in parts)
    fits = torch.matmul(q, k.swapaxes(-1, -2)) / math.sqrt(D / H)
    if mask is not None:
        fits = fits + torch.zeros(mask.shape, dtype=fits.dtype).masked_fill(~mask, -math.inf)
    return F.linear((fits.softmax(-1) @ v).swapaxes(1, 2).flatten(-2), out_proj_weight, out_proj_bias)
'''),
    Right("ex07-6-stack-maps", "tuple for list, generator", '''\
def stack_maps(layers, x, mask):
    def walk(x):
        for layer in layers:
            yield layer.attention_weights(x, mask=mask)
            x = x + layer(x, mask=mask)

    return (*walk(x),)
'''),
    Right("ex07-6-stack-maps", "recursion, keyword-only", '''\
def stack_maps(layers, x, mask):
    def rest(*, of, read):
        if not of:
            return []
        here = of[0].attention_weights(read, mask=mask)
        return [here, *rest(of=of[1:], read=read + of[0](read, mask=mask))]

    return rest(of=list(layers), read=x)
'''),
    Right("ex07-6-stack-maps", "partial, helper cell, walrus", '''\
def stack_maps(layers, x, mask):
    read = [x]
    for layer in layers:
        read.append(read[-1] + partial(layer, mask=mask)(read[-1]))
    return [w for layer, y in zip(layers, read) if (w := weights_of(layer)(y, mask=mask)) is not None]
''', before=('''\
from functools import partial

def weights_of(layer):
    return layer.attention_weights
''',)),
    # --- 08 ---------------------------------------------------------------------------------
    Right("ex08-1-equivariant", "bool tensor", '''\
def is_equivariant(layer, x, order):
    return (layer(x[:, order]) - layer(x)[:, order]).abs().max() < 1e-6
'''),
    Right("ex08-1-equivariant", "Python loops, own class", '''\
def is_equivariant(layer, x, order):
    first, last = layer(Permuted(order)(x)), Permuted(order)(layer(x))
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            if not torch.allclose(first[b, t], last[b, t], atol=1e-6):
                return False
    return True
''', before=('''\
class Permuted:
    def __init__(self, order):
        self.order = order

    def __call__(self, x):
        return torch.stack([x[:, i] for i in self.order.tolist()], dim=1)
''',)),
    Right("ex08-1-equivariant", "einsum, NumPy numbers", '''\
import numpy as np

def is_equivariant(layer, x, order):
    Pi = torch.eye(len(order), dtype=x.dtype)[order]
    left, right = layer(torch.einsum("st,btd->bsd", Pi, x)), torch.einsum("st,btd->bsd", Pi, layer(x))
    return np.abs((left - right).numpy()).max() <= 1e-6
'''),
    Right("ex08-2-position-table", "float32, innocent names", '''\
def position_table(length, width):
    n = torch.arange(width // 2)
    angle = torch.outer(torch.arange(length).float(), torch.exp(-math.log(10000) * 2 * n / width))
    table = torch.zeros(length, width)
    table[:, ::2], table[:, 1::2] = angle.sin(), angle.cos()
    return table
'''),
    Right("ex08-2-position-table", "helper cell, lambda", '''\
position_table = lambda length, width: torch.sin(clocks(length, width) + phase(width))
''', before=('''\
def clocks(length, width):
    column = torch.arange(width)
    return torch.arange(length)[:, None] / 10000 ** ((column - column % 2) / width)

def phase(width):
    return torch.tensor([0, math.pi / 2]).repeat(width // 2)
''',)),
    Right("ex08-2-position-table", "lru_cache, decorator, NumPy array for a tensor, innocent names", '''\
from functools import lru_cache
import numpy as np

@lru_cache(maxsize=None)
def position_table(length, width):
    sinusoidal_table = np.empty((length, width))
    angles = np.outer(np.arange(length), 10000.0 ** (-np.arange(0, width, 2) / width))
    sinusoidal_table[:, 0::2] = np.sin(angles)
    sinusoidal_table[:, 1::2] = np.cos(angles)
    return sinusoidal_table
'''),
    Right("ex08-3-shift-matrix", "Python loops, float32", '''\
def shift_matrix(k, width):
    M = torch.zeros(width, width)
    for j in range(0, width, 2):
        b = k / 10000 ** (j / width)
        M[j, j] = M[j + 1, j + 1] = math.cos(b)
        M[j, j + 1], M[j + 1, j] = -math.sin(b), math.sin(b)
    return M
'''),
    Right("ex08-3-shift-matrix", "scipy, NumPy array for a tensor", '''\
import numpy as np
from scipy.linalg import block_diag

def shift_matrix(k, width):
    angles = k / 10000 ** (np.arange(0, width, 2) / width)
    return block_diag(*[[[np.cos(b), -np.sin(b)], [np.sin(b), np.cos(b)]] for b in angles])
''', needs=("scipy",)),
    Right("ex08-3-shift-matrix", "innocent names, no_grad", '''\
@torch.no_grad()
def shift_matrix(delta, width):
    angles = delta * 10000.0 ** (-torch.arange(0, width, 2).double() / width)
    turns = torch.polar(torch.ones_like(angles), angles)
    solved = torch.zeros(width, width, dtype=torch.float64)
    even, odd = torch.arange(0, width, 2), torch.arange(1, width, 2)
    solved[even, even] = solved[odd, odd] = turns.real
    solved[odd, even], solved[even, odd] = turns.imag, -turns.imag
    return solved
'''),
    Right("ex08-4-rotate", "Python loops, helper cell", '''\
def rotate(x, offset):
    out = torch.empty_like(x)
    for t in range(x.shape[2]):
        out[:, :, t] = x[:, :, t] @ turn_at(offset + t, x.shape[3]).to(x.dtype).T
    return out
''', before=('''\
def turn_at(i, K):
    """The block diagonal matrix of one position."""
    angles = [i * 10000 ** (-2 * n / K) for n in range(K // 2)]
    return torch.block_diag(*[torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in angles])
''',)),
    Right("ex08-4-rotate", "einops, keyword-only", '''\
from einops import rearrange

def rotate(x, offset, *, base=10000.0):
    a, b = rearrange(x, "b h t (n two) -> two b h t n", two=2)
    angle = torch.outer(offset + torch.arange(x.shape[2]), base ** (-torch.arange(a.shape[3]) / a.shape[3]))
    c, s = torch.cos(angle), torch.sin(angle)
    return rearrange([a * c - b * s, a * s + b * c], "two b h t n -> b h t (n two)")
''', needs=("einops",)),
    Right("ex08-4-rotate", "not contiguous", '''\
def rotate(x, offset):
    pairs = torch.view_as_complex(x.unflatten(-1, (-1, 2)).contiguous())
    speeds = 10000.0 ** (-torch.arange(pairs.shape[-1]) / pairs.shape[-1])
    turns = torch.exp(1j * (offset + torch.arange(x.shape[-2]))[:, None] * speeds)
    return torch.view_as_real(pairs * turns).flatten(-2)
'''),
    Right("ex08-5-alibi-bias", "Python loops, float32, negative zero", '''\
def alibi_bias(num_heads, T, S):
    return torch.tensor([[[-abs(j - i) * 2 ** (-8 * h / num_heads) for j in range(S)] for i in range(S - T, S)]
                         for h in range(1, num_heads + 1)])
'''),
    Right("ex08-5-alibi-bias", "einsum, helper cell", '''\
def alibi_bias(num_heads, T, S):
    whole = torch.abs(places(S)[:, None] - places(S)[None, :])  # of all positions
    m = torch.logspace(-8 / num_heads, -8, num_heads, base=2.0)
    return torch.einsum("h,ts->hts", -m, whole[S - T :])
''', before=('''\
def places(S):
    return torch.arange(S, dtype=torch.float32)
''',)),
    Right("ex08-5-alibi-bias", "NumPy array for a tensor", '''\
import numpy as np

def alibi_bias(num_heads, T, S):
    slopes = np.power(2.0, -8 * (1 + np.arange(num_heads)) / num_heads)
    return -slopes.reshape(-1, 1, 1) * np.abs(np.arange(S) - (S - T + np.arange(T))[:, None])
'''),
    Right("ex08-7-scores-with-cache", "innocent names, annotations", '''\
def scores_with_cache(q: torch.Tensor, k: torch.Tensor, cache: torch.Tensor, rotate) -> tuple:
    """The cache keeps the keys as they were; all are turned in each call."""
    raw = torch.cat([cache, k], dim=2)
    turned = rotate(raw, 0)
    new = rotate(q, raw.shape[2] - q.shape[2])
    return (new / math.sqrt(q.shape[-1])) @ turned.mT, raw
'''),
    Right("ex08-7-scores-with-cache", "Python loops", '''\
def scores_with_cache(q, k, cache, rotate):
    rows = []
    start = cache.shape[2]
    for t in range(k.shape[2]):
        cache = torch.cat([cache, rotate(k[:, :, t : t + 1], start + t)], dim=2)
    for t in range(q.shape[2]):
        query = rotate(q[:, :, t : t + 1], start + t)
        rows.append((query * cache).sum(-1, keepdim=True).transpose(2, 3))
    return torch.cat(rows, dim=2) / q.shape[-1] ** 0.5, cache
'''),
    Right("ex08-7-scores-with-cache", "einsum, list for tuple", '''\
def scores_with_cache(q, k, cache, rotate):
    P, K = cache.shape[-2:]
    keys = torch.cat((cache, rotate(k, P)), -2)
    return [torch.einsum("bhtk,bhsk->bhts", rotate(q, P), keys) / K**0.5, keys]
'''),
    # --- 09 ---------------------------------------------------------------------------------
    Right("ex09-1-layer-norm", "Python loops, float32, compared with torch's own", '''\
def layer_norm(x, weight, bias, eps):
    out = torch.empty(x.shape)
    for b in range(x.shape[0]):
        for t in range(x.shape[1]):
            v = x[b, t]
            out[b, t] = weight * (v - v.mean()) / (v.var(unbiased=False) + eps) ** 0.5 + bias
    return out

''', after=('''\
x = torch.randn(2, 3, 4)
assert torch.allclose(layer_norm(x, torch.ones(4), torch.zeros(4), 1e-5), F.layer_norm(x, (4,)), atol=1e-5)
''',)),
    Right("ex09-1-layer-norm", "NumPy array for a tensor", '''\
def layer_norm(x, weight, bias, eps):
    x, weight, bias = x.numpy(), weight.numpy(), bias.numpy()
    return weight * (x - x.mean(-1, keepdims=True)) / (x.var(-1, keepdims=True) + eps) ** 0.5 + bias
'''),
    Right("ex09-2-residuals-by-hand", "NumPy numbers, helper cell", '''\
first_entries = tuple(form[0] for form in (norm(x + f(x)), x + f(norm(x)), x + 0.5 * f(x), norm(x) + f(norm(x))))
''', before=('''\
import numpy as np
x = np.array([6, 0, 0])
f = lambda u: 2 * u
norm = lambda x: (x - x.mean()) / x.std()
''',)),
    Right("ex09-3-encoder-block", "einsum, innocent names, helper cell", '''\
def encoder_block(x, mask, p, num_heads):
    multi_head, split_heads = [], (F.linear(x, p["in_proj_weight"], p["in_proj_bias"])
                                   .unflatten(-1, (3, num_heads, -1)).permute(2, 3, 0, 1, 4))
    for q, k, v in zip(*split_heads):
        scores = torch.einsum("btk,bsk->bts", q, k) / q.shape[-1] ** 0.5
        scores[~mask[:, None].expand_as(scores)] = float("-inf")
        multi_head.append(scores.softmax(-1) @ v)
    x = normed(x + F.linear(torch.cat(multi_head, -1), p["out_weight"], p["out_bias"]), p["gain1"], p["offset1"])
    hidden = torch.relu(F.linear(x, p["weight1"], p["bias1"]))
    return normed(x + F.linear(hidden, p["weight2"], p["bias2"]), p["gain2"], p["offset2"])
''', before=('''\
def normed(x, gain, offset, eps=1e-5):
    x = x - x.mean(-1, keepdim=True)
    return gain * x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() + offset
''',)),
    Right("ex09-3-encoder-block", "einops", '''\
from einops import rearrange

def encoder_block(x, mask, p, num_heads):
    qkv = F.linear(x, p["in_proj_weight"], p["in_proj_bias"])
    q, k, v = rearrange(qkv, "b t (three h k) -> three b h t k", three=3, h=num_heads)
    scores = torch.einsum("bhtk,bhsk->bhts", q, k) / q.shape[-1] ** 0.5
    scores = scores.masked_fill(rearrange(~mask, "b s -> b 1 1 s"), -torch.inf)
    heads = rearrange(scores.softmax(-1) @ v, "b h t k -> b t (h k)")
    x = F.layer_norm(x + F.linear(heads, p["out_weight"], p["out_bias"]), x.shape[-1:], p["gain1"], p["offset1"])
    y = F.linear(F.relu(F.linear(x, p["weight1"], p["bias1"])), p["weight2"], p["bias2"])
    return F.layer_norm(x + y, x.shape[-1:], p["gain2"], p["offset2"])
''', needs=("einops",)),
    Right("ex09-4-cross-attention", "classmethod, own class", '''\
class CrossAttention:
    @classmethod
    def apply(cls, x, memory, memory_mask, W_q, W_k, W_v):
        return F.scaled_dot_product_attention(
            F.linear(x, W_q), F.linear(memory, W_k), F.linear(memory, W_v), attn_mask=memory_mask[:, None]
        )

cross_attention = CrossAttention.apply
'''),
    Right("ex09-5-continue-greedily", "recursion", '''\
def continue_greedily(model, prompt, stop, max_new):
    if max_new == 0:
        return []
    word = int(model(torch.tensor(prompt)[None])[0, -1].argmax())
    return [] if word == stop else [word, *continue_greedily(model, [*prompt, word], stop, max_new - 1)]
'''),
    Right("ex09-5-continue-greedily", "NumPy array for numbers, text like magics", '''\
NOTES = """
%time is not needed here
!and this is a note
"""

def continue_greedily(model, prompt, stop, max_new):
    import numpy as np
    text = np.array(prompt)
    while len(text) < len(prompt) + max_new:
        word = model(torch.from_numpy(text)[None]).numpy()[0, -1].argmax()
        if word == stop:
            break
        text = np.append(text, word)
    return text[len(prompt):]

assert NOTES.count("\\n%time") == 1 and "\\n!and" in NOTES
'''),
    Right("ex09-1-layer-norm", "einsum, keyword-only, lambda", '''\
layer_norm = lambda x, weight, bias, eps: torch.einsum(
    "btd,d,bt->btd", (c := x - x.mean(2)[..., None]), weight, (c.square().mean(2) + eps).rsqrt()) + bias
'''),
    Right("ex09-2-residuals-by-hand", "0-d tensors, list for tuple", '''\
u = torch.tensor([6.0, 0, 0])
n = F.layer_norm(u, (3,), eps=0.0)
first_entries = [F.layer_norm(3 * u, (3,), eps=0.0)[0], u[0] + 2 * n[0], u[0] + u[0], 3 * n[0]]
'''),
    Right("ex09-2-residuals-by-hand", "Fraction, NumPy array for numbers", '''\
from fractions import Fraction
import numpy as np
variance = Fraction(16 + 4 + 4, 3)
first_entries = np.array([4, 6 * float(variance) ** 0.5 + 8, 12 * float(variance) ** 0.5, 12]) / float(variance) ** 0.5
'''),
    Right("ex09-3-encoder-block", "Python loops, own class", '''\
class Block:
    def __call__(self, x, real, p, num_heads):
        rows = []
        for row, told in zip(x, real):
            q, k, v = F.linear(row, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, 1)
            heads = [(a @ b[told].T / a.shape[1] ** 0.5).softmax(1) @ c[told]
                     for a, b, c in zip(*(part.chunk(num_heads, 1) for part in (q, k, v)))]
            rows.append(torch.cat(heads, 1) @ p["out_weight"].T + p["out_bias"])
        y = F.layer_norm(x + torch.stack(rows), (x.shape[2],), p["gain1"], p["offset1"])
        z = (y @ p["weight1"].T + p["bias1"]).clamp_min(0) @ p["weight2"].T + p["bias2"]
        return F.layer_norm(y + z, (x.shape[2],), p["gain2"], p["offset2"])

encoder_block = Block()
'''),
    Right("ex09-4-cross-attention", "Python loops, not contiguous", '''\
def cross_attention(x, memory, real, W_q, W_k, W_v):
    rows = []
    for asks, told, there in zip(x, memory, real):
        told = told[there]
        rows.append((((told @ W_k.T) @ (asks @ W_q.T).T / len(W_q) ** 0.5).softmax(0).T @ (told @ W_v.T)))
    return torch.stack(rows, -1).permute(2, 0, 1)
'''),
    Right("ex09-4-cross-attention", "einsum, innocent names", '''\
def cross_attention(x, memory, real, W_q, W_k, W_v):
    scores = torch.einsum("btd,qd,qe,bse->bts", x, W_q, W_k, memory) / x.size(2) ** 0.5
    attention = (scores + torch.zeros_like(real, dtype=x.dtype).masked_fill(~real, -torch.inf)[:, None]).softmax(2)
    return torch.einsum("bts,bsd,ed->bte", attention, memory, W_v)
'''),
    Right("ex09-5-continue-greedily", "generator, annotations", '''\
from itertools import islice, takewhile

def continue_greedily(model, prompt: list[int], eos_id: int, max_new_tokens: int) -> list[int]:
    def words():
        ids = list(prompt)
        while True:
            ids.append(int(model(torch.tensor(ids).unsqueeze(0))[0][-1].max(0).indices))
            yield ids[-1]

    return list(takewhile(lambda word: word != eos_id, islice(words(), max_new_tokens)))
'''),
    Right("ex09-7-own-transformer", "helper cell, innocent names", '''\
class OwnTransformer:
    def __init__(self, weights, num_heads):
        self.weights, self.num_heads = weights, num_heads

    def encode(self, source, real):
        x = placed(self.weights["source_table"], source)
        for p in self.weights["encoder"]:
            x = rest(add_and_norm(x, multi_head(x, x, p, "", self.num_heads, mask=real[:, None, None]), p, 1), p, 2)
        return x

    def decode(self, target_in, memory, real):
        y = placed(self.weights["target_table"], target_in)
        for p in self.weights["decoder"]:
            y = add_and_norm(y, multi_head(y, y, p, "", self.num_heads, causal=True), p, 1)
            cross_attention = multi_head(y, memory, p, "cross_", self.num_heads, mask=real[:, None, None])
            y = rest(add_and_norm(y, cross_attention, p, 2), p, 3)
        return y @ self.weights["target_table"].T

    def learn(self, optimizer, source, real, target_in, target_out, pad):
        optimizer.zero_grad()
        logits = self.decode(target_in, self.encode(source, real), real)
        told = target_out != pad
        loss = F.cross_entropy(logits[told], target_out[told])
        loss.backward()
        optimizer.step()
        return loss.detach()

    def translate(self, source, sos, eos, max_new_tokens):
        ids = torch.tensor([source])
        real = ids == ids
        memory = self.encode(ids, real)
        return continue_greedily(lambda words: self.decode(words, memory, real), [sos], eos, max_new_tokens)
''', before=('''\
def dot_product_attention(q, k, v, mask=None, causal=False):
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    if causal:
        scores = scores.masked_fill(torch.ones_like(scores).triu(1) > 0, -torch.inf)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.softmax(-1) @ v

def split(x, H):
    return x.view(*x.shape[:2], H, -1).transpose(1, 2)

def multi_head(x, told, p, name, H, **seen):
    D = x.shape[-1]
    W, b = p[f"{name}in_proj_weight"], p[f"{name}in_proj_bias"]
    q = F.linear(x, W[:D], b[:D])
    k, v = F.linear(told, W[D:], b[D:]).chunk(2, -1)
    heads = dot_product_attention(split(q, H), split(k, H), split(v, H), **seen)
    return F.linear(heads.transpose(1, 2).flatten(2), p[f"{name}out_weight"], p[f"{name}out_bias"])

def add_and_norm(x, more, p, i):
    return F.layer_norm(x + more, x.shape[-1:], p[f"gain{i}"], p[f"offset{i}"])

def rest(x, p, i):
    hidden = F.relu(F.linear(x, p["weight1"], p["bias1"]))
    return add_and_norm(x, F.linear(hidden, p["weight2"], p["bias2"]), p, i)

def placed(table, ids):
    D = table.shape[1]
    angle = torch.arange(ids.shape[1])[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
    return table[ids] * D**0.5 + torch.stack([angle.sin(), angle.cos()], -1).flatten(1)

def continue_greedily(model, prompt, eos_id, max_new_tokens):
    ids = list(prompt)
    for _ in range(max_new_tokens):
        word = model(torch.tensor([ids]))[0, -1].argmax().item()
        if word == eos_id:
            break
        ids.append(word)
    return ids[len(prompt):]
''',)),
    Right("ex09-7-own-transformer", "einsum, own class, recursion, 0-d tensors", '''\
class OwnTransformer(Parts):
    def encode(self, source, real):
        x = self.table("source_table", source)
        for p in self.weights["encoder"]:
            x = self.layer(x, p, [(x, "", real[:, None, None])])
        return x

    def decode(self, target_in, memory, real):
        y, T = self.table("target_table", target_in), torch.arange(target_in.shape[1])
        for p in self.weights["decoder"]:
            y = self.layer(y, p, [(None, "", (T <= T[:, None])[None, None]), (memory, "cross_", real[:, None, None])])
        return torch.einsum("btd,vd->btv", y, self.weights["target_table"])

    def learn(self, optimizer, source, real, target_in, target_out, pad):
        log_p = self.decode(target_in, self.encode(source, real), real).log_softmax(-1)
        loss = F.nll_loss(log_p.flatten(0, 1), target_out.flatten(), ignore_index=pad)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        return loss.item()

    def translate(self, source, sos, eos, max_new_tokens):
        ids = torch.tensor(source)[None]
        real = torch.ones(ids.shape).bool()
        memory = self.encode(ids, real)

        def more(words, left):
            if not left:
                return []
            best = self.decode(torch.tensor([words]), memory, real)[0, -1].argmax()
            return [] if best == eos else [best, *more([*words, int(best)], left - 1)]

        return more([sos], max_new_tokens)
''', before=('''\
class Parts:
    def __init__(self, weights, num_heads):
        self.weights, self.num_heads = weights, num_heads

    def table(self, name, ids):
        E = self.weights[name]
        T, D = ids.shape[1], E.shape[1]
        angles = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return E[ids] * E.shape[1] ** 0.5 + waves

    def layer(self, x, p, looks):
        for i, (told, name, mask) in enumerate(looks, 1):
            x = self.norm(x + self.look(x, x if told is None else told, p, name, mask), p, i)
        ff = torch.einsum("btf,df->btd", F.linear(x, p["weight1"], p["bias1"]).clamp(min=0), p["weight2"]) + p["bias2"]
        return self.norm(x + ff, p, len(looks) + 1)

    def norm(self, x, p, i):
        return F.layer_norm(x, [x.shape[-1]], p[f"gain{i}"], p[f"offset{i}"], 1e-5)

    def look(self, x, told, p, name, mask):
        W = p[f"{name}in_proj_weight"].unflatten(0, (3, self.num_heads, -1))
        b = p[f"{name}in_proj_bias"].unflatten(0, (3, self.num_heads, 1, -1))
        q, k, v = (torch.einsum("btd,hkd->bhtk", y, w) + c for y, w, c in zip((x, told, told), W, b))
        scores = torch.einsum("bhtk,bhsk->bhts", q, k) / k.shape[-1] ** 0.5
        weights = scores.masked_fill(~mask, -1e300).softmax(-1) if x.dtype == torch.float64 else (
            scores.masked_fill(~mask, -1e30).softmax(-1))
        heads = torch.einsum("bhts,bhsk->bthk", weights, v).flatten(2)
        return F.linear(heads, p[f"{name}out_weight"], p[f"{name}out_bias"])
''',)),
    Right("ex09-7-own-transformer", "nn.Module instance, *args, walrus, Python loops", '''\
class OwnTransformer(nn.Module):
    def __init__(self, weights, num_heads):
        super().__init__()
        self.w, self.H = weights, num_heads

    def heads(self, x, told, p, name, seen):
        D = x.shape[-1]
        q, k, v = (y @ W.T + b for y, W, b in zip(
            (x, told, told), p[name + "in_proj_weight"].split(D), p[name + "in_proj_bias"].split(D)))
        found = []
        for h in range(self.H):
            part = slice(h * (K := D // self.H), (h + 1) * K)
            scores = q[..., part] @ k[..., part].mT * K**-0.5
            found += [torch.where(seen, scores, -math.inf).softmax(-1) @ v[..., part]]
        return torch.cat(found, -1) @ p[name + "out_weight"].T + p[name + "out_bias"]

    def forward(self, x, p, *looks):
        for i, (told, name, seen) in enumerate(looks, start=1):
            x = x + self.heads(x, x if told is None else told, p, name, seen)
            x = F.layer_norm(x, x.shape[-1:], p[f"gain{i}"], p[f"offset{i}"])
        x = x + (x @ p["weight1"].T + p["bias1"]).relu() @ p["weight2"].T + p["bias2"]
        return F.layer_norm(x, x.shape[-1:], p[f"gain{len(looks) + 1}"], p[f"offset{len(looks) + 1}"])

    def embed(self, table, ids):
        T, D = ids.shape[1], table.shape[1]
        angles = torch.arange(T)[:, None] / 10000 ** (torch.arange(0, D, 2) / D)
        waves = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        return math.sqrt(table.shape[1]) * table[ids] + waves

    def encode(self, source, real):
        x = self.embed(self.w["source_table"], source)
        for p in self.w["encoder"]:
            x = self(x, p, (None, "", real[:, None]))
        return x

    def decode(self, target_in, memory, real):
        y = self.embed(table := self.w["target_table"], target_in)
        past = torch.ones(2 * target_in.shape[1:]).tril().bool()
        for p in self.w["decoder"]:
            y = self(y, p, (None, "", past), (memory, "cross_", real[:, None]))
        return y @ table.T

    def learn(self, optimizer, source, real, target_in, target_out, pad):
        logits = self.decode(target_in, self.encode(source, real), real)
        loss = F.cross_entropy(logits.mT, target_out, ignore_index=pad, reduction="sum") / (target_out != pad).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.tolist()

    def translate(self, source, sos, eos, max_new_tokens):
        memory = self.encode(ids := torch.tensor([source]), real := torch.ones(1, len(source), dtype=torch.bool))
        words = torch.tensor([[sos]])
        for _ in range(max_new_tokens):
            if (best := self.decode(words, memory, real)[:, -1:].argmax(-1)).item() == eos:
                break
            words = torch.cat([words, best], 1)
        return words[0, 1:]
'''),
    # --- 10 ---------------------------------------------------------------------------------
    Right("ex10-1-attention-operations", "lru_cache, decorator, Enum, innocent names, helper cell", '''\
import functools

@functools.lru_cache
def attention_operations(B, T, D, H, K):
    multi_head = 4 * [(B * T, D, H * K)] + [(B * H * T, K, T), (B * H * T, T, K)]
    return Cost.TERM * sum(map(math.prod, multi_head))
''', before=('''\
from enum import IntEnum

class Cost(IntEnum):
    TERM = 2  # a multiplication and its addition
''',)),
    Right("ex10-1-attention-operations", "Python loops, 0-d tensors", '''\
def attention_operations(B, T, D, H, K):
    """Carry out every product on empty tensors and count as the text says."""
    total = torch.tensor(0, dtype=torch.int64)
    x, weight = torch.empty(B, T, D, device="meta"), torch.empty(D, H * K, device="meta")
    q, scores = torch.empty(B, H, T, K, device="meta"), torch.empty(B, H, T, T, device="meta")
    for left, right in [(x, weight)] * 3 + [(q, q.mT), (scores, q), (x @ weight, weight.mT)]:
        total += 2 * (left @ right).numel() * left.shape[-1]
    return total.item()
'''),
    Right("ex10-1-attention-operations", "lambda, NumPy numbers", '''\
import numpy as np
attention_operations = lambda B, T, D, H, K: np.int64(4 * B * T * H * K) * (2 * D + T)
'''),
    Right("ex10-2-crossovers", "scipy, list for tuple", '''\
from scipy.optimize import brentq
D = 512
quadratic = lambda T: 4 * T**2 * D
lengths_of_equality = [brentq(lambda T: quadratic(T) + 8 * T * D**2 - 12 * T * D**2, 1, 1e5),
                       brentq(lambda T: quadratic(T) - 8 * T * D**2, 1, 1e5),
                       brentq(lambda T: quadratic(T) - 16 * T * D**2, 1, 1e5)]
''', needs=("scipy",)),
    Right("ex10-2-crossovers", "NumPy array for numbers, float32", '''\
import numpy as np
lengths_of_equality = 512 * np.float32([1, 2, 4])
'''),
    Right("ex10-2-crossovers", "Fraction, generator, tuple for list", '''\
from fractions import Fraction
D = 512
slopes = ((8, 12), (0, 8), (0, 8 + 4 * 2))  # left and right sides in T D^2, beside 4 T^2 D on the left
lengths_of_equality = tuple(Fraction(right - left, 4) * D for left, right in slopes)
'''),
    Right("ex10-3-cross-operations", "NumPy numbers, innocent names", '''\
import numpy as np

def cross_operations(B, T, S, D, H, F):
    """2 for each multiplication with its addition; no FlopCounterMode."""
    count_operations = np.array([2 * T * D * D, 2 * S * D * D, 2 * T * S * D, 2 * T * D * F])
    return 2 * B * count_operations.sum()
'''),
    Right("ex10-3-cross-operations", "Python loops, helper cell", '''\
def cross_operations(B, T, S, D, H, F):
    total = 0
    for _ in range(B):
        for _ in range(H):  # a head makes its own queries, keys, values, and its part of the output
            total += product(T, D, D // H) + 2 * product(S, D, D // H) + product(T, D // H, D)
            total += product(T, D // H, S) + product(T, S, D // H)
        total += product(T, D, F) + product(T, F, D)
    return total
''', before=('''\
def product(rows, inner, columns):
    return 2 * rows * inner * columns
''',)),
    Right("ex10-3-cross-operations", "einsum, float32, annotations", '''\
def cross_operations(B: int, T: int, S: int, D: int, H: int, F: int) -> float:
    sizes = torch.tensor([[T, D, D], [S, D, D], [T, S, D], [T, D, F]], dtype=torch.float32)
    return float(torch.einsum("i,i->", 4.0 * B * torch.ones(4), sizes.prod(1)))
'''),
    Right("ex10-4-parameters-by-hand", "NumPy array for numbers, compared with torch's own", '''\
import numpy as np
D, F_, layers = 512, 2048, 6
attention_ = 4 * D * (D + 1)
network = D * F_ + F_ + F_ * D + D
encoder, decoder = attention_ + network + 4 * D, 2 * attention_ + network + 6 * D
by_hand = np.cumsum([encoder, decoder - encoder, layers * (encoder + decoder) - decoder, 37_000 * D])
assert sum(p.numel() for p in nn.TransformerEncoderLayer(D, 8, F_).parameters()) == encoder
'''),
    Right("ex10-4-parameters-by-hand", "own class, generator, list for tuple", '''\
class Shapes(list):
    """A list of shapes; its size is the number of all entries."""

    @property
    def size(self):
        return sum(math.prod(shape) for shape in self)

D, F = 512, 2048
attention_of = Shapes([(D, D), (D,)] * 4)
network, norm = Shapes([(F, D), (F,), (D, F), (D,)]), Shapes([(D,), (D,)])
encoder = Shapes(attention_of + network + norm + norm)
decoder = Shapes(encoder + attention_of + norm)
layers = Shapes(6 * (encoder + decoder))
by_hand = [part.size for part in (encoder, decoder, layers, Shapes([*layers, (37_000, D)]))]
'''),
    Right("ex10-4-parameters-by-hand", "0-d tensors, match", '''\
def linear(inputs, outputs):
    return torch.tensor(inputs * outputs + outputs, dtype=torch.int64)

def sublayer(kind):
    match kind:
        case "attention":
            return 4 * linear(512, 512) + 2 * 512
        case "network":
            return linear(512, 2048) + linear(2048, 512) + 2 * 512

a, b = (sum(map(sublayer, kinds)) for kinds in (["attention", "network"], ["attention", "attention", "network"]))
by_hand = (a, b, 6 * a + 6 * b, 6 * a + 6 * b + 37_000 * 512)
'''),
    Right("ex10-5-positions-seen", "jacrev, lambda", '''\
def positions_seen(model, x):
    slopes = torch.func.jacrev(lambda x: model(x)[:, -1])(x)  # (B, E, B, T, D)
    return slopes.ne(0).any(dim=(0, 1, 2, 4))
'''),
    Right("ex10-5-positions-seen", "Python loops, NumPy array for a tensor", '''\
import numpy as np

def positions_seen(model, x):
    found = np.zeros(x.shape[1], dtype=bool)
    for b in range(len(x)):
        row = x[b : b + 1].clone().requires_grad_()
        for entry in model(row)[0, -1]:
            (slope,) = torch.autograd.grad(entry, row, retain_graph=True)
            found |= (slope[0].numpy() != 0).any(1)
    return found
'''),
    Right("ex10-5-positions-seen", "own class, requires_grad, list for tuple", '''\
class Probe:
    def __init__(self, model, x):
        self.x = x.clone().detach().requires_grad_(True)
        self.last = model(self.x)[:, -1, :]

    def slopes(self):
        for e in range(self.last.shape[1]):
            self.x.grad = None
            self.last[:, e].dot(torch.rand(len(self.last), dtype=self.last.dtype) + 1).backward(retain_graph=True)
            yield self.x.grad

def positions_seen(model, x):
    return torch.stack([(g.abs() > 0).any(2).any(0) for g in Probe(model, x).slopes()]).any(0)
'''),
    # --- 11 ---------------------------------------------------------------------------------
    Right("ex11-1-layer-norm-backward", "einsum, *args", '''\
def layer_norm_backward(x, gradient, *args):
    eps, = args or (1e-5,)
    D = x.shape[-1]
    centred = x - x.mean(-1, keepdim=True)
    s = (torch.einsum("btd,btd->bt", centred, centred) / D + eps).rsqrt()[..., None]
    hat = centred * s
    along = torch.einsum("btd,btd,bte->bte", gradient, hat, hat) / D
    return s * (gradient - gradient.mean(-1, keepdim=True) - along)
'''),
    Right("ex11-2-radam-by-hand", "NumPy numbers, float32, prints", '''\
import numpy as np
beta = np.float32(0.9)
rho_inf = 2 / (1 - beta) - 1
rho = lambda t: rho_inf - 2 * t * beta**t / (1 - beta**t)
r_6 = np.sqrt((rho(6) - 4) * (rho(6) - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho(6)))
by_hand = (np.float32(0.1), rho_inf, rho(1), np.float32(0.1) * 4, r_6, np.float32(0.1) * r_6)
print(by_hand)
'''),
    Right("ex11-3-warmup-stable-decay", "match, int for float", '''\
def warmup_stable_decay(step, warmup, total, decay):
    match step:
        case _ if step >= total:
            return 0
        case _ if step + 1 < warmup:
            return (step + 1) / warmup
        case _ if step > total - decay:
            return (total - step) / decay
    return 1
'''),
    Right("ex11-3-warmup-stable-decay", "NumPy numbers, partial", '''\
import functools

import numpy as np

def trapezoid(heights, step, warmup, total, decay):
    return np.interp(step, [-1, warmup - 1, total - decay, total], heights)

warmup_stable_decay = functools.partial(trapezoid, [0, 1, 1, 0])
'''),
    Right("ex11-4-pre-ln-block", "nn.Module instance, classmethod", '''\
class PreLN(nn.Module):
    @classmethod
    def ready(cls):
        return cls().eval()

    def forward(self, x, attend, feed_forward, norm1, norm2):
        x = x + attend(norm1(x))
        return x + feed_forward(norm2(x))

pre_ln_block = PreLN.ready()
'''),
    Right("ex11-6-decaying-names", "list for tuple, Python loops, helper cell", '''\
def decaying_names(model):
    names = []
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1 and not any(parameter is table for table in embedding_tables(model)):
            names.append(name)
    return names
''', after=('''\
def embedding_tables(model):
    """The helper stands below the answer."""
    for module in model.modules():
        if type(module) is nn.Embedding:
            yield module.weight
''',)),
    Right("ex11-7-train-steps", "generator, continuation lines", '''\
def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    assert (len(micro_batches)
            % accumulate) == 0

    def backward(batch):
        loss, count = loss_fn(model, batch)
        loss.backward()
        return count

    for group in zip(*[iter(micro_batches)] * accumulate):
        optimizer.zero_grad()
        total = sum(backward(batch) for batch in group)
        for parameter in model.parameters():
            parameter.grad /= total
        nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()
'''),
    Right("ex11-7-train-steps", "Python loops, *args", '''\
def train_steps(model, micro_batches, loss_fn, *rest):
    """The sum is clipped at max_norm times the count, then divided: the same."""
    optimizer, scheduler, accumulate, max_norm = rest
    optimizer.zero_grad()
    total = 0
    for i, batch in enumerate(micro_batches):
        loss, count = loss_fn(model, batch)
        loss.backward()
        total += count
        if (i + 1) % accumulate == 0:
            nn.utils.clip_grad_norm_(model.parameters(), max_norm * total)
            for parameter in model.parameters():
                parameter.grad = parameter.grad / total
            optimizer.step()
            optimizer.zero_grad()
            scheduler.step()
            total = 0
'''),
    # --- 12 ---------------------------------------------------------------------------------
    Right("ex12-1-hide", "NumPy array for a tensor", '''\
import numpy as np

def hide(ids, maskable, choose, fate, others, mask_id):
    ids, maskable, choose, fate, others = (given.numpy() for given in (ids, maskable, choose, fate, others))
    chosen = maskable & (choose < 0.15)
    inputs = np.select([chosen & (fate < 0.8), chosen & (fate >= 0.9)], [mask_id, others], ids)
    return inputs, np.where(chosen, ids, -100)
'''),
    Right("ex12-1-hide", "walrus, list for tuple", '''\
def hide(ids, maskable, choose, fate, others, mask_id):
    inputs, targets = ids.clone(), torch.full_like(ids, -100)
    targets = torch.where(chosen := maskable & (choose < 0.15), ids, targets)
    inputs[chosen & (fate >= 0.8)] = others[chosen & (fate >= 0.8)]
    inputs[chosen & (fate < 0.9)] = ids[chosen & (fate < 0.9)]
    inputs[chosen & (fate < 0.8)] = mask_id
    return [inputs, targets]
'''),
    Right("ex12-2-blank-loss", "continuation lines, 0-d tensors", '''\
def chosen_loss(logits, targets):
    asked = (targets
             != -100)
    per_row = (7
               % 4)
    assert per_row == 3
    picked = logits[asked]
    return (picked.logsumexp(1) - picked[torch.arange(len(picked)), targets[asked]]).mean()
'''),
    Right("ex12-2-blank-loss", "await, Python loops", '''\
import asyncio
await asyncio.sleep(0)

def chosen_loss(logits, targets):
    rows = [(row, target) for row, target in zip(logits.flatten(0, 1), targets.flatten()) if target != -100]
    return sum(row.exp().sum().log() - row[target] for row, target in rows) / len(rows)
''', jupyter=True),
    Right("ex12-3-pretraining-step", "own parts, 0-d tensors", '''\
def pretraining_step(network, optimizer, ids, real, choose, fate, others):
    words = real & (ids >= FIRST)
    inputs, targets = hide(ids, words, choose, fate, others, MASK)
    loss = chosen_loss(network(inputs, real), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.detach()
''', before=('''\
def hide(ids, maskable, choose, fate, others, mask_id):
    chosen = maskable & (choose < 0.15)
    inputs = torch.where(chosen & (fate >= 0.9), others, ids)
    inputs[chosen & (fate < 0.8)] = mask_id
    return inputs, ids.masked_fill(~chosen, -100)
''', '''\
def chosen_loss(logits, targets):
    return F.cross_entropy(logits.transpose(1, 2), targets)
''')),
    Right("ex12-3-pretraining-step", "autograd.grad, walrus", '''\
def pretraining_step(network, optimizer, ids, real, choose, fate, others):
    inputs = ids.clone()
    if (chosen := (ids >= FIRST) & (choose < 0.15)).any():
        inputs[chosen & (fate >= 0.9)] = others[chosen & (fate >= 0.9)]
        inputs[chosen & (fate < 0.8)] = MASK
    log_probs = network(inputs, real).log_softmax(dim=2)
    loss = -log_probs[chosen][torch.arange(chosen.sum()), ids[chosen]].mean()
    weights = list(network.parameters())
    for weight, slope in zip(weights, torch.autograd.grad(loss, weights)):
        weight.grad = slope
    optimizer.step()
    return float(loss.detach())
'''),
    Right("ex12-3-pretraining-step", "gradients cleared last, one-hot", '''\
def pretraining_step(network, optimizer, ids, real, choose, fate, others):
    network.zero_grad()
    chosen = real.logical_and(ids.ge(FIRST)).logical_and(choose.lt(0.15))
    kept = torch.where(fate.ge(0.9), others, ids)
    inputs = torch.where(chosen, torch.where(fate.lt(0.8), torch.tensor(MASK), kept), ids)
    logits = network(inputs, real)
    wanted = F.one_hot(ids, logits.shape[-1]) * chosen[..., None]
    loss = -(wanted * logits.log_softmax(-1)).sum() / chosen.sum()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.item()
'''),
    Right("ex12-4-wordpiece", "recursion, innocent names, getsource, progress bar", '''\
import inspect
from tqdm.auto import tqdm

def wordpiece(word, vocab, mark=""):
    for end in range(len(word), 0, -1):
        if mark + word[:end] in vocab:
            if end == len(word):
                return [mark + word]
            tokenizer = wordpiece(word[end:], vocab, "##")
            return ["[UNK]"] if tokenizer == ["[UNK]"] else [mark + word[:end], *tokenizer]
    return ["[UNK]"]

assert "tokenizer" in inspect.getsource(wordpiece)
for word in tqdm(["play", "playing"]):
    print(wordpiece(word, {"play", "##ing"}))
''', jupyter=True),
    Right("ex12-6-bert-parameters", "NumPy numbers, innocent names", '''\
import numpy as np

def bert_parameters(V, L, D, N, F):
    outside = [(V, D), (L, D), (2, D), (2, D), (D + 1, D)]
    layer = [(4, D, D + 1), (D + 1, F), (F + 1, D), (4, D)]
    number_of_parameters = sum(map(np.prod, outside + N * layer))
    return number_of_parameters
'''),
    Right("ex12-7-similarities", "scipy, Python loops, NumPy array for a tensor", '''\
from scipy.spatial.distance import cdist

def similarities(queries, real_queries, documents, real_documents):
    asked = [x[there].numpy().mean(0) for x, there in zip(queries, real_queries)]
    found = [x[there].numpy().mean(0) for x, there in zip(documents, real_documents)]
    return torch.from_numpy(1 - cdist(asked, found, "cosine"))
''', needs=("scipy",)),
    Right("ex12-7-similarities", "einsum, compared with torch's own", '''\
def means(x, real):
    return torch.einsum("btd,bt->bd", x, real.to(x.dtype)) / real.sum(1, keepdim=True)

def similarities(queries, real_queries, documents, real_documents):
    a, b = means(queries, real_queries), means(documents, real_documents)
    cosines = a @ b.T / torch.outer(a.norm(dim=1), b.norm(dim=1))
    torch.testing.assert_close(cosines[0], F.cosine_similarity(a[:1], b))
    return cosines
'''),
    # --- 13 ---------------------------------------------------------------------------------
    Right("ex13-1-tied-gradient", "NumPy array for a tensor, innocent names", '''\
import numpy as np

def tied_gradient(table, ids, targets):
    table, ids, targets = table.numpy(), ids.numpy(), targets.numpy()
    x = table[ids]
    error = np.exp(x @ table.T)
    error /= error.sum(1, keepdims=True)
    error[np.arange(len(ids)), targets] -= 1
    backward = error.T @ x
    np.add.at(backward, ids, error @ table)
    return backward / len(ids)
'''),
    Right("ex13-1-tied-gradient", "einsum, torch.func.grad, compared with torch's own", '''\
def tied_gradient(table, ids, targets):
    read, wanted = (F.one_hot(i, len(table)).to(table.dtype) for i in (ids, targets))
    error = (read @ table @ table.T).softmax(1) - wanted
    both = torch.einsum("tv,tu,ud->vd", error, read, table) + torch.einsum("tv,tu,vd->ud", error, read, table)
    return both / len(ids)
''', after=('''\
E, ids, targets = torch.randn(5, 3, requires_grad=True), torch.tensor([1, 1, 4]), torch.tensor([0, 2, 1])
F.cross_entropy(E[ids] @ E.T, targets).backward()
assert torch.allclose(E.grad, tied_gradient(E.detach(), ids, targets), atol=1e-5)
theirs = torch.func.grad(lambda E: F.cross_entropy(E[ids] @ E.T, targets))(E.detach())
assert torch.allclose(theirs, E.grad)
''',)),
    Right("ex13-2-temperature", "NumPy numbers", '''\
import numpy as np

def softmax(logits, tau):
    p = np.exp(np.array(logits) / tau)
    return p / p.sum()

temperature_numbers = (softmax([2, 1, 1], 1)[0], softmax([2, 1, 1], 1 / 2)[0], np.float16(0.5), np.float32(1) / 3,
                       1 / np.log(3))
'''),
    Right("ex13-3-top-p", "Python loops, float32", '''\
def top_p(probs, p):
    result = []
    for row in probs.tolist():
        kept, total = [0.0] * len(row), 0.0
        for token in sorted(range(len(row)), key=lambda token: -row[token]):
            kept[token] = row[token]
            total += row[token]
            if total >= p:
                break
        result.append([probability / total for probability in kept])
    return torch.tensor(result)
'''),
    Right("ex13-5-cached-step", "einsum, no_grad, decorator", '''\
@torch.no_grad()
def cached_step(x, cache, project, table):
    q, k, v = project(x + table[cache.length])
    cache.keys[:, cache.length] = k
    cache.values[:, cache.length] = v
    cache.length += 1
    keys, values = cache.keys[:, :cache.length], cache.values[:, :cache.length]
    scores = torch.einsum("bd,btd->bt", q, keys) / x.shape[1] ** 0.5
    return torch.einsum("bt,btd->bd", scores.softmax(1), values)
'''),
    Right("ex13-6-training-memory", "lambda, list for tuple, walrus, innocent names", '''\
training_memory = lambda V, L, D, N: [
    number_of_parameters := (V + L + 2) * D + N * (12 * D**2 + 13 * D),
    16 * number_of_parameters,
]
'''),
    Right("ex13-7-training-run", "float32, NumPy array for numbers", '''\
import numpy as np
N = 774e6
tokens, cache = 20 * N, 2 * 36 * 32 * 1024 * 1280 * 2
training_run = np.array([tokens, 6 * N * tokens, 6 * N * tokens / (8 * 0.4 * 4e14 * 24 * 3600), cache / 1e9], "float32")
'''),
    Right("ex13-8-own-gpt", "helper cell, own class, innocent names", '''\
class OwnGPT(Parts):
    def start(self):
        return Store(len(self.weights["blocks"]))

    def logits(self, ids, cache=None):
        cache = Store(len(self.weights["blocks"])) if cache is None else cache
        places = torch.arange(ids.shape[1]) + cache.length
        x = F.embedding(ids, self.weights["table"]) + self.weights["positions"][places]
        for i, p in enumerate(self.weights["blocks"]):
            x = x + self.multi_head_attention(self.layer_norm(x, p, "1"), p, cache, i)
            x = x + self.feed_forward(self.layer_norm(x, p, "2"), p)
        cache.length += ids.shape[1]
        return self.layer_norm(x, self.weights, "") @ self.weights["table"].T

    def probabilities(self, logits, temperature, p):
        return top_p((logits / temperature).softmax(-1), p)

    def write(self, prompt, max_new_tokens, temperature, p, choose):
        cache, text = self.start(), list(prompt)
        while len(text) < len(prompt) + max_new_tokens:
            unread = torch.tensor(text[cache.length :]).unsqueeze(0)
            generate = self.probabilities(self.logits(unread, cache)[:, -1], temperature, p)
            text.append(choose(generate))
        return text[len(prompt) :]
''', before=('''\
def top_p(probs, p):
    values, order = probs.sort(descending=True)
    values[values.cumsum(-1) - values >= p] = 0
    kept = torch.zeros_like(probs).scatter(-1, order, values)
    return kept / kept.sum(-1, keepdim=True)

class Store:
    def __init__(self, blocks):
        self.keys, self.values, self.length = [None] * blocks, [None] * blocks, 0

    def join(self, i, k, v):
        if self.keys[i] is not None:
            k, v = torch.cat([self.keys[i], k], 2), torch.cat([self.values[i], v], 2)
        self.keys[i], self.values[i] = k, v
        return k, v

class Parts:
    def __init__(self, weights, num_heads):
        self.weights, self.H = weights, num_heads

    def layer_norm(self, x, p, i):
        centred = x - x.mean(-1, keepdim=True)
        scale = (centred.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
        return centred * scale * p[f"gain{i}"] + p[f"offset{i}"]

    def multi_head_attention(self, x, p, cache, i):
        parts = F.linear(x, p["in_proj_weight"], p["in_proj_bias"]).chunk(3, -1)
        q, k, v = (part.unflatten(2, (self.H, -1)).transpose(1, 2) for part in parts)
        k, v = cache.join(i, k, v)
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        when = torch.arange(k.shape[2])
        scores = scores.masked_fill(when > when[-q.shape[2] :, None], -torch.inf)
        return F.linear((scores.softmax(-1) @ v).transpose(1, 2).flatten(2), p["out_weight"], p["out_bias"])

    def feed_forward(self, x, p):
        x = F.linear(x, p["weight1"], p["bias1"])
        x = 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
        return F.linear(x, p["weight2"], p["bias2"])
''',)),
    Right("ex13-8-own-gpt", "einsum, dataclass, Python loops, generator, 0-d tensors", '''\
@dataclasses.dataclass
class OwnGPT:
    weights: dict
    num_heads: int

    def start(self):
        return {"read": 0}

    def logits(self, ids, cache=None):
        w = self.weights
        cache = {"read": 0} if cache is None else cache
        rows = []
        for t in range(ids.shape[1]):
            x = w["table"][ids[:, t]] + w["positions"][cache["read"]]
            for i, p in enumerate(w["blocks"]):
                x = self.block(x, p, cache.setdefault(i, ([], [])))
            cache["read"] += 1
            rows += [torch.einsum("bd,vd->bv", F.layer_norm(x, x.shape[1:], w["gain"], w["offset"]), w["table"])]
        return torch.stack(rows, 1)

    def block(self, x, p, kept):
        y = F.layer_norm(x, x.shape[1:], p["gain1"], p["offset1"])
        q, k, v = (torch.einsum("bd,hkd->bhk", y, W) + b for W, b in zip(
            p["in_proj_weight"].unflatten(0, (3, self.num_heads, -1)), p["in_proj_bias"].view(3, self.num_heads, -1)))
        for store, new in zip(kept, (k, v)):
            store.append(new)
        keys, values = (torch.stack(store, 1) for store in kept)
        share = (torch.einsum("bhk,bshk->bhs", q, keys) * q.shape[-1] ** -0.5).softmax(-1)
        x = x + torch.einsum("bhs,bshk->bhk", share, values).flatten(1) @ p["out_weight"].T + p["out_bias"]
        y = F.layer_norm(x, x.shape[1:], p["gain2"], p["offset2"]) @ p["weight1"].T + p["bias1"]
        return x + F.gelu(y, approximate="tanh") @ p["weight2"].T + p["bias2"]

    def probabilities(self, logits, temperature, p):
        logits = torch.as_tensor(logits)
        return torch.stack([self.nucleus(row, p) for row in (logits / temperature).softmax(-1)])

    def nucleus(self, row, p):
        total, kept = 0.0, torch.zeros_like(row)
        for token in row.argsort(descending=True):
            if total < p:
                kept[token] = row[token]
                total = total + row[token]
        return kept / kept.sum()

    def tokens(self, ids, temperature, p, choose):
        cache = self.start()
        while True:
            new = choose(self.probabilities(self.logits(ids, cache)[:, -1], temperature, p))
            ids = torch.tensor([[new]])
            yield ids.squeeze()

    def write(self, prompt, max_new_tokens, temperature, p, choose):
        return list(islice(self.tokens(torch.tensor([prompt]), temperature, p, choose), max_new_tokens))
''', before=('''\
import dataclasses
from itertools import islice
''',)),
    Right("ex13-8-own-gpt", "nn.Module instance, walrus, no_grad, tuple for list", '''\
class OwnGPT(nn.Module):
    def __init__(self, weights, num_heads):
        super().__init__()
        self.w, self.H = weights, num_heads
        self.L, self.D = weights["positions"].shape

    def start(self, B=None):
        return [None, 0]  # keys and values (2, N, B, L, D), made at the first call, and how many are filled

    @torch.no_grad()
    def forward(self, ids, cache):
        (B, T), start = ids.shape, cache[1]
        if cache[0] is None:
            cache[0] = self.w["table"].new_zeros(2, len(self.w["blocks"]), B, self.L, self.D)
        cache[1] = (end := start + T)
        x = self.w["table"][ids] + self.w["positions"][start:end]
        for p, keys, values in zip(self.w["blocks"], *cache[0]):
            y = F.layer_norm(x, [self.D], p["gain1"], p["offset1"])
            W, b = p["in_proj_weight"].split(self.D), p["in_proj_bias"].split(self.D)
            q, keys[:, start:end], values[:, start:end] = (y @ w.T + c for w, c in zip(W, b))
            heads = []
            for h in range(self.H):
                part = slice(h * (K := self.D // self.H), h * K + K)
                scores = q[..., part] @ keys[:, :end, part].mT / K**0.5 + torch.full((T, end), -1e30).triu(start + 1)
                heads += [scores.softmax(-1) @ values[:, :end, part]]
            x = x + F.linear(torch.cat(heads, -1), p["out_weight"], p["out_bias"])
            y = F.layer_norm(x, [self.D], p["gain2"], p["offset2"])
            y = F.gelu(F.linear(y, p["weight1"], p["bias1"]), approximate="tanh")
            x = x + F.linear(y, p["weight2"], p["bias2"])
        return F.layer_norm(x, [self.D], self.w["gain"], self.w["offset"]) @ self.w["table"].T

    def logits(self, ids, cache=None):
        return self(ids, cache or self.start())

    def probabilities(self, logits, temperature, p):
        return top_k_top_p(logits / temperature, top_p=p).softmax(-1)

    def write(self, prompt, max_new_tokens, temperature, p, choose):
        scores, new = self.logits(torch.tensor([prompt]), cache := self.start()), []
        for n in range(1, max_new_tokens + 1):
            new += [choose(self.probabilities(scores[:, -1], temperature, p))]
            if n < max_new_tokens:
                scores = self.logits(torch.tensor([[new[-1]]]), cache)
        return tuple(new)
'''),
    # --- 14 ---------------------------------------------------------------------------------
    Right("ex14-1-rms-norm", "NumPy array for a tensor", '''\
import numpy as np

def rms_norm(x, weight, eps):
    x, weight = x.numpy().astype(np.float64), weight.numpy().astype(np.float64)
    return weight * x / np.sqrt(np.mean(x ** 2, axis=-1, keepdims=True) + eps)
'''),
    Right("ex14-1-rms-norm", "einsum, annotations", '''\
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    wide = x.double()
    mean_square = torch.einsum("...d,...d->...", wide, wide) / x.shape[-1]
    return wide * torch.rsqrt(mean_square + eps).unsqueeze(-1) * weight
''', after=('''\
x, w = torch.randn(3, 5), torch.rand(5)
assert torch.allclose(rms_norm(x, w, 0.1), F.rms_norm(x, (5,), w, 0.1).double(), atol=1e-6)
''',)),
    Right("ex14-1-rms-norm", "Python loops, recursion", '''\
def rms_norm(x, weight, eps):
    if x.ndim > 1:
        return torch.stack([rms_norm(row, weight, eps) for row in x])
    total = 0.0
    for value in x.tolist():
        total += value * value
    root = math.sqrt(total / len(x) + eps)
    return torch.tensor([w * value / root for w, value in zip(weight.tolist(), x.tolist())])
'''),
    Right("ex14-1-swiglu", "einsum, no_grad", '''\
@torch.no_grad()
def swiglu(x, gate, up, down):
    one, two = (torch.einsum("...d,fd->...f", x, matrix) for matrix in (gate, up))
    return torch.einsum("...f,df->...d", one * torch.sigmoid(one) * two, down)
'''),
    Right("ex14-1-swiglu", "nn.Module instance, own class", '''\
class Network(nn.Module):
    def forward(self, x, gate, up, down):
        both = F.linear(x, torch.cat([gate, up]))
        one, two = both.chunk(2, dim=-1)
        return F.linear(nn.SiLU()(one) * two, down)

swiglu = Network()
'''),
    Right("ex14-1-swiglu", "NumPy array for a tensor, lambda", '''\
import numpy as np
silu = lambda z: z / (1 + np.exp(-z))
swiglu = lambda x, gate, up, down: (silu(x.numpy() @ gate.numpy().T) * (x.numpy() @ up.numpy().T)) @ down.numpy().T
'''),
    Right("ex14-2-grouped-attention", "einsum", '''\
def grouped_attention(q, k, v, causal):
    B, H, T, K = q.shape
    G, S = k.shape[1:3]
    q = q.reshape(B, G, H // G, T, K)
    scores = torch.einsum("bghtk,bgsk->bghts", q, k) * K ** -0.5
    if causal:
        scores = scores + torch.full((T, S), float("-inf")).triu(S - T + 1)
    return torch.einsum("bghts,bgsk->bghtk", scores.softmax(-1), v).flatten(1, 2)
'''),
    Right("ex14-2-grouped-attention", "Python loops, helper cell", '''\
def grouped_attention(q, k, v, causal):
    result = torch.empty_like(q)
    each = q.shape[1] // k.shape[1]
    for h in range(q.shape[1]):
        for t in range(q.shape[2]):
            end = k.shape[2] - q.shape[2] + t + 1 if causal else k.shape[2]
            result[:, h, t] = look(q[:, h, t], k[:, h // each, :end], v[:, h // each, :end])
    return result
''', before=('''\
def look(q, k, v):
    weights = torch.softmax((k @ q.unsqueeze(-1)).squeeze(-1) / math.sqrt(q.shape[-1]), dim=1)
    return (weights.unsqueeze(-1) * v).sum(1)
''',)),
    Right("ex14-2-grouped-attention", "einops, innocent names, compared with torch's own", '''\
from einops import rearrange, repeat

def grouped_attention(q, k, v, causal):
    attention, (H, T), S = None, q.shape[1:3], k.shape[2]
    k, v = (repeat(y, "b g s k -> b (g h) s k", h=H // k.shape[1]) for y in (k, v))
    scores = q @ rearrange(k, "b h s k -> b h k s") / q.shape[-1] ** 0.5
    positions = torch.arange(S)
    if causal:
        scores[..., positions > torch.arange(S - T, S)[:, None]] = -float("inf")
    return torch.softmax(scores, -1) @ v
''', after=('''\
q, k, v = torch.randn(2, 6, 4, 8), torch.randn(2, 3, 4, 8), torch.randn(2, 3, 4, 8)
theirs = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
assert torch.allclose(grouped_attention(q, k, v, True), theirs, atol=1e-5)
''',), needs=("einops",)),
    Right("ex14-3-llama-block", "helper cell", '''\
def llama_block(x, weights, rotate, H, G, eps):
    y = my_norm(x, weights["norm_1"], eps)
    q, k, v = cut(y @ weights["q"].T, H), cut(y @ weights["k"].T, G), cut(y @ weights["v"].T, G)
    heads = my_attention(rotate(q), rotate(k), v)
    x = x + heads.transpose(1, 2).reshape(*x.shape[:2], -1) @ weights["o"].T
    return x + my_network(my_norm(x, weights["norm_2"], eps), weights["gate"], weights["up"], weights["down"])
''', before=('''\
def my_norm(x, weight, eps):
    return weight * x / (x.square().mean(-1, keepdim=True) + eps).sqrt()

def my_network(x, gate, up, down):
    return (F.silu(x @ gate.T) * (x @ up.T)) @ down.T
''', '''\
def cut(y, heads):
    B, T, width = y.shape
    return y.view(B, T, heads, width // heads).transpose(1, 2)

def my_attention(q, k, v):
    k, v = (y.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for y in (k, v))
    scores = q @ k.mT / math.sqrt(q.shape[-1])
    later = torch.ones(q.shape[2], q.shape[2]).triu(1).bool()
    return scores.masked_fill(later, -math.inf).softmax(-1) @ v
''')),
    Right("ex14-3-llama-block", "einsum, innocent names", '''\
def llama_block(x, weights, rotate, H, G, eps):
    Llama = lambda name: F.rms_norm(x, x.shape[-1:], weights[name], eps)
    by_head = lambda y, name, n: torch.einsum("btd,hkd->bhtk", y, weights[name].unflatten(0, (n, -1)))
    y = Llama("norm_1")
    q, k, v = rotate(by_head(y, "q", H)), rotate(by_head(y, "k", G)), by_head(y, "v", G)
    k, v = k.repeat_interleave(H // G, 1), v.repeat_interleave(H // G, 1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    x = x + torch.einsum("bhtk,dhk->btd", y, weights["o"].unflatten(1, (H, -1)))
    y = Llama("norm_2")
    return x + F.linear(F.silu(F.linear(y, weights["gate"])) * F.linear(y, weights["up"]), weights["down"])
'''),
    Right("ex14-3-llama-block", "own class, Python loops", '''\
class Block:
    def __init__(self, weights, H, G, eps):
        self.w, self.H, self.G, self.eps = weights, H, G, eps

    def norm(self, x, name):
        return self.w[name] * x * torch.rsqrt((x * x).mean(-1, keepdim=True) + self.eps)

    def attend(self, y, rotate):
        K = self.w["q"].shape[0] // self.H
        q, k, v = (torch.stack((y @ self.w[name].T).split(K, dim=-1), dim=1) for name in ("q", "k", "v"))
        q, k, heads, T = rotate(q), rotate(k), [], y.shape[1]
        hidden = torch.arange(T) > torch.arange(T)[:, None]
        for h in range(self.H):
            g = h * self.G // self.H
            scores = (q[:, h] @ k[:, g].transpose(1, 2)) / K ** 0.5
            heads.append(torch.softmax(scores.masked_fill(hidden, -1e30), dim=-1) @ v[:, g])
        return torch.cat(heads, dim=-1) @ self.w["o"].T

    def think(self, y):
        one = y @ self.w["gate"].T
        return (one * torch.sigmoid(one) * (y @ self.w["up"].T)) @ self.w["down"].T

def llama_block(x, weights, rotate, H, G, eps):
    block = Block(weights, H, G, eps)
    x = x + block.attend(block.norm(x, "norm_1"), rotate)
    return x + block.think(block.norm(x, "norm_2"))
'''),
    Right("ex14-4-low-rank", "own class, Parameter", '''\
class LowRank(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        self.inner, self.rank, self.alpha = linear, rank, alpha
        for parameter in self.inner.parameters():
            parameter.requires_grad = False
        self.A = nn.Parameter(torch.empty(rank, linear.weight.shape[1]))
        self.B = nn.Parameter(torch.empty(linear.weight.shape[0], rank))
        nn.init.kaiming_uniform_(self.A, a=math.sqrt(5))
        nn.init.zeros_(self.B)

    def forward(self, x):
        return self.inner(x) + self.alpha / self.rank * F.linear(F.linear(x, self.A), self.B)

    @torch.no_grad()
    def merged(self):
        return self.inner.weight.add(self.B @ self.A, alpha=self.alpha / self.rank)
'''),
    Right("ex14-4-low-rank", "einsum, innocent names", '''\
class LowRank(nn.Module):
    def __init__(self, linear, rank, alpha):
        super().__init__()
        outputs, inputs = linear.weight.shape
        self.LoRALinear = linear.requires_grad_(False)
        self.register_buffer("factor", torch.tensor(alpha / rank))
        self.A = nn.Parameter(0.01 * torch.randn(rank, inputs))
        self.B = nn.Parameter(torch.zeros(outputs, rank))

    def merged(self):
        return self.LoRALinear.weight + self.factor * torch.einsum("or,ri->oi", self.B, self.A)

    def forward(self, x):
        return F.linear(x, self.merged(), self.LoRALinear.bias)
'''),
    Right("ex14-4-low-rank", "annotations, keyword-only", '''\
class LowRank(nn.Linear):
    def __init__(self, linear: nn.Linear, rank: int, alpha: float):
        super().__init__(linear.in_features, linear.out_features, bias=linear.bias is not None)
        self.weight, self.bias = linear.weight, linear.bias
        self.requires_grad_(False)
        self.A = nn.Parameter(torch.randn(rank, linear.in_features))
        self.B = nn.Parameter(torch.zeros(linear.out_features, rank))
        self.ratio = alpha / rank

    def update(self, *, ratio: float) -> torch.Tensor:
        return ratio * (self.B @ self.A)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x @ self.update(ratio=self.ratio).T

    def merged(self) -> torch.Tensor:
        return self.weight + self.update(ratio=self.ratio)
'''),
    Right("ex14-5-quantize", "NumPy array for a tensor", '''\
import numpy as np

def quantize(weight):
    w = weight.numpy()
    scales = np.maximum(np.abs(w).max(axis=1), 1e-12) / 127
    return np.rint(w / scales[:, None]).astype(np.int8), scales
'''),
    Right("ex14-5-quantize", "Python loops, float32, list for tuple", '''\
def quantize(weight):
    ints, scales = [], []
    for row in weight.tolist():
        scale = max(abs(value) for value in row) / 127 or 0.5
        ints.append([round(value / scale) for value in row])
        scales.append(scale)
    return [torch.tensor(ints, dtype=torch.int8), torch.tensor(scales)]
'''),
    Right("ex14-5-quantize", "walrus, vmap", '''\
def quantize(weight):
    def row(w):
        return torch.round(w / (scale := w.abs().max().clamp(min=1e-30) / 127)).clamp(-127, 127), scale
    ints, scales = torch.vmap(row)(weight)
    return ints.char(), scales
'''),
    Right("ex14-6-llama-numbers", "NumPy array for numbers, dataclass", '''\
from dataclasses import dataclass
import numpy as np

@dataclass
class Sizes:
    V: int = 128256
    D: int = 4096
    N: int = 32
    F: int = 14336
    narrow: int = 8 * 128

s = Sizes()
each = 2 * s.D**2 + 2 * s.D * s.narrow + 3 * s.D * s.F
total = s.N * (each + 2 * s.D) + 2 * s.V * s.D + s.D
tokens = 2 * s.N * 8192 * s.narrow * 2
adapter = s.N * 16 * (s.D + s.D + s.D + s.narrow)
eight_bits = s.N * each + 4 * s.V * s.D
llama_numbers = np.array([total, tokens, 4 * tokens, 2 * total, eight_bits, adapter / total * 1e11]) / 1e9
'''),
    Right("ex14-6-llama-numbers", "Fraction, list for tuple", '''\
from fractions import Fraction
giga = Fraction(10**9)
blocks, tables = 32 * 218_103_808, 2 * 525_336_576
parameters = blocks + tables + 65 * 4096
llama_numbers = [parameters / giga, 2**30 / giga, 2**32 / giga, 2 * parameters / giga, (blocks + 2 * tables) / giga,
                 Fraction(100 * 6_815_744, parameters)]
'''),
    Right("ex14-6-llama-numbers", "0-d tensors, last expression", '''\
layers = [(4096, 4096), (4096, 1024), (4096, 1024), (4096, 4096), (4096, 14336), (4096, 14336), (14336, 4096)]
block = sum(a * b for a, b in layers)
all_of_them = torch.tensor(32.0 * block + 2 * 128256 * 4096)
cache = torch.tensor(2.0 * 32 * 8192 * 1024 * 2)
lora = 32 * sum(16 * (a + b) for a, b in layers[:2])
llama_numbers = (all_of_them / 1e9, cache / 1e9, cache * 4 / 1e9, all_of_them * 2 / 1e9,
                 (32 * block + 2 * 2 * 128256 * 4096) / 1e9, 100 * lora / all_of_them)
llama_numbers
'''),
    Right("ex14-7-linear-step", "einsum", '''\
def linear_step(q, k, v, state):
    phi_q, phi_k = (torch.where(x > 0, x + 1, torch.exp(x)) for x in (q, k))
    S = state[0] + torch.einsum("bhk,bhe->bhke", phi_k, v)
    z = state[1] + phi_k
    y = torch.einsum("bhk,bhke->bhe", phi_q, S) / torch.einsum("bhk,bhk->bh", phi_q, z)[..., None]
    return y, (S, z)
'''),
    Right("ex14-7-linear-step", "NamedTuple, list for tuple", '''\
from typing import NamedTuple

class Sums(NamedTuple):
    S: torch.Tensor
    z: torch.Tensor

def linear_step(q, k, v, state):
    phi = nn.ELU()
    q, k = phi(q) + 1.0, phi(k) + 1.0
    new = Sums(state[0] + torch.matmul(k.unsqueeze(-1), v.unsqueeze(-2)), state[1] + k)
    top = torch.matmul(q.unsqueeze(-2), new.S).squeeze(-2)
    return [top / (torch.sum(q * new.z, -1, keepdim=True) + 1e-6), new]
'''),
    Right("ex14-7-linear-step", "Python loops, no_grad", '''\
@torch.no_grad()
def linear_step(q, k, v, state):
    S, z, y = state[0].clone(), state[1].clone(), torch.zeros_like(v)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            phi_q, phi_k = F.elu(q[b, h]) + 1, F.elu(k[b, h]) + 1
            S[b, h] += torch.outer(phi_k, v[b, h])
            z[b, h] += phi_k
            y[b, h] = phi_q @ S[b, h] / (phi_q @ z[b, h])
    return y, (S, z)
'''),
]  # fmt: skip
RIGHT += [Right(*entry) for entry in SHORT]
