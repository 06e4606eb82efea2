r"""Attention: for each query a weighted mean of values, the weights from how well the keys fit.

Read `attention_scores`, `attention_weights` and `attention`, the scaled dot product; `hard_attention`, which takes one
value instead of a mean; then the layers: `MultiHeadAttention`, with which a Transformer looks at other positions, and
`AdditiveAttention`, with which a recurrent decoder looks back at the source. A mask is boolean, True = may attend, and
broadcasts to the scores, (B, H, T, S) in a Transformer.
"""

import copy
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.functional import Dropout, attention_with_dropout, causal_mask, combined_mask, dropout
from course_lib.positional import PositionScheme
from course_lib.utils.validate import (
    check_choice,
    check_expands,
    check_finite,
    check_floats,
    check_instance,
    check_probability,
    check_sizes,
    check_tensor,
    check_width,
)

BACKENDS = ("sdpa", "math")
default_backend = "sdpa"

# --- functions ------------------------------------------------------------------


def attention_scores(q, k, bias=None):
    """How well each of S keys (..., S, K) fits each of T queries (..., T, K): scaled dot products (..., T, S).

    The dot product of two vectors of K independent entries of variance 1 has variance K. Divided by the root, scores
    keep variance 1 at every width, and the softmax does not start out saturated. Source: Vaswani et al. (2017),
    "Attention Is All You Need", arXiv:1706.03762, equation 1; our K is its d_k.
    """
    check_floats(q=q, k=k)
    scores = (q * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)  # (..., T, S)
    return scores if bias is None else scores + bias


def attention_weights(scores, mask=None):
    """Scores (..., S) as weights (..., S): positive, and with sum 1 over the keys that may be attended to.

    A row in which every key is masked gets zeros, and so does its gradient, as in torch's kernel. Filling with minus
    infinity and taking the softmax would give NaN there.

    >>> attention_weights(torch.tensor([0.0, 0.0, 9.0]), torch.tensor([True, True, False]))
    tensor([0.5000, 0.5000, 0.0000])
    """
    check_floats(scores=scores)
    if mask is None:
        return scores.softmax(-1)
    check_expands("mask", mask, scores.shape, torch.bool, scores)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # changes a fully masked row only: elsewhere exp gave 0 already


def attention(q, k, v, mask=None, causal=False, bias=None, dropout_p=0.0, backend=None):
    r"""Scaled dot-product attention, $\text{softmax}(Q K^\top / \sqrt{K} + b) V$: queries (..., T, K) to (..., T, E).

    Args:
        q, k, v: (..., T, K) queries, (..., S, K) keys, (..., S, E) values.
        mask: bool that broadcasts to (..., T, S), True = may attend. A query that may attend to nothing gets zeros.
        causal: True lets a query see no key after it, see `causal_mask`.
        bias: float that broadcasts to (..., T, S), added to the scores.
        dropout_p: dropout probability of the weights; give 0 outside training.
        backend: "math", the equation as it stands, which keeps (..., T, S) weights for the backward pass; "sdpa",
            torch's kernel, which need not keep them; None: that of `attention_backend`.

    >>> attention(torch.rand(2, 3, 4), torch.rand(2, 5, 4), torch.rand(2, 5, 6), causal=True).shape
    torch.Size([2, 3, 6])
    """
    if not (torch.is_tensor(q) and torch.is_tensor(k) and torch.is_tensor(v) and q.is_floating_point()):
        check_floats(q=q, k=k, v=v)
    if q.shape[:-2] != k.shape[:-2] or k.shape[:-1] != v.shape[:-1] or q.shape[-1] != k.shape[-1]:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        raise ValueError(f"wanted q (..., T, K), k (..., S, K) and v (..., S, E), got {shapes}")
    backend, T, S = backend or default_backend, q.shape[-2], k.shape[-2]
    if dropout_p != 0:
        check_probability(dropout_p=dropout_p)
    if mask is not None:
        check_expands("mask", mask, (*q.shape[:-1], S), torch.bool, q)
    if bias is not None:
        check_expands("bias", bias, (*q.shape[:-1], S), "float", q)
    without_kernel = dropout_p > 0 and q.device.type == "cpu"  # torch has none there that drops weights
    if backend == "sdpa" and causal and mask is None and bias is None and T == S and not without_kernel:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    if causal and T > 1:  # the last query sees every key
        mask = combined_mask(mask, causal_mask(T, S, q.device))
    if backend == "math":
        weights = attention_weights(attention_scores(q, k, bias), mask)  # (..., T, S)
        return dropout(weights, dropout_p) @ v  # (..., T, E)
    check_choice("backend", backend, BACKENDS)
    if without_kernel:
        return attention_with_dropout(q, k, v, mask, bias, dropout_p)
    if bias is not None:
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, -torch.inf)
    if mask is not None:
        mask = mask.reshape((1,) * (q.ndim - mask.ndim) + mask.shape)  # the kernel takes no fewer axes
    return F.scaled_dot_product_attention(q, k, v, mask, dropout_p)


@contextmanager
def attention_backend(backend):
    """Compute every attention in a `with` block by "math" or by "sdpa", whichever model it belongs to."""
    global default_backend
    check_choice("backend", backend, BACKENDS)
    before, default_backend = default_backend, backend
    try:
        yield
    finally:
        default_backend = before


def hard_attention(q, k, v, mask=None, causal=False):
    """The value of the best key alone, of equal ones the first; arguments and shapes are those of `attention`.

    A choice has no slope: no gradient reaches the queries and the keys. Source: Xu et al. (2015), "Show, Attend and
    Tell", arXiv:1502.03044, section 4.1. Differs: the largest score is taken where the paper draws from the weights.
    """
    check_floats(q=q, k=k, v=v)
    scores = attention_scores(q, k).detach()  # (..., T, S)
    check_finite("q k^T", scores)
    mask = combined_mask(mask, causal_mask(*scores.shape[-2:], q.device) if causal else None)
    if mask is not None:
        check_expands("mask", mask, scores.shape, torch.bool, scores)
        scores = scores.masked_fill(~mask, -torch.inf)
    sees = scores.amax(-1, keepdim=True) > -torch.inf  # (..., T, 1), False: a query that may attend to nothing
    chosen = F.one_hot(scores.argmax(-1), k.shape[-2]) * sees  # (..., T, S)
    return chosen.to(v.dtype) @ v


def split_heads(x, num_heads):
    """Cut the width into heads, and put them before the positions: (B, T, D) to (B, H, T, K), a view; K = D / H."""
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"num_heads must be a divisor of the width, got {num_heads} and {x.shape[-1]}")
    return x.unflatten(-1, (num_heads, -1)).transpose(-3, -2)  # (B, T, D) -> (B, T, H, K) -> (B, H, T, K)


def merge_heads(x):
    """Put the heads' vectors side by side again: (B, H, T, K) to (B, T, D)."""
    return x.transpose(-3, -2).flatten(-2)  # (B, H, T, K) -> (B, T, H, K) -> (B, T, D)


# --- layers ---------------------------------------------------------------------


class MultiHeadAttention(nn.Module):
    r"""H attentions side by side, each on its own projections of width K = D / H.

    $$ \text{head}_h = \text{attention}(x_q W_h^Q, x_k W_h^K, x_v W_h^V), \qquad
       \text{out} = [\text{head}_1; \dots; \text{head}_H]\, W^O $$

    One softmax yields one mean; with H of them a position can look at H places for H reasons. The parameters have
    torch's names and layout: `in_proj_weight` (3 D, D) holds the projections of queries, keys and values, one above the
    other, and each of them the heads one above the other. `position` is a scheme of `course_lib.positional`, which may
    rotate queries and keys or add to the scores; what it adds to embeddings belongs there.

    >>> layer = MultiHeadAttention(d_model=12, num_heads=3)
    >>> layer(torch.rand(2, 5, 12), causal=True).shape
    torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.2.2. Differs: nn.MultiheadAttention, whose weights it
    takes, returns (output, weights), and its masks mean the opposite, True = hidden.
    """

    def __init__(self, d_model, num_heads, dropout=0.0, bias=True, position=None, *, device=None, dtype=None):
        super().__init__()
        check_sizes(d_model=d_model, num_heads=num_heads)
        if d_model % num_heads:
            raise ValueError(f"d_model must be a multiple of num_heads, got {d_model=} and {num_heads=}")
        check_instance("position", PositionScheme() if position is None else position, PositionScheme)
        self.d_model, self.num_heads, self.position = d_model, num_heads, position
        self.in_proj_weight = nn.Parameter(torch.empty(3 * d_model, d_model))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * d_model)) if bias else None
        self.out_proj = nn.Linear(d_model, d_model, bias=bias)
        self.dropout = Dropout(dropout)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)
        self.to(device=device, dtype=dtype)

    def forward(self, query, key=None, value=None, mask=None, causal=False, cache=None):
        """Attend from every query (B, T, D) to the keys (B, S, D), by default the queries themselves: (B, T, D).

        The mask broadcasts to (B, H, T, S). S counts the earlier tokens whose keys and values are in a `KVCache` too.
        """
        q, k, v = self.project(query, key, value)  # (B, H, T, K), (B, H, S, K), (B, H, S, K)
        q, k, v, bias = self.place(q, k, v, cache)
        p = self.dropout.p if self.training else 0.0
        out = attention(q, k, v, mask, causal, bias, p)  # (B, H, T, K)
        return self.out_proj(merge_heads(out))  # (B, T, D)

    def project(self, query, key=None, value=None):
        """The heads' queries (B, H, T, K), keys and values (B, H, S, K)."""
        for name, x in (("query", query), ("key", key), ("value", value)):
            if x is not None and not (torch.is_tensor(x) and x.is_floating_point() and x.shape[-1:] == (self.d_model,)):
                check_width(name, x, self.d_model)  # says what is wrong
        weight, bias = self.in_proj_weight, self.in_proj_bias
        if key is None and value is None:  # one product for all three
            # (B, T, D) -> (B, T, 3 D) -> (B, 3 H, T, K) -> three of (B, H, T, K)
            return split_heads(F.linear(query, weight, bias), 3 * self.num_heads).chunk(3, -3)
        key = query if key is None else key
        value = key if value is None else value
        biases = (None, None, None) if bias is None else bias.chunk(3)
        parts = map(F.linear, (query, key, value), weight.chunk(3), biases)  # (B, T, D), (B, S, D), (B, S, D)
        return [split_heads(part, self.num_heads) for part in parts]  # (B, H, T, K), (B, H, S, K), (B, H, S, K)

    def place(self, q, k, v, cache=None):
        """Tell queries and keys their positions, put keys and values behind those in the cache; (q, k, v, bias)."""
        past = 0 if cache is None else cache.length
        if self.position is not None:
            first = past + k.shape[-2] - q.shape[-2]  # the last query stands at the last key
            q, k = self.position.rotate(q, first), self.position.rotate(k, past)
        if cache is not None:
            k, v = cache.append(k, v)
        bias = None if self.position is None else self.position.bias(q.shape[-2], k.shape[-2])  # (H, T, S)
        return q, k, v, bias

    def attention_weights(self, query, key=None, value=None, mask=None, causal=False, cache=None):
        """Where each head looks, (B, H, T, S), for the arguments of `forward`; the cache stays as it was."""
        q, k, v = self.project(query, key, value)
        q, k, v, bias = self.place(q, k, v, copy.copy(cache))
        mask = combined_mask(mask, causal_mask(q.shape[-2], k.shape[-2], q.device) if causal else None)
        return attention_weights(attention_scores(q, k, bias), mask)

    def extra_repr(self):
        """The sizes, for `print`."""
        return f"d_model={self.d_model}, num_heads={self.num_heads}"


class AdditiveAttention(nn.Module):
    r"""Attention whose scores come from a network with one hidden layer.

    $$ a_{ts} = v^\top \tanh(W_q q_t + W_k k_s), \quad w_t = \mathrm{softmax}(a_t), \quad c_t = \sum_s w_{ts} v_s $$

    The widths are `query_size` Q, `key_size` E and, of the hidden layer, `hidden_size` A. Source: Bahdanau,
    Cho and Bengio (2015), arXiv:1409.0473, appendix A.1.2; our W_q, W_k, v are its W_a, U_a, v_a.

    >>> attention, keys = AdditiveAttention(query_size=3, key_size=4, hidden_size=5), torch.rand(2, 7, 4)
    >>> context, weights = attention(torch.rand(2, 3), attention.project(keys), keys)
    """

    def __init__(self, query_size, key_size, hidden_size):
        super().__init__()
        check_sizes(query_size=query_size, key_size=key_size, hidden_size=hidden_size)
        self.query = nn.Linear(query_size, hidden_size, bias=False)
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def project(self, keys):
        """The part of the hidden layer that depends on the keys (B, S, E) alone, (B, S, A): once a sentence."""
        return self.key(keys)

    def forward(self, query, projected, values, mask=None):
        """Attend to the values (B, S, E), whose keys are `projected` (B, S, A).

        The query is (B, T, Q), the context (B, T, E), the weights (B, T, S), to which the mask broadcasts. Or one query
        a sentence, (B, Q): then context (B, E) and weights (B, S), and a mask as for T = 1.
        """
        queries = query if query.ndim == 3 else query.unsqueeze(1)  # (B, T, Q)
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + projected.unsqueeze(1))  # (B, T, S, A)
        weights = attention_weights(self.score(hidden).squeeze(-1), mask)  # (B, T, S)
        context = weights @ values  # (B, T, E)
        return (context, weights) if query.ndim == 3 else (context.squeeze(1), weights.squeeze(1))


# --- a whole model --------------------------------------------------------------


@contextmanager
def record_attention(model):
    """Where each layer of a model that has a method `attention_weights` looks, such as `MultiHeadAttention`.

    Gives a dict: layer's name -> (B, H, T, S), the weights of its last call.

    >>> model = nn.Sequential(MultiHeadAttention(12, 3))
    >>> with record_attention(model) as maps:
    ...     out = model(torch.rand(2, 5, 12))
    >>> maps["0"].shape
    torch.Size([2, 3, 5, 5])
    """
    check_instance("model", model, nn.Module)
    maps, hooks = {}, []
    for name, part in model.named_modules():
        if hasattr(part, "attention_weights"):

            def keep(layer, args, options, name=name):  # before `forward`, which writes into the cache
                maps[name] = layer.attention_weights(*args, **options)

            hooks.append(part.register_forward_pre_hook(keep, with_kwargs=True))
    if not hooks:
        raise ValueError(f"wanted a model with attention that says where it looks, got {type(model).__name__}")
    try:
        yield maps
    finally:
        for hook in hooks:
            hook.remove()


class KVCache:
    """The keys and values of one layer for all tokens so far.

    A token's key and value do not depend on later tokens, so they are computed once. Memory for one layer: 2 B H S K
    numbers, S the tokens that there is room for: `max_len`, and more when these are full. Source: Pope et al. (2022),
    "Efficiently Scaling Transformer Inference", arXiv:2211.05102, section 2.
    """

    def __init__(self, batch_size, num_heads, max_len, head_dim, dtype=None, device=None):
        check_sizes(batch_size=batch_size, num_heads=num_heads, max_len=max_len, head_dim=head_dim)
        self.keys = torch.empty(batch_size, num_heads, max_len, head_dim, dtype=dtype, device=device)
        self.values = torch.empty_like(self.keys)
        self.length = 0

    def append(self, k, v):
        """Put the keys and values (B, H, T, K) of new tokens behind those that are there; all of them, (B, H, S, K)."""
        B, H, room, K = self.keys.shape
        fits = torch.is_tensor(k) and torch.is_tensor(v) and k.shape == v.shape == (B, H, *k.shape[2:3], K)
        if not (fits and k.is_floating_point() and v.is_floating_point() and k.device == v.device == self.keys.device):
            check_tensor("k", k, (B, H, "T", K), "float", self.keys)  # says what is wrong
            check_tensor("v", v, tuple(k.shape), "float", self.keys)
        end = self.length + k.shape[2]
        if torch.is_grad_enabled() and k.requires_grad:  # not in place: the backward pass needs what earlier steps saw
            self.keys = torch.cat([self.keys[:, :, : self.length], k], 2)
            self.values = torch.cat([self.values[:, :, : self.length], v], 2)
            self.length = end
            return self.keys, self.values
        if end > room:
            more = (0, 0, 0, max(end, 2 * room) - room)
            self.keys, self.values = F.pad(self.keys, more), F.pad(self.values, more)
        self.keys.narrow(2, self.length, k.shape[2]).copy_(k)
        self.values.narrow(2, self.length, k.shape[2]).copy_(v)
        self.length = end
        return self.keys.narrow(2, 0, end), self.values.narrow(2, 0, end)

    def reorder(self, rows):
        """A cache of these rows of the batch, (B,) int64, in this order; a row may come twice."""
        cache = copy.copy(self)
        cache.keys, cache.values = self.keys.index_select(0, rows), self.values.index_select(0, rows)
        return cache
