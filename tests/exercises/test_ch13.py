"""The checks of chapter 13: the reference solutions pass, each usual mistake gets its own message.

A test here fails when a check accepts a wrong answer, rejects the reference, or gives two
different mistakes the same diagnosis.
"""

import math

import pytest
import torch

from course_lib.exercises import ch13
from course_lib.generate import top_k_top_p
from tests.helpers.solutions import solution, verdict

NAMES = ("tied_gradient", "temperature_numbers", "top_p", "cached_step", "training_memory", "training_run")


# --- planted mistakes: {exercise: [(part of the message wanted, wrong answer), ...]} ---------


def tied(output=1.0, embedding=1.0, scale=1.0, assign=False, at="ids", one_hot=True):
    """The gradient of a tied table, with mistakes to choose from."""

    def gradient(table, ids, targets):
        x = table[ids]
        error = (x @ table.T).softmax(-1)
        if one_hot:
            error[torch.arange(len(ids)), targets] -= 1
        error = error / len(ids)
        rows, found = ids if at == "ids" else targets, torch.zeros_like(table)
        if assign:
            found[rows] = error @ table
        else:
            found.index_add_(0, rows, error @ table)
        return scale * (output * error.T @ x + embedding * found)

    return gradient


def by_autograd(table, ids, targets):
    table = table.clone().requires_grad_()
    torch.nn.functional.cross_entropy(table[ids] @ table.T, targets).backward()
    return table.grad


def by_func(table, ids, targets):
    def loss(table):
        return torch.nn.functional.cross_entropy(table[ids] @ table.T, targets)

    return torch.func.grad(loss)(table)


def nucleus(keep, descending=True, back=True, normalise=True):
    """Top-p with a rule: `keep(sorted probabilities, cumulative sums, p)` says what stays."""

    def cut(probs, p):
        ordered, order = probs.sort(-1, descending=descending)
        ordered = ordered * keep(ordered, ordered.cumsum(-1), p)
        kept = torch.zeros_like(probs).scatter(-1, order, ordered) if back else ordered
        return kept / kept.sum(-1, keepdim=True) if normalise else kept

    return cut


def right(ordered, total, p):
    return total - ordered < p


def reached_and_one(ordered, total, p):
    return ~(total - ordered > p)


def below(ordered, total, p):
    return total <= p


def below_but_first(ordered, total, p):
    return (total <= p) | (torch.arange(ordered.shape[-1]) == 0)


def one_more(ordered, total, p):
    return torch.cat([torch.ones_like(total[:, :1]), (total - ordered)[:, :-1]], -1).lt(p) | (
        torch.arange(ordered.shape[-1]) == 0
    )


def share_of_tokens(ordered, total, p):
    return torch.arange(ordered.shape[-1]) < round(p * ordered.shape[-1])


def one_set(probs, p):
    kept = probs * (nucleus(right)(probs, p)[:1] > 0)
    return kept / kept.sum(-1, keepdim=True)


def by_threshold(probs, p):
    kept = probs * (probs >= 0.1)
    return kept / kept.sum(-1, keepdim=True)


def gathered(probs, p):
    """`gather` where `scatter` belongs: the sorted order is applied twice, not undone."""
    ordered, order = probs.sort(-1, descending=True)
    kept = (ordered * right(ordered, ordered.cumsum(-1), p)).gather(-1, order)
    return kept / kept.sum(-1, keepdim=True)


def any_as_many(probs, p):
    """As many tokens as should be, but a row's last ones."""
    count = (nucleus(right)(probs, p) > 0).sum(-1, keepdim=True)
    kept = probs * (torch.arange(probs.shape[-1]) >= probs.shape[-1] - count)
    return kept / kept.sum(-1, keepdim=True)


def zero_over_zero(probs, p):
    return nucleus(right)(probs, p) * torch.tensor([[math.nan], [1.0], [math.nan]])[: len(probs)]


def by_log_softmax(probs, p):
    """A right answer that works with logits throughout."""
    logits, order = probs.log().log_softmax(-1).sort(-1, descending=True)
    before = logits.exp().cumsum(-1) - logits.exp()
    logits = logits.masked_fill(before >= p, -torch.inf)
    return torch.full_like(probs, -torch.inf).scatter(-1, order, logits).softmax(-1)


def by_loop(probs, p):
    """A right answer in plain Python, in float32."""
    found = torch.zeros(probs.shape)
    for row, new in zip(probs.tolist(), found, strict=True):
        total = 0.0
        for v in sorted(range(len(row)), key=lambda v: -row[v]):
            new[v], total = row[v], total + row[v]
            if total >= p:
                break
    return found / found.sum(-1, keepdim=True)


def flattened(probs, p):
    kept = (nucleus(right)(probs, p) > 0).double()
    return kept / kept.sum(-1, keepdim=True)


def step(position=0, first=0, last=1, scale=True, advance=1, write=0, all_rows=False, add=True):
    """One token with a cache, with mistakes to choose from."""

    def cached(x, cache, project, table):
        t = cache.length
        q, k, v = project(x + table[(t + position) % len(table)] if add else x)
        cache.keys[:, t + write], cache.values[:, t + write] = k, v
        cache.length = t + advance
        end = cache.keys.shape[1] if all_rows else t + last
        keys, values = cache.keys[:, first:end], cache.values[:, first:end]
        scores = (keys @ q[:, :, None])[..., 0] / (math.sqrt(x.shape[-1]) if scale else 1)
        return (scores.softmax(-1)[..., None] * values).sum(1)

    return cached


def where_written(x, cache, project, table):
    """Takes the rows whose key is not 0 for those that were written."""
    t = cache.length
    q, k, v = project(x + table[t])
    cache.keys[:, t], cache.values[:, t] = k, v
    cache.length = t + 1
    scores = (cache.keys @ q[:, :, None])[..., 0] / math.sqrt(x.shape[-1])
    weights = scores.masked_fill((cache.keys == 0).all(-1), -math.inf).softmax(-1)
    return (weights[..., None] * cache.values).sum(1)


def first_position(x, cache, project, table):
    return step()(x, cache, project, table[:1].expand(len(table), -1))


def two_rows(x, cache, project, table):
    found = step()(x, cache, project, table)
    cache.keys[:, cache.length] = 1.0
    after = found.clone()
    cache.keys[:, cache.length :] = 1.0
    return after


def memory(each=16, table=1, L=1, bias=9, norm=4, last=2):
    def held(V, length, D, N):
        parameters = table * V * D + L * length * D + N * (12 * D * D + (bias + norm) * D) + last * D
        return parameters, each * parameters

    return held


TEMPERATURE = [math.e / (math.e + 2), math.e**2 / (math.e**2 + 2), 0.5, 1 / 3, 1 / math.log(3)]
TOKENS = 20 * 774e6
OPERATIONS = 6 * 774e6 * TOKENS
DAYS = OPERATIONS / (8 * 0.4 * 4e14) / 86400
CACHE = 2 * 36 * 32 * 1024 * 1280 * 2 / 1e9


def numbers(right, **changes):
    """The right numbers, some replaced: `numbers(RIGHT, _1=0.5)`."""
    return tuple(changes.get(f"_{i}", value) for i, value in enumerate(right))


def temperature(**changes):
    return numbers(TEMPERATURE, **changes)


def run(**changes):
    return numbers([TOKENS, OPERATIONS, DAYS, CACHE], **changes)


PLANTED = {
    "tied_gradient": [
        ("of the output layer alone", tied(embedding=0)),
        ("of the embedding alone", tied(output=0)),
        ("only its last look-up counts", tied(assign=True)),
        ("averaged", tied(scale=0.5)),
        ("gradient of the sum", tied(scale=4.0)),
        ("sign is turned", tied(scale=-1.0)),
        ("one-hot of the targets is missing", tied(one_hot=False)),
        ("at the targets' rows", tied(at="targets")),
        (
            "row 4 of the gradient is wrong",
            lambda table, *_: tied()(table, *_) + torch.tensor([0, 0, 0, 0, 9.0])[:, None],
        ),
        ("has shape (3, 5)", lambda *inputs: tied()(*inputs).T),
        ("is a tuple", lambda *inputs: (tied()(*inputs), tied()(*inputs))),
        ("torch differentiates for you", by_autograd),
    ],
    "temperature_numbers": [
        ("(a)", temperature(_0=0.5)),
        ("(b) is as (a)", temperature(_1=TEMPERATURE[0])),
        ("multiplied by the temperature", temperature(_1=math.sqrt(math.e) / (math.sqrt(math.e) + 2))),
        ("(b) 0.9", temperature(_1=0.9)),
        ("in the limit they share", temperature(_2=1.0)),
        ("only the largest logits keep", temperature(_2=0.4)),
        ("add up to 1 at every temperature", temperature(_3=0)),
        ("none is preferred", temperature(_3=0.2)),
        ("1 / temperature", temperature(_4=math.log(3))),
        ("in its exponent", temperature(_4=1 / 3)),
        ("(e) 0.5", temperature(_4=0.5)),
        ("expected 5 numbers", (0.1, 0.2)),
        ("got float", 0.5),
    ],
    "top_p": [
        ("nothing is left", nucleus(below)),
        ("only a row's first is saved", nucleus(below_but_first)),
        ("one token too many", nucleus(one_more)),
        ("do not add up to 1", nucleus(right, normalise=False)),
        ("least likely tokens", nucleus(right, descending=False)),
        ("sorted order", nucleus(right, back=False)),
        ("same tokens are kept in every row", one_set),
        ("which is top-k", nucleus(share_of_tokens)),
        ("for 1 - p", lambda probs, p: nucleus(right)(probs, 1 - p)),
        ("tokens are left; the smallest set", by_threshold),
        ("wrong tokens: put each back at its own token", gathered),
        ("not the likeliest", any_as_many),
        ("nan in 2 of the 3 rows (row 0 first)", zero_over_zero),
        ("reach p exactly, one token too many", nucleus(reached_and_one)),
        ("changed their ratios", flattened),
        ("has shape (7,)", lambda probs, p: nucleus(right)(probs, p)[0]),
        ("with p = 1", lambda probs, p: nucleus(right)(probs, min(p, 0.9))),
    ],
    "cached_step": [
        ("does not see itself: with", step(last=0)),
        ("both mistakes", step(last=0, position=-1)),
        ("one too small", step(position=-1)),
        ("one too large", step(position=1)),
        ("unwritten rows", step(all_rows=True)),
        ("whatever they hold", where_written),
        ("first key is left out", step(first=1)),
        ("sqrt(D)", step(scale=False)),
        ("one row too late", step(write=1)),
        ("position is not added", step(add=False)),
        ("position of the first", first_position),
        ("cache.length is [0, 0, 0, 0]", step(advance=0)),
        ("beyond its length were written", two_rows),
        ("has shape (2, 1, 3)", lambda *inputs: step()(*inputs)[:, None]),
    ],
    "training_memory": [
        ("counted twice", memory(table=2)),
        ("table of tokens is missing", memory(table=0)),
        ("table of positions is missing", memory(L=0)),
        ("biases are missing", memory(bias=0)),
        ("norms of the layers are missing", memory(norm=0)),
        ("last norm is missing", memory(last=0)),
        ("matrices alone", memory(bias=0, norm=0, last=0)),
        ("are too few", memory(norm=3)),
        ("are too many", memory(norm=6)),
        ("the weights alone", memory(each=4)),
        ("two of the four", memory(each=8)),
        ("one of the four", memory(each=12)),
        ("bits", memory(each=128)),
        ("20 bytes a parameter", memory(each=20)),
        ("expected a tuple", lambda V, L, D, N: memory()(V, L, D, N)[1]),
    ],
    "training_run": [
        ("20 tokens for each parameter", run(_0=774e6)),
        ("tokens: 1e+10", run(_0=1e10)),
        ("forward pass alone", run(_1=OPERATIONS / 3)),
        ("backward pass alone", run(_1=OPERATIONS * 2 / 3)),
        ("6 N^2", run(_1=6 * 774e6**2)),
        ("operations: 1e+20", run(_1=1e20)),
        ("one processor", run(_2=8 * DAYS)),
        ("at the peak", run(_2=0.4 * DAYS)),
        ("makes a slow program fast", run(_2=OPERATIONS / 8 / 4e14 * 0.4 / 86400)),
        ("hours", run(_2=24 * DAYS)),
        ("seconds", run(_2=86400 * DAYS)),
        ("days: 3", run(_2=3)),
        ("both kept", run(_3=CACHE / 2)),
        ("twice too many", run(_3=2 * CACHE)),
        ("every one of the 36 layers", run(_3=CACHE / 36)),
        ("times the heads", run(_3=20 * CACHE)),
        ("one head's share", run(_3=CACHE / 20)),
        ("one text", run(_3=CACHE / 32)),
        ("these are GiB", run(_3=CACHE * 1e9 / 2**30)),
        ("gigabytes: 7", run(_3=7)),
        ("expected 4 numbers", (1, 2, 3)),
    ],
}
FUNCTIONS = {
    "tied_gradient": (lambda table, ids, targets: table, lambda table, ids, targets: torch.zeros_like(table)),
    "top_p": (lambda probs, p: probs, lambda probs, p: torch.zeros_like(probs)),
    "cached_step": (lambda x, *_: x, lambda x, *_: torch.zeros_like(x)),
    "training_memory": (lambda V, L, D, N: (V, L), lambda V, L, D, N: (0, 0)),
    "temperature_numbers": ((2, 1, 1, 3, 3), (0, 0, 0, 0, 0)),
    "training_run": ((774e6, 8, 0.4, 32), (0, 0, 0, 0)),
}  # for each what gives back its input, and what gives zeros


@pytest.mark.parametrize("name", NAMES)
def test_reference_passes(name):
    """Fails when the solution in the notebook is wrong, or its check rejects it."""
    assert verdict(getattr(ch13, name), solution("13", name)) == f"passed: {name}"


def test_other_right_ways_are_welcome():
    """Fails when a check insists on the reference's own way: the library's, logits, loops, the planted skeletons."""

    def by_library(probs, p):
        return top_k_top_p(probs.log(), top_p=p).softmax(-1)

    assert verdict(ch13.tied_gradient, tied()) == "passed: tied_gradient"
    for answer in (by_library, by_log_softmax, by_loop):
        assert verdict(ch13.top_p, answer) == "passed: top_p"
    assert verdict(ch13.top_p, nucleus(right)) == "passed: top_p"
    assert verdict(ch13.cached_step, step()) == "passed: cached_step"
    assert verdict(ch13.training_memory, memory()) == "passed: training_memory"
    assert verdict(ch13.temperature_numbers, tuple(TEMPERATURE)) == "passed: temperature_numbers"
    assert verdict(ch13.training_run, run()) == "passed: training_run"


@pytest.mark.parametrize(("name", "number"), [(name, i) for name, rows in PLANTED.items() for i in range(len(rows))])
def test_planted_mistake_gets_its_message(name, number):
    """Fails when a usual mistake passes, or is called something else."""
    part, wrong = PLANTED[name][number]
    message = verdict(getattr(ch13, name), wrong)
    assert message.startswith("not yet: ")
    assert part in message


def test_autograd_is_refused_in_every_form():
    """Fails when a gradient by `torch.func` passes where one by `backward` does not."""
    assert "torch differentiates for you" in verdict(ch13.tied_gradient, by_func)


def test_the_wanted_number_of_parameters_is_not_told():
    """Fails when a diagnosis prints the total."""
    assert "124,439,808" not in verdict(ch13.training_memory, memory(norm=3))


@pytest.mark.parametrize("name", PLANTED)
def test_each_mistake_has_a_message_of_its_own(name):
    """Fails when two different mistakes get one diagnosis."""
    messages = [verdict(getattr(ch13, name), wrong) for _, wrong in PLANTED[name]]
    assert len(set(messages)) == len(messages)


@pytest.mark.parametrize("which", [0, 1], ids=["its input", "zeros"])
@pytest.mark.parametrize("name", NAMES)
def test_the_laziest_answers_fail(name, which):
    """Fails when an answer that does nothing passes, or the check stumbles over it."""
    message = verdict(getattr(ch13, name), FUNCTIONS[name][which])
    assert message.startswith("not yet: ")
    assert "could not be examined" not in message


@pytest.mark.parametrize("name", NAMES)
def test_untouched_is_not_attempted(name):
    """Fails when an exercise that nobody has touched is called wrong."""
    assert verdict(getattr(ch13, name), ...) == f"not attempted yet: {name}"


@pytest.mark.parametrize("name", NAMES)
def test_messages_do_not_show_the_solution(name):
    """Fails when a diagnosis holds a line of the reference."""
    messages = " ".join(verdict(getattr(ch13, name), wrong) for _, wrong in PLANTED[name])
    for line in ("index_add", "cumsum", "scatter", "sort(", "cache.keys[", "12 * D", "12 D^2", "e / (e", "86400"):
        assert line not in messages


def test_words_are_asked_for_before_the_good_answer_is_told(capsys):
    """Fails if the exercise in words has no hint, or tells what is wanted before anything was written."""
    for number in (1, 2, 3):
        ch13.how_to_draw.hint(number)
    ch13.how_to_draw.compare(...)
    assert "no answer yet" in capsys.readouterr().out
    ch13.how_to_draw.compare("word " * 20)
    assert "calculation" in capsys.readouterr().out
