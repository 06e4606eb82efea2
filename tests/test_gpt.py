"""GPT against torch.nn's layers, its cache against the whole text read again, its draws against their probabilities."""

import dataclasses
import itertools
import math
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import gpt as gpt_module
from course_lib.gpt import GPT, GPTConfig, KVCache, filter_logits, generate, next_tokens
from course_lib.positions import ALiBi, NoPositions, RelativeBias, RoPE
from course_lib.tasks import number_of_parameters
from course_lib.train import language_model_loss, set_seed, train_epoch

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, H, K, N, V, HIDDEN, CONTEXT = 3, 7, 3, 4, 2, 11, 20, 16
D = H * K
EPS = 0.05  # so large that a norm with another one is seen
CONFIG = GPTConfig(V, CONTEXT, D, N, H, HIDDEN, dropout=0.0, layer_norm_eps=EPS)
GELU_TANH = partial(F.gelu, approximate="tanh")

every_impl = pytest.mark.parametrize("impl", ["sdpa", "math"])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=seeded(seed + sum(shape)), dtype=torch.float64)


def filled(module, seed=0):
    """The module in float64, without a parameter that is zero or one: norms, biases and positions take part."""
    generator = seeded(seed)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and "weight" in name else 0.5 * noise)
    return module


IDS = torch.randint(V, (B, T), generator=seeded(1))
POSITIONS = {
    "learned": lambda: None,
    "rope": lambda: RoPE(K),
    "alibi": lambda: ALiBi(H),
    "relative": lambda: RelativeBias(H, 2),
    "none": NoPositions,
}
every_position = pytest.mark.parametrize("position", POSITIONS)


def model_with(position="learned", seed=0, **changed):
    return filled(GPT(dataclasses.replace(CONFIG, **changed), POSITIONS[position]()), seed)


# --- the network ----------------------------------------------------------------


def torchs(model, activation):
    """torch.nn's encoder with the model's weights."""
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, activation, layer_norm_eps=EPS, batch_first=True, norm_first=True, dtype=torch.float64
    )
    reference = nn.TransformerEncoder(layer, N, nn.LayerNorm(D, eps=EPS), enable_nested_tensor=False).double()
    reference.load_state_dict(model.encoder.state_dict())
    return reference


def logits_by_torch(embedding, reference, ids):
    """Sum of two tables, torch's layers with the other meaning of a mask, and the table again."""
    table, places = embedding.embedding.weight, embedding.position.weight
    x = reference(table[ids] + places[: ids.shape[1]], mask=torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool())
    return x @ table.T


@every_impl
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gpt_is_torchs_pre_ln_encoder_with_a_causal_mask(activation, impl):
    """Fails if a norm, its epsilon, the activation, the mask, the scale or a table differs: outputs and gradients.

    The gradient of the table of embeddings is that of both its uses, since there is one table here too.
    """
    model = model_with(activation=activation)
    reference = torchs(model, {"gelu": F.gelu, "gelu_tanh": GELU_TANH}[activation])
    out, wanted = model(IDS, impl=impl), logits_by_torch(model.embedding, reference, IDS)
    torch.testing.assert_close(out, wanted, **EXACT)
    both = nn.ModuleDict({"embedding": model.embedding, "encoder": reference})
    weighting = draw(B, T, V, seed=9)
    for part, expected in ((model, wanted), (both, None)):
        names, parameters = zip(*part.named_parameters(), strict=True)
        found = torch.autograd.grad(out if expected is not None else wanted, parameters, weighting)
        if expected is not None:
            gradients = dict(zip(names, found, strict=True))
        else:
            torch.testing.assert_close(gradients, dict(zip(names, found, strict=True)), **EXACT)
    assert all(gradient.abs().max() > 1e-6 for gradient in gradients.values())


def test_the_default_activation_is_gpt2s():
    """Fails if a published model would be computed with another activation: the two differ by more than rounding."""
    assert (GPTConfig().activation, GPTConfig().layer_norm_eps, GPTConfig().dropout) == ("gelu_tanh", 1e-5, 0.1)
    x = draw(50)
    torch.testing.assert_close(
        gpt_module.ACTIVATIONS["gelu_tanh"](x),
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        **EXACT,
    )
    torch.testing.assert_close(gpt_module.ACTIVATIONS["gelu"](x), x * (1 + torch.erf(x / math.sqrt(2))) / 2, **EXACT)


@every_position
def test_next_logits_are_the_last_of_forward(position):
    """Fails if another place is taken, or the last norm or the table is skipped."""
    model = model_with(position)
    torch.testing.assert_close(model.next_logits(IDS), model(IDS)[:, -1], **EXACT)
    caches, others = model.caches(B), model.caches(B)
    with torch.no_grad():
        for part in (IDS[:, :3], IDS[:, 3:]):
            torch.testing.assert_close(model.next_logits(part, caches), model(part, others)[:, -1], **EXACT)


@every_position
def test_weights_are_causal_and_those_that_were_used(position):
    """Fails if a later token is looked at, or the weights are not those that the math path computes with.

    Layer 0 is worked out from the parameters: scores of each head, bias, softmax over the tokens up to each.
    """
    model = model_with(position)
    found = model.weights(IDS)
    assert [weights.shape for weights in found] == [(B, H, T, T)] * N
    later = torch.ones(T, T).triu(1).bool()
    for weights in found:
        assert (weights[..., later] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64), **EXACT)
    layer, scheme = model.encoder.layers[0], model.embedding.position
    x = layer.norm1(model.embedding(IDS))
    q, k, _ = F.linear(x, layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias).chunk(3, -1)
    bias = scheme.bias(T, T)
    for h in range(H):
        own = slice(h * K, (h + 1) * K)
        scores = scheme.rotate(q[..., own]) @ scheme.rotate(k[..., own]).transpose(1, 2) / K**0.5
        scores = scores if bias is None else scores + bias[h]
        torch.testing.assert_close(found[0][:, h], scores.masked_fill(later, -torch.inf).softmax(-1), **EXACT)


def test_the_start_is_gpt2s():
    """Fails if a weight is not drawn from N(0, 0.02^2), or what writes into the residual stream is not divided.

    The spread of n normal numbers is within 5 / sqrt(2 n) of its own size: here at most 3 percent, while dividing by
    the root of 2 N = 6 makes 59 percent. With layers of other shares (N in the place of 2 N) it would be off by 41.
    """
    set_seed(0)
    model = GPT(GPTConfig(400, 96, 128, 3, 4, layer_norm_eps=EPS))
    for name, parameter in model.named_parameters():
        x = parameter.detach()
        if name.endswith("bias"):
            assert (x == 0).all(), name
        elif "norm" in name:
            assert (x == 1).all(), name
        else:
            std = 0.02 / math.sqrt(6) if "out_proj" in name or "linear2" in name else 0.02
            assert abs(x.std().item() / std - 1) < 5 / math.sqrt(2 * (x.numel() - 1)) < 0.04, name
            assert abs(x.mean().item()) < 5 * std / math.sqrt(x.numel()), name
    assert {part.eps for part in model.modules() if isinstance(part, nn.LayerNorm)} == {EPS}


def test_the_loss_at_the_start_is_near_that_of_a_guess():
    """Fails if the table or the scale of the embeddings starts large (torch's N(0, 1) gives a loss above 20).

    A logit is a product of a normed vector (length sqrt(D)) and a row of spread 0.02: spread 0.02 sqrt(128) = 0.23, so
    the mean loss lies about 0.23^2 / 2 = 0.03 above log V; the mean over 2048 targets strays by 0.005.
    """
    set_seed(0)
    model, ids = GPT(GPTConfig(400, 64, 128, 2, 4)).eval(), torch.randint(400, (32, 65), generator=seeded())
    with torch.no_grad():
        found = language_model_loss(model, (ids[:, :-1], ids[:, 1:]))
    assert abs(found["loss"].item() / found["count"] - math.log(400)) < 0.1


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
    ],
)
def test_published_models_have_as_many_parameters_as_published(name, size):
    """Fails if the output layer has weights of its own, or a size, a bias or a norm is another.

    By formula: V D + S D for the tables, 12 D^2 + 13 D for each layer, 2 D for the last norm.
    """
    config = GPTConfig.from_name(name)
    D = config.d_model
    by_formula = (config.vocab_size + config.max_len) * D + config.num_layers * (12 * D * D + 13 * D) + 2 * D
    assert by_formula == size
    assert config.nhead * 64 == D, "heads of width 64, which no count of parameters shows"
    small = dataclasses.replace(config, num_layers=2)  # on "meta" no number is drawn
    with torch.device("meta"):
        model = GPT(small)
    assert number_of_parameters(model) == size - (config.num_layers - 2) * (12 * D * D + 13 * D)


def test_dropout_stands_in_embeddings_sublayers_and_weights():
    """Fails if a share is not handed down: with 0.3 training is random, evaluation is the model without."""
    model = model_with(dropout=0.3)
    assert model.embedding.dropout == 0.3
    assert all(layer.dropout == layer.self_attn.dropout == 0.3 for layer in model.encoder.layers)
    assert not torch.equal(model(IDS), model(IDS))
    torch.testing.assert_close(model.eval()(IDS), model_with()(IDS), **EXACT)


def test_gpt_learns_in_the_training_loop():
    """Fails if a token's logits do not depend on those before it: counting on from a random start, modulo 10."""
    set_seed(0)
    model = GPT(GPTConfig(10, 8, 32, 1, 4, dropout=0.0, activation="gelu"))
    optimizer, generator = torch.optim.Adam(model.parameters(), 1e-2), seeded()

    def batch():
        rows = (torch.randint(10, (16, 1), generator=generator) + torch.arange(9)) % 10
        return rows[:, :-1], rows[:, 1:]

    losses = [train_epoch(model, [batch()], language_model_loss, optimizer)["loss"] for _ in range(50)]
    assert losses[0] > 2.0
    assert losses[-1] < 0.05
    assert generate(model, [[3, 4], [8, 9, 0]], 5, top_k=1) == [[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]


# --- the cache ------------------------------------------------------------------


@every_impl
@every_position
@pytest.mark.parametrize("pieces", [(1,) * T, (3, 2, 1, 1), (T,), (1, T - 1), (T - 1, 1)], ids=str)
@torch.no_grad()
def test_with_a_cache_every_step_is_the_whole_text_read_again(pieces, position, impl):
    """Fails if keys are written one place too far, or overwrite others; if a position starts at 0 again in the

    embeddings, the rotation or the bias; if a token of a piece sees a later one of it; or rows of a batch mix.
    """
    model = model_with(position)
    wanted, caches, done = model(IDS, impl=impl), model.caches(B), 0
    for piece in pieces:
        out = model(IDS[:, done : done + piece], caches, impl)
        torch.testing.assert_close(out, wanted[:, done : done + piece], **EXACT)
        done += piece
        assert [cache.length for cache in caches] == [done] * N


@torch.no_grad()
def test_caches_of_two_texts_do_not_touch_each_other():
    """Fails if layers or calls share a cache."""
    model, others = model_with("rope"), torch.randint(V, (B, T), generator=seeded(5))
    first, second = model.caches(B), model.caches(B)
    parts = [model(ids[:, t : t + 1], caches) for t in range(T) for ids, caches in ((IDS, first), (others, second))]
    torch.testing.assert_close(torch.cat(parts[::2], 1), model(IDS), **EXACT)
    torch.testing.assert_close(torch.cat(parts[1::2], 1), model(others), **EXACT)


def test_caches_have_the_models_sizes_and_type():
    """Fails if a size is another, or the numbers are rounded to float32 in a float64 model."""
    for cache in (caches := model_with().caches(5)):
        assert cache.keys.shape == cache.values.shape == (5, H, CONTEXT, K)
        assert cache.keys.dtype == cache.values.dtype == torch.float64
        assert cache.length == 0
    assert len({id(cache) for cache in caches}) == N
    assert [cache.keys.shape[2] for cache in GPT(CONFIG).caches(1, max_len=4)] == [4] * N
    assert GPT(CONFIG).bfloat16().caches(1)[0].values.dtype == torch.bfloat16


def test_what_is_appended_comes_back_in_order_and_in_place():
    """Fails if keys and values change places, an older one is lost, or memory is taken anew for each token."""
    cache, k, v = KVCache(2, 3, 7, 4), draw(2, 3, 6, 4).float(), draw(2, 3, 6, 4, seed=1).float()
    keys, values = cache.keys.data_ptr(), cache.values.data_ptr()
    assert keys != values
    assert cache.length == 0
    for start, end in ((0, 3), (3, 4), (4, 4), (4, 6)):
        found = cache.append(k[:, :, start:end], v[:, :, start:end])
        assert cache.length == end
        torch.testing.assert_close(found, (k[:, :, :end], v[:, :, :end]), rtol=0, atol=0)
        assert (found[0].data_ptr(), found[1].data_ptr()) == (cache.keys.data_ptr(), cache.values.data_ptr())
        assert (cache.keys.data_ptr(), cache.values.data_ptr()) == (keys, values)
    assert cache.keys.shape == (2, 3, 7, 4)
    assert cache.keys.dtype == torch.get_default_dtype()


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((2, 3, 4, 4), r"keys \(2, 3, 4, 4\) and values .* do not fit after 4 tokens in a cache of \(2, 3, 7, 4\)"),
        ((1, 3, 1, 4), r"keys \(1, 3, 1, 4\) and"),
        ((2, 1, 1, 4), r"keys \(2, 1, 1, 4\) and"),
        ((2, 3, 1, 1), r"keys \(2, 3, 1, 1\) and"),
    ],
)
def test_what_does_not_fit_into_a_cache_is_refused_and_leaves_it_as_it_was(shape, message):
    """Fails if one text's keys are spread over a batch by accident, or a cache that is full overwrites or grows."""
    cache = KVCache(2, 3, 7, 4)
    cache.append(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 4))
    with pytest.raises(ValueError, match=message):
        cache.append(torch.zeros(shape), torch.zeros(shape))
    with pytest.raises(ValueError, match=r"keys \(2, 3, 1, 4\) and values \(2, 1, 1, 4\) do not fit"):
        cache.append(torch.zeros(2, 3, 1, 4), torch.zeros(2, 1, 1, 4))
    assert cache.length == 4
    found, _ = cache.append(torch.ones(2, 3, 3, 4), torch.ones(2, 3, 3, 4))
    assert (found == 1).all()


@pytest.mark.parametrize("position", ["learned", "rope"])
@torch.no_grad()
def test_a_text_longer_than_the_context_is_refused(position):
    """Fails if the context ends silently: at one token too many, with and without a cache, and not one earlier."""
    model, ids = model_with(position), torch.ones(1, CONTEXT + 1).long()
    assert model(ids[:, 1:]).shape == (1, CONTEXT, V)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids)
    caches = model.caches(1)
    model(ids[:, :10], caches)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids[:, :7], caches)
    assert model(ids[:, :6], caches).shape == (1, 6, V)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model.next_logits(ids[:, :1], caches)
    short = model.caches(1, max_len=4)
    with pytest.raises(
        ValueError, match=r"keys \(1, 3, 5, 4\) .* do not fit after 0 tokens in a cache of \(1, 3, 4, 4\)"
    ):
        model(ids[:, :5], short)


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
def test_filter_logits_worked_by_hand(top_k, top_p, kept):
    """Fails if one token too many or too few stays, equals are cut by top-k, or top-p does not see what top-k left.

    Probabilities 0.15, 0.4, 0 (impossible), 0.3, 0.15; a logit of minus infinity stays one.
    """
    p = torch.tensor([0.15, 0.4, 0.0, 0.3, 0.15], dtype=torch.float64)
    logits = p.log() + 3.0
    before = logits.clone()
    found = filter_logits(logits, top_k, top_p)
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
def test_filter_logits_is_the_definition_on_random_rows(top_k, top_p):
    """Fails if rows mix, or what is cut is put back in sorted order. V = 8, any number of axes before it."""
    logits = 2 * draw(4, 25, 8)
    found = filter_logits(logits, top_k, top_p)
    assert found.shape == logits.shape
    for row, out in zip(logits.flatten(0, 1).tolist(), found.flatten(0, 1).tolist(), strict=True):
        wanted = kept_plainly(row, top_k, None if top_p == 1.0 else top_p)
        assert out == [value if i in wanted else -INF for i, value in enumerate(row)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 0}, r"top_k must be at least 1, got 0"),
        ({"top_k": -1}, r"top_k must be at least 1, got -1"),
        ({"top_p": 0.0}, r"top_p must be above 0 and at most 1, got 0.0"),
        ({"top_p": 1.1}, r"top_p must be above 0 and at most 1, got 1.1"),
        ({"top_p": math.nan}, r"top_p must be above 0 and at most 1, got nan"),
        ({"top_k": 1, "top_p": 2}, r"top_p must be above 0 and at most 1, got 2"),
        ({"temperature": 0}, r"temperature must be above 0 and finite, got 0; top_k=1 takes the likeliest"),
        ({"temperature": -1.0}, r"temperature must be above 0 and finite, got -1.0"),
        ({"temperature": INF}, r"temperature must be above 0 and finite, got inf"),
        ({"temperature": math.nan}, r"temperature must be above 0 and finite, got nan"),
        ({"temperature": 0, "top_k": 1}, r"temperature must be above 0 and finite, got 0"),
    ],
)
def test_bad_options_of_drawing_are_named(options, message):
    """Fails if a temperature of 0 divides by zero, or a filter that leaves nothing passes."""
    for call in (lambda: next_tokens(draw(2, V), **options), lambda: generate(GPT(CONFIG), [[1]], 2, **options)):
        with pytest.raises(ValueError, match=message):
            call()
    if "temperature" not in options:
        with pytest.raises(ValueError, match=message):
            filter_logits(draw(2, V), **options)


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
    found = next_tokens(LOGITS.float().expand(n, -1), seeded(seed), **options)
    assert (found.shape, found.dtype) == ((n,), torch.int64)
    for token, count in enumerate(found.bincount(minlength=6).tolist()):
        assert abs(count - n * p[token]) <= 5 * math.sqrt(n * p[token] * (1 - p[token])), token


def test_rows_are_drawn_apart():
    """Fails if a row's token comes from another row's distribution, or all rows share one number."""
    logits = torch.full((V, V), -INF).fill_diagonal_(0.0)
    assert next_tokens(logits, seeded()).tolist() == list(range(V))
    assert len(set(next_tokens(torch.zeros(50, V), seeded()).tolist())) > 5


def test_the_generator_alone_decides():
    """Fails if torch's own generator is used in place of the one given, or none is used up."""
    logits, generator = draw(50, V), seeded(3)
    torch.manual_seed(0)
    first = next_tokens(logits, generator)
    assert not torch.equal(next_tokens(logits, generator), first), "the generator goes on"
    torch.manual_seed(1)
    assert torch.equal(next_tokens(logits, seeded(3)), first)
    torch.manual_seed(3)
    assert torch.equal(next_tokens(logits), first), "without one torch's own is used"
    state = generator.get_state()
    assert torch.equal(next_tokens(logits, generator, top_k=1), logits.argmax(-1))
    assert torch.equal(generator.get_state(), state), "greedy draws nothing"


def test_the_limits_of_the_temperature():
    """Fails if a low temperature is not greedy, or a high one does not make all tokens alike: numbers overflow."""
    logits = draw(2000, V).float()
    for temperature in (1e-3, 1e-30, 1e-44):
        found = next_tokens(logits, seeded(), temperature=temperature)
        gap = logits.topk(2).values.diff().abs().squeeze(1) > 0.04  # exp(-40) at the highest of these temperatures
        assert gap.sum() > 1800
        assert torch.equal(found[gap], logits.argmax(-1)[gap])
    counts = next_tokens(logits, seeded(), temperature=1e9).bincount(minlength=V)
    assert (counts - 2000 / V).abs().max() <= 5 * math.sqrt(2000 / V * (1 - 1 / V))


@pytest.mark.parametrize(("u", "wanted"), [(0.0, 1), (1 - 2**-53, 3)])
def test_the_ends_of_the_uniform_numbers_draw_possible_tokens(u, wanted, monkeypatch):
    """Fails if u = 0 draws an impossible first token, or u next to 1 an impossible last one or none at all."""
    monkeypatch.setattr(torch, "rand", lambda *shape, dtype, generator: torch.full(shape, u, dtype=dtype))
    for seed in range(50):
        logits = torch.cat([torch.full((1, 1), -INF), draw(1, 3, seed=seed).float(), torch.full((1, 1), -INF)], 1)
        assert next_tokens(logits).tolist() == [wanted]


# --- writing ----------------------------------------------------------------------

PROMPTS = [[3, 1, 8, 2], [5], [9, 0, 4, 6, 7, 2, 1], [2, 2]]


def writer(position="learned", **changed):
    """A model whose layers outweigh the embeddings, so that its texts are no repetitions of one token."""
    model = model_with(position, seed=6, **changed)
    with torch.no_grad():
        for parameter in model.encoder.layers.parameters():
            parameter.mul_(3)
    return model


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
    model = writer(position)
    for steps in (1, 6):
        wanted = [written_plainly(model, prompt, steps) for prompt in PROMPTS]
        assert generate(model, PROMPTS, steps, top_k=1, use_cache=use_cache) == wanted
        assert generate(model, PROMPTS[:1], steps, top_k=1, use_cache=use_cache) == wanted[:1]
    assert len({tuple(text) for text in wanted}) == len(PROMPTS), "texts that differ, or rows could be exchanged"


@pytest.mark.parametrize("options", [{}, {"temperature": 1.5, "top_k": 5}, {"top_p": 0.8}], ids=str)
def test_with_and_without_a_cache_the_same_tokens_are_drawn(options):
    """Fails if the cache changes a probability or the number of draws; or an option is not handed on."""
    model = writer("rope")
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
    model, n = model_with(vocab_size=3, seed=4), 4000
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
    model = writer()
    whole = generate(model, PROMPTS, 9, top_k=1)
    calls, next_logits = [], model.next_logits
    monkeypatch.setattr(model, "next_logits", lambda *args: calls.append(1) or next_logits(*args))
    seen_cut, seen_whole = False, False
    for stop in range(V):
        wanted = [text[: text.index(stop) + 1] if stop in text else text for text in whole]
        assert generate(model, PROMPTS, 9, top_k=1, stop=stop, use_cache=use_cache) == wanted
        seen_cut |= any(len(text) < 9 for text in wanted)
        seen_whole |= any(len(text) == 9 for text in wanted)
    assert seen_cut
    assert seen_whole
    calls.clear()
    first = whole[2][0]
    assert generate(model, [PROMPTS[2]], 9, top_k=1, stop=first, use_cache=use_cache) == [[first]]
    assert len(calls) == 1, "nothing is computed after every text has ended"
    prompt = [*PROMPTS[0], first]
    assert generate(model, [prompt], 3, top_k=1, stop=first) == [
        text[: text.index(first) + 1] if first in text else text for text in [written_plainly(model, prompt, 3)]
    ]


def test_no_steps_write_nothing():
    """Fails if a token is written anyway, or an empty text is left out."""
    for prompts in (PROMPTS, PROMPTS[:1]):
        assert generate(model_with(), prompts, 0) == [[] for _ in prompts]
        assert generate(model_with(), prompts, 0, stop=2) == [[] for _ in prompts]


def test_writing_to_the_end_of_the_context():
    """Fails if the last place of the context cannot be used, or one more passes."""
    model = writer()
    assert generate(model, [[1] * 6], CONTEXT - 6, top_k=1) == [written_plainly(model, [1] * 6, CONTEXT - 6)]
    with pytest.raises(ValueError, match=r"a prompt of 6 tokens and 11 steps are more than the context of 16"):
        generate(model, [[1], [1] * 6], CONTEXT - 5)


@pytest.mark.parametrize(
    ("prompts", "steps", "message"),
    [
        ([], 3, r"wanted prompts of at least one token and steps from 0, got lengths \[\] and steps=3"),
        ([[1, 2], []], 3, r"got lengths \[2, 0\] and steps=3"),
        ([[1, 2]], -1, r"got lengths \[2\] and steps=-1"),
    ],
)
def test_prompts_that_cannot_be_continued_are_refused(prompts, steps, message):
    """Fails if the error comes from inside torch."""
    with pytest.raises(ValueError, match=message):
        generate(GPT(CONFIG), prompts, steps)


@pytest.mark.parametrize("fails", [False, True])
def test_while_writing_dropout_is_off_and_modes_come_back(fails, monkeypatch):
    """Fails if texts of a model in training are random, or a model is left in another mode, also after an error."""
    model, wanted = writer(dropout=0.5), generate(writer(), PROMPTS, 6, top_k=1)
    model.train()
    model.encoder.layers[1].eval()
    modes = [part.training for part in model.modules()]
    assert len(set(modes)) == 2
    if fails:
        calls, next_logits = iter([None, None]), model.next_logits
        monkeypatch.setattr(model, "next_logits", lambda *args: (next(calls), next_logits(*args))[1])
        with pytest.raises(StopIteration):
            generate(model, PROMPTS, 6, top_k=1)
    else:
        assert generate(model, PROMPTS, 6, top_k=1) == wanted
    assert [part.training for part in model.modules()] == modes


def test_writing_keeps_no_gradient(monkeypatch):
    """Fails if the graph of every token is kept, in logits or in the cache; a caller's gradients stay on."""
    model, seen = model_with(), []

    def watched(ids, caches):
        logits = GPT.next_logits(model, ids, caches)
        seen.extend([logits, *(part for cache in caches for part in (cache.keys, cache.values))])
        return logits

    monkeypatch.setattr(model, "next_logits", watched)
    generate(model, PROMPTS, 3)
    assert len(seen) == (7 + 3 - 1) * (1 + 2 * N)
    assert not any(x.requires_grad for x in seen)
    assert torch.is_grad_enabled()
    assert all(parameter.grad is None for parameter in model.parameters())


def test_with_a_cache_each_token_is_read_once(monkeypatch):
    """Fails if the cache is filled and the whole text is read all the same."""
    model, lengths = model_with(), []
    next_logits = model.next_logits
    monkeypatch.setattr(
        model, "next_logits", lambda ids, caches: lengths.append(ids.shape[1]) or next_logits(ids, caches)
    )
    generate(model, [[1, 2, 3], [1] * 5], 2)
    assert lengths == [3, 1, 1, 1]
    lengths.clear()
    generate(model, [[1, 2, 3], [1] * 5], 2, use_cache=False)
    assert lengths == [3, 4, 5, 6]


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GPT(CONFIG)(IDS.float()), r"ids must be \(B, T\) int64, got \(3, 7\) torch.float32"),
        (lambda: GPT(CONFIG)(IDS[0]), r"ids must be \(B, T\) int64, got \(7,\) torch.int64"),
        (lambda: GPT(CONFIG)(IDS, impl="loop"), r"impl must be one of sdpa, math, got 'loop'"),
        (
            lambda: (m := GPT(CONFIG))(IDS, m.caches(B)[:1]),
            r"one a layer, go without a mask: got 1 caches for 2 layers",
        ),
        (lambda: GPT(CONFIG)(IDS, []), r"got 0 caches for 2 layers"),
        (lambda: (m := GPT(CONFIG))(IDS, m.caches(B + 1)), r"keys \(3, 3, 7, 4\) .* do not fit after 0 tokens"),
        (lambda: GPT(CONFIG).caches(0), r"sizes must be at least 1, got batch_size=0, nhead=3, max_len=16, head_dim=4"),
        (lambda: GPT(CONFIG).caches(1, 0), r"sizes must be at least 1, got batch_size=1, nhead=3, max_len=0"),
        (lambda: KVCache(1, 2, 3, 0), r"sizes must be at least 1, got .* head_dim=0"),
        (lambda: GPTConfig.from_name("gpt3"), r"name must be one of gpt2, gpt2-medium, .*, got 'gpt3'"),
        (lambda: made(activation="relu"), r"activation must be one of gelu, gelu_tanh, got 'relu'"),
        (lambda: made(nhead=5), r"embed_dim must be a multiple of num_heads, got embed_dim=12 and num_heads=5"),
        (lambda: made(nhead=0), r"got embed_dim=12 and num_heads=0"),
        (lambda: made(num_layers=0), r"wanted at least one layer"),
        (lambda: made(vocab_size=0), r"vocab_size must be at least 1, got 0"),
        (lambda: made(max_len=0), r"max_len must be at least 1, got 0"),
        (lambda: made(d_model=0), r"embed_dim must be a multiple of num_heads, got embed_dim=0"),
        (lambda: made(dim_feedforward=0), r"dim_feedforward must be at least 1, got 0"),
        (lambda: made(dim_feedforward=-1), r"dim_feedforward must be at least 1, got -1"),
        (lambda: made(dropout=1.0), r"dropout must be from 0 to below 1, got 1.0"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


def made(**changed):
    return GPT(dataclasses.replace(CONFIG, **changed))


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_position
def test_on_the_gpu(position):
    """Fails if a cache, a position or a drawn number is made on the CPU. In float64, where TF32 plays no part."""
    model = writer(position)
    wanted = [generate(model, PROMPTS, 6, seeded(1), top_p=0.9, use_cache=cached) for cached in (True, False)]
    assert wanted[0] == wanted[1]
    model.cuda()
    for cached in (True, False):
        assert generate(model, PROMPTS, 6, seeded(1), top_p=0.9, use_cache=cached) == wanted[0]
