"""Heads that find what came after the same token before: attention alone, one layer and two (chapter 14).

A sequence is n random tokens, and then the same ones again, which start at a random place and go round. No position
tells where a token stood before: the second half can be predicted only by looking for it. Every batch is drawn anew.
Source: Olsson et al. (2022), "In-context Learning and Induction Heads", arXiv:2209.11895.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.attention import MultiHeadAttention, record_attention
from course_lib.experiments import experiment
from course_lib.transformer import init_weights
from course_lib.utils import number_of_parameters

ROWS = {"two layers": (2, 4), "one layer": (1, 4), "one layer, wide": (1, 6)}  # layers and heads


def draw(batch_size, n, vocab_size, generator):
    """Tokens (B, 2 n), and for those of the second half where they stand in the first, (B, n).

    >>> ids, places = draw(2, 5, 9, torch.Generator().manual_seed(0))
    >>> torch.equal(ids[:, 5:], ids.gather(1, places))
    True
    """
    first = torch.randint(vocab_size, (batch_size, n), generator=generator)
    start = torch.randint(n, (batch_size, 1), generator=generator)
    places = (start + torch.arange(n)) % n
    return torch.cat([first, first.gather(1, places)], 1), places


class AttentionOnly(nn.Module):
    """A GPT without feed-forward networks, and with an output layer of its own."""

    def __init__(self, vocab_size, max_len, width, heads, layers):
        super().__init__()
        self.embedding, self.positions = nn.Embedding(vocab_size, width), nn.Embedding(max_len, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(layers))
        self.layers = nn.ModuleList(MultiHeadAttention(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab_size, bias=False)
        init_weights(self, width**-0.5)

    def forward(self, ids):
        """(B, T) to logits (B, T, V)."""
        x = self.embedding(ids) + self.positions.weight[: ids.shape[1]]  # (B, T, D)
        for norm, layer in zip(self.norms, self.layers, strict=True):
            x = x + layer(norm(x), causal=True)
        return self.head(self.norm(x))


@torch.no_grad()
def scores(model, ids, places):
    """Losses of both halves, and of each head of each layer how much it attends to two tokens, on average.

    "previous": the token before, from everywhere but the first place. "induction": from a token of the second half, the
    one that followed it in the first, which is the one to predict.
    """
    n = places.shape[1]
    with record_attention(model) as maps:
        logits = model(ids[:, :-1])
    losses = F.cross_entropy(logits.mT, ids[:, 1:], reduction="none").mean(0)  # (2 n - 1,)
    maps = torch.stack(list(maps.values()))  # (N, B, H, T, S), T = S = 2 n - 1
    previous = maps.diagonal(-1, -2, -1).mean((1, 3))  # (N, H)
    after = places[:, None, 1:, None].expand(*maps.shape[:3], -1, -1)  # where the next token stood: (N, B, H, n - 1, 1)
    induction = maps[..., n:, :].gather(-1, after).mean((1, 3, 4))
    return {
        "first_loss": losses[: n - 1].mean().item(),
        "second_loss": losses[n:].mean().item(),
        "previous": previous.tolist(),
        "induction": induction.tolist(),
    }


def bag_loss(ids, places):
    """The loss in the second half of who knows how often each token came in the first, and not where."""
    n = places.shape[1]
    counts = (ids[:, :n, None] == ids[:, None, n + 1 :]).sum(1)  # (B, n - 1)
    return -(counts / n).log().mean().item()


def best(found, name):
    """The highest score of any head of the last layer for "induction", of the first one for "previous"."""
    return max(found[name][-1 if name == "induction" else 0])


@experiment(
    "induction-heads", "Repeated random tokens: the loss, and where the heads look, by step; one layer and two."
)
def induction_heads(
    seed,
    rows=tuple(ROWS),
    n=24,
    vocab_size=64,
    head_dim=16,
    batch_size=32,
    steps=1500,
    every=50,
    learning_rate=3e-3,
    test_size=256,
):
    """Trained on the next token everywhere, by Adam with one learning rate.

    "one layer, wide" has more parameters than two layers.
    "loss_step" is the first recorded step at which the second half's loss is below half of ln V, the loss of a guess;
    "head_step" the first at which the best head of the last layer gives the token to predict a quarter of its weight;
    both are left out where that never happens. The history's "best_induction" and "best_previous" are those of the best
    head of the last and of the first layer. The row "bag" is what counting the tokens of the first half would reach.
    """
    test = draw(test_size, n, vocab_size, torch.Generator().manual_seed(10**6 + seed))
    results, history = {"bag": {"second_loss": bag_loss(*test)}}, {}
    for row in rows:
        torch.manual_seed(seed)
        layers, heads = ROWS[row]
        model = AttentionOnly(vocab_size, 2 * n, heads * head_dim, heads, layers)
        history[row] = train(model, seed, n, vocab_size, batch_size, steps, every, learning_rate, test)
        last = history[row][-1]
        results[row] = {"parameters": number_of_parameters(model), **{key: last[key] for key in last if key != "step"}}
        steps_of = {
            "loss_step": [e["step"] for e in history[row] if e["second_loss"] < math.log(vocab_size) / 2],
            "head_step": [e["step"] for e in history[row] if e["best_induction"] > 0.25],
        }
        results[row] |= {name: found[0] for name, found in steps_of.items() if found}
    return {"results": results, "history": history}


def train(model, seed, n, vocab_size, batch_size, steps, every, learning_rate, test):
    """Train a model; its scores before the first step, every so many steps and after the last."""
    generator, history = torch.Generator().manual_seed(seed), []
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, (0.9, 0.99))
    for step in tqdm(range(steps + 1), leave=False):
        if step % every == 0 or step == steps:
            found = scores(model, *test)
            found |= {f"best_{name}": best(found, name) for name in ("induction", "previous")}
            history.append({"step": step, **found})
        if step < steps:
            ids, _ = draw(batch_size, n, vocab_size, generator)
            optimizer.zero_grad()
            logits = model(ids[:, :-1])  # (B, T, V)
            loss = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:])
            loss.backward()
            optimizer.step()
    return history
