"""A well-known teaching notebook's Transformer for IMDB as it was: no padding mask anywhere (chapter 09)."""

import torch
import torch.nn.functional as F
from torch import nn


class TutorialEncoderLayer(nn.Module):
    """Post-LN encoder layer without a mask; q, k and v have no bias, and the feed-forward part no dropout."""

    def __init__(self, d_model, num_heads, dim_feedforward, dropout):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1 = nn.LayerNorm(d_model, eps=1e-6)
        self.norm2 = nn.LayerNorm(d_model, eps=1e-6)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        """(B, T, D) to (B, T, D)."""
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        weights = torch.softmax((q / q.shape[-1] ** 0.5) @ k.transpose(2, 3), dim=-1)  # (B, H, T, T)
        heads = self.dropout(weights) @ v
        x = self.norm1(x + self.out_proj(heads.transpose(1, 2).contiguous().flatten(2)))
        return self.norm2(x + self.linear2(F.relu(self.linear1(x))))

    def _heads(self, x):
        """(B, T, D) to (B, H, T, D / H)."""
        return x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)


class TutorialClassifier(nn.Module):
    r"""The tutorial's classifier of reviews: padding takes part in attention and in the maximum.

    $$ \text{logits} = W \max_t \text{layer}(\text{LayerNorm}(\text{dropout}(e_t + p_t))) + b $$

    Args:
        dropout: fraction of the attention weights, and of the embeddings' entries, set to zero in training.

    Dropout is `nn.Dropout` here and nowhere else in the course: it is faster on a CPU than drawing from
    `torch.rand`, and the baseline of a timing must not be slowed down.
    """

    def __init__(self, vocab_size, d_model=32, num_heads=2, dim_feedforward=128, dropout=0.1, max_len=1000):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, d_model, padding_idx=1)
        angles = torch.arange(max_len)[:, None] / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
        table = torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(1)  # sine and cosine take turns
        self.register_buffer("positions", table, persistent=False)
        self.dropout = nn.Dropout(dropout)
        self.norm = nn.LayerNorm(d_model, eps=1e-12)
        self.layer = TutorialEncoderLayer(d_model, num_heads, dim_feedforward, dropout)
        self.output = nn.Linear(d_model, 2)

    def forward(self, ids, real=None):
        """(B, T) ids to logits (B, 2); `real` is not used."""
        x = self.norm(self.dropout(self.embedding(ids) + self.positions[: ids.shape[1]]))
        return self.output(self.layer(x).max(dim=1).values)
