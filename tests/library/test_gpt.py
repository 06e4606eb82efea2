"""GPT against torch.nn's layers, and its cache against the whole text read again."""

import copy
import dataclasses
import math
import re
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import gpt as gpt_module
from course_lib.attention import KVCache, attention_backend, record_attention
from course_lib.functional import Dropout
from course_lib.generate import generate
from course_lib.gpt import GPT, GPTConfig
from course_lib.positional import ALiBi, LearnedPositions, PositionScheme, RelativeBias, RoPE, Sinusoidal
from course_lib.train import language_model_loss, set_seed, train_epoch
from course_lib.utils import number_of_parameters
from course_lib.utils.huggingface import rename_key

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, H, K, N, V, HIDDEN, CONTEXT = 3, 7, 3, 4, 2, 11, 20, 16
D = H * K
EPS = 0.05  # so large that a norm with another one is seen
CONFIG = GPTConfig(V, CONTEXT, D, N, H, HIDDEN, dropout=0.0, norm_eps=EPS)
GELU_TANH = partial(F.gelu, approximate="tanh")

every_backend = pytest.mark.parametrize("backend", ["sdpa", "math"])


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
            is_norm = re.search(r"(norm|ln\d)\.weight", name)
            parameter.copy_(1 + 0.3 * noise if is_norm else 0.5 * noise)
    return module


IDS = torch.randint(V, (B, T), generator=seeded(1))
POSITIONS = {
    "learned": lambda: None,
    "rope": lambda: RoPE(K),
    "alibi": lambda: ALiBi(H),
    "relative": lambda: RelativeBias(H, 2),
    "none": PositionScheme,
}
every_position = pytest.mark.parametrize("position", POSITIONS)


def model_with(position="learned", seed=0, **changed):
    return filled(GPT(dataclasses.replace(CONFIG, **changed), POSITIONS[position]()), seed)


# --- the network ----------------------------------------------------------------


TORCHS = (("attn", "self_attn"), ("ln", "norm"), (r"mlp\.0", "linear1"), (r"mlp\.2", "linear2"))


def torchs(model, activation):
    """torch.nn's encoder with the model's weights."""
    layer = nn.TransformerEncoderLayer(
        D, H, HIDDEN, 0.0, activation, layer_norm_eps=EPS, batch_first=True, norm_first=True, dtype=torch.float64
    )
    reference = nn.TransformerEncoder(layer, N, nn.LayerNorm(D, eps=EPS), enable_nested_tensor=False).double()
    weights = {f"layers.{name}": weight for name, weight in model.blocks.state_dict().items()}
    weights |= {f"norm.{name}": weight for name, weight in model.norm.state_dict().items()}
    reference.load_state_dict({rename_key(name, TORCHS): weight for name, weight in weights.items()})
    return reference


def logits_by_torch(model, reference, ids):
    """Sum of two tables, torch's layers with the other meaning of a mask, and the table again."""
    table, places = model.embedding.weight, model.positions
    x = reference(table[ids] + places[: ids.shape[1]], mask=torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool())
    return x @ table.T


@every_backend
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_gpt_is_torchs_pre_ln_encoder_with_a_causal_mask(activation, backend):
    """Fails if a norm, its epsilon, the activation, the mask, the scale or a table differs: outputs and gradients.

    The gradient of the table of embeddings is that of both its uses, since there is one table here too.
    """
    model = model_with(activation=activation)
    reference = torchs(model, {"gelu": F.gelu, "gelu_tanh": GELU_TANH}[activation])
    with attention_backend(backend):
        out = model(IDS)
    wanted = logits_by_torch(model, reference, IDS)
    torch.testing.assert_close(out, wanted, **EXACT)
    tables, weighting = (model.embedding.weight, model.positions), draw(B, T, V, seed=9)
    names = [rename_key(name, TORCHS) for name, _ in model.blocks.named_parameters()]
    ours = [*tables, *model.norm.parameters(), *model.blocks.parameters()]
    layers = dict(reference.layers.named_parameters())
    theirs = [*tables, *reference.norm.parameters(), *(layers[name] for name in names)]
    found = torch.autograd.grad(out, ours, weighting)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, theirs, weighting), **EXACT)
    assert all(gradient.abs().max() > 1e-6 for gradient in found)


def test_the_default_activation_is_gpt2s():
    """Fails if a published model would be computed with another activation: the two differ by more than rounding."""
    assert (GPTConfig().activation, GPTConfig().norm_eps, GPTConfig().dropout) == ("gelu_tanh", 1e-5, 0.1)
    x = draw(50)
    torch.testing.assert_close(
        gpt_module.ACTIVATIONS["gelu_tanh"]()(x),
        0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
        **EXACT,
    )
    torch.testing.assert_close(gpt_module.ACTIVATIONS["gelu"]()(x), x * (1 + torch.erf(x / math.sqrt(2))) / 2, **EXACT)


@every_position
@torch.no_grad()
def test_a_step_gives_the_last_logits_of_forward(position):
    """Fails if another place is taken, or the last norm or the table is skipped."""
    model = model_with(position)
    torch.testing.assert_close(model.step(IDS, model.start(B))[0], model(IDS)[:, -1], **EXACT)
    state, caches = model.start(B), model.start(B)["kv_caches"]
    for part in (IDS[:, :3], IDS[:, 3:]):
        logits, state = model.step(part, state)
        torch.testing.assert_close(logits, model(part, caches)[:, -1], **EXACT)


@every_position
def test_attention_maps_are_causal_and_those_that_were_used(position):
    """Fails if a later token is looked at, or the scheme does not reach the attention of every block.

    Block 0 is worked out from the parameters: scores of each head, bias, softmax over the tokens up to each.
    """
    model = model_with(position)
    with record_attention(model) as maps:
        model(IDS)
    assert [weights.shape for weights in maps.values()] == [(B, H, T, T)] * N
    later = torch.ones(T, T).triu(1).bool()
    for weights in maps.values():
        assert (weights[..., later] == 0).all()
        torch.testing.assert_close(weights.sum(-1), torch.ones(B, H, T, dtype=torch.float64), **EXACT)
    block, scheme = model.blocks[0], model.position or PositionScheme()
    x = block.ln1(model.embed(IDS))
    q, k, _ = F.linear(x, block.attn.in_proj_weight, block.attn.in_proj_bias).chunk(3, -1)
    bias = scheme.bias(T, T)
    for h in range(H):
        own = slice(h * K, (h + 1) * K)
        scores = scheme.rotate(q[..., own]) @ scheme.rotate(k[..., own]).transpose(1, 2) / K**0.5
        scores = scores if bias is None else scores + bias[h]
        wanted = scores.masked_fill(later, -torch.inf).softmax(-1)
        torch.testing.assert_close(maps["blocks.0.attn"][:, h], wanted, **EXACT)


@pytest.mark.parametrize("position", [lambda: Sinusoidal(D, 40), lambda: LearnedPositions(D, 40)])
@torch.no_grad()
def test_schemes_that_add_stand_at_the_bottom_once(position):
    """Fails if a vector of position is left out, or added in every block too; the table's end is the longest text."""
    model = filled(GPT(CONFIG, position()))
    assert model.max_len == 40
    bare = filled(GPT(CONFIG, PositionScheme()))
    bare.load_state_dict({name: x for name, x in model.state_dict().items() if "position" not in name})
    rows = model.position.add(torch.zeros(1, T, D, dtype=torch.float64))
    x = bare.embed(IDS) + rows
    for block in bare.blocks:
        x = block(x)
    torch.testing.assert_close(model(IDS), bare.head(bare.norm(x)), **EXACT)


def mlp_by_hand(block, x, activation):
    up, down = block.mlp[0], block.mlp[-1]
    return F.linear(activation(F.linear(x, up.weight, up.bias)), down.weight, down.bias)


@pytest.mark.parametrize(
    ("changed", "activation", "parameters"),
    [
        ({"activation": "relu"}, F.relu, 0),
        ({"activation": "relu_squared"}, lambda x: F.relu(x) ** 2, 0),
        ({"activation": "swiglu"}, lambda x: x[..., :HIDDEN] * F.silu(x[..., HIDDEN:]), N * (D + 1) * HIDDEN),
        ({"norm": "rmsnorm"}, GELU_TANH, -(2 * N + 1) * D),
        ({"bias": False}, GELU_TANH, -N * (3 * D + D + HIDDEN + D) - (2 * N + 1) * D),
        ({"tied": False}, GELU_TANH, V * D),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
@torch.no_grad()
def test_what_may_differ_from_gpt2(changed, activation, parameters):
    """Fails if an option is passed over, or adds a weight where it has none."""
    model = model_with(**changed)
    assert number_of_parameters(model) == number_of_parameters(GPT(CONFIG)) + parameters
    block, x = model.blocks[1], draw(B, T, D)

    def norm(part, x):
        if "norm" in changed:
            return F.rms_norm(x, (D,), part.weight, EPS)
        return F.layer_norm(x, (D,), part.weight, part.bias, EPS)

    middle = x + block.attn(norm(block.ln1, x), causal=True)
    torch.testing.assert_close(block(x), middle + mlp_by_hand(block, norm(block.ln2, middle), activation), **EXACT)
    assert (model.head.weight is model.embedding.weight) == model.config.tied
    assert torch.equal(model(IDS), model(IDS))


def test_the_start_is_gpt2s():
    """Fails if a weight is not drawn from N(0, 0.02^2), or what writes into the residual stream is not divided.

    The spread of n normal numbers is within 5 / sqrt(2 n) of its own size: here at most 3 percent, while dividing by
    the root of 2 N = 6 makes 59 percent. With layers of other shares (N in the place of 2 N) it would be off by 41.
    """
    set_seed(0)
    model = GPT(GPTConfig(400, 96, 128, 3, 4, norm_eps=EPS))
    for name, parameter in model.named_parameters():
        x = parameter.detach()
        if name.endswith("bias"):
            assert (x == 0).all(), name
        elif "norm" in name or "ln" in name:
            assert (x == 1).all(), name
        else:
            std = 0.02 / math.sqrt(6) if "out_proj" in name or "mlp.2" in name else 0.02
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
    assert config.num_heads * 64 == D, "heads of width 64, which no count of parameters shows"
    small = dataclasses.replace(config, num_layers=2)  # on "meta" no number is drawn
    with torch.device("meta"):
        model = GPT(small)
    assert number_of_parameters(model) == size - (config.num_layers - 2) * (12 * D * D + 13 * D)


def test_the_tie_holds_wherever_the_model_goes():
    """Fails if the table and the output layer become two parameters, which training would drive apart."""
    model, state = GPT(CONFIG), GPT(CONFIG).state_dict()
    with torch.device("meta"):
        empty = GPT(CONFIG)
    empty.to_empty(device="cpu").load_state_dict(state)
    for other in (empty, copy.deepcopy(model).double(), copy.deepcopy(model)):
        assert other.head.weight is other.embedding.weight
        assert number_of_parameters(other) == number_of_parameters(model)
    assert torch.equal(empty.head.weight, state["embedding.weight"])


def test_weights_that_are_assigned_stay_tied(tmp_path):
    """Fails if loading with assign=True makes two tensors of the table: a checkpoint drops the trained one."""
    state = {name: x.clone() for name, x in GPT(CONFIG).state_dict().items()}
    with torch.device("meta"):
        model, part_of_another = GPT(CONFIG), nn.Sequential(GPT(CONFIG))
    part_of_another.load_state_dict({f"0.{name}": x for name, x in state.items()}, assign=True)
    model.load_state_dict(state, assign=True)
    for tied in (model, copy.deepcopy(model), part_of_another[0]):
        assert tied.head.weight is tied.embedding.weight
        assert torch.equal(tied.head.weight, state["embedding.weight"])
    with torch.no_grad():
        model.head.weight += 1
    model.save_pretrained(tmp_path)
    torch.testing.assert_close(GPT.from_pretrained(tmp_path)(IDS), model.eval()(IDS))
    untied = GPT(dataclasses.replace(CONFIG, tied=False))
    untied.load_state_dict(state | {"head.weight": torch.ones(V, D)}, assign=True)
    assert (untied.head.weight == 1).all()
    assert torch.equal(untied.embedding.weight, state["embedding.weight"])


def test_dropout_stands_in_embeddings_sublayers_and_weights():
    """Fails if a probability is not handed down: each place alone makes training random; evaluation has none."""
    model = model_with(dropout=0.3)
    places = [part for part in model.modules() if isinstance(part, Dropout)]
    assert [part.p for part in places] == [0.3] * (1 + 2 * N)
    for place in places:
        for part in places:
            part.train(part is place)
            part.p = 0.3 if part is place else 0.0
        model.train()
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


@every_backend
@every_position
@pytest.mark.parametrize("pieces", [(1,) * T, (3, 2, 1, 1), (T,), (1, T - 1), (T - 1, 1)], ids=str)
@torch.no_grad()
def test_with_a_cache_every_step_is_the_whole_text_read_again(pieces, position, backend):
    """Fails if keys are written one place too far, or overwrite others; if a position starts at 0 again in the

    embeddings, the rotation or the bias; if a token of a piece sees a later one of it; or rows of a batch mix.
    """
    model = model_with(position)
    with attention_backend(backend):
        wanted, caches, done = model(IDS), model.start(B)["kv_caches"], 0
        for piece in pieces:
            out = model(IDS[:, done : done + piece], caches)
            torch.testing.assert_close(out, wanted[:, done : done + piece], **EXACT)
            done += piece
            assert [cache.length for cache in caches] == [done] * N


@torch.no_grad()
def test_caches_of_two_texts_do_not_touch_each_other():
    """Fails if layers or calls share a cache."""
    model, others = model_with("rope"), torch.randint(V, (B, T), generator=seeded(5))
    first, second = model.start(B)["kv_caches"], model.start(B)["kv_caches"]
    parts = [model(ids[:, t : t + 1], caches) for t in range(T) for ids, caches in ((IDS, first), (others, second))]
    torch.testing.assert_close(torch.cat(parts[::2], 1), model(IDS), **EXACT)
    torch.testing.assert_close(torch.cat(parts[1::2], 1), model(others), **EXACT)


def test_caches_have_the_models_sizes_and_type():
    """Fails if a size is another, or the numbers are rounded to float32 in a float64 model."""
    for cache in (caches := model_with().start(5)["kv_caches"]):
        assert cache.keys.shape == cache.values.shape == (5, H, CONTEXT, K)
        assert cache.keys.dtype == cache.values.dtype == torch.float64
        assert cache.length == 0
    assert len({id(cache) for cache in caches}) == N
    assert [cache.keys.shape[2] for cache in GPT(CONFIG).start(1, room=4)["kv_caches"]] == [4] * N
    assert GPT(CONFIG).bfloat16().start(1)["kv_caches"][0].values.dtype == torch.bfloat16


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


def test_a_cache_that_is_full_grows():
    """Fails if growing loses or moves what is there, or a text is overwritten."""
    cache, k, v = KVCache(2, 3, 4, 5), draw(2, 3, 15, 5).float(), draw(2, 3, 15, 5, seed=1).float()
    for start, end in ((0, 3), (3, 4), (4, 5), (5, 14), (14, 15)):
        found = cache.append(k[:, :, start:end], v[:, :, start:end])
        torch.testing.assert_close(found, (k[:, :, :end], v[:, :, :end]), rtol=0, atol=0)


def test_rows_of_a_cache_can_be_kept_in_another_order():
    """Fails if keys and values are not moved together, or a row cannot come twice."""
    cache, k, v = KVCache(3, 2, 9, 5), draw(3, 2, 4, 5).float(), draw(3, 2, 4, 5, seed=1).float()
    cache.append(k[:, :, :3], v[:, :, :3])
    rows = torch.tensor([2, 0, 0, 1])
    cache = cache.reorder(rows)
    found = cache.append(k[rows, :, 3:], v[rows, :, 3:])
    torch.testing.assert_close(found, (k[rows], v[rows]), rtol=0, atol=0)


@torch.no_grad()
def test_a_text_longer_than_the_context_is_refused():
    """Fails if the table's end is passed silently: at one token too many, with and without a cache; not one earlier."""
    model, ids = model_with(), torch.ones(1, CONTEXT + 1).long()
    assert model(ids[:, 1:]).shape == (1, CONTEXT, V)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids)
    caches = model.start(1)["kv_caches"]
    model(ids[:, :10], caches)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids[:, :7], caches)
    assert model(ids[:, :6], caches).shape == (1, 6, V)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model.step(ids[:, :1], {"kv_caches": caches})


@pytest.mark.parametrize("position", ["rope", "alibi", "relative", "none"])
@torch.no_grad()
def test_a_text_may_be_longer_than_the_context_where_the_scheme_allows_it(position):
    """Fails if the context is a limit without a table, or what a cache holds is lost when it grows."""
    model, ids = model_with(position), torch.randint(V, (2, 2 * CONTEXT + 3), generator=seeded(4))
    assert model.max_len is None
    caches = model.start(2)["kv_caches"]
    parts = [model(part, caches) for part in ids.split(5, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), model(ids), **EXACT)


def test_models_compile_without_a_break():
    """Fails if Python looks at a tensor's values on the way, which torch.export cannot follow."""
    for position in POSITIONS:
        model = model_with(position)
        exported = torch.export.export(model, (IDS,)).module()
        torch.testing.assert_close(exported(IDS), model(IDS), **EXACT)


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GPT(CONFIG)(IDS.float()), r"ids must be torch.int64, got torch.float32"),
        (lambda: GPT(CONFIG)(IDS[0]), r"ids must be a tensor \(B, T\), got one of shape \(7,\)"),
        (lambda: GPT(CONFIG)(IDS + 5), r"ids must be from 0 to 10, got 5 to 15"),
        (lambda: GPT(CONFIG)(IDS - 1), r"ids must be from 0 to 10, got -1 to 9"),
        (lambda: GPT(CONFIG)([[1, 2]]), r"ids must be a torch tensor \(B, T\), got builtins.list"),
        (lambda: (m := GPT(CONFIG))(IDS, m.start(B)["kv_caches"][:1]), r"shorter"),
        (lambda: GPT(CONFIG).start(0), r"batch_size must be a whole number of at least 1, got 0"),
        (lambda: KVCache(1, 2, 3, 0), r"head_dim must be a whole number of at least 1, got 0"),
        (lambda: GPTConfig.from_name("gpt3"), r"name must be one of 'gpt2', 'gpt2-medium', .*, got 'gpt3'"),
        (lambda: made(activation="tanh"), r"activation must be one of 'gelu', .*, got 'tanh'"),
        (lambda: made(norm="batchnorm"), r"norm must be one of 'layernorm', 'rmsnorm', got 'batchnorm'"),
        (lambda: made(num_heads=5), r"d_model must be a multiple of num_heads, got d_model=12 and num_heads=5"),
        (lambda: made(num_heads=0), r"num_heads must be a whole number of at least 1, got 0"),
        (lambda: made(num_heads=1.5), r"num_heads must be a whole number of at least 1, got 1.5"),
        (lambda: made(num_layers=0), r"num_layers must be a whole number of at least 1, got 0"),
        (lambda: made(vocab_size=0), r"vocab_size must be a whole number of at least 1, got 0"),
        (lambda: made(max_len=0), r"max_len must be a whole number of at least 1, got 0"),
        (lambda: made(d_model=0), r"d_model must be a whole number of at least 1, got 0"),
        (lambda: made(dim_feedforward=0), r"dim_feedforward must be a whole number of at least 1, got 0"),
        (lambda: made(dropout=1.0), r"dropout must be from 0 to below 1, got 1.0"),
        (lambda: made(norm_eps=math.nan), r"norm_eps must be a finite number above 0, got nan"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


def made(**changed):
    return GPT(dataclasses.replace(CONFIG, **changed))
