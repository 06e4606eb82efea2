"""Which digit came with this letter? One layer of attention against recurrent networks on a memory task (chapter 07).

Every batch is drawn anew; accuracies are of sequences that no step has seen.
"""

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from course_lib.experiments import experiment
from course_lib.utils import number_of_parameters

LETTERS, DIGITS, PAIRS = 10, 10, 8


def draw(batch_size, generator):
    """Eight pairs of a letter and a digit, then one of the letters again: inputs (B, 9, 20) and the answers (B,).

    Letter and digit are one-hot, side by side; the letters of a sequence differ. The question has zeros for a digit.

    >>> x, digit = draw(2, torch.Generator().manual_seed(0))
    >>> x.shape, x[0, -1, 10:].sum().item()
    (torch.Size([2, 9, 20]), 0.0)
    """
    letters = torch.rand(batch_size, LETTERS, generator=generator).argsort(1)[:, :PAIRS]
    digits = torch.randint(DIGITS, (batch_size, PAIRS), generator=generator)
    rows, asked = torch.arange(batch_size), torch.randint(PAIRS, (batch_size,), generator=generator)
    pairs = torch.cat([F.one_hot(letters, LETTERS), F.one_hot(digits, DIGITS)], dim=2)
    question = F.pad(F.one_hot(letters[rows, asked], LETTERS), (0, DIGITS)).unsqueeze(1)
    return torch.cat([pairs, question], dim=1).float(), digits[rows, asked]


class RecurrentReader(nn.Module):
    """Reads the pairs and the question one after the other, and answers from the last state."""

    def __init__(self, kind, units):
        super().__init__()
        self.layer = {"GRU": nn.GRU, "LSTM": nn.LSTM}[kind](LETTERS + DIGITS, units, batch_first=True)
        self.output = nn.Linear(units, DIGITS)

    def forward(self, x):
        """(B, 9, 20) to logits (B, 10)."""
        return self.output(self.layer(x)[0][:, -1])


class AttentionReader(nn.Module):
    """One head: the question asks, and the eight pairs are asked."""

    def __init__(self, width):
        super().__init__()
        self.W_q, self.W_k, self.W_v = (nn.Linear(LETTERS + DIGITS, width) for _ in range(3))
        self.output = nn.Linear(width, DIGITS)

    def forward(self, x):
        """(B, 9, 20) to logits (B, 10)."""
        question, pairs = x[:, -1:], x[:, :-1]
        q, k, v = self.W_q(question), self.W_k(pairs), self.W_v(pairs)
        scores = q @ k.mT / k.shape[-1] ** 0.5  # (B, 1, 8)
        return self.output(scores.softmax(dim=-1) @ v).squeeze(1)


def train_reader(model, rate, seed, marks, batch_size=64):
    """Train for `marks[-1]` updates; the accuracy on 2,000 new sequences after each of these numbers of updates."""
    generator = torch.Generator().manual_seed(seed)
    x_test, digit_test = draw(2000, torch.Generator().manual_seed(10**6 + seed))
    optimizer, found = torch.optim.Adam(model.parameters(), rate), []
    for update in tqdm(range(1, marks[-1] + 1), leave=False):
        x, digit = draw(batch_size, generator)
        loss = F.cross_entropy(model(x), digit)
        model.zero_grad()
        loss.backward()
        optimizer.step()
        if update in marks:
            with torch.no_grad():
                found.append((model(x_test).argmax(1) == digit_test).float().mean().item())
    return found


@experiment(
    "attention-recall", "Which of eight digits came with a letter: trained attention against recurrent networks."
)
def attention_recall(
    seed,
    width=32,
    units=64,
    wide=256,
    short=(25, 50, 75, 100, 150, 200, 300),
    medium=(100, 200, 500, 1000, 1500, 2000),
    long=(2000, 5000, 10000, 20000),
):
    """Each model at several learning rates; the GRU also wider, also for ten times as many updates, and an LSTM."""
    runs = {
        **{f"attention, rate {rate}": (AttentionReader, (width,), rate, short) for rate in (0.003, 0.01, 0.03)},
        **{f"GRU, rate {rate}": (RecurrentReader, ("GRU", units), rate, medium) for rate in (0.002, 0.005, 0.01)},
        "LSTM, rate 0.005": (RecurrentReader, ("LSTM", units), 0.005, medium),
        "GRU, wide": (RecurrentReader, ("GRU", wide), 0.002, medium),
        "GRU, long": (RecurrentReader, ("GRU", units), 0.005, long),
    }
    results = {}
    for name, (make, sizes, rate, marks) in runs.items():
        torch.manual_seed(seed)
        model = make(*sizes)
        results[name] = {
            "parameters": number_of_parameters(model),
            "updates": list(marks),
            "by_updates": train_reader(model, rate, seed, marks),
        }
        results[name]["accuracy"] = results[name]["by_updates"][-1]
    return {"results": results}
