r"""The Transformer: attention and a feed-forward network, added to what they read, N times.

Read `RESIDUALS`, three ways to add a sublayer; `EncoderLayer` and `DecoderLayer`, whose `forward` is their figure;
the stacks `TransformerEncoder` and `TransformerDecoder`, and `Transformer`, which joins them. These work on vectors and
take the weights of torch.nn's modules of the same names. Then the models, on tokens: `TokenEmbedding` below,
`TransformerClassifier`, `TransformerLM` and `Translator` above.

Positions are one of the schemes of `course_lib.positions` (or None). A model owns it and hands it down: it enters the
embeddings, or queries and keys, or scores, whichever its kind is.

Notebooks: 09 and later ones.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import MultiHeadAttention
from course_lib.positions import NoPositions
from course_lib.rnn import dropout

# --- residual connections -------------------------------------------------------


def post_ln(x, sublayer, norm):
    r"""Add, then normalise: $x \leftarrow \text{norm}(x + f(x))$.

    Args:
        x: (B, T, D).
        sublayer: f, a function (B, T, D) to (B, T, D).
        norm: nn.LayerNorm.

    Returns:
        (B, T, D).

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.1. Notebooks: 09, 11.
    """
    return norm(x + sublayer(x))


def pre_ln(x, sublayer, norm):
    r"""Normalise what the sublayer reads, add to x as it is: $x \leftarrow x + f(\text{norm}(x))$.

    Args:
        x: (B, T, D).
        sublayer: f, a function (B, T, D) to (B, T, D).
        norm: nn.LayerNorm.

    Returns:
        (B, T, D).

    Source: Xiong et al. (2020), "On Layer Normalization in the Transformer Architecture", arXiv:2002.04745, table 1.
    Notebooks: 09, 11.
    """
    return x + sublayer(norm(x))


def rezero(x, sublayer, scale):
    r"""Add with a learned weight that starts at zero, without normalising: $x \leftarrow x + \alpha f(x)$.

    Args:
        x: (B, T, D).
        sublayer: f, a function (B, T, D) to (B, T, D).
        scale: `Scale`.

    Returns:
        (B, T, D).

    Source: Bachlechner et al. (2021), "ReZero is All You Need", arXiv:2003.04887, section 5. Notebooks: 09, 11.
    """
    return x + scale(sublayer(x))


class Scale(nn.Module):
    r"""Multiplication by one learned number that starts at zero: $\alpha x$.

    Source: Bachlechner et al. (2021), arXiv:2003.04887, equation 2. Notebook: 11.
    """

    def __init__(self):
        super().__init__()
        self.alpha = nn.Parameter(torch.zeros(()))

    def forward(self, x):
        """Scale x.

        Args:
            x: tensor of any shape.

        Returns:
            tensor of the same shape.
        """
        return self.alpha * x


RESIDUALS = {"post-ln": post_ln, "pre-ln": pre_ln, "rezero": rezero}

# --- layers ---------------------------------------------------------------------


class EncoderLayer(nn.Module):
    r"""Self-attention, then a feed-forward network, each added to what it reads.

    $$ x \leftarrow \text{norm}_1(x + \text{attention}(x, x, x)), \qquad
       x \leftarrow \text{norm}_2(x + \text{relu}(x W_1^\top + b_1) W_2^\top + b_2) $$

    (Post-LN; `residual` names the other forms.) With `causal=True` it is the layer of a decoder-only model. Parameters
    have the names of nn.TransformerEncoderLayer, whose weights it takes.

    Args:
        d_model: D.
        nhead: H, a divisor of D.
        dim_feedforward: F.
        dropout: share of the entries set to zero in training: of each sublayer's output and of the hidden layer.
        attention_dropout: share of the attention weights set to zero in training; None: as `dropout`.
        hidden_dropout: share of the hidden layer's entries set to zero in training; None: as `dropout`. BERT and GPT
            drop none of them.
        residual: "post-ln", "pre-ln" or "rezero", see `RESIDUALS`.
        activation: of the hidden layer, such as F.relu or F.gelu.

    Raises:
        ValueError: if D is not a multiple of H, a size is below 1, a dropout outside [0, 1), or `residual` unknown.

    Example:
        >>> EncoderLayer(12, 3, 20)(torch.rand(2, 5, 12)).shape
        torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, sections 3.1 and 3.3, equation 2. Differs: dropout of the weights
    and of the hidden layer too, as in the authors' code and in torch. Notebook: 09.
    """

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward,
        dropout=0.1,
        *,
        attention_dropout=None,
        hidden_dropout=None,
        residual="post-ln",
        activation=F.relu,
    ):
        super().__init__()
        _check_layer(dim_feedforward, dropout, residual)
        self.d_model, self.dropout = d_model, dropout
        self.hidden_dropout = dropout if hidden_dropout is None else hidden_dropout
        _check_dropout(self.hidden_dropout)
        self.residual, self.activation = RESIDUALS[residual], activation
        self.self_attn = MultiHeadAttention(d_model, nhead, dropout if attention_dropout is None else attention_dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2 = _norms(2, d_model, residual)

    def forward(self, x, mask=None, causal=False, position=None, impl="sdpa", cache=None):
        """One layer.

        Args:
            x: (B, T, D).
            mask: bool, True = may attend: (B, T) real tokens, or (B, T, T); see `MultiHeadAttention`.
            causal: True lets no position see a later one.
            position: of `course_lib.positions`, or None.
            impl: "sdpa" or "math", see `attention`.
            cache: the keys and values of earlier tokens, see `MultiHeadAttention`.

        Returns:
            (B, T, D).
        """

        def attend(x):
            found = self.self_attn(x, mask=mask, causal=causal, position=position, impl=impl, cache=cache)
            return self._drop(found)

        x = self.residual(x, attend, self.norm1)
        return self.residual(x, self.feed_forward, self.norm2)

    def feed_forward(self, x):
        """The same small network at every position.

        Args:
            x: (B, T, D).

        Returns:
            (B, T, D).
        """
        hidden = dropout(self.activation(self.linear1(x)), self.hidden_dropout, self.training)  # (B, T, F)
        return self._drop(self.linear2(hidden))

    def weights(self, x, mask=None, causal=False, position=None):
        """Where each head looks, given what the layer reads.

        Args:
            x: (B, T, D).
            mask: as in `forward`.
            causal: as in `forward`.
            position: as in `forward`.

        Returns:
            (B, H, T, T).
        """
        return _weights_within(self, self.self_attn, x, self.norm1, None, mask, causal, position)

    def _drop(self, x):
        return dropout(x, self.dropout, self.training)


class DecoderLayer(nn.Module):
    r"""Self-attention over what is written, cross-attention to what was read, a feed-forward network.

    $$ x \leftarrow \text{norm}_1(x + \text{attention}(x, x, x)), \quad
       x \leftarrow \text{norm}_2(x + \text{attention}(x, m, m)), \quad
       x \leftarrow \text{norm}_3(x + \text{ff}(x)) $$

    In the cross-attention the queries come from the decoder, keys and values from the memory m, the encoder's output.
    Parameters have the names of nn.TransformerDecoderLayer, whose weights it takes.

    Args:
        d_model: D.
        nhead: H, a divisor of D.
        dim_feedforward: F.
        dropout: share of the entries set to zero in training, see `EncoderLayer`.
        attention_dropout: share of the attention weights set to zero in training; None: as `dropout`.
        residual: "post-ln", "pre-ln" or "rezero", see `RESIDUALS`.
        activation: of the hidden layer, such as F.relu or F.gelu.

    Raises:
        ValueError: as `EncoderLayer`.

    Example:
        >>> DecoderLayer(12, 3, 20)(torch.rand(2, 5, 12), torch.rand(2, 7, 12)).shape
        torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.1. Notebook: 09.
    """

    def __init__(
        self,
        d_model,
        nhead,
        dim_feedforward,
        dropout=0.1,
        *,
        attention_dropout=None,
        residual="post-ln",
        activation=F.relu,
    ):
        super().__init__()
        _check_layer(dim_feedforward, dropout, residual)
        self.d_model, self.dropout, self.hidden_dropout = d_model, dropout, dropout
        self.residual, self.activation = RESIDUALS[residual], activation
        weight_dropout = dropout if attention_dropout is None else attention_dropout
        self.self_attn = MultiHeadAttention(d_model, nhead, weight_dropout)
        self.multihead_attn = MultiHeadAttention(d_model, nhead, weight_dropout)
        self.linear1 = nn.Linear(d_model, dim_feedforward)
        self.linear2 = nn.Linear(dim_feedforward, d_model)
        self.norm1, self.norm2, self.norm3 = _norms(3, d_model, residual)

    feed_forward = EncoderLayer.feed_forward
    _drop = EncoderLayer._drop

    def forward(self, x, memory, mask=None, memory_mask=None, causal=True, position=None, impl="sdpa"):
        """One layer.

        Args:
            x: (B, T, D).
            memory: (B, S, D), the output of the encoder's last layer.
            mask: bool, True = may attend: (B, T) real target tokens, or (B, T, T).
            memory_mask: bool, True = may attend: (B, S) real source tokens, or (B, T, S).
            causal: True lets no position see a later one of its own sequence.
            position: of `course_lib.positions`, or None; enters the self-attention alone.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, T, D).
        """

        def attend(x):
            return self._drop(self.self_attn(x, mask=mask, causal=causal, position=position, impl=impl))

        def attend_to_memory(x):
            return self._drop(self.multihead_attn(x, memory, mask=memory_mask, impl=impl))

        x = self.residual(x, attend, self.norm1)
        x = self.residual(x, attend_to_memory, self.norm2)
        return self.residual(x, self.feed_forward, self.norm3)

    def weights(self, x, memory, mask=None, memory_mask=None, causal=True, position=None):
        """Where each head looks, given what the layer reads.

        Args:
            x: (B, T, D).
            memory: (B, S, D).
            mask: as in `forward`.
            memory_mask: as in `forward`.
            causal: as in `forward`.
            position: as in `forward`.

        Returns:
            own: (B, H, T, T) of the self-attention.
            cross: (B, H, T, S) of the attention to the memory.
        """
        own = _weights_within(self, self.self_attn, x, self.norm1, None, mask, causal, position)

        def attend(x):
            return self.self_attn(x, mask=mask, causal=causal, position=position)

        x = self.residual(x, attend, self.norm1)
        return own, _weights_within(self, self.multihead_attn, x, self.norm2, memory, memory_mask, False, None)


# --- stacks ---------------------------------------------------------------------


class TransformerEncoder(nn.Module):
    r"""N encoder layers, one after the other: $x \leftarrow \text{layer}_n(x)$.

    Args:
        layers: list of N `EncoderLayer` of one width, each with its own weights.
        norm: nn.LayerNorm at the end, which Pre-LN needs, or None.

    Raises:
        ValueError: if there are no layers, two of them are the same object, or their widths differ.

    Example:
        >>> encoder = TransformerEncoder([EncoderLayer(12, 3, 20) for _ in range(2)])
        >>> encoder(torch.rand(2, 5, 12)).shape
        torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.1; the last norm: Xiong et al. (2020), arXiv:2002.04745,
    table 1. Notebook: 09.
    """

    def __init__(self, layers, norm=None):
        super().__init__()
        self.layers, self.norm = _stack(layers), norm
        self.d_model = self.layers[0].d_model

    def forward(self, x, mask=None, causal=False, position=None, impl="sdpa", caches=None):
        """All layers.

        Args:
            x: (B, T, D).
            mask: bool, True = may attend: (B, T) real tokens, or (B, T, T); see `MultiHeadAttention`.
            causal: True lets no position see a later one.
            position: of `course_lib.positions`, or None; its part that is added belongs to the embeddings.
            impl: "sdpa" or "math", see `attention`.
            caches: list of N, one a layer: the keys and values of earlier tokens; takes no mask. None for none.

        Returns:
            (B, T, D); 0 where a mask (B, T) is False.

        Raises:
            ValueError: if there are caches and a mask, or not one cache a layer; and as `MultiHeadAttention`.
        """
        if caches is not None:
            return self._after(x, caches, mask, causal, position, impl)
        if mask is not None and mask.shape == x.shape[:2] and not torch.is_grad_enabled():
            return self._by_length(x, mask, causal, position, impl)
        return self._all_rows(x, mask, causal, position, impl)

    def _all_rows(self, x, mask, causal, position, impl):
        """The definition."""
        for layer in self.layers:
            x = layer(x, mask, causal, position, impl)
        return _finish(x, self.norm, mask)

    def _after(self, x, caches, mask, causal, position, impl):
        """The same for tokens that follow those in the caches."""
        if mask is not None or len(caches) != len(self.layers):
            given = "a mask" if mask is not None else f"{len(caches)} caches for {len(self.layers)} layers"
            raise ValueError(f"caches, one a layer, go without a mask: got {given}")
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer(x, None, causal, position, impl, cache)
        return _finish(x, self.norm, None)

    def _by_length(self, x, mask, causal, position, impl, rows=8):
        """The same without work on columns that are padding: a few rows of similar lengths at a time."""
        last = (mask * torch.arange(1, mask.shape[1] + 1, device=mask.device)).amax(1)  # (B,) where padding begins
        order, parts = last.argsort(), []
        for chosen in order.split(rows):
            T = max(1, int(last[chosen].max()))
            part = self._all_rows(x[chosen, :T], mask[chosen, :T], causal, position, impl)
            parts.append(F.pad(part, (0, 0, 0, x.shape[1] - T)))
        return torch.cat(parts)[order.argsort()]

    def weights(self, x, mask=None, causal=False, position=None):
        """Where each head of each layer looks.

        Args:
            x: (B, T, D).
            mask: as in `forward`.
            causal: as in `forward`.
            position: as in `forward`.

        Returns:
            list of N tensors (B, H, T, T).
        """
        found = []
        for layer in self.layers:
            found.append(layer.weights(x, mask, causal, position))
            x = layer(x, mask, causal, position)
        return found


class TransformerDecoder(nn.Module):
    r"""N decoder layers; each looks at the same memory: $x \leftarrow \text{layer}_n(x, m)$.

    Args:
        layers: list of N `DecoderLayer` of one width, each with its own weights.
        norm: nn.LayerNorm at the end, which Pre-LN needs, or None.

    Raises:
        ValueError: as `TransformerEncoder`.

    Example:
        >>> decoder = TransformerDecoder([DecoderLayer(12, 3, 20) for _ in range(2)])
        >>> decoder(torch.rand(2, 5, 12), torch.rand(2, 7, 12)).shape
        torch.Size([2, 5, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, section 3.1. Notebook: 09.
    """

    def __init__(self, layers, norm=None):
        super().__init__()
        self.layers, self.norm = _stack(layers), norm
        self.d_model = self.layers[0].d_model

    def forward(self, x, memory, mask=None, memory_mask=None, causal=True, position=None, impl="sdpa"):
        """All layers.

        Args:
            x: (B, T, D).
            memory: (B, S, D), the encoder's output.
            mask: bool, True = may attend: (B, T) real target tokens, or (B, T, T).
            memory_mask: bool, True = may attend: (B, S) real source tokens, or (B, T, S).
            causal: True lets no position see a later one of its own sequence.
            position: of `course_lib.positions`, or None.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, T, D); 0 where a mask (B, T) is False.
        """
        for layer in self.layers:
            x = layer(x, memory, mask, memory_mask, causal, position, impl)
        return _finish(x, self.norm, mask)

    def weights(self, x, memory, mask=None, memory_mask=None, causal=True, position=None):
        """Where each head of each layer looks.

        Args:
            x: (B, T, D).
            memory: (B, S, D).
            mask: as in `forward`.
            memory_mask: as in `forward`.
            causal: as in `forward`.
            position: as in `forward`.

        Returns:
            list of N pairs: (B, H, T, T) of the self-attention, (B, H, T, S) of the attention to the memory.
        """
        found = []
        for layer in self.layers:
            found.append(layer.weights(x, memory, mask, memory_mask, causal, position))
            x = layer(x, memory, mask, memory_mask, causal, position)
        return found


class Transformer(nn.Module):
    """An encoder and a decoder on vectors. Takes the weights of nn.Transformer.

    Args:
        encoder: `TransformerEncoder`.
        decoder: `TransformerDecoder` of the same width.

    Raises:
        ValueError: if the widths differ.

    Example:
        >>> encoder = TransformerEncoder([EncoderLayer(12, 3, 20) for _ in range(2)])
        >>> decoder = TransformerDecoder([DecoderLayer(12, 3, 20) for _ in range(4)])
        >>> Transformer(encoder, decoder)(torch.rand(2, 5, 12), torch.rand(2, 7, 12)).shape
        torch.Size([2, 7, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, figure 1. Notebook: 09.
    """

    def __init__(self, encoder, decoder):
        super().__init__()
        if encoder.d_model != decoder.d_model:
            raise ValueError(f"the encoder's width is {encoder.d_model}, the decoder's {decoder.d_model}")
        self.encoder, self.decoder = encoder, decoder
        self.d_model = encoder.d_model

    def forward(
        self,
        source,
        target,
        source_mask=None,
        target_mask=None,
        memory_mask=None,
        causal=True,
        position=None,
        impl="sdpa",
    ):
        """Read the source, then compute all positions of the target at once.

        Args:
            source: (B, S, D).
            target: (B, T, D).
            source_mask: bool, True = may attend: (B, S) real source tokens, or (B, S, S).
            target_mask: bool, True = may attend: (B, T) real target tokens, or (B, T, T).
            memory_mask: bool, True = may attend: (B, S) or (B, T, S), which source positions the target may look at.
                None: as `source_mask` if that is (B, S).
            causal: True lets no target position see a later one.
            position: of `course_lib.positions`, or None.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, T, D).
        """
        memory = self.encoder(source, source_mask, position=position, impl=impl)
        if memory_mask is None and source_mask is not None and source_mask.ndim == 2:
            memory_mask = source_mask
        return self.decoder(target, memory, target_mask, memory_mask, causal, position, impl)


# --- models ---------------------------------------------------------------------


class TokenEmbedding(nn.Module):
    r"""Tokens to vectors that know their place.

    $$ x_t = \text{dropout}(s \, E[\text{id}_t] + p_t) $$

    The table E starts with entries of variance 1 / s^2, so that what is added to the positions has variance 1.

    Args:
        vocab_size: V.
        d_model: D.
        position: of `course_lib.positions`, or None.
        dropout: share of the entries set to zero in training.
        scale: s; None: the square root of D, with which the table can serve as output layer too.
        norm: True ends with a LayerNorm, as BERT and some encoders do.

    Raises:
        ValueError: if a size is below 1, `scale` is not above 0, or dropout outside [0, 1).

    Example:
        >>> TokenEmbedding(9, 12)(torch.tensor([[3, 1, 8]])).shape
        torch.Size([1, 3, 12])

    Source: Vaswani et al. (2017), arXiv:1706.03762, sections 3.4 and 5.4. Notebook: 09.
    """

    def __init__(self, vocab_size, d_model, position=None, dropout=0.0, *, scale=None, norm=False):
        super().__init__()
        _check_sizes(vocab_size=vocab_size, d_model=d_model)
        _check_dropout(dropout)
        self.scale = d_model**0.5 if scale is None else scale
        if not self.scale > 0:
            raise ValueError(f"scale must be above 0, got {scale}")
        self.embedding = nn.Embedding(vocab_size, d_model)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.position = NoPositions() if position is None else position
        self.norm = nn.LayerNorm(d_model) if norm else nn.Identity()
        self.dropout = dropout

    def forward(self, ids, offset=0):
        """Embed tokens.

        Args:
            ids: (B, T) int64.
            offset: the position of the first of them.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if the ids are not (B, T) int64, or the position's table is too short.
        """
        if ids.ndim != 2 or ids.dtype != torch.int64:
            raise ValueError(f"ids must be (B, T) int64, got {tuple(ids.shape)} {ids.dtype}")
        x = self.position.add(self.embedding(ids) * self.scale, offset)
        return self.norm(dropout(x, self.dropout, self.training))


POOLS = ("mean", "max", "cls")


class TransformerClassifier(nn.Module):
    """Logits of the classes of a whole text: an encoder-style Transformer and one vector made of its outputs.

    Args:
        vocab_size: V.
        encoder: `TransformerEncoder`.
        classes: number of classes.
        position: of `course_lib.positions`, or None.
        pool: "mean" or "max" over the real tokens, or "cls": the output at a learned vector put before the first token.
        dropout: share of the entries of the embeddings set to zero in training.
        scale: of `TokenEmbedding`.
        norm: of `TokenEmbedding`.

    Raises:
        ValueError: if `pool` is unknown, a size is below 1, or dropout outside [0, 1).

    Example:
        >>> from course_lib.text import pad_batch
        >>> model = TransformerClassifier(9, TransformerEncoder([EncoderLayer(12, 3, 20)]), classes=4)
        >>> model(*pad_batch([[3, 1, 8], [2]])).shape
        torch.Size([2, 4])

    Source: "cls": Devlin et al. (2019), "BERT", arXiv:1810.04805, section 3. Notebook: 09.
    """

    def __init__(
        self, vocab_size, encoder, classes=2, *, position=None, pool="mean", dropout=0.0, scale=None, norm=False
    ):
        super().__init__()
        _check_sizes(classes=classes)
        if pool not in POOLS:
            raise ValueError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
        self.embedding = TokenEmbedding(vocab_size, encoder.d_model, position, dropout, scale=scale, norm=norm)
        self.encoder = encoder
        self.output = nn.Linear(encoder.d_model, classes)
        self.pool = pool
        self.cls = nn.Parameter(torch.randn(encoder.d_model)) if pool == "cls" else None

    def forward(self, ids, mask=None, impl="sdpa"):
        """Logits of a batch.

        Args:
            ids: (B, T) int64 tokens.
            mask: (B, T) bool, True = real token, at least one in each row; None: all.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, classes) logits.

        Raises:
            ValueError: if the mask is not boolean, has another shape than the ids, or a row without a real token.
        """
        x, mask = self._embedded(ids, mask)
        x = self.encoder(x, mask, position=self.embedding.position, impl=impl)
        return self.output(self._pooled(x, mask))

    def weights(self, ids, mask=None):
        """Where each head of each layer looks; with pool "cls" place 0 is the learned vector.

        Args:
            ids: (B, T) int64 tokens.
            mask: as in `forward`.

        Returns:
            list of N tensors (B, H, T, T); (B, H, T + 1, T + 1) with pool "cls".
        """
        x, mask = self._embedded(ids, mask)
        return self.encoder.weights(x, mask, position=self.embedding.position)

    def _embedded(self, ids, mask):
        """Vectors and mask, with the learned vector in front if there is one."""
        check_real(mask, ids)
        if self.cls is None:
            return self.embedding(ids), mask
        first = self.cls.expand(len(ids), 1, -1)
        x = torch.cat([first, self.embedding(ids, offset=1)], 1)
        return x, None if mask is None else torch.cat([mask[:, :1] | True, mask], 1)

    def _pooled(self, x, mask):
        """(B, T, D) to (B, D)."""
        if self.pool == "cls":
            return x[:, 0]
        if self.pool == "max":
            return (x if mask is None else x.masked_fill(~mask[..., None], -torch.inf)).amax(1)
        return x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True)  # 0 at padding


class TransformerLM(nn.Module):
    r"""The next token's logits at every position: a decoder-only model, an encoder whose attention is causal.

    $$ \text{logits}_t = y_t E^\top, \quad y = \text{encoder}(x_1, \dots, x_t) $$

    The table of embeddings is the output layer too.

    Args:
        vocab_size: V.
        encoder: `TransformerEncoder`.
        position: of `course_lib.positions`, or None.
        dropout: share of the entries of the embeddings set to zero in training.

    Example:
        >>> model = TransformerLM(9, TransformerEncoder([EncoderLayer(12, 3, 20)]))
        >>> model(torch.tensor([[3, 1, 8], [2, 2, 0]])).shape
        torch.Size([2, 3, 9])

    Source: Liu et al. (2018), "Generating Wikipedia by Summarizing Long Sequences", arXiv:1801.10198, section 4.2.3;
    tied weights: Press and Wolf (2017), arXiv:1608.05859. Notebook: 09.
    """

    def __init__(self, vocab_size, encoder, *, position=None, dropout=0.0):
        super().__init__()
        self.embedding = TokenEmbedding(vocab_size, encoder.d_model, position, dropout)
        self.encoder = encoder

    def forward(self, ids, mask=None, impl="sdpa"):
        """Logits of the token after each.

        Args:
            ids: (B, T) int64 tokens.
            mask: (B, T) bool, True = may attend (a real token); None: all.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, T, V).
        """
        x = self.embedding(ids)
        x = self.encoder(x, mask, causal=True, position=self.embedding.position, impl=impl)
        return F.linear(x, self.embedding.embedding.weight)

    def weights(self, ids, mask=None):
        """Where each head of each layer looks.

        Args:
            ids: (B, T) int64 tokens.
            mask: as in `forward`.

        Returns:
            list of N tensors (B, H, T, T).
        """
        return self.encoder.weights(self.embedding(ids), mask, causal=True, position=self.embedding.position)

    def next_probs(self):
        """A function for `course_lib.language.sample`; it reads the whole text again for every token.

        With dropout, call `eval()` before.

        Returns:
            `next_probs(ids (S,)) -> (V,)`.

        Example:
            >>> from course_lib.language import sample
            >>> model = TransformerLM(9, TransformerEncoder([EncoderLayer(12, 3, 20)])).eval()
            >>> len(sample(model.next_probs(), [3], 5, torch.Generator().manual_seed(0)))
            5
        """

        @torch.inference_mode()
        def next_probs(ids):
            return self(ids[None].to(self.embedding.embedding.weight.device))[0, -1].softmax(-1)

        return next_probs


class Translator(nn.Module):
    """A Transformer from tokens to tokens: reads the source, writes the target.

    With `start` and `step` the decoding functions of `course_lib.seq2seq` work on it: `greedy`, `beam_search`,
    `translate`. The target's embeddings are the output layer too.

    Args:
        source_size: V of the source.
        target_size: V of the target.
        transformer: `Transformer`.
        position: of `course_lib.positions`, or None; serves both sides.
        dropout: share of the entries of the embeddings set to zero in training.

    Example:
        >>> encoder = TransformerEncoder([EncoderLayer(12, 3, 20) for _ in range(2)])
        >>> decoder = TransformerDecoder([DecoderLayer(12, 3, 20) for _ in range(2)])
        >>> model = Translator(9, 11, Transformer(encoder, decoder))
        >>> model(torch.tensor([[4, 5, 6]]), None, torch.tensor([[2, 7]])).shape
        torch.Size([1, 2, 11])

    Source: Vaswani et al. (2017), arXiv:1706.03762, figure 1; tied weights: section 3.4. Differs: two vocabularies, so
    the two tables of embeddings differ. Notebook: 09.
    """

    def __init__(self, source_size, target_size, transformer, *, position=None, dropout=0.0):
        super().__init__()
        self.transformer = transformer
        self.source_embedding = TokenEmbedding(source_size, transformer.d_model, position, dropout)
        self.target_embedding = TokenEmbedding(target_size, transformer.d_model, position, dropout)

    def forward(self, source, source_mask, target_in, impl="sdpa"):
        """Logits under teacher forcing: all positions at once, none sees a later one.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.
            target_in: (B, T) int64 ids: `<sos>` and the target.
            impl: "sdpa" or "math", see `attention`.

        Returns:
            (B, T, V) logits; those at t are for the word after target_in[:, t].
        """
        return self.decode(target_in, self.encode(source, source_mask, impl), source_mask, impl)

    def encode(self, source, source_mask=None, impl="sdpa"):
        """The memory: one vector for each source token.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.
            impl: "sdpa" or "math".

        Returns:
            (B, S, D).
        """
        x = self.source_embedding(source)
        return self.transformer.encoder(x, source_mask, position=self.source_embedding.position, impl=impl)

    def decode(self, target_in, memory, memory_mask=None, impl="sdpa"):
        """Logits of the word after each target token.

        Args:
            target_in: (B, T) int64 ids.
            memory: (B, S, D) from `encode`.
            memory_mask: (B, S) bool, True = may attend; None: all.
            impl: "sdpa" or "math".

        Returns:
            (B, T, V).
        """
        x = self.target_embedding(target_in)
        position = self.target_embedding.position
        x = self.transformer.decoder(x, memory, memory_mask=memory_mask, position=position, impl=impl)
        return F.linear(x, self.target_embedding.embedding.weight)

    def weights(self, source, source_mask, target_in):
        """Where each head of each decoder layer looks under teacher forcing.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.
            target_in: (B, T) int64 ids.

        Returns:
            list of N pairs: (B, H, T, T) of the self-attention, (B, H, T, S) of the attention to the source.
        """
        memory = self.encode(source, source_mask)
        x, position = self.target_embedding(target_in), self.target_embedding.position
        return self.transformer.decoder.weights(x, memory, memory_mask=source_mask, position=position)

    def start(self, source, source_mask=None):
        """Read the source: the state before the first target word.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.

        Returns:
            dict of tensors with the batch first: "memory", "mask" and the "prefix" written so far.
        """
        mask = torch.ones_like(source, dtype=torch.bool) if source_mask is None else source_mask
        return {"memory": self.encode(source, source_mask), "mask": mask, "prefix": source[:, :0]}

    def step(self, tokens, state):
        """Append one target word, give the logits of the next: the whole prefix is computed again.

        Args:
            tokens: (B,) int64 ids.
            state: dict from `start` or `step`.

        Returns:
            logits: (B, V).
            state: dict; the old one is left as it is.

        Raises:
            ValueError: if the tokens are not (B,).
        """
        if tokens.ndim != 1:
            raise ValueError(f"tokens have shape {tuple(tokens.shape)}, wanted (B,): one word a sentence")
        prefix = torch.cat([state["prefix"], tokens[:, None]], 1)
        return self.decode(prefix, state["memory"], state["mask"])[:, -1], state | {"prefix": prefix}


# --- shared ---------------------------------------------------------------------


def normal_start(model, std=0.02):
    """Start as BERT and GPT-2 do: weights and tables of embeddings normal, biases zero.

    Args:
        model: nn.Module; its LayerNorms, and parameters of its own, stay as they are.
        std: standard deviation.

    Returns:
        The same model.

    Example:
        >>> layer = normal_start(torch.nn.Linear(3, 2))
        >>> layer.bias.tolist()
        [0.0, 0.0]

    Source: Devlin et al. (2019), arXiv:1810.04805 (the authors' code); Radford et al. (2018), section 4.1.
    Notebooks: 12, 13.
    """
    for part in model.modules():
        if isinstance(part, nn.Linear | nn.Embedding):
            nn.init.normal_(part.weight, std=std)
        if isinstance(part, MultiHeadAttention):
            nn.init.normal_(part.in_proj_weight, std=std)
        if isinstance(part, nn.Linear) and part.bias is not None:
            nn.init.zeros_(part.bias)
    return model


def _weights_within(layer, attention, x, norm, memory, mask, causal, position):
    """The weights of an attention inside a layer: Pre-LN norms what it reads."""
    query = norm(x) if layer.residual is pre_ln else x
    return attention.weights(query, memory, mask=mask, causal=causal, position=position)


def _finish(x, norm, mask):
    """The last norm, and zeros at padding."""
    x = x if norm is None else norm(x)
    return x if mask is None or mask.ndim != 2 else x.masked_fill(~mask[..., None], 0.0)


def _norms(count, d_model, residual):
    """What stands around the sublayers of a layer: a LayerNorm each, or one shared `Scale`."""
    return [Scale()] * count if residual == "rezero" else [nn.LayerNorm(d_model) for _ in range(count)]


def _stack(layers):
    """The layers as a ModuleList: at least one, no two the same, one width."""
    layers = nn.ModuleList(layers)
    if len(layers) == 0 or len(set(layers)) < len(layers):
        raise ValueError(f"wanted at least one layer, each its own object, got {len(layers)} of {len(set(layers))}")
    if len({layer.d_model for layer in layers}) > 1:
        raise ValueError(f"the layers have the widths {[layer.d_model for layer in layers]}: they must be equal")
    return layers


def _check_layer(dim_feedforward, dropout, residual):
    _check_sizes(dim_feedforward=dim_feedforward)
    _check_dropout(dropout)
    if residual not in RESIDUALS:
        raise ValueError(f"residual must be one of {', '.join(RESIDUALS)}, got {residual!r}")


def _check_sizes(**sizes):
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")


def _check_dropout(p):
    if not 0 <= p < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {p}")


def check_real(mask, ids):
    """Raise unless the mask is one of real tokens, with at least one in every row.

    Args:
        mask: (B, T) bool, True = real token; None: all.
        ids: (B, T).

    Raises:
        ValueError: if the mask is not boolean, has another shape than the ids, or a row without a real token.
    """
    if mask is None:
        return
    if mask.dtype != torch.bool or mask.shape != ids.shape:
        raise ValueError(
            f"mask must be boolean (True = real token) of shape {tuple(ids.shape)}, "
            f"got {mask.dtype} {tuple(mask.shape)}"
        )
    if not mask.any(1).all():
        raise ValueError(f"row {mask.any(1).int().argmin().item()} of the mask has no real token: nothing to judge")
