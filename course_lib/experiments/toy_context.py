"""Recorded runs of chapter 06: what the decoder is given of the source, with everything else equal.

`toy_context` trains three translators with the same encoder and the same width of decoder: the context given once, the
same context at every step, and a new one at every step (attention). `toy_bottleneck` makes the encoder's states
narrower and narrower. No number here chooses anything: every model is that of the last epoch.
"""

import torch

from course_lib.experiments import experiment
from course_lib.experiments.toy_translation import scores_by_length, toy_task, train_translator, translation_scores
from course_lib.lstm_gru import GRU
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq
from course_lib.utils import number_of_parameters

GIVEN = ("once", "every step", "attention")


def context_translator(task, given, width=64, states=64, bidirectional=False):
    """A GRU encoder-decoder whose decoder is given its context in one of three ways.

    Args:
        given: "once", as its first state; "every step", the same vector beside every word; or "attention", another
            weighted mean of the encoder's states beside every word.
        width: of the embeddings, of the decoder's states and of the attention's hidden layer.
        states: E, the width of the encoder's states, both directions together.

    >>> task = toy_task(pairs=20, test=3)
    >>> type(context_translator(task, "every step", width=6, states=4).decoder).__name__
    'Decoder'
    """
    if given not in GIVEN:
        raise ValueError(f"given is one of {GIVEN}, got {given!r}")
    layer = GRU(width, states // 2 if bidirectional else states, bidirectional=bidirectional)
    encoder, V = Encoder(len(task.source_vocab), layer), len(task.target_vocab)
    if given == "attention":
        return Seq2Seq(encoder, AttentionDecoder(V, GRU(width + states, width), states, width))
    feed = given == "every step"
    return Seq2Seq(encoder, Decoder(V, GRU(width + feed * states, width), states, feed_context=feed))


def trained(task, given, seed, *, epochs, batch_size, learning_rate, curve=True, **sizes):
    """Train one translator; its row of results, and its history."""
    torch.manual_seed(seed)
    model = context_translator(task, given, **sizes)

    def measure(model):
        return {"bleu": translation_scores(model, task, first=200)["bleu"]} if curve else {}

    history = train_translator(
        model, task, epochs, batch_size=batch_size, learning_rate=learning_rate, seed=seed, measure=measure
    )
    scores = translation_scores(model, task)
    row = {"parameters": number_of_parameters(model), "updates": history[-1]["updates"]}
    row |= {"seconds": history[-1]["seconds"], "exact": scores["exact"], "bleu": scores["bleu"]}
    return row | scores_by_length(model, task), history


@experiment("toy-context", "Toy translation: the context given once, at every step, or anew at every step.")
def toy_context(seed, pairs=4000, test=1000, epochs=16, batch_size=64, learning_rate=5e-3, width=64):
    """Three translators that differ in nothing but what the decoder is given of the source, with two encoders."""
    task, results, history = toy_task(pairs, test, seed), {}, {}
    for bidirectional in (False, True):
        for given in GIVEN:
            name = given + (", two directions" if bidirectional else "")
            results[name], history[name] = trained(
                task, given, seed, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate,
                width=width, states=width, bidirectional=bidirectional,
            )  # fmt: skip
    return {"results": results, "history": history}


@experiment("toy-bottleneck", "Toy translation: one vector at every step against attention, by the encoder's width.")
def toy_bottleneck(
    seed, pairs=4000, test=1000, epochs=16, batch_size=64, learning_rate=5e-3, width=64, states=(4, 8, 16)
):
    """The same decoder; encoders in one direction whose states, and so the context, are narrower and narrower."""
    task, results, history = toy_task(pairs, test, seed), {}, {}
    for E in states:
        for given in ("every step", "attention"):
            name = f"{given}, E = {E}"
            results[name], history[name] = trained(
                task, given, seed, epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, curve=False,
                width=width, states=E,
            )  # fmt: skip
    return {"results": results, "history": history}
