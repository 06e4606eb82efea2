"""What a recurrent layer is put to: predicting the next token, and judging a whole text.

`LanguageModel` reads an answer off every state (many to many, in step), `SequenceClassifier` one answer off
all of them (many to one). Both take the layer as an argument: `RNN`, `LSTM`, `GRU`, stacked or not.
"""

import torch
from torch import nn

from course_lib.functional import Dropout
from course_lib.rnn import by_layer, by_row
from course_lib.utils.validate import check_choice, check_instance, check_positive, check_real, check_sizes, look_up


def word_embedding(vocab_size, width, std):
    """An embedding (V, width) whose entries are drawn with standard deviation `std`.

    Torch draws with 1. Few and frequent tokens, such as characters, learn sooner from there; a rare word meets few
    updates and keeps most of what chance gave it, and that is noise: with thousands of words 0.1 is better.

    >>> word_embedding(5000, 20, std=0.1)
    Embedding(5000, 20)
    """
    check_sizes(vocab_size=vocab_size, width=width)
    check_positive(embedding_std=std)
    return nn.Embedding.from_pretrained(nn.init.normal_(torch.empty(vocab_size, width), std=std), freeze=False)


class LanguageModel(nn.Module):
    """The next token's logits at every step, from the state of a recurrent layer.

    Args:
        layer: `RNN`, `LSTM` or `GRU` in one direction; its input_size is the width of the embedding.
        dropout: dropout probability of embeddings and states.
        embedding_std: of the embeddings at the start, see `word_embedding`.

    >>> from course_lib.rnn import RNN
    >>> LanguageModel(9, RNN(4, 6))(torch.tensor([[3, 1, 8], [2, 2, 0]])).shape
    torch.Size([2, 3, 9])

    Source: Mikolov et al. (2010), "Recurrent Neural Network Based Language Model", section 2.
    """

    max_len = None  # of a text: a state has no positions

    def __init__(self, vocab_size, layer, dropout=0.0, embedding_std=1.0):
        super().__init__()
        check_instance("layer", layer, nn.RNNBase)
        if layer.bidirectional:
            raise ValueError("a bidirectional layer reads the token to be predicted: use one direction")
        self.vocab_size = vocab_size
        self.embedding = word_embedding(vocab_size, layer.input_size, embedding_std)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, vocab_size)
        self.dropout = Dropout(dropout)

    def forward(self, ids):
        """Logits (B, T, V) of the token after each of ids (B, T)."""
        return self.run(ids)[0]

    def run(self, ids, state=None):
        """Logits (B, T, V), and the layer's state to go on from; detach it before the next batch, see chapter 04."""
        x = self.dropout(look_up("ids", ids, self.embedding))  # (B, T, I)
        states, state = self.layer(x, state)  # (B, T, D)
        return self.output(self.dropout(states)), state

    def start(self, batch_size):
        """The state before the first token: zeros, as a dict with the batch first; see `course_lib.generate`."""
        return by_row(self.layer.zero_state(batch_size))

    def step(self, tokens, state):
        """Read tokens (B, T), each once: logits (B, V) of the one that comes next, and the state after them."""
        logits, after = self.run(tokens, by_layer(state))
        return logits[:, -1], by_row(after)


POOLS = ("last", "mean", "max")


class SequenceClassifier(nn.Module):
    """Logits of the classes of a whole text, from the states of a recurrent layer. Padding does not count.

    Embeddings start small, which is right for texts with thousands of words; see `word_embedding`.

    Args:
        layer: `RNN`, `LSTM` or `GRU`; its input_size is the width of the embedding.
        pool: "last", each direction's state after its last real token; "mean" or "max" over those of all real tokens.
        dropout: dropout probability of embeddings and of the pooled vector.
        embedding_std: of the embeddings at the start, see `word_embedding`.

    >>> from course_lib.rnn import RNN
    >>> from course_lib.text import pad_batch
    >>> SequenceClassifier(9, RNN(4, 6), num_classes=3)(*pad_batch([[3, 1, 8], [2]])).shape
    torch.Size([2, 3])
    """

    def __init__(self, vocab_size, layer, num_classes=2, pool="last", dropout=0.0, embedding_std=0.1):
        super().__init__()
        check_choice("pool", pool, POOLS)
        check_sizes(num_classes=num_classes)
        check_instance("layer", layer, nn.RNNBase)
        self.embedding = word_embedding(vocab_size, layer.input_size, embedding_std)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), num_classes)
        self.pool = pool
        self.dropout = Dropout(dropout)

    def forward(self, ids, real=None):
        """Logits (B, C) of ids (B, T); real (B, T) bool, True = a real token, padding at the end. None: all are."""
        x = self.dropout(look_up("ids", ids, self.embedding))  # (B, T, I)
        check_real("real", real, ids, first=True)
        real = torch.ones_like(ids, dtype=torch.bool) if real is None else real
        # Forward states never see the padding after them; only a backward layer must be told where to start.
        states, _ = self.layer(x, lengths=real.sum(1) if self.layer.bidirectional else None)  # (B, T, D or 2 D)
        return self.output(self.dropout(self.pooled(states, real)))

    def pooled(self, states, real):
        """The states of the real tokens as one vector a text."""
        if self.pool == "mean":
            return (states * real[..., None]).sum(1) / real.sum(1, keepdim=True)
        if self.pool == "max":
            return states.masked_fill(~real[..., None], -torch.inf).amax(1)
        last = states[torch.arange(len(states), device=states.device), real.sum(1) - 1]  # each row's own last token
        if self.layer.bidirectional:
            D = self.layer.hidden_size
            return torch.cat([last[:, :D], states[:, 0, D:]], 1)  # backward ends at the first token
        return last
