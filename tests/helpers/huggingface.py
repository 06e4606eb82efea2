"""transformers, the reference of our BERT, GPT and tokenizers: quiet, without network, loaded on first use."""

import copy
import functools
import os
import warnings

import torch

from course_lib.utils import huggingface


@functools.cache
def reference():
    """The module transformers."""
    quiet = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    os.environ.update(quiet, TOKENIZERS_PARALLELISM="false")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what it says while it loads is its own business
        import transformers
    transformers.utils.logging.disable_progress_bar()
    return transformers


def build(kind, config, seed=0):
    """A model of transformers' class `kind` without dropout, no parameter of which is zero or one."""
    config._attn_implementation = "eager"
    model = getattr(reference(), kind)(config).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.5 * noise if parameter.ndim > 1 else parameter + 0.3 * noise)
    return model


def save_gradients(model, folder):
    """A checkpoint of a model's form that holds, for each weight, its gradient; 0 where there is none."""
    gradients = copy.deepcopy(model)
    with torch.no_grad():
        for place, parameter in zip(gradients.parameters(), model.parameters(), strict=True):
            place.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
    gradients.save_pretrained(folder)
    return folder


def damaged(model, folder, change, **settings):
    """A checkpoint of a model of transformers', its tensors changed by a function and some of its settings others."""
    model.save_pretrained(folder)
    config, tensors = huggingface.read(folder)
    change(tensors)
    huggingface.save(folder, config | settings, tensors)
    return folder
