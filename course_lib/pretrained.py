"""The trained translator that comes with the course: German captions into English.

Read `load_translator`, which gives the model and its two vocabularies, and `Subwords`, text to ids and back. The
weights are those of a recorded run, one seed: `python -m course_lib.experiments multi30k-small --seeds 1`.
"""

import functools
import json
import os
from pathlib import Path

import torch

from course_lib.bpe import bpe_tokenize
from course_lib.positional import Sinusoidal
from course_lib.text import SPECIALS, Vocab, denumericalize, numericalize, tokenize
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import Translator
from course_lib.utils import huggingface
from course_lib.utils.validate import check_instance, check_sizes, check_tokens

WEIGHTS = Path(__file__).parent / "weights" / "translator"


def load_translator(folder=None):
    """The trained model, in evaluation mode, and the `Subwords` of German and English.

    Args:
        folder: where `save_translator` has written; None: what comes with the course.

    >>> model, german, english = load_translator()
    >>> german.encode("ein Hund .")[-1], model.training
    (3, False)
    """
    folder = WEIGHTS if folder is None else Path(folder)
    for name in (huggingface.CONFIG, huggingface.WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}, a part of the trained translator: install course_lib again, or train one "
                "(python -m course_lib.experiments multi30k-small --seeds 1) and give its folder"
            )
    config, tensors = huggingface.read(folder)
    german, english = (Subwords(config[side]["pieces"], list(map(tuple, config[side]["merges"]))) for side in SIDES)
    model = build_translator(len(german.vocab), len(english.vocab), **config["sizes"])
    huggingface.load(model, tensors, folder)
    return model.eval(), german, english


SIDES = ("german", "english")


def build_translator(source_size, target_size, width, heads, layers, feedforward, dropout=0.0):
    """The model of figure 1 of Vaswani et al. (2017), Post-LN, with sinusoidal positions and random weights.

    >>> model = build_translator(11, 7, width=12, heads=3, layers=2, feedforward=20)
    >>> ids = torch.tensor([[4, 5, 3]])
    >>> model(ids, ids > 0, torch.tensor([[2, 6]])).shape
    torch.Size([1, 2, 7])
    """
    check_sizes(layers=layers)
    sizes = (width, heads, feedforward, dropout)
    options = {"attention_dropout": 0.0}  # without it the fast attention is used in training, too
    encoder = TransformerEncoder([EncoderLayer(*sizes, **options) for _ in range(layers)])
    decoder = TransformerDecoder([DecoderLayer(*sizes, **options) for _ in range(layers)])
    transformer = Transformer(encoder, decoder)
    return Translator(source_size, target_size, transformer, position=Sinusoidal(width), dropout=dropout)


class Subwords:
    """Text to ids of learned pieces, and back.

    >>> subwords = Subwords(["<unk>", "<pad>", "<sos>", "<eos>", "a", "lo", "w</w>"], [("l", "o"), ("w", "</w>")])
    >>> subwords.encode("Low"), subwords.decode([5, 6, 3, 4])
    ([5, 6, 3], 'low')
    """

    def __init__(self, pieces, merges):
        check_tokens("pieces", pieces)
        check_instance("merges", merges, list)
        self.vocab, self.merges = Vocab(pieces, {}), merges
        if tuple(self.vocab.itos[: len(SPECIALS)]) != SPECIALS:
            raise ValueError(f"the first pieces must be {SPECIALS}, got {self.vocab.itos[: len(SPECIALS)]}")
        self.cut = functools.cache(lambda word: bpe_tokenize(word, self.merges))

    def __len__(self):
        return len(self.vocab)

    def pieces(self, string):
        """The pieces of a text: its words in lower case, each cut by the learned merges."""
        return [piece for word in tokenize(string) for piece in self.cut(word)]

    def encode(self, string, eos=True):
        """The ids of a text's pieces, `<eos>` at the end."""
        return numericalize(self.pieces(string), self.vocab, eos=eos)

    def decode(self, ids):
        """The words of ids up to `<eos>`, joined by spaces."""
        return "".join(denumericalize(ids, self.vocab)).replace("</w>", " ").strip()


def save_translator(folder, model, german, english, sizes):
    """Write what `load_translator` reads: weights in float16, sizes, pieces and merges."""
    tensors = {name: tensor.half() for name, tensor in model.state_dict().items()}
    config = {"sizes": sizes}
    for side, subwords in zip(SIDES, (german, english), strict=True):
        config[side] = {"pieces": subwords.vocab.itos, "merges": subwords.merges}
    huggingface.save(folder, config, tensors)
    path = Path(folder, huggingface.CONFIG)
    short = json.dumps(config, ensure_ascii=False, separators=(",", ":"))  # a third of the indented file
    path.with_suffix(".part").write_text(short + "\n", encoding="utf-8")
    os.replace(path.with_suffix(".part"), path)


ATTENTION = {"in_proj_weight": "in_proj_weight", "in_proj_bias": "in_proj_bias"}
ATTENTION |= {"out_proj.weight": "out_weight", "out_proj.bias": "out_bias"}


def weights_by_layer(model):
    """The weights of a `Translator` as plain tensors, each layer's in a dict of its own, for a Transformer of your own.

    Returns a dict: "source_table" (V_source, D) and "target_table" (V, D); "encoder" and "decoder", lists with a dict
    for each layer. In it in_proj_weight (3 D, D), in_proj_bias, out_weight, out_bias of the self-attention; in the
    decoder the same of the cross-attention with "cross_" in front; weight1 (F, D), bias1, weight2 (D, F), bias2;
    gain1, offset1 and so on of the norms.

    >>> weights = weights_by_layer(build_translator(11, 7, width=12, heads=3, layers=2, feedforward=20))
    >>> len(weights["decoder"]), weights["decoder"][0]["cross_in_proj_weight"].shape
    (2, torch.Size([36, 12]))
    """
    check_instance("model", model, Translator)
    tables = {"source_table": model.source_embedding, "target_table": model.target_embedding}
    tables = {name: part.embedding.weight.detach().clone() for name, part in tables.items()}
    stacks = {"encoder": model.transformer.encoder, "decoder": model.transformer.decoder}
    return tables | {name: [_weights_of(layer) for layer in stack.layers] for name, stack in stacks.items()}


def _weights_of(layer):
    """The tensors of one layer under short names."""
    names = {f"self_attn.{theirs}": ours for theirs, ours in ATTENTION.items()}
    names |= {f"multihead_attn.{theirs}": f"cross_{ours}" for theirs, ours in ATTENTION.items()}
    for i in (1, 2, 3):
        names |= {f"linear{i}.weight": f"weight{i}", f"linear{i}.bias": f"bias{i}"}
        names |= {f"norm{i}.weight": f"gain{i}", f"norm{i}.bias": f"offset{i}"}
    return {names[name]: tensor.clone() for name, tensor in layer.state_dict().items()}


def round_to_half(model):
    """Round all weights to what float16 can hold, so that a model and its saved copy are the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    return model
