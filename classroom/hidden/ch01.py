"""Hidden tests of chapter 01: forecasts by powers of a matrix, counts by one-hot products, windows by unfolding."""

import math

import torch
from torch.nn import functional as F

from classroom.hidden import Hidden, on_paper
from course_lib.exercises import Wrong, close, expect_number


def draw_ar_forecast(draw):
    order = draw.randint(1, 5)
    horizon = draw.choice([h for h in range(1, 9) if h != order])
    T = order + draw.choice([0, 1, 4])  # 0: the series is as long as the window
    return draw.normal(T), draw.normal(order) / order, draw.normal(1).item(), horizon


def right_ar_forecast(past, weights, bias, horizon):
    """One matrix moves the window, and a 1 for the bias, by a step; its powers move it further."""
    K = len(weights)
    step = torch.zeros(K + 1, K + 1, dtype=past.dtype)
    step[0, :K], step[0, K], step[K, K] = weights, bias, 1.0
    step[1:K, : K - 1] = torch.eye(K - 1)
    now = torch.cat([past.flip(0)[:K], torch.ones(1, dtype=past.dtype)])
    return torch.stack([(torch.linalg.matrix_power(step, h) @ now)[0] for h in range(1, horizon + 1)])


def right_sine_weights():
    """The two weights that fit two sines of period 12 without a rest."""
    angle = 2 * math.pi * torch.arange(30, dtype=torch.float64) / 12
    series = torch.stack([angle.sin(), 3 * (angle + 1).sin()])
    past = torch.stack([series[:, 1:-1], series[:, :-2]], dim=-1).flatten(0, 1)
    return torch.linalg.lstsq(past, series[:, 2:].reshape(-1, 1)).solution[:, 0].tolist()


def right_perplexity_of_four():
    given = torch.tensor([[1 / 2], [1 / 4], [1 / 8], [1 / 8]])
    return (F.nll_loss(given.log(), torch.zeros(4, dtype=torch.int64)).exp().item(),)


def draw_corpus_perplexity(draw):
    B, T = draw.sizes(2)
    nll, lengths = 3 * draw.share(B, T), draw.ids(T + 1, B, low=1)
    mask = torch.arange(T) < lengths[:, None]
    impossible = nll.clone()
    impossible[draw.randrange(B), 0] = math.inf  # a real token
    return [nll, nll.masked_fill(~mask, 40.0), nll.masked_fill(~mask, math.inf), impossible], mask


def probe_corpus_perplexity(answer, batches, mask):
    return [answer(nll, mask) for nll in batches]


def right_corpus_perplexity(batches, mask):
    def one(nll):
        real = [row[t] for row, keep in zip(nll.tolist(), mask.tolist(), strict=True) for t in range(sum(keep))]
        return math.prod(math.exp(n) ** (1 / len(real)) for n in real)  # the geometric mean of the choices

    return [one(nll) for nll in batches]


def judge_corpus_perplexity(got, wanted):
    """Accept numbers and tensors with one element, also in half precision."""
    if not isinstance(got, list) or len(got) != len(wanted):
        raise Wrong("wanted one number for each batch")
    for mine, theirs in zip(got, wanted, strict=True):
        half = getattr(mine, "dtype", None) in (torch.float16, torch.bfloat16)
        if not close(expect_number(mine, "the perplexity"), theirs, 2e-2 if half else 1e-5):
            raise Wrong(f"the perplexity is {expect_number(mine):.6g}, wanted {theirs:.6g}")


def draw_bigram_probs(draw):
    V, T = draw.sizes(2, high=20)
    known = draw.sample(range(V), draw.randint(1, V))  # the others never occur
    return torch.tensor(draw.choices(known, k=T)), V, draw.choice([0.1, 0.75, 1.0, 3.0])


def right_bigram_probs(ids, vocab_size, k):
    before, after = (F.one_hot(part, vocab_size).double() for part in (ids[:-1], ids[1:]))
    return F.normalize(before.T @ after + k, p=1, dim=1)


def draw_causal_conv(draw):
    B, T, D, filters, n = draw.sizes(5)  # the window may be longer than the text
    n, T = draw.choice([1, n, n]), draw.choice([1, T, T, T])
    return draw.normal(B, T, D), draw.normal(filters, D, n), draw.normal(filters)


def right_causal_conv(x, weight, bias):
    n = weight.shape[2]
    windows = torch.cat([x.new_zeros(len(x), n - 1, x.shape[2]), x], dim=1).unfold(1, n, 1)  # (B, T, D, n)
    return torch.einsum("btdn,fdn->btf", windows, weight) + bias


def solve(rising, wanted, low=0.0, high=20.0):
    """Return where a rising function has a value, by bisection."""
    while high - low > 1e-9:
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < wanted else (low, middle)
    return low


def right_fair_comparison():
    uniform = F.cross_entropy(torch.zeros(1, 27, dtype=torch.float64), torch.tensor([0])).item()
    return (
        solve(lambda bits: (2**bits) ** 5.7, 692),
        solve(lambda bits: 2**bits, 10.5),
        math.exp(5.1 - uniform),
    )


TESTS = [
    Hidden(
        "ex01-1-ar-forecast-check",
        "ar_forecast",
        draw_ar_forecast,
        right_ar_forecast,
        without=("forecast",),
        cases=8,
    ),
    on_paper("ex01-2-sine-weights-check", "sine_weights", right_sine_weights),
    on_paper("ex01-3-perplexity-of-four-check", "perplexity_of_four", right_perplexity_of_four),
    Hidden(
        "ex01-4-corpus-perplexity-check",
        "corpus_perplexity",
        draw_corpus_perplexity,
        right_corpus_perplexity,
        probe_corpus_perplexity,
        judge_corpus_perplexity,
    ),
    Hidden(
        "ex01-5-bigram-probs-check",
        "bigram_probs",
        draw_bigram_probs,
        right_bigram_probs,
        without=("NgramModel",),
        cases=8,
    ),
    Hidden("ex01-6-causal-conv-check", "causal_conv", draw_causal_conv, right_causal_conv, cases=8),
    on_paper("ex01-7-fair-comparison-check", "fair_comparison", right_fair_comparison),
]
