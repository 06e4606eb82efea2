"""How far back recurrent layers remember: three memory tasks, and the gradient that reaches back (chapter 05).

Every batch is drawn anew, so what it scores before its step is already a test; the numbers recorded are from draws
that no step has seen.
"""

import copy
import functools

import torch
import torch.nn.functional as F
from torch import nn

from course_lib.bptt import gradient_norm_by_lag
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.experiments.shakespeare_rnn import LAYERS
from course_lib.lstm_gru import GRU, LSTM, set_forget_bias
from course_lib.recurrent_models import SequenceClassifier
from course_lib.rnn import RNN
from course_lib.train import set_seed, train_epoch
from course_lib.utils import number_of_parameters

VOCAB, SYMBOLS = 9, 3  # tokens of the recall and the copy task; symbols to copy


class Reader(nn.Module):
    """Answers read off the last states of a recurrent layer.

    Args:
        layer: `RNN`, `LSTM` or `GRU` in one direction.
        answers: width of an answer: number of tokens, or 1 for a number.
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
    x, y = synthetic.recall_task(size, lag, VOCAB, generator)
    return x, y[:, None]


def copy_symbols(delay, size, generator):
    """Tokens (B, 2 L + delay) and the answers (B, L)."""
    x, y = synthetic.copy_task(size, SYMBOLS, VOCAB, generator, delay=delay)
    return x, y[:, -SYMBOLS:]


def adding(length, size, generator):
    """Vectors (B, T, 2) and the sum (B, 1)."""
    x, y = synthetic.adding_task(size, length, generator)
    return x, y[:, None]


DRAW = {"recall": recall, "copy": copy_symbols, "adding": adding}


def make_reader(task, model, width, memory_bias):
    """An untrained model for a task; `model` is "RNN", "LSTM", "GRU" or one of these and how it starts.

    "LSTM" and "GRU" start with gates that keep the state: the forget and the update gates' bias is
    `memory_bias`. With ", bias 0" the gates start at 1/2, with ", default" as torch starts them. An RNN can start by
    keeping its state too: "RNN, identity" has the identity as recurrent matrix; "RNN, ReLU identity" also a ReLU in
    place of tanh, as its inventors have it (Le, Jaitly and Hinton 2015, arXiv 1504.00941); "RNN, orthogonal" a random
    rotation, small inputs and no biases, so that tanh is nearly a straight line. The last two scale inputs by 0.1.
    """
    kind, _, start = model.partition(", ")
    relu = {"nonlinearity": "relu"} if start == "ReLU identity" else {}
    layer = LAYERS[kind](2 if task == "adding" else width // 2, width, **relu)
    if kind == "RNN" and start:
        keep = nn.init.orthogonal_ if start == "orthogonal" else nn.init.eye_
        keep(layer.weight_hh_l0)
    if start in ("ReLU identity", "orthogonal"):
        with torch.no_grad():
            layer.weight_ih_l0 *= 0.1
            layer.bias_ih_l0.zero_()
            layer.bias_hh_l0.zero_()
    if kind != "RNN" and start != "default":
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
    """Fraction of wrong tokens, or mean squared error: 0 is best."""
    if y.is_floating_point():
        return F.mse_loss(answers[..., 0], y).item()
    return (answers.argmax(-1) != y).double().mean().item()


def train_reader(model, draw, learning_rate, steps, batch_size, generator, solved=0.005, window=50):
    """Train until the mean error of the last `window` batches is below `solved`, or the steps are over.

    Args:
        solved: mean error at which training ends; each batch is new, so this is no training error.
    """

    def loss_fn(model, batch):
        x, y = batch
        answers = model(x)
        wrong = torch.tensor(error(answers.detach(), y), dtype=torch.float64)
        return {"loss": answer_loss(answers, y), "count": 1, "error": wrong}

    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    errors = []
    while len(errors) < steps and not (len(errors) >= window and sum(errors[-window:]) < solved * window):
        means = train_epoch(model, [draw(batch_size, generator)], loss_fn, optimizer, clip_norm=1.0)
        errors.append(means["error"])
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


@experiment("recall-by-start", "Recall by lag of RNN, LSTM and GRU that start in different ways: is it the gates?")
def recall_by_start(
    seed,
    models=("RNN, ReLU identity", "RNN, orthogonal", "RNN, identity", "LSTM, default", "LSTM", "GRU, default", "GRU"),
    lags=(20, 40, 60, 100),
    steps=600,
    width=32,
    memory_bias=5.0,
    batch_size=64,
    learning_rates=(1e-2, 3e-3, 1e-3),
    test_size=1000,
):
    """The recall task of `memory-by-lag`, with one learning rate more; `make_reader` says how each model starts."""
    options = {"width": width, "memory_bias": memory_bias, "batch_size": batch_size, "test_size": test_size}
    results = {}
    for model in models:
        row, _ = _by_lag("recall", model, lags, steps, learning_rates=learning_rates, seed=seed, **options)
        results[model] = _accuracies(row, "lags") | {"chance": 1 / (VOCAB - 1)}
    return {"results": results}


@experiment(
    "recall-32", "Chapter 05's opening experiment, with more seeds: recall at lag 32 by forget bias, and rivals."
)
def recall_32(
    seed,
    biases=(0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0),
    wide=76,
    lag=32,
    steps=250,
    width=32,
    batch_size=64,
    learning_rate=1e-2,
    test_size=1000,
):
    """Exactly what the chapter runs live, for LSTMs of several forget biases, RNNs of two widths, and a default GRU.

    With `wide` units the RNN's layer has as many parameters as the LSTM's with `width`, within 2 %. Nothing is tuned.
    """
    layers = {f"LSTM, bias {bias:g}": lambda b=bias: set_forget_bias(LSTM(width, width), b) for bias in biases}
    layers["GRU, default"] = lambda: GRU(width, width)
    for units in (width, wide):
        layers[f"RNN, {units} units"] = lambda units=units: RNN(width, units)
    results = {}
    for name, make in layers.items():
        set_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        model = SequenceClassifier(6, make(), num_classes=6, embedding_std=1.0)
        optimizer = torch.optim.Adam(model.parameters(), learning_rate)
        for _ in range(steps):
            ids, answers = synthetic.recall_task(batch_size, lag, 6, generator)
            loss = F.cross_entropy(model(ids), answers)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        ids, answers = synthetic.recall_task(test_size, lag, 6, generator)
        with torch.no_grad():
            accuracy = (model(ids).argmax(1) == answers).float().mean().item()
        results[name] = {"accuracy": accuracy, "parameters": number_of_parameters(model.layer)}
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
        valid = error_on(model, draw(test_size, generator_of(seed, 1)))
        if best is None or valid < best[0]:
            best = valid, model, learning_rate, taken
        if taken < steps:
            break
    _, model, learning_rate, taken = best
    test = error_on(model, draw(test_size, generator_of(seed, 2)))
    return model, {"error": test, "learning_rate": learning_rate, "steps": taken}


def generator_of(seed, purpose):
    """A source of random numbers for training (0), validation (1) or test (2)."""
    return torch.Generator().manual_seed(1000 * purpose + seed)


@torch.no_grad()
def error_on(model, batch):
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
