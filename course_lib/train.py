r"""The training loop, in plain torch: what every chapter trains with.

Read `train_epoch` first: it is the loop. `fit` repeats it, measures on validation data,
keeps the best weights and writes checkpoints; `evaluate` is the half without gradients.

A loss function has the form `loss_fn(model, batch) -> dict` and returns *sums* over the
batch: "loss" (a tensor), "count" (how many items or tokens were summed) and whatever else
is to be reported, such as "accuracy" (how many were right). Sums can be added over batches
of different sizes and divided once, at the end; means of means could not.
`classification_loss`, `binary_loss` and `language_model_loss` are three of them.

Notebooks: 01, 02 and every later one that trains.
"""

import itertools
import math
import os
import random
import tempfile
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.nn.functional as F

from course_lib.progress import progress


def set_seed(seed):
    """Seed torch on all devices, and Python's own generator (torchtext shuffles with it).

    Args:
        seed: int.

    Example:
        >>> set_seed(3); first = torch.rand(2)
        >>> set_seed(3); torch.equal(torch.rand(2), first)
        True
    """
    random.seed(seed)
    torch.manual_seed(seed)


def pick_device(name=None):
    """The device to train on.

    Args:
        name: "cuda", "mps", "cpu" or e.g. "cuda:1"; None takes the first of the three that is there.

    Returns:
        torch.device.

    Raises:
        ValueError: if the name is unknown, or this machine has no such device.

    Example:
        >>> pick_device("cpu")
        device(type='cpu')
    """
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [kind for kind, found in there.items() if found]
    kind = str(name or available[0]).partition(":")[0]
    if kind not in there:
        raise ValueError(f"unknown device {str(name)!r}; known are cuda, mps and cpu")
    if kind not in available:
        raise ValueError(f"this machine has no {kind} device; available: {', '.join(available)}")
    return torch.device(name or kind)


def train_epoch(
    model,
    batches,
    loss_fn,
    optimizer,
    *,
    scheduler=None,
    clip_norm=None,
    accumulate=1,
    bf16=False,
    device=None,
    epoch=1,
):
    r"""One pass over the training batches: the training loop itself.

    $$ g = \frac{\sum_j \nabla_\theta\, \text{loss}_j}{\sum_j \text{count}_j} $$

    over the micro-batches j of one optimizer step. Since sums are divided by the total count,
    accumulating over unequal micro-batches gives the gradient of one large batch, not an average
    of averages. In one of several processes that were started together (`course_lib.parallel`) the
    sums go over the micro-batches of all of them, so that all take the same step.

    Args:
        model: nn.Module.
        batches: iterable of whatever `loss_fn` takes; tensors in tuples, lists and dicts are moved.
        loss_fn: `loss_fn(model, batch) -> dict` of sums, with "loss" and "count".
        optimizer: holds the parameters to be trained.
        scheduler: stepped once after each optimizer step, not once a batch or an epoch; None for none.
        clip_norm: largest 2-norm of the whole gradient, after the division; None does not clip.
        accumulate: batches that make one optimizer step; a last incomplete group makes a step too.
        bf16: True runs the forward pass in bfloat16 where that is safe (autocast).
        device: where to compute; None is where the model is.
        epoch: number of the epoch, for messages.

    Returns:
        dict of means: each sum divided by the total count.

    Raises:
        ValueError: if there are no batches, `accumulate` < 1, `clip_norm` <= 0, or `loss_fn` does not
            return sums.
        FloatingPointError: if the loss of a step is not finite; names epoch and step. On the CPU before
            that step changes the weights; elsewhere at the end of the epoch, since asking at every step
            would make the processor wait for the device.

    Example:
        >>> model = torch.nn.Linear(3, 2)
        >>> def loss_fn(model, batch):
        ...     x, y = batch
        ...     return {"loss": (model(x) - y).square().sum(), "count": len(x)}
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> sorted(train_epoch(model, [(torch.ones(5, 3), torch.ones(5, 2))], loss_fn, optimizer))
        ['loss']
    """
    if clip_norm is not None and clip_norm <= 0:
        raise ValueError(f"clip_norm is {clip_norm}; it must be above 0, or None")
    device = pick_device(device) if device else _device_of(model)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    steps = []
    model.train()
    for micro_batches in _groups(batches, accumulate):
        optimizer.zero_grad()
        sums = []
        for batch in micro_batches:
            with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
                found = _checked(loss_fn(model, to_device(batch, device)))
            found["loss"].backward()  # adds to the gradients of the micro-batches before
            sums.append({key: _detached(value) for key, value in found.items()})
        steps.append({key: sum(part[key] for part in sums) for key in sums[0]})
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            steps[-1] = _over_processes(steps[-1], parameters, device)
        if device.type == "cpu":
            _require_finite(steps[-1:], epoch, first=len(steps))
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad /= steps[-1]["count"]
        if clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, clip_norm)
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    if not steps:
        raise ValueError(f"epoch {epoch} has no training batches; give a fresh iterable for every epoch")
    _require_finite(steps, epoch)
    return _means(steps)


def evaluate(model, batches, loss_fn, *, device=None, bf16=False):
    """Means over all batches, without gradients and without dropout.

    Args:
        model: nn.Module; each part's training mode is as before afterwards.
        batches: iterable of batches, or a function of nothing that gives one.
        loss_fn: `loss_fn(model, batch) -> dict` of sums, with "loss" and "count".
        device: where to compute; None is where the model is.
        bf16: True runs the model in bfloat16 where that is safe (autocast).

    Returns:
        dict of means: each sum divided by the total count.

    Raises:
        ValueError: if there are no batches, they hold no items, or `loss_fn` does not return sums.

    Example:
        >>> def loss_fn(model, x):
        ...     return {"loss": model(x).sum(), "count": len(x)}
        >>> evaluate(torch.nn.Identity(), [torch.tensor([1.0, 2.0]), torch.tensor([6.0])], loss_fn)
        {'loss': 3.0}
    """
    device = pick_device(device) if device else _device_of(model)
    found = []
    with evaluating(model), torch.inference_mode(), torch.autocast(device.type, torch.bfloat16, enabled=bf16):
        for batch in batches() if callable(batches) else batches:
            found.append(_checked(loss_fn(model, to_device(batch, device))))
    if not found:
        raise ValueError("no batches to evaluate on; a generator gives its batches only once: use a list or a function")
    return _means(found)


def fit(
    model,
    train_batches,
    loss_fn,
    optimizer,
    *,
    epochs,
    valid_batches=None,
    scheduler=None,
    clip_norm=None,
    accumulate=1,
    bf16=False,
    device=None,
    checkpoint=None,
    resume=True,
    select="loss",
    log=None,
):
    """Train for some epochs; with validation batches, end with the weights of the best epoch.

    With a `checkpoint` file a run that was killed goes on after its last finished epoch when the same
    lines are run again, and ends with the same bits as a run that was not (on the CPU; some GPU kernels
    add in varying order). For that `train_batches` must depend on the epoch alone, for instance through
    a generator seeded with it, and the model may draw random numbers from torch only.

    Args:
        model: nn.Module.
        train_batches: function of the epoch (1, 2, ...) that gives an iterable of batches.
        loss_fn: `loss_fn(model, batch) -> dict` of sums, with "loss" and "count".
        optimizer: holds the parameters to be trained.
        epochs: passes over the data, at least 1, counting those in the checkpoint.
        valid_batches: iterable that can be repeated, or a function of nothing that gives one; None trains
            without validation and ends with the last weights.
        scheduler: stepped once after each optimizer step; None for none.
        clip_norm: largest 2-norm of the whole gradient; None does not clip.
        accumulate: batches that make one optimizer step.
        bf16: True runs forward passes in bfloat16 where that is safe (autocast).
        device: the model is moved there; None leaves it where it is.
        checkpoint: path of a file written after every epoch, whole or not at all; None for none.
        resume: True goes on from the checkpoint if the file is there; False starts again.
        select: "loss" keeps the epoch with the lowest validation loss; any other key of `loss_fn`'s dict,
            such as "accuracy", the epoch with the highest. The earliest of equals is kept.
        log: function called with one line of text an epoch, for instance `print`; None for none.

    Returns:
        list with a dict for each epoch: "epoch", "train_loss", "valid_loss", and so for the other sums.

    Raises:
        ValueError: if `epochs` < 1, `train_batches` is not a function, there are no batches, `select` is
            not measured, or the checkpoint is damaged or belongs to other settings; and as `train_epoch`.
        FloatingPointError: if a training or validation loss is not finite; names the epoch.

    Example:
        >>> set_seed(0)
        >>> x = torch.rand(7, 3)
        >>> def loss_fn(model, x):
        ...     return {"loss": (model(x) - x.sum(1, keepdim=True)).square().sum(), "count": len(x)}
        >>> model = torch.nn.Linear(3, 1)
        >>> history = fit(model, lambda epoch: [x], loss_fn, torch.optim.SGD(model.parameters(), 0.1), epochs=20)
        >>> history[-1]["train_loss"] < history[0]["train_loss"]
        True
    """
    if epochs < 1:
        raise ValueError(f"epochs is {epochs}; at least 1 is needed")
    if not callable(train_batches):
        raise ValueError("train_batches must be a function of the epoch, e.g. lambda epoch: batches(..., seed=epoch)")
    if device:
        model.to(pick_device(device))
    step = {"scheduler": scheduler, "clip_norm": clip_norm, "accumulate": accumulate, "bf16": bf16}
    settings = _settings(optimizer, epochs, select if valid_batches is not None else None, step)
    state = {"history": [], "best": None, "best_score": None}
    if checkpoint and resume and Path(checkpoint).exists():
        state = _load_checkpoint(checkpoint, model, optimizer, scheduler, settings, epochs)
    history = state["history"]
    for epoch in progress(range(len(history) + 1, epochs + 1), label="epochs"):
        entry = {"epoch": epoch}
        means = train_epoch(model, train_batches(epoch), loss_fn, optimizer, **step, epoch=epoch)
        entry.update({f"train_{key}": value for key, value in means.items()})
        if valid_batches is not None:
            means = evaluate(model, valid_batches, loss_fn, bf16=bf16)
            entry.update({f"valid_{key}": value for key, value in means.items()})
            score = _score(means, select, epoch)
            if state["best"] is None or score > state["best_score"]:
                best = {key: value.clone() for key, value in model.state_dict().items()}
                state.update(best=best, best_score=score)
        history.append(entry)
        if checkpoint:
            _save_checkpoint(checkpoint, model, optimizer, scheduler, settings, state)
        if log is not None:
            log("  ".join(f"{key} {value:.3f}" if key != "epoch" else f"epoch {value}" for key, value in entry.items()))
    if state["best"] is not None:
        model.load_state_dict(state["best"])
    return history


def classification_loss(model, batch):
    """Cross-entropy and accuracy of a classifier, as sums.

    Args:
        model: `model(ids, mask)` gives logits (B, classes).
        batch: `(ids, mask, labels)`: (B, T) token numbers; (B, T) bool, True = real token; (B,) int64 classes.

    Returns:
        dict: "loss" in nats, "count" = B, "accuracy" = how many were right.
    """
    ids, mask, labels = batch
    logits = model(ids, mask)  # (B, classes)
    right = (logits.argmax(-1) == labels).sum()
    return {"loss": F.cross_entropy(logits, labels, reduction="sum"), "count": len(labels), "accuracy": right}


def binary_loss(model, batch):
    """Cross-entropy and accuracy of a classifier with one logit, as sums.

    Args:
        model: `model(ids, mask)` gives logits (B,) of class 1.
        batch: `(ids, mask, labels)`: (B, T) token numbers; (B, T) bool, True = real token; (B,) 0 or 1.

    Returns:
        dict: "loss" in nats, "count" = B, "accuracy" = how many were right.
    """
    ids, mask, labels = batch
    logits = model(ids, mask)  # (B,)
    loss = F.binary_cross_entropy_with_logits(logits, labels.to(logits.dtype), reduction="sum")
    return {"loss": loss, "count": len(labels), "accuracy": ((logits > 0) == (labels > 0)).sum()}


def language_model_loss(model, batch):
    """Cross-entropy and accuracy of next-token predictions, as sums over tokens.

    Args:
        model: `model(inputs)` gives logits (B, T, V).
        batch: `(inputs, targets)`: (B, T) token numbers, and (B, T) the tokens that follow them.

    Returns:
        dict: "loss" in nats, "count" = B T tokens, "accuracy" = how many were predicted.
    """
    inputs, targets = batch
    logits = model(inputs)  # (B, T, V)
    loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
    return {"loss": loss, "count": targets.numel(), "accuracy": (logits.argmax(-1) == targets).sum()}


def to_device(batch, device):
    """The batch with every tensor in it on the device; goes into tuples, lists and dicts.

    Args:
        batch: a tensor, a container of batches, or anything else, which stays as it is.
        device: torch.device or its name.

    Returns:
        The same structure.

    Example:
        >>> to_device((torch.zeros(2), ["a", torch.ones(1)]), "cpu")
        (tensor([0., 0.]), ['a', tensor([1.])])
    """
    if isinstance(batch, torch.Tensor):
        return batch.to(device)
    if isinstance(batch, dict):
        return {key: to_device(value, device) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):  # a named tuple takes its parts one by one
        return type(batch)(*(to_device(value, device) for value in batch))
    if isinstance(batch, tuple | list):
        return type(batch)(to_device(value, device) for value in batch)
    return batch


@contextmanager
def evaluating(model):
    """Put the model in evaluation mode for a while, then every part back in the mode it had.

    Args:
        model: nn.Module.

    Example:
        >>> model = torch.nn.Linear(2, 3)
        >>> with evaluating(model):
        ...     print(model.training)
        False
        >>> model.training
        True
    """
    modes = [(part, part.training) for part in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for part, mode in modes:
            part.training = mode  # model.train() would also switch parts that were frozen in eval mode


def _groups(batches, size):
    """Lists of `size` batches in order; the last may be shorter."""
    if size < 1:
        raise ValueError(f"accumulate is {size}; at least one batch makes a step")
    batches = iter(batches)
    while group := list(itertools.islice(batches, size)):
        yield group


def _device_of(model):
    """Where the model's first parameter is; the CPU for a model without parameters."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device


def _over_processes(sums, parameters, device):
    """Add up gradients and sums of all processes; a parameter without a gradient counts as zeros."""
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        torch.distributed.all_reduce(parameter.grad)
    totals = torch.stack([torch.as_tensor(value, dtype=torch.float64) for value in sums.values()]).to(device)
    torch.distributed.all_reduce(totals)
    return dict(zip(sums, totals.unbind(), strict=True))


def _checked(sums):
    """The loss function's result, if it has the form of sums."""
    if not isinstance(sums, dict) or not {"loss", "count"} <= sums.keys():
        got = (
            f"a dict with {', '.join(map(str, sums)) or 'no keys'}"
            if isinstance(sums, dict)
            else f"a {type(sums).__name__}"
        )
        raise ValueError(f"loss_fn returned {got}; wanted a dict of sums over the batch with 'loss' and 'count'")
    return sums


def _detached(value):
    """The value without its graph."""
    return value.detach() if isinstance(value, torch.Tensor) else value


def _means(sums):
    """Totals of a list of dicts, divided by the total count; added in float64."""
    totals = {
        key: torch.stack([torch.as_tensor(part[key]) for part in sums]).cpu().double().sum().item() for key in sums[0]
    }
    count = totals.pop("count")
    if count == 0:
        raise ValueError("the batches hold no items: their counts add up to 0")
    return {key: total / count for key, total in totals.items()}


def _require_finite(steps, epoch, first=1):
    """Raise at the first step whose mean loss is not finite."""
    losses = torch.stack([torch.as_tensor(step["loss"] / step["count"]) for step in steps]).cpu()
    for step, loss in enumerate(losses.tolist(), first):
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is {loss} at epoch {epoch}, step {step}: try a lower learning rate or clip_norm, "
                "and look for empty batches and fully masked rows"
            )


def _score(means, select, epoch):
    """The number by which epochs are compared; higher is better."""
    if select not in means:
        raise ValueError(f"cannot select by {select!r}; measured are {', '.join(means)}")
    score = -means[select] if select == "loss" else means[select]
    if not math.isfinite(score):
        raise FloatingPointError(f"the validation {select} is {means[select]} after epoch {epoch}")
    return score


def _settings(optimizer, epochs, select, step):
    """What must be the same when a run goes on, as text; a schedule depends on the number of epochs."""
    scheduler = step["scheduler"]
    settings = {"optimizer": type(optimizer).__name__, **optimizer.defaults, **step, "select": select}
    settings["scheduler"] = type(scheduler).__name__ if scheduler else None
    if scheduler:
        settings["epochs"] = epochs
    return {key: str(value) for key, value in settings.items()}


def _save_checkpoint(path, model, optimizer, scheduler, settings, state):
    """Write everything a run needs to go on: first beside the file, then in its place."""
    path, device = Path(path), _device_of(model)
    content = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scheduler": scheduler.state_dict() if scheduler else None,
        "settings": settings,
        "random": {"torch": torch.get_rng_state(), "python": random.getstate()},
        **state,
    }
    if device.type != "cpu":
        content["random"][device.type] = torch.get_device_module(device).get_rng_state()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            torch.save(content, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def _load_checkpoint(path, model, optimizer, scheduler, settings, epochs):
    """Put model, optimizer, scheduler and random numbers back; return history and best weights."""
    way_out = "delete the file or pass resume=False to start again"
    name = Path(path).name
    with open(path, "rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
            saved, state, run = content["settings"], content["model"], content["random"]
        except Exception:  # a damaged file can fail in any part of the reader
            raise ValueError(f"{name} is not a whole checkpoint of course_lib.train.fit; {way_out}") from None
    changed = [key for key in {**saved, **settings} if saved.get(key) != settings.get(key)]
    if changed:
        key = changed[0]
        raise ValueError(f"{name} was made with {key}={saved.get(key)}, not {settings.get(key)}; {way_out}")
    _require_same_shapes(name, state, model.state_dict(), way_out)
    if len(content["history"]) > epochs:
        raise ValueError(f"{name} holds {len(content['history'])} epochs, more than the {epochs} wanted; {way_out}")
    try:
        optimizer.load_state_dict(content["optimizer"])
    except ValueError as error:
        raise ValueError(f"{name} belongs to an optimizer of other parameters ({error}); {way_out}") from None
    model.load_state_dict(state)
    if scheduler:
        scheduler.load_state_dict(content["scheduler"])
    torch.set_rng_state(run["torch"])
    random.setstate(run["python"])
    device = _device_of(model)
    if device.type in run:
        torch.get_device_module(device).set_rng_state(run[device.type])
    return {key: content[key] for key in ("history", "best", "best_score")}


def _require_same_shapes(name, saved, wanted, way_out):
    """Raise at the first tensor that one of the two lacks or that has another shape or type."""
    for key in {**saved, **wanted}:
        came, want = (
            f"{tuple(state[key].shape)} {state[key].dtype}" if key in state else "no such tensor"
            for state in (saved, wanted)
        )
        if came != want:
            raise ValueError(f"{name} belongs to another model: {key} is {came} there, {want} here; {way_out}")
