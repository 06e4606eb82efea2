r"""What a layer costs: by formula, and by measurement, which must agree.

Five numbers, collected in a `Cost`: parameters, operations, activations that the backward pass needs, sequential
steps and path length. Read the formulas first (`rnn`, `cnn`, `attention`, `multi_head`, `encoder_layer`, ...):
each says in a few terms where its numbers come from. Then `measure`, which looks at a real layer while it runs:

    parameters     the tensors of `model.parameters()`
    operations     torch's FLOP counter: a product of (n, m) and (m, p) matrices is 2nmp, one multiplication and one
                   addition for each of its terms. Only matrix products and convolutions count, as in the formulas
    activations    the tensors that autograd keeps for the backward pass, each storage once, parameters left out
    steps          the longest chain of matrix products in the graph, each of which needs the one before
    path           the fewest matrix products between the first input and the last output

Last come time and memory (`seconds`, `peak_memory`), for which no formula is exact.

Notebook: 10.
"""

import copy
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from course_lib.tasks import number_of_parameters


class Cost(NamedTuple):
    """What one forward pass over a batch of sequences costs.

    Args:
        parameters: numbers to be learned.
        operations: floating-point operations of the matrix products; a multiplication with its addition is 2.
        activations: numbers kept for the backward pass, the input among them.
        steps: matrix products of which each needs the result of the one before: what no parallel machine can shorten.
        path: fewest matrix products between the first input and the last output; None if there is no way.
    """

    parameters: int
    operations: int
    activations: int
    steps: int
    path: int | None


# --- formulas: layers over a sequence ---------------------------------------------


def rnn(B, T, D, input_size=None):
    r"""An Elman network; its input-to-state product is done for all steps at once, its state-to-state product is not.

    $$ \text{parameters} = D(I + D + 2), \quad \text{operations} = 2BTD(I + D), \quad
       \text{steps} = \text{path} = T $$

    Kept: the inputs, the first state and every new one, B(TI + (T + 1) D) numbers.

    Args:
        B: batch.
        T: steps.
        D: width of the state.
        input_size: I, width of the input; None is D.

    Returns:
        Cost.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> rnn(B=1, T=10, D=4)
        Cost(parameters=40, operations=640, activations=84, steps=10, path=10)

    Source: Vaswani et al. (2017), "Attention Is All You Need", arXiv 1706.03762, table 1: T D^2 operations, T steps,
    path T. Notebook: 10, section 1.
    """
    return _recurrent(B, T, D, input_size, gates=1, kept=T + 1, path=T)


def gru(B, T, D, input_size=None):
    """A GRU (reset-after): three products of the kind that `rnn` has one of.

    Its steps wait for one another like the RNN's, but the path is 1: once an input is in the state, the additive
    update carries it on through gates, which multiply entry by entry, and through no further matrix.
    Kept by the loop: the inputs, and 8 numbers a unit and step.

    Args:
        B: batch.
        T: steps.
        D: width of the state.
        input_size: I, width of the input; None is D.

    Returns:
        Cost.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> gru(1, 10, 4).operations // rnn(1, 10, 4).operations
        3

    Notebook: 10, section 3.
    """
    return _recurrent(B, T, D, input_size, gates=3, kept=8 * T, path=1)


def lstm(B, T, D, input_size=None):
    """An LSTM: four products of the kind that `rnn` has one of.

    The path is 1, along the cell, see `gru`.
    Kept by the loop: the inputs, and 7 numbers a unit and step (four gates, the cell, its tanh, the state), less one.

    Args:
        B: batch.
        T: steps.
        D: width of the state.
        input_size: I, width of the input; None is D.

    Returns:
        Cost.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> lstm(1, 10, 4).operations // rnn(1, 10, 4).operations
        4

    Notebook: 10, section 3.
    """
    return _recurrent(B, T, D, input_size, gates=4, kept=7 * T - 1, path=1)


def _recurrent(B, T, D, input_size, gates, kept, path):
    """Gates times the products of an RNN; `kept` numbers a unit beside the inputs."""
    width = D if input_size is None else input_size
    _check_sizes(B=B, T=T, D=D, input_size=width)
    return Cost(
        parameters=gates * D * (width + D + 2),
        operations=2 * B * T * gates * D * (width + D),
        activations=B * T * width + B * D * kept,
        steps=T,
        path=path,
    )


def cnn(B, T, D, kernel, layers=1, *, dilated=False):
    r"""A stack of causal convolutions (`CausalCNN`): each output reads the last `kernel` outputs of the layer below.

    $$ \text{parameters} = N(kD^2 + D), \quad \text{operations} = 2BTkD^2N, \quad \text{steps} = N $$

    Each layer keeps its padded input and its output. The path is N products, if the stack reaches back T - 1
    places: see `layers_to_cover`.

    Args:
        B: batch.
        T: steps.
        D: channels, in and out.
        kernel: k.
        layers: N.
        dilated: True leaves gaps of k^n - 1 places between the inputs of layer n = 0, 1, ...

    Returns:
        Cost. A step of it needs no other step of the same layer: `steps` does not grow with T.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> cnn(B=1, T=10, D=4, kernel=3, layers=2)
        Cost(parameters=104, operations=1920, activations=176, steps=2, path=None)
        >>> cnn(B=1, T=9, D=4, kernel=3, layers=2, dilated=True).path
        2

    Source: Vaswani et al. (2017), table 1: k T D^2 operations, 1 step a layer, path T/k, or log_k T if dilated. (For
    a stack that is not dilated (T - 1) / (k - 1) is exact.) Notebook: 10, section 1.
    """
    _check_sizes(B=B, T=T, D=D, kernel=kernel, layers=layers)
    gaps = [kernel**n if dilated else 1 for n in range(layers)]
    return Cost(
        parameters=layers * (kernel * D * D + D),
        operations=layers * 2 * B * T * kernel * D * D,
        activations=sum(B * D * (2 * T + (kernel - 1) * gap) for gap in gaps),
        steps=layers,
        path=layers if 1 + sum((kernel - 1) * gap for gap in gaps) >= T else None,
    )


def layers_to_cover(T, kernel, *, dilated=False):
    r"""How many causal convolutions it takes until the last output has seen the first of T inputs.

    $$ N = \lceil (T - 1) / (k - 1) \rceil, \quad \text{dilated:} \quad N = \lceil \log_k T \rceil $$

    Args:
        T: length to be covered.
        kernel: k, at least 2.
        dilated: as in `cnn`: N layers then see k^N places.

    Returns:
        int, at least 1.

    Raises:
        ValueError: if T is below 1 or the kernel below 2: it would never see another place.

    Example:
        >>> layers_to_cover(65, 3), layers_to_cover(65, 3, dilated=True)
        (32, 4)

    Notebook: 10, section 1.
    """
    _check_sizes(T=T, kernel=kernel)
    if kernel < 2:
        raise ValueError(f"a kernel of {kernel} never sees another place: wanted at least 2")
    if not dilated:
        return max(1, math.ceil((T - 1) / (kernel - 1)))
    layers = 1
    while kernel**layers < T:
        layers += 1
    return layers


class CausalCNN(nn.Module):
    """A stack of causal convolutions, each followed by a ReLU.

    Zeros stand before the first step only, so that no output sees what comes after it.

    Args:
        width: D, channels in and out.
        kernel: k, steps that each layer sees.
        layers: N.
        dilated: True leaves gaps of k^n - 1 places between the inputs of layer n = 0, 1, ...: every place
            within k^N is seen, by exactly one way.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> CausalCNN(width=4, kernel=3, layers=2)(torch.zeros(2, 7, 4)).shape
        torch.Size([2, 7, 4])

    Source: van den Oord et al. (2016), "WaveNet", arXiv 1609.03499, figure 3. Differs: no gates and no residuals;
    their dilations double, with kernels of 2. Notebook: 10.
    """

    def __init__(self, width, kernel, layers=1, *, dilated=False):
        super().__init__()
        _check_sizes(width=width, kernel=kernel, layers=layers)
        gaps = [kernel**n if dilated else 1 for n in range(layers)]
        self.layers = nn.ModuleList(nn.Conv1d(width, width, kernel, dilation=gap) for gap in gaps)

    def forward(self, x):
        """Convolve along time.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        x = x.transpose(1, 2)  # (B, D, T)
        for conv in self.layers:
            before = (conv.kernel_size[0] - 1) * conv.dilation[0]
            x = F.relu(conv(F.pad(x, (before, 0))))
        return x.transpose(1, 2)


def attention(B, T, D, H=1, *, impl="math"):
    r"""Scores, softmax and weighted mean of self-attention, without any projection: `course_lib.attention.attention`.

    $$ \text{parameters} = 0, \quad \text{operations} = 4BT^2D, \quad \text{steps} = 2, \quad \text{path} = 1 $$

    Half of the operations are the T^2 scores of H heads, each a product of two vectors of K = D / H numbers; the other
    half are the T^2 weights, each times a value. Kept: the scaled queries, the input, and BHT^2 weights.

    Args:
        B: batch.
        T: steps; every one attends to every one. A causal mask leaves out half of the pairs; as products of whole
            matrices they are computed all the same.
        D: width of queries, keys and values, all heads together; here they are the input itself.
        H: heads.
        impl: "math" keeps the weights; "sdpa" keeps their BHT normalisers, and the output.

    Returns:
        Cost.

    Raises:
        ValueError: if a size is not an integer of at least 1, D not a multiple of H, or impl unknown.

    Example:
        >>> attention(B=1, T=10, D=4, H=2)
        Cost(parameters=0, operations=1600, activations=280, steps=2, path=1)

    Source: Vaswani et al. (2017), table 1: T^2 D operations, 1 step, path 1. Notebook: 10, section 1.
    """
    _check_heads(D, H, B=B, T=T)
    kept = 2 * B * T * D + B * H * T * _kept_a_query(T, impl)
    return Cost(parameters=0, operations=4 * B * T * T * D, activations=kept, steps=2, path=1)


def multi_head(B, T, D, H, S=None, *, causal=False, impl="math"):
    r"""`MultiHeadAttention`: three projections, `attention` in H heads, and a projection of their outputs.

    $$ \text{parameters} = 4D^2 + 4D, \quad \text{operations} = 8BTD^2 + 4BT^2D, \quad
       \text{steps} = 4, \quad \text{path} = 3 $$

    The path leads through a value, its weighted mean and the last projection. Kept: the input, queries, keys, values,
    the heads' outputs (BTD each) and the weights, BHT^2. The number of heads changes nothing else.

    Args:
        B: batch.
        T: queries.
        D: width.
        H: heads.
        S: keys, if they come from another sequence (cross-attention). None: self-attention.
        causal: True keeps twice as many weights on the "math" path (before and after masking) and two masks.
        impl: "math" keeps the weights; "sdpa" keeps one normaliser for each query and head.

    Returns:
        Cost.

    Raises:
        ValueError: if a size is not an integer of at least 1, D not a multiple of H, or impl unknown.

    Example:
        >>> multi_head(B=1, T=10, D=4, H=2)
        Cost(parameters=80, operations=2880, activations=400, steps=4, path=3)
        >>> multi_head(B=1, T=10, D=4, H=2, impl="sdpa").activations
        220

    Source: Vaswani et al. (2017), section 3.2.2. Notebook: 10, section 3.
    """
    keys = T if S is None else S
    _check_heads(D, H, B=B, T=T, S=keys)
    kept = 5 * B * T * D if S is None else 3 * B * (T + S) * D
    if S is None and H == 1 and impl == "math":
        kept += B * T * D  # keys and values are then views of the packed projection: kept whole
    kept += B * H * T * _kept_a_query(keys, impl)
    if causal and impl == "math":
        kept += (B * H + 2) * T * keys
    return Cost(
        parameters=4 * D * D + 4 * D,
        operations=4 * B * (T + keys) * D * D + 4 * B * T * keys * D,
        activations=kept,
        steps=4,
        path=3,
    )


def feed_forward(B, T, D, F):
    r"""The two linear layers of a Transformer's block, the same at every position.

    $$ \text{parameters} = 2DF + F + D, \quad \text{operations} = 4BTDF, \quad \text{steps} = 2 $$

    Args:
        B: batch.
        T: positions.
        D: width.
        F: hidden width.

    Returns:
        Cost; the path is None for T > 1: no position sees another one.

    Raises:
        ValueError: if a size is not an integer of at least 1.

    Example:
        >>> feed_forward(B=1, T=10, D=4, F=16)
        Cost(parameters=148, operations=2560, activations=200, steps=2, path=None)

    Notebook: 10, section 3.
    """
    _check_sizes(B=B, T=T, D=D, F=F)
    path = 2 if T == 1 else None
    return Cost(2 * D * F + F + D, 4 * B * T * D * F, B * T * (D + F), steps=2, path=path)


def encoder_layer(B, T, D, H, F, *, causal=False, impl="math"):
    r"""`EncoderLayer`, Post-LN or Pre-LN, without dropout: `multi_head`, `feed_forward`, two norms.

    $$ \text{parameters} = 4D^2 + 2DF + F + 9D, \quad \text{operations} = 8BTD^2 + 4BT^2D + 4BTDF $$

    With F = 4D these are about $12D^2$ parameters and $24BTD^2 + 4BT^2D$ operations: of the second term, the only
    one that grows with the square of T, the share is T / (6D + T).

    Args:
        B: batch.
        T: positions.
        D: width.
        H: heads.
        F: hidden width of the feed-forward network.
        causal: as in `multi_head`.
        impl: as in `multi_head`.

    Returns:
        Cost; the residual connections lead around the feed-forward network, so the path is the attention's.

    Raises:
        ValueError: as `multi_head`.

    Example:
        >>> encoder_layer(B=1, T=10, D=4, H=2, F=16)
        Cost(parameters=244, operations=5440, activations=720, steps=6, path=3)

    Source: Kaplan et al. (2020), "Scaling Laws for Neural Language Models", arXiv 2001.08361, section 2.1 and table 1.
    Notebook: 10, section 3.
    """
    attending = multi_head(B, T, D, H, causal=causal, impl=impl)
    parts = [attending, feed_forward(B, T, D, F), _norm(B, T, D), _norm(B, T, D)]
    return _added(parts, path=3 if T > 1 else 0)


def decoder_layer(B, T, S, D, H, F, *, impl="math"):
    """`DecoderLayer`, causal, without dropout: an encoder layer with a second, crossing attention and a third norm.

    Args:
        B: batch.
        T: target positions.
        S: source positions.
        D: width.
        H: heads.
        F: hidden width of the feed-forward network.
        impl: as in `multi_head`.

    Returns:
        Cost; the path is from the first target position to the last.

    Raises:
        ValueError: as `multi_head`.

    Example:
        >>> decoder_layer(B=1, T=10, S=7, D=4, H=2, F=16).steps
        10

    Notebook: 10, section 3.
    """
    cross = multi_head(B, T, D, H, S, impl=impl)
    return _added([encoder_layer(B, T, D, H, F, causal=True, impl=impl), cross, _norm(B, T, D)], 3 if T > 1 else 0)


def encoder(B, T, D, H, F, N, *, causal=False, impl="math"):
    """`TransformerEncoder`: N encoder layers, Post-LN, without dropout. A norm at the end adds 2D parameters.

    Args:
        B: batch.
        T: positions.
        D: width.
        H: heads.
        F: hidden width of the feed-forward networks.
        N: layers.
        causal: as in `multi_head`.
        impl: as in `multi_head`.

    Returns:
        Cost. Residual connections lead around every layer, so the path does not grow with N.

    Raises:
        ValueError: as `multi_head`.

    Example:
        >>> encoder(B=1, T=10, D=4, H=2, F=16, N=3)
        Cost(parameters=732, operations=16320, activations=2160, steps=18, path=3)

    Notebook: 10, section 3.
    """
    _check_sizes(N=N)
    return _added([encoder_layer(B, T, D, H, F, causal=causal, impl=impl)] * N, path=3 if T > 1 else 0)


def transformer(B, S, T, D, H, F, N, *, impl="math"):
    """`Transformer`: N encoder layers and N decoder layers, Post-LN, without dropout, embeddings and output layer.

    Args:
        B: batch.
        S: source positions.
        T: target positions.
        D: width.
        H: heads.
        F: hidden width of the feed-forward networks.
        N: layers of either.
        impl: as in `multi_head`.

    Returns:
        Cost. The longest chain goes through the encoder, then enters the first decoder layer as its keys; the path is
        from the first source position to the last target position.

    Raises:
        ValueError: as `multi_head`.

    Example:
        >>> base = transformer(B=1, S=1, T=1, D=512, H=8, F=2048, N=6)
        >>> base.parameters, base.parameters + 37_000 * 512  # with one table of embeddings for all three places
        (44138496, 63082496)

    Source: Vaswani et al. (2017), table 3: 65 million for the base model, with its shared vocabulary of about 37,000
    (sections 3.4 and 5.1). Notebook: 10, section 4.
    """
    reading = encoder(B, S, D, H, F, N, impl=impl)
    writing = _added([decoder_layer(B, T, S, D, H, F, impl=impl)] * N, path=3)
    both = _added([reading, writing], path=3)
    shared = (N - 1) * B * S * D  # the memory is kept once, not once a layer
    return both._replace(activations=both.activations - shared, steps=reading.steps + writing.steps - 4)


def classifier(B, T, V, D, H, F, N, classes=2, *, impl="math"):
    """`TransformerClassifier` with mean pooling, without a mask, dropout or learned positions.

    Args:
        B: batch.
        T: tokens.
        V: vocabulary.
        D: width.
        H: heads.
        F: hidden width of the feed-forward networks.
        N: layers.
        classes: number of classes.
        impl: as in `multi_head`.

    Returns:
        Cost; the path is None: a token has no gradient.

    Raises:
        ValueError: as `multi_head`.

    Example:
        >>> classifier(B=128, T=200, V=50_002, D=32, H=2, F=128, N=1).parameters  # nearly all of it is the table
        1612834

    Notebook: 10, section 4.
    """
    _check_sizes(V=V, classes=classes)
    ends = Cost(V * D + classes * (D + 1), 2 * B * D * classes, B * T + B * D, steps=1, path=None)
    return _added([encoder(B, T, D, H, F, N, impl=impl), ends], path=None)


def _norm(B, T, D):
    """A LayerNorm: its input, a mean and a scale for each position are kept; no matrix product."""
    return Cost(parameters=2 * D, operations=0, activations=B * T * (D + 2), steps=0, path=None)


def _added(parts, path):
    """The sum of parts that run one after the other."""
    return Cost(*(sum(numbers) for numbers in list(zip(*parts, strict=True))[:4]), path)


def _kept_a_query(keys, impl):
    """How many numbers an attention keeps for each query and head: its weights, or what normalises them."""
    if impl not in ("math", "sdpa"):
        raise ValueError(f"impl must be 'math' or 'sdpa', got {impl!r}")
    return keys if impl == "math" else 1


# --- measurement: what a layer does when it runs ----------------------------------

# What autograd calls the products, and in which of their arguments no product happens: the matrix that is added.
PRODUCTS = {"Mm": None, "Bmm": None, "Linear": None, "Convolution": None, "Addmm": 0, "Baddbmm": 0}
OPAQUE = ("ScaledDotProduct", "Rnn", "DroppedAttention")  # kernels that do many products as one node


def measure(model, *inputs, **options):
    """The five numbers of a `Cost`, measured on a run.

    Args:
        model: module, or function of tensors.
        *inputs: what it is called with; the first is (..., T, D) if the path shall be measured, not integers.
        **options: passed on, such as impl="math" or impl="loop": a fused kernel hides its products.

    Returns:
        Cost. If the model returns a tuple, its first element counts, (..., T, D) if the path shall be measured.

    Raises:
        ValueError: as `count_operations` and `path_length`.

    Example:
        >>> from course_lib.rnn import RNN
        >>> measure(RNN(4, 4), torch.randn(1, 10, 4), impl="loop") == rnn(B=1, T=10, D=4)
        True

    Notebook: 10, section 2.
    """
    path = path_length(model, *inputs, **options) if inputs[0].is_floating_point() else None
    return Cost(
        parameters=number_of_parameters(model) if isinstance(model, nn.Module) else 0,
        operations=count_operations(model, *inputs, **options),
        activations=count_activations(model, *inputs, **options),
        steps=sequential_steps(_first(model(*_leaves(inputs), **options))),
        path=path,
    )


def count_operations(model, *inputs, **options):
    """Operations of the matrix products and convolutions of one forward pass, by torch's FLOP counter.

    A multiplication with its addition is 2 operations. Sums, softmax, norms and activation functions do not count;
    nor does the counter see into fused kernels on the CPU: they would count as 0, and are refused.

    Args:
        model: module, or function of tensors.
        *inputs: what it is called with.
        **options: passed on.

    Returns:
        int.

    Raises:
        ValueError: if the run went through a fused kernel.

    Example:
        >>> count_operations(nn.Linear(3, 5), torch.randn(7, 3)) == 2 * 7 * 3 * 5
        True

    Notebook: 10, section 2.
    """
    with FlopCounterMode(display=False) as counter:
        output = _first(model(*_leaves(inputs), **options))
    _graph(output)
    return counter.get_total_flops()


def count_activations(model, *inputs, **options):
    """Numbers that autograd keeps between the forward and the backward pass.

    Every tensor that an operation saves for its own backward passes a hook. Storages are counted, each once and as a
    whole, since a view keeps all of what it looks at; those of parameters and buffers are left out.

    Args:
        model: module, or function of tensors.
        *inputs: what it is called with.
        **options: passed on.

    Returns:
        int. Times 4 it is bytes, for float32 (a boolean mask, counted like all else, has 1 byte each).

    Example:
        >>> count_activations(nn.Linear(3, 5), torch.randn(7, 3))  # the input, for the gradient of the weights
        21

    Notebook: 10, section 2.
    """
    own = [*model.parameters(), *model.buffers()] if isinstance(model, nn.Module) else []
    own, kept = {tensor.untyped_storage().data_ptr() for tensor in own}, {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # held here, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        model(*_leaves(inputs), **options)
    counted = [tensor for address, tensor in kept.items() if address not in own]
    return sum(tensor.untyped_storage().nbytes() // tensor.element_size() for tensor in counted)


def sequential_steps(output):
    r"""The longest chain of matrix products behind a tensor, each of which needs the result of the one before.

    $$ \text{steps}(node) = \max_{input} \; \text{steps}(input) + [\text{node is a product that multiplies it}] $$

    Args:
        output: tensor with a graph behind it.

    Returns:
        int. However many processors there are, this many products must wait for one another.

    Raises:
        ValueError: if the output has no graph, or a fused kernel hides its products.

    Example:
        >>> A = torch.eye(3, requires_grad=True)
        >>> sequential_steps(A @ A @ A), sequential_steps((A @ A) @ (A @ A))  # 2 of 2 products, 2 of 3
        (2, 2)

    Notebook: 10, section 2.
    """
    steps = {}
    for node in _graph(output):  # inputs come before what is made of them
        inputs = enumerate(node.next_functions)
        counts = [steps[before] + _multiplied(node, i) for i, (before, _) in inputs if before]
        steps[node] = max(counts, default=0)
    return steps[output.grad_fn]


def path_length(model, x, *others, **options):
    r"""The fewest matrix products on any way from the first input to the last output.

    Every product that a gradient passes is made to shrink it by $\varepsilon$. The gradient of the last output with
    respect to the first input is a sum over ways, so now it is $\sum_n c_n \varepsilon^n$, where n counts the products
    of a way. For a small $\varepsilon$ the shortest ways remain, and halving it divides the sum by $2^n$.

    Args:
        model: module, or function of tensors.
        x: (..., T, D) input.
        *others: further inputs.
        **options: passed on.

    Returns:
        int; None if the last output does not depend on the first input at all.

    Raises:
        ValueError: if a fused kernel hides its products, or the path is too long to be told from none (some 80).

    Example:
        >>> from course_lib.rnn import RNN
        >>> path_length(RNN(3, 5), torch.randn(2, 9, 3), impl="loop")
        9

    Notebook: 10, section 2.
    """
    if isinstance(model, nn.Module):
        model = copy.deepcopy(model).double()
    inputs = [t.double() if t.is_floating_point() else t for t in (x, *others)]
    factors = 1.0, 2.0**-10, 2.0**-11
    whole, small, smaller = (_scaled_gradient(model, inputs, options, eps) for eps in factors)
    if whole == 0:
        return None
    if smaller < sys.float_info.min:
        raise ValueError("the path is so long that its gradient underflows: take a shorter T")
    return round(math.log2(small / smaller))


def _scaled_gradient(model, inputs, options, eps):
    """Norm of d(last output) / d(first input), each product on the way shrinking it by eps."""
    x, *others = _leaves(inputs)
    output = _first(model(x, *others, **options))
    for node in _graph(output):
        if _product(node) in PRODUCTS:

            def shrink(gradients, _, node=node):
                return tuple(g if g is None else g * eps ** _multiplied(node, i) for i, g in enumerate(gradients))

            node.register_hook(shrink)
    last = output[..., -1, :]
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0), dtype=last.dtype).to(last.device)
    (gradient,) = torch.autograd.grad((last * direction).sum(), x, allow_unused=True)
    return 0.0 if gradient is None else gradient[..., 0, :].norm().item()


def gradient_by_distance(model, x, **options):
    r"""How strongly the last output depends on the input d steps before it.

    $$ \text{norm}[d] = \frac1B \sum_b \Big\lVert \frac{\partial\, u_b \cdot y_{b,T}}{\partial x_{b,T-d}} \Big\rVert,
       \qquad u_b \text{ a random direction} $$

    Args:
        model: module on (B, T, D), or function; if it returns a tuple, its first element counts.
        x: (B, T, D) input.
        **options: passed on.

    Returns:
        (T,) norms by distance d = 0 .. T - 1.

    Example:
        >>> norms = gradient_by_distance(CausalCNN(32, kernel=3, layers=2), torch.randn(6, 9, 32))
        >>> (norms > 0).int().tolist()  # 2 layers of kernel 3 reach back 4 places
        [1, 1, 1, 1, 1, 0, 0, 0, 0]

    Notebook: 10, section 5.
    """
    (x,) = _leaves([x])
    last = _first(model(x, **options))[:, -1]
    direction = torch.randn(last.shape, generator=torch.Generator().manual_seed(0), dtype=last.dtype).to(last.device)
    (gradient,) = torch.autograd.grad((last * direction).sum(), x)
    return gradient.norm(dim=-1).mean(0).flip(0)


def _graph(output):
    """The nodes behind a tensor, inputs before what is made of them."""
    if output.grad_fn is None:
        raise ValueError("the output has no graph behind it: was it computed under no_grad or inference_mode?")
    ordered, stack = {}, [output.grad_fn]
    while stack:
        node = stack[-1]
        missing = [before for before, _ in node.next_functions if before is not None and before not in ordered]
        if any(name in node.name() for name in OPAQUE):
            raise ValueError(
                f"{node.name()} is a fused kernel that hides its products: pass impl='math' (attention) or "
                "impl='loop' (recurrent layers)"
            )
        if missing:
            stack += missing
        else:
            ordered[stack.pop()] = None
    return list(ordered)


def _product(node):
    """What a node is called, without autograd's suffix."""
    return node.name().split("Backward")[0]


def _multiplied(node, i):
    """1 if the node is a matrix product and multiplies its i-th input, else 0."""
    kind = _product(node)
    return int(kind in PRODUCTS and i != PRODUCTS[kind])


def _leaves(inputs):
    """The inputs, cut off from what made them; those that can have a gradient get one."""
    return [x.detach().requires_grad_() if x.is_floating_point() else x for x in inputs]


def _first(output):
    return output[0] if isinstance(output, tuple) else output


# --- time and memory --------------------------------------------------------------


def seconds(functions, rounds=5, least=0.02):
    """Time functions side by side, on one core of the CPU.

    Each round calls each function, in reversed order every other round, so that other work on the machine meets all of
    them. The clock is that of the process, and torch has one thread meanwhile: so the clock stands still while other
    processes run, and no thread that waits for another one moves it.

    Args:
        functions: dict of name to function without arguments.
        rounds: how often each is timed.
        least: seconds that one timing lasts at least, by repeating the call.

    Returns:
        dict of name to seconds of one call, the median over the rounds.

    Raises:
        ValueError: if there are no rounds.

    Example:
        >>> found = seconds({"few": lambda: sum(range(10)), "many": lambda: sum(range(100_000))}, least=0.001)
        >>> found["few"] < found["many"]
        True

    Notebook: 10, section 6.
    """
    if rounds < 1:
        raise ValueError(f"rounds must be at least 1, got {rounds}")
    samples = {name: [] for name in functions}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        repeats = {name: _repeats(function, least) for name, function in functions.items()}
        for number in range(rounds):
            for name in list(functions) if number % 2 == 0 else reversed(functions):
                samples[name].append(_timed(functions[name], repeats[name]))
    finally:
        torch.set_num_threads(threads)
    return {name: statistics.median(found) for name, found in samples.items()}


def _timed(function, repeats):
    start = time.process_time()
    for _ in range(repeats):
        function()
    return (time.process_time() - start) / repeats


def _repeats(function, least):
    """How many calls last `least` seconds; the first call of all is not timed."""
    function()
    return max(1, math.ceil(least / max(_timed(function, 1), 1e-7)))


def peak_memory(statements, setup=""):
    """The most memory that each statement held at once, beyond what was there before it.

    They run one after the other in a fresh Python of one thread, each twice: the first time lets torch load what it
    needs. Large blocks go back to the system when they are freed, so that no statement uses what another left over.

    Args:
        statements: list of str, Python code.
        setup: code that runs before them; its names are known to them. `torch` is imported.

    Returns:
        list of bytes, one a statement: of the process (Linux), or of the GPU if the code uses one. None in their place
        where the system does not tell: on macOS and Windows.

    Raises:
        ValueError: if the code raises; with the error.

    Example:
        >>> found = peak_memory(["x = torch.ones(4_000_000); del x"])  # 16 million bytes
        >>> found == [None] or 15.5e6 < found[0] < 17.5e6
        True

    Notebook: 10, section 6.
    """
    path = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parent.parent), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "MALLOC_MMAP_THRESHOLD_": "65536"}
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, setup, *statements], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise ValueError(f"the code to be measured failed: {done.stderr.strip().splitlines()[-1]}")
    return [None if word == "None" else int(word) for word in done.stdout.split()]


_PEAK = """
import gc, sys
from pathlib import Path
import torch

def status(key):
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(key))

def peak(code):
    gc.collect()
    if torch.cuda.is_available() and torch.cuda.max_memory_allocated():
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        exec(code, names)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    try:
        Path("/proc/self/clear_refs").write_text("5")  # Linux: the peak falls back to what is held now
        before = status("VmRSS")
    except OSError:
        return None
    exec(code, names)
    return max(0, status("VmHWM") - before)

names = {"torch": torch}
exec(sys.argv[1], names)
for code in sys.argv[2:]:
    exec(code, names)
    print(peak(code))
"""


def growth_exponent(sizes, values):
    r"""The power of the size with which something grows: the slope of a straight line through both logarithms.

    $$ \text{value} \approx c \cdot \text{size}^p $$

    Args:
        sizes: positive numbers, at least two different ones.
        values: positive numbers, one for each size.

    Returns:
        float p: 1 for linear growth, 2 for quadratic.

    Raises:
        ValueError: if the numbers are not positive, not equally many, or fewer than two sizes differ.

    Example:
        >>> round(growth_exponent([1, 2, 4], [3, 12, 48]), 6)
        2.0

    Notebook: 10, section 6.
    """
    if len(sizes) != len(values) or len(set(sizes)) < 2 or min(*sizes, *values) <= 0:
        raise ValueError(f"wanted as many values as sizes, all positive, two sizes or more, got {sizes} and {values}")
    logs = [math.log(size) for size in sizes], [math.log(value) for value in values]
    return statistics.linear_regression(*logs).slope


def _check_sizes(**sizes):
    for name, size in sizes.items():
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"{name} must be an integer of at least 1, got {size!r}")


def _check_heads(D, H, **sizes):
    _check_sizes(D=D, H=H, **sizes)
    if D % H:
        raise ValueError(f"D must be a multiple of H, got D={D} and H={H}")
