r"""Recorded runs of chapter 11: which of the tricks for training Transformers help, and what they do to gradients.

Read in this order: `translation_task`, the data; `make_model`; `train_one`, one cell of the grid; `gradient_norms`,
`qkv_gradients` and `layer_norm_gain`, the measurements. The experiments at the end repeat them for every setting. The
notebook uses the same functions, so they are public.

Notebook: 11.
"""

import functools
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import toy
from course_lib.experiments import experiment
from course_lib.optim import RAdam, constant
from course_lib.positions import Sinusoidal
from course_lib.train import evaluate, train_epoch
from course_lib.transformer import RESIDUALS, EncoderLayer, TransformerEncoder, TransformerLM

LENGTH = 20  # tokens of the longest row
NOTHING = -100  # the target where nothing is asked
OPTIMIZERS = {"Adam": torch.optim.Adam, "RAdam": RAdam}

# --- the task ---------------------------------------------------------------------


class Task(NamedTuple):
    """English sentences, a mark, and their translations: one row each, to be read by a causal model.

    Args:
        words: list of V words, by id; the first three are padding, the mark and the end.
        train: (inputs, targets) of the training pairs, (n, T) int64 each; the target is -100 where nothing is asked:
            in the source and in padding.
        valid: the same of other pairs.
    """

    words: list
    train: tuple
    valid: tuple


@functools.cache
def translation_task(train=5000, valid=300, seed=0):
    """Draw the toy translation pairs and number their words, as a language model with the source as prefix reads them.

    Args:
        train: training pairs to draw; the shorter half of them is used, with at most 20 tokens a row.
        valid: the same of the validation pairs, from another seed; what was drawn for training too is left out.
        seed: of the drawing.

    Returns:
        `Task`.

    Example:
        >>> task = translation_task(train=40, valid=10)
        >>> inputs, targets = task.train
        >>> " ".join(task.words[i] for i in inputs[1].tolist())
        'a strange cow greets a small girl today = nun una bova mira una nina mika salutas <eos> <pad>'
        >>> " ".join(task.words[i] for i in targets[1].tolist() if i != NOTHING)
        'nun una bova mira una nina mika salutas <eos>'

    Notebook: 11.
    """
    pairs, others = _short(toy.translation_pairs(train, seed)), _short(toy.translation_pairs(valid, 1000 + seed))
    known = {tuple(pair.source) for pair in pairs}
    others = [pair for pair in others if tuple(pair.source) not in known]
    words = sorted({word for pair in [*pairs, *others] for word in [*pair.source, *pair.target]})
    number = {word: i for i, word in enumerate(["<pad>", "=", "<eos>", *words])}
    return Task(list(number), _rows(pairs, number), _rows(others, number))


def _short(pairs):
    """Those pairs that make at most `LENGTH` tokens with mark and end."""
    return [pair for pair in pairs if len(pair.source) + len(pair.target) + 2 <= LENGTH]


def _rows(pairs, number):
    """Inputs and targets (n, LENGTH - 1) of `source = target <eos>`."""
    ids = torch.zeros(len(pairs), LENGTH, dtype=torch.int64)
    asked = torch.zeros_like(ids, dtype=torch.bool)
    for row, pair in enumerate(pairs):
        text = [*pair.source, "=", *pair.target, "<eos>"]
        ids[row, : len(text)] = torch.tensor([number[word] for word in text])
        asked[row, len(pair.source) + 1 : len(text)] = True
    return ids[:, :-1], torch.where(asked, ids, NOTHING)[:, 1:]


def batches(task, seed, batch_size=16):
    """Training batches without end, the same for every model that is trained with this seed.

    Args:
        task: `Task`.
        seed: of the drawing, with replacement.
        batch_size: B.

    Yields:
        (inputs, targets), (B, T) int64 each.

    Notebook: 11.
    """
    generator, (inputs, targets) = torch.Generator().manual_seed(seed), task.train
    while True:
        chosen = torch.randint(len(inputs), (batch_size,), generator=generator)
        yield inputs[chosen], targets[chosen]


def asked_loss(model, batch):
    """Cross-entropy and accuracy where a target is asked for, as sums.

    Args:
        model: `model(inputs)` gives logits (B, T, V).
        batch: (inputs, targets), (B, T) int64 each; the target is -100 where nothing is asked.

    Returns:
        dict: "loss" in nats, "count" of targets, "accuracy" = how many were predicted.

    Notebook: 11.
    """
    inputs, targets = batch
    logits = model(inputs)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=NOTHING, reduction="sum")
    return {"loss": loss, "count": (targets != NOTHING).sum(), "accuracy": (logits.argmax(-1) == targets).sum()}


def word_pair_loss(task):
    r"""The loss of the best table of word pairs, which knows the word before and nothing else of the sentence.

    $$ -\frac{1}{n} \sum_{(a, b)} n_{ab} \ln \frac{n_{ab}}{n_a} $$

    Args:
        task: `Task`; the n asked targets b of the training pairs are counted, with the input a at their place.

    Returns:
        float, in nats a target. A model above it has not learned to look at the source.

    Notebook: 11.
    """
    inputs, targets = task.train
    asked = targets != NOTHING
    counts = torch.zeros(len(task.words), len(task.words), dtype=torch.float64)
    counts.index_put_((inputs[asked], targets[asked]), torch.ones(1, dtype=torch.float64), accumulate=True)
    given = counts.sum(1, keepdim=True)
    return -(torch.xlogy(counts, counts) - torch.xlogy(counts, given)).sum().item() / counts.sum().item()


# --- one cell of the grid -----------------------------------------------------------


def make_model(residual, layers, vocab_size, seed, width=32, heads=2):
    """An untrained causal Transformer without dropout; one seed gives all three residuals the same matrices.

    Pre-LN ends with a LayerNorm, as Xiong et al. (2020) define it; Post-LN and ReZero do not.

    Args:
        residual: "post-ln", "pre-ln" or "rezero".
        layers: N.
        vocab_size: V.
        seed: of the matrices.
        width: D; the hidden layer has 4 D.
        heads: H.

    Returns:
        `course_lib.transformer.TransformerLM`.

    Notebook: 11.
    """
    torch.manual_seed(seed)
    blocks = [EncoderLayer(width, heads, 4 * width, 0.0, residual=residual) for _ in range(layers)]
    encoder = TransformerEncoder(blocks, norm=nn.LayerNorm(width) if residual == "pre-ln" else None)
    return TransformerLM(vocab_size, encoder, position=Sinusoidal(width))


def train_one(
    residual,
    warmup,
    optimizer,
    layers,
    seed,
    steps=240,
    learning_rate=5e-3,
    *,
    every=20,
    width=32,
    batch_size=16,
    threshold=0.8,
    task=None,
):
    """Train one model: a linear warm-up, then a constant rate; no clipping, no dropout, no weight decay.

    A loss that is not finite ends the training. Then the measurements that are left repeat the last one.

    Args:
        residual: "post-ln", "pre-ln" or "rezero".
        warmup: steps of the warm-up, 0 for none.
        optimizer: "Adam" or "RAdam".
        layers: N.
        seed: of task, matrices and batches; these are the same for all settings of one seed.
        steps: optimizer steps, a multiple of `every`.
        learning_rate: after the warm-up.
        every: steps between two measurements on the validation pairs.
        width: D.
        batch_size: B.
        threshold: share of the words for "steps".
        task: `Task`; None: `translation_task(seed=seed)`.

    Returns:
        row: dict with the last "loss" in nats a word and "accuracy", share of the words predicted (both: validation
            pairs); "steps", after how many the accuracy was first measured at `threshold` or above, None if never;
            "reached", "stuck" and "diverged", 0 or 1: at threshold some time; in the end no better than
            `word_pair_loss`; ended by a loss that was not finite.
        history: list of dicts, "step" (0, `every`, 2 `every`, ...), "loss" and "accuracy".

    Raises:
        ValueError: if `steps` is not a positive multiple of `every`, or residual or optimizer is not one of those.

    Notebook: 11.
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
    if steps < 1 or steps % every:
        raise ValueError(f"steps must be a positive multiple of every ({every}), got {steps}")
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    rule = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(rule, functools.partial(constant, warmup=warmup))
    loader, history, diverged = batches(task, seed, batch_size), [_measured(model, task, 0)], False
    for step in range(every, steps + 1, every):
        if not diverged:
            try:
                train_epoch(model, itertools.islice(loader, every), asked_loss, rule, scheduler=scheduler)
                entry = _measured(model, task, step)
                diverged = not math.isfinite(entry["loss"])
            except FloatingPointError:
                diverged = True
        history.append({**history[-1], "step": step} if diverged else entry)
    return _row(history, threshold, word_pair_loss(task), diverged), history


def _measured(model, task, step):
    """One entry of the history, with four digits."""
    means = evaluate(model, [task.valid], asked_loss)
    return {"step": step, "loss": round(means["loss"], 4), "accuracy": round(means["accuracy"], 4)}


def _row(history, threshold, stuck_above, diverged):
    """What the table shows of a training."""
    last = history[-1]
    steps = next((entry["step"] for entry in history if entry["accuracy"] >= threshold), None)
    return {
        "loss": last["loss"],
        "accuracy": last["accuracy"],
        "steps": steps,
        "reached": int(steps is not None),
        "stuck": int(last["loss"] >= stuck_above),
        "diverged": int(diverged),
    }


# --- gradients ----------------------------------------------------------------------


def gradient_norms(residual, layers, seed, *, xavier=False, width=32, batch_size=64, task=None):
    """The 2-norms of the gradients of an untrained model, layer by layer.

    Args:
        residual: "post-ln", "pre-ln" or "rezero".
        layers: N.
        seed: of task, matrices and batch.
        xavier: True draws all matrices of the layers as Xiong et al. do; False keeps torch's, smaller where the input
            is wide (only the projections to queries, keys and values are Xavier's).
        width: D.
        batch_size: B; the loss is the mean over the words asked for in one batch.
        task: `Task`; None: `translation_task(seed=seed)`.

    Returns:
        dict of lists of N floats, from the first layer to the last: "attention" and "feed-forward", of the sublayer's
        output matrix; "stream", of the vectors (B, T, D) that the layer reads; with ReZero also "alpha", of its scale.

    Source: Xiong et al. (2020), arXiv:2002.04745, section 3.3 and figure 3 (the matrices). Notebook: 11.
    """
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    if xavier:
        _xavier(model.encoder)
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


def _xavier(encoder):
    """All matrices anew, uniform with variance 2 / (inputs + outputs), each of queries, keys and values by itself."""
    for layer in encoder.layers:
        packed, out = layer.self_attn.in_proj_weight, layer.self_attn.out_proj.weight
        for matrix in (*packed.data.chunk(3), out, layer.linear1.weight, layer.linear2.weight):
            nn.init.xavier_uniform_(matrix)


def qkv_gradients(
    residual, layers, seed, steps=0, *, learning_rate=1e-3, warmup=20, width=32, batch_size=64, task=None
):
    """The 2-norms of the gradients of the projections to queries, keys and values, layer by layer.

    Args:
        residual: "post-ln", "pre-ln" or "rezero".
        layers: N.
        seed: of task, matrices and batches.
        steps: of training with Adam on batches of 16 before the measurement; 0: the untrained model.
        learning_rate: of that training, after the warm-up.
        warmup: its first steps.
        width: D.
        batch_size: B of the batch on which the gradients are measured: the same for any number of steps.
        task: `Task`; None: `translation_task(seed=seed)`.

    Returns:
        dict of lists of N floats, from the first layer to the last: "query", "key" and "value".

    Source: Liu et al. (2020), "Understanding the Difficulty of Training Transformers", arXiv:2004.08249, section 3.
    Notebook: 11.
    """
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    if steps:
        rule = torch.optim.Adam(model.parameters(), lr=learning_rate)
        scheduler = torch.optim.lr_scheduler.LambdaLR(rule, functools.partial(constant, warmup=warmup))
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
        width: D, at least 3.
        norm: length |x| of the random input, above 0.
        seed: of its direction.
        centred: True draws x with mean 0; False with entries around 1 before x is scaled to its length.
        eps: of LayerNorm, added to the variance.

    Returns:
        dict: "largest" singular value, "mean" (the root of the mean of their squares: the gain of a gradient in a
        random direction), "law" = sqrt(D) / |x|.

    Raises:
        ValueError: if `width` is below 3 or `norm` not above 0.

    Source: Xiong et al. (2020), arXiv:2002.04745, lemma 3 (the law, as an order of magnitude). Notebook: 11.
    """
    if width < 3 or not norm > 0:
        raise ValueError(f"width must be at least 3 and norm above 0, got {width=} and {norm=}")
    x = torch.randn(width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    x = x - x.mean() if centred else x + 1
    x = x * (norm / x.norm())
    jacobian = torch.autograd.functional.jacobian(lambda x: F.layer_norm(x, (width,), eps=eps), x)
    values = torch.linalg.svdvals(jacobian)
    return {"largest": values[0].item(), "mean": values.square().mean().sqrt().item(), "law": width**0.5 / norm}


# --- the recorded runs --------------------------------------------------------------


@experiment("training-grid", "Post-LN, Pre-LN, ReZero with and without warm-up, Adam and RAdam, at two depths.")
def training_grid(
    seed,
    residuals=tuple(RESIDUALS),
    warmups=(0, 50),
    optimizers=tuple(OPTIMIZERS),
    depths=(4, 12),
    steps=240,
    learning_rate=5e-3,
    every=20,
    width=32,
    batch_size=16,
):
    """Every setting once, with one learning rate; rows such as "post-ln, no warm-up, Adam, 12 layers".

    The columns are those of `train_one`. All rows of a seed have the same data in the same order, and those of one
    depth the same matrices at the start. No setting is chosen by these numbers, and there is no test set.

    The rate was chosen on seed 0, with Adam and 12 layers, as the lowest tried at which Post-LN without warm-up fails.
    After 240 steps the share of right words was: at 1e-3, Post-LN without warm-up 0.89; at 3e-3, Post-LN 0.86 without
    and 0.90 with 100 steps of warm-up, Pre-LN without 0.94; at 5e-3, Post-LN 0.26 without, 0.91 with 100 and 0.86 with
    50 steps of warm-up, Pre-LN without 0.94, ReZero without 0.88. RAdam without warm-up at 5e-3: Post-LN 0.86. With 16
    layers and 3e-3, Post-LN had 0.61 without and 0.80 with warm-up.
    """
    task, results, history = translation_task(seed=seed), {}, {}
    for depth, residual, warmup, optimizer in itertools.product(depths, residuals, warmups, optimizers):
        name = f"{residual}, {'warm-up' if warmup else 'no warm-up'}, {optimizer}, {depth} layers"
        sizes = {"every": every, "width": width, "batch_size": batch_size, "task": task}
        results[name], history[name] = train_one(
            residual, warmup, optimizer, depth, seed, steps, learning_rate, **sizes
        )
    return {"results": results, "history": history}


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


def _four_digits(row):
    """The numbers of a row, also those in lists, with four significant digits."""

    def cut(number):
        return float(f"{number:.4g}")

    return {key: list(map(cut, value)) if isinstance(value, list) else cut(value) for key, value in row.items()}


@experiment("training-rates", "Post-LN and Pre-LN with Adam at three more learning rates than the grid's.")
def training_rates(
    seed,
    residuals=("post-ln", "pre-ln"),
    warmups=(0, 50),
    learning_rates=(1e-3, 2.5e-3, 1e-2),
    layers=12,
    steps=240,
    every=20,
    width=32,
    batch_size=16,
):
    """Is Pre-LN better at the rate of each that suits it best? Rows such as "pre-ln, warm-up, rate 0.001".

    Everything else is that of `training_grid`, whose rows with Adam are the fourth rate. The best rate of a setting is
    one that these validation pairs chose, for every setting alike.
    """
    task, results, history = translation_task(seed=seed), {}, {}
    for rate, residual, warmup in itertools.product(learning_rates, residuals, warmups):
        name = f"{residual}, {'warm-up' if warmup else 'no warm-up'}, rate {rate:g}"
        sizes = {"every": every, "width": width, "batch_size": batch_size, "task": task}
        results[name], history[name] = train_one(residual, warmup, "Adam", layers, seed, steps, rate, **sizes)
    return {"results": results, "history": history}
