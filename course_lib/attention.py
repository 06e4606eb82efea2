r"""Attention: for each query a weighted mean of values, the weights from how well the keys fit.

Read `attention_weights`, the softmax that leaves masked keys out; `attention_scores` and `attention`, the scaled dot
product in two ways that compute the same; `hard_attention`, which takes one value instead of a mean; then the layers:
`MultiHeadAttention`, with which a Transformer looks at other positions, and `AdditiveAttention`, with which a
recurrent decoder looks back at the source.

    impl="math"   scores, softmax and weighted mean, written out: (..., T, S) numbers are kept for the backward pass
    impl="sdpa"   torch's kernel, which never holds more than a block of them (the default)

Notebooks: 06, 07 and later ones.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.rnn import keep_mask

IMPLS = ("sdpa", "math")

# --- functions ------------------------------------------------------------------


def attention_weights(scores, mask=None):
    r"""Scores as weights that are positive and add up to one over the keys that may be attended to.

    $$ w_s = \frac{m_s \exp(a_s)}{\sum_{s'} m_{s'} \exp(a_{s'})} $$

    A row in which every key is masked has no such weights: it gets zeros, and so does its gradient, as in
    torch's `scaled_dot_product_attention`. Filling with minus infinity and taking the softmax would give NaN there.

    Args:
        scores: (..., S) float, a number for each key.
        mask: bool, of a shape that expands to that of the scores; True = may attend. None: every key.

    Returns:
        (..., S) weights, 0 where the mask is False.

    Raises:
        ValueError: if the scores have no axis or no keys, or if the mask is not boolean, does not expand to the
            shape of the scores, or is on another device.

    Example:
        >>> scores = torch.tensor([[0.0, 0.0, 9.0], [1.0, 2.0, 3.0]])
        >>> attention_weights(scores, torch.tensor([[True, True, False], [False, False, False]]))
        tensor([[0.5000, 0.5000, 0.0000],
                [0.0000, 0.0000, 0.0000]])

    Source: Bahdanau, Cho and Bengio (2015), "Neural Machine Translation by Jointly Learning to Align and
    Translate", arXiv:1409.0473, equation 6. Notebooks: 06, 07.
    """
    if scores.ndim == 0 or scores.shape[-1] == 0:
        raise ValueError(f"scores must be (..., S) with at least one key, got shape {tuple(scores.shape)}")
    if mask is None:
        return scores.softmax(-1)
    _check_mask(mask, scores.shape, scores.device)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # changes a fully masked row only: elsewhere exp gave 0 already


def attention_scores(q, k, bias=None):
    r"""How well each key fits each query: scaled dot products.

    $$ a_{ts} = \frac{q_t \cdot k_s}{\sqrt{K}} + b_{ts} $$

    The dot product of two vectors of K independent entries of variance 1 has variance K. Divided by the root, the
    scores keep variance 1 at every width, and the softmax does not start out saturated.

    Args:
        q: (..., T, K) queries.
        k: (..., S, K) keys.
        bias: float, of a shape that expands to (..., T, S), added to the scores; None for none.

    Returns:
        (..., T, S) scores.

    Example:
        >>> attention_scores(torch.tensor([[2.0, 0.0, 0.0, 2.0]]), torch.eye(3, 4))
        tensor([[1., 0., 0.]])

    Source: Vaswani et al. (2017), "Attention Is All You Need", arXiv:1706.03762, equation 1; our K is its d_k.
    Notebook: 07.
    """
    scores = (q * k.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    return scores if bias is None else scores + bias


def attention(q, k, v, mask=None, causal=False, bias=None, *, dropout_p=0.0, impl="sdpa"):
    r"""Scaled dot-product attention over the last two axes.

    $$ \text{out} = \text{softmax}\left(\frac{Q K^\top}{\sqrt{K}} + b\right) V $$

    with the weights of masked keys zero. A query that may attend to nothing gets zeros.

    Args:
        q: (..., T, K) queries.
        k: (..., S, K) keys.
        v: (..., S, E) values, of any width E.
        mask: bool, of a shape that expands to (..., T, S); True = may attend. None: everywhere.
        causal: True lets a query see no key after it. The last query stands at the last key: query t is at position
            S - T + t, as it is when earlier keys come from a cache and T < S.
        bias: float, of a shape that expands to (..., T, S), added to the scores; None for none.
        dropout_p: share of the weights set to zero, the others enlarged; give 0 outside training.
        impl: "sdpa", torch's kernel, or "math", the equation written out. Both draw the same dropout on the CPU.

    Returns:
        (..., T, E).

    Raises:
        ValueError: if the shapes, dtypes or devices of q, k and v do not fit each other; if the mask is not boolean or
            the bias not floating, or one of them does not expand to (..., T, S) or is on another device; if dropout_p
            is outside [0, 1) or impl unknown.

    Example:
        >>> q, k, v = torch.rand(2, 3, 4), torch.rand(2, 5, 4), torch.rand(2, 5, 6)
        >>> attention(q, k, v, causal=True).shape
        torch.Size([2, 3, 6])

    Source: Vaswani et al. (2017), arXiv:1706.03762, equation 1. Notebook: 07.
    """
    _check_attention(q, k, v, mask, bias, dropout_p, impl)
    visible = _visible(mask, causal, q, k)
    if impl == "math":
        return _math(q, k, v, visible, bias, dropout_p)
    if dropout_p > 0 and q.device.type == "cpu":  # torch has no kernel for this one on the CPU
        dropped = _DroppedAttention.apply if q.ndim > 2 else _math  # without a batch there is nothing to split
        return dropped(q, k, v, visible, bias, dropout_p)
    if causal and mask is None and bias is None and q.shape[-2] == k.shape[-2]:
        return F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=True)
    added = visible if bias is None else bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    if added is not None:  # with all axes of the scores: the kernel takes no other
        added = added.reshape((1,) * (q.ndim - added.ndim) + added.shape)
        added = added if added.dtype == torch.bool else added.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, added, dropout_p)


def hard_attention(q, k, v, mask=None, causal=False):
    r"""The value of the best key alone.

    $$ \text{out}_t = v_{s^*}, \quad s^* = \arg\max_s\; q_t \cdot k_s $$

    A choice has no slope: no gradient reaches the queries and the keys.

    Args:
        q: (..., T, K) queries.
        k: (..., S, K) keys.
        v: (..., S, E) values.
        mask: bool, of a shape that expands to (..., T, S); True = may attend. None: everywhere.
        causal: as in `attention`.

    Returns:
        (..., T, E); zeros for a query that may attend to nothing. Of equal keys the first is taken.

    Raises:
        ValueError: as `attention`.

    Example:
        >>> k, v = torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[10.0], [20.0]])
        >>> hard_attention(torch.tensor([[0.4, 0.6]]), k, v)
        tensor([[20.]])

    Source: Xu et al. (2015), "Show, Attend and Tell", arXiv:1502.03044, section 4.1. Differs: the largest score is
    taken where the paper draws from the weights. Notebook: 07.
    """
    _check_attention(q, k, v, mask, None, 0.0, "math")
    scores, visible = attention_scores(q, k).detach(), _visible(mask, causal, q, k)
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    sees = scores.amax(-1, keepdim=True) > -torch.inf  # False: a query that may attend to nothing
    chosen = F.one_hot(scores.argmax(-1), k.shape[-2]) * sees  # (..., T, S)
    return chosen.to(v.dtype) @ v


def causal_mask(T, S=None, device=None):
    """Which keys a query may see when none may come after it.

    Args:
        T: number of queries.
        S: number of keys; None: T. The last query stands at the last key.
        device: where the mask shall be.

    Returns:
        (T, S) bool, True = may attend.

    Example:
        >>> causal_mask(2, 4).int()
        tensor([[1, 1, 1, 0],
                [1, 1, 1, 1]], dtype=torch.int32)

    Notebook: 07.
    """
    S = T if S is None else S
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def split_heads(x, num_heads):
    """Cut the width into heads, and put the heads before the positions.

    Args:
        x: (B, T, D).
        num_heads: H, a divisor of D.

    Returns:
        (B, H, T, K) with K = D / H, a view: head h holds the entries h K .. (h + 1) K - 1 of each vector.

    Raises:
        ValueError: if D is not a multiple of H.

    Example:
        >>> split_heads(torch.rand(2, 5, 12), 3).shape
        torch.Size([2, 3, 5, 4])

    Notebook: 07.
    """
    if num_heads < 1 or x.shape[-1] % num_heads:
        raise ValueError(f"a width of {x.shape[-1]} cannot be cut into {num_heads} heads of equal width")
    return x.unflatten(-1, (num_heads, -1)).transpose(1, 2)


def merge_heads(x):
    """Put the heads' vectors side by side again: the inverse of `split_heads`.

    Args:
        x: (B, H, T, K).

    Returns:
        (B, T, D) with D = H K.

    Example:
        >>> x = torch.rand(2, 5, 12)
        >>> torch.equal(merge_heads(split_heads(x, 3)), x)
        True

    Notebook: 07.
    """
    return x.transpose(1, 2).flatten(2)


# --- layers ---------------------------------------------------------------------


class MultiHeadAttention(nn.Module):
    r"""H attentions side by side, each on its own projections of width K = D / H.

    $$ \text{head}_h = \text{attention}(x_q W_h^Q, x_k W_h^K, x_v W_h^V), \qquad
       \text{out} = [\text{head}_1; \dots; \text{head}_H]\, W^O $$

    One softmax yields one mean; with H of them a position can look at H places for H reasons. The parameters have
    torch's names and layout: `in_proj_weight` (3 D, D) holds the projections of queries, keys and values, one above the
    other, and each of them the heads one above the other. So `load_state_dict` takes nn.MultiheadAttention's weights.
    Attention weights are computed apart, by `weights`, and only there.

    Args:
        embed_dim: D.
        num_heads: H, a divisor of D.
        dropout: share of the attention weights set to zero in training.
        bias: whether the four projections have biases.

    Raises:
        ValueError: if D is not a multiple of H, a size is below 1, or dropout outside [0, 1).

    Example:
        >>> layer = MultiHeadAttention(12, 3)
        >>> x = torch.rand(2, 5, 12)
        >>> layer(x, causal=True).shape, layer.weights(x).shape
        (torch.Size([2, 5, 12]), torch.Size([2, 3, 5, 5]))

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.2.2. Notebook: 07.
    """

    def __init__(self, embed_dim, num_heads, dropout=0.0, bias=True):
        super().__init__()
        if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
            raise ValueError(f"embed_dim must be a multiple of num_heads, got {embed_dim=} and {num_heads=}")
        _check_p("dropout", dropout)
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * embed_dim, embed_dim))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * embed_dim)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        nn.init.xavier_uniform_(self.in_proj_weight)
        if bias:
            nn.init.zeros_(self.out_proj.bias)

    def forward(self, query, key=None, value=None, mask=None, causal=False, position=None, impl="sdpa", cache=None):
        """Attend from every query to the keys.

        Args:
            query: (B, T, D).
            key: (B, S, D); None: the queries themselves (self-attention).
            value: (B, S, D); None: the keys.
            mask: bool, True = may attend: (B, S) which keys are real, or (B, T, S), or (B, H, T, S); sizes of 1 expand.
                nn.MultiheadAttention's masks mean the opposite.
            causal: True lets a query see no key after it, see `attention`.
            position: one of the schemes of `course_lib.positions`; None for none.
            impl: "sdpa" or "math", see `attention`.
            cache: of `course_lib.gpt`: keys and values of earlier tokens, which these are put behind and which the
                queries may see too (S counts them); None for none.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if a shape does not fit, the mask is not boolean, or as `attention`.
        """
        q, k, v, bias = self._project(query, key, value, position, cache)
        p = self.dropout if self.training else 0.0
        out = attention(q, k, v, _over_heads(mask, q, k), causal, bias, dropout_p=p, impl=impl)  # (B, H, T, K)
        return self.out_proj(merge_heads(out))

    def weights(self, query, key=None, mask=None, causal=False, position=None):
        """Where each head looks: the weights that `forward` uses, without dropout.

        Args:
            query: (B, T, D).
            key: (B, S, D); None: the queries themselves.
            mask: as in `forward`.
            causal: as in `forward`.
            position: as in `forward`.

        Returns:
            (B, H, T, S); each row adds up to 1, or is 0 where nothing may be attended to.

        Raises:
            ValueError: as `forward`.
        """
        q, k, _, bias = self._project(query, key, None, position)
        mask = _over_heads(mask, q, k)
        return attention_weights(attention_scores(q, k, bias), _visible(mask, causal, q, k))

    def _project(self, query, key, value, position, cache=None):
        """Queries (B, H, T, K), keys and values (B, H, S, K), and the bias of the position."""
        self._check(query=query, key=key, value=value)
        D, weight, bias = self.embed_dim, self.in_proj_weight, self.in_proj_bias
        if key is None and value is None:
            parts = F.linear(query, weight, bias).chunk(3, -1)  # one product for all three
        else:
            inputs = (query, query if key is None else key, key if value is None else value)
            rows = weight.split(D), (None,) * 3 if bias is None else bias.split(D)
            parts = map(F.linear, inputs, *rows)
        q, k, v = (split_heads(part, self.num_heads) for part in parts)
        past = 0 if cache is None else cache.length
        if position is not None:
            q, k = position.rotate(q, past + k.shape[-2] - q.shape[-2]), position.rotate(k, past)
        if cache is not None:
            k, v = cache.append(k, v)
        return q, k, v, None if position is None else position.bias(q.shape[-2], k.shape[-2])

    def _check(self, **inputs):
        """Inputs (B, length, D) of one batch, keys and values of one length."""
        shapes = {name: tuple(x.shape) for name, x in inputs.items() if x is not None}
        for name, shape in shapes.items():
            if len(shape) != 3 or shape[-1] != self.embed_dim or shape[0] != shapes["query"][0]:
                raise ValueError(f"{name} has shape {shape}, wanted ({shapes['query'][0]}, length, {self.embed_dim})")
        if "value" in shapes and shapes["value"] != shapes.get("key", shapes["query"]):
            raise ValueError(f"value has shape {shapes['value']}, the keys have {shapes.get('key', shapes['query'])}")


class AdditiveAttention(nn.Module):
    r"""Attention whose scores come from a network with one hidden layer.

    $$ a_{ts} = v^\top \tanh(W_q q_t + W_k k_s), \quad w_t = \mathrm{softmax}(a_t), \quad c_t = \sum_s w_{ts} v_s $$

    Queries and keys may have different widths. Our W_q, W_k, v are the paper's W_a, U_a, v_a; the values v_s are
    its annotations h_s, which serve as keys too.

    Args:
        query_size: Q, width of the queries.
        key_size: E, width of the keys.
        hidden_size: A, width of the hidden layer.

    Raises:
        ValueError: if a size is below 1.

    Example:
        >>> attention = AdditiveAttention(query_size=3, key_size=4, hidden_size=5)
        >>> keys = torch.rand(2, 7, 4)
        >>> context, weights = attention(torch.rand(2, 3), attention.project(keys), keys)
        >>> context.shape, weights.shape
        (torch.Size([2, 4]), torch.Size([2, 7]))

    Source: Bahdanau, Cho and Bengio (2015), arXiv:1409.0473, section 3.1 and appendix A.1.2. Notebook: 06.
    """

    def __init__(self, query_size, key_size, hidden_size):
        super().__init__()
        if min(query_size, key_size, hidden_size) < 1:
            raise ValueError(f"sizes must be at least 1, got {query_size=}, {key_size=}, {hidden_size=}")
        self.query = nn.Linear(query_size, hidden_size, bias=False)
        self.key = nn.Linear(key_size, hidden_size, bias=False)
        self.score = nn.Linear(hidden_size, 1, bias=False)

    def project(self, keys):
        """The part of the hidden layer that depends on the keys alone: computed once a sentence, used at every step.

        Args:
            keys: (B, S, E).

        Returns:
            (B, S, A).

        Raises:
            ValueError: if the keys do not have that shape.
        """
        if keys.ndim != 3 or keys.shape[-1] != self.key.in_features:
            raise ValueError(f"keys have shape {tuple(keys.shape)}, wanted (B, S, {self.key.in_features})")
        return self.key(keys)

    def forward(self, query, projected, values, mask=None):
        r"""Attend to the values.

        $$ c_t = \sum_s w_{ts} v_s $$

        Args:
            query: (B, Q) one query a sentence, or (B, T, Q) many.
            projected: (B, S, A) the keys, as `project` returns them.
            values: (B, S, E), any width E.
            mask: (B, S) bool, True = may attend; None: every key.

        Returns:
            context: (B, E) or (B, T, E).
            weights: (B, S) or (B, T, S); a sentence whose keys are all masked has zeros, and a context of zeros.

        Raises:
            ValueError: if a shape does not fit, or the mask is not boolean.
        """
        self._check(query, projected, values, mask)
        queries = query if query.ndim == 3 else query.unsqueeze(1)  # (B, T, Q)
        hidden = torch.tanh(self.query(queries).unsqueeze(2) + projected.unsqueeze(1))  # (B, T, S, A)
        scores = self.score(hidden).squeeze(-1)  # (B, T, S)
        weights = attention_weights(scores, None if mask is None else mask.unsqueeze(1))
        context = weights @ values  # (B, T, E)
        return (context, weights) if query.ndim == 3 else (context.squeeze(1), weights.squeeze(1))

    def _check(self, query, projected, values, mask):
        """Shapes that fit each other and the layer."""
        Q, A = self.query.in_features, self.key.out_features
        if query.ndim not in (2, 3) or query.shape[-1] != Q:
            raise ValueError(f"query has shape {tuple(query.shape)}, wanted (B, {Q}) or (B, T, {Q})")
        B = query.shape[0]
        if projected.ndim != 3 or projected.shape[0] != B or projected.shape[-1] != A:
            raise ValueError(f"projected keys have shape {tuple(projected.shape)}, wanted ({B}, S, {A}) from project()")
        S = projected.shape[1]
        if values.ndim != 3 or values.shape[:2] != (B, S):
            raise ValueError(f"values have shape {tuple(values.shape)}, wanted ({B}, {S}, E) as the keys")
        if mask is not None and mask.shape != (B, S):
            raise ValueError(f"mask has shape {tuple(mask.shape)}, wanted (B, S) = {(B, S)}")


# --- shared ---------------------------------------------------------------------


def _math(q, k, v, visible, bias, dropout_p):
    """The definition: weights, dropout, weighted mean."""
    weights = attention_weights(attention_scores(q, k, bias), visible)  # (..., T, S)
    if dropout_p > 0:
        weights = weights * keep_mask(weights.shape, dropout_p, q.device) / (1 - dropout_p)
    return weights @ v


class _DroppedAttention(torch.autograd.Function):
    """`_math` a few rows of the batch at a time, so that scores stay in the processor's cache and are never stored.

    The backward pass computes the weights again; what is kept is one bit a weight, stored as a byte: whether it
    was dropped. Types below float32 are computed in float32.
    """

    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, q, k, v, visible, bias, p):
        """As `_math`."""
        narrow, wide = q.dtype, torch.promote_types(q.dtype, torch.float32)
        q, k, v = (x.to(wide).contiguous() for x in (q, k, v))  # once, or each of the products would copy its part
        keep = keep_mask((*q.shape[:-1], k.shape[-2]), p, q.device)  # (..., T, S)
        rows = _rows(q, k, v, _lowered(visible, bias, wide), keep)
        out = torch.cat([weights.mul_(kept) @ v for weights, kept, _, _, v in rows]).div_(1 - p)
        if visible is not None:
            out.masked_fill_(~visible.any(-1, keepdim=True), 0.0)
        ctx.save_for_backward(q, k, v, visible, bias, keep, out)
        ctx.p = p
        return out.to(narrow)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad):
        """The gradients of the softmax and of the two products, by rows again."""
        q, k, v, visible, bias, keep, out = ctx.saved_tensors
        scale, grads, n = q.shape[-1] ** -0.5, [], _rows_at_once(keep)
        if visible is not None:
            grad = grad.masked_fill(~visible.any(-1, keepdim=True), 0.0)
        grad = grad.to(out.dtype)
        means = (grad * out).sum(-1, keepdim=True)  # of a row of the weights' gradient, under the weights
        parts = zip((grad / (1 - ctx.p)).split(n), means.split(n), strict=True)
        rows = _rows(q, k, v, _lowered(visible, bias, q.dtype), keep)
        for (g, mean), (weights, kept, q_part, k_part, v_part) in zip(parts, rows, strict=True):
            grad_scores = (g @ v_part.mT).mul_(kept).sub_(mean).mul_(weights)
            grad_v = weights.mul_(kept).mT @ g
            grad_bias = grad_scores if ctx.needs_input_grad[4] else grad_scores[:0]
            grads.append((grad_scores @ k_part * scale, grad_scores.mT @ q_part * scale, grad_v, grad_bias))
        grad_q, grad_k, grad_v, grad_bias = (torch.cat(part) for part in zip(*grads, strict=True))
        return (
            grad_q,
            grad_k,
            grad_v,
            None,
            grad_bias.sum_to_size(bias.shape) if ctx.needs_input_grad[4] else None,
            None,
        )


def _lowered(visible, bias, dtype):
    """The bias, with so low a number for masked keys that their weights are 0 if the query sees any other; or None."""
    if visible is None:
        return bias
    low = torch.zeros(visible.shape, dtype=dtype, device=visible.device)
    low.masked_fill_(~visible, torch.finfo(dtype).min / 2)
    return low if bias is None else bias + low


def _rows(q, k, v, added, keep):
    """A few rows at a time: (weights, keep as numbers, q, k, v) of each."""
    n = _rows_at_once(keep)
    biases = [None] * len(keep) if added is None else added.expand(keep.shape).split(n)
    for q_part, k_part, v_part, kept, bias in zip(*(x.split(n) for x in (q, k, v, keep)), biases, strict=False):
        weights = attention_scores(q_part, k_part, bias).softmax(-1)
        yield weights, kept.to(v.dtype), q_part, k_part, v_part


def _rows_at_once(keep):
    """As many rows of the batch as give a quarter of a million weights, a megabyte, at least one."""
    return max(1, 2**18 * len(keep) // keep.numel())


def _visible(mask, causal, q, k):
    """The mask and the causal one together, or None if everything may be seen."""
    if not causal or q.shape[-2] == 1:
        return mask
    causal = causal_mask(q.shape[-2], k.shape[-2], q.device)
    return causal if mask is None else mask & causal


def _over_heads(mask, q, k):
    """A mask (B, S), (B, T, S) or (B, H, T, S) as one that expands to the scores (B, H, T, S)."""
    if mask is None:
        return None
    (B, H, T, _), S = q.shape, k.shape[-2]
    forms = {2: (B, S), 3: (B, T, S), 4: (B, H, T, S)}
    wanted = forms.get(mask.ndim)
    if wanted is None or any(size not in (1, full) for size, full in zip(mask.shape, wanted, strict=True)):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, wanted (B, S) = {(B, S)}, or (B, T, S) = {(B, T, S)}, "
                         f"or (B, H, T, S) = {(B, H, T, S)}")  # fmt: skip
    return mask[:, None, None, :] if mask.ndim == 2 else mask[:, None] if mask.ndim == 3 else mask


def _check_attention(q, k, v, mask, bias, dropout_p, impl):
    """Queries, keys and values that fit each other, and a mask and a bias that fit them."""
    if impl not in IMPLS:
        raise ValueError(f"impl must be one of {', '.join(IMPLS)}, got {impl!r}")
    _check_p("dropout_p", dropout_p)
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if q.ndim < 2 or not q.ndim == k.ndim == v.ndim or not q.shape[:-2] == k.shape[:-2] == v.shape[:-2]:
        raise ValueError(f"q (..., T, K), k (..., S, K), v (..., S, E) must share their first axes, got {shapes}")
    if q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2] or q.numel() == 0 or v.numel() == 0:
        raise ValueError(f"wanted q (..., T, K), k (..., S, K), v (..., S, E), none of them empty, got {shapes}")
    if not q.dtype == k.dtype == v.dtype or not q.device == k.device == v.device:
        kinds = ", ".join(f"{name} {x.dtype} on {x.device}" for name, x in zip("qkv", (q, k, v), strict=True))
        raise ValueError(f"q, k and v must have one dtype and device, got {kinds}")
    scores = (*q.shape[:-1], k.shape[-2])
    if mask is not None:
        _check_mask(mask, scores, q.device)
    if bias is not None:
        if not bias.is_floating_point():
            raise ValueError(f"bias is added to the scores and must be floating, got {bias.dtype}; a mask is boolean")
        _check_expands("bias", bias, scores, q.device)


def _check_p(name, p):
    if not 0 <= p < 1:
        raise ValueError(f"{name} must be from 0 to below 1, got {p}")


def _check_mask(mask, scores, device):
    """A boolean mask that expands to the shape of the scores."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True = may attend, got {mask.dtype}")
    _check_expands("mask", mask, scores, device)


def _check_expands(name, x, scores, device):
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, the scores are on {device}")
    sizes = zip(reversed(x.shape), reversed(scores), strict=False)
    if x.ndim > len(scores) or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"{name} has shape {tuple(x.shape)}, which does not expand to {tuple(scores)}")
