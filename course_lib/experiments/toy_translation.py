"""Recorded runs of chapter 06 on the toy pair of languages: the bottleneck, attention, and what is fed to the decoder.

`toy_translation` trains translators with and without attention on the same pairs, fed with the true words, with their
own, or with a mixture. The notebook uses the same functions on a smaller scale, so they are public: `toy_task` makes
the data, `translator` a model, `train_translator` trains it, `translation_scores` and the functions below measure.
No number here chooses anything: every model is that of the last epoch, so there is no validation set.
"""

import time
from typing import NamedTuple

import torch
from tqdm import tqdm

from course_lib import metrics
from course_lib.datasets import synthetic
from course_lib.experiments import experiment
from course_lib.generate import beam_search
from course_lib.lstm_gru import GRU
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq
from course_lib.text import build_vocab, numericalize
from course_lib.train import train_epoch
from course_lib.translation import (
    alignment,
    alignment_accuracy,
    scheduled_sampling,
    translate,
    translation_batches,
    translation_loss,
)
from course_lib.utils import eval_mode, number_of_parameters

# --- the task ---------------------------------------------------------------------


class ToyTask(NamedTuple):
    """The toy pair of languages as ids.

    Args:
        source_vocab: vocabulary of the English side.
        target_vocab: vocabulary of the invented language.
        train: (sources, targets), lists of ids; sources end in `<eos>`, targets hold words alone.
        test: the same of other sentences.
        test_pairs: the test sentences as `course_lib.datasets.synthetic.Pair`, with their alignment.
    """

    source_vocab: object
    target_vocab: object
    train: tuple
    test: tuple
    test_pairs: list


def toy_task(pairs=4000, test=1000, seed=0):
    """Draw sentence pairs and number their words.

    Args:
        test: test pairs; none of them is a training pair.

    >>> task = toy_task(pairs=20, test=3)
    >>> len(task.train[0]), len(task.test[1]), task.test[0][0][-1]
    (20, 3, 3)
    """
    drawn = synthetic.translation_pairs(pairs + test, seed)
    train, held_out = drawn[:pairs], drawn[pairs:]
    source_vocab, target_vocab = (build_vocab([pair[side] for pair in train]) for side in (0, 1))

    def ids(chosen):
        sources = [numericalize(pair.source, source_vocab, eos=True) for pair in chosen]
        return sources, [numericalize(pair.target, target_vocab) for pair in chosen]

    return ToyTask(source_vocab, target_vocab, ids(train), ids(held_out), held_out)


def translator(task, attention, width):
    """A GRU encoder-decoder.

    Args:
        attention: True for a bidirectional encoder of width/2 in each direction and a decoder that attends; False for
            an encoder in one direction whose last state is all that the decoder gets.

    >>> task = toy_task(pairs=20, test=3)
    >>> type(translator(task, attention=False, width=6).decoder).__name__
    'Decoder'
    """
    V_source, V_target = len(task.source_vocab), len(task.target_vocab)
    if not attention:
        return Seq2Seq(Encoder(V_source, GRU(width, width)), Decoder(V_target, GRU(width, width), width))
    encoder = Encoder(V_source, GRU(width, width // 2, bidirectional=True))
    return Seq2Seq(encoder, AttentionDecoder(V_target, GRU(2 * width, width), width, width))


def train_translator(
    model, task, epochs, *, batch_size=64, learning_rate=5e-3, teacher_forcing=None, seed=0, measure=None
):
    """Train with Adam.

    Args:
        teacher_forcing: function of the epoch (1, 2, ...): the probability that a true word is fed; None: always.
        measure: function of the model, called after each epoch; its dict joins the history.

    Returns:
        list with a dict for each epoch: "epoch", "updates" so far, "seconds" so far (training alone), "train_loss",
        "train_accuracy", "teacher_forcing" and what `measure` found.
    """
    generator, history, seconds = torch.Generator().manual_seed(seed), [], 0.0
    optimizer = torch.optim.Adam(model.parameters(), learning_rate)
    for epoch in tqdm(range(1, epochs + 1), desc="epochs", leave=False):
        share = 1.0 if teacher_forcing is None else teacher_forcing(epoch)
        start = time.perf_counter()
        batches = list(translation_batches(*task.train, batch_size, generator=generator))

        def loss(model, batch, share=share):
            return translation_loss(model, batch, teacher_forcing=share)

        means = train_epoch(model, batches, loss, optimizer, clip_norm=1.0)
        seconds += time.perf_counter() - start
        entry = {"epoch": epoch, "updates": epoch * len(batches), "seconds": seconds, "teacher_forcing": share}
        entry |= {f"train_{key}": value for key, value in means.items()}
        history.append(entry | (measure(model) if measure else {}))
    return history


# --- measuring ----------------------------------------------------------------------


def translation_scores(model, task, first=None, **search):
    """Exact matches and BLEU of a model's translations.

    Args:
        first: only so many test sentences; None takes all.

    Returns:
        dict: "exact", fraction of sentences in which every word is right; "bleu", 0 to 100; and "right", one bool a
    """
    sources, targets = (side[:first] for side in task.test)
    found = [hypothesis.tokens for hypothesis in translate(model, sources, max_new_tokens=30, **search)]
    right = [tokens == target for tokens, target in zip(found, targets, strict=True)]
    bleu = metrics.bleu(found, [[target] for target in targets])
    return {"exact": sum(right) / len(right), "bleu": bleu, "right": right}


def scores_by_length(model, task):
    """Exact matches and BLEU by the number of source words.

    Returns:
        dict of lists of equal length: "length" in words, "sentences", "exact_by_length", "bleu_by_length". Lengths
        with fewer than 20 test sentences are left out.
    """
    found = [hypothesis.tokens for hypothesis in translate(model, task.test[0], max_new_tokens=30)]
    groups = {}
    for tokens, target, pair in zip(found, task.test[1], task.test_pairs, strict=True):
        groups.setdefault(len(pair.source), []).append((tokens, target))
    groups = {length: group for length, group in sorted(groups.items()) if len(group) >= 20}
    return {
        "length": list(groups),
        "sentences": [len(group) for group in groups.values()],
        "exact_by_length": [sum(a == b for a, b in group) / len(group) for group in groups.values()],
        "bleu_by_length": [metrics.bleu([a for a, _ in group], [[b] for _, b in group]) for group in groups.values()],
    }


@torch.no_grad()
def both_ways(model, task):
    """The test targets' logits when the model is fed the true words, and when it is fed its own.

    Returns:
        forced: (B, T, V) logits.
        free: (B, T, V) logits.
        target: (B, T) int64, the words that were to be said.
        mask: (B, T) bool, True = a real token.
    """
    batch = next(translation_batches(*task.test, len(task.test[0]), shuffle=False))
    with eval_mode(model):
        inputs = batch.source, batch.source_real, batch.target_in
        return model(*inputs), scheduled_sampling(model, *inputs), batch.target_out, batch.target_real


def perplexity_and_accuracy(logits, target, mask):
    """Perplexity and accuracy over the real tokens.

    Args:
        logits: (B, T, V).
        target: (B, T) int64.
        mask: (B, T) bool, True = a real token.

    Returns:
        dict with "perplexity" and "accuracy".
    """
    nats = metrics.cross_entropy(logits, target, mask)
    return {
        "perplexity": metrics.perplexity(nats).item(),
        "accuracy": (logits.argmax(-1) == target)[mask].double().mean().item(),
    }


def after_first_mistake(forced, free, target, mask, steps=6):
    """Accuracy k steps after a sentence's first mistake, fed with true words and with the model's own.

    Up to its first mistake a model that is fed its own words is fed the true ones: both runs make the same
    first mistake. What differs is what comes after.

    Args:
        forced: (B, T, V) logits under teacher forcing.
        free: (B, T, V) logits when fed its own words.
        target: (B, T) int64.
        mask: (B, T) bool, True = a real token.

    Returns:
        two lists of K accuracies, at 1, 2, ... K steps after the first mistake: forced, free.
    """
    wrong = (free.argmax(-1) != target) & mask  # (B, T)
    first = torch.where(wrong.any(1), wrong.int().argmax(1), target.shape[1])  # (B,)
    distance = torch.arange(target.shape[1]) - first[:, None]  # (B, T), 0 at the first mistake

    def accuracies(logits):
        right = logits.argmax(-1) == target
        return [right[(distance == k) & mask].double().mean().item() for k in range(1, steps + 1)]

    return accuracies(forced), accuracies(free)


def alignment_scores(model, task):
    """How often the largest weight of attention is on the word that is translated, or on one of its neighbours.

    Returns:
        dict: "alignment" accuracy over all target words of the test sentences, "one_before" and "one_after": the
        largest weight is on the source word before, or after, the right one; "weight": mean weight on the right one.
    """
    batch = next(translation_batches(*task.test, len(task.test[0]), shuffle=False))
    order = _order(task, batch)
    with eval_mode(model):
        maps = alignment(model, batch.source, batch.source_real, batch.target_in)
    sums, words = dict.fromkeys(("alignment", "one_before", "one_after", "weight"), 0.0), 0
    for row, i in enumerate(order):
        truth = torch.tensor(task.test_pairs[i].alignment)
        T, S = len(truth), len(task.test[0][i])
        weights, words = maps[row, :T, :S], words + T
        sums["alignment"] += T * alignment_accuracy(weights, truth)
        sums["one_before"] += (weights.argmax(-1) == truth - 1).sum().item()
        sums["one_after"] += (weights.argmax(-1) == truth + 1).sum().item()
        sums["weight"] += weights.gather(1, truth[:, None]).sum().item()
    return {name: total / words for name, total in sums.items()}


def _order(task, batch):
    """Which test sentence stands in which row of a batch that holds them all."""
    rows = {tuple(source): i for i, source in enumerate(task.test[0])}
    return [rows[tuple(ids[mask].tolist())] for ids, mask in zip(batch.source, batch.source_real, strict=True)]


# --- the recorded run ---------------------------------------------------------------


@experiment("toy-translation", "Toy translation: with and without attention, fed with true words or its own, by beam.")
def toy_translation(seed, pairs=4000, test=1000, epochs=16, batch_size=64, learning_rate=5e-3, beams=(2, 5)):
    """Train five translators on the same pairs, for the same number of updates; score each on the same sentences."""
    task = toy_task(pairs, test, seed)
    results, history = {}, {}
    for name, (attention, width, share) in {
        "no attention": (False, 128, None),
        "no attention, own words": (False, 128, lambda epoch: 0.0),
        "no attention, scheduled": (False, 128, lambda epoch: 1 - (epoch - 1) / max(1, epochs - 1)),
        "attention": (True, 64, None),
        "attention, own words": (True, 64, lambda epoch: 0.0),
    }.items():
        torch.manual_seed(seed)
        model = translator(task, attention, width)
        history[name] = train_translator(
            model,
            task,
            epochs,
            batch_size=batch_size,
            learning_rate=learning_rate,
            teacher_forcing=share,
            seed=seed,
            measure=lambda model: _without(translation_scores(model, task, first=300), "right"),
        )
        last = history[name][-1]
        row = {"parameters": number_of_parameters(model), "updates": last["updates"], "seconds": last["seconds"]}
        row |= _without(translation_scores(model, task), "right") | scores_by_length(model, task)
        forced, free, target, mask = both_ways(model, task)
        for way, logits in (("forced", forced), ("free", free)):
            found = perplexity_and_accuracy(logits, target, mask)
            row |= {f"{way}_{metric}": value for metric, value in found.items()}
        if row["exact"] < 0.9:  # else there are too few mistakes to look at
            row["forced_after_mistake"], row["free_after_mistake"] = after_first_mistake(forced, free, target, mask)
        for beam in beams:
            found = _without(translation_scores(model, task, search=beam_search, beam_size=beam), "right")
            row |= {f"{metric}_beam_{beam}": value for metric, value in found.items()}
        results[name] = row | (alignment_scores(model, task) if attention else {})
    return {"results": results, "history": history}


def _without(found, key):
    return {name: value for name, value in found.items() if name != key}
