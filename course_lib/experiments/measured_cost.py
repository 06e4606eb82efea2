r"""Recorded runs of chapter 10: what layers cost in time and memory, and how far a gradient reaches through them.

Read in this order: `layer_cost` (time against length, where attention's time overtakes the RNN's, gradient against
distance), `attention_time` (time and peak memory of attention's two paths), `attention_mask_time` (how much of the
difference is the causal mask's). Nothing is trained and all inputs are random numbers. Times are those of one processor
core; compare them with each other, not with another machine's.
"""

import math

import torch

from course_lib.attention import MultiHeadAttention, attention, attention_backend
from course_lib.cost import measure
from course_lib.cost.measure import CausalCNN
from course_lib.experiments import experiment
from course_lib.lstm_gru import LSTM
from course_lib.rnn import RNN

# --- layers ---------------------------------------------------------------------


@experiment("layer-cost", "Time against length and gradient against distance: RNN, LSTM, CNN, attention of one width.")
def layer_cost(
    seed,
    lengths=(16, 32, 64, 128, 256, 512, 1024),
    width=64,
    batch_size=8,
    heads=4,
    kernel=3,
    crossover_widths=(32, 64, 128),
    reach=128,
    conv_layers=8,
    rounds=5,
):
    """Seconds of one forward and backward pass on one core, untrained layers, float32.

    "crossover" is the length from which attention (sdpa) takes longer than the RNN (fused), interpolated between the
    lengths measured; None if there is none among them. "by_distance" is the gradient of the last output with respect
    to the input d steps before, relative to the largest; "reached" is the distance at which a thousandth of it is left.
    """
    torch.manual_seed(seed)
    results = times(lengths, width, batch_size, heads, kernel, rounds)
    results |= crossovers(crossover_widths, lengths, batch_size, heads, rounds)
    for name, norms in distances(reach, width, batch_size, heads, conv_layers).items():
        reached = max(d for d, norm in enumerate(norms) if norm >= 1e-3)
        results[f"gradient, {name}"] = {"by_distance": norms, "reached": reached, "least": min(norms)}
    return {"results": results}


def training_step(layer, x, **options):
    """A function of nothing: one forward and backward pass."""

    def step():
        output = layer(x, **options)
        (output[0] if isinstance(output, tuple) else output).sum().backward()

    return step


def times(lengths, width, batch_size, heads, kernel, rounds):
    """For each layer the seconds at each length, and the power of the length in the upper half of the lengths."""
    recurrent, gated = RNN(width, width), LSTM(width, width)
    attending, conv = MultiHeadAttention(width, heads), CausalCNN(width, kernel)
    found = {}
    for T in lengths:
        x = torch.randn(batch_size, T, width)
        steps = {
            "RNN, loop": training_step(recurrent, x, backend="loop"),
            "RNN, fused": training_step(recurrent, x),
            "LSTM, fused": training_step(gated, x),
            "CNN": training_step(conv, x),
            "attention, math": attention_backend("math")(training_step(attending, x)),
            "attention, sdpa": training_step(attending, x),
        }
        for name, value in measure.seconds(steps, rounds).items():
            found.setdefault(name, []).append(value)
    half = len(lengths) // 2
    return {
        f"time, {name}": {
            "T": list(lengths),
            "seconds": values,
            "exponent": measure.growth_exponent(lengths[half:], values[half:]),
        }
        for name, values in found.items()
    }


def crossovers(widths, lengths, batch_size, heads, rounds):
    """For each width the length from which attention takes longer than the RNN."""
    results = {}
    for width in widths:
        layers = {"RNN": RNN(width, width), "attention": MultiHeadAttention(width, heads)}
        ratios = []
        for T in lengths:
            x = torch.randn(batch_size, T, width)
            taken = measure.seconds({name: training_step(layer, x) for name, layer in layers.items()}, rounds)
            ratios.append(taken["attention"] / taken["RNN"])
        results[f"crossover, width {width}"] = {
            "width": width,
            "T": list(lengths),
            "attention_over_RNN": ratios,
            "crossover": crossing(lengths, ratios),
        }
    return results


def crossing(lengths, ratios):
    """Where the ratio last rises through 1, by a straight line between logarithms; None if it ends below 1.

    If it is above 1 from the beginning, the first length.
    """
    if ratios[-1] <= 1:
        return None
    above = len(ratios) - 1
    while above > 0 and ratios[above - 1] > 1:
        above -= 1
    if above == 0:
        return float(lengths[0])
    low, high = math.log(ratios[above - 1]), math.log(ratios[above])
    share = -low / (high - low)
    return math.exp((1 - share) * math.log(lengths[above - 1]) + share * math.log(lengths[above]))


def distances(reach, width, batch_size, heads, conv_layers):
    """The gradient of the last output by distance, relative to the largest, for layers of one width."""
    x = torch.randn(batch_size, reach, width)
    layers = {
        "RNN": RNN(width, width),
        "LSTM": LSTM(width, width),
        f"CNN, {conv_layers} layers": CausalCNN(width, 3, conv_layers),
        "attention": MultiHeadAttention(width, heads),
    }
    norms = {name: measure.gradient_by_distance(layer, x) for name, layer in layers.items()}
    return {name: (found / found.max()).tolist() for name, found in norms.items()}


# --- attention's two paths --------------------------------------------------------


@experiment("attention-time", "Time and peak memory of attention over the length: math and sdpa.")
def attention_time(
    seed, lengths=(64, 128, 256, 512, 1024, 2048), batch_size=2, heads=4, head_width=64, causal=True, rounds=5
):
    """One forward and backward pass of `attention` on one core, float32.

    "peak_mb" is the most that the pass held beside its inputs, in 10^6 bytes, in a process of its own; left out where
    the system does not tell.
    """
    shape = f"{batch_size}, {heads}, T, {head_width}"
    generator = torch.Generator().manual_seed(seed)
    found = {}
    for T in lengths:
        q, k, v = torch.randn(3, batch_size, heads, T, head_width, generator=generator).unbind()
        steps = {backend: attention_step(q, k, v, causal, backend) for backend in ("math", "sdpa")}
        for backend, value in measure.seconds(steps, rounds).items():
            found.setdefault(backend, []).append(value)
    results = {}
    for backend, values in found.items():
        setup = (
            "from course_lib.experiments.measured_cost import attention_step\n"
            f"def step(T): attention_step(*torch.randn(3, {shape}).unbind(), {causal}, {backend!r})()"
        )
        peaks = measure.peak_memory([f"step({T})" for T in lengths], setup)
        results[backend] = {
            "T": list(lengths),
            "seconds": values,
            "exponent": measure.growth_exponent(lengths[len(lengths) // 2 :], values[len(lengths) // 2 :]),
        }
        if None not in peaks:
            inputs = [3 * batch_size * heads * T * head_width * 4 for T in lengths]
            results[backend]["peak_mb"] = [max(0, peak - held) / 1e6 for peak, held in zip(peaks, inputs, strict=True)]
    longest = [results[backend]["seconds"][-1] for backend in ("math", "sdpa")]
    results["at the longest"] = {"T": lengths[-1], "math_over_sdpa": longest[0] / longest[1]}
    return {"results": results}


@experiment("attention-mask-time", "Time of attention's two paths at one length, causal and not: math and sdpa.")
def attention_mask_time(seed, length=2048, batch_size=2, heads=4, head_width=64, rounds=5):
    """One forward and backward pass of `attention` on one core, float32; the four cases take turns."""
    generator = torch.Generator().manual_seed(seed)
    q, k, v = torch.randn(3, batch_size, heads, length, head_width, generator=generator).unbind()
    steps = {
        (mask, backend): attention_step(q, k, v, mask == "causal", backend)
        for mask in ("causal", "not causal")
        for backend in ("math", "sdpa")
    }
    taken = measure.seconds(steps, rounds)
    results = {}
    for mask in ("causal", "not causal"):
        plain, fused = taken[mask, "math"], taken[mask, "sdpa"]
        results[mask] = {"T": length, "math": plain, "sdpa": fused, "math_over_sdpa": plain / fused}
    return {"results": results}


def attention_step(q, k, v, causal, backend):
    """A function of nothing: one forward and backward pass of `attention`."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def step():
        torch.autograd.grad(attention(*leaves, causal=causal, backend=backend).sum(), leaves)

    return step
