"""The checks of chapter 11: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.autograd import forward_ad

from classroom import hidden
from course_lib.exercises import Wrong, ch11
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("layer_norm_backward", "warmup_stable_decay", "pre_ln_block", "decaying_names", "train_steps")
NAMES = (*FUNCTIONS, "radam_by_hand")
R_6 = 0.2551654


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def backward(mean=1, along=1, size=1, unbiased=False, axis=-1, outside=False, variance=False, sign=1, plain=False):
    def layer_norm_backward(x, gradient, eps=1e-5):
        centred = x - x.mean(axis, keepdim=True)
        spread = centred.square().sum(axis, keepdim=True) / (x.shape[axis] - unbiased)
        sigma = spread.sqrt() + eps if outside else (spread + eps).sqrt()
        sigma = sigma**2 if variance else sigma
        hat = centred if plain else centred / sigma
        out = gradient - mean * gradient.mean(axis, keepdim=True)
        out = out - along * hat * (gradient * hat).mean(axis, keepdim=True)
        return sign * out / sigma**size

    return layer_norm_backward


def normalised(x, eps=1e-5):
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()


def by_grad(x, gradient, eps=1e-5):
    x = x.detach().requires_grad_()
    return torch.autograd.grad(nn.functional.layer_norm(x, x.shape[-1:], eps=eps), x, gradient)[0]


def by_backward(x, gradient, eps=1e-5):
    x = x.detach().requires_grad_()
    normalised(x, eps).backward(gradient)
    return x.grad


def by_vjp(x, gradient, eps=1e-5):
    return torch.func.vjp(lambda x: normalised(x, eps), x)[1](gradient)[0]


def by_dual_numbers(x, gradient, eps=1e-5):
    """Forward mode; right, since J is symmetric."""
    with forward_ad.dual_level(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch's own, when it loads what it needs
        return forward_ad.unpack_dual(normalised(forward_ad.make_dual(x, gradient), eps)).tangent


def by_torchs_own(x, gradient, eps=1e-5):
    mean, spread = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True) + eps
    made = torch.ops.aten.native_layer_norm_backward(
        gradient, x, x.shape[-1:], mean, spread.rsqrt(), None, None, [True, False, False]
    )
    return made[0]


def by_matrices(x, gradient, eps=1e-5):
    hat, D = normalised(x, eps), x.shape[-1]
    sigma = (x.var(-1, correction=0) + eps).sqrt()[..., None, None]
    jacobian = (torch.eye(D) - 1 / D - hat[..., :, None] * hat[..., None, :] / D) / sigma
    return (jacobian @ gradient[..., None])[..., 0]


def by_numpy_matrices(x, gradient, eps=1e-5):
    """One matrix at a time."""
    out, D = np.zeros(x.shape), x.shape[-1]
    for place in np.ndindex(*x.shape[:-1]):
        hat = normalised(x[place], eps).numpy()
        sigma = math.sqrt(x[place].var(correction=0) + eps)
        out[place] = (np.eye(D) - 1 / D - np.outer(hat, hat) / D) / sigma @ gradient[place].numpy()
    return out


def numbers(**changed):
    right = {"a": 0.1, "b": 19.0, "c": 1.0, "d": 0.4, "e": R_6, "f": 0.1 * R_6}
    return tuple({**right, **changed}.values())


def block(kind):
    def pre_ln_block(x, attend, feed_forward, norm1, norm2):
        n = norm1(x)
        y, z, post, w = x + attend(n), n + attend(n), norm1(x + attend(x)), x + norm1(attend(x))
        return {
            "x": lambda: x,
            "zeros": lambda: torch.zeros_like(x),
            "printed": lambda: w + feed_forward(norm1(w)),
            "first after": lambda: w + feed_forward(norm2(w)),
            "both after": lambda: w + norm2(feed_forward(w)),
            "replaced and after": lambda: z + norm2(feed_forward(z)),
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
            "last, norm1": lambda: norm1(y + feed_forward(norm2(y))),
            "norm1 at the start": lambda: n + 2 * attend(n) + feed_forward(norm2(n)),
            "norm2 in the middle": lambda: norm2(y) + attend(norm2(y)) * 0 + feed_forward(y),
            "network reads the sum": lambda: y + feed_forward(y),
            "half": lambda: y + 0.5 * feed_forward(norm2(y)),
            "swapped": lambda: x + attend(norm2(x)) + feed_forward(norm1(x + attend(norm2(x)))),
        }[kind]()

    return pre_ln_block


def attention_reads_x(x, attend, feed_forward, norm1, norm2):
    y = x + attend(x)
    return y + feed_forward(norm2(y))


def names(rule):
    return lambda model: {name for name, p in model.named_parameters() if rule(name, p)}


def by_name_of_the_table(model):
    """Asks for the tensor, as it should, but finds it by its name."""
    tables = {id(p) for name, p in model.named_parameters(remove_duplicate=False) if "embed" in name}
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and id(p) not in tables}


def in_a_list_of_tables(model):
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and p not in tables}


def equal_to_a_table(model):
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    return {name for name, p in model.named_parameters() if p.ndim >= 2 and not any(p == table for table in tables)}


def in_every_linear(model):
    return {f"{name}.weight" for name, m in model.named_modules() if type(m) is nn.Linear}


def in_linear(model):
    return {f"{name}.weight" for name, m in model.named_modules() if type(m) is nn.Linear and name != "output"}


def loop(
    divide="total",
    clip="step",
    schedule="after",
    zero=True,
    recount=True,
    step=True,
    first=0,
    clipped=torch.nn.utils.clip_grad_norm_,
):
    """The loop with one part changed; written apart from the check's own."""

    def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
        weights, count = list(model.parameters()), 0
        starts = True
        for i, batch in enumerate(micro_batches, first):
            if zero == "each" or (zero is True and starts):
                optimizer.zero_grad()
            if recount and starts:
                count = 0
            loss, n = loss_fn(model, batch)
            count += n
            factor = (
                divide
                if divide == 7
                else {"own": n, "running": count, "own and number": n * accumulate, "number": accumulate}.get(divide, 1)
            )
            (loss / factor).backward()
            if clip == "micro":
                clipped(weights, max_norm)
            if schedule == "micro":
                scheduler.step()
            starts = (i + 1) % accumulate == 0
            if starts:
                if clip == "early":
                    clipped(weights, max_norm)
                for weight in weights:
                    weight.grad /= count if divide == "total" else 1
                if clip == "step":
                    clipped(weights, max_norm)
                if clip == "halved":
                    clipped(weights, max_norm / 2)
                if clip == "times n, early":
                    for weight in weights:
                        weight.grad *= count
                    clipped(weights, max_norm * count)
                    for weight in weights:
                        weight.grad /= count
                if schedule == "before":
                    scheduler.step()
                if step:
                    optimizer.step()
                if clip == "late":
                    clipped(weights, max_norm)
                if schedule == "after":
                    scheduler.step()
                if zero == "end":
                    optimizer.zero_grad()

    return train_steps


def one_by_one(weights, max_norm):
    for weight in weights:
        torch.nn.utils.clip_grad_norm_(weight, max_norm)


def only_the_weight_divided(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    for first in range(0, len(micro_batches), accumulate):
        optimizer.zero_grad()
        total = 0
        for batch in micro_batches[first : first + accumulate]:
            loss, count = loss_fn(model, batch)
            loss.backward()
            total += count
        model.weight.grad /= total
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()


def shortened(weights, max_norm):
    """Clipping without torch's 1e-6 in the divisor."""
    norm = torch.cat([weight.grad.flatten() for weight in weights]).norm()
    for weight in weights:
        weight.grad *= min(1.0, max_norm / norm)


def backward_once_a_step(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    """Right weights, but all graphs of a step are kept."""
    for first in range(0, len(micro_batches), accumulate):
        losses, counts = zip(*(loss_fn(model, b) for b in micro_batches[first : first + accumulate]), strict=True)
        optimizer.zero_grad()
        (sum(losses) / sum(counts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()


def backward_at_the_end(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    """The same with a backward pass for each loss, but only when all are there."""
    for first in range(0, len(micro_batches), accumulate):
        losses, counts = zip(*(loss_fn(model, b) for b in micro_batches[first : first + accumulate]), strict=True)
        optimizer.zero_grad()
        for loss in losses:
            (loss / sum(counts)).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
        optimizer.step()
        scheduler.step()


def counted_first(grad=True):
    """Right weights: the counts in a first pass, then each micro-batch divided by their sum in a second."""

    def train_steps(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
        for first in range(0, len(micro_batches), accumulate):
            here, total = micro_batches[first : first + accumulate], 0
            with torch.set_grad_enabled(grad):
                for batch in here:
                    loss, count = loss_fn(model, batch)
                    total += count
            optimizer.zero_grad()
            for batch in here:
                loss, _ = loss_fn(model, batch)
                (loss / total).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
            optimizer.step()
            scheduler.step()

    return train_steps


def by_autograds_function(model, micro_batches, loss_fn, optimizer, scheduler, accumulate, max_norm):
    """Right: torch.autograd.grad in place of backward()."""
    weights = list(model.parameters())
    for first in range(0, len(micro_batches), accumulate):
        sums, total = [0] * len(weights), 0
        for batch in micro_batches[first : first + accumulate]:
            loss, count = loss_fn(model, batch)
            sums = [a + b for a, b in zip(sums, torch.autograd.grad(loss, weights), strict=True)]
            total += count
        for weight, gradient in zip(weights, sums, strict=True):
            weight.grad = gradient / total
        torch.nn.utils.clip_grad_norm_(weights, max_norm)
        optimizer.step()
        scheduler.step()


PLANTED = {
    "layer_norm_backward": [
        ("comes back as it went in", lambda x, gradient, eps=1e-5: gradient),
        ("must be taken out of it first", backward(mean=0, along=0)),
        ("the mean of the gradient is still in it", backward(mean=0)),
        ("the part along the normalised x", backward(along=0)),
        ("the division by sigma is missing", backward(size=0)),
        ("LayerNorm divides by D", backward(unbiased=True)),
        ("over the batch (axis 0)", backward(axis=0)),
        ("its backward pass is asked for", lambda x, gradient, eps=1e-5: nn.functional.layer_norm(x, (6,))),
        ("written into the code, or left out", lambda x, gradient, eps=1e-5: backward()(x, gradient)),
        ("nearly right: is eps added to the root, or", lambda x, gradient, eps=1e-5: backward()(x, gradient, 0)),
        ("nearly right", backward(outside=True)),
        ("LayerNorm divides by D", lambda x, gradient, eps=0: backward(unbiased=True)(x, gradient, 0)),
        ("sum to 0", lambda x, gradient, eps=1e-5: 2 * gradient),
        ("at right angles to the normalised x", lambda x, gradient, eps=1e-5: x - x.mean(-1, keepdim=True)),
        ("both directions are taken out", lambda x, gradient, eps=1e-5: 2 * backward()(x, gradient)),
        ("both directions are taken out", lambda x, gradient, eps=1e-5: torch.zeros_like(x)),
        ("the sign of the whole", backward(sign=-1)),
        ("both projections are added", backward(mean=-1, along=-1)),
        ("the mean of the gradient is added", backward(mean=-1)),
        ("what points along the normalised x is added", backward(along=-1)),
        ("it needs the normalised x", backward(plain=True)),
        ("it should be divided by sigma, its root", backward(size=2)),
        ("divide by sigma, do not multiply", backward(size=-1)),
        ("the root is missing", backward(variance=True)),
        ("in place of the two means", backward(mean=6, along=6)),
        ("as in the first projection", backward(along=6)),
        ("torch differentiates for you", by_grad),
        ("torch differentiates for you", by_backward),
        ("torch differentiates for you", by_vjp),
        ("torch differentiates for you", by_dual_numbers),
        ("ready-made backward pass", by_torchs_own),
        ("a D x D matrix", by_matrices),
        ("a D x D matrix", by_numpy_matrices),
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
        ("into the step of section 3", numbers(a=7.0)),
        ("into the step of section 3", (0, 0, 0, 0, 0, 0)),
        ("into step 1 of RAdam", numbers(b=7.0)),
        ("put t = 1 into rho_t", numbers(c=7.0)),
        ("is rho_1 above 5?", numbers(d=7.0)),
        ("with the variances of step 2", numbers(e=7.0)),
        ("Adam's step times r_6", numbers(f=7.0)),
        ("close, but not right to three digits", numbers(e=0.26)),
        ("expected 6 numbers", (0.1, 19.0)),
    ],
    "warmup_stable_decay": [
        ("step 0 has the factor 0", lambda s, w, n, d: max(0.0, min(s / w, 1.0, (n - s) / d))),
        ("there is no fall", lambda s, w, n, d: min((s + 1) / w, 1.0)),
        ("there is no rise", lambda s, w, n, d: max(0.0, min(1.0, (n - s) / d))),
        ("it falls from the end of the warm-up on", lambda s, w, n, d: max(0.0, min((s + 1) / w, (n - s) / (n - w)))),
        ("negative", lambda s, w, n, d: min((s + 1) / w, 1.0, (n - s) / d)),
        ("one step early", lambda s, w, n, d: max(0.0, min((s + 1) / w, 1.0, (n - 1 - s) / d))),
        ("the fall starts one step early", lambda s, w, n, d: max(0.0, min((s + 1) / w, 1.0, (n - s) / (d + 1)))),
        ("// cuts off", lambda s, w, n, d: max(0, min((s + 1) // w, 1, (n - s) // d))),
        ("// cuts off", lambda s, w, n, d: max(0, min((s + 1) // w, 1, (n - s) / d))),
        ("// cuts off", lambda s, w, n, d: max(0, min((s + 1) / w, 1, (n - s) // d))),
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
        ("norm1 belongs before it", block("first after")),
        ("both norms stand after", block("both after")),
        ("replaced by norm1 of x", block("replaced and after")),
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
        ("norm2 also stands on the stream", block("last")),
        ("norm1 also stands on the stream", block("last, norm1")),
        ("have changed places", block("swapped")),
        ("the result is 0 everywhere", block("zeros")),
        ("yours returns norm1 of x", block("norm1 at the start")),
        ("yours returns norm2 of x", block("norm2 in the middle")),
        ("attention does not read the norm", attention_reads_x),
        ("network does not read the norm", block("network reads the sum")),
        ("what is added to the stream is not their outputs", block("half")),
        ("the feed-forward network is never called", lambda x, attend, forward, norm1, norm2: x + attend(norm1(x))),
        ("is a return missing", lambda x, *rest: None),
    ],
    "decaying_names": [
        ("everything decays", names(lambda name, p: True)),
        ("nothing decays", lambda model: set()),
        ("the embedding tables are in it", names(lambda name, p: p.ndim >= 2)),
        ("the norms' gains are in it", names(lambda name, p: name.endswith("weight") and "places" not in name)),
        ("alpha, a single number", names(lambda name, p: p.ndim != 1 and p.shape[:1] not in ((9,), (4,)))),
        ("compare the tensors, not their names", names(lambda name, p: p.ndim >= 2 and "places" not in name)),
        ("need not be called embedding", names(lambda name, p: p.ndim >= 2 and "embed" not in name)),
        ("need not be called embedding", by_name_of_the_table),
        ("use `is`", in_a_list_of_tables),
        ("use `is`", equal_to_a_table),
        ("belongs to no nn.Linear", in_linear),
        ("And output.weight is in it", in_every_linear),
        ("Ask each module what it is", names(lambda name, p: name.startswith("layer") and p.ndim >= 2)),
        ("strings", lambda model: {1, 2}),
        ("there is no parameter 'weight'", lambda model: {"weight"}),
        ("the answer is a Tied", lambda model: type("Tied", (), {})()),
        ("is a return missing", lambda model: None),
    ],
    "train_steps": [
        ("the gradients of the step before are still", loop(zero=False)),
        ("by its own length alone", loop(clipped=one_by_one)),
        ("is every parameter's gradient divided", only_the_weight_divided),
        ("neither the gradients nor the count", loop(zero=False, recount=False)),
        ("not emptied: the sum is divided by a running total", loop(recount=False)),
        ("which is complete only at the last one", loop(divide="running")),
        ("one backward() serves several", backward_once_a_step),
        ("are kept until its end", backward_at_the_end),
        ("goes through the model more than once", counted_first()),
        ("goes through the model more than once", counted_first(grad=False)),
        ("goes on with every micro-batch", loop(schedule="micro")),
        ("never stepped", loop(schedule="never")),
        ("before the optimizer", loop(schedule="before")),
        ("each micro-batch is clipped", loop(clip="micro")),
        ("clipped before it is divided", loop(clip="early")),
        ("is not clipped: clip between", loop(clip="never")),
        ("clipped after optimizer.step()", loop(clip="late")),
        ("clip_grad_value_", loop(clipped=torch.nn.utils.clip_grad_value_)),
        ("emptied in every micro-batch", loop(zero="each")),
        ("emptied in every micro-batch", loop(zero="each", divide="own")),
        ("emptied in every micro-batch", loop(zero="each", divide="number")),
        ("emptied in every micro-batch", loop(zero="each", divide="nothing")),
        ("needs a count from 1", loop(first=-1)),
        ("needs a count from 1", loop(first=-1, divide="own")),
        ("needs a count from 1", loop(first=-1, divide="number")),
        ("wrong where none is", loop(divide=7)),
        ("right where no step is clipped", loop(clip="halved")),
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
    assert verdict(ch11.train_steps, loop(zero="end")) == "passed: train_steps"  # the model comes without gradients
    assert verdict(ch11.train_steps, by_autograds_function) == "passed: train_steps"
    listed = solution("11", "decaying_names")
    assert verdict(ch11.decaying_names, lambda model: sorted(listed(model))) == "passed: decaying_names"
    factor = solution("11", "warmup_stable_decay")
    in_float32 = verdict(ch11.warmup_stable_decay, lambda *sizes: torch.tensor(factor(*sizes)))
    assert in_float32 == "passed: warmup_stable_decay"


def test_a_clipped_sum_divided_afterwards_passes():
    """Fails if clipping the sum at max_norm times the count, which is the same, is refused."""
    assert verdict(ch11.train_steps, loop(clip="times n, early")) == "passed: train_steps"


@pytest.mark.parametrize(
    "by", [by_grad, by_backward, by_vjp, by_dual_numbers, by_torchs_own, by_matrices, by_numpy_matrices]
)
def test_what_is_forbidden_has_the_right_numbers(by):
    """Fails if the check's formula differs from autograd's, or a forbidden answer is refused for its numbers."""
    x = 3 * torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradient = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    wanted = ch11._backward(x, gradient)
    assert torch.allclose(torch.as_tensor(by(x, gradient)), wanted, rtol=0, atol=1e-6)
    assert verdict(ch11.layer_norm_backward, by).startswith("not yet: the numbers are right, but")


def test_vectors_one_by_one_pass():
    """Fails if an answer in NumPy, a vector at a time, is taken for one with a matrix."""

    def one_by_one(x, gradient, eps=1e-5):
        out = np.empty(x.shape)
        for place in np.ndindex(*x.shape[:-1]):
            v, g = x[place].numpy(), gradient[place].numpy()
            sigma = np.sqrt(v.var() + eps)
            hat = (v - v.mean()) / sigma
            out[place] = (g - g.mean() - hat * np.mean(g * hat)) / sigma
        return out

    assert verdict(ch11.layer_norm_backward, one_by_one) == "passed: layer_norm_backward"


@pytest.mark.parametrize(
    ("answer", "right"),
    [(backward_once_a_step, False), (backward_at_the_end, False), (loop(divide="running"), False), (loop(), True),
     (loop(zero="end"), True), (counted_first(), False), (counted_first(grad=False), False),
     (by_autograds_function, True)],
)  # fmt: skip
def test_the_hidden_test_wants_one_pass_each_way_for_each_micro_batch(answer, right):
    """Fails if right weights are enough, or an answer that keeps no graph and computes nothing twice is refused."""
    if right:
        hidden.hidden_test("ex11-7-train-steps-check", answer)
        return
    with pytest.raises(Wrong):
        hidden.hidden_test("ex11-7-train-steps-check", answer)


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch11.explain_the_grid.hint(number)
    ch11.explain_the_grid.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch11.explain_the_grid.compare("word " * 20)
    assert "ReZero" in capsys.readouterr().out
