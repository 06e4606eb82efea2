"""Attention weights against torch's own attention, the additive layer against its formula written with loops."""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.attention import AdditiveAttention, attention_weights

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, T, S, Q, E, A = 2, 5, 7, 3, 4, 6


def draw(*shape, seed=0):
    """Normal numbers in float64 that take gradients."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def some_mask(*shape, seed=0):
    """A random mask whose rows all have a True, somewhere and not only in front."""
    mask = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) < 0.5
    mask[..., 2] = True
    return mask


def test_weights_equal_torchs_attention_with_and_without_a_mask():
    """Fails if the mask is read the other way round or masked keys keep a weight.

    With values that are the unit vectors, torch's attention returns its weights.
    """
    query, key = draw(B, T, E), draw(B, S, E, seed=1)
    for mask in (None, some_mask(B, T, S)):
        wanted = F.scaled_dot_product_attention(query, key, torch.eye(S, dtype=torch.float64).expand(B, S, S), mask)
        got = attention_weights(query @ key.transpose(1, 2) / math.sqrt(E), mask)
        torch.testing.assert_close(got, wanted, **EXACT)
        assert mask is None or (got[~mask] == 0).all()


def test_a_mask_expands_over_the_queries():
    """Fails if a (B, 1, S) mask is refused or lined up with the wrong axis."""
    scores, mask = draw(B, T, S), some_mask(B, 1, S)
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
        top = scores.exp() * (1 if mask is None else mask[b])
        weights.append(top / top.sum())
        contexts.append(sum(w * value for w, value in zip(weights[-1], values[b], strict=True)))
    return torch.stack(contexts), torch.stack(weights)


@pytest.mark.parametrize("masked", [False, True])
def test_additive_attention_equals_its_formula_forward_and_backward(masked):
    """Fails for a wrong score, for keys in the place of values (here they differ), or a mask that is not applied."""
    layer = AdditiveAttention(Q, E, A).double()
    query, keys, values = draw(B, Q), draw(B, S, E), draw(B, S, E + 1)
    mask = some_mask(B, S) if masked else None
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
    query, keys, mask = draw(B, T, Q), draw(B, S, E), some_mask(B, S)
    context, weights = layer(query, layer.project(keys), keys, mask)
    assert context.shape == (B, T, E)
    for t in range(T):
        one = layer(query[:, t], layer.project(keys), keys, mask)
        torch.testing.assert_close((context[:, t], weights[:, t]), one, **EXACT)


def test_padding_changes_nothing():
    """Fails if what stands at masked positions has any influence."""
    layer = AdditiveAttention(Q, E, A).double()
    query, keys = draw(B, Q), draw(B, S, E)
    longer = torch.cat([keys, 1e6 * draw(B, 3, E)], 1)
    mask = torch.arange(S + 3).expand(B, -1) < S
    context, weights = layer(query, layer.project(longer), longer, mask)
    wanted = layer(query, layer.project(keys), keys)
    torch.testing.assert_close((context, weights[:, :S]), wanted, **EXACT)


def test_bad_masks_are_refused():
    """Fails if a mask is broadcast by accident or read as numbers."""
    scores = torch.zeros(2, 3, 4)
    with pytest.raises(ValueError, match=r"mask has shape \(2, 4\), which does not expand to \(2, 3, 4\)"):
        attention_weights(scores, torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask has shape \(5, 2, 3, 4\), which does not expand to \(2, 3, 4\)"):
        attention_weights(scores, torch.ones(5, 2, 3, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"mask must be boolean, True = may attend, got torch.float32"):
        attention_weights(scores, torch.ones(2, 3, 4))
    with pytest.raises(ValueError, match=r"mask is on meta, the scores are on cpu"):
        attention_weights(scores, torch.ones(2, 3, 4, dtype=torch.bool, device="meta"))


@pytest.mark.parametrize("shape", [(), (2, 0)])
def test_scores_without_keys_are_refused(shape):
    """Fails if an empty softmax passes unnoticed."""
    with pytest.raises(ValueError, match=r"scores must be \(..., S\) with at least one key, got shape \("):
        attention_weights(torch.zeros(shape))


@pytest.mark.parametrize("sizes", [(0, 1, 1), (1, 0, 1), (1, 1, 0)])
def test_sizes_below_one_are_refused(sizes):
    """Fails if torch makes a layer without units."""
    with pytest.raises(ValueError, match=r"sizes must be at least 1, got query_size=.*0"):
        AdditiveAttention(*sizes)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"query": (B, Q + 1)}, r"query has shape \(2, 4\), wanted \(B, 3\) or \(B, T, 3\)"),
        ({"query": (Q,)}, r"query has shape \(3,\), wanted"),
        ({"projected": (B, S, E)}, r"projected keys have shape \(2, 7, 4\), wanted \(2, S, 6\) from project\(\)"),
        ({"projected": (B + 1, S, A)}, r"projected keys have shape \(3, 7, 6\), wanted \(2, S, 6\)"),
        ({"values": (B, S + 1, E)}, r"values have shape \(2, 8, 4\), wanted \(2, 7, E\) as the keys"),
        ({"mask": (B, S + 1)}, r"mask has shape \(2, 8\), wanted \(B, S\) = \(2, 7\)"),
    ],
)
def test_shapes_that_do_not_fit_are_named(changed, message):
    """Fails if a wrong shape is broadcast or ends in an error of torch."""
    shapes = {"query": (B, Q), "projected": (B, S, A), "values": (B, S, E), "mask": (B, S)} | changed
    arguments = {
        name: torch.ones(shape, dtype=torch.bool if name == "mask" else None) for name, shape in shapes.items()
    }
    with pytest.raises(ValueError, match=message):
        AdditiveAttention(Q, E, A)(**arguments)


def test_keys_of_another_width_are_refused():
    """Fails if the error comes from inside torch, without the shape wanted."""
    with pytest.raises(ValueError, match=r"keys have shape \(2, 7, 5\), wanted \(B, S, 4\)"):
        AdditiveAttention(Q, E, A).project(torch.zeros(B, S, E + 1))
