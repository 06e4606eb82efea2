"""Eight bits against the weights that they stand for, and against bounds on the error."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.bert import BERT, BERTConfig, BERTForSequenceClassification
from course_lib.gpt import GPT, GPTConfig
from course_lib.positional import RelativeBias
from course_lib.quantization import (
    Int8Attention,
    Int8Linear,
    dequantize,
    quantize_model,
    quantize_rows,
    size_in_bytes,
)
from course_lib.train import set_seed

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, T, S, H, K, N, V = 3, 7, 9, 3, 8, 2, 11
D, OUT = H * K, 13
IDS = torch.randint(V, (B, T), generator=torch.Generator().manual_seed(1))

activations = pytest.mark.parametrize("activations", [False, True])


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def gpt(seed=0, **changed):
    set_seed(seed)
    return GPT(GPTConfig(V, 9, D, N, H, dropout=0.0, **changed)).eval()


def rows_of_all_sizes():
    """Rows from 1e-6 to 1e6, one of zeros, one with an outlier."""
    weight = draw(OUT, 40) * 10.0 ** torch.arange(-6, 7).unsqueeze(1)
    weight[3], weight[4, 5] = 0, 1000
    return weight


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_weight_is_off_by_half_a_scale_at_most(dtype):
    """Fails if one scale serves several rows, a number is cut off instead of rounded, or the largest does not fit.

    In a narrow type w / s, up to 127, is itself rounded, by at most 127 half units in the last place.
    """
    weight = rows_of_all_sizes().to(dtype)
    q, scales = quantize_rows(weight)
    assert (q.dtype, q.shape, scales.shape) == (torch.int8, weight.shape, (OUT,))
    assert scales.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    error = (dequantize(q, scales).double() - weight.double()).abs().amax(1)
    rounding = 127 * torch.finfo(scales.dtype).eps
    assert (error <= scales.double() * (0.5 + rounding)).all()
    assert (error[:3] > 0.3 * scales[:3]).all(), "40 weights come near the bound"
    assert (q.abs().amax(1) == 127).tolist() == [i != 3 for i in range(OUT)]
    assert (dequantize(q, scales)[3] == 0).all()
    assert (scales > 0).all(), "0 / 0 is no number"


def test_quantizing_twice_changes_nothing():
    """Fails if what was quantized moves when it is quantized again."""
    q, scales = quantize_rows(rows_of_all_sizes())
    again, _ = quantize_rows(dequantize(q, scales))
    assert torch.equal(again, q)


@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_the_product_with_the_dequantized_weights(bias):
    """Fails if a scale belongs to another row, or the error is above half a scale times the sum of |x|."""
    linear, x = nn.Linear(D, OUT, bias).double(), draw(B, T, D)
    layer = Int8Linear(linear.weight, linear.bias)
    torch.testing.assert_close(layer(x), F.linear(x, dequantize(layer.weight, layer.scales), linear.bias), **EXACT)
    error = (layer(x) - linear(x)).abs()
    assert (error <= layer.scales / 2 * x.abs().sum(-1, keepdim=True)).all()
    assert error.max() > 0
    assert layer(x[0, 0]).shape == (OUT,)
    assert layer(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.parametrize("bias", [True, False])
def test_whole_numbers_multiply_to_the_same(bias):
    """Fails if a vector shares its scale with another, a sum of 32 bits is cut, or the error is above its bound.

    The reference multiplies the whole numbers in float64, where their sums are exact.
    """
    linear = nn.Linear(D, OUT, bias).double()
    x = draw(B, T, D) * 10.0 ** torch.arange(-3, T - 3).unsqueeze(1)
    layer = Int8Linear(linear.weight, linear.bias, activations=True)
    q, scales = quantize_rows(x.view(-1, D))
    q, scales = q.view(B, T, D), scales.view(B, T, 1)
    sums = q.double() @ layer.weight.double().T
    wanted = sums * scales * layer.scales + (linear.bias if bias else 0)
    torch.testing.assert_close(layer(x), wanted, **EXACT)
    bound = layer.scales / 2 * x.abs().sum(-1, keepdim=True)
    bound = bound + scales / 2 * layer.scales * layer.weight.double().abs().sum(1)
    assert ((layer(x) - linear(x)).abs() <= bound).all()
    assert layer(x[0, 0]).shape == (OUT,)
    large = Int8Linear(torch.ones(2, 5000), activations=True)  # 5000 * 127^2 is more than float32 holds exactly
    torch.testing.assert_close(large(torch.ones(5000)), torch.tensor([5000.0, 5000.0]))


@activations
@pytest.mark.parametrize("bias", [True, False])
def test_attention_is_that_of_the_quantized_projections(activations, bias):
    """Fails if queries, keys and values change places, or a bias, the scheme of positions or a map is lost."""
    set_seed(0)
    plain = MultiHeadAttention(D, H, bias=bias, position=RelativeBias(H, 2)).double()
    layer = Int8Attention(plain, activations)
    exact = copy.deepcopy(plain)
    with torch.no_grad():
        exact.in_proj_weight.copy_(dequantize(*quantize_rows(plain.in_proj_weight)))
        exact.out_proj.weight.copy_(dequantize(*quantize_rows(plain.out_proj.weight)))
    close = {"rtol": 0, "atol": 0.05} if activations else EXACT
    for inputs in ((draw(B, T, D),), (draw(B, T, D), draw(B, S, D)), (draw(B, T, D), draw(B, S, D), draw(B, S, D) + 1)):
        torch.testing.assert_close(layer(*inputs), exact(*inputs), **close)
        torch.testing.assert_close(layer.attention_weights(*inputs), exact.attention_weights(*inputs), **close)


def with_weights_of(quantized, plain):
    """The plain model with the weights that the quantized one computes with."""
    wanted = copy.deepcopy(plain)
    with torch.no_grad():
        for name, layer in quantized.named_modules():
            if isinstance(layer, Int8Attention):
                rows = [dequantize(part.weight, part.scales) for part in layer.in_proj]
                wanted.get_submodule(name).in_proj_weight.copy_(torch.cat(rows))
            elif isinstance(layer, Int8Linear) and "in_proj" not in name:
                wanted.get_submodule(name).weight.copy_(dequantize(layer.weight, layer.scales))
    return wanted


@torch.no_grad()
def test_a_gpt_with_weights_in_8_bits():
    """Fails if a layer is missed or computed with other weights, or the logits move by more than a few percent."""
    model = gpt().double()
    quantized = quantize_model(copy.deepcopy(model).train())
    assert not quantized.training
    kinds = [type(x) for x in quantized.modules()]
    assert (kinds.count(Int8Attention), kinds.count(Int8Linear), kinds.count(nn.Linear)) == (N, (4 + 2) * N, 1)
    torch.testing.assert_close(quantized(IDS), with_weights_of(quantized, model)(IDS), **EXACT)
    spread = model(IDS).std()
    assert 0 < (quantized(IDS) - model(IDS)).abs().max() < 0.03 * spread
    narrow = quantize_model(copy.deepcopy(model), activations=True)
    assert 0 < (narrow(IDS) - model(IDS)).abs().max() < 0.06 * spread
    state = quantized.start(B)
    for part in (IDS[:, :3], IDS[:, 3:]):
        logits, state = quantized.step(part, state)
    torch.testing.assert_close(logits, quantized(IDS)[:, -1], **EXACT)


def test_a_block_is_a_quarter_of_its_size():
    """Fails if a weight stays in 32 bits: the rows' scales, biases and norms are all that is not 8 bits."""
    block = GPT(GPTConfig(V, 9, 96, 1, 3)).blocks[0]
    assert size_in_bytes(block) == 4 * (12 * 96**2 + 13 * 96)
    rows = 3 * 96 + 96 + 4 * 96 + 96
    assert size_in_bytes(quantize_model(block)) == 12 * 96**2 + 4 * rows + 4 * 13 * 96


@activations
@torch.no_grad()
def test_a_state_dict_goes_round(activations, tmp_path):
    """Fails if whole numbers or scales are left out, or loading mixes them up."""
    model, other = (quantize_model(gpt(seed), activations=activations) for seed in (0, 1))
    assert not torch.equal(model(IDS), other(IDS))
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other.load_state_dict(torch.load(tmp_path / "model.pt"))
    assert torch.equal(model(IDS), other(IDS))
    assert torch.equal(copy.deepcopy(model).to(torch.float64).blocks[0].mlp[0].weight, model.blocks[0].mlp[0].weight)


@torch.no_grad()
def test_bert_can_be_quantized():
    """Fails if the other order of norms, or a mask of padding, is lost on the way."""
    set_seed(0)
    model = BERTForSequenceClassification(BERT(BERTConfig(V, 9, D, N, H, 20, dropout=0.0))).double().eval()
    quantized, real = quantize_model(copy.deepcopy(model)), torch.arange(T) < torch.tensor([[7], [4], [2]])
    wanted = with_weights_of(quantized, model)
    torch.testing.assert_close(quantized(IDS, real), wanted(IDS, real), **EXACT)


def test_what_cannot_be_quantized_is_refused():
    """Fails if a tied weight is quantized in one of its places, or nothing at all without a word."""
    with pytest.raises(ValueError, match="head must have a weight of its own"):
        quantize_model(gpt(), skip=())
    assert isinstance(quantize_model(gpt(tied=False), skip=()).head, Int8Linear)
    with pytest.raises(ValueError, match="must have a linear layer that is not skipped"):
        quantize_model(nn.Sequential(nn.LayerNorm(3)))
    with pytest.raises(ValueError, match="must be finite"):
        quantize_rows(torch.tensor([[1.0, torch.nan]]))
    with pytest.raises(ValueError, match="x must have the width 3"):
        Int8Linear(torch.ones(2, 3))(torch.ones(4))
