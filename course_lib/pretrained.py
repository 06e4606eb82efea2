"""The trained models that come with the course: a translator of German captions, and a GPT that writes Shakespeare.

Read `load_translator`, which gives the model and its two vocabularies, with `Subwords`, text to ids and back; and
`load_shakespeare`, which gives a GPT and its characters. `weights_by_layer` hands their weights to a model of your own.
The weights are those of recorded runs, one seed each:

    python -m course_lib.experiments multi30k-small --seeds 1
    python -m course_lib.experiments shakespeare-weights --seeds 1
"""

import functools
import json
import os
from pathlib import Path

import torch

from course_lib.bpe import bpe_tokenize
from course_lib.gpt import GPT
from course_lib.positional import Sinusoidal
from course_lib.text import SPECIALS, Vocab, denumericalize, numericalize, tokenize
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import Translator
from course_lib.utils import huggingface
from course_lib.utils.validate import check_instance, check_sizes, check_tokens

WEIGHTS = Path(__file__).parent / "weights" / "translator"
SHAKESPEARE = WEIGHTS.with_name("shakespeare")


def load_translator(folder=None):
    """The trained model, in evaluation mode, and the `Subwords` of German and English.

    Args:
        folder: where `save_translator` has written; None: what comes with the course.

    >>> model, german, english = load_translator()
    >>> german.encode("ein Hund .")[-1], model.training
    (3, False)
    """
    folder = find_weights(WEIGHTS if folder is None else folder, "translator", "multi30k-small")
    config, tensors = huggingface.read(folder)
    german, english = (Subwords(config[side]["pieces"], list(map(tuple, config[side]["merges"]))) for side in SIDES)
    model = build_translator(len(german.vocab), len(english.vocab), **config["sizes"])
    huggingface.load(model, tensors, folder)
    return model.eval(), german, english


def find_weights(folder, model, experiment):
    """The folder as a Path if both files of a checkpoint are there; if not, an error says how to get them."""
    folder = Path(folder)
    for name in (huggingface.CONFIG, huggingface.WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(
                f"{folder} has no {name}, a part of the trained {model}: install course_lib again, or train one "
                f"(python -m course_lib.experiments {experiment} --seeds 1) and give its folder"
            )
    return folder


SIDES = ("german", "english")


def build_translator(source_size, target_size, d_model, num_heads, num_layers, dim_feedforward, dropout=0.0):
    """The model of figure 1 of Vaswani et al. (2017), Post-LN, with sinusoidal positions and random weights.

    >>> model = build_translator(11, 7, d_model=12, num_heads=3, num_layers=2, dim_feedforward=20)
    >>> ids = torch.tensor([[4, 5, 3]])
    >>> model(ids, ids > 0, torch.tensor([[2, 6]])).shape
    torch.Size([1, 2, 7])
    """
    check_sizes(num_layers=num_layers)
    sizes = (d_model, num_heads, dim_feedforward, dropout)
    options = {"attention_dropout": 0.0}  # without it the fast attention is used in training, too
    encoder = TransformerEncoder([EncoderLayer(*sizes, **options) for _ in range(num_layers)])
    decoder = TransformerDecoder([DecoderLayer(*sizes, **options) for _ in range(num_layers)])
    transformer = Transformer(encoder, decoder)
    return Translator(source_size, target_size, transformer, position=Sinusoidal(d_model), dropout=dropout)


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


# --- a GPT that writes Shakespeare ------------------------------------------------


def load_shakespeare(folder=None):
    """The trained `GPT`, in evaluation mode, and its characters: character i has id i.

    Args:
        folder: where `save_shakespeare` has written; None: what comes with the course.

    >>> model, characters = load_shakespeare()
    >>> len(characters) == model.vocab_size, model.training
    (True, False)
    """
    folder = find_weights(SHAKESPEARE if folder is None else folder, "GPT", "shakespeare-weights")
    characters = huggingface.read(folder)[0]["characters"]
    return GPT.from_pretrained(folder, dropout=0.0), characters


def save_shakespeare(folder, model, characters):
    """Write what `load_shakespeare` reads: GPT-2's layout with weights in float16, and the characters."""
    model.save_pretrained(folder)
    config, tensors = huggingface.read(folder)
    tensors = {name: tensor.half() for name, tensor in tensors.items()}
    huggingface.save(folder, config | {"characters": "".join(characters)}, tensors)


# --- weights for a model of your own ------------------------------------------------

ATTENTION = {"in_proj_weight": "in_proj_weight", "in_proj_bias": "in_proj_bias"}
ATTENTION |= {"out_proj.weight": "out_weight", "out_proj.bias": "out_bias"}


def weights_by_layer(model):
    """The weights of a `Translator` or a `GPT` as plain tensors, each layer's in a dict, for a model of your own.

    Of a Translator: "source_table" (V_source, D) and "target_table" (V, D); "encoder" and "decoder", lists with a dict
    for each layer. In it in_proj_weight (3 D, D), in_proj_bias, out_weight, out_bias of the self-attention; in the
    decoder the same of the cross-attention with "cross_" in front; weight1 (F, D), bias1, weight2 (D, F), bias2;
    gain1, offset1 and so on of the norms.

    Of a GPT with a tied table and learned positions: "table" (V, D), "positions" (L, D), "blocks", a list with a dict
    of the same names for each block, and "gain", "offset" of the last norm.

    >>> weights = weights_by_layer(build_translator(11, 7, d_model=12, num_heads=3, num_layers=2, dim_feedforward=20))
    >>> len(weights["decoder"]), weights["decoder"][0]["cross_in_proj_weight"].shape
    (2, torch.Size([36, 12]))
    """
    check_instance("model", model, Translator | GPT)
    if isinstance(model, GPT):
        return _weights_of_gpt(model)
    tables = {"source_table": model.source_embedding, "target_table": model.target_embedding}
    tables = {name: part.embedding.weight.detach().clone() for name, part in tables.items()}
    stacks = {"encoder": model.transformer.encoder, "decoder": model.transformer.decoder}
    return tables | {name: [_weights_of(layer) for layer in stack.layers] for name, stack in stacks.items()}


def _weights_of_gpt(model):
    """The same of a GPT in GPT-2's form."""
    if model.positions is None or not model.config.tied or not model.config.bias:
        raise ValueError(f"wanted a GPT with learned positions, a tied table and biases, got {model.config}")
    outside = {"table": model.embedding.weight, "positions": model.positions}
    outside |= {"gain": model.norm.weight, "offset": model.norm.bias}
    outside = {name: tensor.detach().clone() for name, tensor in outside.items()}
    return outside | {"blocks": [_weights_of(block) for block in model.blocks]}


def _weights_of(layer):
    """The tensors of one layer, or of a GPT's block, under short names."""
    names = {f"self_attn.{theirs}": ours for theirs, ours in ATTENTION.items()}
    names |= {f"multihead_attn.{theirs}": f"cross_{ours}" for theirs, ours in ATTENTION.items()}
    for i in (1, 2, 3):
        names |= {f"linear{i}.weight": f"weight{i}", f"linear{i}.bias": f"bias{i}"}
        names |= {f"norm{i}.weight": f"gain{i}", f"norm{i}.bias": f"offset{i}"}
    names |= {f"attn.{theirs}": ours for theirs, ours in ATTENTION.items()}  # from here on a GPT's
    for i, place in ((1, 0), (2, 2)):
        names |= {f"mlp.{place}.weight": f"weight{i}", f"mlp.{place}.bias": f"bias{i}"}
        names |= {f"ln{i}.weight": f"gain{i}", f"ln{i}.bias": f"offset{i}"}
    return {names[name]: tensor.clone() for name, tensor in layer.state_dict().items()}


def round_to_half(model):
    """Round all weights to what float16 can hold, so that a model and its saved copy are the same."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half())
    return model
