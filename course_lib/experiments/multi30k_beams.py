"""Recorded run of chapter 06: what a wider beam does for the translator that comes with the course.

The trained model of `course_lib.pretrained` (chapter 09 builds it) translates the test captions greedily and with
wider and wider beams. The length penalty only ranks the hypotheses that a beam has found, so one search serves every
alpha. How BLEU is computed: `course_lib.experiments.multi30k`.
"""

from course_lib import datasets
from course_lib.experiments import experiment
from course_lib.experiments.multi30k import _sacrebleu
from course_lib.generate import beam_hypotheses, length_factor
from course_lib.pretrained import load_translator
from course_lib.text import PAD, SOS, UNK, tokenize
from course_lib.translation import translate


@experiment("multi30k-beams", "German to English captions: the course's translator with wider and wider beams.")
def multi30k_beams(seed, beams=(1, 2, 4, 5, 10), alphas=(0.0, 0.6), captions=1000, most=60):
    """For each beam and alpha: mean log-probability in nats, mean length in words, BLEU; nothing depends on the seed.

    "more_probable" and "less_probable" are the fractions of captions on which the sentence found is more or less
    probable than the greedy one.
    """
    model, german, english = load_translator()
    pairs = datasets.multi30k("test")[:captions]
    published = [target for _, target in pairs]
    sources = [german.encode(source) for source, _ in pairs]
    options = {"max_new_tokens": most, "suppress_tokens": (UNK, PAD, SOS)}
    results, greedy = {"references": {"words": mean([len(tokenize(text)) for text in published])}}, None
    for k in beams:
        found = translate(model, sources, beam_hypotheses, beam_size=k, **options)
        greedy = greedy or [each[0].score for each in found]  # a beam of 1 comes first
        for alpha in alphas:
            best = [max(each, key=lambda h: (h.finished, penalised(h, alpha))) for each in found]
            words = [english.decode(h.tokens).split() for h in best]
            gains = [h.score - score for h, score in zip(best, greedy, strict=True)]
            results[f"beam {k}, alpha {alpha:g}"] = {
                "log_p": mean([h.score for h in best]),
                "words": mean([len(row) for row in words]),
                "bleu": _sacrebleu(words, {"published": published})["bleu"],
                "more_probable": mean([gain > 1e-3 for gain in gains]),
                "less_probable": mean([gain < -1e-3 for gain in gains]),
                "finished": mean([h.finished for h in best]),
            }
    return {"results": results}


def penalised(hypothesis, alpha):
    """A log-probability divided by the length factor; `<eos>` counts."""
    return hypothesis.score / length_factor(len(hypothesis.tokens) + hypothesis.finished, alpha)


def mean(values):
    """Of a list, as a float."""
    return sum(values) / len(values)
