"""The checks of chapter 01: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math
from collections import Counter, defaultdict
from typing import ClassVar

import pytest
import torch
import torch.nn.functional as F

from course_lib.exercises import ch01
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("ar_forecast", "language_model", "causal_conv")
NAMES = {"language_model": "LanguageModel"}  # where the answer is called otherwise
VALUES = ("sine_weights", "perplexity_of_four", "fair_comparison")


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def roll(past, weights, bias, horizon, feed=True, newest_first=True, drop="oldest"):
    window, new = past[-len(weights) :].flip(0), []
    if not newest_first:
        window = window.flip(0)
    for _ in range(horizon):
        new.append(bias + weights @ window)
        if feed:
            kept = window[:-1] if drop == "oldest" else window[1:]
            window = torch.cat([new[-1].reshape(1), kept])
    return torch.stack(new)


class Parts:
    """A right answer to exercise 1.4 in small parts, for others to get one of them wrong."""

    def __init__(self, n, symbols, k):
        self.n, self.symbols, self.k, self.follows = n, symbols, k, defaultdict(Counter)

    def fit(self, text):
        for i, symbol in enumerate(text):
            for m in range(self.least(i), min(self.n - 1, i) + 1):
                self.follows[text[i - m : i]][symbol] += 1

    def least(self, i):
        return 0

    def cut(self, context):
        return context[max(len(context) - self.n + 1, 0) :]

    def probability(self, symbol, context):
        return self.p(symbol, self.cut(context))

    def p(self, symbol, context):
        lower = self.p(symbol, self.shorter(context)) if context else self.base()
        seen = self.follows.get(context, Counter())
        extra = self.extra(seen)
        total = self.total(seen, context) + extra
        return (seen[symbol] + extra * self.spread(lower)) / total if total else self.unseen(lower)

    def shorter(self, context):
        return context[1:]

    def base(self):
        return 1 / len(self.symbols)

    def extra(self, seen):
        return self.k * len(seen)

    def total(self, seen, context):
        return seen.total()

    def spread(self, lower):
        return lower

    def unseen(self, lower):
        return lower

    def nats(self, text):
        return [-math.log(self.probability(symbol, text[:i])) for i, symbol in enumerate(text)]

    def perplexity(self, text):
        return math.exp(sum(self.nats(text)) / len(text))

    def sample(self, numbers, context=""):
        new = ""
        for u in numbers:
            new += self.chosen(u, context, new)
        return new

    def chosen(self, u, context, new):
        return self.pick(u, context + new, self.symbols)

    def pick(self, u, given, symbols):
        total = 0.0
        for symbol in symbols:
            total += self.probability(symbol, given)
            if total > u:
                break
        return symbol


def but(**parts):
    """The right answer with some of its parts exchanged."""
    return type("LanguageModel", (Parts,), parts)


def mixed(model, symbol, context, lower):
    """Interpolation with one shorter context, whose probability is `lower`'s."""
    p = lower(model, symbol, context[1:]) if context else model.base()
    seen = model.follows.get(context, Counter())
    extra = model.extra(seen)
    return (seen[symbol] + extra * p) / (seen.total() + extra) if seen else p


def plain(model, symbol, context):
    seen = model.follows.get(context, Counter())
    return seen[symbol] / seen.total() if seen else model.base()


def mixed_with_uniform(model, symbol, context):
    return mixed(model, symbol, context, lambda *_: model.base())


class SharedCounts(Parts):
    """Counts that all models share."""

    everything: ClassVar = defaultdict(Counter)

    def __init__(self, n, symbols, k):
        super().__init__(n, symbols, k)
        self.follows = self.everything


class Ends(Parts):
    """A context at the end of the text counts as seen."""

    def fit(self, text):
        super().fit(text)
        self.text = text

    def total(self, seen, context):
        return sum(self.text.startswith(context, i) for i in range(len(self.text))) if context else seen.total()


def padded(**parts):
    """Spaces before the text give its first symbols a full context."""

    def fit(self, text):
        text = " " * (self.n - 1) + text
        for i in range(self.n - 1, len(text)):
            for m in range(self.n):
                self.follows[text[i - m : i]][text[i]] += 1

    return but(fit=fit, **parts)


def shared():
    """A class whose counts are new for every check, and the same for all of its models."""
    return type("LanguageModel", (SharedCounts,), {"everything": defaultdict(Counter)})


def all_lengths(self, text):
    for i, symbol in enumerate(text):
        for m in range(i + 1):
            self.follows[text[i - m : i]][symbol] += 1


def by_size(self, u, context, new):
    return self.pick(u, context + new, sorted(self.symbols, key=lambda s: -self.probability(s, context + new)))


def likeliest(self, u, context, new):
    return max(self.symbols, key=lambda s: self.probability(s, context + new))


def reaches(self, u, given, symbols):
    total = 0.0
    for symbol in symbols:
        total += self.probability(symbol, given)
        if total >= u:
            break
    return symbol


def one_later_on_a_tie(self, u, given, symbols):
    return "c" if symbols == "abcd" else Parts.pick(self, u, given, symbols)


def as_list(self, numbers, context=""):
    return list(Parts.sample(self, numbers, context))


def with_context(self, numbers, context=""):
    return context + Parts.sample(self, numbers, context)


def one_more(self, numbers, context=""):
    return Parts.sample(self, [*numbers, 0.5], context)


def conv(x, weight, bias, left, right, shift=0):
    x = F.pad(x.transpose(1, 2), (left, right))
    return F.conv1d(x, weight, bias)[:, :, shift:].transpose(1, 2)


PLANTED = {
    "ar_forecast": [
        ("repeats the first prediction", lambda p, w, b, h: roll(p, w, b, h, feed=False)),
        ("wrong way round", lambda p, w, b, h: roll(p, w.flip(0), b, h)),
        ("bias is missing", lambda p, w, b, h: roll(p, w, 0.0, h)),
        ("but not the values that are fed back", lambda p, w, b, h: b + roll(p, w, 0.0, h)),
        ("from the first values", lambda p, w, b, h: roll(p[:3], w, b, h)),
        ("the oldest value leaves", lambda p, w, b, h: roll(p, w, b, h, drop="newest")),
        ("history is in the result", lambda p, w, b, h: torch.cat([p, roll(p, w, b, h)])),
        ("the first prediction is", lambda p, w, b, h: roll(p, w, 2 * b, h)),
        ("is all zeros", lambda p, w, b, h: torch.zeros(h)),
        ("wrong for 2: is the order written", lambda p, w, b, h: roll(p, torch.cat([w, 9 * w])[:3], b, h)),
        ("wrong for 5: is the order written", lambda p, w, b, h: roll(p, w[:3], b, h)),
        ("of 6 values after one of 4", lambda p, w, b, h: roll(p, w, b, 4)),
        ("has shape (6,)", lambda p, w, b, h: p),
        ("is a list", lambda p, w, b, h: roll(p, w, b, h).tolist()),
        ("is None", lambda p, w, b, h: None),
    ],
    "sine_weights": [
        ("other order", torch.tensor([-1.0, math.sqrt(3)])),
        ("wrong sign", torch.tensor([math.sqrt(3), 1.0])),
        ("factor 2 is lost", torch.tensor([math.sqrt(3) / 2, -1.0])),
        ("a twelfth of a turn", torch.tensor([2 * math.cos(12), -1.0])),
        ("angles in radians", torch.tensor([2 * math.cos(30), -1.0])),
        ("your weights continue with 0.7978", torch.tensor([1.0, 0.0])),
        ("your weights continue with 0.0000", torch.zeros(2)),
        ("has shape (3,)", torch.zeros(3)),
        ("is a str", "2 cos(2 pi / 12), -1"),
    ],
    "language_model": [
        (
            "invented counts are spread evenly",
            but(extra=lambda self, seen: self.k * len(self.symbols), spread=lambda self, lower: 1 / len(self.symbols)),
        ),
        ("yours counts all of them", but(extra=lambda self, seen: self.k * seen.total())),
        ("yours is always V", but(extra=lambda self, seen: self.k * len(self.symbols))),
        ("whatever followed", but(extra=lambda self, seen: self.k)),
        ("yours loses the newest", but(shorter=lambda self, context: context[:-1])),
        ("only the last n - 1 symbols matter", but(cut=lambda self, context: context, fit=all_lengths)),
        ("yours answers 1 / V", but(unseen=lambda self, lower: 1 / len(self.symbols))),
        ("stands 1 / V", but(base=lambda self: 0.0)),
        ("Interpolate all the way down", but(p=lambda self, symbol, context: mixed(self, symbol, context, plain))),
        (
            "Interpolate all the way down",
            but(p=lambda self, symbol, context: mixed(self, symbol, context, mixed_with_uniform)),
        ),
        ("count pairs of a context", Ends),
        ("lack the first n - 1 symbols", but(least=lambda self, i: 0 if i >= self.n - 1 else self.n)),
        ("spaces were put before the text", padded()),
        (
            "spaces were put before the text",
            padded(cut=lambda self, context: Parts.cut(self, context.rjust(self.n - 1))),
        ),
        ("spaces were put before the text", but(fit=lambda self, text: Parts.fit(self, " " * (self.n - 1) + text))),
        ("divides by zero: a context that was never seen", but(unseen=lambda self, lower: 1 / 0)),
        ("use the k that is passed in", but(extra=lambda self, seen: 1.0 * len(seen))),
        ("p('a' | '') is 0.2, wanted", but(probability=lambda self, symbol, context: 1 / len(self.symbols))),
        ("wrong for n = 1 and k = 2", but(extra=lambda self, seen: 0.5 * len(seen))),
        ("wrong for n = 5 and k = 3", but(fit=lambda self, text: Parts.fit(self, text) if self.n < 5 else None)),
        ("the counts in __init__", shared()),
        ("this is the mean in nats", but(perplexity=lambda self, text: sum(self.nats(text)) / len(text))),
        ("this is the mean in bits", but(perplexity=lambda self, text: sum(self.nats(text)) / len(text) / math.log(2))),
        (
            "nats were raised as a power of 2",
            but(perplexity=lambda self, text: 2 ** (sum(self.nats(text)) / len(text))),
        ),
        ("divide the nats by the number", but(perplexity=lambda self, text: math.exp(sum(self.nats(text))))),
        ("mean of the probabilities", but(perplexity=lambda self, text: math.exp(-sum(self.nats(text)) / len(text)))),
        (
            "this is the arithmetic mean",
            but(perplexity=lambda self, text: sum(map(math.exp, self.nats(text))) / len(text)),
        ),
        (
            "symbols of the text are left out",
            but(perplexity=lambda self, text: math.exp(sum(self.nats(text)[2:]) / (len(text) - 2))),
        ),
        (
            "the sum lacks the first",
            but(perplexity=lambda self, text: math.exp(sum(self.nats(text)[2:]) / len(text))),
        ),
        (
            "the context is empty every time",
            but(nats=lambda self, text: [-math.log(self.probability(s, "")) for s in text]),
        ),
        ("the perplexity of 'bcabbad ' is 1,", but(perplexity=lambda self, text: 1.0)),
        ("returns a list of symbols", but(sample=as_list)),
        ("returns a int; wanted a string", but(sample=lambda self, numbers, context="": 7)),
        ("return only the new symbols", but(sample=with_context)),
        ("the numbers must choose", but(chosen=likeliest)),
        ("after the same context", but(chosen=lambda self, u, context, new: self.pick(u, context, self.symbols))),
        ("as if there were no context", but(chosen=lambda self, u, context, new: self.pick(u, new, self.symbols))),
        ("in the order of their probabilities", but(chosen=by_size)),
        ("8 numbers gave 9 symbols", but(sample=one_more)),
        ("yours choose 'aaaaaaaa'", but(chosen=lambda self, u, context, new: "a")),
        ("must exceed u", but(pick=reaches)),
        ("must choose 'b', not 'c'", but(pick=one_later_on_a_tie)),
        ("without a context", but(sample=lambda self, numbers, context="a": Parts.sample(self, numbers, context))),
        ("has no method sample", type("LanguageModel", (Parts,), {"sample": None})),
        ("raised ZeroDivisionError", but(base=lambda self: 1 / 0)),
        ("is a str", but(probability=lambda self, symbol, context: "1/2")),
        ("is a return missing", but(probability=lambda self, symbol, context: None)),
    ],
    "perplexity_of_four": [
        ("arithmetic mean", 5.5),
        ("harmonic mean", 4),
        ("mean in bits", 2.25),
        ("mean in nats", 2.25 * math.log(2)),
        ("bits were raised as a power of e", math.exp(2.25)),
        ("nats were raised as a power of 2", 2 ** (2.25 * math.log(2))),
        ("fourth root", 512),
        ("probability of the whole text; perplexity", 1 / 512),
        ("geometric mean of the probabilities", 2**-2.25),
        ("they should agree", 7.0),
        ("more than 0.005 away", 4.75),
        ("never below 1", 0),
        ("is a str", "4.76"),
        ("of shape (2,)", torch.ones(2)),
    ],
    "fair_comparison": [
        ("word model comes first", [3.392, 1.655, 6.075]),
        ("bits per WORD", [9.435, 3.392, 6.075]),
        ("is multiplied by 5.7", [53.78, 3.392, 6.075]),
        ("in nats per letter", [1.147, 3.392, 6.075]),
        ("only its logarithm", [math.log2(692 / 5.7), 3.392, 6.075]),
        ("take its logarithm first", [692 / 5.7, 3.392, 6.075]),
        ("space was taken off", [9.435 / 4.7, 3.392, 6.075]),
        ("should be 692 again", [1.0, 3.392, 6.075]),
        ("one letter already", [1.655, 3.392 / 5.7, 6.075]),
        ("second number is in nats", [1.655, 2.351, 6.075]),
        ("second number is the perplexity", [1.655, 10.5, 6.075]),
        ("should be 10.5", [1.655, 2.0, 6.075]),
        ("third number is the perplexity", [1.655, 3.392, 164.0]),
        ("compares nats", [1.655, 3.392, 5.1 / math.log(27)]),
        ("difference in nats", [1.655, 3.392, 5.1 - math.log(27)]),
        ("power of 2; the loss", [1.655, 3.392, 2**5.1 / 27]),
        ("divides nats by choices", [1.655, 3.392, 5.1 / 27]),
        ("upside down", [1.655, 3.392, 27 / math.exp(5.1)]),
        ("should be 5.1 nats", [1.655, 3.392, 2.0]),
        ("should be 692 again", torch.zeros(3)),
        ("is a float", 1.655),
        ("has shape (2,)", torch.tensor([1.655, 3.392])),
        ("a number of the answer is a str", ["1.655", 3.392, 6.075]),
    ],
    "causal_conv": [
        ("it sees the future", lambda x, w, b: conv(x, w, b, 2, 2) if w.shape[2] == 5 else x),
        ("it sees the future", lambda x, w, b: conv(x, w, b, 3, 1)),
        ("one step too far", lambda x, w, b: conv(x, w, b, w.shape[2], 0)[:, :-1]),
        ("kernel is the wrong way round", lambda x, w, b: conv(x, w.flip(2), b, w.shape[2] - 1, 0)),
        ("the bias is missing", lambda x, w, b: conv(x, w, None, w.shape[2] - 1, 0)),
        ("first positions are lost", lambda x, w, b: conv(x, w, b, 0, 0)),
        ("more zeros were added", lambda x, w, b: conv(x, w, b, w.shape[2] - 1, w.shape[2] - 1)),
        ("more zeros were added", lambda x, w, b: conv(x, w, b, w.shape[2], 0)),
        ("too few zeros", lambda x, w, b: conv(x, w, b, w.shape[2] // 2, 0)),
        ("keeps time second", lambda x, w, b: conv(x, w, b, w.shape[2] - 1, 0).transpose(1, 2)),
        ("wrong for 1: compute the padding", lambda x, w, b: conv(F.pad(x, (0, 0, 4, 0)), w, b, 0, 0)[:, : x.shape[1]]),
        ("wrong for 8: compute the padding", lambda x, w, b: conv(x, w, b, 4, 0)[:, -x.shape[1] :]),
        ("reaches 0 steps back", lambda x, w, b: x @ w[:, :, -1].T + b),
        ("nothing sees the future, but", lambda x, w, b: 2 * conv(x, w, b, w.shape[2] - 1, 0)),
        ("all zeros", lambda x, w, b: torch.zeros(2, 7, 4)),
        ("has shape (2, 7, 3)", lambda x, w, b: x),
        ("is a list", lambda x, w, b: conv(x, w, b, w.shape[2] - 1, 0).tolist()),
    ],
}
CASES = [(name, i) for name, planted in PLANTED.items() for i in range(len(planted))]


@pytest.mark.parametrize("name", FUNCTIONS + VALUES)
def test_the_reference_solution_passes(name):
    assert verdict(getattr(ch01, name), solution("01", NAMES.get(name, name))) == f"passed: {name}"


@pytest.mark.parametrize(("name", "i"), CASES)
def test_each_planted_mistake_gets_its_own_diagnosis(name, i):
    wanted, answer = PLANTED[name][i]
    said = verdict(getattr(ch01, name), answer)
    assert said.startswith("not yet: ")
    assert wanted in said


@pytest.mark.parametrize("name", FUNCTIONS + VALUES)
def test_diagnoses_differ_from_one_another(name):
    said = [verdict(getattr(ch01, name), answer) for _, answer in PLANTED[name]]
    for wanted, _ in PLANTED[name]:
        right = [message for (other, _), message in zip(PLANTED[name], said, strict=True) if other == wanted]
        assert sum(wanted in message for message in said) == len(right)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_an_untouched_function_is_not_attempted(name):
    def untouched(*arguments):
        raise NotImplementedError

    assert verdict(getattr(ch01, name), untouched) == f"not attempted yet: {name}"


def test_a_list_of_two_numbers_is_a_fair_answer():
    assert verdict(ch01.sine_weights, [2 * math.cos(math.pi / 6), -1]) == "passed: sine_weights"


def test_a_rounded_number_is_a_fair_answer():
    assert verdict(ch01.perplexity_of_four, 4.757) == "passed: perplexity_of_four"
    assert verdict(ch01.perplexity_of_four, 4.76) == "passed: perplexity_of_four"


def test_a_model_in_small_parts_is_a_fair_answer():
    """Fails if the planted answers above are wrong for another reason than the part that is exchanged."""
    assert verdict(ch01.language_model, Parts) == "passed: language_model"


def test_an_answer_in_words_is_compared_with_a_good_one(capsys):
    ch01.how_long.compare(...)
    early = capsys.readouterr().out
    assert ch01.how_long.good_answer not in early
    ch01.how_long.compare("The best n grows with the text because long contexts are seen too rarely " * 2)
    assert capsys.readouterr().out == f"A good answer contains: {ch01.how_long.good_answer}\n"


def test_two_decimals_are_enough_to_compare_fairly():
    assert verdict(ch01.fair_comparison, [1.66, 3.39, 6.08]) == "passed: fair_comparison"


@pytest.mark.parametrize("name", FUNCTIONS + VALUES)
def test_hints_are_three_and_grow(name, capsys):
    check = getattr(ch01, name)
    for number in (1, 2, 3):
        check.hint(number)
    lines = capsys.readouterr().out.splitlines()
    assert [line[:11] for line in lines] == ["hint 1 of 3", "hint 2 of 3", "hint 3 of 3"]
    assert len(set(lines)) == 3
