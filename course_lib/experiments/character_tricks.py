"""Training tricks on Shakespeare's characters (chapter 11): label smoothing, bfloat16, a deep Post-LN's first steps.

The data are those of `shakespeare_gpt`: the first 90 % of the text are for training, the last 10 % for validation.
Rates were chosen on another cut of the training text and on seed 100, which is not recorded.
"""

import functools
import itertools

import torch
import torch.nn.functional as F

from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_gpt import make_gpt, our_learner, shakespeare
from course_lib.experiments.training_tricks import OPTIMIZERS, make_model
from course_lib.optim import constant_schedule
from course_lib.text import random_windows


def smoothed_loss(model, x, y, smoothing=0.0):
    r"""Mean cross-entropy against a target that gives each wrong character $\epsilon / V$, in nats.

    Args:
        smoothing: $\epsilon$; the right character keeps $1 - \epsilon + \epsilon / V$.
    """
    return F.cross_entropy(model(x).flatten(0, 1), y.flatten(), label_smoothing=smoothing)


@torch.no_grad()
def judged(model, ids, block, batch_size=64):
    """How good and how confident a model is on a whole text, in windows that do not overlap, in float32.

    Args:
        ids: (n,) int64; what is left over at its end is not read.

    Returns:
        dict: "valid_loss" in nats, without smoothing; "accuracy" of the likeliest character; "confidence", its mean
        probability; "overconfidence", confidence less accuracy.
    """
    model.eval()
    n = (len(ids) - 1) // block
    loss, right, confidence = 0.0, 0, 0.0
    x, y = (ids[shift : shift + n * block].view(n, block).split(batch_size) for shift in (0, 1))
    for inputs, targets in zip(x, y, strict=True):
        logits = model(inputs).flatten(0, 1)
        loss += F.cross_entropy(logits, targets.flatten(), reduction="sum").item()
        best = logits.softmax(-1).max(-1)
        right += (best.indices == targets.flatten()).sum().item()
        confidence += best.values.sum().item()
    found = {"valid_loss": loss, "accuracy": right, "confidence": confidence}
    found = {name: value / (n * block) for name, value in found.items()}
    return found | {"overconfidence": found["confidence"] - found["accuracy"]}


@experiment("smoothing-bf16", "A small GPT on Shakespeare with and without label smoothing, in float32 and bfloat16.")
def smoothing_bf16(
    seed,
    smoothings=(0.0, 0.1),
    precisions=("float32", "bfloat16"),
    layers=4,
    heads=4,
    width=128,
    block=64,
    batch_size=12,
    steps=400,
    learning_rate=2.5e-3,
    warmup=50,
    chunk=50,
    choose=False,
):
    """The four models of a seed start alike, read the same windows, and train in turn, `chunk` steps each.

    Rows such as "bfloat16, smoothing 0.1", with the columns of `judged` and "seconds_per_step" (time of the process,
    one thread). The rate is that of `shakespeare_gpt`, where it was chosen for float32 without smoothing. bfloat16 is
    autocast: weights, gradients and Adam's averages stay in float32. Its time depends on the processor: with matrix
    units for bfloat16 it may be short, without them long.
    """
    train, valid, chars = shakespeare(choose)
    learners = {}
    for precision, smoothing in itertools.product(precisions, smoothings):
        torch.manual_seed(seed)
        model = make_gpt(len(chars), block, layers, heads, width)
        learner = our_learner(model, steps, learning_rate, seed, warmup=warmup, bf16=precision == "bfloat16")
        learner._loss = functools.partial(smoothed_loss, smoothing=smoothing)
        learners[f"{precision}, smoothing {smoothing:g}"] = learner
    for start in range(0, steps, chunk):
        for learner in learners.values():
            learner.advance(train, block, batch_size, min(chunk, steps - start))
    results = {
        row: judged(learner.model, valid, block) | {"seconds_per_step": sum(learner.seconds) / steps}
        for row, learner in learners.items()
    }
    return {"results": results}


# --- a deep Post-LN's first steps ---------------------------------------------------


def first_steps(residual, warmup, optimizer, seed, ids, valid, vocab, *, steps, learning_rate, layers, width, **sizes):
    """Train one model, with a linear warm-up and then a constant rate, and watch the size of its updates.

    Args:
        warmup: steps, 0 for none.
        sizes: block, batch_size and every, the steps of one entry.

    Returns:
        row: dict, "loss", mean of the last 50 training batches; "valid_loss"; "step_shrinks", the mean size of the
            last entry's steps relative to the first one's, both divided by the learning rate.
        history: list of dicts, means over `every` steps each: "step", the last of them; "loss"; "gradient", its
            2-norm; "update", the change's 2-norm relative to that of the weights; "step_size", the mean absolute
            change of a weight, divided by the learning rate of that step. All of the matrices in the layers.
    """
    block, batch_size, every = sizes["block"], sizes["batch_size"], sizes["every"]
    model = make_model(residual, layers, vocab, seed, width)
    matrices = [p for p in model.encoder.parameters() if p.ndim >= 2]
    rule = OPTIMIZERS[optimizer](model.parameters(), lr=learning_rate)
    generator, history, losses = torch.Generator().manual_seed(seed), [], []
    sums = dict.fromkeys(("loss", "gradient", "update", "step_size"), 0.0)
    for step in range(steps):
        rate = learning_rate * constant_schedule(step, warmup)
        rule.param_groups[0]["lr"] = rate
        loss = smoothed_loss(model, *random_windows(ids, batch_size, block, generator))
        rule.zero_grad()
        loss.backward()
        before = torch.cat([p.detach().flatten() for p in matrices])
        gradient = torch.cat([p.grad.flatten() for p in matrices]).norm().item()
        rule.step()
        change = torch.cat([p.detach().flatten() for p in matrices]) - before
        losses.append(loss.item())
        found = {
            "loss": losses[-1],
            "gradient": gradient,
            "update": (change.norm() / before.norm()).item(),
            "step_size": change.abs().mean().item() / rate,
        }
        sums = {name: sums[name] + found[name] for name in sums}
        if (step + 1) % every == 0:
            history.append({"step": step + 1} | {name: float(f"{sums[name] / every:.4g}") for name in sums})
            sums = dict.fromkeys(sums, 0.0)
    last = losses[-50:]
    return {
        "loss": sum(last) / len(last),
        "valid_loss": judged(model, valid, block)["valid_loss"],
        "step_shrinks": history[-1]["step_size"] / history[0]["step_size"],
    }, history


STARTS = {
    "Post-LN, Adam": ("post-ln", 0, "Adam"),
    "Post-LN, Adam, warm-up": ("post-ln", 100, "Adam"),
    "Post-LN, RAdam": ("post-ln", 0, "RAdam"),
    "Pre-LN, Adam": ("pre-ln", 0, "Adam"),
}


@experiment(
    "deep-start", "A deep Post-LN character model: Adam, Adam with a warm-up, RAdam; the size of their updates."
)
def deep_start(
    seed,
    rows=tuple(STARTS),
    layers=12,
    width=64,
    block=32,
    batch_size=12,
    steps=300,
    learning_rate=2e-3,
    every=10,
    choose=False,
):
    """The columns are those of `first_steps`; "Pre-LN, Adam" is the control.

    All rows of a seed read the same windows, and the matrices of all start alike. The rate was chosen on seed 100 and
    another cut of the training text, as one at which Post-LN fails without a warm-up: after 200 steps of Adam (windows
    of 64) the loss was 2.53 at 1e-3 and 3.27 at 2e-3, with a warm-up of 100 steps 2.52 and 2.46.
    """
    train, valid, chars = shakespeare(choose)
    results, history = {}, {}
    sizes = {"layers": layers, "width": width, "block": block, "batch_size": batch_size, "every": every}
    sizes |= {"steps": steps, "learning_rate": learning_rate}
    for row in rows:
        residual, warmup, optimizer = STARTS[row]
        results[row], history[row] = first_steps(
            residual, min(warmup, steps), optimizer, seed, train, valid[: 400 * block + 1], len(chars), **sizes
        )
    return {"results": results, "history": history}
