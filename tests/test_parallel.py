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

from course_lib import parallel
from course_lib.parallel import shard, together
from course_lib.train import language_model_loss, set_seed, train_epoch

# --- what a process trains, here or in a process of its own -----------------------

SIZES = ((2, 3), (4, 3), (1, 3), (5, 1), (1, 2))  # rows of both processes in five micro-batches: unequal counts
OPTIONS = ({}, {"accumulate": 2}, {"accumulate": 2, "clip_norm": 0.5})


def network():
    """Three parts: one that all batches use, one that those of process 0 use, one that none uses. In float64."""
    model = nn.ModuleDict({name: nn.Linear(3, 2) for name in ("always", "sometimes", "never")}).double()
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters(), 1):
            parameter.copy_(torch.arange(parameter.numel(), dtype=torch.float64).add(number).sin().view_as(parameter))
    return model


def batches(ranks):
    """The micro-batches of some processes: of each the rows that belong to them, those of process 0 first."""
    generator, found = torch.Generator().manual_seed(0), []
    for sizes in SIZES:
        rows = [torch.randn(size, 5, generator=generator, dtype=torch.float64) for size in sizes]
        found.append((torch.cat([rows[rank] for rank in ranks]), 0 in ranks))
    return found


def squares(model, batch):
    """A loss in the form of sums."""
    rows, sometimes = batch
    error = model["always"](rows[:, :3]) - rows[:, 3:]
    loss = error.square().sum()
    if sometimes:
        loss = loss + model["sometimes"](rows[:1, :3]).square().sum()
    return {"loss": loss, "count": len(rows), "accuracy": (error.abs().sum(1) < 1.5).sum()}


def trained(ranks, **options):
    """Means and parameters after an epoch on the rows of some processes."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    means = train_epoch(model, batches(ranks), squares, optimizer, **options)
    return means, {name: parameter.flatten().tolist() for name, parameter in model.named_parameters()}


def work(folder):
    """What each of two processes does; it writes what it found into a file."""
    with together():
        rank = dist.get_rank()
        found = {
            "size": dist.get_world_size(),
            "trained": [trained([rank], **options) for options in OPTIONS],
            "losses": parallel.losses(3),
            "shard": shard(torch.arange(7)).tolist(),
        }
        try:
            shard(torch.arange(1))
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
    folder, root = tmp_path_factory.mktemp("processes"), Path(__file__).parents[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    place |= {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), str(root)]).strip(os.pathsep)}
    code = f"from tests.test_parallel import work; work({str(folder)!r})"
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


@pytest.fixture
def alone():
    """A group of one process, in this one."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# --- two processes ----------------------------------------------------------------


@pytest.mark.parametrize("number", range(len(OPTIONS)), ids=[str(options) for options in OPTIONS])
def test_two_processes_take_the_steps_of_one(found, number):
    """Fails if gradients are averaged instead of added, divided by one process's count, or clipped before they are

    added; if a part that only one process uses gets another gradient; or if the processes' weights go apart.
    """
    means, parameters = trained([0, 1], **OPTIONS[number])
    for process in found:
        assert process["trained"][number][0] == pytest.approx(means, abs=1e-12)
        for name, values in process["trained"][number][1].items():
            assert values == pytest.approx(parameters[name], abs=1e-12), name
    assert found[0]["trained"] == found[1]["trained"], "the same bits in every process"
    start = {name: parameter.flatten().tolist() for name, parameter in network().named_parameters()}
    for name, values in parameters.items():
        assert (values == start[name]) == name.startswith("never"), name
    assert trained([0], **OPTIONS[number])[0]["loss"] != pytest.approx(means["loss"], abs=1e-3), "it matters"


def test_the_losses_of_two_processes_are_those_of_one(found):
    """Fails if the processes train on the same rows, or on other ones than a process of its own.

    Only the order of sums in float32 differs: the losses, near 4, by about 1e-6; three steps with half of the rows
    or of the gradient would change them in the second digit.
    """
    wanted = parallel.losses(3)
    for process in found:
        assert process["losses"] == pytest.approx(wanted, abs=2e-5)
    assert found[0]["losses"] == found[1]["losses"]


def test_each_process_has_its_rows_and_leaves_at_the_end(found):
    """Fails if a row is lost or taken twice, or the group is left standing."""
    assert [process["shard"] for process in found] == [[0, 2, 4, 6], [1, 3, 5]]
    assert [process["size"] for process in found] == [2, 2]
    assert [process["error"] for process in found] == ["a batch of 1 rows cannot be shared by 2 processes"] * 2
    assert all(process["left"] for process in found)


@pytest.mark.slow
def test_the_module_under_torchrun_prints_once_what_one_process_prints():
    """Fails if both processes print, `--seed` is ignored, or the printed losses are others than those of `losses`."""
    lines = []
    for start in (["-m"], ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]):
        command = [sys.executable, *start, "course_lib.parallel", "--steps", "3", "--seed", "4"]
        environment = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        (line,) = done.stdout.splitlines()
        lines.append(json.loads(line))
    assert len(lines[0]) == 3
    assert lines[1] == pytest.approx(lines[0], abs=2e-5)
    assert lines[0] == pytest.approx(parallel.losses(3, seed=4), abs=1e-6)


# --- one process ------------------------------------------------------------------


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_group_of_one_process_changes_nothing(alone, options):
    """Fails if the sums of one process are not those without a group, up to the rounding of the count's type."""
    means, parameters = trained([0, 1], **options)
    dist.destroy_process_group()
    wanted_means, wanted = trained([0, 1], **options)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # for the fixture to leave
    assert means == pytest.approx(wanted_means, abs=1e-12)
    for name, values in parameters.items():
        assert values == pytest.approx(wanted[name], abs=1e-12), name


def test_a_part_without_a_gradient_counts_as_zeros_in_a_group_alone(alone):
    """Fails if processes would add up different lists of gradients, or a process on its own is changed."""
    model = network()
    train_epoch(model, batches([1]), squares, torch.optim.SGD(model.parameters(), 0.0))
    assert all((parameter.grad == 0).all() for parameter in (*model["sometimes"].parameters(),))
    dist.destroy_process_group()
    model = network()
    train_epoch(model, batches([1]), squares, torch.optim.SGD(model.parameters(), 0.0))
    assert all(parameter.grad is None for parameter in model["sometimes"].parameters())
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)


def test_a_loss_that_is_not_finite_is_found_in_a_group_too(alone):
    """Fails if the sums over processes hide it: no process may take that step."""

    def broken(model, batch):
        return squares(model, batch) | {"loss": model["always"].bias.sum() * torch.inf}

    model = network()
    with pytest.raises(FloatingPointError, match="epoch 3, step 1"):
        train_epoch(model, batches([0]), broken, torch.optim.SGD(model.parameters(), 0.1), epoch=3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), network().parameters(), strict=True))


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("rows", [5, 7])
def test_shards_are_all_rows_once(rows, size, monkeypatch):
    """Fails if a row is lost or doubled, parts of a batch get different rows, or counts differ by more than one."""
    x, y = torch.arange(rows * 2).view(rows, 2), torch.arange(rows)
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: size)
    parts = []
    for rank in range(size):
        monkeypatch.setattr(dist, "get_rank", lambda rank=rank: rank)
        parts.append(shard((x, (y, -y))))
        assert torch.equal(parts[-1][0], x[parts[-1][1][0]])
        assert torch.equal(parts[-1][1][1], -parts[-1][1][0])
        assert parts[-1][1][0].tolist() == list(range(rank, rows, size))
    counts = [len(part[0]) for part in parts]
    assert sum(counts) == rows
    assert max(counts) - min(counts) <= 1
    monkeypatch.setattr(dist, "get_world_size", lambda: rows + 1)
    with pytest.raises(ValueError, match=rf"a batch of {rows} rows cannot be shared by {rows + 1} processes"):
        shard((x, y))


def test_a_process_of_ones_own_has_all_rows_and_no_group(monkeypatch):
    """Fails if something is cut, copied or started where there is one process."""
    monkeypatch.delenv("RANK", raising=False)
    batch = torch.arange(1), torch.zeros(1, 2)
    with together():
        assert not dist.is_initialized()
        assert shard(batch) is batch


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
    characters = parallel.text.characters(parallel.data.docstrings(limit=50_000))
    vocab = parallel.text.build_vocab([characters], specials=("<unk>",))
    ids = torch.tensor(parallel.text.numericalize(characters, vocab))
    set_seed(2)
    sizes = {"d_model": 64, "num_layers": 2, "nhead": 4, "dropout": 0.0, "activation": "gelu"}
    model = parallel.GPT(parallel.GPTConfig(len(vocab), 8, **sizes))
    starts = torch.randint(len(ids) - 8, (5, 1), generator=torch.Generator().manual_seed(2)).flatten().tolist()
    rows = torch.stack([ids[start : start + 9] for start in starts])
    with torch.no_grad():
        sums = language_model_loss(model, (rows[:, :-1], rows[:, 1:]))
    found = parallel.losses(2, seed=2, batch_size=5, length=8)
    assert len(found) == 2
    assert found[0] == pytest.approx(sums["loss"].item() / 40, rel=1e-6)
    assert parallel.losses(1, seed=3, batch_size=5, length=8) != found[:1]
