"""The Transformer against torch.nn's, against its equations written out, and one way through it against another."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from course_lib import transformer as transformer_module
from course_lib.attention import causal_mask, merge_heads, split_heads
from course_lib.gpt import KVCache
from course_lib.language import sample
from course_lib.positions import ALiBi, Learned, NoPositions, RelativeBias, RoPE, Sinusoidal
from course_lib.seq2seq import beam_search, greedy, translate
from course_lib.tasks import number_of_parameters
from course_lib.text import EOS, PAD, SOS, length_mask
from course_lib.transformer import (
    POOLS,
    RESIDUALS,
    DecoderLayer,
    EncoderLayer,
    TokenEmbedding,
    Transformer,
    TransformerClassifier,
    TransformerDecoder,
    TransformerEncoder,
    TransformerLM,
    Translator,
    check_real,
    normal_start,
)

EXACT = {"rtol": 1e-10, "atol": 1e-10}
B, T, S, H, K, N, V = 2, 5, 7, 3, 4, 2, 11
D, HIDDEN = H * K, 20

every_impl = pytest.mark.parametrize("impl", ["sdpa", "math"])
every_residual = pytest.mark.parametrize("residual", RESIDUALS)


def draw(*shape, seed=0):
    """Normal numbers in float64 that take gradients."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()


def tokens(*shape, seed=0, vocab_size=V):
    """Random ids, none of them special."""
    return torch.randint(4, vocab_size, shape, generator=torch.Generator().manual_seed(seed))


def filled(module, seed=0):
    """The module in float64, without a parameter that is zero or one: norms, biases and scales take part."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.double().named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.copy_(1 + 0.3 * noise if "norm" in name and parameter.ndim == 1 else 0.4 * noise)
    return module


def encoder(n=N, **options):
    """A stack, and the last norm that Pre-LN needs."""
    norm = nn.LayerNorm(D) if options.get("residual") == "pre-ln" else None
    return TransformerEncoder([EncoderLayer(D, H, HIDDEN, **{"dropout": 0.0} | options) for _ in range(n)], norm)


def decoder(n=N, **options):
    """The same of decoder layers."""
    norm = nn.LayerNorm(D) if options.get("residual") == "pre-ln" else None
    return TransformerDecoder([DecoderLayer(D, H, HIDDEN, **{"dropout": 0.0} | options) for _ in range(n)], norm)


def positions():
    """One of each, the learned ones with numbers that are not zero."""
    schemes = [NoPositions(), Sinusoidal(D, 20), Learned(20, D, std=1.0), RelativeBias(H, 2), RoPE(K), ALiBi(H)]
    nn.init.normal_(schemes[3].weight, generator=torch.Generator().manual_seed(1))
    return schemes


every_position = pytest.mark.parametrize("position", positions(), ids=lambda scheme: type(scheme).__name__)


def gradients(out, module, *inputs):
    """By name, under an arbitrary weighting of the output."""
    named = dict(sorted(module.named_parameters())) | {f"input {i}": x for i, x in enumerate(inputs)}
    grads = torch.autograd.grad(out, list(named.values()), draw(*out.shape, seed=9).detach())
    return dict(zip(named, grads, strict=True))


# --- torch.nn's -----------------------------------------------------------------

REAL = torch.tensor([[True] * T, [True, True, False, True, False]])  # a hole, and padding at the end
REAL_SOURCE = torch.tensor([[True] * (S - 2) + [False] * 2, [True] * S])
EACH = (torch.rand(B, T, T, generator=torch.Generator().manual_seed(0)) < 0.5) | torch.eye(T, dtype=torch.bool)
EACH_SOURCE = torch.rand(B, T, S, generator=torch.Generator().manual_seed(1)) < 0.7
EACH_SOURCE &= REAL_SOURCE[:, None]  # the encoder's output at padding is 0 here and a vector in torch


def over_heads(mask):
    """Torch's form of a mask for each sentence, query and key: (B H, T, S), True = hidden."""
    return ~mask.repeat_interleave(H, 0)


SELF_MASKS = {  # ours, torch's
    "nothing": ({}, {}),
    "padding": ({"mask": REAL}, {"key_padding_mask": ~REAL}),
    "causal": ({"causal": True}, {"mask": ~causal_mask(T)}),
    "padding and causal": (
        {"mask": REAL, "causal": True},
        {"key_padding_mask": ~REAL, "mask": ~causal_mask(T)},
    ),
    "each query": ({"mask": EACH}, {"mask": over_heads(EACH)}),
}
MEMORY_MASKS = {
    "nothing": ({}, {}),
    "padding": ({"memory_mask": REAL_SOURCE}, {"memory_key_padding_mask": ~REAL_SOURCE}),
    "each query": ({"memory_mask": EACH_SOURCE}, {"memory_mask": over_heads(EACH_SOURCE)}),
}
every_mask = pytest.mark.parametrize("masks", SELF_MASKS)
both_orders = pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
both_activations = pytest.mark.parametrize("activation", [F.relu, F.gelu], ids=["relu", "gelu"])


def of_the_target(torchs):
    return {f"tgt_{name}": mask for name, mask in torchs.items()}


@every_impl
@both_activations
@both_orders
@every_mask
def test_the_encoder_layer_is_torchs(masks, residual, activation, impl):
    """Fails if a norm, a residual, an activation or a mask is elsewhere: outputs and all gradients."""
    reference = filled(
        nn.TransformerEncoderLayer(
            D, H, HIDDEN, 0.0, activation, batch_first=True, norm_first=residual == "pre-ln", dtype=torch.float64
        )
    )
    layer = EncoderLayer(D, H, HIDDEN, dropout=0.0, residual=residual, activation=activation).double()
    layer.load_state_dict(reference.state_dict())
    x, (ours, torchs) = draw(B, T, D), SELF_MASKS[masks]
    wanted = reference(x, **{"src_" + name: mask for name, mask in torchs.items()})
    out = layer(x, **ours, impl=impl)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, layer, x), gradients(wanted, reference, x), **EXACT)
    assert number_of_parameters(layer) == number_of_parameters(reference)
    assert layer.state_dict().keys() == reference.state_dict().keys()


@every_impl
@both_activations
@both_orders
@pytest.mark.parametrize("memory_masks", MEMORY_MASKS)
@pytest.mark.parametrize("masks", ["nothing", "padding and causal", "each query"])
def test_the_decoder_layer_is_torchs(masks, memory_masks, residual, activation, impl):
    """Fails if keys come from the target, the memory is normed, or the two attentions change places or masks."""
    reference = filled(
        nn.TransformerDecoderLayer(
            D, H, HIDDEN, 0.0, activation, batch_first=True, norm_first=residual == "pre-ln", dtype=torch.float64
        )
    )
    layer = DecoderLayer(D, H, HIDDEN, dropout=0.0, residual=residual, activation=activation).double()
    layer.load_state_dict(reference.state_dict())
    x, memory = draw(B, T, D), draw(B, S, D)
    (ours, torchs), (ours_memory, torchs_memory) = SELF_MASKS[masks], MEMORY_MASKS[memory_masks]
    wanted = reference(x, memory, **of_the_target(torchs), **torchs_memory)
    out = layer(x, memory, **{"causal": False} | ours, **ours_memory, impl=impl)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, layer, x, memory), gradients(wanted, reference, x, memory), **EXACT)
    assert number_of_parameters(layer) == number_of_parameters(reference)
    assert layer.state_dict().keys() == reference.state_dict().keys()


@every_impl
@both_orders
@every_mask
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_encoder_is_torchs_and_zero_at_padding(norm, masks, residual, impl):
    """Fails if the last norm is left out, or padding keeps numbers (which a mean over positions would count)."""
    layer = nn.TransformerEncoderLayer(D, H, HIDDEN, 0.0, batch_first=True, norm_first=residual == "pre-ln")
    reference = filled(nn.TransformerEncoder(layer, N, nn.LayerNorm(D) if norm else None, enable_nested_tensor=False))
    stack = TransformerEncoder(encoder(residual=residual).layers, nn.LayerNorm(D) if norm else None).double()
    stack.load_state_dict(reference.state_dict())
    x, (ours, torchs) = draw(B, T, D), SELF_MASKS[masks]
    wanted = reference(x, **{"src_key_padding_mask" if "padding" in name else name: m for name, m in torchs.items()})
    if "padding" in masks:
        wanted = torch.where(REAL[..., None], wanted, 0.0)
    out = stack(x, **ours, impl=impl)
    torch.testing.assert_close(out, wanted, **EXACT)
    torch.testing.assert_close(gradients(out, stack, x), gradients(wanted, reference, x), **EXACT)


@every_impl
@both_orders
@pytest.mark.parametrize("masks", ["nothing", "causal", "padding and causal", "each query"])
@pytest.mark.parametrize("memory_masks", ["padding", "each query", "as the source"])
@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_the_whole_transformer_is_torchs(memory_masks, masks, residual, impl):
    """Fails if encoder and decoder are joined wrongly, a last norm is missing, or the source's mask is forgotten."""
    reference = filled(
        nn.Transformer(
            D, H, N, N + 1, HIDDEN, 0.0, batch_first=True, norm_first=residual == "pre-ln", dtype=torch.float64
        )
    )
    model = Transformer(
        TransformerEncoder(encoder(residual=residual).layers, nn.LayerNorm(D)),
        TransformerDecoder(decoder(N + 1, residual=residual).layers, nn.LayerNorm(D)),
    ).double()
    model.load_state_dict(reference.state_dict())
    assert number_of_parameters(model) == number_of_parameters(reference)
    source, target, (ours, torchs) = draw(B, S, D), draw(B, T, D), SELF_MASKS[masks]
    ours = {"target_mask" if name == "mask" else name: value for name, value in ours.items()}
    kind = "padding" if memory_masks == "as the source" else memory_masks
    ours_memory, torchs_memory = MEMORY_MASKS[kind] if memory_masks != "as the source" else ({}, MEMORY_MASKS[kind][1])
    wanted = reference(source, target, src_key_padding_mask=~REAL_SOURCE, **of_the_target(torchs), **torchs_memory)
    if "padding" in masks:
        wanted = torch.where(REAL[..., None], wanted, 0.0)
    out = model(source, target, REAL_SOURCE, **{"causal": False} | ours, **ours_memory, impl=impl)
    torch.testing.assert_close(out, wanted, **EXACT)
    found, expected = gradients(out, model, source, target), gradients(wanted, reference, source, target)
    torch.testing.assert_close(found, expected, **EXACT)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_weights_travel_back_to_torch():
    """Fails if a name of ours is none of torch's: a model trained here could not be used there."""
    ours = Transformer(encoder(residual="pre-ln"), decoder(residual="pre-ln"))
    nn.Transformer(D, H, N, N, HIDDEN, batch_first=True).load_state_dict(ours.state_dict())


# --- residuals ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "formula"),
    [
        ("post-ln", lambda x, f, norm: norm(x + f(x))),
        ("pre-ln", lambda x, f, norm: x + f(norm(x))),
        ("rezero", lambda x, f, scale: x + 0.7 * f(x)),
    ],
)
def test_residuals_by_their_formulas(name, formula):
    """Fails if x is normed where it is added, or a layer is made with another residual than the one named."""
    layer, decoding = EncoderLayer(D, H, HIDDEN, 0.0, residual=name), DecoderLayer(D, H, HIDDEN, 0.0, residual=name)
    x, memory = draw(B, T, D), draw(B, S, D)
    for made in (filled(layer), filled(decoding, seed=1)):
        if name == "rezero":
            nn.init.constant_(made.norm1.alpha, 0.7)

    def feed_forward(layer):
        return lambda x: layer.linear2(F.relu(layer.linear1(x)))

    wanted = formula(formula(x, layer.self_attn, layer.norm1), feed_forward(layer), layer.norm2)
    torch.testing.assert_close(layer(x), wanted, **EXACT)
    wanted = formula(x, lambda x: decoding.self_attn(x, causal=True), decoding.norm1)
    wanted = formula(wanted, lambda x: decoding.multihead_attn(x, memory), decoding.norm2)
    wanted = formula(wanted, feed_forward(decoding), decoding.norm3)
    torch.testing.assert_close(decoding(x, memory), wanted, **EXACT)


def test_rezero_starts_as_the_identity_and_alpha_learns_first():
    """Fails if alpha starts elsewhere, each sublayer has its own, or something else gets a gradient at the start."""
    for stack, count in ((encoder(residual="rezero").double(), 2), (decoder(residual="rezero").double(), 3)):
        x, memory = draw(B, T, D), draw(B, S, D)
        out = stack(x) if count == 2 else stack(x, memory)
        assert torch.equal(out, x)
        for name, grad in gradients(out, stack).items():
            assert grad.isfinite().all()
            assert (grad != 0).all() if name.endswith("alpha") else (grad == 0).all(), name
        for layer in stack.layers:
            norms = [layer.norm1, layer.norm2, layer.norm3] if count == 3 else [layer.norm1, layer.norm2]
            assert len({id(norm.alpha) for norm in norms}) == 1
        plain = (encoder if count == 2 else decoder)()
        assert number_of_parameters(stack) == number_of_parameters(plain) - N * (count * 2 * D - 1)


# --- dropout --------------------------------------------------------------------


def test_dropout_stands_where_the_paper_and_torch_have_it(monkeypatch):
    """Fails if a dropout is missing, doubled or on the wrong side of a sum: here "dropping" multiplies by 2 or by 3."""
    asked = []

    def double(x, p, training=True):
        asked.append((x.shape[-1], p, training))
        return 2 * x

    monkeypatch.setattr(transformer_module, "dropout", double)
    layer = filled(EncoderLayer(D, H, HIDDEN, dropout=0.3, attention_dropout=0.0))
    x = draw(B, T, D)
    wanted = layer.norm1(x + 2 * layer.self_attn(x))
    wanted = layer.norm2(wanted + 2 * layer.linear2(2 * F.relu(layer.linear1(wanted))))
    torch.testing.assert_close(layer(x), wanted, **EXACT)
    assert asked == [(D, 0.3, True), (HIDDEN, 0.3, True), (D, 0.3, True)]
    layer.eval()(x)
    assert asked[3:] == [(D, 0.3, False), (HIDDEN, 0.3, False), (D, 0.3, False)]

    layer, memory = filled(DecoderLayer(D, H, HIDDEN, dropout=0.3, attention_dropout=0.0)), draw(B, S, D)
    wanted = layer.norm1(x + 2 * layer.self_attn(x, causal=True))
    wanted = layer.norm2(wanted + 2 * layer.multihead_attn(wanted, memory))
    wanted = layer.norm3(wanted + 2 * layer.linear2(2 * F.relu(layer.linear1(wanted))))
    torch.testing.assert_close(layer(x, memory), wanted, **EXACT)

    for norm in (True, False):
        embedding = filled(TokenEmbedding(V, D, Sinusoidal(D, 20), dropout=0.2, scale=3.0, norm=norm))
        ids, table = tokens(B, T), embedding.position.table[:T]
        wanted = embedding.norm(2 * (3.0 * embedding.embedding.weight[ids] + table))
        torch.testing.assert_close(embedding(ids), wanted, **EXACT)


def test_the_weights_have_the_dropout_asked_for():
    """Fails if `attention_dropout` is ignored, or 0 is taken for "not given"."""
    for layer in (EncoderLayer, DecoderLayer):
        for given, wanted in ((None, 0.3), (0.0, 0.0), (0.2, 0.2)):
            made = layer(D, H, HIDDEN, dropout=0.3, attention_dropout=given)
            assert made.dropout == 0.3
            assert all(m.dropout == wanted for m in made.modules() if hasattr(m, "out_proj"))


@every_impl
def test_training_is_repeatable_and_evaluation_drops_nothing(impl):
    """Fails if a seed does not fix the draws, two calls draw the same, the paths differ, or evaluation drops."""
    model, plain = filled(encoder(dropout=0.3)), filled(encoder())
    x = draw(B, T, D)

    def run(seed, impl=impl):
        torch.manual_seed(seed)
        return model(x, REAL, impl=impl)

    torch.testing.assert_close(run(1), run(1), **EXACT)
    assert not torch.allclose(run(1), run(2))
    torch.testing.assert_close(run(1, "sdpa"), run(1, "math"), **EXACT)
    model.eval()
    torch.testing.assert_close(model(x, REAL, impl=impl), plain(x, REAL, impl=impl), **EXACT)


# --- without gradients ----------------------------------------------------------


def masks_of_all_kinds(rows, T):
    """Lengths of 0 to T, holes in some rows, padding in front in others."""
    generator = torch.Generator().manual_seed(rows)
    mask = length_mask(torch.randint(1, T + 1, (rows,), generator=generator).tolist(), T)
    mask[::3] &= torch.rand(mask[::3].shape, generator=generator) < 0.6
    mask[rows // 2] = False
    mask[-1] = torch.arange(T) >= T // 2
    return mask


@every_impl
@pytest.mark.parametrize("residual", ["post-ln", "pre-ln"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("rows", [1, 7, 8, 19])
def test_the_path_without_gradients_is_the_other_one(rows, causal, residual, impl):
    """Fails if a row is cut too short or put in another's place, a hole is filled, or an empty row breaks it."""
    stack = filled(encoder(residual=residual))
    x = draw(rows, S, D)
    for mask in (masks_of_all_kinds(rows, S), torch.zeros(rows, S, dtype=torch.bool)):
        for position in (None, RoPE(K), ALiBi(H).double()):
            wanted = stack(x, mask, causal, position, impl)
            assert (wanted[~mask] == 0).all()
            for context in (torch.no_grad, torch.inference_mode):
                with context():
                    got = stack(x, mask, causal, position, impl)
                torch.testing.assert_close(got, wanted.detach(), **EXACT)


def test_the_path_without_gradients_reads_no_column_that_is_padding(monkeypatch):
    """Fails if it computes what it is there to skip."""
    stack, read = encoder(1), []
    all_rows = stack._all_rows
    monkeypatch.setattr(stack, "_all_rows", lambda x, *rest: read.append(x.shape[:2]) or all_rows(x, *rest))
    lengths = torch.arange(1, 19)
    with torch.no_grad():
        stack(torch.rand(18, 30, D), length_mask(lengths.flip(0), 30))
    assert read == [(8, 8), (8, 16), (2, 18)]


@pytest.mark.parametrize("shape", [(1, T), (B, 1), (1, 1)])
def test_a_mask_for_all_rows_or_columns_means_the_same_on_both_paths(shape):
    """Fails if the path without gradients takes the mask's size for the batch's."""
    stack, x = filled(encoder()), draw(B, T, D)
    mask = torch.ones(shape, dtype=torch.bool)
    mask[..., 2:4] = False
    wanted = stack(x, mask.expand(B, T))
    torch.testing.assert_close(stack(x, mask), wanted, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(stack(x, mask), wanted, **EXACT)


def test_bad_masks_are_named_on_both_paths():
    """Fails if the path without gradients cuts a wrong mask to size, or reads numbers as a mask."""
    stack, x = encoder(), torch.rand(B, T, D)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            with pytest.raises(ValueError, match=r"mask has shape \(2, 7\), wanted \(B, S\) = \(2, 5\)"):
                stack(x, length_mask([3, 2], S))
            with pytest.raises(ValueError, match=r"mask must be boolean, True = may attend, got torch.float32"):
                stack(x, length_mask([3, 5], T).float())
            with pytest.raises(ValueError, match=r"mask has shape \(3, 5\), wanted"):
                stack(x, length_mask([3, 5, 1], T))
            with pytest.raises(ValueError, match=r"query has shape \(2, 5, 13\), wanted \(2, length, 12\)"):
                stack(torch.rand(B, T, D + 1), length_mask([3, 5], T))


@both_orders
def test_both_paths_have_one_type_under_autocast(residual):
    """Fails if bfloat16 evaluation returns another type than training, or strays from float32 by more than bfloat16.

    bfloat16 has 8 bits: a rounding errs by 2^-9 of the value; entries are about 1 and a few dozen roundings add up.
    """
    stack = filled(encoder(residual=residual)).float()
    x, mask = draw(9, S, D).float().detach(), masks_of_all_kinds(9, S)
    wanted = stack(x, mask)
    with torch.autocast("cpu", torch.bfloat16):
        trained = stack(x, mask)
        with torch.no_grad():
            evaluated = stack(x, mask)
    assert evaluated.dtype == trained.dtype
    scale = wanted.abs().max().item()
    for got in (trained, evaluated):
        assert (got - wanted).abs().max().item() < 2**-4 * scale


# --- the maps -------------------------------------------------------------------


@every_residual
@every_position
def test_weights_are_those_that_were_used(residual, position):
    """Fails if `weights` norms what the layer does not, forgets a mask or position, or lists the layers in disorder.

    A hook notes what each attention was given in `forward`; weights times values, joined, must give its output.
    """
    model = filled(Transformer(encoder(residual=residual), decoder(residual=residual)))
    position, source, target = position.double(), draw(B, S, D), draw(B, T, D)
    used = {}

    def note(module, args, out):
        key = args[1] if len(args) > 1 else args[0]
        used[module] = (args[0], key, out)

    for name, module in model.named_modules():
        if name.endswith(("self_attn", "multihead_attn")):
            module.register_forward_hook(note)
    memory = model.encoder(source, REAL_SOURCE, position=position)
    model.decoder(target, memory, REAL, REAL_SOURCE, position=position)
    at_source = model.encoder.weights(source, REAL_SOURCE, position=position)
    at_target = model.decoder.weights(target, memory, REAL, REAL_SOURCE, position=position)
    model.encoder(source, REAL_SOURCE, position=position)
    model.decoder(target, memory, REAL, REAL_SOURCE, position=position)  # `used` holds this last call's
    pairs = [(layer.self_attn, map_) for layer, map_ in zip(model.encoder.layers, at_source, strict=True)]
    for layer, (own, cross) in zip(model.decoder.layers, at_target, strict=True):
        pairs += [(layer.self_attn, own), (layer.multihead_attn, cross)]
    for module, map_ in pairs:
        _, key, out = used[module]
        v = split_heads(key @ module.in_proj_weight[2 * D :].T + module.in_proj_bias[2 * D :], H)
        torch.testing.assert_close(module.out_proj(merge_heads(map_ @ v)), out, **EXACT)
        torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)


# --- tokens ---------------------------------------------------------------------


def test_token_embeddings_start_with_variance_one_and_count_from_the_offset():
    """Fails if the table is drawn with variance 1 and then scaled, or a second part starts at position 0 again.

    The variance of n normal numbers misses 1 by sqrt(2 / n); five of them are allowed.
    """
    n = 400 * 64
    for scale, std in ((None, 64**-0.5), (1.0, 1.0), (3.0, 1 / 3)):
        torch.manual_seed(0)
        embedding = TokenEmbedding(400, 64, scale=scale)
        assert abs(embedding.embedding.weight.var().item() / std**2 - 1) < 5 * math.sqrt(2 / n)
        vectors = embedding(torch.arange(400)[None])
        assert abs(vectors.var().item() - 1) < 5 * math.sqrt(2 / n)
    for position in (Sinusoidal(D, 20), Learned(20, D)):
        embedding, ids = TokenEmbedding(V, D, position), tokens(B, T)
        assert torch.equal(embedding(ids[:, 2:], offset=2), embedding(ids)[:, 2:])


def test_a_norm_of_the_embedding_comes_last():
    """Fails if the norm stands before the positions: rows would then not have mean 0 and variance 1."""
    vectors = TokenEmbedding(V, D, Learned(20, D, std=1.0), norm=True).double()(tokens(B, T))
    torch.testing.assert_close(vectors.mean(-1), torch.zeros(B, T, dtype=torch.float64), **EXACT)
    torch.testing.assert_close(vectors.var(-1, correction=0), torch.ones(B, T, dtype=torch.float64), rtol=0, atol=1e-3)


# --- the classifier -------------------------------------------------------------


@every_impl
@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("pool", POOLS)
@every_position
def test_the_classifier_by_hand_a_sentence_at_a_time(pool, norm, position, impl):
    """Fails if padding is pooled, the learned vector is not first, or tokens do not move up by one behind it."""
    model = filled(TransformerClassifier(V, encoder(), 3, position=position, pool=pool, norm=norm))
    position, ids, mask = position.double(), tokens(3, S), length_mask([4, 7, 1], S)
    rows = []
    for b, length in enumerate([4, 7, 1]):
        x = model.embedding.embedding.weight[ids[b : b + 1, :length]] * math.sqrt(D)
        x = model.embedding.norm(position.add(x, 1 if pool == "cls" else 0))
        if pool == "cls":
            x = torch.cat([model.cls[None, None], x], 1)
        states = model.encoder(x, position=position)[0]  # (length, D)
        pooled = {"mean": states.mean(0), "max": states.amax(0), "cls": states[0]}[pool]
        rows.append(model.output.weight @ pooled + model.output.bias)
    wanted = torch.stack(rows)
    torch.testing.assert_close(model(ids, mask, impl), wanted, **EXACT)
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask, impl), wanted, **EXACT)
    torch.testing.assert_close(model(ids[1:2], impl=impl), wanted[1:2], **EXACT)


def test_the_classifiers_maps():
    """Fails if padding gets weight, a row does not add up to 1, or the learned vector has no row and column."""
    for pool in POOLS:
        model, extra = filled(TransformerClassifier(V, encoder(), pool=pool)), pool == "cls"
        maps = model.weights(tokens(2, S), length_mask([4, 7], S))
        assert [map_.shape for map_ in maps] == [(2, H, S + extra, S + extra)] * N
        for map_ in maps:
            assert (map_[0, :, :, 4 + extra :] == 0).all()
            assert (map_[0, :, :, : 4 + extra] > 0).all()
            torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)


# --- the language model ---------------------------------------------------------


@every_position
def test_the_language_models_next_probabilities(position):
    """Fails if `next_probs` reads the wrong row, or the output layer is not the table of embeddings."""
    model, ids = filled(TransformerLM(V, encoder(), position=position)).eval(), tokens(1, S)
    logits = model(ids)
    x = model.embedding(ids)
    hidden = model.encoder(x, causal=True, position=model.embedding.position)
    torch.testing.assert_close(logits, hidden @ model.embedding.embedding.weight.T, **EXACT)
    next_probs = model.next_probs()
    for end in (1, 4, S):
        torch.testing.assert_close(next_probs(ids[0, :end]), logits[0, end - 1].softmax(-1).detach(), **EXACT)
    drawn = [sample(next_probs, [5, 6], 6, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    maps = model.weights(ids)
    assert all((map_.triu(1) == 0).all() for map_ in maps), "a weight on a later token"
    assert [map_.shape for map_ in maps] == [(1, H, S, S)] * N


def test_a_table_that_is_too_short_is_named():
    """Fails if sampling past a table's end goes on with a wrong position."""
    model = TransformerLM(V, encoder(), position=Learned(4, D)).eval()
    with pytest.raises(ValueError, match=r"positions up to 5 are needed .*, the table has 4"):
        sample(model.next_probs(), [5, 6], 6, torch.Generator().manual_seed(0))


# --- the translator -------------------------------------------------------------


def translator(position=None, seed=0):
    model = Translator(V, V + 2, Transformer(encoder(), decoder()), position=position)
    return filled(model, seed).eval()


SOURCE, SOURCE_MASK = tokens(3, S), length_mask([4, 7, 2], S)


@every_position
@pytest.mark.parametrize("mask", [SOURCE_MASK, None], ids=["padded", "whole"])
def test_teacher_forcing_equals_decoding_step_by_step(position, mask):
    """Fails if a later target word is seen, a position restarts at each step, or the source's mask is lost."""
    model, target = translator(position), tokens(3, T, seed=1)
    wanted = model(SOURCE, mask, target).detach()
    with torch.no_grad():
        state, rows = model.start(SOURCE, mask), []
        for t in range(T):
            before = {key: part.clone() for key, part in state.items()}
            logits, following = model.step(target[:, t], state)
            assert all(torch.equal(state[key], before[key]) for key in before), "the old state was changed"
            state = following
            rows.append(logits)
    torch.testing.assert_close(torch.stack(rows, 1), wanted, **EXACT)
    assert wanted.shape == (3, T, V + 2)
    hidden = model.transformer(
        model.source_embedding(SOURCE), model.target_embedding(target), mask, position=model.source_embedding.position
    )
    torch.testing.assert_close(hidden @ model.target_embedding.embedding.weight.T, wanted, **EXACT)


@every_position
def test_decoding_a_batch_equals_each_sentence_alone(position):
    """Fails if padding or a neighbour changes a translation, or a beam mixes up the states of its hypotheses."""
    model = translator(position, seed=3)
    together = greedy(model, SOURCE, SOURCE_MASK, max_len=8)
    beams = beam_search(model, SOURCE, SOURCE_MASK, beam=3, max_len=8)
    one = beam_search(model, SOURCE, SOURCE_MASK, beam=1, max_len=8)
    for b, length in enumerate([4, 7, 2]):
        for found, alone in (
            (together[b], greedy(model, SOURCE[b : b + 1, :length], max_len=8)[0]),
            (beams[b], beam_search(model, SOURCE[b : b + 1, :length], beam=3, max_len=8)[0]),
            (one[b], together[b]),
        ):
            assert found.tokens == alone.tokens
            assert found.score == pytest.approx(alone.score, abs=1e-9)
        assert beams[b].score >= together[b].score - 1e-9 or beams[b].ended != together[b].ended
    sources = [SOURCE[b, :length].tolist() for b, length in enumerate([4, 7, 2])]
    assert [h.tokens for h in translate(model.train(), sources, batch_size=2, max_len=8)] == [
        h.tokens for h in together
    ]
    assert model.training


@every_position
def test_the_score_of_a_translation_is_that_of_teacher_forcing(position):
    """Fails if decoding conditions a word on anything but the words before it: the same sentence, read in one pass."""
    model = translator(position, seed=3)
    for b, found in enumerate(greedy(model, SOURCE, SOURCE_MASK, max_len=8)):
        written = found.tokens + ([EOS] if found.ended else [])
        target_in = torch.tensor([[SOS, *written[:-1]]])
        log_probs = model(SOURCE[b : b + 1], SOURCE_MASK[b : b + 1], target_in).log_softmax(-1)[0]
        assert found.score == pytest.approx(sum(log_probs[t, y].item() for t, y in enumerate(written)), abs=1e-9)
        log_probs[:, [PAD, SOS]] = -torch.inf
        assert log_probs.argmax(-1).tolist() == written


def test_the_translators_maps():
    """Fails if the maps are the encoder's, see later words or padding, or leave the embedding's positions out."""
    model, target = translator(Sinusoidal(D, 20)), tokens(3, T, seed=1)
    maps = model.weights(SOURCE, SOURCE_MASK, target)
    assert [(own.shape, cross.shape) for own, cross in maps] == [((3, H, T, T), (3, H, T, S))] * N
    for own, cross in maps:
        assert (own.triu(1) == 0).all()
        assert (cross.masked_select(~SOURCE_MASK[:, None, None, :]) == 0).all()
        for map_ in (own, cross):
            torch.testing.assert_close(map_.sum(-1), torch.ones(map_.shape[:3], dtype=torch.float64), **EXACT)
    memory = model.encode(SOURCE, SOURCE_MASK)
    x = model.target_embedding(target)
    torch.testing.assert_close(maps, model.transformer.decoder.weights(x, memory, memory_mask=SOURCE_MASK), **EXACT)


# --- caches ---------------------------------------------------------------------


@every_impl
@every_residual
@pytest.mark.parametrize("causal", [False, True])
@torch.no_grad()
def test_with_caches_a_stack_goes_on_where_it_stood(causal, residual, impl):
    """Fails if a layer gets another's cache, the last norm is skipped, or a new token sees no old one.

    Causal: the whole text at once is the reference. Not causal: each layer by hand, its keys those of its own input.
    """
    stack, x = filled(encoder(residual=residual)), draw(B, T, D)
    caches, done, outs = [KVCache(B, H, T, K, torch.float64) for _ in range(N)], 0, []
    others = [KVCache(B, H, T, K, torch.float64) for _ in range(N)]
    for end in (2, 3, T):
        outs.append(stack(x[:, done:end], causal=causal, impl=impl, caches=caches))
        wanted = x[:, done:end]
        for layer, cache in zip(stack.layers, others, strict=True):
            attend = lambda y, a=layer.self_attn, c=cache: a(y, causal=causal, cache=c)  # noqa: E731
            wanted = layer.residual(layer.residual(wanted, attend, layer.norm1), layer.feed_forward, layer.norm2)
        wanted = wanted if stack.norm is None else stack.norm(wanted)
        torch.testing.assert_close(outs[-1], wanted, **EXACT)
        done = end
    if causal:
        torch.testing.assert_close(torch.cat(outs, 1), stack(x, causal=True, impl=impl), **EXACT)


def test_caches_go_without_a_mask_and_one_a_layer():
    """Fails if a mask is dropped without a word, or a layer stays without a cache."""
    stack, x = encoder(), torch.zeros(B, T, D)
    caches = [KVCache(B, H, T, K) for _ in range(N)]
    with pytest.raises(ValueError, match="caches, one a layer, go without a mask: got a mask"):
        stack(x, torch.ones(B, T, dtype=torch.bool), caches=caches)
    for wrong in ([], caches[:1], [*caches, caches[0]]):
        with pytest.raises(ValueError, match=f"go without a mask: got {len(wrong)} caches for {N} layers"):
            stack(x, caches=wrong)
    assert [cache.length for cache in caches] == [0] * N


# --- a start and a check that models share ----------------------------------------


@pytest.mark.parametrize("std", [0.02, 0.3])
def test_normal_start_draws_weights_and_tables_and_nothing_else(std):
    """Fails if a weight or table is left out, a bias is not 0, or a norm or a parameter of one's own is drawn.

    The spread of n normal numbers lies within 5 / sqrt(2 n) of its own size, their mean within 5 std / sqrt(n).
    """
    torch.manual_seed(0)
    model = TransformerClassifier(90, TransformerEncoder([EncoderLayer(60, 3, 80)]), 40, pool="cls", norm=True)
    kept = {name: x.detach().clone() for name, x in model.named_parameters() if "norm" in name or name == "cls"}
    with torch.no_grad():
        for name, x in model.named_parameters():
            if name not in kept and name.endswith("bias") and "in_proj" not in name:
                x.fill_(1.0)
    assert normal_start(model, std) is model
    assert len(kept) == 7
    for name, parameter in model.named_parameters():
        x = parameter.detach()
        if name in kept:
            assert torch.equal(x, kept[name]), name
        elif name.endswith("bias"):
            assert (x == 0).all(), name
        else:
            assert abs(x.std().item() / std - 1) < 5 / math.sqrt(2 * (x.numel() - 1)), name
            assert abs(x.mean().item()) < 5 * std / math.sqrt(x.numel()), name
    assert normal_start(nn.Linear(50, 60, bias=False)).weight.std().item() == pytest.approx(0.02, rel=5 / 6000**0.5)


def test_check_real_lets_good_masks_pass_and_names_bad_ones():
    """Fails if a row without a real token, 0 / 1 numbers or another shape passes, or a good mask does not."""
    ids = torch.zeros(3, 4).long()
    for mask in (None, torch.ones(3, 4).bool(), length_mask([1, 4, 2], 4), ~length_mask([3, 1, 0], 4)):
        assert check_real(mask, ids) is None
    for mask, message in (
        (torch.ones(3, 4), r"must be boolean \(True = real token\) of shape \(3, 4\), got torch.float32 \(3, 4\)"),
        (torch.ones(4).bool(), r"of shape \(3, 4\), got torch.bool \(4,\)"),
        (torch.ones(1, 4).bool(), r"of shape \(3, 4\), got torch.bool \(1, 4\)"),
        (length_mask([4, 1, 0], 4), r"row 2 of the mask has no real token: nothing to judge"),
    ):
        with pytest.raises(ValueError, match=message):
            check_real(mask, ids)


# --- bad input ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: EncoderLayer(12, 5, 20),
            r"embed_dim must be a multiple of num_heads, got embed_dim=12 and num_heads=5",
        ),
        (lambda: EncoderLayer(12, 3, 0), r"dim_feedforward must be at least 1, got 0"),
        (lambda: EncoderLayer(12, 3, 20, dropout=1.0), r"dropout must be from 0 to below 1, got 1.0"),
        (lambda: EncoderLayer(12, 3, 20, attention_dropout=-1), r"dropout must be from 0 to below 1, got -1"),
        (
            lambda: EncoderLayer(12, 3, 20, residual="pre"),
            r"residual must be one of post-ln, pre-ln, rezero, got 'pre'",
        ),
        (lambda: DecoderLayer(12, 5, 20), r"embed_dim must be a multiple of num_heads"),
        (lambda: DecoderLayer(12, 3, 0), r"dim_feedforward must be at least 1, got 0"),
        (lambda: DecoderLayer(12, 3, 20, residual="none"), r"residual must be one of .*, got 'none'"),
        (lambda: TransformerEncoder([]), r"wanted at least one layer, each its own object, got 0 of 0"),
        (lambda: TransformerEncoder([EncoderLayer(12, 3, 20)] * 3), r"each its own object, got 3 of 1|got 1 of 3"),
        (lambda: TransformerEncoder([EncoderLayer(12, 3, 20), EncoderLayer(6, 3, 20)]), r"have the widths \[12, 6\]"),
        (lambda: TransformerDecoder([]), r"wanted at least one layer"),
        (
            lambda: Transformer(encoder(), TransformerDecoder([DecoderLayer(6, 3, 20)])),
            r"the encoder's width is 12, the decoder's 6",
        ),
        (lambda: TokenEmbedding(0, 12), r"vocab_size must be at least 1, got 0"),
        (lambda: TokenEmbedding(9, 0), r"d_model must be at least 1, got 0"),
        (lambda: TokenEmbedding(9, 12, dropout=1), r"dropout must be from 0 to below 1, got 1"),
        (lambda: TokenEmbedding(9, 12, scale=0), r"scale must be above 0, got 0"),
        (lambda: TokenEmbedding(9, 12)(torch.zeros(2, 3)), r"ids must be \(B, T\) int64, got \(2, 3\) torch.float32"),
        (lambda: TokenEmbedding(9, 12)(torch.zeros(3).long()), r"ids must be \(B, T\) int64, got \(3,\) torch.int64"),
        (lambda: TransformerClassifier(9, encoder(), pool="last"), r"pool must be one of mean, max, cls, got 'last'"),
        (lambda: TransformerClassifier(9, encoder(), classes=0), r"classes must be at least 1, got 0"),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(2, 3, vocab_size=9), torch.ones(2, 3)),
            r"mask must be boolean \(True = real token\) of shape \(2, 3\), got torch.float32 \(2, 3\)",
        ),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(2, 3, vocab_size=9), length_mask([2, 1], 4)),
            r"mask must be boolean .* of shape \(2, 3\), got torch.bool \(2, 4\)",
        ),
        (
            lambda: TransformerClassifier(9, encoder())(tokens(3, 3, vocab_size=9), length_mask([2, 0, 1], 3)),
            r"row 1 of the mask has no real token",
        ),
        (
            lambda: TransformerClassifier(9, encoder(), position=Learned(3, D), pool="cls")(tokens(2, 3, vocab_size=9)),
            r"positions up to 4 are needed \(offset 1 \+ T = 3\), the table has 3",
        ),
        (
            lambda: (model := translator()).step(tokens(3, 1), model.start(SOURCE)),
            r"tokens have shape \(3, 1\), wanted \(B,\): one word a sentence",
        ),
        (
            lambda: translator()(SOURCE.double(), None, tokens(3, T)),
            r"ids must be \(B, T\) int64, got .* torch.float64",
        ),
        (lambda: translator()(SOURCE, SOURCE_MASK[:, 1:], tokens(3, T)), r"mask has shape \(3, 6\), wanted"),
        (
            lambda: DecoderLayer(12, 3, 20)(torch.zeros(2, 5, 12), torch.zeros(3, 7, 12)),
            r"key has shape \(3, 7, 12\), wanted \(2",
        ),
        (
            lambda: encoder()(torch.zeros(2, 5, 12), position=ALiBi(2)),
            r"bias has shape \(2, 5, 5\), which does not expand",
        ),
        (lambda: encoder()(torch.zeros(2, 5, 12), position=RoPE(6)), r"RoPE for heads of width K = 6 got shape"),
        (lambda: encoder()(torch.zeros(2, 5, 12), impl="loop"), r"impl must be one of sdpa, math, got 'loop'"),
    ],
)
def test_bad_input_is_named(call, message):
    """Fails if bad input passes, or the message does not say what came and what was wanted."""
    with pytest.raises(ValueError, match=message):
        call()


# --- on a GPU -------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@every_position
def test_on_the_gpu(position):
    """Fails if a mask, a position or a prefix is made on the CPU. In float64, where TF32 plays no part."""
    model, target = translator(position), tokens(3, T, seed=1)
    wanted, decoded = model(SOURCE, SOURCE_MASK, target), greedy(model, SOURCE, SOURCE_MASK, max_len=8)
    model.cuda()
    source, mask = SOURCE.cuda(), SOURCE_MASK.cuda()
    torch.testing.assert_close(model(source, mask, target.cuda()).cpu(), wanted, **EXACT)
    assert [h.tokens for h in greedy(model, source, mask, max_len=8)] == [h.tokens for h in decoded]
    stack, x = filled(encoder()), draw(9, S, D)
    mask = masks_of_all_kinds(9, S)
    wanted = stack(x, mask, position=position.cpu()).detach()
    stack.cuda()
    with torch.no_grad():
        torch.testing.assert_close(stack(x.cuda(), mask.cuda(), position=position.cuda()).cpu(), wanted, **EXACT)
