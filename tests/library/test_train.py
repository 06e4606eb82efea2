import math
import os
import random
import subprocess
import sys
import textwrap
from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from course_lib import train
from course_lib.utils import checkpoint as checkpoints
from course_lib.utils import device

BATCH_SIZES = (5, 3, 4, 7, 2)  # unequal on purpose: means of means would differ


def regression(seed=0, sizes=BATCH_SIZES):
    """A small float64 model and batches (x, y) of unequal sizes."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)  # noqa: E731
    return model, [(draw(size, 3), draw(size, 2)) for size in sizes]


def squares(model, batch):
    x, y = batch
    error = (model(x) - y).square().sum(-1)
    return {"loss": error.sum(), "count": len(x), "accuracy": (error < 1).sum()}


def merged(batches):
    return tuple(torch.cat(parts) for parts in zip(*batches, strict=True))


def assert_same_parameters(model, other, atol=1e-12):
    for (name, value), wanted in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(value, wanted, atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}")


# The loop against torch


def test_three_epochs_are_those_of_a_hand_written_loop():
    """Fails if order, zeroing, clipping, scheduling or the reported means differ from the usual torch loop."""
    model, batches = regression()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
    history = train.fit(
        model, lambda epoch: batches[::-1] if epoch == 2 else batches, squares, optimizer,
        epochs=3, scheduler=scheduler, clip_norm=0.7,
    )  # fmt: skip

    other, _ = regression()
    optimizer = torch.optim.AdamW(other.parameters(), lr=0.05, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 15)
    for epoch in (1, 2, 3):
        total, right = 0.0, 0
        for x, y in batches[::-1] if epoch == 2 else batches:
            optimizer.zero_grad()
            error = (other(x) - y).square().sum(-1)
            error.mean().backward()
            nn.utils.clip_grad_norm_(other.parameters(), 0.7)
            optimizer.step()
            scheduler.step()
            total, right = total + error.sum().item(), right + (error < 1).sum().item()
        wanted = {"epoch": epoch, "train_loss": total / 21, "train_accuracy": right / 21}
        assert history[epoch - 1] == pytest.approx(wanted, abs=1e-12)
    assert_same_parameters(model, other)


@pytest.mark.parametrize("clip_norm", [None, 0.3, 1e6])
def test_accumulation_is_one_large_batch(clip_norm):
    """Fails if micro-batches are averaged, clipped one by one, or the last incomplete group is dropped."""
    model, batches = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    means = train.train_epoch(
        model, batches, squares, optimizer, grad_accumulation_steps=2, clip_norm=clip_norm, scheduler=scheduler
    )

    other, _ = regression()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, momentum=0.9)
    reference = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    total = 0.0
    for group in (batches[:2], batches[2:4], batches[4:]):
        x, y = merged(group)
        optimizer.zero_grad()
        loss = F.mse_loss(other(x), y, reduction="sum") / len(x)
        loss.backward()
        if clip_norm is not None:
            nn.utils.clip_grad_norm_(other.parameters(), clip_norm)
        optimizer.step()
        reference.step()
        total += loss.item() * len(x)
    assert_same_parameters(model, other)
    assert means["loss"] == pytest.approx(total / 21, abs=1e-12)
    assert scheduler.last_epoch == 3  # once an optimizer step: neither 5 (a batch) nor 1 (an epoch)


def test_the_clipped_gradient_is_that_of_the_full_batch():
    """Fails if clipping sees the undivided sum, or each micro-batch's gradient."""
    model, batches = regression()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    train.train_epoch(model, batches, squares, optimizer, grad_accumulation_steps=5, clip_norm=0.3)
    other, _ = regression()
    x, y = merged(batches)
    (F.mse_loss(other(x), y, reduction="sum") / 21).backward()
    before = nn.utils.clip_grad_norm_(other.parameters(), 0.3)
    assert before > 0.3  # otherwise nothing was clipped
    for parameter, wanted in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, wanted.grad, atol=1e-12, rtol=0)


def test_only_the_optimizers_parameters_are_trained_and_clipped():
    """Fails if a frozen part changes, or its gradient takes part in the norm."""
    model, batches = regression()
    frozen = [parameter.detach().clone() for parameter in model[0].parameters()]
    train.train_epoch(model, batches, squares, torch.optim.SGD(model[2].parameters(), lr=0.1), clip_norm=0.01)
    for parameter, kept in zip(model[0].parameters(), frozen, strict=True):
        assert torch.equal(parameter, kept)
    norm = torch.stack([parameter.grad.norm() for parameter in model[2].parameters()]).norm()
    assert norm.item() == pytest.approx(0.01, rel=1e-4)  # clip_grad_norm_ adds 1e-6 to the norm it divides by


def test_training_happens_in_training_mode():
    """Fails if a model that was evaluated before is trained without its dropout."""
    seen = []

    def loss_fn(model, batch):
        seen.append(model.training and model[1].training)
        return squares(model, batch)

    model, batches = regression()
    model.eval()
    train.train_epoch(model, batches, loss_fn, torch.optim.SGD(model.parameters(), lr=0.1))
    assert seen == [True] * 5


def test_counts_may_be_tensors():
    """Fails if a number of tokens that is counted on the device is not understood."""

    def on_device(model, batch):
        return squares(model, batch) | {"count": torch.tensor(len(batch[0]))}

    model, batches = regression()
    other, _ = regression()
    means = train.train_epoch(
        model, batches, on_device, torch.optim.SGD(model.parameters(), lr=0.1), grad_accumulation_steps=2
    )
    wanted = train.train_epoch(
        other, batches, squares, torch.optim.SGD(other.parameters(), lr=0.1), grad_accumulation_steps=2
    )
    assert means == wanted
    assert_same_parameters(model, other, atol=0)


def test_bf16_computes_in_bfloat16_and_keeps_float32_weights():
    """Fails if autocast is off when asked for, on when not, or the weights are converted."""
    seen = []

    def loss_fn(model, x):
        out = model(x)
        seen.append(out.dtype)
        return {"loss": out.float().square().sum(), "count": len(x)}

    model = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for bf16 in (True, False):
        train.fit(
            model,
            lambda _: [torch.ones(5, 3)],
            loss_fn,
            optimizer,
            epochs=1,
            valid_batches=[torch.ones(4, 3)],
            bf16=bf16,
        )
    assert seen == [torch.bfloat16] * 2 + [torch.float32] * 2
    assert model.weight.dtype == torch.float32


# Evaluation and selection


def test_evaluate_divides_sums_once():
    """Fails if batch means are averaged: the batches are unequal."""
    model, batches = regression()
    x, y = merged(batches)
    error = (model(x) - y).square().sum(-1)
    wanted = {"loss": error.mean().item(), "accuracy": (error < 1).double().mean().item()}
    assert train.evaluate(model, batches, squares) == pytest.approx(wanted, abs=1e-12)
    assert train.evaluate(model, lambda: iter(batches), squares) == pytest.approx(wanted, abs=1e-12)


@pytest.mark.parametrize("fails", [False, True])
def test_evaluate_restores_every_parts_mode(fails):
    """Fails if gradients are recorded, a part is in training mode meanwhile, or a frozen part is switched on after."""

    def loss_fn(model, x):
        assert torch.is_inference_mode_enabled()
        assert not any(part.training for part in model.modules())
        if fails:
            raise KeyError("planted")
        return {"loss": x.sum(), "count": 1}

    model = nn.Sequential(nn.Linear(2, 3), nn.Sequential(nn.Tanh()))
    model[1].eval()
    before = [part.training for part in model.modules()]
    if fails:
        with pytest.raises(KeyError, match="planted"):
            train.evaluate(model, [torch.ones(2)], loss_fn)
    else:
        assert train.evaluate(model, [torch.ones(2)], loss_fn) == {"loss": 2.0}
    assert [part.training for part in model.modules()] == before == [True, True, False, False]


class Scripted(nn.Module):
    """Its weight counts training steps, so that the weights tell the epoch."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(()))


def scripted(scores):
    """Train for one step an epoch; validation gives the scripted numbers in order."""
    numbers = iter(scores)

    def loss_fn(model, batch):
        if model.training:
            return {"loss": -model.weight, "count": 1}  # SGD with rate 1 adds 1 a step
        return {key: torch.tensor(value) for key, value in next(numbers).items()} | {"count": 1}

    model = Scripted()
    return model, lambda _: [0], loss_fn, torch.optim.SGD(model.parameters(), lr=1.0)


@pytest.mark.parametrize(
    ("monitor", "best"), [("loss", 2), ("accuracy", 3)],
)  # fmt: skip
def test_the_best_epochs_weights_are_restored(monitor, best):
    """Fails if the last weights stay, a tie takes the later epoch, or accuracy is minimised."""
    scores = [{"loss": loss, "accuracy": acc} for loss, acc in [(0.9, 0.5), (0.4, 0.6), (0.4, 0.8), (0.7, 0.8)]]
    model, *rest = scripted(scores)
    history = train.fit(model, *rest, epochs=4, valid_batches=[0], monitor=monitor)
    assert model.weight.item() == best
    assert [entry["valid_loss"] for entry in history] == pytest.approx([0.9, 0.4, 0.4, 0.7])


def test_without_validation_the_last_weights_stay():
    """Fails if something is restored that was never measured."""
    model, *rest = scripted([])
    assert train.fit(model, *rest, epochs=3) == [{"epoch": n, "train_loss": 1.0 - n} for n in (1, 2, 3)]
    assert model.weight.item() == 3


def test_log_gets_one_line_an_epoch():
    """Fails if the line lacks a number or is written when nobody asked."""
    lines = []
    model, *rest = scripted([{"loss": 0.25}])
    train.fit(model, *rest, epochs=1, valid_batches=[0], log=lines.append)
    assert lines == ["epoch 1  train_loss 0.000  valid_loss 0.250"]


# Losses


def test_classification_loss_is_the_sum_of_cross_entropies():
    """Fails if the loss is a mean, or right answers are miscounted."""
    logits = torch.tensor([[2.0, -1.0, 0.5], [0.1, 0.2, 0.3]], dtype=torch.float64)
    ids, mask, labels = torch.zeros(2, 5, dtype=torch.long), torch.ones(2, 5, dtype=torch.bool), torch.tensor([0, 1])
    sums = train.classification_loss(lambda got_ids, got_mask: logits, (ids, mask, labels))
    wanted = -(logits[0, 0] - logits[0].logsumexp(0)) - (logits[1, 1] - logits[1].logsumexp(0))
    torch.testing.assert_close(sums["loss"], wanted, atol=1e-12, rtol=0)
    assert (sums["count"], sums["accuracy"].item()) == (2, 1)


def test_binary_loss_is_the_sum_of_cross_entropies():
    """Fails if the sign of a label or of the threshold is turned round."""
    logits = torch.tensor([1.5, -0.5, 2.0], dtype=torch.float64)
    batch = (torch.zeros(3, 4, dtype=torch.long), torch.ones(3, 4, dtype=torch.bool), torch.tensor([1, 0, 0]))
    sums = train.binary_loss(lambda ids, mask: logits, batch)
    wanted = -(logits[0].sigmoid().log() + (1 - logits[1].sigmoid()).log() + (1 - logits[2].sigmoid()).log())
    torch.testing.assert_close(sums["loss"], wanted, atol=1e-12, rtol=0)
    assert (sums["count"], sums["accuracy"].item()) == (3, 2)


@pytest.mark.parametrize("labels", [[-1, 1, 1], [1, 2, 1], [0.5, 0, 1]])
def test_labels_of_a_binary_loss_are_0_and_1(labels):
    """Fails if labels -1 and 1, or 1 and 2, give a loss below zero and an accuracy of 1."""
    batch = (torch.zeros(3, 4, dtype=torch.long), torch.ones(3, 4, dtype=torch.bool), torch.tensor(labels))
    with pytest.raises(ValueError, match=r"labels must be 0 or 1, got \["):
        train.binary_loss(lambda ids, real: torch.zeros(3), batch)


def test_language_model_loss_counts_tokens():
    """Fails if batch and time are mixed up, or sequences are counted instead of tokens."""
    logits = torch.randn(2, 3, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    targets = torch.tensor([[0, 4, 2], [1, 1, 3]])
    sums = train.language_model_loss(lambda inputs: logits, (targets, targets))
    pairs = [(logits[b, t], targets[b, t]) for b in range(2) for t in range(3)]
    wanted = sum(row.logsumexp(0) - row[target] for row, target in pairs)
    torch.testing.assert_close(sums["loss"], wanted, atol=1e-12, rtol=0)
    assert (sums["count"], sums["accuracy"].item()) == (6, sum(row.argmax() == target for row, target in pairs).item())


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([-100, 1, 0], "must be from 0 to 4, got -100 to 1"),
        ([0, 1, 5], "must be from 0 to 4, got 0 to 5"),
        ([0.0, 1.0, 2.0], "must be torch.int64, got torch.float32"),
        ([0, 1], r"must be a tensor \(3,\), got one of shape \(2,\)"),
        (["a", "b", "c"], r"must be a torch tensor \(3,\), got builtins.list"),
    ],
)
def test_labels_that_are_no_classes_are_refused(labels, message):
    """Fails if -100 is left out of the loss but counted in the mean, or the message is torch's."""
    labels = labels if isinstance(labels[0], str) else torch.tensor(labels)
    with pytest.raises(ValueError, match=f"labels {message}"):
        train.classification_loss(lambda ids, real: torch.zeros(3, 5), (labels, None, labels))
    rows = [labels, labels] if isinstance(labels, list) else labels.expand(2, -1)
    with pytest.raises(ValueError, match="targets must be"):
        train.language_model_loss(lambda inputs: torch.zeros(2, 3, 5), (rows, rows))


def test_no_target_is_a_mark_on_any_device():
    """Fails if -100 counts for nothing where values are not read: `meta` stands for a GPU."""
    labels = torch.tensor([-100], device="meta")
    logits = torch.zeros(1, 5, device="meta")
    assert train.classification_loss(lambda ids, real: logits, (labels, None, labels))["count"] == 1
    with pytest.raises(IndexError, match="-100 is out of bounds"):
        torch.nn.functional.cross_entropy(torch.zeros(1, 5), torch.tensor([-100]), ignore_index=train.NO_MARK)


# Checkpoints

SCRIPT = """
import os, random, sys
import torch
from torch import nn
from course_lib import train
from course_lib.utils import device

checkpoint, result, kill_at = sys.argv[1], sys.argv[2], int(sys.argv[3])

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 9), nn.Linear(9, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        h = self.first(x).tanh()
        if self.training:
            h = h * (torch.rand(h.shape) >= 0.3) / 0.7 * random.uniform(0.9, 1.1)
            self.seen += 1
        return self.second(h)

def loss_fn(model, batch):
    x, y = batch
    logits = model(x)
    loss = nn.functional.cross_entropy(logits, y, reduction="sum")
    return {"loss": loss, "count": len(x), "accuracy": (logits.argmax(-1) == y).sum()}

def batches(epoch):
    generator = torch.Generator().manual_seed(epoch)
    for number in range(5):
        if (epoch, number) == (kill_at, 3):
            os._exit(9)
        size = 3 + number
        x = torch.rand(size, 4, generator=generator)
        yield x, (x[:, 0] * 3).long()

train.set_seed(5)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.05, total_steps=15)
history = train.fit(
    model, batches, loss_fn, optimizer, epochs=5, valid_batches=list(batches(0)), scheduler=scheduler,
    grad_accumulation_steps=2, clip_norm=1.0, checkpoint=checkpoint, monitor="accuracy",
)
moments = [list(state.values()) for state in optimizer.state_dict()["state"].values()]
drawn = [torch.rand(3), random.random()]
torch.save([history, model.state_dict(), moments, scheduler.state_dict(), drawn], result)
"""


def flattened(value):
    """Every tensor as bytes, every number with its exact value."""
    if isinstance(value, torch.Tensor):
        return (str(value.dtype), tuple(value.shape), value.numpy().tobytes())
    if isinstance(value, dict):
        return [(key, flattened(part)) for key, part in value.items()]
    return [flattened(part) for part in value] if isinstance(value, list | tuple) else value


def test_a_killed_run_resumed_in_a_fresh_process_ends_with_the_same_bits(tmp_path):
    """Fails if weights, buffers, optimizer, schedule, random numbers, history or best weights are not kept exactly."""
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(SCRIPT))

    def launch(checkpoint, result, kill_at):
        command = [sys.executable, str(script), str(tmp_path / checkpoint), str(tmp_path / result), str(kill_at)]
        path = os.pathsep.join(filter(None, [os.getcwd(), os.environ.get("PYTHONPATH")]))
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        return subprocess.run(command, env=environment, check=False).returncode

    assert launch("whole.pt", "whole.out", -1) == 0
    assert launch("killed.pt", "killed.out", 4) == 9  # in the middle of epoch 4
    assert not (tmp_path / "killed.out").exists()
    assert len(torch.load(tmp_path / "killed.pt", weights_only=True)["state"]["history"]) == 3
    assert launch("killed.pt", "killed.out", -1) == 0
    whole, killed = (torch.load(tmp_path / name, weights_only=True) for name in ("whole.out", "killed.out"))
    assert len(whole[0]) == 5
    assert flattened(killed) == flattened(whole)


def small(seed=0, width=4, rate=0.1, optimizer=torch.optim.SGD, dtype=torch.float32):
    train.set_seed(seed)
    model = nn.Linear(width, 2).to(dtype)
    x = torch.rand(5, width).to(dtype)

    def loss_fn(model, x):
        return {"loss": model(x).square().sum(), "count": len(x)}

    return model, lambda _: [x], loss_fn, optimizer(model.parameters(), lr=rate)


@pytest.fixture
def checkpoint(tmp_path):
    path = tmp_path / "new folder" / "run.pt"
    train.fit(*small(), epochs=3, checkpoint=path)
    return path


def test_a_finished_run_is_not_trained_again(checkpoint):
    """Fails if training goes on beyond the epochs asked for, or the weights are not put back."""
    done, *_ = small()
    first = train.fit(done, *small()[1:3], torch.optim.SGD(done.parameters(), lr=0.1), epochs=3)
    model, _, loss_fn, optimizer = small(seed=1)

    def never(epoch):
        raise AssertionError("trained again")

    assert train.fit(model, never, loss_fn, optimizer, epochs=3, checkpoint=checkpoint) == first
    assert torch.equal(model.weight, done.weight)


def test_more_epochs_go_on_and_without_the_file_it_starts_again(checkpoint):
    """Fails if a finished run cannot be lengthened, or something outlives the file."""
    longer = train.fit(*small(), epochs=4, checkpoint=checkpoint)
    assert longer == train.fit(*small(), epochs=4)
    checkpoint.unlink()
    assert train.fit(*small(), epochs=2, checkpoint=checkpoint) == longer[:2]
    assert len(torch.load(checkpoint, weights_only=True)["state"]["history"]) == 2


def test_a_killed_writer_leaves_the_old_checkpoint_whole(checkpoint, monkeypatch):
    """Fails if the file is written in place, or a half-written one stays behind."""
    before = checkpoint.read_bytes()

    def stopped(content, file):
        file.write(b"half")
        raise KeyboardInterrupt

    monkeypatch.setattr(torch, "save", stopped)
    with pytest.raises(KeyboardInterrupt):
        train.fit(*small(), epochs=4, checkpoint=checkpoint)
    assert checkpoint.read_bytes() == before
    assert list(checkpoint.parent.iterdir()) == [checkpoint]


@pytest.mark.parametrize(
    ("changed", "epochs", "message"),
    [
        ({"width": 3}, 4, r"belongs to another model: weight is \(2, 4\) torch.float32 there, \(2, 3\)"),
        ({"dtype": torch.float64}, 4, r"weight is \(2, 4\) torch.float32 there, \(2, 4\) torch.float64 here"),
        ({"optimizer": torch.optim.AdamW}, 4, "made with optimizer=SGD, not AdamW"),
        ({"rate": 0.2}, 4, "made with lr=0.1, not 0.2"),
        ({}, 2, "holds 3 epochs, more than the 2 wanted"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused_untouched(checkpoint, changed, epochs, message):
    """Fails if other sizes, types or settings are loaded, or the model is half overwritten before the error."""
    model, *rest = small(seed=1, **changed)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=message + ".*; delete it to start again"):
        train.fit(model, *rest, epochs=epochs, checkpoint=checkpoint)
    assert all(torch.equal(parameter, kept) for parameter, kept in zip(model.parameters(), before, strict=True))


def test_a_schedule_of_another_length_is_refused(tmp_path):
    """Fails if a schedule made for 2 epochs is silently kept for 3."""

    def run(epochs):
        model, batches, loss_fn, optimizer = small()
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
        train.fit(model, batches, loss_fn, optimizer, epochs=epochs, scheduler=scheduler, checkpoint=tmp_path / "a.pt")

    run(2)
    with pytest.raises(ValueError, match=r"a.pt was made with epochs=2, not 3"):
        run(3)


def test_an_optimizer_of_other_parameters_is_refused(checkpoint):
    """Fails if torch's own message about parameter groups reaches the student without a way out."""
    model, batches, loss_fn, _ = small()
    optimizer = torch.optim.SGD([model.weight], lr=0.1)
    with pytest.raises(
        ValueError, match=r"run.pt belongs to an optimizer of other parameters .*; delete it to start again"
    ):
        train.fit(model, batches, loss_fn, optimizer, epochs=4, checkpoint=checkpoint)


def test_a_file_that_is_no_checkpoint_is_named(checkpoint):
    """Fails if a file cut at any point, an empty one, text, or another pickle gives anything but one clear error."""
    whole = checkpoint.read_bytes()
    pieces = [whole[: len(whole) * part // 7] for part in range(7)] + [whole[:-1], b"epoch,loss\n1,0.5\n"]
    other = checkpoint.parent / "other.pt"
    torch.save({"weight": torch.zeros(2)}, other)
    for content in [*pieces, other.read_bytes()]:
        checkpoint.write_bytes(content)
        with pytest.raises(ValueError, match=r"run.pt is not a whole checkpoint of course_lib; delete"):
            train.fit(*small(), epochs=4, checkpoint=checkpoint)


def test_a_checkpoint_cannot_run_code(checkpoint, tmp_path):
    """Fails if the file is unpickled without weights_only: the planted call would make a folder."""

    class Planted:
        def __reduce__(self):
            return (os.mkdir, (str(tmp_path / "made"),))

    torch.save({"model": Planted(), "state": {}}, checkpoint)
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        train.fit(*small(), epochs=4, checkpoint=checkpoint)
    assert not (tmp_path / "made").exists()


def test_a_model_is_saved_with_what_belongs_to_it_and_loaded(tmp_path):
    """Fails if weights, buffers or the state are not those saved, or loading a model alone draws on random numbers."""
    model, other = (nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(2))
    model(torch.rand(5, 3))
    state = {"names": ["bad", "good"], "table": {"x": torch.ones(2), "y": (1, 2.5, None)}}
    checkpoints.save(tmp_path / "new" / "model.pt", model, **state)
    torch.manual_seed(3)
    drawn = torch.rand(2)
    torch.manual_seed(3)
    found = checkpoints.load(str(tmp_path / "new" / "model.pt"), other)
    assert torch.equal(torch.rand(2), drawn)
    assert flattened(found) == flattened(state)
    assert flattened(other.state_dict()) == flattened(model.state_dict())


def test_a_model_alone_cannot_go_on_training(tmp_path):
    """Fails if an optimizer silently starts from nothing."""
    model, _, _, optimizer = small()
    checkpoints.save(tmp_path / "model.pt", model)
    with pytest.raises(ValueError, match="holds a model alone, without the optimizer"):
        checkpoints.load(tmp_path / "model.pt", model, optimizer)


def test_what_could_not_be_loaded_is_not_saved(tmp_path):
    """Fails if an object is written that `load` would refuse, when its maker is gone."""
    with pytest.raises(ValueError, match="vocab is a Model: a checkpoint keeps tensors, numbers, strings"):
        checkpoints.save(tmp_path / "model.pt", nn.Linear(2, 2), names={"vocab": [type("Model", (), {})()]})
    assert list(tmp_path.iterdir()) == []


# Prediction and progress


def test_predict_gives_all_rows_in_order_without_dropout_and_gradients():
    """Fails if a batch is lost, dropout is on, a graph is kept, or a part is left in another mode."""

    class Judge(nn.Module):
        def __init__(self):
            super().__init__()
            self.dropout, self.layer = nn.Dropout(0.9), nn.Linear(3, 2)

        def forward(self, x, scale=1.0):
            return self.dropout(self.layer(x)) * scale

    model, x = Judge(), torch.randn(7, 3)
    model.layer.eval()
    wanted = F.linear(x, model.layer.weight, model.layer.bias)
    found = train.predict(model, x.split(3))
    torch.testing.assert_close(found, wanted.detach())
    assert not found.requires_grad
    assert (model.training, model.layer.training) == (True, False)
    pairs = ((part, torch.tensor(2.0)) for part in x.split(3))
    torch.testing.assert_close(train.predict(model, pairs), 2 * wanted.detach())
    assert train.predict(model, [x], bf16=True).dtype == torch.bfloat16


@pytest.mark.parametrize("quiet", [True, False])
def test_a_bar_counts_the_epochs_unless_it_is_turned_off(quiet):
    """Fails if nothing is seen, or TQDM_DISABLE=1, under which notebooks are built and tested, is ignored."""
    code = "from course_lib import train; from tests.library.test_train import small; train.fit(*small(), epochs=3)"
    environment = os.environ | {"TQDM_DISABLE": "1"} if quiet else os.environ.copy()
    if not quiet:
        environment.pop("TQDM_DISABLE", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert ("epochs" in done.stderr, "/3" in done.stderr) == (not quiet, not quiet)


# Errors and small parts


@pytest.mark.parametrize("group", [1, 2])
def test_a_loss_that_is_not_finite_names_epoch_and_step(group):
    """Fails if training goes on with NaN, the wrong step is named, or the weights are changed by it."""
    model, _, loss_fn, optimizer = small()
    good, bad = torch.ones(3, 4), torch.full((2, 4), float("inf"))
    before = None

    def sequence(epoch):
        nonlocal before
        for _ in range(2 * group):
            yield good
        before = model.weight.detach().clone()
        yield bad if epoch == 2 else good

    with pytest.raises(FloatingPointError, match=r"epoch 2: the loss is (inf|nan) at step 3"):
        train.fit(model, sequence, loss_fn, optimizer, epochs=3, grad_accumulation_steps=group)
    assert before.isfinite().all()
    if group == 1:
        assert torch.equal(model.weight, before)


def test_a_validation_loss_that_is_not_finite_names_the_epoch():
    """Fails if NaN takes part in the choice of the best epoch."""
    model, *rest = scripted([{"loss": 0.5}, {"loss": float("nan")}])
    with pytest.raises(FloatingPointError, match="epoch 2: the validation loss is nan"):
        train.fit(model, *rest, epochs=3, valid_batches=[0])


ANOTHERS = torch.optim.lr_scheduler.ConstantLR(torch.optim.SGD(nn.Linear(4, 2).parameters()))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "epochs must be a whole number of at least 1, got 0"),
        ({"epochs": -1}, "epochs must be a whole number of at least 1, got -1"),
        ({"epochs": 1.5}, "epochs must be a whole number of at least 1, got 1.5"),
        ({"grad_accumulation_steps": 0}, "grad_accumulation_steps must be a whole number of at least 1, got 0"),
        ({"grad_accumulation_steps": -1}, "grad_accumulation_steps must be .*, got -1"),
        ({"clip_norm": 0.0}, "clip_norm must be a finite number above 0, got 0.0"),
        ({"clip_norm": math.nan}, "clip_norm must be a finite number above 0, got nan"),
        (
            {"optimizer": torch.optim.SGD(nn.Linear(4, 2).parameters())},
            "the optimizer holds no parameter of this model",
        ),
        ({"optimizer": "adam"}, "optimizer must be a Optimizer, got str 'adam'"),
        ({"scheduler": ANOTHERS}, "the scheduler belongs to another optimizer"),
        ({"train_batches": lambda epoch: []}, "no batches, or none with items"),
        ({"train_batches": [torch.ones(3, 4)]}, "train_batches must be a function of the epoch"),
        ({"valid_batches": iter(())}, "no batches, or none with items; a generator"),
        ({"valid_batches": [torch.ones(3, 4)], "monitor": "bleu"}, "monitor must be one of 'loss', got 'bleu'"),
        ({"loss_fn": lambda model, x: model(x).sum()}, "loss_fn returned a Tensor; wanted a dict of sums"),
        ({"loss_fn": lambda model, x: {"loss": model(x).sum()}}, "returned a dict with loss; wanted .* 'count'"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    """Fails if an argument is accepted, or the message does not say what came and what was wanted."""
    model, batches, loss_fn, optimizer = small()
    call = {"train_batches": batches, "loss_fn": loss_fn, "optimizer": optimizer, "epochs": 1} | arguments
    before = [parameter.detach().clone() for parameter in model.parameters()]
    with pytest.raises(ValueError, match=message):
        train.fit(model, **call)
    if "monitor" not in call and "valid_batches" not in call:
        assert all(torch.equal(x, kept) for x, kept in zip(model.parameters(), before, strict=True))


def test_evaluating_nothing_is_an_error():
    """Fails if counts that add up to 0 end in a division by zero."""
    with pytest.raises(ValueError, match="no batches, or none with items"):
        train.evaluate(nn.Identity(), [torch.ones(0)], lambda model, x: {"loss": x.sum(), "count": len(x)})


def test_to_device_goes_into_every_container():
    """Fails if a tensor in a tuple, list, dict or named tuple stays behind, or a container changes its type."""
    Pair = namedtuple("Pair", "x y")
    a = torch.zeros(2)
    moved = device.to_device(({"a": a, "b": [a, "text"]}, Pair(a, (a, 7))), "meta")
    assert isinstance(moved, tuple)
    assert isinstance(moved[1], Pair)
    assert moved[0]["b"][1] == "text"
    assert moved[1].y[1] == 7
    tensors = [moved[0]["a"], moved[0]["b"][0], moved[1].x, moved[1].y[0]]
    assert [tensor.device.type for tensor in tensors] == ["meta"] * 4


@pytest.mark.parametrize(
    ("there", "name", "wanted"),
    [
        (("cuda", "mps"), None, "cuda"),
        (("mps",), None, "mps"),
        ((), None, "cpu"),
        (("cuda",), "cpu", "cpu"),
        (("cuda",), "cuda:1", "cuda:1"),
        (("cuda",), torch.device("cuda"), "cuda"),
    ],
)
def test_the_best_device_that_is_there(monkeypatch, there, name, wanted):
    """Fails if the order is not cuda, mps, cpu, or a name is overruled."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in there)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in there)
    assert device.pick_device(name) == torch.device(wanted)


def test_a_missing_device_is_named(monkeypatch):
    """Fails if the error comes from deep inside torch."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(ValueError, match="this machine has no cuda device; available: cpu"):
        device.pick_device("cuda")


def test_set_seed_seeds_torch_and_python():
    """Fails if one of the two generators is forgotten, or the seed is ignored."""
    drawn = []
    for seed in (1, 1, 2):
        train.set_seed(seed)
        drawn.append((torch.rand(()).item(), random.random()))
    assert drawn[0] == drawn[1]
    assert drawn[0][0] != drawn[2][0]
    assert drawn[0][1] != drawn[2][1]


@pytest.mark.gpu
def test_a_run_on_the_gpu_resumes(tmp_path):
    """Fails if batches, optimizer state or the GPU's random numbers do not follow the model."""

    def run(epochs, name):
        train.set_seed(0)
        model = nn.Linear(4, 2).to("cuda")
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

        def loss_fn(model, batch):
            x = batch[0]
            noise = torch.rand(x.shape, device=x.device)
            return {"loss": (model(x * noise) - 1).square().sum(), "count": len(x)}

        batches = lambda epoch: [(torch.full((3, 4), epoch / 4),)] * 2  # noqa: E731
        path = tmp_path / name
        history = train.fit(
            model, batches, loss_fn, optimizer, epochs=epochs, valid_batches=batches(1), bf16=True, checkpoint=path,
        )  # fmt: skip
        return history, model.weight.detach().cpu()

    whole, weight = run(4, "whole.pt")
    run(2, "cut.pt")
    resumed, again = run(4, "cut.pt")
    assert resumed == whole
    assert torch.equal(again, weight)
