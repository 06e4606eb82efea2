"""What several of the taught modules share: masks, dropout, and two ways to save work on a CPU.

A mask is boolean, True = may attend, and broadcasts to the scores (B, H, T, S) of every head, as in torch's
`scaled_dot_product_attention`. `padding_mask`, `causal_mask` and `combined_mask` make one. `attention_with_dropout` and
`skip_padding` change the time that a CPU needs and nothing else; no chapter needs them.
"""

import functools

import torch
from torch import nn

from course_lib.utils.validate import check_expands, check_probability, check_sizes, check_tensor

# --- masks ----------------------------------------------------------------------


def padding_mask(real):
    """Every query may attend to the real tokens: (B, S) bool to (B, 1, 1, S), None (all are real) to None.

    >>> padding_mask(torch.tensor([[True, True, False]])).shape
    torch.Size([1, 1, 1, 3])
    """
    if real is None:
        return None
    check_tensor("real", real, ("B", "S"), dtype=torch.bool)
    return real[:, None, None, :]


def causal_mask(T, S=None, device=None):
    """Each of T queries may attend to those of S keys (T if None) that do not come after it: (T, S) bool.

    The last query stands at the last key: with T < S, as with a cache of earlier keys, query t is at S - T + t.

    >>> causal_mask(2, 4).int()
    tensor([[1, 1, 1, 0],
            [1, 1, 1, 1]], dtype=torch.int32)
    """
    S = T if S is None else S
    check_sizes(least=0, T=T, S=S)
    return torch.ones(T, S, dtype=torch.bool, device=device).tril(S - T)


def combined_mask(*masks):
    """What all the masks allow; None stands for a mask that allows everything."""
    masks = [mask for mask in masks if mask is not None]
    for mask in masks:
        check_expands("mask", mask, None, torch.bool)
    return functools.reduce(torch.logical_and, masks) if masks else None


def attended_keys(mask):
    """Which keys any query of any head may attend to, (B, S) or (S,): a key that none may attend to is padding."""
    for _ in range(min(2, mask.ndim - 1)):  # queries, then heads
        mask = mask.any(-2)
    return mask


# --- dropout --------------------------------------------------------------------


def dropout_mask(shape, p, device=None):
    """Which entries dropout keeps: True with probability 1 - p, p rounded to a multiple of 1 / 65,536.

    Raw integers of the generator are compared with a threshold. They are the same on every CPU, and one draw
    of 64 bits gives four entries.
    """
    check_probability(p=p)
    if torch.compiler.is_compiling():  # it cannot compile the draws below, and draws others on every machine
        return torch.rand(shape, device=device) >= p
    count = torch.Size(shape).numel()
    draws = torch.empty((count + 3) // 4, dtype=torch.int64, device=device)
    try:
        draws.random_(-(2**63), None)
    except RuntimeError:  # inside `torch.vmap`, which draws nothing in place
        draws = torch.randint(-(2**63), 2**63 - 1, draws.shape, device=device)
    threshold = min(round(p * 2**16), 2**16 - 1) - 2**15
    return (draws.view(torch.int16)[:count] >= threshold).view(shape)


def dropout(x, p, training=True):
    r"""Set each entry to zero with probability p and rescale the others, so that the expectation stays.

    $$ y = x \odot m / (1 - p), \quad P(m = 0) = p $$

    Differs: `torch.nn.functional.dropout` draws other numbers on an Intel CPU than on an AMD or an Apple one;
    `dropout_mask` draws the same on every CPU, and faster.

    >>> sorted(set(dropout(torch.ones(100), 0.75).tolist()))
    [0.0, 4.0]

    Source: Srivastava et al. (2014), "Dropout", section 4.
    """
    check_probability(dropout=p)
    if not training or p == 0:
        return x
    keep = dropout_mask(x.shape, p, x.device).to(x.dtype)
    return x * keep.mul_(1 / (1 - p))  # scaling the constant saves a pass over x, and one in the backward pass


class Dropout(nn.Dropout):
    """`dropout` as a layer: nothing in evaluation."""

    def __init__(self, p=0.5):
        check_probability(dropout=p)
        super().__init__(p)

    def forward(self, x):
        """The entries of x, some of them zero in training."""
        return dropout(x, self.p) if self.training else x


# --- less work on a CPU, the same numbers -------------------------------------------


def attention_with_dropout(q, k, v, mask, bias, p):
    """`attention` with dropout of the weights on a CPU, where torch has no kernel for it: less memory, and faster.

    A few rows of the batch at a time, so that the scores stay in the processor's cache and are never stored; the
    backward pass computes them again. The draws are those of `dropout`; types below float32 are computed in float32.
    """
    special = torch.compiler.is_compiling() or torch._C._functorch.is_functorch_wrapped_tensor(q)
    if special or q.ndim == 2 or q.numel() == 0:
        return _plain_attention(q, k, v, mask, bias, dropout_mask((*q.shape[:-1], k.shape[-2]), p, q.device), p)
    return _AttentionWithDropout.apply(q, k, v, mask, bias, p)


class _AttentionWithDropout(torch.autograd.Function):
    @staticmethod
    @torch.autocast("cpu", enabled=False)
    def forward(ctx, q, k, v, mask, bias, p):
        keep = dropout_mask((*q.shape[:-1], k.shape[-2]), p, q.device)  # (..., T, S)
        parts = _parts(*_wide(q, k, v), mask, bias, keep)
        out = torch.cat([weights.mul_(kept) @ v for weights, kept, _, _, v in parts]).div_(1 - p)
        if mask is not None:
            out.masked_fill_(~mask.any(-1, keepdim=True), 0.0)
        ctx.save_for_backward(q, k, v, mask, bias, keep, out)
        ctx.p = p
        return out.to(q.dtype)

    @staticmethod
    def backward(ctx, grad):
        q, k, v, mask, bias, keep, out = ctx.saved_tensors
        inputs = (q, k, v) if bias is None else (q, k, v, bias)
        if torch.is_grad_enabled():  # create_graph=True: through operations that can be differentiated again
            wanted = [x for x in inputs if x.requires_grad]
            out = _plain_attention(q, k, v, mask, bias, keep, ctx.p)
            found = iter(torch.autograd.grad(out, wanted, grad, create_graph=True))
            grads = [next(found) if x.requires_grad else None for x in inputs]
            return (*grads[:3], None, grads[3] if bias is not None else None, None)
        if mask is not None:
            grad = grad.masked_fill(~mask.any(-1, keepdim=True), 0.0)
        grad = grad.to(out.dtype)
        means = (grad * out).sum(-1, keepdim=True)  # of a row of the weights' gradient, under the weights
        n, scale, grads = _rows_at_once(keep), q.shape[-1] ** -0.5, []
        parts = _parts(*_wide(q, k, v), mask, bias, keep)
        for g, mean, (weights, kept, q_part, k_part, v_part) in zip(
            (grad / (1 - ctx.p)).split(n), means.split(n), parts, strict=True
        ):
            grad_scores = (g @ v_part.mT).mul_(kept).sub_(mean).mul_(weights)
            grad_v = weights.mul_(kept).mT @ g
            grad_bias = grad_scores if ctx.needs_input_grad[4] else grad_scores[:0]
            grads.append((grad_scores @ k_part * scale, grad_scores.mT @ q_part * scale, grad_v, grad_bias))
        grad_q, grad_k, grad_v, grad_bias = (torch.cat(part) for part in zip(*grads, strict=True))
        grad_bias = grad_bias.sum_to_size(bias.shape) if ctx.needs_input_grad[4] else None
        return grad_q, grad_k, grad_v, None, grad_bias, None


def _wide(*tensors):
    """At least float32, and contiguous: once, or each of the products would copy its part."""
    return [x.to(torch.promote_types(x.dtype, torch.float32)).contiguous() for x in tensors]


def _added(mask, bias, dtype):
    """The bias, with so low a number for masked keys that their weights are 0 if the query sees any other; or None."""
    if mask is None:
        return bias
    low = torch.zeros(mask.shape, dtype=dtype, device=mask.device)
    low.masked_fill_(~mask, torch.finfo(dtype).min / 2)
    return low if bias is None else bias + low


def _parts(q, k, v, mask, bias, keep):
    """A few rows at a time: (weights, keep as numbers, q, k, v) of each."""
    n, added = _rows_at_once(keep), _added(mask, bias, q.dtype)
    biases = [None] * len(keep) if added is None else added.expand(keep.shape).split(n)
    for q_part, k_part, v_part, kept, bias in zip(*(x.split(n) for x in (q, k, v, keep)), biases, strict=False):
        scores = q_part * q.shape[-1] ** -0.5 @ k_part.mT
        weights = (scores if bias is None else scores + bias).softmax(-1)
        yield weights, kept.to(v.dtype), q_part, k_part, v_part


def _rows_at_once(keep):
    """As many rows of the batch as give a quarter of a million weights, a megabyte, at least one."""
    return max(1, 2**18 * len(keep) // keep.numel())


def _plain_attention(q, k, v, mask, bias, keep, p):
    """The same at once, given which weights are kept."""
    narrow, (q, k, v) = q.dtype, _wide(q, k, v)
    added, scores = _added(mask, bias, q.dtype), q * q.shape[-1] ** -0.5 @ k.mT
    weights = (scores if added is None else scores + added).softmax(-1) * keep / (1 - p)
    weights = weights if mask is None else weights.masked_fill(~mask, 0.0)
    return (weights @ v).to(narrow)


def skip_padding(forward):
    """Decorate the `forward` of a stack: without gradients, on a CPU, columns of padding are not computed.

    The batch is cut into parts of 8 rows of similar lengths, each as wide as its longest row, where the mask is one of
    `padding_mask`, there is no cache, and no hook would see the parts.
    """

    @functools.wraps(forward)
    def skipping(self, x, mask=None, causal=False, kv_caches=None):
        whole = mask is None or torch.compiler.is_compiling() or torch.is_grad_enabled() or not torch.is_tensor(x)
        if (
            whole
            or x.device.type != "cpu"
            or x.numel() == 0
            or mask.shape != (len(x), 1, 1, x.shape[1])
            or kv_caches is not None
            or _hooked(self)
        ):
            return forward(self, x, mask, causal, kv_caches)
        T = x.shape[1]
        ends = (mask[:, 0, 0] * torch.arange(1, T + 1)).amax(1)  # (B,) where padding begins
        order, parts = ends.argsort(), []
        for rows in order.split(8):
            end = max(1, int(ends[rows].max()))
            part = forward(self, x[rows, :end], mask[rows, :, :, :end], causal)
            parts.append(nn.functional.pad(part, (0, 0, 0, T - end)))
        return torch.cat(parts)[order.argsort()]

    return skipping


def _hooked(model):
    """Whether somebody looks at what a part of the model is given or gives."""
    return any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
