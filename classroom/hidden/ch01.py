"""Hidden tests of chapter 01: forecasts by powers of a matrix, n-grams by the library, windows by unfolding."""

import math

import torch
from torch.nn import functional as F

from classroom.hidden import Hidden, on_paper
from course_lib.ngram import NgramModel


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


def draw_language_model(draw):
    symbols = "".join(draw.sample("abcdefgh", draw.randint(2, 6)))
    n = draw.randint(1, 5)
    used = symbols[: draw.randint(1, len(symbols))]  # the others never occur
    text = "".join(draw.choices(used, k=draw.randint(12, 40)))

    def some(least, most):
        return "".join(draw.choices(symbols, k=draw.randint(least, most)))

    asked = [[draw.choice(symbols), some(0, n + 1)] for _ in range(12)]
    return n, symbols, draw.choice([0.3, 1.0, 2.5, 8.0]), text, asked, some(2, 9), draw.share(9).tolist(), some(0, n)


def probe_language_model(answer, n, symbols, k, text, asked, new, numbers, context):
    model = answer(n, symbols, k)
    model.fit(text)
    other = answer(n, symbols, k)  # a second model has counts of its own
    other.fit(text[::-1] + text)
    probabilities = [model.probability(symbol, given) for symbol, given in asked]
    return probabilities, model.perplexity(new), model.sample(numbers, context)


def right_language_model(n, symbols, k, text, asked, new, numbers, context):
    """By the library's model, which counts ids and smooths from the shortest context up."""

    def ids(part):
        return torch.tensor([symbols.index(symbol) for symbol in part], dtype=torch.int64)

    model = NgramModel(n, len(symbols), add=k, interpolate=True).fit(ids(text))
    drawn = ""
    for u in numbers:
        p = model.probs(ids(context + drawn))
        drawn += symbols[min(int((p.cumsum(0) <= u).sum()), len(symbols) - 1)]
    probabilities = [model.probs(ids(given))[symbols.index(symbol)].item() for symbol, given in asked]
    return probabilities, model.nll(ids(new)).mean().exp().item(), drawn


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
        "ex01-4-language-model-check",
        "LanguageModel",
        draw_language_model,
        right_language_model,
        probe_language_model,
        without=("NgramModel",),
        cases=8,
    ),
    Hidden("ex01-6-causal-conv-check", "causal_conv", draw_causal_conv, right_causal_conv, cases=8),
    on_paper("ex01-7-fair-comparison-check", "fair_comparison", right_fair_comparison),
]
