"""What an LSTM's gates do at a token that matters, what open ones cost, and three forms of the GRU (chapter 05)."""

import copy
import functools
import statistics
import time
import warnings

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence
from tqdm import tqdm

from course_lib import text
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.experiments.memory_tasks import (
    VOCAB,
    Reader,
    error_on,
    generator_of,
    recall,
    set_memory_bias,
    train_reader,
)
from course_lib.experiments.shakespeare_rnn import shakespeare_parts, train_language_model
from course_lib.lstm_gru import GRU, LSTM, ResetBeforeGRU, gru_gates, set_forget_bias
from course_lib.recurrent_models import LanguageModel
from course_lib.utils import number_of_parameters

MARK = VOCAB  # the token that announces the one to be remembered


def marked_recall(size, length, generator):
    """Draw sequences in which one token stands after a mark: at the end that token is asked for.

    Args:
        length: T, at least 3: random tokens from 1 on, among them the mark; last the question, token 0.

    Returns:
        x: (B, T) int64 tokens, from 0 to `MARK`.
        y: (B,) the marked token.
        where: (B,) its index in x.

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
    row = {"steps": taken, "accuracy": 1 - error_on(model, draw(test_size, generator_of(seed, 2)))}
    x, _, where = marked_recall(test_size, length, generator_of(seed, 2))
    with torch.no_grad():
        trace = layer.gate_values(model.embedding(x))
    return {"results": {"marked token": row | gate_statistics(trace, where, reach)}}


def gate_statistics(trace, where, reach):
    """Means of the gates at the marked token, before, after and elsewhere, and by the offset from it.

    Args:
        trace: of `LSTM.gate_values`: (B, T, D) tensors.
        where: (B,) index of the marked token. The last step, the question, is left out.

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
            rows.append((1 - error_on(model, draw(test_size, generator_of(seed, 2))), taken))
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


def gates_without_reset(from_input, h, weight_hh, bias_hh=None):
    """`gru_gates` with r = 1 in place of the reset gate: the update gate is the only one."""
    _, z, _ = gru_gates(from_input, h, weight_hh, bias_hh)
    D = h.shape[-1]
    return torch.ones_like(z), z, (from_input[..., 2 * D :] + F.linear(h, weight_hh, bias_hh)[..., 2 * D :]).tanh()


class OneGateGRU(ResetBeforeGRU):
    """A GRU with an update gate alone. The rows of r are drawn and never used, so it starts as the GRU of that seed."""

    gates = staticmethod(gates_without_reset)


@experiment("gru-one-gate", "The GRU against the same GRU without its reset gate: recall by lag, and characters.")
def gru_one_gate(
    seed,
    lags=(20, 60, 100),
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
    test_size=1000,
):
    """Both start from the same weights of r, z and n, and get equal data and learning rates, those of `gru-reset`.

    In recall the update gate's bias is `memory_bias`, on characters torch's own. Widths are equal, not numbers of
    parameters: without the reset gate a third of those of the layer are never used.
    """
    results, history = {}, {}
    *parts, V = shakespeare_parts()
    parts = [part[:characters] for part in parts]
    for name, form in {"two gates": GRU, "one gate": OneGateGRU}.items():
        rows = []
        for lag in lags:
            torch.manual_seed(seed)
            model = Reader(set_memory_bias(form(width // 2, width), memory_bias), VOCAB, vocab_size=VOCAB)
            draw = functools.partial(recall, lag)
            taken = train_reader(model, draw, recall_rate, steps, batch_size, generator_of(seed, 0))
            rows.append((1 - error_on(model, draw(test_size, generator_of(seed, 2))), taken))
        accuracy, taken = (list(column) for column in zip(*rows, strict=True))
        results[f"recall, {name}"] = {"lags": list(lags), "accuracy": accuracy, "steps": taken}
        torch.manual_seed(seed)
        model = LanguageModel(V, form(width, hidden))
        row, history[f"characters, {name}"] = train_language_model(
            model, *parts, epochs, character_rate, streams, length, seed
        )
        results[f"characters, {name}"] = {"hidden_size": hidden, **row}
    return {"results": results, "history": history}


class ReviewLSTM(nn.Module):
    """The review classifier of chapter 05: embedding, LSTM, the state after each row's last token, two logits."""

    def __init__(self, tokens, width=16, units=32, dropout=0.2):
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        self.lstm = nn.LSTM(width, units, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.readout = nn.Linear(units, 2)

    def forward(self, ids, lengths):
        """Logits (B, 2) of padded ids (B, T); `lengths` (B,) says how many tokens of each row are real."""
        x = self.dropout(self.embed(ids))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        return self.readout(self.dropout(self.lstm(packed)[1][0][-1]))


@torch.no_grad()
def reviews_right(model, ids, labels):
    """The fraction of reviews that a `ReviewLSTM` judges rightly, without dropout."""
    model.eval()
    padded, real = text.pad_batch(ids)
    return (model(padded, real.sum(1)).argmax(1) == torch.tensor(labels)).float().mean().item()


@experiment("gates-price", "What an LSTM that starts with open forget gates costs when reviews must be read in order.")
def gates_price(
    seed,
    biases=(1, 3, 5),
    epochs=(5, 15),
    train_reviews=1400,
    valid_reviews=200,
    test_reviews=400,
    batch_size=32,
    learning_rate=1e-2,
):
    """Chapter 05's reviews (section 7) with torch's initial gates ("default") and with each forget bias.

    Nothing else is changed. The toy reviews are the same for every seed; the seed draws the weights, the dropout and
    the order of the batches.
    "accuracy" has one entry for each number of `epochs`, in rising order, all from one run: what the weights of the
    best epoch so far, by validation accuracy, score on the test reviews.
    """
    drawn = synthetic.reviews(train_reviews + valid_reviews + test_reviews, seed=1)
    tokens, labels = [text.tokenize(review) for review, _ in drawn], [label for _, label in drawn]
    vocab = text.build_vocab(tokens[:train_reviews])
    ids = [text.numericalize(review, vocab) for review in tokens]
    until = train_reviews + valid_reviews
    results, history = {}, {}
    for name, bias in ({"default": None} | {f"bias {bias}": bias for bias in biases}).items():
        torch.manual_seed(seed)
        model = ReviewLSTM(len(vocab))
        if bias is not None:
            set_forget_bias(model.lstm, float(bias))
        optimizer = torch.optim.Adam(model.parameters(), learning_rate)
        order, best, log, tested = generator_of(seed, 0), -1, [], []
        for epoch in tqdm(range(1, max(epochs) + 1), desc=name, leave=False):
            model.train()
            for padded, real, answers in text.batches(
                ids[:train_reviews], labels[:train_reviews], batch_size, generator=order
            ):
                loss = F.cross_entropy(model(padded, real.sum(1)), answers)
                optimizer.zero_grad()
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
            valid = reviews_right(model, ids[train_reviews:until], labels[train_reviews:until])
            log.append({"epoch": epoch, "valid_accuracy": valid})
            if valid > best:
                best, at_best = valid, copy.deepcopy(model)
            if epoch in epochs:
                tested.append(reviews_right(at_best, ids[until:], labels[until:]))
        results[name] = {"epochs": list(epochs), "valid_accuracy": best, "accuracy": tested}
        history[name] = log
    return {"results": results, "history": history}


@experiment(
    "gates-speed", "A training step of torch's LSTM and GRU at equal width and at equal parameters, one CPU core."
)
def gates_speed(seed, width=128, batch_size=32, length=128, rounds=5, times=4):
    """Milliseconds of a forward and a backward pass, and times relative to the LSTM of the same round (medians).

    On a CPU torch computes an LSTM in oneDNN and has no such kernel for a GRU; a third LSTM runs with oneDNN turned
    off. At equal parameters the GRU is wider.
    """
    torch.manual_seed(seed)
    wanted = number_of_parameters(nn.LSTM(width, width))
    wider = min(range(width, 2 * width), key=lambda D: abs(number_of_parameters(nn.GRU(width, D)) - wanted))
    layers = {
        "LSTM": (nn.LSTM(width, width, batch_first=True), True),
        "LSTM, no oneDNN": (nn.LSTM(width, width, batch_first=True), False),
        "GRU": (nn.GRU(width, width, batch_first=True), True),
        "GRU, equal parameters": (nn.GRU(width, wider, batch_first=True), True),
    }
    taken = {name: [] for name in layers}
    for _ in range(rounds):  # all four take turns, so that a busy machine slows them alike
        for name, (layer, kernel) in layers.items():
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "TF32 acceleration")  # of Intel's GPUs: not what is timed
                with torch.backends.mkldnn.flags(enabled=kernel):
                    taken[name].append(_step_milliseconds(layer, batch_size, length, times))
    results = {}
    for name, (layer, _) in layers.items():
        ratios = [own / base for own, base in zip(taken[name], taken["LSTM"], strict=True)]
        results[name] = {
            "hidden_size": layer.hidden_size,
            "parameters": number_of_parameters(layer),
            "milliseconds": statistics.median(taken[name]),
            "times_lstm": statistics.median(ratios),
            "times_lstm_rounds": ratios,
        }
    return {"results": results}


def _step_milliseconds(layer, batch_size, length, times):
    """The median of some forward and backward passes, after one that is not counted."""
    x, taken = torch.randn(batch_size, length, layer.input_size), []
    for _ in range(times + 1):
        start = time.perf_counter()
        layer(x)[0].sum().backward()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken[1:])


def _milliseconds(layer, backend, batch_size, length, times):
    """Median time of a forward and a backward pass."""
    x, taken = torch.randn(batch_size, length, layer.input_size), []
    for _ in range(times):
        start = time.perf_counter()
        layer(x, backend=backend)[0].sum().backward()
        taken.append(time.perf_counter() - start)
    return 1000 * statistics.median(taken)
