"""The perplexity of n-grams and a window network on real text, characters and words (chapter 01).

What is chosen (smoothing, best epoch) is chosen on data that the reported number does not come from.
"""

import math
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from course_lib import datasets
from course_lib.experiments import experiment
from course_lib.metrics import bits, perplexity
from course_lib.ngram import NgramModel, WindowLM, bigram_entropy, unigram_entropy
from course_lib.train import evaluate, fit

# Candidates for k, the smoothing of an n-gram model: add-k on words wants little, interpolation wants much.
ADDS = (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0, 2.0, 3.0, 4.0, 5.0, 7.0, 10.0)


@experiment("shakespeare-lm", "Perplexity of n-grams and a window network on the characters of tiny Shakespeare.")
def shakespeare_lm(
    seed,
    max_order=7,
    window=10,
    width=32,
    hidden=512,
    dropout=0.25,
    epochs=10,
    learning_rate=4e-3,
    weight_decay=0.1,
    batch_size=16,
    length=128,
):
    """Characters: reported on the usual validation split, the last 10 % of the text.

    All models learn from the first 80 % and make their choices on the 10 % after it. The usual split
    learns from 90 %; here every number is from the same text, so that the models can be compared.
    """
    text = datasets.tiny_shakespeare()
    number = {character: i for i, character in enumerate(sorted(set(text)))}
    train, test = (torch.tensor([number[character] for character in part]) for part in datasets.shakespeare_split(text))
    cut = len(train) * 8 // 9
    results = _ngram_results(train[:cut], train[cut:], test, len(number), max_order)
    model = WindowLM(len(number), window, width, hidden, dropout)
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, weight_decay=weight_decay, fused=True)
    row, history = _train_window(model, train[:cut], train[cut:], test, optimizer, epochs, batch_size, length, seed)
    return {"results": {**results, "window network": row}, "history": {"window network": history}}


@experiment("wikitext2-lm", "Perplexity of n-grams and a window network on the words of WikiText-2.")
def wikitext2_lm(
    seed,
    max_order=5,
    window=4,
    width=64,
    hidden=192,
    cutoffs=(1000, 6000),
    epochs=3,
    learning_rate=4e-3,
    batch_size=32,
    length=64,
):
    """Words, official splits, all of the vocabulary: choices on "valid", reported on "test".

    The network's softmax is exact, in three pieces (adaptive softmax, Grave et al. 2017, arXiv 1609.04309):
    rare words share one entry among the frequent ones and are told apart only where they occur. That
    costs about a tenth of one softmax over all words.
    """
    words = {split: datasets.wikitext2(split) for split in ("train", "valid", "test")}
    number = {word: i for i, (word, _) in enumerate(Counter(words["train"]).most_common())}  # frequent words first
    train, valid, test = (torch.tensor([number.get(word, number["<unk>"]) for word in words[s]]) for s in words)
    V = len(number)
    results = _ngram_results(train, valid, test, V, max_order)
    model = WindowLM(V, window, width, hidden)
    model.output = nn.AdaptiveLogSoftmaxWithLoss(hidden, V, cutoffs=list(cutoffs))
    optimizer = torch.optim.AdamW(model.parameters(), learning_rate, fused=True)
    row, history = _train_window(model, train, valid, test, optimizer, epochs, batch_size, length, seed)
    return {"results": {**results, "window network": row}, "history": {"window network": history}}


def _ngram_results(train, valid, test, V, max_order):
    """Rows of the table for no model, for entropies, and for n-grams of each order with both kinds of smoothing."""
    results = {
        "uniform": _scores(math.log(V)),
        "unigram entropy": _scores(unigram_entropy(test).item()),
        "bigram entropy": _scores(bigram_entropy(test).item()),
    }
    for order in range(1, max_order + 1):
        for interpolate in (False, True):
            model = NgramModel(order, V, interpolate=interpolate).fit(train)
            tried = [_mean_nll(model, valid, add) for add in ADDS]
            best = min(range(len(ADDS)), key=tried.__getitem__)
            row = {"order": order, "add": ADDS[best], "valid_perplexity": perplexity(tried[best])}
            row |= _scores(_mean_nll(model, test, ADDS[best]))
            row["parameters"] = sum(model.num_ngrams) if interpolate else model.num_ngrams[-1]
            row["unseen"] = (model.counts(test) == 0).double().mean().item()
            row |= {"adds": list(ADDS), "valid_perplexity_by_add": [perplexity(nats) for nats in tried]}
            results[f"{order}-gram {'interpolated' if interpolate else 'add-k'}"] = row
    return results


def _mean_nll(model, ids, add):
    """Nats a token of an n-gram model whose smoothing is set to `add`; the counts do not depend on it."""
    model.add = add
    return model.nll(ids).mean().item()


def _scores(nats):
    """One loss in three units."""
    return {"perplexity": perplexity(nats), "nats": nats, "bits": bits(nats)}


def _train_window(model, train, valid, test, optimizer, epochs, batch_size, length, seed):
    """Train with the best epoch by `valid`; the row for `test`, and the history."""
    peak = optimizer.param_groups[0]["lr"]
    steps = sum(1 for epoch in range(1, epochs + 1) for _ in _rows(train, length, batch_size, seed, epoch))
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak, total_steps=steps, pct_start=0.1)
    history = fit(
        model,
        lambda epoch: _rows(train, length, batch_size, seed, epoch),
        _window_loss,
        optimizer,
        epochs=epochs,
        valid_batches=_chunks(valid, model.window),
        scheduler=scheduler,
        clip_norm=1.0,
    )
    best = min(history, key=lambda epoch: epoch["valid_loss"])
    row = {"order": model.window + 1, "best_epoch": best["epoch"], "valid_perplexity": perplexity(best["valid_loss"])}
    row |= _scores(evaluate(model, _chunks(test, model.window), _window_loss)["loss"])
    return row | {"parameters": sum(parameter.numel() for parameter in model.parameters())}, history


def _rows(ids, length, batch_size, seed, epoch):
    """Batches of rows that cover the text once, cut at a new place in every epoch, in random order."""
    generator = torch.Generator().manual_seed(1000 * seed + epoch)
    start = int(torch.randint(length, (), generator=generator))
    n = (len(ids) - 1 - start) // length
    inputs = ids[start : start + n * length].view(n, length)
    targets = ids[start + 1 : start + 1 + n * length].view(n, length)
    for rows in torch.randperm(n, generator=generator).split(batch_size):
        yield inputs[rows], targets[rows]


def _chunks(ids, window, length=2048):
    """The text in pieces; before each stand the `window - 1` tokens that its first prediction needs."""
    pieces = []
    for start in range(0, len(ids) - 1, length):
        stop = min(start + length, len(ids) - 1)
        pieces.append((ids[None, max(start - window + 1, 0) : stop], ids[None, start + 1 : stop + 1]))
    return pieces


def _window_loss(model, batch):
    """Sum over the targets; inputs that stand before the first target are context only."""
    inputs, targets = batch
    features = model.features(inputs)[:, -targets.shape[1] :].flatten(0, 1)
    targets = targets.flatten()
    if isinstance(model.output, nn.AdaptiveLogSoftmaxWithLoss):
        loss = -model.output(features, targets).output.sum()
    else:
        loss = F.cross_entropy(model.output(features), targets, reduction="sum")
    return {"loss": loss, "count": targets.numel()}
