r"""Which of the tricks for training Transformers help (chapter 11).

`translation_task` draws the data, `train_one` trains one cell of the grid, and the experiments repeat it for every
setting.
"""

import functools
import itertools
import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.optim import RAdam, constant_schedule
from course_lib.positional import Sinusoidal
from course_lib.train import evaluate, train_epoch
from course_lib.transformer import RESIDUALS, EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerLM

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

    >>> task = translation_task(train=40, valid=10)
    >>> inputs, targets = task.train
    >>> " ".join(task.words[i] for i in inputs[1].tolist())
    'a strange cow greets a small girl today = nun una bova mira una nina mika salutas <eos> <pad>'
    >>> " ".join(task.words[i] for i in targets[1].tolist() if i != NOTHING)
    'nun una bova mira una nina mika salutas <eos>'
    """
    pairs, others = (
        _short(synthetic.translation_pairs(train, seed)),
        _short(synthetic.translation_pairs(valid, 1000 + seed)),
    )
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

    Yields:
        (inputs, targets), (B, T) int64 each.
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
        width: D; the hidden layer has 4 D.
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
    """Train one model: a linear warm-up, then a constant_schedule rate; no clipping, no dropout, no weight decay.

    A loss that is not finite ends the training. Then the measurements that are left repeat the last one.

    Args:
        warmup: steps of the warm-up, 0 for none.
        steps: optimizer steps, a multiple of `every`.
        every: steps between two measurements on the validation pairs.
        threshold: fraction of the words for "steps".

    Returns:
        row: dict with the last "loss" in nats a word and "accuracy", fraction of the words predicted (both: validation
            pairs); "steps", after how many the accuracy was first measured at `threshold` or above, None if never;
            "reached", "stuck" and "diverged", 0 or 1: at threshold some time; in the end no better than
            `word_pair_loss`; ended by a loss that was not finite.
        history: list of dicts, "step" (0, `every`, 2 `every`, ...), "loss" and "accuracy".
    """
    if optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer must be one of {', '.join(OPTIMIZERS)}, got {optimizer!r}")
    if steps < 1 or steps % every:
        raise ValueError(f"steps must be a positive multiple of every ({every}), got {steps}")
    task = task or translation_task(seed=seed)
    model = make_model(residual, layers, len(task.words), seed, width)
    rule = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate)
    scheduler = torch.optim.lr_scheduler.LambdaLR(rule, functools.partial(constant_schedule, warmup=warmup))
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
    After 240 steps the fraction right was: at 1e-3, Post-LN without warm-up 0.89; at 3e-3, Post-LN 0.86 without
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


@experiment("training-radam", "RAdam at three times the grid's learning rate, in the setting where Adam was best.")
def training_radam(seed, learning_rate=1.5e-2, layers=4, steps=240, every=20, width=32, batch_size=16):
    """Is RAdam slow, or its rate low? One row, "post-ln, no warm-up, RAdam, 4 layers, rate 0.015".

    Everything else is that of `training_grid`. No other rate of RAdam was tried, and Adam's own best one was not looked
    for.
    """
    name = f"post-ln, no warm-up, RAdam, {layers} layers, rate {learning_rate:g}"
    sizes = {"every": every, "width": width, "batch_size": batch_size}
    row, history = train_one("post-ln", 0, "RAdam", layers, seed, steps, learning_rate, **sizes)
    return {"results": {name: row}, "history": {name: history}}
