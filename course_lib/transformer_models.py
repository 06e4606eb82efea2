"""Transformers for tasks: a classifier, a language model, a translator.

They read token ids, and `real` (B, T), True = a real token, where a batch is padded. `position` is a scheme of
`course_lib.positional`. `course_lib.generate` writes with `start` and `step` of `TransformerLM` and `Translator`.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import KVCache
from course_lib.functional import Dropout, combined_mask, padding_mask
from course_lib.positional import PositionScheme, in_attention, in_embeddings
from course_lib.utils.validate import check_choice, check_instance, check_positive, check_real, check_sizes, look_up


class TokenEmbedding(nn.Module):
    r"""Tokens to vectors that know their place.

    $$ x_t = \text{dropout}(s \, E[\text{id}_t] + p_t) $$

    The table E starts with entries of variance 1 / s^2, so that what is added to the positions has variance 1. With
    `scale` s = sqrt(D), the default, it can serve as output layer too. `norm=True` ends with a LayerNorm. Source:
    Vaswani et al. (2017), arXiv:1706.03762, sections 3.4 and 5.4.
    """

    def __init__(self, vocab_size, d_model, position=None, dropout=0.0, *, scale=None, norm=False):
        super().__init__()
        check_sizes(vocab_size=vocab_size, d_model=d_model)
        self.scale = d_model**0.5 if scale is None else scale
        check_positive(scale=self.scale)
        check_instance("position", PositionScheme() if position is None else position, PositionScheme)
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.position = PositionScheme() if position is None else position
        self.norm = nn.LayerNorm(d_model) if norm else nn.Identity()
        self.dropout = Dropout(dropout)

    def forward(self, ids, offset=0):
        """Embed tokens: ids (B, T) int64 to (B, T, D); the first stands at position `offset`."""
        x = look_up("ids", ids, self.embedding) * self.scale  # (B, T, D)
        return self.norm(self.dropout(self.position.add(x, offset)))

    def logits(self, x):
        """The table as output layer: (B, T, D) to (B, T, V)."""
        return F.linear(x, self.embedding.weight)


POOLS = ("mean", "max", "cls")


class TransformerClassifier(nn.Module):
    """Logits of the classes of a whole text: an encoder-style Transformer and one vector made of its outputs.

    `pool` is "mean" or "max" over the real tokens, or "cls": the output at a learned vector put before the first token,
    as in BERT. `dropout`, `scale` and `norm` are those of `TokenEmbedding`.

    >>> from course_lib.transformer import EncoderLayer, TransformerEncoder
    >>> model = TransformerClassifier(9, TransformerEncoder([EncoderLayer(12, 3, 20)]), num_classes=4)
    >>> ids = torch.tensor([[3, 1, 8], [2, 0, 0]])
    >>> model(ids, real=ids > 0).shape
    torch.Size([2, 4])
    """

    def __init__(
        self, vocab_size, encoder, num_classes=2, *, position=None, pool="mean", dropout=0.0, scale=None, norm=False
    ):
        super().__init__()
        check_sizes(num_classes=num_classes)
        check_choice("pool", pool, POOLS)
        check_instance("encoder", encoder, nn.Module)
        self.embedding = TokenEmbedding(vocab_size, encoder.d_model, position, dropout, scale=scale, norm=norm)
        self.encoder = with_position(encoder, position)
        self.output = nn.Linear(encoder.d_model, num_classes)
        self.pool = pool
        self.cls = nn.Parameter(torch.randn(encoder.d_model)) if pool == "cls" else None

    def forward(self, ids, real=None, mask=None):
        """Logits (B, C) of texts (B, T).

        `mask` broadcasts to (B, H, T, T) and is combined with `real`; with pool "cls" there are T + 1 positions, the
        learned vector first.
        """
        x, real = self.embed(ids, real)
        x = self.encoder(x, combined_mask(padding_mask(real), mask))  # (B, T, D)
        return self.output(self.pooled(x, real))

    def embed(self, ids, real=None):
        """Vectors and `real`, with the learned vector in front if there is one."""
        x = self.embedding(ids, offset=int(self.pool == "cls"))  # (B, T, D)
        position = self.embedding.position
        check_real("real", real, ids, first=in_embeddings(position) or (self.pool == "cls" and in_attention(position)))
        if self.pool != "cls":
            return x, real
        x = torch.cat([self.cls.expand(ids.shape[0], 1, -1), x], 1)  # (B, T + 1, D)
        return x, None if real is None else F.pad(real, (1, 0), value=True)

    def pooled(self, x, real=None):
        """One vector for a text: (B, T, D) to (B, D)."""
        if self.pool == "cls":
            return x[:, 0]
        real = torch.ones_like(x[..., :1], dtype=torch.bool) if real is None else real[..., None]  # (B, T, 1)
        if self.pool == "max":
            return x.masked_fill(~real, -torch.inf).amax(1)
        return x.masked_fill(~real, 0.0).sum(1) / real.sum(1)


class TransformerLM(nn.Module):
    """The next token's logits at every position: a decoder-only model, an encoder whose attention is causal.

    With `tied=True` the table of embeddings is the output layer too (Press and Wolf, 2017, arXiv:1608.05859), otherwise
    the output layer has its own weights.

    >>> from course_lib.transformer import EncoderLayer, TransformerEncoder
    >>> model = TransformerLM(9, TransformerEncoder([EncoderLayer(12, 3, 20)]))
    >>> model(torch.tensor([[3, 1, 8], [2, 2, 0]])).shape
    torch.Size([2, 3, 9])

    Source: Liu et al. (2018), "Generating Wikipedia by Summarizing Long Sequences", arXiv:1801.10198, section 4.2.3.
    """

    def __init__(self, vocab_size, encoder, *, position=None, dropout=0.0, tied=True):
        super().__init__()
        check_instance("encoder", encoder, nn.Module)
        self.embedding = TokenEmbedding(vocab_size, encoder.d_model, position, dropout)
        self.encoder = with_position(encoder, position)
        self.output = None if tied else nn.Linear(encoder.d_model, vocab_size, bias=False)
        self.vocab_size, self.max_len = vocab_size, self.embedding.position.max_len

    def forward(self, ids, real=None, mask=None, kv_caches=None):
        """Logits (B, T, V) of the token after each of (B, T).

        `mask` broadcasts to (B, H, T, T) and is combined with `real`. With `kv_caches` the ids follow those that were
        given with them before, without padding.
        """
        if real is not None and kv_caches is not None:
            raise ValueError("kv_caches with real: later tokens would attend to padding; give rows of one length")
        x = self.embedding(ids, offset=0 if kv_caches is None else kv_caches[0].length)  # (B, T, D)
        check_real("real", real, ids, first=in_embeddings(self.embedding.position))
        x = self.encoder(x, combined_mask(padding_mask(real), mask), causal=True, kv_caches=kv_caches)
        return self.embedding.logits(x) if self.output is None else self.output(x)

    def start(self, batch_size):
        """The state before the first token: an empty cache for each layer."""
        return {"kv_caches": empty_caches(self.encoder, batch_size)}

    def step(self, tokens, state):
        """Read tokens (B, T), those after the state's: the logits (B, V) of the next one, and the new state."""
        return self(tokens, **state)[:, -1], state


class Translator(nn.Module):
    """A Transformer from tokens to tokens: reads the source, writes the target.

    The target's embeddings are the output layer too; `position` serves both sides. Source: Vaswani et al. (2017),
    arXiv:1706.03762, figure 1 and section 3.4. Differs: two vocabularies, so the two tables of embeddings differ.
    """

    def __init__(self, source_size, target_size, transformer, *, position=None, dropout=0.0):
        super().__init__()
        self.transformer = with_position(transformer, position)
        self.source_embedding = TokenEmbedding(source_size, transformer.d_model, position, dropout)
        self.target_embedding = TokenEmbedding(target_size, transformer.d_model, position, dropout)
        self.vocab_size, self.max_len = target_size, self.target_embedding.position.max_len

    def forward(self, source, source_real, target_in):
        """Logits (B, T, V) under teacher forcing: those at t are for the word after `target_in` (B, T) at t."""
        return self.decode(target_in, self.encode(source, source_real), source_real)

    def encode(self, source, source_real=None):
        """The memory: one vector for each source token, (B, S) to (B, S, D)."""
        x = self.source_embedding(source)
        check_real("source_real", source_real, source, first=in_embeddings(self.source_embedding.position))
        return self.transformer.encoder(x, padding_mask(source_real))

    def decode(self, target_in, memory, source_real=None, kv_caches=None):
        """Logits (B, T, V) of the word after each target token, given the memory (B, S, D) from `encode`."""
        x = self.target_embedding(target_in, offset=0 if kv_caches is None else kv_caches[0].length)  # (B, T, D)
        x = self.transformer.decoder(x, memory, memory_mask=padding_mask(source_real), kv_caches=kv_caches)
        return self.target_embedding.logits(x)

    def start(self, source, source_real=None):
        """Read the source: the state before the first target word."""
        memory = self.encode(source, source_real)
        real = torch.ones_like(source, dtype=torch.bool) if source_real is None else source_real
        return {"memory": memory, "source_real": real, "kv_caches": empty_caches(self.transformer.decoder, len(source))}

    def step(self, tokens, state):
        """Read target words (B, T), those after the state's: the logits (B, V) of the next one, and the new state."""
        return self.decode(tokens, **state)[:, -1], state


# --- shared ---------------------------------------------------------------------


def with_position(stack, position):
    """The same stack; its self-attentions have the position scheme, if that is one that enters in attention."""
    check_instance("the stack of layers", stack, nn.Module)
    if in_attention(position):
        for part in stack.modules():
            if hasattr(part, "self_attn"):
                # The model owns the scheme: set past nn.Module, it has one name in the state_dict, not one a layer.
                object.__setattr__(part.self_attn, "position", position)
    return stack


def empty_caches(stack, batch_size, max_len=64):
    """A `KVCache` for the self-attention of each layer, with room for `max_len` tokens; more is made when needed."""
    caches = []
    for layer in stack.layers:
        heads, weight = layer.self_attn.num_heads, layer.self_attn.in_proj_weight
        caches.append(KVCache(batch_size, heads, max_len, stack.d_model // heads, weight.dtype, weight.device))
    return caches
