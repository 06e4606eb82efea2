"""Llama's parts against torch's and against formulas written out, and the whole against our GPT with the same parts."""

import copy
import dataclasses
import math
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import gpt as gpt_module
from course_lib.attention import MultiHeadAttention, merge_heads, record_attention, split_heads
from course_lib.generate import beam_search, beam_search_one, generate, greedy
from course_lib.gpt import GPT, GPTConfig
from course_lib.llama import GroupedQueryAttention, Llama, LlamaConfig, RMSNorm, SwiGLU, rotate, rotations, slow_down
from course_lib.positional import RoPE
from course_lib.train import language_model_loss, set_seed, train_epoch
from course_lib.utils import number_of_parameters
from course_lib.utils.llama_checkpoint import LLAMA_3_2

EXACT = {"rtol": 1e-10, "atol": 1e-10}  # float64, where only the order of sums differs
B, T, H, H_KV, K, N, V, HIDDEN, CONTEXT = 3, 7, 6, 2, 4, 2, 11, 20, 16
D, BASE = 18, 50.0  # D / H = 3 is not K; the base so small that every pair turns within the text
EPS = 0.05  # so large that a norm with another one is seen
SCALING = dict(LLAMA_3_2, factor=8.0, original_max_position_embeddings=60)
CONFIG = LlamaConfig(V, CONTEXT, D, N, H, H_KV, HIDDEN, K, BASE, SCALING, EPS, tied=True)

every_sharing = pytest.mark.parametrize("num_kv_heads", [6, 3, 2, 1])


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def draw(*shape, seed=0):
    """Normal numbers in float64."""
    return torch.randn(shape, generator=seeded(seed + sum(shape)), dtype=torch.float64)


def filled(module, seed=0):
    """The module in float64, without a parameter that is one."""
    generator = seeded(seed)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if re.search(r"(norm\d?|^)\.?weight$", name) else 0.5 * noise)
    return module


IDS = torch.randint(V, (B, T), generator=seeded(1))


def model_with(seed=0, **changed):
    return filled(Llama(dataclasses.replace(CONFIG, **changed)), seed)


# --- parts ----------------------------------------------------------------------


def test_rms_norm_is_torchs():
    """Fails if the mean is subtracted, the epsilon stands elsewhere, or a sum is taken for a mean: also gradients."""
    ours, theirs = filled(RMSNorm(D, EPS)), nn.RMSNorm(D, EPS).double()
    theirs.load_state_dict(ours.state_dict())
    x = draw(B, T, D).requires_grad_()
    weighting = draw(B, T, D, seed=1)
    out, wanted = ours(x), theirs(x)
    torch.testing.assert_close(out, wanted, **EXACT)
    found = torch.autograd.grad(out, [x, ours.weight], weighting)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, [x, theirs.weight], weighting), **EXACT)


@torch.no_grad()
def test_swiglu_by_hand_and_as_gpt_writes_it():
    """Fails if the gate and what it lets through change places, or another function gates."""
    ours, x = filled(SwiGLU(D, HIDDEN)), draw(B, T, D)
    up, gate = (torch.einsum("btd,fd->btf", x, part.weight) for part in (ours.up_proj, ours.gate_proj))
    wanted = torch.einsum("btf,df->btd", up * gate / (1 + torch.exp(-gate)), ours.down_proj.weight)
    torch.testing.assert_close(ours(x), wanted, **EXACT)
    both = F.linear(x, torch.cat([ours.up_proj.weight, ours.gate_proj.weight]))  # one matrix above the other
    torch.testing.assert_close(ours.down_proj(gpt_module.SwiGLU()(both)), wanted, **EXACT)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("first", [0, 5])
def test_rotations_are_those_of_rope(first, dtype):
    """Fails if other entries are paired, an angle or its sign is another, or a 16-bit type is not given back."""
    x = draw(B, H, T, K).to(dtype)
    positions = torch.arange(first, first + T, dtype=torch.promote_types(dtype, torch.float32))
    found = rotate(x, rotations(positions, K, BASE))
    assert found.dtype == dtype
    tolerance = {
        torch.float64: EXACT,
        torch.float32: {"rtol": 1e-6, "atol": 1e-6},
        torch.bfloat16: {"rtol": 0, "atol": 0},
    }
    torch.testing.assert_close(found, RoPE(K, BASE).rotate(x, first), **tolerance[dtype])


def test_what_slow_down_keeps_and_what_it_slows():
    """Fails if fast pairs are slowed, slow ones keep their speed, or the passage between them is not a straight line.

    Full turns of a pair within the original length, by the angle of the last position: length base^(-2j/K) / (2 pi).
    """
    length, low, high, factor, width, base = 500, 2.0, 6.0, 5.0, 16, 300.0
    found = slow_down(width, base, factor, low, high, length)
    turns = [length * base ** (-2 * j / width) / (2 * math.pi) for j in range(width // 2)]
    wanted = [1 if t >= high else 1 / factor if t <= low else None for t in turns]
    assert {1, 1 / factor, None} == set(wanted)
    for t, want, x in zip(turns, wanted, found.tolist(), strict=True):
        share = (t - low) / (high - low)
        assert x == pytest.approx(share * 1 + (1 - share) / factor if want is None else want, abs=1e-12)


def test_slow_down_reaches_the_angles():
    """Fails if the factor is not applied to the pair it belongs to."""
    positions = torch.arange(4, dtype=torch.float64)
    plain, slowed = rotations(positions, 8, BASE), rotations(positions, 8, BASE, SCALING)
    factors = slow_down(8, BASE, **SCALING)
    assert len(set(factors.tolist())) > 2
    torch.testing.assert_close(slowed[1], torch.polar(torch.ones(4).double(), plain[1].angle() * factors), **EXACT)


def attention_by_hand(layer, x, past, base):
    """Head by head: its own query, the key and value of its group, a softmax over the tokens up to each query."""
    rope, share, heads = RoPE(K, base), layer.num_heads // layer.num_kv_heads, []
    for h in range(layer.num_heads):
        own, group = slice(h * K, (h + 1) * K), slice(h // share * K, (h // share + 1) * K)
        q = rope.rotate(x @ layer.q_proj.weight[own].T)[:, past:]
        k, v = rope.rotate(x @ layer.k_proj.weight[group].T), x @ layer.v_proj.weight[group].T
        scores = torch.einsum("btk,bsk->bts", q, k) / K**0.5
        later = torch.ones(scores.shape[1:]).triu(past + 1).bool()
        heads.append(scores.masked_fill(later, -torch.inf).softmax(-1) @ v)
    return torch.cat(heads, -1) @ layer.o_proj.weight.T


def attend(layer, x, past=0, cache=None):
    return layer(x, rotations(torch.arange(past, past + x.shape[1]).double(), K, BASE), cache)


@every_sharing
def test_grouped_queries_by_hand(num_kv_heads):
    """Fails if a head takes another group's keys, a later token is seen, or values are rotated: also gradients."""
    layer, x = filled(GroupedQueryAttention(D, H, num_kv_heads, K)), draw(B, T, D).requires_grad_()
    out, wanted, weighting = attend(layer, x), attention_by_hand(layer, x, 0, BASE), draw(B, T, D, seed=1)
    torch.testing.assert_close(out, wanted, **EXACT)
    inputs = [x, *layer.parameters()]
    found = torch.autograd.grad(out, inputs, weighting)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, inputs, weighting), **EXACT)


@every_sharing
@pytest.mark.parametrize("past", [1, 4, 6])
@torch.no_grad()
def test_grouped_queries_after_a_cache(num_kv_heads, past):
    """Fails if several tokens after a cache see each other's future, or a single one does not see all before it."""
    layer, x = filled(GroupedQueryAttention(D, H, num_kv_heads, K)), draw(B, T, D)
    cache = model_with(num_kv_heads=num_kv_heads).start(B)["kv_caches"][0]
    attend(layer, x[:, :past], cache=cache)
    found = attend(layer, x[:, past:], past, cache)
    torch.testing.assert_close(found, attention_by_hand(layer, x, past, BASE), **EXACT)


@torch.no_grad()
def test_with_as_many_keys_as_queries_it_is_multi_head_attention():
    """Fails if H_kv = H is not the attention of the earlier chapters, with the same weights one above the other."""
    layer, x = filled(GroupedQueryAttention(H * K, H, H, K)), draw(B, T, H * K)
    reference = MultiHeadAttention(H * K, H, bias=False, position=RoPE(K, BASE)).double()
    weights = torch.cat([layer.q_proj.weight, layer.k_proj.weight, layer.v_proj.weight])
    reference.load_state_dict({"in_proj_weight": weights, "out_proj.weight": layer.o_proj.weight})
    torch.testing.assert_close(attend(layer, x), reference(x, causal=True), **EXACT)


# --- the network ----------------------------------------------------------------


def as_gpt(model):
    """Our GPT with RMSNorm, SwiGLU, RoPE and no bias, and with the model's weights under their names there."""
    config = model.config
    gpt = GPT(
        GPTConfig(
            V, CONTEXT, H * K, N, H, HIDDEN, 0.0, "swiglu", "rmsnorm", config.norm_eps, bias=False, tied=config.tied
        ),
        RoPE(K, config.rope_base),
    ).double()
    names = {"norm1": "ln1", "norm2": "ln2", "o_proj": "out_proj", r"mlp\.down_proj": "mlp.2"}
    state, weights = model.state_dict(), {}
    for name, x in state.items():
        for ours, theirs in names.items():
            name = re.sub(ours, theirs, name)
        weights[name] = x
    for n in range(N):
        attn, mlp = f"blocks.{n}.attn", f"blocks.{n}.mlp"
        parts = [weights.pop(f"{attn}.{part}_proj.weight") for part in "qkv"]
        weights[f"{attn}.in_proj_weight"] = torch.cat(parts)
        weights[f"{mlp}.0.weight"] = torch.cat([weights.pop(f"{mlp}.{part}_proj.weight") for part in ("up", "gate")])
    gpt.load_state_dict(weights)
    return gpt


@pytest.mark.parametrize("tied", [True, False])
def test_llama_is_a_gpt_with_other_parts(tied):
    """Fails if a part stands elsewhere than in GPT's block, or is left out: logits, and the table's gradient."""
    model = model_with(d_model=H * K, num_kv_heads=H, rope_scaling=None, tied=tied)
    reference, weighting = as_gpt(model), draw(B, T, V, seed=9)
    out, wanted = model(IDS), reference(IDS)
    assert wanted.std() > 1
    torch.testing.assert_close(out, wanted, **EXACT)
    found = torch.autograd.grad(out, model.embedding.weight, weighting)
    torch.testing.assert_close(found, torch.autograd.grad(wanted, reference.embedding.weight, weighting), **EXACT)
    assert (model.head.weight is model.embedding.weight) == tied
    with torch.no_grad():
        torch.testing.assert_close(model.step(IDS, model.start(B))[0], wanted[:, -1], **EXACT)


def test_the_start_is_that_of_gpt():
    """Fails if a weight is not drawn from N(0, 0.02^2), or what writes into the residual stream is not divided.

    The spread of n normal numbers is within 5 / sqrt(2 n) of its own size: here at most 3 percent, while dividing by
    the root of 2 N = 6 makes 59 percent.
    """
    set_seed(0)
    model = Llama(LlamaConfig(400, 96, 128, 3, 8, 4, 344, norm_eps=EPS))
    for name, parameter in model.named_parameters():
        x = parameter.detach()
        if "norm" in name:
            assert (x == 1).all(), name
        else:
            std = 0.02 / math.sqrt(6) if "o_proj" in name or "down_proj" in name else 0.02
            assert abs(x.std().item() / std - 1) < 5 / math.sqrt(2 * (x.numel() - 1)) < 0.05, name
            assert abs(x.mean().item()) < 5 * std / math.sqrt(x.numel()), name
    assert {part.eps for part in model.modules() if isinstance(part, RMSNorm)} == {EPS}


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("smollm2-135m", 134_515_008),
        ("tinyllama-1.1b", 1_100_048_384),
        ("llama-2-7b", 6_738_415_616),
        ("llama-3-8b", 8_030_261_248),
        ("llama-3.2-1b", 1_235_814_400),
    ],
)
def test_published_models_have_as_many_parameters_as_published(name, size):
    """Fails if a size is another, a bias is added, or the output layer is tied where it is not; no memory is taken."""
    with torch.device("meta"):
        assert number_of_parameters(Llama(LlamaConfig.from_name(name))) == size


def test_the_tie_holds_wherever_the_model_goes():
    """Fails if the table and the output layer become two parameters, which training would drive apart."""
    model, state = Llama(CONFIG), {name: x.clone() for name, x in Llama(CONFIG).state_dict().items()}
    with torch.device("meta"):
        empty, part_of_another = Llama(CONFIG), nn.Sequential(Llama(CONFIG))
    assert empty.to_empty(device="cpu").head.weight is empty.embedding.weight
    empty.load_state_dict(state)
    part_of_another.load_state_dict({f"0.{name}": x for name, x in state.items()}, assign=True)
    for other in (empty, part_of_another[0], copy.deepcopy(model).double(), copy.deepcopy(model)):
        assert other.head.weight is other.embedding.weight
        assert number_of_parameters(other) == number_of_parameters(model)
    for other in (empty, part_of_another[0]):  # no buffer is lost in memory that was unset
        model.load_state_dict(state)
        assert torch.equal(other(IDS), model(IDS))


def test_llama_learns_in_the_training_loop():
    """Fails if a token's logits do not depend on those before it: counting on from a random start, modulo 10."""
    set_seed(0)
    model = Llama(LlamaConfig(10, 8, 32, 1, 4, 2, 88))
    optimizer, generator = torch.optim.Adam(model.parameters(), 1e-2), seeded()

    def batch():
        rows = (torch.randint(10, (16, 1), generator=generator) + torch.arange(9)) % 10
        return rows[:, :-1], rows[:, 1:]

    losses = [train_epoch(model, [batch()], language_model_loss, optimizer)["loss"] for _ in range(50)]
    assert losses[0] > 2.0
    assert losses[-1] < 0.05
    assert generate(model, [[3, 4], [8, 9, 0]], 5, top_k=1) == [[5, 6, 7, 8, 9], [1, 2, 3, 4, 5]]


# --- the cache ------------------------------------------------------------------


@every_sharing
@pytest.mark.parametrize("pieces", [(1,) * T, (3, 2, 1, 1), (T,), (1, T - 1), (T - 1, 1)], ids=str)
@torch.no_grad()
def test_with_a_cache_every_step_is_the_whole_text_read_again(pieces, num_kv_heads):
    """Fails if a key is written to another place, the angles start at 0 again, or rows of a batch mix."""
    model = model_with(num_kv_heads=num_kv_heads)
    wanted, caches, done = model(IDS), model.start(B, room=4)["kv_caches"], 0
    for piece in pieces:
        out = model(IDS[:, done : done + piece], caches)
        torch.testing.assert_close(out, wanted[:, done : done + piece], **EXACT)
        done += piece
        assert [cache.length for cache in caches] == [done] * N


@every_sharing
def test_the_cache_has_the_size_of_the_shared_heads(num_kv_heads):
    """Fails if every head of queries has keys of its own in it: 2 N B S H_kv K numbers of 8, 4 or 2 bytes."""
    for model, size in ((model_with(num_kv_heads=num_kv_heads), 8), (Llama(CONFIG), 4), (Llama(CONFIG).bfloat16(), 2)):
        shared = model.config.num_kv_heads
        for room in (None, 5):
            caches = model.start(B, room)["kv_caches"]
            found = sum(x.numel() * x.element_size() for cache in caches for x in (cache.keys, cache.values))
            assert found == 2 * N * B * (room or CONTEXT) * shared * K * size
    long = Llama(dataclasses.replace(CONFIG, max_len=10**6)).start(1)["kv_caches"][0]
    assert long.keys.shape[2] == 1024  # a context of a million tokens is no reason to take memory for them


@pytest.mark.parametrize("use_cache", [True, False])
def test_every_way_to_write(use_cache):
    """Fails if the protocol of `generate` is broken: rows of a beam that are kept in another order keep their keys."""
    model = model_with()
    texts = generate(model, [[1, 2, 3], [4]], 8, top_k=1, use_cache=use_cache)
    ids = torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for token in texts[0]:
            assert model(ids)[0, -1].argmax() == token
            ids = torch.cat([ids, torch.tensor([[token]])], 1)
    options = {"max_new_tokens": 8, "eos_id": None, "suppress_tokens": ()}
    assert greedy(model, prompt=torch.tensor([[1, 2, 3]]), **options)[0].tokens == texts[0]
    (found,) = beam_search(model, prompt=torch.tensor([[1, 2, 3]]), beam_size=3, **options)
    wanted = beam_search_one(model, prompt=torch.tensor([[1, 2, 3]]), beam_size=3, **options)[0]
    assert found.tokens == wanted.tokens
    whole = torch.tensor([[1, 2, 3, *found.tokens]])
    with torch.no_grad():
        log_probs = model(whole[:, :-1]).log_softmax(-1)[0, 2:].gather(1, whole[0, 3:, None])
    assert found.score == pytest.approx(log_probs.sum().item(), abs=1e-9)


@torch.no_grad()
def test_a_text_longer_than_the_context_is_refused():
    """Fails if the limit is passed silently: at one token too many, with and without a cache; not one earlier."""
    model, ids = model_with(), torch.ones(1, CONTEXT + 1).long()
    assert model(ids[:, 1:]).shape == (1, CONTEXT, V)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids)
    caches = model.start(1)["kv_caches"]
    model(ids[:, :10], caches)
    with pytest.raises(ValueError, match=r"17 tokens are more than the context of 16"):
        model(ids[:, :7], caches)
    assert model(ids[:, :6], caches).shape == (1, 6, V)
    with pytest.raises(ValueError, match=r"a prompt of 1 tokens and 16 new ones are more than the context of 16"):
        generate(model, [[1]], 16)


@torch.no_grad()
def test_the_model_compiles_without_a_break():
    """Fails if Python looks at a tensor's values on the way, which torch.export cannot follow."""
    model = model_with()
    exported = torch.export.export(model, (IDS,)).module()
    torch.testing.assert_close(exported(IDS), model(IDS), **EXACT)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(IDS), model(IDS), **EXACT)


@every_sharing
@torch.no_grad()
def test_recorded_maps_are_the_weights_that_were_used(num_kv_heads):
    """Fails if no layer is found, a head has another key head's map, or a cache's keys are left out or kept."""
    model = model_with(num_kv_heads=num_kv_heads)
    outs, hook = [], model.blocks[1].attn.register_forward_hook(lambda layer, args, out: outs.append((args[0], out)))
    with record_attention(model) as maps:
        wanted = model(IDS)
    hook.remove()
    assert list(maps) == ["blocks.0.attn", "blocks.1.attn"]
    whole, layer = dict(maps), model.blocks[1].attn
    (x, out) = outs[0]
    values = split_heads(layer.v_proj(x), num_kv_heads)
    mixed = whole["blocks.1.attn"] @ values.repeat_interleave(H // num_kv_heads, 1)
    torch.testing.assert_close(layer.o_proj(merge_heads(mixed)), out, **EXACT)
    caches = model.start(B)["kv_caches"]
    with record_attention(model) as maps:
        parts = [model(part, caches) for part in IDS.split(4, 1)]
    torch.testing.assert_close(torch.cat(parts, 1), wanted, **EXACT)
    for name, weights in maps.items():
        torch.testing.assert_close(weights, whole[name][:, :, 4:], **EXACT)


# --- bad input ------------------------------------------------------------------


def made(**changed):
    return Llama(dataclasses.replace(CONFIG, **changed))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Llama(CONFIG)(IDS.float()), r"ids must be torch.int64, got torch.float32"),
        (lambda: Llama(CONFIG)(IDS[0]), r"ids must be a tensor \(B, T\), got one of shape \(7,\)"),
        (lambda: Llama(CONFIG)(IDS[..., None]), r"ids must be a tensor \(B, T\), got one of shape \(3, 7, 1\)"),
        (lambda: Llama(CONFIG)(IDS + 5), r"ids must be from 0 to 10, got 5 to 15"),
        (lambda: Llama(CONFIG)([[1, 2]]), r"ids must be a torch tensor \(B, T\), got builtins.list"),
        (lambda: (m := Llama(CONFIG))(IDS, m.start(B)["kv_caches"][:1]), r"shorter"),
        (lambda: Llama(CONFIG).start(0), r"batch_size must be a whole number of at least 1, got 0"),
        (lambda: LlamaConfig.from_name("llama-9"), r"name must be one of 'smollm2-135m', .*, got 'llama-9'"),
        (lambda: made(num_kv_heads=4), r"num_heads must be a multiple of num_kv_heads, got num_heads=6 and .*=4"),
        (lambda: made(num_kv_heads=12), r"num_heads must be a multiple of num_kv_heads, got num_heads=6 and .*=12"),
        (lambda: made(num_kv_heads=0), r"num_kv_heads must be a whole number of at least 1, got 0"),
        (lambda: made(head_dim=5), r"so the width must be even, got 5"),
        (lambda: made(head_dim=None), r"so the width must be even, got 3"),
        (lambda: made(head_dim=None, d_model=20), r"wanted a head_dim, or a d_model that 6 heads divide, got 20"),
        (lambda: made(head_dim=0), r"width must be a whole number of at least 1, got 0"),
        (lambda: made(rope_base=0.0), r"base must be a finite number above 0, got 0.0"),
        (lambda: made(norm_eps=math.nan), r"norm_eps must be a finite number above 0, got nan"),
        (lambda: made(dim_feedforward=None), r"dim_feedforward must be a whole number of at least 1, got None"),
        (
            lambda: made(rope_scaling={"factor": 8.0}),
            r"rope_scaling must be a dict of factor, low_freq_factor, .*, got",
        ),
        (lambda: made(rope_scaling=SCALING | {"factor": 0}), r"factor must be a finite number above 0, got 0"),
        (
            lambda: made(rope_scaling=SCALING | {"low_freq_factor": 4.0}),
            r"a high_freq_factor above the low_freq_factor",
        ),
        (lambda: RMSNorm(0), r"d_model must be a whole number of at least 1, got 0"),
        (lambda: SwiGLU(3, 1.5), r"dim_feedforward must be a whole number of at least 1, got 1.5"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


def test_rms_norm_of_large_numbers_in_16_bits():
    """Fails if the squares are taken in 16 bits, where those above 65,504 are infinite and the result is zero."""
    x = torch.tensor([[300.0, -400.0, 0.0, 500.0]], dtype=torch.float16)
    got = RMSNorm(4).half()(x)
    torch.testing.assert_close(got, (x.double() / x.double().square().mean().sqrt()).half())
