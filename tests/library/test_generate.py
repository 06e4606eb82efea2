"""How models write: draws against probabilities, searches against enumeration, each model's steps against forward."""

import itertools
import math

import pytest
import torch

from course_lib.generate import (
    beam_hypotheses,
    beam_search,
    beam_search_one,
    draw,
    generate,
    greedy,
    length_factor,
    sample_tokens,
    top_k_top_p,
)
from course_lib.gpt import GPT, GPTConfig
from course_lib.lstm_gru import GRU, LSTM
from course_lib.ngram import NgramModel, WindowLM
from course_lib.positional import ALiBi, LearnedPositions, PositionScheme, RelativeBias, RoPE
from course_lib.recurrent_models import LanguageModel
from course_lib.rnn import RNN
from course_lib.seq2seq import AttentionDecoder, Decoder, Encoder, Seq2Seq
from course_lib.text import EOS, PAD, SOS, pad_batch
from course_lib.transformer import DecoderLayer, EncoderLayer, Transformer, TransformerDecoder, TransformerEncoder
from course_lib.transformer_models import TransformerLM, Translator
from course_lib.translation import alignment, translate

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
V, CONTEXT, D, N, H, K = 11, 16, 12, 2, 3, 4
INF = math.inf
POSITIONS = {
    "learned": lambda: None,
    "rope": lambda: RoPE(K),
    "alibi": lambda: ALiBi(H),
    "relative": lambda: RelativeBias(H, 2),
    "none": PositionScheme,
}
every_position = pytest.mark.parametrize("position", POSITIONS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=seeded(seed + sum(shape)), dtype=torch.float64)


def filled(module, seed=0, scale=0.5):
    """The module in float64 and evaluation mode, its parameters drawn, those of norms around one."""
    generator = seeded(seed)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            is_norm = parameter.ndim == 1 and name.endswith("weight")
            parameter.copy_(1 + 0.3 * noise if is_norm else scale * noise)
    return module.eval()


def gpt(position="learned", seed=2, dropout=0.0, vocab_size=V):
    """A model whose blocks outweigh the embeddings, so that its texts are no repetitions of one token."""
    model = filled(GPT(GPTConfig(vocab_size, CONTEXT, D, N, H, dropout=dropout), POSITIONS[position]()), seed)
    with torch.no_grad():
        for parameter in model.blocks.parameters():
            parameter.mul_(3)
    return model


# --- drawing tokens ---------------------------------------------------------------

INF = math.inf


@pytest.mark.parametrize(
    ("top_k", "top_p", "kept"),
    [
        (None, None, [0, 1, 2, 3, 4]),
        (1, None, [1]),
        (2, None, [1, 3]),
        (3, None, [1, 3, 0, 4]),  # tokens 0 and 4 are equal: both stay
        (4, None, [1, 3, 0, 4]),
        (5, None, [0, 1, 2, 3, 4]),
        (99, None, [0, 1, 2, 3, 4]),
        (None, 1e-9, [1]),
        (None, 0.39, [1]),
        (None, 0.41, [1, 3]),
        (None, 0.69, [1, 3]),
        (None, 0.71, [1, 3, 0]),  # of equals, one or the other
        (None, 0.84, [1, 3, 0]),
        (None, 0.86, [1, 3, 0, 4]),
        (None, 0.999, [1, 3, 0, 4]),
        (None, 1.0, [0, 1, 2, 3, 4]),
        (2, 0.57, [1]),  # of the two tokens left 0.4 has the share 4 / 7 = 0.571
        (2, 0.58, [1, 3]),
        (2, 1.0, [1, 3]),
        (5, 0.41, [1, 3]),
    ],
)
def test_top_k_top_p_worked_by_hand(top_k, top_p, kept):
    """Fails if one token too many or too few stays, equals are cut by top-k, or top-p does not see what top-k left.

    Probabilities 0.15, 0.4, 0 (impossible), 0.3, 0.15; a logit of minus infinity stays one.
    """
    p = torch.tensor([0.15, 0.4, 0.0, 0.3, 0.15], dtype=torch.float64)
    logits = p.log() + 3.0
    before = logits.clone()
    found = top_k_top_p(logits, top_k, top_p)
    assert torch.equal(logits, before), "the logits given were changed"
    stays = (found > -INF).nonzero().flatten().tolist()
    assert sorted(p[stays].tolist()) == sorted(p[[i for i in kept if p[i] > 0]].tolist())
    assert torch.equal(found[stays], logits[stays])


def kept_plainly(row, top_k, top_p):
    """The definition on a list of logits, without two that are equal: the set of tokens that stay."""
    order = sorted(range(len(row)), key=lambda i: -row[i])
    order = order if top_k is None else order[:top_k]
    if top_p is None:
        return set(order)
    total = sum(math.exp(row[i]) for i in order)
    sums = itertools.accumulate(math.exp(row[i]) / total for i in order)
    needed = next((n for n, reached in enumerate(sums, 1) if reached >= top_p), len(order))
    return set(order[:needed])


@pytest.mark.parametrize("top_k", [None, 1, 3, 8, 13])
@pytest.mark.parametrize("top_p", [None, 0.1, 0.5, 0.9, 0.99, 1.0])
def test_top_k_top_p_is_the_definition_on_random_rows(top_k, top_p):
    """Fails if rows mix, or what is cut is put back in sorted order. V = 8, any number of axes before it."""
    logits = 2 * normal(4, 25, 8)
    found = top_k_top_p(logits, top_k, top_p)
    assert found.shape == logits.shape
    for row, out in zip(logits.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), strict=True):
        wanted = kept_plainly(row, top_k, None if top_p == 1.0 else top_p)
        assert out == [value if i in wanted else -INF for i, value in enumerate(row)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, r"top_k must be a whole number of at least 1, got 0"),
        ({"top_k": -1}, r"top_k must be a whole number of at least 1, got -1"),
        ({"top_k": 1.5}, r"top_k must be a whole number of at least 1, got 1.5"),
        ({"top_k": True}, r"top_k must be a whole number of at least 1, got True"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, r"top_p must be above 0 and at most 1, got 1.1"),
        ({"top_p": math.nan}, r"top_p must be above 0 and at most 1, got nan"),
        ({"top_k": 1, "top_p": 2}, r"top_p must be above 0 and at most 1, got 2"),
        ({"top_p": "0.9"}, r"top_p must be above 0 and at most 1, got '0.9'"),
        ({"temperature": 0}, r"temperature must be a finite number above 0, got 0"),
        ({"temperature": -1.0}, r"temperature must be a finite number above 0, got -1.0"),
        ({"temperature": INF}, r"temperature must be a finite number above 0, got inf"),
        ({"temperature": math.nan}, r"temperature must be a finite number above 0, got nan"),
        ({"temperature": 0, "top_k": 1}, r"temperature must be a finite number above 0, got 0"),
    ],
)
def test_bad_options_of_drawing_are_named(options, message):
    """Fails if a temperature of 0 divides by zero, or a filter that leaves nothing passes."""
    for call in (lambda: sample_tokens(normal(2, V), **options), lambda: generate(gpt(), [[1]], 2, **options)):
        with pytest.raises(ValueError, match=message):
            call()
    if "temperature" not in options:
        with pytest.raises(ValueError, match=message):
            top_k_top_p(normal(2, V), **options)


LOGITS = torch.tensor([1.0, -0.5, 2.0, 0.3, -INF, 1.2], dtype=torch.float64)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize(
    ("options", "weights"),
    [
        ({}, LOGITS.exp()),
        ({"temperature": 2.0}, (LOGITS / 2).exp()),
        ({"temperature": 0.4}, (LOGITS / 0.4).exp()),
        ({"top_k": 3}, LOGITS.exp() * torch.tensor([1, 0, 1, 0, 0, 1])),
        ({"top_p": 0.6}, LOGITS.exp() * torch.tensor([0, 0, 1, 0, 0, 1])),
        ({"top_p": 0.6, "temperature": 0.4}, LOGITS.exp() * torch.tensor([0, 0, 1, 0, 0, 0])),  # 0.79 of what is left
        ({"top_p": 0.6, "temperature": 3.0}, (LOGITS / 3).exp() * torch.tensor([1, 0, 1, 0, 0, 1])),
    ],
    ids=str,
)
def test_tokens_are_drawn_with_their_probabilities(options, weights, seed):
    """Fails if the temperature multiplies, or cuts come before it; if a neighbour is drawn, or an impossible token.

    Each token's count in n draws lies within five standard deviations of n p.
    """
    n, p = 20_000, (weights / weights.sum()).tolist()
    found = sample_tokens(LOGITS.float().expand(n, -1), seeded(seed), **options)
    assert (found.shape, found.dtype) == ((n,), torch.int64)
    for token, count in enumerate(found.bincount(minlength=6).tolist()):
        assert abs(count - n * p[token]) <= 5 * math.sqrt(n * p[token] * (1 - p[token])), token


def test_draw_is_the_cumulative_distribution_cut_by_a_uniform_number():
    """Fails if other random numbers are used, or the first token whose cumulative sum exceeds u is missed."""
    u = torch.rand(50, generator=seeded(3), dtype=torch.float64)
    wanted = [0 if x < 0.25 else 1 if x < 0.75 else 2 for x in u.tolist()]
    for weights in ([0.25, 0.5, 0.25], [1.0, 2.0, 1.0]):
        p = torch.tensor([weights], dtype=torch.float64)
        assert draw(p.expand(50, 3), seeded(3)).tolist() == wanted
        generator = seeded(3)
        assert [draw(p, generator).item() for _ in range(50)] == wanted


def test_rows_are_drawn_apart():
    """Fails if a row's token comes from another row's distribution, or all rows share one number."""
    logits = torch.full((V, V), -INF).fill_diagonal_(0.0)
    assert sample_tokens(logits, seeded()).tolist() == list(range(V))
    assert len(set(sample_tokens(torch.zeros(50, V), seeded()).tolist())) > 5


def test_the_generator_alone_decides():
    """Fails if torch's own generator is used in place of the one given, or none is used up."""
    logits, generator = normal(50, V), seeded(3)
    torch.manual_seed(0)
    first = sample_tokens(logits, generator)
    assert not torch.equal(sample_tokens(logits, generator), first), "the generator goes on"
    torch.manual_seed(1)
    assert torch.equal(sample_tokens(logits, seeded(3)), first)
    torch.manual_seed(3)
    assert torch.equal(sample_tokens(logits), first), "without one torch's own is used"
    state = generator.get_state()
    assert torch.equal(sample_tokens(logits, generator, top_k=1), logits.argmax(-1))
    assert torch.equal(generator.get_state(), state), "greedy draws nothing"


def test_the_limits_of_the_temperature():
    """Fails if a low temperature is not greedy, or a high one does not make all tokens alike: numbers overflow."""
    logits = normal(2000, V).float()
    for temperature in (1e-3, 1e-30, 1e-44):
        found = sample_tokens(logits, seeded(), temperature=temperature)
        gap = logits.topk(2).values.diff().abs().squeeze(1) > 0.04  # exp(-40) at the highest of these temperatures
        assert gap.sum() > 1800
        assert torch.equal(found[gap], logits.argmax(-1)[gap])
    counts = sample_tokens(logits, seeded(), temperature=1e9).bincount(minlength=V)
    assert (counts - 2000 / V).abs().max() <= 5 * math.sqrt(2000 / V * (1 - 1 / V))


@pytest.mark.parametrize(("u", "wanted"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_ends_of_the_uniform_numbers_draw_possible_tokens(u, wanted, monkeypatch):
    """Fails if u = 0 draws an impossible first token, or u next to 1 an impossible last one or none at all."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, generator: torch.full(shape, u, dtype=dtype))
    for seed in range(50):
        logits = torch.cat([torch.full((1, 1), -INF), normal(1, 3, seed=seed).float(), torch.full((1, 1), -INF)], 1)
        assert sample_tokens(logits).tolist() == [wanted]


# --- writing ----------------------------------------------------------------------

PROMPTS = [[3, 1, 8, 2], [5], [9, 0, 4, 6, 7, 2, 1], [2, 2]]


def written_plainly(model, prompt, steps):
    """Greedy decoding by its definition: read everything, take the likeliest, again."""
    ids = list(prompt)
    for _ in range(steps):
        ids.append(model(torch.tensor([ids]))[0, -1].argmax().item())
    return ids[len(prompt) :]


@pytest.mark.parametrize("use_cache", [True, False])
@every_position
def test_greedy_writing_equals_each_prompt_alone_by_the_definition(position, use_cache):
    """Fails if rows of other lengths disturb a row, a prompt's tokens are overwritten, or too many come back."""
    model = gpt(position)
    for steps in (1, 6):
        wanted = [written_plainly(model, prompt, steps) for prompt in PROMPTS]
        assert generate(model, PROMPTS, steps, top_k=1, use_cache=use_cache) == wanted
        assert generate(model, PROMPTS[:1], steps, top_k=1, use_cache=use_cache) == wanted[:1]
    assert len({tuple(text) for text in wanted}) == len(PROMPTS), "texts that differ, or rows could be exchanged"


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "top_k": 5}, {"top_p": 0.8}], ids=str)
def test_with_and_without_a_cache_the_same_tokens_are_drawn(options):
    """Fails if the cache changes a probability or the number of draws; or an option is not handed on."""
    model = gpt("rope")
    found = generate(model, PROMPTS, 8, seeded(1), **options)
    assert [len(text) for text in found] == [8] * 4
    assert generate(model, PROMPTS, 8, seeded(1), use_cache=False, **options) == found
    assert generate(model, PROMPTS, 8, seeded(2), **options) != found
    torch.manual_seed(1)
    assert generate(model, PROMPTS, 8, **options) == found, "without a generator torch's own is used"
    assert options == {} or generate(model, PROMPTS, 8, seeded(1)) != found


def test_sampling_draws_from_the_models_distribution():
    """Fails if the first or the second token is drawn from another place's logits: 4000 texts of one prompt.

    Each pair of tokens is counted within five standard deviations of its probability under `forward`.
    """
    model, n = gpt(vocab_size=3, seed=4), 4000
    with torch.no_grad():
        rows = model(torch.tensor([[2, 0, a] for a in range(3)])).softmax(-1)  # (3, 3, V)
    wanted = rows[0, 1][:, None] * rows[:, 2]
    found = torch.tensor(generate(model, [[2, 0]] * n, 2, seeded(1)))
    for a, b in itertools.product(range(3), repeat=2):
        p = wanted[a, b].item()
        count = ((found[:, 0] == a) & (found[:, 1] == b)).sum().item()
        assert abs(count - n * p) <= 5 * math.sqrt(n * p * (1 - p)), (a, b)


@pytest.mark.parametrize("use_cache", [True, False])
def test_a_text_ends_with_the_stop_token(use_cache, monkeypatch):
    """Fails if stop is left out of the text or ends other rows; if a stop in a prompt counts; or steps are wasted."""
    model = gpt()
    whole = generate(model, PROMPTS, 9, top_k=1)
    calls, step = [], model.step
    monkeypatch.setattr(model, "step", lambda *args: calls.append(1) or step(*args))
    seen_cut, seen_whole = False, False
    for stop in range(V):
        wanted = [text[: text.index(stop) + 1] if stop in text else text for text in whole]
        assert generate(model, PROMPTS, 9, top_k=1, eos_id=stop, use_cache=use_cache) == wanted
        seen_cut |= any(len(text) < 9 for text in wanted)
        seen_whole |= any(len(text) == 9 for text in wanted)
    assert seen_cut
    assert seen_whole
    calls.clear()
    first = whole[2][0]
    assert generate(model, [PROMPTS[2]], 9, top_k=1, eos_id=first, use_cache=use_cache) == [[first]]
    assert len(calls) == 1, "nothing is computed after every text has ended"
    prompt = [*PROMPTS[0], first]
    assert generate(model, [prompt], 3, top_k=1, eos_id=first) == [
        text[: text.index(first) + 1] if first in text else text for text in [written_plainly(model, prompt, 3)]
    ]


def test_no_steps_write_nothing():
    """Fails if a token is written anyway, or an empty text is left out."""
    for prompts in (PROMPTS, PROMPTS[:1]):
        assert generate(gpt(), prompts, 0) == [[] for _ in prompts]
        assert generate(gpt(), prompts, 0, eos_id=2) == [[] for _ in prompts]


def test_writing_to_the_end_of_the_context():
    """Fails if the last place of the context cannot be used, or one more passes."""
    model = gpt()
    assert generate(model, [[1] * 6], CONTEXT - 6, top_k=1) == [written_plainly(model, [1] * 6, CONTEXT - 6)]
    with pytest.raises(ValueError, match=r"a prompt of 6 tokens and 11 new ones are more than the context of 16"):
        generate(model, [[1], [1] * 6], CONTEXT - 5)


@pytest.mark.parametrize(
    ("prompts", "steps", "message"),
    [
        ([], 3, r"prompts must be a list of lists of ids, none of them empty, got \[\]"),
        ([[1, 2], []], 3, r"prompts must be a list of lists of ids, none of them empty, got \[\[1, 2\], \[\]\]"),
        ([1, 2, 3], 3, r"prompts must be a list of lists of ids, none of them empty, got \[1, 2, 3\]"),
        ("abc", 3, r"prompts must be a list of lists of ids, none of them empty, got 'abc'"),
        (torch.zeros(2, 0).long(), 3, r"prompts must be a list of lists of ids, none of them empty"),
        ([[1.5]], 3, r"an id of the prompts must be a whole number from 0 to 10, got 1.5"),
        ([[1, 1.0]], 3, r"an id of the prompts must be a whole number from 0 to 10, got 1.0"),
        ([[1, 11]], 3, r"an id of the prompts must be a whole number from 0 to 10, got 11"),
        ([[-1, 1]], 3, r"an id of the prompts must be a whole number from 0 to 10, got -1"),
        ([[1, 2]], -1, r"max_new_tokens must be a whole number of at least 0, got -1"),
        ([[1, 2]], 1.5, r"max_new_tokens must be a whole number of at least 0, got 1.5"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(prompts, steps, message):
    """Fails if the error comes from inside torch, or ids are rounded."""
    with pytest.raises(ValueError, match=message):
        generate(gpt(), prompts, steps)


@pytest.mark.parametrize("wrong", ["3", -1, 11, math.nan, 1.0, True])
def test_ends_that_never_come_are_refused(wrong):
    """Fails if an end that is no token is passed over in silence: no text would ever end."""
    message = f"must be a whole number from 0 to 10, got {wrong!r}"
    with pytest.raises(ValueError, match=f"eos_id {message}"):
        generate(gpt(), [[1]], 2, eos_id=wrong)
    with pytest.raises(ValueError, match=f"an id of suppress_tokens {message}"):
        generate(gpt(), [[1]], 2, suppress_tokens=[2, wrong])
    with pytest.raises(ValueError, match=f"eos_id {message}"):
        greedy(gpt(), prompt=torch.tensor([[1]]), eos_id=wrong)


@pytest.mark.parametrize("options", [{"top_k": 1}, {}, {"top_k": 3}, {"top_p": 0.9}, {"temperature": 0.1}], ids=str)
@pytest.mark.parametrize("wrong", [math.nan, INF])
def test_logits_that_are_no_distribution_are_refused(options, wrong):
    """Fails if a token is drawn from numbers that say nothing: once the id V came back."""
    logits = normal(3, V)
    logits[1, 4] = wrong
    with pytest.raises(ValueError, match="the logits hold NaN or plus infinity, or no token is possible"):
        sample_tokens(logits, seeded(), **options)
    with pytest.raises(ValueError, match="or no token is possible"):
        sample_tokens(torch.full((1, V), -INF), seeded(), **options)


def test_what_is_suppressed_is_not_written():
    """Fails if a suppressed token comes, or the others lose their order."""
    model = gpt()
    first = generate(model, PROMPTS, 1, top_k=1)[1][0]
    with torch.no_grad():
        second = model(torch.tensor(PROMPTS[1:2]))[0, -1].topk(2).indices[1].item()
    assert generate(model, PROMPTS[1:2], 1, top_k=1, suppress_tokens=[first]) == [[second]]
    texts = generate(model, [[3]] * 50, 8, seeded(), suppress_tokens=(0, 2, 4, 6))
    assert {token for text in texts for token in text} == {1, 3, 5, 7, 8, 9, 10}


@pytest.mark.parametrize("position", ["rope", "alibi", "relative", "none"])
def test_writing_beyond_the_trained_context(position):
    """Fails if a scheme without a longest position stops at the config's context, or the grown cache loses a token."""
    model, length = gpt(position), CONTEXT + 9
    assert model.max_len is None
    wanted = [written_plainly(model, prompt, length) for prompt in PROMPTS[:2]]
    for use_cache in (True, False):
        assert generate(model, PROMPTS[:2], length, top_k=1, use_cache=use_cache) == wanted
    (found,) = greedy(model, prompt=torch.tensor(PROMPTS[:1]), max_new_tokens=length, eos_id=None, suppress_tokens=())
    assert (found.tokens, found.finished) == (wanted[0], False)


def test_greedy_ends_where_the_positions_end():
    """Fails if a search asks a table for a position that it has not, or stops a token early."""
    model, prompt = gpt(), torch.tensor([[1] * 6])
    options = {"max_new_tokens": 60, "eos_id": None, "suppress_tokens": ()}
    wanted = written_plainly(model, [1] * 6, CONTEXT - 6 + 1)  # the last one is written and not read
    assert greedy(model, prompt=prompt, **options)[0].tokens == wanted
    assert len(beam_search(model, prompt=prompt, **options)[0].tokens) == CONTEXT - 6 + 1


@pytest.mark.parametrize("fails", [False, True])
def test_while_writing_dropout_is_off_and_modes_come_back(fails, monkeypatch):
    """Fails if texts of a model in training are random, or a model is left in another mode, also after an error."""
    model, wanted = gpt(dropout=0.5), generate(gpt(), PROMPTS, 6, top_k=1)
    model.train()
    model.blocks[1].eval()
    modes = [part.training for part in model.modules()]
    assert len(set(modes)) == 2
    if fails:
        calls, step = iter([None, None]), model.step
        monkeypatch.setattr(model, "step", lambda *args: (next(calls), step(*args))[1])
        with pytest.raises(StopIteration):
            generate(model, PROMPTS, 6, top_k=1)
    else:
        assert generate(model, PROMPTS, 6, top_k=1) == wanted
    assert [part.training for part in model.modules()] == modes


def test_writing_keeps_no_gradient(monkeypatch):
    """Fails if the graph of every token is kept, in logits or in the cache; a caller's gradients stay on."""
    model, seen = gpt(), []

    def watched(ids, state):
        logits, state = GPT.step(model, ids, state)
        seen.extend([logits, *(part for cache in state["kv_caches"] for part in (cache.keys, cache.values))])
        return logits, state

    monkeypatch.setattr(model, "step", watched)
    generate(model, PROMPTS, 3)
    assert len(seen) == (7 + 3 - 1) * (1 + 2 * N)
    assert not any(x.requires_grad for x in seen)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_with_a_cache_each_token_is_read_once(monkeypatch):
    """Fails if the cache is filled and the whole text is read all the same."""
    model, lengths = gpt(), []
    step = model.step
    monkeypatch.setattr(model, "step", lambda ids, state: lengths.append(ids.shape[1]) or step(ids, state))
    generate(model, [[1, 2, 3], [1] * 5], 2)
    assert lengths == [3, 1, 1, 1]
    lengths.clear()
    generate(model, [[1, 2, 3], [1] * 5], 2, use_cache=False)
    assert lengths == [3, 4, 5, 6]


# --- searching ------------------------------------------------------------------------


class Table:
    """A language of three words with hand-made probabilities; a state counts the steps as a tensor.

    `probs` maps the words so far, as a tuple, to a dict of probabilities; what is missing ends the sentence.
    """

    def __init__(self, probs, vocab_size=7):
        self.probs, self.vocab_size, self.max_len = probs, vocab_size, None

    def start(self, source, source_real=None):
        return {"words": torch.zeros(len(source), 0, dtype=torch.int64)}

    def step(self, tokens, state):
        words = torch.cat([state["words"], tokens], 1)
        p = torch.zeros(len(tokens), self.vocab_size, dtype=torch.float64)
        for row, seen in zip(p, words[:, 1:].tolist(), strict=True):
            for token, share in self.probs.get(tuple(seen), {EOS: 1.0}).items():
                row[token] = share
        return p.log(), {"words": words}


# a = 4 looks best at first, yet every sentence that begins with it is improbable.
TRAP = {
    (): {4: 0.5, 5: 0.4, EOS: 0.1},
    (4,): {4: 0.3, 5: 0.3, 6: 0.2, EOS: 0.2},
    (5,): {6: 0.9, EOS: 0.1},
    (5, 6): {EOS: 1.0},
}
ONE = torch.tensor([[4]])


def enumerate_sentences(table, max_len):
    """Every sentence that ends within max_len tokens, with its log-probability, most probable first."""
    found, open_ = [], [((), 0.0)]
    for _ in range(max_len):
        longer = []
        for words, score in open_:
            for token, share in table.get(words, {EOS: 1.0}).items():
                if token == EOS:
                    found.append((list(words), score + math.log(share)))
                else:
                    longer.append(((*words, token), score + math.log(share)))
        open_ = longer
    return sorted(found, key=lambda entry: -entry[1])


def test_beam_search_finds_the_optimum_where_greedy_fails():
    """Fails if the beam does not keep the second beginning: 0.5 * 0.3 is less than 0.4 * 0.9 * 1."""
    best, score = enumerate_sentences(TRAP, 4)[0]
    assert best == [5, 6]
    (found,) = beam_search(Table(TRAP), ONE, beam_size=2, max_new_tokens=4)
    assert found.tokens == best
    assert found.score == pytest.approx(score)
    (taken,) = greedy(Table(TRAP), ONE, max_new_tokens=4)
    assert taken.tokens[0] == 4
    assert taken.score < score


def random_table(seed, depth):
    """Random probabilities after every beginning of fewer than `depth` words."""
    generator, table = torch.Generator().manual_seed(seed), {}
    for n in range(depth):
        for words in itertools.product((4, 5, 6), repeat=n):
            p = torch.rand(4, generator=generator, dtype=torch.float64)
            table[words] = dict(zip((EOS, 4, 5, 6), (p / p.sum()).tolist(), strict=True))
    return table


@pytest.mark.parametrize("seed", range(5))
def test_a_wide_beam_is_an_exhaustive_search(seed):
    """Fails if a candidate gets lost or a finished one goes on: beam 100 holds all 40 sentences of up to 3 words."""
    table = random_table(seed, 3)
    wanted = enumerate_sentences(table, 4)
    (found,) = beam_hypotheses(Table(table), ONE, beam_size=100, max_new_tokens=4)
    assert [hypothesis.tokens for hypothesis in found] == [words for words, _ in wanted]
    scores = [hypothesis.score for hypothesis in found]
    assert scores == pytest.approx([score for _, score in wanted])
    assert sum(math.exp(score) for score in scores) == pytest.approx(1.0)


@pytest.mark.parametrize("seed", range(3))
def test_a_wide_beam_with_a_penalty_ranks_all_by_their_penalised_scores(seed):
    """Fails if the penalty multiplies, counts other tokens, or is applied before the search is over."""
    table, alpha = random_table(seed, 3), 1.5
    wanted = sorted(enumerate_sentences(table, 4), key=lambda e: -e[1] / ((5 + len(e[0]) + 1) / 6) ** alpha)
    (found,) = beam_hypotheses(Table(table), ONE, beam_size=100, length_penalty=alpha, max_new_tokens=4)
    assert [hypothesis.tokens for hypothesis in found] == [words for words, _ in wanted]


def test_length_penalty_by_hand():
    """Fails if the exponent or the constants differ: (5 + 13) / 6 = 3, and 3 ** 2 = 9."""
    assert length_factor(13, 2.0) == 9.0
    assert length_factor(40, 0.0) == 1.0
    torch.testing.assert_close(length_factor(torch.tensor([1, 7]), 1.0), torch.tensor([1.0, 2.0]))


def test_length_penalty_changes_the_winner():
    """Fails if alpha has no effect. Short: ln 0.4 = -0.916 over (5 + 2) / 6. Long: ln 0.36 = -1.022 over (5 + 5) / 6.

    With alpha = 1 that is -0.785 against -0.613; with alpha = 0 the short one wins.
    """
    table = {(): {4: 0.4, 5: 0.6}, (5,): {6: 0.6, 5: 0.4}, (5, 6): {6: 1.0}, (5, 6, 6): {6: 1.0}}
    (plain,) = beam_search(Table(table), ONE, beam_size=3, length_penalty=0.0)
    (penalised,) = beam_search(Table(table), ONE, beam_size=3, length_penalty=1.0)
    assert (plain.tokens, penalised.tokens) == ([4], [5, 6, 6, 6])
    assert plain.score == pytest.approx(math.log(0.4))
    assert penalised.score == pytest.approx(math.log(0.36) / (10 / 6))


def test_length_counts_every_token_up_to_eos():
    """Fails if <pad>, where it may be chosen, does not count, or what stands after <eos> does."""
    table = {(): {PAD: 0.6, EOS: 0.4}, (PAD,): {PAD: 1.0}, (PAD, PAD): {EOS: 1.0}}
    (found,) = beam_hypotheses(Table(table), ONE, beam_size=2, length_penalty=1.0, suppress_tokens=())
    assert [hypothesis.tokens for hypothesis in found] == [[PAD, PAD], []]
    assert found[0].score == pytest.approx(math.log(0.6) / (8 / 6))
    assert found[1].score == pytest.approx(math.log(0.4))


def test_a_search_that_fails_leaves_the_model_in_training():
    """Fails if a mode is forgotten on the way out, or dropout is drawn while searching."""
    model = translator("plain").train()
    for search in (greedy, beam_search):
        refused("ids from 0|must be from 0 to 10, got 4 to 11|source must be", search, model, torch.tensor([[4, 11]]))
        assert model.training


def test_a_finished_hypothesis_keeps_its_place():
    """Fails if finished hypotheses are extended, or leave their place to worse beginnings.

    With a beam of 2, the empty sentence (0.6) takes a place for good; the other place follows 4, then 4 4.
    """
    table = {(): {EOS: 0.6, 4: 0.3, 5: 0.1}, (4,): {4: 0.5, 5: 0.5 - 1e-3, EOS: 1e-3}, (4, 4): {4: 0.9, EOS: 0.1}}
    (found,) = beam_hypotheses(Table(table), ONE, beam_size=2, max_new_tokens=8)
    assert [hypothesis.tokens for hypothesis in found] == [[], [4, 4, 4]]
    assert found[0].score == pytest.approx(math.log(0.6))


def test_max_len_is_honoured_and_counts_eos():
    """Fails if a search goes on for ever or stops a token early."""
    endless = {(): {4: 1.0}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}
    for search in (greedy, beam_search):
        (cut,) = search(Table(endless), ONE, max_new_tokens=3)
        assert (cut.tokens, cut.finished) == ([4, 4, 4], False)
        (whole,) = search(Table(endless), ONE, max_new_tokens=4)
        assert (whole.tokens, whole.finished) == ([4, 4, 4], True)


def test_a_hypothesis_that_was_cut_comes_last():
    """Fails if an unfinished sentence wins because it still lacks factors."""
    table = {(): {4: 0.9, EOS: 0.1}, (4,): {4: 1.0}, (4, 4): {4: 1.0}}
    (found,) = beam_hypotheses(Table(table), ONE, beam_size=2, max_new_tokens=2)
    assert [(hypothesis.tokens, hypothesis.finished) for hypothesis in found] == [([], True), ([4, 4], False)]


def test_suppressed_tokens_leave_the_others_their_probability():
    """Fails if a special token is written, or probabilities are made to add up to one again."""
    table = {(): {PAD: 0.5, SOS: 0.2, 4: 0.2, 5: 0.1}}
    for search in (greedy, beam_search):
        (found,) = search(Table(table), ONE)
        assert found.tokens == [4]
        assert found.score == pytest.approx(math.log(0.2))
        assert search(Table(table), ONE, suppress_tokens=(PAD, SOS, 4))[0].tokens == [5]


def translator(kind, seed=0):
    """A small translator in float64 whose sentences end now and then."""
    torch.manual_seed(seed)
    if kind == "transformer":
        encoder = TransformerEncoder([EncoderLayer(D, H, 20) for _ in range(N)])
        decoder = TransformerDecoder([DecoderLayer(D, H, 20) for _ in range(N)])
        return filled(Translator(V, 9, Transformer(encoder, decoder), position=LearnedPositions(D, 20)), seed, 0.6)
    encoder = Encoder(V, GRU(3, 5, bidirectional=True))
    if kind == "attention":
        decoder = AttentionDecoder(9, LSTM(4 + 10, 6, 2), 10, 7)
    else:
        decoder = Decoder(9, GRU(4 + 10, 6), 10, feed_context=True)
    return filled(Seq2Seq(encoder, decoder), seed, 0.6)


TRANSLATORS = pytest.mark.parametrize("kind", ["plain", "attention", "transformer"])
SOURCES = [[4, 5, 6, 7, 8], [9, 10], [6, 6, 4]]


@TRANSLATORS
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_beam_of_one_is_greedy(kind, alpha):
    """Fails if a beam of 1 goes on after <eos>, or keeps a second candidate. Several seeds: some end, some are cut."""
    finished, (ids, real) = set(), pad_batch(SOURCES)
    for seed in range(8):
        model = translator(kind, seed)
        one = greedy(model, ids, real, max_new_tokens=6)
        other = beam_search(model, ids, real, beam_size=1, length_penalty=alpha, max_new_tokens=6)
        for a, b in zip(one, other, strict=True):
            assert (a.tokens, a.finished) == (b.tokens, b.finished)
            assert a.score == pytest.approx(b.score * length_factor(len(b.tokens) + b.finished, alpha))
            finished.add(a.finished)
    assert finished == {True, False}


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("beam_size", [1, 2, 5])
@pytest.mark.parametrize("kind", ["table", "plain", "attention", "transformer"])
def test_the_search_to_be_read_first_finds_the_same(kind, beam_size, seed):
    """Fails if the search for one sentence and that for a batch keep other beginnings, or score them differently."""
    options = {"beam_size": beam_size, "length_penalty": 0.7, "max_new_tokens": 5}
    if kind == "table":
        model, ids, real = Table(random_table(seed, 4)), ONE, None
    else:
        model, (ids, real) = translator(kind, seed), pad_batch(SOURCES)
    together = beam_hypotheses(model, ids, real, **options)
    assert len(together) == len(ids)
    for b, wanted in enumerate(together):
        found = beam_search_one(model, ids[b : b + 1, real[b]] if real is not None else ids, **options)
        assert [(h.tokens, h.finished) for h in found] == [(h.tokens, h.finished) for h in wanted]
        assert [h.score for h in found] == pytest.approx([h.score for h in wanted])


@TRANSLATORS
def test_scores_are_those_of_teacher_forcing(kind):
    """Fails if a hypothesis is scored with another's state, or its state forgets a token: in wide beams rows move."""
    model, (ids, real) = translator(kind, seed=1), pad_batch(SOURCES)
    for i, found in enumerate(beam_hypotheses(model, ids, real, beam_size=5, max_new_tokens=7, suppress_tokens=())):
        for hypothesis in found:
            target = [*hypothesis.tokens, EOS] if hypothesis.finished else hypothesis.tokens
            logits = model(torch.tensor([SOURCES[i]]), None, torch.tensor([[SOS, *target[:-1]]]))
            score = logits[0].log_softmax(-1).gather(1, torch.tensor(target).unsqueeze(1)).sum()
            assert hypothesis.score == pytest.approx(score.item())
        assert len({tuple(hypothesis.tokens) for hypothesis in found}) == 5


@TRANSLATORS
@pytest.mark.parametrize("search", [greedy, beam_search])
def test_a_batch_gives_what_each_sentence_alone_gives(kind, search):
    """Fails if sentences of a batch, or padding, act on each other; translate also keeps the order."""
    model, (ids, real) = translator(kind, seed=2), pad_batch(SOURCES)
    together = search(model, ids, real, max_new_tokens=9)
    alone = [search(model, torch.tensor([source]), None, max_new_tokens=9)[0] for source in SOURCES]
    ordered = translate(model, SOURCES, search, batch_size=2, max_new_tokens=9)
    for a, b, c in zip(together, alone, ordered, strict=True):
        assert a.tokens == b.tokens == c.tokens
        assert a.score == pytest.approx(b.score)
        if kind == "attention":
            torch.testing.assert_close(a.weights, b.weights, **EXACT)
            torch.testing.assert_close(c.weights, b.weights, **EXACT)
        else:
            assert a.weights is None


@pytest.mark.parametrize("search", [greedy, beam_search])
def test_weights_of_a_search_are_those_of_its_own_translation(search):
    """Fails if the weights of another hypothesis, another step or padding are returned."""
    for seed in range(4):
        model, (ids, real) = translator("attention", seed), pad_batch(SOURCES)
        for source, found in zip(SOURCES, search(model, ids, real, max_new_tokens=6), strict=True):
            target_in = torch.tensor([[SOS, *found.tokens]])
            wanted = alignment(model, torch.tensor([source]), None, target_in)[0, : len(found.tokens)]
            torch.testing.assert_close(found.weights, wanted, **EXACT)


# --- every model ------------------------------------------------------------------


def counted():
    """A trigram model of a random text."""
    return NgramModel(3, V, add=0.5).fit(torch.randint(V, (200,), generator=seeded(2)))


def transformer_lm():
    return TransformerLM(V, TransformerEncoder([EncoderLayer(D, H, 20) for _ in range(N)]), position=RoPE(K))


LANGUAGE_MODELS = {
    "n-gram": counted,
    "window": lambda: filled(WindowLM(V, 3, 4, 5)),
    "RNN": lambda: filled(LanguageModel(V, RNN(4, 6))),
    "LSTM": lambda: filled(LanguageModel(V, LSTM(4, 6, 2))),
    "Transformer": lambda: filled(transformer_lm()),
    "GPT": lambda: gpt("alibi"),
}
every_language_model = pytest.mark.parametrize("name", LANGUAGE_MODELS)


def next_log_probs(model, ids):
    """(V,), from everything at once."""
    return (
        model.probs(ids).log() if isinstance(model, NgramModel) else model(torch.tensor([ids]))[0, -1].log_softmax(-1)
    )


@every_language_model
@torch.no_grad()
def test_steps_are_the_whole_text_read_at_once(name):
    """Fails if a state forgets or repeats a token, however the text is cut; or rows of a batch mix."""
    model, ids = LANGUAGE_MODELS[name](), torch.randint(V, (3, 9), generator=seeded(5))
    for pieces in ([1] * 9, [4, 1, 3, 1], [9]):
        state, end = model.start(3), 0
        for part in ids.split(pieces, 1):
            logits, state = model.step(part, state)
            end += part.shape[1]
            wanted = torch.stack([next_log_probs(model, row) for row in ids[:, :end].tolist()])
            torch.testing.assert_close(logits.log_softmax(-1), wanted, **EXACT)


@every_language_model
def test_every_language_model_writes_by_all_ways(name):
    """Fails if a way of writing does not fit a model: with and without what is kept, greedy and by beams."""
    model = LANGUAGE_MODELS[name]()
    plainly = [[], [], []]
    for prompt, text in zip(PROMPTS, plainly, strict=False):
        for _ in range(5):
            text.append(next_log_probs(model, prompt + text).argmax().item())
    assert generate(model, PROMPTS[:3], 5, top_k=1) == plainly
    assert generate(model, PROMPTS[:3], 5, top_k=1, use_cache=False) == plainly
    drawn = [generate(model, PROMPTS, 7, seeded(3), temperature=2.0, use_cache=cached) for cached in (True, False)]
    assert drawn[0] == drawn[1]
    options = {"max_new_tokens": 5, "eos_id": None, "suppress_tokens": ()}
    assert greedy(model, prompt=torch.tensor([PROMPTS[0]]), **options)[0].tokens == plainly[0]
    for found in beam_hypotheses(model, prompt=torch.tensor([PROMPTS[0], PROMPTS[0]]), beam_size=4, **options):
        for hypothesis in found:
            text = [*PROMPTS[0], *hypothesis.tokens]
            log_probs = [next_log_probs(model, text[:n])[text[n]].item() for n in range(len(PROMPTS[0]), len(text))]
            assert hypothesis.score == pytest.approx(sum(log_probs))
        assert len({tuple(hypothesis.tokens) for hypothesis in found}) == 4


@TRANSLATORS
def test_translations_can_be_drawn(kind):
    """Fails if a sampled translation does not read its own source; greedy sampling is `greedy`."""
    model, (ids, real) = translator(kind, seed=3), pad_batch(SOURCES)
    options = {"source": ids, "source_real": real, "eos_id": EOS, "suppress_tokens": (PAD, SOS)}
    found = generate(model, [[SOS]] * 3, 6, top_k=1, **options)
    wanted = greedy(model, ids, real, max_new_tokens=6)
    assert found == [h.tokens + [EOS] * h.finished for h in wanted]
    drawn = generate(model, [[SOS]] * 3, 6, seeded(), temperature=3.0, **options)
    assert drawn != found
    assert not {PAD, SOS} & {token for text in drawn for token in text}


# --- what is refused ----------------------------------------------------------------


def refused(message, call, *arguments, **options):
    """The call ends in a ValueError with that message."""
    with pytest.raises(ValueError, match=message):
        call(*arguments, **options)


@pytest.mark.parametrize("search", [greedy, beam_search, beam_hypotheses])
def test_searches_that_cannot_end_are_refused(search):
    """Fails if a search returns nothing, or everything, in silence."""
    model, ids = translator("plain"), torch.tensor([[4, 5]])
    refused("max_new_tokens must be a whole number of at least 1, got 0", search, model, ids, max_new_tokens=0)
    refused("eos_id 3 is among suppress_tokens: no text could end", search, model, ids, suppress_tokens=(PAD, EOS))
    refused("an id of suppress_tokens must be .* from 0 to 8, got 9", search, model, ids, suppress_tokens=(9,))
    refused(r"source must be a tensor \(B, S\), got one of shape \(2,\)", search, model, torch.tensor([4, 5]))
    refused("with at least one token", search, model, torch.zeros(0, 4).long())
    refused("with at least one token", search, model)
    refused("prompt must be from 0 to 8, got 9 to 9", search, model, ids, prompt=torch.tensor([[9]]))


def test_searches_that_find_nothing_say_so():
    """Fails if an impossible token is written, or a sentence without any is taken for one."""
    table = Table({(): {4: 1.0}})
    refused("no token is possible", greedy, table, ONE, suppress_tokens=(4,))
    refused("no token is possible", beam_search, table, ONE, suppress_tokens=(4,))
    assert beam_hypotheses(table, ONE, suppress_tokens=(4,)) == [[]]
    for wrong in (math.nan, INF):
        model = filled(WindowLM(V, 3, 4, 5))
        with torch.no_grad():
            model.output.bias[4] = wrong
        for search in (greedy, beam_search, beam_search_one):
            refused("NaN", search, model, prompt=torch.tensor([[1]]))


def test_a_prompt_must_fit():
    """Fails if a prompt beyond the positions ends in an error from inside; one that fills them has a next token."""
    options = {"eos_id": None, "suppress_tokens": ()}
    for search in (greedy, beam_search, beam_search_one):
        long = torch.ones(1, CONTEXT + 1, dtype=torch.int64)
        refused("the length of the prompt must be .* from 0 to 16, got 17", search, gpt(), prompt=long, **options)
    assert len(greedy(gpt(), prompt=long[:, 1:], **options)[0].tokens) == 1


def test_as_many_sources_as_prompts():
    """Fails if prompts are spread over sources by accident."""
    model, (ids, real) = translator("plain"), pad_batch(SOURCES)
    refused("the source holds 3 sentences, the prompts 2", generate, model, [[SOS]] * 2, 4, source=ids)
    refused("the source holds 3 .*, the prompts 1", greedy, model, ids, real, prompt=torch.tensor([[SOS]]))


def test_prompts_may_be_tensors():
    """Fails if a tensor of ids, or a list of such, is refused or read otherwise than lists."""
    model, wanted = gpt(), generate(gpt(), [[1, 2], [3, 4]], 3, top_k=1)
    assert generate(model, torch.tensor([[1, 2], [3, 4]]), 3, top_k=1) == wanted
    assert generate(model, [torch.tensor([1, 2]), [3, 4]], 3, top_k=1) == wanted


def test_beam_size_and_length_penalty_are_checked():
    """Fails if an empty beam or a penalty that favours short sentences passes."""
    model, ids = translator("plain"), torch.tensor([[4, 5]])
    for search in (beam_search, beam_search_one):
        refused("beam_size must be a whole number of at least 1, got 0", search, model, ids, beam_size=0)
        refused("length_penalty must be a finite number from 0 on, got -1", search, model, ids, length_penalty=-1)
        refused("length_penalty must be .* got nan", search, model, ids, length_penalty=math.nan)


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_position
def test_on_the_gpu(position):
    """Fails if a cache, a position or a drawn number is made on the CPU. In float64, where TF32 plays no part."""
    model = gpt(position)
    wanted = [generate(model, PROMPTS, 6, seeded(1), top_p=0.9, use_cache=cached) for cached in (True, False)]
    assert wanted[0] == wanted[1]
    prompt = torch.tensor([PROMPTS[0]])
    beams = beam_search(model, prompt=prompt, eos_id=2, suppress_tokens=(), max_new_tokens=6)
    model.cuda()
    for cached in (True, False):
        assert generate(model, PROMPTS, 6, seeded(1), top_p=0.9, use_cache=cached) == wanted[0]
    found = beam_search(model, prompt=prompt.cuda(), eos_id=2, suppress_tokens=(), max_new_tokens=6)
    assert [h.tokens for h in found] == [h.tokens for h in beams]
