r"""The training loop, in plain torch: what every chapter trains with.

Read `train_epoch` first: it is the loop. `fit` repeats it, measures on validation data, keeps the best weights and
writes checkpoints; `evaluate` is the half without gradients, `predict` the model alone.

A loss function has the form `loss_fn(model, batch) -> dict` and returns *sums* over the batch: "loss" (a tensor),
"count" (how many items or tokens were summed) and whatever else is to be reported, such as "accuracy" (how many were
right). Sums can be added over batches of different sizes and divided once, at the end; means of means could not.
"""

import functools
import itertools
import math
import random
from pathlib import Path

import torch
import torch.nn.functional as F
from tqdm import tqdm

from course_lib.utils import checkpoint as checkpoints
from course_lib.utils import eval_mode
from course_lib.utils.device import device_of, to_device
from course_lib.utils.validate import (
    check_choice,
    check_instance,
    check_labels,
    check_positive,
    check_sizes,
    check_tensor,
)


def set_seed(seed):
    """Seed torch on all devices, and Python's own generator."""
    check_sizes(least=0, seed=seed)
    random.seed(seed)
    torch.manual_seed(seed)


def train_epoch(
    model, batches, loss_fn, optimizer, *, scheduler=None, clip_norm=None, grad_accumulation_steps=1, bf16=False
):
    r"""One pass over the training batches: the training loop itself.

    $$ g = \frac{\sum_j \nabla_\theta\, \text{loss}_j}{\sum_j \text{count}_j} $$

    over the micro-batches j of one optimizer step: unequal ones give the gradient of one large batch, not an average of
    averages.

    Args:
        batches: iterable of what `loss_fn(model, batch)` takes; they are moved to the model's device.
        scheduler: stepped once after each optimizer step, not once a batch or an epoch.
        clip_norm: largest 2-norm of the whole gradient, after the division; None does not clip.
        grad_accumulation_steps: batches that make one optimizer step; a last incomplete group makes a step too.
        bf16: True runs the forward pass in bfloat16 where that is safe (autocast).

    Returns a dict of means: each sum divided by the total count. A loss that is not finite is a FloatingPointError.

    >>> model = torch.nn.Linear(3, 2)
    >>> def loss_fn(model, batch):
    ...     x, y = batch
    ...     return {"loss": (model(x) - y).square().sum(), "count": len(x)}
    >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> sorted(train_epoch(model, [(torch.ones(5, 3), torch.ones(5, 2))], loss_fn, optimizer))
    ['loss']
    """
    parameters = trained_parameters(model, optimizer, scheduler, clip_norm)
    device, steps = device_of(model), []
    model.train()
    for micro_batches in grouped(batches, grad_accumulation_steps):
        optimizer.zero_grad()
        step = {}
        for batch in micro_batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                sums = loss_fn(model, to_device(batch, device))
            step = add_sums(step, sums)
            sums["loss"].backward()  # adds to the gradients of the micro-batches before
        steps.append(step)
        if device.type == "cpu":  # elsewhere at the end: to ask at every step would make the processor wait
            check_losses(steps[-1:], first=len(steps))
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= step["count"]
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    check_losses(steps)
    return means(steps)


def evaluate(model, batches, loss_fn, *, bf16=False):
    """Means over all batches, without gradients and without dropout.

    `batches` may also be a function of nothing that gives an iterable; `loss_fn` and the dict of means that comes back
    are as in `train_epoch`.

    >>> def loss_fn(model, x):
    ...     return {"loss": model(x).sum(), "count": len(x)}
    >>> evaluate(torch.nn.Identity(), [torch.tensor([1.0, 2.0]), torch.tensor([6.0])], loss_fn)
    {'loss': 3.0}
    """
    device = device_of(model)
    with eval_mode(model), torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        batches = batches() if callable(batches) else batches
        return means([add_sums({}, loss_fn(model, to_device(batch, device))) for batch in batches])


def predict(model, batches, *, bf16=False):
    """The model's outputs, without gradients and without dropout, joined in the order of the batches.

    `batches` is an iterable of what the model takes, without labels: a tensor, or a tuple such as (ids, real). The
    outputs (N, ...) come back on the CPU.

    >>> predict(torch.nn.Flatten(), [torch.zeros(2, 1, 3), torch.ones(1, 1, 3)]).tolist()
    [[0.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 1.0, 1.0]]
    """
    device = device_of(model)
    with eval_mode(model), torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        batches = (to_device(batch if isinstance(batch, tuple | list) else (batch,), device) for batch in batches)
        return torch.cat([model(*batch).cpu() for batch in batches])


def fit(
    model,
    train_batches,
    loss_fn,
    optimizer,
    *,
    epochs,
    valid_batches=None,
    monitor="loss",
    checkpoint=None,
    log=None,
    **options,
):
    """Train for some epochs; with validation batches, end with the weights of the best epoch.

    With a `checkpoint` file, written after every epoch, a run that was killed goes on when the same lines are run
    again, and ends with the same bits as one that was not (on the CPU; some GPU kernels add in varying order), if
    `train_batches` depends on the epoch alone and the model draws random numbers from torch alone.

    Args:
        train_batches: function of the epoch (1, 2, ...) that gives an iterable of batches.
        epochs: passes over the data, counting those in the checkpoint.
        valid_batches: list of batches, or a function of nothing that gives an iterable; None: the last weights stay.
        monitor: the best epoch has the lowest "loss", or the highest of another key such as "accuracy".
        checkpoint: path; delete the file to start again.
        log: function called with one line of text an epoch, for instance `print`.
        options: `scheduler`, `clip_norm`, `grad_accumulation_steps` and `bf16`, as in `train_epoch`.

    Returns a list with a dict for each epoch: "epoch", "train_loss", "valid_loss", and so for the other sums.
    """
    check_sizes(epochs=epochs)
    if not callable(train_batches):
        raise ValueError("train_batches must be a function of the epoch, e.g. lambda epoch: batches(..., seed=epoch)")
    scheduler, bf16 = options.get("scheduler"), options.get("bf16", False)
    trained_parameters(model, optimizer, scheduler)
    history, best, best_score = [], None, -math.inf
    settings = checkpoints.run_settings(optimizer, epochs, monitor if valid_batches is not None else None, options)
    if checkpoint and Path(checkpoint).exists():
        same = functools.partial(checkpoints.check_same_run, Path(checkpoint).name, settings=settings, epochs=epochs)
        state = checkpoints.load(checkpoint, model, optimizer, scheduler, check=same)
        history, best, best_score = state["history"], state["best"], state["best_score"]
    for epoch in tqdm(range(len(history) + 1, epochs + 1), desc="epochs", leave=False):
        try:
            found = train_epoch(model, train_batches(epoch), loss_fn, optimizer, **options)
            entry = {"epoch": epoch} | {f"train_{key}": value for key, value in found.items()}
            if valid_batches is not None:
                found = evaluate(model, valid_batches, loss_fn, bf16=bf16)
                entry |= {f"valid_{key}": value for key, value in found.items()}
                if (score := score_of(found, monitor)) > best_score:
                    best, best_score = {key: x.clone() for key, x in model.state_dict().items()}, score
        except FloatingPointError as error:
            raise FloatingPointError(f"epoch {epoch}: {error}") from None
        history.append(entry)
        if checkpoint:
            run = {"settings": settings, "history": history, "best": best, "best_score": best_score}
            checkpoints.save(checkpoint, model, optimizer, scheduler, **run)
        if log is not None:
            log("  ".join(f"{key} {value:.3f}" if key != "epoch" else f"epoch {value}" for key, value in entry.items()))
    if best is not None:
        model.load_state_dict(best)
    return history


# --- losses ---------------------------------------------------------------------

NO_MARK = torch.iinfo(torch.int64).min  # every label counts: torch leaves out -100, which on a GPU nobody would see


def classification_loss(model, batch):
    """Cross-entropy and accuracy of a classifier, as sums: `model(ids, real)` gives logits (B, num_classes).

    `batch` is (ids, real, labels): (B, T) tokens; (B, T) bool, True = a real token; (B,) int64 classes.
    """
    ids, real, labels = batch
    logits = model(ids, real)  # (B, num_classes)
    check_labels("labels", labels, logits)
    loss = F.cross_entropy(logits, labels, reduction="sum", ignore_index=NO_MARK)
    return {"loss": loss, "count": len(labels), "accuracy": (logits.argmax(-1) == labels).sum()}


def binary_loss(model, batch):
    """The same for a model with one logit (B,), that of class 1, and labels 0 and 1."""
    ids, real, labels = batch
    check_tensor("labels", labels, ("B",))
    if not ((labels == 0) | (labels == 1)).all():
        raise ValueError(f"labels must be 0 or 1, got {labels.unique().tolist()}")
    logits = model(ids, real)  # (B,)
    loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return {"loss": loss, "count": len(labels), "accuracy": ((logits > 0) == (labels > 0)).sum()}


def language_model_loss(model, batch):
    """Cross-entropy and accuracy of next-token predictions, as sums: `model(inputs)` gives logits (B, T, V).

    `batch` is (inputs, targets): (B, T) tokens, and (B, T) the tokens that follow them.
    """
    inputs, targets = batch
    logits = model(inputs)  # (B, T, V)
    check_labels("targets", targets, logits)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=NO_MARK)
    return {"loss": loss, "count": targets.numel(), "accuracy": (logits.argmax(-1) == targets).sum()}


# --- sums and means -------------------------------------------------------------


def grouped(batches, size):
    """Lists of `size` batches in order; the last may be shorter."""
    check_sizes(grad_accumulation_steps=size)
    batches = iter(batches)
    while group := list(itertools.islice(batches, size)):
        yield group


def add_sums(totals, sums):
    """Totals with the sums of one more batch, which are detached from its graph."""
    if not isinstance(sums, dict) or not {"loss", "count"} <= sums.keys():
        got = f"a dict with {', '.join(map(str, sums))}" if isinstance(sums, dict) else f"a {type(sums).__name__}"
        raise ValueError(f"loss_fn returned {got}; wanted a dict of sums over the batch with 'loss' and 'count'")
    detached = {key: x.detach() if isinstance(x, torch.Tensor) else x for key, x in sums.items()}
    return {key: totals.get(key, 0) + x for key, x in detached.items()}


def means(parts):
    """Totals of a list of dicts of sums, divided by the total count; added in float64."""
    if not parts or not sum(part["count"] for part in parts):
        raise ValueError("no batches, or none with items; a generator gives its batches only once: use a function")
    totals = {key: torch.stack([torch.as_tensor(part[key]) for part in parts]) for key in parts[0]}
    totals = {key: x.cpu().double().sum().item() for key, x in totals.items()}
    count = totals.pop("count")
    return {key: total / count for key, total in totals.items()}


def check_losses(steps, first=1):
    """Raise at the first step whose mean loss is not finite."""
    losses = [torch.as_tensor(step["loss"] / step["count"]) for step in steps]
    for step, loss in enumerate(torch.stack(losses).tolist() if losses else [], first):  # one transfer for all
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at step {step} of the epoch: try a lower learning rate or clip_norm, "
                "and look for empty batches and fully masked rows"
            )


def score_of(found, monitor):
    """The number by which epochs are compared; higher is better."""
    check_choice("monitor", monitor, list(found))
    if not math.isfinite(found[monitor]):
        raise FloatingPointError(f"the validation {monitor} is {found[monitor]}")
    return -found[monitor] if monitor == "loss" else found[monitor]


def trained_parameters(model, optimizer, scheduler=None, clip_norm=None):
    """The parameters that an optimizer holds; some of them must be the model's, and the scheduler its own."""
    check_instance("optimizer", optimizer, torch.optim.Optimizer)
    if getattr(scheduler, "optimizer", optimizer) is not optimizer:
        raise ValueError("the scheduler belongs to another optimizer: make it from the one that trains")
    if clip_norm is not None:
        check_positive(clip_norm=clip_norm)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if not {id(parameter) for parameter in model.parameters()} & {id(parameter) for parameter in parameters}:
        raise ValueError("the optimizer holds no parameter of this model: make it from model.parameters()")
    return parameters
