"""Measure the speed of the course against its goals: `make bench`, or `python -m benchmarks.bench --only padding`.

Speeds are compared, not stated: the candidates run in the same process, in rounds, in reversed
order every other round, and each round gives one ratio. The table shows the median ratio and its
quartiles, which other work on the machine hardly moves. Times are the process's own (one thread),
except where a reader waits: opening a chapter is measured by the clock on the wall.

An item is a function that returns rows; add it to ITEMS. The table goes to the ledger as
`results/bench.json`. The exit status is 1 if a goal is missed.
"""

import argparse
import functools
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import bench_gpt
from benchmarks.timing import Row, compare, quartiles, ratio, table, timed
from course_lib import datasets, experiments, text, train
from course_lib.attention import MultiHeadAttention, attention
from course_lib.cost import measure
from course_lib.datasets import synthetic
from course_lib.experiments.imdb_tutorial import TutorialClassifier
from course_lib.functional import padding_mask
from course_lib.lstm_gru import GRU, LSTM
from course_lib.notebook import ledger
from course_lib.positional import Sinusoidal
from course_lib.rnn import RNN
from course_lib.transformer import EncoderLayer, TransformerEncoder
from course_lib.transformer_models import TransformerClassifier

NOTEBOOKS = Path(__file__).resolve().parent.parent / "notebooks"
BATCH = 64  # reviews in a batch


def tokenising():
    """Reviews to padded batches of ids: ours against torchtext's basic_english tokeniser and its Field."""
    import torchtext

    texts, _, source = reviews()
    basic_english = torchtext.data.utils.get_tokenizer("basic_english")
    field = torchtext.data.Field(tokenize=basic_english, batch_first=True)
    field.build_vocab([basic_english(review) for review in texts[:2500]])
    vocab = text.build_vocab(text.tokenize(review) for review in texts[:2500])
    chunks = [texts[start : start + BATCH] for start in range(0, len(texts), BATCH)]

    def ours():
        for chunk in chunks:
            text.pad_batch([text.numericalize(text.tokenize(review), vocab) for review in chunk])

    def fields():
        for chunk in chunks:
            field.process([field.preprocess(review) for review in chunk])  # pads and numericalises

    whole = compare({"ours": ours, "torchtext": fields}, rounds=5)
    some = texts[:2500]
    tokenizers = {"ours": lambda: [*map(text.tokenize, some)], "torchtext": lambda: [*map(basic_english, some)]}
    alone = compare(tokenizers, rounds=5)
    seconds = statistics.median(whole["ours"])
    return [
        timed("text to padded ids: times ahead of torchtext", ratio(whole, "torchtext", "ours"), 2.0, "higher", source),
        timed(
            "tokenize alone: times ahead of basic_english", ratio(alone, "torchtext", "ours"), None, "higher", source
        ),
        Row(f"text to padded ids, {len(texts):,} reviews (s)", seconds, note=source),
    ]


def padding():
    """What bucketing saves: the share of padding, and the time of an epoch of a recurrent classifier."""
    return [*_padding_at(200, None), *_padding_at(400, 0.80)]


def _padding_at(length, goal):
    """Rows for reviews cut at `length` tokens; no ratio of times can be far below the share of real tokens."""
    sequences, labels, vocab_size, source = numbers(20 * BATCH, length)
    ways = {
        "fixed length": lambda: _fixed_batches(sequences, labels, length),
        "batches in order": lambda: text.batches(sequences, labels, BATCH, bucket=False, shuffle=False),
        "bucketed": lambda: text.batches(sequences, labels, BATCH, generator=torch.Generator().manual_seed(0)),
    }
    real = sum(map(len, sequences))
    rows = []
    for name, batches in ways.items():
        share = 1 - real / sum(mask.numel() for _, mask, _ in batches())
        rows.append(Row(f"share of padding, cut at {length}, {name}", share, note=source))
    model = Recurrent(vocab_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    epochs = {name: functools.partial(_epoch, model, optimizer, ways[name]) for name in ("fixed length", "bucketed")}
    found = ratio(compare(epochs, rounds=5), "bucketed", "fixed length")
    rows.append(timed(f"training epoch, cut at {length}, bucketed / fixed length (GRU)", found, goal, "lower", source))
    return rows


LAYERS = {  # ours, torch's, and the goal of the loop
    "RNN": (RNN, nn.RNN, 1.00),
    "LSTM": (LSTM, nn.LSTM, 1.10),
    "GRU": (GRU, nn.GRU, 1.15),
}


SIZES = ((32, 128, 128), (64, 256, 256))  # B, T, D


def recurrent():
    """Both paths of the recurrent layers against torch.nn's on the same weights: a forward and a backward pass.

    Of the three, torch's LSTM alone has a kernel of oneDNN: 1.5 times as fast as torch's own loop on one processor, 2.7
    times on another. So our loop of the LSTM is held against that loop, which torch runs without oneDNN.
    """
    rows = []
    for name, (ours, theirs, loop_goal) in LAYERS.items():
        for B, T, D in SIZES:
            layer, base, x = _same_weights(ours, theirs, B, T, D)
            assert torch.equal(layer(x)[0], base(x)[0]), f"{name}: the fast path is not torch.nn's"
            torch.testing.assert_close(layer(x, backend="loop")[0], base(x)[0], msg=f"{name}: the loop is wrong")
            ways = {
                "fused": _passes(layer, layer, x),
                "loop": _passes(functools.partial(layer, backend="loop"), layer, x),
                "torch.nn": _passes(base, base, x),
            }
            rivals = [("fused", "torch.nn", 1.05), ("loop", "torch.nn", loop_goal)]
            if name == "LSTM":
                ways["torch.nn's loop"] = _passes(functools.partial(without_onednn, base), base, x)
                rivals[1:] = [("loop", "torch.nn", None), ("loop", "torch.nn's loop", loop_goal)]
            samples = compare(ways)
            for way, other, goal in rivals:
                note = "forward and backward" + ("; outputs bit-equal" if way == "fused" else "")
                found = ratio(samples, way, other)
                rows.append(timed(f"{name} {way} / {other}, {_size(B, T, D)}", found, goal, "lower", note))
    return rows


def without_onednn(layer, x):
    """The layer's result where torch may not use oneDNN."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it says that this computer has no Intel GPU
        with torch.backends.mkldnn.flags(enabled=False):
            return layer(x)


def published_lstms():
    """Our LSTM against two that are written out in well-known courses: forward and backward."""
    B, T, D = 32, 35, 64
    layer, _, x = _same_weights(LSTM, nn.LSTM, B, T, D)
    h = c = torch.zeros(B, D)
    # Their weights in the form in which they keep them: one bias a gate, for d2l also one matrix a gate, transposed.
    weight_ih, weight_hh, *biases = (weight.detach() for weight in layer.all_weights[0])
    apart = [part.t().contiguous() for weight in (weight_ih, weight_hh) for part in weight.chunk(4)]
    published = {
        "labml": (one_product_lstm, [weight_ih, weight_hh, sum(biases)]),
        "d2l": (eight_product_lstm, [*apart, *sum(biases).chunk(4)]),
    }
    ways, time_first = {"ours": _passes(layer, layer, x)}, x.transpose(0, 1).contiguous()
    for name, (function, weights) in published.items():
        weights = [weight.clone().requires_grad_() for weight in weights]
        run = functools.partial(function, h=h, c=c, weights=weights)
        torch.testing.assert_close(run(time_first)[0].transpose(0, 1), layer(x)[0], msg=f"{name}: another function")
        ways[name] = _passes(run, weights, time_first)
    samples = compare(ways, rounds=9)
    note = "forward and backward; its operations typed again"
    return [
        timed(f"LSTM: times ahead of {name}'s, {_size(B, T, D)}", ratio(samples, name, "ours"), goal, "higher", note)
        for name, goal in (("labml", 2.3), ("d2l", 2.8))
    ]


def one_product_lstm(x, h, c, weights):
    """The operations of labml's annotated LSTM: at each step one product with x, one with h, then four gates.

    Left out: the modules around them, and the identities that stand for its layer normalisation.
    """
    weight_ih, weight_hh, bias = weights
    outputs = []
    for x_t in x:
        i, f, g, o = (F.linear(h, weight_hh, bias) + F.linear(x_t, weight_ih)).chunk(4, dim=-1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)


def eight_product_lstm(x, h, c, weights):
    """The operations of d2l's LSTM from scratch: at each step two products and a bias for each of the four gates."""
    of_x, of_h, biases = weights[:4], weights[4:8], weights[8:]
    outputs = []
    for x_t in x:
        i, f, g, o = (x_t @ u + h @ w + b for u, w, b in zip(of_x, of_h, biases, strict=True))
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        h = o.sigmoid() * c.tanh()
        outputs.append(h)
    return torch.stack(outputs), (h, c)  # there the outputs stay a list, stacked before the loss


def decoding():
    """Writing with an LSTM, one token after another: our step against calling torch.nn.LSTM on single steps."""
    rows = []
    for D in (128, 256):
        layer, base, x = _same_weights(LSTM, nn.LSTM, 1, 100, D)
        with torch.inference_mode():
            ways = {
                "ours": functools.partial(_steps, layer.step, x.unbind(1)),
                "torch.nn": functools.partial(_steps, base, x.split(1, dim=1)),
            }
            torch.testing.assert_close(ways["ours"]()[0], ways["torch.nn"]()[0])
            samples = compare(ways, rounds=9)
        name = f"LSTM one step at a time: times ahead of torch.nn, B 1 D {D}"
        rows.append(timed(name, ratio(samples, "torch.nn", "ours"), 2.5, "higher", "100 steps without gradients"))
    return rows


def attention_layers():
    """The attention layer against torch.nn's and a tutorial's on the same weights: forward, and back to the input."""
    torch.manual_seed(0)
    B, T, D, H = 32, 128, 256, 4
    base, x = nn.MultiheadAttention(D, H, batch_first=True), torch.randn(B, T, D)
    layer = MultiHeadAttention(D, H)
    layer.load_state_dict(base.state_dict())
    name, note = f"attention layer / torch.nn without weights, {_size(B, T, D)} H {H}", "forward and backward"
    ways = {"ours": layer, "torch.nn": lambda x: base(x, x, x, need_weights=False)[0]}
    samples = _compare_passes(ways, (layer, base), x)
    rows = [timed(name, ratio(samples, "ours", "torch.nn"), 0.97, "lower", note)]

    layer, tutorial, x = tutorial_sizes()
    B, T, D, H = *x.shape, layer.num_heads
    ways = {"ours": layer, "tutorial": lambda x: tutorial(x)[0]}
    samples = _compare_passes(ways, (layer, tutorial), x)
    name = f"attention layer: times ahead of the tutorial's, {_size(B, T, D)} H {H}"
    return [
        *rows,
        timed(name, ratio(samples, "tutorial", "ours"), 1.8, "higher", f"{note}; its operations typed again"),
    ]


def attention_memory():
    """Peak memory of the attention layer against the tutorial's, forward and backward, in fresh processes."""
    found = {
        name: peak_mb(f"benchmarks.bench.memory_of_layer({name!r})") for name in ("ours", "tutorial", "projections")
    }
    size, share = f"{_size(128, 200, 32)} H 2", None
    if None not in found.values():
        share = (found["ours"] - found["projections"]) / (found["tutorial"] - found["projections"])
    note = "what attention adds to the products and gradients that both have"
    rows = [Row(f"attention layer: extra peak memory / the tutorial's, {size}", share, 0.1, note=note)]
    for name, mb in found.items():
        rows.append(Row(f"attention layer: peak memory (MiB), {name}, {size}", mb, note="forward and backward"))
    return rows


def attention_paths():
    """Time and extra memory of both paths of `attention` over T: forward and backward, without goals."""
    rows = []
    for T in (128, 512, 2048):
        shape = (max(1, 4096 // T), 4, T, 64)  # as many tokens at every T
        q, k, v = torch.randn(3, *shape).requires_grad_()
        ways = {way: _backwards(functools.partial(attention, backend=way), q, k, v) for way in ("math", "sdpa")}
        name = f"B {shape[0]} H 4 T {T} K 64"
        rows.append(
            timed(f"attention, math / sdpa, {name}", ratio(compare(ways, 5), "math", "sdpa"), None, "lower", "")
        )
        for way in ways:
            mb = peak_mb(f"benchmarks.bench.memory_of_path({way!r}, {shape})")
            rows.append(Row(f"attention, peak memory (MiB), {way}, {name}", mb, note="forward and backward"))
    return rows


def attention_dropout():
    """Dropout of attention weights: our path of few rows at a time against torch's kernel."""
    rows = []
    for shape, goal in (((128, 2, 200, 16), 2.3), ((32, 4, 128, 64), 1.15)):
        q, k, v = torch.randn(3, *shape).requires_grad_()
        ways = {
            "ours": _backwards(functools.partial(attention, dropout_p=0.1), q, k, v),
            "torch": _backwards(functools.partial(F.scaled_dot_product_attention, dropout_p=0.1), q, k, v),
        }
        name = f"attention with dropout 0.1: times ahead of torch, B H T K {shape}"
        rows.append(timed(name, ratio(compare(ways), "torch", "ours"), goal, "higher", "forward and backward"))
    return rows


def encoder_training():
    """One training step of an encoder layer against torch.nn's on the same weights."""
    rows = []
    B, T, D, H, F_ = ENCODER
    for p, goal in ((0.0, 1.02), (0.1, 0.93)):
        torch.manual_seed(0)
        base = nn.TransformerEncoderLayer(D, H, F_, p, batch_first=True)
        layer, x = EncoderLayer(D, H, F_, p), torch.randn(B, T, D)
        layer.load_state_dict(base.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(layer.eval()(x), base.train()(x) if p == 0 else base.eval()(x))
        ways = {"ours": _training_step(layer.train(), x), "torch.nn": _training_step(base.train(), x)}
        name = f"encoder layer, training step / torch.nn, dropout {p}, {_size(B, T, D)} F {F_}"
        note = "forward, backward, AdamW"
        rows.append(timed(name, ratio(compare(ways), "ours", "torch.nn"), goal, "lower", note))
    return rows


ENCODER = (32, 128, 256, 4, 1024)  # B, T, D, H, F


def encoder_inference():
    """Two encoder layers in inference against torch.nn's fast path: whole batches, and texts of many lengths."""
    torch.manual_seed(0)
    B, T, D, H, F_ = ENCODER
    base = nn.TransformerEncoder(nn.TransformerEncoderLayer(D, H, F_, batch_first=True), 2).eval()
    encoder = TransformerEncoder([EncoderLayer(D, H, F_) for _ in range(2)]).eval()
    encoder.load_state_dict(base.state_dict())
    lengths = torch.randint(T * 2 // 5, T + 1, (4 * B,))
    texts = [torch.randn(length, D) for length in lengths.tolist()]
    in_order, bucketed = _padded(texts, range(4 * B), B), _padded(texts, lengths.argsort().tolist(), B)
    x = torch.randn(B, T, D)
    with torch.inference_mode(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The PyTorch API of nested tensors")
        dense = {"ours": lambda: encoder(x), "torch.nn": lambda: base(x)}
        torch.testing.assert_close(*(way() for way in dense.values()))
        padded = {
            "ours": lambda: [encoder(x, padding_mask(real)) for x, real in bucketed],
            "ours, in order": lambda: [encoder(x, padding_mask(real)) for x, real in in_order],
            "torch.nn": lambda: [base(x, src_key_padding_mask=~real) for x, real in in_order],
        }
        torch.testing.assert_close(padded["ours, in order"](), padded["torch.nn"]())
        size = f"{_size(B, T, D)} F {F_}"
        whole, samples = compare(dense), compare(padded)
    name, whole = "encoder, inference", ratio(whole, "ours", "torch.nn")
    note = f"texts of mean length {lengths.float().mean():.0f}; torch.nn in order, with nested tensors"
    in_order, similar = (ratio(samples, way, "torch.nn") for way in ("ours, in order", "ours"))
    return [
        timed(f"{name} / torch.nn, {size}", whole, 1.03, "lower", "2 layers"),
        timed(f"{name}, padded / torch.nn: both in order", in_order, 1.05, "lower", note),
        timed(f"{name}, padded / torch.nn: ours with similar lengths together", similar, None, "lower", note),
    ]


def imdb_step():
    """One training step of the tutorial's classifier of reviews, its code against ours with the same mathematics."""
    ids, labels = generated_ids(128, 200, 50_002)
    models = imdb_models()
    with torch.no_grad():
        outputs = {name: model.eval()(ids) for name, model in models.items()}
        for name in ("ours", "ours without dropout of weights", "torch.nn"):
            torch.testing.assert_close(outputs[name], outputs["tutorial"], msg=f"{name}: another function")
    ways = {}
    for name, model in models.items():
        optimizer = torch.optim.AdamW(model.train().parameters(), 1e-3, fused=name.startswith("ours"))
        ways[name] = functools.partial(_classify, model, optimizer, ids, labels)
    samples = compare(ways)
    note = "forward, backward, AdamW; generated reviews, B 128 T 200, vocabulary 50,002"
    return [
        timed(f"IMDB step{name}", ratio(samples, base, way), goal, "higher", note)
        for name, base, way, goal in (
            (": times ahead of the tutorial's", "tutorial", "ours", 1.6),
            (" without dropout of attention weights: times ahead", "tutorial", "ours without dropout of weights", 2.7),
            (": times ahead of torch.nn's parts", "torch.nn", "ours", 1.9),
            (", as many dropouts: times ahead of torch.nn's parts", "torch.nn", "ours, all dropouts", None),
        )
    ]


def _same_weights(ours, theirs, B, T, D):
    """Our layer and torch's with the same weights, and an input for them."""
    torch.manual_seed(0)
    base = theirs(D, D, batch_first=True)
    layer = ours(D, D)
    layer.load_state_dict(base.state_dict())
    return layer, base, torch.randn(B, T, D)


def _passes(run, weights, x):
    """A function that runs a layer forward and back to its weights."""
    weights = list(weights.parameters()) if isinstance(weights, nn.Module) else weights
    direction = torch.ones_like(run(x)[0])
    return lambda: torch.autograd.grad(run(x)[0], weights, direction)


def _steps(step, inputs):
    """The last state of a decoder that is called with one input after another."""
    state = None
    for x in inputs:
        _, state = step(x, state)
    return state


def _size(B, T, D):
    """A size as it stands in the table."""
    return f"B {B} T {T} D {D}"


def importing():
    """CPU seconds that the package adds to `import torch`, in fresh interpreters."""
    everything = "; ".join(f"import course_lib.{name}" for name in _modules())
    added = {"import course_lib": [], "import every module": []}
    for number in range(7):
        order = list(added) if number % 2 == 0 else reversed(added)
        for name in order:
            added[name].append(_import_seconds("import course_lib" if name == "import course_lib" else everything))
    note = "CPU s over `import torch`, fresh interpreters"
    return [
        timed("import course_lib (s)", quartiles(added["import course_lib"]), 0.05, "lower", note),
        timed("import every module of course_lib (s)", quartiles(added["import every module"]), None, "lower", note),
    ]


def opening():
    """Seconds from starting a kernel on chapter 01 to its first figure, as a reader waits for it."""
    name = "chapter 01 to its first figure (s)"
    found = sorted(NOTEBOOKS.glob("01_*.ipynb"))
    if not found:
        return [Row(name, None, 5.0, note="skipped: there is no notebooks/01_*.ipynb")]
    wall, cpu = zip(*[_seconds_to_first_figure(found[0]) for _ in range(3)], strict=True)
    if None in wall:
        return [Row(name, None, 5.0, note="skipped: the notebook shows no figure")]
    note = f"wall clock, {os.cpu_count()} cores, lowest and highest of 3"
    return [
        Row(name, statistics.median(wall), 5.0, "lower", min(wall), max(wall), note),
        Row("the same, CPU seconds of the kernel", statistics.median(cpu), None, "lower", min(cpu), max(cpu)),
    ]


ITEMS = (
    tokenising,
    padding,
    recurrent,
    published_lstms,
    decoding,
    attention_layers,
    attention_memory,
    attention_paths,
    attention_dropout,
    encoder_training,
    encoder_inference,
    imdb_step,
    bench_gpt.gpt_training,
    bench_gpt.gpt_dropout,
    bench_gpt.gpt_writing,
    bench_gpt.gpt2_writing,
    importing,
    opening,
)


class Recurrent(nn.Module):
    """A small classifier whose cost grows with T, as in every later chapter: a GRU's states, averaged."""

    def __init__(self, vocab_size, width=32, hidden=64):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.gru = nn.GRU(width, hidden, batch_first=True)
        self.output = nn.Linear(hidden, 2)

    def forward(self, ids, real):
        """Logits (B, 2) from ids (B, T) and real (B, T), True = a real token."""
        states, _ = self.gru(self.embedding(ids))  # (B, T, hidden)
        weights = real.unsqueeze(-1).to(states.dtype)
        return self.output((states * weights).sum(1) / weights.sum(1))


class TutorialAttention(nn.Module):
    """The operations of a tutorial's attention layer: four products, and the weights given back besides."""

    def __init__(self, d_model, num_heads):
        super().__init__()
        self.num_heads = num_heads
        self.q_proj = nn.Linear(d_model, d_model, bias=False)
        self.k_proj = nn.Linear(d_model, d_model, bias=False)
        self.v_proj = nn.Linear(d_model, d_model, bias=False)
        self.out_proj = nn.Linear(d_model, d_model)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x):
        """(B, T, D) to (B, T, D)."""
        q, k, v = (self._heads(project(x)) for project in (self.q_proj, self.k_proj, self.v_proj))
        heads, weights = self.attend(q, k, v)
        return self.out_proj(heads.transpose(1, 2).contiguous().view(x.shape)), weights

    def attend(self, q, k, v):
        """(B, H, T, K) and the weights (B, H, T, T)."""
        scores = torch.matmul(q / math.sqrt(q.shape[-1]), k.transpose(2, 3))
        weights = self.dropout(torch.softmax(scores, dim=-1))
        return torch.matmul(weights, v), weights

    def _heads(self, x):
        """(B, T, D) to (B, H, T, K)."""
        return x.view(len(x), -1, self.num_heads, x.shape[-1] // self.num_heads).transpose(1, 2)


def tutorial_sizes():
    """Our attention layer and the tutorial's with the same weights, and an input, at the tutorial's sizes."""
    torch.manual_seed(0)
    B, T, D, H = 128, 200, 32, 2
    layer, tutorial = MultiHeadAttention(D, H), TutorialAttention(D, H)
    _load_attention(layer, tutorial)
    return layer, tutorial, torch.randn(B, T, D)


class StockClassifier(nn.Module):
    """The tutorial's classifier of reviews from the parts of torch.nn."""

    def __init__(self, tutorial, dropout=0.1):
        super().__init__()
        D, H, F_ = tutorial.embedding.embedding_dim, tutorial.layer.num_heads, tutorial.layer.linear1.out_features
        self.embedding, self.norm = nn.Embedding(*tutorial.embedding.weight.shape, 1), nn.LayerNorm(D, 1e-12)
        self.register_buffer("positions", tutorial.positions)
        self.dropout = nn.Dropout(dropout)
        layer = nn.TransformerEncoderLayer(D, H, F_, dropout, layer_norm_eps=1e-6, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.output = nn.Linear(D, 2)

    def forward(self, ids):
        """(B, T) ids to logits (B, 2)."""
        x = self.norm(self.dropout(self.embedding(ids) + self.positions[: ids.shape[1]]))
        return self.output(self.encoder(x).max(dim=1).values)


def imdb_models(vocab_size=50_002):
    """The tutorial's classifier of reviews, the same from torch.nn's parts, and ours with three choices of dropout."""
    torch.manual_seed(0)
    tutorial = TutorialClassifier(vocab_size)
    models = {"tutorial": tutorial, "torch.nn": StockClassifier(tutorial)}
    D, H, F_ = 32, 2, 128
    dropouts = {"ours": (0.0, 0.1), "ours without dropout of weights": (0.0, 0.0), "ours, all dropouts": (0.1, 0.1)}
    for name, (p, attention_p) in dropouts.items():
        layer = EncoderLayer(D, H, F_, p, attention_dropout=attention_p)
        encoder, position = TransformerEncoder([layer]), Sinusoidal(D)
        models[name] = TransformerClassifier(
            vocab_size, encoder, position=position, pool="max", dropout=0.1, scale=1.0, norm=True
        )
    for name, model in models.items():
        if name != "tutorial":
            _load_tutorial(model, tutorial)
    return models


def _load_tutorial(model, tutorial):
    """Give ours, or the one from torch.nn's parts, the tutorial's weights."""
    ours = isinstance(model, TransformerClassifier)
    embedding, norm = (model.embedding.embedding, model.embedding.norm) if ours else (model.embedding, model.norm)
    layer = model.encoder.layers[0]
    _load_attention(layer.self_attn, tutorial.layer)
    pairs = [(embedding, tutorial.embedding), (norm, tutorial.norm), (model.output, tutorial.output)]
    names = ("linear1", "linear2", "norm1", "norm2")
    pairs += [(getattr(layer, name), getattr(tutorial.layer, name)) for name in names]
    for mine, theirs in pairs:
        mine.load_state_dict(theirs.state_dict())
        if isinstance(mine, nn.LayerNorm):
            mine.eps = theirs.eps


def _load_attention(layer, tutorial):
    """Give a layer with torch's names the weights of one that has three matrices, and no bias there."""
    parts = [getattr(tutorial, f"{name}_proj").weight for name in "qkv"]
    with torch.no_grad():
        layer.in_proj_weight.copy_(torch.cat(parts))
        layer.in_proj_bias.zero_()
    layer.out_proj.load_state_dict(tutorial.out_proj.state_dict())


def generated_ids(B, T, vocab_size):
    """Ids (B, T) and labels as of reviews: log-normal lengths with median 174, frequencies as Zipf's, padding is 1."""
    generator = torch.Generator().manual_seed(0)
    ids = (vocab_size ** torch.rand(B, T, generator=generator)).long().clamp(2, vocab_size - 1)  # p(id) ~ 1 / id
    lengths = 174 * torch.randn(B, 1, generator=generator).mul(0.7).exp()
    return ids.masked_fill(torch.arange(T) >= lengths, 1), torch.arange(B) % 2


def _classify(model, optimizer, ids, labels):
    """One training step of a classifier."""
    optimizer.zero_grad()
    F.cross_entropy(model(ids), labels).backward()
    optimizer.step()


def _training_step(model, x):
    """A function that does one training step of a layer."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4)

    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


def _compare_passes(ways, models, x):
    """Times of functions that compute the same from x, forward and back to x and to the weights."""
    x.requires_grad_()
    torch.testing.assert_close(*(way(x) for way in ways.values()), msg="another function")
    both = zip(ways.items(), models, strict=True)
    return compare({name: _backwards(way, x, weights=model.parameters()) for (name, way), model in both})


def _backwards(function, *inputs, weights=()):
    """A function that runs another forward and back to inputs and weights."""
    direction, wanted = torch.ones_like(function(*inputs)), [*inputs, *weights]
    return lambda: torch.autograd.grad(function(*inputs), wanted, direction)


def _padded(texts, order, B):
    """Batches of texts (length, D) in this order, and which vectors are real: a list of (x, real)."""
    batches = []
    for start in range(0, len(texts), B):
        rows = [texts[i] for i in order[start : start + B]]
        lengths = torch.tensor([len(row) for row in rows])
        real = torch.arange(max(lengths)) < lengths[:, None]
        batches.append((nn.utils.rnn.pad_sequence(rows, batch_first=True), real))
    return batches


def memory_of_layer(name):
    """Run the attention layer of that name forward and back; "projections" stands for one that does not attend."""
    layer, tutorial, x = tutorial_sizes()
    if name == "projections":
        tutorial.attend = lambda q, k, v: (q + 2 * k + 3 * v, None)  # with a gradient of its own for each
    run = layer if name == "ours" else lambda x: tutorial(x)[0]
    return _backwards(run, x.requires_grad_(), weights=(layer if name == "ours" else tutorial).parameters())


def memory_of_path(backend, shape):
    """Run `attention` forward and back on one of its paths."""
    q, k, v = torch.randn(3, *shape).requires_grad_()
    return _backwards(functools.partial(attention, backend=backend), q, k, v)


def peak_mb(call):
    """What the function that `call` gives adds to a fresh process's memory at its peak, in MiB; None off Linux."""
    (peak,) = measure.peak_memory(["function()"], f"import benchmarks.bench; function = {call}")
    return None if peak is None else peak / 2**20


@functools.cache
def reviews():
    """Texts, labels and what they are: IMDB's training reviews if the cache has them, else generated ones."""
    if (datasets.cache_folder() / "imdb" / "train.jsonl.xz").exists():
        texts, labels = datasets.imdb("train")
        return texts, labels, "25,000 IMDB reviews"
    rng = random.Random(0)
    sentences = synthetic.reviews(1000, seed=0)
    texts, labels = [], []
    for _ in range(2560):  # as long as IMDB's: log-normal, median 174 tokens
        wanted, parts = rng.lognormvariate(math.log(174), 0.7), []
        while sum(len(part.split()) for part in parts) < wanted:
            parts.append(rng.choice(sentences)[0])
        texts.append(" ".join(parts))
        labels.append(len(labels) % 2)
    return texts, labels, "2,560 generated reviews (no IMDB in the data cache)"


def numbers(count, length):
    """The first reviews as lists of at most `length` ids; with labels, vocabulary size and what they are."""
    texts, labels, source = reviews()
    tokens = [text.tokenize(review) for review in texts[:count]]
    vocab = text.build_vocab(tokens, max_size=20_000)
    sequences = [text.numericalize(review, vocab)[:length] for review in tokens]
    return sequences, torch.tensor(labels[:count]), len(vocab), f"the first {count:,} of {source}"


def record(rows, seconds):
    """The rows in the ledger's form: one run, one variant a row.

    Args:
        rows: list of Row.
        seconds: how long the whole measurement took.

    Returns:
        dict, for `ledger.save`.
    """
    results = {}
    for row in rows:
        kept = {"measured": row.measured, "low": row.low, "high": row.high, "goal": row.goal, "passed": row.passed}
        results[row.name] = {key: value for key, value in kept.items() if value is not None} | {"note": row.note}
    return {
        "experiment": "bench",
        "summary": "Speed against the goals: ratios of times in the same round, median and quartiles.",
        "command": "python -m benchmarks.bench",
        "config": {"batch_size": BATCH},
        **experiments.conditions("cpu"),
        "runs": [{"seed": 0, "seconds": round(seconds, 1), "peak_mb": None, "results": results, "history": {}}],
    }


def main(arguments=None):
    """Measure, print the table, write the ledger's file.

    Args:
        arguments: list of str; None takes the command line's.

    Returns:
        Exit status: 0, or 1 if a goal is missed.
    """
    items = {item.__name__: item for item in ITEMS}
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bench", description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", nargs="+", choices=items, help="measure these and record nothing")
    parser.add_argument("--out", metavar="FOLDER", help="write here instead of the repository's ledger")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    start = time.perf_counter()
    rows = []
    for name in options.only or items:
        print(f"measuring: {name}", file=sys.stderr)
        rows += items[name]()
    print(table(rows))
    if not options.only:
        ledger.save(record(rows, time.perf_counter() - start), options.out)
    return int(any(row.passed is False for row in rows))


def _epoch(model, optimizer, batches):
    """One epoch of training, making the batches included."""
    train.train_epoch(model, batches(), train.classification_loss, optimizer)


def _fixed_batches(sequences, labels, length):
    """Batches in order, each padded to `length`."""
    for start in range(0, len(sequences), BATCH):
        chunk = slice(start, start + BATCH)
        yield *text.pad_batch(sequences[chunk], length), labels[chunk]


def _modules():
    """Names of the package's modules, with those inside its packages."""
    package = Path(experiments.__file__).parent.parent
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package).with_suffix("").parts
        if parts[-1] not in ("__init__", "__main__"):
            yield ".".join(parts)


def _import_seconds(statement):
    """CPU seconds of a statement in a fresh interpreter that has imported torch."""
    code = f"import time, torch; start = time.process_time(); {statement}; print(time.process_time() - start)"
    return float(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout)


def _seconds_to_first_figure(path):
    """Wall-clock seconds from starting a kernel to the first image (None without one), and the kernel's CPU seconds."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    environment = os.environ | {"COURSE_PROFILE": "quick", "TQDM_DISABLE": "1"}
    before, wall = _children_cpu(), None
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": folder}})
        start = time.perf_counter()
        with client.setup_kernel(env=environment, stderr=subprocess.DEVNULL):
            for index, cell in enumerate(notebook.cells):
                if cell.cell_type == "code":
                    client.execute_cell(cell, index)
                    if any("image/png" in output.get("data", {}) for output in cell.outputs):
                        wall = time.perf_counter() - start
                        break
    return wall, _children_cpu() - before


def _children_cpu():
    """CPU seconds of all child processes that have ended."""
    times = os.times()
    return times.children_user + times.children_system


if __name__ == "__main__":
    sys.exit(main())
