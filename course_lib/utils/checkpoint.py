"""Writing a model down, or a whole training run, and going on from there."""

import os
import random
import tempfile
from pathlib import Path

import torch

from course_lib.utils.device import device_of


def save(path, model, optimizer=None, scheduler=None, **state):
    """Write a file that `load` reads: the weights, and with an optimizer all that training needs to go on.

    The file is written beside the old one and then takes its place, so that it is whole at every moment.

    Args:
        path: of the file; its folder is made if it is not there.
        model: nn.Module.
        optimizer: None: the run is over, and no random numbers are kept.
        scheduler: None for none.
        state: what else is to be kept, by name: tensors, numbers, strings, and lists and dicts of them.

    >>> model, other = torch.nn.Linear(3, 2), torch.nn.Linear(3, 2)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(folder + "/model.pt", model, names=["bad", "good"])
    ...     state = load(folder + "/model.pt", other)
    >>> state["names"], torch.equal(other.weight, model.weight)
    (['bad', 'good'], True)
    """
    _check_plain(state)
    content = {"model": model.state_dict(), "state": state}
    if optimizer is not None:
        content["optimizer"] = optimizer.state_dict()
        content["scheduler"] = scheduler.state_dict() if scheduler else None
        content["random"] = {"torch": torch.get_rng_state(), "python": random.getstate()}
        if (device := device_of(model)).type != "cpu":
            content["random"][device.type] = torch.get_device_module(device).get_rng_state()
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "wb") as file:
            torch.save(content, file)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def load(path, model, optimizer=None, scheduler=None, check=None):
    """Put the weights of a file back; with an optimizer also its state, the schedule's and the random numbers'.

    Nothing is changed where something does not fit. No code in the file is run.

    Args:
        path: of a file that `save` wrote.
        model: nn.Module with the same parameters, on any device.
        optimizer: None loads the weights alone.
        scheduler: None for none.
        check: function of the state that raises where the file is not the one that was wanted.

    Returns:
        dict: the `state` that `save` was given.
    """
    name = Path(path).name
    with open(path, "rb") as file:
        try:
            content = torch.load(file, map_location="cpu", weights_only=True)
            weights, state = content["model"], content["state"]
        except Exception:  # a damaged file can fail in any part of the reader
            raise ValueError(f"{name} is not a whole checkpoint of course_lib; delete it to start again") from None
    if check is not None:
        check(state)
    _check_same_shapes(name, weights, model.state_dict())
    if optimizer is not None:
        if "optimizer" not in content:
            raise ValueError(
                f"{name} holds a model alone, without the optimizer to go on with; delete it to start again"
            )
        try:
            optimizer.load_state_dict(content["optimizer"])
        except ValueError as error:
            text = f"{name} belongs to an optimizer of other parameters ({error}); delete it to start again"
            raise ValueError(text) from None
        if scheduler:
            scheduler.load_state_dict(content["scheduler"])
        torch.set_rng_state(content["random"]["torch"])
        random.setstate(content["random"]["python"])
        device = device_of(model)
        if device.type in content["random"]:
            torch.get_device_module(device).set_rng_state(content["random"][device.type])
    model.load_state_dict(weights)
    return state


def run_settings(optimizer, epochs, monitor, options):
    """What must be the same when a run goes on, as text; a schedule depends on the number of epochs."""
    scheduler = options.get("scheduler")
    settings = {"optimizer": type(optimizer).__name__, **optimizer.defaults, **options, "monitor": monitor}
    if scheduler:
        settings |= {"scheduler": type(scheduler).__name__, "epochs": epochs}
    return {key: str(value) for key, value in settings.items()}


def check_same_run(name, state, settings, epochs):
    """Raise unless a run of `train.fit` with these settings can go on from the state that another one saved."""
    saved = state.get("settings", {})
    for key in {**saved, **settings}:
        if saved.get(key) != settings.get(key):
            came, wanted = saved.get(key), settings.get(key)
            raise ValueError(f"{name} was made with {key}={came}, not {wanted}; delete it to start again")
    if len(state["history"]) > epochs:
        came = len(state["history"])
        raise ValueError(f"{name} holds {came} epochs, more than the {epochs} wanted; delete it to start again")


def _check_same_shapes(name, saved, wanted):
    """Raise at the first tensor that one of the two lacks or that has another shape or type."""
    for key in {**saved, **wanted}:
        came, want = (
            f"{tuple(state[key].shape)} {state[key].dtype}" if key in state else "no such tensor"
            for state in (saved, wanted)
        )
        if came != want:
            raise ValueError(f"{name} belongs to another model: {key} is {came} there, {want} here; "
                             "delete it to start again")  # fmt: skip


def _check_plain(x, name="state"):
    """Raise at what `load` would refuse: it opens data alone, and no objects that bring code with them."""
    if isinstance(x, dict):
        for key, part in x.items():
            _check_plain(part, key)
    elif isinstance(x, list | tuple):
        for part in x:
            _check_plain(part, name)
    elif x is not None and not isinstance(x, torch.Tensor | str | int | float):
        raise ValueError(
            f"{name} is a {type(x).__name__}: a checkpoint keeps tensors, numbers, strings, lists and dicts"
        )
