r"""The Transformer: attention and a feed-forward network, added to what they read, N times.

Read `RESIDUALS`, three ways to add a sublayer; `EncoderLayer` and `DecoderLayer`, whose `forward` is their figure;
the stacks `TransformerEncoder` and `TransformerDecoder`, and `Transformer`, which joins them. They work on vectors and
take the weights of torch.nn's modules of the same names.

A mask is boolean, True = may attend, and broadcasts to (B, H, T, S); `functional.padding_mask` makes one of real
tokens. A position that no query may attend to is padding: the stacks return zeros there.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.functional import Dropout, attended_keys, skip_padding
from course_lib.utils.validate import (
    check_choice,
    check_instance,
    check_positive,
    check_sizes,
    check_tensor,
    check_width,
)

# --- residual connections -------------------------------------------------------


def post_ln(x, sublayer, norm, *args, **options):
    """Add, then normalise. What comes after `norm` is handed to the sublayer. Vaswani et al. (2017), section 3.1."""
    return norm(x + sublayer(x, *args, **options))


def pre_ln(x, sublayer, norm, *args, **options):
    """Normalise what the sublayer reads, add to x as it is. Xiong et al. (2020), arXiv:2002.04745, table 1."""
    return x + sublayer(norm(x), *args, **options)


def rezero(x, sublayer, scale, *args, **options):
    """Add with a learned weight that starts at zero, do not normalise. Bachlechner et al. (2021), arXiv:2003.04887."""
    return x + scale(sublayer(x, *args, **options))


class ReZeroScale(nn.Module):
    """Multiplication by one learned number that starts at zero."""

    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        """Multiply by alpha."""
        return self.alpha * x


RESIDUALS = {"post-ln": post_ln, "pre-ln": pre_ln, "rezero": rezero}
ACTIVATIONS = {"relu": F.relu, "gelu": F.gelu, "silu": F.silu}

# --- layers ---------------------------------------------------------------------


class EncoderLayer(nn.Module):
    r"""Self-attention, then a feed-forward network, each added to what it reads.

    $$ x \leftarrow \text{norm}_1(x + \text{attention}(x, x, x)), \qquad
       x \leftarrow \text{norm}_2(x + \text{relu}(x W_1^\top + b_1) W_2^\top + b_2) $$

    That is Post-LN; `residual` names the other forms. With `causal=True` it is the layer of a decoder-only model.
    Parameters have the names of nn.TransformerEncoderLayer, whose weights it takes.

    Args:
        d_model, num_heads, dim_feedforward: D, H (a divisor of D) and F.
        dropout: dropout probability of each sublayer's output.
        attention_dropout: dropout probability of the attention weights; None: as `dropout`.
        hidden_dropout: dropout probability of the hidden layer; None: as `dropout`.
        residual: "post-ln", "pre-ln" or "rezero", see `RESIDUALS`.
        activation: of the hidden layer: "relu", "gelu", "silu", or a function.
        bias: False leaves out all biases.
        norm: class of the norms, such as nn.RMSNorm.
        gated: True multiplies the hidden layer by a second one; with "silu" that is SwiGLU (Shazeer, arXiv:2002.05202).
        position: scheme of `course_lib.positional` that enters in the self-attention.
        device, dtype: of the parameters, as in torch; None: torch's own.

    >>> EncoderLayer(12, 3, 20)(torch.rand(2, 5, 12)).shape
    torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, sections 3.1 and 3.3, equation 2. Differs: dropout of the weights
    and of the hidden layer too, as in the authors' code and in torch.
    """

    def __init__(
        self, d_model, num_heads, dim_feedforward, dropout=0.1, *, attention_dropout=None, hidden_dropout=None,
        residual="post-ln", activation="relu", bias=True, norm=nn.LayerNorm, gated=False, position=None,
        device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        check_sizes(dim_feedforward=dim_feedforward)
        weight_dropout = dropout if attention_dropout is None else attention_dropout
        self.d_model = d_model
        self.self_attn = MultiHeadAttention(d_model, num_heads, weight_dropout, bias, position)
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias)
        self.gate = nn.Linear(d_model, dim_feedforward, bias=bias) if gated else None
        self.norm1, self.norm2 = make_norms(2, residual, norm, d_model, bias)
        self.dropout = Dropout(dropout)
        self.hidden_dropout = Dropout(dropout if hidden_dropout is None else hidden_dropout)
        self.residual, self.activation = RESIDUALS[residual], make_activation(activation)
        self.to(device=device, dtype=dtype)

    def forward(self, x, mask=None, causal=False, cache=None):
        """One layer: x (B, T, D) to (B, T, D); mask, causal and cache are those of `MultiHeadAttention`."""
        check_width("x", x, self.d_model)
        # Post-LN: x = norm1(x + attend(x)), then norm2(x + feed_forward(x)); `RESIDUALS` has the other forms.
        x = self.residual(x, self.attend, self.norm1, mask=mask, causal=causal, cache=cache)
        return self.residual(x, self.feed_forward, self.norm2)

    def attend(self, x, mask=None, causal=False, cache=None):
        """Every position looks at the positions of its own sequence: (B, T, D) to (B, T, D)."""
        return self.dropout(self.self_attn(x, mask=mask, causal=causal, cache=cache))

    def feed_forward(self, x):
        """The same small network at every position: (B, T, D) to (B, T, D)."""
        hidden = self.linear1(x)  # (B, T, F)
        hidden = self.activation(hidden) if self.gate is None else self.activation(self.gate(x)) * hidden
        return self.dropout(self.linear2(self.hidden_dropout(hidden)))


class DecoderLayer(nn.Module):
    """Self-attention over what is written, cross-attention to what was read, a feed-forward network.

    In the cross-attention the queries come from the decoder, keys and values from the memory m, the encoder's output.
    Parameters have the names of nn.TransformerDecoderLayer; the arguments are those of `EncoderLayer`.

    >>> DecoderLayer(12, 3, 20)(torch.rand(2, 5, 12), torch.rand(2, 7, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(
        self, d_model, num_heads, dim_feedforward, dropout=0.1, *, attention_dropout=None, hidden_dropout=None,
        residual="post-ln", activation="relu", bias=True, norm=nn.LayerNorm, gated=False, position=None,
        device=None, dtype=None,
    ):  # fmt: skip
        super().__init__()
        check_sizes(dim_feedforward=dim_feedforward)
        weight_dropout = dropout if attention_dropout is None else attention_dropout
        self.d_model = d_model
        self.self_attn = MultiHeadAttention(d_model, num_heads, weight_dropout, bias, position)
        self.multihead_attn = MultiHeadAttention(d_model, num_heads, weight_dropout, bias)
        self.linear1 = nn.Linear(d_model, dim_feedforward, bias=bias)
        self.linear2 = nn.Linear(dim_feedforward, d_model, bias=bias)
        self.gate = nn.Linear(d_model, dim_feedforward, bias=bias) if gated else None
        self.norm1, self.norm2, self.norm3 = make_norms(3, residual, norm, d_model, bias)
        self.dropout = Dropout(dropout)
        self.hidden_dropout = Dropout(dropout if hidden_dropout is None else hidden_dropout)
        self.residual, self.activation = RESIDUALS[residual], make_activation(activation)
        self.to(device=device, dtype=dtype)

    def forward(self, x, memory, mask=None, memory_mask=None, causal=True, cache=None):
        """One layer: x (B, T, D) and memory (B, S, D) to (B, T, D); `memory_mask` broadcasts to (B, H, T, S)."""
        check_width("x", x, self.d_model)
        x = self.residual(x, self.attend, self.norm1, mask=mask, causal=causal, cache=cache)
        x = self.residual(x, self.attend_to_memory, self.norm2, memory, memory_mask)
        return self.residual(x, self.feed_forward, self.norm3)

    def attend_to_memory(self, x, memory, memory_mask=None):
        """Every position looks at the memory: (B, T, D) to (B, T, D)."""
        check_tensor("memory", memory, ("B", "S", self.d_model))
        return self.dropout(self.multihead_attn(x, memory, mask=memory_mask))

    attend = EncoderLayer.attend
    feed_forward = EncoderLayer.feed_forward


def make_norms(count, residual, norm, d_model, bias):
    """What stands around the sublayers of a layer: a norm each, or one shared `ReZeroScale`."""
    check_choice("residual", residual, RESIDUALS)
    if not isinstance(norm, type):
        raise ValueError(f"norm must be a class, such as nn.RMSNorm, got {norm!r}")
    if residual == "rezero":
        return [ReZeroScale()] * count
    options = {} if bias or not issubclass(norm, nn.LayerNorm) else {"bias": False}
    return [norm(d_model, **options) for _ in range(count)]


def make_activation(activation):
    """The function of a name in `ACTIVATIONS`, or the function that is given."""
    if isinstance(activation, type):
        raise ValueError(f"activation must be a function or a name: {activation.__name__}(), not {activation.__name__}")
    if callable(activation):
        return activation
    check_choice("activation", activation, ACTIVATIONS)
    return ACTIVATIONS[activation]


# --- stacks ---------------------------------------------------------------------


class TransformerEncoder(nn.Module):
    """N layers, one after the other, each with its own weights; `norm` stands at the end, where Pre-LN needs one.

    >>> encoder = TransformerEncoder([EncoderLayer(12, 3, 20) for _ in range(2)])
    >>> encoder(torch.rand(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, layers, norm=None):
        super().__init__()
        self.layers, self.norm = make_stack(layers), norm
        self.d_model = self.layers[0].d_model

    @skip_padding  # saves time on a CPU without gradients, and changes nothing else
    def forward(self, x, mask=None, causal=False, kv_caches=None):
        """All layers: (B, T, D) to (B, T, D), 0 where no query may attend; `kv_caches` are N `KVCache`, one a layer."""
        kv_caches = [None] * len(self.layers) if kv_caches is None else kv_caches
        for layer, cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, mask, causal, cache)
        return finish(x, self.norm, mask)


class TransformerDecoder(nn.Module):
    """N decoder layers, one after the other; all look at the same memory."""

    def __init__(self, layers, norm=None):
        super().__init__()
        self.layers, self.norm = make_stack(layers), norm
        self.d_model = self.layers[0].d_model

    def forward(self, x, memory, mask=None, memory_mask=None, causal=True, kv_caches=None):
        """All layers: x (B, T, D) and memory (B, S, D) to (B, T, D); `memory_mask` broadcasts to (B, H, T, S)."""
        kv_caches = [None] * len(self.layers) if kv_caches is None else kv_caches
        for layer, cache in zip(self.layers, kv_caches, strict=True):
            x = layer(x, memory, mask, memory_mask, causal, cache)
        return finish(x, self.norm, mask)


class Transformer(nn.Module):
    """An encoder and a decoder on vectors. Takes the weights of nn.Transformer.

    >>> encoder = TransformerEncoder([EncoderLayer(12, 3, 20) for _ in range(2)])
    >>> decoder = TransformerDecoder([DecoderLayer(12, 3, 20) for _ in range(4)])
    >>> Transformer(encoder, decoder)(torch.rand(2, 5, 12), torch.rand(2, 7, 12)).shape
    torch.Size([2, 7, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, figure 1.
    """

    def __init__(self, encoder, decoder):
        super().__init__()
        check_instance("encoder", encoder, nn.Module)
        check_instance("decoder", decoder, nn.Module)
        if encoder.d_model != decoder.d_model:
            raise ValueError(f"the encoder's width is {encoder.d_model}, the decoder's {decoder.d_model}")
        self.encoder, self.decoder = encoder, decoder
        self.d_model = encoder.d_model

    def forward(self, source, target, source_mask=None, target_mask=None, memory_mask=None, causal=True):
        """Read the source (B, S, D), then compute all positions of the target (B, T, D) at once.

        The masks broadcast to (B, H, S, S), (B, H, T, T) and (B, H, T, S). Without `memory_mask` the target may look at
        all of the source that is not padding under `source_mask`.
        """
        if memory_mask is None and source_mask is not None:
            memory_mask = attended_keys(source_mask)[..., None, None, :]  # (B, 1, 1, S)
        memory = self.encoder(source, source_mask)
        return self.decoder(target, memory, target_mask, memory_mask, causal)


def make_stack(layers):
    """The layers as a ModuleList: at least one, no two the same, one width."""
    check_instance("layers", layers, list | nn.ModuleList)
    for layer in layers:
        check_instance("a layer", layer, nn.Module)
    if len(layers) == 0 or len(set(layers)) < len(layers):
        raise ValueError(f"wanted at least one layer, each its own object, got {len(layers)} of {len(set(layers))}")
    if len({layer.d_model for layer in layers}) > 1:
        raise ValueError(f"the layers have the widths {[layer.d_model for layer in layers]}: they must be equal")
    return nn.ModuleList(layers)


def finish(x, norm, mask):
    """The last norm of a stack, and zeros at padding."""
    x = x if norm is None else norm(x)
    return x if mask is None else x.masked_fill(~attended_keys(mask)[..., -x.shape[-2] :, None], 0.0)


# --- the start ------------------------------------------------------------------


def init_weights(model, std=0.02):
    """Start as BERT and GPT-2 do: weights and tables of embeddings normal, biases zero; norms stay as they are.

    Source: Devlin et al. (2019), arXiv:1810.04805 (the authors' code); Radford et al. (2018), section 4.1.
    """
    check_instance("model", model, nn.Module)
    check_positive(zero=True, std=std)
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, MultiHeadAttention):
            nn.init.normal_(part.in_proj_weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    return model
