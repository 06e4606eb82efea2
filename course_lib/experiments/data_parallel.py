r"""Many processes, one model: each computes the gradient of its rows, and all take the same step.

    torchrun --nproc-per-node 2 -m course_lib.experiments.data_parallel --steps 60

starts this module in two processes that know of each other; without torchrun it is one. What a program must do: meet
(`together`), begin with the same weights (the same seed), give each process its rows (`shard`), and wrap the model in
torch's `DistributedDataParallel`, whose backward gives every process the mean of their gradients. The shards are of one
size, so that this mean is the gradient of the whole batch. `losses` is an example of it.
"""

import argparse
import json
import os
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from course_lib import datasets, text
from course_lib.gpt import GPT, GPTConfig
from course_lib.train import language_model_loss, set_seed, train_epoch


@contextmanager
def together():
    """Join the processes that torchrun started, and leave them at the end; does nothing in a process of one's own.

    >>> with together():
    ...     print(shard(torch.arange(4)))
    tensor([0, 1, 2, 3])
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


def shard(rows):
    """The rows of this process: of n processes, process r gets rows r, r + n, r + 2 n, ...

    Args:
        rows: tensor with the batch first, a multiple of n.
    """
    if not dist.is_initialized():
        return rows
    n = dist.get_world_size()
    if len(rows) % n:
        raise ValueError(f"a batch of {len(rows)} rows cannot be shared equally by {n} processes")
    return rows[dist.get_rank() :: n]


def mean_over_processes(x):
    """The mean of a number of which each process has its own."""
    if dist.is_initialized():
        x = torch.tensor(x, dtype=torch.float64, device="cuda" if dist.get_backend() == "nccl" else "cpu")
        dist.all_reduce(x)
        x = x.item() / dist.get_world_size()
    return x


def losses(steps, seed=0, batch_size=12, length=32):
    """Training loss of each step of a small GPT, in float64, on the characters of the standard library's docstrings.

    Args:
        batch_size: rows of a step, over all processes together.

    Returns:
        list of `steps` losses in nats per character, the same in every process.
    """
    characters = text.characters(datasets.docstrings(limit=50_000))
    vocab = text.build_vocab([characters], specials=("<unk>",))
    ids = torch.tensor(text.numericalize(characters, vocab))
    set_seed(seed)
    sizes = {"d_model": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0, "activation": "gelu"}
    model = GPT(GPTConfig(len(vocab), length, **sizes)).double()  # float64: rounding is small
    model = model.to("cuda" if torch.cuda.is_available() else "cpu")
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    found, generator = [], torch.Generator().manual_seed(seed)
    for _ in range(steps):
        batch = [shard(part) for part in text.random_windows(ids, batch_size, length, generator)]  # (B / processes, T)
        means = train_epoch(model, [batch], language_model_loss, optimizer, clip_norm=1.0)
        found.append(mean_over_processes(means["loss"]))
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
            print(json.dumps(found))


if __name__ == "__main__":
    main()
