"""Each layer's forms against each other, against sums written out, and far outside of comfortable numbers."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib.gpt import GPT, GPTConfig
from course_lib.linear_attention import (
    EPS,
    LinearAttention,
    MinGRU,
    StateSpace,
    feature_map,
    linear_attention,
    linear_attention_chunked,
    linear_attention_step,
    linear_convolution,
    linear_loop,
    linear_scan,
)
from course_lib.train import set_seed

EXACT = {"rtol": 1e-9, "atol": 1e-9}  # float64, where only the order of sums differs
B, T, H, K, E, STATE, D = 2, 11, 3, 4, 5, 7, 12


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)), dtype=torch.float64)


def gradients(f, *inputs):
    """The output, and the gradient of a weighted sum of it for each input."""
    inputs = [x.detach().clone().requires_grad_() for x in inputs]
    out = f(*inputs)
    return out, torch.autograd.grad(out, inputs, draw(*out.shape, seed=99), materialize_grads=True)


# --- linear attention -----------------------------------------------------------


def test_the_feature_map_is_elu_plus_one_and_never_zero():
    """Fails if it differs from elu(x) + 1, in value or slope, or rounds to 0 where a key would be forgotten."""
    x = torch.linspace(-6, 6, 40, dtype=torch.float64)
    torch.testing.assert_close(gradients(feature_map, x), gradients(lambda x: F.elu(x) + 1, x), **EXACT)
    assert (feature_map(torch.tensor([-80.0])) > 0).all()
    assert (F.elu(torch.tensor([-80.0])) + 1 == 0).all()


def by_sums(q, k, v):
    """Equation 9, one sum after another."""
    rows = []
    for t in range(q.shape[-2]):
        fit = [(feature_map(q[..., t, :]) * feature_map(k[..., s, :])).sum(-1, keepdim=True) for s in range(t + 1)]
        rows.append(sum(f * v[..., s, :] for s, f in enumerate(fit)) / (sum(fit) + EPS))
    return torch.stack(rows, -2)


def by_steps(q, k, v):
    """One token after another."""
    state, rows = (q.new_zeros(*q.shape[:-2], K, E), q.new_zeros(*q.shape[:-2], K)), []
    for t in range(q.shape[-2]):
        out, state = linear_attention_step(q[..., t, :], k[..., t, :], v[..., t, :], state)
        rows.append(out)
    return torch.stack(rows, -2)


FORMS = {
    "parallel": linear_attention,
    "steps": by_steps,
    **{f"chunks of {n}": functools.partial(linear_attention_chunked, chunk=n) for n in (1, 4, T, 50)},
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_linear_attention_is_the_sum(form):
    """Fails if a token sees a later one, itself not, or a chunk not what lies before it: outputs and gradients."""
    qkv = draw(B, H, T, K), draw(B, H, T, K, seed=1), draw(B, H, T, E)
    torch.testing.assert_close(gradients(FORMS[form], *qkv), gradients(by_sums, *qkv), **EXACT)


def test_weights_are_a_mean():
    """Fails if the weights do not sum to 1: of equal values, the mean is that value, but for EPS."""
    out = linear_attention(draw(B, H, T, K), draw(B, H, T, K, seed=1), torch.ones(B, H, T, E, dtype=torch.float64))
    assert (out - 1).abs().max() < 1e-4
    assert torch.isfinite(linear_attention(*torch.full((3, 1, T, K), -200.0))).all()


# --- linear recurrences ---------------------------------------------------------


def by_powers(a, b):
    """h_t as the sum of each b_s times all a after it."""
    rows = [sum(a[:, s + 1 : t + 1].prod(1) * b[:, s] for s in range(t + 1)) for t in range(b.shape[1])]
    return torch.stack(rows, 1)


@pytest.mark.parametrize("form", [linear_loop, linear_scan])
@pytest.mark.parametrize("length", [1, 2, 3, 8, T])
def test_a_recurrence_is_a_sum_over_the_past(form, length):
    """Fails if a step is lost or taken twice, at lengths that are and are not powers of 2: outputs and gradients."""
    a, b = draw(B, length, D).sigmoid(), draw(B, length, D)
    torch.testing.assert_close(gradients(form, a, b), gradients(by_powers, a, b), **EXACT)


@pytest.mark.parametrize("form", [linear_loop, linear_scan, linear_convolution])
def test_a_fixed_factor_is_a_convolution(form):
    """Fails if the end of the text reaches its beginning, or a power is off by one: outputs and gradients."""
    a, b = draw(D).sigmoid(), draw(B, T, D)
    wanted = gradients(lambda a, b: by_powers(a.expand(B, T, D), b), a, b)
    torch.testing.assert_close(gradients(form, a, b), wanted, **EXACT)


@pytest.mark.parametrize("form", [linear_loop, linear_scan, linear_convolution])
@pytest.mark.parametrize("factor", [1e-30, 0.5, 1 - 1e-6])
def test_long_texts_are_safe(form, factor):
    """Fails if something overflows, or is divided by what has faded to 0; float32, 5000 tokens, known sum.

    The transform's error is relative to the largest number, not to each.
    """
    a, b = torch.full((2,), factor), torch.ones(1, 5000, 2)
    out, grads = gradients(form, a, b)
    wanted = (1 - torch.tensor(factor).double() ** torch.arange(1, 5001)) / (1 - torch.tensor(factor).double())
    torch.testing.assert_close(out[0, :, 0].double(), wanted, rtol=1e-4, atol=1e-6 * wanted.max())
    assert all(torch.isfinite(x).all() for x in grads)


@pytest.mark.parametrize("form", [linear_loop, linear_scan])
def test_factors_of_zero_and_one(form):
    """Fails if a gate that is shut or open all the way gives NaN: what is forgotten is gone, what is kept stays."""
    a, b = torch.tensor([1.0, 1.0, 0.0, 1.0]).view(1, 4, 1), torch.tensor([1.0, 2.0, 4.0, 8.0]).view(1, 4, 1)
    out, grads = gradients(form, a, b)
    assert out.flatten().tolist() == [1, 3, 4, 12]
    assert all(torch.isfinite(x).all() for x in grads)


# --- layers ---------------------------------------------------------------------


LAYERS = {
    "attention, parallel": lambda: LinearAttention(D, H, chunk=None),
    "attention, chunked": lambda: LinearAttention(D, H, chunk=4),
    "attention, no bias": lambda: LinearAttention(D, H, bias=False),
    **{f"state space, {m}": functools.partial(StateSpace, D, STATE, m) for m in ("loop", "scan", "fft")},
    **{f"MinGRU, {m}": functools.partial(MinGRU, D, STATE, m) for m in ("loop", "scan")},
}
every_layer = pytest.mark.parametrize("layer", LAYERS)


def made(layer):
    set_seed(0)
    return LAYERS[layer]().double()


def read_by_steps(layer, x):
    """The layer's outputs, one token after another."""
    state, outputs = None, []
    for token in x.unbind(1):
        y, state = layer.step(token, state)
        outputs.append(y)
    return torch.stack(outputs, 1)


@every_layer
def test_steps_give_what_forward_gives(layer):
    """Fails if generation would compute another function than training: outputs and gradients of every parameter."""
    layer, x, weighting = made(layer), draw(B, T, D), draw(B, T, D, seed=3)
    found = []
    for out in (layer(x), read_by_steps(layer, x)):
        found.append((out, torch.autograd.grad(out, list(layer.parameters()), weighting)))
    torch.testing.assert_close(*found, **EXACT)
    assert all(gradient.abs().max() > 1e-6 for gradient in found[0][1])


@every_layer
def test_layers_are_causal(layer):
    """Fails if a later token changes an earlier output, or an earlier token no later output."""
    layer, x = made(layer), draw(B, T, D)
    other = x.clone()
    other[:, 6] += 1
    changed = (layer(x) - layer(other)).abs().amax((0, 2))
    assert (changed[:6] < 1e-12).all()
    assert (changed[6:] > 1e-9).all()


def test_linear_attention_by_hand():
    """Fails if heads are cut elsewhere than in `MultiHeadAttention`, whose layout the projection has."""
    layer, x = made("attention, parallel"), draw(B, T, D)
    q, k, v = F.linear(x, layer.in_proj.weight, layer.in_proj.bias).chunk(3, -1)
    heads = [by_sums(*(part[..., h * K : (h + 1) * K] for part in (q, k, v))) for h in range(H)]
    torch.testing.assert_close(layer(x), layer.out_proj(torch.cat(heads, -1)), **EXACT)


def test_state_space_by_hand():
    """Fails if a is not exp(-exp(nu)), the input is not scaled by the root of 1 - a^2, or the skip is lost."""
    layer, x = made("state space, scan"), draw(B, T, D)
    a, h = torch.exp(-torch.exp(layer.nu)), torch.zeros(B, STATE, dtype=torch.float64)
    with torch.no_grad():
        layer.skip.copy_(draw(D))
    for t in range(T):
        h = a * h + (1 - a**2).sqrt() * (x[:, t] @ layer.in_proj.weight.T)
        torch.testing.assert_close(layer(x)[:, t], h @ layer.out_proj.weight.T + layer.skip * x[:, t], **EXACT)


def test_min_gru_by_hand():
    """Fails if the gate keeps where it should write, or sees another token."""
    layer, x = made("MinGRU, scan"), draw(B, T, D)
    h = torch.zeros(B, STATE, dtype=torch.float64)
    with torch.no_grad():
        layer.skip.copy_(draw(D))
    for t in range(T):
        z = torch.sigmoid(layer.gate(x[:, t]))
        h = (1 - z) * h + z * layer.in_proj(x[:, t])
        torch.testing.assert_close(layer(x)[:, t], layer.out_proj(h) + layer.skip * x[:, t], **EXACT)


def test_the_state_starts_with_memories_of_10_to_1000_tokens():
    """Fails if a^2 is not even between 0.9^2 and 0.999^2, or the state's variance is not that of its input."""
    set_seed(0)
    layer = StateSpace(16, 4000)
    a, scaled = layer.coefficients(torch.eye(16).unsqueeze(0))
    assert 0.9 < a.min() < 0.901 < 0.998 < a.max() < 0.9991
    assert abs(a.square().mean() - (0.9**2 + 0.999**2) / 2) < 5 * 0.188 / 12**0.5 / 4000**0.5
    part = (a**2).double().view(1, 1, -1).expand(1, 20_000, -1)[..., :3]
    variance = linear_loop(part, (scaled / layer.in_proj.weight.T)[:, :1, :3].double().square().expand_as(part))
    torch.testing.assert_close(variance[0, -1], torch.ones(3, dtype=torch.float64), rtol=1e-4, atol=0)


def test_a_closed_gate_keeps_and_an_open_one_forgets():
    """Fails if the gates' ends give NaN: 50 tokens are kept to a rounding, or forgotten at once."""
    layer, x = MinGRU(D).double(), draw(B, 50, D)
    with torch.no_grad():
        layer.gate.weight.zero_()
        for bias, factor in ((-1000.0, 1.0), (1000.0, 0.0)):
            layer.gate.bias.fill_(bias)
            a, b = layer.coefficients(x)
            assert (a == factor).all()
            torch.testing.assert_close(linear_scan(a, b), (1 - factor) * layer.in_proj(x), **EXACT)


@pytest.mark.parametrize("make", [lambda: LinearAttention(D, H), lambda: StateSpace(D), lambda: MinGRU(D)])
def test_a_gpt_may_have_it_in_the_place_of_attention(make):
    """Fails if a block cannot call it, or such a GPT does not learn: counting on, modulo 10."""
    set_seed(0)
    model = GPT(GPTConfig(10, 12, D, 2, H, dropout=0.0))
    for block in model.blocks:
        block.attn = make()
    rows = (torch.arange(10).unsqueeze(1) + torch.arange(9)) % 10
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(60):
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.2
    with pytest.raises(ValueError, match="in the place of a cache"):
        model(rows[:, :-1], model.start(10)["kv_caches"])


def test_what_does_not_fit_is_refused():
    """Fails if a slip gives numbers: shapes that broadcast by chance, a layer without a fixed factor, a lost head."""
    with pytest.raises(ValueError, match=r"wanted q \(..., T, K\)"):
        linear_attention(draw(B, T, K), draw(B, 1, K), draw(B, T, K))
    with pytest.raises(ValueError, match="does not broadcast"):
        linear_scan(draw(B, T + 1, D), draw(B, T, D))
    with pytest.raises(ValueError, match="a must be a tensor"):
        linear_convolution(draw(D + 1), draw(B, T, D))
    with pytest.raises(ValueError, match="method must be one of 'loop', 'scan', got 'fft'"):
        MinGRU(D, method="fft")
    with pytest.raises(ValueError, match="d_model must be a multiple"):
        LinearAttention(D, 5)
    with pytest.raises(ValueError, match="must be causal"):
        StateSpace(D)(draw(B, T, D).float(), causal=False)
    assert isinstance(StateSpace(D, method="fft"), nn.Module)
