"""Where tensors lie."""

import torch


def pick_device(name=None):
    """The device to train on: "cuda", "mps", "cpu" or e.g. "cuda:1"; None takes the first of the three that is there.

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


def to_device(batch, device):
    """The batch with every tensor in it on the device; goes into tuples, lists and dicts.

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


def device_of(model):
    """Where the model's first parameter is; the CPU for a model without parameters."""
    first = next(model.parameters(), None)
    return torch.device("cpu") if first is None else first.device
