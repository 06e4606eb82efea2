r"""Attention: for each query a weighted mean of values, the weights from how well the keys fit.

Read `attention_weights`, the softmax that leaves masked keys out; then `AdditiveAttention`, the layer with
which a decoder looks back at every word of the source.

Notebooks: 06, 07.
"""

import torch
from torch import nn


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
    _check_mask(mask, scores)
    weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1)
    return weights.masked_fill(~mask, 0.0)  # changes a fully masked row only: elsewhere exp gave 0 already


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


def _check_mask(mask, scores):
    """A boolean mask that expands to the scores."""
    if mask.dtype != torch.bool:
        raise ValueError(f"mask must be boolean, True = may attend, got {mask.dtype}")
    if mask.device != scores.device:
        raise ValueError(f"mask is on {mask.device}, the scores are on {scores.device}")
    sizes = zip(reversed(mask.shape), reversed(scores.shape), strict=False)
    if mask.ndim > scores.ndim or any(size not in (1, wanted) for size, wanted in sizes):
        raise ValueError(f"mask has shape {tuple(mask.shape)}, which does not expand to {tuple(scores.shape)}")
