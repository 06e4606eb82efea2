"""Toy translation by a Transformer with an encoder, and by a decoder alone that has the source as prefix (chapter 09).

`transformer_toy` measures both, and pooling on the reviews of `toy_reviews`. No number here chooses anything: every
model is that of the last epoch.
"""

import time

import torch
import torch.nn.functional as F
from tqdm import tqdm

from course_lib import metrics
from course_lib.attention import record_attention
from course_lib.experiments import experiment
from course_lib.experiments.toy_reviews import (
    Unmasked,
    review_accuracy,
    review_classifier,
    review_task,
    train_classifier,
)
from course_lib.experiments.toy_translation import toy_task, train_translator, translation_scores, translator
from course_lib.positional import Sinusoidal
from course_lib.text import EOS, SOS, batches, pad_batch
from course_lib.train import train_epoch
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import TransformerLM, Translator
from course_lib.translation import alignment_accuracy
from course_lib.utils import eval_mode, number_of_parameters

# --- translation --------------------------------------------------------------------


def toy_translator(task, width=64, heads=4, layers=1, kind=Translator):
    """An encoder-decoder Transformer for the toy languages, Post-LN, without dropout."""
    encoder = TransformerEncoder([EncoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    decoder = TransformerDecoder([DecoderLayer(width, heads, 4 * width, 0.0) for _ in range(layers)])
    position = Sinusoidal(width)
    return kind(len(task.source_vocab), len(task.target_vocab), Transformer(encoder, decoder), position=position)


def cross_maps(model, task):
    """The cross-attention of every test sentence, under teacher forcing.

    Returns:
        list over the layers of lists over the test sentences of (H, T, S): row t was used to predict target word t.
    """
    sources, targets = task.test
    source, source_real = pad_batch(sources)
    target_in, _ = pad_batch([[SOS, *target] for target in targets])
    with torch.no_grad(), eval_mode(model), record_attention(model) as found:
        model(source, source_real, target_in)
    layers = [weights for name, weights in found.items() if name.endswith("multihead_attn")]
    sizes = [(len(target), len(source)) for source, target in zip(sources, targets, strict=True)]
    return [[maps[:, :T, :S] for maps, (T, S) in zip(layer, sizes, strict=True)] for layer in layers]


def cross_alignment(model, task):
    """How often the largest weight of the cross-attention is on the word that is translated.

    Returns:
        dict: "alignment" accuracy over all target words for the last layer's mean over heads, "alignment_head" for its
        heads, one by one, and "alignment_best" for the best of these.
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
            targets: N lists of ids of words alone.

        Returns:
            list of N lists of ids of the joint vocabulary.
        """
        shifted = [[self.first + i for i in (SOS, *target, EOS)] for target in targets]
        return [[*source, *target] for source, target in zip(sources, shifted, strict=True)]

    @torch.inference_mode()
    def translate(self, sources, max_len=30):
        """Continue each prefix, the most probable word at each step, until `<eos>`.

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
        batch: (ids (B, T), real (B, T)) of `PrefixTranslator.rows`.

    Returns:
        dict: "loss", a sum in nats, "count" of target tokens, "accuracy" = how many were predicted.
    """
    ids, real = batch
    logits, wanted = model.lm(ids[:, :-1]), ids[:, 1:]
    scored = real[:, 1:] & (wanted > model.first + SOS)  # words and <eos> of the target
    loss = F.cross_entropy(logits[scored], wanted[scored], reduction="sum")
    return {"loss": loss, "count": scored.sum(), "accuracy": (logits.argmax(-1) == wanted)[scored].sum()}


def train_prefix(model, task, epochs, *, batch_size=32, learning_rate=2e-3, seed=0):
    """Train with Adam.

    Returns:
        list with a dict for each epoch: "epoch", "train_loss" in nats a target token, "train_accuracy".
    """
    optimizer, generator = torch.optim.Adam(model.parameters(), learning_rate), torch.Generator().manual_seed(seed)
    rows, history = model.rows(*task.train), []
    for epoch in tqdm(range(1, epochs + 1), desc="epochs", leave=False):
        loader = [part[:2] for part in batches(rows, [0] * len(rows), batch_size, generator=generator)]
        means = train_epoch(model, loader, prefix_loss, optimizer, clip_norm=1.0)
        history.append({"epoch": epoch} | {f"train_{key}": value for key, value in means.items()})
    return history


def prefix_scores(model, task, first=None):
    """Exact matches and BLEU of a decoder-only translator.

    Args:
        first: only so many test sentences; None takes all.

    Returns:
        dict: "exact", fraction of sentences without a mistake; "bleu", 0 to 100.
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


@experiment("toy-passes", "Toy translation by epoch: a GRU with attention and a Transformer on the same batches.")
def toy_passes(seed, pairs=4000, test=300, epochs=6, batch_size=32, gru_rate=5e-3, rates=(2e-3, 5e-3), width=64):
    """Exact translations after each epoch; the Transformer with two learning rates, the GRU with chapter 06's."""
    task, history, results = toy_task(pairs, test, seed), {}, {}
    runs = {"GRU with attention": (lambda: translator(task, True, width), gru_rate)}
    runs |= {f"Transformer, rate {rate}": (lambda: toy_translator(task, width), rate) for rate in rates}
    for name, (build, rate) in runs.items():
        torch.manual_seed(seed)
        options = {"batch_size": batch_size, "learning_rate": rate, "seed": seed}
        history[name] = train_translator(
            build(), task, epochs, **options, measure=lambda model: {"exact": translation_scores(model, task)["exact"]}
        )
        results[name] = {"exact": history[name][-1]["exact"]}
    return {"results": results, "history": history}
