r"""Small generated languages and memory tasks whose truth is known.

Real text never tells which word a translation came from or what a pronoun stands
for. Here a grammar writes the sentences, so it knows: a model's alignment, its
referent or its memory can be scored against the truth, in seconds, with no download.

Read in this order: `reviews` (order decides the label), `translation_pairs` (a
grammar that reorders words), `coreference` (one word decides what "it" means), then
the memory tasks `recall_task`, `copy_task`, `adding_task`, and `seasonal_series`.

Sentences are drawn with `random.Random(seed)` and tensors with the `torch.Generator`
that you pass: the same seed gives the same data on every machine. A longer list
begins with the shorter one of the same seed. Words are separated by one space, so
`text.split()` gives the tokens.
"""

import itertools
import math
import random
from collections.abc import Callable
from typing import NamedTuple

import torch

# --- reviews: order decides -----------------------------------------------------

THINGS = ("film", "plot", "acting", "story", "music", "ending", "cast", "script")
GOOD = ("great", "brilliant", "wonderful", "superb", "excellent", "lovely")
BAD = ("terrible", "awful", "dull", "boring", "weak", "poor")

# {yes} is what the reviewer holds, {no} is what the reviewer denies. In half of the
# templates {yes} comes last, in half it comes first: no place in the sentence decides.
JUDGEMENTS = (
    "the {thing} was not {no} , it was {yes}",
    "the {thing} was {yes} , it was not {no}",
    "i would not say that the {thing} was {no} , i would say that it was {yes}",
    "the {thing} was {yes} , and nobody would say that it was {no}",
    "i expected the {thing} to be {no} , but it was {yes}",
    "the {thing} was {yes} , although i expected it to be {no}",
    "critics called the {thing} {no} , but i found it {yes}",
    "i found the {thing} {yes} , although critics called it {no}",
)
REMARKS = ("we saw it on sunday", "the cinema was full", "it lasts two hours", "my brother came too")


def reviews(n: int, seed: int = 0) -> list[tuple[str, int]]:
    """Draw film reviews whose label only the order of the words can tell.

    Every review's mirror (the same words in another order, the opposite label) is in
    the list too. So the labels are balanced, and whatever a bag of words answers for a
    review it answers for the mirror: it is right on exactly half of the list.

    Args:
        n: number of reviews, an even number, because they come in pairs. All are distinct.

    Returns:
        List of (text, label), label 1 = positive, 0 = negative. A review and its mirror
        stand side by side, either of them first: cut the list at an even place, and
        both stay on the same side of the cut.

    >>> for text, label in reviews(2, seed=22):
    ...     print(label, text)
    1 the story was not dull , it was superb .
    0 the story was not superb , it was dull .
    """
    _check_count("reviews", n, seed)
    if n % 2:
        raise ValueError(f"reviews come in pairs, so n must be even, got n={n}")
    rng = random.Random(f"reviews order {seed}")
    listed = []
    for text, mirror in review_pairs(n // 2, seed):
        pair = [(text, 1), (mirror, 0)]
        listed += pair if rng.random() < 0.5 else pair[::-1]
    return listed


def review_pairs(n: int, seed: int = 0) -> list[tuple[str, str]]:
    """Draw pairs of reviews with the same words and opposite labels.

    Returns:
        List of (text, mirror): the text is positive (label 1), its mirror negative (label 0).

    >>> text, mirror = review_pairs(1, seed=3)[0]
    >>> sorted(text.split()) == sorted(mirror.split()), text == mirror
    (True, False)
    """
    _check_count("review pairs", n, seed)
    rng = random.Random(f"reviews {seed}")
    return _distinct(lambda: _draw_review_pair(rng), n, "review pairs")


def _draw_review_pair(rng: random.Random) -> tuple[str, str]:
    """One to three judgements, each about another thing, and up to two remarks between them."""
    positive, negative = [], []
    for thing in rng.sample(THINGS, rng.randint(1, 3)):
        template, good, bad = rng.choice(JUDGEMENTS), rng.choice(GOOD), rng.choice(BAD)
        positive.append(template.format(thing=thing, yes=good, no=bad))
        negative.append(template.format(thing=thing, yes=bad, no=good))
    for remark in rng.sample(REMARKS, rng.choice((0, 0, 1, 2))):
        place = rng.randint(0, len(positive))
        positive.insert(place, remark)
        negative.insert(place, remark)
    return " . ".join(positive) + " .", " . ".join(negative) + " ."


# --- translation: a grammar that reorders ---------------------------------------


class Pair(NamedTuple):
    """A sentence, its translation, and which word came from which.

    Args:
        source: the English words.
        target: the words of the invented language.
        alignment: as long as target; target[t] translates source[alignment[t]].
    """

    source: list[str]
    target: list[str]
    alignment: list[int]


# English noun -> translation. The last letter is the gender, with which the
# determiner and the adjective agree: "lo hundo veto", "la kata veta".
BEINGS = {
    "dog": "hundo", "horse": "ekvo", "farmer": "agro", "boy": "filo",
    "cat": "kata", "cow": "bova", "teacher": "dokta", "girl": "nina",
}  # fmt: skip
PLACES = {
    "garden": "jardo",
    "bridge": "ponto",
    "market": "merkato",
    "river": "riva",
    "house": "kasa",
    "forest": "silva",
}
ADJECTIVES = {"old": "vet", "small": "mik", "big": "grand", "quiet": "tranq", "lonely": "sol", "strange": "mir"}
DETERMINERS = {"the": "l", "a": "un", "an": "un"}
PREPOSITIONS = {"near": "apud", "behind": "retro", "beside": "flank"}
# English base -> (third person, past, stem of the translation). The stem takes the tense: -as, -is, -os.
VERBS = {
    "see": ("sees", "saw", "vid"), "find": ("finds", "found", "trov"), "follow": ("follows", "followed", "sekv"),
    "help": ("helps", "helped", "jud"), "call": ("calls", "called", "vok"), "greet": ("greets", "greeted", "salut"),
}  # fmt: skip
TENSES = {"present": "as", "past": "is", "future": "os"}
TIMES = {
    "today": ("present", ["nun"]),
    "yesterday": ("past", ["pasinta", "tago"]),
    "tomorrow": ("future", ["venonta", "tago"]),
}


def translation_pairs(n: int, seed: int = 0) -> list[Pair]:
    """Draw English sentences and their translations into a language that reorders them.

    The invented language puts the time first, the adjective after its noun, the preposition
    after its place, and the verb at the end, followed by "ne" if it is denied:

        the old cat did not see a dog near the river yesterday
        pasinta tago la kata veta la riva apud uno hundo vidis ne

    Determiners and adjectives agree with the gender of their noun (-o or -a), so "the" is "lo"
    or "la", and a decoder must look at the noun to choose. English "did", "does" and "will"
    become the ending of the verb, "yesterday" becomes two words: the lengths differ. Each
    English sentence has exactly one translation, and no two sentences share one.

    Args:
        n: number of pairs. All sentences are distinct; there are millions.

    Returns:
        List of `Pair`: (source, target, alignment), alignment[t] = the index of the source
        word that target word t translates.

    >>> source, target, alignment = translation_pairs(1, seed=32)[0]
    >>> " ".join(source), " ".join(target)
    ('the cat will not follow the big farmer', 'la kata lo agro grando sekvos ne')
    >>> [source[i] for i in alignment]
    ['the', 'cat', 'the', 'farmer', 'big', 'follow', 'not']
    """
    _check_count("translation pairs", n, seed)
    rng = random.Random(f"translation {seed}")
    drawn = _distinct(lambda: _draw_translation(rng), n, "translation pairs")
    return [Pair(source.split(), target.split(), list(alignment)) for source, target, alignment in drawn]


def _draw_translation(rng: random.Random) -> tuple[str, str, tuple[int, ...]]:
    """One sentence. A phrase is a list of (English word, its translations) in English order."""
    doer, other = rng.sample(sorted(BEINGS), 2)
    time = rng.choice((None, None, *TIMES))
    tense = TIMES[time][0] if time else rng.choice(sorted(TENSES))
    subject = _draw_noun_phrase(rng, doer, BEINGS[doer])
    verb = _draw_verb_phrase(rng, tense)
    obj = _draw_noun_phrase(rng, other, BEINGS[other])
    preposition, place = [], []
    if rng.random() < 0.5:
        near, site = rng.choice(sorted(PREPOSITIONS)), rng.choice(sorted(PLACES))
        preposition, place = [(near, [PREPOSITIONS[near]])], _draw_noun_phrase(rng, site, PLACES[site])
    when = [(time, TIMES[time][1])] if time else []

    english = [subject, verb, obj, preposition, place, when]
    index = itertools.count()
    subject, verb, obj, preposition, place, when = [[(next(index), *word) for word in p] for p in english]
    order = when + _noun_second(subject) + _noun_second(place) + preposition + _noun_second(obj) + verb[::-1]
    aligned = [(translation, i) for i, _, translations in order for translation in translations]
    source = " ".join(word for phrase in english for word, _ in phrase)
    return source, " ".join(translation for translation, _ in aligned), tuple(i for _, i in aligned)


def _draw_noun_phrase(rng: random.Random, noun: str, translation: str) -> list[tuple[str, list[str]]]:
    """Determiner, perhaps an adjective, noun; all end in the noun's gender."""
    gender = translation[-1]
    adjective = rng.choice([*ADJECTIVES, None, None, None])
    determiner = rng.choice(("the", "a"))
    if determiner == "a" and (adjective or noun)[0] in "aeiou":
        determiner = "an"
    middle = [(adjective, [ADJECTIVES[adjective] + gender])] if adjective else []
    return [(determiner, [DETERMINERS[determiner] + gender]), *middle, (noun, [translation])]


def _draw_verb_phrase(rng: random.Random, tense: str) -> list[tuple[str, list[str]]]:
    """The verb in its tense, denied in one sentence of three; helping verbs have no translation."""
    base = rng.choice(sorted(VERBS))
    third, past, stem = VERBS[base]
    translation = [stem + TENSES[tense]]
    helper = {"present": "does", "past": "did", "future": "will"}[tense]
    if rng.random() < 1 / 3:
        return [(helper, []), ("not", ["ne"]), (base, translation)]
    if tense == "future":
        return [(helper, []), (base, translation)]
    return [(third if tense == "present" else past, translation)]


def _noun_second(phrase: list) -> list:
    """Determiner, adjective, noun -> determiner, noun, adjective."""
    return [*phrase[:1], *phrase[-1:], *phrase[1:-1]]


# --- coreference: one word decides what "it" means ------------------------------


class Sentence(NamedTuple):
    """A sentence with a pronoun, and the noun that the pronoun stands for.

    Args:
        tokens: the words.
        pronoun: index of "it" in tokens.
        referent: index of the noun that "it" stands for.
        distractor: index of the other noun, for which it does not stand.
    """

    tokens: list[str]
    pronoun: int
    referent: int
    distractor: int


# (first nouns, action, second nouns, adjectives said of the first, of the second). The adjectives
# pair up, so that a sentence has one twin. An adjective may change sides with the scene: the
# street is too wide to cross, the lamp too wide to fit.
SCENES = (
    ("animal dog horse cat", "cross", "street road bridge", "tired lazy", "wide busy"),
    ("trophy lamp painting chair", "fit into", "suitcase box bag drawer", "big wide", "small full"),
    ("donkey ox pony mule", "pull", "cart wagon plough", "weak tired", "heavy big"),
    ("bear cat monkey squirrel", "climb", "tree wall tower", "lazy heavy", "tall icy"),
    ("mouse rabbit goat parrot", "eat", "cheese carrot apple bread", "full shy", "hard sour"),
)
OPENINGS = ("", "yesterday", "this morning", "in the end")
DENIALS = ("didn't", "couldn't", "wouldn't")
REASONS = ("because", "since")
DEGREES = ("too", "far too", "much too")


def coreference(n: int, seed: int = 0) -> list[Sentence]:
    """Draw sentences in which the last word alone decides what "it" stands for.

        the animal didn't cross the street because it was too tired    it = the animal
        the animal didn't cross the street because it was too wide     it = the street

    Sentences come in twins that differ in the adjective only; in one "it" is the first noun, in
    the other the second: whatever does not read the adjective is right on exactly half of them.
    Which noun an adjective is said of depends on the scene.

    Args:
        n: number of sentences, an even number. All are distinct; there are 19,584.

    Returns:
        List of `Sentence`: (tokens, pronoun, referent, distractor), the last three are indices
        into tokens. Twins stand side by side, either of them first.

    >>> for tokens, pronoun, referent, distractor in coreference(2, seed=8):
    ...     print(" ".join(tokens), "|", tokens[pronoun], "=", tokens[referent])
    the trophy wouldn't fit into the box since it was too wide | it = trophy
    the trophy wouldn't fit into the box since it was too full | it = box

    Source: Levesque, Davis and Morgenstern (2012), "The Winograd Schema Challenge"; the sentence
    about the animal and the street is from Uszkoreit (2017), "Transformer: A Novel Neural Network
    Architecture for Language Understanding".
    """
    _check_count("coreference sentences", n, seed)
    if n % 2:
        raise ValueError(f"coreference sentences come in twins, so n must be even, got n={n}")
    rng = random.Random(f"coreference {seed}")
    twins = _distinct(lambda: _draw_twins(rng), n // 2, "pairs of coreference sentences")
    order = random.Random(f"coreference order {seed}")
    listed = []
    for text, first, second, of_first, of_second in twins:
        tokens = text.split()
        places = tokens.index("it"), tokens.index(first), tokens.index(second)
        pair = [
            Sentence([*tokens, of_first], *places),
            Sentence([*tokens, of_second], places[0], places[2], places[1]),
        ]
        listed += pair if order.random() < 0.5 else pair[::-1]
    return listed


def _draw_twins(rng: random.Random) -> tuple[str, str, str, str, str]:
    """(the text up to the adjective, first noun, second noun, adjective of the first, of the second)."""
    firsts, action, seconds, of_first, of_second = rng.choice(SCENES)
    first, second = rng.choice(firsts.split()), rng.choice(seconds.split())
    opening, denial, reason, degree = (rng.choice(words) for words in (OPENINGS, DENIALS, REASONS, DEGREES))
    text = f"{opening} the {first} {denial} {action} the {second} {reason} it was {degree}"
    return text, first, second, *rng.choice(list(zip(of_first.split(), of_second.split(), strict=True)))


# --- memory tasks ---------------------------------------------------------------


def recall_task(batch: int, lag: int, vocab_size: int, generator: torch.Generator | None = None):
    """Draw sequences whose first token must be told `lag` steps later.

    Token 0 is the question, tokens 1 .. V-1 are the answers. The sequence is the answer, then
    lag - 1 random tokens of the same kind, then the question. Only a memory that holds for `lag`
    steps does better than guessing, which is right with probability 1 / (V - 1).

    Args:
        batch: B, number of sequences.
        lag: steps from the answer to the question, at least 1.
        vocab_size: V, at least 3, so that there are two answers.

    Returns:
        x: (B, lag + 1) int64, x[:, 0] the answer and x[:, -1] the question.
        y: (B,) int64, equal to x[:, 0].

    >>> x, y = recall_task(2, lag=4, vocab_size=6, generator=torch.Generator().manual_seed(0))
    >>> x.shape, bool((x[:, 0] == y).all()), x[:, -1].tolist()
    (torch.Size([2, 5]), True, [0, 0])
    """
    _check_at_least("recall_task", batch=(batch, 1), lag=(lag, 1), vocab_size=(vocab_size, 3))
    x = torch.randint(1, vocab_size, (batch, lag + 1), generator=generator)
    x[:, -1] = 0
    return x, x[:, 0].clone()


def copy_task(batch: int, length: int, vocab_size: int, generator: torch.Generator | None = None, *, delay: int = 0):
    """Draw sequences that must be said again, in order, after they have ended.

    Token 0 is blank, token 1 says "now", tokens 2 .. V-1 are the symbols. For length L = 3:

        x  a b c now 0 0
        y  0 0 0 a   b c

    Args:
        batch: B, number of sequences.
        length: L, number of symbols to copy, at least 1.
        vocab_size: V, at least 4, so that there are two symbols.
        delay: blanks between the last symbol and "now".

    Returns:
        x: (B, 2 L + delay) int64, what the model reads.
        y: (B, 2 L + delay) int64, what it says at each step; y[:, -L:] are the symbols, the rest is blank.

    >>> x, y = copy_task(1, length=3, vocab_size=9, generator=torch.Generator().manual_seed(0))
    >>> x.tolist(), y.tolist()
    ([[6, 5, 2, 1, 0, 0]], [[0, 0, 0, 6, 5, 2]])

    Source: Arjovsky, Shah and Bengio (2016), "Unitary Evolution Recurrent Neural Networks",
    arXiv:1511.06464, section 5.1. Differs: the length and the delay are free, and the answer
    begins at the step that reads "now".
    """
    _check_at_least("copy_task", batch=(batch, 1), length=(length, 1), vocab_size=(vocab_size, 4), delay=(delay, 0))
    symbols = torch.randint(2, vocab_size, (batch, length), generator=generator)
    x = torch.zeros(batch, 2 * length + delay, dtype=torch.int64)
    y = torch.zeros_like(x)
    x[:, :length] = symbols
    x[:, length + delay] = 1
    y[:, -length:] = symbols
    return x, y


def adding_task(batch: int, length: int, generator: torch.Generator | None = None):
    """Draw sequences of numbers of which two are marked: their sum is asked.

    One mark stands in the first half and one in the second. Always answering 1, the mean, has a
    mean squared error of 1/6 = 0.167, the variance of a sum of two uniform numbers.

    Args:
        batch: B, number of sequences.
        length: T, number of steps, at least 2.

    Returns:
        x: (B, T, 2) float32; x[..., 0] numbers in [0, 1), x[..., 1] the marks, 0 or 1.
        y: (B,) float32, the sum of the two marked numbers.

    >>> x, y = adding_task(2, length=5, generator=torch.Generator().manual_seed(0))
    >>> x.shape, x[..., 1].sum(1).tolist()
    (torch.Size([2, 5, 2]), [2.0, 2.0])

    Source: Hochreiter and Schmidhuber (1997), "Long Short-Term Memory", experiment 4; in this form
    Arjovsky, Shah and Bengio (2016), arXiv:1511.06464, section 5.2.
    """
    _check_at_least("adding_task", batch=(batch, 1), length=(length, 2))
    numbers = torch.rand(batch, length, generator=generator)
    marks = torch.zeros(batch, length)
    rows, half = torch.arange(batch), length // 2
    marks[rows, torch.randint(0, half, (batch,), generator=generator)] = 1
    marks[rows, torch.randint(half, length, (batch,), generator=generator)] = 1
    return torch.stack([numbers, marks], dim=-1), (numbers * marks).sum(1)


# --- a series -------------------------------------------------------------------


def seasonal_series(length: int, period: int = 12, seed: int = 0, *, trend: float = 0.02, noise: float = 0.2):
    r"""Draw a series with a season, a trend and noise.

    $$y_t = \text{trend} \cdot t + \sin(2 \pi t / P) + \tfrac{1}{2} \cos(4 \pi t / P) + \text{noise} \cdot \epsilon_t$$

    The second wave, twice as fast, makes the season's shape unequal. Without noise the series obeys
    y_t = y_{t-P} + trend P exactly, so an autoregression of order P + 1 can forecast it without error.

    Args:
        length: T, number of steps.
        period: P, steps in a season, at least 2.
        trend: rise per step.
        noise: standard deviation of the noise, at least 0.

    Returns:
        (T,) float64.

    >>> seasonal_series(4, period=4, trend=1.0, noise=0.0).tolist()
    [0.5, 1.5, 2.5, 1.5]
    """
    _check_at_least("seasonal_series", length=(length, 1), period=(period, 2), seed=(seed, 0))
    _check_at_least("seasonal_series", noise=(noise, 0.0), trend=(trend, -math.inf))
    rng = random.Random(f"series {seed}")
    turn = [2 * math.pi * t / period for t in range(length)]
    return torch.tensor(
        [trend * t + math.sin(turn[t]) + math.cos(2 * turn[t]) / 2 + noise * rng.gauss() for t in range(length)],
        dtype=torch.float64,
    )


# --- shared ---------------------------------------------------------------------


def _distinct(draw: Callable, n: int, what: str) -> list:
    """Call `draw` until n different results are there, in the order of their first appearance."""
    found, repeats = {}, 0
    while len(found) < n:
        item = draw()
        repeats = repeats + 1 if item in found else 0
        found[item] = True
        if repeats > 100_000:
            raise ValueError(f"asked for {n:,} different {what}, but the language has only {len(found):,}")
    return list(found)


def _check_count(what: str, n: int, seed: int):
    if not isinstance(n, int) or not 0 <= n <= 10**6:  # more than any of these languages has
        raise ValueError(f"the number of {what} must be an integer, 0 or more, got n={n!r}")
    _check_at_least(what, seed=(seed, 0))


def _check_at_least(task: str, **limits: tuple[float, float]):
    for name, (value, least) in limits.items():
        kind, wanted = (int, "a whole number") if isinstance(least, int) else (int | float, "a finite number")
        if not isinstance(value, kind) or not abs(value) <= 10**9:
            raise ValueError(f"{task}: {name} must be {wanted}, got {value!r}")
        if value < least:
            raise ValueError(f"{task}: {name} must be at least {least:g}, got {value}")
