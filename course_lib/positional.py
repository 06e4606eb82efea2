r"""Position: what tells attention, which sees a set, that its tokens stand in an order.

A scheme enters a Transformer at one of three points, and each scheme below overrides the one method of its point:

    add      a vector joins each embedding, once, at the bottom     `Sinusoidal`, `LearnedPositions`
    rotate   queries and keys are rotated, in every layer           `RoPE`
    bias     a number joins each score, in every layer              `RelativeBias`, `ALiBi`

The tables of the first two end at `max_len` and refuse a longer sequence; the others have no table
(RoPE's angles are rounded: in float32 they are wrong from about 10^6 positions on).
"""

import math

import torch
from torch import nn

from course_lib.utils.validate import check_floats, check_positive, check_sizes


class PositionScheme(nn.Module):
    """No position at all, and the three points at which a scheme may enter: a scheme overrides one of them."""

    max_len = None  # the longest sequence that has positions; None: any

    def add(self, x, offset=0):
        """The embeddings (B, T, D), with their positions added, from `offset` on: earlier tokens may be in a cache."""
        return x

    def rotate(self, x, offset=0):
        """The queries or the keys (B, H, T, K), rotated by their positions, from `offset` on."""
        return x

    def bias(self, T, S):
        """What is added to the scores, (H, T, S), or None. The last of T queries stands at the last of S keys."""
        return None


def in_attention(scheme):
    """Whether it is a scheme that enters in attention, by `rotate` or `bias`."""
    points = type(scheme)
    return isinstance(scheme, PositionScheme) and not (
        points.rotate is PositionScheme.rotate and points.bias is PositionScheme.bias
    )


def in_embeddings(scheme):
    """Whether it is a scheme that is added to the embeddings: the same token elsewhere is another vector."""
    return isinstance(scheme, PositionScheme) and type(scheme).add is not PositionScheme.add


# ---- added to the embeddings ----


def rope_angles(positions, width, base=10000.0):
    r"""The angles (..., K/2) of positions (...) at K/2 frequencies, from the highest to the lowest.

    $$ \theta_{ij} = i \cdot \text{base}^{-2j/K}, \quad j = 0, \ldots, K/2 - 1 $$

    The first angle grows by one radian a token, the last one by nearly 1 / base. RoPE rotates pairs of entries by these
    angles; the sinusoidal table holds their sines and cosines. Source: Su, Lu, Pan, Murtadha, Wen and Liu (2021),
    "RoFormer", arXiv:2104.09864, equation 15, whose j starts at 1.
    """
    check_frequencies(width, base)
    dtype = positions.dtype if positions.is_floating_point() else torch.get_default_dtype()
    exponents = torch.arange(0, width, 2, dtype=dtype, device=positions.device) / width  # (K/2,)
    return positions.to(dtype).unsqueeze(-1) * base**-exponents


def sinusoidal_table(length, width, base=10000.0, *, dtype=None):
    r"""Sine and cosine of each position at each frequency, side by side: (T, D) numbers from -1 to 1.

    $$ P_{i,2j} = \sin(i \cdot \text{base}^{-2j/D}), \quad P_{i,2j+1} = \cos(i \cdot \text{base}^{-2j/D}) $$

    Row i + k is row i times a matrix that depends on k alone: each pair is rotated by one angle everywhere. Source:
    Vaswani et al. (2017), arXiv:1706.03762, section 3.5, whose columns some implementations put in another order.

    >>> sinusoidal_table(2, 4)
    tensor([[0.0000, 1.0000, 0.0000, 1.0000],
            [0.8415, 0.5403, 0.0100, 0.9999]])
    """
    angles = rope_angles(token_positions(length).double(), width, base)  # (T, D/2), in float64
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(dtype or torch.get_default_dtype())


class Sinusoidal(PositionScheme):
    """Adds a fixed vector of sines and cosines, `sinusoidal_table`, to each embedding: nothing to learn.

    The entries lie between -1 and 1, so embeddings that are drawn small are multiplied by sqrt(D) first.
    """

    def __init__(self, d_model, max_len=5000):
        super().__init__()
        check_sizes(d_model=d_model, max_len=max_len)
        self.max_len = max_len
        self.register_buffer("table", sinusoidal_table(max_len, d_model), persistent=False)  # (L, D)
        self.register_load_state_dict_post_hook(refill)

    def add(self, x, offset=0):
        """The embeddings (B, T, D) plus rows `offset` to `offset` + T of the table."""
        return x + table_rows(self.table, x, offset)

    def reset_parameters(self):
        """Compute the table again, where `to_empty` has left memory unset."""
        self.table.copy_(sinusoidal_table(*self.table.shape))


class LearnedPositions(PositionScheme):
    """Adds a learned vector to each embedding, one for each position.

    What training never saw, a position beyond its longest sequence, stays as it was drawn. Source: Gehring et al.
    (2017), "Convolutional Sequence to Sequence Learning", arXiv:1705.03122, section 3.1; `std`: BERT.
    """

    def __init__(self, d_model, max_len, std=0.02):
        super().__init__()
        check_sizes(d_model=d_model, max_len=max_len)
        check_positive(zero=True, std=std)
        self.max_len = max_len
        self.weight = nn.Parameter(std * torch.randn(max_len, d_model))  # (L, D)

    def add(self, x, offset=0):
        """The embeddings (B, T, D) plus rows `offset` to `offset` + T of the table."""
        return x + table_rows(self.weight, x, offset)


# ---- rotating queries and keys ----


class RoPE(PositionScheme):
    r"""Rotates each query and key, two neighbouring entries at a time, by the angle of their position.

    $$ \begin{pmatrix} y_{2j} \\ y_{2j+1} \end{pmatrix} = \begin{pmatrix} \cos\theta_{ij} & -\sin\theta_{ij} \\
       \sin\theta_{ij} & \cos\theta_{ij} \end{pmatrix} \begin{pmatrix} x_{2j} \\ x_{2j+1} \end{pmatrix} $$

    A product of a query rotated by its position and a key rotated by its own depends on the difference of the two.
    Source: Su et al. (2021), arXiv:2104.09864, equations 12 and 14 to 16. Differs: some implementations (GPT-NeoX,
    Hugging Face's Llama) pair entry j with j + K/2: the same after a permutation of the query's and the key's weights.
    """

    def __init__(self, head_dim, base=10000.0):
        super().__init__()
        check_sizes(head_dim=head_dim)
        check_frequencies(head_dim, base)
        self.head_dim, self.base = head_dim, base

    def rotate(self, x, offset=0, positions=None):
        r"""The queries or keys (B, H, T, K): a pair is one complex number, its rotation one product with $e^{i\theta}$.

        Their positions begin at `offset`, or are given, (T,) or (B, T). Types below float32 are rotated in float32.
        """
        check_floats(x=x)
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        positions = token_positions(x.shape[-2], offset, positions, x.device).to(wide.dtype)
        angles = rope_angles(positions, self.head_dim, self.base)  # (T, K/2), or (B, 1, T, K/2)
        pairs = torch.view_as_complex(wide.unflatten(-1, (self.head_dim // 2, 2)).contiguous())  # (B, H, T, K/2)
        rotated = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(rotated).flatten(-2).type_as(x)  # (B, H, T, K)


# ---- added to the scores ----


def relative_positions(T, S, *, device=None):
    """How far each key stands behind (negative) or ahead of (positive) each query: j - (S - T + i), (T, S) int64."""
    check_sizes(least=0, T=T, S=S)
    if T > S:
        raise ValueError(f"the queries are the last of the keys' positions, so T must not be above S, got {T=}, {S=}")
    return torch.arange(S, device=device) - torch.arange(S - T, S, device=device).unsqueeze(1)


class RelativeBias(PositionScheme):
    """Adds a learned number to each score: one for each head and distance, all beyond M (`max_distance`) as at M.

    So a sequence may have any length. The numbers start at zero: no position. Source: Raffel et al. (2020), "T5",
    arXiv:1910.10683, section 2.1, where far distances that are close to each other share a number; the clipping is
    that of Shaw, Uszkoreit and Vaswani (2018), arXiv:1803.02155, section 3.2, who add a learned vector to the key.
    """

    def __init__(self, num_heads, max_distance):
        super().__init__()
        check_sizes(num_heads=num_heads, max_distance=max_distance)
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.zeros(num_heads, 2 * max_distance + 1))  # (H, 2 M + 1), from -M to M

    def bias(self, T, S):
        """The learned number for each head, query and key, (H, T, S)."""
        M = self.max_distance
        return self.weight[:, relative_positions(T, S, device=self.weight.device).clamp(-M, M) + M]


def alibi_slopes(num_heads):
    r"""How fast each head's score falls with distance: (H,), a geometric sequence that ends at 1/256.

    $$ m_h = 2^{-8 h / H}, \quad h = 1, \ldots, H \quad \text{for } H \text{ a power of two} $$

    Otherwise the slopes of the next smaller power of two, then every other one of the next larger. Source: Press, Smith
    and Lewis (2022), "Train Short, Test Long", arXiv:2108.12409, section 3; other H: their code.

    >>> alibi_slopes(4)
    tensor([0.2500, 0.0625, 0.0156, 0.0039])
    """
    check_sizes(num_heads=num_heads)
    lower = 2 ** int(math.log2(num_heads))
    exponents = 8 / lower * torch.arange(1, lower + 1)
    between = 4 / lower * torch.arange(1, 2 * lower, 2)  # those of 2 * lower heads that lower heads lack
    return 2.0 ** -torch.cat([exponents, between])[:num_heads]


class ALiBi(PositionScheme):
    """Lowers each score in proportion to the distance: a head looks near, how near is its slope.

    Nothing is learned, and a sequence may have any length. Differs: the paper's models are causal and see j <= i only;
    |i - j| is the symmetric form for encoders.
    """

    def __init__(self, num_heads):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)  # (H,)
        self.register_load_state_dict_post_hook(refill)

    def bias(self, T, S):
        """Minus slope times distance for each head, query and key: (H, T, S), zero or negative."""
        return self.slopes.view(-1, 1, 1) * -relative_positions(T, S, device=self.slopes.device).abs()

    def reset_parameters(self):
        """Compute the slopes again, where `to_empty` has left memory unset."""
        self.slopes.copy_(alibi_slopes(len(self.slopes)))


# ---- shared ----


def token_positions(T, offset=0, positions=None, device=None):
    """Positions of T tokens: (T,), from `offset` on; or those given, (T,), or (B, T) as (B, 1, T) for all heads."""
    check_sizes(least=0, length=T, offset=offset)
    if positions is None:
        return torch.arange(offset, offset + T, device=device)
    if positions.ndim not in (1, 2) or positions.shape[-1] != T:
        raise ValueError(f"positions must be (T,) or (B, T) for T = {T} tokens, got shape {tuple(positions.shape)}")
    return positions if positions.ndim == 1 else positions.unsqueeze(1)


def table_rows(table, x, offset):
    """Rows `offset` to `offset` + T of a table (L, D) for x (B, T, D), refused where the table has none."""
    check_floats(x=x)
    check_sizes(least=0, offset=offset)
    (L, D), T = table.shape, x.shape[-2]
    if x.shape[-1] != D:
        raise ValueError(f"the embeddings must have the positions' width {D}, got shape {tuple(x.shape)}")
    if offset + T > L:
        raise ValueError(f"positions {offset} to {offset + T - 1} are wanted, the table has 0 to {L - 1}")
    return table[offset : offset + T]


def check_frequencies(width, base):
    """Raise unless a width can be cut into pairs and the base is a ratio of frequencies."""
    check_sizes(width=width)
    check_positive(base=base)
    if width % 2:
        raise ValueError(f"positions come in pairs of numbers, so the width must be even, got {width}")


def refill(scheme, keys):
    """After a checkpoint is loaded: no checkpoint holds the buffer, and its memory may have been made by `to_empty`."""
    scheme.reset_parameters()
