r"""BERT: an encoder that sees both sides, pre-trained to fill in blanks, then fine-tuned.

Read `mask_tokens`, the task; `BERTEmbedding` and `BERT`, the network; then the heads that turn its vectors into
answers. `sentence_pairs` and `join_pair` make the input of the second pre-training task. `from_pretrained` takes the
weights that Hugging Face's class of the same name saves.

Source of all: Devlin et al. (2019), "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
arXiv:1810.04805.
"""

import itertools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.functional import Dropout, combined_mask, padding_mask
from course_lib.positional import LearnedPositions
from course_lib.transformer import RESIDUALS, EncoderLayer, TransformerEncoder, init_weights
from course_lib.utils import bert_checkpoint
from course_lib.utils.validate import (
    check_choice,
    check_ids,
    check_length,
    check_positive,
    check_probability,
    check_real,
    check_sizes,
    check_tensor,
    look_up,
)

IGNORE = -100  # a target that counts for nothing: F.cross_entropy's own mark

# --- the tasks ------------------------------------------------------------------


def mask_tokens(ids, maskable, vocab_size, mask_id, generator=None, mask_prob=0.15, first_regular_id=0):
    """Choose tokens to be predicted, each with probability `mask_prob`, and hide most of them.

    Of the tokens chosen 80 % become the mask, 10 % a random token (from `first_regular_id` on; below are special ones),
    10 % stay as they are. If all became the mask, the network would learn nothing about tokens that it can see, and
    fine-tuning has no masks. `ids` are (B, T) int64; `maskable` (B, T) bool is True at real, regular tokens.

    Returns (B, T) int64 what the network reads, and (B, T) int64 the tokens chosen, with `IGNORE` elsewhere.

    >>> ids = torch.full((1, 1000), 7)
    >>> inputs, targets = mask_tokens(ids, ids > 0, vocab_size=9, mask_id=3)
    >>> bool((inputs[targets == IGNORE] == 7).all()), bool((targets[inputs == 3] == 7).all())
    (True, True)

    Source: Devlin et al. (2019), section 3.1 and appendix A.1. Differs: their number of chosen tokens is fixed.
    """
    check_masking(ids, maskable, vocab_size, mask_id, mask_prob, first_regular_id)
    draws = torch.rand((2, *ids.shape), generator=generator, device=ids.device)
    chosen, fate = maskable & (draws[0] < mask_prob), draws[1]  # (B, T) each
    others = torch.randint(first_regular_id, vocab_size, ids.shape, generator=generator, device=ids.device)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), others, inputs)
    return inputs, ids.masked_fill(~chosen, IGNORE)


def check_masking(ids, maskable, vocab_size, mask_id, mask_prob, first_regular_id):
    """Raise unless `mask_tokens` can take these."""
    check_ids("ids", ids, ("B", "T"), vocab_size)
    check_tensor("maskable", maskable, tuple(ids.shape), torch.bool)
    check_sizes(least=0, mask_id=mask_id, first_regular_id=first_regular_id)
    if max(mask_id, first_regular_id) >= vocab_size:
        raise ValueError(f"{mask_id=} and {first_regular_id=} must be ids below {vocab_size}")
    if not 0 < mask_prob <= 1:
        raise ValueError(f"mask_prob must be above 0 and at most 1, got {mask_prob}")


def sentence_pairs(documents, generator):
    """Pairs of sentences, half of them neighbours in a document, half from two documents.

    Gives a list of (first, second, is_next), one for each sentence of a document that has a next one.

    >>> documents = [["a", "b", "c"], ["x", "y"]]
    >>> [pair[0] for pair in sentence_pairs(documents, torch.Generator().manual_seed(0))]
    ['a', 'b', 'x']

    Source: Devlin et al. (2019), section 3.1, task 2. Differs: a sentence of theirs is a span of text of up to 512
    tokens together.
    """
    documents = [document for document in documents if len(document) > 0]
    if len(documents) < 2 or max(map(len, documents)) < 2:
        sizes = sorted(map(len, documents), reverse=True)[:3]
        raise ValueError(f"wanted two documents, one of them with two sentences, got {len(documents)} of sizes {sizes}")

    def draw(n):
        return torch.randint(n, (), generator=generator).item()

    pairs = []
    for number, document in enumerate(documents):
        for first, following in itertools.pairwise(document):
            other = documents[(number + 1 + draw(len(documents) - 1)) % len(documents)]  # never this document
            is_next = draw(2) == 1
            pairs.append((first, following if is_next else other[draw(len(other))], is_next))
    return pairs


def join_pair(first, second, cls_id, sep_id, max_len=None):
    """One sequence of two: `[CLS] first [SEP] second [SEP]`; of a single text (`second` None): `[CLS] first [SEP]`.

    Returns ids, and segment ids: 0 up to the first [SEP], then 1. Where there would be more than `max_len`, the longer
    part is cut at its end, token by token.

    >>> join_pair([7, 8], [9], cls_id=1, sep_id=2)
    ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])

    Source: Devlin et al. (2019), section 3 and figure 2.
    """
    check_sizes(least=0, cls_id=cls_id, sep_id=sep_id, max_len=max_len or 0)
    for name, part in (("first", first), ("second", second or [])):
        check_length(name, part, 0)
    parts = [list(first)] if second is None else [list(first), list(second)]
    if max_len is not None:
        room = max_len - 1 - len(parts)
        if room < len(parts):
            raise ValueError(f"max_len {max_len} leaves no room for {len(parts)} parts and their special tokens")
        while sum(map(len, parts)) > room:
            max(parts, key=len).pop()
    ids, segment_ids = [cls_id], [0]
    for number, part in enumerate(parts):
        ids += [*part, sep_id]
        segment_ids += [number] * (len(part) + 1)
    return ids, segment_ids


# --- the network ----------------------------------------------------------------


@dataclass(frozen=True)
class BERTConfig:
    """The sizes of a BERT; as they stand, those of BERT-base for lower-case English (section 3 and appendix A.2)."""

    vocab_size: int = 30522  # V
    max_len: int = 512
    d_model: int = 768  # D
    num_layers: int = 12  # N
    num_heads: int = 12  # H
    dim_feedforward: int = 3072  # F
    num_segments: int = 2  # first and second text
    dropout: float = 0.1
    attention_dropout: float | None = None  # of the attention weights; None: as dropout
    residual: str = "post-ln"  # or another of `transformer.RESIDUALS`
    layer_norm_eps: float = 1e-12

    def __post_init__(self):
        check_sizes(vocab_size=self.vocab_size, max_len=self.max_len, d_model=self.d_model)
        check_sizes(num_layers=self.num_layers, num_heads=self.num_heads, dim_feedforward=self.dim_feedforward)
        check_sizes(num_segments=self.num_segments)
        check_probability(dropout=self.dropout, attention_dropout=self.attention_dropout or 0.0)
        check_choice("residual", self.residual, RESIDUALS)
        check_positive(layer_norm_eps=self.layer_norm_eps)

    @classmethod
    def from_name(cls, name):
        """The sizes of a published model, "bert-base-uncased" or "bert-large-uncased"."""
        sizes = {
            "bert-base-uncased": {},
            "bert-large-uncased": {"d_model": 1024, "num_layers": 24, "num_heads": 16, "dim_feedforward": 4096},
        }
        check_choice("name", name, sizes)
        return cls(**sizes[name])

    @classmethod
    def from_huggingface(cls, config):
        """The sizes in a checkpoint's config.json, a dict; what this module cannot compute is refused."""
        return cls(**bert_checkpoint.our_sizes(config))

    def to_huggingface(self):
        """The same sizes in the words of a checkpoint's config.json."""
        if self.residual != "post-ln":
            raise ValueError(f"Hugging Face's BERT has post-ln residuals, this one {self.residual}")
        return bert_checkpoint.their_sizes(self)


class BERTEmbedding(nn.Module):
    r"""Which token, at which position, and in which of the two texts: the sum of three tables, normalised.

    $$ x_t = \text{dropout}(\text{LayerNorm}(E[\text{id}_t] + P[t] + S[\text{segment}_t])) $$

    Source: Devlin et al. (2019), figure 2.
    """

    def __init__(self, config):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = LearnedPositions(config.d_model, config.max_len)
        self.segment = nn.Embedding(config.num_segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = Dropout(config.dropout)

    def forward(self, ids, segment_ids=None):
        """(B, T) tokens, and 0 or 1 for first and second text (None: all first), to (B, T, D)."""
        segment_ids = torch.zeros_like(ids) if segment_ids is None else segment_ids
        x = self.position.add(look_up("ids", ids, self.token)) + look_up("segment_ids", segment_ids, self.segment)
        return self.dropout(self.norm(x))  # (B, T, D)


class BERT(bert_checkpoint.Pretrained):
    """The encoder and what it reads: a vector for each token, made of both its sides. `pool` needs the pooler.

    >>> model = BERT(BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, num_heads=3))
    >>> model(torch.tensor([[1, 7, 8, 2]])).shape
    torch.Size([1, 4, 12])

    Source: Devlin et al. (2019), section 3.
    """

    def __init__(self, config, pooler=True):
        super().__init__()
        self.config = config
        self.embedding = BERTEmbedding(config)
        options = {"attention_dropout": config.attention_dropout, "hidden_dropout": 0.0, "activation": F.gelu}
        sizes = (config.d_model, config.num_heads, config.dim_feedforward, config.dropout)
        layers = [EncoderLayer(*sizes, residual=config.residual, **options) for _ in range(config.num_layers)]
        self.encoder = TransformerEncoder(layers, nn.LayerNorm(config.d_model) if config.residual == "pre-ln" else None)
        self.pooler = nn.Linear(config.d_model, config.d_model) if pooler else None
        init_weights(self)
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = config.layer_norm_eps  # BERT's norms add 1e-12 to the variance, torch's 1e-5

    def forward(self, ids, real=None, segment_ids=None, mask=None):
        """The vectors of the last layer, (B, T, D), 0 at padding.

        Args:
            ids: (B, T) int64 tokens.
            real: (B, T) bool, True = a real token; padding stands behind them. None: all are real.
            segment_ids: (B, T) int64, 0 for the first text, 1 for the second; None: all 0.
            mask: bool that broadcasts to (B, H, T, T), True = may attend, beside the padding; or None.
        """
        x, mask = self.read(ids, real, segment_ids, mask)
        return self.encoder(x, mask)

    def read(self, ids, real, segment_ids, mask):
        """The embeddings (B, T, D) and the mask of the attention."""
        if segment_ids is not None:
            check_tensor("segment_ids", segment_ids, tuple(ids.shape), torch.int64)
        x = self.embedding(ids, segment_ids)
        check_real("real", real, ids, first=True)
        return x, combined_mask(padding_mask(real), mask)

    def hidden(self, ids, real=None, segment_ids=None, mask=None):
        """The vectors before the first layer and after each, as they are: N + 1 tensors (B, T, D), not 0 at padding."""
        x, mask = self.read(ids, real, segment_ids, mask)
        found = [x]
        for layer in self.encoder.layers:
            found.append(layer(found[-1], mask))
        return found

    def pool(self, x):
        r"""One vector (B, D) for the whole text, from that of its first token, [CLS]: $\tanh(W x_0 + b)$."""
        if self.pooler is None:
            raise ValueError("this BERT was made with pooler=False: it has no layer for [CLS]")
        return torch.tanh(self.pooler(x[:, 0]))

    @classmethod
    def for_checkpoint(cls, config, tensors):
        """A BERT of a checkpoint's sizes, for `from_pretrained`."""
        return cls(BERTConfig.from_huggingface(config), pooler="bert.pooler.dense.weight" in tensors)


# --- what stands on top ---------------------------------------------------------


class BERTForPreTraining(bert_checkpoint.Pretrained):
    r"""Both pre-training tasks: which token stood here, and does the second text follow the first?

    $$ \text{token logits}_t = \text{LayerNorm}(\text{gelu}(W x_t + b)) E^\top + c, \qquad
       \text{pair logits} = W' \text{pool}(x) + b' $$

    The table of embeddings E is the output layer too. Without a pooler there are no pair logits.

    >>> config = BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, num_heads=3)
    >>> token_logits, pair_logits = BERTForPreTraining(BERT(config))(torch.tensor([[1, 7, 8, 2]]))
    >>> token_logits.shape, pair_logits.shape
    (torch.Size([1, 4, 11]), torch.Size([1, 2]))

    Source: Devlin et al. (2019), section 3.1; the layer before the table is in the authors' code.
    """

    def __init__(self, bert):
        super().__init__()
        D, V = bert.config.d_model, bert.config.vocab_size
        self.bert = bert
        self.transform = init_weights(nn.Linear(D, D))
        self.norm = nn.LayerNorm(D, eps=bert.config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(V))
        self.pair = None if bert.pooler is None else init_weights(nn.Linear(D, 2))

    def forward(self, ids, real=None, segment_ids=None, positions=None, mask=None):
        """Token logits (B, T, V), and pair logits (B, 2): first "the second text follows", then "it does not".

        With `positions`, (B, T) bool, the token logits are those of its n positions, (n, V): the output layer is the
        largest of the network, and few tokens are masked. The other arguments are those of `BERT.forward`.
        """
        x = self.bert(ids, real, segment_ids, mask)  # (B, T, D)
        pair_logits = None if self.pair is None else self.pair(self.bert.pool(x))
        return self.token_logits(x if positions is None else x[positions]), pair_logits

    @classmethod
    def for_checkpoint(cls, config, tensors):
        """One of a checkpoint's sizes; BertForMaskedLM's has no pooler."""
        return cls(BERT.for_checkpoint(config, tensors))

    def token_logits(self, x):
        """Logits (..., V) of the token at each of the vectors (..., D)."""
        x = self.norm(F.gelu(self.transform(x)))
        return F.linear(x, self.bert.embedding.token.weight, self.bias)


class BERTForSequenceClassification(bert_checkpoint.Pretrained):
    """Classes of whole texts: a linear layer on `BERT.pool`, or with `pool="mean"` on the mean over the real tokens.

    Source: Devlin et al. (2019), section 4.1.
    """

    def __init__(self, bert, num_classes=2, dropout=None, pool="cls"):
        super().__init__()
        check_sizes(num_classes=num_classes)
        check_choice("pool", pool, ["mean"] if bert.pooler is None else ["cls", "mean"])
        self.bert, self.pool = bert, pool
        self.dropout = Dropout(bert.config.dropout if dropout is None else dropout)
        self.classifier = init_weights(nn.Linear(bert.config.d_model, num_classes))

    @classmethod
    def for_checkpoint(cls, config, tensors):
        """One of a checkpoint's sizes, with its number of classes and its pool."""
        bert, num_classes = BERT.for_checkpoint(config, tensors), bert_checkpoint.number_of_classes(tensors)
        pool = bert_checkpoint.pooling(config, tensors)
        return cls(bert, num_classes, config.get("classifier_dropout"), pool)

    def forward(self, ids, real=None, segment_ids=None, mask=None):
        """Logits (B, num_classes), for the arguments of `BERT.forward`."""
        x = self.bert(ids, real, segment_ids, mask)  # (B, T, D), 0 at padding
        if self.pool == "cls":
            x = self.bert.pool(x)  # (B, D)
        else:
            x = x.mean(1) if real is None else x.sum(1) / real.sum(1, keepdim=True)
        return self.classifier(self.dropout(x))


class BERTForTokenClassification(bert_checkpoint.Pretrained):
    """A class for each token, such as its part of speech: a linear layer on every vector.

    Source: Devlin et al. (2019), section 5.3.
    """

    def __init__(self, bert, num_classes, dropout=None):
        super().__init__()
        check_sizes(num_classes=num_classes)
        self.bert = bert
        self.dropout = Dropout(bert.config.dropout if dropout is None else dropout)
        self.classifier = init_weights(nn.Linear(bert.config.d_model, num_classes))

    @classmethod
    def for_checkpoint(cls, config, tensors):
        """One of a checkpoint's sizes, with its number of classes."""
        bert, num_classes = BERT.for_checkpoint(config, tensors), bert_checkpoint.number_of_classes(tensors)
        return cls(bert, num_classes, config.get("classifier_dropout"))

    def forward(self, ids, real=None, segment_ids=None, mask=None):
        """Logits (B, T, num_classes), for the arguments of `BERT.forward`."""
        return self.classifier(self.dropout(self.bert(ids, real, segment_ids, mask)))


# --- losses ---------------------------------------------------------------------


def masked_lm_loss(model, batch):
    """Cross-entropy and accuracy of a `BERTForPreTraining` at the n chosen positions, as sums.

    `batch` is (inputs, real, targets), each (B, T): `mask_tokens` makes the first and the last.
    """
    inputs, real, targets = batch
    positions, wanted = chosen_tokens(targets)
    logits, _ = model(inputs, real, positions=positions)  # (n, V)
    loss = F.cross_entropy(logits, wanted, reduction="sum")
    return {"loss": loss, "count": len(wanted), "accuracy": (logits.argmax(-1) == wanted).sum()}


def pretraining_loss(model, batch):
    """The sum of both tasks' mean losses, BERT's own, times the number n of chosen positions: a sum like the others.

    `batch` is (inputs, real, segment_ids, targets, is_not_next): (B, T) each, and (B,) int64, 0 if the second text
    follows the first, 1 if it does not. "pair_accuracy" is that of the pairs, times n.
    """
    inputs, real, segment_ids, targets, is_not_next = batch
    positions, wanted = chosen_tokens(targets)
    logits, pair_logits = model(inputs, real, segment_ids, positions)  # (n, V), (B, 2)
    n = len(wanted)
    loss = F.cross_entropy(logits, wanted, reduction="sum") + n * F.cross_entropy(pair_logits, is_not_next)
    right = (pair_logits.argmax(-1) == is_not_next).float().mean()
    return {"loss": loss, "count": n, "accuracy": (logits.argmax(-1) == wanted).sum(), "pair_accuracy": n * right}


def chosen_tokens(targets):
    """The positions that count, (B, T) bool, and their tokens, (n,)."""
    positions = targets != IGNORE
    if not positions.any():
        raise ValueError("no position is chosen: all targets are IGNORE, so there is no loss; mask again")
    return positions, targets[positions]
