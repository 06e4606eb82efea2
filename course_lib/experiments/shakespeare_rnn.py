"""Recorded runs of chapter 03: recurrent language models on the characters of tiny Shakespeare.

`shakespeare_recurrent` puts the plain network beside the two gated ones of chapter 05, with the same number of
parameters, on the text and the split of chapter 01's `shakespeare-lm`: its n-grams and its window network are
the numbers to beat.
"""

import time

import torch
import torch.nn.functional as F

from course_lib import datasets
from course_lib.bptt import detached
from course_lib.experiments import experiment
from course_lib.lstm_gru import GRU, LSTM
from course_lib.metrics import bits, perplexity
from course_lib.recurrent_models import LanguageModel
from course_lib.rnn import RNN
from course_lib.text import contiguous_batches
from course_lib.train import evaluate, fit
from course_lib.utils import number_of_parameters

LAYERS = {"RNN": RNN, "LSTM": LSTM, "GRU": GRU}
PRODUCTS = {"RNN": 1, "LSTM": 4, "GRU": 3}  # products with the state in one step
RATES = {"RNN": 8e-3, "LSTM": 1.6e-2, "GRU": 8e-3}  # the best of `shakespeare-rates` on the validation part


@experiment("shakespeare-recurrent", "RNN, LSTM and GRU of equal size on tiny Shakespeare's characters, four epochs.")
def shakespeare_recurrent(
    seed,
    parameters=215_000,
    width=64,
    dropout=0.0,
    epochs=4,
    learning_rate=None,
    batch_size=32,
    length=64,
):
    """Reported on the last 10 % of the text; learnt from the first 80 %, chosen on the 10 % after them.

    The text is read in `batch_size` streams, and the state is carried from piece to piece while the gradient
    stops at its start (truncated backpropagation through time). Each model has the peak learning rate that was
    best for it in `shakespeare-rates`, or `learning_rate`. Four epochs, about two minutes a model on one core, are
    fewer than the models could use:
    --set epochs=20 --set parameters=1000000 --set dropout=0.2
    """
    *parts, V = shakespeare_parts()
    results, history = {}, {}
    for kind, make in LAYERS.items():
        hidden = hidden_size(kind, V, width, parameters)
        model = LanguageModel(V, make(width, hidden), dropout)
        found = number_of_parameters(model)
        if abs(found - parameters) > 0.01 * parameters:
            raise ValueError(f"no {kind} of width {width} has {parameters} parameters within 1 %: nearest is {found}")
        rate = learning_rate or RATES[kind]
        row, history[kind] = train_language_model(model, *parts, epochs, rate, batch_size, length, seed)
        results[kind] = {"parameters": found, "hidden_size": hidden, "learning_rate": rate, **row}
    return {"results": results, "history": history}


@experiment("shakespeare-rates", "The models of shakespeare-recurrent at five peak learning rates, on validation text.")
def shakespeare_rates(
    seed,
    rates=(2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2),
    parameters=215_000,
    width=64,
    epochs=4,
    batch_size=32,
    length=64,
):
    """Each rate doubles the one before. The part of the text that `shakespeare-recurrent` reports on is not read."""
    train, valid, _, V = shakespeare_parts()
    results = {}
    for kind, make in LAYERS.items():
        for rate in rates:
            torch.manual_seed(seed)
            model = LanguageModel(V, make(width, hidden_size(kind, V, width, parameters)))
            row, _ = train_language_model(model, train, valid, None, epochs, rate, batch_size, length, seed)
            results[f"{kind} {rate:g}"] = {"learning_rate": rate, **row}
    return {"results": results}


def shakespeare_parts():
    """Character numbers: 80 % to learn from, 10 % to choose by, 10 % to report, as in `shakespeare-lm`; and V."""
    text = datasets.tiny_shakespeare()
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    train, test = (torch.tensor([number[character] for character in part]) for part in datasets.shakespeare_split(text))
    cut = len(train) * 8 // 9
    return train[:cut], train[cut:], test, len(number)


def count_parameters(kind, vocab_size, width, hidden):
    r"""Parameters of a `LanguageModel` with one recurrent layer.

    $$ V I + G D (I + D + 2) + V (D + 1), \quad G = 1, 4, 3 \text{ for RNN, LSTM, GRU} $$

    >>> count_parameters("GRU", 9, 4, 6) == number_of_parameters(LanguageModel(9, GRU(4, 6)))
    True
    """
    layer = PRODUCTS[kind] * hidden * (width + hidden + 2)
    return vocab_size * width + layer + vocab_size * (hidden + 1)


def hidden_size(kind, vocab_size, width, parameters):
    """The D with which a `LanguageModel` has nearest to so many parameters; the others as in `count_parameters`."""
    return min(range(1, 4096), key=lambda D: abs(count_parameters(kind, vocab_size, width, D) - parameters))


def train_language_model(model, train, valid, test, epochs, learning_rate, batch_size, length, seed):
    """Train with the best epoch by `valid`.

    Args:
        train: (N,) int64 tokens to learn from.
        valid: (N,) tokens that choose the epoch.
        test: (N,) tokens that are reported on; None: none are.
        length: T, steps the gradient reaches back.
        seed: decides where the streams begin in each epoch.

    Returns:
        dict of metrics, and the history, one dict an epoch.
    """
    start = time.perf_counter()
    steps = sum(len(streams(train, batch_size, length, seed, epoch)) for epoch in range(1, epochs + 1))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    history = fit(
        model,
        lambda epoch: streams(train, batch_size, length, seed, epoch),
        CarriedLoss(),
        optimizer,
        epochs=epochs,
        valid_batches=in_order(valid),
        scheduler=scheduler,
        clip_norm=1.0,
    )
    seconds = time.perf_counter() - start
    best = min(history, key=lambda entry: entry["valid_loss"])
    row = {"best_epoch": best["epoch"], "valid_perplexity": perplexity(best["valid_loss"])}
    row |= {"valid_nats": best["valid_loss"]}
    if test is not None:
        nats = evaluate(model, in_order(test), CarriedLoss())["loss"]
        row |= {"perplexity": perplexity(nats), "nats": nats, "bits": bits(nats)}
    return row | {"seconds": seconds}, history


class CarriedLoss:
    """A loss function for `train.fit` that hands the state of each batch on to the next.

    A batch is (inputs (B, T), targets (B, T), first): at the first of an epoch the state is zero again.
    """

    def __init__(self):
        self.state = None

    def __call__(self, model, batch):
        """Sums as `train.language_model_loss` returns them."""
        inputs, targets, first = batch
        logits, self.state = model.run(inputs, None if first else detached(self.state))
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        return {"loss": loss, "count": targets.numel(), "accuracy": (logits.argmax(-1) == targets).sum()}


def streams(ids, batch_size, length, seed, epoch):
    """The batches of one epoch, each with the flag that says whether it is the first; cut anew in every epoch."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    start = int(torch.randint(length, (), generator=generator))
    return flagged(contiguous_batches(ids[start:], batch_size, length))


def in_order(ids, length=1024):
    """The text as one stream: every token but the first is predicted from all before it."""
    return flagged(contiguous_batches(ids, 1, length))


def flagged(batches):
    """(inputs, targets) to (inputs, targets, first)."""
    return [(inputs, targets, i == 0) for i, (inputs, targets) in enumerate(batches)]
