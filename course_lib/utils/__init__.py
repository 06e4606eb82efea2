"""Small things that every module may use."""

from contextlib import contextmanager


def number_of_parameters(model):
    """How many numbers the parameters of a model hold; a tensor that occurs twice counts once.

    >>> from torch import nn
    >>> number_of_parameters(nn.Linear(3, 5))
    20
    """
    return sum(parameter.numel() for parameter in model.parameters())


@contextmanager
def eval_mode(model):
    """Put the model in evaluation mode for a while, then every part back in the mode it had.

    >>> from torch import nn
    >>> model = nn.Linear(2, 3)
    >>> with eval_mode(model):
    ...     print(model.training)
    False
    >>> model.training
    True
    """
    modes = [(part, part.training) for part in model.modules()] if hasattr(model, "modules") else []
    if modes:  # an n-gram model has none
        model.eval()
    try:
        yield model
    finally:
        for part, mode in modes:
            part.training = mode  # model.train() would also switch parts that were frozen in eval mode
