r"""Position: what tells attention, which sees a set, that its tokens stand in an order.

A scheme enters a Transformer at one of three points, and each scheme below overrides the one method of its point:

    add      a vector joins each embedding, once, at the bottom     `Sinusoidal`, `Learned`
    rotate   queries and keys are turned, in every layer            `RoPE`
    bias     a number joins each score, in every layer              `RelativeBias`, `ALiBi`

Read `NoPositions`, the three points; `rope_angles` and `sinusoidal_table`, the clock behind two of the schemes;
then the schemes. `Sinusoidal` and `Learned` hold a table and refuse a sequence that is longer; the others have no
longest length.

Notebooks: 08, and 09 to 13, which plug them in.
"""

import math

import torch
from torch import nn


class NoPositions(nn.Module):
    """No position at all, and the three points at which a scheme may enter: a scheme overrides one of them.

    Example:
        >>> x = torch.rand(2, 3, 4)
        >>> NoPositions().add(x) is x, NoPositions().bias(3, 5)
        (True, None)

    Notebook: 08.
    """

    def add(self, x, offset=0):
        """The embeddings, with their positions added.

        Args:
            x: (B, T, D) embeddings.
            offset: position of the first of them; with a cache, the number of tokens that came before.

        Returns:
            (B, T, D).
        """
        return x

    def rotate(self, x, offset=0):
        """The queries or the keys, turned by their positions.

        Args:
            x: (B, H, T, K) queries or keys.
            offset: position of the first of them.

        Returns:
            (B, H, T, K).
        """
        return x

    def bias(self, T, S):
        """What is added to the scores.

        Args:
            T: number of queries; query i stands at position S - T + i, so that the last query and the last key agree.
            S: number of keys, from position 0.

        Returns:
            (H, T, S), or None: nothing is added.
        """
        return None


# ---- added to the embeddings ----


def rope_angles(length, width, base=10000.0, offset=0, *, dtype=None, device=None):
    r"""The angle of each position on each of the clocks, from the fastest to the slowest.

    $$ \theta_{ij} = i \cdot \text{base}^{-2j/K}, \quad j = 0, \ldots, K/2 - 1 $$

    Clock 0 turns by one radian a token, the last one by nearly 1 / base. RoPE turns pairs of numbers by these
    angles; the sinusoidal table holds their sines and cosines.

    Args:
        length: T, number of positions.
        width: K, twice the number of clocks.
        base: ratio between the fastest and (nearly) the slowest clock.
        offset: the first position.
        dtype: float type of the result, default torch's default.
        device: where the result lies.

    Returns:
        (T, K/2) angles in radians.

    Raises:
        ValueError: if the width is not a positive even number, the base not positive, the length or offset negative.

    Example:
        >>> rope_angles(3, 4, offset=5)
        tensor([[5.0000, 0.0500],
                [6.0000, 0.0600],
                [7.0000, 0.0700]])

    Source: Su, Lu, Pan, Murtadha, Wen and Liu (2021), "RoFormer", arXiv:2104.09864, equation 15, with the paper's j
    from 1 where ours starts at 0. Notebook: 08.
    """
    if width < 2 or width % 2:
        raise ValueError(f"positions come in pairs of numbers, so the width must be even and positive, got {width}")
    if base <= 0:
        raise ValueError(f"base must be positive, got {base}")
    if length < 0 or offset < 0:
        raise ValueError(f"length and offset must not be negative, got {length=}, {offset=}")
    positions = torch.arange(offset, offset + length, dtype=dtype or torch.get_default_dtype(), device=device)
    exponents = torch.arange(0, width, 2, dtype=positions.dtype, device=device) / width
    return positions.unsqueeze(1) * base**-exponents


def sinusoidal_table(length, width, base=10000.0, *, dtype=None):
    r"""Sine and cosine of each position on each clock, side by side.

    $$ P_{i,2j} = \sin(i \cdot \text{base}^{-2j/D}), \quad P_{i,2j+1} = \cos(i \cdot \text{base}^{-2j/D}) $$

    Row i + k is row i times a matrix that depends on k alone: each pair is turned by the same angle everywhere.

    Args:
        length: T, number of positions, from 0.
        width: D, even.
        base: as in `rope_angles`.
        dtype: float type of the result, default torch's default; computed in float64.

    Returns:
        (T, D) numbers from -1 to 1.

    Raises:
        ValueError: as `rope_angles`.

    Differs: some codes put all sines before all cosines, which is the same table with its columns permuted.

    Example:
        >>> sinusoidal_table(3, 4)
        tensor([[ 0.0000,  1.0000,  0.0000,  1.0000],
                [ 0.8415,  0.5403,  0.0100,  0.9999],
                [ 0.9093, -0.4161,  0.0200,  0.9998]])

    Source: Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, section 3.5. Notebook: 08.
    """
    angles = rope_angles(length, width, base, dtype=torch.float64)
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(1).to(dtype or torch.get_default_dtype())


class Sinusoidal(NoPositions):
    """Adds a fixed vector of sines and cosines to each embedding: nothing to learn.

    The entries lie between -1 and 1, so embeddings that are drawn small are multiplied by sqrt(D) first.

    Args:
        d_model: D, even.
        max_len: number of positions in the table.

    Raises:
        ValueError: if D is odd or a size is below 1.

    Example:
        >>> Sinusoidal(d_model=4).add(torch.zeros(1, 2, 4), offset=1)
        tensor([[[ 0.8415,  0.5403,  0.0100,  0.9999],
                 [ 0.9093, -0.4161,  0.0200,  0.9998]]])

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.5. Notebook: 08.
    """

    def __init__(self, d_model, max_len=5000):
        super().__init__()
        _check_sizes(d_model=d_model, max_len=max_len)
        self.register_buffer("table", sinusoidal_table(max_len, d_model), persistent=False)

    def add(self, x, offset=0):
        """The embeddings plus rows `offset` to `offset` + T of the table.

        Args:
            x: (B, T, D) embeddings.
            offset: position of the first of them.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if the shape does not fit, the offset is negative, or the table ends before the sequence does.
        """
        return x + _rows(self.table, x, offset)


class Learned(NoPositions):
    """Adds a learned vector to each embedding, one for each position.

    What training never saw, a position beyond its longest sequence, stays as it was drawn.

    Args:
        max_len: number of positions in the table.
        d_model: D.
        std: spread of the normal numbers at the start, as in BERT and GPT-2.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> Learned(max_len=7, d_model=4).add(torch.rand(2, 3, 4)).shape
        torch.Size([2, 3, 4])

    Source: Gehring, Auli, Grangier, Yarats and Dauphin (2017), "Convolutional Sequence to Sequence Learning",
    arXiv:1705.03122, section 3.1; Devlin et al. (2019), "BERT", arXiv:1810.04805, section 3. Notebook: 08.
    """

    def __init__(self, max_len, d_model, std=0.02):
        super().__init__()
        _check_sizes(max_len=max_len, d_model=d_model)
        self.weight = nn.Parameter(std * torch.randn(max_len, d_model))

    def add(self, x, offset=0):
        """The embeddings plus rows `offset` to `offset` + T of the table.

        Args:
            x: (B, T, D) embeddings.
            offset: position of the first of them.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if the shape does not fit, the offset is negative, or the table ends before the sequence does.
        """
        return x + _rows(self.weight, x, offset)


# ---- rotating queries and keys ----


class RoPE(NoPositions):
    r"""Turns neighbouring numbers of each query and key, pair by pair, by the angle of their position.

    $$ \begin{pmatrix} y_{2j} \\ y_{2j+1} \end{pmatrix} = \begin{pmatrix} \cos\theta_{ij} & -\sin\theta_{ij} \\
       \sin\theta_{ij} & \cos\theta_{ij} \end{pmatrix} \begin{pmatrix} x_{2j} \\ x_{2j+1} \end{pmatrix} $$

    A product of a query turned by its position and a key turned by its own depends on the difference of the two.
    Lengths stay. Nothing is learned and nothing is stored: the angles are computed for the positions asked for.

    Args:
        head_dim: K, even.
        base: ratio between the fastest and (nearly) the slowest clock.

    Raises:
        ValueError: if K is odd or below 2, or the base not positive.

    Differs: many codes (GPT-NeoX, Llama in Hugging Face's form) pair entry j with j + K/2 instead of 2j with
    2j + 1: the same function after a permutation of the rows of the query's and the key's weights.

    Example:
        >>> RoPE(head_dim=2).rotate(torch.tensor([[[[1.0, 0.0], [1.0, 0.0]]]]))
        tensor([[[[1.0000, 0.0000],
                  [0.5403, 0.8415]]]])

    Source: Su et al. (2021), "RoFormer", arXiv:2104.09864, equations 12 and 14 to 16. Notebook: 08.
    """

    def __init__(self, head_dim, base=10000.0):
        super().__init__()
        rope_angles(0, head_dim, base)  # refuses what it cannot use
        self.head_dim, self.base = head_dim, base

    def rotate(self, x, offset=0):
        r"""The queries or keys, turned: a pair is one complex number, and a turn is one product with $e^{i\theta}$.

        Args:
            x: (B, H, T, K) queries or keys; any number of axes before T.
            offset: position of the first of them.

        Returns:
            (B, H, T, K), in the type of x; types below float32 are turned in float32.

        Raises:
            ValueError: if the last axis is not K, or the offset is negative.
        """
        if x.ndim < 2 or x.shape[-1] != self.head_dim:
            raise ValueError(f"RoPE for heads of width K = {self.head_dim} got shape {tuple(x.shape)}")
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        angles = rope_angles(x.shape[-2], self.head_dim, self.base, offset, dtype=wide.dtype, device=x.device)
        pairs = torch.view_as_complex(wide.unflatten(-1, (-1, 2)).contiguous())  # (B, H, T, K/2)
        turned = pairs * torch.polar(torch.ones_like(angles), angles)
        return torch.view_as_real(turned).flatten(-2).type_as(x)


# ---- added to the scores ----


def distances(T, S, *, device=None):
    """How far each key stands behind (negative) or ahead of (positive) each query.

    Args:
        T: number of queries; query i stands at position S - T + i.
        S: number of keys, from position 0; at least T.
        device: where the result lies.

    Returns:
        (T, S) int64, j - (S - T + i).

    Raises:
        ValueError: if T is above S: the first query would stand before position 0.

    Example:
        >>> distances(2, 4)
        tensor([[-2, -1,  0,  1],
                [-3, -2, -1,  0]])

    Notebook: 08.
    """
    if not 0 <= T <= S:
        raise ValueError(f"the queries are the last of the keys' positions, so T must be from 0 to S, got {T=}, {S=}")
    return torch.arange(S, device=device) - torch.arange(S - T, S, device=device).unsqueeze(1)


class RelativeBias(NoPositions):
    r"""Adds a learned number to each score: one for each head and distance.

    $$ a_{ij} \leftarrow a_{ij} + b_{h, \mathrm{clip}(j - i)}, \quad \mathrm{clip}(d) = \max(-M, \min(M, d)) $$

    All distances beyond M share the number at M, so a sequence may have any length. The numbers start at zero:
    no position.

    Args:
        num_heads: H.
        max_distance: M.

    Raises:
        ValueError: if a size is below 1.

    Differs: T5 clips too, but lets distances that are far and close to each other share a number, in buckets that
    widen logarithmically; Shaw et al. add a learned vector to the key instead of a number to the score.

    Example:
        >>> RelativeBias(num_heads=2, max_distance=3).bias(4, 6).shape
        torch.Size([2, 4, 6])

    Source: Raffel et al. (2020), "T5", arXiv:1910.10683, section 2.1; the clipping is that of Shaw, Uszkoreit and
    Vaswani (2018), "Self-Attention with Relative Position Representations", arXiv:1803.02155, section 3.2.
    Notebook: 08.
    """

    def __init__(self, num_heads, max_distance):
        super().__init__()
        _check_sizes(num_heads=num_heads, max_distance=max_distance)
        self.max_distance = max_distance
        self.weight = nn.Parameter(torch.zeros(num_heads, 2 * max_distance + 1))  # from -M to M

    def bias(self, T, S):
        """The table's number for each head, query and key.

        Args:
            T: number of queries, the last of the S positions.
            S: number of keys.

        Returns:
            (H, T, S).

        Raises:
            ValueError: if T is above S.
        """
        M = self.max_distance
        return self.weight[:, distances(T, S, device=self.weight.device).clamp(-M, M) + M]


def alibi_slopes(num_heads):
    r"""How fast each head's score falls with distance: a geometric sequence that ends at 1/256.

    $$ m_h = 2^{-8 h / H}, \quad h = 1, \ldots, H \quad \text{for } H \text{ a power of two} $$

    Otherwise the slopes of the next smaller power of two, then every other one of the next larger.

    Args:
        num_heads: H.

    Returns:
        (H,) positive numbers.

    Raises:
        ValueError: if H is below 1.

    Example:
        >>> alibi_slopes(4)
        tensor([0.2500, 0.0625, 0.0156, 0.0039])

    Source: Press, Smith and Lewis (2022), "Train Short, Test Long", arXiv:2108.12409, section 3, and for other H the
    paper's code. Notebook: 08.
    """
    _check_sizes(num_heads=num_heads)
    lower = 2 ** int(math.log2(num_heads))
    exponents = [8 * h / lower for h in range(1, lower + 1)]
    between = [4 * h / lower for h in range(1, 2 * lower, 2)]  # those of 2 * lower heads that lower heads lack
    return 2.0 ** -torch.tensor((exponents + between)[:num_heads])


class ALiBi(NoPositions):
    r"""Lowers each score in proportion to the distance: a head looks near, how near is its slope.

    $$ a_{ij} \leftarrow a_{ij} - m_h |i - j| $$

    Nothing is learned, and a sequence may have any length.

    Args:
        num_heads: H.

    Raises:
        ValueError: if H is below 1.

    Differs: the paper's models are causal and see j <= i only; |i - j| is the symmetric form for encoders.

    Example:
        >>> ALiBi(num_heads=2).bias(1, 4)
        tensor([[[-0.1875, -0.1250, -0.0625,  0.0000]],
        <BLANKLINE>
                [[-0.0117, -0.0078, -0.0039,  0.0000]]])

    Source: Press, Smith and Lewis (2022), arXiv:2108.12409, section 3. Notebook: 08.
    """

    def __init__(self, num_heads):
        super().__init__()
        self.register_buffer("slopes", alibi_slopes(num_heads), persistent=False)

    def bias(self, T, S):
        """Minus slope times distance for each head, query and key.

        Args:
            T: number of queries, the last of the S positions.
            S: number of keys.

        Returns:
            (H, T, S), zero or negative.

        Raises:
            ValueError: if T is above S.
        """
        return self.slopes.view(-1, 1, 1) * -distances(T, S, device=self.slopes.device).abs()


def _rows(table, x, offset):
    """Rows offset to offset + T of a table (L, D) for x (B, T, D), refused where the table has none."""
    L, D = table.shape
    if x.ndim < 2 or x.shape[-1] != D:
        raise ValueError(f"positions of width D = {D} cannot be added to embeddings of shape {tuple(x.shape)}")
    T = x.shape[-2]
    if offset < 0:
        raise ValueError(f"offset must not be negative, got {offset}")
    if offset + T > L:
        raise ValueError(f"positions up to {offset + T} are needed (offset {offset} + T = {T}), the table has {L}")
    return table[offset : offset + T]


def _check_sizes(**sizes):
    """Every size at least 1."""
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
