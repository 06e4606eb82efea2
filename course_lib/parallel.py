r"""Many processes, one model: each computes the gradient of its rows, and all take the same step.

    torchrun --nproc-per-node 2 -m course_lib.parallel --steps 60

starts this module in two processes that know of each other; without torchrun it is one. `train.train_epoch` adds
gradients and sums over the processes, so what is left to do is here: to meet (`together`), to begin with the same
weights (the same seed), and to give each process its rows (`shard`). Read `main`, an example of it.

Notebook: 13.
"""

import argparse
import json
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist

from course_lib import data, text
from course_lib.gpt import GPT, GPTConfig
from course_lib.train import language_model_loss, set_seed, train_epoch


@contextmanager
def together():
    """Join the processes that torchrun started, and leave them at the end; does nothing in a process of one's own.

    Example:
        >>> with together():
        ...     print(shard(torch.arange(4)))
        tensor([0, 1, 2, 3])

    Notebook: 13.
    """
    if "RANK" not in os.environ:
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl" if cuda else "gloo")
    try:
        yield
    finally:
        dist.destroy_process_group()


def shard(batch):
    r"""The rows of this process: of n processes, process r gets rows r, r + n, r + 2 n, ...

    Args:
        batch: tensor with the batch first, or a tuple of such.

    Returns:
        The same with fewer rows; everything in a process of one's own.

    Raises:
        ValueError: if there are fewer rows than processes: a process without rows has no loss.

    Notebook: 13.
    """
    if not dist.is_initialized():
        return batch
    if isinstance(batch, tuple):
        return tuple(shard(part) for part in batch)
    if len(batch) < dist.get_world_size():
        raise ValueError(f"a batch of {len(batch)} rows cannot be shared by {dist.get_world_size()} processes")
    return batch[dist.get_rank() :: dist.get_world_size()]


def losses(steps, seed=0, batch_size=12, length=32):
    """The training loss of each step of a small GPT on the characters of the standard library's docstrings.

    Args:
        steps: optimizer steps.
        seed: of weights and batches.
        batch_size: rows of a step, over all processes together.
        length: T.

    Returns:
        list of `steps` losses in nats per character, the same in every process.

    Notebook: 13.
    """
    characters = text.characters(data.docstrings(limit=50_000))
    vocab = text.build_vocab([characters], specials=("<unk>",))
    ids = torch.tensor(text.numericalize(characters, vocab))
    set_seed(seed)
    device = torch.device("cuda", torch.cuda.current_device()) if torch.cuda.is_available() else torch.device("cpu")
    sizes = {"d_model": 64, "num_layers": 2, "nhead": 4, "dropout": 0.0, "activation": "gelu"}
    model = GPT(GPTConfig(len(vocab), length, **sizes)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    found, generator = [], torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - length, (batch_size, 1), generator=generator)
        rows = ids[starts + torch.arange(length + 1)]  # (B, T + 1)
        batch = shard((rows[:, :-1], rows[:, 1:]))
        found.append(train_epoch(model, [batch], language_model_loss, optimizer, clip_norm=1.0)["loss"])
    return found


def main():
    """Train, and print the losses as JSON: once, however many processes there are."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with together():
        found = losses(options.steps, options.seed)
        if not dist.is_initialized() or dist.get_rank() == 0:
            print(json.dumps([round(loss, 6) for loss in found]))


if __name__ == "__main__":
    main()
