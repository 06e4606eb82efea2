"""Hidden tests of chapter 10: operations counted on products that are carried out, parameters on torch's layers."""

import torch
from torch import nn

from classroom.hidden import Hidden, agree, on_paper


def operations(*factors):
    """Multiply each pair of matrices; each entry of a product has as many terms as rows meet, of 2 operations each."""
    return sum(2 * (a @ b).numel() * a.shape[-1] for a, b in factors)


def attention(B, T, S, D, H):
    """The products of a multi-head attention: projections, and what all heads do."""
    x, memory, weight = torch.ones(B, T, D), torch.ones(B, S, D), torch.ones(D, D)
    queries, keys, shares = torch.ones(B, H, T, D // H), torch.ones(B, H, S, D // H), torch.ones(B, H, T, S)
    return [(x, weight), (memory, weight), (memory, weight), (x, weight)], [(queries, keys.mT), (shares, keys)]


def network(B, T, D, F):
    return [(torch.ones(B, T, D), torch.ones(D, F)), (torch.ones(B, T, F), torch.ones(F, D))]


def draw_attention_operations(draw):
    B, T, D, K = draw.sizes(4, high=20)
    return B, T, D, draw.randint(1, 6), K


def right_attention_operations(B, T, D, H, K):
    x, weight, merged = torch.ones(B, T, D), torch.ones(D, H * K), torch.ones(B, T, H * K)
    heads, shares = torch.ones(B, H, T, K), torch.ones(B, H, T, T)
    return operations(*[(x, weight)] * 3, (heads, heads.mT), (shares, heads), (merged, weight.T))


def right_crossovers():
    T, D = 8, 512
    projections, heads = attention(1, T, T, D, 1)
    linear, quadratic = operations(*projections) / T, operations(*heads) / T**2
    gru = 2 * sum(weight.numel() for weight in nn.GRUCell(D, D, bias=False).parameters())
    layer = linear + operations(*network(1, T, D, 2 * D)) / T
    return (gru - linear) / quadratic, linear / quadratic, layer / quadratic


def draw_cross_operations(draw):
    B, T, S, K, F = draw.sizes(5, high=20)
    H = draw.randint(1, 6)
    return B, T, S, H * K, H, F


def right_cross_operations(B, T, S, D, H, F):
    projections, heads = attention(B, T, S, D, H)
    return operations(*projections, *heads, *network(B, T, D, F))


def right_parameters_by_hand():
    def count(layer):
        return sum(parameter.numel() for parameter in layer.parameters())

    encoder = count(nn.TransformerEncoderLayer(512, 8, 2048))
    decoder = count(nn.TransformerDecoderLayer(512, 8, 2048))
    return encoder, decoder, 6 * encoder + 6 * decoder, 6 * encoder + 6 * decoder + 37_000 * 512


def judge_all_digits(got, wanted):
    agree(got.tolist() if isinstance(got, torch.Tensor) else got, wanted)


def draw_positions_seen(draw):
    """Each position that is seen is seen in one row, by one entry of the output, in one entry; one of them by 1e-30.

    Two of them are seen in the same row by the same entry, with opposite signs, so that one gradient is negative
    whatever is made of the output. The others have weights as well, behind a ReLU that is closed in every row: who
    only reads them learns little.
    """
    B, T, D, outputs = draw.sizes(4, low=3)
    x, weights = draw.normal(B, T, D), torch.zeros(T, D, outputs, dtype=torch.float64)
    seen, signs = draw.sample(range(T), draw.randint(2, T - 1)), torch.ones(T, dtype=torch.float64)
    row, entry = draw.randrange(1, B), draw.randrange(1, outputs)  # of the two
    signs[seen[1]] = -1
    for place in range(T):
        d, of_two = draw.randrange(D), place in seen[:2]
        x[:, place, d] = -x[:, place, d].abs()
        if place in seen:
            x[row if of_two else draw.randrange(1, B), place, d] *= -1
        size = draw.uniform(0.5, 1.5) * (1e-30 if place == seen[0] else 1.0)
        weights[place, d, entry if of_two else draw.randrange(1, outputs)] = size
    return x, weights, signs


def probe_positions_seen(answer, x, weights, signs):
    import torch

    def model(x):
        last = (torch.einsum("btd,tde->bte", x, weights).relu() * signs[:, None]).sum(1)
        last = torch.cat([last.cos(), last.sin(), -last.cos(), -last.sin()], -1)  # adds up to 0, its length is constant
        others = x.sum(-1, keepdim=True).flip(1).cumsum(1).expand(-1, -1, last.shape[-1])
        return torch.cat([others[:, :-1], last[:, None]], 1)

    found = answer(model, x)
    if x.grad is not None:
        return "x is changed: it has a gradient"
    return "x is changed: it requires a gradient" if x.requires_grad else found


def right_positions_seen(x, weights, signs):
    return (x[..., None] * weights > 0).any(0).flatten(1).any(1)


COUNTERS = ("cost", "formulas", "multi_head_cost", "count_operations", "FlopCounterMode")
TESTS = [
    Hidden("ex10-1-attention-operations-check", "attention_operations", draw_attention_operations,
           right_attention_operations, without=COUNTERS),
    on_paper("ex10-2-crossovers-check", "lengths_of_equality", right_crossovers),
    Hidden("ex10-3-cross-operations-check", "cross_operations", draw_cross_operations, right_cross_operations,
           without=COUNTERS),
    on_paper("ex10-4-parameters-by-hand-check", "by_hand", right_parameters_by_hand, judge_all_digits),
    Hidden("ex10-5-positions-seen-check", "positions_seen", draw_positions_seen, right_positions_seen,
           probe_positions_seen),
]  # fmt: skip
