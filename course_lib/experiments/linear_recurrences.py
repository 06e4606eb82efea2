"""Layers with a state of fixed size beside softmax attention: what they recall, and their time by length (chapter 14).

The task is that of `course_lib.experiments.attention_recall`, with more letters and any number of pairs. Every batch is
drawn anew; accuracies are of sequences that no step has seen.
"""

import math
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.attention import MultiHeadAttention, attention
from course_lib.cost import measure
from course_lib.experiments import experiment
from course_lib.gpt import Block, GPTConfig
from course_lib.linear_attention import (
    LinearAttention,
    MinGRU,
    linear_attention,
    linear_attention_chunked,
    linear_attention_step,
    linear_loop,
    linear_scan,
)
from course_lib.lstm_gru import GRU
from course_lib.optim import cosine_schedule
from course_lib.utils import number_of_parameters

LETTERS, DIGITS = 32, 10
ROWS = ("softmax attention", "linear attention", "gated recurrence", "GRU")
RATES = {"softmax attention": 1e-2, "linear attention": 3e-2, "gated recurrence": 1e-2, "GRU": 1e-3}

# --- recall -----------------------------------------------------------------------


def draw(batch_size, pairs, generator):
    """Pairs of a letter and a digit, then one of the letters again: inputs (B, pairs + 1, 42) and the answers (B,).

    Letter and digit are one-hot, side by side; the letters of a sequence differ. The question has zeros for a digit.

    >>> x, digit = draw(2, 4, torch.Generator().manual_seed(0))
    >>> x.shape, x[0, -1, LETTERS:].sum().item()
    (torch.Size([2, 5, 42]), 0.0)
    """
    letters = torch.rand(batch_size, LETTERS, generator=generator).argsort(1)[:, :pairs]
    digits = torch.randint(DIGITS, (batch_size, pairs), generator=generator)
    rows, asked = torch.arange(batch_size), torch.randint(pairs, (batch_size,), generator=generator)
    inputs = torch.cat([F.one_hot(letters, LETTERS), F.one_hot(digits, DIGITS)], dim=2)
    question = F.pad(F.one_hot(letters[rows, asked], LETTERS), (0, DIGITS)).unsqueeze(1)
    return torch.cat([inputs, question], dim=1).float(), digits[rows, asked]


def commonest_digit(pairs):
    """The share of right answers of a reader who ignores the question and names the digit that came most often.

    That is the expected largest count among the digits, over the number of pairs. Exact: for each m the sequences are
    counted in which no digit comes more than m times. Only what lies above it shows that a letter leads to its digit.

    >>> [round(commonest_digit(pairs), 2) for pairs in (1, 4, 32)]
    [1.0, 0.38, 0.19]
    """
    total = 0
    for m in range(pairs):
        ways = [1] + [0] * pairs  # of i places that are filled with the digits so far
        for _ in range(DIGITS):
            ways = [sum(math.comb(i, k) * ways[i - k] for k in range(min(m, i) + 1)) for i in range(pairs + 1)]
        total += 1 - ways[pairs] / DIGITS**pairs  # the probability that some digit comes more than m times
    return total / pairs


class Recurrent(nn.Module):
    """A GRU that stands in a block where attention stands."""

    def __init__(self, d_model, d_state):
        super().__init__()
        self.layer, self.out_proj = GRU(d_model, d_state), nn.Linear(d_state, d_model)

    def forward(self, x, causal=True, cache=None):
        """(B, T, D) to (B, T, D)."""
        return self.out_proj(self.layer(x)[0])


def state_size(width, heads):
    """Numbers that linear attention keeps for a text: S (H, K, K) and z (H, K)."""
    return heads * (width // heads) * (width // heads + 1)


class Recaller(nn.Module):
    """Blocks of a GPT, without positions, that answer at the last input; `row` says what stands for attention."""

    def __init__(self, row, width, heads, layers):
        super().__init__()
        state = state_size(width, heads)
        make = {
            "softmax attention": partial(MultiHeadAttention, width, heads),
            "linear attention": partial(LinearAttention, width, heads),
            "gated recurrence": partial(MinGRU, width, state),
            "GRU": partial(Recurrent, width, state),
        }[row]
        self.input = nn.Linear(LETTERS + DIGITS, width)
        config = GPTConfig(d_model=width, num_heads=heads, dropout=0.0)
        self.blocks = nn.ModuleList(Block(config) for _ in range(layers))
        for block in self.blocks:
            block.attn = make()
        self.norm, self.output = nn.LayerNorm(width), nn.Linear(width, DIGITS)

    def forward(self, x):
        """(B, T, 42) to logits (B, 10)."""
        x = self.input(x)
        for block in self.blocks:
            x = block(x)
        return self.output(self.norm(x[:, -1]))


def train_recaller(model, rate, seed, pairs, steps, batch_size, warmup=50):
    """Adam with clipping at 1, warm-up and half a cosine; batches take the numbers of pairs in turn."""
    generator, optimizer = torch.Generator().manual_seed(seed), torch.optim.Adam(model.parameters(), rate)
    schedule = partial(cosine_schedule, warmup=min(warmup, steps), total=steps)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)
    for step in tqdm(range(steps), leave=False):
        x, digit = draw(batch_size, pairs[step % len(pairs)], generator)
        optimizer.zero_grad()
        F.cross_entropy(model(x), digit).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()


@torch.no_grad()
def accuracies(model, pairs, seed, size=1000):
    """The fraction of right answers for each number of pairs; training draws from other seeds."""
    generator = torch.Generator().manual_seed(10**6 + seed)
    draws = [draw(size, count, generator) for count in pairs]
    return [(model(x).argmax(1) == digit).float().mean().item() for x, digit in draws]


def recall_row(row, rate, seed, pairs, width, heads, layers, steps, batch_size):
    """Train one model and score it."""
    torch.manual_seed(seed)
    model = Recaller(row, width, heads, layers)
    train_recaller(model, rate, seed, pairs, steps, batch_size)
    found = {"learning_rate": rate, "parameters": number_of_parameters(model), "pairs": list(pairs)}
    if row != "softmax attention":
        found["state_size"] = state_size(width, heads)
    found["by_pairs"] = accuracies(model, pairs, seed)
    return found | {"accuracy": sum(found["by_pairs"]) / len(pairs)}


@experiment(
    "linear-recall", "Which digit came with a letter, by the number of pairs: attention and three kinds of state."
)
def linear_recall(
    seed, rows=ROWS, pairs=(4, 8, 16, 32), width=32, heads=4, layers=2, steps=1000, batch_size=64, rates=RATES
):
    """One model a row for all numbers of pairs, whose batches take turns.

    The states of linear attention, of the gated recurrence (`MinGRU`) and of the GRU have as many numbers in each of
    the blocks, "state_size"; softmax attention keeps all inputs. The peak learning rates are the best of
    `linear-recall-rates`, which draws other sequences. A score no better than `commonest_digit` is no sign of a
    lookup, and says nothing of what a state could hold.
    """
    sizes = (pairs, width, heads, layers, steps, batch_size)
    return {"results": {row: recall_row(row, rates[row], seed, *sizes) for row in rows}}


@experiment("linear-recall-rates", "The models of linear-recall at several peak learning rates, with fewer steps.")
def linear_recall_rates(
    seed,
    rates=(3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1),
    rows=ROWS,
    pairs=(4, 8, 16, 32),
    width=32,
    heads=4,
    layers=2,
    steps=300,
    batch_size=64,
):
    """Sequences come from seeds that `linear-recall` does not use: the seed plus 1000."""
    sizes = (pairs, width, heads, layers, steps, batch_size)
    return {
        "results": {f"{row} {rate:g}": recall_row(row, rate, seed + 1000, *sizes) for row in rows for rate in rates}
    }


# --- time -------------------------------------------------------------------------


def attention_in_steps(q, k, v):
    """`linear_attention`, one token after another."""
    state, outputs = (q.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]), torch.zeros_like(k[:, :, 0])), []
    for parts in zip(*(x.unbind(2) for x in (q, k, v)), strict=True):
        y, state = linear_attention_step(*parts, state)
        outputs.append(y)
    return torch.stack(outputs, 2)


def forms(batch_size, T, heads, width):
    """Functions of nothing that run one layer forward and backward, without its projections, by name."""
    generator = torch.Generator().manual_seed(T)
    q, k, v = torch.randn(3, batch_size, heads, T, width // heads, generator=generator).requires_grad_().unbind()
    a, b = torch.randn(2, batch_size, T, width, generator=generator).requires_grad_().unbind()

    def run(function, *inputs):
        function(*inputs).sum().backward()

    return {
        "softmax attention": partial(run, partial(attention, causal=True), q, k, v),
        "linear attention, all pairs": partial(run, linear_attention, q, k, v),
        "linear attention, chunks": partial(run, linear_attention_chunked, q, k, v),
        "linear attention, loop": partial(run, attention_in_steps, q, k, v),
        "gated recurrence, loop": partial(run, lambda a, b: linear_loop(a.sigmoid(), b), a, b),
        "gated recurrence, scan": partial(run, lambda a, b: linear_scan(a.sigmoid(), b), a, b),
    }


@experiment("linear-time", "Time by length of softmax attention, linear attention and a gated recurrence.")
def linear_time(seed, lengths=(64, 128, 256, 512, 1024, 2048), batch_size=1, heads=4, width=128, rounds=5):
    """Forward and backward of what stands between a layer's projections, seconds of one core.

    The "exponent" is that of the growth over the longer half of the lengths.
    """
    found = {}
    for T in lengths:
        for name, value in measure.seconds(forms(batch_size, T, heads, width), rounds).items():
            found.setdefault(name, []).append(value)
    half = len(lengths) // 2
    return {
        "results": {
            name: {
                "T": list(lengths),
                "seconds": values,
                "exponent": measure.growth_exponent(lengths[half:], values[half:]),
            }
            for name, values in found.items()
        }
    }
