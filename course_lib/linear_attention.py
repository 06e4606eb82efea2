r"""Layers whose cost grows with T, or T log T, not T^2: linear attention, a state-space layer, a gated recurrence.

Each of them is written twice. As a recurrence it reads one token after another and keeps a state of fixed size, which
is what generation wants; in parallel it computes all positions of a text at once, which is what training wants. Both
give the same numbers. Read `linear_attention` and `linear_attention_step`; `linear_scan`, which computes a recurrence
in log2(T) steps; then `LinearAttention`, `StateSpace` and `MinGRU`, which stand in a block where attention stands:

    for block in gpt.blocks:
        block.attn = MinGRU(d_model)
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import merge_heads, split_heads
from course_lib.utils.validate import check_choice, check_expands, check_floats, check_sizes, check_tensor

EPS = 1e-6  # added to what is divided by, as in the authors' code

# --- linear attention -----------------------------------------------------------


def feature_map(x):
    """elu(x) + 1 as x + 1 above 0 and exp(x) below, so that a small value does not round to 0."""
    return x.clamp(max=0).exp() + x.relu()


def linear_attention(q, k, v):
    r"""Causal attention with another measure of fit, $\phi(q) \cdot \phi(k)$ in the place of $\exp(q \cdot k)$.

    $$ y_t = \frac{\sum_{s \le t} (\phi(q_t) \cdot \phi(k_s))\, v_s}{\sum_{s \le t} \phi(q_t) \cdot \phi(k_s)} $$

    with $\phi(x) = \text{elu}(x) + 1$ on each entry. Here all (T, T) weights are computed, as in `attention`.

    >>> linear_attention(torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 4), torch.rand(2, 3, 5, 6)).shape
    torch.Size([2, 3, 5, 6])

    Source: Katharopoulos et al. (2020), "Transformers are RNNs", arXiv:2006.16236, equations 7 to 9.
    """
    check_qkv(q, k, v)
    q, k = feature_map(q), feature_map(k)
    weights = (q @ k.mT).tril()  # (..., T, T)
    return weights @ v / (weights.sum(-1, keepdim=True) + EPS)  # (..., T, E)


def linear_attention_step(q, k, v, state):
    r"""The same for one token, q and k (..., K), v (..., E): what came before is in two sums.

    $$ S_t = S_{t-1} + \phi(k_t) v_t^\top, \quad z_t = z_{t-1} + \phi(k_t), \quad
       y_t = \frac{\phi(q_t)^\top S_t}{\phi(q_t) \cdot z_t} $$

    The product with $\phi(q_t)$ is taken out of the sum over s, which then needs no query. The state is S (..., K, E)
    and z (..., K), as large after a million tokens as after one. Returns y (..., E) and the state.

    Source: Katharopoulos et al. (2020), equations 10 to 12 and 18 to 20.
    """
    S, z = state
    q, k = feature_map(q), feature_map(k)
    S = S + k.unsqueeze(-1) * v.unsqueeze(-2)  # (..., K, E)
    z = z + k  # (..., K)
    top = (q.unsqueeze(-2) @ S).squeeze(-2)  # (..., E)
    return top / ((q * z).sum(-1, keepdim=True) + EPS), (S, z)


def linear_attention_chunked(q, k, v, chunk=64):
    """`linear_attention` in time and memory that grow with T: in a chunk all pairs, of what lies before it the sums.

    >>> q, k, v = torch.rand(3, 2, 70, 4)
    >>> torch.allclose(linear_attention_chunked(q, k, v, chunk=16), linear_attention(q, k, v), atol=1e-5)
    True
    """
    check_qkv(q, k, v)
    check_sizes(chunk=chunk)
    q, k = feature_map(q), feature_map(k)
    S, z, outputs = 0.0, 0.0, []
    for q_part, k_part, v_part in zip(*(x.split(chunk, -2) for x in (q, k, v)), strict=True):
        weights = (q_part @ k_part.mT).tril()  # (..., C, C)
        top, bottom = weights @ v_part, weights.sum(-1, keepdim=True)
        if outputs:
            top, bottom = top + q_part @ S, bottom + q_part @ z
        outputs.append(top / (bottom + EPS))
        S, z = S + k_part.mT @ v_part, z + k_part.sum(-2).unsqueeze(-1)  # (..., K, E), (..., K, 1)
    return torch.cat(outputs, -2)


class LinearAttention(nn.Module):
    """H linear attentions side by side, as in `MultiHeadAttention`; in chunks, or with all pairs if `chunk` is None.

    >>> layer = LinearAttention(d_model=12, num_heads=3)
    >>> layer(torch.rand(2, 5, 12)).shape
    torch.Size([2, 5, 12])
    """

    def __init__(self, d_model, num_heads, bias=True, chunk=64):
        super().__init__()
        check_sizes(d_model=d_model, num_heads=num_heads, chunk=1 if chunk is None else chunk)
        if d_model % num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads, got {d_model=} and {num_heads=}")
        self.num_heads, self.chunk = num_heads, chunk
        self.in_proj = nn.Linear(d_model, 3 * d_model, bias)
        self.out_proj = nn.Linear(d_model, d_model, bias)

    def forward(self, x, causal=True, cache=None):
        """(B, T, D) to (B, T, D), called as a block calls its attention."""
        check_as_attention(causal, cache)
        q, k, v = split_heads(self.in_proj(x), 3 * self.num_heads).chunk(3, 1)  # (B, H, T, K) each
        y = linear_attention(q, k, v) if self.chunk is None else linear_attention_chunked(q, k, v, self.chunk)
        return self.out_proj(merge_heads(y))

    def step(self, x, state=None):
        """One token (B, D) to (B, D), and the state: S (B, H, K, K) and z (B, H, K); None before the first."""
        q, k, v = self.in_proj(x).unflatten(-1, (3, self.num_heads, -1)).unbind(1)  # (B, H, K) each
        if state is None:
            state = x.new_zeros(*k.shape, v.shape[-1]), torch.zeros_like(k)
        y, state = linear_attention_step(q, k, v, state)
        return self.out_proj(y.flatten(1)), state


# --- linear recurrences ---------------------------------------------------------


def linear_loop(a, b):
    """All h_t = a_t h_{t-1} + b_t entry by entry, from h_0 = 0, one after another: b (B, T, D) to h (B, T, D).

    a has the shape of b, or one that broadcasts to it.
    """
    a = check_ab(a, b)
    h, outputs = torch.zeros_like(b[:, 0]), []
    for a_t, b_t in zip(a.unbind(1), b.unbind(1), strict=True):
        h = a_t * h + b_t
        outputs.append(h)
    return torch.stack(outputs, 1)


def linear_scan(a, b):
    r"""`linear_loop` in log2(T) steps, each for all positions at once.

    Two steps in a row are one step of the same form, $h \to a_2 a_1 h + (a_2 b_1 + b_2)$. So each position takes in the
    one before it, then, doubled, the one 2 before it, 4 before it, until all have taken in the whole past. Nothing is
    divided and no exponential taken: with a between 0 and 1, numbers can only fade.

    >>> a, b = torch.full((1, 4, 1), 0.5), torch.ones(1, 4, 1)
    >>> linear_scan(a, b).flatten()
    tensor([1.0000, 1.5000, 1.7500, 1.8750])

    Source: Hillis and Steele (1986), "Data Parallel Algorithms"; Blelloch (1990), "Prefix Sums and Their Applications",
    section 1.4, for recurrences.
    """
    a, T, distance = check_ab(a, b), b.shape[1], 1
    while distance < T:
        past = (0, 0, distance, 0)  # of T: so many zeros in front, for before the text there is nothing to take in
        b = b + a * F.pad(b[:, :-distance], past)
        a = a * F.pad(a[:, :-distance], past)
        distance *= 2
    return b


def linear_convolution(a, b):
    r"""`linear_loop` for a (D,) that is the same at all steps, by the fast Fourier transform.

    Then $h_t = \sum_{s \le t} a^{t-s} b_s$, a convolution. Padded to 2 T, so that the end does not reach the beginning.
    The error is relative to the largest h, not to each. Source: Gu et al. (2022), "On the Parameterization and
    Initialization of Diagonal State Space Models", arXiv:2206.11893, section 3.
    """
    check_tensor("b", b, ("B", "T", "D"), "float")
    check_tensor("a", a, (b.shape[2],), "float")
    T = b.shape[1]
    powers = a.unsqueeze(0) ** torch.arange(T, device=b.device).unsqueeze(1)  # (T, D)
    product = torch.fft.rfft(powers, 2 * T, dim=0) * torch.fft.rfft(b, 2 * T, dim=1)  # (B, T + 1, D)
    return torch.fft.irfft(product, 2 * T, dim=1)[:, :T]


METHODS = {"loop": linear_loop, "scan": linear_scan, "fft": linear_convolution}


class LinearRecurrence(nn.Module):
    r"""What `StateSpace` and `MinGRU` have in common, which differ in their `coefficients` a and b alone.

    $$ h_t = a_t \odot h_{t-1} + b_t, \qquad y_t = W_{out} h_t + d \odot x_t $$

    The state h has the width `d_state`, by default D. `method` says how `forward` computes it: "loop", "scan", or "fft"
    where a is the same at all steps.
    """

    methods = ("loop", "scan")

    def __init__(self, d_model, d_state=None, method="scan"):
        super().__init__()
        d_state = d_model if d_state is None else d_state
        check_sizes(d_model=d_model, d_state=d_state)
        check_choice("method", method, self.methods)
        self.method = method
        self.in_proj = nn.Linear(d_model, d_state, bias=False)
        self.out_proj = nn.Linear(d_state, d_model, bias=False)
        self.skip = nn.Parameter(torch.ones(d_model))

    def forward(self, x, causal=True, cache=None):
        """(B, T, D) to (B, T, D), called as a block calls its attention."""
        check_as_attention(causal, cache)
        h = METHODS[self.method](*self.coefficients(x))
        return self.out_proj(h) + self.skip * x

    def step(self, x, state=None):
        """One token (B, D) to (B, D), and the state h (B, d_state); None before the first."""
        a, b = self.coefficients(x)
        h = b if state is None else a * state + b
        return self.out_proj(h) + self.skip * x, h


class StateSpace(LinearRecurrence):
    r"""A diagonal state-space layer: each entry of the state forgets at a rate of its own, the same for every token.

    $$ h_t = a \odot h_{t-1} + \sqrt{1 - a^2} \odot W_{in} x_t, \qquad a = \exp(-\exp(\nu)) \text{ between 0 and 1} $$

    With the root, the state has the variance of its input, however long the memory. At the start a^2 is spread evenly
    from 0.9^2 to 0.999^2: memories of about 10 to 1000 tokens. Arguments as `LinearRecurrence`.

    >>> StateSpace(d_model=12, d_state=20, method="fft")(torch.rand(2, 5, 12)).shape
    torch.Size([2, 5, 12])

    Source: Orvieto et al. (2023), "Resurrecting Recurrent Neural Networks for Long Sequences", arXiv:2303.06349,
    sections 3.2 to 3.4, and lemma 3.2 for the start. Differs: our a is real, theirs turns in the complex plane too.
    """

    methods = ("loop", "scan", "fft")

    def __init__(self, d_model, d_state=None, method="scan"):
        super().__init__(d_model, d_state, method)
        squares = torch.empty(self.in_proj.out_features).uniform_(0.9**2, 0.999**2)
        self.nu = nn.Parameter((-squares.log() / 2).log())

    def coefficients(self, x):
        """What stays, a (d_state,), and what comes, b (..., d_state), for x (..., D)."""
        rate = self.nu.exp()  # a = exp(-rate)
        return (-rate).exp(), (-torch.expm1(-2 * rate)).sqrt() * self.in_proj(x)  # expm1: exact where a is nearly 1


class MinGRU(LinearRecurrence):
    r"""A GRU whose gate sees the token alone and not the state, so that the recurrence is linear in the state.

    $$ z_t = \sigma(W_z x_t + b_z), \qquad h_t = (1 - z_t) \odot h_{t-1} + z_t \odot W_{in} x_t $$

    What is kept depends on the token, which a `StateSpace` cannot do: it can forget at the end of a sentence. Mamba's
    selection is of this kind. Arguments as `LinearRecurrence`.

    >>> layer = MinGRU(d_model=12)
    >>> y, state = layer.step(torch.rand(2, 12))
    >>> y, state = layer.step(torch.rand(2, 12), state)

    Source: Feng et al. (2024), "Were RNNs All We Needed?", arXiv:2410.01201, section 3.1. Differs: W_out and the skip.
    """

    def __init__(self, d_model, d_state=None, method="scan"):
        super().__init__(d_model, d_state, method)
        self.gate = nn.Linear(d_model, self.in_proj.out_features)

    def coefficients(self, x):
        """What stays and what comes, a and b (..., d_state), for x (..., D)."""
        gate = self.gate(x)
        return (-gate).sigmoid(), gate.sigmoid() * self.in_proj(x)  # sigmoid(-z) is 1 - sigmoid(z)


# --- doors ----------------------------------------------------------------------


def check_qkv(q, k, v):
    """Queries, keys and values of the same tokens."""
    check_floats(q=q, k=k, v=v)
    if q.ndim < 2 or q.shape != k.shape or k.shape[:-1] != v.shape[:-1]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise ValueError(f"wanted q (..., T, K), k (..., T, K) and v (..., T, E), got {shapes}")


def check_ab(a, b):
    """Tensors of a recurrence: a in the shape of b (B, T, D)."""
    check_tensor("b", b, ("B", "T", "D"), "float")
    check_expands("a", a, b.shape, "float", b)
    return a.expand_as(b)


def check_as_attention(causal, cache):
    """A block may ask for what these layers do, and for nothing else."""
    if not causal or cache is not None:
        raise ValueError("a recurrence must be causal, and needs `step` and its state in the place of a cache")
