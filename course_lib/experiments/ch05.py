"""Recorded runs of chapter 05: how far back recurrent layers remember, what gates do, IMDB's reviews.

Read in this order: `memory_by_lag` (three memory tasks, and the gradient that reaches back),
`gate_activations` (what an LSTM's gates do at a token that matters), `gru_reset` (two forms of the GRU),
`imdb_recurrent` (real reviews). The memory tasks draw new sequences for every batch, so what a batch
scores before its step is already a test; the numbers recorded are from draws that no step has seen.

Notebook: 05.
"""

import copy
import functools
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import toy
from course_lib.bptt import gradient_norm_by_lag
from course_lib.experiments import experiment
from course_lib.experiments.ch02 import _reviews as imdb_reviews
from course_lib.experiments.ch02 import _test_scores
from course_lib.experiments.ch03 import LAYERS, shakespeare_parts, train_language_model
from course_lib.gated import GRU, LSTM, ResetBeforeGRU, set_forget_bias
from course_lib.rnn import RNN
from course_lib.tasks import LanguageModel, SequenceClassifier, number_of_parameters
from course_lib.text import UNK, batches, build_vocab, numericalize
from course_lib.train import classification_loss, fit

VOCAB, SYMBOLS = 9, 3  # tokens of the recall and the copy task; symbols to copy


# --- memory -----------------------------------------------------------------------


class Reader(nn.Module):
    """Answers read off the last states of a recurrent layer.

    Args:
        layer: `RNN`, `LSTM` or `GRU` in one direction.
        answers: width of an answer: number of tokens, or 1 for a number.
        count: how many of the last states are read.
        vocab_size: V if the inputs are tokens; None if they are vectors.
    """

    def __init__(self, layer, answers, count=1, vocab_size=None):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, layer.input_size) if vocab_size else nn.Identity()
        self.layer = layer
        self.output = nn.Linear(layer.hidden_size, answers)
        self.count = count

    def forward(self, x):
        """(B, T) tokens or (B, T, I) vectors to (B, count, answers)."""
        states, _ = self.layer(self.embedding(x))
        return self.output(states[:, -self.count :])


def recall(lag, size, generator):
    """Tokens (B, lag + 1) and the answer (B, 1)."""
    x, y = toy.recall_task(size, lag, VOCAB, generator)
    return x, y[:, None]


def copy_symbols(delay, size, generator):
    """Tokens (B, 2 L + delay) and the answers (B, L)."""
    x, y = toy.copy_task(size, SYMBOLS, VOCAB, generator, delay=delay)
    return x, y[:, -SYMBOLS:]


def adding(length, size, generator):
    """Vectors (B, T, 2) and the sum (B, 1)."""
    x, y = toy.adding_task(size, length, generator)
    return x, y[:, None]


DRAW = {"recall": recall, "copy": copy_symbols, "adding": adding}


def make_reader(task, model, width, memory_bias):
    """An untrained model for a task; `model` is "RNN", "LSTM", "GRU" or one of these and how it starts.

    "LSTM" and "GRU" start with gates that keep the state: the forget and the update gates' bias is
    `memory_bias`. With ", bias 0" the gates start at 1/2. "RNN, identity" starts by keeping the state too:
    its recurrent matrix is the identity (Le, Jaitly and Hinton 2015, arXiv 1504.00941, there with a relu).
    """
    kind, _, start = model.partition(", ")
    layer = LAYERS[kind](2 if task == "adding" else width // 2, width)
    if start == "identity":
        nn.init.eye_(layer.weight_hh_l0)
    elif kind != "RNN":
        set_memory_bias(layer, 0.0 if start == "bias 0" else memory_bias)
    if task == "adding":
        return Reader(layer, 1)
    return Reader(layer, VOCAB, SYMBOLS if task == "copy" else 1, VOCAB)


def set_memory_bias(layer, value):
    """Set the bias of the gates that keep the state: the LSTM's forget gates, the GRU's update gates."""
    if isinstance(layer, LSTM):
        return set_forget_bias(layer, value)
    update = slice(layer.hidden_size, 2 * layer.hidden_size)
    with torch.no_grad():
        for _, _, bias_ih, bias_hh in layer.all_weights:
            bias_ih[update] = value
            bias_hh[update] = 0
    return layer


def answer_loss(answers, y):
    """Cross-entropy of tokens or squared error of numbers, a mean."""
    if y.is_floating_point():
        return F.mse_loss(answers[..., 0], y)
    return F.cross_entropy(answers.flatten(0, 1), y.flatten())


def error(answers, y):
    """Share of wrong tokens, or mean squared error: 0 is best."""
    if y.is_floating_point():
        return F.mse_loss(answers[..., 0], y).item()
    return (answers.argmax(-1) != y).double().mean().item()


def train_reader(model, draw, learning_rate, steps, batch_size, generator, solved=0.005, window=50):
    """Train until the mean error of the last `window` batches is below `solved`, or the steps are over.

    Args:
        model: maps x to answers.
        draw: `draw(size, generator) -> (x, y)`.
        learning_rate: Adam's.
        steps: most steps.
        batch_size: B.
        generator: of the draws.
        solved: mean error at which training ends; each batch is new, so this is no training error.
        window: batches the mean is over.

    Returns:
        Number of steps taken.
    """
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    errors = []
    while len(errors) < steps and not (len(errors) >= window and sum(errors[-window:]) < solved * window):
        x, y = draw(batch_size, generator)
        answers = model(x)
        errors.append(error(answers.detach(), y))
        optimizer.zero_grad()
        answer_loss(answers, y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return len(errors)


@experiment("memory-by-lag", "Recall, copy and adding by the lag that RNN, LSTM and GRU must bridge; gradient by lag.")
def memory_by_lag(
    seed,
    recall_models=("RNN", "RNN, identity", "LSTM", "LSTM, bias 0", "GRU"),
    models=("RNN", "LSTM", "GRU"),
    lags=(5, 10, 20, 40, 60, 100),
    delays=(5, 20, 60),
    lengths=(10, 30, 60),
    recall_steps=600,
    steps=1000,
    width=32,
    memory_bias=5.0,
    batch_size=64,
    learning_rates=(1e-2, 3e-3),
    gradient_lag=60,
    test_size=1000,
):
    """A new model for each lag, all with the same width, most steps and learning rates.

    A model takes the learning rates in turn until one solves the task; if none does, the better one on draws for
    validation is kept. Accuracy and squared error are from further draws. The gradient is that of the recall loss
    with respect to the state so many steps back, before and after training at `gradient_lag`, if that is a lag.
    Not tried for want of time: more learning rates, and the GRU with gates that start at 1/2; add it by
    --set 'recall_models=("RNN", "RNN, identity", "LSTM", "LSTM, bias 0", "GRU", "GRU, bias 0")'.
    """
    options = {"width": width, "memory_bias": memory_bias, "batch_size": batch_size, "test_size": test_size}
    options |= {"learning_rates": learning_rates, "seed": seed}
    results = {}
    for model in recall_models:
        row, gradients = _by_lag("recall", model, lags, recall_steps, gradient_lag=gradient_lag, **options)
        results[f"recall, {model}"] = _accuracies(row, "lags") | {"chance": 1 / (VOCAB - 1)}
        if gradients:
            results[f"gradient, {model}"] = gradients
    for model in models:
        row, _ = _by_lag("copy", model, delays, steps, **options)
        results[f"copy, {model}"] = _accuracies(row, "delays") | {"chance": 1 / (VOCAB - 2)}
        row, _ = _by_lag("adding", model, lengths, steps, **options)
        results[f"adding, {model}"] = {"lengths": row.pop("lags"), "mse": row.pop("error"), **row, "chance": 1 / 6}
    return {"results": results}


def _accuracies(row, name):
    """The row with accuracies in place of errors, and the lags under another name."""
    return {name: row.pop("lags"), "accuracy": [1 - error for error in row.pop("error")], **row}


def _by_lag(task, model, lags, steps, *, seed, width, memory_bias, gradient_lag=None, **options):
    """A model's row of lists, one entry a lag, and its gradients at `gradient_lag`, if that is among the lags."""
    row, gradients = {"lags": list(lags), "error": [], "learning_rate": [], "steps": []}, {}
    for lag in lags:
        draw = functools.partial(DRAW[task], lag)
        start = make_reader(task, model, width, memory_bias)
        trained, found = _best_rate(start, draw, steps, seed=seed, **options)
        for key, value in found.items():
            row[key].append(value)
        if lag == gradient_lag:
            gradients = {"lags": list(range(lag + 1)), "untrained": _gradient(start, draw, seed)}
            gradients["trained"] = _gradient(trained, draw, seed)
    return row | {"parameters": number_of_parameters(start)}, gradients


def _best_rate(start, draw, steps, *, seed, learning_rates, batch_size, test_size, solved=0.005):
    """Train a copy of `start` at each rate until one solves the task; the best by validation, and its scores."""
    best = None
    for learning_rate in learning_rates:
        model = copy.deepcopy(start)
        taken = train_reader(model, draw, learning_rate, steps, batch_size, generator_of(seed, 0), solved)
        valid = _error_on(model, draw(test_size, generator_of(seed, 1)))
        if best is None or valid < best[0]:
            best = valid, model, learning_rate, taken
        if taken < steps:
            break
    _, model, learning_rate, taken = best
    test = _error_on(model, draw(test_size, generator_of(seed, 2)))
    return model, {"error": test, "learning_rate": learning_rate, "steps": taken}


def generator_of(seed, purpose):
    """A source of random numbers for training (0), validation (1) or test (2)."""
    return torch.Generator().manual_seed(1000 * purpose + seed)


@torch.no_grad()
def _error_on(model, batch):
    """The error of a model on (x, y)."""
    x, y = batch
    return error(model(x), y)


def _gradient(model, draw, seed, size=32):
    """Norms of the gradient of the last loss with respect to the state 0, 1, ... steps back, in float64."""
    model = copy.deepcopy(model).double()
    x, y = draw(size, generator_of(seed, 2))

    def loss(h):
        return F.cross_entropy(model.output(h), y[:, 0], reduction="sum")

    return gradient_norm_by_lag(model.layer, model.embedding(x).detach(), loss).tolist()


# --- gates ------------------------------------------------------------------------

MARK = VOCAB  # the token that announces the one to be remembered


def marked_recall(size, length, generator):
    """Draw sequences in which one token stands after a mark: at the end that token is asked for.

    Args:
        size: B.
        length: T, at least 3: random tokens from 1 on, among them the mark; last the question, token 0.
        generator: torch.Generator.

    Returns:
        x: (B, T) int64 tokens, from 0 to `MARK`.
        y: (B,) the marked token.
        where: (B,) its index in x.

    Example:
        >>> x, y, where = marked_recall(2, 6, torch.Generator().manual_seed(0))
        >>> bool((x[torch.arange(2), where] == y).all() and (x[torch.arange(2), where - 1] == MARK).all())
        True
    """
    x = torch.randint(1, VOCAB, (size, length), generator=generator)
    where = torch.randint(1, length - 1, (size,), generator=generator)
    rows = torch.arange(size)
    x[rows, where - 1] = MARK
    x[:, -1] = 0
    return x, x[rows, where], where


def marked_batch(length, size, generator):
    """`marked_recall` in the form of the other tasks: x (B, T) and the answer (B, 1)."""
    x, y, _ = marked_recall(size, length, generator)
    return x, y[:, None]


@experiment("gate-activations", "What the gates of an LSTM do at a token that must be remembered, and around it.")
def gate_activations(
    seed, length=20, width=16, forget_bias=1.0, steps=2000, batch_size=64, learning_rate=1e-2, reach=8, test_size=1000
):
    """The gates' means over sequences and units, by the distance from the marked token, of a trained LSTM."""
    layer = set_forget_bias(LSTM(width, width), forget_bias)
    model = Reader(layer, VOCAB, vocab_size=VOCAB + 1)
    draw = functools.partial(marked_batch, length)
    taken = train_reader(model, draw, learning_rate, steps, batch_size, generator_of(seed, 0))
    row = {"steps": taken, "accuracy": 1 - _error_on(model, draw(test_size, generator_of(seed, 2)))}
    x, _, where = marked_recall(test_size, length, generator_of(seed, 2))
    with torch.no_grad():
        trace = layer.trace(model.embedding(x))
    return {"results": {"marked token": row | gate_statistics(trace, where, reach)}}


def gate_statistics(trace, where, reach):
    """Means of the gates at the marked token, before, after and elsewhere, and by the offset from it.

    Args:
        trace: of `LSTM.trace`: (B, T, D) tensors.
        where: (B,) index of the marked token. The last step, the question, is left out.
        reach: largest offset.

    Returns:
        dict of numbers and of lists over `offsets`.
    """
    T = trace["i"].shape[1] - 1
    offset = torch.arange(T) - where[:, None]  # (B, T)
    offsets = list(range(-reach, reach + 1))
    row = {"offsets": offsets}
    for name, letter in (("input", "i"), ("forget", "f"), ("output", "o")):
        gate = trace[letter][:, :T].mean(-1)  # (B, T)
        row[f"{name}_gate_by_offset"] = [gate[offset == k].mean().item() for k in offsets]
        row[f"{name}_gate_marked"] = gate[offset == 0].mean().item()
        row[f"{name}_gate_elsewhere"] = gate[offset != 0].mean().item()
        row[f"{name}_gate_before"] = gate[offset < 0].mean().item()
        row[f"{name}_gate_after"] = gate[offset > 0].mean().item()
    return row


# --- two forms of the GRU ---------------------------------------------------------

FORMS = {"reset after": GRU, "reset before": ResetBeforeGRU}


@experiment("gru-reset", "The GRU's reset gate after the product, as in torch, and before it, as in the paper.")
def gru_reset(
    seed,
    lags=(10, 40),
    steps=600,
    width=32,
    memory_bias=5.0,
    batch_size=64,
    recall_rate=1e-2,
    characters=200_000,
    hidden=96,
    epochs=2,
    length=64,
    streams=32,
    character_rate=8e-3,
    timed=20,
    test_size=1000,
):
    """Recall; tiny Shakespeare's first characters, small and short; the time of a training step.

    Both forms have equal parameters, data and learning rates. The language model learns from the first
    `characters` only, so its loss is for comparing the two forms; `shakespeare-recurrent` has the full text.
    Only the form of torch has a kernel, so the time of the loop is given for both.
    """
    results, history = {}, {}
    for name, form in FORMS.items():
        rows = []
        for lag in lags:
            model = Reader(set_memory_bias(form(width // 2, width), memory_bias), VOCAB, vocab_size=VOCAB)
            draw = functools.partial(recall, lag)
            taken = train_reader(model, draw, recall_rate, steps, batch_size, generator_of(seed, 0))
            rows.append((1 - _error_on(model, draw(test_size, generator_of(seed, 2))), taken))
        accuracy, taken = (list(column) for column in zip(*rows, strict=True))
        results[f"recall, {name}"] = {"lags": list(lags), "accuracy": accuracy, "steps": taken}
    *parts, V = shakespeare_parts()
    parts = [part[:characters] for part in parts]
    for name, form in FORMS.items():
        model = LanguageModel(V, form(width, hidden))
        row, log = train_language_model(model, *parts, epochs, character_rate, streams, length, seed)
        results[f"characters, {name}"] = {"parameters": number_of_parameters(model), **row}
        history[f"characters, {name}"] = log
    results["time"] = {
        "ms_after_fused": _milliseconds(GRU(width, hidden), "fused", streams, length, timed),
        "ms_after_loop": _milliseconds(GRU(width, hidden), "loop", streams, length, timed),
        "ms_before_loop": _milliseconds(ResetBeforeGRU(width, hidden), "loop", streams, length, timed),
    }
    return {"results": results, "history": history}


def _milliseconds(layer, impl, batch_size, length, times):
    """Median time of a forward and a backward pass."""
    x, taken = torch.randn(batch_size, length, layer.input_size), []
    for _ in range(times):
        start = time.perf_counter()
        layer(x, impl=impl)[0].sum().backward()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)


# --- IMDB -------------------------------------------------------------------------


class LastColumn(SequenceClassifier):
    """The pitfall: reads the state at the last column of a padded batch, as `out[:, -1]` does.

    In a row shorter than the longest that state has read padding after the review.
    """

    def _pooled(self, states, mask, lengths):
        return states[:, -1]


# name: (layer, pool, bidirectional, whether batches are bucketed, how many of a review's last tokens are kept)
CLASSIFIERS = {
    "RNN, last": (RNN, "last", False, True, 200),
    "LSTM, padded end": (LSTM, "padded", False, False, 200),
    "LSTM, last": (LSTM, "last", False, False, 200),
    "LSTM, max": (LSTM, "max", False, True, 200),
    "GRU, max": (GRU, "max", False, True, 200),
    "LSTM, max, 400 tokens": (LSTM, "max", False, True, 400),
    "GRU, max, 400 tokens": (GRU, "max", False, True, 400),
    "bidirectional LSTM, max": (LSTM, "max", True, True, 200),
}


@experiment("imdb-recurrent", "RNN, LSTM, GRU on IMDB's reviews, two epochs from scratch, and where the state is read.")
def imdb_recurrent(
    seed,
    models=("RNN, last", "LSTM, padded end", "LSTM, last", "LSTM, max", "GRU, max", "LSTM, max, 400 tokens"),
    max_size=25_000,
    width=64,
    hidden=64,
    dropout=0.3,
    word_dropout=0.1,
    epochs=2,
    batch_size=64,
    learning_rate=4e-3,
    fraction=0.1,
):
    """The epoch with the best validation accuracy; that model's test accuracy.

    Reviews are cut to their last 200 tokens, or 400. Batches hold reviews of similar length, but "LSTM, last" and
    "LSTM, padded end" see the same batches in random order, since bucketing hides the pitfall. LSTMs start with a
    forget bias of 1. Two epochs are fewer than the models could use; with more time: --set epochs=5. The
    bidirectional LSTM has a run of its own, `imdb-bidirectional`.
    """
    reviews = imdb_reviews(seed, fraction)
    vocab = build_vocab(reviews["train"][0], max_size=max_size)
    results, history = {}, {}
    for name in models:
        kind, pool, bidirectional, bucket, keep = CLASSIFIERS[name]
        splits = {split: _last_tokens(*reviews[split], vocab, keep) for split in ("train", "valid", "test")}
        model = make_classifier(len(vocab), kind(width, hidden, bidirectional=bidirectional), pool, dropout)
        train_batches = functools.partial(_review_batches, *splits["train"], batch_size, bucket, word_dropout, seed)
        row, history[name] = _fit_classifier(model, train_batches, splits["valid"], bucket, epochs, learning_rate)
        results[name] = row | _test_scores(_review_logits(model, splits["test"], bucket), reviews)
    return {"results": results, "history": history}


@experiment("imdb-recurrent-long", "The GRU of `imdb-recurrent` with longer reviews, more dropout and one more epoch.")
def imdb_recurrent_long(seed, models=("GRU, max, 400 tokens",), dropout=0.5, epochs=3):
    """Its form was the best of `imdb-recurrent` on the validation reviews; the other settings are those there."""
    return imdb_recurrent(seed, models, dropout=dropout, epochs=epochs)


@experiment("imdb-bidirectional", "The LSTM of `imdb-recurrent` in two directions: twice the states, slower batches.")
def imdb_bidirectional(seed, models=("bidirectional LSTM, max",)):
    """On its own, because packed sequences make it several times slower on a CPU; settings as in `imdb-recurrent`."""
    return imdb_recurrent(seed, models)


def make_classifier(vocab_size, layer, pool, dropout):
    """A `SequenceClassifier`, or with pool="padded" the one with the pitfall; small embeddings, forget bias 1."""
    if isinstance(layer, LSTM):
        set_forget_bias(layer, 1.0)
    if pool == "padded":
        model = LastColumn(vocab_size, layer, dropout=dropout)
    else:
        model = SequenceClassifier(vocab_size, layer, pool=pool, dropout=dropout)
    nn.init.normal_(model.embedding.weight, std=0.1)  # at torch's 1.0 rare words keep what they started with
    return model


def _last_tokens(token_lists, labels, vocab, keep):
    """The ids of the last `keep` tokens of each review, and the labels."""
    return [torch.tensor(numericalize(tokens[-keep:], vocab)) for tokens in token_lists], labels


def _review_batches(rows, labels, batch_size, bucket, word_dropout, seed, epoch):
    """The training batches of an epoch; a share of the words is hidden behind <unk>, others in each epoch."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    for ids, mask, y in batches(rows, labels, batch_size, bucket=bucket, generator=generator):
        hidden = (torch.rand(ids.shape, generator=generator) < word_dropout) & mask
        yield ids.masked_fill(hidden, UNK), mask, y


def _fit_classifier(model, train_batches, valid, bucket, epochs, learning_rate):
    """Train with the best epoch by validation accuracy; the row and the history."""
    start = time.perf_counter()
    steps = sum(1 for _ in train_batches(1)) * epochs
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, fused=True)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, total_steps=steps, pct_start=0.1)
    history = fit(
        model,
        train_batches,
        classification_loss,
        optimizer,
        epochs=epochs,
        valid_batches=lambda: batches(*valid, 256, bucket=bucket, shuffle=False),
        scheduler=scheduler,
        clip_norm=1.0,
        select="accuracy",
    )
    best = max(history, key=lambda entry: entry["valid_accuracy"])
    row = {"parameters": number_of_parameters(model), "best_epoch": best["epoch"]}
    return row | {"valid_accuracy": best["valid_accuracy"], "seconds": time.perf_counter() - start}, history


@torch.no_grad()
def _review_logits(model, split, bucket):
    """How far the logit of "positive" is above that of "negative", for all rows in their order."""
    rows, _ = split
    model.eval()
    logits = torch.empty(len(rows))
    for ids, mask, where in batches(rows, range(len(rows)), 256, bucket=bucket, shuffle=False):
        logits[where] = model(ids, mask).diff(dim=1)[:, 0]
    return logits
