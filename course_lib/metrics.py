"""How good is a model of text? Perplexity for its probabilities, BLEU for its sentences."""

import math
from collections import Counter

import torch
import torch.nn.functional as F

from course_lib.utils.validate import check_ids, check_length, check_positive, check_sizes, check_tensor


def cross_entropy(logits, targets, real=None):
    r"""Mean negative log-likelihood in nats a token of targets (...), given logits (..., V).

    $$ -\frac{1}{M} \sum_{m=1}^{M} \ln \mathrm{softmax}(logits_m)[targets_m] $$

    The M are those where `real` (...) is True, or all: a model must not look good for predicting `<pad>`.

    >>> logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
    >>> cross_entropy(logits, torch.tensor([0, 1]))  # (ln 2 - ln 0.8) / 2
    tensor(0.4581)
    """
    check_tensor("logits", logits, (*targets.shape, "V"))
    if real is not None:
        check_tensor("real", real, tuple(targets.shape), torch.bool)
        logits, targets = logits[real], targets[real]  # (M, V), (M,)
    logits, targets = logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)
    check_length("real targets", targets)
    check_ids("targets", targets, ("M",), logits.shape[-1])
    return F.cross_entropy(logits, targets)


def perplexity(nats):
    """The effective number of choices, e to the nats a token: a number for a number, a tensor for a tensor.

    >>> perplexity(0.0), round(perplexity(math.log(50)), 6), perplexity(math.inf)
    (1.0, 50.0, inf)
    """
    if isinstance(nats, torch.Tensor):
        return nats.exp()
    return torch.tensor(nats, dtype=torch.float64).exp().item()  # math.exp raises where it overflows


def bits(nats):
    """Nats as bits, logarithms to base 2: how long the best code for the token would be."""
    return nats / math.log(2)


# --- BLEU -----------------------------------------------------------------------


def modified_precision(hypotheses, references, n):
    """Clipped n-gram matches of a corpus, and how many n-grams the hypotheses have.

    Hypotheses are token lists, one a sentence; `references` holds a list of token lists for each of them. Without the
    clipping "the the the" would be all matches as soon as a reference has one "the".

    >>> modified_precision([["the"] * 7], [["the cat is on the mat".split()]], 1)
    (2, 7)

    Source: Papineni et al. 2002, "BLEU", section 2.1.
    """
    check_sizes(n=n)
    check_corpus(hypotheses, references)
    matches = total = 0
    for hypothesis, choices in zip(hypotheses, references, strict=True):
        most = Counter()
        for reference in choices:
            most |= ngrams(reference, n)  # the larger of the two counts
        counts = ngrams(hypothesis, n)
        matches += (counts & most).total()  # the smaller of the two counts
        total += counts.total()
    return matches, total


def ngrams(tokens, n):
    """How often each n-gram occurs."""
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def closest_length(hypothesis, references):
    """The length of the reference that is nearest in length to the hypothesis; of two, the shorter (section 2.2.2)."""
    check_length("references", references)
    return min((len(reference) for reference in references), key=lambda r: (abs(r - len(hypothesis)), r))


def brevity_penalty(c, r):
    r"""The factor that punishes hypotheses of c tokens where the closest references have r: $\min(1, \exp(1 - r / c))$.

    Precision alone would reward a model for saying only what it is sure of (section 2.3). No output (c = 0) gets 0.
    """
    check_positive(zero=True, c=c, r=r)
    if c == 0:
        return 0.0
    return min(1.0, math.exp(1 - r / c))


def bleu(hypotheses, references, max_n=4):
    r"""BLEU of a corpus, from 0 to 100: the geometric mean of the n-gram precisions times the brevity penalty.

    $$ 100 \cdot BP \cdot \exp\Big(\frac{1}{max_n} \sum_{n=1}^{max_n} \ln \frac{matches_n}{total_n}\Big) $$

    Counts are summed over the corpus first, and are not smoothed: one n without a match makes the score 0. Scores of
    different tokenizers cannot be compared: publish sacrebleu's.

    >>> reference = "the cat is on the mat".split()
    >>> round(bleu(["the cat is on a mat".split()], [[reference]]), 2)
    53.73

    Source: Papineni et al. 2002, section 2.3; Post 2018, arXiv 1804.08771, on reporting it.
    """
    check_sizes(max_n=max_n)
    counts = [modified_precision(hypotheses, references, n) for n in range(1, max_n + 1)]
    if any(matches == 0 for matches, _ in counts):
        return 0.0
    c = sum(map(len, hypotheses))
    r = sum(map(closest_length, hypotheses, references))
    mean_log = sum(math.log(matches / total) for matches, total in counts) / max_n
    return 100 * brevity_penalty(c, r) * math.exp(mean_log)


def check_corpus(hypotheses, references):
    """Token lists on both sides, and references for each hypothesis."""
    check_length("hypotheses", hypotheses)
    if len(hypotheses) != len(references):
        raise ValueError(f"got {len(hypotheses)} hypotheses but references for {len(references)}")
    for hypothesis, choices in zip(hypotheses, references, strict=True):
        check_length("references", choices)
        for tokens in (hypothesis, *choices):
            if not isinstance(tokens, list | tuple):  # of words, or of their ids
                raise ValueError(f"sentences must be lists of tokens, got {str(tokens)[:40]!r}")
