"""Sequence to sequence: one recurrent network reads, another writes.

Read `Encoder` and `Decoder`, joined by one vector; `AttentionDecoder`, which looks back at every word; and `Seq2Seq`,
the two halves as one model, which `course_lib.translation` trains and `course_lib.generate` lets write.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.attention import AdditiveAttention
from course_lib.functional import Dropout
from course_lib.rnn import as_parts, by_layer, by_row
from course_lib.utils.validate import (
    check_choice,
    check_instance,
    check_real,
    check_sizes,
    check_tensor,
    dtype_of,
    look_up,
)


class Encoder(nn.Module):
    """Reads the source: a state for every word, and one vector for the whole sentence, the context.

    With pool="last" that is the state of the top layer after each sentence's own last word; a bidirectional layer adds
    that of its backward half after the first word. Of an LSTM it is the visible state h.

    Args:
        layer: `RNN`, `LSTM` or `GRU`, stacked or not, in one direction or two; its input_size is the embedding's width.
        dropout: dropout probability of the embeddings and of the states.
        pool: "last", or the "mean" of the states of all real words, to which every word has a short way.

    >>> from course_lib.lstm_gru import GRU
    >>> encoder = Encoder(11, GRU(3, 4, bidirectional=True))
    >>> source, source_real = torch.tensor([[5, 6, 7], [8, 9, 1]]), torch.tensor([[True] * 3, [True, True, False]])
    >>> states, context = encoder(source, source_real)
    >>> states.shape, context.shape
    (torch.Size([2, 3, 8]), torch.Size([2, 8]))

    Source: Sutskever, Vinyals and Le (2014), "Sequence to Sequence Learning with Neural Networks", arXiv:1409.3215,
    section 2; two directions: Bahdanau, Cho and Bengio (2015), arXiv:1409.0473, section 3.2.
    """

    def __init__(self, vocab_size, layer, dropout=0.0, pool="last"):
        super().__init__()
        check_choice("pool", pool, ("last", "mean"))
        check_instance("layer", layer, nn.RNNBase)
        self.embedding = ScaledEmbedding(vocab_size, layer.input_size)
        self.layer = layer
        self.dropout, self.pool = Dropout(dropout), pool
        self.output_size = layer.hidden_size * (2 if layer.bidirectional else 1)

    def forward(self, source, source_real=None):
        """Read source (B, S); source_real (B, S) bool, True = a real token, padding at the end. None: all are."""
        x = self.dropout(look_up("source", source, self.embedding))  # (B, S, I)
        check_real("source_real", source_real, source, first=True)
        lengths = None if source_real is None else source_real.sum(1)  # (B,)
        states, last = self.layer(x, lengths=lengths)  # (B, S, E); (N * directions, B, D)
        if self.pool == "last":
            top = as_parts(last)[0][-2 if self.layer.bidirectional else -1 :]  # (directions, B, D)
            context = top.transpose(0, 1).flatten(1)  # (B, E)
        else:
            context = states.mean(1) if lengths is None else states.sum(1) / lengths[:, None]  # states are 0 at padding
        return self.dropout(states), self.dropout(context)  # (B, S, E), 0 at padding; (B, E)


class Decoder(nn.Module):
    r"""Writes the target from one vector: all that it knows of the source is the context c.

    $$ s_0 = \tanh(c\, W_c^\top + b_c), \quad s_t = \text{layer}([e(y_{t-1}) ; c], s_{t-1}), \quad
       o_t = \tanh([s_t ; e(y_{t-1}) ; c]\, W_o^\top + b_o), \quad \text{logits}_t = o_t W_e^\top + b $$

    Without `feed_context` the layer reads e(y_{t-1}) alone, o_t is made of s_t, and c acts through s_0. W_e is the
    table behind e (tied weights): what is learned about a word when it is read helps when it is written.

    Args:
        layer: `RNN`, `LSTM` or `GRU` in one direction. Its input_size is the width I of the embedding, with
            `feed_context` I plus context_size.
        context_size: E, the encoder's `output_size`.
        feed_context: True shows the context at every step (Cho et al.); False at the start only (Sutskever et al.).
        dropout: dropout probability of the embeddings, the states and o.

    >>> from course_lib.lstm_gru import GRU
    >>> decoder = Decoder(11, GRU(3, 5), context_size=4)
    >>> logits, state = decoder(torch.tensor([[2, 7, 8]]), decoder.start(torch.zeros(1, 6, 4), torch.zeros(1, 4)))
    >>> logits.shape
    torch.Size([1, 3, 11])

    Source: Sutskever et al. (2014), arXiv:1409.3215, section 2; Cho et al. (2014), arXiv:1406.1078, section 2.2 and
    appendix A.1.2; tied weights: Press and Wolf (2017), arXiv:1608.05859. Differs: Sutskever's decoder starts from the
    encoder's states as they are; here a learned map stands between, so that the two halves may have different sizes.
    """

    def __init__(self, vocab_size, layer, context_size, *, feed_context=False, dropout=0.0):
        super().__init__()
        fed = context_size if feed_context else 0
        check_decoder_layer(layer, fed)
        self.feed_context, self.context_size, self.dropout = feed_context, context_size, Dropout(dropout)
        self.embedding = ScaledEmbedding(vocab_size, layer.input_size - fed)
        self.layer = layer
        self.bridge = InitialState(context_size, layer)
        features = layer.hidden_size + (layer.input_size if feed_context else 0)
        self.readout = OutputLayer(features, self.embedding, dropout)

    def start(self, states, context, source_real=None):
        """The state before the first word, a dict with the batch first, from context (B, E) alone."""
        return self.bridge(context) | {"context": context}

    def forward(self, target_in, state):
        """Logits (B, T, V) of every next word given the true ones before it, all steps at once, and the state after.

        target_in (B, T) begins with `<sos>` when `state` comes from `start`.
        """
        check_batch(target_in, state)
        x = self.dropout(look_up("target_in", target_in, self.embedding))  # (B, T, I)
        if self.feed_context:
            context = state["context"].unsqueeze(1).expand(-1, x.shape[1], -1)  # (B, T, E)
            x = torch.cat([x, context], -1)  # (B, T, I + E)
        outputs, after = self.layer(x, by_layer(state))  # (B, T, D)
        features = torch.cat([outputs, x], -1) if self.feed_context else outputs
        return self.readout(features), state | by_row(after)


class AttentionDecoder(nn.Module):
    r"""Writes the target with an eye on the source: for every word another mean of the encoder's states.

    $$ c_t = \text{attention}(s_{t-1}, h_1, \dots, h_S) $$

    stands where `Decoder` has c. The state s_{t-1} asks, the encoder's states answer: a long sentence no longer has to
    fit into one vector. Since c_t depends on s_{t-1}, the steps cannot be computed at once; all logits can.
    Arguments as `Decoder` with `feed_context`, and attention_size A, the hidden layer of the attention.

    >>> from course_lib.lstm_gru import GRU
    >>> decoder = AttentionDecoder(11, GRU(3 + 4, 5), context_size=4, attention_size=6)
    >>> logits, state = decoder(torch.tensor([[2, 7, 8]]), decoder.start(torch.zeros(1, 2, 4), torch.zeros(1, 4)))
    >>> logits.shape, state["weights"].shape
    (torch.Size([1, 3, 11]), torch.Size([1, 3, 2]))

    Source: Bahdanau et al. (2015), arXiv:1409.0473, section 3.1 and appendix A.2.2. Differs: tanh for the paper's
    maxout; s_0 comes from both directions' last states, the paper takes the backward one's; any layer; tied weights.
    """

    def __init__(self, vocab_size, layer, context_size, attention_size, *, dropout=0.0):
        super().__init__()
        check_decoder_layer(layer, context_size)
        self.context_size, self.dropout = context_size, Dropout(dropout)
        self.embedding = ScaledEmbedding(vocab_size, layer.input_size - context_size)
        self.layer = layer
        self.attention = AdditiveAttention(layer.hidden_size, context_size, attention_size)
        self.bridge = InitialState(context_size, layer)
        self.readout = OutputLayer(layer.hidden_size + layer.input_size, self.embedding, dropout)

    def start(self, states, context, source_real=None):
        """The state before the first word, a dict with the batch first. The keys are projected once a sentence."""
        check_tensor("states", states, ("B", "S", self.context_size))
        first = self.bridge(context)
        if source_real is None:
            source_real = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        return first | {"keys": self.attention.project(states), "states": states, "source_real": source_real}

    def forward(self, target_in, state):
        """As `Decoder`, step by step; "weights" (B, T, S) of the state returned are the attention of these T steps."""
        check_batch(target_in, state)
        x = self.dropout(look_up("target_in", target_in, self.embedding))  # (B, T, I)
        keys, states, mask = state["keys"], state["states"], state["source_real"].unsqueeze(1)  # (B, 1, S)
        hidden, outputs, inputs, weights = by_layer(state), [], [], []
        for word in x.unbind(1):  # (B, I)
            query = as_parts(hidden)[0][-1]  # (B, D), the top layer's
            context, weight = self.attention(query, keys, states, mask)  # (B, E), (B, S)
            inputs.append(torch.cat([word, context], -1))  # (B, I + E)
            output, hidden = self.layer.step(inputs[-1], hidden)
            outputs.append(output)
            weights.append(weight)
        features = torch.cat([torch.stack(outputs, 1), torch.stack(inputs, 1)], -1)  # (B, T, D + I + E)
        return self.readout(features), state | by_row(hidden) | {"weights": torch.stack(weights, 1)}


class InitialState(nn.Module):
    """From the encoder's context to the decoder's first state, tanh(c W + b), for any kind and number of layers."""

    def __init__(self, context_size, layer):
        super().__init__()
        check_sizes(context_size=context_size)
        self.shape = (2 if layer.mode == "LSTM" else 1, layer.num_layers, layer.hidden_size)
        self.map = nn.Linear(context_size, math.prod(self.shape))

    def forward(self, context):
        """The first state for context (B, E), as a dict: "h" and, for an LSTM, "c", each (B, N, D)."""
        weight = self.map.weight
        check_tensor("context", context, ("B", self.map.in_features), dtype_of(weight), like=weight)
        first = torch.tanh(self.map(context)).unflatten(1, self.shape)  # (B, 1 or 2, N, D)
        return dict(zip("hc", first.unbind(1), strict=False))


class OutputLayer(nn.Module):
    """From features f of a step to the next word's logits, through the target's own embeddings E: tanh(f W + b) E^T."""

    def __init__(self, num_features, embedding, dropout=0.0):
        super().__init__()
        V, width = embedding.weight.shape
        self.hidden = nn.Linear(num_features, width)
        # The decoder owns the embedding: set past nn.Module, it has no third name in the state_dict.
        object.__setattr__(self, "embedding", embedding)
        tie(self)
        self.register_load_state_dict_post_hook(tie)
        self.bias = nn.Parameter(torch.zeros(V))
        self.dropout = Dropout(dropout)

    def forward(self, features):
        """Logits (B, T, V) of all steps at once, from features (B, T, F)."""
        hidden = torch.tanh(self.hidden(self.dropout(features)))  # (B, T, I)
        return F.linear(self.dropout(hidden), self.weight, self.bias)

    def _apply(self, fn, recurse=True):
        """What `to` and `to_empty` go through; they may make two tensors of the one that is tied."""
        super()._apply(fn, recurse)
        tie(self)
        return self


def tie(output, _=None):
    """The embedding's parameter under a second name; `load_state_dict(..., assign=True)` makes two of it."""
    output.weight = output.embedding.weight


class ScaledEmbedding(nn.Embedding):
    """An embedding that can serve as output layer too: weights of variance 1 / I keep the first logits small.

    What is read is multiplied by the square root of I, so that its entries have variance 1 at first.
    """

    def __init__(self, vocab_size, width):
        check_sizes(vocab_size=vocab_size)
        super().__init__(vocab_size, width)
        nn.init.normal_(self.weight, std=width**-0.5)

    def forward(self, ids):
        """Vectors (..., I) of ids (...)."""
        return super().forward(ids) * self.embedding_dim**0.5


class Seq2Seq(nn.Module):
    """An encoder and a decoder, `Decoder` or `AttentionDecoder`, as one model.

    >>> from course_lib.lstm_gru import LSTM
    >>> model = Seq2Seq(Encoder(9, LSTM(3, 4)), Decoder(11, LSTM(5, 6), context_size=4))
    >>> model(torch.tensor([[4, 5, 6]]), None, torch.tensor([[2, 7]])).shape
    torch.Size([1, 2, 11])

    Source: Sutskever et al. (2014), arXiv:1409.3215, figure 1.
    """

    max_len = None  # of a translation: a state has no positions

    def __init__(self, encoder, decoder):
        super().__init__()
        if encoder.output_size != decoder.context_size:
            raise ValueError(
                f"the encoder's output_size is {encoder.output_size}, the decoder's context_size {decoder.context_size}"
            )
        self.encoder, self.decoder = encoder, decoder
        self.vocab_size = decoder.embedding.num_embeddings

    def forward(self, source, source_real, target_in):
        """Logits (B, T, V) under teacher forcing: those at t are for the word after target_in[:, t].

        source is (B, S), source_real (B, S) bool, True = a real token, None: all are; target_in is (B, T).
        """
        return self.decoder(target_in, self.start(source, source_real))[0]

    def start(self, source, source_real=None):
        """Read the source: the state before the first target word, a dict with the batch first."""
        return self.decoder.start(*self.encoder(source, source_real), source_real)

    def step(self, tokens, state):
        """Read target tokens (B, T), each once: logits (B, V) of the one that comes next, and the state after them."""
        logits, state = self.decoder(tokens, state)
        return logits[:, -1], state


# --- doors ----------------------------------------------------------------------


def check_decoder_layer(layer, fed):
    """One direction, and room for an embedding beside the context."""
    check_instance("layer", layer, nn.RNNBase)
    check_sizes(least=0, context_size=fed)
    if layer.bidirectional:
        raise ValueError("a bidirectional decoder would read the words that it has to write: use one direction")
    if layer.input_size <= fed:
        raise ValueError(
            f"the decoder's layer has input_size {layer.input_size}; "
            f"wanted the width of an embedding plus context_size {fed}"
        )


def check_batch(target_in, state):
    """As many targets as sources."""
    check_tensor("target_in", target_in, ("B", "T"))
    if len(target_in) != len(state["h"]):
        raise ValueError(f"target_in holds {len(target_in)} sentences, the state {len(state['h'])}")
