"""The protocol of the translation runs on Multi30k, shared by the chapters: text, training, scores.

Captions are lower-cased; words are cut by byte-pair encoding, learned on each side of the training captions, so that a
German compound that was never seen is read in pieces. A model is trained with Adam for a fixed number of epochs; the
epoch with the lowest validation loss is scored on the test set of 2016, which decides nothing.

How BLEU is computed: "bleu" by sacrebleu with its own tokenizer "13a", lower-cased, on whole sentences against the
references as published (its signature stands beside it); "bleu_tokens" by `course_lib.metrics.bleu` on the tokens of
`course_lib.text.tokenize`, hypotheses and references alike. They differ a little: tokenize splits at hyphens, 13a does
not. Decoding is greedy except in "bleu_beam".

Read `run` first.
"""

import functools
import math
import re
import time
from collections import Counter

import torch

from course_lib import datasets, metrics
from course_lib.bpe import bpe_tokenize, train_bpe
from course_lib.generate import beam_search, greedy
from course_lib.text import PAD, SOS, UNK, build_vocab, denumericalize, numericalize, tokenize
from course_lib.train import evaluate, fit
from course_lib.translation import translate, translation_batches, translation_loss
from course_lib.utils import number_of_parameters

# Upper bounds of the source lengths, in words with punctuation, for BLEU by length; the last group is open.
LENGTH_BOUNDS = (8, 11, 14, 18)


def run(
    seed,
    name,
    build,
    merges,
    label_smoothing,
    learning_rate,
    warm_up,
    batch_size,
    epochs,
    bf16,
    betas=(0.9, 0.999),
    checkpoint=None,
    keep=None,
):
    """Train one model, score it on the test captions.

    Args:
        name: of the variant, in the ledger.
        build: function of the vocabularies' sizes (German, English) that gives the model.
        bf16: True trains in bfloat16 where that is safe.
        checkpoint: file from which a training that was stopped goes on; None keeps nothing.
        keep: called with the trained model and the vocabularies before the model is scored.

    Returns:
        dict: "results" and "history" of the variant.
    """
    captions, ids, vocabs = _prepared(tuple(merges))
    model = build(*map(len, vocabs))
    start = time.process_time()
    options = (label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16, betas, checkpoint)
    history = _train(model, ids, seed, *options)
    if keep is not None:
        keep(model, vocabs)
    best = min(history, key=lambda entry: entry["valid_loss"])
    row = {
        "parameters": number_of_parameters(model),
        "vocabulary": [len(vocab) for vocab in vocabs],
        "best_epoch": best["epoch"],
        "train_cpu_seconds": round(time.process_time() - start, 1),
        "valid_perplexity": math.exp(best["valid_loss"]),
    }
    options = {"max_new_tokens": 60, "suppress_tokens": (UNK, PAD, SOS)}
    found = {
        "valid": translate(model, ids["valid"][0], greedy, **options),
        "test": translate(model, ids["test"][0], greedy, **options),
        "beam": translate(model, ids["test"][0], beam_search, beam_size=4, length_penalty=0.6, **options),
    }
    words = {key: [_words(hypothesis.tokens, vocabs[1]) for hypothesis in part] for key, part in found.items()}
    row["valid_bleu"] = _sacrebleu(words["valid"], captions["valid"])["bleu"]
    row |= _test_scores(words["test"], captions["test"])
    row["bleu_beam"] = _sacrebleu(words["beam"], captions["test"])["bleu"]
    row |= _perplexities(model, ids["test"], captions["test"], batch_size)
    return {"results": {name: row}, "history": {name: history}}


def _train(model, ids, seed, label_smoothing, learning_rate, warm_up, batch_size, epochs, bf16, betas, checkpoint):
    """Adam; the learning rate rises for `warm_up` steps and falls to 0 at the last."""
    steps = epochs * math.ceil(len(ids["train"][0]) / batch_size)
    optimizer = torch.optim.Adam(model.parameters(), learning_rate, betas, fused=True)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: min(1, (i + 1) / warm_up) * max(0, 1 - i / steps)
    )

    def train_batches(epoch):
        generator = torch.Generator().manual_seed(1000 * seed + epoch)
        return translation_batches(*ids["train"], batch_size, generator=generator)

    return fit(
        model,
        train_batches,
        functools.partial(translation_loss, label_smoothing=label_smoothing),
        optimizer,
        epochs=epochs,
        valid_batches=lambda: translation_batches(*ids["valid"], batch_size, shuffle=False),
        scheduler=scheduler,
        clip_norm=1.0,
        bf16=bf16,
        checkpoint=checkpoint,
    )


# --- text -----------------------------------------------------------------------


@functools.cache
def _prepared(merges):
    """Captions as words, as ids of their pieces, and the two vocabularies; the same for every seed."""
    captions = {split: datasets.multi30k(split) for split in ("train", "valid", "test")}
    columns = {
        split: [[tokenize(text) for text in side] for side in zip(*captions[split], strict=True)] for split in captions
    }
    ids, vocabs = {split: [] for split in captions}, []
    for side, count in enumerate(merges):
        cut = _cutter(columns["train"][side], count)
        pieces = {split: [cut(words) for words in columns[split][side]] for split in captions}
        vocabs.append(build_vocab(pieces["train"], min_freq=2))
        for split in captions:  # the encoder reads <eos>, too: it ends every sentence in the same way
            ids[split].append([numericalize(row, vocabs[side], eos=side == 0) for row in pieces[split]])
    texts = {
        split: {
            "source": columns[split][0],
            "target": columns[split][1],
            "published": [pair[1] for pair in captions[split]],
        }
        for split in captions
    }
    return texts, ids, vocabs


def _cutter(sentences, merges):
    """A function from words to pieces, learned from the sentences; 0 merges leaves words whole."""
    if merges == 0:
        return lambda words: [f"{word}</w>" for word in words]
    learned = learn(sentences, merges)
    pieces = functools.cache(lambda word: bpe_tokenize(word, learned))
    return lambda words: [piece for word in words for piece in pieces(word)]


def learn(sentences, merges):
    """The merges of byte-pair encoding, learned from sentences of words."""
    return train_bpe(Counter(word for words in sentences for word in words), merges)


def _words(ids, vocab):
    """Pieces put together again, as words."""
    return "".join(denumericalize(ids, vocab)).replace("</w>", " ").split()


# --- scores ---------------------------------------------------------------------


def _test_scores(hypotheses, captions):
    """BLEU in both ways, and by the length of the source."""
    references = [[words] for words in captions["target"]]
    return {
        **_sacrebleu(hypotheses, captions),
        "bleu_tokens": metrics.bleu(hypotheses, references),
        **_bleu_by_length(hypotheses, references, captions["source"]),
        "examples": [_sentence(words) for words in hypotheses[:5]],
    }


def _sacrebleu(hypotheses, captions):
    """The score of sacrebleu on whole lower-cased sentences against the published references, and its signature."""
    from sacrebleu.metrics import BLEU

    metric = BLEU(lowercase=True)
    score = metric.corpus_score([_sentence(words) for words in hypotheses], [captions["published"]]).score
    return {"bleu": score, "signature": str(metric.get_signature())}


def _sentence(words):
    """Words as one string again: no spaces around hyphens, at which 13a does not split, nor before . , ! and ?"""
    return re.sub(r" ([.,!?])", r"\1", " ".join(words).replace(" - ", "-"))


def _bleu_by_length(hypotheses, references, sources):
    """BLEU on tokens in groups of sentences of similar source length."""
    groups = [[] for _ in range(len(LENGTH_BOUNDS) + 1)]
    for i, words in enumerate(sources):
        groups[sum(len(words) > bound for bound in LENGTH_BOUNDS)].append(i)
    groups = [group for group in groups if group]
    return {
        "length_mean": [sum(len(sources[i]) for i in group) / len(group) for group in groups],
        "length_count": [len(group) for group in groups],
        "bleu_by_length": [
            metrics.bleu([hypotheses[i] for i in group], [references[i] for i in group]) for group in groups
        ],
    }


def _perplexities(model, ids, captions, batch_size):
    """Teacher-forced: per piece, which depends on how words are cut, and per word, which does not; <eos> counts."""
    batches = translation_batches(*ids, batch_size, shuffle=False)
    found = evaluate(model, batches, translation_loss)
    nats = found["loss"] * sum(len(row) + 1 for row in ids[1])
    words = sum(len(row) + 1 for row in captions["target"])
    return {
        "perplexity": math.exp(found["loss"]),
        "perplexity_word": math.exp(nats / words),
        "piece_accuracy": found["accuracy"],
    }
