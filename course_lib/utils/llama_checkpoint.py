"""Names, sizes and layout of Llama's checkpoints on the Hugging Face hub, beside those of `course_lib.llama`."""

import re

import torch

from course_lib.utils import huggingface
from course_lib.utils.validate import check_positive

NAMES = (  # what our tensors' names become, one rule after the other
    (r"^embedding\.", "model.embed_tokens."),
    (r"^blocks\.", "model.layers."),
    (r"^norm\.", "model.norm."),
    (r"^head\.", "lm_head."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.attn\.", ".self_attn."),
)
SETTINGS = {  # of LlamaConfig -> of config.json
    "vocab_size": "vocab_size",
    "max_len": "max_position_embeddings",
    "d_model": "hidden_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "dim_feedforward": "intermediate_size",
    "head_dim": "head_dim",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
}
SCALING = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
LLAMA_3_2 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
PUBLISHED = {  # the first seven arguments of LlamaConfig, and those that are not at their defaults
    "smollm2-135m": ((49152, 8192, 576, 30, 9, 3, 1536), {"rope_base": 100000.0, "tied": True}),
    "tinyllama-1.1b": ((32000, 2048, 2048, 22, 32, 4, 5632), {}),
    "llama-2-7b": ((32000, 4096, 4096, 32, 32, 32, 11008), {}),
    "llama-3-8b": ((128256, 8192, 4096, 32, 32, 8, 14336), {"rope_base": 500000.0}),
    "llama-3.2-1b": (
        (128256, 131072, 2048, 16, 32, 8, 8192),
        {"rope_base": 500000.0, "rope_scaling": LLAMA_3_2, "tied": True},
    ),
}

# --- sizes ----------------------------------------------------------------------


def read_settings(config):
    """The arguments of `LlamaConfig` for a checkpoint's config.json (dict), refused if we compute no such network."""
    huggingface.check_config(
        config,
        *("vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size"),
        *("num_hidden_layers", "num_attention_heads"),
        model_type="llama",
        hidden_act=("silu", "swish"),
        attention_bias=False,
        mlp_bias=False,
        attention_dropout=(0, None),
        sliding_window=None,
        quantization_config=None,
    )
    settings = {ours: config[theirs] for ours, theirs in SETTINGS.items() if config.get(theirs) is not None}
    settings = {"num_kv_heads": config["num_attention_heads"], "norm_eps": 1e-6} | settings  # their defaults
    return settings | read_rope(config)


def read_rope(config):
    """The base of the angles and what slows them, from the form of transformers 5 or from the older one."""
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict):
        raise ValueError(f"config.json has {rope!r} for its rotary positions, wanted an object: names with values")
    rope = config | rope
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind not in ("default", "llama3"):
        raise ValueError(f"config.json has rotary positions of type {kind!r}, wanted 'default' or 'llama3'")
    if (part := rope.get("partial_rotary_factor") or 1) != 1:
        raise ValueError(f"config.json has partial_rotary_factor {part!r}, wanted 1: whole heads are rotated")
    found = {"rope_base": rope.get("rope_theta") or 10000.0}
    if kind == "llama3":
        rope.setdefault("original_max_position_embeddings", config["max_position_embeddings"])
        found["rope_scaling"] = {name: rope[name] for name in SCALING if name in rope}
    return found


def check_scaling(scaling):
    """Raise unless it is the four numbers of `SCALING`, which `course_lib.llama.slow_down` can compute with."""
    if not isinstance(scaling, dict) or scaling.keys() != set(SCALING):
        raise ValueError(f"rope_scaling must be a dict of {', '.join(SCALING)}, got {scaling!r}")
    check_positive(**scaling)
    if scaling["high_freq_factor"] <= scaling["low_freq_factor"]:
        raise ValueError(f"rope_scaling must have a high_freq_factor above the low_freq_factor, got {scaling!r}")


def write_settings(config):
    """The content of config.json for a `LlamaConfig`, in the form that every version of transformers reads."""
    settings = {theirs: getattr(config, ours) for ours, theirs in SETTINGS.items()}
    settings |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu"}
    settings |= {"attention_bias": False, "mlp_bias": False}
    settings |= {"bos_token_id": None, "eos_token_id": None}  # else transformers would stop at a token 2
    scaling = None if config.rope_scaling is None else {"rope_type": "llama3"} | config.rope_scaling
    return settings | {"rope_theta": config.rope_base, "rope_scaling": scaling}


# --- tensors --------------------------------------------------------------------


def read_tensors(tensors, names, config, source):
    """A checkpoint's tensors under our names; those that have none keep theirs."""
    tensors = {name: x for name, x in tensors.items() if not name.endswith("rotary_emb.inv_freq")}  # a table
    table = tensors.get("model.embed_tokens.weight")
    if config.tied and table is not None and not torch.equal(tensors.setdefault("lm_head.weight", table), table):
        raise ValueError(f"{source} has an output layer of its own, lm_head.weight, but config.json ties it")
    theirs = {name: huggingface.rename_key(name, NAMES) for name in names}
    ours = {name: tensors.pop(other) for name, other in theirs.items() if other in tensors}
    return {name: paired(name, x, config.key_width, (2, -1)) for name, x in (ours | tensors).items()}


def write_tensors(tensors, config):
    """Our tensors under the names of a checkpoint; a tied output layer stands there once."""
    tensors = {name: paired(name, x, config.key_width, (-1, 2)) for name, x in tensors.items()}
    tensors = {huggingface.rename_key(name, NAMES): x for name, x in tensors.items()}
    if config.tied:
        del tensors["lm_head.weight"]
    return tensors


def paired(name, x, head_dim, halves):
    """The rows of W_q and W_k in another order, so that a rotation finds its pairs; all else as it is.

    Entries that turn together stand side by side with us, as in the paper, and half a head apart in these checkpoints:
    a head's rows are a table of `halves`, (2, K/2) there and (K/2, 2) here, which is transposed.
    """
    if not re.search(r"attn\.[qk]_proj\.weight$", name) or x.ndim != 2 or x.shape[0] % head_dim:
        return x
    heads = x.unflatten(0, (-1, head_dim))  # (H, K, D)
    return heads.unflatten(1, halves).transpose(1, 2).flatten(0, 2)
