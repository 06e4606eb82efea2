"""The toy languages against independent readers: a judge of reviews, a dictionary, hand-worked tasks."""

import collections
import itertools
import math
import statistics

import pytest
import torch

from course_lib.datasets import synthetic

# --- reviews --------------------------------------------------------------------

GOOD = {"great", "brilliant", "wonderful", "superb", "excellent", "lovely"}
BAD = {"terrible", "awful", "dull", "boring", "weak", "poor"}


def judge(text):
    """Read a review as a person does: an adjective counts unless its clause denies it or gives it to others."""
    votes = set()
    for clause in text.replace(" . ", " , ").replace(" .", "").split(" , "):
        words = set(clause.split())
        taken_back = words & {"not", "nobody", "expected", "critics"}
        for word in words & (GOOD | BAD):
            votes.add((word in GOOD) != bool(taken_back))
    assert len(votes) == 1, f"two opinions in one review: {text}"
    return int(votes.pop())


def test_reviews_mean_what_their_label_says():
    # Fails if a template puts {yes} and {no} the wrong way round, or if a label is swapped.
    drawn = synthetic.reviews(3000, seed=1)
    assert [label for _, label in drawn] == [judge(text) for text, _ in drawn]


def test_reviews_are_distinct_balanced_and_of_several_lengths():
    # Fails if a review is drawn twice, if the labels lean to one side, or if all reviews are equally long.
    drawn = synthetic.reviews(3000, seed=2)
    assert len({text for text, _ in drawn}) == 3000
    assert sum(label for _, label in drawn) == 1500
    lengths = [len(text.split()) for text, _ in drawn]
    assert min(lengths) < 12 < 35 < max(lengths)
    assert 40 <= len({word for text, _ in drawn for word in text.split()}) <= 80


def test_every_review_stands_beside_its_mirror():
    # Fails if a neighbour has other words or the same label. The first of a pair must not always be the positive one.
    drawn = synthetic.reviews(400, seed=3)
    firsts = set()
    for (text, label), (mirror, other) in zip(drawn[::2], drawn[1::2], strict=True):
        assert collections.Counter(text.split()) == collections.Counter(mirror.split())
        assert (text != mirror, label + other) == (True, 1)
        firsts.add(label)
    assert firsts == {0, 1}


def test_any_bag_of_words_is_right_on_exactly_half():
    # Fails if one word or the length gives the label away. A bag of words is trained on the reviews that it is
    # then asked about, and with the weights of a random other one: both must be at chance, to the item.
    drawn = synthetic.reviews(600, seed=4)
    words = sorted({word for text, _ in drawn for word in text.split()})
    counts = torch.tensor([[text.split().count(word) for word in words] for text, _ in drawn], dtype=torch.float64)
    labels = torch.tensor([label for _, label in drawn])
    least_squares = torch.linalg.lstsq(counts, labels.double() - 0.5, driver="gelsd").solution
    random = torch.randn(len(words), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for weights in (least_squares, random):
        right = ((counts @ weights > 0) == labels.bool()).sum().item()
        assert right == 300
    # Order decides: an independent reader is right on all of them.
    assert all(judge(text) == label for text, label in drawn)


def test_no_place_in_the_sentence_decides():
    # Fails if "the last adjective is the opinion" works: it must be right on about half of single judgements.
    single = [
        (text, label) for text, label in synthetic.reviews(4000, seed=5) if len(set(text.split()) & (GOOD | BAD)) == 2
    ]
    last = [int([w for w in text.split() if w in GOOD | BAD][-1] in GOOD) for text, _ in single]
    share = statistics.mean(int(guess == label) for guess, (_, label) in zip(last, single, strict=True))
    assert 0.4 < share < 0.6


def test_review_pairs_are_the_reviews():
    # Fails if the two functions draw different languages, or if the positive text is not the first.
    pairs = synthetic.review_pairs(50, seed=6)
    assert {(judge(text), judge(mirror)) for text, mirror in pairs} == {(1, 0)}
    assert sorted(t for pair in pairs for t in pair) == sorted(text for text, _ in synthetic.reviews(100, seed=6))


# --- translation ----------------------------------------------------------------

DICTIONARY = {
    "the": {"lo", "la"}, "a": {"uno", "una"}, "an": {"uno", "una"}, "not": {"ne"},
    "dog": {"hundo"}, "horse": {"ekvo"}, "farmer": {"agro"}, "boy": {"filo"},
    "cat": {"kata"}, "cow": {"bova"}, "teacher": {"dokta"}, "girl": {"nina"},
    "garden": {"jardo"}, "bridge": {"ponto"}, "market": {"merkato"},
    "river": {"riva"}, "house": {"kasa"}, "forest": {"silva"},
    "old": {"veto", "veta"}, "small": {"miko", "mika"}, "big": {"grando", "granda"},
    "quiet": {"tranqo", "tranqa"}, "lonely": {"solo", "sola"}, "strange": {"miro", "mira"},
    "near": {"apud"}, "behind": {"retro"}, "beside": {"flank"},
    "today": {"nun"}, "yesterday": {"pasinta", "tago"}, "tomorrow": {"venonta", "tago"},
    "sees": {"vidas"}, "saw": {"vidis"}, "see": {"vidas", "vidis", "vidos"},
    "finds": {"trovas"}, "found": {"trovis"}, "find": {"trovas", "trovis", "trovos"},
    "follows": {"sekvas"}, "followed": {"sekvis"}, "follow": {"sekvas", "sekvis", "sekvos"},
    "helps": {"judas"}, "helped": {"judis"}, "help": {"judas", "judis", "judos"},
    "calls": {"vokas"}, "called": {"vokis"}, "call": {"vokas", "vokis", "vokos"},
    "greets": {"salutas"}, "greeted": {"salutis"}, "greet": {"salutas", "salutis", "salutos"},
    "does": set(), "did": set(), "will": set(),
}  # fmt: skip
NOUNS = set("dog horse farmer boy cat cow teacher girl garden bridge market river house forest".split())


@pytest.fixture(scope="module")
def pairs():
    return synthetic.translation_pairs(20_000, seed=1)


def test_translation_gives_many_distinct_sentences(pairs):
    # Fails if a sentence is drawn twice, or if two sentences share one translation (BLEU 100 out of reach).
    assert len({tuple(pair.source) for pair in pairs}) == len({tuple(pair.target) for pair in pairs}) == 20_000
    assert any(len(pair.source) < len(pair.target) for pair in pairs)
    assert any(len(pair.source) > len(pair.target) for pair in pairs)


def test_alignment_agrees_with_a_dictionary_written_by_hand(pairs):
    # Fails if one target word points to a source word that it does not translate, or if a word is left untranslated.
    for source, target, alignment in pairs:
        assert len(alignment) == len(target)
        for word, i in zip(target, alignment, strict=True):
            assert word in DICTIONARY[source[i]], (source, target, alignment)
        times = collections.Counter(alignment)
        for i, word in enumerate(source):
            wanted = {"does": 0, "did": 0, "will": 0, "yesterday": 2, "tomorrow": 2}.get(word, 1)
            assert times[i] == wanted, (source, target, alignment)


def test_determiners_belong_to_the_right_noun(pairs):
    # The dictionary cannot tell one "the" from the other. Fails if a determiner or an adjective points
    # into another phrase: between it and its noun in English there may stand one adjective at most.
    for source, target, alignment in pairs:
        for t, (word, i) in enumerate(zip(target, alignment, strict=True)):
            if source[i] in {"the", "a", "an"}:
                noun = i + 1 if source[i + 1] in NOUNS else i + 2
                assert alignment[t + 1] == noun
                assert word[-1] == target[t + 1][-1]  # agreement in gender
                if noun == i + 2:
                    assert alignment[t + 2] == i + 1
                    assert target[t + 2][-1] == word[-1]


def test_word_order_of_the_translation(pairs):
    # Fails if the verb does not come last (before "ne"), the time not first, the preposition not between its place
    # (later in English) and the object (earlier in English), or if nothing is reordered.
    for source, target, alignment in pairs:
        for t, i in enumerate(alignment):
            if source[i] in {"near", "behind", "beside"}:
                assert alignment[t - 1] > i > alignment[t + 1]
        last = target[-2] if target[-1] == "ne" else target[-1]
        assert last[-2:] in {"as", "is", "os"}
        assert ("not" in source) == (target[-1] == "ne")
        assert (source[-1] == "yesterday") == (target[:2] == ["pasinta", "tago"])
        assert (source[-1] == "tomorrow") == (target[:2] == ["venonta", "tago"])
    assert all(list(alignment) != sorted(alignment) for *_, alignment in pairs if len(alignment) > 5)


def test_tense_is_carried_by_the_verb(pairs):
    # Fails if "did" becomes a present, or if "saw" and "will see" share a form.
    for source, target, _ in pairs:
        past = "did" in source or bool(set(source) & {"saw", "found", "followed", "helped", "called", "greeted"})
        ending = "os" if "will" in source else "is" if past else "as"
        assert (target[-2] if target[-1] == "ne" else target[-1]).endswith(ending)
        assert "yesterday" not in source or past
        assert ("tomorrow" not in source) or "will" in source


def test_english_articles(pairs):
    # Fails if "a old dog" or "an dog" is written.
    for source, *_ in pairs:
        for word, following in itertools.pairwise(source):
            if word in {"a", "an"}:
                assert (word == "an") == (following[0] in "aeiou")


# --- coreference ----------------------------------------------------------------

# scene: (action, adjectives of the first noun, adjectives of the second), as an English reader sees it
MEANING = {
    "cross": ({"tired", "lazy"}, {"wide", "busy"}),
    "fit": ({"big", "wide"}, {"small", "full"}),
    "pull": ({"weak", "tired"}, {"heavy", "big"}),
    "climb": ({"lazy", "heavy"}, {"tall", "icy"}),
    "eat": ({"full", "shy"}, {"hard", "sour"}),
}


def test_coreference_is_what_a_reader_says():
    # Fails if an index is off by one or the referent is the wrong noun.
    for tokens, pronoun, referent, distractor in synthetic.coreference(4000, seed=1):
        assert tokens[pronoun] == "it"
        action = next(word for word in tokens if word in MEANING)
        first, second = (i + 1 for i, word in enumerate(tokens) if word == "the" and tokens[i + 1] != "end")
        of_first, of_second = MEANING[action]
        assert (tokens[-1] in of_first) != (tokens[-1] in of_second)
        assert (referent, distractor) == ((first, second) if tokens[-1] in of_first else (second, first))


def test_coreference_twins_differ_in_the_adjective_only():
    # Fails if anything but the last word tells the referent: then one could guess better than half.
    drawn = synthetic.coreference(2000, seed=2)
    first_is_referent = set()
    for one, other in zip(drawn[::2], drawn[1::2], strict=True):
        assert one.tokens[:-1] == other.tokens[:-1]
        assert one.tokens[-1] != other.tokens[-1]
        assert (one.referent, one.distractor) == (other.distractor, other.referent)
        first_is_referent.add(one.referent < one.distractor)
    assert first_is_referent == {True, False}
    assert len({sentence.pronoun for sentence in drawn}) > 3


def test_the_whole_coreference_language():
    # Fails if the documented size is wrong, a sentence is repeated, or a larger request loops for ever.
    drawn = synthetic.coreference(19_584, seed=3)
    assert len({tuple(sentence.tokens) for sentence in drawn}) == 19_584
    with pytest.raises(ValueError, match=r"asked for 9,793 different .*, but the language has only 9,792"):
        synthetic.coreference(19_586, seed=3)


# --- all languages --------------------------------------------------------------


@pytest.mark.parametrize(
    "draw", [synthetic.reviews, synthetic.review_pairs, synthetic.translation_pairs, synthetic.coreference]
)
def test_drawing_is_repeatable_and_a_longer_list_begins_with_the_shorter(draw):
    # Fails if a global generator or the order of a set leaks in, or if the seed is ignored.
    assert draw(60, seed=5) == draw(60, seed=5)
    assert draw(60, seed=5)[:22] == draw(22, seed=5)
    assert draw(60, seed=5) != draw(60, seed=6)
    assert draw(0) == []


@pytest.mark.parametrize(
    "draw", [synthetic.reviews, synthetic.review_pairs, synthetic.translation_pairs, synthetic.coreference]
)
@pytest.mark.parametrize("n", [-2, 2.0, "4"])
def test_a_wrong_number_is_named(draw, n):
    # Fails if a negative or a fractional number is taken for an empty list, or if the message hides it.
    with pytest.raises(ValueError, match=f"must be an integer, 0 or more, got n={n!r}"):
        draw(n)


@pytest.mark.parametrize("draw", [synthetic.reviews, synthetic.coreference])
def test_an_odd_number_is_refused(draw):
    # Fails if a review is given without its mirror: the bag of words could then be right more often than half.
    with pytest.raises(ValueError, match="n must be even, got n=7"):
        draw(7)


# --- memory tasks ---------------------------------------------------------------


def generator():
    return torch.Generator().manual_seed(0)


def test_recall_task():
    # Fails if the answer is asked too early or too late, if the question occurs earlier, or if an answer never occurs.
    x, y = synthetic.recall_task(500, lag=7, vocab_size=5, generator=generator())
    assert (x.shape, y.shape, x.dtype, y.dtype) == ((500, 8), (500,), torch.int64, torch.int64)
    assert (x == 0).nonzero().tolist() == [[b, 7] for b in range(500)]
    assert torch.equal(x[:, 7 - 7], y)
    assert y.unique().tolist() == x[:, 1:-1].unique().tolist() == [1, 2, 3, 4]
    y[0] = 99
    assert x[0, 0] != 99  # y is a copy, not a view into x


@pytest.mark.parametrize("delay", [0, 4])
def test_copy_task(delay):
    # Fails if "now" stands at the wrong step, if the order is reversed, or if a blank is asked for as a symbol.
    x, y = synthetic.copy_task(300, length=3, vocab_size=6, generator=generator(), delay=delay)
    for said, wanted in zip(x.tolist(), y.tolist(), strict=True):
        symbols = said[:3]
        assert said == symbols + [0] * delay + [1] + [0] * 2
        assert wanted == [0] * (3 + delay) + symbols
    assert x[:, :3].unique().tolist() == [2, 3, 4, 5]


def test_adding_task():
    # Fails if a mark is missing or in the wrong half, or if the sum is of other numbers. The error of the constant
    # answer 1 is 1/6; its estimate from 20,000 sums has a standard error of 0.0014 (variance 7/180 / 20,000).
    x, y = synthetic.adding_task(20_000, length=7, generator=generator())
    assert (x.shape, y.shape) == ((20_000, 7, 2), (20_000,))
    assert x[..., 1].unique().tolist() == [0, 1]
    assert (x[:, :3, 1].sum(1) == 1).all()
    assert (x[:, 3:, 1].sum(1) == 1).all()
    by_hand = [sum(value for value, mark in row if mark) for row in x[:50].tolist()]
    torch.testing.assert_close(y[:50], torch.tensor(by_hand))
    assert abs(((y - 1) ** 2).mean().item() - 1 / 6) < 4 * math.sqrt(7 / 180 / 20_000)
    assert (x[:, :, 1].sum(0) > 0).all()  # every step is marked sometimes, the first and the last too


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: synthetic.recall_task(0, 3, 5), "recall_task: batch must be at least 1, got 0"),
        (lambda: synthetic.recall_task(2, 0, 5), "recall_task: lag must be at least 1, got 0"),
        (lambda: synthetic.recall_task(2, 3, 2), "recall_task: vocab_size must be at least 3, got 2"),
        (lambda: synthetic.copy_task(2, 3, 3), "copy_task: vocab_size must be at least 4, got 3"),
        (lambda: synthetic.copy_task(2, 3, 5, delay=-1), "copy_task: delay must be at least 0, got -1"),
        (lambda: synthetic.adding_task(2, 1), "adding_task: length must be at least 2, got 1"),
        (lambda: synthetic.seasonal_series(0), "seasonal_series: length must be at least 1, got 0"),
        (lambda: synthetic.seasonal_series(9, period=1), "seasonal_series: period must be at least 2, got 1"),
        (
            lambda: synthetic.seasonal_series(9, noise=math.nan),
            "seasonal_series: noise must be a finite number, got nan",
        ),
    ],
)
def test_sizes_out_of_range_are_named(call, message):
    # Fails if a wrong size is let through, or blamed on another argument.
    with pytest.raises(ValueError, match=message):
        call()


# --- the series -----------------------------------------------------------------


def test_series_without_noise_repeats_with_its_trend():
    # Fails if the season has another period, or if the trend is not added: y_t = y_{t-P} + trend P.
    # Tolerance: sin and cos of arguments below 2 pi 40/7 err by a few 1e-15.
    y = synthetic.seasonal_series(40, period=7, trend=0.3, noise=0.0)
    assert (y.shape, y.dtype) == ((40,), torch.float64)
    torch.testing.assert_close(y[7:], y[:-7] + 2.1, rtol=0, atol=1e-13)
    assert (y[1:7] - y[:1] - 0.3 * torch.arange(1, 7)).abs().min() > 0.01  # and no shorter period


def test_series_by_hand():
    # Fails if one of the two waves is missing. P = 8, t = 1: sin 45 degrees + cos 90 degrees / 2 + trend.
    y = synthetic.seasonal_series(3, period=8, trend=0.25, noise=0.0)
    torch.testing.assert_close(y, torch.tensor([0.5, 0.25 + math.sqrt(0.5), 0.5 + 1 - 0.5], dtype=torch.float64))


def test_noise_has_its_standard_deviation():
    # Fails if noise is a variance. The std of 4,000 numbers has a relative standard error of 1/sqrt(8000) = 1.1 %.
    noise = synthetic.seasonal_series(4000, seed=1, noise=0.5) - synthetic.seasonal_series(4000, noise=0.0)
    assert abs(noise.std().item() / 0.5 - 1) < 4 / math.sqrt(8000)
    assert torch.equal(synthetic.seasonal_series(30, seed=1), synthetic.seasonal_series(50, seed=1)[:30])
    assert not torch.equal(synthetic.seasonal_series(30, seed=1), synthetic.seasonal_series(30, seed=2))
