r"""How good is a model of text? Perplexity for its probabilities, BLEU for its sentences.

Read `cross_entropy`, `perplexity` and `bits` first: one number in three units. Then BLEU from its
parts: `modified_precision` counts matching n-grams, `brevity_penalty` punishes short output,
`bleu` puts the two together over a whole corpus.

Notebooks: 01 (perplexity), 02 (BLEU).
"""

import math
from collections import Counter

import torch
import torch.nn.functional as F


def cross_entropy(logits, targets, mask=None):
    r"""Mean negative log-likelihood of the targets, in nats a token.

    $$ -\frac{1}{M} \sum_{m=1}^{M} \ln \mathrm{softmax}(logits_m)[targets_m] $$

    M is the number of real tokens; padding must not count, or a model looks good for predicting `<pad>`.

    Args:
        logits: (..., V) float scores before the softmax.
        targets: (...) int64 ids.
        mask: (...) bool, True = may attend (a real token); None counts every target.

    Returns:
        Tensor () of the logits' dtype, nats a token; differentiable.

    Raises:
        ValueError: if the shapes do not fit, if no target is left to count, or if a counted
            target is below 0 or not below V.

    Example:
        >>> logits = torch.log(torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]))
        >>> nats = cross_entropy(logits, torch.tensor([0, 1]))
        >>> print(f"{nats:.4f}")  # (ln 2 - ln 0.8) / 2
        0.4581

    Notebook: 01.
    """
    if logits.shape[:-1] != targets.shape or logits.ndim == 0:
        raise ValueError(
            f"logits must have the targets' shape and one more axis: "
            f"got {tuple(logits.shape)} and {tuple(targets.shape)}"
        )
    if mask is not None:
        if mask.shape != targets.shape or mask.dtype != torch.bool:
            raise ValueError(
                f"mask must be boolean and of the targets' shape {tuple(targets.shape)}, "
                f"got {mask.dtype} {tuple(mask.shape)}"
            )
        logits, targets = logits[mask], targets[mask]
    if targets.numel() == 0:
        raise ValueError("there is no target to count: the mean over none is not defined")
    V = logits.shape[-1]
    if targets.min() < 0 or targets.max() >= V:
        raise ValueError(f"targets must be ids from 0 to {V - 1}, got {targets.min().item()} to {targets.max().item()}")
    return F.cross_entropy(logits.reshape(-1, V), targets.reshape(-1))


def perplexity(nats):
    r"""The effective number of choices: e to the nats a token.

    $$ \exp(nats) $$

    1 for a model that always gives the truth probability 1, infinity for one that ever gives it
    probability 0, V for one that spreads its probability evenly over V tokens.

    Args:
        nats: cross-entropy in nats a token (natural logarithm), float or tensor.

    Returns:
        float for a number, tensor for a tensor; infinity where exp overflows.

    Example:
        >>> perplexity(0.0), round(perplexity(math.log(50)), 6), perplexity(math.inf)
        (1.0, 50.0, inf)

    Notebook: 01.
    """
    if isinstance(nats, torch.Tensor):
        return nats.exp()
    return torch.tensor(nats, dtype=torch.float64).exp().item()  # math.exp raises where it overflows


def bits(nats):
    r"""Nats as bits: how long the best code for the token would be.

    $$ nats / \ln 2 $$

    Args:
        nats: cross-entropy in nats (natural logarithm), float or tensor.

    Returns:
        bits (logarithm to base 2), of the same kind.

    Example:
        >>> round(bits(math.log(8)), 6)
        3.0

    Notebook: 01.
    """
    return nats / math.log(2)


def modified_precision(hypotheses, references, n):
    r"""Clipped n-gram matches of a corpus, and how many n-grams the hypotheses have.

    $$ \sum_i \sum_g \min(count_{hyp_i}(g), \max_j count_{ref_{ij}}(g)) $$

    Without the clipping "the the the" would be all matches as soon as a reference has one "the".
    Matches and totals are summed over the corpus before anyone divides.

    Args:
        hypotheses: list of token lists, one a sentence.
        references: list of lists of token lists: for each hypothesis its references.
        n: length of the n-grams, at least 1.

    Returns:
        matches: int, clipped matches.
        total: int, n-grams in the hypotheses.

    Raises:
        ValueError: if n is below 1, if there are no hypotheses, not as many reference lists as
            hypotheses, a hypothesis without references, or a string where a token list belongs.

    Example:
        >>> hypothesis = "the the the the the the the".split()
        >>> references = ["the cat is on the mat".split(), "there is a cat on the mat".split()]
        >>> modified_precision([hypothesis], [references], 1)
        (2, 7)

    Source: Papineni et al. 2002, "BLEU", section 2.1. Notebook: 02.
    """
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    _check_corpus(hypotheses, references)
    matches = total = 0
    for hypothesis, choices in zip(hypotheses, references, strict=True):
        most = Counter()
        for reference in choices:
            most |= _ngrams(reference, n)  # the larger of the two counts
        counts = _ngrams(hypothesis, n)
        matches += (counts & most).total()  # the smaller of the two counts
        total += counts.total()
    return matches, total


def closest_length(hypothesis, references):
    """The length of the reference that is nearest in length to the hypothesis; of two, the shorter.

    Args:
        hypothesis: list of tokens.
        references: list of token lists, at least one.

    Returns:
        int, tokens.

    Raises:
        ValueError: if there is no reference.

    Example:
        >>> closest_length(["a", "b", "c"], [["a", "b"], ["a", "b", "c", "d"]])
        2

    Source: Papineni et al. 2002, section 2.2.2. Notebook: 02.
    """
    if len(references) == 0:
        raise ValueError("a hypothesis needs at least one reference, got none")
    return min((len(reference) for reference in references), key=lambda r: (abs(r - len(hypothesis)), r))


def brevity_penalty(c, r):
    r"""The factor that punishes output shorter than its references.

    $$ \min(1, \exp(1 - r / c)) $$

    Precision alone would reward a model for saying only what it is sure of.

    Args:
        c: tokens in all hypotheses.
        r: tokens in their closest references.

    Returns:
        float from 0 to 1; 0 if there is no output at all (c = 0).

    Raises:
        ValueError: if a length is negative.

    Example:
        >>> brevity_penalty(12, 12), round(brevity_penalty(6, 12), 4)
        (1.0, 0.3679)

    Source: Papineni et al. 2002, section 2.3. Notebook: 02.
    """
    if c < 0 or r < 0:
        raise ValueError(f"lengths must not be negative, got c={c} and r={r}")
    if c == 0:
        return 0.0
    return min(1.0, math.exp(1 - r / c))


def bleu(hypotheses, references, max_n=4):
    r"""BLEU of a corpus, from 0 to 100: the geometric mean of the n-gram precisions times the brevity penalty.

    $$ 100 \cdot BP \cdot \exp\Big(\frac{1}{max_n} \sum_{n=1}^{max_n} \ln \frac{matches_n}{total_n}\Big) $$

    Counts are summed over the corpus first; the mean of the sentences' own scores is another number.
    No smoothing: one n without a match makes the score 0. The tokens are taken as they come, so
    scores from different tokenizers cannot be compared: publish sacrebleu's with its signature.

    Args:
        hypotheses: list of token lists, one a sentence.
        references: list of lists of token lists: for each hypothesis its references.
        max_n: longest n-grams; 4 is the custom.

    Returns:
        float, 0 to 100; as sacrebleu with tokenize="none" and smooth_method="none".

    Raises:
        ValueError: if max_n is below 1, or as in `modified_precision`.

    Example:
        >>> reference = "the cat is on the mat".split()
        >>> round(bleu(["the cat is on a mat".split()], [[reference]]), 2)
        53.73

    Source: Papineni et al. 2002, "BLEU: a Method for Automatic Evaluation of Machine
    Translation", section 2.3; Post 2018, arXiv 1804.08771, on reporting it. Notebook: 02.
    """
    if max_n < 1:
        raise ValueError(f"max_n must be at least 1, got {max_n}")
    counts = [modified_precision(hypotheses, references, n) for n in range(1, max_n + 1)]
    if any(matches == 0 for matches, _ in counts):
        return 0.0
    c = sum(map(len, hypotheses))
    r = sum(map(closest_length, hypotheses, references))
    mean_log = sum(math.log(matches / total) for matches, total in counts) / max_n
    return 100 * brevity_penalty(c, r) * math.exp(mean_log)


def _ngrams(tokens, n):
    """How often each n-gram occurs."""
    return Counter(zip(*(tokens[i:] for i in range(n)), strict=False))


def _check_corpus(hypotheses, references):
    """Token lists on both sides, and references for each hypothesis."""
    if len(hypotheses) == 0:
        raise ValueError("there are no hypotheses to score")
    if len(hypotheses) != len(references):
        raise ValueError(f"got {len(hypotheses)} hypotheses but references for {len(references)}")
    for hypothesis, choices in zip(hypotheses, references, strict=True):
        if len(choices) == 0:
            raise ValueError("a hypothesis needs at least one reference, got none")
        for tokens in (hypothesis, *choices):
            if isinstance(tokens, str):
                raise ValueError(f"sentences must be lists of tokens, got the string {tokens[:40]!r}")
