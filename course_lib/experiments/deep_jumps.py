"""When a high learning rate breaks a deep Post-LN model: at once, after several steps, or after a jump (chapter 11).

The model and the training are those of chapter 11's first screen: 12 layers that should write 8 letters backwards.
`plan` is the learning rate of each step, `train` trains with it, and `deep_jumps` repeats it for every plan.
`deep_controls` trains Pre-LN at a high and a low rate, and Post-LN with an Adam that forgets what it has seen.
"""

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.experiments import experiment
from course_lib.positional import Sinusoidal
from course_lib.transformer import EncoderLayer
from course_lib.transformer_models import TokenEmbedding

LETTERS, LENGTH, WIDTH = 16, 8, 32


def plan(kind, count, steps, high, low):
    """The learning rate of each step.

    Args:
        kind: "high first": `count` steps at `high`, then `low`; "low first": `count` at `low`, then `high`;
            "rise": a straight line up to `high`, which step number `count` is the first to have.

    >>> plan("high first", 1, 3, 0.01, 0.001)
    [0.01, 0.001, 0.001]
    >>> plan("low first", 1, 3, 0.01, 0.001)
    [0.001, 0.01, 0.01]
    >>> plan("rise", 2, 3, 0.01, 0.001)
    [0.005, 0.01, 0.01]
    """
    if kind == "rise":
        return [high * min(1.0, (step + 1) / count) for step in range(steps)]
    first, then = {"high first": (high, low), "low first": (low, high)}[kind]
    return [first if step < count else then for step in range(steps)]


def examples(draws, size=32):
    """Random words and the same backwards, (size, 8) int64 each."""
    words = torch.randint(LETTERS, (size, LENGTH), generator=draws)
    return words, words.flip(1)


def make_model(seed, layers=12, residual="post-ln"):
    """The untrained model: embedding, blocks, output layer; Pre-LN has a last norm before the output layer."""
    torch.manual_seed(seed)
    embedding = TokenEmbedding(LETTERS, WIDTH, Sinusoidal(WIDTH))
    blocks = nn.Sequential(*(EncoderLayer(WIDTH, 4, 4 * WIDTH, 0.0, residual=residual) for _ in range(layers)))
    output = nn.Linear(WIDTH, LETTERS)
    if residual == "pre-ln":
        output = nn.Sequential(nn.LayerNorm(WIDTH), output)
    return nn.Sequential(embedding, blocks, output)


def train(rates, seed, layers=12, every=10, residual="post-ln", fresh=None):
    """Train with Adam, one rate to a step.

    Args:
        rates: list of learning rates, one to a step; their number is a multiple of `every`.
        residual: where the norms stand, as `EncoderLayer` takes it.
        fresh: number of steps after which a new Adam, whose averages are empty, takes over; None keeps the first.

    Returns:
        row: dict, "loss" (mean of the last 20 steps, in nats a letter) and, on words that are not trained on, "alike"
            (squared length of the mean output over the mean squared length) and "gradient" (length of the first layer's
            gradient, of `feed_forward[2]` in the chapter, after the training over before it).
        history: list of dicts, "step" (`every`, 2 `every`, ...) and "loss", the mean of the `every` steps up to it.
    """
    model = make_model(seed, layers, residual)
    draws, fixed = torch.Generator().manual_seed(seed), examples(torch.Generator().manual_seed(99))
    optimizer = torch.optim.Adam(model.parameters(), lr=rates[0], fused=True)
    losses, before = [], first_gradient(model, fixed)
    for step, rate in enumerate(rates):
        if step == fresh:
            optimizer = torch.optim.Adam(model.parameters(), lr=rate, fused=True)
        optimizer.param_groups[0]["lr"] = rate
        loss = loss_on(model, examples(draws))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    with torch.no_grad():
        outputs = model[:2](fixed[0])  # (B, T, D)
    common = outputs.mean((0, 1)).square().sum() / outputs.square().sum(-1).mean()
    last = losses[-20:]
    row = {
        "loss": sum(last) / len(last),
        "alike": common.item(),
        "gradient": first_gradient(model, fixed) / before,
    }
    ends = range(every, len(rates) + 1, every)
    return row, [{"step": end, "loss": round(sum(losses[end - every : end]) / every, 4)} for end in ends]


def loss_on(model, batch):
    """Cross-entropy in nats a letter."""
    words, backwards = batch
    return F.cross_entropy(model(words).flatten(0, 1), backwards.flatten())


def first_gradient(model, batch):
    """Length of the gradient of the first layer's last matrix."""
    model.zero_grad()
    loss_on(model, batch).backward()
    length = model[1][0].linear2.weight.grad.norm().item()
    model.zero_grad()
    return length


@experiment(
    "deep-jumps", "Deep Post-LN at a high rate: for its first steps only, from a later step on, or after a rise."
)
def deep_jumps(
    seed,
    high_first=(1, 2, 3, 5, 120),
    low_first=(3, 20, 60, 120),
    rises=(5, 20, 60),
    layers=12,
    steps=120,
    high=0.01,
    low=0.001,
    every=10,
):
    """Rows such as "high first, 3 steps", "low first, 60 steps", "rise, 5 steps"; columns are those of `train`.

    All rows of a seed have the same words in the same order and the same matrices at the start. The high rate is one at
    which the model was seen to fail, the low one a tenth of it; neither is chosen by these numbers.
    """
    results, history = {}, {}
    for kind, counts in (("high first", high_first), ("low first", low_first), ("rise", rises)):
        for count in counts:
            name = f"{kind}, {count} steps"
            results[name], history[name] = train(plan(kind, count, steps, high, low), seed, layers, every)
    return {"results": results, "history": history}


@experiment("deep-controls", "Deep Pre-LN at a high and a low rate, and deep Post-LN with a fresh Adam.")
def deep_controls(seed, layers=12, steps=120, high=0.01, low=0.001, fresh=40, after=160, every=10):
    """Rows "pre-ln, high rate", "pre-ln, low rate" and "post-ln, fresh Adam"; columns are those of `train`.

    Words and matrices are those of `deep_jumps`. The last row has `fresh` steps at the high rate as there, then a new
    Adam for `after` more.
    """
    trainings = {
        "pre-ln, high rate": {"rates": [high] * steps, "residual": "pre-ln"},
        "pre-ln, low rate": {"rates": [low] * steps, "residual": "pre-ln"},
        "post-ln, fresh Adam": {"rates": [high] * (fresh + after), "fresh": fresh},
    }
    results, history = {}, {}
    for name, training in trainings.items():
        results[name], history[name] = train(seed=seed, layers=layers, every=every, **training)
    return {"results": results, "history": history}
