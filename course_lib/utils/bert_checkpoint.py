"""What Hugging Face calls the sizes and the tensors of a BERT, and how the networks of `course_lib.bert` take them."""

import re

import torch
from torch import nn

from course_lib.utils import huggingface

SIZES = {  # ours -> theirs
    "vocab_size": "vocab_size",
    "max_len": "max_position_embeddings",
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "dim_feedforward": "intermediate_size",
    "num_segments": "type_vocab_size",
    "layer_norm_eps": "layer_norm_eps",
}
OPTIONAL = ("type_vocab_size", "layer_norm_eps")
NAMES = (  # of tensors: what ours become, one rule after the other
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


class Pretrained(nn.Module):
    """A BERT, or a network with one in it, that reads and writes checkpoints of Hugging Face's class of its name."""

    @classmethod
    def from_pretrained(cls, source):
        """The network of a checkpoint, in evaluation mode; `BERT` takes any, and leaves its head out.

        `source` is a folder, or a name on Hugging Face's hub such as "bert-base-uncased".
        """
        config, tensors = read(source)
        model = cls.for_checkpoint(config, tensors)
        if is_trunk(model):
            tensors = {name: x for name, x in tensors.items() if not name.startswith(("cls.", "classifier."))}
        huggingface.load(model, our_tensors(model, tensors), source)
        return model.eval()

    def save_pretrained(self, folder):
        """Write a checkpoint for `from_pretrained` and Hugging Face's class of this name; pool "mean" is ours alone."""
        config = (self if is_trunk(self) else self.bert).config.to_huggingface()
        if hasattr(self, "classifier"):
            config |= classifier_settings(self)
        huggingface.save(folder, config, their_tensors(self))


def is_trunk(model):
    """Whether a model is the BERT itself, whose tensors stand under "bert." in a checkpoint."""
    return not hasattr(model, "bert")


def number_of_classes(tensors):
    """Of the classifier in a checkpoint."""
    if "classifier.weight" not in tensors:
        raise ValueError("the checkpoint has no classifier.weight; put a new classifier on BERT.from_pretrained(...)")
    return len(tensors["classifier.weight"])


def pooling(config, tensors):
    """How a checkpoint's text classifier makes one vector of a text: Hugging Face's, which does not say, by [CLS]."""
    huggingface.check_config(config, pool=("cls", "mean"))
    pool = config.get("pool", "cls")
    if pool == "cls" and "bert.pooler.dense.weight" not in tensors:
        wanted = "wanted the layer for [CLS], or pool 'mean' in config.json"
        raise ValueError(f"the checkpoint has pool {pool!r} and no bert.pooler.dense.weight; {wanted}")
    return pool


def classifier_settings(model):
    """What config.json says of a network with a classifier, beside the sizes; "pool" is a word of ours."""
    labels = [f"LABEL_{i}" for i in range(model.classifier.out_features)]
    numbers = {label: i for i, label in enumerate(labels)}
    settings = {"classifier_dropout": model.dropout.p, "id2label": dict(enumerate(labels)), "label2id": numbers}
    return settings | ({"pool": model.pool} if hasattr(model, "pool") else {})


def our_sizes(config):
    """The arguments of a `BERTConfig` from a checkpoint's config.json; a network that we do not compute is refused."""
    needed = [name for name in SIZES.values() if name not in OPTIONAL]
    choices = {"hidden_act": "gelu", "position_embedding_type": "absolute", "is_decoder": False}
    huggingface.check_config(config, *needed, model_type="bert", **choices)
    sizes = {ours: config[theirs] for ours, theirs in SIZES.items() if theirs in config}
    dropout, attention = (config.get(f"{name}_dropout_prob", 0.1) for name in ("hidden", "attention_probs"))
    return sizes | {"dropout": dropout, "attention_dropout": None if attention == dropout else attention}


def their_sizes(config):
    """The content of config.json for a `BERTConfig`."""
    attention = config.dropout if config.attention_dropout is None else config.attention_dropout
    return {
        "model_type": "bert",
        "hidden_act": "gelu",
        **{theirs: getattr(config, ours) for ours, theirs in SIZES.items()},
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": attention,
    }


def their_names(name):
    """Hugging Face's name of one of our tensors; three names for the packed projection, which is apart there."""
    layer, packed, kind = huggingface.rename_key(name, NAMES).partition("self_attn.in_proj_")
    return [f"{layer}attention.self.{part}.{kind}" for part in ("query", "key", "value")] if packed else [layer]


def their_tensors(model):
    """The model's tensors under Hugging Face's names."""
    found, prefix = {}, "bert." if is_trunk(model) else ""
    for name, x in model.state_dict().items():
        parts = their_names(prefix + name)
        found.update(zip(parts, x.chunk(len(parts)), strict=True))
    return found


def our_tensors(model, tensors):
    """A checkpoint's tensors under our names; those that the model does not have, or not so, keep theirs."""
    tensors, found, prefix = dict(tensors), {}, "bert." if is_trunk(model) else ""
    for name in model.state_dict():
        parts = their_names(prefix + name)
        if all(part in tensors for part in parts) and len({tensors[part].shape[1:] for part in parts}) == 1:
            found[name] = torch.cat([tensors.pop(part) for part in parts])
    return found | tensors


def read(source):
    """Settings and tensors of a checkpoint, every tensor of the encoder under "bert.", none twice."""
    config, tensors = huggingface.read(source)
    tensors = {re.sub("gamma$", "weight", re.sub("beta$", "bias", name)): x for name, x in tensors.items()}
    if not any(name.startswith("bert.") for name in tensors):
        tensors = {f"bert.{name}": x for name, x in tensors.items()}
    copies = {
        "cls.predictions.decoder.weight": "bert.embeddings.word_embeddings.weight",
        "cls.predictions.decoder.bias": "cls.predictions.bias",
    }
    for name, original in copies.items():  # tied tensors may be stored twice
        if {name, original} <= tensors.keys() and torch.equal(tensors[name], tensors[original]):
            del tensors[name]
    tensors.pop("bert.embeddings.position_ids", None)  # 0, 1, 2, ... in old checkpoints
    return config, tensors
