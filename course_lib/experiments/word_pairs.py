"""Pairs of words as further entries of a vocabulary (chapters 09 and 12)."""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.text import PAD
from course_lib.transformer_models import TokenEmbedding


def pair_codes(ids, vocab_size):
    """(B, T) a number for each token and the one before it; before the first stands padding."""
    return F.pad(ids[:, :-1], (1, 0), value=PAD) * vocab_size + ids


def frequent_pairs(rows, vocab_size, least):
    """The numbers of the pairs that occur at least so often in the rows, sorted."""
    ids = torch.cat([F.pad(row, (0, 1), value=PAD) for row in rows])[None]  # each row starts after padding
    codes, counts = pair_codes(ids, vocab_size)[ids != PAD].unique(return_counts=True)
    return codes[counts >= least]


class PairEmbedding(TokenEmbedding):
    r"""Tokens to vectors that also know the token before.

    $$ x_t = \text{dropout}(\text{LayerNorm}(s \, (E[w_t] + E'[w_{t-1} w_t]) + p_t)) $$

    The table E' has a row for each frequent pair, and zeros for all others.

    Args:
        codes: (N,) int64, sorted: the pairs with a row, as `frequent_pairs` gives them.

    Source: Joulin et al. (2017), "Bag of Tricks for Efficient Text Classification", arXiv:1607.01759, section 2.2,
    without the hashing.
    """

    def __init__(self, vocab_size, d_model, codes, **options):
        super().__init__(vocab_size, d_model, **options)
        self.register_buffer("codes", codes)
        self.pairs = nn.Embedding(len(codes) + 1, d_model, padding_idx=0)

    def forward(self, ids, offset=0):
        """(B, T) ids to (B, T, D)."""
        x = (self.embedding(ids) + self.pairs(self.rows(ids))) * self.scale
        return self.dropout(self.norm(self.position.add(x, offset)))

    def rows(self, ids):
        """(B, T) the row of each token's pair, 0 if it has none."""
        codes = pair_codes(ids, self.embedding.num_embeddings)
        at = torch.searchsorted(self.codes, codes).clamp(max=len(self.codes) - 1)
        return torch.where(self.codes[at] == codes, at + 1, 0)
