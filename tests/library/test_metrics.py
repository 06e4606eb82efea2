"""Cross-entropy against torch and by hand; BLEU against sacrebleu and the textbook's cases."""

import math
import random

import pytest
import torch
import torch.nn.functional as F

from course_lib import metrics


@pytest.fixture(scope="module")
def sacrebleu_score():
    """Sacrebleu's own corpus score of token lists, without tokenizing and smoothing."""
    from sacrebleu.metrics import BLEU

    def score(hypotheses, references, max_n=4):
        most = max(map(len, references))
        streams = [[" ".join(refs[j]) if j < len(refs) else None for refs in references] for j in range(most)]
        scorer = BLEU(tokenize="none", smooth_method="none", force=True, max_ngram_order=max_n)
        return scorer.corpus_score([" ".join(tokens) for tokens in hypotheses], streams)

    return score


def random_corpus(seed, sentences=9, words=5):
    """Sentences of 0 to 13 words over a small alphabet, so that n-grams repeat and clipping matters."""
    rng = random.Random(seed)

    def sentence(shortest):
        return [rng.choice("abcdefgh"[:words]) for _ in range(rng.randint(shortest, 13))]

    hypotheses = [sentence(0) for _ in range(sentences)]
    return hypotheses, [[sentence(1) for _ in range(rng.randint(1, 3))] for _ in range(sentences)]


# --- cross-entropy, perplexity, bits ---------------------------------------------------------


def test_cross_entropy_is_the_mean_over_real_tokens_only():
    """Fails if padding counts, if it sums instead of averaging, or if rows are averaged before tokens."""
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 7, dtype=torch.float64, requires_grad=True)
    targets = torch.randint(0, 7, (2, 5))
    mask = torch.tensor([[True] * 5, [True, False, False, False, False]])
    by_hand = [
        -math.log(logits[b, t].softmax(0)[targets[b, t]].item()) for b in range(2) for t in range(5) if mask[b, t]
    ]
    got = metrics.cross_entropy(logits, targets, mask)
    torch.testing.assert_close(got.item(), sum(by_hand) / 6, rtol=1e-10, atol=1e-10)
    got.backward()
    assert logits.grad[1, 1:].abs().max() == 0
    assert logits.grad[mask].abs().min() > 0


def test_cross_entropy_equals_torch_without_a_mask():
    """Fails if the axes are taken in another order: 3, 4 and 7 differ."""
    torch.manual_seed(1)
    logits, targets = torch.randn(3, 4, 7, dtype=torch.float64), torch.randint(0, 7, (3, 4))
    want = F.cross_entropy(logits.transpose(1, 2), targets)
    torch.testing.assert_close(metrics.cross_entropy(logits, targets), want, rtol=1e-10, atol=1e-10)


def test_masked_targets_may_be_out_of_range():
    """Fails if the range check looks at padding, where -100 is a common filler."""
    logits, targets = torch.zeros(1, 3, 4), torch.tensor([[1, 3, -100]])
    got = metrics.cross_entropy(logits, targets, targets >= 0)
    torch.testing.assert_close(got, torch.tensor(math.log(4)))


def test_the_three_cases_of_perplexity():
    """Fails if perplexity is anything but e to the nats (2 to the nats gives 2.7 in the third case)."""
    V, targets = 5, torch.tensor([3, 0])
    certain = torch.full((2, V), -math.inf).scatter(1, targets[:, None], 0.0)
    wrong = torch.zeros(2, V).scatter(1, targets[:, None], -math.inf)
    assert metrics.perplexity(metrics.cross_entropy(certain, targets)) == 1
    assert metrics.perplexity(metrics.cross_entropy(wrong, targets)) == math.inf
    even = metrics.perplexity(metrics.cross_entropy(torch.zeros(2, V, dtype=torch.float64), targets))
    torch.testing.assert_close(even.item(), float(V), rtol=1e-10, atol=0)


def test_perplexity_of_floats_does_not_overflow():
    """Fails with math.exp, which raises OverflowError from about 710."""
    assert metrics.perplexity(1000.0) == math.inf
    assert metrics.perplexity(2) == pytest.approx(math.e**2, rel=1e-12)
    assert isinstance(metrics.perplexity(2), float)


def test_bits_of_a_fair_coin_and_of_a_tensor():
    """Fails if the base is not 2."""
    assert metrics.bits(math.log(2)) == 1
    want = torch.tensor([2.0, 3.0], dtype=torch.float64)
    torch.testing.assert_close(metrics.bits(torch.tensor([4.0, 8.0], dtype=torch.float64).log()), want)


@pytest.mark.parametrize(
    ("logits", "targets", "mask", "message"),
    [
        (
            torch.zeros(2, 3, 4),
            torch.zeros(3, 2, dtype=torch.long),
            None,
            r"logits must be a tensor \(3, 2, V\), got one of shape \(2, 3, 4\)",
        ),
        (torch.zeros(2, 4), torch.tensor([0, 4]), None, "targets must be from 0 to 3, got 0 to 4"),
        (torch.zeros(2, 4), torch.tensor([-1, 2]), None, "targets must be from 0 to 3, got -1 to 2"),
        (
            torch.zeros(2, 4),
            torch.tensor([0, 1]),
            torch.zeros(2, dtype=torch.bool),
            "real targets must have a length of at least 1, got 0",
        ),
        (
            torch.zeros(0, 4),
            torch.zeros(0, dtype=torch.long),
            None,
            "real targets must have a length of at least 1, got 0",
        ),
        (torch.zeros(2, 4), torch.tensor([0, 1]), torch.ones(2), "real must be torch.bool, got torch.float32"),
        (
            torch.zeros(2, 4),
            torch.tensor([0, 1]),
            torch.ones(3, dtype=torch.bool),
            r"real must be a tensor \(2,\), got one of shape \(3,\)",
        ),
    ],
)
def test_cross_entropy_names_what_is_wrong(logits, targets, mask, message):
    """Fails if bad input passes or the message names another thing."""
    with pytest.raises(ValueError, match=message):
        metrics.cross_entropy(logits, targets, mask)


# --- BLEU ------------------------------------------------------------------------------------

THE = "the the the the the the the".split()
THE_REFERENCES = ["the cat is on the mat".split(), "there is a cat on the mat".split()]


def test_clipping_on_papineni_example():
    """Papineni's first example, 2/7; fails without clipping (7/7) and if references are added up (3/7)."""
    assert metrics.modified_precision([THE], [THE_REFERENCES], 1) == (2, 7)
    assert metrics.modified_precision([THE], [THE_REFERENCES], 2) == (0, 6)


def test_papineni_candidates_one_and_two():
    """Unigram 17/18 and bigram 10/17 against 8/14 and 1/13, from section 2.1 of the paper."""
    good = "it is a guide to action which ensures that the military always obeys the commands of the party".split()
    second = "it is the guiding principle which guarantees the military forces always"
    bad = "it is to insure the troops forever hearing the activity guidebook that party direct".split()
    references = [
        "it is a guide to action that ensures that the military will forever heed party commands".split(),
        f"{second} being under the command of the party".split(),
        "it is the practical guide for the army always to heed the directions of the party".split(),
    ]
    assert [metrics.modified_precision([good], [references], n) for n in (1, 2)] == [(17, 18), (10, 17)]
    assert [metrics.modified_precision([bad], [references], n) for n in (1, 2)] == [(8, 14), (1, 13)]


@pytest.mark.parametrize("seed", range(12))
def test_bleu_equals_sacrebleu_on_random_corpora(seed, sacrebleu_score):
    """Fails on any slip in clipping, totals, closest lengths or the mean; several and unequally many references."""
    hypotheses, references = random_corpus(seed, sentences=30, words=3 + seed % 3)
    want = sacrebleu_score(hypotheses, references)
    assert want.score > 0
    assert metrics.bleu(hypotheses, references) == pytest.approx(want.score, rel=1e-10)
    counts = [metrics.modified_precision(hypotheses, references, n) for n in (1, 2, 3, 4)]
    assert [list(column) for column in zip(*counts, strict=True)] == [want.counts, want.totals]
    assert sum(map(metrics.closest_length, hypotheses, references)) == want.ref_len
    assert metrics.brevity_penalty(want.sys_len, want.ref_len) == pytest.approx(want.bp, rel=1e-12)


@pytest.mark.parametrize("max_n", [1, 2, 3, 5])
def test_bleu_of_other_orders_equals_sacrebleu(max_n, sacrebleu_score):
    """Fails if the weights stay at 1/4."""
    hypotheses, references = random_corpus(40, sentences=20, words=3)
    want = sacrebleu_score(hypotheses, references, max_n).score
    assert want > 0
    assert metrics.bleu(hypotheses, references, max_n) == pytest.approx(want, rel=1e-10)


def test_bleu_by_hand():
    """Precisions 5/6, 3/5, 2/4, 1/3 and no penalty: (1/12)^(1/4)."""
    got = metrics.bleu(["the cat is on a mat".split()], [["the cat is on the mat".split()]])
    assert got == pytest.approx(100 * (5 / 6 * 3 / 5 * 2 / 4 * 1 / 3) ** 0.25, rel=1e-12)


def test_bleu_corpus_is_not_the_mean_of_sentences(sacrebleu_score):
    """Fails if scores are averaged over sentences: the second sentence alone scores 0."""
    hypotheses = ["a b c d e f".split(), "a x".split()]
    references = [["a b c d e f".split()], ["a b".split()]]
    got = metrics.bleu(hypotheses, references)
    assert got == pytest.approx(sacrebleu_score(hypotheses, references).score, rel=1e-10)
    assert metrics.bleu(hypotheses[1:], references[1:]) == 0
    assert got > 80


def test_bleu_corners(sacrebleu_score):
    """Fails if a perfect score is not 100, or if no match, no 4-gram or no output is anything but 0."""
    perfect = "one two three four".split()
    assert metrics.bleu([perfect], [[perfect]]) == pytest.approx(100, rel=1e-12)
    for hypothesis in (["x", "y", "z", "w"], perfect[:3], []):
        assert metrics.bleu([hypothesis], [[perfect]]) == 0 == sacrebleu_score([hypothesis], [[perfect]]).score


def test_closest_length_prefers_the_shorter_of_two():
    """Fails if ties go to the first or the longer reference."""
    assert metrics.closest_length(list("abc"), [list("abcd"), list("ab")]) == 2
    assert metrics.closest_length(list("abc"), [list("abcdefg"), list("abcd")]) == 4


def test_brevity_penalty_by_hand():
    """Fails if long output is punished too, or if c and r are swapped."""
    assert metrics.brevity_penalty(18, 12) == 1
    assert metrics.brevity_penalty(9, 12) == pytest.approx(math.exp(-1 / 3), rel=1e-12)
    assert metrics.brevity_penalty(0, 12) == 0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.bleu([], []), "hypotheses must have a length of at least 1, got 0"),
        (lambda: metrics.bleu([["a"]], []), "1 hypotheses but references for 0"),
        (lambda: metrics.bleu([["a"]], [[]]), "references must have a length of at least 1, got 0"),
        (lambda: metrics.bleu(["a cat"], [[["a", "cat"]]]), "sentences must be lists of tokens, got 'a cat'"),
        (lambda: metrics.bleu([["a", "cat"]], [["a cat"]]), "sentences must be lists of tokens, got 'a cat'"),
        (lambda: metrics.bleu([["a"]], [[["a"]]], max_n=0), "max_n must be a whole number of at least 1, got 0"),
        (lambda: metrics.modified_precision([["a"]], [[["a"]]], 0), "n must be a whole number of at least 1, got 0"),
        (lambda: metrics.closest_length(["a"], []), "references must have a length of at least 1, got 0"),
        (lambda: metrics.brevity_penalty(-1, 2), "c must be a finite number from 0 on, got -1"),
    ],
)
def test_bleu_names_what_is_wrong(call, message):
    """Fails if bad input passes or the message names another thing."""
    with pytest.raises(ValueError, match=message):
        call()
