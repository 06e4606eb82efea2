r"""BERT: an encoder that sees both sides, pre-trained to fill in blanks, then fine-tuned.

Read `mask_tokens`, the task; `BERTEmbedding` and `BERT`, the network; then the heads that turn its vectors into
answers: `BERTForPreTraining`, `BERTForSequenceClassification`, `BERTForTokenClassification`. `sentence_pairs` and
`join_pair` make the input of the second pre-training task. Each network has `from_pretrained`, which takes the weights
that Hugging Face's class of the same name saves, and computes the same numbers.

Notebook: 12.
"""

import itertools
import re
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import pretrained
from course_lib.positions import Learned
from course_lib.rnn import dropout
from course_lib.transformer import EncoderLayer, TransformerEncoder, check_real, normal_start

IGNORE = -100  # a target that counts for nothing: F.cross_entropy's own mark

# --- the tasks ------------------------------------------------------------------


def mask_tokens(ids, maskable, vocab_size, mask_id, generator=None, share=0.15, first=0):
    """Choose tokens to be predicted, and hide most of them.

    Of the tokens chosen 80 % become the mask, 10 % a random token, and 10 % stay as they are. If all became the mask,
    the network would learn nothing about tokens that it can see, and fine-tuning has no masks.

    Args:
        ids: (B, T) int64 tokens.
        maskable: (B, T) bool, True = may be chosen: a real token, and not a special one.
        vocab_size: V.
        mask_id: the mask's id.
        generator: torch.Generator on the device of the ids; None: torch's own.
        share: probability of a token to be chosen, above 0, up to 1.
        first: random tokens are drawn from `first`, ..., V - 1; the ids below belong to special tokens.

    Returns:
        inputs: (B, T) int64, what the network reads.
        targets: (B, T) int64, the tokens at the chosen places, `IGNORE` elsewhere.

    Raises:
        ValueError: if `maskable` is not boolean of the ids' shape, or nowhere True; if the share is not above 0 and at
            most 1, `mask_id` not an id, or no token can be drawn.

    Example:
        >>> ids = torch.full((1, 1000), 7)
        >>> inputs, targets = mask_tokens(ids, ids > 0, vocab_size=9, mask_id=3)
        >>> bool((inputs[targets == IGNORE] == 7).all()), bool((targets[inputs == 3] == 7).all())
        (True, True)

    Source: Devlin et al. (2019), "BERT: Pre-training of Deep Bidirectional Transformers for Language Understanding",
    arXiv:1810.04805, section 3.1 and appendix A.1. Differs: each token is chosen with the probability `share`, so
    their number varies. Notebook: 12.
    """
    if maskable.dtype != torch.bool or maskable.shape != ids.shape:
        raise ValueError(
            f"maskable must be boolean of shape {tuple(ids.shape)}, got {maskable.dtype} {tuple(maskable.shape)}"
        )
    if not maskable.any():
        raise ValueError("maskable is False everywhere: no token may be chosen, so there is nothing to learn")
    if not 0 < share <= 1:
        raise ValueError(f"share must be above 0 and at most 1, got {share}")
    if not 0 <= first < vocab_size or not 0 <= mask_id < vocab_size:
        raise ValueError(f"mask_id and first must be ids below {vocab_size}, got {mask_id=} and {first=}")
    draws = torch.rand((2, *ids.shape), generator=generator, device=ids.device)
    chosen, fate = maskable & (draws[0] < share), draws[1]
    others = torch.randint(first, vocab_size, ids.shape, generator=generator, device=ids.device)
    inputs = torch.where(chosen & (fate < 0.8), mask_id, ids)
    inputs = torch.where(chosen & (fate >= 0.9), others, inputs)
    return inputs, ids.masked_fill(~chosen, IGNORE)


def sentence_pairs(documents, generator):
    """Pairs of sentences, half of them neighbours in a document, half strangers.

    Args:
        documents: list of documents, each a list of sentences of any kind; at least two, and one with two sentences.
        generator: torch.Generator on the CPU.

    Returns:
        list of (first, second, follows), one for each sentence that has a next one; `follows` is True if the second is
        the next one, False if it comes from another document.

    Raises:
        ValueError: if there are fewer than two documents with sentences, or none with two.

    Example:
        >>> documents = [["a", "b", "c"], ["x", "y"]]
        >>> [pair[0] for pair in sentence_pairs(documents, torch.Generator().manual_seed(0))]
        ['a', 'b', 'x']

    Source: Devlin et al. (2019), arXiv:1810.04805, section 3.1, task 2. Differs: a sentence of theirs is a span of text
    of up to 512 tokens together. Notebook: 12.
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
            follows = draw(2) == 1
            pairs.append((first, following if follows else other[draw(len(other))], follows))
    return pairs


def join_pair(first, second, cls_id, sep_id, max_len=None):
    """One sequence of two: `[CLS] first [SEP] second [SEP]`.

    Args:
        first: list of ids.
        second: list of ids; None for a single text: `[CLS] first [SEP]`.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        max_len: most tokens, special ones included; the longer part is cut at its end, token by token. None: any.

    Returns:
        ids: list of ids.
        segments: list of 0 (up to the first [SEP]) and 1, as long as the ids.

    Raises:
        ValueError: if max_len leaves no room for a token of each part.

    Example:
        >>> join_pair([7, 8], [9], cls_id=1, sep_id=2)
        ([1, 7, 8, 2, 9, 2], [0, 0, 0, 0, 1, 1])

    Source: Devlin et al. (2019), arXiv:1810.04805, section 3 and figure 2. Notebook: 12.
    """
    parts = [list(first)] if second is None else [list(first), list(second)]
    if max_len is not None:
        room = max_len - 1 - len(parts)
        if room < len(parts):
            raise ValueError(f"max_len {max_len} leaves no room for {len(parts)} parts and their special tokens")
        while sum(map(len, parts)) > room:
            max(parts, key=len).pop()
    ids, segments = [cls_id], [0]
    for number, part in enumerate(parts):
        ids += [*part, sep_id]
        segments += [number] * (len(part) + 1)
    return ids, segments


# --- the network ----------------------------------------------------------------


def _save_pretrained(self, folder):  # a method of all four classes
    """Write into a folder a checkpoint that Hugging Face's class of the same name and `from_pretrained` read."""
    trunk = self if isinstance(self, BERT) else self.bert
    tensors = {}
    for name, x in self.state_dict().items():
        theirs = _theirs(f"bert.{name}" if trunk is self else name)
        tensors.update(zip(theirs, (part.contiguous() for part in x.chunk(len(theirs))), strict=True))
    pretrained.save(folder, trunk.config.to_huggingface(), tensors)


@dataclass(frozen=True)
class BERTConfig:
    """The sizes of a BERT; as they stand, those of BERT-base for lower-case English.

    Args:
        vocab_size: V, WordPiece tokens.
        max_len: most tokens of a sequence.
        d_model: D.
        num_layers: N.
        nhead: H.
        dim_feedforward: F.
        segments: kinds of segments; 2: first and second text.
        dropout: share of the entries set to zero in training, attention weights included.
        residual: "post-ln" as in BERT, or another of `transformer.RESIDUALS`.
        layer_norm_eps: what LayerNorm adds to the variance.

    Example:
        >>> BERTConfig.from_name("bert-large-uncased").num_layers
        24

    Source: Devlin et al. (2019), arXiv:1810.04805, section 3 and appendix A.2. Notebook: 12.
    """

    vocab_size: int = 30522
    max_len: int = 512
    d_model: int = 768
    num_layers: int = 12
    nhead: int = 12
    dim_feedforward: int = 3072
    segments: int = 2
    dropout: float = 0.1
    residual: str = "post-ln"
    layer_norm_eps: float = 1e-12

    @classmethod
    def from_name(cls, name):
        """The sizes of a published model.

        Args:
            name: "bert-base-uncased" or "bert-large-uncased".

        Returns:
            BERTConfig.

        Raises:
            ValueError: if the name is another one.
        """
        sizes = {
            "bert-base-uncased": {},
            "bert-large-uncased": {"d_model": 1024, "num_layers": 24, "nhead": 16, "dim_feedforward": 4096},
        }
        if name not in sizes:
            raise ValueError(f"name must be one of {', '.join(sizes)}, got {name!r}")
        return cls(**sizes[name])

    @classmethod
    def from_huggingface(cls, config):
        """The sizes that a checkpoint's config.json gives.

        Args:
            config: dict.

        Returns:
            BERTConfig.

        Raises:
            ValueError: if it is not a BERT that this module can compute.
        """
        pretrained.expect(
            config,
            *("vocab_size", "max_position_embeddings", "hidden_size", "num_hidden_layers", "num_attention_heads"),
            "intermediate_size",
            model_type="bert",
            hidden_act="gelu",
            position_embedding_type="absolute",
            is_decoder=False,
        )
        return cls(
            vocab_size=config["vocab_size"],
            max_len=config["max_position_embeddings"],
            d_model=config["hidden_size"],
            num_layers=config["num_hidden_layers"],
            nhead=config["num_attention_heads"],
            dim_feedforward=config["intermediate_size"],
            segments=config.get("type_vocab_size", 2),
            dropout=config.get("hidden_dropout_prob", 0.1),
            layer_norm_eps=config.get("layer_norm_eps", 1e-12),
        )

    def to_huggingface(self):
        """The same sizes in the words of a checkpoint's config.json.

        Returns:
            dict.

        Raises:
            ValueError: if the residuals are not BERT's.
        """
        if self.residual != "post-ln":
            raise ValueError(f"Hugging Face's BERT has post-ln residuals, this one {self.residual}")
        return {
            "model_type": "bert",
            "hidden_act": "gelu",
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_len,
            "hidden_size": self.d_model,
            "num_hidden_layers": self.num_layers,
            "num_attention_heads": self.nhead,
            "intermediate_size": self.dim_feedforward,
            "type_vocab_size": self.segments,
            **dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), self.dropout),
            "layer_norm_eps": self.layer_norm_eps,
        }


class BERTEmbedding(nn.Module):
    r"""Which token, where, and in which of the two texts: the sum of three tables, normalised.

    $$ x_t = \text{dropout}(\text{LayerNorm}(E[\text{id}_t] + P[t] + S[\text{segment}_t])) $$

    Args:
        config: `BERTConfig`.

    Source: Devlin et al. (2019), arXiv:1810.04805, figure 2. Notebook: 12.
    """

    def __init__(self, config):
        super().__init__()
        self.token = nn.Embedding(config.vocab_size, config.d_model)
        self.position = Learned(config.max_len, config.d_model)
        self.segment = nn.Embedding(config.segments, config.d_model)
        self.norm = nn.LayerNorm(config.d_model)
        self.dropout = config.dropout

    def forward(self, ids, segments=None):
        """Embed tokens.

        Args:
            ids: (B, T) int64.
            segments: (B, T) int64, 0 for the first text, 1 for the second; None: all 0.

        Returns:
            (B, T, D).

        Raises:
            ValueError: if the ids are not (B, T) int64 with T up to max_len, or the segments have another shape.
        """
        if ids.ndim != 2 or ids.dtype != torch.int64:
            raise ValueError(f"ids must be (B, T) int64, got {tuple(ids.shape)} {ids.dtype}")
        if segments is None:
            segments = torch.zeros_like(ids)
        if segments.shape != ids.shape:
            raise ValueError(f"segments have shape {tuple(segments.shape)}, the ids {tuple(ids.shape)}")
        x = self.position.add(self.token(ids)) + self.segment(segments)
        return dropout(self.norm(x), self.dropout, self.training)


class BERT(nn.Module):
    """The encoder and what it reads: a vector for each token, made of both its sides.

    Args:
        config: `BERTConfig`.
        pooler: True adds the layer that `pool` uses.

    Example:
        >>> model = BERT(BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3, dim_feedforward=20))
        >>> model(torch.tensor([[1, 7, 8, 2]])).shape
        torch.Size([1, 4, 12])

    Source: Devlin et al. (2019), arXiv:1810.04805, section 3. Notebook: 12.
    """

    def __init__(self, config, pooler=True):
        super().__init__()
        self.config = config
        self.embedding = BERTEmbedding(config)
        layers = [
            EncoderLayer(
                config.d_model,
                config.nhead,
                config.dim_feedforward,
                config.dropout,
                hidden_dropout=0.0,
                residual=config.residual,
                activation=F.gelu,
            )
            for _ in range(config.num_layers)
        ]
        self.encoder = TransformerEncoder(layers, nn.LayerNorm(config.d_model) if config.residual == "pre-ln" else None)
        self.pooler = nn.Linear(config.d_model, config.d_model) if pooler else None
        normal_start(self)
        for part in self.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = config.layer_norm_eps

    def forward(self, ids, mask=None, segments=None, impl="sdpa"):
        """The vectors of the last layer.

        Args:
            ids: (B, T) int64 tokens.
            mask: (B, T) bool, True = real token, at least one in each row; None: all.
            segments: (B, T) int64, 0 for the first text, 1 for the second; None: all 0.
            impl: "sdpa" or "math", see `course_lib.attention.attention`.

        Returns:
            (B, T, D); 0 at padding.

        Raises:
            ValueError: if the mask is not boolean of the ids' shape, or a row has no real token; as `BERTEmbedding`.
        """
        check_real(mask, ids)
        return self.encoder(self.embedding(ids, segments), mask, impl=impl)

    def hidden(self, ids, mask=None, segments=None):
        """The vectors before the first layer and after each.

        Args:
            ids: (B, T) int64 tokens.
            mask: as in `forward`.
            segments: as in `forward`.

        Returns:
            list of N + 1 tensors (B, T, D).
        """
        check_real(mask, ids)
        found = [self.embedding(ids, segments)]
        for layer in self.encoder.layers:
            found.append(layer(found[-1], mask))
        return found

    def weights(self, ids, mask=None, segments=None):
        """Where each head of each layer looks.

        Args:
            ids: (B, T) int64 tokens.
            mask: as in `forward`.
            segments: as in `forward`.

        Returns:
            list of N tensors (B, H, T, T).
        """
        check_real(mask, ids)
        return self.encoder.weights(self.embedding(ids, segments), mask)

    def pool(self, x):
        r"""One vector for the whole text, from that of its first token, [CLS]: $\tanh(W x_0 + b)$.

        Args:
            x: (B, T, D) from `forward`.

        Returns:
            (B, D).

        Raises:
            ValueError: if the model was made without a pooler.
        """
        if self.pooler is None:
            raise ValueError("this BERT was made with pooler=False: it has no layer for [CLS]")
        return torch.tanh(self.pooler(x[:, 0]))

    save_pretrained = _save_pretrained

    @classmethod
    def from_pretrained(cls, source):
        """The encoder of a checkpoint in Hugging Face's form, in evaluation mode; heads that it may have are left out.

        Args:
            source: a folder, or a name on Hugging Face's hub such as "bert-base-uncased".

        Returns:
            BERT; with a pooler if the checkpoint has one.

        Raises:
            ValueError: if tensors are missing, superfluous or of another shape (all are named), or the checkpoint is
                not a BERT; and as `pretrained.read`.
        """
        config, tensors = _read(source)
        tensors = {name: x for name, x in tensors.items() if not name.startswith(("cls.", "classifier."))}
        return _loaded(cls(config, pooler=_POOLER in tensors), tensors, source, prefix="bert.")


# --- what stands on top ---------------------------------------------------------


class BERTForPreTraining(nn.Module):
    r"""Both pre-training tasks: which token stood here, and does the second text follow the first?

    $$ \text{token logits}_t = \text{LayerNorm}(\text{gelu}(W x_t + b)) E^\top + c, \qquad
       \text{pair logits} = W' \text{pool}(x) + b' $$

    The table of embeddings E is the output layer too.

    Args:
        bert: `BERT`; without a pooler there are no pair logits.

    Example:
        >>> config = BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3, dim_feedforward=20)
        >>> token_logits, pair_logits = BERTForPreTraining(BERT(config))(torch.tensor([[1, 7, 8, 2]]))
        >>> token_logits.shape, pair_logits.shape
        (torch.Size([1, 4, 11]), torch.Size([1, 2]))

    Source: Devlin et al. (2019), arXiv:1810.04805, section 3.1; the layer before the table is in the authors' code.
    Notebook: 12.
    """

    def __init__(self, bert):
        super().__init__()
        D, V = bert.config.d_model, bert.config.vocab_size
        self.bert = bert
        self.transform = normal_start(nn.Linear(D, D))
        self.norm = nn.LayerNorm(D, eps=bert.config.layer_norm_eps)
        self.bias = nn.Parameter(torch.zeros(V))
        self.pair = None if bert.pooler is None else normal_start(nn.Linear(D, 2))

    def forward(self, ids, mask=None, segments=None, where=None, impl="sdpa"):
        """The logits of both tasks.

        Args:
            ids: (B, T) int64 tokens, some of them masked.
            mask: (B, T) bool, True = real token; None: all.
            segments: (B, T) int64; None: all 0.
            where: (B, T) bool, the n places whose token logits are wanted; None: all. The output layer is the
                largest of the network, and few places are masked.
            impl: "sdpa" or "math".

        Returns:
            token_logits: (B, T, V), or (n, V) at the places `where`, row by row.
            pair_logits: (B, 2), first "the second text follows", then "it does not"; None without a pooler.
        """
        x = self.bert(ids, mask, segments, impl)
        pair_logits = None if self.pair is None else self.pair(self.bert.pool(x))
        return self.token_logits(x if where is None else x[where]), pair_logits

    def token_logits(self, x):
        """Logits of the token at each place.

        Args:
            x: (..., D) vectors of BERT.

        Returns:
            (..., V).
        """
        x = self.norm(F.gelu(self.transform(x)))
        return F.linear(x, self.bert.embedding.token.weight, self.bias)

    save_pretrained = _save_pretrained

    @classmethod
    def from_pretrained(cls, source):
        """A checkpoint of Hugging Face's BertForPreTraining, or of BertForMaskedLM, which has no pooler.

        Args:
            source: a folder, or a name on Hugging Face's hub.

        Returns:
            BERTForPreTraining, in evaluation mode.

        Raises:
            ValueError: as `BERT.from_pretrained`.
        """
        config, tensors = _read(source)
        return _loaded(cls(BERT(config, pooler=_POOLER in tensors)), tensors, source)


class BERTForSequenceClassification(nn.Module):
    """Classes of whole texts: a linear layer on one vector a text.

    Args:
        bert: `BERT`.
        classes: number of classes.
        dropout: share of that vector's entries set to zero in training; None: as in BERT.
        pool: "cls": `BERT.pool`; "mean": the mean over the real tokens.

    Raises:
        ValueError: if `pool` is neither, or "cls" of a BERT without a pooler; if there are no classes.

    Example:
        >>> config = BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3, dim_feedforward=20)
        >>> BERTForSequenceClassification(BERT(config), 5)(torch.tensor([[1, 7, 8, 2]])).shape
        torch.Size([1, 5])

    Source: Devlin et al. (2019), arXiv:1810.04805, section 4.1. Notebook: 12.
    """

    def __init__(self, bert, classes=2, dropout=None, pool="cls"):
        super().__init__()
        if pool not in ("cls", "mean") or (pool == "cls" and bert.pooler is None):
            raise ValueError(f"pool must be 'mean', or 'cls' for a BERT with a pooler, got {pool!r}")
        self.bert, self.pool = bert, pool
        self.dropout, self.classifier = _classifier(bert, classes, dropout)

    def forward(self, ids, mask=None, segments=None, impl="sdpa"):
        """Logits of a batch.

        Args:
            ids: (B, T) int64 tokens.
            mask: (B, T) bool, True = real token, at least one in each row; None: all.
            segments: (B, T) int64; None: all 0.
            impl: "sdpa" or "math".

        Returns:
            (B, classes).
        """
        x = self.bert(ids, mask, segments, impl)
        if self.pool == "cls":
            x = self.bert.pool(x)
        else:
            x = x.mean(1) if mask is None else x.sum(1) / mask.sum(1, keepdim=True)  # 0 at padding
        return self.classifier(dropout(x, self.dropout, self.training))

    save_pretrained = _save_pretrained

    @classmethod
    def from_pretrained(cls, source):
        """A checkpoint of Hugging Face's BertForSequenceClassification; it has as many classes as the checkpoint.

        Args:
            source: a folder, or a name on Hugging Face's hub.

        Returns:
            BERTForSequenceClassification, in evaluation mode.

        Raises:
            ValueError: as `BERT.from_pretrained`.
        """
        config, tensors = _read(source)
        return _loaded(cls(BERT(config), _classes(tensors, source)), tensors, source)


class BERTForTokenClassification(nn.Module):
    """A class for each token, such as its part of speech: a linear layer on every vector.

    Args:
        bert: `BERT`.
        classes: number of classes.
        dropout: share of the vectors' entries set to zero in training; None: as in BERT.

    Raises:
        ValueError: if there are no classes.

    Example:
        >>> config = BERTConfig(vocab_size=11, max_len=9, d_model=12, num_layers=2, nhead=3, dim_feedforward=20)
        >>> BERTForTokenClassification(BERT(config), 5)(torch.tensor([[1, 7, 8, 2]])).shape
        torch.Size([1, 4, 5])

    Source: Devlin et al. (2019), arXiv:1810.04805, section 5.3. Notebook: 12.
    """

    def __init__(self, bert, classes, dropout=None):
        super().__init__()
        self.bert = bert
        self.dropout, self.classifier = _classifier(bert, classes, dropout)

    def forward(self, ids, mask=None, segments=None, impl="sdpa"):
        """Logits of every token.

        Args:
            ids: (B, T) int64 tokens.
            mask: (B, T) bool, True = real token, at least one in each row; None: all.
            segments: (B, T) int64; None: all 0.
            impl: "sdpa" or "math".

        Returns:
            (B, T, classes).
        """
        x = self.bert(ids, mask, segments, impl)
        return self.classifier(dropout(x, self.dropout, self.training))

    save_pretrained = _save_pretrained

    @classmethod
    def from_pretrained(cls, source):
        """A checkpoint of Hugging Face's BertForTokenClassification; it has as many classes as the checkpoint.

        Args:
            source: a folder, or a name on Hugging Face's hub.

        Returns:
            BERTForTokenClassification, in evaluation mode.

        Raises:
            ValueError: as `BERT.from_pretrained`.
        """
        config, tensors = _read(source)
        bert = BERT(config, pooler=_POOLER in tensors)
        return _loaded(cls(bert, _classes(tensors, source)), tensors, source)


# --- losses ---------------------------------------------------------------------


def masked_lm_loss(model, batch):
    """Cross-entropy and accuracy at the chosen places, as sums, in the form that `course_lib.train` takes.

    Args:
        model: `BERTForPreTraining`.
        batch: `(inputs, mask, targets)`: (B, T) int64 from `mask_tokens`; (B, T) bool, True = real token; (B, T) int64.

    Returns:
        dict: "loss" in nats, "count" = number of chosen places, "accuracy" = how many tokens were right.

    Raises:
        ValueError: if no place is chosen.
    """
    inputs, mask, targets = batch
    where, wanted = _chosen(targets)
    logits, _ = model(inputs, mask, where=where)  # (n, V)
    loss = F.cross_entropy(logits, wanted, reduction="sum")
    return {"loss": loss, "count": len(wanted), "accuracy": (logits.argmax(-1) == wanted).sum()}


def pretraining_loss(model, batch):
    """The sum of both tasks' mean losses, BERT's own, as sums over the chosen places.

    Args:
        model: `BERTForPreTraining` with a pooler.
        batch: `(inputs, mask, segments, targets, strangers)`: (B, T) each, as in `masked_lm_loss`; and (B,) int64, 0 if
            the second text follows the first, 1 if it does not.

    Returns:
        dict: "loss" in nats: mean loss of the tokens plus mean loss of the pairs, times "count"; "count" = number n of
        chosen places; "accuracy" = how many tokens were right; "pair_accuracy" = share of pairs, times n.

    Raises:
        ValueError: if no place is chosen.
    """
    inputs, mask, segments, targets, strangers = batch
    where, wanted = _chosen(targets)
    logits, pair_logits = model(inputs, mask, segments, where)  # (n, V), (B, 2)
    n = len(wanted)
    loss = F.cross_entropy(logits, wanted, reduction="sum") + n * F.cross_entropy(pair_logits, strangers)
    right = (pair_logits.argmax(-1) == strangers).float().mean()
    return {"loss": loss, "count": n, "accuracy": (logits.argmax(-1) == wanted).sum(), "pair_accuracy": n * right}


# --- shared ---------------------------------------------------------------------

_POOLER = "bert.pooler.dense.weight"

# What our names become in Hugging Face's, one rule after the other.
_NAMES = (
    (r"^transform\.", "cls.predictions.transform.dense."),
    (r"^norm\.", "cls.predictions.transform.LayerNorm."),
    (r"^bias$", "cls.predictions.bias"),
    (r"^pair\.", "cls.seq_relationship."),
    (r"embedding\.token\.", "embeddings.word_embeddings."),
    (r"embedding\.position\.", "embeddings.position_embeddings."),
    (r"embedding\.segment\.", "embeddings.token_type_embeddings."),
    (r"embedding\.norm\.", "embeddings.LayerNorm."),
    (r"encoder\.layers\.", "encoder.layer."),
    (r"self_attn\.out_proj\.", "attention.output.dense."),
    (r"norm1\.", "attention.output.LayerNorm."),
    (r"linear1\.", "intermediate.dense."),
    (r"linear2\.", "output.dense."),
    (r"norm2\.", "output.LayerNorm."),
    (r"pooler\.", "pooler.dense."),
)


def _theirs(name):
    """Hugging Face's name of one of our tensors; three names for the packed projection, which is apart there."""
    layer, packed, kind = pretrained.renamed(name, _NAMES).partition("self_attn.in_proj_")
    return [f"{layer}attention.self.{part}.{kind}" for part in ("query", "key", "value")] if packed else [layer]


def _read(source):
    """Sizes and tensors of a checkpoint, every tensor of the encoder under "bert."."""
    config, tensors = pretrained.read(source)
    tensors = {re.sub("gamma$", "weight", re.sub("beta$", "bias", name)): x for name, x in tensors.items()}
    if not any(name.startswith("bert.") for name in tensors):
        tensors = {f"bert.{name}": x for name, x in tensors.items()}
    table = tensors.get("bert.embeddings.word_embeddings.weight")
    copies = {
        "cls.predictions.decoder.weight": table,
        "cls.predictions.decoder.bias": tensors.get("cls.predictions.bias"),
    }
    for name, original in copies.items():  # tied tensors may be stored twice
        if original is not None and name in tensors and torch.equal(tensors[name], original):
            del tensors[name]
    tensors.pop("bert.embeddings.position_ids", None)  # 0, 1, 2, ... in old checkpoints
    return BERTConfig.from_huggingface(config), tensors


def _loaded(model, tensors, source, prefix=""):
    """The model with a checkpoint's tensors, in evaluation mode."""
    state = {}
    for name in model.state_dict():
        theirs = _theirs(prefix + name)
        fit = all(part in tensors for part in theirs) and len({tensors[part].shape[1:] for part in theirs}) == 1
        if fit:
            state[name] = torch.cat([tensors.pop(part) for part in theirs])
    pretrained.load(model, state | tensors, source)
    return model.eval()


def _classes(tensors, source):
    """Number of classes of a checkpoint's classifier."""
    if "classifier.weight" not in tensors:
        raise ValueError(f"{source} has no classifier.weight; put a new classifier on BERT.from_pretrained({source!r})")
    return len(tensors["classifier.weight"])


def _classifier(bert, classes, dropout):
    """The share of dropout and the layer of a classifier."""
    if classes < 1:
        raise ValueError(f"classes must be at least 1, got {classes}")
    return bert.config.dropout if dropout is None else dropout, normal_start(nn.Linear(bert.config.d_model, classes))


def _chosen(targets):
    """The places that count, (B, T) bool, and their tokens, (n,)."""
    where = targets != IGNORE
    if not where.any():
        raise ValueError("no place is chosen: all targets are IGNORE, so there is no loss; mask again")
    return where, targets[where]
