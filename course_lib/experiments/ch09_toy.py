"""Recorded runs of chapter 09 on toy languages: how to pool, what padding does, and three ways to translate.

`transformer_toy` trains classifiers of reviews whose verdict only the order of the words tells, and translates the
languages of chapter 06 with an encoder-decoder Transformer and with a decoder-only one that has the source as prefix.
The notebook uses the same functions, so they are public. No number here chooses anything: every model is that of the
last epoch, so there is no validation set.

Notebook: 09.
"""

import time
from typing import NamedTuple

import torch
import torch.nn.functional as F

from course_lib import metrics, toy
from course_lib.experiments import experiment
from course_lib.experiments.ch06_toy import toy_task, train_translator, translation_scores
from course_lib.positions import Sinusoidal
from course_lib.seq2seq import alignment_accuracy
from course_lib.tasks import number_of_parameters
from course_lib.text import EOS, SOS, batches, build_vocab, numericalize, pad_batch, tokenize
from course_lib.train import classification_loss, evaluate, evaluating, train_epoch
from course_lib.transformer import (
    DecoderLayer,
    EncoderLayer,
    Transformer,
    TransformerClassifier,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLM,
    Translator,
)

# --- reviews ------------------------------------------------------------------------


class Reviews(NamedTuple):
    """The toy reviews as ids.

    Args:
        vocab: vocabulary of the training reviews.
        train: (ids, labels) of the training reviews; each review's mirror stands beside it.
        test: the same of the others.
        texts: the test reviews as strings.
    """

    vocab: object
    train: tuple
    test: tuple
    texts: list


def review_task(train=1600, test=400, seed=1):
    """Draw reviews and number their words.

    Args:
        train: training reviews, an even number.
        test: test reviews, an even number; none of them is a training review.
        seed: of the drawing.

    Returns:
        `Reviews`.

    Example:
        >>> task = review_task(train=20, test=4)
        >>> len(task.train[0]), sum(task.test[1])
        (20, 2)

    Notebook: 09.
    """
    drawn = toy.reviews(train + test, seed)
    tokens, labels = [tokenize(review) for review, _ in drawn], [label for _, label in drawn]
    vocab = build_vocab(tokens[:train])
    ids = [numericalize(review, vocab) for review in tokens]
    texts = [review for review, _ in drawn[train:]]
    return Reviews(vocab, (ids[:train], labels[:train]), (ids[train:], labels[train:]), texts)


def review_classifier(task, pool, width=32, heads=2, layers=2):
    """A small encoder-style Transformer that judges reviews.

    Args:
        task: `Reviews`.
        pool: "mean", "max" or "cls".
        width: D.
        heads: H.
        layers: N.

    Returns:
        `TransformerClassifier`.

    Notebook: 09.
    """
    encoder = TransformerEncoder([EncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    return TransformerClassifier(len(task.vocab), encoder, position=Sinusoidal(width), pool=pool)


class Unmasked(torch.nn.Module):
    """A classifier that never gets its mask: padding is attended to and pooled.

    Args:
        model: `TransformerClassifier`.
    """

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, ids, mask=None):
        """(B, T) ids to (B, classes) logits; the mask is dropped on the way."""
        return self.model(ids)


def train_classifier(model, task, epochs, *, batch_size=32, learning_rate=3e-3, seed=0):
    """Train with Adam, and score the test reviews after every epoch.

    Args:
        model: of (ids, mask), such as `TransformerClassifier`.
        task: `Reviews`.
        epochs: passes over the training reviews.
        batch_size: B.
        learning_rate: of Adam.
        seed: of the order of the batches.

    Returns:
        list with a dict for each epoch: "epoch", "train_loss", "train_accuracy", "accuracy" on the test reviews.

    Notebook: 09.
    """
    optimizer, generator = torch.optim.Adam(model.parameters(), learning_rate), torch.Generator().manual_seed(seed)
    history = []
    for epoch in range(1, epochs + 1):
        loader = list(batches(*task.train, batch_size, generator=generator))
        means = train_epoch(model, loader, classification_loss, optimizer, clip_norm=1.0, epoch=epoch)
        entry = {"epoch": epoch} | {f"train_{key}": value for key, value in means.items()}
        history.append(entry | {"accuracy": review_accuracy(model, task)})
    return history


def review_accuracy(model, task, length=None):
    """Accuracy on the test reviews.

    Args:
        model: of (ids, mask).
        task: `Reviews`.
        length: pad all of them to so many tokens; None: batches of 100, each padded to its own longest row.

    Returns:
        float from 0 to 1.

    Notebook: 09.
    """
    if length is None:
        loader = list(batches(*task.test, 100, shuffle=False))
    else:
        loader = [(*pad_batch(task.test[0], length), torch.tensor(task.test[1]))]
    return evaluate(model, loader, classification_loss)["accuracy"]


# --- translation --------------------------------------------------------------------


def toy_translator(task, width=64, heads=4, layers=1, kind=Translator):
    """An encoder-decoder Transformer for the toy languages, Post-LN, without dropout.

    Args:
        task: `course_lib.experiments.ch06_toy.ToyTask`.
        width: D.
        heads: H.
        layers: N on each side.
        kind: `Translator`, or a subclass of it.

    Returns:
        Translator.

    Notebook: 09.
    """
    encoder = TransformerEncoder([EncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    decoder = TransformerDecoder([DecoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    position = Sinusoidal(width)
    return kind(len(task.source_vocab), len(task.target_vocab), Transformer(encoder, decoder), position=position)


def cross_maps(model, task):
    """The cross-attention of every test sentence, under teacher forcing.

    Args:
        model: `Translator`.
        task: `ToyTask`.

    Returns:
        list over the layers of lists over the test sentences of (H, T, S): row t was used to predict target word t.

    Notebook: 09.
    """
    sources, targets = task.test
    source, source_mask = pad_batch(sources)
    target_in, _ = pad_batch([[SOS, *target] for target in targets])
    with torch.no_grad(), evaluating(model):
        layers = [cross for _, cross in model.weights(source, source_mask, target_in)]
    sizes = [(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]
    return [[maps[:, :T, :S] for maps, (T, S) in zip(layer, sizes, strict=True)] for layer in layers]


def cross_alignment(model, task):
    """How often the largest weight of the cross-attention is on the word that is translated.

    Args:
        model: `Translator`.
        task: `ToyTask`.

    Returns:
        dict: "alignment" accuracy over all target words for the last layer's mean over heads, "alignment_head" for its
        heads, one by one, and "alignment_best" for the best of these.

    Notebook: 09.
    """
    maps, truths = cross_maps(model, task)[-1], [pair.alignment for pair in task.test_pairs]
    words = sum(map(len, truths))

    def score(choose):
        pairs = zip(maps, truths, strict=True)
        return sum(len(truth) * alignment_accuracy(choose(weights), truth) for weights, truth in pairs) / words

    heads = [score(lambda weights, h=h: weights[h]) for h in range(len(maps[0]))]
    return {"alignment": score(lambda weights: weights.mean(0)), "alignment_head": heads, "alignment_best": max(heads)}


# --- a translator without an encoder --------------------------------------------------


class PrefixTranslator(torch.nn.Module):
    """One causal language model over `source <sos> target`: decoder-only, with the source as prefix.

    Both languages share one vocabulary: target id i stands at V_source + i, and the target's own `<sos>` is the mark
    between the two.

    Args:
        task: `course_lib.experiments.ch06_toy.ToyTask`.
        width: D.
        heads: H.
        layers: N.

    Notebook: 09.
    """

    def __init__(self, task, width=64, heads=4, layers=2):
        super().__init__()
        self.first = len(task.source_vocab)  # id of the target's first entry
        encoder = TransformerEncoder([EncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
        size = self.first + len(task.target_vocab)
        self.lm = TransformerLM(size, encoder, position=Sinusoidal(width))

    def rows(self, sources, targets):
        """The training texts: source, mark, target, end.

        Args:
            sources: N lists of ids.
            targets: N lists of ids of words alone.

        Returns:
            list of N lists of ids of the joint vocabulary.
        """
        shifted = [[self.first + i for i in (SOS, *target, EOS)] for target in targets]
        return [[*source, *target] for source, target in zip(sources, shifted, strict=True)]

    @torch.inference_mode()
    def translate(self, sources, max_len=30):
        """Continue each prefix, the most probable word at each step, until `<eos>`.

        Args:
            sources: N lists of ids.
            max_len: most words.

        Returns:
            list of N lists of target ids. Sentences of one length are continued together.
        """
        found = [None] * len(sources)
        for length in sorted({len(source) for source in sources}):
            places = [i for i, source in enumerate(sources) if len(source) == length]
            ids = torch.tensor([[*sources[i], self.first + SOS] for i in places])
            for _ in range(max_len):
                words = self.lm(ids)[:, -1, self.first :].argmax(-1)
                ids = torch.cat([ids, self.first + words[:, None]], 1)
                if (ids[:, length + 1 :] == self.first + EOS).any(1).all():
                    break
            for i, row in zip(places, (ids[:, length + 1 :] - self.first).tolist(), strict=True):
                found[i] = row[: row.index(EOS)] if EOS in row else row
        return found


def prefix_loss(model, batch):
    """Cross-entropy of the target words given source and mark; what the source says next is not scored.

    Args:
        model: `PrefixTranslator`.
        batch: (ids (B, T), mask (B, T)) of `PrefixTranslator.rows`.

    Returns:
        dict: "loss", a sum in nats, "count" of target tokens, "accuracy" = how many were predicted.

    Notebook: 09.
    """
    ids, mask = batch
    logits, wanted = model.lm(ids[:, :-1]), ids[:, 1:]
    scored = mask[:, 1:] & (wanted > model.first + SOS)  # words and <eos> of the target
    loss = F.cross_entropy(logits[scored], wanted[scored], reduction="sum")
    return {"loss": loss, "count": scored.sum(), "accuracy": (logits.argmax(-1) == wanted)[scored].sum()}


def train_prefix(model, task, epochs, *, batch_size=32, learning_rate=2e-3, seed=0):
    """Train with Adam.

    Args:
        model: `PrefixTranslator`.
        task: `ToyTask`.
        epochs: passes over the training pairs.
        batch_size: B.
        learning_rate: of Adam.
        seed: of the order of the batches.

    Returns:
        list with a dict for each epoch: "epoch", "train_loss" in nats a target token, "train_accuracy".

    Notebook: 09.
    """
    optimizer, generator = torch.optim.Adam(model.parameters(), learning_rate), torch.Generator().manual_seed(seed)
    rows, history = model.rows(*task.train), []
    for epoch in range(1, epochs + 1):
        loader = [part[:2] for part in batches(rows, [0] * len(rows), batch_size, generator=generator)]
        means = train_epoch(model, loader, prefix_loss, optimizer, clip_norm=1.0, epoch=epoch)
        history.append({"epoch": epoch} | {f"train_{key}": value for key, value in means.items()})
    return history


def prefix_scores(model, task, first=None):
    """Exact matches and BLEU of a decoder-only translator.

    Args:
        model: `PrefixTranslator`.
        task: `ToyTask`.
        first: only so many test sentences; None takes all.

    Returns:
        dict: "exact", share of sentences without a mistake; "bleu", 0 to 100.

    Notebook: 09.
    """
    sources, targets = (side[:first] for side in task.test)
    found = model.translate(sources)
    exact = sum(words == target for words, target in zip(found, targets, strict=True)) / len(targets)
    return {"exact": exact, "bleu": metrics.bleu(found, [[target] for target in targets])}


# --- the recorded run ---------------------------------------------------------------


@experiment("transformer-toy", "Toy reviews by pooling and without a mask; toy translation with and without encoder.")
def transformer_toy(
    seed, reviews=1600, review_epochs=10, review_rate=3e-3, pairs=4000, test=1000, epochs=6, rate=2e-3, width=64
):
    """Train four classifiers of reviews and two translators; score each on test data after the last epoch."""
    results, history = {}, {}
    task = review_task(reviews, 400)
    for name, pool in {"mean": "mean", "max": "max", "cls": "cls", "mean, no mask": "mean"}.items():
        torch.manual_seed(seed)
        model = review_classifier(task, pool)
        model = Unmasked(model) if name == "mean, no mask" else model
        history[name] = train_classifier(model, task, review_epochs, learning_rate=review_rate, seed=seed)
        results[name] = {"parameters": number_of_parameters(model), "accuracy": history[name][-1]["accuracy"]}
        results[name]["accuracy_padded_to_150"] = review_accuracy(model, task, length=150)

    task = toy_task(pairs, test, seed)
    torch.manual_seed(seed)
    model = toy_translator(task, width)
    start = time.process_time()
    history["encoder-decoder"] = train_translator(model, task, epochs, batch_size=32, learning_rate=rate, seed=seed)
    row = {"parameters": number_of_parameters(model), "cpu_seconds": time.process_time() - start}
    found = translation_scores(model, task)
    row |= {"exact": found["exact"], "bleu": found["bleu"]} | cross_alignment(model, task)
    results["encoder-decoder"] = row

    torch.manual_seed(seed)
    model = PrefixTranslator(task, width)
    start = time.process_time()
    history["decoder-only"] = train_prefix(model, task, epochs, learning_rate=rate, seed=seed)
    row = {"parameters": number_of_parameters(model), "cpu_seconds": time.process_time() - start}
    results["decoder-only"] = row | prefix_scores(model, task)
    return {"results": results, "history": history}
