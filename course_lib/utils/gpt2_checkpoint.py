"""Names, sizes and layout of GPT-2's checkpoints on the Hugging Face hub, beside those of `course_lib.gpt`."""

import re

import torch

from course_lib.utils import huggingface

NAMES = (  # what our tensors' names become, one rule after the other
    (r"^embedding\.", "wte."),
    (r"^positions$", "wpe.weight"),
    (r"^blocks\.", "h."),
    (r"^norm\.", "ln_f."),
    (r"^head\.", "lm_head."),
    (r"\.ln(\d)\.", r".ln_\1."),
    (r"attn\.in_proj_", "attn.c_attn."),
    (r"attn\.out_proj\.", "attn.c_proj."),
    (r"mlp\.0\.", "mlp.c_fc."),
    (r"mlp\.2\.", "mlp.c_proj."),
)
SETTINGS = {  # of GPTConfig -> of config.json
    "vocab_size": "vocab_size",
    "max_len": "n_positions",
    "d_model": "n_embd",
    "num_layers": "n_layer",
    "num_heads": "n_head",
    "dim_feedforward": "n_inner",
    "norm_eps": "layer_norm_epsilon",
    "tied": "tie_word_embeddings",
}
ACTIVATIONS = {"gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "gelu": "gelu"}
DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def read_settings(config, dropout=None):
    """The arguments of `GPTConfig` for a checkpoint's config.json (dict), refused if we compute no such network."""
    huggingface.check_config(
        config,
        *("vocab_size", "n_positions", "n_embd", "n_layer", "n_head"),
        model_type="gpt2",
        activation_function=tuple(ACTIVATIONS),
        scale_attn_weights=True,
        scale_attn_by_inverse_layer_idx=False,
        add_cross_attention=False,
    )
    dropouts = {name: config.get(name, 0.1) for name in DROPOUTS}
    if dropout is None and len(set(dropouts.values())) > 1:
        raise ValueError(f"config.json has {dropouts}, this model one dropout: give it, from_pretrained(..., dropout=)")
    settings = {ours: config[theirs] for ours, theirs in SETTINGS.items() if theirs in config}
    settings["dropout"] = dropouts["resid_pdrop"] if dropout is None else dropout
    settings["activation"] = ACTIVATIONS[config.get("activation_function", "gelu_new")]
    return settings


def write_settings(config):
    """The content of config.json for a `GPTConfig`, refused if it is no GPT-2."""
    kinds = {"gelu_tanh": "gelu_new", "gelu": "gelu"}
    if config.activation not in kinds or config.norm != "layernorm" or not config.bias:
        raise ValueError(f"GPT-2 has GELU, layernorm and biases, this model {config}")
    settings = {theirs: getattr(config, ours) for ours, theirs in SETTINGS.items()}
    settings |= {"model_type": "gpt2", "activation_function": kinds[config.activation]}
    return settings | dict.fromkeys(DROPOUTS, config.dropout)


def read_tensors(tensors, names, tied, source):
    """A checkpoint's tensors under our names; those that have none keep theirs."""
    tensors = {name.removeprefix("transformer."): x for name, x in tensors.items()}
    tensors = {name: x for name, x in tensors.items() if not re.search(r"\.attn\.(masked_)?bias$", name)}  # masks
    if tied and "wte.weight" in tensors:
        table = tensors["wte.weight"]
        if not torch.equal(tensors.setdefault("lm_head.weight", table), table):
            raise ValueError(f"{source} has an output layer of its own, lm_head.weight, but config.json ties it")
    theirs = {name: huggingface.rename_key(name, NAMES) for name in names}
    ours = {name: transposed(other, tensors.pop(other)) for name, other in theirs.items() if other in tensors}
    return ours | tensors


def write_tensors(tensors, tied):
    """Our tensors under the names of a checkpoint; a tied output layer stands there once."""
    tensors = {huggingface.rename_key(name, NAMES): x for name, x in tensors.items()}
    head = tensors.pop("lm_head.weight")
    tensors = {f"transformer.{name}": transposed(name, x) for name, x in tensors.items()}
    return tensors if tied else tensors | {"lm_head.weight": head}


def transposed(name, x):
    """GPT-2's linear layers keep their weights as (in, out), torch's as (out, in)."""
    return x.T if re.search(r"(c_attn|c_proj|c_fc)\.weight$", name) and x.ndim == 2 else x
