"""Schedules by hand and against torch and transformers; RAdam against torch; every refusal."""

import copy
import functools
import math

import pytest
import torch
import transformers
from torch import nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR, LinearLR

from course_lib import optim
from course_lib.optim import (
    RAdam,
    constant_schedule,
    cosine_schedule,
    decay_groups,
    inverse_sqrt_schedule,
    linear_schedule,
    noam_schedule,
)
from course_lib.transformer import EncoderLayer

EXACT = {"rtol": 1e-12, "atol": 1e-14}
WARMUP, TOTAL = 7, 23
SCHEDULES = [
    functools.partial(linear_schedule, warmup=WARMUP, total=TOTAL),
    functools.partial(cosine_schedule, warmup=WARMUP, total=TOTAL, floor=0.2),
    functools.partial(inverse_sqrt_schedule, warmup=WARMUP),
    functools.partial(constant_schedule, warmup=WARMUP),
    lambda step: noam_schedule(step, 11, WARMUP) * math.sqrt(11 * WARMUP),
]


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64)


def model():
    """Three parameters of different shapes, float64."""
    net = nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5)).double()
    with torch.no_grad():
        for i, parameter in enumerate(net.parameters()):
            parameter.copy_(draw(*parameter.shape, seed=i))
    return net


def rates(scheduler, steps):
    """The learning rate of each step, and the one after the last."""
    found = [scheduler.get_last_lr()[0]]
    for _ in range(steps):
        scheduler.optimizer.step()
        scheduler.step()
        found.append(scheduler.get_last_lr()[0])
    return found


def sgd():
    """An optimizer with learning rate 1, so that rates are factors."""
    return torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1.0)


# ---- schedules ----


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_rises_on_the_same_line_to_one(schedule):
    """Fails if a warm-up starts at 0, ends below 1, or takes a step more or less."""
    wanted = [(step + 1) / WARMUP for step in range(WARMUP)]
    assert [schedule(step) for step in range(WARMUP)] == pytest.approx(wanted, rel=1e-12)
    later = [schedule(step) for step in range(WARMUP, TOTAL)]
    assert max(later) <= 1 + 1e-12
    assert later == sorted(later, reverse=True)


def test_values_by_hand():
    """Fails if a formula loses a term: each number was worked out on paper."""
    assert [linear_schedule(step, 2, 6) for step in range(8)] == [0.5, 1, 1, 0.75, 0.5, 0.25, 0, 0]
    half = 0.1 + 0.9 * 0.5  # half-way down
    quarter = 0.9 * 0.5 * (1 + math.sqrt(0.5)) + 0.1
    assert cosine_schedule(3, 2, 6, 0.1) == pytest.approx(quarter, rel=1e-12)
    assert cosine_schedule(4, 2, 6, 0.1) == pytest.approx(half, rel=1e-12)
    assert [cosine_schedule(step, 2, 6, 0.1) for step in (6, 9)] == pytest.approx([0.1, 0.1], rel=1e-12)
    assert cosine_schedule(6, 2, 6) == 0
    assert [inverse_sqrt_schedule(step, 4) for step in (0, 3, 15, 63)] == [0.25, 1, 0.5, 0.25]
    assert noam_schedule(0, 512, 4000) == pytest.approx(512**-0.5 * 4000**-1.5, rel=1e-12)
    assert noam_schedule(3999, 512, 4000) == pytest.approx(6.987712e-4, rel=1e-6)  # the paper's base model at its peak
    assert noam_schedule(15999, 512, 4000) == pytest.approx(noam_schedule(3999, 512, 4000) / 2, rel=1e-12)


def test_warmup_zero_means_none():
    """Fails if warmup 0 divides by zero, or starts anywhere but at the full rate."""
    assert [linear_schedule(step, 0, 4) for step in range(5)] == [1, 0.75, 0.5, 0.25, 0]
    assert [cosine_schedule(step, 0, 2) for step in range(3)] == pytest.approx([1, 0.5, 0], abs=1e-15)
    assert [constant_schedule(step, 0) for step in range(3)] == [1, 1, 1]
    for step in (0, 1, 8):
        assert inverse_sqrt_schedule(step, 0) == inverse_sqrt_schedule(step, 1) == (step + 1) ** -0.5
        assert noam_schedule(step, 9, 0) == pytest.approx(((step + 1) * 9) ** -0.5, rel=1e-12)


def test_warmup_may_last_to_the_end():
    """Fails if warmup == total divides by zero at the last step."""
    assert [linear_schedule(step, 3, 3) for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 0])
    assert [cosine_schedule(step, 3, 3, 0.5) for step in range(4)] == pytest.approx([1 / 3, 2 / 3, 1, 0.5])


def test_without_warmup_they_are_torchs():
    """Fails if a decay is not torch's LinearLR or CosineAnnealingLR, at any step."""
    ours = rates(LambdaLR(sgd(), functools.partial(linear_schedule, warmup=0, total=TOTAL)), TOTAL)
    assert ours == pytest.approx(rates(LinearLR(sgd(), 1.0, 0.0, TOTAL), TOTAL), rel=1e-12, abs=1e-14)
    ours = rates(LambdaLR(sgd(), functools.partial(cosine_schedule, warmup=0, total=TOTAL, floor=0.2)), TOTAL)
    torchs = rates(CosineAnnealingLR(sgd(), TOTAL, eta_min=0.2), TOTAL)
    assert ours == pytest.approx(torchs, rel=1e-12, abs=1e-14)
    ours = rates(LambdaLR(sgd(), functools.partial(constant_schedule, warmup=WARMUP)), TOTAL)
    torchs = rates(LinearLR(sgd(), 1 / WARMUP, 1.0, WARMUP - 1), TOTAL)
    assert ours == pytest.approx(torchs, rel=1e-12)


def test_schedules_against_transformers():
    """Fails if a schedule differs from transformers' by more than its convention: its first factor is 0."""
    steps = {"num_warmup_steps": WARMUP, "num_training_steps": TOTAL}
    pairs = [
        (SCHEDULES[0], transformers.get_linear_schedule_with_warmup(sgd(), **steps)),
        (
            functools.partial(cosine_schedule, warmup=WARMUP, total=TOTAL),
            transformers.get_cosine_schedule_with_warmup(sgd(), **steps),
        ),
        (SCHEDULES[3], transformers.get_constant_schedule_with_warmup(sgd(), num_warmup_steps=WARMUP)),
    ]
    for schedule, theirs in pairs:
        theirs = rates(theirs, TOTAL)
        assert theirs[0] == 0
        rise = [schedule(step) for step in range(WARMUP)]
        assert rise == pytest.approx(theirs[1 : WARMUP + 1], rel=1e-12)
        fall = [schedule(step) for step in range(WARMUP, TOTAL + 1)]
        assert fall == pytest.approx(theirs[WARMUP:], rel=1e-12, abs=1e-14)
    theirs = rates(transformers.get_inverse_sqrt_schedule(sgd(), WARMUP), TOTAL)
    assert [inverse_sqrt_schedule(step, WARMUP) for step in range(TOTAL)] == pytest.approx(theirs[1:], rel=1e-12)


@pytest.mark.parametrize("schedule", [linear_schedule, cosine_schedule])
def test_schedules_with_an_end_refuse_bad_input(schedule):
    """Fails if a negative number, an empty training or a warm-up longer than the training passes."""
    with pytest.raises(ValueError, match=r"total must be at least 1 and at least warmup \(9\), got 8"):
        schedule(3, 9, 8)
    with pytest.raises(ValueError, match=r"total must be .* got 8"):
        schedule(10, 9, 8)
    with pytest.raises(ValueError, match=r"total must be at least 1 .* got 0"):
        schedule(0, 0, 0)
    with pytest.raises(ValueError, match="step must be a finite number from 0 on, got -1"):
        schedule(-1, 2, 8)
    with pytest.raises(ValueError, match="warmup must be a finite number from 0 on, got -2"):
        schedule(1, -2, 8)
    with pytest.raises(ValueError, match=r"total must be .* got nan"):
        schedule(1, 2, float("nan"))


def test_schedules_without_an_end_refuse_bad_input():
    """Fails if a negative step, warm-up or width passes, or a floor outside 0 to 1."""
    for schedule in (constant_schedule, inverse_sqrt_schedule, lambda step, warmup: noam_schedule(step, 8, warmup)):
        for bad in (-3, math.nan):
            with pytest.raises(ValueError, match=f"step must be a finite number from 0 on, got {bad}"):
                schedule(bad, 5)
            with pytest.raises(ValueError, match=f"warmup must be a finite number from 0 on, got {bad}"):
                schedule(3, bad)
    with pytest.raises(ValueError, match="d_model must be a whole number of at least 1, got 0"):
        noam_schedule(1, 0, 5)
    for floor in (-0.1, 1.5, math.nan):
        with pytest.raises(ValueError, match=f"floor must be from 0 to 1, got {floor}"):
            cosine_schedule(1, 2, 8, floor)


# ---- RAdam ----


def trained(optimizer, net, steps, first=0):
    """Steps on gradients that depend on the step's number alone; the learning rate changes on the way."""
    for step in range(first, first + steps):
        for i, parameter in enumerate(net.parameters()):
            parameter.grad = draw(*parameter.shape, seed=100 * i + step) * (1 + step % 3)
        optimizer.param_groups[0]["lr"] = 0.02 / (1 + step // 10)
        optimizer.step()
    return net


@pytest.mark.parametrize("weight_decay", [0.0, 0.3])
@pytest.mark.parametrize("beta2", [0.5, 0.9, 0.98, 0.999, 0.9999])
def test_radam_equals_torchs(beta2, weight_decay):
    """Fails if a moment, a correction, the branch or the penalty differs: 40 steps, the rate changed four times.

    At 0.5 no step is adaptive, at 0.9 and above those from the 6th on: both branches are taken.
    """
    settings = {"betas": (0.8, beta2), "eps": 1e-6, "weight_decay": weight_decay}
    ours, theirs = model(), model()
    trained(RAdam(ours.parameters(), **settings), ours, 40)
    trained(torch.optim.RAdam(theirs.parameters(), **settings), theirs, 40)
    for value, wanted in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert not torch.equal(wanted, draw(*wanted.shape))
        torch.testing.assert_close(value, wanted, rtol=1e-10, atol=1e-12)


def test_radams_state_is_torchs_and_survives_a_round_trip():
    """Fails if the state is not saved whole, or torch cannot go on from ours, or we from torch's."""
    whole = trained(RAdam((net := model()).parameters()), net, 12)
    first = RAdam((half := model()).parameters())
    trained(first, half, 8)
    for kind in (RAdam, torch.optim.RAdam):
        rest = model()
        rest.load_state_dict(half.state_dict())
        optimizer = kind(rest.parameters())
        optimizer.load_state_dict(copy.deepcopy(first.state_dict()))  # torch shares what it loads
        trained(optimizer, rest, 4, first=8)
        torch.testing.assert_close(rest.state_dict(), whole.state_dict(), **EXACT)
    theirs = torch.optim.RAdam((start := model()).parameters())
    trained(theirs, start, 8)
    ours = RAdam(start.parameters())
    ours.load_state_dict(theirs.state_dict())
    trained(ours, start, 4, first=8)
    torch.testing.assert_close(start.state_dict(), whole.state_dict(), rtol=1e-10, atol=1e-12)


def test_radam_without_gradient_and_with_closure():
    """Fails if a parameter without gradient moves, the closure runs without gradients, or its loss is lost."""
    used, unused = draw(2).requires_grad_(), draw(3).requires_grad_()
    before = used.detach().clone(), unused.detach().clone()

    def closure():
        loss = used.square().sum()
        loss.backward()
        return loss

    loss = RAdam([used, unused], lr=0.1).step(closure)
    assert loss.item() == pytest.approx(before[0].square().sum().item(), rel=1e-12)
    torch.testing.assert_close(used.detach(), before[0] - 0.1 * 2 * before[0], **EXACT)  # the first step: plain descent
    torch.testing.assert_close(unused.detach(), before[1], **EXACT)


def test_radam_refuses_bad_settings():
    """Fails if a setting without meaning passes."""
    for name in ("lr", "eps", "weight_decay"):
        for bad in (-0.1, math.nan):
            with pytest.raises(ValueError, match=f"{name} must be a finite number from 0 on, got {bad}"):
                RAdam([torch.zeros(1)], **{name: bad})
    for betas in ((1.0, 0.9), (0.9, -0.1), (math.nan, 0.9)):
        with pytest.raises(ValueError, match=r"betas must be in \[0, 1\), got"):
            RAdam([torch.zeros(1)], betas=betas)


def test_rectification_by_hand():
    """Fails if r is wrong or starts at another step: 6 for beta2 = 0.999, never for 2/3 and below.

    beta2 = 0.9: rho_inf = 19; at t = 8, 0.9^8 = 0.43046721, rho = 19 - 16 * 0.43046721 / 0.56953279 = 6.906797,
    r = sqrt((2.906797 * 4.906797 * 19) / (15 * 17 * 6.906797)) = 0.392261.
    """
    assert optim.rectification(8, 0.9) == pytest.approx(0.392261, rel=2e-6)
    first = {beta2: next(t for t in range(1, 100) if optim.rectification(t, beta2) > 0) for beta2 in (0.9, 0.999)}
    assert first == {0.9: 6, 0.999: 6}
    assert all(optim.rectification(t, 2 / 3) == 0 for t in range(1, 200))
    assert optim.rectification(200_000, 0.999) == pytest.approx(1, abs=1e-12)
    values = [optim.rectification(t, 0.98) for t in range(1, 300)]
    assert values == sorted(values)


def test_rectification_refuses_bad_input():
    """Fails if step 0 (a division by zero) or a beta2 without meaning passes."""
    with pytest.raises(ValueError, match="step must be a whole number of at least 1, got 0"):
        optim.rectification(0, 0.999)
    for beta2 in (1.0, -0.5, math.nan):
        with pytest.raises(ValueError, match=rf"betas must be in \[0, 1\), got \({beta2},\)"):
            optim.rectification(3, beta2)


# ---- weight decay ----


@pytest.mark.parametrize("residual", ["post-ln", "pre-ln", "rezero"])
def test_decay_groups_split_by_axes_and_lose_nothing(residual):
    """Fails if a bias, a gain or an alpha decays, a matrix does not, or a tensor is lost or comes twice."""
    layer = EncoderLayer(12, 3, 20, residual=residual)
    net = nn.ModuleList([nn.Embedding(7, 12), layer, layer])  # the layer is shared
    decayed, kept = decay_groups(net, 0.1)
    assert (decayed["weight_decay"], kept["weight_decay"]) == (0.1, 0.0)
    names = {id(parameter): name for name, parameter in net.named_parameters()}
    assert {names.pop(id(p)) for p in decayed["params"]} == {
        "0.weight",
        "1.self_attn.in_proj_weight",
        "1.self_attn.out_proj.weight",
        "1.linear1.weight",
        "1.linear2.weight",
    }
    assert {id(p) for p in kept["params"]} == set(names)
    assert len(kept["params"]) == len(names)


def test_decay_groups_work_with_an_optimizer():
    """Fails if the groups are not torch's form: at gradient 0 a matrix shrinks by 1 - lr decay, a bias stays."""
    net = nn.Linear(3, 5).double()
    weight, bias = net.weight.detach().clone(), net.bias.detach().clone()
    for parameter in net.parameters():
        parameter.grad = torch.zeros_like(parameter)
    torch.optim.AdamW(decay_groups(net, 0.5), lr=0.1).step()
    torch.testing.assert_close(net.weight.detach(), weight * 0.95, **EXACT)
    torch.testing.assert_close(net.bias.detach(), bias, **EXACT)


def test_decay_groups_frozen_and_bad_input():
    """Fails if a frozen tensor is given to the optimizer, or a negative decay or an empty model passes."""
    net = nn.Linear(3, 5)
    net.weight.requires_grad_(False)
    decayed, kept = decay_groups(net, 0.1)
    assert decayed["params"] == []
    assert kept["params"][0] is net.bias
    for bad in (-0.1, math.nan):
        with pytest.raises(ValueError, match=f"weight_decay must be a finite number from 0 on, got {bad}"):
            decay_groups(net, bad)
    with pytest.raises(ValueError, match="no parameter that can be trained"):
        decay_groups(nn.ReLU(), 0.1)
