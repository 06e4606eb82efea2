"""The checks of chapter 01: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch
import torch.nn.functional as F

from course_lib.exercises import ch01
from tests.helpers.solutions import solution, verdict

FUNCTIONS = ("ar_forecast", "bigram_probs", "corpus_perplexity", "causal_conv")
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


def counted(ids, V, k=0.0):
    counts = torch.zeros(V, V, dtype=torch.float64)
    counts.index_put_((ids[:-1], ids[1:]), torch.ones(len(ids) - 1, dtype=torch.float64), accumulate=True)
    return counts + k


def once(ids, V, k):
    counts = torch.zeros(V, V, dtype=torch.float64)
    counts[ids[:-1], ids[1:]] += 1
    return counts + k


def rows(table):
    return table / table.sum(1, keepdim=True)


def around(ids, V, k):
    counts = torch.zeros(V, V, dtype=torch.float64)
    counts.index_put_((ids, ids.roll(-1)), torch.ones(len(ids), dtype=torch.float64), accumulate=True)
    return rows(counts + k)


def conv(x, weight, bias, left, right, shift=0):
    x = F.pad(x.transpose(1, 2), (left, right))
    return F.conv1d(x, weight, bias)[:, :, shift:].transpose(1, 2)


def means(nll, mask):
    return (nll * mask).sum(1) / mask.sum(1)


PLANTED = {
    "ar_forecast": [
        ("repeats the first prediction", lambda p, w, b, h: roll(p, w, b, h, feed=False)),
        ("wrong way round", lambda p, w, b, h: roll(p, w.flip(0), b, h)),
        ("bias is missing", lambda p, w, b, h: roll(p, w, 0.0, h)),
        ("from the first values", lambda p, w, b, h: roll(p[:3], w, b, h)),
        ("the oldest value leaves", lambda p, w, b, h: roll(p, w, b, h, drop="newest")),
        ("history is in the result", lambda p, w, b, h: torch.cat([p, roll(p, w, b, h)])),
        ("the first prediction is", lambda p, w, b, h: roll(p, w, 2 * b, h)),
        ("is all zeros", lambda p, w, b, h: torch.zeros(h)),
        ("the order written as a number", lambda p, w, b, h: roll(p, torch.cat([w, 9 * w])[:3], b, h)),
        ("of 5 values after one of 4", lambda p, w, b, h: roll(p, w, b, 4)),
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
    "bigram_probs": [
        ("swapped", lambda ids, V, k: rows(counted(ids, V, k)).T),
        ("p(u, v) of the pair", lambda ids, V, k: counted(ids, V, k) / counted(ids, V, k).sum()),
        ("came BEFORE", lambda ids, V, k: counted(ids, V, k) / counted(ids, V, k).sum(0, keepdim=True)),
        ("these are counts", lambda ids, V, k: counted(ids, V, k)),
        ("is nan", lambda ids, V, k: rows(counted(ids, V))),
        ("k has no effect", lambda ids, V, k: counted(ids, V) / counted(ids, V).sum(1, keepdim=True).clamp(min=1)),
        ("k times V", lambda ids, V, k: counted(ids, V, k) / (counted(ids, V).sum(1, keepdim=True) + k)),
        ("at most once", lambda ids, V, k: rows(once(ids, V, k))),
        ("does not wrap around", around),
        ("Keep the axis", lambda ids, V, k: counted(ids, V, k) / counted(ids, V, k).sum(1)),
        ("Keep the axis", lambda ids, V, k: counted(ids, V, k) / (counted(ids, V).sum(1) + k * V)),
        ("nothing follows it", lambda ids, V, k: counted(ids, V, k) / (ids.bincount(minlength=V)[:, None] + k * V)),
        ("take V from vocab_size", lambda ids, V, k: rows(counted(ids, len(ids.unique()), k))),
        ("from 2048", lambda ids, V, k: rows(counted(ids, V, k)).half()),
        ("from 256", lambda ids, V, k: rows(counted(ids, V, k)).bfloat16()),
        ("use the k that is passed in", lambda ids, V, k: rows(counted(ids, V, 1.0))),
        ("is k written as a number", lambda ids, V, k: rows(counted(ids, V, 0.5))),
        ("the rows sum to 1, but", lambda ids, V, k: torch.full((V, V), 1 / V)),
        ("all zeros", lambda ids, V, k: torch.zeros(V, V)),
        ("has shape (12,)", lambda ids, V, k: ids),
        ("dtype torch.int64", lambda ids, V, k: counted(ids, V).long()),
        ("is a list", lambda ids, V, k: rows(counted(ids, V, k)).tolist()),
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
        ("never below 1", 0),
        ("is a str", "4.76"),
        ("of shape (2,)", torch.ones(2)),
    ],
    "corpus_perplexity": [
        ("its exponential", lambda nll, mask: nll[mask].mean()),
        ("padded positions are in the mean", lambda nll, mask: nll.mean().exp()),
        ("mask True means a real token", lambda nll, mask: nll[~mask].mean().exp()),
        ("same weight", lambda nll, mask: means(nll, mask).mean().exp()),
        ("mean of the sentences' perplexities", lambda nll, mask: means(nll, mask).exp().mean()),
        ("not by B times T", lambda nll, mask: (nll * mask).mean().exp()),
        ("comes after the mean", lambda nll, mask: nll[mask].exp().mean()),
        ("not with 2", lambda nll, mask: 2 ** nll[mask].mean()),
        ("the whole batch; divide", lambda nll, mask: nll[mask].sum().exp()),
        ("inf times 0", lambda nll, mask: ((nll * mask).sum() / mask.sum()).exp()),
        ("hides that the model", lambda nll, mask: nll.nan_to_num(posinf=0)[mask].mean().exp()),
        ("hides that the model", lambda nll, mask: nll[mask].clamp(max=20).mean().exp()),
        ("hold other numbers", lambda nll, mask: (nll[mask].mean() + 0 * nll.isinf().any() + nll.isinf().any()).exp()),
        ("one for each sentence", lambda nll, mask: means(nll, mask).exp()),
        ("the 10 real tokens", lambda nll, mask: torch.zeros(())),
        ("of shape (3, 5)", lambda nll, mask: nll),
        ("is a str", lambda nll, mask: "low"),
    ],
    "fair_comparison": [
        ("word model comes first", [3.392, 1.655, 6.075]),
        ("bits per WORD", [9.435, 3.392, 6.075]),
        ("is multiplied by 5.7", [53.78, 3.392, 6.075]),
        ("in nats per letter", [1.147, 3.392, 6.075]),
        ("only its logarithm", [math.log2(692 / 5.7), 3.392, 6.075]),
        ("take its logarithm first", [692 / 5.7, 3.392, 6.075]),
        ("blank was taken off", [9.435 / 4.7, 3.392, 6.075]),
        ("has to be 692 again", [1.0, 3.392, 6.075]),
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
        ("has to be 692 again", torch.zeros(3)),
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
        ("keeps time second", lambda x, w, b: conv(x, w, b, w.shape[2] - 1, 0).transpose(1, 2)),
        ("compute the padding", lambda x, w, b: conv(F.pad(x, (0, 0, 4, 0)), w, b, 0, 0)[:, : x.shape[1]]),
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
    assert verdict(getattr(ch01, name), solution("01", name)) == f"passed: {name}"


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


RIGHT_IN_OTHER_WAYS = [
    lambda nll, mask: nll[mask].mean(0, keepdim=True).exp(),
    lambda nll, mask: nll.masked_fill(~mask, 0).sum().div(mask.sum()).exp().item(),
    lambda nll, mask: nll[mask].float().mean().exp().half(),
    lambda nll, mask: nll[mask].float().mean().exp().bfloat16(),
]


@pytest.mark.parametrize("i", range(len(RIGHT_IN_OTHER_WAYS)))
def test_a_perplexity_of_another_shape_or_precision_is_a_fair_answer(i):
    assert verdict(ch01.corpus_perplexity, RIGHT_IN_OTHER_WAYS[i]) == "passed: corpus_perplexity"


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
