"""What a recurrent layer is put to: predicting the next token, and judging a whole text.

`LanguageModel` reads an answer off every state (many to many, in step), `SequenceClassifier` one answer off
all of them (many to one). Both take the layer as an argument: `RNN`, `LSTM`, `GRU`, stacked or not.
`stream_batches` cuts a long text so that the state can be carried from batch to batch.

Notebooks: 03, 04 and 05.
"""

import torch
from torch import nn

from course_lib.rnn import dropout
from course_lib.text import length_mask


class LanguageModel(nn.Module):
    r"""The next token's logits at every step, from the state of a recurrent layer.

    $$ \text{logits}_t = h_t W^\top + b, \quad h_t = \text{layer}(e(x_1), \dots, e(x_t)) $$

    Args:
        vocab_size: V.
        layer: `RNN`, `LSTM` or `GRU` in one direction; its input_size is the width of the embedding.
        dropout: share of the entries of embeddings and states set to zero in training.

    Raises:
        ValueError: if the layer is bidirectional: its backward half reads the very token to be predicted; if
            `vocab_size` is below 1 or `dropout` outside [0, 1).

    Example:
        >>> from course_lib.rnn import RNN
        >>> LanguageModel(9, RNN(4, 6))(torch.tensor([[3, 1, 8], [2, 2, 0]])).shape
        torch.Size([2, 3, 9])

    Source: Mikolov, Karafiat, Burget, Cernocky and Khudanpur (2010), "Recurrent Neural Network Based Language
    Model", section 2. Differs: the embedding has its own width. Notebook: 03.
    """

    def __init__(self, vocab_size, layer, dropout=0.0):
        super().__init__()
        if layer.bidirectional:
            raise ValueError("a bidirectional layer reads the token to be predicted: use one direction")
        _check_options(dropout, vocab_size=vocab_size)
        self.embedding = nn.Embedding(vocab_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, vocab_size)
        self.dropout = dropout

    def forward(self, ids):
        """Logits from a zero state.

        Args:
            ids: (B, T) int64 tokens.

        Returns:
            (B, T, V) logits of the token after each.
        """
        return self.run(ids)[0]

    def run(self, ids, state=None):
        """Logits, and the state to go on from.

        Args:
            ids: (B, T) int64 tokens.
            state: the layer's state after the tokens before, or None.

        Returns:
            logits: (B, T, V).
            state: of the layer, after the last token; detach it before the next batch, see chapter 04.
        """
        states, state = self.layer(dropout(self.embedding(ids), self.dropout, self.training), state)
        return self.output(dropout(states, self.dropout, self.training)), state

    def next_probs(self):
        """A function for `course_lib.language.sample` that keeps the state, so that each token is read once.

        With dropout, call `eval()` before.

        Returns:
            `next_probs(ids (S,)) -> (V,)`. Called again with a longer list, it reads what is new; it raises a
            ValueError if the list does not go on from the one before.

        Example:
            >>> from course_lib.language import sample
            >>> from course_lib.rnn import RNN
            >>> model = LanguageModel(9, RNN(4, 6))
            >>> len(sample(model.next_probs(), [3], 5, torch.Generator().manual_seed(0)))
            5
        """
        state, read = None, []

        @torch.inference_mode()
        def next_probs(ids):
            nonlocal state, read
            ids = ids.tolist()
            if len(ids) <= len(read) or ids[: len(read)] != read:
                raise ValueError(
                    f"got {len(ids)} tokens, wanted the {len(read)} read before and at least one more; "
                    "another text needs another next_probs"
                )
            for token in ids[len(read) :]:
                x = self.embedding(torch.tensor([token], device=self.embedding.weight.device))  # (1, I)
                output, state = self.layer.step(x, state)
            read = ids
            return self.output(output)[0].softmax(-1)

        return next_probs


POOLS = ("last", "mean", "max")


class SequenceClassifier(nn.Module):
    """Logits of the classes of a whole text, from the states of a recurrent layer. Padding is never read.

    Args:
        vocab_size: V.
        layer: `RNN`, `LSTM` or `GRU`; its input_size is the width of the embedding.
        classes: number of classes.
        pool: what the states are reduced to: "last", each direction's state after its last real token;
            "mean" or "max" over the states of all real tokens.
        dropout: share of the entries of embeddings and of the pooled vector set to zero in training.

    Raises:
        ValueError: if `pool` is unknown, a size below 1 or `dropout` outside [0, 1).

    Example:
        >>> from course_lib.rnn import RNN
        >>> from course_lib.text import pad_batch
        >>> SequenceClassifier(9, RNN(4, 6), classes=3)(*pad_batch([[3, 1, 8], [2]])).shape
        torch.Size([2, 3])

    Notebook: 05.
    """

    def __init__(self, vocab_size, layer, classes=2, pool="last", dropout=0.0):
        super().__init__()
        if pool not in POOLS:
            raise ValueError(f"pool must be one of {', '.join(POOLS)}, got {pool!r}")
        _check_options(dropout, vocab_size=vocab_size, classes=classes)
        self.embedding = nn.Embedding(vocab_size, layer.input_size)
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size * (2 if layer.bidirectional else 1), classes)
        self.pool = pool
        self.dropout = dropout

    def forward(self, ids, mask):
        """Logits of a padded batch.

        Args:
            ids: (B, T) int64 tokens, padding at the end.
            mask: (B, T) bool, True = real token; at least one in each row.

        Returns:
            (B, classes) logits.

        Raises:
            ValueError: if the shapes differ, the mask is not boolean, or a row has no real token or has padding
                before one.
        """
        if ids.shape != mask.shape:
            raise ValueError(f"ids have shape {tuple(ids.shape)}, the mask {tuple(mask.shape)}: they must be equal")
        if mask.dtype != torch.bool:
            raise ValueError(f"the mask must be boolean, True = real token, got {mask.dtype}")
        lengths = mask.sum(1)
        if lengths.min() < 1:
            raise ValueError(f"row {lengths.argmin().item()} of the mask has no real token: there is nothing to judge")
        if not torch.equal(mask, length_mask(lengths, mask.shape[1])):
            raise ValueError("the mask has padding before a real token: padding must be at the end")
        x = dropout(self.embedding(ids), self.dropout, self.training)
        # Forward states never see the padding after them; only a backward layer must be told where to start.
        states, _ = self.layer(x, lengths=lengths if self.layer.bidirectional else None)
        return self.output(dropout(self._pooled(states, mask, lengths), self.dropout, self.training))

    def _pooled(self, states, mask, lengths):
        """(B, T, width) states to (B, width)."""
        if self.pool == "mean":
            return (states * mask[..., None]).sum(1) / lengths[:, None]
        if self.pool == "max":
            return states.masked_fill(~mask[..., None], -torch.inf).amax(1)
        last = states[torch.arange(len(states), device=states.device), lengths - 1]  # each row's own last token
        if self.layer.bidirectional:
            D = self.layer.hidden_size
            return torch.cat([last[:, :D], states[:, 0, D:]], 1)  # backward ends at the first token
        return last


def stream_batches(ids, batch_size, length):
    """Cut one long text into B streams, and these into batches that continue one another.

    Row b of each batch goes on where row b of the batch before ended, so the state after one batch is the
    right state to start the next with.

    Args:
        ids: (N,) int64 tokens, at least 2 a row.
        batch_size: B, number of streams.
        length: T, steps in a batch; the last batch may be shorter.

    Returns:
        list of (inputs (B, T), targets (B, T)), the targets one token later. Up to B - 1 last tokens
        are left out.

    Raises:
        ValueError: if ids is not one row, or too short, or `length` is below 1.

    Example:
        >>> for inputs, targets in stream_batches(torch.arange(11), batch_size=2, length=3):
        ...     print(inputs.tolist(), targets.tolist())
        [[0, 1, 2], [5, 6, 7]] [[1, 2, 3], [6, 7, 8]]
        [[3, 4], [8, 9]] [[4, 5], [9, 10]]

    Notebooks: 03, 04.
    """
    if ids.ndim != 1 or length < 1 or batch_size < 1:
        raise ValueError(f"wanted (N,) ids and sizes of at least 1, got {tuple(ids.shape)}, {batch_size} and {length}")
    steps = (len(ids) - 1) // batch_size
    if steps < 1:
        raise ValueError(
            f"{len(ids)} tokens are too few for {batch_size} streams: one more than a token each is needed"
        )
    inputs, targets = (ids[shift : shift + batch_size * steps].view(batch_size, steps) for shift in (0, 1))
    return list(zip(inputs.split(length, 1), targets.split(length, 1), strict=True))


def number_of_parameters(model):
    """How many numbers the parameters of a model hold.

    Args:
        model: nn.Module.

    Returns:
        int; a tensor that occurs twice counts once.

    Example:
        >>> number_of_parameters(nn.Linear(3, 5))
        20
    """
    return sum(parameter.numel() for parameter in model.parameters())


def _check_options(dropout, **sizes):
    for name, size in sizes.items():
        if size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be from 0 to below 1, got {dropout}")
