"""Gradients of untrained Transformers by layer and projection, and the gain of LayerNorm (chapter 11)."""

import functools
import itertools

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.experiments import deep_jumps, experiment
from course_lib.experiments.training_tricks import asked_loss, batches, make_model, translation_task
from course_lib.optim import constant_schedule
from course_lib.train import train_epoch
from course_lib.transformer import RESIDUALS


def gradient_norms(residual, layers, seed, *, xavier=False, width=32, batch_size=64, task=None):
    """The 2-norms of the gradients of an untrained model, layer by layer.

    Args:
        xavier: True draws all matrices of the layers as Xiong et al. do; False keeps torch's, smaller where the input
            is wide (only the projections to queries, keys and values are Xavier's).
        batch_size: B; the loss is the mean over the words asked for in one batch.

    Returns:
        dict of lists of N floats, from the first layer to the last: "attention" and "feed-forward", of the sublayer's
        output matrix; "stream", of the vectors (B, T, D) that the layer reads; with ReZero also "alpha", of its scale.

    Source: Xiong et al. (2020), arXiv:2002.04745, section 3.3 and figure 3 (the matrices).
    """
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    if xavier:
        _xavier(model.encoder.layers)
    streams = []

    def keep(layer, inputs):
        inputs[0].retain_grad()
        streams.append(inputs[0])

    for layer in model.encoder.layers:
        layer.register_forward_pre_hook(keep)
    _mean_loss(model, next(batches(task, seed, batch_size))).backward()
    found = {"attention": [], "feed-forward": [], "stream": [x.grad.norm().item() for x in streams]}
    for layer in model.encoder.layers:
        found["attention"].append(layer.self_attn.out_proj.weight.grad.norm().item())
        found["feed-forward"].append(layer.linear2.weight.grad.norm().item())
        if residual == "rezero":
            found.setdefault("alpha", []).append(layer.norm1.alpha.grad.norm().item())
    return found


def _xavier(layers):
    """All matrices anew, uniform with variance 2 / (inputs + outputs), each of queries, keys and values by itself."""
    for layer in layers:
        packed, out = layer.self_attn.in_proj_weight, layer.self_attn.out_proj.weight
        for matrix in (*packed.data.chunk(3), out, layer.linear1.weight, layer.linear2.weight):
            nn.init.xavier_uniform_(matrix)


def qkv_gradients(
    residual, layers, seed, steps=0, *, learning_rate=1e-3, warmup=20, width=32, batch_size=64, task=None
):
    """The 2-norms of the gradients of the projections to queries, keys and values, layer by layer.

    Args:
        batch_size: B of the batch on which the gradients are measured: the same for any number of steps.

    Returns:
        dict of lists of N floats, from the first layer to the last: "query", "key" and "value".

    Source: Liu et al. (2020), "Understanding the Difficulty of Training Transformers", arXiv:2004.08249, section 3.
    """
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    if steps:
        rule = torch.optim.Adam(model.parameters(), lr=learning_rate)
        scheduler = torch.optim.lr_scheduler.LambdaLR(rule, functools.partial(constant_schedule, warmup=warmup))
        train_epoch(model, itertools.islice(batches(task, seed), steps), asked_loss, rule, scheduler=scheduler)
    model.zero_grad()
    _mean_loss(model, next(batches(task, 1000 + seed, batch_size))).backward()
    found = {"query": [], "key": [], "value": []}
    for layer in model.encoder.layers:
        for norms, part in zip(found.values(), layer.self_attn.in_proj_weight.grad.chunk(3), strict=True):
            norms.append(part.norm().item())
    return found


def _mean_loss(model, batch):
    """The loss in nats a word."""
    sums = asked_loss(model, batch)
    return sums["loss"] / sums["count"]


def layer_norm_gain(width, norm, seed, *, centred=True, eps=1e-5):
    r"""What LayerNorm's backward pass multiplies a gradient by: the singular values of its Jacobian, in float64.

    $$ \frac{\partial\, \text{norm}(x)}{\partial x} = \frac{1}{\sigma}
       \Big(I - \tfrac{1}{D} 1 1^\top - \tfrac{1}{D} \hat x \hat x^\top\Big), \qquad
       \sigma^2 = \tfrac{1}{D} \lVert x - \bar x \rVert^2, \quad \hat x = \frac{x - \bar x}{\sigma} $$

    The bracket removes two directions and keeps the others: D - 2 singular values are 1 / sigma, two are 0 (up to eps).
    For x with mean 0, 1 / sigma is the law's sqrt(D) / |x|; with another mean |x| is larger than what LayerNorm sees.

    Args:
        norm: length |x| of the random input, above 0.
        centred: True draws x with mean 0; False with entries around 1 before x is scaled to its length.
        eps: of LayerNorm, added to the variance.

    Returns:
        dict: "largest" singular value, "mean" (the root of the mean of their squares: the gain of a gradient in a
        random direction), "law" = sqrt(D) / |x|.

    Source: Xiong et al. (2020), arXiv:2002.04745, lemma 3 (the law, as an order of magnitude).
    """
    if width < 3 or not norm > 0:
        raise ValueError(f"width must be at least 3 and norm above 0, got {width=} and {norm=}")
    x = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x - x.mean() if centred else x + 1
    x = x * (norm / x.norm())
    jacobian = torch.autograd.functional.jacobian(lambda x: F.layer_norm(x, (width,), eps=eps), x)
    values = torch.linalg.svdvals(jacobian)
    return {"largest": values[0].item(), "mean": values.square().mean().sqrt().item(), "law": width**0.5 / norm}


@experiment("gradient-norms", "Gradients of untrained Transformers by layer and projection; the gain of LayerNorm.")
def gradients(
    seed,
    residuals=tuple(RESIDUALS),
    depths=(6, 12, 24),
    projection_layers=6,
    projection_steps=(0, 150),
    widths=(16, 64, 256),
    norms=(0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0),
    width=32,
):
    """`gradient_norms`, `qkv_gradients` and `layer_norm_gain` for every setting; four digits.

    "first_over_last" is the gradient of the feed-forward output matrix in the first layer relative to the last's.
    "query_over_value" and "key_over_value" are ratios of means over the layers. "least" and "most" are the largest
    singular value relative to the law's, over the norms. ReZero's matrices have no gradient before alpha moves: no
    ratios there.
    """
    task, results = translation_task(seed=seed), {}
    for residual, xavier, layers in itertools.product(residuals, (False, True), depths):
        row = gradient_norms(residual, layers, seed, xavier=xavier, width=width, task=task)
        if residual != "rezero":
            row["first_over_last"] = row["feed-forward"][0] / row["feed-forward"][-1]
        results[f"gradients, {residual}, {'xavier' if xavier else 'torch'}, {layers} layers"] = row
    for residual, steps in itertools.product(residuals, projection_steps):
        row = qkv_gradients(residual, projection_layers, seed, steps, width=width, task=task)
        if sum(row["value"]):
            row |= {f"{name}_over_value": sum(row[name]) / sum(row["value"]) for name in ("query", "key")}
        results[f"projections, {residual}, {steps} steps"] = row
    for D, centred in itertools.product(widths, (True, False)):
        found = [layer_norm_gain(D, norm, seed, centred=centred) for norm in norms]
        row = {"norm": list(norms)} | {key: [gain[key] for gain in found] for key in found[0]}
        ratios = [gain["largest"] / gain["law"] for gain in found]
        row |= {"least": min(ratios), "most": max(ratios)}
        results[f"LayerNorm, width {D}, {'centred' if centred else 'not centred'}"] = row
    return {"results": {name: _four_digits(row) for name, row in results.items()}}


@experiment("first-over-last", "The first layer's gradient over the last's before training, by depth.")
def first_over_last(seed, residuals=("post-ln", "pre-ln"), depths=(12, 24, 48)):
    """Rows such as "post-ln, xavier, 12 layers"; the column is "ratio", of the feed-forward networks' last matrices.

    The models and the batch are those of `deep_jumps`, untrained; "torch" is with torch's initial values.
    """
    batch, results = deep_jumps.examples(torch.Generator().manual_seed(seed)), {}
    for residual, xavier, layers in itertools.product(residuals, (False, True), depths):
        model = deep_jumps.make_model(seed, layers, residual)
        if xavier:
            _xavier(model[1])
        deep_jumps.loss_on(model, batch).backward()
        first, *_, last = (layer.linear2.weight.grad.norm().item() for layer in model[1])
        results[f"{residual}, {'xavier' if xavier else 'torch'}, {layers} layers"] = {"ratio": first / last}
    return {"results": {name: _four_digits(row) for name, row in results.items()}}


def _four_digits(row):
    """The numbers of a row, also those in lists, with four significant digits."""

    def cut(number):
        return float(f"{number:.4g}")

    return {key: list(map(cut, value)) if isinstance(value, list) else cut(value) for key, value in row.items()}
