r"""Weights in 8 bits: a model of a quarter of the size, whose products move a quarter of the bytes.

Read `quantize_rows` and `dequantize`, the idea; `Int8Linear`, a layer that computes with such weights; and
`quantize_model`, which puts it into a trained model. All this is for inference: an integer has no gradient.

Source: Dettmers et al. (2022), "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", arXiv:2208.07339,
sections 2.1 and 3.1. Differs: no columns of outliers are kept in 16 bits, which models from some 6 billion parameters
on need when their activations are quantized too.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention, split_heads
from course_lib.lora import check_own_weight, fits
from course_lib.utils.validate import check_finite, check_instance, check_tensor, check_tokens

# --- numbers --------------------------------------------------------------------


def quantize_rows(weight):
    r"""Each row of a matrix (O, I) as whole numbers from -127 to 127, int8 (O, I), and its scale (O,).

    $$ s_o = \max_i |w_{oi}| / 127, \quad q_{oi} = \text{round}(w_{oi} / s_o), \quad
       |w_{oi} - s_o q_{oi}| \le s_o / 2 $$

    One scale a row, so that one large weight makes its own row coarse and no other.

    >>> q, scales = quantize_rows(torch.tensor([[1.27, -0.5], [0.1, 25.4]]))
    >>> q
    tensor([[127, -50],
            [  0, 127]], dtype=torch.int8)
    >>> scales
    tensor([0.0100, 0.2000])
    """
    check_tensor("weight", weight, ("O", "I"), "float")
    check_finite("weight", weight)
    return to_int8(weight.to(torch.promote_types(weight.dtype, torch.float32)))


def to_int8(x):
    """The same without checks."""
    scales = (x.abs().amax(-1) / 127).clamp(min=torch.finfo(x.dtype).tiny)  # a row of zeros has one too
    return (x / scales.unsqueeze(-1)).round().to(torch.int8), scales


def dequantize(q, scales):
    """The weights (O, I) that the whole numbers stand for.

    >>> dequantize(*quantize_rows(torch.tensor([[1.27, -0.503]])))
    tensor([[ 1.2700, -0.5000]])
    """
    check_tensor("q", q, ("O", "I"), torch.int8)
    check_tensor("scales", scales, (len(q),), "float")
    return q.to(scales.dtype) * scales.unsqueeze(1)


# --- layers ---------------------------------------------------------------------


class Int8Linear(nn.Module):
    r"""A linear layer with weights in 8 bits.

    $$ y_o = s_o \sum_i x_i q_{oi} + b_o, \qquad |y_o - (x W^\top + b)_o| \le \tfrac{1}{2} s_o \sum_i |x_i| $$

    Args:
        weight, bias: (O, I) and (O,) or None, those of an nn.Linear, which are left as they are.
        activations: True puts each vector x in 8 bits too, with a scale $s_x$ of its own. Then only whole numbers are
            multiplied, for which a CPU has faster instructions; the bound grows by $s_x s_o \sum_i |q_{oi}| / 2$.

    >>> layer = Int8Linear(torch.rand(5, 3), torch.rand(5))
    >>> layer.weight.dtype, layer(torch.rand(2, 4, 3)).shape
    (torch.int8, torch.Size([2, 4, 5]))
    """

    def __init__(self, weight, bias=None, activations=False):
        super().__init__()
        q, scales = quantize_rows(weight.detach() if isinstance(weight, torch.Tensor) else weight)
        if bias is not None:
            check_tensor("bias", bias, (len(q),), "float", weight)
        self.register_buffer("weight", q)  # (O, I)
        self.register_buffer("scales", scales)  # (O,)
        self.register_buffer("bias", None if bias is None else bias.detach().clone())
        self.activations = activations

    def forward(self, x):
        """(..., I) to (..., O)."""
        if x.shape[-1] != self.weight.shape[1]:
            raise ValueError(f"x must have the width {self.weight.shape[1]}, got shape {tuple(x.shape)}")
        sums = self.integer_sums(x) if self.activations else F.linear(x, self.weight.to(x.dtype))
        y = sums * self.scales  # the scale of a row of weights stands outside its sum
        return (y if self.bias is None else y + self.bias).to(x.dtype)

    def integer_sums(self, x):
        """With x in 8 bits: sums of whole numbers (..., O), in 32 bits, times the scale of each x."""
        q, scales = to_int8(x.reshape(-1, x.shape[-1]))  # (R, I), (R,): R vectors
        sums = torch._int_mm(q, self.weight.T)  # (R, O) int32
        return (sums * scales.unsqueeze(1)).view(*x.shape[:-1], -1)

    def extra_repr(self):
        """The sizes, for `print`."""
        out_features, in_features = self.weight.shape
        return f"{in_features}, {out_features}, activations={self.activations}"


class Int8Attention(MultiHeadAttention):
    """A `MultiHeadAttention` whose four projections have weights in 8 bits."""

    def __init__(self, attention, activations=False):
        check_instance("attention", attention, MultiHeadAttention)
        nn.Module.__init__(self)  # it takes over the parts of the other, and needs none of its own
        self.d_model, self.num_heads, self.position = attention.d_model, attention.num_heads, attention.position
        self.dropout, out = attention.dropout, attention.out_proj
        biases = [None] * 3 if attention.in_proj_bias is None else attention.in_proj_bias.chunk(3)
        parts = zip(attention.in_proj_weight.chunk(3), biases, strict=True)
        self.in_proj = nn.ModuleList(Int8Linear(weight, bias, activations) for weight, bias in parts)
        self.out_proj = Int8Linear(out.weight, out.bias, activations)

    def project(self, query, key=None, value=None):
        """The heads' queries (B, H, T, K), keys and values (B, H, S, K)."""
        key = query if key is None else key
        inputs = query, key, key if value is None else value
        return [split_heads(layer(x), self.num_heads) for layer, x in zip(self.in_proj, inputs, strict=True)]


# --- a whole model --------------------------------------------------------------


def quantize_model(model, skip=("head",), activations=False):
    """Put the weights of all linear layers and attentions of a trained model in 8 bits, in its place.

    Layers whose name ends with one of `skip` stay, as do tables of embeddings and norms; the output layer by default,
    whose errors reach the logits directly, and which in GPT-2 is the table of embeddings. Returns the model, changed
    and in evaluation mode. Its `state_dict` loads into another model that was quantized.

    >>> from course_lib.gpt import GPT, GPTConfig
    >>> model = GPT(GPTConfig(11, 9, d_model=64, num_layers=2, num_heads=4))
    >>> before = size_in_bytes(model.blocks)
    >>> round(before / size_in_bytes(quantize_model(model).blocks), 1)  # biases and norms stay
    3.6
    """
    check_instance("model", model, nn.Module)
    skip = check_tokens("skip", skip)
    new = {}
    for name, layer in model.named_modules():
        if name == "" or fits(name, skip):
            continue
        if type(layer) is nn.Linear:
            check_own_weight(model, name, layer.weight)
            new[name] = Int8Linear(layer.weight, layer.bias, activations)
        if type(layer) is MultiHeadAttention:
            new[name] = Int8Attention(layer, activations)
    if not new:
        raise ValueError(f"model must have a linear layer that is not skipped, got {type(model).__name__}")
    for name, layer in new.items():
        model.set_submodule(name, layer)
    return model.eval()


def size_in_bytes(model):
    """Memory of the parameters and buffers of a model; one that occurs twice counts once.

    >>> size_in_bytes(nn.Linear(3, 5)), size_in_bytes(Int8Linear(torch.rand(5, 3), torch.rand(5)))
    (80, 55)
    """
    check_instance("model", model, nn.Module)
    return sum(x.numel() * x.element_size() for x in [*model.parameters(), *model.buffers()])
