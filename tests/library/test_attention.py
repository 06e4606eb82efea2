"""Attention against its definition written as loops, against torch's attention, and one path against the other."""

import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import attention as attention_module
from course_lib import functional
from course_lib.attention import (
    BACKENDS,
    AdditiveAttention,
    KVCache,
    MultiHeadAttention,
    attention,
    attention_backend,
    attention_scores,
    attention_weights,
    hard_attention,
    merge_heads,
    record_attention,
    split_heads,
)
from course_lib.functional import attended_keys, causal_mask, combined_mask, dropout_mask, padding_mask
from course_lib.positional import ALiBi, RelativeBias, RoPE

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, T, S, Q, E, A = 2, 5, 7, 3, 4, 6
H, K = 3, 4


def draw(*shape, seed=0):
    """Normal numbers in float64 that take gradients."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def random_mask(*shape, seed=0):
    """A random mask whose rows all have a True, somewhere and not only in front."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., 2] = True
    return mask


def test_weights_equal_torchs_attention_with_and_without_a_mask():
    """Fails if the mask is read the other way round or masked keys keep a weight.

    With values that are the unit vectors, torch's attention returns its weights.
    """
    query, key = draw(B, T, E), draw(B, S, E, seed=1)
    for mask in (None, random_mask(B, T, S)):
        wanted = F.scaled_dot_product_attention(query, key, torch.eye(S, dtype=torch.float64).expand(B, S, S), mask)
        got = attention_weights(query @ key.transpose(1, 2) / math.sqrt(E), mask)
        torch.testing.assert_close(got, wanted, **EXACT)
        assert mask is None or (got[~mask] == 0).all()


def test_a_mask_expands_over_the_queries():
    """Fails if a (B, 1, S) mask is refused or lined up with the wrong axis."""
    scores, mask = draw(B, T, S), random_mask(B, 1, S)
    torch.testing.assert_close(
        attention_weights(scores, mask), attention_weights(scores, mask.expand(B, T, S)), rtol=0, atol=0
    )


def test_a_fully_masked_row_gives_zeros_and_no_gradient():
    """Fails with NaN (minus infinity and softmax) or with equal weights (a large negative number and softmax)."""
    scores = draw(3, S)
    mask = torch.tensor([[True] * S, [False] * S, [True] + [False] * (S - 1)])
    weights = attention_weights(scores, mask)
    assert (weights[1] == 0).all()
    torch.testing.assert_close(weights.sum(1), torch.tensor([1.0, 0.0, 1.0], dtype=torch.float64), **EXACT)
    (weights * torch.arange(S)).sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[1] == 0).all()
    assert (scores.grad[0] != 0).all()


def test_huge_scores_do_not_overflow():
    """Fails if the softmax is written as exp over sum of exp, or a score below the filling wins over it."""
    weights = attention_weights(torch.tensor([[1e4, 0.0, -1e30]]), torch.tensor([[True, True, True]]))
    assert weights.tolist() == [[1.0, 0.0, 0.0]]
    weights = attention_weights(torch.tensor([[1e30, -1e30]]), torch.tensor([[False, True]]))
    assert weights.tolist() == [[0.0, 1.0]]


def by_hand(layer, query, keys, values, mask):
    """The formula with one score at a time: v^T tanh(W_q q + W_k k), softmax over the keys that are allowed."""
    W_q, W_k, v = layer.query.weight, layer.key.weight, layer.score.weight[0]
    contexts, weights = [], []
    for b in range(query.shape[0]):
        scores = torch.einsum("a,sa->s", v, torch.tanh(W_q @ query[b] + torch.einsum("ae,se->sa", W_k, keys[b])))
        top = scores.exp() * (1 if mask is None else mask[b, 0])
        weights.append(top / top.sum())
        contexts.append(sum(w * value for w, value in zip(weights[-1], values[b], strict=True)))
    return torch.stack(contexts), torch.stack(weights)


@pytest.mark.parametrize("masked", [False, True])
def test_additive_attention_equals_its_formula_forward_and_backward(masked):
    """Fails for a wrong score, for keys in the place of values (here they differ), or a mask that is not applied."""
    layer = AdditiveAttention(Q, E, A).double()
    query, keys, values = draw(B, Q), draw(B, S, E), draw(B, S, E + 1)
    mask = random_mask(B, 1, S) if masked else None
    parameters = [query, keys, values, *layer.parameters()]

    def gradients(context, weights):
        loss = (context * torch.arange(E + 1)).sum() + (weights * torch.arange(S).square()).sum()
        return torch.autograd.grad(loss, parameters)

    got, wanted = layer(query, layer.project(keys), values, mask), by_hand(layer, query, keys, values, mask)
    torch.testing.assert_close(got, wanted, **EXACT)
    torch.testing.assert_close(gradients(*got), gradients(*wanted), **EXACT)


def test_many_queries_equal_one_query_at_a_time():
    """Fails if the queries of a sentence see each other, or the axes of queries and keys are swapped."""
    layer = AdditiveAttention(Q, E, A).double()
    query, keys = draw(B, T, Q), draw(B, S, E)
    for mask in (random_mask(B, 1, S), random_mask(B, T, S), random_mask(T, S), random_mask(S)):
        context, weights = layer(query, layer.project(keys), keys, mask)
        assert context.shape == (B, T, E)
        for t in range(T):
            one = layer(query[:, t], layer.project(keys), keys, mask.expand(B, T, S)[:, t : t + 1])
            torch.testing.assert_close((context[:, t], weights[:, t]), one, **EXACT)


def test_padding_changes_nothing():
    """Fails if what stands at masked positions has any influence."""
    layer = AdditiveAttention(Q, E, A).double()
    query, keys = draw(B, Q), draw(B, S, E)
    longer = torch.cat([keys, 1e6 * draw(B, 3, E)], 1)
    mask = torch.arange(S + 3).expand(B, 1, -1) < S
    context, weights = layer(query, layer.project(longer), longer, mask)
    wanted = layer(query, layer.project(keys), keys)
    torch.testing.assert_close((context, weights[:, :S]), wanted, **EXACT)


def test_bad_masks_are_refused():
    """Fails if a mask is broadcast by accident or read as numbers."""
    scores = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"mask of shape \(2, 4\) does not broadcast to \(2, 3, 4\)"):
        attention_weights(scores, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask of shape \(5, 2, 3, 4\) does not broadcast to \(2, 3, 4\)"):
        attention_weights(scores, torch.ones(5, 2, 3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask must be torch.bool, got torch.float32"):
        attention_weights(scores, torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"mask must be a torch tensor, got numpy.ndarray"):
        attention_weights(scores, torch.ones(2, 3, 4, dtype=torch.bool).numpy())
    with pytest.raises(ValueError, match=r"mask is on meta, wanted cpu"):
        attention_weights(scores, torch.ones(2, 3, 4, dtype=torch.bool, device="meta"))
    layer = AdditiveAttention(Q, E, A)
    for mask in (torch.ones(B, S), torch.ones(B, S, dtype=torch.bool)):
        with pytest.raises(
            ValueError, match=r"mask must be torch.bool|mask of shape \(2, 7\) does not broadcast to \(2, 1"
        ):
            layer(torch.zeros(B, Q), torch.zeros(B, S, A), torch.zeros(B, S, E), mask)


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one_are_refused(sizes):
    """Fails if torch makes a layer without units."""
    with pytest.raises(ValueError, match=r"_size must be a whole number of at least 1, got 0"):
        AdditiveAttention(*sizes)


# --- scaled dot-product attention -----------------------------------------------

every_backend = pytest.mark.parametrize("backend", BACKENDS)
every_length = pytest.mark.parametrize(
    ("T", "S"), [(5, 5), (5, 7), (7, 5)], ids=["square", "longer keys", "more queries"]
)
every_restriction = pytest.mark.parametrize("kind", ["nothing", "mask", "causal", "bias", "all"])


def restriction(kind, T, S):
    """Arguments of one kind, for scores (B, H, T, S): in the mask, query 1 of sentence 0 may attend to nothing."""
    mask = torch.rand(B, H, T, S, generator=torch.Generator().manual_seed(3)) < 0.6
    mask[0, :, 1] = False
    given = {"mask": mask, "causal": True, "bias": draw(H, T, S, seed=4)}
    chosen = {"nothing": (), "all": tuple(given)}.get(kind, (kind,))
    return {name: given[name] for name in chosen}


def queries_keys_values(T, S, *first, seed=0):
    """Leaves q (..., T, K), k (..., S, K), v (..., S, E); E is not K."""
    first = first or (B, H)
    return draw(*first, T, K, seed=seed), draw(*first, S, K, seed=seed + 1), draw(*first, S, A, seed=seed + 2)


def with_gradients(function, inputs, **arguments):
    """The output, and the gradients of all inputs and of a learned bias under an arbitrary weighting."""
    out = function(*inputs, **arguments)
    weighting = draw(*out.shape, seed=9).detach().to(out.dtype)
    bias = arguments.get("bias")
    return out, *torch.autograd.grad(out, (*inputs, *(() if bias is None else (bias,))), weighting)


def by_loop(q, k, v, mask=None, causal=False, bias=None):
    """The definition, a query at a time, with exp and sum: no softmax, no masked filling, no matrix product."""
    (*first, T, _), S = q.shape, k.shape[-2]
    seen = torch.ones(*first, T, S, dtype=torch.bool) if mask is None else mask.expand(*first, T, S)
    added = q.new_zeros(*first, T, S) if bias is None else bias.expand(*first, T, S)
    rows = []
    for *lead, t in itertools.product(*map(range, (*first, T))):
        b = tuple(lead)
        numerator, denominator = 0.0 * (q[b].sum() + k[b].sum() + v[b][0]), 0.0
        for s in range(S):
            if seen[(*b, t, s)] and (not causal or s <= S - T + t):
                e = ((q[b][t] * k[b][s]).sum() / math.sqrt(q.shape[-1]) + added[(*b, t, s)]).exp()
                numerator, denominator = numerator + e * v[b][s], denominator + e
        rows.append(numerator / denominator if torch.is_tensor(denominator) else numerator)
    return torch.stack(rows).view(*first, T, v.shape[-1])


@every_backend
@every_length
@every_restriction
def test_attention_equals_a_loop_over_queries(kind, T, S, backend):
    """Fails for a wrong scale, a mask read the other way round, causality lined up with the first key, a bias before
    the scale, or a gradient of the fully masked query that is not zero. T > S leaves queries before the first key.
    """
    inputs, arguments = queries_keys_values(T, S), restriction(kind, T, S)
    got = with_gradients(attention, inputs, backend=backend, **arguments)
    wanted = with_gradients(by_loop, inputs, **arguments)
    assert all(part.isfinite().all() for part in wanted), "the reference itself"
    torch.testing.assert_close(got, wanted, **EXACT)


@every_length
@every_restriction
def test_both_paths_equal_torchs_attention_with_an_explicit_mask(kind, T, S):
    """Fails if one path departs from torch's kernel given one float mask made by hand."""
    inputs, arguments = queries_keys_values(T, S), restriction(kind, T, S)
    hidden = torch.zeros(B, H, T, S, dtype=torch.bool)
    if "mask" in arguments:
        hidden |= ~arguments["mask"]
    if "causal" in arguments:
        hidden |= torch.arange(S) > torch.arange(S - T, S)[:, None]
    bias = arguments.get("bias", torch.zeros(T, S, dtype=torch.float64))
    explicit = torch.where(hidden, -torch.inf, bias)

    def kernel(q, k, v, bias=None):
        return F.scaled_dot_product_attention(q, k, v, explicit)

    wanted = with_gradients(kernel, inputs, **({"bias": bias} if "bias" in arguments else {}))
    for backend in BACKENDS:
        torch.testing.assert_close(with_gradients(attention, inputs, backend=backend, **arguments), wanted, **EXACT)


@every_backend
def test_causal_with_a_cache_equals_the_last_rows_of_the_square_one(backend):
    """Fails if with T < S query 0 is taken for position 0 (torch's own is_causal does that)."""
    q, k, v = queries_keys_values(S, S)
    wanted = attention(q, k, v, causal=True, backend=backend)[..., S - T :, :]
    torch.testing.assert_close(attention(q[..., S - T :, :], k, v, causal=True, backend=backend), wanted, **EXACT)
    last = attention(q[..., -1:, :], k, v, causal=True, backend=backend)
    torch.testing.assert_close(last, wanted[..., -1:, :], **EXACT)


@every_backend
def test_masks_and_biases_of_every_shape_that_expands(backend):
    """Fails if a mask or bias with fewer axes, or axes of 1, is refused or lined up with the wrong axis."""
    inputs = queries_keys_values(T, S)
    for shape in [
        (S,),
        (1,),
        (T, S),
        (1, S),
        (T, 1),
        (H, T, S),
        (1, 1, 1, S),
        (B, 1, 1, S),
        (1, H, 1, S),
        (B, H, T, S),
    ]:
        mask, bias = torch.rand(shape, generator=torch.Generator().manual_seed(1)) < 0.5, draw(*shape)
        wanted = with_gradients(
            attention, inputs, mask=mask.expand(B, H, T, S), bias=bias.expand(B, H, T, S), backend=backend
        )
        got = with_gradients(attention, inputs, mask=mask, bias=bias, backend=backend)
        wanted = [*wanted[:-1], wanted[-1].sum_to_size(shape)]
        torch.testing.assert_close(list(got), wanted, **EXACT, msg=lambda text, shape=shape: f"{shape}: {text}")


@every_backend
@pytest.mark.parametrize("first", [(), (2,), (2, 3), (2, 1, 3)], ids=len)
def test_any_number_of_axes_before_the_queries(first, backend):
    """Fails if the batch, the heads, or both are taken for granted."""
    inputs = draw(*first, T, K), draw(*first, S, K), draw(*first, S, A)
    mask, bias = random_mask(T, S), draw(T, S)
    for arguments in ({}, {"mask": mask, "causal": True}, {"bias": bias}):
        torch.testing.assert_close(
            attention(*inputs, **arguments, backend=backend), by_loop(*inputs, **arguments), **EXACT
        )


@every_backend
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
def test_a_query_that_may_see_nothing_gets_zeros_and_gives_no_gradient(backend, with_bias, dropout_p):
    """Fails with NaN (minus infinity and softmax) or with the mean of all values (a large negative number)."""
    q, k, v = queries_keys_values(T, S)
    mask = random_mask(B, 1, T, S)
    mask[1, :, 3] = False
    bias = {"bias": draw(H, T, S)} if with_bias else {}
    out, *grads = with_gradients(attention, (q, k, v), mask=mask, backend=backend, dropout_p=dropout_p, **bias)
    assert (out[1, :, 3] == 0).all()
    assert (out[0] != 0).all(-1).any()
    assert all(grad.isfinite().all() for grad in grads)
    assert (grads[0][1, :, 3] == 0).all()
    nothing = torch.zeros(S, dtype=torch.bool)  # not one query sees a key
    for part in with_gradients(attention, (q, k, v), mask=nothing, backend=backend, dropout_p=dropout_p, **bias):
        assert (part == 0).all()


def refuse(*args, **kwargs):
    raise AssertionError("this path must not be taken")


@every_length
@every_restriction
def test_each_path_is_the_one_asked_for(kind, T, S, monkeypatch):
    """Fails if "sdpa" quietly runs the equation written out (slow, right), or "math" torch's kernel."""
    inputs, arguments = queries_keys_values(T, S), restriction(kind, T, S)
    with monkeypatch.context() as patch:
        for name in ("dropout", "attention_weights", "attention_scores"):
            patch.setattr(attention_module, name, refuse)
        assert attention(*inputs, **arguments).shape == (B, H, T, A)
        assert MultiHeadAttention(12, H)(torch.rand(B, T, 12), causal=True).shape == (B, T, 12)
    monkeypatch.setattr(F, "scaled_dot_product_attention", refuse)
    assert attention(*inputs, **arguments, backend="math").shape == (B, H, T, A)


@pytest.mark.parametrize(
    ("arguments", "T", "S", "flag"),
    [
        ({"causal": True}, 5, 5, True),
        ({"causal": True}, 5, 7, False),
        ({"causal": True, "mask": torch.ones(5, dtype=torch.bool)}, 5, 5, False),
        ({"causal": True, "bias": torch.zeros(5)}, 5, 5, False),
        ({}, 5, 5, False),
    ],
)
def test_the_kernels_own_causality_serves_where_it_is_right(arguments, T, S, flag, monkeypatch):
    """Fails if a (T, T) mask is made where is_causal would skip half of the work, or is_causal given where T < S."""
    calls, kernel = [], F.scaled_dot_product_attention

    def spy(q, k, v, attn_mask=None, dropout_p=0.0, is_causal=False):
        calls.append((attn_mask is None, is_causal))
        return kernel(q, k, v, attn_mask, dropout_p, is_causal)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    attention(*(x.float() for x in queries_keys_values(T, S)), **arguments)
    assert calls == [(flag or not arguments, flag)]


def floats_kept_for_backward(T, S, **arguments):
    """Shapes of the float tensors with a number for each query and key that the backward pass keeps."""
    q, k, _ = (x.detach().float().requires_grad_() for x in queries_keys_values(T, S))
    v = k.detach().clone().requires_grad_()  # as wide as the keys: torch's kernels without scores take no other
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        attention(q, k, v, **arguments)
    assert kept
    return [tuple(x.shape) for x in kept if x.is_floating_point() and x.numel() >= B * H * T * S]


def test_the_fast_path_keeps_no_scores():
    """Fails if "sdpa" falls to a kernel, or a way of dropping, that stores (T, S) floats: memory it is to save."""
    T, S = 40, 48
    real = (torch.arange(S) < 45).expand(B, 1, 1, S)
    for arguments in ({}, {"mask": real}, {"mask": real, "causal": True}, {"causal": True}, {"dropout_p": 0.1}):
        assert floats_kept_for_backward(T, S, **arguments) == [], arguments
        assert floats_kept_for_backward(T, S, **arguments, backend="math"), "the probe sees nothing"
    assert floats_kept_for_backward(S, S, causal=True) == []


# --- dropout of the weights -----------------------------------------------------


@every_restriction
@pytest.mark.parametrize("rows", [1, 2, 100])
def test_both_paths_drop_the_same_weights(kind, rows, monkeypatch):
    """Fails if a part of the batch is given another part's draws, mask or bias, or the backward pass other draws.

    Three sentences in parts of 1, of 2 (the last part is smaller) and all at once.
    """
    monkeypatch.setattr(functional, "_rows_at_once", lambda keep: rows)
    inputs, arguments = queries_keys_values(T, S, 3, H), restriction(kind, T, S)
    if "mask" in arguments:
        arguments["mask"] = torch.cat([arguments["mask"], arguments["mask"][:1]])
    found = []
    for backend in BACKENDS:
        torch.manual_seed(5)
        found.append(with_gradients(attention, inputs, **arguments, dropout_p=0.4, backend=backend))
    torch.testing.assert_close(found[0], found[1], **EXACT)


def test_both_paths_drop_the_same_weights_at_a_size_that_is_cut():
    """Fails if the cutting into parts of a quarter of a million weights goes wrong: here three parts of a row."""
    inputs = queries_keys_values(300, 310, 3, 2)
    found = []
    for backend in BACKENDS:
        torch.manual_seed(5)
        found.append(with_gradients(attention, inputs, causal=True, dropout_p=0.2, backend=backend))
    torch.testing.assert_close(found[0], found[1], **EXACT)


@pytest.mark.parametrize("shape", [(), (2,), (1, 2, 1)], ids=len)
@pytest.mark.parametrize("with_bias", [False, True])
def test_dropout_is_the_same_for_any_number_of_axes(shape, with_bias):
    """Fails if inputs without a batch draw by torch's own dropout, which is another on the two paths."""
    inputs = queries_keys_values(T, S, *shape) if shape else (draw(T, K), draw(S, K), draw(S, A))
    bias = {"bias": draw(T, S)} if with_bias else {}
    found = []
    for backend in BACKENDS:
        torch.manual_seed(5)
        found.append(with_gradients(attention, inputs, **bias, dropout_p=0.4, backend=backend))
    torch.testing.assert_close(found[0], found[1], **EXACT)


@every_restriction
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_second_derivatives_with_dropout_are_those_of_the_equation(kind, dtype):
    """Fails if they are lost without a word: `create_graph=True` would then give the gradient penalty no gradient."""
    inputs, arguments = queries_keys_values(T, S), restriction(kind, T, S)
    inputs = [x.detach().to(dtype).requires_grad_() for x in inputs]
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"].detach().to(dtype).requires_grad_()
    found = []
    for backend in BACKENDS:
        torch.manual_seed(5)
        out = attention(*inputs, **arguments, dropout_p=0.4, backend=backend)
        leaves = [*inputs, *([arguments["bias"]] if "bias" in arguments else [])]
        firsts = torch.autograd.grad(out, leaves, draw(*out.shape, seed=9).detach().to(dtype), create_graph=True)
        found.append([*firsts, *torch.autograd.grad(sum(first.square().sum() for first in firsts), leaves)])
    torch.testing.assert_close(*found, **(EXACT if dtype == torch.float64 else {"rtol": 1e-3, "atol": 1e-4}))
    only = torch.autograd.grad(attention(*inputs, **arguments, dropout_p=0.4).sum(), inputs[2], create_graph=True)
    assert only[0].isfinite().all()


@pytest.mark.parametrize("masked", [False, True])
def test_transforms_of_functions_reach_through_dropout(masked):
    """Fails if `torch.vmap` or a derivative of `torch.func` crashes at the draws, or all rows draw the same."""
    q, k, v = (x.detach() for x in queries_keys_values(T, S, 4, H))
    mask = random_mask(T, S) if masked else None

    def attend(q, k, v):
        return attention(q, k, v, mask, dropout_p=0.5)

    rows = torch.vmap(attend, randomness="different")(q[:1].expand_as(q), k[:1].expand_as(k), v[:1].expand_as(v))
    assert rows.shape == (4, H, T, A)
    assert not torch.allclose(rows[0], rows[1])
    found = []
    for gradient in (torch.func.grad(lambda q: attend(q, k, v).square().sum()), None):
        torch.manual_seed(3)
        leaf = q.clone().requires_grad_()
        out = gradient(q) if gradient else torch.autograd.grad(attend(leaf, k, v).square().sum(), leaf)[0]
        found.append(out)
    torch.testing.assert_close(*found, **EXACT)


@every_backend
def test_dropout_drops_weights_and_enlarges_the_others(backend):
    """Fails if p and 1 - p change places, entries of the output are dropped instead, or the scale is missing.

    With the unit vectors as values the output is the weights. Both bounds are five standard deviations: of a share of
    n Bernoulli draws, sqrt(p (1 - p) / n); of the mean of n weights w m / (1 - p), w sqrt(p / (1 - p) / n).
    """
    p, n = 0.3, 4000
    q, k, _ = (x.detach().expand(n, -1, -1) for x in queries_keys_values(T, S, 1))
    v = torch.eye(S, dtype=torch.float64).expand(n, S, S)
    torch.manual_seed(0)
    whole, dropped = attention(q, k, v, backend=backend), attention(q, k, v, backend=backend, dropout_p=p)
    gone = dropped == 0
    assert abs(gone.double().mean().item() - p) < 5 * math.sqrt(p * (1 - p) / gone.numel()) + 2**-17
    torch.testing.assert_close(dropped[~gone], whole[~gone] / (1 - p), **EXACT)
    assert ((dropped.mean(0) - whole[0]).abs() < 5 * whole[0] * math.sqrt(p / (1 - p) / n)).all()


@every_backend
def test_without_dropout_nothing_is_drawn(backend):
    """Fails if p = 0 takes another path or uses up random numbers: a seed would then mean something else."""
    inputs = queries_keys_values(T, S)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    assert torch.equal(attention(*inputs, dropout_p=0.0, backend=backend), attention(*inputs, backend=backend))
    assert torch.equal(torch.get_rng_state(), before)


def test_the_draws_are_fair_independent_and_the_same_everywhere():
    """Fails if the four draws of one integer are not used alike, the threshold is off, or a platform draws others.

    Bounds: five standard deviations of a share, and of a correlation (1 / sqrt(n)).
    """
    n = 400_000
    for p in (0.1, 0.5, 0.9):
        torch.manual_seed(0)
        kept = dropout_mask((n,), p, "cpu").double().view(-1, 4)
        assert ((kept.mean(0) - (1 - p)).abs() < 5 * math.sqrt(p * (1 - p) / (n / 4)) + 2**-17).all()
        off_diagonal = torch.corrcoef(kept.T) - torch.eye(4, dtype=torch.float64)
        assert (off_diagonal.abs() < 5 / math.sqrt(n / 4)).all()
    torch.manual_seed(0)
    first = dropout_mask((3, 1, 5), 0.5, "cpu")
    assert first.shape == (3, 1, 5)
    assert first.flatten().int().tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 1]
    torch.manual_seed(0)
    assert torch.equal(dropout_mask((3, 1, 5), 0.5, "cpu"), first)
    assert not torch.equal(dropout_mask((3, 1, 5), 0.5, "cpu"), first), "the generator must move on"
    assert dropout_mask((1000,), 0.9999999, "cpu").sum() <= 1, "the threshold must stay within 16 bits"
    assert dropout_mask((1000,), 1e-9, "cpu").all()


# --- half the bits --------------------------------------------------------------


@pytest.mark.parametrize("dropout_p", [0.0, 0.2])
@every_restriction
def test_the_fast_path_is_as_exact_in_bfloat16_as_the_plain_one(kind, dropout_p):
    """Fails if the fast path loses more bits than rounding asks for, or refuses bfloat16 beside a float32 bias.

    The rule is FlashAttention's: against float64, at most twice the error of the plain path in the same type. The
    added term is half a unit in the last place of bfloat16 (8 bits) for entries that both paths hit by luck.
    """
    T, S = 24, 24
    inputs = [x.detach().bfloat16().requires_grad_() for x in queries_keys_values(T, S)]
    arguments = restriction(kind, T, S)
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"].detach().float().requires_grad_()

    def run(inputs, arguments, backend):
        torch.manual_seed(2)
        with torch.autocast("cpu", torch.bfloat16, enabled=inputs[0].dtype == torch.bfloat16):
            out = attention(*inputs, **arguments, backend=backend, dropout_p=dropout_p)
        leaves = (*inputs, *([arguments["bias"]] if "bias" in arguments else []))
        return out, *torch.autograd.grad(out, leaves, draw(*out.shape, seed=9).detach().to(out.dtype))

    wide = {name: x.detach().double().requires_grad_() if name == "bias" else x for name, x in arguments.items()}
    exact = run([x.detach().double().requires_grad_() for x in inputs], wide, "math")
    for fast, plain, wanted in zip(run(inputs, arguments, "sdpa"), run(inputs, arguments, "math"), exact, strict=True):
        assert fast.dtype == plain.dtype
        fast, plain = ((x.double() - wanted).abs().max().item() for x in (fast, plain))
        assert fast <= 2 * plain + 2**-9 * wanted.abs().max().item()


# --- hard attention -------------------------------------------------------------


def test_hard_attention_worked_by_hand():
    """Fails if it takes the smallest, mixes values, forgets the mask or causality, or takes the last of equal keys."""
    q = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    k = torch.tensor([[3.0, 1.0], [1.0, 2.0], [2.0, 2.0]])  # products: (3, 1, 2), (1, 2, 2), (4, 3, 4)
    v = torch.tensor([[10.0], [20.0], [30.0]])
    assert hard_attention(q, k, v).tolist() == [[10], [20], [10]]
    assert hard_attention(q, k, v, mask=torch.tensor([False, True, True])).tolist() == [[30], [20], [30]]
    assert hard_attention(q, k, v, causal=True).tolist() == [[10], [20], [10]]
    assert hard_attention(q[1:], k[[0, 2, 1]], v, causal=True).tolist() == [[20], [10]]
    rows = torch.tensor([[True, False, False], [False, False, False], [False, True, False]])
    assert hard_attention(q, k, v, mask=rows).tolist() == [[10], [0], [20]]


def test_hard_attention_depends_on_the_order_of_the_scores_alone():
    """Fails if the choice is read from weights: their exp rounds scores that lie close together to one number."""
    q, k, v = queries_keys_values(T, S)
    wanted = hard_attention(q, k, v)
    for factor in (1e-20, 1e-3, 1e6):
        assert torch.equal(hard_attention(factor * q, k, v), wanted)
    chosen = (q @ k.mT).argmax(-1)
    assert torch.equal(wanted, torch.gather(v, -2, chosen[..., None].expand(*chosen.shape, A)))


def test_hard_attention_has_a_gradient_for_values_alone():
    """Fails if the choice is differentiated, or the value chosen is cut off from the graph."""
    q, k, v = queries_keys_values(T, S)
    out = hard_attention(q, k, v, causal=True)
    grads = torch.autograd.grad(out, (q, k, v), torch.ones_like(out), allow_unused=True)
    assert grads[0] is None
    assert grads[1] is None
    chosen = (out.detach().unsqueeze(-2) == v.unsqueeze(-3)).all(-1)  # (B, H, T, S) one key for each query
    assert chosen.sum() == B * H * T
    torch.testing.assert_close(grads[2], chosen.sum(-2).double().unsqueeze(-1).expand_as(v), **EXACT)


# --- heads and masks ------------------------------------------------------------


def test_heads_are_blocks_of_neighbouring_entries():
    """Fails if heads interleave (view with the axes the wrong way round), or merging does not undo splitting."""
    x = draw(B, T, H * K)
    heads = split_heads(x, H)
    assert heads.shape == (B, H, T, K)
    for h in range(H):
        assert torch.equal(heads[:, h], x[:, :, h * K : (h + 1) * K])
    assert heads.data_ptr() == x.data_ptr()
    assert torch.equal(merge_heads(heads), x)
    y = draw(B, H, T, K, seed=1)
    assert torch.equal(split_heads(merge_heads(y), H), y)


@pytest.mark.parametrize(("T", "S"), [(4, None), (4, 4), (2, 5), (5, 2), (1, 6)])
def test_the_causal_mask_by_its_definition(T, S):
    """Fails if the diagonal is left out, or starts at the first key instead of ending at the last."""
    mask = causal_mask(T, S)
    keys = T if S is None else S
    assert mask.tolist() == [[j <= keys - T + i for j in range(keys)] for i in range(T)]
    assert mask.dtype == torch.bool
    assert causal_mask(T, S, device="meta").is_meta


# --- the layer ------------------------------------------------------------------

D = 12


def layers(bias=True):
    """Ours and torch's, with the same random weights (none zero) and no dropout."""
    torch.manual_seed(0)
    reference = nn.MultiheadAttention(D, H, bias=bias, batch_first=True, dtype=torch.float64)
    for parameter in reference.parameters():
        nn.init.normal_(parameter, std=0.5)
    layer = MultiHeadAttention(D, H, bias=bias).double()
    layer.load_state_dict(reference.state_dict())
    return layer, reference


def test_weights_travel_both_ways_and_count_the_same():
    """Fails if a name or a layout differs from torch's, or a parameter is missing."""
    for bias in (True, False):
        layer, reference = layers(bias)
        assert layer.state_dict().keys() == reference.state_dict().keys()
        other = nn.MultiheadAttention(D, H, bias=bias, batch_first=True, dtype=torch.float64)
        other.load_state_dict(layer.state_dict())
        assert all(torch.equal(a, b) for a, b in zip(other.parameters(), reference.parameters(), strict=True))


def layer_gradients(out, layer, inputs):
    names, parameters = zip(*sorted(layer.named_parameters()), strict=True)
    grads = torch.autograd.grad(out, (*inputs, *parameters), draw(*out.shape, seed=9).detach())
    return dict(zip((*range(len(inputs)), *names), grads, strict=True))


@every_backend
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["self", "cross", "value apart"])
@pytest.mark.parametrize("masked", ["nothing", "padding", "each query", "each head", "causal", "both"])
def test_the_layer_is_torchs(kind, masked, bias, backend):
    """Fails if projections change places, heads interleave, or a mask is lined up otherwise, in outputs or gradients.

    Torch's masks say True = may NOT attend.
    """
    layer, reference = layers(bias)
    S = T if kind == "self" else 7
    query, key, value = draw(B, T, D), draw(B, S, D, seed=1), draw(B, S, D, seed=2)
    inputs = {"self": (query,), "cross": (query, key), "value apart": (query, key, value)}[kind]
    q, k, v = (inputs * 3)[:3] if kind == "self" else (*inputs, key)[:3]
    real, each = random_mask(B, S), random_mask(B, H, T, S, seed=1)
    first = real | (torch.arange(S) == 0)
    mask, opposite = {
        "nothing": (None, {}),
        "padding": (padding_mask(real), {"key_padding_mask": ~real}),
        "each query": (each[:, :1], {"attn_mask": ~each[:, :1].expand(-1, H, -1, -1).flatten(0, 1)}),
        "each head": (each, {"attn_mask": ~each.flatten(0, 1)}),
        "causal": (None, {"attn_mask": ~causal_mask(T, S)}),
        "both": (padding_mask(first), {"key_padding_mask": ~first}),
    }[masked]
    causal = masked in ("causal", "both")
    opposite |= {"attn_mask": ~causal_mask(T, S)} if causal else {}
    wanted, weights = reference(q, k, v, need_weights=True, average_attn_weights=False, **opposite)
    with attention_backend(backend):
        out = layer(*inputs, mask=mask, causal=causal)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(layer.attention_weights(*inputs, mask=mask, causal=causal), weights, **EXACT)
    torch.testing.assert_close(layer_gradients(out, layer, inputs), layer_gradients(wanted, reference, inputs), **EXACT)


@every_backend
@pytest.mark.parametrize(
    "shape",
    [(S,), (T, S), (1, S), (T, 1), (H, T, S), (B, 1, 1, S), (B, 1, T, S), (1, H, 1, S), (B, H, T, 1), (B, H, T, S)],
)
def test_the_layers_masks_broadcast_to_batch_heads_queries_and_keys(shape, backend):
    """Fails if a mask with fewer axes, or axes of 1, is refused or read along other axes than torch's kernel reads."""
    layer, x, key = layers()[0], draw(B, T, D), draw(B, S, D, seed=1)
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(len(shape))) < 0.5
    with attention_backend(backend):
        wanted = layer(x, key, mask=mask.expand(B, H, T, S))
        torch.testing.assert_close(layer(x, key, mask=mask), wanted, **EXACT)
    assert torch.equal(
        layer.attention_weights(x, key, mask=mask), layer.attention_weights(x, key, mask=mask.expand(B, H, T, S))
    )


@every_backend
@pytest.mark.parametrize("rows", [1, 3, T], ids=lambda rows: f"B = {rows}")
def test_a_mask_of_queries_and_keys_means_the_same_for_every_batch_size(rows, backend):
    """Fails if a (T, T) mask is read as (B, T), which it could be where B = T: the future would leak."""
    layer, x = layers()[0], draw(rows, T, D)
    for mask in (causal_mask(T), random_mask(T, T, seed=2)):
        with attention_backend(backend):
            out = layer(x, mask=mask)
            alone = torch.cat([layer(x[b : b + 1], mask=mask) for b in range(rows)])
        torch.testing.assert_close(out, alone, **EXACT)
    torch.testing.assert_close(layer(x, mask=causal_mask(T)), layer(x, causal=True), **EXACT)


def test_a_layer_takes_a_sequence_without_a_batch():
    """Fails if heads and positions change places where there is no batch in front of them."""
    layer, x, mask = layers()[0], draw(T, D), random_mask(T, T)
    torch.testing.assert_close(layer(x, mask=mask), layer(x[None], mask=mask)[0], **EXACT)


# --- masks ----------------------------------------------------------------------


def test_masks_are_made_combined_and_read():
    """Fails if padding is lined up with another axis, a mask is lost, or a key that one head alone sees is padding."""
    real = torch.tensor([[True, True, False, False], [True, True, True, False]])
    mask = padding_mask(real)
    assert mask.shape == (2, 1, 1, 4)
    assert torch.equal(mask.expand(2, H, 5, 4)[1, 2, 3], real[1])
    assert padding_mask(None) is None
    assert combined_mask() is combined_mask(None, None) is None
    assert combined_mask(None, mask) is mask
    both = combined_mask(mask, None, causal_mask(4))
    assert torch.equal(both, mask & causal_mask(4))
    assert torch.equal(attended_keys(mask), real)
    assert torch.equal(attended_keys(both), real)
    assert attended_keys(causal_mask(4)).tolist() == [True] * 4
    assert attended_keys(real[0]).tolist() == real[0].tolist()
    heads = torch.zeros(1, H, 4, 4, dtype=torch.bool)
    heads[0, 1, 3, 2] = True
    assert attended_keys(heads).tolist() == [[False, False, True, False]]
    for call in (lambda: padding_mask(torch.ones(2, 4)), lambda: combined_mask(torch.ones(2, 4), causal_mask(4))):
        with pytest.raises(ValueError, match=r"must be torch.bool, got torch.float32"):
            call()
    with pytest.raises(ValueError, match=r"real must be a tensor \(B, S\), got one of shape \(4,\)"):
        padding_mask(real[0])


# --- the layer with positions and a cache -------------------------------------------


def position_schemes():
    """One of each that enters the layer, the learned one with numbers that are not zero."""
    relative = RelativeBias(H, max_distance=2)
    nn.init.normal_(relative.weight, generator=torch.Generator().manual_seed(1))
    return [relative.double(), RoPE(K).double(), ALiBi(H).double()]


every_scheme = pytest.mark.parametrize("scheme", position_schemes(), ids=lambda scheme: type(scheme).__name__)


@every_backend
@every_scheme
def test_positions_count_from_the_keys_when_earlier_ones_are_cached(scheme, backend):
    """Fails if the queries' positions start at 0 where T < S, or the keys are not turned (or turned twice)."""
    layer, x = layers()[0], draw(B, S, D)
    without, layer.position = layer(x, causal=True), scheme
    with attention_backend(backend):
        whole = layer(x, causal=True)
        assert not torch.allclose(whole, without), "the scheme does nothing"
        for T in (1, 3, S):
            torch.testing.assert_close(layer(x[:, S - T :], x, causal=True), whole[:, S - T :], **EXACT)


@every_backend
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("scheme", [None, *position_schemes()], ids=lambda scheme: type(scheme).__name__)
@torch.no_grad()
def test_a_cache_holds_the_keys_and_values_of_earlier_tokens(scheme, causal, backend):
    """Fails if new keys are not put behind the old ones, are turned by the wrong angle, or the mask counts only them.

    The reference is the layer without a cache, whose queries are the new tokens and whose keys are all so far.
    """
    layer, x, mask = layers()[0], draw(B, S, D), padding_mask(random_mask(B, S))
    layer.position = scheme
    for room in (S, 1):  # with room for all, and with none: the cache makes more
        cache, done = KVCache(B, H, room, K, torch.float64), 0
        for end in (3, 4, S):
            new, options = x[:, done:end], {"mask": mask[..., :end], "causal": causal}
            with attention_backend(backend):
                wanted = layer(new, x[:, :end], **options)
                weights = layer.attention_weights(new, cache=cache, **options)
                assert cache.length == done, "looking at the weights writes into the cache"
                out = layer(new, cache=cache, **options)
            torch.testing.assert_close(out, wanted, **EXACT)
            torch.testing.assert_close(weights, layer.attention_weights(new, x[:, :end], **options), **EXACT)
            assert cache.length == end
            done = end
    assert not (cache.keys[:, :, :S] == x.unflatten(-1, (H, K)).transpose(1, 2)).any(), (
        "keys, not what they are made of"
    )


@every_scheme
def test_positions_enter_scores_queries_and_keys_and_never_values(scheme):
    """Fails if values are turned, the bias is scaled by 1 / sqrt(K), or `attention_weights` leaves the position out."""
    layer, x, mask = layers()[0], draw(B, T, D), random_mask(B, T)
    parts = (x @ layer.in_proj_weight.T + layer.in_proj_bias).split(D, -1)
    q, k, v = (split_heads(part, H) for part in parts)
    scores = scheme.rotate(q) @ scheme.rotate(k).mT / math.sqrt(K)
    bias = scheme.bias(T, T)
    scores = (scores if bias is None else scores + bias).masked_fill(~mask[:, None, None], -torch.inf)
    weights, mask, layer.position = scores.softmax(-1), padding_mask(mask), scheme
    torch.testing.assert_close(layer.attention_weights(x, mask=mask), weights, **EXACT)
    wanted = layer.out_proj(merge_heads(weights @ v))
    for backend in BACKENDS:
        with attention_backend(backend):
            torch.testing.assert_close(layer(x, mask=mask), wanted, **EXACT)


def test_a_learned_bias_gets_the_same_gradient_on_both_paths():
    """Fails if a kernel that gives no gradient to its mask is chosen: the positions would never be learned."""
    layer, x, scheme = layers()[0], draw(B, T, D), position_schemes()[0]
    found, layer.position = [], scheme
    for backend in BACKENDS:
        with attention_backend(backend):
            out = layer(x, causal=True)
        found += torch.autograd.grad(out, scheme.weight, draw(*out.shape, seed=9).detach())
    torch.testing.assert_close(found[0], found[1], **EXACT)
    assert (found[0][:, :3] != 0).all()
    assert (found[0][:, 3:] == 0).all(), "keys ahead are not seen"


def test_the_layer_drops_weights_in_training_alone():
    """Fails if evaluation drops, training does not, the two paths drop differently, or another p is used."""
    layer, x = layers()[0], draw(B, T, D)
    whole, layer.dropout.p = layer(x), 0.4
    found = []
    for backend in BACKENDS:
        torch.manual_seed(5)
        with attention_backend(backend):
            found.append(layer(x))
    torch.testing.assert_close(found[0], found[1], **EXACT)
    assert not torch.allclose(found[0], whole)
    torch.manual_seed(5)
    weights = layer.attention_weights(x)
    v = split_heads((x @ layer.in_proj_weight.T + layer.in_proj_bias)[..., 2 * D :], H)
    dropped = weights * dropout_mask(weights.shape, 0.4, "cpu") / 0.6
    torch.testing.assert_close(found[0], layer.out_proj(merge_heads(dropped @ v)), **EXACT)
    layer.eval()
    assert torch.equal(layer(x), whole)


def test_the_layer_starts_as_torchs():
    """Fails if biases start elsewhere than at 0, or the projections with another spread (Glorot's, over (3 D, D))."""
    layer = MultiHeadAttention(64, 4)
    assert (layer.in_proj_bias == 0).all()
    assert (layer.out_proj.bias == 0).all()
    bound = math.sqrt(6 / (4 * 64))
    assert layer.in_proj_weight.abs().max() <= bound
    # The mean square of uniform numbers is bound^2 / 3, of which n draws miss by bound^2 sqrt(4 / 45 / n).
    n = layer.in_proj_weight.numel()
    error = (layer.in_proj_weight.square().mean() - bound**2 / 3).abs()
    assert error < 5 * bound**2 * math.sqrt(4 / 45 / n)


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"backend": "flash"}, r"backend must be one of 'sdpa', 'math', got 'flash'"),
        ({"dropout_p": 1.0}, r"dropout\w* must be from 0 to below 1, got 1.0"),
        ({"dropout_p": -0.1}, r"dropout\w* must be from 0 to below 1, got -0.1"),
        ({"q": torch.zeros(4)}, r"wanted q .*, got q \(4,\), k \(2, 7, 4\), v \(2, 7, 6\)"),
        ({"q": torch.zeros(3, 5, 4)}, r"wanted q .*, got q \(3, 5, 4\)"),
        ({"q": torch.zeros(1, 5, 4)}, r"wanted q .*, got q \(1, 5, 4\)"),
        ({"v": torch.zeros(7, 6)}, r"wanted q .*, got .* v \(7, 6\)"),
        ({"k": torch.zeros(2, 7, 3)}, r"wanted q \(..., T, K\), .*, got q \(2, 5, 4\), k \(2, 7, 3\)"),
        ({"v": torch.zeros(2, 5, 6)}, r"wanted q .*, got .* v \(2, 5, 6\)"),
        ({"mask": torch.zeros(5, 7)}, r"mask must be torch.bool, got torch.float32"),
        ({"mask": torch.ones(2, 7).bool()}, r"mask of shape \(2, 7\) does not broadcast to \(2, 5, 7\)"),
        ({"mask": torch.ones(1, 2, 5, 7).bool()}, r"mask of shape \(1, 2, 5, 7\) does not broadcast to \(2, 5, 7\)"),
        ({"mask": torch.ones(7, device="meta").bool()}, r"mask is on meta, wanted cpu"),
        ({"mask": torch.ones(5, 7).bool().numpy()}, r"mask must be a torch tensor, got numpy.ndarray"),
        ({"bias": torch.ones(5, 7).bool()}, r"bias must be floating, got torch.bool"),
        ({"bias": torch.ones(7, 5)}, r"bias of shape \(7, 5\) does not broadcast to \(2, 5, 7\)"),
        ({"bias": torch.ones(7, device="meta")}, r"bias is on meta, wanted cpu"),
    ],
)
@every_backend
@pytest.mark.parametrize("causal", [False, True])
def test_attention_names_what_does_not_fit(changed, message, causal, backend):
    """Fails if bad input is broadcast, read as numbers, or ends in an error of torch without the shapes."""
    given = {"q": torch.zeros(2, 5, 4), "k": torch.zeros(2, 7, 4), "v": torch.zeros(2, 7, 6), "backend": backend}
    with pytest.raises(ValueError, match=message):
        attention(**given | changed, causal=causal)


@pytest.mark.parametrize("causal", [False, True])
def test_hard_attention_reads_masks_as_attention_does(causal):
    """Fails if numbers pass for a mask, or NaN for an answer: a choice hides what a mean would show."""
    q, k, v = (x.detach() for x in queries_keys_values(T, S))
    with pytest.raises(ValueError, match=r"mask must be torch.bool, got torch.float32"):
        hard_attention(q, k, v, torch.ones(T, S), causal)
    with pytest.raises(ValueError, match=r"mask of shape \(7, 5\) does not broadcast to \(2, 3, 5, 7\)"):
        hard_attention(q, k, v, torch.ones(S, T, dtype=torch.bool))
    assert hard_attention(q, k, v, torch.zeros(S, dtype=torch.bool), causal).eq(0).all()
    q[0, 0, 2, 1] = torch.nan
    with pytest.raises(ValueError, match=r"q k\^T must be finite, got NaN or infinity"):
        hard_attention(q, k, v, causal=causal)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MultiHeadAttention(10, 3), r"d_model must be a multiple of num_heads, got d_model=10 and num_heads=3"),
        (lambda: MultiHeadAttention(0, 1), r"d_model must be a whole number of at least 1, got 0"),
        (lambda: MultiHeadAttention(4, 0), r"num_heads must be a whole number of at least 1, got 0"),
        (lambda: MultiHeadAttention(4, 2.0), r"num_heads must be a whole number of at least 1, got 2.0"),
        (lambda: MultiHeadAttention(4, 2, position="rope"), r"position must be a PositionScheme, got str 'rope'"),
        (lambda: split_heads(torch.zeros(2, 5, 10), 3), r"num_heads must be a divisor of the width, got 3 and 10"),
        (
            lambda: KVCache(2, 3, 4, 5).append(torch.zeros(1, 3, 2, 5), torch.zeros(1, 3, 2, 5)),
            r"k must be a tensor \(2, 3, T, 5\), got one of shape \(1",
        ),
        (
            lambda: KVCache(2, 3, 4, 5).append(torch.zeros(2, 3, 2, 5), torch.zeros(2, 3, 1, 5)),
            r"v must be a tensor \(2, 3, 2, 5\), got one of",
        ),
        (
            lambda: KVCache(2, 3, 4, 5).append(torch.zeros(2, 3, 2, 5), torch.zeros(2, 3, 2, 5, dtype=torch.int64)),
            r"v must be floating, got torch.int64",
        ),
        (
            lambda: KVCache(2, 3, 4, 5).append(torch.zeros(2, 3, 2, 5, device="meta"), torch.zeros(2, 3, 2, 5)),
            r"k is on meta, wanted cpu",
        ),
        (lambda: attention_scores([[1.0]], torch.zeros(1, 1)), r"q must be a floating torch tensor, got list"),
        (lambda: MultiHeadAttention(4, 2, dropout=1), r"dropout must be from 0 to below 1, got 1"),
        (lambda: KVCache(2, 0, 3, 4), r"num_heads must be a whole number of at least 1, got 0"),
        (lambda: dropout_mask((3,), 1.5), r"p must be from 0 to below 1, got 1.5"),
        (lambda: attention_backend("flash").__enter__(), r"backend must be one of 'sdpa', 'math', got 'flash'"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(call, message):
    """Fails if a width that is no multiple of the heads is cut short, or a dropout of 1 divides by zero."""
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": (2, 5, 11)}, r"query must have the width 12, got shape \(2, 5, 11\)"),
        ({"key": (2, 7, 13)}, r"key must have the width 12, got shape \(2, 7, 13\)"),
        ({"key": (3, 7, 12)}, r"wanted q .*, got q \(2, 3, 5, 4\), k \(3, 3, 7, 4\)"),
        ({"value": (2, 5, 12)}, r"wanted q .*, got .* v \(2, 3, 5, 4\)"),
        ({"mask": (2, 7)}, r"mask of shape \(2, 7\) does not broadcast to \(2, 3, 5, 7\)"),
        ({"mask": (2, 5, 7)}, r"mask of shape \(2, 5, 7\) does not broadcast to \(2, 3, 5, 7\)"),
        ({"mask": (5, 5, 7)}, r"mask of shape \(5, 5, 7\) does not"),
        ({"mask": (2, 5, 5, 7)}, r"mask of shape \(2, 5, 5, 7\) does not"),
    ],
)
def test_the_layer_names_what_does_not_fit(changed, message):
    """Fails if a wrong shape is broadcast by accident, or the error comes from inside torch."""
    shapes = {"query": (2, 5, 12), "key": (2, 7, 12), "value": (2, 7, 12), "mask": (7,)} | changed
    given = {name: torch.ones(shape, dtype=torch.bool if name == "mask" else None) for name, shape in shapes.items()}
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(12, 3)(**given)


@pytest.mark.parametrize(
    ("make", "got"),
    [
        (lambda x: x.numpy(), "ndarray"),
        (lambda x: x.long(), "torch.int64"),
        (lambda x: x.tolist(), "list"),
        (lambda x: "text", "str"),
    ],
    ids=["array", "int64", "list", "text"],
)
@pytest.mark.parametrize("mask", [None, torch.ones(5, 5, dtype=torch.bool)], ids=["no mask", "mask"])
@every_backend
def test_what_is_no_floating_tensor_is_named(mask, make, got, backend):
    """Fails if the message is torch's, or speaks of the mask's device when a query is an array."""
    bad, x = make(torch.rand(2, 5, 12)), torch.rand(2, 5, 12)
    with attention_backend(backend):
        with pytest.raises(ValueError, match=f"q must be a floating torch tensor, got {got}"):
            attention(bad, bad, bad, mask)
        with pytest.raises(ValueError, match=f"query must be a floating torch tensor, got {got}"):
            MultiHeadAttention(12, 3)(bad, mask=mask)
        with pytest.raises(ValueError, match=f"key must be a floating torch tensor, got {got}"):
            MultiHeadAttention(12, 3)(x, bad, mask=mask)


def test_the_layer_refuses_a_float_mask_and_too_many_queries_for_positions():
    """Fails if 0 / 1 or minus infinity masks are read as numbers, or a query stands before position 0."""
    layer, x = MultiHeadAttention(12, 3), torch.zeros(2, 5, 12)
    for call in (layer, layer.attention_weights):
        with pytest.raises(ValueError, match=r"mask must be torch.bool, got torch.float32"):
            call(x, mask=torch.zeros(5, 5))
        for layer.position in (ALiBi(3), RelativeBias(3, 2)):
            with pytest.raises(ValueError, match=r"T must not be above S, got T=5, S=4"):
                call(x, x[:, 1:])
        layer.position = RoPE(4)
        with pytest.raises(ValueError, match=r"offset must be a whole number of at least 0, got -1"):
            call(x, x[:, 1:])
        layer.position = None


# --- a whole model --------------------------------------------------------------


def test_the_backend_is_switched_for_a_block_alone_and_back_after_an_error(monkeypatch):
    """Fails if "math" stays on behind the block, or does not reach a layer inside a model."""
    model, x = nn.Sequential(layers()[0]), draw(B, T, D)
    wanted = model(x)
    with monkeypatch.context() as patch:
        patch.setattr(F, "scaled_dot_product_attention", refuse)
        with pytest.raises(ZeroDivisionError), attention_backend("math"):  # noqa: PT012
            torch.testing.assert_close(model(x), wanted, **EXACT)
            with attention_backend("sdpa"), pytest.raises(AssertionError, match="must not be taken"):
                model(x)
            raise ZeroDivisionError
        with pytest.raises(AssertionError, match="must not be taken"):
            model(x)
    q, k, v = queries_keys_values(T, S)
    with attention_backend("math"):  # an argument counts more
        monkeypatch.setattr(attention_module, "attention_weights", refuse)
        attention(q, k, v, backend="sdpa")


def test_recorded_maps_are_those_of_every_layer_by_name():
    """Fails if a map is another layer's, arguments by position or by name are lost, or a hook is left."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inner = layers()[0], nn.ModuleList([layers(bias=False)[0]])

        def forward(self, x, key):
            return self.inner[0](self.first(x, causal=True), key, mask=causal_mask(T, S))

    model, x, key = Two(), draw(B, T, D), draw(B, S, D, seed=1)
    wanted = model(x, key)
    with record_attention(model) as maps:
        assert torch.equal(model(x, key), wanted)
    assert list(maps) == ["first", "inner.0"]
    assert torch.equal(maps["first"], model.first.attention_weights(x, causal=True))
    inner = model.inner[0].attention_weights(model.first(x, causal=True), key, mask=causal_mask(T, S))
    assert torch.equal(maps["inner.0"], inner)
    maps.clear()
    model(x, key)
    assert maps == {}
    with record_attention(model.first) as maps:
        model.first(x)
    assert list(maps) == [""]
    with pytest.raises(ValueError, match="wanted a model with attention that says where it looks, got LSTM"):
        record_attention(nn.LSTM(2, 3)).__enter__()


def test_a_reordered_cache_is_another_one_and_goes_on_with_those_rows():
    """Fails if a row is taken twice from the wrong place, or the old cache changes: a search may go back to it."""
    cache, k = KVCache(3, H, 9, K, torch.float64), draw(3, H, 2, K).detach()
    cache.append(k, 2 * k)
    other = cache.reorder(torch.tensor([2, 0, 0, 1]))
    new = draw(4, H, 1, K).detach()
    keys, values = other.append(new, 3 * new)
    assert torch.equal(keys, torch.cat([k[[2, 0, 0, 1]], new], 2))
    assert torch.equal(values, torch.cat([2 * k[[2, 0, 0, 1]], 3 * new], 2))
    assert (cache.length, other.length) == (2, 3)
    assert torch.equal(cache.keys[:, :, :2], k)


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_backend
@every_length
@every_restriction
def test_on_the_gpu(kind, T, S, backend):
    """Fails if a mask is made on the CPU, or a kernel gives NaN for a fully masked row. In float64: no TF32."""
    inputs, arguments = queries_keys_values(T, S), restriction(kind, T, S)
    wanted = with_gradients(by_loop, inputs, **arguments)

    def moved(x):
        return x.detach().cuda().requires_grad_(x.requires_grad)

    there = {name: moved(x) if torch.is_tensor(x) else x for name, x in arguments.items()}
    leaves = [moved(x) for x in inputs]
    out = attention(*leaves, backend=backend, **there)
    leaves += [there["bias"]] if "bias" in there else []
    got = out, *torch.autograd.grad(out, leaves, draw(*out.shape, seed=9).detach().cuda())
    torch.testing.assert_close([part.cpu() for part in got], list(wanted), **EXACT)
