"""Several processes take the step of one: sums over processes, the rows of each, the example that the module runs."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

from course_lib.experiments import data_parallel
from course_lib.experiments.data_parallel import shard, together
from course_lib.train import language_model_loss, set_seed, train_epoch

# --- what a process trains, here or in a process of its own -----------------------

SIZES = (2, 4, 1, 5, 1)  # rows of each process in five micro-batches
OPTIONS = ({}, {"grad_accumulation_steps": 2}, {"grad_accumulation_steps": 2, "clip_norm": 0.5})


def network():
    """A small network in float64, the same everywhere."""
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float64).add(number).sin().view_as(parameter))
    return model


def batches():
    """The micro-batches of two processes together."""
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(2 * size, 5, generator=generator, dtype=torch.float64) for size in SIZES]


def squares(model, rows):
    """A loss in the form of sums."""
    error = model(rows[:, :3]) - rows[:, 3:]
    return {"loss": error.square().sum(), "count": len(rows), "accuracy": (error.abs().sum(1) < 1.5).sum()}


def trained(cut=shard, **options):
    """Means and parameters after an epoch on the rows of this process."""
    model = network()
    wrapped = nn.parallel.DistributedDataParallel(model) if dist.is_initialized() else model
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    found = train_epoch(wrapped, [cut(rows) for rows in batches()], squares, optimizer, **options)
    found = {name: data_parallel.mean_over_processes(value) for name, value in found.items()}
    return found, {name: parameter.flatten().tolist() for name, parameter in model.named_parameters()}


def work(folder):
    """What each of two processes does; it writes what it found into a file."""
    with together():
        rank = dist.get_rank()
        found = {
            "size": dist.get_world_size(),
            "trained": [trained(**options) for options in OPTIONS],
            "losses": data_parallel.losses(3),
            "shard": shard(torch.arange(8)).tolist(),
        }
        try:
            shard(torch.arange(7))
        except ValueError as error:
            found["error"] = str(error)
    found["left"] = not dist.is_initialized()
    Path(folder, f"{rank}.json").write_text(json.dumps(found))


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What two processes found that know of each other through the variables that torchrun sets."""
    folder, root = tmp_path_factory.mktemp("processes"), Path(__file__).parents[2]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    place |= {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(root)]).strip(os.pathsep)}
    code = f"from tests.experiments.test_data_parallel import work; work({str(folder)!r})"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank), "CUDA_VISIBLE_DEVICES": ""},
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        errors = [process.communicate(timeout=600)[1] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(errors)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


# --- two processes ----------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=[str(options) for options in OPTIONS])
def test_two_processes_take_the_steps_of_one(found, number):
    """Fails if the step is not that of the whole batch, or the processes' weights go apart."""
    wanted, parameters = trained(**OPTIONS[number])
    for process in found:
        assert process["trained"][number][0] == pytest.approx(wanted, abs=1e-12)
        for name, values in process["trained"][number][1].items():
            assert values == pytest.approx(parameters[name], abs=1e-12), name
    assert found[0]["trained"] == found[1]["trained"], "the same bits in every process"
    half, _ = trained(cut=lambda rows: rows[::2], **OPTIONS[number])
    assert half["loss"] != pytest.approx(wanted["loss"], abs=1e-3), "it matters"


def test_the_losses_of_two_processes_are_those_of_one(found):
    """Fails if the processes train on the same rows, or on other ones than a process of its own.

    Only the order of sums in float64 differs; three steps with half of the rows or of the gradient would change the
    losses, near 4, in the second digit.
    """
    wanted = data_parallel.losses(3)
    for process in found:
        assert process["losses"] == pytest.approx(wanted, abs=1e-11)
    assert found[0]["losses"] == found[1]["losses"]


def test_each_process_has_its_rows_and_leaves_at_the_end(found):
    """Fails if a row is lost or taken twice, or the group is left standing."""
    assert [process["shard"] for process in found] == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert [process["size"] for process in found] == [2, 2]
    assert [process["error"] for process in found] == ["a batch of 7 rows cannot be shared equally by 2 processes"] * 2
    assert all(process["left"] for process in found)


@pytest.mark.slow
def test_the_module_under_torchrun_prints_once_what_one_process_prints():
    """Fails if both processes print, `--seed` is ignored, or the printed losses are others than those of `losses`."""
    lines = []
    for start in (["-m"], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]):
        command = [sys.executable, *start, "course_lib.experiments.data_parallel", "--steps", "3", "--seed", "4"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        lines.append(json.loads(line))
    assert len(lines[0]) == 3
    assert lines[1] == pytest.approx(lines[0], abs=1e-11)
    assert lines[0] == pytest.approx(data_parallel.losses(3, seed=4), abs=1e-11)


# --- one process ------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3])
def test_shards_are_all_rows_once(size, monkeypatch):
    """Fails if a row is lost or doubled, or shards of different sizes are given."""
    rows = torch.arange(12).view(6, 2)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    for rank in range(size):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        assert shard(rows)[:, 0].tolist() == list(range(2 * rank, 12, 2 * size))
    monkeypatch.setattr(dist, "get_world_size", lambda: 4)
    with pytest.raises(ValueError, match="a batch of 6 rows cannot be shared equally by 4 processes"):
        shard(rows)


def test_a_process_of_ones_own_has_all_rows_and_no_group(monkeypatch):
    """Fails if something is cut, copied or started where there is one process."""
    monkeypatch.delenv("RANK", raising=False)
    rows = torch.arange(1)
    with together():
        assert not dist.is_initialized()
        assert shard(rows) is rows
        assert data_parallel.mean_over_processes(0.5) == 0.5


@pytest.mark.parametrize("fails", [False, True])
def test_together_starts_a_group_and_leaves_it(fails, monkeypatch):
    """Fails if the group is not started under torchrun's variables, or left standing after an error."""
    place = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in place.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    seen = []
    try:
        with together():
            seen.append((dist.get_world_size(), dist.get_backend()))
            if fails:
                raise KeyError("within")
    except KeyError:
        seen.append("error")
    assert seen == [(1, "gloo"), *(["error"] if fails else [])]
    assert not dist.is_initialized()


def test_the_example_trains_on_the_rows_it_says():
    """Fails if a loss is not the mean over the characters of its batch, or the seed of weights or batches is ignored.

    Before the first step the loss is that of the fresh model on the first batch, worked out here.
    """
    characters = data_parallel.text.characters(data_parallel.datasets.docstrings(limit=50_000))
    vocab = data_parallel.text.build_vocab([characters], specials=("<unk>",))
    ids = torch.tensor(data_parallel.text.numericalize(characters, vocab))
    set_seed(2)
    sizes = {"d_model": 64, "num_layers": 2, "num_heads": 4, "dropout": 0.0, "activation": "gelu"}
    model = data_parallel.GPT(data_parallel.GPTConfig(len(vocab), 8, **sizes)).double()
    starts = torch.randint(len(ids) - 8, (5, 1), generator=torch.Generator().manual_seed(2)).flatten().tolist()
    rows = torch.stack([ids[start : start + 9] for start in starts])
    with torch.no_grad():
        sums = language_model_loss(model, (rows[:, :-1], rows[:, 1:]))
    found = data_parallel.losses(2, seed=2, batch_size=5, length=8)
    assert len(found) == 2
    assert found[0] == pytest.approx(sums["loss"].item() / 40, rel=1e-12)
    assert data_parallel.losses(1, seed=3, batch_size=5, length=8) != found[:1]
