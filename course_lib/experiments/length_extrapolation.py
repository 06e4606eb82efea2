"""Recorded runs of chapter 08: what a scheme of positions is worth beyond the lengths it was trained on.

Read `fixed_distance` and `latest_value`, the two tasks; then `position_one_layer`, with the chapter's own model, and
`position_extrapolation`, with a Transformer of two layers. Questions stand at every place, and both models are causal:
so one long test sequence scores every length at once.
"""

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.attention import MultiHeadAttention
from course_lib.experiments import experiment
from course_lib.positional import ALiBi, LearnedPositions, RelativeBias, RoPE, Sinusoidal, in_attention
from course_lib.train import train_epoch
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerLM
from course_lib.utils import number_of_parameters

TOKENS, BACK = 8, 3  # of the fixed distance: number of tokens, and how many places back the answer stands
NAMES, VALUES = 3, 4  # of the latest value
VOCAB = VALUES + NAMES + NAMES * VALUES  # answers, questions, assignments
NOTHING = -100  # the target where nothing is asked

SCHEMES = {
    "none": lambda D, H, length: None,
    "sinusoidal": lambda D, H, length: Sinusoidal(D, length),
    "learned": lambda D, H, length: LearnedPositions(D, length),
    "relative bias": lambda D, H, length: RelativeBias(H, max_distance=8),
    "RoPE": lambda D, H, length: RoPE(D // H),
    "ALiBi": lambda D, H, length: ALiBi(H),
}


def fixed_distance(size, length, generator):
    """Draw random tokens; asked for at every place: the token three places before.

    Returns:
        x: (B, T) int64 tokens, from 0 to 7.
        y: (B, T) int64, the answers; -100 at the first three places.

    >>> x, y = fixed_distance(2, 7, torch.Generator().manual_seed(0))
    >>> bool((y[:, 3:] == x[:, :-3]).all() and (y[:, :3] == -100).all())
    True
    """
    x = torch.randint(TOKENS, (size, length), generator=generator)
    y = torch.full_like(x, NOTHING)
    y[:, BACK:] = x[:, :-BACK]
    return x, y


def latest_value(size, length, generator):
    """Draw assignments `a=2` and questions `a?`; asked for at every question: the value given to that name last.

    Returns:
        x: (B, T) int64 tokens, see `words`.
        y: (B, T) int64, a value from 0 to 3 at each question; -100 elsewhere, and before the name has a value.

    >>> x, y = latest_value(1, 8, torch.Generator().manual_seed(3))
    >>> words(x[0])
    ['b?', 'c=3', 'b=2', 'a=3', 'b=1', 'a?', 'a=2', 'c?']
    >>> y[0].tolist()
    [-100, -100, -100, -100, -100, 3, -100, 3]
    """
    name = torch.randint(NAMES, (size, length), generator=generator)
    value = torch.randint(VALUES, (size, length), generator=generator)
    asks = torch.rand(size, length, generator=generator) < 0.5
    x = torch.where(asks, VALUES + name, VALUES + NAMES + name * VALUES + value)
    y = torch.full_like(x, NOTHING)
    held = torch.full((size, NAMES), NOTHING)  # the value of each name so far
    for t in range(length):
        mine = F.one_hot(name[:, t], NAMES).bool()
        y[:, t] = torch.where(asks[:, t], held[mine], NOTHING)
        held = torch.where(mine & ~asks[:, t, None], value[:, t, None], held)
    return x, y


def words(ids):
    """Tokens of `latest_value` as a reader would write them.

    >>> words(torch.tensor([2, 4, 18]))
    ['2', 'a?', 'c=3']
    """
    assigned = [f"{name}={value}" for name in "abc" for value in range(VALUES)]
    tokens = [*map(str, range(VALUES)), "a?", "b?", "c?", *assigned]
    return [tokens[i] for i in ids.tolist()]


TASKS = {"fixed distance": (fixed_distance, TOKENS), "latest value": (latest_value, VOCAB)}


def make_model(task, scheme, length, width=32, heads=4, layers=2):
    """An untrained causal Transformer with one scheme; the schemes with a table get one of `length` rows."""
    blocks = [EncoderLayer(width, heads, 2 * width, dropout=0.0, residual="pre-ln") for _ in range(layers)]
    encoder = TransformerEncoder(blocks, norm=nn.LayerNorm(width))
    return TransformerLM(TASKS[task][1], encoder, position=SCHEMES[scheme](width, heads, length))


class OneLayer(nn.Module):
    """One layer of causal attention between an embedding and an answer for each token: no other way to see a token."""

    def __init__(self, vocab_size, width, heads, scheme=None):
        super().__init__()
        inside = scheme is not None and in_attention(scheme)
        self.added = None if inside else scheme
        self.embed = nn.Embedding(vocab_size, width)
        self.attend = MultiHeadAttention(width, heads, position=scheme if inside else None)
        self.readout = nn.Linear(width, vocab_size)

    def forward(self, ids):
        """Logits (B, T, V) of ids (B, T)."""
        x = self.embed(ids)  # (B, T, D)
        x = x if self.added is None else self.added.add(x)
        return self.readout(x + self.attend(x, causal=True))


def question_loss(model, batch):
    """The mean cross-entropy over the questions of a batch (x, y), in the form that `course_lib.train` takes."""
    x, y = batch
    return {"loss": F.cross_entropy(model(x).flatten(0, 1), y.flatten(), ignore_index=NOTHING), "count": 1}


def train_on_short(model, task, length, steps, generator, batch_size=64, learning_rate=3e-3):
    """Train on sequences of one length, new ones at each step; returns the last loss in nats per question."""
    draw = TASKS[task][0]
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, steps, pct_start=0.1)
    for _ in tqdm(range(steps), desc="steps", leave=False):
        batch = draw(batch_size, length, generator)
        means = train_epoch(model, [batch], question_loss, optimizer, scheduler=scheduler, clip_norm=1.0)
    return means["loss"]


@torch.no_grad()
def accuracy_by_place(model, task, length, generator, size=400, window=5):
    """Fraction of right answers, `window` places at a time: what a test on sequences that end there would give."""
    x, y = TASKS[task][0](size, length, generator)
    right = torch.cat([model(part).argmax(-1) for part in x.split(100)]) == y
    right, asked = (cells.unflatten(1, (-1, window)).sum((0, 2)) for cells in (right, y != NOTHING))
    return (right / asked).tolist()


def train_and_test(task, scheme, seed, length=20, times=4, steps=400, **sizes):
    """One Transformer: trained up to `length`, tested to `times` that; the row of the ledger."""
    torch.manual_seed(seed)
    model = make_model(task, scheme, times * length, **sizes)
    return fit_and_score(model, task, seed, length, times, steps)


def one_layer(task, scheme, seed, length=20, times=4, steps=250, width=32, heads=4):
    """The same with the chapter's own model, `OneLayer`."""
    torch.manual_seed(seed)
    model = OneLayer(TASKS[task][1], width, heads, SCHEMES[scheme](width, heads, times * length))
    return fit_and_score(model, task, seed, length, times, steps, learning_rate=1e-2)


def fit_and_score(model, task, seed, length, times, steps, learning_rate=3e-3):
    """Train a model up to `length` and test it to `times` that; the row of the ledger."""
    loss = train_on_short(model, task, length, steps, torch.Generator().manual_seed(seed), learning_rate=learning_rate)
    accuracy = accuracy_by_place(model, task, times * length, torch.Generator().manual_seed(1000 + seed))
    window = times * length // len(accuracy)
    row = {f"accuracy at {k}x": accuracy[int(k * length) // window - 1] for k in (1, 1.5, 2, 4) if k <= times}
    places = [window * (i + 1) for i in range(len(accuracy))]
    return row | {"loss": loss, "places": places, "accuracy": accuracy, "parameters": number_of_parameters(model)}


@experiment("position-extrapolation", "Five schemes of positions and none: trained on 20 tokens, tested on up to 80.")
def position_extrapolation(seed, tasks=tuple(TASKS), schemes=tuple(SCHEMES), length=20, times=4, steps=400, width=32):
    """Two tasks; models of one size, with the same data and steps. "accuracy at 2x": last five places of 2 x length."""
    options = {"length": length, "times": times, "steps": steps, "width": width}
    return {
        "results": {
            f"{task}, {scheme}": train_and_test(task, scheme, seed, **options) for task in tasks for scheme in schemes
        }
    }


@experiment(
    "position-one-layer", "Five schemes and none in one attention layer: trained on 20 tokens, tested on up to 80."
)
def position_one_layer(seed, tasks=tuple(TASKS), schemes=tuple(SCHEMES), length=20, times=4, steps=250, width=32):
    """As `position_extrapolation`, with the model of chapter 08: an embedding, one attention layer, an answer."""
    options = {"length": length, "times": times, "steps": steps, "width": width}
    rows = [(task, scheme) for task in tasks for scheme in schemes]
    return {"results": {f"{task}, {scheme}": one_layer(task, scheme, seed, **options) for task, scheme in rows}}
