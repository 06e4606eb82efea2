r"""Sequence to sequence: one network reads, another writes, and three ways to get a sentence out of the writer.

Read `Encoder` and `Decoder`, joined by one vector; `AttentionDecoder`, which looks back at every word; `Seq2Seq`,
the two halves as one model. Then training: `translation_batches`, `translation_loss`, and `free_running`, which
feeds a model its own words. Then decoding: `greedy`, `beam_search`, `translate`. At the end `alignment`: which
source words the attention looked at.

The decoding functions know nothing about recurrence. They need a model with two methods:

    model.start(source (B, S), source_mask (B, S)) -> state
    model.step(tokens (B,), state) -> logits (B, V), state

where `state` is a dict of tensors whose first axis is the batch, so that beam search can reorder it. A state may hold
"weights" (B, T, S), the attention of the last call: decoding collects its last row.

Notebook: 06; 09 decodes a Transformer with the same functions.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import AdditiveAttention
from course_lib.rnn import dropout
from course_lib.text import EOS, PAD, SOS, bucket_batches, length_mask, pad_batch

# --- the model ------------------------------------------------------------------


class Encoder(nn.Module):
    r"""Reads the source: a state for every word, and one vector for the whole sentence.

    $$ h_1, \dots, h_S = \text{layer}(e(x_1), \dots, e(x_S)), \qquad
       context = [\overrightarrow{h}_S ; \overleftarrow{h}_1] $$

    The context is the state of the top layer after each sentence's own last word; a bidirectional layer adds that of
    its backward half after the first word. Of an LSTM it is the visible state h. `pool` offers a mean instead.

    Args:
        vocab_size: V of the source.
        layer: `RNN`, `LSTM` or `GRU`, stacked or not, in one direction or two; its input_size is the width of the
            embedding.
        dropout: share of the entries of the embeddings and of the states set to zero in training.
        pool: how the states become one vector: "last", or their "mean" over the real words, to which every word has
            a short way.

    Raises:
        ValueError: if vocab_size is below 1, dropout outside [0, 1) or pool unknown.

    Example:
        >>> from course_lib.gated import GRU
        >>> encoder = Encoder(11, GRU(3, 4, bidirectional=True))
        >>> states, context = encoder(torch.tensor([[5, 6, 7], [8, 9, PAD]]), length_mask([3, 2]))
        >>> states.shape, context.shape
        (torch.Size([2, 3, 8]), torch.Size([2, 8]))

    Source: Sutskever, Vinyals and Le (2014), "Sequence to Sequence Learning with Neural Networks", arXiv:1409.3215,
    section 2; two directions: Bahdanau, Cho and Bengio (2015), arXiv:1409.0473, section 3.2. Notebook: 06.
    """

    def __init__(self, vocab_size, layer, dropout=0.0, pool="last"):
        super().__init__()
        _check_dropout(dropout)
        if pool not in ("last", "mean"):
            raise ValueError(f"pool must be 'last' or 'mean', got {pool!r}")
        self.embedding = _embedding(vocab_size, layer.input_size)
        self.layer = layer
        self.dropout, self.pool = dropout, pool
        self.output_size = layer.hidden_size * (2 if layer.bidirectional else 1)

    def forward(self, source, mask=None):
        """Read a batch of sentences.

        Args:
            source: (B, S) int64 ids.
            mask: (B, S) bool, True = may attend (a real token); the real ones come first. None: all are.

        Returns:
            states: (B, S, E) with E = D, or 2 D in two directions; 0 at padding.
            context: (B, E) the sentence as one vector.

        Raises:
            ValueError: if the ids are not (B, S) int64 below V on the model's device, the batch is empty, or the mask
                is not boolean, has another shape, a row without a real token, or padding before a real token.
        """
        _check_ids("source", source, self.embedding)
        lengths = None if mask is None else _lengths(mask, source)
        x = dropout(_embed(source, self.embedding), self.dropout, self.training)  # (B, S, I)
        states, last = self.layer(x, lengths=lengths)
        context = self._pooled(states, last, mask)
        return dropout(states, self.dropout, self.training), dropout(context, self.dropout, self.training)

    def _pooled(self, states, last, mask):
        """The states as one vector, (B, E)."""
        if self.pool == "last":
            last = last[0] if isinstance(last, tuple) else last  # of an LSTM's pair (h, c) the visible state
            return last[-2 if self.layer.bidirectional else -1 :].transpose(0, 1).flatten(1)  # the top layer's
        return states.mean(1) if mask is None else states.sum(1) / mask.sum(1, keepdim=True)  # 0 at padding


class Decoder(nn.Module):
    r"""Writes the target from one vector: all that it knows of the source is the context c.

    $$ s_0 = \tanh(c\, W_c^\top + b_c), \quad s_t = \text{layer}([e(y_{t-1}) ; c], s_{t-1}), \quad
       o_t = \tanh([s_t ; e(y_{t-1}) ; c]\, W_o^\top + b_o), \quad \text{logits}_t = o_t W_e^\top + b $$

    Without `feed_context` the terms [; c] are left out, and c acts through s_0 alone. The rows of W_e are the
    embeddings of the target words themselves (tied weights): fewer parameters, and what is learned about a word when
    it is read helps when it is written.

    Args:
        vocab_size: V of the target.
        layer: `RNN`, `LSTM` or `GRU` in one direction. Its input_size is the width I of the embedding, with
            `feed_context` I plus context_size.
        context_size: E, the encoder's `output_size`.
        feed_context: True shows the context at every step (Cho et al.); False at the start only (Sutskever et al.).
        dropout: share of the entries of the embeddings, the states and o set to zero in training.

    Raises:
        ValueError: if the layer is bidirectional, its input_size leaves no room for an embedding, vocab_size is below
            1, or dropout outside [0, 1).

    Example:
        >>> from course_lib.gated import GRU
        >>> decoder = Decoder(11, GRU(3, 5), context_size=4)
        >>> logits, state = decoder(torch.tensor([[SOS, 7, 8]]), decoder.start(torch.zeros(1, 6, 4), torch.zeros(1, 4)))
        >>> logits.shape
        torch.Size([1, 3, 11])

    Source: Sutskever et al. (2014), arXiv:1409.3215, section 2; Cho et al. (2014), "Learning Phrase Representations
    using RNN Encoder-Decoder", arXiv:1406.1078, section 2.2 and appendix A.1.2. Tied weights: Press and Wolf (2017),
    arXiv:1608.05859. Differs: Sutskever's decoder starts from the encoder's states as they are; here a learned map
    stands between, so that the two halves may have different sizes. Notebook: 06.
    """

    def __init__(self, vocab_size, layer, context_size, *, feed_context=False, dropout=0.0):
        super().__init__()
        _check_decoder_layer(layer, context_size if feed_context else 0)
        _check_dropout(dropout)
        self.feed_context, self.context_size, self.dropout = feed_context, context_size, dropout
        fed = context_size if feed_context else 0
        width = layer.input_size - fed
        self.embedding = _embedding(vocab_size, width)
        self.layer = layer
        self.bridge = Bridge(context_size, layer)
        self.readout = Readout(layer.hidden_size + (width + fed if feed_context else 0), self.embedding, dropout)

    def start(self, states, context, mask=None):
        """The state before the first word.

        Args:
            states: (B, S, E) of the encoder; not used: the context is the only bridge.
            context: (B, E) of the encoder.
            mask: (B, S) bool, not used either.

        Returns:
            dict of tensors with the batch first.

        Raises:
            ValueError: if the context is not (B, E).
        """
        return self.bridge(context) | {"context": context}

    def forward(self, target_in, state):
        """Logits of every next word given the true words before it: all steps in one call of the layer.

        Args:
            target_in: (B, T) int64 ids, beginning with `<sos>` when `state` comes from `start`.
            state: dict from `start` or from an earlier call.

        Returns:
            logits: (B, T, V).
            state: after the last word.

        Raises:
            ValueError: if the ids are not (B, T) int64 below V, or of another batch size than the state.
        """
        _check_target(target_in, self.embedding, state)
        x = dropout(_embed(target_in, self.embedding), self.dropout, self.training)  # (B, T, I)
        if self.feed_context:
            context = state["context"].unsqueeze(1).expand(-1, x.shape[1], -1)  # (B, T, E)
            x = torch.cat([x, context], -1)
        outputs, after = self.layer(x, self.bridge.unpack(state))
        features = torch.cat([outputs, x], -1) if self.feed_context else outputs
        return self.readout(features), state | self.bridge.pack(after)


class AttentionDecoder(nn.Module):
    r"""Writes the target with an eye on the source: for every word another mean of the encoder's states.

    $$ c_t = \text{attention}(s_{t-1}, h_1, \dots, h_S), \quad s_t = \text{layer}([e(y_{t-1}) ; c_t], s_{t-1}), \quad
       o_t = \tanh([s_t ; e(y_{t-1}) ; c_t]\, W_o^\top + b_o), \quad \text{logits}_t = o_t W_e^\top + b $$

    The state s_{t-1} asks, the encoder's states answer. Long sentences no longer have to fit into one vector. Since
    c_t depends on s_{t-1}, the steps cannot be computed at once; the logits of all steps can.

    Args:
        vocab_size: V of the target.
        layer: `RNN`, `LSTM` or `GRU` in one direction; its input_size is the width I of the embedding plus
            context_size.
        context_size: E, the encoder's `output_size`.
        attention_size: A, the hidden layer of the attention.
        dropout: share of the entries of the embeddings, the states and o set to zero in training.

    Raises:
        ValueError: as `Decoder`.

    Example:
        >>> from course_lib.gated import GRU
        >>> decoder = AttentionDecoder(11, GRU(3 + 4, 5), context_size=4, attention_size=6)
        >>> logits, state = decoder(torch.tensor([[SOS, 7, 8]]), decoder.start(torch.zeros(1, 2, 4), torch.zeros(1, 4)))
        >>> logits.shape, state["weights"].shape
        (torch.Size([1, 3, 11]), torch.Size([1, 3, 2]))

    Source: Bahdanau, Cho and Bengio (2015), arXiv:1409.0473, section 3.1 and appendix A.2.2. Differs: tanh where the
    paper's output layer has maxout; s_0 comes from both directions' last states, the paper takes the backward one's;
    the layer may be any; tied weights. Notebook: 06.
    """

    def __init__(self, vocab_size, layer, context_size, attention_size, *, dropout=0.0):
        super().__init__()
        _check_decoder_layer(layer, context_size)
        _check_dropout(dropout)
        self.context_size, self.dropout = context_size, dropout
        self.embedding = _embedding(vocab_size, layer.input_size - context_size)
        self.layer = layer
        self.attention = AdditiveAttention(layer.hidden_size, context_size, attention_size)
        self.bridge = Bridge(context_size, layer)
        self.readout = Readout(layer.hidden_size + layer.input_size, self.embedding, dropout)

    def start(self, states, context, mask=None):
        """The state before the first word; the keys are projected here, once a sentence.

        Args:
            states: (B, S, E) of the encoder.
            context: (B, E) of the encoder.
            mask: (B, S) bool, True = may attend; None: all.

        Returns:
            dict of tensors with the batch first.

        Raises:
            ValueError: if the states or the context have other widths than E.
        """
        if mask is None:
            mask = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        return self.bridge(context) | {"keys": self.attention.project(states), "states": states, "mask": mask}

    def forward(self, target_in, state):
        """Logits of every next word given the true words before it, step by step.

        Args:
            target_in: (B, T) int64 ids, beginning with `<sos>` when `state` comes from `start`.
            state: dict from `start` or from an earlier call.

        Returns:
            logits: (B, T, V).
            state: after the last word; its "weights" (B, T, S) are the attention of these T steps.

        Raises:
            ValueError: if the ids are not (B, T) int64 below V, or of another batch size than the state.
        """
        _check_target(target_in, self.embedding, state)
        x = dropout(_embed(target_in, self.embedding), self.dropout, self.training)  # (B, T, I)
        hidden = self.bridge.unpack(state)
        outputs, inputs, weights = [], [], []
        for word in x.unbind(1):
            query = (hidden[0] if isinstance(hidden, tuple) else hidden)[-1]  # (B, D), the top layer's
            context, weight = self.attention(query, state["keys"], state["states"], state["mask"])
            inputs.append(torch.cat([word, context], -1))
            output, hidden = self.layer.step(inputs[-1], hidden)
            outputs.append(output)
            weights.append(weight)
        features = torch.cat([torch.stack(outputs, 1), torch.stack(inputs, 1)], -1)  # (B, T, D + I + E)
        return self.readout(features), state | self.bridge.pack(hidden) | {"weights": torch.stack(weights, 1)}


class Bridge(nn.Module):
    r"""From the encoder's context to the decoder's first state, for any layer and any number of layers.

    $$ s_0 = \tanh(c\, W_c^\top + b_c) $$

    Args:
        context_size: E.
        layer: the decoder's.

    Source: Cho et al. (2014), arXiv:1406.1078, appendix A.1.2. Notebook: 06.
    """

    def __init__(self, context_size, layer):
        super().__init__()
        self.parts = ("h", "c") if layer.mode == "LSTM" else ("h",)
        self.shape = (layer.num_layers, layer.hidden_size)
        self.map = nn.Linear(context_size, len(self.parts) * math.prod(self.shape))

    def forward(self, context):
        """The first state as a dict: "h" and, for an LSTM, "c", each (B, N, D).

        Args:
            context: (B, E).

        Returns:
            dict of tensors.

        Raises:
            ValueError: if the context has another width, or is on another device or of another dtype than the weights.
        """
        weight = self.map.weight
        if context.ndim != 2 or context.shape[-1] != self.map.in_features:
            raise ValueError(f"context has shape {tuple(context.shape)}, wanted (B, {self.map.in_features})")
        if context.device != weight.device:
            raise ValueError(f"the context is on {context.device}, the decoder on {weight.device}")
        if context.dtype != weight.dtype and not torch.is_autocast_enabled(context.device.type):
            raise ValueError(f"the context is {context.dtype}, the decoder's weights are {weight.dtype}")
        first = torch.tanh(self.map(context)).unflatten(1, (len(self.parts), *self.shape))
        return dict(zip(self.parts, first.unbind(1), strict=True))

    def unpack(self, state):
        """The layer's own form of the state: (N, B, D), for the LSTM a pair.

        Args:
            state: dict with the entries of `forward`.

        Returns:
            tensor or pair of tensors.
        """
        parts = tuple(state[part].transpose(0, 1).contiguous() for part in self.parts)
        return parts if len(parts) > 1 else parts[0]

    def pack(self, hidden):
        """The inverse of `unpack`.

        Args:
            hidden: (N, B, D), for the LSTM a pair.

        Returns:
            dict of (B, N, D) tensors.
        """
        parts = hidden if isinstance(hidden, tuple) else (hidden,)
        return {name: part.transpose(0, 1) for name, part in zip(self.parts, parts, strict=True)}


class Readout(nn.Module):
    r"""From features of a step to the logits of the next word, through the target's own embeddings.

    $$ o = \tanh(f W_o^\top + b_o), \qquad \text{logits} = o W_e^\top + b $$

    Args:
        features: width of f.
        embedding: nn.Embedding (V, I), whose weights W_e are shared.
        dropout: share of the entries of f and of o set to zero in training.

    Source: Press and Wolf (2017), "Using the Output Embedding to Improve Language Models", arXiv:1608.05859.
    Notebook: 06.
    """

    def __init__(self, features, embedding, dropout=0.0):
        super().__init__()
        V, width = embedding.weight.shape
        self.hidden = nn.Linear(features, width)
        self.weight = embedding.weight  # the same parameter under a second name
        self.bias = nn.Parameter(torch.zeros(V))
        self.dropout = dropout

    def forward(self, features):
        """Logits of all steps at once.

        Args:
            features: (B, T, ...) of the width given.

        Returns:
            (B, T, V).
        """
        hidden = torch.tanh(self.hidden(dropout(features, self.dropout, self.training)))
        return F.linear(dropout(hidden, self.dropout, self.training), self.weight, self.bias)


class Seq2Seq(nn.Module):
    """An encoder and a decoder as one model.

    Args:
        encoder: `Encoder`.
        decoder: `Decoder` or `AttentionDecoder` with context_size = encoder.output_size.

    Raises:
        ValueError: if the two do not fit.

    Example:
        >>> from course_lib.gated import LSTM
        >>> model = Seq2Seq(Encoder(9, LSTM(3, 4)), Decoder(11, LSTM(5, 6), context_size=4))
        >>> model(torch.tensor([[4, 5, 6]]), None, torch.tensor([[SOS, 7]])).shape
        torch.Size([1, 2, 11])

    Source: Sutskever et al. (2014), arXiv:1409.3215, figure 1. Notebook: 06.
    """

    def __init__(self, encoder, decoder):
        super().__init__()
        if encoder.output_size != decoder.context_size:
            raise ValueError(
                f"the encoder's output_size is {encoder.output_size}, the decoder's context_size {decoder.context_size}"
            )
        self.encoder, self.decoder = encoder, decoder

    def forward(self, source, source_mask, target_in):
        """Logits under teacher forcing: each word is predicted from the true words before it.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.
            target_in: (B, T) int64 ids: `<sos>` and the target.

        Returns:
            (B, T, V) logits; those at t are for the word after target_in[:, t].

        Raises:
            ValueError: as `Encoder.forward` and `Decoder.forward`.
        """
        return self.decoder(target_in, self.start(source, source_mask))[0]

    def start(self, source, source_mask=None):
        """Read the source: the state before the first target word.

        Args:
            source: (B, S) int64 ids.
            source_mask: (B, S) bool, True = may attend; None: all.

        Returns:
            dict of tensors with the batch first.

        Raises:
            ValueError: as `Encoder.forward`.
        """
        return self.decoder.start(*self.encoder(source, source_mask), source_mask)

    def step(self, tokens, state):
        """Read one target word, give the logits of the next.

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
        logits, state = self.decoder(tokens.unsqueeze(1), state)
        return logits.squeeze(1), state


# --- training -------------------------------------------------------------------


class TranslationBatch(NamedTuple):
    """A padded batch of sentence pairs.

    Args:
        source: (B, S) int64.
        source_mask: (B, S) bool, True = may attend (a real token).
        target_in: (B, T) int64: `<sos>` and the words; what the decoder reads.
        target_out: (B, T) int64: the words and `<eos>`; what it must predict.
        target_mask: (B, T) bool, True = a real token of target_out.
    """

    source: torch.Tensor
    source_mask: torch.Tensor
    target_in: torch.Tensor
    target_out: torch.Tensor
    target_mask: torch.Tensor


def translation_batches(sources, targets, batch_size, *, generator=None, shuffle=True):
    """Padded batches of pairs; pairs of similar lengths stand together.

    Args:
        sources: N lists of ids, as the encoder shall read them.
        targets: N lists of ids of the words alone: `<sos>` and `<eos>` are added here.
        batch_size: B; the last batch may be smaller.
        generator: torch.Generator that decides the order; None draws from torch's global one.
        shuffle: False gives the same batches in each call, for validation.

    Returns:
        Iterator of `TranslationBatch`.

    Raises:
        ValueError: if there are no pairs, not as many sources as targets, an empty source, or batch_size is below 1.

    Example:
        >>> batch = next(translation_batches([[4, 5], [6]], [[7], [8, 9]], 2, shuffle=False))
        >>> batch.target_in.tolist(), batch.target_out.tolist()
        ([[2, 7, 1], [2, 8, 9]], [[7, 3, 1], [8, 9, 3]])

    Notebook: 06.
    """
    if len(sources) != len(targets):
        raise ValueError(f"got {len(sources)} sources but {len(targets)} targets")
    if any(len(source) == 0 for source in sources):
        raise ValueError("a source sentence is empty: there is nothing to translate")
    # By target length, since the logits cost most; within that by source length.
    longest = max(map(len, sources), default=0) + 1
    lengths = [len(target) * longest + len(source) for source, target in zip(sources, targets, strict=True)]
    order = bucket_batches(lengths, batch_size, generator, shuffle)
    return (_translation_batch([sources[i] for i in chunk], [targets[i] for i in chunk]) for chunk in order)


def _translation_batch(sources, targets):
    target_in, mask = pad_batch([[SOS, *target] for target in targets])
    target_out, _ = pad_batch([[*target, EOS] for target in targets])
    return TranslationBatch(*pad_batch(sources), target_in, target_out, mask)


def translation_loss(model, batch, *, label_smoothing=0.0, teacher_forcing=1.0):
    r"""Cross-entropy and accuracy of a translation model, as sums over the real target tokens.

    Args:
        model: `Seq2Seq`, or another model with its interface.
        batch: `TranslationBatch`, or a tuple like it.
        label_smoothing: in training, the share of the target's probability that is spread evenly over the vocabulary;
            in evaluation mode none is, so that validation losses can be compared and exp gives the perplexity.
        teacher_forcing: in training, the probability with which a true word is fed, see `free_running`; in evaluation
            mode true words are fed.

    Returns:
        dict: "loss" in nats, "count" of tokens, "accuracy" = how many were predicted; padding counts nowhere.

    Raises:
        ValueError: if label_smoothing is outside [0, 1) or teacher_forcing outside [0, 1].

    Source: label smoothing: Szegedy et al. (2016), arXiv:1512.00567, section 7. Notebook: 06.
    """
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be from 0 to below 1, got {label_smoothing}")
    _check_teacher_forcing(teacher_forcing)
    source, source_mask, target_in, target_out, mask = batch
    if teacher_forcing == 1 or not model.training:
        logits = model(source, source_mask, target_in)
    else:
        logits = free_running(model, source, source_mask, target_in, teacher_forcing)
    loss = F.cross_entropy(
        logits.flatten(0, 1),
        target_out.masked_fill(~mask, -100).flatten(),  # -100: not counted
        reduction="sum",
        label_smoothing=label_smoothing if model.training else 0.0,
    )
    right = (logits.max(-1).indices == target_out) & mask  # argmax, but four times as fast in bfloat16 on a CPU
    return {"loss": loss, "count": mask.sum(), "accuracy": right.sum()}


def free_running(model, source, source_mask, target_in, teacher_forcing=0.0, generator=None):
    r"""Logits when the model is fed its own words, as it is when it translates, or a mixture with the true ones.

    $$ \hat y_{t-1} = \begin{cases} y_{t-1} & u < p \\ \arg\max \text{logits}_{t-1} & \text{otherwise} \end{cases},
       \qquad u \sim U[0, 1) $$

    with p = teacher_forcing, drawn anew for every sentence and step. The first word fed is target_in[:, 0] in any
    case. At p = 1 the result is that of teacher forcing, computed step by step; training with p < 1 is scheduled
    sampling. Gradients do not flow through the choice of a word.

    Args:
        model: `Seq2Seq`, or another model with its interface.
        source: (B, S) int64 ids.
        source_mask: (B, S) bool, True = may attend; None: all.
        target_in: (B, T) int64 ids: `<sos>` and the target.
        teacher_forcing: p, from 0 to 1.
        generator: torch.Generator on the CPU that draws u; None draws from torch's global one.

    Returns:
        (B, T, V) logits.

    Raises:
        ValueError: if teacher_forcing is outside [0, 1], or target_in is not (B, T).

    Source: Bengio, Vinyals, Jaitly and Shazeer (2015), "Scheduled Sampling for Sequence Prediction with Recurrent
    Neural Networks", arXiv:1506.03099, section 2.4. Differs: the best word is fed, not a sampled one. Notebook: 06.
    """
    _check_teacher_forcing(teacher_forcing)
    if target_in.ndim != 2:
        raise ValueError(f"target_in has shape {tuple(target_in.shape)}, wanted (B, T)")
    truth = torch.rand(target_in.shape, generator=generator).to(target_in.device) < teacher_forcing  # (B, T)
    state, tokens, rows = model.start(source, source_mask), target_in[:, 0], []
    for t in range(target_in.shape[1]):
        if t > 0:
            tokens = torch.where(truth[:, t], target_in[:, t], rows[-1].argmax(-1))
        logits, state = model.step(tokens, state)
        rows.append(logits)
    return torch.stack(rows, 1)


# --- decoding -------------------------------------------------------------------


class Hypothesis(NamedTuple):
    """What a search found for one sentence.

    Args:
        tokens: list of int, without `<sos>` and `<eos>`.
        score: the log-probability in nats, that of `<eos>` included, divided by the length penalty.
        ended: whether `<eos>` was reached; False if the sentence was cut at max_len.
        weights: (len(tokens), S) attention over the real source tokens, or None if the model's state holds none.
    """

    tokens: list
    score: float
    ended: bool
    weights: torch.Tensor | None


def length_penalty(length, alpha):
    r"""What a log-probability is divided by, so that longer translations are not put at a disadvantage.

    $$ lp(Y) = \left(\frac{5 + |Y|}{6}\right)^{\alpha} $$

    Every further word lowers the log-probability of a sentence, so the likeliest one is often too short.

    Args:
        length: |Y|, tokens with `<eos>`; number or tensor.
        alpha: 0 leaves log-probabilities as they are; 0.6 to 1 is usual.

    Returns:
        number or tensor, 1 at length 1.

    Example:
        >>> length_penalty(1, 0.6), length_penalty(7, 1.0)
        (1.0, 2.0)

    Source: Wu et al. (2016), "Google's Neural Machine Translation System", arXiv:1609.08144, equation 14 (without the
    coverage penalty). Notebook: 06.
    """
    return ((5 + length) / 6) ** alpha


@torch.inference_mode()
def greedy(model, source, source_mask=None, *, max_len=60, never=(PAD, SOS)):
    r"""Take the most probable word at every step until `<eos>`.

    $$ \hat y_t = \arg\max_y\; p(y \mid \hat y_1, \dots, \hat y_{t-1}, x) $$

    Put the model in evaluation mode before: dropout would be drawn here too.

    Args:
        model: with `start` and `step`, see the top of this module.
        source: (B, S) int64 ids.
        source_mask: (B, S) bool, True = may attend; None: all.
        max_len: most tokens of a translation, `<eos>` included.
        never: ids that may not be chosen; their probability counts in the scores as it is.

    Returns:
        list of B `Hypothesis`; each is what the sentence alone would give. Its score is the log-probability.

    Raises:
        ValueError: if max_len is below 1, `source` is not (B, S) with B and S at least 1, or an id in `never` is
            outside the vocabulary or `<eos>`.

    Source: Sutskever et al. (2014), arXiv:1409.3215, section 3.2, with a beam of 1. Notebook: 06.
    """
    _check_search(source, max_len, never)
    B = len(source)
    state = model.start(source, source_mask)
    tokens = torch.full((B,), SOS, device=source.device)
    score, ended = 0.0, torch.zeros(B, dtype=torch.bool, device=source.device)
    chosen, weights = [], []
    for _ in range(max_len):
        logits, state = model.step(tokens, state)
        log_probs = _allowed_log_probs(logits, never)  # (B, V)
        best, tokens = log_probs.max(-1)
        tokens = tokens.masked_fill(ended, PAD)
        score = score + best.masked_fill(ended, 0.0)
        ended = ended | (tokens == EOS)
        chosen.append(tokens)
        if "weights" in state:
            weights.append(state["weights"][:, -1])
        if ended.all():
            break
    weights = torch.stack(weights, 1) if weights else [None] * B
    rows = zip(torch.stack(chosen, 1).tolist(), score.tolist(), ended.tolist(), weights, strict=True)
    return [_hypothesis(*row, _real(source_mask, b)) for b, row in enumerate(rows)]


@torch.inference_mode()
def beam_hypotheses(model, source, source_mask=None, *, beam=4, alpha=0.0, max_len=60, never=(PAD, SOS)):
    r"""Keep the `beam` most probable beginnings at every step; all that are left at the end, best first.

    $$ \hat Y = \arg\max_{Y} \frac{\ln p(Y \mid x)}{lp(Y)} $$

    over the hypotheses in the beam. A hypothesis that takes `<eos>` is finished: it keeps its place in the beam and is
    not extended; the others share the places that are left. While searching, beginnings of equal length are compared,
    which needs no penalty. With a beam of 1 this is `greedy`.

    Args:
        model: with `start` and `step`, see the top of this module.
        source: (B, S) int64 ids.
        source_mask: (B, S) bool, True = may attend; None: all.
        beam: hypotheses kept a sentence, at least 1.
        alpha: of `length_penalty`; 0 ranks by log-probability.
        max_len: most tokens of a translation, `<eos>` included.
        never: ids that may not be chosen.

    Returns:
        list of B lists of at most `beam` `Hypothesis`, by falling score; those cut at max_len come
        after all that ended.

    Raises:
        ValueError: if beam or max_len is below 1, alpha is negative, or as `greedy`.

    Source: Sutskever et al. (2014), arXiv:1409.3215, section 3.2; Wu et al. (2016), arXiv:1609.08144, equation 14.
    Notebook: 06.
    """
    _check_search(source, max_len, never)
    if beam < 1:
        raise ValueError(f"beam must be at least 1, got {beam}")
    if not alpha >= 0:
        raise ValueError(f"alpha must be at least 0, got {alpha}")
    B, device = len(source), source.device
    state = {key: part.repeat_interleave(beam, 0) for key, part in model.start(source, source_mask).items()}
    score = torch.full((B, beam), -torch.inf, device=device)
    score[:, 0] = 0.0  # all places hold the same beginning: one of them counts
    ended = torch.zeros(B, beam, dtype=torch.bool, device=device)
    chosen = torch.full((B * beam, 1), SOS, device=device)
    weights = None
    for _ in range(max_len):
        logits, state = model.step(chosen[:, -1], state)
        V = logits.shape[-1]
        log_probs = _allowed_log_probs(logits, never).view(B, beam, V)
        score, places, tokens = _best_continuations(score, log_probs, ended)
        rows = (torch.arange(B, device=device).unsqueeze(1) * beam + places).flatten()  # which beginning each continues
        state = {key: part[rows] for key, part in state.items()}
        chosen = torch.cat([chosen[rows], tokens.view(-1, 1)], 1)
        if "weights" in state:
            new = state["weights"][:, -1:]
            weights = new if weights is None else torch.cat([weights[rows], new], 1)
        ended = ended.gather(1, places) | (tokens == EOS)
        if (ended | score.isinf()).all():
            break
    return _ranked(chosen[:, 1:].view(B, beam, -1), score, ended, weights, source_mask, alpha)


def _best_continuations(score, log_probs, ended):
    """The best `beam` of each sentence: their scores, the places that they continue and their new tokens, (B, beam)."""
    beam, V = log_probs.shape[1:]
    log_probs = log_probs.masked_fill(ended.unsqueeze(-1), -torch.inf)
    log_probs[:, :, PAD] = torch.where(ended, 0.0, log_probs[:, :, PAD])  # what has ended continues as it is
    total = score.unsqueeze(-1) + log_probs  # (B, beam, V)
    rank = total.clone()
    rank[:, :, PAD].masked_fill_(ended, torch.inf)  # and keeps its place
    index = rank.flatten(1).topk(beam).indices  # (B, beam)
    return total.flatten(1).gather(1, index), index // V, index % V


def _ranked(tokens, score, ended, weights, source_mask, alpha):
    """The beams as lists of hypotheses: ended before cut, then by score over length penalty."""
    B, beam, T = tokens.shape
    length = torch.where(ended, (tokens == EOS).int().argmax(-1) + 1, T)
    score = score / length_penalty(length, alpha)
    weights = [[None] * beam] * B if weights is None else weights.unflatten(0, (B, beam))
    found = []
    for b in range(B):
        rows = zip(tokens[b].tolist(), score[b].tolist(), ended[b].tolist(), weights[b], strict=True)
        real = _real(source_mask, b)
        hypotheses = [_hypothesis(*row, real) for row in rows if row[1] > -math.inf]
        found.append(sorted(hypotheses, key=lambda hypothesis: (not hypothesis.ended, -hypothesis.score)))
    return found


def beam_search(model, source, source_mask=None, *, beam=4, alpha=0.0, max_len=60, never=(PAD, SOS)):
    """The best hypothesis of `beam_hypotheses` for each sentence.

    Args:
        model: with `start` and `step`, see the top of this module.
        source: (B, S) int64 ids.
        source_mask: (B, S) bool, True = may attend; None: all.
        beam: hypotheses kept a sentence, at least 1.
        alpha: of `length_penalty`; 0 ranks by log-probability.
        max_len: most tokens of a translation, `<eos>` included.
        never: ids that may not be chosen.

    Returns:
        list of B `Hypothesis`.

    Raises:
        ValueError: as `beam_hypotheses`.

    Source: as `beam_hypotheses`. Notebook: 06.
    """
    found = beam_hypotheses(model, source, source_mask, beam=beam, alpha=alpha, max_len=max_len, never=never)
    return [hypotheses[0] for hypotheses in found]


def translate(model, sources, search=greedy, *, batch_size=128, **options):
    """Translate any number of sentences, in batches of similar lengths, in evaluation mode.

    Args:
        model: nn.Module with `start` and `step`.
        sources: N lists of ids.
        search: `greedy` or `beam_search`.
        batch_size: sentences decoded together.
        options: passed on to the search, such as max_len, beam, alpha, never.

    Returns:
        list of N `Hypothesis`, in the order of the sources.

    Raises:
        ValueError: if there are no sources, batch_size is below 1, or as the search.

    Notebook: 06.
    """
    device, training = next(model.parameters()).device, model.training
    found = [None] * len(sources)
    model.eval()
    try:
        for chunk in bucket_batches([len(source) for source in sources], batch_size, shuffle=False):
            ids, mask = pad_batch([sources[i] for i in chunk])
            for i, hypothesis in zip(chunk, search(model, ids.to(device), mask.to(device), **options), strict=True):
                found[i] = hypothesis
    finally:
        model.train(training)
    return found


# --- alignment ------------------------------------------------------------------


@torch.inference_mode()
def alignment(model, source, source_mask, target_in):
    """Where a model with attention looks when it is fed the true target.

    Args:
        model: `Seq2Seq` with an `AttentionDecoder`; put it in evaluation mode before.
        source: (B, S) int64 ids.
        source_mask: (B, S) bool, True = may attend; None: all.
        target_in: (B, T) int64 ids: `<sos>` and the target.

    Returns:
        (B, T, S) weights; row t was used to predict the word after target_in[:, t].

    Raises:
        ValueError: if the model has no attention.

    Notebook: 06.
    """
    _, state = model.decoder(target_in, model.start(source, source_mask))
    if "weights" not in state:
        raise ValueError(f"a {type(model.decoder).__name__} has no attention weights")
    return state["weights"]


def alignment_accuracy(weights, truth):
    """The share of target words whose largest weight is on the source word that they translate.

    Args:
        weights: (T, S) attention of one sentence, without a row for `<eos>`.
        truth: T source positions, such as `course_lib.toy.Pair.alignment`.

    Returns:
        float from 0 to 1.

    Raises:
        ValueError: if there are not as many rows as positions, or a position is outside the source.

    Example:
        >>> alignment_accuracy(torch.tensor([[0.9, 0.1], [0.6, 0.4], [0.2, 0.8]]), [0, 1, 1])
        0.666...

    Notebook: 06.
    """
    truth = torch.as_tensor(truth, device=weights.device)
    if weights.ndim != 2 or truth.shape != weights.shape[:1] or len(truth) == 0:
        raise ValueError(f"weights (T, S) and T positions are wanted, got {tuple(weights.shape)} and {len(truth)}")
    if truth.min() < 0 or truth.max() >= weights.shape[1]:
        raise ValueError(
            f"positions must be from 0 to {weights.shape[1] - 1}, got {truth.min().item()} to {truth.max().item()}"
        )
    return (weights.argmax(-1) == truth).double().mean().item()


# --- shared ---------------------------------------------------------------------


def _allowed_log_probs(logits, never):
    """Log-probabilities, minus infinity for the ids that may not be chosen."""
    for i in never:
        if not 0 <= i < logits.shape[-1]:
            raise ValueError(f"never holds {i}, ids go from 0 to {logits.shape[-1] - 1}")
    log_probs = logits.log_softmax(-1)
    log_probs[:, list(never)] = -torch.inf
    return log_probs


def _hypothesis(tokens, score, ended, weights, real):
    """One row of a search as a `Hypothesis`: cut before `<eos>`, weights of the real source tokens alone."""
    end = tokens.index(EOS) if ended else len(tokens)
    if weights is not None:
        weights = weights[:end] if real is None else weights[:end, real]
    return Hypothesis(tokens[:end], score, ended, weights)


def _real(source_mask, b):
    """The mask of one sentence, if there is one."""
    return None if source_mask is None else source_mask[b]


def _embedding(vocab_size, width):
    """An embedding that serves as output layer too: small weights keep the first logits small."""
    if vocab_size < 1:
        raise ValueError(f"vocab_size must be at least 1, got {vocab_size}")
    embedding = nn.Embedding(vocab_size, width)
    nn.init.normal_(embedding.weight, std=width**-0.5)
    return embedding


def _embed(ids, embedding):
    """The embeddings, enlarged so that their entries have variance 1 at first."""
    return embedding(ids) * embedding.embedding_dim**0.5


def _check_dropout(p):
    if not 0 <= p < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {p}")


def _check_teacher_forcing(p):
    if not 0 <= p <= 1:
        raise ValueError(f"teacher_forcing is a probability from 0 to 1, got {p}")


def _check_decoder_layer(layer, fed):
    """One direction, and room for an embedding beside the context."""
    if layer.bidirectional:
        raise ValueError("a bidirectional decoder would read the words that it has to write: use one direction")
    if layer.input_size <= fed:
        raise ValueError(
            f"the decoder's layer has input_size {layer.input_size}; "
            f"wanted the width of an embedding plus context_size {fed}"
        )


def _check_ids(name, ids, embedding):
    """Ids (B, length) of the vocabulary, where the model is."""
    if ids.ndim != 2 or ids.numel() == 0:
        raise ValueError(
            f"{name} has shape {tuple(ids.shape)}, wanted (B, length) with at least one sentence and token"
        )
    if ids.dtype != torch.int64:
        raise ValueError(f"{name} is {ids.dtype}, wanted int64 ids")
    if ids.device != embedding.weight.device:
        raise ValueError(f"{name} is on {ids.device}, the model on {embedding.weight.device}")
    if not ids.is_cuda and (ids.min() < 0 or ids.max() >= len(embedding.weight)):  # a GPU would have to wait
        raise ValueError(
            f"{name} must be ids from 0 to {len(embedding.weight) - 1}, got {ids.min().item()} to {ids.max().item()}"
        )


def _check_target(target_in, embedding, state):
    _check_ids("target_in", target_in, embedding)
    if len(state["h"]) != len(target_in):
        raise ValueError(f"target_in holds {len(target_in)} sentences, the state {len(state['h'])}")


def _lengths(mask, source):
    """Real tokens of each row, on the CPU, or None if there is no padding."""
    if mask.dtype != torch.bool or mask.shape != source.shape:
        raise ValueError(
            f"mask must be boolean of the source's shape {tuple(source.shape)}, got {mask.dtype} {tuple(mask.shape)}"
        )
    lengths = mask.sum(1).cpu()
    if lengths.min() < 1:
        raise ValueError("mask has a row without a real token: there is nothing to read")
    if not torch.equal(mask.cpu(), length_mask(lengths, mask.shape[1])):
        raise ValueError("mask has padding before a real token: the real ones must come first")
    return lengths if lengths.min() < mask.shape[1] else None


def _check_search(source, max_len, never):
    if source.ndim != 2 or source.numel() == 0:
        raise ValueError(f"source has shape {tuple(source.shape)}, wanted (B, S) with at least one sentence and token")
    if max_len < 1:
        raise ValueError(f"max_len must be at least 1, got {max_len}")
    if EOS in never:
        raise ValueError("<eos> may not be among the ids that are never chosen: no sentence could end")
