r"""What a layer costs, derived: each formula says in a few terms where its numbers come from.

B sequences of T steps (S of another sequence), width D, H heads, F hidden units of a feed-forward network, N layers.
Attention's `backend` is "math", which keeps its weights for the backward pass, or "sdpa", which keeps one normaliser
for each query and head. Layers are counted without dropout.
"""

import math
from typing import NamedTuple

from course_lib.utils.validate import check_choice, check_sizes


class Cost(NamedTuple):
    """What one forward pass over a batch of sequences costs."""

    parameters: int  # to be learned
    operations: int  # floating-point operations of the matrix products; a multiplication with its addition is 2
    activations: int  # numbers kept for the backward pass, the input among them
    steps: int  # matrix products that must wait for one another: what no parallel machine can shorten
    path: int | None  # fewest matrix products between the first input and the last output; None if there is no way


# --- recurrence and convolution -------------------------------------------------


def rnn_cost(B, T, D, input_size=None):
    """An Elman network; its input-to-state product is done for all steps at once, its state-to-state product is not.

    Kept: the inputs, the first state and every new one, B(TI + (T + 1) D) numbers.

    >>> rnn_cost(B=1, T=10, D=4)
    Cost(parameters=40, operations=640, activations=84, steps=10, path=10)

    Source: Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, table 1.
    """
    return recurrent_cost(B, T, D, input_size, gates=1, kept=T + 1, path=T)


def gru_cost(B, T, D, input_size=None):
    """A GRU (reset-after): three products of the kind that `rnn_cost` has one of.

    Its steps wait for one another like the RNN's, but the path is 1: once an input is in the state, the additive update
    carries it on through gates, which multiply entry by entry, and through no further matrix. The loop keeps the
    inputs, and 8 numbers a unit and step.
    """
    return recurrent_cost(B, T, D, input_size, gates=3, kept=8 * T, path=1)


def lstm_cost(B, T, D, input_size=None):
    """An LSTM: four products of the kind that `rnn_cost` has one of; the path is 1, along the cell, as in a GRU.

    The loop keeps the inputs, and 7 numbers a unit and step (four gates, the cell, its tanh, the state), less one.
    """
    return recurrent_cost(B, T, D, input_size, gates=4, kept=7 * T - 1, path=1)


def recurrent_cost(B, T, D, input_size, gates, kept, path):
    """Gates times the products of an RNN; `kept` numbers a unit beside the inputs."""
    I = D if input_size is None else input_size  # noqa: E741
    check_sizes(B=B, T=T, D=D, input_size=I)
    return Cost(
        parameters=gates * D * (I + D + 2),
        operations=2 * B * T * gates * D * (I + D),
        activations=B * T * I + B * D * kept,
        steps=T,
        path=path,
    )


def cnn_cost(B, T, D, kernel, layers=1, *, dilated=False):
    """A stack of causal convolutions (`CausalCNN`): each output reads the last `kernel` outputs of the layer below.

    `dilated` leaves gaps of k^n - 1 places between the inputs of layer n = 0, 1, ... Each layer keeps its padded input
    and its output. The path is N products, if the stack reaches back T - 1 places: see `layers_to_cover`. Source:
    Vaswani et al. (2017), table 1: path T/k, or log_k T if dilated; exact is (T - 1) / (k - 1) if not dilated.
    """
    check_sizes(B=B, T=T, D=D, kernel=kernel, layers=layers)
    gaps = [kernel**n if dilated else 1 for n in range(layers)]
    return Cost(
        parameters=layers * (kernel * D * D + D),
        operations=layers * 2 * B * T * kernel * D * D,
        activations=sum(B * D * (2 * T + (kernel - 1) * gap) for gap in gaps),
        steps=layers,
        path=layers if 1 + sum((kernel - 1) * gap for gap in gaps) >= T else None,
    )


def layers_to_cover(T, kernel, *, dilated=False):
    """How many causal convolutions it takes until the last output has seen the first of T inputs.

    >>> layers_to_cover(65, 3), layers_to_cover(65, 3, dilated=True)
    (32, 4)
    """
    check_sizes(T=T)
    check_sizes(least=2, kernel=kernel)
    if not dilated:
        return max(1, math.ceil((T - 1) / (kernel - 1)))
    layers = 1
    while kernel**layers < T:
        layers += 1
    return layers


# --- attention ------------------------------------------------------------------


def attention_cost(B, T, D, H=1, *, backend="math"):
    """Scores, softmax and weighted mean of self-attention, without any projection: `course_lib.attention.attention`.

    Half of the operations are the T^2 scores of H heads, each a product of two vectors of K = D / H numbers; the other
    half are the T^2 weights, each times a value. Kept: the scaled queries, the input, and BHT^2 weights. A causal mask
    leaves out half of the pairs; as products of whole matrices they are computed all the same. Source: Vaswani et al.
    (2017), table 1: T^2 D operations, 1 step, path 1.
    """
    check_heads(D, H, B=B, T=T)
    kept = 2 * B * T * D + B * H * T * kept_per_query(T, backend)
    return Cost(parameters=0, operations=4 * B * T * T * D, activations=kept, steps=2, path=1)


def multi_head_cost(B, T, D, H, S=None, *, causal=False, backend="math"):
    """`MultiHeadAttention`: three projections, `attention_cost` in H heads, and a projection of their outputs.

    The path leads through a value, its weighted mean and the last projection. Kept: the input, queries, keys, values,
    the heads' outputs (BTD each) and the weights, BHT^2; if causal, on the "math" path, twice as many weights (before
    and after masking) and two masks. For one sequence or one head the "math" path keeps BTD more in self-attention:
    keys and values are then views of the packed projection, which stays whole, its unscaled queries included. Else the
    number of heads changes the count of weights alone. S keys come from another sequence. Source: Vaswani et al.
    (2017), section 3.2.2.
    """
    keys = T if S is None else S
    check_heads(D, H, B=B, T=T, S=keys)
    kept = 5 * B * T * D if S is None else 3 * B * (T + S) * D
    if S is None and 1 in (B, H) and backend == "math":
        kept += B * T * D  # keys and values are then views of the packed projection: its queries are kept too
    kept += B * H * T * kept_per_query(keys, backend)
    if causal and T > 1 and backend == "math":  # a single query, the last, sees every key: no mask is made
        kept += (B * H + 2) * T * keys
    return Cost(
        parameters=4 * D * D + 4 * D,
        operations=4 * B * (T + keys) * D * D + 4 * B * T * keys * D,
        activations=kept,
        steps=4,
        path=3,
    )


def kept_per_query(keys, backend):
    """How many numbers an attention keeps for each query and head: its weights, or what normalises them."""
    check_choice("backend", backend, ("math", "sdpa"))
    return keys if backend == "math" else 1


def check_heads(D, H, **sizes):
    """Refuse what is no size, and a width that the heads cannot share."""
    check_sizes(D=D, H=H, **sizes)
    if D % H:
        raise ValueError(f"D must be a multiple of H, got D={D} and H={H}")


# --- the Transformer --------------------------------------------------------------


def feed_forward_cost(B, T, D, F):
    """The two linear layers of a Transformer's block, the same at every position: no position sees another one."""
    check_sizes(B=B, T=T, D=D, F=F)
    path = 2 if T == 1 else None
    return Cost(2 * D * F + F + D, 4 * B * T * D * F, B * T * (D + F), steps=2, path=path)


def norm_cost(B, T, D):
    """A LayerNorm: its input, a mean and a scale for each position are kept; no matrix product."""
    return Cost(parameters=2 * D, operations=0, activations=B * T * (D + 2), steps=0, path=None)


def added(parts, path):
    """The sum of parts that run one after the other."""
    return Cost(*(sum(numbers) for numbers in list(zip(*parts, strict=True))[:4]), path)


def encoder_layer_cost(B, T, D, H, F, *, causal=False, backend="math"):
    r"""`EncoderLayer`, Post-LN or Pre-LN: `multi_head_cost`, `feed_forward_cost`, two norms.

    $$ \text{parameters} = 4D^2 + 2DF + F + 9D, \quad \text{operations} = 8BTD^2 + 4BT^2D + 4BTDF $$

    With F = 4D these are about $12D^2$ parameters and $24BTD^2 + 4BT^2D$ operations: of the second term, the only
    one that grows with the square of T, the fraction is T / (6D + T). The residual connections lead around the
    feed-forward network, so the path is the attention's. Source: Kaplan et al. (2020), "Scaling Laws for Neural
    Language Models", arXiv:2001.08361, section 2.1, table 1.
    """
    attending = multi_head_cost(B, T, D, H, causal=causal, backend=backend)
    parts = [attending, feed_forward_cost(B, T, D, F), norm_cost(B, T, D), norm_cost(B, T, D)]
    return added(parts, path=3 if T > 1 else 0)


def decoder_layer_cost(B, T, S, D, H, F, *, backend="math"):
    """`DecoderLayer`, causal: an encoder layer of T target positions, an attention to S source positions, a third norm.

    The path is from the first target position to the last.
    """
    check_sizes(S=S)
    cross = multi_head_cost(B, T, D, H, S, backend=backend)
    own = encoder_layer_cost(B, T, D, H, F, causal=True, backend=backend)
    return added([own, cross, norm_cost(B, T, D)], path=3 if T > 1 else 0)


def encoder_cost(B, T, D, H, F, N, *, causal=False, backend="math"):
    """`TransformerEncoder`: N encoder layers, Post-LN. A norm at the end adds 2D parameters.

    Residual connections lead around every layer, so the path does not grow with N.
    """
    check_sizes(N=N)
    return added([encoder_layer_cost(B, T, D, H, F, causal=causal, backend=backend)] * N, path=3 if T > 1 else 0)


def transformer_cost(B, S, T, D, H, F, N, *, backend="math"):
    """`Transformer`: N encoder and N decoder layers, Post-LN, without embeddings and output layer.

    The longest chain goes through the encoder, then enters the first decoder layer as its keys; the path is from the
    first source position to the last target position.

    >>> base = transformer_cost(B=1, S=1, T=1, D=512, H=8, F=2048, N=6)
    >>> base.parameters, base.parameters + 37_000 * 512  # with one table of embeddings for all three places
    (44138496, 63082496)

    Source: Vaswani et al. (2017), table 3: 65 million for the base model, with a vocabulary of about 37,000.
    """
    reading = encoder_cost(B, S, D, H, F, N, backend=backend)
    writing = added([decoder_layer_cost(B, T, S, D, H, F, backend=backend)] * N, path=3)
    both = added([reading, writing], path=3)
    shared = (N - 1) * B * S * D  # the memory is kept once, not once a layer
    return both._replace(activations=both.activations - shared, steps=reading.steps + writing.steps - 4)


def classifier_cost(B, T, V, D, H, F, N, num_classes=2, *, backend="math"):
    """`TransformerClassifier` of V tokens with mean pooling, without padding and learned positions.

    The path is None: a token has no gradient.

    >>> classifier_cost(B=128, T=200, V=50_002, D=32, H=2, F=128, N=1).parameters  # nearly all of it is the table
    1612834
    """
    check_sizes(V=V, num_classes=num_classes)
    kept = 2 * B * T + B * D + B  # the tokens, which of them are real and how many, and the mean
    ends = Cost(V * D + num_classes * (D + 1), 2 * B * D * num_classes, kept, steps=1, path=None)
    return added([encoder_cost(B, T, D, H, F, N, backend=backend), ends], path=None)
