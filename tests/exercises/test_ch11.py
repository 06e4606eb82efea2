"""The checks of chapter 11: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch
from torch import nn

from course_lib.exercises import ch11
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("layer_norm_backward", "warmup_stable_decay", "pre_ln_block", "decaying_names", "train_steps")
NAMES = (*FUNCTIONS, "radam_by_hand")
R_6 = 0.2551654


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def backward(mean=True, along=True, size=True, unbiased=False, axis=-1, outside=False):
    def layer_norm_backward(x, gradient, eps=1e-5):
        centred = x - x.mean(axis, keepdim=True)
        variance = centred.square().sum(axis, keepdim=True) / (x.shape[axis] - unbiased)
        sigma = variance.sqrt() + eps if outside else (variance + eps).sqrt()
        hat = centred / sigma
        out = gradient - (gradient.mean(axis, keepdim=True) if mean else 0)
        out = out - (hat * (gradient * hat).mean(axis, keepdim=True) if along else 0)
        return out / sigma if size else out

    return layer_norm_backward


def numbers(**changed):
    right = {"a": 0.1, "b": 19.0, "c": 1.0, "d": 0.4, "e": R_6, "f": 0.1 * R_6}
    return tuple({**right, **changed}.values())


def block(kind):
    def pre_ln_block(x, attend, feed_forward, norm1, norm2):
        n = norm1(x)
        y, z, post = x + attend(n), n + attend(n), norm1(x + attend(x))
        return {
            "x": lambda: x,
            "zeros": lambda: torch.zeros_like(x),
            "printed": lambda: z + norm2(feed_forward(z)),
            "first": lambda: z + feed_forward(norm2(z)),
            "after": lambda: y + norm2(feed_forward(y)),
            "post": lambda: norm2(post + feed_forward(post)),
            "twice": lambda: y + feed_forward(norm1(y)),
            "both": lambda: norm2(z) + feed_forward(norm2(z)),
            "reads x": lambda: y + feed_forward(norm2(x)),
            "no second": lambda: feed_forward(norm2(y)),
            "no first": lambda: attend(n) + feed_forward(norm2(attend(n))),
            "adds x": lambda: x + feed_forward(norm2(y)),
            "none": lambda: x + attend(x) + feed_forward(x + attend(x)),
            "last": lambda: norm2(y + feed_forward(norm2(y))),
            "swapped": lambda: x + attend(norm2(x)) + feed_forward(norm1(x + attend(norm2(x)))),
        }[kind]()

    return pre_ln_block


def names(rule):
    return lambda model: {name for name, p in model.named_parameters() if rule(name, p)}


def in_linear(model):
    return {f"{name}.weight" for name, m in model.named_modules() if type(m) is nn.Linear and name != "output"}


def loop(
    divide="total",
    clip="step",
    schedule="after",
    zero=True,
    recount=True,
    step=True,
    clipped=torch.nn.utils.clip_grad_norm_,
):
    """The loop with one part changed; written apart from the check's own."""

    def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
        weights, count = list(model.parameters()), 0
        for i, batch in enumerate(micro_batches):
            if zero and i % accumulate == 0:
                optimizer.zero_grad()
            if recount and i % accumulate == 0:
                count = 0
            loss, n = loss_fn(model, batch)
            count += n
            factor = {"own": n, "own and number": n * accumulate, "number": accumulate}.get(divide, 1)
            (loss / factor).backward()
            if clip == "micro":
                clipped(weights, max_norm)
            if schedule == "micro":
                scheduler.step()
            if (i + 1) % accumulate == 0:
                if clip == "early":
                    clipped(weights, max_norm)
                for weight in weights:
                    weight.grad /= count if divide == "total" else 1
                if clip == "step":
                    clipped(weights, max_norm)
                if schedule == "before":
                    scheduler.step()
                if step:
                    optimizer.step()
                if schedule == "after":
                    scheduler.step()

    return train_steps


def one_by_one(weights, max_norm):
    for weight in weights:
        torch.nn.utils.clip_grad_norm_(weight, max_norm)


def shortened(weights, max_norm):
    """Clipping without torch's 1e-6 in the divisor."""
    norm = torch.cat([weight.grad.flatten() for weight in weights]).norm()
    for weight in weights:
        weight.grad *= min(1.0, max_norm / norm)


PLANTED = {
    "layer_norm_backward": [
        ("comes back as it went in", lambda x, gradient, eps=1e-5: gradient),
        ("must be taken out of it first", backward(mean=False, along=False)),
        ("the mean of the gradient is still in it", backward(mean=False)),
        ("the part along the normalised x", backward(along=False)),
        ("the division by sigma is missing", backward(size=False)),
        ("LayerNorm divides by D", backward(unbiased=True)),
        ("over the batch (axis 0)", backward(axis=0)),
        ("its backward pass is asked for", lambda x, gradient, eps=1e-5: nn.functional.layer_norm(x, (6,))),
        ("added to the variance, before the root", lambda x, gradient, eps=1e-5: backward()(x, gradient)),
        ("nearly right", backward(outside=True)),
        ("LayerNorm divides by D", lambda x, gradient, eps=0: backward(unbiased=True)(x, gradient, 0)),
        ("sum to 0", lambda x, gradient, eps=1e-5: 2 * gradient),
        ("is not (gradient", lambda x, gradient, eps=1e-5: torch.zeros_like(x)),
        ("has shape (2, 5); wanted (2, 5, 6)", lambda x, gradient, eps=1e-5: x.mean(-1)),
        ("is a return missing", lambda x, gradient, eps=1e-5: None),
    ],
    "radam_by_hand": [
        ("the gradient's size cancels", numbers(a=0.4)),
        ("2 / (1 - beta2) - 1", numbers(b=10.0)),
        ("the - 1 is missing", numbers(b=20.0)),
        ("subtracted twice", numbers(b=18.0)),
        ("the second term is missing", numbers(c=19.0)),
        ("under the fraction", numbers(c=-17.0 + 0.0)),
        ("the factor 2 is missing", numbers(c=10.0)),
        ("this step is not adaptive", numbers(d=0.1)),
        ("divided by 1 - beta1^t it is 4", numbers(d=0.04)),
        ("RAdam does not wait", numbers(d=0.0)),
        ("the root is missing", numbers(e=R_6**2)),
        ("have changed places", numbers(e=1 / R_6)),
        ("rho_6 is 5.39", numbers(e=0.0)),
        ("which is 4", numbers(f=0.4 * R_6)),
        ("the factor r_6 is missing", numbers(f=0.1)),
        ("this step is adaptive", numbers(f=0.4)),
        ("not negative", numbers(f=-0.1 * R_6)),
        ("three digits are wanted", numbers(a=7.0)),
        ("three digits are wanted", (0, 0, 0, 0, 0, 0)),
        ("expected 6 numbers", (0.1, 19.0)),
    ],
    "warmup_stable_decay": [
        ("step 0 has the factor 0", lambda s, w, n, d: max(0.0, min(s / w, 1.0, (n - s) / d))),
        ("there is no fall", lambda s, w, n, d: min((s + 1) / w, 1.0)),
        ("there is no rise", lambda s, w, n, d: max(0.0, min(1.0, (n - s) / d))),
        ("it falls from the end of the warm-up on", lambda s, w, n, d: max(0.0, min((s + 1) / w, (n - s) / (n - w)))),
        ("negative", lambda s, w, n, d: min((s + 1) / w, 1.0, (n - s) / d)),
        ("one step early", lambda s, w, n, d: max(0.0, min((s + 1) / w, 1.0, (n - 1 - s) / d))),
        ("a step, not a line", lambda s, w, n, d: min((s + 1) / w, 1.0) if s < n - d else 0.0),
        ("1 at every step", lambda s, w, n, d: 1.0),
        ("the rise must end", lambda s, w, n, d: (s + 1) / w),
        ("written into the code", lambda s, w, n, d: max(0.0, min((s + 1) / 4, 1.0, (20 - s) / 8))),
        ("the factor of step 0 is 0.25, yours is 1", lambda s, w, n, d: math.cos(s / n)),
        ("step 0 has the factor 0", lambda s, w, n, d: 0.0),
        ("the factor of step 0 is a str", lambda s, w, n, d: "1"),
    ],
    "pre_ln_block": [
        ("the block returns x", block("x")),
        ("as it stands above", block("printed")),
        ("norm1 stands in place of the residual", block("first")),
        ("norm2 belongs before it", block("after")),
        ("that is Post-LN: the norms", block("post")),
        ("norm1 is used twice", block("twice")),
        ("both norms stand in place", block("both")),
        ("must read what the attention has added to", block("reads x")),
        ("residual of the feed-forward network is missing", block("no second")),
        ("residual of the attention is missing", block("no first")),
        ("adds x again", block("adds x")),
        ("there are no norms", block("none")),
        ("is there a norm, or something else", block("last")),
        ("check what each of them reads", block("swapped")),
        ("is there a norm, or something else", block("zeros")),
        ("is a return missing", lambda x, *rest: None),
    ],
    "decaying_names": [
        ("everything decays", names(lambda name, p: True)),
        ("nothing decays", lambda model: set()),
        ("the embedding tables are in it", names(lambda name, p: p.ndim >= 2)),
        ("the norms' gains are in it", names(lambda name, p: name.endswith("weight") and "places" not in name)),
        ("alpha, a single number", names(lambda name, p: p.ndim != 1 and p.shape[:1] not in ((9,), (4,)))),
        ("compare the tensors, not their names", names(lambda name, p: p.ndim >= 2 and "places" not in name)),
        ("belongs to no nn.Linear", in_linear),
        ("Ask each module what it is", names(lambda name, p: name.startswith("layer") and p.ndim >= 2)),
        ("strings", lambda model: {1, 2}),
        ("there is no parameter 'weight'", lambda model: {"weight"}),
        ("the answer is a Tied", lambda model: type("Tied", (), {})()),
        ("is a return missing", lambda model: None),
    ],
    "train_steps": [
        ("the gradients of the step before are still", loop(zero=False)),
        ("that of all parameters together", loop(clipped=one_by_one)),
        ("neither the gradients nor the count", loop(zero=False, recount=False)),
        ("goes on with every micro-batch", loop(schedule="micro")),
        ("never stepped", loop(schedule="never")),
        ("before the optimizer", loop(schedule="before")),
        ("each micro-batch is clipped", loop(clip="micro")),
        ("clipped before it is divided", loop(clip="early")),
        ("nothing is clipped", loop(clip="never")),
        ("nothing is divided", loop(divide="nothing", clip="step")),
        ("divided by its own count", loop(divide="own")),
        ("means of micro-batches are averaged", loop(divide="own and number")),
        ("by the number of micro-batches", loop(divide="number")),
        ("as it stands above", loop(divide="own", clip="micro", schedule="micro", zero=False)),
        ("have not moved", loop(step=False)),
        ("have not moved", lambda *arguments: None),
        ("yours made 6", loop(schedule="micro", clip="early")),
        ("the schedule is right, the weights are not", loop(divide="nothing", clip="never", zero=False)),
    ],
}
MISTAKES = [(name, part, wrong) for name, found in PLANTED.items() for part, wrong in found]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_reference_passes(name):
    assert verdict(getattr(ch11, name), solution("11", name)) == f"passed: {name}"


def test_the_reference_value_passes():
    assert verdict(ch11.radam_by_hand, solution("11", "by_hand")) == "passed: radam_by_hand"


@pytest.mark.parametrize(("name", "part", "wrong"), MISTAKES, ids=[f"{n}-{p[:25]}" for n, p, _ in MISTAKES])
def test_a_usual_mistake_gets_its_own_message(name, part, wrong):
    found = verdict(getattr(ch11, name), wrong)
    assert found.startswith("not yet: ")
    assert part in found
    others = {other for other, _ in PLANTED[name] if other not in part and part not in other}
    assert not [other for other in others if other in found]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_not_an_attempt(name):
    assert verdict(getattr(ch11, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", NAMES)
def test_three_hints(name, capsys):
    for number in (1, 2, 3):
        getattr(ch11, name).hint(number)
    assert len(set(capsys.readouterr().out.splitlines())) == 3


def test_other_right_answers_pass():
    """Fails if a loop that divides the gradients, a list of names or factors as float32 tensors are rejected."""
    assert verdict(ch11.train_steps, loop()) == "passed: train_steps"
    assert verdict(ch11.train_steps, loop(clipped=shortened)) == "passed: train_steps"
    listed = solution("11", "decaying_names")
    assert verdict(ch11.decaying_names, lambda model: sorted(listed(model))) == "passed: decaying_names"
    factor = solution("11", "warmup_stable_decay")
    in_float32 = verdict(ch11.warmup_stable_decay, lambda *sizes: torch.tensor(factor(*sizes)))
    assert in_float32 == "passed: warmup_stable_decay"


def test_torchs_own_backward_passes():
    """Fails if the check's formula differs from autograd's: float64, a whole batch."""

    def by_autograd(x, gradient, eps=1e-5):
        x = x.detach().requires_grad_()
        return torch.autograd.grad(nn.functional.layer_norm(x, x.shape[-1:], eps=eps), x, gradient)[0]

    assert verdict(ch11.layer_norm_backward, by_autograd) == "passed: layer_norm_backward"
