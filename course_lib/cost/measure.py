"""What a layer costs, measured while it runs; the formulas say the same.

`measure_cost` gives the five numbers of a `Cost`: `count_operations`, `count_activations`, `sequential_steps` and
`path_length` measure one each. Only matrix products and convolutions count, as in the formulas: one of (n, m) and
(m, p) matrices is 2nmp operations.

A fused kernel hides its products, and is refused: run attention under `attention_backend("math")`, recurrent layers
with backend="loop". Last come time and memory (`seconds`, `peak_memory`), for which no formula is exact.
"""

import copy
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

import course_lib
from course_lib.cost.formulas import Cost
from course_lib.utils import number_of_parameters
from course_lib.utils.validate import check_floats, check_instance, check_length, check_positive, check_sizes


class CausalCNN(nn.Module):
    """A stack of causal convolutions (B, T, D) -> (B, T, D), each followed by a ReLU.

    Zeros stand before the first step only, so that no output sees what comes after it. `dilated` leaves gaps of
    k^n - 1 places between the inputs of layer n = 0, 1, ...: every place within k^N is seen, by exactly one way.

    >>> CausalCNN(d_model=4, kernel=3, layers=2)(torch.zeros(2, 7, 4)).shape
    torch.Size([2, 7, 4])

    Source: van den Oord et al. (2016), "WaveNet", arXiv:1609.03499, figure 3. Differs: no gates and no residuals;
    their dilations double, with kernels of 2.
    """

    def __init__(self, d_model, kernel, layers=1, *, dilated=False):
        super().__init__()
        check_sizes(d_model=d_model, kernel=kernel, layers=layers)
        gaps = [kernel**n if dilated else 1 for n in range(layers)]
        self.layers = nn.ModuleList(nn.Conv1d(d_model, d_model, kernel, dilation=gap) for gap in gaps)

    def forward(self, x):
        """Convolve (B, T, D) along time."""
        x = x.transpose(1, 2)  # (B, D, T)
        for conv in self.layers:
            before = (conv.kernel_size[0] - 1) * conv.dilation[0]
            x = F.relu(conv(F.pad(x, (before, 0))))
        return x.transpose(1, 2)  # (B, T, D)


# --- the five numbers -------------------------------------------------------------


def measure_cost(model, *inputs, **options):
    """The five numbers of a `Cost`, measured on a run of a module or function of tensors.

    The first input is (..., T, D) if the path shall be measured, not integers; of a tuple of outputs the first counts.

    >>> from course_lib.cost.formulas import rnn_cost
    >>> from course_lib.rnn import RNN
    >>> measure_cost(RNN(4, 4), torch.randn(1, 10, 4), backend="loop") == rnn_cost(B=1, T=10, D=4)
    True
    """
    path = path_length(model, *inputs, **options) if inputs[0].is_floating_point() else None
    return Cost(
        parameters=number_of_parameters(model) if isinstance(model, nn.Module) else 0,
        operations=count_operations(model, *inputs, **options),
        activations=count_activations(model, *inputs, **options),
        steps=sequential_steps(first_output(model(*leaves(inputs), **options))),
        path=path,
    )


def count_operations(model, *inputs, **options):
    """Operations of the matrix products and convolutions of one forward pass, by torch's FLOP counter.

    A multiplication with its addition is 2 operations; sums, softmax, norms and activation functions do not count.

    >>> count_operations(nn.Linear(3, 5), torch.randn(7, 3)) == 2 * 7 * 3 * 5
    True
    """
    with FlopCounterMode(display=False) as counter:
        output = first_output(model(*leaves(inputs), **options))
    graph(output)  # refuses fused kernels, which the counter takes for nothing
    return counter.get_total_flops()


def count_activations(model, *inputs, **options):
    """Numbers that autograd keeps between the forward and the backward pass.

    Every tensor that an operation saves for its own backward passes a hook. Storages are counted, each once and as a
    whole, since a view keeps all of what it looks at; those of parameters and buffers are left out. Times 4 it is
    bytes, for float32 (a boolean mask, counted like all else, has 1 byte each).

    >>> count_activations(nn.Linear(3, 5), torch.randn(7, 3))  # the input, for the gradient of the weights
    21
    """
    own = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    own, kept = {tensor.untyped_storage().data_ptr() for tensor in own}, {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held here, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*leaves(inputs), **options)
    counted = [tensor for address, tensor in kept.items() if address not in own]
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in counted)


def sequential_steps(output):
    """The longest chain of matrix products behind a tensor, each of which needs the result of the one before.

    However many processors there are, this many products must wait for one another.

    >>> A = torch.eye(3, requires_grad=True)
    >>> sequential_steps(A @ A @ A), sequential_steps((A @ A) @ (A @ A))  # 2 of 2 products, 2 of 3
    (2, 2)
    """
    steps = {}
    for node in graph(output):  # inputs come before what is made of them
        inputs = enumerate(node.next_functions)
        counts = [steps[before] + multiplies(node, i) for i, (before, _) in inputs if before]
        steps[node] = max(counts, default=0)
    return steps[output.grad_fn]


def path_length(model, x, *others, **options):
    r"""The fewest matrix products on any way from the first input to the last output, of x (..., T, D).

    Every product that a gradient passes is made to shrink it by $\varepsilon$. The gradient of the last output with
    respect to the first input is a sum over ways, so now it is $\sum_n c_n \varepsilon^n$, where n counts the products
    of a way. For a small $\varepsilon$ the shortest ways remain, and halving it divides the sum by $2^n$. None if the
    last output does not depend on the first input at all.

    >>> from course_lib.rnn import RNN
    >>> path_length(RNN(3, 5), torch.randn(2, 9, 3), backend="loop")
    9
    """
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model).double()
    inputs = [t.double() if t.is_floating_point() else t for t in (x, *others)]
    factors = 1.0, 2.0**-10, 2.0**-11
    whole, small, smaller = (shrunk_gradient(model, inputs, options, eps) for eps in factors)
    if whole == 0:
        return None
    if smaller < sys.float_info.min:
        raise ValueError("the path is so long that its gradient underflows: take a shorter T")
    return round(math.log2(small / smaller))


def shrunk_gradient(model, inputs, options, eps):
    """Norm of d(last output) / d(first input), each product on the way shrinking it by eps."""
    x, *others = leaves(inputs)
    output = first_output(model(x, *others, **options))
    for node in graph(output):
        if kind(node) in PRODUCTS:

            def shrink(gradients, _, node=node):
                return tuple(g if g is None else g * eps ** multiplies(node, i) for i, g in enumerate(gradients))

            node.register_hook(shrink)
    (gradient,) = torch.autograd.grad(along_a_direction(output[..., -1, :]), x, allow_unused=True)
    return 0.0 if gradient is None else gradient[..., 0, :].norm().item()


def gradient_by_distance(model, x, **options):
    r"""How strongly the last output depends on the input d steps before it: (T,) norms, d = 0 .. T - 1.

    $$ \text{norm}[d] = \frac1B \sum_b \Big\lVert \frac{\partial\, u_b \cdot y_{b,T}}{\partial x_{b,T-d}} \Big\rVert,
       \qquad u_b \text{ a random direction} $$

    >>> norms = gradient_by_distance(CausalCNN(32, kernel=3, layers=2), torch.randn(6, 9, 32))
    >>> (norms > 0).int().tolist()  # 2 layers of kernel 3 reach back 4 places
    [1, 1, 1, 1, 1, 0, 0, 0, 0]
    """
    check_floats(x=x)
    check_length("x", x)
    (x,) = leaves([x])
    last = first_output(model(x, **options))[:, -1]
    (gradient,) = torch.autograd.grad(along_a_direction(last), x)
    return gradient.norm(dim=-1).mean(0).flip(0)


# --- autograd's graph ---------------------------------------------------------------

# What autograd calls the products, and in which of their arguments no product happens: the matrix that is added.
PRODUCTS = {"Mm": None, "Bmm": None, "Linear": None, "Convolution": None, "Addmm": 0, "Baddbmm": 0}
OPAQUE = ("ScaledDotProduct", "Rnn", "AttentionWithDropout")  # kernels that do many products as one node


def graph(output):
    """The nodes behind a tensor, inputs before what is made of them."""
    if output.grad_fn is None:
        raise ValueError("the output has no graph behind it: was it computed under no_grad or inference_mode?")
    ordered, stack = {}, [output.grad_fn]
    while stack:
        node = stack[-1]
        missing = [before for before, _ in node.next_functions if before is not None and before not in ordered]
        if any(name in node.name() for name in OPAQUE):
            raise ValueError(
                f"{node.name()} is a fused kernel that hides its products: run attention under "
                "attention_backend('math'), recurrent layers with backend='loop'"
            )
        if missing:
            stack += missing
        else:
            ordered[stack.pop()] = None
    return list(ordered)


def kind(node):
    """What a node is called, without autograd's suffix."""
    return node.name().split("Backward")[0]


def multiplies(node, i):
    """1 if the node is a matrix product and multiplies its i-th input, else 0."""
    return int(kind(node) in PRODUCTS and i != PRODUCTS[kind(node)])


def leaves(inputs):
    """The inputs, cut off from what made them; those that can have a gradient get one."""
    return [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]


def first_output(output):
    """The output, or the first of several."""
    return output[0] if isinstance(output, tuple) else output


def along_a_direction(y):
    """The sum of y along a random direction, always the same one."""
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(0), dtype=y.dtype)
    return (y * direction.to(y.device)).sum()


# --- time and memory --------------------------------------------------------------


def time_rounds(functions, rounds=5, least=0.02, clock=None):
    """Time functions side by side: a dict of name to a list, the seconds of one call in each round.

    Each round calls each function, in reversed order every other round, so that other work on the machine meets all of
    them: compare times of the same round. The first call is not timed. A timing repeats calls until it lasts `least`
    seconds; without a `clock` it is that of the process, which stands still while others run.
    """
    check_sizes(rounds=rounds)
    check_positive(zero=True, least=least)
    check_instance("functions", functions, dict)
    clock = clock or time.process_time

    def timed(function, repeats):
        start = clock()
        for _ in range(repeats):
            function()
        return (clock() - start) / repeats

    repeats, samples = {}, {name: [] for name in functions}
    for name, function in functions.items():
        function()
        repeats[name] = max(1, math.ceil(least / max(timed(function, 1), 1e-7)))
    for number in range(rounds):
        for name in list(functions) if number % 2 == 0 else reversed(functions):
            samples[name].append(timed(functions[name], repeats[name]))
    return samples


def seconds(functions, rounds=5, least=0.02):
    """Seconds of one call on one core of the CPU, the median of `time_rounds`, by name.

    torch has one thread meanwhile, so that no thread that waits for another one moves the clock.

    >>> found = seconds({"few": lambda: sum(range(10)), "many": lambda: sum(range(100_000))}, least=0.001)
    >>> found["few"] < found["many"]
    True
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        samples = time_rounds(functions, rounds, least)
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(found) for name, found in samples.items()}


def peak_memory(statements, setup=""):
    """The most bytes that each statement held at once, beyond what was there before it.

    They run one after the other in a fresh Python of one thread, each twice: the first time lets torch load what it
    needs. Large blocks go back to the system when they are freed, so that no statement uses what another left over. The
    names of `setup`, and `torch`, are known to them.

    Gives a list, one number a statement: of the process (Linux), or of the GPU if the code uses one; None where the
    system does not tell.

    >>> found = peak_memory(["x = torch.ones(4_000_000); del x"])  # 16 million bytes
    >>> found == [None] or 15.5e6 < found[0] < 17.5e6
    True
    """
    package = Path(course_lib.__file__).resolve().parent.parent
    path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
    at_once = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **at_once}
    done = subprocess.run(
        [sys.executable, "-c", PEAKS, setup, *statements], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ValueError(f"the code to be measured failed: {done.stderr.strip().splitlines()[-1]}")
    return [None if word == "None" else int(word) for word in done.stdout.split()]


PEAKS = """
import gc, sys, torch
from course_lib.utils import memory

names = {"torch": torch}
exec(sys.argv[1], names)
for code in sys.argv[2:]:
    exec(code, names)
    gc.collect()
    before = memory.reset_peak()
    exec(code, names)
    print(None if before is None else max(0, memory.peak() - before))
"""


def growth_exponent(sizes, values):
    """The power of the size with which something grows: the slope of a straight line through both logarithms.

    >>> round(growth_exponent([1, 2, 4], [3, 12, 48]), 6)
    2.0
    """
    check_length("sizes", sizes)
    check_length("values", values)
    if len(sizes) != len(values) or len(set(sizes)) < 2 or not all(number > 0 for number in (*sizes, *values)):
        raise ValueError(f"wanted as many values as sizes, all positive, two sizes or more, got {sizes} and {values}")
    logs = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(*logs).slope
